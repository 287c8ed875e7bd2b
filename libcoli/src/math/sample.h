/* sample.h - choose the next token from a row of logits.  Pure: the same logits, counts, settings
 * and generator give the same token; no allocation.
 *
 * In this order: penalties, temperature, top_k, top_p, min_p, draw, as coli_sampling in coli.h
 * names them.  Ids are tried by falling logit, ties to the lower id, so that every cut is
 * defined.  A NaN counts as minus infinity. */
#ifndef COLI_MATH_SAMPLE_H
#define COLI_MATH_SAMPLE_H

#include "coli/coli.h"

/* xoshiro256++ (Blackman and Vigna), seeded by four steps of splitmix64. */
typedef struct coli__rng {
    uint64_t s[4];
} coli__rng;
void coli__rng_seed(coli__rng *rng, uint64_t seed);
uint64_t coli__rng_next(coli__rng *rng);

typedef struct coli__sample_args {
    const float *logits; // (n_token) or more; only ids below n_token are eligible
    uint32_t n_token;    // at least 1
    const uint32_t
        *seen; // (n_token) times each id stands in the context: repetition_penalty; NULL: none
    const uint32_t
        *made; // (n_token) times each id was made in this turn: presence_penalty; NULL: none
    const coli_sampling *sampling;
    void *scratch; // coli__sample_scratch_bytes(n_token), 8-byte aligned
} coli__sample_args;

size_t coli__sample_scratch_bytes(uint32_t n_token);

/* The next token's id.  temperature 0 takes the largest penalised logit and leaves the generator
 * alone; otherwise one number is drawn. */
uint32_t coli__sample(const coli__sample_args *args, coli__rng *rng);

#endif
