/* moe_state.c - what a layer of experts needs to compute: made, measured, let go (moe.h). */
#include "moe_parts.h"

size_t coli__moe_product_max = 1 << 19;

/* Numbers of `results`, where all are wanted, and of a worker's `own`, for chunks of any size. */
static size_t results_floats(uint32_t max_tok, uint32_t n_used, uint32_t d_model, bool all)
{
    return all ? coli__moe_n_product(max_tok, n_used, d_model) : 0;
}

/* All of `own`; *n_own: of each worker. */
static size_t own_floats(uint32_t max_tok, uint32_t n_used, uint32_t d_model, uint32_t n_worker,
                         size_t *n_own)
{
    const size_t all = coli__moe_n_product(max_tok, n_used, d_model);
    const size_t n = coli__moe_n_product(max_tok, n_used, COLI__MOE_TILE);
    *n_own = 0;
    if (all <= coli__moe_product_max) return all; // rows are always few
    *n_own = n > coli__moe_product_max ? n : coli__moe_product_max;
    return n_worker * *n_own;
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
    m->shared_device = COLI__HOST;
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
    m->n_left = coli__calloc(coli__divide_up(m->d_model, COLI__MOE_JOIN), sizeof *m->n_left);
    m->n_product_max = coli__moe_product_max;
    m->own = coli__alloc64_raw(own_floats(max_tok, n_expert_used, m->d_model, n_worker, &m->n_own) *
                               sizeof(float));
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
        m->guess_logits = coli__alloc64(COLI__MOE_GUESS_ROWS * (size_t)m->n_expert * sizeof(float));
        m->guess_ids = coli__calloc(COLI__MOE_GUESS_ROWS * (size_t)m->n_used, sizeof *m->guess_ids);
        m->guess_w = coli__calloc(COLI__MOE_GUESS_ROWS * (size_t)m->n_used, sizeof *m->guess_w);
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
           COLI__MOE_GUESS_ROWS * (e->n_expert * sizeof *m->guess_logits +
                                   n_used * (sizeof *m->guess_ids + sizeof *m->guess_w));
}

uint64_t coli__moe_bytes(const coli__moe_layer *layers, uint32_t n_layer, uint32_t n_expert_used,
                         uint32_t max_tok, uint32_t n_worker, bool with_store)
{
    const coli__moe *m = NULL; // for the sizes of its numbers
    const coli__ct_experts *e = layers[0].experts;
    size_t n_own;
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
           coli__divide_up(e->d_model, COLI__MOE_JOIN) * sizeof *m->n_left +
           own_floats(max_tok, n_expert_used, e->d_model, n_worker, &n_own) * sizeof *m->own +
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
