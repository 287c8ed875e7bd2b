/* heat_test.c - counters that forget: the cases worked by hand. */
#include "plans.h"

static void expect(const uint32_t *count, uint32_t n, const char *text)
{
    T_STR(plans_ids(count, n), text);
}

T_TEST(t1_a_full_counter_stays_full)
{
    T_BEGIN;
    uint32_t count[2];
    coli__heat h;
    coli__heat_init(&h, 1, 2, count, NULL);
    expect(count, 2, "0 0");
    count[0] = UINT32_MAX - 1;
    const int32_t ids[] = {0, 1, 0, -1, 0};
    coli__heat_use(&h, 0, ids, 5);
    expect(count, 2, "4294967295 1");
}

T_TEST(uses_go_to_their_layer)
{
    T_BEGIN;
    uint32_t count[6];
    coli__heat h;
    coli__heat_init(&h, 2, 3, count, NULL);
    coli__heat_use(&h, 1, (const int32_t[]){2, 0, 2}, 3);
    coli__heat_use(&h, 0, (const int32_t[]){1}, 1);
    expect(count, 6, "0 1 0 1 0 2");
}

T_TEST(t2_halving)
{
    T_BEGIN;
    uint32_t count[6] = {0};
    coli__heat h;
    coli__heat_init(&h, 2, 3, count, NULL);
    plans_numbers("0 1 2 3 5 4294967295", count);
    for (uint32_t t = 1; t < 1024; t++) T_EQ(coli__heat_tick(&h), t % 16 == 0);
    expect(count, 6, "0 1 2 3 5 4294967295");
    T_TRUE(coli__heat_tick(&h));
    expect(count, 6, "0 0 1 1 2 2147483647");
    for (uint32_t t = 0; t < 1024; t++) coli__heat_tick(&h);
    expect(count, 6, "0 0 0 0 1 1073741823");
}

T_TEST(t3_the_stored_starts_at_half)
{
    T_BEGIN;
    const uint32_t stored[] = {5, 4, 9, 1};
    uint32_t count[4], order[4];
    coli__heat h;
    coli__heat_init(&h, 1, 4, count, stored);
    expect(count, 4, "2 2 4 0");
    coli__plan_key keys[4];
    coli__plan_order(1, 4, stored, keys, order); // among the halved, 0 and 1 would be equal
    expect(order, 4, "2 0 1 3");
}

T_TEST(t4_halving_comes_before_the_swap)
{
    T_BEGIN;
    uint32_t count[2];
    coli__heat h;
    coli__heat_init(&h, 1, 2, count, NULL);
    for (uint32_t t = 1; t < 1024; t++) coli__heat_tick(&h);
    plans_numbers("10 18", count);
    uint8_t place[2];
    plans_places("RK", place);
    const coli__plan_world w = {.n_layer = 1, .n_expert = 2, .place = place, .heat = count};
    coli__swap s;
    T_TRUE(coli__plan_slow_swap(&w, 0, &s)); // 18 > 16
    T_TRUE(coli__heat_tick(&h));
    expect(count, 2, "5 9");
    T_TRUE(!coli__plan_slow_swap(&w, 0, &s)); // 9 > 10 is false
}

/* cold, and the least that beats it */
T_TEST(hysteresis)
{
    T_BEGIN;
    static const uint32_t cases[][2] = {{0, 5},
                                        {1, 6},
                                        {3, 8},
                                        {4, 10},
                                        {7, 13},
                                        {8, 15},
                                        {10, 17},
                                        {16, 25},
                                        {100, 130},
                                        {1000, 1255},
                                        {3435973832u, UINT32_MAX}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        T_TRUE(coli__heat_beats(cases[i][1], cases[i][0]));
        T_TRUE(!coli__heat_beats(cases[i][1] - 1, cases[i][0]));
    }
    T_TRUE(!coli__heat_beats(UINT32_MAX, UINT32_MAX)); // it would take 5368709123
    T_TRUE(!coli__heat_beats(UINT32_MAX, 3435973833u));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t1_a_full_counter_stays_full),
        cmocka_unit_test(uses_go_to_their_layer),
        cmocka_unit_test(t2_halving),
        cmocka_unit_test(t3_the_stored_starts_at_half),
        cmocka_unit_test(t4_halving_comes_before_the_swap),
        cmocka_unit_test(hysteresis),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
