/* gguf_model.h - what stands between a GGUF file and the model's own tensors.
 *
 * The programs that write GGUF store some tensors of a family otherwise than the checkpoint does:
 * under other names, in another order, or as a function of the weight.  A family (engines/) says
 * how; here it is undone while rows are read, so that everything above sees the checkpoint. */
#ifndef COLI_MODEL_GGUF_MODEL_H
#define COLI_MODEL_GGUF_MODEL_H

#include "gguf.h"

/* What is stored in place of a weight w. */
typedef enum coli__gguf_form {
    COLI_GGUF_AS_IT_IS,
    COLI_GGUF_ONE_PLUS,  // 1 + w
    COLI_GGUF_MINUS_EXP, // -exp(w)
} coli__gguf_form;

/* From index `begin` on, a dimension consists of heads of `width`.  The checkpoint has them group by
 * group (group 0: its n_per_group heads, group 1: ...), the file in turns (head 0 of every group,
 * then head 1 of every group, ...).  width 0: both have the same order. */
typedef struct coli__gguf_heads {
    uint32_t begin, width, n_group, n_per_group;
} coli__gguf_heads;

/* Where a tensor of the model is. */
typedef struct coli__gguf_place {
    char name[COLI_GGUF_MAX_NAME + 1];
    coli__gguf_form form;
    coli__gguf_heads rows, cols; // of a vector: cols
} coli__gguf_place;

typedef struct coli__gguf_family {
    const char *architecture; // the value of general.architecture
    /* Write the config.json that the metadata implies. */
    coli_status (*config)(const coli__gguf *g, coli__buf *out);
    /* Where the tensor with this name (without prefix) is; experts are <prefix>gate_proj, up_proj,
     * down_proj or gate_up_proj.  False for a name that the family does not have. */
    bool (*place)(const coli__gguf *g, const char *name, coli__gguf_place *out);
    /* For tensors that the model does without: a word for what they are; NULL for all others. */
    const char *(*skips)(const coli__gguf *g, const char *tensor_name);
} coli__gguf_family;

/* Find the family of a file; E_UNSUPPORTED names the architecture. */
typedef coli_status (*coli__gguf_family_fn)(const coli__gguf *g, const coli__gguf_family **out);

/* A tensor of the file as the checkpoint would have it. */
typedef struct coli__gguf_view {
    const coli__gguf_tensor *tensor;
    const coli__gguf_tensor *scale; // f32, multiplies the numbers: one, or one per expert; or NULL
    coli__gguf_form form;
    coli__gguf_heads rows, cols;
} coli__gguf_view;

/* Make a view of the tensor at `place`, with the scale that stands beside it ("X.scale" beside
 * "X.weight": what NVFP4 has beyond its blocks).  out->tensor is NULL when there is no tensor. */
coli_status coli__gguf_view_find(const coli__gguf *g, const coli__gguf_place *place,
                                 coli__gguf_view *out);

/* Row `row` of a matrix with n_in columns that begins at element `first` of the tensor: out (n_in).
 * E_NUMERIC for a stored number that no weight can have led to. */
coli_status coli__gguf_view_row(const coli__gguf_view *v, uint64_t first, uint32_t row,
                                uint32_t n_in, float *out);

/* Whether every 32 columns are whole multiples of one scale, and these scales: out (n_in / 32). */
bool coli__gguf_view_has_grid(const coli__gguf_view *v);
void coli__gguf_view_scales(const coli__gguf_view *v, uint64_t first, uint32_t row, uint32_t n_in,
                            float *out);

/* -- the small files (gguf_files.c) ------------------------------------------------------------ */

/* tokenizer.json out of the tokens, merges and types; *found false when the file has none.
 * E_UNSUPPORTED names a tokenizer model or pre-tokenizer that is not known. */
coli_status coli__gguf_tokenizer(const coli__gguf *g, coli__buf *out, bool *found);
/* generation_config.json: the tokens that end an answer, and sampling where the file recommends. */
coli_status coli__gguf_generation(const coli__gguf *g, coli__buf *out);
/* A string as JSON, with its quotes. */
coli_status coli__gguf_json_text(coli__buf *out, coli__gguf_text text);

#endif
