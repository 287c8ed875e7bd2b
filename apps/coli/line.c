/* line.c - see line.h.
 *
 * Paste.  A terminal in bracketed-paste mode sends ESC[200~ text ESC[201~.  The first sequence is
 * bound to a function that reads on to the second and inserts what lies between, newlines and all;
 * libedit shows a buffer with newlines as several lines, and Enter hands over the whole.  Ctrl-C
 * in between drops the paste and the line: a paste whose end got lost must not be a trap.
 *
 * Ctrl-C.  The terminal turns it into SIGINT.  libedit's own signal handling would kill the whole
 * process group, and any thread may be the one that takes a signal, so handlers only write to a
 * pipe. The key reader below waits for the terminal and for that pipe, and returns the character
 * ^C, which is bound to a function: a line with something on it is dropped, an empty one is
 * remembered, and the second time in a row leaves.  SIGWINCH and SIGCONT take the same way and
 * redraw the line.
 *
 * History.  One file, mode 0600.  After every line it is read again, the line added, and the whole
 * written to a new file that then takes its place; a lock on its directory keeps two conversations
 * apart, so neither loses a line.  What is there and no history of libedit's stays as it is. */
#include "line.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "progress.h"
#include "terminal.h"

enum { HISTORY_LINES = 1000, KEY_CTRL_C = 3 };

static const wchar_t PASTE_END[] = L"\033[201~";

struct line_editor {
    EditLine *el;
    History *history;
    const char *prompt;
    char *history_path;
    bool paste_mode; // the terminal was asked for bracketed paste
    bool dropped;    // ^C ended this line
    int n_empty_interrupt;
    double stopped_s; // when Ctrl-C stopped the answer above this line; 0: it did not
};

/* Set by handlers, looked at where they can arrive. */
static volatile sig_atomic_t resized, continued;

/* The ends of a pipe, and what handlers do to it: the other end becomes readable. */
static struct {
    atomic_int in;
    int out;
} wake;

static void wake_up(void)
{
    const int saved = errno;
    if (write(atomic_load(&wake.in), "", 1) < 0) errno = saved; // full: it wakes already
}

static bool open_wake(void)
{
    int ends[2];
    if (pipe(ends) != 0) return false;
    for (int i = 0; i < 2; i++) {
        fcntl(ends[i], F_SETFL, O_NONBLOCK);
        fcntl(ends[i], F_SETFD, FD_CLOEXEC);
    }
    wake.out = ends[0];
    atomic_store(&wake.in, ends[1]);
    return true;
}

static void drain_wake(void)
{
    char bytes[64];
    while (read(wake.out, bytes, sizeof bytes) > 0) {
    }
}

static void on_resize(int n)
{
    (void)n;
    resized = 1;
    wake_up();
}

static void on_continue(int n)
{
    (void)n;
    continued = 1;
    wake_up();
}

static char *show_prompt(EditLine *el)
{
    line_editor *line = NULL;
    el_get(el, EL_CLIENTDATA, &line);
    static char text[32];
    snprintf(text, sizeof text, "%s", line->prompt);
    return text;
}

/* ---- keys ---------------------------------------------------------------------------------- */

/* Wait for a byte.  1: there is one; 0: Ctrl-C came instead; -1: the terminal is gone. */
static int wait_for_byte(line_editor *line, int fd)
{
    for (;;) {
        struct pollfd wait[] = {{.fd = fd, .events = POLLIN}, {.fd = wake.out, .events = POLLIN}};
        if (poll(wait, 2, -1) < 0 && errno != EINTR) return -1;
        if (wait[1].revents) drain_wake();
        if (app_interrupts()) {
            app_interrupt_count();
            return 0;
        }
        if (continued) { // a stopped process comes back to a terminal that somebody else has set up
            el_set(line->el, EL_PREP_TERM, 0);
            el_set(line->el, EL_PREP_TERM, 1);
        }
        if (resized) el_resize(line->el);
        if (resized || continued) el_set(line->el, EL_REFRESH);
        resized = continued = 0;
        if (wait[0].revents) return 1;
    }
}

/* libedit's source of characters: UTF-8 from the terminal; what is no UTF-8 becomes U+FFFD. */
static int read_key(EditLine *el, wchar_t *out)
{
    line_editor *line = NULL;
    el_get(el, EL_CLIENTDATA, &line);
    FILE *in = NULL;
    el_get(el, EL_GETFP, 0, &in);
    const int fd = fileno(in);
    mbstate_t state = {0};
    for (;;) {
        const int ready = wait_for_byte(line, fd);
        if (ready == 0) {
            *out = KEY_CTRL_C;
            return 1;
        }
        char byte;
        if (ready < 0 || read(fd, &byte, 1) != 1) return 0;
        const size_t n = mbrtowc(out, &byte, 1, &state);
        if (n == (size_t)-2) continue;
        if (n == (size_t)-1) *out = 0xFFFD;
        return 1;
    }
}

static unsigned char drop_line(EditLine *el, bool empty)
{
    line_editor *line = NULL;
    el_get(el, EL_CLIENTDATA, &line);
    line->n_empty_interrupt = empty ? line->n_empty_interrupt + 1 : 0;
    line->dropped = true;
    return CC_NEWLINE; // ends el_gets; the text is thrown away there
}

static unsigned char on_interrupt_key(EditLine *el, int key)
{
    (void)key;
    const LineInfoW *info = el_wline(el);
    return drop_line(el, info->lastchar == info->buffer);
}

static unsigned char on_newline_key(EditLine *el, int key)
{
    (void)key;
    return el_winsertstr(el, L"\n") == 0 ? CC_REFRESH : CC_ERROR;
}

static bool ends_with(const wchar_t *text, size_t n, const wchar_t *end)
{
    const size_t n_end = wcslen(end);
    return n >= n_end && wmemcmp(text + n - n_end, end, n_end) == 0;
}

static unsigned char on_paste(EditLine *el, int key)
{
    (void)key;
    size_t n = 0, cap = 0;
    wchar_t *text = NULL, c;
    bool complete = false;
    while (!complete && el_wgetc(el, &c) == 1) {
        if (c == KEY_CTRL_C) {
            free(text);
            return drop_line(el, false);
        }
        if (n + 2 > cap) text = app_realloc(text, cap = cap ? 2 * cap : 1024, sizeof *text);
        if (c == L'\0') continue;
        if (c == L'\n' && n && text[n - 1] == L'\r') n--; // CR LF
        text[n++] = c;
        complete = ends_with(text, n, PASTE_END);
    }
    if (complete) n -= wcslen(PASTE_END);
    for (size_t i = 0; i < n; i++)
        if (text[i] == L'\r') text[i] = L'\n'; // terminals send newlines as CR
    while (n && text[n - 1] == L'\n') n--;     // a copied line brings its end along; Enter is yours
    bool inserted = true;
    if (n) {
        text[n] = 0;
        inserted = el_winsertstr(el, text) == 0;
    }
    free(text);
    return inserted ? CC_REFRESH : CC_ERROR;
}

/* ---- history ------------------------------------------------------------------------------- */

/* mkdir -p, private: what people say to a model is nobody else's business. */
static bool make_dirs(char *path)
{
    for (char *slash = strchr(path + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash) *slash = 0;
        const bool made = mkdir(path, 0700) == 0 || errno == EEXIST;
        if (!slash) return made;
        *slash = '/';
        if (!made) return false;
    }
}

char *line_history_path(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char dir[PATH_MAX];
    size_t n;
    if (state && state[0] == '/')
        n = (size_t)snprintf(dir, sizeof dir, "%s/coli", state);
    else if (home && home[0] == '/')
        n = (size_t)snprintf(dir, sizeof dir, "%s/.local/state/coli", home);
    else
        return NULL;
    if (n + sizeof "/history" > sizeof dir || !make_dirs(dir)) return NULL;
    char *path = app_alloc(n + sizeof "/history", 1);
    sprintf(path, "%s/history", dir);
    return path;
}

static History *new_history(void)
{
    HistEvent event;
    History *fresh = history_init();
    if (!fresh) return NULL;
    history(fresh, &event, H_SETSIZE, HISTORY_LINES);
    history(fresh, &event, H_SETUNIQUE, 1);
    return fresh;
}

/* A history in memory that holds what the file does, or NULL: no file is an empty one; something
 * that libedit did not write is none. */
static History *load_history(const char *path)
{
    struct stat st;
    HistEvent event;
    History *loaded = new_history();
    if (!loaded) return NULL;
    if (stat(path, &st) != 0 && errno == ENOENT) return loaded;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) &&
        (st.st_size == 0 || history(loaded, &event, H_LOAD, path) >= 0))
        return loaded;
    history_end(loaded);
    return NULL;
}

/* From here on nothing is remembered; said once. */
static void forget_file(line_editor *line, const char *why)
{
    app_error("warning: %s: %s; lines are not remembered", line->history_path, why);
    free(line->history_path);
    line->history_path = NULL;
}

static const char not_ours[] = "not a history of this program";

/* Replace the file by itself and one more line; NULL, or what went wrong. */
static const char *add_to_file(const char *path, const char *text)
{
    char temporary[PATH_MAX];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.%ld", path, (long)getpid()) >=
        sizeof temporary)
        return strerror(ENAMETOOLONG);
    HistEvent event;
    History *all = load_history(path);
    if (!all) return not_ours;
    history(all, &event, H_ENTER, text);
    const mode_t mask = umask(0077);
    const bool saved = history(all, &event, H_SAVE, temporary) >= 0;
    umask(mask);
    history_end(all);
    if (saved && rename(temporary, path) == 0) return NULL;
    const int reason = errno;
    unlink(temporary);
    return strerror(reason);
}

static void remember(line_editor *line, const char *text)
{
    HistEvent event;
    history(line->history, &event, H_ENTER, text);
    if (!line->history_path) return;
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%s", line->history_path);
    char *slash = strrchr(dir, '/');
    if (slash) slash[slash == dir] = 0;
    const int lock = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const char *why = lock < 0 || flock(lock, LOCK_EX) != 0 ? strerror(errno) : NULL;
    if (!why) why = add_to_file(line->history_path, text);
    if (lock >= 0) close(lock); // and unlocks
    if (why) forget_file(line, why);
}

/* Start with the lines of earlier conversations. */
static void open_history(line_editor *line, const char *path)
{
    line->history_path = realpath(path, NULL); // a link stays one, what it leads to changes
    if (!line->history_path) line->history_path = strdup(path);
    if (line->history_path) line->history = load_history(line->history_path);
    if (line->history_path && !line->history) forget_file(line, not_ours);
}

/* ---- the editor ---------------------------------------------------------------------------- */

static void bind_keys(line_editor *line)
{
    EditLine *el = line->el;
    // the wide form: the narrow one copies the texts and never frees them
    el_wset(el, EL_ADDFN, L"coli-interrupt", L"Drop the line; twice: leave", on_interrupt_key);
    el_wset(el, EL_ADDFN, L"coli-newline", L"Start a new line", on_newline_key);
    el_wset(el, EL_ADDFN, L"coli-paste", L"Insert what is pasted", on_paste);
    el_set(el, EL_BIND, "^C", "coli-interrupt", NULL);
    el_set(el, EL_BIND, "\\e\r", "coli-newline", NULL);
    el_set(el, EL_BIND, "\\e\n", "coli-newline", NULL);
    el_set(el, EL_BIND, "\\e[200~", "coli-paste", NULL);
}

line_editor *line_open(const char *prompt, const char *history_path)
{
    line_editor *line = app_alloc(1, sizeof *line);
    line->prompt = prompt;
    if (history_path) open_history(line, history_path);
    FILE *out = isatty(STDOUT_FILENO) ? stdout : stderr;
    line->el = el_init("coli", stdin, out, stderr);
    if (!line->history) line->history = new_history();
    if (!line->el || !line->history || !open_wake()) {
        line_close(line);
        return NULL;
    }
    el_set(line->el, EL_CLIENTDATA, line);
    el_set(line->el, EL_PROMPT, show_prompt);
    el_set(line->el, EL_SIGNAL, 0);
    el_set(line->el, EL_HIST, history, line->history);
    el_set(line->el, EL_EDITOR, "emacs");
    el_set(line->el, EL_GETCFN, read_key);
    el_source(line->el, NULL); // the user's own ~/.editrc
    bind_keys(line);
    app_interrupt_notify(wake_up);
    line->paste_mode = app_colour(out);
    struct sigaction action = {.sa_handler = on_resize, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGWINCH, &action, NULL);
    action.sa_handler = on_continue;
    sigaction(SIGCONT, &action, NULL);
    return line;
}

static void paste_mode(const line_editor *line, bool on)
{
    FILE *out = NULL;
    if (!line->paste_mode) return;
    el_get(line->el, EL_GETFP, 1, &out);
    fputs(on ? "\033[?2004h" : "\033[?2004l", out);
    fflush(out);
}

/* Whether Ctrl-C now is the second of two, the first of which stopped an answer. */
static bool is_twice(const line_editor *line)
{
    return line->stopped_s > 0 && app_clock_s() - line->stopped_s < LINE_TWICE_S;
}

line_event line_read(line_editor *line, bool after_stop, char **text)
{
    *text = NULL;
    line->n_empty_interrupt = 0;
    line->stopped_s = after_stop ? app_clock_s() : 0;
    if (app_interrupt_count() > 0 && after_stop) return LINE_LEAVE;
    line_event event = LINE_END;
    for (;;) {
        int n = 0;
        line->dropped = false;
        el_set(line->el, EL_PREP_TERM,
               1); // before the prompt shows, or early keys are echoed twice
        paste_mode(line, true);
        const char *typed = el_gets(line->el, &n);
        paste_mode(line, false);
        if (line->dropped) {
            fputc('\n', stderr);
            event = LINE_LEAVE;
            if (line->n_empty_interrupt >= 2 || (line->n_empty_interrupt && is_twice(line))) break;
            line->stopped_s = 0;
            if (line->n_empty_interrupt == 1)
                app_note("Ctrl-C again leaves, so does Ctrl-D; :help helps");
            continue;
        }
        event = LINE_END;
        if (!typed || n <= 0) break;
        if (typed[n - 1] == '\n') n--;
        *text = app_alloc((size_t)n + 1, 1);
        memcpy(*text, typed, (size_t)n);
        if (strspn(*text, " \t\n") < (size_t)n) remember(line, *text);
        event = LINE_TEXT;
        break;
    }
    return event;
}

void line_close(line_editor *line)
{
    if (!line) return;
    app_interrupt_notify(NULL); // the pipe stays, for a handler that is about to use it
    if (line->el) el_end(line->el);
    if (line->history) history_end(line->history);
    free(line->history_path);
    free(line);
}
