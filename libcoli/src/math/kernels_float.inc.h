/* kernels_float.inc.h - the float part of a vector table, written once.
 *
 * A kernel file defines VW (floats in a register: 4, 8 or 16), WIDEN(p) (VW f16 numbers at p as such a
 * register) and ROWS_MAX (activation rows that share one reading of quantised weights), and includes
 * this.  Bits agree with kernels_scalar.c by
 * construction:
 *
 *   - elementwise work is a loop over the very functions of coli/exact.h, which have no branches,
 *     so that the compiler turns them into vector code that does the same to each lane;
 *   - dot products hold exact.h's sixteen lanes in 16/VW registers and end in the same tree;
 *   - sums over keys, taps and state rows run in order, per column: columns never meet, so any
 *     width gives the same sums.
 *
 * Tails are the same operations on fewer lanes: a lane that is left out would have added
 * 0*0 to a sum that is never a negative zero. */
#include "kernels_impl.h"

enum { NV = 16 / VW }; // registers that hold the sixteen lanes

typedef float vf __attribute__((vector_size(4 * VW)));
typedef int32_t vi __attribute__((vector_size(4 * VW)));
typedef float vf_unaligned __attribute__((vector_size(4 * VW), aligned(4), may_alias));
typedef uint16_t vh_unaligned __attribute__((vector_size(2 * VW), aligned(2), may_alias));
typedef uint32_t vu __attribute__((vector_size(4 * VW)));
typedef uint8_t vb __attribute__((vector_size(4 * VW)));
typedef uint8_t vb_unaligned __attribute__((vector_size(4 * VW), aligned(1), may_alias));
typedef float vf8 __attribute__((vector_size(32)));
typedef float vf4 __attribute__((vector_size(16)));

#define INLINE static inline __attribute__((always_inline))

typedef struct lanes {
    vf v[NV];
} lanes;

/* What is fixed for one block of activation rows of a quantised product. */
typedef struct row_block {
    const int8_t *q[ROWS_MAX];
    const float *d[ROWS_MAX];
    const int32_t *sum[ROWS_MAX];
} row_block;

INLINE vf load(const float *p)
{
    return *(const vf_unaligned *)p;
}

INLINE void store(float *p, vf v)
{
    *(vf_unaligned *)p = v;
}

INLINE lanes halves_to_floats(const uint8_t *p) // sixteen f16 numbers
{
    lanes a;
    for (uint32_t i = 0; i < NV; i++) a.v[i] = WIDEN(p + 2 * VW * i);
    return a;
}

INLINE float lanes_tree(lanes a)
{
#if VW == 4
    const vf4 s4 = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
#else
#if VW == 16
    const vf8 s8 = __builtin_shufflevector(a.v[0], a.v[0], 0, 1, 2, 3, 4, 5, 6, 7) +
                   __builtin_shufflevector(a.v[0], a.v[0], 8, 9, 10, 11, 12, 13, 14, 15);
#else
    const vf8 s8 = a.v[0] + a.v[1];
#endif
    const vf4 s4 =
        __builtin_shufflevector(s8, s8, 0, 1, 2, 3) + __builtin_shufflevector(s8, s8, 4, 5, 6, 7);
#endif
    return (s4[0] + s4[2]) + (s4[1] + s4[3]);
}

/* The last n < 16 products, one per lane. */
INLINE void lanes_tail(lanes *acc, const float *a, const float *b, uint32_t n)
{
    float pa[16] = {0}, pb[16] = {0};
    memcpy(pa, a, n * sizeof *a);
    memcpy(pb, b, n * sizeof *b);
    for (uint32_t i = 0; i < NV; i++) acc->v[i] = acc->v[i] + load(pa + VW * i) * load(pb + VW * i);
}

static float dot(const float *a, const float *b, uint32_t n)
{
    lanes acc = {0};
    uint32_t c = 0;
    for (; c + 16 <= n; c += 16)
        for (uint32_t i = 0; i < NV; i++)
            acc.v[i] = acc.v[i] + load(a + c + VW * i) * load(b + c + VW * i);
    if (c < n) lanes_tail(&acc, a + c, b + c, n - c);
    return lanes_tree(acc);
}

static bool quantise(const float *x, uint32_t n_in, uint32_t group, int8_t *q, float *d,
                     int32_t *sum)
{
    bool ok = true;
    uint32_t g = 0;
    if (group == 64)
        for (; n_in >= 64; g++, n_in -= 64, x += 64)
            ok &= coli_quantise_group(x, 64, 64, q + (size_t)g * 64, &d[g], &sum[g]);
    for (uint32_t n; n_in > 0; g++, n_in -= n, x += n) {
        n = n_in < group ? n_in : group;
        ok &= coli_quantise_group(x, n, group, q + (size_t)g * group, &d[g], &sum[g]);
    }
    return ok;
}

static void axpy(float *restrict y, float a, const float *restrict x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) y[i] = y[i] + a * x[i];
}

static void rmsnorm(const float *x, const float *w, float one, uint32_t n, float eps, float *y)
{
    const float mean = dot(x, x, n) * coli__inverse_of(n);
    const float r = coli_rsqrt(mean + eps);
    for (uint32_t i = 0; i < n; i++) y[i] = (x[i] * r) * (one + w[i]);
}

static void l2norm(float *x, uint32_t n, float eps, float scale)
{
    const float r = coli_rsqrt(dot(x, x, n) + eps) * scale;
    for (uint32_t i = 0; i < n; i++) x[i] = x[i] * r;
}

static void silu_mul(const float *gate, const float *up, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++) y[i] = coli_silu(gate[i]) * up[i];
}

static void sigmoid_mul(float *y, const float *gate, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) y[i] = y[i] * coli_sigmoid(gate[i]);
}

INLINE vf larger(vf a, vf b) // a > b ? a : b
{
    const vi take_a = a > b;
    return (vf)((take_a & (vi)a) | (~take_a & (vi)b));
}

static float max_of(const float *x, uint32_t n) // NaN is passed over
{
    const float lowest = coli_from_bits(0xFF800000u);
    vf max = lowest - (vf){0};
    uint32_t i = 0;
    for (; i + VW <= n; i += VW) max = larger(load(x + i), max);
    float result = lowest;
    for (uint32_t l = 0; l < VW; l++) result = max[l] > result ? max[l] : result;
    for (; i < n; i++) result = x[i] > result ? x[i] : result;
    return result;
}

static float softmax_sum(float *x, uint32_t n)
{
    const float max = max_of(x, n);
    for (uint32_t i = 0; i < n; i++) x[i] = coli_exp(x[i] - max);
    lanes acc = {0};
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (uint32_t v = 0; v < NV; v++) acc.v[v] = acc.v[v] + load(x + i + VW * v);
    float tail[16] = {0};
    memcpy(tail, x + i, (n - i) * sizeof *x);
    for (uint32_t v = 0; v < NV; v++) acc.v[v] = acc.v[v] + load(tail + VW * v);
    return lanes_tree(acc);
}

static bool narrow(const float *x, uint32_t n, uint16_t *y)
{
    uint32_t largest = 0;
    for (uint32_t i = 0; i < n; i++) {
        y[i] = coli_f32_to_f16(x[i]);
        const uint32_t magnitude = y[i] & 0x7FFFu;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest < 0x7C00;
}

/* Keys are taken in blocks that stay in the nearest caches while every (row, head) of the call uses
 * them; a query's keys keep their order across blocks. */
enum { KEY_BLOCK = 64 };

/* How many of the keys begin .. begin+KEY_BLOCK-1 row r sees. */
INLINE uint32_t keys_in_block(const coli__attend_args *a, uint32_t r, uint32_t begin)
{
    const uint32_t n_key = a->n_key + r;
    if (n_key <= begin) return 0;
    return n_key - begin < KEY_BLOCK ? n_key - begin : KEY_BLOCK;
}

/* Numbers i .. i+VW-1 of keys or values. */
INLINE vf load_kv(const void *numbers, size_t i, const bool is_f16)
{
    return is_f16 ? WIDEN((const uint16_t *)numbers + i) : load((const float *)numbers + i);
}

INLINE float kv_at(const void *numbers, size_t i, const bool is_f16)
{
    return is_f16 ? coli_f16_to_f32(((const uint16_t *)numbers)[i]) : ((const float *)numbers)[i];
}

/* Keys and values are taken by tiles of keys and heads: each is read, and widened, once for all the
 * heads of a tile.  The sixteen lanes of a sum go by one register after another, so that a tile's
 * sums fit the registers. */
enum { TILE = 4, TILE_HEADS = VW == 8 ? 2 : 4 };

/* Scores of K keys for H heads of one row. */
INLINE void score_tile(const coli__attend_args *a, const float *q, size_t key, const uint32_t K,
                       const uint32_t H, const bool is_f16, float *scores)
{
    const uint32_t whole = a->head_dim / 16 * 16;
    lanes sum[TILE][TILE_HEADS];
    for (uint32_t v = 0; v < NV; v++) {
        vf acc[TILE][TILE_HEADS] = {0};
        for (uint32_t c = VW * v; c < whole; c += 16) {
            vf k[TILE];
            for (uint32_t j = 0; j < K; j++)
                k[j] = load_kv(a->k, (key + j) * a->kv_stride + c, is_f16);
            for (uint32_t h = 0; h < H; h++) {
                const vf vq = load(q + h * a->q_head + c);
                for (uint32_t j = 0; j < K; j++) acc[j][h] = acc[j][h] + vq * k[j];
            }
        }
        for (uint32_t j = 0; j < K; j++)
            for (uint32_t h = 0; h < H; h++) sum[j][h].v[v] = acc[j][h];
    }
    for (uint32_t j = 0; j < K; j++) {
        float tail[16];
        for (uint32_t c = whole; c < a->head_dim; c++)
            tail[c - whole] = kv_at(a->k, (key + j) * a->kv_stride + c, is_f16);
        for (uint32_t h = 0; h < H; h++) {
            if (whole < a->head_dim)
                lanes_tail(&sum[j][h], q + h * a->q_head + whole, tail, a->head_dim - whole);
            scores[h * a->ld_scores + key + j] = lanes_tree(sum[j][h]) * a->scale;
        }
    }
}

INLINE void score_keys(const coli__attend_args *a, const float *q, uint32_t begin, uint32_t n,
                       const uint32_t H, const bool is_f16, float *scores)
{
    uint32_t j = 0;
    for (; j + TILE <= n; j += TILE) score_tile(a, q, begin + j, TILE, H, is_f16, scores);
    for (; j < n; j++) score_tile(a, q, begin + j, 1, H, is_f16, scores);
}

/* Columns c .. c + C*VW-1: out += sum over n keys of score * value, one after the other. */
INLINE void value_tile(const coli__attend_args *a, const float *score, size_t begin, uint32_t n,
                       uint32_t c, const uint32_t C, const uint32_t H, const bool is_f16,
                       float *out)
{
    enum { AHEAD = 16 }; // values fetched before they are needed: a tile takes a part of each
    const size_t last = a->n_key + a->n_row - 2;
    vf acc[TILE][TILE_HEADS];
    for (uint32_t i = 0; i < C; i++)
        for (uint32_t h = 0; h < H; h++) acc[i][h] = load(out + h * a->out_head + c + VW * i);
    for (uint32_t j = 0; j < n; j++) {
        vf v[TILE];
        for (uint32_t i = 0; i < C; i++)
            v[i] = load_kv(a->v, (begin + j) * a->kv_stride + c + VW * i, is_f16);
        const size_t ahead = begin + j + AHEAD < last ? begin + j + AHEAD : last;
        __builtin_prefetch((const uint8_t *)a->v + (ahead * a->kv_stride + c) * (is_f16 ? 2 : 4));
        for (uint32_t h = 0; h < H; h++) {
            const float s = score[h * a->ld_scores + begin + j];
            for (uint32_t i = 0; i < C; i++) acc[i][h] = acc[i][h] + s * v[i];
        }
    }
    for (uint32_t i = 0; i < C; i++)
        for (uint32_t h = 0; h < H; h++) store(out + h * a->out_head + c + VW * i, acc[i][h]);
}

INLINE void add_values(const coli__attend_args *a, const float *score, uint32_t begin, uint32_t n,
                       const uint32_t H, const bool is_f16, float *out)
{
    uint32_t c = 0;
    for (; c + TILE * VW <= a->head_dim; c += TILE * VW)
        value_tile(a, score, begin, n, c, TILE, H, is_f16, out);
    for (; c + VW <= a->head_dim; c += VW) value_tile(a, score, begin, n, c, 1, H, is_f16, out);
    for (; c < a->head_dim; c++)
        for (uint32_t h = 0; h < H; h++)
            for (uint32_t j = begin; j < begin + n; j++)
                out[h * a->out_head + c] =
                    out[h * a->out_head + c] +
                    score[h * a->ld_scores + j] * kv_at(a->v, j * a->kv_stride + c, is_f16);
}

INLINE float *scores_of(const coli__attend_args *a, uint32_t r, uint32_t h)
{
    return a->scores + ((size_t)r * a->n_head + h) * a->ld_scores;
}

INLINE void attend_with(const coli__attend_args *a, const bool is_f16)
{
    const uint32_t n_key_max = a->n_key + a->n_row - 1;
    float inverse[COLI_ATTEND_MAX];
    for (uint32_t j = 0; j < n_key_max; j += KEY_BLOCK)
        for (uint32_t r = 0; r < a->n_row; r++) {
            const uint32_t n = keys_in_block(a, r, j);
            const float *q = a->q + r * a->q_row;
            uint32_t h = 0;
            for (; h + TILE_HEADS <= a->n_head; h += TILE_HEADS)
                score_keys(a, q + h * a->q_head, j, n, TILE_HEADS, is_f16, scores_of(a, r, h));
            for (; h < a->n_head; h++)
                score_keys(a, q + h * a->q_head, j, n, 1, is_f16, scores_of(a, r, h));
        }
    for (uint32_t i = 0; i < a->n_row * a->n_head; i++) {
        const uint32_t r = i / a->n_head, h = i % a->n_head;
        inverse[i] = coli_recip(softmax_sum(scores_of(a, r, h), a->n_key + r));
        memset(a->out + r * a->out_row + h * a->out_head, 0, a->head_dim * sizeof *a->out);
    }
    for (uint32_t j = 0; j < n_key_max; j += KEY_BLOCK)
        for (uint32_t r = 0; r < a->n_row; r++) {
            const uint32_t n = keys_in_block(a, r, j);
            float *out = a->out + r * a->out_row;
            uint32_t h = 0;
            for (; h + TILE_HEADS <= a->n_head; h += TILE_HEADS)
                add_values(a, scores_of(a, r, h), j, n, TILE_HEADS, is_f16, out + h * a->out_head);
            for (; h < a->n_head; h++)
                add_values(a, scores_of(a, r, h), j, n, 1, is_f16, out + h * a->out_head);
        }
    for (uint32_t i = 0; i < a->n_row * a->n_head; i++) {
        float *out = a->out + i / a->n_head * a->out_row + i % a->n_head * a->out_head;
        for (uint32_t c = 0; c < a->head_dim; c++) out[c] = out[c] * inverse[i];
    }
}

static void attend(const coli__attend_args *a)
{
    if (a->kv_f16)
        attend_with(a, true);
    else
        attend_with(a, false);
}

static void conv_silu(const float *x, const float *w, uint32_t n_tap, uint32_t n_channel,
                      float *state, float *y)
{
    enum { BLOCK = 64 };
    const size_t n = n_channel;
    for (size_t c0 = 0; c0 < n; c0 += BLOCK) {
        const size_t m = n - c0 < BLOCK ? n - c0 : BLOCK;
        float sum[BLOCK] = {0};
        float *old = state + c0;
        const float *tap = w + c0;
        for (uint32_t t = 0; t + 1 < n_tap; t++, old += n, tap += n) {
            for (size_t c = 0; c < m; c++) sum[c] = sum[c] + old[c] * tap[c];
            memcpy(old, t + 2 < n_tap ? old + n : x + c0, m * sizeof *x);
        }
        for (size_t c = 0; c < m; c++) sum[c] = sum[c] + x[c0 + c] * tap[c];
        for (size_t c = 0; c < m; c++) y[c0 + c] = coli_silu(sum[c]);
    }
}

/* Columns 0 .. B*VW-1 of a DeltaNet head; see kernels_scalar.c. */
INLINE void deltanet_block(float *S, uint32_t d_k, size_t d_v, const float *q, const float *k,
                           float kq, const float *v, float decay, float beta, const uint32_t B,
                           float *o)
{
    vf by_k[4] = {0}, by_q[4] = {0};
    for (uint32_t i = 0; i < d_k; i++)
        for (uint32_t b = 0; b < B; b++) {
            const vf s = load(S + i * d_v + VW * b);
            by_k[b] = by_k[b] + k[i] * s;
            by_q[b] = by_q[b] + q[i] * s;
        }
    for (uint32_t b = 0; b < B; b++) {
        by_k[b] = beta * (load(v + VW * b) - decay * by_k[b]); // delta
        store(o + VW * b, decay * by_q[b] + kq * by_k[b]);
    }
    for (uint32_t i = 0; i < d_k; i++)
        for (uint32_t b = 0; b < B; b++) {
            float *s = S + i * d_v + VW * b;
            store(s, decay * load(s) + k[i] * by_k[b]);
        }
}

static void deltanet(float *S, uint32_t d_k, uint32_t d_v, const float *q, const float *k,
                     const float *v, float decay, float beta, float *scratch_d_v, float *o)
{
    (void)scratch_d_v; // the columns in work fit the registers
    const float kq = dot(k, q, d_k);
    uint32_t j = 0;
    for (; j + 4 * VW <= d_v; j += 4 * VW)
        deltanet_block(S + j, d_k, d_v, q, k, kq, v + j, decay, beta, 4, o + j);
    for (; j + VW <= d_v; j += VW)
        deltanet_block(S + j, d_k, d_v, q, k, kq, v + j, decay, beta, 1, o + j);
    for (; j < d_v; j++) {
        float by_k = 0.0f, by_q = 0.0f;
        for (uint32_t i = 0; i < d_k; i++) {
            by_k = by_k + k[i] * S[(size_t)i * d_v + j];
            by_q = by_q + q[i] * S[(size_t)i * d_v + j];
        }
        const float delta = beta * (v[j] - decay * by_k);
        o[j] = decay * by_q + kq * delta;
        for (uint32_t i = 0; i < d_k; i++) {
            float *s = &S[(size_t)i * d_v + j];
            *s = decay * *s + k[i] * delta;
        }
    }
}

/* ---- float matrices ------------------------------------------------------------------------- */

INLINE uint32_t source_row(const coli__matmul_args *a, uint32_t i)
{
    return a->index ? a->index[i] : i;
}

INLINE vf load_weight(const uint8_t *p, const bool is_bf16)
{
    if (!is_bf16) return *(const vf_unaligned *)p;
    return (vf)(__builtin_convertvector(*(const vh_unaligned *)p, vu) << 16);
}

/* R activation rows times O rows of the matrix, padding included. */
INLINE void float_block(const coli__matmul_args *a, uint64_t row_bytes, uint32_t o0, uint32_t i0,
                        const bool is_bf16, const uint32_t O, const uint32_t R)
{
    const uint32_t elem = is_bf16 ? 2 : 4;
    const uint8_t *w = a->w->data + o0 * row_bytes;
    const float *x[4];
    for (uint32_t r = 0; r < R; r++) x[r] = a->xf + source_row(a, i0 + r) * a->ldx;
    lanes acc[4][4] = {0};
    for (uint64_t c = 0; c < row_bytes / elem; c += 16)
        for (uint32_t v = 0; v < NV; v++) {
            vf vx[4];
            for (uint32_t r = 0; r < R; r++) vx[r] = load(x[r] + c + VW * v);
            for (uint32_t o = 0; o < O; o++) {
                const vf vw = load_weight(w + o * row_bytes + (c + VW * v) * elem, is_bf16);
                for (uint32_t r = 0; r < R; r++) acc[o][r].v[v] = acc[o][r].v[v] + vw * vx[r];
            }
        }
    for (uint32_t r = 0; r < R; r++) {
        float *y = a->y + (i0 + r) * a->ldy + (o0 - COLI_PANEL * a->panel_begin);
        for (uint32_t o = 0; o < O; o++) y[o] = lanes_tree(acc[o][r]);
    }
}

INLINE void matmul_float(const coli__matmul_args *a, const bool is_bf16)
{
    enum { O_MANY = VW == 16 ? 4 : 2, R_MANY = VW == 16 ? 4 : 2 }; // what the registers hold
    const uint64_t row_bytes = coli__float_row_bytes(a->w->fmt, a->w->n_in);
    const uint64_t end = (uint64_t)a->panel_end * COLI_PANEL;
    const uint32_t n_out = a->w->n_out < end ? a->w->n_out : (uint32_t)end;
    uint32_t o = a->panel_begin * COLI_PANEL;
    for (; o + 4 <= n_out; o += 4) {
        uint32_t i = 0;
        for (; i + R_MANY <= a->n_row; i += R_MANY)
            for (uint32_t p = 0; p < 4; p += O_MANY)
                float_block(a, row_bytes, o + p, i, is_bf16, O_MANY, R_MANY);
        for (; i < a->n_row; i++) float_block(a, row_bytes, o, i, is_bf16, 4, 1);
    }
    for (; o < n_out; o++)
        for (uint32_t i = 0; i < a->n_row; i++) float_block(a, row_bytes, o, i, is_bf16, 1, 1);
}
