/* gguf.c - see gguf.h; the format is in docs/formats/gguf.md.
 *
 * A file is a header, metadata, the list of tensors and the data:
 *
 *     "GGUF" | u32 version | u64 n_tensor | u64 n_kv
 *     n_kv times       string key | u32 type | value
 *     n_tensor times   string name | u32 rank | u64 dims[rank] | u32 kind | u64 offset
 *     zeros up to a multiple of the alignment, then data; offsets count from here
 *
 * Opening walks all of it once with a cursor that never leaves the file.  What it proves:
 *   (1) a count is compared with what the bytes left could hold before anything loops over it, and
 *       lists grow with the entries that were read, not with the entries that were promised;
 *   (2) strings and arrays end inside the file; arrays in arrays are nested at most MAX_DEPTH deep;
 *   (3) a key occurs once in a file, a tensor once in all parts;
 *   (4) rows are whole blocks, a tensor's bytes follow from its dims without overflow, begin at a
 *       multiple of the alignment, lie in the file and overlap no other tensor's;
 *   (5) the parts of a split file agree about how many they are, which one each is, and how many
 *       tensors they hold together.
 *
 * Values stay where they are: a value is a pointer and a length inside its mapping, unaligned.
 *
 * Not here: what kinds mean (gguf_kinds.c), what keys mean (the family), a file that changes while
 * it is mapped. */
#include "gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "values are read as they lie in the file");

enum {
    HEADER_BYTES = 24,
    KV_MIN_BYTES = 8 + 1 + 4 + 1, // a key of one letter and a bool
    TENSOR_MIN_BYTES = 8 + 1 + 4 + 8 + 4 + 8,
    MAX_KV = 1 << 16,
    MAX_KEY = 65535, // the format's own limit
    MAX_DEPTH = 4,
    MAX_ALIGNMENT = 1 << 20,
    MAX_PART = 4096,
    HEAP_OVERHEAD = 32, // of one allocation, at most
};

typedef struct part {
    char *path;
    coli__map map;
    bool borrowed;            // the bytes are the caller's
    coli__gguf_value *values; // sorted by key once read
    size_t n_value, cap_value;
    size_t first_tensor, n_tensor;
    uint64_t alignment;
} part;

struct coli__gguf {
    part *parts;
    size_t n_part;
    coli__gguf_tensor *tensors; // sorted by name once open
    size_t n_tensor, cap_tensor;
    uint64_t name_bytes;
};

/* A key or name for a message: bounded, without control characters. */
typedef struct shown {
    char text[104];
} shown;

static shown show_text(coli__gguf_text t)
{
    shown s;
    size_t n = 0;
    for (; n < t.n_bytes && n + 4 < sizeof s.text; n++)
        s.text[n] = (unsigned char)t.data[n] < 0x20 || t.data[n] == 0x7f ? '?' : t.data[n];
    if (n < t.n_bytes) {
        while (n > 0 && ((unsigned char)t.data[n] & 0xC0) == 0x80) n--; // not inside a character
        memcpy(s.text + n, "...", 3);
        n += 3;
    }
    s.text[n] = 0;
    return s;
}

static shown show(const char *name)
{
    return show_text((coli__gguf_text){name, strlen(name)});
}

/* -- the cursor -------------------------------------------------------------------------------- */

typedef struct cursor {
    const char *path;
    const uint8_t *data;
    uint64_t n_bytes, at; // at <= n_bytes
} cursor;

static uint64_t left(const cursor *c)
{
    return c->n_bytes - c->at;
}

/* The next n bytes, or an error that says what they were to be. */
static coli_status take(cursor *c, uint64_t n, const char *what, const uint8_t **out)
{
    *out = c->data;
    if (n > left(c))
        return coli__fail(
            COLI_E_FORMAT, "%s: %s at byte %llu: needs %llu bytes, the file has %llu left", c->path,
            what, (unsigned long long)c->at, (unsigned long long)n, (unsigned long long)left(c));
    *out = c->data + c->at;
    c->at += n;
    return COLI_OK;
}

static coli_status take_u32(cursor *c, const char *what, uint32_t *out)
{
    const uint8_t *p;
    *out = 0;
    COLI_TRY(take(c, sizeof *out, what, &p));
    memcpy(out, p, sizeof *out);
    return COLI_OK;
}

static coli_status take_u64(cursor *c, const char *what, uint64_t *out)
{
    const uint8_t *p;
    *out = 0;
    COLI_TRY(take(c, sizeof *out, what, &p));
    memcpy(out, p, sizeof *out);
    return COLI_OK;
}

static coli_status take_text(cursor *c, const char *what, coli__gguf_text *out)
{
    uint64_t n;
    const uint8_t *p;
    COLI_TRY(take_u64(c, what, &n));
    COLI_TRY(take(c, n, what, &p));
    *out = (coli__gguf_text){(const char *)p, n};
    return COLI_OK;
}

/* -- metadata ---------------------------------------------------------------------------------- */

static const uint8_t type_bytes[COLI_GGUF_N_TYPE] = {
    [COLI_GGUF_U8] = 1,  [COLI_GGUF_I8] = 1,  [COLI_GGUF_BOOL] = 1, [COLI_GGUF_U16] = 2,
    [COLI_GGUF_I16] = 2, [COLI_GGUF_U32] = 4, [COLI_GGUF_I32] = 4,  [COLI_GGUF_F32] = 4,
    [COLI_GGUF_U64] = 8, [COLI_GGUF_I64] = 8, [COLI_GGUF_F64] = 8,
};

static coli_status take_type(cursor *c, coli__gguf_type *out)
{
    uint32_t type = 0;
    COLI_TRY(take_u32(c, "the type of a value", &type));
    if (type >= COLI_GGUF_N_TYPE)
        return coli__fail(COLI_E_FORMAT, "%s: type %u of a value: expected 0 to %d", c->path, type,
                          COLI_GGUF_N_TYPE - 1);
    *out = (coli__gguf_type)type;
    return COLI_OK;
}

static coli_status skip_elements(cursor *c, coli__gguf_type type, uint64_t n, int depth);

static coli_status skip_array(cursor *c, int depth)
{
    coli__gguf_type type = COLI_GGUF_U8;
    uint64_t n = 0;
    if (depth > MAX_DEPTH)
        return coli__fail(COLI_E_FORMAT, "%s: arrays are nested more than %d deep", c->path,
                          MAX_DEPTH);
    COLI_TRY(take_type(c, &type));
    COLI_TRY(take_u64(c, "the length of an array", &n));
    return skip_elements(c, type, n, depth);
}

static coli_status skip_elements(cursor *c, coli__gguf_type type, uint64_t n, int depth)
{
    // an element that has no fixed size takes the bytes of its length at least
    const uint64_t least = type == COLI_GGUF_STRING  ? 8
                           : type == COLI_GGUF_ARRAY ? 12
                                                     : type_bytes[type];
    if (n > left(c) / least)
        return coli__fail(COLI_E_FORMAT,
                          "%s: at byte %llu: %llu elements of %llu bytes or more, the file has "
                          "%llu bytes left",
                          c->path, (unsigned long long)c->at, (unsigned long long)n,
                          (unsigned long long)least, (unsigned long long)left(c));
    if (type != COLI_GGUF_STRING && type != COLI_GGUF_ARRAY) {
        const uint8_t *p;
        COLI_TRY(take(c, n * least, "a value", &p));
        for (uint64_t i = 0; type == COLI_GGUF_BOOL && i < n; i++)
            if (p[i] > 1)
                return coli__fail(COLI_E_FORMAT, "%s: a bool is %u, expected 0 or 1", c->path,
                                  p[i]);
        return COLI_OK;
    }
    for (uint64_t i = 0; i < n; i++) {
        coli__gguf_text text;
        if (type == COLI_GGUF_STRING)
            COLI_TRY(take_text(c, "a string", &text));
        else
            COLI_TRY(skip_array(c, depth + 1));
    }
    return COLI_OK;
}

static coli_status read_value(cursor *c, coli__gguf_value *v)
{
    COLI_TRY(take_type(c, &v->type));
    v->n = 1;
    v->is_array = v->type == COLI_GGUF_ARRAY;
    if (v->is_array) {
        COLI_TRY(take_type(c, &v->type));
        COLI_TRY(take_u64(c, "the length of an array", &v->n));
    }
    v->data = c->data + c->at;
    return skip_elements(c, v->type, v->n, 1);
}

/* A key or name: not empty, not too long, nothing that could not be printed. */
static coli_status check_name(const cursor *c, const char *what, coli__gguf_text t, uint64_t most)
{
    if (t.n_bytes == 0 || t.n_bytes > most)
        return coli__fail(COLI_E_FORMAT, "%s: %s %s: its name has %llu bytes, expected 1 to %llu",
                          c->path, what, show_text(t).text, (unsigned long long)t.n_bytes,
                          (unsigned long long)most);
    for (uint64_t i = 0; i < t.n_bytes; i++)
        if ((unsigned char)t.data[i] < 0x20 || t.data[i] == 0x7f)
            return coli__fail(COLI_E_FORMAT, "%s: %s %s: a control character in the name", c->path,
                              what, show_text(t).text);
    return COLI_OK;
}

static int compare_text(coli__gguf_text a, coli__gguf_text b)
{
    const uint64_t n = a.n_bytes < b.n_bytes ? a.n_bytes : b.n_bytes;
    const int order = n ? memcmp(a.data, b.data, (size_t)n) : 0;
    return order ? order : (a.n_bytes > b.n_bytes) - (a.n_bytes < b.n_bytes);
}

static int by_key(const void *a, const void *b)
{
    return compare_text(((const coli__gguf_value *)a)->key, ((const coli__gguf_value *)b)->key);
}

static coli_status read_kv(cursor *c, part *p)
{
    if (p->n_value == p->cap_value) {
        const size_t cap = p->cap_value ? 2 * p->cap_value : 64;
        coli__gguf_value *grown = coli__realloc(p->values, cap, sizeof *grown);
        if (!grown) return COLI_E_NOMEM;
        p->values = grown;
        p->cap_value = cap;
    }
    coli__gguf_value *v = &p->values[p->n_value];
    *v = (coli__gguf_value){0};
    COLI_TRY(take_text(c, "a key", &v->key));
    COLI_TRY(check_name(c, "key", v->key, MAX_KEY));
    const coli_status status = read_value(c, v);
    if (status != COLI_OK) return coli__fail_in(status, "key %s", show_text(v->key).text);
    p->n_value++;
    return COLI_OK;
}

static coli_status read_metadata(cursor *c, uint64_t n, part *p)
{
    if (n > left(c) / KV_MIN_BYTES || n > MAX_KV)
        return coli__fail(COLI_E_FORMAT,
                          "%s: %llu keys: more than %d, or than the file's %llu bytes can hold",
                          c->path, (unsigned long long)n, MAX_KV, (unsigned long long)left(c));
    for (uint64_t i = 0; i < n; i++) COLI_TRY(read_kv(c, p));
    if (p->n_value > 1) qsort(p->values, p->n_value, sizeof *p->values, by_key);
    for (size_t i = 1; i < p->n_value; i++)
        if (by_key(&p->values[i - 1], &p->values[i]) == 0)
            return coli__fail(COLI_E_FORMAT, "%s: key %s: is there twice", c->path,
                              show_text(p->values[i].key).text);
    return COLI_OK;
}

static const coli__gguf_value *find_value(const part *p, const char *key)
{
    if (p->n_value == 0) return NULL;
    const coli__gguf_value wanted = {.key = {key, strlen(key)}};
    return bsearch(&wanted, p->values, p->n_value, sizeof wanted, by_key);
}

bool coli__gguf_int(const coli__gguf_value *v, uint64_t i, int64_t *out)
{
    const uint8_t *p = v->data + i * type_bytes[v->type];
#define COLI_GGUF_READ(type)                                                                       \
    do {                                                                                           \
        type x;                                                                                    \
        memcpy(&x, p, sizeof x);                                                                   \
        *out = (int64_t)x;                                                                         \
    } while (0)
    if (i >= v->n) return false;
    switch (v->type) {
    case COLI_GGUF_U8:
    case COLI_GGUF_BOOL:
        COLI_GGUF_READ(uint8_t);
        return true;
    case COLI_GGUF_I8:
        COLI_GGUF_READ(int8_t);
        return true;
    case COLI_GGUF_U16:
        COLI_GGUF_READ(uint16_t);
        return true;
    case COLI_GGUF_I16:
        COLI_GGUF_READ(int16_t);
        return true;
    case COLI_GGUF_U32:
        COLI_GGUF_READ(uint32_t);
        return true;
    case COLI_GGUF_I32:
        COLI_GGUF_READ(int32_t);
        return true;
    case COLI_GGUF_U64:
        COLI_GGUF_READ(uint64_t);
        return *out >= 0;
    case COLI_GGUF_I64:
        COLI_GGUF_READ(int64_t);
        return true;
    case COLI_GGUF_F32:
    case COLI_GGUF_F64:
    case COLI_GGUF_STRING:
    case COLI_GGUF_ARRAY:
    case COLI_GGUF_N_TYPE:
        break;
    }
#undef COLI_GGUF_READ
    return false;
}

bool coli__gguf_number(const coli__gguf_value *v, uint64_t i, double *out)
{
    int64_t whole;
    if (i >= v->n) return false;
    if (v->type == COLI_GGUF_F32) {
        float x;
        memcpy(&x, v->data + i * sizeof x, sizeof x);
        *out = (double)x;
    } else if (v->type == COLI_GGUF_F64) {
        memcpy(out, v->data + i * sizeof *out, sizeof *out);
    } else if (coli__gguf_int(v, i, &whole)) {
        *out = (double)whole;
    } else {
        return false;
    }
    return true;
}

coli__gguf_text coli__gguf_string(const uint8_t **data)
{
    coli__gguf_text t;
    memcpy(&t.n_bytes, *data, sizeof t.n_bytes);
    t.data = (const char *)*data + sizeof t.n_bytes;
    *data += sizeof t.n_bytes + t.n_bytes;
    return t;
}

static coli_status number_in(const part *p, const char *key, int64_t min, int64_t max,
                             const int64_t *fallback, int64_t *out)
{
    const coli__gguf_value *v = find_value(p, key);
    if (!v && fallback) {
        *out = *fallback;
        return COLI_OK;
    }
    if (!v) return coli__fail(COLI_E_FORMAT, "%s: key %s: is missing", p->path, key);
    if (!v->is_array && coli__gguf_int(v, 0, out) && *out >= min && *out <= max) return COLI_OK;
    return coli__fail(COLI_E_FORMAT, "%s: key %s: expected a whole number from %lld to %lld",
                      p->path, key, (long long)min, (long long)max);
}

/* -- tensors ----------------------------------------------------------------------------------- */

static coli_status read_dims(cursor *c, coli__gguf_tensor *t)
{
    COLI_TRY(take_u32(c, "a tensor's rank", &t->rank));
    if (t->rank < 1 || t->rank > COLI_GGUF_MAX_RANK)
        return coli__fail(COLI_E_FORMAT, "%s: tensor %s: rank %u, expected 1 to %d", c->path,
                          show(t->name).text, t->rank, COLI_GGUF_MAX_RANK);
    t->n_elem = 1;
    for (uint32_t i = 0; i < t->rank; i++) {
        COLI_TRY(take_u64(c, "a tensor's dims", &t->dims[i]));
        if (t->dims[i] == 0 || !coli__mul(t->n_elem, t->dims[i], &t->n_elem))
            return coli__fail(COLI_E_FORMAT,
                              "%s: tensor %s: its dims are 0, or more than 2^64 elements", c->path,
                              show(t->name).text);
    }
    return COLI_OK;
}

static coli_status read_kind(cursor *c, coli__gguf_tensor *t)
{
    uint32_t id;
    COLI_TRY(take_u32(c, "a tensor's kind", &id));
    t->kind = coli__gguf_kind_of(id);
    const char *foreign = coli__gguf_foreign_kind(id);
    if (!t->kind && foreign)
        return coli__fail(COLI_E_UNSUPPORTED,
                          "%s: tensor %s: is stored as %s, which only ik_llama.cpp has; a file in "
                          "the kinds of llama.cpp is needed",
                          c->path, show(t->name).text, foreign);
    if (!t->kind)
        return coli__fail(COLI_E_UNSUPPORTED,
                          "%s: tensor %s: is stored as kind %u, which is not known here", c->path,
                          show(t->name).text, id);
    if (t->dims[0] % t->kind->n_elem)
        return coli__fail(COLI_E_FORMAT,
                          "%s: tensor %s: rows of %llu numbers are no whole blocks of %u (%s)",
                          c->path, show(t->name).text, (unsigned long long)t->dims[0],
                          t->kind->n_elem, t->kind->name);
    if (!coli__mul(t->n_elem / t->kind->n_elem, t->kind->n_bytes, &t->n_bytes))
        return coli__fail(COLI_E_FORMAT, "%s: tensor %s: has more than 2^64 bytes", c->path,
                          show(t->name).text);
    return COLI_OK;
}

static coli_status read_tensor(cursor *c, coli__gguf *g)
{
    if (g->n_tensor == COLI_GGUF_MAX_TENSOR)
        return coli__fail(COLI_E_FORMAT, "%s: more than %d tensors, counting those of earlier parts",
                          c->path, COLI_GGUF_MAX_TENSOR);
    if (g->n_tensor == g->cap_tensor) {
        const size_t cap = g->cap_tensor ? 2 * g->cap_tensor : 256;
        coli__gguf_tensor *grown = coli__realloc(g->tensors, cap, sizeof *grown);
        if (!grown) return COLI_E_NOMEM;
        g->tensors = grown;
        g->cap_tensor = cap;
    }
    coli__gguf_text name;
    COLI_TRY(take_text(c, "a tensor's name", &name));
    COLI_TRY(check_name(c, "tensor", name, COLI_GGUF_MAX_NAME));
    char *own = coli__strndup(name.data, (size_t)name.n_bytes);
    if (!own) return COLI_E_NOMEM;
    coli__gguf_tensor *t = &g->tensors[g->n_tensor++];
    *t = (coli__gguf_tensor){.name = own, .file = c->path};
    g->name_bytes += name.n_bytes + 1 + HEAP_OVERHEAD;
    COLI_TRY(read_dims(c, t));
    COLI_TRY(read_kind(c, t));
    return take_u64(c, "a tensor's offset", &t->offset);
}

static coli_status check_span(const cursor *c, const part *p, coli__gguf_tensor *t,
                              uint64_t begin_data)
{
    const uint64_t offset = t->offset, n_data = c->n_bytes - begin_data;
    if (offset % p->alignment)
        return coli__fail(COLI_E_FORMAT,
                          "%s: tensor %s: begins at %llu of the data, expected a multiple of %llu",
                          c->path, show(t->name).text, (unsigned long long)offset,
                          (unsigned long long)p->alignment);
    if (offset > n_data || t->n_bytes > n_data - offset)
        return coli__fail(COLI_E_FORMAT,
                          "%s: tensor %s: needs %llu bytes at %llu of the data, the file has %llu",
                          c->path, show(t->name).text, (unsigned long long)t->n_bytes,
                          (unsigned long long)offset, (unsigned long long)n_data);
    t->data = c->data + begin_data + offset;
    return COLI_OK;
}

static int by_begin(const void *a, const void *b)
{
    const coli__gguf_tensor *x = a, *y = b;
    return (x->data > y->data) - (x->data < y->data);
}

static coli_status check_overlap(const char *path, coli__gguf_tensor *t, size_t n)
{
    if (n > 1) qsort(t, n, sizeof *t, by_begin);
    for (size_t i = 1; i < n; i++)
        if (t[i].data < t[i - 1].data + t[i - 1].n_bytes)
            return coli__fail(COLI_E_FORMAT, "%s: tensor %s: overlaps tensor %s", path,
                              show(t[i].name).text, show(t[i - 1].name).text);
    return COLI_OK;
}

static coli_status read_tensors(cursor *c, uint64_t n, coli__gguf *g, part *p)
{
    if (n > left(c) / TENSOR_MIN_BYTES)
        return coli__fail(COLI_E_FORMAT,
                          "%s: %llu tensors: more than the file's %llu bytes can hold", c->path,
                          (unsigned long long)n, (unsigned long long)left(c));
    p->first_tensor = g->n_tensor;
    for (uint64_t i = 0; i < n; i++) COLI_TRY(read_tensor(c, g));
    p->n_tensor = (size_t)n;
    if (n == 0) return COLI_OK; // a part that holds metadata alone may end with it

    const uint64_t begin = (c->at + p->alignment - 1) / p->alignment * p->alignment;
    if (begin > c->n_bytes)
        return coli__fail(COLI_E_FORMAT, "%s: the data would begin at byte %llu, the file has %llu",
                          c->path, (unsigned long long)begin, (unsigned long long)c->n_bytes);
    for (size_t i = 0; i < p->n_tensor; i++)
        COLI_TRY(check_span(c, p, &g->tensors[p->first_tensor + i], begin));
    return check_overlap(c->path, &g->tensors[p->first_tensor], p->n_tensor);
}

/* -- one file ---------------------------------------------------------------------------------- */

static coli_status read_header(cursor *c, uint64_t *n_tensor, uint64_t *n_kv)
{
    const uint8_t *magic;
    uint32_t version;
    COLI_TRY(take(c, 4, "the magic number", &magic));
    if (memcmp(magic, "GGUF", 4) != 0)
        return coli__fail(COLI_E_FORMAT, "%s: is no GGUF file: it does not begin with \"GGUF\"",
                          c->path);
    COLI_TRY(take_u32(c, "the version", &version));
    if (version == 2u << 24 || version == 3u << 24)
        return coli__fail(COLI_E_UNSUPPORTED,
                          "%s: is a big-endian GGUF file; only little-endian ones are read",
                          c->path);
    if (version != 2 && version != 3)
        return coli__fail(COLI_E_UNSUPPORTED, "%s: GGUF version %u: expected 2 or 3", c->path,
                          version);
    COLI_TRY(take_u64(c, "the number of tensors", n_tensor));
    return take_u64(c, "the number of keys", n_kv);
}

static coli_status read_part(coli__gguf *g, part *p)
{
    cursor c = {.path = p->path, .data = p->map.data, .n_bytes = p->map.n_bytes};
    uint64_t n_tensor = 0, n_kv = 0;
    COLI_TRY(read_header(&c, &n_tensor, &n_kv));
    COLI_TRY(read_metadata(&c, n_kv, p));
    const int64_t usual = 32;
    int64_t alignment;
    COLI_TRY(number_in(p, "general.alignment", 8, MAX_ALIGNMENT, &usual, &alignment));
    if (alignment & (alignment - 1))
        return coli__fail(COLI_E_FORMAT, "%s: key general.alignment: %lld is no power of two",
                          p->path, (long long)alignment);
    p->alignment = (uint64_t)alignment;
    return read_tensors(&c, n_tensor, g, p);
}

static part *add_part(coli__gguf *g, const char *path)
{
    part *grown = coli__realloc(g->parts, g->n_part + 1, sizeof *grown);
    if (!grown) return NULL;
    g->parts = grown;
    part *p = &g->parts[g->n_part];
    *p = (part){.path = coli__strndup(path, strlen(path))};
    if (!p->path) return NULL;
    g->n_part++;
    return p;
}

/* -- split files ------------------------------------------------------------------------------- */

typedef struct split {
    int64_t no, count, n_tensor; // count 0: not split
} split;

static coli_status read_split(const part *p, split *s)
{
    const int64_t none = 0;
    COLI_TRY(number_in(p, "split.count", 0, MAX_PART, &none, &s->count));
    COLI_TRY(number_in(p, "split.no", 0, MAX_PART - 1, &none, &s->no));
    COLI_TRY(number_in(p, "split.tensors.count", 0, COLI_GGUF_MAX_TENSOR, &none, &s->n_tensor));
    if (s->count == 1) s->count = 0;
    return COLI_OK;
}

enum { SUFFIX_BYTES = sizeof "-00001-of-00002.gguf" - 1 };

/* "m-00002-of-00003.gguf" has the stem "m"; false when the name is no such. */
static bool split_name(const char *path, size_t *n_stem, uint32_t *no, uint32_t *count)
{
    const size_t n = strlen(path);
    if (n <= SUFFIX_BYTES) return false;
    const char *s = path + n - SUFFIX_BYTES;
    int end = 0;
    *n_stem = n - SUFFIX_BYTES;
    return sscanf(s, "-%5u-of-%5u.gguf%n", no, count, &end) == 2 && end == SUFFIX_BYTES;
}

static coli_status add_sibling(coli__gguf *g, const char *path, size_t n_stem, uint32_t no,
                               uint32_t count)
{
    coli__buf name = {0};
    coli_status status = coli__buf_append(&name, path, n_stem);
    if (status == COLI_OK) status = coli__buf_printf(&name, "-%05u-of-%05u.gguf", no + 1, count);
    part *p = NULL;
    if (status == COLI_OK && !(p = add_part(g, name.data))) status = COLI_E_NOMEM;
    coli__buf_finish(&name);
    if (status == COLI_OK) status = coli__map_open(p->path, &p->map);
    return status == COLI_OK ? read_part(g, p) : status;
}

static coli_status check_sibling(const part *p, split expected)
{
    split found;
    COLI_TRY(read_split(p, &found));
    if (found.no == expected.no && found.count == expected.count &&
        found.n_tensor == expected.n_tensor)
        return COLI_OK;
    return coli__fail(COLI_E_FORMAT,
                      "%s: keys split.*: expected part %lld of %lld with %lld tensors in all, "
                      "found part %lld of %lld with %lld",
                      p->path, (long long)expected.no + 1, (long long)expected.count,
                      (long long)expected.n_tensor, (long long)found.no + 1, (long long)found.count,
                      (long long)found.n_tensor);
}

static void drop_parts(coli__gguf *g)
{
    for (size_t i = 0; i < g->n_tensor; i++) coli__free((char *)(uintptr_t)g->tensors[i].name);
    for (size_t i = 0; i < g->n_part; i++) {
        if (!g->parts[i].borrowed) coli__map_close(&g->parts[i].map);
        coli__free(g->parts[i].path);
        coli__free(g->parts[i].values);
    }
    g->n_tensor = g->n_part = 0;
    g->name_bytes = 0;
}

/* The part that was named says how many there are; all are then opened, in order. */
static coli_status open_split(coli__gguf *g, const char *path, split s)
{
    size_t n_stem;
    uint32_t no, count;
    if (!split_name(path, &n_stem, &no, &count) || count != s.count || no != s.no + 1)
        return coli__fail(COLI_E_FORMAT,
                          "%s: says that it is part %lld of %lld; expected a name that ends with "
                          "-%05lld-of-%05lld.gguf",
                          path, (long long)s.no + 1, (long long)s.count, (long long)s.no + 1,
                          (long long)s.count);
    drop_parts(g);
    for (uint32_t i = 0; i < count; i++) {
        COLI_TRY(add_sibling(g, path, n_stem, i, count));
        s.no = i;
        COLI_TRY(check_sibling(&g->parts[i], s));
    }
    if ((int64_t)g->n_tensor != s.n_tensor)
        return coli__fail(COLI_E_FORMAT,
                          "%s: key split.tensors.count: %lld, but the %u parts hold %zu tensors",
                          g->parts[0].path, (long long)s.n_tensor, count, g->n_tensor);
    return COLI_OK;
}

/* -- open -------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const coli__gguf_tensor *)a)->name, ((const coli__gguf_tensor *)b)->name);
}

static coli_status sort_tensors(coli__gguf *g)
{
    if (g->n_tensor > 1) qsort(g->tensors, g->n_tensor, sizeof *g->tensors, by_name);
    for (size_t i = 1; i < g->n_tensor; i++)
        if (strcmp(g->tensors[i - 1].name, g->tensors[i].name) == 0)
            return coli__fail(COLI_E_FORMAT, "%s: tensor %s: is there twice", g->tensors[i].file,
                              show(g->tensors[i].name).text);
    return COLI_OK;
}

static coli_status open_into(coli__gguf *g, const char *path, const void *bytes, uint64_t n_bytes)
{
    part *p = add_part(g, path);
    if (!p) return COLI_E_NOMEM;
    p->borrowed = bytes != NULL;
    if (bytes)
        p->map = (coli__map){.data = bytes, .n_bytes = n_bytes};
    else
        COLI_TRY(coli__map_open(path, &p->map));
    COLI_TRY(read_part(g, p));
    split s;
    COLI_TRY(read_split(p, &s));
    if (s.count > 0 && bytes)
        return coli__fail(COLI_E_FORMAT, "%s: key split.count: its %lld parts are not at hand",
                          path, (long long)s.count);
    if (s.count > 0) COLI_TRY(open_split(g, path, s));
    return sort_tensors(g);
}

static coli_status open_any(const char *path, const void *bytes, uint64_t n_bytes, coli__gguf **out)
{
    *out = NULL;
    coli__gguf *g = coli__calloc(1, sizeof *g);
    if (!g) return COLI_E_NOMEM;
    const coli_status status = open_into(g, path, bytes, n_bytes);
    if (status == COLI_OK)
        *out = g;
    else
        coli__gguf_close(g);
    return status;
}

coli_status coli__gguf_open(const char *path, coli__gguf **out)
{
    return open_any(path, NULL, 0, out);
}

coli_status coli__gguf_open_bytes(const char *name, const void *bytes, uint64_t n_bytes,
                                  coli__gguf **out)
{
    return open_any(name, bytes ? bytes : "", bytes ? n_bytes : 0, out);
}

void coli__gguf_close(coli__gguf *g)
{
    if (!g) return;
    drop_parts(g);
    coli__free(g->tensors);
    coli__free(g->parts);
    coli__free(g);
}

/* -- looking things up ------------------------------------------------------------------------- */

uint64_t coli__gguf_memory_bytes(const coli__gguf *g)
{
    uint64_t n = g->cap_tensor * sizeof *g->tensors + g->name_bytes + g->n_part * sizeof *g->parts;
    for (size_t i = 0; i < g->n_part; i++) n += g->parts[i].cap_value * sizeof(coli__gguf_value);
    return n;
}

const char *coli__gguf_path(const coli__gguf *g)
{
    return g->parts[0].path;
}

uint32_t coli__gguf_count(const coli__gguf *g)
{
    return (uint32_t)g->n_tensor;
}

const coli__gguf_tensor *coli__gguf_at(const coli__gguf *g, uint32_t i)
{
    return &g->tensors[i];
}

const coli__gguf_tensor *coli__gguf_find(const coli__gguf *g, const char *name)
{
    if (g->n_tensor == 0) return NULL;
    const coli__gguf_tensor key = {.name = name};
    return bsearch(&key, g->tensors, g->n_tensor, sizeof key, by_name);
}

uint32_t coli__gguf_n_value(const coli__gguf *g)
{
    return (uint32_t)g->parts[0].n_value;
}

const coli__gguf_value *coli__gguf_value_at(const coli__gguf *g, uint32_t i)
{
    return &g->parts[0].values[i];
}

const coli__gguf_value *coli__gguf_value_find(const coli__gguf *g, const char *key)
{
    return find_value(&g->parts[0], key);
}

coli_status coli__gguf_u32(const coli__gguf *g, const char *key, uint32_t min, uint32_t max,
                           uint32_t *out)
{
    int64_t value;
    COLI_TRY(number_in(&g->parts[0], key, min, max, NULL, &value));
    *out = (uint32_t)value;
    return COLI_OK;
}

coli_status coli__gguf_u32_or(const coli__gguf *g, const char *key, uint32_t min, uint32_t max,
                              uint32_t fallback, uint32_t *out)
{
    const int64_t other = fallback;
    int64_t value;
    COLI_TRY(number_in(&g->parts[0], key, min, max, &other, &value));
    *out = (uint32_t)value;
    return COLI_OK;
}

coli_status coli__gguf_number_or(const coli__gguf *g, const char *key, double fallback, double *out)
{
    const coli__gguf_value *v = coli__gguf_value_find(g, key);
    *out = fallback;
    if (!v || (!v->is_array && coli__gguf_number(v, 0, out))) return COLI_OK;
    return coli__fail(COLI_E_FORMAT, "%s: key %s: expected a number", coli__gguf_path(g), key);
}

coli_status coli__gguf_text_or_null(const coli__gguf *g, const char *key, coli__gguf_text *out)
{
    const coli__gguf_value *v = coli__gguf_value_find(g, key);
    *out = (coli__gguf_text){0};
    if (!v) return COLI_OK;
    if (v->is_array || v->type != COLI_GGUF_STRING)
        return coli__fail(COLI_E_FORMAT, "%s: key %s: expected a string", coli__gguf_path(g), key);
    const uint8_t *at = v->data;
    *out = coli__gguf_string(&at);
    return COLI_OK;
}
