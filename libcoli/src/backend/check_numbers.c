/* check_numbers.c - is every bit that of coli/exact.h?
 *
 * Products are tried alone where the plugin has matmul, because their faults are the easiest to read,
 * and always inside experts.  A tree and a running sum differ from four groups on (K = 256 and more);
 * the width 320 has five, so that the tree has a tail. */
#include <string.h>

#include "check.h"
#include "coli/exact.h"

static void try_product(coli__ck *ck, uint32_t format, uint32_t n_out, uint32_t n_in,
                        uint32_t n_row)
{
    if (!ck->api.matmul) return;
    coli__ck_tensor *w = coli__ck_upload(ck, coli__ck_matrix_block(ck, format, n_out, n_in));
    coli__ck_product_run(
        ck, coli__ck_make_product(ck, w, coli__ck_random_rows(ck, n_row, &w->now.matrix[0])));
    coli__ck_free(ck, w);
}

void coli__ck_shapes(coli__ck *ck)
{
    static const uint32_t widths[] = {64, 128, 192, 256, 320, 2048};
    static const uint32_t heights[] = {16, 1, 15, 17, 48, 33};
    static const uint32_t experts[][2] = {{64, 64}, {128, 192}, {320, 128}, {128, 320}, {2048, 64}};
    const uint32_t n_format = coli__ck_n_format(ck);
    for (uint32_t i = 0; i < n_format; i++)
        for (uint32_t k = 0; k < sizeof widths / sizeof *widths; k++)
            try_product(ck, coli__ck_format(ck, i), heights[k], widths[k], 3);
    for (uint32_t i = 0; i < n_format; i++)
        for (uint32_t k = 0; k < sizeof experts / sizeof *experts; k++)
            // the format of down goes through all of them while that of gate and up stays
            coli__ck_try_expert(ck, coli__ck_format(ck, i), coli__ck_format(ck, i + k),
                                experts[k][0], experts[k][1], 3);
}

void coli__ck_ragged(coli__ck *ck)
{
    // the first tells the last column from the columns behind the last whole group
    static const uint32_t widths[] = {100, 31, 33, 63, 65, 1, 257};
    static const uint32_t experts[][2] = {{100, 257}, {65, 64}, {64, 65}, {1, 1}, {63, 31}};
    const uint32_t n_format = coli__ck_n_format(ck);
    for (uint32_t i = 0; i < n_format; i++)
        for (uint32_t k = 0; k < sizeof widths / sizeof *widths; k++)
            try_product(ck, coli__ck_format(ck, i), 17, widths[k], 3);
    for (uint32_t i = 0; i < n_format; i++)
        for (uint32_t k = 0; k < sizeof experts / sizeof *experts; k++)
            coli__ck_try_expert(ck, coli__ck_format(ck, i), coli__ck_format(ck, i + k),
                                experts[k][0], experts[k][1], 3);
}

/* ---- extremes ------------------------------------------------------------------------------------ */

/* All weights of a matrix one code, all scales one number. */
static void fill(const coli_bk_source *s, uint32_t matrix, int32_t code, float scale)
{
    const coli_bk_matrix *m = &s->matrix[matrix];
    for (uint32_t o = 0; o < m->n_out; o++) {
        coli__ck_put_scale(s, matrix, o, ~0u, scale);
        for (uint32_t i = 0; i < m->n_in; i++) coli__ck_put_code(s, matrix, o, i, code);
    }
}

enum { N_EXTREME_ROW = 6 };

/* Rows at the ends of what activations can be: nothing, one spike, all -127 or 127, the smallest and
 * the largest d.  With the smallest scales, 2^-40, products stay above 2^-102, where sums have no
 * denormals: there a device may flush them. */
static void extreme_rows(coli__ck_rows *x, float smallest, float largest)
{
    const size_t width = (size_t)x->n_group * x->group;
    for (uint32_t i = 0; i < N_EXTREME_ROW; i++) {
        int8_t *q = x->q + i * width;
        float *d = x->d + (size_t)i * x->n_group;
        for (uint32_t c = 0; c < x->n_in; c++) {
            if (i == 0 || i == 1) q[c] = (int8_t)(i == 1 && c == x->n_in - 1 ? 127 : 0);
            if (i == 2) q[c] = -127;
            if (i == 3) q[c] = c % 2 ? 127 : -127;
        }
        for (uint32_t g = 0; g < x->n_group; g++) {
            if (i == 0) d[g] = 0.0f;
            if (i == 4) d[g] = smallest;
            if (i == 5) d[g] = largest;
        }
    }
}

static void extreme_products(coli__ck *ck, uint32_t format)
{
    static const int32_t exps[] = {-40, 10, 0};
    const int32_t half = coli_bk_layout_of(format, 1).bits == 8 ? 128 : 8;
    const int32_t codes[] = {-half, half - 1, 0};
    for (uint32_t e = 0; e < 3; e++)
        for (uint32_t c = 0; c < 3; c++) {
            coli_bk_source s = coli__ck_matrix_block(ck, format, 17, 320);
            fill(&s, 0, codes[c], 1.0f);
            // rows with a scale of 0, whose products are +0, and with a negative one, whose codes
            // of 0 make products of -0 and a sum of +0
            coli__ck_put_scale(&s, 0, 5, ~0u, 0.0f);
            coli__ck_put_scale(&s, 0, 6, ~0u, -1.0f);
            s.matrix[0].scale_exp = exps[e];
            coli__ck_tensor *w = coli__ck_upload(ck, s);
            coli__ck_rows *x = coli__ck_random_rows(ck, N_EXTREME_ROW, &s.matrix[0]);
            extreme_rows(x, e == 0 ? 0x1p-56f : 0x1p-63f, 0x1p33f);
            coli__ck_product_run(ck, coli__ck_make_product(ck, w, x));
            coli__ck_free(ck, w);
        }
}

/* Gate, up and down in turn with extreme codes; some rows leave the range and must be flagged. */
static void extreme_experts(coli__ck *ck, uint32_t format)
{
    static const int32_t exps[] = {-20, 10, 0};
    const int32_t half = coli_bk_layout_of(format, 1).bits == 8 ? 128 : 8;
    for (uint32_t matrix = 0; matrix < 3; matrix++)
        for (uint32_t e = 0; e < 3; e++) {
            coli_bk_source s = coli__ck_expert_block(ck, format, format, 128, 64);
            fill(&s, matrix, e % 2 ? -half : half - 1, 1.0f);
            coli__ck_put_scale(&s, matrix, 3, ~0u, 0.0f);
            coli__ck_put_scale(&s, matrix, 4, ~0u, -1.0f);
            s.matrix[matrix].scale_exp = exps[e];
            coli__ck_tensor *t = coli__ck_upload(ck, s);
            coli__ck_rows *x = coli__ck_random_rows(ck, N_EXTREME_ROW, &s.matrix[0]);
            extreme_rows(x, 0x1p-40f, 0x1p33f);
            const uint32_t n_row = 12;
            coli__ck_run(ck, coli__ck_make_group(ck, &t, 1, &n_row, x));
            coli__ck_free(ck, t);
        }
}

void coli__ck_extremes(coli__ck *ck)
{
    for (uint32_t i = 0; i < coli__ck_n_format(ck); i++) {
        if (ck->api.matmul) extreme_products(ck, coli__ck_format(ck, i));
        extreme_experts(ck, coli__ck_format(ck, i));
    }
}

/* ---- flags --------------------------------------------------------------------------------------- */

void coli__ck_flags(coli__ck *ck)
{
    // the scales of a few rows are raised so far that gate * up passes 2^40 for them alone
    for (uint32_t i = 0; i < coli__ck_n_format(ck); i++) {
        const uint32_t format = coli__ck_format(ck, i), n_row = 24;
        coli__ck_tensor *t = coli__ck_expert(ck, format, format, 128, 192);
        coli__ck_rows *x = coli__ck_random_rows(ck, 8, &t->now.matrix[0]);
        static const float raised[8] = {1, 0x1p30f, 1, 1, 0x1p24f, 1, 0x1p32f, 1};
        for (uint32_t r = 0; r < 8; r++)
            for (uint32_t g = 0; g < x->n_group; g++) x->d[r * x->n_group + g] *= raised[r];
        coli__ck_group *group = coli__ck_make_group(ck, &t, 1, &n_row, x);
        for (uint32_t p = 0; p < n_row; p++) ((uint32_t *)(uintptr_t)group->args.row)[p] = p % 8;
        coli__ck_expected(ck, group);
        coli__ck_run(ck, group);
        coli__ck_free(ck, t);
    }
}

/* ---- rounding of inner activations ---------------------------------------------------------------- */

/* Choose what `h` is, to the bit.  Columns 0 and 64 of x are 1, the others 0.  Gates read the first:
 * every gate is 128 * d, and silu of that 128: sigmoid(128) is that of 80, 1 + e^-80 rounds to 1,
 * coli_recip(1) is 1 - 2^-24, and d = 1 + 2^-23 makes up for it.  Up reads the second, whose d is 1: its
 * code is the sign, its scale |h| / 128. */
typedef struct inner {
    float h[64];
    int32_t exp; // all of them times 2^exp
} inner;

/* Ties: the largest is 127, so d is 1, and the others lie half-way between integers. */
static void ties(coli__ck *ck, inner *in)
{
    for (uint32_t i = 0; i < 64; i++) {
        const uint64_t r = coli__random(&ck->seed);
        in->h[i] = ((float)(r % 126) + 0.5f) * (r >> 32 & 1 ? 1.0f : -1.0f);
    }
    in->h[coli__random(&ck->seed) % 64] = 127.0f;
    in->exp = 0;
}

/* A group whose largest number is `largest` * 2^-40: from 2^-56 on it is quantised, below it is zero. */
static void tiny(float largest, inner *in)
{
    for (uint32_t i = 0; i < 64; i++) in->h[i] = i % 3 ? -0x1p-17f : 0x1p-17f;
    in->h[41] = -largest;
    in->exp = -40;
}

static int32_t rounded(float x, float by)
{
    return (int32_t)(coli_bits(x * by + 0x1.8p23f) - 0x4B400000u);
}

/* Numbers for which a true quotient by d, or a product with a true 1/d, rounds to another integer than
 * the product with coli_recip(d).  They lie next to the half-way points; not every amax has some. */
static void near_ties(coli__ck *ck, inner *in)
{
    for (;;) {
        const float amax = 64.0f + (float)(coli__random(&ck->seed) >> 40) * 0x1p-24f * 64.0f;
        const float d = amax * (1.0f / 127.0f), recip = coli_recip(d);
        uint32_t n = 0;
        for (uint32_t k = 0; k < 126 && n < 63; k++)
            for (int32_t ulp = -3; ulp <= 3 && n < 63; ulp++) {
                const float middle = ((float)k + 0.5f) * d;
                const float x = coli_from_bits(coli_bits(middle) + (uint32_t)ulp);
                const int32_t q = rounded(x, recip);
                const int32_t divided = (int32_t)(coli_bits(x / d + 0x1.8p23f) - 0x4B400000u);
                if (q != divided || q != rounded(x, 1.0f / d) || q != rounded(x, 127.0f / amax))
                    in->h[n++] = x;
            }
        if (n < 8) continue;
        for (uint32_t i = n; i < 63; i++) in->h[i] = in->h[i % n];
        in->h[63] = amax;
        in->exp = 0;
        return;
    }
}

/* An expert whose inner activations are in->h, with a random W_down. */
static coli_bk_source expert_with(coli__ck *ck, uint32_t format, const inner *in)
{
    coli_bk_source s = coli__ck_expert_block(ck, format, format, 128, 64);
    fill(&s, 0, 0, 1.0f);
    fill(&s, 1, 0, 1.0f);
    s.matrix[0].scale_exp = 7;
    s.matrix[1].scale_exp = in->exp;
    for (uint32_t i = 0; i < 64; i++) {
        coli__ck_put_code(&s, 0, i, 0, 1);
        coli__ck_put_code(&s, 1, i, 64, in->h[i] < 0 ? -1 : 1);
        const float magnitude = in->h[i] < 0 ? -in->h[i] : in->h[i];
        coli__ck_put_scale(&s, 1, i, ~0u, magnitude * 0x1p-7f);
    }
    return s;
}

static void try_inner(coli__ck *ck, uint32_t format, const inner *in)
{
    coli__ck_tensor *t = coli__ck_upload(ck, expert_with(ck, format, in));
    coli__ck_rows *x = coli__ck_random_rows(ck, 1, &t->now.matrix[0]);
    memset(x->q, 0, (size_t)x->n_group * x->group);
    x->q[0] = x->q[64] = 1;
    for (uint32_t g = 0; g < x->n_group; g++) x->d[g] = 1.0f;
    x->d[0] = 0x1.000002p0f;
    const uint32_t n_row = 1;
    coli__ck_run(ck, coli__ck_make_group(ck, &t, 1, &n_row, x));
    coli__ck_free(ck, t);
}

void coli__ck_rounding(coli__ck *ck)
{
    inner in;
    for (uint32_t i = 0; i < coli__ck_n_format(ck); i++) {
        const uint32_t format = coli__ck_format(ck, i);
        for (uint32_t k = 0; k < 4; k++) {
            ties(ck, &in); // multiples of 1/256: an f16 scale holds them
            try_inner(ck, format, &in);
            near_ties(ck, &in);
            if (coli_bk_layout_of(format, 1).scale_bytes == 4) try_inner(ck, format, &in);
        }
        static const float edge[] = {0x1p-16f, 0x1p-17f, 0x1.002p-16f, 0x1.ffcp-17f};
        for (uint32_t k = 0; k < sizeof edge / sizeof *edge; k++) {
            tiny(edge[k], &in);
            try_inner(ck, format, &in);
        }
        tiny(coli_from_bits(coli_bits(0x1p-16f) - 1), &in); // the last one that is zero
        if (coli_bk_layout_of(format, 1).scale_bytes == 4) try_inner(ck, format, &in);
    }
}

/* ---- again, and many ------------------------------------------------------------------------------ */

void coli__ck_repeated(coli__ck *ck)
{
    coli__ck_tensor *t[3];
    static const uint32_t n_row[3] = {3, 1, 5};
    for (uint32_t i = 0; i < 3; i++)
        t[i] = coli__ck_expert(ck, coli__ck_format(ck, 0), coli__ck_format(ck, 0), 320, 128);
    const coli__ck_group *g =
        coli__ck_make_group(ck, t, 3, n_row, coli__ck_random_rows(ck, 4, &t[0]->now.matrix[0]));
    for (uint32_t i = 0; i < 100; i++) coli__ck_run(ck, g);
    for (uint32_t i = 0; i < 3; i++) coli__ck_free(ck, t[i]);
}

void coli__ck_matmul_rows(coli__ck *ck)
{
    static const uint32_t n_row[] = {0, 1, 2, 7, 8, 9, 256};
    if (!ck->api.matmul) {
        coli__ck_skip(ck, "the plugin has no matmul");
        return;
    }
    for (uint32_t i = 0; i < coli__ck_n_format(ck); i++)
        for (uint32_t k = 0; k < sizeof n_row / sizeof *n_row; k++)
            try_product(ck, coli__ck_format(ck, i), 40, 192, n_row[k]);
}

void coli__ck_matmul_batch(coli__ck *ck)
{
    enum { N = 5 };
    static const uint32_t n_row[N] = {1, 0, 3, 8, 2}, n_out[N] = {16, 5, 33, 16, 64};
    if (!ck->api.matmul_batch || !ck->api.matmul) {
        coli__ck_skip(ck, "the plugin has no matmul_batch");
        return;
    }
    coli__ck_tensor *w[N];
    coli__ck_product *p[N];
    const coli_bk_matmul *args[N];
    for (uint32_t i = 0; i < N; i++) {
        w[i] =
            coli__ck_upload(ck, coli__ck_matrix_block(ck, coli__ck_format(ck, i), n_out[i], 320));
        p[i] = coli__ck_make_product(ck, w[i],
                                     coli__ck_random_rows(ck, n_row[i], &w[i]->now.matrix[0]));
        args[i] = &p[i]->args;
    }
    CK_OK(ck, matmul_batch, ck->dev, args, N);
    for (uint32_t i = 0; i < N; i++) coli__ck_product_right(ck, p[i]);
    CK_OK(ck, matmul_batch, ck->dev, args, 0);
    for (uint32_t i = 0; i < N; i++) coli__ck_free(ck, w[i]);
}
