/* line_windows.c - see line.h.  Windows' console edits lines itself and remembers those of this
 * window; so there is no history file, and Alt-Enter belongs to the window.
 *
 * Paste.  The console hands over a line at a time.  What follows it in the same moment is pasted,
 * nobody types that fast: lines are put together while more keys are waiting.
 *
 * Ctrl-C ends the read with nothing and ERROR_OPERATION_ABORTED, also when something stood on the line; the
 * handler runs on another thread and may come a moment later, so it is waited for: it must not stop the
 * answer to the next line.  Ctrl-D ends the read as well, and stands in the text. */
#include "line.h"

#include <io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

#include "progress.h"
#include "terminal.h"

enum { KEY_CTRL_D = 4, READ_CHARS = 4096, HANDLER_WAIT_MS = 1000 };

struct line_editor {
    HANDLE in;
    const char *prompt;
    wchar_t *text; // what was typed so far
    size_t n, cap;
    int n_empty_interrupt;
    double stopped_s; // when Ctrl-C stopped the answer above this line; 0: it did not
};

char *line_history_path(void)
{
    return NULL;
}

line_editor *line_open(const char *prompt, const char *history_path)
{
    (void)history_path;
    line_editor *line = app_alloc(1, sizeof *line);
    line->prompt = prompt;
    line->in = (HANDLE)_get_osfhandle(_fileno(stdin));
    return line;
}

void line_close(line_editor *line)
{
    if (!line) return;
    free(line->text);
    free(line);
}

/* ---- the console --------------------------------------------------------------------------- */

typedef enum piece { PIECE_TEXT, PIECE_LINE, PIECE_CTRL_C, PIECE_CTRL_D, PIECE_GONE } piece;

/* Read on, to the end of a line at most. */
static piece read_piece(line_editor *line)
{
    CONSOLE_READCONSOLE_CONTROL control = {.nLength = sizeof control,
                                           .dwCtrlWakeupMask = 1u << KEY_CTRL_D};
    if (line->cap - line->n < READ_CHARS)
        line->text =
            app_realloc(line->text, line->cap = 2 * line->cap + READ_CHARS, sizeof *line->text);
    DWORD n = 0;
    SetLastError(ERROR_SUCCESS);
    if (!ReadConsoleW(line->in, line->text + line->n, READ_CHARS, &n, &control)) return PIECE_GONE;
    if (n == 0) return GetLastError() == ERROR_OPERATION_ABORTED ? PIECE_CTRL_C : PIECE_GONE;
    line->n += n;
    const wchar_t last = line->text[line->n - 1];
    if (last != L'\n' && last != KEY_CTRL_D) return PIECE_TEXT;
    line->n--;
    if (last == KEY_CTRL_D) return PIECE_CTRL_D;
    if (line->n && line->text[line->n - 1] == L'\r') line->n--;
    return PIECE_LINE;
}

/* Whether keys wait that give characters; the console also keeps those that went up, and the mouse. */
static bool keys_are_waiting(const line_editor *line)
{
    INPUT_RECORD records[256];
    DWORD n = 0;
    if (!PeekConsoleInputW(line->in, records, sizeof records / sizeof *records, &n)) return false;
    for (DWORD i = 0; i < n; i++)
        if (records[i].EventType == KEY_EVENT && records[i].Event.KeyEvent.bKeyDown &&
            records[i].Event.KeyEvent.uChar.UnicodeChar)
            return true;
    return false;
}

/* Until the handler has run. */
static void take_interrupt(void)
{
    for (int ms = 0; ms < HANDLER_WAIT_MS && !app_interrupts(); ms++) Sleep(1);
    app_interrupt_count();
}

/* ---- lines --------------------------------------------------------------------------------- */

static char *typed_text(const line_editor *line) // new memory
{
    const int n = (int)line->n;
    const int n_bytes = n ? WideCharToMultiByte(CP_UTF8, 0, line->text, n, NULL, 0, NULL, NULL) : 0;
    char *text = app_alloc((size_t)n_bytes + 1, 1);
    if (n) WideCharToMultiByte(CP_UTF8, 0, line->text, n, text, n_bytes, NULL, NULL);
    return text;
}

/* Whether Ctrl-C now is the second of two, the first of which stopped an answer. */
static bool is_twice(const line_editor *line)
{
    return line->stopped_s > 0 && app_clock_s() - line->stopped_s < LINE_TWICE_S;
}

static void show_prompt(line_editor *line)
{
    line->n = 0;
    fputs(line->prompt, stderr);
    fflush(stderr);
}

line_event line_read(line_editor *line, bool after_stop, char **text)
{
    *text = NULL;
    line->n_empty_interrupt = 0;
    line->stopped_s = after_stop ? app_clock_s() : 0;
    if (app_interrupt_count() > 0 && after_stop) return LINE_LEAVE;
    for (show_prompt(line);;) {
        switch (read_piece(line)) {
        case PIECE_TEXT:
            break;
        case PIECE_LINE:
            if (keys_are_waiting(line)) {
                line->text[line->n++] = L'\n';
                break;
            }
            app_interrupt_count(); // wine's console does not end the read: that was for the line
            *text = typed_text(line);
            return LINE_TEXT;
        case PIECE_CTRL_C:
            take_interrupt();
            fputc('\n', stderr);
            line->n_empty_interrupt++;
            if (line->n_empty_interrupt >= 2 || is_twice(line)) return LINE_LEAVE;
            line->stopped_s = 0;
            app_note("Ctrl-C again leaves, so does Ctrl-D; :help helps");
            show_prompt(line);
            break;
        case PIECE_CTRL_D:
            if (line->n == 0) return LINE_END;
            break; // something stands there: go on behind it
        case PIECE_GONE:
            return LINE_END;
        }
    }
}
