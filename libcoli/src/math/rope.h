/* rope.h - rotary position embedding: tables of sines and cosines, and turning heads by them.
 *
 * The first n_rot components of a head are turned in pairs (i, i + n_rot/2) by the angle
 * position * frequency[i]; the others pass.  A table is built once per chunk and serves all layers
 * and heads.  Pure; no allocation. */
#ifndef COLI_MATH_ROPE_H
#define COLI_MATH_ROPE_H

#include "../base/error.h"

/* frequency[i] = theta^(-2i/n_rot) for i < n_rot/2.  n_rot is even and at least 2, theta >= 1. */
void coli__rope_frequencies(double theta, uint32_t n_rot, float *frequency);

/* Rows for positions pos .. pos+n_tok-1.  Exact angles need positions below 2^20.
 *   frequency  (n_rot/2) in [0, 1]
 *   cosine, sine  (n_tok, n_rot/2) */
void coli__rope_table(const float *frequency, uint32_t n_rot, uint32_t pos, uint32_t n_tok,
                      float *cosine, float *sine);

/* Turn one head in place by one row of the table. */
void coli__rope_apply(float *head, const float *cosine, const float *sine, uint32_t n_rot);

enum { COLI_ROPE_POS_MAX = 1 << 20 };

#endif
