/* cmd_chat.c - `coli chat`: a conversation, typed or piped.
 *
 * Typed: a line editor, commands that start with a colon, Ctrl-C that stops the answer and keeps
 * the conversation.  Piped: each line is a message; the first failure ends it with its exit code.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "input.h"
#include "line.h"
#include "open_model.h"
#include "options.h"
#include "system.h"
#include "terminal.h"
#include "trace.h"
#include "turn.h"

typedef struct conversation {
    const app_settings *settings;
    app_engine engine;
    coli_chat *chat;
} conversation;

typedef enum next { GO_ON, LEAVE } next;

static next help(conversation *c, int *code)
{
    (void)c;
    (void)code;
    fputs("  :help   this text\n"
          "  :reset  forget the conversation\n"
          "  :quit   leave; Ctrl-D does, too\n"
          "  ::text  say something that starts with a colon\n"
          "Ctrl-C stops an answer, and once more within two seconds leaves.  At the prompt\n"
          "it drops the line; twice in a row on an empty line leaves.\n"
          "Pasted lines are one message; Alt-Enter starts a new line.\n",
          stderr);
    return GO_ON;
}

static next reset(conversation *c, int *code)
{
    (void)code;
    coli_chat_reset(c->chat);
    app_note("the conversation is forgotten");
    return GO_ON;
}

static next quit(conversation *c, int *code)
{
    (void)c;
    (void)code;
    return LEAVE;
}

static const struct {
    const char *name;
    next (*run)(conversation *c, int *code);
} commands[] = {{"help", help}, {"reset", reset}, {"quit", quit}, {"q", quit}, {"exit", quit}};
enum { N_COMMAND = sizeof commands / sizeof *commands };

/* ":word" alone on a line, and only a word: ":-)" is something to say. */
static bool is_command(const char *text)
{
    return text[0] == ':' && isalpha((unsigned char)text[1]) && !strchr(text, '\n');
}

static next run_command(conversation *c, const char *text, int *code)
{
    char word[32] = "";
    const size_t n = strcspn(text + 1, " \t\r");
    if (n < sizeof word) memcpy(word, text + 1, n);
    app_nearest near = {.word = word};
    for (int i = 0; i < N_COMMAND; i++) {
        if (strcmp(word, commands[i].name) == 0) return commands[i].run(c, code);
        app_nearest_try(&near, commands[i].name);
    }
    app_error("unknown command :%.*s", (int)n, text + 1);
    if (near.best)
        app_hint("did you mean :%s?  ::%.*s says it to the model", near.best, (int)n, text + 1);
    else
        app_hint(":help lists the commands; ::%.*s says it to the model", (int)n, text + 1);
    *code = APP_BAD;
    return GO_ON;
}

/* One line or pasted text.  *code: how it went. */
static next handle(conversation *c, const char *text, int *code)
{
    *code = APP_OK;
    if (!text[strspn(text, " \t\r\n")]) return GO_ON;
    if (is_command(text)) return run_command(c, text, code);
    if (text[0] == ':' && text[1] == ':') text++;
    *code = turn_say(c->chat, &c->engine, c->settings, text,
                     app_can_grow(&c->engine)
                         ? ":reset forgets the conversation; --ctx N makes a longer one possible"
                         : ":reset forgets the conversation");
    coli_model_save_heat(c->engine.model); // the window may be closed; the end says if it fails
    return GO_ON;
}

static int chat_typed(conversation *c)
{
    char *path = c->settings->no_history ? NULL : line_history_path();
    line_editor *line = line_open("> ", path);
    free(path);
    if (!line) {
        app_error("the terminal cannot be used for editing");
        app_hint("pipe the messages: printf 'Hello!\\n' | coli chat");
        return APP_FAILED;
    }
    int code = APP_OK, how = APP_OK; // a failed turn was explained; the conversation goes on
    for (next then = GO_ON; then == GO_ON;) {
        char *text;
        const line_event event = line_read(line, how == APP_INTERRUPTED, &text);
        if (event == LINE_LEAVE) code = APP_INTERRUPTED;
        if (event != LINE_TEXT) break;
        then = handle(c, text, &how);
        free(text);
        if (ferror(stdout)) break;
    }
    line_close(line);
    return code;
}

static int chat_piped(conversation *c)
{
    app_lines l;
    int code = app_lines_open(&l, "-");
    while (code == APP_OK) {
        if (app_interrupt_session(NULL) > 0) code = APP_INTERRUPTED; // a moment after an answer
        if (code != APP_OK || !app_lines_next(&l)) break;
        size_t n = l.n_bytes;
        if (strlen(l.line) != n) {
            app_error("%s: line %llu has a NUL byte: that is not text", l.name,
                      (unsigned long long)l.n_line);
            code = APP_BAD;
            break;
        }
        while (n && (l.line[n - 1] == '\n' || l.line[n - 1] == '\r')) l.line[--n] = 0;
        if (handle(c, l.line, &code) == LEAVE) break;
    }
    const int read = app_lines_close(&l);
    return read == APP_OK ? code : read;
}

int cmd_chat(const app_settings *s)
{
    conversation c = {.settings = s};
    int code = app_open(s, APP_OPEN_SESSION | APP_OPEN_DEVICES | APP_OPEN_TELL, &c.engine);
    if (code != APP_OK) return code;
    code = app_trace_open(s, &c.engine);
    if (code != APP_OK) {
        app_close(&c.engine);
        return code;
    }
    const coli_chat_opts opts = {.struct_size = sizeof opts,
                                 .system = s->system,
                                 .no_think = s->no_think,
                                 .preserve_thinking = s->preserve_thinking};
    const coli_status status = coli_chat_create(c.engine.session, &opts, &c.chat);
    if (status != COLI_OK) {
        code = app_fail(status);
    } else {
        app_banner(&c.engine);
        const bool typed = app_system_is_terminal(stdin) &&
                           (app_system_is_terminal(stdout) || app_system_is_terminal(stderr));
        if (typed) app_note(":help tells what can be typed here");
        code = typed ? chat_typed(&c) : chat_piped(&c);
    }
    coli_chat_destroy(c.chat);
    code = app_trace_close(s, &c.engine, code);
    app_close(&c.engine);
    return code;
}
