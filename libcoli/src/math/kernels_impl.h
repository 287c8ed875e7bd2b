/* kernels_impl.h - what the kernel files share: where things are inside a matrix, and the tables.
 */
#ifndef COLI_MATH_KERNELS_IMPL_H
#define COLI_MATH_KERNELS_IMPL_H

#include "coli/exact.h"
#include "kernels.h"

/* Distances inside a quantised matrix (the drawing is in matrix.h), in bytes. */
typedef struct coli__layout {
    uint64_t n_group;
    uint64_t scale_bytes; // sixteen scales
    uint64_t code_bytes;  // sixteen rows of one group
    uint64_t code_offset; // from a group's start to its codes (0 when the panel holds the scales)
    uint64_t first_group; // from the panel's start to its first group
    uint64_t group_bytes; // from one group to the next
    uint64_t panel_bytes;
} coli__layout;

static inline coli__layout coli__layout_of(coli__wfmt fmt, uint32_t n_in)
{
    coli__layout l;
    l.n_group = ((uint64_t)n_in + fmt.group - 1) / fmt.group;
    l.scale_bytes = COLI_PANEL * (fmt.scale_f16 ? 2u : 4u);
    l.code_bytes = (uint64_t)fmt.group * COLI_PANEL / (fmt.type == COLI_W_I4 ? 2u : 1u);
    l.code_offset = fmt.per_row ? 0 : l.scale_bytes;
    l.first_group = fmt.per_row ? l.scale_bytes : 0;
    l.group_bytes = l.code_offset + l.code_bytes;
    l.panel_bytes = l.first_group + l.n_group * l.group_bytes;
    return l;
}

/* Bytes of one row of a float matrix. */
static inline uint64_t coli__float_row_bytes(coli__wfmt fmt, uint32_t n_in)
{
    return (((uint64_t)n_in + 15) / 16 * 16) * (fmt.type == COLI_W_BF16 ? 2u : 4u);
}

/* Scale of row r of sixteen, with the matrix's power of two. */
static inline float coli__scale_at(coli__wfmt fmt, const uint8_t *scales, uint32_t r, float pow2)
{
    if (fmt.scale_f16) {
        uint16_t h;
        memcpy(&h, scales + 2 * r, sizeof h);
        return coli_f16_to_f32(h) * pow2;
    }
    float f;
    memcpy(&f, scales + 4 * r, sizeof f);
    return f;
}

/* Weight of row r and column c (within the group) as an integer. */
static inline int32_t coli__code_at(coli__wfmt fmt, const uint8_t *codes, uint32_t r, uint32_t c)
{
    if (fmt.type == COLI_W_I8) return (int32_t)codes[c / 4 * 64 + 4 * r + c % 4] - 128;
    const uint8_t byte = codes[c / 8 * 64 + 4 * r + c % 4];
    return (c / 4 % 2 == 0 ? byte & 15 : byte >> 4) - 8;
}

/* 1/n, correctly rounded: a division of the host, whose like devices never need. */
static inline float coli__inverse_of(uint32_t n)
{
    return 1.0f / (float)n;
}

/* A table of the functions that each kernel file defines under these names. */
#define COLI_KERNEL_TABLE(isa) COLI_KERNEL_TABLE_WITH(isa, matmul)
#define COLI_KERNEL_TABLE_WITH(isa, its_matmul)                                                    \
    {                                                                                              \
        .name = isa, .quantise = quantise, .matmul = its_matmul, .dot = dot, .axpy = axpy,         \
        .rmsnorm = rmsnorm, .l2norm = l2norm, .silu_mul = silu_mul, .sigmoid_mul = sigmoid_mul,    \
        .softmax_sum = softmax_sum, .narrow = narrow, .attend = attend, .conv_silu = conv_silu,    \
        .deltanet = deltanet                                                                       \
    }

extern const coli__kernels coli__kernels_scalar;
#if defined(__x86_64__)
extern const coli__kernels coli__kernels_avx2;
extern const coli__kernels coli__kernels_avxvnni;
extern const coli__kernels coli__kernels_avx512;
extern const coli__kernels coli__kernels_amx; // with COLI_AMX, as the next two
#elif defined(__aarch64__)
extern const coli__kernels coli__kernels_neon;
extern const coli__kernels coli__kernels_i8mm;
#endif

/* kernels_amx.c: the function that this table has of its own, and what it can do at best. */
void coli__amx_matmul(const coli__matmul_args *a);
uint64_t coli__amx_peak(uint32_t n_round, uint64_t *sink); // as coli__peak.run
enum { COLI__AMX_MIN_ROWS = 8 };                           // it multiplies no fewer by tiles

#endif
