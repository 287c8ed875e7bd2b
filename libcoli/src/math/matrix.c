/* matrix.c - weight formats: their names, sizes, packing and reading.  How a scale is chosen: scales.c.
 */
#include "matrix.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../base/alloc.h"
#include "kernels_impl.h"
#include "scales.h"

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

/* ---- packing -------------------------------------------------------------------------------- */

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
                        float scale, coli__codes codes_of)
{
    const float inverse = coli__scale_inverse(scale);
    for (uint32_t c = 0; c < n; c++) {
        const int32_t v = (int32_t)coli__code_of(w[c], inverse, codes_of);
        if (fmt.type == COLI_W_I8) {
            codes[c / 4 * 64 + 4 * r + c % 4] = (uint8_t)(v + 128);
        } else {
            uint8_t *byte = &codes[c / 8 * 64 + 4 * r + c % 4];
            *byte = (uint8_t)(c / 4 % 2 == 0 ? (*byte & 0xF0) | (v + 8)
                                             : (*byte & 0x0F) | (v + 8) << 4);
        }
    }
}

static coli_status check_finite(const float *w, uint32_t n_row, uint32_t n_in, size_t ld)
{
    for (uint32_t r = 0; r < n_row; r++)
        for (uint32_t c = 0; c < n_in; c++)
            if (!coli__is_finite(w[r * ld + c]))
                return coli__fail(COLI_E_NUMERIC, "row %u, column %u: weight is not finite", r, c);
    return COLI_OK;
}

static double length2(const float *w, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)w[i] * (double)w[i];
    return sum;
}

static coli_status pack_float(const coli__mat_pack_args *a)
{
    const uint64_t row_bytes = coli__float_row_bytes(a->fmt, a->n_in);
    coli__pack_error error = {.n = (uint64_t)a->n_row * a->n_in};
    memset(a->out, 0, COLI_PANEL * row_bytes);
    for (uint32_t r = 0; r < a->n_row; r++) {
        const float *w = a->w + r * a->ld;
        uint8_t *row = a->out + r * row_bytes;
        error.weight2 += length2(w, a->n_in);
        if (a->fmt.type == COLI_W_F32) {
            memcpy(row, w, a->n_in * sizeof *w);
            continue;
        }
        for (uint32_t c = 0; c < a->n_in; c++) {
            const uint16_t h = f32_to_bf16(w[c]);
            if ((h & 0x7F80u) == 0x7F80u)
                return coli__fail(COLI_E_NUMERIC, "row %u, column %u: weight %g does not fit bf16",
                                  r, c, (double)w[c]);
            const double e = (double)coli_bf16_to_f32(h) - (double)w[c];
            error.error2 += e * e;
            memcpy(row + 2 * (size_t)c, &h, sizeof h);
        }
    }
    error.plain2 = error.error2;
    if (a->error) coli__pack_error_add(a->error, &error);
    return COLI_OK;
}

/* Whether these weights are codes of the format times `scale`, which it stores as it is. */
static bool on_grid(const coli__group *g, float scale)
{
    if (scale == 0.0f || coli__scale_stored(g->fmt, scale, g->scale_exp) != scale) return false;
    const float inverse = coli__scale_inverse(scale);
    for (uint32_t i = 0; i < g->n; i++)
        if (coli__code_of(g->w[i], inverse, g->codes) * scale != g->w[i]) return false;
    return true;
}

static void count_error(const coli__group *g, float scale, coli__pack_error *out)
{
    coli__group alike = *g;
    alike.importance = NULL;
    out->n += g->n;
    out->weight2 += length2(g->w, g->n);
    out->error2 += coli__scale_error(&alike, scale);
    const float plain = coli__scale_plain(g);
    out->plain2 += coli__scale_error(&alike, plain);
    if (!g->importance) return;
    out->weighed2 += coli__scale_error(g, scale);
    out->plain_weighed2 += coli__scale_error(g, plain);
}

/* The largest magnitude that fits. */
static float largest_of(coli__wfmt fmt, int32_t scale_exp)
{
    float scale = 0x1p10f;
    if (fmt.scale_f16 && 0x1.ffcp15f * coli_pow2(scale_exp) < scale)
        scale = 0x1.ffcp15f * coli_pow2(scale_exp);
    return scale * coli__codes_of(fmt).hi;
}

static coli_status check_fits(const coli__mat_pack_args *a, uint32_t r, uint32_t begin, uint32_t n)
{
    const float *w = a->w + r * a->ld + begin, largest = largest_of(a->fmt, a->scale_exp);
    float amax = 0;
    for (uint32_t i = 0; i < n; i++) amax = fabsf(w[i]) > amax ? fabsf(w[i]) : amax;
    if (amax <= largest) return COLI_OK;
    return coli__fail(COLI_E_NUMERIC,
                      "row %u, columns %u to %u: weight of magnitude %g, at most %g fits", r, begin,
                      begin + n - 1, (double)amax, (double)largest);
}

/* The grid's own scale where it serves, else the best.  A grid may have int8's -128, which kernels read
 * like any other code, but which what we round never needs. */
static float choose_scale(const coli__mat_pack_args *a, coli__group *g, uint32_t r, uint32_t begin)
{
    const coli__codes codes = g->codes;
    if (a->grid) {
        const float scale = a->grid[(size_t)r * (a->n_in / 32) + begin / 32];
        if (g->fmt.type == COLI_W_I8) g->codes.lo = -128.0f;
        if (on_grid(g, scale)) return scale;
    }
    g->codes = codes;
    return coli__scale_best(g);
}

/* One row of a panel: all its groups share a scale, or each has its own. */
static coli_status pack_row(const coli__mat_pack_args *a, const coli__layout *l, uint32_t r)
{
    const coli__wfmt fmt = a->fmt;
    const uint32_t span = fmt.per_row ? a->n_in : fmt.group;
    for (uint32_t begin = 0, n; begin < a->n_in; begin += n) {
        n = a->n_in - begin < span ? a->n_in - begin : span;
        COLI_TRY(check_fits(a, r, begin, n));
        coli__group g = {.w = a->w + r * a->ld + begin,
                         .importance = a->importance ? a->importance + begin : NULL,
                         .n = n,
                         .fmt = fmt,
                         .codes = coli__codes_of(fmt),
                         .scale_exp = a->scale_exp};
        const float scale = choose_scale(a, &g, r, begin);
        if (a->error) count_error(&g, scale, a->error);
        uint8_t *group = a->out + l->first_group + begin / fmt.group * l->group_bytes;
        store_scale(fmt, fmt.per_row ? a->out : group, r, scale, a->scale_exp);
        for (uint32_t c = 0, m; c < n; c += m, group += l->group_bytes) {
            m = n - c < fmt.group ? n - c : fmt.group;
            store_codes(fmt, group + l->code_offset, r, g.w + c, m, scale, g.codes);
        }
    }
    return COLI_OK;
}

coli_status coli__mat_pack(const coli__mat_pack_args *a)
{
    COLI_TRY(check_finite(a->w, a->n_row, a->n_in, a->ld));
    if (!coli__wfmt_is_quant(a->fmt)) return pack_float(a);
    const coli__layout l = coli__layout_of(a->fmt, a->n_in);
    memset(a->out, a->fmt.type == COLI_W_I4 ? 0x88 : 0x80, l.panel_bytes); // every weight 0
    for (uint64_t g = 0; g < (a->fmt.per_row ? 1 : l.n_group); g++)
        memset(a->out + g * l.group_bytes, 0, l.scale_bytes);
    for (uint32_t r = 0; r < a->n_row; r++) COLI_TRY(pack_row(a, &l, r));
    return COLI_OK;
}

coli_status coli__mat_pack_panel(coli__wfmt fmt, const float *w, uint32_t n_row, uint32_t n_in,
                                 size_t ld, int32_t scale_exp, uint8_t *out)
{
    const coli__mat_pack_args args = {.fmt = fmt,
                                      .w = w,
                                      .n_row = n_row,
                                      .n_in = n_in,
                                      .ld = ld,
                                      .scale_exp = scale_exp,
                                      .out = out};
    return coli__mat_pack(&args);
}

/* Scales spread over 2^28 keep f16's full eleven bits: the largest is put at 2^14..2^15, a factor
 * of two below f16's end, and the smallest may go down to 2^-14, where f16 begins to lose bits. */
bool coli__scale_exp_for(coli__wfmt fmt, float amax_max, float amax_min, int32_t *scale_exp)
{
    *scale_exp = 0;
    if (!coli__wfmt_is_quant(fmt) || !fmt.scale_f16) return true;
    const float largest = amax_max / coli__codes_of(fmt).hi;
    if (largest < 0x1p-40f) return true; // all groups become zero
    if (!(largest <= 0x1p10f)) return false;
    const int32_t e = (int32_t)(coli_bits(largest) >> 23) - 127 - 14;
    const float smallest = amax_min / coli__codes_of(fmt).hi * 0.73f; // the best are rarely below
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
            if (!coli__scale_is_valid(scale))
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
