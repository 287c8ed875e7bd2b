/* line.h - read what a person types: libedit with history, and several pasted lines as one text. */
#ifndef COLI_LINE_H
#define COLI_LINE_H

#include <stdbool.h>

typedef struct line_editor line_editor;

typedef enum line_event {
    LINE_TEXT, // *text is what was typed, without the last newline; new memory (free)
    LINE_END,  // Ctrl-D on an empty line, or the terminal went away
    LINE_LEAVE // Ctrl-C twice: see below
} line_event;

/* NULL when the terminal cannot do it.  history_path may be NULL: then nothing is remembered. */
line_editor *line_open(const char *prompt, const char *history_path);
/* Ctrl-C on an empty line leaves the second time in a row.  After an answer that Ctrl-C stopped
 * (after_stop) the next one leaves already, if it comes within LINE_TWICE_S seconds and before
 * anything is typed: whoever presses it twice means it. */
#define LINE_TWICE_S 2.0
line_event line_read(line_editor *line, bool after_stop, char **text);
void line_close(line_editor *line);

/* Where the history of `coli chat` belongs, its directory created; NULL where there is no such
 * place. New memory (free). */
char *line_history_path(void);

#endif
