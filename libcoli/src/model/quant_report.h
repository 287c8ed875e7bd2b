/* quant_report.h - what packing did to a model: by kinds of tensors, and the worst of all.
 *
 * The kind of a tensor is its name without the layer's number: "self_attn.q_proj", "mlp.experts.down".
 * Errors are the root of the mean squared difference, as a part of that of the weights. */
#ifndef COLI_MODEL_QUANT_REPORT_H
#define COLI_MODEL_QUANT_REPORT_H

#include "../math/matrix.h"

enum { COLI__REPORT_KINDS = 128, COLI__REPORT_WORST = 10, COLI__REPORT_NAME = 128 };

typedef struct coli__report_row {
    char name[COLI__REPORT_NAME]; // a kind, or of a single tensor all of its name
    coli__wfmt fmt;
    uint32_t n_exact, n_rounded; // matrices; a vector is one of one row
    coli__pack_error error;
} coli__report_row;

typedef struct coli__quant_report {
    coli__report_row kinds[COLI__REPORT_KINDS];     // the last takes what there is no room for
    coli__report_row sources[COLI__REPORT_KINDS];   // the same by what a GGUF file holds it as
    coli__report_row worst[COLI__REPORT_WORST + 1]; // the worst first; one more for the next
    uint32_t n_kind, n_source, n_worst;
} coli__quant_report;

/* "layers.3.mlp.gate.weight" to "mlp.gate". */
void coli__tensor_kind(const char *name, char out[COLI__REPORT_NAME]);

/* One whole tensor, or one matrix of an expert.  source: its kind in a GGUF file, or NULL. */
void coli__report_add(coli__quant_report *r, const char *name, const char *source, coli__wfmt fmt,
                      const coli__pack_error *error);

/* All of it in lines: the sources, the kinds by name, the worst.  What was stored exactly is told of
 * sources only. */
void coli__report_tell(coli__quant_report *r, void (*note)(void *user, const char *line),
                       void *user);

#endif
