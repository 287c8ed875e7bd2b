/* digest.h - all logits and routing of a prompt as one number. */
#ifndef COLI_TEST_DIGEST_H
#define COLI_TEST_DIGEST_H

#include "world.h"

#include "libcoli/src/run/session.h"

enum { N_PROMPT = 150, N_VOCAB_MAX = 4096 };

/* FNV-1a over the bytes, row by row. */
typedef struct digest {
    uint64_t h;
    uint32_t n_vocab, n_layer, k;
    float last[N_VOCAB_MAX];
} digest;

static inline void digest_mix(digest *d, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) d->h = (d->h ^ ((const uint8_t *)bytes)[i]) * 0x100000001B3u;
}

static inline bool digest_rows(void *user, uint32_t pos, uint32_t n_row, const float *logits,
                               const int32_t *expert_ids, const float *expert_w)
{
    (void)pos;
    digest *d = user;
    for (uint32_t r = 0; r < n_row; r++) {
        digest_mix(d, logits + (size_t)r * d->n_vocab, d->n_vocab * sizeof(float));
        for (uint32_t l = 0; l < d->n_layer; l++) {
            const size_t at = ((size_t)l * n_row + r) * d->k;
            digest_mix(d, expert_ids + at, d->k * sizeof(int32_t));
            digest_mix(d, expert_w + at, d->k * sizeof(float));
        }
    }
    memcpy(d->last, logits + (size_t)(n_row - 1) * d->n_vocab, d->n_vocab * sizeof(float));
    return true;
}

static inline void digest_prompt(uint32_t n_vocab, int32_t *ids, uint32_t n)
{
    t_rng rng = {42};
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)t_below(&rng, n_vocab);
}

/* From where the session stands. */
static inline digest digest_in(coli_session *s, uint32_t n_prompt)
{
    const coli_model *m = s->m;
    digest d = {.h = 0xCBF29CE484222325u,
                .n_vocab = m->shape.n_vocab,
                .n_layer = m->shape.n_layer,
                .k = m->shape.n_expert_used};
    T_LE(d.n_vocab, N_VOCAB_MAX);
    int32_t ids[N_PROMPT];
    digest_prompt(d.n_vocab, ids, n_prompt);
    T_OK(coli_session_eval(s, ids, n_prompt, digest_rows, &d));
    return d;
}

/* With an open model. */
static inline digest digest_kv(coli_model *m, coli_kv kv, uint32_t n_chunk, uint32_t n_prompt)
{
    coli_session *s = world_session_kv(m, 256, n_chunk, kv);
    const digest d = digest_in(s, n_prompt);
    coli_session_destroy(s);
    return d;
}

static inline digest digest_of(coli_model *m, uint32_t n_chunk, uint32_t n_prompt)
{
    return digest_kv(m, COLI_KV_F16, n_chunk, n_prompt);
}

static inline digest digest_run(const char *dir, const char *isa, uint32_t n_threads,
                                uint32_t n_chunk, uint32_t n_prompt)
{
    coli_model *m = world_open(dir, n_threads, isa);
    const digest d = digest_of(m, n_chunk, n_prompt);
    coli_model_close(m);
    return d;
}

/* The formats that the demo model does not use: of the experts, of the rest. */
enum { N_FORMAT = 4, N_FORMAT_PROMPT = 70 };
static const char *const digest_formats[N_FORMAT][2] = {{"f32", "f32"},
                                                        {"bf16", "bf16"},
                                                        {"int8-g32-f32", "int4-row-f16"},
                                                        {"int4-g32-f16", "int8-row-f32"}};

/* A small model in one of them, malloc'd. */
static inline char *digest_container(size_t i)
{
    return world_container(TEST_FIXTURES "/qwen36-tiny-c", "qwen36-tiny-c", digest_formats[i][0],
                           digest_formats[i][1]);
}

#endif
