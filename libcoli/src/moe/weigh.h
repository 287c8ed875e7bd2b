/* weigh.h - what the uses of a prompt weigh when its experts are planned (plan.h).
 *
 * The re-plan counts uses.  Two things may be made of the counts: late rows, which are nearer to the
 * answer, count more; and what earlier prompts used counts as some more rows.  Pure but for its memory;
 * whole numbers, so plans are the same everywhere. */
#ifndef COLI_MOE_WEIGH_H
#define COLI_MOE_WEIGH_H

#include "../base/error.h"

/* How, as bits; 0: each use counts 1. */
enum {
    COLI__WEIGH_TAIL = 1, // from ONE in the prompt's first row to 4 ONE in its last
    COLI__WEIGH_PRIOR =
        2 // the past as 25 rows more, a Dirichlet prior for the shares of this prompt
};
enum { COLI__WEIGH_ONE = 64 }; // what a use counts where there are fractions

/* The rows of a prompt so far.  One thread uses it. */
typedef struct coli__weigh {
    uint32_t n_layer, n_expert;
    uint32_t n_used; // of the latest row
    uint32_t *uses;  // (n_layer, n_expert)
    uint64_t *rows;  // (n_layer, n_expert) sum of the numbers of the rows that used it, from 0
    uint32_t *n_row; // (n_layer)
} coli__weigh;

coli_status coli__weigh_init(coli__weigh *w, uint32_t n_layer, uint32_t n_expert);
void coli__weigh_finish(coli__weigh *w); // NULL and zeroed are fine

void coli__weigh_prompt(coli__weigh *w); // a new one begins
/* Rows of the prompt used these experts of a layer.
 *   ids  (n_row, n_used); below 0: none */
void coli__weigh_use(coli__weigh *w, uint32_t layer, const int32_t *ids, uint32_t n_row,
                     uint32_t n_used);

/* Counts for a plan of the layer.
 *   past    (n_expert) uses of its experts before this prompt; read with COLI__WEIGH_PRIOR only
 *   counts  (n_expert)
 * Returns what a use counts on the average. */
uint32_t coli__weigh_counts(const coli__weigh *w, uint32_t layer, uint32_t how,
                            const uint32_t *past, uint32_t *counts);

#endif
