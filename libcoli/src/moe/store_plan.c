/* store_plan.c - see store_plan.h. */
#include "store_plan.h"

#include <stdlib.h>

uint32_t coli__store_cap(const coli__store_budget *a, bool *fits)
{
    // 0.88 of it in integers, without leaving 64 bits
    const uint64_t spare = a->available_bytes / 100 * 88 + a->available_bytes % 100 * 88 / 100;
    uint64_t left = spare;
    if (a->ram_bytes > 0)
        left = a->ram_bytes > a->resident_bytes ? a->ram_bytes - a->resident_bytes : 0;
    const uint64_t cap = a->slot_bytes ? left / a->slot_bytes : a->n_expert;
    if (fits) *fits = cap >= 1;
    if (cap < 1) return 1;
    return cap < a->n_expert ? (uint32_t)cap : a->n_expert;
}

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

bool coli__store_beats(uint64_t newcomer, uint64_t victim)
{
    return 4 * newcomer > 5 * victim + 4 * 1024; // both are below 2^41
}
