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

static bool equal(const char *isa, const char *name, uint64_t want, digest got)
{
    if (got.h != want) print_error("%s, %s: %016llx\n", isa, name, (unsigned long long)got.h);
    return got.h == want;
}

/* Whether every instruction set gives the recorded hashes; others are printed. */
static bool is_recorded(const char *name, const char *dir, uint32_t n_prompt)
{
    char name_f32[80];
    snprintf(name_f32, sizeof name_f32, "%s, kv f32", name);
    const uint64_t want = recorded(name), want_f32 = recorded(name_f32);
    bool ok = true;
    for (const char *const *isa = world_isas(); *isa; isa++) {
        coli_model *m = world_open(dir, 2, *isa);
        ok &= equal(*isa, name, want, digest_kv(m, COLI_KV_F16, 64, n_prompt));
        ok &= equal(*isa, name_f32, want_f32, digest_kv(m, COLI_KV_F32, 64, n_prompt));
        coli_model_close(m);
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
