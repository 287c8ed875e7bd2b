/* kernels_avx512.c - AVX-512 with VNNI.
 *
 * A chunk of a panel is one register: sixteen outputs, four columns each.  vpdpbusd multiplies
 * unsigned weights by signed activations: kernels_dot4.inc.h. */
#include <immintrin.h>

#define VW         16
#define WIDEN(p)   ((vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p))))
#define ROWS_MAX   8 // so that their sums stay in registers,
#define PANELS_MAX 2 // of two panels: the loads of activations would else set the pace
#include "kernels_float.inc.h"

enum { EXCESS8 = 128 };

INLINE vb int8_weights(vb codes)
{
    return codes;
}

INLINE vi dot4(vi sums, vb w, const int8_t *q, const uint32_t k)
{
    int32_t four;
    memcpy(&four, q + 4 * k, sizeof four);
    return (vi)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, _mm512_set1_epi32(four));
}

#include "kernels_dot4.inc.h"

INLINE void group_values(const row_block *x, uint64_t g, const uint8_t *codes, uint64_t step,
                         const lanes *scale, const bool is4, const uint32_t group, const uint32_t R,
                         const uint32_t P, lanes *v)
{
    dot4_values(x, g, codes, step, scale, is4, group, R, P, v);
}

#include "kernels_quant.inc.h"

const coli__kernels coli__kernels_avx512 = COLI_KERNEL_TABLE("avx512");
#ifdef COLI_AMX
const coli__kernels coli__kernels_amx = COLI_KERNEL_TABLE_WITH("amx", coli__amx_matmul);
#endif
