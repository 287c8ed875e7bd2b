/* merged.h - containers of merged experts: a directory of safetensors in which every routed expert is one
 * record of integers with scales, as another engine of this family writes them.
 *
 *     qwen36_meta.json    the model's numbers and how the records are to be read
 *     config.json         the text model's part of the checkpoint's; config.hf.json, where it is there, all
 *     *.safetensors       layers.{i}.mlp.experts.{e}.merged_weight, its scales, and the rest as float
 *
 * Format: docs/formats/merged.md.  The converter sees a checkpoint whose experts are codes and scales. */
#ifndef COLI_MODEL_MERGED_H
#define COLI_MODEL_MERGED_H

#include "json.h"
#include "safetensors.h"
#include "spec.h"

/* How the weights of a matrix are stored as integers. */
typedef struct coli__packing {
    uint32_t
        bits; // 8: signed bytes; 4: two's complement, the even column in the low half; 0: floats
    uint32_t group; // columns that share a scale; 0: all of a row
} coli__packing;

/* What a directory says about its records. */
typedef struct coli__merged {
    bool is; // such a container at all
    uint32_t group, down_group;
    bool norms_are_whole; // they hold 1 + w where a checkpoint has w
} coli__merged;

/* Where in the record and in its scales one matrix of an expert is. */
typedef struct coli__merged_part {
    coli__packing packing;
    uint64_t first, first_scale; // counted in weights of this packing, and in scales
} coli__merged_part;

/* Look whether the directory is such a container, by its qwen36_meta.json, and if so make *config a
 * config.json that describes the model, with every number that the two files share compared. */
coli_status coli__merged_open(const char *dir, coli__buf *config, coli__merged *out);

/* Whether it is one, by that file alone. */
coli_status coli__merged_look(const char *dir, bool *is);

/* The three matrices of a record; E_FORMAT names what its bytes and scales could have been. */
coli_status coli__merged_parts(const coli__merged *m, const coli__expert_spec *s,
                               const coli__st_tensor *record, const coli__st_tensor *scales,
                               coli__merged_part out[3]);
/* Whether the halves of bytes look like the other coding that is about, value + 8: E_FORMAT. */
coli_status coli__merged_check_coding(const coli__st_tensor *record, uint64_t n_bytes);

/* "int4 in groups of 64" */
const char *coli__packing_name(coli__packing p);

/* Codes and scale of columns [begin, begin + n) of a row, which share a scale.
 *   first    of the row, in weights; even where there are 4 bits
 *   scale    the number of its scale
 *   codes    (n)
 * E_FORMAT for a scale that none can be: not finite, negative, above 2^10, 0 with codes that are not. */
coli_status coli__packing_codes(coli__packing p, const coli__st_tensor *record,
                                const coli__st_tensor *scales, uint64_t first, uint64_t scale,
                                uint32_t n, int8_t *codes, float *out_scale);

#endif
