/* disk.h - how fast a file can be read where it is. */
#ifndef COLI_RUN_DISK_H
#define COLI_RUN_DISK_H

#include "../base/file.h"

/* Read pieces of a file at random places, past the system's cache, as a store reads experts: by four
 * threads, for half a second or until 128 pieces were read.  10^9 bytes per second, the slowest and the
 * fastest 16 pieces.
 *   id, n_bytes  of the file
 *   piece_bytes  at most n_bytes
 *   is_direct    whether the cache was passed; else the figure may be that of memory
 * Errors  E_IO, E_NOMEM, E_NOTFOUND */
typedef struct coli__disk_speed {
    double gb_s_min, gb_s_max;
    bool is_direct;
} coli__disk_speed;
coli_status coli__disk_measure(const char *path, coli__file_id id, uint64_t n_bytes,
                               uint64_t piece_bytes, coli__disk_speed *out);

#endif
