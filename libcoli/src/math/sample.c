/* sample.c - choose the next token from a row of logits.
 *
 * A quarter of a million logits need no full sort.  Every candidate becomes one 64-bit key whose
 * order is "larger logit first, then lower id"; top_k keeps the best k keys while it scans, and blocks of
 * logits none of which is above the worst of these are passed over; what is left stands in a heap, from
 * which keys are taken in rank order only until the draw is decided.
 *
 * Masses are integers: e^((logit - max) / temperature) in units of 2^-40.  Their sums are exact, so
 * they may be formed in any order, and less than one unit (10^-12 of the best token) is never
 * drawn.
 *
 *     logits 2.0 5.0 4.0 5.0     ranks 1 3 2 0     masses in units: 1, 1, .37, .05  (temperature 1)
 *     top_p .9 keeps ranks until their mass is .9 of all: 1 3 2 */
#include "sample.h"

#include <string.h>

#include "../base/random.h"
#include "coli/exact.h"

/* ---- generator ------------------------------------------------------------------------------ */

void coli__rng_seed(coli__rng *rng, uint64_t seed)
{
    for (uint32_t i = 0; i < 4; i++) rng->s[i] = coli__random(&seed);
}

static uint64_t rotate(uint64_t x, uint32_t n)
{
    return x << n | x >> (64 - n);
}

uint64_t coli__rng_next(coli__rng *rng)
{
    uint64_t *s = rng->s;
    const uint64_t result = rotate(s[0] + s[3], 23) + s[0], t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

static uint64_t rng_below(coli__rng *rng, uint64_t n) // n < 2^60; as even as 64 bits can be
{
    const uint64_t r = coli__rng_next(rng);
    const uint64_t low = (r & 0xFFFFFFFFu) * (n & 0xFFFFFFFFu) >> 32;
    const uint64_t a = (r >> 32) * (n & 0xFFFFFFFFu) + low; // the high half of r * n, by halves
    const uint64_t b = (r & 0xFFFFFFFFu) * (n >> 32) + (a & 0xFFFFFFFFu);
    return (r >> 32) * (n >> 32) + (a >> 32) + (b >> 32);
}

/* ---- keys ----------------------------------------------------------------------------------- */

/* The logit after penalties, finite: NaN counts as the lowest. */
static float penalised(const coli__sample_args *a, uint32_t id)
{
    const coli_sampling *s = a->sampling;
    const float lowest = -0x1.fffffep127f, highest = 0x1.fffffep127f;
    float x = a->logits[id];
    if (a->seen && a->seen[id] && s->repetition_penalty != 1.0f)
        x = x > 0.0f ? x / s->repetition_penalty : x * s->repetition_penalty;
    if (a->made && a->made[id]) x = x - s->presence_penalty;
    x = x > lowest ? x : lowest; // also NaN
    return x < highest ? x : highest;
}

/* Larger keys come first.  Floats are ordered by their bits once negative ones are inverted; the
 * two zeros are one number. */
static uint64_t key_of(float logit, uint32_t id)
{
    const uint32_t u = coli_bits(logit + 0.0f);
    const uint32_t order = u >> 31 ? ~u : u | 0x80000000u;
    return (uint64_t)order << 32 | (uint32_t)~id;
}

static uint32_t id_of(uint64_t key)
{
    return ~(uint32_t)key;
}

static float logit_of(uint64_t key)
{
    const uint32_t order = (uint32_t)(key >> 32);
    return coli_from_bits(order >> 31 ? order & 0x7FFFFFFFu : ~order);
}

/* ---- a heap with the largest key at the root ------------------------------------------------ */

static void sift_down(uint64_t *heap, size_t n, size_t i)
{
    const uint64_t key = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] > heap[child]) child++;
        if (heap[child] <= key) break;
        heap[i] = heap[child];
    }
    heap[i] = key;
}

static void make_heap(uint64_t *heap, size_t n)
{
    for (size_t i = n / 2; i-- > 0;) sift_down(heap, n, i);
}

/* Take the root out of a heap of n; it comes to stand behind the rest. */
static uint64_t pop(uint64_t *heap, size_t n)
{
    const uint64_t top = heap[0];
    heap[0] = heap[n - 1];
    heap[n - 1] = top;
    sift_down(heap, n - 1, 0);
    return top;
}

/* ---- looking for the best --------------------------------------------------------------------- */

enum { BLOCK = 64 }; // logits that are looked at together, and mostly put aside

static bool any_above(const float *x, uint32_t n, float bar)
{
    uint32_t above = 0;
    for (uint32_t i = 0; i < n; i++) above |= x[i] > bar; // false for NaN, the lowest
    return above;
}

/* Goes through blocks from *id on to the first in which a token may beat one of a lower id whose penalised
 * logit is `bar`; returns its end.  Where no penalty raises a logit, one that is not above the bar
 * does not. */
static uint32_t next_block(const coli__sample_args *a, float bar, uint32_t *id)
{
    const coli_sampling *s = a->sampling;
    const bool skips = s->repetition_penalty >= 1.0f && s->presence_penalty >= 0.0f;
    for (uint32_t n; *id < a->n_token; *id += n) {
        n = a->n_token - *id < BLOCK ? a->n_token - *id : BLOCK;
        if (!skips || any_above(a->logits + *id, n, bar)) return *id + n;
    }
    return *id;
}

/* All candidates, or the best k, in any order; returns how many.  For the best k the heap holds
 * inverted keys: its root is the worst of them, which a better one replaces. */
static size_t collect(const coli__sample_args *a, uint64_t *keys)
{
    const uint32_t k = a->sampling->top_k;
    if (k == 0 || k >= a->n_token) {
        for (uint32_t id = 0; id < a->n_token; id++) keys[id] = key_of(penalised(a, id), id);
        return a->n_token;
    }
    for (uint32_t id = 0; id < k; id++) keys[id] = ~key_of(penalised(a, id), id);
    make_heap(keys, k);
    for (uint32_t id = k, end; end = next_block(a, logit_of(~keys[0]), &id), id < end;)
        for (; id < end; id++) {
            const uint64_t key = ~key_of(penalised(a, id), id);
            if (key >= keys[0]) continue;
            keys[0] = key;
            sift_down(keys, k, 0);
        }
    for (uint32_t i = 0; i < k; i++) keys[i] = ~keys[i];
    return k;
}

/* ---- choosing ------------------------------------------------------------------------------- */

static const double unit = 0x1p40; // mass of the best token

static uint64_t mass_of(uint64_t key, float max, float temperature)
{
    return (uint64_t)((double)coli_exp((logit_of(key) - max) / temperature) * unit);
}

static uint32_t greedy(const coli__sample_args *a)
{
    uint64_t best = key_of(penalised(a, 0), 0);
    for (uint32_t id = 1, end; end = next_block(a, logit_of(best), &id), id < end;)
        for (; id < end; id++) {
            const uint64_t key = key_of(penalised(a, id), id);
            best = key > best ? key : best;
        }
    return id_of(best);
}

/* The mass of the ranks that top_p and min_p keep, at least the first rank.  The ranks that were
 * looked at stand, best last, at the end of keys; *n is how many of the heap are left. */
static uint64_t cut_by_mass(const coli_sampling *s, uint64_t *keys, size_t *n, float max)
{
    uint64_t total = 0, kept = 0;
    for (size_t i = 0; i < *n; i++) total += mass_of(keys[i], max, s->temperature);
    const double enough = (double)s->top_p * (double)total, least = (double)s->min_p * unit;
    do {
        const uint64_t mass = mass_of(keys[0], max, s->temperature);
        if (kept > 0 && (double)mass < least) break;
        pop(keys, (*n)--);
        kept += mass;
    } while (*n > 0 && (double)kept < enough);
    return kept;
}

/* The same without top_p, where no rank needs to be known. */
static uint64_t mass_above(const coli_sampling *s, const uint64_t *keys, size_t n, float max)
{
    const double least = (double)s->min_p * unit;
    uint64_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        const uint64_t mass = mass_of(keys[i], max, s->temperature);
        if ((double)mass >= least || i == 0) kept += mass; // i == 0: the root, the first rank
    }
    return kept;
}

size_t coli__sample_scratch_bytes(uint32_t n_token)
{
    return n_token * sizeof(uint64_t);
}

uint32_t coli__sample(const coli__sample_args *a, coli__rng *rng)
{
    const coli_sampling *s = a->sampling;
    if (!(s->temperature > 0.0f)) return greedy(a);

    uint64_t *keys = a->scratch;
    const size_t n = collect(a, keys);
    make_heap(keys, n);
    const float max = logit_of(keys[0]);
    size_t left = n;
    const uint64_t kept =
        s->top_p < 1.0f ? cut_by_mass(s, keys, &left, max) : mass_above(s, keys, n, max);
    const uint64_t drawn = rng_below(rng, kept);
    uint64_t below = 0;
    for (size_t rank = 0;; rank++) {
        const uint64_t key = rank < n - left ? keys[n - 1 - rank] : pop(keys, left--);
        below += mass_of(key, max, s->temperature);
        if (below > drawn) return id_of(key);
    }
}
