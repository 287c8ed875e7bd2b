/* pack_codes.h - matrices of weights that are integers with scales already. */
#ifndef COLI_MATH_PACK_CODES_H
#define COLI_MATH_PACK_CODES_H

#include "matrix.h"

/* Lay up to 16 rows out as one panel, as they are.
 *   fmt     int8 or int4, with scales in f32
 *   codes   (n_row, n_in) within -127..127 or -8..7
 *   scales  (n_row, n_scale) one per group of fmt or, per row, 1; each 0 or in [2^-40, 2^10]
 *   out     panel_bytes, every byte is written */
void coli__mat_pack_codes(coli__wfmt fmt, const int8_t *codes, const float *scales, uint32_t n_row,
                          uint32_t n_in, uint8_t *out);

#endif
