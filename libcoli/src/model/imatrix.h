/* imatrix.h - how much each column of each matrix counts: the mean square of what it is multiplied
 * with, over a text.  Format: docs/formats/imatrix.md.
 *
 * Rounding changes a product by sum_c e_c x_c.  Where the x_c are not correlated its mean square is
 * sum_c e_c^2 mean(x_c^2): so that is how the converter weighs the error of column c.
 *
 * A file belongs to one model, but to any container of it: what ties them is all vectors (norms,
 * decay), which every container holds as f32, exactly as the checkpoint has them. */
#ifndef COLI_MODEL_IMATRIX_H
#define COLI_MODEL_IMATRIX_H

#include "../base/file.h"
#include "../math/acts.h"
#include "container.h"

/* -- which model ------------------------------------------------------------------------------- */

/* Vector i of the model's tensors: out (n_in). */
typedef coli_status (*coli__vector_fn)(void *ctx, uint32_t i, float *out);

/* 32 hex digits: names and dims of all tensors and experts, and what the vectors hold. */
coli_status coli__imatrix_tie(const coli__model_spec *spec, coli__vector_fn vector, void *ctx,
                              char out[33]);

/* -- adding up --------------------------------------------------------------------------------- */

/* Sums for every matrix of a container that products are made with.  One thread at a time. */
typedef struct coli__importance coli__importance;

/* Memory: 8 bytes for each column of each dense matrix, and for each expert d_model + d_ff times that. */
coli_status coli__importance_create(const coli__container *c, const coli__model_spec *spec,
                                    coli__importance **out);
void coli__importance_destroy(coli__importance *im); // NULL is fine

/* Rows [first, first + n) of x, in f32 or quantised, are what `w` is multiplied with.  A matrix that is
 * not among them is none of ours. */
void coli__importance_rows(coli__importance *im, const coli__mat *w, const coli__acts *x,
                           uint32_t first, uint32_t n);
/* Row t of x is what an expert's gate and up read (inner false), or its down. */
void coli__importance_expert(coli__importance *im, const coli__ct_experts *layer, uint32_t expert,
                             bool inner, const coli__acts *x, uint32_t t);

/* Write the file, whole; the writer stays open. */
coli_status coli__importance_write(const coli__importance *im, uint64_t n_token,
                                   coli__writer *writer);

/* -- the file ---------------------------------------------------------------------------------- */

typedef struct coli__imatrix coli__imatrix;

/* Everything is checked but whether it fits a model.  The file stays mapped, and pages that were read
 * are given up: memory is that of a list of its entries, and of two of n_in_max columns, the most that an
 * expert of the model has; whatever the file says.
 * Errors   E_NOTFOUND, E_FORMAT, E_UNSUPPORTED (a later version), E_IO, E_NOMEM. */
coli_status coli__imatrix_open(const char *path, uint32_t n_in_max, coli__imatrix **out);
void coli__imatrix_close(coli__imatrix *m); // NULL is fine
/* E_IO when the file became shorter or could not be read since it was opened: what was read of it since
 * then is worthless. */
coli_status coli__imatrix_check_whole(const coli__imatrix *m);
/* The same from bytes, which are borrowed; `what` names them.  Pure. */
coli_status coli__imatrix_parse(const char *what, const uint8_t *data, uint64_t n_bytes,
                                uint32_t n_in_max, coli__imatrix **out);

const char *coli__imatrix_model(const coli__imatrix *m); // coli__imatrix_tie
uint64_t coli__imatrix_n_token(const coli__imatrix *m);

/* How much the columns of a tensor count, out (n_in): 1 in the mean.  False: it was never multiplied. */
bool coli__imatrix_columns(const coli__imatrix *m, const char *name, uint32_t n_in, float *out);
/* The same of expert e: name is the layer's prefix and "in" or "inner".  An expert that few rows used is
 * taken to be like the others of its layer, the more so the fewer.  n_in is n_in_max at most.  One thread at a
 * time. */
bool coli__imatrix_expert(coli__imatrix *m, const char *name, uint32_t e, uint32_t n_expert,
                          uint32_t n_in, float *out);

#endif
