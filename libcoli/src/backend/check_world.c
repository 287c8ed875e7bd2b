/* check_world.c - experts, matrices, activation rows and groups for the cases, with the numbers that
 * must come out, computed by reference.c. */
#include <stdio.h>
#include <string.h>

#include "../base/alloc.h"
#include "check.h"
#include "coli/exact.h"

/* ---- formats ------------------------------------------------------------------------------------ */

uint32_t coli__ck_n_format(const coli__ck *ck)
{
    uint32_t n = 0;
    for (uint32_t f = 0; f < COLI_BK_N_FORMAT; f++) n += ck->info.formats >> f & 1u;
    return n;
}

uint32_t coli__ck_format(const coli__ck *ck, uint32_t i)
{
    i %= coli__ck_n_format(ck);
    uint32_t f = 0;
    while (!(ck->info.formats >> f & 1u) || i-- > 0) f++;
    return f;
}

const char *coli__ck_format_name(uint32_t format)
{
    static const char *const names[] = {
#define NAME(name, value, bits, group, per_row, scale_bytes) #name,
        COLI_BK_FORMAT_LIST(NAME)
#undef NAME
    };
    return format < COLI_BK_N_FORMAT ? names[format] : "unknown format";
}

/* ---- blocks ------------------------------------------------------------------------------------- */

/* Put a block of the library's memory under the case's care. */
static coli_bk_source keep(coli__ck *ck, coli_status status, coli_bk_source s)
{
    if (status != COLI_OK) coli__ck_cannot(ck, COLI_E_NOMEM, "%s", coli_error_message());
    void *data = coli__ck_new(ck, s.n_bytes + 64, 1);
    data = (uint8_t *)data + (64 - (uintptr_t)data % 64) % 64;
    memcpy(data, s.data, s.n_bytes);
    coli__free_aligned((void *)(uintptr_t)s.data);
    s.data = data;
    return s;
}

coli_bk_source coli__ck_expert_block(coli__ck *ck, uint32_t gate_up, uint32_t down, uint32_t d,
                                     uint32_t f)
{
    const uint32_t formats[3] = {gate_up, gate_up, down};
    coli_bk_source s;
    const coli_status status = coli__ref_expert_block(&ck->seed, formats, d, f, &s);
    return keep(ck, status, s);
}

coli_bk_source coli__ck_matrix_block(coli__ck *ck, uint32_t format, uint32_t n_out, uint32_t n_in)
{
    coli_bk_source s;
    const coli_status status = coli__ref_matrix_block(&ck->seed, format, n_out, n_in, &s);
    return keep(ck, status, s);
}

static uint8_t *panel_of(const coli_bk_source *s, uint32_t matrix, uint32_t row)
{
    const coli_bk_matrix *m = &s->matrix[matrix];
    const coli_bk_layout l = coli_bk_layout_of(m->format, m->n_in);
    return (uint8_t *)(uintptr_t)s->data + m->offset + row / COLI_BK_PANEL * l.panel_bytes;
}

void coli__ck_put_code(const coli_bk_source *s, uint32_t matrix, uint32_t row, uint32_t column,
                       int32_t value)
{
    const coli_bk_matrix *m = &s->matrix[matrix];
    const coli_bk_layout l = coli_bk_layout_of(m->format, m->n_in);
    const uint32_t r = row % COLI_BK_PANEL, c = column % l.group;
    uint8_t *codes = panel_of(s, matrix, row) + l.first_group +
                     (size_t)(column / l.group) * l.group_bytes + l.code_offset;
    if (l.bits == 8) {
        codes[64 * (c / 4) + 4 * r + c % 4] = (uint8_t)(value + 128);
        return;
    }
    uint8_t *byte = &codes[64 * (c / 8) + 4 * r + c % 4];
    const uint32_t code = (uint32_t)(value + 8) & 15u;
    *byte = (uint8_t)(c % 8 < 4 ? (*byte & 0xF0u) | code : (*byte & 0x0Fu) | code << 4);
}

void coli__ck_put_scale(const coli_bk_source *s, uint32_t matrix, uint32_t row, uint32_t group,
                        float scale)
{
    const coli_bk_matrix *m = &s->matrix[matrix];
    const coli_bk_layout l = coli_bk_layout_of(m->format, m->n_in);
    uint8_t *panel = panel_of(s, matrix, row);
    const uint16_t half = coli_f32_to_f16(scale);
    for (uint32_t g = 0; g < l.n_group; g++) {
        if (group != ~0u && group != g && !l.per_row) continue;
        uint8_t *scales = l.per_row ? panel : panel + (size_t)g * l.group_bytes;
        uint8_t *at = scales + (size_t)l.scale_bytes * (row % COLI_BK_PANEL);
        memcpy(at, l.scale_bytes == 2 ? (const void *)&half : (const void *)&scale, l.scale_bytes);
    }
}

/* ---- on the device ------------------------------------------------------------------------------ */

coli__ck_tensor *coli__ck_upload(coli__ck *ck, coli_bk_source source)
{
    coli__ck_tensor *t = coli__ck_new(ck, 1, sizeof *t);
    t->now = source;
    CK_OK(ck, tensor_upload, ck->dev, &source, &t->handle);
    COLI__CK_EXPECT(ck, t->handle, "tensor_upload returned OK and no tensor");
    return t;
}

void coli__ck_free(coli__ck *ck, coli__ck_tensor *t)
{
    CK_VOID(ck, tensor_free, ck->dev, t->handle);
    t->handle = NULL;
}

coli__ck_tensor *coli__ck_expert(coli__ck *ck, uint32_t gate_up, uint32_t down, uint32_t d,
                                 uint32_t f)
{
    return coli__ck_upload(ck, coli__ck_expert_block(ck, gate_up, down, d, f));
}

void coli__ck_replaced(coli__ck_tensor *t, coli_bk_source source)
{
    t->before = t->now;
    t->now = source;
}

/* ---- rows --------------------------------------------------------------------------------------- */

coli__ck_rows *coli__ck_random_rows(coli__ck *ck, uint32_t n, const coli_bk_matrix *of)
{
    const coli_bk_layout l = coli_bk_layout_of(of->format, of->n_in);
    coli__ck_rows *x = coli__ck_new(ck, 1, sizeof *x);
    *x = (coli__ck_rows){.n = n, .n_in = of->n_in, .group = l.group, .n_group = l.n_group};
    x->q = coli__ck_new(ck, (size_t)n * l.n_group, l.group);
    x->d = coli__ck_new(ck, (size_t)n * l.n_group, sizeof(float));
    coli__ref_rows(&ck->seed, n, of->n_in, l.group, x->q, x->d);
    return x;
}

/* ---- groups ------------------------------------------------------------------------------------- */

void coli__ck_expected(coli__ck *ck, coli__ck_group *g)
{
    const coli__ck_rows *x = g->x;
    for (uint32_t p = 0; p < g->n_pair; p++) {
        const size_t row = g->args.row[p];
        bool in_range = true;
        if (coli__ref_expert(&g->of[g->expert[p]]->now, x->q + row * x->n_group * x->group,
                             x->d + row * x->n_group, g->y + (size_t)p * g->n_out,
                             &in_range) != COLI_OK)
            coli__ck_cannot(ck, COLI_E_NOMEM, "%s", coli_error_message());
        g->flag[p] = !in_range;
    }
}

coli__ck_group *coli__ck_make_group(coli__ck *ck, coli__ck_tensor *const *experts,
                                    uint32_t n_expert, const uint32_t *n_row,
                                    const coli__ck_rows *x)
{
    coli__ck_group *g = coli__ck_new(ck, 1, sizeof *g);
    for (uint32_t i = 0; i < n_expert; i++) g->n_pair += n_row[i];
    coli_bk_tensor **handles = coli__ck_new(ck, n_expert, sizeof(coli_bk_tensor *));
    uint32_t *rows_of = coli__ck_new(ck, n_expert, sizeof *rows_of);
    uint32_t *row = coli__ck_new(ck, g->n_pair, sizeof *row);
    g->of = coli__ck_new(ck, n_expert, sizeof(coli__ck_tensor *));
    g->expert = coli__ck_new(ck, g->n_pair, sizeof *g->expert);
    g->x = x;
    g->n_out = n_expert ? experts[0]->now.matrix[2].n_out : 0;
    uint32_t p = 0;
    for (uint32_t i = 0; i < n_expert; i++) {
        g->of[i] = experts[i];
        handles[i] = experts[i]->handle;
        rows_of[i] = n_row[i];
        for (uint32_t k = 0; k < n_row[i]; k++, p++) {
            g->expert[p] = i;
            row[p] = (uint32_t)(coli__random(&ck->seed) % x->n);
        }
    }
    g->y = coli__ck_new(ck, (size_t)g->n_pair * g->n_out, sizeof(float));
    g->flag = coli__ck_new(ck, g->n_pair, 1);
    g->args = (coli_bk_group){.struct_size = sizeof g->args,
                              .n_expert = n_expert,
                              .experts = handles,
                              .n_row = rows_of,
                              .row = row,
                              .n_x = x->n,
                              .group = x->group,
                              .n_group = x->n_group,
                              .q = x->q,
                              .d = x->d};
    coli__ck_expected(ck, g);
    return g;
}

coli_bk_result coli__ck_take(coli__ck *ck)
{
    coli_bk_result r = {.struct_size = sizeof r};
    CK_OK(ck, group_take, ck->dev, ck->host.table.wait_limit_ns, &r);
    COLI__CK_EXPECT(ck, r.struct_size == sizeof r, "group_take changed result->struct_size");
    return r;
}

static void name_expert(const coli_bk_source *s, char *text, size_t n)
{
    snprintf(text, n, "expert of %s and %s, d=%u f=%u", coli__ck_format_name(s->matrix[0].format),
             coli__ck_format_name(s->matrix[2].format), s->matrix[0].n_in, s->matrix[0].n_out);
}

/* Row `pair` of a group came out as `found`. */
static _Noreturn void wrong_row(coli__ck *ck, const coli__ck_group *g, uint32_t pair,
                                const float *found)
{
    const float *expected = g->y + (size_t)pair * g->n_out;
    uint32_t o = 0;
    while (coli_bits(expected[o]) == coli_bits(found[o])) o++;
    const coli__ck_tensor *t = g->of[g->expert[pair]];
    char what[160], why[COLI__CK_TEXT];
    name_expert(&t->now, what, sizeof what);
    uint32_t other = 0; // a pair whose result this is
    while (other < g->n_pair &&
           memcmp(g->y + (size_t)other * g->n_out, found, g->n_out * sizeof *found) != 0)
        other++;
    if (other < g->n_pair)
        snprintf(why, sizeof why, "this is the result of row %u: rows look swapped", other);
    else
        coli__ck_suspect(&(coli__ck_question){.source = &t->now,
                                              .before = t->before.n_matrix ? &t->before : NULL,
                                              .x = g->x,
                                              .after = g->after,
                                              .row = g->args.row[pair],
                                              .expected = expected,
                                              .found = found,
                                              .n_out = g->n_out},
                         why);
    coli__ck_wrong(ck, why, "%s: row %u of %u, output %u: expected 0x%08x (%g), found 0x%08x (%g)",
                   what, pair, g->n_pair, o, coli_bits(expected[o]), (double)expected[o],
                   coli_bits(found[o]), (double)found[o]);
}

/* A joined row and whether it is flagged. */
static bool join_of(const coli__ck_group *g, const coli_bk_join *join, float *y)
{
    bool is_flagged = false;
    memset(y, 0, g->n_out * sizeof *y);
    for (uint32_t t = join->first_term; t < join->first_term + join->n_term; t++) {
        const uint32_t pair = g->args.term_pair[t];
        const float *of = g->y + (size_t)pair * g->n_out;
        is_flagged = is_flagged || g->flag[pair];
        for (uint32_t o = 0; o < g->n_out; o++) y[o] = y[o] + g->args.term_weight[t] * of[o];
    }
    return is_flagged;
}

static void joins_right(coli__ck *ck, const coli__ck_group *g, const coli_bk_result *r,
                        uint32_t first)
{
    float *y = coli__calloc(g->n_out, sizeof *y);
    if (!y) coli__ck_cannot(ck, COLI_E_NOMEM, "out of memory");
    for (uint32_t j = 0; j < g->args.n_join; j++) {
        const bool is_flagged = join_of(g, &g->args.joins[j], y);
        const float *found = r->y + (first + j) * r->ld;
        COLI__CK_EXPECT(ck, (r->flag[first + j] != 0) == is_flagged,
                        "join %u: flag is %u, expected %u", j, r->flag[first + j], is_flagged);
        for (uint32_t o = 0; o < g->n_out && !is_flagged; o++)
            COLI__CK_EXPECT(ck, coli_bits(y[o]) == coli_bits(found[o]),
                            "join %u of %u terms, output %u: expected 0x%08x (%g), found 0x%08x "
                            "(%g): sum = sum + (weight * y), from 0, in the order of the terms",
                            j, g->args.joins[j].n_term, o, coli_bits(y[o]), (double)y[o],
                            coli_bits(found[o]), (double)found[o]);
    }
    coli__free(y);
}

static bool is_term(const coli__ck_group *g, uint32_t pair)
{
    for (uint32_t t = 0; t < g->args.n_term; t++)
        if (g->args.term_pair[t] == pair) return true;
    return false;
}

void coli__ck_right(coli__ck *ck, const coli__ck_group *g, const coli_bk_result *r)
{
    const uint32_t n_row = g->n_pair - g->args.n_term + g->args.n_join;
    COLI__CK_EXPECT(ck, r->n_row == n_row, "group_take gave %u rows, expected %u", r->n_row, n_row);
    if (n_row == 0) return;
    COLI__CK_EXPECT(ck, r->y && r->flag, "group_take gave %u rows and %s NULL", n_row,
                    r->y ? "flag" : "y");
    COLI__CK_EXPECT(ck, r->ld >= g->n_out, "group_take gave ld %llu for rows of %u",
                    (unsigned long long)r->ld, g->n_out);
    uint32_t i = 0; // row of the result
    for (uint32_t p = 0; p < g->n_pair; p++) {
        if (is_term(g, p)) continue;
        const float *found = r->y + i * r->ld, *expected = g->y + (size_t)p * g->n_out;
        // a row that is flagged wrongly, or not, is best explained by its numbers
        const bool is_equal = memcmp(found, expected, g->n_out * sizeof *found) == 0;
        if (!g->flag[p] && !is_equal) wrong_row(ck, g, p, found);
        COLI__CK_EXPECT(ck, (r->flag[i] != 0) == g->flag[p],
                        "row %u of %u: flag is %u, expected %u: %s", p, g->n_pair, r->flag[i],
                        g->flag[p],
                        g->flag[p] ? "an inner number is 2^40 or more, or not finite"
                                   : "all numbers are in range");
        i++;
    }
    joins_right(ck, g, r, i);
}

void coli__ck_run(coli__ck *ck, const coli__ck_group *g)
{
    CK_OK(ck, group_issue, ck->dev, &g->args);
    const coli_bk_result r = coli__ck_take(ck);
    coli__ck_right(ck, g, &r);
}

void coli__ck_try_expert(coli__ck *ck, uint32_t gate_up, uint32_t down, uint32_t d, uint32_t f,
                         uint32_t n_row)
{
    coli__ck_tensor *t = coli__ck_expert(ck, gate_up, down, d, f);
    const coli__ck_rows *x = coli__ck_random_rows(ck, n_row, &t->now.matrix[0]);
    coli__ck_run(ck, coli__ck_make_group(ck, &t, 1, &n_row, x));
    coli__ck_free(ck, t);
}

/* ---- products ----------------------------------------------------------------------------------- */

enum { GAP = 3 }; // numbers between rows of y that nobody may write

coli__ck_product *coli__ck_make_product(coli__ck *ck, const coli__ck_tensor *w,
                                        const coli__ck_rows *x)
{
    const uint32_t n_out = w->now.matrix[0].n_out;
    coli__ck_product *p = coli__ck_new(ck, 1, sizeof *p);
    p->w = w;
    p->expected = coli__ck_new(ck, (size_t)x->n * n_out, sizeof(float));
    p->args = (coli_bk_matmul){.struct_size = sizeof p->args,
                               .n_row = x->n,
                               .w = w->handle,
                               .group = x->group,
                               .n_group = x->n_group,
                               .q = x->q,
                               .d = x->d,
                               .y = coli__ck_new(ck, (size_t)x->n * (n_out + GAP), sizeof(float)),
                               .ld = n_out + GAP};
    for (uint32_t i = 0; i < x->n; i++)
        coli__ref_product(&w->now.matrix[0], w->now.data, x->q + (size_t)i * x->n_group * x->group,
                          x->d + (size_t)i * x->n_group, p->expected + (size_t)i * n_out);
    memset(p->args.y, 0xA5, (size_t)x->n * p->args.ld * sizeof(float));
    return p;
}

void coli__ck_product_right(coli__ck *ck, const coli__ck_product *p)
{
    const coli_bk_matrix *m = &p->w->now.matrix[0];
    const coli_bk_layout l = coli_bk_layout_of(m->format, m->n_in);
    const coli__ck_rows x = {.n = p->args.n_row,
                             .n_in = m->n_in,
                             .group = l.group,
                             .n_group = l.n_group,
                             .q = (int8_t *)(uintptr_t)p->args.q,
                             .d = (float *)(uintptr_t)p->args.d};
    for (uint32_t i = 0; i < p->args.n_row; i++) {
        const float *found = p->args.y + i * p->args.ld,
                    *expected = p->expected + (size_t)i * m->n_out;
        for (uint32_t o = 0; o < m->n_out; o++) {
            if (coli_bits(found[o]) == coli_bits(expected[o])) continue;
            char why[COLI__CK_TEXT];
            coli__ck_suspect(
                &(coli__ck_question){.source = &p->w->now,
                                     .before = p->w->before.n_matrix ? &p->w->before : NULL,
                                     .x = &x,
                                     .row = i,
                                     .expected = expected,
                                     .found = found,
                                     .n_out = m->n_out},
                why);
            coli__ck_wrong(ck, why,
                           "product of %s with K=%u: row %u output %u: expected 0x%08x (%g), found "
                           "0x%08x (%g)",
                           coli__ck_format_name(m->format), m->n_in, i, o, coli_bits(expected[o]),
                           (double)expected[o], coli_bits(found[o]), (double)found[o]);
        }
        for (uint64_t o = m->n_out; o < p->args.ld; o++)
            COLI__CK_EXPECT(ck, coli_bits(found[o]) == 0xA5A5A5A5u,
                            "matmul wrote behind the end of row %u: number %llu of ld %llu", i,
                            (unsigned long long)o, (unsigned long long)p->args.ld);
    }
}

void coli__ck_product_run(coli__ck *ck, coli__ck_product *p)
{
    CK_OK(ck, matmul, ck->dev, &p->args);
    coli__ck_product_right(ck, p);
}
