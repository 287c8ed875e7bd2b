/* coli/exact.h - every rounding of libcoli's arithmetic, as plain C.
 *
 * This header is the reference: a kernel, on a processor or on a device, is right when it gives
 * the bits of these functions.  It needs nothing but IEEE 754 binary32 and binary64 with rounding
 * to nearest even, each operation rounded once; docs/arithmetic.md explains the choices.  There is
 * no division of floats and no libm on the way of a token, because neither is the same everywhere.
 *
 * Compile with -ffp-contract=off (nvcc: -fmad=false) and never with -ffast-math.  Where a compiler
 * was allowed to fuse a*b+c nevertheless, coli_exact_check() says so at run time.
 *
 * All functions are pure and may be called from any thread.  Before including the header, a device
 * compiler may define COLI_EXACT_FN (for instance as `static __host__ __device__ inline`). */
#ifndef COLI_EXACT_H
#define COLI_EXACT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__)
#error "coli/exact.h: -ffast-math changes results; compile without it"
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
#error "coli/exact.h: float expressions must be computed in float (x87: use -mfpmath=sse -msse2)"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

#ifndef COLI_EXACT_FN
#define COLI_EXACT_FN static inline
#endif

/* ---- bits ---------------------------------------------------------------------------------- */

COLI_EXACT_FN uint32_t coli_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

COLI_EXACT_FN float coli_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

COLI_EXACT_FN uint64_t coli_bits_d(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

COLI_EXACT_FN double coli_from_bits_d(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* `take` ? a : b without a branch: compilers put arithmetic that only one side needs behind a
 * branch, and a loop with one is not turned into vector code. */
COLI_EXACT_FN uint32_t coli_select(bool take, uint32_t a, uint32_t b)
{
    const uint32_t mask = 0u - (uint32_t)take;
    return (a & mask) | (b & ~mask);
}

/* x between lo and hi; NaN stays NaN. */
COLI_EXACT_FN float coli_clamp(float x, float lo, float hi)
{
    const float c = coli_from_bits(coli_select(x < lo, coli_bits(lo), coli_bits(x)));
    return coli_from_bits(coli_select(c > hi, coli_bits(hi), coli_bits(c)));
}

/* 2^e for -126 <= e <= 127. */
COLI_EXACT_FN float coli_pow2(int32_t e)
{
    return coli_from_bits(((uint32_t)e + 127u) << 23);
}

/* Stored scales and weights to float, exactly. */
COLI_EXACT_FN float coli_bf16_to_f32(uint16_t h)
{
    return coli_from_bits((uint32_t)h << 16);
}

COLI_EXACT_FN float coli_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u,
                   mantissa = h & 0x3FFu;
    if (exponent == 31) return coli_from_bits(sign | 0x7F800000u | mantissa << 13);
    if (exponent != 0) return coli_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    const float magnitude = (float)mantissa * 0x1p-24f;
    return coli_from_bits(sign | coli_bits(magnitude));
}

/* To f16, nearest, ties to even: from 65520 on infinity; NaN becomes a quiet one.  Adding 0.5 leaves
 * the nearest multiple of 2^-24, f16's smallest step, in the low bits of the sum, and whether the
 * processor flushes float's denormals does not matter: all of them round to 0. */
COLI_EXACT_FN uint16_t coli_f32_to_f16(float x)
{
    const uint32_t sign = coli_bits(x) >> 16 & 0x8000u, magnitude = coli_bits(x) & 0x7FFFFFFFu;
    const uint32_t normal = (magnitude + 0xFFFu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
    const uint32_t denormal = coli_bits(coli_from_bits(magnitude) + 0.5f) - 0x3F000000u;
    uint32_t half = coli_select(magnitude < 0x38800000u, denormal, normal); // 2^-14
    half = coli_select(magnitude >= 0x477FF000u, 0x7C00u, half);            // 65520
    half = coli_select(magnitude > 0x7F800000u, 0x7E00u, half);
    return (uint16_t)(sign | half);
}

/* False when the compiler fused a multiplication with an addition, or the processor flushes
 * denormals or does not round to nearest: then nothing here can be trusted. */
COLI_EXACT_FN bool coli_exact_check(void)
{
    volatile float a = 0x1.000002p0f, b = 0x1.fffffcp-1f, one = 1.0f, tiny = 0x1p-126f;
    const float product = a * b - one; // -2^-46 when fused, 0 when rounded in between
    const float up = one + 0x1.8p-24f, down = one + 0x0.8p-24f;
    volatile float half = tiny * 0.5f;
    return product == 0.0f && up == 0x1.000002p0f && down == 1.0f && half + half == tiny;
}

/* ---- reciprocals --------------------------------------------------------------------------- */

/* 1/d for 2^-125 <= d <= 2^125, within 2 ulp: a first guess from the bits (wrong by at most 6 %),
 * then three Newton steps, each squaring the error. */
COLI_EXACT_FN float coli_recip(float d)
{
    float r = coli_from_bits(0x7EF311C7u - coli_bits(d));
    r = r * (2.0f - d * r);
    r = r * (2.0f - d * r);
    r = r * (2.0f - d * r);
    return r;
}

/* 1/sqrt(x) for 2^-125 <= x <= 2^126, within 1.25 ulp. */
COLI_EXACT_FN float coli_rsqrt(float x)
{
    const float half = 0.5f * x;
    float r = coli_from_bits(0x5F375A86u - (coli_bits(x) >> 1));
    r = r + r * (0.5f - (half * r) * r);
    r = r + r * (0.5f - (half * r) * r);
    r = r + r * (0.5f - (half * r) * r);
    return r;
}

/* ---- sums ---------------------------------------------------------------------------------- */

/* The tree: neighbours are added in pairs, then neighbours of these, as if the list were padded
 * with zeros to a power of two.  A running sum keeps one partial sum per level, like the bits of a
 * counter:
 *
 *     v0 v1 v2 v3 v4     ((v0 + v1) + (v2 + v3)) + v4        level[2] + level[0]
 *
 * A sum of nothing but zeros is +0, whatever their signs. */
typedef struct coli_tree {
    uint32_t n;
    float level[32];
} coli_tree;

COLI_EXACT_FN void coli_tree_add(coli_tree *tree, float v)
{
    uint32_t i = 0;
    for (; tree->n >> i & 1u; i++) v = tree->level[i] + v;
    tree->level[i] = v;
    tree->n++;
}

COLI_EXACT_FN float coli_tree_sum(const coli_tree *tree)
{
    float sum = 0.0f;
    for (uint32_t i = 0; i < 32; i++)
        if (tree->n >> i & 1u) sum = tree->level[i] + sum;
    return sum;
}

/* The sum of sixteen lanes: lane i with i+8, then i+4, i+2, i+1. */
COLI_EXACT_FN float coli_lanes_sum(float lane[16])
{
    for (uint32_t half = 8; half > 0; half /= 2)
        for (uint32_t i = 0; i < half; i++) lane[i] = lane[i] + lane[i + half];
    return lane[0];
}

/* Sum of a[i]*b[i].  Lane l starts at 0 and takes elements l, l+16, l+32, ... in order, each
 * product rounded before it is added. */
COLI_EXACT_FN float coli_dot(const float *a, const float *b, uint32_t n)
{
    float lane[16] = {0};
    for (; n >= 16; n -= 16, a += 16, b += 16)
        for (uint32_t l = 0; l < 16; l++) lane[l] = lane[l] + a[l] * b[l];
    for (uint32_t l = 0; l < n; l++) lane[l] = lane[l] + a[l] * b[l];
    return coli_lanes_sum(lane);
}

/* ---- quantised products -------------------------------------------------------------------- */

/* Quantise the n <= group activations of one group; the rest of q becomes 0.
 * False when one is not finite or is 2^40 or more in magnitude: q, d and sum are then zero. */
COLI_EXACT_FN bool coli_quantise_group(const float *x, uint32_t n, uint32_t group, int8_t *q,
                                       float *d, int32_t *sum)
{
    uint32_t amax = 0; // bits of |x| order as the numbers do, with infinity and NaN above all
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t magnitude = coli_bits(x[i]) & 0x7FFFFFFFu;
        amax = magnitude > amax ? magnitude : amax;
    }
    const bool in_range = amax < 0x53800000u; // 2^40
    *d = 0.0f;
    *sum = 0;
    memset(q, 0, group);
    if (!in_range || amax < 0x23800000u) return in_range; // 2^-56

    *d = coli_from_bits(amax) * (1.0f / 127.0f);
    const float recip = coli_recip(*d);
    int32_t total = 0;
    for (uint32_t i = 0; i < n; i++) {
        // Adding 1.5 * 2^23 leaves the nearest integer, ties to even, in the low bits.
        int32_t v = (int32_t)(coli_bits(x[i] * recip + 0x1.8p23f) - 0x4B400000u);
        v = v < -127 ? -127 : v;
        v = v > 127 ? 127 : v;
        q[i] = (int8_t)v;
        total += v;
    }
    *sum = total;
    return true;
}

/* What one group adds to an output: s = sum of q*w, exact in 32 bits; wscale the group's weight
 * scale (stored scale times the matrix's power of two), d the activation scale.  An output is the
 * tree of these over its groups. */
COLI_EXACT_FN float coli_group_value(int32_t s, float wscale, float d)
{
    return (float)s * (wscale * d);
}

/* ---- exponential and its family ------------------------------------------------------------ */

/* e^x within 1 ulp.  Below 2^-126 it is 0; above x = 88.72 it is e^88.72.  NaN stays NaN.
 *
 * x = n*ln2 + r with |r| <= ln2/2, so e^x = 2^n * e^r.  ln2 is subtracted in two parts, the first
 * short enough that n times it is exact.  2^n is added into the exponent bits of e^r, where a
 * result without an exponent shows as a small or negative integer. */
COLI_EXACT_FN float coli_exp(float x)
{
    const float c = coli_clamp(x, -104.0f, 88.72f);
    const float t = c * 0x1.715476p0f + 0x1.8p23f, n = t - 0x1.8p23f;
    const float r = (c - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f;
    float p = 0x1.a125dcp-13f;
    p = p * r + 0x1.6d442cp-10f;
    p = p * r + 0x1.1110ep-7f;
    p = p * r + 0x1.5554e8p-5f;
    p = p * r + 0x1.555556p-3f;
    p = p * r + 0.5f;
    p = (p * (r * r) + r) + 1.0f;
    const uint32_t scaled = coli_bits(p) + ((coli_bits(t) - 0x4B400000u) << 23);
    const uint32_t flushed = coli_select((int32_t)scaled < 0x00800000, 0u, scaled);
    return coli_from_bits(coli_select(x != x, 0x7FC00000u, flushed));
}

/* 1 / (1 + e^-x) within 4 ulp; beyond +-80 as at +-80.  NaN stays NaN. */
COLI_EXACT_FN float coli_sigmoid(float x)
{
    return coli_recip(1.0f + coli_exp(-coli_clamp(x, -80.0f, 80.0f)));
}

/* x * sigmoid(x). */
COLI_EXACT_FN float coli_silu(float x)
{
    return x * coli_sigmoid(x);
}

/* ---- in double, for what float cannot hold -------------------------------------------------- */

/* 1/d for 2^-100 <= d <= 2^100, nearly correctly rounded. */
COLI_EXACT_FN double coli_recip_d(double d)
{
    double r = (double)coli_recip((float)d);
    r = r * (2.0 - d * r);
    r = r * (2.0 - d * r);
    return r;
}

/* e^x for |x| <= 700: as coli_exp, with the Taylor series of e^r. */
COLI_EXACT_FN double coli_exp_d(double x)
{
    const double t = x * 0x1.71547652b82fep0 + 0x1.8p52, n = t - 0x1.8p52;
    const double r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
    double p = 1.0 / 6227020800.0; // 1/13!
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    return coli_from_bits_d(coli_bits_d(p) + (coli_bits_d(t) << 52));
}

/* log((1+s)/(1-s)) for |s| <= 1/3: 2 (s + s^3/3 + s^5/5 + ...). */
COLI_EXACT_FN double coli_log_ratio_d(double s)
{
    const double z = s * s;
    double p = 1.0 / 23.0;
    p = p * z + 1.0 / 21.0;
    p = p * z + 1.0 / 19.0;
    p = p * z + 1.0 / 17.0;
    p = p * z + 1.0 / 15.0;
    p = p * z + 1.0 / 13.0;
    p = p * z + 1.0 / 11.0;
    p = p * z + 1.0 / 9.0;
    p = p * z + 1.0 / 7.0;
    p = p * z + 1.0 / 5.0;
    p = p * z + 1.0 / 3.0;
    p = p * z + 1.0;
    return (s + s) * p;
}

/* Natural logarithm of a positive normal number: x = m * 2^e with m between sqrt(1/2) and
 * sqrt(2), and m = (1+s)/(1-s). */
COLI_EXACT_FN double coli_log_d(double x)
{
    const uint64_t offset = coli_bits_d(x) - 0x3FE6A09E667F3BCDu; // sqrt(1/2)
    const int64_t e = (int64_t)(offset >> 52) - (int64_t)(offset >> 63) * 4096;
    const double m = coli_from_bits_d(coli_bits_d(x) - ((uint64_t)e << 52));
    const double s = (m - 1.0) * coli_recip_d(m + 1.0), n = (double)e;
    return n * 0x1.62e42feep-1 + (n * 0x1.a39ef35793c76p-33 + coli_log_ratio_d(s));
}

/* Natural logarithm of a positive finite float. */
COLI_EXACT_FN float coli_log(float x)
{
    return (float)coli_log_d((double)x);
}

/* log(1 + e^x) = max(x, 0) + log(1 + u) with u = e^-|x|, and 1 + u = (1+s)/(1-s) for
 * s = u/(2+u): nothing overflows and nothing cancels.  Above x = 20 this is x; below 2^-126 it is
 * 0.  NaN stays NaN. */
COLI_EXACT_FN float coli_softplus(float x)
{
    const uint32_t magnitude = coli_bits(x) & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return coli_from_bits(0x7FC00000u);
    if (x > 20.0f) return x;
    if (x < -87.0f) return 0.0f;
    const double u = coli_exp_d(-(double)coli_from_bits(magnitude));
    const double rest = coli_log_ratio_d(u * coli_recip_d(2.0 + u));
    return (float)((x > 0.0f ? (double)x : 0.0) + rest);
}

/* ---- rotary angles ------------------------------------------------------------------------- */

/* theta^(-2i/n) for pair i of n rotary components. */
COLI_EXACT_FN float coli_rotary_frequency(double theta, uint32_t i, uint32_t n)
{
    return (float)coli_exp_d(-(2.0 * (double)i / (double)n) * coli_log_d(theta));
}

/* Sine and cosine for |angle| <= 2^20.  The nearest multiple n of pi/2 is subtracted in three
 * parts, of which the first two are short enough (33 bits) for exact products; what remains is at
 * most pi/4, where the Taylor series are short. */
COLI_EXACT_FN void coli_sincos(double angle, float *sine, float *cosine)
{
    const double t = angle * 0x1.45f306dc9c883p-1 + 0x1.8p52, n = t - 0x1.8p52;
    const double r =
        ((angle - n * 0x1.921fb544p0) - n * 0x1.0b4611a6p-34) - n * 0x1.3198a2e037073p-69;
    const double z = r * r;
    double s = -1.0 / 1307674368000.0; // -1/15!
    s = s * z + 1.0 / 6227020800.0;
    s = s * z - 1.0 / 39916800.0;
    s = s * z + 1.0 / 362880.0;
    s = s * z - 1.0 / 5040.0;
    s = s * z + 1.0 / 120.0;
    s = s * z - 1.0 / 6.0;
    s = r + r * (z * s);
    double c = 1.0 / 20922789888000.0; // 1/16!
    c = c * z - 1.0 / 87178291200.0;
    c = c * z + 1.0 / 479001600.0;
    c = c * z - 1.0 / 3628800.0;
    c = c * z + 1.0 / 40320.0;
    c = c * z - 1.0 / 720.0;
    c = c * z + 1.0 / 24.0;
    c = c * z - 0.5;
    c = 1.0 + z * c;
    const uint64_t quadrant = coli_bits_d(t) & 3u;
    const double a = quadrant & 1u ? c : s, b = quadrant & 1u ? s : c;
    *sine = (float)(quadrant & 2u ? -a : a);
    *cosine = (float)((quadrant + 1u) & 2u ? -b : b);
}

#endif
