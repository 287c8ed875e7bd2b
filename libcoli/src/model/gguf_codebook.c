/* gguf_codebook.c - see gguf_codebook.h.
 *
 * Every number is scale * integer.  The scale is an f16 d times a small odd number or a half, exact in
 * f32; so is the product with the integer (11 + 5 + 6 bits at most), so no order of operations can be
 * told from another.
 *
 *     kind     d, then                       points of   coordinates            scale per
 *     IQ1_S    index low, high + scale       8           -1 0 1, +-1/8          32: d (2s + 1)
 *     IQ1_M    index low, high; scales, d    8           the same               16: d (2s + 1)
 *     IQ2_XXS  index; signs + scale          8           8 25 43                32: d (s + 1/2) / 4
 *     IQ2_XS   index + signs; scales         8           8 25 43                16: d (s + 1/2) / 4
 *     IQ2_S    low, signs, high; scales      8           8 25 43                16: d (s + 1/2) / 4
 *     IQ3_XXS  index; signs + scale          4           4 12 20 ... 52 62      32: d (s + 1/2) / 2
 *     IQ3_S    low, high, signs; scales      4           1 3 5 ... 15           32: d (2s + 1)
 *
 * IQ1's coordinates are moved up or down by 1/8, all of a point together: 8c + 1 or 8c - 1 times an
 * eighth of the scale.
 *
 * A byte of signs has a bit per number, 1 for minus.  Where a sign takes seven bits for eight numbers,
 * the eighth is such that the number of minuses is even. */
#include "gguf_codebook.h"

#include <string.h>

#include "../../include/coli/exact.h"

static float f16_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return coli_f16_to_f32(h);
}

static uint32_t u16_at(const uint8_t *p)
{
    uint16_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static uint32_t u32_at(const uint8_t *p)
{
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* Nibble i: low ones first. */
static uint32_t nibble(const uint8_t *p, uint32_t i)
{
    return (uint32_t)p[i / 2] >> 4 * (i % 2) & 15u;
}

/* Eight signs out of seven bits. */
static uint32_t even_signs(uint32_t seven)
{
    uint32_t parity = seven ^ seven >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return seven | (parity & 1u) << 7;
}

static float with_sign(float scale, uint32_t size, uint32_t minus)
{
    return scale * (float)(minus ? -(int32_t)size : (int32_t)size);
}

/* -- IQ1 --------------------------------------------------------------------------------------- */

static void point1(float eighth, uint16_t point, int32_t shift, float *out)
{
    for (uint32_t i = 0; i < 8; i++)
        out[i] = eighth * (float)(8 * ((int32_t)(point >> 2 * i & 3) - 1) + shift);
}

float coli__gguf_iq1_s_scale(const uint8_t *b, uint32_t j)
{
    return f16_at(b) * (float)(2 * (u16_at(b + 34 + 2 * j) >> 12 & 7) + 1) * 0.125f;
}

void coli__gguf_iq1_s(const uint8_t *b, float *out)
{
    for (uint32_t k = 0; k < 32; k++) {
        const uint32_t high = u16_at(b + 34 + 2 * (k / 4));
        const uint32_t index = b[2 + k] | (high >> 3 * (k % 4) & 7u) << 8;
        point1(coli__gguf_iq1_s_scale(b, k / 4), coli__gguf_grid_iq1[index],
               high & 0x8000u ? -1 : 1, out + 8 * k);
    }
}

/* The f16 d is spread over the upper nibbles of the four words of scales. */
void coli__gguf_iq1_m(const uint8_t *b, float *out)
{
    uint32_t d_bits = 0;
    for (uint32_t i = 0; i < 4; i++) d_bits |= (u16_at(b + 48 + 2 * i) >> 12 & 15u) << 4 * i;
    const float d = coli_f16_to_f32((uint16_t)d_bits);
    for (uint32_t k = 0; k < 32; k++) {
        const uint32_t high = nibble(b + 32, k), index = b[k] | (high & 7u) << 8;
        const uint32_t s = u16_at(b + 48 + 2 * (k / 8)) >> 3 * (k / 2 % 4) & 7u;
        point1(d * (float)(2 * s + 1) * 0.125f, coli__gguf_grid_iq1[index], high & 8u ? -1 : 1,
               out + 8 * k);
    }
}

/* -- IQ2 --------------------------------------------------------------------------------------- */

static void point2(float scale, uint16_t point, uint32_t signs, float *out)
{
    static const uint8_t sizes[4] = {8, 25, 43, 0}; // no point has the last
    for (uint32_t i = 0; i < 8; i++)
        out[i] = with_sign(scale, sizes[point >> 2 * i & 3], signs >> i & 1u);
}

static float scale2(const uint8_t *b, uint32_t s)
{
    return f16_at(b) * ((float)s + 0.5f) * 0.25f;
}

float coli__gguf_iq2_xxs_scale(const uint8_t *b, uint32_t j)
{
    return scale2(b, u32_at(b + 2 + 8 * j + 4) >> 28);
}

void coli__gguf_iq2_xxs(const uint8_t *b, float *out)
{
    for (uint32_t k = 0; k < 32; k++) {
        const uint8_t *four = b + 2 + 8 * (k / 4);
        point2(coli__gguf_iq2_xxs_scale(b, k / 4), coli__gguf_grid_iq2_xxs[four[k % 4]],
               even_signs(u32_at(four + 4) >> 7 * (k % 4) & 127u), out + 8 * k);
    }
}

void coli__gguf_iq2_xs(const uint8_t *b, float *out)
{
    for (uint32_t k = 0; k < 32; k++) {
        const uint32_t code = u16_at(b + 2 + 2 * k);
        point2(scale2(b, nibble(b + 66, k / 2)), coli__gguf_grid_iq2_xs[code & 511u],
               even_signs(code >> 9), out + 8 * k);
    }
}

void coli__gguf_iq2_s(const uint8_t *b, float *out)
{
    for (uint32_t k = 0; k < 32; k++) {
        const uint32_t index = b[2 + k] | ((uint32_t)b[66 + k / 4] >> 2 * (k % 4) & 3u) << 8;
        point2(scale2(b, nibble(b + 74, k / 2)), coli__gguf_grid_iq2_s[index], b[34 + k],
               out + 8 * k);
    }
}

/* -- IQ3 --------------------------------------------------------------------------------------- */

/* Four numbers with the signs of the low four bits. */
static void point3(float scale, const uint8_t *sizes, uint16_t point, uint32_t signs, float *out)
{
    for (uint32_t i = 0; i < 4; i++)
        out[i] = with_sign(scale, sizes[point >> 3 * i & 7], signs >> i & 1u);
}

float coli__gguf_iq3_xxs_scale(const uint8_t *b, uint32_t j)
{
    return f16_at(b) * ((float)(u32_at(b + 66 + 4 * j) >> 28) + 0.5f) * 0.5f;
}

void coli__gguf_iq3_xxs(const uint8_t *b, float *out)
{
    static const uint8_t sizes[8] = {4, 12, 20, 28, 36, 44, 52, 62};
    for (uint32_t k = 0; k < 64; k++) {
        const uint32_t seven = u32_at(b + 66 + 4 * (k / 8)) >> 7 * (k / 2 % 4) & 127u;
        point3(coli__gguf_iq3_xxs_scale(b, k / 8), sizes, coli__gguf_grid_iq3_xxs[b[2 + k]],
               even_signs(seven) >> 4 * (k % 2), out + 4 * k);
    }
}

float coli__gguf_iq3_s_scale(const uint8_t *b, uint32_t j)
{
    return f16_at(b) * (float)(2 * nibble(b + 106, j) + 1);
}

void coli__gguf_iq3_s(const uint8_t *b, float *out)
{
    static const uint8_t sizes[8] = {1, 3, 5, 7, 9, 11, 13, 15};
    for (uint32_t k = 0; k < 64; k++) {
        const uint32_t index = b[2 + k] | ((uint32_t)b[66 + k / 8] >> k % 8 & 1u) << 8;
        point3(coli__gguf_iq3_s_scale(b, k / 8), sizes, coli__gguf_grid_iq3_s[index],
               (uint32_t)b[74 + k / 2] >> 4 * (k % 2), out + 4 * k);
    }
}
