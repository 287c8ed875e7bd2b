/* pack.c - see pack.h.
 *
 * Writing: front to back, once; each file is hashed as it passes, and the checksums come last.
 *
 * Reading: the pack is mapped, and nobody vouches for it.  First its heads alone are walked: which files
 * there are, each once, none that is no part of a container, all within the pack.  Names are compared
 * with those that there may be, never used as paths.  Then the checksums are read, and only then data:
 *
 *     look        heads, names, sizes; the table of model.coli, which has checksums of the files beside it
 *     check       the data of each file against its line; then the container in it, as if it stood in a
 *                 directory: who made the pack wrote the lines, too
 *     unpack      the same, but the data is written to DIR.partial as it passes, and the container there is
 *                 what is verified; renamed
 *
 * So a pack that is torn, lies about sizes or holds something else leaves nothing behind. */
#include "pack.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "container_format.h"
#include "tar.h"

/* The files of a container in their order in a pack, and the checksums. */
enum { PACK_MODEL = CT_N_FILE, PACK_SUMS, PACK_N_FILE };
#define SUMS_NAME "coli-pack.xxh128"

enum {
    PIECE_BYTES = 8 << 20,
    SUMS_MAX_BYTES = 4096,
    MAX_DIR_NAME = 60,
};

static const char *file_name(int file)
{
    return file < CT_N_FILE     ? coli__ct_file_names[file]
           : file == PACK_MODEL ? "model.coli"
                                : SUMS_NAME;
}

/* Files that no container lacks. */
static bool is_needed(int file)
{
    return file == CT_CONFIG || file == CT_CHAT || file >= PACK_MODEL;
}

/* How far it is. */
typedef struct work {
    const coli__pack_job *args;
    uint64_t done_bytes, total_bytes;
} work;

static coli_status report(work *w, const char *what, uint64_t more_bytes)
{
    const coli__pack_job *a = w->args;
    w->done_bytes += more_bytes;
    if (!a->progress || a->progress(a->user, what, w->done_bytes, w->total_bytes)) return COLI_OK;
    return coli__fail(COLI_E_CANCELLED, "%s: was stopped", a->from);
}

/* Hash the data of a file, and write it where that is asked for. */
static coli_status pass(work *w, const char *what, const uint8_t *data, uint64_t n_bytes,
                        coli__writer *out, coli__digest *digest)
{
    XXH3_state_t *hash = XXH3_createState();
    if (!hash) return coli__fail(COLI_E_NOMEM, "out of memory");
    XXH3_128bits_reset(hash);
    coli_status status = report(w, what, 0);
    for (uint64_t at = 0, n; at < n_bytes && status == COLI_OK; at += n) {
        n = n_bytes - at < PIECE_BYTES ? n_bytes - at : PIECE_BYTES;
        XXH3_128bits_update(hash, data + at, (size_t)n);
        if (out) status = coli__writer_append(out, data + at, n);
        if (status == COLI_OK) status = report(w, what, n);
    }
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(hash));
    XXH3_freeState(hash);
    *digest = coli__digest_text(canonical.digest);
    return status;
}

static coli_status check_whole(const char *path, const coli__map *map)
{
    if (coli__map_is_whole(map)) return COLI_OK;
    return coli__fail(COLI_E_IO, "%s: became shorter, or could not be read, while it was in use",
                      path);
}

/* -- packing ----------------------------------------------------------------------------------- */

/* What the files are called together: the directory's name, where every system can have it. */
static void choose_name(const char *dir, char out[MAX_DIR_NAME + 1])
{
    static const char fine[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t end = strlen(dir);
    while (end > 0 && coli__path_is_slash(dir[end - 1])) end--;
    size_t begin = end;
    while (begin > 0 && !coli__path_is_slash(dir[begin - 1])) begin--;
    const size_t n = end - begin;
    snprintf(out, MAX_DIR_NAME + 1, "model");
    if (n == 0 || n > MAX_DIR_NAME || strspn(dir + begin, fine) < n || dir[begin] == '.') return;
    memcpy(out, dir + begin, n);
    out[n] = 0;
}

typedef struct packing {
    work work;
    char name[MAX_DIR_NAME + 1];
    coli__map maps[PACK_SUMS]; // of the files that are there
    bool has[PACK_SUMS];
    coli__buf sums;
    coli__writer *out;
} packing;

static coli_status open_files(packing *p)
{
    for (int f = 0; f < PACK_SUMS; f++) {
        char *path;
        COLI_TRY(coli__path_join(p->work.args->from, file_name(f), &path));
        p->has[f] = coli__path_exists(path);
        const coli_status status = p->has[f] ? coli__map_open_guarded(path, &p->maps[f]) : COLI_OK;
        coli__free(path);
        COLI_TRY(status);
        p->work.total_bytes += p->maps[f].n_bytes;
    }
    return COLI_OK;
}

static coli_status begin_file(const packing *p, int file, uint64_t n_bytes)
{
    char name[COLI__TAR_NAME + 1];
    uint8_t head[COLI__TAR_HEAD_BYTES];
    snprintf(name, sizeof name, "%s/%s", p->name, file_name(file));
    const size_t n_head = coli__tar_head(name, n_bytes, head);
    return coli__writer_append(p->out, head, n_head);
}

static coli_status put_file(packing *p, int file)
{
    const coli__map *map = &p->maps[file];
    coli__digest digest;
    COLI_TRY(begin_file(p, file, map->n_bytes));
    COLI_TRY(pass(&p->work, file_name(file), map->data, map->n_bytes, p->out, &digest));
    COLI_TRY(coli__writer_pad(p->out, coli__tar_padding(map->n_bytes)));
    COLI_TRY(check_whole(p->work.args->from, map));
    return coli__buf_printf(&p->sums, "%s  %s\n", digest.hex, file_name(file));
}

static coli_status put_files(packing *p)
{
    for (int f = 0; f < PACK_SUMS; f++)
        if (p->has[f]) COLI_TRY(put_file(p, f));
    COLI_TRY(begin_file(p, PACK_SUMS, p->sums.n_bytes));
    COLI_TRY(coli__writer_append(p->out, p->sums.data, p->sums.n_bytes));
    COLI_TRY(coli__writer_pad(p->out, coli__tar_padding(p->sums.n_bytes)));
    return coli__writer_pad(p->out, 2 * COLI__TAR_BLOCK);
}

static coli_status partial_of(const char *path, coli__buf *out)
{
    size_t n = strlen(path);
    while (n > 1 && coli__path_is_slash(path[n - 1])) n--; // beside "a/b/" is "a/b.partial"
    COLI_TRY(coli__buf_append(out, path, n));
    return coli__buf_str(out, ".partial");
}

static coli_status exists(const char *path)
{
    return coli__fail(COLI_E_EXISTS, "%s: already exists", path);
}

static coli_status left_behind(const char *partial)
{
    return coli__fail(
        COLI_E_EXISTS,
        "%s: already exists; another run is writing it, or one was killed and left it: "
        "then remove it",
        partial);
}

static coli_status write_pack(packing *p, const char *partial)
{
    const coli_status opened = coli__writer_open(partial, &p->out);
    if (opened == COLI_E_EXISTS) return left_behind(partial);
    COLI_TRY(opened);
    coli_status status = put_files(p);
    if (status == COLI_OK)
        status = coli__writer_close(p->out);
    else
        coli__writer_abandon(p->out);
    if (status == COLI_OK) status = coli__path_rename(partial, p->work.args->to);
    if (status != COLI_OK) coli__file_remove(partial);
    return status;
}

coli_status coli__pack(const coli__pack_job *args)
{
    if (coli__path_exists(args->to)) return exists(args->to);
    COLI_TRY(args->verify(args->from, args->progress, args->user)); // what is sent is sound
    packing p = {.work = {.args = args}};
    coli__buf partial = {0};
    choose_name(args->from, p.name);
    coli_status status = partial_of(args->to, &partial);
    if (status == COLI_OK) status = open_files(&p);
    if (status == COLI_OK) status = coli__disk_check(args->to, p.work.total_bytes, 0, "");
    if (status == COLI_OK) status = write_pack(&p, partial.data);
    for (int f = 0; f < PACK_SUMS; f++) coli__map_close(&p.maps[f]);
    coli__buf_finish(&p.sums);
    coli__buf_finish(&partial);
    return status;
}

/* -- looking at a pack --------------------------------------------------------------------------- */

typedef struct pack {
    work work;
    const char *path;
    coli__map map;
    coli__tar_entry files[PACK_N_FILE];
    bool has[PACK_N_FILE];
    coli__digest sums[PACK_SUMS]; // as the pack says
    char name[COLI__TAR_NAME + 1];
} pack;

/* Which file "NAME/file" is; -1: none that a pack holds.  The part before the slash is a word, the same
 * for all. */
static int file_of(pack *k, const char *name)
{
    const char *slash = strchr(name, '/');
    const size_t n = slash ? (size_t)(slash - name) : 0;
    if (n == 0 || name[0] == '.') return -1;
    if (!k->name[0]) memcpy(k->name, name, n);
    if (strlen(k->name) != n || memcmp(k->name, name, n) != 0) return -1;
    for (int f = 0; f < PACK_N_FILE; f++)
        if (strcmp(slash + 1, file_name(f)) == 0) return f;
    return -1;
}

static coli_status add_entry(pack *k, const coli__tar_entry *e)
{
    const int f = file_of(k, e->name);
    if (f < 0)
        return coli__fail(COLI_E_FORMAT, "%s: %s: is no file of a container", k->path, e->name);
    if (k->has[f]) return coli__fail(COLI_E_FORMAT, "%s: %s: is there twice", k->path, e->name);
    if (k->has[PACK_SUMS])
        return coli__fail(COLI_E_FORMAT, "%s: %s: stands behind the checksums", k->path, e->name);
    k->has[f] = true;
    k->files[f] = *e;
    if (f < PACK_SUMS) k->work.total_bytes += e->n_bytes; // within the file, so no overflow
    return COLI_OK;
}

static coli_status walk(pack *k)
{
    uint64_t at = 0;
    for (bool is_end = false;;) {
        coli__tar_entry e;
        COLI_TRY(coli__tar_next(k->path, k->map.data, k->map.n_bytes, &at, &e, &is_end));
        if (is_end) break;
        COLI_TRY(add_entry(k, &e));
    }
    for (int f = 0; f < PACK_N_FILE; f++)
        if (is_needed(f) && !k->has[f])
            return coli__fail(COLI_E_FORMAT, "%s: %s is missing", k->path, file_name(f));
    return COLI_OK;
}

/* One line, "32 digits, two blanks, name"; its length, or 0. */
static size_t parse_sum(pack *k, const char *text, size_t n_bytes)
{
    enum { DIGITS = 32 };
    const char *end = memchr(text, '\n', n_bytes);
    if (!end || end - text < DIGITS + 3) return 0;
    for (int i = 0; i < DIGITS; i++)
        if (!strchr("0123456789abcdef", text[i]) || !text[i]) return 0;
    if (text[DIGITS] != ' ' || text[DIGITS + 1] != ' ') return 0;
    const char *name = text + DIGITS + 2;
    for (int f = 0; f < PACK_SUMS; f++) {
        const size_t n = strlen(file_name(f));
        if ((size_t)(end - name) != n || memcmp(name, file_name(f), n) != 0) continue;
        if (!k->has[f] || k->sums[f].hex[0]) return 0; // not there, or a second line
        memcpy(k->sums[f].hex, text, DIGITS);
        return (size_t)(end - text) + 1;
    }
    return 0;
}

static coli_status read_sums(pack *k)
{
    const coli__tar_entry *e = &k->files[PACK_SUMS];
    const char *text = (const char *)k->map.data + e->offset;
    if (e->n_bytes > SUMS_MAX_BYTES)
        return coli__fail(COLI_E_FORMAT, "%s: %s: expected at most %d bytes, found %llu", k->path,
                          e->name, SUMS_MAX_BYTES, (unsigned long long)e->n_bytes);
    uint32_t line = 1;
    for (size_t at = 0, n; at < e->n_bytes; at += n, line++) {
        n = parse_sum(k, text + at, (size_t)e->n_bytes - at);
        if (n == 0)
            return coli__fail(
                COLI_E_FORMAT,
                "%s: %s: line %u: expected the checksum and the name of a file of the "
                "pack, each once",
                k->path, e->name, line);
    }
    for (int f = 0; f < PACK_SUMS; f++)
        if (k->has[f] && !k->sums[f].hex[0])
            return coli__fail(COLI_E_FORMAT, "%s: %s: has no checksum of %s", k->path, e->name,
                              file_name(f));
    return COLI_OK;
}

/* The files beside model.coli are those that its table names. */
static coli_status compare_table(const pack *k, const coli__ct_table *table)
{
    for (int f = 0; f < CT_N_FILE; f++) {
        const char *named = table->files[f].hex;
        if (f == CT_GENERATION) continue; // may be edited
        if (!named[0] && k->has[f])
            return coli__fail(COLI_E_FORMAT, "%s: %s: was not there when the weights were made",
                              k->path, file_name(f));
        if (named[0] && (!k->has[f] || strcmp(named, k->sums[f].hex) != 0))
            return coli__fail(COLI_E_FORMAT, "%s: %s: is not the file the weights were made with",
                              k->path, file_name(f));
    }
    return COLI_OK;
}

static coli_status look_at_model(const pack *k)
{
    const coli__tar_entry *e = &k->files[PACK_MODEL];
    coli__buf what = {0};
    coli__ct_table table;
    COLI_TRY(coli__buf_printf(&what, "%s: %s", k->path, e->name));
    // a block of the archive begins at a multiple of 512, so the weights are aligned
    coli_status status = coli__ct_parse(what.data, k->map.data + e->offset, e->n_bytes, &table);
    coli__buf_finish(&what);
    COLI_TRY(status);
    status = compare_table(k, &table);
    coli__ct_table_finish(&table);
    return status;
}

static coli_status look(pack *k)
{
    k->path = k->work.args->from;
    COLI_TRY(coli__map_open_guarded(k->path, &k->map));
    COLI_TRY(walk(k));
    COLI_TRY(read_sums(k));
    return look_at_model(k);
}

/* -- checking and unpacking ---------------------------------------------------------------------- */

static coli_status check_file(pack *k, int file, coli__writer *out)
{
    const coli__tar_entry *e = &k->files[file];
    coli__digest found;
    COLI_TRY(pass(&k->work, file_name(file), k->map.data + e->offset, e->n_bytes, out, &found));
    if (strcmp(found.hex, k->sums[file].hex) == 0) return COLI_OK;
    return coli__fail(COLI_E_FORMAT, "%s: %s: expected checksum %s, found %s", k->path, e->name,
                      k->sums[file].hex, found.hex);
}

static const void *data_of(const pack *k, int file)
{
    return k->map.data + k->files[file].offset;
}

static coli__pack_span span_of(const pack *k, int file)
{
    const coli__pack_span none = {NULL, 0};
    return k->has[file] ? (coli__pack_span){data_of(k, file), k->files[file].n_bytes} : none;
}

/* The files beside model.coli were compared with its table when it was looked at. */
static coli_status check_container(const pack *k)
{
    const coli__pack_job *a = k->work.args;
    coli__buf name = {0};
    COLI_TRY(coli__buf_printf(&name, "%s: %s", k->path, k->name));
    const coli__container_bytes bytes = {.name = name.data,
                                         .model = data_of(k, PACK_MODEL),
                                         .n_model = k->files[PACK_MODEL].n_bytes,
                                         .config = data_of(k, CT_CONFIG),
                                         .n_config = k->files[CT_CONFIG].n_bytes,
                                         .chat = data_of(k, CT_CHAT),
                                         .n_chat = k->files[CT_CHAT].n_bytes};
    const coli__pack_files files = {.name = name.data,
                                    .config = span_of(k, CT_CONFIG),
                                    .generation = span_of(k, CT_GENERATION),
                                    .tokenizer = span_of(k, CT_TOKENIZER),
                                    .tokenizer_config = span_of(k, CT_TOKENIZER_CONFIG)};
    coli_status status = a->check_files(&files);
    if (status == COLI_OK)
        status = coli__container_verify_bytes(&bytes, a->describe, a->progress, a->user);
    coli__buf_finish(&name);
    return status;
}

static coli_status check_all(pack *k)
{
    for (int f = 0; f < PACK_SUMS; f++)
        if (k->has[f]) COLI_TRY(check_file(k, f, NULL));
    return check_container(k);
}

static coli_status write_file(pack *k, int file, const char *dir)
{
    char *path;
    coli__writer *out;
    COLI_TRY(coli__path_join(dir, file_name(file), &path));
    coli_status status = coli__writer_open(path, &out);
    coli__free(path);
    COLI_TRY(status);
    status = check_file(k, file, out);
    if (status == COLI_OK) return coli__writer_close(out);
    coli__writer_abandon(out);
    return status;
}

static coli_status write_files(pack *k, const char *dir)
{
    for (int f = 0; f < PACK_SUMS; f++)
        if (k->has[f]) COLI_TRY(write_file(k, f, dir));
    COLI_TRY(check_whole(k->path, &k->map));
    const coli__pack_job *a = k->work.args;
    return a->verify(dir, a->progress, a->user); // what is not sound must not get the name
}

static coli_status write_dir(pack *k, const char *partial)
{
    COLI_TRY(coli__disk_check(k->work.args->to, k->map.n_bytes, 0, ""));
    const coli_status created = coli__dir_create(partial);
    if (created == COLI_E_EXISTS) return left_behind(partial);
    COLI_TRY(created);
    coli_status status = write_files(k, partial);
    if (status == COLI_OK) status = coli__path_rename(partial, k->work.args->to);
    if (status != COLI_OK) coli__dir_remove(partial);
    return status;
}

/* What was read of a pack that became shorter means nothing, so that is said first. */
static coli_status with_pack(const coli__pack_job *args, const char *partial)
{
    pack k = {.work = {.args = args}};
    coli_status status = look(&k);
    if (status == COLI_OK) status = partial ? write_dir(&k, partial) : check_all(&k);
    const coli_status whole = check_whole(args->from, &k.map);
    coli__map_close(&k.map);
    return whole == COLI_OK ? status : whole;
}

coli_status coli__pack_verify(const coli__pack_job *args)
{
    return with_pack(args, NULL);
}

coli_status coli__unpack(const coli__pack_job *args)
{
    if (coli__path_exists(args->to)) return exists(args->to);
    coli__buf partial = {0};
    coli_status status = partial_of(args->to, &partial);
    if (status == COLI_OK) status = with_pack(args, partial.data);
    coli__buf_finish(&partial);
    return status;
}
