/* merged_test.c - containers of merged experts, written here as docs/formats/merged.md says, against what
 * the converter makes of them: the same codes and scales wherever a format holds them. */
#include <math.h>
#include <unistd.h>

#include "micro.h"
#include "world.h"

#include "coli/exact.h"
#include "libcoli/src/model/merged.h"

enum { N_LAYER = 2, N_EXPERT = 3, D_MODEL = 128, D_FF = 192, N_ONE = D_MODEL * D_FF };

static const char config[] =
    "{\"model_type\":\"qwen3_5_moe_text\",\"vocab_size\":48,\"hidden_size\":128,"
    "\"num_hidden_layers\":2,\"layer_types\":[\"linear_attention\",\"full_attention\"],"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":16,\"rope_parameters\":"
    "{\"rope_type\":\"default\",\"rope_theta\":10000.0,\"partial_rotary_factor\":0.25},"
    "\"linear_num_key_heads\":1,\"linear_num_value_heads\":2,\"linear_key_head_dim\":8,"
    "\"linear_value_head_dim\":8,\"linear_conv_kernel_dim\":4,\"num_experts\":3,"
    "\"num_experts_per_tok\":2,\"moe_intermediate_size\":192,"
    "\"shared_expert_intermediate_size\":16,\"max_position_embeddings\":64}";

/* What was written of one expert, for the comparison. */
typedef struct expert {
    int8_t codes[3 * N_ONE];
    float scales[3 * N_ONE / 16];
} expert;

typedef struct container {
    micro m;
    bool is8, mixed;
    uint32_t group, down_group; // of a matrix's rows; 0: per row
    const char *scale_suffix;
    char meta[600];
    expert experts[N_LAYER][N_EXPERT];
} container;

static container k;
static char notes[1 << 14];

static void take_note(void *user, const char *line)
{
    (void)user;
    const size_t n = strlen(notes);
    snprintf(notes + n, sizeof notes - n, "%s|", line);
}

static uint32_t n_row_of(int part)
{
    return part < 2 ? D_FF : D_MODEL;
}

static uint32_t n_col_of(int part)
{
    return part < 2 ? D_MODEL : D_FF;
}

static bool part_is8(int part)
{
    return k.is8 || (k.mixed && part == 2);
}

static uint32_t group_of(int part)
{
    return k.mixed && part == 2 ? k.down_group : k.group;
}

static uint32_t scales_per_row(int part)
{
    const uint32_t group = group_of(part);
    return group == 0 ? 1 : (n_col_of(part) + group - 1) / group;
}

/* Where a matrix's scales begin. */
static uint32_t first_scale(int part)
{
    uint32_t n = 0;
    for (int i = 0; i < part; i++) n += n_row_of(i) * scales_per_row(i);
    return n;
}

static uint64_t record_bytes(void)
{
    uint64_t n = 0;
    for (int i = 0; i < 3; i++) n += part_is8(i) ? N_ONE : N_ONE / 2;
    return n;
}

/* Random codes within the quantisers' range, and scales of some spread; the record's bytes. */
static uint8_t *fill_expert(expert *x)
{
    uint8_t *record = calloc(record_bytes(), 1);
    uint64_t at = 0;
    for (int i = 0; i < 3; i++) {
        const int most = part_is8(i) ? 127 : 7;
        for (uint32_t c = 0; c < N_ONE; c++) {
            const int code = (int)t_below(&k.m.rng, 2 * (uint32_t)most + 1) - most;
            x->codes[(uint32_t)i * N_ONE + c] = (int8_t)code;
            if (part_is8(i))
                record[at + c] = (uint8_t)code;
            else
                record[at + c / 2] |= (uint8_t)((code & 15) << (c % 2 * 4));
        }
        at += part_is8(i) ? N_ONE : N_ONE / 2;
        for (uint32_t s = 0; s < n_row_of(i) * scales_per_row(i); s++)
            x->scales[first_scale(i) + s] =
                (part_is8(i) ? 0.01f : 0.16f) * (1 + t_normal(&k.m.rng) * 0.1f);
    }
    return record;
}

static void add_expert(uint32_t layer, uint32_t e)
{
    char name[128];
    expert *x = &k.experts[layer][e];
    uint8_t *record = fill_expert(x);
    const uint64_t n_bytes = record_bytes(),
                   n_scale = first_scale(2) + n_row_of(2) * scales_per_row(2);
    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.merged_weight", layer, e);
    micro_add(&k.m, name, k.is8 ? COLI_DT_I8 : COLI_DT_U8, 1, &n_bytes, record);
    float *scales = malloc(n_scale * sizeof *scales);
    memcpy(scales, x->scales, n_scale * sizeof *scales);
    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u%s", layer, e, k.scale_suffix);
    micro_add(&k.m, name, COLI_DT_F32, 1, &n_scale, scales);
}

/* Everything but experts is F16 there. */
static void make_f16(coli__st_out *t)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->rank; i++) n *= t->shape[i];
    uint16_t *data = malloc(n * 2);
    for (uint64_t i = 0; i < n; i++) // of either sign, 2^-6 to 2
        data[i] = (uint16_t)((t_u64(&k.m.rng) & 0x83ff) | (t_below(&k.m.rng, 7) + 9) << 10);
    free((void *)(uintptr_t)t->data);
    t->data = data;
    t->dtype = COLI_DT_F16;
}

static void make(bool is8, bool mixed, uint32_t group, uint32_t down_group)
{
    k.is8 = is8;
    k.mixed = mixed;
    k.group = group;
    k.down_group = down_group;
    k.scale_suffix = ".merged_weight.qs";
    micro_init(&k.m, config, 9 + group, MICRO_FUSED);
    for (uint32_t i = 0; i < N_LAYER; i++) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.%u.mlp.experts.gate_up_proj", i);
        micro_drop(&k.m, name);
        snprintf(name, sizeof name, "model.layers.%u.mlp.experts.down_proj", i);
        micro_drop(&k.m, name);
    }
    for (uint32_t i = 0; i < k.m.n; i++) make_f16(&k.m.tensors[i]);
    for (uint32_t i = 0; i < N_LAYER; i++)
        for (uint32_t e = 0; e < N_EXPERT; e++) add_expert(i, e);
    snprintf(k.meta, sizeof k.meta,
             "{\"hidden\":128,\"n_layers\":2,\"num_experts\":3,\"topk\":2,\"moe_inter\":192,"
             "\"expert_gs\":%u,\"expert_down_gs\":%u,\"rope_theta\":10000,\"ebits\":3,"
             "\"rope_dim\":256,\"layer_types\":[\"linear_attention\",\"full_attention\"]}",
             group, down_group);
}

static const char *write_container(void)
{
    const char *src = micro_write(&k.m, micro_path("merged.src"));
    micro_text(micro_path("merged.src/qwen36_meta.json"), k.meta);
    micro_finish(&k.m);
    return src;
}

static coli_status convert(const char *src, const char *out, const char *experts)
{
    notes[0] = 0;
    const coli__convert_args args = {.src = src,
                                     .out = out,
                                     .describe = coli__engine_describe,
                                     .n_thread = 2,
                                     .note = take_note,
                                     .experts = micro_format(experts ? experts : "int4"),
                                     .trunk = micro_format("f32"),
                                     .experts_are_default = !experts};
    return coli__convert(&args);
}

/* Every code and scale of the container's experts is the record's. */
static void compare_part(const coli__mat *m, const expert *x, int part)
{
    const uint32_t group = group_of(part) ? group_of(part) : n_col_of(part);
    for (uint32_t r = 0; r < m->n_out; r++)
        for (uint32_t c = 0; c < m->n_in; c++) {
            const micro_elem e = micro_elem_at(m, r, c);
            T_EQ(e.code, x->codes[(uint32_t)part * N_ONE + r * m->n_in + c]);
            const float s = x->scales[first_scale(part) + r * scales_per_row(part) + c / group];
            T_FLE(fabs(e.scale - (double)s), 0);
        }
}

static void compare_experts(const char *out)
{
    coli__container *c;
    T_OK(coli__container_open(out, &c));
    T_OK(coli__container_verify(c, coli__engine_describe, NULL, NULL));
    for (uint32_t i = 0; i < N_LAYER; i++)
        for (uint32_t e = 0; e < N_EXPERT; e++) {
            coli__mat m[3];
            coli__ct_expert(coli__container_experts(c, i), e, &m[0], &m[1], &m[2]);
            for (int part = 0; part < 3; part++) compare_part(&m[part], &k.experts[i][e], part);
        }
    coli__container_close(c);
}

/* -- right ones -------------------------------------------------------------------------------- */

T_TEST(what_a_format_holds_stays_as_it_is)
{
    T_BEGIN;
    static const struct {
        bool is8, mixed;
        uint32_t group, down_group;
        const char *said[2];
    } cases[] = {
        {false,
         false,
         0,
         0,
         {"int4 per row to int4-row-f32: 0.4424 M weights in 18 matrices, exactly|", NULL}},
        {false,
         false,
         64,
         0,
         {"int4 in groups of 64 to int4-g64-f32: 0.4424 M weights in 18 matrices, exactly|"}},
        {false,
         false,
         32,
         0,
         {"int4 in groups of 32 to int4-g32-f32: 0.4424 M weights in 18 matrices, exactly|"}},
        {false, false, 128, 0, {"int4 in groups of 128 to int4-", "exactly|"}},
        {true,
         false,
         0,
         0,
         {"int8 per row to int8-row-f32: 0.4424 M weights in 18 matrices, exactly|", NULL}},
        {true,
         false,
         64,
         0,
         {"int8 in groups of 64 to int8-g64-f32: 0.4424 M weights in 18 matrices, exactly|"}},
        {false,
         true,
         64,
         0,
         {"int4 in groups of 64 to int4-g64-f32: 0.2949 M weights in 12 matrices, exactly|",
          "int8 per row to int8-row-f32: 0.1475 M weights in 6 matrices, exactly|"}},
        {false,
         true,
         0,
         64,
         {"int4 per row to int4-row-f32: 0.2949 M weights in 12 matrices, exactly|",
          "int8 in groups of 64 to int8-g64-f32: 0.1475 M weights in 6 matrices, exactly|"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make(cases[i].is8, cases[i].mixed, cases[i].group, cases[i].down_group);
        if (i % 2) { // the other name for scales
            for (uint32_t t = 0; t < k.m.n; t++) {
                char *end = strstr((char *)(uintptr_t)k.m.tensors[t].name, ".merged_weight.qs");
                if (end) strcpy(end, ".qs");
            }
        }
        const char *src = write_container(), *out = micro_path("merged");
        T_OK(convert(src, out, NULL));
        compare_experts(out);
        for (int j = 0; j < 2 && cases[i].said[j]; j++)
            if (!strstr(notes, cases[i].said[j]))
                fail_msg("%s\nnot in %s", cases[i].said[j], notes);
        T_TRUE(strstr(notes, "F16 to f32: ") != NULL);
        micro_compare_all(out, src); // and the dense ones, f32
        const coli_plan_opts plan = {.trunk = "f32"};
        world_planned_alike(src, out, &plan);
        coli__dir_remove(out);
    }
}

/* Groups that we do not have, or a format that was asked for: said, with the error. */
T_TEST(what_none_holds_is_quantised_anew)
{
    T_BEGIN;
    make(false, false, 48, 0);
    const char *src = write_container(), *out = micro_path("anew");
    T_OK(convert(src, out, NULL));
    T_TRUE(
        strstr(notes,
               "int4 in groups of 48 to int4-g64-f16: 0.4424 M weights in 18 matrices, error ") !=
        NULL);
    micro_compare_all(out, src);
    coli__dir_remove(out);

    make(false, false, 64, 0);
    src = write_container();
    T_OK(convert(src, out, "int8-g32-f16"));
    T_TRUE(
        strstr(notes,
               "int4 in groups of 64 to int8-g32-f16: 0.4424 M weights in 18 matrices, error ") !=
        NULL);
    micro_compare_all(out, src);
    coli__dir_remove(out);
    T_OK(convert(src, out, "int4-g64-f32")); // asked for, and exact all the same
    compare_experts(out);
    coli__dir_remove(out);
}

/* -128 is legal, and so is a scale below 2^-40, which rows of zeros have. */
T_TEST(the_ends_of_the_range)
{
    T_BEGIN;
    make(true, false, 0, 0);
    int8_t *record =
        (int8_t *)(uintptr_t)micro_find(&k.m, "model.layers.0.mlp.experts.0.merged_weight")->data;
    float *scales =
        (float *)(uintptr_t)micro_find(&k.m, "model.layers.0.mlp.experts.0.merged_weight.qs")->data;
    memset(record, 0, D_MODEL); // row 0 of gate
    scales[0] = 1e-12f / 127;
    record[20 * D_MODEL + 3] = -128;
    const char *src = write_container(), *out = micro_path("ends");
    T_OK(convert(src, out, NULL));
    T_TRUE(
        strstr(notes, "int8 per row to int8-row-f32: 0.4424 M weights in 18 matrices, exactly|") !=
        NULL);
    coli__container *c;
    T_OK(coli__container_open(out, &c));
    T_OK(coli__container_verify(c, coli__engine_describe, NULL, NULL));
    coli__mat gate, up, down;
    coli__ct_expert(coli__container_experts(c, 0), 0, &gate, &up, &down);
    T_FLE(micro_elem_at(&gate, 0, 0).scale, 0);
    T_EQ(micro_elem_at(&gate, 20, 3).code, -128);
    coli__container_close(c);
    micro_compare_all(out, src);
    coli__dir_remove(out);
}

T_TEST(norms_that_hold_one_plus_w)
{
    T_BEGIN;
    make(false, false, 64, 0);
    char *end = strrchr(k.meta, '}');
    strcpy(end, ",\"zero_centered_norms\":false}");
    static const char *const names[] = {"norm.weight", "layers.1.self_attn.q_norm.weight",
                                        "layers.0.input_layernorm.weight",
                                        "layers.0.linear_attn.norm.weight"};
    float stored[4];
    for (int i = 0; i < 4; i++) {
        char name[128];
        snprintf(name, sizeof name, "model.%s", names[i]);
        uint16_t first;
        memcpy(&first, micro_find(&k.m, name)->data, sizeof first);
        stored[i] = coli_f16_to_f32(first);
    }
    const char *src = write_container(), *out = micro_path("norms");
    T_OK(convert(src, out, NULL));
    coli__container *c;
    T_OK(coli__container_open(out, &c));
    for (int i = 0; i < 4; i++)
        for (uint32_t t = 0; t < coli__container_n_tensor(c); t++) {
            const coli__ct_tensor *found = coli__container_tensor(c, t);
            if (strcmp(found->name, names[i]) != 0) continue;
            const double expected = (double)stored[i] - (i < 3 ? 1 : 0);
            T_FLE(fabs(micro_elem_at(&found->mat, 0, 0).value - expected), 0);
        }
    coli__container_close(c);
    coli__dir_remove(out);
}

/* The original config counts; a flattened one is completed. */
T_TEST(where_numbers_come_from)
{
    T_BEGIN;
    make(false, false, 64, 0);
    const char *src = write_container(), *out = micro_path("numbers");
    micro_text(micro_path("merged.src/config.json"), "{\"hidden_size\":128,\"vocab_size\":48}");
    micro_text(micro_path("merged.src/config.hf.json"), config);
    T_OK(convert(src, out, NULL));
    compare_experts(out);
    coli__dir_remove(out);

    T_EQ(unlink(micro_path("merged.src/config.hf.json")), 0);
    T_FAILS(convert(src, out, NULL), COLI_E_FORMAT, "num_attention_heads");
    micro_text(
        micro_path("merged.src/qwen36_meta.json"),
        "{\"hidden\":128,\"n_layers\":2,\"num_experts\":3,\"topk\":2,\"moe_inter\":192,"
        "\"expert_gs\":64,\"rope_theta\":10000,\"q_heads\":2,\"kv_heads\":1,\"head_dim\":16,"
        "\"partial_rotary_factor\":0.25,\"dn_kheads\":1,\"dn_vheads\":2,\"dn_kdim\":8,\"dn_vdim\":"
        "8,"
        "\"dn_convk\":4,\"dn_conv_dim\":32,\"shared_inter\":16,\"rms_eps\":1e-6,\"layer_types\":["
        "\"linear_attention\",\"full_attention\"],\"norm_topk_prob\":false,\"has_qk_norm\":true}");
    T_OK(convert(src, out, NULL));
    compare_experts(out);
    coli__dir_remove(out);
}

static void drop_tensors(const char *with)
{
    for (uint32_t i = k.m.n; i-- > 0;)
        if (strstr(k.m.tensors[i].name, with)) {
            char name[160];
            snprintf(name, sizeof name, "%s", k.m.tensors[i].name);
            micro_drop(&k.m, name);
        }
}

/* Of matrix i, of gate, up and down of each expert in turn, in a checkpoint. */
static void matrix_name(uint32_t i, char *name, size_t cap)
{
    static const char *const parts[] = {"gate", "up", "down"};
    snprintf(name, cap, "model.layers.%u.mlp.experts.%u.%s_proj.weight", i / 3 / N_EXPERT,
             i / 3 % N_EXPERT, parts[i % 3]);
}

/* The model of `k` as a plain checkpoint: each expert's weights, code times scale, as f32.  (k is not to be
 * written any more.) */
static const char *write_plain(void)
{
    drop_tensors(".experts.");
    for (uint32_t i = 0; i < N_LAYER * N_EXPERT * 3; i++) {
        const expert *x = &k.experts[i / 3 / N_EXPERT][i / 3 % N_EXPERT];
        const int part = (int)i % 3;
        const uint32_t n_in = n_col_of(part), group = group_of(part) ? group_of(part) : n_in;
        float *w = malloc(N_ONE * sizeof *w);
        for (uint32_t c = 0; c < N_ONE; c++)
            w[c] =
                (float)x->codes[part * N_ONE + (int)c] *
                x->scales[first_scale(part) + c / n_in * scales_per_row(part) + c % n_in / group];
        char name[160];
        matrix_name(i, name, sizeof name);
        micro_add(&k.m, name, COLI_DT_F32, 2, (const uint64_t[]){n_row_of(part), n_in}, w);
    }
    const char *src = micro_write(&k.m, micro_path("plain.src"));
    micro_finish(&k.m);
    return src;
}

/* As f32 a container has the logits of its numbers, to the bit.  As it is, codes with their scales, it rounds
 * activations alone.  That costs each product 0.0055 of its size (gguf_model_test.c), where the row's numbers
 * are like normal ones; down's row is of products, whose largest is twice as many deviations away: 0.011.  So
 * it is in both layers, of which the trunk is f32; twice their sum in squares is allowed. */
T_TEST(logits_are_those_of_the_numbers)
{
    T_BEGIN;
    enum { N_VOCAB = 48, N_TOK = 9 };
    static float plain[N_TOK * N_VOCAB], as_f32[N_TOK * N_VOCAB], as_is[N_TOK * N_VOCAB];
    static const struct {
        bool is8, mixed;
        uint32_t group, down_group;
    } cases[] = {
        {false, false, 0, 0}, {false, false, 64, 0}, {true, false, 32, 0}, {false, true, 64, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make(cases[i].is8, cases[i].mixed, cases[i].group, cases[i].down_group);
        const char *src = micro_write(&k.m, micro_path("merged.src"));
        micro_text(micro_path("merged.src/qwen36_meta.json"), k.meta);
        const char *plain_src = write_plain(), *dir = micro_path("logits");
        T_OK(convert(plain_src, dir, "f32"));
        world_logits(dir, N_VOCAB, N_TOK, plain);
        coli__dir_remove(dir);
        T_OK(convert(src, dir, "f32"));
        world_logits(dir, N_VOCAB, N_TOK, as_f32);
        coli__dir_remove(dir);
        T_MEM(as_f32, plain, sizeof plain);
        T_OK(convert(src, dir, NULL));
        world_logits(dir, N_VOCAB, N_TOK, as_is);
        coli__dir_remove(dir);
        const double apart = world_apart(plain, as_is, N_VOCAB, N_TOK);
        print_message("case %zu: logits differ by %.2g %%\n", i, 100 * apart);
        T_TRUE(apart > 0);
        T_FLE(apart, 2 * sqrt(2 * (2 * 0.0055 * 0.0055 + 0.011 * 0.011)));
    }
}

/* As people call it: nothing beside config.hf.json is needed to find the config. */
T_TEST(the_original_config_is_enough)
{
    T_BEGIN;
    make(false, false, 64, 0);
    const char *src = write_container(), *out = micro_path("merged");
    T_OK(coli__path_rename(micro_path("merged.src/config.json"),
                           micro_path("merged.src/config.hf.json")));
    T_OK(coli_convert(src, out, NULL));
    const coli_plan_opts plan = {.recipe = NULL};
    world_planned_alike(src, out, &plan);
    compare_experts(out);
    coli__dir_remove(out);
    coli__dir_remove(src);
}

/* The worked example of the format's page. */
T_TEST(the_worked_record)
{
    T_BEGIN;
    static const int8_t codes[24] = {1, 2, -3, 7,  0, -7, 7,  1, 7, -7, 0, 3,
                                     2, 2, 2,  -7, 7, -1, -7, 2, 0, 7,  7, 7};
    static const uint8_t int4[12] = {0x21, 0x7d, 0x90, 0x17, 0x97, 0x30,
                                     0x22, 0x92, 0xf7, 0x29, 0x70, 0x77};
    static const float ones[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const coli__expert_spec s = {"x", 0, 1, 4, 2};
    const coli__st_tensor record = {.name = "r", .n_bytes = 12, .data = int4};
    for (uint32_t group = 0; group <= 2; group += 2) {
        const coli__st_tensor scales = {.name = "s",
                                        .dtype = COLI_DT_F32,
                                        .n_elem = group ? 12 : 8,
                                        .data = (const uint8_t *)ones};
        const coli__merged m = {.is = true, .group = group};
        coli__merged_part part[3];
        T_OK(coli__merged_parts(&m, &s, &record, &scales, part));
        for (int i = 0; i < 3; i++) {
            int8_t found[8];
            float scale;
            T_EQ(part[i].first, 8 * i);
            T_EQ(part[i].first_scale, group ? 4 * i : 2 * i);
            T_OK(coli__packing_codes(part[i].packing, &record, &scales, part[i].first,
                                     part[i].first_scale, 8, found, &scale));
            T_MEM(found, codes + 8 * i, 8);
        }
    }
}

/* -- wrong ones -------------------------------------------------------------------------------- */

static coli__st_out *record_of(const char *suffix)
{
    char name[128];
    snprintf(name, sizeof name, "model.layers.1.mlp.experts.2%s", suffix);
    return micro_find(&k.m, name);
}

static void refused(coli_status status, const char *text)
{
    const char *src = write_container(), *out = micro_path("bad");
    T_FAILS(convert(src, out, NULL), status, text);
    T_TRUE(!coli__path_exists(out) && !coli__path_exists(micro_path("bad.partial")));
}

T_TEST(records_that_are_none)
{
    T_BEGIN;
    make(false, false, 64, 0);
    record_of(".merged_weight")->shape[0]--;
    refused(COLI_E_FORMAT, "experts.2.merged_weight: expected 73728 bytes (8 bits), 36864 (4 bits) "
                           "or 49152 (4 and 8)");
    make(false, false, 64, 0);
    record_of(".merged_weight.qs")->shape[0]--;
    refused(COLI_E_FORMAT, "expected 1152 scales of type F32 (expert_gs 64");
    make(false, false, 0, 0); // the metadata speaks of groups
    strcpy(strstr(k.meta, "expert_gs\":0"), "expert_gs\":64}");
    refused(COLI_E_FORMAT, "expected 1152 scales of type F32");
    make(false, false, 64, 0);
    micro_drop(&k.m, "model.layers.1.mlp.experts.2.merged_weight");
    refused(COLI_E_FORMAT, "layers.1.mlp.experts.2.merged_weight: is missing");
    make(false, false, 64, 0);
    micro_drop(&k.m, "model.layers.1.mlp.experts.2.merged_weight.qs");
    refused(COLI_E_FORMAT, "layers.1.mlp.experts.2.merged_weight.qs: is missing");
    make(false, false, 64, 0);
    micro_random(&k.m, "model.layers.1.mlp.experts.2.qs", COLI_DT_F32, 1, (const uint64_t[]){1152});
    refused(COLI_E_FORMAT, "which are the same scales");
    make(false, false, 64, 0);
    micro_drop(&k.m, "model.layers.1.mlp.experts.2.merged_weight");
    micro_random(&k.m, "model.layers.1.mlp.experts.2.merged_weight", COLI_DT_I8, 1,
                 (const uint64_t[]){3 * (uint64_t)N_ONE});
    refused(COLI_E_FORMAT, "is of another kind than that of expert 0");
    make(false, false, 64, 0);
    for (uint32_t i = 0; i < k.m.n; i++) // value + 8
        if (strstr(k.m.tensors[i].name, "merged_weight") && k.m.tensors[i].dtype == COLI_DT_U8)
            for (uint64_t b = 0; b < record_bytes(); b++)
                ((uint8_t *)(uintptr_t)k.m.tensors[i].data)[b] ^= 0x88;
    refused(COLI_E_FORMAT, "look like value + 8");
}

/* A tensor of codes and one of scales for each matrix: they are of another family, whose name is said;
 * and where somebody wrote this family's name above them, the first such tensor is. */
T_TEST(a_scale_tensor_per_matrix)
{
    T_BEGIN;
    for (int form = 0; form < 3; form++) { // of the other family; renamed, int4; renamed, int8
        make(false, false, 64, 0);
        drop_tensors(".merged_weight");
        for (uint32_t i = 0; i < N_LAYER * N_EXPERT * 3; i++) {
            const int part = (int)i % 3;
            const uint64_t code[] = {n_row_of(part), n_col_of(part)}, half[] = {N_ONE / 2},
                           scale[] = {N_ONE / 64};
            char name[160];
            matrix_name(i, name, sizeof name);
            micro_random(&k.m, name, COLI_DT_U8, form == 2 ? 2 : 1, form == 2 ? code : half);
            strcat(name, ".qs");
            micro_random(&k.m, name, COLI_DT_F32, 1, scale);
        }
        const char *src = write_container(), *out = micro_path("bad");
        coli__file_remove(micro_path("merged.src/qwen36_meta.json"));
        char glm[sizeof config + 32];
        snprintf(glm, sizeof glm, "{\"model_type\":\"glm4_moe\"%s", strchr(config, ','));
        if (form == 0) micro_text(micro_path("merged.src/config.json"), glm);
        if (form == 0)
            T_FAILS(convert(src, out, NULL), COLI_E_UNSUPPORTED,
                    "model_type glm4_moe is not a known family");
        else if (form == 1)
            T_FAILS(convert(src, out, NULL), COLI_E_FORMAT,
                    "experts.0.gate_proj.weight: expected the shape [192, 128], found [12288]");
        else
            T_FAILS(convert(src, out, NULL), COLI_E_UNSUPPORTED, "experts.0.gate_proj.weight: ");
        T_TRUE(!coli__path_exists(out) && !coli__path_exists(micro_path("bad.partial")));
    }
}

T_TEST(scales_that_are_none)
{
    T_BEGIN;
    static const float bad[] = {NAN, INFINITY, -0.5f, 1025, 0};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        make(i % 2, false, 64, 0);
        ((float *)(uintptr_t)record_of(".merged_weight.qs")->data)[700] = bad[i];
        refused(COLI_E_FORMAT, "experts.2.merged_weight.qs: scale 700 is ");
    }
}

T_TEST(metadata_that_is_of_another_model)
{
    T_BEGIN;
    static const char *const changes[][3] = {
        {"\"n_layers\":2", "\"n_layers\":3",
         "n_layers is another number than config.json's num_hidden_layers"},
        {"\"hidden\":128", "\"hidden\":64", "hidden is another number"},
        {"rope_theta\":10000", "rope_theta\":1e7", "rope_theta is another number"},
        {"\"linear_attention\",\"full", "\"full_attention\",\"full",
         "layer_types is another number"},
        {"\"ebits\":3", "\"has_bias\":true", "has_bias is true; only false"},
        {"\"ebits\":3", "\"n_group\":8", "n_group is 8"},
        {"\"ebits\":3", "\"scoring_func\":\"sigmoid\"", "only \"softmax\""},
        {"\"ebits\":3",
         "\"dn_conv_dim\":33,\"dn_kheads\":1,\"dn_kdim\":8,\"dn_vheads\":2,\"dn_vdim\":8",
         "dn_conv_dim: expected 32 by the heads, found 33"},
        {"\"expert_gs\":64", "\"expert_gs\":-64", "expert_gs"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        make(false, false, 64, 0);
        char after[600];
        char *at = strstr(k.meta, changes[i][0]);
        T_TRUE(at != NULL);
        snprintf(after, sizeof after, "%s", at + strlen(changes[i][0]));
        snprintf(at, sizeof k.meta - (size_t)(at - k.meta), "%s%s", changes[i][1], after);
        const char *src = write_container(), *out = micro_path("bad");
        const coli_status status = convert(src, out, NULL);
        if (status == COLI_OK || !strstr(coli_error_message(), changes[i][2]))
            fail_msg("%s: %s", changes[i][1], status ? coli_error_message() : "was accepted");
        T_TRUE(!coli__path_exists(out) && !coli__path_exists(micro_path("bad.partial")));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_format_holds_stays_as_it_is),
        cmocka_unit_test(what_none_holds_is_quantised_anew),
        cmocka_unit_test(the_ends_of_the_range),
        cmocka_unit_test(norms_that_hold_one_plus_w),
        cmocka_unit_test(where_numbers_come_from),
        cmocka_unit_test(logits_are_those_of_the_numbers),
        cmocka_unit_test(the_original_config_is_enough),
        cmocka_unit_test(the_worked_record),
        cmocka_unit_test(records_that_are_none),
        cmocka_unit_test(a_scale_tensor_per_matrix),
        cmocka_unit_test(scales_that_are_none),
        cmocka_unit_test(metadata_that_is_of_another_model),
    };
    return cmocka_run_group_tests(tests, micro_setup, micro_teardown);
}
