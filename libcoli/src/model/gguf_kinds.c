/* gguf_kinds.c - how the numbers of a GGUF tensor are stored, and what they are worth.
 *
 * A kind stores blocks of 32 or 256 numbers.  d and m are f16 unless said otherwise; q is an
 * unsigned code; a product or difference is one f32 operation, in the order written here, because
 * that is what makes the result a definition and not an approximation.
 *
 *     block of 32
 *     Q4_0    d, 16 B: low nibbles 0..15, high 16..31     d * (q - 8)
 *     Q4_1    d, m, 16 B                                  d * q + m
 *     Q5_0    d, 4 B of fifth bits, 16 B                  d * (q - 16)
 *     Q5_1    d, m, 4 B, 16 B                             d * q + m
 *     Q8_0    d, 32 signed bytes                          d * q
 *     IQ4_NL  d, 16 B                                     d * table[q]
 *     MXFP4   e (one byte), 16 B                          2^(e-128) * e2m1[q], doubled e2m1
 *
 *     block of 256; sub-blocks have small integer scales s (and minima t) of their own
 *     Q2_K    16 of 16: s, t 4 bits; d, m at the end      (d * s) * q - (m * t)     q 2 bits
 *     Q3_K    16 of 16: s 6 bits, less 32; d at the end   (d * s) * (q - 4 where its mask bit is 0)
 *     Q4_K    8 of 32:  s, t 6 bits                       (d * s) * q - (m * t)     q 4 bits
 *     Q5_K    8 of 32:  s, t 6 bits                       (d * s) * q - (m * t)     q 5 bits
 *     Q6_K    16 of 16: s signed bytes; d at the end      (d * s) * (q - 32)        q 6 bits
 *     IQ4_XS  8 of 32:  s 6 bits, less 32                 (d * s) * table[q]        q 4 bits
 *     TQ1_0   five digits of base 3 a byte; d at the end  d * (digit - 1)
 *     TQ2_0   four of two bits a byte; d at the end       d * (q - 1)
 *
 *     block of 64: 4 of 16, each with a float of 8 bits without sign, of four and three bits
 *     NVFP4   4 of these s, 32 B of nibbles               (s / 2) * e2m1[q], doubled e2m1
 *
 *     block of 256 with codebooks: IQ1_S, IQ1_M, IQ2_*, IQ3_*: gguf_codebook.c
 *
 * Facts: the published definition of the formats.  The test compares with another implementation,
 * number by number. */
#include <string.h>

#include "../../include/coli/exact.h"
#include "gguf.h"
#include "gguf_codebook.h"

// clang-format off
static const coli__gguf_kind kinds[] = {
    {"F32", 0, 1, 4},        {"F16", 1, 1, 2},        {"Q4_0", 2, 32, 18},     {"Q4_1", 3, 32, 20},
    {"Q5_0", 6, 32, 22},     {"Q5_1", 7, 32, 24},     {"Q8_0", 8, 32, 34},     {"Q8_1", 9, 32, 36},
    {"Q2_K", 10, 256, 84},   {"Q3_K", 11, 256, 110},  {"Q4_K", 12, 256, 144},  {"Q5_K", 13, 256, 176},
    {"Q6_K", 14, 256, 210},  {"Q8_K", 15, 256, 292},  {"IQ2_XXS", 16, 256, 66},{"IQ2_XS", 17, 256, 74},
    {"IQ3_XXS", 18, 256, 98},{"IQ1_S", 19, 256, 50},  {"IQ4_NL", 20, 32, 18},  {"IQ3_S", 21, 256, 110},
    {"IQ2_S", 22, 256, 82},  {"IQ4_XS", 23, 256, 136},{"I8", 24, 1, 1},        {"I16", 25, 1, 2},
    {"I32", 26, 1, 4},       {"I64", 27, 1, 8},       {"F64", 28, 1, 8},       {"IQ1_M", 29, 256, 56},
    {"BF16", 30, 1, 2},      {"TQ1_0", 34, 256, 54},  {"TQ2_0", 35, 256, 66},  {"MXFP4", 39, 32, 17},
    {"NVFP4", 40, 64, 36},   {"Q1_0", 41, 128, 18},
};
// clang-format on

enum {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    IQ1_M = 29,
    BF16 = 30,
    TQ1_0 = 34,
    TQ2_0 = 35,
    MXFP4 = 39,
    NVFP4 = 40,
};

const coli__gguf_kind *coli__gguf_kind_of(uint32_t id)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (kinds[i].id == id) return &kinds[i];
    return NULL;
}

const char *coli__gguf_foreign_kind(uint32_t id)
{
    static const struct {
        uint32_t id;
        const char *name;
    } foreign[] = {
        {133, "Q6_0"},    {137, "IQ2_K"},  {138, "IQ3_K"},  {139, "IQ4_K"},
        {140, "IQ5_K"},   {141, "IQ6_K"},  {144, "IQ4_KS"}, {145, "IQ2_KS"},
        {146, "IQ4_KSS"}, {152, "IQ5_KS"}, {153, "IQ2_KT"}, {154, "IQ3_KT"},
        {155, "IQ4_KT"},  {156, "IQ3_KS"}, {157, "IQ2_KL"}, {158, "IQ1_KT"},
    };
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++)
        if (foreign[i].id == id) return foreign[i].name;
    return NULL;
}

/* -- pieces ------------------------------------------------------------------------------------ */

static const int8_t iq4_table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
static const int8_t e2m1_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static float f16_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return coli_f16_to_f32(h);
}

/* 2^(e-128), which for e of 0 and 1 is below the normal numbers. */
static float half_e8m0(uint8_t e)
{
    return coli_from_bits(e < 2 ? UINT32_C(0x00200000) << e : (uint32_t)(e - 1) << 23);
}

/* Half of the float of 8 bits: four of exponent, three of mantissa, no sign.  Whoever writes 0x7f,
 * which would be NaN, means 0. */
static float half_ue4m3(uint8_t x)
{
    const uint32_t exponent = x >> 3 & 15u, mantissa = x & 7u;
    if (x == 0x7f) return 0.0f;
    return exponent == 0 ? (float)mantissa * 0x1p-10f
                         : (float)(8 + mantissa) * coli_pow2((int32_t)exponent - 11);
}

/* Code i of 32: low nibbles first, then high ones. */
static uint32_t nibble(const uint8_t *q, uint32_t i)
{
    return i < 16 ? q[i] & 15u : (uint32_t)q[i - 16] >> 4;
}

static uint32_t bit(const uint8_t *q, uint32_t i)
{
    return (uint32_t)q[i / 8] >> i % 8 & 1u;
}

/* Scale and minimum j of the eight in the 12 bytes of Q4_K and Q5_K: six bits each; of the last
 * four, the two upper bits stand above those of the first four. */
static void scale_min(const uint8_t *p, uint32_t j, float *scale, float *min)
{
    uint32_t s, m;
    if (j < 4) {
        s = p[j] & 63u;
        m = p[j + 4] & 63u;
    } else {
        s = (p[j + 4] & 15u) | (p[j - 4] >> 6 & 3u) << 4;
        m = (uint32_t)p[j + 4] >> 4 | (p[j] >> 6 & 3u) << 4;
    }
    *scale = (float)s;
    *min = (float)m;
}

/* Scale j of the sixteen in the 12 bytes of Q3_K: the low four bits are nibbles of bytes 0 to 7, the
 * upper two are in bytes 8 to 11. */
static int32_t q3_scale(const uint8_t *p, uint32_t j)
{
    const uint32_t low = j < 8 ? p[j] & 15u : (uint32_t)p[j - 8] >> 4;
    const uint32_t high = (uint32_t)p[8 + j % 4] >> 2 * (j / 4) & 3u;
    return (int32_t)(low | high << 4) - 32;
}

/* Scale j of the eight of IQ4_XS: nibbles, and two bits each of a 16-bit word. */
static int32_t iq4_scale(const uint8_t *block, uint32_t j)
{
    uint16_t high;
    memcpy(&high, block + 2, sizeof high);
    const uint32_t low = (uint32_t)block[4 + j / 2] >> 4 * (j % 2) & 15u;
    return (int32_t)(low | ((uint32_t)high >> 2 * j & 3u) << 4) - 32;
}

/* -- one block --------------------------------------------------------------------------------- */

static void block_q2_k(const uint8_t *b, float *out)
{
    const float d = f16_at(b + 80), m = f16_at(b + 82);
    for (uint32_t i = 0; i < 256; i++) {
        const uint32_t in_half = i % 128,
                       code = (uint32_t)b[16 + i / 128 * 32 + i % 32] >> 2 * (in_half / 32);
        const uint8_t s = b[i / 16];
        out[i] = d * (float)(s & 15) * (float)(code & 3) - m * (float)(s >> 4);
    }
}

static void block_q3_k(const uint8_t *b, float *out)
{
    const float d = f16_at(b + 108);
    for (uint32_t i = 0; i < 256; i++) {
        const uint32_t in_half = i % 128;
        const int32_t low = b[32 + i / 128 * 32 + i % 32] >> 2 * (in_half / 32) & 3;
        const int32_t four = b[i % 32] >> i / 32 & 1 ? 0 : 4;
        out[i] = d * (float)q3_scale(b + 96, i / 16) * (float)(low - four);
    }
}

static void block_q4_k(const uint8_t *b, float *out)
{
    const float d = f16_at(b), m = f16_at(b + 2);
    for (uint32_t j = 0; j < 8; j++) {
        float s, t;
        scale_min(b + 4, j, &s, &t);
        const float step = d * s, low = m * t;
        for (uint32_t i = 0; i < 32; i++)
            out[32 * j + i] = step * (float)(b[16 + j / 2 * 32 + i] >> 4 * (j % 2) & 15) - low;
    }
}

static void block_q5_k(const uint8_t *b, float *out)
{
    const float d = f16_at(b), m = f16_at(b + 2);
    for (uint32_t j = 0; j < 8; j++) {
        float s, t;
        scale_min(b + 4, j, &s, &t);
        const float step = d * s, low = m * t;
        for (uint32_t i = 0; i < 32; i++) {
            const int32_t code = b[48 + j / 2 * 32 + i] >> 4 * (j % 2) & 15;
            out[32 * j + i] = step * (float)(code | (b[16 + i] >> j & 1) << 4) - low;
        }
    }
}

static void block_q6_k(const uint8_t *b, float *out)
{
    const float d = f16_at(b + 208);
    for (uint32_t i = 0; i < 256; i++) {
        const uint32_t half = i / 128, quarter = i % 128 / 32, at = i % 32;
        const int32_t low = b[half * 64 + quarter % 2 * 32 + at] >> 4 * (quarter / 2) & 15;
        const int32_t high = b[128 + half * 32 + at] >> 2 * quarter & 3;
        out[i] = d * (float)(int8_t)b[192 + i / 16] * (float)((low | high << 4) - 32);
    }
}

static void block_iq4_xs(const uint8_t *b, float *out)
{
    const float d = f16_at(b);
    for (uint32_t j = 0; j < 8; j++) {
        const float step = d * (float)iq4_scale(b, j);
        for (uint32_t i = 0; i < 32; i++)
            out[32 * j + i] = step * (float)iq4_table[nibble(b + 8 + 16 * j, i)];
    }
}

/* A byte is a fraction of 256: the digits of the number in base 3, times 3, give one after another their
 * whole part. */
static float digit(uint8_t byte, uint32_t i)
{
    static const uint8_t powers[5] = {1, 3, 9, 27, 81};
    return (float)((int32_t)((uint32_t)(uint8_t)(byte * powers[i]) * 3 >> 8) - 1);
}

static void block_tq1_0(const uint8_t *b, float *out)
{
    const float d = f16_at(b + 52);
    for (uint32_t i = 0; i < 160; i++) out[i] = d * digit(b[i % 32], i / 32);
    for (uint32_t i = 0; i < 80; i++) out[160 + i] = d * digit(b[32 + i % 16], i / 16);
    for (uint32_t i = 0; i < 16; i++) out[240 + i] = d * digit(b[48 + i % 4], i / 4);
}

static void block_tq2_0(const uint8_t *b, float *out)
{
    const float d = f16_at(b + 64);
    for (uint32_t i = 0; i < 256; i++) {
        const int32_t code = b[i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3;
        out[i] = d * (float)(code - 1);
    }
}

static void block_nvfp4(const uint8_t *b, float *out)
{
    for (uint32_t i = 0; i < 64; i++) {
        const uint8_t byte = b[4 + i / 16 * 8 + i % 8];
        out[i] = half_ue4m3(b[i / 16]) * (float)e2m1_doubled[byte >> i % 16 / 8 * 4 & 15];
    }
}

static void block_32(uint32_t kind, const uint8_t *b, float *out)
{
    const float d = kind == MXFP4 ? half_e8m0(b[0]) : f16_at(b);
    const float m = kind == Q4_1 || kind == Q5_1 ? f16_at(b + 2) : 0.0f;
    for (uint32_t i = 0; i < 32; i++) switch (kind) {
        case Q4_0:
            out[i] = d * (float)((int32_t)nibble(b + 2, i) - 8);
            break;
        case Q4_1:
            out[i] = d * (float)nibble(b + 4, i) + m;
            break;
        case Q5_0:
            out[i] = d * (float)((int32_t)(nibble(b + 6, i) | bit(b + 2, i) << 4) - 16);
            break;
        case Q5_1:
            out[i] = d * (float)(nibble(b + 8, i) | bit(b + 4, i) << 4) + m;
            break;
        case Q8_0:
            out[i] = d * (float)(int8_t)b[2 + i];
            break;
        case IQ4_NL:
            out[i] = d * (float)iq4_table[nibble(b + 2, i)];
            break;
        default: // MXFP4
            out[i] = d * (float)e2m1_doubled[nibble(b + 1, i)];
            break;
        }
}

static void block(uint32_t kind, const uint8_t *b, float *out)
{
    uint16_t h;
    switch (kind) {
    case F32:
        memcpy(out, b, sizeof *out);
        return;
    case F16:
        *out = f16_at(b);
        return;
    case BF16:
        memcpy(&h, b, sizeof h);
        *out = coli_bf16_to_f32(h);
        return;
    case Q2_K:
        block_q2_k(b, out);
        return;
    case Q3_K:
        block_q3_k(b, out);
        return;
    case Q4_K:
        block_q4_k(b, out);
        return;
    case Q5_K:
        block_q5_k(b, out);
        return;
    case Q6_K:
        block_q6_k(b, out);
        return;
    case IQ4_XS:
        block_iq4_xs(b, out);
        return;
    case TQ1_0:
        block_tq1_0(b, out);
        return;
    case TQ2_0:
        block_tq2_0(b, out);
        return;
    case NVFP4:
        block_nvfp4(b, out);
        return;
    case IQ1_S:
        coli__gguf_iq1_s(b, out);
        return;
    case IQ1_M:
        coli__gguf_iq1_m(b, out);
        return;
    case IQ2_XXS:
        coli__gguf_iq2_xxs(b, out);
        return;
    case IQ2_XS:
        coli__gguf_iq2_xs(b, out);
        return;
    case IQ2_S:
        coli__gguf_iq2_s(b, out);
        return;
    case IQ3_XXS:
        coli__gguf_iq3_xxs(b, out);
        return;
    case IQ3_S:
        coli__gguf_iq3_s(b, out);
        return;
    default:
        block_32(kind, b, out);
        return;
    }
}

/* -- runs of blocks ---------------------------------------------------------------------------- */

bool coli__gguf_is_readable(const coli__gguf_kind *kind)
{
    static const uint8_t ids[] = {F32,    F16,     BF16,   Q4_0,  Q4_1,  Q5_0,    Q5_1,
                                  Q8_0,   Q2_K,    Q3_K,   Q4_K,  Q5_K,  Q6_K,    IQ1_S,
                                  IQ1_M,  IQ2_XXS, IQ2_XS, IQ2_S, IQ3_S, IQ3_XXS, IQ4_NL,
                                  IQ4_XS, TQ1_0,   TQ2_0,  MXFP4, NVFP4};
    return memchr(ids, (int)kind->id, sizeof ids) != NULL;
}

bool coli__gguf_has_grid(const coli__gguf_kind *kind)
{
    static const uint8_t ids[] = {Q4_0,  Q5_0,   Q8_0,   IQ1_S, IQ2_XXS, IQ3_XXS,
                                  IQ3_S, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0,   MXFP4};
    return memchr(ids, (int)kind->id, sizeof ids) != NULL;
}

/* The scale of numbers 32j to 32j+31 of a block. */
static float grid_scale(uint32_t kind, const uint8_t *b, uint32_t j)
{
    switch (kind) {
    case IQ1_S:
        return coli__gguf_iq1_s_scale(b, j);
    case IQ2_XXS:
        return coli__gguf_iq2_xxs_scale(b, j);
    case IQ3_XXS:
        return coli__gguf_iq3_xxs_scale(b, j);
    case IQ3_S:
        return coli__gguf_iq3_s_scale(b, j);
    case IQ4_XS:
        return f16_at(b) * (float)iq4_scale(b, j);
    case TQ1_0:
        return f16_at(b + 52);
    case TQ2_0:
        return f16_at(b + 64);
    case MXFP4:
        return half_e8m0(b[0]);
    default:
        return f16_at(b);
    }
}

coli_status coli__gguf_to_f32(const coli__gguf_tensor *t, uint64_t first, uint64_t n, float *out)
{
    const coli__gguf_kind *k = t->kind;
    uint64_t end;
    if (!coli__add(first, n, &end) || end > t->n_elem || first % k->n_elem || n % k->n_elem)
        return coli__fail(COLI_E_INVALID, "tensor %s: %llu elements from %llu, it has %llu",
                          t->name, (unsigned long long)n, (unsigned long long)first,
                          (unsigned long long)t->n_elem);
    if (!coli__gguf_is_readable(k))
        return coli__fail(COLI_E_UNSUPPORTED, "%s: tensor %s: numbers of kind %s are not supported",
                          t->file, t->name, k->name);
    const uint8_t *b = t->data + first / k->n_elem * k->n_bytes;
    if (k->id == F32 && n > 0)
        memcpy(out, b, n * sizeof *out);
    else
        for (uint64_t i = 0; i < n; i += k->n_elem, b += k->n_bytes) block(k->id, b, out + i);
    return COLI_OK;
}

void coli__gguf_scales(const coli__gguf_tensor *t, uint64_t first, uint64_t n, float *out)
{
    const coli__gguf_kind *k = t->kind;
    const uint8_t *b = t->data + first / k->n_elem * k->n_bytes;
    for (uint64_t i = 0; i < n; i += k->n_elem, b += k->n_bytes)
        for (uint32_t j = 0; j < k->n_elem / 32; j++) *out++ = grid_scale(k->id, b, j);
}
