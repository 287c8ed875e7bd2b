/* kernels_neon.c - aarch64 with dot products of signed bytes (sdot).
 *
 * Codes of int4, 0..15, are signed bytes as they are; codes of int8 become so by turning over the
 * highest bit, which subtracts 128. */
#include "kernels_neon.inc.h"

enum { EXCESS8 = 0 };

INLINE vb int8_weights(vb codes)
{
    return codes ^ 0x80;
}

INLINE vi dot4(vi sums, vb w, const int8_t *q, const uint32_t k)
{
    const int32x4_t s = (int32x4_t)sums;
    const int8x16_t weights = (int8x16_t)w, x = vld1q_s8(q);
    switch (k) { // the instruction names its quad
    case 0:
        return (vi)vdotq_laneq_s32(s, weights, x, 0);
    case 1:
        return (vi)vdotq_laneq_s32(s, weights, x, 1);
    case 2:
        return (vi)vdotq_laneq_s32(s, weights, x, 2);
    default:
        return (vi)vdotq_laneq_s32(s, weights, x, 3);
    }
}

#include "kernels_dot4.inc.h"

INLINE void group_values(const row_block *x, uint64_t g, const uint8_t *codes, uint64_t step,
                         const lanes *scale, const bool is4, const uint32_t group, const uint32_t R,
                         const uint32_t P, lanes *v)
{
    dot4_values(x, g, codes, step, scale, is4, group, R, P, v);
}

#include "kernels_quant.inc.h"

const coli__kernels coli__kernels_neon = COLI_KERNEL_TABLE("neon");
