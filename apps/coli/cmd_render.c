/* cmd_render.c - `coli render`: conversations to prompts.
 *
 * A template that refuses (two system messages, no question) is a result like any other: an error
 * in the line's place, and exit code 0.  A line that is no conversation at all makes it 2.
 *
 * The members of a line go to the library as the bytes they are.  To parse and print them again
 * would lose what a template shows: numbers of any size, digit for digit. */
#include <stdlib.h>
#include <string.h>

#include "coli/coli.h"
#include "commands.h"
#include "input.h"
#include "options.h"
#include "terminal.h"

typedef struct slice {
    const char *at; // NULL: absent
    size_t n_bytes;
} slice;

typedef struct line_members {
    slice template, messages, options;
} line_members;

static const char *skip_space(const char *at)
{
    return at + strspn(at, " \t\r\n");
}

/* Past the string that begins at `at`. */
static const char *skip_string(const char *at)
{
    for (at++; *at && *at != '"'; at++)
        if (*at == '\\' && at[1]) at++;
    return *at ? at + 1 : at;
}

/* Past the value that begins at `at`. */
static const char *skip_value(const char *at)
{
    size_t depth = 0;
    do {
        if (*at == '"') {
            at = skip_string(at);
            continue;
        }
        if (*at == '[' || *at == '{') depth++;
        if (*at == ']' || *at == '}') depth--;
        at++;
    } while (*at && (depth > 0 || !strchr(",]} \t\r\n", *at)));
    return at;
}

/* Where the members of the object stand in its text; false where the text is no object. */
static bool find_members(const char *text, line_members *out)
{
    *out = (line_members){0};
    static const char *const names[] = {"\"template\"", "\"messages\"", "\"options\""};
    slice *const slices[] = {&out->template, &out->messages, &out->options};
    const char *at = skip_space(text);
    if (*at++ != '{') return false;
    for (at = skip_space(at); *at == '"'; at = skip_space(at)) {
        const char *name = at, *name_end = skip_string(at);
        at = skip_space(name_end);
        if (*at++ != ':') return false;
        const char *value = skip_space(at);
        if (!*value) return false;
        at = skip_value(value);
        for (int i = 0; i < 3; i++)
            if (strncmp(names[i], name, strlen(names[i])) == 0)
                *slices[i] = (slice){value, (size_t)(at - value)};
        at = skip_space(at);
        if (*at == ',') at++;
    }
    return *at == '}' && !*skip_space(at + 1);
}

/* The line's members, or false with l->error.  jansson is the judge of what JSON is, except that it
 * has no room for big numbers; what follows one is judged by the library. */
static bool parse_line(app_lines *l, line_members *out)
{
    json_error_t error;
    json_t *value =
        json_loadb(l->line, l->n_bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    const bool big = !value && json_error_code(&error) == json_error_numeric_overflow;
    const bool good = (json_is_object(value) || big) && find_members(l->line, out);
    if (!good) app_lines_blame(l, value || big ? NULL : &error);
    json_decref(value);
    return good;
}

/* The template's name in `out`; false when the member is no string. */
static bool template_name(slice member, const char *otherwise, char *out, size_t cap)
{
    snprintf(out, cap, "%s", otherwise);
    if (!member.at) return true;
    json_t *name = json_loadb(member.at, member.n_bytes, JSON_DECODE_ANY, NULL);
    const bool good = json_is_string(name);
    if (good) snprintf(out, cap, "%s", json_string_value(name));
    json_decref(name);
    return good;
}

/* False: the line was no good. */
static bool render_line(app_lines *l, const char *template_otherwise)
{
    line_members m;
    char name[64];
    if (!parse_line(l, &m)) return app_json_error_line(l->error), false;
    if (!template_name(m.template, template_otherwise, name, sizeof name))
        return app_json_error_line("\"template\": expected a string"), false;
    if (!m.messages.at) return app_json_error_line("expected an object with \"messages\""), false;
    if (m.options.n_bytes == 4 && memcmp(m.options.at, "null", 4) == 0) m.options = (slice){0};
    coli_text text = {0};
    const coli_status status = coli_chat_render(name, m.messages.at, m.messages.n_bytes,
                                                m.options.at, m.options.n_bytes, &text);
    if (status == COLI_OK) {
        json_t *line = json_object();
        json_object_set_new(line, "text", app_json_string(text.data, text.n_bytes));
        app_json_line(line);
    } else {
        app_json_error_line(coli_error_message());
    }
    coli_text_free(&text);
    return status == COLI_OK || status == COLI_E_INVALID;
}

int cmd_render(const app_settings *s)
{
    if (!s->jsonl) return app_usage("render", "render: --jsonl is missing");
    app_lines l;
    int code = app_lines_open(&l, "-");
    while (code != APP_FAILED && app_lines_next(&l)) {
        if (!render_line(&l, s->template ? s->template : "3.6")) code = APP_BAD;
        if (ferror(stdout)) code = APP_FAILED;
    }
    const int read = app_lines_close(&l);
    return read == APP_OK ? code : read;
}
