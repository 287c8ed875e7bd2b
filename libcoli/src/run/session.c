/* session.c - one sequence of tokens on a model: feeding, and going back.
 *
 * Two kinds of state.  Keys and values are written once per position and stay, so a prefix of them
 * is valid as it is.  The recurrent part (DeltaNet) only moves forward: going back needs a copy
 * that was taken there.  A snapshot is that copy, with the logits and the tokens up to it; it fits
 * as long as the session's first tokens are the snapshot's.
 *
 *     ids     0 . . . . . p . . . . . v        p = pos: the sequence ends here
 *             |- sequence -|-- valid -|        v = n_valid: keys and values are valid up to here
 *
 *     feed       writes ids[p..), p advances, v = p        (other tokens replace what stood there)
 *     restore    p = the snapshot's, v stays
 *     reset      p = 0, v = 0
 *
 * Turns.  Cache-aware routing looks where the experts are when a turn begins and goes by that until the
 * next, so that neither the cut into chunks nor the speed of a copy decides what is computed. */
#include "session.h"

#include <string.h>

#include "api.h"

struct coli_snapshot {
    char identity[33]; // of the model's weights
    uint32_t kv, pos;
    bool has_logits;
    int32_t *ids;    // (pos)
    float *logits;   // (n_vocab)
    void *recurrent; // the engine's snapshot_bytes
};

enum { DEFAULT_CTX = 32768, DEFAULT_CHUNK = 512, MAX_CHUNK = 4096 };
enum { EVAL_LOGIT_BYTES = 64 << 20 }; // rows per chunk of coli_session_eval are cut to this much

static coli_status check_opts(const coli_model *m, const coli_session_opts *o, uint32_t *n_ctx,
                              uint32_t *n_chunk)
{
    const uint32_t most = m->shape.n_ctx_max;
    if (o->kv > COLI_KV_F32)
        return coli__fail(COLI_E_INVALID, "coli_session_opts: kv is %u; expected a coli_kv", o->kv);
    *n_ctx = o->n_ctx ? o->n_ctx : most < DEFAULT_CTX ? most : DEFAULT_CTX;
    if (*n_ctx > most)
        return coli__fail(COLI_E_INVALID,
                          "a context of %u tokens; the model was made for at most %u", *n_ctx,
                          most);
    *n_chunk = o->n_chunk ? o->n_chunk : DEFAULT_CHUNK;
    if (*n_chunk > MAX_CHUNK)
        return coli__fail(COLI_E_INVALID, "chunks of %u rows; at most %d are possible", *n_chunk,
                          MAX_CHUNK);
    if (*n_chunk > *n_ctx) *n_chunk = *n_ctx;
    return COLI_OK;
}

coli_status coli__session_bytes(const coli_model *m, coli_session_opts *opts, uint32_t n_worker,
                                bool with_store, coli__state_bytes *out)
{
    COLI_TRY(check_opts(m, opts, &opts->n_ctx, &opts->n_chunk));
    const coli__state_opts state = {.n_ctx = opts->n_ctx,
                                    .max_chunk = opts->n_chunk,
                                    .n_worker = n_worker,
                                    .kv_f16 = opts->kv == COLI_KV_F16,
                                    .with_store = with_store};
    m->engine->state_bytes(m->weights, &state, out);
    const coli_session *s = NULL; // for the sizes of its numbers
    out->scratch +=
        opts->n_ctx * (uint64_t)sizeof *s->ids +
        m->shape.n_vocab * (uint64_t)(sizeof *s->logits + sizeof *s->seen + sizeof *s->made) +
        coli__sample_scratch_bytes(m->shape.n_vocab);
    if (opts->route)
        out->scratch += (uint64_t)m->shape.n_layer * m->shape.n_expert; // where experts are
    return COLI_OK;
}

static size_t longest_token(const coli_model *m)
{
    size_t longest = 0, n;
    for (uint32_t id = 0; m->beside.tok && id < coli__tok_n_id(m->beside.tok); id++)
        if (coli__tok_bytes(m->beside.tok, (int32_t)id, &n) && n > longest) longest = n;
    return longest;
}

static coli_status grow_piece(coli_session *s)
{
    enum {
        PER_BYTE = 3,
        SPARE = 64
    }; // an ill-formed byte becomes three; a tail may come before it
    const size_t n = longest_token(s->m) * PER_BYTE + SPARE;
    char *zeros = coli__calloc(n, 1);
    if (!zeros) return COLI_E_NOMEM;
    const coli_status status = coli__buf_append(&s->piece, zeros, n);
    coli__free(zeros);
    return status;
}

void coli__session_turn(coli_session *s)
{
    if (s->router) s->router->turn_begins = true;
}

static void finish_route(coli_session *s)
{
    coli__free(s->route.expert_ids);
    coli__free(s->route.expert_w);
    coli__free(s->route.levels);
    coli__free(s->route.ranked);
    coli__free(s->route.mass);
    s->route = (coli__probe){0};
}

static coli_status allocate(coli_session *s)
{
    const coli_model *m = s->m;
    const coli__state_opts state = {.n_ctx = s->n_ctx,
                                    .max_chunk = s->n_chunk,
                                    .n_worker = coli__pool_n_worker(m->pool),
                                    .kv_f16 = s->kv == COLI_KV_F16};
    COLI_TRY(m->engine->state_create(m->weights, &state, m->store, &s->state));
    s->ids = coli__calloc(s->n_ctx, sizeof *s->ids);
    s->logits = coli__alloc64((size_t)m->shape.n_vocab * sizeof(float));
    s->seen = coli__calloc(m->shape.n_vocab, sizeof *s->seen);
    s->made = coli__calloc(m->shape.n_vocab, sizeof *s->made);
    s->sample_scratch = coli__alloc64(coli__sample_scratch_bytes(m->shape.n_vocab));
    if (!s->ids || !s->logits || !s->seen || !s->made || !s->sample_scratch) return COLI_E_NOMEM;
    return grow_piece(s);
}

coli_status coli_session_create(coli_model *model, const coli_session_opts *opts,
                                coli_session **out)
{
    if (!out) return coli__fail(COLI_E_INVALID, "coli_session_create: out is NULL");
    *out = NULL;
    if (!model) return coli__fail(COLI_E_INVALID, "coli_session_create: model is NULL");
    coli_session_opts o;
    COLI_TRY(coli__opts_copy("coli_session_opts", &o, sizeof o, opts));
    coli_session *s = coli__calloc(1, sizeof *s);
    if (!s) return COLI_E_NOMEM;
    s->m = model;
    s->kv = o.kv;
    coli_status status = check_opts(model, &o, &s->n_ctx, &s->n_chunk);
    if (status == COLI_OK) status = allocate(s);
    if (status == COLI_OK && o.route) status = coli__router_create(model, o.route, &s->router);
    if (status != COLI_OK) {
        coli_session_destroy(s);
        return status;
    }
    coli__session_turn(s);
    coli_session_seed(s, 0);
    *out = s;
    return COLI_OK;
}

void coli_session_destroy(coli_session *s)
{
    if (!s) return;
    finish_route(s);
    s->m->engine->state_destroy(s->state);
    coli__free(s->ids);
    coli__free_aligned(s->logits);
    coli__free(s->seen);
    coli__free(s->made);
    coli__free_aligned(s->sample_scratch);
    coli__buf_finish(&s->piece);
    coli__router_destroy(s->router);
    coli__free(s);
}

void coli_session_reset(coli_session *s)
{
    if (!s) return;
    s->m->engine->state_reset(s->state);
    s->pos = s->n_valid = 0;
    s->has_logits = false;
    memset(s->seen, 0, s->m->shape.n_vocab * sizeof *s->seen);
    coli__session_turn(s);
    coli_session_seed(s, 0);
}

uint32_t coli_session_pos(const coli_session *s)
{
    return s ? s->pos : 0;
}
uint32_t coli_session_n_ctx(const coli_session *s)
{
    return s ? s->n_ctx : 0;
}
const coli_model *coli_session_model(const coli_session *s)
{
    return s ? s->m : NULL;
}
const float *coli_session_logits(const coli_session *s)
{
    return s && s->has_logits ? s->logits : NULL;
}
void coli_session_cancel(coli_session *s)
{
    if (s) atomic_store(&s->cancel, true);
}

/* -- feeding ----------------------------------------------------------------------------------- */

static coli_status check_ids(const coli_session *s, const int32_t *ids, size_t n_ids)
{
    if (!ids || n_ids == 0) return coli__fail(COLI_E_INVALID, "no tokens to feed");
    if (n_ids > s->n_ctx - s->pos)
        return coli__fail(COLI_E_LIMIT, "%zu tokens after %u do not fit a context of %u", n_ids,
                          s->pos, s->n_ctx);
    for (size_t i = 0; i < n_ids; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= s->m->shape.n_vocab)
            return coli__fail(COLI_E_INVALID, "token %zu: id %d is outside the vocabulary of %u", i,
                              ids[i], s->m->shape.n_vocab);
    return COLI_OK;
}

/* Before a chunk: what tier and store want to know of it. */
static void tell_before(const coli_model *m, coli__part chunk)
{
    if (chunk.begins)
        coli__tier_prompt(m->tier);
    else if (chunk.of_prompt)
        coli__tier_prompt_goes_on(m->tier);
    else
        coli__tier_tick(m->tier);
    if (!chunk.of_prompt) coli__store_tick(m->store);
}

/* Who evaluates has buffers of its own for what was chosen; the rest is ours. */
static coli__probe probe_of(const coli_session *s, const coli__probe *given)
{
    coli__probe p = s->route;
    if (!given) return p;
    p.expert_ids = given->expert_ids;
    p.expert_w = given->expert_w;
    return p;
}

static void tell_route(const coli_session *s, const coli__probe *p, uint32_t pos, uint32_t n_row)
{
    const coli_route route = {.struct_size = sizeof route,
                              .pos = pos,
                              .n_row = n_row,
                              .n_layer = s->m->shape.n_moe_layer,
                              .n_expert_used = s->m->shape.n_expert_used,
                              .n_ranked = p->n_ranked,
                              .experts = p->expert_ids,
                              .weights = p->expert_w,
                              .levels = p->levels,
                              .ranked = p->ranked,
                              .mass = p->mass};
    s->on_route(s->on_route_user, &route);
}

/* One chunk through the engine.  The model's lock makes sessions take turns chunk by chunk. */
static coli_status forward(coli_session *s, const coli__forward_args *asked, coli__part chunk)
{
    coli_model *m = s->m;
    coli__forward_args args = *asked;
    coli__probe probe;
    args.elapsed = &s->elapsed;
    args.importance = s->importance;
    if (s->on_route) {
        probe = probe_of(s, asked->probe);
        args.probe = &probe;
    }
    s->has_logits = false;
    pthread_mutex_lock(&m->mu);
    if (s->router) coli__router_step(s->router, m->container, m->tier, m->store);
    tell_before(m, chunk);
    const coli__fp fp = coli__fp_enter();
    coli__pool_phase(m->pool, 0, COLI_PHASE_OTHER);
    coli_status status = m->engine->forward(s->state, m->pool, &args);
    const coli_status whole = coli__container_check_whole(m->container);
    if (whole != COLI_OK) status = whole; // whatever else was found
    coli__pool_phase(m->pool, 0, COLI_PHASE_OUTSIDE);
    coli__fp_leave(fp);
    if (chunk.ends) {
        coli__tier_prompt_ends(m->tier);
        coli__store_prompt_ends(m->store);
    }
    pthread_mutex_unlock(&m->mu);
    if (status != COLI_OK) {
        coli_session_reset(s);
        return status;
    }
    memcpy(s->ids + s->pos, args.ids, args.n_tok * sizeof *s->ids);
    for (uint32_t t = 0; t < args.n_tok; t++) s->seen[args.ids[t]]++;
    s->pos += args.n_tok;
    s->n_valid = s->pos;
    if (s->on_route) tell_route(s, args.probe, s->pos - args.n_tok, args.n_tok);
    return COLI_OK;
}

coli_status coli__session_feed(coli_session *s, const int32_t *ids, size_t n_ids, coli__part part)
{
    COLI_TRY(check_ids(s, ids, n_ids));
    for (size_t done = 0; done < n_ids;) {
        if (atomic_load(&s->cancel)) return coli__fail(COLI_E_CANCELLED, "cancelled");
        const size_t left = n_ids - done;
        const uint32_t n = left < s->n_chunk ? (uint32_t)left : s->n_chunk;
        const bool last = n == left;
        const coli__forward_args args = {.ids = ids + done,
                                         .n_tok = n,
                                         .logits_from = last ? n - 1 : n,
                                         .logits = s->logits,
                                         .router = s->router};
        const coli__part chunk = {part.of_prompt, part.begins && done == 0, part.ends && last};
        COLI_TRY(forward(s, &args, chunk));
        s->has_logits = last;
        done += n;
    }
    return COLI_OK;
}

coli_status coli_session_feed(coli_session *s, const int32_t *ids, size_t n_ids)
{
    if (!s) return coli__fail(COLI_E_INVALID, "coli_session_feed: session is NULL");
    atomic_store(&s->cancel, false);
    const bool is_prompt = n_ids > 1;
    if (is_prompt) coli__session_turn(s);
    return coli__session_feed(s, ids, n_ids, (coli__part){is_prompt, is_prompt, is_prompt});
}

coli_status coli_session_on_route(coli_session *s, coli_route_fn fn, void *user)
{
    if (!s) return coli__fail(COLI_E_INVALID, "coli_session_on_route: session is NULL");
    enum { RANKED = 16 };
    const coli__shape *shape = &s->m->shape;
    const uint32_t n_ranked = shape->n_expert < RANKED ? shape->n_expert : RANKED;
    const size_t n_row = (size_t)shape->n_moe_layer * s->n_chunk;
    const size_t n_used = n_row * shape->n_expert_used;
    s->on_route = NULL;
    finish_route(s);
    if (!fn) return COLI_OK;
    coli__probe *p = &s->route;
    p->n_ranked = n_ranked;
    p->expert_ids = coli__calloc(n_used, sizeof *p->expert_ids);
    p->expert_w = coli__calloc(n_used, sizeof *p->expert_w);
    p->levels = coli__calloc(n_used, sizeof *p->levels);
    p->ranked = coli__calloc(n_row * n_ranked, sizeof *p->ranked);
    p->mass = coli__calloc(n_row * n_ranked, sizeof *p->mass);
    if (!p->expert_ids || !p->expert_w || !p->levels || !p->ranked || !p->mass) {
        finish_route(s);
        return COLI_E_NOMEM;
    }
    s->on_route = fn;
    s->on_route_user = user;
    return COLI_OK;
}

/* Buffers of coli_session_eval. */
typedef struct rows {
    uint32_t max_row;
    float *logits, *expert_w;
    int32_t *expert_ids;
} rows;

static coli_status eval_chunks(coli_session *s, const int32_t *ids, size_t n_ids, const rows *b,
                               coli_rows_fn on_rows, void *user)
{
    const size_t n_vocab = s->m->shape.n_vocab;
    const coli__probe probe = {.expert_ids = b->expert_ids, .expert_w = b->expert_w};
    for (size_t done = 0; done < n_ids;) {
        if (atomic_load(&s->cancel)) return coli__fail(COLI_E_CANCELLED, "cancelled");
        const size_t left = n_ids - done;
        const uint32_t n = left < b->max_row ? (uint32_t)left : b->max_row, pos = s->pos;
        const coli__forward_args args = {.ids = ids + done,
                                         .n_tok = n,
                                         .logits = b->logits,
                                         .probe = &probe,
                                         .router = s->router};
        const coli__part chunk = {true, done == 0, n == left};
        COLI_TRY(forward(s, &args, chunk));
        memcpy(s->logits, b->logits + (n - 1) * n_vocab, n_vocab * sizeof(float));
        s->has_logits = true;
        if (!on_rows(user, pos, n, b->logits, b->expert_ids, b->expert_w))
            return coli__fail(COLI_E_CANCELLED, "stopped by the caller");
        done += n;
    }
    return COLI_OK;
}

coli_status coli_session_eval(coli_session *s, const int32_t *ids, size_t n_ids,
                              coli_rows_fn on_rows, void *user)
{
    if (!s || !on_rows) return coli__fail(COLI_E_INVALID, "coli_session_eval: an argument is NULL");
    COLI_TRY(check_ids(s, ids, n_ids));
    atomic_store(&s->cancel, false);
    coli__session_turn(s);
    const coli__shape *shape = &s->m->shape;
    const size_t row_bytes = (size_t)shape->n_vocab * sizeof(float);
    const size_t fit = EVAL_LOGIT_BYTES / row_bytes;
    rows b = {.max_row = fit == 0 ? 1 : fit < s->n_chunk ? (uint32_t)fit : s->n_chunk};
    if (b.max_row > n_ids) b.max_row = (uint32_t)n_ids;
    const size_t n_choice = (size_t)shape->n_moe_layer * b.max_row * shape->n_expert_used;
    b.logits = coli__alloc64(b.max_row * row_bytes);
    b.expert_ids = coli__calloc(n_choice, sizeof *b.expert_ids);
    b.expert_w = coli__calloc(n_choice, sizeof *b.expert_w);
    coli_status status = COLI_E_NOMEM;
    if (b.logits && b.expert_ids && b.expert_w)
        status = eval_chunks(s, ids, n_ids, &b, on_rows, user);
    coli__free_aligned(b.logits);
    coli__free(b.expert_ids);
    coli__free(b.expert_w);
    return status;
}

/* -- going back -------------------------------------------------------------------------------- */

uint32_t coli__session_common(const coli_session *s, const int32_t *ids, size_t n_ids)
{
    uint32_t n = 0;
    while (n < s->n_valid && n < n_ids && s->ids[n] == ids[n]) n++;
    return n;
}

uint32_t coli__snapshot_pos(const coli_snapshot *snapshot)
{
    return snapshot->pos;
}

coli_status coli_session_snapshot(const coli_session *s, coli_snapshot **out)
{
    if (out) *out = NULL;
    if (!s || !out) return coli__fail(COLI_E_INVALID, "coli_session_snapshot: an argument is NULL");
    const size_t n_vocab = s->m->shape.n_vocab;
    coli_snapshot *snap = coli__calloc(1, sizeof *snap);
    if (!snap) return COLI_E_NOMEM;
    memcpy(snap->identity, coli__container_identity(s->m->container), sizeof snap->identity);
    snap->kv = s->kv;
    snap->pos = s->pos;
    snap->has_logits = s->has_logits;
    snap->ids = coli__calloc(s->pos, sizeof *snap->ids);
    snap->logits = coli__alloc64(n_vocab * sizeof(float));
    snap->recurrent = coli__alloc64((size_t)s->m->engine->snapshot_bytes(s->state));
    if (!snap->ids || !snap->logits || !snap->recurrent) {
        coli_snapshot_destroy(snap);
        return COLI_E_NOMEM;
    }
    memcpy(snap->ids, s->ids, s->pos * sizeof *snap->ids);
    memcpy(snap->logits, s->logits, n_vocab * sizeof(float));
    s->m->engine->snapshot_save(s->state, snap->recurrent);
    *out = snap;
    return COLI_OK;
}

static const char *kv_name(uint32_t kv)
{
    return kv == COLI_KV_F16 ? "f16" : "f32";
}

coli_status coli_session_restore(coli_session *s, const coli_snapshot *snap)
{
    if (!s || !snap) return coli__fail(COLI_E_INVALID, "coli_session_restore: an argument is NULL");
    if (strcmp(snap->identity, coli__container_identity(s->m->container)) != 0)
        return coli__fail(COLI_E_INVALID, "the snapshot is another model's");
    if (snap->kv != s->kv)
        return coli__fail(COLI_E_INVALID,
                          "the snapshot has keys and values in %s, the session in %s",
                          kv_name(snap->kv), kv_name(s->kv));
    if (coli__session_common(s, snap->ids, snap->pos) < snap->pos)
        return coli__fail(COLI_E_INVALID, "the session no longer holds the snapshot's %u tokens",
                          snap->pos);
    s->m->engine->snapshot_load(s->state, snap->recurrent, snap->pos);
    memcpy(s->logits, snap->logits, s->m->shape.n_vocab * sizeof(float));
    s->has_logits = snap->has_logits;
    s->pos = snap->pos;
    memset(s->seen, 0, s->m->shape.n_vocab * sizeof *s->seen);
    for (uint32_t i = 0; i < s->pos; i++) s->seen[s->ids[i]]++;
    coli_session_seed(s, 0);
    return COLI_OK;
}

void coli_snapshot_destroy(coli_snapshot *snap)
{
    if (!snap) return;
    coli__free(snap->ids);
    coli__free_aligned(snap->logits);
    coli__free_aligned(snap->recurrent);
    coli__free(snap);
}
