/* platform.cuh - CUDA, or what stands in for it, and the few instructions that C++ has no words for.
 *
 * Under nvcc this is the CUDA runtime.  Any other C++ compiler gets emu/cuda_emu.h and runs the same
 * sources on the processor; that is how they are tested.  Each instruction below has a twin there that
 * says in C++ what it does. */
#ifndef COLI_CUDA_PLATFORM_CUH
#define COLI_CUDA_PLATFORM_CUH

#define COLI_EXACT_FN static __host__ __device__ inline

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#define CUDA_IS_REAL 1
#else
#include "emu/cuda_emu.h"
#define CUDA_IS_REAL 0
#endif

#include "coli/backend.h"
#include "coli/exact.h"

#if CUDA_IS_REAL

#define CUDA_NAME  "cuda"
#define CUDA_BUILD "CUDA " CUDA_TEXT(__CUDACC_VER_MAJOR__) "." CUDA_TEXT(__CUDACC_VER_MINOR__)

/* Whether the options of this backend are understood: there are none. */
static inline bool cuda_options(const char *text)
{
    return *text == '\0';
}

/* Exact for every number, denormal ones too. */
static __device__ inline float f16_to_f32(uint16_t h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

/* c += A B for the int8 matrices A (16, 32) and B (32, 8), spread over a warp.  With lane = 4 y + x:
 *
 *     a[0] a[2]   row y of A, columns 4x..4x+3 and 16+4x..16+4x+3
 *     a[1] a[3]   row y+8, the same columns
 *     b[0] b[1]   column y of B, the rows with those numbers
 *     c[0] c[1]   row y of C, columns 2x and 2x+1
 *     c[2] c[3]   row y+8, the same columns
 *
 * Before sm_80 four multiplications of half the height and half the length do the same.  Volatile: the
 * whole warp must come here, so it may not be moved behind a branch. */
static __device__ inline void mma_16x8x32(int c[4], const unsigned a[4], const unsigned b[2])
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    for (int y = 0; y < 2; y++)
        for (int k = 0; k < 2; k++)
            asm volatile(
                "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                : "+r"(c[2 * y]), "+r"(c[2 * y + 1])
                : "r"(a[2 * k + y]), "r"(b[k]));
#endif
}

#else

#define CUDA_NAME  "cudaemu"
#define CUDA_BUILD "CUDA emulated, " __VERSION__

static inline bool cuda_options(const char *text)
{
    return cuda_emu_configure(text);
}

static inline float f16_to_f32(uint16_t h)
{
    return coli_f16_to_f32(h);
}

static inline void mma_16x8x32(int c[4], const unsigned a[4], const unsigned b[2])
{
    struct lane {
        unsigned a[4], b[2];
    } mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, left, right;
    const uint8_t *all = cuda_emu_meet(0xFFFFFFFFu, &mine, sizeof mine, "mma_16x8x32");
    const unsigned x = cuda_emu_lane() % 4, y = cuda_emu_lane() / 4;
    for (unsigned i = 0; i < 4; i++)     // c[i]: row y + 8 (i / 2), column 2x + i % 2
        for (unsigned k = 0; k < 4; k++) // the lanes that hold that row, and those of the column
        {
            memcpy(&left, all + 32 * (4 * y + k), sizeof left);
            memcpy(&right, all + 32 * (4 * (2 * x + i % 2) + k), sizeof right);
            for (unsigned half = 0; half < 2; half++)
                c[i] = __dp4a(static_cast<int>(left.a[i / 2 + 2 * half]),
                              static_cast<int>(right.b[half]), c[i]);
        }
}

#endif

#define CUDA_TEXT_(x) #x
#define CUDA_TEXT(x)  CUDA_TEXT_(x)

#endif
