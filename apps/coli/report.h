/* report.h - figures of a run as JSON, for `coli run` and `coli bench`. */
#ifndef COLI_REPORT_H
#define COLI_REPORT_H

#include <jansson.h>

#include "open_model.h"

/* Hits of devices among uses: part / (part + other); 0 without any. */
double report_share(uint64_t part, uint64_t other);

/* Adds `devices`, an array, and `vram`, what they did since the model was opened; null without
 * devices. */
void report_add_devices(json_t *root, const coli_model *model);

/* Adds `ram`: which experts memory holds, and what reading the others took; null when all are mapped. */
void report_add_store(json_t *root, const coli_model *model);

/* Adds `route`: what cache-aware routing did since the model was opened; null when nothing was metered. */
void report_add_route(json_t *root, const coli_model *model);

/* One turn: what was said (NULL for nothing) and how long it took. */
json_t *report_turn(const app_engine *engine, const coli_result *r, const char *answer,
                    size_t n_answer, const char *thinking, size_t n_thinking);

#endif
