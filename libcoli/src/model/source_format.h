/* source_format.h - which format converting gives a matrix: by what was asked for, and where nothing was, by
 * what the source holds.  The converter asks, and whoever plans what it would make. */
#ifndef COLI_MODEL_SOURCE_FORMAT_H
#define COLI_MODEL_SOURCE_FORMAT_H

#include "checkpoint.h"
#include "container.h"

/* f->source is not looked at: the weights are given.  Where scales may be f16 that is said; whether the
 * numbers allow it, the converter sees. */
coli__wfmt coli__source_format(const coli__formats *f, const coli__model_spec *spec,
                               const coli__tensor_spec *s, const coli__weight *w);
/* Of all of a layer's experts, whose weights (n_expert, 3) are given; part: 0 gate, 1 up, 2 down. */
coli__wfmt coli__source_expert_format(const coli__formats *f, const coli__expert_spec *s,
                                      const coli__weight *weights, uint32_t part);

#endif
