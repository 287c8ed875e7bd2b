/* replan.h - the re-planner's memory: what this prompt used, and which swaps are still to begin.
 *
 * A prompt comes in chunks.  After each chunk's rows of a layer the counts so far are planned again
 * (plan.h); what the upload queue does not take at once stays pending, in order, and is drained
 * later, a few swaps per decoded token.  Pure: what begins a swap is the caller's function. */
#ifndef COLI_MOE_REPLAN_H
#define COLI_MOE_REPLAN_H

#include "plan.h"

#include "../base/error.h"

enum {
    COLI__REPLAN_PER_CALL = 48, // swaps begun after a plan
    COLI__REPLAN_PER_TICK = 4   // and for each decoded token
};

/* One thread uses it, or a lock guards it. */
typedef struct coli__replan {
    uint32_t n_layer, n_expert;
    int32_t cap; // swaps per layer and prompt; the form for all layers has n_layer times as many
    uint64_t prompt;      // number of the present one
    uint32_t *counts;     // (n_layer, n_expert) uses in this prompt
    uint32_t *n_swap;     // (n_layer) planned for newcomers of it in this prompt
    uint64_t *planned_in; // (n_layer) the last prompt that planned it
    coli__plan_key *keys; // (n_layer, n_expert)
    /* Pending, oldest first.  An expert is in one of them at most, which bounds their number. */
    coli__swap *pending; // (n_layer * n_expert / 2)
    uint32_t n_pending;
    uint8_t *taken; // (n_layer, n_expert) 1: in a pending swap
    /* n_planned == n_begun + n_skipped + n_pending, always. */
    uint64_t n_planned, n_begun, n_skipped;
} coli__replan;

coli_status coli__replan_init(coli__replan *r, uint32_t n_layer, uint32_t n_expert, int32_t cap);
void coli__replan_finish(coli__replan *r);

/* A new prompt begins: its counts are 0.  Swaps of the old one stay pending until the new one plans
 * their layer. */
void coli__replan_prompt(coli__replan *r);
/* Rows of the prompt used these experts of a layer. */
void coli__replan_use(coli__replan *r, uint32_t layer, const int32_t *ids, size_t n_ids);

/* Plan a layer, or COLI__PLAN_ALL_LAYERS, by the counts so far, and append the swaps to those that
 * are pending.  The first plan of a layer in a prompt drops what an earlier prompt left for it; what
 * is pending is neither newcomer nor victim again.  w->taken is not looked at.
 * Returns the number of swaps planned; n_newcomer as in coli__plan_swaps. */
uint32_t coli__replan_plan(coli__replan *r, const coli__plan_world *w, int32_t layer,
                           uint32_t *n_newcomer);

/* The same for one layer, but only the first `most` swaps whose newcomer counts at least `least` more
 * than its victim. */
uint32_t coli__replan_plan_paying(coli__replan *r, const coli__plan_world *w, uint32_t layer,
                                  double least, uint64_t most);

/* Begin pending swaps, oldest first, until `limit` have begun or begin() says false, which leaves
 * that one the next.  A swap whose newcomer is no longer known or whose victim is no longer resident
 * is skipped for good and does not count against the limit.
 *   place  (n_layer, n_expert) as in plan.h; begin() may change it
 * Returns how many began. */
uint32_t coli__replan_drain(coli__replan *r, const uint8_t *place, uint32_t limit,
                            bool (*begin)(void *ctx, coli__swap swap), void *ctx);

/* Skip all that is pending (the end, or the devices are gone). */
void coli__replan_drop(coli__replan *r);

#endif
