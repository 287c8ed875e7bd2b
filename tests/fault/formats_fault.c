/* formats_fault.c - opening and converting when memory or the disk gives out at any point: one
 * clear error, nothing leaked (ASan), nothing left behind, and the next try works. */
#include <errno.h>

#include "micro.h"

static const char *src, *out;

static int setup(void **state)
{
    if (micro_setup(state)) return 1;
    micro m;
    micro_init(&m, MICRO_CONFIG(2, ""), 7, MICRO_FP8);
    src = micro_write(&m, micro_path("src"));
    micro_finish(&m);
    micro_text(micro_path("src/tokenizer.json"), "{}");
    micro_text(micro_path("src/chat_template.jinja"), "x");
    out = micro_path("out");
    return 0;
}

static void ignore(void *user, const char *line)
{
    (void)user, (void)line;
}

static coli_status convert(void)
{
    const coli__convert_args args = {.src = src,
                                     .out = out,
                                     .describe = coli__engine_describe,
                                     .n_thread = 1,
                                     .note = ignore,
                                     .experts = micro_format("int4"),
                                     .trunk = micro_format("int8")};
    return coli__convert(&args);
}

static coli_status open_verify(void)
{
    coli__container *c;
    COLI_TRY(coli__container_open(out, &c));
    const coli_status status = coli__container_verify(c, coli__engine_describe, NULL, NULL);
    coli__container_close(c);
    return status;
}

static void nothing_left(void)
{
    T_TRUE(!coli__path_exists(out));
    T_TRUE(!coli__path_exists(micro_path("out.partial")));
}

/* Fail request 1, 2, 3, ... until the call gets through.  Returns how many there were. */
static uint64_t fail_every_request(coli_status (*call)(void), void (*after)(void))
{
    for (uint64_t nth = 1;; nth++) {
        coli__alloc_fail_at(nth);
        const coli_status status = call();
        const bool reached = status != COLI_OK;
        coli__alloc_fail_at(0);
        if (!reached) return nth - 1;
        if (status != COLI_E_NOMEM) fail_msg("request %" PRIu64 ": %s", nth, coli_error_message());
        T_TRUE(strstr(coli_error_message(), "memory") != NULL);
        if (after) after();
    }
}

T_TEST(convert_without_memory)
{
    T_BEGIN;
    T_GE(fail_every_request(convert, nothing_left), 100);
    T_TRUE(coli__path_is_dir(out));
}

T_TEST(open_and_verify_without_memory)
{
    T_BEGIN;
    T_GE(fail_every_request(open_verify, NULL), 20);
    T_OK(open_verify());
}

static coli_status write_one(void)
{
    static const float x[2] = {1, 2};
    const coli__st_out t = {"x", COLI_DT_F32, 1, {2}, x};
    return coli__st_write(micro_path("one.safetensors"), &t, 1);
}

static void no_one(void)
{
    T_TRUE(!coli__path_exists(micro_path("one.safetensors")));
}

T_TEST(write_safetensors_without_memory)
{
    T_BEGIN;
    T_GE(fail_every_request(write_one, no_one), 2);
}

/* -- a disk that gives out
 * -------------------------------------------------------------------------- */

static coli__sys real;
static uint64_t n_call, fail_at;
static int code;

static bool fails(void)
{
    if (++n_call != fail_at) return false;
    errno = code;
    return true;
}

static ptrdiff_t bad_read(int fd, void *b, size_t n)
{
    return fails() ? -1 : real.read(fd, b, n);
}
static ptrdiff_t bad_write(int fd, const void *b, size_t n)
{
    return fails() ? -1 : real.write(fd, b, n);
}
static int bad_fsync(int fd)
{
    return fails() ? -1 : real.fsync(fd);
}
static int bad_rename(const char *a, const char *b)
{
    return fails() ? -1 : real.rename(a, b);
}

static int restore(void **state)
{
    (void)state;
    coli__sys_calls = real;
    return 0;
}

/* Fail the nth read, write, sync or rename of a conversion, for every n. */
static void fail_every_call(int with)
{
    real = coli__sys_calls;
    coli__dir_remove(out);
    code = with;
    for (fail_at = 1;; fail_at++) {
        n_call = 0;
        coli__sys_calls = real;
        coli__sys_calls.read = bad_read;
        coli__sys_calls.write = bad_write;
        coli__sys_calls.fsync = bad_fsync;
        coli__sys_calls.rename = bad_rename;
        const coli_status status = convert();
        coli__sys_calls = real;
        if (n_call < fail_at) {
            T_OK(status);
            break;
        }
        if (n_call == fail_at && status == COLI_E_IO && coli__path_exists(out)) {
            coli__dir_remove(out); // the very last call: the directory's own entry was not synced
            continue;
        }
        if (status != COLI_E_IO) fail_msg("call %" PRIu64 ": %s", fail_at, coli_error_message());
        T_TRUE(strstr(coli_error_message(), strerror(with)) != NULL);
        T_TRUE(strstr(coli_error_message(), micro_dir) != NULL);
        nothing_left();
    }
    T_GE(fail_at, 15);
}

T_TEST(convert_with_a_broken_disk)
{
    T_BEGIN;
    fail_every_call(EIO);
}

T_TEST(convert_with_a_full_disk)
{
    T_BEGIN;
    fail_every_call(ENOSPC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convert_without_memory),
        cmocka_unit_test(open_and_verify_without_memory),
        cmocka_unit_test(write_safetensors_without_memory),
        cmocka_unit_test_teardown(convert_with_a_broken_disk, restore),
        cmocka_unit_test_teardown(convert_with_a_full_disk, restore),
    };
    return cmocka_run_group_tests(tests, setup, micro_teardown);
}
