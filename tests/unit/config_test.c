/* config_test.c - what config.json may say: each number's range, each switch that is refused, the
 * old spellings that are accepted, and the tensors that follow. */
#include "t.h"

#include "engines/qwen36/qwen36_spec.h"
#include "libcoli/src/base/file.h"

static json_t *demo_config(void)
{
    json_t *config;
    T_OK(coli__json_read(TEST_MODELS "/hummingbird/config.json", 1 << 20, 16, &config));
    return config;
}

/* The demo's config with one member replaced by a JSON text (NULL: removed). */
static coli_status with(const char *key, const char *value, qwen36_dims *d)
{
    json_t *config = demo_config();
    if (value) {
        json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
        T_TRUE(v != NULL);
        json_object_set_new(config, key, v);
    } else {
        json_object_del(config, key);
    }
    const coli_status status = qwen36_read_dims(config, d);
    json_decref(config);
    return status;
}

T_TEST(demo_dimensions)
{
    T_BEGIN;
    qwen36_dims d;
    json_t *config = demo_config();
    T_TRUE(qwen36_claims(config));
    T_OK(qwen36_read_dims(config, &d));
    T_EQ(d.n_layer, 8);
    T_EQ(d.d_model, 192);
    T_EQ(d.d_rot, 16); // a quarter of 64
    T_EQ(d.d_qkv, 512);
    T_TRUE(!d.full_attention[0] && d.full_attention[3] && d.full_attention[7]);
    coli__model_spec spec;
    T_OK(qwen36_describe(config, &spec));
    T_EQ(spec.n_expert_layer, 8);
    T_EQ(spec.n_tensor, 2 + 6 * 16 + 2 * 13 + 1);
    coli__model_spec_finish(&spec);
    json_decref(config);
}

T_TEST(refusals)
{
    T_BEGIN;
    static const struct {
        const char *key, *value;
        coli_status status;
        const char *message;
    } cases[] = {
        {"hidden_size", NULL, COLI_E_FORMAT, "hidden_size is missing"},
        {"hidden_size", "0", COLI_E_FORMAT, "expected 1 to 65536, found 0"},
        {"hidden_size", "\"192\"", COLI_E_FORMAT, "expected a whole number"},
        {"hidden_size", "192.0", COLI_E_FORMAT, "expected a whole number"},
        {"num_hidden_layers", "9", COLI_E_FORMAT, "layer_types: expected a list of 9, found 8"},
        {"num_hidden_layers", "513", COLI_E_FORMAT, "expected 1 to 512"},
        {"layer_types", "[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\"]", COLI_E_FORMAT,
         "layer_types[0]"},
        {"layer_types", "5", COLI_E_FORMAT, "layer_types"},
        {"num_key_value_heads", "3", COLI_E_FORMAT, "no multiple"},
        {"linear_num_value_heads", "6", COLI_E_FORMAT, "no multiple"},
        {"num_experts_per_tok", "65", COLI_E_FORMAT, "more than num_experts"},
        {"rope_parameters", NULL, COLI_E_FORMAT, "rope_theta is missing"},
        {"rope_parameters", "{\"rope_type\": \"yarn\", \"rope_theta\": 10000}", COLI_E_UNSUPPORTED,
         "yarn"},
        {"rope_parameters", "{\"rope_theta\": 10000, \"partial_rotary_factor\": 0.01}",
         COLI_E_FORMAT, "gives 0"},
        {"attention_bias", "true", COLI_E_UNSUPPORTED, "attention_bias"},
        {"attn_output_gate", "false", COLI_E_UNSUPPORTED, "attn_output_gate"},
        {"hidden_act", "\"gelu\"", COLI_E_UNSUPPORTED, "gelu"},
        {"rms_norm_eps", "0", COLI_E_FORMAT, "rms_norm_eps"},
    };
    qwen36_dims d;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        T_FAILS(with(cases[i].key, cases[i].value, &d), cases[i].status, cases[i].message);
}

T_TEST(accepted_spellings)
{
    T_BEGIN;
    qwen36_dims d;
    T_OK(with("layer_types", NULL, &d)); // every fourth layer by default
    T_TRUE(!d.full_attention[0] && d.full_attention[3] && d.full_attention[7]);
    T_OK(with("rope_parameters", "{\"rope_theta\": 1e7}", &d)); // the factor's default is a quarter
    T_EQ(d.d_rot, 16);
    T_TRUE(d.rope_theta == 1e7);
    T_OK(with("head_dim", NULL, &d));
    T_EQ(d.d_head, 256); // not hidden_size / heads
    T_OK(with("tie_word_embeddings", "true", &d));
    T_TRUE(d.tied);
}

T_TEST(other_families_are_named)
{
    T_BEGIN;
    const coli__engine *engine;
    json_t *config = json_pack("{s:s}", "model_type", "glm_moe_dsa");
    T_FAILS(coli__engine_for(config, &engine), COLI_E_UNSUPPORTED, "glm_moe_dsa");
    json_decref(config);
    config = json_object();
    T_FAILS(coli__engine_for(config, &engine), COLI_E_UNSUPPORTED, "(missing)");
    json_decref(config);
    T_TRUE(coli__engine_by_name("qwen36") != NULL);
    T_TRUE(coli__engine_by_name("nobody") == NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(demo_dimensions), cmocka_unit_test(refusals),
        cmocka_unit_test(accepted_spellings), cmocka_unit_test(other_families_are_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
