/* p1.c - P1, in one table: wherever experts are, however they got there and whatever fails, the bytes of
 * the prompt's and six tokens' logits are the processor's.
 *
 * Two dimensions.  Worlds: residency from none to all, devices, what overwriting does, whether and how
 * prompts re-plan; in each of them two experts change places in every layer after every token.
 * Faults: in a world with and in one without a re-plan each call of the run loses the device; each fails
 * once; each fifth hangs.  Devices whose calls cost more are spoilt at 24 calls spread over the run. */
#include "swapped_run.h"

typedef struct world {
    const char *name;
    double percent;
    const char *options; // only the fake backend understands them; NULL: any backend
    bool trunk, replan;
    const char *place; // of the trunk, instead of all or nothing; NULL: `trunk` says
} world;

static const world worlds[] = {
    {"nothing there", 0, NULL, false, false, NULL},
    {"only the trunk", 0, NULL, true, false, NULL},
    {"one expert of eight", 12.5, NULL, false, false, NULL},
    {"one of eight, re-planned", 12.5, NULL, true, true, NULL},
    {"three of eight", 37.5, NULL, true, false, NULL},
    {"three of eight, re-planned", 37.5, NULL, false, true, NULL},
    {"half", 50, NULL, true, false, NULL},
    {"half, re-planned", 50, NULL, true, true, NULL},
    {"four of five, re-planned", 80, NULL, false, true, NULL},
    {"all", 100, NULL, true, true, NULL},
    {"one slot", 0.8, NULL, false, false, NULL},
    {"two devices", 50, "devices=2", true, false, NULL},
    {"two devices, re-planned", 50, "devices=2", true, true, NULL},
    {"two devices, one too small", 50, "devices=2 dev1.vram=512KiB", false, true, NULL},
    {"no overwrite in the background", 50, "refuse=tensor_overwrite_async", false, true, NULL},
    {"no overwrite", 50, "refuse=tensor_overwrite,tensor_overwrite_async", false, false, NULL},
    {"no overwrite, re-planned", 50, "refuse=tensor_overwrite,tensor_overwrite_async", false, true, NULL},
    {"a torn overwrite", 50, "tear=tensor_overwrite_async:3:64", false, false, NULL},
    {"torn overwrites, re-planned", 50,
     "tear=tensor_overwrite_async:3:64 tear=tensor_overwrite:1:64", false, true, NULL},
    {"torn, and no upload after it", 50,
     "refuse=tensor_overwrite_async tear=tensor_overwrite:3:64 fail=tensor_upload:100+", false,
     true, NULL},
    {"the head", 50, NULL, false, false, "lmhead=0"},
    {"DeltaNet's inputs", 50, NULL, false, true, "dnproj=0"},
    {"DeltaNet's outputs", 50, NULL, false, false, "dnout=0"},
    {"attention", 50, NULL, false, true, "attnproj=0"},
    {"the shared experts", 50, NULL, false, false, "shexp=0"},
    {"the shared experts alone", 0, NULL, false, false, "shexp=0"},
    {"the shared experts, all experts", 100, NULL, false, false, "shexp=0"},
    {"some layers", 37.5, NULL, false, true, "dnproj=0:3,shexp=0:5,attnproj=0:4"},
    {"the trunk over two devices", 50, "devices=2", false, true,
     "lmhead=1,dnproj=0:4+1,dnout=1:2+0,attnproj=1,shexp=0:3+1,experts=all"},
    {"trunk and experts apart", 50, "devices=2", false, false,
     "lmhead=1,dnproj=1,dnout=1,attnproj=1,shexp=1"},
};
enum { N_WORLD = sizeof worlds / sizeof *worlds };

static coli_model_opts opts_of(const world *w)
{
    coli_model_opts opts = backend_opts(w->percent, w->trunk, w->options);
    opts.replan = w->replan;
    if (w->place) opts.place = w->place;
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
        T_EQ(s.n_row_device > 0, s.n_expert > 0);
        const bool all = s.n_expert == s.n_expert_total, none = s.n_expert == 0;
        if (none || all) T_EQ(s.n_swap, 0);
        if (!none && !all) T_TRUE(s.n_swap >= RUN_TOKENS); // they were forced
        if (w->replan && !none && !all) T_TRUE(s.n_replan_done > 0);
        if (!w->replan) T_EQ(s.n_replan_planned, 0);
        if (w->options && strstr(w->options, "devices=2")) T_EQ(s.n_device, 2);
        T_EQ(s.n_matrix > 0, w->trunk || w->place != NULL);
        T_EQ(s.n_matrix_off, 0);
        if (w->options && strstr(w->options, "tear")) T_TRUE(s.n_overwrite_fallback > 0);
    }
}

/* Spoil each step-th call of a run, 24 of a device whose calls cost more. */
static void each_call(shim_mode mode, bool replan, uint32_t step)
{
    const world w = {"half", 50, NULL, true, replan, NULL};
    const coli_model_opts opts = opts_of(&w);
    coli_backend_stats s;
    shim_set(SHIM_NONE, 0, NULL, NULL);
    T_TRUE(run_is_same(&opts, &s));
    T_EQ(s.n_call_failed + s.n_row_again + s.n_matmul_again, 0);
    const uint32_t n = atomic_load(&shim.n_call);
    T_TRUE(n > 100);
    if (strcmp(backend_name, "fake") != 0) step = n / 24;
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

T_TEST(each_call_fails_once)
{
    T_BEGIN;
    each_call(SHIM_FAIL, false, 1);
    each_call(SHIM_FAIL, true, 5);
}

T_TEST(lost_at_each_call)
{
    T_BEGIN;
    each_call(SHIM_LOSE, false, 1);
    each_call(SHIM_LOSE, true, 1);
}

T_TEST(hangs_at_each_call)
{
    T_BEGIN;
    each_call(SHIM_HANG, false, 5);
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
