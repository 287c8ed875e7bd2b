/* session.h - what generate.c and chat.c know of a session. */
#ifndef COLI_RUN_SESSION_H
#define COLI_RUN_SESSION_H

#include <stdatomic.h>

#include "../math/sample.h"
#include "model.h"

struct coli_session {
    coli_model *m;        // immutable
    void *state;          // the engine's
    coli__router *router; // NULL: plain routing
    uint32_t n_ctx, n_chunk;
    uint32_t kv; // coli_kv

    int32_t *ids;     // (n_ctx) the tokens whose keys and values the state holds
    uint32_t pos;     // tokens fed: the sequence is ids[0..pos)
    uint32_t n_valid; // ids[pos..n_valid) were fed before a restore went back; still valid until
                      // overwritten

    float *logits; // (n_vocab) of token pos-1
    bool has_logits;

    struct coli__importance *importance; // while coli_imatrix_make feeds; NULL otherwise

    /* coli_session_on_route */
    coli_route_fn on_route; // NULL: nobody looks
    void *on_route_user;
    coli__probe route; // buffers for n_chunk rows

    coli__elapsed elapsed; // of all feeding since the session was made

    /* generation */
    coli__rng rng;
    void *sample_scratch;
    uint32_t *seen;  // (n_vocab) times each id stands in ids[0..pos)
    uint32_t *made;  // (n_vocab) times each id was made by the present coli_generate
    coli__buf piece; // grown at create to the longest token, so that streaming takes no memory

    atomic_bool cancel; // any thread
};

/* A turn begins: where routing depends on where the experts are, the next chunk looks again. */
void coli__session_turn(coli_session *s);

/* Memory that coli_session_create takes for these options on this model with so many compute threads,
 * with a store or without, to within a few KiB; of the model only engine, weights and shape are looked
 * at.  E_INVALID for options that create refuses.  The numbers that zeros in the options stand for are
 * filled in. */
coli_status coli__session_bytes(const coli_model *m, coli_session_opts *opts, uint32_t n_worker,
                                bool with_store, coli__state_bytes *out);

/* What tokens are to those before and behind them.  A prompt may be fed in several parts: whoever plans by
 * it wants it from its first token to its last. */
typedef struct coli__part {
    bool of_prompt; // else a token to be decoded
    bool begins, ends;
} coli__part;

/* coli_session_feed without lowering the cancel flag first, and as a part of the present turn. */
coli_status coli__session_feed(coli_session *s, const int32_t *ids, size_t n_ids, coli__part part);

/* How many of these ids, from the start, the session holds keys and values of. */
uint32_t coli__session_common(const coli_session *s, const int32_t *ids, size_t n_ids);

uint32_t coli__snapshot_pos(const coli_snapshot *snapshot);

/* The caller's sampling, or the model's; checked. */
coli_status coli__sampling_take(const coli_session *s, const coli_sampling *given,
                                coli_sampling *out);

/* Generate; the ids made (stop token excluded) go to out_ids (n_ctx) unless it is NULL. */
coli_status coli__generate(coli_session *s, const coli_generate_opts *o, const coli_sampling *p,
                           coli_piece_fn on_piece, void *user, uint64_t start_ns, int32_t *out_ids,
                           coli_result *r);

#endif
