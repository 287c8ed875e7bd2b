/* loss_test.c - intervals against figures worked out elsewhere and against their own promise; verdicts at
 * the edges. */
#include "t.h"

#include "coli/coli.h"
#include "libcoli/src/run/loss.h"

static void near(double a, double b, double tolerance)
{
    if (!(fabs(a - b) <= tolerance)) fail_msg("%.9g against %.9g", a, b);
}

/* Of the tables that every book on statistics has. */
T_TEST(student)
{
    T_BEGIN;
    static const struct {
        uint32_t df;
        double t;
    } table[] = {{1, 12.7062}, {2, 4.3027},  {5, 2.5706},   {10, 2.2281},
                 {11, 2.2010}, {12, 2.1788}, {15, 2.1314},  {20, 2.0860},
                 {30, 2.0423}, {60, 2.0003}, {120, 1.9799}, {239, 1.9699}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        near(coli__student(table[i].df), table[i].t, 6e-5);
    for (uint32_t df = 1; df < 1000; df++) T_TRUE(coli__student(df) > coli__student(df + 1));
    near(coli__student(UINT32_MAX), 1.959964, 1e-6);
}

/* Differences 1, 2, 6 of items with one unit each: mean 3, variance of the mean 7/3, t(2) 4.3027. */
T_TEST(ratio)
{
    T_BEGIN;
    coli__ratio r = {0};
    coli__ratio_add(&r, 1, 1);
    T_TRUE(isinf(coli__ratio_interval(&r).low) && isinf(coli__ratio_interval(&r).high));
    coli__ratio_add(&r, 2, 1);
    coli__ratio_add(&r, 6, 1);
    const coli__interval i = coli__ratio_interval(&r);
    near(i.value, 3, 1e-12);
    near(i.high - 3, 4.302653 * sqrt(7.0 / 3.0), 1e-5);
    near(3 - i.low, i.high - 3, 1e-12);
    coli__ratio none = {0};
    T_TRUE(coli__ratio_interval(&none).value == 0 && isinf(coli__ratio_interval(&none).low));
    /* The same difference in each unit: no doubt, however unequal the items. */
    coli__ratio same = {0};
    for (int k = 1; k < 9; k++) coli__ratio_add(&same, 0.25 * k, k);
    near(coli__ratio_interval(&same).low, 0.25, 1e-9);
    near(coli__ratio_interval(&same).high, 0.25, 1e-9);
}

/* A mean of numbers that are never below 0 is not below it either; too few items say nothing still. */
T_TEST(within)
{
    T_BEGIN;
    coli__interval i = coli__interval_within((coli__interval){0.25, -0.5, 1.5}, 0, 1);
    T_TRUE(i.value == 0.25 && i.low == 0 && i.high == 1);
    i = coli__interval_within((coli__interval){0.25, 0.125, 0.5}, 0, 1);
    T_TRUE(i.value == 0.25 && i.low == 0.125 && i.high == 0.5);
    i = coli__interval_within((coli__interval){0.25, -0.5, 1.5}, 0, INFINITY);
    T_TRUE(i.low == 0 && i.high == 1.5);
    i = coli__interval_within((coli__interval){0, -INFINITY, INFINITY}, 0, 1);
    T_TRUE(isinf(i.low) && isinf(i.high));
}

/* By hand: b = lost + 1/2, c = won + 1/2, n + 2; the half width is z sqrt(b + c - (b-c)^2/(n+2))/(n+2). */
T_TEST(pairs)
{
    T_BEGIN;
    static const struct {
        uint32_t n, lost, won;
        double value, low, high;
    } table[] = {{240, 0, 0, 0, -0.0080990, 0.0080990},
                 {240, 3, 0, 0.0125, -0.0037259, 0.0285193},
                 {240, 0, 3, -0.0125, -0.0285193, 0.0037259},
                 {100, 30, 10, 0.2, 0, 0},
                 {10, 10, 0, 1, 0, 0}};
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        const coli__interval i = coli__pairs_interval(table[k].n, table[k].lost, table[k].won);
        const double n = table[k].n + 2.0, d = (double)table[k].lost - table[k].won;
        const double half = 1.959964 * sqrt(table[k].lost + table[k].won + 1.0 - d * d / n) / n;
        near(i.value, table[k].value, 1e-12);
        near(i.low, d / n - half, 1e-7);
        near(i.high, d / n + half, 1e-7);
        if (k < 3) {
            near(i.low, table[k].low, 5e-7);
            near(i.high, table[k].high, 5e-7);
        }
    }
    T_TRUE(isinf(coli__pairs_interval(0, 0, 0).high));
}

/* What 95 % means: of many samples whose true loss is known, about so many intervals hold it.  2000
 * samples have a standard error of half a point; Student's interval is exact for normal differences, and
 * Agresti and Min's errs on the safe side. */
T_TEST(intervals_hold_what_they_promise)
{
    T_BEGIN;
    t_rng rng = {7};
    enum { N_SAMPLE = 2000 };
    int n_mean = 0, n_pair = 0;
    for (int s = 0; s < N_SAMPLE; s++) {
        coli__ratio r = {0};
        for (int k = 0; k < 12; k++) {
            const double n = t_range(&rng, 20, 60);
            coli__ratio_add(&r, 0.3 * n + sqrt(n) * (double)t_normal(&rng), n);
        }
        const coli__interval mean = coli__ratio_interval(&r);
        n_mean += mean.low <= 0.3 && 0.3 <= mean.high;
        uint32_t lost = 0, won = 0;
        for (int k = 0; k < 100; k++) {
            const double u = t_unit(&rng);
            lost += u < 0.08;
            won += u >= 0.08 && u < 0.12;
        }
        const coli__interval pair = coli__pairs_interval(100, lost, won);
        n_pair += pair.low <= 0.04 && 0.04 <= pair.high;
    }
    print_message("95 %% intervals: %.1f %% of means, %.1f %% of pairs\n",
                  n_mean * 100.0 / N_SAMPLE, n_pair * 100.0 / N_SAMPLE);
    near(n_mean / (double)N_SAMPLE, 0.95, 0.02);
    T_FGE(n_pair / (double)N_SAMPLE, 0.94);
    T_FLE(n_pair / (double)N_SAMPLE, 0.98);
}

T_TEST(verdicts)
{
    T_BEGIN;
    static const struct {
        double low, high, limit;
        coli_verdict verdict;
    } table[] = {
        {-1, 0.5, 1, COLI_VERDICT_PASS},
        {-1, 1, 1, COLI_VERDICT_PASS}, // up to the limit, the limit included
        {1, 2, 1, COLI_VERDICT_UNDECIDED},
        {1.0000001, 2, 1, COLI_VERDICT_FAIL},
        {0, 0, 0, COLI_VERDICT_PASS}, // a limit of nothing is kept by nothing
        {0, 1e-9, 0, COLI_VERDICT_UNDECIDED},
        {-INFINITY, INFINITY, 5, COLI_VERDICT_UNDECIDED},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const coli_loss loss = {
            .struct_size = sizeof loss, .low = table[i].low, .high = table[i].high};
        T_EQ(coli_loss_verdict(&loss, table[i].limit), table[i].verdict);
    }
    T_EQ(coli_loss_verdict(NULL, 1), COLI_VERDICT_UNDECIDED);
}

T_TEST(names)
{
    T_BEGIN;
    T_STR(coli_measure_name(COLI_MEASURE_NLL), "nll");
    T_STR(coli_measure_name(COLI_MEASURE_EXACT), "exact");
    T_TRUE(coli_measure_name(COLI_N_MEASURE) == NULL);
    T_TRUE(coli_measure_name((coli_measure)-1) == NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(student),
        cmocka_unit_test(ratio),
        cmocka_unit_test(within),
        cmocka_unit_test(pairs),
        cmocka_unit_test(intervals_hold_what_they_promise),
        cmocka_unit_test(verdicts),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
