/* kernels_scalar.c - the arithmetic in plain C: what every other table must equal bit for bit.
 *
 * Clarity comes first, but whole forward passes run on this in tests, so a panel's codes are
 * unpacked once for up to ROW_BLOCK activation rows. */
#include "kernels_impl.h"

enum { ROW_BLOCK = 8, GROUP_MAX = 64 };

static bool quantise(const float *x, uint32_t n_in, uint32_t group, int8_t *q, float *d,
                     int32_t *sum)
{
    bool ok = true;
    for (uint32_t g = 0, n; n_in > 0; g++, n_in -= n, x += n) {
        n = n_in < group ? n_in : group;
        ok &= coli_quantise_group(x, n, group, q + (size_t)g * group, &d[g], &sum[g]);
    }
    return ok;
}

/* ---- matrices ------------------------------------------------------------------------------- */

static uint32_t source_row(const coli__matmul_args *a, uint32_t i)
{
    return a->index ? a->index[i] : i;
}

static int32_t dot_i8(const int8_t *q, const int8_t *w, uint32_t n)
{
    int32_t s = 0;
    for (uint32_t i = 0; i < n; i++) s += q[i] * w[i];
    return s;
}

/* Codes of row r of a panel in one group as integers. */
static void unpack_row(coli__wfmt fmt, const uint8_t *codes, uint32_t r, int8_t *w)
{
    codes += 4 * r;
    if (fmt.type == COLI_W_I8) {
        for (uint32_t c = 0; c < fmt.group; c += 4, codes += 64)
            for (uint32_t j = 0; j < 4; j++) w[c + j] = (int8_t)(codes[j] - 128);
        return;
    }
    for (uint32_t c = 0; c < fmt.group; c += 8, codes += 64)
        for (uint32_t j = 0; j < 4; j++) {
            w[c + j] = (int8_t)((codes[j] & 15) - 8);
            w[c + j + 4] = (int8_t)((codes[j] >> 4) - 8);
        }
}

/* Outputs of one panel for activation rows i0..i0+n_row-1 of the call; n_row <= ROW_BLOCK. */
static void panel_quant(const coli__matmul_args *a, const coli__layout *l, uint32_t panel,
                        uint32_t i0, uint32_t n_row)
{
    const coli__wfmt fmt = a->w->fmt;
    const float pow2 = coli_pow2(a->w->scale_exp);
    const uint8_t *base = a->w->data + panel * l->panel_bytes;
    const uint32_t first = panel * COLI_PANEL;
    const uint32_t n_out = a->w->n_out - first < COLI_PANEL ? a->w->n_out - first : COLI_PANEL;
    coli_tree tree[ROW_BLOCK][COLI_PANEL];
    for (uint32_t i = 0; i < n_row; i++)
        for (uint32_t r = 0; r < n_out; r++) tree[i][r].n = 0;

    for (uint64_t g = 0; g < l->n_group; g++) {
        const uint8_t *group = base + l->first_group + g * l->group_bytes;
        for (uint32_t r = 0; r < n_out; r++) {
            int8_t w[GROUP_MAX];
            unpack_row(fmt, group + l->code_offset, r, w);
            const float scale = coli__scale_at(fmt, fmt.per_row ? base : group, r, pow2);
            for (uint32_t i = 0; i < n_row; i++) {
                const uint64_t at = source_row(a, i0 + i) * l->n_group + g;
                const int32_t s = dot_i8(a->xq->q + at * fmt.group, w, fmt.group);
                coli_tree_add(&tree[i][r], coli_group_value(s, scale, a->xq->d[at]));
            }
        }
    }
    float *y = a->y + i0 * a->ldy + (first - COLI_PANEL * a->panel_begin);
    for (uint32_t i = 0; i < n_row; i++)
        for (uint32_t r = 0; r < n_out; r++) y[i * a->ldy + r] = coli_tree_sum(&tree[i][r]);
}

/* coli_dot with a row of an f32 or bf16 matrix, padding included (there x is zero). */
static float dot_row(coli__wfmt fmt, const uint8_t *row, const float *x, uint32_t n_in)
{
    float lane[16] = {0};
    for (size_t c = 0; c < n_in; c += 16) {
        float w[16];
        if (fmt.type == COLI_W_F32) {
            memcpy(w, row + 4 * c, sizeof w);
        } else {
            uint16_t h[16];
            memcpy(h, row + 2 * c, sizeof h);
            for (uint32_t i = 0; i < 16; i++) w[i] = coli_bf16_to_f32(h[i]);
        }
        for (uint32_t i = 0; i < 16; i++) lane[i] = lane[i] + w[i] * x[c + i];
    }
    return coli_lanes_sum(lane);
}

static void panel_float(const coli__matmul_args *a, uint32_t panel)
{
    const uint64_t row_bytes = coli__float_row_bytes(a->w->fmt, a->w->n_in);
    const uint32_t first = panel * COLI_PANEL;
    const uint32_t n_out = a->w->n_out - first < COLI_PANEL ? a->w->n_out - first : COLI_PANEL;
    float *y = a->y + (first - COLI_PANEL * a->panel_begin);
    for (uint32_t r = 0; r < n_out; r++)
        for (uint32_t i = 0; i < a->n_row; i++)
            y[i * a->ldy + r] = dot_row(a->w->fmt, a->w->data + (first + r) * row_bytes,
                                        a->xf + source_row(a, i) * a->ldx, a->w->n_in);
}

static void matmul(const coli__matmul_args *a)
{
    if (!coli__wfmt_is_quant(a->w->fmt)) {
        for (uint32_t p = a->panel_begin; p < a->panel_end; p++) panel_float(a, p);
        return;
    }
    const coli__layout l = coli__layout_of(a->w->fmt, a->w->n_in);
    for (uint32_t p = a->panel_begin; p < a->panel_end; p++)
        for (uint32_t i = 0; i < a->n_row; i += ROW_BLOCK)
            panel_quant(a, &l, p, i, a->n_row - i < ROW_BLOCK ? a->n_row - i : ROW_BLOCK);
}

/* ---- vectors -------------------------------------------------------------------------------- */

static float dot(const float *a, const float *b, uint32_t n)
{
    return coli_dot(a, b, n);
}

static void axpy(float *y, float a, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) y[i] = y[i] + a * x[i];
}

static void rmsnorm(const float *x, const float *w, float one, uint32_t n, float eps, float *y)
{
    const float mean = coli_dot(x, x, n) * coli__inverse_of(n);
    const float r = coli_rsqrt(mean + eps);
    for (uint32_t i = 0; i < n; i++) y[i] = (x[i] * r) * (one + w[i]);
}

static void l2norm(float *x, uint32_t n, float eps, float scale)
{
    const float r = coli_rsqrt(coli_dot(x, x, n) + eps) * scale;
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

static float softmax_sum(float *x, uint32_t n)
{
    float max = coli_from_bits(0xFF800000u); // minus infinity
    for (uint32_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    float lane[16] = {0};
    for (uint32_t i = 0; i < n; i++) x[i] = coli_exp(x[i] - max);
    for (uint32_t i = 0; i < n; i++) lane[i % 16] = lane[i % 16] + x[i];
    return coli_lanes_sum(lane);
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

static float number_at(const void *numbers, size_t i, bool is_f16)
{
    return is_f16 ? coli_f16_to_f32(((const uint16_t *)numbers)[i]) : ((const float *)numbers)[i];
}

/* coli_dot with key j. */
static float dot_key(const coli__attend_args *a, const float *q, uint32_t j)
{
    float lane[16] = {0};
    for (uint32_t i = 0; i < a->head_dim; i++)
        lane[i % 16] = lane[i % 16] + q[i] * number_at(a->k, j * a->kv_stride + i, a->kv_f16);
    return coli_lanes_sum(lane);
}

static void attend_one(const coli__attend_args *a, uint32_t r, uint32_t h)
{
    const float *q = a->q + r * a->q_row + h * a->q_head;
    float *scores = a->scores, *out = a->out + r * a->out_row + h * a->out_head;
    const uint32_t n_key = a->n_key + r;
    for (uint32_t j = 0; j < n_key; j++) scores[j] = dot_key(a, q, j) * a->scale;
    const float inverse = coli_recip(softmax_sum(scores, n_key));
    memset(out, 0, a->head_dim * sizeof *out);
    for (uint32_t j = 0; j < n_key; j++)
        for (uint32_t i = 0; i < a->head_dim; i++)
            out[i] = out[i] + scores[j] * number_at(a->v, j * a->kv_stride + i, a->kv_f16);
    for (uint32_t i = 0; i < a->head_dim; i++) out[i] = out[i] * inverse;
}

static void attend(const coli__attend_args *a)
{
    for (uint32_t r = 0; r < a->n_row; r++)
        for (uint32_t h = 0; h < a->n_head; h++) attend_one(a, r, h);
}

static void conv_silu(const float *x, const float *w, uint32_t n_tap, uint32_t n_channel,
                      float *state, float *y)
{
    const size_t n = n_channel, n_old = n_tap - 1;
    memset(y, 0, n * sizeof *y);
    for (size_t t = 0; t < n_old; t++)
        for (size_t c = 0; c < n; c++) y[c] = y[c] + state[t * n + c] * w[t * n + c];
    for (size_t c = 0; c < n; c++) y[c] = coli_silu(y[c] + x[c] * w[n_old * n + c]);
    if (n_old == 0) return;
    memmove(state, state + n, (n_old - 1) * n * sizeof *state);
    memcpy(state + (n_old - 1) * n, x, n * sizeof *state);
}

/* With the state as it was: predicted = decay * S^T k;  delta = beta * (v - predicted);
 * o = decay * S^T q + (k.q) delta;  then S = decay * S + k delta^T.  Sums over d_k in order. */
static void deltanet(float *S, uint32_t d_k, uint32_t d_v, const float *q, const float *k,
                     const float *v, float decay, float beta, float *scratch_d_v, float *o)
{
    float *delta = scratch_d_v; // (d_v) first S^T k, then delta
    memset(delta, 0, d_v * sizeof *delta);
    memset(o, 0, d_v * sizeof *o);
    for (uint32_t i = 0; i < d_k; i++) {
        axpy(delta, k[i], S + (size_t)i * d_v, d_v);
        axpy(o, q[i], S + (size_t)i * d_v, d_v);
    }
    const float kq = coli_dot(k, q, d_k);
    for (uint32_t j = 0; j < d_v; j++) {
        delta[j] = beta * (v[j] - decay * delta[j]);
        o[j] = decay * o[j] + kq * delta[j];
    }
    for (uint32_t i = 0; i < d_k; i++)
        for (uint32_t j = 0; j < d_v; j++) {
            float *s = &S[(size_t)i * d_v + j];
            *s = decay * *s + k[i] * delta[j];
        }
}

const coli__kernels coli__kernels_scalar = COLI_KERNEL_TABLE("scalar");
