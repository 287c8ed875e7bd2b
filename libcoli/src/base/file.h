/* file.h - files as libcoli needs them: read whole, map, write atomically.  Paths are UTF-8. */
#ifndef COLI_BASE_FILE_H
#define COLI_BASE_FILE_H

#include "alloc.h"

/* Read all of `path` into *out (finish with coli__buf_finish).  More than max_bytes is E_FORMAT,
 * an absent file E_NOTFOUND, anything else E_IO, also what is no regular file (a pipe could block);
 * messages name the path. */
coli_status coli__file_read(const char *path, uint64_t max_bytes, coli__buf *out);

/* Which file it is, whatever its path leads to by now. */
typedef struct coli__file_id {
    uint64_t volume, number;
} coli__file_id;

/* A read-only mapping of a whole file.  An empty file maps to data == NULL, n_bytes == 0. */
typedef struct coli__map {
    const uint8_t *data;
    uint64_t n_bytes;
    uint32_t guard; // 0: none
    coli__file_id id;
} coli__map;

coli_status coli__map_open(const char *path, coli__map *out);
void coli__map_close(coli__map *map);

/* The same for a file that is used for long.  Where its bytes are gone, because it was made shorter or
 * the disk failed, reading gives zeros instead of ending the process, and from then on it is not whole.
 * Also a file that is shorter now is not.  Whoever reads looks afterwards.  (On POSIX this is done by
 * a handler for SIGBUS, which passes on what is not about such a mapping; see guard_posix.c.) */
coli_status coli__map_open_guarded(const char *path, coli__map *out);
bool coli__map_is_whole(const coli__map *map);

/* Sequential writing with patches; every call reports E_IO with the path and the system's reason.
 * After a failed call the writer stays failed: close will not claim that the file is whole. */
typedef struct coli__writer coli__writer;
coli_status coli__writer_open(const char *path, coli__writer **out); // E_EXISTS if there is one
/* Go on with a file whose first n_bytes stay; what it has beyond them is cut off.  E_FORMAT where it
 * has fewer. */
coli_status coli__writer_reopen(const char *path, uint64_t n_bytes, coli__writer **out);
coli_status coli__writer_append(coli__writer *w, const void *bytes, uint64_t n_bytes);
coli_status coli__writer_pad(coli__writer *w, uint64_t n_zero_bytes);
/* Overwrite bytes that were already appended. */
coli_status coli__writer_patch(coli__writer *w, uint64_t offset, const void *bytes,
                               uint64_t n_bytes);
uint64_t coli__writer_offset(const coli__writer *w); // bytes appended so far
/* What was appended and patched until now is on the disk. */
coli_status coli__writer_sync(coli__writer *w);
/* Flushes to the disk (fsync); frees w also on failure. */
coli_status coli__writer_close(coli__writer *w);
void coli__writer_abandon(coli__writer *w); // closes without a promise; NULL is fine

bool coli__path_exists(const char *path); // anything, also a link that leads nowhere
bool coli__path_is_dir(const char *path);
bool coli__path_is_slash(char c);              // separates the components of a path
const char *coli__path_name(const char *path); // what stands behind the last of them
coli_status coli__path_join(const char *dir, const char *name, char **out); // coli__free
coli_status coli__dir_create(const char *path); // E_EXISTS if anything is there
/* Sorted names; free each, then all. */
coli_status coli__dir_list(const char *path, char ***names, size_t *n);
void coli__dir_remove(const char *path);       // with the files in it; best effort
void coli__dir_remove_empty(const char *path); // if nothing is in it
void coli__file_remove(const char *path);      // best effort
/* E_EXISTS if `to` is there.  A directory's entries are on the disk before it gets its new name,
 * the name before this returns. */
coli_status coli__path_rename(const char *from, const char *to);
/* The same, and whether it has the new name: also a failure may have come after that. */
coli_status coli__path_move(const char *from, const char *to, bool *moved);
/* Whether a directory can be renamed while a file in it is open. */
extern const bool coli__dir_moves_open;

/* Make these bytes the content of `path`, whether there is such a file or not.  Whoever opens it, also
 * after a crash at any moment, finds all of the old bytes or all of the new.  They are written to a
 * file beside it, PATH.new0 or, where somebody else is writing one, PATH.new1 and so on, so that
 * only a crash leaves one behind.  A link is replaced, not what it leads to. */
coli_status coli__file_replace(const char *path, const void *bytes, uint64_t n_bytes);

/* What changes when a file does: its length and when it was last written, in the system's own count. */
typedef struct coli__file_stamp {
    uint64_t n_bytes;
    int64_t written;
} coli__file_stamp;
coli_status coli__file_look(const char *path, coli__file_stamp *out);

/* Hold a file, made where there is none, against everybody else who asks this way, until it is let go or
 * the process ends, however it does.  E_EXISTS: somebody holds it, or renamed or removed it meanwhile:
 * what is held is what has the name.  Where the file system knows no locks, everybody gets it. */
coli_status coli__lock_take(const char *path, int *lock);
void coli__lock_give(int lock); // -1 is fine

/* Bytes that can be written beside `path`, whether that exists or not. */
coli_status coli__disk_free(const char *path, uint64_t *n_bytes);
/* Before n_bytes are written to `path`, or beside it: E_LIMIT when the disk has less.  n_left: what stands there
 * and will be overwritten.  advice: what else than another place would help; "" for nothing.  A system that
 * does not tell is believed to have room. */
coli_status coli__disk_check(const char *path, uint64_t n_bytes, uint64_t n_left,
                             const char *advice);

/* The system calls above that tests replace to inject short reads, EIO and a full disk.  They work
 * as POSIX says: -1 and errno on failure. */
typedef struct coli__sys {
    ptrdiff_t (*read)(int fd, void *bytes, size_t n_bytes);
    ptrdiff_t (*write)(int fd, const void *bytes, size_t n_bytes);
    ptrdiff_t (*pread)(int fd, void *bytes, size_t n_bytes, uint64_t offset); // direct.h
    int (*fsync)(int fd);
    int (*close)(int fd);
    int (*rename)(const char *from, const char *to);  // must not replace `to`
    int (*replace)(const char *from, const char *to); // replaces a file `to`
    int (*disk_free)(const char *dir, uint64_t *n_bytes);
} coli__sys;
extern coli__sys coli__sys_calls;

#endif
