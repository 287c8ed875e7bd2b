/* tar.h - the little of POSIX tar archives that a pack needs: regular files, one after the other.
 *
 * Pure: bytes in, bytes out.  A file of 8 GiB or more has its size in a pax header before its own.  All
 * else that an archive may hold (links, directories, devices, long names, sparse files) is refused by
 * name: who reads a pack from a stranger wants no surprises. */
#ifndef COLI_MODEL_TAR_H
#define COLI_MODEL_TAR_H

#include "../base/alloc.h"

enum {
    COLI__TAR_BLOCK = 512,
    COLI__TAR_NAME = 100,                      // bytes of the longest name
    COLI__TAR_HEAD_BYTES = 3 * COLI__TAR_BLOCK // of the longest head
};

/* Bytes of zeros behind a file's data. */
static inline uint64_t coli__tar_padding(uint64_t n_bytes)
{
    return (COLI__TAR_BLOCK - n_bytes % COLI__TAR_BLOCK) % COLI__TAR_BLOCK;
}

/* What stands before the data of a file: its length, in out.  The same arguments give the same bytes:
 * no time, no owner.  name: 1 to COLI__TAR_NAME bytes. */
size_t coli__tar_head(const char *name, uint64_t n_bytes, uint8_t out[COLI__TAR_HEAD_BYTES]);

typedef struct coli__tar_entry {
    char name[COLI__TAR_NAME + 1];
    uint64_t offset, n_bytes; // of the data, which is within the archive
} coli__tar_entry;

/* The file whose head begins at *at, which moves behind its data; *is_end when the archive ends there:
 * two blocks of zeros, and nothing but zeros behind them.
 *   what          names the archive in messages
 *   data, n_bytes the archive; heads and the zeros behind files are looked at, not their data
 * Errors  E_FORMAT, E_UNSUPPORTED; they tell where. */
coli_status coli__tar_next(const char *what, const uint8_t *data, uint64_t n_bytes, uint64_t *at,
                           coli__tar_entry *out, bool *is_end);

#endif
