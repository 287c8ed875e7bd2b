/* numeric_test.c - weights that are finite and valid one by one but drive activations out of the
 * range of coli/exact.h: an error that names layer and position, and a session that can be used
 * again. */
#include "world.h"

#include "libcoli/src/run/session.h"

typedef struct poison {
    const char *name;
    float value;
    uint32_t first, n; // elements to replace
    void *copy;        // the tensor's data with them replaced
} poison;

static bool edit(void *ctx, coli__st_out *tensor)
{
    poison *p = ctx;
    if (strcmp(tensor->name, p->name) != 0) return true;
    const size_t width = tensor->dtype == COLI_DT_F32 ? 4 : 2;
    size_t n_bytes = width;
    for (uint32_t i = 0; i < tensor->rank; i++) n_bytes *= (size_t)tensor->shape[i];
    T_TRUE((p->first + p->n) * width <= n_bytes);
    uint8_t *copy = p->copy = memcpy(malloc(n_bytes), tensor->data, n_bytes);
    uint32_t bits; // a bf16 number is the upper half of a float
    memcpy(&bits, &p->value, sizeof bits);
    for (uint32_t i = p->first; i < p->first + p->n; i++)
        memcpy(copy + i * width, (uint8_t *)&bits + 4 - width, width);
    tensor->data = copy;
    return true;
}

/* A container of the tiny checkpoint with some numbers of one tensor replaced. */
static char *poisoned(poison p, const char *trunk)
{
    char name[128], dir[256];
    snprintf(name, sizeof name, "%s-%g", p.name, (double)p.value);
    snprintf(dir, sizeof dir, "%s/poisoned-%s", world_scratch(), name);
    world_checkpoint(TEST_FIXTURES "/qwen36-tiny-a", dir, "", edit, &p);
    T_TRUE(p.copy != NULL);
    free(p.copy);
    return world_container(dir, name, "int4", trunk);
}

static const int32_t ids[] = {5, 6, 7, 8};
enum { D = 64, D_V = 24, D_HEAD = 32, N_VOCAB = 320 };

static void check_kv(const char *name, float value, uint32_t n, const char *trunk,
                     const char *message, coli_kv kv)
{
    char *dir = poisoned((poison){.name = name, .value = value, .n = n}, trunk);
    coli_model *m = world_open(dir, 2, NULL);
    coli_session *s = world_session_kv(m, 64, 64, kv);
    T_FAILS(coli_session_feed(s, ids, 4), COLI_E_NUMERIC, message);
    T_EQ(coli_session_pos(s), 0);
    T_TRUE(coli_session_logits(s) == NULL);
    T_FAILS(coli_session_feed(s, ids, 1), COLI_E_NUMERIC, message); // and no worse the second time
    coli_session_destroy(s);
    coli_model_close(m);
    free(dir);
}

static void check(const char *name, float value, uint32_t n, const char *trunk, const char *message)
{
    check_kv(name, value, n, trunk, message, COLI_KV_F16);
}

T_TEST(mixer_input)
{
    T_BEGIN;
    check("model.layers.2.input_layernorm.weight", 1e20f, D, "int8", "layer 2: position 0");
}

T_TEST(mixer_output)
{
    T_BEGIN;
    check("model.layers.4.linear_attn.norm.weight", 1e20f, D_V, "int8", "layer 4: position 0");
}

T_TEST(moe_input)
{
    T_BEGIN;
    check("model.layers.5.post_attention_layernorm.weight", 1e20f, D, "int8",
          "layer 5: position 0");
}

T_TEST(inside_the_experts) // x is within the range, silu(gate) * up is not
{
    T_BEGIN;
    check("model.layers.5.post_attention_layernorm.weight", 1e10f, D, "int8",
          "layer 5: position 0");
}

/* A key beyond f16: an error that tells a way out, which is one; an infinite one is an error in f32,
 * too. */
T_TEST(keys)
{
    T_BEGIN;
    static const char name[] = "model.layers.3.self_attn.k_norm.weight";
    check(name, 1e6f, D_HEAD, "int8", "layer 3: position 0: a key or value is not finite or 65520");
    check(name, 3e38f, D_HEAD, "f32", "layer 3: position 0: a key or value");
    check_kv(name, 2e38f, D_HEAD, "f32", "layer 3: position 0: an activation", COLI_KV_F32);
    char *dir = poisoned((poison){.name = name, .value = 2e6f, .n = D_HEAD}, "int8");
    coli_model *m = world_open(dir, 2, NULL);
    coli_session *f32 = world_session_kv(m, 64, 64, COLI_KV_F32);
    T_OK(coli_session_feed(f32, ids, 4));
    coli_session_destroy(f32);
    coli_model_close(m);
    free(dir);
}

/* The same for values, which have no norm, fed at once or one by one. */
T_TEST(values)
{
    T_BEGIN;
    char *dir = poisoned(
        (poison){.name = "model.layers.7.self_attn.v_proj.weight", .value = 3e6f, .n = D}, "f32");
    coli_model *m = world_open(dir, 2, NULL);
    coli_session *s = world_session(m, 64, 64);
    T_FAILS(coli_session_feed(s, ids, 4), COLI_E_NUMERIC, "layer 7: position 0: a key or value");
    T_FAILS(coli_session_feed(s, ids, 1), COLI_E_NUMERIC, "--kv f32");
    coli_session *f32 = world_session_kv(m, 64, 64, COLI_KV_F32);
    T_OK(coli_session_feed(f32, ids, 4));
    coli_session_destroy(f32);
    coli_session_destroy(s);
    coli_model_close(m);
    free(dir);
}

T_TEST(head_input)
{
    T_BEGIN;
    check("model.norm.weight", 1e20f, D, "int8", "the last layer's output");
}

T_TEST(infinite_in_float_products)
{
    T_BEGIN;
    check("model.layers.1.post_attention_layernorm.weight", 3e38f, D, "f32", "layer 1: position 0");
}

T_TEST(shared_gate)
{
    T_BEGIN;
    check("model.layers.7.mlp.shared_expert_gate.weight", 3e38f, D, "int8", "layer 7: position 0");
}

T_TEST(last_output) // the first row is named, though only the last one's logits are wanted
{
    T_BEGIN;
    check("model.layers.7.mlp.shared_expert.down_proj.weight", 3e38f, D * 40, "f32",
          "position 0: the last layer's output");
}

/* One token's embedding is poison: a sequence without it is well, one with it fails and is reset, and
 * what is fed afterwards is not touched by it. */
T_TEST(a_failure_resets_the_session)
{
    T_BEGIN;
    const int32_t bad = 9;
    char *dir = poisoned((poison){.name = "model.embed_tokens.weight",
                                  .value = 1e30f,
                                  .first = (uint32_t)bad * D,
                                  .n = D},
                         "bf16");
    coli_model *m = world_open(dir, 2, NULL);
    coli_session *s = world_session(m, 64, 64);
    float want[N_VOCAB];
    T_OK(coli_session_feed(s, ids, 4));
    memcpy(want, coli_session_logits(s), sizeof want);
    T_FAILS(coli_session_feed(s, &bad, 1), COLI_E_NUMERIC, "layer 0: position 4");
    T_EQ(coli_session_pos(s), 0);
    T_TRUE(coli_session_logits(s) == NULL);
    T_OK(coli_session_feed(s, ids, 4));
    T_MEM(coli_session_logits(s), want, sizeof want);
    coli_session_destroy(s);
    coli_model_close(m);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixer_input),
        cmocka_unit_test(mixer_output),
        cmocka_unit_test(moe_input),
        cmocka_unit_test(inside_the_experts),
        cmocka_unit_test(keys),
        cmocka_unit_test(values),
        cmocka_unit_test(head_input),
        cmocka_unit_test(infinite_in_float_products),
        cmocka_unit_test(shared_gate),
        cmocka_unit_test(last_output),
        cmocka_unit_test(a_failure_resets_the_session),
    };
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
