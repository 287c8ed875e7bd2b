/* chat.c - a conversation on a session, computing only what is new.
 *
 * Each turn renders the whole conversation and compares its tokens with those the session holds.
 * What differs is prefilled; where that starts depends on what can still be reached:
 *
 *     the session's end       if everything it holds is a prefix of the new prompt
 *     the latest snapshot     that lies within the common prefix
 *     the beginning           otherwise
 *
 * Why snapshots.  The template drops the think block of earlier turns, so the next prompt leaves
 * the session's tokens right after "<|im_start|>assistant\n", and recurrent state cannot be cut back:
 *
 *     held    ... Hi <|im_end|> <|im_start|> assistant \n | <think> ... </think> Hello
 *     next    ... Hi <|im_end|> <|im_start|> assistant \n | Hello <|im_end|> \n <|im_start|> user ...
 *                                                         ^ render.stable_bytes: snapshot here
 *
 * One snapshot is taken per turn, at that point; the latest MAX_SNAPSHOT are kept.  They are worth
 * their memory only while the conversation goes on, so they live here and not in the session. */
#include <stdlib.h>
#include <string.h>

#include "../model/chat_template.h"
#include "api.h"
#include "session.h"

enum { MAX_SNAPSHOT = 4 };

struct coli_chat {
    coli_session *s;
    size_t n_system; // messages that a reset keeps: the system message, if there is one
    bool no_think, preserve_thinking;
    json_t *messages;
    coli_snapshot *snapshots[MAX_SNAPSHOT]; // by position, none twice
    uint32_t n_snapshot;
    int32_t *made; // (n_ctx) ids of the present answer
};

/* -- messages ---------------------------------------------------------------------------------- */

static coli_status no_json_memory(void)
{
    return coli__fail(COLI_E_NOMEM, "out of memory for a message");
}

static coli_status add_message(coli_chat *c, const char *role, const char *content, size_t n_bytes,
                               const coli__buf *reasoning)
{
    json_t *m = json_pack("{s:s, s:s%}", "role", role, "content", content, n_bytes);
    if (m && reasoning && reasoning->n_bytes)
        if (json_object_set_new(m, "reasoning_content",
                                json_stringn(reasoning->data, reasoning->n_bytes)) != 0) {
            json_decref(m);
            m = NULL;
        }
    if (!m || json_array_append_new(c->messages, m) != 0) return no_json_memory();
    return COLI_OK;
}

static void keep_messages(coli_chat *c, size_t n)
{
    while (json_array_size(c->messages) > n)
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
}

/* -- snapshots --------------------------------------------------------------------------------- */

static void drop_snapshot(coli_chat *c, uint32_t i)
{
    coli_snapshot_destroy(c->snapshots[i]);
    c->n_snapshot--;
    memmove(c->snapshots + i, c->snapshots + i + 1, (c->n_snapshot - i) * sizeof c->snapshots[0]);
}

/* Remember the session's present position.  Without memory for it the next turn prefills more,
 * which is no reason to fail this one. */
static void remember(coli_chat *c)
{
    while (c->n_snapshot && coli__snapshot_pos(c->snapshots[c->n_snapshot - 1]) >= c->s->pos)
        drop_snapshot(c, c->n_snapshot - 1);
    if (c->n_snapshot == MAX_SNAPSHOT) drop_snapshot(c, 0);
    if (coli_session_snapshot(c->s, &c->snapshots[c->n_snapshot]) == COLI_OK) c->n_snapshot++;
}

/* Go to the furthest position from which ids can be continued. */
static void go_back(coli_chat *c, const int32_t *ids, size_t n_ids)
{
    coli_session *s = c->s;
    const uint32_t common = coli__session_common(s, ids, n_ids);
    // a session that already holds the whole prompt is of use only with its logits
    const bool stay = s->pos <= common && (s->pos < n_ids || s->has_logits);
    for (uint32_t i = c->n_snapshot; i-- > 0;) {
        const uint32_t pos = coli__snapshot_pos(c->snapshots[i]);
        if (stay && pos <= s->pos) return;
        if (pos <= common && pos < n_ids && coli_session_restore(s, c->snapshots[i]) == COLI_OK)
            return;
    }
    if (!stay) coli_session_reset(s);
}

/* -- a turn ------------------------------------------------------------------------------------ */

typedef struct prompt {
    int32_t *ids;
    size_t n_ids, n_stable; // n_stable: tokens of render.stable_bytes
} prompt;

static coli_status encode_prompt(const coli_chat *c, const coli__render *r, prompt *p)
{
    const coli__tok *tok = c->s->m->beside.tok;
    COLI_TRY(coli__tok_encode(tok, r->text.data, r->text.n_bytes, r->plain, r->n_plain, &p->ids,
                              &p->n_ids));
    size_t n_plain = 0;
    while (n_plain < r->n_plain && r->plain[n_plain].end <= r->stable_bytes) n_plain++;
    int32_t *stable = NULL;
    size_t n = 0;
    COLI_TRY(coli__tok_encode(tok, r->text.data, r->stable_bytes, r->plain, n_plain, &stable, &n));
    // an added token follows the stable part, so its tokens are a prefix; otherwise there is none
    const bool prefix =
        n <= p->n_ids && (n == 0 || memcmp(stable, p->ids, n * sizeof *stable) == 0);
    p->n_stable = prefix ? n : 0;
    coli__free(stable);
    return COLI_OK;
}

static coli_status make_prompt(const coli_chat *c, prompt *p)
{
    *p = (prompt){0};
    json_t *options = json_pack("{s:b, s:b}", "enable_thinking", !c->no_think, "preserve_thinking",
                                c->preserve_thinking);
    if (!options) return no_json_memory();
    coli__render r = {0};
    coli_status status =
        coli__chat_render(coli__container_template(c->s->m->container), c->messages, options, &r);
    if (status == COLI_OK) status = encode_prompt(c, &r, p);
    if (status == COLI_OK && p->n_ids >= c->s->n_ctx)
        status = coli__fail(COLI_E_LIMIT,
                            "the conversation is now %zu tokens long and fills the context of %u",
                            p->n_ids, c->s->n_ctx);
    coli__render_finish(&r);
    json_decref(options);
    return status;
}

static coli_status prefill(coli_chat *c, const prompt *p, coli_result *r)
{
    coli_session *s = c->s;
    const coli__elapsed before = s->elapsed;
    go_back(c, p->ids, p->n_ids);
    r->n_prompt = (uint32_t)p->n_ids;
    r->n_prefill = (uint32_t)p->n_ids - s->pos;
    coli__part part = {.of_prompt = true, .begins = true}; // both parts are one prompt
    if (s->pos < p->n_stable) {
        part.ends = p->n_stable == p->n_ids;
        COLI_TRY(coli__session_feed(s, p->ids + s->pos, p->n_stable - s->pos, part));
        remember(c);
        part.begins = false;
    }
    part.ends = true;
    if (s->pos < p->n_ids)
        COLI_TRY(coli__session_feed(s, p->ids + s->pos, p->n_ids - s->pos, part));
    r->prefill_moe_s = (double)(s->elapsed.moe_ns - before.moe_ns) * 1e-9;
    r->prefill_wait_s = (double)(s->elapsed.wait_ns - before.wait_ns) * 1e-9;
    return COLI_OK;
}

/* Split the answer's ids at </think> and add it to the conversation. */
static coli_status add_answer(coli_chat *c, uint32_t n_made)
{
    const coli_model *m = c->s->m;
    uint32_t begin = 0;
    if (!c->no_think && m->beside.think_close_id >= 0) {
        while (begin < n_made && c->made[begin] != m->beside.think_close_id) begin++;
    }
    coli__buf reasoning = {0}, content = {0};
    coli_status status = coli__tok_decode(m->beside.tok, c->made, begin, true, &reasoning);
    if (status == COLI_OK && begin < n_made && !c->no_think) begin++; // the tag itself
    if (status == COLI_OK)
        status = coli__tok_decode(m->beside.tok, c->made + begin, n_made - begin, true, &content);
    if (status == COLI_OK)
        status = add_message(c, "assistant", content.data ? content.data : "", content.n_bytes,
                             &reasoning);
    coli__buf_finish(&reasoning);
    coli__buf_finish(&content);
    return status;
}

/* One turn after the user's message was added. */
static coli_status turn(coli_chat *c, const coli_generate_opts *o, const coli_sampling *sampling,
                        coli_piece_fn on_piece, void *user, uint64_t start_ns, coli_result *r)
{
    prompt p;
    coli_status status = make_prompt(c, &p);
    if (status == COLI_OK) status = prefill(c, &p, r);
    coli__free(p.ids);
    r->prefill_s = (double)(coli__clock_ns() - start_ns) * 1e-9;
    if (status == COLI_E_CANCELLED) {
        r->stop = COLI_STOP_CANCELLED;
        return COLI_OK;
    }
    COLI_TRY(status);
    COLI_TRY(coli__generate(c->s, o, sampling, on_piece, user, start_ns, c->made, r));
    return r->n_generated > 0 ? add_answer(c, r->n_generated) : COLI_OK;
}

coli_status coli_chat_say(coli_chat *c, const char *text, const coli_generate_opts *opts,
                          coli_piece_fn on_piece, void *user, coli_result *result)
{
    const uint64_t start_ns = coli__clock_ns();
    if (result) COLI_TRY(coli__struct_clear("coli_result", result));
    if (!c || !text) return coli__fail(COLI_E_INVALID, "coli_chat_say: an argument is NULL");
    coli_generate_opts o;
    coli_sampling sampling;
    COLI_TRY(coli__opts_copy("coli_generate_opts", &o, sizeof o, opts));
    COLI_TRY(coli__sampling_take(c->s, o.sampling, &sampling)); // before a long prefill
    const size_t n_bytes = strlen(text), good = coli__utf8_check(text, n_bytes);
    if (good < n_bytes)
        return coli__fail(COLI_E_INVALID, "the message is not UTF-8 at byte %zu", good);
    atomic_store(&c->s->cancel, false);
    coli__session_turn(c->s);

    coli_result r = {0};
    const size_t n_before = json_array_size(c->messages);
    coli_status status = add_message(c, "user", text, n_bytes, NULL);
    if (status == COLI_OK) status = turn(c, &o, &sampling, on_piece, user, start_ns, &r);
    if (json_array_size(c->messages) < n_before + 2) keep_messages(c, n_before); // no answer
    if (result) coli__struct_fill(result, &r, sizeof r);
    return status;
}

/* -- life -------------------------------------------------------------------------------------- */

void coli_chat_reset(coli_chat *c)
{
    if (!c) return;
    while (c->n_snapshot) drop_snapshot(c, c->n_snapshot - 1);
    coli_session_reset(c->s);
    keep_messages(c, c->n_system);
}

coli_status coli_chat_create(coli_session *session, const coli_chat_opts *opts, coli_chat **out)
{
    if (!out) return coli__fail(COLI_E_INVALID, "coli_chat_create: out is NULL");
    *out = NULL;
    if (!session) return coli__fail(COLI_E_INVALID, "coli_chat_create: session is NULL");
    if (!session->m->beside.tok)
        return coli__fail(COLI_E_UNSUPPORTED, "%s has no tokenizer.json: it cannot chat",
                          coli__container_dir(session->m->container));
    coli_chat_opts o;
    COLI_TRY(coli__opts_copy("coli_chat_opts", &o, sizeof o, opts));
    if (o.system && coli__utf8_check(o.system, strlen(o.system)) < strlen(o.system))
        return coli__fail(COLI_E_INVALID, "the system message is not UTF-8");

    coli_chat *c = coli__calloc(1, sizeof *c);
    if (!c) return COLI_E_NOMEM;
    c->s = session;
    c->no_think = o.no_think;
    c->preserve_thinking = o.preserve_thinking;
    c->messages = json_array();
    c->made = coli__calloc(session->n_ctx, sizeof *c->made);
    coli_status status = c->messages && c->made ? COLI_OK : no_json_memory();
    if (status == COLI_OK && o.system) {
        status = add_message(c, "system", o.system, strlen(o.system), NULL);
        c->n_system = 1;
    }
    if (status != COLI_OK) {
        coli_chat_destroy(c);
        return status;
    }
    coli_chat_reset(c);
    *out = c;
    return COLI_OK;
}

void coli_chat_destroy(coli_chat *c)
{
    if (!c) return;
    while (c->n_snapshot) drop_snapshot(c, c->n_snapshot - 1);
    json_decref(c->messages);
    coli__free(c->made);
    coli__free(c);
}

coli_status coli_chat_messages(const coli_chat *c, coli_text *out)
{
    if (out) *out = (coli_text){0};
    if (!c || !out) return coli__fail(COLI_E_INVALID, "coli_chat_messages: an argument is NULL");
    char *text = json_dumps(c->messages, JSON_COMPACT);
    if (!text) return no_json_memory();
    out->n_bytes = strlen(text);
    out->data = coli__strndup(text, out->n_bytes);
    free(text);
    return out->data ? COLI_OK : COLI_E_NOMEM;
}
