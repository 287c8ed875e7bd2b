/* forms_test.c - every form in which the family's checkpoints are published, written here number by number,
 * against the container that the converter makes of it.  What a stored number stands for is computed here
 * in double precision, by the format's definition and with none of the library's readers.  These numbers,
 * written once more as plain f32, are what the logits of a form are held against. */
#include <math.h>

#include "micro.h"
#include "world.h"

#define TEXT_CONFIG(type, more)                                                                    \
    "\"model_type\":\"" type "\",\"vocab_size\":200,\"hidden_size\":136,"                          \
    "\"num_hidden_layers\":2,\"layer_types\":[\"linear_attention\",\"full_attention\"],"           \
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":16,\"rope_parameters\":"     \
    "{\"rope_type\":\"default\",\"rope_theta\":10000.0,\"partial_rotary_factor\":0.25},"           \
    "\"linear_num_key_heads\":1,\"linear_num_value_heads\":2,\"linear_key_head_dim\":8,"           \
    "\"linear_value_head_dim\":8,\"linear_conv_kernel_dim\":4,\"num_experts\":3,"                  \
    "\"num_experts_per_tok\":2,\"moe_intermediate_size\":72,"                                      \
    "\"shared_expert_intermediate_size\":40" more

static const char text_only[] = "{" TEXT_CONFIG("qwen3_5_moe_text", "") "}";
static const char wrapped[] =
    "{\"architectures\":[\"Qwen3_5MoeForConditionalGeneration\"],\"model_type\":\"qwen3_5_moe\","
    "\"tie_word_embeddings\":false,\"text_config\":{" TEXT_CONFIG(
        "qwen3_5_moe_text",
        "") "},"
            "\"vision_config\":{\"depth\":27,\"hidden_size\":1152},\"image_token_id\":150}";
static const char in_fp8[] = "{" TEXT_CONFIG(
    "qwen3_5_moe_text", "") ",\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\","
                            "\"weight_block_size\":[128,128],\"activation_scheme\":\"dynamic\","
                            "\"modules_to_not_convert\":[\"lm_head\",\"model.embed_tokens\"]}}";

typedef struct form {
    const char *what, *config, *prefix;
    coli__dtype dtype, scale_dtype; // the latter: F8_E4M3's
    bool is_fused, has_suffix;      // the latter: fused experts are called X.weight
    bool has_more;                  // MTP and vision
    int n_shard;
} form;

// clang-format off
static const form forms[] = {
    {"bf16, fused",           text_only, "model.",                COLI_DT_BF16,    0,            true,  false, false, 1},
    {"f16, one by one",       text_only, "model.",                COLI_DT_F16,     0,            false, false, false, 1},
    {"f32, no prefix",        text_only, "",                      COLI_DT_F32,     0,            true,  true,  false, 1},
    {"the wrapper, sharded",  wrapped,   "model.language_model.", COLI_DT_BF16,    0,            true,  false, true,  3},
    {"fp8, f32 scales",       in_fp8,    "model.",                COLI_DT_F8_E4M3, COLI_DT_F32,  false, false, false, 2},
    {"fp8, bf16 scales",      in_fp8,    "model.",                COLI_DT_F8_E4M3, COLI_DT_BF16, false, false, true,  1},
    {"fp8, fused",            in_fp8,    "model.",                COLI_DT_F8_E4M3, COLI_DT_F32,  true,  false, false, 1},
};
// clang-format on

/* A matrix as the model has it, and what its weights are. */
typedef struct truth {
    char name[128];
    uint32_t n_out, n_in;
    double *w;
} truth;

static const char *const parts[] = {"gate", "up", "down"};

static truth truths[128];
static uint32_t n_truth;
static micro m;

static truth *add_truth(const char *name, uint32_t n_out, uint32_t n_in)
{
    truth *t = &truths[n_truth++];
    *t = (truth){.n_out = n_out, .n_in = n_in, .w = malloc((size_t)n_out * n_in * sizeof *t->w)};
    snprintf(t->name, sizeof t->name, "%s", name);
    return t;
}

static void forget(void)
{
    while (n_truth > 0) free(truths[--n_truth].w);
}

/* -- numbers ----------------------------------------------------------------------------------- */

/* The value of a sign, an exponent and a fraction. */
static double value_of(uint32_t bits, int n_exp, int n_fraction)
{
    const int bias = (1 << (n_exp - 1)) - 1;
    const int e = (int)(bits >> n_fraction & ((1u << n_exp) - 1));
    const double f = (double)(bits & ((1u << n_fraction) - 1)) / (double)(1u << n_fraction);
    const double x = e ? ldexp(1 + f, e - bias) : ldexp(f, 1 - bias);
    return bits >> (n_exp + n_fraction) & 1 ? -x : x;
}

/* A random number of the type, its bytes at `out`; what it stands for.  It is between 2^(e-3) and
 * 2^(e+1), but of fp8 any. */
static double put_number(coli__dtype dtype, int e, uint8_t *out)
{
    uint32_t bits = (uint32_t)t_u64(&m.rng);
    if (dtype == COLI_DT_F32) {
        bits = (bits & 0x807fffffu) | (124 + (uint32_t)e + t_below(&m.rng, 4)) << 23;
        memcpy(out, &bits, 4);
        return value_of(bits, 8, 23);
    }
    if (dtype == COLI_DT_F8_E4M3) {
        bits &= 0xff;
        if ((bits & 0x7f) == 0x7f) bits ^= 1; // NaN
        out[0] = (uint8_t)bits;
        return value_of(bits, 4, 3);
    }
    const bool half = dtype == COLI_DT_F16;
    bits = half ? (bits & 0x83ffu) | (12 + (uint32_t)e + t_below(&m.rng, 4)) << 10
                : (bits & 0x807fu) | (124 + (uint32_t)e + t_below(&m.rng, 4)) << 7;
    const uint16_t two = (uint16_t)bits;
    memcpy(out, &two, 2);
    return half ? value_of(bits, 5, 10) : value_of(bits, 8, 7);
}

static uint32_t bytes_of(coli__dtype dtype)
{
    return dtype == COLI_DT_F32 ? 4 : dtype == COLI_DT_F8_E4M3 ? 1 : 2;
}

/* Put n_out rows into data; fp8 gets the tiles of `grid`, which are laid over the whole tensor. */
static void put_matrix(double *w, uint32_t n_out, uint32_t n_in, coli__dtype dtype, uint8_t *data,
                       const double *grid, uint32_t first_row)
{
    const uint32_t n_tile = (n_in + 127) / 128;
    for (uint32_t r = 0; r < n_out; r++)
        for (uint32_t c = 0; c < n_in; c++) {
            const size_t i = (size_t)r * n_in + c;
            w[i] = put_number(dtype, -4, data + i * bytes_of(dtype));
            if (grid) w[i] = (float)(w[i] * grid[(first_row + r) / 128 * n_tile + c / 128]);
        }
}

static double *put_grid(uint8_t *data, uint64_t n, coli__dtype dtype)
{
    double *grid = malloc(n * sizeof *grid);
    for (uint64_t i = 0; i < n; i++) {
        grid[i] = fabs(put_number(dtype, -12, data + i * bytes_of(dtype)));
        data[(i + 1) * bytes_of(dtype) - 1] &= 0x7f; // a positive one
    }
    return grid;
}

/* -- checkpoints ------------------------------------------------------------------------------- */

static const char *full_name(const form *f, const char *name)
{
    static char full[200];
    snprintf(full, sizeof full, "%s%s", strncmp(name, "lm_head", 7) ? f->prefix : "", name);
    return full;
}

static void add_grid(const char *name, const form *f, uint32_t rank, const uint64_t *shape,
                     void *data)
{
    char scale[220];
    snprintf(scale, sizeof scale, "%s_scale_inv", name);
    micro_add(&m, scale, f->scale_dtype, rank, shape, data);
}

/* A vector has one dimension. */
static void add_shaped(const char *full, const truth *t, coli__dtype dtype, void *data)
{
    const uint64_t shape[2] = {t->n_out, t->n_in};
    const bool is_vector = t->n_out == 1 && !strstr(full, "shared_expert_gate");
    micro_add(&m, full, dtype, is_vector ? 1 : 2, is_vector ? shape + 1 : shape, data);
}

/* One matrix, in the form's type where that is quantised only if `may_be_fp8`. */
static void add_matrix(const form *f, const char *name, truth *t, bool may_be_fp8)
{
    const bool fp8 = f->dtype == COLI_DT_F8_E4M3;
    const coli__dtype dtype = fp8 && !may_be_fp8 ? COLI_DT_BF16 : f->dtype;
    uint8_t *data = malloc((size_t)t->n_out * t->n_in * 4);
    double *grid = NULL;
    const uint64_t tiles[2] = {(t->n_out + 127) / 128, (t->n_in + 127) / 128};
    char full[200];
    snprintf(full, sizeof full, "%s", full_name(f, name));
    if (fp8 && may_be_fp8) {
        uint8_t *scales = malloc(tiles[0] * tiles[1] * 4);
        grid = put_grid(scales, tiles[0] * tiles[1], f->scale_dtype);
        add_grid(full, f, 2, tiles, scales);
    }
    put_matrix(t->w, t->n_out, t->n_in, dtype, data, grid, 0);
    add_shaped(full, t, dtype, data);
    free(grid);
}

/* gate and up, or down, of all experts in one tensor. */
static void add_fused(const form *f, const coli__expert_spec *s, const char *part, int n_part,
                      uint32_t n_out, uint32_t n_in)
{
    const bool fp8 = f->dtype == COLI_DT_F8_E4M3;
    const uint32_t n_row = (uint32_t)n_part * n_out, size = bytes_of(f->dtype);
    const uint64_t shape[3] = {s->n_expert, n_row, n_in},
                   tiles[3] = {s->n_expert, (n_row + 127) / 128, (n_in + 127) / 128};
    uint8_t *data = malloc((size_t)s->n_expert * n_row * n_in * size);
    const uint64_t n_tile = tiles[1] * tiles[2];
    uint8_t *scales = malloc(s->n_expert * n_tile * 4);
    for (uint32_t e = 0; e < s->n_expert; e++) {
        double *grid =
            fp8 ? put_grid(scales + e * n_tile * bytes_of(f->scale_dtype), n_tile, f->scale_dtype)
                : NULL;
        for (int p = 0; p < n_part; p++) {
            char name[128];
            snprintf(name, sizeof name, "%s%u.%d", s->prefix, e, n_part == 1 ? 2 : p);
            truth *t = add_truth(name, n_out, n_in);
            const uint32_t first = (uint32_t)p * n_out;
            put_matrix(t->w, n_out, n_in, f->dtype,
                       data + ((size_t)e * n_row + first) * n_in * size, grid, first);
        }
        free(grid);
    }
    char name[200];
    snprintf(name, sizeof name, "%s%s%s%s", f->prefix, s->prefix, part,
             f->has_suffix ? ".weight" : "");
    micro_add(&m, name, f->dtype, 3, shape, data);
    if (fp8)
        add_grid(name, f, 3, tiles, scales);
    else
        free(scales);
}

static void add_experts(const form *f, const coli__expert_spec *s)
{
    if (f->is_fused) {
        add_fused(f, s, "gate_up_proj", 2, s->d_ff, s->d_model);
        add_fused(f, s, "down_proj", 1, s->d_model, s->d_ff);
        return;
    }
    for (uint32_t e = 0; e < s->n_expert; e++)
        for (int i = 0; i < 3; i++) {
            char name[128];
            snprintf(name, sizeof name, "%s%u.%d", s->prefix, e, i);
            truth *t = add_truth(name, i < 2 ? s->d_ff : s->d_model, i < 2 ? s->d_model : s->d_ff);
            snprintf(name, sizeof name, "%s%u.%s_proj.weight", s->prefix, e, parts[i]);
            add_matrix(f, name, t, true);
        }
}

/* Tensors dealt out to n files, and the index that says which is where. */
static void write_shards(const char *dir, int n)
{
    coli__buf index = {0};
    T_OK(coli__buf_str(&index, "{\"metadata\":{\"total_size\":1},\"weight_map\":"));
    for (uint32_t i = 0; i < m.n; i++)
        T_OK(coli__buf_printf(&index, "%s\"%s\":\"model-%05d-of-%05d.safetensors\"", i ? "," : "{",
                              m.tensors[i].name, (int)i % n + 1, n));
    T_OK(coli__buf_str(&index, "}}"));
    for (int shard = 0; shard < n; shard++) {
        coli__st_out some[MICRO_MAX];
        uint32_t n_some = 0;
        for (uint32_t i = (uint32_t)shard; i < m.n; i += (uint32_t)n) some[n_some++] = m.tensors[i];
        char path[600];
        snprintf(path, sizeof path, "%s/model-%05d-of-%05d.safetensors", dir, shard + 1, n);
        T_OK(coli__st_write(path, some, n_some));
    }
    char path[600];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    micro_text(path, index.data);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    coli__file_remove(path);
    coli__buf_finish(&index);
}

static const char *write_form(const form *f)
{
    json_t *root;
    const char *engine;
    coli__model_spec spec;
    forget();
    m = (micro){.config = strdup(f->config), .rng = {17}};
    T_OK(coli__json_parse("config", f->config, strlen(f->config), 64, &root));
    T_OK(coli__engine_describe(root, &engine, &spec));
    for (uint32_t i = 0; i < spec.n_tensor; i++) {
        const coli__tensor_spec *s = &spec.tensors[i];
        add_matrix(f, s->name, add_truth(s->name, s->n_out, s->n_in),
                   s->role == COLI_ROLE_TRUNK && strncmp(s->name, "lm_head", 7) != 0);
    }
    for (uint32_t i = 0; i < spec.n_expert_layer; i++) add_experts(f, &spec.experts[i]);
    coli__model_spec_finish(&spec);
    json_decref(root);
    if (f->has_more) {
        const uint64_t shape[2] = {3, 5};
        micro_random(&m, "mtp.fc.weight", COLI_DT_BF16, 2, shape);
        micro_random(&m, "mtp.layers.0.mlp.experts.0.up_proj.weight", COLI_DT_BF16, 2, shape);
        micro_random(&m, "model.visual.pos_embed.weight", COLI_DT_BF16, 2, shape);
    }
    const char *src = micro_write(&m, micro_path("form.src"));
    if (f->n_shard > 1) write_shards(src, f->n_shard);
    micro_finish(&m);
    return src;
}

/* -- containers -------------------------------------------------------------------------------- */

static char notes[1 << 14];

static void take_note(void *user, const char *line)
{
    (void)user;
    const size_t n = strlen(notes);
    snprintf(notes + n, sizeof notes - n, "%s|", line);
}

/* Exact in f32, and in bf16 where the number is one; half a step of a quantised one, unless its code
 * is at its end; half a unit in the last place of bf16. */
static void compare(const char *what, const truth *t, const coli__mat *mat)
{
    T_EQ(mat->n_out, t->n_out);
    T_EQ(mat->n_in, t->n_in);
    for (uint32_t r = 0; r < t->n_out; r++)
        for (uint32_t c = 0; c < t->n_in; c++) {
            const double x = t->w[(size_t)r * t->n_in + c];
            const micro_elem e = micro_elem_at(mat, r, c);
            double allowed = 0;
            if (mat->fmt.type == COLI_W_BF16) allowed = fabs(x) * 0x1p-8;
            if (coli__wfmt_is_quant(mat->fmt))
                allowed = e.code == e.code_max || e.code == e.code_min
                              ? fmax(fabs(e.scale) / 2, 0.45 * fabs(x))
                              : fabs(e.scale) * 0.5001;
            if (fabs(e.value - x) > allowed)
                fail_msg("%s: %s: row %u, column %u: %.9g against %.9g", what, t->name, r, c,
                         e.value, x);
        }
}

static const coli__mat *find(const coli__container *c, const truth *t)
{
    static coli__mat part[3];
    const coli__ct_tensor *tensor;
    unsigned layer, e;
    int i;
    if (sscanf(t->name, "layers.%u.mlp.experts.%u.%d", &layer, &e, &i) == 3) {
        coli__ct_expert(coli__container_experts(c, layer), e, &part[0], &part[1], &part[2]);
        return &part[i];
    }
    T_OK(coli__container_find(c, t->name, t->n_out, t->n_in, &tensor));
    return &tensor->mat;
}

static void round_trip(const form *f, const char *src, const char *experts, const char *trunk)
{
    const char *out = micro_path("form");
    notes[0] = 0;
    const coli__convert_args args = {.src = src,
                                     .out = out,
                                     .describe = coli__engine_describe,
                                     .n_thread = 2,
                                     .note = take_note,
                                     .experts = micro_format(experts),
                                     .trunk = micro_format(trunk)};
    if (coli__convert(&args) != COLI_OK) fail_msg("%s: %s", f->what, coli_error_message());
    coli__container *c;
    T_OK(coli__container_open(out, &c));
    T_OK(coli__container_verify(c, coli__engine_describe, NULL, NULL));
    for (uint32_t i = 0; i < n_truth; i++) compare(f->what, &truths[i], find(c, &truths[i]));
    coli__container_close(c);
    T_EQ(strstr(notes, "skipped 2 mtp tensors|") != NULL, f->has_more);
    T_EQ(strstr(notes, "skipped 1 visual tensor|") != NULL, f->has_more);
    T_TRUE(strstr(notes, "left out") == NULL);
    coli__dir_remove(out);
}

T_TEST(every_form_comes_in)
{
    T_BEGIN;
    static const char *const formats[][2] = {
        {"f32", "f32"}, {"bf16", "bf16"}, {"int4", "int8"}, {"int8-row-f16", "int4-g32-f32"}};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        const char *src = write_form(&forms[i]);
        for (int k = 0; k < 4; k++) round_trip(&forms[i], src, formats[k][0], formats[k][1]);
    }
    forget();
}

/* -- logits ------------------------------------------------------------------------------------ */

/* What the last form's numbers stand for, as a checkpoint of plain f32. */
static const char *write_plain(void)
{
    m = (micro){.config = strdup(text_only)};
    for (uint32_t i = 0; i < n_truth; i++) {
        const truth *t = &truths[i];
        const size_t n = (size_t)t->n_out * t->n_in;
        float *data = malloc(n * sizeof *data);
        for (size_t k = 0; k < n; k++) data[k] = (float)t->w[k];
        unsigned layer, e;
        int part;
        char name[200];
        if (sscanf(t->name, "layers.%u.mlp.experts.%u.%d", &layer, &e, &part) == 3)
            snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.%s_proj.weight", layer, e,
                     parts[part]);
        else
            snprintf(name, sizeof name, "%s%.127s", strncmp(t->name, "lm_head", 7) ? "model." : "",
                     t->name);
        add_shaped(name, t, COLI_DT_F32, data);
    }
    const char *src = micro_write(&m, micro_path("plain.src"));
    micro_finish(&m);
    return src;
}

/* How large the errors of the container's weights are, beside the weights: of trunk, then of experts. */
static void measure(const char *dir, double out[2])
{
    double error2[2] = {0}, size2[2] = {0};
    coli__container *c;
    T_OK(coli__container_open(dir, &c));
    for (uint32_t i = 0; i < n_truth; i++) {
        const truth *t = &truths[i];
        const coli__mat *mat = find(c, t);
        const bool is_expert = strstr(t->name, "mlp.experts") != NULL;
        if (!coli__wfmt_is_quant(mat->fmt)) continue;
        for (uint32_t r = 0; r < t->n_out; r++)
            for (uint32_t k = 0; k < t->n_in; k++) {
                const double x = t->w[(size_t)r * t->n_in + k];
                const double e = micro_elem_at(mat, r, k).value - x;
                error2[is_expert] += e * e;
                size2[is_expert] += x * x;
            }
    }
    coli__container_close(c);
    for (int i = 0; i < 2; i++) out[i] = sqrt(error2[i] / size2[i]);
}

/* The logits of a form are those of its numbers, to the bit and in any format: nothing but the numbers
 * counts.  And those of a quantised container are as far from f32's as its rounding explains: the errors of
 * weights that were just measured, and of activations, 0.0055 of their size each (gguf_model_test.c),
 * of the five trunk matrices and the four of experts that a number passes.  Independent errors add up in
 * squares; twice that is allowed. */
T_TEST(logits_are_those_of_the_numbers)
{
    T_BEGIN;
    enum { N_VOCAB = 200, N_TOK = 9 };
    static const char *const formats[][2] = {{"f32", "f32"}, {"int8", "int8"}, {"int4", "int8"}};
    static float logits[3][N_TOK * N_VOCAB], plain[N_TOK * N_VOCAB];
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        const char *src = write_form(&forms[i]), *plain_src = write_plain();
        for (int k = 0; k < 3; k++) {
            const char *out = micro_path("a"), *plain_out = micro_path("b");
            T_OK(micro_convert(src, out, formats[k][0], formats[k][1]));
            T_OK(micro_convert(plain_src, plain_out, formats[k][0], formats[k][1]));
            world_logits(out, N_VOCAB, N_TOK, logits[k]);
            world_logits(plain_out, N_VOCAB, N_TOK, plain);
            T_MEM(logits[k], plain, sizeof plain);
            if (k > 0) {
                double e[2];
                measure(out, e);
                const double is = world_apart(logits[0], logits[k], N_VOCAB, N_TOK);
                const double may =
                    2 * sqrt(9 * 0.0055 * 0.0055 + 5 * e[0] * e[0] + 4 * e[1] * e[1]);
                print_message(
                    "%s, %s: weights off by %.2g and %.2g %%, logits by %.2g of %.2g %%\n",
                    forms[i].what, formats[k][0], 100 * e[0], 100 * e[1], 100 * is, 100 * may);
                T_FLE(is, may);
            }
            coli__dir_remove(out);
            coli__dir_remove(plain_out);
        }
    }
    forget();
}

/* bf16 weights in a bf16 container are the same numbers. */
T_TEST(bf16_stays_bf16)
{
    T_BEGIN;
    const char *src = write_form(&forms[0]), *out = micro_path("bf16");
    T_OK(micro_convert(src, out, "bf16", "bf16"));
    coli__container *c;
    T_OK(coli__container_open(out, &c));
    for (uint32_t i = 0; i < n_truth; i++) {
        const coli__mat *mat = find(c, &truths[i]);
        for (uint32_t r = 0; r < mat->n_out; r++)
            for (uint32_t k = 0; k < mat->n_in; k++)
                T_FLE(fabs(micro_elem_at(mat, r, k).value - truths[i].w[(size_t)r * mat->n_in + k]),
                      0);
    }
    coli__container_close(c);
    forget();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_comes_in),
        cmocka_unit_test(logits_are_those_of_the_numbers),
        cmocka_unit_test(bf16_stays_bf16),
    };
    return cmocka_run_group_tests(tests, micro_setup, micro_teardown);
}
