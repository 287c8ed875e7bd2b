/* cmd_report.c - `coli report`: what somebody needs who is to find a fault he cannot see.
 *
 * All of it is made in memory and scrubbed as a whole (scrub.h), so that nothing personal can slip in
 * beside it. */
#include <stdlib.h>
#include <string.h>

#include "coli/coli.h"
#include "commands.h"
#include "open_model.h"
#include "options.h"
#include "scrub.h"
#include "system.h"
#include "terminal.h"
#include "text.h"

/* ---- the text ------------------------------------------------------------------------------ */

typedef struct report {
    char *text; // new memory
} report;

__attribute__((format(printf, 2, 3))) static void say(report *r, const char *fmt, ...)
{
    char line[4096];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    for (char *c = line; *c; c++)
        if (*c == '\n') *c = ' '; // a line is a line, whatever is quoted in it
    char *longer = app_format("%s%s\n", r->text ? r->text : "", line);
    free(r->text);
    r->text = longer;
}

/* ---- the machine --------------------------------------------------------------------------- */

static void say_machine(report *r)
{
    coli_system y = {.struct_size = sizeof y};
    const char *best = "none";
    if (coli_system_look(&y) != COLI_OK) return;
    coli_isa_check(NULL, &best);
    say(r, "coli %s", coli_version());
    say(r, "  build      %s", coli_build());
    say(r, "  system     %s", y.system);
    say(r, "  processor  %s, %u of %u processors, cache %.1f MiB", *y.cpu ? y.cpu : "unknown",
        y.n_processor, y.n_processor_all, (double)y.cache_bytes / (1 << 20));
    say(r, "  kernels    %s%s", best,
        coli_arithmetic_is_exact() ? "" : ", ARITHMETIC IS NOT EXACT");
    for (size_t i = 0; coli_isa_name(i); i++)
        if (coli_isa_check(coli_isa_name(i), NULL) != COLI_OK)
            say(r, "             not %s: %s", coli_isa_name(i), coli_error_message());
    say(r,
        "  memory     %.2f GB, free %.2f, can be taken %.2f; swap %.2f, free %.2f; huge pages %s",
        app_gb(y.memory_bytes), app_gb(y.free_bytes), app_gb(y.available_bytes),
        app_gb(y.swap_bytes), app_gb(y.swap_free_bytes), *y.huge_pages ? y.huge_pages : "unknown");
}

/* ---- backends ------------------------------------------------------------------------------ */

static void say_devices(report *r, coli_backends *list, size_t i)
{
    uint32_t n;
    if (coli_backends_n_device(list, i, &n) != COLI_OK) return;
    for (uint32_t k = 0; k < n; k++) {
        coli_backend_device v = {.struct_size = sizeof v};
        if (coli_backends_device(list, i, k, &v) != COLI_OK) continue;
        say(r, "    device %u  %s, %s, %.2f GB, driver %s%s%s", k, v.name, v.kind,
            app_gb(v.mem_total), *v.driver ? v.driver : "unknown",
            v.unusable ? ", cannot be used: " : "", v.unusable ? v.unusable : "");
        say(r, "              formats %s", v.formats);
    }
}

static void say_backends(report *r, const app_settings *s)
{
    const coli_backend_opts opts = {
        .struct_size = sizeof opts, .path = s->backend_path, .options = s->backend_options};
    coli_backends *list;
    if (coli_backends_find(&opts, &list) != COLI_OK) {
        say(r, "backends: %s", coli_error_message());
        return;
    }
    say(r, "backends: %zu", coli_backends_n(list));
    for (size_t i = 0; i < coli_backends_n(list); i++) {
        coli_backend_entry e = {.struct_size = sizeof e};
        if (coli_backends_get(list, i, &e) != COLI_OK) continue;
        say(r, "  %-10s %s, interface %u.%u, build %s", *e.name ? e.name : "?", e.file, e.abi_major,
            e.abi_minor, *e.build ? e.build : "unknown");
        if (*e.lacks) say(r, "    without   %s", e.lacks);
        if (!e.reason) say_devices(r, list, i);
        if (coli_backends_get(list, i, &e) == COLI_OK && e.reason)
            say(r, "    %s: %s", e.stage, e.reason);
    }
    coli_backends_free(list);
}

/* ---- the model ----------------------------------------------------------------------------- */

static void say_plan(report *r, const app_settings *s, const char *dir)
{
    static const char *const fits[] = {"everything", "experts are read from the disk",
                                       "not even one expert of each layer"};
    const coli_model_opts model = app_model_opts(s, APP_OPEN_DEVICES);
    const coli_session_opts session = {
        .struct_size = sizeof session, .n_ctx = s->ctx, .n_chunk = s->chunk, .kv = app_kv(s)};
    coli_plan_result p = {.struct_size = sizeof p};
    if (coli_plan(dir, &model, &session, &p) != COLI_OK) {
        say(r, "  plan       %s", coli_error_message());
        return;
    }
    say(r, "  fits       %s: of %.2f GB; %llu experts on devices, %llu in memory, %llu on the disk",
        fits[p.fit], app_gb(p.ram_bytes), (unsigned long long)p.n_in_vram,
        (unsigned long long)p.n_in_ram, (unsigned long long)p.n_on_disk);
    say(r,
        "  session    context %u, chunks of %u, %u threads; keys and values %.3f GB, state %.3f, "
        "scratch %.3f",
        p.n_ctx, p.n_chunk, p.n_threads, app_gb(p.kv_bytes), app_gb(p.state_bytes),
        app_gb(p.scratch_bytes));
}

/* Mapped, not read; no device is touched. */
static void say_model(report *r, const app_settings *s, const char *dir)
{
    const coli_model_opts opts = {
        .struct_size = sizeof opts, .n_threads = 1, .backend = "none", .huge_pages = COLI_HUGE_OFF};
    coli_model *model;
    say(r, "model");
    if (coli_model_open(dir, &opts, &model) != COLI_OK) {
        say(r, "  cannot be opened: %s", coli_error_message());
        return;
    }
    coli_model_info m = {.struct_size = sizeof m};
    if (coli_model_get_info(model, &m) == COLI_OK) {
        say(r, "  identity   %s, family %s, template %s", m.identity, m.family, m.chat_template);
        say(r,
            "  shape      %u layers, width %u; %u experts of width %u, %u used; vocabulary %u of "
            "%u; "
            "context %u",
            m.n_layer, m.d_model, m.n_expert, m.d_ff, m.n_expert_used, m.n_token, m.n_vocab,
            m.n_ctx_max);
        say(r, "  formats    experts %s, the rest %s; %.3f GB", m.expert_format, m.trunk_format,
            app_gb(m.weight_bytes));
    }
    coli_model_close(model);
    say_plan(r, s, dir);
}

/* ---- settings ------------------------------------------------------------------------------ */

static void say_settings(report *r, const app_settings *s)
{
    bool any = false;
    for (app_option_id id = 0; id < APP_N_OPTION; id++) {
        if (!app_given(s, id)) continue;
        char *value = app_value_text(s, id);
        const bool typed = s->from[id] == APP_FROM_COMMAND_LINE;
        if (!any) say(r, "settings");
        any = true;
        say(r, "  %s%s %s (%s)", app_dashes(&app_options[id]), app_options[id].name,
            value ? value : "", typed ? "command line" : s->variable[id]->name);
        free(value);
    }
    if (!any) say(r, "settings: none, all defaults");
}

static void say_error(report *r, const app_settings *s)
{
    if (s->n_arg == 0) return;
    char *all = app_format("%s", s->args[0]);
    for (uint32_t i = 1; i < s->n_arg; i++) {
        char *longer = app_format("%s %s", all, s->args[i]);
        free(all);
        all = longer;
    }
    if (all[strspn(all, " \t\r\n")]) {
        say(r, "error");
        say(r, "  %s", all);
    }
    free(all);
}

/* ---- the command --------------------------------------------------------------------------- */

int cmd_report(const app_settings *s)
{
    report r = {0};
    char dir[APP_MAX_PATH];
    const int code = app_model_dir(s, dir, sizeof dir);
    say_machine(&r);
    say_backends(&r, s);
    if (code == APP_OK) say_model(&r, s, dir);
    say_settings(&r, s);
    say_error(&r, s);
    char *clean = scrub_text(r.text);
    app_put_shown(stdout, clean, strlen(clean), "\n");
    free(clean);
    free(r.text);
    return app_flush() ? APP_OK : APP_FAILED;
}
