/* matrix_unit.c - weight formats: names, sizes, the layout byte by byte, and what is refused. */
#include "t.h"

#include "coli/exact.h"
#include "libcoli/src/base/alloc.h"
#include "libcoli/src/math/matrix.h"

static const char *const names[] = {"f32",          "bf16",         "int4-g64-f16", "int4-g64-f32",
                                    "int4-g32-f16", "int4-g32-f32", "int4-row-f16", "int4-row-f32",
                                    "int8-g64-f16", "int8-g64-f32", "int8-g32-f16", "int8-g32-f32",
                                    "int8-row-f16", "int8-row-f32"};

static coli__wfmt format(const char *name)
{
    coli__wfmt fmt;
    T_OK(coli__wfmt_parse(name, &fmt));
    return fmt;
}

T_TEST(names_go_both_ways)
{
    T_BEGIN;
    for (uint32_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[32];
        const coli__wfmt fmt = format(names[i]);
        T_TRUE(coli__wfmt_valid(fmt));
        coli__wfmt_name(fmt, name);
        T_STR(name, names[i]);
    }
    char name[32];
    coli__wfmt_name(format("int4"), name);
    T_STR(name, "int4-g64-f16");
    coli__wfmt_name(format("int8"), name);
    T_STR(name, "int8-g64-f16");
    coli__wfmt fmt;
    static const char *const bad[] = {"", "int5", "int4-g64", "int4-g64-f16 ", "F32", "int4-row"};
    for (uint32_t i = 0; i < sizeof bad / sizeof *bad; i++)
        T_FAILS(coli__wfmt_parse(bad[i], &fmt), COLI_E_FORMAT, "weight format");
}

T_TEST(sizes)
{
    T_BEGIN;
    static const struct {
        const char *fmt;
        uint32_t n_out, n_in;
        uint64_t bytes, panel;
    } cases[] = {
        {"int4-g64-f16", 512, 2048, 557056, 17408}, // 4.25 bits a weight
        {"int4-g64-f16", 512, 2049, 574464, 17952}, // one column more is one group more
        {"int4-g64-f32", 17, 64, 2 * 576, 576},
        {"int4-g32-f32", 16, 33, 640, 640},
        {"int8-g64-f16", 16, 64, 1056, 1056},
        {"int8-g32-f16", 16, 64, 2 * 544, 1088},
        {"int8-row-f32", 16, 100, 64 + 2 * 1024, 2112},
        {"int4-row-f16", 1, 1, 32 + 512, 544},
        {"f32", 3, 17, 3 * 128, 16 * 128},
        {"bf16", 3, 17, 3 * 64, 16 * 64},
    };
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t bytes, panel;
        T_TRUE(
            coli__mat_bytes(format(cases[i].fmt), cases[i].n_out, cases[i].n_in, &bytes, &panel));
        T_EQ(bytes, cases[i].bytes);
        T_EQ(panel, cases[i].panel);
        T_EQ(bytes % 32, 0);
    }
    uint64_t bytes = 1;
    T_TRUE(!coli__mat_bytes(format("int4"), 0, 64, &bytes, NULL));
    T_TRUE(!coli__mat_bytes(format("int4"), 64, 0, &bytes, NULL));
    T_TRUE(!coli__mat_bytes(format("f32"), UINT32_MAX, UINT32_MAX, &bytes, NULL));
    T_TRUE(!coli__mat_bytes((coli__wfmt){COLI_W_I4, 48, false, true}, 16, 64, &bytes, NULL));
    T_TRUE(!coli__mat_bytes((coli__wfmt){COLI_W_I4, 32, true, true}, 16, 64, &bytes, NULL));
    T_TRUE(!coli__mat_bytes((coli__wfmt){COLI_W_F32, 64, false, false}, 16, 64, &bytes, NULL));
    T_TRUE(!coli__mat_bytes((coli__wfmt){COLI_W_N, 0, false, false}, 16, 64, &bytes, NULL));
    T_EQ(bytes, 0);
}

/* Weights that int4 and int8 hold exactly, so that the codes are known: row r, column c. */
static float simple_weight(uint32_t r, uint32_t c, float largest)
{
    return c == 0 ? largest * 0.5f : (float)((int)((r + c) % 7) - 3) * 0.5f;
}

T_TEST(layout_int4)
{
    T_BEGIN;
    enum { N_ROW = 3, N_IN = 70 }; // a padded panel, a padded second group
    float w[N_ROW][N_IN];
    for (uint32_t r = 0; r < N_ROW; r++)
        for (uint32_t c = 0; c < N_IN; c++) w[r][c] = simple_weight(r, c % 64, 7.0f);
    uint8_t panel[2 * 544];
    memset(panel, 0xEE, sizeof panel);
    T_OK(coli__mat_pack_panel(format("int4"), w[0], N_ROW, N_IN, N_IN, -3, panel));
    for (uint32_t g = 0; g < 2; g++) {
        const uint8_t *p = panel + 544 * g;
        for (uint32_t r = 0; r < 16; r++) {
            uint16_t h;
            memcpy(&h, p + 2 * r, 2);
            T_EQ(h, r < N_ROW ? 0x4400 : 0); // 0.5 = 4 * 2^-3
            for (uint32_t c = 0; c < 64; c++) {
                const uint8_t byte = p[32 + c / 8 * 64 + 4 * r + c % 4];
                const int32_t code = c % 8 < 4 ? byte & 15 : byte >> 4;
                const bool real = r < N_ROW && 64 * g + c < N_IN;
                T_EQ(code - 8, real ? (int32_t)(w[r][64 * g + c] * 2.0f) : 0);
            }
        }
    }
}

T_TEST(layout_int8_row)
{
    T_BEGIN;
    enum { N_ROW = 16, N_IN = 70 };
    float w[N_ROW][N_IN];
    for (uint32_t r = 0; r < N_ROW; r++)
        for (uint32_t c = 0; c < N_IN; c++) w[r][c] = simple_weight(r, c, 127.0f);
    uint8_t panel[64 + 2 * 1024];
    memset(panel, 0xEE, sizeof panel);
    T_OK(coli__mat_pack_panel(format("int8-row-f32"), w[0], N_ROW, N_IN, N_IN, 0, panel));
    for (uint32_t r = 0; r < 16; r++) {
        float scale;
        memcpy(&scale, panel + 4 * r, 4);
        T_TRUE(scale == 0.5f);
        for (uint32_t c = 0; c < 128; c++)
            T_EQ(panel[64 + c / 4 * 64 + 4 * r + c % 4] - 128,
                 c < N_IN ? (int32_t)(w[r][c] * 2.0f) : 0);
    }
}

T_TEST(layout_float)
{
    T_BEGIN;
    const float w[2][3] = {{1.0f, -2.5f, 0x1.01p0f}, {0x1.03p0f, 0x1.0101p0f, -0.0f}};
    uint16_t panel[16][16];
    memset(panel, 0xEE, sizeof panel);
    T_OK(coli__mat_pack_panel(format("bf16"), w[0], 2, 3, 3, 0, (uint8_t *)panel));
    /* 1 + 2^-8 and 1 + 3*2^-8 lie half way: to the even neighbour. */
    static const uint16_t expected[2][3] = {{0x3F80, 0xC020, 0x3F80}, {0x3F82, 0x3F81, 0x8000}};
    for (uint32_t r = 0; r < 16; r++)
        for (uint32_t c = 0; c < 16; c++) T_EQ(panel[r][c], r < 2 && c < 3 ? expected[r][c] : 0);

    float row[3];
    const coli__mat m = {(const uint8_t *)panel, 2, 3, {COLI_W_BF16, 0, false, false}, 0};
    coli__mat_row(&m, 1, row);
    T_TRUE(row[0] == 0x1.04p0f && row[1] == 0x1.02p0f);
}

/* 1 + 2^-11 and 1 + 3*2^-11 lie half way between neighbours of f16: to the even one. */
T_TEST(scales_round_half_to_even)
{
    T_BEGIN;
    float w[64] = {0};
    uint8_t panel[1056];
    static const uint16_t expected[2] = {0x3C00, 0x3C02};
    for (uint32_t i = 0; i < 2; i++) {
        w[9] = 127.0f * (1.0f + (float)(1 + 2 * i) * 0x1p-11f);
        T_OK(coli__mat_pack_panel(format("int8"), w, 1, 64, 64, 0, panel));
        uint16_t h;
        memcpy(&h, panel, 2);
        T_EQ(h, expected[i]);
        T_EQ(panel[32 + 9 / 4 * 64 + 9 % 4], 128 + 127);
    }
}

T_TEST(packing_refuses)
{
    T_BEGIN;
    float w[2][64] = {{0}};
    uint8_t out[16 * 64 * 4];
    const uint32_t bad[] = {0x7F800000, 0xFF800000, 0x7FC00000};
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t k = 0; k < sizeof names / sizeof *names; k++) {
            w[1][37] = coli_from_bits(bad[i]);
            T_FAILS(coli__mat_pack_panel(format(names[k]), w[0], 2, 64, 64, 0, out), COLI_E_NUMERIC,
                    "row 1, column 37");
        }
    w[1][37] = 7.1f * 1024.0f;
    T_FAILS(coli__mat_pack_panel(format("int4-g64-f32"), w[0], 2, 64, 64, 0, out), COLI_E_NUMERIC,
            "row 1, columns 0 to 63");
    w[1][37] = 7.0f * 1024.0f;
    T_OK(coli__mat_pack_panel(format("int4-g64-f32"), w[0], 2, 64, 64, 0, out));
    T_FAILS(coli__mat_pack_panel(format("int4-g64-f16"), w[0], 2, 64, 64, -10, out), COLI_E_NUMERIC,
            "weight of magnitude");
    w[1][37] = 0x1.fffffep127f;
    T_FAILS(coli__mat_pack_panel(format("bf16"), w[0], 2, 64, 64, 0, out), COLI_E_NUMERIC, "bf16");
    T_OK(coli__mat_pack_panel(format("f32"), w[0], 2, 64, 64, 0, out));
}

T_TEST(powers_of_two_for_scales)
{
    T_BEGIN;
    int32_t e;
    const coli__wfmt int4 = format("int4");
    T_TRUE(coli__scale_exp_for(int4, 7.0f, 7.0f, &e));
    T_EQ(e, -14); // the largest scale is stored as 2^14
    T_TRUE(coli__scale_exp_for(int4, 0.13f, 0.01f, &e));
    T_EQ(e, -20); // 0.0186 is between 2^-6 and 2^-5
    T_TRUE(coli__scale_exp_for(int4, 0.0f, 0.0f, &e));
    T_EQ(e, 0);
    T_TRUE(coli__scale_exp_for(int4, 7.0f, 0x1p-24f, &e));
    T_TRUE(!coli__scale_exp_for(int4, 7.0f, 0x1p-27f, &e)); // f16 would lose bits
    T_EQ(e, 0);
    T_TRUE(coli__scale_exp_for(int4, 7.0f, 0x1p-60f, &e)); // becomes zero in any form
    T_TRUE(!coli__scale_exp_for(int4, 7.1f * 1024.0f, 1.0f, &e));
    T_TRUE(coli__scale_exp_for(format("int4-g64-f32"), 7.0f, 1e-30f, &e));
    T_TRUE(coli__scale_exp_for(format("bf16"), 1e30f, 1e-30f, &e));
    T_EQ(e, 0);
}

T_TEST(checking_finds)
{
    T_BEGIN;
    uint8_t data[1088];
    float w[64];
    for (uint32_t c = 0; c < 64; c++) w[c] = simple_weight(0, c, 7.0f);
    coli__mat m = {data, 1, 64, format("int4"), -3};
    T_OK(coli__mat_pack_panel(m.fmt, w, 1, 64, 64, -3, data));
    T_OK(coli__mat_check(&m));
    memcpy(data, &(uint16_t){0xC400}, 2); // a scale may have a sign
    T_OK(coli__mat_check(&m));
    static const uint16_t bad[] = {0x7C00, 0xFC00, 0x7E00, 0xFE00};
    for (uint32_t i = 0; i < 4; i++) {
        memcpy(data, &bad[i], 2);
        T_FAILS(coli__mat_check(&m), COLI_E_FORMAT, "row 0, group 0");
    }
    memcpy(data, &(uint16_t){0x7BFF}, 2);
    m.scale_exp = -6;
    T_OK(coli__mat_check(&m));
    m.scale_exp = -5; // 65504 * 2^-5 is above 2^10
    T_FAILS(coli__mat_check(&m), COLI_E_FORMAT, "scale");
    memcpy(data, &(uint16_t){0xFBFF}, 2);
    T_FAILS(coli__mat_check(&m), COLI_E_FORMAT, "scale");
    for (uint32_t sign = 0; sign < 2; sign++) {
        memcpy(data, &(uint16_t){(uint16_t)(sign << 15 | 1)}, 2);
        m.scale_exp = -17; // 2^-41
        T_FAILS(coli__mat_check(&m), COLI_E_FORMAT, "scale");
    }
    m.scale_exp = 61;
    T_FAILS(coli__mat_check(&m), COLI_E_FORMAT, "power of two");

    m = (coli__mat){data, 1, 64, format("int4-g64-f32"), 1};
    T_FAILS(coli__mat_check(&m), COLI_E_FORMAT, "power of two");

    float f[2][16] = {{0}};
    m = (coli__mat){(const uint8_t *)f, 2, 10, format("f32"), 0};
    T_OK(coli__mat_check(&m));
    f[1][9] = coli_from_bits(0x7F800000);
    T_FAILS(coli__mat_check(&m), COLI_E_FORMAT, "row 1, column 9");
    f[1][9] = 0.0f;
    f[0][10] = 1.0f;
    T_FAILS(coli__mat_check(&m), COLI_E_FORMAT, "row 0: padding");
    uint16_t h[16] = {0};
    m = (coli__mat){(const uint8_t *)h, 1, 16, format("bf16"), 0};
    h[15] = 0xFF80;
    T_FAILS(coli__mat_check(&m), COLI_E_FORMAT, "row 0, column 15");
}

/* ---- scales that come with the weights ------------------------------------------------------- */

/* Every code, under scales of both signs and down to f16's smallest: the same weights come back, to
 * the bit, also the negative zeros.  One weight off the grid, and its group alone is rounded. */
static void grids_in(const char *name, int32_t lo, int32_t hi)
{
    enum { N_IN = 8 * 32 };
    const coli__wfmt fmt = format(name);
    static const float scales[8] = {1.0f,     -1.0f,     -0x1p-10f, 0x1.554p-3f,
                                    0x1p-24f, -0x1p-24f, 0.0f,      -0x1.ffcp-9f};
    float w[N_IN], back[N_IN];
    for (uint32_t i = 0; i < N_IN; i++)
        w[i] = (float)(lo + (int32_t)(i * 37 % (uint32_t)(hi - lo + 1))) * scales[i / 32];
    uint64_t n_bytes;
    T_TRUE(coli__mat_bytes(fmt, 1, N_IN, &n_bytes, NULL));
    uint8_t *data = coli__alloc64(n_bytes);
    const coli__mat m = {data, 1, N_IN, fmt, fmt.scale_f16 ? -14 : 0};
    const coli__mat_pack_args args = {.fmt = fmt,
                                      .w = w,
                                      .n_row = 1,
                                      .n_in = N_IN,
                                      .ld = N_IN,
                                      .scale_exp = m.scale_exp,
                                      .grid = scales,
                                      .out = data};
    T_OK(coli__mat_pack(&args));
    T_OK(coli__mat_check(&m));
    coli__mat_row(&m, 0, back);
    T_MEM(back, w, 6 * 32 * sizeof *w);
    for (uint32_t i = 6 * 32; i < N_IN; i++) T_TRUE(back[i] == w[i]); // a scale of 0 keeps no sign

    w[40] = (float)hi + 0.5f; // under the scale -1
    T_OK(coli__mat_pack(&args));
    coli__mat_row(&m, 0, back);
    for (uint32_t i = 0; i < N_IN; i++) T_TRUE(i / 32 == 1 || back[i] == w[i]);
    T_FLE(fabs((double)back[40] - (double)w[40]), 1.0);
    coli__free_aligned(data);
}

T_TEST(grids_are_kept)
{
    T_BEGIN;
    grids_in("int4-g32-f16", -8, 7);
    grids_in("int4-g32-f32", -8, 7);
    grids_in("int8-g32-f16", -128, 127);
    grids_in("int8-g32-f32", -128, 127);
}

/* ---- packing is never worse than plain rounding ---------------------------------------------- */

static double squared_error(const float *a, const double *b, uint32_t n)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sum;
}

/* Round n weights to nearest with the scale amax/7 or amax/127 in its stored form. */
static void plain_rounding(coli__wfmt fmt, int32_t scale_exp, const float *w, uint32_t n,
                           double *out)
{
    double amax = 0.0;
    for (uint32_t i = 0; i < n; i++) amax = fmax(amax, fabs((double)w[i]));
    double scale = amax / (fmt.type == COLI_W_I4 ? 7.0 : 127.0);
    if (fmt.scale_f16) { // eleven bits
        int e;
        scale = frexp(ldexp(scale, -scale_exp), &e);
        scale = ldexp(nearbyint(ldexp(scale, 11)), e - 11 + scale_exp);
    }
    scale = (double)(float)scale;
    for (uint32_t i = 0; i < n; i++)
        out[i] = scale > 0.0 ? nearbyint((double)w[i] / scale) * scale : 0.0;
}

T_PROP(packing_beats_plain_rounding, 300)
{
    enum { N_ROW = 16, N_MAX = 200 };
    const coli__wfmt fmt = format(names[2 + t_below(&rng, 12)]);
    const uint32_t n_row = t_range(&rng, 1, N_ROW), n_in = t_range(&rng, 1, N_MAX);
    const size_t ld = n_in + t_below(&rng, 3);
    static float w[N_ROW * (N_MAX + 3)];
    const float size = ldexpf(1.0f, (int)t_below(&rng, 20) - 14);
    const uint32_t style = t_below(&rng, 4);
    float amax_max = 0.0f;
    for (size_t i = 0; i < n_row * ld; i++) {
        w[i] = t_normal(&rng) * size;
        if (style == 1) w[i] = w[i] * w[i] * w[i] / (size * size); // heavy tails
        if (style == 2) w[i] = t_below(&rng, 2) ? size : -size;
        if (style == 3 && t_below(&rng, 4)) w[i] = 0.0f;
        amax_max = fmaxf(amax_max, fabsf(w[i]));
    }
    int32_t scale_exp;
    T_TRUE(coli__scale_exp_for(fmt, amax_max, amax_max, &scale_exp));
    uint64_t n_bytes, panel_bytes;
    T_TRUE(coli__mat_bytes(fmt, n_row, n_in, &n_bytes, &panel_bytes));
    uint8_t *a = coli__alloc64(panel_bytes), *b = coli__alloc64(panel_bytes);
    memset(a, 0x55, panel_bytes);
    T_OK(coli__mat_pack_panel(fmt, w, n_row, n_in, ld, scale_exp, a));
    T_OK(coli__mat_pack_panel(fmt, w, n_row, n_in, ld, scale_exp, b));
    T_MEM(a, b, panel_bytes); // every byte is written, and always the same

    const coli__mat m = {a, n_row, n_in, fmt, scale_exp};
    T_OK(coli__mat_check(&m));
    const uint32_t span = fmt.per_row ? n_in : fmt.group;
    for (uint32_t r = 0; r < n_row; r++) {
        float row[N_MAX];
        double plain[N_MAX];
        coli__mat_row(&m, r, row);
        for (uint32_t c = 0; c < n_in; c += span) {
            const uint32_t n = n_in - c < span ? n_in - c : span;
            const float *wr = w + r * ld + c;
            double reference[N_MAX];
            for (uint32_t i = 0; i < n; i++) reference[i] = (double)row[c + i];
            plain_rounding(fmt, scale_exp, wr, n, plain);
            /* coli__mat_row rounds code * scale, which moves each error e by 2^-24 |w|, and so the
             * sum of squares by at most 2^-23 |e| |w| + 2^-48 |w|^2 (Euclidean lengths). */
            const double zero[N_MAX] = {0}, length2 = squared_error(wr, zero, n);
            const double e2 = squared_error(wr, plain, n);
            T_FLE(squared_error(wr, reference, n),
                  e2 + 0x1p-23 * sqrt(e2 * length2) + 0x1p-48 * length2);
        }
    }
    coli__free_aligned(a);
    coli__free_aligned(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_go_both_ways),
        cmocka_unit_test(sizes),
        cmocka_unit_test(layout_int4),
        cmocka_unit_test(layout_int8_row),
        cmocka_unit_test(layout_float),
        cmocka_unit_test(scales_round_half_to_even),
        cmocka_unit_test(packing_refuses),
        cmocka_unit_test(powers_of_two_for_scales),
        cmocka_unit_test(checking_finds),
        cmocka_unit_test(grids_are_kept),
        cmocka_unit_test(packing_beats_plain_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
