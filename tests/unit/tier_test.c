/* tier_test.c - rules of the tier with worked cases, on fake devices: homes, filling, who left, and what
 * may be asked of a re-plan, with times and speeds that the test makes up. */
#include <math.h>

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
    const coli__work work = {.ids = ids, .n_row = n_row, .n_used = N_USED};
    coli__tier_used(m->tier, coli__container_experts(m->container, layer), &work);
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
    opts.backend_wait_ms = 1500; // enough for a busy machine
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
    T_FAILS(coli_model_open(dir, &opts, &m), COLI_E_INVALID,
            "layer-split 9: layers for the first of two devices: there are 8 layers and 2 devices");
    opts.layer_split = 2;
    opts.backend_options = "devices=3";
    T_FAILS(coli_model_open(dir, &opts, &m), COLI_E_INVALID, "there are 8 layers and 3 devices");
    opts.layer_split = 0;
    opts.home = 7;
    T_FAILS(coli_model_open(dir, &opts, &m), COLI_E_INVALID, "home: expected a coli_home");
}

/* ---- what may be asked of a re-plan ------------------------------------------------------------ */

static coli_model *open_replan(uint32_t with, uint32_t cap, const char *options)
{
    coli_model_opts opts = backend_opts(50, false, options);
    opts.replan_with = with;
    opts.replan_max = cap;
    return open_with(opts);
}

/* The layer's experts from 12 on are on no device, those below 8 are. */
static void prompt_row(int32_t *ids, uint32_t row, int32_t a, int32_t b)
{
    const int32_t used[N_USED] = {a, b, -1, -1};
    memcpy(ids + row * N_USED, used, sizeof used);
}

/* 10 rows of layer 0: five early ones use 12, four late ones 13. */
static void early_and_late(coli_model *m)
{
    int32_t ids[10 * N_USED];
    for (uint32_t row = 0; row < 10; row++)
        prompt_row(ids, row, row < 5 ? 12 : -1, row > 5 ? 13 : -1);
    coli__tier_prompt(m->tier);
    use(m, 0, ids, 10);
    coli__tier_settle(m->tier);
}

T_TEST(any_of_them_replans)
{
    T_BEGIN;
    for (uint32_t with = 0; with < 32; with++) {
        coli_model *m = open_replan(with, 1, NULL);
        coli__tier_set_speeds(m->tier, (coli__speeds){.host_ns = 1});
        early_and_late(m);
        T_EQ(backend_stats(m).n_replan_planned, with != 0);
        coli_model_close(m);
    }
    coli_model_opts opts = backend_opts(50, false, NULL);
    opts.replan_with = 32;
    coli_model *m;
    T_FAILS(coli_model_open(dir, &opts, &m), COLI_E_INVALID, "expected coli_replan_with");
}

T_TEST(late_rows_count_more)
{
    T_BEGIN;
    for (int tail = 0; tail < 2; tail++) {
        coli_model_opts opts = backend_opts(50, false, NULL);
        opts.replan = true;
        opts.replan_max = 1;
        opts.replan_with = tail ? COLI_REPLAN_TAIL : 0;
        coli_model *m = open_with(opts);
        early_and_late(m);
        T_EQ(where(m, 12), tail ? -1 : 0);
        T_EQ(where(m, 13), tail ? 0 : -1);
        coli_model_close(m);
    }
}

/* 14 was used in every row of an earlier prompt, and now not at all. */
T_TEST(the_past_counts)
{
    T_BEGIN;
    for (int prior = 0; prior < 2; prior++) {
        coli_model *m = open_replan(prior ? COLI_REPLAN_PRIOR : COLI_REPLAN_TAIL, 1, NULL);
        int32_t ids[40 * N_USED];
        for (uint32_t row = 0; row < 40; row++) prompt_row(ids, row, 14, -1);
        coli__tier_tick(m->tier); // as if decoded: nothing is planned
        use(m, 0, ids, 40);
        early_and_late(m);
        T_EQ(where(m, 14), prior ? 0 : -1);
        coli_model_close(m);
    }
}

/* A swap that nobody waits for costs nothing, one that takes longer than it saves is left alone, and in
 * between as many go as pay. */
T_TEST(no_more_than_pays)
{
    T_BEGIN;
    static const struct {
        double copy_ns;
        uint64_t n_planned;
    } cases[] = {
        {0, 8},       // 8 newcomers with 1 to 8 uses in 10 rows, 8 victims without
        {1e3, 8},     // hidden behind the layer
        {1e9, 0},     // 10^9 ns against 256 tokens of 100 ns
        {51.2e3, 0},  // 2 uses per token would pay; the most that there are is .8
        {12.8e3, 4},  // .5 uses per token: those with 5, 6, 7, 8
        {17.92e3, 2}, // .7: those with 7, 8
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        coli_model *m = open_replan(COLI_REPLAN_COST, 0, NULL);
        coli__tier_set_speeds(m->tier, (coli__speeds){.copy_ns = cases[i].copy_ns,
                                                      .host_ns = 150,
                                                      .device_ns = 50,
                                                      .waits = cases[i].copy_ns > 1e3});
        int32_t ids[10 * 8];
        for (uint32_t row = 0; row < 10; row++)
            for (int32_t e = 0; e < 8; e++)
                ids[row * 8 + (uint32_t)e] = row <= (uint32_t)e ? 8 + e : -1;
        coli__tier_prompt(m->tier);
        coli__work work = {.ids = ids, .n_row = 10, .n_used = 8};
        for (uint32_t l = 0; l < 2; l++) { // the first shows how long a layer takes
            work.begin_ns = 1000000 * (l + 1);
            work.end_ns = work.begin_ns + 5000;
            const uint64_t before = backend_stats(m).n_replan_planned;
            coli__tier_used(m->tier, coli__container_experts(m->container, l), &work);
            if (l == 1) T_EQ(backend_stats(m).n_replan_planned - before, cases[i].n_planned);
        }
        coli_model_close(m);
    }
}

/* Each layer of a prompt begins no more copies than the gap carries; the rest waits for later layers and
 * for the answer, and is not forgotten. */
T_TEST(swaps_hold_back)
{
    T_BEGIN;
    static const struct {
        uint64_t gap_ns, per_layer; // copies take 10000
    } cases[] = {{35000, 3}, {10000, 1}, {5000, 0}, {1000000, 8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        coli_model *m = open_replan(COLI_REPLAN_HOLD, 0, NULL);
        coli__tier_set_speeds(m->tier, (coli__speeds){.copy_ns = 10000});
        int32_t ids[2 * N_USED];
        coli__tier_prompt(m->tier);
        uint64_t now_ns = 77, n_swap = 0;
        for (uint32_t l = 0; l < N_LAYER; l++) {
            for (int32_t k = 0; k < 2 * N_USED; k++) ids[k] = 8 + k; // all that are not there
            coli__work work = {.ids = ids, .n_row = 2, .n_used = N_USED};
            work.begin_ns = now_ns += cases[i].gap_ns;
            work.end_ns = now_ns += 123456;
            coli__tier_used(m->tier, coli__container_experts(m->container, l), &work);
            coli__tier_settle(m->tier);
            const uint64_t begun = backend_stats(m).n_swap - n_swap;
            n_swap += begun;
            if (l == 0)
                T_EQ(begun, 0); // nobody knows yet how long the gap is
            else if (cases[i].gap_ns == 5000)
                T_EQ(begun, l % 2 == 0); // half a copy's time each
            else if (cases[i].per_layer < 8)
                T_EQ(begun, cases[i].per_layer);
            else
                T_EQ(begun, l == 1 ? 16 : 8); // all that is pending
        }
        coli__tier_prompt_ends(m->tier);
        coli_backend_stats s = backend_stats(m);
        T_EQ(s.n_replan_planned, 8 * N_LAYER);
        T_EQ(s.n_replan_pending, 8 * N_LAYER - n_swap);
        while (s.n_replan_pending > 0) { // four per token
            const uint64_t left = s.n_replan_pending;
            coli__tier_tick(m->tier);
            coli__tier_settle(m->tier);
            s = backend_stats(m);
            T_EQ(s.n_replan_pending, left > 4 ? left - 4 : 0);
        }
        T_EQ(s.n_swap, 8 * N_LAYER);
        T_TRUE(coli__tier_is_sound(m->tier));
        coli_model_close(m);
    }
}

/* An answer that uses other experts than the prompt: corrections bring them in, one per layer and token,
 * and then there are no more. */
T_TEST(corrections)
{
    T_BEGIN;
    coli_model *m = open_replan(COLI_REPLAN_ONLINE, 0, NULL);
    int32_t ids[20 * N_USED];
    coli__tier_prompt(m->tier);
    for (uint32_t k = 0; k < 20 * N_USED; k++) ids[k] = (int32_t)(k % N_USED);
    for (uint32_t l = 0; l < N_LAYER; l++) use(m, l, ids, 20);
    coli__tier_prompt_ends(m->tier);
    uint64_t n_swap = backend_stats(m).n_swap;
    T_EQ(n_swap, 0); // they are there
    for (int token = 0; token < 40; token++) {
        coli__tier_tick(m->tier);
        for (uint32_t l = 0; l < N_LAYER; l++) use(m, l, (const int32_t[]){12, 13, 14, 15}, 1);
        coli__tier_settle(m->tier);
        const uint64_t n = backend_stats(m).n_swap;
        T_LE(n - n_swap, N_LAYER);
        if (token > 20) T_EQ(n, n_swap);
        n_swap = n;
    }
    for (uint32_t l = 0; l < N_LAYER; l++)
        for (uint32_t e = 12; e < 16; e++) T_EQ(where(m, l * N_EXPERT + e), 0);
    T_EQ(n_swap, 4 * N_LAYER);
    coli_model_close(m);
}

/* With what it costs: nothing before the processor's speed is known, and nothing that does not pay. */
T_TEST(corrections_that_pay)
{
    T_BEGIN;
    coli_model *m = open_replan(COLI_REPLAN_ONLINE | COLI_REPLAN_COST, 0, NULL);
    coli__speeds speeds = {.copy_ns = 10000};
    uint64_t now_ns = 1, before = 0;
    for (int phase = 0; phase < 3; phase++) {
        if (phase == 1) speeds.host_ns = 260;  // 10000 - 400 over 250 over 40: .96 uses
        if (phase == 2) speeds.host_ns = 2000; // .12
        speeds.device_ns = 10;
        coli__tier_set_speeds(m->tier, speeds);
        for (int token = 0; token < 30; token++) {
            coli__tier_tick(m->tier);
            for (uint32_t l = 0; l < N_LAYER; l++) {
                static const int32_t turns[2][N_USED] = {{12, 13, 14, 15}, {0, 1, 2, 3}};
                coli__work work = {.ids = turns[token & 1], .n_row = 1, .n_used = N_USED};
                work.begin_ns = now_ns += 400;
                work.end_ns = now_ns += 20000;
                coli__tier_used(m->tier, coli__container_experts(m->container, l), &work);
            }
            coli__tier_settle(m->tier);
        }
        const uint64_t n = backend_stats(m).n_swap - before;
        before += n;
        print_message("    phase %d: %u swaps\n", phase, (uint32_t)n);
        if (phase < 2) T_EQ(n, 0);
        if (phase == 2) T_TRUE(n > 0);
    }
    coli_model_close(m);
}

/* What a copy takes is the device's account of it, here 10 us and 12 GB/s, and not the time on the
 * wall; what an expert takes on the processor is measured while tokens are decoded. */
T_TEST(speeds_are_measured)
{
    T_BEGIN;
    coli_model *m = open_replan(COLI_REPLAN_COST, 0, NULL);
    const double bytes = (double)coli__container_experts(m->container, 0)->block_bytes;
    T_FLE(fabs(coli__tier_speeds(m->tier, 0).copy_ns - (10000 + bytes / 12)), 1);
    T_FLE(coli__tier_speeds(m->tier, 0).host_ns, 0);
    coli_session *s = world_session(m, 32, 0);
    T_OK(coli_session_feed(s, (const int32_t[]){3, 141, 59, 26}, 4));
    T_FLE(coli__tier_speeds(m->tier, 0).host_ns, 0); // not by a prompt
    for (int32_t i = 0; i < 4; i++) T_OK(coli_session_feed(s, &i, 1));
    const coli__speeds got = coli__tier_speeds(m->tier, 0);
    T_TRUE(got.host_ns > 0 && got.host_ns < 1e9);
    coli_session_destroy(s);
    coli_model_close(m);
    m = open_replan(COLI_REPLAN_TAIL, 0, NULL); // nobody asks
    T_FLE(coli__tier_speeds(m->tier, 0).copy_ns, 0);
    coli_model_close(m);
    m = open_replan(COLI_REPLAN_HOLD, 0, "refuse=group_stats"); // by the clock
    T_TRUE(coli__tier_speeds(m->tier, 0).copy_ns > 0);
    coli_model_close(m);
}

/* A chat feeds its prompt in two parts, which are one prompt: one cap of swaps, of each layer. */
T_TEST(a_chat_turn_is_one_prompt)
{
    T_BEGIN;
    coli_model_opts opts = backend_opts(50, false, NULL);
    opts.replan = true;
    opts.replan_max = 1;
    coli_model *m;
    T_OK(coli_model_open(TEST_MODELS "/hummingbird", &opts, &m));
    coli_session *s = world_session(m, 512, 0);
    coli_chat *c;
    T_OK(coli_chat_create(s, NULL, &c));
    const coli_generate_opts one = {.struct_size = sizeof one, .max_tokens = 1};
    T_OK(coli_chat_say(c, "Tell me a story about a fox.", &one, NULL, NULL, NULL));
    const uint64_t n_planned = backend_stats(m).n_replan_planned;
    T_TRUE(n_planned > 0 && n_planned <= coli__container_n_expert_layer(m->container));
    coli_chat_destroy(c);
    coli_session_destroy(s);
    coli_model_close(m);
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
        cmocka_unit_test(any_of_them_replans),
        cmocka_unit_test(late_rows_count_more),
        cmocka_unit_test(the_past_counts),
        cmocka_unit_test(no_more_than_pays),
        cmocka_unit_test(swaps_hold_back),
        cmocka_unit_test(corrections),
        cmocka_unit_test(corrections_that_pay),
        cmocka_unit_test(speeds_are_measured),
        cmocka_unit_test(a_chat_turn_is_one_prompt),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
