/* numa_test.c - nodes of processors and memory: read off files as the system writes them, or other ones;
 * which take part; who runs where; and that with one of them the system is not asked for anything. */
#include "pretended_root.h"

#include "libcoli/src/base/numa.h"
#include "libcoli/src/base/threads.h"

/* ---- lists ------------------------------------------------------------------------------------ */

T_TEST(lists)
{
    T_BEGIN;
    static const struct {
        const char *text;
        bool is_list;
        uint32_t n, first, last;
    } cases[] = {
        {"0\n", true, 1, 0, 0},          {"0-3\n", true, 4, 0, 3},
        {"0-3,8,10-11", true, 7, 0, 11}, {"63-64\n", true, 2, 63, 64},
        {"1023", true, 1, 1023, 1023},   {"", true, 0, 0, 0},
        {"\n", true, 0, 0, 0},           {"1024\n", false, 0, 0, 0},
        {"0-1024\n", false, 0, 0, 0},    {"99999999999999999999\n", false, 0, 0, 0},
        {"3-1\n", false, 0, 0, 0},       {"0-\n", false, 0, 0, 0},
        {"-1\n", false, 0, 0, 0},        {"0,\n", false, 0, 0, 0},
        {"0,,1\n", false, 0, 0, 0},      {"0 1\n", false, 0, 0, 0},
        {"0\n1\n", false, 0, 0, 0},      {"0x3\n", false, 0, 0, 0},
        {"nodes\n", false, 0, 0, 0},     {",", false, 0, 0, 0},
        {"0,", false, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        coli__bits b;
        print_message("\"%.*s\"\n", (int)strcspn(cases[i].text, "\n"), cases[i].text);
        T_EQ(coli__bits_parse(cases[i].text, &b), cases[i].is_list);
        if (!cases[i].is_list) continue;
        T_EQ(coli__bits_count(&b), cases[i].n);
        T_EQ(coli__bits_has(&b, cases[i].first), cases[i].n > 0);
        T_EQ(coli__bits_has(&b, cases[i].last), cases[i].n > 0);
        T_TRUE(!coli__bits_has(&b, cases[i].last + 1));
    }
}

/* ---- which nodes, and who runs where ---------------------------------------------------------- */

static coli__bits bits(const char *list)
{
    coli__bits b;
    T_TRUE(coli__bits_parse(list, &b));
    return b;
}

T_TEST(nodes_without_a_processor_of_ours_do_not_count)
{
    T_BEGIN;
    const coli__numa all = {
        .n_node = 3, .ids = {0, 2, 5}, .cpus = {bits("0-3"), bits(""), bits("8-11")}};
    coli__numa n;
    const coli__bits most = bits("2-9"), first = bits("0-7"), none = bits("20");
    coli__numa_choose(&all, &most, &n);
    T_EQ(n.n_node, 2);
    T_EQ(n.ids[0], 0);
    T_EQ(n.ids[1], 5);
    const coli__bits first_two = bits("2-3"), next_two = bits("8-9");
    T_MEM(&n.cpus[0], &first_two, sizeof n.cpus[0]);
    T_MEM(&n.cpus[1], &next_two, sizeof n.cpus[1]);
    coli__numa_choose(&all, &first, &n);
    T_EQ(n.n_node, 0); // one: nothing to do
    coli__numa_choose(&all, &none, &n);
    T_EQ(n.n_node, 0);
}

T_TEST(workers_stand_as_processors_do)
{
    T_BEGIN;
    const coli__numa even = {.n_node = 2, .cpus = {bits("0-3"), bits("4-7")}};
    const coli__numa uneven = {.n_node = 3, .cpus = {bits("0-3"), bits("4-5"), bits("6-7")}};
    static const struct {
        uint32_t n_worker;
        const char *even, *uneven; // node of each worker
    } cases[] = {{1, "1", "1"},
                 {2, "01", "02"},
                 {3, "011", "012"},
                 {4, "0011", "0012"},
                 {8, "00001111", "00001122"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t w = 0; w < cases[i].n_worker; w++) {
            T_EQ(coli__numa_node_of(&even, w, cases[i].n_worker), cases[i].even[w] - '0');
            T_EQ(coli__numa_node_of(&uneven, w, cases[i].n_worker), cases[i].uneven[w] - '0');
        }
    for (uint32_t w = 0; w < 1000; w++) T_LE(coli__numa_node_of(&uneven, w, 1000), 2);
}

/* ---- the system's files ----------------------------------------------------------------------- */

static void put_node(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "/sys/devices/system/node/%s", name);
    put(path, text);
}

T_TEST(what_the_files_say)
{
    T_BEGIN;
    const coli__bits ours = bits("0-7");
    coli__numa n;
    coli__numa_find_under(root, &ours, &n); // no files
    T_EQ(n.n_node, 0);
    put_node("has_memory", "0,3\n");
    put_node("node0/cpulist", "0-1\n");
    coli__numa_find_under(root, &ours, &n); // one is missing
    T_EQ(n.n_node, 0);
    put_node("node3/cpulist", "2-3\n");
    coli__numa_find_under(root, &ours, &n);
    T_EQ(n.n_node, 2);
    T_EQ(n.ids[1], 3);
    T_TRUE(coli__bits_has(&n.cpus[1], 2) && coli__bits_has(&n.cpus[1], 3));
    put_node("node3/cpulist", "two\n");
    coli__numa_find_under(root, &ours, &n);
    T_EQ(n.n_node, 0);
    put_node("node3/cpulist", "\n"); // memory alone, as of an expansion card
    coli__numa_find_under(root, &ours, &n);
    T_EQ(n.n_node, 0);
    put_node("node3/cpulist", "2-3\n");
    put_node("has_memory", "0\n");
    coli__numa_find_under(root, &ours, &n);
    T_EQ(n.n_node, 0);
    put_node("has_memory", "0-3\n"); // nodes 1 and 2 say nothing
    coli__numa_find_under(root, &ours, &n);
    T_EQ(n.n_node, 0);
}

/* ---- calls ------------------------------------------------------------------------------------ */

static uint32_t n_get, n_set, n_bind;
static int mode_now;
static unsigned long nodes_now;

static long get_policy(int *mode, unsigned long *nodes, unsigned long n_bit)
{
    n_get++;
    T_EQ(n_bit, COLI__MAX_BIT);
    *mode = mode_now;
    *nodes = nodes_now;
    return 0;
}
static long set_policy(int mode, const unsigned long *nodes, unsigned long n_bit)
{
    (void)n_bit;
    n_set++;
    mode_now = mode;
    nodes_now = nodes ? *nodes : 0;
    return 0;
}
static int count_bind(const coli__bits *cpus)
{
    __atomic_fetch_add(&n_bind, 1, __ATOMIC_RELAXED);
    return coli__bits_count(cpus) == 2 ? 0 : -1;
}

static int watch_calls(void **state)
{
    static coli__numa_sys real;
    real = coli__numa_calls;
    *state = &real;
    coli__numa_calls = (coli__numa_sys){get_policy, set_policy, count_bind};
    n_get = n_set = n_bind = 0;
    mode_now = 0;
    nodes_now = 0;
    return 0;
}
static int stop_watching(void **state)
{
    coli__numa_calls = *(coli__numa_sys *)*state;
    return 0;
}

static void do_nothing(void *ctx, uint32_t item, uint32_t worker)
{
    (void)ctx, (void)item, (void)worker;
}

static void place(const coli__numa *numa)
{
    coli__pool *pool;
    const coli__numa_policy policy = coli__numa_spread(numa);
    T_OK(coli__pool_create_on(4, numa, &pool));
    coli__pool_run(pool, 100, do_nothing, NULL); // all workers have begun when it returns
    coli__numa_restore(policy);
    coli__pool_destroy(pool);
}

T_TEST(one_node_is_no_call)
{
    T_BEGIN;
    coli__numa here, one = {.n_node = 1, .cpus = {bits("0-1")}};
    coli__numa_choose(&one, &one.cpus[0], &here);
    place(&here);
    T_EQ(n_get + n_set + n_bind, 0);
}

T_TEST(several_nodes)
{
    T_BEGIN;
    const coli__numa numa = {.n_node = 2, .ids = {1, 3}, .cpus = {bits("0-1"), bits("2-3")}};
    const coli__numa_policy policy = coli__numa_spread(&numa);
    T_EQ(mode_now, 3); // MPOL_INTERLEAVE
    T_EQ(nodes_now, 1 << 1 | 1 << 3);
    coli__numa_restore(policy);
    T_EQ(mode_now, 0);
    T_EQ(n_bind, 0);
    place(&numa);
    T_EQ(n_bind, 3); // the caller is left alone
    T_EQ(mode_now, 0);
}

/* As after `numactl --membind`. */
T_TEST(who_has_a_policy_keeps_it)
{
    T_BEGIN;
    const coli__numa numa = {.n_node = 2, .ids = {0, 1}, .cpus = {bits("0-1"), bits("2-3")}};
    mode_now = 2;
    nodes_now = 1;
    coli__numa_restore(coli__numa_spread(&numa));
    T_EQ(n_set, 0);
    T_EQ(mode_now, 2);
}

/* The real calls, on a machine that may have one node only: they may be refused, and change nothing
 * that is not put back. */
T_TEST(real_calls)
{
    T_BEGIN;
    coli__numa numa;
    coli__numa_find(&numa);
    if (numa.n_node == 0) {
        numa = (coli__numa){.n_node = 2, .ids = {0, 0}};
        for (uint32_t i = 0; i < 8; i++) coli__bits_add(&numa.cpus[0], i);
        numa.cpus[1] = numa.cpus[0];
    }
    place(&numa);
#ifdef __linux__
    int mode = 0;
    unsigned long nodes[COLI__MAX_BIT / 8 / sizeof(long)];
    if (coli__numa_calls.get_policy(&mode, nodes, COLI__MAX_BIT) == 0) T_EQ(mode, 0);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists),
        cmocka_unit_test(nodes_without_a_processor_of_ours_do_not_count),
        cmocka_unit_test(workers_stand_as_processors_do),
        cmocka_unit_test_setup_teardown(what_the_files_say, make_root, remove_root),
        cmocka_unit_test_setup_teardown(one_node_is_no_call, watch_calls, stop_watching),
        cmocka_unit_test_setup_teardown(several_nodes, watch_calls, stop_watching),
        cmocka_unit_test_setup_teardown(who_has_a_policy_keeps_it, watch_calls, stop_watching),
        cmocka_unit_test(real_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
