/* safetensors.c - see safetensors.h; the format is in docs/formats/safetensors.md.
 *
 * A file is a header length, a JSON header and the data:
 *
 *     u64 N | N bytes {"w": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}} | data
 *
 * Opening proves, shard by shard, what everything later relies on:
 *   (1) the header lies in the file, is JSON of bounded depth without duplicate names;
 *   (2) a tensor's bytes are what dtype and shape say, without overflow;
 *   (3) the tensors, ordered by where they begin, tile the data exactly: each begins where the one
 *       before it ended, the last ends at the end of the file.  So nothing overlaps, nothing hides
 *       in a gap, and a truncated or longer file is noticed;
 *   (4) a name occurs once, in all shards together.
 * Headers and the index are read member by member: a header of 100 MB could name millions of
 * tensors, and its tree would take gigabytes.
 *
 * After that a view is a pointer and a length inside its mapping.  It may be unaligned: elements
 * are read with memcpy.
 *
 * Not here: a file that changes while it is mapped. */
#include "safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/coli/exact.h"
#include "../base/memory.h"
#include "json.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "elements are read as they lie in the file");

enum {
    HEADER_MAX_BYTES = 100 * 1000 * 1000, // what the format's own reader allows
    HEADER_MAX_DEPTH = 8,
    INDEX_MAX_BYTES = 100 * 1000 * 1000,
    MAX_SHARD = 4096,
    MAX_DTYPE_NAME = 31,
    HEAP_OVERHEAD = 32, // of one allocation, at most
};

static const char suffix[] = ".safetensors";
static const char index_name[] = "model.safetensors.index.json";

typedef struct shard {
    char *path;
    const char *name; // in path, behind the last slash
    coli__map map;
    bool borrowed; // the bytes are the caller's
} shard;

struct coli__st {
    shard *shards;
    size_t n_shard;
    coli__st_tensor *tensors; // sorted by name once open
    size_t n_tensor, cap_tensor;
    uint64_t name_bytes; // of all tensors
};

// clang-format off
static const struct {
    const char *name;
    uint32_t elem_bytes;
    coli__dtype dtype;
} dtypes[] = {
    {"F32", 4, COLI_DT_F32},   {"F16", 2, COLI_DT_F16}, {"BF16", 2, COLI_DT_BF16},
    {"U8", 1, COLI_DT_U8},     {"I8", 1, COLI_DT_I8},   {"I32", 4, COLI_DT_I32},
    {"I64", 8, COLI_DT_I64},   {"F8_E4M3", 1, COLI_DT_F8_E4M3},
    // sized, so that they are checked, but never read
    {"F64", 8, COLI_DT_OTHER}, {"U64", 8, COLI_DT_OTHER}, {"U32", 4, COLI_DT_OTHER},
    {"I16", 2, COLI_DT_OTHER}, {"U16", 2, COLI_DT_OTHER}, {"BOOL", 1, COLI_DT_OTHER},
    {"F8_E5M2", 1, COLI_DT_OTHER}, {"F8_E8M0", 1, COLI_DT_OTHER},
};
// clang-format on
enum { N_DTYPE = sizeof dtypes / sizeof dtypes[0] };

/* A name out of a file, fit for a message: bounded, without control characters. */
typedef struct shown {
    char text[104];
} shown;

static shown show(const char *name)
{
    shown s;
    size_t n = 0;
    for (; name[n] && n + 4 < sizeof s.text; n++)
        s.text[n] = (unsigned char)name[n] < 0x20 || name[n] == 0x7f ? '?' : name[n];
    if (name[n]) {
        while (n > 0 && ((unsigned char)name[n] & 0xC0) == 0x80) n--; // not inside a character
        memcpy(s.text + n, "...", 3);
        n += 3;
    }
    s.text[n] = 0;
    return s;
}

/* -- one header -------------------------------------------------------------------------------- */

typedef struct header {
    const char *path;
    const uint8_t *data; // behind the header
    uint64_t n_data;
} header;

/* A whole number >= 0 in the JSON. */
static bool get_u64(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

/* What dtype_name means; returns the bytes of an element, 0 for a type we never heard of. */
static uint32_t look_up_dtype(coli__st_tensor *t)
{
    for (size_t i = 0; i < N_DTYPE; i++)
        if (strcmp(dtypes[i].name, t->dtype_name) == 0) {
            t->dtype = dtypes[i].dtype;
            return dtypes[i].elem_bytes;
        }
    t->dtype = COLI_DT_OTHER;
    return 0;
}

static coli_status read_shape(const header *h, const json_t *entry, coli__st_tensor *t)
{
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape) || json_array_size(shape) > COLI_ST_MAX_RANK)
        return coli__fail(COLI_E_FORMAT,
                          "%s: tensor %s: shape: expected a list of at most %d numbers,"
                          " found %s of %zu",
                          h->path, show(t->name).text, COLI_ST_MAX_RANK,
                          json_is_array(shape) ? "one" : "something else", json_array_size(shape));
    t->rank = (uint32_t)json_array_size(shape);
    t->n_elem = 1;
    for (uint32_t i = 0; i < t->rank; i++) {
        if (!get_u64(json_array_get(shape, i), &t->shape[i]))
            return coli__fail(
                COLI_E_FORMAT,
                "%s: tensor %s: shape[%u]: expected a whole number that is not negative", h->path,
                show(t->name).text, i);
        if (!coli__mul(t->n_elem, t->shape[i], &t->n_elem))
            return coli__fail(COLI_E_FORMAT, "%s: tensor %s: its shape has more than 2^64 elements",
                              h->path, show(t->name).text);
    }
    return COLI_OK;
}

static coli_status read_span(const header *h, const json_t *entry, coli__st_tensor *t,
                             uint32_t elem_bytes)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    uint64_t begin, end, expected;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !get_u64(json_array_get(offsets, 0), &begin) || !get_u64(json_array_get(offsets, 1), &end))
        return coli__fail(COLI_E_FORMAT,
                          "%s: tensor %s: data_offsets: expected two whole numbers, not negative",
                          h->path, show(t->name).text);
    if (begin > end || end > h->n_data)
        return coli__fail(
            COLI_E_FORMAT,
            "%s: tensor %s: data_offsets [%llu, %llu]: expected begin <= end <= %llu, "
            "the bytes of data in the file",
            h->path, show(t->name).text, (unsigned long long)begin, (unsigned long long)end,
            (unsigned long long)h->n_data);
    if (elem_bytes == 0)
        expected = end - begin;
    else if (!coli__mul(t->n_elem, elem_bytes, &expected))
        return coli__fail(COLI_E_FORMAT, "%s: tensor %s: its shape has more than 2^64 bytes",
                          h->path, show(t->name).text);
    if (expected != end - begin)
        return coli__fail(COLI_E_FORMAT,
                          "%s: tensor %s: %s elements need %llu bytes, data_offsets give %llu",
                          h->path, show(t->name).text, show(t->dtype_name).text,
                          (unsigned long long)expected, (unsigned long long)(end - begin));
    t->data = h->data ? h->data + begin : NULL;
    t->n_bytes = end - begin;
    return COLI_OK;
}

/* Both strings in one piece, released with the first. */
static coli_status take_names(const header *h, const char *name, const char *dtype, coli__st *st,
                              coli__st_tensor *t)
{
    const size_t n_name = strlen(name) + 1, n_dtype = strlen(dtype) + 1;
    if (n_name > COLI_ST_MAX_NAME + 1 || n_dtype > MAX_DTYPE_NAME + 1)
        return coli__fail(COLI_E_FORMAT,
                          "%s: tensor %s: expected a name of at most %d bytes and a dtype of at "
                          "most %d, found %zu and %zu",
                          h->path, show(name).text, COLI_ST_MAX_NAME, MAX_DTYPE_NAME, n_name - 1,
                          n_dtype - 1);
    char *names = coli__calloc(n_name + n_dtype, 1);
    if (!names) return COLI_E_NOMEM;
    memcpy(names, name, n_name);
    memcpy(names + n_name, dtype, n_dtype);
    st->name_bytes += n_name + n_dtype + HEAP_OVERHEAD;
    *t = (coli__st_tensor){.name = names, .dtype_name = names + n_name, .file = h->path};
    return COLI_OK;
}

static coli_status read_entry(const header *h, const char *name, const json_t *entry, coli__st *st)
{
    if (st->n_tensor == COLI_ST_MAX_TENSOR)
        return coli__fail(COLI_E_FORMAT, "%s: more than %d tensors, counting those of earlier files",
                          h->path, COLI_ST_MAX_TENSOR);
    if (st->n_tensor == st->cap_tensor) {
        const size_t cap = st->cap_tensor ? 2 * st->cap_tensor : 256;
        coli__st_tensor *grown = coli__realloc(st->tensors, cap, sizeof *grown);
        if (!grown) return COLI_E_NOMEM;
        st->tensors = grown;
        st->cap_tensor = cap;
    }
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype)
        return coli__fail(COLI_E_FORMAT, "%s: tensor %s: dtype: expected a string", h->path,
                          show(name).text);
    for (const char *at = name; *at; at++) // a name may be printed later
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            return coli__fail(COLI_E_FORMAT, "%s: tensor %s: a control character in the name",
                              h->path, show(name).text);
    coli__st_tensor *t = &st->tensors[st->n_tensor];
    COLI_TRY(take_names(h, name, dtype, st, t));
    st->n_tensor++;
    const uint32_t elem_bytes = look_up_dtype(t);
    COLI_TRY(read_shape(h, entry, t));
    return read_span(h, entry, t, elem_bytes);
}

static coli_status check_metadata(const char *path, json_t *metadata)
{
    if (!json_is_object(metadata))
        return coli__fail(COLI_E_FORMAT, "%s: __metadata__: expected an object", path);
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value) if (!json_is_string(value)) return coli__fail(
        COLI_E_FORMAT, "%s: __metadata__: %s: expected a string", path, show(key).text);
    return COLI_OK;
}

static int by_begin(const void *a, const void *b)
{
    const coli__st_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes); // empty ones first
}

/* Invariant (3) for the tensors of one shard.  Sorts them. */
static coli_status check_tiling(const header *h, coli__st_tensor *tensors, size_t n)
{
    if (n > 1) qsort(tensors, n, sizeof *tensors, by_begin);
    uint64_t end = 0;
    for (size_t i = 0; i < n; i++) {
        const uint64_t begin = h->data ? (uint64_t)(tensors[i].data - h->data) : 0;
        if (begin != end)
            return coli__fail(COLI_E_FORMAT,
                              "%s: tensor %s: begins at %llu, %s the previous one's end"
                              " at %llu",
                              h->path, show(tensors[i].name).text, (unsigned long long)begin,
                              begin < end ? "before" : "with a gap after", (unsigned long long)end);
        end += tensors[i].n_bytes;
    }
    if (end != h->n_data)
        return coli__fail(COLI_E_FORMAT,
                          "%s: the tensors end at byte %llu of the data, the file has %llu",
                          h->path, (unsigned long long)end, (unsigned long long)h->n_data);
    return COLI_OK;
}

/* One member of the header. */
static coli_status read_member(const header *h, json_t *member, bool *has_metadata, coli__st *st)
{
    void *only = json_object_iter(member);
    const char *name = json_object_iter_key(only);
    if (strcmp(name, "__metadata__") != 0)
        return read_entry(h, name, json_object_iter_value(only), st);
    if (*has_metadata) return coli__fail(COLI_E_FORMAT, "%s: duplicate %s", h->path, name);
    *has_metadata = true;
    return check_metadata(h->path, json_object_iter_value(only));
}

static coli_status read_entries(const header *h, const char *text, uint64_t n_text, coli__st *st)
{
    const size_t first = st->n_tensor;
    bool has_metadata = false;
    coli__json_members members = {
        .what = h->path, .text = text, .n_bytes = (size_t)n_text, .max_depth = HEADER_MAX_DEPTH};
    for (json_t *member;;) {
        COLI_TRY(coli__json_next(&members, &member));
        if (!member) break;
        const coli_status status = read_member(h, member, &has_metadata, st);
        json_decref(member);
        COLI_TRY(status);
    }
    return check_tiling(h, st->tensors ? st->tensors + first : NULL, st->n_tensor - first);
}

static coli_status read_shard(const shard *s, coli__st *st)
{
    uint64_t n_header;
    if (s->map.n_bytes < sizeof n_header)
        return coli__fail(COLI_E_FORMAT, "%s: %llu bytes are too few for a safetensors file",
                          s->path, (unsigned long long)s->map.n_bytes);
    memcpy(&n_header, s->map.data, sizeof n_header);
    const uint64_t n_rest = s->map.n_bytes - sizeof n_header;
    const uint64_t most = n_rest < HEADER_MAX_BYTES ? n_rest : HEADER_MAX_BYTES;
    if (n_header < 2 || n_header > most)
        return coli__fail(COLI_E_FORMAT, "%s: header length: expected 2 to %llu bytes, found %llu",
                          s->path, (unsigned long long)most, (unsigned long long)n_header);
    const char *text = (const char *)s->map.data + sizeof n_header;
    if (text[0] != '{')
        return coli__fail(COLI_E_FORMAT, "%s: header: expected '{' as its first byte, found 0x%02x",
                          s->path, (unsigned)(unsigned char)text[0]);

    const uint64_t n_data = n_rest - n_header;
    const header h = {s->path, n_data ? (const uint8_t *)text + n_header : NULL, n_data};
    return read_entries(&h, text, n_header, st);
}

/* -- one file or a directory ------------------------------------------------------------------- */

static bool has_suffix(const char *name)
{
    const size_t n = strlen(name), n_suffix = sizeof suffix - 1;
    return n > n_suffix && strcmp(name + n - n_suffix, suffix) == 0;
}

/* The file at `path`, or `bytes` under that name. */
static coli_status add_shard(coli__st *st, const char *path, const coli__map *bytes)
{
    shard *s = &st->shards[st->n_shard];
    s->path = coli__strndup(path, strlen(path));
    if (!s->path) return COLI_E_NOMEM;
    st->n_shard++;
    s->name = coli__path_name(s->path);
    s->borrowed = bytes != NULL;
    if (bytes)
        s->map = *bytes;
    else
        COLI_TRY(coli__map_open(path, &s->map));
    const coli_status status = read_shard(s, st);
    if (!bytes) coli__pages_drop(s->map.data, s->map.n_bytes); // the header is in the list now
    return status;
}

static coli_status add_shards_of(coli__st *st, const char *dir, char *const *names, size_t n_name)
{
    size_t n = 0;
    for (size_t i = 0; i < n_name; i++) n += has_suffix(names[i]);
    if (n == 0) return coli__fail(COLI_E_NOTFOUND, "%s: holds no .safetensors file", dir);
    if (n > MAX_SHARD)
        return coli__fail(COLI_E_FORMAT, "%s: %zu .safetensors files, at most %d are read", dir, n,
                          MAX_SHARD);
    st->shards = coli__calloc(n, sizeof *st->shards);
    if (!st->shards) return COLI_E_NOMEM;
    for (size_t i = 0; i < n_name; i++) {
        if (!has_suffix(names[i])) continue;
        char *path;
        COLI_TRY(coli__path_join(dir, names[i], &path));
        const coli_status status = add_shard(st, path, NULL);
        coli__free(path);
        COLI_TRY(status);
    }
    return COLI_OK;
}

/* -- the index --------------------------------------------------------------------------------- */

typedef struct index_map {
    const char *path;
    const char *text; // of weight_map, an object of tensor names and file names
    size_t n_bytes;
} index_map;

/* The other members must only be JSON. */
static coli_status find_weight_map(const coli__map *file, index_map *out)
{
    coli__json_members outer = {.what = out->path,
                                .text = (const char *)file->data,
                                .n_bytes = (size_t)file->n_bytes,
                                .max_depth = HEADER_MAX_DEPTH};
    for (;;) {
        coli__json_members here = outer;
        const char *member;
        size_t n_bytes;
        json_t *other;
        COLI_TRY(coli__json_next_text(&outer, &member, &n_bytes));
        if (!member) break;
        const bool again = out->text != NULL;
        if (!coli__json_text_value(member, n_bytes, "weight_map", &out->text, &out->n_bytes)) {
            COLI_TRY(coli__json_next(&here, &other));
            json_decref(other);
        } else if (again) {
            return coli__fail(COLI_E_FORMAT, "%s: duplicate weight_map", out->path);
        }
    }
    if (out->n_bytes > 0 && out->text[0] == '{') return COLI_OK;
    return coli__fail(COLI_E_FORMAT, "%s: weight_map: expected an object", out->path);
}

/* Call fn for each entry of the map. */
typedef coli_status (*entry_fn)(void *ctx, const index_map *map, const char *tensor,
                                const char *file);
static coli_status each_entry(const index_map *map, entry_fn fn, void *ctx)
{
    coli__json_members members = {.what = map->path,
                                  .text = map->text,
                                  .n_bytes = map->n_bytes,
                                  .max_depth = HEADER_MAX_DEPTH};
    for (json_t *member;;) {
        COLI_TRY(coli__json_next(&members, &member));
        if (!member) return COLI_OK;
        void *only = json_object_iter(member);
        const char *tensor = json_object_iter_key(only);
        const char *file = json_string_value(json_object_iter_value(only));
        const coli_status status =
            file ? fn(ctx, map, tensor, file)
                 : coli__fail(COLI_E_FORMAT, "%s: weight_map: %s: expected a file name", map->path,
                              show(tensor).text);
        json_decref(member);
        COLI_TRY(status);
    }
}

static const shard *shard_by_name(const coli__st *st, const char *name)
{
    for (size_t i = 0; i < st->n_shard; i++)
        if (strcmp(st->shards[i].name, name) == 0) return &st->shards[i];
    return NULL;
}

static coli_status declare_file(void *ctx, const index_map *map, const char *tensor,
                                const char *file)
{
    json_t *declared = ctx; // file name -> true
    (void)tensor;
    if (json_object_get(declared, file)) return COLI_OK;
    if (json_object_size(declared) == MAX_SHARD)
        return coli__fail(COLI_E_FORMAT, "%s: declares more than %d files", map->path, MAX_SHARD);
    if (strlen(file) > COLI_ST_MAX_NAME)
        return coli__fail(COLI_E_FORMAT, "%s: a file name of %zu bytes, at most %d are read",
                          map->path, strlen(file), COLI_ST_MAX_NAME);
    return json_object_set_new(declared, file, json_true()) == 0
               ? COLI_OK
               : coli__fail(COLI_E_NOMEM, "%s: out of memory", map->path);
}

/* Files that the index declares but the directory lacks: an unfinished download. */
static coli_status check_index_files(const coli__st *st, const index_map *map)
{
    json_t *declared = json_object();
    if (!declared) return coli__fail(COLI_E_NOMEM, "%s: out of memory", map->path);
    coli_status status = each_entry(map, declare_file, declared);
    size_t n_present = 0;
    const char *missing = NULL, *name;
    json_t *value;
    if (status == COLI_OK) json_object_foreach(declared, name, value)
        {
            if (shard_by_name(st, name))
                n_present++;
            else if (!missing || strcmp(name, missing) < 0)
                missing = name;
        }
    if (missing)
        status = coli__fail(COLI_E_NOTFOUND,
                            "%s: declares %zu files, %zu are there; the first missing one is %s",
                            map->path, json_object_size(declared), n_present, show(missing).text);
    json_decref(declared);
    return status;
}

static coli_status check_index_entry(void *ctx, const index_map *map, const char *tensor,
                                     const char *file)
{
    const coli__st *st = ctx;
    const coli__st_tensor *t = coli__st_find(st, tensor);
    const shard *s = shard_by_name(st, file);
    if (!t)
        return coli__fail(COLI_E_FORMAT, "%s: tensor %s: expected in %s, found in no file",
                          map->path, show(tensor).text, show(file).text);
    if (!s || t->file != s->path)
        return coli__fail(COLI_E_FORMAT, "%s: tensor %s: expected in %s, found in %s", map->path,
                          show(tensor).text, show(file).text, t->file);
    return COLI_OK;
}

static coli_status check_index_map(coli__st *st, const char *path, const coli__map *file)
{
    index_map map = {.path = path};
    if (file->n_bytes > INDEX_MAX_BYTES)
        return coli__fail(COLI_E_FORMAT, "%s: larger than the %d bytes that are allowed here", path,
                          INDEX_MAX_BYTES);
    COLI_TRY(find_weight_map(file, &map));
    COLI_TRY(check_index_files(st, &map));
    return each_entry(&map, check_index_entry, st);
}

static coli_status check_index(coli__st *st, const char *dir)
{
    char *path;
    COLI_TRY(coli__path_join(dir, index_name, &path));
    coli_status status = COLI_OK;
    if (coli__path_exists(path)) {
        coli__map file;
        status = coli__map_open(path, &file);
        if (status == COLI_OK) status = check_index_map(st, path, &file);
        coli__map_close(&file);
    }
    coli__free(path);
    return status;
}

/* -- opening ----------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const coli__st_tensor *)a)->name, ((const coli__st_tensor *)b)->name);
}

static coli_status sort_by_name(coli__st *st)
{
    if (st->n_tensor > 1) qsort(st->tensors, st->n_tensor, sizeof *st->tensors, by_name);
    for (size_t i = 1; i < st->n_tensor; i++) {
        const coli__st_tensor *a = &st->tensors[i - 1], *b = &st->tensors[i];
        if (strcmp(a->name, b->name) == 0)
            return a->file == b->file
                       ? coli__fail(COLI_E_FORMAT, "%s: tensor %s: duplicate name", a->file,
                                    show(a->name).text)
                       : coli__fail(COLI_E_FORMAT, "tensor %s: is both in %s and in %s",
                                    show(a->name).text, a->file, b->file);
    }
    return COLI_OK;
}

static coli_status open_dir(coli__st *st, const char *dir)
{
    char **names;
    size_t n_name;
    COLI_TRY(coli__dir_list(dir, &names, &n_name));
    coli_status status = add_shards_of(st, dir, names, n_name);
    for (size_t i = 0; i < n_name; i++) coli__free(names[i]);
    coli__free(names);
    if (status == COLI_OK) status = sort_by_name(st);
    return status == COLI_OK ? check_index(st, dir) : status;
}

static coli_status open_one(coli__st *st, const char *path, const coli__map *bytes)
{
    st->shards = coli__calloc(1, sizeof *st->shards);
    if (!st->shards) return COLI_E_NOMEM;
    COLI_TRY(add_shard(st, path, bytes));
    return sort_by_name(st);
}

static coli_status finish_open(coli__st *st, coli_status status, coli__st **out)
{
    if (status == COLI_OK)
        *out = st;
    else
        coli__st_close(st);
    return status;
}

coli_status coli__st_open(const char *path, coli__st **out)
{
    *out = NULL;
    coli__st *st = coli__calloc(1, sizeof *st);
    if (!st) return COLI_E_NOMEM;
    const bool is_dir = coli__path_is_dir(path);
    return finish_open(st, is_dir ? open_dir(st, path) : open_one(st, path, NULL), out);
}

coli_status coli__st_open_bytes(const char *name, const void *bytes, uint64_t n_bytes,
                                coli__st **out)
{
    *out = NULL;
    coli__st *st = coli__calloc(1, sizeof *st);
    if (!st) return COLI_E_NOMEM;
    const coli__map map = {.data = bytes, .n_bytes = n_bytes};
    return finish_open(st, open_one(st, name, &map), out);
}

void coli__st_close(coli__st *st)
{
    if (!st) return;
    for (size_t i = 0; i < st->n_tensor; i++) coli__free((char *)(uintptr_t)st->tensors[i].name);
    for (size_t i = 0; i < st->n_shard; i++) {
        if (!st->shards[i].borrowed) coli__map_close(&st->shards[i].map);
        coli__free(st->shards[i].path);
    }
    coli__free(st->tensors);
    coli__free(st->shards);
    coli__free(st);
}

uint64_t coli__st_memory_bytes(const coli__st *st)
{
    return st->cap_tensor * sizeof *st->tensors + st->name_bytes + st->n_shard * sizeof *st->shards;
}

uint32_t coli__st_count(const coli__st *st)
{
    return (uint32_t)st->n_tensor;
}

const coli__st_tensor *coli__st_at(const coli__st *st, uint32_t i)
{
    return &st->tensors[i];
}

const coli__st_tensor *coli__st_find(const coli__st *st, const char *name)
{
    if (st->n_tensor == 0) return NULL;
    const coli__st_tensor key = {.name = name};
    return bsearch(&key, st->tensors, st->n_tensor, sizeof key, by_name);
}

/* -- elements ---------------------------------------------------------------------------------- */

/* 4 bits of exponent (bias 7), 3 of fraction; no infinity, one NaN per sign. */
static float e4m3_to_f32(uint8_t byte)
{
    const uint32_t sign = (uint32_t)(byte & 0x80) << 24, exponent = byte >> 3 & 15;
    const uint32_t fraction = byte & 7;
    if ((byte & 0x7f) == 0x7f) return coli_from_bits(sign | 0x7fc00000);
    if (exponent > 0) return coli_from_bits(sign | (exponent + 120) << 23 | fraction << 20);
    const float small = (float)fraction * 0x1p-9f;
    return sign ? -small : small;
}

coli_status coli__st_to_f32(const coli__st_tensor *t, uint64_t first, uint64_t n, float *out)
{
    uint64_t end;
    if (!coli__add(first, n, &end) || end > t->n_elem)
        return coli__fail(COLI_E_INVALID, "tensor %s: %llu elements from %llu, it has %llu",
                          show(t->name).text, (unsigned long long)n, (unsigned long long)first,
                          (unsigned long long)t->n_elem);
#define COLI_ST_CONVERT(type, expr)                                                                \
    for (uint64_t i = 0; i < n; i++) {                                                             \
        type x;                                                                                    \
        memcpy(&x, t->data + (first + i) * sizeof x, sizeof x);                                    \
        out[i] = (expr);                                                                           \
    }                                                                                              \
    return COLI_OK
    switch (t->dtype) {
    case COLI_DT_F32:
        if (n > 0) memcpy(out, t->data + first * sizeof *out, n * sizeof *out);
        return COLI_OK;
    case COLI_DT_F16:
        COLI_ST_CONVERT(uint16_t, coli_f16_to_f32(x));
    case COLI_DT_BF16:
        COLI_ST_CONVERT(uint16_t, coli_bf16_to_f32(x));
    case COLI_DT_U8:
        COLI_ST_CONVERT(uint8_t, (float)x);
    case COLI_DT_I8:
        COLI_ST_CONVERT(int8_t, (float)x);
    case COLI_DT_I32:
        COLI_ST_CONVERT(int32_t, (float)x);
    case COLI_DT_I64:
        COLI_ST_CONVERT(int64_t, (float)x);
    case COLI_DT_F8_E4M3:
        COLI_ST_CONVERT(uint8_t, e4m3_to_f32(x));
    case COLI_DT_OTHER:
        break;
    }
#undef COLI_ST_CONVERT
    return coli__fail(COLI_E_UNSUPPORTED, "%s: tensor %s: elements of type %s are not supported",
                      t->file, show(t->name).text, show(t->dtype_name).text);
}

/* -- writing ----------------------------------------------------------------------------------- */

static coli_status out_bytes(const coli__st_out *t, const char **dtype, uint64_t *n_bytes)
{
    if (t->rank > COLI_ST_MAX_RANK)
        return coli__fail(COLI_E_INVALID, "tensor %s: rank %u, at most %d", t->name, t->rank,
                          COLI_ST_MAX_RANK);
    *n_bytes = 0;
    for (size_t i = 0; i < N_DTYPE && *n_bytes == 0; i++)
        if (dtypes[i].dtype == t->dtype && t->dtype != COLI_DT_OTHER) {
            *dtype = dtypes[i].name;
            *n_bytes = dtypes[i].elem_bytes;
        }
    if (*n_bytes == 0)
        return coli__fail(COLI_E_INVALID, "tensor %s: a dtype that cannot be written", t->name);
    for (uint32_t i = 0; i < t->rank; i++)
        if (!coli__mul(*n_bytes, t->shape[i], n_bytes) || *n_bytes > INT64_MAX)
            return coli__fail(COLI_E_INVALID, "tensor %s: too many elements", t->name);
    return COLI_OK;
}

/* Add one tensor at `offset` to the header; *offset moves behind it. */
static coli_status describe_out(json_t *root, const coli__st_out *t, uint64_t *offset)
{
    const char *dtype = NULL;
    uint64_t n_bytes;
    COLI_TRY(out_bytes(t, &dtype, &n_bytes));
    if (json_object_get(root, t->name) || strcmp(t->name, "__metadata__") == 0)
        return coli__fail(COLI_E_INVALID, "tensor %s: the name is taken", t->name);
    if (n_bytes > (uint64_t)INT64_MAX - *offset)
        return coli__fail(COLI_E_INVALID, "tensor %s: the file would be too large", t->name);
    json_t *entry = json_pack("{s:s, s:[], s:[I, I]}", "dtype", dtype, "shape", "data_offsets",
                              (json_int_t)*offset, (json_int_t)(*offset + n_bytes));
    *offset += n_bytes;
    bool ok = entry != NULL;
    for (uint32_t i = 0; i < t->rank && ok; i++)
        ok = json_array_append_new(json_object_get(entry, "shape"),
                                   json_integer((json_int_t)t->shape[i])) == 0;
    if (ok)
        return json_object_set_new(root, t->name, entry) == 0
                   ? COLI_OK
                   : coli__fail(COLI_E_INVALID, "tensor %s: its name is not UTF-8", t->name);
    json_decref(entry);
    return coli__fail(COLI_E_NOMEM, "tensor %s: out of memory", t->name);
}

static coli_status write_header(coli__writer *w, json_t *root)
{
    char *text = json_dumps(root, JSON_COMPACT);
    if (!text) return coli__fail(COLI_E_NOMEM, "out of memory for a safetensors header");
    const size_t n = strlen(text), n_space = (8 - n % 8) % 8; // data starts at a multiple of 8
    const uint64_t n_header = n + n_space;
    coli_status status = coli__writer_append(w, &n_header, sizeof n_header);
    if (status == COLI_OK) status = coli__writer_append(w, text, n);
    if (status == COLI_OK) status = coli__writer_append(w, "        ", n_space);
    free(text); // jansson's own
    return status;
}

static coli_status write_file(const char *path, json_t *root, const coli__st_out *tensors,
                              uint32_t n)
{
    coli__writer *w;
    COLI_TRY(coli__writer_open(path, &w));
    coli_status status = write_header(w, root);
    for (uint32_t i = 0; i < n && status == COLI_OK; i++) {
        const char *dtype;
        uint64_t n_bytes = 0;
        status = out_bytes(&tensors[i], &dtype, &n_bytes);
        if (status == COLI_OK) status = coli__writer_append(w, tensors[i].data, n_bytes);
    }
    if (status == COLI_OK)
        status = coli__writer_close(w);
    else
        coli__writer_abandon(w);
    if (status != COLI_OK) coli__file_remove(path); // ours: open would have refused another's
    return status;
}

coli_status coli__st_write(const char *path, const coli__st_out *tensors, uint32_t n)
{
    json_t *root = json_object();
    if (!root) return coli__fail(COLI_E_NOMEM, "%s: out of memory", path);
    uint64_t offset = 0;
    coli_status status = COLI_OK;
    for (uint32_t i = 0; i < n && status == COLI_OK; i++)
        status = describe_out(root, &tensors[i], &offset);
    status =
        status == COLI_OK ? write_file(path, root, tensors, n) : coli__fail_in(status, "%s", path);
    json_decref(root);
    return status;
}
