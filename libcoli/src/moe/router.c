/* router.c - see router.h. */
#include "router.h"

#include "../base/alloc.h"

void coli__router_destroy(coli__router *r)
{
    if (!r) return;
    coli__levels_finish(&r->levels);
    coli__free(r);
}

void coli__router_step(coli__router *r, const coli__container *container, coli__tier *tier,
                       const coli__store *store)
{
    if (!r->prefers || r->is_told || !(r->turn_begins || r->live)) return;
    if (!r->live) coli__tier_settle(tier);
    coli__levels_read(&r->levels, container, tier, store, !r->live);
    r->turn_begins = false;
}

static int64_t kl_units(double kl)
{
    return (int64_t)(kl * COLI__KL_UNIT + 0.5);
}

void coli__router_count(coli__router *r, const coli__route_cost *cost, uint32_t n_row)
{
    coli__route_totals *t = r->totals;
    if (r->agrees) t->n_row += n_row;
    if (!r->prefers) {
        const uint64_t n = (uint64_t)n_row * r->rule.n_used;
        t->n_compared += n;
        t->n_agree += n;
        return;
    }
    for (uint32_t i = 0; i < n_row; i++) {
        t->n_slot += cost[i].n_slot;
        t->n_swap += cost[i].n_swap;
        t->n_swap_vram += cost[i].n_swap_vram;
        if (!r->agrees) continue;
        t->n_compared += cost[i].n_slot;
        t->n_agree += cost[i].n_slot - cost[i].n_swap;
        t->kl += kl_units(cost[i].kl);
    }
}
