/* heat_file.c - heat on the disk, little-endian on every machine.
 *
 *     0    magic 89 48 4f 54 0d 0a 1a 0a     a transfer as text changes one of these bytes
 *     8    u32 version, u32 layers, u32 experts, u32 zero
 *     24   u64 tokens decoded
 *     32   the model's identity, 32 hex digits
 *     64   u32 counters, layer after layer
 *     end - 16   XXH3-128 of all that stands before it
 *
 * The size follows from the shape, so a file that was cut or grew is told from one with a flipped
 * bit.  The older format is 12 bytes (magic 0x51544831, layers, experts) and the same counters. */
#include "heat_file.h"

#include <string.h>
#include <xxhash.h>

#include "../base/alloc.h"
#include "../base/file.h"

enum {
    VERSION = 1,
    HEAD_BYTES = 64,
    IDENTITY_AT = 32,
    IDENTITY_BYTES = 32,
    SUM_BYTES = 16,
    MAX_BYTES = HEAD_BYTES + 4 * COLI__HEAT_MAX_LAYER * COLI__HEAT_MAX_EXPERT + SUM_BYTES,
    OLD_HEAD_BYTES = 12
};
static const uint8_t magic[8] = {0x89, 'H', 'O', 'T', '\r', '\n', 0x1a, '\n'};
static const uint32_t old_magic = 0x51544831;

/* ---- bytes --------------------------------------------------------------------------------- */

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

static void put_sum(uint8_t *p, const uint8_t *data, size_t n_bytes)
{
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits(data, n_bytes));
    memcpy(p, sum.digest, SUM_BYTES);
}

static size_t n_counter(const coli__heat_file *f)
{
    return (size_t)f->n_layer * f->n_expert;
}

/* ---- the object ---------------------------------------------------------------------------- */

static bool is_identity(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!text[i] || !strchr("0123456789abcdef", text[i])) return false;
    return n == IDENTITY_BYTES;
}

static bool is_shape(uint32_t n_layer, uint32_t n_expert)
{
    return n_layer > 0 && n_layer <= COLI__HEAT_MAX_LAYER && n_expert > 0 &&
           n_expert <= COLI__HEAT_MAX_EXPERT;
}

coli_status coli__heat_file_init(coli__heat_file *f, const char *identity, uint32_t n_layer,
                                 uint32_t n_expert)
{
    *f = (coli__heat_file){.n_layer = n_layer, .n_expert = n_expert};
    if (!is_identity(identity, strlen(identity)) || !is_shape(n_layer, n_expert))
        return coli__fail(COLI_E_INVALID, "heat of model \"%s\", %u layers of %u experts: no model",
                          identity, n_layer, n_expert);
    memcpy(f->identity, identity, IDENTITY_BYTES);
    f->count = coli__calloc(n_counter(f), sizeof *f->count);
    return f->count ? COLI_OK : COLI_E_NOMEM;
}

void coli__heat_file_finish(coli__heat_file *f)
{
    if (!f) return;
    coli__free(f->count);
    *f = (coli__heat_file){0};
}

void coli__heat_file_add(coli__heat_file *sum, const coli__heat_file *f)
{
    for (size_t i = 0; i < n_counter(sum); i++)
        if (__builtin_add_overflow(sum->count[i], f->count[i], &sum->count[i]))
            sum->count[i] = UINT32_MAX;
    if (!coli__add(sum->n_token, f->n_token, &sum->n_token)) sum->n_token = UINT64_MAX;
}

/* ---- reading ------------------------------------------------------------------------------- */

/* What is there instead of heat, in words for those who mix up files. */
static coli_status fail_magic(const char *what, const uint8_t *data, size_t n_bytes)
{
    uint8_t old[4], swapped[4];
    put32(old, old_magic);
    for (int i = 0; i < 4; i++) swapped[i] = old[3 - i];
    if (n_bytes >= 4 && memcmp(data, old, 4) == 0)
        return coli__fail(COLI_E_FORMAT,
                          "%s: heat in the older format, which names no model; it can be imported",
                          what);
    if (n_bytes >= 4 && memcmp(data, swapped, 4) == 0)
        return coli__fail(COLI_E_FORMAT,
                          "%s: heat in the older format, written on a big-endian machine", what);
    coli__buf found = {0};
    coli_status status = COLI_OK;
    for (size_t i = 0; i < sizeof magic && i < n_bytes && status == COLI_OK; i++)
        status = coli__buf_printf(&found, " %02x", data[i]);
    if (status == COLI_OK)
        status = coli__fail(COLI_E_FORMAT,
                            "%s: no heat file: expected 89 48 4f 54 0d 0a 1a 0a at its start, "
                            "found%s",
                            what, found.data ? found.data : " nothing");
    coli__buf_finish(&found);
    return status;
}

static coli_status check_head(const char *what, const uint8_t *data, size_t n_bytes)
{
    if (n_bytes < sizeof magic || memcmp(data, magic, sizeof magic) != 0)
        return fail_magic(what, data, n_bytes);
    if (n_bytes < HEAD_BYTES)
        return coli__fail(COLI_E_FORMAT, "%s: torn: expected at least %d bytes, found %zu", what,
                          HEAD_BYTES, n_bytes);
    const uint32_t version = get32(data + 8);
    if (version != VERSION)
        return coli__fail(COLI_E_UNSUPPORTED, "%s: heat file of version %u; expected %d", what,
                          version, VERSION);
    const uint32_t n_layer = get32(data + 12), n_expert = get32(data + 16);
    if (!is_shape(n_layer, n_expert))
        return coli__fail(COLI_E_FORMAT,
                          "%s: expected 1 to %d layers of 1 to %d experts, found %u of %u", what,
                          COLI__HEAT_MAX_LAYER, COLI__HEAT_MAX_EXPERT, n_layer, n_expert);
    const size_t expected = HEAD_BYTES + 4 * (size_t)n_layer * n_expert + SUM_BYTES;
    if (n_bytes != expected)
        return coli__fail(COLI_E_FORMAT,
                          "%s: torn: expected %zu bytes for %u layers of %u experts, found %zu",
                          what, expected, n_layer, n_expert, n_bytes);
    return COLI_OK;
}

/* After the head: the checksum first, for a flipped bit may be anywhere. */
static coli_status check_sum(const char *what, const uint8_t *data, size_t n_bytes)
{
    uint8_t sum[SUM_BYTES];
    put_sum(sum, data, n_bytes - SUM_BYTES);
    const uint8_t *found = data + n_bytes - SUM_BYTES;
    if (memcmp(sum, found, SUM_BYTES) != 0)
        return coli__fail(COLI_E_FORMAT,
                          "%s: damaged: its bytes have the checksum %02x%02x%02x%02x..., it says "
                          "%02x%02x%02x%02x...",
                          what, sum[0], sum[1], sum[2], sum[3], found[0], found[1], found[2],
                          found[3]);
    if (get32(data + 20) != 0)
        return coli__fail(COLI_E_FORMAT, "%s: expected 0 at byte 20, found %u", what,
                          get32(data + 20));
    if (!is_identity((const char *)data + IDENTITY_AT, IDENTITY_BYTES))
        return coli__fail(COLI_E_FORMAT, "%s: expected 32 hex digits at byte %d", what,
                          IDENTITY_AT);
    return COLI_OK;
}

static void get_counts(const uint8_t *data, coli__heat_file *f)
{
    for (size_t i = 0; i < n_counter(f); i++) f->count[i] = get32(data + 4 * i);
}

coli_status coli__heat_file_parse(const char *what, const uint8_t *data, size_t n_bytes,
                                  coli__heat_file *out)
{
    *out = (coli__heat_file){0};
    COLI_TRY(check_head(what, data, n_bytes));
    COLI_TRY(check_sum(what, data, n_bytes));
    char identity[IDENTITY_BYTES + 1] = {0};
    memcpy(identity, data + IDENTITY_AT, IDENTITY_BYTES);
    const coli_status status =
        coli__heat_file_init(out, identity, get32(data + 12), get32(data + 16));
    if (status != COLI_OK) {
        coli__heat_file_finish(out);
        return status;
    }
    out->n_token = get64(data + 24);
    get_counts(data + HEAD_BYTES, out);
    return COLI_OK;
}

coli_status coli__heat_file_read(const char *path, coli__heat_file *out)
{
    *out = (coli__heat_file){0};
    coli__buf bytes;
    COLI_TRY(coli__file_read(path, MAX_BYTES, &bytes));
    const coli_status status =
        coli__heat_file_parse(path, (const uint8_t *)bytes.data, bytes.n_bytes, out);
    coli__buf_finish(&bytes);
    return status;
}

coli_status coli__heat_file_expect(const char *path, const coli__heat_file *found,
                                   const char *identity, uint32_t n_layer, uint32_t n_expert)
{
    if (strcmp(found->identity, identity) == 0 && found->n_layer == n_layer &&
        found->n_expert == n_expert)
        return COLI_OK;
    return coli__fail(COLI_E_FORMAT,
                      "%s: heat of another model: expected %s, %u layers of %u experts; found %s, "
                      "%u of %u",
                      path, identity, n_layer, n_expert, found->identity, found->n_layer,
                      found->n_expert);
}

coli_status coli__heat_file_import(const char *path, coli__heat_file *into)
{
    coli__buf bytes;
    COLI_TRY(coli__file_read(path, MAX_BYTES, &bytes));
    const uint8_t *data = (const uint8_t *)bytes.data;
    const size_t expected = OLD_HEAD_BYTES + 4 * n_counter(into);
    coli_status status = COLI_OK;
    if (bytes.n_bytes < OLD_HEAD_BYTES || get32(data) != old_magic)
        status = coli__fail(COLI_E_FORMAT,
                            "%s: no heat file of the older format: expected 31 48 54 51 at its "
                            "start and at least %d bytes, found %zu bytes",
                            path, OLD_HEAD_BYTES, bytes.n_bytes);
    else if (get32(data + 4) != into->n_layer || get32(data + 8) != into->n_expert)
        status = coli__fail(COLI_E_FORMAT,
                            "%s: expected %u layers of %u experts, as the model has; found %u of "
                            "%u",
                            path, into->n_layer, into->n_expert, get32(data + 4), get32(data + 8));
    else if (bytes.n_bytes != expected)
        status = coli__fail(COLI_E_FORMAT,
                            "%s: torn: expected %zu bytes for %u layers of %u experts, found %zu",
                            path, expected, into->n_layer, into->n_expert, bytes.n_bytes);
    else
        get_counts(data + OLD_HEAD_BYTES, into);
    coli__buf_finish(&bytes);
    return status;
}

/* ---- writing ------------------------------------------------------------------------------- */

/* Nothing, or heat of the same model: anything else is somebody's. */
static coli_status may_replace(const char *path, const coli__heat_file *f)
{
    if (!coli__path_exists(path)) return COLI_OK;
    coli__heat_file there;
    coli_status status = coli__heat_file_read(path, &there);
    if (status == COLI_OK)
        status = coli__heat_file_expect(path, &there, f->identity, f->n_layer, f->n_expert);
    coli__heat_file_finish(&there);
    if (status != COLI_OK && status != COLI_E_NOMEM)
        return coli__fail_in(status, "heat is not written");
    return status;
}

coli_status coli__heat_file_write(const char *path, const coli__heat_file *f)
{
    COLI_TRY(may_replace(path, f));
    const size_t n_bytes = HEAD_BYTES + 4 * n_counter(f) + SUM_BYTES;
    uint8_t *data = coli__calloc(n_bytes, 1);
    if (!data) return COLI_E_NOMEM;
    memcpy(data, magic, sizeof magic);
    put32(data + 8, VERSION);
    put32(data + 12, f->n_layer);
    put32(data + 16, f->n_expert);
    put64(data + 24, f->n_token);
    memcpy(data + IDENTITY_AT, f->identity, IDENTITY_BYTES);
    for (size_t i = 0; i < n_counter(f); i++) put32(data + HEAD_BYTES + 4 * i, f->count[i]);
    put_sum(data + n_bytes - SUM_BYTES, data, n_bytes - SUM_BYTES);
    const coli_status status = coli__file_replace(path, data, n_bytes);
    coli__free(data);
    return status;
}
