/* imatrix.c - reading imatrix files, and what they say about a column.
 *
 * Experts.  The n rows that an expert saw are few for some: the mean of its own squares is then mostly
 * chance.  It is mixed with that of all rows of its layer as if PRIOR rows of those had been seen:
 *
 *     h = (n * own + PRIOR * layer) / (n + PRIOR)
 *
 * Floor.  A column that the text left at nothing is not free to be ruined: a small part of the mean is
 * added to every column. */
#include "imatrix.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "../base/memory.h"
#include "container_format.h"
#include "imatrix_format.h"

const uint8_t coli__imatrix_magic[8] = {0x89, 'I', 'M', 'X', '\r', '\n', 0x1a, '\n'};

enum { PRIOR = 16 };
static const double FLOOR = 0.01;

typedef struct entry {
    char name[IMATRIX_NAME_BYTES];
    uint32_t n_part, n_in;
    const uint8_t *n_row; // (n_part) u64
    const uint8_t *means; // (n_part, n_in) f32
} entry;

struct coli__imatrix {
    coli__map map; // of a file
    char *path;    // of it; NULL: none
    uint32_t n_in_max;
    entry *entries;
    uint32_t n_entry;
    char model[33];
    uint64_t n_token;
    /* the means over all parts of two entries, a layer's, kept for the next part */
    struct {
        const entry *of; // NULL: none yet
        double *mean;    // (n_in)
    } kept[2];
    uint32_t oldest; // of them
};

/* Pages that were read need not stay in memory: they are the file's. */
static void drop(const coli__imatrix *m, const uint8_t *data, uint64_t n_bytes)
{
    if (m->map.data) coli__pages_drop(data, n_bytes);
}

/* ---- reading -------------------------------------------------------------------------------- */

static coli_status check_head(const char *what, const uint8_t *data, uint64_t n_bytes)
{
    if (n_bytes < sizeof coli__imatrix_magic ||
        memcmp(data, coli__imatrix_magic, sizeof coli__imatrix_magic) != 0)
        return coli__fail(COLI_E_FORMAT,
                          "%s: no imatrix file: expected 89 49 4d 58 0d 0a 1a 0a at its start; "
                          "`coli imatrix` makes one",
                          what);
    if (n_bytes < IMATRIX_HEAD_BYTES + IMATRIX_SUM_BYTES)
        return coli__fail(COLI_E_FORMAT, "%s: torn: expected at least %d bytes, found %llu", what,
                          IMATRIX_HEAD_BYTES + IMATRIX_SUM_BYTES, (unsigned long long)n_bytes);
    const uint32_t version = coli__get32(data + 8);
    if (version != IMATRIX_VERSION)
        return coli__fail(COLI_E_UNSUPPORTED, "%s: imatrix file of version %u; expected %d", what,
                          version, IMATRIX_VERSION);
    return COLI_OK;
}

static coli_status check_sum(const char *what, const coli__imatrix *m, const uint8_t *data,
                             uint64_t n_bytes)
{
    enum { PIECE = 8 << 20 };
    const uint64_t n = n_bytes - IMATRIX_SUM_BYTES;
    XXH3_state_t *hash = XXH3_createState();
    if (!hash) return coli__fail(COLI_E_NOMEM, "out of memory");
    XXH3_128bits_reset(hash);
    for (uint64_t at = 0, piece; at < n; at += piece) {
        piece = n - at < PIECE ? n - at : PIECE;
        XXH3_128bits_update(hash, data + at, (size_t)piece);
        drop(m, data + at, piece);
    }
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits_digest(hash));
    XXH3_freeState(hash);
    if (memcmp(sum.digest, data + n, IMATRIX_SUM_BYTES) == 0) return COLI_OK;
    return coli__fail(COLI_E_FORMAT, "%s: torn or damaged: its checksum is not that of its bytes",
                      what);
}

static coli_status bad_entry(const char *what, uint32_t i, const char *why)
{
    return coli__fail(COLI_E_FORMAT, "%s: entry %u: %s", what, i, why);
}

static coli_status check_means(const char *what, uint32_t i, const entry *e)
{
    for (size_t k = 0; k < (size_t)e->n_part * e->n_in; k++) {
        const uint32_t bits = coli__get32(e->means + 4 * k);
        if (bits >= 0x7F800000u) // negative ones, too
            return coli__fail(COLI_E_FORMAT, "%s: entry %u, %s: mean %zu is no mean of squares",
                              what, i, e->name, k);
    }
    return COLI_OK;
}

/* The entry at *at; what it says about its size is not believed. */
static coli_status read_entry(const char *what, const uint8_t *data, uint64_t end, uint32_t i,
                              uint64_t *at, entry *e)
{
    if (end - *at < 16) return bad_entry(what, i, "is not there");
    const uint8_t *p = data + *at;
    const uint32_t n_name = coli__get32(p);
    e->n_part = coli__get32(p + 4);
    e->n_in = coli__get32(p + 8);
    if (n_name == 0 || n_name >= IMATRIX_NAME_BYTES) return bad_entry(what, i, "has no name");
    if (e->n_part == 0 || e->n_part > CT_MAX_EXPERT || e->n_in == 0 || e->n_in > CT_MAX_DIM)
        return bad_entry(what, i, "has dimensions that no matrix has");
    const uint64_t n_bytes = coli__imatrix_entry_bytes(n_name, e->n_part, e->n_in);
    if (n_bytes > end - *at) return bad_entry(what, i, "goes beyond the end of the file");
    if (memchr(p + 16, 0, n_name)) return bad_entry(what, i, "has a zero in its name");
    memcpy(e->name, p + 16, n_name);
    e->n_row = p + 16 + coli__ct_align(n_name, 8);
    e->means = e->n_row + 8 * (size_t)e->n_part;
    *at += n_bytes;
    return check_means(what, i, e);
}

static coli_status read_entries(const char *what, const uint8_t *data, uint64_t n_bytes,
                                coli__imatrix *m)
{
    const uint32_t n = coli__get32(data + 12);
    const uint64_t end = n_bytes - IMATRIX_SUM_BYTES;
    if (n > IMATRIX_MAX_ENTRY || n > end / 16)
        return coli__fail(COLI_E_FORMAT, "%s: %u entries; expected at most %d", what, n,
                          IMATRIX_MAX_ENTRY);
    m->entries = coli__calloc(n, sizeof *m->entries);
    if (!m->entries) return COLI_E_NOMEM;
    uint64_t at = IMATRIX_HEAD_BYTES;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t begin = at;
        COLI_TRY(read_entry(what, data, end, i, &at, &m->entries[i]));
        drop(m, data + begin, at - begin);
        if (i > 0 && strcmp(m->entries[i - 1].name, m->entries[i].name) >= 0)
            return bad_entry(what, i, "is not behind the one before by its name");
    }
    m->n_entry = n;
    if (at == end) return COLI_OK;
    return coli__fail(COLI_E_FORMAT, "%s: %llu bytes behind the last entry", what,
                      (unsigned long long)(end - at));
}

static coli_status read_all(const char *what, const uint8_t *data, uint64_t n_bytes,
                            coli__imatrix *m)
{
    COLI_TRY(check_head(what, data, n_bytes));
    COLI_TRY(check_sum(what, m, data, n_bytes));
    m->n_token = coli__get64(data + 16);
    for (uint32_t i = 0; i < 32; i++) {
        const char digit = (char)data[IMATRIX_MODEL_AT + i];
        if (!digit || !strchr("0123456789abcdef", digit))
            return coli__fail(COLI_E_FORMAT, "%s: expected 32 hex digits at byte %d", what,
                              IMATRIX_MODEL_AT);
        m->model[i] = digit;
    }
    return read_entries(what, data, n_bytes, m);
}

static coli_status parse(const char *what, const uint8_t *data, uint64_t n_bytes, coli__imatrix *m)
{
    for (uint32_t i = 0; i < 2; i++) {
        m->kept[i].mean = coli__calloc(m->n_in_max, sizeof *m->kept[i].mean);
        if (!m->kept[i].mean) return COLI_E_NOMEM;
    }
    return read_all(what, data, n_bytes, m);
}

static coli_status open_file(const char *path, coli__imatrix *m)
{
    m->path = coli__strndup(path, strlen(path));
    if (!m->path) return COLI_E_NOMEM;
    COLI_TRY(coli__map_open_guarded(path, &m->map));
    const coli_status status = parse(path, m->map.data, m->map.n_bytes, m);
    const coli_status whole = coli__imatrix_check_whole(m); // before any other complaint
    return whole == COLI_OK ? status : whole;
}

/* Hand it over, or close what could not be opened. */
static coli_status finish(coli__imatrix *m, coli_status status, coli__imatrix **out)
{
    if (status == COLI_OK)
        *out = m;
    else
        coli__imatrix_close(m);
    return status;
}

coli_status coli__imatrix_open(const char *path, uint32_t n_in_max, coli__imatrix **out)
{
    *out = NULL;
    coli__imatrix *m = coli__calloc(1, sizeof *m);
    if (!m) return COLI_E_NOMEM;
    m->n_in_max = n_in_max;
    return finish(m, open_file(path, m), out);
}

coli_status coli__imatrix_parse(const char *what, const uint8_t *data, uint64_t n_bytes,
                                uint32_t n_in_max, coli__imatrix **out)
{
    *out = NULL;
    coli__imatrix *m = coli__calloc(1, sizeof *m);
    if (!m) return COLI_E_NOMEM;
    m->n_in_max = n_in_max;
    return finish(m, parse(what, data, n_bytes, m), out);
}

coli_status coli__imatrix_check_whole(const coli__imatrix *m)
{
    if (coli__map_is_whole(&m->map)) return COLI_OK;
    return coli__fail(COLI_E_IO, "%s: became shorter, or could not be read, while it was in use",
                      m->path);
}

void coli__imatrix_close(coli__imatrix *m)
{
    if (!m) return;
    coli__free(m->entries);
    for (uint32_t i = 0; i < 2; i++) coli__free(m->kept[i].mean);
    coli__map_close(&m->map);
    coli__free(m->path);
    coli__free(m);
}

const char *coli__imatrix_model(const coli__imatrix *m)
{
    return m->model;
}

uint64_t coli__imatrix_n_token(const coli__imatrix *m)
{
    return m->n_token;
}

/* ---- columns -------------------------------------------------------------------------------- */

static int by_name(const void *name, const void *e)
{
    return strcmp(name, ((const entry *)e)->name);
}

static const entry *find(const coli__imatrix *m, const char *name, uint32_t n_part, uint32_t n_in)
{
    const entry *e = bsearch(name, m->entries, m->n_entry, sizeof *m->entries, by_name);
    return e && e->n_part == n_part && e->n_in == n_in ? e : NULL;
}

static double mean_at(const entry *e, uint32_t part, uint32_t i)
{
    const uint32_t bits = coli__get32(e->means + 4 * ((size_t)part * e->n_in + i));
    float mean;
    memcpy(&mean, &bits, sizeof mean);
    return (double)mean;
}

static double rows_of(const entry *e, uint32_t part)
{
    return (double)coli__get64(e->n_row + 8 * (size_t)part);
}

/* To 1 in the mean, with a floor: out holds means of squares.  False when all are 0. */
static bool normalise(uint32_t n, float *out)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)out[i];
    const double mean = sum / n;
    if (!(mean > 0)) return false;
    for (uint32_t i = 0; i < n; i++)
        out[i] = (float)(((double)out[i] / mean + FLOOR) / (1 + FLOOR));
    return true;
}

bool coli__imatrix_columns(const coli__imatrix *m, const char *name, uint32_t n_in, float *out)
{
    const entry *e = find(m, name, 1, n_in);
    if (!e) return false;
    for (uint32_t i = 0; i < n_in; i++) out[i] = (float)mean_at(e, 0, i);
    return normalise(n_in, out);
}

static void average(const entry *e, double *mean)
{
    double n = 0;
    memset(mean, 0, e->n_in * sizeof *mean);
    for (uint32_t part = 0; part < e->n_part; part++) {
        const double n_row = rows_of(e, part);
        n += n_row;
        for (uint32_t i = 0; i < e->n_in; i++) mean[i] += n_row * mean_at(e, part, i);
    }
    for (uint32_t i = 0; n > 0 && i < e->n_in; i++) mean[i] /= n;
}

/* The mean over all rows of all parts. */
static const double *mean_of(coli__imatrix *m, const entry *e)
{
    for (uint32_t i = 0; i < 2; i++)
        if (m->kept[i].of == e) return m->kept[i].mean;
    const uint32_t i = m->oldest;
    m->oldest = 1 - i;
    const entry *before = m->kept[i].of;
    if (before) drop(m, before->means, 4 * (uint64_t)before->n_part * before->n_in);
    m->kept[i].of = e;
    average(e, m->kept[i].mean);
    return m->kept[i].mean;
}

bool coli__imatrix_expert(coli__imatrix *m, const char *name, uint32_t e, uint32_t n_expert,
                          uint32_t n_in, float *out)
{
    const entry *all = find(m, name, n_expert, n_in);
    if (!all || n_in > m->n_in_max) return false;
    const double *layer = mean_of(m, all);
    const double n_row = rows_of(all, e);
    for (uint32_t i = 0; i < n_in; i++)
        out[i] = (float)((n_row * mean_at(all, e, i) + PRIOR * layer[i]) / (n_row + PRIOR));
    return normalise(n_in, out);
}
