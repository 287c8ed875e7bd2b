/* numeric_test.c - weights that are finite and valid one by one but drive activations out of the
 * range of coli/exact.h: an error that names layer and position, and a session that can be used
 * again. */
#include "world.h"

#include "libcoli/src/run/session.h"

typedef struct poison {
    const char *name;
    uint16_t numbers[64]; // D of the tiny model
} poison;

static bool edit(void *ctx, coli__st_out *tensor)
{
    poison *p = ctx;
    if (strcmp(tensor->name, p->name) == 0) {
        T_EQ(tensor->dtype, COLI_DT_BF16);
        T_EQ(tensor->shape[0], 64);
        tensor->data = p->numbers;
    }
    return true;
}

/* A container of the tiny checkpoint whose vector `name` has every number replaced by these bits.
 */
static char *poisoned(const char *name, uint16_t bf16, const char *trunk)
{
    poison p = {.name = name};
    for (int i = 0; i < 64; i++) p.numbers[i] = bf16;
    char dir[256];
    snprintf(dir, sizeof dir, "%s/poisoned-%s", world_scratch(), name);
    if (access(dir, F_OK) != 0) world_checkpoint(TEST_FIXTURES "/qwen36-tiny-a", dir, "", edit, &p);
    return world_container(dir, name, "int4", trunk);
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
