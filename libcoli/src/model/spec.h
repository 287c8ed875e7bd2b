/* spec.h - what a model consists of: the tensors and experts that its family derives from config.json.
 *
 * Families are known to the layers above.  Code here that needs a description is given a
 * coli__describe_fn. */
#ifndef COLI_MODEL_SPEC_H
#define COLI_MODEL_SPEC_H

#include "json.h"

typedef enum coli__role {
    COLI_ROLE_VECTOR,  // norms, convolution, decay: always f32
    COLI_ROLE_PRECISE, // small matrices that decide (router, gates): bf16 if the source is, else f32
    COLI_ROLE_TRUNK,   // dense matrices: the converter's --trunk format
    COLI_ROLE_EMBED    // the embedding, read by rows: the --trunk format
} coli__role;

/* One tensor outside the routed experts.  `name` is its name in the container and, behind one of
 * the family's prefixes, in the checkpoint.  A vector has n_out 1 and n_in numbers, whatever the
 * checkpoint's shape. */
typedef struct coli__tensor_spec {
    char name[96];
    uint32_t n_out, n_in;
    coli__role role;
} coli__tensor_spec;

/* The routed experts of one layer: gate and up (d_ff, d_model), down (d_model, d_ff).
 * In the checkpoint either fused (`<prefix>gate_up_proj`, `<prefix>down_proj`) or one by one
 * (`<prefix>{e}.gate_proj.weight`, ...). */
typedef struct coli__expert_spec {
    char prefix[96]; // "layers.0.mlp.experts."
    uint32_t layer, n_expert, d_model, d_ff;
} coli__expert_spec;

typedef struct coli__model_spec {
    coli__tensor_spec *tensors; // owned
    uint32_t n_tensor;
    coli__expert_spec *experts; // owned
    uint32_t n_expert_layer;
    const char *const *prefixes; // tried in order before a tensor's name; ends with NULL
    const char *const
        *skip_prefixes; // checkpoint tensors that are recognised and not needed; NULL-ended
    uint64_t n_param, n_param_active; // of the tensors above
    const char *head;                 // the tensor whose products are the logits
} coli__model_spec;

void coli__model_spec_finish(coli__model_spec *spec);

/* Find the family whose config this is, check it and list what it implies.  *engine is the family's
 * name, static.  On failure *out is empty. */
typedef coli_status (*coli__describe_fn)(const json_t *config, const char **engine,
                                         coli__model_spec *out);

#endif
