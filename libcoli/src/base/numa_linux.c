/* numa_linux.c - see numa.h.
 *
 * /sys/devices/system/node says which nodes have memory and which processors each has.  Policies are
 * set by their system calls; there is no need of a library for three numbers (linux/mempolicy.h). */
#include "numa.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <sys/syscall.h>

#include "file_os.h"

enum { POLICY_DEFAULT = 0, POLICY_INTERLEAVE = 3, MASK_WORDS = COLI__MAX_BIT / 8 / sizeof(long) };

static long get_policy(int *mode, unsigned long *nodes, unsigned long n_bit)
{
    return syscall(SYS_get_mempolicy, mode, nodes, n_bit, NULL, 0ul);
}

static long set_policy(int mode, const unsigned long *nodes, unsigned long n_bit)
{
    return syscall(SYS_set_mempolicy, mode, nodes, n_bit);
}

static int bind_thread(const coli__bits *cpus)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (uint32_t i = 0; i < COLI__MAX_BIT && i < CPU_SETSIZE; i++)
        if (coli__bits_has(cpus, i)) CPU_SET(i, &set);
    return sched_setaffinity(0, sizeof set, &set); // of this thread
}

coli__numa_sys coli__numa_calls = {get_policy, set_policy, bind_thread};

/* The list in a file of the system's; false when it is not there or no list. */
static bool list_in(const char *path, coli__bits *out)
{
    char text[4096]; // enough for each second number below COLI__MAX_BIT
    return coli__os_text(path, text, sizeof text) && coli__bits_parse(text, out);
}

void coli__numa_find_under(const char *root, const coli__bits *ours, coli__numa *out)
{
    char path[1024];
    coli__bits with_memory;
    coli__numa all = {0};
    snprintf(path, sizeof path, "%s/sys/devices/system/node/has_memory", root);
    memset(out, 0, sizeof *out);
    if (!list_in(path, &with_memory)) return;
    for (uint32_t id = 0; id < COLI__MAX_BIT && all.n_node < COLI__MAX_NODE; id++) {
        if (!coli__bits_has(&with_memory, id)) continue;
        snprintf(path, sizeof path, "%s/sys/devices/system/node/node%u/cpulist", root, id);
        if (!list_in(path, &all.cpus[all.n_node])) return; // what is half known is not known
        all.ids[all.n_node++] = id;
    }
    coli__numa_choose(&all, ours, out);
}

void coli__numa_find(coli__numa *out)
{
    cpu_set_t set;
    coli__bits ours = {0};
    memset(out, 0, sizeof *out);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return;
    for (uint32_t i = 0; i < COLI__MAX_BIT && i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &set)) coli__bits_add(&ours, i);
    coli__numa_find_under("", &ours, out);
}

coli__numa_policy coli__numa_spread(const coli__numa *numa)
{
    coli__numa_policy policy = {false};
    if (numa->n_node < 2) return policy;
    int mode;
    unsigned long nodes[MASK_WORDS] = {0};
    const unsigned long n_bit = COLI__MAX_BIT;
    if (coli__numa_calls.get_policy(&mode, nodes, n_bit) != 0 || mode != POLICY_DEFAULT)
        return policy;
    memset(nodes, 0, sizeof nodes);
    const uint32_t word_bits = 8 * sizeof *nodes;
    for (uint32_t i = 0; i < numa->n_node; i++)
        nodes[numa->ids[i] / word_bits] |= 1ul << numa->ids[i] % word_bits;
    // the system takes one bit less than it is told of
    policy.is_changed = coli__numa_calls.set_policy(POLICY_INTERLEAVE, nodes, n_bit) == 0;
    return policy;
}

void coli__numa_restore(coli__numa_policy policy)
{
    if (policy.is_changed) coli__numa_calls.set_policy(POLICY_DEFAULT, NULL, 0);
}

void coli__numa_bind(const coli__bits *cpus)
{
    coli__numa_calls.bind(cpus); // where it is refused, the thread runs anywhere, as before
}
