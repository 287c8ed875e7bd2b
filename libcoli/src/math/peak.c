/* peak.c - loops of nothing but the multiply instruction.
 *
 * Sixteen (AVX-512) or eight (AVX2) independent sums hide the latency.  The operands pass through
 * an empty asm statement, so that the compiler cannot see that they never change.  The functions
 * name their instruction set themselves: this file is compiled for any processor, and
 * coli__kernels_get has checked that ours has it. */
#include "peak.h"

#include <string.h>

#include "kernels_impl.h"

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx512f,avx512vnni"))) static uint64_t dpbusd(uint32_t n_round,
                                                                     uint64_t *sink)
{
    enum { N_SUM = 16, MACS = 64 };
    __m512i sum[N_SUM], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-2);
    for (int i = 0; i < N_SUM; i++) sum[i] = _mm512_set1_epi32(i);
    for (uint32_t n = 0; n < n_round; n++) {
        __asm__ volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 16
        for (int i = 0; i < N_SUM; i++) sum[i] = _mm512_dpbusd_epi32(sum[i], a, b);
    }
    for (int i = 1; i < N_SUM; i++) sum[0] = _mm512_add_epi32(sum[0], sum[i]);
    *sink += (uint64_t)_mm_cvtsi128_si64(_mm512_castsi512_si128(sum[0]));
    return (uint64_t)n_round * N_SUM * MACS;
}

/* As in kernels_avx2.c for int4: eight products are added in 16 bits, then widened. */
__attribute__((target("avx2"))) static uint64_t maddubs(uint32_t n_round, uint64_t *sink)
{
    enum { N_SUM = 4, N_PRODUCT = 8, MACS = 32 };
    const __m256i one = _mm256_set1_epi16(1);
    __m256i sum[N_SUM], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(-2);
    for (int i = 0; i < N_SUM; i++) sum[i] = _mm256_set1_epi32(i);
    for (uint32_t n = 0; n < n_round; n++) {
        __m256i narrow[N_SUM];
        for (int i = 0; i < N_SUM; i++) narrow[i] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int k = 0; k < N_PRODUCT; k++) {
#pragma GCC unroll 4
            for (int i = 0; i < N_SUM; i++) {
                __asm__ volatile("" : "+x"(a), "+x"(b));
                narrow[i] = _mm256_add_epi16(narrow[i], _mm256_maddubs_epi16(a, b));
            }
        }
        for (int i = 0; i < N_SUM; i++)
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(narrow[i], one));
    }
    for (int i = 1; i < N_SUM; i++) sum[0] = _mm256_add_epi32(sum[0], sum[i]);
    *sink += (uint64_t)_mm_cvtsi128_si64(_mm256_castsi256_si128(sum[0]));
    return (uint64_t)n_round * N_SUM * N_PRODUCT * MACS;
}

static const coli__peak peaks[] = {
#ifdef COLI_AMX
    {"amx", "tdpbssd on tiles", coli__amx_peak},
#endif
    {"avx512", "vpdpbusd on registers", dpbusd},
    {"avx2", "vpmaddubsw on registers", maddubs},
};
enum { N_PEAK = sizeof peaks / sizeof peaks[0] };

const coli__peak *coli__peak_of(const coli__kernels *kernels)
{
    for (int i = 0; i < N_PEAK; i++)
        if (strcmp(peaks[i].isa, kernels->name) == 0) return &peaks[i];
    return NULL;
}

#else

const coli__peak *coli__peak_of(const coli__kernels *kernels)
{
    (void)kernels;
    return NULL;
}

#endif
