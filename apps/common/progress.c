/* progress.c - see progress.h. */
#include "progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "terminal.h"

static const double BAR_PERIOD_S = 0.1;  // often enough to look alive
static const double LINE_PERIOD_S = 5.0; // rare enough for a log
enum { BAR_CELLS = 24 };

double app_clock_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void app_progress_start(app_progress *p, const char *verb)
{
    const double now = app_clock_s();
    *p = (app_progress){.verb = verb, .bar = app_colour(stderr), .start_s = now, .last_s = now};
}

/* "83 s", "12 min", "3.4 h". */
static void duration(double s, char *out, size_t cap)
{
    if (s < 100)
        snprintf(out, cap, "%.0f s", s);
    else if (s < 6000)
        snprintf(out, cap, "%.0f min", s / 60);
    else
        snprintf(out, cap, "%.1f h", s / 3600);
}

static void clear_bar(app_progress *p)
{
    if (p->drawn) fputs("\r\033[K", stderr);
    fflush(stderr);
    p->drawn = false;
}

static void draw(app_progress *p, double now)
{
    const double share = p->total ? (double)p->done / (double)p->total : 0;
    const double elapsed = now - p->start_s, rate = elapsed > 0 ? (double)p->done / elapsed : 0;
    char left[32] = "?";
    if (rate > 0) duration((double)(p->total - p->done) / rate, left, sizeof left);
    char cells[BAR_CELLS + 1];
    const int full = (int)(share * BAR_CELLS);
    for (int i = 0; i < BAR_CELLS; i++) cells[i] = i < full ? '#' : '.';
    cells[BAR_CELLS] = 0;
    if (p->bar)
        fprintf(stderr, "\r%s [%s] ", p->verb, cells);
    else
        fprintf(stderr, "%s: ", p->verb);
    if (p->unit)
        fprintf(stderr, "%3.0f %% of %" PRIu64 " %s, %s left", share * 100, p->total, p->unit,
                left);
    else
        fprintf(stderr, "%3.0f %% of %.2f GB, %.0f MB/s, %s left", share * 100,
                (double)p->total * 1e-9, rate * 1e-6, left);
    fputs(p->bar ? "\033[K" : "\n", stderr);
    fflush(stderr);
    p->drawn = p->bar;
}

bool app_progress_step(void *progress, const char *what, uint64_t done, uint64_t total)
{
    app_progress *p = progress;
    (void)what;
    p->total = total;
    p->done = done < total ? done : total;
    const double now = app_clock_s();
    if (now - p->last_s >= (p->bar ? BAR_PERIOD_S : LINE_PERIOD_S)) {
        p->last_s = now;
        draw(p, now);
    }
    return app_interrupts() == 0;
}

void app_progress_note(void *progress, const char *line)
{
    clear_bar(progress);
    app_note("%s", line);
}

void app_progress_end(app_progress *p, bool finished)
{
    clear_bar(p);
    const double elapsed = app_clock_s() - p->start_s;
    if (finished && p->unit)
        app_note("%s: %" PRIu64 " %s in %.1f s", p->verb, p->total, p->unit, elapsed);
    else if (finished)
        app_note("%s: %.2f GB in %.1f s, %.0f MB/s", p->verb, (double)p->total * 1e-9, elapsed,
                 elapsed > 0 ? (double)p->total / elapsed * 1e-6 : 0);
}
