/* kernels_avx512.c - AVX-512 with VNNI.
 *
 * A chunk of a panel is one register: sixteen outputs, four columns each.  vpdpbusd multiplies its
 * unsigned bytes by four activations that are broadcast to all outputs, and adds the four products
 * into sixteen 32-bit sums; there is no shuffle and no horizontal sum.  Weights are unsigned
 * because they are stored with 8 (or 128) added; so sums start at -8 (-128) times the sum of the
 * group's activations.
 *
 * The tree of the groups: kernels_quant.inc.h.  Everything else: kernels_float.inc.h. */
#include <immintrin.h>

#define VW       16
#define ROWS_MAX 8 // so that their sums stay in registers
#include "kernels_float.inc.h"

INLINE __m512i four_columns(const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, sizeof four);
    return _mm512_set1_epi32(four);
}

INLINE lanes halves_to_floats(const uint8_t *p)
{
    return (lanes){{(vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p))}};
}

/* v[r] = what group g adds to the sixteen outputs, for R rows. */
INLINE void group_values(const row_block *x, uint64_t g, const uint8_t *codes, lanes scale,
                         const bool is4, const uint32_t group, const uint32_t R, lanes *v)
{
    const uint32_t n_acc = R == 1 ? 4 : R == 2 ? 2 : 1; // enough to hide vpdpbusd's latency
    __m512i acc[4][ROWS_MAX];
    for (uint32_t r = 0; r < R; r++) {
        acc[0][r] = _mm512_set1_epi32(x->sum[r][g] * (is4 ? -8 : -128));
        for (uint32_t k = 1; k < n_acc; k++) acc[k][r] = _mm512_setzero_si512();
    }
    const uint32_t columns = is4 ? 8 : 4; // of one chunk
    for (uint32_t c = 0; c < group / columns; c++) {
        const __m512i w = _mm512_loadu_si512(codes + 64 * c);
        const uint32_t k = c % n_acc;
        if (is4) {
            const __m512i low = _mm512_and_si512(w, _mm512_set1_epi8(15));
            const __m512i high = _mm512_and_si512(_mm512_srli_epi16(w, 4), _mm512_set1_epi8(15));
            for (uint32_t r = 0; r < R; r++) {
                const int8_t *q = x->q[r] + g * group + 8 * c;
                acc[k][r] = _mm512_dpbusd_epi32(acc[k][r], low, four_columns(q));
                acc[k][r] = _mm512_dpbusd_epi32(acc[k][r], high, four_columns(q + 4));
            }
        } else {
            for (uint32_t r = 0; r < R; r++)
                acc[k][r] =
                    _mm512_dpbusd_epi32(acc[k][r], w, four_columns(x->q[r] + g * group + 4 * c));
        }
    }
    for (uint32_t r = 0; r < R; r++) {
        __m512i s = acc[0][r];
        if (n_acc == 2) s = _mm512_add_epi32(s, acc[1][r]);
        if (n_acc == 4)
            s = _mm512_add_epi32(_mm512_add_epi32(s, acc[1][r]),
                                 _mm512_add_epi32(acc[2][r], acc[3][r]));
        v[r].v[0] = (vf)_mm512_mul_ps(
            _mm512_cvtepi32_ps(s), _mm512_mul_ps((__m512)scale.v[0], _mm512_set1_ps(x->d[r][g])));
    }
}

#include "kernels_quant.inc.h"

const coli__kernels coli__kernels_avx512 = COLI_KERNEL_TABLE("avx512");
