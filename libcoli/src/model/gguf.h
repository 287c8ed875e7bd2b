/* gguf.h - read GGUF files: one file, or the parts of a split one.
 *
 * A file is hostile until checked: every count, length, offset and alignment is compared with the
 * bytes that are there before it is used, keys and tensors occur once, and nothing is allocated in
 * proportion to a number that the file merely claims.  Afterwards every view lies inside its
 * mapping.  Format and kinds: docs/formats/gguf.md. */
#ifndef COLI_MODEL_GGUF_H
#define COLI_MODEL_GGUF_H

#include "../base/file.h"

enum { COLI_GGUF_MAX_RANK = 4, COLI_GGUF_MAX_TENSOR = 1 << 18, COLI_GGUF_MAX_NAME = 127 };

/* How the numbers of a tensor are stored.  A row of a tensor is a whole number of blocks. */
typedef struct coli__gguf_kind {
    const char *name;         // "Q4_0"
    uint32_t id;              // in the file
    uint32_t n_elem, n_bytes; // of one block
} coli__gguf_kind;

typedef struct coli__gguf_tensor {
    const char *name; // owned by the reader, like everything here
    const coli__gguf_kind *kind;
    uint32_t rank;
    uint64_t dims[COLI_GGUF_MAX_RANK]; // dims[0] is the length of a row, the last one moves slowest
    uint64_t n_elem, n_bytes;
    uint64_t offset;     // in the data of its file
    const uint8_t *data; // not necessarily aligned
    const char *file;
} coli__gguf_tensor;

/* Bytes in the file; not ended by a NUL. */
typedef struct coli__gguf_text {
    const char *data; // NULL: there is none
    uint64_t n_bytes;
} coli__gguf_text;

typedef enum coli__gguf_type {
    COLI_GGUF_U8,
    COLI_GGUF_I8,
    COLI_GGUF_U16,
    COLI_GGUF_I16,
    COLI_GGUF_U32,
    COLI_GGUF_I32,
    COLI_GGUF_F32,
    COLI_GGUF_BOOL,
    COLI_GGUF_STRING,
    COLI_GGUF_ARRAY,
    COLI_GGUF_U64,
    COLI_GGUF_I64,
    COLI_GGUF_F64,
    COLI_GGUF_N_TYPE
} coli__gguf_type;

/* The value of a key.  For an array: of its elements. */
typedef struct coli__gguf_value {
    coli__gguf_text key;
    bool is_array;
    coli__gguf_type type;
    uint64_t n;          // elements; 1 for a single value
    const uint8_t *data; // the first of them; a string is its length (u64) and its bytes
} coli__gguf_value;

typedef struct coli__gguf coli__gguf;

/* path is a .gguf file; of a split one any part (the others are looked for beside it).  Mapped, not
 * read.  E_FORMAT names file and key or tensor, also of more than COLI_GGUF_MAX_TENSOR; E_UNSUPPORTED
 * for a version or a kind nobody here knows. */
coli_status coli__gguf_open(const char *path, coli__gguf **out);
/* One file that is in memory, borrowed until close; `name` stands for its path in messages. */
coli_status coli__gguf_open_bytes(const char *name, const void *bytes, uint64_t n_bytes,
                                  coli__gguf **out);
void coli__gguf_close(coli__gguf *g);
uint64_t coli__gguf_memory_bytes(const coli__gguf *g); // that the lists take, besides the mappings
const char *coli__gguf_path(const coli__gguf *g);      // of the first part

uint32_t coli__gguf_count(const coli__gguf *g);
const coli__gguf_tensor *coli__gguf_at(const coli__gguf *g, uint32_t i);         // sorted by name
const coli__gguf_tensor *coli__gguf_find(const coli__gguf *g, const char *name); // NULL when absent

/* -- metadata ---------------------------------------------------------------------------------- */

uint32_t coli__gguf_n_value(const coli__gguf *g);
const coli__gguf_value *coli__gguf_value_at(const coli__gguf *g, uint32_t i); // sorted by key
const coli__gguf_value *coli__gguf_value_find(const coli__gguf *g, const char *key); // or NULL

/* Element i of integers or bools; false when it does not fit, or is another type. */
bool coli__gguf_int(const coli__gguf_value *v, uint64_t i, int64_t *out);
bool coli__gguf_number(const coli__gguf_value *v, uint64_t i, double *out); // also floats
/* The string at *data (elements of v in their order); *data moves behind it. */
coli__gguf_text coli__gguf_string(const uint8_t **data);

/* A whole number within [min, max].  An absent key is E_FORMAT unless the _or form gives a
 * default; the wrong type or range always is. */
coli_status coli__gguf_u32(const coli__gguf *g, const char *key, uint32_t min, uint32_t max,
                           uint32_t *out);
coli_status coli__gguf_u32_or(const coli__gguf *g, const char *key, uint32_t min, uint32_t max,
                              uint32_t fallback, uint32_t *out);
coli_status coli__gguf_number_or(const coli__gguf *g, const char *key, double fallback,
                                 double *out);
/* A string; .data NULL when the key is absent. */
coli_status coli__gguf_text_or_null(const coli__gguf *g, const char *key, coli__gguf_text *out);

/* -- numbers (gguf_kinds.c) -------------------------------------------------------------------- */

const coli__gguf_kind *coli__gguf_kind_of(uint32_t id); // NULL when unknown
/* The name of a kind that one program alone writes and nobody here reads, for messages; or NULL. */
const char *coli__gguf_foreign_kind(uint32_t id);
bool coli__gguf_is_readable(const coli__gguf_kind *kind);
bool coli__gguf_has_grid(const coli__gguf_kind *kind); // see coli__gguf_scales

/* Elements [first, first + n) as f32, exactly as the kind defines them; both are multiples of the
 * kind's block.  E_UNSUPPORTED names the kind that cannot be read, E_INVALID is out of range. */
coli_status coli__gguf_to_f32(const coli__gguf_tensor *t, uint64_t first, uint64_t n, float *out);

/* Kinds whose 32 consecutive numbers are small integers times one scale ("has_grid"): the scales of
 * elements [first, first + n), one per 32, of either sign.  first and n as above. */
void coli__gguf_scales(const coli__gguf_tensor *t, uint64_t first, uint64_t n, float *out);

#endif
