/* progress.h - how far long work has come: a bar on a terminal, a line every few seconds elsewhere.
 */
#ifndef APP_PROGRESS_H
#define APP_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct app_progress {
    const char *verb; // "convert"
    const char *unit; // what is counted; NULL: bytes
    bool bar;         // draw on one line
    bool drawn;       // a bar stands on the line
    double start_s, last_s;
    uint64_t done, total;
} app_progress;

void app_progress_start(app_progress *p, const char *verb);
/* A coli_progress_fn with an app_progress as user; false after Ctrl-C. */
bool app_progress_step(void *progress, const char *what, uint64_t done, uint64_t total);
/* A line that does not tear the bar: the `note` of coli_convert_opts. */
void app_progress_note(void *progress, const char *line);
/* Clears the bar; with `finished`, a last line says how much was done in what time. */
void app_progress_end(app_progress *p, bool finished);

/* Seconds on a clock that never goes back. */
double app_clock_s(void);

#endif
