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
T_TEST(host_float_modes)
{
    T_BEGIN;
    enum { FTZ_DAZ_ROUND_UP = 0x8040 | 0x4000 };
    const digest want = run(TEST_MODELS "/hummingbird", NULL, 2, 64, 40);
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | FTZ_DAZ_ROUND_UP);
    const digest got = run(TEST_MODELS "/hummingbird", NULL, 2, 64, 40);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    T_EQ(after & 0xFFC0, (before | FTZ_DAZ_ROUND_UP) & 0xFFC0); // given back as it was
    T_MEM(got.last, want.last, want.n_vocab * sizeof(float));
    T_EQ(got.h, want.h);
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
