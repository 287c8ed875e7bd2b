/* kernels_race.h - which of two tables of kernels is faster here. */
#ifndef COLI_MATH_KERNELS_RACE_H
#define COLI_MATH_KERNELS_RACE_H

#include "kernels.h"

/* Whether `a` multiplies n_row (at most 64) rows by a matrix of an expert's kind (int4 in groups of 64,
 * 2048 columns, in a cache) clearly faster than `b`: one thread, both in turns, the best time of each.
 * Takes some milliseconds.  Also false when there is no memory for it. */
bool coli__kernels_race(const coli__kernels *a, const coli__kernels *b, uint32_t n_row);

#endif
