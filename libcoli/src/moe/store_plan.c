/* store_plan.c - see store_plan.h. */
#include "store_plan.h"

#include <stdlib.h>

uint64_t coli__store_pin_budget(uint64_t available_bytes, uint64_t n_use)
{
    enum { FEWEST = 5000, FULL = 200000, LEAST_BYTES = 500000000 };
    if (n_use < FEWEST) return 0;
    const double share = n_use < FULL ? (double)n_use / FULL : 1;
    const double budget = (double)available_bytes * 0.5 * share;
    return budget < LEAST_BYTES ? 0 : (uint64_t)budget;
}

static int by_count(const void *pa, const void *pb)
{
    const coli__store_use *a = pa, *b = pb;
    if (a->count != b->count) return a->count > b->count ? -1 : 1;
    if (a->layer != b->layer) return a->layer < b->layer ? -1 : 1;
    return a->expert < b->expert ? -1 : a->expert > b->expert;
}

void coli__store_sort_uses(coli__store_use *uses, uint32_t n)
{
    if (n > 1)
        qsort(uses, n, sizeof *uses, by_count); // the order is total: any sort gives this one
}

uint32_t coli__store_n_pin(const coli__store_use *uses, uint32_t n, uint64_t budget_bytes)
{
    uint32_t i = 0;
    for (; i < n && uses[i].count > 0 && uses[i].n_bytes <= budget_bytes; i++)
        budget_bytes -= uses[i].n_bytes;
    return i;
}

uint64_t coli__store_score(uint32_t heat, uint64_t age)
{
    return (uint64_t)heat * 256 + (age < 255 ? 255 - age : 0);
}
