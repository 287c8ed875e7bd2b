/* gguf_cli.c - `coli convert model.gguf OUT`, as people meet it. */
#include "programs.h"

#define MIX TEST_FIXTURES "/gguf/tiny-mix.gguf"

T_TEST(converts_and_says_what_became_of_it)
{
    T_BEGIN;
    const char *out = scratch_path("mix");
    outcome o = RUN("coli", "", "convert", MIX, out);
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.err, "Q8_0 to int8-g32-f16: 0.1618 M weights, exactly\n"));
    EXPECT(o, has(o.err, "Q4_0 to int4-g32-f16: 0.3932 M weights, exactly\n"));
    EXPECT(o, has(o.err, "mix is complete\n"));
    forget(&o);
    o = RUN("coli", "", "verify", out);
    EXPECT(o, o.code == 0);
    forget(&o);
    o = RUN("coli", "", "convert", MIX, scratch_path("exact"), "--experts", "int8", "--group",
            "32");
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.err, "Q4_0 to int8-g32-f16: 0.3932 M weights, exactly\n"));
    forget(&o);
}

/* Only the padding behind the last tensor can be missing: then the file is whole. */
T_TEST(a_torn_file_is_refused)
{
    T_BEGIN;
    size_t n;
    char *bytes = slurp(MIX, &n);
    const char *torn = scratch_path("torn.gguf"), *out = scratch_path("none");
    const size_t sizes[] = {0, 3, 23, 24, 500, 5000, 20000, n / 2, n - 100};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        spill(torn, bytes, sizes[i]);
        outcome o = RUN("coli", "", "convert", torn, out);
        EXPECT(o, o.code == 2);
        EXPECT(o, has(o.err, "torn.gguf: ") && strchr(o.err, '\n') == o.err + o.n_err - 1);
        EXPECT(o, access(out, F_OK) != 0);
        forget(&o);
    }
    free(bytes);
}

T_TEST(what_is_no_model_of_ours)
{
    T_BEGIN;
    outcome o = RUN("coli", "", "convert", TEST_FIXTURES "/gguf/kinds.gguf", scratch_path("none"));
    EXPECT(o, o.code == 2);
    EXPECT(o, has(o.err, "general.architecture: \"kinds\" is not a known family"));
    forget(&o);
    o = RUN("coli", "", "convert", TEST_FIXTURES "/gguf/README.md", scratch_path("none"));
    EXPECT(o, o.code == 2);
    EXPECT(o, has(o.err, "README.md: is no GGUF file"));
    forget(&o);
    o = RUN("coli", "", "run", "--model", MIX, "hello");
    EXPECT(o, o.code == 2);
    EXPECT(o, has(o.err, "that is a GGUF file: `coli convert "));
    forget(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(converts_and_says_what_became_of_it),
        cmocka_unit_test(a_torn_file_is_refused),
        cmocka_unit_test(what_is_no_model_of_ours),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
