/* cmd_tokenize.c - `coli tokenize`: texts to ids and back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "input.h"
#include "open_model.h"
#include "options.h"
#include "terminal.h"
#include "text.h"

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

/* A token as a JSON string, bytes that are part of a character as <E2>.  New memory (free). */
static char *shown_token(const coli_tokenizer *tok, int32_t id)
{
    size_t n, n_shown = 0;
    const char *bytes = coli_token_bytes(tok, id, &n);
    char *shown = app_alloc(n + 1, strlen("<E2>"));
    for (size_t i = 0, step; i < n; i += step ? step : 1) {
        uint32_t code;
        step = app_utf8_char(bytes + i, n - i, &code);
        if (step)
            memcpy(shown + n_shown, bytes + i, step);
        else
            snprintf(shown + n_shown, sizeof "<E2>", "<%02X>", (unsigned char)bytes[i]);
        n_shown += step ? step : strlen("<E2>");
    }
    json_t *string = app_json_string(shown, n_shown);
    char *quoted = app_json_text(string);
    json_decref(string);
    free(shown);
    return quoted;
}

/* For a person: one token per line, its id and its text as a JSON string (so that blanks show). */
static int tokenize_text(const coli_tokenizer *tok, const char *text, size_t n_bytes, bool plain)
{
    int32_t *ids;
    size_t n;
    const coli_status status = app_tokenize(tok, text, n_bytes, plain, &ids, &n);
    for (size_t i = 0; status == COLI_OK && i < n; i++) {
        char *quoted = shown_token(tok, ids[i]);
        printf("%8d  %s\n", ids[i], quoted);
        free(quoted);
    }
    if (status == COLI_OK)
        app_note("%zu token%s, %zu byte%s", n, n == 1 ? "" : "s", n_bytes, n_bytes == 1 ? "" : "s");
    free(ids);
    return status == COLI_OK ? APP_OK : app_fail(status);
}

static int tokenize_all(const coli_tokenizer *tok, const app_settings *s)
{
    if (s->jsonl) return tokenize_lines(tok, s->plain);
    if (s->n_arg == 0) {
        char *text;
        size_t n_bytes;
        int code = app_read_all("-", APP_MAX_TEXT, &text, &n_bytes);
        if (code == APP_OK) code = tokenize_text(tok, text, n_bytes, s->plain);
        free(text);
        return code;
    }
    for (uint32_t i = 0; i < s->n_arg; i++) {
        const int code = tokenize_text(tok, s->args[i], strlen(s->args[i]), s->plain);
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
        const coli_status status = coli_tokenizer_open(s->tokenizer, &tok);
        if (status != COLI_OK) return app_fail_reading(status, s->tokenizer, false);
        const int code = tokenize_all(tok, s);
        coli_tokenizer_close(tok);
        return code;
    }
    app_engine engine;
    const coli_tokenizer *tok;
    int code = app_open(s, 0, &engine);
    if (code != APP_OK) return code;
    code = app_tokenizer(&engine, &tok);
    if (code == APP_OK) code = tokenize_all(tok, s);
    app_close(&engine);
    return code;
}
