/* loss.h - how sure a difference is.  Pure.
 *
 * The items are a sample of all those that could have been asked; the interval says what another sample
 * could have shown.  Both forms compare pair by pair, so that how hard an item is cancels. */
#ifndef COLI_RUN_LOSS_H
#define COLI_RUN_LOSS_H

#include <stdint.h>

typedef struct coli__interval {
    double value, low, high; // 95 %; infinite where there are too few items to tell
} coli__interval;

/* What is summed over the units of an item (tokens, rows), for the mean over all units:
 *
 *     r = sum d_i / sum n_i      variance = k/(k-1) * sum (d_i - r n_i)^2 / (sum n_i)^2
 *
 * over k items, with Student's t of k - 1.  Tokens of one text depend on each other, so the texts are
 * what is counted.  Below two items there is no telling. */
typedef struct coli__ratio {
    uint32_t n_item;
    double d, n, dd, dn, nn; // sums of d, n, d*d, d*n, n*n
} coli__ratio;
void coli__ratio_add(coli__ratio *r, double d, double n);
coli__interval coli__ratio_interval(const coli__ratio *r);

/* Cut off what no items can have: a divergence is not below 0, a share not above 1.  An infinite end, which
 * says that there is no telling, stays. */
coli__interval coli__interval_within(coli__interval i, double least, double most);

/* Pairs of right and wrong: of n, `lost` were right before and are wrong now, `won` the other way.  The
 * interval is Agresti and Min's (2005): half a pair is added to each of the four cases, since no
 * difference seen in n pairs is no proof that there is none.
 *
 *     240 pairs, none differs    0, from -0.81 % to 0.81 %
 *     240 pairs, 3 lost          1.25 %, from -0.37 % to 2.85 % */
coli__interval coli__pairs_interval(uint32_t n, uint32_t lost, uint32_t won);

/* The value that Student's t of df degrees exceeds with probability 2.5 %; df >= 1. */
double coli__student(uint32_t df);

#endif
