/* heat.c - counters that forget.
 *
 *     count   0  1  2  3  5  4294967295        +1 stays at 4294967295: a full counter
 *     halved  0  0  1  1  2  2147483647        must not become the coldest one
 *
 * A use that is a half-life old weighs half as much as a new one.  What earlier runs left is halved
 * once when a run begins: their texts are a guess about this one's. */
#include "heat.h"

#include <assert.h>

void coli__count_add(uint32_t *counts, uint32_t n, const int32_t *ids, size_t n_ids)
{
    (void)n; // without asserts
    for (size_t i = 0; i < n_ids; i++) {
        const int32_t id = ids[i];
        if (id < 0) continue;
        assert((uint32_t)id < n);
        if (counts[id] < UINT32_MAX) counts[id]++;
    }
}

void coli__heat_init(coli__heat *h, uint32_t n_layer, uint32_t n_expert, uint32_t *count,
                     const uint32_t *stored)
{
    *h = (coli__heat){.n_layer = n_layer, .n_expert = n_expert, .count = count};
    const size_t n = (size_t)n_layer * n_expert;
    for (size_t i = 0; i < n; i++) count[i] = stored ? stored[i] >> 1 : 0;
}

void coli__heat_use(coli__heat *h, uint32_t layer, const int32_t *ids, size_t n_ids)
{
    assert(layer < h->n_layer);
    coli__count_add(h->count + (size_t)layer * h->n_expert, h->n_expert, ids, n_ids);
}

/* Halving comes before the look at who may swap: both see the same heat. */
bool coli__heat_tick(coli__heat *h)
{
    h->n_tick++;
    if (h->n_tick % COLI__HEAT_HALF_LIFE == 0) {
        const size_t n = (size_t)h->n_layer * h->n_expert;
        for (size_t i = 0; i < n; i++) h->count[i] >>= 1;
    }
    return h->n_tick % COLI__HEAT_SWAP_EVERY == 0;
}

bool coli__heat_beats(uint32_t hot, uint32_t cold)
{
    return hot > (uint64_t)cold + cold / 4 + 4; // in 32 bits the sum would come round to small
}
