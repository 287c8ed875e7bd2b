/* container.c - open, look up and verify a container directory.
 *
 * Opening costs a few pages: the head of model.coli is checked in full (container_table.c), the
 * weights are mapped and not touched.  Of the files beside it those that decide what a token means
 * are compared with the checksums in the table: config.json, tokenizer.json, tokenizer_config.json,
 * chat.json.  config.json and chat.json are read once: what was checked is what is parsed.
 *
 *     generation_config.json   stop tokens, temperature: may be edited, not lost
 *     tokenizer*.json          absent from the table: must be absent from the directory, too
 *
 * Verifying reads everything. */
#include "container_format.h"

#include <stdio.h>
#include <string.h>

#include "../base/threads.h"
#include "convert_job.h"
#include "recipe.h"
#include "source_format.h"

enum { CHAT_MAX_BYTES = 1 << 16 };

struct coli__container {
    char *dir, *path; // path: of model.coli
    coli__map map;
    coli__ct_table table; // points into map
    json_t *config;
    char template[16];
    uint8_t *zeros; // NULL unless it is imagined: what all pointers lead to
};

static const char *const templates[] = {"3.6", "3.5"};

/* -- the files beside model.coli --------------------------------------------------------------- */

static coli_status compare_digest(const char *path, const coli__digest *expected,
                                  const coli__digest *found)
{
    if (strcmp(expected->hex, found->hex) == 0) return COLI_OK;
    return coli__fail(
        COLI_E_FORMAT,
        "%s: is not the file the weights were made with: expected checksum %s, found %s", path,
        expected->hex, found->hex);
}

static coli_status digest_of_file(const char *path, coli__digest *out)
{
    coli__map map;
    COLI_TRY(coli__map_open(path, &map));
    *out = coli__digest_of(map.data, map.n_bytes);
    coli__map_close(&map);
    return COLI_OK;
}

/* A file that the table names must be there; one it does not name must not.  *same says whether its
 * content is the one in the table. */
static coli_status look_at_file(const coli__container *c, int file, const char *path, bool *same)
{
    const coli__digest *expected = &c->table.files[file];
    *same = true;
    if (!expected->hex[0]) {
        if (!coli__path_exists(path)) return COLI_OK;
        return coli__fail(COLI_E_FORMAT, "%s: was not there when the weights were made", path);
    }
    coli__digest found;
    COLI_TRY(digest_of_file(path, &found));
    *same = strcmp(expected->hex, found.hex) == 0;
    if (*same || file == CT_GENERATION) return COLI_OK;
    return compare_digest(path, expected, &found);
}

static coli_status check_file(const coli__container *c, int file, bool *same)
{
    char *path;
    COLI_TRY(coli__path_join(c->dir, coli__ct_file_names[file], &path));
    const coli_status status = look_at_file(c, file, path, same);
    coli__free(path);
    return status;
}

/* Read a JSON file, compare its bytes with the table, parse the same bytes. */
static coli_status read_checked(const coli__container *c, int file, uint64_t max_bytes,
                                json_t **out)
{
    *out = NULL;
    char *path;
    COLI_TRY(coli__path_join(c->dir, coli__ct_file_names[file], &path));
    coli__buf text = {0};
    coli_status status = coli__file_read(path, max_bytes, &text);
    if (status == COLI_OK) {
        const coli__digest found = coli__digest_of(text.data, text.n_bytes);
        status = compare_digest(path, &c->table.files[file], &found);
    }
    if (status == COLI_OK)
        status = coli__json_parse_small(path, text.data ? text.data : "", text.n_bytes,
                                        COLI_CONFIG_MAX_DEPTH, out);
    coli__buf_finish(&text);
    coli__free(path);
    return status;
}

/* Which template chat.json names; takes `chat`. */
static coli_status take_template(coli__container *c, json_t *chat)
{
    const char *name = json_string_value(json_object_get(chat, "template"));
    for (size_t i = 0; name && i < sizeof templates / sizeof templates[0]; i++)
        if (strcmp(name, templates[i]) == 0) memcpy(c->template, templates[i], strlen(name) + 1);
    const coli_status status =
        c->template[0]
            ? COLI_OK
            : coli__fail(COLI_E_UNSUPPORTED,
                         "%s/chat.json: template: expected \"3.6\" or \"3.5\", found %.60s", c->dir,
                         name ? name : "none");
    json_decref(chat);
    return status;
}

static coli_status read_template(coli__container *c)
{
    json_t *chat;
    COLI_TRY(read_checked(c, CT_CHAT, CHAT_MAX_BYTES, &chat));
    return take_template(c, chat);
}

/* -- open -------------------------------------------------------------------------------------- */

static coli_status open_into(coli__container *c, const char *dir)
{
    c->dir = coli__strndup(dir, strlen(dir));
    if (!c->dir) return COLI_E_NOMEM;
    COLI_TRY(coli__path_join(dir, "model.coli", &c->path));
    COLI_TRY(coli__map_open_guarded(c->path, &c->map));
    COLI_TRY(coli__ct_parse(c->path, c->map.data, c->map.n_bytes, &c->table));
    COLI_TRY(read_checked(c, CT_CONFIG, COLI_CONFIG_MAX_BYTES, &c->config));
    COLI_TRY(read_template(c));
    const int files[] = {CT_TOKENIZER, CT_TOKENIZER_CONFIG, CT_GENERATION};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        bool same;
        if (files[i] == CT_GENERATION && !c->table.files[CT_GENERATION].hex[0]) continue;
        COLI_TRY(check_file(c, files[i], &same));
    }
    return COLI_OK;
}

/* The magic of model.coli is written last, so without the end of a conversion it is not there.  A journal
 * alone says less: a crash just behind the end leaves one in a whole container. */
static bool has_no_magic(const coli__container *c)
{
    return c->map.n_bytes < 8 || c->map.data[7] == 0; // its last byte is none
}

static coli_status fail_unfinished(const char *dir)
{
    return coli__fail(COLI_E_FORMAT,
                      "%s: is a conversion that was not finished; the same conversion goes on with "
                      "it",
                      dir);
}

coli_status coli__container_open(const char *dir, coli__container **out)
{
    *out = NULL;
    coli__container *c = coli__calloc(1, sizeof *c);
    if (!c) return COLI_E_NOMEM;
    coli_status status = open_into(c, dir);
    const coli_status whole = coli__container_check_whole(c); // before any other complaint
    if (whole != COLI_OK) status = whole;
    if (status == COLI_OK) {
        *out = c;
        return COLI_OK;
    }
    const bool unfinished =
        (status == COLI_E_NOTFOUND || status == COLI_E_FORMAT) && has_no_magic(c);
    coli__container_close(c);
    return unfinished && coli__job_is_in(dir) ? fail_unfinished(dir) : status;
}

void coli__container_close(coli__container *c)
{
    if (!c) return;
    json_decref(c->config);
    coli__ct_table_finish(&c->table);
    coli__map_close(&c->map);
    coli__free_aligned(c->zeros);
    coli__free(c->path);
    coli__free(c->dir);
    coli__free(c);
}

coli_status coli__container_check_whole(const coli__container *c)
{
    if (coli__map_is_whole(&c->map)) return COLI_OK;
    return coli__fail(COLI_E_IO,
                      "%s: became shorter, or could not be read, while it was in use: it "
                      "has to be opened again",
                      c->path);
}

/* -- imagine ----------------------------------------------------------------------------------- */

/* As the recipe says; false when it says nothing. */
static bool recipe_format(const coli__formats *f, const coli__recipe_item *item, coli__wfmt *out)
{
    coli__recipe_choice choice;
    if (!f->recipe || !coli__recipe_find(f->recipe, item, &choice)) return false;
    *out = choice.is_source ? (coli__wfmt){.type = COLI_W_BF16} : choice.fmt;
    return true;
}

static coli__wfmt imagined_format(const coli__model_spec *spec, const coli__tensor_spec *s,
                                  const coli__formats *f)
{
    if (f->source) return coli__source_format(f, spec, s, &f->source->tensors[s - spec->tensors]);
    char kind[128];
    const coli__recipe_item item = coli__recipe_tensor(spec, s, kind);
    coli__wfmt fmt;
    if (s->role == COLI_ROLE_VECTOR) return (coli__wfmt){.type = COLI_W_F32};
    if (recipe_format(f, &item, &fmt)) return fmt;
    return s->role == COLI_ROLE_PRECISE ? (coli__wfmt){.type = COLI_W_BF16} : f->trunk;
}

/* Of layer i; part: 0 gate, 1 up, 2 down. */
static coli__wfmt imagined_expert_format(const coli__model_spec *spec, uint32_t i, uint32_t part,
                                         const coli__formats *f)
{
    const coli__expert_spec *s = &spec->experts[i];
    if (f->source) return coli__source_expert_format(f, s, f->source->experts[i], part);
    char kind[128];
    const coli__recipe_item item = coli__recipe_expert(s, part, kind);
    coli__wfmt fmt;
    return recipe_format(f, &item, &fmt) ? fmt : f->experts;
}

static coli_status imagine_tensors(coli__container *c, const coli__model_spec *spec,
                                   const coli__formats *f)
{
    uint64_t longest = 64;
    c->table.entries = coli__calloc(spec->n_tensor, sizeof *c->table.entries);
    if (!c->table.entries) return COLI_E_NOMEM;
    c->table.n_entry = spec->n_tensor;
    for (uint32_t i = 0; i < spec->n_tensor; i++) {
        const coli__tensor_spec *s = &spec->tensors[i];
        coli__ct_tensor *t = &c->table.entries[i].tensor;
        snprintf(t->name, sizeof t->name, "%s", s->name);
        t->mat = (coli__mat){NULL, s->n_out, s->n_in, imagined_format(spec, s, f), 0};
        if (!coli__ct_size_tensor(t))
            return coli__fail(COLI_E_FORMAT, "tensor %s: is too large", s->name);
        if (s->role == COLI_ROLE_VECTOR && t->n_bytes > longest) longest = t->n_bytes;
    }
    c->zeros = coli__alloc64((size_t)longest);
    if (!c->zeros) return COLI_E_NOMEM;
    for (uint32_t i = 0; i < spec->n_tensor; i++) c->table.entries[i].tensor.mat.data = c->zeros;
    return coli__ct_table_sort(&c->table);
}

static coli_status imagine_experts(coli__container *c, const coli__model_spec *spec,
                                   const coli__formats *f)
{
    c->table.layers = coli__calloc(spec->n_expert_layer, sizeof *c->table.layers);
    if (!c->table.layers) return COLI_E_NOMEM;
    c->table.n_layer = spec->n_expert_layer;
    for (uint32_t i = 0; i < spec->n_expert_layer; i++) {
        const coli__expert_spec *s = &spec->experts[i];
        coli__ct_layer *l = &c->table.layers[i];
        l->scale_exp = coli__calloc(s->n_expert, 3 * sizeof *l->scale_exp);
        if (!l->scale_exp) return COLI_E_NOMEM;
        coli__ct_experts *x = &l->experts;
        *x = (coli__ct_experts){.layer = s->layer,
                                .n_expert = s->n_expert,
                                .d_model = s->d_model,
                                .d_ff = s->d_ff,
                                .data = c->zeros,
                                .scale_exp = l->scale_exp};
        x->gate.fmt = imagined_expert_format(spec, i, 0, f);
        x->up.fmt = imagined_expert_format(spec, i, 1, f);
        x->down.fmt = imagined_expert_format(spec, i, 2, f);
        x->gate.data = x->up.data = x->down.data = c->zeros;
        if (!coli__ct_size_experts(x))
            return coli__fail(COLI_E_FORMAT, "experts of layer %u: are too large", s->layer);
    }
    return COLI_OK;
}

static coli_status imagine_into(coli__container *c, const char *dir, const char *engine)
{
    c->dir = coli__strndup(dir, strlen(dir));
    if (!c->dir) return COLI_E_NOMEM;
    snprintf(c->table.engine, sizeof c->table.engine, "%s", engine);
    snprintf(c->template, sizeof c->template, "%s", templates[0]);
    return coli__path_join(dir, "model.coli", &c->path);
}

coli_status coli__container_imagine(const char *dir, const char *engine, json_t *config,
                                    const coli__model_spec *spec, const coli__formats *formats,
                                    coli__container **out)
{
    *out = NULL;
    if (formats->recipe) COLI_TRY(coli__recipe_check(formats->recipe, spec));
    coli__container *c = coli__calloc(1, sizeof *c);
    if (!c) return COLI_E_NOMEM;
    c->config = json_incref(config);
    coli_status status = imagine_into(c, dir, engine);
    if (status == COLI_OK) status = imagine_tensors(c, spec, formats);
    if (status == COLI_OK) status = imagine_experts(c, spec, formats);
    if (status == COLI_OK)
        *out = c;
    else
        coli__container_close(c);
    return status;
}

bool coli__container_is_imagined(const coli__container *c)
{
    return c->zeros != NULL;
}

/* -- look up ----------------------------------------------------------------------------------- */

const char *coli__container_dir(const coli__container *c)
{
    return c->dir;
}
const char *coli__container_engine(const coli__container *c)
{
    return c->table.engine;
}
const char *coli__container_identity(const coli__container *c)
{
    return c->table.identity.hex;
}
const json_t *coli__container_config(const coli__container *c)
{
    return c->config;
}
const char *coli__container_template(const coli__container *c)
{
    return c->template;
}

uint64_t coli__container_weight_bytes(const coli__container *c)
{
    uint64_t sum = 0; // at most the file's bytes
    for (uint32_t i = 0; i < c->table.n_entry; i++) sum += c->table.entries[i].tensor.n_bytes;
    for (uint32_t i = 0; i < c->table.n_layer; i++)
        sum += c->table.layers[i].experts.block_bytes * c->table.layers[i].experts.n_expert;
    return sum;
}

coli_status coli__container_find(const coli__container *c, const char *name, uint32_t n_out,
                                 uint32_t n_in, const coli__ct_tensor **out)
{
    *out = NULL;
    const coli__ct_entry *e = coli__ct_table_find(&c->table, name);
    if (!e) return coli__fail(COLI_E_FORMAT, "%s: tensor %s: is missing", c->path, name);
    const coli__mat *m = &e->tensor.mat;
    if (m->n_out != n_out || m->n_in != n_in)
        return coli__fail(COLI_E_FORMAT, "%s: tensor %s: expected %u x %u, found %u x %u", c->path,
                          name, n_out, n_in, m->n_out, m->n_in);
    *out = &e->tensor;
    return COLI_OK;
}

uint32_t coli__container_n_tensor(const coli__container *c)
{
    return c->table.n_entry;
}

const coli__ct_tensor *coli__container_tensor(const coli__container *c, uint32_t i)
{
    return &c->table.entries[i].tensor;
}

uint32_t coli__container_n_expert_layer(const coli__container *c)
{
    return c->table.n_layer;
}

const coli__ct_experts *coli__container_experts(const coli__container *c, uint32_t i)
{
    return &c->table.layers[i].experts;
}

uint64_t coli__container_expert_offset(const coli__container *c, uint32_t i, uint32_t e)
{
    const coli__ct_layer *l = &c->table.layers[i];
    return l->offset + e * l->experts.block_bytes;
}

const char *coli__container_path(const coli__container *c)
{
    return c->path;
}

coli__file_id coli__container_file(const coli__container *c)
{
    return c->map.id;
}

void coli__ct_expert_at(const coli__ct_experts *layer, uint32_t e, const uint8_t *block,
                        coli__mat *gate, coli__mat *up, coli__mat *down)
{
    coli__mat *const out[3] = {gate, up, down};
    const coli__mat *const first[3] = {&layer->gate, &layer->up, &layer->down};
    const uint64_t offset[3] = {0, layer->up_offset, layer->down_offset};
    for (int i = 0; i < 3; i++) {
        *out[i] = *first[i];
        out[i]->data = block + offset[i];
        out[i]->scale_exp = layer->scale_exp[3 * e + (uint32_t)i];
    }
}

void coli__ct_expert(const coli__ct_experts *layer, uint32_t e, coli__mat *gate, coli__mat *up,
                     coli__mat *down)
{
    coli__ct_expert_at(layer, e, layer->data + e * layer->block_bytes, gate, up, down);
}

static coli_status check_experts(const coli__container *c, const coli__model_spec *spec)
{
    if (c->table.n_layer != spec->n_expert_layer)
        return coli__fail(COLI_E_FORMAT, "%s: expected experts in %u layers, found them in %u",
                          c->path, spec->n_expert_layer, c->table.n_layer);
    for (uint32_t i = 0; i < spec->n_expert_layer; i++) {
        const coli__expert_spec *s = &spec->experts[i];
        const coli__ct_experts *x = &c->table.layers[i].experts;
        if (x->layer != s->layer || x->n_expert != s->n_expert || x->d_model != s->d_model ||
            x->d_ff != s->d_ff)
            return coli__fail(
                COLI_E_FORMAT,
                "%s: experts of layer %u: expected %u of %u x %u, found layer %u with %u "
                "of %u x %u",
                c->path, s->layer, s->n_expert, s->d_ff, s->d_model, x->layer, x->n_expert, x->d_ff,
                x->d_model);
    }
    return COLI_OK;
}

coli_status coli__container_check_spec(const coli__container *c, const coli__model_spec *spec)
{
    for (uint32_t i = 0; i < spec->n_tensor; i++) {
        const coli__tensor_spec *s = &spec->tensors[i];
        const coli__ct_tensor *found;
        COLI_TRY(coli__container_find(c, s->name, s->n_out, s->n_in, &found));
    }
    // names differ from each other, so a larger number means some that are not asked for
    if (c->table.n_entry != spec->n_tensor)
        return coli__fail(COLI_E_FORMAT, "%s: expected %u tensors, found %u", c->path,
                          spec->n_tensor, c->table.n_entry);
    return check_experts(c, spec);
}

/* -- verify ------------------------------------------------------------------------------------ */

typedef struct verify {
    const coli__container *c;
    coli__progress_fn progress;
    void *user;
    uint64_t cursor; // bytes of the file that are checked
} verify;

static coli_status report(const verify *v, const char *what)
{
    if (!v->progress || v->progress(v->user, what, v->cursor, v->c->map.n_bytes)) return COLI_OK;
    return coli__fail(COLI_E_CANCELLED, "%s: verifying was stopped", v->c->path);
}

/* The zeros between the last piece and the next. */
static coli_status verify_gap(verify *v, uint64_t offset)
{
    for (; v->cursor < offset; v->cursor++)
        if (v->c->map.data[v->cursor] != 0)
            return coli__fail(COLI_E_FORMAT,
                              "%s: expected zero between tensors, found 0x%02x at %llu", v->c->path,
                              v->c->map.data[v->cursor], (unsigned long long)v->cursor);
    return COLI_OK;
}

static coli_status verify_span(verify *v, const char *what, uint64_t offset, uint64_t n_bytes,
                               const coli__digest *expected)
{
    COLI_TRY(verify_gap(v, offset));
    const coli__digest found = coli__digest_of(v->c->map.data + offset, n_bytes);
    if (strcmp(found.hex, expected->hex) != 0)
        return coli__fail(COLI_E_FORMAT, "%s: %s: expected checksum %s, found %s", v->c->path, what,
                          expected->hex, found.hex);
    v->cursor = offset + n_bytes;
    return COLI_OK;
}

static coli_status verify_mat(const verify *v, const char *what, const coli__mat *m)
{
    const coli__fp fp = coli__fp_enter(); // the callback keeps its own
    const coli_status status = coli__mat_check(m);
    coli__fp_leave(fp);
    return status == COLI_OK ? status : coli__fail_in(status, "%s: %s", v->c->path, what);
}

static coli_status verify_entry(verify *v, const coli__ct_entry *e)
{
    COLI_TRY(report(v, e->tensor.name));
    COLI_TRY(verify_span(v, e->tensor.name, e->offset, e->tensor.n_bytes, &e->digest));
    return verify_mat(v, e->tensor.name, &e->tensor.mat);
}

static coli_status verify_layer(verify *v, const coli__ct_layer *l)
{
    static const char *const names[3] = {"gate", "up", "down"};
    const coli__ct_experts *x = &l->experts;
    char what[64];
    for (uint32_t e = 0; e < x->n_expert; e++) {
        snprintf(what, sizeof what, "layer %u, expert %u", x->layer, e);
        COLI_TRY(report(v, what));
        COLI_TRY(
            verify_span(v, what, l->offset + e * x->block_bytes, x->block_bytes, &l->digests[e]));
        coli__mat m[3];
        coli__ct_expert(x, e, &m[0], &m[1], &m[2]);
        for (int i = 0; i < 3; i++) {
            snprintf(what, sizeof what, "layer %u, expert %u, %s", x->layer, e, names[i]);
            COLI_TRY(verify_mat(v, what, &m[i]));
        }
    }
    return COLI_OK;
}

/* Whether config.json and the table agree on what the model is. */
static coli_status verify_spec(const coli__container *c, coli__describe_fn describe)
{
    const char *engine;
    coli__model_spec spec;
    COLI_TRY(describe(c->config, &engine, &spec));
    const coli_status status =
        strcmp(engine, c->table.engine) == 0
            ? coli__container_check_spec(c, &spec)
            : coli__fail(COLI_E_FORMAT, "%s: engine: expected %s, as config.json says, found %s",
                         c->path, engine, c->table.engine);
    coli__model_spec_finish(&spec);
    return status;
}

static coli_status verify_files(const verify *v)
{
    for (int i = 0; i < CT_N_FILE; i++) {
        bool same = true;
        if (i != CT_GENERATION || v->c->table.files[i].hex[0]) COLI_TRY(check_file(v->c, i, &same));
        COLI_TRY(report(v, same ? coli__ct_file_names[i]
                                : "generation_config.json (edited since the weights were made)"));
    }
    return COLI_OK;
}

static coli_status verify_model(verify *v, coli__describe_fn describe)
{
    const coli__ct_table *t = &v->c->table;
    COLI_TRY(verify_spec(v->c, describe));
    for (uint32_t i = 0; i < t->n_entry; i++) COLI_TRY(verify_entry(v, &t->entries[i]));
    for (uint32_t i = 0; i < t->n_layer; i++) COLI_TRY(verify_layer(v, &t->layers[i]));
    return report(v, "done");
}

static coli_status verify_all(const coli__container *c, coli__describe_fn describe,
                              coli__progress_fn progress, void *user)
{
    verify v = {c, progress, user, c->table.data_offset};
    COLI_TRY(verify_files(&v));
    return verify_model(&v, describe);
}

coli_status coli__container_verify(const coli__container *c, coli__describe_fn describe,
                                   coli__progress_fn progress, void *user)
{
    const coli_status status = verify_all(c, describe, progress, user);
    const coli_status whole = coli__container_check_whole(c); // else what was found means nothing
    return whole == COLI_OK ? status : whole;
}

/* -- verify what is in memory ------------------------------------------------------------------ */

static coli_status parse_file(const coli__container *c, int file, const char *text,
                              uint64_t n_bytes, uint64_t max_bytes, json_t **out)
{
    char *path;
    COLI_TRY(coli__path_join(c->dir, coli__ct_file_names[file], &path));
    const coli_status status =
        n_bytes > max_bytes
            ? coli__fail(COLI_E_FORMAT, "%s: expected at most %llu bytes, found %llu", path,
                         (unsigned long long)max_bytes, (unsigned long long)n_bytes)
            : coli__json_parse_small(path, text, (size_t)n_bytes, COLI_CONFIG_MAX_DEPTH, out);
    coli__free(path);
    return status;
}

static coli_status open_bytes(coli__container *c, const coli__container_bytes *b)
{
    json_t *chat;
    c->dir = coli__strndup(b->name, strlen(b->name));
    if (!c->dir) return COLI_E_NOMEM;
    COLI_TRY(coli__path_join(b->name, "model.coli", &c->path));
    COLI_TRY(coli__ct_parse(c->path, b->model, b->n_model, &c->table));
    COLI_TRY(parse_file(c, CT_CONFIG, b->config, b->n_config, COLI_CONFIG_MAX_BYTES, &c->config));
    COLI_TRY(parse_file(c, CT_CHAT, b->chat, b->n_chat, CHAT_MAX_BYTES, &chat));
    return take_template(c, chat);
}

coli_status coli__container_verify_bytes(const coli__container_bytes *bytes,
                                         coli__describe_fn describe, coli__progress_fn progress,
                                         void *user)
{
    coli__container *c = coli__calloc(1, sizeof *c);
    if (!c) return COLI_E_NOMEM;
    c->map = (coli__map){.data = bytes->model, .n_bytes = bytes->n_model}; // borrowed
    coli_status status = open_bytes(c, bytes);
    if (status == COLI_OK) {
        verify v = {c, progress, user, c->table.data_offset};
        status = verify_model(&v, describe);
    }
    c->map = (coli__map){0};
    coli__container_close(c);
    return status;
}
