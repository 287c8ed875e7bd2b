/* product.cu - products of quantised rows with matrices; the heart of the plugin.
 *
 * Per row and output:  y = tree of v_g,   v_g = float(s_g) * (scale_g * d_g),   s_g an exact integer.
 *
 * Codes of 4 bits are not widened to their values but to 16 times these, which takes two operations
 * for four of them: the low nibbles shifted up, the high ones where they are, and the top bit turned,
 * since they are stored with 8 added.  The sums are then 16 s, and `unit`, the power of two that a
 * stored scale is multiplied with, is 16 times smaller: nothing but exponents changes, far from either
 * end of their range (docs/arithmetic.md), so v has the same bits.  Codes of 8 bits need only the top
 * bit turned.
 *
 * Sums start at the integer whose bits are the float 1.5 * 2^23.  As |16 s| < 2^20, the sum is then the
 * bits of the float 1.5 * 2^23 + s, and one subtraction converts it, exactly.
 *
 * Two kernels:
 *
 *   few    1 to 4 rows.  Memory is the limit, so everything serves reading.  A block has one panel, 16
 *          rows of the matrix; a half-warp reads the 64 bytes of a chunk at once, lane r those of row r,
 *          and multiplies with dp4a.  Eight half-warps share the columns: each sums a run of groups that
 *          is a subtree, and the eight sums are the upper end of the tree.
 *
 *              groups   0 .. 3     4 .. 7     8 .. 11     ...     28 .. 31
 *              half-warp  0          1          2                    7
 *                         \__________/          \_________ ...  ______/     lane ^ 16, then shared memory
 *
 *   many   up to 16 rows on tensor cores.  A warp has one panel, and each k-step of 32 columns is one
 *          mma_16x8x32 per 8 rows.  The order inside an integer sum is free, so columns and rows are
 *          dealt out to the lanes such that all loads are 8 bytes wide: with lane = 4 y + x, it holds
 *          rows 2y and 2y+1 of the panel (as rows y and y+8 of the instruction), and of the k-step the
 *          columns 8x..8x+7, where a chunk of 4-bit codes has them side by side.
 *
 * Trees.  A run of up to 16 groups is summed in registers: a partial sum per level, as in coli_tree.
 * Longer rows are several runs (many) or rounds of eight runs (few), whose sums go through a coli_tree
 * in memory; that is rare and short.  Zeros added on the way, for groups that are not there, change
 * at most the sign of a zero, and the last sum, which starts with +0, settles that. */
#include "kernels.cuh"

enum {
    PANEL = COLI_BK_PANEL,
    N_LEVEL = 5,           /* of a run: partial sums of 1, 2, 4, 8, 16 groups */
    N_PART = 8,            /* half-warps of a block that share the columns */
    N_WARP = 4,            /* of a block, in both kernels */
    SUM_ZERO = 0x4B400000, /* the bits of 1.5 * 2^23 */
};

static const uint32_t RUN = 1u << (N_LEVEL - 1); /* groups */

/* ---- numbers --------------------------------------------------------------------------------- */

static __device__ inline float group_value(int sum, float scale, float d)
{
    return __fmul_rn(__fsub_rn(__int_as_float(sum), 0x1.8p23f), __fmul_rn(scale, d));
}

static __device__ inline float scale_at(const coli__cuda_matrix *w, const uint8_t *scales,
                                        uint32_t r)
{
    const float stored = w->scale_bytes == 2
                             ? f16_to_f32(reinterpret_cast<const uint16_t *>(scales)[r])
                             : reinterpret_cast<const float *>(scales)[r];
    return __fmul_rn(stored, w->unit);
}

/* Put v, number n of its run, into the partial sums.  Levels are a recursion, not a loop, because an
 * array stays in registers only while all its indices are constants. */
template <int LEVEL = 0>
static __device__ inline void run_add(float level[N_LEVEL], uint32_t n, float v)
{
    if (!(n >> LEVEL & 1))
        level[LEVEL] = v;
    else if constexpr (LEVEL + 1 < N_LEVEL)
        run_add<LEVEL + 1>(level, n, __fadd_rn(level[LEVEL], v));
}

/* The sum of the n numbers that were added. */
static __device__ inline float run_sum(const float level[N_LEVEL], uint32_t n)
{
    float sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < N_LEVEL; i++)
        if (n >> i & 1) sum = __fadd_rn(level[i], sum);
    return sum;
}

/* coli_tree_sum, without looking at the levels that are empty. */
static __device__ inline float tree_sum(const coli_tree *tree)
{
    float sum = 0.0f;
    for (uint32_t n = tree->n; n != 0; n &= n - 1)
        sum = __fadd_rn(tree->level[__ffs(static_cast<int>(n)) - 1], sum);
    return sum;
}

/* Codes of four columns as signed bytes; of 4-bit codes 16 times their value. */
static __device__ inline unsigned low_codes(unsigned word)
{
    return (word << 4 & 0xF0F0F0F0u) ^ 0x80808080u;
}
static __device__ inline unsigned high_codes(unsigned word)
{
    return (word & 0xF0F0F0F0u) ^ 0x80808080u;
}
static __device__ inline unsigned byte_codes(unsigned word)
{
    return word ^ 0x80808080u;
}

static __device__ inline uint32_t row_of(const coli__cuda_tile *t, uint32_t i)
{
    i = i < t->n_row ? i : t->n_row - 1; // rows beyond the last are computed and thrown away
    return t->row ? t->row[i] : i;
}

static __device__ inline uint32_t n_panel(const coli__cuda_tile *t)
{
    return (t->w.n_out + PANEL - 1) / PANEL;
}

/* ---- few rows -------------------------------------------------------------------------------- */

/* What one lane needs of a group: its row's codes and scale. */
template <int BITS, int GROUP> struct lane_group {
    enum { N_WORD = GROUP * BITS / 32 };
    unsigned word[N_WORD];
    float scale;

    __device__ void load(const coli__cuda_matrix *w, const uint8_t *panel, uint32_t g, uint32_t r)
    {
        const uint8_t *const at =
            panel + w->first_group + static_cast<uint64_t>(g) * w->group_bytes;
        const unsigned *const codes = reinterpret_cast<const unsigned *>(at + w->code_offset) + r;
#pragma unroll
        for (int c = 0; c < N_WORD; c++) word[c] = __ldcs(codes + PANEL * c);
        scale = scale_at(w, w->per_row ? panel : at, r);
    }

    /* Sum over the group with the GROUP activations at q. */
    __device__ int sum(const int8_t *q) const
    {
        const int4 *const q4 = reinterpret_cast<const int4 *>(q);
        int s = SUM_ZERO;
#pragma unroll
        for (int c = 0; c < GROUP / 16; c++) {
            const int4 x = q4[c];
            if constexpr (BITS == 4) {
                s = __dp4a(static_cast<int>(low_codes(word[2 * c])), x.x, s);
                s = __dp4a(static_cast<int>(high_codes(word[2 * c])), x.y, s);
                s = __dp4a(static_cast<int>(low_codes(word[2 * c + 1])), x.z, s);
                s = __dp4a(static_cast<int>(high_codes(word[2 * c + 1])), x.w, s);
            } else {
                s = __dp4a(static_cast<int>(byte_codes(word[4 * c])), x.x, s);
                s = __dp4a(static_cast<int>(byte_codes(word[4 * c + 1])), x.y, s);
                s = __dp4a(static_cast<int>(byte_codes(word[4 * c + 2])), x.z, s);
                s = __dp4a(static_cast<int>(byte_codes(word[4 * c + 3])), x.w, s);
            }
        }
        return s;
    }
};

template <int BITS, int GROUP, int ROWS>
static __global__ void __launch_bounds__(32 * N_WARP) product_few(const coli__cuda_tile *tiles)
{
    const coli__cuda_tile *const t = tiles + blockIdx.y;
    if (blockIdx.x >= n_panel(t)) return;
    const coli__cuda_matrix w = t->w;
    const uint8_t *const panel = w.panels + blockIdx.x * w.panel_bytes;
    const uint32_t r = threadIdx.x % PANEL, part = threadIdx.x / PANEL;

    const int8_t *q[ROWS];
    const float *d[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const uint64_t row = row_of(t, i);
        q[i] = t->q + row * w.n_group * GROUP;
        d[i] = t->d + row * w.n_group;
    }

    __shared__ float part_sum[N_WARP][ROWS][PANEL];
    coli_tree tree; // of output r of row `part`
    tree.n = 0;
    for (uint32_t first = 0; first < w.n_group; first += RUN * N_PART) {
        const uint32_t n_left = w.n_group - first;
        uint32_t n_each = 1; // groups of a part: a power of two, so that its sum is a subtree
        while (n_each < RUN && n_each * N_PART < n_left) n_each *= 2;
        const uint32_t begin = part * n_each < n_left ? part * n_each : n_left,
                       end = begin + n_each < n_left ? begin + n_each : n_left;

        float level[ROWS][N_LEVEL];
        lane_group<BITS, GROUP> now, next;
        if (begin < end) next.load(&w, panel, first + begin, r);
        for (uint32_t g = begin; g < end; g++) {
            now = next;
            if (g + 1 < end) next.load(&w, panel, first + g + 1, r); // on its way while we compute
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                const int s = now.sum(q[i] + static_cast<uint64_t>(first + g) * GROUP);
                run_add(level[i], g - begin, group_value(s, now.scale, d[i][first + g]));
            }
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float sum = run_sum(level[i], end - begin);
            sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, PANEL));
            if (part % 2 == 0) part_sum[part / 2][i][r] = sum;
        }
        __syncthreads();
        if (part < ROWS)
            coli_tree_add(&tree, __fadd_rn(__fadd_rn(part_sum[0][part][r], part_sum[1][part][r]),
                                           __fadd_rn(part_sum[2][part][r], part_sum[3][part][r])));
        __syncthreads();
    }
    const uint32_t o = blockIdx.x * PANEL + r;
    if (part < ROWS && part < t->n_row && o < w.n_out) t->y[part * t->ld + o] = tree_sum(&tree);
}

/* ---- many rows ------------------------------------------------------------------------------- */

/* The codes of k-step `step` of a group, as the A of mma_16x8x32. */
template <int BITS>
static __device__ inline void load_a(unsigned a[4], const uint8_t *codes, int step, uint32_t x,
                                     uint32_t y)
{
    if constexpr (BITS == 4) {
        const uint2 w =
            __ldcs(reinterpret_cast<const uint2 *>(codes + 64 * (4 * step + x) + 8 * y));
        a[0] = low_codes(w.x);
        a[1] = low_codes(w.y);
        a[2] = high_codes(w.x);
        a[3] = high_codes(w.y);
    } else {
        const uint8_t *const at = codes + 64 * (8 * step + 2 * x) + 8 * y;
        const uint2 left = __ldcs(reinterpret_cast<const uint2 *>(at)),
                    right = __ldcs(reinterpret_cast<const uint2 *>(at + 64));
        a[0] = byte_codes(left.x);
        a[1] = byte_codes(left.y);
        a[2] = byte_codes(right.x);
        a[3] = byte_codes(right.y);
    }
}

/* EIGHTS: eights of rows. */
template <int BITS, int GROUP, int EIGHTS>
static __global__ void __launch_bounds__(32 * N_WARP) product_many(const coli__cuda_tile *tiles)
{
    const coli__cuda_tile *const t = tiles + blockIdx.y;
    const uint32_t p = blockIdx.x * N_WARP + threadIdx.x / 32;
    if (p >= n_panel(t)) return;
    const coli__cuda_matrix w = t->w;
    const uint8_t *const panel = w.panels + p * w.panel_bytes;
    const uint32_t x = threadIdx.x % 4, y = threadIdx.x % 32 / 4;

    const int8_t *q[EIGHTS];   // of row y of each eight: where this lane's part of B is
    const float *d[EIGHTS][2]; // of rows 2x and 2x+1: where its part of C is
#pragma unroll
    for (int e = 0; e < EIGHTS; e++) {
        q[e] = t->q + static_cast<uint64_t>(row_of(t, 8 * e + y)) * w.n_group * GROUP + 8 * x;
        for (int i = 0; i < 2; i++)
            d[e][i] = t->d + static_cast<uint64_t>(row_of(t, 8 * e + 2 * x + i)) * w.n_group;
    }

    coli_tree tree[EIGHTS][4];
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
        for (int i = 0; i < 4; i++) tree[e][i].n = 0;

    for (uint32_t first = 0; first < w.n_group; first += RUN) {
        const uint32_t n = w.n_group - first < RUN ? w.n_group - first : RUN;
        float level[EIGHTS][4][N_LEVEL];
        for (uint32_t k = 0; k < n; k++) {
            const uint32_t g = first + k;
            const uint8_t *const at =
                panel + w.first_group + static_cast<uint64_t>(g) * w.group_bytes;
            int sum[EIGHTS][4];
#pragma unroll
            for (int e = 0; e < EIGHTS; e++)
                for (int i = 0; i < 4; i++) sum[e][i] = SUM_ZERO;
#pragma unroll
            for (int step = 0; step < GROUP / 32; step++) {
                unsigned a[4];
                load_a<BITS>(a, at + w.code_offset, step, x, y);
#pragma unroll
                for (int e = 0; e < EIGHTS; e++) {
                    const uint2 b = *reinterpret_cast<const uint2 *>(
                        q[e] + static_cast<uint64_t>(g) * GROUP + 32 * step);
                    const unsigned b2[2] = {b.x, b.y};
                    mma_16x8x32(sum[e], a, b2);
                }
            }
            const uint8_t *const scales = w.per_row ? panel : at;
            const float scale[2] = {scale_at(&w, scales, 2 * y), scale_at(&w, scales, 2 * y + 1)};
#pragma unroll
            for (int e = 0; e < EIGHTS; e++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    run_add(level[e][i], k, group_value(sum[e][i], scale[i / 2], d[e][i % 2][g]));
        }
#pragma unroll
        for (int e = 0; e < EIGHTS; e++)
#pragma unroll
            for (int i = 0; i < 4; i++) coli_tree_add(&tree[e][i], run_sum(level[e][i], n));
    }
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t o = p * PANEL + 2 * y + i / 2, row = 8 * e + 2 * x + i % 2;
            if (o < w.n_out && row < t->n_row) t->y[row * t->ld + o] = tree_sum(&tree[e][i]);
        }
}

/* ---- starting them --------------------------------------------------------------------------- */

typedef void product_kernel(const coli__cuda_tile *);

/* clang-format off */
#define KERNELS(bits, group)                                                                       \
    product_few<bits, group, 1>, product_few<bits, group, 4>,                                      \
    product_many<bits, group, 1>, product_many<bits, group, 2>
/* clang-format on */
static product_kernel *const kernels[COLI__CUDA_N_KIND] = {KERNELS(4, 32), KERNELS(4, 64),
                                                           KERNELS(8, 32), KERNELS(8, 64)};
#undef KERNELS
static const uint32_t kernel_rows[4] = {1, 4, 8, 16}; // that each of the four multiplies at once

uint32_t coli__cuda_tile_kind(const coli_bk_layout *l, uint64_t n_left, uint32_t *n_row)
{
    uint32_t size = 0;
    while (size < 3 && kernel_rows[size] < n_left) size++;
    *n_row = n_left < kernel_rows[size] ? static_cast<uint32_t>(n_left) : kernel_rows[size];
    return 8 * (l->bits == 8) + 4 * (l->group == 64) + size;
}

cudaError_t coli__cuda_product(uint32_t kind, const coli__cuda_tile *tiles, uint64_t n_tile,
                               uint32_t n_out, cudaStream_t stream)
{
    const uint32_t n = (n_out + PANEL - 1) / PANEL,
                   n_block = kind % 4 < 2 ? n : (n + N_WARP - 1) / N_WARP;
    const uint32_t limit = 65535; // of a grid's height
    for (uint64_t first = 0; first < n_tile; first += limit) {
        const dim3 grid(n_block,
                        n_tile - first < limit ? static_cast<uint32_t>(n_tile - first) : limit);
        const coli__cuda_tile *const args = tiles + first;
        const cudaError_t error = coli__cuda_start(kernels[kind], grid, 32 * N_WARP, &args, stream);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

coli__cuda_matrix coli__cuda_matrix_of(const coli_bk_matrix *m, const uint8_t *block)
{
    const coli_bk_layout l = coli_bk_layout_of(m->format, m->n_in);
    coli__cuda_matrix w;
    w.panels = block + m->offset;
    w.panel_bytes = l.panel_bytes;
    w.n_out = m->n_out;
    w.n_group = l.n_group;
    w.group_bytes = l.group_bytes;
    w.code_offset = l.code_offset;
    w.first_group = l.first_group;
    w.per_row = l.per_row;
    w.scale_bytes = l.scale_bytes;
    w.unit = coli_pow2(l.bits == 4 ? m->scale_exp - 4 : m->scale_exp);
    return w;
}
