/* quant_report.c - see quant_report.h. */
#include "quant_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void coli__tensor_kind(const char *name, char out[COLI__REPORT_NAME])
{
    if (strncmp(name, "layers.", 7) == 0) {
        const char *at = name + 7 + strspn(name + 7, "0123456789");
        if (at > name + 7 && *at == '.') name = at + 1;
    }
    size_t n = strlen(name);
    if (n > 7 && strcmp(name + n - 7, ".weight") == 0) n -= 7;
    if (n >= COLI__REPORT_NAME) n = COLI__REPORT_NAME - 1;
    memcpy(out, name, n);
    out[n] = 0;
}

/* The kind of an expert's matrix: without the expert's number, too. */
static void kind_of(const char *name, char out[COLI__REPORT_NAME])
{
    coli__tensor_kind(name, out);
    char *number = strstr(out, ".experts.");
    if (!number) return;
    number += strlen(".experts.");
    const size_t n = strspn(number, "0123456789");
    if (n > 0 && number[n] == '.') memmove(number, number + n + 1, strlen(number + n + 1) + 1);
}

static bool same_format(coli__wfmt a, coli__wfmt b)
{
    return a.type == b.type && a.group == b.group && a.per_row == b.per_row &&
           a.scale_f16 == b.scale_f16;
}

static void add_to(coli__report_row *rows, uint32_t *n, const char *name, coli__wfmt fmt,
                   const coli__pack_error *error)
{
    uint32_t i = 0;
    while (i < *n && (strcmp(rows[i].name, name) != 0 || !same_format(rows[i].fmt, fmt))) i++;
    if (i == COLI__REPORT_KINDS)
        snprintf(rows[--i].name, sizeof rows[0].name, "all other kinds");
    else if (i == *n) {
        rows[i] = (coli__report_row){.fmt = fmt};
        snprintf(rows[i].name, sizeof rows[0].name, "%s", name);
        ++*n;
    }
    coli__pack_error_add(&rows[i].error, error);
    ++*(error->error2 > 0 ? &rows[i].n_rounded : &rows[i].n_exact);
}

/* As a part of the weights; sums that are not, as of nothing but zeros, are no error. */
static double relative2(const coli__pack_error *e)
{
    return e->weight2 > 0 ? e->error2 / e->weight2 : 0;
}

static void add_worst(coli__quant_report *r, const char *name, coli__wfmt fmt,
                      const coli__pack_error *error)
{
    uint32_t i = r->n_worst;
    while (i > 0 && relative2(&r->worst[i - 1].error) < relative2(error)) {
        r->worst[i] = r->worst[i - 1];
        i--;
    }
    r->worst[i] = (coli__report_row){.fmt = fmt, .error = *error};
    snprintf(r->worst[i].name, sizeof r->worst[i].name, "%s", name);
    if (r->n_worst < COLI__REPORT_WORST) r->n_worst++;
}

void coli__report_add(coli__quant_report *r, const char *name, const char *source, coli__wfmt fmt,
                      const coli__pack_error *error)
{
    if (source) add_to(r->sources, &r->n_source, source, fmt, error);
    if (!(error->error2 > 0)) return;
    char kind[COLI__REPORT_NAME];
    kind_of(name, kind);
    add_to(r->kinds, &r->n_kind, kind, fmt, error);
    add_worst(r, name, fmt, error);
}

/* ---- telling -------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const coli__report_row *x = a, *y = b;
    const int order = strcmp(x->name, y->name);
    if (order) return order;
    char xs[32], ys[32];
    coli__wfmt_name(x->fmt, xs);
    coli__wfmt_name(y->fmt, ys);
    return strcmp(xs, ys);
}

/* "Q4_0 to int4-g32-f16: 0.3932 M weights in 128 matrices, exactly", or "..., 3 of them exactly, error
 * 0.4 %": the error of all. */
static void tell_source(const coli__report_row *row, void (*note)(void *, const char *), void *user)
{
    char fmt[32], line[240], some[40] = "", how[48] = "exactly";
    const uint32_t n = row->n_exact + row->n_rounded;
    coli__wfmt_name(row->fmt, fmt);
    if (row->n_rounded > 0) {
        snprintf(how, sizeof how, "error %.2g %%", 100 * sqrt(relative2(&row->error)));
        if (row->n_exact > 0) snprintf(some, sizeof some, ", %u of them exactly", row->n_exact);
    }
    snprintf(line, sizeof line, "%s to %s: %.4g M weights in %u matri%s%s, %s", row->name, fmt,
             (double)row->error.n * 1e-6, n, n == 1 ? "x" : "ces", some, how);
    note(user, line);
}

static void tell_kind(const coli__report_row *row, void (*note)(void *, const char *), void *user)
{
    const coli__pack_error *e = &row->error;
    char fmt[32], line[280], gain[60] = "", by_importance[40] = "";
    coli__wfmt_name(row->fmt, fmt);
    if (coli__wfmt_is_quant(row->fmt) && e->plain2 > 0)
        snprintf(gain, sizeof gain, ", its square %.2f of plain rounding's", e->error2 / e->plain2);
    if (*gain && e->plain_weighed2 > 0)
        snprintf(by_importance, sizeof by_importance, ", %.2f by importance",
                 e->weighed2 / e->plain_weighed2);
    snprintf(line, sizeof line, "%s as %s: %.4g M weights, error %.2g %%%s%s", row->name, fmt,
             (double)e->n * 1e-6, 100 * sqrt(relative2(e)), gain, by_importance);
    note(user, line);
}

static void tell_worst(const coli__report_row *row, uint32_t rank,
                       void (*note)(void *, const char *), void *user)
{
    char fmt[32], line[240];
    coli__wfmt_name(row->fmt, fmt);
    snprintf(line, sizeof line, "worst %u: %s as %s, error %.3g %%", rank, row->name, fmt,
             100 * sqrt(relative2(&row->error)));
    note(user, line);
}

void coli__report_tell(coli__quant_report *r, void (*note)(void *user, const char *line),
                       void *user)
{
    if (!note) return;
    qsort(r->sources, r->n_source, sizeof *r->sources, by_name);
    qsort(r->kinds, r->n_kind, sizeof *r->kinds, by_name);
    for (uint32_t i = 0; i < r->n_source; i++) tell_source(&r->sources[i], note, user);
    for (uint32_t i = 0; i < r->n_kind; i++) tell_kind(&r->kinds[i], note, user);
    for (uint32_t i = 0; i < r->n_worst; i++) tell_worst(&r->worst[i], i + 1, note, user);
}
