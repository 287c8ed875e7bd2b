/* reference.c - see reference.h. */
#include "reference.h"

#include <string.h>

#include "../base/alloc.h"
#include "coli/exact.h"

/* ---- products ------------------------------------------------------------------------------- */

static float scale_at(const coli_bk_layout *l, const uint8_t *scales, uint32_t r, float pow2)
{
    if (l->scale_bytes == 4) {
        float s;
        memcpy(&s, scales + 4 * r, sizeof s);
        return s * pow2;
    }
    uint16_t h;
    memcpy(&h, scales + 2 * r, sizeof h);
    return coli_f16_to_f32(h) * pow2;
}

/* Sum of q*w over the group whose codes begin at `codes`, for row r of the panel. */
static int32_t group_sum(const coli_bk_layout *l, const uint8_t *codes, uint32_t r, const int8_t *q)
{
    int32_t s = 0;
    for (uint32_t c = 0; c < l->group; c++) {
        const uint32_t per_chunk = l->bits == 8 ? 4 : 8;
        const uint8_t byte = codes[64 * (c / per_chunk) + 4 * r + c % 4];
        const int32_t w = l->bits == 8 ? byte - 128 : (c % 8 < 4 ? byte & 15 : byte >> 4) - 8;
        s += q[c] * w;
    }
    return s;
}

void coli__ref_product(const coli_bk_matrix *m, const void *block, const int8_t *q, const float *d,
                       float *y)
{
    const coli_bk_layout l = coli_bk_layout_of(m->format, m->n_in);
    const float pow2 = coli_pow2(m->scale_exp);
    for (uint32_t o = 0; o < m->n_out; o++) {
        const uint8_t *panel =
            (const uint8_t *)block + m->offset + o / COLI_BK_PANEL * l.panel_bytes;
        const uint32_t r = o % COLI_BK_PANEL;
        coli_tree tree = {0};
        for (uint32_t g = 0; g < l.n_group; g++) {
            const uint8_t *group = panel + l.first_group + (uint64_t)g * l.group_bytes;
            const float scale = scale_at(&l, l.per_row ? panel : group, r, pow2);
            const int32_t s = group_sum(&l, group + l.code_offset, r, q + (size_t)g * l.group);
            coli_tree_add(&tree, coli_group_value(s, scale, d[g]));
        }
        y[o] = coli_tree_sum(&tree);
    }
}

coli_status coli__ref_expert(const coli_bk_source *expert, const int8_t *q, const float *d,
                             float *y, bool *in_range)
{
    const coli_bk_matrix *gate = &expert->matrix[0], *up = &expert->matrix[1],
                         *down = &expert->matrix[2];
    const coli_bk_layout l = coli_bk_layout_of(down->format, down->n_in);
    const size_t f = down->n_in, padded = (size_t)l.n_group * l.group;
    *in_range = true;
    memset(y, 0, down->n_out * sizeof *y);
    float *g = coli__calloc(2 * f + l.n_group, sizeof(float));
    int8_t *hq = coli__calloc(padded, 1);
    if (!g || !hq) {
        coli__free(g);
        coli__free(hq);
        return COLI_E_NOMEM;
    }
    float *u = g + f, *hd = u + f;
    coli__ref_product(gate, expert->data, q, d, g);
    coli__ref_product(up, expert->data, q, d, u);
    for (size_t i = 0; i < f; i++) g[i] = coli_silu(g[i]) * u[i];
    for (uint32_t i = 0; i < l.n_group; i++) {
        const uint32_t first = i * l.group, left = down->n_in - first;
        int32_t sum;
        if (!coli_quantise_group(g + first, left < l.group ? left : l.group, l.group, hq + first,
                                 &hd[i], &sum))
            *in_range = false;
    }
    if (*in_range) coli__ref_product(down, expert->data, hq, hd, y);
    coli__free(g);
    coli__free(hq);
    return COLI_OK;
}

/* ---- random inputs --------------------------------------------------------------------------- */

/* Of either sign and finite, a normal f16 times 2^scale_exp: about 1 / (16 * code_max * sqrt(n_in)).
 */
static void put_scale(const coli_bk_layout *l, uint64_t *seed, uint8_t *at)
{
    if (l->scale_bytes == 2) {
        // 2^-4 .. 2^-2 as stored, all mantissas; one in thirty-two is 0, one denormal
        const uint64_t r = coli__random(seed);
        uint16_t h = (uint16_t)(((11 + r % 2) << 10) | (r >> 8 & 1023));
        if ((r >> 20) % 32 == 0) h = 0;
        if ((r >> 20) % 32 == 1) h = (uint16_t)(512 | (r >> 8 & 511));
        if (r >> 30 & 1) h |= 0x8000;
        memcpy(at, &h, sizeof h);
        return;
    }
    const uint64_t r = coli__random(seed);
    const float s =
        (r >> 40) % 32 == 0 ? 0.0f : (0.0625f + (float)(r & 0xFFFFFF) * 0x1p-24f * 0.125f);
    memcpy(at, r >> 30 & 1 ? &(float){-s} : &s, sizeof s);
}

static void fill_matrix(uint64_t *seed, const coli_bk_matrix *m, uint8_t *block)
{
    const coli_bk_layout l = coli_bk_layout_of(m->format, m->n_in);
    for (uint32_t first = 0; first < m->n_out; first += COLI_BK_PANEL) {
        uint8_t *panel = block + m->offset + first / COLI_BK_PANEL * l.panel_bytes;
        const uint32_t n_row = m->n_out - first < COLI_BK_PANEL ? m->n_out - first : COLI_BK_PANEL;
        if (l.per_row)
            for (uint32_t r = 0; r < n_row; r++) put_scale(&l, seed, panel + r * l.scale_bytes);
        for (uint32_t g = 0; g < l.n_group; g++) {
            uint8_t *group = panel + l.first_group + (uint64_t)g * l.group_bytes;
            if (!l.per_row)
                for (uint32_t r = 0; r < n_row; r++) put_scale(&l, seed, group + r * l.scale_bytes);
            uint8_t *codes = group + l.code_offset;
            const uint32_t zero = l.bits == 8 ? 0x80 : 0x88;
            memset(codes, (int)zero, l.group * l.bits * COLI_BK_PANEL / 8);
            for (uint32_t c = 0; c < l.group && g * l.group + c < m->n_in; c++)
                for (uint32_t r = 0; r < n_row; r++) {
                    const uint32_t per_chunk = l.bits == 8 ? 4 : 8;
                    uint8_t *byte = codes + 64 * (c / per_chunk) + 4 * r + c % 4;
                    const uint64_t v = coli__random(seed) >> 16;
                    if (l.bits == 8)
                        *byte = (uint8_t)v;
                    else if (c % 8 < 4)
                        *byte = (uint8_t)((*byte & 0xF0) | (v & 15));
                    else
                        *byte = (uint8_t)((*byte & 15) | (v & 15) << 4);
                }
        }
    }
}

static coli_status make_block(uint64_t *seed, coli_bk_source *s)
{
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; i < s->n_matrix; i++) {
        coli_bk_matrix *m = &s->matrix[i];
        m->offset = n_bytes = (n_bytes + 63) & ~(uint64_t)63;
        n_bytes += coli_bk_matrix_bytes(m->format, m->n_out, m->n_in);
    }
    uint8_t *block = coli__alloc64(n_bytes);
    if (!block) return COLI_E_NOMEM;
    for (uint32_t i = 0; i < s->n_matrix; i++) {
        // codes of up to 2^(bits-1), stored scales of about 2^-3: products stay of the size of x
        uint32_t log_n = 0;
        while ((s->matrix[i].n_in >> log_n) > 1) log_n++;
        s->matrix[i].scale_exp =
            -(int32_t)(log_n / 2) - (coli_bk_layout_of(s->matrix[i].format, 1).bits == 8 ? 3 : 0);
        fill_matrix(seed, &s->matrix[i], block);
    }
    s->data = block;
    s->n_bytes = n_bytes;
    return COLI_OK;
}

coli_status coli__ref_expert_block(uint64_t *seed, const uint32_t formats[3], uint32_t d,
                                   uint32_t f, coli_bk_source *out)
{
    *out = (coli_bk_source){.struct_size = sizeof *out,
                            .n_matrix = 3,
                            .matrix = {{.format = formats[0], .n_out = f, .n_in = d},
                                       {.format = formats[1], .n_out = f, .n_in = d},
                                       {.format = formats[2], .n_out = d, .n_in = f}}};
    return make_block(seed, out);
}

coli_status coli__ref_matrix_block(uint64_t *seed, uint32_t format, uint32_t n_out, uint32_t n_in,
                                   coli_bk_source *out)
{
    *out = (coli_bk_source){.struct_size = sizeof *out,
                            .n_matrix = 1,
                            .matrix = {{.format = format, .n_out = n_out, .n_in = n_in}}};
    return make_block(seed, out);
}

void coli__ref_rows(uint64_t *seed, uint32_t n_row, uint32_t n_in, uint32_t group, int8_t *q,
                    float *d)
{
    const uint32_t n_group = (n_in + group - 1) / group;
    for (uint32_t i = 0; i < n_row; i++)
        for (uint32_t g = 0; g < n_group; g++) {
            float x[64];
            const uint32_t n = n_in - g * group < group ? n_in - g * group : group;
            for (uint32_t c = 0; c < n; c++)
                x[c] = ((float)(int32_t)(coli__random(seed) >> 40) - 0x1p23f) * 0x1p-22f;
            const size_t at = (size_t)i * n_group + g;
            int32_t sum;
            coli_quantise_group(x, n, group, q + at * group, &d[at], &sum);
        }
}
