/* check_suspect.c - which mistake gives exactly the wrong numbers that were found?
 *
 * A device's arithmetic is ten small steps.  `right` below has them as coli/exact.h does them; each
 * suspect replaces one by a mistake that people make.  The row is computed again with that step, and
 * when every bit comes out as found, that was it: a row has some hundred bits that depend on
 * everything, so chance does not explain it.
 *
 * Other mistakes are not in the arithmetic but in what it was given: old weights, half of the new
 * ones, another row.  These are computed with the right steps from the wrong inputs.
 *
 * What nobody suspected is described by how far it is off. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../base/alloc.h"
#include "check.h"
#include "coli/exact.h"

/* ---- the steps, and mistakes in them ----------------------------------------------------------- */

typedef struct term { // one group of an output
    int32_t s;
    float scale, d, v;
} term;

typedef struct steps {
    const char *says;
    uint32_t (*columns)(uint32_t n_in, uint32_t group); // how many of a row count
    int32_t (*weight)(uint32_t bits, const uint8_t *codes, uint32_t r, uint32_t c);
    float (*half)(uint16_t h);         // a stored f16 scale
    float (*power)(int32_t scale_exp); // of the matrix
    float (*value)(int32_t s, float scale, float d);
    float (*sum)(const term *t, uint32_t n);
    float (*hidden)(float gate, float up);
    float (*unit)(float amax);                      // the scale d of a group of h
    int32_t (*round)(float x, float d, float amax); // a number of h to an integer
} steps;

static uint32_t all_columns(uint32_t n_in, uint32_t group)
{
    (void)group;
    return n_in;
}
static uint32_t whole_groups(uint32_t n_in, uint32_t group)
{
    return n_in / group * group;
}
static uint32_t without_last_group(uint32_t n_in, uint32_t group)
{
    return (n_in - 1) / group * group;
}
static uint32_t without_last_column(uint32_t n_in, uint32_t group)
{
    (void)group;
    return n_in - 1;
}
static uint32_t without_odd_column(uint32_t n_in, uint32_t group)
{
    return n_in % group ? n_in - 1 : n_in;
}

static int32_t code_at(uint32_t bits, const uint8_t *codes, uint32_t r, uint32_t c)
{
    if (bits == 8) return codes[64 * (c / 4) + 4 * r + c % 4];
    const uint8_t byte = codes[64 * (c / 8) + 4 * r + c % 4];
    return c % 8 < 4 ? byte & 15 : byte >> 4;
}
static int32_t weight(uint32_t bits, const uint8_t *codes, uint32_t r, uint32_t c)
{
    return code_at(bits, codes, r, c) - (bits == 8 ? 128 : 8);
}
static int32_t weight_high_first(uint32_t bits, const uint8_t *codes, uint32_t r, uint32_t c)
{
    return weight(bits, codes, r, bits == 8 ? c : c ^ 4);
}
static int32_t weight_even_odd(uint32_t bits, const uint8_t *codes, uint32_t r, uint32_t c)
{
    return weight(bits, codes, r, bits == 8 ? c : c / 8 * 8 + c % 8 / 2 + c % 2 * 4);
}
static int32_t weight_unsigned(uint32_t bits, const uint8_t *codes, uint32_t r, uint32_t c)
{
    return code_at(bits, codes, r, c);
}
static int32_t weight_signed(uint32_t bits, const uint8_t *codes, uint32_t r, uint32_t c)
{
    const int32_t code = code_at(bits, codes, r, c), half = bits == 8 ? 128 : 8;
    return code < half ? code : code - 2 * half;
}

static float half_without_denormals(uint16_t h)
{
    return h & 0x7C00u ? coli_f16_to_f32(h) : 0.0f;
}
static float half_without_sign(uint16_t h)
{
    return coli_f16_to_f32(h & 0x7FFFu);
}
static float power_ignored(int32_t scale_exp)
{
    (void)scale_exp;
    return 1.0f;
}

static float value_activation_first(int32_t s, float scale, float d)
{
    return ((float)s * d) * scale;
}
static float value_weight_first(int32_t s, float scale, float d)
{
    return ((float)s * scale) * d;
}

static float sum_tree(const term *t, uint32_t n)
{
    coli_tree tree = {0};
    for (uint32_t i = 0; i < n; i++) coli_tree_add(&tree, t[i].v);
    return coli_tree_sum(&tree);
}
static float sum_signed_zero(const term *t, uint32_t n)
{
    bool is_negative = n > 0;
    for (uint32_t i = 0; i < n; i++) is_negative = is_negative && coli_bits(t[i].v) == 0x80000000u;
    return is_negative ? -0.0f : sum_tree(t, n);
}
static float sum_in_order(const term *t, uint32_t n)
{
    float sum = 0.0f;
    for (uint32_t i = 0; i < n; i++) sum = sum + t[i].v;
    return sum;
}
static float sum_fused(const term *t, uint32_t n)
{
    float sum = 0.0f;
    for (uint32_t i = 0; i < n; i++) sum = fmaf((float)t[i].s, t[i].scale * t[i].d, sum);
    return sum;
}
static float sum_tree_fused(const term *t, uint32_t n) // the first level of the tree
{
    coli_tree tree = {0};
    for (uint32_t i = 0; i < n; i += 2)
        coli_tree_add(&tree, i + 1 == n
                                 ? t[i].v
                                 : fmaf((float)t[i + 1].s, t[i + 1].scale * t[i + 1].d, t[i].v));
    return coli_tree_sum(&tree);
}
static float sum_in_double(const term *t, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum = sum + (double)t[i].v;
    return (float)sum;
}
static float sum_far_pairs(const term *t, uint32_t n) // i with i + half, padded to a power of two
{
    if (n == 0) return 0.0f;
    if (n == 1) return t[0].v + 0.0f;
    uint32_t half = 1;
    while (2 * half < n) half *= 2;
    coli_tree tree = {0};
    /* i with i + half first, then i with i + half/2, ...: the tree over bit-reversed indices */
    for (uint32_t k = 0; k < 2 * half; k++) {
        uint32_t i = 0;
        for (uint32_t bit = 1, from = half; from > 0; bit *= 2, from /= 2)
            if (k & bit) i |= from;
        coli_tree_add(&tree, i < n ? t[i].v : 0.0f);
    }
    return coli_tree_sum(&tree);
}
static float sum_scale_last(const term *t, uint32_t n) // of formats with one scale per row
{
    coli_tree tree = {0};
    for (uint32_t i = 0; i < n; i++) coli_tree_add(&tree, (float)t[i].s * t[i].d);
    return n ? coli_tree_sum(&tree) * t[0].scale : 0.0f;
}
static float sum_integers(const term *t, uint32_t n) // over the whole row, which has one d at best
{
    int64_t s = 0;
    for (uint32_t i = 0; i < n; i++) s += t[i].s;
    return n ? (float)s * (t[0].scale * t[0].d) : 0.0f;
}

static float hidden(float gate, float up)
{
    return coli_silu(gate) * up;
}
static float hidden_swapped(float gate, float up)
{
    return coli_silu(up) * gate;
}
static float hidden_without_silu(float gate, float up)
{
    return gate * up;
}
static float hidden_sigmoid_first(float gate, float up)
{
    return gate * (coli_sigmoid(gate) * up);
}
static float hidden_divided(float gate, float up)
{
    return gate / (1.0f + coli_exp(-coli_clamp(gate, -80.0f, 80.0f))) * up;
}

static float unit(float amax)
{
    return amax * (1.0f / 127.0f);
}
static float unit_divided(float amax)
{
    return amax / 127.0f;
}

static int32_t to_even(float x)
{
    return (int32_t)(coli_bits(x + 0x1.8p23f) - 0x4B400000u);
}
static int32_t rounded(float x, float d, float amax)
{
    (void)amax;
    return to_even(x * coli_recip(d));
}
static int32_t rounded_away(float x, float d, float amax)
{
    (void)amax;
    const float t = x * coli_recip(d), magnitude = floorf(fabsf(t) + 0.5f);
    return (int32_t)(t < 0 ? -magnitude : magnitude);
}
static int32_t rounded_up(float x, float d, float amax)
{
    (void)amax;
    return (int32_t)floorf(x * coli_recip(d) + 0.5f);
}
static int32_t truncated(float x, float d, float amax)
{
    (void)amax;
    return (int32_t)(x * coli_recip(d));
}
static int32_t divided(float x, float d, float amax)
{
    (void)amax;
    return to_even(x / d);
}
static int32_t times_divided(float x, float d, float amax)
{
    (void)amax;
    return to_even(x * (1.0f / d));
}
static int32_t times_inverse_amax(float x, float d, float amax)
{
    (void)d;
    return to_even(x * (127.0f / amax));
}

static const steps right = {
    .columns = all_columns,
    .weight = weight,
    .half = coli_f16_to_f32,
    .power = coli_pow2,
    .value = coli_group_value,
    .sum = sum_tree,
    .hidden = hidden,
    .unit = unit,
    .round = rounded,
};

static const steps suspects[] = {
    {"the sum looks sequential, not a tree", .sum = sum_in_order},
    {"products and sums look fused (a multiply-add with one rounding), one after another",
     .sum = sum_fused},
    {"the first sums of the tree look fused with their products", .sum = sum_tree_fused},
    {"the tree looks like pairs i and i+n/2, not neighbours", .sum = sum_far_pairs},
    {"the sum looks like one in double", .sum = sum_in_double},
    {"-0 where the sum's last +0 is missing", .sum = sum_signed_zero},
    {"the weight scale looks applied late: (s * d) * scale", .value = value_activation_first},
    {"the weight scale looks applied late: to the sum instead of to each group",
     .sum = sum_scale_last},
    {"the activation scale looks applied late: (s * scale) * d", .value = value_weight_first},
    {"the integers look summed over the whole row, not over groups", .sum = sum_integers},
    {"scale_exp looks ignored", .power = power_ignored},
    {"denormal f16 scales look read as 0", .half = half_without_denormals},
    {"the sign of f16 scales looks ignored", .half = half_without_sign},
    {"the columns behind the last whole group look ignored", .columns = whole_groups},
    {"the last column of a width that is no multiple of the group looks ignored",
     .columns = without_odd_column},
    {"the last group looks ignored", .columns = without_last_group},
    {"the last column looks ignored", .columns = without_last_column},
    {"low and high nibbles look exchanged", .weight = weight_high_first},
    {"nibbles look read as even and odd columns", .weight = weight_even_odd},
    {"the codes look unsigned: 8 or 128 was not subtracted", .weight = weight_unsigned},
    {"the codes look read as two's complement", .weight = weight_signed},
    {"gate and up look exchanged", .hidden = hidden_swapped},
    {"silu looks missing", .hidden = hidden_without_silu},
    {"silu looks computed in another order: gate * (sigmoid(gate) * up)",
     .hidden = hidden_sigmoid_first},
    {"silu looks computed with a division", .hidden = hidden_divided},
    {"inner activations look rounded half away from zero, not half to even", .round = rounded_away},
    {"inner activations look rounded half up, not half to even", .round = rounded_up},
    {"inner activations look truncated, not rounded", .round = truncated},
    {"inner activations look divided by d, not multiplied by coli_recip(d)", .round = divided},
    {"inner activations look multiplied by a true 1/d, not by coli_recip(d)",
     .round = times_divided},
    {"inner activations look multiplied by 127/amax, not by coli_recip(d)",
     .round = times_inverse_amax},
    {"the scale of inner activations looks like amax / 127, not amax * (1/127)",
     .unit = unit_divided},
};

/* ---- a row by steps ---------------------------------------------------------------------------- */

typedef struct scratch { // sized for one question
    float *gate, *up, *hd, *y;
    int8_t *hq;
    term *terms;
    uint8_t *block; // for torn content
} scratch;

static float stored_scale(const steps *by, const coli_bk_layout *l, const uint8_t *scales,
                          uint32_t r)
{
    uint16_t h;
    float scale;
    memcpy(&h, scales + l->scale_bytes * r, sizeof h);
    if (l->scale_bytes == 2) return by->half(h);
    memcpy(&scale, scales + 4 * r, sizeof scale);
    return scale;
}

static void product(const steps *by, const coli_bk_matrix *m, const void *block, const int8_t *q,
                    const float *d, term *terms, float *y)
{
    const coli_bk_layout l = coli_bk_layout_of(m->format, m->n_in);
    const uint32_t n_column = by->columns(m->n_in, l.group);
    for (uint32_t o = 0; o < m->n_out; o++) {
        const uint8_t *panel =
            (const uint8_t *)block + m->offset + o / COLI_BK_PANEL * l.panel_bytes;
        const uint32_t r = o % COLI_BK_PANEL;
        for (uint32_t g = 0; g < l.n_group; g++) {
            const uint8_t *group = panel + l.first_group + (uint64_t)g * l.group_bytes;
            const uint8_t *scales = l.per_row ? panel : group;
            term *t = &terms[g];
            t->scale = stored_scale(by, &l, scales, r) * by->power(m->scale_exp);
            t->d = d[g];
            t->s = 0;
            for (uint32_t c = 0; c < l.group && g * l.group + c < n_column; c++)
                t->s +=
                    q[(size_t)g * l.group + c] * by->weight(l.bits, group + l.code_offset, r, c);
            t->v = by->value(t->s, t->scale, t->d);
        }
        y[o] = by->sum(terms, l.n_group);
    }
}

static void quantise(const steps *by, const float *x, uint32_t n, int8_t *q, float *d)
{
    float amax = 0.0f;
    for (uint32_t i = 0; i < n; i++) amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    *d = 0.0f;
    if (!(amax >= 0x1p-56f && amax < 0x1p40f)) return; // q is zero already
    *d = by->unit(amax);
    for (uint32_t i = 0; i < n; i++) {
        int32_t v = by->round(x[i], *d, amax);
        v = v < -127 ? -127 : v;
        q[i] = (int8_t)(v > 127 ? 127 : v);
    }
}

/* s->y becomes what the steps make of one row. */
static void compute(const steps *by, const coli_bk_source *source, const void *block,
                    const int8_t *q, const float *d, scratch *s)
{
    const coli_bk_matrix *m = source->matrix;
    if (source->n_matrix == 1) {
        product(by, m, block, q, d, s->terms, s->y);
        return;
    }
    product(by, &m[0], block, q, d, s->terms, s->gate);
    product(by, &m[1], block, q, d, s->terms, s->up);
    const uint32_t f = m[2].n_in, group = coli_bk_layout_of(m[2].format, f).group;
    for (uint32_t i = 0; i < f; i++) s->gate[i] = by->hidden(s->gate[i], s->up[i]);
    for (uint32_t g = 0; g * group < f; g++) {
        memset(s->hq + (size_t)g * group, 0, group);
        quantise(by, s->gate + (size_t)g * group, f - g * group < group ? f - g * group : group,
                 s->hq + (size_t)g * group, &s->hd[g]);
    }
    product(by, &m[2], block, s->hq, s->hd, s->terms, s->y);
}

static bool scratch_init(scratch *s, const coli_bk_source *source)
{
    size_t widest = 64; // of any row, and a group more
    for (uint32_t i = 0; i < source->n_matrix; i++) {
        const coli_bk_matrix *m = &source->matrix[i];
        if (m->n_in + 64u > widest) widest = m->n_in + 64u;
        if (m->n_out > widest) widest = m->n_out;
    }
    *s = (scratch){.gate = coli__calloc(widest, sizeof(float)),
                   .up = coli__calloc(widest, sizeof(float)),
                   .hd = coli__calloc(widest, sizeof(float)),
                   .y = coli__calloc(widest, sizeof(float)),
                   .hq = coli__calloc(widest, 1),
                   .terms = coli__calloc(widest, sizeof(term)),
                   .block = coli__alloc64(source->n_bytes)};
    return s->gate && s->up && s->hd && s->y && s->hq && s->terms && s->block;
}

static void scratch_finish(scratch *s)
{
    coli__free(s->gate);
    coli__free(s->up);
    coli__free(s->hd);
    coli__free(s->y);
    coli__free(s->hq);
    coli__free(s->terms);
    coli__free_aligned(s->block);
}

/* ---- the questions ----------------------------------------------------------------------------- */

static bool is_found(const coli__ck_question *a, const scratch *s)
{
    return memcmp(a->found, s->y, a->n_out * sizeof(float)) == 0;
}

static const int8_t *q_of(const coli__ck_rows *x, uint32_t row)
{
    return x->q + (size_t)row * x->n_group * x->group;
}
static const float *d_of(const coli__ck_rows *x, uint32_t row)
{
    return x->d + (size_t)row * x->n_group;
}

/* A mistake in a step, or several that cannot be told apart by this row. */
static bool wrong_step(const coli__ck_question *a, scratch *s, char *text)
{
    size_t used = 0;
    for (size_t i = 0; i < sizeof suspects / sizeof *suspects; i++) {
        steps by = right;
#define REPLACE(step)                                                                              \
    if (suspects[i].step) by.step = suspects[i].step
        REPLACE(columns);
        REPLACE(weight);
        REPLACE(half);
        REPLACE(power);
        REPLACE(value);
        REPLACE(sum);
        REPLACE(hidden);
        REPLACE(unit);
        REPLACE(round);
#undef REPLACE
        compute(&by, a->source, a->source->data, q_of(a->x, a->row), d_of(a->x, a->row), s);
        if (is_found(a, s) && used < COLI__CK_TEXT)
            used += (size_t)snprintf(text + used, COLI__CK_TEXT - used, "%s%s", used ? ", or " : "",
                                     suspects[i].says);
    }
    return used > 0;
}

/* Another row, or a row read from the wrong place. */
static bool wrong_row(const coli__ck_question *a, scratch *s, char *text)
{
    const coli_bk_source *e = a->source;
    if (a->after) {
        compute(&right, e, e->data, q_of(a->after, a->row), d_of(a->after, a->row), s);
        if (is_found(a, s)) {
            snprintf(text, COLI__CK_TEXT,
                     "computed from what the host wrote there after the call had returned");
            return true;
        }
    }
    for (uint32_t i = 0; i < a->x->n && i < 64; i++) {
        compute(&right, e, e->data, q_of(a->x, i), d_of(a->x, i), s);
        if (i != a->row && is_found(a, s)) {
            snprintf(text, COLI__CK_TEXT, "computed from activation row %u instead of %u", i,
                     a->row);
            return true;
        }
    }
    compute(&right, e, e->data, a->x->q + (size_t)a->row * a->x->n_in, d_of(a->x, a->row), s);
    if (is_found(a, s)) {
        snprintf(text, COLI__CK_TEXT, "rows of q look read n_in apart, not n_group * group");
        return true;
    }
    return false;
}

/* The content before an overwrite, or a mixture of the two.  Where the border is, nobody knows:
 * every 16 bytes of a small block are tried. */
static bool wrong_content(const coli__ck_question *a, scratch *s, char *text)
{
    if (!a->before || a->before->n_bytes != a->source->n_bytes) return false;
    const int8_t *q = q_of(a->x, a->row);
    const float *d = d_of(a->x, a->row);
    const uint8_t *old = a->before->data, *new = a->source->data;
    compute(&right, a->before, old, q, d, s);
    if (is_found(a, s)) {
        snprintf(text, COLI__CK_TEXT,
                 "computed with the content before the overwrite: the overwrite is stale");
        return true;
    }
    const coli_bk_source *exps[2] = {a->source, a->before}; // whose scale_exp
    const uint64_t n_bytes = a->source->n_bytes, step = 16 * (1 + n_bytes / 65536);
    for (uint64_t at = 0; at <= n_bytes; at += step)
        for (uint32_t first_new = 0; first_new < 2; first_new++)
            for (uint32_t e = 0; e < 2; e++) {
                memcpy(s->block, first_new ? new : old, at);
                memcpy(s->block + at, (first_new ? old : new) + at, n_bytes - at);
                compute(&right, exps[e], s->block, q, d, s);
                if (!is_found(a, s)) continue;
                snprintf(
                    text, COLI__CK_TEXT,
                    "computed with a torn mixture: %s content up to byte %llu of %llu, %s behind%s",
                    first_new ? "new" : "old", (unsigned long long)at, (unsigned long long)n_bytes,
                    first_new ? "old" : "new", e ? ", scale_exp old" : "");
                return true;
            }
    return false;
}

/* Nothing that is known.  How far off? */
static void describe(const coli__ck_question *a, char *text)
{
    uint32_t n_wrong = 0, n_zero = 0, n_nan = 0, most_ulp = 0;
    for (uint32_t o = 0; o < a->n_out; o++) {
        const uint32_t found = coli_bits(a->found[o]), expected = coli_bits(a->expected[o]);
        n_zero += (found & 0x7FFFFFFFu) == 0;
        n_nan += (found & 0x7FFFFFFFu) > 0x7F800000u;
        if (found == expected) continue;
        n_wrong++;
        uint32_t ulp = found > expected ? found - expected : expected - found;
        if ((found ^ expected) >> 31) ulp = UINT32_MAX;
        most_ulp = ulp > most_ulp ? ulp : most_ulp;
    }
    if (n_zero == a->n_out)
        snprintf(text, COLI__CK_TEXT, "the whole row is zero");
    else if (n_nan > 0)
        snprintf(text, COLI__CK_TEXT, "%u of %u outputs are no numbers (never written?)", n_nan,
                 a->n_out);
    else if (most_ulp < 64)
        snprintf(
            text, COLI__CK_TEXT,
            "%u of %u outputs are off by at most %u units in the last place: some operation is "
            "rounded differently (fused, reordered, approximate?)",
            n_wrong, a->n_out, most_ulp);
    else
        snprintf(text, COLI__CK_TEXT, "%u of %u outputs are wrong, and no known mistake gives them",
                 n_wrong, a->n_out);
}

void coli__ck_suspect(const coli__ck_question *question, char text[COLI__CK_TEXT])
{
    scratch s;
    if (!scratch_init(&s, question->source))
        snprintf(text, COLI__CK_TEXT, "(not enough memory to look for the mistake)");
    else if (!wrong_step(question, &s, text) && !wrong_content(question, &s, text) &&
             !wrong_row(question, &s, text))
        describe(question, text);
    scratch_finish(&s);
}
