/* store_placement.c - P1 with less memory than the experts need: the same logits, to the bit, whatever
 * the number of slots, the cut of the prompt, and what devices hold besides. */
#include <errno.h>
#include <stdatomic.h>

#include "backends.h"

#include "libcoli/src/moe/store.h"

static coli_store_stats store_stats(const coli_model *m)
{
    coli_store_stats s = {.struct_size = sizeof s};
    T_OK(coli_model_get_store_stats(m, &s));
    return s;
}

/* One placement.  percent of the experts on devices; below 0: no devices. */
static void check(const char *dir, const digest *want, uint32_t n_prompt, uint32_t n_slot,
                  double percent, uint32_t n_chunk)
{
    coli_model_opts opts = backend_opts(percent < 0 ? 0 : percent, false, NULL);
    if (percent < 0) opts.backend = "none";
    opts.ram_experts = n_slot;
    coli_model *m;
    world_next_shape();
    T_OK(coli_model_open(dir, &opts, &m));
    const digest got = digest_of(m, n_chunk, n_prompt);
    if (got.h != want->h)
        print_error("%u slots, %g %% on devices, chunks of %u\n", n_slot, percent, n_chunk);
    T_MEM(got.last, want->last, want->n_vocab * sizeof(float));
    T_EQ(got.h, want->h);

    const coli_store_stats s = store_stats(m);
    const uint32_t n_layer = m->shape.n_moe_layer, n_expert = m->shape.n_expert;
    T_TRUE(s.is_limited);
    T_EQ(s.n_slot, n_slot);
    T_EQ(s.n_read_failed, 0);
    // a chunk reads no expert of a layer twice
    const uint64_t n_step = (n_prompt + n_chunk - 1) / n_chunk;
    T_LE(s.n_miss, n_step * n_layer * n_expert);
    T_LE(s.n_read, s.n_miss + s.n_guess_read);
    if (percent == 100) T_EQ(s.n_hit + s.n_miss, 0);
    if (percent < 0 && n_slot == n_expert) T_LE(s.n_read, (uint64_t)n_layer * n_expert);
    T_TRUE(coli__store_is_sound(m->store));
    coli_model_close(m);
}

static void check_model(const char *dir, uint32_t n_prompt, uint32_t n_expert)
{
    static const double percents[] = {-1, 25, 0, 100};
    static const uint32_t chunks[] = {512, 7, 1};
    const uint32_t n_slots[] = {1, 2, n_expert / 2, n_expert};
    const digest want = digest_run(dir, NULL, 2, 512, n_prompt);
    for (size_t i = 0; i < 4; i++)
        for (size_t p = 0; p < 4; p++)
            for (size_t c = 0; c < 3; c++)
                if (p < 2 || c == i % 3) // 0 % is like none, and with 100 % nothing is left to do
                    check(dir, &want, n_prompt, n_slots[i], percents[p], chunks[c]);
}

T_TEST(demo_model)
{
    T_BEGIN;
    check_model(TEST_MODELS "/hummingbird", 24, 64);
}

T_TEST(other_formats)
{
    T_BEGIN;
    for (size_t i = 0; i < N_FORMAT; i++) {
        char *dir = digest_container(i);
        const digest want = digest_run(dir, NULL, 2, 512, N_FORMAT_PROMPT);
        check(dir, &want, N_FORMAT_PROMPT, 1, -1, 512);
        check(dir, &want, N_FORMAT_PROMPT, 3, 50, 7);
        free(dir);
    }
}

/* What a device that fails leaves undone is read from the file: it needs no copy of its own in memory. */
T_TEST(devices_that_fail)
{
    T_BEGIN;
    if (strcmp(backend_name, "fake") != 0) return;
    static const char *const options[] = {"lose=40", "lose=200", "fail=group_take:9",
                                          "fail=group_issue:25", "refuse=group_take"};
    char *dir = digest_container(2);
    const digest want = digest_run(dir, NULL, 2, 7, N_FORMAT_PROMPT);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        for (uint32_t n_slot = 1; n_slot <= 3; n_slot += 2) {
            coli_model_opts opts = backend_opts(50, false, options[i]);
            opts.ram_experts = n_slot;
            coli_model *m;
            world_next_shape();
            const coli_status status = coli_model_open(dir, &opts, &m);
            if (status != COLI_OK) { // while it was being filled: it was asked for
                T_EQ(status, COLI_E_UNSUPPORTED);
                continue;
            }
            const digest got = digest_of(m, 7, N_FORMAT_PROMPT);
            T_EQ(got.h, want.h);
            T_TRUE(backend_stats(m).n_row_again > 0);
            T_TRUE(coli__store_is_sound(m->store));
            coli_model_close(m);
        }
    free(dir);
}

/* -- copies to devices that cannot be read ----------------------------------------------------- */

static coli__sys real;
static atomic_int n_pread, fail_from, n_fail;

static ptrdiff_t bad_pread(int fd, void *bytes, size_t n, uint64_t offset)
{
    const int at = atomic_fetch_add(&n_pread, 1) + 1;
    if (at >= atomic_load(&fail_from) && at < atomic_load(&fail_from) + atomic_load(&n_fail)) {
        errno = EIO;
        return -1;
    }
    return real.pread(fd, bytes, n, offset);
}

/* The books stay right, the experts stay where they were, and the device goes on. */
T_TEST(uploads_that_cannot_be_read)
{
    T_BEGIN;
    char *dir = digest_container(2);
    const digest want = digest_run(dir, NULL, 2, 7, N_FORMAT_PROMPT);
    real = coli__sys_calls;
    for (int from = 1; from < 30; from += 4) {
        coli_model_opts opts = backend_opts(50, false, NULL);
        opts.ram_experts = 3;
        coli_model *m;
        atomic_store(&n_pread, 0);
        atomic_store(&fail_from, from);
        atomic_store(&n_fail, 3);
        coli__sys_calls.pread = bad_pread;
        const coli_status status = coli_model_open(dir, &opts, &m);
        coli__sys_calls = real;
        T_OK(status);
        T_TRUE(coli__tier_is_sound(m->tier));
        const coli_backend_stats s = backend_stats(m);
        T_LE(s.n_expert + 1, s.n_expert_total / 2);
        T_EQ(s.n_device_lost, 0);
        T_EQ(digest_of(m, 7, N_FORMAT_PROMPT).h, want.h);
        coli_model_close(m);
    }
    free(dir);
}

int main(int argc, char **argv)
{
    if (!backend_from(argc, argv)) return 2;
    if (!backend_is_there()) return SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(demo_model), cmocka_unit_test(other_formats),
        cmocka_unit_test(devices_that_fail), cmocka_unit_test(uploads_that_cannot_be_read)};
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
