/* placement.c - P1 with devices: the same logits, to the bit, with none, some or all of the experts on
 * a plugin's devices, the dense matrices there or not, however the prompt is cut. */
#include "backends.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static const double percents[] = {0, 12, 50, 100};

/* Each placement with the prompt as one chunk; one of them also with others. */
static void check_model(const char *dir, uint32_t n_prompt)
{
    static const uint32_t chunks[] = {512, 7, 1};
    const digest want = digest_run(dir, NULL, 2, 512, n_prompt);
    for (size_t p = 0; p < 4; p++)
        for (int trunk = 0; trunk < 2; trunk++) {
            const coli_model_opts opts = backend_opts(percents[p], trunk, NULL);
            coli_model *m;
            T_OK(coli_model_open(dir, &opts, &m));
            const int n_chunk = percents[p] == 50 && trunk ? 3 : 1;
            for (int c = 0; c < n_chunk; c++) {
                const digest got = digest_of(m, chunks[c], n_prompt);
                if (got.h != want.h)
                    print_error("%g %%, trunk %d, chunk %u\n", percents[p], trunk, chunks[c]);
                T_MEM(got.last, want.last, want.n_vocab * sizeof(float));
                T_EQ(got.h, want.h);
            }
            const coli_backend_stats s = backend_stats(m);
            const uint64_t n_row = (uint64_t)n_prompt * want.n_layer * want.k;
            T_EQ(s.n_row_device + s.n_row_host, n_row * (uint64_t)n_chunk);
            T_EQ(s.n_row_again + s.n_matmul_again + s.n_device_lost + s.n_call_failed, 0);
            T_EQ(s.n_row_device > 0, s.n_expert > 0);
            if (s.n_expert == s.n_expert_total) T_EQ(s.n_row_host, 0);
            T_EQ(s.n_matmul > 0, s.n_matrix > 0);
            coli_model_close(m);
        }
}

T_TEST(demo_model)
{
    T_BEGIN;
    check_model(TEST_MODELS "/hummingbird", N_PROMPT);
}

/* The demo model does use devices: otherwise the test above says nothing. */
T_TEST(devices_are_used)
{
    T_BEGIN;
    const coli_model_opts opts = backend_opts(100, true, NULL);
    coli_model *m;
    T_OK(coli_model_open(TEST_MODELS "/hummingbird", &opts, &m));
    const coli_backend_stats s = backend_stats(m);
    T_GE(s.n_device, 1);
    T_EQ(s.n_expert, s.n_expert_total);
    T_EQ(s.n_expert_total, (uint64_t)m->shape.n_moe_layer * m->shape.n_expert);
    T_TRUE(s.n_matrix > m->shape.n_layer);
    T_TRUE(s.vram_bytes > 0);
    T_LE(s.vram_bytes, s.allowance_bytes);
    coli_model_close(m);
}

/* Formats that the demo model does not use; float experts stay on the processor. */
T_TEST(other_formats)
{
    T_BEGIN;
    for (size_t i = 0; i < N_FORMAT; i++) {
        char *dir = digest_container(i);
        check_model(dir, N_FORMAT_PROMPT);
        free(dir);
    }
}

/* Each component of the trunk alone, with half of the experts. */
T_TEST(each_component)
{
    T_BEGIN;
    static const struct {
        const char *place;
        uint32_t n_matrix; // of six layers of DeltaNet and two of attention
    } cases[] = {{"lmhead=0", 1}, {"dnproj=0", 12},
                 {"dnout=0", 6},  {"attnproj=0", 8},
                 {"shexp=0", 24}, {"lmhead=0,dnproj=0:3,attnproj=0:4,shexp=0:5", 1 + 6 + 4 + 15}};
    char *dir = world_container(TEST_FIXTURES "/qwen36-tiny-a", "tiny", "int4", "int8");
    const digest want = digest_run(dir, NULL, 2, 512, N_FORMAT_PROMPT);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        coli_model_opts opts = backend_opts(50, false, NULL);
        opts.place = cases[i].place;
        coli_model *m;
        T_OK(coli_model_open(dir, &opts, &m));
        T_EQ(backend_stats(m).n_matrix, cases[i].n_matrix);
        const digest got = digest_of(m, 7, N_FORMAT_PROMPT);
        if (got.h != want.h) print_error("%s\n", cases[i].place);
        T_EQ(got.h, want.h);
        T_EQ(backend_stats(m).n_matrix_off, 0);
        coli_model_close(m);
    }
    free(dir);
}

/* A host program that flushes denormals or rounds another way. */
T_TEST(float_control_of_the_caller)
{
    T_BEGIN;
#if defined(__x86_64__)
    enum { FLUSH = 0x8040, UP = 0x4000 };
    const char *dir = TEST_MODELS "/hummingbird";
    const digest want = digest_run(dir, NULL, 2, 64, 40);
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | FLUSH | UP);
    const coli_model_opts opts = backend_opts(50, true, NULL);
    coli_model *m;
    const coli_status status = coli_model_open(dir, &opts, &m);
    const digest got = status == COLI_OK ? digest_of(m, 64, 40) : (digest){0};
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    T_OK(status);
    T_EQ(after & 0xFFC0, (before | FLUSH | UP) & 0xFFC0);
    T_EQ(got.h, want.h);
    coli_model_close(m);
#else
    print_message("    only on x86-64\n");
#endif
}

int main(int argc, char **argv)
{
    if (!backend_from(argc, argv)) return 2;
    if (!backend_is_there()) return SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_are_used), cmocka_unit_test(demo_model),
        cmocka_unit_test(other_formats), cmocka_unit_test(each_component),
        cmocka_unit_test(float_control_of_the_caller)};
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
