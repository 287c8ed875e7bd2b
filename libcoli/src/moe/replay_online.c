/* replay_online.c - see replay_online.h.
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
 * used equally often do not take turns.  Where fewer uploads are allowed than there are layers, the
 * price of one is what the best layer that gets none would have gained. */
#include "replay_online.h"

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
struct online {
    double price;  // uses per token that a swap must gain now
    uint64_t left; // swaps of this token
    layer_state layers[];
};

static layer_state *state_of(const coli__replay *r, uint32_t layer)
{
    return &((struct online *)r->own)->layers[layer];
}

coli_status coli__replay_online_init(coli__replay *r)
{
    const size_t n = (size_t)(N_OPINION + 1) * r->n_expert;
    const size_t n_state = sizeof(struct online) + r->n_layer * sizeof(layer_state);
    r->own = coli__calloc(1, n_state + r->n_layer * n * sizeof(double));
    if (!r->own) return COLI_E_NOMEM;
    double *at = (double *)(void *)((char *)r->own + n_state);
    for (uint32_t layer = 0; layer < r->n_layer; layer++) {
        layer_state *s = state_of(r, layer);
        const uint32_t *past = r->past + (size_t)layer * r->n_expert;
        double sum = 0;
        for (uint32_t i = 0; i < N_OPINION; i++, at += r->n_expert) {
            s->weight[i] = 1. / N_OPINION;
            s->share[i] = at;
        }
        s->uses = at;
        at += r->n_expert;
        for (uint32_t e = 0; e < r->n_expert; e++) sum += past[e];
        for (uint32_t e = 0; e < r->n_expert; e++) {
            s->share[PAST][e] = sum > 0 ? past[e] / sum : 1. / r->n_expert;
            for (uint32_t i = SO_FAR; i < N_OPINION; i++) s->share[i][e] = 1. / r->n_expert;
        }
    }
    return COLI_OK;
}

/* ---- learning ------------------------------------------------------------------------------ */

/* The row's vote.  Before its uses are added to the opinions, or each would have foreseen them. */
static void vote(const coli__replay *r, layer_state *s, const int32_t *ids)
{
    double evidence[N_OPINION] = {0}, sum = 0;
    for (uint32_t k = 0; k < r->t->n_id; k++) {
        double all = noise / r->n_expert;
        for (uint32_t i = 0; i < N_OPINION; i++) all += s->weight[i] * s->share[i][ids[k]];
        for (uint32_t i = 0; i < N_OPINION; i++)
            evidence[i] += s->weight[i] * s->share[i][ids[k]] / all / r->t->n_id;
    }
    for (uint32_t i = 0; i < N_OPINION; i++) {
        s->weight[i] += rate * (evidence[i] - s->weight[i]);
        if (s->weight[i] < least_weight) s->weight[i] = least_weight;
        sum += s->weight[i];
    }
    for (uint32_t i = 0; i < N_OPINION; i++) s->weight[i] /= sum;
}

static void count(const coli__replay *r, layer_state *s, const int32_t *ids)
{
    s->n_use += r->t->n_id;
    for (uint32_t k = 0; k < r->t->n_id; k++) s->uses[ids[k]] += 1;
    for (uint32_t e = 0; e < r->n_expert; e++) s->share[SO_FAR][e] = s->uses[e] / s->n_use;
    for (uint32_t i = 0; i < N_OPINION - WINDOWS; i++) {
        double *share = s->share[WINDOWS + i];
        for (uint32_t e = 0; e < r->n_expert; e++) share[e] *= 1 - fresh[i];
        for (uint32_t k = 0; k < r->t->n_id; k++) share[ids[k]] += fresh[i] / r->t->n_id;
    }
}

void coli__replay_online_learn(coli__replay *r, uint32_t layer)
{
    layer_state *s = state_of(r, layer);
    for (uint32_t row = r->first_row; row < r->first_row + r->n_row; row++) {
        const int32_t *ids = coli__replay_ids(r, layer, row);
        vote(r, s, ids);
        count(r, s, ids);
    }
}

/* ---- swapping ------------------------------------------------------------------------------ */

/* How often the expert is expected to be used per token. */
static double expected(const coli__replay *r, const layer_state *s, uint32_t expert)
{
    double share = 0;
    for (uint32_t i = 0; i < N_OPINION; i++) share += s->weight[i] * s->share[i][expert];
    return share * r->t->n_id;
}

/* The best swap of a layer, and how many uses per token it gains; 0 when there is none. */
static double best_swap(const coli__replay *r, uint32_t layer, uint32_t *in, uint32_t *out)
{
    const layer_state *s = state_of(r, layer);
    const uint8_t *place = r->place + (size_t)layer * r->n_expert;
    double most = -1, fewest = -1;
    for (uint32_t e = 0; e < r->n_expert; e++) {
        const double uses = expected(r, s, e);
        if (place[e] == COLI__PLACE_KNOWN && uses > most) {
            *in = e;
            most = uses;
        } else if (place[e] == COLI__PLACE_RESIDENT && (fewest < 0 || uses < fewest)) {
            *out = e;
            fewest = uses;
        }
    }
    return most > fewest && fewest >= 0 ? most - fewest : 0;
}

void coli__replay_online_price(coli__replay *r, double least, uint64_t most)
{
    struct online *o = r->own;
    const uint64_t left = coli__replay_left(r), n = left < most ? left : most;
    o->price = least;
    o->left = n;
    if (n >= r->n_layer) return;
    for (uint32_t layer = 0; layer < r->n_layer; layer++) {
        uint32_t in, out;
        o->layers[layer].gain = best_swap(r, layer, &in, &out);
    }
    for (uint32_t layer = 0; layer < r->n_layer; layer++) {
        const double gain = o->layers[layer].gain;
        uint64_t n_better = 0;
        for (uint32_t i = 0; i < r->n_layer; i++) n_better += o->layers[i].gain > gain;
        if (n_better >= n && gain > o->price) o->price = gain;
    }
}

void coli__replay_online_swap(coli__replay *r, uint32_t layer)
{
    struct online *o = r->own;
    uint32_t in, out;
    if (o->left == 0 || best_swap(r, layer, &in, &out) <= o->price) return;
    if (coli__replay_swap(r, layer, in, out)) o->left--;
}
