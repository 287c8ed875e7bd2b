/* scales.c - choosing the scale of a group.
 *
 * The scale that just fits the largest weight (amax/7, amax/127) is rarely the best: int4 does better
 * to round all others more finely and clip one or two, int8 to take whichever scale near it lies
 * well with its few large weights.
 *
 * The error as a function of the scale s, codes q(s) being the nearest ones, is a parabola between
 * neighbouring scales where some code changes, and has a kink there:
 *
 *     E(s) = sum h (w - s q)^2       with q fixed its least is at  s + sum h (w - s q) q / sum h q^2
 *
 * So one look at a scale gives the bottom of its parabola, too ("refit").  We look at a list of parts
 * of the plain scale, take the lowest bottom, and follow it: round the scale there to its stored
 * form, look again, until nothing changes.  Where the list leads past the true least, it is by little: over
 * groups of 64 normal weights 0.1 % (int4) and 0.3 % (int8) of the error, by a search of a thousand
 * scales (docs/adr/0004-scales-by-squared-error.md).
 *
 * Int4 codes run from -8 to 7, and a scale may be negative: so the weight of the largest magnitude can
 * always be the one that has eight steps.  Where all weights count alike that sign is the better one
 * nearly always (both: 0.01 % less error), so only it is tried; else both are.
 *
 * The sums are float, in eight lanes; what was found is compared with the plain scale in double.
 * Everything is single-rounded arithmetic in a fixed order, so that containers are the same bytes
 * wherever they are made. */
#include "scales.h"

#include "coli/exact.h"

enum { LANES = 8 };

/* ---- stored forms --------------------------------------------------------------------------- */

float coli__scale_stored(coli__wfmt fmt, float wanted, int32_t scale_exp)
{
    float scale = wanted;
    if (fmt.scale_f16) {
        const uint16_t h = coli_f32_to_f16(wanted * coli_pow2(-scale_exp));
        scale = (h & 0x7C00u) == 0x7C00u ? 0.0f : coli_f16_to_f32(h) * coli_pow2(scale_exp);
    }
    return coli__scale_is_valid(scale) ? scale : 0.0f;
}

/* ---- one scale ------------------------------------------------------------------------------ */

/* What rounding with a scale gives: sums of h e^2, h e q and h q^2. */
typedef struct trial {
    float error, slope, curve;
} trial;

/* The least that these codes can have, and the scale where. */
static float bottom(trial t)
{
    return t.curve > 0.0f ? t.error - t.slope * t.slope / t.curve : t.error;
}
static float refit(trial t, float scale)
{
    return t.curve > 0.0f ? scale + t.slope / t.curve : scale;
}

static float add_lanes(const float *lane)
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static inline void add_one(const coli__group *g, uint32_t i, uint32_t l, float scale, float inverse,
                           coli__codes codes, float lane[3][LANES])
{
    const float h = g->importance ? g->importance[i] : 1.0f;
    const float q = coli__code_of(g->w[i], inverse, codes), e = g->w[i] - q * scale;
    lane[0][l] += h * e * e;
    lane[1][l] += h * e * q;
    lane[2][l] += h * q * q;
}

static trial try_scale(const coli__group *g, float scale)
{
    const coli__codes codes = g->codes;
    const float inverse = coli__scale_inverse(scale);
    float lane[3][LANES] = {{0}};
    uint32_t i = 0;
    if (g->importance) // the same twice, so that the common case is a loop without a choice in it
        for (; i + LANES <= g->n; i += LANES)
            for (uint32_t l = 0; l < LANES; l++) add_one(g, i + l, l, scale, inverse, codes, lane);
    else
        for (; i + LANES <= g->n; i += LANES)
            for (uint32_t l = 0; l < LANES; l++) add_one(g, i + l, l, scale, inverse, codes, lane);
    for (; i < g->n; i++) add_one(g, i, i % LANES, scale, inverse, codes, lane);
    return (trial){add_lanes(lane[0]), add_lanes(lane[1]), add_lanes(lane[2])};
}

double coli__scale_error(const coli__group *g, float scale)
{
    const coli__codes codes = g->codes;
    const float inverse = coli__scale_inverse(scale);
    double sum = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        const float back = coli__code_of(g->w[i], inverse, codes) * scale; // as it will be read
        const double e = (double)g->w[i] - (double)back;
        sum += (g->importance ? (double)g->importance[i] : 1.0) * e * e;
    }
    return sum;
}

/* ---- the search ----------------------------------------------------------------------------- */

static float abs_max(const float *w, uint32_t n) // finite numbers
{
    uint32_t amax = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t magnitude = coli_bits(w[i]) & 0x7FFFFFFFu;
        amax = magnitude > amax ? magnitude : amax;
    }
    return coli_from_bits(amax);
}

/* Parts of the plain scale, [first, end) by steps. */
typedef struct parts {
    float first, step;
    uint32_t n;
} parts;

/* Int4: from clipping hard to not quite reaching the end.  Int8 has nothing to win by clipping, unless
 * the largest weights hardly count, but its error goes up and down with every thousandth. */
static const parts int4_parts[] = {{0.4f, 0.036f, 20}};
static const parts int8_parts[] = {{0.4f, 0.05f, 12}, {0.985f, 0.0015f, 110}};

typedef struct search {
    const coli__group *g;
    float least; // bottom of all parabolas so far
    float at;    // the scale there
} search;

static void look(search *s, float scale)
{
    const trial t = try_scale(s->g, scale);
    const float b = bottom(t);
    if (!(b < s->least)) return;
    s->least = b;
    s->at = refit(t, scale);
}

/* From a scale to the best stored one nearby. */
static float settle(const coli__group *g, float at)
{
    enum { ROUNDS = 4 };
    float best = 0.0f, error = 0.0f;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        const float scale = coli__scale_stored(g->fmt, at, g->scale_exp);
        const trial t = try_scale(g, scale);
        if (i > 0 && !(t.error < error)) break;
        error = t.error;
        best = scale;
        at = refit(t, scale);
    }
    return best;
}

static float full_scale(const coli__group *g)
{
    return abs_max(g->w, g->n) / g->codes.hi;
}

float coli__scale_plain(const coli__group *g)
{
    return coli__scale_stored(g->fmt, full_scale(g), g->scale_exp);
}

static void look_at_parts(search *s, float full)
{
    const bool is4 = s->g->fmt.type == COLI_W_I4;
    const parts *list = is4 ? int4_parts : int8_parts;
    const uint32_t n_list =
        is4 ? sizeof int4_parts / sizeof *int4_parts : sizeof int8_parts / sizeof *int8_parts;
    for (uint32_t k = 0; k < n_list; k++)
        for (uint32_t i = 0; i < list[k].n; i++)
            look(s, full * (list[k].first + (float)i * list[k].step));
}

/* Whether the weight of the largest magnitude is negative. */
static bool reaches_down(const coli__group *g)
{
    float most = 0.0f, least = 0.0f;
    for (uint32_t i = 0; i < g->n; i++) {
        most = g->w[i] > most ? g->w[i] : most;
        least = g->w[i] < least ? g->w[i] : least;
    }
    return -least > most;
}

float coli__scale_best(const coli__group *g)
{
    const float full = full_scale(g), plain = coli__scale_plain(g);
    if (plain == 0.0f) return 0.0f; // nothing but zeros, or too little for any scale
    const trial t = try_scale(g, plain);
    search s = {g, bottom(t), refit(t, plain)};
    const bool symmetric = g->codes.lo == -g->codes.hi, down = reaches_down(g);
    if (symmetric || down || g->importance) look_at_parts(&s, full);
    if (!symmetric && (!down || g->importance)) look_at_parts(&s, -full);
    const float found = settle(g, s.at);
    return coli__scale_error(g, found) < coli__scale_error(g, plain) ? found : plain;
}
