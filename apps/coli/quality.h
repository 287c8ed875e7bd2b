/* quality.h - what `coli bench --quality` measures, and the two ways of showing it. */
#ifndef COLI_QUALITY_H
#define COLI_QUALITY_H

#include "coli/coli.h"
#include "open_model.h"
#include "settings.h"

/* One setting, or the file that stands for it. */
typedef struct quality_side {
    const char *text; // as typed; "" without --compare
    bool is_file;
    app_settings settings;
    char *words; // owned; what the settings point into
    app_engine engine;
    coli_tasks *tasks;
    coli_scores *scores;
    double seconds; // of scoring; 0: it was read
    coli_backend_stats stats;
    coli_route_stats route; // what cache-aware routing exchanged
    char name[128]; // of the model
} quality_side;

/* The two of them: one alone is side[0]. */
typedef struct quality {
    quality_side side[2];
    uint32_t n_side;
    double limit[COLI_N_MEASURE]; // NAN: none
    uint32_t every;
} quality;

/* Fill the limits: the defaults, and what a list like "ppl=1%,kl=none" says.  An exit code. */
int quality_limits(const char *list, double *limit);

/* Whether these scores have anything of a measure. */
bool quality_has(const coli_scores *scores, coli_measure measure);
/* The loss of a measure from side 0 to side 1; false where it cannot be told. */
bool quality_loss(const quality *q, coli_measure measure, coli_loss *out);
/* Over all measures with a limit: any failure fails, anything undecided leaves it so. */
coli_verdict quality_verdict(const quality *q);

void quality_print_text(const quality *q);
void quality_print_json(const quality *q);

enum { QUALITY_FAILED = 3, QUALITY_UNDECIDED = 4 }; // exit codes

#endif
