/* math_unit.c - the steps of a forward pass against numbers that were computed by hand in double
 * precision (norms, rotary embedding, DeltaNet), and choosing a kernel table.
 *
 * The expected values have nine decimals; what is allowed is a few float roundings of numbers of
 * their size: 4 * 2^-23 of the largest. */
#include "t.h"

#include "coli/exact.h"
#include "libcoli/src/math/kernels.h"
#include "libcoli/src/math/rope.h"

static const coli__kernels *kernels;

static void near_all(const float *got, const double *expected, uint32_t n)
{
    double largest = 0.0;
    for (uint32_t i = 0; i < n; i++) largest = fmax(largest, fabs(expected[i]));
    for (uint32_t i = 0; i < n; i++)
        T_FLE(fabs((double)got[i] - expected[i]), 4.0 * 0x1p-23 * largest + 1e-9);
}
#define NEAR(got, ...) near_all((got), (const double[]){__VA_ARGS__}, sizeof(got) / sizeof *(got))

T_TEST(zero_centred_norm)
{
    T_BEGIN;
    const float x[] = {1, -2, 3, 0.5f}, w[] = {0.1f, -0.2f, 0, 0.5f};
    float y[4];
    kernels->rmsnorm(x, w, 1.0f, 4, 1e-6f, y);
    NEAR(y, 0.582794155, -0.847700590, 1.589438605, 0.397359651);
}

T_TEST(rotary)
{
    T_BEGIN;
    float head[] = {1, 2, 3, 4, 5, 6, 7, 8}, frequency[2], cosine[4][2], sine[4][2];
    coli__rope_frequencies(10000.0, 4, frequency);
    NEAR(frequency, 1.0, 0.01);
    coli__rope_table(frequency, 4, 0, 4, cosine[0], sine[0]);
    coli__rope_apply(head, cosine[3], sine[3], 4);
    NEAR(head, -1.413352521, 1.879118067, -2.828857482, 4.058191135, 5, 6, 7, 8);
}

/* A row of the table does not depend on where the table begins. */
T_TEST(rotary_rows_stand_alone)
{
    T_BEGIN;
    enum { N_ROT = 64, N_TOK = 9, POS = COLI_ROPE_POS_MAX - N_TOK };
    float frequency[N_ROT / 2], c[N_TOK][N_ROT / 2], s[N_TOK][N_ROT / 2], c1[N_ROT / 2],
        s1[N_ROT / 2];
    coli__rope_frequencies(1e7, N_ROT, frequency);
    coli__rope_table(frequency, N_ROT, POS, N_TOK, c[0], s[0]);
    for (uint32_t t = 0; t < N_TOK; t++) {
        coli__rope_table(frequency, N_ROT, POS + t, 1, c1, s1);
        T_MEM(c1, c[t], sizeof c1);
        T_MEM(s1, s[t], sizeof s1);
        for (uint32_t i = 0; i < N_ROT / 2; i++) { // float frequencies, everything after in double
            const double angle = (double)(POS + t) * (double)frequency[i];
            T_FLE(fabs((double)c1[i] - cos(angle)), 0x1p-24);
            T_FLE(fabs((double)s1[i] - sin(angle)), 0x1p-24);
        }
    }
}

T_TEST(deltanet_two_tokens)
{
    T_BEGIN;
    float q[2][2] = {{3, 4}, {0, 2}}, k[2][2] = {{1, 0}, {1, 1}};
    const float v[2][2] = {{1, 2}, {3, -1}}, a[2] = {0, 1}, b[2] = {0, 2};
    const float A = coli_exp(coli_log(2.0f)), dt_bias = 0.5f, root = coli_rsqrt(2.0f);
    float S[4] = {0}, o[2][2], g[2], beta[2], scratch[2];
    for (uint32_t t = 0; t < 2; t++) {
        g[t] = -A * coli_softplus(a[t] + dt_bias);
        beta[t] = coli_sigmoid(b[t]);
        kernels->l2norm(q[t], 2, 1e-6f, root);
        kernels->l2norm(k[t], 2, 1e-6f, 1.0f);
        kernels->deltanet(S, 2, 2, q[t], k[t], v[t], coli_exp(g[t]), beta[t], scratch, o[t]);
    }
    NEAR(g, -1.948153968, -3.402826556);
    NEAR(beta, 0.5, 0.880797078);
    NEAR(q[0], 0.424264060, 0.565685414);
    NEAR(q[1], 0.0, 0.707106693);
    NEAR(k[0], 0.999999500, 0.0);
    NEAR(k[1], 0.707106604, 0.707106604);
    NEAR(o[0], 0.212131924, 0.424263848);
    NEAR(o[1], 1.316013430, -0.450761758);
    NEAR(S, 1.877763801, -0.604194416, 1.861124273, -0.637473471);

    /* The gated norm of the second output. */
    const float w[] = {1, 2}, z[] = {1, -1};
    float y[2];
    kernels->rmsnorm(o[1], w, 0.0f, 2, 1e-6f, y);
    kernels->silu_mul(z, y, 2, y);
    NEAR(y, 0.978088358, 0.246490591);
}

T_TEST(router_weights)
{
    T_BEGIN;
    float x[3] = {3, 3, 2}; // the chosen three; a softmax over them alone is the same
    const float sum = kernels->softmax_sum(x, 3);
    for (uint32_t i = 0; i < 3; i++) x[i] *= coli_recip(sum);
    NEAR(x, 0.422318798, 0.422318798, 0.155362403);
}

T_TEST(tables_by_name)
{
    T_BEGIN;
    const coli__kernels *k;
    T_OK(coli__kernels_get("scalar", &k));
    T_STR(k->name, "scalar");
    T_FAILS(coli__kernels_get("sse9", &k), COLI_E_INVALID, "sse9");
    T_TRUE(k == NULL);
    for (const char *const *name = coli__kernels_names; *name; name++) {
        T_FAILS(coli__kernels_get("sse9", &k), COLI_E_INVALID, *name); // all names are listed
        const coli_status status = coli__kernels_get(*name, &k);
        if (status == COLI_OK)
            T_STR(k->name, *name);
        else
            T_EQ(status, COLI_E_UNSUPPORTED);
    }
}

/* Finite numbers in, finite numbers out, and a NaN is never lost. */
T_TEST(nan_is_kept)
{
    T_BEGIN;
    const float nan = coli_from_bits(0x7FC00000u);
    float x[40] = {0}, y[40];
    x[17] = nan;
    T_TRUE(isnan(kernels->dot(x, x, 40)));
    kernels->rmsnorm(x, x, 1.0f, 40, 1e-6f, y);
    T_TRUE(isnan(y[0]));
    kernels->silu_mul(x, x, 40, y);
    T_TRUE(isnan(y[17]) && !isnan(y[16]));
    memcpy(y, x, sizeof y);
    T_TRUE(isnan(kernels->softmax_sum(y, 40)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_centred_norm),   cmocka_unit_test(rotary),
        cmocka_unit_test(deltanet_two_tokens), cmocka_unit_test(rotary_rows_stand_alone),
        cmocka_unit_test(router_weights),      cmocka_unit_test(tables_by_name),
        cmocka_unit_test(nan_is_kept),
    };
    int failed = 0;
    for (const char *const *isa = coli__kernels_names; *isa; isa++) {
        if (coli__kernels_get(*isa, &kernels) != COLI_OK) continue;
        failed += cmocka_run_group_tests_name(*isa, tests, NULL, NULL);
    }
    return failed;
}
