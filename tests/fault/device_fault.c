/* device_fault.c - P4: whatever a device fails at, the run goes on with the same bytes, and the numbers
 * say what was done instead.  What fails while the model is being opened is an error that names the
 * device: it was asked for.  (A fault at each single call: tests/prop/p1.c.) */
#include "swapped_run.h"

enum { N_TOKEN = RUN_TOKENS, WAIT_STUCK_MS = 250 };

static uint32_t wait_ms = RUN_WAIT_MS;

static bool same_bytes(const char *options, coli_backend_stats *stats)
{
    coli_model_opts opts = backend_opts(50, true, options);
    opts.backend_wait_ms = wait_ms;
    return run_is_same(&opts, stats);
}

/* How many calls a run without faults makes of one entry. */
static uint32_t n_calls(const char *only)
{
    coli_backend_stats stats;
    shim_set(SHIM_NONE, 0, only, NULL);
    T_TRUE(same_bytes(NULL, &stats));
    T_EQ(stats.n_call_failed + stats.n_row_again + stats.n_matmul_again, 0);
    return atomic_load(&shim.n_call);
}

T_TEST(no_fault)
{
    T_BEGIN;
    coli_backend_stats s;
    shim_set(SHIM_NONE, 0, NULL, NULL);
    T_TRUE(same_bytes(NULL, &s));
    T_EQ(s.n_call_failed + s.n_device_lost + s.n_row_again, 0);
    T_TRUE(s.n_row_device > 0 && s.n_row_host > 0 && s.n_matmul > 0);
    T_EQ(s.n_overwrite_async + s.n_overwrite, N_TOKEN * 8); // a swap per layer and token
    T_EQ(s.n_expert, 64);                                   // half of 8 layers of 16
}

/* Each entry's own failure while the model runs: what is done instead is counted. */
T_TEST(each_entry_fails)
{
    T_BEGIN;
    static const struct {
        const char *entry;
        uint32_t skip; // calls at open and in its self-test
    } cases[] = {{"group_issue", 12},    {"group_take", 12}, {"tensor_overwrite_async", 0},
                 {"fence_poll", 0},      {"matmul", 2},      {"matmul_batch", 0},
                 {"tensor_overwrite", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint32_t n = n_calls(cases[i].entry);
        if (n <= cases[i].skip) continue; // not called: there is something better
        coli_backend_stats s;
        shim_set(SHIM_FAIL, cases[i].skip + (n - cases[i].skip + 1) / 2, cases[i].entry, NULL);
        T_TRUE(same_bytes(NULL, &s));
        T_STR(shim.spoilt, cases[i].entry);
        T_EQ(s.n_call_failed, 1);
        T_EQ(s.n_device_lost, 0);
        T_EQ(s.n_row_again > 0, strncmp(cases[i].entry, "group", 5) == 0);
        T_EQ(s.n_matmul_again > 0, strncmp(cases[i].entry, "matmul", 6) == 0);
        T_EQ(s.n_overwrite_fallback > 0, cases[i].entry[0] == 't' || cases[i].entry[0] == 'f');
    }
}

T_TEST(three_failures_in_a_row_are_enough)
{
    T_BEGIN;
    coli_backend_stats s;
    shim_set(SHIM_NONE, 0, NULL, NULL);
    coli_model_opts opts = backend_opts(50, false, NULL);
    coli_model *m;
    T_OK(coli_model_open(run_dir, &opts, &m));
    shim_set(SHIM_NONE, 0, NULL, "group_issue"); // UNSUPPORTED, again and again
    float got[RUN_FLOATS];
    run_swapped(m, got);
    s = backend_stats(m);
    coli_model_close(m);
    T_MEM(got, run_want, sizeof got);
    T_EQ(s.n_device_lost, 1);
    T_EQ(s.n_group, 0);
    T_EQ(s.n_call_failed, 3);
    T_TRUE(s.n_row_again > 0);
}

/* What is missing from the plugin, one entry after another, and what is done for it. */
T_TEST(each_optional_entry_is_refused)
{
    T_BEGIN;
    static const char *const entries[] = {
        "tensor_overwrite", "tensor_overwrite_async", "fence_poll", "host_alloc", "alloc_footprint",
        "matmul",           "matmul_batch",           "group_stats"};
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        coli_backend_stats s;
        shim_set(SHIM_NONE, 0, NULL, entries[i]);
        if (!same_bytes(NULL, &s)) print_error("%s: %s\n", entries[i], coli_error_message());
        T_EQ(s.n_device, 1);
        T_EQ(s.n_device_lost, 0);
        T_TRUE(s.n_row_device > 0);
        const bool has_async = shim.real.tensor_overwrite_async != NULL;
        if (!strcmp(entries[i], "tensor_overwrite") && !has_async)
            T_EQ(s.n_overwrite_fallback, N_TOKEN * 8);
        if (!strcmp(entries[i], "tensor_overwrite_async") && has_async)
            T_EQ(s.n_copy_sync, N_TOKEN * 8);
        if (!strcmp(entries[i], "fence_poll") && has_async) T_TRUE(s.n_copy_sync > 0);
        if (!strcmp(entries[i], "host_alloc")) T_TRUE(s.n_pageable > 0);
        if (!strcmp(entries[i], "alloc_footprint")) T_TRUE(s.n_footprint_fallback > 0);
        if (!strcmp(entries[i], "matmul")) T_EQ(s.n_matmul, 0);
        if (!strcmp(entries[i], "matmul_batch") && shim.real.matmul_batch)
            T_TRUE(s.n_batch_fallback > 0);
        if (!strcmp(entries[i], "group_stats")) T_TRUE(s.kernel_ms == 0);
    }
}

static void shim_without_async(coli__backend_api *api)
{
    shim_hook(api);
    api->tensor_overwrite_async = NULL;
    api->fence_poll = NULL;
}

/* Overwriting has two ways and both are gone: every swap is a free and an upload. */
T_TEST(no_overwrite_at_all)
{
    T_BEGIN;
    coli_backend_stats s;
    void (*hook)(coli__backend_api *) = coli__device_hook;
    coli__device_hook = shim_without_async;
    shim_set(SHIM_NONE, 0, NULL, "tensor_overwrite");
    T_TRUE(same_bytes(NULL, &s));
    coli__device_hook = hook;
    T_EQ(s.n_overwrite_fallback, N_TOKEN * 8);
    T_EQ(s.n_slot_lost, 0);
    T_EQ(s.n_expert, 64);
}

/* A call that never returns: the device is left behind, with everything that the call may touch. */
T_TEST(a_call_that_does_not_return)
{
    T_BEGIN;
    static const struct {
        const char *entry;
        uint32_t at;
    } cases[] = {{"group_issue", 20},
                 {"group_take", 30},
                 {"matmul", 15},
                 {"fence_poll", 9},
                 {"tensor_overwrite_async", 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        coli_backend_stats s;
        shim_set(SHIM_STICK, cases[i].at, cases[i].entry, NULL);
        wait_ms = WAIT_STUCK_MS;
        T_TRUE(same_bytes(NULL, &s));
        wait_ms = RUN_WAIT_MS;
        T_STR(shim.spoilt, cases[i].entry);
        T_EQ(s.n_device_lost, 1);
        T_EQ(s.n_call_late, 1);
        shim_release();
        usleep(20000); // its thread goes on for a moment
    }
}

/* The same while the model is opened: an error, and what the call may touch stays. */
T_TEST(an_upload_that_does_not_return)
{
    T_BEGIN;
    for (uint32_t at = 2; at < 40; at += 20) { // in the self-test; in filling
        coli_backend_stats s;
        shim_set(SHIM_STICK, at, "tensor_upload", NULL);
        wait_ms = WAIT_STUCK_MS;
        T_TRUE(!same_bytes(NULL, &s));
        wait_ms = RUN_WAIT_MS;
        T_TRUE(strstr(coli_error_message(), "no answer within") != NULL);
        shim_release();
        usleep(20000);
    }
}

/* Dense products are jobs like groups: three failures in a row are the end of the device. */
T_TEST(products_that_always_fail)
{
    T_BEGIN;
    shim_set(SHIM_NONE, 0, NULL, NULL);
    coli_model_opts opts = backend_opts(0, true, NULL);
    opts.place = "lmhead=0,dnproj=0,dnout=0,attnproj=0"; // no shared experts: their groups succeed
    coli_model *m;
    T_OK(coli_model_open(run_dir, &opts, &m));
    shim.spoil_products = true;
    float got[RUN_FLOATS];
    run_swapped(m, got);
    shim.spoil_products = false;
    const coli_backend_stats s = backend_stats(m);
    coli_model_close(m);
    T_MEM(got, run_want, sizeof got);
    T_EQ(s.n_device_lost, 1);
    T_EQ(s.n_call_failed, 3);
    T_TRUE(s.n_matmul_again > 0);
}

/* One failure turns a piece of the trunk off for good, and nothing else: the processor redoes the call. */
T_TEST(each_component_fails_once)
{
    T_BEGIN;
    static const struct {
        const char *place, *entry;
        uint32_t n_off; // matrices of one call
    } cases[] = {{"lmhead=0", "matmul", 1},   {"dnproj=0", "matmul_batch", 2},
                 {"dnout=0", "matmul", 1},    {"attnproj=0", "matmul_batch", 3},
                 {"attnproj=0", "matmul", 1}, {"shexp=0", "group_issue", 3},
                 {"shexp=0", "group_take", 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        shim_set(SHIM_NONE, 0, NULL, NULL);
        coli_model_opts opts = backend_opts(0, false, NULL);
        opts.place = cases[i].place;
        coli_model *m;
        T_OK(coli_model_open(run_dir, &opts, &m));
        shim_set(SHIM_FAIL, 2, cases[i].entry, NULL);
        float got[RUN_FLOATS];
        run_swapped(m, got);
        const coli_backend_stats s = backend_stats(m);
        coli_model_close(m);
        T_MEM(got, run_want, sizeof got);
        if (!shim.spoilt[0]) continue; // a plugin without batches
        T_EQ(s.n_call_failed, 1);
        T_EQ(s.n_device_lost, 0);
        T_EQ(s.n_matrix_off, cases[i].n_off);
        T_EQ(s.n_matmul_again, cases[i].n_off);
        T_TRUE(s.n_matrix > 0);
        // the others go on
        if (s.n_matrix > s.n_matrix_off) T_TRUE(s.n_matmul + s.n_group > 1);
    }
}

/* A result whose rows are narrower than the model's is not read. */
T_TEST(rows_that_are_too_narrow)
{
    T_BEGIN;
    shim_set(SHIM_NONE, 0, NULL, NULL);
    coli_model_opts opts = backend_opts(50, false, NULL);
    coli_model *m;
    T_OK(coli_model_open(run_dir, &opts, &m));
    shim.spoil_ld = true;
    float got[RUN_FLOATS];
    run_swapped(m, got);
    shim.spoil_ld = false;
    const coli_backend_stats s = backend_stats(m);
    coli_model_close(m);
    T_MEM(got, run_want, sizeof got);
    T_EQ(s.n_group, 0);
    T_EQ(s.n_device_lost, 1);
}

/* Every take fails, after issues that do not: that is three failures in a row, too. */
T_TEST(takes_that_always_fail)
{
    T_BEGIN;
    shim_set(SHIM_NONE, 0, NULL, NULL);
    coli_model_opts opts = backend_opts(50, false, NULL);
    coli_model *m;
    T_OK(coli_model_open(run_dir, &opts, &m));
    shim_set(SHIM_NONE, 0, NULL, "group_take");
    float got[RUN_FLOATS];
    run_swapped(m, got);
    const coli_backend_stats s = backend_stats(m);
    coli_model_close(m);
    T_MEM(got, run_want, sizeof got);
    T_EQ(s.n_device_lost, 1);
    T_EQ(s.n_call_failed, 3);
}

int main(int argc, char **argv)
{
    if (!backend_from(argc, argv)) return 2;
    if (!backend_is_there()) return SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_fault),
                                       cmocka_unit_test(each_entry_fails),
                                       cmocka_unit_test(each_optional_entry_is_refused),
                                       cmocka_unit_test(no_overwrite_at_all),
                                       cmocka_unit_test(three_failures_in_a_row_are_enough),
                                       cmocka_unit_test(takes_that_always_fail),
                                       cmocka_unit_test(products_that_always_fail),
                                       cmocka_unit_test(each_component_fails_once),
                                       cmocka_unit_test(rows_that_are_too_narrow),
                                       cmocka_unit_test(an_upload_that_does_not_return),
                                       cmocka_unit_test(a_call_that_does_not_return)};
    return cmocka_run_group_tests(tests, run_setup, run_teardown);
}
