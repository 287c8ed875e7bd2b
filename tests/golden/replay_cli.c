/* replay_cli.c - `coli replay` as people meet it: table, CSV, plot, and what makes no sense. */
#include "coli/coli.h"
#include "programs.h"

#define FIELD TEST_FIXTURES "/traces/field256"

T_TEST(the_table)
{
    T_BEGIN;
    outcome o = RUN("coli", "", "replay", FIELD, "--residency", "37.5%,205", "--policy",
                    "foreign,replan,oracle", "--cap", "12,none", "--machine", "link=0");
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.out, "24 prompts, 3 layers, 8 of 256 experts per token; 220 prompt and 300 "
                         "answer tokens on average\n"));
    EXPECT(o, has(o.out, "\n37.5 % resident, 96 of each layer\n"));
    EXPECT(o, has(o.out, "\n80.1 % resident, 205 of each layer\n"));
    EXPECT(o, has(o.out, "  replan cap 12                       68.8 ± 1.1   +10.4 ± 0.9"));
    EXPECT(o, has(o.out, "  replan no cap                       73.8 ± 0.9   +15.4 ± 1.4"));
    EXPECT(o, has(o.out, "  oracle "));
    EXPECT(o, !has(o.out, "lru"));
    forget(&o);
}

T_TEST(csv_and_plot)
{
    T_BEGIN;
    const char *svg = scratch_path("plot.svg");
    outcome o = RUN("coli", "", "replay", FIELD, "--residency", "12.5%,50%", "--policy",
                    "foreign,replan", "--machine", "link=0", "--csv", "-", "--svg", svg);
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.out, "policy,resident,share,cap,drain,min_count,allowance,hit,hit_ci,"));
    EXPECT(o, has(o.out, "\nforeign,32,0.1250,0,0,0,none,0.2478,"));
    EXPECT(o, has(o.out, "\nreplan,128,0.5000,24,4,1,none,0.8198,"));
    EXPECT(o, !has(o.out, "resident, "));
    forget(&o);
    size_t n;
    char *text = slurp(svg, &n);
    T_TRUE(has(text, "<svg xmlns=\"http://www.w3.org/2000/svg\""));
    T_TRUE(has(text, ">replan</text>") && has(text, ">experts in VRAM, %</text>"));
    T_TRUE(has(text, "</svg>\n") && !has(text, "nan"));
    free(text);

    o = RUN("coli", "", "replay", FIELD, "--residency", "96", "--policy", "replan,lru",
            "--allowance", "12,24", "--svg", svg, "--csv", scratch_path("t.csv"));
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.out, "  lru allowance 24 "));
    forget(&o);
    text = slurp(svg, &n);
    T_TRUE(has(text, ">MB moved for a prompt and its answer</text>"));
    free(text);
    text = slurp(scratch_path("t.csv"), &n);
    T_TRUE(has(text, "\nreplan,96,0.3750,24,4,1,12,"));
    free(text);
}

typedef struct usage_case {
    const char *args[8];
    int code;
    const char *err;
} usage_case;

static const usage_case usage_cases[] = {
    {{"replay"}, 2, "too few arguments for replay "},
    {{"replay", TEST_FIXTURES "/none"}, 2, "none.json"},
    {{"replay", FIELD, "--policy", "belado"}, 2, "hint: did you mean belady?"},
    {{"replay", FIELD, "--policy", "lru,"}, 2, "with commas between, found \"lru,\""},
    {{"replay", FIELD, "--against", "x"}, 2, "no policy \"x\""},
    {{"replay", FIELD, "--residency", "0"}, 2, "shares like 12.5% or numbers from 1 to 256"},
    {{"replay", FIELD, "--residency", "101%"}, 2, "found \"101%\""},
    {{"replay", FIELD, "--residency", "-5%"}, 2, "found \"-5%\""},
    {{"replay", FIELD, "--cap", "6,x"}, 2, "--cap: expected whole numbers from 1 or none"},
    {{"replay", FIELD, "--drain", "none"}, 2, "--drain: expected whole numbers from 1, found"},
    {{"replay", FIELD, "--machine", "link=12"}, 2, "\"link=12\" is not understood"},
    {{"replay", FIELD, "--machine", "bw=0"}, 2, "\"bw=0\" is not understood"},
    {{"replay", FIELD, "--machine", "speed=1"}, 2, "\"speed=1\" is not understood"},
    {{"replay", FIELD, "--experts-n", "100"}, 2, "expected experts below 100, found 255"},
    {{"replay", FIELD, "--policy", "lru", "--csv", "/nonexistent/x.csv"},
     1,
     "/nonexistent/x.csv: cannot be written"},
};

T_TEST(what_makes_no_sense_is_refused)
{
    T_BEGIN;
    for (size_t i = 0; i < sizeof usage_cases / sizeof *usage_cases; i++) {
        outcome o = run_with("coli", "", 0, NULL, usage_cases[i].args);
        EXPECT(o, o.code == usage_cases[i].code);
        EXPECT(o, has(o.err, usage_cases[i].err));
        forget(&o);
    }
}

T_TEST(the_help_names_every_policy)
{
    T_BEGIN;
    outcome o = RUN("coli", "", "help", "replay");
    EXPECT(o, o.code == 0);
    for (size_t i = 0; i < coli_replay_n_policy(); i++) {
        coli_replay_policy p = {.struct_size = sizeof p};
        char line[64];
        T_OK(coli_replay_get_policy(i, &p));
        snprintf(line, sizeof line, "\n  %-14s ", p.name);
        EXPECT(o, has(o.out, line));
    }
    forget(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table),
        cmocka_unit_test(csv_and_plot),
        cmocka_unit_test(what_makes_no_sense_is_refused),
        cmocka_unit_test(the_help_names_every_policy),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
