/* settings.h - every option and every environment variable of the programs, in two tables, and the
 * struct that they fill.  options.c does the parsing; the tables also give --help, `coli help
 * environment`, `coli info --settings` and the warnings about variables that do nothing. */
#ifndef APP_SETTINGS_H
#define APP_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Who accepts an option: one bit per command. */
enum {
    APP_CHAT = 1 << 0,
    APP_RUN = 1 << 1,
    APP_TOKENIZE = 1 << 2,
    APP_RENDER = 1 << 3,
    APP_INFO = 1 << 4,
    APP_CONVERT = 1 << 5,
    APP_VERIFY = 1 << 6,
    APP_HELP = 1 << 7,
    APP_QWEN36 = 1 << 8,
    APP_SYNTH = 1 << 9,
    APP_BENCH = 1 << 10,
    APP_BACKEND = 1 << 11,
    APP_HEAT = 1 << 12,
    APP_REPLAY = 1 << 13,
    APP_PLAN = 1 << 14,
    APP_PACK = 1 << 15,
    APP_UNPACK = 1 << 16,
    APP_DOCTOR = 1 << 17,
    APP_REPORT = 1 << 18,
    APP_IMATRIX = 1 << 19,
    APP_SETTING = 1 << 30 // no command: the options in one argument of `coli bench --compare`
};

typedef enum app_option_id {
    /* the model and how it is computed */
    APP_OPT_MODEL,
    APP_OPT_THREADS,
    APP_OPT_ISA,
    APP_OPT_CTX,
    APP_OPT_CHUNK,
    APP_OPT_KV,
    /* devices */
    APP_OPT_BACKEND,
    APP_OPT_BACKEND_PATH,
    APP_OPT_BACKEND_OPTIONS,
    APP_OPT_DEVICES,
    APP_OPT_VRAM,
    APP_OPT_PLACE,
    APP_OPT_NO_TRUNK_PROBE,
    APP_OPT_HEAT,
    APP_OPT_HEAT_READONLY,
    APP_OPT_RAM,
    APP_OPT_RAM_EXPERTS,
    APP_OPT_PIN,
    APP_OPT_NO_PILOT,
    APP_OPT_HUGE_PAGES,
    APP_OPT_NO_NUMA,
    APP_OPT_REPLAN,
    APP_OPT_REPLAN_MAX,
    APP_OPT_REPLAN_WITH,
    APP_OPT_STREAM,
    APP_OPT_CACHE_ROUTE,
    APP_OPT_ROUTE_J,
    APP_OPT_ROUTE_M,
    APP_OPT_ROUTE_P,
    APP_OPT_ROUTE_ALPHA,
    APP_OPT_ROUTE_AGREE,
    APP_OPT_ROUTE_LIVE,
    APP_OPT_NO_WARMSTART,
    APP_OPT_HOME,
    APP_OPT_LAYER_SPLIT,
    APP_OPT_DEVICE,
    APP_OPT_ONLY,
    /* what is said */
    APP_OPT_SYSTEM,
    APP_OPT_NO_THINK,
    APP_OPT_PRESERVE_THINKING,
    APP_OPT_NO_HISTORY,
    APP_OPT_TRACE,
    /* how tokens are chosen */
    APP_OPT_N,
    APP_OPT_TEMP,
    APP_OPT_TOP_K,
    APP_OPT_TOP_P,
    APP_OPT_MIN_P,
    APP_OPT_REP_PENALTY,
    APP_OPT_PRESENCE_PENALTY,
    APP_OPT_SEED,
    /* tools */
    APP_OPT_NO_MEASURE,
    APP_OPT_TOKENIZER,
    APP_OPT_PLAIN,
    APP_OPT_JSONL,
    APP_OPT_TEMPLATE,
    APP_OPT_SETTINGS,
    APP_OPT_JSON,
    APP_OPT_EXPERTS,
    APP_OPT_TRUNK,
    APP_OPT_GROUP,
    APP_OPT_RECIPE,
    APP_OPT_IMATRIX,
    APP_OPT_CHAT_TEMPLATE,
    /* measuring */
    APP_OPT_PROMPT_FILE,
    APP_OPT_IDS,
    APP_OPT_TEACHER_FORCE,
    APP_OPT_PPL,
    APP_OPT_DUMP_LOGITS,
    APP_OPT_DUMP_ROUTING,
    APP_OPT_STOP,
    APP_OPT_PREFILL,
    APP_OPT_DECODE,
    APP_OPT_REPEAT,
    APP_OPT_CONTEXT,
    APP_OPT_PHASES,
    APP_OPT_BUFFER,
    APP_OPT_QUALITY,
    APP_OPT_EVERY,
    APP_OPT_RECORD,
    APP_OPT_COMPARE,
    APP_OPT_LIMIT,
    /* models without a checkpoint */
    APP_OPT_LIKE,
    APP_OPT_LAYERS,
    APP_OPT_HIDDEN,
    APP_OPT_EXPERTS_N,
    APP_OPT_USED,
    APP_OPT_INNER,
    APP_OPT_VOCAB,
    APP_OPT_SKEW,
    /* recorded routing */
    APP_OPT_POLICY,
    APP_OPT_RESIDENCY,
    APP_OPT_AGAINST,
    APP_OPT_CAP,
    APP_OPT_DRAIN,
    APP_OPT_MIN_COUNT,
    APP_OPT_ALLOWANCE,
    APP_OPT_MACHINE,
    APP_OPT_CSV,
    APP_OPT_SVG,
    /* everywhere */
    APP_OPT_HELP,
    APP_OPT_VERSION,
    APP_N_OPTION
} app_option_id;

/* Where a value came from. */
typedef enum app_source {
    APP_FROM_DEFAULT,
    APP_FROM_ENVIRONMENT,
    APP_FROM_COMMAND_LINE
} app_source;

/* How much of a device's memory may be used; all zero: what is free. */
typedef struct app_vram {
    const char *text; // as typed
    uint32_t unit;    // coli_vram_unit
    double amount;
} app_vram;

/* A size of memory; all zero: the library's choice. */
typedef struct app_bytes {
    const char *text; // as typed
    uint64_t n_bytes;
} app_bytes;

struct app_variable;

typedef struct app_settings {
    const char *model, *isa, *kv;
    uint32_t threads, ctx, chunk;
    const char *backend, *backend_path, *backend_options, *devices;
    app_vram vram;
    const char *place;
    bool no_trunk_probe;
    const char *heat;
    bool heat_readonly, replan;
    uint32_t replan_max, replan_with, stream, layer_split;
    app_bytes ram, pin;
    uint32_t ram_experts;
    bool no_pilot, no_numa;
    const char *huge_pages;
    bool cache_route, route_agree, route_live;
    uint32_t route_j, route_m;
    float route_p, route_alpha;
    bool no_warmstart;
    const char *home;
    uint32_t device;
    const char *only;
    const char *system;
    bool no_think, preserve_thinking, no_history;
    const char *trace;
    uint32_t n, top_k;
    float temp, top_p, min_p, rep_penalty, presence_penalty;
    uint64_t seed;
    const char *tokenizer, *template, *experts, *trunk, *group, *recipe, *imatrix, *chat_template;
    bool plain, jsonl, settings, json, no_measure;
    const char *prompt_file, *ids, *teacher_force, *ppl, *dump_logits;
    bool stop;
    uint32_t prefill, decode, repeat, context, buffer;
    bool phases;
    const char *quality, *record, *limit;
    const char *compare[2]; // NULL: not
    uint32_t every;
    const char *like;
    uint32_t layers, hidden, experts_n, used, inner, vocab;
    float skew;
    const char *policy, *residency, *against, *cap, *drain, *min_count, *allowance, *machine;
    const char *csv, *svg;
    bool help, version;

    app_source from[APP_N_OPTION];
    const struct app_variable *variable[APP_N_OPTION]; // where from is APP_FROM_ENVIRONMENT
    char **args; // what is left after the options, in order; borrowed from argv
    uint32_t n_arg;
} app_settings;

typedef enum app_kind {
    APP_FLAG,
    APP_TEXT,
    APP_CHOICE,
    APP_SET, // of choices, "a,b": one bit each in an uint32_t, the first choice's is 1
    APP_U32,
    APP_U64,
    APP_F32,
    APP_PAIR,     // two texts, which may be empty or begin with a dash
    APP_ORDINALS, // "0,2", a text
    APP_VRAM,     // an app_vram
    APP_BYTES,    // an app_bytes
    APP_ROWS,     // a number, or "off" (0) or "auto" (UINT32_MAX)
    APP_OFF       // a flag that switches something off, which its variable switches on (1) and off (0)
} app_kind;

typedef struct app_option {
    const char *name; // without the dashes; one letter means -x
    const char *arg;  // what the argument is called in the help; NULL for a flag
    app_kind kind;
    size_t offset;         // of the field in app_settings
    double min, max;       // of APP_U32, APP_F32 and APP_ROWS, both included
    const char *choices;   // "a|b" for APP_CHOICE and APP_SET
    const char *otherwise; // the default, in words; NULL: nothing worth saying
    uint32_t commands;
    const char *help;
} app_option;

extern const app_option app_options[APP_N_OPTION];

/* What an option is to some commands, where that is something else; or NULL. */
typedef struct app_other_help {
    uint32_t commands;
    app_option_id option;
    const char *help, *otherwise;
} app_other_help;

const app_other_help *app_other_help_of(app_option_id id, uint32_t command);

/* Environment variables of the field.  option APP_N_OPTION: known, but nothing reads it yet.
 * backend: the one that the variable is about.  For --backend it is a switch then, 1 means this
 * backend and 0 not this one; for other options it counts only with this backend. */
typedef struct app_variable {
    const char *name;
    app_option_id option;
    const char *help;
    const char *backend;
} app_variable;

extern const app_variable app_variables[];
extern const uint32_t app_n_variable;

/* Variables of the system that matter to the terminal side; listed in the help only. */
extern const app_variable app_system_variables[];
extern const uint32_t app_n_system_variable;

static inline bool app_given(const app_settings *s, app_option_id id)
{
    return s->from[id] != APP_FROM_DEFAULT;
}

#endif
