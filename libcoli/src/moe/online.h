/* online.h - which experts the next tokens will use, and the swap that this calls for (online.c).
 *
 * Pure but for its memory: the same rows give the same swaps on every machine; no clock, no thread.
 * The tier and the simulator run exactly this code.  Nothing is allocated after create. */
#ifndef COLI_MOE_ONLINE_H
#define COLI_MOE_ONLINE_H

#include "../base/error.h"
#include "plan.h"

/* Uses per token by which a newcomer must beat its victim when nobody counts the cost. */
#define COLI__ONLINE_HYSTERESIS 0.03

/* One thread uses it. */
typedef struct coli__online coli__online;

coli_status coli__online_create(uint32_t n_layer, uint32_t n_expert, uint32_t n_device,
                                coli__online **out);
void coli__online_destroy(coli__online *online); // NULL is fine

/* A prompt begins.
 *   past  (n_layer, n_expert) uses before it */
void coli__online_prompt(coli__online *online, const uint32_t *past);

/* A layer has computed rows, of the prompt or of its answer.
 *   ids  (n_row, n_used); below 0: none */
void coli__online_learn(coli__online *online, uint32_t layer, const int32_t *ids, uint32_t n_row,
                        uint32_t n_used);

/* A token begins: what a swap must gain in uses per token, `least` or more; so that no more than
 * `most` are worth it, and no more will be begun. */
void coli__online_price(coli__online *online, const coli__plan_world *w, double least,
                        uint64_t most);

/* The best swap of a layer, if it gains more than the price and one is left. */
bool coli__online_best(const coli__online *online, const coli__plan_world *w, uint32_t layer,
                       coli__swap *out);
/* It was begun. */
void coli__online_begun(coli__online *online);

#endif
