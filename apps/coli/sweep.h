/* sweep.h - what `coli replay` computes: policies, with their settings, at several residencies; and
 * the ways of showing it. */
#ifndef COLI_SWEEP_H
#define COLI_SWEEP_H

#include <stdio.h>

#include "coli/coli.h"

/* A mean over prompts, and half the width of its 95 % interval. */
typedef struct sweep_mean {
    double mean, half;
} sweep_mean;

/* (n) values; one value has no interval, and half is 0. */
sweep_mean sweep_mean_of(const double *values, uint32_t n);

/* A policy with its settings: one line of the plot. */
typedef struct sweep_variant {
    coli_replay_policy policy;
    uint32_t cap, drain, min_count; // 0 where they mean nothing to the policy
    uint32_t allowance;             // uploads per layer, prompt and answer together; SWEEP_ANY
    char label[64];                 // "replan cap 24"
} sweep_variant;
#define SWEEP_ANY UINT32_MAX

/* A variant at one residency. */
typedef struct sweep_point {
    const sweep_variant *variant;
    uint32_t n_resident;       // of each layer
    sweep_mean hit;            // share of the answer's experts in VRAM
    sweep_mean gain;           // hit less that of the reference, prompt by prompt
    sweep_mean prompt_uploads; // experts per layer and prompt
    sweep_mean token_uploads;  // per layer and token of the answer
    sweep_mean token_ms, ttft_ms;
    double pay_back; // tokens until its TTFT is earned back against the reference; INFINITY: never
} sweep_point;

typedef struct sweep {
    coli_replay_info traces;
    coli_replay_machine machine;
    const char *path;
    sweep_variant reference; // of gains and pay-back
    uint32_t n_variant, n_residency;
    sweep_variant *variants;
    uint32_t *n_resident; // (n_residency)
    sweep_point *points;  // (n_residency, n_variant)
} sweep;

double sweep_share(const sweep *s, uint32_t n_resident); // of the experts, 0 to 1
/* MB moved for so many experts of each layer. */
double sweep_mb(const sweep *s, double per_layer);

void sweep_print_table(const sweep *s);
void sweep_print_csv(const sweep *s, FILE *out);
/* Hit rates over residencies; with one residency and several allowances, over what is moved. */
void sweep_print_svg(const sweep *s, FILE *out);

/* The words of --machine over what *m holds; false when one is not understood, and *word is it. */
bool sweep_machine_words(const char *text, coli_replay_machine *m, char *word, size_t cap);

#endif
