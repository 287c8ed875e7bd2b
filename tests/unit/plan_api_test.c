/* plan_api_test.c - coli_plan: the sum of its parts, what it says when memory is short, and that opening
 * the model does what was said. */
#include <math.h>

#include "backends.h"

#include "libcoli/src/moe/store.h"

static const char *const demo = TEST_MODELS "/hummingbird";

static coli_plan_result planned(const coli_model_opts *o, const coli_session_opts *s)
{
    coli_plan_result p = {.struct_size = sizeof p};
    T_OK(coli_plan(demo, o, s, &p));
    T_EQ(p.n_in_vram + p.n_in_ram + p.n_on_disk, (uint64_t)p.n_layer * p.n_expert);
    T_EQ(p.resident_bytes, p.trunk_bytes + p.kv_bytes + p.state_bytes + p.scratch_bytes);
    T_GE(p.needed_bytes, p.resident_bytes + (p.n_in_ram + p.n_on_disk) * p.expert_bytes);
    T_EQ(p.n_on_disk > 0, p.fit != COLI_FIT_ALL);
    return p;
}

static coli_model_opts without_devices(uint64_t ram_bytes)
{
    return (coli_model_opts){.struct_size = sizeof(coli_model_opts),
                             .n_threads = 2,
                             .backend = "none",
                             .ram_bytes = ram_bytes};
}

T_TEST(sizes_are_those_of_the_model)
{
    T_BEGIN;
    const coli_model_opts o = without_devices(0);
    const coli_plan_result p = planned(&o, NULL);
    coli_model *m = world_open(demo, 2, NULL);
    coli_model_info info = {.struct_size = sizeof info};
    T_OK(coli_model_get_info(m, &info));
    coli_model_close(m);
    T_EQ(p.n_layer, 8);
    T_EQ(p.n_expert, info.n_expert);
    T_EQ(p.n_expert_used, info.n_expert_used);
    T_EQ(p.expert_bytes, info.expert_bytes);
    T_EQ(p.n_ctx, info.n_ctx_max);
    T_EQ(p.n_chunk, 512);
    T_EQ(p.n_threads, 2);
    T_EQ(p.token_vram_bytes + p.token_disk_bytes, 0);
    T_EQ(p.token_ram_bytes,
         info.token_expert_bytes + info.token_trunk_bytes + info.token_head_bytes);
    T_LE(p.trunk_bytes + 512 * p.expert_bytes, info.weight_bytes);
    T_EQ(p.fit, COLI_FIT_ALL);
    T_EQ(p.n_device, 0);
    T_TRUE(!p.vram_is_assumed);
}

T_TEST(a_session_is_counted_as_asked_for)
{
    T_BEGIN;
    const coli_model_opts o = without_devices(0);
    const coli_session_opts half = {.struct_size = sizeof half, .n_ctx = 2048, .n_chunk = 64};
    const coli_plan_result all = planned(&o, NULL), less = planned(&o, &half);
    T_EQ(2 * less.kv_bytes, all.kv_bytes);
    T_EQ(less.state_bytes, all.state_bytes);
    T_TRUE(less.scratch_bytes < all.scratch_bytes / 2);
    const coli_session_opts more = {.struct_size = sizeof more, .n_ctx = 5000};
    coli_plan_result p = {.struct_size = sizeof p, .n_ctx = 7};
    T_FAILS(coli_plan(demo, &o, &more, &p), COLI_E_INVALID, "at most 4096");
    T_EQ(p.n_ctx, 0);
}

/* From nothing to more than all of it: what is in memory grows, and what is missing is named. */
T_TEST(little_memory)
{
    T_BEGIN;
    const coli_model_opts enough = without_devices(0);
    const coli_plan_result all = planned(&enough, NULL);
    coli__container *container;
    T_OK(coli__container_open(demo, &container));
    const uint64_t per_expert = coli__store_slot_bytes(container); // one more in each layer
    coli__container_close(container);
    uint64_t before = 0;
    for (uint32_t cap = 0; cap <= 66; cap++) {
        const coli_model_opts o = without_devices(all.resident_bytes + cap * per_expert + 1);
        const coli_plan_result p = planned(&o, NULL);
        const uint64_t missing = p.needed_bytes - o.ram_bytes, token = p.kv_bytes / p.n_ctx;
        const uint32_t n = cap < 1 ? 1 : cap > 64 ? 64 : cap;
        T_EQ(p.ram_experts, n);
        T_EQ(p.n_in_ram, 8 * n);
        T_EQ(p.fit, cap < 1 ? COLI_FIT_NOT : cap < 64 ? COLI_FIT_READS : COLI_FIT_ALL);
        T_EQ(p.token_disk_bytes + p.token_ram_bytes, all.token_ram_bytes);
        T_TRUE(cap == 0 || p.token_ram_bytes >= before);
        before = p.token_ram_bytes;
        // what is said to be needed is enough, and a byte less is not
        T_EQ(p.needed_bytes, all.needed_bytes);
        T_EQ(p.least_bytes, all.resident_bytes + per_expert);
        T_EQ(p.n_ctx_least > 0, cap < 1);
        if (p.n_ctx_least > 0) { // one expert of each layer then has room
            const coli_session_opts least = {.struct_size = sizeof least, .n_ctx = p.n_ctx_least};
            T_TRUE(planned(&o, &least).fit != COLI_FIT_NOT);
        }
        const coli_model_opts just = without_devices(p.needed_bytes),
                              less = without_devices(p.needed_bytes - 1);
        T_EQ(planned(&just, NULL).fit, COLI_FIT_ALL);
        T_EQ(planned(&less, NULL).fit, COLI_FIT_READS);
        if (p.fit == COLI_FIT_ALL) {
            T_EQ(p.n_ctx_all, 0);
            continue;
        }
        if (missing + 256 * token > p.kv_bytes) {
            T_EQ(p.n_ctx_all, 0);
            continue;
        }
        // a shorter context makes room for the others, and is believed when it is asked for
        T_TRUE(p.n_ctx_all > 0 && p.n_ctx_all < 4096 && p.n_ctx_all % 256 == 0);
        const coli_session_opts shorter = {.struct_size = sizeof shorter, .n_ctx = p.n_ctx_all};
        T_EQ(planned(&o, &shorter).fit, COLI_FIT_ALL);
    }
}

T_TEST(a_device_that_is_not_there)
{
    T_BEGIN;
    coli_model_opts o = without_devices(0);
    o.vram_unit = COLI_VRAM_BYTES;
    o.vram = 3000000;
    coli_plan_result p = planned(&o, NULL);
    T_TRUE(p.vram_is_assumed);
    T_EQ(p.n_in_vram, 3000000 / p.expert_bytes);
    o.vram_unit = COLI_VRAM_PERCENT;
    o.vram = 25;
    p = planned(&o, NULL);
    T_EQ(p.n_in_vram, 128);
    T_EQ(p.vram_bytes, 128 * p.expert_bytes);
    // what it holds needs no memory: half as much is enough when half of the experts are there
    o.vram = 50;
    coli__container *container;
    T_OK(coli__container_open(demo, &container));
    o.ram_bytes = p.resident_bytes + 32 * coli__store_slot_bytes(container);
    coli__container_close(container);
    T_EQ(planned(&o, NULL).fit, COLI_FIT_ALL);
    o.vram = 49;
    T_EQ(planned(&o, NULL).fit, COLI_FIT_READS);
}

/* What was planned for devices is what opening does. */
T_TEST(devices_hold_what_was_said)
{
    T_BEGIN;
    static const struct {
        const char *options;
        uint32_t unit;
        double vram;
        const char *place;
    } cases[] = {{"", COLI_VRAM_PERCENT, 100, "off"},
                 {"", COLI_VRAM_PERCENT, 37.5, "off"},
                 {"", COLI_VRAM_BYTES, 5000000, "off"},
                 {"", COLI_VRAM_BYTES, 5000000, NULL},
                 {"", COLI_VRAM_BYTES, 5000000, "all"},
                 {"devices=3", COLI_VRAM_BYTES, 5000000, NULL},
                 {"devices=2", COLI_VRAM_BYTES, 5000000, "off"},
                 {"devices=2", COLI_VRAM_BYTES, 5000000, "lmhead=1;experts=0"},
                 {"devices=2 page=4KiB", COLI_VRAM_PERCENT, 33, "off"},
                 {"vram=3MiB", COLI_VRAM_PERCENT, 100, "off"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        coli_model_opts o = backend_opts(cases[i].vram, false, cases[i].options);
        o.vram_unit = cases[i].unit;
        o.place = cases[i].place;
        o.no_trunk_probe = true;
        const coli_plan_result p = planned(&o, NULL);
        coli_model *m;
        T_OK(coli_model_open(demo, &o, &m));
        const coli_backend_stats s = backend_stats(m);
        coli_model_close(m);
        T_EQ(p.n_device, s.n_device);
        T_EQ(p.n_in_vram, s.n_expert);
        T_EQ(p.vram_trunk_bytes + p.n_in_vram * p.slot_bytes, s.vram_bytes);
        T_EQ(p.vram_trunk_bytes > 0, s.n_matrix > 0);
        T_TRUE(p.n_in_vram > 0 && !p.vram_is_assumed);
    }
}

/* Devices may hold much of some layers and little of others: memory has as much room in each, so what the
 * latter lack is read. */
T_TEST(the_fullest_layer_decides)
{
    T_BEGIN;
    coli_model_opts o = backend_opts(5000000, false, "devices=2");
    o.vram_unit = COLI_VRAM_BYTES;
    o.layer_split = 2;
    o.ram_experts = 46;
    const coli_plan_result p = planned(&o, NULL);
    T_EQ(p.n_in_vram, 2 * 76); // on the average that leaves 45 of each layer
    T_EQ(p.n_on_disk, 6 * (64 - 46) - 76);
    T_EQ(p.fit, COLI_FIT_READS);
    coli__container *container;
    T_OK(coli__container_open(demo, &container));
    const uint64_t per_expert = coli__store_slot_bytes(container);
    coli__container_close(container);
    T_EQ(p.needed_bytes, p.resident_bytes + (64 - 76 / 6) * per_expert);
    o.ram_experts = 64 - 76 / 6;
    T_EQ(planned(&o, NULL).fit, COLI_FIT_ALL);
}

static void expect_session(coli_model_opts *o, const coli_session_opts *s)
{
    o->n_ctx = s->n_ctx;
    o->n_chunk = s->n_chunk;
    o->kv = s->kv;
}

/* And what was planned for memory, with the default session and with others. */
T_TEST(memory_holds_what_was_said)
{
    T_BEGIN;
    const coli_model_opts enough = without_devices(0);
    const coli_plan_result all = planned(&enough, NULL);
    uint32_t n_refused = 0;
    for (uint32_t i = 0; i < 80; i++) {
        coli_model_opts o = without_devices(all.trunk_bytes + i / 2 * 1000003);
        const coli_session_opts s = {.struct_size = sizeof s,
                                     .n_ctx = i & 1 ? 1024 : 0,
                                     .n_chunk = i & 2 ? 64 : 0,
                                     .kv = i & 4 ? COLI_KV_F32 : COLI_KV_F16};
        expect_session(&o, &s);
        if (i % 10 == 9) o.ram_experts = i / 2;
        const coli_plan_result p = planned(&o, &s);
        coli_model *m;
        if (p.fit == COLI_FIT_NOT) {
            T_FAILS(coli_model_open(demo, &o, &m), COLI_E_LIMIT, "GB were allowed");
            n_refused++;
            continue;
        }
        T_OK(coli_model_open(demo, &o, &m));
        coli_store_stats stats = {.struct_size = sizeof stats};
        T_OK(coli_model_get_store_stats(m, &stats));
        coli_model_close(m);
        T_EQ(stats.is_limited, p.n_on_disk > 0);
        if (stats.is_limited) T_EQ(stats.n_slot, p.ram_experts);
    }
    T_TRUE(n_refused > 5 && n_refused < 60);
}

static uint64_t run_within(const coli_model_opts *o, const coli_session_opts *opts,
                           coli_store_stats *stats)
{
    coli_model *m;
    coli_session *s;
    T_OK(coli_model_open(demo, o, &m));
    T_OK(coli_session_create(m, opts, &s));
    const digest d = digest_in(s, 40);
    *stats = (coli_store_stats){.struct_size = sizeof *stats};
    T_OK(coli_model_get_store_stats(m, stats));
    coli_session_destroy(s);
    coli_model_close(m);
    return d.h;
}

/* From so many bytes to a model that runs within them: as many experts as the plan says, and the answers
 * of a model that has them all. */
T_TEST(a_model_runs_in_what_was_allowed)
{
    T_BEGIN;
    static const coli_session_opts sessions[] = {
        {.struct_size = sizeof *sessions, .n_ctx = 512},
        {.struct_size = sizeof *sessions, .n_ctx = 4096, .kv = COLI_KV_F32},
        {.struct_size = sizeof *sessions, .n_ctx = 256, .n_chunk = 16}};
    for (size_t i = 0; i < sizeof sessions / sizeof *sessions; i++) {
        coli_model_opts o = without_devices(UINT64_C(1) << 40);
        expect_session(&o, &sessions[i]);
        const coli_plan_result all = planned(&o, &sessions[i]);
        coli_store_stats stats;
        const uint64_t want = run_within(&o, &sessions[i], &stats);
        T_TRUE(all.fit == COLI_FIT_ALL && !stats.is_limited);
        o.ram_bytes = (all.resident_bytes + all.needed_bytes) / 2;
        const coli_plan_result p = planned(&o, &sessions[i]);
        T_EQ(run_within(&o, &sessions[i], &stats), want);
        T_TRUE(p.fit == COLI_FIT_READS && stats.is_limited && stats.n_miss > 0);
        T_TRUE(p.ram_experts >= 30 && p.ram_experts <= 32); // of 64
        T_EQ(stats.n_slot, p.ram_experts);
        T_LE(p.resident_bytes + stats.slot_bytes, o.ram_bytes);
    }
}

/* -- models that are not converted ------------------------------------------------------------- */

/* A directory with a config.json and nothing else; free(). */
static char *config_alone(const char *name, const char *config)
{
    char *dir = world_path(world_scratch(), name), *path = world_path(dir, "config.json");
    T_OK(coli__dir_create(dir));
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    T_TRUE(fputs(config, file) >= 0);
    T_EQ(fclose(file), 0);
    free(path);
    return dir;
}

static char *text_of(const char *dir, const char *name) // free()
{
    char *path = world_path(dir, name);
    coli__buf text = {0};
    T_OK(coli__file_read(path, 1 << 20, &text));
    free(path);
    char *copy = strdup(text.data);
    coli__buf_finish(&text);
    return copy;
}

/* What is said of config.json alone is what the container then is. */
T_TEST(a_config_alone_is_planned_as_its_container)
{
    T_BEGIN;
    static const char *const formats[][2] = {
        {NULL, NULL}, {"int8", "int4"}, {"bf16", "f32"}, {"int4-g32-f32", "int8-row-f16"}};
    coli_model_opts o = without_devices(0);
    o.vram_unit = COLI_VRAM_BYTES;
    o.vram = 300000;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        const coli_synth_opts synth = {.struct_size = sizeof synth,
                                       .like = "qwen36-122b",
                                       .n_layer = 4,
                                       .d_model = 192,
                                       .d_ff = 48,
                                       .n_expert = 12,
                                       .n_vocab = 300,
                                       .experts = formats[i][0],
                                       .trunk = formats[i][1]};
        char *made = world_path(world_scratch(), "made");
        T_OK(coli_synth(made, &synth));
        char *config = text_of(made, "config.json"), *alone = config_alone("alone", config);
        coli_plan_opts opts = {.struct_size = sizeof opts, .model = &o};
        coli_plan_result a = {.struct_size = sizeof a}, b = {.struct_size = sizeof b};
        T_OK(coli_plan_make(made, &opts, &a));
        opts.experts = formats[i][0];
        opts.trunk = formats[i][1];
        T_OK(coli_plan_make(alone, &opts, &b));
        T_TRUE(!a.is_imagined && b.is_imagined);
        a.is_imagined = true;
        a.available_bytes = b.available_bytes; // asked for at two moments
        a.ram_bytes = b.ram_bytes;
        T_MEM(&a, &b, sizeof a);
        T_TRUE(b.n_in_vram > 0 && b.trunk_bytes > 0);
        if (formats[i][0]) // a container has its formats
            T_FAILS(coli_plan_make(made, &opts, &b), COLI_E_INVALID, "is a container");
        coli_model *m; // and it is not opened
        T_FAILS(coli_model_open(alone, &o, &m), COLI_E_NOTFOUND, "model.coli");
        coli__dir_remove(alone);
        coli__dir_remove(made);
        free(alone);
        free(made);
        free(config);
    }
}

/* A GGUF file, by the kinds that its tensors have: what converting keeps, and what is asked for. */
T_TEST(a_gguf_file_is_planned_as_its_container)
{
    T_BEGIN;
    static const char *const files[] = {TEST_FIXTURES "/gguf/tiny-mix.gguf",
                                        TEST_FIXTURES "/gguf/tiny-00002-of-00003.gguf"};
    static const char *const wishes[][3] = {{NULL, NULL, NULL},
                                            {"int8", NULL, NULL},
                                            {NULL, "int4-g32-f16", NULL},
                                            {NULL, NULL, "exact"},
                                            {"bf16", NULL, "small"}};
    char *out = world_path(world_scratch(), "of-gguf");
    for (size_t i = 0; i < 10; i++) {
        const char *const *w = wishes[i / 2];
        const coli_convert_opts convert = {
            .struct_size = sizeof convert, .experts = w[0], .trunk = w[1], .recipe = w[2]};
        const coli_plan_opts plan = {.experts = w[0], .trunk = w[1], .recipe = w[2]};
        T_OK(coli_convert(files[i % 2], out, &convert));
        world_planned_alike(files[i % 2], out, &plan);
        coli__dir_remove(out);
    }
    free(out);
    coli_plan_result p = {.struct_size = sizeof p}; // what cannot be converted cannot be planned
    const coli_plan_opts o = {.struct_size = sizeof o};
    T_FAILS(coli_plan_make(TEST_FIXTURES "/gguf/kinds.gguf", &o, &p), COLI_E_UNSUPPORTED,
            "is not a known family");
    T_FAILS(coli_plan_make(TEST_FIXTURES "/gguf/README.md", &o, &p), COLI_E_FORMAT,
            "is no GGUF file");
}

/* Recipes, too: of the presets, and with lines of one's own behind them. */
T_TEST(recipes_of_what_is_not_converted)
{
    T_BEGIN;
    char *config = text_of(demo, "config.json"), *dir = config_alone("recipe", config);
    const coli_model_opts o = without_devices(0);
    coli_plan_opts opts = {
        .struct_size = sizeof opts, .model = &o, .experts = "int4", .trunk = "int8"};
    coli_plan_result plain = {.struct_size = sizeof plain}, p = plain;
    T_OK(coli_plan_make(dir, &opts, &plain));
    opts.experts = opts.trunk = NULL;
    opts.recipe = "balanced";
    T_OK(coli_plan_make(dir, &opts, &p));
    T_EQ(p.trunk_bytes, plain.trunk_bytes);
    T_EQ(p.expert_bytes, plain.expert_bytes);
    opts.recipe = "small"; // embedding and head have half the bits
    T_OK(coli_plan_make(dir, &opts, &p));
    T_EQ(plain.trunk_bytes - p.trunk_bytes, 2 * 3456 * 192 / 2);
    opts.recipe = "exact";
    T_OK(coli_plan_make(dir, &opts, &p));
    T_EQ(p.expert_bytes, 3 * 64 * 192 * 2);
    opts.experts = "int8"; // a line behind it
    T_OK(coli_plan_make(dir, &opts, &p));
    T_EQ(p.expert_bytes, 3 * 64 * 192 / 64 * 66);
    opts.recipe = "/nonexistent";
    T_FAILS(coli_plan_make(dir, &opts, &p), COLI_E_NOTFOUND, "/nonexistent");
    coli__dir_remove(dir);
    free(config);
    free(dir);
}

/* The family's sizes, of nothing but their config.json.  Bytes: per 64 weights of int4 34, of int8 66. */
T_TEST(the_whole_family)
{
    T_BEGIN;
    static const struct {
        const char *numbers;
        uint64_t n_expert_param, expert_param, n_layer;
    } sizes[] = {
        {"\"hidden_size\": 2048, \"num_hidden_layers\": 40, \"num_attention_heads\": 16,"
         "\"linear_num_value_heads\": 32, \"num_experts\": 256, \"num_experts_per_tok\": 8,"
         "\"moe_intermediate_size\": 512, \"shared_expert_intermediate_size\": 512",
         UINT64_C(40) * 256 * 3 * 2048 * 512, 3 * 2048 * 512, 40},
        {"\"hidden_size\": 3072, \"num_hidden_layers\": 48, \"num_attention_heads\": 32,"
         "\"linear_num_value_heads\": 64, \"num_experts\": 256, \"num_experts_per_tok\": 8,"
         "\"moe_intermediate_size\": 1024, \"shared_expert_intermediate_size\": 1024",
         UINT64_C(48) * 256 * 3 * 3072 * 1024, 3 * 3072 * 1024, 48},
        {"\"hidden_size\": 4096, \"num_hidden_layers\": 60, \"num_attention_heads\": 32,"
         "\"linear_num_value_heads\": 64, \"num_experts\": 512, \"num_experts_per_tok\": 10,"
         "\"moe_intermediate_size\": 1024, \"shared_expert_intermediate_size\": 1024",
         UINT64_C(60) * 512 * 3 * 4096 * 1024, 3 * 4096 * 1024, 60}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char config[1200];
        snprintf(config, sizeof config,
                 "{\"model_type\": \"qwen3_5_moe\", \"text_config\": {%s,"
                 "\"model_type\": \"qwen3_5_moe_text\", \"num_key_value_heads\": 2,"
                 "\"head_dim\": 256, \"linear_num_key_heads\": 16, \"linear_key_head_dim\": 128,"
                 "\"linear_value_head_dim\": 128, \"vocab_size\": 248320,"
                 "\"max_position_embeddings\": 262144, \"rope_parameters\": {\"rope_theta\":"
                 " 10000000}}}",
                 sizes[i].numbers);
        char *dir = config_alone("family", config);
        const coli_model_opts o = without_devices(UINT64_C(8) << 30);
        const coli_plan_opts opts = {.struct_size = sizeof opts, .model = &o};
        coli_plan_result p = {.struct_size = sizeof p};
        T_OK(coli_plan_make(dir, &opts, &p));
        T_EQ(p.n_layer, sizes[i].n_layer);
        T_EQ(p.expert_bytes, sizes[i].expert_param / 64 * 34);
        T_EQ(p.n_layer * p.n_expert * p.expert_bytes, sizes[i].n_expert_param / 64 * 34);
        T_TRUE(p.trunk_bytes > 1000000000 && p.trunk_bytes < 12000000000);
        T_EQ(p.n_ctx, 32768);
        // a quarter of the layers has 2 keys and 2 values of 256 numbers for a token, in f16
        T_EQ(p.kv_bytes, p.n_layer / 4 * 2 * 2 * 256 * 2 * UINT64_C(32768));
        T_EQ(p.fit, i == 2 ? COLI_FIT_NOT : COLI_FIT_READS);
        coli__dir_remove(dir);
        free(dir);
    }
}

/* Measured speeds are there and lead to a range; those of what nobody needs are not. */
T_TEST(speeds_are_measured_when_asked_for)
{
    T_BEGIN;
    coli_model_opts o = without_devices(0);
    coli_plan_opts opts = {.struct_size = sizeof opts, .model = &o, .measure = true};
    coli_plan_result p = {.struct_size = sizeof p};
    T_OK(coli_plan_make(demo, &opts, &p));
    T_TRUE(p.ram_gb_s_min > 0 && p.ram_gb_s_min <= p.ram_gb_s_max);
    T_TRUE(p.gmac_s_min > 0 && p.gmac_s_min <= p.gmac_s_max);
    T_TRUE(p.sync_us_min > 0 && p.sample_us_min > 0);
    T_TRUE(p.disk_gb_s_max == 0 && p.vram_gb_s == 0);
    T_TRUE(p.tok_s_min > 0 && p.tok_s_min <= p.tok_s_max && p.tok_s_full_max <= p.tok_s_max);
    o.ram_experts = 20; // some are on the disk
    T_OK(coli_plan_make(demo, &opts, &p));
    T_TRUE(p.disk_gb_s_min > 0 && p.disk_ms_max > 0 && p.tok_s_min > 0);
    o.ram_experts = 0;
    o.vram_unit = COLI_VRAM_BYTES; // of a device that is not there
    o.vram = 3000000;
    T_OK(coli_plan_make(demo, &opts, &p));
    T_TRUE(p.vram_is_assumed && p.tok_s_max == 0 && p.ram_gb_s_min > 0);
    o = backend_opts(5000000, false, "");
    o.vram_unit = COLI_VRAM_BYTES;
    T_OK(coli_plan_make(demo, &opts, &p));
    T_TRUE(p.n_device == 1 && p.vram_gb_s > 0 && p.link_gb_s == 0 && p.tok_s_max > 0);
    opts.measure = false;
    T_OK(coli_plan_make(demo, &opts, &p));
    T_TRUE(p.ram_gb_s_max == 0 && p.tok_s_max == 0 && p.sync_us_max == 0);
}

T_TEST(refusals)
{
    T_BEGIN;
    coli_plan_result p = {.struct_size = sizeof p};
    coli_model_opts o = without_devices(0);
    T_FAILS(coli_plan(NULL, &o, NULL, &p), COLI_E_INVALID, "NULL");
    T_FAILS(coli_plan_make(NULL, NULL, &p), COLI_E_INVALID, "NULL");
    const coli_plan_opts unknown = {.struct_size = sizeof unknown, .experts = "int5"};
    T_FAILS(coli_plan_make(demo, &unknown, &p), COLI_E_FORMAT, "int5");
    char *empty = world_path(world_scratch(), "empty");
    T_OK(coli__dir_create(empty));
    T_FAILS(coli_plan(empty, &o, NULL, &p), COLI_E_NOTFOUND, "model.coli");
    coli__dir_remove(empty);
    free(empty);
    char *odd = config_alone("odd", "{\"model_type\": \"llama\"}");
    T_FAILS(coli_plan(odd, &o, NULL, &p), COLI_E_UNSUPPORTED, "llama");
    coli__dir_remove(odd);
    free(odd);
    // weights that converting refuses
    static const struct {
        const char *stored, *name;
    } refused[] = {{"\"weight_block_size\": [64, 64]", "weight_block_size"},
                   {"\"quant_method\": \"awq\", \"bits\": 4", "\"awq\""},
                   {"\"quant_method\": \"gptq\"", "\"gptq\""}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char config[200];
        snprintf(config, sizeof config,
                 "{\"model_type\": \"qwen3_5_moe_text\", \"quantization_config\": {%s}}",
                 refused[i].stored);
        char *dir = config_alone("stored", config);
        T_FAILS(coli_plan(dir, &o, NULL, &p), COLI_E_UNSUPPORTED, refused[i].name);
        coli__dir_remove(dir);
        free(dir);
    }
    T_FAILS(coli_plan("/nonexistent", &o, NULL, &p), COLI_E_NOTFOUND, "/nonexistent");
    o.backend = "nosuch";
    T_FAILS(coli_plan(demo, &o, NULL, &p), COLI_E_UNSUPPORTED, "nosuch");
    o = without_devices(0);
    o.ram_experts = 65;
    T_FAILS(coli_plan(demo, &o, NULL, &p), COLI_E_INVALID, "65 experts");
    o = backend_opts(50, false, "devices=2");
    o.layer_split = 99;
    T_FAILS(coli_plan(demo, &o, NULL, &p), COLI_E_INVALID,
            "layer-split 99: layers for the first of two");
    static const struct {
        uint32_t unit;
        double vram;
    } wrong[] = {{COLI_VRAM_BYTES, -1},     {COLI_VRAM_BYTES, NAN},     {COLI_VRAM_BYTES, 1e30},
                 {COLI_VRAM_PERCENT, -0.5}, {COLI_VRAM_PERCENT, 100.5}, {COLI_VRAM_PERCENT + 1, 0}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        o = without_devices(0);
        o.vram_unit = wrong[i].unit;
        o.vram = wrong[i].vram;
        T_FAILS(coli_plan(demo, &o, NULL, &p), COLI_E_INVALID, "vram: ");
    }
    p.struct_size = 2;
    T_FAILS(coli_plan(demo, NULL, NULL, &p), COLI_E_INVALID, "struct_size");
}

int main(int argc, char **argv)
{
    if (!backend_from(argc, argv)) return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_those_of_the_model),
        cmocka_unit_test(a_session_is_counted_as_asked_for),
        cmocka_unit_test(little_memory),
        cmocka_unit_test(a_device_that_is_not_there),
        cmocka_unit_test(devices_hold_what_was_said),
        cmocka_unit_test(the_fullest_layer_decides),
        cmocka_unit_test(memory_holds_what_was_said),
        cmocka_unit_test(a_model_runs_in_what_was_allowed),
        cmocka_unit_test(a_config_alone_is_planned_as_its_container),
        cmocka_unit_test(a_gguf_file_is_planned_as_its_container),
        cmocka_unit_test(recipes_of_what_is_not_converted),
        cmocka_unit_test(the_whole_family),
        cmocka_unit_test(speeds_are_measured_when_asked_for),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
