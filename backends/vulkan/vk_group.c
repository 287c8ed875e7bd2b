/* vk_group.c - see vk_group.h.
 *
 * A round takes a run of pairs (expert, row), in order: whole experts, and parts of one at its
 * ends:
 *
 *     gate, up      products of the staged rows        one or two dispatches per shape and window
 *     --- barrier
 *     hidden        silu(gate) * up, quantised         one
 *     --- barrier
 *     down          products of those                  one per shape and window
 *     (--- barrier, join                               one)
 *     results and flags go to the group's readback memory
 *
 * Activation rows are staged once per round, however many experts take them.
 *
 * Joins.  Where one round takes the whole group, the rows are joined on the device and only the
 * joined ones come back.  Else all come back, and take joins them here, with the same operations.
 *
 *     take --issue--> pending --take--> result, valid until the next issue */
#include "vk_group.h"

#include <string.h>

#include "vk_round.h"

/* A row of the result: terms first .. first+n-1; or, when n is VK_NONE, pair `first`. */
typedef struct join_row {
    uint32_t first, n;
} join_row;

typedef struct join_term {
    uint32_t pair;
    float weight;
} join_term;

/* Memory that grows when a group needs more. */
typedef struct table {
    void *memory;
    uint64_t n_bytes;
} table;

typedef struct vk_group {
    vk_buffer readback;

    /* the group that was issued and not taken */
    bool is_pending;
    uint64_t value; // of its last submission
    uint32_t n_pair, n_row, d;
    uint64_t flag_at; // byte of the readback memory: flags of the pairs
    bool has_joins, is_joined_there;
    uint32_t n_term;

    /* which activation rows the round has staged: local[x] is valid where seen[x] == round */
    uint64_t round;
    table seen, local; // uint64_t, uint32_t (n_x)

    table rows, terms;   // join_row (n_row), join_term (n_term), with joins
    table flags, joined; // the result: uint8_t (n_row), float (n_row, d)
} vk_group;

coli_bk_status vk_group_init(coli_bk_device *dev)
{
    dev->group = vk_alloc(&dev->host, sizeof *dev->group);
    return dev->group ? COLI_BK_OK
                      : vk_fail(&dev->host, COLI_BK_NOMEM, "vulkan: no memory to open a device");
}

static void table_free(coli_bk_device *dev, table *t)
{
    vk_free(&dev->host, t->memory);
    *t = (table){0};
}

void vk_group_finish(coli_bk_device *dev)
{
    vk_group *g = dev->group;
    if (!g) return;
    vk_buffer_destroy(dev, &g->readback);
    table *const tables[] = {&g->seen, &g->local, &g->rows, &g->terms, &g->flags, &g->joined};
    for (uint32_t i = 0; i < sizeof tables / sizeof *tables; i++) table_free(dev, tables[i]);
    vk_free(&dev->host, g);
    dev->group = NULL;
}

/* n_bytes zeroed when new. */
static coli_bk_status table_need(coli_bk_device *dev, table *t, uint64_t n_bytes)
{
    if (t->n_bytes >= n_bytes) return COLI_BK_OK;
    table_free(dev, t);
    t->memory = vk_alloc(&dev->host, n_bytes + n_bytes / 4);
    if (!t->memory)
        return vk_fail(&dev->host, COLI_BK_NOMEM, "vulkan: no memory for the tables of a group");
    t->n_bytes = n_bytes + n_bytes / 4;
    return COLI_BK_OK;
}

/* ---- sizes ---------------------------------------------------------------------------------- */

/* Scratch of a pair: products of gate and up, the hidden row, the result. */
static uint64_t pair_scratch(const coli_bk_matrix m[3])
{
    return 2 * (uint64_t)m[0].n_out + vk_row_words_of(&m[2]) + m[2].n_out;
}

/* Staged for a pair besides its activation row: its number, its flag, at most a tile. */
enum { PAIR_STAGED = 2 + VK_TILE_WORDS, EXPERT_STAGED = 3 * VK_MATRIX_WORDS };

coli_bk_status vk_group_check_shape(coli_bk_device *dev, const coli_bk_matrix m[3])
{
    return vk_rounds_check(dev, m, EXPERT_STAGED + PAIR_STAGED + vk_row_words_of(&m[0]),
                           pair_scratch(m));
}

/* ---- what a round takes --------------------------------------------------------------------- */

/* Where a group stands: the next pair is row `row` of expert `expert`. */
typedef struct cursor {
    uint32_t expert, row;
    uint64_t pair;
} cursor;

/* The rows of one expert that a round takes. */
typedef struct run {
    const coli_bk_tensor *t;
    uint32_t buffer;
    uint32_t first_pair, n_row; // counted in the round
} run;

typedef struct tile_list {
    uint32_t at, n;
} tile_list;

/* A round of a group, and where its regions are. */
typedef struct part {
    const coli_bk_group *group;
    const coli_bk_matrix *m; // gate, up, down: the shape of all experts
    vk_round *round;
    cursor begin;
    uint32_t n_pair, n_run, n_x;
    uint32_t matrix_at, row_at, flag_at, x_at; // staged
    uint32_t product_at, hidden_at, result_at; // scratch
    tile_list tiles[VK_N_SHAPE][VK_N_SET];
} part;

/* How many pairs, from p->begin on, the round can take: at least one.  Numbers the weight buffers
 * and the activation rows. */
static void plan(vk_group *g, part *p)
{
    const coli_bk_group *group = p->group;
    const uint64_t scratch = pair_scratch(p->m), row = vk_row_words(group->n_group, group->group);
    uint64_t *seen = g->seen.memory;
    uint32_t *local = g->local.memory;
    uint64_t staged = 0;
    g->round++;
    for (cursor c = p->begin; c.expert < group->n_expert; c.expert++, c.row = 0) {
        const uint32_t first = c.row;
        if (first == group->n_row[c.expert]) continue;
        if (vk_round_buffer(p->round, group->experts[c.expert]->slice.chunk) == VK_MAX_ROUND_BUFFER)
            return;
        staged += EXPERT_STAGED;
        for (; c.row < group->n_row[c.expert]; c.row++, c.pair++) {
            const uint32_t x = group->row[c.pair];
            const bool is_new = seen[x] != g->round;
            staged += PAIR_STAGED + (is_new ? row : 0);
            if (p->n_pair == VK_MAX_PAIR ||
                (p->n_pair > 0 &&
                 !vk_round_fits(p->round, staged, (p->n_pair + (uint64_t)1) * scratch)))
                return;
            p->n_run += c.row == first;
            if (is_new) {
                seen[x] = g->round;
                local[x] = p->n_x++;
            }
            p->n_pair++;
        }
    }
}

/* The next expert's rows; false when the round has no more.  Begin with *c = p->begin. */
static bool next_run(const part *p, cursor *c, run *out)
{
    const uint32_t done = (uint32_t)(c->pair - p->begin.pair);
    if (done == p->n_pair) return false;
    while (c->row == p->group->n_row[c->expert]) {
        c->expert++;
        c->row = 0;
    }
    const coli_bk_tensor *t = p->group->experts[c->expert];
    *out = (run){.t = t,
                 .buffer = vk_round_buffer(p->round, t->slice.chunk),
                 .first_pair = done,
                 .n_row = (uint32_t)vk_min(p->group->n_row[c->expert] - c->row, p->n_pair - done)};
    c->row += out->n_row;
    c->pair += out->n_row;
    return true;
}

/* ---- staging -------------------------------------------------------------------------------- */

/* The numbers of the activation rows, and the rows themselves. */
static void stage_rows(const vk_group *g, const part *p, uint32_t x_ld)
{
    const coli_bk_group *group = p->group;
    const uint32_t *local = g->local.memory;
    uint32_t n_x = 0;
    for (uint32_t i = 0; i < p->n_pair; i++) {
        const uint32_t x = group->row[p->begin.pair + i];
        p->round->staged[p->row_at + i] = local[x];
        if (local[x] < n_x) continue; // `plan` numbered them in the order of the pairs
        n_x = local[x] + 1;
        vk_round_put_row(p->round, p->x_at + local[x] * x_ld,
                         group->q + (size_t)x * group->n_group * group->group,
                         group->d + (size_t)x * group->n_group, group->n_group, group->group);
    }
}

/* Tiles of the runs, listed by shape and window. */
static void stage_tiles(part *p)
{
    for (vk_shape shape = 0; shape < VK_N_SHAPE; shape++)
        for (uint32_t set = 0; set * VK_N_WEIGHT_BUFFER < p->round->n_buffer; set++) {
            tile_list *list = &p->tiles[shape][set];
            list->at = p->round->n_staged;
            cursor c = p->begin;
            run e;
            for (uint32_t i = 0; next_run(p, &c, &e); i++)
                if (vk_shape_for(e.n_row) == shape && e.buffer / VK_N_WEIGHT_BUFFER == set)
                    list->n += vk_round_put_tiles(p->round, shape, 3 * i, e.first_pair, e.n_row);
        }
}

static void stage(const vk_group *g, part *p)
{
    vk_round *r = p->round;
    const uint32_t x_ld = (uint32_t)vk_row_words_of(&p->m[0]);
    p->matrix_at = vk_round_stage(r, (uint64_t)p->n_run * EXPERT_STAGED);
    p->row_at = vk_round_stage(r, p->n_pair);
    p->flag_at = vk_round_stage(r, p->n_pair);
    p->x_at = vk_round_stage(r, (uint64_t)p->n_x * x_ld);
    memset(r->staged + p->flag_at, 0, 4 * (size_t)p->n_pair);
    stage_rows(g, p, x_ld);
    cursor c = p->begin;
    run e;
    for (uint32_t at = p->matrix_at; next_run(p, &c, &e); at += EXPERT_STAGED)
        vk_round_put_matrices(r, at, e.t, e.buffer);
    stage_tiles(p);

    p->product_at = vk_round_scratch(r, (uint64_t)2 * p->n_pair * p->m[0].n_out);
    p->hidden_at = vk_round_scratch(r, p->n_pair * vk_row_words_of(&p->m[2]));
    p->result_at = vk_round_scratch(r, (uint64_t)p->n_pair * p->m[2].n_out);
}

/* ---- kernels -------------------------------------------------------------------------------- */

/* Products of all runs with their matrices first .. first+n_matrix-1. */
static void add_products(coli_bk_device *dev, const part *p, uint32_t first, uint32_t n_matrix,
                         vk_product_args a, bool is_after_barrier)
{
    a.matrix_at = p->matrix_at;
    a.first_matrix = first;
    for (vk_shape shape = 0; shape < VK_N_SHAPE; shape++)
        for (uint32_t set = 0; set < VK_N_SET; set++) {
            const tile_list *tiles = &p->tiles[shape][set];
            if (tiles->n == 0) continue;
            a.tile_at = tiles->at;
            vk_dispatch *d = vk_round_product(dev, &p->m[first], n_matrix, shape, set, tiles->n, a);
            d->is_after_barrier = is_after_barrier;
            is_after_barrier = false;
        }
}

static void add_hidden(coli_bk_device *dev, const part *p)
{
    const coli_bk_layout l = coli_bk_layout_of(p->m[2].format, p->m[2].n_in);
    const uint32_t f = p->m[0].n_out;
    const vk_hidden_args a = {
        .gate_at = p->product_at,
        .up_at = p->product_at + p->n_pair * f,
        .ld = f,
        .h_at = p->hidden_at,
        .h_ld = (uint32_t)vk_row_words_of(&p->m[2]),
        .n = f,
        .n_group = l.n_group,
        .flag_at = p->flag_at,
    };
    vk_dispatch *d = vk_round_dispatch(p->round, vk_kernels_hidden(dev, l.group), 0, &a, sizeof a);
    d->n_x = (uint32_t)vk_min(((uint64_t)f + 63) / 64, 1024); // the kernel goes on from there
    d->n_y = p->n_pair;
    d->is_after_barrier = true;
}

static void add_kernels(coli_bk_device *dev, const part *p)
{
    const uint32_t f = p->m[0].n_out;
    vk_product_args a = {
        .row_at = p->row_at,
        .x_at = p->x_at,
        .x_ld = (uint32_t)vk_row_words_of(&p->m[0]),
        .y_at = p->product_at,
        .y_ld = f,
        .y_plane = p->n_pair * f,
    };
    if (p->m[0].format == p->m[1].format) {
        add_products(dev, p, 0, 2, a, false);
    } else {
        add_products(dev, p, 0, 1, a, false);
        a.y_at += a.y_plane;
        add_products(dev, p, 1, 1, a, false);
    }
    add_hidden(dev, p);
    const vk_product_args down = {
        .row_at = VK_NONE, // the pair's own hidden row
        .x_at = p->hidden_at,
        .x_ld = (uint32_t)vk_row_words_of(&p->m[2]),
        .y_at = p->result_at,
        .y_ld = p->m[2].n_out,
    };
    add_products(dev, p, 2, 1, down, true);
}

/* ---- joins ---------------------------------------------------------------------------------- */

/* Keep what the joins say: their tables are the host's, and free again when issue returns. */
static coli_bk_status keep_joins(coli_bk_device *dev, const coli_bk_group *group)
{
    vk_group *g = dev->group;
    g->has_joins = COLI_BK_HAS(group, coli_bk_group, term_weight) && group->n_join > 0;
    if (!g->has_joins) return COLI_BK_OK;
    g->n_term = group->n_term;
    VK_TRY(table_need(dev, &g->rows, ((uint64_t)g->n_pair + group->n_join) * sizeof(join_row)));
    VK_TRY(table_need(dev, &g->terms, g->n_term * sizeof(join_term)));
    VK_TRY(table_need(dev, &g->flags, g->n_pair));

    join_term *terms = g->terms.memory;
    for (uint32_t i = 0; i < g->n_term; i++)
        terms[i] = (join_term){group->term_pair[i], group->term_weight[i]};
    uint8_t *is_joined = g->flags.memory; // they are written at the end
    memset(is_joined, 0, g->n_pair);
    for (uint32_t i = 0; i < group->n_join; i++)
        for (uint32_t t = 0; t < group->joins[i].n_term; t++)
            is_joined[terms[group->joins[i].first_term + t].pair] = 1;
    join_row *row = g->rows.memory;
    for (uint32_t i = 0; i < g->n_pair; i++)
        if (!is_joined[i]) *row++ = (join_row){i, VK_NONE};
    for (uint32_t i = 0; i < group->n_join; i++)
        *row++ = (join_row){group->joins[i].first_term, group->joins[i].n_term};
    g->n_row = (uint32_t)(row - (join_row *)g->rows.memory);
    return COLI_BK_OK;
}

/* Add the join to a round that takes the whole group, if it has room; *at: the joined rows. */
static bool add_join(coli_bk_device *dev, const part *p, uint32_t *at)
{
    const vk_group *g = dev->group;
    vk_round *r = p->round;
    const uint64_t row_words = 2 * (uint64_t)g->n_row, term_words = 2 * (uint64_t)g->n_term,
                   out_words = (uint64_t)g->n_row * g->d;
    if (!g->has_joins || p->n_pair != g->n_pair || g->n_row > VK_MAX_PAIR || g->n_row == 0 ||
        !vk_round_fits(r, row_words + term_words, out_words))
        return false;
    vk_join_args a = {.y_at = p->result_at, .d = g->d};
    a.row_at = vk_round_stage(r, row_words);
    a.term_at = vk_round_stage(r, term_words);
    a.out_at = *at = vk_round_scratch(r, out_words);
    memcpy(r->staged + a.row_at, g->rows.memory, 4 * row_words);
    memcpy(r->staged + a.term_at, g->terms.memory, 4 * term_words);
    vk_dispatch *d = vk_round_dispatch(r, dev->kernels.join, 0, &a, sizeof a);
    d->n_x = (uint32_t)vk_min(((uint64_t)g->d + 63) / 64, 1024); // the kernel goes on from there
    d->n_y = g->n_row;
    d->is_after_barrier = true;
    return true;
}

/* The rows of the result from those of the pairs. */
static void join_here(vk_group *g)
{
    const float *y = g->readback.map;
    const join_row *rows = g->rows.memory;
    const join_term *terms = g->terms.memory;
    float *out = g->joined.memory;
    for (uint32_t i = 0; i < g->n_row; i++, out += g->d) {
        if (rows[i].n == VK_NONE) {
            memcpy(out, y + (size_t)rows[i].first * g->d, g->d * sizeof *out);
            continue;
        }
        memset(out, 0, g->d * sizeof *out);
        for (const join_term *t = terms + rows[i].first; t < terms + rows[i].first + rows[i].n; t++)
            for (uint32_t c = 0; c < g->d; c++)
                out[c] = out[c] + t->weight * y[(size_t)t->pair * g->d + c];
    }
}

static void set_flags(vk_group *g)
{
    const uint32_t *of_pair =
        (const uint32_t *)(const void *)((uint8_t *)g->readback.map + g->flag_at);
    const join_row *rows = g->rows.memory;
    const join_term *terms = g->terms.memory;
    uint8_t *flags = g->flags.memory;
    for (uint32_t i = 0; i < g->n_row; i++) {
        const bool is_pair = !g->has_joins || rows[i].n == VK_NONE;
        if (is_pair) {
            flags[i] = of_pair[g->has_joins ? rows[i].first : i] != 0;
            continue;
        }
        flags[i] = 0;
        for (uint32_t t = 0; t < rows[i].n; t++)
            flags[i] |= of_pair[terms[rows[i].first + t].pair] != 0;
    }
}

/* ---- issue and take ------------------------------------------------------------------------- */

bool vk_group_is_pending(const coli_bk_device *dev)
{
    return dev->group->is_pending;
}

/* One round of the group: from *c on, which moves. */
static coli_bk_status issue_round(coli_bk_device *dev, const coli_bk_group *group, cursor *c)
{
    vk_group *g = dev->group;
    part p = {.group = group, .m = group->experts[0]->matrix, .begin = *c};
    VK_TRY(vk_round_begin(dev, &p.round));
    plan(g, &p);
    stage(g, &p);
    add_kernels(dev, &p);
    const uint64_t row_bytes = 4 * (uint64_t)g->d;
    uint32_t joined_at = 0;
    g->is_joined_there = add_join(dev, &p, &joined_at);
    if (g->is_joined_there)
        vk_round_copy(p.round, joined_at, 0, g->n_row * row_bytes);
    else
        vk_round_copy(p.round, p.result_at, c->pair * row_bytes, p.n_pair * row_bytes);
    vk_round_copy(p.round, p.flag_at, g->flag_at + 4 * c->pair, 4 * (uint64_t)p.n_pair);
    run e;
    while (next_run(&p, c, &e)) {
    }
    return vk_round_submit(dev, g->readback.handle);
}

static coli_bk_status issue_rounds(coli_bk_device *dev, const coli_bk_group *group, uint64_t n_pair)
{
    vk_group *g = dev->group;
    g->d = group->experts[0]->matrix[2].n_out;
    VK_TRY(keep_joins(dev, group));
    const uint64_t row_bytes = 4 * (uint64_t)g->d, n_row = vk_max(n_pair, g->n_row);
    g->flag_at = n_row * row_bytes;
    VK_TRY(vk_readback_need(dev, &g->readback, g->flag_at + 4 * n_pair));
    VK_TRY(table_need(dev, &g->flags, n_row));
    VK_TRY(table_need(dev, &g->seen, group->n_x * sizeof(uint64_t)));
    VK_TRY(table_need(dev, &g->local, group->n_x * sizeof(uint32_t)));
    cursor c = {0};
    while (c.pair < n_pair) VK_TRY(issue_round(dev, group, &c));
    if (g->has_joins && !g->is_joined_there)
        VK_TRY(table_need(dev, &g->joined, g->n_row * row_bytes));
    return COLI_BK_OK;
}

coli_bk_status vk_group_issue(coli_bk_device *dev, const coli_bk_group *group, uint64_t n_pair)
{
    vk_group *g = dev->group;
    if (n_pair > INT32_MAX)
        return vk_fail(&dev->host, COLI_BK_NOMEM, "vulkan: a group of %llu rows is too large",
                       (unsigned long long)n_pair);
    g->n_pair = g->n_row = (uint32_t)n_pair;
    g->has_joins = g->is_joined_there = false;
    if (group->n_expert > 0) {
        const coli_bk_status status = issue_rounds(dev, group, n_pair);
        if (status) {
            vk_stream_drain(dev, &dev->work);
            return status;
        }
    }
    g->is_pending = true;
    g->value = dev->work.issued;
    pthread_mutex_lock(&dev->stats_lock);
    dev->stats.n_group++;
    dev->stats.n_expert += group->n_expert;
    dev->stats.n_row += n_pair;
    pthread_mutex_unlock(&dev->stats_lock);
    return COLI_BK_OK;
}

coli_bk_status vk_group_take(coli_bk_device *dev, uint64_t limit_ns, coli_bk_result *out)
{
    vk_group *g = dev->group;
    if (!g->is_pending) return COLI_BK_EMPTY;
    g->is_pending = false;
    if (g->n_row > 0) {
        const coli_bk_status status = vk_stream_wait(dev, &dev->work, g->value, limit_ns);
        if (status == COLI_BK_BUSY) {
            atomic_store(&dev->is_lost, true);
            return vk_fail(&dev->host, COLI_BK_LOST,
                           "vulkan: %s: a group was not done within %llu ms", dev->about.name,
                           (unsigned long long)limit_ns / 1000000);
        }
        if (status) return status;
        vk_rounds_read_stamps(dev);
        set_flags(g);
        if (g->has_joins && !g->is_joined_there) join_here(g);
    }
    out->n_row = g->n_row;
    out->y = g->has_joins && !g->is_joined_there ? g->joined.memory : g->readback.map;
    out->ld = g->d;
    out->flag = g->flags.memory;
    return COLI_BK_OK;
}
