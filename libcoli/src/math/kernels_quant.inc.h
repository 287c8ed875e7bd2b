/* kernels_quant.inc.h - quantised products of a vector table: panels, scales, the tree.
 *
 * The including file has defined group_values for its instruction set: what one group adds to the
 * outputs of P panels, for R rows; fetches_itself, whether that fetches what will be read soon after;
 * and PANELS_MAX and ROWS_MAX, the largest P and R.
 *
 * One output is one lane throughout, so the tree of coli/exact.h needs no horizontal step: it is a
 * counter of partial sums, one array of lanes per level.  What a group adds stays in registers until
 * its place in the counter is known.
 *
 * Loops marked UNROLL run over panels and rows, whose numbers are constants: unrolled, their arrays
 * become registers. */

enum { LEVELS = 28 }; // 2^32 columns in groups of 32
enum { FETCH_AHEAD = 8192 };
#define UNROLL _Pragma("GCC unroll 16")

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

/* What is fetched meanwhile: panels that will be read soon.  A block of rows fetches its share of them. */
typedef struct share_ahead {
    const uint8_t *at; // NULL: nothing
    uint64_t n_bytes;  // of each panel, for each group of the block
} share_ahead;

/* v, what group g adds, joins the counter: it is added to the sums of as many levels as there are ones
 * at g's low end, and is the next level's sum then. */
INLINE void count_group(lanes level[LEVELS][PANELS_MAX * ROWS_MAX], uint64_t g, lanes *v,
                        const uint32_t n)
{
    if (g & 1) {
        UNROLL
        for (uint32_t i = 0; i < n; i++) v[i] = lanes_add(level[0][i], v[i]);
        for (uint32_t k = 1; g >> k & 1; k++) {
            UNROLL
            for (uint32_t i = 0; i < n; i++) v[i] = lanes_add(level[k][i], v[i]);
        }
    }
    lanes *sum = level[__builtin_ctzll(~g)];
    UNROLL
    for (uint32_t i = 0; i < n; i++) sum[i] = v[i];
}

/* R activation rows times P panels. */
INLINE void panel_block(const coli__matmul_args *a, const coli__layout *l, uint32_t panel,
                        uint32_t i0, share_ahead ahead, const bool is4, const uint32_t group,
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
    lanes scale[PANELS_MAX] = {0}, level[LEVELS][PANELS_MAX * ROWS_MAX];
    if (fmt.per_row) load_scales(base, step, fmt.scale_f16, pow2, P, scale);
    for (uint64_t g = 0; g < l->n_group; g++) {
        if (ahead.at && !fetches_itself(is4, R)) {
            for (uint32_t p = 0; p < P; p++) fetch(ahead.at + p * step, ahead.n_bytes);
            ahead.at += ahead.n_bytes;
        }
        if (!fmt.per_row) load_scales(at, step, fmt.scale_f16, pow2, P, scale);
        lanes v[PANELS_MAX * ROWS_MAX];
        group_values(&x, g, at + l->code_offset, step, scale, is4, group, R, P, v);
        count_group(level, g, v, n);
        at += l->group_bytes;
    }
    lanes y[PANELS_MAX * ROWS_MAX] = {0};
    for (uint32_t k = 0; l->n_group >> k != 0; k++)
        if (l->n_group >> k & 1) {
            UNROLL
            for (uint32_t i = 0; i < n; i++) y[i] = lanes_add(level[k][i], y[i]);
        }

    for (uint32_t p = 0; p < P; p++) {
        const uint32_t o = (panel + p) * COLI_PANEL, n_left = a->w->n_out - o;
        float *out = a->y + i0 * a->ldy + (o - COLI_PANEL * a->panel_begin);
        if (n_left >= COLI_PANEL) {
            UNROLL
            for (uint32_t r = 0; r < R; r++)
                memcpy(out + r * a->ldy, &y[p * R + r], COLI_PANEL * sizeof *out);
        } else {
            for (uint32_t r = 0; r < R; r++)
                memcpy(out + r * a->ldy, &y[p * R + r], n_left * sizeof *out);
        }
    }
}

enum { FEW_ROWS = 4 }; // as many wait for memory, and gain nothing by two panels at once

/* The same for n_row rows, which becomes a constant: one panel for at most FEW_ROWS rows, or two for at least
 * as many. */
INLINE void rows_block(const coli__matmul_args *a, const coli__layout *l, uint32_t panel,
                       uint32_t i0, share_ahead ahead, const bool is4, const uint32_t group,
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
    if (a->n_row == 0) return;
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
        const uint32_t n_block = (a->n_row + rows_max - 1) / rows_max;
        share_ahead ahead = {next, (l.group_bytes + n_block - 1) / n_block};
        for (uint32_t i = 0, k = n_block, n; k > 0; i += n, k--) {
            n = (a->n_row - i + k - 1) / k; // blocks of about the same size
            if (P == 2)
                rows_block(a, &l, p, i, ahead, is4, group, n, PANELS_MAX);
            else
                rows_block(a, &l, p, i, ahead, is4, group, n, 1);
            if (next) ahead.at += ahead.n_bytes * l.n_group;
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
