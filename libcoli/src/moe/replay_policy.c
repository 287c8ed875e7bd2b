/* replay_policy.c - the policies of replay.h, one table at the end.
 *
 * Time, for policies, is the number of the row that is computed (first_row).  Ties go to the lower
 * id everywhere.  What a policy does within its hooks is what a tier could do at that moment: it has
 * seen the routing so far, of this layer up to and with the row.  Those whose `knows` says "the
 * future" are bounds, no policies. */
#include <math.h>
#include <string.h>

#include "../base/alloc.h"
#include "replay.h"
#include "replay_online.h"

enum {
    WHOLE = 64,          // one use, where counts have fractions
    PRIOR_ROWS = 25,     // of a prompt, that heat is worth
    ANSWER_TOKENS = 256, // that an answer is expected to have
    STAY_TOKENS = 40     // for which a correction stays right
};

/* Uses per token by which a newcomer must beat its victim when nobody counts the cost. */
static const double hysteresis = 0.03;

static bool is_resident(const coli__replay *r, uint32_t layer, uint32_t expert)
{
    return r->place[(size_t)layer * r->n_expert + expert] == COLI__PLACE_RESIDENT;
}

static bool is_known(const coli__replay *r, uint32_t layer, uint32_t expert)
{
    return r->place[(size_t)layer * r->n_expert + expert] == COLI__PLACE_KNOWN;
}

/* ---- sets that stand still ----------------------------------------------------------------- */

/* Make the n_slot experts with the highest counts of the layer its residents, hottest first. */
static void move_to(coli__replay *r, uint32_t layer, const uint32_t *counts)
{
    coli__plan_order(1, r->n_expert, counts, r->keys, r->order);
    uint32_t victim = r->n_expert;
    for (uint32_t i = 0; i < r->opts.n_slot; i++) {
        if (!is_known(r, layer, r->order[i])) continue;
        while (victim > r->opts.n_slot && !is_resident(r, layer, r->order[victim - 1])) victim--;
        if (victim == r->opts.n_slot) return;
        coli__replay_swap(r, layer, r->order[i], r->order[victim - 1]);
    }
}

static void prefill_prompt(coli__replay *r, uint32_t layer)
{
    move_to(r, layer, r->replan.counts + (size_t)layer * r->n_expert);
}

/* ---- the re-plan, as the tier does it ------------------------------------------------------ */

static void drain(coli__replay *r, uint32_t limit)
{
    coli__replan_drain(&r->replan, r->place, limit, coli__replay_begin, r);
}

static uint32_t *counts_of(coli__replay *r, uint32_t layer)
{
    return r->replan.counts + (size_t)layer * r->n_expert;
}

/* The prompt so far, counted anew: what a policy makes of counts must not add up over the chunks.  A
 * use counts `first` in the first row, and rises to first + more in the last. */
static void recount(coli__replay *r, uint32_t layer, uint32_t first, uint32_t more)
{
    uint32_t *counts = counts_of(r, layer);
    memset(counts, 0, r->n_expert * sizeof *counts);
    const uint32_t n_row = r->first_row + r->n_row;
    for (uint32_t row = 0; row < n_row; row++) {
        const uint32_t weight = first + (uint32_t)((uint64_t)row * more / n_row);
        const int32_t *ids = coli__replay_ids(r, layer, row);
        for (uint32_t k = 0; k < r->t->n_id; k++) counts[ids[k]] += weight;
    }
}

/* Plan by the counts as they stand; an outsider below `least` is no newcomer. */
static void plan(coli__replay *r, uint32_t layer, uint32_t least)
{
    uint32_t *counts = counts_of(r, layer);
    for (uint32_t e = 0; e < r->n_expert; e++)
        if (counts[e] < least && !is_resident(r, layer, e)) counts[e] = 0;
    const coli__plan_world world = coli__replay_world(r);
    coli__replan_plan(&r->replan, &world, (int32_t)layer, NULL);
    drain(r, COLI__REPLAN_PER_CALL);
}

static void replan_prompt(coli__replay *r, uint32_t layer)
{
    if (r->opts.min_count > 1) recount(r, layer, 1, 0);
    plan(r, layer, r->opts.min_count);
}

/* All layers at once, when the last of them has computed the whole prompt. */
static void late_prompt(coli__replay *r, uint32_t layer)
{
    if (layer + 1 < r->n_layer || r->first_row + r->n_row < r->t->n_prompt) return;
    const coli__plan_world world = coli__replay_world(r);
    coli__replan_plan(&r->replan, &world, COLI__PLAN_ALL_LAYERS, NULL);
    drain(r, COLI__REPLAN_PER_CALL);
}

static void replan_token(coli__replay *r)
{
    drain(r, r->opts.drain);
}

/* ---- the re-plan, with other numbers -------------------------------------------------------- */

/* Late rows count more: from 1 at the prompt's beginning to 4 at its end. */
static void tail_prompt(coli__replay *r, uint32_t layer)
{
    recount(r, layer, WHOLE, 3 * WHOLE);
    plan(r, layer, r->opts.min_count * WHOLE);
}

/* The past as so many rows more, a Dirichlet prior for the shares of this prompt. */
static void prior_prompt(coli__replay *r, uint32_t layer)
{
    const uint32_t *past = r->past + (size_t)layer * r->n_expert;
    uint64_t sum = 0;
    for (uint32_t e = 0; e < r->n_expert; e++) sum += past[e];
    recount(r, layer, WHOLE, 0);
    const uint64_t prior = (uint64_t)PRIOR_ROWS * r->t->n_id * WHOLE;
    for (uint32_t e = 0; e < r->n_expert && sum; e++)
        counts_of(r, layer)[e] += (uint32_t)(past[e] * prior / sum);
    plan(r, layer, r->opts.min_count * WHOLE);
}

/* What the machine can afford.  An upload costs the time that somebody waits for it: the host, where
 * it does; else the next layer's activations, which come idle_ns later and find the copy engine busy.
 * A swap must save that within n_token tokens: so many uses per token must the newcomer have more than
 * its victim.  And uploads may fill half of the link's time in the prompt, a quarter in the answer, or
 * they would wait for each other. */
static double upload_ns(const coli__replay *r)
{
    const coli__replay_machine *m = &r->opts.machine;
    if (m->link_bytes_per_s == 0) return 0;
    return (double)m->slow * ((double)m->n_copy * (double)m->latency_ns +
                              (double)m->expert_bytes * 1e9 / (double)m->link_bytes_per_s);
}

static double paying_uses(const coli__replay *r, double idle_ns, uint32_t n_token)
{
    const coli__replay_machine *m = &r->opts.machine;
    const double bytes = (double)m->expert_bytes;
    const double saved_ns =
        bytes * 1e9 / (double)m->cpu_bytes_per_s - bytes * 1e9 / (double)m->bw_bytes_per_s;
    const double waited_ns = upload_ns(r) - (m->waits ? 0 : idle_ns);
    if (waited_ns <= 0) return 0;
    return saved_ns > 0 ? waited_ns / saved_ns / n_token : INFINITY;
}

static uint64_t carried(const coli__replay *r, double ns)
{
    const double one = upload_ns(r), n = one > 0 ? ns / one : INFINITY;
    return r->opts.machine.waits || n > 1e9 ? UINT64_MAX : (uint64_t)n;
}

/* As many swaps as that allows, whatever the cap.  Pair after pair the difference shrinks. */
static void cost_prompt(coli__replay *r, uint32_t layer)
{
    const coli__plan_world world = coli__replay_world(r);
    const uint32_t *counts = counts_of(r, layer);
    const coli__plan_ask ask = {(int32_t)layer, (int32_t)r->n_expert, counts};
    const uint32_t n = coli__plan_swaps(&world, &ask, r->keys, r->swaps, NULL);
    const double least = paying_uses(r, r->layer_ns, ANSWER_TOKENS) * (r->first_row + r->n_row);
    const uint64_t most = carried(r, r->layer_ns / 2);
    uint32_t n_paid = 0;
    while (n_paid < n && n_paid < most &&
           counts[r->swaps[n_paid].in % r->n_expert] - counts[r->swaps[n_paid].out % r->n_expert] >=
               least)
        n_paid++;
    r->replan.cap = (int32_t)(r->replan.n_swap[layer] + n_paid);
    plan(r, layer, 0);
}

/* ---- correction while decoding -------------------------------------------------------------- */

static void online_prompt(coli__replay *r, uint32_t layer)
{
    coli__replay_online_learn(r, layer);
}

static void replan_online_prompt(coli__replay *r, uint32_t layer)
{
    coli__replay_online_learn(r, layer);
    replan_prompt(r, layer);
}

static void online_token(coli__replay *r)
{
    drain(r, r->opts.drain); // nothing, without a re-plan
    coli__replay_online_price(r, hysteresis, UINT64_MAX);
}

static void online_cost_token(coli__replay *r)
{
    drain(r, r->opts.drain);
    const double idle_ns = (double)r->opts.machine.trunk_token_ns / r->n_layer;
    const double least = paying_uses(r, idle_ns, STAY_TOKENS);
    coli__replay_online_price(r, fmax(hysteresis, least), carried(r, r->token_ns / 4));
}

static void online_layer(coli__replay *r, uint32_t layer, const int32_t *ids)
{
    (void)ids;
    coli__replay_online_learn(r, layer);
    coli__replay_online_swap(r, layer);
}

static void online_cost_prompt(coli__replay *r, uint32_t layer)
{
    coli__replay_online_learn(r, layer);
    cost_prompt(r, layer);
}

/* ---- slow swaps by heat -------------------------------------------------------------------- */

static void slow_token(coli__replay *r)
{
    coli__swap pair;
    const coli__plan_world world = coli__replay_world(r);
    if (r->may_swap && coli__plan_slow_swap(&world, 0, &pair)) coli__replay_begin(r, pair);
}

/* ---- LRU ----------------------------------------------------------------------------------- */

/* stamp: the last row that used an expert, from 1; 0: none did. */
static void stamp_rows(coli__replay *r, uint32_t layer)
{
    uint64_t *stamp = r->stamp + (size_t)layer * r->n_expert;
    for (uint32_t row = r->first_row; row < r->first_row + r->n_row; row++) {
        const int32_t *ids = coli__replay_ids(r, layer, row);
        for (uint32_t k = 0; k < r->t->n_id; k++) stamp[ids[k]] = row + 1;
    }
}

static void lru_prompt(coli__replay *r, uint32_t layer)
{
    stamp_rows(r, layer);
    prefill_prompt(r, layer);
}

/* Upload what this row missed, best first; each time `victim` names who goes. */
static void upload_missed(coli__replay *r, uint32_t layer, const int32_t *ids,
                          uint32_t (*victim)(const coli__replay *r, uint32_t layer, uint32_t in))
{
    for (uint32_t k = 0; k < r->t->n_id; k++) {
        const uint32_t in = (uint32_t)ids[k];
        if (!is_known(r, layer, in)) continue;
        const uint32_t out = victim(r, layer, in);
        if (out != UINT32_MAX) coli__replay_swap(r, layer, in, out);
    }
}

static uint32_t lru_victim(const coli__replay *r, uint32_t layer, uint32_t in)
{
    (void)in;
    const uint64_t *stamp = r->stamp + (size_t)layer * r->n_expert;
    uint32_t best = UINT32_MAX;
    for (uint32_t e = 0; e < r->n_expert; e++)
        if (is_resident(r, layer, e) && stamp[e] <= r->first_row &&
            (best == UINT32_MAX || stamp[e] < stamp[best]))
            best = e;
    return best;
}

static void lru_layer(coli__replay *r, uint32_t layer, const int32_t *ids)
{
    stamp_rows(r, layer);
    upload_missed(r, layer, ids, lru_victim);
}

/* ---- class-LRU ----------------------------------------------------------------------------- */

/* score: uses, halved every 128 rows and kept across evictions.  Its power of two is the expert's
 * class; the victim is the least recently used one of the lowest class. */
static void class_rows(coli__replay *r, uint32_t layer)
{
    static const double fade = 0.99459942348363317; // 0.5^(1/128)
    double *score = r->score + (size_t)layer * r->n_expert;
    for (uint32_t row = r->first_row; row < r->first_row + r->n_row; row++) {
        for (uint32_t e = 0; e < r->n_expert; e++) score[e] *= fade;
        const int32_t *ids = coli__replay_ids(r, layer, row);
        for (uint32_t k = 0; k < r->t->n_id; k++) score[ids[k]] += 1;
    }
    stamp_rows(r, layer);
}

static int class_of(double score)
{
    int power;
    frexp(score, &power);
    return score < 1 ? 0 : power;
}

static uint32_t class_victim(const coli__replay *r, uint32_t layer, uint32_t in)
{
    (void)in;
    const uint64_t *stamp = r->stamp + (size_t)layer * r->n_expert;
    const double *score = r->score + (size_t)layer * r->n_expert;
    uint32_t best = UINT32_MAX;
    int best_class = 0;
    for (uint32_t e = 0; e < r->n_expert; e++) {
        if (!is_resident(r, layer, e) || stamp[e] > r->first_row) continue;
        const int class = class_of(score[e]);
        if (best != UINT32_MAX &&
            (class > best_class || (class == best_class && stamp[e] >= stamp[best])))
            continue;
        best = e;
        best_class = class;
    }
    return best;
}

static void class_prompt(coli__replay *r, uint32_t layer)
{
    class_rows(r, layer);
    prefill_prompt(r, layer);
}

static void class_layer(coli__replay *r, uint32_t layer, const int32_t *ids)
{
    class_rows(r, layer);
    upload_missed(r, layer, ids, class_victim);
}

/* ---- Belady's bound ------------------------------------------------------------------------ */

/* No policy that uploads an expert only when a row has just missed it, whatever is resident before the
 * first token, has more hits: the victim is always who is used again last, perhaps the newcomer.
 *   own    (n_layer, n_answer, n_id) the row that uses the expert next, 0: none
 *   stamp  (n_layer, n_expert) the same, from now on; NEVER: none */
#define NEVER UINT64_MAX

static uint64_t *next_uses(const coli__replay *r, uint32_t layer, uint32_t row)
{
    const uint32_t n_answer = r->t->n_row - r->t->n_prompt;
    return (uint64_t *)r->own + ((size_t)layer * n_answer + (row - r->t->n_prompt)) * r->t->n_id;
}

/* Backwards through the answer: stamp is then the first use of each. */
static void find_next_uses(coli__replay *r, uint32_t layer)
{
    uint64_t *stamp = r->stamp + (size_t)layer * r->n_expert;
    for (uint32_t e = 0; e < r->n_expert; e++) stamp[e] = NEVER;
    for (uint32_t row = r->t->n_row; row-- > r->t->n_prompt;) {
        const int32_t *ids = coli__replay_ids(r, layer, row);
        for (uint32_t k = 0; k < r->t->n_id; k++) {
            next_uses(r, layer, row)[k] = stamp[ids[k]];
            stamp[ids[k]] = row;
        }
    }
}

static coli_status belady_init(coli__replay *r)
{
    const size_t n_answer = r->t->n_row - r->t->n_prompt, n = (size_t)r->n_layer * r->n_expert;
    r->own = coli__calloc((size_t)r->n_layer * n_answer, r->t->n_id * sizeof(uint64_t));
    if (!r->own) return COLI_E_NOMEM;
    for (uint32_t layer = 0; layer < r->n_layer; layer++) find_next_uses(r, layer);
    for (size_t i = 0; i < n; i++) // the sooner, the hotter
        r->past[i] = r->stamp[i] == NEVER ? 0 : UINT32_MAX - (uint32_t)r->stamp[i];
    coli__replay_fill(r, r->past);
    return COLI_OK;
}

static uint32_t belady_victim(const coli__replay *r, uint32_t layer, uint32_t in)
{
    const uint64_t *stamp = r->stamp + (size_t)layer * r->n_expert;
    uint32_t best = in;
    for (uint32_t e = 0; e < r->n_expert; e++)
        if (is_resident(r, layer, e) && stamp[e] > stamp[best]) best = e;
    return best == in ? UINT32_MAX : best;
}

static void belady_layer(coli__replay *r, uint32_t layer, const int32_t *ids)
{
    const uint64_t *next = next_uses(r, layer, r->first_row);
    for (uint32_t k = 0; k < r->t->n_id; k++)
        r->stamp[(size_t)layer * r->n_expert + (uint32_t)ids[k]] = next[k];
    upload_missed(r, layer, ids, belady_victim);
}

/* ---- the table ----------------------------------------------------------------------------- */

// clang-format off
const coli__replay_policy coli__replay_policies[] = {
    {.name = "uniform", .knows = "nothing: any experts", .past = COLI__PAST_NONE},
    {.name = "foreign", .knows = "heat of six prompts of other topics", .past = COLI__PAST_FOREIGN},
    {.name = "others", .knows = "heat of all other prompts", .past = COLI__PAST_OTHERS},
    {.name = "same", .knows = "heat of this very prompt and its answer", .past = COLI__PAST_SAME},
    {.name = "slow", .knows = "foreign heat, and a slow swap every 16 tokens",
        .past = COLI__PAST_FOREIGN, .token = slow_token},
    {.name = "prefill", .knows = "the prompt: its most used experts",
        .past = COLI__PAST_FOREIGN, .prompt = prefill_prompt},
    {.name = "replan", .knows = "foreign heat, then swaps by the prompt's counts",
        .past = COLI__PAST_FOREIGN, .replans = true, .prompt = replan_prompt, .token = replan_token},
    {.name = "replan-late", .knows = "the same, all layers at once when the prompt is done",
     .past = COLI__PAST_FOREIGN, .replans = true, .prompt = late_prompt, .token = replan_token},
    {.name = "replan-tail", .knows = "the same, late rows of the prompt counting more",
        .past = COLI__PAST_FOREIGN, .replans = true, .prompt = tail_prompt, .token = replan_token},
    {.name = "replan-prior", .knows = "the same, with heat as a prior",
        .past = COLI__PAST_FOREIGN, .replans = true, .prompt = prior_prompt, .token = replan_token},
    {.name = "replan-cost", .knows = "the same, as many swaps as the machine affords",
        .past = COLI__PAST_FOREIGN, .replans = true, .prompt = cost_prompt, .token = replan_token},
    {.name = "replan-online", .knows = "a re-plan, then corrections",
        .past = COLI__PAST_FOREIGN, .replans = true, .init = coli__replay_online_init,
        .prompt = replan_online_prompt, .token = online_token, .layer = online_layer},
    {.name = "online-cost", .knows = "the same, as many swaps as the machine affords",
        .past = COLI__PAST_FOREIGN, .replans = true, .init = coli__replay_online_init,
        .prompt = online_cost_prompt, .token = online_cost_token, .layer = online_layer},
    {.name = "online", .knows = "corrections without a re-plan", .past = COLI__PAST_FOREIGN,
        .init = coli__replay_online_init, .prompt = online_prompt, .token = online_token, .layer = online_layer},
    {.name = "lru", .knows = "the prompt's set, then each miss is uploaded",
        .past = COLI__PAST_FOREIGN, .prompt = lru_prompt, .layer = lru_layer},
    {.name = "class-lru", .knows = "the same, but rarely used experts go first",
        .past = COLI__PAST_FOREIGN, .prompt = class_prompt, .layer = class_layer},
    {.name = "oracle", .knows = "the future: the answer's most used experts", .past = COLI__PAST_ANSWER},
    {.name = "belady", .knows = "the future: who goes is used again last", .past = COLI__PAST_ANSWER,
        .init = belady_init, .layer = belady_layer},
};
// clang-format on
const uint32_t coli__replay_n_policy = sizeof coli__replay_policies / sizeof *coli__replay_policies;
