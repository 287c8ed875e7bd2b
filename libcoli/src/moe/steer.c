/* steer.c - see steer.h.
 *
 *     a prompt's rows in a layer    heat, counts   -> plan the layer, begin swaps of any layer
 *     a token begins                               -> begin a few swaps that are still pending;
 *                                                     every 16 tokens one by heat
 *     a token's layer               heat, opinions -> with ONLINE: one correction
 *
 * Times.  Between the end of a layer and the beginning of the next the processor is at attention or
 * DeltaNet, and no activations travel: that gap is when a copy costs nothing.  The first layer of a chunk
 * has none before it that is like it, for what happens between chunks is the caller's.
 *
 *     layer l ------|  gap  |--- layer l+1: activations, experts, results ---|  gap  |---
 *                   |<------------- layer_ns of l+1 ------------------------>|
 *
 * With several devices what the machine affords is judged by the slowest: a swap on a faster one is
 * then held to the same price. */
#include "steer.h"

#include <math.h>
#include <string.h>

#include "../base/alloc.h"

enum { WEIGHS = COLI__STEER_TAIL | COLI__STEER_PRIOR };

_Static_assert((int)COLI__STEER_TAIL == COLI__WEIGH_TAIL &&
                   (int)COLI__STEER_PRIOR == COLI__WEIGH_PRIOR,
               "their bits are the same");

coli_status coli__steer_init(coli__steer *s, const coli__steer_opts *o)
{
    const size_t n = (size_t)o->n_layer * o->n_expert;
    *s = (coli__steer){.o = *o};
    s->o.replan |= o->with != 0;
    s->heat_counts = coli__calloc(n, sizeof *s->heat_counts);
    s->before = coli__calloc(n, sizeof *s->before);
    s->pace = coli__calloc(o->n_device, sizeof *s->pace);
    s->n_row = coli__calloc(o->n_layer, sizeof *s->n_row);
    if (!s->heat_counts || !s->before || !s->pace || !s->n_row) return COLI_E_NOMEM;
    COLI_TRY(coli__replan_init(&s->replan, o->n_layer, o->n_expert, o->cap));
    if (o->with & WEIGHS) COLI_TRY(coli__weigh_init(&s->weigh, o->n_layer, o->n_expert));
    if (o->with & COLI__STEER_ONLINE)
        COLI_TRY(coli__online_create(o->n_layer, o->n_expert, o->n_device, &s->online));
    coli__steer_start(s, NULL);
    return COLI_OK;
}

void coli__steer_finish(coli__steer *s)
{
    if (!s) return;
    coli__replan_finish(&s->replan);
    coli__weigh_finish(&s->weigh);
    coli__online_destroy(s->online);
    coli__free(s->heat_counts);
    coli__free(s->before);
    coli__free(s->pace);
    coli__free(s->n_row);
    *s = (coli__steer){0};
}

void coli__steer_start(coli__steer *s, const uint32_t *stored)
{
    coli__heat_init(&s->heat, s->o.n_layer, s->o.n_expert, s->heat_counts, stored);
}

static coli__plan_world world_of(const coli__steer *s)
{
    return (coli__plan_world){.n_layer = s->o.n_layer,
                              .n_expert = s->o.n_expert,
                              .place = s->o.place,
                              .home = s->o.home,
                              .heat = s->heat_counts,
                              .taken = s->replan.taken};
}

/* ---- times --------------------------------------------------------------------------------- */

static void chunk_begins(coli__steer *s)
{
    s->last_end_ns = 0;
}

static void note_times(coli__steer *s, const coli__work *work)
{
    if (work->end_ns == 0) return;
    if (s->last_end_ns != 0) {
        s->gap_ns = (double)(work->begin_ns - s->last_end_ns);
        s->layer_ns = (double)(work->end_ns - s->last_end_ns);
    } else if (s->in_prompt) {
        s->token_begin_ns = 0;
    } else {
        if (s->token_begin_ns != 0) s->token_ns = (double)(work->begin_ns - s->token_begin_ns);
        s->token_begin_ns = work->begin_ns;
    }
    s->last_end_ns = work->end_ns;
}

static coli__speeds slowest(const coli__steer *s, const coli__speeds *speeds)
{
    coli__speeds all = speeds[0];
    for (uint32_t i = 1; i < s->o.n_device; i++) {
        all.copy_ns = fmax(all.copy_ns, speeds[i].copy_ns);
        all.device_ns = fmax(all.device_ns, speeds[i].device_ns);
        all.waits |= speeds[i].waits;
    }
    return all;
}

/* ---- the prompt ---------------------------------------------------------------------------- */

void coli__steer_prompt(coli__steer *s)
{
    s->in_prompt = true;
    chunk_begins(s);
    coli__replan_prompt(&s->replan);
    memcpy(s->before, s->heat_counts, (size_t)s->o.n_layer * s->o.n_expert * sizeof *s->before);
    memset(s->n_row, 0, s->o.n_layer * sizeof *s->n_row);
    if (s->o.with & WEIGHS) coli__weigh_prompt(&s->weigh);
    if (s->online) coli__online_prompt(s->online, s->before);
}

void coli__steer_prompt_goes_on(coli__steer *s)
{
    s->in_prompt = true;
    chunk_begins(s);
}

void coli__steer_prompt_ends(coli__steer *s)
{
    s->in_prompt = false;
}

/* The prompt's uses so far, for the plan; returns what one counts. */
static uint32_t count(coli__steer *s, uint32_t layer, const coli__work *work)
{
    const size_t first = (size_t)layer * s->o.n_expert;
    s->n_row[layer] += work->n_row;
    if (!(s->o.with & WEIGHS)) {
        coli__replan_use(&s->replan, layer, work->ids, (size_t)work->n_row * work->n_used);
        return 1;
    }
    coli__weigh_use(&s->weigh, layer, work->ids, work->n_row, work->n_used);
    return coli__weigh_counts(&s->weigh, layer, s->o.with & WEIGHS, s->before + first,
                              s->replan.counts + first);
}

/* As many as pay.  They may fill half of the link's time, or they would wait for each other. */
static void plan_paying(coli__steer *s, const coli__plan_world *w, uint32_t layer, uint32_t unit,
                        const coli__speeds *speeds)
{
    const coli__speeds all = slowest(s, speeds);
    const double least = coli__afford_uses(&all, s->layer_ns, COLI__AFFORD_ANSWER);
    coli__replan_plan_paying(&s->replan, w, layer, least * s->n_row[layer] * unit,
                             coli__afford_copies(&all, s->layer_ns / 2));
}

/* A swap, with the speeds that the hold goes by. */
typedef struct held {
    coli__steer *s;
    const coli__speeds *speeds;
} held;

static bool begin_held(void *ctx, coli__swap swap)
{
    const held *h = ctx;
    const uint32_t device = h->s->o.home[swap.in];
    const double copy_ns = h->speeds[device].copy_ns;
    if (!coli__pace_may(&h->s->pace[device], copy_ns) || !h->s->o.begin(h->s->o.ctx, swap))
        return false;
    coli__pace_took(&h->s->pace[device], copy_ns);
    return true;
}

static void begin_pending(coli__steer *s, const coli__speeds *speeds)
{
    held h = {s, speeds};
    if (!(s->o.with & COLI__STEER_HOLD)) {
        coli__replan_drain(&s->replan, s->o.place, COLI__REPLAN_PER_CALL, s->o.begin, s->o.ctx);
        return;
    }
    for (uint32_t i = 0; i < s->o.n_device; i++)
        coli__pace_idle(&s->pace[i], s->gap_ns, speeds[i].copy_ns);
    coli__replan_drain(&s->replan, s->o.place, COLI__REPLAN_PER_CALL, begin_held, &h);
}

static void plan_layer(coli__steer *s, uint32_t layer, const coli__work *work,
                       const coli__speeds *speeds)
{
    const uint32_t unit = count(s, layer, work);
    const coli__plan_world w = world_of(s);
    if (s->o.with & COLI__STEER_COST)
        plan_paying(s, &w, layer, unit, speeds);
    else
        coli__replan_plan(&s->replan, &w, (int32_t)layer, NULL);
    begin_pending(s, speeds);
}

/* ---- the answer ---------------------------------------------------------------------------- */

/* What a correction must gain.  Copies may fill a quarter of the link's time. */
static void set_price(coli__steer *s, const coli__speeds *speeds)
{
    const coli__plan_world w = world_of(s);
    double least = COLI__ONLINE_HYSTERESIS;
    uint64_t most = UINT64_MAX;
    if (s->o.with & COLI__STEER_COST) {
        const coli__speeds all = slowest(s, speeds);
        least = fmax(least, coli__afford_uses(&all, s->gap_ns, COLI__AFFORD_STAY));
        most = coli__afford_copies(&all, s->token_ns / 4);
    }
    coli__online_price(s->online, &w, least, most);
}

/* The hottest outsider of each device for its coldest resident, if that pays. */
static void swap_slowly(coli__steer *s)
{
    const coli__plan_world w = world_of(s);
    for (uint32_t d = 0; d < s->o.n_device; d++) {
        coli__swap swap;
        if (coli__plan_slow_swap(&w, d, &swap)) s->o.begin(s->o.ctx, swap);
    }
}

void coli__steer_tick(coli__steer *s, const coli__speeds *speeds)
{
    s->in_prompt = false;
    chunk_begins(s);
    const bool may_swap = coli__heat_tick(&s->heat);
    coli__replan_drain(&s->replan, s->o.place, COLI__REPLAN_PER_TICK, s->o.begin, s->o.ctx);
    if (s->online)
        set_price(s, speeds);
    else if (may_swap)
        swap_slowly(s);
}

static void correct(coli__steer *s, uint32_t layer)
{
    const coli__plan_world w = world_of(s);
    coli__swap swap;
    if (coli__online_best(s->online, &w, layer, &swap) && s->o.begin(s->o.ctx, swap))
        coli__online_begun(s->online);
}

void coli__steer_used(coli__steer *s, uint32_t layer, const coli__work *work,
                      const coli__speeds *speeds)
{
    note_times(s, work);
    coli__heat_use(&s->heat, layer, work->ids, (size_t)work->n_row * work->n_used);
    if (s->online) coli__online_learn(s->online, layer, work->ids, work->n_row, work->n_used);
    if (s->in_prompt && s->o.replan)
        plan_layer(s, layer, work, speeds);
    else if (!s->in_prompt && s->online)
        correct(s, layer);
}
