/* router.h - cache-aware routing of one session: its rule, where the experts are, and what it cost.
 *
 * A session without one routes plainly, and no number is kept. */
#ifndef COLI_MOE_ROUTER_H
#define COLI_MOE_ROUTER_H

#include "levels.h"

/* What routing cost, over rows and layers.  Sums of integers, so they do not depend on the order in
 * which rows were computed. */
typedef struct coli__route_totals {
    uint64_t n_slot, n_swap, n_swap_vram; // experts chosen where residency may decide
    uint64_t n_agree, n_compared;         // experts that plain routing takes, too; of so many
    uint64_t n_row;                       // rows that were compared
    int64_t kl;                           // their sum, in nats * COLI__KL_UNIT
} coli__route_totals;

#define COLI__KL_UNIT 0x1p24 // a row's term is at most 28: room for 2^34 rows

typedef struct coli__router {
    /* immutable after create (run/routing.c) */
    coli__route_rule rule;
    bool prefers; // where experts are decides; else plain routing is metered
    bool agrees;  // agreement and KL are metered
    bool live;    // where they are is read at each step, not once per turn
    bool is_told; // where they are was said, and is never read

    /* the computing thread's */
    bool turn_begins; // a turn has begun, and where experts are was not yet read for it
    coli__levels levels;
    coli__route_totals *totals; // the model's, shared by its sessions
} coli__router;

void coli__router_destroy(coli__router *r);

/* A chunk or a token is to be computed: read where the experts are, if it is time to.  At the beginning of
 * a turn copies to devices are waited for, and what the store is expected to hold counts, not what it does: so
 * the speed of neither decides what is chosen.  Called as the tier's functions are. */
void coli__router_step(coli__router *r, const coli__container *container, coli__tier *tier,
                       const coli__store *store);

/* Add what n_row rows cost; cost is not looked at unless the router prefers. */
void coli__router_count(coli__router *r, const coli__route_cost *cost, uint32_t n_row);

#endif
