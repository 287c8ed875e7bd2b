/* open_model.c - see open_model.h. */
#include "open_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache_route.h"
#include "options.h"
#include "progress.h"
#include "system.h"
#include "terminal.h"
#include "text.h"

#define SHIPPED "models/hummingbird"

int app_model_dir(const app_settings *s, char *dir, size_t cap)
{
    if (s->model) {
        if (!*s->model) {
            app_error("the path of the model is empty");
            return APP_BAD;
        }
        if ((size_t)snprintf(dir, cap, "%s", s->model) < cap) return APP_OK;
        app_error("--model: the path is longer than %zu bytes", cap - 1);
        return APP_BAD;
    }
    /* Programs are in PREFIX/bin, wherever PREFIX is now; a build tree is such a one. */
    if (app_system_beside_program("../share/coli/" SHIPPED, dir, cap) &&
        app_system_look(dir) == APP_PATH_DIR)
        return APP_OK;
    if ((size_t)snprintf(dir, cap, "%s", COLI_DATADIR "/" SHIPPED) < cap &&
        app_system_look(dir) == APP_PATH_DIR)
        return APP_OK;
    app_error("no model: the shipped one is not in %s", COLI_DATADIR "/" SHIPPED);
    app_hint("give --model DIR, or set COLI_MODEL");
    return APP_BAD;
}

int app_model_argument(const app_settings *s, const char *command, app_settings *out)
{
    *out = *s;
    if (s->n_arg == 0) return APP_OK;
    if (s->from[APP_OPT_MODEL] == APP_FROM_COMMAND_LINE)
        return app_usage(command, "%s: give DIR or --model, not both", command);
    out->model = s->args[0];
    out->from[APP_OPT_MODEL] = APP_FROM_COMMAND_LINE;
    return APP_OK;
}

/* Someone who downloaded a checkpoint is one step away. */
static bool is_checkpoint(const char *dir)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    for (int i = 0; i < 2; i++) {
        char path[APP_MAX_PATH];
        if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, names[i]) < sizeof path &&
            app_system_look(path) != APP_PATH_NONE)
            return true;
    }
    return false;
}

/* So is someone who has a container of merged experts. */
static bool is_merged(const char *dir)
{
    char path[APP_MAX_PATH];
    return (size_t)snprintf(path, sizeof path, "%s/qwen36_meta.json", dir) < sizeof path &&
           app_system_look(path) == APP_PATH_FILE;
}

/* What a killed `coli convert` leaves at OUT.partial. */
static bool has_partial(const char *out)
{
    char path[APP_MAX_PATH];
    return (size_t)snprintf(path, sizeof path, "%s.partial/unfinished.txt", out) < sizeof path &&
           app_system_look(path) != APP_PATH_NONE;
}

static bool is_gguf(const char *path)
{
    const size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".gguf") == 0 && app_system_look(path) == APP_PATH_FILE;
}

/* The model says how long a context may be; the message says who asked for more. */
static int check_ctx(const app_settings *s, const coli_model *model)
{
    coli_model_info info = {.struct_size = sizeof info};
    if (coli_model_get_info(model, &info) != COLI_OK || s->ctx <= info.n_ctx_max) return APP_OK;
    static const char *const who[] = {"--context with --prefill or --decode",
                                      "environment variable CTX", "--ctx"};
    app_error("%s: the model was made for at most %u tokens, found %u", who[s->from[APP_OPT_CTX]],
              info.n_ctx_max, s->ctx);
    return APP_BAD;
}

bool app_can_grow(const app_engine *engine)
{
    coli_model_info info = {.struct_size = sizeof info};
    return coli_model_get_info(engine->model, &info) == COLI_OK &&
           coli_session_n_ctx(engine->session) < info.n_ctx_max;
}

/* What a model or a checkpoint is made of. */
static bool is_part(const char *name)
{
    static const char *const ends[] = {".coli", ".json", ".safetensors", ".jinja"};
    const char *end = strrchr(name, '.');
    for (int i = 0; end && i < 4; i++)
        if (strcmp(end, ends[i]) == 0) return true;
    return false;
}

bool app_can_read(const char *path)
{
    FILE *file = app_system_look(path) == APP_PATH_FILE ? app_system_open(path) : NULL;
    if (file) fclose(file);
    return file != NULL;
}

typedef struct parts {
    const char *dir;
    bool all_files;
} parts;

static bool look_at_part(void *ctx, const char *name)
{
    parts *p = ctx;
    char path[APP_MAX_PATH];
    if (is_part(name) && (size_t)snprintf(path, sizeof path, "%s/%s", p->dir, name) < sizeof path)
        p->all_files = app_can_read(path);
    return p->all_files;
}

/* Nothing that can be read as such, or a directory with a part that cannot. */
static bool is_no_file(const char *path, bool is_directory)
{
    if (!is_directory) return !app_can_read(path);
    parts p = {path, true};
    return !app_system_each(path, look_at_part, &p) || !p.all_files;
}

int app_fail_reading(coli_status status, const char *path, bool is_directory)
{
    const int code = app_fail(status);
    if (status == COLI_E_NUMERIC) return APP_BAD;
    return status == COLI_E_IO && is_no_file(path, is_directory) ? APP_BAD : code;
}

int app_check_out(const char *command, const char *what, const char *path, bool is_directory)
{
    size_t n = strlen(path);
    if (n == 0) return app_usage(command, "%s: the path %s is empty", command, what);
    if (!is_directory && app_system_is_slash(path[n - 1])) {
        app_error("%s: expected the name of a file, found a slash at its end", path);
        return APP_BAD;
    }
    while (n > 1 && app_system_is_slash(path[n - 1])) n--; // "a/b/" is in "a/"
    while (n > 0 && !app_system_is_slash(path[n - 1])) n--;
    char *parent = app_format("%.*s", (int)n, path);
    const app_path_kind kind = app_system_look(n ? parent : ".");
    if (kind != APP_PATH_DIR)
        app_error("%s: %s %s", path, parent,
                  kind == APP_PATH_NONE ? "is not there; make that directory first"
                                        : "is no directory");
    free(parent);
    return kind == APP_PATH_DIR ? APP_OK : APP_BAD;
}

/* A file of heat is made when the session ends; that it cannot be is said now. */
static int check_heat(const app_settings *s)
{
    if (!s->heat || s->heat_readonly) return APP_OK;
    if (app_system_look(s->heat) != APP_PATH_DIR)
        return app_check_out(NULL, "--heat", s->heat, false);
    app_error("--heat: %s is a directory, expected a file", s->heat);
    return APP_BAD;
}

/* The bars of reading and of copying to devices.  Until one begins, Ctrl-C ends the program as always. */
typedef struct opening {
    app_progress progress;
    const char *what; // goes on
    bool begun;
} opening;

static bool tell_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    opening *o = ctx;
    if (!o->begun) {
        app_interrupt_count();
        o->begun = true;
    }
    if (!o->what || strcmp(o->what, what) != 0) app_progress_start(&o->progress, what);
    o->what = what;
    return app_progress_step(&o->progress, what, done, total);
}

static void tell_note(void *ctx, const char *line)
{
    app_progress_note(&((opening *)ctx)->progress, line);
}

coli_kv app_kv(const app_settings *s)
{
    return s->kv && strcmp(s->kv, "f32") == 0 ? COLI_KV_F32 : COLI_KV_F16;
}

/* A copy pays where tokens are made, one after another: by those who may use devices for it. */
static coli_huge huge_pages(const app_settings *s, uint32_t what)
{
    if (!(what & APP_OPEN_DEVICES)) return COLI_HUGE_OFF;
    if (!s->huge_pages || strcmp(s->huge_pages, "auto") == 0) return COLI_HUGE_AUTO;
    return strcmp(s->huge_pages, "on") == 0 ? COLI_HUGE_ON : COLI_HUGE_OFF;
}

coli_model_opts app_model_opts(const app_settings *s, uint32_t what)
{
    const coli_model_opts opts = {
        .struct_size = sizeof opts,
        .n_threads = s->threads,
        .isa = s->isa,
        .backend = s->backend || what & APP_OPEN_DEVICES ? s->backend : "none",
        .backend_path = s->backend_path,
        .backend_options = s->backend_options,
        .devices = s->devices,
        .vram_unit = s->vram.unit,
        .vram = s->vram.amount,
        .place = s->place,
        // a stopwatch must not decide what is resident where that decides what is computed
        .no_trunk_probe = s->no_trunk_probe || (s->cache_route && !s->route_live),
        .heat = s->heat,
        .heat_readonly = s->heat_readonly,
        .replan = s->replan,
        .replan_max = s->replan_max,
        .replan_with = s->replan_with,
        .stream_rows = s->stream,
        .ram_bytes = s->ram.n_bytes,
        .ram_experts = s->ram_experts,
        .pin_bytes = s->pin.n_bytes,
        .no_pilot = s->no_pilot,
        .no_numa = s->no_numa,
        .huge_pages = huge_pages(s, what),
        .no_warmstart = s->no_warmstart,
        .home = s->home && strcmp(s->home, "layer") == 0 ? COLI_HOME_LAYER : COLI_HOME_EXPERT,
        .layer_split = s->layer_split,
        .n_ctx = s->ctx,
        .n_chunk = s->chunk,
        .kv = app_kv(s)};
    return opts;
}

static coli_status open_model(const app_settings *s, const char *dir, uint32_t what,
                              coli_model **out)
{
    opening o = {.begun = false};
    const bool tell = what & APP_OPEN_TELL;
    coli_model_opts opts = app_model_opts(s, what);
    opts.note = tell ? tell_note : NULL;
    opts.progress = tell ? tell_progress : NULL;
    opts.user = &o;
    const coli_status status = coli_model_open(dir, &opts, out);
    if (o.begun) {
        app_progress_end(&o.progress, false);
        app_interrupt_session(NULL);
    }
    return status;
}

/* A backend that was asked for and cannot be used: the message goes on with a line for every file
 * that was looked at, which app_fail would show as one. */
static void fail_backend(void)
{
    char *message = app_format("%s", coli_error_message());
    char *at = message + strcspn(message, "\n");
    *at++ = 0;
    app_error("%s", message);
    while (*at) {
        const size_t n = strcspn(at, "\n");
        app_line(stderr, "%.*s", (int)n, at);
        at += n + (at[n] != 0);
    }
    free(message);
}

static char *backend_advice(const char *backend)
{
    const char *end = strrchr(backend, '.');
    const bool is_file = end && (strcmp(end, ".so") == 0 || strcmp(end, ".dll") == 0);
    if (is_file && !strpbrk(backend, "/\\"))
        return app_format("a file is written with its directory: ./%s", backend);
    return app_format("`coli backend list` shows what there is; --backend none does without");
}

void app_hint_backend(const char *backend)
{
    char *advice = backend_advice(backend);
    app_hint("%s", advice);
    free(advice);
}

bool app_is_backend_failure(const app_settings *s, coli_status status)
{
    return s->backend && status == COLI_E_UNSUPPORTED && strstr(coli_error_message(), "\n  ");
}

char *app_file_advice(const char *path)
{
    char magic[6] = "";
    FILE *file = app_system_open(path);
    const bool is_tar = file && fseek(file, 257, SEEK_SET) == 0 && fread(magic, 1, 5, file) == 5 &&
                        strcmp(magic, "ustar") == 0;
    if (file) fclose(file);
    return is_tar
               ? app_format("that is a pack: `coli unpack %s DIR` makes a model of it", path)
               : app_format("a model is a directory, as `coli convert` and `coli unpack` make it");
}

char *app_opening_advice(const app_settings *s, coli_status status, const char *dir)
{
    if (app_is_backend_failure(s, status)) return backend_advice(s->backend);
    if (status == COLI_E_NOTFOUND && is_merged(dir))
        return app_format(
            "that is a container of another engine: `coli convert %s OUT` makes one of "
            "coli's of it",
            dir);
    if (status == COLI_E_NOTFOUND && is_checkpoint(dir))
        return app_format(
            "that is a Hugging Face checkpoint: `coli convert %s OUT` makes a container of it",
            dir);
    if (status == COLI_E_FORMAT &&
        strstr(coli_error_message(), "a conversion that was not finished"))
        return app_format(
            "`coli convert` with the same SRC, OUT (without .partial) and options goes on");
    if (status == COLI_E_NOTFOUND && has_partial(dir))
        return app_format("%s.partial is a conversion that was not finished; the same `coli "
                          "convert` goes on with it",
                          dir);
    if (is_gguf(dir))
        return app_format("that is a GGUF file: `coli convert %s OUT` makes a container of it",
                          dir);
    if (app_system_look(dir) == APP_PATH_FILE) return app_file_advice(dir);
    if (status == COLI_E_NOTFOUND && s->from[APP_OPT_MODEL] == APP_FROM_ENVIRONMENT)
        return app_format("the path comes from COLI_MODEL");
    return NULL;
}

int app_fail_opening(const app_settings *s, coli_status status, const char *dir)
{
    char *advice = app_opening_advice(s, status, dir);
    int code = APP_BAD;
    if (app_is_backend_failure(s, status))
        fail_backend();
    else
        code = app_fail_reading(status, dir, true);
    if (advice) app_hint("%s", advice);
    free(advice);
    return code;
}

coli_status app_open_session(const app_settings *s, uint32_t n_ctx, app_engine *engine)
{
    const bool routes = app_route_opts(s, &engine->route);
    const coli_session_opts opts = {.struct_size = sizeof opts,
                                    .n_ctx = n_ctx,
                                    .n_chunk = s->chunk,
                                    .kv = app_kv(s),
                                    .route = routes ? &engine->route : NULL};
    return coli_session_create(engine->model, &opts, &engine->session);
}

int app_open(const app_settings *s, uint32_t what, app_engine *out)
{
    *out = (app_engine){0};
    char dir[APP_MAX_PATH];
    int code = app_model_dir(s, dir, sizeof dir);
    if (code == APP_OK) code = check_heat(s);
    if (code != APP_OK) return code;
    coli_status status = open_model(s, dir, what, &out->model);
    out->streams = s->stream > 0;
    if (status != COLI_OK) return app_fail_opening(s, status, dir);
    if (check_ctx(s, out->model) != APP_OK) {
        app_close(out);
        return APP_BAD;
    }
    app_route_opts(s, &out->route);
    if (what & APP_OPEN_TELL) app_route_tell(s, &out->route);
    if (what & APP_OPEN_SESSION) status = app_open_session(s, s->ctx, out);
    if (status == COLI_OK) return APP_OK;
    const int failed = app_fail(status);
    app_close(out);
    return failed;
}

bool app_starts(const app_settings *s, const coli_plan_result *p, const coli_system *y)
{
    if (p->fit != COLI_FIT_NOT) return true;
    if (s->ram.n_bytes > 0) return false;
    return p->least_bytes <= p->available_bytes ||
           p->least_bytes - p->available_bytes <= y->swap_free_bytes;
}

/* Called between a failure and its message, so no call here may fail. */
void app_tell_lost(app_engine *engine)
{
    coli_backend_stats stats = {.struct_size = sizeof stats};
    coli_device_use use = {.struct_size = sizeof use};
    if (!engine->model || coli_model_get_backend_stats(engine->model, &stats) != COLI_OK) return;
    for (uint32_t i = 0; i < stats.n_device && i < 64; i++) {
        const uint64_t bit = UINT64_C(1) << i;
        if (engine->lost_told & bit || coli_model_get_device(engine->model, i, &use) != COLI_OK ||
            !use.lost)
            continue;
        app_note("a device was given up, the processor does its work: %s", use.lost);
        engine->lost_told |= bit;
    }
}

static double percent(uint64_t part, uint64_t other)
{
    return part + other ? 100.0 * (double)part / (double)(part + other) : 0;
}

void app_device_footer(const app_engine *engine)
{
    coli_backend_stats s = {.struct_size = sizeof s};
    if (coli_model_get_backend_stats(engine->model, &s) != COLI_OK || s.n_device == 0) return;
    if (s.n_hit_decode + s.n_miss_decode > 0)
        app_note("decode VRAM hit rate: %.1f %% (%" PRIu64 " hits, %" PRIu64
                 " misses after the prefill)",
                 percent(s.n_hit_decode, s.n_miss_decode), s.n_hit_decode, s.n_miss_decode);
    app_note("VRAM hit rate: %.1f %% | swaps %" PRIu64 " (%" PRIu64 " in place)",
             percent(s.n_row_device, s.n_row_host), s.n_swap, s.n_swap_in_place);
    if (s.n_replan_planned > 0)
        app_note("replan: %" PRIu64 " swaps planned, %" PRIu64 " done, %" PRIu64 " still pending",
                 s.n_replan_planned, s.n_replan_done, s.n_replan_pending);
    if (engine->streams)
        app_note("stream: %" PRIu64 " experts passed through the devices, for %" PRIu64 " rows",
                 s.n_streamed, s.n_row_streamed);
}

void app_store_footer(const app_engine *engine)
{
    coli_store_stats s = {.struct_size = sizeof s};
    if (coli_model_get_store_stats(engine->model, &s) != COLI_OK || !s.is_limited) return;
    app_note("hit %.1f%% (%" PRIu64 " hits, %" PRIu64
             " misses) | %.2f GB read, %.0f ms waited for it",
             percent(s.n_hit, s.n_miss), s.n_hit, s.n_miss, (double)s.read_bytes * 1e-9, s.wait_ms);
    if (s.n_hit_decode + s.n_miss_decode > 0)
        app_note("decode hit %.1f%% (%" PRIu64 " hits, %" PRIu64 " misses after the prefill)",
                 percent(s.n_hit_decode, s.n_miss_decode), s.n_hit_decode, s.n_miss_decode);
    if (s.n_guess_asked > 0)
        app_note("pilot: recall %.1f%% | %" PRIu64 " read early, %" PRIu64 " of them used",
                 percent(s.n_guess_right, s.n_guess_asked - s.n_guess_right), s.n_guess_read,
                 s.n_guess_used);
}

void app_close(app_engine *engine)
{
    app_tell_lost(engine);
    coli_recorder_destroy(engine->recorder);
    if (engine->model && coli_model_save_heat(engine->model) != COLI_OK)
        app_error("the heat file was not written: %s", coli_error_message());
    app_interrupt_session(NULL);
    coli_session_destroy(engine->session);
    coli_model_close(engine->model);
    *engine = (app_engine){0};
}

int app_tokenizer(const app_engine *engine, const coli_tokenizer **out)
{
    *out = coli_model_tokenizer(engine->model);
    if (*out) return APP_OK;
    app_error("the model has no tokenizer.json");
    return APP_BAD;
}

coli_status app_tokenize(const coli_tokenizer *tokenizer, const char *text, size_t n_bytes,
                         bool plain, int32_t **ids, size_t *n_ids)
{
    *ids = NULL;
    *n_ids = 0;
    coli_status status = coli_tokenize(tokenizer, text, n_bytes, plain, NULL, 0, n_ids);
    if (status != COLI_E_LIMIT) return status; // there are none, or it cannot be done
    *ids = app_alloc(*n_ids, sizeof **ids);
    status = coli_tokenize(tokenizer, text, n_bytes, plain, *ids, *n_ids, n_ids);
    if (status == COLI_OK) return COLI_OK;
    free(*ids);
    *ids = NULL;
    return status;
}

coli_status app_sampling(const app_settings *s, const coli_model *model, coli_sampling *out)
{
    *out = (coli_sampling){.struct_size = sizeof *out};
    const coli_status status = coli_sampling_default(model, out);
    if (status != COLI_OK) return status;
    if (app_given(s, APP_OPT_TEMP)) out->temperature = s->temp;
    if (app_given(s, APP_OPT_TOP_K)) out->top_k = s->top_k;
    if (app_given(s, APP_OPT_TOP_P)) out->top_p = s->top_p;
    if (app_given(s, APP_OPT_MIN_P)) out->min_p = s->min_p;
    if (app_given(s, APP_OPT_REP_PENALTY)) out->repetition_penalty = s->rep_penalty;
    if (app_given(s, APP_OPT_PRESENCE_PENALTY)) out->presence_penalty = s->presence_penalty;
    if (app_given(s, APP_OPT_SEED)) out->seed = s->seed;
    return COLI_OK;
}

double app_gb(uint64_t n_bytes)
{
    return (double)n_bytes * 1e-9;
}

void app_count_text(uint64_t n, char *out, size_t cap)
{
    if (n >= 1000000000)
        snprintf(out, cap, "%.1f B", (double)n * 1e-9);
    else if (n >= 1000000)
        snprintf(out, cap, "%.1f M", (double)n * 1e-6);
    else
        snprintf(out, cap, "%.1f K", (double)n * 1e-3);
}

void app_banner(const app_engine *engine)
{
    coli_model_info info = {.struct_size = sizeof info};
    if (coli_model_get_info(engine->model, &info) != COLI_OK) return;
    char all[32], active[32];
    app_count_text(info.n_param, all, sizeof all);
    app_count_text(info.n_param_active, active, sizeof active);
    app_note("%s · %s weights, %s active · context %u · %u thread%s · %s", info.name, all, active,
             coli_session_n_ctx(engine->session), info.n_threads, info.n_threads == 1 ? "" : "s",
             info.isa);
}
