/* terminal.c - see terminal.h. */
#include "terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "text.h"

static const char *program_name = "coli";

/* ---- Ctrl-C -------------------------------------------------------------------------------- */

/* What a signal handler may touch. */
static struct {
    _Atomic(coli_session *) session; // cancelled by the first Ctrl-C
    atomic_bool counting;            // somebody looks at n
    atomic_uint n;                   // since the last app_interrupt_ call
    atomic_bool colour;              // a dimmed text may be open on stderr
    atomic_int wake_in, wake_out;    // ends of a pipe, 0 until somebody waits
} on_interrupt;

static void interrupted(int signal_number)
{
    (void)signal_number;
    const int saved = errno;
    const unsigned n = atomic_fetch_add(&on_interrupt.n, 1) + 1;
    coli_session *session = atomic_load(&on_interrupt.session);
    if (session && n == 1) {
        coli_session_cancel(session);
    } else if (!atomic_load(&on_interrupt.counting)) {
        const char *end = atomic_load(&on_interrupt.colour) ? "\033[0m\n" : "\n";
        if (write(STDERR_FILENO, end, strlen(end)) < 0) _exit(APP_INTERRUPTED);
        _exit(APP_INTERRUPTED); // everything shown was flushed; nothing else is open
    }
    app_wake();
    errno = saved;
}

void app_wake(void)
{
    const int fd = atomic_load(&on_interrupt.wake_in);
    if (fd > 0 && write(fd, "", 1) < 0) return; // full: it wakes already
}

int app_wake_fd(void)
{
    int ends[2];
    if (!atomic_load(&on_interrupt.wake_in)) {
        if (pipe(ends) != 0) return -1;
        for (int i = 0; i < 2; i++) {
            fcntl(ends[i], F_SETFL, O_NONBLOCK);
            fcntl(ends[i], F_SETFD, FD_CLOEXEC);
        }
        atomic_store(&on_interrupt.wake_out, ends[0]);
        atomic_store(&on_interrupt.wake_in, ends[1]);
    }
    return atomic_load(&on_interrupt.wake_out);
}

void app_woken(void)
{
    char bytes[64];
    while (read(atomic_load(&on_interrupt.wake_out), bytes, sizeof bytes) > 0) {
    }
}

/* The mode first, then the count: one that comes in between is either obeyed or counted. */
static uint32_t interrupt_mode(coli_session *session, bool counting)
{
    atomic_store(&on_interrupt.counting, counting);
    atomic_store(&on_interrupt.session, session);
    return atomic_exchange(&on_interrupt.n, 0);
}

uint32_t app_interrupt_session(coli_session *session)
{
    return interrupt_mode(session, false);
}
uint32_t app_interrupt_count(void)
{
    return interrupt_mode(NULL, true);
}
uint32_t app_interrupts(void)
{
    return atomic_load(&on_interrupt.n);
}

/* ---- start and end ------------------------------------------------------------------------- */

void app_terminal_init(const char *program)
{
    program_name = program;
    /* Text is UTF-8 whatever the user's language; numbers keep their decimal point. */
    if (!setlocale(LC_CTYPE, "C.UTF-8") && !setlocale(LC_CTYPE, "en_US.UTF-8"))
        setlocale(LC_CTYPE, "");
    struct sigaction action = {.sa_handler = interrupted, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    action.sa_handler =
        SIG_IGN; // a write to a closed pipe fails instead, and the work ends in order
    sigaction(SIGPIPE, &action, NULL);
}

const char *app_program_name(void)
{
    return program_name;
}

int app_terminal_finish(int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    if (errno == EPIPE) {
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    app_error("cannot write to stdout: %s", strerror(errno));
    return code ? code : APP_FAILED;
}

/* ---- messages ------------------------------------------------------------------------------ */

bool app_colour(FILE *stream)
{
    const char *no_colour = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fileno(stream)) && !(no_colour && *no_colour) && term &&
           strcmp(term, "dumb") != 0;
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
    free(large);
}

void app_line(FILE *stream, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vline(stream, "", fmt, args, "\n");
    va_end(args);
}

void app_verror(const char *fmt, va_list args)
{
    fflush(stdout);
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
    const bool colour = app_colour(stderr);
    va_list args;
    fflush(stdout);
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
    const bool put = isatty(fileno(stream)) ? app_put_shown(stream, text, n, "\n\t")
                                            : fwrite(text, 1, n, stream) == n;
    return fflush(stream) == 0 && put;
}

static void end_thinking(app_answer *a)
{
    if (!a->thinking) return;
    if (atomic_exchange(&on_interrupt.colour, false)) fputs("\033[0m", stderr);
    if (a->line_open_err) fputc('\n', stderr);
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
    if (fflush(stdout) != 0) a->write_failed = true;
}

void app_footer(const coli_result *r)
{
    app_note("%u tok · %.1f tok/s · prefill %u tok · TTFT %.2f s", r->n_generated, r->tok_s,
             r->n_prefill, r->ttft_s);
}
