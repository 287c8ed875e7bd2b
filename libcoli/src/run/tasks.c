/* tasks.c - see tasks.h.
 *
 * Where an ending begins.  A tokenizer may join the last characters of the context with the first of an
 * ending, so the context's own tokens need not be a prefix of the whole's.  Each ending is encoded
 * together with the context, and scored from the first token on that is not in all of them:
 *
 *     context       A man is on a roof. he        tokens  A man is on a roof . he
 *     with ending 0  ... he is using wrap                 A man is on a roof . he | is using wrap
 *     with ending 1  ... he starts                        A man is on a roof . he | starts
 *                                                         shared, fed once      | scored
 *
 * Where neither side of the joint is white space, a blank is put between, as HellaSwag's lines want it. */
#include "tasks.h"

#include <string.h>
#include <xxhash.h>

#include "../base/file.h"
#include "../model/chat_template.h"
#include "api.h"
#include "model.h"

enum {
    MAX_FILE_BYTES = 1 << 30,
    MAX_LINE_BYTES = 16 << 20,
    MAX_DEPTH = 16,
    MAX_FILE = 4096,
};

/* ---- pools ---------------------------------------------------------------------------------- */

uint32_t coli__tasks_n(const coli_tasks *t)
{
    return (uint32_t)(t->items.n_bytes / sizeof(coli__task));
}
const coli__task *coli__tasks_at(const coli_tasks *t, uint32_t i)
{
    return (const coli__task *)(const void *)t->items.data + i;
}
const coli__ending *coli__tasks_ending(const coli_tasks *t, const coli__task *item, uint32_t i)
{
    return (const coli__ending *)(const void *)t->endings.data + item->ending + i;
}
const int32_t *coli__tasks_ids(const coli_tasks *t, size_t at)
{
    return (const int32_t *)(const void *)t->ids.data + at;
}
const char *coli__tasks_string(const coli_tasks *t, size_t at)
{
    return t->strings.data + at;
}

static coli_status add_ids(coli_tasks *t, const int32_t *ids, size_t n_id, size_t *at)
{
    *at = t->ids.n_bytes / sizeof *ids;
    for (size_t i = 0; i < n_id; i++)
        if ((uint32_t)ids[i] >= t->n_vocab) t->n_vocab = (uint32_t)ids[i] + 1;
    return coli__buf_append(&t->ids, ids, n_id * sizeof *ids);
}

static coli_status add_string(coli_tasks *t, const char *text, size_t n_bytes, size_t *at)
{
    *at = t->strings.n_bytes;
    COLI_TRY(coli__buf_append(&t->strings, text, n_bytes));
    return coli__buf_append(&t->strings, "", 1);
}

static coli_status add_file(coli_tasks *t, const char *name)
{
    char **files = coli__realloc(t->files, t->n_file + (size_t)1, sizeof *files);
    if (!files) return COLI_E_NOMEM;
    t->files = files;
    files[t->n_file] = coli__strndup(name, strlen(name));
    return files[t->n_file++] ? COLI_OK : COLI_E_NOMEM;
}

/* The item is whole: count it. */
static coli_status add_item(coli_tasks *t, const coli__task *item, uint32_t n_longest)
{
    if (n_longest > t->n_ctx_max)
        return coli__fail(COLI_E_FORMAT, "%u tokens; the model was made for at most %u", n_longest,
                          t->n_ctx_max);
    if (coli__tasks_n(t) == COLI__MAX_ITEM)
        return coli__fail(COLI_E_FORMAT, "expected at most %d items", COLI__MAX_ITEM);
    if (n_longest > t->n_ctx) t->n_ctx = n_longest;
    t->n_kind[item->kind]++;
    t->n_token += item->n_id;
    for (uint32_t e = 0; e < item->n_ending; e++)
        t->n_token += coli__tasks_ending(t, item, e)->n_id;
    return coli__buf_append(&t->items, item, sizeof *item);
}

/* ---- fields --------------------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

void coli__strip(const char **text, size_t *n_bytes)
{
    while (*n_bytes && is_space(**text)) {
        ++*text;
        --*n_bytes;
    }
    while (*n_bytes && is_space((*text)[*n_bytes - 1])) --*n_bytes;
}

static coli_status encode(const coli_tasks *t, const char *text, size_t n_bytes,
                          const coli__span *plain, size_t n_plain, int32_t **ids, uint32_t *n_id)
{
    size_t n;
    *n_id = 0;
    COLI_TRY(coli__tok_encode(t->tok, text, n_bytes, plain, n_plain, ids, &n));
    if (n > UINT32_MAX / 2) {
        coli__free(*ids);
        *ids = NULL;
        return coli__fail(COLI_E_FORMAT, "%zu tokens", n);
    }
    *n_id = (uint32_t)n;
    return COLI_OK;
}

static coli_status take_group(coli_tasks *t, const json_t *object, coli__task *item)
{
    const json_t *name = json_object_get(object, "topic");
    if (!name) name = json_object_get(object, "task");
    item->group = 0;
    if (!name) return COLI_OK;
    if (!json_is_string(name)) return coli__fail(COLI_E_FORMAT, "topic, task: expected a string");
    return add_string(t, json_string_value(name), json_string_length(name), &item->group);
}

/* A whole number, or its digits as a string, as some copies of HellaSwag have it. */
static coli_status take_label(const json_t *label, uint32_t n_ending, uint32_t *out)
{
    json_int_t value = json_is_integer(label) ? json_integer_value(label) : -1;
    const char *text = json_string_value(label);
    if (text && text[0] >= '0' && text[0] <= '9' && json_string_length(label) <= 2) {
        value = text[0] - '0';
        if (text[1]) value = text[1] >= '0' && text[1] <= '9' ? value * 10 + text[1] - '0' : -1;
    }
    if (value < 0 || value >= (json_int_t)n_ending)
        return coli__fail(COLI_E_FORMAT, "label: expected a whole number from 0 to %u",
                          n_ending - 1);
    *out = (uint32_t)value;
    return COLI_OK;
}

/* ---- texts ---------------------------------------------------------------------------------- */

static coli_status add_text(coli_tasks *t, coli__task *item, const int32_t *ids, uint32_t n_id)
{
    if (n_id < 2)
        return coli__fail(COLI_E_FORMAT, "text: expected at least two tokens, found %u", n_id);
    item->kind = COLI_TASK_TEXT;
    item->n_id = n_id;
    COLI_TRY(add_ids(t, ids, n_id, &item->at));
    return add_item(t, item, n_id);
}

static coli_status take_text(coli_tasks *t, const json_t *object, coli__task *item)
{
    const json_t *text = json_object_get(object, "text");
    if (!json_is_string(text)) return coli__fail(COLI_E_FORMAT, "text: expected a string");
    int32_t *ids;
    uint32_t n_id;
    COLI_TRY(encode(t, json_string_value(text), json_string_length(text), NULL, 0, &ids, &n_id));
    const coli_status status = add_text(t, item, ids, n_id);
    coli__free(ids);
    return status;
}

/* ---- choices -------------------------------------------------------------------------------- */

static uint32_t n_common(const int32_t *a, uint32_t n_a, const int32_t *b, uint32_t n_b)
{
    uint32_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n]) n++;
    return n;
}

typedef struct whole { // context and ending
    int32_t *ids;
    uint32_t n_id, n_bytes; // n_bytes: of the ending
} whole;

static coli_status join(const coli_tasks *t, const json_t *ctx, const json_t *ending, whole *out)
{
    const char *a = json_string_value(ctx), *b = json_string_value(ending);
    const size_t n_a = json_string_length(ctx), n_b = json_string_length(ending);
    const bool blank = n_a > 0 && !is_space(a[n_a - 1]) && !is_space(b[0]);
    coli__buf text = {0};
    coli_status status = coli__buf_append(&text, a, n_a);
    if (status == COLI_OK && blank) status = coli__buf_append(&text, " ", 1);
    if (status == COLI_OK) status = coli__buf_append(&text, b, n_b);
    if (status == COLI_OK)
        status = encode(t, text.data, text.n_bytes, NULL, 0, &out->ids, &out->n_id);
    out->n_bytes = (uint32_t)n_b;
    coli__buf_finish(&text);
    return status;
}

static coli_status add_choice(coli_tasks *t, coli__task *item, const whole *all, uint32_t n_shared)
{
    if (n_shared == 0)
        return coli__fail(COLI_E_FORMAT, "ctx: expected a token that the endings stand behind");
    item->n_id = n_shared;
    item->ending = t->endings.n_bytes / sizeof(coli__ending);
    COLI_TRY(add_ids(t, all[0].ids, n_shared, &item->at));
    uint32_t longest = 0;
    for (uint32_t e = 0; e < item->n_ending; e++) {
        const whole *w = &all[e];
        if (w->n_id == n_shared)
            return coli__fail(COLI_E_FORMAT, "endings: ending %u has no token of its own", e);
        coli__ending ending = {.n_id = w->n_id - n_shared, .n_bytes = w->n_bytes};
        COLI_TRY(add_ids(t, w->ids + n_shared, ending.n_id, &ending.at));
        COLI_TRY(coli__buf_append(&t->endings, &ending, sizeof ending));
        if (w->n_id > longest) longest = w->n_id;
    }
    return add_item(t, item, longest);
}

static coli_status take_endings(const json_t *endings, uint32_t *n_ending)
{
    const size_t n = json_array_size(endings); // 0 for what is no array
    if (n < 2 || n > COLI__MAX_ENDING)
        return coli__fail(COLI_E_FORMAT, "endings: expected an array of 2 to %d strings",
                          COLI__MAX_ENDING);
    for (size_t e = 0; e < n; e++)
        if (json_string_length(json_array_get(endings, e)) == 0) // also of what is no string
            return coli__fail(COLI_E_FORMAT, "endings: ending %zu: expected a string with text", e);
    *n_ending = (uint32_t)n;
    return COLI_OK;
}

static coli_status take_choice(coli_tasks *t, const json_t *object, coli__task *item)
{
    const json_t *ctx = json_object_get(object, "ctx");
    const json_t *endings = json_object_get(object, "endings");
    item->kind = COLI_TASK_CHOICE;
    if (!json_is_string(ctx)) return coli__fail(COLI_E_FORMAT, "ctx: expected a string");
    COLI_TRY(take_endings(endings, &item->n_ending));
    COLI_TRY(take_label(json_object_get(object, "label"), item->n_ending, &item->label));
    whole all[COLI__MAX_ENDING] = {{0}};
    int32_t *ids = NULL;
    uint32_t n_shared;
    coli_status status =
        encode(t, json_string_value(ctx), json_string_length(ctx), NULL, 0, &ids, &n_shared);
    for (uint32_t e = 0; e < item->n_ending && status == COLI_OK; e++) {
        status = join(t, ctx, json_array_get(endings, e), &all[e]);
        n_shared = n_common(ids, n_shared, all[e].ids, all[e].n_id);
    }
    if (status == COLI_OK) status = add_choice(t, item, all, n_shared);
    for (uint32_t e = 0; e < item->n_ending; e++) coli__free(all[e].ids);
    coli__free(ids);
    return status;
}

/* ---- questions ------------------------------------------------------------------------------ */

static coli_status encode_prompt(const coli_tasks *t, const json_t *messages, int32_t **ids,
                                 uint32_t *n_id)
{
    *ids = NULL;
    json_t *options = json_pack("{s:b}", "enable_thinking", 0);
    if (!options) return coli__fail(COLI_E_NOMEM, "out of memory for a prompt");
    coli__render r = {0};
    coli_status status = coli__chat_render(t->tmpl, messages, options, &r);
    if (status == COLI_OK)
        status = encode(t, r.text.data, r.text.n_bytes, r.plain, r.n_plain, ids, n_id);
    coli__render_finish(&r);
    json_decref(options);
    // what a template refuses is a fault of the file here
    return status == COLI_E_INVALID ? coli__fail_in(COLI_E_FORMAT, "messages") : status;
}

static coli_status add_exact(coli_tasks *t, coli__task *item, const char *answer, size_t n_bytes)
{
    int32_t *ids;
    uint32_t n_id;
    COLI_TRY(encode(t, answer, n_bytes, NULL, 0, &ids, &n_id));
    coli__free(ids);
    item->n_answer = n_id + COLI__ANSWER_BEYOND;
    COLI_TRY(add_string(t, answer, n_bytes, &item->answer));
    return add_item(t, item, item->n_id + item->n_answer);
}

static coli_status take_exact(coli_tasks *t, const json_t *object, coli__task *item)
{
    const json_t *messages = json_object_get(object, "messages");
    const json_t *answer = json_object_get(object, "answer");
    item->kind = COLI_TASK_EXACT;
    const char *text = json_string_value(answer);
    size_t n_bytes = json_string_length(answer);
    if (text) coli__strip(&text, &n_bytes);
    if (!text || n_bytes == 0)
        return coli__fail(COLI_E_FORMAT, "answer: expected a string with text");
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return coli__fail(COLI_E_FORMAT, "messages: expected an array of messages");
    int32_t *ids;
    COLI_TRY(encode_prompt(t, messages, &ids, &item->n_id));
    coli_status status = add_ids(t, ids, item->n_id, &item->at);
    coli__free(ids);
    if (status == COLI_OK) status = add_exact(t, item, text, n_bytes);
    return status;
}

/* ---- files ---------------------------------------------------------------------------------- */

static coli_status take_object(coli_tasks *t, const json_t *object, uint64_t line)
{
    coli__task item = {.file = t->n_file - 1, .line = line};
    COLI_TRY(take_group(t, object, &item));
    if (json_object_get(object, "endings")) return take_choice(t, object, &item);
    if (json_object_get(object, "messages")) return take_exact(t, object, &item);
    if (json_object_get(object, "text")) return take_text(t, object, &item);
    return coli__fail(COLI_E_FORMAT,
                      "expected \"text\", or \"ctx\", \"endings\" and \"label\", or \"messages\" "
                      "and \"answer\"");
}

static coli_status take_line(coli_tasks *t, const char *text, size_t n_bytes, uint64_t line)
{
    if (n_bytes > MAX_LINE_BYTES)
        return coli__fail(COLI_E_FORMAT, "expected at most %d bytes, found %zu", MAX_LINE_BYTES,
                          n_bytes);
    json_t *object;
    coli_status status = coli__json_parse_small("JSON", text, n_bytes, MAX_DEPTH, &object);
    if (status == COLI_E_FORMAT) { // the parser counts lines of its own: say the column alone
        json_error_t error;
        json_t *again = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
        if (!again) coli__fail(status, "column %d: %s", error.column, error.text);
        json_decref(again);
    }
    COLI_TRY(status);
    status = json_is_object(object) ? take_object(t, object, line)
                                    : coli__fail(COLI_E_FORMAT, "expected a JSON object");
    json_decref(object);
    return status;
}

coli_status coli__tasks_add_lines(coli_tasks *t, const char *file, const char *text, size_t n_bytes)
{
    COLI_TRY(add_file(t, file));
    uint64_t line = 0, n_seen = 0;
    for (size_t at = 0, n; at < n_bytes; at += n + 1) {
        const char *end = memchr(text + at, '\n', n_bytes - at);
        n = end ? (size_t)(end - text) - at : n_bytes - at;
        line++;
        const char *stripped = text + at;
        size_t n_stripped = n;
        coli__strip(&stripped, &n_stripped);
        if (n_stripped == 0 || n_seen++ % t->every) continue;
        const coli_status status = take_line(t, text + at, n, line);
        if (status != COLI_OK)
            return coli__fail_in(status, "%s: line %llu", file, (unsigned long long)line);
    }
    return COLI_OK;
}

coli_status coli__tasks_add_text(coli_tasks *t, const char *file, const char *text, size_t n_bytes)
{
    COLI_TRY(add_file(t, file));
    int32_t *ids;
    uint32_t n_id;
    coli_status status = encode(t, text, n_bytes, NULL, 0, &ids, &n_id);
    const uint32_t n_most = COLI__PIECE_TOKENS < t->n_ctx_max ? COLI__PIECE_TOKENS : t->n_ctx_max;
    for (uint32_t at = 0, piece = 0; at < n_id && status == COLI_OK; at += n_most, piece++) {
        const uint32_t n = n_id - at < n_most ? n_id - at : n_most;
        coli__task item = {.file = t->n_file - 1, .line = piece + 1};
        if (piece % t->every == 0 && n > 1) status = add_text(t, &item, ids + at, n);
    }
    coli__free(ids);
    return status == COLI_OK ? COLI_OK : coli__fail_in(status, "%s", file);
}

static bool has_ending(const char *name, const char *ending)
{
    const size_t n = strlen(name), n_ending = strlen(ending);
    return n > n_ending && strcmp(name + n - n_ending, ending) == 0;
}

static coli_status read_file(coli_tasks *t, const char *path)
{
    coli__buf bytes;
    COLI_TRY(coli__file_read(path, MAX_FILE_BYTES, &bytes));
    const char *text = bytes.data ? bytes.data : "";
    const size_t bad = coli__utf8_check(text, bytes.n_bytes);
    coli_status status;
    if (bad < bytes.n_bytes)
        status = coli__fail(COLI_E_FORMAT, "%s: expected UTF-8, found none at byte %zu", path, bad);
    else if (has_ending(path, ".txt"))
        status = coli__tasks_add_text(t, path, text, bytes.n_bytes);
    else
        status = coli__tasks_add_lines(t, path, text, bytes.n_bytes);
    coli__buf_finish(&bytes);
    return status;
}

static coli_status read_dir(coli_tasks *t, const char *dir)
{
    char **names;
    size_t n;
    COLI_TRY(coli__dir_list(dir, &names, &n));
    coli_status status = COLI_OK;
    for (size_t i = 0; i < n; i++) {
        char *path = NULL;
        const bool wanted = has_ending(names[i], ".jsonl") || has_ending(names[i], ".txt");
        if (wanted && status == COLI_OK && t->n_file == MAX_FILE)
            status = coli__fail(COLI_E_FORMAT, "%s: expected at most %d files", dir, MAX_FILE);
        if (wanted && status == COLI_OK) status = coli__path_join(dir, names[i], &path);
        if (path && status == COLI_OK) status = read_file(t, path);
        coli__free(path);
        coli__free(names[i]);
    }
    coli__free(names);
    return status;
}

/* ---- the object ----------------------------------------------------------------------------- */

coli_status coli__tasks_create(const coli__tok *tok, const char *tmpl, uint32_t n_ctx_max,
                               uint32_t every, coli_tasks **out)
{
    *out = NULL;
    coli_tasks *t = coli__calloc(1, sizeof *t);
    if (!t) return COLI_E_NOMEM;
    t->tok = tok;
    t->tmpl = tmpl;
    t->n_ctx_max = n_ctx_max;
    t->every = every;
    size_t empty;
    const coli_status status = add_string(t, "", 0, &empty);
    if (status == COLI_OK)
        *out = t;
    else
        coli_tasks_close(t);
    return status;
}

/* Of what scores depend on: kinds, ids, labels, answers; not of names of files and groups. */
static void identify(coli_tasks *t, XXH3_state_t *state)
{
    XXH3_128bits_reset(state);
    for (uint32_t i = 0; i < coli__tasks_n(t); i++) {
        const coli__task *item = coli__tasks_at(t, i);
        const uint32_t head[4] = {item->kind, item->n_id, item->n_ending, item->label};
        const char *answer = coli__tasks_string(t, item->answer);
        XXH3_128bits_update(state, head, sizeof head);
        XXH3_128bits_update(state, coli__tasks_ids(t, item->at), item->n_id * sizeof(int32_t));
        for (uint32_t e = 0; e < item->n_ending; e++) {
            const coli__ending *ending = coli__tasks_ending(t, item, e);
            const uint32_t size[2] = {ending->n_id, ending->n_bytes};
            XXH3_128bits_update(state, size, sizeof size);
            XXH3_128bits_update(state, coli__tasks_ids(t, ending->at),
                                ending->n_id * sizeof(int32_t));
        }
        XXH3_128bits_update(state, answer, strlen(answer) + 1);
    }
    static const char digits[] = "0123456789abcdef";
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits_digest(state));
    for (int i = 0; i < 32; i++) t->identity[i] = digits[sum.digest[i / 2] >> (i % 2 ? 0 : 4) & 15];
}

coli_status coli__tasks_seal(coli_tasks *t, const char *what)
{
    t->tok = NULL;
    t->tmpl = NULL;
    if (coli__tasks_n(t) == 0)
        return coli__fail(COLI_E_FORMAT, "%s: expected items in *.jsonl or *.txt, found none",
                          what);
    XXH3_state_t *state = XXH3_createState();
    if (!state) return coli__fail(COLI_E_NOMEM, "out of memory for a checksum");
    identify(t, state);
    XXH3_freeState(state);
    return COLI_OK;
}

coli_status coli_tasks_open(const char *path, const coli_model *m, const coli_tasks_opts *opts,
                            coli_tasks **out)
{
    if (out) *out = NULL;
    if (!path || !m || !out)
        return coli__fail(COLI_E_INVALID, "coli_tasks_open: an argument is NULL");
    coli_tasks_opts o;
    COLI_TRY(coli__opts_copy("coli_tasks_opts", &o, sizeof o, opts));
    if (!m->beside.tok) return coli__fail(COLI_E_UNSUPPORTED, "the model has no tokenizer.json");
    coli_tasks *t;
    COLI_TRY(coli__tasks_create(m->beside.tok, coli__container_template(m->container),
                                m->shape.n_ctx_max, o.every ? o.every : 1, &t));
    coli_status status = coli__path_is_dir(path) ? read_dir(t, path) : read_file(t, path);
    if (status == COLI_OK) status = coli__tasks_seal(t, path);
    if (status == COLI_OK)
        *out = t;
    else
        coli_tasks_close(t);
    return status;
}

void coli_tasks_close(coli_tasks *t)
{
    if (!t) return;
    for (uint32_t i = 0; i < t->n_file; i++) coli__free(t->files[i]);
    coli__free(t->files);
    coli__buf_finish(&t->items);
    coli__buf_finish(&t->endings);
    coli__buf_finish(&t->ids);
    coli__buf_finish(&t->strings);
    coli__free(t);
}

coli_status coli_tasks_get_info(const coli_tasks *t, coli_tasks_info *info)
{
    if (info) COLI_TRY(coli__struct_clear("coli_tasks_info", info));
    if (!t || !info) return coli__fail(COLI_E_INVALID, "coli_tasks_get_info: an argument is NULL");
    const coli_tasks_info full = {.n_item = coli__tasks_n(t),
                                  .n_text = t->n_kind[COLI_TASK_TEXT],
                                  .n_choice = t->n_kind[COLI_TASK_CHOICE],
                                  .n_exact = t->n_kind[COLI_TASK_EXACT],
                                  .n_ctx = t->n_ctx,
                                  .n_token = t->n_token,
                                  .identity = t->identity};
    coli__struct_fill(info, &full, sizeof full);
    return COLI_OK;
}

coli_status coli_tasks_get(const coli_tasks *t, uint32_t i, coli_task *out)
{
    if (out) COLI_TRY(coli__struct_clear("coli_task", out));
    if (!t || !out || i >= coli__tasks_n(t))
        return coli__fail(COLI_E_INVALID, "coli_tasks_get: no such item");
    const coli__task *item = coli__tasks_at(t, i);
    const bool exact = item->kind == COLI_TASK_EXACT;
    const coli_task full = {.kind = item->kind,
                            .file = t->files[item->file],
                            .line = item->line,
                            .group = coli__tasks_string(t, item->group),
                            .n_ending = item->n_ending,
                            .label = item->label,
                            .answer = exact ? coli__tasks_string(t, item->answer) : NULL};
    coli__struct_fill(out, &full, sizeof full);
    return COLI_OK;
}
