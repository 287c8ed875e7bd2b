/* random.h - numbers that are as good as any: the same start gives the same ones everywhere. */
#ifndef COLI_BASE_RANDOM_H
#define COLI_BASE_RANDOM_H

#include <stdint.h>

/* splitmix64: the next number; every start gives an independent stream. */
static inline uint64_t coli__random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

#endif
