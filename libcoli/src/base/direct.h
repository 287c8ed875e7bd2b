/* direct.h - large pieces of a file, straight into the caller's memory, past the system's cache.
 *
 * For weights that do not fit in memory: cached, they would push out what is used more often.  Where
 * the file system or the system has no such reads, ordinary ones are done and the cache is told to
 * forget the piece; the bytes are the same.
 *
 * Threads: one file may be read by many threads at a time. */
#ifndef COLI_BASE_DIRECT_H
#define COLI_BASE_DIRECT_H

#include "file.h"

typedef struct coli__direct coli__direct;

/* E_NOTFOUND; E_IO, also when the path leads to another file than this by now. */
coli_status coli__direct_open(const char *path, coli__file_id id, coli__direct **out);
void coli__direct_close(coli__direct *file); // NULL is fine
/* Whether reads still go past the cache. */
bool coli__direct_is_direct(const coli__direct *file);

/* Where a read may put bytes: at a multiple of this, and of so many bytes for a piece of n_bytes that
 * begins at a multiple of 64 in the file.  0 when that overflows. */
enum { COLI__DIRECT_ALIGN = 4096 };
uint64_t coli__direct_room(uint64_t n_bytes);

/* Read a piece; *data is where in the room it begins, as far behind a multiple of
 * COLI__DIRECT_ALIGN as in the file.
 * Errors   E_IO  naming file, offset, what was expected and found; also when the file ends before the
 *                piece does. */
coli_status coli__direct_read(coli__direct *file, uint64_t offset, uint64_t n_bytes, void *room,
                              const uint8_t **data);

#endif
