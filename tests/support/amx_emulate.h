/* amx_emulate.h - AMX in plain C, so that kernels_amx.c runs on processors without it.
 *
 *     #include "amx_emulate.h"
 *     #include "libcoli/src/math/kernels_amx.c"     // as emulated_matmul and emulated_peak
 *
 * Names, arguments and effects are those of the intrinsics (Intel's manual, "Tile" instructions).
 * What the processor answers with a fault, like a product of tiles that do not fit each other or tiles
 * that were not configured, fails the test.  One thread. */
#ifndef COLI_TEST_AMX_EMULATE_H
#define COLI_TEST_AMX_EMULATE_H

#include "t.h"

#include "coli/exact.h"
#include "libcoli/src/math/kernels.h"

#define AMX_EMULATED
#define coli__amx_matmul emulated_matmul
#define coli__amx_peak   emulated_peak

typedef struct emulated_tile {
    uint32_t n_line, line_bytes; // 0: not configured
    uint8_t bytes[16][64];
} emulated_tile;

static struct {
    bool is_configured;
    emulated_tile tiles[8];
    uint64_t n_config, n_product;
} amx;

static const coli__kernels *amx_few_rows; // what multiplies those that tiles do not
static uint64_t amx_n_few;                // rows that it got

static emulated_tile *amx_tile(int t)
{
    T_TRUE(amx.is_configured);
    T_TRUE(t >= 0 && t < 8);
    T_TRUE(amx.tiles[t].n_line > 0);
    return &amx.tiles[t];
}

static void _tile_loadconfig(const void *config)
{
    const uint8_t *c = config;
    T_EQ(c[0], 1); // the palette
    memset(amx.tiles, 0, sizeof amx.tiles);
    for (int t = 0; t < 16; t++) {
        uint16_t line_bytes;
        memcpy(&line_bytes, c + 16 + 2 * t, sizeof line_bytes);
        const uint8_t n_line = c[48 + t];
        T_TRUE(t < 8 || (n_line == 0 && line_bytes == 0));
        T_TRUE((n_line == 0) == (line_bytes == 0));
        T_TRUE(n_line <= 16 && line_bytes <= 64);
        if (t < 8) amx.tiles[t] = (emulated_tile){.n_line = n_line, .line_bytes = line_bytes};
    }
    amx.is_configured = true;
    amx.n_config++;
}

static void _tile_release(void)
{
    amx.is_configured = false;
}

static void _tile_zero(int t)
{
    memset(amx_tile(t)->bytes, 0, sizeof amx.tiles->bytes);
}

static void _tile_loadd(int t, const void *from, size_t stride)
{
    emulated_tile *tile = amx_tile(t);
    memset(tile->bytes, 0, sizeof tile->bytes);
    for (uint32_t r = 0; r < tile->n_line; r++)
        memcpy(tile->bytes[r], (const uint8_t *)from + r * stride, tile->line_bytes);
}

static void _tile_stored(int t, void *to, size_t stride)
{
    const emulated_tile *tile = amx_tile(t);
    for (uint32_t r = 0; r < tile->n_line; r++)
        memcpy((uint8_t *)to + r * stride, tile->bytes[r], tile->line_bytes);
}

/* c[r][o] += the sum over i of a[r][i] * b[i / 4][4 * o + i % 4], all bytes signed; sums wrap. */
static void _tile_dpbssd(int c, int a, int b)
{
    emulated_tile *sums = amx_tile(c);
    const emulated_tile *x = amx_tile(a), *w = amx_tile(b);
    T_TRUE(c != a && a != b && b != c);
    T_EQ(sums->n_line, x->n_line);
    T_EQ(sums->line_bytes, w->line_bytes);
    T_EQ(x->line_bytes, 4 * w->n_line);
    for (uint32_t r = 0; r < sums->n_line; r++)
        for (uint32_t o = 0; o < sums->line_bytes / 4; o++) {
            uint32_t sum;
            memcpy(&sum, &sums->bytes[r][4 * o], sizeof sum);
            for (uint32_t i = 0; i < x->line_bytes; i++)
                sum += (uint32_t)((int8_t)x->bytes[r][i] * (int8_t)w->bytes[i / 4][4 * o + i % 4]);
            memcpy(&sums->bytes[r][4 * o], &sum, sizeof sum);
        }
    amx.n_product++;
}

/* What else the kernels take from the processor. */
typedef float amx_floats __attribute__((vector_size(64)));
static inline amx_floats amx_widen(const uint8_t *p)
{
    amx_floats v;
    for (int i = 0; i < 16; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, sizeof h);
        v[i] = coli_f16_to_f32(h);
    }
    return v;
}
#define WIDEN(p) amx_widen(p)

static void amx_few(const coli__matmul_args *a)
{
    amx_n_few += a->n_row;
    amx_few_rows->matmul(a);
}
#define FEW_ROWS(a) amx_few(a)

#endif
