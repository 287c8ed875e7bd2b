/* forced_swaps.c - a thousand tokens of the demo model (fewer under a sanitizer), and after each of them two experts change places
 * in every layer: the logits of every token are the processor's, to the bit.
 *
 * Every other token the copies are waited for; else they run while the next token is computed, as they
 * do when the tier itself has begun them.  The device is half as large as the experts, and re-plans and
 * corrects on top of that. */
#include "backends.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) // thirty times as long
enum { N_TOKEN = 200 };
#else
enum { N_TOKEN = 1000 };
#endif
enum { N_PROMPT_IDS = 40 };

static uint64_t hash_logits(const coli_session *s, uint32_t n_vocab)
{
    digest d = {.h = 0xCBF29CE484222325u};
    digest_mix(&d, coli_session_logits(s), n_vocab * sizeof(float));
    return d.h;
}

/* The likeliest token, or one that the step names, so that a text that repeats itself goes on. */
static int32_t next_id(const coli_session *s, uint32_t n_vocab, uint32_t step)
{
    const float *y = coli_session_logits(s);
    if (step % 7 == 3) return (int32_t)(step * 2654435761u % n_vocab);
    uint32_t best = 0;
    for (uint32_t v = 1; v < n_vocab; v++)
        if (y[v] > y[best]) best = v;
    return (int32_t)best;
}

/* In each layer one that is there goes, one that is not comes. */
static void force(coli_model *m, uint32_t step)
{
    for (uint32_t l = 0; l < coli__container_n_expert_layer(m->container); l++) {
        const coli__ct_experts *layer = coli__container_experts(m->container, l);
        const uint32_t n = layer->n_expert;
        coli__slot slot;
        uint32_t out = 0, in = 0;
        while (out < n && !coli__tier_find(m->tier, layer, (step + out) % n, &slot)) out++;
        while (in < n && coli__tier_find(m->tier, layer, (step + in) % n, &slot)) in++;
        if (out < n && in < n)
            coli__tier_swap(m->tier,
                            (coli__swap){l * n + (step + in) % n, l * n + (step + out) % n});
    }
    if (step % 2) coli__tier_settle(m->tier);
}

static void run(coli_model *m, bool is_first, int32_t *ids, uint64_t *hashes)
{
    const uint32_t n_vocab = m->shape.n_vocab;
    int32_t prompt[N_PROMPT_IDS];
    digest_prompt(n_vocab, prompt, N_PROMPT_IDS);
    coli_session *s = world_session(m, N_PROMPT_IDS + N_TOKEN, 16);
    T_OK(coli_session_feed(s, prompt, N_PROMPT_IDS));
    for (uint32_t i = 0; i < N_TOKEN; i++) {
        const uint64_t h = hash_logits(s, n_vocab);
        if (is_first) {
            hashes[i] = h;
            ids[i] = next_id(s, n_vocab, i);
        } else if (hashes[i] != h) {
            fail_msg("token %u: other logits than the processor's", i);
        }
        if (m->tier) force(m, i);
        T_OK(coli_session_feed(s, &ids[i], 1));
    }
    coli_session_destroy(s);
}

T_TEST(logits_of_every_token)
{
    T_BEGIN;
    static int32_t ids[N_TOKEN];
    static uint64_t hashes[N_TOKEN];
    coli_model *m = world_open(TEST_MODELS "/hummingbird", 2, NULL);
    run(m, true, ids, hashes);
    const uint32_t n_layer = coli__container_n_expert_layer(m->container);
    coli_model_close(m);

    coli_model_opts opts = backend_opts(50, false, NULL);
    opts.replan_with = COLI_REPLAN_ONLINE;
    T_OK(coli_model_open(TEST_MODELS "/hummingbird", &opts, &m));
    const uint64_t n = backend_stats(m).n_expert;
    run(m, false, ids, hashes);
    coli__tier_settle(m->tier);
    T_TRUE(coli__tier_is_sound(m->tier));
    const coli_backend_stats s = backend_stats(m);
    print_message("    %u swaps, %.1f %% of the pairs on the device\n", (uint32_t)s.n_swap,
                  100. * (double)s.n_row_device / (double)(s.n_row_device + s.n_row_host));
    T_EQ(s.n_expert, n);
    T_EQ(s.n_row_again + s.n_call_failed + s.n_swap_failed, 0);
    T_GE(s.n_swap, N_TOKEN * n_layer * 9 / 10);
    coli_model_close(m);
}

int main(int argc, char **argv)
{
    if (!backend_from(argc, argv)) return 2;
    if (!backend_is_there()) return SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_of_every_token)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
