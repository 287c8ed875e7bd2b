/* dense.h - a session's products with those dense matrices that a device holds. */
#ifndef COLI_BACKEND_DENSE_H
#define COLI_BACKEND_DENSE_H

#include "../math/acts.h"
#include "devices.h"

typedef struct coli__dense coli__dense;

/* Buffers for chunks of up to max_tok rows; *out is NULL when no matrix is on a device. */
coli_status coli__dense_create(coli__devices *devices, uint32_t max_tok, coli__dense **out);
void coli__dense_destroy(coli__dense *dense); // NULL is fine

/* For each of n_mat matrices (at most COLI__MAX_PRODUCT) that read rows [first, first+n_row) of x:
 * y[t*ldy + column[i] ..] = mats[i] x_t, if a device holds it and does it.  done[i] says so; the others
 * are the caller's to compute.  dense may be NULL. */
void coli__dense_run(coli__dense *dense, const coli__acts *x, uint32_t first, uint32_t n_row,
                     const coli__mat *const *mats, const uint32_t *column, uint32_t n_mat, float *y,
                     size_t ldy, bool *done);

/* Whether coli__dense_run would try. */
bool coli__dense_has(const coli__dense *dense, const coli__mat *w);

#endif
