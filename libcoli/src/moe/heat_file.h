/* heat_file.h - heat on the disk: which experts of a model were used by all runs so far.
 * Format: docs/formats/heat.md.
 *
 * The file belongs to one model, by identity and shape.  Whatever else stands under its name, a file
 * of another model, a torn one, something quite different, is refused with what was expected and what
 * was found, and left alone: by the reader and by the writer. */
#ifndef COLI_MOE_HEAT_FILE_H
#define COLI_MOE_HEAT_FILE_H

#include "../base/error.h"

enum {
    COLI__HEAT_MAX_LAYER = 512, // as many as a container can have
    COLI__HEAT_MAX_EXPERT = 4096
};

typedef struct coli__heat_file {
    char identity[33];          // the model's: 32 hex digits (coli__container_identity)
    uint32_t n_layer, n_expert; // layers with routed experts, in order; experts in each
    uint64_t n_token;           // tokens decoded in all runs
    uint32_t *count;            // (n_layer, n_expert) owned
} coli__heat_file;

/* All zero.  E_INVALID for an identity or a shape that no model has. */
coli_status coli__heat_file_init(coli__heat_file *f, const char *identity, uint32_t n_layer,
                                 uint32_t n_expert);
void coli__heat_file_finish(coli__heat_file *f);

/* Pure; `what` names the bytes in messages.
 * Errors   E_FORMAT, E_UNSUPPORTED (a later version), E_NOMEM; *out is zeroed. */
coli_status coli__heat_file_parse(const char *what, const uint8_t *data, size_t n_bytes,
                                  coli__heat_file *out);
/* E_NOTFOUND when there is none. */
coli_status coli__heat_file_read(const char *path, coli__heat_file *out);

/* Whether a file that was read is of this model; E_FORMAT says which it is of. */
coli_status coli__heat_file_expect(const char *path, const coli__heat_file *found,
                                   const char *identity, uint32_t n_layer, uint32_t n_expert);

/* Write atomically (coli__file_replace).  What is there already must be heat of the same model. */
coli_status coli__heat_file_write(const char *path, const coli__heat_file *f);

/* Add the counters and tokens of a file of the same model, saturating. */
void coli__heat_file_add(coli__heat_file *sum, const coli__heat_file *f);

/* The counters of the older format, which names no model: they are taken to be of the model whose
 * identity and shape *into has; a file of another shape is refused.  Exact: a counter means the same
 * in both. */
coli_status coli__heat_file_import(const char *path, coli__heat_file *into);

#endif
