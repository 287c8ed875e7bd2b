/* matrix.h - weight matrices as the kernels read them, on disk, in RAM and on a device alike.
 *
 * A matrix has n_out rows of n_in weights: y = W x.
 *
 * Quantised (I8, I4).  Rows stand in panels of 16 (the last one padded with zero rows), columns in
 * groups of 64 or 32 (the last one padded with zero columns).  Panels follow each other; inside
 * one:
 *
 *     scales once (per_row) or before each group:  16 numbers, f16 or f32, one per row
 *     each group:  chunks of 64 bytes;  byte 4*r+j of a chunk belongs to row r of the panel
 *         I8   chunk c holds columns 4c..4c+3,                          stored as value + 128
 *         I4   chunk c holds columns 8c..8c+3 in the low nibbles and
 *                                    8c+4..8c+7 in the high nibbles,    stored as value + 8
 *
 * A weight is value * scale, scale = stored scale * 2^scale_exp; scales are 0 or of a magnitude in
 * [2^-40, 2^10], with either sign.
 * An all-padding element stores the code of value 0.
 *
 * Float (F32, BF16).  Row-major; each row padded with zeros to a multiple of 16 elements.
 *
 * Sizes are multiples of 32 bytes; a matrix starts at a multiple of 64. */
#ifndef COLI_MATH_MATRIX_H
#define COLI_MATH_MATRIX_H

#include "../base/error.h"

typedef enum coli__wtype { COLI_W_F32, COLI_W_BF16, COLI_W_I8, COLI_W_I4, COLI_W_N } coli__wtype;

typedef struct coli__wfmt {
    coli__wtype type;
    uint32_t group; // 64 or 32 columns computed together; 0 for float types
    bool per_row;   // one stored scale per row (then group is 64)
    bool scale_f16; // scales stored as f16, else f32
} coli__wfmt;

typedef struct coli__mat {
    const uint8_t *data; // 64-byte aligned, borrowed
    uint32_t n_out, n_in;
    coli__wfmt fmt;
    int32_t scale_exp; // see above; 0 for f32 scales and float types
} coli__mat;

enum { COLI_PANEL = 16 };

/* False for NaN and the infinities. */
static inline bool coli__is_finite(float x)
{
    return x - x == 0;
}

static inline bool coli__wfmt_same(coli__wfmt a, coli__wfmt b)
{
    return a.type == b.type && a.group == b.group && a.per_row == b.per_row &&
           a.scale_f16 == b.scale_f16;
}

static inline bool coli__wfmt_is_quant(coli__wfmt fmt)
{
    return fmt.type == COLI_W_I8 || fmt.type == COLI_W_I4;
}

/* Whether the combination is one of those above. */
bool coli__wfmt_valid(coli__wfmt fmt);
/* "int4-g64-f16", "int8-row-f32", "bf16", "f32", ...; parse is the inverse, E_FORMAT otherwise.
 * The short spellings "int4" and "int8" mean -g64-f16. */
void coli__wfmt_name(coli__wfmt fmt, char out[32]);
coli_status coli__wfmt_parse(const char *name, coli__wfmt *out);

/* Bytes of an (n_out, n_in) matrix; false on overflow, a zero dimension or an invalid format.
 * panel_bytes (may be NULL) is the distance between panels of 16 rows. */
bool coli__mat_bytes(coli__wfmt fmt, uint32_t n_out, uint32_t n_in, uint64_t *bytes,
                     uint64_t *panel_bytes);
uint64_t coli__mat_size(const coli__mat *m); // bytes of its weights; 0 where that is no matrix

/* Where panel i begins; NULL when there is none. */
const uint8_t *coli__mat_panel(const coli__mat *m, uint32_t i);

/* What packing did to weights, as sums over them. */
typedef struct coli__pack_error {
    uint64_t n;
    double weight2; // of their squares
    double error2;  // of the squared differences
    double plain2;  // what these would be with amax/7 or amax/127 as each scale
    /* the latter two where each counts by its column's importance; 0 without one */
    double weighed2, plain_weighed2;
} coli__pack_error;

static inline void coli__pack_error_add(coli__pack_error *sum, const coli__pack_error *e)
{
    sum->n += e->n;
    sum->weight2 += e->weight2;
    sum->error2 += e->error2;
    sum->plain2 += e->plain2;
    sum->weighed2 += e->weighed2;
    sum->plain_weighed2 += e->plain_weighed2;
}

typedef struct coli__mat_pack_args {
    coli__wfmt fmt;
    const float *w;       // (n_row, n_in), row stride ld; finite and small enough for the format
    uint32_t n_row, n_in; // 1 <= n_row <= 16
    size_t ld;
    int32_t scale_exp; // the matrix's power of two (see coli__scale_exp_for)
    /* For weights that may be small integers times a scale per 32 columns already: these scales
     * (n_row, n_in / 32), of either sign; fmt has groups of 32.  NULL: nothing is known. */
    const float *grid;
    const float *importance; // (n_in) how much a column's squared error counts; NULL: all alike
    coli__pack_error *error; // what was done is added to it; NULL: nobody asks
    uint8_t *out;            // panel_bytes, every byte is written
} coli__mat_pack_args;

/* Quantise or copy up to 16 rows into one panel.  Half to even to -8..7 (int4) or -127..127 (int8;
 * -128, too, where it is on the grid).
 * The scale of each group, or of each row, is searched for the least squared error, in the form in
 * which it is stored, and never has more than amax/7 (or amax/127); where the format holds the
 * codes of a group of the grid and its scale, it is that one.  E_NUMERIC with row and column for a
 * weight that is not finite or too large. */
coli_status coli__mat_pack(const coli__mat_pack_args *args);
/* The same, with nothing known and nothing asked. */
coli_status coli__mat_pack_panel(coli__wfmt fmt, const float *w, uint32_t n_row, uint32_t n_in,
                                 size_t ld, int32_t scale_exp, uint8_t *out);

/* The power of two for a matrix whose largest and smallest non-zero group |w| maxima are given;
 * false when f16 cannot hold that spread exactly enough (the converter then takes f32 scales). */
bool coli__scale_exp_for(coli__wfmt fmt, float amax_max, float amax_min, int32_t *scale_exp);

/* One row back as f32: out (n_in).  For the embedding, tests and tools. */
void coli__mat_row(const coli__mat *m, uint32_t row, float *out);

/* Every stored scale is 0 or of a magnitude in [2^-40, 2^10], scale_exp in -60..60, every float
 * weight finite and its padding zero; else E_FORMAT with the row. */
coli_status coli__mat_check(const coli__mat *m);

#endif
