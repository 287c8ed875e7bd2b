/* model.h - what the run layer shares about an open model. */
#ifndef COLI_RUN_MODEL_H
#define COLI_RUN_MODEL_H

#include <pthread.h>

#include "../../include/coli/coli.h"
#include "../model/container.h"
#include "../model/tokenizer.h"

struct coli_model {
    /* immutable after open */
    coli__container *container;
    const coli__engine *engine;
    void *weights; // the engine's
    const coli__kernels *kernels;
    coli__tok *tok;
    coli__shape shape;
    coli_sampling sampling; // generation_config.json
    int32_t stop_ids[16];
    uint32_t n_stop_id;
    int32_t think_open_id, think_close_id; // -1 when the vocabulary has none
    uint64_t n_param, n_param_active;
    uint64_t token_expert_bytes, token_trunk_bytes, token_head_bytes; // that a token reads
    uint64_t n_mac_body, n_mac_head; // multiply-adds of a token with weights
    char name[128], expert_format[32], trunk_format[32];

    /* guarded by mu: one forward pass at a time */
    pthread_mutex_t mu;
    coli__pool *pool;
};

bool coli__model_is_stop(const coli_model *m, int32_t id);

#endif
