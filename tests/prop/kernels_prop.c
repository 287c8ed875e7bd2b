/* kernels_prop.c - every kernel table of this processor gives the bits of coli/exact.h, over random
 * shapes, formats and values.  The expected numbers are computed here from the drawing in
 * matrix.h and exact.h alone. */
#include "t.h"

#include "coli/exact.h"
#include "libcoli/src/base/alloc.h"
#include "libcoli/src/math/kernels.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum { N_TABLE = 8 };
static const coli__kernels *tables[N_TABLE];
static uint32_t n_table;

static int find_tables(void **state)
{
    (void)state;
    for (const char *const *name = coli__kernels_names; *name; name++) {
        assert_true(n_table < N_TABLE);
        const coli_status status = coli__kernels_get(*name, &tables[n_table]);
        if (status == COLI_OK)
            n_table++;
        else
            print_message("%s\n", coli_error_message());
    }
    return n_table == 0;
}

static void equal_floats(const char *table, const char *what, const float *got,
                         const float *expected, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (coli_bits(got[i]) != coli_bits(expected[i])) {
            print_error("%s: %s[%zu] of %zu: %a against %a\n", table, what, i, n, (double)got[i],
                        (double)expected[i]);
            T_WHERE_;
            _fail(__FILE__, __LINE__);
        }
}

/* ---- numbers -------------------------------------------------------------------------------- */

/* Activations of one world share a character, because bugs live at the edges of each. */
typedef enum kind { NORMAL, EXTREME, ZERO, TINY, HUGE_, DENORMAL, MIXED, N_KIND } kind;

static float any_float(t_rng *rng, kind k)
{
    const float sign = t_below(rng, 2) ? 1.0f : -1.0f;
    switch (k) {
    case NORMAL:
        return t_normal(rng);
    case EXTREME:
        return sign * 3.0f; // every q is +-127
    case ZERO:
        return sign * 0.0f;
    case TINY:
        return sign * 0x1p-56f * (float)(0.9 + 0.2 * t_unit(rng)); // about the zero group's edge
    case HUGE_:
        return sign * 0x1.fffffep39f * (float)(1.0 - 1e-6 * t_unit(rng));
    case DENORMAL:
        return sign * coli_from_bits(t_below(rng, 0x01000000));
    case MIXED:
        return any_float(rng, (kind)t_below(rng, MIXED));
    case N_KIND:
        break;
    }
    return 0.0f;
}

static void fill(t_rng *rng, float *x, size_t n, kind k)
{
    for (size_t i = 0; i < n; i++) x[i] = any_float(rng, k);
}

/* ---- matrices ------------------------------------------------------------------------------- */

static coli__wfmt any_format(t_rng *rng)
{
    coli__wfmt fmt;
    do {
        fmt = (coli__wfmt){.type = (coli__wtype)t_below(rng, COLI_W_N)};
        if (fmt.type == COLI_W_I4 || fmt.type == COLI_W_I8) {
            fmt.group = t_below(rng, 2) ? 64 : 32;
            fmt.per_row = t_below(rng, 3) == 0;
            fmt.scale_f16 = t_below(rng, 2);
        }
    } while (!coli__wfmt_valid(fmt));
    return fmt;
}

/* Any codes at all, the ones that our own packer never writes included; scales valid, of either sign,
 * or zero, of either sign too. */
static void any_codes(t_rng *rng, const coli__mat *m, uint8_t *data, uint64_t n_bytes)
{
    const uint32_t style = t_below(rng, 4);
    for (uint64_t i = 0; i < n_bytes; i++)
        data[i] = style == 0 ? 0x00 : style == 1 ? 0xFF : (uint8_t)t_u64(rng);
    const uint64_t scale_bytes = m->fmt.scale_f16 ? 32 : 64;
    const uint64_t code_bytes = m->fmt.group * (m->fmt.type == COLI_W_I4 ? 8u : 16u);
    const uint64_t n_group = (m->n_in + m->fmt.group - 1) / m->fmt.group;
    const uint64_t n_panel = (m->n_out + 15) / 16;
    const uint64_t step = scale_bytes + (m->fmt.per_row ? n_group : 1) * code_bytes;
    for (uint8_t *p = data; p < data + n_panel * (m->fmt.per_row ? 1 : n_group) * step; p += step)
        for (uint32_t r = 0; r < 16; r++) {
            const uint32_t size = t_below(rng, 8) ? 0x0400 + t_below(rng, 0x7800) : 0;
            const uint16_t h = (uint16_t)(size | (t_below(rng, 2) ? 0x8000u : 0));
            const float f = coli_f16_to_f32(h) * 0x1p-8f;
            if (m->fmt.scale_f16)
                memcpy(p + 2 * r, &h, 2);
            else
                memcpy(p + 4 * r, &f, 4);
        }
}

static void any_matrix(t_rng *rng, coli__mat *m)
{
    uint64_t n_bytes;
    T_TRUE(coli__mat_bytes(m->fmt, m->n_out, m->n_in, &n_bytes, NULL));
    uint8_t *data = coli__alloc64(n_bytes);
    m->data = data;
    if (m->fmt.type == COLI_W_I4 || m->fmt.type == COLI_W_I8) {
        m->scale_exp = m->fmt.scale_f16 ? (int32_t)t_below(rng, 41) - 30 : 0;
        any_codes(rng, m, data, n_bytes);
        return;
    }
    const size_t row = (m->n_in + 15u) / 16 * 16;
    for (uint32_t o = 0; o < m->n_out; o++)
        for (uint32_t c = 0; c < m->n_in; c++) {
            const uint32_t u = coli_bits(any_float(rng, t_below(rng, 50) ? NORMAL : DENORMAL));
            const uint16_t h = (uint16_t)(u >> 16);
            if (m->fmt.type == COLI_W_F32)
                memcpy(data + 4 * (o * row + c), &u, 4);
            else
                memcpy(data + 2 * (o * row + c), &h, 2);
        }
}

static float expected_float(const coli__mat *m, uint32_t o, const float *x)
{
    float *w = coli__calloc(m->n_in, sizeof *w);
    coli__mat_row(m, o, w);
    const float y = coli_dot(w, x, m->n_in);
    coli__free(w);
    return y;
}

/* One output, from the drawing in matrix.h. */
static float expected_quant(const coli__mat *m, uint32_t o, const int8_t *q, const float *d)
{
    const bool is4 = m->fmt.type == COLI_W_I4;
    const uint32_t group = m->fmt.group, n_group = (m->n_in + group - 1) / group, r = o % 16;
    const uint32_t scale_bytes = m->fmt.scale_f16 ? 32 : 64, code_bytes = group * (is4 ? 8 : 16);
    const size_t panel_bytes =
        (m->fmt.per_row ? 1 : n_group) * (size_t)scale_bytes + n_group * (size_t)code_bytes;
    const uint8_t *p = m->data + o / 16 * panel_bytes;
    coli_tree tree = {0};
    float scale = 0.0f;
    for (uint32_t g = 0; g < n_group; g++) {
        if (g == 0 || !m->fmt.per_row) {
            uint16_t h;
            memcpy(&h, p + 2 * r, 2);
            memcpy(&scale, p + 4 * r, 4);
            if (m->fmt.scale_f16) scale = coli_f16_to_f32(h) * coli_pow2(m->scale_exp);
            p += scale_bytes;
        }
        int32_t s = 0;
        for (uint32_t c = 0; c < group; c++) {
            const int32_t byte = p[is4 ? c / 8 * 64 + 4 * r + c % 4 : c / 4 * 64 + 4 * r + c % 4];
            const int32_t code = is4 ? (c % 8 < 4 ? byte % 16 : byte / 16) - 8 : byte - 128;
            s += code * q[(size_t)g * group + c];
        }
        p += code_bytes;
        coli_tree_add(&tree, coli_group_value(s, scale, d[g]));
    }
    return coli_tree_sum(&tree);
}

T_PROP(matmul_is_exact, 400)
{
    t_rng *r = &rng;
    coli__mat m = {.fmt = any_format(r), .n_out = t_range(r, 1, 70)};
    m.n_in = t_below(r, 4) ? t_range(r, 1, 400) : t_range(r, 400, 2100);
    any_matrix(r, &m);

    const uint32_t n_tok = t_range(r, 1, 20), n_row = t_below(r, 23);
    const uint32_t group = m.fmt.group ? m.fmt.group : 16;
    const uint32_t n_group = (m.n_in + group - 1) / group, ld = n_group * group;
    const kind k = (kind)t_below(r, N_KIND);
    float *x = coli__calloc((size_t)n_tok * ld, sizeof *x);
    int8_t *q = coli__calloc((size_t)n_tok * ld, 1);
    float *d = coli__calloc((size_t)n_tok * n_group, sizeof *d);
    int32_t *sum = coli__calloc((size_t)n_tok * n_group, sizeof *sum);
    for (uint32_t t = 0; t < n_tok; t++) {
        fill(r, x + (size_t)t * ld, m.n_in, k);
        for (uint32_t g = 0; m.fmt.group && g < n_group; g++)
            T_TRUE(coli_quantise_group(
                x + (size_t)t * ld + g * group, g + 1 < n_group ? group : m.n_in - g * group, group,
                q + (size_t)t * ld + g * group, &d[t * n_group + g], &sum[t * n_group + g]));
    }
    uint32_t index[23];
    for (uint32_t i = 0; i < 23; i++) index[i] = t_below(r, n_tok);
    const bool gather = n_row > n_tok || t_below(r, 2);

    const uint32_t n_panel = (m.n_out + 15) / 16, begin = t_below(r, n_panel);
    const uint32_t end = t_range(r, begin, n_panel), first = 16 * begin;
    const uint32_t last = 16 * end < m.n_out ? 16 * end : m.n_out;
    const size_t ldy = (last > first ? last - first : 0) + t_below(r, 3);
    const size_t n_y = ldy * n_row + 16;
    float *y = coli__calloc(n_y, sizeof *y), *expected = coli__calloc(n_y, sizeof *y);
    for (size_t i = 0; i < n_y; i++) expected[i] = 12345.0f; // what must stay untouched
    for (uint32_t i = 0; i < n_row; i++)
        for (uint32_t o = first; o < last; o++) {
            const size_t t = gather ? index[i] : i;
            expected[i * ldy + o - first] = m.fmt.group
                                                ? expected_quant(&m, o, q + t * ld, d + t * n_group)
                                                : expected_float(&m, o, x + t * ld);
        }
    for (uint32_t i = 0; i < n_table; i++) {
        for (size_t j = 0; j < n_y; j++) y[j] = 12345.0f;
        const coli__qrows xq = {q, d, sum, group, n_group};
        tables[i]->matmul(&(coli__matmul_args){.w = &m,
                                               .xq = &xq,
                                               .xf = x,
                                               .ldx = ld,
                                               .index = gather ? index : NULL,
                                               .n_row = n_row,
                                               .panel_begin = begin,
                                               .panel_end = end,
                                               .y = y,
                                               .ldy = ldy});
        char name[32], what[80];
        coli__wfmt_name(m.fmt, name);
        snprintf(what, sizeof what, "%s (%u, %u) y", name, m.n_out, m.n_in);
        equal_floats(tables[i]->name, what, y, expected, n_y);
    }
    coli__free_aligned((void *)(uintptr_t)m.data);
    coli__free(x);
    coli__free(q);
    coli__free(d);
    coli__free(sum);
    coli__free(y);
    coli__free(expected);
}

/* The largest sums there are: every code at an end of its range, every activation +-127. */
T_TEST(matmul_never_saturates)
{
    T_BEGIN;
    for (uint32_t is4 = 0; is4 < 2; is4++)
        for (uint32_t code = 0; code < 2; code++)
            for (int32_t value = -127; value <= 127; value += 254) {
                coli__mat m = {.n_out = 16, .n_in = 64};
                m.fmt = (coli__wfmt){is4 ? COLI_W_I4 : COLI_W_I8, 64, false, false};
                uint64_t n_bytes;
                T_TRUE(coli__mat_bytes(m.fmt, 16, 64, &n_bytes, NULL));
                uint8_t *data = coli__alloc64(n_bytes);
                memset(data, code ? 0xFF : 0x00, n_bytes);
                for (uint32_t r = 0; r < 16; r++) memcpy(data + 4 * r, &(float){1.0f}, 4);
                m.data = data;
                int8_t q[64];
                memset(q, value, sizeof q);
                float d = 1.0f, y[16];
                int32_t sum = 64 * value;
                const coli__qrows xq = {q, &d, &sum, 64, 1};
                const int32_t w = is4 ? (code ? 7 : -8) : (code ? 127 : -128);
                for (uint32_t i = 0; i < n_table; i++) {
                    tables[i]->matmul(&(coli__matmul_args){
                        .w = &m, .xq = &xq, .n_row = 1, .panel_end = 1, .y = y, .ldy = 16});
                    for (uint32_t r = 0; r < 16; r++) T_EQ(y[r], 64 * w * value);
                }
                coli__free_aligned(data);
            }
}

/* ---- quantising ----------------------------------------------------------------------------- */

T_PROP(quantise_is_exact, 2000)
{
    enum { N = 400 };
    const uint32_t n = t_range(&rng, 1, N), group = t_below(&rng, 2) ? 64 : 32;
    const uint32_t n_group = (n + group - 1) / group;
    float x[N];
    fill(&rng, x, n, (kind)t_below(&rng, N_KIND));
    if (t_below(&rng, 3) == 0) { // one that does not fit, or just does
        static const uint32_t edges[] = {0x53800000, 0x537FFFFF, 0x7F800000, 0x7FC00000,
                                         0xFF800000, 0xD3800000, 0x23800000, 0x237FFFFF};
        x[t_below(&rng, n)] = coli_from_bits(edges[t_below(&rng, 8)]);
    }
    int8_t q[2][N + 64];
    float d[2][N];
    int32_t sum[2][N];
    memset(q, 99, sizeof q);
    bool ok = true;
    for (uint32_t g = 0; g < n_group; g++)
        ok &= coli_quantise_group(x + g * group, g + 1 < n_group ? group : n - g * group, group,
                                  q[0] + g * group, &d[0][g], &sum[0][g]);
    for (uint32_t i = 0; i < n_table; i++) {
        T_EQ(tables[i]->quantise(x, n, group, q[1], d[1], sum[1]), ok);
        T_MEM(q[1], q[0], sizeof q[0]);
        T_MEM(d[1], d[0], n_group * sizeof *d[0]);
        T_MEM(sum[1], sum[0], n_group * sizeof *sum[0]);
    }
}

/* ---- float functions ------------------------------------------------------------------------ */

enum { N = 300 };

static kind calm_kind(t_rng *rng) // squares must not overflow
{
    static const kind kinds[] = {NORMAL, ZERO, TINY, DENORMAL};
    return kinds[t_below(rng, 4)];
}

T_PROP(vectors_are_exact, 2000)
{
    const uint32_t n = t_range(&rng, 1, N);
    float a[N], b[N], y0[N], y[N], expected[N];
    fill(&rng, a, n, calm_kind(&rng));
    fill(&rng, b, n, calm_kind(&rng));
    fill(&rng, y0, n, calm_kind(&rng));
    if (t_below(&rng, 2))
        for (uint32_t i = 0; i < n; i++) a[i] *= 40.0f; // the far ends of exp
    for (uint32_t i = 0; i < n_table; i++) {
        const coli__kernels *t = tables[i];
        *y = t->dot(a, b, n);
        *expected = coli_dot(a, b, n);
        equal_floats(t->name, "dot", y, expected, 1);

        memcpy(y, y0, sizeof y);
        t->axpy(y, b[0], a, n);
        for (uint32_t j = 0; j < n; j++) expected[j] = y0[j] + b[0] * a[j];
        equal_floats(t->name, "axpy", y, expected, n);

        const float one = n % 2 ? 1.0f : 0.0f;
        t->rmsnorm(a, b, one, n, 1e-6f, y);
        float r = coli_rsqrt(coli_dot(a, a, n) * (1.0f / (float)n) + 1e-6f);
        for (uint32_t j = 0; j < n; j++) expected[j] = (a[j] * r) * (one + b[j]);
        equal_floats(t->name, "rmsnorm", y, expected, n);

        memcpy(y, a, sizeof y);
        t->l2norm(y, n, 1e-6f, 0.25f);
        r = coli_rsqrt(coli_dot(a, a, n) + 1e-6f) * 0.25f;
        for (uint32_t j = 0; j < n; j++) expected[j] = a[j] * r;
        equal_floats(t->name, "l2norm", y, expected, n);

        t->silu_mul(a, b, n, y);
        for (uint32_t j = 0; j < n; j++) expected[j] = coli_silu(a[j]) * b[j];
        equal_floats(t->name, "silu_mul", y, expected, n);

        memcpy(y, y0, sizeof y);
        t->sigmoid_mul(y, a, n);
        for (uint32_t j = 0; j < n; j++) expected[j] = y0[j] * coli_sigmoid(a[j]);
        equal_floats(t->name, "sigmoid_mul", y, expected, n);

        memcpy(y, a, sizeof y);
        const float sum = t->softmax_sum(y, n);
        float max = a[0], lane[16] = {0};
        for (uint32_t j = 1; j < n; j++) max = a[j] > max ? a[j] : max;
        for (uint32_t j = 0; j < n; j++) lane[j % 16] += expected[j] = coli_exp(a[j] - max);
        equal_floats(t->name, "softmax", y, expected, n);
        T_EQ(coli_bits(sum), coli_bits(coli_lanes_sum(lane)));
    }
}

/* The vector forms of exp and its family are made by the compiler: look at every exponent and sign
 * with many mantissas, and at numbers that are none. */
T_TEST(every_kind_of_float)
{
    T_BEGIN;
    enum { STEP = 9973, CHUNK = 4096 };
    static float x[CHUNK], y[CHUNK], one[CHUNK];
    for (uint32_t i = 0; i < CHUNK; i++) one[i] = 1.0f;
    for (uint64_t first = 0; first < 1ull << 32; first += (uint64_t)STEP * CHUNK) {
        for (uint32_t i = 0; i < CHUNK; i++)
            x[i] = coli_from_bits((uint32_t)(first + (uint64_t)i * STEP));
        for (uint32_t k = 0; k < n_table; k++) {
            memcpy(y, one, sizeof y);
            tables[k]->sigmoid_mul(y, x, CHUNK);
            for (uint32_t i = 0; i < CHUNK; i++) {
                const float expected = coli_sigmoid(x[i]);
                if (expected == expected)
                    T_EQ(coli_bits(y[i]), coli_bits(expected));
                else
                    T_TRUE(y[i] != y[i]);
            }
        }
    }
}

/* The mode in which a host may have left the processor. */
static void flush_denormals(bool flush)
{
#if defined(__x86_64__)
    _mm_setcsr(flush ? _mm_getcsr() | 0x8040u : _mm_getcsr() & ~0x8040u); // FTZ, DAZ
#elif defined(__aarch64__)
    const uint64_t mode = flush ? 1u << 24 | 1u << 19 : 0; // FZ, FZ16
    __asm__ volatile("msr fpcr, %0" ::"r"(mode));
#endif
}

/* One (row, head) as kernels.h defines it. */
static void attend_plainly(const float *q, const float *k, const float *v, size_t stride,
                           uint32_t n_key, uint32_t dim, float scale, float *score, float *out)
{
    float lane[16] = {0}, max = 0.0f;
    for (uint32_t j = 0; j < n_key; j++) {
        score[j] = coli_dot(q, k + j * stride, dim) * scale;
        max = j == 0 || score[j] > max ? score[j] : max;
    }
    for (uint32_t j = 0; j < n_key; j++) lane[j % 16] += score[j] = coli_exp(score[j] - max);
    const float inverse = coli_recip(coli_lanes_sum(lane));
    for (uint32_t c = 0; c < dim; c++) {
        float sum = 0.0f;
        for (uint32_t j = 0; j < n_key; j++) sum = sum + score[j] * v[j * stride + c];
        out[c] = sum * inverse;
    }
}

/* Keys or values of which f16 holds every number, and their halves. */
static void halve(float *x, uint16_t *half, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        half[i] = coli_f32_to_f16(x[i]);
        x[i] = coli_f16_to_f32(half[i]);
    }
}

T_PROP(attend_is_exact, 300)
{
    enum { KEYS = 200, DIM = 272, MOST = COLI_ATTEND_MAX };
    static uint16_t k16[KEYS * (DIM + 4)], v16[KEYS * (DIM + 4)];
    const uint32_t n_head = t_range(&rng, 1, MOST), n_row = t_range(&rng, 1, MOST / n_head);
    const uint32_t n_key = t_range(&rng, 1, KEYS - MOST), dim = t_range(&rng, 1, DIM);
    static float q[MOST * 2 * DIM], k[KEYS * (DIM + 4)], v[KEYS * (DIM + 4)];
    static float scores[MOST * KEYS], expected[MOST * DIM], out[MOST * DIM];
    coli__attend_args a = {.n_row = n_row,
                           .n_head = n_head,
                           .head_dim = dim,
                           .n_key = n_key,
                           .q = q,
                           .q_head = 2 * dim,
                           .q_row = 2 * (size_t)dim * n_head,
                           .k = k,
                           .v = v,
                           .kv_stride = dim + t_below(&rng, 4),
                           .scale = 0.5f,
                           .scores = scores,
                           .ld_scores = n_key + n_row - 1 + t_below(&rng, 3),
                           .out = out,
                           .out_head = dim,
                           .out_row = (size_t)dim * n_head};
    const uint32_t n_pair = n_row * n_head;
    fill(&rng, q, 2 * dim * n_pair, NORMAL);
    fill(&rng, k, (n_key + n_row) * a.kv_stride, NORMAL);
    fill(&rng, v, (n_key + n_row) * a.kv_stride, calm_kind(&rng));
    if (t_below(&rng, 2)) {
        halve(k, k16, (n_key + n_row) * (uint32_t)a.kv_stride);
        halve(v, v16, (n_key + n_row) * (uint32_t)a.kv_stride);
        a.k = k16;
        a.v = v16;
        a.kv_f16 = true;
    }
    for (uint32_t i = 0; i < n_pair; i++)
        attend_plainly(q + (size_t)i * 2 * dim, k, v, a.kv_stride, n_key + i / n_head, dim, a.scale,
                       scores, expected + (size_t)i * dim);
    for (uint32_t i = 0; i < n_table; i++) {
        memset(out, 0xFF, sizeof out);
        tables[i]->attend(&a);
        equal_floats(tables[i]->name, a.kv_f16 ? "attend f16" : "attend", out, expected,
                     (size_t)dim * n_pair);
    }
}

/* Keys and values that are denormal in f16 are ordinary numbers in f32: no mode of the processor may
 * flush them while they are widened. */
T_TEST(denormal_halves_survive_any_mode)
{
    T_BEGIN;
    enum { DIM = 40, KEYS = 3 };
    float q[DIM], out[DIM], scores[KEYS];
    uint16_t kv[KEYS * DIM];
    for (uint32_t c = 0; c < DIM; c++) q[c] = 1024.0f;
    for (uint32_t i = 0; i < KEYS * DIM; i++) kv[i] = (uint16_t)(i % 7 == 0 ? 0x8001 + i : 1 + i);
    const coli__attend_args a = {.n_row = 1,
                                 .n_head = 1,
                                 .head_dim = DIM,
                                 .n_key = KEYS,
                                 .q = q,
                                 .k = kv,
                                 .v = kv,
                                 .kv_stride = DIM,
                                 .kv_f16 = true,
                                 .scale = 1.0f,
                                 .scores = scores,
                                 .ld_scores = KEYS,
                                 .out = out};
    float k32[KEYS * DIM], expected[DIM];
    for (uint32_t i = 0; i < KEYS * DIM; i++) k32[i] = coli_f16_to_f32(kv[i]);
    attend_plainly(q, k32, k32, DIM, KEYS, DIM, 1.0f, scores, expected);
    T_TRUE(expected[0] != 0);
    for (uint32_t i = 0; i < n_table; i++) {
        flush_denormals(true);
        tables[i]->attend(&a);
        flush_denormals(false);
        equal_floats(tables[i]->name, "attend", out, expected, DIM);
    }
}

T_PROP(narrow_is_exact, 1000)
{
    static const uint32_t edges[] = {0x477FEFFF, 0x477FF000, 0xC77FEFFF, 0xC77FF000, 0x7F7FFFFF,
                                     0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0x387FFFFF,
                                     0x33000000, 0x33000001, 0x80000000, 0x00000001, 0x38800000};
    const uint32_t n = t_range(&rng, 1, N);
    float x[N];
    uint16_t expected[N], y[N + 1];
    fill(&rng, x, n, (kind)t_below(&rng, N_KIND));
    for (uint32_t i = t_below(&rng, 3); i > 0; i--)
        x[t_below(&rng, n)] = coli_from_bits(edges[t_below(&rng, sizeof edges / sizeof *edges)]);
    bool fits = true;
    for (uint32_t i = 0; i < n; i++) {
        expected[i] = coli_f32_to_f16(x[i]);
        fits &= (expected[i] & 0x7C00) != 0x7C00;
    }
    for (uint32_t i = 0; i < n_table; i++) {
        y[n] = 0xABCD;
        T_EQ(tables[i]->narrow(x, n, y), fits);
        T_MEM(y, expected, n * sizeof *y);
        T_EQ(y[n], 0xABCD);
    }
}

T_PROP(conv_is_exact, 500)
{
    enum { TAPS = 5 };
    const uint32_t n = t_range(&rng, 1, N), n_tap = t_range(&rng, 1, TAPS);
    static float x[N], w[TAPS * N], before[TAPS * N], after[TAPS * N], state[TAPS * N], y[N],
        sums[N];
    fill(&rng, x, n, NORMAL);
    fill(&rng, w, (size_t)n * n_tap, calm_kind(&rng));
    fill(&rng, before, (size_t)n * n_tap, NORMAL);
    memcpy(before + (size_t)(n_tap - 1) * n, x, n * sizeof *x);
    for (uint32_t c = 0; c < n; c++) {
        float sum = 0.0f;
        for (uint32_t t = 0; t < n_tap; t++) sum = sum + before[t * n + c] * w[t * n + c];
        sums[c] = coli_silu(sum);
    }
    memcpy(after, before + n, (size_t)(n_tap - 1) * n * sizeof *x);
    for (uint32_t i = 0; i < n_table; i++) {
        memset(state, 0xFF, sizeof state); // beyond its n_tap-1 rows there is nothing to read
        memcpy(state, before, (size_t)(n_tap - 1) * n * sizeof *x);
        tables[i]->conv_silu(x, w, n_tap, n, state, y);
        equal_floats(tables[i]->name, "conv_silu", y, sums, n);
        equal_floats(tables[i]->name, "conv state", state, after, (size_t)(n_tap - 1) * n);
    }
}

T_PROP(deltanet_is_exact, 300)
{
    enum { DK = 130, DV = 150 };
    const uint32_t d_k = t_range(&rng, 1, DK), d_v = t_below(&rng, 3) ? t_range(&rng, 1, DV) : 24;
    static float S0[DK * DV], S1[DK * DV], S[DK * DV];
    float q[DK], k[DK], v[DV], o1[DV], o[DV], scratch[DV];
    fill(&rng, S0, (size_t)d_k * d_v, calm_kind(&rng));
    fill(&rng, q, d_k, NORMAL);
    fill(&rng, k, d_k, NORMAL);
    fill(&rng, v, d_v, NORMAL);
    const float decay = (float)t_unit(&rng), beta = (float)t_unit(&rng), kq = coli_dot(k, q, d_k);
    for (uint32_t j = 0; j < d_v; j++) {
        float by_k = 0.0f, by_q = 0.0f;
        for (uint32_t i = 0; i < d_k; i++) {
            by_k = by_k + k[i] * S0[i * d_v + j];
            by_q = by_q + q[i] * S0[i * d_v + j];
        }
        const float delta = beta * (v[j] - decay * by_k);
        o1[j] = decay * by_q + kq * delta;
        for (uint32_t i = 0; i < d_k; i++) S1[i * d_v + j] = decay * S0[i * d_v + j] + k[i] * delta;
    }
    for (uint32_t i = 0; i < n_table; i++) {
        memcpy(S, S0, sizeof S);
        tables[i]->deltanet(S, d_k, d_v, q, k, v, decay, beta, scratch, o);
        equal_floats(tables[i]->name, "o", o, o1, d_v);
        equal_floats(tables[i]->name, "S", S, S1, (size_t)d_k * d_v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matmul_is_exact),
        cmocka_unit_test(matmul_never_saturates),
        cmocka_unit_test(quantise_is_exact),
        cmocka_unit_test(vectors_are_exact),
        cmocka_unit_test(every_kind_of_float),
        cmocka_unit_test(attend_is_exact),
        cmocka_unit_test(denormal_halves_survive_any_mode),
        cmocka_unit_test(narrow_is_exact),
        cmocka_unit_test(conv_is_exact),
        cmocka_unit_test(deltanet_is_exact),
    };
    return cmocka_run_group_tests(tests, find_tables, NULL);
}
