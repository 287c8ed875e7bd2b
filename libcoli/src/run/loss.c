/* loss.c - means of scores, losses between two, and the verdict (loss.h has the statistics). */
#include "loss.h"

#include <math.h>
#include <string.h>

#include "api.h"
#include "scores.h"

static const double NORMAL = 1.959963984540054; // exceeded with probability 2.5 %

/* ---- statistics ----------------------------------------------------------------------------- */

double coli__student(uint32_t df)
{
    static const double few[] = {12.706205, 4.302653, 3.182446, 2.776445, 2.570582,
                                 2.446912,  2.364624, 2.306004, 2.262157, 2.228139,
                                 2.200985,  2.178813, 2.160369, 2.144787, 2.131450,
                                 2.119905,  2.109816, 2.100922, 2.093024, 2.085963};
    if (df <= sizeof few / sizeof *few) return few[df - 1];
    // the expansion in 1/df around the normal distribution; 1e-5 off at 21
    const double z = NORMAL, z2 = z * z, n = df;
    const double first = z * (z2 + 1) / 4;
    const double second = z * ((5 * z2 + 16) * z2 + 3) / 96;
    const double third = z * (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384;
    return z + (first + (second + third / n) / n) / n;
}

void coli__ratio_add(coli__ratio *r, double d, double n)
{
    r->n_item++;
    r->d += d;
    r->n += n;
    r->dd += d * d;
    r->dn += d * n;
    r->nn += n * n;
}

coli__interval coli__ratio_interval(const coli__ratio *r)
{
    const double value = r->n > 0 ? r->d / r->n : 0;
    if (r->n_item < 2 || !(r->n > 0)) return (coli__interval){value, -INFINITY, INFINITY};
    const double k = r->n_item;
    const double squares = r->dd - 2 * value * r->dn + value * value * r->nn;
    const double variance = squares > 0 ? k / (k - 1) * squares / (r->n * r->n) : 0;
    const double half = coli__student(r->n_item - 1) * sqrt(variance);
    return (coli__interval){value, value - half, value + half};
}

coli__interval coli__interval_within(coli__interval i, double least, double most)
{
    if (isfinite(i.low) && i.low < least) i.low = least;
    if (isfinite(i.high) && i.high > most) i.high = most;
    return i;
}

coli__interval coli__pairs_interval(uint32_t n, uint32_t lost, uint32_t won)
{
    if (n == 0) return (coli__interval){0, -INFINITY, INFINITY};
    const double all = (double)n + 2, b = lost + 0.5, c = won + 0.5;
    const double middle = (b - c) / all;
    const double half = NORMAL * sqrt(b + c - (b - c) * (b - c) / all) / all;
    return (coli__interval){((double)lost - won) / n, middle - half, middle + half};
}

/* ---- measures ------------------------------------------------------------------------------- */

const char *coli_measure_name(coli_measure measure)
{
    static const char *const names[COLI_N_MEASURE] = {
        "nll", "kl", "top", "choice", "choice-byte", "choice-token", "exact"};
    return (uint32_t)measure < COLI_N_MEASURE ? names[measure] : NULL;
}

static coli_task_kind kind_of(coli_measure m)
{
    return m <= COLI_MEASURE_TOP            ? COLI_TASK_TEXT
           : m <= COLI_MEASURE_CHOICE_TOKEN ? COLI_TASK_CHOICE
                                            : COLI_TASK_EXACT;
}

static bool needs_base(coli_measure m)
{
    return m == COLI_MEASURE_KL || m == COLI_MEASURE_TOP;
}

/* What an item adds: the sum over its units, and their number. */
static double value_of(const coli_scores *s, uint32_t i, coli_measure m, double *n)
{
    const coli__score *score = &s->items[i];
    uint32_t pick;
    *n = 1;
    switch (m) {
    case COLI_MEASURE_NLL:
        *n = coli__tasks_at(s->tasks, i)->n_id - 1;
        return score->nll;
    case COLI_MEASURE_KL:
        *n = score->n_row;
        return score->kl;
    case COLI_MEASURE_TOP:
        *n = score->n_row;
        return score->n_top;
    case COLI_MEASURE_EXACT:
        return coli__score_exact(s, i);
    default:
        return coli__score_choice(s, i, m, &pick);
    }
}

static coli_status check_measure(const coli_scores *s, coli_measure m)
{
    if ((uint32_t)m >= COLI_N_MEASURE) return coli__fail(COLI_E_INVALID, "no such measure");
    if (needs_base(m) && !s->has_base)
        return coli__fail(COLI_E_INVALID, "%s: the scores were made without a base",
                          coli_measure_name(m));
    return COLI_OK;
}

coli_status coli_scores_mean(const coli_scores *s, coli_measure m, const char *group,
                             coli_mean *out)
{
    if (out) COLI_TRY(coli__struct_clear("coli_mean", out));
    if (!s || !out) return coli__fail(COLI_E_INVALID, "coli_scores_mean: an argument is NULL");
    COLI_TRY(check_measure(s, m));
    coli_mean full = {.n_item = 0};
    double sum = 0, n_unit = 0;
    for (uint32_t i = 0; i < coli__tasks_n(s->tasks); i++) {
        const coli__task *item = coli__tasks_at(s->tasks, i);
        if (item->kind != kind_of(m)) continue;
        if (group && strcmp(group, coli__tasks_string(s->tasks, item->group)) != 0) continue;
        double n;
        sum += value_of(s, i, m, &n);
        n_unit += n;
        full.n_item++;
    }
    full.n_unit = (uint64_t)n_unit;
    full.value = n_unit > 0 ? sum / n_unit : 0;
    coli__struct_fill(out, &full, sizeof full);
    return COLI_OK;
}

/* ---- losses --------------------------------------------------------------------------------- */

/* Of nll, kl and top: sums over units. */
static coli__interval loss_of_sums(const coli_scores *a, const coli_scores *b, coli_measure m)
{
    coli__ratio r = {0};
    for (uint32_t i = 0; i < coli__tasks_n(a->tasks); i++) {
        if (coli__tasks_at(a->tasks, i)->kind != COLI_TASK_TEXT) continue;
        double n;
        const double value = value_of(b, i, m, &n);
        const double before = m == COLI_MEASURE_NLL ? value_of(a, i, m, &n) : 0;
        coli__ratio_add(&r, m == COLI_MEASURE_TOP ? n - value : value - before, n);
    }
    const coli__interval i = coli__ratio_interval(&r);
    if (m == COLI_MEASURE_NLL) return i;
    return coli__interval_within(i, 0, m == COLI_MEASURE_TOP ? 1 : INFINITY);
}

/* Of right and wrong. */
static coli__interval loss_of_pairs(const coli_scores *a, const coli_scores *b, coli_measure m)
{
    uint32_t n = 0, lost = 0, won = 0;
    for (uint32_t i = 0; i < coli__tasks_n(a->tasks); i++) {
        if (coli__tasks_at(a->tasks, i)->kind != kind_of(m)) continue;
        double one;
        const bool before = value_of(a, i, m, &one) > 0, now = value_of(b, i, m, &one) > 0;
        n++;
        lost += before && !now;
        won += now && !before;
    }
    return coli__pairs_interval(n, lost, won);
}

coli_status coli_scores_loss(const coli_scores *a, const coli_scores *b, coli_measure m,
                             coli_loss *out)
{
    if (out) COLI_TRY(coli__struct_clear("coli_loss", out));
    if (!a || !b || !out)
        return coli__fail(COLI_E_INVALID, "coli_scores_loss: an argument is NULL");
    if (strcmp(a->tasks->identity, b->tasks->identity) != 0)
        return coli__fail(COLI_E_INVALID, "the scores are of different items");
    COLI_TRY(check_measure(b, m));
    coli_mean mean_a = {.struct_size = sizeof mean_a}, mean_b = {.struct_size = sizeof mean_b};
    COLI_TRY(coli_scores_mean(b, m, NULL, &mean_b));
    if (!needs_base(m)) COLI_TRY(coli_scores_mean(a, m, NULL, &mean_a));
    const coli__interval i =
        kind_of(m) == COLI_TASK_TEXT ? loss_of_sums(a, b, m) : loss_of_pairs(a, b, m);
    const coli_loss full = {.n_item = mean_b.n_item,
                            .a = m == COLI_MEASURE_TOP ? 1 : mean_a.value,
                            .b = mean_b.value,
                            .loss = i.value,
                            .low = i.low,
                            .high = i.high};
    coli__struct_fill(out, &full, sizeof full);
    return COLI_OK;
}

coli_verdict coli_loss_verdict(const coli_loss *loss, double limit)
{
    if (loss && loss->high <= limit) return COLI_VERDICT_PASS;
    return loss && loss->low > limit ? COLI_VERDICT_FAIL : COLI_VERDICT_UNDECIDED;
}
