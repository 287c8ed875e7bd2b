/* record.c - a session's routing as traces, the files that `coli replay` reads.
 *
 * While tokens are made nothing is allocated and nothing is written: rows go into buffers that were
 * taken for as many as the session's context has, and whose pages cost nothing until they are
 * used.  `add` copies the rows of one prompt and its answer out of them, `write` makes the two files,
 * the one with the list last: without it there is no trace, so half of one is never read.
 *
 *     rows      (layer, n_ctx)      filled from the left
 *     prompt    (layer, n_row)      what add keeps
 *
 * Format: docs/formats/traces.md. */
#include <stdlib.h>
#include <string.h>

#include "../model/trace.h"
#include "api.h"
#include "session.h"

/* A tensor of each prompt. */
enum { EXPERTS, LEVEL, RANKED, MASS, N_COLUMN };
static const char *const column_names[N_COLUMN] = {"experts", "level", "ranked", "mass"};

typedef struct column {
    coli__dtype dtype;
    uint32_t n_number; // of a row in one layer
    uint32_t number_bytes;
} column;

typedef struct prompt {
    char *name, *topic; // topic: NULL for none
    uint32_t n_row, n_prompt;
    uint8_t *rows[N_COLUMN]; // (n_layer, n_row, a row's bytes)
} prompt;

struct coli_recorder {
    coli_session *s;
    coli__buf tensors, json; // paths
    uint32_t n_layer, n_ctx;
    column columns[N_COLUMN];

    uint8_t *rows[N_COLUMN]; // (n_layer, n_ctx, a row's bytes)
    uint32_t n_row;          // since the last add
    bool too_many;           // and there were more

    prompt *prompts;
    uint32_t n_prompt, cap_prompt;
};

static size_t row_bytes(const column *c)
{
    return (size_t)c->n_number * c->number_bytes;
}

/* -- rows -------------------------------------------------------------------------------------- */

static void put_ids(const column *c, const int32_t *ids, uint8_t *out)
{
    if (c->dtype == COLI_DT_I32) {
        memcpy(out, ids, row_bytes(c));
        return;
    }
    for (uint32_t i = 0; i < c->n_number; i++) out[i] = (uint8_t)ids[i];
}

static void on_route(void *user, const coli_route *r)
{
    coli_recorder *rec = user;
    if (rec->too_many || r->n_row > rec->n_ctx - rec->n_row) {
        rec->too_many = true;
        return;
    }
    const column *c = rec->columns;
    for (size_t l = 0; l < r->n_layer; l++)
        for (size_t t = 0; t < r->n_row; t++) {
            const size_t from = l * r->n_row + t, to = l * rec->n_ctx + rec->n_row + t;
            put_ids(&c[EXPERTS], r->experts + from * r->n_expert_used,
                    rec->rows[EXPERTS] + to * row_bytes(&c[EXPERTS]));
            put_ids(&c[RANKED], r->ranked + from * r->n_ranked,
                    rec->rows[RANKED] + to * row_bytes(&c[RANKED]));
            memcpy(rec->rows[LEVEL] + to * row_bytes(&c[LEVEL]),
                   r->levels + from * r->n_expert_used, row_bytes(&c[LEVEL]));
            memcpy(rec->rows[MASS] + to * row_bytes(&c[MASS]), r->mass + from * r->n_ranked,
                   row_bytes(&c[MASS]));
        }
    rec->n_row += r->n_row;
}

/* -- prompts ----------------------------------------------------------------------------------- */

static void finish_prompt(prompt *p)
{
    coli__free(p->name);
    coli__free(p->topic);
    for (int i = 0; i < N_COLUMN; i++) coli__free(p->rows[i]);
    *p = (prompt){0};
}

static coli_status check_prompt(const coli_recorder *r, const char *name, uint32_t n_prompt)
{
    if (r->too_many)
        return coli__fail(COLI_E_LIMIT, "the prompt \"%s\" has more than %u rows", name, r->n_ctx);
    if (n_prompt == 0 || n_prompt >= r->n_row)
        return coli__fail(
            COLI_E_INVALID,
            "the prompt \"%s\": expected rows of a prompt and of its answer, found %u "
            "rows, of which %u are the prompt's",
            name, r->n_row, n_prompt);
    if (r->n_prompt == COLI__TRACE_MAX)
        return coli__fail(COLI_E_LIMIT, "a trace holds at most %d prompts", COLI__TRACE_MAX);
    if (strlen(name) + sizeof ".experts" > COLI_ST_MAX_NAME)
        return coli__fail(COLI_E_INVALID, "the name of a prompt has %zu bytes", strlen(name));
    for (uint32_t i = 0; i < r->n_prompt; i++)
        if (strcmp(r->prompts[i].name, name) == 0)
            return coli__fail(COLI_E_INVALID, "two prompts are called \"%s\"", name);
    return COLI_OK;
}

static coli_status take_rows(const coli_recorder *r, prompt *p)
{
    for (int i = 0; i < N_COLUMN; i++) {
        const size_t n = row_bytes(&r->columns[i]), n_kept = p->n_row * n, n_all = r->n_ctx * n;
        p->rows[i] = coli__calloc(r->n_layer, n_kept);
        if (!p->rows[i]) return COLI_E_NOMEM;
        for (size_t l = 0; l < r->n_layer; l++)
            memcpy(p->rows[i] + l * n_kept, r->rows[i] + l * n_all, n_kept);
    }
    return COLI_OK;
}

static coli_status add(coli_recorder *r, const char *name, const char *topic, uint32_t n_prompt)
{
    COLI_TRY(check_prompt(r, name, n_prompt));
    if (r->n_prompt == r->cap_prompt) {
        const uint32_t cap = r->cap_prompt ? 2 * r->cap_prompt : 16;
        prompt *grown = coli__realloc(r->prompts, cap, sizeof *grown);
        if (!grown) return COLI_E_NOMEM;
        r->prompts = grown;
        r->cap_prompt = cap;
    }
    prompt p = {.n_row = r->n_row, .n_prompt = n_prompt};
    p.name = coli__strndup(name, strlen(name));
    if (topic) p.topic = coli__strndup(topic, strlen(topic));
    coli_status status = p.name && (p.topic || !topic) ? COLI_OK : COLI_E_NOMEM;
    if (status == COLI_OK) status = take_rows(r, &p);
    if (status != COLI_OK) {
        finish_prompt(&p);
        return status;
    }
    r->prompts[r->n_prompt++] = p;
    return COLI_OK;
}

coli_status coli_recorder_add(coli_recorder *r, const char *name, const char *topic,
                              uint32_t n_prompt)
{
    if (!r) return coli__fail(COLI_E_INVALID, "coli_recorder_add: recorder is NULL");
    char number[16];
    snprintf(number, sizeof number, "p%03u", r->n_prompt);
    const coli_status status = add(r, name ? name : number, topic, n_prompt);
    r->n_row = 0;
    r->too_many = false;
    return status;
}

uint32_t coli_recorder_n_row(const coli_recorder *r)
{
    return r ? r->n_row : 0;
}

uint32_t coli_recorder_n_prompt(const coli_recorder *r)
{
    return r ? r->n_prompt : 0;
}

/* -- files ------------------------------------------------------------------------------------- */

static coli_status write_tensors(const coli_recorder *r)
{
    const uint32_t n = r->n_prompt * N_COLUMN;
    coli__st_out *tensors = coli__calloc(n, sizeof *tensors);
    coli__buf names = {0};
    coli_status status = tensors ? COLI_OK : COLI_E_NOMEM;
    for (uint32_t i = 0; i < n && status == COLI_OK; i++) {
        status = coli__buf_printf(&names, "%s.%s", r->prompts[i / N_COLUMN].name,
                                  column_names[i % N_COLUMN]);
        if (status == COLI_OK) status = coli__buf_append(&names, "", 1);
    }
    const char *name = names.data; // from here on the buffer does not move
    for (uint32_t i = 0; i < n && status == COLI_OK; i++, name += strlen(name) + 1) {
        const prompt *p = &r->prompts[i / N_COLUMN];
        const column *c = &r->columns[i % N_COLUMN];
        tensors[i] = (coli__st_out){.name = name,
                                    .dtype = c->dtype,
                                    .rank = 3,
                                    .shape = {r->n_layer, p->n_row, c->n_number},
                                    .data = p->rows[i % N_COLUMN]};
    }
    if (status == COLI_OK) status = coli__st_write(r->tensors.data, tensors, n);
    coli__buf_finish(&names);
    coli__free(tensors);
    return status;
}

static coli_status write_list(const coli_recorder *r)
{
    json_t *list = json_array();
    bool ok = list != NULL;
    for (uint32_t i = 0; i < r->n_prompt && ok; i++) {
        const prompt *p = &r->prompts[i];
        ok = json_array_append_new(list, json_pack("{s:s, s:s*, s:I, s:I}", "name", p->name,
                                                   "topic", p->topic, "rows", (json_int_t)p->n_row,
                                                   "prompt", (json_int_t)p->n_prompt)) == 0;
    }
    char *text = ok ? json_dumps(list, JSON_INDENT(1)) : NULL;
    json_decref(list);
    if (!text)
        return coli__fail(COLI_E_INVALID, "%s: out of memory, or a name is not UTF-8",
                          r->json.data);
    const coli_status status = coli__file_replace(r->json.data, text, strlen(text));
    free(text); // jansson's own
    return status;
}

static coli_status check_free(const coli_recorder *r)
{
    const char *const paths[] = {r->json.data, r->tensors.data};
    for (int i = 0; i < 2; i++)
        if (coli__path_exists(paths[i]))
            return coli__fail(COLI_E_EXISTS, "%s: already exists", paths[i]);
    return COLI_OK;
}

/* A path that cannot be written is known before the work. */
static coli_status try_path(const coli_recorder *r)
{
    coli__writer *w;
    COLI_TRY(check_free(r));
    COLI_TRY(coli__writer_open(r->tensors.data, &w));
    coli__writer_abandon(w);
    coli__file_remove(r->tensors.data);
    return COLI_OK;
}

coli_status coli_recorder_write(const coli_recorder *r)
{
    if (!r) return coli__fail(COLI_E_INVALID, "coli_recorder_write: recorder is NULL");
    if (r->n_prompt == 0)
        return coli__fail(COLI_E_INVALID, "%s: no prompt was recorded", r->json.data);
    COLI_TRY(check_free(r));
    COLI_TRY(write_tensors(r));
    const coli_status status = write_list(r);
    if (status != COLI_OK) coli__file_remove(r->tensors.data); // ours, and of no use alone
    return status;
}

/* -- life -------------------------------------------------------------------------------------- */

static coli_status take_columns(coli_recorder *r)
{
    const coli__shape *shape = &r->s->m->shape;
    if (shape->n_expert > COLI__TRACE_MAX_EXPERT || shape->n_expert_used > COLI__TRACE_MAX_ID)
        return coli__fail(COLI_E_UNSUPPORTED,
                          "traces hold up to %d of %d experts for a row; the model has %u of %u",
                          COLI__TRACE_MAX_ID, COLI__TRACE_MAX_EXPERT, shape->n_expert_used,
                          shape->n_expert);
    const bool small = shape->n_expert <= UINT8_MAX + 1;
    const column ids = {.dtype = small ? COLI_DT_U8 : COLI_DT_I32, .number_bytes = small ? 1 : 4};
    column *c = r->columns;
    c[EXPERTS] = c[RANKED] = ids;
    c[LEVEL] = (column){.dtype = COLI_DT_U8, .number_bytes = 1};
    c[MASS] = (column){.dtype = COLI_DT_F32, .number_bytes = sizeof(float)};
    c[EXPERTS].n_number = c[LEVEL].n_number = shape->n_expert_used;
    c[RANKED].n_number = c[MASS].n_number = r->s->route.n_ranked;
    for (int i = 0; i < N_COLUMN; i++) {
        r->rows[i] = coli__alloc64_raw((size_t)r->n_layer * r->n_ctx * row_bytes(&c[i]));
        if (!r->rows[i]) return COLI_E_NOMEM;
    }
    return COLI_OK;
}

coli_status coli_recorder_create(coli_session *session, const char *path, coli_recorder **out)
{
    if (out) *out = NULL;
    if (!session || !path || !out)
        return coli__fail(COLI_E_INVALID, "coli_recorder_create: an argument is NULL");
    coli_recorder *r = coli__calloc(1, sizeof *r);
    if (!r) return COLI_E_NOMEM;
    r->s = session;
    r->n_layer = session->m->shape.n_moe_layer;
    r->n_ctx = session->n_ctx;
    coli_status status = coli__traces_paths(path, &r->tensors, &r->json);
    if (status == COLI_OK) status = try_path(r);
    if (status == COLI_OK) status = coli_session_on_route(session, on_route, r);
    if (status == COLI_OK) status = take_columns(r);
    if (status != COLI_OK) {
        coli_recorder_destroy(r);
        return status;
    }
    *out = r;
    return COLI_OK;
}

void coli_recorder_destroy(coli_recorder *r)
{
    if (!r) return;
    if (r->s->on_route == on_route && r->s->on_route_user == r)
        coli_session_on_route(r->s, NULL, NULL);
    for (uint32_t i = 0; i < r->n_prompt; i++) finish_prompt(&r->prompts[i]);
    coli__free(r->prompts);
    for (int i = 0; i < N_COLUMN; i++) coli__free_aligned(r->rows[i]);
    coli__buf_finish(&r->tensors);
    coli__buf_finish(&r->json);
    coli__free(r);
}
