/* recipe.h - which tensors of a model get which weight format: docs/formats/recipe.md.
 *
 *     # more bits where it hurts
 *     trunk             int8
 *     experts           int4
 *     experts.down      int8     layers 0-3,38
 *     self_attn.*       bf16
 *
 * The last line that matches a tensor decides.  What no line matches is left to whoever asks. */
#ifndef COLI_MODEL_RECIPE_H
#define COLI_MODEL_RECIPE_H

#include "../math/matrix.h"
#include "spec.h"

enum {
    COLI__RECIPE_MAX_BYTES = 1 << 16,
    COLI__RECIPE_MAX_LINES = 1024,
    COLI__RECIPE_MAX_RANGES = 16, // of layers, in one line
};

typedef struct coli__recipe coli__recipe;

/* The text of "small", "balanced" or "exact"; NULL for any other name. */
const char *coli__recipe_preset(const char *name);

/* Pure; `what` names the text in messages, which also give the line.  E_FORMAT. */
coli_status coli__recipe_parse(const char *what, const char *text, size_t n_bytes,
                               coli__recipe **out);
/* A preset by its name, or a file. */
coli_status coli__recipe_open(const char *name_or_path, coli__recipe **out);
void coli__recipe_close(coli__recipe *r); // NULL is fine

/* A line behind all others: "experts", "int4"; two at most.  `what` names it in messages. */
coli_status coli__recipe_add(coli__recipe *r, const char *what, const char *selector,
                             const char *format);

/* What a tensor, or one of the three matrices of a layer's experts, is to a recipe. */
typedef struct coli__recipe_item {
    const char *kind; // coli__tensor_kind: "self_attn.q_proj"; "mlp.experts.gate"
    int32_t layer;    // -1: in none
    bool is_expert;
    coli__role role; // where it is no expert
    bool is_head;
} coli__recipe_item;

coli__recipe_item coli__recipe_tensor(const coli__model_spec *spec, const coli__tensor_spec *s,
                                      char kind[128]);
coli__recipe_item coli__recipe_expert(const coli__expert_spec *s, uint32_t part, char kind[128]);

typedef struct coli__recipe_choice {
    bool is_source; // as the source has it, exactly; fmt is then unused
    coli__wfmt fmt;
} coli__recipe_choice;

/* False when no line matches. */
bool coli__recipe_find(const coli__recipe *r, const coli__recipe_item *item,
                       coli__recipe_choice *out);

/* Whether every line matches something of this model, and gives it a format that it can have;
 * E_FORMAT names the line. */
coli_status coli__recipe_check(const coli__recipe *r, const coli__model_spec *spec);

#endif
