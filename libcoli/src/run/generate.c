/* generate.c - sample, show, feed: the loop that makes text, and the little state that showing
 * needs.
 *
 * Showing.  A token is bytes, and may end inside a character, so bytes pass through a stream that
 * lets whole characters out.  <think> and </think> switch the piece's `thinking` and are not shown;
 * neither are special tokens, nor the line breaks that follow </think>.  Whether the prompt left a
 * think block open is read off its last such tag: a message's text cannot hold one, because it is
 * encoded as plain text.
 *
 * No memory is taken here: the piece buffer was grown to the longest token when the session was
 * made. */
#include <string.h>

#include "api.h"
#include "session.h"

/* -- sampling ---------------------------------------------------------------------------------- */

void coli_session_seed(coli_session *s, uint64_t seed)
{
    if (!s) return;
    coli__rng_seed(&s->rng, seed);
    memset(s->made, 0, s->m->shape.n_vocab * sizeof *s->made);
}

coli_status coli__sampling_take(const coli_session *s, const coli_sampling *given,
                                coli_sampling *out)
{
    *out = s->m->beside.sampling;
    if (given) COLI_TRY(coli__opts_copy("coli_sampling", out, sizeof *out, given));
    return coli__sampling_check(out);
}

/* With the clock on, sampling holds the model's lock: worker 0 is whoever has it. */
static int32_t sample(coli_session *s, const coli_sampling *p)
{
    coli_model *m = s->m;
    const coli__sample_args args = {.logits = s->logits,
                                    .n_token = m->beside.tok
                                                   ? coli__tok_n_id(m->beside.tok)
                                                   : m->shape.n_vocab, // beyond: padding rows
                                    .seen = s->seen,
                                    .made = s->made,
                                    .sampling = p,
                                    .scratch = s->sample_scratch};
    const bool timed = coli__pool_clock_is_on(m->pool);
    if (timed) {
        pthread_mutex_lock(&m->mu);
        coli__pool_phase(m->pool, 0, COLI_PHASE_SAMPLING);
    }
    const coli__fp fp = coli__fp_enter();
    const uint32_t id = coli__sample(&args, &s->rng);
    coli__fp_leave(fp);
    if (timed) {
        coli__pool_phase(m->pool, 0, COLI_PHASE_OUTSIDE);
        pthread_mutex_unlock(&m->mu);
    }
    s->made[id]++;
    return (int32_t)id;
}

static coli_status need_logits(const coli_session *s)
{
    return s->has_logits ? COLI_OK
                         : coli__fail(COLI_E_INVALID, "no logits yet: feed a token first");
}

coli_status coli_session_sample(coli_session *s, const coli_sampling *sampling, int32_t *id)
{
    if (id) *id = 0;
    if (!s || !id) return coli__fail(COLI_E_INVALID, "coli_session_sample: an argument is NULL");
    coli_sampling p;
    COLI_TRY(coli__sampling_take(s, sampling, &p));
    COLI_TRY(need_logits(s));
    *id = sample(s, &p);
    return COLI_OK;
}

/* -- showing ----------------------------------------------------------------------------------- */

typedef struct show {
    coli_session *s;
    coli_piece_fn fn; // NULL: nobody looks
    void *user;
    coli__utf8_stream stream;
    bool thinking, skip_breaks; // skip_breaks: just after </think>
} show;

static bool think_is_open(const coli_session *s)
{
    const coli_model *m = s->m;
    if (m->beside.think_open_id < 0) return false;
    for (uint32_t i = s->pos; i-- > 0;) {
        if (s->ids[i] == m->beside.think_open_id) return true;
        if (s->ids[i] == m->beside.think_close_id) return false;
    }
    return false;
}

/* Give what stands in the piece buffer to the caller. */
static bool emit(show *w, int32_t id)
{
    coli__buf *b = &w->s->piece;
    const char *text = b->data;
    size_t n = b->n_bytes;
    while (w->skip_breaks && n > 0 && *text == '\n') {
        text++;
        n--;
    }
    if (n > 0) w->skip_breaks = false;
    const coli_piece piece = {.text = text, .n_bytes = n, .id = id, .thinking = w->thinking};
    return !w->fn || w->fn(w->user, &piece);
}

static coli_status show_token(show *w, int32_t id, bool *go_on)
{
    const coli_model *m = w->s->m;
    coli__buf *b = &w->s->piece;
    b->n_bytes = 0;
    b->data[0] = 0;
    const bool open = id == m->beside.think_open_id, close = id == m->beside.think_close_id;
    if (open || close) { // what was unfinished before the tag stays on its side
        COLI_TRY(coli__utf8_flush(&w->stream, b));
    } else if (m->beside.tok && !coli__tok_is_special(m->beside.tok, id)) {
        size_t n;
        const char *bytes = coli__tok_bytes(m->beside.tok, id, &n);
        if (bytes) COLI_TRY(coli__utf8_push(&w->stream, bytes, n, b));
    }
    *go_on = emit(w, id);
    if (open || close) {
        w->thinking = open;
        w->skip_breaks = true;
    }
    return COLI_OK;
}

/* The end: an unfinished character shows as U+FFFD. */
static coli_status show_end(show *w)
{
    coli__buf *b = &w->s->piece;
    b->n_bytes = 0;
    COLI_TRY(coli__utf8_flush(&w->stream, b));
    if (b->n_bytes) emit(w, -1);
    return COLI_OK;
}

/* -- generating -------------------------------------------------------------------------------- */

/* Make tokens until there is a reason to stop, which goes to r->stop. */
static coli_status make_tokens(coli_session *s, const coli_generate_opts *o, const coli_sampling *p,
                               show *w, uint64_t start_ns, int32_t *out_ids, coli_result *r)
{
    uint64_t first_ns = 0;
    const coli__elapsed before = s->elapsed;
    for (r->stop = COLI_STOP_NONE; r->stop == COLI_STOP_NONE;) {
        if (atomic_load(&s->cancel)) {
            r->stop = COLI_STOP_CANCELLED;
            break;
        }
        const int32_t id = sample(s, p);
        if (!first_ns) first_ns = coli__clock_ns();
        if (!o->no_stop_tokens && coli__model_is_stop(s->m, id)) {
            r->stop = COLI_STOP_TOKEN;
            break;
        }
        if (out_ids) out_ids[r->n_generated] = id;
        r->n_generated++;
        bool go_on;
        COLI_TRY(show_token(w, id, &go_on));
        if (!go_on)
            r->stop = COLI_STOP_CANCELLED;
        else if (r->n_generated == o->max_tokens)
            r->stop = COLI_STOP_LENGTH;
        else if (s->pos == s->n_ctx)
            r->stop = COLI_STOP_CONTEXT;
        else {
            const coli_status status = coli__session_feed(s, &id, 1, (coli__part){0});
            if (status == COLI_E_CANCELLED)
                r->stop = COLI_STOP_CANCELLED;
            else if (status != COLI_OK)
                return status;
        }
    }
    const uint64_t end_ns = coli__clock_ns();
    if (!first_ns) return COLI_OK;
    r->ttft_s = (double)(first_ns - start_ns) * 1e-9;
    r->decode_s = (double)(end_ns - first_ns) * 1e-9;
    if (r->n_generated > 1 && r->decode_s > 0) {
        const double n = r->n_generated - 1;
        r->tok_s = n / r->decode_s;
        r->token_ms = r->decode_s * 1e3 / n;
        r->token_moe_ms = (double)(s->elapsed.moe_ns - before.moe_ns) * 1e-6 / n;
        r->token_wait_ms = (double)(s->elapsed.wait_ns - before.wait_ns) * 1e-6 / n;
    }
    return COLI_OK;
}

coli_status coli__generate(coli_session *s, const coli_generate_opts *o, const coli_sampling *p,
                           coli_piece_fn on_piece, void *user, uint64_t start_ns, int32_t *out_ids,
                           coli_result *r)
{
    COLI_TRY(need_logits(s));
    coli_session_seed(s, p->seed);
    show w = {.s = s, .fn = on_piece, .user = user, .thinking = think_is_open(s)};
    w.skip_breaks = w.thinking;
    COLI_TRY(make_tokens(s, o, p, &w, start_ns, out_ids, r));
    return show_end(&w);
}

coli_status coli_generate(coli_session *s, const coli_generate_opts *opts, coli_piece_fn on_piece,
                          void *user, coli_result *result)
{
    const uint64_t start_ns = coli__clock_ns();
    if (result) COLI_TRY(coli__struct_clear("coli_result", result));
    if (!s) return coli__fail(COLI_E_INVALID, "coli_generate: session is NULL");
    coli_generate_opts o;
    coli_sampling p;
    COLI_TRY(coli__opts_copy("coli_generate_opts", &o, sizeof o, opts));
    COLI_TRY(coli__sampling_take(s, o.sampling, &p));
    atomic_store(&s->cancel, false);
    coli_result r = {.n_prompt = s->pos};
    const coli_status status = coli__generate(s, &o, &p, on_piece, user, start_ns, NULL, &r);
    if (result) coli__struct_fill(result, &r, sizeof r);
    return status;
}
