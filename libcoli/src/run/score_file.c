/* score_file.c - scores on the disk, little-endian on every machine (docs/formats/scores.md).
 *
 *     0     magic 89 53 43 4f 0d 0a 1a 0a     a transfer as text changes one of these bytes
 *     8     u32 version, u32 n_vocab, u32 n_item, u32 flags (1: with rows)
 *     24    u64 bytes of the items' fields
 *     32    the model's identity, 32 hex digits
 *     64    the items' identity, 32 hex digits
 *     96    fields, item after item
 *             text     f64 nll
 *             choice   f64 the sum of each ending
 *             exact    u32 bytes, the answer
 *     then  with rows: the record of each row of each text (score_row.h)
 *     end - 16   XXH3-128 of all that stands before it
 *
 * What kind an item is and how many endings it has, the items say that it was made of; the identity
 * vouches that they are the same. */
#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "../base/file.h"
#include "coli/exact.h"
#include "score_row.h"
#include "scores.h"

enum { VERSION = 1, HEAD_BYTES = 96, SUM_BYTES = 16, WITH_ROWS = 1, IDENTITY_BYTES = 32 };
static const uint64_t MAX_BYTES = (uint64_t)1 << 40;
static const uint8_t magic[8] = {0x89, 'S', 'C', 'O', '\r', '\n', 0x1a, '\n'};

/* ---- bytes ---------------------------------------------------------------------------------- */

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static uint64_t get64(const uint8_t *p)
{
    return get32(p) | (uint64_t)get32(p + 4) << 32;
}
static void put32(uint8_t *p, uint32_t x)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(x >> 8 * i);
}
static void put64(uint8_t *p, uint64_t x)
{
    put32(p, (uint32_t)x);
    put32(p + 4, (uint32_t)(x >> 32));
}

static coli_status put_f64(coli__buf *out, double x)
{
    uint8_t bytes[8];
    put64(bytes, coli_bits_d(x));
    return coli__buf_append(out, bytes, sizeof bytes);
}

/* ---- writing -------------------------------------------------------------------------------- */

static coli_status put_item(const coli_scores *s, uint32_t i, coli__buf *out)
{
    const coli__task *item = coli__tasks_at(s->tasks, i);
    if (item->kind == COLI_TASK_TEXT) return put_f64(out, s->items[i].nll);
    for (uint32_t e = 0; e < item->n_ending; e++) COLI_TRY(put_f64(out, coli__score_sum(s, i, e)));
    if (item->kind == COLI_TASK_CHOICE) return COLI_OK;
    const char *answer = coli__score_answer(s, i);
    uint8_t n_bytes[4];
    put32(n_bytes, (uint32_t)strlen(answer));
    COLI_TRY(coli__buf_append(out, n_bytes, sizeof n_bytes));
    return coli__buf_append(out, answer, strlen(answer));
}

/* The head and all fields. */
static coli_status put_front(const coli_scores *s, coli__buf *out)
{
    uint8_t head[HEAD_BYTES] = {0};
    COLI_TRY(coli__buf_append(out, head, sizeof head));
    for (uint32_t i = 0; i < coli__tasks_n(s->tasks); i++) COLI_TRY(put_item(s, i, out));
    memcpy(head, magic, sizeof magic);
    put32(head + 8, VERSION);
    put32(head + 12, s->n_vocab);
    put32(head + 16, coli__tasks_n(s->tasks));
    put32(head + 20, s->has_rows ? WITH_ROWS : 0);
    put64(head + 24, out->n_bytes - HEAD_BYTES);
    memcpy(head + 32, s->model, IDENTITY_BYTES);
    memcpy(head + 64, s->tasks->identity, IDENTITY_BYTES);
    memcpy(out->data, head, sizeof head);
    return COLI_OK;
}

static coli_status write_parts(const char *path, const coli__buf *front, const coli__buf *rows)
{
    XXH3_state_t *state = XXH3_createState();
    if (!state) return coli__fail(COLI_E_NOMEM, "out of memory for a checksum");
    XXH3_128bits_reset(state);
    XXH3_128bits_update(state, front->data, front->n_bytes);
    if (rows->n_bytes) XXH3_128bits_update(state, rows->data, rows->n_bytes);
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits_digest(state));
    XXH3_freeState(state);
    coli__writer *w;
    COLI_TRY(coli__writer_open(path, &w));
    coli_status status = coli__writer_append(w, front->data, front->n_bytes);
    if (status == COLI_OK) status = coli__writer_append(w, rows->data, rows->n_bytes);
    if (status == COLI_OK) status = coli__writer_append(w, sum.digest, SUM_BYTES);
    if (status == COLI_OK) return coli__writer_close(w);
    coli__writer_abandon(w);
    return status;
}

coli_status coli_scores_save(const coli_scores *s, const char *path)
{
    if (!s || !path) return coli__fail(COLI_E_INVALID, "coli_scores_save: an argument is NULL");
    if (coli__path_exists(path)) return coli__fail(COLI_E_EXISTS, "%s: already exists", path);
    coli__buf front = {0}, partial = {0};
    coli_status status = coli__buf_printf(&partial, "%s.partial", path);
    if (status == COLI_OK) status = put_front(s, &front);
    if (status == COLI_OK) status = write_parts(partial.data, &front, &s->rows);
    if (status == COLI_OK) {
        status = coli__path_rename(partial.data, path);
        if (status != COLI_OK) coli__file_remove(partial.data);
    } else if (status == COLI_E_IO) {
        coli__file_remove(partial.data); // ours: one that was there is E_EXISTS
    }
    coli__buf_finish(&partial);
    coli__buf_finish(&front);
    return status;
}

/* ---- reading -------------------------------------------------------------------------------- */

static coli_status check_head(const char *what, const uint8_t *data, size_t n_bytes)
{
    if (n_bytes < sizeof magic || memcmp(data, magic, sizeof magic) != 0)
        return coli__fail(COLI_E_FORMAT,
                          "%s: no file of scores: expected 89 53 43 4f 0d 0a 1a 0a at its start",
                          what);
    if (n_bytes < HEAD_BYTES + SUM_BYTES)
        return coli__fail(COLI_E_FORMAT, "%s: torn: expected at least %d bytes, found %zu", what,
                          HEAD_BYTES + SUM_BYTES, n_bytes);
    if (get32(data + 8) != VERSION)
        return coli__fail(COLI_E_UNSUPPORTED, "%s: scores of version %u; expected %d", what,
                          get32(data + 8), VERSION);
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits(data, n_bytes - SUM_BYTES));
    if (memcmp(sum.digest, data + n_bytes - SUM_BYTES, SUM_BYTES) != 0)
        return coli__fail(COLI_E_FORMAT, "%s: damaged or torn: its checksum is another", what);
    return COLI_OK;
}

static coli_status check_tasks(const char *what, const uint8_t *data, const coli_tasks *tasks)
{
    if (memcmp(data + 64, tasks->identity, IDENTITY_BYTES) == 0 &&
        get32(data + 16) == coli__tasks_n(tasks))
        return COLI_OK;
    return coli__fail(COLI_E_INVALID,
                      "%s: scores of %u other items, or of another tokenizer: expected %u with the "
                      "identity %s, found %.32s",
                      what, get32(data + 16), coli__tasks_n(tasks), tasks->identity,
                      (const char *)data + 64);
}

/* The bytes that are left. */
typedef struct reader {
    const char *what;
    const uint8_t *at, *end;
} reader;

static coli_status fail_item(const reader *r, uint32_t i, const char *expected)
{
    return coli__fail(COLI_E_FORMAT, "%s: item %u: expected %s", r->what, i, expected);
}

static bool get_f64(reader *r, double *out)
{
    if (r->end - r->at < 8) return false;
    *out = coli_from_bits_d(get64(r->at));
    r->at += 8;
    return isfinite(*out);
}

static coli_status get_answer(reader *r, uint32_t i, coli_scores *s)
{
    s->items[i].answer_at = s->answers.n_bytes;
    if (r->end - r->at < 4) return fail_item(r, i, "an answer");
    const uint32_t n_bytes = get32(r->at);
    r->at += 4;
    if (n_bytes > (size_t)(r->end - r->at) || memchr(r->at, 0, n_bytes) ||
        coli__utf8_check((const char *)r->at, n_bytes) < n_bytes)
        return fail_item(r, i, "an answer");
    COLI_TRY(coli__buf_append(&s->answers, r->at, n_bytes));
    r->at += n_bytes;
    return coli__buf_append(&s->answers, "", 1);
}

static coli_status get_item(reader *r, uint32_t i, coli_scores *s)
{
    const coli__task *item = coli__tasks_at(s->tasks, i);
    if (item->kind == COLI_TASK_EXACT) return get_answer(r, i, s);
    if (item->kind == COLI_TASK_TEXT) {
        if (!get_f64(r, &s->items[i].nll) || s->items[i].nll < 0)
            return fail_item(r, i, "the nll of a text");
        return COLI_OK;
    }
    s->items[i].sums_at = s->sums.n_bytes / sizeof(double);
    for (uint32_t e = 0; e < item->n_ending; e++) {
        double sum;
        if (!get_f64(r, &sum) || sum > 0) return fail_item(r, i, "the sums of its endings");
        COLI_TRY(coli__buf_append(&s->sums, &sum, sizeof sum));
    }
    return COLI_OK;
}

static coli_status get_rows(reader *r, coli_scores *s)
{
    const uint8_t *start = r->at;
    for (uint32_t i = 0; i < coli__tasks_n(s->tasks); i++) {
        const coli__task *item = coli__tasks_at(s->tasks, i);
        s->items[i].rows_at = (size_t)(r->at - start);
        for (uint32_t row = 0; item->kind == COLI_TASK_TEXT && row < item->n_id; row++) {
            float rest;
            if (!coli__row_check(&r->at, r->end, s->n_vocab, &rest))
                return coli__fail(COLI_E_FORMAT, "%s: item %u: row %u is malformed", r->what, i,
                                  row);
            s->rest += (double)rest;
            s->n_row++;
        }
    }
    return coli__buf_append(&s->rows, start, (size_t)(r->at - start));
}

static coli_status get_all(const char *what, const uint8_t *data, size_t n_bytes, coli_scores *s)
{
    const uint64_t n_field_bytes = get64(data + 24);
    const size_t n_body = n_bytes - HEAD_BYTES - SUM_BYTES;
    if (n_field_bytes > n_body)
        return coli__fail(COLI_E_FORMAT, "%s: expected at most %zu bytes of fields, found %llu",
                          what, n_body, (unsigned long long)n_field_bytes);
    memcpy(s->model, data + 32, IDENTITY_BYTES);
    s->n_vocab = get32(data + 12);
    s->has_rows = get32(data + 20) == WITH_ROWS;
    if (get32(data + 20) > WITH_ROWS || s->n_vocab == 0 || memchr(s->model, 0, IDENTITY_BYTES))
        return coli__fail(COLI_E_FORMAT, "%s: its head is malformed", what);
    reader r = {what, data + HEAD_BYTES, data + HEAD_BYTES + n_field_bytes};
    for (uint32_t i = 0; i < coli__tasks_n(s->tasks); i++) COLI_TRY(get_item(&r, i, s));
    if (r.at < r.end)
        return coli__fail(COLI_E_FORMAT, "%s: %td bytes behind the last item", what, r.end - r.at);
    r.end = data + n_bytes - SUM_BYTES;
    if (s->has_rows) COLI_TRY(get_rows(&r, s));
    if (r.at < r.end)
        return coli__fail(COLI_E_FORMAT, "%s: %td bytes behind the last row", what, r.end - r.at);
    return COLI_OK;
}

coli_status coli__scores_parse(const char *what, const uint8_t *data, size_t n_bytes,
                               const coli_tasks *tasks, coli_scores **out)
{
    *out = NULL;
    COLI_TRY(check_head(what, data, n_bytes));
    COLI_TRY(check_tasks(what, data, tasks));
    coli_scores *s;
    COLI_TRY(coli__scores_create(tasks, &s));
    const coli_status status = get_all(what, data, n_bytes, s);
    if (status == COLI_OK)
        *out = s;
    else
        coli_scores_free(s);
    return status;
}

coli_status coli_scores_open(const char *path, const coli_tasks *tasks, coli_scores **out)
{
    if (out) *out = NULL;
    if (!path || !tasks || !out)
        return coli__fail(COLI_E_INVALID, "coli_scores_open: an argument is NULL");
    coli__buf bytes;
    COLI_TRY(coli__file_read(path, MAX_BYTES, &bytes));
    const coli_status status =
        coli__scores_parse(path, (const uint8_t *)bytes.data, bytes.n_bytes, tasks, out);
    coli__buf_finish(&bytes);
    return status;
}
