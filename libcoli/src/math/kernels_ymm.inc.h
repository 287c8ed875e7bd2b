/* kernels_ymm.inc.h - what the tables with registers of 256 bits share. */
#include <immintrin.h>

#define VW         8
#define WIDEN(p)   ((vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p))))
#define ROWS_MAX   4 // so that their sums stay in registers
#define PANELS_MAX 1
#include "kernels_float.inc.h"

INLINE __m256i four_columns(const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, sizeof four);
    return _mm256_set1_epi32(four);
}
