/* kernels_quant.inc.h - quantised products of a vector table: panels, scales, the tree.
 *
 * The including file has defined group_values for its instruction set: what one group adds to a
 * panel's outputs, for R rows.
 *
 * One output is one lane throughout, so the tree of coli/exact.h needs no horizontal step: it is a
 * counter of partial sums, one array of lanes per level.  Its lowest level stays in registers:
 * groups are taken in pairs, and the pairs are counted. */

enum { LEVELS = 27 }; // 2^32 columns in pairs of groups of 32

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
    for (uint64_t i = 0; i < n_bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

/* R activation rows times one panel; meanwhile the bytes at `ahead`, the next panel, are fetched. */
INLINE void panel_block(const coli__matmul_args *a, const coli__layout *l, uint32_t panel,
                        uint32_t i0, const uint8_t *ahead, const bool is4, const uint32_t group,
                        const uint32_t R)
{
    const coli__wfmt fmt = a->w->fmt;
    const float pow2 = coli_pow2(a->w->scale_exp);
    const uint8_t *base = a->w->data + panel * l->panel_bytes;
    const uint8_t *at = base + l->first_group;
    row_block x;
    for (uint32_t r = 0; r < R; r++) {
        const uint64_t first = source_row(a, i0 + r) * l->n_group;
        x.q[r] = a->xq->q + first * group;
        x.d[r] = a->xq->d + first;
        x.sum[r] = a->xq->sum + first;
    }
    lanes scale = {0}, v[ROWS_MAX], w[ROWS_MAX], level[LEVELS][ROWS_MAX];
    if (fmt.per_row) scale = scales_of(base, fmt.scale_f16, pow2);

    uint64_t g = 0;
    for (; g + 2 <= l->n_group; g += 2) {
        if (ahead) fetch(ahead + (at - base), 2 * l->group_bytes);
        if (!fmt.per_row) scale = scales_of(at, fmt.scale_f16, pow2);
        group_values(&x, g, at + l->code_offset, scale, is4, group, R, v);
        at += l->group_bytes;
        if (!fmt.per_row) scale = scales_of(at, fmt.scale_f16, pow2);
        group_values(&x, g + 1, at + l->code_offset, scale, is4, group, R, w);
        at += l->group_bytes;
        for (uint32_t r = 0; r < R; r++) v[r] = lanes_add(v[r], w[r]);
        uint32_t i = 0;
        for (; g / 2 >> i & 1; i++)
            for (uint32_t r = 0; r < R; r++) v[r] = lanes_add(level[i][r], v[r]);
        for (uint32_t r = 0; r < R; r++) level[i][r] = v[r];
    }
    lanes y[ROWS_MAX] = {0};
    if (g < l->n_group) {
        if (!fmt.per_row) scale = scales_of(at, fmt.scale_f16, pow2);
        group_values(&x, g, at + l->code_offset, scale, is4, group, R, v);
        for (uint32_t r = 0; r < R; r++) y[r] = lanes_add(v[r], y[r]);
    }
    for (uint32_t i = 0; g / 2 >> i != 0; i++)
        if (g / 2 >> i & 1)
            for (uint32_t r = 0; r < R; r++) y[r] = lanes_add(level[i][r], y[r]);

    const uint32_t o = panel * COLI_PANEL, n_left = a->w->n_out - o;
    float *out = a->y + i0 * a->ldy + (o - COLI_PANEL * a->panel_begin);
    for (uint32_t r = 0; r < R; r++)
        memcpy(out + r * a->ldy, &y[r], (n_left < COLI_PANEL ? n_left : COLI_PANEL) * sizeof *out);
}

/* Rows are the inner loop: a panel is read from memory once and stays in the nearest cache. */
INLINE void matmul_quant(const coli__matmul_args *a, const bool is4, const uint32_t group)
{
    const coli__layout l = coli__layout_of(a->w->fmt, a->w->n_in);
    for (uint32_t p = a->panel_begin; p < a->panel_end; p++) {
        const uint8_t *next = p + 1 < a->panel_end ? a->w->data + (p + 1) * l.panel_bytes : a->next;
        uint32_t i = 0;
        for (; i + ROWS_MAX <= a->n_row; i += ROWS_MAX, next = NULL)
            panel_block(a, &l, p, i, next, is4, group, ROWS_MAX);
        if (ROWS_MAX > 4 && i + 4 <= a->n_row) {
            panel_block(a, &l, p, i, next, is4, group, 4);
            i += 4;
            next = NULL;
        }
        if (i + 2 <= a->n_row) {
            panel_block(a, &l, p, i, next, is4, group, 2);
            i += 2;
            next = NULL;
        }
        if (i < a->n_row) panel_block(a, &l, p, i, next, is4, group, 1);
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
