/* devices_test.c - which devices a model takes, and what it puts on them. */
#include "backends.h"

#define DEMO TEST_MODELS "/hummingbird"

enum { N_LAYER = 8, N_EXPERT = 64 }; // of the demo model

static char notes[4096];

static void take_note(void *user, const char *line)
{
    (void)user;
    const size_t n = strlen(notes);
    snprintf(notes + n, sizeof notes - n, "%s\n", line);
}

static coli_status open_demo(coli_model_opts opts, coli_model **m)
{
    notes[0] = 0;
    opts.note = take_note;
    return coli_model_open(DEMO, &opts, m);
}

static coli_model_opts with(const char *options)
{
    return (coli_model_opts){.struct_size = sizeof(coli_model_opts),
                             .n_threads = 1,
                             .place = "off",
                             .backend = backend_file,
                             .backend_options = options};
}

/* Experts of one layer on device d, on any for -1. */
static uint32_t n_on(const coli_model *m, uint32_t layer, int32_t d)
{
    uint32_t n = 0;
    const coli__ct_experts *experts = coli__container_experts(m->container, layer);
    for (uint32_t e = 0; e < experts->n_expert; e++) {
        coli__slot slot;
        n += coli__tier_find(m->tier, experts, e, &slot) && (d < 0 || slot.device == (uint32_t)d);
    }
    return n;
}

static coli_device_use use_of(const coli_model *m, uint32_t i)
{
    coli_device_use use = {.struct_size = sizeof use};
    T_OK(coli_model_get_device(m, i, &use));
    return use;
}

/* So many of all experts, spread over the layers. */
T_TEST(percent_of_the_experts)
{
    T_BEGIN;
    static const struct {
        double percent;
        uint32_t n;
    } cases[] = {{0, 0}, {0.7, 4}, {12, 61}, {50, 256}, {99, 507}, {100, 512}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        coli_model_opts opts = with(NULL);
        opts.vram_unit = COLI_VRAM_PERCENT;
        opts.vram = cases[i].percent;
        coli_model *m;
        T_OK(open_demo(opts, &m));
        for (uint32_t l = 0; l < N_LAYER; l++) {
            T_GE(n_on(m, l, -1), cases[i].n / N_LAYER);
            T_LE(n_on(m, l, -1), cases[i].n / N_LAYER + 1);
        }
        const coli_backend_stats s = backend_stats(m);
        T_EQ(s.n_expert, cases[i].n);
        T_EQ(s.n_expert_total, N_LAYER * N_EXPERT);
        T_EQ(s.n_upload, s.n_expert);
        T_EQ(s.n_matrix, 0);
        coli_model_close(m);
    }
}

/* Bytes are a limit that is kept, and all layers get their share of them. */
T_TEST(bytes_on_every_device)
{
    T_BEGIN;
    for (uint32_t n_device = 1; n_device <= 2; n_device++) {
        coli_model_opts opts = with(n_device == 1 ? "page=1KiB" : "devices=2 page=1KiB");
        opts.vram_unit = COLI_VRAM_BYTES;
        opts.vram = 1000000;
        coli_model *m;
        T_OK(open_demo(opts, &m));
        const uint64_t slot = coli__device_footprint(
            coli__devices_at(m->devices, 0), coli__container_experts(m->container, 0)->block_bytes);
        const coli_backend_stats s = backend_stats(m);
        T_EQ(s.n_device, n_device);
        T_EQ(s.n_expert, n_device * (1000000 / slot));
        T_EQ(s.vram_bytes, s.n_expert * slot);
        T_EQ(s.allowance_bytes, n_device * 1000000);
        for (uint32_t d = 0; d < n_device; d++) {
            const coli_device_use use = use_of(m, d);
            T_EQ(use.ordinal, d);
            T_STR(use.backend, "fake");
            T_TRUE(use.lost == NULL);
            T_EQ(use.n_expert, 1000000 / slot);
            T_LE(use.vram_bytes, use.allowance_bytes);
            for (uint32_t l = 0; l < N_LAYER; l++) {
                T_GE(n_on(m, l, (int32_t)d), use.n_expert / N_LAYER);
                T_LE(n_on(m, l, (int32_t)d), use.n_expert / N_LAYER + 1);
            }
        }
        coli_device_use none = {.struct_size = sizeof none};
        T_FAILS(coli_model_get_device(m, n_device, &none), COLI_E_INVALID, "device");
        coli_model_close(m);
    }
}

/* Without a word about memory: what is free, less 1 GiB. */
T_TEST(all_that_is_free_but_a_reserve)
{
    T_BEGIN;
    coli_model *m;
    T_OK(open_demo(with("vram=1536MiB"), &m));
    coli_backend_stats s = backend_stats(m);
    T_EQ(s.allowance_bytes, 512u << 20);
    T_EQ(s.n_expert, s.n_expert_total);
    T_TRUE(strstr(notes, "512 of 512 experts") != NULL);
    coli_model_close(m);
    T_OK(open_demo(with("vram=1GiB"), &m));
    s = backend_stats(m);
    T_EQ(s.n_expert + s.allowance_bytes, 0);
    coli_model_close(m);
}

/* A device that is smaller than what it was to hold. */
T_TEST(a_full_device)
{
    T_BEGIN;
    coli_model_opts opts = with("vram=1MiB");
    opts.vram_unit = COLI_VRAM_PERCENT;
    opts.vram = 100;
    coli_model *m;
    T_OK(open_demo(opts, &m));
    const coli_backend_stats s = backend_stats(m);
    T_TRUE(s.n_expert > 0 && s.n_expert < s.n_expert_total);
    T_LE(s.vram_bytes, 1 << 20);
    T_TRUE(strstr(notes, "fewer experts than asked for") != NULL);
    coli_model_close(m);
}

T_TEST(dense_matrices)
{
    T_BEGIN;
    coli_model_opts opts = with("devices=2");
    opts.place = "all";
    opts.vram_unit = COLI_VRAM_PERCENT;
    opts.vram = 50;
    coli_model *m;
    T_OK(open_demo(opts, &m));
    const coli_backend_stats s = backend_stats(m);
    // six layers of DeltaNet, two of attention, the head, the shared experts
    T_EQ(s.n_matrix, 6 * 3 + 2 * 4 + 1 + N_LAYER * 3);
    T_EQ(s.n_upload, s.n_matrix - N_LAYER * 2 + s.n_expert); // three in one copy
    coli_model_close(m);
    opts.vram_unit = COLI_VRAM_BYTES;
    opts.vram = 300000; // the matrices come first, and not all fit
    T_OK(open_demo(opts, &m));
    T_TRUE(backend_stats(m).n_matrix > 0);
    T_TRUE(backend_stats(m).n_matrix < 51);
    T_LE(use_of(m, 0).vram_bytes, 300000);
    T_LE(use_of(m, 1).vram_bytes, 300000);
    coli_model_close(m);
}

T_TEST(devices_by_number)
{
    T_BEGIN;
    coli_model_opts opts = with("devices=3");
    coli_model *m;
    opts.devices = "2,0";
    T_OK(open_demo(opts, &m));
    T_EQ(backend_stats(m).n_device, 2);
    T_EQ(use_of(m, 0).ordinal, 0);
    T_EQ(use_of(m, 1).ordinal, 2);
    coli_model_close(m);
    opts.devices = "1,3";
    T_FAILS(open_demo(opts, &m), COLI_E_UNSUPPORTED, "device 3: there are 3");
    static const char *const wrong[] = {"", ",", "1,", "a", "-1", "0 1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        opts.devices = wrong[i];
        T_FAILS(open_demo(opts, &m), COLI_E_INVALID, "expected ordinals");
    }
    opts.devices = "99999999999999999999";
    T_FAILS(open_demo(opts, &m), COLI_E_UNSUPPORTED, "there are 3");
}

/* A simulated device is nobody's GPU: it is used when it is asked for. */
T_TEST(nobody_asked)
{
    T_BEGIN;
    char *dir = strdup(backend_file);
    *strrchr(dir, '/') = 0;
    coli_model_opts opts = with(NULL);
    opts.backend_path = dir;
    coli_model *m;
    opts.backend = "none";
    T_OK(open_demo(opts, &m));
    T_EQ(backend_stats(m).n_device, 0);
    T_STR(notes, "");
    coli_model_close(m);
    opts.backend = "fake"; // by name
    T_OK(open_demo(opts, &m));
    T_EQ(backend_stats(m).n_device, 1);
    coli_model_close(m);
    opts.backend = NULL;
    T_OK(open_demo(opts, &m));
    for (uint32_t i = 0; i < backend_stats(m).n_device; i++)
        T_NE(strcmp(use_of(m, i).backend, "fake"), 0); // a machine with a GPU may use that
    coli_model_close(m);
    free(dir);
}

T_TEST(what_cannot_be_used)
{
    T_BEGIN;
    coli_model *m;
    coli_model_opts opts = with(NULL);
    opts.backend = "no-such-backend";
    T_FAILS(open_demo(opts, &m), COLI_E_UNSUPPORTED, "no-such-backend");
    T_TRUE(m == NULL);
    T_FAILS(open_demo(with("no-such-knob=1"), &m), COLI_E_UNSUPPORTED, "no-such-knob");
    opts = with(NULL);
    opts.vram_unit = COLI_VRAM_PERCENT;
    opts.vram = 101;
    T_FAILS(open_demo(opts, &m), COLI_E_INVALID, "vram");
    opts.vram = -1;
    T_FAILS(open_demo(opts, &m), COLI_E_INVALID, "vram");
    opts.vram_unit = 3;
    T_FAILS(open_demo(opts, &m), COLI_E_INVALID, "vram");
}

/* One wrong bit in the self-test: the device is refused, with the kernel's name. */
T_TEST(a_device_that_rounds_another_way)
{
    T_BEGIN;
    coli_model *m;
    coli_model_opts opts = with(NULL);
    opts.backend = TEST_WRONG "/coli_wrong_SEQUENTIAL" TEST_SUFFIX;
    T_FAILS(open_demo(opts, &m), COLI_E_UNSUPPORTED, "does not compute as coli/exact.h demands");
}

static bool stop_early(void *user, const char *what, uint64_t done, uint64_t total)
{
    T_TRUE(what && done <= total);
    return ++*(uint32_t *)user < 5;
}

T_TEST(copying_can_be_stopped)
{
    T_BEGIN;
    uint32_t n = 0;
    coli_model_opts opts = with(NULL);
    opts.progress = stop_early;
    opts.user = &n;
    coli_model *m;
    T_FAILS(coli_model_open(DEMO, &opts, &m), COLI_E_CANCELLED, "stopped");
    T_EQ(n, 5);
    T_TRUE(m == NULL);
}

/* A caller who knows less of the struct, or more. */
T_TEST(stats_of_other_versions)
{
    T_BEGIN;
    coli_model *m;
    T_OK(open_demo(with(NULL), &m));
    struct {
        coli_backend_stats stats;
        uint64_t more;
    } s = {.more = 7};
    s.stats.struct_size = sizeof s;
    T_OK(coli_model_get_backend_stats(m, &s.stats));
    T_EQ(s.more, 0);
    T_EQ(s.stats.n_device, 1);
    s.stats.struct_size = offsetof(coli_backend_stats, n_matrix);
    s.stats.n_matrix = 99;
    T_OK(coli_model_get_backend_stats(m, &s.stats));
    T_EQ(s.stats.n_matrix, 99);
    s.stats.struct_size = 2;
    T_FAILS(coli_model_get_backend_stats(m, &s.stats), COLI_E_INVALID, "struct_size");
    T_FAILS(coli_model_get_backend_stats(NULL, NULL), COLI_E_INVALID, "NULL");
    coli_model_close(m);
}

/* Memory runs out at requests of opening and feeding: at each of the first, then at fewer and fewer.  Threads
 * are looked at by a sanitizer that makes this take twenty times as long. */
#ifdef __SANITIZE_THREAD__
enum { FINE = 8 };
#else
enum { FINE = 64 };
#endif

T_TEST(no_memory)
{
    T_BEGIN;
    static const int32_t ids[] = {1, 2, 3};
    coli_model_opts opts = with("devices=2");
    opts.place = "all";
    opts.vram_unit = COLI_VRAM_PERCENT;
    opts.vram = 5;
    uint32_t n_failed = 0;
    for (uint64_t nth = 1;; nth += 1 + nth / FINE) {
        coli_model *m;
        coli_session *s = NULL;
        const uint64_t before = coli__alloc_count();
        coli__alloc_fail_at(nth);
        coli_status status = open_demo(opts, &m);
        const coli_session_opts session_opts = {.struct_size = sizeof session_opts, .n_ctx = 8};
        if (status == COLI_OK) status = coli_session_create(m, &session_opts, &s);
        if (status == COLI_OK) status = coli_session_feed(s, ids, 3);
        coli__alloc_fail_at(0);
        coli_session_destroy(s);
        coli_model_close(m);
        if (coli__alloc_count() - before < nth) break;
        if (status == COLI_OK) continue; // something else did as well
        T_TRUE(status == COLI_E_NOMEM || status == COLI_E_UNSUPPORTED || status == COLI_E_FORMAT);
        n_failed++;
    }
    T_TRUE(n_failed > FINE / 2);
}

int main(int argc, char **argv)
{
    if (!backend_from(argc, argv)) return 2;
    const struct CMUnitTest tests[] = {cmocka_unit_test(percent_of_the_experts),
                                       cmocka_unit_test(bytes_on_every_device),
                                       cmocka_unit_test(all_that_is_free_but_a_reserve),
                                       cmocka_unit_test(a_full_device),
                                       cmocka_unit_test(dense_matrices),
                                       cmocka_unit_test(devices_by_number),
                                       cmocka_unit_test(nobody_asked),
                                       cmocka_unit_test(what_cannot_be_used),
                                       cmocka_unit_test(a_device_that_rounds_another_way),
                                       cmocka_unit_test(copying_can_be_stopped),
                                       cmocka_unit_test(stats_of_other_versions),
                                       cmocka_unit_test(no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
