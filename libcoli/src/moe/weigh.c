/* weigh.c - see weigh.h.
 *
 * A row's weight rises with its number: first + more * row / n_row.  n_row grows with every chunk, and
 * the rows are not kept; their sum is enough:
 *
 *     sum over the rows that used an expert  =  first * uses  +  more * (sum of their numbers) / n_row */
#include "weigh.h"

#include <string.h>

#include "../base/alloc.h"

enum { PRIOR_ROWS = 25 }; // of a prompt, that the past is worth: did best (docs/replan.md)

coli_status coli__weigh_init(coli__weigh *w, uint32_t n_layer, uint32_t n_expert)
{
    const size_t n = (size_t)n_layer * n_expert;
    *w = (coli__weigh){.n_layer = n_layer, .n_expert = n_expert};
    w->uses = coli__calloc(n, sizeof *w->uses);
    w->rows = coli__calloc(n, sizeof *w->rows);
    w->n_row = coli__calloc(n_layer, sizeof *w->n_row);
    if (w->uses && w->rows && w->n_row) return COLI_OK;
    coli__weigh_finish(w);
    return COLI_E_NOMEM;
}

void coli__weigh_finish(coli__weigh *w)
{
    if (!w) return;
    coli__free(w->uses);
    coli__free(w->rows);
    coli__free(w->n_row);
    *w = (coli__weigh){0};
}

void coli__weigh_prompt(coli__weigh *w)
{
    const size_t n = (size_t)w->n_layer * w->n_expert;
    memset(w->uses, 0, n * sizeof *w->uses);
    memset(w->rows, 0, n * sizeof *w->rows);
    memset(w->n_row, 0, w->n_layer * sizeof *w->n_row);
}

void coli__weigh_use(coli__weigh *w, uint32_t layer, const int32_t *ids, uint32_t n_row,
                     uint32_t n_used)
{
    uint32_t *uses = w->uses + (size_t)layer * w->n_expert;
    uint64_t *rows = w->rows + (size_t)layer * w->n_expert;
    w->n_used = n_used;
    for (uint32_t row = 0; row < n_row; row++)
        for (uint32_t k = 0; k < n_used; k++, ids++) {
            if (*ids < 0) continue;
            uses[*ids]++;
            rows[*ids] += w->n_row[layer] + row;
        }
    w->n_row[layer] += n_row;
}

static uint32_t saturated(uint64_t count)
{
    return count < UINT32_MAX ? (uint32_t)count : UINT32_MAX;
}

uint32_t coli__weigh_counts(const coli__weigh *w, uint32_t layer, uint32_t how,
                            const uint32_t *past, uint32_t *counts)
{
    const uint32_t *uses = w->uses + (size_t)layer * w->n_expert;
    const uint64_t *rows = w->rows + (size_t)layer * w->n_expert;
    const uint64_t first = how ? COLI__WEIGH_ONE : 1;
    const uint64_t more = how & COLI__WEIGH_TAIL ? 3 * COLI__WEIGH_ONE : 0;
    const uint64_t n_row = w->n_row[layer] ? w->n_row[layer] : 1;
    uint64_t prior = 0, sum = 0;
    if (how & COLI__WEIGH_PRIOR) {
        prior = (uint64_t)PRIOR_ROWS * w->n_used * COLI__WEIGH_ONE;
        for (uint32_t e = 0; e < w->n_expert; e++) sum += past[e];
    }
    for (uint32_t e = 0; e < w->n_expert; e++) {
        uint64_t count = first * uses[e] + rows[e] * more / n_row;
        if (sum) count += past[e] * prior / sum;
        counts[e] = saturated(count);
    }
    return (uint32_t)(first + more / 2);
}
