/* score_row.h - one row of logits as probabilities; kept in few bytes, and compared with what was
 * kept.  Pure.
 *
 * A record itemises the likeliest tokens and says what the others have together:
 *
 *     varint n     itemised tokens, at least 1
 *     f32 rest     probability of all others
 *     n times, by rising id:  varint gap   ids left out since the last one
 *                             f32 log p    natural logarithm, at most 0
 *
 * (varint: seven bits a byte, low ones first, the high bit of a byte says that more follow; f32:
 * little-endian.)  A token is itemised until the others' share is at most 2^-16; at most 4096 are,
 * the likeliest ones to a quarter of a natural logarithm, the best always.
 *
 * Worked: of four tokens with p = .5, 0, .25, .25 the record is
 *
 *     03  00 00 00 00  00 18 72 31 bf  01 18 72 b1 bf  00 18 72 b1 bf
 *
 * KL(base || model) needs the base's row only where it has probability, so what is lost is what the
 * others have among themselves: less than their share times how much they differ there.  It is never
 * too large (merging outcomes cannot raise a divergence), and 0 for equal logits, because both sides
 * are rounded alike. */
#ifndef COLI_RUN_SCORE_ROW_H
#define COLI_RUN_SCORE_ROW_H

#include "../base/alloc.h"

enum { COLI__ROW_MOST = 4096 };

typedef struct coli__row {
    uint32_t n_vocab;
    double *mass; // (n_vocab) scratch: e^(logit - top)
    /* set by coli__row_take */
    const float *logits;      // borrowed
    uint32_t best;            // the likeliest id, the lowest of equals
    double top, sum, log_sum; // sum of mass
} coli__row;

coli_status coli__row_init(coli__row *row, uint32_t n_vocab);
void coli__row_finish(coli__row *row);

/* Look at these logits.  E_NUMERIC when one is no finite number. */
coli_status coli__row_take(coli__row *row, const float *logits);
/* Natural logarithm, at most 0. */
float coli__row_logprob(const coli__row *row, uint32_t id);

/* Append its record. */
coli_status coli__row_record(const coli__row *row, coli__buf *out);

/* Whether a well-formed record of n_vocab tokens stands at *at; goes behind it. */
bool coli__row_check(const uint8_t **at, const uint8_t *end, uint32_t n_vocab, float *rest);

/* KL(record || row), and whether the likeliest token is the same; goes behind the record, which was
 * checked. */
double coli__row_compare(const coli__row *row, const uint8_t **at, const uint8_t *end,
                         bool *same_top);

#endif
