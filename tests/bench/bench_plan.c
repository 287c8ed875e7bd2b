/* bench_plan.c - whether the speed that `coli plan` expects holds what `coli bench` then measures: the demo
 * model, which sits in a cache, and two layers of the 35B's, which do not; mapped, and from the disk. */
#include <jansson.h>

#include "json_out.h"
#include "programs.h"

/* What plan expects now, and what it has expected before. */
static void widen(const char *model, const char *more, const char *value, double range[2])
{
    outcome o = RUN("coli", "", "plan", model, "--backend", "none", "--json", more, value);
    EXPECT(o, o.code == 0);
    json_t *plan = json_of(&o);
    const double least = json_number_at(plan, "expected.tok_s.0"),
                 most = json_number_at(plan, "expected.tok_s.1");
    if (range[0] == 0 || least < range[0]) range[0] = least;
    if (most > range[1]) range[1] = most;
    json_decref(plan);
    forget(&o);
}

/* Others may use the machine more or less than a moment ago, so plan is asked before and after. */
static void compare(const char *model, const char *more, const char *value)
{
    double range[2] = {0, 0};
    widen(model, more, value, range);
    outcome o = RUN("coli", "", "bench", "--model", model, "--backend", "none", "--json",
                    "--prefill", "0", "--buffer", "64", more, value);
    EXPECT(o, o.code == 0);
    json_t *bench = json_of(&o);
    const double found = json_number_at(bench, "decode.tok_s.median");
    json_decref(bench);
    forget(&o);
    widen(model, more, value, range);
    print_message("%s %s %s: expected %.1f to %.1f tokens per second, measured %.1f\n", model, more,
                  value, range[0], range[1], found);
    T_FGE(found, range[0]);
    T_FLE(found, range[1]);
}

T_TEST(the_demo_model)
{
    T_BEGIN;
    compare(MODEL, "--threads", "2");
    compare(MODEL, "--isa", "scalar");
    compare(MODEL, "--ram-experts", "32");
}

T_TEST(two_layers_of_the_35b)
{
    T_BEGIN;
    const char *dir = scratch_path("m2");
    outcome o = RUN("coli", "", "synth", "--layers", "2", "--vocab", "32768", "--skew", "1", dir);
    EXPECT(o, o.code == 0);
    forget(&o);
    compare(dir, "--threads", "2");
    compare(dir, "--threads", "1");
    compare(dir, "--ram-experts", "128");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_demo_model),
        cmocka_unit_test(two_layers_of_the_35b),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
