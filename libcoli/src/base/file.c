/* file.c - see file.h.
 *
 * All reading and writing passes through coli__sys_calls, so that a test can make any of it come
 * short or fail.  A call that was interrupted (EINTR) is made again; a short one is continued.
 *
 * When is a file on the disk?  After fsync of the file *and* of the directory that names it.  So
 * the writer syncs in close, and rename syncs the directory it moved and the one it moved it to.
 *
 * Paths are UTF-8, which is what POSIX systems take as they are. */
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* -- the system -------------------------------------------------------------------------------- */

static ptrdiff_t sys_read(int fd, void *bytes, size_t n_bytes)
{
    return read(fd, bytes, n_bytes);
}

static ptrdiff_t sys_write(int fd, const void *bytes, size_t n_bytes)
{
    return write(fd, bytes, n_bytes);
}

/* rename(2) replaces its target; only Linux offers to refuse that in one step.  Where it does not,
 * what is left is the moment between the look and the move. */
static int sys_rename(const char *from, const char *to)
{
#ifdef RENAME_NOREPLACE
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
    if (errno != ENOSYS && errno != EINVAL) return -1; // these two: a file system without it
#endif
    struct stat st;
    if (lstat(to, &st) == 0) {
        errno = EEXIST;
        return -1;
    }
    return rename(from, to);
}

coli__sys coli__sys_calls = {sys_read, sys_write, fsync, close, sys_rename};

/* What errno means to our callers, with the path and the system's own words. */
static coli_status fail_errno(const char *path, const char *doing)
{
    const int code = errno;
    coli_status status = COLI_E_IO;
    if (code == ENOENT || code == ENOTDIR) status = COLI_E_NOTFOUND;
    if (code == EEXIST) status = COLI_E_EXISTS;
    if (code == ENOMEM) status = COLI_E_NOMEM;
    return coli__fail(status, "%s: %s: %s", path, doing, strerror(code));
}

static int open_again(const char *path, int flags)
{
    int fd;
    do fd = open(path, flags | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* -- reading ----------------------------------------------------------------------------------- */

/* Open what can be read without waiting: a pipe would hold us up until somebody writes. */
static coli_status open_regular(const char *path, int *fd, uint64_t *n_bytes)
{
    *fd = open_again(path, O_RDONLY | O_NONBLOCK);
    if (*fd < 0) return fail_errno(path, "cannot open");
    struct stat st;
    coli_status status = COLI_OK;
    if (fstat(*fd, &st) != 0)
        status = fail_errno(path, "cannot look at");
    else if (!S_ISREG(st.st_mode))
        status = coli__fail(COLI_E_IO, "%s: not a regular file", path);
    if (status == COLI_OK)
        *n_bytes = (uint64_t)st.st_size;
    else
        coli__sys_calls.close(*fd);
    return status;
}

static coli_status read_all(int fd, const char *path, uint64_t max_bytes, coli__buf *out)
{
    char piece[1 << 16];
    for (;;) {
        const ptrdiff_t n = coli__sys_calls.read(fd, piece, sizeof piece);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail_errno(path, "cannot read");
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
    if (n_bytes == 0) return COLI_OK;
    if (n_bytes > SIZE_MAX / 2)
        return coli__fail(COLI_E_LIMIT, "%s: %llu bytes are more than this machine can map", path,
                          (unsigned long long)n_bytes);
    void *data = mmap(NULL, (size_t)n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) return fail_errno(path, "cannot map");
    *out = (coli__map){data, n_bytes};
    return COLI_OK;
}

coli_status coli__map_open(const char *path, coli__map *out)
{
    *out = (coli__map){0};
    int fd;
    uint64_t n_bytes;
    COLI_TRY(open_regular(path, &fd, &n_bytes));
    const coli_status status = map_fd(fd, path, n_bytes, out);
    coli__sys_calls.close(fd); // the mapping stays
    return status;
}

void coli__map_close(coli__map *map)
{
    if (map->data) munmap((void *)(uintptr_t)map->data, (size_t)map->n_bytes);
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

coli_status coli__writer_open(const char *path, coli__writer **out)
{
    *out = NULL;
    coli__writer *w = coli__calloc(1, sizeof *w);
    if (!w) return COLI_E_NOMEM;
    w->fd = -1;
    w->path = coli__strndup(path, strlen(path));
    w->buffer = coli__calloc(WRITER_BYTES, 1);
    coli_status status = w->path && w->buffer ? COLI_OK : COLI_E_NOMEM;
    if (status == COLI_OK) {
        w->fd = open_again(path, O_WRONLY | O_CREAT | O_EXCL);
        if (w->fd < 0) status = fail_errno(path, "cannot create");
    }
    if (status != COLI_OK) {
        coli__writer_abandon(w);
        return status;
    }
    *out = w;
    return COLI_OK;
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
            return fail_errno(w->path, "cannot write");
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

static coli_status seek(coli__writer *w, uint64_t offset)
{
    if (lseek(w->fd, (off_t)offset, SEEK_SET) >= 0) return COLI_OK;
    w->failed = true;
    return fail_errno(w->path, "cannot seek");
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
    return result == 0 ? COLI_OK : fail_errno(path, "cannot sync to the disk");
}

coli_status coli__writer_close(coli__writer *w)
{
    coli_status status = COLI_OK;
    if (w->failed) status = coli__fail(COLI_E_IO, "%s: an earlier write failed", w->path);
    if (status == COLI_OK) status = flush(w);
    if (status == COLI_OK) status = fsync_fd(w->fd, w->path);
    if (coli__sys_calls.close(w->fd) != 0 && errno != EINTR && status == COLI_OK)
        status = fail_errno(w->path, "cannot close");
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

bool coli__path_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

bool coli__path_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

coli_status coli__path_join(const char *dir, const char *name, char **out)
{
    const size_t n_dir = strlen(dir);
    const bool slash = n_dir > 0 && dir[n_dir - 1] != '/';
    coli__buf path = {0};
    coli_status status = coli__buf_printf(&path, "%s%s%s", dir, slash ? "/" : "", name);
    if (status != COLI_OK) coli__buf_finish(&path);
    *out = path.data;
    return status;
}

coli_status coli__dir_create(const char *path)
{
    return mkdir(path, 0777) == 0 ? COLI_OK : fail_errno(path, "cannot create the directory");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static coli_status list_into(DIR *dir, const char *path, char ***names, size_t *n)
{
    size_t cap = 0;
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (!entry) return errno == 0 ? COLI_OK : fail_errno(path, "cannot list");
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (*n == cap) {
            cap = cap ? 2 * cap : 32;
            char **grown = coli__realloc(*names, cap, sizeof **names);
            if (!grown) return COLI_E_NOMEM;
            *names = grown;
        }
        char *name = coli__strndup(entry->d_name, strlen(entry->d_name));
        if (!name) return COLI_E_NOMEM;
        (*names)[(*n)++] = name;
    }
}

coli_status coli__dir_list(const char *path, char ***names, size_t *n)
{
    *names = NULL;
    *n = 0;
    DIR *dir = opendir(path);
    if (!dir) return fail_errno(path, "cannot list");
    const coli_status status = list_into(dir, path, names, n);
    closedir(dir);
    if (status != COLI_OK) {
        for (size_t i = 0; i < *n; i++) coli__free((*names)[i]);
        coli__free(*names);
        *names = NULL;
        *n = 0;
    } else if (*n > 1) {
        qsort(*names, *n, sizeof **names, by_name);
    }
    return status;
}

void coli__file_remove(const char *path)
{
    unlink(path);
}

/* Cleaning up after a failure must not need memory: unlinkat takes the names as they come. */
void coli__dir_remove(const char *path)
{
    DIR *dir = opendir(path);
    if (dir) {
        const struct dirent *entry;
        while ((entry = readdir(dir)))
            if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
                unlinkat(dirfd(dir), entry->d_name, 0);
        closedir(dir);
    }
    rmdir(path);
}

/* Some file systems cannot sync a directory and say EINVAL; there is nothing better to do there. */
static coli_status sync_dir(int fd, const char *path)
{
    if (coli__sys_calls.fsync(fd) == 0 || errno == EINVAL || errno == EINTR) return COLI_OK;
    return fail_errno(path, "cannot sync to the disk");
}

static coli_status sync_entries(const char *dir)
{
    const int fd = open_again(dir, O_RDONLY | O_DIRECTORY);
    if (fd < 0) return fail_errno(dir, "cannot open");
    const coli_status status = sync_dir(fd, dir);
    coli__sys_calls.close(fd);
    return status;
}

static coli_status open_parent(const char *path, int *fd)
{
    size_t n = strlen(path);
    while (n > 0 && path[n - 1] == '/') n--; // "a/b/" is "a/b"
    while (n > 0 && path[n - 1] != '/') n--;
    char *parent = coli__strndup(n ? path : ".", n ? n : 1);
    if (!parent) return COLI_E_NOMEM;
    *fd = open_again(parent, O_RDONLY | O_DIRECTORY);
    const coli_status status = *fd < 0 ? fail_errno(parent, "cannot open") : COLI_OK;
    coli__free(parent);
    return status;
}

/* All that can fail for want of memory or rights comes before the move. */
coli_status coli__path_rename(const char *from, const char *to)
{
    int parent;
    if (coli__path_is_dir(from)) COLI_TRY(sync_entries(from));
    COLI_TRY(open_parent(to, &parent));
    coli_status status = COLI_OK;
    if (coli__sys_calls.rename(from, to) == 0) {
        status = sync_dir(parent, to);
    } else if (errno == EEXIST || errno == ENOTEMPTY) {
        status = coli__fail(COLI_E_EXISTS, "%s: already exists", to);
    } else {
        const int code = errno;
        status = coli__fail(code == ENOENT ? COLI_E_NOTFOUND : COLI_E_IO,
                            "%s: cannot be renamed to %s: %s", from, to, strerror(code));
    }
    coli__sys_calls.close(parent);
    return status;
}
