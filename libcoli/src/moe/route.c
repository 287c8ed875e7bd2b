/* route.c - the best of a few hundred numbers, by insertion into a sorted list; and who may take whose
 * place in it.
 *
 * The list is at most a few dozen long, so an insertion costs less than a heap, and walking the
 * ids upward with a strict comparison gives ties to the lower id without a second key.
 *
 * Cache-aware.  After "max-rank" selection (arXiv 2412.00099).  K = 4, J = 2, a window of 12:
 *
 *     rank     0   1   2   3 | 4   5   6   7   8   9  10  11 |
 *     level    .   .   .   R | .   R   .   V   .   .   .   . |   V: in VRAM, R: in RAM
 *     taken    *   *       *               *                     J, then 7 (V), then 3 (R): full
 *
 * Rank 3 is one of the true four and no swap; 7 is a swap, for 2, which has to be fetched. */
#include "route.h"

#include <float.h>
#include <string.h>

#include "../../include/coli/exact.h"

/* Not finite counts as the smallest number there is; *finite remembers that there was one. */
static float tamed(float x, bool *finite)
{
    if (coli__is_finite(x)) return x;
    *finite = false;
    return -FLT_MAX;
}

bool coli__route_softmax_topk(const coli__kernels *k, const float *logits, uint32_t n_expert,
                              uint32_t n_used, int32_t *ids, float *w)
{
    bool finite = true;
    uint32_t n = 0;
    for (uint32_t e = 0; e < n_expert; e++) {
        const float x = tamed(logits[e], &finite);
        if (n == n_used && !(x > w[n - 1])) continue;
        uint32_t at = n < n_used ? n++ : n - 1;
        for (; at > 0 && x > w[at - 1]; at--) {
            w[at] = w[at - 1];
            ids[at] = ids[at - 1];
        }
        w[at] = x;
        ids[at] = (int32_t)e;
    }
    const float sum = k->softmax_sum(w, n_used);
    const float inverse = coli_recip(sum);
    for (uint32_t i = 0; i < n_used; i++) w[i] = w[i] * inverse;
    return finite;
}

/* -- cache-aware ------------------------------------------------------------------------------- */

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}
static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static bool is_share(float x) // false for NaN, too
{
    return x > 0 && x < 1;
}

uint32_t coli__route_list_softmax(uint32_t n_used, uint32_t window, float mass)
{
    return larger(window, is_share(mass) ? 4 * n_used : n_used);
}

uint32_t coli__route_list_sigmoid(uint32_t n_used, uint32_t window)
{
    return larger(window, n_used);
}

/* The ranks that are looked at, best first. */
typedef struct list {
    uint32_t n;
    uint32_t n_true; // ranks below it are what plain routing takes
    bool taken[COLI__ROUTE_MAX];
    uint8_t level[COLI__ROUTE_MAX]; // of ranks that may be taken for it
    uint32_t id[COLI__ROUTE_MAX];
    float choice[COLI__ROUTE_MAX];
} list;

static bool all_finite(const float *x, uint32_t n)
{
    uint32_t n_bad = 0;
    for (uint32_t i = 0; i < n; i++) n_bad += !coli__is_finite(x[i]);
    return n_bad == 0;
}

static bool all_masses(const float *x, uint32_t n)
{
    uint32_t n_bad = 0;
    for (uint32_t i = 0; i < n; i++) n_bad += !(x[i] >= 0 && x[i] <= FLT_MAX);
    return n_bad == 0;
}

static bool is_sound(const coli__route_row *row, uint32_t e)
{
    return all_finite(row->choice + e, 1) && (!row->mass || all_masses(row->mass + e, 1));
}

static void rank(const coli__route_rule *rule, const coli__route_row *row, bool sound, list *l)
{
    const uint32_t most = smaller(larger(rule->n_list, rule->n_used), COLI__ROUTE_MAX);
    uint32_t n = 0;
    for (uint32_t e = 0; e < rule->n_expert; e++) {
        const float x = row->choice[e];
        if (n == most && !(x > l->choice[n - 1])) continue;
        if (row->keep && !row->keep[e]) continue;
        if (!sound && !is_sound(row, e)) continue;
        uint32_t at = n < most ? n++ : n - 1;
        for (; at > 0 && x > l->choice[at - 1]; at--) {
            l->choice[at] = l->choice[at - 1];
            l->id[at] = l->id[at - 1];
        }
        l->choice[at] = x;
        l->id[at] = e;
    }
    l->n = n;
    l->n_true = smaller(rule->n_used, n);
}

/* What rank r weighs; of a softmax, beside one whose choice is `unit`. */
static float mass_of(const coli__route_row *row, const list *l, uint32_t r, float unit)
{
    return row->mass ? row->mass[l->id[r]] : coli_exp(l->choice[r] - unit);
}

/* How many ranks, from the best, may be taken for their level. */
static uint32_t window_of(const coli__route_rule *rule, const coli__route_row *row, const list *l)
{
    if (!is_share(rule->mass)) return l->n;
    double mass[COLI__ROUTE_MAX], all = 1e-20, sum = 0;
    for (uint32_t r = 0; r < l->n; r++) {
        mass[r] = (double)mass_of(row, l, r, l->choice[0]);
        all += mass[r];
    }
    uint32_t n = 0;
    while (n < l->n && (n == 0 || sum < (double)rule->mass * all)) sum += mass[n++];
    return larger(n, l->n_true);
}

/* Take untaken ranks first..end-1 of this level, best first, while there is room. */
static void take(list *l, uint32_t first, uint32_t end, uint8_t level, uint32_t *room)
{
    for (uint32_t r = first; r<end && * room> 0; r++) {
        if (l->taken[r] || l->level[r] != level) continue;
        l->taken[r] = true;
        --*room;
    }
}

static void fill(const coli__route_rule *rule, const coli__route_row *row, list *l)
{
    const uint32_t n_sure = smaller(rule->n_sure, l->n_true);
    memset(l->taken, 0, l->n);
    memset(l->level, 0, l->n);
    uint32_t room = l->n_true;
    take(l, 0, n_sure, 0, &room); // nobody has asked for their level
    if (row->level && room > 0) {
        const uint32_t window = window_of(rule, row, l);
        for (uint32_t r = n_sure; r < window; r++) l->level[r] = row->level[l->id[r]];
        take(l, n_sure, window, COLI_LEVEL_VRAM, &room);
        take(l, n_sure, window, COLI_LEVEL_RAM, &room);
    }
    for (uint32_t r = n_sure; r < l->n && room > 0; r++) {
        room -= !l->taken[r];
        l->taken[r] = true;
    }
}

static double kl_of(const coli__route_row *row, const list *l, const float *values)
{
    double p[COLI__ROUTE_MAX], all_true = 1e-20, all_chosen = 1e-20, kl = 0;
    for (uint32_t r = 0; r < l->n_true; r++) {
        p[r] = (double)mass_of(row, l, r, l->choice[0]);
        all_true += p[r];
        all_chosen += (double)values[r];
    }
    uint32_t i = 0; // the chosen stand in the order of their ranks
    for (uint32_t r = 0; r < l->n_true; r++) {
        const double c = l->taken[r] ? (double)values[i++] / all_chosen : 1e-12;
        p[r] /= all_true;
        if (p[r] > 0) kl += p[r] * coli_log_d(p[r] / c);
    }
    return kl;
}

bool coli__route_choose(const coli__route_rule *rule, const coli__route_row *row, int32_t *ids,
                        float *values, coli__route_cost *cost)
{
    const bool sound = all_finite(row->choice, rule->n_expert) &&
                       (!row->mass || all_masses(row->mass, rule->n_expert));
    list l;
    rank(rule, row, sound, &l);
    fill(rule, row, &l);

    *cost = (coli__route_cost){.n_slot = l.n_true};
    const float alpha = is_share(rule->alpha) ? rule->alpha : 1;
    uint32_t n = 0;
    float unit = 0;
    for (uint32_t r = 0; n < l.n_true; r++) {
        if (!l.taken[r]) continue;
        if (n == 0) unit = l.choice[r];
        values[n] = mass_of(row, &l, r, unit);
        ids[n] = (int32_t)l.id[r];
        if (r >= l.n_true) {
            values[n] = values[n] * alpha;
            cost->n_swap++;
            cost->n_swap_vram += l.level[r] == COLI_LEVEL_VRAM;
        }
        n++;
    }
    for (; n < rule->n_used; n++) {
        ids[n] = -1;
        values[n] = 0;
    }
    if (cost->n_swap > 0) cost->kl = kl_of(row, &l, values);
    return sound;
}

void coli__route_normalise(float *values, uint32_t n)
{
    float lane[16] = {0};
    for (uint32_t i = 0; i < n; i++) lane[i % 16] = lane[i % 16] + values[i];
    const float sum = coli_lanes_sum(lane);
    if (!(sum >= 0x1p-125f)) return; // coli_recip
    const float inverse = coli_recip(sum);
    for (uint32_t i = 0; i < n; i++) values[i] = values[i] * inverse;
}
