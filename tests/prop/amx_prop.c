/* amx_prop.c - kernels_amx.c, its instructions emulated, gives the bits of the scalar table, over random
 * shapes, formats and values; and the race that decides whether it is used.  (prop.kernels_prop checks the
 * scalar table, and the real instructions where the processor has them.) */
#include "amx_emulate.h"

#include "libcoli/src/base/alloc.h"
#include "libcoli/src/base/threads.h"
#include "libcoli/src/math/kernels_amx.c" // NOLINT: the file itself is under test
#include "libcoli/src/math/kernels_race.h"

static const coli__kernels *scalar;

static int find_scalar(void **state)
{
    (void)state;
    amx_few_rows = NULL;
    if (coli__kernels_get("scalar", &scalar) != COLI_OK) return 1;
    amx_few_rows = scalar;
    return 0;
}

/* ---- a product ------------------------------------------------------------------------------ */

typedef struct product {
    coli__mat m;
    coli__qrows xq;
    uint32_t n_tok, index[80];
    coli__matmul_args args;
    float *y, *expected;
    size_t n_y;
} product;

static coli__wfmt any_quantised(t_rng *rng)
{
    coli__wfmt fmt;
    do {
        fmt = (coli__wfmt){.type = t_below(rng, 2) ? COLI_W_I4 : COLI_W_I8,
                           .group = t_below(rng, 2) ? 64 : 32,
                           .per_row = t_below(rng, 3) == 0,
                           .scale_f16 = t_below(rng, 2)};
    } while (!coli__wfmt_valid(fmt));
    return fmt;
}

/* Any bytes, of codes and of scales (whose values need not be valid, as long as they are finite). */
static void any_weights(t_rng *rng, coli__mat *m)
{
    uint64_t n_bytes;
    T_TRUE(coli__mat_bytes(m->fmt, m->n_out, m->n_in, &n_bytes, NULL));
    uint8_t *data = coli__alloc64(n_bytes);
    const uint32_t style = t_below(rng, 4);
    for (uint64_t i = 0; i < n_bytes; i++)
        data[i] = style == 0 ? 0x00 : style == 1 ? 0xFF : (uint8_t)t_u64(rng);
    const coli__layout l = coli__layout_of(m->fmt, m->n_in);
    for (uint32_t p = 0; p * 16 < m->n_out; p++)
        for (uint64_t g = 0; g < (m->fmt.per_row ? 1 : l.n_group); g++) {
            uint8_t *at = data + p * l.panel_bytes + g * l.group_bytes;
            for (uint32_t r = 0; r < 16; r++) {
                const uint32_t sign = t_below(rng, 2) << 15; // also of zero
                const uint32_t size = t_below(rng, 8) ? 0x0400 + t_below(rng, 0x7800) : 0;
                const uint16_t h = (uint16_t)(sign | size);
                const float f = coli_f16_to_f32(h) * 0x1p-8f;
                memcpy(at + (m->fmt.scale_f16 ? 2 : 4) * r, m->fmt.scale_f16 ? (void *)&h : &f,
                       m->fmt.scale_f16 ? 2 : 4);
            }
        }
    m->scale_exp = m->fmt.scale_f16 ? (int32_t)t_below(rng, 41) - 30 : 0;
    m->data = data;
}

static void any_rows(t_rng *rng, product *p)
{
    const uint32_t n_group = (p->m.n_in + p->m.fmt.group - 1) / p->m.fmt.group;
    const size_t n = (size_t)p->n_tok * n_group, n_q = n * p->m.fmt.group;
    p->xq = (coli__qrows){coli__calloc(n_q, 1), coli__calloc(n, sizeof(float)),
                          coli__calloc(n, sizeof(int32_t)), p->m.fmt.group, n_group};
    const bool extreme = t_below(rng, 4) == 0;
    for (size_t i = 0; i < n_q; i++) {
        const int32_t q =
            extreme ? (t_below(rng, 2) ? 127 : -127) : (int32_t)t_below(rng, 255) - 127;
        p->xq.q[i] = (int8_t)q;
        p->xq.sum[i / p->m.fmt.group] += q;
    }
    for (size_t i = 0; i < n; i++)
        p->xq.d[i] = t_below(rng, 10) ? (float)(t_unit(rng) + 0.01) * 0x1p-6f : 0.0f;
}

static void product_create(t_rng *rng, product *p, coli__wfmt fmt, uint32_t n_out, uint32_t n_in,
                           uint32_t n_row)
{
    memset(p, 0, sizeof *p);
    p->m = (coli__mat){.fmt = fmt, .n_out = n_out, .n_in = n_in};
    any_weights(rng, &p->m);
    p->n_tok = t_range(rng, 1, n_row + 8);
    any_rows(rng, p);
    const bool gather = n_row > p->n_tok || t_below(rng, 2);
    for (uint32_t i = 0; i < n_row; i++) p->index[i] = t_below(rng, p->n_tok);
    const uint32_t n_panel = (n_out + 15) / 16, begin = t_below(rng, n_panel);
    const uint32_t end = t_range(rng, begin, n_panel), first = 16 * begin;
    const uint32_t last = 16 * end < n_out ? 16 * end : n_out;
    const size_t ldy = (last > first ? last - first : 0) + t_below(rng, 3);
    p->n_y = ldy * n_row + 16;
    p->y = coli__calloc(p->n_y, sizeof *p->y);
    p->expected = coli__calloc(p->n_y, sizeof *p->y);
    for (size_t i = 0; i < p->n_y; i++) p->y[i] = p->expected[i] = 12345.0f; // stays where it is
    p->args = (coli__matmul_args){.w = &p->m,
                                  .xq = &p->xq,
                                  .index = gather ? p->index : NULL,
                                  .n_row = n_row,
                                  .panel_begin = begin,
                                  .panel_end = end,
                                  .next = t_below(rng, 2) ? p->m.data : NULL,
                                  .y = p->y,
                                  .ldy = ldy};
}

static void product_check(product *p)
{
    coli__matmul_args args = p->args;
    args.y = p->expected;
    scalar->matmul(&args);
    emulated_matmul(&p->args);
    T_TRUE(!amx.is_configured); // released
    char name[32];
    coli__wfmt_name(p->m.fmt, name);
    for (size_t i = 0; i < p->n_y; i++)
        if (coli_bits(p->y[i]) != coli_bits(p->expected[i])) {
            print_error("%s (%u, %u), %u rows: y[%zu]: %a against %a\n", name, p->m.n_out,
                        p->m.n_in, p->args.n_row, i, (double)p->y[i], (double)p->expected[i]);
            T_WHERE_;
            _fail(__FILE__, __LINE__);
        }
}

static void product_destroy(product *p)
{
    coli__free_aligned((void *)(uintptr_t)p->m.data);
    coli__free(p->xq.q);
    coli__free(p->xq.d);
    coli__free(p->xq.sum);
    coli__free(p->y);
    coli__free(p->expected);
}

T_PROP(matmul_is_exact, 150)
{
    product p;
    const coli__wfmt fmt = any_quantised(&rng);
    const uint32_t n_out = t_range(&rng, 1, 150);
    const uint32_t n_in = t_below(&rng, 4) ? t_range(&rng, 1, 700) : t_range(&rng, 700, 2300);
    product_create(&rng, &p, fmt, n_out, n_in, t_below(&rng, 80));
    product_check(&p);
    product_destroy(&p);
}

/* ---- which rows tiles multiply ---------------------------------------------------------------- */

T_TEST(few_rows_are_left_to_others)
{
    T_BEGIN;
    t_rng rng = {7};
    const coli__wfmt fmt = {.type = COLI_W_I4, .group = 64, .scale_f16 = true};
    for (uint32_t n_row = 0; n_row < 80; n_row++) {
        product p;
        product_create(&rng, &p, fmt, 16, 128, n_row);
        const uint32_t rest = n_row % 32, n_few = rest < COLI__AMX_MIN_ROWS ? rest : 0;
        p.args.panel_begin = 0;
        p.args.panel_end = p.args.ldy >= 16 ? 1 : 0;
        amx_n_few = amx.n_config = amx.n_product = 0;
        product_check(&p);
        T_EQ(amx_n_few, n_few);
        T_EQ(amx.n_config, n_row > n_few ? 1 : 0); // once a call
        const uint32_t n_tile = n_row / 32 * 2 + (n_few ? 0 : (rest + 15) / 16);
        T_EQ(amx.n_product, p.args.panel_end * n_tile * 2); // two groups
        product_destroy(&p);
    }
}

/* Floats, and rows longer than the counters count. */
T_TEST(what_tiles_cannot_do_is_left_to_others)
{
    T_BEGIN;
    t_rng rng = {8};
    static const struct {
        coli__wfmt fmt;
        uint32_t n_in;
        bool tiles;
    } cases[] = {{{.type = COLI_W_I8, .group = 32, .scale_f16 = true}, 32 * 2045, true},
                 {{.type = COLI_W_I8, .group = 32, .scale_f16 = true}, 32 * 2046, true},
                 {{.type = COLI_W_I8, .group = 32, .scale_f16 = true}, 32 * 2046 + 1, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        product p;
        product_create(&rng, &p, cases[i].fmt, 1, cases[i].n_in, 9);
        p.args.panel_end = 1;
        p.args.ldy = 1;
        amx.n_product = 0;
        product_check(&p);
        T_EQ(amx.n_product > 0, cases[i].tiles);
        product_destroy(&p);
    }
    float w[16 * 16] = {1}, x[8 * 16] = {2}, y[8] = {0};
    const coli__mat m = {.data = (uint8_t *)w, .n_out = 1, .n_in = 16, .fmt = {.type = COLI_W_F32}};
    amx.n_config = 0;
    emulated_matmul(&(coli__matmul_args){
        .w = &m, .xf = x, .ldx = 16, .n_row = 8, .panel_end = 1, .y = y, .ldy = 1});
    T_EQ(amx.n_config, 0);
    T_TRUE(y[0] == 2.0f);
}

/* ---- peak and race ---------------------------------------------------------------------------- */

T_TEST(peak_counts_its_products)
{
    T_BEGIN;
    uint64_t sink = 0;
    amx.n_product = 0;
    T_EQ(emulated_peak(3, &sink), amx.n_product * 16 * 16 * 64);
    T_EQ(amx.n_product, 12);
    T_EQ(sink, 3 * (3 * 3 + 2 * 2 + 1));
    T_TRUE(!amx.is_configured);
}

/* Tables whose time is known. */
static void wait_for(uint64_t ns)
{
    const uint64_t start_ns = coli__clock_ns();
    while (coli__clock_ns() - start_ns < ns) continue;
}
static uint32_t n_raced_row;
static void quick(const coli__matmul_args *a)
{
    n_raced_row = a->n_row;
    wait_for(20000);
}
static void slow(const coli__matmul_args *a)
{
    (void)a;
    wait_for(40000);
}

T_TEST(race_is_won_by_the_faster_one)
{
    T_BEGIN;
    const coli__kernels a = {.name = "quick", .matmul = quick},
                        b = {.name = "slow", .matmul = slow};
    T_TRUE(coli__kernels_race(&a, &b, 8));
    T_EQ(n_raced_row, 8);
    T_TRUE(!coli__kernels_race(&b, &a, 8));
    T_TRUE(!coli__kernels_race(&a, &a, 8)); // a tie is no reason
    T_TRUE(!coli__kernels_race(&a, &b, 65));
    coli__kernels real = *scalar; // and it runs a real one
    real.matmul = scalar->matmul;
    T_TRUE(!coli__kernels_race(&real, &a, 8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matmul_is_exact),
        cmocka_unit_test(few_rows_are_left_to_others),
        cmocka_unit_test(what_tiles_cannot_do_is_left_to_others),
        cmocka_unit_test(peak_counts_its_products),
        cmocka_unit_test(race_is_won_by_the_faster_one),
    };
    return cmocka_run_group_tests(tests, find_scalar, NULL);
}
