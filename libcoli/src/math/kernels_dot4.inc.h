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
 * Where registers are plenty, two panels share each load of activations (PANELS_MAX).
 *
 * Codes of int4 are 0..15, which is 8 too large.  Sums start at minus the excess times the sum of
 * the group's activations. */

enum { N_SUM = 4 / NV }; // independent sums of one row, enough to hide the instruction's latency
enum { AHEAD = 4096 };   // bytes; 2048 is slower

typedef struct group_sums {
    vi s[N_SUM][PANELS_MAX * ROWS_MAX][NV]; // of panel p and row r at p*R + r
} group_sums;

/* What is fixed while sixteen columns are added. */
typedef struct columns {
    const row_block *x;
    uint64_t first; // column, counted from the start of the rows
} columns;

INLINE void add_quad(group_sums *sums, columns c, vb w[PANELS_MAX][NV], const uint32_t k,
                     const uint32_t R, const uint32_t P)
{
    const uint32_t n_sum = R * P >= N_SUM ? 1 : N_SUM / (R * P);
    for (uint32_t r = 0; r < R; r++)
        for (uint32_t p = 0; p < P; p++)
            for (uint32_t v = 0; v < NV; v++) {
                vi *s = &sums->s[k % n_sum][p * R + r][v];
                *s = dot4(*s, w[p][v], c.x->q[r] + c.first, k);
            }
}

/* One chunk of int4: quads k and k+1. */
INLINE void add_int4(group_sums *sums, columns c, const uint8_t *chunk, uint64_t step,
                     const uint32_t k, const uint32_t R, const uint32_t P)
{
    vb low[PANELS_MAX][NV], high[PANELS_MAX][NV];
    for (uint32_t p = 0; p < P; p++)
        for (uint32_t v = 0; v < NV; v++) {
            const vb codes = *(const vb_unaligned *)(chunk + p * step + 4 * VW * v);
            low[p][v] = codes & 15;
            high[p][v] = codes >> 4;
        }
    add_quad(sums, c, low, k, R, P);
    add_quad(sums, c, high, k + 1, R, P);
}

/* A row alone reads int8 faster than the processor fetches ahead by itself; its own stream is what has to
 * be fetched, and the next panel as well is too much. */
INLINE bool fetches_itself(const bool is4, const uint32_t R)
{
    return !is4 && R == 1;
}

/* One chunk of int8: quad k. */
INLINE void add_int8(group_sums *sums, columns c, const uint8_t *chunk, uint64_t step,
                     const uint32_t k, const uint32_t R, const uint32_t P)
{
    vb w[PANELS_MAX][NV];
    if (fetches_itself(false, R)) __builtin_prefetch(chunk + AHEAD);
    for (uint32_t p = 0; p < P; p++)
        for (uint32_t v = 0; v < NV; v++)
            w[p][v] = int8_weights(*(const vb_unaligned *)(chunk + p * step + 4 * VW * v));
    add_quad(sums, c, w, k, R, P);
}

/* v[p*R + r] = what group g adds to the sixteen outputs of panel p, for P panels that are `step` bytes
 * apart and R rows. */
INLINE void dot4_values(const row_block *x, uint64_t g, const uint8_t *codes, uint64_t step,
                        const lanes *scale, const bool is4, const uint32_t group, const uint32_t R,
                        const uint32_t P, lanes *v)
{
    group_sums sums = {0};
    for (uint32_t p = 0; p < P; p++)
        for (uint32_t r = 0; r < R; r++)
            for (uint32_t i = 0; i < NV; i++)
                sums.s[0][p * R + r][i] = x->sum[r][g] * (is4 ? -8 : -EXCESS8) - (vi){0};
    for (uint32_t c = 0; c < group; c += 16) {
        const columns at = {x, g * group + c};
        for (uint32_t k = 0; k < 4; k += is4 ? 2 : 1) {
            const uint8_t *chunk = codes + (is4 ? 8 * c + 32 * k : 16 * c + 64 * k);
            if (is4)
                add_int4(&sums, at, chunk, step, k, R, P);
            else
                add_int8(&sums, at, chunk, step, k, R, P);
        }
    }
    for (uint32_t p = 0; p < P; p++)
        for (uint32_t r = 0; r < R; r++)
            for (uint32_t i = 0; i < NV; i++) {
                vi s = sums.s[0][p * R + r][i];
                for (uint32_t k = 1; k < N_SUM; k++) s += sums.s[k][p * R + r][i];
                v[p * R + r].v[i] = __builtin_convertvector(s, vf) * (scale[p].v[i] * x->d[r][g]);
            }
}
