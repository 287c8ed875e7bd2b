/* container.h - the coli container: a directory whose model.coli holds every weight in the layout
 * that the kernels read, mapped and not copied.  Format: docs/formats/container.md.
 *
 *     config.json             the checkpoint's own, unchanged
 *     generation_config.json  stop tokens and sampling defaults (optional)
 *     tokenizer.json          and tokenizer_config.json (optional)
 *     chat.json               which chat template: {"template": "3.6"}
 *     model.coli              header, table of tensors and experts with checksums, weights
 *
 * Opening checks the header's checksum, the table (names, formats, dims, spans, overlaps) and that
 * config.json, chat.json and the tokenizer's files are the ones the weights were made with; the
 * weights' own checksums are left to coli__container_verify, which reads everything.
 * generation_config.json holds a user's defaults and may be edited. */
#ifndef COLI_MODEL_CONTAINER_H
#define COLI_MODEL_CONTAINER_H

#include "../base/file.h"
#include "../math/matrix.h"
#include "spec.h"

typedef struct coli__container coli__container;

typedef struct coli__ct_tensor {
    char name[96];
    coli__mat mat; // a vector has n_out 1 and is f32
    uint64_t n_bytes;
} coli__ct_tensor;

/* The experts of one layer.  Expert e is one block of block_bytes at data + e * block_bytes:
 * gate, up, down at the given offsets (multiples of 64). */
typedef struct coli__ct_experts {
    uint32_t layer, n_expert, d_model, d_ff;
    const uint8_t *data;
    uint64_t block_bytes, up_offset, down_offset; // gate is at 0
    coli__mat gate, up, down;                     // of expert 0
    const int32_t *scale_exp; // (n_expert, 3): gate, up, down of each; formats and sizes are equal
} coli__ct_experts;

coli_status coli__container_open(const char *dir, coli__container **out);
void coli__container_close(coli__container *c);

/* Of a model that is not converted yet. */
typedef struct coli__formats {
    struct coli__recipe *recipe; // decides first; NULL: there is none
    coli__wfmt experts, trunk;
    /* Nobody asked for these formats.  Then what a GGUF holds as whole multiples of a scale per 32
     * weights is stored in groups of 32, so that it stays what it is, and 8-bit experts as int8. */
    bool experts_are_default, trunk_is_default;
    const struct coli__checkpoint *source; // what would be converted; NULL: a checkpoint in bf16
} coli__formats;

/* What converting would make of a model with this config (a new reference is taken), in these formats:
 * names, formats and sizes are right, vectors are zeros, and no other weights may be read.  For whoever
 * wants to know how large it will be.  E_FORMAT (a recipe that is not for this model; sizes
 * beyond all bounds), E_NOMEM. */
coli_status coli__container_imagine(const char *dir, const char *engine, json_t *config,
                                    const coli__model_spec *spec, const coli__formats *formats,
                                    coli__container **out);
bool coli__container_is_imagined(const coli__container *c);

/* E_IO when model.coli became shorter or could not be read since it was opened: what was read of it
 * since then is worthless. */
coli_status coli__container_check_whole(const coli__container *c);

const char *coli__container_dir(const coli__container *c);
const char *coli__container_engine(const coli__container *c); // "qwen36"
/* 32 hex digits: which weights these are. */
const char *coli__container_identity(const coli__container *c);
const json_t *coli__container_config(const coli__container *c); // config.json
const char *coli__container_template(const coli__container *c); // chat.json: "3.6" or "3.5"
uint64_t coli__container_weight_bytes(const coli__container *c);

/* Find by name and check the dims; E_FORMAT names what is missing or differs. */
coli_status coli__container_find(const coli__container *c, const char *name, uint32_t n_out,
                                 uint32_t n_in, const coli__ct_tensor **out);
uint32_t coli__container_n_tensor(const coli__container *c); // outside the routed experts
const coli__ct_tensor *coli__container_tensor(const coli__container *c, uint32_t i);
uint32_t coli__container_n_expert_layer(const coli__container *c);
const coli__ct_experts *coli__container_experts(const coli__container *c, uint32_t i);
/* Where the block of that layer's expert e is in model.coli, for who reads instead of mapping. */
uint64_t coli__container_expert_offset(const coli__container *c, uint32_t i, uint32_t e);
const char *coli__container_path(const coli__container *c); // of model.coli
coli__file_id coli__container_file(const coli__container *c);
/* Expert e of that layer as three matrices: those of the mapping, or of a copy of its block. */
void coli__ct_expert(const coli__ct_experts *layer, uint32_t e, coli__mat *gate, coli__mat *up,
                     coli__mat *down);
void coli__ct_expert_at(const coli__ct_experts *layer, uint32_t e, const uint8_t *block,
                        coli__mat *gate, coli__mat *up, coli__mat *down);

/* Whether these are the tensors and experts that spec asks for, no fewer and no more; E_FORMAT names
 * the first that is missing or differs. */
coli_status coli__container_check_spec(const coli__container *c, const coli__model_spec *spec);

/* Progress of long work: done of total bytes.  Return false to stop (E_CANCELLED). */
typedef bool (*coli__progress_fn)(void *user, const char *what, uint64_t done, uint64_t total);

/* Read everything: every checksum, every scale and float weight (coli__mat_check), the zeros
 * between tensors, and whether config.json's family and tensors are the container's.  An edited
 * generation_config.json is no error: it is said in the name of its step. */
coli_status coli__container_verify(const coli__container *c, coli__describe_fn describe,
                                   coli__progress_fn progress, void *user);

/* A container that stands somewhere else than in a directory: its files as bytes, borrowed. */
typedef struct coli__container_bytes {
    const char *name;     // in messages, in the directory's place
    const uint8_t *model; // of model.coli, at a multiple of 64
    const char *config, *chat;
    uint64_t n_model, n_config, n_chat;
} coli__container_bytes;

/* The same of such a one, but for the checksums of the files beside model.coli, which are the caller's to
 * compare. */
coli_status coli__container_verify_bytes(const coli__container_bytes *bytes,
                                         coli__describe_fn describe, coli__progress_fn progress,
                                         void *user);

#endif
