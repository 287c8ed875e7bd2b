/* kernels.h - the arithmetic of a forward pass behind one table per instruction set.
 *
 * Every table computes the same bits as the plain C in coli/exact.h (docs/arithmetic.md says how).
 * No function allocates, locks or depends on other rows than the one it writes. */
#ifndef COLI_MATH_KERNELS_H
#define COLI_MATH_KERNELS_H

#include "matrix.h"

/* Activation rows in the forms that matrices ask for.  A row has n_in numbers. */
typedef struct coli__qrows { // quantised rows for one group size
    int8_t *q;               // (n_tok, n_group * group)  zero-padded
    float *d;                // (n_tok, n_group)  scale of each group
    int32_t *sum;            // (n_tok, n_group)  sum of the group's q
    uint32_t group, n_group;
} coli__qrows;

typedef struct coli__matmul_args {
    const coli__mat *w;
    const coli__qrows *xq; // quantised w: rows with w's group
    const float *xf;       // float w: (n_tok, ldx), ldx a multiple of 16, zero-padded beyond n_in
    size_t ldx;
    const uint32_t *index;           // (n_row) which activation rows; NULL: 0..n_row-1
    uint32_t n_row;                  // activation rows to multiply; 0 is fine
    uint32_t panel_begin, panel_end; // panels of 16 outputs
    const uint8_t
        *next; // panels like these that are multiplied soon after, fetched meanwhile; or NULL
    float *y;  // y[i*ldy + o - 16*panel_begin] for o < min(16*panel_end, n_out)
    size_t ldy;
} coli__matmul_args;

enum { COLI_ATTEND_MAX = 16 }; // (row, head) pairs in one call

typedef struct coli__attend_args {
    uint32_t n_row, n_head; // their product is at most COLI_ATTEND_MAX
    uint32_t head_dim;
    uint32_t n_key; // of row 0, at least 1
    const float *q; // head h of row r at q + r*q_row + h*q_head: head_dim numbers
    size_t q_row, q_head;
    const void *k, *v; // key and value j at number j*kv_stride
    size_t kv_stride;
    bool kv_f16; // their numbers are f16 and widened, which is exact; else f32
    float scale;
    float *scores;    // scratch: (n_row * n_head, ld_scores)
    size_t ld_scores; // at least n_key + n_row - 1
    float *out;       // like q, by out_row and out_head
    size_t out_row, out_head;
} coli__attend_args;

typedef struct coli__kernels {
    const char *name; // one of coli__kernels_names

    /* Quantise one row of n_in numbers into n_group groups (coli/exact.h).  False when a number is
     * not finite or its magnitude is 2^40 or more; the outputs are then zero for that group. */
    bool (*quantise)(const float *x, uint32_t n_in, uint32_t group, int8_t *q, float *d,
                     int32_t *sum);

    /* Products of weights in any format of matrix.h. */
    void (*matmul)(const coli__matmul_args *args);

    /* Sum of a[i]*b[i]: 16 lanes, then their tree. */
    float (*dot)(const float *a, const float *b, uint32_t n);
    /* y[i] = y[i] + a * x[i], two roundings. */
    void (*axpy)(float *y, float a, const float *x, uint32_t n);

    /* y = x / sqrt(mean(x^2) + eps) * (one + w): one is 1 for zero-centred weights, 0 for plain. */
    void (*rmsnorm)(const float *x, const float *w, float one, uint32_t n, float eps, float *y);
    /* x / sqrt(sum(x^2) + eps) * scale, in place. */
    void (*l2norm)(float *x, uint32_t n, float eps, float scale);
    /* y[i] = silu(gate[i]) * up[i]. */
    void (*silu_mul)(const float *gate, const float *up, uint32_t n, float *y);
    /* y[i] = y[i] * sigmoid(gate[i]). */
    void (*sigmoid_mul)(float *y, const float *gate, uint32_t n);
    /* x[i] = exp(x[i] - max x), returns their sum (16 lanes, then the tree).  n >= 1. */
    float (*softmax_sum)(float *x, uint32_t n);

    /* y[i] = x[i] as f16, nearest, ties to even.  False when one is NaN or 65520 or more. */
    bool (*narrow)(const float *x, uint32_t n, uint16_t *y);

    /* Causal attention of the query heads that share one key head, over consecutive rows: row r
     * sees keys 0 .. n_key+r-1.  Each (row, head) is softmax(scale * q.k) v with its keys in order,
     * whatever is computed beside it; sharing a call only shares the reading of keys and values. */
    void (*attend)(const coli__attend_args *args);

    /* Causal depthwise convolution and SiLU of one token over n_channel channels.
     *   state (n_tap-1, n_channel) the previous raw inputs, oldest first; shifted by this call
     *   w     (n_tap, n_channel) tap-major; the last tap multiplies x
     *   y     (n_channel); sum over taps in order, then silu */
    void (*conv_silu)(const float *x, const float *w, uint32_t n_tap, uint32_t n_channel,
                      float *state, float *y);

    /* One token of one gated DeltaNet head; S (d_k, d_v) is updated in place.
     *   q, k normed (q scaled); decay = exp(g); o (d_v) */
    void (*deltanet)(float *S, uint32_t d_k, uint32_t d_v, const float *q, const float *k,
                     const float *v, float decay, float beta, float *scratch_d_v, float *o);
} coli__kernels;

/* The names of all tables, of every processor, NULL-ended. */
extern const char *const coli__kernels_names[];

/* The best table for this processor (isa NULL), or the one of that name.  E_UNSUPPORTED names the
 * missing processor feature; E_INVALID lists the names. */
coli_status coli__kernels_get(const char *isa, const coli__kernels **out);

#endif
