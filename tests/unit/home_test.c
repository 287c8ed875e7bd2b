/* home_test.c - which device an expert lives on: worked cases. */
#include "t.h"

#include "libcoli/src/moe/home.h"

typedef struct layers_case {
    const char *name;
    uint32_t n_layer, n_device;
    double weights[3];
    uint32_t n[3]; // layers of each device
} layers_case;

static const layers_case layers_cases[] = {
    {"H1", 40, 2, {7 / .30, 7 / .70}, {28, 12}},
    {"H2", 8, 2, {1, 1}, {4, 4}},
    {"H3", 10, 3, {1, 2, 1}, {2, 5, 3}},
    {"H4", 5, 2, {1, 1}, {2, 3}},
    {"H5", 40, 2, {8, 6}, {23, 17}},
    {"H6", 3, 2, {0, 1}, {0, 3}},
    {"one device", 4, 1, {7}, {4}},
    {"no weights", 4, 2, {0, 0}, {2, 2}},
    {"nothing for the last", 3, 2, {1, 0}, {3, 0}},
};

T_TEST(by_layer)
{
    T_BEGIN;
    for (size_t i = 0; i < sizeof layers_cases / sizeof *layers_cases; i++) {
        const layers_case *c = &layers_cases[i];
        uint8_t home[40];
        coli__home_of_layers(c->weights, c->n_device, c->n_layer, home);
        uint32_t n[3] = {0};
        for (uint32_t l = 0; l < c->n_layer; l++) {
            T_TRUE(home[l] < c->n_device);
            T_TRUE(l == 0 || home[l] >= home[l - 1]); // layers in the devices' order
            n[home[l]]++;
        }
        for (uint32_t d = 0; d < c->n_device; d++) {
            if (n[d] != c->n[d]) print_error("%s, device %u:\n", c->name, d);
            T_EQ(n[d], c->n[d]);
        }
    }
}

/* A device that cannot hold experts has left the list: the others share its experts. */
T_TEST(by_expert)
{
    T_BEGIN;
    const uint8_t all[] = {0, 1, 2}, without[] = {0, 2};
    for (uint32_t e = 0; e < 12; e++) {
        T_EQ(coli__home_of_expert(all, 3, e), e % 3);
        T_EQ(coli__home_of_expert(without, 2, e), e % 2 ? 2 : 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(by_layer), cmocka_unit_test(by_expert)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
