/* replay.c - see replay.h.
 *
 * The idea.  A policy is judged by what it does to a host that runs a layer like this:
 *
 *     route -> issue the residents to the device -> compute the misses and the shared expert on the
 *     processor -> take the device's results -> the policy looks at what was used, and may begin
 *     uploads -> next layer
 *
 * so a run is that loop over recorded routing, with the simulated device for a clock.  The copy
 * engine is one: activations wait behind uploads, which is the price of a policy that moves much.
 * The processor moves the clock by itself, by the weights that it reads or the products that it
 * makes, whichever takes longer.
 *
 * States of an expert, and which function makes each transition:
 *
 *     known --swap()--> queued --land()--> resident --swap(), as victim--> known
 *
 * A victim is gone when the upload begins, the newcomer is there when it ends; in between the slot
 * serves nobody.  Uploads land in the order in which they began, because the copy engine works so.
 *
 * Invariants: (1) resident + queued == n_slot times the layers; (2) hits + misses == used; (3) the same
 * input gives the same numbers: ties go to the lower id.
 *
 * A prompt comes in chunks of up to 512 rows, and a chunk's rows go to the device in groups of up to
 * 32; a resident expert is read once per group in which a row uses it. */
#include "replay.h"

#include <assert.h>
#include <string.h>

#include "../base/alloc.h"

enum {
    CHUNK_ROWS = 512,
    GROUP_ROWS = 32,
    LAUNCHES = 2, // of a group: gate and up; down
    FOREIGN_PROMPTS = 6
};

/* An upload on its way. */
struct coli__replay_flight {
    uint32_t id;
    double land_ns;
};

const int32_t *coli__replay_ids(const coli__replay *r, uint32_t layer, uint32_t row)
{
    return r->t->ids + ((size_t)layer * r->t->n_row + row) * r->t->n_id;
}

static uint8_t *place_of(const coli__replay *r, uint32_t layer, int32_t expert)
{
    return &r->place[(size_t)layer * r->n_expert + (uint32_t)expert];
}

/* ---- uploads ------------------------------------------------------------------------------- */

static void land(coli__replay *r)
{
    while (r->n_flight && r->flight[r->first_flight].land_ns <= r->device.now_ns) {
        r->place[r->flight[r->first_flight].id] = COLI__PLACE_RESIDENT;
        r->first_flight = (r->first_flight + 1) % r->cap_flight;
        r->n_flight--;
    }
}

/* The copies of one expert; returns when the last of them is done. */
static double copy_expert(coli__replay *r)
{
    const coli__replay_machine *m = &r->opts.machine;
    if (m->link_bytes_per_s == 0) return r->device.now_ns;
    const double begin_ns = r->device.now_ns;
    return begin_ns + fake_model_upload_parts(&r->device, m->expert_bytes, m->n_copy, m->waits);
}

/* Uploads that may have begun by now.  What the prompt leaves is spread evenly over the answer. */
static uint64_t allowed(const coli__replay *r)
{
    const uint64_t all = r->opts.allowance, spent = r->result.n_prefill_upload;
    if (r->in_prompt || all == UINT64_MAX) return all;
    const uint64_t token = r->first_row - r->t->n_prompt + 1, n = r->t->n_row - r->t->n_prompt;
    return spent + (uint64_t)((double)(all - spent) * (double)token / (double)n);
}

uint64_t coli__replay_left(const coli__replay *r)
{
    const uint64_t n = r->result.n_prefill_upload + r->result.n_upload, all = allowed(r);
    return all > n ? all - n : 0;
}

static bool swap(coli__replay *r, coli__swap pair)
{
    if (coli__replay_left(r) == 0) return false;
    if (r->place[pair.in] != COLI__PLACE_KNOWN || r->place[pair.out] != COLI__PLACE_RESIDENT)
        return false;
    r->place[pair.out] = COLI__PLACE_KNOWN;
    r->place[pair.in] = COLI__PLACE_QUEUED;
    const uint32_t last = (r->first_flight + r->n_flight++) % r->cap_flight;
    r->flight[last] = (struct coli__replay_flight){pair.in, copy_expert(r)};
    (*(r->in_prompt ? &r->result.n_prefill_upload : &r->result.n_upload))++;
    land(r);
    return true;
}

bool coli__replay_swap(coli__replay *r, uint32_t layer, uint32_t in, uint32_t out)
{
    const uint32_t first = layer * r->n_expert;
    return swap(r, (coli__swap){first + in, first + out});
}

bool coli__replay_begin(void *replay, coli__swap pair)
{
    coli__replay *r = replay;
    return r->n_flight < COLI__REPLAN_PER_CALL && swap(r, pair);
}

coli__plan_world coli__replay_world(const coli__replay *r)
{
    return (coli__plan_world){
        .n_layer = r->n_layer, .n_expert = r->n_expert, .place = r->place, .heat = r->heat.count};
}

/* ---- one layer ----------------------------------------------------------------------------- */

static double ns_of(uint64_t amount, uint64_t per_s)
{
    return (double)amount * 1e9 / (double)per_s;
}

/* The processor computes one expert for n_row rows. */
static double host_ns(const coli__replay *r, uint32_t n_row)
{
    const coli__replay_machine *m = &r->opts.machine;
    const double reading = ns_of(m->expert_bytes, m->cpu_bytes_per_s);
    const double multiplying = (double)n_row * ns_of(m->expert_mac, m->cpu_mac_per_s);
    return reading > multiplying ? reading : multiplying;
}

/* What a group of rows is to the device. */
typedef struct group {
    uint32_t n_row, n_read, n_pair; // rows with a resident; residents, once each; all pairs
} group;

static fake_work work_of(const coli__replay *r, group g)
{
    const coli__replay_machine *m = &r->opts.machine;
    enum { ROW_GROUP = 64 }; // an activation travels as bytes, with a scale for each 64
    return (fake_work){.in_bytes = g.n_row * (m->d_model + m->d_model / ROW_GROUP * 4),
                       .n_launch = LAUNCHES,
                       .weight_bytes = g.n_read * m->expert_bytes,
                       .out_bytes = g.n_pair * (4 * m->d_model + 1)};
}

/* Rows [first, first + n) of a layer; misses are added to n_missed. */
static group look_at(coli__replay *r, uint32_t layer, uint32_t first, uint32_t n)
{
    group g = {0};
    r->n_group++;
    for (uint32_t row = first; row < first + n; row++) {
        const int32_t *ids = coli__replay_ids(r, layer, row);
        const uint32_t before = g.n_pair;
        for (uint32_t k = 0; k < r->t->n_id; k++) {
            if (*place_of(r, layer, ids[k]) != COLI__PLACE_RESIDENT) {
                r->n_missed[ids[k]]++;
                continue;
            }
            g.n_pair++;
            g.n_read += r->last_group[ids[k]] != r->n_group;
            r->last_group[ids[k]] = r->n_group;
        }
        g.n_row += g.n_pair > before;
    }
    return g;
}

/* Let the layer compute rows [first, first + n_row), a chunk at most; counts hits. */
static void compute(coli__replay *r, uint32_t layer, uint32_t first, uint32_t n_row,
                    uint64_t *n_hit)
{
    group groups[CHUNK_ROWS / GROUP_ROWS];
    const uint32_t n_group = (n_row + GROUP_ROWS - 1) / GROUP_ROWS;
    memset(r->n_missed, 0, r->n_expert * sizeof *r->n_missed);
    for (uint32_t i = 0; i < n_group; i++) {
        const uint32_t at = i * GROUP_ROWS, left = n_row - at;
        groups[i] = look_at(r, layer, first + at, left < GROUP_ROWS ? left : GROUP_ROWS);
    }
    double host = host_ns(r, n_row); // the shared expert
    for (uint32_t e = 0; e < r->n_expert; e++)
        if (r->n_missed[e]) host += host_ns(r, r->n_missed[e]);
    for (uint32_t i = 0; i < n_group; i++) { // the processor works all the time
        if (groups[i].n_pair) fake_model_issue(&r->device, work_of(r, groups[i]));
        r->device.now_ns += host / n_group;
        if (groups[i].n_pair) fake_model_take(&r->device);
        *n_hit += groups[i].n_pair;
    }
}

static void run_layer(coli__replay *r, uint32_t layer, uint32_t first, uint32_t n_row)
{
    const coli__replay_machine *m = &r->opts.machine;
    const uint64_t trunk_ns = r->in_prompt ? n_row * m->trunk_row_ns : m->trunk_token_ns;
    r->device.now_ns += (double)trunk_ns / r->n_layer;
    land(r);
    compute(r, layer, first, n_row, r->in_prompt ? &r->result.n_prefill_hit : &r->result.n_hit);
    for (uint32_t row = first; row < first + n_row; row++) {
        const int32_t *ids = coli__replay_ids(r, layer, row);
        coli__heat_use(&r->heat, layer, ids, r->t->n_id);
        if (!r->in_prompt) continue;
        coli__replan_use(&r->replan, layer, ids, r->t->n_id);
        coli__weigh_use(&r->weigh, layer, ids, 1, r->t->n_id);
    }
}

/* ---- one run ------------------------------------------------------------------------------- */

static void run_prompt(coli__replay *r)
{
    r->in_prompt = true;
    coli__replan_prompt(&r->replan);
    for (uint32_t at = 0; at < r->t->n_prompt; at += CHUNK_ROWS) {
        const uint32_t left = r->t->n_prompt - at, n = left < CHUNK_ROWS ? left : CHUNK_ROWS;
        r->first_row = at;
        r->n_row = n;
        for (uint32_t layer = 0; layer < r->n_layer; layer++) {
            const double before_ns = r->device.now_ns;
            run_layer(r, layer, at, n);
            r->layer_ns = r->device.now_ns - before_ns;
            if (r->policy->prompt) r->policy->prompt(r, layer);
        }
    }
    r->result.prefill_ns = r->device.now_ns;
    r->in_prompt = false;
}

static void run_answer(coli__replay *r)
{
    r->n_row = 1;
    r->token_ns = (double)r->opts.machine.trunk_token_ns; // at least
    for (r->first_row = r->t->n_prompt; r->first_row < r->t->n_row; r->first_row++) {
        const double before_ns = r->device.now_ns;
        r->may_swap = coli__heat_tick(&r->heat);
        if (r->policy->token) r->policy->token(r);
        for (uint32_t layer = 0; layer < r->n_layer; layer++) {
            run_layer(r, layer, r->first_row, 1);
            if (r->policy->layer)
                r->policy->layer(r, layer, coli__replay_ids(r, layer, r->first_row));
        }
        r->token_ns = r->device.now_ns - before_ns;
    }
    r->result.decode_ns = r->device.now_ns - r->result.prefill_ns;
}

/* Invariant (1). */
#ifndef NDEBUG
static bool slots_hold(const coli__replay *r)
{
    const size_t n = (size_t)r->n_layer * r->n_expert;
    size_t n_held = 0;
    for (size_t i = 0; i < n; i++) n_held += r->place[i] != COLI__PLACE_KNOWN;
    return n_held == (size_t)r->n_layer * r->opts.n_slot;
}
#endif

/* ---- the past ------------------------------------------------------------------------------ */

static void count_rows(const coli__trace *t, uint32_t first, uint32_t n_expert, uint32_t *counts)
{
    for (uint32_t layer = 0; layer < t->n_layer; layer++)
        coli__count_add(counts + (size_t)layer * n_expert, n_expert,
                        t->ids + ((size_t)layer * t->n_row + first) * t->n_id,
                        (size_t)(t->n_row - first) * t->n_id);
}

static void count_past(const coli__traces *all, uint32_t self, coli__replay_past past,
                       uint32_t *counts)
{
    const coli__trace *t = &all->traces[self];
    if (past == COLI__PAST_SAME) count_rows(t, 0, all->n_expert, counts);
    if (past == COLI__PAST_ANSWER) count_rows(t, t->n_prompt, all->n_expert, counts);
    uint32_t n = 0;
    for (uint32_t i = 0; i < all->n_trace; i++) {
        const bool foreign = strcmp(all->traces[i].topic, t->topic) != 0 && n < FOREIGN_PROMPTS;
        if (!(past == COLI__PAST_FOREIGN && foreign) && !(past == COLI__PAST_OTHERS && i != self))
            continue;
        count_rows(&all->traces[i], 0, all->n_expert, counts);
        n++;
    }
}

/* Numbers that are as good as any (splitmix64): whoever is picked by them is picked at random. */
static void count_at_random(uint64_t seed, uint32_t n, uint32_t *counts)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t z = (seed += 0x9E3779B97F4A7C15u);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        counts[i] = (uint32_t)(z >> 32);
    }
}

void coli__replay_fill(coli__replay *r, const uint32_t *counts)
{
    memset(r->place, COLI__PLACE_KNOWN, (size_t)r->n_layer * r->n_expert);
    for (uint32_t layer = 0; layer < r->n_layer; layer++) {
        const size_t first = (size_t)layer * r->n_expert;
        coli__plan_order(1, r->n_expert, counts + first, r->keys, r->order);
        for (uint32_t i = 0; i < r->opts.n_slot; i++)
            r->place[first + r->order[i]] = COLI__PLACE_RESIDENT;
    }
}

/* ---- begin and end ------------------------------------------------------------------------- */

static coli_status check(const coli__traces *all, const coli__replay_opts *o)
{
    const coli__replay_machine *m = &o->machine;
    if (o->policy >= coli__replay_n_policy)
        return coli__fail(COLI_E_INVALID, "replay: there is no policy %u", o->policy);
    if (o->n_slot == 0 || o->n_slot > all->n_expert)
        return coli__fail(COLI_E_INVALID, "replay: expected 1 to %u residents, found %u",
                          all->n_expert, o->n_slot);
    if (m->bw_bytes_per_s == 0 || m->cpu_bytes_per_s == 0 || m->cpu_mac_per_s == 0 ||
        m->n_copy == 0 || m->slow == 0)
        return coli__fail(COLI_E_INVALID, "replay: a speed of the machine is 0");
    return COLI_OK;
}

static coli_status init(coli__replay *r, const coli__traces *all, uint32_t i,
                        const coli__replay_opts *o)
{
    const coli__replay_machine *m = &o->machine;
    r->t = &all->traces[i];
    r->opts = *o;
    r->policy = &coli__replay_policies[o->policy];
    r->n_layer = all->n_layer;
    r->n_expert = all->n_expert;
    const size_t n = (size_t)all->n_layer * all->n_expert;
    r->past = coli__calloc(n, sizeof *r->past);
    r->place = coli__calloc(n, sizeof *r->place);
    r->heat_count = coli__calloc(n, sizeof *r->heat_count);
    r->keys = coli__calloc(n, sizeof *r->keys);
    r->order = coli__calloc(all->n_expert, sizeof *r->order);
    r->swaps = coli__calloc(n, sizeof *r->swaps);
    r->stamp = coli__calloc(n, sizeof *r->stamp);
    r->score = coli__calloc(n, sizeof *r->score);
    r->n_missed = coli__calloc(all->n_expert, sizeof *r->n_missed);
    r->last_group = coli__calloc(all->n_expert, sizeof *r->last_group);
    r->cap_flight = (uint32_t)n; // an expert is on its way once at most
    r->flight = coli__calloc(n, sizeof *r->flight);
    if (!r->past || !r->place || !r->heat_count || !r->keys || !r->order || !r->swaps ||
        !r->stamp || !r->score || !r->n_missed || !r->last_group || !r->flight)
        return COLI_E_NOMEM;
    COLI_TRY(coli__replan_init(&r->replan, all->n_layer, all->n_expert, o->cap));
    COLI_TRY(coli__weigh_init(&r->weigh, all->n_layer, all->n_expert));
    fake_model_init(
        &r->device,
        (fake_speed){.link_bytes_per_s = m->link_bytes_per_s ? m->link_bytes_per_s : UINT64_MAX,
                     .bw_bytes_per_s = m->bw_bytes_per_s,
                     .latency_ns = m->latency_ns,
                     .kernel_ns = m->kernel_ns,
                     .slow = m->slow});
    if (r->policy->past == COLI__PAST_NONE)
        count_at_random(o->seed + i, (uint32_t)n, r->past);
    else
        count_past(all, i, r->policy->past, r->past);
    coli__heat_init(&r->heat, all->n_layer, all->n_expert, r->heat_count, r->past);
    coli__replay_fill(r, r->past);
    return r->policy->init ? r->policy->init(r) : COLI_OK;
}

static void finish(coli__replay *r)
{
    coli__replan_finish(&r->replan);
    coli__weigh_finish(&r->weigh);
    coli__online_destroy(r->online);
    coli__free(r->past);
    coli__free(r->place);
    coli__free(r->heat_count);
    coli__free(r->keys);
    coli__free(r->order);
    coli__free(r->swaps);
    coli__free(r->stamp);
    coli__free(r->score);
    coli__free(r->own);
    coli__free(r->n_missed);
    coli__free(r->last_group);
    coli__free(r->flight);
}

coli_status coli__replay_run(const coli__traces *all, uint32_t i, const coli__replay_opts *opts,
                             coli__replay_result *out)
{
    *out = (coli__replay_result){0};
    COLI_TRY(check(all, opts));
    coli__replay r = {0};
    coli_status status = init(&r, all, i, opts);
    if (status == COLI_OK) {
        run_prompt(&r);
        run_answer(&r);
        assert(slots_hold(&r));
        *out = r.result;
    }
    finish(&r);
    return status;
}
