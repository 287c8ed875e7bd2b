/* matrix.c - weight formats: their names, sizes, packing and reading.
 *
 * Choosing a scale.  Sixteen levels of a group of 64 are few, and the scale that just fits the
 * largest weight (amax/7) is rarely the best: a smaller one rounds all others more finely and
 * clips one or two.  We try a fixed list of fractions of amax/7, round each to the form in which
 * it will be stored, and keep the one with the least squared error.  The unshrunken scale comes
 * first and a rival must win clearly, so the result is never worse than plain rounding.
 *
 * Int4 codes run from -8 to 7: where the largest weight is negative, amax/8 fits it exactly. */
#include "matrix.h"

#include <stdio.h>
#include <string.h>

#include "../base/alloc.h"
#include "kernels_impl.h"

/* ---- names and sizes ------------------------------------------------------------------------ */

bool coli__wfmt_valid(coli__wfmt fmt)
{
    switch (fmt.type) {
    case COLI_W_F32:
    case COLI_W_BF16:
        return fmt.group == 0 && !fmt.per_row && !fmt.scale_f16;
    case COLI_W_I8:
    case COLI_W_I4:
        return fmt.group == 64 || (fmt.group == 32 && !fmt.per_row);
    case COLI_W_N:
        break;
    }
    return false;
}

void coli__wfmt_name(coli__wfmt fmt, char out[32])
{
    if (!coli__wfmt_is_quant(fmt)) {
        snprintf(out, 32, "%s", fmt.type == COLI_W_F32 ? "f32" : "bf16");
        return;
    }
    snprintf(out, 32, "%s-%s-%s", fmt.type == COLI_W_I4 ? "int4" : "int8",
             fmt.per_row       ? "row"
             : fmt.group == 32 ? "g32"
                               : "g64",
             fmt.scale_f16 ? "f16" : "f32");
}

/* Every valid format, so that parse is the inverse of name by construction. */
static bool nth_format(uint32_t n, coli__wfmt *out)
{
    if (n >= 14) return false;
    if (n < 2) {
        *out = (coli__wfmt){.type = n == 0 ? COLI_W_F32 : COLI_W_BF16};
        return true;
    }
    const uint32_t shape = (n - 2) / 4; // groups of 64, groups of 32, per row
    *out = (coli__wfmt){.type = n & 1 ? COLI_W_I8 : COLI_W_I4,
                        .group = shape == 1 ? 32 : 64,
                        .per_row = shape == 2,
                        .scale_f16 = (n & 2) != 0};
    return true;
}

coli_status coli__wfmt_parse(const char *name, coli__wfmt *out)
{
    char full[40];
    const bool is_short = strcmp(name, "int4") == 0 || strcmp(name, "int8") == 0;
    snprintf(full, sizeof full, "%.31s%s", name, is_short ? "-g64-f16" : "");
    for (uint32_t i = 0; nth_format(i, out); i++) {
        char candidate[32];
        coli__wfmt_name(*out, candidate);
        if (strcmp(candidate, full) == 0) return COLI_OK;
    }
    *out = (coli__wfmt){0};
    return coli__fail(COLI_E_FORMAT,
                      "weight format \"%.31s\": expected f32, bf16, int4, int8 or "
                      "int{4,8}-{g64,g32,row}-{f16,f32}",
                      name);
}

bool coli__mat_bytes(coli__wfmt fmt, uint32_t n_out, uint32_t n_in, uint64_t *bytes,
                     uint64_t *panel_bytes)
{
    *bytes = 0;
    if (panel_bytes) *panel_bytes = 0;
    if (!coli__wfmt_valid(fmt) || n_out == 0 || n_in == 0) return false;

    uint64_t panel, total;
    if (coli__wfmt_is_quant(fmt)) {
        panel = coli__layout_of(fmt, n_in).panel_bytes;
        if (!coli__mul(panel, ((uint64_t)n_out + COLI_PANEL - 1) / COLI_PANEL, &total))
            return false;
    } else {
        panel = COLI_PANEL * coli__float_row_bytes(fmt, n_in);
        if (!coli__mul(panel / COLI_PANEL, n_out, &total)) return false;
    }
    *bytes = total;
    if (panel_bytes) *panel_bytes = panel;
    return true;
}

uint64_t coli__mat_size(const coli__mat *m)
{
    uint64_t n_bytes;
    coli__mat_bytes(m->fmt, m->n_out, m->n_in, &n_bytes, NULL); // 0 when it says no
    return n_bytes;
}

const uint8_t *coli__mat_panel(const coli__mat *m, uint32_t i)
{
    if ((uint64_t)i * COLI_PANEL >= m->n_out) return NULL;
    const uint64_t panel_bytes = coli__wfmt_is_quant(m->fmt)
                                     ? coli__layout_of(m->fmt, m->n_in).panel_bytes
                                     : COLI_PANEL * coli__float_row_bytes(m->fmt, m->n_in);
    return m->data + i * panel_bytes;
}

/* ---- rounding to stored forms --------------------------------------------------------------- */

static uint16_t f32_to_bf16(float x) // finite; to nearest, ties to even
{
    const uint32_t u = coli_bits(x);
    return (uint16_t)((u + 0x7FFFu + (u >> 16 & 1u)) >> 16);
}

static bool scale_is_valid(float scale)
{
    const float size = coli_from_bits(coli_bits(scale) & 0x7FFFFFFFu);
    return size == 0.0f || (size >= 0x1p-40f && size <= 0x1p10f);
}

/* The scale as it will be read back: `wanted` rounded to its stored form, 0 when that is not a
 * valid scale. */
static float stored_scale(coli__wfmt fmt, float wanted, int32_t scale_exp)
{
    float scale = wanted;
    if (fmt.scale_f16) {
        const uint16_t h = coli_f32_to_f16(wanted * coli_pow2(-scale_exp));
        scale = (h & 0x7C00u) == 0x7C00u ? 0.0f : coli_f16_to_f32(h) * coli_pow2(scale_exp);
    }
    return scale_is_valid(scale) ? scale : 0.0f;
}

/* ---- packing -------------------------------------------------------------------------------- */

typedef struct code_range {
    float lo, hi; // codes
} code_range;

static code_range range_of(coli__wfmt fmt)
{
    return fmt.type == COLI_W_I4 ? (code_range){-8.0f, 7.0f} : (code_range){-127.0f, 127.0f};
}

/* The same and int8's -128: kernels read it like any other code, but what we round never needs it. */
static code_range grid_range_of(coli__wfmt fmt)
{
    return fmt.type == COLI_W_I4 ? range_of(fmt) : (code_range){-128.0f, 127.0f};
}

static float code_of(float w, float inverse, code_range range)
{
    float v = w * inverse;
    v = v < range.lo ? range.lo : v; // before rounding: it needs |v| < 2^22
    v = v > range.hi ? range.hi : v;
    return (v + 0x1.8p23f) - 0x1.8p23f;
}

static float squared_error(const float *w, uint32_t n, float scale, code_range range)
{
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    float lane[16] = {0};
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (uint32_t l = 0; l < 16; l++) {
            const float e = w[i + l] - code_of(w[i + l], inverse, range) * scale;
            lane[l] = lane[l] + e * e;
        }
    for (; i < n; i++) {
        const float e = w[i] - code_of(w[i], inverse, range) * scale;
        lane[i % 16] = lane[i % 16] + e * e;
    }
    return coli_lanes_sum(lane);
}

/* The best stored scale for n weights (a group or a whole row). */
static float choose_scale(coli__wfmt fmt, const float *w, uint32_t n, float amax, int32_t scale_exp)
{
    /* Parts of amax/7 or amax/127.  7/8 is amax/8; int8 has little to win by clipping. */
    static const float parts4[] = {1.0f,  0.97f, 0.94f, 0.91f, 0.875f, 0.85f,
                                   0.82f, 0.79f, 0.76f, 0.73f, 1.03f};
    static const float parts8[] = {1.0f, 0.995f, 0.99f, 0.98f, 1.005f};
    const bool is4 = fmt.type == COLI_W_I4;
    const float *parts = is4 ? parts4 : parts8;
    const uint32_t n_part = is4 ? sizeof parts4 / sizeof *parts4 : sizeof parts8 / sizeof *parts8;
    const code_range range = range_of(fmt);

    const float plain = amax / range.hi;
    float best = stored_scale(fmt, plain, scale_exp);
    float best_error = squared_error(w, n, best, range);
    for (uint32_t i = 1; i < n_part; i++) {
        const float scale = stored_scale(fmt, plain * parts[i], scale_exp);
        const float error = squared_error(w, n, scale, range);
        // The margin is wider than the rounding of either sum.
        if (error < best_error * 0.9999f) {
            best = scale;
            best_error = error;
        }
    }
    return best;
}

static void store_scale(coli__wfmt fmt, uint8_t *scales, uint32_t r, float scale, int32_t scale_exp)
{
    if (fmt.scale_f16) {
        const uint16_t h = coli_f32_to_f16(scale * coli_pow2(-scale_exp));
        memcpy(scales + 2 * r, &h, sizeof h);
    } else {
        memcpy(scales + 4 * r, &scale, sizeof scale);
    }
}

static void store_codes(coli__wfmt fmt, uint8_t *codes, uint32_t r, const float *w, uint32_t n,
                        float scale, code_range range)
{
    const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
    for (uint32_t c = 0; c < n; c++) {
        const int32_t v = (int32_t)code_of(w[c], inverse, range);
        if (fmt.type == COLI_W_I8) {
            codes[c / 4 * 64 + 4 * r + c % 4] = (uint8_t)(v + 128);
        } else {
            uint8_t *byte = &codes[c / 8 * 64 + 4 * r + c % 4];
            *byte = (uint8_t)(c / 4 % 2 == 0 ? (*byte & 0xF0) | (v + 8)
                                             : (*byte & 0x0F) | (v + 8) << 4);
        }
    }
}

static float abs_max(const float *w, uint32_t n) // finite numbers
{
    uint32_t amax = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t magnitude = coli_bits(w[i]) & 0x7FFFFFFFu;
        amax = magnitude > amax ? magnitude : amax;
    }
    return coli_from_bits(amax);
}

static coli_status check_finite(const float *w, uint32_t n_row, uint32_t n_in, size_t ld)
{
    for (uint32_t r = 0; r < n_row; r++)
        for (uint32_t c = 0; c < n_in; c++)
            if (!coli__is_finite(w[r * ld + c]))
                return coli__fail(COLI_E_NUMERIC, "row %u, column %u: weight is not finite", r, c);
    return COLI_OK;
}

static coli_status pack_float(coli__wfmt fmt, const float *w, uint32_t n_row, uint32_t n_in,
                              size_t ld, uint8_t *out)
{
    const uint64_t row_bytes = coli__float_row_bytes(fmt, n_in);
    memset(out, 0, COLI_PANEL * row_bytes);
    for (uint32_t r = 0; r < n_row; r++) {
        uint8_t *row = out + r * row_bytes;
        if (fmt.type == COLI_W_F32) {
            memcpy(row, w + r * ld, n_in * sizeof *w);
            continue;
        }
        for (uint32_t c = 0; c < n_in; c++) {
            const uint16_t h = f32_to_bf16(w[r * ld + c]);
            if ((h & 0x7F80u) == 0x7F80u)
                return coli__fail(COLI_E_NUMERIC, "row %u, column %u: weight %g does not fit bf16",
                                  r, c, (double)w[r * ld + c]);
            memcpy(row + 2 * (size_t)c, &h, sizeof h);
        }
    }
    return COLI_OK;
}

/* One row of a panel: all its groups share a scale, or each has its own. */
static coli_status pack_row(coli__wfmt fmt, const coli__layout *l, const float *w, uint32_t n_in,
                            uint32_t r, int32_t scale_exp, uint8_t *out)
{
    const uint32_t span = fmt.per_row ? n_in : fmt.group;
    float largest = 0x1p10f; // scale
    if (fmt.scale_f16 && 0x1.ffcp15f * coli_pow2(scale_exp) < largest)
        largest = 0x1.ffcp15f * coli_pow2(scale_exp);
    largest *= range_of(fmt).hi;
    for (uint32_t begin = 0, n; begin < n_in; begin += n) {
        n = n_in - begin < span ? n_in - begin : span;
        const float amax = abs_max(w + begin, n);
        if (amax > largest)
            return coli__fail(COLI_E_NUMERIC,
                              "row %u, columns %u to %u: weight of magnitude %g, at most %g fits",
                              r, begin, begin + n - 1, (double)amax, (double)largest);
        const float scale = choose_scale(fmt, w + begin, n, amax, scale_exp);
        uint8_t *group = out + l->first_group + begin / fmt.group * l->group_bytes;
        store_scale(fmt, fmt.per_row ? out : group, r, scale, scale_exp);
        for (uint32_t c = 0, m; c < n; c += m, group += l->group_bytes) {
            m = n - c < fmt.group ? n - c : fmt.group;
            store_codes(fmt, group + l->code_offset, r, w + begin + c, m, scale, range_of(fmt));
        }
    }
    return COLI_OK;
}

coli_status coli__mat_pack_panel(coli__wfmt fmt, const float *w, uint32_t n_row, uint32_t n_in,
                                 size_t ld, int32_t scale_exp, uint8_t *out)
{
    COLI_TRY(check_finite(w, n_row, n_in, ld));
    if (!coli__wfmt_is_quant(fmt)) return pack_float(fmt, w, n_row, n_in, ld, out);
    const coli__layout l = coli__layout_of(fmt, n_in);
    memset(out, fmt.type == COLI_W_I4 ? 0x88 : 0x80, l.panel_bytes); // every weight 0
    for (uint64_t g = 0; g < (fmt.per_row ? 1 : l.n_group); g++)
        memset(out + g * l.group_bytes, 0, l.scale_bytes);
    for (uint32_t r = 0; r < n_row; r++)
        COLI_TRY(pack_row(fmt, &l, w + r * ld, n_in, r, scale_exp, out));
    return COLI_OK;
}

/* Whether these weights are codes of the format times `scale`, which it stores as it is. */
static bool on_grid(coli__wfmt fmt, const float *w, uint32_t n, float scale, int32_t scale_exp)
{
    if (scale == 0.0f || stored_scale(fmt, scale, scale_exp) != scale) return false;
    const code_range range = grid_range_of(fmt);
    const float inverse = 1.0f / scale;
    for (uint32_t i = 0; i < n; i++)
        if (code_of(w[i], inverse, range) * scale != w[i]) return false;
    return true;
}

coli_status coli__mat_pack_grid(coli__wfmt fmt, const float *w, const float *scales, uint32_t n_row,
                                uint32_t n_in, int32_t scale_exp, uint8_t *out)
{
    COLI_TRY(coli__mat_pack_panel(fmt, w, n_row, n_in, n_in, scale_exp, out));
    const coli__layout l = coli__layout_of(fmt, n_in);
    for (uint32_t r = 0; r < n_row; r++)
        for (uint32_t g = 0; g < n_in / 32; g++, w += 32, scales++) {
            if (!on_grid(fmt, w, 32, *scales, scale_exp)) continue;
            uint8_t *group = out + g * l.group_bytes;
            store_scale(fmt, group, r, *scales, scale_exp);
            store_codes(fmt, group + l.code_offset, r, w, 32, *scales, grid_range_of(fmt));
        }
    return COLI_OK;
}

/* Scales spread over 2^28 keep f16's full eleven bits: the largest is put at 2^14..2^15, a factor
 * of two below f16's end, and the smallest may go down to 2^-14, where f16 begins to lose bits. */
bool coli__scale_exp_for(coli__wfmt fmt, float amax_max, float amax_min, int32_t *scale_exp)
{
    *scale_exp = 0;
    if (!coli__wfmt_is_quant(fmt) || !fmt.scale_f16) return true;
    const float largest = amax_max / range_of(fmt).hi;
    if (largest < 0x1p-40f) return true; // all groups become zero
    if (!(largest <= 0x1p10f)) return false;
    const int32_t e = (int32_t)(coli_bits(largest) >> 23) - 127 - 14;
    const float smallest = amax_min / range_of(fmt).hi * 0.73f; // the smallest part that is tried
    if (smallest * coli_pow2(-e) < 0x1p-14f && smallest >= 0x1p-40f) return false;
    *scale_exp = e;
    return true;
}

/* ---- reading -------------------------------------------------------------------------------- */

void coli__mat_row(const coli__mat *m, uint32_t row, float *out)
{
    if (!coli__wfmt_is_quant(m->fmt)) {
        const uint8_t *data = m->data + row * coli__float_row_bytes(m->fmt, m->n_in);
        if (m->fmt.type == COLI_W_F32) {
            memcpy(out, data, m->n_in * sizeof *out);
            return;
        }
        for (uint32_t c = 0; c < m->n_in; c++) {
            uint16_t h;
            memcpy(&h, data + 2 * (size_t)c, sizeof h);
            out[c] = coli_bf16_to_f32(h);
        }
        return;
    }
    const coli__layout l = coli__layout_of(m->fmt, m->n_in);
    const uint8_t *panel = m->data + row / COLI_PANEL * l.panel_bytes;
    const uint32_t r = row % COLI_PANEL;
    const float pow2 = coli_pow2(m->scale_exp);
    const uint8_t *group = panel + l.first_group;
    for (uint32_t begin = 0; begin < m->n_in; group += l.group_bytes) {
        const float scale = coli__scale_at(m->fmt, m->fmt.per_row ? panel : group, r, pow2);
        const uint32_t n = m->n_in - begin < m->fmt.group ? m->n_in - begin : m->fmt.group;
        for (uint32_t c = 0; c < n; c++)
            out[begin + c] = (float)coli__code_at(m->fmt, group + l.code_offset, r, c) * scale;
        begin += n;
    }
}

static coli_status check_quant(const coli__mat *m)
{
    const int32_t e = m->scale_exp;
    if (e < -60 || e > 60 || (e != 0 && !m->fmt.scale_f16))
        return coli__fail(COLI_E_FORMAT, "power of two of the scales is %d, expected %s", e,
                          m->fmt.scale_f16 ? "-60 to 60" : "0");
    const coli__layout l = coli__layout_of(m->fmt, m->n_in);
    const float pow2 = coli_pow2(e);
    for (uint32_t row = 0; row < m->n_out; row++) {
        const uint8_t *scales = m->data + row / COLI_PANEL * l.panel_bytes;
        for (uint64_t g = 0; g < (m->fmt.per_row ? 1 : l.n_group); g++, scales += l.group_bytes) {
            const float scale = coli__scale_at(m->fmt, scales, row % COLI_PANEL, pow2);
            if (!scale_is_valid(scale))
                return coli__fail(COLI_E_FORMAT,
                                  "row %u, group %llu: scale %g, expected 0 or 2^-40 to 2^10 with "
                                  "either sign",
                                  row, (unsigned long long)g, (double)scale);
        }
    }
    return COLI_OK;
}

coli_status coli__mat_check(const coli__mat *m)
{
    if (coli__wfmt_is_quant(m->fmt)) return check_quant(m);
    const uint64_t row_bytes = coli__float_row_bytes(m->fmt, m->n_in);
    const uint32_t elem = m->fmt.type == COLI_W_BF16 ? 2 : 4;
    for (uint32_t row = 0; row < m->n_out; row++) {
        const uint8_t *data = m->data + row * row_bytes;
        for (uint32_t c = 0; c < m->n_in; c++) {
            uint16_t top; // sign, exponent and leading mantissa bits of either type (little endian)
            memcpy(&top, data + (uint64_t)c * elem + (elem - 2), sizeof top);
            if ((top & 0x7F80u) == 0x7F80u)
                return coli__fail(COLI_E_FORMAT, "row %u, column %u: weight is not finite", row, c);
        }
        for (uint64_t b = (uint64_t)m->n_in * elem; b < row_bytes; b++)
            if (data[b] != 0) return coli__fail(COLI_E_FORMAT, "row %u: padding is not zero", row);
    }
    return COLI_OK;
}
