/* qwen36.c - the forward pass of Qwen3.5/3.6-MoE (text).
 *
 * A chunk of rows goes through the layers together; row t depends on earlier rows only through the
 * sequence state (keys and values, convolution taps, DeltaNet matrices), which advances one row at
 * a time.  So any cut of a prompt into chunks gives the same bytes.
 *
 *     h = embed[ids]
 *     per layer   mixer   x = norm(h);  attention or DeltaNet;  h += out_proj(...)
 *                 MoE     x = norm(h);  h += experts(x)                            (moe.c)
 *     logits = lm_head norm(h)
 *
 * Synchronisations per layer, of the pool's workers:
 *
 *     1  project     norm on one thread for few rows, then tiles of the input matrices
 *     2  heads       keys and queries normed and rotated, attention per rows and heads; or one
 *                    DeltaNet key head per item, over all rows
 *     3  finish      out_proj, residual, norm: tiles of outputs for few rows; for many, whole rows, so
 *                    that norm and route of a row follow without another wait
 *     4, 5           the two of moe.c, which takes more for some rows (moe.h)
 *
 * For many rows the norm before 1, and writing the keys before 2, are a synchronisation each.
 *
 * Notation as in docs/qwen36.md: D d_model, H heads, r value heads per key head.  Source:
 * transformers models/qwen3_5_moe; the gated delta rule is arXiv 2412.06464.
 *
 * Not here: MTP and vision tensors, which the converter skips. */
#include "qwen36_spec.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../libcoli/include/coli/exact.h"
#include "../../libcoli/src/backend/dense.h"
#include "../../libcoli/src/math/rope.h"
#include "../../libcoli/src/model/imatrix.h"
#include "../../libcoli/src/moe/moe.h"
#include "../../libcoli/src/moe/trunk.h"

enum {
    MANY_ROWS = 16,        // from here on rows may be shared out among the workers: see many_rows
    ROWS_EACH = 8,         // the least that a worker then gets: the kernels' widest block
    ROW_BLOCK = 32,        // rows per item of a projection
    FINISH_ROWS_MAX = 128, // rows per item of `finish`: out_proj is read once for them
    FEW_PANELS = 4,  // panels of 16 outputs per item of a projection: a share for every worker
    MANY_PANELS = 8, // the same for many rows: what stays in L2 while the row blocks pass
};

/* -- model ------------------------------------------------------------------------------------- */

typedef struct attention_layer {
    coli__mat q, k, v, o;         // q rows per head: d_head query, d_head gate
    const float *q_norm, *k_norm; // (d_head) zero-centred
} attention_layer;

typedef struct deltanet_layer {
    coli__mat qkv, z, b, a, out;
    float *conv;          // owned; segments of (n_tap, width), one per head: see segment_of
    float *decay_rate;    // owned; (n_v_head) exp(A_log)
    const float *dt_bias; // (n_v_head)
    const float *norm;    // (d_v) plain weight
} deltanet_layer;

typedef struct layer {
    const float *input_norm, *post_norm; // (D) zero-centred
    attention_layer attn;                // one of the two, by dims.full_attention
    deltanet_layer dn;
} layer;

typedef struct model {
    qwen36_dims dims;
    const coli__kernels *k;
    coli__tier *tier;
    layer *layers;        // (n_layer)
    coli__moe_layer *moe; // (n_layer)
    coli__mat embed, head;
    const float *final_norm; // (D) zero-centred
    float *rope_freq;        // (d_rot / 2)
    uint32_t n_attention, n_deltanet;
} model;

/* The convolved channels in segments, each owned by one head: q heads, k heads, v heads.  A
 * segment's taps, and its rows of state, are contiguous, so that a head is convolved on its own.
 * first: its first channel; in units of (n_tap or n_tap-1) * first the segment begins. */
typedef struct segment {
    uint32_t first, width;
} segment;

static segment q_segment(const qwen36_dims *d, uint32_t head)
{
    return (segment){head * d->d_k, d->d_k};
}
static segment k_segment(const qwen36_dims *d, uint32_t head)
{
    return (segment){(d->n_k_head + head) * d->d_k, d->d_k};
}
static segment v_segment(const qwen36_dims *d, uint32_t head)
{
    return (segment){2 * d->n_k_head * d->d_k + head * d->d_v, d->d_v};
}

static void model_close(void *p)
{
    model *m = p;
    if (!m) return;
    for (uint32_t i = 0; m->layers && i < m->dims.n_layer; i++) {
        coli__free_aligned(m->layers[i].dn.conv);
        coli__free_aligned(m->layers[i].dn.decay_rate);
    }
    coli__free(m->layers);
    coli__free(m->moe);
    coli__free(m->rope_freq);
    coli__free(m);
}

/* -- binding ----------------------------------------------------------------------------------- */

typedef struct binder {
    const coli__container *container;
    uint32_t layer;
} binder;

static coli_status bind_mat(const binder *b, const char *name, uint32_t n_out, uint32_t n_in,
                            coli__mat *out)
{
    char full[96];
    snprintf(full, sizeof full, "layers.%u.%s.weight", b->layer, name);
    const coli__ct_tensor *t;
    COLI_TRY(coli__container_find(b->container, full, n_out, n_in, &t));
    *out = t->mat;
    return COLI_OK;
}

static coli_status as_vector(const coli__container *c, const char *name, uint32_t n,
                             const float **out)
{
    const coli__ct_tensor *t;
    COLI_TRY(coli__container_find(c, name, 1, n, &t));
    if (t->mat.fmt.type != COLI_W_F32)
        return coli__fail(COLI_E_FORMAT, "model.coli: tensor %s: expected f32", name);
    *out = (const float *)(const void *)t->mat.data;
    return COLI_OK;
}

static coli_status bind_vector(const binder *b, const char *name, uint32_t n, const float **out)
{
    char full[96];
    snprintf(full, sizeof full, "layers.%u.%s", b->layer, name);
    return as_vector(b->container, full, n, out);
}

/* A matrix whose products stay in f32 (DESIGN 4.4): the router and the gates. */
static coli_status bind_precise(const binder *b, const char *name, uint32_t n_out, uint32_t n_in,
                                coli__mat *out)
{
    COLI_TRY(bind_mat(b, name, n_out, n_in, out));
    if (!coli__wfmt_is_quant(out->fmt)) return COLI_OK;
    return coli__fail(COLI_E_FORMAT, "model.coli: tensor layers.%u.%s.weight: expected f32 or bf16",
                      b->layer, name);
}

static coli_status bind_attention(const binder *b, const qwen36_dims *d, attention_layer *a)
{
    const uint32_t n_q = d->n_head * d->d_head, n_kv = d->n_kv_head * d->d_head;
    COLI_TRY(bind_mat(b, "self_attn.q_proj", 2 * n_q, d->d_model, &a->q));
    COLI_TRY(bind_mat(b, "self_attn.k_proj", n_kv, d->d_model, &a->k));
    COLI_TRY(bind_mat(b, "self_attn.v_proj", n_kv, d->d_model, &a->v));
    COLI_TRY(bind_mat(b, "self_attn.o_proj", d->d_model, n_q, &a->o));
    COLI_TRY(bind_vector(b, "self_attn.q_norm.weight", d->d_head, &a->q_norm));
    return bind_vector(b, "self_attn.k_norm.weight", d->d_head, &a->k_norm);
}

/* w (n_channel, n_tap) as the checkpoint has it, to segments of (n_tap, width). */
static void lay_out_taps(const qwen36_dims *d, segment s, const float *w, float *out)
{
    float *to = out + (size_t)s.first * d->n_tap;
    for (uint32_t tap = 0; tap < d->n_tap; tap++)
        for (uint32_t c = 0; c < s.width; c++)
            to[(size_t)tap * s.width + c] = w[(size_t)(s.first + c) * d->n_tap + tap];
}

static coli_status bind_deltanet(const binder *b, const qwen36_dims *d, deltanet_layer *n)
{
    const uint32_t d_value = d->n_v_head * d->d_v;
    const float *conv = NULL, *a_log = NULL;
    COLI_TRY(bind_mat(b, "linear_attn.in_proj_qkv", d->d_qkv, d->d_model, &n->qkv));
    COLI_TRY(bind_mat(b, "linear_attn.in_proj_z", d_value, d->d_model, &n->z));
    COLI_TRY(bind_precise(b, "linear_attn.in_proj_b", d->n_v_head, d->d_model, &n->b));
    COLI_TRY(bind_precise(b, "linear_attn.in_proj_a", d->n_v_head, d->d_model, &n->a));
    COLI_TRY(bind_mat(b, "linear_attn.out_proj", d->d_model, d_value, &n->out));
    COLI_TRY(bind_vector(b, "linear_attn.conv1d.weight", d->d_qkv * d->n_tap, &conv));
    COLI_TRY(bind_vector(b, "linear_attn.A_log", d->n_v_head, &a_log));
    COLI_TRY(bind_vector(b, "linear_attn.dt_bias", d->n_v_head, &n->dt_bias));
    COLI_TRY(bind_vector(b, "linear_attn.norm.weight", d->d_v, &n->norm));

    n->conv = coli__alloc64((size_t)d->d_qkv * d->n_tap * sizeof(float));
    n->decay_rate = coli__alloc64(d->n_v_head * sizeof(float));
    if (!n->conv || !n->decay_rate) return COLI_E_NOMEM;
    for (uint32_t h = 0; h < d->n_k_head; h++) lay_out_taps(d, q_segment(d, h), conv, n->conv);
    for (uint32_t h = 0; h < d->n_k_head; h++) lay_out_taps(d, k_segment(d, h), conv, n->conv);
    for (uint32_t h = 0; h < d->n_v_head; h++) lay_out_taps(d, v_segment(d, h), conv, n->conv);
    for (uint32_t h = 0; h < d->n_v_head; h++) n->decay_rate[h] = coli_exp(a_log[h]);
    return COLI_OK;
}

static coli_status bind_moe(const binder *b, const qwen36_dims *d, coli__moe_layer *m)
{
    COLI_TRY(bind_precise(b, "mlp.gate", d->n_expert, d->d_model, &m->router));
    COLI_TRY(bind_precise(b, "mlp.shared_expert_gate", 1, d->d_model, &m->shared_gate_row));
    COLI_TRY(
        bind_mat(b, "mlp.shared_expert.gate_proj", d->d_ff_shared, d->d_model, &m->shared_gate));
    COLI_TRY(bind_mat(b, "mlp.shared_expert.up_proj", d->d_ff_shared, d->d_model, &m->shared_up));
    COLI_TRY(
        bind_mat(b, "mlp.shared_expert.down_proj", d->d_model, d->d_ff_shared, &m->shared_down));
    const uint32_t n = coli__container_n_expert_layer(b->container);
    for (uint32_t i = 0; i < n; i++) {
        const coli__ct_experts *e = coli__container_experts(b->container, i);
        if (e->layer != b->layer) continue;
        if (e->n_expert != d->n_expert || e->d_model != d->d_model || e->d_ff != d->d_ff)
            return coli__fail(
                COLI_E_FORMAT,
                "model.coli: experts of layer %u: expected %u of (%u, %u), found %u of (%u, %u)",
                b->layer, d->n_expert, d->d_ff, d->d_model, e->n_expert, e->d_ff, e->d_model);
        m->experts = e;
        return COLI_OK;
    }
    return coli__fail(COLI_E_FORMAT, "model.coli: the experts of layer %u are missing", b->layer);
}

static coli_status bind_layer(const binder *b, model *m)
{
    const qwen36_dims *d = &m->dims;
    layer *l = &m->layers[b->layer];
    COLI_TRY(bind_vector(b, "input_layernorm.weight", d->d_model, &l->input_norm));
    COLI_TRY(bind_vector(b, "post_attention_layernorm.weight", d->d_model, &l->post_norm));
    if (d->full_attention[b->layer])
        COLI_TRY(bind_attention(b, d, &l->attn));
    else
        COLI_TRY(bind_deltanet(b, d, &l->dn));
    return bind_moe(b, d, &m->moe[b->layer]);
}

static coli_status model_bind(model *m, const coli__container *c)
{
    const qwen36_dims *d = &m->dims;
    m->layers = coli__calloc(d->n_layer, sizeof *m->layers);
    m->moe = coli__calloc(d->n_layer, sizeof *m->moe);
    m->rope_freq = coli__calloc(d->d_rot / 2, sizeof *m->rope_freq);
    if (!m->layers || !m->moe || !m->rope_freq) return COLI_E_NOMEM;
    coli__rope_frequencies(d->rope_theta, d->d_rot, m->rope_freq);

    const coli__ct_tensor *t;
    COLI_TRY(coli__container_find(c, "embed_tokens.weight", d->n_vocab, d->d_model, &t));
    m->embed = m->head = t->mat;
    if (!d->tied) {
        COLI_TRY(coli__container_find(c, "lm_head.weight", d->n_vocab, d->d_model, &t));
        m->head = t->mat;
    }
    COLI_TRY(as_vector(c, "norm.weight", d->d_model, &m->final_norm));
    for (uint32_t i = 0; i < d->n_layer; i++) {
        const binder b = {c, i};
        COLI_TRY(bind_layer(&b, m));
        if (d->full_attention[i])
            m->n_attention++;
        else
            m->n_deltanet++;
    }
    return COLI_OK;
}

/* What `project` multiplies, and the shared experts. */
static coli_status model_offer(const void *p, coli__trunk *trunk)
{
    const model *m = p;
    const uint32_t n_layer = m->dims.n_layer;
    for (uint32_t i = 0; i < n_layer; i++) {
        const layer *l = &m->layers[i];
        const coli__moe_layer *moe = &m->moe[i];
        const coli__mat *const attention[] = {&l->attn.q, &l->attn.k, &l->attn.v, &l->attn.o};
        const coli__mat *const in[] = {&l->dn.qkv, &l->dn.z}, *const out[] = {&l->dn.out};
        const coli__mat *const shared[] = {&moe->shared_gate, &moe->shared_up, &moe->shared_down};
        if (m->dims.full_attention[i]) {
            COLI_TRY(coli__trunk_offer(trunk, COLI__ATTNPROJ, i, attention, 4));
        } else {
            COLI_TRY(coli__trunk_offer(trunk, COLI__DNPROJ, i, in, 2));
            COLI_TRY(coli__trunk_offer(trunk, COLI__DNOUT, i, out, 1));
        }
        COLI_TRY(coli__trunk_offer(trunk, COLI__SHEXP, i, shared, 3));
    }
    const coli__mat *const head[] = {&m->head};
    return coli__trunk_offer(trunk, COLI__LMHEAD, n_layer - 1, head, 1);
}

static coli_status model_open(const json_t *config, const coli__container *container,
                              const coli__kernels *kernels, coli__tier *tier, void **out)
{
    *out = NULL;
    model *m = coli__calloc(1, sizeof *m);
    if (!m) return COLI_E_NOMEM;
    m->k = kernels;
    m->tier = tier;
    coli_status status = qwen36_read_dims(config, &m->dims);
    if (status == COLI_OK) status = model_bind(m, container);
    if (status != COLI_OK) {
        model_close(m);
        return status;
    }
    *out = m;
    return COLI_OK;
}

static void model_shape(const void *p, coli__shape *out)
{
    const qwen36_dims *d = &((const model *)p)->dims;
    *out = (coli__shape){.n_layer = d->n_layer,
                         .n_moe_layer = d->n_layer,
                         .d_model = d->d_model,
                         .n_vocab = d->n_vocab,
                         .n_expert = d->n_expert,
                         .n_expert_used = d->n_expert_used,
                         .d_ff = d->d_ff,
                         .n_ctx_max = d->n_ctx_max};
}

/* -- state ------------------------------------------------------------------------------------- */

/* The recurrent part of a sequence is one block, so that a snapshot is one copy:
 * per DeltaNet layer  conv (n_tap-1, width) per segment, then S (n_v_head, d_k, d_v). */
typedef struct state {
    model *m;
    uint32_t n_ctx, max_tok, n_worker, pos;

    float *recurrent;        // (n_deltanet, recurrent_floats)
    size_t recurrent_floats; // of one layer
    void *keys, *values;     // (n_attention, n_kv_head, n_ctx, d_head) f16 or f32
    bool kv_f16;

    /* one chunk */
    float *h;     // (max_tok, D) residual stream
    coli__acts x; // (max_tok, D) normed input of the mixer, and of the head
    float *proj;  // (max_tok, n_proj): q|k|v of attention, or qkv|z|b|a of DeltaNet
    uint32_t n_proj;
    coli__acts mixed;           // (max_tok, d_mixed) what out_proj reads: attention heads
    coli__acts mixed_dn;        // the same for DeltaNet
    float *delta;               // (max_tok, D) out_proj's result
    float *rope_cos, *rope_sin; // (max_tok, d_rot / 2)
    coli__moe *moe;
    coli__dense *dense;    // NULL: no matrix is on a device
    float *worker_scratch; // (n_worker, n_scratch)
    size_t n_scratch;
    coli__importance *importance; // of the present chunk; NULL: nobody asks
    atomic_uint first_wide; // row of the chunk with a key or value beyond f16; UINT32_MAX: none
} state;

static size_t conv_floats(const qwen36_dims *d)
{
    return (size_t)(d->n_tap - 1) * d->d_qkv;
}

static size_t recurrent_floats(const qwen36_dims *d)
{
    const size_t n = conv_floats(d) + (size_t)d->n_v_head * d->d_k * d->d_v;
    return (n + 15) & ~(size_t)15;
}

static void state_destroy(void *p)
{
    state *s = p;
    if (!s) return;
    coli__free_aligned(s->recurrent);
    coli__free_aligned(s->keys);
    coli__free_aligned(s->values);
    coli__free_aligned(s->h);
    coli__acts_finish(&s->x);
    coli__free_aligned(s->proj);
    coli__acts_finish(&s->mixed);
    coli__acts_finish(&s->mixed_dn);
    coli__free_aligned(s->delta);
    coli__free_aligned(s->rope_cos);
    coli__free_aligned(s->rope_sin);
    coli__moe_destroy(s->moe);
    coli__dense_destroy(s->dense);
    coli__free_aligned(s->worker_scratch);
    coli__free(s);
}

static uint32_t round16(uint32_t n)
{
    return (n + 15) & ~15u;
}

/* Which forms the matrices that read one vector want. */
static void forms_wanted(const model *m, uint32_t *x, uint32_t *mixed, uint32_t *mixed_dn)
{
    *x = COLI_FORM_F32 | coli__form_of(m->head.fmt); // in_proj_a and in_proj_b read f32
    *mixed = *mixed_dn = COLI_FORM_F32;              // where the heads write
    for (uint32_t i = 0; i < m->dims.n_layer; i++) {
        const layer *l = &m->layers[i];
        if (m->dims.full_attention[i]) {
            *x |= coli__form_of(l->attn.q.fmt) | coli__form_of(l->attn.k.fmt) |
                  coli__form_of(l->attn.v.fmt);
            *mixed |= coli__form_of(l->attn.o.fmt);
        } else {
            *x |= coli__form_of(l->dn.qkv.fmt) | coli__form_of(l->dn.z.fmt);
            *mixed_dn |= coli__form_of(l->dn.out.fmt);
        }
    }
}

static uint32_t proj_floats(const qwen36_dims *d) // of a row
{
    const uint32_t n_attention = 2 * d->n_head * d->d_head + 2 * d->n_kv_head * d->d_head;
    const uint32_t n_deltanet = d->d_qkv + d->n_v_head * d->d_v + 2 * d->n_v_head;
    return round16(n_attention > n_deltanet ? n_attention : n_deltanet);
}

/* Of a worker.  Attention: scores of one call; DeltaNet: convolved q, k, v and a step's scratch. */
static size_t scratch_floats(const qwen36_dims *d, uint32_t n_ctx, uint32_t max_tok)
{
    const uint32_t n_call = max_tok >= MANY_ROWS ? COLI_ATTEND_MAX : d->n_head / d->n_kv_head;
    const size_t n_attend =
        (size_t)round16(n_ctx) * (n_call < COLI_ATTEND_MAX ? n_call : COLI_ATTEND_MAX);
    const size_t n_dn = 2 * (size_t)round16(d->d_k) + 3 * (size_t)round16(d->d_v);
    return n_attend > n_dn ? n_attend : n_dn;
}

/* Of the keys of all layers; the values take as much.  False when that is no size. */
static bool keys_bytes(const model *m, const coli__state_opts *o, uint64_t *out)
{
    *out = o->kv_f16 ? sizeof(uint16_t) : sizeof(float);
    return coli__mul(*out, m->n_attention, out) && coli__mul(*out, m->dims.n_kv_head, out) &&
           coli__mul(*out, o->n_ctx, out) && coli__mul(*out, m->dims.d_head, out) &&
           *out <= SIZE_MAX / 4;
}

static void state_bytes(const void *p, const coli__state_opts *o, coli__state_bytes *out)
{
    const model *m = p;
    const qwen36_dims *d = &m->dims;
    const uint64_t T = o->max_chunk;
    uint32_t x, mixed, mixed_dn;
    forms_wanted(m, &x, &mixed, &mixed_dn);
    out->kv = keys_bytes(m, o, &out->kv) ? 2 * out->kv : UINT64_MAX;
    out->state = (uint64_t)m->n_deltanet * recurrent_floats(d) * sizeof(float);
    out->scratch =
        coli__acts_bytes(o->max_chunk, d->d_model, x) +
        coli__acts_bytes(o->max_chunk, d->n_head * d->d_head, mixed) +
        coli__acts_bytes(o->max_chunk, d->n_v_head * d->d_v, mixed_dn) +
        coli__moe_bytes(m->moe, d->n_layer, d->n_expert_used, o->max_chunk, o->n_worker,
                        o->with_store) +
        T * (2 * (uint64_t)d->d_model + proj_floats(d) + 2 * (d->d_rot / 2)) * sizeof(float) +
        o->n_worker * (uint64_t)scratch_floats(d, o->n_ctx, o->max_chunk) * sizeof(float);
}

static coli_status state_allocate(state *s, const coli__state_opts *o, coli__store *store)
{
    const qwen36_dims *d = &s->m->dims;
    const size_t T = s->max_tok;
    s->n_proj = proj_floats(d);
    s->n_scratch = scratch_floats(d, s->n_ctx, s->max_tok);
    s->recurrent_floats = recurrent_floats(d);
    uint64_t kv;
    if (!keys_bytes(s->m, o, &kv))
        return coli__fail(COLI_E_NOMEM, "keys and values of %u tokens are too large", s->n_ctx);

    uint32_t x, mixed, mixed_dn;
    forms_wanted(s->m, &x, &mixed, &mixed_dn);
    COLI_TRY(coli__acts_init(&s->x, s->max_tok, d->d_model, x));
    COLI_TRY(coli__acts_init(&s->mixed, s->max_tok, d->n_head * d->d_head, mixed));
    COLI_TRY(coli__acts_init(&s->mixed_dn, s->max_tok, d->n_v_head * d->d_v, mixed_dn));
    COLI_TRY(coli__moe_create(s->m->moe, d->n_layer, d->n_expert_used, s->max_tok, s->n_worker,
                              s->m->k, s->m->tier, store, &s->moe));
    COLI_TRY(coli__dense_create(coli__tier_devices(s->m->tier), s->max_tok, &s->dense));
    s->recurrent = coli__alloc64(s->m->n_deltanet * s->recurrent_floats * sizeof(float));
    s->keys = coli__alloc64_raw((size_t)kv);
    s->values = coli__alloc64_raw((size_t)kv);
    s->h = coli__alloc64(T * d->d_model * sizeof(float));
    s->proj = coli__alloc64(T * s->n_proj * sizeof(float));
    s->delta = coli__alloc64(T * d->d_model * sizeof(float));
    s->rope_cos = coli__alloc64(T * (d->d_rot / 2) * sizeof(float));
    s->rope_sin = coli__alloc64(T * (d->d_rot / 2) * sizeof(float));
    s->worker_scratch = coli__alloc64_raw(s->n_worker * s->n_scratch * sizeof(float));
    if (!s->recurrent || !s->keys || !s->values || !s->h || !s->proj || !s->delta || !s->rope_cos ||
        !s->rope_sin || !s->worker_scratch)
        return COLI_E_NOMEM;
    return COLI_OK;
}

static coli_status state_create(void *p, const coli__state_opts *o, coli__store *store, void **out)
{
    *out = NULL;
    state *s = coli__calloc(1, sizeof *s);
    if (!s) return COLI_E_NOMEM;
    s->m = p;
    s->n_ctx = o->n_ctx;
    s->max_tok = o->max_chunk;
    s->n_worker = o->n_worker;
    s->kv_f16 = o->kv_f16;
    const coli_status status = state_allocate(s, o, store);
    if (status != COLI_OK) {
        state_destroy(s);
        return status;
    }
    *out = s;
    return COLI_OK;
}

static size_t snapshot_size(const state *s)
{
    return s->m->n_deltanet * s->recurrent_floats * sizeof(float);
}

static uint64_t snapshot_bytes(const void *p)
{
    return snapshot_size(p);
}

static void snapshot_save(const void *p, void *out)
{
    const state *s = p;
    memcpy(out, s->recurrent, snapshot_size(s));
}

static void snapshot_load(void *p, const void *in, uint32_t pos)
{
    state *s = p;
    memcpy(s->recurrent, in, snapshot_size(s));
    s->pos = pos;
}

static void state_reset(void *p)
{
    state *s = p;
    memset(s->recurrent, 0, snapshot_size(s));
    s->pos = 0;
}

/* -- one chunk --------------------------------------------------------------------------------- */

/* What the items of one phase see. */
typedef struct chunk {
    state *s;
    coli__pool *pool;
    uint32_t n_tok, layer;
    uint32_t kind; // index of the layer among those of its kind
    const coli__probe *probe;
} chunk;

/* Whether rows are shared out among the workers; otherwise columns, heads and experts alone are. */
static bool many_rows(const chunk *c)
{
    return c->n_tok >= MANY_ROWS && c->n_tok / ROWS_EACH >= c->s->n_worker;
}

static float *scratch_of(const state *s, uint32_t worker)
{
    return s->worker_scratch + worker * s->n_scratch;
}

/* Several matrices that read the same rows, their outputs side by side in y: item = row block x
 * tile of one matrix.  One synchronisation, after what a device does. */
typedef struct projection {
    coli__pool *pool;
    const state *s;
    uint32_t phase; // that its time is charged to
    const coli__acts *x;
    const coli__mat *mats[4];
    uint32_t n_mat, first_row, n_row;
    float *y;
    size_t ldy;

    /* project's own */
    uint32_t column[4]; // of each matrix in y
    uint32_t tile_panels;
    uint32_t first_tile[5]; // of each matrix; the last is their number
} projection;

static uint32_t n_panel(const coli__mat *w)
{
    return (w->n_out + COLI_PANEL - 1) / COLI_PANEL;
}

static void projection_item(void *ctx, uint32_t item, uint32_t worker)
{
    const projection *p = ctx;
    coli__pool_phase(p->pool, worker, p->phase);
    const uint32_t n_block = (p->n_row + ROW_BLOCK - 1) / ROW_BLOCK;
    const uint32_t row = item % n_block * ROW_BLOCK, tile = item / n_block;
    uint32_t i = 0;
    while (tile >= p->first_tile[i + 1]) i++;

    const coli__mat *w = p->mats[i];
    const uint32_t begin = (tile - p->first_tile[i]) * p->tile_panels;
    const uint32_t end = begin + p->tile_panels < n_panel(w) ? begin + p->tile_panels : n_panel(w);
    coli__acts x = *p->x;
    coli__acts_skip(&x, p->first_row + row);
    coli__matmul_args args = {.w = w,
                              .n_row = p->n_row - row < ROW_BLOCK ? p->n_row - row : ROW_BLOCK,
                              .panel_begin = begin,
                              .panel_end = end,
                              .y = p->y + row * p->ldy + p->column[i] + (size_t)begin * COLI_PANEL,
                              .ldy = p->ldy};
    coli__acts_bind(&x, &args);
    p->s->m->k->matmul(&args);
}

/* Give to a device what it holds; leave in `mats` what is left. */
static void project_on_device(projection *p)
{
    bool done[4];
    coli__dense_run(p->s->dense, p->x, p->first_row, p->n_row, p->mats, p->column, p->n_mat, p->y,
                    p->ldy, done);
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_mat; i++) {
        if (done[i]) continue;
        p->mats[n] = p->mats[i];
        p->column[n++] = p->column[i];
    }
    p->n_mat = n;
}

static void project(projection *p)
{
    for (uint32_t i = 0; p->s->importance && i < p->n_mat; i++)
        coli__importance_rows(p->s->importance, p->mats[i], p->x, p->first_row, p->n_row);
    for (uint32_t i = 1; i < p->n_mat; i++) p->column[i] = p->column[i - 1] + p->mats[i - 1]->n_out;
    if (p->s->dense) project_on_device(p);
    p->tile_panels = p->n_row >= MANY_ROWS ? MANY_PANELS : FEW_PANELS;
    for (uint32_t i = 0; i < p->n_mat; i++)
        p->first_tile[i + 1] =
            p->first_tile[i] + (n_panel(p->mats[i]) + p->tile_panels - 1) / p->tile_panels;
    const uint32_t n_block = (p->n_row + ROW_BLOCK - 1) / ROW_BLOCK;
    coli__pool_run(p->pool, n_block * p->first_tile[p->n_mat], projection_item, p);
}

/* Few rows: this thread does them at once.  Many: items of `per_item` rows for the workers. */
static void for_rows(const chunk *c, uint32_t per_item, coli__pool_fn fn)
{
    const uint32_t n = (c->n_tok + per_item - 1) / per_item;
    if (many_rows(c)) {
        coli__pool_run(c->pool, n, fn, (void *)c);
        return;
    }
    for (uint32_t i = 0; i < n; i++) fn((void *)c, i, 0);
}

static uint32_t block_end(const chunk *c, uint32_t item, uint32_t per_item)
{
    const uint32_t end = (item + 1) * per_item;
    return end < c->n_tok ? end : c->n_tok;
}

static void quantise_row(const chunk *c, coli__acts *a, uint32_t t)
{
    if (!coli__acts_quantise(a, c->s->m->k, t, 0, a->n_in, a->f + t * a->ld))
        coli__moe_reject(c->s->moe, t); // the layer's MoE fails for it
}

enum { NORM_ROWS = 8 };

static void norm_item(void *ctx, uint32_t item, uint32_t worker)
{
    const chunk *c = ctx;
    coli__pool_phase(c->pool, worker, COLI_PHASE_OTHER);
    state *s = c->s;
    const qwen36_dims *d = &s->m->dims;
    const float *w = s->m->layers[c->layer].input_norm;
    for (uint32_t t = item * NORM_ROWS; t < block_end(c, item, NORM_ROWS); t++) {
        s->m->k->rmsnorm(s->h + (size_t)t * d->d_model, w, 1, d->d_model, d->eps,
                         s->x.f + t * s->x.ld);
        quantise_row(c, &s->x, t);
    }
}

/* -- attention --------------------------------------------------------------------------------- */

/* The d_head numbers of a head at a position. */
static void *kv_at(const chunk *c, void *cache, uint32_t head, uint32_t pos)
{
    const qwen36_dims *d = &c->s->m->dims;
    const size_t at = (((size_t)c->kind * d->n_kv_head + head) * c->s->n_ctx + pos) * d->d_head;
    return c->s->kv_f16 ? (void *)((uint16_t *)cache + at) : (void *)((float *)cache + at);
}

/* One key or value of row t into the cache.  What f16 cannot hold makes the layer fail. */
static void keep(const chunk *c, uint32_t t, const float *x, void *to)
{
    state *s = c->s;
    const uint32_t n = s->m->dims.d_head;
    if (!s->kv_f16) {
        memcpy(to, x, n * sizeof *x);
        return;
    }
    if (s->m->k->narrow(x, n, to)) return;
    coli__moe_reject(s->moe, t);
    unsigned seen = atomic_load(&s->first_wide);
    while (t < seen && !atomic_compare_exchange_weak(&s->first_wide, &seen, t)) {
    }
}

/* Norm and rotate the row's queries and keys in place; keys and values into the cache. */
static void prepare_row(const chunk *c, uint32_t t)
{
    const state *s = c->s;
    const qwen36_dims *d = &s->m->dims;
    const coli__kernels *k = s->m->k;
    const attention_layer *a = &s->m->layers[c->layer].attn;
    const float *cosine = s->rope_cos + (size_t)t * (d->d_rot / 2);
    const float *sine = s->rope_sin + (size_t)t * (d->d_rot / 2);
    float *q = s->proj + (size_t)t * s->n_proj;          // (n_head, query d_head | gate d_head)
    float *keys = q + 2 * (size_t)d->n_head * d->d_head; // (n_kv_head, d_head)
    const float *values = keys + (size_t)d->n_kv_head * d->d_head;

    for (uint32_t h = 0; h < d->n_head; h++) {
        float *query = q + 2 * (size_t)h * d->d_head;
        k->rmsnorm(query, a->q_norm, 1, d->d_head, d->eps, query);
        coli__rope_apply(query, cosine, sine, d->d_rot);
    }
    for (uint32_t h = 0; h < d->n_kv_head; h++) {
        float *key = keys + (size_t)h * d->d_head;
        k->rmsnorm(key, a->k_norm, 1, d->d_head, d->eps, key);
        coli__rope_apply(key, cosine, sine, d->d_rot);
        keep(c, t, key, kv_at(c, s->keys, h, s->pos + t));
        keep(c, t, values + (size_t)h * d->d_head, kv_at(c, s->values, h, s->pos + t));
    }
}

enum { PREPARE_ROWS = 4 };

static void prepare_item(void *ctx, uint32_t item, uint32_t worker)
{
    const chunk *c = ctx;
    coli__pool_phase(c->pool, worker, COLI_PHASE_ATTENTION);
    for (uint32_t t = item * PREPARE_ROWS; t < block_end(c, item, PREPARE_ROWS); t++)
        prepare_row(c, t);
}

/* How attention is shared out: items of (rows, heads of one key head), so that a key is read once
 * for all of them.  One row has few key heads, so its heads are split further, one part per worker.
 */
typedef struct attend_plan {
    const chunk *c;
    uint32_t n_row, n_head; // of an item
    uint32_t n_part;        // items per key head and row block
} attend_plan;

static attend_plan plan_attention(const chunk *c)
{
    const qwen36_dims *d = &c->s->m->dims;
    const uint32_t per_kv = d->n_head / d->n_kv_head, n_worker = c->s->n_worker;
    attend_plan p = {.c = c, .n_row = 1};
    const uint32_t wanted = many_rows(c) ? 1 : (n_worker + d->n_kv_head - 1) / d->n_kv_head;
    p.n_head = wanted < per_kv ? (per_kv + wanted - 1) / wanted : 1;
    if (p.n_head > COLI_ATTEND_MAX) p.n_head = COLI_ATTEND_MAX;
    if (many_rows(c)) p.n_row = COLI_ATTEND_MAX / p.n_head;
    p.n_part = (per_kv + p.n_head - 1) / p.n_head;
    return p;
}

/* The longest rows first. */
static void attend_item(void *ctx, uint32_t item, uint32_t worker)
{
    const attend_plan *p = ctx;
    const chunk *c = p->c;
    coli__pool_phase(c->pool, worker, COLI_PHASE_ATTENTION);
    const state *s = c->s;
    const qwen36_dims *d = &s->m->dims;
    const uint32_t per_kv = d->n_head / d->n_kv_head,
                   n_block = (c->n_tok + p->n_row - 1) / p->n_row;
    const uint32_t block = n_block - 1 - item / (d->n_kv_head * p->n_part);
    const uint32_t kv_head = item / p->n_part % d->n_kv_head, part = item % p->n_part;
    const uint32_t row = block * p->n_row, first = part * p->n_head;
    const uint32_t head = kv_head * per_kv + first;
    const float *query = s->proj + (size_t)row * s->n_proj + 2 * (size_t)head * d->d_head;
    const coli__attend_args args = {
        .n_row = c->n_tok - row < p->n_row ? c->n_tok - row : p->n_row,
        .n_head = per_kv - first < p->n_head ? per_kv - first : p->n_head,
        .head_dim = d->d_head,
        .n_key = s->pos + row + 1,
        .q = query,
        .q_row = s->n_proj,
        .q_head = 2 * (size_t)d->d_head, // each query is followed by its gate
        .k = kv_at(c, s->keys, kv_head, 0),
        .v = kv_at(c, s->values, kv_head, 0),
        .kv_stride = d->d_head,
        .kv_f16 = s->kv_f16,
        .scale = coli_rsqrt((float)d->d_head),
        .scores = scratch_of(s, worker),
        .ld_scores = s->n_ctx,
        .out = s->mixed.f + row * s->mixed.ld + (size_t)head * d->d_head,
        .out_row = s->mixed.ld,
        .out_head = d->d_head};
    s->m->k->attend(&args);
    for (uint32_t r = 0; r < args.n_row; r++)
        for (uint32_t h = 0; h < args.n_head; h++)
            s->m->k->sigmoid_mul(args.out + r * args.out_row + h * args.out_head,
                                 args.q + r * args.q_row + h * args.q_head + d->d_head, d->d_head);
}

static void attention(const chunk *c)
{
    state *s = c->s;
    const attention_layer *a = &s->m->layers[c->layer].attn;
    projection p = {.pool = c->pool,
                    .phase = COLI_PHASE_PROJECTIONS,
                    .s = s,
                    .x = &s->x,
                    .mats = {&a->q, &a->k, &a->v},
                    .n_mat = 3,
                    .n_row = c->n_tok,
                    .y = s->proj,
                    .ldy = s->n_proj};
    project(&p);
    for_rows(c, PREPARE_ROWS, prepare_item);
    coli__pool_phase(c->pool, 0, COLI_PHASE_OTHER);
    attend_plan plan = plan_attention(c);
    const uint32_t n_block = (c->n_tok + plan.n_row - 1) / plan.n_row;
    coli__pool_run(c->pool, n_block * s->m->dims.n_kv_head * plan.n_part, attend_item, &plan);
}

/* -- DeltaNet ---------------------------------------------------------------------------------- */

static void convolve(const chunk *c, segment g, const float *qkv, float *conv_state, float *y)
{
    const qwen36_dims *d = &c->s->m->dims;
    const deltanet_layer *n = &c->s->m->layers[c->layer].dn;
    c->s->m->k->conv_silu(qkv + g.first, n->conv + (size_t)g.first * d->n_tap, d->n_tap, g.width,
                          conv_state + (size_t)g.first * (d->n_tap - 1), y);
}

/* item = key head with its value heads, over all rows: its state stays in this worker's cache. */
static void deltanet_item(void *ctx, uint32_t head, uint32_t worker)
{
    const chunk *c = ctx;
    coli__pool_phase(c->pool, worker, COLI_PHASE_DELTANET);
    const state *s = c->s;
    const qwen36_dims *d = &s->m->dims;
    const coli__kernels *k = s->m->k;
    const deltanet_layer *n = &s->m->layers[c->layer].dn;
    const uint32_t r = d->n_v_head / d->n_k_head;
    float *conv_state = s->recurrent + c->kind * s->recurrent_floats;
    float *matrices = conv_state + conv_floats(d);
    float *q = scratch_of(s, worker), *key = q + round16(d->d_k), *v = key + round16(d->d_k);
    float *o = v + round16(d->d_v), *step = o + round16(d->d_v);

    for (uint32_t t = 0; t < c->n_tok; t++) {
        const float *qkv = s->proj + (size_t)t * s->n_proj;
        const float *z = qkv + d->d_qkv, *b = z + (size_t)d->n_v_head * d->d_v,
                    *a = b + d->n_v_head;
        convolve(c, q_segment(d, head), qkv, conv_state, q);
        convolve(c, k_segment(d, head), qkv, conv_state, key);
        k->l2norm(q, d->d_k, 1e-6f, coli_rsqrt((float)d->d_k));
        k->l2norm(key, d->d_k, 1e-6f, 1);
        for (uint32_t vh = head * r; vh < (head + 1) * r; vh++) {
            const float decay =
                coli_exp(-(n->decay_rate[vh] * coli_softplus(a[vh] + n->dt_bias[vh])));
            convolve(c, v_segment(d, vh), qkv, conv_state, v);
            k->deltanet(matrices + (size_t)vh * d->d_k * d->d_v, d->d_k, d->d_v, q, key, v, decay,
                        coli_sigmoid(b[vh]), step, o);
            k->rmsnorm(o, n->norm, 0, d->d_v, d->eps, o);
            k->silu_mul(z + (size_t)vh * d->d_v, o, d->d_v,
                        s->mixed_dn.f + t * s->mixed_dn.ld + (size_t)vh * d->d_v);
        }
    }
}

static void deltanet(const chunk *c)
{
    state *s = c->s;
    const deltanet_layer *n = &s->m->layers[c->layer].dn;
    projection p = {.pool = c->pool,
                    .phase = COLI_PHASE_PROJECTIONS,
                    .s = s,
                    .x = &s->x,
                    .mats = {&n->qkv, &n->z, &n->b, &n->a},
                    .n_mat = 4,
                    .n_row = c->n_tok,
                    .y = s->proj,
                    .ldy = s->n_proj};
    project(&p);
    coli__pool_run(c->pool, s->m->dims.n_k_head, deltanet_item, (void *)c);
}

/* -- the end of the mixer ---------------------------------------------------------------------- */

static coli__acts *mixed_of(const chunk *c)
{
    return c->s->m->dims.full_attention[c->layer] ? &c->s->mixed : &c->s->mixed_dn;
}

static const coli__mat *out_proj_of(const chunk *c)
{
    const layer *l = &c->s->m->layers[c->layer];
    return c->s->m->dims.full_attention[c->layer] ? &l->attn.o : &l->dn.out;
}

/* Residual, norm. */
static void finish_row(const chunk *c, uint32_t t)
{
    state *s = c->s;
    const qwen36_dims *d = &s->m->dims;
    float *h = s->h + (size_t)t * d->d_model;
    s->m->k->axpy(h, 1, s->delta + (size_t)t * d->d_model, d->d_model);
    if (c->probe && c->probe->mixer)
        memcpy(c->probe->mixer + ((size_t)c->layer * c->n_tok + t) * d->d_model, h,
               d->d_model * sizeof(float));
    s->m->k->rmsnorm(h, s->m->layers[c->layer].post_norm, 1, d->d_model, d->eps,
                     coli__moe_input(s->moe, t));
}

/* As many rows as give every worker an item, within reason. */
static uint32_t finish_rows(const chunk *c)
{
    const uint32_t share = (c->n_tok + c->s->n_worker - 1) / c->s->n_worker;
    return share > FINISH_ROWS_MAX ? FINISH_ROWS_MAX : share;
}

static void finish_item(void *ctx, uint32_t item, uint32_t worker)
{
    const chunk *c = ctx;
    coli__pool_phase(c->pool, worker, COLI_PHASE_PROJECTIONS);
    state *s = c->s;
    const uint32_t per_item = finish_rows(c);
    const uint32_t first = item * per_item, end = block_end(c, item, per_item);
    coli__acts *mixed = mixed_of(c);
    for (uint32_t t = first; t < end; t++) quantise_row(c, mixed, t);

    const coli__mat *w = out_proj_of(c);
    coli__acts rows = *mixed;
    coli__acts_skip(&rows, first);
    coli__matmul_args args = {.w = w,
                              .n_row = end - first,
                              .panel_end = n_panel(w),
                              .y = s->delta + (size_t)first * w->n_out,
                              .ldy = w->n_out};
    coli__acts_bind(&rows, &args);
    s->m->k->matmul(&args);
    coli__pool_phase(c->pool, worker, COLI_PHASE_ROUTER);
    for (uint32_t t = first; t < end; t++) finish_row(c, t);
    coli__moe_route(s->moe, &s->m->moe[c->layer], first, end - first);
}

static void quantise_mixed_item(void *ctx, uint32_t item, uint32_t worker)
{
    const chunk *c = ctx;
    coli__pool_phase(c->pool, worker, COLI_PHASE_PROJECTIONS);
    for (uint32_t t = item * NORM_ROWS; t < block_end(c, item, NORM_ROWS); t++)
        quantise_row(c, mixed_of(c), t);
}

static void finish_row_item(void *ctx, uint32_t item, uint32_t worker)
{
    const chunk *c = ctx;
    coli__pool_phase(c->pool, worker, COLI_PHASE_ROUTER);
    const uint32_t first = item * NORM_ROWS, end = block_end(c, item, NORM_ROWS);
    for (uint32_t t = first; t < end; t++) finish_row(c, t);
    if (many_rows(c)) coli__moe_route(c->s->moe, &c->s->m->moe[c->layer], first, end - first);
}

static void finish_mixer(const chunk *c)
{
    if (many_rows(c) && !coli__dense_has(c->s->dense, out_proj_of(c))) {
        for_rows(c, finish_rows(c), finish_item);
        if (c->s->importance)
            coli__importance_rows(c->s->importance, out_proj_of(c), mixed_of(c), 0, c->n_tok);
        return;
    }
    for_rows(c, NORM_ROWS, quantise_mixed_item);
    projection p = {.pool = c->pool,
                    .phase = COLI_PHASE_PROJECTIONS,
                    .s = c->s,
                    .x = mixed_of(c),
                    .mats = {out_proj_of(c)},
                    .n_mat = 1,
                    .n_row = c->n_tok,
                    .y = c->s->delta,
                    .ldy = c->s->m->dims.d_model};
    project(&p);
    for_rows(c, NORM_ROWS, finish_row_item);
    coli__pool_phase(c->pool, 0, COLI_PHASE_OTHER);
}

/* -- forward ----------------------------------------------------------------------------------- */

static void probe_moe(const chunk *c)
{
    const coli__probe *p = c->probe;
    const qwen36_dims *d = &c->s->m->dims;
    if (!p) return;
    for (uint32_t t = 0; t < c->n_tok; t++) {
        const size_t row = (size_t)c->layer * c->n_tok + t;
        if (p->expert_ids)
            memcpy(p->expert_ids + row * d->n_expert_used, coli__moe_ids(c->s->moe, t),
                   d->n_expert_used * sizeof(int32_t));
        if (p->expert_w)
            memcpy(p->expert_w + row * d->n_expert_used, coli__moe_weights(c->s->moe, t),
                   d->n_expert_used * sizeof(float));
        if (p->levels) coli__moe_levels(c->s->moe, t, p->levels + row * d->n_expert_used);
        if (p->ranked)
            coli__moe_rank(c->s->moe, t, p->n_ranked, p->ranked + row * p->n_ranked,
                           p->mass + row * p->n_ranked);
    }
    if (p->moe)
        memcpy(p->moe + (size_t)c->layer * c->n_tok * d->d_model, c->s->h,
               (size_t)c->n_tok * d->d_model * sizeof(float));
}

static coli_status out_of_range(const chunk *c, uint32_t t)
{
    return coli__fail(COLI_E_NUMERIC, "position %u: the last layer's output is out of range",
                      c->s->pos + t);
}

/* Every row, also those whose logits nobody wants: how a prompt is cut must not decide what fails. */
static coli_status check_output(const chunk *c)
{
    const state *s = c->s;
    const uint32_t D = s->m->dims.d_model;
    for (uint32_t t = 0; t < c->n_tok; t++) {
        const float *h = s->h + (size_t)t * D;
        if (!coli__is_finite(s->m->k->dot(h, h, D))) return out_of_range(c, t);
    }
    return COLI_OK;
}

static coli_status logits(const chunk *c, const coli__forward_args *args)
{
    state *s = c->s;
    coli__pool_phase(c->pool, 0, COLI_PHASE_HEAD);
    const qwen36_dims *d = &s->m->dims;
    for (uint32_t t = args->logits_from; t < args->n_tok; t++) {
        float *x = s->x.f + t * s->x.ld;
        s->m->k->rmsnorm(s->h + (size_t)t * d->d_model, s->m->final_norm, 1, d->d_model, d->eps, x);
        const bool quantised = coli__acts_quantise(&s->x, s->m->k, t, 0, d->d_model, x);
        if (!quantised || !coli__is_finite(s->m->k->dot(x, x, d->d_model)))
            return out_of_range(c, t);
    }
    projection p = {.pool = c->pool,
                    .phase = COLI_PHASE_HEAD,
                    .s = s,
                    .x = &s->x,
                    .mats = {&s->m->head},
                    .n_mat = 1,
                    .first_row = args->logits_from,
                    .n_row = args->n_tok - args->logits_from,
                    .y = args->logits,
                    .ldy = d->n_vocab};
    project(&p);
    return COLI_OK;
}

static coli_status layer_failed(const chunk *c, coli_status status)
{
    const unsigned t = atomic_load(&c->s->first_wide);
    if (status != COLI_E_NUMERIC || t == UINT32_MAX)
        return coli__fail_in(status, "layer %u", c->layer);
    return coli__fail(status,
                      "layer %u: position %u: a key or value is not finite or 65520 or more in "
                      "magnitude, too much for f16; f32 (--kv f32) holds more",
                      c->layer, c->s->pos + t);
}

static coli_status forward(void *p, coli__pool *pool, const coli__forward_args *args)
{
    state *s = p;
    atomic_store(&s->first_wide, UINT32_MAX);
    const qwen36_dims *d = &s->m->dims;
    chunk c = {.s = s, .pool = pool, .n_tok = args->n_tok, .probe = args->probe};
    s->importance = args->importance;
    coli__moe_set_router(s->moe, args->router);
    coli__moe_set_importance(s->moe, args->importance);
    for (uint32_t t = 0; t < c.n_tok; t++)
        coli__mat_row(&s->m->embed, (uint32_t)args->ids[t], s->h + (size_t)t * d->d_model);
    coli__rope_table(s->m->rope_freq, d->d_rot, s->pos, c.n_tok, s->rope_cos, s->rope_sin);
    uint32_t n_attention = 0, n_deltanet = 0;
    for (c.layer = 0; c.layer < d->n_layer; c.layer++) {
        const bool full = d->full_attention[c.layer];
        c.kind = full ? n_attention++ : n_deltanet++;
        for_rows(&c, NORM_ROWS, norm_item);
        if (full)
            attention(&c);
        else
            deltanet(&c);
        finish_mixer(&c);
        const coli_status status =
            coli__moe_run(s->moe, &s->m->moe[c.layer], pool, c.n_tok, many_rows(&c), s->pos, s->h);
        if (status != COLI_OK) return layer_failed(&c, status);
        probe_moe(&c);
    }
    if (args->elapsed) {
        const coli__moe_times times = coli__moe_take_times(s->moe);
        args->elapsed->moe_ns += times.moe_ns;
        args->elapsed->wait_ns += times.wait_ns;
    }
    COLI_TRY(check_output(&c));
    if (args->logits_from < args->n_tok) COLI_TRY(logits(&c, args));
    s->pos += c.n_tok;
    return COLI_OK;
}

const coli__engine coli__engine_qwen36 = {
    .name = "qwen36",
    .claims = qwen36_claims,
    .describe = qwen36_describe,
    .open = model_open,
    .close = model_close,
    .offer = model_offer,
    .shape = model_shape,
    .state_create = state_create,
    .state_bytes = state_bytes,
    .state_destroy = state_destroy,
    .state_reset = state_reset,
    .snapshot_bytes = snapshot_bytes,
    .snapshot_save = snapshot_save,
    .snapshot_load = snapshot_load,
    .forward = forward,
};
