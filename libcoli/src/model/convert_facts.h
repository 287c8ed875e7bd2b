/* convert_facts.h - what a conversion is: everything that decides a byte of its result, as text. */
#ifndef COLI_MODEL_CONVERT_FACTS_H
#define COLI_MODEL_CONVERT_FACTS_H

#include "checkpoint.h"
#include "container_format.h"
#include "convert.h"

/* Append the facts, "WORD VALUE" lines.  Two conversions with the same facts give the same bytes.
 *   n_in_max  the widest row of `source`
 *   formats   checksum of those that all tensors and experts get */
coli_status coli__convert_facts(const coli__convert_args *args, const coli__checkpoint *source,
                                uint32_t n_in_max, const coli__digest *formats, coli__buf *out);

#endif
