/* options.c - see options.h.
 *
 * A command line is read twice.  The first look finds the command, because what `--group` means to
 * a person depends on it; the second takes every option, and complains at the first that makes no
 * sense: unknown (is another one near?), of another command (which?), without its value, or with a
 * value outside its range. */
#include "options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "coli/coli.h"
#include "system.h"
#include "terminal.h"
#include "text.h"

/* ---- what was meant ------------------------------------------------------------------------ */

/* Edits (insert, delete, replace, swap neighbours) from a to b. */
static uint32_t edit_distance(const char *a, const char *b)
{
    enum { MAX = 40 };
    const size_t na = strlen(a), nb = strlen(b);
    if (na >= MAX || nb >= MAX) return UINT32_MAX;
    uint32_t d[MAX][MAX];
    for (size_t i = 0; i <= na; i++) {
        for (size_t j = 0; j <= nb; j++) {
            if (i == 0 || j == 0) {
                d[i][j] = (uint32_t)(i + j);
                continue;
            }
            uint32_t best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    }
    return d[na][nb];
}

void app_nearest_try(app_nearest *n, const char *candidate)
{
    const size_t length = strlen(n->word);
    const uint32_t limit = length < 3 ? 1 : (uint32_t)(length / 3 + 1);
    uint32_t distance = edit_distance(n->word, candidate);
    /* Someone who types the beginning of a long word means that word. */
    if (length >= 3 && strncmp(n->word, candidate, length) == 0) distance = 1;
    if (distance > limit || (n->best && distance >= n->distance)) return;
    n->best = candidate;
    n->distance = distance;
}

int app_usage(const char *command, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    app_verror(fmt, args);
    va_end(args);
    if (command)
        app_hint("`%s help %s` shows how", app_program_name(), command);
    else
        app_hint("`%s --help` shows how", app_program_name());
    return APP_BAD;
}

/* ---- tables -------------------------------------------------------------------------------- */

static const app_option *option_named(const char *name, size_t n)
{
    for (uint32_t i = 0; i < APP_N_OPTION; i++)
        if (strlen(app_options[i].name) == n && memcmp(app_options[i].name, name, n) == 0)
            return &app_options[i];
    return NULL;
}

void app_variables_of(app_option_id id, char *out, size_t cap)
{
    size_t n = 0;
    *out = 0;
    for (uint32_t i = 0; i < app_n_variable && n < cap; i++)
        if (app_variables[i].option == id)
            n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? " or " : "", app_variables[i].name);
}

/* ---- values -------------------------------------------------------------------------------- */

static bool parse_u64(const char *text, uint64_t *out)
{
    if (*text < '0' || *text > '9') return false; // strtoull takes blanks and a minus sign
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (*end || errno) return false;
    *out = (uint64_t)value;
    return true;
}

static bool parse_double(const char *text, double *out)
{
    if (!*text || strspn(text, "+-.0123456789eE") != strlen(text)) return false; // no nan, inf, hex
    char *end;
    *out = strtod(text, &end);
    return *end == 0 && isfinite(*out);
}

static bool is_choice(const char *choices, const char *text)
{
    const size_t n = strlen(text);
    for (const char *at = choices; at; at = strchr(at, '|')) {
        if (*at == '|') at++;
        if (strncmp(at, text, n) == 0 && (at[n] == 0 || at[n] == '|')) return n > 0;
    }
    return false;
}

/* "a,c" of "a|b|c", as bits; no choice twice. */
static bool parse_set(const char *choices, const char *text, uint32_t *out)
{
    *out = 0;
    for (;;) {
        const size_t n = strcspn(text, ",");
        uint32_t bit = 1;
        const char *at = choices;
        while (strcspn(at, "|") != n || strncmp(at, text, n) != 0) {
            at = strchr(at, '|');
            if (!at) return false;
            at++;
            bit <<= 1;
        }
        if (*out & bit) return false;
        *out |= bit;
        if (text[n] == 0) return true;
        text += n + 1;
    }
}

static char *set_text(const char *choices, uint32_t set) // free()
{
    char text[128];
    size_t n_text = 0;
    text[0] = 0;
    for (const char *at = choices; *at; set >>= 1) {
        const size_t n = strcspn(at, "|");
        if (set & 1)
            n_text += (size_t)snprintf(text + n_text, sizeof text - n_text, "%s%.*s",
                                       n_text ? "," : "", (int)n, at);
        at += n + (at[n] != 0);
    }
    return app_format("%s", text);
}

/* "0,2". */
static bool is_ordinals(const char *text)
{
    bool digit = false;
    for (const char *c = text; *c; c++) {
        const bool was = digit;
        digit = *c >= '0' && *c <= '9';
        if (!digit && !(*c == ',' && was)) return false;
    }
    return digit;
}

/* "8GiB", "12GB"; a bare number counts `bare` bytes. */
static bool parse_size(const char *text, double bare, double *n_bytes)
{
    static const struct {
        const char *name;
        double n_bytes;
    } units[] = {{"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"MB", 1e6},
                 {"GB", 1e9},     {"TB", 1e12},    {NULL, 0}};
    char number[32];
    const size_t n = strspn(text, "0123456789.");
    if (n == 0 || n >= sizeof number) return false;
    memcpy(number, text, n);
    number[n] = 0;
    if (!parse_double(number, n_bytes)) return false;
    double unit = text[n] ? 0 : bare;
    for (int i = 0; units[i].name; i++)
        if (strcmp(text + n, units[i].name) == 0) unit = units[i].n_bytes;
    *n_bytes *= unit;
    return unit > 0 && *n_bytes < 0x1p60;
}

/* "auto", "50%", "8GiB".  A bare number counts GiB, as CUDA_EXPERT_GB always did. */
static bool parse_vram(const char *text, app_vram *out)
{
    *out = (app_vram){.text = text};
    if (strcmp(text, "auto") == 0) return true;
    const size_t n = strlen(text);
    char number[32];
    if (n > 0 && n < sizeof number && text[n - 1] == '%') {
        memcpy(number, text, n - 1);
        number[n - 1] = 0;
        out->unit = COLI_VRAM_PERCENT;
        return strspn(number, "0123456789.") == n - 1 && parse_double(number, &out->amount) &&
               out->amount <= 100;
    }
    out->unit = COLI_VRAM_BYTES;
    return parse_size(text, 0x1p30, &out->amount);
}

/* "auto", "8GB".  A bare number counts GB, as RAM_GB always did. */
static bool parse_bytes(const char *text, app_bytes *out)
{
    *out = (app_bytes){.text = text};
    if (strcmp(text, "auto") == 0) return true;
    double n_bytes = 0;
    if (!parse_size(text, 1e9, &n_bytes)) return false;
    out->n_bytes = (uint64_t)n_bytes; // 0 is auto
    return true;
}

static bool parse_rows(const app_option *o, const char *text, uint32_t *out)
{
    uint64_t whole = strcmp(text, "auto") == 0 ? UINT32_MAX : 0;
    const bool is_word = whole > 0 || strcmp(text, "off") == 0;
    if (!is_word &&
        (!parse_u64(text, &whole) || whole < (uint64_t)o->min || whole > (uint64_t)o->max))
        return false;
    *out = (uint32_t)whole;
    return true;
}

/* Set the option's field; false when the text is not one of its values. */
static bool take_value(const app_option *o, const char *text, app_settings *s)
{
    void *field = (char *)s + o->offset;
    uint64_t whole;
    double number;
    switch (o->kind) {
    case APP_FLAG: // of a variable: 0 or 1
        *(bool *)field = !text || strcmp(text, "0") != 0;
        return !text || !*text || strcmp(text, "0") == 0 || strcmp(text, "1") == 0;
    case APP_OFF: // of a variable: 1 is what there is without it
        *(bool *)field = !text || strcmp(text, "0") == 0;
        return !text || !*text || strcmp(text, "0") == 0 || strcmp(text, "1") == 0;
    case APP_TEXT:
        *(const char **)field = text;
        return *text || strcmp(o->arg, "TEXT") == 0; // no path and no format is empty
    case APP_CHOICE:
        *(const char **)field = text;
        return is_choice(o->choices, text);
    case APP_SET:
        return parse_set(o->choices, text, field);
    case APP_U32:
        if (!parse_u64(text, &whole) || whole < (uint64_t)o->min || whole > (uint64_t)o->max)
            return false;
        *(uint32_t *)field = (uint32_t)whole;
        return true;
    case APP_U64:
        return parse_u64(text, (uint64_t *)field);
    case APP_F32:
        if (!parse_double(text, &number) || number < o->min || number > o->max) return false;
        *(float *)field = (float)number;
        return true;
    case APP_PAIR: // this is one of them
        *(const char **)field = text;
        return true;
    case APP_ORDINALS:
        *(const char **)field = text;
        return is_ordinals(text);
    case APP_VRAM:
        return parse_vram(text, field);
    case APP_BYTES:
        return parse_bytes(text, field);
    case APP_ROWS:
        return parse_rows(o, text, field);
    }
    return false;
}

char *app_value_text(const app_settings *s, app_option_id id)
{
    const void *field = (const char *)s + app_options[id].offset;
    switch (app_options[id].kind) {
    case APP_FLAG:
    case APP_OFF:
        return app_format("%s", *(const bool *)field ? "on" : "off");
    case APP_TEXT:
    case APP_CHOICE:
    case APP_PAIR:
    case APP_ORDINALS: {
        const char *text = *(const char *const *)field;
        return app_format("%s", text ? text : "");
    }
    case APP_SET:
        return set_text(app_options[id].choices, *(const uint32_t *)field);
    case APP_VRAM: {
        const char *text = ((const app_vram *)field)->text;
        return app_format("%s", text ? text : "auto");
    }
    case APP_BYTES: {
        const char *text = ((const app_bytes *)field)->text;
        return app_format("%s", text ? text : "auto");
    }
    case APP_ROWS: {
        const uint32_t rows = *(const uint32_t *)field;
        if (rows == 0 || rows == UINT32_MAX) return app_format("%s", rows ? "auto" : "off");
        return app_format("%" PRIu32, rows);
    }
    case APP_U32:
        return app_format("%" PRIu32, *(const uint32_t *)field);
    case APP_U64:
        return app_format("%" PRIu64, *(const uint64_t *)field);
    case APP_F32:
        return app_format("%g", (double)*(const float *)field);
    }
    return app_format("?"); // no such kind
}

/* ---- the command line ---------------------------------------------------------------------- */

/* One argument taken apart. */
typedef struct argument {
    const app_option *option; // NULL: no such option
    const char *name;         // as typed, without dashes and value
    size_t n_name;
    const char *value; // what stands in the same argument; NULL if nothing does
} argument;

static bool is_option(const char *arg)
{
    return arg[0] == '-' && arg[1] != 0;
}

static argument take_apart(const char *arg)
{
    argument a = {0};
    if (arg[1] == '-') {
        a.name = arg + 2;
        a.n_name = strcspn(a.name, "=");
        if (a.name[a.n_name] == '=') a.value = a.name + a.n_name + 1;
        if (a.n_name > 1) a.option = option_named(a.name, a.n_name);
    } else {
        a.name = arg + 1;
        a.n_name = 1;
        a.option = arg[1] == 'h' ? &app_options[APP_OPT_HELP] : option_named(a.name, 1);
        if (arg[2]) a.value = arg + 2 + (arg[2] == '='); // -n5, -n=5
        const size_t n_word = strcspn(arg + 1, "=");
        const bool one_dash_too_few = n_word > 1 && option_named(arg + 1, n_word); // -no-think
        if (arg[2] && (!a.option || !a.option->arg || one_dash_too_few)) {
            a.option = NULL;
            a.n_name = strcspn(a.name, "=");
        }
    }
    return a;
}

/* The command is the first word that is no option and no option's value. */
static char *find_command(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) return i + 1 < argc ? argv[i + 1] : NULL;
        if (!is_option(argv[i])) return argv[i];
        const argument a = take_apart(argv[i]);
        if (a.option && a.option->arg && !a.value) i++;
        if (a.option && a.option->kind == APP_PAIR) i++;
    }
    return NULL;
}

static int no_such_option(const app_program *program, const app_command *c, const argument *a,
                          const char *arg)
{
    const size_t n_dash = (size_t)(a->name - arg);
    app_error("unknown option %.*s", (int)(n_dash + a->n_name), arg);
    char word[64];
    snprintf(word, sizeof word, "%.*s", (int)a->n_name, a->name);
    app_nearest n = {.word = word};
    for (uint32_t i = 0; i < APP_N_OPTION; i++)
        if (!c || app_options[i].commands & c->bit) app_nearest_try(&n, app_options[i].name);
    if (n.best)
        app_hint("did you mean %s%s?", n.best[1] ? "--" : "-", n.best);
    else if (c && c->name)
        app_hint("`%s help %s` lists the options", program->name, c->name);
    else
        app_hint("`%s --help` lists what there is", program->name);
    return APP_BAD;
}

static int wrong_command(const app_program *program, const app_command *c, const app_option *o)
{
    char where[256] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < program->n_command && n + 32 < sizeof where; i++)
        if (program->commands[i].bit & o->commands)
            n += (size_t)snprintf(where + n, sizeof where - n, "%s`%s %s`", n ? ", " : "",
                                  program->name, program->commands[i].name);
    if (c->name)
        app_error("%s%s is not an option of `%s %s`", app_dashes(o), o->name, program->name,
                  c->name);
    else
        app_error("%s%s is not an option of %s", app_dashes(o), o->name, program->name);
    if (*where) app_hint("it belongs to %s", where);
    return APP_BAD;
}

static int bad_value(const char *name, const char *before, const app_option *o, const char *text)
{
    char range[128];
    app_range_text(o, false, range, sizeof range);
    if (o->kind == APP_FLAG || o->kind == APP_OFF)
        snprintf(range, sizeof range, "1 or 0"); // of a variable
    app_error("%s%s: expected %s, found \"%s\"", before, name, range, text);
    if (o->kind == APP_CHOICE) {
        app_nearest n = {.word = text};
        char words[128];
        snprintf(words, sizeof words, "%s", o->choices);
        for (char *word = strtok(words, "|"); word; word = strtok(NULL, "|"))
            app_nearest_try(&n, word);
        if (n.best) app_hint("did you mean %s?", n.best);
    }
    return APP_BAD;
}

/* `--replan=no`: a yes/no option that is off whatever the environment says; `=yes` is as without.  The value
 * becomes what take_value knows. */
static int read_yes_or_no(const app_option *o, const char **value)
{
    const bool yes = strcmp(*value, "yes") == 0;
    if (!yes && strcmp(*value, "no") != 0) {
        app_error("%s%s: expected yes or no, or no value, found \"%s\"", app_dashes(o), o->name,
                  *value);
        return APP_BAD;
    }
    *value = yes ? NULL : o->kind == APP_FLAG ? "0" : "1";
    return APP_OK;
}

/* The option at argv[*i], and its value, which may be the next argument. */
static int take_option(const app_program *program, const app_command *c, int argc, char **argv,
                       int *i, app_settings *s)
{
    const argument a = take_apart(argv[*i]);
    const app_option *o = a.option;
    if (!o) return no_such_option(program, c, &a, argv[*i]);
    if (c && !(o->commands & c->bit)) return wrong_command(program, c, o);
    const char *value = a.value;
    if (!o->arg && value && read_yes_or_no(o, &value) != APP_OK) return APP_BAD;
    if (o->arg && !value) {
        if (*i + 1 < argc) value = argv[*i + 1];
        /* `--system --no-think` forgot the text; -1 may well be a value. */
        const bool forgotten =
            value && o->kind != APP_PAIR && is_option(value) && take_apart(value).option;
        if (!value || forgotten) {
            app_error("%s%s needs a value: %s%s %s", app_dashes(o), o->name, app_dashes(o), o->name,
                      o->arg);
            if (forgotten)
                app_hint("write %s%s=%s if that is the value", app_dashes(o), o->name, value);
            return APP_BAD;
        }
        ++*i;
    }
    if (!take_value(o, value, s)) return bad_value(o->name, app_dashes(o), o, value);
    if (o->kind == APP_PAIR && ++*i >= argc) {
        app_error("%s%s needs two values: %s%s %s", app_dashes(o), o->name, app_dashes(o), o->name,
                  o->arg);
        return APP_BAD;
    }
    if (o->kind == APP_PAIR) ((const char **)(void *)((char *)s + o->offset))[1] = argv[*i];
    s->from[o - app_options] = APP_FROM_COMMAND_LINE;
    return APP_OK;
}

bool app_is_backend(const char *value, const char *name)
{
    if (!value) return false;
    const char *file = value;
    for (const char *c = value; *c; c++)
        if (*c == '/' || *c == '\\') file = c + 1;
    if (file == value) return strcmp(value, name) == 0;
    const size_t n = strlen(name);
    return strncmp(file, "coli_", 5) == 0 && strncmp(file + 5, name, n) == 0 && file[5 + n] == '.';
}

static const char *value_of(const app_variable *v)
{
    const char *value = app_system_getenv(v->name);
    return value && *value ? value : NULL;
}

/* Whether the variable's option is open, and the variable counts for it. */
static bool is_wanted(const app_command *c, const app_settings *s, const app_variable *v)
{
    if (v->option == APP_N_OPTION || app_given(s, v->option) ||
        !(app_options[v->option].commands & c->bit))
        return false;
    const char *backend = s->backend;
    if (c->bit == APP_BACKEND)
        backend = s->n_arg > 1 ? s->args[1] : NULL; // `coli backend info NAME`
    return !v->backend || v->option == APP_OPT_BACKEND || app_is_backend(backend, v->backend);
}

/* The table has those of --backend first, which decide what others count. */
static int from_environment(const app_command *c, app_settings *s)
{
    const app_variable *off = NULL;
    for (uint32_t i = 0; i < app_n_variable; i++) {
        const app_variable *v = &app_variables[i];
        const char *value = is_wanted(c, s, v) ? value_of(v) : NULL;
        if (!value) continue;
        if (v->option == APP_OPT_BACKEND && v->backend) {
            if (*value != '0' && *value != '1') {
                app_error("environment variable %s: expected 1 or 0, found \"%s\"", v->name, value);
                return APP_BAD;
            }
            if (*value == '0') {
                off = v;
                continue;
            }
            value = v->backend;
        }
        if (!take_value(&app_options[v->option], value, s))
            return bad_value(v->name, "environment variable ", &app_options[v->option], value);
        s->from[v->option] = APP_FROM_ENVIRONMENT;
        s->variable[v->option] = v;
    }
    if (off && !app_given(s, APP_OPT_BACKEND)) { // whoever turned one off did not ask for another
        s->backend = "none";
        s->from[APP_OPT_BACKEND] = APP_FROM_ENVIRONMENT;
        s->variable[APP_OPT_BACKEND] = off;
    }
    return APP_OK;
}

/* Take the text apart in place: blanks part words, quotes hold together what is between them.  False
 * for a quote without its other one, or too many words. */
static bool split_words(char *text, char **words, int cap, int *n)
{
    char *to = text, quote = 0; // `to` is never ahead of c
    bool open = false;
    *n = 0;
    for (const char *c = text; *c; c++) {
        if (quote) {
            if (*c != quote) *to++ = *c;
            if (*c == quote) quote = 0;
            continue;
        }
        const bool blank = *c == ' ' || *c == '\t' || *c == '\n';
        if (blank && open) *to++ = 0;
        if (!blank && !open && *n == cap) return false;
        if (!blank && !open) words[(*n)++] = to;
        open = !blank;
        if (*c == '"' || *c == '\'')
            quote = *c;
        else if (!blank)
            *to++ = *c;
    }
    *to = 0;
    return quote == 0;
}

int app_settings_over(const app_settings *s, const char *text, app_settings *out, char **words)
{
    enum { MAX_WORD = 64 };
    static const app_command setting = {.name = "bench --compare", .bit = APP_SETTING};
    const app_program program = {.name = app_program_name()};
    char *argv[MAX_WORD];
    int n;
    *out = *s;
    *words = app_format("%s", text);
    if (!split_words(*words, argv, MAX_WORD, &n)) {
        app_error("--compare: expected up to %d words, quotes in pairs, found: %s", MAX_WORD, text);
        return APP_BAD;
    }
    for (int i = 0; i < n; i++) {
        if (!is_option(argv[i])) {
            app_error("--compare: expected options, found \"%s\"", argv[i]);
            return APP_BAD;
        }
        const int code = take_option(&program, &setting, n, argv, &i, out);
        if (code != APP_OK) return code;
    }
    return from_environment(&setting, out);
}

static bool begins(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Someone who sets a variable expects something to happen: say so when nothing will. */
static void warn_about_environment(const app_command *c, const app_settings *s)
{
    for (char **entry = app_system_environ(); *entry; entry++) {
        char name[64];
        const size_t n = strcspn(*entry, "=");
        if (n >= sizeof name || (*entry)[n] == 0 || (*entry)[n + 1] == 0) continue;
        memcpy(name, *entry, n);
        name[n] = 0;
        const app_variable *known = NULL;
        app_nearest near = {.word = name};
        for (uint32_t i = 0; i < app_n_variable; i++) {
            if (strcmp(name, app_variables[i].name) == 0) known = &app_variables[i];
            app_nearest_try(&near, app_variables[i].name);
        }
        if (known && known->option == APP_N_OPTION)
            app_error("warning: %s is known but has no effect yet", name);
        else if (known && known->backend && known->option != APP_OPT_BACKEND &&
                 !app_given(s, known->option) && app_options[known->option].commands & c->bit)
            app_error("warning: %s has no effect without --backend %s", name, known->backend);
        else if (!known && (begins(name, "COLI_") || begins(name, "QT_") || begins(name, "ROUTE_")))
            app_error("warning: %s is not a variable that %s knows%s%s%s", name, app_program_name(),
                      near.best ? "; did you mean " : "", near.best ? near.best : "",
                      near.best ? "?" : "");
    }
}

static int no_such_command(const app_program *program, const char *word)
{
    app_error("unknown command \"%s\"", word);
    app_nearest n = {.word = word};
    for (uint32_t i = 0; i < program->n_command; i++)
        app_nearest_try(&n, program->commands[i].name);
    if (n.best)
        app_hint("did you mean `%s %s`?", program->name, n.best);
    else
        app_hint("`%s help` lists the commands", program->name);
    return APP_BAD;
}

int app_main(const app_program *program, int argc, char **argv)
{
    argv = app_system_args(&argc, argv);
    const bool has_commands = program->commands[0].name != NULL;
    const char *word = has_commands ? find_command(argc, argv) : NULL;
    const app_command *c = has_commands ? NULL : &program->commands[0];
    if (word && !(c = app_command_named(program, word))) return no_such_command(program, word);

    app_settings s = {.args = argv + 1};
    bool ended = false;
    for (int i = 1; i < argc; i++) {
        if (!ended && strcmp(argv[i], "--") == 0) {
            ended = true;
        } else if (!ended && is_option(argv[i])) {
            const int code = take_option(program, c, argc, argv, &i, &s);
            if (code != APP_OK) return code;
        } else if (word && argv[i] == word) {
            word = NULL;
        } else {
            s.args[s.n_arg++] = argv[i]; // never ahead of i
        }
    }
    if (s.version) {
        printf("%s %s\n", program->name, coli_version());
        app_flush();
        return APP_OK;
    }
    if (!c && argc == 1) return app_help(program, NULL, stderr), APP_BAD;
    if (s.help || !c) return app_help(program, c ? c->name : NULL, stdout) ? APP_OK : APP_BAD;
    if (s.n_arg < c->min_arg || s.n_arg > c->max_arg) {
        if (s.n_arg > c->max_arg)
            return app_usage(c->name, "unexpected argument \"%s\"", s.args[c->max_arg]);
        return app_usage(c->name, "too few arguments for %s %s", c->name, c->synopsis);
    }
    const int code = from_environment(c, &s);
    if (code != APP_OK) return code;
    warn_about_environment(c, &s);
    return c->run(&s);
}
