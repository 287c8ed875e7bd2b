/* moe.c - expert-major: each expert's weights are read once per chunk, however many rows use it.
 *
 * route    per row: router logits, top-k, the row quantised in the forms that the experts read.
 * bucket   on one thread: a counting sort turns (row, rank) pairs into one run of pairs per expert.
 *
 *              rows         0: e3 e1     1: e1 e7
 *              expert runs  e1: (0,1) (1,0)   e3: (0,0)   e7: (1,1)      pair 0 1 | 2 | 3
 *
 * inner    one item per (expert, 64 inner columns): gate and up for its rows, silu(gate) * up,
 *          quantised at once, because a block of 64 is whole groups.           -- synchronisation 1
 * outer    down for its rows, and each row joined from its experts' products in rank order.  Of few rows
 *          one item per (expert, tile of output columns): who does the last tile of some columns joins
 *          them.  Of many rows one item per tile, for every expert: the products stay in the worker's
 *          own cache until it joins them.                                      -- synchronisation 2
 *
 * moe_route.c has the first, moe_products.c inner and outer, moe_devices.c and moe_waves.c what is told below,
 * moe_state.c the memory for it; moe_parts.h is what they share.
 *
 * A worker takes neighbouring items and does those of one expert at once: what it reads of gate, then of
 * up, or of down is one long piece, which memory gives soonest (docs/performance.md).
 *
 * The shared expert is one more expert that every row uses; its pairs follow the routed ones.
 *
 * Devices.  Runs whose expert a device holds are handed to it after `bucket`, as one group per
 * device; the processor computes the others meanwhile.  An item of `outer` waits for the groups only
 * before its join, which takes a pair's row from the device or from the products here.  When a group fails, no
 * item joins: the outcome of a group is the same for whoever asks.  The failed runs then go
 * through `inner`, and `outer` is done once more.
 *
 * A shared expert that a device holds is a group of its own, which goes first; its run then has no rows
 * here.  When that group fails, it is the processor's for good.
 *
 * A store (store.h).  The runs are computed in waves: first the experts that are in memory, while others
 * are read; then whatever has arrived, as slots become free.  A wave is `inner` and the products of
 * `outer`, which wait in `results` for the join, as those of a device do.  The last wave is what the join
 * is done with.
 *
 *     in memory  e3 e7          wave 1: e3 e7     meanwhile e1 e9 are read into the slots that are free
 *     not        e1 e9 e4       wave 2: e1 e9     meanwhile e4, into e3's slot
 *                               the last: e4, and the join
 *
 * A stream (stream.h).  Of the runs that are the processor's, those with many rows may pass through a
 * device's spare slots meanwhile.  The stream does the device's groups last; its products are in
 * `results`, too.  A run that was not done is one of a failed group.
 *
 * A guess.  While few rows are computed, the next layer's router is applied to this layer's input, which
 * mostly shows what that layer will need; the store reads it early.  It is one more item of the first
 * `inner`.
 *
 * Why the join is in `outer`: a column of the output needs only that column of every expert, so whoever
 * completes it adds in rank order without waiting for anyone.
 *
 * Invariants: (1) a row's bytes depend on that row alone: every product and sum is per row in a
 * fixed order.  (2) An expert that no row chose is not read. */
#include "moe_parts.h"

#include <string.h>

#include "../../include/coli/exact.h"

void coli__moe_set_router(coli__moe *m, coli__router *router)
{
    m->router = router;
}

void coli__moe_set_importance(coli__moe *m, coli__importance *importance)
{
    m->importance = importance;
}

float *coli__moe_input(coli__moe *m, uint32_t t)
{
    return m->x.f + t * m->x.ld;
}

const int32_t *coli__moe_ids(const coli__moe *m, uint32_t t)
{
    return m->ids + (size_t)t * m->n_used;
}

const float *coli__moe_weights(const coli__moe *m, uint32_t t)
{
    return m->w + (size_t)t * m->n_used;
}

void coli__moe_rank(const coli__moe *m, uint32_t t, uint32_t n, int32_t *ids, float *mass)
{
    const float *logits = m->logits + (size_t)t * m->n_expert;
    coli__route_softmax_topk(m->k, logits, m->n_expert, n, ids, mass);
    const float most = logits[ids[0]];
    float sum = 0;
    for (uint32_t e = 0; e < m->n_expert; e++) sum += coli_exp(logits[e] - most);
    for (uint32_t i = 0; i < n; i++) mass[i] = coli_exp(logits[ids[i]] - most) * coli_recip(sum);
}

void coli__moe_levels(const coli__moe *m, uint32_t t, uint8_t *levels)
{
    for (uint32_t rank = 0; rank < m->n_used; rank++) {
        const uint32_t pair = m->pair_of[(size_t)t * m->n_used + rank];
        const coli__source *s = m->pair_source ? &m->pair_source[pair] : NULL;
        levels[rank] = !s                                              ? COLI_LEVEL_RAM
                       : s->device >= 0 || s->device == COLI__STREAMED ? COLI_LEVEL_VRAM
                       : s->row                                        ? COLI_LEVEL_DISK
                                                                       : COLI_LEVEL_RAM;
    }
}

void coli__moe_reject(coli__moe *m, uint32_t t)
{
    unsigned seen = atomic_load(&m->first_bad);
    while (t < seen && !atomic_compare_exchange_weak(&m->first_bad, &seen, t)) {
    }
}

/* -- bucket ------------------------------------------------------------------------------------ */

void coli__moe_bucket(coli__moe *m, uint32_t n_tok)
{
    memset(m->n_of, 0, m->n_expert * sizeof *m->n_of);
    m->n_pair = n_tok * m->n_used;
    for (uint32_t p = 0; p < m->n_pair; p++) m->n_of[m->ids[p]]++;

    m->n_run = 0;
    uint32_t first = 0;
    for (uint32_t e = 0; e < m->n_expert; e++) {
        if (m->n_of[e]) m->runs[m->n_run++] = (coli__run){e, first, m->n_of[e], NULL};
        const uint32_t n = m->n_of[e];
        m->n_of[e] = first; // from here on: where its next pair goes
        first += n;
    }
    for (uint32_t p = 0; p < m->n_pair; p++) {
        const uint32_t at = m->n_of[m->ids[p]]++;
        m->pair_row[at] = p / m->n_used;
        m->pair_of[p] = at;
        if (m->pair_source) m->pair_source[at] = (coli__source){COLI__HOST, 0};
    }
    m->runs[m->n_run++] = (coli__run){m->n_expert, 0, n_tok, NULL};
}

/* Everything that the processor computes but the join. */
static coli_status compute(coli__moe_job *j, uint32_t first, uint32_t n, uint32_t n_block_shared)
{
    if (j->m->store) return coli__moe_run_waves(j, first, n, n_block_shared);
    if (j->inner_is_done) return COLI_OK;
    coli__moe_run_inner(j, first, n, n_block_shared);
    return COLI_OK;
}

/* What is left to do when `outer` has seen the groups: note flagged rows, or do failed runs here. */
static coli_status finish_groups(coli__moe_job *j)
{
    coli__moe *m = j->m;
    const coli_bk_result *results[COLI__N_RESULT];
    if (!coli__moe_wait_for_groups(m, results)) {
        const bool shared_failed = m->shared_device != COLI__HOST && !results[COLI__SHARED];
        if (shared_failed) coli__moe_take_back_shared(m, j->layer, j->n_tok);
        const uint32_t n_shared = shared_failed ? coli__moe_n_block_shared(m) : 0;
        const uint32_t n_run = coli__moe_take_back(m, results, j->n_tok);
        if (n_run > 0)
            COLI_TRY(compute(j, m->n_run - 1 - n_run, n_run, n_shared));
        else
            coli__moe_run_inner(j, 0, 0, n_shared); // and the last wave stays as it is
        coli__moe_run_outer(j);
    }
    coli__moe_reject_flagged(m, results, j->n_tok);
    return COLI_OK;
}

/* What a routed expert of one row took on the processor, by what `compute` took, which waits for no
 * device; 0: none was there.  `inner` is two of its three matrices, waves go through all; a shared expert
 * that is computed here counts by its size. */
static double host_ns(const coli__moe *m, const coli__moe_layer *layer, uint64_t compute_ns)
{
    const double routed = (double)coli__mat_size(&layer->experts->gate);
    const uint32_t n = m->n_run - 1;
    if (n == 0 || routed == 0) return 0;
    const double shared =
        m->shared_device == COLI__HOST ? (double)coli__mat_size(&layer->shared_gate) : 0;
    return (m->store ? 1 : 1.5) * (double)compute_ns / (n + shared / routed);
}

/* What a row of an expert took, of many, likewise. */
static double host_row_ns(const coli__moe_job *j, uint64_t compute_ns)
{
    const coli__moe *m = j->m;
    const double routed = (double)coli__mat_size(&j->layer->experts->gate);
    double n_row = 0;
    for (uint32_t i = 0; i + 1 < m->n_run; i++) n_row += m->runs[i].n;
    if (n_row == 0 || routed == 0) return 0;
    if (m->shared_device == COLI__HOST)
        n_row += j->n_tok * (double)coli__mat_size(&j->layer->shared_gate) / routed;
    return (m->store ? 1 : 1.5) * (double)compute_ns / n_row;
}

static void note_times(coli__moe_job *j, uint64_t compute_ns)
{
    if (j->n_tok == 1)
        j->host_ns = host_ns(j->m, j->layer, compute_ns);
    else
        j->host_row_ns = host_row_ns(j, compute_ns);
}

static coli_status compute_and_join(coli__moe_job *j)
{
    coli__moe *m = j->m;
    if (m->store) {
        coli__moe_score_guess(j);
        coli__moe_plan_guess(j);
    }
    const uint64_t begin_ns = j->timed ? coli__clock_ns() : 0;
    COLI_TRY(compute(j, 0, m->n_run - 1, coli__moe_n_block_shared(m)));
    if (begin_ns) note_times(j, coli__clock_ns() - begin_ns);
    coli__moe_run_outer(j);
    return coli__moe_has_groups(m) ? finish_groups(j) : COLI_OK;
}

static void abandon_groups(const coli__moe *m)
{
    const coli_bk_result *results[COLI__N_RESULT];
    if (coli__moe_has_groups(m)) coli__moe_wait_for_groups(m, results);
}

static void count_rows(const coli__moe *m)
{
    uint64_t n_host = 0;
    for (uint32_t i = 0; i + 1 < m->n_run; i++) n_host += m->runs[i].n;
    coli__devices_count(m->devices, m->n_pair - n_host, n_host, 0);
    uint64_t n_row = 0;
    for (uint32_t i = 0; i < m->n_passing; i++) n_row += m->passing[i].n;
    if (n_row > 0) coli__devices_count_streamed(m->devices, m->n_passing, n_row);
}

/* What the matrices of this layer were multiplied with. */
static void add_importance(const coli__moe *m, const coli__moe_layer *layer, uint32_t n_tok)
{
    coli__importance_rows(m->importance, &layer->shared_gate, &m->x, 0, n_tok);
    coli__importance_rows(m->importance, &layer->shared_up, &m->x, 0, n_tok);
    coli__importance_rows(m->importance, &layer->shared_down, &m->inner_shared, 0, n_tok);
    for (uint32_t p = 0; p < m->n_pair; p++) {
        const uint32_t expert = (uint32_t)m->ids[p];
        coli__importance_expert(m->importance, layer->experts, expert, false, &m->x, p / m->n_used);
        coli__importance_expert(m->importance, layer->experts, expert, true, &m->inner,
                                m->pair_of[p]);
    }
}

/* Whether somebody wants to know how long the processor takes. */
static bool is_timed(const coli__moe *m, uint32_t n_tok)
{
    return n_tok == 1 ? coli__tier_measures(m->tier)
                      : coli__tier_stream_rows(m->tier) == COLI_STREAM_AUTO;
}

/* The runs, and devices begin with theirs.  When the experts were known. */
static uint64_t choose_experts(coli__moe_job *j, bool routed)
{
    coli__moe *m = j->m;
    if (!routed && j->n_tok == 1 && m->n_device == 0 && !m->store) {
        coli__moe_run_route_and_inner(j);
        j->inner_is_done = true;
        return coli__clock_ns();
    }
    if (!routed) coli__moe_run_route(j);
    const uint64_t now = coli__clock_ns();
    coli__moe_bucket(m, j->n_tok);
    coli__moe_start_groups(m, j->layer, j->n_tok);
    return now;
}

coli__moe_times coli__moe_take_times(coli__moe *m)
{
    const coli__moe_times times = m->times;
    m->times = (coli__moe_times){0};
    return times;
}

coli_status coli__moe_run(coli__moe *m, const coli__moe_layer *layer, coli__pool *pool,
                          uint32_t n_tok, bool routed, uint32_t pos, float *h)
{
    const uint64_t start_ns = coli__clock_ns();
    coli__moe_job j = {.m = m,
                       .pool = pool,
                       .layer = layer,
                       .n_tok = n_tok,
                       .n_block = coli__divide_up(m->d_ff, COLI__MOE_INNER),
                       .h = h,
                       .timed = is_timed(m, n_tok)};
    const uint64_t routed_ns = choose_experts(&j, routed);
    const coli_status status = compute_and_join(&j);
    if (m->store) coli__moe_release_last_wave(&j); // after a failure some of it is released already
    const unsigned bad = atomic_exchange(&m->first_bad, UINT32_MAX);
    if (status != COLI_OK) {
        abandon_groups(m);
        return status;
    }
    count_rows(m);
    const coli__work work = {.ids = m->ids,
                             .n_row = n_tok,
                             .n_used = m->n_used,
                             .begin_ns = routed_ns,
                             .end_ns = coli__clock_ns(),
                             .host_ns = j.host_ns,
                             .host_row_ns = j.host_row_ns};
    coli__tier_used(m->tier, layer->experts, &work);
    coli__store_used(m->store, layer->experts, m->ids, m->n_pair);
    m->times.moe_ns += coli__clock_ns() - start_ns;
    if (m->importance) add_importance(m, layer, n_tok);

    if (bad == UINT32_MAX) {
        if (m->router) coli__router_count(m->router, m->cost, n_tok);
        return COLI_OK;
    }
    return coli__fail(COLI_E_NUMERIC,
                      "position %u: an activation is not finite or 2^40 or more in magnitude",
                      pos + bad);
}
