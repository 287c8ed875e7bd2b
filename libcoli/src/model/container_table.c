/* container_table.c - the table of a container: what is in model.coli, where, in which format.
 *
 * Pure: bytes in memory to a table and back.
 *
 * The layout is canonical, there is one right offset for everything: entries stand in the table's
 * order, each at the next multiple of its alignment behind the one before, and the file ends with
 * the last.  So reading needs one cursor to prove that nothing overlaps, nothing lies outside, and
 * no bytes are unaccounted for:
 *
 *     cursor = data_offset
 *     each tensor:  offset == align(cursor, 64),   cursor = offset + bytes
 *     each layer:   offset == align(cursor, 4096), cursor = offset + n_expert * block_bytes
 *     cursor == file_bytes
 *
 * Everything the table says about sizes follows from formats and dims; it is compared, not trusted.
 * No pointer is made before its span was proven. */
#include "container_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "weights are used as they lie in the file");

const char *const coli__ct_file_names[CT_N_FILE] = {"config.json", "generation_config.json",
                                                    "tokenizer.json", "tokenizer_config.json",
                                                    "chat.json"};

enum { TABLE_MAX_DEPTH = 8 };

/* -- checksums --------------------------------------------------------------------------------- */

coli__digest coli__digest_of(const void *bytes, uint64_t n_bytes)
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, (size_t)n_bytes));
    return coli__digest_text(canonical.digest);
}

coli__digest coli__digest_text(const uint8_t bytes[16])
{
    static const char digits[] = "0123456789abcdef";
    coli__digest d = {{0}};
    for (int i = 0; i < 16; i++) {
        d.hex[2 * i] = digits[bytes[i] >> 4];
        d.hex[2 * i + 1] = digits[bytes[i] & 15];
    }
    return d;
}

static bool digest_parse(const char *text, coli__digest *out)
{
    *out = (coli__digest){{0}};
    if (!text || strlen(text) != 32 || strspn(text, "0123456789abcdef") != 32) return false;
    memcpy(out->hex, text, 32);
    return true;
}

/* -- sizes ------------------------------------------------------------------------------------- */

bool coli__ct_name_ok(const char *name)
{
    const size_t n = strlen(name);
    return n > 0 && n < sizeof((coli__ct_tensor *)0)->name &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

static bool dim_ok(uint32_t n)
{
    return n > 0 && n <= CT_MAX_DIM;
}

bool coli__ct_size_tensor(coli__ct_tensor *t)
{
    return dim_ok(t->mat.n_out) && dim_ok(t->mat.n_in) &&
           coli__mat_bytes(t->mat.fmt, t->mat.n_out, t->mat.n_in, &t->n_bytes, NULL);
}

bool coli__ct_size_experts(coli__ct_experts *x)
{
    if (!dim_ok(x->n_expert) || x->n_expert > CT_MAX_EXPERT || !dim_ok(x->d_model) ||
        !dim_ok(x->d_ff))
        return false;
    x->gate.n_out = x->up.n_out = x->down.n_in = x->d_ff;
    x->gate.n_in = x->up.n_in = x->down.n_out = x->d_model;
    uint64_t gate, up, down, all;
    if (!coli__mat_bytes(x->gate.fmt, x->d_ff, x->d_model, &gate, NULL) ||
        !coli__mat_bytes(x->up.fmt, x->d_ff, x->d_model, &up, NULL) ||
        !coli__mat_bytes(x->down.fmt, x->d_model, x->d_ff, &down, NULL))
        return false;
    x->up_offset = coli__ct_align(gate, CT_TENSOR_ALIGN); // a matrix has less than 2^52 bytes
    x->down_offset = coli__ct_align(x->up_offset + up, CT_TENSOR_ALIGN);
    x->block_bytes = coli__ct_align(x->down_offset + down, CT_TENSOR_ALIGN);
    return coli__mul(x->block_bytes, x->n_expert, &all);
}

void coli__ct_table_finish(coli__ct_table *table)
{
    for (uint32_t i = 0; table->layers && i < table->n_layer; i++) {
        coli__free(table->layers[i].scale_exp);
        coli__free(table->layers[i].digests);
    }
    coli__free(table->layers);
    coli__free(table->entries);
    coli__free(table->by_name);
    *table = (coli__ct_table){0};
}

/* -- identity ---------------------------------------------------------------------------------- */

/* One line per fact.  Offsets and the other files stay out: they do not change what is computed. */
static coli_status identity_text(const coli__ct_table *table, coli__buf *text)
{
    char gate[32], up[32], down[32];
    COLI_TRY(coli__buf_printf(text, "engine %s\nconfig %s\n", table->engine,
                              table->files[CT_CONFIG].hex));
    for (uint32_t i = 0; i < table->n_entry; i++) {
        const coli__ct_entry *e = &table->entries[i];
        const coli__mat *m = &e->tensor.mat;
        coli__wfmt_name(m->fmt, gate);
        COLI_TRY(coli__buf_printf(text, "tensor %s %s %u %u %d %s\n", e->tensor.name, gate,
                                  m->n_out, m->n_in, m->scale_exp, e->digest.hex));
    }
    for (uint32_t i = 0; i < table->n_layer; i++) {
        const coli__ct_layer *l = &table->layers[i];
        const coli__ct_experts *x = &l->experts;
        coli__wfmt_name(x->gate.fmt, gate);
        coli__wfmt_name(x->up.fmt, up);
        coli__wfmt_name(x->down.fmt, down);
        COLI_TRY(coli__buf_printf(text, "experts %u %u %u %u %s %s %s\n", x->layer, x->n_expert,
                                  x->d_model, x->d_ff, gate, up, down));
        for (uint32_t e = 0; e < x->n_expert; e++)
            COLI_TRY(coli__buf_printf(text, "expert %u %d %d %d %s\n", e, l->scale_exp[3 * e],
                                      l->scale_exp[3 * e + 1], l->scale_exp[3 * e + 2],
                                      l->digests[e].hex));
    }
    return COLI_OK;
}

coli_status coli__ct_identity(const coli__ct_table *table, coli__digest *out)
{
    coli__buf text = {0};
    const coli_status status = identity_text(table, &text);
    if (status == COLI_OK) *out = coli__digest_of(text.data, text.n_bytes);
    coli__buf_finish(&text);
    return status;
}

/* -- to JSON ----------------------------------------------------------------------------------- */

static coli_status render_files(const coli__ct_table *table, coli__buf *out)
{
    const char *separator = "";
    COLI_TRY(coli__buf_str(out, "\"files\":{"));
    for (int i = 0; i < CT_N_FILE; i++) {
        if (!table->files[i].hex[0]) continue;
        COLI_TRY(coli__buf_printf(out, "%s\"%s\":\"%s\"", separator, coli__ct_file_names[i],
                                  table->files[i].hex));
        separator = ",";
    }
    return coli__buf_str(out, "},\n");
}

static coli_status render_entry(const coli__ct_entry *e, coli__buf *out)
{
    const coli__mat *m = &e->tensor.mat;
    char format[32];
    coli__wfmt_name(m->fmt, format);
    return coli__buf_printf(out,
                            "{\"name\":\"%s\",\"format\":\"%s\",\"n_out\":%u,\"n_in\":%u,"
                            "\"scale_exp\":%d,\"offset\":%llu,\"bytes\":%llu,\"xxh3\":\"%s\"}",
                            e->tensor.name, format, m->n_out, m->n_in, m->scale_exp,
                            (unsigned long long)e->offset, (unsigned long long)e->tensor.n_bytes,
                            e->digest.hex);
}

static coli_status render_layer(const coli__ct_layer *l, coli__buf *out)
{
    const coli__ct_experts *x = &l->experts;
    char gate[32], up[32], down[32];
    coli__wfmt_name(x->gate.fmt, gate);
    coli__wfmt_name(x->up.fmt, up);
    coli__wfmt_name(x->down.fmt, down);
    COLI_TRY(coli__buf_printf(
        out,
        "{\"layer\":%u,\"n_expert\":%u,\"d_model\":%u,\"d_ff\":%u,\"gate\":\"%s\",\"up\":\"%s\","
        "\"down\":\"%s\",\"up_offset\":%llu,\"down_offset\":%llu,\"block_bytes\":%llu,"
        "\"offset\":%llu,\n\"scale_exp\":[",
        x->layer, x->n_expert, x->d_model, x->d_ff, gate, up, down,
        (unsigned long long)x->up_offset, (unsigned long long)x->down_offset,
        (unsigned long long)x->block_bytes, (unsigned long long)l->offset));
    for (uint32_t i = 0; i < 3 * x->n_expert; i++)
        COLI_TRY(coli__buf_printf(out, "%s%d", i ? "," : "", l->scale_exp[i]));
    COLI_TRY(coli__buf_str(out, "],\n\"xxh3\":["));
    for (uint32_t e = 0; e < x->n_expert; e++)
        COLI_TRY(coli__buf_printf(out, "%s\"%s\"", e ? "," : "", l->digests[e].hex));
    return coli__buf_str(out, "]}");
}

coli_status coli__ct_render(const coli__ct_table *table, coli__buf *out)
{
    COLI_TRY(coli__buf_printf(out, "{\"engine\":\"%s\",\"identity\":\"%s\",\n", table->engine,
                              table->identity.hex));
    COLI_TRY(render_files(table, out));
    COLI_TRY(coli__buf_str(out, "\"tensors\":["));
    for (uint32_t i = 0; i < table->n_entry; i++) {
        COLI_TRY(coli__buf_str(out, i ? ",\n" : "\n"));
        COLI_TRY(render_entry(&table->entries[i], out));
    }
    COLI_TRY(coli__buf_str(out, "],\n\"experts\":["));
    for (uint32_t i = 0; i < table->n_layer; i++) {
        COLI_TRY(coli__buf_str(out, i ? ",\n" : "\n"));
        COLI_TRY(render_layer(&table->layers[i], out));
    }
    return coli__buf_str(out, "]}\n");
}

/* -- from bytes: the head ---------------------------------------------------------------------- */

/* What one parse works on. */
typedef struct parse {
    const char *what;
    const uint8_t *data;
    uint64_t n_bytes;
    uint64_t cursor; // end of what is accounted for
    coli__ct_table *table;
} parse;

static uint32_t get_u32(const uint8_t *p)
{
    uint32_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static uint64_t get_u64(const uint8_t *p)
{
    uint64_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static coli_status check_head(const parse *p, uint64_t *table_bytes)
{
    if (p->n_bytes < CT_FIXED_BYTES || memcmp(p->data, CT_MAGIC, 8) != 0)
        return coli__fail(COLI_E_FORMAT,
                          "%s: not a coli container, or damaged in its first 40 bytes", p->what);
    const uint32_t version = get_u32(p->data + 8), zero = get_u32(p->data + 12);
    if (version != CT_VERSION)
        return coli__fail(version > CT_VERSION ? COLI_E_UNSUPPORTED : COLI_E_FORMAT,
                          "%s: needs a program that reads container version %u; this one reads "
                          "version %d",
                          p->what, version, CT_VERSION);
    *table_bytes = get_u64(p->data + 16);
    const uint64_t head = get_u64(p->data + 24), file = get_u64(p->data + 32);
    if (file != p->n_bytes)
        return coli__fail(COLI_E_FORMAT, "%s: expected a file of %llu bytes, found %llu", p->what,
                          (unsigned long long)file, (unsigned long long)p->n_bytes);
    if (zero != 0 || head % CT_DATA_ALIGN != 0 || head > file ||
        *table_bytes > CT_TABLE_MAX_BYTES ||
        head < CT_FIXED_BYTES + *table_bytes + CT_CHECKSUM_BYTES ||
        head > CT_TABLE_MAX_BYTES + CT_DATA_ALIGN)
        return coli__fail(COLI_E_FORMAT,
                          "%s: header: a table of %llu bytes and data at %llu cannot be", p->what,
                          (unsigned long long)*table_bytes, (unsigned long long)head);
    const coli__digest expected = coli__digest_text(p->data + head - CT_CHECKSUM_BYTES);
    const coli__digest found = coli__digest_of(p->data, head - CT_CHECKSUM_BYTES);
    if (strcmp(expected.hex, found.hex) != 0)
        return coli__fail(COLI_E_FORMAT, "%s: header: expected checksum %s, found %s", p->what,
                          expected.hex, found.hex);
    for (uint64_t i = CT_FIXED_BYTES + *table_bytes; i < head - CT_CHECKSUM_BYTES; i++)
        if (p->data[i] != 0)
            return coli__fail(COLI_E_FORMAT,
                              "%s: header: expected zeros behind the table, found 0x%02x "
                              "at %llu",
                              p->what, p->data[i], (unsigned long long)i);
    p->table->data_offset = head;
    p->table->file_bytes = file;
    return COLI_OK;
}

/* -- from bytes: the table --------------------------------------------------------------------- */

/* Members of one JSON object.  A failure is remembered, so that a caller reads all of an object's
 * members and looks once. */
typedef struct members {
    const char *where; // "model.coli: tensor x"
    const json_t *object;
    coli_status status;
} members;

static json_int_t get_int(members *m, const char *key, json_int_t min, json_int_t max)
{
    const json_t *value = json_object_get(m->object, key);
    const json_int_t number = json_integer_value(value);
    if (m->status == COLI_OK && (!json_is_integer(value) || number < min || number > max))
        m->status = coli__fail(COLI_E_FORMAT, "%s: %s: expected a whole number from %lld to %lld",
                               m->where, key, (long long)min, (long long)max);
    return m->status == COLI_OK ? number : min;
}

static uint32_t get_dim(members *m, const char *key, uint32_t max)
{
    return (uint32_t)get_int(m, key, 1, max);
}

static uint64_t get_offset(members *m, const char *key)
{
    return (uint64_t)get_int(m, key, 0, INT64_MAX);
}

static const char *get_string(members *m, const char *key)
{
    const char *text = json_string_value(json_object_get(m->object, key));
    if (m->status == COLI_OK && !text)
        m->status = coli__fail(COLI_E_FORMAT, "%s: %s: expected a string", m->where, key);
    return m->status == COLI_OK ? text : "";
}

static coli__wfmt get_format(members *m, const char *key)
{
    coli__wfmt fmt = {0};
    const char *name = get_string(m, key);
    if (m->status != COLI_OK) return fmt;
    m->status = coli__wfmt_parse(name, &fmt);
    char canonical[32] = "";
    if (m->status == COLI_OK) coli__wfmt_name(fmt, canonical);
    if (m->status != COLI_OK || strcmp(canonical, name) != 0) // short spellings are for people
        m->status = coli__fail(COLI_E_FORMAT, "%s: %s: \"%.31s\" is not a weight format", m->where,
                               key, name);
    return fmt;
}

static coli__digest get_digest(members *m, const char *key)
{
    coli__digest digest = {{0}};
    const char *text = get_string(m, key);
    if (m->status == COLI_OK && !digest_parse(text, &digest))
        m->status = coli__fail(COLI_E_FORMAT, "%s: %s: expected 32 hex digits", m->where, key);
    return digest;
}

/* A list with exactly n members; NULL and a failure otherwise. */
static const json_t *get_list(members *m, const char *key, size_t n)
{
    const json_t *list = json_object_get(m->object, key);
    if (m->status == COLI_OK && (!json_is_array(list) || json_array_size(list) != n))
        m->status = coli__fail(COLI_E_FORMAT, "%s: %s: expected a list of %zu, found %zu", m->where,
                               key, n, json_array_size(list));
    return m->status == COLI_OK ? list : NULL;
}

static bool scale_exp_ok(coli__wfmt fmt, json_int_t e)
{
    return e == 0 || (fmt.scale_f16 && e >= -CT_MAX_SCALE_EXP && e <= CT_MAX_SCALE_EXP);
}

/* The span [offset, offset + n_bytes) must be the next one of the canonical layout. */
static coli_status take_span(parse *p, const char *where, uint64_t offset, uint64_t n_bytes,
                             uint64_t align)
{
    const uint64_t expected = coli__ct_align(p->cursor, align);
    if (offset != expected)
        return coli__fail(COLI_E_FORMAT, "%s: expected at offset %llu, found at %llu", where,
                          (unsigned long long)expected, (unsigned long long)offset);
    uint64_t end;
    if (!coli__add(offset, n_bytes, &end) || end > p->n_bytes)
        return coli__fail(COLI_E_FORMAT, "%s: needs %llu bytes at %llu, the file has %llu", where,
                          (unsigned long long)n_bytes, (unsigned long long)offset,
                          (unsigned long long)p->n_bytes);
    p->cursor = end;
    return COLI_OK;
}

static coli_status parse_entry(parse *p, uint32_t index, const json_t *object, coli__ct_entry *e)
{
    char where[256];
    snprintf(where, sizeof where, "%.120s: tensor %u", p->what, index);
    members m = {where, object, COLI_OK};
    const char *name = get_string(&m, "name");
    COLI_TRY(m.status);
    if (!coli__ct_name_ok(name)) return coli__fail(COLI_E_FORMAT, "%s: a bad name", where);
    snprintf(e->tensor.name, sizeof e->tensor.name, "%s", name);
    snprintf(where, sizeof where, "%.120s: tensor %s", p->what, name);

    coli__mat *mat = &e->tensor.mat;
    mat->fmt = get_format(&m, "format");
    mat->n_out = get_dim(&m, "n_out", CT_MAX_DIM);
    mat->n_in = get_dim(&m, "n_in", CT_MAX_DIM);
    mat->scale_exp = (int32_t)get_int(&m, "scale_exp", -CT_MAX_SCALE_EXP, CT_MAX_SCALE_EXP);
    e->offset = get_offset(&m, "offset");
    const uint64_t n_bytes = get_offset(&m, "bytes");
    e->digest = get_digest(&m, "xxh3");
    COLI_TRY(m.status);
    if (!scale_exp_ok(mat->fmt, mat->scale_exp))
        return coli__fail(COLI_E_FORMAT, "%s: scale_exp: expected 0, found %d", where,
                          mat->scale_exp);
    if (!coli__ct_size_tensor(&e->tensor) || n_bytes != e->tensor.n_bytes)
        return coli__fail(COLI_E_FORMAT, "%s: bytes: expected %llu, found %llu", where,
                          (unsigned long long)e->tensor.n_bytes, (unsigned long long)n_bytes);
    COLI_TRY(take_span(p, where, e->offset, n_bytes, CT_TENSOR_ALIGN));
    mat->data = p->data + e->offset;
    return COLI_OK;
}

static coli_status parse_lists(const char *where, members *m, coli__ct_layer *l)
{
    coli__ct_experts *x = &l->experts;
    const json_t *exps = get_list(m, "scale_exp", 3 * (size_t)x->n_expert);
    const json_t *digests = get_list(m, "xxh3", x->n_expert);
    COLI_TRY(m->status);
    l->scale_exp = coli__calloc(3 * (size_t)x->n_expert, sizeof *l->scale_exp);
    l->digests = coli__calloc(x->n_expert, sizeof *l->digests);
    if (!l->scale_exp || !l->digests) return COLI_E_NOMEM;
    const coli__wfmt formats[3] = {x->gate.fmt, x->up.fmt, x->down.fmt};
    for (uint32_t i = 0; i < 3 * x->n_expert; i++) {
        const json_t *value = json_array_get(exps, i);
        if (!json_is_integer(value) || !scale_exp_ok(formats[i % 3], json_integer_value(value)))
            return coli__fail(COLI_E_FORMAT,
                              "%s: scale_exp[%u]: not a power that the format allows", where, i);
        l->scale_exp[i] = (int32_t)json_integer_value(value);
    }
    for (uint32_t e = 0; e < x->n_expert; e++)
        if (!digest_parse(json_string_value(json_array_get(digests, e)), &l->digests[e]))
            return coli__fail(COLI_E_FORMAT, "%s: xxh3[%u]: expected 32 hex digits", where, e);
    return COLI_OK;
}

static void point_into(coli__ct_experts *x, const uint8_t *data, const int32_t *scale_exp)
{
    x->data = data;
    x->scale_exp = scale_exp;
    x->gate.data = data;
    x->up.data = data + x->up_offset;
    x->down.data = data + x->down_offset;
    x->gate.scale_exp = scale_exp[0];
    x->up.scale_exp = scale_exp[1];
    x->down.scale_exp = scale_exp[2];
}

static coli_status parse_layer(parse *p, uint32_t index, const json_t *object, coli__ct_layer *l)
{
    char where[256];
    snprintf(where, sizeof where, "%.120s: experts %u", p->what, index);
    members m = {where, object, COLI_OK};
    coli__ct_experts *x = &l->experts;
    const json_int_t next = index ? (json_int_t)l[-1].experts.layer + 1 : 0; // ascending
    x->layer = (uint32_t)get_int(&m, "layer", next, CT_MAX_LAYER - 1);
    x->n_expert = get_dim(&m, "n_expert", CT_MAX_EXPERT);
    x->d_model = get_dim(&m, "d_model", CT_MAX_DIM);
    x->d_ff = get_dim(&m, "d_ff", CT_MAX_DIM);
    x->gate.fmt = get_format(&m, "gate");
    x->up.fmt = get_format(&m, "up");
    x->down.fmt = get_format(&m, "down");
    const uint64_t up = get_offset(&m, "up_offset"), down = get_offset(&m, "down_offset");
    const uint64_t block = get_offset(&m, "block_bytes");
    l->offset = get_offset(&m, "offset");
    COLI_TRY(m.status);
    if (!coli__ct_size_experts(x) || up != x->up_offset || down != x->down_offset ||
        block != x->block_bytes)
        return coli__fail(
            COLI_E_FORMAT,
            "%s: up_offset, down_offset, block_bytes: expected %llu, %llu, %llu, found "
            "%llu, %llu, %llu",
            where, (unsigned long long)x->up_offset, (unsigned long long)x->down_offset,
            (unsigned long long)x->block_bytes, (unsigned long long)up, (unsigned long long)down,
            (unsigned long long)block);
    COLI_TRY(parse_lists(where, &m, l));
    COLI_TRY(take_span(p, where, l->offset, x->block_bytes * x->n_expert, CT_EXPERTS_ALIGN));
    point_into(x, p->data + l->offset, l->scale_exp);
    return COLI_OK;
}

static coli_status parse_files(const parse *p, const json_t *root)
{
    char where[256];
    snprintf(where, sizeof where, "%.120s: files", p->what);
    members m = {where, json_object_get(root, "files"), COLI_OK};
    for (int i = 0; i < CT_N_FILE; i++)
        if (json_object_get(m.object, coli__ct_file_names[i]))
            p->table->files[i] = get_digest(&m, coli__ct_file_names[i]);
    COLI_TRY(m.status);
    const int needed[] = {CT_CONFIG, CT_CHAT};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (!p->table->files[needed[i]].hex[0])
            return coli__fail(COLI_E_FORMAT, "%s: %s is missing", where,
                              coli__ct_file_names[needed[i]]);
    return COLI_OK;
}

static coli_status parse_root(parse *p, const json_t *root)
{
    members m = {p->what, root, COLI_OK};
    const char *engine = get_string(&m, "engine");
    p->table->identity = get_digest(&m, "identity");
    const json_t *tensors = json_object_get(root, "tensors"),
                 *experts = json_object_get(root, "experts");
    COLI_TRY(m.status);
    if (strlen(engine) >= sizeof p->table->engine || !coli__ct_name_ok(engine))
        return coli__fail(COLI_E_FORMAT, "%s: engine: a bad name", p->what);
    snprintf(p->table->engine, sizeof p->table->engine, "%s", engine);
    if (!json_is_array(tensors) || json_array_size(tensors) > CT_MAX_TENSOR ||
        !json_is_array(experts) || json_array_size(experts) > CT_MAX_LAYER)
        return coli__fail(COLI_E_FORMAT,
                          "%s: expected a list of at most %d tensors and one of at most %d experts",
                          p->what, CT_MAX_TENSOR, CT_MAX_LAYER);
    COLI_TRY(parse_files(p, root));

    p->table->n_entry = (uint32_t)json_array_size(tensors);
    p->table->n_layer = (uint32_t)json_array_size(experts);
    p->table->entries = coli__calloc(p->table->n_entry, sizeof *p->table->entries);
    p->table->layers = coli__calloc(p->table->n_layer, sizeof *p->table->layers);
    if (!p->table->entries || !p->table->layers) return COLI_E_NOMEM;
    for (uint32_t i = 0; i < p->table->n_entry; i++)
        COLI_TRY(parse_entry(p, i, json_array_get(tensors, i), &p->table->entries[i]));
    for (uint32_t i = 0; i < p->table->n_layer; i++)
        COLI_TRY(parse_layer(p, i, json_array_get(experts, i), &p->table->layers[i]));
    if (p->cursor != p->n_bytes)
        return coli__fail(COLI_E_FORMAT, "%s: the weights end at byte %llu, the file has %llu",
                          p->what, (unsigned long long)p->cursor, (unsigned long long)p->n_bytes);
    return COLI_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const coli__ct_entry *const *)a)->tensor.name,
                  (*(const coli__ct_entry *const *)b)->tensor.name);
}

coli_status coli__ct_table_sort(coli__ct_table *t)
{
    t->by_name = coli__calloc(t->n_entry, sizeof *t->by_name);
    if (!t->by_name) return COLI_E_NOMEM;
    for (uint32_t i = 0; i < t->n_entry; i++) t->by_name[i] = &t->entries[i];
    if (t->n_entry > 1) qsort(t->by_name, t->n_entry, sizeof *t->by_name, by_name);
    return COLI_OK;
}

static coli_status sort_names(const parse *p)
{
    coli__ct_table *t = p->table;
    COLI_TRY(coli__ct_table_sort(t));
    for (uint32_t i = 1; i < t->n_entry; i++)
        if (by_name(&t->by_name[i - 1], &t->by_name[i]) == 0)
            return coli__fail(COLI_E_FORMAT, "%s: tensor %s: is there twice", p->what,
                              t->by_name[i]->tensor.name);
    return COLI_OK;
}

const coli__ct_entry *coli__ct_table_find(const coli__ct_table *table, const char *name)
{
    uint32_t low = 0, high = table->n_entry; // the name is in [low, high)
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const int order = strcmp(name, table->by_name[middle]->tensor.name);
        if (order == 0) return table->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

static coli_status check_identity(const parse *p)
{
    coli__digest found;
    COLI_TRY(coli__ct_identity(p->table, &found));
    if (strcmp(found.hex, p->table->identity.hex) == 0) return COLI_OK;
    return coli__fail(COLI_E_FORMAT, "%s: identity: expected %s, found %s", p->what, found.hex,
                      p->table->identity.hex);
}

coli_status coli__ct_parse(const char *what, const uint8_t *data, uint64_t n_bytes,
                           coli__ct_table *out)
{
    *out = (coli__ct_table){0};
    parse p = {.what = what, .data = data, .n_bytes = n_bytes, .table = out};
    uint64_t table_bytes = 0;
    COLI_TRY(check_head(&p, &table_bytes));
    p.cursor = out->data_offset;

    json_t *root;
    COLI_TRY(coli__json_parse(what, (const char *)data + CT_FIXED_BYTES, (size_t)table_bytes,
                              TABLE_MAX_DEPTH, &root));
    coli_status status = parse_root(&p, root);
    json_decref(root);
    if (status == COLI_OK) status = sort_names(&p);
    if (status == COLI_OK) status = check_identity(&p);
    if (status != COLI_OK) coli__ct_table_finish(out);
    return status;
}
