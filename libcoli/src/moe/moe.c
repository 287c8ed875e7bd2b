/* moe.c - expert-major: each expert's weights are read once per chunk, however many rows use it.
 *
 * route    per row: router logits, top-k, the row quantised in the forms that the experts read.  Of a
 *          row alone the router's columns are shared out: see "a row alone".
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
#include "moe.h"

#include <stdatomic.h>
#include <string.h>

#include "../../include/coli/exact.h"
#include "phase.h"
#include "route.h"
#include "stream.h"

enum {
    INNER = 64,      // columns of the inner width per item: whole groups of either size
    ROWS = 32,       // rows per pass in an item: gate and up tiles stay in L1
    ROUTE_ROWS = 16, // routed at once: they stay in L2 while the router passes
    TILE = 32,       // output columns per item of `outer`: two panels
    JOIN = 256,      // columns that are joined at once: a multiple of TILE
    // so many products of a worker at once, or of few rows: they stay in the last-level cache
    PRODUCTS = 1 << 19,
    GUESS_ROWS = 4, // more rows need most of a layer's experts anyway
};

/* A run of rows that use one expert in this chunk. */
typedef struct run {
    uint32_t expert;      // n_expert: the shared one
    uint32_t first, n;    // its pairs
    const uint8_t *block; // of an expert in the store; NULL: mapped
} run;

/* Where a result comes from. */
typedef struct source {
    int32_t device; // index; HOST: the present `outer`; WAITS, STREAMED: `results`
    uint32_t row;   // of the device's result; else whether its expert was read for it
} source;

enum { HOST = -1, WAITS = -2, STREAMED = -3 };

enum {
    SHARED = COLI__MAX_DEVICE,
    N_RESULT
}; // results of the devices' groups, and the shared expert's

struct coli__moe {
    /* immutable after create */
    const coli__kernels *k;
    uint32_t n_expert, n_used, d_model, d_ff, d_ff_shared, max_tok;
    coli__tier *tier;
    coli__devices *devices; // the tier's
    uint32_t n_device;
    coli__store *store; // NULL: all experts are mapped
    const coli__moe_layer *layers;
    uint32_t n_layer;

    coli__router *router;         // of the present chunk; NULL: plain
    coli__importance *importance; // likewise; NULL: nobody asks

    /* per row */
    coli__acts x;           // (max_tok, d_model)
    float *logits;          // (max_tok, n_expert)
    coli__route_cost *cost; // (max_tok) where the router prefers
    int32_t *ids;           // (max_tok, n_used)
    float *w;               // (max_tok, n_used)
    float *shared_w;        // (max_tok)
    atomic_uint first_bad;  // lowest row whose numbers left their range; UINT32_MAX: none

    /* per chunk */
    uint32_t *n_of;          // (n_expert + 1) pairs of each expert
    run *runs;               // (n_expert + 1) the processor's; the shared expert's last
    uint32_t n_run, n_pair;  // n_pair: routed ones
    uint32_t *pair_row;      // (max_tok * n_used) row of each pair, by expert
    uint32_t *pair_of;       // (max_tok, n_used) pair of each (row, rank)
    coli__acts inner;        // (max_tok * n_used, d_ff)
    coli__acts inner_shared; // (max_tok, d_ff_shared)
    /* (n_pair + n_tok, d_model) products by pair, the shared expert's last: of few rows, in `own`; with
     * a store or streams of all, elsewhere */
    float *results;
    atomic_uint *n_left; // (d_model / JOIN) tiles, of all runs, before these columns are joined

    /* per chunk, with devices */
    coli__group **groups;        // (n_device)
    coli__group **shared_groups; // (n_device) NULL: it holds no shared expert
    int32_t shared_device;       // that has this layer's; HOST: none
    uint32_t *all_rows;          // (max_tok) 0, 1, 2, ...
    bool *in_use;                // (n_device) its group has work, and has not failed
    run *held;                   // (n_expert) runs of experts on devices
    uint32_t n_held;
    source *join_source; // (max_tok) of a row's joined sum; HOST: joined here
    uint32_t *terms;     // (n_used)

    source *pair_source; // (max_tok * n_used) with devices or a store

    /* per chunk, with streams */
    coli__stream **streams; // (n_device) NULL: none
    bool *streams_now;      // (n_device) it has work
    coli__passing *passing; // (n_expert) runs that pass through devices
    uint32_t n_passing;
    uint32_t *n_row;  // (n_expert) of runs
    uint8_t *flagged; // (max_tok * n_used) by pair, of those that passed

    /* per chunk, with a store that guesses */
    const coli__moe_layer *guess_layer; // whom the guesses are about; NULL: there are none
    uint32_t n_guess_row;
    float *guess_logits;   // (GUESS_ROWS, n_expert)
    int32_t *guess_ids;    // (GUESS_ROWS, n_used)
    float *guess_w;        // (GUESS_ROWS, n_used)
    coli__moe_times times; // the caller's, who is worker 0

    /* a row alone */
    _Alignas(64) atomic_uint next_route; // lines of their own: all workers write them
    atomic_uint n_route_left, next_shared, next_chunk;
    atomic_bool is_chosen;

    /* when another worker stopped waiting for devices, and the caller had no more items of `outer` */
    _Alignas(64) atomic_ullong waited_until_ns;
    uint64_t caller_end_ns;

    /* per worker */
    float *own; // (n_worker, n_own): products of a chunk's many rows with some columns
    size_t n_own;
};

static uint32_t divide_up(uint32_t n, uint32_t by)
{
    return n / by + (n % by != 0);
}

/* Products of a chunk with n_column columns. */
static size_t n_product(uint32_t n_tok, uint32_t n_used, uint32_t n_column)
{
    return (size_t)n_tok * ((size_t)n_used + 1) * n_column;
}

/* Few rows: all of their products stay in the cache. */
static bool few_rows(uint32_t n_tok, uint32_t n_used, uint32_t d_model)
{
    return n_product(n_tok, n_used, d_model) <= PRODUCTS;
}

/* Of many rows, how many columns a worker multiplies and joins at once. */
static uint32_t columns_at_once(uint32_t n_tok, uint32_t n_used)
{
    const size_t n = PRODUCTS / n_product(n_tok, n_used, TILE) * TILE;
    return n < TILE ? TILE : (uint32_t)n;
}

/* Numbers of `results`, where all are wanted, and of a worker's `own`, for chunks of any size. */
static size_t results_floats(uint32_t max_tok, uint32_t n_used, uint32_t d_model, bool all)
{
    return all ? n_product(max_tok, n_used, d_model) : 0;
}

static size_t own_floats(uint32_t max_tok, uint32_t n_used, uint32_t d_model)
{
    const size_t all = n_product(max_tok, n_used, d_model);
    const size_t n = n_product(max_tok, n_used, TILE);
    return all <= PRODUCTS ? all : n > PRODUCTS ? n : PRODUCTS;
}

static uint32_t forms_of_layers(const coli__moe_layer *layers, uint32_t n_layer, uint32_t *inner,
                                uint32_t *shared)
{
    uint32_t x = COLI_FORM_F32; // the router and the shared gate read f32
    *inner = *shared = 0;
    for (uint32_t i = 0; i < n_layer; i++) {
        const coli__moe_layer *l = &layers[i];
        x |= coli__form_of(l->experts->gate.fmt) | coli__form_of(l->experts->up.fmt);
        x |= coli__form_of(l->shared_gate.fmt) | coli__form_of(l->shared_up.fmt);
        *inner |= coli__form_of(l->experts->down.fmt);
        *shared |= coli__form_of(l->shared_down.fmt);
    }
    return x;
}

/* Groups of every row and one expert, on the devices that hold a shared one. */
static coli_status create_shared_groups(coli__moe *m, coli__group_limits limits)
{
    limits.max_expert = limits.n_used = 1;
    limits.max_pair = m->max_tok;
    limits.keeps = true;
    m->shared_groups = coli__calloc(m->n_device, sizeof *m->shared_groups);
    m->all_rows = coli__calloc(m->max_tok, sizeof *m->all_rows);
    if (!m->shared_groups || !m->all_rows) return COLI_E_NOMEM;
    for (uint32_t t = 0; t < m->max_tok; t++) m->all_rows[t] = t;
    for (uint32_t i = 0; i < m->n_device; i++)
        if (coli__devices_has_dense_expert(m->devices, i))
            COLI_TRY(
                coli__group_create(coli__devices_at(m->devices, i), &limits, &m->shared_groups[i]));
    return COLI_OK;
}

static coli_status create_streams(coli__moe *m, size_t max_row_bytes)
{
    const size_t n_pair = (size_t)m->max_tok * m->n_used;
    m->streams = coli__calloc(m->n_device, sizeof *m->streams);
    m->streams_now = coli__calloc(m->n_device, sizeof *m->streams_now);
    m->passing = coli__calloc(m->n_expert, sizeof *m->passing);
    m->n_row = coli__calloc(m->n_expert, sizeof *m->n_row);
    m->flagged = coli__calloc(n_pair, sizeof *m->flagged);
    if (!m->streams || !m->streams_now || !m->passing || !m->n_row || !m->flagged)
        return COLI_E_NOMEM;
    for (uint32_t i = 0; i < m->n_device; i++)
        if (coli__tier_can_stream(m->tier, i, m->layers[0].experts))
            COLI_TRY(coli__stream_create(m->tier, i, m->max_tok, max_row_bytes, m->d_model,
                                         &m->streams[i]));
    return COLI_OK;
}

static coli_status create_groups(coli__moe *m)
{
    const size_t n_pair = (size_t)m->max_tok * m->n_used;
    m->groups = coli__calloc(m->n_device, sizeof *m->groups);
    m->in_use = coli__calloc(m->n_device, sizeof *m->in_use);
    m->terms = coli__calloc(m->n_used, sizeof *m->terms);
    m->held = coli__calloc(m->n_expert, sizeof *m->held);
    m->join_source = coli__calloc(m->max_tok, sizeof *m->join_source);
    if (!m->groups || !m->in_use || !m->terms || !m->held || !m->join_source) return COLI_E_NOMEM;
    const coli__group_limits limits = {.max_x = m->max_tok,
                                       .max_expert = m->n_expert,
                                       .max_pair = (uint32_t)n_pair,
                                       .n_used = m->n_used,
                                       .d_model = m->d_model,
                                       .max_row_bytes = ((size_t)m->d_model + 63) & ~(size_t)63};
    for (uint32_t i = 0; i < m->n_device; i++)
        COLI_TRY(coli__group_create(coli__devices_at(m->devices, i), &limits, &m->groups[i]));
    if (coli__tier_stream_rows(m->tier) > 0) COLI_TRY(create_streams(m, limits.max_row_bytes));
    return create_shared_groups(m, limits);
}

coli_status coli__moe_create(const coli__moe_layer *layers, uint32_t n_layer,
                             uint32_t n_expert_used, uint32_t max_tok, uint32_t n_worker,
                             const coli__kernels *kernels, coli__tier *tier, coli__store *store,
                             coli__moe **out)
{
    *out = NULL;
    coli__moe *m = coli__alloc64(sizeof *m);
    if (!m) return COLI_E_NOMEM;
    const coli__ct_experts *e = layers[0].experts;
    m->k = kernels;
    m->n_expert = e->n_expert;
    m->n_used = n_expert_used;
    m->d_model = e->d_model;
    m->d_ff = e->d_ff;
    m->d_ff_shared = layers[0].shared_gate.n_out;
    m->max_tok = max_tok;
    m->tier = tier;
    m->devices = coli__tier_devices(tier);
    m->n_device = coli__devices_n(m->devices);
    m->shared_device = HOST;
    m->store = store;
    m->layers = layers;
    m->n_layer = n_layer;

    uint32_t inner, shared;
    const uint32_t x = forms_of_layers(layers, n_layer, &inner, &shared);
    const size_t n_pair = (size_t)max_tok * n_expert_used;
    coli_status status = coli__acts_init(&m->x, max_tok, m->d_model, x);
    if (status == COLI_OK) status = coli__acts_init(&m->inner, (uint32_t)n_pair, m->d_ff, inner);
    if (status == COLI_OK)
        status = coli__acts_init(&m->inner_shared, max_tok, m->d_ff_shared, shared);
    m->logits = coli__alloc64((size_t)max_tok * m->n_expert * sizeof(float));
    m->ids = coli__calloc(n_pair, sizeof *m->ids);
    m->w = coli__calloc(n_pair, sizeof *m->w);
    m->cost = coli__calloc(max_tok, sizeof *m->cost);
    m->shared_w = coli__calloc(max_tok, sizeof *m->shared_w);
    m->n_of = coli__calloc((size_t)m->n_expert + 1, sizeof *m->n_of);
    m->runs = coli__calloc((size_t)m->n_expert + 1, sizeof *m->runs);
    m->pair_row = coli__calloc(n_pair, sizeof *m->pair_row);
    m->pair_of = coli__calloc(n_pair, sizeof *m->pair_of);
    m->n_left = coli__calloc(divide_up(m->d_model, JOIN), sizeof *m->n_left);
    m->n_own = own_floats(max_tok, n_expert_used, m->d_model);
    m->own = coli__alloc64(n_worker * m->n_own * sizeof(float));
    const size_t n_result = results_floats(max_tok, n_expert_used, m->d_model,
                                           store || coli__tier_stream_rows(tier) > 0);
    m->results = n_result ? coli__alloc64_raw(n_result * sizeof(float)) : m->own;
    if (!m->logits || !m->cost || !m->ids || !m->w || !m->shared_w || !m->n_of || !m->runs ||
        !m->pair_row || !m->pair_of || !m->results || !m->n_left || !m->own)
        status = COLI_E_NOMEM;
    if (m->n_device > 0 || store) {
        m->pair_source = coli__calloc(n_pair, sizeof *m->pair_source);
        if (!m->pair_source) status = COLI_E_NOMEM;
    }
    if (store) {
        m->guess_logits = coli__alloc64(GUESS_ROWS * (size_t)m->n_expert * sizeof(float));
        m->guess_ids = coli__calloc(GUESS_ROWS * (size_t)m->n_used, sizeof *m->guess_ids);
        m->guess_w = coli__calloc(GUESS_ROWS * (size_t)m->n_used, sizeof *m->guess_w);
        if (!m->guess_logits || !m->guess_ids || !m->guess_w) status = COLI_E_NOMEM;
    }
    atomic_init(&m->first_bad, UINT32_MAX);
    if (status == COLI_OK && m->n_device > 0) status = create_groups(m);
    if (status != COLI_OK) {
        coli__moe_destroy(m);
        return status;
    }
    *out = m;
    return COLI_OK;
}

/* With a store: where experts were, and guesses. */
static uint64_t store_bytes(const coli__ct_experts *e, uint64_t n_pair, uint32_t n_used)
{
    const coli__moe *m = NULL; // for the sizes of its numbers
    return n_pair * sizeof *m->pair_source +
           GUESS_ROWS * (e->n_expert * sizeof *m->guess_logits +
                         n_used * (sizeof *m->guess_ids + sizeof *m->guess_w));
}

uint64_t coli__moe_bytes(const coli__moe_layer *layers, uint32_t n_layer, uint32_t n_expert_used,
                         uint32_t max_tok, uint32_t n_worker, bool with_store)
{
    const coli__moe *m = NULL; // for the sizes of its numbers
    const coli__ct_experts *e = layers[0].experts;
    uint32_t inner, shared;
    const uint32_t x = forms_of_layers(layers, n_layer, &inner, &shared);
    const uint64_t n_pair = (uint64_t)max_tok * n_expert_used;
    const uint64_t per_row =
        e->n_expert * sizeof *m->logits + sizeof *m->shared_w + sizeof *m->cost;
    const uint64_t per_pair =
        sizeof *m->ids + sizeof *m->w + sizeof *m->pair_row + sizeof *m->pair_of;
    return coli__acts_bytes(max_tok, e->d_model, x) +
           coli__acts_bytes((uint32_t)n_pair, e->d_ff, inner) +
           coli__acts_bytes(max_tok, layers[0].shared_gate.n_out, shared) + max_tok * per_row +
           n_pair * per_pair + ((uint64_t)e->n_expert + 1) * (sizeof *m->n_of + sizeof *m->runs) +
           results_floats(max_tok, n_expert_used, e->d_model, with_store) * sizeof *m->results +
           divide_up(e->d_model, JOIN) * sizeof *m->n_left +
           n_worker * own_floats(max_tok, n_expert_used, e->d_model) * sizeof *m->own +
           (with_store ? store_bytes(e, n_pair, n_expert_used) : 0);
}

void coli__moe_destroy(coli__moe *m)
{
    if (!m) return;
    coli__acts_finish(&m->x);
    coli__acts_finish(&m->inner);
    coli__acts_finish(&m->inner_shared);
    coli__free_aligned(m->logits);
    coli__free(m->cost);
    coli__free(m->ids);
    coli__free(m->w);
    coli__free(m->shared_w);
    coli__free(m->n_of);
    coli__free(m->runs);
    coli__free(m->pair_row);
    coli__free(m->pair_of);
    if (m->results != m->own) coli__free_aligned(m->results);
    coli__free(m->n_left);
    coli__free_aligned(m->own);
    for (uint32_t i = 0; m->groups && i < m->n_device; i++) coli__group_destroy(m->groups[i]);
    for (uint32_t i = 0; m->shared_groups && i < m->n_device; i++)
        coli__group_destroy(m->shared_groups[i]);
    for (uint32_t i = 0; m->streams && i < m->n_device; i++) coli__stream_destroy(m->streams[i]);
    coli__free(m->groups);
    coli__free(m->streams);
    coli__free(m->streams_now);
    coli__free(m->passing);
    coli__free(m->n_row);
    coli__free(m->flagged);
    coli__free(m->shared_groups);
    coli__free(m->all_rows);
    coli__free(m->in_use);
    coli__free(m->terms);
    coli__free(m->held);
    coli__free(m->pair_source);
    coli__free_aligned(m->guess_logits);
    coli__free(m->guess_ids);
    coli__free(m->guess_w);
    coli__free(m->join_source);
    coli__free_aligned(m);
}

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
        const source *s = m->pair_source ? &m->pair_source[pair] : NULL;
        levels[rank] = !s                                        ? COLI_LEVEL_RAM
                       : s->device >= 0 || s->device == STREAMED ? COLI_LEVEL_VRAM
                       : s->row                                  ? COLI_LEVEL_DISK
                                                                 : COLI_LEVEL_RAM;
    }
}

void coli__moe_reject(coli__moe *m, uint32_t t)
{
    unsigned seen = atomic_load(&m->first_bad);
    while (t < seen && !atomic_compare_exchange_weak(&m->first_bad, &seen, t)) {
    }
}

/* False when a logit is not finite: the row is then rejected, and its ids are valid nevertheless. */
static bool choose(coli__moe *m, const coli__moe_layer *layer, uint32_t t)
{
    const float *logits = m->logits + (size_t)t * m->n_expert;
    int32_t *ids = m->ids + (size_t)t * m->n_used;
    float *w = m->w + (size_t)t * m->n_used;
    if (m->router && m->router->prefers) {
        const coli__route_row row = {
            .choice = logits, .level = coli__levels_of(&m->router->levels, layer->experts->layer)};
        if (coli__route_choose(&m->router->rule, &row, ids, w, &m->cost[t])) {
            coli__route_normalise(w, m->n_used);
            return true;
        }
    }
    return coli__route_softmax_topk(m->k, logits, m->n_expert, m->n_used, ids, w);
}

/* Panels [begin, end) of the router for rows [first, first+n). */
static void router_panels(coli__moe *m, const coli__moe_layer *layer, uint32_t first, uint32_t n,
                          uint32_t begin, uint32_t end)
{
    const coli__matmul_args args = {.w = &layer->router,
                                    .xf = coli__moe_input(m, first),
                                    .ldx = m->x.ld,
                                    .n_row = n,
                                    .panel_begin = begin,
                                    .panel_end = end,
                                    .y = m->logits + (size_t)first * m->n_expert +
                                         (size_t)begin * COLI_PANEL,
                                    .ldy = m->n_expert};
    m->k->matmul(&args);
}

static void shared_gate(coli__moe *m, const coli__moe_layer *layer, uint32_t first, uint32_t n)
{
    const coli__matmul_args args = {.w = &layer->shared_gate_row,
                                    .xf = coli__moe_input(m, first),
                                    .ldx = m->x.ld,
                                    .n_row = n,
                                    .panel_end = 1,
                                    .y = m->shared_w + first,
                                    .ldy = 1};
    m->k->matmul(&args);
    for (uint32_t t = first; t < first + n; t++) {
        if (!coli__is_finite(m->shared_w[t])) coli__moe_reject(m, t);
        m->shared_w[t] = coli_sigmoid(m->shared_w[t]);
    }
}

static void choose_row(coli__moe *m, const coli__moe_layer *layer, uint32_t t)
{
    if (!choose(m, layer, t)) coli__moe_reject(m, t);
}

static void quantise_row(coli__moe *m, uint32_t t)
{
    if (!coli__acts_quantise(&m->x, m->k, t, 0, m->d_model, coli__moe_input(m, t)))
        coli__moe_reject(m, t);
}

void coli__moe_route(coli__moe *m, const coli__moe_layer *layer, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += ROUTE_ROWS)
        router_panels(m, layer, first + i, n - i < ROUTE_ROWS ? n - i : ROUTE_ROWS, 0,
                      divide_up(m->n_expert, COLI_PANEL));
    shared_gate(m, layer, first, n);
    for (uint32_t t = first; t < first + n; t++) {
        choose_row(m, layer, t);
        quantise_row(m, t);
    }
}

/* -- bucket ------------------------------------------------------------------------------------ */

static void bucket(coli__moe *m, uint32_t n_tok)
{
    memset(m->n_of, 0, m->n_expert * sizeof *m->n_of);
    m->n_pair = n_tok * m->n_used;
    for (uint32_t p = 0; p < m->n_pair; p++) m->n_of[m->ids[p]]++;

    m->n_run = 0;
    uint32_t first = 0;
    for (uint32_t e = 0; e < m->n_expert; e++) {
        if (m->n_of[e]) m->runs[m->n_run++] = (run){e, first, m->n_of[e], NULL};
        const uint32_t n = m->n_of[e];
        m->n_of[e] = first; // from here on: where its next pair goes
        first += n;
    }
    for (uint32_t p = 0; p < m->n_pair; p++) {
        const uint32_t at = m->n_of[m->ids[p]]++;
        m->pair_row[at] = p / m->n_used;
        m->pair_of[p] = at;
        if (m->pair_source) m->pair_source[at] = (source){HOST, 0};
    }
    m->runs[m->n_run++] = (run){m->n_expert, 0, n_tok, NULL};
}

/* -- devices ----------------------------------------------------------------------------------- */

/* Move the runs of experts on devices from `runs` to `held`, and note what their groups get. */
static void hold(coli__moe *m, const coli__moe_layer *layer, uint32_t n_tok)
{
    const uint32_t group = layer->experts->gate.fmt.group;
    for (uint32_t i = 0; i < m->n_device; i++) m->in_use[i] = false;
    uint32_t n_run = 0, n_row[COLI__MAX_DEVICE] = {0};
    m->n_held = 0;
    for (uint32_t i = 0; i < m->n_run; i++) {
        const run r = m->runs[i];
        coli__slot place;
        if (r.expert == m->n_expert ||
            !coli__tier_find(m->tier, layer->experts, r.expert, &place)) {
            m->runs[n_run++] = r;
            continue;
        }
        if (!m->in_use[place.device])
            coli__group_begin(m->groups[place.device], group == 32 ? &m->x.q32 : &m->x.q64, n_tok);
        m->in_use[place.device] = true;
        coli__group_add(m->groups[place.device], place.tensor, r.n, m->pair_row + r.first);
        for (uint32_t p = 0; p < r.n; p++)
            m->pair_source[r.first + p] = (source){(int32_t)place.device, n_row[place.device]++};
        m->held[m->n_held++] = r;
    }
    m->n_run = n_run;
}

/* The device that holds all experts of row t; HOST when there is none. */
static int32_t device_of_row(const coli__moe *m, uint32_t t)
{
    const uint32_t *pair = m->pair_of + (size_t)t * m->n_used;
    const int32_t device = m->pair_source[pair[0]].device;
    if (device < 0) return HOST;
    for (uint32_t rank = 1; rank < m->n_used; rank++)
        if (m->pair_source[pair[rank]].device != device) return HOST;
    return device;
}

/* Let devices join the rows that they can.  A pair's place among its device's pairs then becomes its
 * place in the result: joined pairs have none, and the joins stand behind the others. */
static void join_on_devices(coli__moe *m, uint32_t n_tok)
{
    uint32_t n_pair[COLI__MAX_DEVICE] = {0}, n_join[COLI__MAX_DEVICE] = {0};
    for (uint32_t t = 0; t < n_tok; t++) {
        const int32_t device = device_of_row(m, t);
        m->join_source[t].device = HOST;
        if (device == HOST || !coli__group_can_join(m->groups[device])) continue;
        const uint32_t *pair = m->pair_of + (size_t)t * m->n_used;
        for (uint32_t rank = 0; rank < m->n_used; rank++)
            m->terms[rank] = m->pair_source[pair[rank]].row;
        coli__group_join(m->groups[device], m->terms, m->w + (size_t)t * m->n_used);
        m->join_source[t] = (source){device, n_join[device]++};
    }
    for (uint32_t i = 0; i < m->n_held; i++)
        for (uint32_t p = m->held[i].first; p < m->held[i].first + m->held[i].n; p++) {
            source *s = &m->pair_source[p];
            if (m->join_source[m->pair_row[p]].device == HOST) s->row = n_pair[s->device]++;
        }
    for (uint32_t t = 0; t < n_tok; t++)
        if (m->join_source[t].device != HOST)
            m->join_source[t].row += n_pair[m->join_source[t].device];
}

/* Hand the shared expert to the device that holds it. */
static void hold_shared(coli__moe *m, const coli__moe_layer *layer, uint32_t n_tok)
{
    coli__slot place;
    m->shared_device = HOST;
    if (!coli__devices_dense_expert(m->devices, &layer->shared_gate, &place)) return;
    coli__group *group = m->shared_groups[place.device];
    coli__group_begin(group, layer->shared_gate.fmt.group == 32 ? &m->x.q32 : &m->x.q64, n_tok);
    coli__group_add(group, place.tensor, n_tok, m->all_rows);
    m->shared_device = (int32_t)place.device;
    m->runs[m->n_run - 1].n = 0;
}

/* -- streams ----------------------------------------------------------------------------------- */

static void swap_runs(coli__moe *m, uint32_t a, uint32_t b)
{
    const run r = m->runs[a];
    m->runs[a] = m->runs[b];
    m->runs[b] = r;
}

/* The slowest of those that stream: a chunk is done when the last of them is. */
static coli__speeds stream_speeds(const coli__moe *m, const uint32_t *device, uint32_t n)
{
    coli__speeds all = coli__tier_speeds(m->tier, device[0]);
    for (uint32_t i = 1; i < n; i++) {
        const coli__speeds s = coli__tier_speeds(m->tier, device[i]);
        if (s.pass_ns > all.pass_ns) all.pass_ns = s.pass_ns;
        if (s.pass_row_ns > all.pass_row_ns) all.pass_row_ns = s.pass_row_ns;
    }
    return all;
}

/* How many of the processor's routed runs pass through n devices: the first of them, afterwards. */
static uint32_t choose_streamed(coli__moe *m, const uint32_t *device, uint32_t n)
{
    const uint32_t n_run = m->n_run - 1, rows = coli__tier_stream_rows(m->tier);
    if (rows != COLI_STREAM_AUTO) {
        uint32_t n_chosen = 0;
        for (uint32_t i = 0; i < n_run; i++)
            if (m->runs[i].n >= rows) swap_runs(m, i, n_chosen++);
        return n_chosen;
    }
    for (uint32_t i = 1; i < n_run; i++) // most rows first; experts are some hundred at most
        for (uint32_t j = i; j > 0 && m->runs[j].n > m->runs[j - 1].n; j--) swap_runs(m, j, j - 1);
    for (uint32_t i = 0; i < n_run; i++) m->n_row[i] = m->runs[i].n;
    const coli__speeds speeds = stream_speeds(m, device, n);
    return coli__afford_stream(&speeds, n, m->n_row, n_run);
}

/* Move runs from `runs` to `passing`. */
static void take_streamed(coli__moe *m, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const run r = m->runs[i];
        m->passing[i] = (coli__passing){.expert = r.expert,
                                        .first = r.first,
                                        .n = r.n,
                                        .rows = m->pair_row + r.first,
                                        .y = m->results + (size_t)r.first * m->d_model,
                                        .flag = m->flagged + r.first};
        for (uint32_t p = r.first; p < r.first + r.n; p++)
            m->pair_source[p] = (source){STREAMED, 0};
    }
    m->n_passing = n;
    m->n_run -= n;
    memmove(m->runs, m->runs + n, m->n_run * sizeof *m->runs);
}

/* The devices that streams are for, in this chunk: their number. */
static uint32_t hold_streamed(coli__moe *m, const coli__moe_layer *layer, uint32_t n_tok,
                              uint32_t *device)
{
    m->n_passing = 0;
    if (!m->streams) return 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_device; i++) {
        m->streams_now[i] = false;
        if (n_tok > 1 && m->streams[i] && coli__tier_can_stream(m->tier, i, layer->experts))
            device[n++] = i;
    }
    if (n == 0) return 0;
    take_streamed(m, choose_streamed(m, device, n));
    return m->n_passing < n ? m->n_passing : n;
}

/* The groups of a device, behind the streamed ones of the n devices that have some. */
static void start_device(coli__moe *m, const coli__moe_layer *layer, uint32_t i,
                         const uint32_t *streaming, uint32_t n)
{
    coli__group *routed = m->in_use[i] ? m->groups[i] : NULL, *then = NULL;
    if ((int32_t)i == m->shared_device) {
        then = routed;
        routed = m->shared_groups[i];
    }
    for (uint32_t k = 0; k < n; k++) {
        if (streaming[k] != i) continue;
        const coli__stream_work work = {.layer = layer->experts,
                                        .x = layer->experts->gate.fmt.group == 32 ? &m->x.q32
                                                                                  : &m->x.q64,
                                        .passing = m->passing,
                                        .first = k,
                                        .step = n,
                                        .n = m->n_passing,
                                        .group = routed,
                                        .then = then};
        m->streams_now[i] = true;
        coli__stream_start(m->streams[i], &work);
        return;
    }
    if (routed) coli__group_start(routed, then);
}

static void start_groups(coli__moe *m, const coli__moe_layer *layer, uint32_t n_tok)
{
    m->n_held = 0;
    if (m->n_device == 0) return;
    uint32_t streaming[COLI__MAX_DEVICE];
    hold(m, layer, n_tok);
    hold_shared(m, layer, n_tok);
    const uint32_t n = hold_streamed(m, layer, n_tok, streaming);
    if (m->n_held > 0) join_on_devices(m, n_tok);
    for (uint32_t i = 0; i < m->n_device; i++) start_device(m, layer, i, streaming, n);
}

static bool has_groups(const coli__moe *m)
{
    return m->n_held > 0 || m->n_passing > 0 || m->shared_device != HOST;
}

/* Wait for the streams: false when a run was not done. */
static bool wait_for_streams(const coli__moe *m)
{
    if (m->n_passing == 0) return true;
    bool good = true;
    for (uint32_t i = 0; i < m->n_device; i++)
        if (m->streams_now[i]) coli__stream_wait(m->streams[i]);
    for (uint32_t i = 0; i < m->n_passing; i++) good &= m->passing[i].is_done;
    return good;
}

/* Wait for the groups: false when one of them failed.  results (N_RESULT) */
static bool wait_for_groups(const coli__moe *m, const coli_bk_result **results)
{
    bool good = wait_for_streams(m);
    for (uint32_t i = 0; i < m->n_device; i++) {
        results[i] = m->in_use[i] ? coli__group_wait(m->groups[i]) : NULL;
        good &= results[i] || !m->in_use[i];
    }
    results[SHARED] = NULL;
    if (m->shared_device == HOST) return good;
    results[SHARED] = coli__group_wait(m->shared_groups[m->shared_device]);
    return good && results[SHARED];
}

/* Rows that a device found to leave their range. */
static void reject_flagged(coli__moe *m, const coli_bk_result **results, uint32_t n_tok)
{
    for (uint32_t t = 0; t < n_tok; t++) {
        if (results[SHARED] && results[SHARED]->flag[t]) coli__moe_reject(m, t);
        if (m->n_held == 0 && m->n_passing == 0) continue;
        const source *joined = m->n_held > 0 ? &m->join_source[t] : NULL;
        if (joined && joined->device != HOST) {
            if (results[joined->device]->flag[joined->row]) coli__moe_reject(m, t);
            continue;
        }
        for (uint32_t rank = 0; rank < m->n_used; rank++) {
            const uint32_t p = m->pair_of[(size_t)t * m->n_used + rank];
            const source *s = &m->pair_source[p];
            if (s->device >= 0 ? results[s->device]->flag[s->row]
                               : s->device == STREAMED && m->flagged[p])
                coli__moe_reject(m, t);
        }
    }
}

/* The same for the runs that were not done. */
static uint32_t take_back_streamed(coli__moe *m)
{
    uint32_t n_passing = 0, n_pair = 0;
    const uint32_t n_run = m->n_run;
    for (uint32_t i = 0; i < m->n_passing; i++) {
        const coli__passing p = m->passing[i];
        if (p.is_done) {
            m->passing[n_passing++] = p;
            continue;
        }
        for (uint32_t k = p.first; k < p.first + p.n; k++) m->pair_source[k].device = HOST;
        m->runs[m->n_run++] = (run){p.expert, p.first, p.n, NULL};
        n_pair += p.n;
    }
    m->n_passing = n_passing;
    coli__devices_count(m->devices, 0, 0, n_pair);
    return m->n_run - n_run;
}

/* Give the runs of failed groups back to the processor, behind its other routed ones; how many. */
static uint32_t take_back(coli__moe *m, const coli_bk_result **results, uint32_t n_tok)
{
    const run shared = m->runs[--m->n_run];
    uint32_t n_run = 0, n_held = 0, n_pair = 0;
    for (uint32_t t = 0; t < n_tok; t++) {
        source *joined = &m->join_source[t];
        if (joined->device != HOST && !results[joined->device]) joined->device = HOST;
    }
    for (uint32_t i = 0; i < m->n_held; i++) {
        const run r = m->held[i];
        if (results[m->pair_source[r.first].device]) {
            m->held[n_held++] = r;
            continue;
        }
        for (uint32_t p = r.first; p < r.first + r.n; p++) m->pair_source[p] = (source){HOST, 0};
        m->runs[m->n_run++] = r;
        n_run++;
        n_pair += r.n;
    }
    for (uint32_t i = 0; i < m->n_device; i++) m->in_use[i] = results[i] != NULL;
    m->n_held = n_held;
    n_run += take_back_streamed(m);
    m->runs[m->n_run++] = shared;
    coli__devices_count(m->devices, 0, 0, n_pair);
    return n_run;
}

/* Blocks of the shared expert's inner width, where it is computed here. */
static uint32_t n_block_shared(const coli__moe *m)
{
    return m->shared_device == HOST ? divide_up(m->d_ff_shared, INNER) : 0;
}

/* The shared expert, whose group failed: the processor's from now on. */
static void take_back_shared(coli__moe *m, const coli__moe_layer *layer, uint32_t n_tok)
{
    coli__devices_switch_off(m->devices, &layer->shared_gate);
    coli__devices_count_products_again(m->devices, 3);
    m->shared_device = HOST;
    m->runs[m->n_run - 1].n = n_tok;
}

/* -- inner and outer --------------------------------------------------------------------------- */

typedef struct job {
    coli__moe *m;
    coli__pool *pool;
    const coli__moe_layer *layer;
    uint32_t n_tok, n_block, n_block_shared;
    uint32_t n_guess; // rows of `inner` that guess
    uint32_t first_run,
        end_run;         // of the present `inner`, or of the products of the present `outer`
    uint32_t first_left; // runs before it have results that wait
    bool joins;          // the present `outer` does
    uint32_t n_route;    // items of the router
    bool inner_is_done;  // with the routing
    float *h;
    bool timed;                  // these are wanted
    double host_ns, host_row_ns; // see coli__work
} job;

static void expert_of(const job *j, const run *r, coli__mat *gate, coli__mat *up, coli__mat *down)
{
    if (r->block) {
        coli__ct_expert_at(j->layer->experts, r->expert, r->block, gate, up, down);
        return;
    }
    if (r->expert < j->m->n_expert) {
        coli__ct_expert(j->layer->experts, r->expert, gate, up, down);
        return;
    }
    *gate = j->layer->shared_gate;
    *up = j->layer->shared_up;
    *down = j->layer->shared_down;
}

/* The experts of the layer behind this one, from row t of this one's input. */
static void guess_row(const job *j, uint32_t t)
{
    coli__moe *m = j->m;
    float *logits = m->guess_logits + (size_t)t * m->n_expert;
    const coli__matmul_args args = {.w = &m->guess_layer->router,
                                    .xf = coli__moe_input(m, t),
                                    .ldx = m->x.ld,
                                    .n_row = 1,
                                    .panel_end = (m->n_expert + COLI_PANEL - 1) / COLI_PANEL,
                                    .y = logits,
                                    .ldy = m->n_expert};
    m->k->matmul(&args);
    const size_t at = (size_t)t * m->n_used;
    coli__route_softmax_topk(m->k, logits, m->n_expert, m->n_used, m->guess_ids + at,
                             m->guess_w + at);
}

static coli__mat down_of(const job *j, uint32_t i)
{
    coli__mat gate, up, down;
    expert_of(j, &j->m->runs[i], &gate, &up, &down);
    return down;
}

/* What is read behind run i's last columns: the next run, or at the end what `outer` begins with. */
static const uint8_t *behind_run(const job *j, uint32_t i, bool shared)
{
    const uint32_t next = shared ? j->first_run : i + 1;
    coli__mat gate, up, down;
    if (next >= j->end_run) {
        down = down_of(j, j->first_run);
        return coli__mat_panel(&down, 0);
    }
    expert_of(j, &j->m->runs[next], &gate, &up, &down);
    return coli__mat_panel(&gate, 0);
}

/* Columns [first, first+n) of a run's inner width.  behind: what is likely read after its last, or NULL. */
static void inner_columns(const job *j, run r, uint32_t first, uint32_t n, const uint8_t *behind)
{
    coli__moe *m = j->m;
    const bool shared = r.expert == m->n_expert;
    const uint32_t d_ff = shared ? m->d_ff_shared : m->d_ff;
    coli__acts *inner = shared ? &m->inner_shared : &m->inner;

    coli__mat gate, up, down;
    expert_of(j, &r, &gate, &up, &down);
    float g[ROWS * INNER], u[ROWS * INNER];
    for (uint32_t row = 0; row < r.n; row += ROWS) {
        const uint32_t n_row = r.n - row < ROWS ? r.n - row : ROWS;
        uint32_t identity[ROWS];
        for (uint32_t i = 0; i < n_row; i++) identity[i] = row + i;
        coli__matmul_args args = {.w = &gate,
                                  .index = shared ? identity : m->pair_row + r.first + row,
                                  .n_row = n_row,
                                  .panel_begin = first / COLI_PANEL,
                                  .panel_end = divide_up(first + n, COLI_PANEL),
                                  .next = coli__mat_panel(&up, first / COLI_PANEL),
                                  .y = g,
                                  .ldy = n};
        coli__acts_bind(&m->x, &args);
        m->k->matmul(&args);
        args.w = &up;
        args.next = first + n < d_ff ? coli__mat_panel(&gate, args.panel_end) : behind;
        args.y = u;
        coli__acts_bind(&m->x, &args);
        m->k->matmul(&args);
        for (uint32_t i = 0; i < n_row; i++) {
            const uint32_t pair = r.first + row + i;
            float *out = inner->f ? inner->f + pair * inner->ld + first : g + i * n;
            m->k->silu_mul(g + i * n, u + i * n, n, out);
            if (!coli__acts_quantise(inner, m->k, pair, first, n, out))
                coli__moe_reject(m, shared ? pair : m->pair_row[pair]);
        }
    }
}

/* Blocks [first, end) of a run's inner width: as many at once as there is room for their rows. */
static void inner_blocks(const job *j, run r, uint32_t first, uint32_t end, const uint8_t *behind)
{
    const coli__moe *m = j->m;
    const uint32_t d_ff = r.expert == m->n_expert ? m->d_ff_shared : m->d_ff;
    const uint32_t last = end * INNER < d_ff ? end * INNER : d_ff;
    const uint32_t at_once = r.n > 0 && r.n < ROWS ? ROWS / r.n * INNER : INNER;
    for (uint32_t at = first * INNER; at < last; at += at_once)
        inner_columns(j, r, at, last - at < at_once ? last - at : at_once, behind);
}

/* Items: rows that guess; blocks of the shared expert, which every row uses, so that the longest items
 * start earliest; blocks of the runs. */
static void inner_items(void *ctx, uint32_t first, uint32_t end, uint32_t worker)
{
    const job *j = ctx;
    const uint32_t begin_shared = j->n_guess, begin = begin_shared + j->n_block_shared;
    for (uint32_t item = first, n; item < end; item += n) {
        n = 1;
        if (item < begin_shared) {
            coli__pool_phase(j->pool, worker, COLI_PHASE_ROUTER);
            guess_row(j, item);
            continue;
        }
        const bool shared = item < begin;
        const uint32_t at = shared ? item - begin_shared : (item - begin) % j->n_block;
        const uint32_t n_block = shared ? j->n_block_shared : j->n_block;
        n = end - item < n_block - at ? end - item : n_block - at;
        coli__pool_phase(j->pool, worker, shared ? COLI_PHASE_SHARED : COLI_PHASE_EXPERTS);
        const uint32_t i = shared ? j->m->n_run - 1 : j->first_run + (item - begin) / j->n_block;
        inner_blocks(j, j->m->runs[i], at, at + n, behind_run(j, i, shared));
    }
}

/* Some columns of the output. */
typedef struct columns {
    uint32_t first, n;
} columns;

static columns columns_of(const coli__moe *m, uint32_t first, uint32_t most)
{
    return (columns){first, m->d_model - first < most ? m->d_model - first : most};
}

/* Products by pair; those of the shared expert follow, by row. */
typedef struct products {
    float *y; // of the first pair with the first of some columns
    size_t ld;
} products;

static products in_results(const coli__moe *m, columns c)
{
    return (products){m->results + c.first, m->d_model};
}

static const uint8_t *down_panel(const job *j, uint32_t i, uint32_t column)
{
    const coli__mat down = down_of(j, i);
    return coli__mat_panel(&down, column / COLI_PANEL);
}

/* Multiply run i with some columns.  next: what is likely read after them, or NULL. */
static void multiply_down(const job *j, uint32_t i, columns c, const uint8_t *next, products to)
{
    const coli__moe *m = j->m;
    const run r = m->runs[i];
    const bool shared = r.expert == m->n_expert;
    const coli__mat down = down_of(j, i);
    // pairs of one expert follow each other, so its rows are a run of `inner`
    coli__acts rows = shared ? m->inner_shared : m->inner;
    coli__matmul_args args = {.w = &down,
                              .n_row = r.n,
                              .panel_begin = c.first / COLI_PANEL,
                              .panel_end = divide_up(c.first + c.n, COLI_PANEL),
                              .next = next,
                              .y = to.y + (shared ? m->n_pair : r.first) * to.ld,
                              .ldy = to.ld};
    coli__acts_skip(&rows, r.first);
    coli__acts_bind(&rows, &args);
    m->k->matmul(&args);
}

/* Where columns of pair p are; host: of those that the present `outer` multiplied. */
static const float *pair_result(const coli__moe *m, uint32_t p, columns c, products host,
                                const coli_bk_result *const *results)
{
    const source *s = m->pair_source ? &m->pair_source[p] : NULL;
    if (s && s->device >= 0)
        return results[s->device]->y + s->row * results[s->device]->ld + c.first;
    if (s && s->device != HOST) host = in_results(m, c);
    return host.y + p * host.ld;
}

/* Sum columns of row t's experts in rank order.  results: NULL without devices. */
static void join_row(const coli__moe *m, uint32_t t, columns c, products host,
                     const coli_bk_result *const *results, float *sum)
{
    if (results && m->join_source[t].device != HOST) {
        const source *s = &m->join_source[t];
        memcpy(sum, results[s->device]->y + s->row * results[s->device]->ld + c.first,
               c.n * sizeof *sum);
        return;
    }
    for (uint32_t rank = 0; rank < m->n_used; rank++) {
        const size_t p = (size_t)t * m->n_used + rank;
        m->k->axpy(sum, m->w[p], pair_result(m, m->pair_of[p], c, host, results), c.n);
    }
}

/* The same from an item; noting how long. */
static bool wait_in_item(coli__moe *m, uint32_t worker, const coli_bk_result **results)
{
    const uint64_t start_ns = coli__clock_ns();
    const bool good = wait_for_groups(m, results);
    const uint64_t end_ns = coli__clock_ns();
    if (worker == 0)
        m->times.wait_ns += end_ns - start_ns;
    else
        atomic_store(&m->waited_until_ns, end_ns);
    return good;
}

/* While another worker waited, the caller may have had nothing else to do. */
static void begin_waiting(coli__moe *m)
{
    atomic_store(&m->waited_until_ns, 0);
    m->caller_end_ns = coli__clock_ns();
}

static void count_waiting(coli__moe *m)
{
    const uint64_t until_ns = atomic_load(&m->waited_until_ns);
    if (until_ns > m->caller_end_ns) m->times.wait_ns += until_ns - m->caller_end_ns;
}

/* Columns of all rows, to which nothing is missing but what devices compute. */
static void join(const job *j, columns all, products host, uint32_t worker)
{
    coli__moe *m = j->m;
    const coli_bk_result *results[N_RESULT] = {NULL};
    if (has_groups(m)) {
        coli__pool_phase(j->pool, worker, COLI_PHASE_WAITING);
        if (!wait_in_item(m, worker, results)) return;
    }
    coli__pool_phase(j->pool, worker, COLI_PHASE_EXPERTS);
    const coli_bk_result *shared = results[SHARED];
    for (uint32_t t = 0; t < j->n_tok; t++)
        for (uint32_t done = 0; done < all.n; done += JOIN) {
            const columns c = {all.first + done, all.n - done < JOIN ? all.n - done : JOIN};
            const products from = {host.y + done, host.ld};
            float sum[JOIN] = {0};
            join_row(m, t, c, from, m->n_held > 0 ? results : NULL, sum);
            m->k->axpy(sum, m->shared_w[t],
                       shared ? shared->y + t * shared->ld + c.first
                              : from.y + ((size_t)m->n_pair + t) * from.ld,
                       c.n);
            m->k->axpy(j->h + (size_t)t * m->d_model + c.first, 1.0f, sum, c.n);
        }
}

/* One more run was multiplied with tiles [first, end): join the columns to which nothing is missing now. */
static void join_completed(const job *j, uint32_t first, uint32_t end, uint32_t worker)
{
    const uint32_t n_tile = JOIN / TILE;
    for (uint32_t at = first, n; at < end; at += n) {
        const uint32_t i = at / n_tile, left = (i + 1) * n_tile - at;
        n = end - at < left ? end - at : left;
        if (atomic_fetch_sub_explicit(&j->m->n_left[i], n, memory_order_acq_rel) != n) continue;
        const columns c = columns_of(j->m, i * JOIN, JOIN);
        join(j, c, in_results(j->m, c), worker);
    }
}

static void phase_of_run(const job *j, uint32_t worker, uint32_t i)
{
    const bool shared = j->m->runs[i].expert == j->m->n_expert;
    coli__pool_phase(j->pool, worker, shared ? COLI_PHASE_SHARED : COLI_PHASE_EXPERTS);
}

/* Items are the tiles of the first run, then of the next, ... */
static void outer_of_runs(void *ctx, uint32_t first, uint32_t end, uint32_t worker)
{
    const job *j = ctx;
    const coli__moe *m = j->m;
    const uint32_t n_tile = divide_up(m->d_model, TILE);
    for (uint32_t item = first, n; item < end; item += n) {
        const uint32_t i = j->first_run + item / n_tile, tile = item % n_tile;
        n = end - item < n_tile - tile ? end - item : n_tile - tile;
        const columns c = columns_of(m, tile * TILE, n * TILE);
        const uint8_t *next = tile + n < n_tile    ? down_panel(j, i, c.first + c.n)
                              : i + 1 < j->end_run ? down_panel(j, i + 1, 0)
                                                   : NULL;
        phase_of_run(j, worker, i);
        multiply_down(j, i, c, next, in_results(m, c));
        if (j->joins) join_completed(j, tile, tile + n, worker);
    }
    if (j->joins && worker == 0) j->m->caller_end_ns = coli__clock_ns();
}

/* Items are tiles, of all runs that are left. */
static void outer_of_tiles(void *ctx, uint32_t first, uint32_t end, uint32_t worker)
{
    const job *j = ctx;
    const coli__moe *m = j->m;
    const uint32_t at_once = columns_at_once(j->n_tok, m->n_used);
    const products own = {m->own + worker * m->n_own, at_once};
    const columns all = columns_of(m, first * TILE, (end - first) * TILE);
    for (uint32_t done = 0; done < all.n; done += at_once) {
        const columns c = {all.first + done, all.n - done < at_once ? all.n - done : at_once};
        for (uint32_t i = j->first_run; i < j->end_run; i++) {
            const bool is_last = i + 1 == j->end_run;
            phase_of_run(j, worker, i);
            multiply_down(j, i, c,
                          is_last ? down_panel(j, j->first_run, c.first + c.n)
                                  : down_panel(j, i + 1, c.first),
                          own);
        }
        join(j, c, own, worker);
    }
}

static void run_inner(job *j, uint32_t first_run, uint32_t n_run, uint32_t n_block_shared)
{
    j->first_run = first_run;
    j->end_run = first_run + n_run;
    j->n_block_shared = n_block_shared;
    coli__pool_run_ranges(j->pool, j->n_guess + n_block_shared + n_run * j->n_block, inner_items,
                          j);
    j->n_guess = 0;
}

static void run_outer_of_runs(job *j, uint32_t first_run, uint32_t end_run, bool joins)
{
    j->first_run = first_run;
    j->end_run = end_run;
    j->joins = joins;
    coli__pool_run_ranges(j->pool, (end_run - first_run) * divide_up(j->m->d_model, TILE),
                          outer_of_runs, j);
}

/* The runs that are left, the shared expert's at least, and the join. */
static void run_outer(job *j)
{
    coli__moe *m = j->m;
    const uint32_t n_tile = divide_up(m->d_model, TILE);
    if (!few_rows(j->n_tok, m->n_used, m->d_model)) {
        j->first_run = j->first_left;
        j->end_run = m->n_run;
        coli__pool_run_ranges(j->pool, n_tile, outer_of_tiles, j);
        return;
    }
    for (uint32_t i = 0; i * JOIN < m->d_model; i++)
        atomic_store_explicit(&m->n_left[i],
                              divide_up(columns_of(m, i * JOIN, JOIN).n, TILE) *
                                  (m->n_run - j->first_left),
                              memory_order_relaxed);
    begin_waiting(m);
    run_outer_of_runs(j, j->first_left, m->n_run, true);
    count_waiting(m);
}

/* The products of runs that wait for the join. */
static void run_outer_part(job *j, uint32_t first_run, uint32_t n_run)
{
    coli__moe *m = j->m;
    run_outer_of_runs(j, first_run, first_run + n_run, false);
    for (uint32_t i = first_run; i < first_run + n_run; i++)
        for (uint32_t p = m->runs[i].first; p < m->runs[i].first + m->runs[i].n; p++)
            m->pair_source[p].device = WAITS;
}

/* -- a row alone ------------------------------------------------------------------------------- */

/* The router's columns are shared out, too, and whoever does the last of them chooses.  Meanwhile the
 * others begin with the shared expert, which needs no choice; so that it takes no synchronisation, only a
 * wait of those who find nothing else to do.
 *
 *     worker 0   router  router  choose shared  |  e1 e1 e1 e4 e4 e6 ...
 *     worker 1   router  shared  shared  (wait) |  e1 e3 e3 e3 e4 ...     */

/* One item: a panel of the router, or the shared expert's gate.  True: it was the last. */
static bool route_item(const job *j, uint32_t item)
{
    coli__moe *m = j->m;
    if (item < j->n_route - 1)
        router_panels(m, j->layer, 0, j->n_tok, item, item + 1);
    else
        shared_gate(m, j->layer, 0, j->n_tok);
    return atomic_fetch_sub_explicit(&m->n_route_left, 1, memory_order_acq_rel) == 1;
}

static void begin_route(job *j)
{
    coli__moe *m = j->m;
    j->n_route = divide_up(m->n_expert, COLI_PANEL) + 1;
    for (uint32_t t = 0; t < j->n_tok; t++) quantise_row(m, t);
    atomic_store_explicit(&m->n_route_left, j->n_route, memory_order_relaxed);
}

static void wait_for_choice(const job *j, uint32_t worker)
{
    if (atomic_load_explicit(&j->m->is_chosen, memory_order_acquire)) return;
    coli__pool_phase(j->pool, worker, COLI_PHASE_WAITING);
    for (uint32_t round = 0; !atomic_load_explicit(&j->m->is_chosen, memory_order_acquire); round++)
        coli__relax(round);
}

/* An item is a worker. */
static void route_and_inner(void *ctx, uint32_t item, uint32_t worker)
{
    job *j = ctx;
    coli__moe *m = j->m;
    (void)item;
    coli__pool_phase(j->pool, worker, COLI_PHASE_ROUTER);
    for (uint32_t i; (i = atomic_fetch_add(&m->next_route, 1)) < j->n_route;)
        if (route_item(j, i)) {
            choose_row(m, j->layer, 0);
            bucket(m, 1);
            j->end_run = m->n_run - 1;
            atomic_store_explicit(&m->is_chosen, true, memory_order_release);
        }
    coli__pool_phase(j->pool, worker, COLI_PHASE_SHARED);
    const run shared = {m->n_expert, 0, 1, NULL};
    const uint32_t n_shared = n_block_shared(m);
    for (uint32_t i; (i = atomic_fetch_add(&m->next_shared, 1)) < n_shared;)
        inner_blocks(j, shared, i, i + 1, NULL);
    wait_for_choice(j, worker);
    for (uint32_t first, end;
         coli__pool_take(j->pool, &m->next_chunk, j->end_run * j->n_block, &first, &end);)
        inner_items(j, first, end, worker);
}

static void run_route_and_inner(job *j)
{
    coli__moe *m = j->m;
    begin_route(j);
    atomic_store_explicit(&m->next_route, 0, memory_order_relaxed);
    atomic_store_explicit(&m->next_shared, 0, memory_order_relaxed);
    atomic_store_explicit(&m->next_chunk, 0, memory_order_relaxed);
    atomic_store_explicit(&m->is_chosen, false, memory_order_relaxed);
    coli__pool_run(j->pool, coli__pool_n_worker(j->pool), route_and_inner, j);
}

/* Rows that nobody routed, where the choice decides what comes next. */
static void route_panel(void *ctx, uint32_t item, uint32_t worker)
{
    const job *j = ctx;
    coli__pool_phase(j->pool, worker, COLI_PHASE_ROUTER);
    route_item(j, item);
}

static void choose_item(void *ctx, uint32_t item, uint32_t worker)
{
    const job *j = ctx;
    coli__pool_phase(j->pool, worker, COLI_PHASE_ROUTER);
    choose_row(j->m, j->layer, item);
}

static void run_route(job *j)
{
    begin_route(j);
    coli__pool_run(j->pool, j->n_route, route_panel, j);
    coli__pool_run(j->pool, j->n_tok, choose_item, j);
}

/* -- waves ------------------------------------------------------------------------------------- */

/* The runs [done, end) of one call of run_waves, in an order that changes as experts arrive:
 *
 *     | computed | here, held | asked for, held | neither |
 *                done         here              asked     end        */
typedef struct waves {
    job *j;
    coli__store *store;
    uint32_t done, here, asked, end;
} waves;

/* Hold what is here or coming, and put it first. */
static void hold_what_is_there(waves *w)
{
    coli__moe *m = w->j->m;
    for (uint32_t i = w->done; i < w->end; i++) {
        const coli__store_state state =
            coli__store_hold(w->store, w->j->layer->experts, m->runs[i].expert);
        const run *r = &m->runs[i];
        for (uint32_t p = r->first; p < r->first + r->n; p++)
            m->pair_source[p].row = state == COLI__STORE_ABSENT;
        if (state == COLI__STORE_ABSENT) continue;
        swap_runs(m, i, w->asked);
        if (state == COLI__STORE_HERE) swap_runs(m, w->asked, w->here++);
        w->asked++;
    }
    coli__store_forget_guesses(w->store);
}

/* Ask for what there are slots for, and see what has come. */
static coli_status receive(waves *w, bool wait)
{
    coli__moe *m = w->j->m;
    const coli__ct_experts *x = w->j->layer->experts;
    while (w->asked < w->end && coli__store_ask(w->store, x, m->runs[w->asked].expert)) w->asked++;
    if (wait) coli__pool_phase(w->j->pool, 0, COLI_PHASE_WAITING);
    const coli_status status = coli__store_collect(w->store, wait);
    if (wait) coli__pool_phase(w->j->pool, 0, COLI_PHASE_OTHER);
    if (status != COLI_OK) return status;
    for (uint32_t i = w->here; i < w->asked; i++)
        if (coli__store_block(w->store, x, m->runs[i].expert)) swap_runs(m, i, w->here++);
    for (uint32_t i = w->done; i < w->here; i++)
        m->runs[i].block = coli__store_block(w->store, x, m->runs[i].expert);
    return COLI_OK;
}

static void release_runs(waves *w, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++)
        coli__store_release(w->store, w->j->layer->experts, w->j->m->runs[i].expert);
}

/* The next layer's step is what the first `inner` guesses about. */
static void plan_guess(job *j)
{
    coli__moe *m = j->m;
    const size_t next = (size_t)(j->layer - m->layers) + 1;
    m->guess_layer = NULL;
    if (!coli__store_guesses(m->store) || j->n_tok > GUESS_ROWS || next >= m->n_layer) return;
    m->guess_layer = &m->layers[next];
    m->n_guess_row = j->n_guess = j->n_tok;
}

/* Read what was guessed and is on no device. */
static void use_guess(const coli__moe *m)
{
    for (uint32_t i = 0; i < m->n_guess_row * m->n_used; i++) {
        coli__slot slot;
        const coli__ct_experts *x = m->guess_layer->experts;
        if (!coli__tier_find(m->tier, x, (uint32_t)m->guess_ids[i], &slot))
            coli__store_guess(m->store, x, &m->guess_ids[i], 1);
    }
}

/* How many of this layer's experts were guessed. */
static void score_guess(const job *j)
{
    const coli__moe *m = j->m;
    if (m->guess_layer != j->layer || m->n_guess_row != j->n_tok) return;
    uint64_t n_right = 0;
    for (uint32_t i = 0; i < j->n_tok * m->n_used; i++) {
        const int32_t *guesses = m->guess_ids + i / m->n_used * m->n_used;
        for (uint32_t k = 0; k < m->n_used; k++) n_right += guesses[k] == m->ids[i];
    }
    coli__store_guessed(m->store, j->n_tok * m->n_used, n_right);
}

/* While others wait for a slot, a wave is a quarter of the slots, so that the slots of one are filled
 * while the next is computed. */
static uint32_t wave_size(const waves *w)
{
    const uint32_t n = w->here - w->done, share = coli__store_n_slot(w->store) / 4;
    if (w->asked == w->end || n <= share) return n;
    return share ? share : 1;
}

/* Runs [first, first+n) through `inner` and, but for the last wave where no group has to be waited for
 * before the join, through `outer_part`.  The shared expert's `inner` goes with the first wave, or
 * fills the time until something has arrived.  What the last wave uses stays held. */
static coli_status compute_waves(waves *w, uint32_t n_block_shared)
{
    const coli__moe *m = w->j->m;
    const bool keep_last = m->n_held == 0 && m->n_passing == 0, guesses = w->j->n_guess > 0;
    COLI_TRY(receive(w, false));
    for (bool is_first = true;; is_first = false) {
        const uint32_t n = wave_size(w);
        const bool is_last = w->done + n == w->end;
        if (n > 0 || is_first) run_inner(w->j, w->done, n, is_first ? n_block_shared : 0);
        if (is_first && guesses) use_guess(w->j->m);
        if (is_last && keep_last) return COLI_OK;
        if (n > 0) run_outer_part(w->j, w->done, n);
        release_runs(w, w->done, w->done + n);
        w->done += n;
        if (is_last) return COLI_OK;
        COLI_TRY(receive(w, w->here == w->done));
    }
}

static coli_status run_waves(job *j, uint32_t first, uint32_t n, uint32_t n_block_shared)
{
    waves w = {j, j->m->store, first, first, first, first + n};
    hold_what_is_there(&w);
    const coli_status status = compute_waves(&w, n_block_shared);
    if (status != COLI_OK) release_runs(&w, w.done, w.asked);
    j->first_left = w.done;
    return status;
}

/* Everything that the processor computes but the join. */
static coli_status compute(job *j, uint32_t first, uint32_t n, uint32_t n_block_shared)
{
    if (j->m->store) return run_waves(j, first, n, n_block_shared);
    if (j->inner_is_done) return COLI_OK;
    run_inner(j, first, n, n_block_shared);
    return COLI_OK;
}

/* What is left to do when `outer` has seen the groups: note flagged rows, or do failed runs here. */
static coli_status finish_groups(job *j)
{
    coli__moe *m = j->m;
    const coli_bk_result *results[N_RESULT];
    if (!wait_for_groups(m, results)) {
        const bool shared_failed = m->shared_device != HOST && !results[SHARED];
        if (shared_failed) take_back_shared(m, j->layer, j->n_tok);
        const uint32_t n_shared = shared_failed ? n_block_shared(m) : 0;
        const uint32_t n_run = take_back(m, results, j->n_tok);
        if (n_run > 0)
            COLI_TRY(compute(j, m->n_run - 1 - n_run, n_run, n_shared));
        else
            run_inner(j, 0, 0, n_shared); // and the last wave stays as it is
        run_outer(j);
    }
    reject_flagged(m, results, j->n_tok);
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
        m->shared_device == HOST ? (double)coli__mat_size(&layer->shared_gate) : 0;
    return (m->store ? 1 : 1.5) * (double)compute_ns / (n + shared / routed);
}

/* What a row of an expert took, of many, likewise. */
static double host_row_ns(const job *j, uint64_t compute_ns)
{
    const coli__moe *m = j->m;
    const double routed = (double)coli__mat_size(&j->layer->experts->gate);
    double n_row = 0;
    for (uint32_t i = 0; i + 1 < m->n_run; i++) n_row += m->runs[i].n;
    if (n_row == 0 || routed == 0) return 0;
    if (m->shared_device == HOST)
        n_row += j->n_tok * (double)coli__mat_size(&j->layer->shared_gate) / routed;
    return (m->store ? 1 : 1.5) * (double)compute_ns / n_row;
}

static void note_times(job *j, uint64_t compute_ns)
{
    if (j->n_tok == 1)
        j->host_ns = host_ns(j->m, j->layer, compute_ns);
    else
        j->host_row_ns = host_row_ns(j, compute_ns);
}

static coli_status compute_and_join(job *j)
{
    coli__moe *m = j->m;
    if (m->store) {
        score_guess(j);
        plan_guess(j);
    }
    const uint64_t begin_ns = j->timed ? coli__clock_ns() : 0;
    COLI_TRY(compute(j, 0, m->n_run - 1, n_block_shared(m)));
    if (begin_ns) note_times(j, coli__clock_ns() - begin_ns);
    run_outer(j);
    return has_groups(m) ? finish_groups(j) : COLI_OK;
}

/* What the join used may go. */
static void release_last_wave(job *j)
{
    waves w = {.j = j, .store = j->m->store};
    release_runs(&w, j->first_left, j->m->n_run - 1);
}

static void abandon_groups(const coli__moe *m)
{
    const coli_bk_result *results[N_RESULT];
    if (has_groups(m)) wait_for_groups(m, results);
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
    job j = {.m = m,
             .pool = pool,
             .layer = layer,
             .n_tok = n_tok,
             .n_block = divide_up(m->d_ff, INNER),
             .h = h,
             .timed = is_timed(m, n_tok)};
    if (!routed && n_tok == 1 && m->n_device == 0 && !m->store) {
        run_route_and_inner(&j);
        j.inner_is_done = true;
    } else {
        if (!routed) run_route(&j);
        bucket(m, n_tok);
        start_groups(m, layer, n_tok);
    }
    const coli_status status = compute_and_join(&j);
    if (m->store) release_last_wave(&j); // after a failure some of it is released already
    const unsigned bad = atomic_exchange(&m->first_bad, UINT32_MAX);
    if (status != COLI_OK) {
        abandon_groups(m);
        return status;
    }
    count_rows(m);
    const coli__work work = {.ids = m->ids,
                             .n_row = n_tok,
                             .n_used = m->n_used,
                             .begin_ns = start_ns,
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
