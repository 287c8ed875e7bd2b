/* tier_prop.c - the tier without a model's forward pass: routes from a generator, on fake devices.
 *
 * What must hold (tests/fault/device_fault.c adds: while calls fail):
 *   whenever nothing is queued, used == residents * slot on every device, and no expert is twice
 *   the number of residents does not change while nothing fails
 *   an expert that is found computes what the container holds: no slot is read half-written */
#include "backends.h"

#include "libcoli/src/backend/reference.h"

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
    int32_t ids[64 * N_USED];
    for (uint32_t l = 0; l < N_LAYER; l++) {
        for (uint32_t t = 0; t < n_row; t++) route(rng, favourite + l, ids + t * N_USED);
        coli__tier_used(m->tier, coli__container_experts(m->container, l), ids, n_row, N_USED);
    }
}

static uint64_t n_resident(const coli_model *m)
{
    return backend_stats(m).n_expert;
}

static void many_ticks(const char *options, double percent, bool replan, uint32_t n_tick)
{
    coli_model *m = open_with(options, percent, replan);
    const uint64_t n = n_resident(m);
    T_TRUE(n > 0);
    t_rng rng = {7};
    uint32_t favourite = 0;
    for (uint32_t i = 0; i < n_tick; i++) {
        if (i % 500 == 0) { // a prompt about something else
            favourite = t_below(&rng, N_EXPERT);
            coli__tier_prompt(m->tier);
            for (int chunk = 0; chunk < 3; chunk++) step(m, &rng, favourite, 20);
            coli__tier_prompt_ends(m->tier);
        }
        coli__tier_tick(m->tier);
        step(m, &rng, favourite, 1);
        if (i % 97 == 0) {
            coli__tier_settle(m->tier);
            T_TRUE(coli__tier_is_sound(m->tier));
            T_EQ(n_resident(m), n);
        }
    }
    coli__tier_settle(m->tier);
    T_TRUE(coli__tier_is_sound(m->tier));
    const coli_backend_stats s = backend_stats(m);
    T_EQ(s.n_expert, n);
    T_EQ(s.n_swap, s.n_swap_in_place + s.n_overwrite_fallback);
    T_EQ(s.n_upload, n + s.n_overwrite_fallback);
    T_EQ(s.n_swap_failed + s.n_slot_lost + s.n_device_lost, 0);
    T_EQ(s.n_replan_planned, s.n_replan_done + s.n_replan_pending + s.n_replan_skipped);
    T_EQ(s.n_replan_planned > 0, replan);
    T_TRUE(s.n_swap > n_tick / 400);
    coli_model_close(m);
}

T_TEST(by_heat)
{
    T_BEGIN;
    many_ticks(NULL, 30, false, 6000);
}

T_TEST(by_prompts)
{
    T_BEGIN;
    many_ticks(NULL, 30, true, 6000);
}

T_TEST(on_two_devices_without_overwrite)
{
    T_BEGIN;
    many_ticks("devices=2 refuse=tensor_overwrite,tensor_overwrite_async", 40, true, 2000);
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
                                       cmocka_unit_test(on_two_devices_without_overwrite)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
