/* cmd_tokenize.c - `coli tokenize`: texts to ids and back. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "input.h"
#include "open_model.h"
#include "options.h"
#include "terminal.h"
#include "token_bytes.h"

/* A tokenizer and where it is from. */
typedef struct source {
    const coli_tokenizer *tok;
    char path[PATH_MAX];
    token_bytes *bytes; // opened when first needed
} source;

/* One line of --jsonl.  False: it was no good, and an error stands in its place. */
static bool tokenize_line(const coli_tokenizer *tok, const json_t *object, const app_lines *l,
                          bool plain)
{
    if (!object) return app_json_error_line(l->error), false;
    const json_t *text = json_object_get(object, "text");
    if (!json_is_string(text))
        return app_lines_error(l, "expected an object with the string \"text\""), false;
    int32_t *ids;
    size_t n;
    coli_text decoded = {0};
    coli_status status =
        app_tokenize(tok, json_string_value(text), json_string_length(text), plain, &ids, &n);
    if (status == COLI_OK) status = coli_detokenize(tok, ids, n, false, &decoded);
    if (status == COLI_OK) {
        json_t *array = json_array();
        for (size_t i = 0; i < n; i++) json_array_append_new(array, json_integer(ids[i]));
        json_t *line = json_object();
        json_object_set_new(line, "ids", array);
        json_object_set_new(line, "decoded", app_json_string(decoded.data, decoded.n_bytes));
        app_json_line(line);
    } else {
        app_lines_error(l, coli_error_message());
    }
    coli_text_free(&decoded);
    free(ids);
    return status == COLI_OK;
}

static int tokenize_lines(const coli_tokenizer *tok, bool plain)
{
    app_lines l;
    int code = app_lines_open(&l, "-");
    json_t *object;
    while (code != APP_FAILED && app_lines_next_object(&l, &object)) {
        if (!tokenize_line(tok, object, &l, plain)) code = APP_BAD;
        json_decref(object);
        if (ferror(stdout)) code = APP_FAILED;
    }
    const int read = app_lines_close(&l);
    return read == APP_OK ? code : read;
}

/* A token's text as a JSON string, part of a character as <E2>.  New memory (free). */
static char *shown_token(source *from, int32_t id, const coli_text *piece)
{
    char *shown = NULL;
    if (strstr(piece->data, "\xEF\xBF\xBD")) { // not whole, or the character U+FFFD
        if (!from->bytes) from->bytes = token_bytes_open(from->path);
        if (from->bytes) shown = token_bytes_shown(from->bytes, id);
    }
    json_t *string = shown ? app_json_string(shown, strlen(shown))
                           : app_json_string(piece->data, piece->n_bytes);
    char *quoted = app_json_text(string);
    json_decref(string);
    free(shown);
    return quoted;
}

/* For a person: one token per line, its id and its text as a JSON string (so that blanks show). */
static int tokenize_text(source *from, const char *text, size_t n_bytes, bool plain)
{
    const coli_tokenizer *tok = from->tok;
    int32_t *ids;
    size_t n;
    coli_status status = app_tokenize(tok, text, n_bytes, plain, &ids, &n);
    for (size_t i = 0; status == COLI_OK && i < n; i++) {
        coli_text piece = {0};
        status = coli_detokenize(tok, &ids[i], 1, false, &piece);
        if (status != COLI_OK) break;
        char *quoted = shown_token(from, ids[i], &piece);
        printf("%8d  %s\n", ids[i], quoted);
        free(quoted);
        coli_text_free(&piece);
    }
    if (status == COLI_OK)
        app_note("%zu token%s, %zu byte%s", n, n == 1 ? "" : "s", n_bytes, n_bytes == 1 ? "" : "s");
    free(ids);
    return status == COLI_OK ? APP_OK : app_fail(status);
}

static int tokenize_all(source *from, const app_settings *s)
{
    if (s->jsonl) return tokenize_lines(from->tok, s->plain);
    if (s->n_arg == 0) {
        char *text;
        size_t n_bytes;
        int code = app_read_all("-", APP_MAX_TEXT, &text, &n_bytes);
        if (code == APP_OK) code = tokenize_text(from, text, n_bytes, s->plain);
        free(text);
        return code;
    }
    for (uint32_t i = 0; i < s->n_arg; i++) {
        const int code = tokenize_text(from, s->args[i], strlen(s->args[i]), s->plain);
        if (code != APP_OK) return code;
    }
    return APP_OK;
}

int cmd_tokenize(const app_settings *s)
{
    if (s->jsonl && s->n_arg)
        return app_usage("tokenize", "tokenize: --jsonl reads standard input, found \"%s\"",
                         s->args[0]);
    if (s->tokenizer && s->from[APP_OPT_MODEL] == APP_FROM_COMMAND_LINE)
        return app_usage("tokenize", "tokenize: give --tokenizer or --model, not both");
    if (s->tokenizer) {
        coli_tokenizer *tok;
        source from = {0};
        snprintf(from.path, sizeof from.path, "%s", s->tokenizer);
        const coli_status status = coli_tokenizer_open(s->tokenizer, &tok);
        if (status != COLI_OK) return app_fail_reading(status, s->tokenizer, false);
        from.tok = tok;
        const int code = tokenize_all(&from, s);
        token_bytes_close(from.bytes);
        coli_tokenizer_close(tok);
        return code;
    }
    app_engine engine;
    int code = app_open(s, false, &engine);
    if (code != APP_OK) return code;
    source from = {0};
    code = app_tokenizer(&engine, &from.tok);
    if (code == APP_OK) code = app_model_dir(s, from.path, sizeof from.path);
    if (code == APP_OK) {
        const size_t n_dir = strlen(from.path);
        snprintf(from.path + n_dir, sizeof from.path - n_dir, "/tokenizer.json");
        code = tokenize_all(&from, s);
    }
    token_bytes_close(from.bytes);
    app_close(&engine);
    return code;
}
