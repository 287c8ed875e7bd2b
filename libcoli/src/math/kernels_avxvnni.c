/* kernels_avxvnni.c - AVX2 with vpdpbusd in registers of 256 bits (AVX-VNNI).
 *
 * vpdpbusd multiplies unsigned weights by signed activations: kernels_dot4.inc.h. */
#include "kernels_ymm.inc.h"

enum { EXCESS8 = 128 };

INLINE vb int8_weights(vb codes)
{
    return codes;
}

INLINE vi dot4(vi sums, vb w, const int8_t *q, const uint32_t k)
{
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)w, four_columns(q + 4 * k));
}

#include "kernels_dot4.inc.h"

INLINE void group_values(const row_block *x, uint64_t g, const uint8_t *codes, uint64_t step,
                         const lanes *scale, const bool is4, const uint32_t group, const uint32_t R,
                         const uint32_t P, lanes *v)
{
    dot4_values(x, g, codes, step, scale, is4, group, R, P, v);
}

#include "kernels_quant.inc.h"

const coli__kernels coli__kernels_avxvnni = COLI_KERNEL_TABLE("avxvnni");
