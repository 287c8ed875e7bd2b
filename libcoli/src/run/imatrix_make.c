/* imatrix_make.c - texts through a session that adds up what its matrices are multiplied with. */
#include "../model/imatrix.h"
#include "api.h"
#include "session.h"
#include "tasks.h"

static coli_status check_args(const coli_session *s, const coli_tasks *t, const char *out)
{
    if (s->m->devices)
        return coli__fail(
            COLI_E_INVALID,
            "coli_imatrix_make: experts may be on devices, where nobody sees what they "
            "read; open the model with backend \"none\"");
    if (t->n_ctx > s->n_ctx)
        return coli__fail(COLI_E_LIMIT, "the texts need a context of %u tokens; it has %u",
                          t->n_ctx, s->n_ctx);
    if (t->n_vocab > s->m->shape.n_vocab)
        return coli__fail(COLI_E_INVALID, "the texts have ids up to %u; the model's are below %u",
                          t->n_vocab - 1, s->m->shape.n_vocab);
    if (coli__path_exists(out)) return coli__fail(COLI_E_EXISTS, "%s: already exists", out);
    return COLI_OK;
}

/* The logits are asked for because the head is a matrix, too. */
static bool go_on(void *user, uint32_t pos, uint32_t n_row, const float *logits,
                  const int32_t *expert_ids, const float *expert_w)
{
    (void)user, (void)pos, (void)n_row, (void)logits, (void)expert_ids, (void)expert_w;
    return true;
}

static coli_status feed(coli_session *s, const coli_tasks *t, size_t at, uint32_t n_id)
{
    return n_id > 0 ? coli_session_eval(s, coli__tasks_ids(t, at), n_id, go_on, NULL) : COLI_OK;
}

/* The right ending of a choice; of other items nothing. */
static coli__ending ending_of(const coli_tasks *t, const coli__task *item)
{
    if (item->kind != COLI_TASK_CHOICE) return (coli__ending){0};
    return *coli__tasks_ending(t, item, item->label);
}

static coli_status feed_all(coli_session *s, const coli_tasks *t, const coli_imatrix_opts *o,
                            uint64_t *done)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < coli__tasks_n(t); i++) {
        const coli__task *item = coli__tasks_at(t, i);
        total += item->n_id + ending_of(t, item).n_id;
    }
    for (uint32_t i = 0; i < coli__tasks_n(t); i++) {
        const coli__task *item = coli__tasks_at(t, i);
        const coli__ending ending = ending_of(t, item);
        coli_session_reset(s);
        COLI_TRY(feed(s, t, item->at, item->n_id));
        COLI_TRY(feed(s, t, ending.at, ending.n_id));
        *done += item->n_id + ending.n_id;
        if (o->progress && !o->progress(o->user, "imatrix", *done, total))
            return coli__fail(COLI_E_CANCELLED, "stopped; nothing was written");
    }
    return COLI_OK;
}

static coli_status create(const coli_model *m, coli__importance **out)
{
    const char *engine;
    coli__model_spec spec;
    *out = NULL;
    COLI_TRY(coli__engine_describe(coli__container_config(m->container), &engine, &spec));
    const coli_status status = coli__importance_create(m->container, &spec, out);
    coli__model_spec_finish(&spec);
    return status;
}

static coli_status collect(coli_session *s, const coli_tasks *t, const coli_imatrix_opts *o,
                           coli__writer *writer)
{
    coli__importance *im;
    COLI_TRY(create(s->m, &im));
    uint64_t n_token = 0;
    s->importance = im;
    coli_status status = feed_all(s, t, o, &n_token);
    s->importance = NULL;
    coli_session_reset(s);
    if (status == COLI_OK) status = coli__importance_write(im, n_token, writer);
    coli__importance_destroy(im);
    return status;
}

/* The file is opened first: what cannot be written should not be found out after hours. */
static coli_status write_partial(coli_session *s, const coli_tasks *t, const coli_imatrix_opts *o,
                                 const char *partial)
{
    coli__writer *writer;
    const coli_status opened = coli__writer_open(partial, &writer);
    if (opened == COLI_E_EXISTS)
        return coli__fail(opened,
                          "%s: already exists; it is being written, or its writer was killed: then "
                          "remove it",
                          partial);
    COLI_TRY(opened);
    coli_status status = collect(s, t, o, writer);
    if (status == COLI_OK)
        status = coli__writer_close(writer);
    else
        coli__writer_abandon(writer);
    if (status != COLI_OK) coli__file_remove(partial);
    return status;
}

coli_status coli_imatrix_make(coli_session *session, const coli_tasks *tasks, const char *out,
                              const coli_imatrix_opts *opts)
{
    if (!session || !tasks || !out)
        return coli__fail(COLI_E_INVALID, "coli_imatrix_make: an argument is NULL");
    coli_imatrix_opts o;
    COLI_TRY(coli__opts_copy("coli_imatrix_opts", &o, sizeof o, opts));
    COLI_TRY(check_args(session, tasks, out));
    coli__buf partial = {0};
    coli_status status = coli__buf_printf(&partial, "%s.partial", out);
    if (status == COLI_OK) status = write_partial(session, tasks, &o, partial.data);
    if (status == COLI_OK) {
        status = coli__path_rename(partial.data, out);
        if (status != COLI_OK) coli__file_remove(partial.data);
    }
    coli__buf_finish(&partial);
    return status;
}
