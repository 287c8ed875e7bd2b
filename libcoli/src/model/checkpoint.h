/* checkpoint.h - a Hugging Face checkpoint, or a GGUF file, seen as the tensors that its family needs.
 *
 * Opening reads config.json (or makes one of a GGUF's metadata), asks its family which tensors there
 * must be, and finds each of them, whatever prefix, expert layout, fp8 scales or order of heads the
 * exporter chose.  Afterwards a weight is a source of f32 rows.  A container of merged experts is opened
 * like a checkpoint; its experts are sources of codes and scales, too. */
#ifndef COLI_MODEL_CHECKPOINT_H
#define COLI_MODEL_CHECKPOINT_H

#include "../math/matrix.h"
#include "gguf_model.h"
#include "merged.h"
#include "safetensors.h"
#include "spec.h"

/* A matrix (n_out, n_in) in the checkpoint: a tensor, or a slice of one (a fused expert). */
typedef struct coli__weight {
    const coli__st_tensor *tensor; // NULL in a GGUF file
    const coli__gguf_view *view;   // NULL in a checkpoint
    const coli__st_tensor *scale;  // fp8: one multiplier per 128x128 tile; of a packing; else NULL
    uint64_t first;                // element of tensor where the matrix begins
    uint32_t n_out, n_in;
    uint64_t first_scale; // of the matrix's
    uint32_t tile_row;    // fp8: of the matrix's first row among those that the tiles are laid over
    coli__packing packing;
    bool is_whole_norm; // 1 + w is stored where the model wants w
} coli__weight;

typedef struct coli__checkpoint {
    const char *dir; // borrowed; of a GGUF file its path
    coli__buf config_text;
    const char *engine; // the family's name
    coli__model_spec spec;
    coli__st *st;
    coli__merged merged;    // .is: st holds merged experts
    coli__weight *tensors;  // (spec.n_tensor)
    coli__weight **experts; // (spec.n_expert_layer) of (n_expert, 3): gate, up, down
    bool *used;             // (count of st or gguf) found by a name above
    coli__gguf *gguf;       // NULL: a checkpoint
    const coli__gguf_family *family;
    coli__gguf_view *views; // (n_view) that the weights point to
    uint32_t n_view;
} coli__checkpoint;

/* note gets one line for what was skipped and one for what is unknown; may be NULL. */
coli_status coli__checkpoint_open(const char *dir, coli__describe_fn describe,
                                  void (*note)(void *user, const char *line), void *user,
                                  coli__checkpoint *out);
/* The same for a GGUF file. */
coli_status coli__checkpoint_open_gguf(const char *path, coli__gguf_family_fn family,
                                       coli__describe_fn describe,
                                       void (*note)(void *user, const char *line), void *user,
                                       coli__checkpoint *out);
/* Either: a directory is a checkpoint, a file is a GGUF.  E_UNSUPPORTED for a file without a family. */
coli_status coli__checkpoint_open_source(const char *src, coli__gguf_family_fn family,
                                         coli__describe_fn describe,
                                         void (*note)(void *user, const char *line), void *user,
                                         coli__checkpoint *out);
/* The same for one that is open.  g is handed over, also when this fails. */
coli_status coli__checkpoint_of_gguf(coli__gguf *g, coli__gguf_family_fn family,
                                     coli__describe_fn describe,
                                     void (*note)(void *user, const char *line), void *user,
                                     coli__checkpoint *out);
void coli__checkpoint_finish(coli__checkpoint *c);
/* config.json of dir, whose path is given, or what a container of merged experts has in its place: its
 * text, added to *text, and as JSON, NULL when this fails. */
coli_status coli__checkpoint_config(const char *dir, const char *path, coli__buf *text,
                                    coli__merged *merged, json_t **config);
/* Whether weights that are stored as a config.json says can be read; where names the file.  Opening asks it,
 * and coli_plan, which has nothing else yet. */
coli_status coli__checkpoint_check_stored(const json_t *config, const char *where);
/* What the lists of tensors and experts take, besides the mappings. */
uint64_t coli__checkpoint_memory_bytes(const coli__checkpoint *c);

/* Rows [row, row + n_row) as f32: out (n_row, n_in).  E_NUMERIC names tensor and element of a
 * number that is not finite. */
coli_status coli__weight_rows(const coli__weight *w, uint32_t row, uint32_t n_row, float *out);

/* What was read of the matrix need not stay in memory. */
void coli__weight_drop(const coli__weight *w);

/* Bytes of the checkpoint that the weight stands for. */
uint64_t coli__weight_bytes(const coli__weight *w);

/* For messages: the file and the name of its tensor. */
const char *coli__weight_file(const coli__weight *w);
const char *coli__weight_name(const coli__weight *w);
const char *coli__weight_kind(const coli__weight *w); // "BF16", "Q8_0"
bool coli__weight_is_bf16(const coli__weight *w);

/* Whether the weights are codes with scales of their own, and the format that holds them as they are:
 * f32 scales, per row or in the largest groups that share no scale of two.  False also where there is no
 * such format. */
bool coli__weight_packed_format(const coli__weight *w, coli__wfmt *out);
/* These codes (n_row, n_in) and the scales (n_row, groups of fmt), 0 for those below 2^-40.  fmt as
 * above. */
coli_status coli__weight_codes(const coli__weight *w, coli__wfmt fmt, uint32_t row, uint32_t n_row,
                               int8_t *codes, float *scales);

/* Whether every 32 weights of a row are whole multiples of one scale, as in GGUF's Q8_0; and these
 * scales: out (n_row, n_in / 32). */
bool coli__weight_has_grid(const coli__weight *w);
void coli__weight_scales(const coli__weight *w, uint32_t row, uint32_t n_row, float *out);

#endif
