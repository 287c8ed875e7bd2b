/* backend_check.c - `coli backend check` passes what is right and names what is wrong.
 *
 * The plugins are support/wrong/wrong_plugin.c with one mistake each.  A check that only found that
 * something is wrong would be of little use: the report must say what. */
#include "t.h"

#include "coli/coli.h"

typedef struct heard {
    char text[1 << 16]; // all lines
    size_t n_bytes;
    uint32_t n_line, n_fault;
} heard;

static void on_line(void *user, const char *line, bool is_fault)
{
    heard *h = user;
    h->n_line++;
    h->n_fault += is_fault;
    const int n = snprintf(h->text + h->n_bytes, sizeof h->text - h->n_bytes, "%s\n", line);
    h->n_bytes += (size_t)n;
    assert_true(h->n_bytes < sizeof h->text);
}

static coli_status check(const char *path, const char *only, const char *options, uint32_t limit_s,
                         heard *h, coli_check_result *result)
{
    const coli_check_opts opts = {.struct_size = sizeof opts,
                                  .options = options,
                                  .only = only,
                                  .seed = 7,
                                  .limit_s = limit_s,
                                  .on_line = on_line,
                                  .user = h};
    *h = (heard){0};
    *result = (coli_check_result){.struct_size = sizeof *result};
    return coli_backend_check(path, &opts, result);
}

T_TEST(a_right_plugin_passes)
{
    T_BEGIN;
    static heard h;
    coli_check_result r;
    T_OK(check(TEST_WRONG "/coli_wrong_NONE.so", NULL, NULL, 0, &h, &r));
    if (r.n_fault) print_error("%s", h.text);
    T_EQ(r.n_fault, 0);
    T_EQ(h.n_line, r.n_case);
    T_EQ(r.n_skipped, 1); // it declares all formats, so none can be refused
    T_GE(r.n_case, 42);
}

/* The mistake, the case that must notice it, and what the report must say. */
static const struct {
    const char *mistake, *only, *says;
} mistakes[] = {
    {"ROUNDING", "N4", "rounded half away from zero, not half to even"},
    {"TRUNCATED", "N1", "look truncated, not rounded"},
    {"UNIT", "N1", "looks like amax / 127"},
    {"GATE_UP", "N1", "gate and up look exchanged"},
    {"SILU", "N1", "silu looks computed with a division"},
    {"DIVISION", "N4", "divided by d, not multiplied by coli_recip(d)"},
    {"SEQUENTIAL", "N1", "with K=256: row 0"},
    {"SEQUENTIAL", "N1", "the sum looks sequential, not a tree"},
    {"FAR_PAIRS", "N1", "the tree looks like pairs i and i+n/2, not neighbours"},
    {"IN_DOUBLE", "N1", "the sum looks like one in double"},
    {"MINUS_ZERO", "N2", "-0 where the sum's last +0 is missing"},
    {"LATER_SCALE", "N1", "applied late: to the sum instead of to each group"},
    {"NO_EXP", "N1", "scale_exp looks ignored"},
    {"HALF_DENORMALS", "N1", "denormal f16 scales look read as 0"},
    {"HALF_SIGN", "N1", "the sign of f16 scales looks ignored"},
    {"UNSIGNED", "N1", "the codes look unsigned"},
    {"ROW_STRIDE", "N5", "rows of q look read n_in apart"},
    {"FUSED", "N1", "look fused"},
    {"LATE_SCALE", "N1", "the weight scale looks applied late"},
    {"NIBBLES", "N1", "nibbles look read as even and odd columns"},
    {"LAST_GROUP", "N1", "the last group looks ignored"},
    {"ODD_WIDTH", "N5", "the last column of a width that is no multiple of the group"},
    {"NO_FLAG", "N3", "flag is 0, expected 1"},
    {"ROWS_SWAPPED", "W1", "rows look swapped"},
    {"ZERO_ROWS", "W8", "group_issue refused experts with zero rows"},
    {"HOST_MEMORY", "W5", "what the host wrote there after the call had returned"},
    {"FAILED_TAKE", "W2", "group_take without issue returned FAILED, expected EMPTY"},
    {"STALE_OVERWRITE", "M5", "the overwrite is stale"},
    {"TORN_OVERWRITE", "M5", "torn mixture: new content up to byte"},
    {"EARLY_FENCE", "M6", "the overwrite is stale"},
    {"LEAK", "M10", "a group leaks"},
    {"SECOND_OPEN", "L13", "while open was running again"},
    {"FAIL_TWICE", "S2", "tensor_upload called host->fail 2 times for one failure"},
    {"SILENT_FAILURE", "S2", "tensor_upload returned INVALID without a call of host->fail"},
    {"WRITES_BEHIND", "S1", "device_info wrote behind the struct"},
    {"ANY_OPTION", "X9", "open accepted the option"},
    {"FORGETFUL", "X7", "close with a group not taken and a tensor not freed left 2 blocks"},
    {"EXITS", "N6", "the process died (exit code 3) while group_take was running"},
};

T_TEST(every_mistake_is_named)
{
    T_BEGIN;
    static heard h;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        char path[512];
        coli_check_result r;
        snprintf(path, sizeof path, "%s/coli_wrong_%s.so", TEST_WRONG, mistakes[i].mistake);
        T_OK(check(path, mistakes[i].only, NULL, 0, &h, &r));
        if (r.n_fault == 0 || !strstr(h.text, mistakes[i].says))
            print_error("%s: no \"%s\" in:\n%s", path, mistakes[i].says, h.text);
        T_TRUE(r.n_fault > 0 && strstr(h.text, mistakes[i].says));
        T_EQ(r.n_fault, h.n_fault);
    }
}

T_TEST(a_hang_is_named_and_ends_the_check)
{
    T_BEGIN;
    static heard h;
    coli_check_result r;
    T_OK(check(TEST_WRONG "/coli_wrong_HANG.so", NULL, NULL, 8, &h, &r));
    T_EQ(r.n_fault, 1);
    T_TRUE(strstr(h.text, "nothing happened for 8 s while group_take was running") != NULL);
    T_TRUE(strstr(h.text, "The other cases were not tried") != NULL);
}

T_TEST(what_cannot_be_checked)
{
    T_BEGIN;
    static heard h;
    coli_check_result r;
    T_FAILS(check("/nowhere/coli_x.so", NULL, NULL, 0, &h, &r), COLI_E_NOTFOUND,
            "/nowhere/coli_x.so");
    T_FAILS(check(TEST_WRONG "/coli_wrong_NONE.so", "N99", NULL, 0, &h, &r), COLI_E_INVALID, "N99");
    T_FAILS(check(__FILE__, NULL, NULL, 0, &h, &r), COLI_E_FORMAT, "backend_check.c");
    const coli_check_opts opts = {.struct_size = sizeof opts, .device = 3, .only = "X5"};
    T_FAILS(coli_backend_check(TEST_WRONG "/coli_wrong_NONE.so", &opts, &r), COLI_E_NOTFOUND,
            "there is no device 3: the plugin has 1");
    // options reach the plugin: this one has none, and says so
    T_OK(check(TEST_WRONG "/coli_wrong_NONE.so", "X5", "speed=9", 0, &h, &r));
    T_TRUE(strstr(h.text, "open returned INVALID, expected OK: \"wrong: there are no options\"") !=
           NULL);
    T_EQ(h.n_fault, 1);
}

T_TEST(one_case_alone_has_the_same_inputs)
{
    T_BEGIN;
    static heard all, alone;
    coli_check_result r;
    T_OK(check(TEST_WRONG "/coli_wrong_DIVISION.so", "numbers", NULL, 0, &all, &r));
    T_OK(check(TEST_WRONG "/coli_wrong_DIVISION.so", "N4", NULL, 0, &alone, &r));
    T_EQ(r.n_case, 1);
    T_TRUE(strstr(all.text, alone.text) != NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_plugin_passes),
        cmocka_unit_test(every_mistake_is_named),
        cmocka_unit_test(a_hang_is_named_and_ends_the_check),
        cmocka_unit_test(what_cannot_be_checked),
        cmocka_unit_test(one_case_alone_has_the_same_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
