/* safetensors.h - read checkpoints in the safetensors format: one file, or shards in a directory.
 *
 * A file is hostile until checked: header size, JSON depth, duplicate names (in one file and across
 * shards), dtypes, shapes, spans, overlaps and gaps are all verified at open; afterwards every view
 * lies inside its mapping.  Format: docs/formats/safetensors.md. */
#ifndef COLI_MODEL_SAFETENSORS_H
#define COLI_MODEL_SAFETENSORS_H

#include "../base/file.h"

typedef enum coli__dtype {
    COLI_DT_F32,
    COLI_DT_F16,
    COLI_DT_BF16,
    COLI_DT_U8,
    COLI_DT_I8,
    COLI_DT_I32,
    COLI_DT_I64,
    COLI_DT_F8_E4M3,
    COLI_DT_OTHER /* recognised as a tensor, refused when used */
} coli__dtype;

/* The list of tensors is held in memory, so it is bounded: 262,144 tensors (the largest published
 * models have half of that) take 105 MB if all names are as long as they may be. */
enum { COLI_ST_MAX_RANK = 8, COLI_ST_MAX_TENSOR = 1 << 18, COLI_ST_MAX_NAME = 255 };

typedef struct coli__st_tensor {
    const char *name; // owned by the reader
    coli__dtype dtype;
    const char *dtype_name;
    uint32_t rank;
    uint64_t shape[COLI_ST_MAX_RANK];
    uint64_t n_elem, n_bytes;
    const uint8_t *data; // not necessarily aligned
    const char *file;    // path of its shard
} coli__st_tensor;

typedef struct coli__st coli__st;

/* path is a .safetensors file or a directory that holds some (an index file, where present, is
 * checked against them).  Mapped, not read.  E_FORMAT for more than COLI_ST_MAX_TENSOR. */
coli_status coli__st_open(const char *path, coli__st **out);
/* One file that is in memory, borrowed until close; `name` stands for its path in messages. */
coli_status coli__st_open_bytes(const char *name, const void *bytes, uint64_t n_bytes,
                                coli__st **out);
void coli__st_close(coli__st *st);
uint64_t coli__st_memory_bytes(const coli__st *st); // that the list takes, besides the mappings
uint32_t coli__st_count(const coli__st *st);
const coli__st_tensor *coli__st_at(const coli__st *st, uint32_t i);         // sorted by name
const coli__st_tensor *coli__st_find(const coli__st *st, const char *name); // NULL when absent

/* Elements [first, first+n) as f32 (F32 F16 BF16 exact; F8_E4M3 without its block scale; integers
 * converted).  E_UNSUPPORTED for COLI_DT_OTHER, E_INVALID out of range. */
coli_status coli__st_to_f32(const coli__st_tensor *t, uint64_t first, uint64_t n, float *out);

/* Write one file: names, dtypes and shapes first, then data in the same order. */
typedef struct coli__st_out {
    const char *name;
    coli__dtype dtype;
    uint32_t rank;
    uint64_t shape[COLI_ST_MAX_RANK];
    const void *data;
} coli__st_out;
coli_status coli__st_write(const char *path, const coli__st_out *tensors, uint32_t n);

#endif
