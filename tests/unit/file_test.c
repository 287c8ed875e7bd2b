/* file_test.c - reading, mapping and atomic writing, also when the system answers short or not at
 * all. */
#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "micro.h"

/* -- a system that misbehaves
 * ---------------------------------------------------------------------- */

static coli__sys real;
static int countdown, code; // the call that makes countdown 0 fails with code

static bool now(void)
{
    if (--countdown != 0) return false;
    errno = code;
    return true;
}

static ptrdiff_t read_one(int fd, void *bytes, size_t n)
{
    if (now()) return -1;
    return real.read(fd, bytes, n < 3 ? n : 3);
}

static ptrdiff_t write_some(int fd, const void *bytes, size_t n)
{
    if (now()) return -1;
    return real.write(fd, bytes, n < 1000 ? n : 1000);
}

static ptrdiff_t write_none(int fd, const void *bytes, size_t n)
{
    (void)fd, (void)bytes, (void)n;
    return 0;
}

static int fsync_bad(int fd)
{
    return now() ? -1 : real.fsync(fd);
}

static int close_bad(int fd)
{
    const int result = real.close(fd);
    return now() ? -1 : result;
}

static int rename_bad(const char *from, const char *to)
{
    return now() ? -1 : real.rename(from, to);
}

static int setup(void **state)
{
    real = coli__sys_calls;
    return micro_setup(state);
}

static int restore(void **state)
{
    (void)state;
    coli__sys_calls = real;
    countdown = 0;
    return 0;
}

/* -- reading
 * --------------------------------------------------------------------------------------- */

T_TEST(reads_whole_files)
{
    T_BEGIN;
    const char *path = micro_path("text");
    micro_text(path, "hello");
    coli__buf b = micro_read(path);
    T_EQ(b.n_bytes, 5);
    T_STR(b.data, "hello");
    coli__buf_finish(&b);
    T_OK(coli__file_read(path, 5, &b)); // exactly the limit
    coli__buf_finish(&b);
    T_FAILS(coli__file_read(path, 4, &b), COLI_E_FORMAT, "larger than the 4 bytes");
    T_TRUE(b.data == NULL);
    T_FAILS(coli__file_read(micro_path("absent"), 4, &b), COLI_E_NOTFOUND,
            "absent: cannot open: No such file");
    T_FAILS(coli__file_read(micro_dir, 4, &b), COLI_E_IO, "not a regular file");
    T_EQ(mkfifo(micro_path("fifo"), 0600), 0);
    alarm(20); // a pipe that nobody writes to would hold us up for ever
    T_FAILS(coli__file_read(micro_path("fifo"), 4, &b), COLI_E_IO, "fifo: not a regular file");
    alarm(0);

    micro_text(path, "");
    T_OK(coli__file_read(path, 0, &b));
    T_EQ(b.n_bytes, 0);
    coli__buf_finish(&b);
}

T_TEST(short_reads_and_interruptions_do_not_show)
{
    T_BEGIN;
    const char *path = micro_path("long");
    char text[1001];
    for (int i = 0; i < 1000; i++) text[i] = (char)('a' + i % 26);
    text[1000] = 0;
    micro_text(path, text);
    coli__sys_calls.read = read_one;
    countdown = 7;
    code = EINTR;
    coli__buf b = micro_read(path);
    T_STR(b.data, text);
    coli__buf_finish(&b);

    countdown = 7;
    code = EIO;
    T_FAILS(coli__file_read(path, 5000, &b), COLI_E_IO, "long: cannot read: Input/output error");
    T_TRUE(b.data == NULL);
}

T_TEST(maps_files)
{
    T_BEGIN;
    const char *path = micro_path("mapped");
    micro_text(path, "hello");
    coli__map m;
    T_OK(coli__map_open(path, &m));
    T_EQ(m.n_bytes, 5);
    T_MEM(m.data, "hello", 5);
    coli__map_close(&m);
    coli__map_close(&m); // a zeroed one is fine
    micro_text(path, "");
    T_OK(coli__map_open(path, &m));
    T_TRUE(m.data == NULL && m.n_bytes == 0);
    coli__map_close(&m);
    T_FAILS(coli__map_open(micro_path("absent"), &m), COLI_E_NOTFOUND, "absent");
    T_FAILS(coli__map_open(micro_dir, &m), COLI_E_IO, "not a regular file");
    T_EQ(mkfifo(micro_path("pipe"), 0600), 0);
    T_FAILS(coli__map_open(micro_path("pipe"), &m), COLI_E_IO, "not a regular file"); // and returns
}

/* -- writing
 * --------------------------------------------------------------------------------------- */

/* 600 KB in pieces of all sizes around the writer's buffer, then two patches. */
static coli_status write_big(const char *path, coli__buf *expected)
{
    static uint8_t piece[300000];
    coli__writer *w;
    COLI_TRY(coli__writer_open(path, &w));
    coli_status status = COLI_OK;
    const uint64_t sizes[] = {1, 0, 299999, 262144, 4096, 262143, 2};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && status == COLI_OK; i++) {
        memset(piece, (int)i + 1, sizeof piece);
        status = coli__writer_append(w, piece, sizes[i]);
        if (expected) T_OK(coli__buf_append(expected, piece, sizes[i]));
        if (expected && status == COLI_OK) T_EQ(coli__writer_offset(w), expected->n_bytes);
    }
    if (status == COLI_OK) status = coli__writer_pad(w, 10000);
    if (status == COLI_OK) status = coli__writer_patch(w, 0, "AB", 2);
    if (status == COLI_OK) status = coli__writer_patch(w, 300000, "CD", 2);
    if (status == COLI_OK) status = coli__writer_append(w, "end", 3);
    if (status == COLI_OK) return coli__writer_close(w);
    coli__writer_abandon(w);
    return status;
}

static void check_big(const char *path)
{
    coli__buf expected = {0};
    static const uint8_t zero[10000];
    T_OK(write_big(path, &expected));
    T_OK(coli__buf_append(&expected, zero, sizeof zero));
    memcpy(expected.data, "AB", 2);
    memcpy(expected.data + 300000, "CD", 2);
    T_OK(coli__buf_append(&expected, "end", 3));
    coli__buf found = micro_read(path);
    T_EQ(found.n_bytes, expected.n_bytes);
    T_MEM(found.data, expected.data, expected.n_bytes);
    coli__buf_finish(&found);
    coli__buf_finish(&expected);
}

T_TEST(writes_what_was_appended)
{
    T_BEGIN;
    check_big(micro_path("big"));
    coli__writer *w;
    T_FAILS(coli__writer_open(micro_path("big"), &w), COLI_E_EXISTS, "big");
    T_TRUE(w == NULL);
    T_FAILS(coli__writer_open(micro_path("no/such"), &w), COLI_E_NOTFOUND, "no/such");
    T_OK(coli__writer_open(micro_path("small"), &w));
    T_OK(coli__writer_append(w, "abc", 3));
    T_FAILS(coli__writer_patch(w, 2, "de", 2), COLI_E_INTERNAL, "only 3");
    T_FAILS(coli__writer_patch(w, UINT64_MAX, "de", 2), COLI_E_INTERNAL, "only 3");
    coli__writer_abandon(w);
    coli__writer_abandon(NULL);
}

T_TEST(short_writes_do_not_show)
{
    T_BEGIN;
    coli__sys_calls.write = write_some;
    countdown = 5;
    code = EINTR;
    check_big(micro_path("big-short"));
}

T_TEST(a_write_that_fails_is_reported)
{
    T_BEGIN;
    static const int at[] = {1, 2, 300, 833};
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        const char *path = micro_path("full-%d", at[i]);
        coli__sys_calls.write = write_some;
        countdown = at[i];
        code = ENOSPC;
        T_FAILS(write_big(path, NULL), COLI_E_IO, "cannot write: No space left on device");
        T_TRUE(strstr(coli_error_message(), path) != NULL);
    }
    coli__sys_calls.write = write_none; // some systems say a full disk so
    T_FAILS(write_big(micro_path("none"), NULL), COLI_E_IO, "No space left");
}

T_TEST(close_promises_nothing_after_a_failure)
{
    T_BEGIN;
    coli__writer *w;
    T_OK(coli__writer_open(micro_path("failed"), &w));
    coli__sys_calls.write = write_some;
    countdown = 1;
    code = EIO;
    static uint8_t large[300000];
    T_FAILS(coli__writer_append(w, large, sizeof large), COLI_E_IO, "cannot write");
    T_FAILS(coli__writer_close(w), COLI_E_IO, "an earlier write failed");
}

T_TEST(close_syncs_and_says_when_it_cannot)
{
    T_BEGIN;
    coli__sys_calls.fsync = fsync_bad;
    countdown = 1;
    code = EIO;
    T_FAILS(write_big(micro_path("unsynced"), NULL), COLI_E_IO, "cannot sync");
    countdown = 1;
    code = EINTR;
    T_OK(write_big(micro_path("interrupted"), NULL));
    coli__sys_calls.fsync = real.fsync;
    coli__sys_calls.close = close_bad;
    countdown = 1;
    code = EIO;
    T_FAILS(write_big(micro_path("unclosed"), NULL), COLI_E_IO, "cannot close");
}

/* -- paths
 * ----------------------------------------------------------------------------------------- */

T_TEST(joins)
{
    T_BEGIN;
    static const char *const cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"/", "b", "/b"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *path;
        T_OK(coli__path_join(cases[i][0], cases[i][1], &path));
        T_STR(path, cases[i][2]);
        coli__free(path);
    }
}

T_TEST(directories)
{
    T_BEGIN;
    const char *dir = micro_path("dir");
    T_TRUE(!coli__path_exists(dir) && !coli__path_is_dir(dir));
    T_OK(coli__dir_create(dir));
    T_FAILS(coli__dir_create(dir), COLI_E_EXISTS, "dir");
    T_FAILS(coli__dir_create(micro_path("no/such")), COLI_E_NOTFOUND, "no/such");
    T_TRUE(coli__path_exists(dir) && coli__path_is_dir(dir));
    for (int i = 0; i < 100; i++) micro_text(micro_path("dir/f%02d", 99 - i), "x");
    char **names;
    size_t n;
    T_OK(coli__dir_list(dir, &names, &n));
    T_EQ(n, 100);
    for (size_t i = 0; i < n; i++) {
        char expected[8];
        snprintf(expected, sizeof expected, "f%02d", (int)i);
        T_STR(names[i], expected);
        coli__free(names[i]);
    }
    coli__free(names);
    coli__dir_remove(dir);
    T_TRUE(!coli__path_exists(dir));
    T_FAILS(coli__dir_list(dir, &names, &n), COLI_E_NOTFOUND, "dir: cannot list");
    T_EQ(symlink("nowhere", micro_path("dangling")), 0);
    T_TRUE(coli__path_exists(micro_path("dangling")));
}

T_TEST(rename_refuses_to_replace)
{
    T_BEGIN;
    T_OK(coli__dir_create(micro_path("from")));
    micro_text(micro_path("from/file"), "x");
    T_OK(coli__dir_create(micro_path("empty"))); // rename(2) alone would replace it
    T_FAILS(coli__path_rename(micro_path("from"), micro_path("empty")), COLI_E_EXISTS, "empty");
    micro_text(micro_path("taken"), "x");
    T_FAILS(coli__path_rename(micro_path("from"), micro_path("taken")), COLI_E_EXISTS, "taken");
    T_FAILS(coli__path_rename(micro_path("nothing"), micro_path("to")), COLI_E_NOTFOUND, "nothing");
    T_OK(coli__path_rename(micro_path("from"), micro_path("to/")));
    T_TRUE(coli__path_exists(micro_path("to/file")) && !coli__path_exists(micro_path("from")));

    coli__sys_calls.rename = rename_bad;
    countdown = 1;
    code = EXDEV;
    T_FAILS(coli__path_rename(micro_path("to"), micro_path("other")), COLI_E_IO,
            "cannot be renamed");
    coli__sys_calls.fsync = fsync_bad; // the directory itself, then its parent
    for (int at = 1; at <= 2; at++) {
        countdown = at;
        code = EIO;
        coli__sys_calls.rename = real.rename;
        T_FAILS(coli__path_rename(micro_path("to"), micro_path("moved")), COLI_E_IO, "cannot sync");
        T_EQ(coli__path_exists(micro_path("moved")), at == 2);
    }
    countdown = 1;
    code = EINVAL; // a file system that cannot sync directories
    T_OK(coli__path_rename(micro_path("moved"), micro_path("again")));
}

static int replace_bad(const char *from, const char *to)
{
    return now() ? -1 : real.replace(from, to);
}

static void expect_file(const char *path, const char *text)
{
    coli__buf b = micro_read(path);
    T_STR(b.data, text);
    coli__buf_finish(&b);
}

T_TEST(replaces_files)
{
    T_BEGIN;
    const char *path = micro_path("state");
    T_OK(coli__file_replace(path, "one", 3));
    expect_file(path, "one");
    T_OK(coli__file_replace(path, "second", 6));
    expect_file(path, "second");
    T_TRUE(!coli__path_exists(micro_path("state.new0")));
    micro_text(micro_path("state.new0"), "somebody writes here");
    T_OK(coli__file_replace(path, "3", 1));
    expect_file(path, "3");
    expect_file(micro_path("state.new0"), "somebody writes here");
    T_TRUE(!coli__path_exists(micro_path("state.new1")));
    for (int i = 1; i < 100; i++) micro_text(micro_path("state.new%d", i), "x");
    T_FAILS(coli__file_replace(path, "4", 1), COLI_E_EXISTS, "state.new99 are there; remove them");
    expect_file(path, "3");
    T_FAILS(coli__file_replace(micro_path("nowhere/state"), "5", 1), COLI_E_NOTFOUND, "nowhere");
    T_OK(coli__dir_create(micro_path("folder")));
    T_FAILS(coli__file_replace(micro_path("folder"), "6", 1), COLI_E_IO, "cannot be renamed");
    T_TRUE(!coli__path_exists(micro_path("folder.new0")));
}

/* Whatever fails, the old bytes or the new ones are there, and nothing beside them. */
T_TEST(replacing_that_fails)
{
    T_BEGIN;
    static const struct {
        const char *text, *found;
        int n_fsync;
        bool write, replace;
    } cases[] = {{"cannot write", "old", 0, true, false},
                 {"cannot sync", "old", 1, false, false},
                 {"cannot be renamed", "old", 0, false, true},
                 {"cannot sync", "newer", 2, false, false}};
    const char *path = micro_path("kept");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        micro_text(path, "old");
        if (cases[i].write) coli__sys_calls.write = write_some;
        if (cases[i].replace) coli__sys_calls.replace = replace_bad;
        if (cases[i].n_fsync) coli__sys_calls.fsync = fsync_bad;
        countdown = cases[i].n_fsync ? cases[i].n_fsync : 1;
        code = EIO;
        T_FAILS(coli__file_replace(path, "newer", 5), COLI_E_IO, cases[i].text);
        coli__sys_calls = real;
        expect_file(path, cases[i].found);
        T_TRUE(!coli__path_exists(micro_path("kept.new0")));
    }
    for (uint64_t nth = 1;; nth++) {
        coli__alloc_fail_at(nth);
        const coli_status status = coli__file_replace(path, "last", 4);
        coli__alloc_fail_at(0);
        T_TRUE(!coli__path_exists(micro_path("kept.new0")));
        expect_file(path, status == COLI_OK ? "last" : "newer");
        if (status == COLI_OK) break;
        T_EQ(status, COLI_E_NOMEM);
    }
}

/* Whoever holds a file holds the one that has the name, however many remove it. */
static int n_stale, n_held;

static void *hold_and_remove(void *path)
{
    for (int i = 0; i < 3000; i++) {
        int lock;
        if (coli__lock_take(path, &lock) != COLI_OK) continue;
        struct stat held, named;
        __atomic_add_fetch(&n_held, 1, __ATOMIC_RELAXED);
        if (fstat(lock, &held) != 0 || stat(path, &named) != 0 || held.st_ino != named.st_ino)
            __atomic_add_fetch(&n_stale, 1, __ATOMIC_RELAXED);
        coli__file_remove(path);
        coli__lock_give(lock);
    }
    return NULL;
}

T_TEST(what_is_held_has_the_name)
{
    T_BEGIN;
    const char *path = micro_path("held");
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        T_EQ(pthread_create(&threads[i], NULL, hold_and_remove, (void *)(uintptr_t)path), 0);
    for (int i = 0; i < 4; i++) T_EQ(pthread_join(threads[i], NULL), 0);
    T_GE(n_held, 100);
    T_EQ(n_stale, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_whole_files),
        cmocka_unit_test_teardown(short_reads_and_interruptions_do_not_show, restore),
        cmocka_unit_test(maps_files),
        cmocka_unit_test(writes_what_was_appended),
        cmocka_unit_test_teardown(short_writes_do_not_show, restore),
        cmocka_unit_test_teardown(a_write_that_fails_is_reported, restore),
        cmocka_unit_test_teardown(close_promises_nothing_after_a_failure, restore),
        cmocka_unit_test_teardown(close_syncs_and_says_when_it_cannot, restore),
        cmocka_unit_test(joins),
        cmocka_unit_test(directories),
        cmocka_unit_test_teardown(rename_refuses_to_replace, restore),
        cmocka_unit_test_teardown(replaces_files, restore),
        cmocka_unit_test_teardown(replacing_that_fails, restore),
        cmocka_unit_test(what_is_held_has_the_name),
    };
    return cmocka_run_group_tests(tests, setup, micro_teardown);
}
