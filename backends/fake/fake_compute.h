/* fake_compute.h - products and experts on the processor, with the bits of coli/exact.h.
 *
 * Rows are given as (q, d) and an index: row i is number index[i], or i where index is NULL. */
#ifndef FAKE_COMPUTE_H
#define FAKE_COMPUTE_H

#include "coli/backend.h"

typedef struct fake_rows {
    const int8_t *q;       // (rows, n_group * group)
    const float *d;        // (rows, n_group)
    const uint32_t *index; // (n) or NULL
    uint32_t n;
} fake_rows;

/* y = W x: row i at y + i * ld.  `block` holds the matrix at m->offset. */
void fake_product(const coli_bk_matrix *m, const uint8_t *block, fake_rows rows, float *y,
                  uint64_t ld);

/* Floats of scratch for fake_expert; 0 when that does not fit size_t. */
size_t fake_expert_scratch(const coli_bk_matrix m[3]);

/* Rows through an expert.  A flagged row is NaN, so that whoever uses it finds out. */
void fake_expert(const coli_bk_matrix m[3], const uint8_t *block, fake_rows rows, float *scratch,
                 float *y, uint64_t ld, uint8_t *flag);

#endif
