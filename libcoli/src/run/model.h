/* model.h - what the run layer shares about an open model. */
#ifndef COLI_RUN_MODEL_H
#define COLI_RUN_MODEL_H

#include <pthread.h>

#include "../../../engines/engine.h"
#include "../model/container.h"
#include "../moe/budget.h"
#include "../moe/router.h"
#include "../moe/store.h"
#include "../moe/tier.h"
#include "companions.h"

struct coli_model {
    /* immutable after open */
    coli__container *container;
    bool is_of_source; // imagined, by the tensors of what would be converted
    const coli__engine *engine;
    void *weights; // the engine's
    coli__numa numa;
    const coli__kernels *kernels;
    coli__devices *devices;   // NULL: none
    coli__tier *tier;         // on them
    coli__store *store;       // NULL: all experts are mapped
    coli__ram_budget ram;     // how that was decided
    uint64_t available_bytes; // of memory, then; 0: nobody can tell
    uint64_t resident_bytes;  // trunk and one sequence
    uint64_t huge_bytes;      // of the trunk, copied into huge pages
    char *heat_path;          // to be written at close; NULL: not
    uint64_t heat_tokens;     // that the file had when it was read
    coli__shape shape;
    coli__companions beside;
    uint64_t n_param, n_param_active;
    uint64_t token_expert_bytes, token_trunk_bytes, token_head_bytes; // that a token reads
    uint64_t n_mac_body, n_mac_head; // multiply-adds of a token with weights
    uint64_t n_mac_experts;          // of n_mac_body, with routed experts
    char *name;                      // the directory's last component
    char expert_format[32], trunk_format[32];
    const coli__ct_tensor *embedding; // NULL: it is the head, too

    /* guarded by mu: one forward pass at a time */
    pthread_mutex_t mu;
    coli__pool *pool;
    coli__route_totals route; // of all its sessions
};

/* What a session asked for; E_INVALID. */
coli_status coli__router_create(coli_model *m, const coli_route_opts *opts, coli__router **out);

bool coli__model_is_stop(const coli_model *m, int32_t id);

/* Open as much of a zeroed model as says what it is and what would be where: container, engine, shape and
 * sizes; devices that hold nothing, but with the memory reserved that the trunk would take if they were
 * faster than the processor.  No threads, tokenizer or store.  coli_model_close it, also after a
 * failure.
 *   formats  where there is no model.coli: as if config.json's model, the GGUF file or the container of
 *            merged experts had been converted to these; NULL: that is an error */
coli_status coli__model_look(coli_model *m, const char *dir, const coli_model_opts *o,
                             const coli__formats *formats);
/* How many experts of each layer memory holds, beside the trunk and one session like this: fills ram and
 * resident_bytes, the numbers that zeros in `session` stand for, and what it takes.  The model is looked
 * at as far as coli__model_look opens it, without devices. */
coli_status coli__model_plan_memory(coli_model *m, const coli_model_opts *o,
                                    coli_session_opts *session, coli__state_bytes *state);
/* The trunk into memory, for who wants it there before the first token (load.c).  E_CANCELLED. */
coli_status coli__model_load_trunk(coli_model *m, const coli_model_opts *o);
/* Everything but the routed experts: in memory whatever happens. */
uint64_t coli__model_trunk_bytes(const coli__container *container);

#endif
