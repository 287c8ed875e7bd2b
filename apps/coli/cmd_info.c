/* cmd_info.c - `coli info`: what a model is, and with what settings it would run. */
#include <inttypes.h>
#include <stdlib.h>

#include "commands.h"
#include "input.h"
#include "open_model.h"
#include "options.h"
#include "terminal.h"

static double gb(uint64_t n_bytes)
{
    return (double)n_bytes * 1e-9;
}

static uint64_t routed_bytes(const coli_model_info *m)
{
    return (uint64_t)m->n_layer * m->n_expert * m->expert_bytes;
}

/* The text of a stop token, quoted. */
static char *stop_text(const app_engine *engine, int32_t id)
{
    coli_text text = {0};
    char *quoted = NULL;
    if (coli_detokenize(coli_model_tokenizer(engine->model), &id, 1, false, &text) == COLI_OK) {
        json_t *string = json_stringn(text.data ? text.data : "", text.n_bytes);
        quoted = json_dumps(string, JSON_ENCODE_ANY);
        json_decref(string);
    }
    coli_text_free(&text);
    return quoted;
}

/* Effective value and origin of one setting.  What nobody set comes from the model or from coli. */
static const char *setting(const app_settings *s, const app_engine *engine, const char *dir,
                           app_option_id id, char *value, size_t cap)
{
    coli_model_info m = {.struct_size = sizeof m};
    if (coli_model_get_info(engine->model, &m) != COLI_OK) return "";
    const coli_sampling p = app_sampling(s, engine->model);
    app_value_text(s, id, value, cap);
    const char *otherwise = "default";
    switch (id) {
    case APP_OPT_MODEL:
        snprintf(value, cap, "%s", dir);
        break;
    case APP_OPT_THREADS:
        snprintf(value, cap, "%u", m.n_threads);
        break;
    case APP_OPT_ISA:
        snprintf(value, cap, "%s", m.isa);
        break;
    case APP_OPT_CTX:
        snprintf(value, cap, "%u", coli_session_n_ctx(engine->session));
        break;
    case APP_OPT_CHUNK:
        snprintf(value, cap, "%u", s->chunk ? s->chunk : 512);
        break;
    case APP_OPT_N:
        if (!s->n) snprintf(value, cap, "to the end of the context");
        break;
    case APP_OPT_SYSTEM:
        if (!s->system) snprintf(value, cap, "none");
        break;
    case APP_OPT_TEMP:
        snprintf(value, cap, "%g", (double)p.temperature);
        otherwise = "model";
        break;
    case APP_OPT_TOP_K:
        snprintf(value, cap, "%u", p.top_k);
        otherwise = "model";
        break;
    case APP_OPT_TOP_P:
        snprintf(value, cap, "%g", (double)p.top_p);
        otherwise = "model";
        break;
    case APP_OPT_MIN_P:
        snprintf(value, cap, "%g", (double)p.min_p);
        otherwise = "model";
        break;
    case APP_OPT_REP_PENALTY:
        snprintf(value, cap, "%g", (double)p.repetition_penalty);
        otherwise = "model";
        break;
    case APP_OPT_PRESENCE_PENALTY:
        snprintf(value, cap, "%g", (double)p.presence_penalty);
        otherwise = "model";
        break;
    case APP_OPT_SEED:
        snprintf(value, cap, "%" PRIu64, p.seed);
        break;
    default:
        break;
    }
    if (s->from[id] == APP_FROM_COMMAND_LINE) return "command line";
    return s->from[id] == APP_FROM_ENVIRONMENT ? app_variable_of(id) : otherwise;
}

static bool is_setting(app_option_id id)
{
    return (app_options[id].commands & APP_RUN) && id != APP_OPT_HELP && id != APP_OPT_VERSION;
}

static void print_text(const app_settings *s, const app_engine *engine, const char *dir,
                       const coli_model_info *m)
{
    char all[32], active[32];
    app_count_text(m->n_param, all, sizeof all);
    app_count_text(m->n_param_active, active, sizeof active);
    const uint64_t routed = routed_bytes(m);
    const uint64_t trunk = m->weight_bytes > routed ? m->weight_bytes - routed : 0;
    printf("%s, a model of the family %s\n\n", m->name, m->family);
    printf("  directory    %s\n", dir);
    printf("  parameters   %s in all, %s at work on a token\n", all, active);
    printf("  shape        %u layers of width %u; %u experts of width %u in each, %u of them for a "
           "token\n",
           m->n_layer, m->d_model, m->n_expert, m->d_ff, m->n_expert_used);
    printf("  size         %.3f GB: experts %.3f GB in %s, the rest %.3f GB in %s\n",
           gb(m->weight_bytes), gb(routed), m->expert_format, gb(trunk), m->trunk_format);
    printf("  one expert   %.3f MB; a token reads %.3f GB of experts\n",
           (double)m->expert_bytes * 1e-6,
           gb((uint64_t)m->n_layer * m->n_expert_used * m->expert_bytes));
    printf("  context      at most %u tokens\n", m->n_ctx_max);
    printf("  vocabulary   %u tokens", m->n_token);
    if (m->n_vocab > m->n_token) printf(" and %u rows of padding", m->n_vocab - m->n_token);
    printf("\n  template     Qwen %s\n", m->chat_template);
    printf("  stops at     ");
    for (uint32_t i = 0; i < m->n_stop_ids; i++) {
        char *quoted = stop_text(engine, m->stop_ids[i]);
        printf("%s%d%s%s", i ? ", " : "", m->stop_ids[i], quoted ? " " : "", quoted ? quoted : "");
        free(quoted);
    }
    printf("%s\n  identity     %s\n", m->n_stop_ids ? "" : "no token", m->identity);
    printf("  here         %u thread%s, %s\n", m->n_threads, m->n_threads == 1 ? "" : "s", m->isa);
    if (!s->settings) return;
    printf("\nsettings\n\n");
    for (app_option_id id = 0; id < APP_N_OPTION; id++) {
        if (!is_setting(id)) continue;
        char value[4200];
        const char *from = setting(s, engine, dir, id, value, sizeof value);
        char flag[32];
        snprintf(flag, sizeof flag, "%s%s", app_dashes(&app_options[id]), app_options[id].name);
        printf("  %-20s %-28s %s\n", flag, value, from);
    }
}

static json_t *stop_json(const app_engine *engine, const coli_model_info *m)
{
    json_t *stops = json_array();
    for (uint32_t i = 0; i < m->n_stop_ids; i++) {
        json_t *stop = json_pack("{s:i}", "id", (int)m->stop_ids[i]);
        coli_text text = {0};
        if (coli_detokenize(coli_model_tokenizer(engine->model), &m->stop_ids[i], 1, false,
                            &text) == COLI_OK)
            json_object_set_new(stop, "text",
                                json_stringn(text.data ? text.data : "", text.n_bytes));
        coli_text_free(&text);
        json_array_append_new(stops, stop);
    }
    return stops;
}

static void print_json(const app_settings *s, const app_engine *engine, const char *dir,
                       const coli_model_info *m)
{
    const uint64_t routed = routed_bytes(m);
    json_t *root = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "name", m->name,
                             "directory", dir, "family", m->family, "identity", m->identity,
                             "expert_format", m->expert_format, "trunk_format", m->trunk_format,
                             "chat_template", m->chat_template, "isa", m->isa);
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
        {"routed_bytes", routed},
        {"expert_bytes", m->expert_bytes},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(root, numbers[i].key, json_integer((json_int_t)numbers[i].value));
    json_object_set_new(root, "stop_tokens", stop_json(engine, m));
    if (s->settings) {
        json_t *settings = json_array();
        for (app_option_id id = 0; id < APP_N_OPTION; id++) {
            if (!is_setting(id)) continue;
            char value[4200];
            const char *from = setting(s, engine, dir, id, value, sizeof value);
            json_array_append_new(settings,
                                  json_pack("{s:s, s:s, s:s}", "name", app_options[id].name,
                                            "value", value, "from", from));
        }
        json_object_set_new(root, "settings", settings);
    }
    app_json_line(root);
}

int cmd_info(const app_settings *s)
{
    if (s->n_arg && s->from[APP_OPT_MODEL] == APP_FROM_COMMAND_LINE)
        return app_usage("info", "info: give DIR or --model, not both");
    app_settings of = *s;
    if (s->n_arg) {
        of.model = s->args[0];
        of.from[APP_OPT_MODEL] = APP_FROM_COMMAND_LINE;
    }
    char dir[4096];
    int code = app_model_dir(&of, dir, sizeof dir);
    if (code != APP_OK) return code;
    app_engine engine;
    code = app_open(&of, of.settings, &engine);
    if (code != APP_OK) return code;
    coli_model_info m = {.struct_size = sizeof m};
    const coli_status status = coli_model_get_info(engine.model, &m);
    if (status != COLI_OK)
        code = app_fail(status);
    else if (of.json)
        print_json(&of, &engine, dir, &m);
    else
        print_text(&of, &engine, dir, &m);
    app_close(&engine);
    return code;
}
