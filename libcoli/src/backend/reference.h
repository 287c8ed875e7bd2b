/* reference.h - what a device must compute, in the plain C of coli/exact.h, and random inputs that
 * tell a right device from a wrong one.  Slow; for self-tests and `coli backend check`. */
#ifndef COLI_BACKEND_REFERENCE_H
#define COLI_BACKEND_REFERENCE_H

#include "../base/error.h"
#include "../base/random.h"
#include "coli/backend.h"

/* y[o] = row o of W times one quantised row (q, d), for o < n_out. */
void coli__ref_product(const coli_bk_matrix *m, const void *block, const int8_t *q, const float *d,
                       float *y);

/* One row through an expert: y (d).  *in_range is false when the row is flagged; y is then zero.
 * E_NOMEM. */
coli_status coli__ref_expert(const coli_bk_source *expert, const int8_t *q, const float *d,
                             float *y, bool *in_range);

/* A block of random codes and scales, in new memory (coli__free_aligned the data).
 *   formats  of gate, up, down; or one for a single matrix
 *   d, f     the expert's widths (d_model, d_ff)
 * Scales are such that activations of ordinary size stay so through an expert. */
coli_status coli__ref_expert_block(uint64_t *seed, const uint32_t formats[3], uint32_t d,
                                   uint32_t f, coli_bk_source *out);
coli_status coli__ref_matrix_block(uint64_t *seed, uint32_t format, uint32_t n_out, uint32_t n_in,
                                   coli_bk_source *out);

/* Quantised rows of random activations of ordinary size: q (n_row, n_group * group), d. */
void coli__ref_rows(uint64_t *seed, uint32_t n_row, uint32_t n_in, uint32_t group, int8_t *q,
                    float *d);

#endif
