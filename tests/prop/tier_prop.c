/* tier_prop.c - the tier without a model's forward pass: a hundred thousand tokens with routes from a
 * generator, on fake devices.
 *
 * What must hold:
 *   whenever nothing is queued, used == residents * slot on every device, and no expert is twice
 *   the number of residents does not change while nothing fails, and falls by the slots that are lost
 *   nothing is allocated for a token
 *   no token waits for a copy */
#include "backends.h"

#include "libcoli/src/base/alloc.h"

enum { N_LAYER = 8, N_EXPERT = 16, N_USED = 4 }; // of qwen36-tiny-a

static char *dir;

static coli_model *open_with(const char *options, double percent, bool replan)
{
    coli_model_opts opts = backend_opts(percent, false, options);
    opts.replan = replan;
    coli_model *m;
    T_OK(coli_model_open(dir, &opts, &m));
    return m;
}

/* Routes that have favourites, which change now and then. */
static void route(t_rng *rng, uint32_t favourite, int32_t *ids)
{
    uint32_t used = 0;
    for (uint32_t k = 0; k < N_USED;) {
        const uint32_t e =
            t_below(rng, 3) ? (favourite + t_below(rng, 5)) % N_EXPERT : t_below(rng, N_EXPERT);
        if (used >> e & 1) continue;
        used |= 1u << e;
        ids[k++] = (int32_t)e;
    }
}

/* One token, or a prompt of n_row rows, through all layers. */
static void step(coli_model *m, t_rng *rng, uint32_t favourite, uint32_t n_row)
{
    static uint64_t now_ns;
    int32_t ids[64 * N_USED];
    for (uint32_t l = 0; l < N_LAYER; l++) {
        for (uint32_t t = 0; t < n_row; t++) route(rng, favourite + l, ids + t * N_USED);
        coli__work work = {.ids = ids, .n_row = n_row, .n_used = N_USED};
        work.begin_ns = now_ns += 2000;
        work.end_ns = now_ns += 5000;
        coli__tier_used(m->tier, coli__container_experts(m->container, l), &work);
    }
}

static uint64_t n_resident(const coli_model *m)
{
    return backend_stats(m).n_expert;
}

typedef struct world {
    const char *options;
    double percent;
    bool replan;
    uint32_t with, n_tick;
    bool fails, cold, is_refused; // some copies fail; nothing at the start; overwrites are
} world;

/* A prompt about something else, in three chunks. */
static uint32_t prompt(coli_model *m, t_rng *rng)
{
    const uint32_t favourite = t_below(rng, N_EXPERT);
    coli__tier_prompt(m->tier);
    for (int chunk = 0; chunk < 3; chunk++) {
        step(m, rng, favourite, 20);
        if (chunk < 2) coli__tier_prompt_goes_on(m->tier);
    }
    coli__tier_prompt_ends(m->tier);
    return favourite;
}

static void check_quiet(coli_model *m, const world *w, uint64_t n)
{
    coli__tier_settle(m->tier);
    T_TRUE(coli__tier_is_sound(m->tier));
    const coli_backend_stats s = backend_stats(m);
    if (!w->cold) T_EQ(s.n_expert, n - s.n_slot_lost);
    T_LE(s.n_expert, n);
    T_EQ(s.n_replan_planned, s.n_replan_done + s.n_replan_pending + s.n_replan_skipped);
}

/* Everything that left is told once, and is not there. */
static void check_left(coli_model *m)
{
    uint32_t ids[7], n;
    do {
        n = coli__tier_evicted_take(m->tier, ids, 7);
        for (uint32_t i = 0; i < n; i++) {
            coli__slot slot;
            const coli__ct_experts *layer =
                coli__container_experts(m->container, ids[i] / N_EXPERT);
            T_TRUE(!coli__tier_find(m->tier, layer, ids[i] % N_EXPERT, &slot));
        }
    } while (n == 7);
}

static void many_ticks(const world *w)
{
    coli_model_opts opts = backend_opts(w->percent, false, w->options);
    opts.replan = w->replan;
    opts.replan_with = w->with;
    opts.no_warmstart = w->cold;
    coli_model *m;
    T_OK(coli_model_open(dir, &opts, &m));
    const uint64_t all = N_LAYER * N_EXPERT;
    const uint64_t n = w->cold ? (uint64_t)((double)all * w->percent / 100 + .5) : n_resident(m);
    T_TRUE(n > 0);
    coli__tier_set_speeds(m->tier, (coli__speeds){.copy_ns = 1500, .host_ns = 900});
    t_rng rng = {7};
    uint32_t favourite = 0;
    const uint64_t n_alloc = coli__alloc_count();
    for (uint32_t i = 0; i < w->n_tick; i++) {
        if (i % 500 == 0) favourite = prompt(m, &rng);
        coli__tier_tick(m->tier);
        step(m, &rng, favourite, 1);
        if (i % 97 == 0) check_quiet(m, w, n);
        if (i % 11 == 0) check_left(m);
    }
    if (!w->fails && !w->is_refused) T_EQ(coli__alloc_count(), n_alloc); // the devices' own aside
    check_quiet(m, w, n);
    const coli_backend_stats s = backend_stats(m);
    T_TRUE(s.n_expert > 0);
    T_EQ(s.n_device_lost, 0);
    if (w->fails) {
        T_TRUE(s.n_overwrite_fallback > 10 && s.n_slot_lost > 0);
    } else {
        T_EQ(s.n_expert, n);
        T_EQ(s.n_swap, s.n_swap_in_place + s.n_overwrite_fallback);
        T_EQ(s.n_upload, n + s.n_overwrite_fallback);
        T_EQ(s.n_swap_failed + s.n_slot_lost, 0);
    }
    T_EQ(s.n_replan_planned > 0, w->replan || w->with);
    T_TRUE(s.n_swap > w->n_tick / 400);
    print_message("    %u swaps, %u planned, %u slots lost\n", (uint32_t)s.n_swap,
                  (uint32_t)s.n_replan_planned, (uint32_t)s.n_slot_lost);
    coli_model_close(m);
}

T_TEST(by_heat)
{
    T_BEGIN;
    many_ticks(&(world){.percent = 30, .n_tick = 20000});
}

T_TEST(by_prompts)
{
    T_BEGIN;
    many_ticks(&(world){.percent = 30, .replan = true, .n_tick = 20000});
}

T_TEST(with_corrections)
{
    T_BEGIN;
    many_ticks(&(world){.percent = 30, .with = COLI_REPLAN_ONLINE, .n_tick = 20000});
}

T_TEST(with_everything)
{
    T_BEGIN;
    many_ticks(&(world){.percent = 40, .with = 31, .cold = true, .n_tick = 10000});
    many_ticks(&(world){
        .percent = 40, .with = 15, .options = "devices=3 dev1.vram=256KiB", .n_tick = 10000});
}

T_TEST(on_two_devices_without_overwrite)
{
    T_BEGIN;
    many_ticks(&(world){.options = "devices=2 refuse=tensor_overwrite,tensor_overwrite_async",
                        .percent = 40,
                        .replan = true,
                        .is_refused = true,
                        .n_tick = 5000});
}

/* The first upload after those of opening, on each of two devices. */
static int first_upload(double percent)
{
    for (int n = 2 * N_EXPERT;; n++) {
        char options[64];
        snprintf(options, sizeof options, "devices=2 fail=tensor_upload:%d", n);
        coli_model *m = open_with(options, percent, false);
        const uint64_t there = n_resident(m),
                       wanted = (uint64_t)(N_LAYER * N_EXPERT * percent / 100 + .5);
        coli_model_close(m);
        if (there == wanted) return n;
    }
}

/* Copies that fail or are torn now and then, and uploads after them, too: slots are lost. */
T_TEST(while_copies_fail)
{
    T_BEGIN;
    char options[4096] = "devices=2";
    size_t at = strlen(options);
    for (int i = 1; i <= 28; i++)
        at += (size_t)snprintf(options + at, sizeof options - at,
                               " tear=tensor_overwrite_async:%d:64 fail=tensor_overwrite_async:%d",
                               i * 9, i * 9 + 4);
    const int first = first_upload(60);
    for (int i = 0; i < 5; i++)
        at += (size_t)snprintf(options + at, sizeof options - at, " fail=tensor_upload:%d",
                               first + i * 4);
    for (uint32_t with = 0; with <= COLI_REPLAN_ONLINE; with += COLI_REPLAN_ONLINE)
        many_ticks(&(world){.options = options,
                            .percent = 60,
                            .replan = true,
                            .with = with,
                            .fails = true,
                            .n_tick = 7500});
}

/* Each copy takes 50 ms by the wall.  Tokens go on meanwhile, also when the queue is full: all of them
 * together take less than the copies that they have begun. */
T_TEST(no_token_waits_for_a_copy)
{
    T_BEGIN;
    const coli_model_opts opts = {.struct_size = sizeof opts,
                                  .n_threads = 2,
                                  .backend = backend_file,
                                  .backend_options = "real=1 latency=1ms slow=50 formats=int4-g64",
                                  .vram_unit = COLI_VRAM_PERCENT,
                                  .vram = 8,
                                  .replan_with = COLI_REPLAN_ONLINE,
                                  .replan_max = 100};
    coli_model *m;
    T_OK(coli_model_open(dir, &opts, &m));
    t_rng rng = {3};
    uint64_t slowest = 0;
    const uint64_t begin_ns = coli__clock_ns();
    for (uint32_t i = 0; i < 3000; i++) {
        const uint64_t t0 = coli__clock_ns();
        if (i % 1000 == 0) prompt(m, &rng);
        coli__tier_tick(m->tier);
        step(m, &rng, i / 200, 1);
        const uint64_t t = coli__clock_ns() - t0;
        slowest = t > slowest ? t : slowest;
    }
    const uint64_t all_ns = coli__clock_ns() - begin_ns, n_swap = backend_stats(m).n_swap;
    print_message("    slowest of 3000 tokens %.2f ms, all %.1f ms; %u copies begun\n",
                  (double)slowest * 1e-6, (double)all_ns * 1e-6, (uint32_t)n_swap);
    T_TRUE(n_swap >= 8);
    T_TRUE(all_ns < n_swap * 50000000);
    const uint64_t t0 = coli__clock_ns();
    coli__tier_settle(m->tier);
    T_TRUE(coli__clock_ns() - t0 > 50000000); // they were under way
    T_TRUE(coli__tier_is_sound(m->tier));
    coli_model_close(m);
}

/* In place: the newcomer has the victim's slot, and nothing was uploaded. */
T_TEST(a_swap_is_in_place)
{
    T_BEGIN;
    coli_model *m = open_with(NULL, 50, false);
    const coli__ct_experts *layer = coli__container_experts(m->container, 3);
    coli__slot before, after;
    uint32_t out = 0, in = 0;
    while (!coli__tier_find(m->tier, layer, out, &before)) out++;
    while (coli__tier_find(m->tier, layer, in, &after)) in++;
    const coli_backend_stats s = backend_stats(m);
    T_TRUE(coli__tier_swap(m->tier, (coli__swap){3 * N_EXPERT + in, 3 * N_EXPERT + out}));
    T_TRUE(!coli__tier_find(m->tier, layer, out, &after)); // at once
    T_TRUE(!coli__tier_find(m->tier, layer, in, &after));  // not before it has landed
    coli__tier_settle(m->tier);
    T_TRUE(coli__tier_find(m->tier, layer, in, &after));
    T_TRUE(after.tensor == before.tensor);
    T_EQ(after.device, before.device);
    const coli_backend_stats t = backend_stats(m);
    T_EQ(t.n_upload, s.n_upload);
    T_EQ(t.n_swap_in_place, 1);
    T_EQ(t.vram_bytes, s.vram_bytes);
    // what cannot be
    T_TRUE(!coli__tier_swap(m->tier, (coli__swap){3 * N_EXPERT + in, 3 * N_EXPERT + out}));
    T_TRUE(!coli__tier_swap(m->tier, (coli__swap){3 * N_EXPERT + out, 3 * N_EXPERT + out}));
    coli_model_close(m);
}

/* A torn overwrite, and then no upload either: the slot is gone, and nobody reads it. */
T_TEST(a_slot_that_is_lost)
{
    T_BEGIN;
    coli_model *m = NULL;
    coli_backend_stats s = {.n_expert = 0};
    for (int n = 65; s.n_expert < 64; n++) { // the first upload after those of opening fails
        coli_model_close(m);
        char options[128];
        snprintf(options, sizeof options,
                 "refuse=tensor_overwrite_async tear=tensor_overwrite:1:64 fail=tensor_upload:%d",
                 n);
        m = open_with(options, 50, false);
        s = backend_stats(m);
    }
    uint32_t out = 0, in = 0;
    coli__slot slot;
    const coli__ct_experts *layer = coli__container_experts(m->container, 0);
    while (!coli__tier_find(m->tier, layer, out, &slot)) out++;
    while (coli__tier_find(m->tier, layer, in, &slot)) in++;
    T_TRUE(coli__tier_swap(m->tier, (coli__swap){in, out}));
    coli__tier_settle(m->tier);
    const uint64_t used = s.vram_bytes, allowed = s.allowance_bytes;
    s = backend_stats(m);
    T_EQ(s.n_swap_failed, 1);
    T_EQ(s.n_slot_lost, 1);
    T_EQ(s.n_expert, 63);
    T_EQ(used - s.vram_bytes, used / 64);
    T_EQ(allowed - s.allowance_bytes, used / 64);
    T_TRUE(!coli__tier_find(m->tier, layer, in, &slot));
    T_TRUE(!coli__tier_find(m->tier, layer, out, &slot));
    T_TRUE(coli__tier_is_sound(m->tier));
    coli_model_close(m);
}

/* Closing while copies are queued: they are not waited for. */
T_TEST(close_with_copies_queued)
{
    T_BEGIN;
    for (int i = 0; i < 20; i++) {
        coli_model *m = open_with("devices=2", 50, true);
        t_rng rng = {(uint64_t)i};
        coli__tier_prompt(m->tier);
        step(m, &rng, t_below(&rng, N_EXPERT), 30);
        coli_model_close(m);
    }
}

/* What a run has learned is there for the next, and the same answer comes out. */
T_TEST(heat_is_kept)
{
    T_BEGIN;
    char path[256];
    snprintf(path, sizeof path, "%s/heat", world_scratch());
    coli_model_opts opts = backend_opts(25, false, NULL);
    opts.heat = path;
    static const int32_t ids[] = {3, 141, 59, 26, 5, 35, 89, 79};
    float first[320], second[320];
    uint64_t hits[2];
    for (int run = 0; run < 2; run++) {
        coli_model *m;
        T_OK(coli_model_open(dir, &opts, &m));
        coli_session *s = world_session(m, 64, 0);
        T_OK(coli_session_feed(s, ids, 8));
        for (int i = 0; i < 8; i++) T_OK(coli_session_feed(s, ids + i, 1));
        memcpy(run ? second : first, coli_session_logits(s), sizeof first);
        hits[run] = backend_stats(m).n_row_device;
        T_EQ(backend_stats(m).n_hit_decode + backend_stats(m).n_miss_decode, 8 * N_LAYER * N_USED);
        coli_session_destroy(s);
        if (run == 0) T_OK(coli_model_save_heat(m));
        coli_model_close(m);
    }
    T_MEM(first, second, sizeof first);
    T_TRUE(hits[1] > hits[0]); // the second run starts with what the first one used
    coli_heat *heat;
    T_OK(coli_heat_open(path, &heat));
    coli_heat_info info = {.struct_size = sizeof info};
    T_OK(coli_heat_get_info(heat, &info));
    T_EQ(info.n_token, 16);
    coli_heat_close(heat);
    opts.heat_readonly = true;
    coli__buf before = {0}, after = {0};
    T_OK(coli__file_read(path, 1 << 20, &before));
    coli_model *m;
    T_OK(coli_model_open(dir, &opts, &m));
    coli_model_close(m);
    T_OK(coli__file_read(path, 1 << 20, &after));
    T_EQ(before.n_bytes, after.n_bytes);
    T_MEM(before.data, after.data, before.n_bytes);
    coli__buf_finish(&before);
    coli__buf_finish(&after);
}

/* Heat of another model is refused and left alone. */
T_TEST(heat_of_another_model)
{
    T_BEGIN;
    char path[256];
    snprintf(path, sizeof path, "%s/other-heat", world_scratch());
    coli_model_opts opts = backend_opts(25, false, NULL);
    opts.heat = path;
    coli_model *m;
    T_OK(coli_model_open(TEST_MODELS "/hummingbird", &opts, &m));
    coli_model_close(m);
    T_FAILS(coli_model_open(dir, &opts, &m), COLI_E_FORMAT, path);
    T_TRUE(m == NULL);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_swap_is_in_place),
                                       cmocka_unit_test(a_slot_that_is_lost),
                                       cmocka_unit_test(close_with_copies_queued),
                                       cmocka_unit_test(heat_is_kept),
                                       cmocka_unit_test(heat_of_another_model),
                                       cmocka_unit_test(by_heat),
                                       cmocka_unit_test(by_prompts),
                                       cmocka_unit_test(with_corrections),
                                       cmocka_unit_test(with_everything),
                                       cmocka_unit_test(while_copies_fail),
                                       cmocka_unit_test(no_token_waits_for_a_copy),
                                       cmocka_unit_test(on_two_devices_without_overwrite)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
