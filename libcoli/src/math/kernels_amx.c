/* kernels_amx.c - quantised products of many rows with AMX.
 *
 * A tile is a register of 16 lines of 64 bytes.  One tdpbssd adds to 16 x 16 sums the products of
 *
 *     A  line r: 64 columns of activation row r
 *     B  line c: columns 4c..4c+3 of each of 16 outputs
 *     C  line r: the sums of row r for 16 outputs, int32
 *
 * which is one group of 64 of one panel for sixteen rows.  B is the drawing of matrix.h: its lines are
 * a panel's chunks, so nothing is shuffled.  Only the codes are made signed bytes on the way (of int4,
 * a chunk gives two lines), which leaves no excess to take off the sums.  Groups of 32 are tiles of
 * half the columns.  The sums are those of all other tables, and so are the floats made of them.
 *
 * Order.  Up to 32 rows at a time; for these, four panels at a time; for these, eight groups at a
 * time: the rows' activations are copied side by side once, then each panel's codes are unpacked and
 * multiplied.  Every value goes to a counter of partial sums (kernels_quant.inc.h), one for each panel,
 * which wait for their next groups.  A tile cannot be read from a store that is still under way, which
 * is why much is copied before it is multiplied.
 *
 * Tiles belong to a thread and have to be configured.  It costs little beside a matrix, so each call
 * does it and releases them at its end: outside of this file no thread has tiles, and neither a
 * signal nor a switch of threads has any to save.
 *
 * A few rows, float weights and very wide matrices are left to the table of AVX-512, whose other
 * functions this table has, too.  tests/support/amx_emulate.h stands in for the instructions. */
#include "kernels_impl.h"

#ifndef AMX_EMULATED
#include <immintrin.h>
#define WIDEN(p)    ((vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p))))
#define FEW_ROWS(a) coli__kernels_avx512.matmul(a)
#endif

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef float vf_unaligned __attribute__((vector_size(64), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

enum {
    LINES = 16,       // of a tile; each has 64 bytes
    ROWS = 2 * LINES, // multiplied together
    PANELS = 4,       // that share one copy of the activations
    SEGMENT = 8,      // groups copied before they are multiplied; even
    LEVELS = 10,      // of a counter of pairs of groups
};

/* ---- tiles ---------------------------------------------------------------------------------- */

/* Two sets, used in turns, so that one group does not wait for the other: 0 and 1 (4 and 5) sums of
 * the first and second sixteen rows, 2 (6) activations, 3 (7) weights. */
typedef struct tile_config { // as the processor reads it
    uint8_t palette, start_line, reserved[14];
    uint16_t line_bytes[16];
    uint8_t n_line[16];
} tile_config;

static const tile_config tiles_g64 = {.palette = 1,
                                      .line_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                      .n_line = {16, 16, 16, 16, 16, 16, 16, 16}};
static const tile_config tiles_g32 = {.palette = 1,
                                      .line_bytes = {64, 64, 32, 64, 64, 64, 32, 64},
                                      .n_line = {16, 16, 16, 8, 16, 16, 16, 8}};

/* gcc's _tile_loadd does not tell the compiler that it reads memory. */
#define STORES_BEFORE_LOADS() __asm__ volatile("" ::: "memory")

/* The sums of one group, for one or two times sixteen rows. */
#define MULTIPLY(C0, C1, A, B, work, g, both, sums)                                                \
    do {                                                                                           \
        _tile_zero(C0);                                                                            \
        _tile_loadd(B, (work)->weights[g], 64);                                                    \
        _tile_loadd(A, (work)->rows[g][0], 64);                                                    \
        _tile_dpbssd(C0, A, B);                                                                    \
        if (both) {                                                                                \
            _tile_zero(C1);                                                                        \
            _tile_loadd(A, (work)->rows[g][LINES], 64);                                            \
            _tile_dpbssd(C1, A, B);                                                                \
            _tile_stored(C1, (sums) + LINES, 64);                                                  \
        }                                                                                          \
        _tile_stored(C0, (sums), 64);                                                              \
    } while (0)

/* ---- one block of rows and panels ----------------------------------------------------------- */

typedef struct work {
    _Alignas(64) int8_t rows[SEGMENT][ROWS][64];
    _Alignas(64) int8_t weights[SEGMENT][LINES][64];
    vi sums[2][ROWS]; // of a pair of groups
    vf level[PANELS][LEVELS][ROWS];
} work;

/* The rows that are multiplied together, and what they are multiplied by. */
typedef struct block {
    const coli__matmul_args *a;
    coli__layout l;
    float pow2;
    uint32_t first, n_row; // rows of the call
    const int8_t *q[ROWS]; // lines beyond the last row repeat it; nobody looks at their sums
    const float *d[ROWS];
} block;

static void take_rows(block *b, const coli__matmul_args *a, uint32_t first)
{
    b->first = first;
    b->n_row = a->n_row - first < ROWS ? a->n_row - first : ROWS;
    for (uint32_t r = 0; r < ROWS; r++) {
        const uint32_t i = first + (r < b->n_row ? r : b->n_row - 1);
        const uint64_t at = (a->index ? a->index[i] : i) * b->l.n_group;
        b->q[r] = a->xq->q + at * a->w->fmt.group;
        b->d[r] = a->xq->d + at;
    }
}

INLINE void copy_rows(work *w, const block *b, uint64_t g, uint32_t n, const uint32_t group)
{
    const uint32_t n_line = b->n_row > LINES ? ROWS : LINES;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < n_line; r++)
            memcpy(w->rows[i][r], b->q[r] + (g + i) * group, group);
}

INLINE void unpack(int8_t (*lines)[64], const uint8_t *codes, const bool is4, const uint32_t group)
{
    for (uint32_t c = 0; c < group / 4; c += is4 ? 2 : 1, codes += 64)
        for (uint32_t i = 0; i < 64; i++) {
            if (is4) {
                lines[c][i] = (int8_t)((codes[i] & 15) - 8);
                lines[c + 1][i] = (int8_t)((codes[i] >> 4) - 8);
            } else {
                lines[c][i] = (int8_t)(codes[i] - 128);
            }
        }
}

INLINE vf scales_at(const block *b, const uint8_t *p)
{
    if (b->a->w->fmt.scale_f16) return WIDEN(p) * b->pow2;
    return *(const vf_unaligned *)p;
}

/* The values of a pair of groups, the second of which may be missing, into the counter. */
INLINE void count_pair(work *w, const block *b, uint32_t p, uint64_t g, const vf scale[2],
                       const bool is_half)
{
    const uint64_t pair = g / 2;
    uint32_t n_carry = 0;
    while (pair >> n_carry & 1) n_carry++;
    for (uint32_t r = 0; r < b->n_row; r++) {
        vf v = __builtin_convertvector(w->sums[0][r], vf) * (scale[0] * b->d[r][g]);
        if (!is_half)
            v = v + __builtin_convertvector(w->sums[1][r], vf) * (scale[1] * b->d[r][g + 1]);
        for (uint32_t i = 0; i < n_carry; i++) v = w->level[p][i][r] + v;
        w->level[p][n_carry][r] = v;
    }
}

/* Groups g .. g+n-1 of a panel, n at most SEGMENT; meanwhile as many at `ahead` are fetched. */
INLINE void add_segment(work *w, const block *b, uint32_t p, const uint8_t *panel,
                        const uint8_t *ahead, uint64_t g, uint32_t n, const bool is4,
                        const uint32_t group)
{
    const coli__layout *l = &b->l;
    for (uint64_t i = 0; ahead && i < SEGMENT * l->group_bytes; i += 64)
        __builtin_prefetch(ahead + i, 0, 2);
    const uint8_t *at = panel + l->first_group + g * l->group_bytes;
    for (uint32_t i = 0; i < n; i++)
        unpack(w->weights[i], at + i * l->group_bytes + l->code_offset, is4, group);
    STORES_BEFORE_LOADS();

    const bool per_row = b->a->w->fmt.per_row, both = b->n_row > LINES;
    for (uint32_t i = 0; i < n; i += 2, at += 2 * l->group_bytes) {
        const bool is_half = i + 1 == n;
        MULTIPLY(0, 1, 2, 3, w, i, both, w->sums[0]);
        if (!is_half) MULTIPLY(4, 5, 6, 7, w, i + 1, both, w->sums[1]);
        vf scale[2];
        scale[0] = scales_at(b, per_row ? panel : at);
        scale[1] = is_half || per_row ? scale[0] : scales_at(b, at + l->group_bytes);
        count_pair(w, b, p, g + i, scale, is_half);
    }
}

/* What the counter holds, as outputs. */
static void write_outputs(const work *w, const block *b, uint32_t p, uint32_t panel)
{
    const coli__matmul_args *a = b->a;
    const uint64_t n_pair = (b->l.n_group + 1) / 2;
    const uint32_t o = panel * COLI_PANEL, n_left = a->w->n_out - o;
    float *out = a->y + b->first * a->ldy + (o - COLI_PANEL * a->panel_begin);
    for (uint32_t r = 0; r < b->n_row; r++) {
        vf y = {0};
        for (uint32_t i = 0; n_pair >> i != 0; i++)
            if (n_pair >> i & 1) y = w->level[p][i][r] + y;
        memcpy(out + r * a->ldy, &y, (n_left < COLI_PANEL ? n_left : COLI_PANEL) * sizeof *out);
    }
}

/* The weights that are multiplied after groups g.. of panel first+p of n_panel; NULL: nobody knows. */
static const uint8_t *next_weights(const block *b, uint32_t first, uint32_t n_panel, uint32_t p,
                                   uint64_t g)
{
    const coli__matmul_args *a = b->a;
    const coli__layout *l = &b->l;
    const uint8_t *begin = a->w->data + first * l->panel_bytes;
    if (p + 1 < n_panel) return begin + (p + 1) * l->panel_bytes + g * l->group_bytes;
    if (g + SEGMENT < l->n_group) return begin + (g + SEGMENT) * l->group_bytes;
    return first + n_panel < a->panel_end ? begin + n_panel * l->panel_bytes : a->next;
}

/* One block of rows times all panels of the call. */
INLINE void multiply_rows(work *w, const block *b, const bool is4, const uint32_t group)
{
    const coli__matmul_args *a = b->a;
    const bool is_first = b->first == 0; // the next rows find the panels in a cache
    for (uint32_t first = a->panel_begin, n_panel; first < a->panel_end; first += n_panel) {
        n_panel = a->panel_end - first < PANELS ? a->panel_end - first : PANELS;
        for (uint64_t g = 0; g < b->l.n_group; g += SEGMENT) {
            const uint64_t left = b->l.n_group - g;
            const uint32_t n = left < SEGMENT ? (uint32_t)left : SEGMENT;
            copy_rows(w, b, g, n, group);
            for (uint32_t p = 0; p < n_panel; p++) {
                const uint8_t *panel = a->w->data + (first + p) * b->l.panel_bytes;
                const uint8_t *ahead = is_first ? next_weights(b, first, n_panel, p, g) : NULL;
                add_segment(w, b, p, panel, ahead, g, n, is4, group);
            }
        }
        for (uint32_t p = 0; p < n_panel; p++) write_outputs(w, b, p, first + p);
    }
}

/* Rows 0 .. n_row-1 of the call. */
INLINE void matmul_tiles(const coli__matmul_args *a, uint32_t n_row, const bool is4,
                         const uint32_t group)
{
    coli__matmul_args args = *a;
    args.n_row = n_row;
    block b = {.a = &args,
               .l = coli__layout_of(a->w->fmt, a->w->n_in),
               .pow2 = coli_pow2(a->w->scale_exp)};
    work w;
    _tile_loadconfig(group == 64 ? &tiles_g64 : &tiles_g32);
    for (uint32_t i = 0; i < n_row; i += ROWS) {
        take_rows(&b, &args, i);
        multiply_rows(&w, &b, is4, group);
    }
    _tile_release();
}

static void int8_g64(const coli__matmul_args *a, uint32_t n_row)
{
    matmul_tiles(a, n_row, false, 64);
}
static void int8_g32(const coli__matmul_args *a, uint32_t n_row)
{
    matmul_tiles(a, n_row, false, 32);
}
static void int4_g64(const coli__matmul_args *a, uint32_t n_row)
{
    matmul_tiles(a, n_row, true, 64);
}
static void int4_g32(const coli__matmul_args *a, uint32_t n_row)
{
    matmul_tiles(a, n_row, true, 32);
}

/* ---- which rows ----------------------------------------------------------------------------- */

/* How many rows of the call are multiplied by tiles: all but a last block of too few. */
static uint32_t n_tile_row(const coli__matmul_args *a)
{
    if (!coli__wfmt_is_quant(a->w->fmt)) return 0;
    const uint64_t n_group = coli__layout_of(a->w->fmt, a->w->n_in).n_group;
    if ((n_group + 1) / 2 >= 1u << LEVELS) return 0;
    const uint32_t rest = a->n_row % ROWS;
    return rest < COLI__AMX_MIN_ROWS ? a->n_row - rest : a->n_row;
}

/* The call without its first n rows. */
static void multiply_rest(const coli__matmul_args *a, uint32_t n)
{
    coli__matmul_args rest = *a;
    coli__qrows xq;
    rest.n_row -= n;
    rest.y += n * a->ldy;
    if (n > 0 && a->index) {
        rest.index += n;
    } else if (n > 0) {
        xq = *a->xq;
        xq.q += (uint64_t)n * xq.n_group * xq.group;
        xq.d += (uint64_t)n * xq.n_group;
        xq.sum += (uint64_t)n * xq.n_group;
        rest.xq = &xq;
    }
    FEW_ROWS(&rest);
}

void coli__amx_matmul(const coli__matmul_args *a)
{
    const uint32_t n = n_tile_row(a);
    const bool is4 = a->w->fmt.type == COLI_W_I4, g64 = a->w->fmt.group == 64;
    if (n > 0) (is4 ? g64 ? int4_g64 : int4_g32 : g64 ? int8_g64 : int8_g32)(a, n);
    if (n < a->n_row) multiply_rest(a, n);
}

/* ---- peak ----------------------------------------------------------------------------------- */

uint64_t coli__amx_peak(uint32_t n_round, uint64_t *sink)
{
    enum { N_PRODUCT = 4, MACS = 16 * 16 * 64 };
    static const int8_t bytes[LINES][64] = {{3, -2, 1}};
    int32_t sums[LINES][LINES];
    _tile_loadconfig(&tiles_g64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(4);
    _tile_zero(5);
    _tile_loadd(2, bytes, 64);
    _tile_loadd(3, bytes, 64);
    for (uint32_t n = 0; n < n_round; n++) { // each waits for itself four products ago
        _tile_dpbssd(0, 2, 3);
        _tile_dpbssd(1, 2, 3);
        _tile_dpbssd(4, 2, 3);
        _tile_dpbssd(5, 2, 3);
    }
    _tile_stored(0, sums, 64);
    _tile_release();
    *sink += (uint64_t)sums[0][0];
    return (uint64_t)n_round * N_PRODUCT * MACS;
}
