/* bench.h - what `coli bench` measures, and the two ways of showing it. */
#ifndef COLI_BENCH_H
#define COLI_BENCH_H

#include "coli/coli.h"
#include "settings.h"

/* Median, minimum and maximum of the rounds. */
typedef struct bench_spread {
    double median, min, max;
} bench_spread;

/* The values are sorted in place. */
bench_spread bench_spread_of(double *values, uint32_t n);

enum { BENCH_EXPERTS, BENCH_TRUNK, BENCH_HEAD, BENCH_N_PART };

/* Weights of one kind in decode. */
typedef struct bench_part {
    const char *name;
    uint64_t n_bytes; // per token
    double seconds;   // per token, on the wall; median of the rounds
    double share;     // of the stream; median of the rounds' own
} bench_part;

typedef struct bench_result {
    coli_model_info model;
    coli_machine_info machine;
    uint32_t n_prefill, n_decode, context, n_round; // 0 tokens: not measured
    uint64_t seed;
    bench_spread stream_gb_s, peak_gmac_s;
    bench_spread prefill_tok_s, decode_tok_s;
    bench_spread prefill_experts_s; // of a prompt's routed experts, on the wall; with phases
    bench_part parts[BENCH_N_PART];
    /* Of the stream, and of the peak; medians of the rounds' own. */
    double decode_share, prefill_share, prefill_experts_share;
    /* With devices: (row, expert) pairs of the measured decodes that they computed, and others; experts
     * that came in while anything was measured. */
    uint64_t n_hit, n_miss, n_swap;
    coli_backend_stats devices; // in the end
    const coli_model *opened;
    bool with_phases;
    coli_phases prefill_phases, decode_phases; // of the last round
} bench_result;

uint64_t bench_token_bytes(const bench_result *r);  // that one decoded token reads
double bench_prefill_macs(const bench_result *r);   // of a token of the prompt
double bench_prefill_gmac_s(const bench_result *r); // at the median speed

void bench_print_text(const bench_result *r);
void bench_print_json(const bench_result *r);

#endif
