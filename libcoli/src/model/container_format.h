/* container_format.h - what the reader and the writer of model.coli share: numbers and table.
 *
 *     0    magic 89 43 4f 4c 0d 0a 1a 0a     a transfer as text changes one of these bytes
 *     8    u32 version, u32 zero
 *     16   u64 bytes of the table
 *     24   u64 where the data begins (a multiple of 4096): all before it is the head
 *     32   u64 bytes of the file
 *     40   the table, JSON;  then zeros
 *     head - 16   XXH3-128 of all that stands before it
 *     head        data, in the table's order: tensors at multiples of 64, each layer's experts at a
 *                 multiple of 4096, zeros between
 *
 * docs/formats/container.md says the same for people who write another reader. */
#ifndef COLI_MODEL_CONTAINER_FORMAT_H
#define COLI_MODEL_CONTAINER_FORMAT_H

#include "../base/file.h"
#include "container.h"

enum {
    CT_VERSION = 1,
    CT_FIXED_BYTES = 40,
    CT_CHECKSUM_BYTES = 16,
    CT_DATA_ALIGN = 4096,
    CT_TENSOR_ALIGN = 64,
    CT_EXPERTS_ALIGN = 4096, // so that direct reads and huge pages can serve a layer's experts
    CT_TABLE_MAX_BYTES = 16 << 20, // 256 experts in each of 512 layers take 7 MB
    CT_MAX_TENSOR = 1 << 16,
    CT_MAX_LAYER = 512,
    CT_MAX_EXPERT = 4096,
    CT_MAX_DIM = 1 << 24,
    CT_MAX_SCALE_EXP = 60, // more than f16 scales within [2^-40, 2^10] can need
};

#define CT_MAGIC                                                                                   \
    "\x89"                                                                                         \
    "COL\r\n\x1a\n"

/* The small files beside model.coli, in the table's order. */
enum { CT_CONFIG, CT_GENERATION, CT_TOKENIZER, CT_TOKENIZER_CONFIG, CT_CHAT, CT_N_FILE };
extern const char *const coli__ct_file_names[CT_N_FILE];

/* A checksum as text: the 32 hex digits of XXH3-128 in its canonical byte order. */
typedef struct coli__digest {
    char hex[33];
} coli__digest;

coli__digest coli__digest_of(const void *bytes, uint64_t n_bytes);
coli__digest coli__digest_text(const uint8_t bytes[16]);

/* -- the table --------------------------------------------------------------------------------- */

typedef struct coli__ct_entry {
    coli__ct_tensor tensor;
    uint64_t offset; // from the start of the file
    coli__digest digest;
} coli__ct_entry;

typedef struct coli__ct_layer {
    coli__ct_experts experts;
    uint64_t offset;
    int32_t *scale_exp;    // (n_expert, 3); owned
    coli__digest *digests; // (n_expert) of each block; owned
} coli__ct_layer;

typedef struct coli__ct_table {
    char engine[32];
    coli__digest identity;
    coli__digest files[CT_N_FILE]; // hex is "" for a file that the container has not
    coli__ct_entry *entries;       // owned
    uint32_t n_entry;
    const coli__ct_entry **by_name; // (n_entry) sorted; owned; NULL while writing
    coli__ct_layer *layers;         // owned
    uint32_t n_layer;
    uint64_t data_offset, file_bytes; // of the header
} coli__ct_table;

void coli__ct_table_finish(coli__ct_table *table);

static inline uint64_t coli__ct_align(uint64_t offset, uint64_t align)
{
    return (offset + align - 1) / align * align;
}

/* Names in the table: letters, digits, '.', '_', '-'; 1 to 95 of them. */
bool coli__ct_name_ok(const char *name);

/* Fill n_bytes, or the block's offsets and size, from formats and dims.  False for what no matrix
 * can be (dims out of range included). */
bool coli__ct_size_tensor(coli__ct_tensor *tensor);
bool coli__ct_size_experts(coli__ct_experts *experts);

/* Which weights these are: XXH3-128 over the names, formats, checksums of all weights and
 * config.json. */
coli_status coli__ct_identity(const coli__ct_table *table, coli__digest *out);

/* A whole model.coli in memory to its table; every pointer in the result lies inside it.  Pure;
 * `what` names it in messages.  data must be 64-byte aligned and outlive the table. */
coli_status coli__ct_parse(const char *what, const uint8_t *data, uint64_t n_bytes,
                           coli__ct_table *out);

/* Fill by_name, which finding needs.  E_NOMEM. */
coli_status coli__ct_table_sort(coli__ct_table *table);
const coli__ct_entry *coli__ct_table_find(const coli__ct_table *table, const char *name); // or NULL

/* The table as JSON text. */
coli_status coli__ct_render(const coli__ct_table *table, coli__buf *out);

/* -- writing ------------------------------------------------------------------------------------
 *
 * Everything is declared at the start, which fixes how long the table can get and so where the data
 * begins; then the data comes, in the declared order. */

typedef struct coli__ct_writer coli__ct_writer;

/* What a writer holds for them until it is closed, besides some buffers of fixed size. */
uint64_t coli__ct_writer_memory_bytes(const coli__model_spec *spec);
/* Create `path`, a container of spec's tensors and experts. */
coli_status coli__ct_writer_open(const char *path, const char *engine, const coli__model_spec *spec,
                                 coli__ct_writer **out);
/* Start the next tensor; its bytes follow in pieces. */
coli_status coli__ct_writer_tensor(coli__ct_writer *w, coli__wfmt fmt, int32_t scale_exp);
coli_status coli__ct_writer_append(coli__ct_writer *w, const void *bytes, uint64_t n_bytes);
/* Start the next layer of experts; its blocks follow.  Returns their layout. */
coli_status coli__ct_writer_experts(coli__ct_writer *w, coli__wfmt gate, coli__wfmt up,
                                    coli__wfmt down, const coli__ct_experts **layout);
coli_status coli__ct_writer_expert(coli__ct_writer *w, const int32_t scale_exp[3],
                                   const void *block);
/* Write the head and sync.  files as in coli__ct_table.  Frees w also on failure. */
coli_status coli__ct_writer_close(coli__ct_writer *w, const coli__digest files[CT_N_FILE]);
void coli__ct_writer_abandon(coli__ct_writer *w);          // NULL is fine
uint64_t coli__ct_writer_offset(const coli__ct_writer *w); // bytes of the file until now

/* Make sure that what was written is on the disk, and append to `told` a line for each tensor and expert
 * that was finished since this was called last: what a later writer needs to go on behind them. */
coli_status coli__ct_writer_tell(coli__ct_writer *w, coli__buf *told);

/* Go on with a file of the same spec that an earlier writer left, behind the tensors and layers that it
 * told of (text, NUL-ended; lines that begin with "sum " are passed over).  Each is read and compared
 * with its checksum; `checked` is called behind each with how many of them there are, and an error of
 * its own ends it.  E_FORMAT: the file does not hold what it should, and nothing was changed. */
typedef struct coli__ct_done {
    uint32_t n_entry, n_layer; // whole ones
} coli__ct_done;
typedef coli_status (*coli__ct_checked_fn)(void *user, coli__ct_done done);
coli_status coli__ct_writer_resume(const char *path, const char *engine,
                                   const coli__model_spec *spec, const char *told,
                                   coli__ct_checked_fn checked, void *user, coli__ct_done *done,
                                   coli__ct_writer **out);

#endif
