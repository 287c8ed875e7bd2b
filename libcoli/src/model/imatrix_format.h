/* imatrix_format.h - what the reader and the writer of imatrix files share, little-endian on every machine.
 *
 *     0    magic 89 49 4d 58 0d 0a 1a 0a     a transfer as text changes one of these bytes
 *     8    u32 version, u32 entries
 *     16   u64 tokens of the text
 *     24   the model, 32 hex digits (coli__imatrix_tie)
 *     56   u64 zero
 *     64   the entries, by rising name:
 *              u32 bytes of the name, u32 parts, u32 columns, u32 zero
 *              the name, zeros up to a multiple of 8
 *              u64 rows of each part
 *              f32 means, part after part, zeros up to a multiple of 8
 *     end - 16   XXH3-128 of all that stands before it */
#ifndef COLI_MODEL_IMATRIX_FORMAT_H
#define COLI_MODEL_IMATRIX_FORMAT_H

#include <stdint.h>

enum {
    IMATRIX_VERSION = 1,
    IMATRIX_HEAD_BYTES = 64,
    IMATRIX_MODEL_AT = 24,
    IMATRIX_SUM_BYTES = 16,
    IMATRIX_NAME_BYTES = 112, // one of them a zero behind the name in memory
    IMATRIX_MAX_ENTRY = (1 << 16) + 1024,
};

extern const uint8_t coli__imatrix_magic[8];

static inline uint32_t coli__get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t coli__get64(const uint8_t *p)
{
    return coli__get32(p) | (uint64_t)coli__get32(p + 4) << 32;
}
static inline void coli__put32(uint8_t *p, uint32_t x)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(x >> 8 * i);
}
static inline void coli__put64(uint8_t *p, uint64_t x)
{
    coli__put32(p, (uint32_t)x);
    coli__put32(p + 4, (uint32_t)(x >> 32));
}

/* Of an entry whose numbers are within the container's limits. */
static inline uint64_t coli__imatrix_entry_bytes(uint32_t n_name, uint32_t n_part, uint32_t n_in)
{
    const uint64_t means = 4 * (uint64_t)n_part * n_in;
    return 16 + ((uint64_t)n_name + 7) / 8 * 8 + 8 * (uint64_t)n_part + (means + 7) / 8 * 8;
}

#endif
