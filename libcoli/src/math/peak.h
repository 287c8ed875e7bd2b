/* peak.h - how many integer multiply-adds a processor can do at best: what a matmul is compared
 * with. */
#ifndef COLI_MATH_PEAK_H
#define COLI_MATH_PEAK_H

#include "kernels.h"

/* The multiply instructions of one table of kernels in a loop on registers, as the kernels use
 * them.  run does n_round rounds and returns their multiply-adds; sink keeps the result alive. */
typedef struct coli__peak {
    const char *isa, *method; // "avx512", "vpdpbusd on registers"
    uint64_t (*run)(uint32_t n_round, uint64_t *sink);
} coli__peak;

/* NULL where C cannot name the instruction: then the matmul itself, on a small matrix, is all that
 * there is to measure. */
const coli__peak *coli__peak_of(const coli__kernels *kernels);

#endif
