/* memory_test.c - how much memory may be taken, read off files as the system writes them. */
#include "pretended_root.h"

#include "libcoli/src/base/memory.h"

/* As before any test: 8000 kB, no groups. */
static int start(void **state)
{
    (void)state;
    char command[512];
    snprintf(command, sizeof command, "find %s -type f -delete", root);
    if (system(command) != 0) return -1;
    put("/proc/meminfo", "MemTotal:  16000 kB\nMemFree:  100 kB\nMemAvailable:   8000 kB\n");
    return 0;
}

T_TEST(what_the_kernel_says)
{
    T_BEGIN;
    T_EQ(coli__memory_available_under(root), 8000 * 1024);
    T_EQ(coli__memory_available_under("/nonexistent"), 0);
    T_TRUE(coli__memory_available() > 0);
}

T_TEST(the_root_group_of_a_container)
{
    T_BEGIN;
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/memory.max", "5000000\n");
    put("/sys/fs/cgroup/memory.current", "2000000\n");
    T_EQ(coli__memory_available_under(root), 3000000);
    // what it has read from files can go
    put("/sys/fs/cgroup/memory.stat", "anon 900\nfile 1500\ninactive_file 1000000\n"
                                      "active_file 500000\nunevictable 7\n");
    T_EQ(coli__memory_available_under(root), 4500000);
    put("/sys/fs/cgroup/memory.max", "max\n");
    T_EQ(coli__memory_available_under(root), 8000 * 1024);
    put("/sys/fs/cgroup/memory.max", "50000000000\n"); // more than the machine has
    T_EQ(coli__memory_available_under(root), 8000 * 1024);
    put("/sys/fs/cgroup/memory.max", "400000\n"); // it is over its limit: nothing is left
    T_EQ(coli__memory_available_under(root), 0);
}

T_TEST(the_strictest_of_nested_groups)
{
    T_BEGIN;
    put("/proc/self/cgroup", "0::/user/x\n");
    put("/sys/fs/cgroup/user/memory.max", "3000000\n");
    put("/sys/fs/cgroup/user/memory.current", "1000000\n");
    put("/sys/fs/cgroup/user/x/memory.max", "max\n");
    put("/sys/fs/cgroup/user/x/memory.current", "900000\n");
    T_EQ(coli__memory_available_under(root), 2000000);
    put("/sys/fs/cgroup/user/x/memory.max", "1500000\n");
    T_EQ(coli__memory_available_under(root), 600000);
}

T_TEST(the_older_version)
{
    T_BEGIN;
    put("/proc/self/cgroup", "9:name=systemd:/\n4:cpuset:/\n3:memory:/a/b\n0::/\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "123\n");
    put("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "4000000\n");
    put("/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "3000000\n");
    put("/sys/fs/cgroup/memory/a/b/memory.stat",
        "cache 5\ninactive_file 1\ntotal_inactive_file 500000\ntotal_active_file 250000\n");
    T_EQ(coli__memory_available_under(root), 1750000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(what_the_kernel_says, start),
        cmocka_unit_test_setup(the_root_group_of_a_container, start),
        cmocka_unit_test_setup(the_strictest_of_nested_groups, start),
        cmocka_unit_test_setup(the_older_version, start),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
