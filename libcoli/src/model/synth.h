/* synth.h - a container of a real model's geometry with random weights: what a benchmark needs,
 * without a download. */
#ifndef COLI_MODEL_SYNTH_H
#define COLI_MODEL_SYNTH_H

#include "container.h"

typedef struct coli__synth_args {
    const char *out; // must not exist
    coli__describe_fn describe;
    const char *like; // "qwen36-35b", "qwen36-122b", "qwen36-397b", "hummingbird"
    uint32_t n_layer, d_model, n_expert, n_expert_used, d_ff, n_vocab; // 0: those of `like`
    coli__wfmt experts, trunk;
    float skew; // 0 .. 16: the router's rows have lengths from 1 down to e^-skew
    uint64_t seed;
    uint32_t n_thread;
    coli__progress_fn progress; // in bytes written; may be NULL
    void *user;
} coli__synth_args;

coli_status coli__synth(const coli__synth_args *args);

#endif
