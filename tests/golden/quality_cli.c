/* quality_cli.c - `coli bench --quality` as a script meets it: tables, JSON, verdicts in exit codes, errors,
 * Ctrl-C. */
#include "json_out.h"

#define TASKS TEST_FIXTURES "/hummingbird"
#define EVERY "bench", "--quality", TASKS, "--every", "40", "--threads", "2"

T_TEST(scores_of_one)
{
    T_BEGIN;
    outcome o = RUN("coli", "", EVERY);
    EXPECT(o,
           o.code == 0 && has(o.out, "perplexity") && has(o.out, "choice") && has(o.out, "exact"));
    EXPECT(o, has(o.out, "6 of 6") && has(o.out, "  add") && has(o.err, "score: "));
    forget(&o);
    o = RUN("coli", "", EVERY, "--json");
    EXPECT(o, o.code == 0);
    json_t *root = json_of(&o);
    T_EQ(json_array_size(json_at(root, "sides")), 1);
    T_EQ(json_array_size(json_at(root, "sides.0.items")), 5 + 6 + 6);
    T_EQ(strlen(json_text_at(root, "tasks")), 32);
    T_EQ(json_number_at(root, "sides.0.scores.nll.items"), 5);
    T_TRUE(json_at(root, "losses") == NULL && json_at(root, "verdict") == NULL);
    /* The means follow from the items. */
    double nll = 0, n = 0, right = 0;
    const json_t *item;
    size_t i;
    json_array_foreach(json_at(root, "sides.0.items"), i, item)
    {
        T_TRUE(json_number_at(item, "line") >= 1 && has(json_text_at(item, "file"), ".jsonl"));
        if (strcmp(json_text_at(item, "kind"), "text") == 0) {
            nll += json_number_at(item, "nll");
            n += json_number_at(item, "tokens");
        } else if (strcmp(json_text_at(item, "kind"), "exact") == 0) {
            right += json_is_true(json_object_get(item, "right"));
            T_TRUE(*json_text_at(item, "answer") != 0);
        } else {
            T_EQ(json_array_size(json_object_get(item, "logprob")), 4);
            T_EQ(json_is_true(json_object_get(item, "right")),
                 json_number_at(item, "pick") == json_number_at(item, "label"));
        }
    }
    T_FLE(fabs(nll / n - json_number_at(root, "sides.0.scores.nll.mean")), 1e-12);
    T_FLE(fabs(right / 6 - json_number_at(root, "sides.0.scores.exact.mean")), 1e-12);
    json_decref(root);
    forget(&o);
}

/* The same setting twice is as good as itself; a limit of nothing is kept where nothing differs, and
 * cannot be told of so few choices; a limit below nothing is none. */
T_TEST(verdicts)
{
    T_BEGIN;
    static const struct {
        const char *limit, *verdict;
        int code;
    } table[] = {
        {"choice=50%,exact=50%", "pass", 0},
        {"ppl=0,kl=0,choice=none,exact=none", "pass", 0},
        {"choice=1%,exact=none", "undecided", 4},
    };
    const char *file = scratch_path("base");
    outcome o = RUN("coli", "", EVERY, "--record", file);
    EXPECT(o, o.code == 0);
    forget(&o);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        o = RUN("coli", "", EVERY, "--compare", file, "--threads 1", "--limit", table[i].limit,
                "--json");
        EXPECT(o, o.code == table[i].code);
        json_t *root = json_of(&o);
        T_STR(json_text_at(root, "verdict"), table[i].verdict);
        T_STR(json_text_at(root, "sides.0.file"), file);
        T_STR(json_text_at(root, "sides.1.options"), "--threads 1");
        T_TRUE(json_number_at(root, "losses.kl.b") == 0 &&
               json_number_at(root, "losses.nll.loss") == 0);
        T_TRUE(json_number_at(root, "losses.top.b") == 1);
        json_decref(root);
        forget(&o);
    }
    o = RUN("coli", "", EVERY, "--compare", "", file, "--limit", "choice=50%,exact=50%");
    EXPECT(o, o.code == 0 && has(o.out, "verdict: pass") && !has(o.out, "\nKL "));
    forget(&o);
    o = RUN("coli", "", EVERY, "--record", file);
    EXPECT(o, o.code == 2 && has(o.err, "already exists"));
    forget(&o);
}

/* The gate: routing that takes what is in VRAM without a sure rank and from a wide window is refused, the
 * default's loss is found small, and the texts' rows tell. */
T_TEST(the_gate_on_cache_aware_routing)
{
    T_BEGIN;
#ifndef TEST_FAKE
    skip();
#endif
#define ROUTED                                                                                     \
    "--backend fake --place off --vram 25% --heat '" TASKS                                         \
    "/heat.bin' --heat-readonly --cache-route"
    outcome o = RUN("coli", "", "bench", "--quality", TASKS "/ppl.jsonl", "--every", "8",
                    "--compare", "--backend none", ROUTED " --route-j 0 --route-m 24", "--json");
    EXPECT(o, o.code == 3);
    json_t *root = json_of(&o);
    T_STR(json_text_at(root, "verdict"), "FAIL");
    T_STR(json_text_at(root, "losses.kl.verdict"), "FAIL");
    T_STR(json_text_at(root, "losses.nll.verdict"), "FAIL");
    T_TRUE(json_number_at(root, "losses.kl.low") > 0.5 &&
           json_number_at(root, "losses.top.b") < 0.9);
    T_TRUE(json_number_at(root, "sides.1.route.swap_pct") > 40 &&
           json_number_at(root, "sides.1.hit_rate") > 0.7);
    T_TRUE(json_at(root, "sides.0.hit_rate") == NULL && json_at(root, "sides.0.route") == NULL);
    json_decref(root);
    forget(&o);
    o = RUN("coli", "", "bench", "--quality", TASKS "/ppl.jsonl", "--every", "8", "--compare",
            "--backend none", ROUTED);
    EXPECT(o, o.code == 0 && has(o.out, "verdict: pass") && has(o.out, "swapped "));
    forget(&o);
    /* The device alone changes nothing at all. */
    o = RUN("coli", "", "bench", "--quality", TASKS "/ppl.jsonl", "--every", "16", "--compare",
            "--backend none", "--backend fake --vram 25%", "--limit", "ppl=0,kl=0");
    EXPECT(o, o.code == 0 && has(o.out, "VRAM hit rate"));
    forget(&o);
}

T_TEST(refusals)
{
    T_BEGIN;
    const char *bad = scratch_path("bad.jsonl");
    spill(bad, "{\"text\": \"a b c\"}\n\n{\"text\": 3}\n", 31);
    static const struct {
        const char *args[12], *err;
    } cases[] = {
        {{"bench", "--every", "4"}, "--every has no effect without --quality"},
        {{"bench", "--compare", "", ""}, "--compare has no effect without --quality"},
        {{"bench", "--quality", TASKS, "--decode", "4"}, "--decode has no effect with --quality"},
        {{"bench", "--quality", TASKS, "--every", "0"}, "--every: expected a whole number from 1"},
        {{"bench", "--quality", ""}, "--quality: expected a path"},
        {{"bench", "--quality", "/absent"}, "/absent"},
        {{"bench", "--quality", TASKS, "--limit", "kl=1"},
         "--limit is what --compare compares with"},
        {{"bench", "--quality", TASKS, "--compare", ""}, "--compare needs two values"},
        {{"bench", "--quality", TASKS, "--compare"}, "--compare needs a value"},
        {{"bench", "--quality", TASKS, "--compare", "", "", "x"}, "unexpected argument \"x\""},
        {{"bench", "--quality", TASKS, "--compare", "", "--vrm 25%"}, "unknown option --vrm"},
        {{"bench", "--quality", TASKS, "--compare", "--vram 8x", ""}, "--vram: expected auto"},
        {{"bench", "--quality", TASKS, "--compare", "--vram", ""}, "--vram needs a value"},
        {{"bench", "--quality", TASKS, "--compare", "--json", ""},
         "--json is not an option of `coli bench --compare`"},
        {{"bench", "--quality", TASKS, "--compare", "--model 'x", ""}, "quotes in pairs"},
        {{"bench", "--quality", TASKS, "--compare", "--threads 1 x", ""},
         "expected options, found \"x\""},
        {{"bench", "--quality", TASKS, "--compare", "", "absent"},
         "a file of scores, found \"absent\""},
        {{"bench", "--quality", TASKS, "--compare", TASKS "/ppl.jsonl", ""}, "no file of scores"},
        {{"bench", "--quality", TASKS, "--compare", "", "", "--limit", "kl"}, "--limit: expected"},
        {{"bench", "--quality", TASKS, "--compare", "", "", "--limit", "kl=1,"},
         "--limit: expected"},
        {{"bench", "--quality", TASKS, "--compare", "", "", "--limit", "kl=-1"},
         "--limit: expected"},
        {{"bench", "--quality", TASKS, "--compare", "", "", "--record", "x"}, "without --compare"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome o = run_with("coli", "", 0, NULL, cases[i].args);
        EXPECT(o, o.code == 2 && o.n_out == 0 && has(o.err, cases[i].err));
        forget(&o);
    }
    outcome o = RUN("coli", "", "bench", "--quality", bad);
    EXPECT(o, o.code == 2 && has(o.err, "bad.jsonl: line 3: text: expected a string\n"));
    forget(&o);
    o = RUN("coli", "", "help", "bench");
    EXPECT(o, o.code == 0 && has(o.out, "HellaSwag") && has(o.out, "--compare A B"));
    forget(&o);
}

/* Ctrl-C while it scores: one line, exit code 130, and no file. */
T_TEST(interrupted)
{
    T_BEGIN;
    const char *file = scratch_path("never"), *err = scratch_path("err"),
               *out = scratch_path("out");
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(TIMEOUT_S);
        open_as(0, "/dev/null", O_RDONLY);
        open_as(1, out, O_WRONLY | O_CREAT | O_TRUNC);
        open_as(2, err, O_WRONLY | O_CREAT | O_TRUNC);
        become("coli", LIST("bench", "--quality", TASKS, "--threads", "1", "--record", file), NULL);
    }
    size_t n = 0;
    for (int i = 0; i < 3000; i++) { // the banner is the last thing before it begins
        char *said = slurp(err, &n);
        const bool begun = has(said, "weights");
        free(said);
        if (begun) break;
        usleep(10000);
    }
    usleep(200000);
    T_EQ(kill(pid, SIGINT), 0);
    T_EQ(exit_code(pid), 130);
    char *said = slurp(err, &n);
    T_TRUE(has(said, "coli: stopped\n"));
    free(said);
    said = slurp(out, &n);
    T_EQ(n, 0);
    free(said);
    T_TRUE(access(file, F_OK) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_of_one),
        cmocka_unit_test(verdicts),
        cmocka_unit_test(the_gate_on_cache_aware_routing),
        cmocka_unit_test(refusals),
        cmocka_unit_test(interrupted),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
