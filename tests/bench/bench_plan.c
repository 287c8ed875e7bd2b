/* bench_plan.c - whether the speed that `coli plan` expects holds what `coli bench` then measures: the demo
 * model, which sits in a cache, and two layers of the 35B's, which do not; mapped, and from the disk. */
#include <jansson.h>

#include "json_out.h"
#include "programs.h"

static void compare(const char *model, const char *more, const char *value)
{
    outcome o = RUN("coli", "", "plan", model, "--backend", "none", "--json", more, value);
    EXPECT(o, o.code == 0);
    json_t *plan = json_of(&o);
    const double least = json_number_at(plan, "expected.tok_s.0"),
                 most = json_number_at(plan, "expected.tok_s.1");
    json_decref(plan);
    forget(&o);
    o = RUN("coli", "", "bench", "--model", model, "--backend", "none", "--json", "--prefill", "0",
            "--buffer", "64", more, value);
    EXPECT(o, o.code == 0);
    json_t *bench = json_of(&o);
    const double found = json_number_at(bench, "decode.tok_s.median");
    json_decref(bench);
    forget(&o);
    print_message("%s %s %s: expected %.1f to %.1f tokens per second, measured %.1f\n", model, more,
                  value, least, most, found);
    T_FGE(found, least);
    T_FLE(found, most);
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
