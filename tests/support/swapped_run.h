/* swapped_run.h - a prompt in chunks and six tokens on qwen36-tiny-a, with a swap of two experts in every
 * layer after each token: a short run in which a plugin's every entry is called. */
#ifndef COLI_TEST_SWAPPED_RUN_H
#define COLI_TEST_SWAPPED_RUN_H

#include "backends.h"
#include "shim.h"

enum { RUN_TOKENS = 6, RUN_VOCAB = 320, RUN_LAYERS = 8, RUN_EXPERTS = 16, RUN_CHUNK = 4 };
enum { RUN_ROWS = RUN_TOKENS + 1, RUN_FLOATS = RUN_ROWS * RUN_VOCAB };

/* The host's limit: long enough for a busy machine.  The shim pretends that it has passed. */
enum { RUN_WAIT_MS = 4000, RUN_PRETENDED_US = 500 };

static char *run_dir;              // the container
static float run_want[RUN_FLOATS]; // what the processor alone gives

/* The first expert from `from` on, and around, that is (not) on a device; false when there is none. */
static inline bool run_find(const coli_model *m, const coli__ct_experts *layer, bool resident,
                            uint32_t from, uint32_t *e)
{
    coli__slot slot;
    for (uint32_t i = 0; i < layer->n_expert; i++) {
        *e = (from + i) % layer->n_expert;
        if (coli__tier_find(m->tier, layer, *e, &slot) == resident) return true;
    }
    return false;
}

/* One swap in every layer, and wait for them. */
static inline void run_swap(coli_model *m, uint32_t round)
{
    for (uint32_t i = 0; i < coli__container_n_expert_layer(m->container); i++) {
        const coli__ct_experts *layer = coli__container_experts(m->container, i);
        uint32_t leaving, coming;
        if (run_find(m, layer, true, round, &leaving) && run_find(m, layer, false, 0, &coming))
            coli__tier_swap(
                m->tier, (coli__swap){i * layer->n_expert + coming, i * layer->n_expert + leaving});
    }
    coli__tier_settle(m->tier);
}

/* Logits after the prompt and after each of the tokens: out (RUN_ROWS, RUN_VOCAB). */
static inline void run_swapped(coli_model *m, float *out)
{
    static const int32_t prompt[] = {3, 141, 59, 26, 5, 35, 89, 79, 32, 38};
    coli_session *s = world_session(m, 32, RUN_CHUNK);
    T_OK(coli_session_feed(s, prompt, sizeof prompt / sizeof *prompt));
    for (uint32_t i = 0;; i++) {
        memcpy(out + i * RUN_VOCAB, coli_session_logits(s), RUN_VOCAB * sizeof *out);
        if (i == RUN_TOKENS) break;
        if (m->tier) run_swap(m, i);
        int32_t id = 0;
        for (int32_t v = 1; v < RUN_VOCAB; v++)
            if (out[i * RUN_VOCAB + (uint32_t)v] > out[i * RUN_VOCAB + (uint32_t)id]) id = v;
        T_OK(coli_session_feed(s, &id, 1));
    }
    coli_session_destroy(s);
}

/* Open, run, compare.  False when it could not be opened, which has to name the backend. */
static inline bool run_is_same(const coli_model_opts *given, coli_backend_stats *stats)
{
    coli_model_opts opts = *given;
    if (opts.backend_wait_ms == 0) opts.backend_wait_ms = RUN_WAIT_MS;
    shim.wait_us = RUN_PRETENDED_US;
    *stats = (coli_backend_stats){.struct_size = sizeof *stats};
    coli_model *m;
    world_next_shape();
    const coli_status status = coli_model_open(run_dir, &opts, &m);
    if (status != COLI_OK) {
        T_TRUE(status == COLI_E_UNSUPPORTED || status == COLI_E_IO);
        T_TRUE(strstr(coli_error_message(), backend_name) != NULL);
        return false;
    }
    float got[RUN_FLOATS];
    run_swapped(m, got);
    coli__tier_settle(m->tier); // what the tier itself has begun
    *stats = backend_stats(m);
    T_TRUE(coli__tier_is_sound(m->tier));
    coli_model_close(m);
    T_MEM(got, run_want, sizeof got);
    return true;
}

/* cmocka's group setup and teardown. */
static inline int run_setup(void **state)
{
    (void)state;
    run_dir = world_container(TEST_FIXTURES "/qwen36-tiny-a", "tiny", "int4", "int8");
    coli_model *m = world_open(run_dir, 2, NULL);
    T_EQ(m->shape.n_vocab, RUN_VOCAB);
    T_EQ(m->shape.n_moe_layer, RUN_LAYERS);
    T_EQ(m->shape.n_expert, RUN_EXPERTS);
    run_swapped(m, run_want);
    coli_model_close(m);
    coli__device_hook = shim_hook;
    return 0;
}

static inline int run_teardown(void **state)
{
    free(run_dir);
    return world_teardown(state);
}

#endif
