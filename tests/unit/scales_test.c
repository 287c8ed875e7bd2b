/* scales_test.c - the search for scales: how much less error than amax rounding, how far from the least
 * there is, and that columns that matter are spared. */
#include "t.h"

#include "coli/exact.h"
#include "libcoli/src/math/scales.h"

enum { N_GROUP = 512, G = 64 };

static coli__wfmt format(const char *name)
{
    coli__wfmt fmt;
    T_OK(coli__wfmt_parse(name, &fmt));
    return fmt;
}

/* Independent normal numbers, and two kinds with heavy tails: Student's t with 4 degrees of freedom
 * (kurtosis without bound) and Laplace's. */
typedef enum kind { NORMAL, STUDENT, LAPLACE, N_KIND } kind;
static const char *const kinds[] = {"normal", "Student's t", "Laplace"};

static float draw(t_rng *rng, kind k)
{
    const float x = t_normal(rng);
    if (k == NORMAL) return x;
    if (k == LAPLACE) { // the product of a normal number and the root of an exponential one
        const float a = t_normal(rng), b = t_normal(rng);
        return x * sqrtf(a * a + b * b);
    }
    float chi2 = 0;
    for (int i = 0; i < 4; i++) {
        const float a = t_normal(rng);
        chi2 += a * a;
    }
    return x / sqrtf(chi2 / 4);
}

static void fill(t_rng *rng, kind k, float *w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) w[i] = 0.02f * draw(rng, k);
}

static int32_t exp_of(coli__wfmt fmt, const float *w, uint32_t n)
{
    float amax = 0;
    for (uint32_t i = 0; i < n; i++) amax = fmaxf(amax, fabsf(w[i]));
    int32_t e;
    T_TRUE(coli__scale_exp_for(fmt, amax, amax, &e));
    return e;
}

/* The promise is 10 % less than amax rounding.  What is measured here, over 512 groups, has a standard
 * error of 0.5 %; the bounds leave room for that. */
T_TEST(less_error_than_amax_rounding)
{
    T_BEGIN;
    static const struct {
        const char *fmt;
        double most[N_KIND];
    } cases[] = {
        {"int4-g64-f16", {0.71, 0.71, 0.74}}, {"int4-g32-f16", {0.71, 0.72, 0.74}},
        {"int8-g64-f16", {0.86, 0.90, 0.89}}, {"int8-g32-f16", {0.79, 0.83, 0.82}},
        {"int8-g64-f32", {0.86, 0.90, 0.89}},
    };
    static float w[N_GROUP * G];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < N_KIND; k++) {
            t_rng rng = {0x5ca1e5 + (uint64_t)k};
            fill(&rng, (kind)k, w, N_GROUP * G);
            const coli__wfmt fmt = format(cases[i].fmt);
            const int32_t e = exp_of(fmt, w, N_GROUP * G);
            double found = 0, plain = 0;
            for (uint32_t at = 0; at < N_GROUP * G; at += fmt.group) {
                const coli__group g = {.w = w + at,
                                       .n = fmt.group,
                                       .fmt = fmt,
                                       .codes = coli__codes_of(fmt),
                                       .scale_exp = e};
                found += coli__scale_error(&g, coli__scale_best(&g));
                plain += coli__scale_error(&g, coli__scale_plain(&g));
            }
            print_message("%s, %s: %.3f of amax rounding's\n", cases[i].fmt, kinds[k],
                          found / plain);
            T_FLE(found / plain, cases[i].most[k]);
        }
}

/* Every f16 number whose magnitude is from a third of the plain scale's to 1.3 times it. */
static double least_error(const coli__group *g)
{
    const float plain = coli__scale_plain(g) * coli_pow2(-g->scale_exp);
    double least = coli__scale_error(g, coli__scale_plain(g));
    for (uint16_t h = coli_f32_to_f16(plain / 3); coli_f16_to_f32(h) < 1.3f * plain; h++) {
        const float scale = coli_f16_to_f32(h) * coli_pow2(g->scale_exp);
        least = fmin(least, coli__scale_error(g, scale));
        least = fmin(least, coli__scale_error(g, -scale));
    }
    return least;
}

T_TEST(near_the_least_error_there_is)
{
    T_BEGIN;
    enum { N = 100 };
    static const char *const formats[] = {"int4-g64-f16", "int8-g64-f16"};
    static const double beyond[] = {1.005, 1.01}; // measured: 1.001, 1.004
    for (int f = 0; f < 2; f++)
        for (int k = 0; k < N_KIND; k++) {
            t_rng rng = {0xb0ff + (uint64_t)k};
            float w[G];
            double found = 0, least = 0;
            for (int i = 0; i < N; i++) {
                fill(&rng, (kind)k, w, G);
                const coli__wfmt fmt = format(formats[f]);
                const coli__group g = {.w = w,
                                       .n = G,
                                       .fmt = fmt,
                                       .codes = coli__codes_of(fmt),
                                       .scale_exp = exp_of(fmt, w, G)};
                found += coli__scale_error(&g, coli__scale_best(&g));
                least += least_error(&g);
            }
            print_message("%s, %s: %.4f of the least\n", formats[f], kinds[k], found / least);
            T_FLE(found, least * beyond[f]);
        }
}

T_PROP(never_more_than_plain, 3000)
{
    static const char *const formats[] = {"int4-g64-f16", "int4-g32-f32", "int8-g64-f16",
                                          "int8-row-f32"};
    float w[200], h[200];
    const coli__wfmt fmt = format(formats[t_below(&rng, 4)]);
    const uint32_t n = t_range(&rng, 1, fmt.per_row ? 200 : fmt.group);
    const float size = ldexpf(1.0f, (int)t_below(&rng, 60) - 48);
    const uint32_t style = t_below(&rng, 4);
    for (uint32_t i = 0; i < n; i++) {
        w[i] = size * draw(&rng, (kind)t_below(&rng, N_KIND));
        if (style == 1) w[i] = t_below(&rng, 3) ? 0 : w[i];
        if (style == 2) w[i] = (float)((int)t_below(&rng, 5) - 2) * size;
        h[i] = t_below(&rng, 4) ? fabsf(t_normal(&rng)) : 0;
        if (style == 3) h[i] *= h[i] * h[i] * h[i];
    }
    int32_t e = 0;
    float amax = 0;
    for (uint32_t i = 0; i < n; i++) amax = fmaxf(amax, fabsf(w[i]));
    if (!coli__scale_exp_for(fmt, amax, amax, &e)) return;
    const coli__group g = {.w = w,
                           .importance = t_below(&rng, 2) ? h : NULL,
                           .n = n,
                           .fmt = fmt,
                           .codes = coli__codes_of(fmt),
                           .scale_exp = e};
    const float best = coli__scale_best(&g);
    T_TRUE(coli__scale_is_valid(best));
    T_TRUE(coli__scale_stored(fmt, best, e) == best);
    T_FLE(coli__scale_error(&g, best), coli__scale_error(&g, coli__scale_plain(&g)));
}

/* One column in eight carries nearly all: its error counts, and the others pay. */
T_TEST(what_matters_is_spared)
{
    T_BEGIN;
    static const char *const formats[] = {"int4-g64-f16", "int8-g64-f16"};
    for (int f = 0; f < 2; f++) {
        t_rng rng = {7};
        float w[G], h[G];
        for (int i = 0; i < G; i++) h[i] = i % 8 ? 0.01f : 10.0f;
        double weighed = 0, alike = 0;
        for (int i = 0; i < N_GROUP; i++) {
            fill(&rng, NORMAL, w, G);
            const coli__wfmt fmt = format(formats[f]);
            coli__group g = {.w = w,
                             .n = G,
                             .fmt = fmt,
                             .codes = coli__codes_of(fmt),
                             .scale_exp = exp_of(fmt, w, G)};
            const float blind = coli__scale_best(&g);
            g.importance = h;
            alike += coli__scale_error(&g, blind);
            weighed += coli__scale_error(&g, coli__scale_best(&g));
        }
        print_message("%s: %.3f of the error without\n", formats[f], weighed / alike);
        T_FLE(weighed, 0.6 * alike);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(less_error_than_amax_rounding),
        cmocka_unit_test(near_the_least_error_there_is),
        cmocka_unit_test(never_more_than_plain),
        cmocka_unit_test(what_matters_is_spared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
