/* route_cli.c - cache-aware routing as people meet it: what is said, what is refused, what changes. */
#include <jansson.h>

#include "programs.h"

#define QUESTION "What is 17 + 25?"
#define RUN_ON_QUARTER(...)                                                                        \
    RUN("coli", "", "run", "--backend", "fake", "--vram", "25%", "--no-think", "--temp", "0",      \
        __VA_ARGS__, QUESTION)

/* Without a device: everything is in RAM, so nothing is exchanged. */
static outcome run_alone(const char *const *env)
{
    return run_with("coli", "", 0, env,
                    LIST("run", "--backend", "none", "--no-think", "--temp", "0", QUESTION));
}

T_TEST(says_that_it_is_lossy_and_what_it_cost)
{
    T_BEGIN;
    outcome o = RUN_ON_QUARTER("--cache-route");
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.err, "\nCACHE_ROUTE=1 J=2 M=12 P=0.00 alpha=1.00: VRAM tier > RAM cache > disk "
                         "inside the top-M window (lossy: A/B it)\n"));
    const char *footer = strstr(o.err, "\nCACHE_ROUTE J=2 M=12 P=0.00 alpha=1.00 | swap ");
    double swap = 0, agree = 0, kl = 0;
    unsigned n_swap = 0, n_slot = 0, n_vram = 0;
    EXPECT(o, footer && sscanf(footer + strlen("\nCACHE_ROUTE J=2 M=12 P=0.00 alpha=1.00 | swap "),
                               "%lf%% (%u/%u, %u to VRAM)", &swap, &n_swap, &n_slot, &n_vram) == 4);
    footer = strstr(o.err, "\nroute_agree ");
    EXPECT(o, footer && sscanf(footer, "\nroute_agree %lf%% | route_kl %lf\n", &agree, &kl) == 2);
    T_TRUE(n_swap > 0 && n_vram == n_swap);
    T_EQ(n_slot % (8 * 6), 0); // layers, experts of a row
    T_FLE(fabs(swap - 100.0 * n_swap / n_slot), 0.0501);
    T_FLE(fabs(swap + agree - 100), 0.101);
    T_TRUE(kl > 0);
    forget(&o);

    outcome again = RUN_ON_QUARTER("--cache-route", "--threads", "3", "--chunk", "5", "--json");
    json_t *root = json_loads(again.out, 0, NULL), *route = json_object_get(root, "route");
    T_EQ(json_integer_value(json_object_get(route, "route_swaps")), n_swap);
    T_EQ(json_integer_value(json_object_get(route, "route_swaps_vram")), n_vram);
    T_EQ(json_integer_value(json_object_get(route, "route_slots")), n_slot);
    T_FLE(fabs(json_real_value(json_object_get(route, "swap_pct")) - swap), 0.0501);
    T_FLE(fabs(json_real_value(json_object_get(route, "route_agree")) - agree), 0.0501);
    T_FLE(fabs(json_real_value(json_object_get(route, "route_kl")) - kl), 0.0000501);
    json_decref(root);
    forget(&again);
}

T_TEST(off_says_nothing)
{
    T_BEGIN;
    outcome off = RUN_ON_QUARTER("--json"), meter = RUN_ON_QUARTER("--route-agree");
    EXPECT(off, off.code == 0 && !has(off.err, "ROUTE") && !has(off.err, "route_"));
    json_t *root = json_loads(off.out, 0, NULL);
    T_TRUE(json_is_null(json_object_get(root, "route")));
    json_decref(root);
    forget(&off);
    EXPECT(meter, !has(meter.err, "CACHE_ROUTE"));
    EXPECT(meter, has(meter.err, "\nroute_agree 100.0% | route_kl 0.0000\n"));
    off = RUN_ON_QUARTER("--threads", "1");
    EXPECT(off, strcmp(off.out, meter.out) == 0);
    forget(&off);
    forget(&meter);
}

T_TEST(variables_of_the_field)
{
    T_BEGIN;
    outcome o = run_alone(
        LIST("CACHE_ROUTE=1", "ROUTE_J=0", "ROUTE_M=24", "ROUTE_P=0.5", "ROUTE_ALPHA=0.9"));
    EXPECT(o, has(o.err, "CACHE_ROUTE=1 J=0 M=24 P=0.50 alpha=0.90: "));
    EXPECT(o, has(o.err, "\nCACHE_ROUTE J=0 M=24 P=0.50 alpha=0.90 | swap 0.0% (0/"));
    EXPECT(o, has(o.err, ", 0 to VRAM)\nroute_agree 100.0% | route_kl 0.0000\n"));
    forget(&o);
    o = run_alone(LIST("CACHE_ROUTE=1", "ROUTE_AGREE=0"));
    EXPECT(o, has(o.err, "| swap 0.0% (0/") && !has(o.err, "route_agree"));
    forget(&o);
    o = run_alone(LIST("CACHE_ROUTE=0", "ROUTE_AGREE=1"));
    EXPECT(o, !has(o.err, "CACHE_ROUTE") && has(o.err, "\nroute_agree 100.0%"));
    forget(&o);
    o = run_alone(LIST("CACHE_ROUTE=yes"));
    EXPECT(o, o.code == 2 && has(o.err, "CACHE_ROUTE: expected 1 or 0, found \"yes\""));
    forget(&o);
}

T_TEST(knobs_without_effect_are_named)
{
    T_BEGIN;
    outcome o = run_with("coli", "", 0, LIST("ROUTE_M=8"),
                         LIST("run", "--backend", "none", "--no-think", "--route-j", "1",
                              "--route-live", "-n", "1", QUESTION));
    EXPECT(o, has(o.err, "warning: ROUTE_M has no effect without CACHE_ROUTE=1\n"));
    EXPECT(o, has(o.err, "warning: --route-j has no effect without --cache-route\n"));
    EXPECT(o, has(o.err, "warning: --route-live has no effect without --cache-route\n"));
    EXPECT(o, !has(o.err, "route-p") && !has(o.err, "ROUTE_P"));
    forget(&o);
    o = RUN("coli", "", "run", "--cache-route", "--route-m", "0", QUESTION);
    EXPECT(o, o.code == 2 && has(o.err, "--route-m: expected"));
    forget(&o);
    o = RUN("coli", "", "run", "--cache-route", "--route-p", "1.5", QUESTION);
    EXPECT(o, o.code == 2 && has(o.err, "--route-p: expected"));
    forget(&o);
}

/* Which of the two is faster may change from run to run, and with it what is resident: not even a slow device
 * is tried. */
T_TEST(no_stopwatch_decides)
{
    T_BEGIN;
#define RUN_SLOW(...)                                                                              \
    RUN("coli", "", "run", "--backend", "fake", "--backend-options", "kernel=1ms", "--vram",       \
        "12MiB", "--no-think", "--temp", "0", "-n", "2", __VA_ARGS__, QUESTION)
    outcome o = RUN_SLOW("--cache-route");
    EXPECT(o, o.code == 0 && has(o.err, " dnproj") && !has(o.err, "trunk: not on device"));
    forget(&o);
    o = RUN_SLOW("--cache-route", "--route-live");
    EXPECT(o, o.code == 0 && has(o.err, "trunk: not on device 0: it takes"));
    forget(&o);
}

T_TEST(live_is_said)
{
    T_BEGIN;
    outcome o = RUN_ON_QUARTER("--cache-route", "--route-live");
    EXPECT(o, o.code == 0 && has(o.err, "(lossy: A/B it), live\n"));
    forget(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(says_that_it_is_lossy_and_what_it_cost),
                                       cmocka_unit_test(off_says_nothing),
                                       cmocka_unit_test(variables_of_the_field),
                                       cmocka_unit_test(knobs_without_effect_are_named),
                                       cmocka_unit_test(no_stopwatch_decides),
                                       cmocka_unit_test(live_is_said)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
