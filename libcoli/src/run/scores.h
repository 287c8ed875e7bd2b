/* scores.h - what a model made of items: coli_scores.  scores.c makes and reads them, score_file.c keeps
 * them on the disk, loss.c compares two. */
#ifndef COLI_RUN_SCORES_H
#define COLI_RUN_SCORES_H

#include "tasks.h"

/* Of one item; zero where it is not of that kind. */
typedef struct coli__score {
    double nll, kl;        // text
    uint32_t n_row, n_top; // text, against a base
    size_t rows_at;        // text: of its first row's record; n_id rows
    size_t sums_at;        // choice: of the sum of its first ending
    size_t answer_at;      // exact
} coli__score;

struct coli_scores {
    const coli_tasks *tasks; // borrowed
    char model[33];          // identity
    uint32_t n_vocab;
    bool has_rows, has_base;
    double rest;        // sum over the rows
    uint64_t n_row;     // that are kept
    coli__score *items; // (n_item)
    coli__buf rows;     // records (score_row.h)
    coli__buf sums;     // double: of all endings in turn
    coli__buf answers;  // each NUL-terminated
};

coli_status coli__scores_create(const coli_tasks *tasks, coli_scores **out); // all zero

double coli__score_sum(const coli_scores *s, uint32_t i, uint32_t ending);
const char *coli__score_answer(const coli_scores *s, uint32_t i); // exact

/* Whether a choice is right by one of the three measures of choices; *pick is what was chosen. */
bool coli__score_choice(const coli_scores *s, uint32_t i, coli_measure measure, uint32_t *pick);
bool coli__score_exact(const coli_scores *s, uint32_t i);

/* From the bytes of a file; `what` names them.  Pure. */
coli_status coli__scores_parse(const char *what, const uint8_t *data, size_t n_bytes,
                               const coli_tasks *tasks, coli_scores **out);

#endif
