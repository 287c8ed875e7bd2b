/* tier_test.c - rules of the tier with worked cases, on fake devices: homes, filling, who left. */
#include "backends.h"

#include "libcoli/src/moe/tier.h"

enum { N_LAYER = 8, N_EXPERT = 16, N_USED = 4, N = N_LAYER * N_EXPERT }; // of qwen36-tiny-a

static char *dir;

static coli_model *open_with(coli_model_opts opts)
{
    coli_model *m;
    T_OK(coli_model_open(dir, &opts, &m));
    return m;
}

/* The device that holds an expert, or -1. */
static int where(const coli_model *m, uint32_t id)
{
    coli__slot slot;
    const coli__ct_experts *layer = coli__container_experts(m->container, id / N_EXPERT);
    return coli__tier_find(m->tier, layer, id % N_EXPERT, &slot) ? (int)slot.device : -1;
}

static uint32_t first_that(const coli_model *m, uint32_t from, bool resident)
{
    while ((where(m, from) >= 0) != resident) from++;
    return from;
}

static void use(coli_model *m, uint32_t layer, const int32_t *ids, uint32_t n_row)
{
    coli__tier_used(m->tier, coli__container_experts(m->container, layer), ids, n_row, N_USED);
}

/* ---- who left -------------------------------------------------------------------------------- */

T_TEST(e1_e2_each_is_reported_once_oldest_first)
{
    T_BEGIN;
    coli_model *m = open_with(backend_opts(50, false, NULL));
    uint32_t ids[8];
    T_EQ(coli__tier_evicted_take(m->tier, ids, 8), 0);
    T_EQ(coli__tier_evicted_take(NULL, ids, 8), 0);
    const uint32_t in[] = {N_EXPERT - 3, N_EXPERT - 2, N_EXPERT - 1}, out[] = {2, 0, 1};
    for (int i = 0; i < 3; i++) T_TRUE(coli__tier_swap(m->tier, (coli__swap){in[i], out[i]}));
    T_EQ(coli__tier_evicted_take(m->tier, ids, 2), 2); // E2: also while the copy runs
    T_TRUE(ids[0] == 2 && ids[1] == 0);
    T_EQ(coli__tier_evicted_take(m->tier, ids, 8), 1);
    T_EQ(ids[0], 1);
    T_EQ(coli__tier_evicted_take(m->tier, ids, 8), 0);
    coli_model_close(m);
}

/* E4: who has come back is not reported; who left twice is reported once.  E5: a swap that was refused
 * reports nothing. */
T_TEST(e4_e5_who_came_back_is_not_reported)
{
    T_BEGIN;
    coli_model *m = open_with(backend_opts(50, false, NULL));
    const uint32_t a = first_that(m, 0, true), b = first_that(m, 0, false);
    uint32_t ids[8];
    for (int round = 0; round < 3; round++) { // a out, b out, a out
        T_TRUE(coli__tier_swap(m->tier, round == 1 ? (coli__swap){a, b} : (coli__swap){b, a}));
        coli__tier_settle(m->tier);
    }
    T_TRUE(!coli__tier_swap(m->tier, (coli__swap){b, a})); // they are there already
    T_EQ(coli__tier_evicted_take(m->tier, ids, 8), 1);
    T_EQ(ids[0], a);
    T_TRUE(coli__tier_swap(m->tier, (coli__swap){a, b}));
    coli__tier_settle(m->tier);
    T_TRUE(coli__tier_swap(m->tier, (coli__swap){b, a}));
    coli__tier_settle(m->tier);
    T_TRUE(coli__tier_swap(m->tier, (coli__swap){a, b}));
    coli__tier_settle(m->tier);
    T_EQ(coli__tier_evicted_take(m->tier, ids, 8), 1);
    T_EQ(ids[0], b);
    coli_model_close(m);
}

/* It holds all experts, however often each goes: nothing is forgotten. */
T_TEST(e3_nothing_is_forgotten)
{
    T_BEGIN;
    coli_model *m = open_with(backend_opts(50, false, NULL));
    uint32_t ids[N];
    for (int round = 0; round < 6; round++) {
        bool left[N] = {false};
        for (uint32_t l = 0; l < N_LAYER; l++)
            for (uint32_t i = 0; i < N_EXPERT / 2; i++) {
                const uint32_t first = l * N_EXPERT;
                const uint32_t in = first_that(m, first, false), out = first_that(m, first, true);
                T_TRUE(coli__tier_swap(m->tier, (coli__swap){in, out}));
                coli__tier_settle(m->tier);
                left[out] = true;
                left[in] = false;
            }
        uint32_t n_left = 0;
        for (uint32_t id = 0; id < N; id++) n_left += left[id];
        if (round % 2 == 0) continue; // they pile up over two rounds
        const uint32_t n = coli__tier_evicted_take(m->tier, ids, N);
        bool seen[N] = {false};
        for (uint32_t i = 0; i < n; i++) {
            T_TRUE(!seen[ids[i]] && where(m, ids[i]) < 0);
            seen[ids[i]] = true;
        }
        T_GE(n, n_left);
    }
    coli_model_close(m);
}

/* A device that is lost takes its experts with it. */
T_TEST(a_lost_device_leaves_its_experts)
{
    T_BEGIN;
    uint32_t ids[N];
    coli_model_opts opts = backend_opts(25, false, "hang=fence_poll:1");
    opts.backend_wait_ms = 100;
    coli_model *m = open_with(opts);
    const uint64_t n = backend_stats(m).n_expert;
    T_TRUE(coli__tier_swap(m->tier, (coli__swap){first_that(m, 0, false), first_that(m, 0, true)}));
    coli__tier_settle(m->tier);
    T_EQ(backend_stats(m).n_device_lost, 1);
    T_EQ(coli__tier_evicted_take(m->tier, ids, N), n);
    T_EQ(coli__tier_evicted_take(m->tier, ids, N), 0);
    coli_model_close(m);
}

/* ---- filling --------------------------------------------------------------------------------- */

/* W5: nothing at the start; what is used comes in while there is room, and then no more. */
T_TEST(w5_without_a_warm_start)
{
    T_BEGIN;
    coli_model_opts opts = backend_opts(25, false, NULL);
    opts.no_warmstart = true;
    coli_model *m = open_with(opts);
    T_EQ(backend_stats(m).n_expert, 0);
    T_EQ(backend_stats(m).n_upload, 0);
    use(m, 3, (const int32_t[]){9, 2, 9, 5, -1, 2, 7, 9}, 2);
    coli__tier_settle(m->tier);
    T_EQ(backend_stats(m).n_expert, 4);
    static const uint32_t there[] = {9, 2, 5, 7};
    for (int i = 0; i < 4; i++) T_EQ(where(m, 3 * N_EXPERT + there[i]), 0);
    for (int32_t l = 0; l < N_LAYER; l++)
        for (int32_t e = 0; e < N_EXPERT; e += 4)
            use(m, (uint32_t)l, (const int32_t[]){e, e + 1, e + 2, e + 3}, 1);
    coli__tier_settle(m->tier);
    T_EQ(backend_stats(m).n_expert, N / 4); // the budget is full
    T_EQ(backend_stats(m).n_upload, N / 4);
    T_EQ(where(m, 3 * N_EXPERT + 9), 0);
    T_TRUE(coli__tier_is_sound(m->tier));
    uint32_t id;
    T_EQ(coli__tier_evicted_take(m->tier, &id, 1), 0); // nobody left
    coli_model_close(m);
}

/* An upload that failed leaves room, which the next expert used takes; the queue bounds how many may
 * come at once, and nobody waits. */
T_TEST(room_left_over_is_filled)
{
    T_BEGIN;
    coli_model *m = NULL;
    coli_backend_stats s = {.n_expert = 0};
    for (int n = 33; s.n_expert != 31; n++) { // one of the 32 uploads of the start fails
        coli_model_close(m);
        char options[64];
        snprintf(options, sizeof options, "fail=tensor_upload:%d", n);
        m = open_with(backend_opts(25, false, options));
        s = backend_stats(m);
    }
    const uint32_t id = first_that(m, 0, false);
    const int32_t e = (int32_t)(id % N_EXPERT);
    use(m, id / N_EXPERT, (const int32_t[]){e, e, e, e}, 1);
    coli__tier_settle(m->tier);
    T_EQ(where(m, id), 0);
    T_EQ(backend_stats(m).n_expert, 32);
    T_TRUE(coli__tier_is_sound(m->tier));
    coli_model_close(m);
}

/* ---- homes ----------------------------------------------------------------------------------- */

static void expect_homes(coli_model *m, const char *layers)
{
    for (uint32_t id = 0; id < N; id++) T_EQ(where(m, id), layers[id / N_EXPERT] - '0');
    T_TRUE(coli__tier_is_sound(m->tier));
    coli_model_close(m);
}

T_TEST(homes_by_layer)
{
    T_BEGIN;
    coli_model_opts opts = backend_opts(100, false, "devices=2");
    opts.home = COLI_HOME_LAYER;
    expect_homes(open_with(opts), "00001111");
    opts.layer_split = 3;
    expect_homes(open_with(opts), "00011111");
    opts.layer_split = 8;
    expect_homes(open_with(opts), "00000000");
    opts.layer_split = 0;
    opts.backend_options = "devices=2 dev1.vram=24GiB";
    expect_homes(open_with(opts), "00111111");
    opts.backend_options = "devices=1";
    expect_homes(open_with(opts), "00000000");
    opts.backend_options = "devices=2 dev0.formats=none"; // H7
    expect_homes(open_with(opts), "11111111");
    opts.home = COLI_HOME_EXPERT;
    expect_homes(open_with(opts), "11111111");
}

T_TEST(splits_that_do_not_fit)
{
    T_BEGIN;
    coli_model *m;
    coli_model_opts opts = backend_opts(100, false, "devices=2");
    opts.layer_split = 9;
    T_FAILS(coli_model_open(dir, &opts, &m), COLI_E_INVALID, "there are 8 layers and 2 devices");
    opts.layer_split = 2;
    opts.backend_options = "devices=3";
    T_FAILS(coli_model_open(dir, &opts, &m), COLI_E_INVALID, "there are 8 layers and 3 devices");
    opts.layer_split = 0;
    opts.home = 7;
    T_FAILS(coli_model_open(dir, &opts, &m), COLI_E_INVALID, "home: expected a coli_home");
}

static int setup(void **state)
{
    (void)state;
    dir = world_container(TEST_FIXTURES "/qwen36-tiny-a", "tiny", "int4", "int8");
    return 0;
}

static int teardown(void **state)
{
    free(dir);
    return world_teardown(state);
}

int main(int argc, char **argv)
{
    if (!backend_from(argc, argv)) return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(e1_e2_each_is_reported_once_oldest_first),
        cmocka_unit_test(e4_e5_who_came_back_is_not_reported),
        cmocka_unit_test(e3_nothing_is_forgotten),
        cmocka_unit_test(a_lost_device_leaves_its_experts),
        cmocka_unit_test(w5_without_a_warm_start),
        cmocka_unit_test(room_left_over_is_filled),
        cmocka_unit_test(homes_by_layer),
        cmocka_unit_test(splits_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
