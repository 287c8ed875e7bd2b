/* acts.h - activation rows in every form that some matrix reads: f32, or quantised in groups. */
#ifndef COLI_MATH_ACTS_H
#define COLI_MATH_ACTS_H

#include "kernels.h"

/* Forms, as a set. */
enum { COLI_FORM_F32 = 1, COLI_FORM_Q64 = 2, COLI_FORM_Q32 = 4 };

typedef struct coli__acts {
    uint32_t n_in;
    float *f; // (rows, ld); columns beyond n_in are zero.  NULL when not wanted
    size_t ld;
    coli__qrows q64, q32; // .q NULL when not wanted
} coli__acts;

/* The form that a matrix of this format reads. */
uint32_t coli__form_of(coli__wfmt fmt);

/* Room for n_tok rows of n_in numbers in these forms.  finish accepts a zeroed struct. */
coli_status coli__acts_init(coli__acts *a, uint32_t n_tok, uint32_t n_in, uint32_t forms);
void coli__acts_finish(coli__acts *a);
uint64_t coli__acts_bytes(uint32_t n_tok, uint32_t n_in, uint32_t forms); // that init takes

/* Quantise columns [first, first+n) of row t from x (n numbers) into the wanted forms; first is a
 * multiple of 64.  False when a number leaves the range of coli/exact.h. */
bool coli__acts_quantise(coli__acts *a, const coli__kernels *k, uint32_t t, uint32_t first,
                         uint32_t n, const float *x);

/* A view that starts `n` rows later; not to be finished. */
void coli__acts_skip(coli__acts *a, uint32_t n);

/* Make `args` read these rows in the form of args->w. */
void coli__acts_bind(const coli__acts *a, coli__matmul_args *args);

#endif
