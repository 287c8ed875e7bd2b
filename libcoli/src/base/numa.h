/* numa.h - processors and memory that stand in several nodes: each node's processors read its own memory
 * faster than another's.
 *
 * A token reads all of the trunk and some experts, every thread a share of each matrix, and which thread
 * takes which share is open.  So there is no right node for a weight: its pages are dealt out to all nodes in
 * turn, and the threads as well, so that every link carries the same.
 *
 * With one node, or where nobody knows of any, n_node is 0: no call of the system is made, and nothing is
 * different.  Bytes never are. */
#ifndef COLI_BASE_NUMA_H
#define COLI_BASE_NUMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- pure ------------------------------------------------------------------------------------ */

enum { COLI__MAX_NODE = 64, COLI__MAX_BIT = 1024 };

/* A set of numbers below COLI__MAX_BIT. */
typedef struct coli__bits {
    uint64_t words[COLI__MAX_BIT / 64];
} coli__bits;

static inline bool coli__bits_has(const coli__bits *b, uint32_t i)
{
    return i < COLI__MAX_BIT && (b->words[i / 64] >> i % 64 & 1);
}
static inline void coli__bits_add(coli__bits *b, uint32_t i) // below COLI__MAX_BIT
{
    b->words[i / 64] |= (uint64_t)1 << i % 64;
}
uint32_t coli__bits_count(const coli__bits *b);
/* A list as the system writes it: "0-3,8\n", or nothing at all.  False when it is anything else. */
bool coli__bits_parse(const char *text, coli__bits *out);

typedef struct coli__numa {
    uint32_t n_node; // 0: nothing to do
    uint32_t ids[COLI__MAX_NODE];
    coli__bits cpus[COLI__MAX_NODE];
} coli__numa;

/* Of the nodes with memory, those with processors that this process may run on; none when that is one. */
void coli__numa_choose(const coli__numa *all, const coli__bits *ours, coli__numa *out);
/* The node of a worker: as many on each as its share of the processors.  n_node and n_worker at least 1. */
uint32_t coli__numa_node_of(const coli__numa *numa, uint32_t worker, uint32_t n_worker);

/* ---- the system ------------------------------------------------------------------------------ */

void coli__numa_find(coli__numa *out);
/* Below that directory instead of /; for tests. */
void coli__numa_find_under(const char *root, const coli__bits *ours, coli__numa *out);

/* What a thread's policy was. */
typedef struct coli__numa_policy {
    bool is_changed;
} coli__numa_policy;

/* From here to restore, pages that this thread is the first to touch are dealt out to the nodes, whether
 * they are a file's or its own; also those of threads that it starts, for as long as they live.  A thread
 * that has a policy already keeps it. */
coli__numa_policy coli__numa_spread(const coli__numa *numa);
void coli__numa_restore(coli__numa_policy policy);

/* This thread runs on these processors only. */
void coli__numa_bind(const coli__bits *cpus);

/* The calls above that tests replace.  They work as Linux says: -1 on failure. */
typedef struct coli__numa_sys {
    long (*get_policy)(int *mode, unsigned long *nodes, unsigned long n_bit);
    long (*set_policy)(int mode, const unsigned long *nodes, unsigned long n_bit);
    int (*bind)(const coli__bits *cpus);
} coli__numa_sys;
extern coli__numa_sys coli__numa_calls;

#endif
