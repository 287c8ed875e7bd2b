/* digests.c - P1 across machines: the logits of the demo model, and of a small model in the other
 * weight formats, hash to what tests/fixtures/digests.txt holds, on every processor and with every
 * instruction set. */
#include "digest.h"

/* The recorded hash of a model. */
static uint64_t recorded(const char *name)
{
    FILE *file = fopen(TEST_FIXTURES "/digests.txt", "r");
    assert_non_null(file);
    char line[200];
    uint64_t h = 0;
    bool found = false;
    while (!found && fgets(line, sizeof line, file)) {
        char *hash = strrchr(line, ' ');
        if (line[0] == '#' || !hash) continue;
        *hash++ = 0;
        found = strcmp(line, name) == 0;
        h = strtoull(hash, NULL, 16);
    }
    fclose(file);
    if (!found) print_error("digests.txt has no \"%s\"\n", name);
    T_TRUE(found);
    return h;
}

/* Whether every instruction set gives the recorded hash; the others are printed. */
static bool is_recorded(const char *name, const char *dir, uint32_t n_prompt)
{
    const uint64_t want = recorded(name);
    bool ok = true;
    for (const char *const *isa = world_isas(); *isa; isa++) {
        const digest got = digest_run(dir, *isa, 2, 64, n_prompt);
        if (got.h != want) print_error("%s, %s: %016llx\n", *isa, name, (unsigned long long)got.h);
        ok &= got.h == want;
    }
    return ok;
}

T_TEST(demo_model)
{
    T_BEGIN;
    T_TRUE(is_recorded("hummingbird", TEST_MODELS "/hummingbird", N_PROMPT));
}

T_TEST(other_formats)
{
    T_BEGIN;
    bool ok = true; // all are looked at
    for (size_t i = 0; i < N_FORMAT; i++) {
        char name[64], *dir = digest_container(i);
        snprintf(name, sizeof name, "qwen36-tiny-c %s %s", digest_formats[i][0],
                 digest_formats[i][1]);
        ok &= is_recorded(name, dir, N_FORMAT_PROMPT);
        free(dir);
    }
    T_TRUE(ok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(demo_model),
        cmocka_unit_test(other_formats),
    };
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
