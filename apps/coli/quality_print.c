/* quality_print.c - scores and losses as tables and as JSON. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "input.h"
#include "quality.h"
#include "terminal.h"

static const char *const titles[COLI_N_MEASURE] = {
    "perplexity", "KL", "same best token", "choice", "  per byte", "  per token", "exact"};
static const char *const verdicts[] = {"pass", "FAIL", "undecided"};

static bool is_share(int m)
{
    return m >= COLI_MEASURE_TOP;
}

/* A mean as people read it: a perplexity, a divergence, a share. */
static void value_text(int m, double x, char *out, size_t cap)
{
    if (m == COLI_MEASURE_NLL)
        snprintf(out, cap, "%.4f", exp(x));
    else if (m == COLI_MEASURE_KL)
        snprintf(out, cap, "%.6f", x);
    else
        snprintf(out, cap, "%.2f %%", x * 100);
}

/* A loss, or a bound of it: of perplexity relative, of shares in points. */
static void loss_text(int m, double x, char *out, size_t cap)
{
    if (isinf(x))
        snprintf(out, cap, "?");
    else if (m == COLI_MEASURE_NLL)
        snprintf(out, cap, "%+.2f %%", expm1(x) * 100);
    else if (m == COLI_MEASURE_KL)
        snprintf(out, cap, "%.6f", x);
    else
        snprintf(out, cap, "%+.2f %%", x * 100);
}

/* ---- text: one setting ---------------------------------------------------------------------- */

static coli_task task_at(const quality_side *side, uint32_t i)
{
    coli_task task = {.struct_size = sizeof task};
    coli_tasks_get(side->tasks, i, &task);
    return task;
}

static coli_tasks_info tasks_of(const quality_side *side)
{
    coli_tasks_info info = {.struct_size = sizeof info};
    coli_tasks_get_info(side->tasks, &info);
    return info;
}

static void print_mean(const quality_side *side, int m, const char *title, const char *group)
{
    coli_mean mean = {.struct_size = sizeof mean};
    char value[48], more[48] = "";
    if (coli_scores_mean(side->scores, (coli_measure)m, group, &mean) != COLI_OK) return;
    if (mean.n_unit == 0) return;
    value_text(m, mean.value, value, sizeof value);
    if (m == COLI_MEASURE_NLL)
        snprintf(more, sizeof more, "nll %.5f, %" PRIu64 " tokens", mean.value, mean.n_unit);
    else if (is_share(m))
        snprintf(more, sizeof more, "%.0f of %" PRIu64, mean.value * (double)mean.n_unit,
                 mean.n_unit);
    app_line(stdout, "%-18s %6" PRIu32 " %12s   %s", title, mean.n_item, value, more);
}

/* Every group once, at its first item. */
static void print_groups(const quality_side *side, int m)
{
    const uint32_t n = tasks_of(side).n_item;
    for (uint32_t i = 0; i < n; i++) {
        const coli_task task = task_at(side, i);
        if (!*task.group) continue;
        bool seen = false;
        for (uint32_t j = 0; j < i && !seen; j++)
            seen = strcmp(task_at(side, j).group, task.group) == 0;
        if (seen) continue;
        char title[64];
        snprintf(title, sizeof title, "  %.40s", task.group);
        print_mean(side, m, title, task.group);
    }
}

static double hit_rate(const quality_side *side)
{
    const double hits = (double)side->stats.n_row_device, misses = (double)side->stats.n_row_host;
    return hits + misses > 0 ? hits / (hits + misses) : 0;
}

static double speed(const quality_side *side)
{
    return side->seconds > 0 ? (double)tasks_of(side).n_token / side->seconds : 0;
}

static void print_run(const quality_side *side)
{
    if (side->seconds == 0) return;
    printf("%" PRIu64 " tokens in %.1f s, %.0f tok/s", tasks_of(side).n_token, side->seconds,
           speed(side));
    if (side->stats.n_device) printf("; VRAM hit rate %.1f %%", hit_rate(side) * 100);
    if (side->route.route_slots) printf("; swapped %.1f %%", side->route.swap_pct);
    putchar('\n');
}

static void print_one(const quality_side *side)
{
    printf("                    items        value\n");
    for (int m = 0; m < COLI_N_MEASURE; m++) {
        if (!quality_has(side->scores, (coli_measure)m)) continue;
        print_mean(side, m, titles[m], NULL);
        if (m != COLI_MEASURE_CHOICE_BYTE && m != COLI_MEASURE_CHOICE_TOKEN) print_groups(side, m);
    }
    print_run(side);
}

/* ---- text: two ------------------------------------------------------------------------------ */

static void print_loss(const quality *q, int m)
{
    coli_loss loss;
    char a[48] = "-", b[48], change[48], low[48], high[48], limit[48] = "";
    const char *verdict = "";
    if (!quality_loss(q, (coli_measure)m, &loss)) return;
    if (m != COLI_MEASURE_KL && m != COLI_MEASURE_TOP) value_text(m, loss.a, a, sizeof a);
    value_text(m, loss.b, b, sizeof b);
    loss_text(m, loss.loss, change, sizeof change);
    loss_text(m, loss.low, low, sizeof low);
    loss_text(m, loss.high, high, sizeof high);
    if (!isnan(q->limit[m])) {
        loss_text(m, q->limit[m], limit, sizeof limit);
        verdict = verdicts[coli_loss_verdict(&loss, q->limit[m])];
    }
    printf("%-18s %6" PRIu32 " %10s %10s %10s  %10s to %-10s %10s  %s\n", titles[m], loss.n_item, a,
           b, change, low, high, limit, verdict);
}

static void print_two(const quality *q)
{
    static const char *const names[2] = {"A", "B"};
    for (int i = 0; i < 2; i++)
        app_line(stdout, "%s: %s%s%s", names[i], q->side[i].is_file ? "" : q->side[i].name,
                 q->side[i].is_file || !*q->side[i].text ? "" : " ", q->side[i].text);
    printf(
        "\n                    items          A          B       loss       95 %% interval of the "
        "loss      limit\n");
    for (int m = 0; m < COLI_N_MEASURE; m++) print_loss(q, m);
    putchar('\n');
    for (int i = 0; i < 2; i++) {
        if (q->side[i].seconds == 0) continue;
        printf("%s: ", names[i]);
        print_run(&q->side[i]);
    }
    printf("verdict: %s\n", verdicts[quality_verdict(q)]);
}

void quality_print_text(const quality *q)
{
    if (q->n_side == 2)
        print_two(q);
    else
        print_one(&q->side[0]);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static json_t *text_json(const char *text)
{
    return app_json_string(text, strlen(text));
}

static json_t *means_json(const quality_side *side)
{
    json_t *all = json_object();
    for (int m = 0; m < COLI_N_MEASURE; m++) {
        coli_mean mean = {.struct_size = sizeof mean};
        if (coli_scores_mean(side->scores, (coli_measure)m, NULL, &mean) != COLI_OK) continue;
        if (mean.n_unit == 0) continue;
        json_object_set_new(all, coli_measure_name((coli_measure)m),
                            json_pack("{s:f, s:I, s:I}", "mean", mean.value, "items",
                                      (json_int_t)mean.n_item, "units", (json_int_t)mean.n_unit));
    }
    return all;
}

static json_t *item_json(const quality_side *side, uint32_t i)
{
    static const char *const kinds[] = {"text", "choice", "exact"};
    const coli_task task = task_at(side, i);
    coli_score score = {.struct_size = sizeof score};
    coli_scores_get(side->scores, i, &score);
    json_t *o =
        json_pack("{s:o, s:I, s:s, s:o}", "file", text_json(task.file), "line",
                  (json_int_t)task.line, "kind", kinds[task.kind], "group", text_json(task.group));
    if (task.kind == COLI_TASK_TEXT) {
        json_object_set_new(o, "tokens", json_integer(score.n_token));
        json_object_set_new(o, "nll", json_real(score.nll));
    } else {
        json_object_set_new(o, "right", json_boolean(score.right));
    }
    if (task.kind == COLI_TASK_TEXT && score.n_row) {
        json_object_set_new(o, "kl", json_real(score.kl));
        json_object_set_new(o, "rows", json_integer(score.n_row));
        json_object_set_new(o, "same_top", json_integer(score.n_top));
    }
    if (task.kind == COLI_TASK_CHOICE) {
        json_t *sums = json_array();
        for (uint32_t e = 0; e < task.n_ending; e++)
            json_array_append_new(sums, json_real(score.logprob[e]));
        json_object_set_new(o, "label", json_integer(task.label));
        json_object_set_new(o, "pick", json_integer(score.pick));
        json_object_set_new(o, "pick_byte", json_integer(score.pick_byte));
        json_object_set_new(o, "pick_token", json_integer(score.pick_token));
        json_object_set_new(o, "logprob", sums);
    }
    if (task.kind == COLI_TASK_EXACT) json_object_set_new(o, "answer", text_json(score.answer));
    return o;
}

static json_t *side_json(const quality_side *side)
{
    coli_scores_info info = {.struct_size = sizeof info};
    coli_scores_get_info(side->scores, &info);
    json_t *o = json_object(), *items = json_array();
    json_object_set_new(o, side->is_file ? "file" : "options", text_json(side->text));
    json_object_set_new(o, "model", text_json(info.model));
    json_object_set_new(o, "scores", means_json(side));
    if (side->seconds > 0) {
        json_object_set_new(o, "seconds", json_real(side->seconds));
        json_object_set_new(o, "tok_s", json_real(speed(side)));
    }
    if (side->stats.n_device) json_object_set_new(o, "hit_rate", json_real(hit_rate(side)));
    const coli_route_stats *r = &side->route;
    if (r->route_slots || r->n_row)
        json_object_set_new(o, "route",
                            json_pack("{s:f, s:I, s:I, s:f, s:f}", "swap_pct", r->swap_pct,
                                      "route_swaps", (json_int_t)r->route_swaps, "route_slots",
                                      (json_int_t)r->route_slots, "route_agree", r->route_agree,
                                      "route_kl", r->route_kl));
    for (uint32_t i = 0; i < info.n_item; i++) json_array_append_new(items, item_json(side, i));
    json_object_set_new(o, "items", items);
    return o;
}

/* JSON has no infinity: null where there are too few items. */
static json_t *bound_json(double x)
{
    return isinf(x) ? json_null() : json_real(x);
}

static json_t *losses_json(const quality *q)
{
    json_t *all = json_object();
    for (int m = 0; m < COLI_N_MEASURE; m++) {
        coli_loss loss;
        if (!quality_loss(q, (coli_measure)m, &loss)) continue;
        json_t *o = json_pack("{s:f, s:f, s:f, s:o, s:o, s:I}", "a", loss.a, "b", loss.b, "loss",
                              loss.loss, "low", bound_json(loss.low), "high", bound_json(loss.high),
                              "items", (json_int_t)loss.n_item);
        if (!isnan(q->limit[m])) {
            json_object_set_new(o, "limit", json_real(q->limit[m]));
            json_object_set_new(o, "verdict",
                                json_string(verdicts[coli_loss_verdict(&loss, q->limit[m])]));
        }
        json_object_set_new(all, coli_measure_name((coli_measure)m), o);
    }
    return all;
}

void quality_print_json(const quality *q)
{
    json_t *root = json_object(), *sides = json_array();
    json_object_set_new(root, "tasks", text_json(tasks_of(&q->side[0]).identity));
    json_object_set_new(root, "every", json_integer(q->every));
    for (uint32_t i = 0; i < q->n_side; i++) json_array_append_new(sides, side_json(&q->side[i]));
    json_object_set_new(root, "sides", sides);
    if (q->n_side == 2) {
        json_object_set_new(root, "losses", losses_json(q));
        json_object_set_new(root, "verdict", json_string(verdicts[quality_verdict(q)]));
    }
    app_json_line(root);
}
