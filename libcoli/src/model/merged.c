/* merged.c - see merged.h.
 *
 * A record holds gate (d_ff, d_model), up (d_ff, d_model) and down (d_model, d_ff), one behind the other,
 * its scales in the same order.  N is the number of weights.
 *
 *     bytes of the record      gate, up       down           scales of gate and up      of down
 *     N                        8 bits         8 bits         group                      group
 *     N / 2                    4 bits         4 bits         group                      group
 *     2 d_ff d_model           4 bits         8 bits         group                      down_group
 *
 * The bytes decide; what the metadata says about bits is not looked at, for it may be wrong.  The number
 * of scales has to be the one that the groups imply.
 *
 * Two codings of 4 bits are about, two's complement here and value + 8 elsewhere, which nothing but
 * statistics can tell apart: the quantisers of both never write -8. */
#include "merged.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char meta_name[] = "qwen36_meta.json";

/* -- config ------------------------------------------------------------------------------------ */

/* Numbers that both files hold, under these names. */
static const char *const shared[][2] = {
    // config.json, qwen36_meta.json
    {"hidden_size", "hidden"},
    {"num_hidden_layers", "n_layers"},
    {"num_attention_heads", "q_heads"},
    {"num_key_value_heads", "kv_heads"},
    {"head_dim", "head_dim"},
    {"linear_num_key_heads", "dn_kheads"},
    {"linear_num_value_heads", "dn_vheads"},
    {"linear_key_head_dim", "dn_kdim"},
    {"linear_value_head_dim", "dn_vdim"},
    {"linear_conv_kernel_dim", "dn_convk"},
    {"num_experts", "num_experts"},
    {"num_experts_per_tok", "topk"},
    {"moe_intermediate_size", "moe_inter"},
    {"shared_expert_intermediate_size", "shared_inter"},
    {"rms_norm_eps", "rms_eps"},
    {"partial_rotary_factor", "partial_rotary_factor"},
    {"rope_theta", "rope_theta"},
    {"layer_types", "layer_types"},
};

/* What this family does not compute, and the one value that it does. */
static const struct {
    const char *key;
    bool value;
} switches[] = {{"has_bias", false}, {"attn_output_gate", true}, {"has_qk_norm", true}};

static bool is_absent(const json_t *value)
{
    return !value || json_is_null(value);
}

/* A number stands where it is looked for, or among the rotary ones. */
static json_t *find_shared(const json_t *config, const char *key)
{
    json_t *value = json_object_get(config, key);
    return is_absent(value) ? json_object_get(json_object_get(config, "rope_parameters"), key)
                            : value;
}

static bool same(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b) != 0;
}

/* What config lacks comes from meta; what both have must agree. */
static coli_status join(const char *where, json_t *config, const json_t *meta)
{
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++) {
        json_t *theirs = json_object_get(meta, shared[i][1]);
        const json_t *ours = find_shared(config, shared[i][0]);
        if (is_absent(theirs)) continue;
        if (is_absent(ours)) {
            if (json_object_set(config, shared[i][0], theirs) != 0)
                return coli__fail(COLI_E_NOMEM, "%s: out of memory", where);
        } else if (!same(ours, theirs)) {
            return coli__fail(COLI_E_FORMAT,
                              "%s: %s is another number than config.json's %s: one of the files is "
                              "not this model's",
                              where, shared[i][1], shared[i][0]);
        }
    }
    return COLI_OK;
}

static coli_status check_switches(const char *where, const json_t *meta)
{
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        bool value;
        COLI_TRY(coli__json_bool_or(where, meta, switches[i].key, switches[i].value, &value));
        if (value != switches[i].value)
            return coli__fail(COLI_E_UNSUPPORTED, "%s: %s is %s; only %s is supported", where,
                              switches[i].key, value ? "true" : "false", value ? "false" : "true");
    }
    const char *scoring;
    uint32_t n_group;
    COLI_TRY(coli__json_string_or_null(where, meta, "scoring_func", &scoring));
    if (scoring && strcmp(scoring, "softmax") != 0)
        return coli__fail(COLI_E_UNSUPPORTED,
                          "%s: scoring_func is \"%.40s\"; only \"softmax\" is supported", where,
                          scoring);
    COLI_TRY(coli__json_u32_or(where, meta, "n_group", 0, 4096, 1, &n_group));
    if (n_group > 1)
        return coli__fail(COLI_E_UNSUPPORTED, "%s: n_group is %u; only 1 is supported", where,
                          n_group);
    return COLI_OK;
}

/* The channels of the convolution follow from the heads. */
static coli_status check_channels(const char *where, const json_t *meta)
{
    static const char *const keys[] = {"dn_conv_dim", "dn_kheads", "dn_kdim", "dn_vheads",
                                       "dn_vdim"};
    uint32_t v[5];
    for (int i = 0; i < 5; i++) {
        if (is_absent(json_object_get(meta, keys[i]))) return COLI_OK;
        COLI_TRY(coli__json_u32(where, meta, keys[i], 1, 1 << 24, &v[i]));
    }
    const uint64_t n = 2 * (uint64_t)v[1] * v[2] + (uint64_t)v[3] * v[4];
    if (n == v[0]) return COLI_OK;
    return coli__fail(COLI_E_FORMAT, "%s: dn_conv_dim: expected %llu by the heads, found %u", where,
                      (unsigned long long)n, v[0]);
}

static coli_status read_meta(const char *where, const json_t *meta, coli__merged *out)
{
    bool centred;
    if (!json_is_object(meta)) return coli__fail(COLI_E_FORMAT, "%s: expected an object", where);
    COLI_TRY(coli__json_u32_or(where, meta, "expert_gs", 0, 1 << 16, 0, &out->group));
    COLI_TRY(coli__json_u32_or(where, meta, "expert_down_gs", 0, 1 << 16, 0, &out->down_group));
    COLI_TRY(coli__json_bool_or(where, meta, "zero_centered_norms", true, &centred));
    out->norms_are_whole = !centred;
    COLI_TRY(check_switches(where, meta));
    return check_channels(where, meta);
}

/* The original of the two configs, and its text model. */
static coli_status read_config(const char *dir, json_t **out, json_t **text)
{
    static const char *const names[] = {"config.hf.json", "config.json"};
    coli_status status = COLI_E_NOTFOUND;
    for (int i = 0; i < 2 && status == COLI_E_NOTFOUND; i++) {
        char *path;
        coli__buf bytes = {0};
        COLI_TRY(coli__path_join(dir, names[i], &path));
        status = coli__file_read(path, COLI_CONFIG_MAX_BYTES, &bytes);
        if (status == COLI_OK)
            status = coli__json_parse_small(path, bytes.data ? bytes.data : "", bytes.n_bytes,
                                            COLI_CONFIG_MAX_DEPTH, out);
        coli__buf_finish(&bytes);
        coli__free(path);
    }
    COLI_TRY(status);
    json_t *inner = json_object_get(*out, "text_config");
    *text = json_is_object(inner) ? inner : *out;
    return COLI_OK;
}

/* A flattened config may have lost what family it is of; the metadata has one by its name alone. */
static coli_status complete(const char *where, json_t *config, json_t *text, const json_t *meta)
{
    if (is_absent(json_object_get(config, "model_type")) &&
        json_object_set_new(config, "model_type", json_string("qwen3_5_moe_text")) != 0)
        return coli__fail(COLI_E_NOMEM, "%s: out of memory", where);
    return join(where, text, meta);
}

static coli_status dump(const char *where, const json_t *config, coli__buf *out)
{
    char *text = json_dumps(config, JSON_INDENT(2));
    if (!text) return coli__fail(COLI_E_NOMEM, "%s: out of memory", where);
    const coli_status status = coli__buf_str(out, text);
    free(text); // jansson's own
    return status;
}

static coli_status read_both(const char *dir, const char *where, coli__buf *config_text,
                             coli__merged *out)
{
    coli__buf bytes = {0};
    json_t *meta = NULL, *config = NULL, *text = NULL;
    coli_status status = coli__file_read(where, COLI_CONFIG_MAX_BYTES, &bytes);
    if (status == COLI_OK)
        status = coli__json_parse_small(where, bytes.data ? bytes.data : "", bytes.n_bytes,
                                        COLI_CONFIG_MAX_DEPTH, &meta);
    if (status == COLI_OK) status = read_meta(where, meta, out);
    if (status == COLI_OK) status = read_config(dir, &config, &text);
    if (status == COLI_OK) status = complete(where, config, text, meta);
    if (status == COLI_OK) status = dump(where, config, config_text);
    json_decref(config);
    json_decref(meta);
    coli__buf_finish(&bytes);
    return status;
}

coli_status coli__merged_look(const char *dir, bool *is)
{
    char *where;
    COLI_TRY(coli__path_join(dir, meta_name, &where));
    *is = coli__path_exists(where);
    coli__free(where);
    return COLI_OK;
}

coli_status coli__merged_open(const char *dir, coli__buf *config, coli__merged *out)
{
    char *where;
    *out = (coli__merged){0};
    COLI_TRY(coli__path_join(dir, meta_name, &where));
    out->is = coli__path_exists(where);
    const coli_status status = out->is ? read_both(dir, where, config, out) : COLI_OK;
    coli__free(where);
    return status;
}

/* -- records ----------------------------------------------------------------------------------- */

static uint64_t n_scale(uint64_t n_out, uint64_t n_in, uint32_t group)
{
    return group == 0 ? n_out : n_out * ((n_in + group - 1) / group);
}

coli_status coli__merged_parts(const coli__merged *m, const coli__expert_spec *s,
                               const coli__st_tensor *record, const coli__st_tensor *scales,
                               coli__merged_part out[3])
{
    const uint64_t n = (uint64_t)s->d_ff * s->d_model; // of each; dims are below 2^17
    const bool is8 = record->n_bytes == 3 * n, mixed = record->n_bytes == 2 * n;
    if (!is8 && !mixed && (2 * record->n_bytes != 3 * n || s->d_ff % 2 || s->d_model % 2))
        return coli__fail(
            COLI_E_FORMAT,
            "%s: tensor %s: expected %llu bytes (8 bits), %llu (4 bits) or %llu (4 and "
            "8), of even dims, found %llu",
            record->file, record->name, (unsigned long long)(3 * n),
            (unsigned long long)(3 * n / 2), (unsigned long long)(2 * n),
            (unsigned long long)record->n_bytes);
    const uint32_t down_group = mixed ? m->down_group : m->group;
    const uint64_t up_scale = n_scale(s->d_ff, s->d_model, m->group), down_scale = 2 * up_scale;
    const uint64_t expected = down_scale + n_scale(s->d_model, s->d_ff, down_group);
    if (scales->dtype != COLI_DT_F32 || scales->n_elem != expected)
        return coli__fail(COLI_E_FORMAT,
                          "%s: tensor %s: expected %llu scales of type F32 (expert_gs %u, "
                          "expert_down_gs %u), found %llu of type %s",
                          scales->file, scales->name, (unsigned long long)expected, m->group,
                          m->down_group, (unsigned long long)scales->n_elem, scales->dtype_name);
    const coli__packing wide = {is8 ? 8 : 4, m->group}, down = {is8 || mixed ? 8 : 4, down_group};
    out[0] = (coli__merged_part){wide, 0, 0};
    out[1] = (coli__merged_part){wide, n, up_scale};
    out[2] = (coli__merged_part){down, mixed ? n : 2 * n, down_scale};
    return COLI_OK;
}

coli_status coli__merged_check_coding(const coli__st_tensor *record, uint64_t n_bytes)
{
    enum { LOOK_BYTES = 1 << 16 };
    uint64_t n_zero = 0, n_eight = 0;
    if (n_bytes > LOOK_BYTES) n_bytes = LOOK_BYTES;
    for (uint64_t i = 0; i < n_bytes; i++)
        for (uint32_t half = 0; half < 8; half += 4) {
            const uint32_t code = record->data[i] >> half & 15;
            n_zero += code == 0;
            n_eight += code == 8;
        }
    if (n_zero > 0 || n_eight == 0) return COLI_OK; // as it should be, or all of one number
    return coli__fail(COLI_E_FORMAT,
                      "%s: tensor %s: its 4-bit codes look like value + 8 (%llu are 8, none is 0); "
                      "expected two's complement",
                      record->file, record->name, (unsigned long long)n_eight);
}

const char *coli__packing_name(coli__packing p)
{
    // clang-format off
    static const struct {
        uint32_t group;
        const char *int4, *int8;
    } names[] = {
        {0,   "int4 per row",          "int8 per row"},
        {16,  "int4 in groups of 16",  "int8 in groups of 16"},
        {32,  "int4 in groups of 32",  "int8 in groups of 32"},
        {48,  "int4 in groups of 48",  "int8 in groups of 48"},
        {64,  "int4 in groups of 64",  "int8 in groups of 64"},
        {96,  "int4 in groups of 96",  "int8 in groups of 96"},
        {128, "int4 in groups of 128", "int8 in groups of 128"},
        {192, "int4 in groups of 192", "int8 in groups of 192"},
        {256, "int4 in groups of 256", "int8 in groups of 256"},
    };
    // clang-format on
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].group == p.group) return p.bits == 4 ? names[i].int4 : names[i].int8;
    return p.bits == 4 ? "int4 in other groups" : "int8 in other groups";
}

coli_status coli__packing_codes(coli__packing p, const coli__st_tensor *record,
                                const coli__st_tensor *scales, uint64_t first, uint64_t scale,
                                uint32_t n, int8_t *codes, float *out_scale)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t at = first + i;
        if (p.bits == 8) {
            codes[i] = (int8_t)record->data[at];
        } else {
            const uint32_t code = record->data[at / 2] >> (at % 2 * 4) & 15;
            codes[i] = (int8_t)(code < 8 ? (int32_t)code : (int32_t)code - 16);
        }
        any = any || codes[i] != 0;
    }
    memcpy(out_scale, scales->data + scale * sizeof *out_scale, sizeof *out_scale);
    const float s = *out_scale;
    if (isfinite(s) && s >= 0 && s <= 0x1p10f && (s > 0 || !any)) return COLI_OK;
    return coli__fail(COLI_E_FORMAT,
                      "%s: tensor %s: scale %llu is %g; expected one above 0 and at most 1024",
                      scales->file, scales->name, (unsigned long long)scale, (double)s);
}
