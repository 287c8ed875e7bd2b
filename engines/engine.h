/* engine.h - what a model family must provide.  src/run knows an engine only through this table;
 * engines.c lists them all. */
#ifndef COLI_ENGINE_H
#define COLI_ENGINE_H

#include "../libcoli/src/base/alloc.h"
#include "../libcoli/src/base/threads.h"
#include "../libcoli/src/math/kernels.h"
#include "../libcoli/src/model/json.h"

/* -- what a family's container holds ------------------------------------------------------------ */

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
    const char *const *prefixes;      // tried in order before a tensor's name; ends with NULL
    const char *const *skip_prefixes; // checkpoint tensors that are recognised and not needed; NULL-ended
    uint64_t n_param, n_param_active; // of the tensors above
    const char *head;                 // the tensor whose products are the logits
} coli__model_spec;

void coli__model_spec_finish(coli__model_spec *spec);

/* What the workers' time is charged to (coli__pool_phase).  OUTSIDE: the caller, between forward
 * passes; OTHER: embedding, norms, residuals. */
enum {
    COLI_PHASE_OUTSIDE = COLI_PHASE_WAITING + 1,
    COLI_PHASE_OTHER,
    COLI_PHASE_ROUTER,
    COLI_PHASE_EXPERTS,
    COLI_PHASE_SHARED,
    COLI_PHASE_DELTANET,
    COLI_PHASE_ATTENTION,
    COLI_PHASE_PROJECTIONS,
    COLI_PHASE_HEAD,
    COLI_PHASE_SAMPLING
};

/* -- a running model ---------------------------------------------------------------------------- */

struct coli__container;

/* What forward reports besides logits; every pointer may be NULL. */
typedef struct coli__probe {
    int32_t *expert_ids; // (n_layer, n_tok, n_expert_used) best first
    float *expert_w;     // (n_layer, n_tok, n_expert_used) renormalised weights
    float *mixer;        // (n_layer, n_tok, d_model) residual stream after attention or DeltaNet
    float *moe;          // (n_layer, n_tok, d_model) residual stream after the MoE
} coli__probe;

typedef struct coli__forward_args {
    const int32_t *ids; // (n_tok) checked against the vocabulary by the caller
    uint32_t n_tok;     // 1 .. the state's max_chunk
    uint32_t logits_from; // rows logits_from..n_tok-1 get logits; n_tok for none
    float *logits;      // (n_tok - logits_from, n_vocab)
    const coli__probe *probe; // NULL for none
} coli__forward_args;

/* The numbers every family has. */
typedef struct coli__shape {
    uint32_t n_layer, n_moe_layer, d_model, n_vocab, n_expert, n_expert_used, d_ff, n_ctx_max;
} coli__shape;

typedef struct coli__engine {
    const char *name; // "qwen36"
    /* Whether config.json is this family's.  A pure look at model_type. */
    bool (*claims)(const json_t *config);
    /* Check the config and list the tensors it implies. */
    coli_status (*describe)(const json_t *config, coli__model_spec *out);
    /* Bind a container's tensors.  The container outlives the engine's model. */
    coli_status (*open)(const json_t *config, const struct coli__container *container,
                        const coli__kernels *kernels, void **out);
    void (*close)(void *model);
    void (*shape)(const void *model, coli__shape *out);
    /* A sequence's state, with scratch for chunks of up to max_chunk rows and n_worker workers. */
    coli_status (*state_create)(void *model, uint32_t n_ctx, uint32_t max_chunk, uint32_t n_worker,
                                void **out);
    void (*state_destroy)(void *state);
    void (*state_reset)(void *state);
    uint32_t (*state_pos)(const void *state); // tokens fed so far
    uint64_t (*state_bytes)(const void *model, uint32_t n_ctx);
    /* A copy of what cannot be cut back (the recurrent part); attention keys and values stay in the
     * state and are valid up to any earlier position. */
    uint64_t (*snapshot_bytes)(const void *state);
    void (*snapshot_save)(const void *state, void *out);
    void (*snapshot_load)(void *state, const void *in, uint32_t pos); // pos: where it was saved
    /* Feed rows.  The caller has checked n_ctx.  No allocation.  On error the state is spoilt until
     * reset or snapshot_load.  Called in the phase COLI_PHASE_OTHER. */
    coli_status (*forward)(void *state, coli__pool *pool, const coli__forward_args *args);
} coli__engine;

extern const coli__engine coli__engine_qwen36;

/* The family that claims this config; E_UNSUPPORTED names model_type and the known families. */
coli_status coli__engine_for(const json_t *config, const coli__engine **out);
const coli__engine *coli__engine_by_name(const char *name); // NULL when unknown

#endif
