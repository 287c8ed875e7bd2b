/* cmd_quality.c - `coli bench --quality`: score items with one setting, or with two and compare.
 *
 *     coli bench --quality DIR                       side 0 is scored
 *     coli bench --quality DIR --record FILE         the same, and written with its rows
 *     coli bench --quality DIR --compare A B         side 0 is scored with its rows, or read from a file;
 *                                                    then side 1, and its rows against those
 *
 * The sides take turns: a model is closed before the next is opened, for a device may hold only one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "options.h"
#include "progress.h"
#include "quality.h"
#include "system.h"
#include "terminal.h"
#include "text.h"

/* ---- limits --------------------------------------------------------------------------------- */

static bool is_measure(const char *name, size_t n, coli_measure *out)
{
    if (n == 3 && strncmp(name, "ppl", n) == 0) {
        *out = COLI_MEASURE_NLL; // log of its ratio is the loss of nll
        return true;
    }
    for (int m = COLI_MEASURE_KL; m < COLI_N_MEASURE; m++) {
        const char *known = coli_measure_name((coli_measure)m);
        *out = (coli_measure)m;
        if (strlen(known) == n && strncmp(name, known, n) == 0) return true;
    }
    return false;
}

/* "1%", "0.01", "none". */
static bool is_limit(const char *text, size_t n, double *out)
{
    char number[32], *end;
    *out = NAN;
    if (n == 4 && strncmp(text, "none", n) == 0) return true;
    if (n == 0 || n >= sizeof number) return false;
    memcpy(number, text, n);
    number[n] = 0;
    if (strspn(number, "0123456789.") == 0) return false;
    *out = strtod(number, &end);
    if (*end == '%') {
        *out /= 100;
        end++;
    }
    return *end == 0 && *out >= 0 && *out <= 1000;
}

int quality_limits(const char *list, double *limit)
{
    for (int m = 0; m < COLI_N_MEASURE; m++) limit[m] = NAN;
    limit[COLI_MEASURE_NLL] = log1p(0.01);
    limit[COLI_MEASURE_KL] = 0.01;
    limit[COLI_MEASURE_CHOICE] = limit[COLI_MEASURE_EXACT] = 0.02;
    for (const char *at = list; at;) {
        const size_t n = strcspn(at, ","), n_name = strcspn(at, "=,");
        coli_measure m;
        double value;
        if (!is_measure(at, n_name, &m) || at[n_name] != '=' ||
            !is_limit(at + n_name + 1, n - n_name - 1, &value)) {
            app_error("--limit: expected ppl, kl, top, choice, choice-byte, choice-token or exact, "
                      "and =1%%, =0.01 or =none, found \"%.*s\"",
                      (int)n, at);
            return APP_BAD;
        }
        limit[m] = m == COLI_MEASURE_NLL ? log1p(value) : value; // of none: NAN again
        at = at[n] ? at + n + 1 : NULL;
    }
    return APP_OK;
}

/* ---- results -------------------------------------------------------------------------------- */

bool quality_has(const coli_scores *scores, coli_measure measure)
{
    coli_mean mean = {.struct_size = sizeof mean};
    return coli_scores_mean(scores, measure, NULL, &mean) == COLI_OK && mean.n_unit > 0;
}

bool quality_loss(const quality *q, coli_measure measure, coli_loss *out)
{
    *out = (coli_loss){.struct_size = sizeof *out};
    return quality_has(q->side[1].scores, measure) &&
           coli_scores_loss(q->side[0].scores, q->side[1].scores, measure, out) == COLI_OK;
}

coli_verdict quality_verdict(const quality *q)
{
    coli_verdict all = COLI_VERDICT_PASS;
    for (int m = 0; m < COLI_N_MEASURE; m++) {
        coli_loss loss;
        if (isnan(q->limit[m]) || !quality_loss(q, (coli_measure)m, &loss)) continue;
        const coli_verdict one = coli_loss_verdict(&loss, q->limit[m]);
        if (one == COLI_VERDICT_FAIL) return COLI_VERDICT_FAIL;
        if (one == COLI_VERDICT_UNDECIDED) all = COLI_VERDICT_UNDECIDED;
    }
    return all;
}

/* ---- a side --------------------------------------------------------------------------------- */

static int open_tasks(const app_settings *s, quality_side *side)
{
    const coli_tasks_opts opts = {.struct_size = sizeof opts, .every = s->every};
    const coli_status status = coli_tasks_open(s->quality, side->engine.model, &opts, &side->tasks);
    if (status == COLI_OK) return APP_OK;
    return app_fail_reading(status, s->quality, app_system_look(s->quality) == APP_PATH_DIR);
}

static coli_status open_session(quality_side *side)
{
    coli_tasks_info info = {.struct_size = sizeof info};
    const coli_status status = coli_tasks_get_info(side->tasks, &info);
    if (status != COLI_OK) return status;
    return app_open_session(&side->settings, info.n_ctx, &side->engine);
}

static coli_status score(quality_side *side, const coli_scores *base, bool keep_rows)
{
    app_progress progress;
    coli_status status = open_session(side);
    if (status != COLI_OK) return status;
    app_banner(&side->engine);
    app_interrupt_session(side->engine.session);
    app_progress_start(&progress, "score");
    progress.unit = "tokens";
    const coli_scores_opts opts = {.struct_size = sizeof opts,
                                   .keep_rows = keep_rows,
                                   .base = base,
                                   .progress = app_progress_step,
                                   .user = &progress};
    const double start = app_clock_s();
    status = coli_scores_make(side->engine.session, side->tasks, &opts, &side->scores);
    side->seconds = app_clock_s() - start;
    app_progress_end(&progress, status == COLI_OK);
    app_interrupt_session(NULL);
    return status;
}

static coli_status look_at_model(quality_side *side)
{
    coli_model_info info = {.struct_size = sizeof info};
    coli_status status = coli_model_get_info(side->engine.model, &info);
    if (status != COLI_OK) return status;
    snprintf(side->name, sizeof side->name, "%s", info.name);
    side->stats = (coli_backend_stats){.struct_size = sizeof side->stats};
    side->route = (coli_route_stats){.struct_size = sizeof side->route};
    status = coli_model_get_backend_stats(side->engine.model, &side->stats);
    if (status != COLI_OK) return status;
    return coli_model_get_route_stats(side->engine.model, &side->route);
}

/* From options to scores; the model is closed again.  An exit code. */
static int make_scores(const app_settings *s, quality_side *side, const coli_scores *base,
                       bool keep_rows)
{
    const uint32_t what = side->is_file ? 0 : APP_OPEN_DEVICES | APP_OPEN_TELL;
    int code = app_open(&side->settings, what, &side->engine);
    if (code == APP_OK) code = open_tasks(s, side);
    coli_status status = COLI_OK;
    if (code == APP_OK && side->is_file) {
        status = coli_scores_open(side->text, side->tasks, &side->scores);
        if (status != COLI_OK) code = app_fail_reading(status, side->text, false);
    } else if (code == APP_OK) {
        status = score(side, base, keep_rows);
        if (status == COLI_OK) status = look_at_model(side);
        if (status != COLI_OK) code = app_fail(status);
    }
    app_close(&side->engine);
    return code;
}

static void finish_side(quality_side *side)
{
    coli_scores_free(side->scores);
    coli_tasks_close(side->tasks);
    free(side->words);
}

/* ---- the command ---------------------------------------------------------------------------- */

/* A blank text, or one that begins with a dash, is options: all that can be wrong with them is said
 * before anything is computed. */
static int prepare_side(const app_settings *s, const char *text, quality_side *side)
{
    *side = (quality_side){.text = text, .settings = *s};
    const char first = text[strspn(text, " \t\n")];
    side->is_file = first != 0 && first != '-';
    if (side->is_file && app_system_look(text) != APP_PATH_FILE) {
        app_error("--compare: expected options or a file of scores, found \"%s\"", text);
        return APP_BAD;
    }
    return side->is_file ? APP_OK : app_settings_over(s, text, &side->settings, &side->words);
}

static int prepare(const app_settings *s, quality *q)
{
    int code = quality_limits(s->limit, q->limit);
    q->n_side = s->compare[0] ? 2 : 1;
    q->every = s->every ? s->every : 1;
    for (uint32_t i = 0; i < q->n_side && code == APP_OK; i++)
        code = prepare_side(s, q->n_side == 2 ? s->compare[i] : "", &q->side[i]);
    if (code != APP_OK) return code;
    if (s->record && q->n_side == 2)
        return app_usage("bench", "--record writes the scores of one setting, without --compare");
    if (app_given(s, APP_OPT_LIMIT) && q->n_side == 1)
        return app_usage("bench", "--limit is what --compare compares with");
    const int bad = s->record ? app_check_out("bench", "--record", s->record, false) : APP_OK;
    if (bad != APP_OK) return bad;
    if (s->record && app_system_look(s->record) != APP_PATH_NONE) {
        app_error("%s: already exists", s->record);
        return APP_BAD;
    }
    return APP_OK;
}

/* Without rows there is no telling how far they are apart. */
static const coli_scores *base_of(const quality *q)
{
    coli_scores_info info = {.struct_size = sizeof info};
    const coli_status status = coli_scores_get_info(q->side[0].scores, &info);
    return status == COLI_OK && info.has_rows ? q->side[0].scores : NULL;
}

/* A file is read first: one that makes no sense is no reason to compute for hours. */
static int compare(const app_settings *s, quality *q)
{
    quality_side *a = &q->side[0], *b = &q->side[1];
    int code = b->is_file ? make_scores(s, b, NULL, false) : APP_OK;
    if (code == APP_OK) code = make_scores(s, a, NULL, !b->is_file);
    if (code == APP_OK && !b->is_file) code = make_scores(s, b, base_of(q), false);
    return code;
}

static int measure(const app_settings *s, quality *q)
{
    if (q->n_side == 2) return compare(s, q);
    return make_scores(s, &q->side[0], NULL, s->record != NULL);
}

/* After they were shown: a file that cannot be written loses no scores. */
static int record(const app_settings *s, const quality *q)
{
    if (!s->record) return APP_OK;
    const coli_status status = coli_scores_save(q->side[0].scores, s->record);
    return status == COLI_OK ? APP_OK : app_fail(status);
}

int cmd_quality(const app_settings *s)
{
    quality q = {.n_side = 0};
    int code = prepare(s, &q);
    if (code == APP_OK) code = measure(s, &q);
    if (code == APP_OK) {
        if (s->json)
            quality_print_json(&q);
        else
            quality_print_text(&q);
        if (q.n_side == 2 && quality_verdict(&q) != COLI_VERDICT_PASS)
            code = quality_verdict(&q) == COLI_VERDICT_FAIL ? QUALITY_FAILED : QUALITY_UNDECIDED;
        else
            code = record(s, &q);
    }
    for (uint32_t i = 0; i < 2; i++) finish_side(&q.side[i]);
    return code;
}
