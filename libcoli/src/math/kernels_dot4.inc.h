/* kernels_dot4.inc.h - products of a group with an instruction that adds four products of bytes to
 * each 32-bit sum.
 *
 * Sixteen columns of a panel are four quads of columns, each in NV registers: lane i holds four
 * weights of output i.  The instruction multiplies them by the same four activations in every lane;
 * there is no shuffle and no horizontal sum.  The including file has defined, for its instruction
 * set,
 *
 *     EXCESS8       by how much int8_weights are too large: 128 as they are stored, else 0
 *     int8_weights  codes of int8 as dot4 takes them
 *     dot4          sums + weights * quad k of the sixteen activations at q
 *
 * Codes of int4 are 0..15, which is 8 too large.  Sums start at minus the excess times the sum of
 * the group's activations. */

enum { N_SUM = 4 / NV }; // independent sums of one row, enough to hide the instruction's latency
enum { AHEAD = 2048 };   // bytes

typedef struct group_sums {
    vi s[N_SUM][ROWS_MAX][NV];
} group_sums;

/* What is fixed while sixteen columns are added. */
typedef struct columns {
    const row_block *x;
    uint64_t first; // column, counted from the start of the rows
} columns;

INLINE void add_quad(group_sums *sums, columns c, const vb *w, const uint32_t k, const uint32_t R)
{
    const uint32_t n_sum = R >= N_SUM ? 1 : N_SUM / R;
    for (uint32_t r = 0; r < R; r++)
        for (uint32_t v = 0; v < NV; v++) {
            vi *s = &sums->s[k % n_sum][r][v];
            *s = dot4(*s, w[v], c.x->q[r] + c.first, k);
        }
}

/* One chunk of int4: quads k and k+1. */
INLINE void add_int4(group_sums *sums, columns c, const uint8_t *chunk, const uint32_t k,
                     const uint32_t R)
{
    vb low[NV], high[NV];
    for (uint32_t v = 0; v < NV; v++) {
        const vb codes = *(const vb_unaligned *)(chunk + 4 * VW * v);
        low[v] = codes & 15;
        high[v] = codes >> 4;
    }
    add_quad(sums, c, low, k, R);
    add_quad(sums, c, high, k + 1, R);
}

/* One chunk of int8: quad k.  A row alone reads int8 faster than the processor fetches ahead by
 * itself. */
INLINE void add_int8(group_sums *sums, columns c, const uint8_t *chunk, const uint32_t k,
                     const uint32_t R)
{
    vb w[NV];
    if (R == 1) __builtin_prefetch(chunk + AHEAD);
    for (uint32_t v = 0; v < NV; v++)
        w[v] = int8_weights(*(const vb_unaligned *)(chunk + 4 * VW * v));
    add_quad(sums, c, w, k, R);
}

/* v[r] = what group g adds to the sixteen outputs, for R rows. */
INLINE void dot4_values(const row_block *x, uint64_t g, const uint8_t *codes, lanes scale,
                        const bool is4, const uint32_t group, const uint32_t R, lanes *v)
{
    group_sums sums = {0};
    for (uint32_t r = 0; r < R; r++)
        for (uint32_t i = 0; i < NV; i++)
            sums.s[0][r][i] = x->sum[r][g] * (is4 ? -8 : -EXCESS8) - (vi){0};
    for (uint32_t c = 0; c < group; c += 16) {
        const columns at = {x, g * group + c};
        if (is4) {
            add_int4(&sums, at, codes + 8 * c, 0, R);
            add_int4(&sums, at, codes + 8 * c + 64, 2, R);
        } else {
            add_int8(&sums, at, codes + 16 * c, 0, R);
            add_int8(&sums, at, codes + 16 * c + 64, 1, R);
            add_int8(&sums, at, codes + 16 * c + 128, 2, R);
            add_int8(&sums, at, codes + 16 * c + 192, 3, R);
        }
    }
    for (uint32_t r = 0; r < R; r++)
        for (uint32_t i = 0; i < NV; i++) {
            vi s = sums.s[0][r][i];
            for (uint32_t k = 1; k < N_SUM; k++) s += sums.s[k][r][i];
            v[r].v[i] = __builtin_convertvector(s, vf) * (scale.v[i] * x->d[r][g]);
        }
}
