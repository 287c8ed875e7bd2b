/* kernels_i8mm.c - aarch64 with products of small matrices of bytes (i8mm).
 *
 * usmmla multiplies two outputs by two activation rows, eight columns at once: twice the work of a
 * dot product.  A register of the panel holds four columns of four outputs; zipping it with the
 * register of the next four columns gives two registers of two outputs and eight columns.  Rows
 * alone are left to usdot (kernels_dot4.inc.h).  Weights are unsigned in both. */
#include "kernels_neon.inc.h"

enum { EXCESS8 = 128 };

INLINE vb int8_weights(vb codes)
{
    return codes;
}

INLINE vi dot4(vi sums, vb w, const int8_t *q, const uint32_t k)
{
    const int32x4_t s = (int32x4_t)sums;
    const uint8x16_t weights = (uint8x16_t)w;
    const int8x16_t x = vld1q_s8(q);
    switch (k) { // the instruction names its quad
    case 0:
        return (vi)vusdotq_laneq_s32(s, weights, x, 0);
    case 1:
        return (vi)vusdotq_laneq_s32(s, weights, x, 1);
    case 2:
        return (vi)vusdotq_laneq_s32(s, weights, x, 2);
    default:
        return (vi)vusdotq_laneq_s32(s, weights, x, 3);
    }
}

#include "kernels_dot4.inc.h"

/* Sums of two rows with outputs 4v .. 4v+3: a row's are every other number of both registers. */
typedef struct pair_sums {
    int32x4_t s[NV][2];
} pair_sums;

INLINE void add_eight_columns(pair_sums *sums, const row_block *x, uint64_t first,
                              const uint8_t *codes, const bool is4, const uint32_t n_pair)
{
    int8x16_t q[ROWS_MAX / 2];
    for (uint32_t p = 0; p < n_pair; p++)
        q[p] = vcombine_s8(vld1_s8(x->q[2 * p] + first), vld1_s8(x->q[2 * p + 1] + first));
    for (uint32_t v = 0; v < NV; v++) {
        const uint8x16_t chunk = vld1q_u8(codes + 16 * v);
        const uint32x4_t low = (uint32x4_t)(is4 ? vandq_u8(chunk, vdupq_n_u8(15)) : chunk);
        const uint32x4_t high =
            (uint32x4_t)(is4 ? vshrq_n_u8(chunk, 4) : vld1q_u8(codes + 64 + 16 * v));
        const uint8x16_t w[2] = {(uint8x16_t)vzip1q_u32(low, high),
                                 (uint8x16_t)vzip2q_u32(low, high)};
        for (uint32_t p = 0; p < n_pair; p++)
            for (uint32_t i = 0; i < 2; i++)
                sums[p].s[v][i] = vusmmlaq_s32(sums[p].s[v][i], w[i], q[p]);
    }
}

INLINE void group_values(const row_block *x, uint64_t g, const uint8_t *codes, uint64_t step,
                         const lanes *scale, const bool is4, const uint32_t group, const uint32_t R,
                         const uint32_t P, lanes *v)
{
    if (R % 2) { // the last row has no other
        const row_block last = {.q = {x->q[R - 1]}, .d = {x->d[R - 1]}, .sum = {x->sum[R - 1]}};
        dot4_values(&last, g, codes, step, scale, is4, group, 1, P, v + R - 1);
    }
    pair_sums sums[ROWS_MAX / 2];
    for (uint32_t p = 0; p < R / 2; p++) {
        const int32_t excess = is4 ? -8 : -EXCESS8;
        const int32_t a = x->sum[2 * p][g] * excess, b = x->sum[2 * p + 1][g] * excess;
        for (uint32_t i = 0; i < NV; i++)
            sums[p].s[i][0] = sums[p].s[i][1] = (int32x4_t){a, b, a, b};
    }
    for (uint32_t c = 0; c < group; c += 8)
        add_eight_columns(sums, x, g * group + c, codes + (is4 ? 8 : 16) * c, is4, R / 2);
    for (uint32_t r = 0; r < R / 2 * 2; r++)
        for (uint32_t i = 0; i < NV; i++) {
            const int32x4_t *s = sums[r / 2].s[i];
            const vi row = (vi)(r % 2 == 0 ? vuzp1q_s32(s[0], s[1]) : vuzp2q_s32(s[0], s[1]));
            v[r].v[i] = __builtin_convertvector(row, vf) * (scale->v[i] * x->d[r][g]);
        }
}

#include "kernels_quant.inc.h"

const coli__kernels coli__kernels_i8mm = COLI_KERNEL_TABLE("i8mm");
