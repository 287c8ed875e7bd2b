/* scales.h - the scale that a group of weights is rounded with: what it can be, and which is best. */
#ifndef COLI_MATH_SCALES_H
#define COLI_MATH_SCALES_H

#include <math.h>

#include "matrix.h"

/* Codes, both ends included. */
typedef struct coli__codes {
    float lo, hi;
} coli__codes;

/* Those that rounding makes. */
static inline coli__codes coli__codes_of(coli__wfmt fmt)
{
    return fmt.type == COLI_W_I4 ? (coli__codes){-8.0f, 7.0f} : (coli__codes){-127.0f, 127.0f};
}

/* The code of a weight; inverse is that of the scale, 0 for a scale of 0.  Half to even. */
static inline float coli__code_of(float w, float inverse, coli__codes codes)
{
    float v = w * inverse;
    v = v < codes.lo ? codes.lo : v; // before rounding: it needs |v| < 2^22
    v = v > codes.hi ? codes.hi : v;
    return (v + 0x1.8p23f) - 0x1.8p23f;
}

static inline float coli__scale_inverse(float scale)
{
    return scale == 0.0f ? 0.0f : 1.0f / scale;
}

static inline bool coli__scale_is_valid(float scale)
{
    const float size = fabsf(scale);
    return size == 0.0f || (size >= 0x1p-40f && size <= 0x1p10f);
}

/* The scale as it will be read back: `wanted` rounded to its stored form, 0 when that is not a
 * valid scale. */
float coli__scale_stored(coli__wfmt fmt, float wanted, int32_t scale_exp);

/* Weights that share a scale: a group, or a whole row. */
typedef struct coli__group {
    const float *w;          // (n) finite
    const float *importance; // (n) how much the squared error of each counts, >= 0; NULL: all 1
    uint32_t n;
    coli__wfmt fmt;
    coli__codes codes; // coli__codes_of(fmt), or more of them
    int32_t scale_exp;
} coli__group;

/* amax/7 or amax/127, as it is stored. */
float coli__scale_plain(const coli__group *g);
/* The stored scale, of either sign, with the least error found; never one with more than the plain
 * one. */
float coli__scale_best(const coli__group *g);
/* The sum of importance * squared error. */
double coli__scale_error(const coli__group *g, float scale);

#endif
