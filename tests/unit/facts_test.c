/* facts_test.c - what the system says of itself, from files as Linux has them; and what coli.h makes of it. */
#include "pretended_root.h"

#include "coli/coli.h"
#include "libcoli/src/base/facts.h"

T_TEST(as_linux_has_it)
{
    T_BEGIN;
    coli__facts f;
    put("/proc/meminfo",
        "MemTotal:       1000 kB\nMemFree:         10 kB\nMemAvailable:    600 kB\n"
        "SwapCached:        5 kB\nSwapTotal:       200 kB\nSwapFree:        150 kB\n");
    put("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    coli__facts_read_under(root, &f);
    T_EQ(f.memory_bytes, 1000 * 1024);
    T_EQ(f.free_bytes, 600 * 1024);
    T_EQ(f.swap_bytes, 200 * 1024);
    T_EQ(f.swap_free_bytes, 150 * 1024);
    T_STR(f.huge_pages, "madvise");
    T_TRUE(f.has_groups && f.has_huge_pages && f.n_processor > 0);
}

/* What is not there, or is something else, is 0 and "". */
T_TEST(as_others_have_it)
{
    T_BEGIN;
    static const char *const odd[] = {
        "", "always madvise never\n", "]never[", "[", "[]", "[a word that is far too long for it]"};
    coli__facts f;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        put("/sys/kernel/mm/transparent_hugepage/enabled", odd[i]);
        coli__facts_read_under(root, &f);
        T_TRUE(strlen(f.huge_pages) < sizeof f.huge_pages);
        if (i < 5) T_STR(f.huge_pages, "");
    }
    put("/proc/meminfo", "MemTotal: much\nSwapFree\n");
    coli__facts_read_under(root, &f);
    T_EQ(f.memory_bytes + f.free_bytes + f.swap_bytes + f.swap_free_bytes, 0);
    coli__facts_read_under("/nonexistent", &f);
    T_EQ(f.memory_bytes, 0);
    T_STR(f.huge_pages, "");
}

T_TEST(in_the_public_header)
{
    T_BEGIN;
    coli_system s = {.struct_size = sizeof s};
    T_OK(coli_system_look(&s));
    T_TRUE(s.n_processor >= 1 && *s.system);
    char host[256] = "";
    T_EQ(gethostname(host, sizeof host - 1), 0);
    T_TRUE(strlen(host) < 4 || !strstr(s.system, host));
    T_LE(s.available_bytes, s.memory_bytes);
    s.struct_size = 2;
    T_FAILS(coli_system_look(&s), COLI_E_INVALID, "struct_size");
    T_FAILS(coli_system_look(NULL), COLI_E_INVALID, "NULL");
    T_TRUE(*coli_build() && coli_arithmetic_is_exact());
}

T_TEST(instruction_sets)
{
    T_BEGIN;
    const char *best, *name;
    T_OK(coli_isa_check(NULL, &best));
    bool found = false;
    size_t n = 0;
    for (; coli_isa_name(n); n++) {
        const coli_status status = coli_isa_check(coli_isa_name(n), &name);
        T_TRUE(status == COLI_OK || status == COLI_E_UNSUPPORTED);
        if (status == COLI_OK) T_STR(name, coli_isa_name(n));
        found |= strcmp(best, coli_isa_name(n)) == 0;
    }
    T_TRUE(found && n >= 6 && !coli_isa_name(n + 7));
    T_OK(coli_isa_check("scalar", NULL));
    T_FAILS(coli_isa_check("sse", &name), COLI_E_INVALID, "sse");
}

T_TEST(the_disk)
{
    T_BEGIN;
    coli_disk d = {.struct_size = sizeof d};
    T_OK(coli_disk_measure(TEST_MODELS "/hummingbird/model.coli", &d));
    T_TRUE(d.gb_s_min > 0 && d.gb_s_min <= d.gb_s_max);
    T_OK(coli_disk_measure(TEST_MODELS "/hummingbird/chat.json", &d)); // a few bytes
    T_TRUE(d.gb_s_min > 0);
    T_FAILS(coli_disk_measure("/nonexistent", &d), COLI_E_NOTFOUND, "/nonexistent");
    put("/empty", "");
    char empty[96];
    snprintf(empty, sizeof empty, "%s/empty", root);
    T_FAILS(coli_disk_measure(empty, &d), COLI_E_INVALID, "is empty");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_linux_has_it),
        cmocka_unit_test(as_others_have_it),
        cmocka_unit_test(in_the_public_header),
        cmocka_unit_test(instruction_sets),
        cmocka_unit_test(the_disk),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
