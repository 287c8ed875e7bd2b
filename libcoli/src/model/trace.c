/* trace.c - see trace.h.
 *
 * Ids are copied, as int32, into memory of their own: the routing code takes them so, and nothing
 * then depends on a file that somebody may shorten.  A row with the same expert twice would count a
 * hit twice, so it is refused like every other thing that routing cannot give. */
#include "trace.h"

#include <string.h>

enum { MAX_DEPTH = 4 };

static const char suffix[] = ".safetensors";

/* -- one trace --------------------------------------------------------------------------------- */

static coli_status text_member(const char *what, const json_t *entry, const char *key,
                               const char *otherwise, char **out)
{
    const char *text;
    COLI_TRY(coli__json_string_or_null(what, entry, key, &text));
    if (!text) text = otherwise;
    if (!text) return coli__fail(COLI_E_FORMAT, "%s: %s is missing", what, key);
    *out = coli__strndup(text, strlen(text));
    return *out ? COLI_OK : COLI_E_NOMEM;
}

static coli_status find_tensor(const char *what, const coli__st *st, const coli__trace *t,
                               const coli__st_tensor **out)
{
    char name[COLI_ST_MAX_NAME + 16];
    if (strlen(t->name) > COLI_ST_MAX_NAME)
        return coli__fail(COLI_E_FORMAT, "%s: a name is longer than %d bytes", what,
                          COLI_ST_MAX_NAME);
    snprintf(name, sizeof name, "%s.experts", t->name);
    *out = coli__st_find(st, name);
    if (!*out) return coli__fail(COLI_E_FORMAT, "%s: no tensor %s", what, name);
    const coli__st_tensor *x = *out;
    if (x->rank != 3 || (x->dtype != COLI_DT_U8 && x->dtype != COLI_DT_I32))
        return coli__fail(COLI_E_FORMAT,
                          "%s: tensor %s: expected U8 or I32 of rank 3, found %s of rank %u",
                          x->file, x->name, x->dtype_name, x->rank);
    if (x->shape[0] == 0 || x->shape[0] > COLI__TRACE_MAX_LAYER || x->shape[1] != t->n_row ||
        x->shape[2] == 0 || x->shape[2] > COLI__TRACE_MAX_ID)
        return coli__fail(COLI_E_FORMAT,
                          "%s: tensor %s: expected 1 to %d layers, %u rows and 1 to %d experts, "
                          "found %llu, %llu and %llu",
                          x->file, x->name, COLI__TRACE_MAX_LAYER, t->n_row, COLI__TRACE_MAX_ID,
                          (unsigned long long)x->shape[0], (unsigned long long)x->shape[1],
                          (unsigned long long)x->shape[2]);
    return COLI_OK;
}

static int64_t id_at(const coli__st_tensor *x, uint64_t i)
{
    if (x->dtype == COLI_DT_U8) return x->data[i];
    int32_t id;
    memcpy(&id, x->data + i * sizeof id, sizeof id); // little-endian, as everything here runs
    return id;
}

/* Row `row` (n_id) of the tensor, counted over all layers, into ids; *highest grows. */
static coli_status take_row(const coli__st_tensor *x, uint64_t row, uint32_t n_id, int32_t *ids,
                            uint32_t *highest)
{
    for (uint32_t i = 0; i < n_id; i++) {
        const int64_t id = id_at(x, row * x->shape[2] + i);
        if (id < 0 || id >= COLI__TRACE_MAX_EXPERT)
            return coli__fail(
                COLI_E_FORMAT, "%s: tensor %s: row %llu: expected experts below %d, found %lld",
                x->file, x->name, (unsigned long long)row, COLI__TRACE_MAX_EXPERT, (long long)id);
        for (uint32_t k = 0; k < i; k++)
            if (ids[k] == (int32_t)id)
                return coli__fail(COLI_E_FORMAT, "%s: tensor %s: row %llu has expert %lld twice",
                                  x->file, x->name, (unsigned long long)row, (long long)id);
        ids[i] = (int32_t)id;
        if ((uint32_t)id > *highest) *highest = (uint32_t)id;
    }
    return COLI_OK;
}

static coli_status take_ids(const coli__st_tensor *x, coli__trace *t, uint32_t *highest)
{
    t->ids = coli__calloc((size_t)t->n_layer * t->n_row, t->n_id * sizeof *t->ids);
    if (!t->ids) return COLI_E_NOMEM;
    const uint64_t n_row = (uint64_t)t->n_layer * t->n_row; // layers are the outermost dimension
    for (uint64_t row = 0; row < n_row; row++)
        COLI_TRY(take_row(x, row, t->n_id, t->ids + row * t->n_id, highest));
    return COLI_OK;
}

static uint32_t at_most(uint32_t limit, uint64_t n)
{
    return limit && limit < n ? limit : (uint32_t)n;
}

static coli_status read_trace(const char *what, const json_t *entry, const coli__st *st,
                              const coli__trace_part *part, coli__trace *t, uint32_t *highest)
{
    if (!json_is_object(entry))
        return coli__fail(COLI_E_FORMAT, "%s: expected an object for each trace", what);
    COLI_TRY(text_member(what, entry, "name", NULL, &t->name));
    COLI_TRY(text_member(what, entry, "topic", "", &t->topic));
    COLI_TRY(coli__json_u32(what, entry, "rows", 2, COLI__TRACE_MAX_ROW, &t->n_row));
    COLI_TRY(coli__json_u32(what, entry, "prompt", 1, t->n_row - 1, &t->n_prompt));
    const coli__st_tensor *x;
    COLI_TRY(find_tensor(what, st, t, &x));
    t->n_layer = at_most(part->n_layer, x->shape[0]);
    t->n_id = at_most(part->n_expert_used, x->shape[2]);
    return take_ids(x, t, highest);
}

/* -- all of them ------------------------------------------------------------------------------- */

/* The last trace against those before it.  Names tell tensors apart, so with different ones no tensor
 * is copied twice, and memory is bounded by the file's size. */
static coli_status check_alike(const char *what, const coli__traces *all)
{
    const coli__trace *t = &all->traces[all->n_trace - 1];
    for (uint32_t i = 0; i + 1 < all->n_trace; i++)
        if (strcmp(all->traces[i].name, t->name) == 0)
            return coli__fail(COLI_E_FORMAT, "%s: two traces are called %s", what, t->name);
    if (t->n_layer == all->n_layer && t->n_id == all->n_expert_used) return COLI_OK;
    return coli__fail(
        COLI_E_FORMAT, "%s: %s has %u layers with %u experts of a row, %s has %u with %u", what,
        all->traces[0].name, all->n_layer, all->n_expert_used, t->name, t->n_layer, t->n_id);
}

static coli_status set_experts(const char *what, uint32_t wanted, uint32_t highest, uint32_t *out)
{
    *out = wanted ? wanted : highest + 1;
    if (highest < *out) return COLI_OK;
    return coli__fail(COLI_E_FORMAT, "%s: expected experts below %u, found %u", what, wanted,
                      highest);
}

coli_status coli__traces_read(const char *what, const json_t *list, const coli__st *st,
                              const coli__trace_part *part, coli__traces *out)
{
    *out = (coli__traces){0};
    const size_t n = json_is_array(list) ? json_array_size(list) : 0;
    if (n == 0 || n > COLI__TRACE_MAX)
        return coli__fail(COLI_E_FORMAT, "%s: expected a list of 1 to %d traces", what,
                          COLI__TRACE_MAX);
    out->traces = coli__calloc(n, sizeof *out->traces);
    if (!out->traces) return COLI_E_NOMEM;
    uint32_t highest = 0;
    for (size_t i = 0; i < n; i++) {
        coli__trace *t = &out->traces[i];
        out->n_trace++; // before it is whole, so that finish finds what it has
        COLI_TRY(read_trace(what, json_array_get(list, i), st, part, t, &highest));
        if (i == 0) {
            out->n_layer = t->n_layer;
            out->n_expert_used = t->n_id;
        }
        COLI_TRY(check_alike(what, out));
    }
    return set_experts(what, part->n_expert, highest, &out->n_expert);
}

coli_status coli__traces_paths(const char *path, coli__buf *tensors, coli__buf *json)
{
    const size_t n = strlen(path), n_suffix = strlen(suffix);
    const bool whole = n > n_suffix && strcmp(path + n - n_suffix, suffix) == 0;
    const size_t n_stem = whole ? n - n_suffix : n;
    COLI_TRY(coli__buf_append(tensors, path, n_stem));
    COLI_TRY(coli__buf_str(tensors, suffix));
    COLI_TRY(coli__buf_append(json, path, n_stem));
    return coli__buf_str(json, ".json");
}

coli_status coli__traces_open(const char *path, const coli__trace_part *part, coli__traces *out)
{
    *out = (coli__traces){0};
    coli__buf tensors = {0}, json = {0};
    coli__st *st = NULL;
    json_t *list = NULL;
    coli_status status;
    COLI_TRY_OUT(coli__traces_paths(path, &tensors, &json));
    COLI_TRY_OUT(coli__json_read(json.data, COLI_CONFIG_MAX_BYTES, MAX_DEPTH, &list));
    COLI_TRY_OUT(coli__st_open(tensors.data, &st));
    status = coli__traces_read(json.data, list, st, part, out);
out:
    json_decref(list);
    coli__st_close(st);
    coli__buf_finish(&tensors);
    coli__buf_finish(&json);
    return status;
}

void coli__traces_finish(coli__traces *t)
{
    if (!t) return;
    for (uint32_t i = 0; i < t->n_trace; i++) {
        coli__free(t->traces[i].name);
        coli__free(t->traces[i].topic);
        coli__free(t->traces[i].ids);
    }
    coli__free(t->traces);
    *t = (coli__traces){0};
}
