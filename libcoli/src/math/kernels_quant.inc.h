/* kernels_quant.inc.h - quantised products of a vector table: panels, scales, the tree.
 *
 * The including file has defined group_values for its instruction set: what one group adds to the
 * outputs of P panels, for R rows; fetches_itself, whether that fetches what will be read soon after;
 * and PANELS_MAX and ROWS_MAX, the largest P and R.
 *
 * One output is one lane throughout, so the tree of coli/exact.h needs no horizontal step: it is a
 * counter of partial sums, one array of lanes per level.  Its lowest level stays in registers:
 * groups are taken in pairs, and the pairs are counted. */

enum { LEVELS = 27 }; // 2^32 columns in pairs of groups of 32
enum { FETCH_AHEAD = 8192 };

INLINE lanes scales_of(const uint8_t *p, const bool is_f16, float pow2)
{
    lanes scale;
    if (is_f16) {
        scale = halves_to_floats(p);
        for (uint32_t i = 0; i < NV; i++) scale.v[i] = scale.v[i] * pow2;
    } else {
        for (uint32_t i = 0; i < NV; i++) scale.v[i] = *(const vf_unaligned *)(p + 4 * VW * i);
    }
    return scale;
}

INLINE lanes lanes_add(lanes a, lanes b)
{
    for (uint32_t i = 0; i < NV; i++) a.v[i] = a.v[i] + b.v[i];
    return a;
}

INLINE void fetch(const uint8_t *p, uint64_t n_bytes)
{
    for (uint64_t i = 0; i < n_bytes; i += 64) __builtin_prefetch(p + i);
}

/* The scales of P panels. */
INLINE void load_scales(const uint8_t *at, uint64_t step, const bool is_f16, float pow2,
                        const uint32_t P, lanes *scale)
{
    for (uint32_t p = 0; p < P; p++) scale[p] = scales_of(at + p * step, is_f16, pow2);
}

/* R activation rows times P panels; meanwhile the bytes at `ahead`, panels too, are fetched. */
INLINE void panel_block(const coli__matmul_args *a, const coli__layout *l, uint32_t panel,
                        uint32_t i0, const uint8_t *ahead, const bool is4, const uint32_t group,
                        const uint32_t R, const uint32_t P)
{
    const coli__wfmt fmt = a->w->fmt;
    const float pow2 = coli_pow2(a->w->scale_exp);
    const uint64_t step = l->panel_bytes;
    const uint8_t *base = a->w->data + panel * step;
    const uint8_t *at = base + l->first_group;
    const uint32_t n = P * R; // of panel p and row r at p*R + r
    row_block x;
    for (uint32_t r = 0; r < R; r++) {
        const uint64_t first = source_row(a, i0 + r) * l->n_group;
        x.q[r] = a->xq->q + first * group;
        x.d[r] = a->xq->d + first;
        x.sum[r] = a->xq->sum + first;
    }
    lanes scale[PANELS_MAX] = {0}, v[PANELS_MAX * ROWS_MAX], w[PANELS_MAX * ROWS_MAX];
    lanes level[LEVELS][PANELS_MAX * ROWS_MAX];
    if (fmt.per_row) load_scales(base, step, fmt.scale_f16, pow2, P, scale);

    uint64_t g = 0;
    for (; g + 2 <= l->n_group; g += 2) {
        for (uint32_t p = 0; ahead && !fetches_itself(is4, R) && p < P; p++)
            fetch(ahead + p * step + (at - base), 2 * l->group_bytes);
        if (!fmt.per_row) load_scales(at, step, fmt.scale_f16, pow2, P, scale);
        group_values(&x, g, at + l->code_offset, step, scale, is4, group, R, P, v);
        at += l->group_bytes;
        if (!fmt.per_row) load_scales(at, step, fmt.scale_f16, pow2, P, scale);
        group_values(&x, g + 1, at + l->code_offset, step, scale, is4, group, R, P, w);
        at += l->group_bytes;
        for (uint32_t i = 0; i < n; i++) v[i] = lanes_add(v[i], w[i]);
        uint32_t k = 0;
        for (; g / 2 >> k & 1; k++)
            for (uint32_t i = 0; i < n; i++) v[i] = lanes_add(level[k][i], v[i]);
        for (uint32_t i = 0; i < n; i++) level[k][i] = v[i];
    }
    lanes y[PANELS_MAX * ROWS_MAX] = {0};
    if (g < l->n_group) {
        if (!fmt.per_row) load_scales(at, step, fmt.scale_f16, pow2, P, scale);
        group_values(&x, g, at + l->code_offset, step, scale, is4, group, R, P, v);
        for (uint32_t i = 0; i < n; i++) y[i] = lanes_add(v[i], y[i]);
    }
    for (uint32_t k = 0; g / 2 >> k != 0; k++)
        if (g / 2 >> k & 1)
            for (uint32_t i = 0; i < n; i++) y[i] = lanes_add(level[k][i], y[i]);

    for (uint32_t p = 0; p < P; p++) {
        const uint32_t o = (panel + p) * COLI_PANEL, n_left = a->w->n_out - o;
        float *out = a->y + i0 * a->ldy + (o - COLI_PANEL * a->panel_begin);
        for (uint32_t r = 0; r < R; r++)
            memcpy(out + r * a->ldy, &y[p * R + r],
                   (n_left < COLI_PANEL ? n_left : COLI_PANEL) * sizeof *out);
    }
}

enum { FEW_ROWS = 4 }; // as many wait for memory, and gain nothing by two panels at once

/* The same for n_row rows, which becomes a constant: one panel for at most FEW_ROWS rows, or two for at least
 * as many. */
INLINE void rows_block(const coli__matmul_args *a, const coli__layout *l, uint32_t panel,
                       uint32_t i0, const uint8_t *ahead, const bool is4, const uint32_t group,
                       uint32_t n_row, const uint32_t P)
{
    _Static_assert(ROWS_MAX == (PANELS_MAX == 1 ? FEW_ROWS : 8), "the cases below");
#define CASE(R)                                                                                    \
    case R:                                                                                        \
        panel_block(a, l, panel, i0, ahead, is4, group, R, P);                                     \
        break
    if (P == 1) switch (n_row) {
            CASE(1);
            CASE(2);
            CASE(3);
            CASE(4);
        }
#if PANELS_MAX == 2
    if (P == 2) switch (n_row) {
            CASE(4);
            CASE(5);
            CASE(6);
            CASE(7);
            CASE(8);
        }
#endif
#undef CASE
}

/* Rows are the inner loop: a panel is read from memory once and stays in the nearest cache.  Meanwhile
 * another is fetched, FETCH_AHEAD bytes away or more: nearer, it is still on its way when it is needed. */
INLINE void matmul_quant(const coli__matmul_args *a, const bool is4, const uint32_t group)
{
    const coli__layout l = coli__layout_of(a->w->fmt, a->w->n_in);
    const uint32_t far = (uint32_t)((FETCH_AHEAD + l.panel_bytes - 1) / l.panel_bytes);
    for (uint32_t p = a->panel_begin, P; p < a->panel_end; p += P) {
        const uint32_t n_left = a->panel_end - p;
        P = PANELS_MAX == 2 && a->n_row > FEW_ROWS && n_left >= 2 ? 2 : 1;
        const uint32_t rows_max = P == 2 ? ROWS_MAX : FEW_ROWS;
        const uint32_t n_ahead = far > P ? far : P;
        const uint8_t *next = NULL;
        if (n_ahead < n_left)
            next = a->w->data + (p + n_ahead) * l.panel_bytes;
        else if (a->next)
            next = a->next + (n_ahead - n_left) * l.panel_bytes;
        for (uint32_t i = 0, n; i < a->n_row; i += n, next = NULL) {
            const uint32_t left = a->n_row - i, n_block = (left + rows_max - 1) / rows_max;
            n = (left + n_block - 1) / n_block; // blocks of about the same size
            if (P == 2)
                rows_block(a, &l, p, i, next, is4, group, n, PANELS_MAX);
            else
                rows_block(a, &l, p, i, next, is4, group, n, 1);
        }
    }
}

static void int8_g64(const coli__matmul_args *a)
{
    matmul_quant(a, false, 64);
}
static void int8_g32(const coli__matmul_args *a)
{
    matmul_quant(a, false, 32);
}
static void int4_g64(const coli__matmul_args *a)
{
    matmul_quant(a, true, 64);
}
static void int4_g32(const coli__matmul_args *a)
{
    matmul_quant(a, true, 32);
}

static void matmul(const coli__matmul_args *a)
{
    const bool g64 = a->w->fmt.group == 64;
    switch (a->w->fmt.type) {
    case COLI_W_F32:
        matmul_float(a, false);
        break;
    case COLI_W_BF16:
        matmul_float(a, true);
        break;
    case COLI_W_I8:
        g64 ? int8_g64(a) : int8_g32(a);
        break;
    case COLI_W_I4:
        g64 ? int4_g64(a) : int4_g32(a);
        break;
    case COLI_W_N:
        break;
    }
}
