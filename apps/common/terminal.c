/* terminal.c - see terminal.h. */
#include "terminal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "system.h"
#include "text.h"

static const char *program_name = "coli";
static int stdout_error; // errno of the first write to stdout that failed

/* ---- Ctrl-C -------------------------------------------------------------------------------- */

/* What a Ctrl-C does. */
enum { MODE_END, MODE_CANCEL, MODE_COUNT, MODE_SHIFT = 24 };

/* What a signal handler may touch.  It may run on any thread, while others go on: mode and count are one
 * word, which a handler reads and counts up in one step; and n_running lets the next mode begin only when
 * what the last one started is done. */
static struct {
    atomic_uint state;               // mode << MODE_SHIFT | how many came in it
    atomic_uint n_running;           // handlers between their first step and their last
    _Atomic(coli_session *) session; // cancelled by the first Ctrl-C of MODE_CANCEL
    atomic_bool colour;              // a dimmed text may be open on stderr
    _Atomic(void (*)(void)) notify;  // somebody waits for it
} on_interrupt;

static unsigned count_of(unsigned state)
{
    return state & ((1u << MODE_SHIFT) - 1);
}

static void interrupted(void)
{
    atomic_fetch_add(&on_interrupt.n_running, 1);
    const unsigned state = atomic_fetch_add(&on_interrupt.state, 1);
    const unsigned mode = state >> MODE_SHIFT;
    if (mode == MODE_END || (mode == MODE_CANCEL && count_of(state) > 0))
        // what was shown is flushed, nothing else is open
        app_system_end(atomic_load(&on_interrupt.colour) ? "\033[0m\n" : "\n", APP_INTERRUPTED);
    if (mode == MODE_CANCEL) coli_session_cancel(atomic_load(&on_interrupt.session));
    void (*const notify)(void) = atomic_load(&on_interrupt.notify);
    if (notify) notify();
    atomic_fetch_sub(&on_interrupt.n_running, 1);
}

void app_interrupt_notify(void (*fn)(void))
{
    atomic_store(&on_interrupt.notify, fn);
}

static uint32_t interrupt_mode(unsigned mode)
{
    const unsigned before = atomic_exchange(&on_interrupt.state, mode << MODE_SHIFT);
    while (atomic_load(&on_interrupt.n_running) > 0) { // on other threads, for a moment
    }
    return count_of(before);
}

uint32_t app_interrupt_session(coli_session *session)
{
    if (!session) return interrupt_mode(MODE_END);
    const uint32_t n = interrupt_mode(MODE_COUNT); // whoever had the last session is done with it
    atomic_store(&on_interrupt.session, session);
    return n + interrupt_mode(MODE_CANCEL);
}
uint32_t app_interrupt_count(void)
{
    return interrupt_mode(MODE_COUNT);
}
uint32_t app_interrupts(void)
{
    return count_of(atomic_load(&on_interrupt.state));
}

/* ---- start and end ------------------------------------------------------------------------- */

void app_terminal_init(const char *program)
{
    program_name = program;
    app_system_start();
    app_system_on_interrupt(interrupted);
}

const char *app_program_name(void)
{
    return program_name;
}

bool app_flush(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return true;
    if (!stdout_error) stdout_error = errno;
    return false;
}

int app_terminal_finish(int code)
{
    if (app_flush()) return code;
    if (stdout_error == EPIPE) app_system_end_without_reader();
    app_error("cannot write to stdout: %s", strerror(stdout_error));
    return code ? code : APP_FAILED;
}

/* ---- messages ------------------------------------------------------------------------------ */

bool app_colour(FILE *stream)
{
    const char *no_colour = app_system_getenv("NO_COLOR");
    return !(no_colour && *no_colour) && app_system_takes_escapes(stream);
}

/* One app_line between two texts that are the program's own. */
static void vline(FILE *stream, const char *before, const char *fmt, va_list args,
                  const char *after)
{
    char small[1024], *text = small, *large = NULL;
    va_list again;
    va_copy(again, args);
    const int n = vsnprintf(small, sizeof small, fmt, args);
    if (n >= (int)sizeof small) {
        large = malloc((size_t)n + 1); // not app_alloc: what failed may be that
        if (large) vsnprintf(text = large, (size_t)n + 1, fmt, again);
        if (!large) strcpy(small + sizeof small - 4, "...");
    }
    va_end(again);
    fputs(before, stream);
    if (n > 0) app_put_shown(stream, text, strlen(text), "");
    fputs(after, stream);
    if (stream == stderr) fflush(stderr); // Windows collects what goes there
    free(large);
}

void app_line(FILE *stream, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vline(stream, "", fmt, args, "\n");
    va_end(args);
    if (stream == stdout && ferror(stdout)) app_flush();
}

void app_verror(const char *fmt, va_list args)
{
    app_flush();
    fprintf(stderr, "%s: ", program_name);
    vline(stderr, "", fmt, args, "\n");
}

void app_error(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    app_verror(fmt, args);
    va_end(args);
}

void app_hint(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vline(stderr, "hint: ", fmt, args, "\n");
    va_end(args);
}

void app_note(const char *fmt, ...)
{
    app_flush(); // first: a look at the terminal changes errno
    const bool colour = app_colour(stderr);
    va_list args;
    va_start(args, fmt);
    vline(stderr, colour ? "\033[2m" : "", fmt, args, colour ? "\033[0m\n" : "\n");
    va_end(args);
}

int app_exit_code(coli_status status)
{
    switch (status) {
    case COLI_OK:
        return APP_OK;
    case COLI_E_CANCELLED:
        return APP_INTERRUPTED;
    case COLI_E_INVALID:
    case COLI_E_NOTFOUND:
    case COLI_E_FORMAT:
    case COLI_E_UNSUPPORTED:
    case COLI_E_EXISTS:
        return APP_BAD;
    default:
        return APP_FAILED;
    }
}

int app_fail(coli_status status)
{
    const char *message = coli_error_message();
    if (status == COLI_E_CANCELLED)
        app_error("stopped");
    else
        app_error("%s", *message ? message : coli_status_text(status));
    return app_exit_code(status);
}

void *app_realloc(void *p, size_t n, size_t size)
{
    size_t n_bytes;
    void *bigger = NULL;
    if (!__builtin_mul_overflow(n, size, &n_bytes)) bigger = realloc(p, n_bytes ? n_bytes : 1);
    if (bigger) return bigger;
    app_error("out of memory: %zu items of %zu bytes", n, size);
    exit(APP_FAILED);
}

void *app_alloc(size_t n, size_t size)
{
    void *p = app_realloc(NULL, n, size);
    memset(p, 0, n * size);
    return p;
}

/* ---- the answer ---------------------------------------------------------------------------- */

/* A model can write escape sequences.  A terminal shows them; a file gets the bytes. */
static bool put_text(FILE *stream, const char *text, size_t n)
{
    const bool put = app_system_is_terminal(stream) ? app_put_shown(stream, text, n, "\n\t")
                                                    : fwrite(text, 1, n, stream) == n;
    return (stream == stdout ? app_flush() : fflush(stream) == 0) && put;
}

static void end_thinking(app_answer *a)
{
    if (!a->thinking) return;
    if (atomic_exchange(&on_interrupt.colour, false)) fputs("\033[0m", stderr);
    if (a->line_open_err) fputc('\n', stderr);
    fflush(stderr);
    a->thinking = a->line_open_err = false;
}

bool app_answer_piece(void *answer, const coli_piece *piece)
{
    app_answer *a = answer;
    const char *text = piece->text;
    const size_t n = piece->n_bytes;
    if (piece->thinking) {
        if (n && !a->thinking && app_colour(stderr)) {
            atomic_store(&on_interrupt.colour, true);
            fputs("\033[2m", stderr);
        }
        if (n) {
            a->thinking = a->any_thinking = true;
            a->line_open_err = text[n - 1] != '\n';
            put_text(stderr, text, n);
        }
        return app_interrupts() == 0;
    }
    end_thinking(a);
    if (n) {
        a->any_answer = true;
        a->line_open_out = text[n - 1] != '\n';
        if (!put_text(stdout, text, n)) a->write_failed = true;
    }
    return !a->write_failed && app_interrupts() == 0;
}

void app_answer_end(app_answer *a)
{
    end_thinking(a);
    if (a->line_open_out && !a->write_failed) fputc('\n', stdout);
    a->line_open_out = false;
    if (!app_flush()) a->write_failed = true;
}

void app_footer(const coli_result *r)
{
    app_note("%u tok · %.1f tok/s · prefill %u tok · TTFT %.2f s", r->n_generated, r->tok_s,
             r->n_prefill, r->ttft_s);
}
