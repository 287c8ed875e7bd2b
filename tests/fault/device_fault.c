/* device_fault.c - P4: whatever a device fails at, and whenever, the run goes on with the same bytes.
 *
 * A run is a prompt and six tokens, with a swap of two experts in every layer after each of them, so
 * that every entry of the ABI is called.  A shim spoils call n.  What fails while the model is being
 * opened is an error that names the device: it was asked for. */
#include "backends.h"
#include "shim.h"

enum { N_TOKEN = 6, N_VOCAB = 320 };

/* The host's limit: long enough for a busy machine.  The shim pretends that it has passed. */
enum { WAIT_MS = 4000, WAIT_STUCK_MS = 250, PRETENDED_US = 500 };

static uint32_t wait_ms = WAIT_MS;

static char *model_dir;
static float want[(N_TOKEN + 1) * N_VOCAB];

/* The next expert that is (not) on a device, from e on. */
static bool next_of(const coli_model *m, const coli__ct_experts *layer, bool resident, uint32_t *e)
{
    coli__slot slot;
    for (; *e < layer->n_expert; ++*e)
        if (coli__tier_find(m->tier, layer, *e, &slot) == resident) return true;
    return false;
}

/* One swap in every layer, and wait for them. */
static void swap_some(coli_model *m, uint32_t round)
{
    for (uint32_t i = 0; i < coli__container_n_expert_layer(m->container); i++) {
        const coli__ct_experts *layer = coli__container_experts(m->container, i);
        uint32_t leaving = round, coming = 0;
        if (next_of(m, layer, true, &leaving) && next_of(m, layer, false, &coming))
            coli__tier_swap(
                m->tier, (coli__swap){i * layer->n_expert + coming, i * layer->n_expert + leaving});
    }
    coli__tier_settle(m->tier);
}

/* Logits after the prompt and after each of the tokens. */
static void run(coli_model *m, float *out)
{
    static const int32_t prompt[] = {3, 141, 59, 26, 5};
    coli_session *s = world_session(m, 32, 0);
    T_OK(coli_session_feed(s, prompt, 5));
    for (uint32_t i = 0;; i++) {
        memcpy(out + i * N_VOCAB, coli_session_logits(s), N_VOCAB * sizeof *out);
        if (i == N_TOKEN) break;
        swap_some(m, i);
        int32_t id = 0;
        for (int32_t v = 1; v < N_VOCAB; v++)
            if (out[i * N_VOCAB + (uint32_t)v] > out[i * N_VOCAB + (uint32_t)id]) id = v;
        T_OK(coli_session_feed(s, &id, 1));
    }
    coli_session_destroy(s);
}

/* Open, run, compare.  False when it could not be opened. */
static bool same_bytes(const char *options, coli_backend_stats *stats)
{
    coli_model_opts opts = backend_opts(50, true, options);
    opts.backend_wait_ms = wait_ms;
    shim.wait_us = PRETENDED_US;
    *stats = (coli_backend_stats){.struct_size = sizeof *stats};
    coli_model *m;
    const coli_status status = coli_model_open(model_dir, &opts, &m);
    if (status != COLI_OK) {
        T_TRUE(status == COLI_E_UNSUPPORTED || status == COLI_E_IO);
        T_TRUE(strstr(coli_error_message(), backend_name) != NULL);
        return false;
    }
    float got[(N_TOKEN + 1) * N_VOCAB];
    run(m, got);
    *stats = backend_stats(m);
    T_TRUE(coli__tier_is_sound(m->tier));
    coli_model_close(m);
    T_MEM(got, want, sizeof got);
    return true;
}

/* How many calls a run without faults makes, of one entry or of all. */
static uint32_t n_calls(const char *only)
{
    coli_backend_stats stats;
    shim_set(SHIM_NONE, 0, only, NULL);
    T_TRUE(same_bytes(NULL, &stats));
    T_EQ(stats.n_call_failed + stats.n_row_again + stats.n_matmul_again, 0);
    return atomic_load(&shim.n_call);
}

/* Every call of a run for the fake device, 24 spread ones for others, whose calls cost more. */
static uint32_t stride(uint32_t n)
{
    return strcmp(backend_name, "fake") == 0 || n <= 24 ? 1 : n / 24;
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

static void each_call(shim_mode mode)
{
    const uint32_t n = n_calls(NULL);
    T_TRUE(n > 100);
    uint32_t n_open_failed = 0, n_run = 0;
    for (uint32_t at = 1; at <= n; at += stride(n)) {
        coli_backend_stats s;
        shim_set(mode, at, NULL, NULL);
        if (!same_bytes(NULL, &s)) {
            n_open_failed++;
            continue;
        }
        n_run++;
        if (!shim.spoilt[0]) continue; // a fault earlier made the run shorter
        if (mode != SHIM_FAIL) T_EQ(s.n_device_lost, 1);
    }
    print_message("    %u calls; %u runs went on, %u could not be opened\n", n, n_run,
                  n_open_failed);
    T_TRUE(n_run > 0);
}

T_TEST(each_call_fails_once)
{
    T_BEGIN;
    each_call(SHIM_FAIL);
}

T_TEST(lost_at_each_call)
{
    T_BEGIN;
    each_call(SHIM_LOSE);
}

T_TEST(hangs_at_each_call)
{
    T_BEGIN;
    each_call(SHIM_HANG);
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
    T_OK(coli_model_open(model_dir, &opts, &m));
    shim_set(SHIM_NONE, 0, NULL, "group_issue"); // UNSUPPORTED, again and again
    float got[(N_TOKEN + 1) * N_VOCAB];
    run(m, got);
    s = backend_stats(m);
    coli_model_close(m);
    T_MEM(got, want, sizeof got);
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
        wait_ms = WAIT_MS;
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
        wait_ms = WAIT_MS;
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
    coli_model *m;
    T_OK(coli_model_open(model_dir, &opts, &m));
    shim.spoil_products = true;
    float got[(N_TOKEN + 1) * N_VOCAB];
    run(m, got);
    shim.spoil_products = false;
    const coli_backend_stats s = backend_stats(m);
    coli_model_close(m);
    T_MEM(got, want, sizeof got);
    T_EQ(s.n_device_lost, 1);
    T_EQ(s.n_call_failed, 3);
    T_TRUE(s.n_matmul_again > 0);
}

/* A result whose rows are narrower than the model's is not read. */
T_TEST(rows_that_are_too_narrow)
{
    T_BEGIN;
    shim_set(SHIM_NONE, 0, NULL, NULL);
    coli_model_opts opts = backend_opts(50, false, NULL);
    coli_model *m;
    T_OK(coli_model_open(model_dir, &opts, &m));
    shim.spoil_ld = true;
    float got[(N_TOKEN + 1) * N_VOCAB];
    run(m, got);
    shim.spoil_ld = false;
    const coli_backend_stats s = backend_stats(m);
    coli_model_close(m);
    T_MEM(got, want, sizeof got);
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
    T_OK(coli_model_open(model_dir, &opts, &m));
    shim_set(SHIM_NONE, 0, NULL, "group_take");
    float got[(N_TOKEN + 1) * N_VOCAB];
    run(m, got);
    const coli_backend_stats s = backend_stats(m);
    coli_model_close(m);
    T_MEM(got, want, sizeof got);
    T_EQ(s.n_device_lost, 1);
    T_EQ(s.n_call_failed, 3);
}

static int setup(void **state)
{
    (void)state;
    model_dir = world_container(TEST_FIXTURES "/qwen36-tiny-a", "tiny", "int4", "int8");
    coli_model *m = world_open(model_dir, 2, NULL);
    T_EQ(m->shape.n_vocab, N_VOCAB);
    run(m, want);
    coli_model_close(m);
    coli__device_hook = shim_hook;
    return 0;
}

static int teardown(void **state)
{
    free(model_dir);
    return world_teardown(state);
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
                                       cmocka_unit_test(each_call_fails_once),
                                       cmocka_unit_test(lost_at_each_call),
                                       cmocka_unit_test(hangs_at_each_call),
                                       cmocka_unit_test(takes_that_always_fail),
                                       cmocka_unit_test(products_that_always_fail),
                                       cmocka_unit_test(rows_that_are_too_narrow),
                                       cmocka_unit_test(an_upload_that_does_not_return),
                                       cmocka_unit_test(a_call_that_does_not_return)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
