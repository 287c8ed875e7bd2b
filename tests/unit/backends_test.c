/* backends_test.c - coli_backends: what the list of coli.h tells about each kind of file, and when
 * functions of a plugin run. */
#include <stdbool.h>
#include <unistd.h>

#include "coli/coli.h"
#include "libcoli/src/base/alloc.h"
#include "t.h"

static char marks[64];

static coli_backends *find(const char *backend, const char *options)
{
    const coli_backend_opts opts = {
        .struct_size = sizeof opts, .backend = backend, .path = TEST_PLUGINS, .options = options};
    coli_backends *list;
    T_OK(coli_backends_find(&opts, &list));
    return list;
}

static coli_backend_entry entry_at(const coli_backends *list, size_t i)
{
    coli_backend_entry e = {.struct_size = sizeof e};
    T_OK(coli_backends_get(list, i, &e));
    return e;
}

static size_t index_of(const coli_backends *list, const char *file)
{
    for (size_t i = 0; i < coli_backends_n(list); i++) {
        const char *at = strrchr(entry_at(list, i).file, '/');
        if (strcmp(at + 1, file) == 0) return i;
    }
    fail_msg("no %s in the list", file);
    return 0;
}

/* The lines of the marks that are no "loaded". */
static size_t n_called(void)
{
    FILE *file = fopen(marks, "r");
    char line[64];
    size_t n = 0;
    while (file && fgets(line, sizeof line, file)) n += strcmp(line, "loaded\n") != 0;
    if (file) fclose(file);
    return n;
}

T_TEST(entries)
{
    T_BEGIN;
    coli_backends *list = find(NULL, NULL);
    T_EQ(n_called(), 0);
    coli_backend_entry e = entry_at(list, index_of(list, "coli_probe.so"));
    T_STR(e.stage, "ready");
    T_TRUE(e.reason == NULL);
    T_STR(e.name, "probe");
    T_STR(e.build, "for tests");
    T_STR(e.lacks, "");
    T_EQ(e.abi_major, 1);
    T_EQ(e.abi_minor, 1);
    e = entry_at(list, index_of(list, "coli_data.so"));
    T_STR(e.stage, "symbols");
    T_TRUE(strstr(e.reason, "coli_backend_open") != NULL);
    T_STR(e.name, "data");
    e = entry_at(list, index_of(list, "coli_unresolved.so"));
    T_STR(e.stage, "library");
    T_STR(e.name, "");
    T_STR(e.lacks, "");
    uint32_t n = 7;
    T_FAILS(coli_backends_n_device(list, index_of(list, "coli_data.so"), &n), COLI_E_UNSUPPORTED,
            "symbols: ");
    T_EQ(n, 0);
    T_FAILS(coli_backends_n_device(list, coli_backends_n(list), &n), COLI_E_INVALID, "there are");
    T_FAILS(coli_backends_get(list, coli_backends_n(list), &e), COLI_E_INVALID, "there are");
    T_TRUE(e.file == NULL);
    T_EQ(n_called(), 0);
    coli_backends_free(list);
    coli_backends_free(NULL);
    T_EQ(coli_backends_n(NULL), 0);

    list = find("oldest", NULL);
    e = entry_at(list, 0);
    T_STR(e.stage, "ready");
    T_EQ(e.abi_minor, 0);
    T_STR(e.lacks, "tensor_overwrite, tensor_overwrite_async, fence_poll, host_alloc, host_free, "
                   "alloc_footprint, matmul, matmul_batch, group_stats");
    coli_backends_free(list);
}

T_TEST(devices)
{
    T_BEGIN;
    coli_backends *list = find("probe", NULL);
    coli_backend_device d = {.struct_size = sizeof d};
    uint32_t n;
    T_FAILS(coli_backends_device(list, 0, 0, &d), COLI_E_INVALID, "says 0"); // nobody asked yet
    for (int again = 0; again < 2; again++) {
        T_OK(coli_backends_n_device(list, 0, &n));
        T_EQ(n, 1);
        T_OK(coli_backends_device(list, 0, 0, &d));
        T_STR(d.kind, "simulated");
        T_STR(d.name, "Probe");
        T_STR(d.driver, "none 1.0");
        T_STR(d.uuid, "00-01");
        T_STR(d.formats, "int8-g64-f16, int4-g64-f16");
        T_EQ(d.mem_total, (uint64_t)3 << 30);
        T_TRUE(d.unusable == NULL);
    }
    T_FAILS(coli_backends_device(list, 0, 1, &d), COLI_E_INVALID, "says 1");
    T_TRUE(d.name == NULL);
    T_EQ(n_called(), 4); // device_count and device_info, twice; never open
    coli_backends_free(list);

    list = find("probe", "unusable");
    T_OK(coli_backends_n_device(list, 0, &n));
    T_OK(coli_backends_device(list, 0, 0, &d));
    T_STR(d.unusable, "it is only a probe");
    coli_backends_free(list);
}

T_TEST(no_devices)
{
    T_BEGIN;
    static const struct {
        const char *options, *reason;
    } cases[] = {{"none", "no device: no device is plugged in"},
                 {"fail", "backend probe: device_count: failed: the driver is too old"},
                 {"nomem", "backend probe: device_count: no room on the device"},
                 {"silent", "status 4711, which nobody knows: it does not say why"},
                 {"million", "it speaks of 1000000 devices"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        coli_backends *list = find("probe", cases[i].options);
        uint32_t n = 9;
        T_STR(entry_at(list, 0).stage, "ready");
        T_OK(coli_backends_n_device(list, 0, &n));
        T_EQ(n, 0);
        const coli_backend_entry e = entry_at(list, 0);
        T_STR(e.stage, "device");
        T_TRUE(strstr(e.reason, cases[i].reason) != NULL);
        coli_backends_free(list);
    }
    /* A device that says nothing about itself. */
    coli_backends *list = find("probe", "shy");
    coli_backend_device d = {.struct_size = sizeof d};
    uint32_t n;
    T_OK(coli_backends_n_device(list, 0, &n));
    T_OK(coli_backends_device(list, 0, 0, &d));
    T_STR(d.unusable, "backend probe: device_info: failed: it is shy");
    T_STR(d.name, "");
    T_STR(d.formats, "");
    coli_backends_free(list);
    /* Text without an end, bits of formats and a kind that nobody knows. */
    list = find("probe", "strange");
    T_OK(coli_backends_n_device(list, 0, &n));
    T_OK(coli_backends_device(list, 0, 0, &d));
    T_EQ(strlen(d.name), 127);
    T_STR(d.driver, "a b ?");
    T_STR(d.kind, "unknown");
    T_STR(d.formats, "int8-g64-f16");
    coli_backends_free(list);
}

/* Structs of older and newer callers. */
T_TEST(struct_sizes)
{
    T_BEGIN;
    coli_backends *list = find("probe", NULL);
    struct {
        coli_backend_entry e;
        char more[16];
    } large = {.e = {.struct_size = sizeof large}};
    memset(large.more, 1, sizeof large.more);
    T_OK(coli_backends_get(list, 0, &large.e));
    T_STR(large.e.name, "probe");
    for (size_t i = 0; i < sizeof large.more; i++) T_EQ(large.more[i], 0);
    coli_backend_entry small = {.struct_size = offsetof(coli_backend_entry, stage)};
    small.stage = "untouched";
    T_OK(coli_backends_get(list, 0, &small));
    T_STR(small.stage, "untouched");
    small.struct_size = 0;
    T_FAILS(coli_backends_get(list, 0, &small), COLI_E_INVALID, "struct_size");
    coli_backends_free(list);
    coli_backend_opts opts = {.struct_size = 1};
    T_FAILS(coli_backends_find(&opts, &list), COLI_E_INVALID, "struct_size");
    T_TRUE(list == NULL);
    opts = (coli_backend_opts){.struct_size = sizeof opts, .path = "relative"};
    T_FAILS(coli_backends_find(&opts, &list), COLI_E_INVALID, "\"relative\" is relative");
    T_OK(coli_backends_find(NULL, &list));
    coli_backends_free(list);
}

T_TEST(no_memory)
{
    T_BEGIN;
    const coli_backend_opts opts = {.struct_size = sizeof opts, .path = TEST_PLUGINS};
    coli_backends *list;
    coli_status status = COLI_E_NOMEM;
    for (uint64_t nth = 1; status == COLI_E_NOMEM; nth++) {
        coli__alloc_fail_at(nth);
        status = coli_backends_find(&opts, &list);
        coli__alloc_fail_at(0);
        T_EQ(list == NULL, status != COLI_OK);
    }
    T_OK(status);
    const size_t i = index_of(list, "coli_probe.so");
    uint32_t n;
    status = COLI_E_NOMEM;
    for (uint64_t nth = 1; status == COLI_E_NOMEM; nth++) {
        coli__alloc_fail_at(nth);
        status = coli_backends_n_device(list, i, &n);
        coli__alloc_fail_at(0);
        T_EQ(n, status == COLI_OK);
        T_STR(entry_at(list, i).stage, "ready");
    }
    T_OK(status);
    coli_backends_free(list);
}

static int setup(void **state)
{
    T_BEGIN;
    strcpy(marks, "/tmp/coli-marks-XXXXXX");
    const int fd = mkstemp(marks);
    if (fd < 0) return -1;
    close(fd);
    return setenv("TEST_MARKS", marks, 1);
}

static int clear(void **state)
{
    T_BEGIN;
    return truncate(marks, 0);
}

static int teardown(void **state)
{
    T_BEGIN;
    return unlink(marks);
}

#define TEST(name) cmocka_unit_test_setup(name, clear)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(entries), TEST(devices), TEST(no_devices), TEST(struct_sizes), TEST(no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
