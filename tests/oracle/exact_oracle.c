/* exact_oracle.c - the functions of coli/exact.h against the C library in long double: how far
 * they are from the true value.  Each bound is what the header promises; errors are in ulp, units
 * in the last place of the true value's binade, so correct rounding is 0.5. */
#include "t.h"

#include <float.h>

#include "coli/exact.h"

static double ulps(float got, long double expected)
{
    int e;
    frexpl(expected, &e); // expected = m * 2^e with m in [1/2, 1)
    if (e < -125) e = -125;
    return (double)(fabsl((long double)got - expected) / ldexpl(1.0L, e - 24));
}

/* Largest error of f over the floats lo..hi (same sign, by bits), every step-th. */
static double worst(float (*f)(float), long double (*truth)(long double), float lo, float hi,
                    uint32_t step)
{
    double max = 0.0;
    uint32_t a = coli_bits(lo), b = coli_bits(hi);
    if (a > b) {
        const uint32_t t = a;
        a = b;
        b = t;
    }
    for (uint64_t u = a; u <= b; u += step) {
        const float x = coli_from_bits((uint32_t)u);
        const double e = ulps(f(x), truth((long double)x));
        if (e > max) max = e;
    }
    return max;
}

static long double true_recip(long double x)
{
    return 1.0L / x;
}
static long double true_rsqrt(long double x)
{
    return 1.0L / sqrtl(x);
}
static long double true_sigmoid(long double x)
{
    return 1.0L / (1.0L + expl(-x));
}
static long double true_silu(long double x)
{
    return x / (1.0L + expl(-x));
}
static long double true_softplus(long double x)
{
    return x > 0.0L ? x + log1pl(expl(-x)) : log1pl(expl(x));
}

#define WORST(what, f, truth, lo, hi, step, bound)                                                 \
    do {                                                                                           \
        const double e_ = worst(f, truth, lo, hi, step);                                           \
        print_message("%-24s %.3f ulp\n", what, e_);                                               \
        T_FLE(e_, bound);                                                                          \
    } while (0)

T_TEST(compiler_rounds_every_operation)
{
    T_BEGIN;
    T_TRUE(coli_exact_check());
}

T_TEST(reciprocals)
{
    T_BEGIN;
    WORST("recip, one binade", coli_recip, true_recip, 1.0f, 2.0f, 7, 2.0);
    WORST("recip, whole range", coli_recip, true_recip, 0x1p-125f, 0x1p125f, 1009, 2.0);
    WORST("rsqrt, two binades", coli_rsqrt, true_rsqrt, 1.0f, 4.0f, 13, 1.25);
    WORST("rsqrt, whole range", coli_rsqrt, true_rsqrt, 0x1p-125f, 0x1p126f, 1009, 1.25);
}

T_TEST(exponential)
{
    T_BEGIN;
    WORST("exp, negative", coli_exp, expl, -0x1p-30f, -87.33f, 499, 1.0);
    WORST("exp, positive", coli_exp, expl, 0x1p-30f, 88.72f, 499, 1.0);
    T_EQ(coli_bits(coli_exp(0.0f)), 0x3F800000);
    T_EQ(coli_bits(coli_exp(-87.4f)), 0);
    T_EQ(coli_bits(coli_exp(-1e30f)), 0);
    T_EQ(coli_bits(coli_exp(coli_from_bits(0xFF800000u))), 0);
    T_EQ(coli_bits(coli_exp(1e30f)), coli_bits(coli_exp(88.72f)));
    T_EQ(coli_bits(coli_exp(coli_from_bits(0xFFC01234u))), 0x7FC00000);
    for (float x = -87.5f; x < -87.2f; x += 0x1p-12f) { // no denormal comes out
        const uint32_t u = coli_bits(coli_exp(x));
        T_TRUE(u == 0 || u >= 0x00800000);
    }
}

T_TEST(sigmoids)
{
    T_BEGIN;
    WORST("sigmoid, negative", coli_sigmoid, true_sigmoid, -0x1p-30f, -79.9f, 499, 4.0);
    WORST("sigmoid, positive", coli_sigmoid, true_sigmoid, 0x1p-30f, 79.9f, 499, 4.0);
    WORST("silu, negative", coli_silu, true_silu, -0x1p-30f, -79.9f, 499, 5.0);
    WORST("silu, positive", coli_silu, true_silu, 0x1p-30f, 79.9f, 499, 5.0);
    T_TRUE(coli_sigmoid(coli_from_bits(0x7FC00000u)) != coli_sigmoid(1.0f));
    T_EQ(coli_bits(coli_sigmoid(-1e30f)), coli_bits(coli_sigmoid(-80.0f)));
}

T_TEST(logarithms)
{
    T_BEGIN;
    WORST("log", coli_log, logl, 0x1p-149f, FLT_MAX, 2003, 0.501);
    WORST("log, about 1", coli_log, logl, 0.99f, 1.01f, 13, 0.501);
    WORST("softplus, negative", coli_softplus, true_softplus, -0x1p-30f, -87.0f, 499, 0.501);
    WORST("softplus, positive", coli_softplus, true_softplus, 0x1p-30f, 20.0f, 499, 0.501);
    WORST("softplus, large", coli_softplus, true_softplus, 20.0f, 1e30f, 499, 0.501);
    T_EQ(coli_bits(coli_softplus(-1e30f)), 0);
    T_TRUE(coli_softplus(coli_from_bits(0x7FC00000u)) != coli_softplus(1.0f));
}

T_TEST(angles)
{
    T_BEGIN;
    t_rng rng = {1};
    double max = 0.0;
    for (uint32_t i = 0; i < 300000; i++) {
        const double range = i % 3 == 0 ? 0x1p20 : i % 3 == 1 ? 100.0 : 1.0;
        double angle = range * (2.0 * t_unit(&rng) - 1.0);
        if (i % 5 == 0) // where one of the two is nearly zero
            angle = nearbyint(angle / 1.5707963267948966) * 1.5707963267948966;
        float s, c;
        coli_sincos(angle, &s, &c);
        const double es = ulps(s, sinl((long double)angle)), ec = ulps(c, cosl((long double)angle));
        max = es > max ? es : max;
        max = ec > max ? ec : max;
    }
    print_message("%-24s %.3f ulp\n", "sin and cos", max);
    T_FLE(max, 0.501);
}

T_TEST(rotary_frequencies)
{
    T_BEGIN;
    static const double thetas[] = {1e4, 5e5, 1e6, 1e7};
    double max = 0.0;
    for (uint32_t k = 0; k < 4; k++)
        for (uint32_t n = 2; n <= 256; n += 2)
            for (uint32_t i = 0; i < n / 2; i++) {
                const long double x = -2.0L * (long double)i / (long double)n;
                const double e =
                    ulps(coli_rotary_frequency(thetas[k], i, n), powl((long double)thetas[k], x));
                max = e > max ? e : max;
            }
    print_message("%-24s %.3f ulp\n", "rotary frequency", max);
    T_FLE(max, 0.501);
}

T_TEST(half_floats)
{
    T_BEGIN;
    for (uint32_t h = 0; h < 0x7C00; h++) {
        const int e = (int)(h >> 10), m = (int)(h & 0x3FF);
        const double expected = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
        T_TRUE((double)coli_f16_to_f32((uint16_t)h) == expected);
        T_TRUE((double)coli_f16_to_f32((uint16_t)(h | 0x8000)) == -expected);
    }
    T_EQ(coli_bits(coli_f16_to_f32(0x7C00)), 0x7F800000);
    T_EQ(coli_bits(coli_f16_to_f32(0xFC00)), 0xFF800000);
    T_TRUE(coli_f16_to_f32(0x7E00) != coli_f16_to_f32(0x7E00));
    T_EQ(coli_bits(coli_f16_to_f32(0x8000)), 0x80000000);
}

/* Between two neighbouring halves a and b everything below the middle becomes a, everything above it
 * b, the middle the one whose last bit is 0.  Beyond the largest the next step would be 65536. */
T_TEST(to_half_floats)
{
    T_BEGIN;
    for (uint32_t h = 0; h < 0x7C00; h++) {
        const float a = coli_f16_to_f32((uint16_t)h);
        const float b = h == 0x7BFF ? 65536.0f : coli_f16_to_f32((uint16_t)(h + 1));
        const float middle = (float)(0.5 * ((double)a + (double)b)); // exact
        for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
            const float s = sign ? -1.0f : 1.0f;
            T_EQ(coli_f32_to_f16(s * a), sign | h);
            T_EQ(coli_f32_to_f16(s * nextafterf(middle, 0)), sign | h);
            T_EQ(coli_f32_to_f16(s * middle), sign | (h + (h & 1)));
            T_EQ(coli_f32_to_f16(s * nextafterf(middle, INFINITY)), sign | (h + 1));
        }
    }
    T_EQ(coli_f32_to_f16(0x1p-149f), 0);
    T_EQ(coli_f32_to_f16(FLT_MAX), 0x7C00);
    T_EQ(coli_f32_to_f16(-INFINITY), 0xFC00);
    T_EQ(coli_f32_to_f16(coli_from_bits(0x7F800001)) & 0x7E00, 0x7E00);
    T_EQ(coli_f32_to_f16(coli_from_bits(0xFFC00000)), 0xFE00);
}

/* The tree against its definition: neighbours in pairs, padded with zeros to a power of two. */
T_PROP(tree_is_pairwise, 500)
{
    float v[512] = {0};
    const uint32_t n = t_below(&rng, 513);
    coli_tree tree = {0};
    for (uint32_t i = 0; i < n; i++) coli_tree_add(&tree, v[i] = t_normal(&rng));
    for (uint32_t width = 512; width > 1; width /= 2)
        for (uint32_t i = 0; i < width / 2; i++) v[i] = v[2 * i] + v[2 * i + 1];
    T_EQ(coli_bits(coli_tree_sum(&tree)), coli_bits(v[0]));
}

T_TEST(zeros_sum_to_plus_zero)
{
    T_BEGIN;
    for (uint32_t n = 0; n < 40; n++) {
        coli_tree tree = {0};
        for (uint32_t i = 0; i < n; i++) coli_tree_add(&tree, -0.0f);
        T_EQ(coli_bits(coli_tree_sum(&tree)), 0);
    }
}

/* Quantised activations are within half a step, plus what two roundings add, of the true quotient.
 */
T_PROP(quantise_rounds_to_nearest, 2000)
{
    float x[64], d;
    int8_t q[64];
    int32_t sum, expected_sum = 0;
    const float scale = ldexpf(1.0f, (int)t_below(&rng, 90) - 55);
    float amax = 0.0f;
    for (uint32_t i = 0; i < 64; i++) {
        x[i] = t_normal(&rng) * scale;
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    }
    T_TRUE(coli_quantise_group(x, 64, 64, q, &d, &sum));
    T_TRUE(ulps(d, (long double)amax / 127.0L) <= 1.5);
    uint32_t at_end = 0;
    for (uint32_t i = 0; i < 64; i++) {
        T_FLE(fabs((double)q[i] - (double)x[i] * 127.0 / (double)amax),
              0.5 + 127.0 * 4.0 * 0x1p-23);
        expected_sum += q[i];
        at_end += abs(q[i]) == 127;
    }
    T_EQ(sum, expected_sum);
    T_TRUE(at_end > 0);
}

T_TEST(quantise_at_the_edges)
{
    T_BEGIN;
    float x[32] = {0}, d;
    int8_t q[32];
    int32_t sum;
    static const struct {
        uint32_t bits;
        bool ok, zero;
    } cases[] = {{0x00000000, true, true},  {0x80000000, true, true},  {0x00000001, true, true},
                 {0x237FFFFF, true, true},  {0x23800000, true, false}, {0xA3800000, true, false},
                 {0x537FFFFF, true, false}, {0x53800000, false, true}, {0xD3800000, false, true},
                 {0x7F800000, false, true}, {0x7FC00000, false, true}, {0xFFFFFFFF, false, true}};
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        x[5] = coli_from_bits(cases[i].bits);
        T_EQ(coli_quantise_group(x, 32, 32, q, &d, &sum), cases[i].ok);
        const int32_t expected = cases[i].zero ? 0 : cases[i].bits >> 31 ? -127 : 127;
        T_EQ(q[5], expected);
        T_EQ(sum, expected);
        T_EQ(d == 0.0f, cases[i].zero);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compiler_rounds_every_operation),
        cmocka_unit_test(reciprocals),
        cmocka_unit_test(exponential),
        cmocka_unit_test(sigmoids),
        cmocka_unit_test(logarithms),
        cmocka_unit_test(angles),
        cmocka_unit_test(rotary_frequencies),
        cmocka_unit_test(half_floats),
        cmocka_unit_test(to_half_floats),
        cmocka_unit_test(tree_is_pairwise),
        cmocka_unit_test(zeros_sum_to_plus_zero),
        cmocka_unit_test(quantise_rounds_to_nearest),
        cmocka_unit_test(quantise_at_the_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
