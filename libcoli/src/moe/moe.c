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
 * outer    one item per tile of output columns: down for every expert into the worker's own tile
 *          (pair, column), then each row joined from it in rank order.         -- synchronisation 2
 *
 * The shared expert is one more expert that every row uses; its pairs follow the routed ones.
 *
 * Why the join is in `outer`: a column of the output needs only that column of every expert, so the
 * worker that computed it adds in rank order without waiting for anyone.
 *
 * Invariants: (1) a row's bytes depend on that row alone: every product and sum is per row in a
 * fixed order.  (2) An expert that no row chose is not read. */
#include "moe.h"

#include <stdatomic.h>
#include <string.h>

#include "../../include/coli/exact.h"
#include "phase.h"
#include "route.h"

enum {
    INNER = 64, // columns of the inner width per item: whole groups of either size
    ROWS = 32,  // rows per pass in an item: gate and up tiles stay in L1
    TILE = 32,  // output columns per item of `outer`: two panels
};

/* A run of rows that use one expert in this chunk. */
typedef struct run {
    uint32_t expert;   // n_expert: the shared one
    uint32_t first, n; // its pairs
} run;

struct coli__moe {
    /* immutable after create */
    const coli__kernels *k;
    uint32_t n_expert, n_used, d_model, d_ff, d_ff_shared, max_tok;

    /* per row, written by coli__moe_route */
    coli__acts x;          // (max_tok, d_model)
    float *logits;         // (max_tok, n_expert)
    int32_t *ids;          // (max_tok, n_used)
    float *w;              // (max_tok, n_used)
    float *shared_w;       // (max_tok)
    atomic_uint first_bad; // lowest row whose numbers left their range; UINT32_MAX: none

    /* per chunk */
    uint32_t *n_of;          // (n_expert + 1) pairs of each expert
    run *runs;               // (n_expert + 1)
    uint32_t n_run, n_pair;  // n_pair: routed ones
    uint32_t *pair_row;      // (max_tok * n_used) row of each pair, by expert
    uint32_t *pair_of;       // (max_tok, n_used) pair of each (row, rank)
    coli__acts inner;        // (max_tok * n_used, d_ff)
    coli__acts inner_shared; // (max_tok, d_ff_shared)

    /* per worker */
    float *tile; // (n_worker, max_tok * (n_used + 1), TILE)
};

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

coli_status coli__moe_create(const coli__moe_layer *layers, uint32_t n_layer,
                             uint32_t n_expert_used, uint32_t max_tok, uint32_t n_worker,
                             const coli__kernels *kernels, coli__moe **out)
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
    m->shared_w = coli__calloc(max_tok, sizeof *m->shared_w);
    m->n_of = coli__calloc((size_t)m->n_expert + 1, sizeof *m->n_of);
    m->runs = coli__calloc((size_t)m->n_expert + 1, sizeof *m->runs);
    m->pair_row = coli__calloc(n_pair, sizeof *m->pair_row);
    m->pair_of = coli__calloc(n_pair, sizeof *m->pair_of);
    m->tile = coli__alloc64(n_worker * (n_pair + max_tok) * TILE * sizeof(float));
    if (!m->logits || !m->ids || !m->w || !m->shared_w || !m->n_of || !m->runs || !m->pair_row ||
        !m->pair_of || !m->tile)
        status = COLI_E_NOMEM;
    atomic_init(&m->first_bad, UINT32_MAX);
    if (status != COLI_OK) {
        coli__moe_destroy(m);
        return status;
    }
    *out = m;
    return COLI_OK;
}

void coli__moe_destroy(coli__moe *m)
{
    if (!m) return;
    coli__acts_finish(&m->x);
    coli__acts_finish(&m->inner);
    coli__acts_finish(&m->inner_shared);
    coli__free_aligned(m->logits);
    coli__free(m->ids);
    coli__free(m->w);
    coli__free(m->shared_w);
    coli__free(m->n_of);
    coli__free(m->runs);
    coli__free(m->pair_row);
    coli__free(m->pair_of);
    coli__free_aligned(m->tile);
    coli__free_aligned(m);
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

void coli__moe_reject(coli__moe *m, uint32_t t)
{
    unsigned seen = atomic_load(&m->first_bad);
    while (t < seen && !atomic_compare_exchange_weak(&m->first_bad, &seen, t)) {
    }
}

void coli__moe_route(coli__moe *m, const coli__moe_layer *layer, uint32_t t)
{
    const float *x = coli__moe_input(m, t);
    float *logits = m->logits + (size_t)t * m->n_expert;
    float shared;
    coli__matmul_args args = {.w = &layer->router,
                              .xf = x,
                              .ldx = m->x.ld,
                              .n_row = 1,
                              .panel_end = (m->n_expert + COLI_PANEL - 1) / COLI_PANEL,
                              .y = logits,
                              .ldy = m->n_expert};
    m->k->matmul(&args);
    args = (coli__matmul_args){.w = &layer->shared_gate_row,
                               .xf = x,
                               .ldx = m->x.ld,
                               .n_row = 1,
                               .panel_end = 1,
                               .y = &shared,
                               .ldy = 1};
    m->k->matmul(&args);
    m->shared_w[t] = coli_sigmoid(shared);

    const size_t at = (size_t)t * m->n_used;
    const bool routed =
        coli__route_softmax_topk(m->k, logits, m->n_expert, m->n_used, m->ids + at, m->w + at);
    const bool quantised = coli__acts_quantise(&m->x, m->k, t, 0, m->d_model, x);
    if (!routed || !quantised || !coli__is_finite(shared)) coli__moe_reject(m, t);
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
        if (m->n_of[e]) m->runs[m->n_run++] = (run){e, first, m->n_of[e]};
        const uint32_t n = m->n_of[e];
        m->n_of[e] = first; // from here on: where its next pair goes
        first += n;
    }
    for (uint32_t p = 0; p < m->n_pair; p++) {
        const uint32_t at = m->n_of[m->ids[p]]++;
        m->pair_row[at] = p / m->n_used;
        m->pair_of[p] = at;
    }
    m->runs[m->n_run++] = (run){m->n_expert, 0, n_tok};
}

/* -- inner and outer --------------------------------------------------------------------------- */

typedef struct job {
    coli__moe *m;
    coli__pool *pool;
    const coli__moe_layer *layer;
    uint32_t n_tok, n_block, n_block_shared;
    float *h;
} job;

static void expert_of(const job *j, uint32_t expert, coli__mat *gate, coli__mat *up,
                      coli__mat *down)
{
    if (expert < j->m->n_expert) {
        coli__ct_expert(j->layer->experts, expert, gate, up, down);
        return;
    }
    *gate = j->layer->shared_gate;
    *up = j->layer->shared_up;
    *down = j->layer->shared_down;
}

static void inner_item(void *ctx, uint32_t item, uint32_t worker)
{
    const job *j = ctx;
    coli__moe *m = j->m;
    // the shared expert, which every row uses, comes first: the longest items start earliest
    const bool shared = item < j->n_block_shared;
    coli__pool_phase(j->pool, worker, shared ? COLI_PHASE_SHARED : COLI_PHASE_EXPERTS);
    const uint32_t rest = shared ? 0 : item - j->n_block_shared;
    const run r = m->runs[shared ? m->n_run - 1 : rest / j->n_block];
    const uint32_t block = shared ? item : rest % j->n_block;
    const uint32_t d_ff = shared ? m->d_ff_shared : m->d_ff;
    const uint32_t first = block * INNER, n = d_ff - first < INNER ? d_ff - first : INNER;
    coli__acts *inner = shared ? &m->inner_shared : &m->inner;

    coli__mat gate, up, down;
    expert_of(j, r.expert, &gate, &up, &down);
    float g[ROWS * INNER], u[ROWS * INNER];
    for (uint32_t row = 0; row < r.n; row += ROWS) {
        const uint32_t n_row = r.n - row < ROWS ? r.n - row : ROWS;
        uint32_t identity[ROWS];
        for (uint32_t i = 0; i < n_row; i++) identity[i] = row + i;
        coli__matmul_args args = {.w = &gate,
                                  .index = shared ? identity : m->pair_row + r.first + row,
                                  .n_row = n_row,
                                  .panel_begin = first / COLI_PANEL,
                                  .panel_end = (first + n + COLI_PANEL - 1) / COLI_PANEL,
                                  .next = coli__mat_panel(&up, first / COLI_PANEL),
                                  .y = g,
                                  .ldy = INNER};
        coli__acts_bind(&m->x, &args);
        m->k->matmul(&args);
        args.w = &up;
        args.next = coli__mat_panel(&gate, args.panel_end); // the next item, likely this worker's
        args.y = u;
        coli__acts_bind(&m->x, &args);
        m->k->matmul(&args);
        for (uint32_t i = 0; i < n_row; i++) {
            const uint32_t pair = r.first + row + i;
            float *out = inner->f ? inner->f + pair * inner->ld + first : g + i * INNER;
            m->k->silu_mul(g + i * INNER, u + i * INNER, n, out);
            if (!coli__acts_quantise(inner, m->k, pair, first, n, out))
                coli__moe_reject(m, shared ? pair : m->pair_row[pair]);
        }
    }
}

static coli__mat down_of(const job *j, uint32_t i) // run i's; zero beyond the last
{
    coli__mat gate, up, down = {0};
    if (i < j->m->n_run) expert_of(j, j->m->runs[i].expert, &gate, &up, &down);
    return down;
}

static void outer_item(void *ctx, uint32_t item, uint32_t worker)
{
    const job *j = ctx;
    coli__moe *m = j->m;
    const uint32_t first = item * TILE;
    const uint32_t n = m->d_model - first < TILE ? m->d_model - first : TILE;
    float *tile = m->tile + (size_t)worker * m->max_tok * (m->n_used + 1) * TILE;
    float *tile_shared = tile + (size_t)m->n_pair * TILE;

    coli__mat down = down_of(j, 0);
    for (uint32_t i = 0; i < m->n_run; i++) {
        const run r = m->runs[i];
        const bool shared = r.expert == m->n_expert; // the last run
        coli__pool_phase(j->pool, worker, shared ? COLI_PHASE_SHARED : COLI_PHASE_EXPERTS);
        const coli__mat next = down_of(j, i + 1);
        // pairs of one expert follow each other, so its rows are a run of `inner`
        coli__acts rows = shared ? m->inner_shared : m->inner;
        coli__matmul_args args = {.w = &down,
                                  .n_row = r.n,
                                  .panel_begin = first / COLI_PANEL,
                                  .panel_end = (first + n + COLI_PANEL - 1) / COLI_PANEL,
                                  .next = coli__mat_panel(&next, first / COLI_PANEL),
                                  .y = shared ? tile_shared : tile + (size_t)r.first * TILE,
                                  .ldy = TILE};
        coli__acts_skip(&rows, r.first);
        coli__acts_bind(&rows, &args);
        m->k->matmul(&args);
        down = next;
    }
    coli__pool_phase(j->pool, worker, COLI_PHASE_EXPERTS);
    for (uint32_t t = 0; t < j->n_tok; t++) {
        float sum[TILE] = {0};
        for (uint32_t rank = 0; rank < m->n_used; rank++) {
            const size_t p = (size_t)t * m->n_used + rank;
            m->k->axpy(sum, m->w[p], tile + (size_t)m->pair_of[p] * TILE, n);
        }
        m->k->axpy(sum, m->shared_w[t], tile_shared + (size_t)t * TILE, n);
        m->k->axpy(j->h + (size_t)t * m->d_model + first, 1.0f, sum, n);
    }
}

coli_status coli__moe_run(coli__moe *m, const coli__moe_layer *layer, coli__pool *pool,
                          uint32_t n_tok, uint32_t pos, float *h)
{
    bucket(m, n_tok);
    job j = {.m = m,
             .pool = pool,
             .layer = layer,
             .n_tok = n_tok,
             .n_block = (m->d_ff + INNER - 1) / INNER,
             .n_block_shared = (m->d_ff_shared + INNER - 1) / INNER,
             .h = h};
    coli__pool_run(pool, j.n_block_shared + (m->n_run - 1) * j.n_block, inner_item, &j);
    coli__pool_run(pool, (m->d_model + TILE - 1) / TILE, outer_item, &j);

    const unsigned bad = atomic_exchange(&m->first_bad, UINT32_MAX);
    if (bad == UINT32_MAX) return COLI_OK;
    return coli__fail(COLI_E_NUMERIC,
                      "position %u: an activation is not finite or 2^40 or more in magnitude",
                      pos + bad);
}
