/* gguf_codebook.h - the GGUF kinds whose codes are points of a codebook: IQ1_S to IQ3_S.
 *
 * Eight (or four) numbers share one index, which names a point of a list that belongs to the format
 * (gguf_grids.c).  A block has 256 numbers; docs/formats/gguf.md says what is where in it. */
#ifndef COLI_MODEL_GGUF_CODEBOOK_H
#define COLI_MODEL_GGUF_CODEBOOK_H

#include <stdint.h>

void coli__gguf_iq1_s(const uint8_t *block, float *out); // out (256)
void coli__gguf_iq1_m(const uint8_t *block, float *out);
void coli__gguf_iq2_xxs(const uint8_t *block, float *out);
void coli__gguf_iq2_xs(const uint8_t *block, float *out);
void coli__gguf_iq2_s(const uint8_t *block, float *out);
void coli__gguf_iq3_xxs(const uint8_t *block, float *out);
void coli__gguf_iq3_s(const uint8_t *block, float *out);

/* The kinds in which 32 numbers have one scale: that of numbers 32j to 32j+31, j < 8.  Each of these
 * numbers is it times an integer within -127..127. */
float coli__gguf_iq1_s_scale(const uint8_t *block, uint32_t j);
float coli__gguf_iq2_xxs_scale(const uint8_t *block, uint32_t j);
float coli__gguf_iq3_xxs_scale(const uint8_t *block, uint32_t j);
float coli__gguf_iq3_s_scale(const uint8_t *block, uint32_t j);

/* The points, packed: coordinate i is bits 2i and 2i+1, in the iq3 lists bits 3i to 3i+2. */
extern const uint16_t coli__gguf_grid_iq1[2048];
extern const uint16_t coli__gguf_grid_iq2_xxs[256];
extern const uint16_t coli__gguf_grid_iq2_xs[512];
extern const uint16_t coli__gguf_grid_iq2_s[1024];
extern const uint16_t coli__gguf_grid_iq3_xxs[256];
extern const uint16_t coli__gguf_grid_iq3_s[512];

#endif
