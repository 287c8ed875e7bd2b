/* cmd_replay.c - `coli replay`: policies x settings x residencies over the prompts of a file.
 *
 * Lists multiply: a policy that re-plans is run with each cap, drain and minimum count, every one that
 * moves experts with each allowance.  The reference of gains and pay-back runs first at each
 * residency, with the first of each list and no allowance, whether it is shown or not. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "options.h"
#include "progress.h"
#include "sweep.h"
#include "system.h"
#include "terminal.h"
#include "text.h"

enum { MAX_WORDS = 64, MAX_VARIANTS = 1024 };

/* ---- lists ---------------------------------------------------------------------------------- */

typedef struct words {
    char *text; // the words, each NUL-terminated
    char *at[MAX_WORDS];
    uint32_t n;
} words;

/* "a,b" taken apart; free text. */
static bool split(const char *option, const char *list, words *out)
{
    *out = (words){.text = app_format("%s", list)};
    for (char *word = out->text; word;) {
        char *comma = strchr(word, ',');
        if (comma) *comma = 0;
        if (*word == 0 || out->n == MAX_WORDS) {
            app_error("--%s: expected 1 to %d words with commas between, found \"%s\"", option,
                      MAX_WORDS, list);
            return false;
        }
        out->at[out->n++] = word;
        word = comma ? comma + 1 : NULL;
    }
    return true;
}

/* A whole number below 2^31. */
static bool whole(const char *word, uint32_t *out)
{
    char *end;
    if (*word < '0' || *word > '9') return false;
    const unsigned long long value = strtoull(word, &end, 10);
    *out = (uint32_t)value;
    return *end == 0 && value < 1u << 31;
}

typedef struct numbers {
    uint32_t at[MAX_WORDS];
    uint32_t n;
} numbers;

/* Numbers from `min` on; "none" is SWEEP_ANY where that is something. */
static bool numbers_of(const char *option, const char *list, uint32_t min, bool none, numbers *out)
{
    words w;
    bool good = split(option, list, &w);
    *out = (numbers){.n = w.n};
    for (uint32_t i = 0; i < w.n && good; i++) {
        if (none && strcmp(w.at[i], "none") == 0) {
            out->at[i] = SWEEP_ANY;
        } else if (!whole(w.at[i], &out->at[i]) || out->at[i] < min) {
            app_error("--%s: expected whole numbers from %" PRIu32 "%s, found \"%s\"", option, min,
                      none ? " or none" : "", w.at[i]);
            good = false;
        }
    }
    free(w.text);
    return good;
}

/* "37.5%" of n_expert, rounded, or "96". */
static bool resident(const char *word, uint32_t n_expert, uint32_t *out)
{
    if (!whole(word, out)) {
        char *end;
        if (strspn(word, "0123456789.") + 1 != strlen(word)) return false;
        const double percent = strtod(word, &end);
        if (strcmp(end, "%") != 0 || !(percent <= 100)) return false;
        *out = (uint32_t)(percent / 100 * n_expert + 0.5);
    }
    return *out >= 1 && *out <= n_expert;
}

static bool take_residencies(const char *list, sweep *s)
{
    words w;
    bool good = split("residency", list, &w);
    s->n_resident = app_alloc(MAX_WORDS, sizeof *s->n_resident);
    for (s->n_residency = 0; s->n_residency < w.n && good; s->n_residency++)
        if (!resident(w.at[s->n_residency], s->traces.n_expert, &s->n_resident[s->n_residency])) {
            app_error("--residency: expected shares like 12.5%% or numbers from 1 to %" PRIu32
                      ", found \"%s\"",
                      s->traces.n_expert, w.at[s->n_residency]);
            good = false;
        }
    free(w.text);
    return good;
}

/* ---- variants ------------------------------------------------------------------------------- */

static bool find_policy(const char *name, coli_replay_policy *out)
{
    app_nearest near = {.word = name};
    for (size_t i = 0; i < coli_replay_n_policy(); i++) {
        *out = (coli_replay_policy){.struct_size = sizeof *out};
        coli_replay_get_policy(i, out);
        if (strcmp(out->name, name) == 0) return true;
        app_nearest_try(&near, out->name);
    }
    app_error("no policy \"%s\"", name);
    if (near.best)
        app_hint("did you mean %s?", near.best);
    else
        app_hint("`coli help replay` lists them");
    return false;
}

typedef struct settings_lists {
    numbers caps, drains, min_counts, allowances;
} settings_lists;

static bool take_lists(const app_settings *s, settings_lists *out)
{
    return numbers_of("cap", s->cap ? s->cap : "24", 1, true, &out->caps) &&
           numbers_of("drain", s->drain ? s->drain : "4", 1, false, &out->drains) &&
           numbers_of("min-count", s->min_count ? s->min_count : "1", 1, false, &out->min_counts) &&
           numbers_of("allowance", s->allowance ? s->allowance : "none", 0, true, &out->allowances);
}

static void add_word(char *label, size_t cap, const char *word, uint32_t value)
{
    const size_t n = strlen(label);
    if (value == SWEEP_ANY)
        snprintf(label + n, cap - n, " no %s", word);
    else
        snprintf(label + n, cap - n, " %s %" PRIu32, word, value);
}

/* The settings that there are several of stand in the name. */
static void name_variant(sweep_variant *v, const settings_lists *l)
{
    snprintf(v->label, sizeof v->label, "%s", v->policy.name);
    if (v->policy.replans && l->caps.n > 1) add_word(v->label, sizeof v->label, "cap", v->cap);
    if (v->policy.replans && l->drains.n > 1)
        add_word(v->label, sizeof v->label, "drain", v->drain);
    if (v->policy.replans && l->min_counts.n > 1)
        add_word(v->label, sizeof v->label, "min", v->min_count);
    if (v->policy.moves && l->allowances.n > 1)
        add_word(v->label, sizeof v->label, "allowance", v->allowance);
}

static bool add_policy(const coli_replay_policy *p, const settings_lists *l, sweep *s)
{
    const uint32_t n_cap = p->replans ? l->caps.n : 1, n_drain = p->replans ? l->drains.n : 1;
    const uint32_t n_min = p->replans ? l->min_counts.n : 1;
    const uint32_t n_allowance = p->moves ? l->allowances.n : 1;
    const uint32_t n = n_cap * n_drain * n_min * n_allowance;
    if (n > MAX_VARIANTS - s->n_variant) {
        app_error("more than %d combinations of policies and settings", MAX_VARIANTS);
        return false;
    }
    for (uint32_t i = 0; i < n; i++) { // the last list is the innermost
        uint32_t rest = i;
        sweep_variant *v = &s->variants[s->n_variant++];
        *v = (sweep_variant){.policy = *p, .allowance = SWEEP_ANY};
        if (p->moves) v->allowance = l->allowances.at[rest % n_allowance];
        rest /= n_allowance;
        if (p->replans) {
            v->min_count = l->min_counts.at[rest % n_min];
            v->drain = l->drains.at[rest / n_min % n_drain];
            v->cap = l->caps.at[rest / n_min / n_drain];
        }
        name_variant(v, l);
    }
    return true;
}

static bool take_variants(const app_settings *set, sweep *s)
{
    settings_lists lists;
    if (!take_lists(set, &lists)) return false;
    s->reference.cap = lists.caps.at[0];
    s->reference.drain = lists.drains.at[0];
    s->reference.min_count = lists.min_counts.at[0];
    s->reference.allowance = SWEEP_ANY;
    s->variants = app_alloc(MAX_VARIANTS, sizeof *s->variants);
    coli_replay_policy p;
    bool good = true;
    if (!set->policy) {
        for (size_t i = 0; i < coli_replay_n_policy() && good; i++) {
            p = (coli_replay_policy){.struct_size = sizeof p};
            coli_replay_get_policy(i, &p);
            good = add_policy(&p, &lists, s);
        }
        return good;
    }
    words w;
    good = split("policy", set->policy, &w);
    for (uint32_t i = 0; i < w.n && good; i++)
        good = find_policy(w.at[i], &p) && add_policy(&p, &lists, s);
    free(w.text);
    return good;
}

/* ---- running -------------------------------------------------------------------------------- */

typedef struct job {
    const app_settings *set;
    coli_replay *replay;
    coli_replay_result *reference, *results; // (n_prompt)
    uint64_t *allowance;                     // (n_prompt)
    double *values;                          // (n_prompt)
    sweep s;
} job;

static coli_status run_variant(job *j, const sweep_variant *v, uint32_t n_resident,
                               coli_replay_result *out)
{
    for (uint32_t i = 0; i < j->s.traces.n_prompt; i++)
        j->allowance[i] = (uint64_t)v->allowance * j->s.traces.n_layer;
    const coli_replay_opts opts = {.struct_size = sizeof opts,
                                   .n_resident = n_resident,
                                   .policy = v->policy.name,
                                   .cap = v->cap, // SWEEP_ANY is COLI_REPLAY_NO_CAP
                                   .drain = v->drain,
                                   .min_count = v->min_count,
                                   .seed = j->set->seed,
                                   .allowance = v->allowance == SWEEP_ANY ? NULL : j->allowance,
                                   .machine = &j->s.machine};
    return coli_replay_run(j->replay, &opts, out);
}

static void summarise(job *j, sweep_point *p)
{
    const uint32_t n = j->s.traces.n_prompt;
    const double n_layer = j->s.traces.n_layer;
    double ttft = 0, token = 0;
    const coli_replay_result *r = j->results, *q = j->reference;
#define MEAN_OF(field, value)                                                                      \
    for (uint32_t i = 0; i < n; i++) j->values[i] = (value);                                       \
    p->field = sweep_mean_of(j->values, n)
    MEAN_OF(hit, r[i].hit_rate);
    MEAN_OF(gain, r[i].hit_rate - q[i].hit_rate);
    MEAN_OF(prompt_uploads, (double)r[i].n_prompt_upload / n_layer);
    MEAN_OF(token_uploads, (double)r[i].n_upload / n_layer / r[i].n_answer_row);
    MEAN_OF(token_ms, r[i].token_ms);
    MEAN_OF(ttft_ms, r[i].ttft_ms);
#undef MEAN_OF
    for (uint32_t i = 0; i < n; i++) {
        ttft += r[i].ttft_ms - q[i].ttft_ms;
        token += q[i].token_ms - r[i].token_ms;
    }
    p->pay_back = ttft <= 0 ? 0 : token > 0 ? ttft / token : (double)INFINITY;
}

static coli_status run_all(job *j, app_progress *progress)
{
    sweep *s = &j->s;
    const uint64_t n = (uint64_t)s->n_residency * s->n_variant;
    for (uint32_t i = 0; i < s->n_residency; i++) {
        coli_status status = run_variant(j, &s->reference, s->n_resident[i], j->reference);
        for (uint32_t v = 0; v < s->n_variant && status == COLI_OK; v++) {
            sweep_point *p = &s->points[i * s->n_variant + v];
            *p = (sweep_point){.variant = &s->variants[v], .n_resident = s->n_resident[i]};
            status = run_variant(j, p->variant, p->n_resident, j->results);
            if (status == COLI_OK) summarise(j, p);
            const uint64_t done = (uint64_t)i * s->n_variant + v + 1;
            if (!app_progress_step(progress, "", done, n)) return COLI_E_CANCELLED;
        }
        if (status != COLI_OK) return status;
    }
    return COLI_OK;
}

/* ---- the command ---------------------------------------------------------------------------- */

static int write_file(const char *path, const sweep *s, void (*print)(const sweep *s, FILE *out))
{
    if (strcmp(path, "-") == 0) {
        print(s, stdout);
        return app_flush() ? APP_OK : APP_FAILED;
    }
    errno = 0;
    FILE *out = app_system_create(path);
    if (out) print(s, out);
    const bool good = out && !ferror(out);
    if (out && fclose(out) == 0 && good) return APP_OK;
    app_error("%s: cannot be written: %s", path, strerror(errno));
    return APP_FAILED;
}

static int show(const app_settings *set, const sweep *s)
{
    const bool only_csv = set->csv && strcmp(set->csv, "-") == 0;
    if (!only_csv) sweep_print_table(s);
    int code = app_flush() ? APP_OK : APP_FAILED;
    if (code == APP_OK && set->csv) code = write_file(set->csv, s, sweep_print_csv);
    if (code == APP_OK && set->svg) code = write_file(set->svg, s, sweep_print_svg);
    return code;
}

static int run(job *j)
{
    sweep *s = &j->s;
    const uint32_t n = s->traces.n_prompt;
    j->reference = app_alloc(n, sizeof *j->reference);
    j->results = app_alloc(n, sizeof *j->results);
    j->allowance = app_alloc(n, sizeof *j->allowance);
    j->values = app_alloc(n, sizeof *j->values);
    s->points = app_alloc((size_t)s->n_residency * s->n_variant, sizeof *s->points);
    app_interrupt_count();
    app_progress progress;
    app_progress_start(&progress, "replay");
    progress.unit = "runs";
    const coli_status status = run_all(j, &progress);
    app_progress_end(&progress, false);
    app_interrupt_session(NULL);
    if (status == COLI_E_CANCELLED) return APP_INTERRUPTED;
    return status == COLI_OK ? show(j->set, s) : app_fail(status);
}

static int prepare(job *j)
{
    const app_settings *set = j->set;
    sweep *s = &j->s;
    s->traces.struct_size = sizeof s->traces;
    s->machine.struct_size = sizeof s->machine;
    coli_replay_get_info(j->replay, &s->traces);
    coli_replay_machine_default(&s->machine);
    char word[64];
    if (set->machine && !sweep_machine_words(set->machine, &s->machine, word, sizeof word))
        return app_usage("replay", "--machine: \"%s\" is not understood", word);
    s->path = set->args[0];
    const char *residencies = set->residency ? set->residency : "12.5%,25%,37.5%,50%,80%";
    const bool good = find_policy(set->against ? set->against : "foreign", &s->reference.policy) &&
                      take_residencies(residencies, s) && take_variants(set, s);
    return good ? APP_OK : APP_BAD;
}

int cmd_replay(const app_settings *set)
{
    const coli_replay_part part = {.struct_size = sizeof part,
                                   .n_layer = set->layers,
                                   .n_expert_used = set->used,
                                   .n_expert = set->experts_n,
                                   .n_threads = set->threads};
    job j = {.set = set};
    const coli_status status = coli_replay_open(set->args[0], &part, &j.replay);
    int code = status == COLI_OK ? prepare(&j) : app_fail(status);
    if (code == APP_OK) code = run(&j);
    coli_replay_close(j.replay);
    free(j.reference);
    free(j.results);
    free(j.allowance);
    free(j.values);
    free(j.s.variants);
    free(j.s.n_resident);
    free(j.s.points);
    return code;
}
