/* same_bytes.c - P1 on one machine: the same logits, to the bit, whatever the instruction set, the
 * number of threads, the chunk size or the place where the prompt is cut; whatever the host program
 * left in the float control register. */
#include "digest.h"

#if defined(__x86_64__)
#include <xmmintrin.h>

enum { FLUSH = 0x8040, UP = 0x4000, TO_ZERO = 0x6000 };
enum { CONTROL = 0xFFC0 }; // the other bits say what happened

static uint64_t float_control(void)
{
    return _mm_getcsr();
}

static void set_float_control(uint64_t bits)
{
    _mm_setcsr((unsigned)bits);
}

#elif defined(__aarch64__)

enum { FLUSH = 1 << 24, UP = 1 << 22, TO_ZERO = 3 << 22, CONTROL = 0x07F79F00 };

static uint64_t float_control(void)
{
    uint64_t bits;
    __asm__ volatile("mrs %0, fpcr" : "=r"(bits));
    return bits;
}

static void set_float_control(uint64_t bits)
{
    __asm__ volatile("msr fpcr, %0" ::"r"(bits));
}
#endif

/* All instruction sets x threads x chunks against scalar, one thread, one chunk. */
static void check_everywhere(const char *dir, uint32_t n_prompt)
{
    static const uint32_t threads[] = {1, 2, 5}, chunks[] = {1, 7, 64, 512};
    const digest want = digest_run(dir, "scalar", 1, 512, n_prompt);
    for (const char *const *isa = world_isas(); *isa; isa++)
        for (size_t t = 0; t < 3; t++)
            for (size_t c = 0; c < 4; c++) {
                if (!strcmp(*isa, "scalar") && threads[t] == 5)
                    continue; // slow, and says nothing new
                const digest got = digest_run(dir, *isa, threads[t], chunks[c], n_prompt);
                if (got.h != want.h)
                    print_error("%s, %u threads, chunk %u:\n", *isa, threads[t], chunks[c]);
                T_MEM(got.last, want.last, want.n_vocab * sizeof(float));
                T_EQ(got.h, want.h);
            }
}

T_TEST(demo_model)
{
    T_BEGIN;
    check_everywhere(TEST_MODELS "/hummingbird", N_PROMPT);
}

/* The formats that the demo model does not use. */
T_TEST(other_formats)
{
    T_BEGIN;
    for (size_t i = 0; i < N_FORMAT; i++) {
        char *dir = digest_container(i);
        check_everywhere(dir, N_FORMAT_PROMPT);
        free(dir);
    }
}

T_TEST(cut_at_every_position)
{
    T_BEGIN;
    enum { N = 80 };
    coli_model *m = world_open(TEST_MODELS "/hummingbird", 2, NULL);
    const uint32_t n_vocab = m->shape.n_vocab;
    int32_t ids[N];
    digest_prompt(n_vocab, ids, N);
    coli_session *s = world_session(m, 256, 512);
    T_OK(coli_session_feed(s, ids, N));
    float *want = malloc(n_vocab * sizeof *want);
    memcpy(want, coli_session_logits(s), n_vocab * sizeof *want);
    for (uint32_t cut = 1; cut < N; cut++) {
        coli_session_reset(s);
        T_OK(coli_session_feed(s, ids, cut));
        T_OK(coli_session_feed(s, ids + cut, N - cut));
        T_MEM(coli_session_logits(s), want, n_vocab * sizeof *want);
    }
    free(want);
    coli_session_destroy(s);
    coli_model_close(m);
}

static bool hash_piece(void *user, const coli_piece *piece)
{
    digest_mix(user, &piece->id, sizeof piece->id);
    digest_mix(user, piece->text, piece->n_bytes);
    return true;
}

/* A sampled turn of a chat as one hash. */
static uint64_t chat_turn(void)
{
    coli_model *m = world_open(TEST_MODELS "/hummingbird", 2, NULL);
    coli_session *s = world_session(m, 256, 64);
    coli_chat *c;
    T_OK(coli_chat_create(s, NULL, &c));
    const coli_sampling p = {.struct_size = sizeof p,
                             .temperature = 1.5f,
                             .top_k = 50,
                             .top_p = 0.95f,
                             .min_p = 0.001f,
                             .repetition_penalty = 1.1f,
                             .seed = 5};
    const coli_generate_opts o = {.struct_size = sizeof o, .max_tokens = 60, .sampling = &p};
    digest d = {.h = 0xCBF29CE484222325u};
    T_OK(coli_chat_say(c, "Tell me a story about a fox.", &o, hash_piece, &d, NULL));
    coli_chat_destroy(c);
    coli_session_destroy(s);
    coli_model_close(m);
    return d.h;
}

static uint64_t converted(const char *name)
{
    char *dir = world_container(TEST_FIXTURES "/qwen36-tiny-d", name, "int4", "int8");
    char path[512];
    snprintf(path, sizeof path, "%s/model.coli", dir);
    coli__buf file = {0};
    T_OK(coli__file_read(path, 1 << 24, &file));
    digest d = {.h = 0xCBF29CE484222325u};
    digest_mix(&d, file.data, file.n_bytes);
    coli__buf_finish(&file);
    free(dir);
    return d.h;
}

T_TEST(host_float_modes)
{
    T_BEGIN;
    static const uint64_t modes[] = {FLUSH, UP, FLUSH | TO_ZERO};
    const digest want = digest_run(TEST_MODELS "/hummingbird", NULL, 2, 64, 40);
    const uint64_t turn = chat_turn(), container = converted("modes");
    const uint64_t before = float_control();
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "modes%d", i);
        set_float_control(before | modes[i]);
        const digest got = digest_run(TEST_MODELS "/hummingbird", NULL, 2, 64, 40);
        const uint64_t got_turn = chat_turn(), got_container = converted(name);
        const uint64_t after = float_control();
        set_float_control(before);
        T_EQ(after & CONTROL, (before | modes[i]) & CONTROL); // given back as it was
        T_MEM(got.last, want.last, want.n_vocab * sizeof(float));
        T_EQ(got.h, want.h);
        T_EQ(got_turn, turn);
        T_EQ(got_container, container);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(demo_model),
        cmocka_unit_test(other_formats),
        cmocka_unit_test(cut_at_every_position),
        cmocka_unit_test(host_float_modes),
    };
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
