/* moe_route.c - which experts a row uses (see moe.c).
 *
 * Rows that are shared out among the workers are routed by whoever has them (coli__moe_route).  Of fewer rows
 * the router's columns are shared out; of a row alone beside the shared expert. */
#include "../../include/coli/exact.h"
#include "moe_parts.h"

enum { ROUTE_ROWS = 16 }; // routed at once: they stay in L2 while the router passes

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

void coli__moe_router_panels(coli__moe *m, const coli__moe_layer *layer, uint32_t first, uint32_t n,
                             uint32_t begin, uint32_t end, float *logits)
{
    const coli__matmul_args args = {.w = &layer->router,
                                    .xf = coli__moe_input(m, first),
                                    .ldx = m->x.ld,
                                    .n_row = n,
                                    .panel_begin = begin,
                                    .panel_end = end,
                                    .y = logits + (size_t)begin * COLI_PANEL,
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
        coli__moe_router_panels(m, layer, first + i, n - i < ROUTE_ROWS ? n - i : ROUTE_ROWS, 0,
                                coli__divide_up(m->n_expert, COLI_PANEL),
                                m->logits + ((size_t)first + i) * m->n_expert);
    shared_gate(m, layer, first, n);
    for (uint32_t t = first; t < first + n; t++) {
        choose_row(m, layer, t);
        quantise_row(m, t);
    }
}

/* -- rows that nobody routed: the router's columns are shared out ------------------------------- */

/* One item: a panel of the router, or the shared expert's gate.  True: it was the last. */
static bool route_item(const coli__moe_job *j, uint32_t item)
{
    coli__moe *m = j->m;
    if (item < j->n_route - 1)
        coli__moe_router_panels(m, j->layer, 0, j->n_tok, item, item + 1, m->logits);
    else
        shared_gate(m, j->layer, 0, j->n_tok);
    return atomic_fetch_sub_explicit(&m->n_route_left, 1, memory_order_acq_rel) == 1;
}

static void begin_route(coli__moe_job *j)
{
    coli__moe *m = j->m;
    j->n_route = coli__divide_up(m->n_expert, COLI_PANEL) + 1;
    coli__pool_phase(j->pool, 0, COLI_PHASE_ROUTER);
    for (uint32_t t = 0; t < j->n_tok; t++) quantise_row(m, t);
    coli__pool_phase(j->pool, 0, COLI_PHASE_OTHER);
    atomic_store_explicit(&m->n_route_left, j->n_route, memory_order_relaxed);
}

static void route_panel(void *ctx, uint32_t item, uint32_t worker)
{
    const coli__moe_job *j = ctx;
    coli__pool_phase(j->pool, worker, COLI_PHASE_ROUTER);
    route_item(j, item);
}

static void choose_item(void *ctx, uint32_t item, uint32_t worker)
{
    const coli__moe_job *j = ctx;
    coli__pool_phase(j->pool, worker, COLI_PHASE_ROUTER);
    choose_row(j->m, j->layer, item);
}

void coli__moe_run_route(coli__moe_job *j)
{
    begin_route(j);
    coli__pool_run(j->pool, j->n_route, route_panel, j);
    coli__pool_run(j->pool, j->n_tok, choose_item, j);
}

/* -- a row alone ------------------------------------------------------------------------------- */

/* Where no device and no store has to be told, whoever does the last of the router's columns chooses.
 * Meanwhile the others begin with the shared expert, which needs no choice.  So it takes no synchronisation,
 * only a wait of those who find nothing else to do.
 *
 *     worker 0   router  router  choose shared  |  e1 e1 e1 e4 e4 e6 ...
 *     worker 1   router  shared  shared  (wait) |  e1 e3 e3 e3 e4 ...     */

static void wait_for_choice(const coli__moe_job *j, uint32_t worker)
{
    if (atomic_load_explicit(&j->m->is_chosen, memory_order_acquire)) return;
    coli__pool_phase(j->pool, worker, COLI_PHASE_WAITING);
    for (uint32_t round = 0; !atomic_load_explicit(&j->m->is_chosen, memory_order_acquire); round++)
        coli__relax(round);
}

static void choose_for_all(coli__moe_job *j)
{
    coli__moe *m = j->m;
    choose_row(m, j->layer, 0);
    coli__moe_bucket(m, 1);
    j->end_run = m->n_run - 1;
    atomic_store_explicit(&m->is_chosen, true, memory_order_release);
}

/* An item is a worker. */
static void route_and_inner(void *ctx, uint32_t item, uint32_t worker)
{
    coli__moe_job *j = ctx;
    coli__moe *m = j->m;
    (void)item;
    for (uint32_t i; (i = atomic_fetch_add(&m->next_route, 1)) < j->n_route;) {
        coli__pool_phase(j->pool, worker, COLI_PHASE_ROUTER);
        if (route_item(j, i)) choose_for_all(j);
    }
    const coli__run shared = {m->n_expert, 0, 1, NULL};
    const uint32_t n_shared = coli__moe_n_block_shared(m);
    for (uint32_t i; (i = atomic_fetch_add(&m->next_shared, 1)) < n_shared;) {
        coli__pool_phase(j->pool, worker, COLI_PHASE_SHARED);
        coli__moe_inner_blocks(j, shared, i, i + 1, NULL);
    }
    wait_for_choice(j, worker);
    for (uint32_t first, end;
         coli__pool_take(j->pool, &m->next_chunk, j->end_run * j->n_block, &first, &end);)
        coli__moe_inner_items(j, first, end, worker);
}

void coli__moe_run_route_and_inner(coli__moe_job *j)
{
    coli__moe *m = j->m;
    begin_route(j);
    atomic_store_explicit(&m->next_route, 0, memory_order_relaxed);
    atomic_store_explicit(&m->next_shared, 0, memory_order_relaxed);
    atomic_store_explicit(&m->next_chunk, 0, memory_order_relaxed);
    atomic_store_explicit(&m->is_chosen, false, memory_order_relaxed);
    coli__pool_run(j->pool, coli__pool_n_worker(j->pool), route_and_inner, j);
}
