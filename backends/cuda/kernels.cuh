/* kernels.cuh - what runs on the device, and how it is started.
 *
 * Everything is made of products of quantised rows and matrices:
 *
 *     a group    gate and up: products of the rows that came from the host
 *                activate: h = silu(gate) * up, quantised again
 *                down: products of those
 *                join, where the host asked for it
 *     matmul     products
 *
 * A product is cut into tiles: one matrix and the few rows that a kernel multiplies with it at once.
 * All tiles of one kind start together, whatever experts and matrices they belong to. */
#ifndef COLI_CUDA_KERNELS_CUH
#define COLI_CUDA_KERNELS_CUH

#include "platform.cuh"

/* A matrix in device memory, laid out as coli/backend.h says. */
typedef struct coli__cuda_matrix {
    const uint8_t *panels;
    uint64_t panel_bytes;
    uint32_t n_out, n_group;
    uint32_t group_bytes, code_offset, first_group;
    uint32_t per_row, scale_bytes;
    float unit; /* what a stored scale is multiplied with; see product.cu */
} coli__cuda_matrix;

coli__cuda_matrix coli__cuda_matrix_of(const coli_bk_matrix *m, const uint8_t *block);

/* n_row rows through one matrix.  Pointers are the device's. */
typedef struct coli__cuda_tile {
    coli__cuda_matrix w;
    const int8_t *q;     /* (*, n_group * group) */
    const float *d;      /* (*, n_group) */
    const uint32_t *row; /* (n_row) rows of q and d; NULL: 0, 1, 2, ... */
    float *y;            /* row i at y + i * ld */
    uint64_t ld;
    uint32_t n_row;
} coli__cuda_tile;

/* The kinds of tiles: four numbers of rows times two widths of codes times two groups. */
enum { COLI__CUDA_N_KIND = 16 };

/* The kind of the next tile of a matrix with this layout when n_left > 0 rows are left, and how many of
 * them it takes. */
uint32_t coli__cuda_tile_kind(const coli_bk_layout *l, uint64_t n_left, uint32_t *n_row);

/* Start n_tile tiles of one kind, matrices of up to n_out rows. */
cudaError_t coli__cuda_product(uint32_t kind, const coli__cuda_tile *tiles, uint64_t n_tile,
                               uint32_t n_out, cudaStream_t stream);

/* silu(gate) * up for n_row rows of n_column, quantised in groups. */
typedef struct coli__cuda_activation {
    uint32_t n_row, n_column, group, n_group;
    const float *gate, *up; /* (n_row, n_column) */
    int8_t *q;              /* (n_row, n_group * group) */
    float *d;               /* (n_row, n_group) */
    uint8_t *flag;          /* (n_row) 1: a number left its range */
} coli__cuda_activation;

cudaError_t coli__cuda_activate(const coli__cuda_activation *a, cudaStream_t stream);

/* Rows of pairs to rows of the result: first those of `plain`, as they are, then the joins. */
typedef struct coli__cuda_joining {
    uint32_t n_plain, n_join, n_column;
    const uint32_t *plain; /* (n_plain) pairs */
    const coli_bk_join *joins;
    const uint32_t *term_pair;
    const float *term_weight;
    const float *pair_y;      /* (n_pair, n_column) */
    const uint8_t *pair_flag; /* (n_pair) */
    float *y;                 /* (n_plain + n_join, n_column) */
    uint8_t *flag;            /* (n_plain + n_join) */
} coli__cuda_joining;

cudaError_t coli__cuda_join(const coli__cuda_joining *j, cudaStream_t stream);

/* Run every kernel once, on nothing, because CUDA may load each only when it is first used, which then
 * takes time and memory.  *out = 1 when the device rounds as coli/exact.h wants it.
 *
 *     out      (COLI__CUDA_PROBE_BYTES) on the device, behind the first number zeros */
enum { COLI__CUDA_PROBE_BYTES = 1024 };
cudaError_t coli__cuda_probe(uint8_t *out, cudaStream_t stream);

/* Start a kernel whose only argument is *args. */
template <class T>
cudaError_t coli__cuda_start(void (*kernel)(T), dim3 grid, uint32_t n_thread, const T *args,
                             cudaStream_t stream)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(n_thread);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, *args);
}

#endif
