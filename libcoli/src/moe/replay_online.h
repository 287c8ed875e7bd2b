/* replay_online.h - correction of the residents while tokens are decoded (replay_online.c). */
#ifndef COLI_MOE_REPLAY_ONLINE_H
#define COLI_MOE_REPLAY_ONLINE_H

#include "replay.h"

coli_status coli__replay_online_init(coli__replay *r);
/* Learn from the rows that the layer computes now. */
void coli__replay_online_learn(coli__replay *r, uint32_t layer);
/* A token begins: what a swap must gain in uses per token, `least` or more; so that no more than
 * `most` are worth it. */
void coli__replay_online_price(coli__replay *r, double least, uint64_t most);
/* Swap once, if an outsider is expected to be used that much more than a resident. */
void coli__replay_online_swap(coli__replay *r, uint32_t layer);

#endif
