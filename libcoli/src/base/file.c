/* file.c - see file.h.
 *
 * All reading and writing passes through coli__sys_calls, so that a test can make any of it come
 * short or fail.  A call that was interrupted (EINTR) is made again; a short one is continued.  What
 * differs between systems is behind file_os.h. */
#include "file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "file_os.h"

coli__sys coli__sys_calls = {coli__os_read,  coli__os_write,  coli__os_pread,   coli__os_fsync,
                             coli__os_close, coli__os_rename, coli__os_replace, coli__os_disk_free};

coli_status coli__fail_errno(const char *path, const char *doing)
{
    const int code = errno;
    coli_status status = COLI_E_IO;
    if (code == ENOENT || code == ENOTDIR) status = COLI_E_NOTFOUND;
    if (code == EEXIST) status = COLI_E_EXISTS;
    if (code == ENOMEM) status = COLI_E_NOMEM;
    return coli__fail(status, "%s: %s: %s", path, doing, strerror(code));
}

/* -- reading ----------------------------------------------------------------------------------- */

static coli_status open_regular(const char *path, int *fd, uint64_t *n_bytes)
{
    *fd = coli__os_open(path);
    if (*fd < 0) return coli__fail_errno(path, "cannot open");
    const int regular = coli__os_regular(*fd, n_bytes);
    if (regular > 0) return COLI_OK;
    const coli_status status = regular < 0 ? coli__fail_errno(path, "cannot look at")
                                           : coli__fail(COLI_E_IO, "%s: not a regular file", path);
    coli__sys_calls.close(*fd);
    return status;
}

static coli_status read_all(int fd, const char *path, uint64_t max_bytes, coli__buf *out)
{
    char piece[1 << 16];
    for (;;) {
        const ptrdiff_t n = coli__sys_calls.read(fd, piece, sizeof piece);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return coli__fail_errno(path, "cannot read");
        if (n == 0) return COLI_OK;
        if ((uint64_t)n > max_bytes - out->n_bytes)
            return coli__fail(COLI_E_FORMAT, "%s: larger than the %llu bytes that are allowed here",
                              path, (unsigned long long)max_bytes);
        COLI_TRY(coli__buf_append(out, piece, (size_t)n));
    }
}

coli_status coli__file_read(const char *path, uint64_t max_bytes, coli__buf *out)
{
    *out = (coli__buf){0};
    int fd;
    uint64_t n_bytes; // what is read counts, not what was said
    COLI_TRY(open_regular(path, &fd, &n_bytes));
    const coli_status status = read_all(fd, path, max_bytes, out);
    coli__sys_calls.close(fd);
    if (status != COLI_OK) coli__buf_finish(out);
    return status;
}

static coli_status map_fd(int fd, const char *path, uint64_t n_bytes, coli__map *out)
{
    coli__file_id id;
    if (n_bytes == 0) return COLI_OK;
    if (coli__os_id(fd, &id) != 0) return coli__fail_errno(path, "cannot look at");
    if (n_bytes > SIZE_MAX / 2)
        return coli__fail(COLI_E_LIMIT, "%s: %llu bytes are more than this machine can map", path,
                          (unsigned long long)n_bytes);
    void *data = coli__os_map(fd, (size_t)n_bytes);
    if (!data) return coli__fail_errno(path, "cannot map");
    *out = (coli__map){.data = data, .n_bytes = n_bytes, .id = id};
    return COLI_OK;
}

static coli_status open_map(const char *path, bool is_guarded, coli__map *out)
{
    *out = (coli__map){0};
    int fd;
    uint64_t n_bytes;
    COLI_TRY(open_regular(path, &fd, &n_bytes));
    const coli_status status = map_fd(fd, path, n_bytes, out);
    if (is_guarded && out->data)
        out->guard = coli__os_guard(fd, out->data, (size_t)n_bytes);
    else
        coli__sys_calls.close(fd); // the mapping stays
    return status;
}

coli_status coli__map_open(const char *path, coli__map *out)
{
    return open_map(path, false, out);
}

coli_status coli__map_open_guarded(const char *path, coli__map *out)
{
    return open_map(path, true, out);
}

bool coli__map_is_whole(const coli__map *map)
{
    return coli__os_guard_is_whole(map->guard);
}

void coli__map_close(coli__map *map)
{
    coli__os_unguard(map->guard);
    if (map->data) coli__os_unmap((void *)(uintptr_t)map->data, (size_t)map->n_bytes);
    *map = (coli__map){0};
}

/* -- writing ----------------------------------------------------------------------------------- */

enum { WRITER_BYTES = 1 << 18 }; // collects small appends; larger ones go straight through

struct coli__writer {
    int fd;
    bool failed;
    char *path;
    uint8_t *buffer;
    size_t n_buffered;
    uint64_t n_written; // in the file; the buffer comes on top
};

static coli_status writer_create(const char *path, coli__writer **out)
{
    *out = NULL;
    coli__writer *w = coli__calloc(1, sizeof *w);
    if (!w) return COLI_E_NOMEM;
    w->fd = -1;
    w->path = coli__strndup(path, strlen(path));
    w->buffer = coli__calloc(WRITER_BYTES, 1);
    if (!w->path || !w->buffer) {
        coli__writer_abandon(w);
        return COLI_E_NOMEM;
    }
    *out = w;
    return COLI_OK;
}

static coli_status open_or_abandon(coli_status status, coli__writer **w)
{
    if (status == COLI_OK) return COLI_OK;
    coli__writer_abandon(*w);
    *w = NULL;
    return status;
}

coli_status coli__writer_open(const char *path, coli__writer **out)
{
    COLI_TRY(writer_create(path, out));
    (*out)->fd = coli__os_create(path);
    return open_or_abandon((*out)->fd < 0 ? coli__fail_errno(path, "cannot create") : COLI_OK, out);
}

static coli_status seek(coli__writer *w, uint64_t offset)
{
    if (coli__os_seek(w->fd, offset) == 0) return COLI_OK;
    w->failed = true;
    return coli__fail_errno(w->path, "cannot seek");
}

static coli_status go_on_after(coli__writer *w, uint64_t n_bytes)
{
    uint64_t n_there;
    w->fd = coli__os_open_to_write(w->path);
    if (w->fd < 0) return coli__fail_errno(w->path, "cannot open");
    const int regular = coli__os_regular(w->fd, &n_there);
    if (regular < 0) return coli__fail_errno(w->path, "cannot look at");
    if (regular == 0) return coli__fail(COLI_E_IO, "%s: not a regular file", w->path);
    if (n_there < n_bytes)
        return coli__fail(COLI_E_FORMAT, "%s: expected at least %llu bytes, found %llu", w->path,
                          (unsigned long long)n_bytes, (unsigned long long)n_there);
    if (coli__os_truncate(w->fd, n_bytes) != 0) return coli__fail_errno(w->path, "cannot cut off");
    w->n_written = n_bytes;
    return seek(w, n_bytes);
}

coli_status coli__writer_reopen(const char *path, uint64_t n_bytes, coli__writer **out)
{
    COLI_TRY(writer_create(path, out));
    return open_or_abandon(go_on_after(*out, n_bytes), out);
}

static coli_status write_all(coli__writer *w, const uint8_t *bytes, uint64_t n_bytes)
{
    while (n_bytes > 0) {
        const size_t want = n_bytes < (1u << 30) ? (size_t)n_bytes : 1u << 30;
        const ptrdiff_t n = coli__sys_calls.write(w->fd, bytes, want);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC; // a regular file that takes nothing has no room
        if (n <= 0) {
            w->failed = true;
            return coli__fail_errno(w->path, "cannot write");
        }
        bytes += n;
        n_bytes -= (uint64_t)n;
    }
    return COLI_OK;
}

static coli_status flush(coli__writer *w)
{
    if (w->n_buffered == 0) return COLI_OK;
    COLI_TRY(write_all(w, w->buffer, w->n_buffered));
    w->n_written += w->n_buffered;
    w->n_buffered = 0;
    return COLI_OK;
}

coli_status coli__writer_append(coli__writer *w, const void *bytes, uint64_t n_bytes)
{
    if (n_bytes > WRITER_BYTES - w->n_buffered) COLI_TRY(flush(w));
    if (n_bytes >= WRITER_BYTES) {
        COLI_TRY(write_all(w, bytes, n_bytes));
        w->n_written += n_bytes;
    } else if (n_bytes > 0) {
        memcpy(w->buffer + w->n_buffered, bytes, (size_t)n_bytes);
        w->n_buffered += (size_t)n_bytes;
    }
    return COLI_OK;
}

coli_status coli__writer_pad(coli__writer *w, uint64_t n_zero_bytes)
{
    static const uint8_t zero[4096];
    while (n_zero_bytes > 0) {
        const uint64_t n = n_zero_bytes < sizeof zero ? n_zero_bytes : sizeof zero;
        COLI_TRY(coli__writer_append(w, zero, n));
        n_zero_bytes -= n;
    }
    return COLI_OK;
}

coli_status coli__writer_patch(coli__writer *w, uint64_t offset, const void *bytes,
                               uint64_t n_bytes)
{
    COLI_TRY(flush(w));
    uint64_t end;
    if (!coli__add(offset, n_bytes, &end) || end > w->n_written)
        return coli__fail(COLI_E_INTERNAL,
                          "%s: a patch of %llu bytes at %llu, only %llu are written", w->path,
                          (unsigned long long)n_bytes, (unsigned long long)offset,
                          (unsigned long long)w->n_written);
    COLI_TRY(seek(w, offset));
    COLI_TRY(write_all(w, bytes, n_bytes));
    return seek(w, w->n_written);
}

uint64_t coli__writer_offset(const coli__writer *w)
{
    return w->n_written + w->n_buffered;
}

static coli_status fsync_fd(int fd, const char *path)
{
    int result;
    do result = coli__sys_calls.fsync(fd);
    while (result != 0 && errno == EINTR);
    return result == 0 ? COLI_OK : coli__fail_errno(path, "cannot sync to the disk");
}

coli_status coli__writer_sync(coli__writer *w)
{
    COLI_TRY(flush(w));
    const coli_status status = fsync_fd(w->fd, w->path);
    w->failed = w->failed || status != COLI_OK;
    return status;
}

coli_status coli__writer_close(coli__writer *w)
{
    coli_status status = COLI_OK;
    if (w->failed) status = coli__fail(COLI_E_IO, "%s: an earlier write failed", w->path);
    if (status == COLI_OK) status = flush(w);
    if (status == COLI_OK) status = fsync_fd(w->fd, w->path);
    if (coli__sys_calls.close(w->fd) != 0 && errno != EINTR && status == COLI_OK)
        status = coli__fail_errno(w->path, "cannot close");
    w->fd = -1;
    coli__writer_abandon(w);
    return status;
}

void coli__writer_abandon(coli__writer *w)
{
    if (!w) return;
    if (w->fd >= 0) coli__sys_calls.close(w->fd);
    coli__free(w->path);
    coli__free(w->buffer);
    coli__free(w);
}

/* -- paths and directories --------------------------------------------------------------------- */

coli_status coli__path_join(const char *dir, const char *name, char **out)
{
    const size_t n_dir = strlen(dir);
    const bool slash = n_dir > 0 && !coli__path_is_slash(dir[n_dir - 1]);
    coli__buf path = {0};
    coli_status status = coli__buf_printf(&path, "%s%s%s", dir, slash ? "/" : "", name);
    if (status != COLI_OK) coli__buf_finish(&path);
    *out = path.data;
    return status;
}

const char *coli__path_name(const char *path)
{
    const char *name = path;
    for (const char *c = path; *c; c++)
        if (coli__path_is_slash(*c)) name = c + 1;
    return name;
}

coli_status coli__dir_create(const char *path)
{
    return coli__os_dir_create(path) == 0 ? COLI_OK
                                          : coli__fail_errno(path, "cannot create the directory");
}

typedef struct name_list {
    char **names;
    size_t n, cap;
    bool failed; // there was no memory
} name_list;

static bool add_name(void *ctx, const char *name)
{
    name_list *l = ctx;
    l->failed = true;
    if (l->n == l->cap) {
        const size_t cap = l->cap ? 2 * l->cap : 32;
        char **grown = coli__realloc(l->names, cap, sizeof *grown);
        if (!grown) return false;
        l->names = grown;
        l->cap = cap;
    }
    char *copy = coli__strndup(name, strlen(name));
    if (!copy) return false;
    l->names[l->n++] = copy;
    l->failed = false;
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

coli_status coli__dir_list(const char *path, char ***names, size_t *n)
{
    *names = NULL;
    *n = 0;
    name_list l = {0};
    coli_status status = COLI_OK;
    if (coli__os_dir_each(path, add_name, &l) != 0) status = coli__fail_errno(path, "cannot list");
    if (l.failed) status = COLI_E_NOMEM;
    if (status != COLI_OK) {
        for (size_t i = 0; i < l.n; i++) coli__free(l.names[i]);
        coli__free(l.names);
        return status;
    }
    if (l.n > 1) qsort(l.names, l.n, sizeof *l.names, by_name);
    *names = l.names;
    *n = l.n;
    return COLI_OK;
}

coli_status coli__file_look(const char *path, coli__file_stamp *out)
{
    return coli__os_look(path, out) == 0 ? COLI_OK : coli__fail_errno(path, "cannot look at");
}

coli_status coli__lock_take(const char *path, int *lock)
{
    *lock = coli__os_lock(path);
    if (*lock >= 0) return COLI_OK;
    if (errno == EWOULDBLOCK) return coli__fail(COLI_E_EXISTS, "%s: is in use", path);
    return coli__fail_errno(path, "cannot lock");
}

void coli__lock_give(int lock)
{
    if (lock >= 0) coli__sys_calls.close(lock);
}

coli_status coli__disk_free(const char *path, uint64_t *n_bytes)
{
    *n_bytes = 0;
    size_t n = strlen(path);
    while (n > 1 && coli__path_is_slash(path[n - 1])) n--; // "a/b/" is "a/b"
    while (n > 0 && !coli__path_is_slash(path[n - 1])) n--;
    char *parent = coli__strndup(n ? path : ".", n ? n : 1);
    if (!parent) return COLI_E_NOMEM;
    const coli_status status = coli__sys_calls.disk_free(parent, n_bytes) == 0
                                   ? COLI_OK
                                   : coli__fail_errno(parent, "cannot tell how much is free");
    coli__free(parent);
    return status;
}

coli_status coli__disk_check(const char *path, uint64_t n_bytes, uint64_t n_left,
                             const char *advice)
{
    uint64_t n_free;
    const coli_status status = coli__disk_free(path, &n_free);
    if (status == COLI_E_NOMEM || status == COLI_E_NOTFOUND) return status;
    if (status != COLI_OK || n_bytes <= n_free || n_bytes - n_free <= n_left) return COLI_OK;
    return coli__fail(
        COLI_E_LIMIT,
        "%s: %.2f GB are needed there, %.2f GB are free: free some, or give a place on "
        "another disk%s",
        path, (double)n_bytes * 1e-9, (double)(n_free + n_left) * 1e-9, advice);
}

/* -- renaming ---------------------------------------------------------------------------------- */

coli_status coli__move(const char *from, const char *to, bool replace)
{
    const coli__sys *sys = &coli__sys_calls;
    if ((replace ? sys->replace(from, to) : sys->rename(from, to)) == 0) return COLI_OK;
    const int code = errno;
    if (code == EEXIST || code == ENOTEMPTY)
        return coli__fail(COLI_E_EXISTS, "%s: already exists", to);
    return coli__fail(code == ENOENT ? COLI_E_NOTFOUND : COLI_E_IO,
                      "%s: cannot be renamed to %s: %s", from, to, strerror(code));
}

coli_status coli__path_rename(const char *from, const char *to)
{
    bool moved;
    return coli__path_move(from, to, &moved);
}

coli_status coli__path_move(const char *from, const char *to, bool *moved)
{
    return coli__move_for_good(from, to, false, moved);
}

/* -- replacing --------------------------------------------------------------------------------- */

enum { MAX_NEW = 100 }; // writers at the same time, and what crashes left behind

/* Open PATH.newN for the first N that is free; its name is *temporary (coli__free). */
static coli_status open_new(const char *path, char **temporary, coli__writer **out)
{
    for (int i = 0; i < MAX_NEW; i++) {
        coli__buf name = {0};
        coli_status status = coli__buf_printf(&name, "%s.new%d", path, i);
        if (status == COLI_OK) status = coli__writer_open(name.data, out);
        *temporary = name.data;
        if (status == COLI_OK) return COLI_OK;
        coli__buf_finish(&name);
        *temporary = NULL;
        if (status != COLI_E_EXISTS) return status;
    }
    return coli__fail(COLI_E_EXISTS,
                      "%s: cannot be written: %s.new0 to %s.new%d are there; remove them", path,
                      path, path, MAX_NEW - 1);
}

coli_status coli__file_replace(const char *path, const void *bytes, uint64_t n_bytes)
{
    char *temporary;
    coli__writer *w;
    COLI_TRY(open_new(path, &temporary, &w));
    coli_status status = coli__writer_append(w, bytes, n_bytes);
    if (status == COLI_OK)
        status = coli__writer_close(w);
    else
        coli__writer_abandon(w);
    bool moved = false;
    if (status == COLI_OK) status = coli__move_for_good(temporary, path, true, &moved);
    if (!moved) coli__file_remove(temporary); // once it moved, the name may be somebody else's
    coli__free(temporary);
    return status;
}
