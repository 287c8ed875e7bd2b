/* trace.h - recorded routing: which experts the tokens of some prompts used, from files that nobody
 * vouches for.  Format: docs/formats/traces.md. */
#ifndef COLI_MODEL_TRACE_H
#define COLI_MODEL_TRACE_H

#include "../base/error.h"
#include "json.h"
#include "safetensors.h"

/* One prompt and its answer. */
typedef struct coli__trace {
    char *name, *topic;     // topic "" when it has none
    uint32_t n_row;         // tokens
    uint32_t n_prompt;      // of these, the prompt's: the first ones; 0 < n_prompt < n_row
    uint32_t n_layer, n_id; // layers; experts of a row in one layer
    int32_t *ids;           // (n_layer, n_row, n_id) best first, all different in one row
} coli__trace;

/* All of a file.  Layers, experts and experts of a row are the same for each trace. */
typedef struct coli__traces {
    uint32_t n_trace, n_layer, n_expert, n_expert_used;
    coli__trace *traces;
} coli__traces;

/* What of a file to take; zeros: all of it. */
typedef struct coli__trace_part {
    uint32_t n_layer;       // the first layers
    uint32_t n_expert_used; // the best experts of each row
    uint32_t n_expert;      // experts of a layer; 0: one more than the highest that is used
} coli__trace_part;

/* STEM.safetensors, or STEM, with STEM.json beside it.  Finish with coli__traces_finish, also after
 * a failure.  Cost: four bytes of memory per id that is taken. */
coli_status coli__traces_open(const char *path, const coli__trace_part *part, coli__traces *out);
/* The same from what was opened already; `what` stands for the JSON's name in messages. */
coli_status coli__traces_read(const char *what, const json_t *list, const coli__st *st,
                              const coli__trace_part *part, coli__traces *out);
void coli__traces_finish(coli__traces *t);

/* The files that `path` stands for; finish both buffers, also after a failure. */
coli_status coli__traces_paths(const char *path, coli__buf *tensors, coli__buf *json);

/* What is read of a file at most. */
enum {
    COLI__TRACE_MAX = 4096, // prompts
    COLI__TRACE_MAX_ROW = 1 << 20,
    COLI__TRACE_MAX_LAYER = 512,
    COLI__TRACE_MAX_EXPERT = 4096, // of a layer
    COLI__TRACE_MAX_ID = 64        // of a row
};

#endif
