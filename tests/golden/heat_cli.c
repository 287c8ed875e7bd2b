/* heat_cli.c - `coli heat`, as people meet it. */
#include <jansson.h>

#include "programs.h"

enum { N_LAYER = 8, N_EXPERT = 64, N = N_LAYER * N_EXPERT }; // of the demo model

/* A file of the older format. */
static const char *older(const char *name, uint32_t n_layer, const uint32_t *counts)
{
    uint32_t words[3 + N] = {0x51544831, n_layer, N_EXPERT};
    uint8_t bytes[sizeof words];
    memcpy(words + 3, counts, N * sizeof *words);
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(words[i / 4] >> 8 * (i % 4));
    spill(scratch_path(name), (const char *)bytes, sizeof bytes);
    return scratch_path(name);
}

/* Layer 1: half of 20 is in the hottest two; layer 7: one expert. */
static const char *make(const char *name)
{
    uint32_t counts[N] = {0};
    counts[N_EXPERT + 5] = 7;
    counts[N_EXPERT + 3] = 4;
    for (int e = 10; e < 19; e++) counts[N_EXPERT + e] = 1;
    counts[7 * N_EXPERT + 63] = 80;
    const char *path = scratch_path(name);
    unlink(path);
    outcome o =
        RUN("coli", "", "heat", "import", path, older("older", N_LAYER, counts), "--model", MODEL);
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.out, ": imported: heat 100, 0 tokens, 8 layers of 64 experts\n"));
    forget(&o);
    return path;
}

T_TEST(shows)
{
    T_BEGIN;
    const char *path = make("heat");
    outcome o = RUN("coli", "", "heat", "show", path);
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.out, ", heat of the model f007df1387ecb2e8894a2149aced864a\n"
                         "  shape        8 layers of 64 experts\n"
                         "  tokens       0\n"
                         "  heat         100, in 12 of 512 experts, half of it in 1\n\n"
                         "  layer         heat   used   half  hottest\n"
                         "      0            0      0      0\n"
                         "      1           20     11      2  5: 7  3: 4  10: 1  11: 1\n"));
    EXPECT(o, has(o.out, "      7           80      1      1  63: 80\n"));
    forget(&o);

    o = RUN("coli", "", "heat", "show", "--json", path);
    EXPECT(o, o.code == 0);
    json_t *heat = json_loads(o.out, 0, NULL), *counts = json_object_get(heat, "counts");
    T_EQ(json_array_size(counts), N_LAYER);
    T_EQ(json_integer_value(json_array_get(json_array_get(counts, 1), 5)), 7);
    T_EQ(json_integer_value(json_array_get(json_array_get(counts, 7), 63)), 80);
    T_EQ(json_array_size(json_array_get(counts, 7)), N_EXPERT);
    T_EQ(json_integer_value(json_object_get(heat, "n_token")), 0);
    T_STR(json_string_value(json_object_get(heat, "identity")), "f007df1387ecb2e8894a2149aced864a");
    json_decref(heat);
    forget(&o);
}

T_TEST(merges_and_resets)
{
    T_BEGIN;
    const char *a = make("a"), *b = make("b"), *sum = scratch_path("sum");
    outcome o = RUN("coli", "", "heat", "merge", sum, a, b);
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.out, "sum: the sum of 2 files: heat 200, 0 tokens, 8 layers of 64 experts\n"));
    forget(&o);
    o = RUN("coli", "", "heat", "merge", sum, a);
    EXPECT(o, o.code == 2);
    EXPECT(o, has(o.err, "sum: already exists; to add to it, name it as one of the files"));
    forget(&o);
    o = RUN("coli", "", "heat", "merge", sum, sum, a);
    EXPECT(o, o.code == 0 && has(o.out, "heat 300"));
    forget(&o);
    o = RUN("coli", "", "heat", "reset", sum);
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.out, "sum: forgot heat 300 in 12 experts, 0 tokens\n"));
    forget(&o);
    o = RUN("coli", "", "heat", "show", sum);
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.out, "  heat         0, in 0 of 512 experts, half of it in 0\n"));
    forget(&o);
}

T_TEST(what_makes_no_sense_is_refused)
{
    T_BEGIN;
    const char *good = make("good"), *letter = scratch_path("letter");
    const uint32_t none[N] = {0};
    spill(letter, "a letter\n", 9);
    const struct {
        const char *args[8];
        const char *err;
    } cases[] = {
        {{"heat"}, "too few arguments for heat "},
        {{"heat", "sow", "x"}, "heat: expected show, merge, reset or import, found \"sow\""},
        {{"heat", "show", good, letter}, "heat show: expected one file, found 2 arguments"},
        {{"heat", "merge", good}, "heat merge: expected the file for the sum and one or more to "},
        {{"heat", "reset", good, "--json"}, "heat reset: there is no --json"},
        {{"heat", "show", good, "--model", MODEL}, "heat show: --model belongs to heat import"},
        {{"heat", "show", scratch_path("absent")}, "absent: cannot open: No such file"},
        {{"heat", "show", scratch}, "not a regular file"},
        {{"heat", "show", letter}, "letter: no heat file: expected 89 48 4f 54 0d 0a 1a 0a"},
        {{"heat", "reset", letter}, "letter: no heat file: "},
        {{"heat", "merge", letter, good}, "letter: already exists"},
        {{"heat", "merge", good, good, letter}, "letter: no heat file: "},
        {{"heat", "show", older("old", 8, none)}, "the older format, which names no model"},
        {{"heat", "import", good, scratch_path("old"), "--model", MODEL}, "already exists"},
        {{"heat", "import", scratch_path("x"), older("7", 7, none), "--model", MODEL},
         "expected 8 layers of 64 experts, as the model has; found 7 of 64"},
        {{"run", "--jsonl", "x"}, "hint: it belongs to"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome o = run_with("coli", "", 0, NULL, cases[i].args);
        EXPECT(o, o.code == 2);
        EXPECT(o, has(o.err, cases[i].err));
        EXPECT(o, o.n_out == 0);
        forget(&o);
    }
    size_t n;
    char *text = slurp(letter, &n);
    T_STR(text, "a letter\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shows),
        cmocka_unit_test(merges_and_resets),
        cmocka_unit_test(what_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
