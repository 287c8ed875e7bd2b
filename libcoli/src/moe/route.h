/* route.h - which experts a row uses.  Pure.
 *
 * Two ways.  Plain: the best of the router's.  Cache-aware: an expert that is already in VRAM or in
 * RAM may take the place of a slightly better one that is not, which computes something else than
 * the model was trained for and says how much (docs/CACHE_ROUTE.md). */
#ifndef COLI_MOE_ROUTE_H
#define COLI_MOE_ROUTE_H

#include "../math/kernels.h"
#include "coli/coli.h"

/* The n_used largest of n_expert router logits, best first, ties to the lower id, and their softmax
 * over the chosen: which equals the softmax over all, renormalised.
 *   ids, w  (n_used)
 * False when a logit is not finite; ids and w are then still valid: such a logit counts as the
 * smallest. */
bool coli__route_softmax_topk(const coli__kernels *k, const float *logits, uint32_t n_expert,
                              uint32_t n_used, int32_t *ids, float *w);

/* -- cache-aware ------------------------------------------------------------------------------- */

enum { COLI__ROUTE_MAX = 256 }; // experts of a row, and ranks that are looked at

/* What all rows of a model have in common. */
typedef struct coli__route_rule {
    uint32_t n_expert;
    uint32_t n_used; // K: to be chosen, at most COLI__ROUTE_MAX
    uint32_t n_sure; // J: the best so many are always taken
    uint32_t n_list; // R: ranks that are looked at; K at least, COLI__ROUTE_MAX at most are
    float mass;  // P: what an expert may be taken for ends where this share of the list's mass is
                 // reached, but not before rank K.  0 and less, 1 and more: the whole list
    float alpha; // what a substitute's mass is multiplied by.  0 and less, 1 and more: by nothing
} coli__route_rule;

/* R for the knobs of the two families, whose windows differ only when P is in use: where the router
 * is a softmax P may look at four times K ranks, where it is a sigmoid it can only narrow M. */
uint32_t coli__route_list_softmax(uint32_t n_used, uint32_t window, float mass);
uint32_t coli__route_list_sigmoid(uint32_t n_used, uint32_t window);

/* One row; arrays of n_expert, borrowed. */
typedef struct coli__route_row {
    const float *choice;  // what ranks: logits, or scores with a bias that only selects
    const float *mass;    // what weighs, 0 and more, in any unit; NULL: e^choice, a softmax's
    const uint8_t *keep;  // 0: not to be chosen (groups that lost); NULL: all may
    const uint8_t *level; // coli_level; NULL: all on disk
} coli__route_row;

/* What a row's choice cost.  "True" is what plain routing of the same numbers takes. */
typedef struct coli__route_cost {
    uint32_t n_slot;      // experts chosen
    uint32_t n_swap;      // of these, not among the true; the others agree
    uint32_t n_swap_vram; // of these, in VRAM
    double kl;            // of the chosen weights from the true ones, in nats; 1e-12 stands for the
                          // weight of a true expert that was not chosen
} coli__route_cost;

/* Choose: ranks 0..J-1; then, among the ranks of the window, those in VRAM, then those in RAM, then
 * whatever comes next, until there are K.  Ranks are by choice, ties to the lower id.  The chosen stand
 * in the order of their ranks, however they were found, so that equal sets are joined in equal order.
 *   ids     (K) -1 where nothing is left to choose
 *   values  (K) mass, a substitute's times alpha; to be normalised; 0 beside -1.  With mass NULL in units
 *           of the first chosen's
 * False when a choice or a mass is no finite number, or a mass negative: that expert is not chosen, and
 * the rest holds. */
bool coli__route_choose(const coli__route_rule *rule, const coli__route_row *row, int32_t *ids,
                        float *values, coli__route_cost *cost);

/* Values (n) to weights: divided by their sum, in the arithmetic of coli__route_softmax_topk.  They stay
 * as they are when it is below 2^-125; it is at most 2^125. */
void coli__route_normalise(float *values, uint32_t n);

#endif
