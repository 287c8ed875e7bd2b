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

/* The prompt so far, counted anew: what a policy makes of counts must not add up over the chunks. */
static void recount(coli__replay *r, uint32_t layer, uint32_t how)
{
    const uint32_t *past = r->past + (size_t)layer * r->n_expert;
    coli__weigh_counts(&r->weigh, layer, how, past, counts_of(r, layer));
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
    if (r->opts.min_count > 1) recount(r, layer, 0);
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

static void tail_prompt(coli__replay *r, uint32_t layer)
{
    recount(r, layer, COLI__WEIGH_TAIL);
    plan(r, layer, r->opts.min_count * COLI__WEIGH_ONE);
}

static void prior_prompt(coli__replay *r, uint32_t layer)
{
    recount(r, layer, COLI__WEIGH_PRIOR);
    plan(r, layer, r->opts.min_count * COLI__WEIGH_ONE);
}

/* ---- what the machine affords ---------------------------------------------------------------- */

static coli__speeds speeds(const coli__replay *r)
{
    const coli__replay_machine *m = &r->opts.machine;
    const double bytes = (double)m->expert_bytes;
    return (coli__speeds){.copy_ns =
                              m->link_bytes_per_s == 0
                                  ? 0
                                  : (double)m->slow * ((double)m->n_copy * (double)m->latency_ns +
                                                       bytes * 1e9 / (double)m->link_bytes_per_s),
                          .host_ns = bytes * 1e9 / (double)m->cpu_bytes_per_s,
                          .device_ns = bytes * 1e9 / (double)m->bw_bytes_per_s,
                          .waits = m->waits};
}

/* As many swaps as pay, whatever the cap.  They may fill half of the link's time, or they would wait
 * for each other. */
static void cost_prompt(coli__replay *r, uint32_t layer)
{
    const coli__plan_world world = coli__replay_world(r);
    const coli__speeds s = speeds(r);
    const double least = coli__afford_uses(&s, r->layer_ns, COLI__AFFORD_ANSWER);
    r->replan.cap = INT32_MAX;
    coli__replan_plan_paying(&r->replan, &world, layer, least * (r->first_row + r->n_row),
                             coli__afford_copies(&s, r->layer_ns / 2));
    drain(r, COLI__REPLAN_PER_CALL);
}

/* Begin, if the prompt's own transfers do not have to wait for it. */
static bool begin_held(void *replay, coli__swap swap)
{
    coli__replay *r = replay;
    const coli__speeds s = speeds(r);
    if (!coli__pace_may(&r->pace, s.copy_ns) || !coli__replay_begin(r, swap)) return false;
    coli__pace_took(&r->pace, s.copy_ns);
    return true;
}

static void hold_prompt(coli__replay *r, uint32_t layer)
{
    const coli__plan_world world = coli__replay_world(r);
    const double idle_ns = (double)(r->n_row * r->opts.machine.trunk_row_ns) / r->n_layer;
    coli__replan_plan(&r->replan, &world, (int32_t)layer, NULL);
    coli__pace_idle(&r->pace, idle_ns, speeds(r).copy_ns);
    coli__replan_drain(&r->replan, r->place, COLI__REPLAN_PER_CALL, begin_held, r);
}

/* ---- correction while decoding -------------------------------------------------------------- */

static coli_status online_init(coli__replay *r)
{
    COLI_TRY(coli__online_create(r->n_layer, r->n_expert, 1, &r->online));
    coli__online_prompt(r->online, r->past);
    return COLI_OK;
}

static void online_prompt(coli__replay *r, uint32_t layer)
{
    coli__online_learn(r->online, layer, coli__replay_ids(r, layer, r->first_row), r->n_row,
                       r->t->n_id);
}

static void replan_online_prompt(coli__replay *r, uint32_t layer)
{
    online_prompt(r, layer);
    replan_prompt(r, layer);
}

/* The price that leaves no more than `most` swaps for this token, or what the allowance leaves. */
static void set_price(coli__replay *r, double least, uint64_t most)
{
    const coli__plan_world world = coli__replay_world(r);
    const uint64_t left = coli__replay_left(r);
    coli__online_price(r->online, &world, least, left < most ? left : most);
}

static void online_token(coli__replay *r)
{
    drain(r, r->opts.drain); // nothing, without a re-plan
    set_price(r, COLI__ONLINE_HYSTERESIS, UINT64_MAX);
}

/* Copies may fill a quarter of the link's time. */
static void online_cost_token(coli__replay *r)
{
    drain(r, r->opts.drain);
    const coli__speeds s = speeds(r);
    const double idle_ns = (double)r->opts.machine.trunk_token_ns / r->n_layer;
    const double least = coli__afford_uses(&s, idle_ns, COLI__AFFORD_STAY);
    set_price(r, fmax(COLI__ONLINE_HYSTERESIS, least), coli__afford_copies(&s, r->token_ns / 4));
}

static void online_layer(coli__replay *r, uint32_t layer, const int32_t *ids)
{
    const coli__plan_world world = coli__replay_world(r);
    coli__swap best;
    coli__online_learn(r->online, layer, ids, 1, r->t->n_id);
    if (coli__online_best(r->online, &world, layer, &best) &&
        coli__replay_swap(r, layer, best.in % r->n_expert, best.out % r->n_expert))
        coli__online_begun(r->online);
}

static void online_cost_prompt(coli__replay *r, uint32_t layer)
{
    online_prompt(r, layer);
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
    {.name = "replan-hold", .knows = "the same, swaps waiting for a link that is idle",
        .past = COLI__PAST_FOREIGN, .replans = true, .prompt = hold_prompt, .token = replan_token},
    {.name = "replan-online", .knows = "a re-plan, then corrections",
        .past = COLI__PAST_FOREIGN, .replans = true, .init = online_init,
        .prompt = replan_online_prompt, .token = online_token, .layer = online_layer},
    {.name = "online-cost", .knows = "the same, as many swaps as the machine affords",
        .past = COLI__PAST_FOREIGN, .replans = true, .init = online_init,
        .prompt = online_cost_prompt, .token = online_cost_token, .layer = online_layer},
    {.name = "online", .knows = "corrections without a re-plan", .past = COLI__PAST_FOREIGN,
        .init = online_init, .prompt = online_prompt, .token = online_token, .layer = online_layer},
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
