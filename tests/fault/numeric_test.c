/* numeric_test.c - weights that are finite and valid one by one but drive activations out of the
 * range of coli/exact.h: an error that names layer and position, and a session that can be used
 * again. */
#include "world.h"

#include "libcoli/src/run/session.h"

/* A copy of the tiny checkpoint whose tensor `name` (bf16) has every number replaced by the bits
 * given. */
static char *poisoned(const char *name, uint16_t bf16, const char *trunk)
{
    char dir[256], path[512];
    snprintf(dir, sizeof dir, "%s/poisoned-%s-%x", world_scratch(), name, bf16);
    T_OK(coli__dir_create(dir));
    snprintf(path, sizeof path, "cp %s/qwen36-tiny-a/config.json %s", TEST_FIXTURES, dir);
    T_EQ(system(path), 0);

    coli__st *st;
    T_OK(coli__st_open(TEST_FIXTURES "/qwen36-tiny-a/model.safetensors", &st));
    const uint32_t n = coli__st_count(st);
    coli__st_out *out = calloc(n, sizeof *out);
    uint16_t *bad = NULL;
    for (uint32_t i = 0; i < n; i++) {
        const coli__st_tensor *t = coli__st_at(st, i);
        out[i] =
            (coli__st_out){.name = t->name, .dtype = t->dtype, .rank = t->rank, .data = t->data};
        memcpy(out[i].shape, t->shape, sizeof t->shape);
        if (strcmp(t->name, name) != 0) continue;
        T_EQ(t->dtype, COLI_DT_BF16);
        bad = malloc((size_t)t->n_bytes);
        for (uint64_t e = 0; e < t->n_elem; e++) bad[e] = bf16;
        out[i].data = bad;
    }
    T_TRUE(bad != NULL);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    T_OK(coli__st_write(path, out, n));
    free(bad);
    free(out);
    coli__st_close(st);

    char *container = malloc(strlen(dir) + 8);
    sprintf(container, "%s.coli", dir);
    const coli_convert_opts opts = {.struct_size = sizeof opts, .experts = "int4", .trunk = trunk};
    T_OK(coli_convert(dir, container, &opts));
    return container;
}

static const int32_t ids[] = {5, 6, 7, 8};
enum { BF16_1E20 = 0x60AD, BF16_3E38 = 0x7F62 };

static void check(const char *name, uint16_t bf16, const char *trunk, const char *message)
{
    char *dir = poisoned(name, bf16, trunk);
    coli_model *m = world_open(dir, 2, NULL);
    coli_session *s = world_session(m, 64, 64);
    T_FAILS(coli_session_feed(s, ids, 4), COLI_E_NUMERIC, message);
    T_EQ(coli_session_pos(s), 0);
    T_TRUE(coli_session_logits(s) == NULL);
    T_FAILS(coli_session_feed(s, ids, 1), COLI_E_NUMERIC, message); // and no worse the second time
    coli_session_destroy(s);
    coli_model_close(m);
    free(dir);
}

T_TEST(mixer_input)
{
    T_BEGIN;
    check("model.layers.2.input_layernorm.weight", BF16_1E20, "int8", "layer 2: position 0");
}

T_TEST(moe_input)
{
    T_BEGIN;
    check("model.layers.5.post_attention_layernorm.weight", BF16_1E20, "int8",
          "layer 5: position 0");
}

T_TEST(head_input)
{
    T_BEGIN;
    check("model.norm.weight", BF16_1E20, "int8", "the last layer's output");
}

T_TEST(infinite_in_float_products)
{
    T_BEGIN;
    check("model.layers.1.post_attention_layernorm.weight", BF16_3E38, "f32",
          "layer 1: position 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(mixer_input), cmocka_unit_test(moe_input),
                                       cmocka_unit_test(head_input),
                                       cmocka_unit_test(infinite_in_float_products)};
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
