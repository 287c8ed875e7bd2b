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
        {"layer_types", "[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\"]", COLI_E_UNSUPPORTED,
         "layer_types[0]"},
        {"layer_types", "[1,1,1,1,1,1,1,1]", COLI_E_FORMAT, "layer_types[0]"},
        {"layer_types",
         "[\"linear_attention\",\"linear_attention\",\"linear_attention\",\"full_attention\","
         "\"linear_attention\",\"linear_attention\",\"sliding_attention\",\"full_attention\"]",
         COLI_E_UNSUPPORTED,
         "layer_types[6]: expected linear_attention or full_attention, found sliding"},
        {"layer_types", "5", COLI_E_FORMAT, "layer_types"},
        {"num_key_value_heads", "3", COLI_E_FORMAT, "no multiple"},
        {"linear_num_value_heads", "6", COLI_E_FORMAT, "no multiple"},
        {"num_experts_per_tok", "65", COLI_E_FORMAT, "more than num_experts"},
        {"rope_parameters", NULL, COLI_E_FORMAT, "rope_theta is missing"},
        {"rope_parameters", "{\"rope_type\": \"yarn\", \"rope_theta\": 10000}", COLI_E_UNSUPPORTED,
         "yarn"},
        {"rope_parameters", "{\"rope_theta\": 10000, \"partial_rotary_factor\": 0.01}",
         COLI_E_FORMAT, "gives 0"},
        {"rope_parameters", "{\"type\": \"linear\", \"rope_theta\": 10000}", COLI_E_UNSUPPORTED,
         "type is \"linear\""},
        {"rope_parameters", "{\"full_attention\": {\"rope_theta\": 10000}}", COLI_E_UNSUPPORTED,
         "differs by the type of layer"},
        {"rope_parameters", "5", COLI_E_FORMAT, "rope_parameters: expected an object"},
        // also beside rope_parameters, which the demo has
        {"rope_scaling", "{\"rope_type\": \"dynamic\"}", COLI_E_UNSUPPORTED, "dynamic"},
        {"sliding_window", "4096", COLI_E_UNSUPPORTED, "sliding_window"},
        {"use_sliding_window", "true", COLI_E_UNSUPPORTED, "use_sliding_window"},
        {"mlp_only_layers", "[0, 2]", COLI_E_UNSUPPORTED, "mlp_only_layers names 2"},
        {"mlp_only_layers", "3", COLI_E_FORMAT, "mlp_only_layers: expected a list"},
        {"decoder_sparse_step", "2", COLI_E_UNSUPPORTED, "decoder_sparse_step is 2"},
        {"first_k_dense_replace", "3", COLI_E_UNSUPPORTED, "first_k_dense_replace is 3"},
        {"n_group", "8", COLI_E_UNSUPPORTED, "n_group is 8; only 1"},
        {"topk_group", "4", COLI_E_UNSUPPORTED, "topk_group is 4"},
        {"routed_scaling_factor", "2.5", COLI_E_UNSUPPORTED, "routed_scaling_factor is 2.5"},
        {"routed_scaling_factor", "\"2.5\"", COLI_E_FORMAT, "routed_scaling_factor: expected"},
        {"scoring_func", "\"sigmoid\"", COLI_E_UNSUPPORTED, "sigmoid"},
        {"attn_logit_softcapping", "50.0", COLI_E_UNSUPPORTED, "attn_logit_softcapping"},
        {"final_logit_softcapping", "30", COLI_E_UNSUPPORTED, "final_logit_softcapping"},
        {"use_qk_norm", "false", COLI_E_UNSUPPORTED, "use_qk_norm"},
        {"mtp_use_dedicated_embeddings", "true", COLI_E_UNSUPPORTED, "mtp_use_dedicated"},
        {"output_gate_type", "\"relu\"", COLI_E_UNSUPPORTED, "output_gate_type"},
        {"mamba_ssm_dtype", "\"bfloat16\"", COLI_E_UNSUPPORTED, "mamba_ssm_dtype"},
        {"attention_bias", "true", COLI_E_UNSUPPORTED, "attention_bias"},
        {"qkv_bias", "true", COLI_E_UNSUPPORTED, "qkv_bias"},
        {"mlp_bias", "true", COLI_E_UNSUPPORTED, "mlp_bias"},
        {"use_bias", "true", COLI_E_UNSUPPORTED, "use_bias"},
        {"attn_output_gate", "false", COLI_E_UNSUPPORTED, "attn_output_gate"},
        {"hidden_act", "\"gelu\"", COLI_E_UNSUPPORTED, "gelu"},
        {"rms_norm_eps", "0", COLI_E_FORMAT, "rms_norm_eps"},
    };
    qwen36_dims d;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        T_FAILS(with(cases[i].key, cases[i].value, &d), cases[i].status, cases[i].message);
}

/* Switches that are there and change nothing. */
T_TEST(what_is_off_is_no_hindrance)
{
    T_BEGIN;
    static const char *const cases[][2] = {
        {"sliding_window", "null"},     {"use_sliding_window", "false"},
        {"mlp_only_layers", "[]"},      {"mlp_only_layers", "null"},
        {"decoder_sparse_step", "1"},   {"n_group", "1"},
        {"routed_scaling_factor", "1"}, {"scoring_func", "\"softmax\""},
        {"rope_scaling", "null"},       {"mtp_num_hidden_layers", "1"},
        {"norm_topk_prob", "false"},    {"attention_bias", "false"}};
    qwen36_dims d;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        T_OK(with(cases[i][0], cases[i][1], &d));
}

/* Numbers of text parameters as published: of the 35B, and of a checkpoint of the 397B's shape with a
 * vocabulary of 251392 the sums of all its tensors outside the routed experts, and of one expert. */
T_TEST(sizes_of_the_family)
{
    T_BEGIN;
    static const struct {
        const char *config;
        uint64_t n_param, n_active;
    } cases[] = {
        {"\"hidden_size\": 2048, \"num_hidden_layers\": 40, \"vocab_size\": 248320,"
         "\"num_attention_heads\": 16, \"linear_num_value_heads\": 32, \"num_experts\": 256,"
         "\"num_experts_per_tok\": 8, \"moe_intermediate_size\": 512,"
         "\"shared_expert_intermediate_size\": 512",
         34660610688u, 0},
        {"\"hidden_size\": 4096, \"num_hidden_layers\": 60, \"vocab_size\": 251392,"
         "\"num_attention_heads\": 32, \"linear_num_value_heads\": 64, \"num_experts\": 512,"
         "\"num_experts_per_tok\": 10, \"moe_intermediate_size\": 1024,"
         "\"shared_expert_intermediate_size\": 1024",
         9824459520u + UINT64_C(60) * 512 * 12582912, 17374206720u - UINT64_C(251392) * 4096}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[1200];
        snprintf(
            text, sizeof text,
            "{\"model_type\": \"qwen3_5_moe\", \"text_config\": {%s,"
            "\"model_type\": \"qwen3_5_moe_text\", \"num_key_value_heads\": 2, \"head_dim\": 256,"
            "\"linear_num_key_heads\": 16, \"linear_key_head_dim\": 128,"
            "\"linear_value_head_dim\": 128, \"mlp_only_layers\": [],"
            "\"rope_parameters\": {\"rope_theta\": 10000000}}}",
            cases[i].config);
        json_t *config = json_loads(text, 0, NULL);
        T_TRUE(config != NULL);
        coli__model_spec spec;
        T_OK(qwen36_describe(config, &spec));
        T_EQ(spec.n_param, cases[i].n_param);
        if (cases[i].n_active) T_EQ(spec.n_param_active, cases[i].n_active);
        coli__model_spec_finish(&spec);
        json_decref(config);
    }
}

T_TEST(a_wrapper_of_something_else)
{
    T_BEGIN;
    json_t *config =
        json_pack("{s:s, s:o}", "model_type", "qwen3_5_moe", "text_config", demo_config());
    qwen36_dims d;
    json_object_set_new(json_object_get(config, "text_config"), "model_type",
                        json_string("qwen3_5_text"));
    T_FAILS(qwen36_read_dims(config, &d), COLI_E_UNSUPPORTED, "model_type is \"qwen3_5_text\"");
    json_decref(config);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(demo_dimensions),
                                       cmocka_unit_test(refusals),
                                       cmocka_unit_test(what_is_off_is_no_hindrance),
                                       cmocka_unit_test(sizes_of_the_family),
                                       cmocka_unit_test(a_wrapper_of_something_else),
                                       cmocka_unit_test(accepted_spellings),
                                       cmocka_unit_test(other_families_are_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
