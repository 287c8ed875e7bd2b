/* cmd_info.c - `coli info`: what a model is, and with what settings it would run. */
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "input.h"
#include "open_model.h"
#include "options.h"
#include "system.h"
#include "terminal.h"
#include "text.h"

static uint64_t routed_bytes(const coli_model_info *m)
{
    return (uint64_t)m->n_layer * m->n_expert * m->expert_bytes;
}

/* What there is to tell. */
typedef struct subject {
    const app_settings *settings;
    const app_engine *engine;
    const char *dir;
    coli_model_info model;
    coli_sampling sampling;
} subject;

/* One setting of `coli run`: what it comes to, and where that is from. */
typedef struct effect {
    char *value; // new memory
    const char *from;
} effect;

static bool is_setting(app_option_id id)
{
    return (app_options[id].commands & APP_RUN) && id != APP_OPT_HELP && id != APP_OPT_VERSION;
}

/* What nobody set comes from the model or from coli. */
static effect effect_of(const subject *of, app_option_id id)
{
    const app_settings *s = of->settings;
    const coli_sampling *p = &of->sampling;
    const char *otherwise = "default";
    char *value = NULL;
    switch (id) {
    case APP_OPT_MODEL:
        value = app_format("%s", of->dir);
        break;
    case APP_OPT_THREADS:
        value = app_format("%u", of->model.n_threads);
        break;
    case APP_OPT_ISA:
        value = app_format("%s", of->model.isa);
        break;
    case APP_OPT_CTX:
        value = app_format("%u", coli_session_n_ctx(of->engine->session));
        break;
    case APP_OPT_CHUNK:
        if (!s->chunk) value = app_format("the library's choice");
        break;
    case APP_OPT_N:
        if (!s->n) value = app_format("to the end of the context");
        break;
    case APP_OPT_BACKEND:
        if (!s->backend) value = app_format("a GPU, if one works");
        break;
    case APP_OPT_BACKEND_PATH:
        if (!s->backend_path) value = app_format("those of the installation");
        break;
    case APP_OPT_BACKEND_OPTIONS:
        if (!s->backend_options) value = app_format("none");
        break;
    case APP_OPT_DEVICES:
        if (!s->devices) value = app_format("all that can be used");
        break;
    case APP_OPT_PLACE:
        if (!s->place) value = app_format("auto");
        break;
    case APP_OPT_SYSTEM:
        if (!s->system) value = app_format("none");
        break;
    case APP_OPT_TEMP:
        value = app_format("%g", (double)p->temperature);
        otherwise = "model";
        break;
    case APP_OPT_TOP_K:
        value = app_format("%u", p->top_k);
        otherwise = "model";
        break;
    case APP_OPT_TOP_P:
        value = app_format("%g", (double)p->top_p);
        otherwise = "model";
        break;
    case APP_OPT_MIN_P:
        value = app_format("%g", (double)p->min_p);
        otherwise = "model";
        break;
    case APP_OPT_REP_PENALTY:
        value = app_format("%g", (double)p->repetition_penalty);
        otherwise = "model";
        break;
    case APP_OPT_PRESENCE_PENALTY:
        value = app_format("%g", (double)p->presence_penalty);
        otherwise = "model";
        break;
    default:
        if (s->from[id] == APP_FROM_DEFAULT && app_options[id].otherwise)
            value = app_format("%s", app_options[id].otherwise);
        break;
    }
    effect e = {.value = value ? value : app_value_text(s, id), .from = otherwise};
    if (s->from[id] == APP_FROM_COMMAND_LINE) e.from = "command line";
    if (s->from[id] == APP_FROM_ENVIRONMENT) e.from = s->variable[id]->name;
    return e;
}

/* [{"id": 1, "text": "<|im_end|>"}]; without a tokenizer there is no text. */
static json_t *stop_tokens(const subject *of)
{
    const coli_tokenizer *tok = coli_model_tokenizer(of->engine->model);
    json_t *stops = json_array();
    for (uint32_t i = 0; i < of->model.n_stop_ids; i++) {
        const int32_t id = of->model.stop_ids[i];
        json_t *stop = json_object();
        json_object_set_new(stop, "id", json_integer(id));
        coli_text text = {0};
        if (tok && coli_detokenize(tok, &id, 1, false, &text) == COLI_OK)
            json_object_set_new(stop, "text", app_json_string(text.data, text.n_bytes));
        coli_text_free(&text);
        json_array_append_new(stops, stop);
    }
    return stops;
}

static void print_stops(const subject *of)
{
    json_t *stops = stop_tokens(of);
    const size_t n = json_array_size(stops);
    printf("  stops at     %s", n ? "" : "no token");
    for (size_t i = 0; i < n; i++) {
        const json_t *stop = json_array_get(stops, i), *text = json_object_get(stop, "text");
        printf("%s%d", i ? ", " : "", (int)json_integer_value(json_object_get(stop, "id")));
        char *quoted = text ? app_json_text(text) : NULL;
        if (quoted) printf(" %s", quoted);
        free(quoted);
    }
    putchar('\n');
    json_decref(stops);
}

static void print_settings(const subject *of)
{
    printf("\nsettings\n\n");
    for (app_option_id id = 0; id < APP_N_OPTION; id++) {
        if (!is_setting(id)) continue;
        const effect e = effect_of(of, id);
        char flag[32];
        snprintf(flag, sizeof flag, "%s%s", app_dashes(&app_options[id]), app_options[id].name);
        app_line(stdout, "  %-20s %-28s %s", flag, e.value, e.from);
        free(e.value);
    }
}

static void print_text(const subject *of)
{
    const coli_model_info *m = &of->model;
    char all[32], active[32];
    app_count_text(m->n_param, all, sizeof all);
    app_count_text(m->n_param_active, active, sizeof active);
    const uint64_t routed = routed_bytes(m);
    const uint64_t trunk = m->weight_bytes > routed ? m->weight_bytes - routed : 0;
    app_line(stdout, "%s, a model of the family %s", m->name, m->family);
    putchar('\n');
    app_line(stdout, "  directory    %s", of->dir);
    app_line(stdout, "  parameters   %s in all, %s at work on a token", all, active);
    app_line(stdout,
             "  shape        %u layers of width %u; %u experts of width %u in each, %u of them for "
             "a token",
             m->n_layer, m->d_model, m->n_expert, m->d_ff, m->n_expert_used);
    app_line(stdout, "  size         %.3f GB: experts %.3f GB in %s, the rest %.3f GB in %s",
             app_gb(m->weight_bytes), app_gb(routed), m->expert_format, app_gb(trunk),
             m->trunk_format);
    app_line(stdout, "  one expert   %.3f MB; a token reads %.3f GB of experts",
             (double)m->expert_bytes * 1e-6,
             app_gb((uint64_t)m->n_layer * m->n_expert_used * m->expert_bytes));
    app_line(stdout, "  context      at most %u tokens", m->n_ctx_max);
    char padding[48] = "";
    if (m->n_vocab > m->n_token)
        snprintf(padding, sizeof padding, " and %u rows of padding", m->n_vocab - m->n_token);
    app_line(stdout, "  vocabulary   %u tokens%s", m->n_token, padding);
    app_line(stdout, "  template     Qwen %s", m->chat_template);
    print_stops(of);
    app_line(stdout, "  identity     %s", m->identity);
    app_line(stdout, "  here         %u thread%s, %s", m->n_threads, m->n_threads == 1 ? "" : "s",
             m->isa);
    if (of->settings->settings) print_settings(of);
}

static void set_text(json_t *object, const char *key, const char *text)
{
    json_object_set_new(object, key, app_json_string(text, strlen(text)));
}

static json_t *settings_json(const subject *of)
{
    json_t *settings = json_array();
    for (app_option_id id = 0; id < APP_N_OPTION; id++) {
        if (!is_setting(id)) continue;
        const effect e = effect_of(of, id);
        json_t *setting = json_object();
        set_text(setting, "name", app_options[id].name);
        set_text(setting, "value", e.value);
        set_text(setting, "from", e.from);
        json_array_append_new(settings, setting);
        free(e.value);
    }
    return settings;
}

static void print_json(const subject *of)
{
    const coli_model_info *m = &of->model;
    const struct {
        const char *key, *text;
    } texts[] = {
        {"name", m->name},
        {"directory", of->dir},
        {"family", m->family},
        {"identity", m->identity},
        {"expert_format", m->expert_format},
        {"trunk_format", m->trunk_format},
        {"chat_template", m->chat_template},
        {"isa", m->isa},
    };
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {
        {"parameters", m->n_param},
        {"parameters_active", m->n_param_active},
        {"n_layer", m->n_layer},
        {"n_expert", m->n_expert},
        {"n_expert_used", m->n_expert_used},
        {"d_model", m->d_model},
        {"d_ff", m->d_ff},
        {"n_vocab", m->n_vocab},
        {"n_token", m->n_token},
        {"n_ctx_max", m->n_ctx_max},
        {"n_threads", m->n_threads},
        {"weight_bytes", m->weight_bytes},
        {"routed_bytes", routed_bytes(m)},
        {"expert_bytes", m->expert_bytes},
    };
    json_t *root = json_object();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        set_text(root, texts[i].key, texts[i].text);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(root, numbers[i].key, json_integer((json_int_t)numbers[i].value));
    json_object_set_new(root, "stop_tokens", stop_tokens(of));
    if (of->settings->settings) json_object_set_new(root, "settings", settings_json(of));
    app_json_line(root);
}

int cmd_info(const app_settings *s)
{
    app_settings with_dir;
    char dir[APP_MAX_PATH];
    app_engine engine;
    int code = app_model_argument(s, "info", &with_dir);
    if (code == APP_OK) code = app_model_dir(&with_dir, dir, sizeof dir);
    if (code == APP_OK) code = app_open(&with_dir, s->settings ? APP_OPEN_SESSION : 0, &engine);
    if (code != APP_OK) return code;
    subject of = {.settings = &with_dir,
                  .engine = &engine,
                  .dir = dir,
                  .model = {.struct_size = sizeof of.model}};
    coli_status status = coli_model_get_info(engine.model, &of.model);
    if (status == COLI_OK) status = app_sampling(&with_dir, engine.model, &of.sampling);
    if (status != COLI_OK)
        code = app_fail(status);
    else if (s->json)
        print_json(&of);
    else
        print_text(&of);
    app_close(&engine);
    return code;
}
