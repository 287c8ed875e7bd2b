/* route.h - which experts a row uses.  Pure. */
#ifndef COLI_MOE_ROUTE_H
#define COLI_MOE_ROUTE_H

#include "../math/kernels.h"

/* The n_used largest of n_expert router logits, best first, ties to the lower id, and their softmax
 * over the chosen: which equals the softmax over all, renormalised.
 *   ids, w  (n_used)
 * False when a logit is not finite; ids and w are then still valid: such a logit counts as the
 * smallest. */
bool coli__route_softmax_topk(const coli__kernels *k, const float *logits, uint32_t n_expert,
                              uint32_t n_used, int32_t *ids, float *w);

#endif
