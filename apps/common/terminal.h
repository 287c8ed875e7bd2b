/* terminal.h - what the programs share about talking to a person: errors, colours, Ctrl-C, and the
 * answer as it streams.  The answer alone goes to stdout. */
#ifndef APP_TERMINAL_H
#define APP_TERMINAL_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "coli/coli.h"

enum {
    APP_OK = 0,
    APP_FAILED = 1,       // it could not be done
    APP_BAD = 2,          // the command line or a file makes no sense
    APP_INTERRUPTED = 130 // Ctrl-C
};

/* First thing in main, before anything opens a file: standard streams, locale, signals, the name in
 * front of every message. */
void app_terminal_init(const char *program);
const char *app_program_name(void);

/* Last thing in main: whether all of stdout was written.  A reader that went away ends the process
 * by SIGPIPE, quietly, as a shell expects, where there is such a thing. */
int app_terminal_finish(int code);
/* Flush stdout; false when it takes no more.  Call this after what is printed there: the reason of
 * a failure is known right after it alone. */
bool app_flush(void);

/* One line of text for the eye.  What it quotes from files, names and the environment cannot drive
 * a terminal or fake a second line: control characters are shown, newlines too (app_put_shown). */
__attribute__((format(printf, 2, 3))) void app_line(FILE *stream, const char *fmt, ...);

/* Such a line on stderr, "coli: ...".  The hint goes to a line of its own below an error. */
__attribute__((format(printf, 1, 2))) void app_error(const char *fmt, ...);
__attribute__((format(printf, 1, 0))) void app_verror(const char *fmt, va_list args);
__attribute__((format(printf, 1, 2))) void app_hint(const char *fmt, ...);
/* Print what the library has to say about a failure; returns the exit code that belongs to it. */
int app_fail(coli_status status);
int app_exit_code(coli_status status);

/* Escape sequences are welcome there: a terminal, not dumb, NO_COLOR not set. */
bool app_colour(FILE *stream);
/* An app_line on stderr, dimmed on a terminal. */
__attribute__((format(printf, 1, 2))) void app_note(const char *fmt, ...);

/* Memory, or a message and exit. */
void *app_alloc(size_t n, size_t size);
void *app_realloc(void *p, size_t n, size_t size);

/* ---- Ctrl-C -------------------------------------------------------------------------------- */

/* With a session: the first Ctrl-C cancels what it does, the second ends the process.  With NULL:
 * the first ends the process (exit code 130).
 *
 * A session forgets a cancel that comes while it does nothing.  So call this right before the long
 * work, and look at the result: how many Ctrl-C came since the last call of this or the next
 * function.  Counting starts anew. */
uint32_t app_interrupt_session(coli_session *session);
/* Only count: somebody asks app_interrupts().  The same result. */
uint32_t app_interrupt_count(void);
uint32_t app_interrupts(void);

/* fn is called after each Ctrl-C that did not end the process, as a signal handler is; NULL: nobody
 * waits for one. */
void app_interrupt_notify(void (*fn)(void));

/* ---- the answer ---------------------------------------------------------------------------- */

typedef struct app_answer {
    bool thinking; // the last piece was part of the think block
    bool any_thinking, any_answer;
    bool line_open_out, line_open_err; // something stands on the line
    bool write_failed;
} app_answer; // start zeroed

/* A coli_piece_fn with an app_answer as user.  Thinking goes to stderr, dimmed; the answer to
 * stdout; on a terminal control characters are shown, not obeyed. */
bool app_answer_piece(void *answer, const coli_piece *piece);
void app_answer_end(app_answer *answer); // ends open lines and colours

/* `12 tok · 85.3 tok/s · prefill 20 tok · TTFT 0.04 s` on stderr. */
void app_footer(const coli_result *result);

#endif
