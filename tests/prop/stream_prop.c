/* stream_prop.c - P1 where experts pass through spare slots: the same logits, to the bit, whatever passes;
 * and what that does to the books. */
#include "backends.h"

#include "libcoli/src/base/alloc.h"

/* One placement: of the model at `dir`, a prompt in chunks. */
typedef struct stream_case {
    double percent; // of the experts on devices
    const char *options;
    uint32_t n_chunk, rows, ram; // ram: experts of each layer in memory; 0: all
    bool replan;
} stream_case;

static uint64_t n_spare_bytes(const coli_model *m)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < coli__devices_n(m->devices); i++)
        n += coli__tier_spare_bytes(m->tier, i);
    return n;
}

static coli_backend_stats check(const char *dir, const digest *want, uint32_t n_prompt,
                                const stream_case *c)
{
    coli_model_opts opts = backend_opts(c->percent, false, c->options);
    opts.stream_rows = c->rows;
    opts.ram_experts = c->ram;
    opts.replan = c->replan;
    coli_model *m;
    world_next_shape();
    T_OK(coli_model_open(dir, &opts, &m));
    uint64_t slot_bytes, expert_bytes;
    coli__tier_slot(m->tier, &slot_bytes, &expert_bytes);
    T_EQ(n_spare_bytes(m), COLI__SPARE * slot_bytes * coli__devices_n(m->devices));
    const digest got = digest_of(m, c->n_chunk, n_prompt);
    if (got.h != want->h)
        print_error("%g %%, %s, chunks of %u, %u rows, %u in memory\n", c->percent,
                    c->options ? c->options : "", c->n_chunk, c->rows, c->ram);
    T_MEM(got.last, want->last, want->n_vocab * sizeof(float));
    T_EQ(got.h, want->h);
    coli__tier_settle(m->tier);
    T_TRUE(coli__tier_is_sound(m->tier));
    const coli_backend_stats s = backend_stats(m);
    T_EQ(s.vram_bytes, s.n_expert * slot_bytes + n_spare_bytes(m));
    T_EQ(s.n_row_again + s.n_call_failed + s.n_slot_lost, 0);
    T_GE(s.n_overwrite + s.n_overwrite_async, s.n_streamed);
    coli_model_close(m);
    return s;
}

/* Every row of every expert, where all pass or are there. */
static void check_all(const char *dir, const digest *want, uint32_t n_prompt, stream_case c)
{
    const coli_backend_stats s = check(dir, want, n_prompt, &c);
    T_EQ(s.n_streamed > 0, c.percent < 100);
    // a last chunk of one row does not stream
    if (n_prompt % c.n_chunk != 1) T_EQ(s.n_row_host, 0);
    if (c.percent == 0) T_EQ(s.n_row_device, s.n_row_streamed);
}

T_TEST(demo_model)
{
    T_BEGIN;
    const char *dir = TEST_MODELS "/hummingbird";
    const digest want = digest_run(dir, NULL, 2, 512, 24);
    static const double percents[] = {0, 25, 50, 100};
    static const uint32_t chunks[] = {512, 7};
    for (size_t p = 0; p < 4; p++)
        for (size_t c = 0; c < 2; c++) {
            const stream_case all = {
                .percent = percents[p], .n_chunk = chunks[c], .rows = 1, .replan = p == 1};
            check_all(dir, &want, 24, all);
        }
    check_all(dir, &want, 24,
              (stream_case){.percent = 25, .options = "devices=2", .n_chunk = 512, .rows = 1});
    check_all(dir, &want, 24,
              (stream_case){.percent = 25, .n_chunk = 7, .rows = 1, .ram = 2, .replan = true});
    const coli_backend_stats some =
        check(dir, &want, 24, &(stream_case){.percent = 25, .n_chunk = 512, .rows = 4});
    T_TRUE(some.n_row_host > 0 && some.n_streamed > 0);
    T_GE(some.n_row_streamed, 4 * some.n_streamed);
    T_EQ(check(dir, &want, 24, &(stream_case){.percent = 25, .n_chunk = 1, .rows = 1}).n_streamed,
         0);
}

T_TEST(other_formats)
{
    T_BEGIN;
    for (size_t i = 2; i < N_FORMAT; i++) { // the others are no device's
        char *dir = digest_container(i);
        const digest want = digest_run(dir, NULL, 2, 512, N_FORMAT_PROMPT);
        for (double percent = 0; percent <= 50; percent += 25)
            for (uint32_t n_chunk = 7; n_chunk <= 512; n_chunk += 505)
                check_all(dir, &want, N_FORMAT_PROMPT,
                          (stream_case){.percent = percent, .n_chunk = n_chunk, .rows = 1});
        check_all(dir, &want, N_FORMAT_PROMPT,
                  (stream_case){
                      .percent = 25, .options = "devices=2", .n_chunk = 7, .rows = 1, .ram = 1});
        free(dir);
    }
}

/* Where streaming pays by far, all passes; where it does not, or nothing is known, nothing. */
T_TEST(auto_streams_what_pays)
{
    T_BEGIN;
    static const coli__speeds speeds[] = {
        {.pass_ns = 1, .pass_row_ns = 1, .host_row_ns = 1e6},
        {.pass_ns = 1e9, .pass_row_ns = 1, .host_row_ns = 1},
        {.host_row_ns = 1},
    };
    char *dir = digest_container(2);
    const digest want = digest_run(dir, NULL, 2, 512, N_FORMAT_PROMPT);
    for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++) {
        coli_model_opts opts = backend_opts(25, false, NULL);
        opts.stream_rows = COLI_STREAM_AUTO;
        coli_model *m;
        T_OK(coli_model_open(dir, &opts, &m));
        coli__tier_set_speeds(m->tier, speeds[i]);
        T_EQ(digest_of(m, 512, N_FORMAT_PROMPT).h, want.h);
        const coli_backend_stats s = backend_stats(m);
        T_EQ(s.n_streamed > 0, i == 0);
        if (i == 0) T_EQ(s.n_row_host, 0);
        coli_model_close(m);
    }
    // what it measures itself: at the second chunk all speeds are known
    coli_model_opts opts = backend_opts(25, false, NULL);
    opts.stream_rows = COLI_STREAM_AUTO;
    coli_model *m;
    T_OK(coli_model_open(dir, &opts, &m));
    T_EQ(digest_of(m, 35, N_FORMAT_PROMPT).h, want.h);
    const coli__speeds s = coli__tier_speeds(m->tier, 0);
    T_TRUE(s.pass_ns > 0 && s.host_row_ns > 0);
    coli_model_close(m);
    free(dir);
}

/* Spare slots that tear and cannot be replaced leave the books, one or both of them, and what remains
 * goes on without them. */
T_TEST(slots_that_are_lost)
{
    T_BEGIN;
    if (strcmp(backend_name, "fake") != 0) return;
    char *dir = digest_container(2);
    const digest want = digest_run(dir, NULL, 2, 7, N_FORMAT_PROMPT);
    uint32_t n_opened = 0, n_lost_one = 0, n_lost_both = 0;
    for (uint32_t from = 1; from <= 40; from++) { // the self-test uploads, too
        char options[128];
        snprintf(options, sizeof options,
                 "refuse=tensor_overwrite_async tear=tensor_overwrite:%u+:64 "
                 "fail=tensor_upload:%u+",
                 9 + from, from);
        coli_model_opts opts = backend_opts(0, false, options);
        opts.stream_rows = from % 2 ? 3 : 1;
        opts.ram_experts = from % 2 ? 3 : 0; // where the processor has waves of its own
        coli_model *m;
        if (coli_model_open(dir, &opts, &m) != COLI_OK) continue;
        n_opened++;
        T_EQ(digest_of(m, 7, N_FORMAT_PROMPT).h, want.h);
        T_TRUE(coli__tier_is_sound(m->tier));
        const coli_backend_stats s = backend_stats(m);
        n_lost_one += s.n_slot_lost == 1;
        n_lost_both += s.n_slot_lost == COLI__SPARE;
        if (s.n_slot_lost > 0) T_TRUE(s.n_row_again > 0 && s.n_row_host > 0);
        coli_model_close(m);
    }
    print_message("    %u opened, of these %u lost one and %u both\n", n_opened, n_lost_one,
                  n_lost_both);
    T_TRUE(n_opened > 0 && n_lost_one + n_lost_both > 0);
    free(dir);
}

/* The input of layer 5's experts and the routed ones are so large that what is inside these leaves its
 * range, and the shared expert's does not. */
static bool poison(void *ctx, coli__st_out *tensor)
{
    uint16_t **copies = ctx; // of bf16
    const bool norm = strcmp(tensor->name, "model.layers.5.post_attention_layernorm.weight") == 0;
    if (!norm && strcmp(tensor->name, "model.layers.5.mlp.experts.gate_up_proj") != 0) return true;
    T_EQ(tensor->dtype, COLI_DT_BF16);
    size_t n = 1;
    for (uint32_t i = 0; i < tensor->rank; i++) n *= (size_t)tensor->shape[i];
    uint16_t *copy = copies[norm] = malloc(n * sizeof *copy);
    for (size_t i = 0; i < n; i++) // 100; 1e5, and of two rows of gate one is positive
        copy[i] = norm ? 0x42C8 : i / tensor->shape[tensor->rank - 1] % 2 ? 0x47C3 : 0xC7C3;
    tensor->data = (const uint8_t *)copy;
    return true;
}

/* A row that leaves its range in an expert that passes through a device is told of as on the processor. */
T_TEST(rows_out_of_range)
{
    T_BEGIN;
    char path[256];
    uint16_t *copies[2] = {NULL};
    snprintf(path, sizeof path, "%s/poisoned", world_scratch());
    world_checkpoint(TEST_FIXTURES "/qwen36-tiny-a", path, "", poison, copies);
    T_TRUE(copies[0] && copies[1]);
    free(copies[0]);
    free(copies[1]);
    char *dir = world_container(path, "poisoned", "int8-g32-f32", "int8");
    static const int32_t ids[] = {5, 6, 7, 8};
    for (uint32_t rows = 0; rows <= 1; rows++)
        for (double percent = 0; percent <= 100; percent += 50) {
            coli_model_opts opts = backend_opts(percent, false, NULL);
            opts.stream_rows = rows;
            coli_model *m;
            T_OK(coli_model_open(dir, &opts, &m));
            coli_session *s = world_session(m, 64, 64);
            T_FAILS(coli_session_feed(s, ids, 4), COLI_E_NUMERIC, "layer 5: position 0");
            const coli_backend_stats stats = backend_stats(m);
            if (rows) T_EQ(stats.n_row_host, 0); // so it was a device that found out
            T_EQ(stats.n_row_again, 0);
            coli_session_destroy(s);
            coli_model_close(m);
        }
    free(dir);
}

/* Nothing is allocated once a session is there. */
T_TEST(no_allocation)
{
    T_BEGIN;
    char *dir = digest_container(2);
    coli_model_opts opts = backend_opts(25, false, NULL);
    opts.stream_rows = 1;
    coli_model *m;
    T_OK(coli_model_open(dir, &opts, &m));
    coli_session *s = world_session(m, 256, 7);
    int32_t ids[14];
    digest_prompt(m->shape.n_vocab, ids, 14);
    T_OK(coli_session_feed(s, ids, 14));
    const uint64_t before = coli__alloc_count();
    T_OK(coli_session_feed(s, ids, 14));
    T_EQ(coli__alloc_count(), before);
    T_TRUE(backend_stats(m).n_streamed > 0);
    coli_session_destroy(s);
    coli_model_close(m);
    free(dir);
}

int main(int argc, char **argv)
{
    if (!backend_from(argc, argv)) return 2;
    if (!backend_is_there()) return SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(demo_model),
                                       cmocka_unit_test(other_formats),
                                       cmocka_unit_test(auto_streams_what_pays),
                                       cmocka_unit_test(slots_that_are_lost),
                                       cmocka_unit_test(rows_out_of_range),
                                       cmocka_unit_test(no_allocation)};
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
