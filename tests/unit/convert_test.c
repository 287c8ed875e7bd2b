/* convert_test.c - from checkpoint to container: every spelling of a checkpoint, every format, and
 * what is refused. */
#include <fenv.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "micro.h"

#include "coli/coli.h"

#if defined(__has_feature) // clang
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define OTHER_HEAP 1
#endif
#endif
#if defined(OTHER_HEAP) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||        \
    !defined(__GLIBC__)
#define HEAP_IS_VISIBLE 0
#else
#define HEAP_IS_VISIBLE 1
#endif

static const char *const formats[][2] = {
    {"f32", "f32"},
    {"bf16", "bf16"},
    {"int4", "int8"},
    {"int8-g64-f32", "int4-g64-f32"},
    {"int4-g32-f16", "int8-g32-f32"},
    {"int8-row-f16", "int4-row-f32"},
    {"int4-row-f16", "int8-row-f16"},
};
enum { N_FORMAT = sizeof formats / sizeof formats[0] };

/* -- right ones
 * ------------------------------------------------------------------------------------- */

T_TEST(every_format_holds_the_fixtures)
{
    T_BEGIN;
    for (const char *model = "abcd"; *model; model++)
        for (int i = 0; i < N_FORMAT; i += *model == 'a' ? 1 : 2) { // 0 is exact, 2 the usual one
            char src[512];
            snprintf(src, sizeof src, "%s/qwen36-tiny-%c", TEST_FIXTURES, *model);
            const char *out = micro_path("tiny-%c-%d", *model, i);
            T_OK(micro_convert(src, out, formats[i][0], formats[i][1]));
            micro_compare_all(out, src);
        }
}

/* a and c are the same model, experts fused and one by one. */
T_TEST(fused_and_single_experts_are_the_same_bytes)
{
    T_BEGIN;
    coli__buf a = micro_read(micro_path("tiny-a-2/model.coli"));
    coli__buf c = micro_read(micro_path("tiny-c-2/model.coli"));
    T_EQ(a.n_bytes, c.n_bytes);
    T_MEM(a.data, c.data, a.n_bytes);
    coli__buf_finish(&a);
    coli__buf_finish(&c);
}

/* Any dims, any layout, any format: what went in comes out, and verify agrees. */
T_PROP(random_models_survive, 12)
{
    static const int kinds[] = {MICRO_FUSED, MICRO_SINGLE, MICRO_FP8};
    char config[1024];
    snprintf(
        config, sizeof config,
        "{\"model_type\":\"qwen3_5_moe_text\",\"vocab_size\":%u,\"hidden_size\":%u,"
        "\"num_hidden_layers\":2,\"full_attention_interval\":2,\"num_attention_heads\":2,"
        "\"num_key_value_heads\":1,\"head_dim\":%u,\"rope_theta\":1e4,\"linear_num_key_heads\":1,"
        "\"linear_num_value_heads\":2,\"linear_key_head_dim\":%u,\"linear_value_head_dim\":%u,"
        "\"num_experts\":%u,\"num_experts_per_tok\":1,\"moe_intermediate_size\":%u,"
        "\"shared_expert_intermediate_size\":%u,\"tie_word_embeddings\":%s}",
        t_range(&rng, 1, 90), t_range(&rng, 1, 150), 8 * t_range(&rng, 1, 4), t_range(&rng, 1, 20),
        t_range(&rng, 1, 20), t_range(&rng, 1, 7), t_range(&rng, 1, 150), t_range(&rng, 1, 70),
        t_below(&rng, 2) ? "true" : "false");
    micro m;
    micro_init(&m, config, t_u64(&rng), kinds[t_below(&rng, 3)]);
    const char *src = micro_write(&m, micro_path("random.src"));
    micro_finish(&m);
    const char *const *format = formats[t_below(&rng, N_FORMAT)];
    const char *out = micro_path("random");
    T_OK(micro_convert(src, out, format[0], format[1]));
    micro_compare_all(out, src);
    coli__container *c;
    T_OK(coli__container_open(out, &c));
    T_OK(coli__container_verify(c, coli__engine_describe, NULL, NULL));
    coli__container_close(c);
    coli__dir_remove(out);
}

T_TEST(the_thread_count_does_not_show)
{
    T_BEGIN;
    micro m;
    micro_init(&m, MICRO_CONFIG(4, ""), 5, MICRO_SINGLE);
    const char *src = micro_write(&m, micro_path("threads.src"));
    micro_finish(&m);
    coli__buf first = {0};
    for (uint32_t n_thread = 1; n_thread <= 5; n_thread++) {
        const char *out = micro_path("threads-%u", n_thread);
        const coli__convert_args args = {.src = src,
                                         .out = out,
                                         .describe = coli__engine_describe,
                                         .n_thread = n_thread,
                                         .experts = micro_format("int4"),
                                         .trunk = micro_format("int8")};
        T_OK(coli__convert(&args));
        coli__buf text = micro_read(micro_path("threads-%u/model.coli", n_thread));
        if (n_thread == 1) {
            first = text;
            continue;
        }
        T_EQ(text.n_bytes, first.n_bytes);
        T_MEM(text.data, first.data, first.n_bytes);
        coli__buf_finish(&text);
    }
    coli__buf_finish(&first);
}

/* The example of docs/formats/safetensors.md: ragged tiles. */
T_TEST(fp8_tiles)
{
    T_BEGIN;
    enum { O = 130, I = 129 };
    static uint8_t fp8[O * I];
    static const float scales[4] = {0.5f, 0.25f, 2, 4};
    const coli__st_tensor scale = {.name = "w_scale_inv",
                                   .dtype = COLI_DT_F32,
                                   .rank = 2,
                                   .shape = {2, 2},
                                   .n_elem = 4,
                                   .data = (const uint8_t *)scales};
    const coli__st_tensor t = {.name = "w",
                               .dtype = COLI_DT_F8_E4M3,
                               .rank = 2,
                               .shape = {O, I},
                               .n_elem = O * I,
                               .data = fp8};
    const coli__weight w = {.tensor = &t, .scale = &scale, .n_out = O, .n_in = I};
    fp8[0] = 0x38;
    fp8[128] = 0x40;
    fp8[128 * I + 127] = 0xb8;
    fp8[129 * I] = 0x01;
    fp8[129 * I + 128] = 0x7e;
    static float out[O * I];
    T_OK(coli__weight_rows(&w, 0, O, out));
    T_FLE(fabs(out[0] - 0.5), 0);
    T_FLE(fabs(out[128] - 0.5), 0);
    T_FLE(fabs(out[128 * I + 127] + 2.0), 0);
    T_FLE(fabs(out[129 * I] - 0.00390625), 0);
    T_FLE(fabs(out[129 * I + 128] - 1792.0), 0);
    float again[2 * I];
    T_OK(coli__weight_rows(&w, 127, 2, again));
    T_MEM(again, out + 127 * I, sizeof again);
}

/* Scales as f16 where they fit; f32 where one matrix spreads too wide, for all experts of its kind.
 */
T_TEST(wide_matrices_get_f32_scales)
{
    T_BEGIN;
    micro m;
    micro_init(&m, MICRO_CONFIG(4, ""), 6, MICRO_FUSED);
    uint16_t *embed = (void *)(uintptr_t)micro_find(&m, "model.embed_tokens.weight")->data;
    uint16_t *down =
        (void *)(uintptr_t)micro_find(&m, "model.layers.1.mlp.experts.down_proj")->data;
    for (int i = 0; i < 32; i++) embed[i] = micro_bf16(0x1p-30f);              // one row, one group
    for (int i = 0; i < 24; i++) down[2 * 32 * 24 + i] = micro_bf16(0x1p-30f); // of expert 2
    const char *src = micro_write(&m, micro_path("wide.src")), *out = micro_path("wide");
    micro_finish(&m);
    T_OK(micro_convert(src, out, "int4", "int8"));
    coli__container *c;
    T_OK(coli__container_open(out, &c));
    const coli__ct_tensor *t;
    T_OK(coli__container_find(c, "embed_tokens.weight", 48, 32, &t));
    T_TRUE(!t->mat.fmt.scale_f16 && t->mat.scale_exp == 0);
    T_OK(coli__container_find(c, "lm_head.weight", 48, 32, &t));
    T_TRUE(t->mat.fmt.scale_f16 && t->mat.scale_exp != 0);
    const coli__ct_experts *x = coli__container_experts(c, 1);
    T_TRUE(x->gate.fmt.scale_f16 && x->up.fmt.scale_f16 && !x->down.fmt.scale_f16);
    for (uint32_t e = 0; e < 4; e++) {
        T_TRUE(x->scale_exp[3 * e] != 0);
        T_EQ(x->scale_exp[3 * e + 2], 0);
    }
    T_TRUE(coli__container_experts(c, 0)->down.fmt.scale_f16);
    coli__container_close(c);
    micro_compare_all(out, src);
}

T_TEST(a_matrix_of_zeros)
{
    T_BEGIN;
    micro m;
    micro_init(&m, MICRO_CONFIG(4, ""), 6, MICRO_FUSED);
    memset((void *)(uintptr_t)micro_find(&m, "lm_head.weight")->data, 0, 48 * 32 * 2);
    memset((void *)(uintptr_t)micro_find(&m, "model.layers.0.mlp.experts.down_proj")->data, 0,
           4 * 32 * 24 * 2);
    const char *src = micro_write(&m, micro_path("zero.src")), *out = micro_path("zero");
    micro_finish(&m);
    T_OK(micro_convert(src, out, "int4", "int8"));
    micro_compare_all(out, src);
}

T_TEST(precise_tensors_keep_their_type)
{
    T_BEGIN;
    micro m;
    micro_init(&m, MICRO_CONFIG(4, ""), 6, MICRO_FUSED);
    const uint64_t shape[2] = {4, 32};
    micro_drop(&m, "model.layers.1.mlp.gate.weight");
    micro_random(&m, "model.layers.1.mlp.gate.weight", COLI_DT_F32, 2, shape);
    const char *src = micro_write(&m, micro_path("precise.src")), *out = micro_path("precise");
    micro_finish(&m);
    T_OK(micro_convert(src, out, "int4", "int4"));
    coli__container *c;
    const coli__ct_tensor *t;
    T_OK(coli__container_open(out, &c));
    T_OK(coli__container_find(c, "layers.0.mlp.gate.weight", 4, 32, &t));
    T_EQ(t->mat.fmt.type, COLI_W_BF16);
    T_OK(coli__container_find(c, "layers.1.mlp.gate.weight", 4, 32, &t));
    T_EQ(t->mat.fmt.type, COLI_W_F32);
    T_OK(coli__container_find(c, "norm.weight", 1, 32, &t));
    T_EQ(t->mat.fmt.type, COLI_W_F32);
    coli__container_close(c);
    micro_compare_all(out, src);
}

/* -- recipes and what is said about rounding
 * --------------------------------------------------------- */

static char notes[1 << 14];

static void take_note(void *user, const char *line)
{
    (void)user;
    T_TRUE(strchr(line, '\n') == NULL);
    const size_t n = strlen(notes);
    snprintf(notes + n, sizeof notes - n, "%s|", line);
}

static const char *format_of(const coli__container *c, const char *name)
{
    static char text[32];
    for (uint32_t i = 0; i < coli__container_n_tensor(c); i++) {
        const coli__ct_tensor *t = coli__container_tensor(c, i);
        if (strcmp(t->name, name) == 0) coli__wfmt_name(t->mat.fmt, text);
    }
    return text;
}

static void is_format(coli__wfmt fmt, const char *name)
{
    char text[32];
    coli__wfmt_name(fmt, text);
    T_STR(text, name);
}

T_TEST(recipes_decide)
{
    T_BEGIN;
    micro m;
    micro_init(&m, MICRO_CONFIG(4, ""), 6, MICRO_FUSED);
    const char *src = micro_write(&m, micro_path("recipe.src")), *out = micro_path("recipe");
    micro_finish(&m);
    micro_text(micro_path("recipe.txt"),
               "experts int4\nexperts.down int8-g32-f32 layers 1\nexperts.up bf16 layers 0\n"
               "self_attn.* bf16\nembed source\nhead int4\nrouter f32\n");
    coli_convert_opts opts = {
        .struct_size = sizeof opts, .n_threads = 2, .recipe = micro_path("recipe.txt")};
    T_OK(coli_convert(src, out, &opts));
    coli__container *c;
    T_OK(coli__container_open(out, &c));
    T_STR(format_of(c, "embed_tokens.weight"), "bf16");
    T_STR(format_of(c, "lm_head.weight"), "int4-g64-f16");
    T_STR(format_of(c, "layers.1.self_attn.q_proj.weight"), "bf16");
    T_STR(format_of(c, "layers.0.linear_attn.out_proj.weight"),
          "int8-g64-f16"); // no line: the default
    T_STR(format_of(c, "layers.0.mlp.gate.weight"), "f32");
    is_format(coli__container_experts(c, 0)->down.fmt, "int4-g64-f16");
    is_format(coli__container_experts(c, 0)->up.fmt, "bf16");
    is_format(coli__container_experts(c, 1)->down.fmt, "int8-g32-f32");
    is_format(coli__container_experts(c, 1)->gate.fmt, "int4-g64-f16");
    coli__container_close(c);
    T_OK(coli_verify(out, NULL, NULL));
    micro_compare_all(out, src);

    opts.experts = "bf16"; // behind the recipe's own lines
    T_OK(coli_convert(src, micro_path("recipe-over"), &opts));
    T_OK(coli__container_open(micro_path("recipe-over"), &c));
    is_format(coli__container_experts(c, 1)->down.fmt, "bf16");
    T_STR(format_of(c, "lm_head.weight"), "int4-g64-f16");
    coli__container_close(c);

    opts = (coli_convert_opts){.struct_size = sizeof opts, .recipe = "exact"};
    T_OK(coli_convert(src, micro_path("recipe-exact"), &opts));
    T_OK(coli__container_open(micro_path("recipe-exact"), &c));
    is_format(coli__container_experts(c, 0)->gate.fmt, "bf16");
    T_STR(format_of(c, "lm_head.weight"), "bf16");
    coli__container_close(c);

    micro_text(micro_path("bad.txt"), "# mine\nexperts int4\nself_atn.q_proj int8\n");
    opts.recipe = micro_path("bad.txt");
    T_FAILS(coli_convert(src, micro_path("recipe-bad"), &opts), COLI_E_FORMAT,
            "bad.txt: line 3: \"self_atn.q_proj\" is no matrix of this model");
    T_TRUE(!coli__path_exists(micro_path("recipe-bad")) &&
           !coli__path_exists(micro_path("recipe-bad.partial")));
}

/* Every kind once, ten of the matrices; and a matrix that int8 holds exactly is none of them. */
T_TEST(what_rounding_cost_is_said)
{
    T_BEGIN;
    micro m;
    micro_init(&m, MICRO_CONFIG(4, ""), 6, MICRO_FUSED);
    uint16_t *head = (void *)(uintptr_t)micro_find(&m, "lm_head.weight")->data;
    for (int i = 0; i < 48 * 32; i++) head[i] = micro_bf16((float)(i % 32 ? i % 5 : 127));
    const char *src = micro_write(&m, micro_path("said.src"));
    micro_finish(&m);
    notes[0] = 0;
    const coli_convert_opts opts = {.struct_size = sizeof opts, .n_threads = 3, .note = take_note};
    T_OK(coli_convert(src, micro_path("said"), &opts));
    T_TRUE(strstr(notes, "|mlp.experts.down as int4-g64-f16: 0.006144 M weights, error ") != NULL);
    T_TRUE(strstr(notes, "|self_attn.o_proj as int8-g64-f16: 0.001024 M weights, error 0.") !=
           NULL);
    T_TRUE(strstr(notes, " of plain rounding's|") != NULL);
    T_TRUE(strstr(notes, "lm_head") == NULL);
    T_TRUE(strstr(notes, "norm") == NULL && strstr(notes, "mlp.gate") == NULL);
    T_TRUE(strstr(notes, "|worst 1: layers.") != NULL &&
           strstr(notes, "|worst 10: layers.") != NULL);
    T_TRUE(strstr(notes, "|worst 11") == NULL);
}

/* -- notes and small files
 * --------------------------------------------------------------------------- */

static coli_status convert_noting(const char *src, const char *out, const char *template)
{
    notes[0] = 0;
    const coli__convert_args args = {.src = src,
                                     .out = out,
                                     .describe = coli__engine_describe,
                                     .n_thread = 1,
                                     .chat_template = template,
                                     .experts = micro_format("int4"),
                                     .trunk = micro_format("int8"),
                                     .note = take_note};
    return coli__convert(&args);
}

T_TEST(what_is_not_needed_is_said_once)
{
    T_BEGIN;
    T_OK(convert_noting(TEST_FIXTURES "/qwen36-tiny-b", micro_path("notes-b"), "3.6"));
    T_TRUE(strstr(notes, "skipped 3 mtp tensors|skipped 2 visual tensors|") != NULL);
    T_TRUE(strstr(notes, "left out") == NULL);
    micro m;
    micro_init(&m, MICRO_CONFIG(4, ""), 6, MICRO_FUSED);
    const uint64_t shape[1] = {3};
    micro_random(&m, "mtp.x", COLI_DT_F32, 1, shape);
    micro_random(&m, "model.layers.9.norm.weight", COLI_DT_I64, 1, (const uint64_t[]){0});
    const char *src = micro_write(&m, micro_path("extra.src"));
    micro_finish(&m);
    T_OK(convert_noting(src, micro_path("extra"), "3.6"));
    T_TRUE(strstr(notes, "skipped 1 mtp tensor|") != NULL);
    T_TRUE(strstr(notes,
                  "left out 1 tensor that this model does not have: model.layers.9.norm.weight|"));
}

static void check_template(const char *out, const char *expected)
{
    coli__container *c;
    T_OK(coli__container_open(out, &c));
    T_STR(coli__container_template(c), expected);
    coli__container_close(c);
}

#define USUAL "<|im_start|> enable_thinking reasoning_content <tool_response> <function="

T_TEST(chat_templates)
{
    T_BEGIN;
    static const struct {
        const char *jinja, *config, *given, *expected, *note;
    } cases[] = {
        {USUAL " preserve_thinking", NULL, NULL, "3.6", NULL},
        {USUAL, NULL, NULL, "3.5", NULL},
        {USUAL, NULL, "3.6", "3.6", NULL},
        {NULL, NULL, NULL, "3.6", "there is no chat template"},
        {"[INST] preserve_thinking", NULL, NULL, "3.6", "not the family's own"},
        {NULL, "{\"chat_template\":\"" USUAL "\"}", NULL, "3.5", NULL},
        {NULL, "{}", NULL, "3.6", "there is no chat template"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        micro m;
        micro_init(&m, MICRO_CONFIG(2, ""), 6, MICRO_FUSED);
        const char *src = micro_write(&m, micro_path("template.src")),
                   *out = micro_path("template-%zu", i);
        micro_finish(&m);
        if (cases[i].jinja)
            micro_text(micro_path("template.src/chat_template.jinja"), cases[i].jinja);
        if (cases[i].config)
            micro_text(micro_path("template.src/tokenizer_config.json"), cases[i].config);
        T_OK(convert_noting(src, out, cases[i].given));
        check_template(out, cases[i].expected);
        T_TRUE(strstr(notes, "no tokenizer.json") != NULL);
        if (cases[i].note)
            T_TRUE(strstr(notes, cases[i].note) != NULL);
        else
            T_TRUE(strstr(notes, "chat template") == NULL);
    }
}

T_TEST(small_files_are_copied)
{
    T_BEGIN;
    micro m;
    micro_init(&m, MICRO_CONFIG(2, ""), 6, MICRO_FUSED);
    const char *src = micro_write(&m, micro_path("files.src"));
    micro_finish(&m);
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                        "generation_config.json"};
    for (int i = 0; i < 3; i++) micro_text(micro_path("files.src/%s", names[i]), names[i] + 3 * i);
    T_OK(convert_noting(src, micro_path("files/"), "3.6"));
    for (int i = 0; i < 3; i++) {
        coli__buf text = micro_read(micro_path("files/%s", names[i]));
        T_STR(text.data, names[i] + 3 * i);
        coli__buf_finish(&text);
    }
    char **found;
    size_t n;
    T_OK(coli__dir_list(micro_path("files"), &found, &n));
    T_EQ(n, 6); // these, config.json, chat.json, model.coli
    for (size_t i = 0; i < n; i++) coli__free(found[i]);
    coli__free(found);
}

/* -- wrong ones
 * -------------------------------------------------------------------------------------- */

/* Convert what m has become: it fails, names `text`, and leaves nothing. */
static void refused(micro *m, coli_status status, const char *text)
{
    const char *src = micro_write(m, micro_path("bad.src")), *out = micro_path("bad");
    micro_finish(m);
    T_FAILS(micro_convert(src, out, "int4", "int8"), status, text);
    T_TRUE(!coli__path_exists(out));
    T_TRUE(!coli__path_exists(micro_path("bad.partial")));
}

T_TEST(missing_tensors)
{
    T_BEGIN;
    static const char *const names[] = {"lm_head.weight", "model.layers.0.linear_attn.A_log",
                                        "model.layers.1.mlp.experts.3.up_proj.weight",
                                        "model.layers.1.mlp.experts.0.gate_proj.weight"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        micro m;
        micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_SINGLE);
        micro_drop(&m, names[i]);
        char text[128];
        snprintf(text, sizeof text, "tensor %s: is missing",
                 strncmp(names[i], "model.", 6) ? names[i] : names[i] + 6);
        refused(&m, COLI_E_FORMAT, text);
    }
    static const char *const fused[] = {"gate_up_proj", "down_proj"};
    for (size_t i = 0; i < 2; i++) {
        micro m;
        micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FUSED);
        char text[128];
        snprintf(text, sizeof text, "model.layers.1.mlp.experts.%s", fused[i]);
        micro_drop(&m, text);
        refused(&m, COLI_E_FORMAT, text + 6);
    }
}

T_TEST(shapes)
{
    T_BEGIN;
    micro m;
    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FUSED);
    coli__st_out *t = micro_find(&m, "model.layers.1.self_attn.q_proj.weight"); // (64, 32)
    t->shape[0] = 32;
    t->shape[1] = 64;
    refused(&m, COLI_E_FORMAT, "expected the shape [64, 32], found [32, 64]");

    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FUSED);
    micro_find(&m, "model.norm.weight")->shape[0] = 31;
    refused(&m, COLI_E_FORMAT, "model.norm.weight: expected the shape [32], found [31]");

    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FUSED);
    t = micro_find(&m, "model.layers.0.mlp.experts.gate_up_proj"); // transposed
    t->shape[1] = 32;
    t->shape[2] = 48;
    refused(&m, COLI_E_FORMAT, "expected the shape [4, 48, 32], found [4, 32, 48]");

    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FUSED); // more experts than the config says
    t = micro_find(&m, "model.layers.0.mlp.experts.down_proj");
    t->shape[0] = 3;
    refused(&m, COLI_E_FORMAT, "expected the shape [4, 32, 24], found [3, 32, 24]");
}

T_TEST(experts_half_one_way)
{
    T_BEGIN;
    micro m;
    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FUSED);
    micro_matrix(&m, "model.layers.1.mlp.experts.2.up_proj.weight", false, 24, 32);
    refused(&m, COLI_E_FORMAT, "layer 1: its experts are there both fused");

    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_SINGLE);
    micro_matrix(&m, "model.layers.0.mlp.experts.4.up_proj.weight", false, 24, 32);
    refused(&m, COLI_E_FORMAT, "experts.4.up_proj.weight: is no part");

    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_SINGLE); // layers may differ
    char name[64];
    static const char *const part[3] = {"gate", "up", "down"};
    for (int i = 0; i < 12; i++) {
        snprintf(name, sizeof name, "model.layers.1.mlp.experts.%d.%s_proj.weight", i / 3,
                 part[i % 3]);
        micro_drop(&m, name);
    }
    const coli__expert_spec s = {"layers.1.mlp.experts.", 1, 4, 32, 24};
    micro_experts(&m, &s, MICRO_FUSED);
    const char *src = micro_write(&m, micro_path("mixed.src"));
    micro_finish(&m);
    T_OK(micro_convert(src, micro_path("mixed"), "int4", "int8"));
    micro_compare_all(micro_path("mixed"), src);
}

T_TEST(fp8_rules)
{
    T_BEGIN;
    static const char w[] = "model.layers.1.self_attn.q_proj.weight"; // (64, 32)
    micro m;
    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FP8);
    micro_drop(&m, "model.layers.1.self_attn.q_proj.weight_scale_inv");
    refused(
        &m, COLI_E_FORMAT,
        "q_proj.weight: is F8_E4M3 and has no model.layers.1.self_attn.q_proj.weight_scale_inv");

    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FP8);
    micro_find(&m, "model.layers.1.self_attn.q_proj.weight_scale_inv")->rank = 1;
    refused(&m, COLI_E_FORMAT, "q_proj.weight_scale_inv: expected the shape [1, 1], found [1]");

    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FUSED);
    micro_random(&m, "model.layers.1.self_attn.q_proj.weight_scale_inv", COLI_DT_F32, 2,
                 (const uint64_t[]){1, 1});
    refused(&m, COLI_E_FORMAT, "q_proj.weight_scale_inv: stands beside a tensor that is BF16");

    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FP8);
    ((uint8_t *)(uintptr_t)micro_find(&m, w)->data)[5 * 32 + 7] = 0xff;
    refused(&m, COLI_E_NUMERIC, "q_proj.weight: element [5, 7] is NaN");

    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FP8);
    micro_find(&m, "model.layers.1.self_attn.q_proj.weight_scale_inv")->dtype = COLI_DT_I32;
    refused(&m, COLI_E_FORMAT, "expected F32 or BF16, found I32");

    micro_init(&m, MICRO_CONFIG(4, ",\"quantization_config\":{\"weight_block_size\":[64,128]}"), 3,
               MICRO_FP8);
    refused(&m, COLI_E_UNSUPPORTED, "only [128, 128]");
    micro_init(&m, MICRO_CONFIG(4, ",\"quantization_config\":{\"weight_block_size\":[128]}"), 3,
               MICRO_FP8);
    refused(&m, COLI_E_UNSUPPORTED, "only [128, 128]");

    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FUSED);
    coli__st_out *t = micro_find(&m, "model.layers.0.mlp.experts.down_proj");
    t->dtype = COLI_DT_F8_E4M3;
    refused(&m, COLI_E_FORMAT, "down_proj: is F8_E4M3 and has no ");

    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FUSED); // fused ones have a grid for each expert
    micro_find(&m, "model.layers.0.mlp.experts.down_proj")->dtype = COLI_DT_F8_E4M3;
    micro_random(&m, "model.layers.0.mlp.experts.down_proj_scale_inv", COLI_DT_F32, 2,
                 (const uint64_t[]){1, 1});
    refused(&m, COLI_E_FORMAT, "down_proj_scale_inv: expected the shape [4, 1, 1], found [1, 1]");
}

T_TEST(numbers_that_are_none)
{
    T_BEGIN;
    micro m;
    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FUSED);
    ((uint16_t *)(uintptr_t)micro_find(&m, "lm_head.weight")->data)[47 * 32 + 31] = 0x7fc0;
    refused(&m, COLI_E_NUMERIC, "lm_head.weight: element [47, 31] is NaN");

    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FUSED);
    ((float *)(uintptr_t)micro_find(&m, "model.norm.weight")->data)[3] = -INFINITY;
    refused(&m, COLI_E_NUMERIC, "model.norm.weight: element [3] is infinite");

    // two of them: the first is named, whichever thread was faster
    for (int i = 0; i < 20; i++) {
        micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FUSED);
        uint16_t *x =
            (void *)(uintptr_t)micro_find(&m, "model.layers.1.mlp.experts.gate_up_proj")->data;
        x[(2 * 48 + 30) * 32 + 1] = 0x7f80;
        x[(3 * 48 + 1) * 32] = 0x7f80;
        refused(&m, COLI_E_NUMERIC, "experts.gate_up_proj: element [2, 30, 1] is infinite");
    }

    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FUSED); // too large for any scale
    ((uint16_t *)(uintptr_t)micro_find(&m, "lm_head.weight")->data)[20 * 32] = micro_bf16(1e30f);
    refused(&m, COLI_E_NUMERIC, "tensor lm_head.weight: in the 16 rows from 16: row 4");
}

T_TEST(types_and_configs)
{
    T_BEGIN;
    micro m;
    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FUSED);
    coli__st_out *t = micro_find(&m, "model.norm.weight");
    t->dtype = COLI_DT_I32;
    refused(&m, COLI_E_UNSUPPORTED, "weights of type I32");

    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FUSED);
    strcpy(m.config, "{\"model_type\":\"llama\"}");
    refused(&m, COLI_E_UNSUPPORTED, "llama");
    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FUSED);
    strcpy(m.config, "{\"model_type\":\"qwen3_5_moe_text\"}");
    refused(&m, COLI_E_FORMAT, "hidden_size");
    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FUSED);
    memset(m.config, '[', 100);
    refused(&m, COLI_E_FORMAT, "nested deeper than 64");
    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FUSED);
    m.config[2] = (char)0xff;
    refused(&m, COLI_E_FORMAT, "config.json: line 1");
}

T_TEST(arguments_and_existing_output)
{
    T_BEGIN;
    micro m;
    micro_init(&m, MICRO_CONFIG(2, ""), 3, MICRO_FUSED);
    const char *src = micro_write(&m, micro_path("exists.src")), *out = micro_path("exists");
    micro_finish(&m);
    micro_text(out, "mine");
    T_FAILS(micro_convert(src, out, "int4", "int8"), COLI_E_EXISTS, "exists: already exists");
    coli__buf text = micro_read(out);
    T_STR(text.data, "mine");
    coli__buf_finish(&text);
    T_EQ(unlink(out), 0);
    T_EQ(symlink("nowhere", out), 0);
    T_FAILS(micro_convert(src, out, "int4", "int8"), COLI_E_EXISTS, "already exists");
    T_EQ(unlink(out), 0);

    T_OK(coli__dir_create(micro_path("exists.partial"))); // somebody else's
    micro_text(micro_path("exists.partial/model.coli"), "half");
    T_FAILS(micro_convert(src, out, "int4", "int8"), COLI_E_EXISTS,
            "exists.partial: already exists");
    T_TRUE(coli__path_exists(micro_path("exists.partial/model.coli")));
    coli__dir_remove(micro_path("exists.partial"));

    T_FAILS(micro_convert(micro_path("absent"), out, "int4", "int8"), COLI_E_NOTFOUND, "absent");
    T_FAILS(micro_convert(src, micro_path("no/such/out"), "int4", "int8"), COLI_E_NOTFOUND,
            "no/such");
    T_FAILS(micro_convert(src, "", "int4", "int8"), COLI_E_INVALID, "output");
    T_FAILS(convert_noting(src, out, "4.0"), COLI_E_INVALID, "expected 3.6 or 3.5");
    T_TRUE(!coli__path_exists(out));
}

/* -- progress, memory
 * -------------------------------------------------------------------------------- */

typedef struct watch {
    uint64_t done, total, stop_at, n_call, peak_heap;
} watch;

static bool watch_progress(void *user, const char *what, uint64_t done, uint64_t total)
{
    watch *w = user;
    T_TRUE(what[0] != 0);
    T_GE(done, w->done);
    T_LE(done, total);
    w->done = done;
    w->total = total;
#if HEAP_IS_VISIBLE
    const struct mallinfo2 heap = mallinfo2();
    const uint64_t in_use = heap.uordblks + heap.hblkhd;
    if (in_use > w->peak_heap) w->peak_heap = in_use;
#endif
    return ++w->n_call != w->stop_at;
}

T_TEST(progress_reaches_the_end_and_can_stop)
{
    T_BEGIN;
    micro m;
    micro_init(&m, MICRO_CONFIG(4, ""), 3, MICRO_FP8);
    const char *src = micro_write(&m, micro_path("progress.src"));
    micro_finish(&m);
    watch all = {0};
    coli__convert_args args = {.src = src,
                               .out = micro_path("progress"),
                               .describe = coli__engine_describe,
                               .n_thread = 2,
                               .experts = micro_format("int4"),
                               .trunk = micro_format("int8"),
                               .progress = watch_progress,
                               .user = &all};
    T_OK(coli__convert(&args));
    T_EQ(all.done, all.total);
    T_TRUE(all.total > 0);
    args.out = micro_path("stopped");
    for (uint64_t at = 1; at <= all.n_call; at++) {
        watch some = {.stop_at = at};
        args.user = &some;
        T_FAILS(coli__convert(&args), COLI_E_CANCELLED, "stopped");
        T_TRUE(!coli__path_exists(args.out) && !coli__path_exists(micro_path("stopped.partial")));
    }
}

/* 69 MB of container from a mapped checkpoint of 34 MB: what the heap holds does not grow with
 * either. */
T_TEST(memory_is_bounded)
{
    T_BEGIN;
    const char *src = micro_write_hollow(
        "{\"model_type\":\"qwen3_5_moe_text\",\"vocab_size\":20000,\"hidden_size\":512,"
        "\"num_hidden_layers\":1,\"layer_types\":[\"full_attention\"],\"num_attention_heads\":1,"
        "\"num_key_value_heads\":1,\"head_dim\":16,\"rope_theta\":1e4,\"linear_num_key_heads\":1,"
        "\"linear_num_value_heads\":1,\"linear_key_head_dim\":8,\"linear_value_head_dim\":8,"
        "\"num_experts\":16,\"num_experts_per_tok\":1,\"moe_intermediate_size\":256,"
        "\"shared_expert_intermediate_size\":16,\"tie_word_embeddings\":true}",
        micro_path("large.src"));
    watch w = {0};
    const coli__convert_args args = {.src = src,
                                     .out = micro_path("large"),
                                     .describe = coli__engine_describe,
                                     .n_thread = 2,
                                     .experts = micro_format("f32"),
                                     .trunk = micro_format("f32"),
                                     .progress = watch_progress,
                                     .user = &w};
    T_OK(coli__convert(&args));
    T_LE(w.peak_heap, 12 << 20); // the step buffer of 8 MB, panels, names
    coli__dir_remove(args.out);
}

/* What the host program has set for its own floats is neither seen in the result nor changed for
 * its callbacks. */
static int modes_seen; // 1: ours, 2: the host's

static bool rounds_up(void)
{
    volatile float one = 1, tiny = 0x1p-30f;
    return one + tiny > 1;
}

static void note_mode(void *user, const char *line)
{
    (void)user, (void)line;
    modes_seen |= rounds_up() ? 2 : 1;
}

static bool progress_mode(void *user, const char *what, uint64_t done, uint64_t total)
{
    (void)done, (void)total;
    note_mode(user, what);
    return true;
}

T_TEST(the_hosts_float_mode_is_its_own)
{
    T_BEGIN;
    micro m;
    micro_init(&m, MICRO_CONFIG(4, ""), 8, MICRO_FP8);
    const char *src = micro_write(&m, micro_path("mode.src"));
    micro_finish(&m);
    T_OK(micro_convert(src, micro_path("mode"), "int4", "int8"));
    const coli_convert_opts opts = {
        .struct_size = sizeof opts, .n_threads = 1, .progress = progress_mode, .note = note_mode};
    modes_seen = 0;
    T_EQ(fesetround(FE_UPWARD), 0);
    const coli_status converted = coli_convert(src, micro_path("mode-up"), &opts);
    const coli_status verified = coli_verify(micro_path("mode-up"), progress_mode, NULL);
    const bool after = rounds_up();
    fesetround(FE_TONEAREST);
    T_OK(converted);
    T_OK(verified);
    T_EQ(modes_seen, 2);
    T_TRUE(after && !rounds_up());
    coli__buf a = micro_read(micro_path("mode/model.coli"));
    coli__buf b = micro_read(micro_path("mode-up/model.coli"));
    T_EQ(a.n_bytes, b.n_bytes);
    T_MEM(a.data, b.data, a.n_bytes);
    coli__buf_finish(&a);
    coli__buf_finish(&b);
}

/* One expert of 3 * 320 * 65536 weights. */
T_TEST(what_cannot_fit_is_refused_first)
{
    T_BEGIN;
    const char *src = micro_write_hollow(
        "{\"model_type\":\"qwen3_5_moe_text\",\"vocab_size\":8,\"hidden_size\":320,"
        "\"num_hidden_layers\":1,\"layer_types\":[\"full_attention\"],\"num_attention_heads\":1,"
        "\"num_key_value_heads\":1,\"head_dim\":8,\"rope_theta\":1e4,\"linear_num_key_heads\":1,"
        "\"linear_num_value_heads\":1,\"linear_key_head_dim\":8,\"linear_value_head_dim\":8,"
        "\"num_experts\":1,\"num_experts_per_tok\":1,\"moe_intermediate_size\":65536,"
        "\"shared_expert_intermediate_size\":8,\"tie_word_embeddings\":true}",
        micro_path("huge.src"));
    T_FAILS(micro_convert(src, micro_path("huge"), "f32", "f32"), COLI_E_UNSUPPORTED,
            "(240 for one expert or 16 rows");
    T_TRUE(!coli__path_exists(micro_path("huge.partial")));
}

/* -- memory, whatever the JSON says
 * ------------------------------------------------------------------ */

/* Convert in a process of its own that may take no more memory than coli.h says, beyond what it has
 * before.  *message is what the conversion said. */
static coli_status convert_within(const char *src, uint64_t more_bytes, char message[600])
{
    int ends[2];
    T_EQ(pipe(ends), 0);
    const pid_t child = fork();
    T_TRUE(child >= 0);
    if (child == 0) {
        unsigned long n_page; // of data and stacks: the sixth number
        FILE *f = fopen("/proc/self/statm", "r");
        if (f && fscanf(f, "%*u %*u %*u %*u %*u %lu", &n_page) == 1) {
            const rlim_t most = (rlim_t)n_page * (rlim_t)sysconf(_SC_PAGESIZE) + more_bytes;
            const struct rlimit limit = {most, most};
            setrlimit(RLIMIT_DATA, &limit);
        }
        const coli__convert_args args = {.src = src,
                                         .out = micro_path("within"),
                                         .describe = coli__engine_describe,
                                         .experts = micro_format("int4"),
                                         .trunk = micro_format("int8"),
                                         .n_thread = 1};
        const coli_status status = coli__convert(&args);
        const char *text = status == COLI_OK ? "" : coli_error_message();
        const bool told = write(ends[1], text, strlen(text)) >= 0;
        _exit(told ? (int)status : 255);
    }
    close(ends[1]);
    message[0] = 0;
    const ptrdiff_t n = read(ends[0], message, 599);
    message[n > 0 ? n : 0] = 0;
    close(ends[0]);
    int result;
    T_EQ(waitpid(child, &result, 0), child);
    T_TRUE(WIFEXITED(result));
    return (coli_status)WEXITSTATUS(result);
}

/* The micro model, and beside it n tensors without elements whose names have n_name bytes. */
static const char *write_crowd(uint32_t n, uint32_t n_name)
{
    micro m;
    micro_init(&m, MICRO_CONFIG(2, ""), 3, MICRO_FUSED);
    const char *dir = micro_write(&m, micro_path("crowd.src"));
    micro_finish(&m);
    FILE *f = fopen(micro_path("crowd.src/crowd.safetensors"), "wb");
    T_TRUE(f != NULL);
    uint64_t n_header = 0;
    T_EQ(fwrite(&n_header, 8, 1, f), 1);
    for (uint32_t i = 0; i < n; i++)
        n_header += (uint64_t)fprintf(
            f, "%c\"%0*u\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", i ? ',' : '{',
            (int)n_name, i);
    n_header += (uint64_t)fprintf(f, "}");
    rewind(f);
    T_EQ(fwrite(&n_header, 8, 1, f), 1);
    T_EQ(fclose(f), 0);
    return dir;
}

/* As many tensors as are allowed, with names as long as are allowed, keep within the promise; one
 * and a half million, of which a header of 100 MB has room, are refused before they cost anything.
 */
T_TEST(a_list_of_tensors_is_bounded)
{
    T_BEGIN;
    char message[600];
    if (HEAP_IS_VISIBLE) {
        const char *src = write_crowd(COLI_ST_MAX_TENSOR - 256, COLI_ST_MAX_NAME);
        const coli_status status = convert_within(src, COLI_CONVERT_MEMORY_BYTES, message);
        if (status != COLI_OK) fail_msg("%s", message);
        coli__dir_remove(micro_path("within"));
    }
    const char *src = write_crowd(1500000, 7);
    T_EQ(convert_within(src, HEAP_IS_VISIBLE ? COLI_CONVERT_MEMORY_BYTES : 1ull << 60, message),
         COLI_E_FORMAT);
    T_TRUE(strstr(message, "crowd.safetensors: more than 262144 tensors") != NULL);
    coli__dir_remove(src);
}

/* Two bytes of JSON can become two hundred in memory. */
T_TEST(small_json_is_bounded)
{
    T_BEGIN;
    coli__buf text = {0};
    T_OK(coli__buf_str(&text, "{\"model_type\":[{}"));
    for (int i = 0; i < COLI_JSON_SMALL_VALUES; i++) T_OK(coli__buf_str(&text, ",{}"));
    T_OK(coli__buf_str(&text, "]}"));
    micro m;
    micro_init(&m, MICRO_CONFIG(2, ""), 3, MICRO_FUSED);
    free(m.config);
    m.config = strdup(text.data);
    refused(&m, COLI_E_FORMAT, "config.json: more than 65536 values");

    micro_init(&m, MICRO_CONFIG(2, ""), 3, MICRO_FUSED);
    const char *src = micro_write(&m, micro_path("small.src"));
    micro_finish(&m);
    micro_text(micro_path("small.src/tokenizer_config.json"), text.data);
    T_FAILS(micro_convert(src, micro_path("small"), "int4", "int8"), COLI_E_FORMAT,
            "tokenizer_config.json: more than 65536 values");
    T_TRUE(!coli__path_exists(micro_path("small")) &&
           !coli__path_exists(micro_path("small.partial")));
    coli__buf_finish(&text);

    micro_init(&m, MICRO_CONFIG(2, ""), 3, MICRO_FUSED);
    free(m.config);
    m.config = calloc(1, COLI_CONFIG_MAX_BYTES + 2);
    memset(m.config, ' ', COLI_CONFIG_MAX_BYTES + 1);
    refused(&m, COLI_E_FORMAT, "config.json: larger than");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_holds_the_fixtures),
        cmocka_unit_test(fused_and_single_experts_are_the_same_bytes),
        cmocka_unit_test(random_models_survive),
        cmocka_unit_test(the_thread_count_does_not_show),
        cmocka_unit_test(fp8_tiles),
        cmocka_unit_test(wide_matrices_get_f32_scales),
        cmocka_unit_test(a_matrix_of_zeros),
        cmocka_unit_test(precise_tensors_keep_their_type),
        cmocka_unit_test(recipes_decide),
        cmocka_unit_test(what_rounding_cost_is_said),
        cmocka_unit_test(what_is_not_needed_is_said_once),
        cmocka_unit_test(chat_templates),
        cmocka_unit_test(small_files_are_copied),
        cmocka_unit_test(missing_tensors),
        cmocka_unit_test(shapes),
        cmocka_unit_test(experts_half_one_way),
        cmocka_unit_test(fp8_rules),
        cmocka_unit_test(numbers_that_are_none),
        cmocka_unit_test(types_and_configs),
        cmocka_unit_test(arguments_and_existing_output),
        cmocka_unit_test(progress_reaches_the_end_and_can_stop),
        cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(what_cannot_fit_is_refused_first),
        cmocka_unit_test(the_hosts_float_mode_is_its_own),
        cmocka_unit_test(a_list_of_tensors_is_bounded),
        cmocka_unit_test(small_json_is_bounded),
    };
    return cmocka_run_group_tests(tests, micro_setup, micro_teardown);
}
