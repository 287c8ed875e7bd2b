/* cmd_heat.c - `coli heat`: what a heat file says, and how files are added up, emptied and imported. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "coli/coli.h"
#include "commands.h"
#include "input.h"
#include "open_model.h"
#include "options.h"
#include "system.h"
#include "terminal.h"
#include "text.h"

/* ---- what counters say --------------------------------------------------------------------- */

typedef struct hot {
    uint32_t count, expert;
} hot;

static int hottest_first(const void *a, const void *b)
{
    const hot *x = a, *y = b;
    if (x->count != y->count) return x->count < y->count ? 1 : -1;
    return x->expert < y->expert ? -1 : x->expert > y->expert;
}

typedef struct summary {
    uint64_t sum;
    uint32_t n_used; // counters above 0
    uint32_t n_half; // how few experts have half of the sum
} summary;

/* Sorts the counters. */
static summary summarise(hot *experts, uint32_t n)
{
    summary s = {0};
    for (uint32_t i = 0; i < n; i++) {
        s.sum += experts[i].count;
        s.n_used += experts[i].count > 0;
    }
    qsort(experts, n, sizeof *experts, hottest_first);
    for (uint64_t part = 0; part < s.sum - s.sum / 2; s.n_half++) part += experts[s.n_half].count;
    return s;
}

static hot *list_of(const uint32_t *counts, uint32_t n)
{
    hot *experts = app_alloc(n, sizeof *experts);
    for (uint32_t i = 0; i < n; i++) experts[i] = (hot){counts[i], i};
    return experts;
}

static summary summary_of(const uint32_t *counts, uint32_t n)
{
    hot *experts = list_of(counts, n);
    const summary s = summarise(experts, n);
    free(experts);
    return s;
}

/* ---- show ---------------------------------------------------------------------------------- */

static void print_layer(const coli_heat_info *h, uint32_t layer)
{
    enum { SHOWN = 4 };
    hot *experts = list_of(h->counts + (size_t)layer * h->n_expert, h->n_expert);
    const summary s = summarise(experts, h->n_expert);
    char hottest[SHOWN * 32] = "";
    for (uint32_t i = 0, at = 0; i < SHOWN && i < s.n_used; i++)
        at += (uint32_t)snprintf(hottest + at, sizeof hottest - at, "  %u: %u", experts[i].expert,
                                 experts[i].count);
    app_line(stdout, "  %5u %12" PRIu64 " %6u %6u%s", layer, s.sum, s.n_used, s.n_half, hottest);
    free(experts);
}

static void print_text(const char *path, const coli_heat_info *h)
{
    const uint32_t n = h->n_layer * h->n_expert;
    const summary s = summary_of(h->counts, n);
    app_line(stdout, "%s, heat of the model %s", path, h->identity);
    app_line(stdout, "  shape        %u layers of %u experts", h->n_layer, h->n_expert);
    app_line(stdout, "  tokens       %" PRIu64, h->n_token);
    app_line(stdout, "  heat         %" PRIu64 ", in %u of %u experts, half of it in %u", s.sum,
             s.n_used, n, s.n_half);
    if (s.sum == 0) return;
    putchar('\n');
    app_line(stdout, "  layer         heat   used   half  hottest");
    for (uint32_t layer = 0; layer < h->n_layer; layer++) print_layer(h, layer);
}

static json_t *heat_json(const coli_heat_info *h)
{
    json_t *object = json_object(), *layers = json_array();
    json_object_set_new(object, "identity", app_json_string(h->identity, strlen(h->identity)));
    json_object_set_new(object, "n_layer", json_integer(h->n_layer));
    json_object_set_new(object, "n_expert", json_integer(h->n_expert));
    const uint64_t n_token =
        h->n_token < INT64_MAX ? h->n_token : INT64_MAX; // all that JSON can say
    json_object_set_new(object, "n_token", json_integer((json_int_t)n_token));
    for (uint32_t layer = 0; layer < h->n_layer; layer++) {
        json_t *counts = json_array();
        for (uint32_t e = 0; e < h->n_expert; e++)
            json_array_append_new(counts, json_integer(h->counts[(size_t)layer * h->n_expert + e]));
        json_array_append_new(layers, counts);
    }
    json_object_set_new(object, "counts", layers);
    return object;
}

/* Open a file; an exit code, with what went wrong printed. */
static int open_heat(const char *path, coli_heat **heat, coli_heat_info *info)
{
    *info = (coli_heat_info){.struct_size = sizeof *info};
    coli_status status = coli_heat_open(path, heat);
    if (status == COLI_OK) status = coli_heat_get_info(*heat, info);
    return status == COLI_OK ? APP_OK : app_fail_reading(status, path, false);
}

static int show(const app_settings *s)
{
    coli_heat *heat;
    coli_heat_info info;
    const int code = open_heat(s->args[1], &heat, &info);
    if (code == APP_OK && s->json)
        app_json_line(heat_json(&info));
    else if (code == APP_OK)
        print_text(s->args[1], &info);
    coli_heat_close(heat);
    return code;
}

/* ---- the others ---------------------------------------------------------------------------- */

/* What a file holds now, in a line. */
static int say(const char *path, const char *what)
{
    coli_heat *heat;
    coli_heat_info info;
    const int code = open_heat(path, &heat, &info);
    if (code == APP_OK)
        app_line(stdout, "%s: %s: heat %" PRIu64 ", %" PRIu64 " tokens, %u layers of %u experts",
                 path, what, summary_of(info.counts, info.n_layer * info.n_expert).sum,
                 info.n_token, info.n_layer, info.n_expert);
    coli_heat_close(heat);
    return code;
}

static int merge(const app_settings *s)
{
    const uint32_t n_file = s->n_arg - 2;
    const char *out = s->args[1];
    const coli_status status =
        coli_heat_merge(out, (const char *const *)(const void *)(s->args + 2), n_file);
    if (status != COLI_OK) return app_fail(status);
    char *what = app_format("the sum of %u file%s", n_file, n_file == 1 ? "" : "s");
    const int code = say(out, what);
    free(what);
    return code;
}

static int reset(const app_settings *s)
{
    const char *path = s->args[1];
    coli_heat *heat;
    coli_heat_info info;
    const int code = open_heat(path, &heat, &info);
    summary was = {0};
    if (code == APP_OK) was = summary_of(info.counts, info.n_layer * info.n_expert);
    const uint64_t n_token = info.n_token;
    coli_heat_close(heat);
    if (code != APP_OK) return code;
    const coli_status status = coli_heat_reset(path);
    if (status != COLI_OK) return app_fail(status);
    app_line(stdout, "%s: forgot heat %" PRIu64 " in %u experts, %" PRIu64 " tokens", path, was.sum,
             was.n_used, n_token);
    return APP_OK;
}

static int import(const app_settings *s)
{
    char dir[APP_MAX_PATH];
    const int code = app_model_dir(s, dir, sizeof dir);
    if (code != APP_OK) return code;
    const coli_status status = coli_heat_import(s->args[1], s->args[2], dir);
    return status == COLI_OK ? say(s->args[1], "imported") : app_fail(status);
}

/* ---- the command --------------------------------------------------------------------------- */

typedef struct verb {
    const char *name;
    int (*run)(const app_settings *s);
    uint32_t min_arg, max_arg; // the verb counts
    const char *wants;
} verb;

static const verb verbs[] = {
    {"show", show, 2, 2, "one file"},
    {"merge", merge, 3, UINT32_MAX, "the file for the sum and one or more to add up"},
    {"reset", reset, 2, 2, "one file"},
    {"import", import, 3, 3, "the file to make and the one in the older format"},
};

int cmd_heat(const app_settings *s)
{
    const char *name = s->args[0];
    const verb *v = NULL;
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (strcmp(name, verbs[i].name) == 0) v = &verbs[i];
    if (!v)
        return app_usage("heat", "heat: expected show, merge, reset or import, found \"%s\"", name);
    if (s->n_arg < v->min_arg || s->n_arg > v->max_arg)
        return app_usage("heat", "heat %s: expected %s, found %u argument%s", name, v->wants,
                         s->n_arg - 1, s->n_arg == 2 ? "" : "s");
    if (s->json && v->run != show) return app_usage("heat", "heat %s: there is no --json", name);
    if (s->from[APP_OPT_MODEL] == APP_FROM_COMMAND_LINE && v->run != import)
        return app_usage("heat", "heat %s: --model belongs to heat import", name);
    return v->run(s);
}
