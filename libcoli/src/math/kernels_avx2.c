/* kernels_avx2.c - AVX2 and F16C.
 *
 * A chunk of a panel is two registers of eight outputs, four columns each.  vpmaddubsw multiplies
 * unsigned by signed bytes and adds neighbours in 16 bits, saturating; so each format keeps the
 * sums of two products small enough that nothing saturates:
 *
 *   int4  codes 0..15, activations +-127: two products are at most 3810, and eight such sums
 *         (four chunks) still fit 16 bits.  Only then are they widened.  The codes are 8 too
 *         large, which leaves with 8 times the sum of the group's activations.
 *   int8  codes 0..255 would overflow.  With the sign moved to the activations, |w| <= 128 times
 *         +-127 twice is at most 32512.
 *
 * The tree of the groups: kernels_quant.inc.h.  Everything else: kernels_float.inc.h. */
#include "kernels_ymm.inc.h"

INLINE __m256i half_chunk(const uint8_t *codes, uint32_t c, uint32_t h)
{
    return _mm256_loadu_si256((const __m256i *)(codes + 64 * c + 32 * h));
}

/* s[r][h] += products of four chunks of int4 codes (32 columns). */
INLINE void add_int4(const row_block *x, uint64_t first, const uint8_t *codes, const uint32_t R,
                     __m256i s[ROWS_MAX][2])
{
    const __m256i nibble = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1);
    __m256i acc[ROWS_MAX][2];
    for (uint32_t c = 0; c < 4; c++) {
        __m256i low[2], high[2];
        for (uint32_t h = 0; h < 2; h++) {
            const __m256i w = half_chunk(codes, c, h);
            low[h] = _mm256_and_si256(w, nibble);
            high[h] = _mm256_and_si256(_mm256_srli_epi16(w, 4), nibble);
        }
        for (uint32_t r = 0; r < R; r++) {
            const __m256i q = four_columns(x->q[r] + first + 8 * c);
            for (uint32_t h = 0; h < 2; h++) {
                const __m256i p = _mm256_maddubs_epi16(low[h], q);
                acc[r][h] = c == 0 ? p : _mm256_add_epi16(acc[r][h], p);
            }
        }
        for (uint32_t r = 0; r < R; r++) {
            const __m256i q = four_columns(x->q[r] + first + 8 * c + 4);
            for (uint32_t h = 0; h < 2; h++)
                acc[r][h] = _mm256_add_epi16(acc[r][h], _mm256_maddubs_epi16(high[h], q));
        }
    }
    for (uint32_t r = 0; r < R; r++)
        for (uint32_t h = 0; h < 2; h++)
            s[r][h] = _mm256_add_epi32(s[r][h], _mm256_madd_epi16(acc[r][h], one));
}

/* s[r][h] += products of one chunk of int8 codes (4 columns). */
INLINE void add_int8(const row_block *x, uint64_t first, const uint8_t *chunk, const uint32_t R,
                     __m256i s[ROWS_MAX][2])
{
    const __m256i one = _mm256_set1_epi16(1), top = _mm256_set1_epi8(-128);
    for (uint32_t h = 0; h < 2; h++) {
        const __m256i w = _mm256_xor_si256(half_chunk(chunk, 0, h), top); // code - 128, signed
        const __m256i magnitude = _mm256_abs_epi8(w);                     // 128 as unsigned
        for (uint32_t r = 0; r < R; r++) {
            const __m256i q = _mm256_sign_epi8(four_columns(x->q[r] + first), w);
            const __m256i p = _mm256_maddubs_epi16(magnitude, q);
            s[r][h] = _mm256_add_epi32(s[r][h], _mm256_madd_epi16(p, one));
        }
    }
}

INLINE bool fetches_itself(const bool is4, const uint32_t R)
{
    (void)is4, (void)R;
    return false;
}

/* v[r] = what group g adds to the sixteen outputs of one panel, for R rows. */
INLINE void group_values(const row_block *x, uint64_t g, const uint8_t *codes, uint64_t step,
                         const lanes *scale, const bool is4, const uint32_t group, const uint32_t R,
                         const uint32_t P, lanes *v)
{
    (void)step, (void)P; // one panel: P is 1
    __m256i s[ROWS_MAX][2];
    for (uint32_t r = 0; r < R; r++)
        s[r][0] = s[r][1] = _mm256_set1_epi32(is4 ? x->sum[r][g] * -8 : 0);
    if (is4)
        for (uint32_t c = 0; c < group; c += 32) add_int4(x, g * group + c, codes + 8 * c, R, s);
    else
        for (uint32_t c = 0; c < group; c += 4) add_int8(x, g * group + c, codes + 16 * c, R, s);
    for (uint32_t r = 0; r < R; r++)
        for (uint32_t h = 0; h < 2; h++)
            v[r].v[h] = (vf)_mm256_cvtepi32_ps(s[r][h]) * (scale->v[h] * x->d[r][g]);
}

#include "kernels_quant.inc.h"

const coli__kernels coli__kernels_avx2 = COLI_KERNEL_TABLE("avx2");
