/* reference_prop.c - what backends are compared with (backend/reference.c) gives the bits of the scalar
 * kernels, over all formats and random shapes.  The two share coli/exact.h and nothing else: not the
 * reading of a panel, not the unpacking of codes, not the expert. */
#include "t.h"

#include "coli/exact.h"
#include "libcoli/src/backend/reference.h"
#include "libcoli/src/base/alloc.h"
#include "libcoli/src/math/kernels.h"

static const coli__kernels *scalar;

static int find_scalar(void **state)
{
    (void)state;
    return coli__kernels_get("scalar", &scalar) != COLI_OK;
}

/* The library's matrices have a power of two only beside f16 scales; a backend takes it with any. */
static void like_the_library(coli_bk_source *s)
{
    for (uint32_t i = 0; i < s->n_matrix; i++)
        if (coli_bk_layout_of(s->matrix[i].format, 1).scale_bytes == 4) s->matrix[i].scale_exp = 0;
}

/* The kernels' view of a matrix in a block. */
static coli__mat as_mat(const coli_bk_source *s, uint32_t i)
{
    const coli_bk_matrix *m = &s->matrix[i];
    const coli_bk_layout l = coli_bk_layout_of(m->format, m->n_in);
    return (coli__mat){.data = (const uint8_t *)s->data + m->offset,
                       .n_out = m->n_out,
                       .n_in = m->n_in,
                       .fmt = {.type = l.bits == 8 ? COLI_W_I8 : COLI_W_I4,
                               .group = l.group,
                               .per_row = l.per_row,
                               .scale_f16 = l.scale_bytes == 2},
                       .scale_exp = m->scale_exp};
}

/* One quantised row through a matrix by the kernels. */
static void by_kernels(const coli__mat *w, int8_t *q, float *d, float *y)
{
    const uint32_t n_group = (w->n_in + w->fmt.group - 1) / w->fmt.group;
    int32_t *sum = coli__calloc(n_group, sizeof *sum);
    for (size_t i = 0; i < (size_t)n_group * w->fmt.group; i++) sum[i / w->fmt.group] += q[i];
    const coli__qrows rows = {
        .q = q, .d = d, .sum = sum, .group = w->fmt.group, .n_group = n_group};
    scalar->matmul(&(coli__matmul_args){.w = w,
                                        .xq = &rows,
                                        .n_row = 1,
                                        .panel_end = (w->n_out + 15) / 16,
                                        .y = y,
                                        .ldy = w->n_out});
    coli__free(sum);
}

static void equal(const float *got, const float *expected, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) T_EQ(coli_bits(got[i]), coli_bits(expected[i]));
}

T_PROP(products_are_those_of_the_kernels, 600)
{
    const uint32_t format = (uint32_t)(rng.state % COLI_BK_N_FORMAT);
    const uint32_t n_out = t_range(&rng, 1, 40),
                   n_in = t_range(&rng, 1, t_below(&rng, 4) ? 200 : 1500);
    coli_bk_source s;
    uint64_t seed = t_u64(&rng);
    T_OK(coli__ref_matrix_block(&seed, format, n_out, n_in, &s));
    like_the_library(&s);
    const coli__mat w = as_mat(&s, 0);
    uint64_t n_bytes, panel_bytes;
    T_TRUE(coli__mat_bytes(w.fmt, n_out, n_in, &n_bytes, &panel_bytes));
    T_EQ(n_bytes, s.n_bytes); // the public layout is the library's
    T_EQ(panel_bytes, coli_bk_layout_of(format, n_in).panel_bytes);
    T_OK(coli__mat_check(&w));
    const size_t padded = (n_in + 63) / 64 * 64;
    int8_t *q = coli__calloc(padded, 1);
    float *d = coli__calloc(padded / 32, sizeof *d);
    float *expected = coli__calloc(n_out, sizeof *expected), *y = coli__calloc(n_out, sizeof *y);
    coli__ref_rows(&seed, 1, n_in, w.fmt.group, q, d);
    by_kernels(&w, q, d, expected);
    coli__ref_product(&s.matrix[0], s.data, q, d, y);
    equal(y, expected, n_out);
    coli__free(q);
    coli__free(d);
    coli__free(expected);
    coli__free(y);
    coli__free_aligned((void *)(uintptr_t)s.data);
}

/* An expert by the kernels; false when a row is flagged. */
static bool expert_by_kernels(const coli_bk_source *s, int8_t *q, float *d, float *y)
{
    const coli__mat gate = as_mat(s, 0), up = as_mat(s, 1), down = as_mat(s, 2);
    const uint32_t f = gate.n_out, n_group = (f + down.fmt.group - 1) / down.fmt.group;
    float *g = coli__calloc(f, sizeof *g), *u = coli__calloc(f, sizeof *u);
    int8_t *hq = coli__calloc((size_t)n_group * down.fmt.group, 1);
    float *hd = coli__calloc(n_group, sizeof *hd);
    int32_t *sum = coli__calloc(n_group, sizeof *sum);
    by_kernels(&gate, q, d, g);
    by_kernels(&up, q, d, u);
    scalar->silu_mul(g, u, f, g);
    const bool in_range = scalar->quantise(g, f, down.fmt.group, hq, hd, sum);
    by_kernels(&down, hq, hd, y);
    coli__free(g);
    coli__free(u);
    coli__free(hq);
    coli__free(hd);
    coli__free(sum);
    return in_range;
}

static uint32_t n_flagged;

T_PROP(experts_are_those_of_the_kernels, 400)
{
    const uint32_t first = (uint32_t)(rng.state % COLI_BK_N_FORMAT);
    uint32_t second; // of the same group
    do second = t_below(&rng, COLI_BK_N_FORMAT);
    while (coli_bk_layout_of(second, 1).group != coli_bk_layout_of(first, 1).group);
    const uint32_t formats[3] = {first, second, t_below(&rng, COLI_BK_N_FORMAT)};
    const uint32_t width = t_range(&rng, 1, 150), inner = t_range(&rng, 1, 150);
    coli_bk_source s;
    uint64_t seed = t_u64(&rng);
    T_OK(coli__ref_expert_block(&seed, formats, width, inner, &s));
    like_the_library(&s);
    const uint32_t group = coli_bk_layout_of(first, 1).group, n_group = (width + group - 1) / group;
    int8_t *q = coli__calloc((size_t)n_group * group, 1);
    float *d = coli__calloc(n_group, sizeof *d);
    float *expected = coli__calloc(width, sizeof *expected), *y = coli__calloc(width, sizeof *y);
    coli__ref_rows(&seed, 1, width, group, q, d);
    const bool is_large = t_below(&rng, 4) == 0; // gate * up passes 2^40
    for (uint32_t g = 0; g < n_group && is_large; g++) d[g] *= 0x1p26f;
    bool in_range;
    T_OK(coli__ref_expert(&s, q, d, y, &in_range));
    T_EQ(in_range, expert_by_kernels(&s, q, d, expected));
    if (in_range) equal(y, expected, width);
    n_flagged += !in_range;
    coli__free(q);
    coli__free(d);
    coli__free(expected);
    coli__free(y);
    coli__free_aligned((void *)(uintptr_t)s.data);
}

T_TEST(some_experts_were_flagged)
{
    T_BEGIN;
    T_GE(n_flagged, 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_those_of_the_kernels),
        cmocka_unit_test(experts_are_those_of_the_kernels),
        cmocka_unit_test(some_experts_were_flagged),
    };
    return cmocka_run_group_tests(tests, find_scalar, NULL);
}
