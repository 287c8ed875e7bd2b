/* gguf_cli.c - `coli convert model.gguf OUT`, as people meet it. */
#include <dirent.h>

#include "programs.h"

#define MIX    TEST_FIXTURES "/gguf/tiny-mix.gguf"
#define CORPUS TEST_FIXTURES "/../fuzz/corpus/gguf"

T_TEST(converts_and_says_what_became_of_it)
{
    T_BEGIN;
    const char *out = scratch_path("mix");
    outcome o = RUN("coli", "", "convert", MIX, out);
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.err, "Q8_0 to int8-g32-f16: 0.1618 M weights in 20 matrices, exactly\n"));
    EXPECT(o, has(o.err, "Q4_0 to int4-g32-f16: 0.3932 M weights in 128 matrices, exactly\n"));
    EXPECT(o, has(o.err, "mix is complete\n"));
    forget(&o);
    o = RUN("coli", "", "verify", out);
    EXPECT(o, o.code == 0);
    forget(&o);
    o = RUN("coli", "", "convert", MIX, scratch_path("exact"), "--experts", "int8", "--group",
            "32");
    EXPECT(o, o.code == 0);
    EXPECT(o, has(o.err, "Q4_0 to int8-g32-f16: 0.3932 M weights in 128 matrices, exactly\n"));
    forget(&o);
}

/* Before it is converted: the same numbers, and a first line that says so. */
T_TEST(plans_what_converting_would_make)
{
    T_BEGIN;
    const char *out = scratch_path("planned");
    outcome o = RUN("coli", "", "convert", MIX, out);
    EXPECT(o, o.code == 0);
    forget(&o);
    o = RUN("coli", "", "plan", MIX, "--backend", "none", "--no-measure");
    outcome made = RUN("coli", "", "plan", out, "--backend", "none", "--no-measure");
    EXPECT(o, o.code == 0 && made.code == 0);
    EXPECT(o, has(o.out, "not converted yet: what converting would make"));
    const char *a = strstr(o.out, "in memory, "), *b = strstr(o.out, "memory that can be taken");
    EXPECT(o, a && b && b > a && strncmp(a, made.out, (size_t)(b - a)) == 0);
    forget(&o);
    forget(&made);
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

/* One line, exit code 2, and nothing left behind. */
static void refuses(const char *path, const char *says)
{
    const char *out = scratch_path("none"), *partial = scratch_path("none.partial");
    outcome o = RUN("coli", "", "convert", path, out);
    EXPECT(o, o.code == 2);
    EXPECT(o, has(o.err, says));
    EXPECT(o, strchr(o.err, '\n') == o.err + o.n_err - 1);
    EXPECT(o, access(out, F_OK) != 0 && access(partial, F_OK) != 0);
    forget(&o);
}

/* Small files, most of which lie: counts and offsets that overflow, strings and arrays that would fill
 * memory, keys and tensors there twice, wrong alignment, wrong kinds, overlaps. */
T_TEST(what_the_fuzzer_has)
{
    T_BEGIN;
    DIR *dir = opendir(CORPUS);
    assert_non_null(dir);
    int n = 0;
    for (const struct dirent *e; (e = readdir(dir)); n += e->d_name[0] != '.') {
        char path[512];
        if (e->d_name[0] == '.' || strcmp(e->d_name, "model") == 0) continue; // that one is right
        snprintf(path, sizeof path, CORPUS "/%s", e->d_name);
        refuses(path, e->d_name);
    }
    closedir(dir);
    T_GE(n, 20);
    refuses(CORPUS "/string-bomb", "key ");
    refuses(CORPUS "/array-bomb", "key ");
    refuses(CORPUS "/many-keys", "keys: more than");
    refuses(CORPUS "/many-tensors", "tensors: more than");
    refuses(CORPUS "/duplicate-key", "is there twice");
    refuses(CORPUS "/same-tensor", "is there twice");
    refuses(CORPUS "/alignment", "general.alignment");
    refuses(CORPUS "/offset", "of the data");
    refuses(CORPUS "/overlap", "overlaps tensor");
    refuses(CORPUS "/dims", "its dims");
}

static void spill_part(const char *name, const char *from)
{
    size_t n;
    char path[512];
    snprintf(path, sizeof path, TEST_FIXTURES "/gguf/%s", from);
    char *bytes = slurp(path, &n);
    spill(scratch_path(name), bytes, n);
    free(bytes);
}

/* A part that is missing, is another one, or has another name than it says. */
T_TEST(parts_that_do_not_belong_together)
{
    T_BEGIN;
    spill_part("m-00001-of-00003.gguf", "tiny-00001-of-00003.gguf");
    refuses(scratch_path("m-00001-of-00003.gguf"), "m-00002-of-00003.gguf");
    spill_part("m-00002-of-00003.gguf", "tiny-00002-of-00003.gguf");
    spill_part("m-00003-of-00003.gguf", "tiny-00002-of-00003.gguf");
    refuses(scratch_path("m-00001-of-00003.gguf"), "expected part 3 of 3");
    spill_part("m-00003-of-00003.gguf", "tiny-mix.gguf");
    refuses(scratch_path("m-00001-of-00003.gguf"), "expected part 3 of 3");
    spill_part("alone.gguf", "tiny-00003-of-00003.gguf");
    refuses(scratch_path("alone.gguf"), "part 3 of 3; expected a name that ends with");
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
    o = RUN("coli", "", "plan", TEST_FIXTURES "/gguf/README.md", "--no-measure");
    EXPECT(o, o.code == 2);
    EXPECT(o, has(o.err, "README.md: is no GGUF file"));
    EXPECT(o, has(o.err, "hint: a model is a directory, as `coli convert` and "));
    forget(&o);
    o = RUN("coli", "", "plan", TEST_FIXTURES "/gguf/kinds.gguf", "--no-measure");
    EXPECT(o, o.code == 2);
    EXPECT(o, has(o.err, "is not a known family") && !has(o.err, "hint: "));
    forget(&o);
    // containers that others made, and packs
    const char *dir = scratch_path("others"), *meta = scratch_path("others/qwen36_meta.json");
    T_EQ(mkdir(dir, 0700), 0);
    spill(meta, "{}", 2);
    o = RUN("coli", "", "info", dir);
    EXPECT(o, o.code == 2 && has(o.err, "hint: that is a container of another engine: `coli conv"));
    forget(&o);
    o = RUN("coli", "", "info", TEST_FIXTURES "/gguf/README.md");
    EXPECT(o, o.code == 2 && has(o.err, "hint: a model is a directory, as `coli convert` and "));
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
        cmocka_unit_test(plans_what_converting_would_make),
        cmocka_unit_test(a_torn_file_is_refused),
        cmocka_unit_test(what_the_fuzzer_has),
        cmocka_unit_test(parts_that_do_not_belong_together),
        cmocka_unit_test(what_is_no_model_of_ours),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
