/* qwen36_spec.c - config.json of Qwen3.5/3.6-MoE, and the tensors that it implies.
 *
 * The published model wraps its text part: the numbers then stand under text_config.  Every number
 * is checked against the ranges below before anything is sized by it, and a switch that this
 * engine does not compute is refused by name instead of being ignored.
 *
 * Source: transformers models/qwen3_5_moe; the values of the 35B stand beside the ranges. */
#include "qwen36_spec.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char what[] = "config.json";

static const json_t *text_config(const json_t *config)
{
    const json_t *inner = json_object_get(config, "text_config");
    return json_is_object(inner) ? inner : config;
}

bool qwen36_claims(const json_t *config)
{
    static const char *const types[] = {"qwen3_5_moe", "qwen3_5_moe_text"};
    const char *type = json_string_value(json_object_get(config, "model_type"));
    for (size_t i = 0; type && i < sizeof types / sizeof types[0]; i++)
        if (strcmp(type, types[i]) == 0) return true;
    return false;
}

/* A switch must have the one value that the engine computes, or be absent. */
static coli_status need_bool(const json_t *t, const char *key, bool needed)
{
    bool value;
    COLI_TRY(coli__json_bool_or(what, t, key, needed, &value));
    if (value == needed) return COLI_OK;
    return coli__fail(COLI_E_UNSUPPORTED, "%s: %s is %s; only %s is supported", what, key,
                      value ? "true" : "false", needed ? "true" : "false");
}

static coli_status need_string(const json_t *t, const char *key, const char *needed,
                               const char *also)
{
    const char *value;
    COLI_TRY(coli__json_string_or_null(what, t, key, &value));
    if (!value || strcmp(value, needed) == 0 || (also && strcmp(value, also) == 0)) return COLI_OK;
    return coli__fail(COLI_E_UNSUPPORTED, "%s: %s is \"%s\"; only \"%s\" is supported", what, key,
                      value, needed);
}

static coli_status read_layer_types(const json_t *t, qwen36_dims *d)
{
    const json_t *types = json_object_get(t, "layer_types");
    if (!types || json_is_null(types)) {
        uint32_t interval;
        COLI_TRY(coli__json_u32_or(what, t, "full_attention_interval", 1, QWEN36_MAX_LAYER, 4,
                                   &interval));
        for (uint32_t i = 0; i < d->n_layer; i++) d->full_attention[i] = (i + 1) % interval == 0;
        return COLI_OK;
    }
    if (!json_is_array(types) || json_array_size(types) != d->n_layer)
        return coli__fail(COLI_E_FORMAT, "%s: layer_types: expected a list of %u, found %zu", what,
                          d->n_layer, json_array_size(types));
    for (uint32_t i = 0; i < d->n_layer; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        d->full_attention[i] = type && strcmp(type, "full_attention") == 0;
        if (!type || (!d->full_attention[i] && strcmp(type, "linear_attention") != 0))
            return coli__fail(
                type ? COLI_E_UNSUPPORTED : COLI_E_FORMAT,
                "%s: layer_types[%u]: expected linear_attention or full_attention, found %s", what,
                i, type ? type : "something else");
    }
    return COLI_OK;
}

/* What would change the positions, in the newer spelling or the older. */
static coli_status check_rope(const json_t *t, const char *key)
{
    const json_t *rope = json_object_get(t, key);
    if (!rope || json_is_null(rope)) return COLI_OK;
    if (!json_is_object(rope))
        return coli__fail(COLI_E_FORMAT, "%s: %s: expected an object", what, key);
    if (json_is_object(json_object_get(rope, "full_attention")) ||
        json_is_object(json_object_get(rope, "linear_attention")))
        return coli__fail(COLI_E_UNSUPPORTED,
                          "%s: %s differs by the type of layer; only one for all is supported",
                          what, key);
    COLI_TRY(need_string(rope, "rope_type", "default", NULL));
    return need_string(rope, "type", "default", NULL);
}

static coli_status read_rope(const json_t *t, qwen36_dims *d)
{
    COLI_TRY(check_rope(t, "rope_parameters"));
    COLI_TRY(check_rope(t, "rope_scaling")); // older spelling; also beside the newer
    const json_t *rope = json_object_get(t, "rope_parameters");
    if (!json_is_object(rope)) rope = json_object_get(t, "rope_scaling");
    if (!json_is_object(rope)) rope = t;

    double theta, factor;
    COLI_TRY(coli__json_number_or(what, t, "rope_theta", 1, 1e12, 0, &theta));
    COLI_TRY(coli__json_number_or(what, rope, "rope_theta", 1, 1e12, theta, &d->rope_theta));
    if (d->rope_theta == 0) // a guess would run and be wrong
        return coli__fail(COLI_E_FORMAT, "%s: rope_theta is missing", what);

    COLI_TRY(coli__json_number_or(what, t, "partial_rotary_factor", 0, 1, 0.25, &factor));
    COLI_TRY(coli__json_number_or(what, rope, "partial_rotary_factor", 0, 1, factor, &factor));
    d->d_rot = (uint32_t)(d->d_head * factor);
    if (d->d_rot < 2 || d->d_rot % 2)
        return coli__fail(COLI_E_FORMAT,
                          "%s: partial_rotary_factor %g of head_dim %u gives %u rotated numbers; "
                          "expected an even number of at least 2",
                          what, factor, d->d_head, d->d_rot);
    return COLI_OK;
}

/* -- what this engine does not compute --------------------------------------------------------- */

/* A number that changes what is computed unless it is absent or the one that changes nothing. */
static coli_status need_number(const json_t *t, const char *key, double needed)
{
    const json_t *value = json_object_get(t, key);
    if (!value || json_is_null(value)) return COLI_OK;
    if (json_is_number(value) && json_number_value(value) == needed) return COLI_OK;
    if (!json_is_number(value))
        return coli__fail(COLI_E_FORMAT, "%s: %s: expected a number", what, key);
    return coli__fail(COLI_E_UNSUPPORTED, "%s: %s is %g; only %g is supported", what, key,
                      json_number_value(value), needed);
}

/* A window is switched on by its switch, or, without one, by its width. */
static coli_status check_window(const json_t *t)
{
    bool used;
    const json_t *width = json_object_get(t, "sliding_window");
    const bool given = width && !json_is_null(width);
    COLI_TRY(coli__json_bool_or(what, t, "use_sliding_window", given, &used));
    if (!used) return COLI_OK;
    return coli__fail(COLI_E_UNSUPPORTED,
                      "%s: %s: attention within a sliding window is not supported", what,
                      given ? "sliding_window" : "use_sliding_window");
}

/* All layers have routed experts. */
static coli_status check_dense_layers(const json_t *t)
{
    const json_t *dense = json_object_get(t, "mlp_only_layers");
    if (dense && !json_is_null(dense) && !json_is_array(dense))
        return coli__fail(COLI_E_FORMAT, "%s: mlp_only_layers: expected a list", what);
    if (json_array_size(dense) > 0)
        return coli__fail(COLI_E_UNSUPPORTED,
                          "%s: mlp_only_layers names %zu; layers without experts are not supported",
                          what, json_array_size(dense));
    COLI_TRY(need_number(t, "decoder_sparse_step", 1));
    return need_number(t, "first_k_dense_replace", 0);
}

/* Models that were derived from this family set these, and would load and be wrong.  Weights of the
 * chosen experts are divided by their sum whatever norm_topk_prob says, as in the original. */
static coli_status check_switches(const json_t *t)
{
    static const char *const biases[] = {"attention_bias", "qkv_bias", "mlp_bias", "use_bias"};
    for (size_t i = 0; i < sizeof biases / sizeof biases[0]; i++)
        COLI_TRY(need_bool(t, biases[i], false));
    COLI_TRY(need_bool(t, "attn_output_gate", true));
    COLI_TRY(need_bool(t, "use_qk_norm", true));
    COLI_TRY(need_bool(t, "mtp_use_dedicated_embeddings", false));
    COLI_TRY(need_string(t, "hidden_act", "silu", "swish"));
    COLI_TRY(need_string(t, "output_gate_type", "swish", "silu"));
    COLI_TRY(need_string(t, "mamba_ssm_dtype", "float32", NULL));
    COLI_TRY(need_string(t, "scoring_func", "softmax", NULL));
    static const struct {
        const char *key;
        double needed;
    } numbers[] = {{"n_group", 1},
                   {"topk_group", 1},
                   {"routed_scaling_factor", 1},
                   {"attn_logit_softcapping", 0},
                   {"final_logit_softcapping", 0}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        COLI_TRY(need_number(t, numbers[i].key, numbers[i].needed));
    COLI_TRY(check_window(t));
    return check_dense_layers(t);
}

/* The wrapper's own model_type is what qwen36_claims looked at. */
static coli_status check_inner_type(const json_t *config, const json_t *t)
{
    return t == config ? COLI_OK : need_string(t, "model_type", "qwen3_5_moe_text", NULL);
}

/* -- the dimensions ---------------------------------------------------------------------------- */

coli_status qwen36_read_dims(const json_t *config, qwen36_dims *d)
{
    *d = (qwen36_dims){0};
    const json_t *t = text_config(config);
    COLI_TRY(check_inner_type(config, t));

    //                                                         range            35B
    COLI_TRY(coli__json_u32(what, t, "hidden_size", 1, 65536, &d->d_model)); // 2048
    COLI_TRY(coli__json_u32(what, t, "num_hidden_layers", 1, QWEN36_MAX_LAYER, &d->n_layer)); // 40
    COLI_TRY(coli__json_u32(what, t, "vocab_size", 1, 1u << 24, &d->n_vocab)); // 248320
    COLI_TRY(
        coli__json_u32_or(what, t, "max_position_embeddings", 1, 1u << 20, 32768, &d->n_ctx_max));
    COLI_TRY(coli__json_u32(what, t, "num_attention_heads", 1, 1024, &d->n_head));       // 16
    COLI_TRY(coli__json_u32(what, t, "num_key_value_heads", 1, 1024, &d->n_kv_head));    // 2
    COLI_TRY(coli__json_u32_or(what, t, "head_dim", 1, 4096, 256, &d->d_head));          // 256
    COLI_TRY(coli__json_u32(what, t, "linear_num_key_heads", 1, 1024, &d->n_k_head));    // 16
    COLI_TRY(coli__json_u32(what, t, "linear_num_value_heads", 1, 1024, &d->n_v_head));  // 32
    COLI_TRY(coli__json_u32(what, t, "linear_key_head_dim", 1, 1024, &d->d_k));          // 128
    COLI_TRY(coli__json_u32(what, t, "linear_value_head_dim", 1, 1024, &d->d_v));        // 128
    COLI_TRY(coli__json_u32_or(what, t, "linear_conv_kernel_dim", 2, 16, 4, &d->n_tap)); // 4
    COLI_TRY(coli__json_u32(what, t, "num_experts", 1, 4096, &d->n_expert));             // 256
    COLI_TRY(coli__json_u32(what, t, "num_experts_per_tok", 1, 256, &d->n_expert_used)); // 8
    COLI_TRY(coli__json_u32(what, t, "moe_intermediate_size", 1, 65536, &d->d_ff));      // 512
    COLI_TRY(coli__json_u32(what, t, "shared_expert_intermediate_size", 1, 65536,
                            &d->d_ff_shared)); // 512

    double eps;
    COLI_TRY(coli__json_number_or(what, t, "rms_norm_eps", 1e-12, 1, 1e-6, &eps));
    d->eps = (float)eps;
    COLI_TRY(coli__json_bool_or(what, config, "tie_word_embeddings", false, &d->tied));
    COLI_TRY(coli__json_bool_or(what, t, "tie_word_embeddings", d->tied, &d->tied));

    if (d->n_head % d->n_kv_head)
        return coli__fail(COLI_E_FORMAT,
                          "%s: num_attention_heads %u is no multiple of num_key_value_heads %u",
                          what, d->n_head, d->n_kv_head);
    if (d->n_v_head % d->n_k_head)
        return coli__fail(COLI_E_FORMAT,
                          "%s: linear_num_value_heads %u is no multiple of linear_num_key_heads %u",
                          what, d->n_v_head, d->n_k_head);
    if (d->n_expert_used > d->n_expert)
        return coli__fail(COLI_E_FORMAT, "%s: num_experts_per_tok %u is more than num_experts %u",
                          what, d->n_expert_used, d->n_expert);
    d->d_qkv = 2 * d->n_k_head * d->d_k + d->n_v_head * d->d_v;

    COLI_TRY(read_layer_types(t, d));
    COLI_TRY(read_rope(t, d));
    return check_switches(t);
}

/* -- the tensors ------------------------------------------------------------------------------- */

__attribute__((format(printf, 5, 6))) static void
add(coli__model_spec *spec, coli__role role, uint32_t n_out, uint32_t n_in, const char *fmt, ...)
{
    coli__tensor_spec *t = &spec->tensors[spec->n_tensor++];
    va_list args;
    va_start(args, fmt);
    vsnprintf(t->name, sizeof t->name, fmt, args);
    va_end(args);
    t->role = role;
    t->n_out = n_out;
    t->n_in = n_in;
    const uint64_t n = (uint64_t)n_out * n_in;
    spec->n_param += n;
    if (role != COLI_ROLE_EMBED) spec->n_param_active += n; // one row of the embedding is read
}

static void add_layer(coli__model_spec *spec, const qwen36_dims *d, uint32_t i)
{
    const uint32_t D = d->d_model;
    add(spec, COLI_ROLE_VECTOR, 1, D, "layers.%u.input_layernorm.weight", i);
    add(spec, COLI_ROLE_VECTOR, 1, D, "layers.%u.post_attention_layernorm.weight", i);
    if (d->full_attention[i]) {
        add(spec, COLI_ROLE_TRUNK, 2 * d->n_head * d->d_head, D,
            "layers.%u.self_attn.q_proj.weight", i);
        add(spec, COLI_ROLE_TRUNK, d->n_kv_head * d->d_head, D, "layers.%u.self_attn.k_proj.weight",
            i);
        add(spec, COLI_ROLE_TRUNK, d->n_kv_head * d->d_head, D, "layers.%u.self_attn.v_proj.weight",
            i);
        add(spec, COLI_ROLE_TRUNK, D, d->n_head * d->d_head, "layers.%u.self_attn.o_proj.weight",
            i);
        add(spec, COLI_ROLE_VECTOR, 1, d->d_head, "layers.%u.self_attn.q_norm.weight", i);
        add(spec, COLI_ROLE_VECTOR, 1, d->d_head, "layers.%u.self_attn.k_norm.weight", i);
    } else {
        const uint32_t d_value = d->n_v_head * d->d_v;
        add(spec, COLI_ROLE_TRUNK, d->d_qkv, D, "layers.%u.linear_attn.in_proj_qkv.weight", i);
        add(spec, COLI_ROLE_TRUNK, d_value, D, "layers.%u.linear_attn.in_proj_z.weight", i);
        add(spec, COLI_ROLE_PRECISE, d->n_v_head, D, "layers.%u.linear_attn.in_proj_b.weight", i);
        add(spec, COLI_ROLE_PRECISE, d->n_v_head, D, "layers.%u.linear_attn.in_proj_a.weight", i);
        add(spec, COLI_ROLE_VECTOR, 1, d->d_qkv * d->n_tap, "layers.%u.linear_attn.conv1d.weight",
            i);
        add(spec, COLI_ROLE_VECTOR, 1, d->n_v_head, "layers.%u.linear_attn.A_log", i);
        add(spec, COLI_ROLE_VECTOR, 1, d->n_v_head, "layers.%u.linear_attn.dt_bias", i);
        add(spec, COLI_ROLE_VECTOR, 1, d->d_v, "layers.%u.linear_attn.norm.weight", i);
        add(spec, COLI_ROLE_TRUNK, D, d_value, "layers.%u.linear_attn.out_proj.weight", i);
    }
    add(spec, COLI_ROLE_PRECISE, d->n_expert, D, "layers.%u.mlp.gate.weight", i);
    add(spec, COLI_ROLE_TRUNK, d->d_ff_shared, D, "layers.%u.mlp.shared_expert.gate_proj.weight",
        i);
    add(spec, COLI_ROLE_TRUNK, d->d_ff_shared, D, "layers.%u.mlp.shared_expert.up_proj.weight", i);
    add(spec, COLI_ROLE_TRUNK, D, d->d_ff_shared, "layers.%u.mlp.shared_expert.down_proj.weight",
        i);
    add(spec, COLI_ROLE_PRECISE, 1, D, "layers.%u.mlp.shared_expert_gate.weight", i);

    coli__expert_spec *e = &spec->experts[spec->n_expert_layer++];
    *e = (coli__expert_spec){.layer = i, .n_expert = d->n_expert, .d_model = D, .d_ff = d->d_ff};
    snprintf(e->prefix, sizeof e->prefix, "layers.%u.mlp.experts.", i);
    const uint64_t n_one = 3 * (uint64_t)D * d->d_ff;
    spec->n_param += n_one * d->n_expert;
    spec->n_param_active += n_one * d->n_expert_used;
}

coli_status qwen36_describe(const json_t *config, coli__model_spec *out)
{
    enum { MAX_PER_LAYER = 16, N_GLOBAL = 3 };
    static const char *const prefixes[] = {"model.language_model.", "model.", "", NULL};
    static const char *const skip[] = {"mtp.", "model.visual.", "visual.", NULL};

    *out = (coli__model_spec){.prefixes = prefixes, .skip_prefixes = skip};
    qwen36_dims *d = coli__calloc(1, sizeof *d);
    if (!d) return COLI_E_NOMEM;
    coli_status status = qwen36_read_dims(config, d);
    if (status != COLI_OK) goto out;
    out->tensors =
        coli__calloc(N_GLOBAL + (size_t)d->n_layer * MAX_PER_LAYER, sizeof *out->tensors);
    out->experts = coli__calloc(d->n_layer, sizeof *out->experts);
    if (!out->tensors || !out->experts) {
        status = COLI_E_NOMEM;
        goto out;
    }
    add(out, COLI_ROLE_EMBED, d->n_vocab, d->d_model, "embed_tokens.weight");
    for (uint32_t i = 0; i < d->n_layer; i++) add_layer(out, d, i);
    add(out, COLI_ROLE_VECTOR, 1, d->d_model, "norm.weight");
    if (!d->tied) add(out, COLI_ROLE_TRUNK, d->n_vocab, d->d_model, "lm_head.weight");
    out->head = d->tied ? "embed_tokens.weight" : "lm_head.weight";
out:
    if (status != COLI_OK) coli__model_spec_finish(out);
    coli__free(d);
    return status;
}
