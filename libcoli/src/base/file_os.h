/* file_os.h - what file.c needs from the system; file_posix.c and file_windows.c give it.
 *
 * Paths are UTF-8, descriptors the C library's, bytes stay as they are.  Unless a line says
 * otherwise, a function works as POSIX says: -1 and errno on failure. */
#ifndef COLI_BASE_FILE_OS_H
#define COLI_BASE_FILE_OS_H

#include "file.h"

/* The defaults of coli__sys_calls. */
ptrdiff_t coli__os_read(int fd, void *bytes, size_t n_bytes);
ptrdiff_t coli__os_write(int fd, const void *bytes, size_t n_bytes);
ptrdiff_t coli__os_pread(int fd, void *bytes, size_t n_bytes, uint64_t offset);
int coli__os_fsync(int fd);
int coli__os_close(int fd);
int coli__os_rename(const char *from, const char *to);  // EEXIST if `to` is there
int coli__os_replace(const char *from, const char *to); // in one step
int coli__os_disk_free(const char *dir, uint64_t *n_bytes);

/* For reading.  What could make us wait, like a pipe, is opened without that. */
int coli__os_open(const char *path);
/* For reading past the system's cache; -1 where that cannot be had. */
int coli__os_open_direct(const char *path);
/* What was read there will not be read again soon. */
void coli__os_forget(int fd, uint64_t offset, uint64_t n_bytes);
/* For writing; EEXIST if anything is there. */
int coli__os_create(const char *path);
/* A file that is there, for writing; and cut it off behind n_bytes. */
int coli__os_open_to_write(const char *path);
int coli__os_truncate(int fd, uint64_t n_bytes);
/* Open or make the file and hold it; the fd lets it go when it is closed.  EWOULDBLOCK: it is held, or the
 * name is not its any more. */
int coli__os_lock(const char *path);
int coli__os_look(const char *path, coli__file_stamp *out);
int coli__os_seek(int fd, uint64_t offset); // from the start
/* 1 and the size of a regular file; 0: it is something else. */
int coli__os_regular(int fd, uint64_t *n_bytes);
int coli__os_id(int fd, coli__file_id *out);

/* Map a whole file, n_bytes > 0, for reading; NULL and errno on failure.  It outlives the fd. */
void *coli__os_map(int fd, size_t n_bytes);
void coli__os_unmap(void *data, size_t n_bytes);

/* Guard a mapping of this file, whose fd is handed over; 0: it cannot be guarded, and fd is closed. */
uint32_t coli__os_guard(int fd, const void *data, size_t n_bytes);
void coli__os_unguard(uint32_t guard); // 0 is fine; before the mapping goes
bool coli__os_guard_is_whole(uint32_t guard);

int coli__os_dir_create(const char *path);
/* fn for each name in a directory but "." and "..", in no order, until it says false. */
int coli__os_dir_each(const char *path, bool (*fn)(void *ctx, const char *name), void *ctx);

#ifndef _WIN32
/* A small file of the system's as text, without asking for memory and without a message; false when it is
 * not there or does not fit. */
bool coli__os_text(const char *path, char *text, size_t capacity);
#endif

/* What errno means to our callers, with the path and the system's own words. */
coli_status coli__fail_errno(const char *path, const char *doing);
/* coli__sys_calls.rename, its failure put into words; or .replace. */
coli_status coli__move(const char *from, const char *to, bool replace);
/* The same, and it is on the disk when this returns.  *moved: also a failure may have come after it. */
coli_status coli__move_for_good(const char *from, const char *to, bool replace, bool *moved);

#endif
