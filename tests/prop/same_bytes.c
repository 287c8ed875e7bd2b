/* same_bytes.c - P1 on one machine: the same logits, to the bit, whatever the instruction set, the
 * number of threads, the chunk size or the place where the prompt is cut; whatever the host program
 * left in the float control register. */
#include "world.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "libcoli/src/run/session.h"

enum { N_PROMPT = 150, N_VOCAB_MAX = 4096 };

/* Every row's logits and routing as one hash: FNV-1a over the bytes, row by row. */
typedef struct digest {
    uint64_t h;
    uint32_t n_vocab, n_layer, k;
    float last[N_VOCAB_MAX];
} digest;

static void mix(digest *d, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) d->h = (d->h ^ ((const uint8_t *)bytes)[i]) * 0x100000001B3u;
}

static bool on_rows(void *user, uint32_t pos, uint32_t n_row, const float *logits,
                    const int32_t *expert_ids, const float *expert_w)
{
    (void)pos;
    digest *d = user;
    for (uint32_t r = 0; r < n_row; r++) {
        mix(d, logits + (size_t)r * d->n_vocab, d->n_vocab * sizeof(float));
        for (uint32_t l = 0; l < d->n_layer; l++) {
            const size_t at = ((size_t)l * n_row + r) * d->k;
            mix(d, expert_ids + at, d->k * sizeof(int32_t));
            mix(d, expert_w + at, d->k * sizeof(float));
        }
    }
    memcpy(d->last, logits + (size_t)(n_row - 1) * d->n_vocab, d->n_vocab * sizeof(float));
    return true;
}

static void prompt(uint32_t n_vocab, int32_t *ids, uint32_t n)
{
    t_rng rng = {42};
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)t_below(&rng, n_vocab);
}

static digest run(const char *dir, const char *isa, uint32_t n_threads, uint32_t n_chunk,
                  uint32_t n_prompt)
{
    coli_model *m = world_open(dir, n_threads, isa);
    coli_session *s = world_session(m, 256, n_chunk);
    digest d = {.h = 0xCBF29CE484222325u,
                .n_vocab = m->shape.n_vocab,
                .n_layer = m->shape.n_layer,
                .k = m->shape.n_expert_used};
    T_LE(d.n_vocab, N_VOCAB_MAX);
    int32_t ids[N_PROMPT];
    prompt(d.n_vocab, ids, n_prompt);
    T_OK(coli_session_eval(s, ids, n_prompt, on_rows, &d));
    coli_session_destroy(s);
    coli_model_close(m);
    return d;
}

/* All instruction sets x threads x chunks against scalar, one thread, one chunk. */
static void check_everywhere(const char *dir, uint32_t n_prompt)
{
    static const uint32_t threads[] = {1, 2, 5}, chunks[] = {1, 7, 64, 512};
    const digest want = run(dir, "scalar", 1, 512, n_prompt);
    for (const char *const *isa = world_isas(); *isa; isa++)
        for (size_t t = 0; t < 3; t++)
            for (size_t c = 0; c < 4; c++) {
                if (!strcmp(*isa, "scalar") && threads[t] == 5)
                    continue; // slow, and says nothing new
                const digest got = run(dir, *isa, threads[t], chunks[c], n_prompt);
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
    static const char *const formats[][2] = {{"f32", "f32"},
                                             {"bf16", "bf16"},
                                             {"int8-g32-f32", "int4-row-f16"},
                                             {"int4-g32-f16", "int8-row-f32"}};
    for (size_t i = 0; i < 4; i++) {
        char *dir = world_container(TEST_FIXTURES "/qwen36-tiny-c", "qwen36-tiny-c", formats[i][0],
                                    formats[i][1]);
        check_everywhere(dir, 70);
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
    prompt(n_vocab, ids, N);
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

#if defined(__x86_64__)
static bool hash_piece(void *user, const coli_piece *piece)
{
    mix(user, &piece->id, sizeof piece->id);
    mix(user, piece->text, piece->n_bytes);
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
    mix(&d, file.data, file.n_bytes);
    coli__buf_finish(&file);
    free(dir);
    return d.h;
}

T_TEST(host_float_modes)
{
    T_BEGIN;
    enum { FTZ_DAZ = 0x8040, UP = 0x4000, TO_ZERO = 0x6000, CONTROL = 0xFFC0 };
    static const unsigned modes[] = {FTZ_DAZ, UP, FTZ_DAZ | TO_ZERO};
    const digest want = run(TEST_MODELS "/hummingbird", NULL, 2, 64, 40);
    const uint64_t turn = chat_turn(), container = converted("modes");
    const unsigned before = _mm_getcsr();
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "modes%d", i);
        _mm_setcsr(before | modes[i]);
        const digest got = run(TEST_MODELS "/hummingbird", NULL, 2, 64, 40);
        const uint64_t got_turn = chat_turn(), got_container = converted(name);
        const unsigned after = _mm_getcsr();
        _mm_setcsr(before);
        T_EQ(after & CONTROL, (before | modes[i]) & CONTROL); // given back as it was
        T_MEM(got.last, want.last, want.n_vocab * sizeof(float));
        T_EQ(got.h, want.h);
        T_EQ(got_turn, turn);
        T_EQ(got_container, container);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(demo_model),
        cmocka_unit_test(other_formats),
        cmocka_unit_test(cut_at_every_position),
#if defined(__x86_64__)
        cmocka_unit_test(host_float_modes),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
