/* cmd_run.c - `coli run`: one question, one answer. */
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "input.h"
#include "open_model.h"
#include "options.h"
#include "system.h"
#include "terminal.h"
#include "trace.h"
#include "turn.h"

/* The words of the command line, joined: quotes around a question are easily forgotten. */
static char *joined(char **words, uint32_t n)
{
    size_t n_bytes = 1;
    for (uint32_t i = 0; i < n; i++) n_bytes += strlen(words[i]) + 1;
    char *text = app_alloc(n_bytes, 1);
    for (uint32_t i = 0; i < n; i++) {
        if (i) strcat(text, " ");
        strcat(text, words[i]);
    }
    return text;
}

static int read_prompt(const app_settings *s, char **prompt)
{
    *prompt = NULL;
    const bool dash = s->n_arg == 1 && strcmp(s->args[0], "-") == 0;
    if (s->n_arg && !dash) {
        *prompt = joined(s->args, s->n_arg);
    } else {
        if (!dash && app_system_is_terminal(stdin))
            return app_usage("run", "run: the prompt is missing");
        size_t n_bytes;
        const int code = app_read_all("-", APP_MAX_TEXT, prompt, &n_bytes);
        if (code != APP_OK) return code;
        if (strlen(*prompt) != n_bytes) {
            app_error("standard input: a NUL byte at %zu: the prompt is not text", strlen(*prompt));
            free(*prompt);
            *prompt = NULL;
            return APP_BAD;
        }
    }
    if ((*prompt)[strspn(*prompt, " \t\r\n")]) return APP_OK;
    free(*prompt);
    *prompt = NULL;
    return app_usage("run", "run: the prompt is empty");
}

int cmd_run(const app_settings *s)
{
    char *prompt;
    int code = read_prompt(s, &prompt);
    if (code != APP_OK) return code;
    app_engine engine;
    code = app_open(s, APP_OPEN_SESSION | APP_OPEN_DEVICES | APP_OPEN_TELL, &engine);
    if (code == APP_OK) code = app_trace_open(s, &engine);
    if (code == APP_OK) {
        coli_chat *chat = NULL;
        const coli_chat_opts opts = {
            .struct_size = sizeof opts, .system = s->system, .no_think = s->no_think};
        const coli_status status = coli_chat_create(engine.session, &opts, &chat);
        if (status != COLI_OK)
            code = app_fail(status);
        else
            code = turn_say(chat, &engine, s, prompt,
                            app_can_grow(&engine) ? "--ctx N makes a longer context" : NULL);
        coli_chat_destroy(chat);
        code = app_trace_close(s, &engine, code);
    }
    app_close(&engine);
    free(prompt);
    return code;
}
