/* replan.c - what a prompt used, and the swaps that wait.
 *
 * A planned swap goes one of three ways:
 *
 *     plan --> pending --drain--> begun        begin() took it
 *                 |---- drain --> skipped      its newcomer or victim is no longer where it was
 *                 '---- plan ---> skipped      another prompt plans its layer: its counts are past
 *
 * so planned == begun + skipped + pending at any time (invariant 1 of tests/prop/replan_prop.c).
 * (2) No expert is in two pending swaps: plan.c does not see those that are taken.  (3) A prompt plans
 * at most `cap` swaps for the newcomers of a layer, over all its chunks. */
#include "replan.h"

#include <string.h>

#include "../base/alloc.h"
#include "heat.h"

static uint32_t n_all(const coli__replan *r)
{
    return r->n_layer * r->n_expert;
}

coli_status coli__replan_init(coli__replan *r, uint32_t n_layer, uint32_t n_expert, int32_t cap)
{
    const size_t n = (size_t)n_layer * n_expert;
    *r = (coli__replan){.n_layer = n_layer, .n_expert = n_expert, .cap = cap, .prompt = 1};
    r->counts = coli__calloc(n, sizeof *r->counts);
    r->n_swap = coli__calloc(n_layer, sizeof *r->n_swap);
    r->planned_in = coli__calloc(n_layer, sizeof *r->planned_in);
    r->keys = coli__calloc(n, sizeof *r->keys);
    r->pending = coli__calloc(n / 2, sizeof *r->pending);
    r->taken = coli__calloc(n, sizeof *r->taken);
    if (r->counts && r->n_swap && r->planned_in && r->keys && r->pending && r->taken)
        return COLI_OK;
    coli__replan_finish(r);
    return COLI_E_NOMEM;
}

void coli__replan_finish(coli__replan *r)
{
    if (!r) return;
    coli__free(r->counts);
    coli__free(r->n_swap);
    coli__free(r->planned_in);
    coli__free(r->keys);
    coli__free(r->pending);
    coli__free(r->taken);
    *r = (coli__replan){0};
}

/* ---- the prompt ---------------------------------------------------------------------------- */

void coli__replan_prompt(coli__replan *r)
{
    memset(r->counts, 0, n_all(r) * sizeof *r->counts);
    memset(r->n_swap, 0, r->n_layer * sizeof *r->n_swap);
    r->prompt++;
}

void coli__replan_use(coli__replan *r, uint32_t layer, const int32_t *ids, size_t n_ids)
{
    coli__count_add(r->counts + (size_t)layer * r->n_expert, r->n_expert, ids, n_ids);
}

/* ---- pending swaps ------------------------------------------------------------------------- */

static bool touches(const coli__replan *r, coli__swap s, uint32_t layer)
{
    return s.in / r->n_expert == layer || s.out / r->n_expert == layer;
}

static void release(coli__replan *r, coli__swap s)
{
    r->taken[s.in] = r->taken[s.out] = 0;
}

/* Skip those of a layer, keep the others in order. */
static void drop_layer(coli__replan *r, uint32_t layer)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_pending; i++) {
        if (touches(r, r->pending[i], layer))
            release(r, r->pending[i]);
        else
            r->pending[n++] = r->pending[i];
    }
    r->n_skipped += r->n_pending - n;
    r->n_pending = n;
}

void coli__replan_drop(coli__replan *r)
{
    for (uint32_t i = 0; i < r->n_pending; i++) release(r, r->pending[i]);
    r->n_skipped += r->n_pending;
    r->n_pending = 0;
}

uint32_t coli__replan_drain(coli__replan *r, const uint8_t *place, uint32_t limit,
                            bool (*begin)(void *ctx, coli__swap swap), void *ctx)
{
    uint32_t at = 0, n_begun = 0;
    for (; at < r->n_pending && n_begun < limit; at++) {
        const coli__swap s = r->pending[at];
        const bool stale = place[s.in] != COLI__PLACE_KNOWN || place[s.out] != COLI__PLACE_RESIDENT;
        if (!stale && !begin(ctx, s)) break;
        n_begun += !stale;
        release(r, s);
    }
    r->n_begun += n_begun;
    r->n_skipped += at - n_begun;
    r->n_pending -= at;
    memmove(r->pending, r->pending + at, r->n_pending * sizeof *r->pending);
    return n_begun;
}

/* ---- planning ------------------------------------------------------------------------------ */

/* How many swaps this prompt may still plan. */
static int32_t cap_left(const coli__replan *r, int32_t layer)
{
    if (r->cap <= 0) return 0;
    if (layer >= 0) return r->cap - (int32_t)r->n_swap[layer];
    int64_t left = (int64_t)r->cap * r->n_layer;
    for (uint32_t l = 0; l < r->n_layer; l++) left -= r->n_swap[l];
    return left < INT32_MAX ? (int32_t)left : INT32_MAX;
}

static void begin_layers(coli__replan *r, uint32_t first, uint32_t n)
{
    for (uint32_t l = first; l < first + n; l++) {
        if (r->planned_in[l] != r->prompt) drop_layer(r, l);
        r->planned_in[l] = r->prompt;
    }
}

/* Pair after pair the difference shrinks, so those that pay come first. */
static uint32_t n_paying(const coli__replan *r, const coli__swap *swaps, uint32_t n, double least,
                         uint64_t most)
{
    uint32_t i = 0;
    while (i < n && i < most && r->counts[swaps[i].in] - r->counts[swaps[i].out] >= least) i++;
    return i;
}

static uint32_t plan(coli__replan *r, const coli__plan_world *w, int32_t layer, double least,
                     uint64_t most, uint32_t *n_newcomer)
{
    if (n_newcomer) *n_newcomer = 0;
    if (layer >= 0 && (uint32_t)layer >= r->n_layer) return 0;
    const uint32_t first = layer >= 0 ? (uint32_t)layer : 0;
    begin_layers(r, first, layer >= 0 ? 1 : r->n_layer);
    coli__plan_world world = *w;
    world.taken = r->taken;
    const coli__plan_ask ask = {layer, cap_left(r, layer), r->counts + (size_t)first * r->n_expert};
    coli__swap *swaps = r->pending + r->n_pending;
    const uint32_t n =
        n_paying(r, swaps, coli__plan_swaps(&world, &ask, r->keys, swaps, n_newcomer), least, most);
    for (uint32_t i = 0; i < n; i++) {
        r->taken[swaps[i].in] = r->taken[swaps[i].out] = 1;
        r->n_swap[swaps[i].in / r->n_expert]++;
    }
    r->n_pending += n;
    r->n_planned += n;
    return n;
}

uint32_t coli__replan_plan(coli__replan *r, const coli__plan_world *w, int32_t layer,
                           uint32_t *n_newcomer)
{
    return plan(r, w, layer, 0, UINT64_MAX, n_newcomer);
}

uint32_t coli__replan_plan_paying(coli__replan *r, const coli__plan_world *w, uint32_t layer,
                                  double least, uint64_t most)
{
    return plan(r, w, (int32_t)layer, least, most, NULL);
}
