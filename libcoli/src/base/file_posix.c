/* file_posix.c - file_os.h where paths are bytes and files have descriptors; and those functions of
 * file.h that are mostly system calls.
 *
 * When is a file on the disk?  After fsync of the file *and* of the directory that names it.  So
 * the writer syncs in close, and rename syncs the directory it moved and the one it moved it to. */
#include "file_os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h> // rename
#include <string.h>
#include <sys/file.h> // flock
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* -- files ------------------------------------------------------------------------------------- */

ptrdiff_t coli__os_read(int fd, void *bytes, size_t n_bytes)
{
    return read(fd, bytes, n_bytes);
}

ptrdiff_t coli__os_write(int fd, const void *bytes, size_t n_bytes)
{
    return write(fd, bytes, n_bytes);
}

ptrdiff_t coli__os_pread(int fd, void *bytes, size_t n_bytes, uint64_t offset)
{
    return pread(fd, bytes, n_bytes, (off_t)offset);
}

int coli__os_fsync(int fd)
{
    return fsync(fd);
}

int coli__os_close(int fd)
{
    return close(fd);
}

static int open_again(const char *path, int flags)
{
    int fd;
    do fd = open(path, flags | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR);
    return fd;
}

int coli__os_open(const char *path)
{
    return open_again(path, O_RDONLY | O_NONBLOCK); // a pipe would wait until somebody writes
}

int coli__os_open_direct(const char *path)
{
#ifdef O_DIRECT
    return open_again(path, O_RDONLY | O_DIRECT);
#else
    (void)path;
    return -1;
#endif
}

void coli__os_forget(int fd, uint64_t offset, uint64_t n_bytes)
{
#ifdef POSIX_FADV_DONTNEED
    posix_fadvise(fd, (off_t)offset, (off_t)n_bytes,
                  POSIX_FADV_DONTNEED); // advice: it may not help
#else
    (void)fd, (void)offset, (void)n_bytes;
#endif
}

int coli__os_create(const char *path)
{
    return open_again(path, O_WRONLY | O_CREAT | O_EXCL);
}

int coli__os_open_to_write(const char *path)
{
    return open_again(path, O_WRONLY | O_NONBLOCK);
}

int coli__os_truncate(int fd, uint64_t n_bytes)
{
    return ftruncate(fd, (off_t)n_bytes);
}

static bool has_name(int fd, const char *path)
{
    struct stat held, named;
    return fstat(fd, &held) == 0 && stat(path, &named) == 0 && held.st_dev == named.st_dev &&
           held.st_ino == named.st_ino;
}

/* flock goes with the open file and not with the process, so that two conversions of one process
 * exclude each other, too.  Between opening and locking, who held it may have renamed or removed it. */
int coli__os_lock(const char *path)
{
    const int fd = open_again(path, O_RDWR | O_CREAT);
    if (fd < 0) return fd;
    const bool is_held = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!is_held && has_name(fd, path)) return fd;
    close(fd);
    errno = EWOULDBLOCK;
    return -1;
}

int coli__os_look(const char *path, coli__file_stamp *out)
{
    struct stat st;
    if (stat(path, &st) != 0) return -1;
#ifdef __APPLE__
    const struct timespec written = st.st_mtimespec;
#else
    const struct timespec written = st.st_mtim;
#endif
    *out = (coli__file_stamp){(uint64_t)st.st_size,
                              (int64_t)written.tv_sec * 1000000000 + written.tv_nsec};
    return 0;
}

int coli__os_disk_free(const char *dir, uint64_t *n_bytes)
{
    struct statvfs fs;
    if (statvfs(dir, &fs) != 0) return -1;
    if (!coli__mul(fs.f_bavail, fs.f_frsize, n_bytes)) *n_bytes = UINT64_MAX;
    return 0;
}

int coli__os_seek(int fd, uint64_t offset)
{
    return lseek(fd, (off_t)offset, SEEK_SET) < 0 ? -1 : 0;
}

int coli__os_regular(int fd, uint64_t *n_bytes)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return -1;
    *n_bytes = (uint64_t)st.st_size;
    return S_ISREG(st.st_mode) ? 1 : 0;
}

int coli__os_id(int fd, coli__file_id *out)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return -1;
    *out = (coli__file_id){(uint64_t)st.st_dev, (uint64_t)st.st_ino};
    return 0;
}

bool coli__os_text(const char *path, char *text, size_t capacity)
{
    const int fd = coli__os_open(path);
    if (fd < 0) return false;
    size_t n = 0;
    ptrdiff_t more = 1;
    while (n < capacity && more > 0) {
        do more = read(fd, text + n, capacity - n);
        while (more < 0 && errno == EINTR);
        n += more > 0 ? (size_t)more : 0;
    }
    close(fd);
    if (more < 0 || n == capacity) return false;
    text[n] = 0;
    return true;
}

void *coli__os_map(int fd, size_t n_bytes)
{
    void *data = mmap(NULL, n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    return data == MAP_FAILED ? NULL : data;
}

void coli__os_unmap(void *data, size_t n_bytes)
{
    munmap(data, n_bytes);
}

/* -- paths and directories --------------------------------------------------------------------- */

bool coli__path_is_slash(char c)
{
    return c == '/';
}

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

void coli__file_remove(const char *path)
{
    unlink(path);
}

int coli__os_dir_create(const char *path)
{
    return mkdir(path, 0777);
}

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

int coli__os_dir_each(const char *path, bool (*fn)(void *ctx, const char *name), void *ctx)
{
    DIR *dir = opendir(path);
    if (!dir) return -1;
    const struct dirent *entry;
    while ((void)(errno = 0), (entry = readdir(dir)))
        if (!is_dots(entry->d_name) && !fn(ctx, entry->d_name)) break;
    const int reason = entry ? 0 : errno;
    closedir(dir);
    errno = reason;
    return reason ? -1 : 0;
}

void coli__dir_remove_empty(const char *path)
{
    rmdir(path);
}

/* Cleaning up after a failure must not need memory: unlinkat takes the names as they come. */
void coli__dir_remove(const char *path)
{
    DIR *dir = opendir(path);
    if (dir) {
        const struct dirent *entry;
        while ((entry = readdir(dir)))
            if (!is_dots(entry->d_name)) unlinkat(dirfd(dir), entry->d_name, 0);
        closedir(dir);
    }
    rmdir(path);
}

/* -- renaming ---------------------------------------------------------------------------------- */

const bool coli__dir_moves_open = true;

/* rename(2) replaces its target; only Linux offers to refuse that in one step.  Where it does not,
 * what is left is the moment between the look and the move. */
int coli__os_rename(const char *from, const char *to)
{
#ifdef RENAME_NOREPLACE
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
    if (errno != ENOSYS && errno != EINVAL) return -1; // these two: a file system without it
#endif
    if (coli__path_exists(to)) {
        errno = EEXIST;
        return -1;
    }
    return rename(from, to);
}

int coli__os_replace(const char *from, const char *to)
{
    return rename(from, to);
}

/* Some file systems cannot sync a directory and say EINVAL; there is nothing better to do there. */
static coli_status sync_dir(int fd, const char *path)
{
    if (coli__sys_calls.fsync(fd) == 0 || errno == EINVAL || errno == EINTR) return COLI_OK;
    return coli__fail_errno(path, "cannot sync to the disk");
}

static coli_status sync_entries(const char *dir)
{
    const int fd = open_again(dir, O_RDONLY | O_DIRECTORY);
    if (fd < 0) return coli__fail_errno(dir, "cannot open");
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
    const coli_status status = *fd < 0 ? coli__fail_errno(parent, "cannot open") : COLI_OK;
    coli__free(parent);
    return status;
}

/* All that can fail for want of memory or rights comes before the move. */
coli_status coli__move_for_good(const char *from, const char *to, bool replace, bool *moved)
{
    *moved = false;
    int parent;
    if (coli__path_is_dir(from)) COLI_TRY(sync_entries(from));
    COLI_TRY(open_parent(to, &parent));
    coli_status status = coli__move(from, to, replace);
    *moved = status == COLI_OK;
    if (*moved) status = sync_dir(parent, to);
    coli__sys_calls.close(parent);
    return status;
}
