/* qwen36_gguf.c - Qwen3.5/3.6-MoE as GGUF: architecture "qwen35moe".
 *
 * What its writers change, and what is therefore undone (docs/formats/gguf.md):
 *
 *     names           layers.3.self_attn.q_proj.weight is blk.3.attn_q.weight, and so on
 *     norms           stored as 1 + w, all but the DeltaNet's own
 *     decay           ssm_a is -exp(A_log)
 *     value heads     in turns by key head, where the checkpoint has them grouped: value head v uses
 *                     key head v mod n_k_head in the file, v / (n_v_head / n_k_head) here.  That
 *                     concerns rows of v, z, a and b, the convolution's v channels, A_log, dt_bias
 *                     and the columns of out_proj
 *     experts         one tensor for all gates, one for all ups, one for all downs of a layer; or
 *                     gates and ups together
 *     MTP             as more layers at the end, counted by nextn_predict_layers
 *
 * config.json is put together from the metadata.  Numbers of heads may be there once or by layer, and
 * which layers are attention is told by a list, by an interval, or by the heads of each layer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../libcoli/src/model/gguf_model.h"
#include "qwen36_spec.h"

#define ARCH "qwen35moe"

/* -- names ------------------------------------------------------------------------------------- */

/* Which part of a tensor has value heads, in units of the family's numbers. */
typedef enum heads {
    NONE,
    ROWS_V,     // (n_v_head * d_v) rows, behind q and k
    ROWS_VALUE, // the same rows alone
    ROWS_HEAD,  // one row per head
    COLS_HEAD,  // one number per head
    COLS_CONV,  // (n_v_head * d_v) channels of n_tap numbers, behind those of q and k
    COLS_VALUE, // (n_v_head * d_v) columns
} heads;

static const struct {
    const char *ours, *theirs;
    coli__gguf_form form;
    heads heads;
} names[] = {
    {"input_layernorm.weight", "attn_norm.weight", COLI_GGUF_ONE_PLUS, NONE},
    {"post_attention_layernorm.weight", "post_attention_norm.weight", COLI_GGUF_ONE_PLUS, NONE},
    {"self_attn.q_proj.weight", "attn_q.weight", COLI_GGUF_AS_IT_IS, NONE},
    {"self_attn.k_proj.weight", "attn_k.weight", COLI_GGUF_AS_IT_IS, NONE},
    {"self_attn.v_proj.weight", "attn_v.weight", COLI_GGUF_AS_IT_IS, NONE},
    {"self_attn.o_proj.weight", "attn_output.weight", COLI_GGUF_AS_IT_IS, NONE},
    {"self_attn.q_norm.weight", "attn_q_norm.weight", COLI_GGUF_ONE_PLUS, NONE},
    {"self_attn.k_norm.weight", "attn_k_norm.weight", COLI_GGUF_ONE_PLUS, NONE},
    {"linear_attn.in_proj_qkv.weight", "attn_qkv.weight", COLI_GGUF_AS_IT_IS, ROWS_V},
    {"linear_attn.in_proj_z.weight", "attn_gate.weight", COLI_GGUF_AS_IT_IS, ROWS_VALUE},
    {"linear_attn.in_proj_b.weight", "ssm_beta.weight", COLI_GGUF_AS_IT_IS, ROWS_HEAD},
    {"linear_attn.in_proj_a.weight", "ssm_alpha.weight", COLI_GGUF_AS_IT_IS, ROWS_HEAD},
    {"linear_attn.conv1d.weight", "ssm_conv1d.weight", COLI_GGUF_AS_IT_IS, COLS_CONV},
    {"linear_attn.A_log", "ssm_a", COLI_GGUF_MINUS_EXP, COLS_HEAD},
    {"linear_attn.dt_bias", "ssm_dt.bias", COLI_GGUF_AS_IT_IS, COLS_HEAD},
    {"linear_attn.norm.weight", "ssm_norm.weight", COLI_GGUF_AS_IT_IS, NONE},
    {"linear_attn.out_proj.weight", "ssm_out.weight", COLI_GGUF_AS_IT_IS, COLS_VALUE},
    {"mlp.gate.weight", "ffn_gate_inp.weight", COLI_GGUF_AS_IT_IS, NONE},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", COLI_GGUF_AS_IT_IS, NONE},
    {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", COLI_GGUF_AS_IT_IS, NONE},
    {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", COLI_GGUF_AS_IT_IS, NONE},
    {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", COLI_GGUF_AS_IT_IS, NONE},
    {"mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight", COLI_GGUF_AS_IT_IS, NONE},
    {"mlp.experts.gate_proj", "ffn_gate_exps.weight", COLI_GGUF_AS_IT_IS, NONE},
    {"mlp.experts.up_proj", "ffn_up_exps.weight", COLI_GGUF_AS_IT_IS, NONE},
    {"mlp.experts.down_proj", "ffn_down_exps.weight", COLI_GGUF_AS_IT_IS, NONE},
};

/* The DeltaNet's dims; they were in range when the config was made of them. */
typedef struct delta {
    uint32_t n_k, n_v, d_k, d_v, n_tap;
    bool in_turns; // the value heads
} delta;

/* A single bool; absent is what it usually means. */
static coli_status read_flag(const coli__gguf *g, const char *key, bool usual, bool *out)
{
    const coli__gguf_value *v = coli__gguf_value_find(g, key);
    int64_t x;
    *out = usual;
    if (!v) return COLI_OK;
    if (v->is_array || v->type != COLI_GGUF_BOOL || !coli__gguf_int(v, 0, &x))
        return coli__fail(COLI_E_FORMAT, "%s: key %s: expected true or false", coli__gguf_path(g),
                          key);
    *out = x != 0;
    return COLI_OK;
}

static coli_status read_delta(const coli__gguf *g, delta *d)
{
    uint32_t d_value;
    *d = (delta){0};
    COLI_TRY(coli__gguf_u32(g, ARCH ".ssm.group_count", 1, 1024, &d->n_k));
    COLI_TRY(coli__gguf_u32(g, ARCH ".ssm.time_step_rank", 1, 1024, &d->n_v));
    COLI_TRY(coli__gguf_u32(g, ARCH ".ssm.state_size", 1, 1024, &d->d_k));
    COLI_TRY(coli__gguf_u32(g, ARCH ".ssm.inner_size", 1, 1 << 20, &d_value));
    COLI_TRY(coli__gguf_u32(g, ARCH ".ssm.conv_kernel", 2, 16, &d->n_tap));
    if (d_value % d->n_v)
        return coli__fail(COLI_E_FORMAT,
                          "%s: key " ARCH ".ssm.inner_size: %u is no multiple of the %u heads in "
                          "ssm.time_step_rank",
                          coli__gguf_path(g), d_value, d->n_v);
    if (d->n_v % d->n_k)
        return coli__fail(COLI_E_FORMAT,
                          "%s: key " ARCH ".ssm.time_step_rank: %u is no multiple of the %u in "
                          "ssm.group_count",
                          coli__gguf_path(g), d->n_v, d->n_k);
    d->d_v = d_value / d->n_v;
    return read_flag(g, ARCH ".ssm.v_head_reordered", true, &d->in_turns);
}

static void place_heads(const delta *d, heads where, coli__gguf_place *p)
{
    const uint32_t n_qk = 2 * d->n_k * d->d_k;
    coli__gguf_heads h = {.n_group = d->n_k, .n_per_group = d->n_v / d->n_k};
    if (where == ROWS_V || where == COLS_CONV) h.begin = n_qk;
    h.width = where == ROWS_HEAD || where == COLS_HEAD ? 1 : d->d_v;
    if (where == COLS_CONV) {
        h.begin *= d->n_tap;
        h.width *= d->n_tap;
    }
    if (h.n_per_group == 1 || !d->in_turns) return; // the orders agree
    *(where <= ROWS_HEAD ? &p->rows : &p->cols) = h;
}

/* "blk.0.ssm_dt.bias" is called "blk.0.ssm_dt" by some writers. */
static void drop_suffix(const coli__gguf *g, char *name)
{
    char *dot = strrchr(name, '.');
    if (coli__gguf_find(g, name)) return;
    *dot = 0;
    if (!coli__gguf_find(g, name)) *dot = '.'; // neither is there: the usual name is missing
}

static bool place(const coli__gguf *g, const char *name, coli__gguf_place *out)
{
    *out = (coli__gguf_place){.form = COLI_GGUF_AS_IT_IS};
    if (strcmp(name, "norm.weight") == 0) out->form = COLI_GGUF_ONE_PLUS;
    const char *global = strcmp(name, "embed_tokens.weight") == 0 ? "token_embd.weight"
                         : strcmp(name, "norm.weight") == 0       ? "output_norm.weight"
                         : strcmp(name, "lm_head.weight") == 0    ? "output.weight"
                                                                  : NULL;
    if (global) {
        snprintf(out->name, sizeof out->name, "%s", global);
        return true;
    }
    uint32_t layer;
    int n_head = 0;
    if (sscanf(name, "layers.%5u.%n", &layer, &n_head) != 1 || n_head == 0) return false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name + n_head, names[i].ours) != 0) continue;
        snprintf(out->name, sizeof out->name, "blk.%u.%s", layer, names[i].theirs);
        if (strcmp(names[i].theirs, "ssm_dt.bias") == 0) drop_suffix(g, out->name);
        out->form = names[i].form;
        delta d;
        if (names[i].heads != NONE) {
            if (read_delta(g, &d) != COLI_OK) return false;
            place_heads(&d, names[i].heads, out);
        }
        return true;
    }
    return false;
}

/* -- layers ------------------------------------------------------------------------------------ */

static coli_status count_layers(const coli__gguf *g, uint32_t *n_block, uint32_t *n_layer)
{
    uint32_t n_mtp;
    *n_layer = 0;
    COLI_TRY(coli__gguf_u32(g, ARCH ".block_count", 1, 2 * QWEN36_MAX_LAYER, n_block));
    COLI_TRY(coli__gguf_u32_or(g, ARCH ".nextn_predict_layers", 0, *n_block - 1, 0, &n_mtp));
    *n_layer = *n_block - n_mtp;
    return COLI_OK;
}

/* Not used here: MTP; the vision part, which some writers put into the same file; and what others
 * round activations with before a product. */
static const char *skips(const coli__gguf *g, const char *tensor_name)
{
    uint32_t layer, n_block, n_layer;
    if (strncmp(tensor_name, "v.", 2) == 0 || strncmp(tensor_name, "mm.", 3) == 0) return "vision";
    if (strncmp(tensor_name, "mtp.", 4) == 0) return "mtp";
    if (sscanf(tensor_name, "blk.%5u.", &layer) == 1 &&
        count_layers(g, &n_block, &n_layer) == COLI_OK && layer >= n_layer)
        return "mtp";
    return coli__ends_with(tensor_name, ".input_scale") ? "input_scale" : NULL;
}

/* What is said of each layer. */
typedef struct layers {
    uint32_t n_block, n; // with and without MTP
    uint32_t interval;   // every so manieth has attention; 0: as `full` says
    bool full[QWEN36_MAX_LAYER];
} layers;

/* The list at `key`, with a number for each layer, and perhaps for those of MTP; NULL when there is none.
 */
static coli_status find_by_layer(const coli__gguf *g, const char *key, const layers *l,
                                 const coli__gguf_value **out)
{
    int64_t x;
    *out = coli__gguf_value_find(g, key);
    if (!*out || !(*out)->is_array) *out = NULL;
    if (!*out || ((*out)->n >= l->n && (*out)->n <= l->n_block && coli__gguf_int(*out, 0, &x)))
        return COLI_OK;
    return coli__fail(COLI_E_FORMAT, "%s: key %s: expected a number for each of %u layers",
                      coli__gguf_path(g), key, l->n);
}

/* Which layers have attention: the list of the others, else the interval, else those that have heads
 * of keys and values, else every fourth. */
static coli_status read_layers(const coli__gguf *g, layers *l)
{
    const coli__gguf_value *recurrent, *n_kv_head;
    *l = (layers){0};
    COLI_TRY(count_layers(g, &l->n_block, &l->n));
    if (l->n > QWEN36_MAX_LAYER)
        return coli__fail(COLI_E_UNSUPPORTED, "%s: key " ARCH ".block_count: %u layers, at most %d",
                          coli__gguf_path(g), l->n, QWEN36_MAX_LAYER);
    COLI_TRY(find_by_layer(g, ARCH ".attention.recurrent_layers", l, &recurrent));
    if (!recurrent && coli__gguf_value_find(g, ARCH ".attention.recurrent_layers"))
        return coli__fail(COLI_E_FORMAT,
                          "%s: key " ARCH ".attention.recurrent_layers: expected a list",
                          coli__gguf_path(g));
    COLI_TRY(find_by_layer(g, ARCH ".attention.head_count_kv", l, &n_kv_head));
    COLI_TRY(coli__gguf_u32_or(g, ARCH ".full_attention_interval", 1, QWEN36_MAX_LAYER,
                               recurrent || n_kv_head ? 0 : 4, &l->interval));
    if (recurrent) l->interval = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        int64_t x = 0;
        if (l->interval == 0) coli__gguf_int(recurrent ? recurrent : n_kv_head, i, &x);
        l->full[i] = l->interval ? (i + 1) % l->interval == 0 : recurrent ? x == 0 : x != 0;
    }
    return COLI_OK;
}

/* A number of heads: one for all layers, or a list whose layers of attention agree. */
static coli_status read_heads(const coli__gguf *g, const char *key, const layers *l, uint32_t *out)
{
    const coli__gguf_value *list;
    COLI_TRY(find_by_layer(g, key, l, &list));
    if (!list) return coli__gguf_u32(g, key, 1, UINT32_MAX, out);
    *out = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        int64_t n = 0;
        if (!l->full[i]) continue;
        if (!coli__gguf_int(list, i, &n) || n < 1 || n > UINT32_MAX || (*out && n != *out))
            return coli__fail(COLI_E_UNSUPPORTED,
                              "%s: key %s: layer %u has %lld heads; only layers of attention that "
                              "all have as many are supported",
                              coli__gguf_path(g), key, i, (long long)n);
        *out = (uint32_t)n;
    }
    if (*out) return COLI_OK;
    return coli__fail(COLI_E_FORMAT, "%s: key %s: no layer of attention has heads",
                      coli__gguf_path(g), key);
}

static coli_status write_layers(const layers *l, coli__buf *out)
{
    COLI_TRY(coli__buf_printf(out, "  \"num_hidden_layers\": %u,\n", l->n));
    if (l->interval)
        return coli__buf_printf(out, "  \"full_attention_interval\": %u,\n", l->interval);
    COLI_TRY(coli__buf_str(out, "  \"layer_types\": ["));
    for (uint32_t i = 0; i < l->n; i++)
        COLI_TRY(coli__buf_printf(out, "%s\"%s_attention\"", i ? ", " : "",
                                  l->full[i] ? "full" : "linear"));
    return coli__buf_str(out, "],\n");
}

/* -- config.json ------------------------------------------------------------------------------- */

static coli_status copy_u32(const coli__gguf *g, coli__buf *out, const char *member,
                            const char *key)
{
    uint32_t value;
    COLI_TRY(coli__gguf_u32(g, key, 0, UINT32_MAX, &value));
    return coli__buf_printf(out, "  \"%s\": %u,\n", member, value);
}

/* The keys that become members as they are. */
static coli_status copy_numbers(const coli__gguf *g, coli__buf *out)
{
    static const char *const pairs[][2] = {
        {"hidden_size", ARCH ".embedding_length"},
        {"max_position_embeddings", ARCH ".context_length"},
        {"head_dim", ARCH ".attention.key_length"},
        {"num_experts", ARCH ".expert_count"},
        {"num_experts_per_tok", ARCH ".expert_used_count"},
        {"moe_intermediate_size", ARCH ".expert_feed_forward_length"},
        {"shared_expert_intermediate_size", ARCH ".expert_shared_feed_forward_length"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        COLI_TRY(copy_u32(g, out, pairs[i][0], pairs[i][1]));
    return COLI_OK;
}

/* The factor that gives back n_rot as the whole part of d_head * factor. */
static coli_status rotary_factor(const coli__gguf *g, double *factor)
{
    uint32_t d_head, n_rot;
    COLI_TRY(coli__gguf_u32(g, ARCH ".attention.key_length", 1, 4096, &d_head));
    COLI_TRY(coli__gguf_u32(g, ARCH ".rope.dimension_count", 1, d_head, &n_rot));
    *factor = (double)n_rot / d_head;
    if ((uint32_t)(d_head * *factor) < n_rot) *factor += 0x1p-50; // n_rot / d_head was rounded down
    return COLI_OK;
}

static coli_status write_rope(const coli__gguf *g, coli__buf *out)
{
    coli__gguf_text scaling;
    COLI_TRY(coli__gguf_text_or_null(g, ARCH ".rope.scaling.type", &scaling));
    if (scaling.data && !(scaling.n_bytes == 4 && memcmp(scaling.data, "none", 4) == 0))
        return coli__fail(
            COLI_E_UNSUPPORTED, "%s: key " ARCH ".rope.scaling.type: \"%.*s\" is not supported",
            coli__gguf_path(g), (int)(scaling.n_bytes < 40 ? scaling.n_bytes : 40), scaling.data);
    double theta, factor;
    COLI_TRY(coli__gguf_number_or(g, ARCH ".rope.freq_base", 0, &theta));
    if (theta == 0) // a guess would run and be wrong
        return coli__fail(COLI_E_FORMAT, "%s: key " ARCH ".rope.freq_base: is missing",
                          coli__gguf_path(g));
    COLI_TRY(rotary_factor(g, &factor));
    COLI_TRY(
        coli__buf_str(out, "  \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": "));
    COLI_TRY(coli__buf_number(out, theta, 9));
    COLI_TRY(coli__buf_str(out, ", \"partial_rotary_factor\": "));
    COLI_TRY(coli__buf_number(out, factor, 17));
    const coli__gguf_value *sections = coli__gguf_value_find(g, ARCH ".rope.dimension_sections");
    int64_t s[3];
    if (sections && sections->is_array && coli__gguf_int(sections, 0, &s[0]) &&
        coli__gguf_int(sections, 1, &s[1]) && coli__gguf_int(sections, 2, &s[2]))
        COLI_TRY(coli__buf_printf(out,
                                  ", \"mrope_interleaved\": true, \"mrope_section\": [%lld, %lld, "
                                  "%lld]",
                                  (long long)s[0], (long long)s[1], (long long)s[2]));
    return coli__buf_str(out, "},\n");
}

static coli_status write_vocab(const coli__gguf *g, coli__buf *out)
{
    const coli__gguf_tensor *t = coli__gguf_find(g, "token_embd.weight");
    if (!t || t->rank != 2)
        return coli__fail(COLI_E_FORMAT, "%s: tensor token_embd.weight: is %s", coli__gguf_path(g),
                          t ? "no matrix" : "missing");
    return coli__buf_printf(out, "  \"vocab_size\": %llu,\n  \"tie_word_embeddings\": %s\n",
                            (unsigned long long)t->dims[1],
                            coli__gguf_find(g, "output.weight") ? "false" : "true");
}

/* The router's weights are made to sum up to 1, unless a file says that they are not. */
static coli_status check_router(const coli__gguf *g)
{
    bool norm;
    COLI_TRY(read_flag(g, ARCH ".norm_top_k_prob", true, &norm));
    if (norm) return COLI_OK;
    return coli__fail(COLI_E_UNSUPPORTED,
                      "%s: key " ARCH ".norm_top_k_prob: only true is supported",
                      coli__gguf_path(g));
}

static coli_status config(const coli__gguf *g, coli__buf *out)
{
    layers l;
    uint32_t n_head, n_kv_head;
    double eps;
    delta d;
    COLI_TRY(read_layers(g, &l));
    COLI_TRY(read_heads(g, ARCH ".attention.head_count", &l, &n_head));
    COLI_TRY(read_heads(g, ARCH ".attention.head_count_kv", &l, &n_kv_head));
    COLI_TRY(check_router(g));
    COLI_TRY(read_delta(g, &d));
    COLI_TRY(coli__gguf_number_or(g, ARCH ".attention.layer_norm_rms_epsilon", 1e-6, &eps));
    COLI_TRY(coli__buf_str(out, "{\n  \"architectures\": [\"Qwen3_5MoeForCausalLM\"],\n"
                                "  \"model_type\": \"qwen3_5_moe_text\",\n"));
    COLI_TRY(write_layers(&l, out));
    COLI_TRY(coli__buf_printf(out,
                              "  \"num_attention_heads\": %u,\n  \"num_key_value_heads\": %u,\n"
                              "  \"linear_num_key_heads\": %u,\n  \"linear_num_value_heads\": %u,\n"
                              "  \"linear_key_head_dim\": %u,\n  \"linear_value_head_dim\": %u,\n"
                              "  \"linear_conv_kernel_dim\": %u,\n  \"rms_norm_eps\": ",
                              n_head, n_kv_head, d.n_k, d.n_v, d.d_k, d.d_v, d.n_tap));
    COLI_TRY(coli__buf_number(out, eps, 9));
    COLI_TRY(coli__buf_str(out, ",\n"));
    COLI_TRY(copy_numbers(g, out));
    COLI_TRY(write_rope(g, out));
    COLI_TRY(write_vocab(g, out));
    return coli__buf_str(out, "}\n");
}

const coli__gguf_family coli__gguf_qwen36 = {
    .architecture = ARCH, .config = config, .place = place, .skips = skips};
