/* p1.c - P1, in one table: wherever experts are, however they got there and whatever fails, the bytes of
 * the prompt's and six tokens' logits are the processor's.
 *
 * Two dimensions.  Worlds: residency from none to all, devices, what overwriting does, whether and how
 * prompts re-plan, whether experts pass through spare slots; in each of them two experts change places
 * in every layer after every token.
 * Faults: in a world with and in one without a re-plan each call of the run loses the device, and each
 * or each ninth fails once or hangs; in one where experts pass, each seventeenth does any of these.
 * Devices whose calls cost more are spoilt at 24 calls spread over the run. */
#include "swapped_run.h"

typedef struct world {
    const char *name;
    double percent;
    const char *options; // only the fake backend understands them; NULL: any backend
    bool trunk, replan;
    const char *place; // of the trunk, instead of all or nothing; NULL: `trunk` says
    uint32_t with;     // coli_replan_with
    uint32_t ram;      // experts of each layer in memory; 0: all
    uint32_t stream;   // rows that an expert must have to pass through a spare slot; 0: none does
} world;

static const world worlds[] = {
    {.name = "nothing there"},
    {.name = "only the trunk", .trunk = true},
    {.name = "one expert of eight", .percent = 12.5},
    {.name = "one of eight, re-planned", .percent = 12.5, .trunk = true, .replan = true},
    {.name = "three of eight", .percent = 37.5, .trunk = true},
    {.name = "three of eight, re-planned", .percent = 37.5, .replan = true},
    {.name = "half", .percent = 50, .trunk = true},
    {.name = "half, re-planned", .percent = 50, .trunk = true, .replan = true},
    {.name = "four of five, re-planned", .percent = 80, .replan = true},
    {.name = "all", .percent = 100, .trunk = true, .replan = true},
    {.name = "one slot", .percent = 0.8},
    {.name = "two devices", .percent = 50, .options = "devices=2", .trunk = true},
    {.name = "two devices, re-planned",
     .percent = 50,
     .options = "devices=2",
     .trunk = true,
     .replan = true},
    {.name = "two devices, one too small",
     .percent = 50,
     .options = "devices=2 dev1.vram=512KiB",
     .replan = true},
    {.name = "no overwrite in the background",
     .percent = 50,
     .options = "refuse=tensor_overwrite_async",
     .replan = true},
    {.name = "no overwrite",
     .percent = 50,
     .options = "refuse=tensor_overwrite,tensor_overwrite_async"},
    {.name = "no overwrite, re-planned",
     .percent = 50,
     .options = "refuse=tensor_overwrite,tensor_overwrite_async",
     .replan = true},
    {.name = "a torn overwrite", .percent = 50, .options = "tear=tensor_overwrite_async:3:64"},
    {.name = "torn overwrites, re-planned",
     .percent = 50,
     .options = "tear=tensor_overwrite_async:3:64 tear=tensor_overwrite:1:64",
     .replan = true},
    {.name = "torn, and no upload after it",
     .percent = 50,
     .options = "refuse=tensor_overwrite_async tear=tensor_overwrite:3:64 fail=tensor_upload:100+",
     .replan = true},
    {.name = "the head", .percent = 50, .place = "lmhead=0"},
    {.name = "DeltaNet's inputs", .percent = 50, .replan = true, .place = "dnproj=0"},
    {.name = "DeltaNet's outputs", .percent = 50, .place = "dnout=0"},
    {.name = "attention", .percent = 50, .replan = true, .place = "attnproj=0"},
    {.name = "the shared experts", .percent = 50, .place = "shexp=0"},
    {.name = "the shared experts alone", .place = "shexp=0"},
    {.name = "the shared experts, all experts", .percent = 100, .place = "shexp=0"},
    {.name = "some layers",
     .percent = 37.5,
     .replan = true,
     .place = "dnproj=0:3,shexp=0:5,attnproj=0:4"},
    {.name = "the trunk over two devices",
     .percent = 50,
     .options = "devices=2",
     .replan = true,
     .place = "lmhead=1,dnproj=0:4+1,dnout=1:2+0,attnproj=1,shexp=0:3+1,experts=all"},
    {.name = "trunk and experts apart",
     .percent = 50,
     .options = "devices=2",
     .place = "lmhead=1,dnproj=1,dnout=1,attnproj=1,shexp=1"},
    {.name = "half, with everything", .percent = 50, .with = 31},
    {.name = "half, with corrections",
     .percent = 50,
     .trunk = true,
     .replan = true,
     .with = COLI_REPLAN_ONLINE | COLI_REPLAN_PRIOR},
    {.name = "two devices, late rows",
     .percent = 40,
     .options = "devices=2",
     .replan = true,
     .with = COLI_REPLAN_ONLINE | COLI_REPLAN_TAIL},
    {.name = "one expert of each layer in memory", .ram = 1},
    {.name = "two in memory, half on the device", .percent = 50, .ram = 2, .replan = true},
    {.name = "nine in memory, three of eight on the device",
     .percent = 37.5,
     .ram = 9,
     .trunk = true,
     .with = COLI_REPLAN_ONLINE},
    {.name = "nothing there, streamed", .stream = 1},
    {.name = "half, streamed", .percent = 50, .trunk = true, .stream = 1},
    {.name = "half, re-planned, many rows streamed", .percent = 50, .replan = true, .stream = 2},
    {.name = "half, streamed where it pays",
     .percent = 50,
     .replan = true,
     .with = COLI_REPLAN_COST,
     .stream = COLI_STREAM_AUTO},
    {.name = "all, streamed", .percent = 100, .trunk = true, .stream = 1},
    {.name = "two devices, streamed",
     .percent = 25,
     .options = "devices=2",
     .place = "shexp=1",
     .replan = true,
     .stream = 1},
    {.name = "two devices, one too small, streamed",
     .percent = 50,
     .options = "devices=2 dev1.vram=512KiB",
     .stream = 1},
    {.name = "two in memory, streamed", .percent = 25, .ram = 2, .stream = 1},
    {.name = "torn overwrites, streamed",
     .percent = 25,
     .options = "tear=tensor_overwrite_async:3:64 tear=tensor_overwrite:1:64",
     .stream = 1},
    {.name = "torn, and no upload after it, streamed",
     .percent = 25,
     .options = "refuse=tensor_overwrite_async tear=tensor_overwrite:3:64 fail=tensor_upload:60+",
     .stream = 1},
};
enum { N_WORLD = sizeof worlds / sizeof *worlds };

static coli_model_opts opts_of(const world *w)
{
    coli_model_opts opts = backend_opts(w->percent, w->trunk, w->options);
    opts.replan = w->replan;
    if (w->place) opts.place = w->place;
    opts.replan_with = w->with;
    opts.ram_experts = w->ram;
    opts.stream_rows = w->stream;
    return opts;
}

T_TEST(each_world)
{
    T_BEGIN;
    for (size_t i = 0; i < N_WORLD; i++) {
        const world *w = &worlds[i];
        if (w->options && strcmp(backend_name, "fake") != 0) continue;
        coli_backend_stats s;
        shim_set(SHIM_NONE, 0, NULL, NULL);
        const coli_model_opts opts = opts_of(w);
        print_message("    %s\n", w->name);
        T_OK(run_is_same(&opts, &s) ? COLI_OK : COLI_E_INTERNAL);
        T_EQ(s.n_device_lost, 0);
        T_EQ(s.n_row_device - s.n_row_streamed > 0, s.n_expert > 0);
        const bool all = s.n_expert == s.n_expert_total, none = s.n_expert == 0;
        if (none || all) T_EQ(s.n_swap, 0);
        if (!none && !all) T_TRUE(s.n_swap >= RUN_TOKENS); // they were forced
        if (w->replan && !none && !all) T_TRUE(s.n_replan_done > 0);
        if (!w->replan && !w->with) T_EQ(s.n_replan_planned, 0);
        if (w->options && strstr(w->options, "devices=2")) T_EQ(s.n_device, 2);
        T_EQ(s.n_matrix > 0, w->trunk || w->place != NULL);
        T_EQ(s.n_matrix_off, 0);
        if (w->stream != COLI_STREAM_AUTO)
            T_EQ(s.n_streamed > 0, w->stream > 0 && w->percent < 100);
        T_GE(s.n_row_streamed, s.n_streamed);
        if (w->options && strstr(w->options, "tear")) T_TRUE(s.n_overwrite_fallback > 0);
    }
}

/* Sanitizers make a run several times as long; all calls are spoilt without them. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { WIDER = 7 };
#else
enum { WIDER = 1 };
#endif

/* Spoil each step-th call of a run, 24 of a device whose calls cost more. */
static void each_call(shim_mode mode, const world *w, uint32_t step)
{
    const coli_model_opts opts = opts_of(w);
    coli_backend_stats s;
    shim_set(SHIM_NONE, 0, NULL, NULL);
    T_TRUE(run_is_same(&opts, &s));
    T_EQ(s.n_call_failed + s.n_row_again + s.n_matmul_again, 0);
    const uint32_t n = atomic_load(&shim.n_call);
    T_TRUE(n > 100);
    if (strcmp(backend_name, "fake") != 0) step = n / 24;
    step *= WIDER;
    uint32_t n_open_failed = 0, n_run = 0;
    for (uint32_t at = 1; at <= n; at += step) {
        shim_set(mode, at, NULL, NULL);
        if (!run_is_same(&opts, &s)) {
            n_open_failed++;
            continue;
        }
        n_run++;
        if (!shim.spoilt[0]) continue; // a fault earlier, or a copy's luck, made the run shorter
        if (mode != SHIM_FAIL) T_EQ(s.n_device_lost, 1);
    }
    print_message("    %u calls; %u runs went on, %u could not be opened\n", n, n_run,
                  n_open_failed);
    T_TRUE(n_run > 0);
}

static const world plain = {.name = "half", .percent = 50, .trunk = true},
                   replanned = {.name = "half", .percent = 50, .trunk = true, .replan = true},
                   streamed = {.name = "half", .percent = 50, .trunk = true, .stream = 1};

T_TEST(each_call_fails_once)
{
    T_BEGIN;
    each_call(SHIM_FAIL, &plain, 1);
    each_call(SHIM_FAIL, &replanned, 9);
    each_call(SHIM_FAIL, &streamed, 17);
}

T_TEST(lost_at_each_call)
{
    T_BEGIN;
    each_call(SHIM_LOSE, &plain, 1);
    each_call(SHIM_LOSE, &replanned, 1);
    each_call(SHIM_LOSE, &streamed, 17);
}

T_TEST(hangs_at_each_call)
{
    T_BEGIN;
    each_call(SHIM_HANG, &plain, 9);
    each_call(SHIM_HANG, &streamed, 17);
}

int main(int argc, char **argv)
{
    if (!backend_from(argc, argv)) return 2;
    if (!backend_is_there()) return SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_world), cmocka_unit_test(each_call_fails_once),
        cmocka_unit_test(lost_at_each_call), cmocka_unit_test(hangs_at_each_call)};
    return cmocka_run_group_tests(tests, run_setup, run_teardown);
}
