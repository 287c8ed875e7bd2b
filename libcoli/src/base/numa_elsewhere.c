/* numa_elsewhere.c - see numa.h.  Where it is not Linux there are no nodes that we know of.  Windows deals
 * memory out by the thread that asks for it first and moves threads itself; we leave it to that. */
#include "numa.h"

#include <string.h>

coli__numa_sys coli__numa_calls;

void coli__numa_find_under(const char *root, const coli__bits *ours, coli__numa *out)
{
    (void)root, (void)ours;
    memset(out, 0, sizeof *out);
}

void coli__numa_find(coli__numa *out)
{
    memset(out, 0, sizeof *out);
}

coli__numa_policy coli__numa_spread(const coli__numa *numa)
{
    (void)numa;
    return (coli__numa_policy){false};
}

void coli__numa_restore(coli__numa_policy policy)
{
    (void)policy;
}

void coli__numa_bind(const coli__bits *cpus)
{
    (void)cpus;
}
