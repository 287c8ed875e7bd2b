/* tied_test.c - a model whose head is its embedding (tie_word_embeddings) computes what one with
 * two equal matrices does, to the bit. */
#include "world.h"

typedef struct copy {
    const coli__st_tensor *embedding;
    bool drop_head;
} copy;

static bool edit(void *ctx, coli__st_out *tensor)
{
    const copy *c = ctx;
    if (strcmp(tensor->name, "lm_head.weight") != 0) return true;
    tensor->data = c->embedding->data;
    return !c->drop_head;
}

static void logits_of(const char *checkpoint, const char *name, const char *trunk, float *out)
{
    static const int32_t ids[] = {3, 1, 4, 1, 5, 9, 2, 6};
    char *dir = world_container(checkpoint, name, "int4", trunk);
    coli_model *m = world_open(dir, 2, NULL);
    coli_session *s = world_session(m, 64, 0);
    T_OK(coli_session_feed(s, ids, 8));
    memcpy(out, coli_session_logits(s), 320 * sizeof *out);
    coli_session_destroy(s);
    coli_model_close(m);
    free(dir);
}

T_TEST(tied_equals_two_copies)
{
    T_BEGIN;
    coli__st *st;
    T_OK(coli__st_open(TEST_FIXTURES "/qwen36-tiny-a/model.safetensors", &st));
    copy c = {.embedding = coli__st_find(st, "model.embed_tokens.weight")};
    T_TRUE(c.embedding != NULL);
    char twice[128], once[128];
    snprintf(twice, sizeof twice, "%s/twice", world_scratch());
    snprintf(once, sizeof once, "%s/once", world_scratch());
    world_checkpoint(TEST_FIXTURES "/qwen36-tiny-a", twice, "", edit, &c);
    c.drop_head = true;
    world_checkpoint(TEST_FIXTURES "/qwen36-tiny-a", once,
                     "s/\"tie_word_embeddings\": false/\"tie_word_embeddings\": true/", edit, &c);
    static const char *const trunks[] = {"f32", "int8"};
    for (int i = 0; i < 2; i++) {
        float a[320], b[320];
        logits_of(twice, "twice", trunks[i], a);
        logits_of(once, "once", trunks[i], b);
        T_MEM(a, b, sizeof a);
    }
    coli__st_close(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tied_equals_two_copies)};
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
