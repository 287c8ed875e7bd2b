/* heat.h - how much each expert is used: counters that forget.  Pure: no file, clock or thread.
 *
 * Every use adds 1; every 1024 decoded tokens all counters are halved, so that the past fades while
 * one long text does not drown the others.  A tick is one decoded token: the rows of a prompt add
 * heat and do not tick, or a long prompt would make the past fade by itself. */
#ifndef COLI_MOE_HEAT_H
#define COLI_MOE_HEAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    COLI__HEAT_HALF_LIFE = 1024, // ticks between two halvings
    COLI__HEAT_SWAP_EVERY = 16   // ticks between two chances to swap
};

/* One thread uses it. */
typedef struct coli__heat {
    uint32_t n_layer, n_expert;
    uint64_t n_tick;
    uint32_t *count; // (n_layer, n_expert), the caller's
} coli__heat;

/* counts (n), saturating: +1 for each of the n_ids ids.  Those below 0, which routing under
 * constraints leaves in places that it cannot fill, count nothing; no id is n or more. */
void coli__count_add(uint32_t *counts, uint32_t n, const int32_t *ids, size_t n_ids);

/*   count   (n_layer, n_expert), borrowed until the end and overwritten
 *   stored  (n_layer, n_expert) of earlier runs; NULL: none.  The present starts at half of it; the
 *           order of the warm start (plan.h) is that of `stored` itself. */
void coli__heat_init(coli__heat *h, uint32_t n_layer, uint32_t n_expert, uint32_t *count,
                     const uint32_t *stored);

/* The experts that rows of this layer were routed to. */
void coli__heat_use(coli__heat *h, uint32_t layer, const int32_t *ids, size_t n_ids);

/* One token is to be decoded; before its uses are added.  Halves when it is time; afterwards true
 * when this tick is one of those at which devices may swap. */
bool coli__heat_tick(coli__heat *h);

/* Is `hot` so much hotter than `cold` that a swap pays?  A quarter and 4 more, so that counters that
 * lie close together do not take turns. */
bool coli__heat_beats(uint32_t hot, uint32_t cold);

#endif
