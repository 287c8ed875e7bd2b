/* online.c - see online.h.
 *
 * The idea.  Which experts will the next tokens use?  There are several opinions, each a share of
 * uses for every expert that sums to 1:
 *
 *     past      what earlier prompts used         (the heat file)
 *     so far    what this prompt and its answer used
 *     12, 48, 192   the same, fading: the latest row counts 1/12, 1/48, 1/192
 *
 * Models differ in who is right.  Where a token's experts are those of its neighbours, the short
 * windows are; where training has made routing even, only long counts say anything, and following the
 * short ones is thrash.  So each layer keeps a weight per opinion and lets every row vote: the share
 * of the probability of the experts that it used that came from an opinion is the new evidence for
 * that opinion (one step of expectation maximisation for a mixture, with a forgetting factor).
 *
 *     weights  .25 .75    opinions on the expert used  .1 .3    mixture .25
 *     evidence .1  .9     new weights, rate 1/20       .243 .757
 *
 * A prompt of 200 rows has voted 1600 times per layer before the first token is made.  The mixture
 * times the experts per row is how often an expert is expected to be used per token.  Then at most
 * one swap per layer and token: the best outsider for the worst resident, if the difference is large
 * enough for the upload to be earned back.  That threshold is the hysteresis: two experts that are
 * used equally often do not take turns.  With several devices a swap stays on one.  Where fewer
 * uploads are allowed than there are layers, the price of one is what the best layer that gets none
 * would have gained.
 *
 * The next prompt finds the windows and the weights as they are, for they say what the model and the
 * conversation are like; what was used before it is past.
 *
 * Cost.  256 experts, 40 layers, 8 used: 52 us per token, where few swaps are allowed (one core of an
 * EPYC, gcc 12 -O2; tests/unit/online_test.c prints it): no more than a fifth of a percent. */
#include "online.h"

#include "../base/alloc.h"

enum { PAST, SO_FAR, WINDOWS, N_OPINION = WINDOWS + 3 };

static const double fresh[3] = {1. / 12, 1. / 48, 1. / 192}; // of the latest row in a window
static const double rate = 1. / 20;                          // of weights
static const double least_weight = 1e-3;                     // so that one can come back
static const double noise = 0.02; // of the probability is nobody's: experts never seen yet

typedef struct layer_state {
    double weight[N_OPINION];
    double *share[N_OPINION]; // (n_expert)
    double *uses, n_use;      // (n_expert) so far; their sum
    double gain;              // of the best swap when the token began
} layer_state;

/* Behind it stand the numbers of the layers. */
struct coli__online {
    uint32_t n_layer, n_expert, n_device;
    uint32_t n_used; // of the latest row
    double price;    // uses per token that a swap must gain now
    uint64_t left;   // swaps of this token
    layer_state layers[];
};

coli_status coli__online_create(uint32_t n_layer, uint32_t n_expert, uint32_t n_device,
                                coli__online **out)
{
    const size_t n = (size_t)(N_OPINION + 1) * n_expert;
    const size_t n_state = sizeof(coli__online) + n_layer * sizeof(layer_state);
    coli__online *o = *out = coli__calloc(1, n_state + n_layer * n * sizeof(double));
    if (!o) return COLI_E_NOMEM;
    o->n_layer = n_layer;
    o->n_expert = n_expert;
    o->n_device = n_device;
    double *at = (double *)(void *)((char *)o + n_state);
    for (uint32_t layer = 0; layer < n_layer; layer++) {
        layer_state *s = &o->layers[layer];
        for (uint32_t i = 0; i < N_OPINION; i++, at += n_expert) {
            s->weight[i] = 1. / N_OPINION;
            s->share[i] = at;
            for (uint32_t e = 0; e < n_expert; e++) at[e] = 1. / n_expert;
        }
        s->uses = at;
        at += n_expert;
    }
    return COLI_OK;
}

void coli__online_destroy(coli__online *o)
{
    coli__free(o);
}

void coli__online_prompt(coli__online *o, const uint32_t *past)
{
    for (uint32_t layer = 0; layer < o->n_layer; layer++, past += o->n_expert) {
        layer_state *s = &o->layers[layer];
        double sum = 0;
        for (uint32_t e = 0; e < o->n_expert; e++) sum += past[e];
        for (uint32_t e = 0; e < o->n_expert; e++) {
            s->share[PAST][e] = sum > 0 ? past[e] / sum : 1. / o->n_expert;
            s->share[SO_FAR][e] = 1. / o->n_expert;
            s->uses[e] = 0;
        }
        s->n_use = 0;
    }
}

/* ---- learning ------------------------------------------------------------------------------ */

/* The row's vote.  Before its uses are added to the opinions, or each would have foreseen them. */
static void vote(const coli__online *o, layer_state *s, const int32_t *ids, uint32_t n_used,
                 uint32_t n_id)
{
    double evidence[N_OPINION] = {0}, sum = 0;
    for (uint32_t k = 0; k < n_used; k++) {
        if (ids[k] < 0) continue;
        double all = noise / o->n_expert;
        for (uint32_t i = 0; i < N_OPINION; i++) all += s->weight[i] * s->share[i][ids[k]];
        for (uint32_t i = 0; i < N_OPINION; i++)
            evidence[i] += s->weight[i] * s->share[i][ids[k]] / all / n_id;
    }
    for (uint32_t i = 0; i < N_OPINION; i++) {
        s->weight[i] += rate * (evidence[i] - s->weight[i]);
        if (s->weight[i] < least_weight) s->weight[i] = least_weight;
        sum += s->weight[i];
    }
    for (uint32_t i = 0; i < N_OPINION; i++) s->weight[i] /= sum;
}

static void count(const coli__online *o, layer_state *s, const int32_t *ids, uint32_t n_used,
                  uint32_t n_id)
{
    s->n_use += n_id;
    for (uint32_t k = 0; k < n_used; k++)
        if (ids[k] >= 0) s->uses[ids[k]] += 1;
    for (uint32_t e = 0; e < o->n_expert; e++) s->share[SO_FAR][e] = s->uses[e] / s->n_use;
    for (uint32_t i = 0; i < N_OPINION - WINDOWS; i++) {
        double *share = s->share[WINDOWS + i];
        for (uint32_t e = 0; e < o->n_expert; e++) share[e] *= 1 - fresh[i];
        for (uint32_t k = 0; k < n_used; k++)
            if (ids[k] >= 0) share[ids[k]] += fresh[i] / n_id;
    }
}

void coli__online_learn(coli__online *o, uint32_t layer, const int32_t *ids, uint32_t n_row,
                        uint32_t n_used)
{
    layer_state *s = &o->layers[layer];
    o->n_used = n_used;
    for (uint32_t row = 0; row < n_row; row++, ids += n_used) {
        uint32_t n_id = 0;
        for (uint32_t k = 0; k < n_used; k++) n_id += ids[k] >= 0;
        if (n_id == 0) continue;
        vote(o, s, ids, n_used, n_id);
        count(o, s, ids, n_used, n_id);
    }
}

/* ---- swapping ------------------------------------------------------------------------------ */

/* How often the expert is expected to be used per token. */
static double expected(const coli__online *o, const layer_state *s, uint32_t expert)
{
    double share = 0;
    for (uint32_t i = 0; i < N_OPINION; i++) share += s->weight[i] * s->share[i][expert];
    return share * o->n_used;
}

/* The best swap of a layer on a device, and how many uses per token it gains; 0 when there is none. */
static double best_on(const coli__online *o, const coli__plan_world *w, uint32_t layer,
                      uint32_t device, coli__swap *out)
{
    const layer_state *s = &o->layers[layer];
    const uint32_t first = layer * o->n_expert;
    double most = -1, fewest = -1;
    for (uint32_t e = 0; e < o->n_expert; e++) {
        const uint32_t id = first + e;
        if (coli__plan_home(w, id) != device) continue;
        const double uses = expected(o, s, e);
        if (uses > most && coli__plan_is_free(w, id, COLI__PLACE_KNOWN)) {
            out->in = id;
            most = uses;
        } else if ((fewest < 0 || uses < fewest) &&
                   coli__plan_is_free(w, id, COLI__PLACE_RESIDENT)) {
            out->out = id;
            fewest = uses;
        }
    }
    return most > fewest && fewest >= 0 ? most - fewest : 0;
}

static double best_swap(const coli__online *o, const coli__plan_world *w, uint32_t layer,
                        coli__swap *out)
{
    double most = 0;
    for (uint32_t d = 0; d < o->n_device; d++) {
        coli__swap swap;
        const double gain = best_on(o, w, layer, d, &swap);
        if (gain > most) {
            *out = swap;
            most = gain;
        }
    }
    return most;
}

void coli__online_price(coli__online *o, const coli__plan_world *w, double least, uint64_t most)
{
    o->price = least;
    o->left = most;
    if (most >= o->n_layer) return;
    for (uint32_t layer = 0; layer < o->n_layer; layer++) {
        coli__swap swap;
        o->layers[layer].gain = best_swap(o, w, layer, &swap);
    }
    for (uint32_t layer = 0; layer < o->n_layer; layer++) {
        const double gain = o->layers[layer].gain;
        uint64_t n_better = 0;
        for (uint32_t i = 0; i < o->n_layer; i++) n_better += o->layers[i].gain > gain;
        if (n_better >= most && gain > o->price) o->price = gain;
    }
}

bool coli__online_best(const coli__online *o, const coli__plan_world *w, uint32_t layer,
                       coli__swap *out)
{
    return o->left > 0 && best_swap(o, w, layer, out) > o->price;
}

void coli__online_begun(coli__online *o)
{
    o->left--;
}
