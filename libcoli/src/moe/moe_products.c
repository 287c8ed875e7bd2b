/* moe_products.c - inner and outer: the products of the processor's runs, and the join (see moe.c). */
#include <string.h>

#include "moe_parts.h"

enum { ROWS = 32 }; // rows per pass of `inner`: gate and up tiles stay in L1

/* Few rows: all of their products stay in the last-level cache, as do those of many with some columns. */
static bool few_rows(const coli__moe *m, uint32_t n_tok)
{
    return coli__moe_n_product(n_tok, m->n_used, m->d_model) <= m->n_product_max;
}

/* Of many rows, how many columns a worker multiplies and joins at once. */
static uint32_t columns_at_once(const coli__moe *m, uint32_t n_tok)
{
    const size_t n =
        m->n_product_max / coli__moe_n_product(n_tok, m->n_used, COLI__MOE_TILE) * COLI__MOE_TILE;
    return n < COLI__MOE_TILE ? COLI__MOE_TILE : (uint32_t)n;
}

void coli__moe_swap_runs(coli__moe *m, uint32_t a, uint32_t b)
{
    const coli__run r = m->runs[a];
    m->runs[a] = m->runs[b];
    m->runs[b] = r;
}

static void expert_of(const coli__moe_job *j, const coli__run *r, coli__mat *gate, coli__mat *up,
                      coli__mat *down)
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

static coli__mat down_of(const coli__moe_job *j, uint32_t i)
{
    coli__mat gate, up, down;
    expert_of(j, &j->m->runs[i], &gate, &up, &down);
    return down;
}

/* What is read behind run i's last columns: the next run, or at the end what `outer` begins with. */
static const uint8_t *behind_run(const coli__moe_job *j, uint32_t i, bool shared)
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
static void inner_columns(const coli__moe_job *j, coli__run r, uint32_t first, uint32_t n,
                          const uint8_t *behind)
{
    coli__moe *m = j->m;
    const bool shared = r.expert == m->n_expert;
    const uint32_t d_ff = shared ? m->d_ff_shared : m->d_ff;
    coli__acts *inner = shared ? &m->inner_shared : &m->inner;

    coli__mat gate, up, down;
    expert_of(j, &r, &gate, &up, &down);
    float g[ROWS * COLI__MOE_INNER], u[ROWS * COLI__MOE_INNER];
    for (uint32_t row = 0; row < r.n; row += ROWS) {
        const uint32_t n_row = r.n - row < ROWS ? r.n - row : ROWS;
        uint32_t identity[ROWS];
        for (uint32_t i = 0; i < n_row; i++) identity[i] = row + i;
        coli__matmul_args args = {.w = &gate,
                                  .index = shared ? identity : m->pair_row + r.first + row,
                                  .n_row = n_row,
                                  .panel_begin = first / COLI_PANEL,
                                  .panel_end = coli__divide_up(first + n, COLI_PANEL),
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
void coli__moe_inner_blocks(const coli__moe_job *j, coli__run r, uint32_t first, uint32_t end,
                            const uint8_t *behind)
{
    const coli__moe *m = j->m;
    const uint32_t d_ff = r.expert == m->n_expert ? m->d_ff_shared : m->d_ff;
    const uint32_t last = end * COLI__MOE_INNER < d_ff ? end * COLI__MOE_INNER : d_ff;
    const uint32_t at_once = r.n > 0 && r.n < ROWS ? ROWS / r.n * COLI__MOE_INNER : COLI__MOE_INNER;
    for (uint32_t at = first * COLI__MOE_INNER; at < last; at += at_once)
        inner_columns(j, r, at, last - at < at_once ? last - at : at_once, behind);
}

/* Items: rows that guess; blocks of the shared expert, which every row uses, so that the longest items
 * start earliest; blocks of the runs. */
void coli__moe_inner_items(void *ctx, uint32_t first, uint32_t end, uint32_t worker)
{
    const coli__moe_job *j = ctx;
    const uint32_t begin_shared = j->n_guess, begin = begin_shared + j->n_block_shared;
    for (uint32_t item = first, n; item < end; item += n) {
        n = 1;
        if (item < begin_shared) {
            coli__pool_phase(j->pool, worker, COLI_PHASE_ROUTER);
            coli__moe_guess_row(j, item);
            continue;
        }
        const bool shared = item < begin;
        const uint32_t at = shared ? item - begin_shared : (item - begin) % j->n_block;
        const uint32_t n_block = shared ? j->n_block_shared : j->n_block;
        n = end - item < n_block - at ? end - item : n_block - at;
        coli__pool_phase(j->pool, worker, shared ? COLI_PHASE_SHARED : COLI_PHASE_EXPERTS);
        const uint32_t i = shared ? j->m->n_run - 1 : j->first_run + (item - begin) / j->n_block;
        coli__moe_inner_blocks(j, j->m->runs[i], at, at + n, behind_run(j, i, shared));
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

static const uint8_t *down_panel(const coli__moe_job *j, uint32_t i, uint32_t column)
{
    const coli__mat down = down_of(j, i);
    return coli__mat_panel(&down, column / COLI_PANEL);
}

/* Multiply run i with some columns.  next: what is likely read after them, or NULL. */
static void multiply_down(const coli__moe_job *j, uint32_t i, columns c, const uint8_t *next,
                          products to)
{
    const coli__moe *m = j->m;
    const coli__run r = m->runs[i];
    const bool shared = r.expert == m->n_expert;
    const coli__mat down = down_of(j, i);
    // pairs of one expert follow each other, so its rows are a run of `inner`
    coli__acts rows = shared ? m->inner_shared : m->inner;
    coli__matmul_args args = {.w = &down,
                              .n_row = r.n,
                              .panel_begin = c.first / COLI_PANEL,
                              .panel_end = coli__divide_up(c.first + c.n, COLI_PANEL),
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
    const coli__source *s = m->pair_source ? &m->pair_source[p] : NULL;
    if (s && s->device >= 0)
        return results[s->device]->y + s->row * results[s->device]->ld + c.first;
    if (s && s->device != COLI__HOST) host = in_results(m, c);
    return host.y + p * host.ld;
}

/* Sum columns of row t's experts in rank order.  results: NULL without devices. */
static void join_row(const coli__moe *m, uint32_t t, columns c, products host,
                     const coli_bk_result *const *results, float *sum)
{
    if (results && m->join_source[t].device != COLI__HOST) {
        const coli__source *s = &m->join_source[t];
        memcpy(sum, results[s->device]->y + s->row * results[s->device]->ld + c.first,
               c.n * sizeof *sum);
        return;
    }
    for (uint32_t rank = 0; rank < m->n_used; rank++) {
        const size_t p = (size_t)t * m->n_used + rank;
        m->k->axpy(sum, m->w[p], pair_result(m, m->pair_of[p], c, host, results), c.n);
    }
}

/* Wait for devices in an item, noting how long: the caller its own time, of others the first to be through
 * with it. */
static bool wait_in_item(coli__moe *m, uint32_t worker, const coli_bk_result **results)
{
    const uint64_t start_ns = coli__clock_ns();
    const bool good = coli__moe_wait_for_groups(m, results);
    const uint64_t end_ns = coli__clock_ns();
    unsigned long long none = 0;
    if (worker == 0)
        m->times.wait_ns += end_ns - start_ns;
    else if (atomic_compare_exchange_strong(&m->waited_until_ns, &none, end_ns))
        m->waited_from_ns = start_ns;
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
    if (until_ns == 0) return;
    const uint64_t from_ns =
        m->waited_from_ns > m->caller_end_ns ? m->waited_from_ns : m->caller_end_ns;
    if (until_ns > from_ns) m->times.wait_ns += until_ns - from_ns;
}

/* Columns of all rows, to which nothing is missing but what devices compute. */
static void join(const coli__moe_job *j, columns all, products host, uint32_t worker)
{
    coli__moe *m = j->m;
    const coli_bk_result *results[COLI__N_RESULT] = {NULL};
    if (coli__moe_has_groups(m)) {
        coli__pool_phase(j->pool, worker, COLI_PHASE_WAITING);
        if (!wait_in_item(m, worker, results)) return;
    }
    coli__pool_phase(j->pool, worker, COLI_PHASE_EXPERTS);
    const coli_bk_result *shared = results[COLI__SHARED];
    for (uint32_t t = 0; t < j->n_tok; t++)
        for (uint32_t done = 0; done < all.n; done += COLI__MOE_JOIN) {
            const columns c = {all.first + done,
                               all.n - done < COLI__MOE_JOIN ? all.n - done : COLI__MOE_JOIN};
            const products from = {host.y + done, host.ld};
            float sum[COLI__MOE_JOIN] = {0};
            join_row(m, t, c, from, m->n_held > 0 ? results : NULL, sum);
            m->k->axpy(sum, m->shared_w[t],
                       shared ? shared->y + t * shared->ld + c.first
                              : from.y + ((size_t)m->n_pair + t) * from.ld,
                       c.n);
            m->k->axpy(j->h + (size_t)t * m->d_model + c.first, 1.0f, sum, c.n);
        }
}

/* One more run was multiplied with tiles [first, end): join the columns to which nothing is missing now. */
static void join_completed(const coli__moe_job *j, uint32_t first, uint32_t end, uint32_t worker)
{
    const uint32_t n_tile = COLI__MOE_JOIN / COLI__MOE_TILE;
    for (uint32_t at = first, n; at < end; at += n) {
        const uint32_t i = at / n_tile, left = (i + 1) * n_tile - at;
        n = end - at < left ? end - at : left;
        if (atomic_fetch_sub_explicit(&j->m->n_left[i], n, memory_order_acq_rel) != n) continue;
        const columns c = columns_of(j->m, i * COLI__MOE_JOIN, COLI__MOE_JOIN);
        join(j, c, in_results(j->m, c), worker);
    }
}

static void phase_of_run(const coli__moe_job *j, uint32_t worker, uint32_t i)
{
    const bool shared = j->m->runs[i].expert == j->m->n_expert;
    coli__pool_phase(j->pool, worker, shared ? COLI_PHASE_SHARED : COLI_PHASE_EXPERTS);
}

/* Items are the tiles of the first run, then of the next, ... */
static void outer_of_runs(void *ctx, uint32_t first, uint32_t end, uint32_t worker)
{
    const coli__moe_job *j = ctx;
    const coli__moe *m = j->m;
    const uint32_t n_tile = coli__divide_up(m->d_model, COLI__MOE_TILE);
    for (uint32_t item = first, n; item < end; item += n) {
        const uint32_t i = j->first_run + item / n_tile, tile = item % n_tile;
        n = end - item < n_tile - tile ? end - item : n_tile - tile;
        const columns c = columns_of(m, tile * COLI__MOE_TILE, n * COLI__MOE_TILE);
        const uint8_t *next = tile + n < n_tile    ? down_panel(j, i, c.first + c.n)
                              : i + 1 < j->end_run ? down_panel(j, i + 1, 0)
                                                   : NULL;
        phase_of_run(j, worker, i);
        multiply_down(j, i, c, next, in_results(m, c));
        if (j->joins) join_completed(j, tile, tile + n, worker);
    }
    if (j->joins && worker == 0 && coli__moe_has_groups(m)) j->m->caller_end_ns = coli__clock_ns();
}

/* Items are tiles, of all runs that are left. */
static void outer_of_tiles(void *ctx, uint32_t first, uint32_t end, uint32_t worker)
{
    const coli__moe_job *j = ctx;
    const coli__moe *m = j->m;
    const uint32_t at_once = columns_at_once(m, j->n_tok);
    const products own = {m->own + worker * m->n_own, at_once};
    const columns all = columns_of(m, first * COLI__MOE_TILE, (end - first) * COLI__MOE_TILE);
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

void coli__moe_run_inner(coli__moe_job *j, uint32_t first_run, uint32_t n_run,
                         uint32_t n_block_shared)
{
    j->first_run = first_run;
    j->end_run = first_run + n_run;
    j->n_block_shared = n_block_shared;
    coli__pool_run_ranges(j->pool, j->n_guess + n_block_shared + n_run * j->n_block,
                          coli__moe_inner_items, j);
    j->n_guess = 0;
}

static void run_outer_of_runs(coli__moe_job *j, uint32_t first_run, uint32_t end_run, bool joins)
{
    j->first_run = first_run;
    j->end_run = end_run;
    j->joins = joins;
    coli__pool_run_ranges(j->pool,
                          (end_run - first_run) * coli__divide_up(j->m->d_model, COLI__MOE_TILE),
                          outer_of_runs, j);
}

/* The runs that are left, the shared expert's at least, and the join. */
void coli__moe_run_outer(coli__moe_job *j)
{
    coli__moe *m = j->m;
    const uint32_t n_tile = coli__divide_up(m->d_model, COLI__MOE_TILE);
    if (!few_rows(m, j->n_tok)) {
        j->first_run = j->first_left;
        j->end_run = m->n_run;
        coli__pool_run_ranges(j->pool, n_tile, outer_of_tiles, j);
        return;
    }
    for (uint32_t i = 0; i * COLI__MOE_JOIN < m->d_model; i++)
        atomic_store_explicit(
            &m->n_left[i],
            coli__divide_up(columns_of(m, i * COLI__MOE_JOIN, COLI__MOE_JOIN).n, COLI__MOE_TILE) *
                (m->n_run - j->first_left),
            memory_order_relaxed);
    const bool waits = coli__moe_has_groups(m);
    if (waits) begin_waiting(m);
    run_outer_of_runs(j, j->first_left, m->n_run, true);
    if (waits) count_waiting(m);
}

/* The products of runs that wait for the join. */
void coli__moe_run_outer_part(coli__moe_job *j, uint32_t first_run, uint32_t n_run)
{
    coli__moe *m = j->m;
    run_outer_of_runs(j, first_run, first_run + n_run, false);
    for (uint32_t i = first_run; i < first_run + n_run; i++)
        for (uint32_t p = m->runs[i].first; p < m->runs[i].first + m->runs[i].n; p++)
            m->pair_source[p].device = COLI__WAITS;
}
