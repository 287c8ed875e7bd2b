/* fake_compute.c - see fake_compute.h.
 *
 * The idea.  Whole models run on this in tests, so it should be fast in C that any compiler turns into
 * vector code.  The codes of a group of a panel stand in chunks of 64 bytes, four for each of the
 * sixteen rows.  Take a chunk as 64 lanes and multiply it with four activations repeated sixteen
 * times: after all chunks of the group, four neighbouring lanes add up to one row's sum.
 *
 * Lanes of 16 bits suffice when they hold nibbles.  An int4 lane takes group/4 <= 16 products of at
 * most 8*127, or 16256 in all.  An int8 code, stored as value + 128, is two nibbles as well:
 *
 *     value = 16 * (high - 8) + low      |low| lanes: 16 * 15 * 127 = 30480, still within 16 bits
 *
 * so int8 is two sums, and s = 16 * s_high + s_low.
 *
 * A group is unpacked once for up to ROWS activation rows.  The tree of coli/exact.h is a counter of
 * partial sums, one array of sixteen outputs per level. */
#include "fake_compute.h"

#include <string.h>

#include "coli/exact.h"

enum { PANEL = COLI_BK_PANEL, ROWS = 16, LEVELS = 27, MAX_GROUP = 64, LANES = 64 };

#define INLINE static inline __attribute__((always_inline))

/* Vectors of 16 bytes: every processor of the last twenty years has them. */
typedef int16_t v8 __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));
typedef uint64_t v2u __attribute__((vector_size(16)));
typedef float v4f __attribute__((vector_size(16)));
enum { NV = LANES / 8, PV = PANEL / 4 };

/* One group of a panel, ready to be multiplied. */
typedef struct unpacked {
    int16_t low[MAX_GROUP / 4][LANES], high[MAX_GROUP / 4][LANES]; // (chunk)
    v4f scale[PV];
} unpacked;

/* The partial sums of one activation row: level i holds 2^i groups where bit i of their number is set. */
typedef struct tree {
    v4f level[LEVELS][PV];
} tree;

static void read_scales(const coli_bk_layout *l, const uint8_t *at, float pow2, v4f *out)
{
    float scale[PANEL];
    if (l->scale_bytes == 4) {
        memcpy(scale, at, sizeof scale);
    } else {
        uint16_t half[PANEL];
        memcpy(half, at, sizeof half);
        for (uint32_t r = 0; r < PANEL; r++) scale[r] = coli_f16_to_f32(half[r]);
    }
    for (uint32_t r = 0; r < PANEL; r++) scale[r] = scale[r] * pow2;
    memcpy(out, scale, sizeof scale);
}

/* Both nibbles of a chunk; the zero points: 8 of the high one, and 8 of the low one in int4. */
INLINE void unpack_chunk(const uint8_t *codes, int16_t low_zero, int16_t *low, int16_t *high)
{
    for (uint32_t i = 0; i < LANES; i++) {
        low[i] = (int16_t)((codes[i] & 15) - low_zero);
        high[i] = (int16_t)((codes[i] >> 4) - 8);
    }
}

INLINE v8 lanes_at(const int16_t *p)
{
    v8 v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Four activations, twice. */
INLINE v8 quad(const int16_t *q)
{
    uint64_t four;
    memcpy(&four, q, sizeof four);
    return (v8)(v2u){four, four};
}

/* s[r] += factor * (the four lanes of row r).  The four are taken as one number of 64 bits, with
 * 2^15 added to each lane so that they are not negative. */
INLINE void add_lanes(const v8 *lanes, int32_t factor, v4i *s)
{
    v2u sum[NV];
    for (uint32_t i = 0; i < NV; i++) {
        const v2u x = (v2u)lanes[i] ^ 0x8000800080008000;
        const v2u pairs = (x & 0x0000FFFF0000FFFF) + (x >> 16 & 0x0000FFFF0000FFFF);
        sum[i] = pairs + (pairs >> 32);
    }
    for (uint32_t i = 0; i < PV; i++)
        s[i] +=
            factor * (__builtin_shufflevector((v4i)sum[2 * i], (v4i)sum[2 * i + 1], 0, 2, 4, 6) -
                      4 * 0x8000);
}

/* s = sum of q*w over the group, for the sixteen rows. */
INLINE void group_sums(const unpacked *w, const int8_t *q, const uint32_t bits,
                       const uint32_t group, v4i *s)
{
    int16_t wide[MAX_GROUP];
    for (uint32_t c = 0; c < group; c++) wide[c] = q[c];
    v8 low[NV] = {0}, high[NV] = {0};
    memset(s, 0, PV * sizeof *s);
    if (bits == 4) {
        for (uint32_t k = 0; k < group / 8; k++) {
            const v8 a = quad(wide + 8 * k), b = quad(wide + 8 * k + 4);
            for (uint32_t i = 0; i < NV; i++)
                low[i] += lanes_at(&w->low[k][8 * i]) * a + lanes_at(&w->high[k][8 * i]) * b;
        }
        add_lanes(low, 1, s);
        return;
    }
    for (uint32_t k = 0; k < group / 4; k++) {
        const v8 a = quad(wide + 4 * k);
        for (uint32_t i = 0; i < NV; i++) low[i] += lanes_at(&w->low[k][8 * i]) * a;
    }
    for (uint32_t k = 0; k < group / 4; k++) {
        const v8 a = quad(wide + 4 * k);
        for (uint32_t i = 0; i < NV; i++) high[i] += lanes_at(&w->high[k][8 * i]) * a;
    }
    add_lanes(low, 1, s);
    add_lanes(high, 16, s);
}

/* Group number g of a row's tree; v is lost. */
INLINE void tree_add(tree *t, uint32_t g, v4f *v)
{
    uint32_t i = 0;
    for (; g >> i & 1; i++)
        for (uint32_t k = 0; k < PV; k++) v[k] = t->level[i][k] + v[k];
    memcpy(t->level[i], v, PANEL * sizeof(float));
}

static void tree_sum(const tree *t, uint32_t n_group, float *y)
{
    v4f sum[PV] = {0};
    for (uint32_t i = 0; n_group >> i != 0; i++)
        if (n_group >> i & 1)
            for (uint32_t k = 0; k < PV; k++) sum[k] = t->level[i][k] + sum[k];
    memcpy(y, sum, PANEL * sizeof *y);
}

/* One panel times rows first..first+n-1 of the call, n <= ROWS; y (n, PANEL). */
INLINE void panel_block(const coli_bk_layout *l, const uint8_t *panel, float pow2,
                        const fake_rows *x, uint32_t first, uint32_t n, const uint32_t bits,
                        const uint32_t group, float y[ROWS][PANEL])
{
    tree trees[ROWS];
    unpacked w;
    if (l->per_row) read_scales(l, panel, pow2, w.scale);
    for (uint32_t g = 0; g < l->n_group; g++) {
        const uint8_t *at = panel + l->first_group + (uint64_t)g * l->group_bytes;
        if (!l->per_row) read_scales(l, at, pow2, w.scale);
        for (uint32_t k = 0; k < group * bits / 32; k++)
            unpack_chunk(at + l->code_offset + 64 * k, bits == 4 ? 8 : 0, w.low[k], w.high[k]);
        for (uint32_t i = 0; i < n; i++) {
            const uint64_t row = x->index ? x->index[first + i] : first + i;
            const uint64_t source = row * l->n_group + g;
            v4i s[PV];
            v4f v[PV];
            group_sums(&w, x->q + source * group, bits, group, s);
            for (uint32_t k = 0; k < PV; k++) // coli_group_value
                v[k] = __builtin_convertvector(s[k], v4f) * (w.scale[k] * x->d[source]);
            tree_add(&trees[i], g, v);
        }
    }
    for (uint32_t i = 0; i < n; i++) tree_sum(&trees[i], l->n_group, y[i]);
}

static void panel_i8_g64(const coli_bk_layout *l, const uint8_t *panel, float pow2,
                         const fake_rows *x, uint32_t first, uint32_t n, float y[ROWS][PANEL])
{
    panel_block(l, panel, pow2, x, first, n, 8, 64, y);
}
static void panel_i8_g32(const coli_bk_layout *l, const uint8_t *panel, float pow2,
                         const fake_rows *x, uint32_t first, uint32_t n, float y[ROWS][PANEL])
{
    panel_block(l, panel, pow2, x, first, n, 8, 32, y);
}
static void panel_i4_g64(const coli_bk_layout *l, const uint8_t *panel, float pow2,
                         const fake_rows *x, uint32_t first, uint32_t n, float y[ROWS][PANEL])
{
    panel_block(l, panel, pow2, x, first, n, 4, 64, y);
}
static void panel_i4_g32(const coli_bk_layout *l, const uint8_t *panel, float pow2,
                         const fake_rows *x, uint32_t first, uint32_t n, float y[ROWS][PANEL])
{
    panel_block(l, panel, pow2, x, first, n, 4, 32, y);
}

void fake_product(const coli_bk_matrix *m, const uint8_t *block, fake_rows rows, float *y,
                  uint64_t ld)
{
    const coli_bk_layout l = coli_bk_layout_of(m->format, m->n_in);
    const float pow2 = coli_pow2(m->scale_exp);
    for (uint32_t o = 0; o < m->n_out; o += PANEL) {
        const uint8_t *panel = block + m->offset + o / PANEL * l.panel_bytes;
        const uint32_t n_out = m->n_out - o < PANEL ? m->n_out - o : PANEL;
        for (uint32_t first = 0, n; first < rows.n; first += n) {
            float part[ROWS][PANEL];
            n = rows.n - first < ROWS ? rows.n - first : ROWS;
            if (l.bits == 8)
                (l.group == 64 ? panel_i8_g64 : panel_i8_g32)(&l, panel, pow2, &rows, first, n,
                                                              part);
            else
                (l.group == 64 ? panel_i4_g64 : panel_i4_g32)(&l, panel, pow2, &rows, first, n,
                                                              part);
            for (uint32_t i = 0; i < n; i++)
                memcpy(y + (first + i) * ld + o, part[i], n_out * sizeof *y);
        }
    }
}

/* ---- experts --------------------------------------------------------------------------------- */

/* Scratch, for ROWS rows: gate and up (ROWS, f), then h as scales (ROWS, n_group) and as codes
 * (ROWS, n_group * group) bytes. */
size_t fake_expert_scratch(const coli_bk_matrix m[3])
{
    const coli_bk_layout l = coli_bk_layout_of(m[2].format, m[2].n_in);
    const uint64_t n =
        ROWS * (2 * (uint64_t)m[2].n_in + l.n_group + (uint64_t)l.n_group * l.group / 4);
    return n > SIZE_MAX / sizeof(float) ? 0 : (size_t)n;
}

/* h = silu(g) * u of one row, into g, then quantised.  False: a number is out of range. */
static bool quantise_hidden(const coli_bk_layout *l, uint32_t f, float *g, const float *u,
                            int8_t *q, float *d)
{
    bool in_range = true;
    for (uint32_t i = 0; i < f; i++) g[i] = coli_silu(g[i]) * u[i];
    for (uint32_t i = 0; i < l->n_group; i++) {
        const uint32_t first = i * l->group, left = f - first;
        int32_t sum;
        in_range &= coli_quantise_group(g + first, left < l->group ? left : l->group, l->group,
                                        q + first, &d[i], &sum);
    }
    return in_range;
}

void fake_expert(const coli_bk_matrix m[3], const uint8_t *block, fake_rows rows, float *scratch,
                 float *y, uint64_t ld, uint8_t *flag)
{
    const coli_bk_matrix *gate = &m[0], *up = &m[1], *down = &m[2];
    const coli_bk_layout l = coli_bk_layout_of(down->format, down->n_in);
    const size_t f = down->n_in, padded = (size_t)l.n_group * l.group;
    float *g = scratch, *u = g + ROWS * f, *hd = u + ROWS * f;
    int8_t *hq = (int8_t *)(hd + (size_t)ROWS * l.n_group);
    for (uint32_t first = 0, n; first < rows.n; first += n) {
        n = rows.n - first < ROWS ? rows.n - first : ROWS;
        // index[] is what tells rows apart, so a later block only needs a later index
        const fake_rows x = {rows.q, rows.d, rows.index + first, n};
        fake_product(gate, block, x, g, f);
        fake_product(up, block, x, u, f);
        for (uint32_t i = 0; i < n; i++)
            flag[first + i] = !quantise_hidden(&l, down->n_in, g + i * f, u + i * f,
                                               hq + i * padded, hd + (size_t)i * l.n_group);
        float *out = y + first * ld;
        fake_product(down, block, (fake_rows){hq, hd, NULL, n}, out, ld);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t o = 0; flag[first + i] && o < down->n_out; o++)
                out[i * ld + o] = coli_from_bits(0x7FC00000u);
    }
}
