/* scores.c - items through a session.
 *
 *     text     from an empty session, all rows at once: the logits of row i say how likely token i + 1
 *              was.  The first token has nothing before it and is not scored
 *     choice   what the endings share is fed once; a snapshot there, and each ending from it.  The
 *              snapshot's logits say how likely an ending's first token is, the rows of the others
 *              the rest; its last token need not be fed
 *     exact    the prompt, then the likeliest token each time until the turn ends
 *
 * However the tokens are cut into chunks, the bytes are the same, so none of this changes a score. */
#include "scores.h"

#include <string.h>

#include "api.h"
#include "score_row.h"
#include "session.h"

/* ---- the object ----------------------------------------------------------------------------- */

coli_status coli__scores_create(const coli_tasks *tasks, coli_scores **out)
{
    *out = NULL;
    coli_scores *s = coli__calloc(1, sizeof *s);
    if (!s) return COLI_E_NOMEM;
    s->tasks = tasks;
    s->items = coli__calloc(coli__tasks_n(tasks), sizeof *s->items);
    if (!s->items) {
        coli__free(s);
        return COLI_E_NOMEM;
    }
    *out = s;
    return COLI_OK;
}

void coli_scores_free(coli_scores *s)
{
    if (!s) return;
    coli__free(s->items);
    coli__buf_finish(&s->rows);
    coli__buf_finish(&s->sums);
    coli__buf_finish(&s->answers);
    coli__free(s);
}

double coli__score_sum(const coli_scores *s, uint32_t i, uint32_t ending)
{
    return ((const double *)(const void *)s->sums.data)[s->items[i].sums_at + ending];
}

const char *coli__score_answer(const coli_scores *s, uint32_t i)
{
    return s->answers.data + s->items[i].answer_at;
}

bool coli__score_choice(const coli_scores *s, uint32_t i, coli_measure measure, uint32_t *pick)
{
    const coli__task *item = coli__tasks_at(s->tasks, i);
    double most = 0;
    *pick = 0;
    for (uint32_t e = 0; e < item->n_ending; e++) {
        const coli__ending *ending = coli__tasks_ending(s->tasks, item, e);
        const double over = measure == COLI_MEASURE_CHOICE_BYTE    ? ending->n_bytes
                            : measure == COLI_MEASURE_CHOICE_TOKEN ? ending->n_id
                                                                   : 1;
        const double value = coli__score_sum(s, i, e) / over;
        if (e > 0 && value <= most) continue;
        most = value;
        *pick = e;
    }
    return *pick == item->label;
}

bool coli__score_exact(const coli_scores *s, uint32_t i)
{
    const coli__task *item = coli__tasks_at(s->tasks, i);
    return strcmp(coli__score_answer(s, i), coli__tasks_string(s->tasks, item->answer)) == 0;
}

/* ---- scoring -------------------------------------------------------------------------------- */

typedef struct scorer {
    coli_session *session;
    const coli_scores *base; // NULL: none
    coli_scores *out;
    coli__row row;
    /* of the item at hand */
    const coli__task *item;
    coli__score *score;
    coli__ending ending;                // choice
    double sum;                         // of the ending's log p
    const uint8_t *base_row, *base_end; // text: the base's next row; the end of all
    coli_status status;                 // of what happened in a callback
} scorer;

static int32_t id_of(const scorer *c, size_t at, uint32_t i)
{
    return coli__tasks_ids(c->out->tasks, at)[i];
}

static coli_status text_row(scorer *c, uint32_t pos, const float *logits)
{
    COLI_TRY(coli__row_take(&c->row, logits));
    if (pos + 1 < c->item->n_id)
        c->score->nll -=
            (double)coli__row_logprob(&c->row, (uint32_t)id_of(c, c->item->at, pos + 1));
    if (c->base) {
        bool same_top;
        c->score->kl += coli__row_compare(&c->row, &c->base_row, c->base_end, &same_top);
        c->score->n_row++;
        c->score->n_top += same_top;
    }
    return c->out->has_rows ? coli__row_record(&c->row, &c->out->rows) : COLI_OK;
}

static bool on_text(void *user, uint32_t pos, uint32_t n_row, const float *logits,
                    const int32_t *expert_ids, const float *expert_w)
{
    scorer *c = user;
    (void)expert_ids;
    (void)expert_w;
    for (uint32_t i = 0; i < n_row && c->status == COLI_OK; i++)
        c->status = text_row(c, pos + i, logits + (size_t)i * c->row.n_vocab);
    return c->status == COLI_OK;
}

/* coli_session_eval fails with E_CANCELLED after a callback that failed: say why it did. */
static coli_status eval(scorer *c, size_t at, uint32_t n_id, coli_rows_fn on_rows)
{
    c->status = COLI_OK;
    const coli_status status =
        coli_session_eval(c->session, coli__tasks_ids(c->out->tasks, at), n_id, on_rows, c);
    return c->status != COLI_OK ? c->status : status;
}

static coli_status score_text(scorer *c)
{
    c->score->rows_at = c->out->rows.n_bytes;
    if (c->base) {
        const coli__buf *rows = &c->base->rows;
        c->base_row =
            (const uint8_t *)rows->data + c->base->items[c->score - c->out->items].rows_at;
        c->base_end = (const uint8_t *)rows->data + rows->n_bytes;
    }
    return eval(c, c->item->at, c->item->n_id, on_text);
}

/* How likely is token i of the ending. */
static coli_status ending_row(scorer *c, uint32_t i, const float *logits)
{
    COLI_TRY(coli__row_take(&c->row, logits));
    c->sum += (double)coli__row_logprob(&c->row, (uint32_t)id_of(c, c->ending.at, i));
    return COLI_OK;
}

static bool on_ending(void *user, uint32_t pos, uint32_t n_row, const float *logits,
                      const int32_t *expert_ids, const float *expert_w)
{
    scorer *c = user;
    (void)expert_ids;
    (void)expert_w;
    for (uint32_t i = 0; i < n_row && c->status == COLI_OK; i++)
        c->status = ending_row(c, pos - c->item->n_id + i + 1, logits + (size_t)i * c->row.n_vocab);
    return c->status == COLI_OK;
}

static coli_status score_ending(scorer *c, const coli_snapshot *start)
{
    COLI_TRY(coli_session_restore(c->session, start));
    c->sum = 0;
    COLI_TRY(ending_row(c, 0, coli_session_logits(c->session)));
    if (c->ending.n_id > 1) COLI_TRY(eval(c, c->ending.at, c->ending.n_id - 1, on_ending));
    return coli__buf_append(&c->out->sums, &c->sum, sizeof c->sum);
}

static coli_status score_choice(scorer *c)
{
    const coli_tasks *tasks = c->out->tasks;
    c->score->sums_at = c->out->sums.n_bytes / sizeof c->sum;
    COLI_TRY(coli_session_feed(c->session, coli__tasks_ids(tasks, c->item->at), c->item->n_id));
    coli_snapshot *start;
    COLI_TRY(coli_session_snapshot(c->session, &start));
    coli_status status = COLI_OK;
    for (uint32_t e = 0; e < c->item->n_ending && status == COLI_OK; e++) {
        c->ending = *coli__tasks_ending(tasks, c->item, e);
        status = score_ending(c, start);
    }
    coli_snapshot_destroy(start);
    return status;
}

static bool on_piece(void *user, const coli_piece *piece)
{
    scorer *c = user;
    if (!piece->thinking)
        c->status = coli__buf_append(&c->out->answers, piece->text, piece->n_bytes);
    return c->status == COLI_OK;
}

/* Strip the answer that ends the buffer, and end it with NUL. */
static coli_status end_answer(scorer *c)
{
    coli__buf *all = &c->out->answers;
    const size_t at = c->score->answer_at;
    COLI_TRY(coli__buf_append(all, "", 1)); // also where nothing was made
    const char *text = all->data + at;
    size_t n_bytes = strlen(text);
    coli__strip(&text, &n_bytes);
    memmove(all->data + at, text, n_bytes);
    all->data[at + n_bytes] = 0;
    all->n_bytes = at + n_bytes + 1;
    return COLI_OK;
}

static coli_status score_exact(scorer *c)
{
    const coli_sampling greedy = {
        .struct_size = sizeof greedy, .top_p = 1, .repetition_penalty = 1};
    const coli_generate_opts opts = {
        .struct_size = sizeof opts, .max_tokens = c->item->n_answer, .sampling = &greedy};
    coli_result result = {.struct_size = sizeof result};
    c->score->answer_at = c->out->answers.n_bytes;
    COLI_TRY(
        coli_session_feed(c->session, coli__tasks_ids(c->out->tasks, c->item->at), c->item->n_id));
    c->status = COLI_OK;
    COLI_TRY(coli_generate(c->session, &opts, on_piece, c, &result));
    COLI_TRY(c->status);
    if (result.stop == COLI_STOP_CANCELLED) return coli__fail(COLI_E_CANCELLED, "cancelled");
    return end_answer(c);
}

static coli_status score_item(scorer *c, uint32_t i)
{
    c->item = coli__tasks_at(c->out->tasks, i);
    c->score = &c->out->items[i];
    coli_session_reset(c->session);
    switch (c->item->kind) {
    case COLI_TASK_TEXT:
        return score_text(c);
    case COLI_TASK_CHOICE:
        return score_choice(c);
    case COLI_TASK_EXACT:
        return score_exact(c);
    }
    return coli__fail(COLI_E_INTERNAL, "no such kind of item");
}

static uint64_t n_token(const coli_tasks *t, uint32_t i)
{
    const coli__task *item = coli__tasks_at(t, i);
    uint64_t n = item->n_id;
    for (uint32_t e = 0; e < item->n_ending; e++) n += coli__tasks_ending(t, item, e)->n_id;
    return n;
}

static coli_status score_all(scorer *c, const coli_scores_opts *o)
{
    const coli_tasks *t = c->out->tasks;
    uint64_t done = 0;
    for (uint32_t i = 0; i < coli__tasks_n(t); i++) {
        const coli_status status = score_item(c, i);
        if (status == COLI_E_CANCELLED) return status;
        if (status != COLI_OK) {
            const coli__task *item = coli__tasks_at(t, i);
            return coli__fail_in(status, "%s: line %llu", t->files[item->file],
                                 (unsigned long long)item->line);
        }
        done += n_token(t, i);
        if (o->progress && !o->progress(o->user, "score", done, t->n_token))
            return coli__fail(COLI_E_CANCELLED, "cancelled");
    }
    return COLI_OK;
}

static coli_status count_rest(coli_scores *s)
{
    const uint8_t *at = (const uint8_t *)s->rows.data, *end = at + s->rows.n_bytes;
    for (float rest; at < end; s->n_row++) {
        if (!coli__row_check(&at, end, s->n_vocab, &rest))
            return coli__fail(COLI_E_INTERNAL, "a row's record cannot be read back");
        s->rest += (double)rest;
    }
    return COLI_OK;
}

static coli_status check_args(const coli_session *s, const coli_tasks *t, const coli_scores_opts *o)
{
    if (t->n_ctx > s->n_ctx)
        return coli__fail(COLI_E_LIMIT, "the items need a context of %u tokens; it has %u",
                          t->n_ctx, s->n_ctx);
    // rows of logits are read at the ids of endings, which another model may have given
    if (t->n_vocab > s->m->shape.n_vocab)
        return coli__fail(COLI_E_INVALID, "the items have ids up to %u; the model's are below %u",
                          t->n_vocab - 1, s->m->shape.n_vocab);
    if (!o->base) return COLI_OK;
    if (strcmp(o->base->tasks->identity, t->identity) != 0)
        return coli__fail(COLI_E_INVALID, "the base is of other items, or in other tokens");
    if (!o->base->has_rows && t->n_kind[COLI_TASK_TEXT] > 0)
        return coli__fail(COLI_E_INVALID, "the base was made without rows");
    if (o->base->n_vocab != s->m->shape.n_vocab)
        return coli__fail(COLI_E_INVALID, "the base has %u logits in a row, the model %u",
                          o->base->n_vocab, s->m->shape.n_vocab);
    return COLI_OK;
}

coli_status coli_scores_make(coli_session *session, const coli_tasks *tasks,
                             const coli_scores_opts *opts, coli_scores **out)
{
    if (out) *out = NULL;
    if (!session || !tasks || !out)
        return coli__fail(COLI_E_INVALID, "coli_scores_make: an argument is NULL");
    coli_scores_opts o;
    COLI_TRY(coli__opts_copy("coli_scores_opts", &o, sizeof o, opts));
    COLI_TRY(check_args(session, tasks, &o));
    scorer c = {.session = session, .base = o.base};
    COLI_TRY(coli__scores_create(tasks, &c.out));
    memcpy(c.out->model, coli__container_identity(session->m->container), 32);
    c.out->n_vocab = session->m->shape.n_vocab;
    c.out->has_rows = o.keep_rows;
    c.out->has_base = o.base != NULL;
    coli_status status = coli__row_init(&c.row, c.out->n_vocab);
    if (status == COLI_OK) status = score_all(&c, &o);
    if (status == COLI_OK) status = count_rest(c.out);
    coli__row_finish(&c.row);
    if (status == COLI_OK)
        *out = c.out;
    else
        coli_scores_free(c.out);
    return status;
}

/* ---- reading -------------------------------------------------------------------------------- */

coli_status coli_scores_get_info(const coli_scores *s, coli_scores_info *info)
{
    if (info) COLI_TRY(coli__struct_clear("coli_scores_info", info));
    if (!s || !info) return coli__fail(COLI_E_INVALID, "coli_scores_get_info: an argument is NULL");
    const coli_scores_info full = {.n_item = coli__tasks_n(s->tasks),
                                   .has_rows = s->has_rows,
                                   .has_base = s->has_base,
                                   .n_row_bytes = s->rows.n_bytes,
                                   .rest = s->n_row ? s->rest / (double)s->n_row : 0,
                                   .model = s->model};
    coli__struct_fill(info, &full, sizeof full);
    return COLI_OK;
}

coli_status coli_scores_get(const coli_scores *s, uint32_t i, coli_score *out)
{
    if (out) COLI_TRY(coli__struct_clear("coli_score", out));
    if (!s || !out || i >= coli__tasks_n(s->tasks))
        return coli__fail(COLI_E_INVALID, "coli_scores_get: no such item");
    const coli__task *item = coli__tasks_at(s->tasks, i);
    const coli__score *score = &s->items[i];
    coli_score full = {
        .nll = score->nll, .n_row = score->n_row, .n_top = score->n_top, .kl = score->kl};
    if (item->kind == COLI_TASK_TEXT) full.n_token = item->n_id - 1;
    if (item->kind == COLI_TASK_CHOICE) {
        full.logprob = (const double *)(const void *)s->sums.data + score->sums_at;
        full.right = coli__score_choice(s, i, COLI_MEASURE_CHOICE, &full.pick);
        full.right_byte = coli__score_choice(s, i, COLI_MEASURE_CHOICE_BYTE, &full.pick_byte);
        full.right_token = coli__score_choice(s, i, COLI_MEASURE_CHOICE_TOKEN, &full.pick_token);
    }
    if (item->kind == COLI_TASK_EXACT) {
        full.answer = coli__score_answer(s, i);
        full.right = coli__score_exact(s, i);
    }
    coli__struct_fill(out, &full, sizeof full);
    return COLI_OK;
}
