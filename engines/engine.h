/* engine.h - what a model family must provide.  src/run knows an engine only through this table;
 * engines.c lists them all. */
#ifndef COLI_ENGINE_H
#define COLI_ENGINE_H

#include "../libcoli/src/base/alloc.h"
#include "../libcoli/src/base/threads.h"
#include "../libcoli/src/math/kernels.h"
#include "../libcoli/src/model/gguf_model.h"
#include "../libcoli/src/model/spec.h"
#include "../libcoli/src/moe/phase.h"

/* -- a running model --------------------------------------------------------------------------- */

struct coli__container;
struct coli__tier;
struct coli__router;
struct coli__store;
struct coli__trunk;
struct coli__importance;

/* What forward reports besides logits; every pointer may be NULL. */
typedef struct coli__probe {
    int32_t *expert_ids; // (n_layer, n_tok, n_expert_used) best first
    float *expert_w;     // (n_layer, n_tok, n_expert_used) renormalised weights
    uint8_t *levels;     // (n_layer, n_tok, n_expert_used) coli_level: where each was computed
    uint32_t n_ranked;
    int32_t *ranked; // (n_layer, n_tok, n_ranked) the router's best, with mass or not at all
    float *mass;     // (n_layer, n_tok, n_ranked) their shares of the softmax over all experts
    float *mixer;    // (n_layer, n_tok, d_model) residual stream after attention or DeltaNet
    float *moe;      // (n_layer, n_tok, d_model) residual stream after the MoE
} coli__probe;

/* Time on the thread that feeds. */
typedef struct coli__elapsed {
    uint64_t moe_ns;  // in MoE layers, but for their routers
    uint64_t wait_ns; // of that, waiting for devices
} coli__elapsed;

typedef struct coli__forward_args {
    const int32_t *ids;          // (n_tok) checked against the vocabulary by the caller
    uint32_t n_tok;              // 1 .. the state's max_chunk
    uint32_t logits_from;        // rows logits_from..n_tok-1 get logits; n_tok for none
    float *logits;               // (n_tok - logits_from, n_vocab)
    const coli__probe *probe;    // NULL for none
    coli__elapsed *elapsed;      // what the rows took is added to it; NULL: nobody asks
    struct coli__router *router; // how rows choose their experts; NULL: plainly
    /* What matrices are multiplied with is added up here; NULL: nobody asks.  Experts must be the
     * processor's then. */
    struct coli__importance *importance;
} coli__forward_args;

/* A sequence: of n_ctx tokens at most, with scratch for chunks of up to max_chunk rows and n_worker
 * workers. */
typedef struct coli__state_opts {
    uint32_t n_ctx, max_chunk, n_worker;
    bool kv_f16;     // keys and values in f16, else in f32
    bool with_store; // for state_bytes: experts are read from a store
} coli__state_opts;

/* Memory of one sequence, in bytes. */
typedef struct coli__state_bytes {
    uint64_t kv;      // keys and values of n_ctx tokens
    uint64_t state;   // the recurrent part: the same for any length
    uint64_t scratch; // for the rows of one chunk, and the workers
} coli__state_bytes;

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
    /* Bind a container's tensors.  Container and tier (which may be NULL) outlive the engine's model. */
    coli_status (*open)(const json_t *config, const struct coli__container *container,
                        const coli__kernels *kernels, struct coli__tier *tier, void **out);
    void (*close)(void *model);
    /* Offer the matrices that devices may multiply (moe/trunk.h), before any state is created. */
    coli_status (*offer)(const void *model, struct coli__trunk *trunk);
    void (*shape)(const void *model, coli__shape *out);
    /* A sequence's state.  The store (NULL: experts are mapped) outlives it. */
    coli_status (*state_create)(void *model, const coli__state_opts *opts,
                                struct coli__store *store, void **out);
    /* What state_create takes for that, to within a few KiB, without the rows that travel to devices;
     * UINT64_MAX for what passes 64 bits. */
    void (*state_bytes)(const void *model, const coli__state_opts *opts, coli__state_bytes *out);
    void (*state_destroy)(void *state);
    void (*state_reset)(void *state);
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
extern const coli__gguf_family coli__gguf_qwen36;

/* The family that claims this config; E_UNSUPPORTED names model_type and the known families. */
coli_status coli__engine_for(const json_t *config, const coli__engine **out);
const coli__engine *coli__engine_by_name(const char *name); // NULL when unknown
/* A coli__describe_fn that knows all families. */
coli_status coli__engine_describe(const json_t *config, const char **name, coli__model_spec *out);
/* A coli__gguf_family_fn that knows all families. */
coli_status coli__engine_gguf(const coli__gguf *g, const coli__gguf_family **out);

#endif
