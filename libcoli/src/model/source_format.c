/* source_format.c - see source_format.h. */
#include "source_format.h"

#include <string.h>

#include "quant_report.h"
#include "recipe.h"

/* A default format, fitted to what the source holds. */
static coli__wfmt fitted(coli__wfmt fmt, const coli__weight *w)
{
    coli__wfmt packed;
    if (coli__weight_packed_format(w, &packed)) return packed;
    if (coli__wfmt_is_quant(fmt) && coli__weight_has_grid(w)) fmt.group = 32;
    return fmt;
}

/* What holds the weights exactly.  Of what comes as whole multiples of a scale per 32 weights, these two
 * are known to have scales that f16 holds. */
static coli__wfmt exact_format(const coli__weight *w)
{
    coli__wfmt packed;
    if (coli__weight_packed_format(w, &packed)) return packed;
    if (!coli__weight_has_grid(w))
        return (coli__wfmt){.type = coli__weight_is_bf16(w) ? COLI_W_BF16 : COLI_W_F32};
    const char *kind = coli__weight_kind(w);
    const bool is_q4 = strcmp(kind, "Q4_0") == 0, is_q8 = strcmp(kind, "Q8_0") == 0;
    return (coli__wfmt){
        .type = is_q4 ? COLI_W_I4 : COLI_W_I8, .group = 32, .scale_f16 = is_q4 || is_q8};
}

/* What the recipe says about it; false when it says nothing. */
static bool recipe_format(const coli__formats *f, const coli__recipe_item *item,
                          const coli__weight *w, coli__wfmt *out)
{
    coli__recipe_choice choice;
    if (!f->recipe || !coli__recipe_find(f->recipe, item, &choice)) return false;
    *out = choice.is_source ? exact_format(w) : choice.fmt;
    return true;
}

coli__wfmt coli__source_format(const coli__formats *f, const coli__model_spec *spec,
                               const coli__tensor_spec *s, const coli__weight *w)
{
    char kind[COLI__REPORT_NAME];
    const coli__recipe_item item = coli__recipe_tensor(spec, s, kind);
    coli__wfmt fmt;
    if (recipe_format(f, &item, w, &fmt)) return fmt;
    switch (s->role) {
    case COLI_ROLE_TRUNK:
    case COLI_ROLE_EMBED:
        return f->trunk_is_default ? fitted(f->trunk, w) : f->trunk;
    case COLI_ROLE_PRECISE:
        if (coli__weight_is_bf16(w)) return (coli__wfmt){.type = COLI_W_BF16};
        break;
    case COLI_ROLE_VECTOR:
        break;
    }
    return (coli__wfmt){.type = COLI_W_F32};
}

/* Of the first of a layer's experts: the formats of all are equal.  A source that differs from it is
 * not held by what holds the first: then f32 holds all. */
static coli__wfmt exact_for_all(const coli__expert_spec *s, const coli__weight *weights,
                                uint32_t part)
{
    const coli__wfmt first = exact_format(&weights[part]);
    for (uint32_t e = 1; e < s->n_expert; e++)
        if (!coli__wfmt_same(exact_format(&weights[3 * e + part]), first))
            return (coli__wfmt){.type = COLI_W_F32};
    return first;
}

coli__wfmt coli__source_expert_format(const coli__formats *f, const coli__expert_spec *s,
                                      const coli__weight *weights, uint32_t part)
{
    const coli__weight *w = &weights[part];
    char kind[COLI__REPORT_NAME];
    const coli__recipe_item item = coli__recipe_expert(s, part, kind);
    coli__recipe_choice choice;
    if (f->recipe && coli__recipe_find(f->recipe, &item, &choice))
        return choice.is_source ? exact_for_all(s, weights, part) : choice.fmt;
    if (!f->experts_are_default) return f->experts;
    coli__wfmt fmt = fitted(f->experts, w);
    if (w->view && strcmp(w->view->tensor->kind->name, "Q8_0") == 0) fmt.type = COLI_W_I8;
    return fmt;
}
