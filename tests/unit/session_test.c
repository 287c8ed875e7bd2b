/* session_test.c - a session's rules: what is refused leaves it as it was; going back works exactly
 * while it may; nothing is allocated per token; the pool is asked no more often than promised. */
#include <pthread.h>

#include "world.h"

#include "libcoli/src/base/memory.h"
#include "libcoli/src/run/session.h"

static coli_model *model;

static int open_model(void **state)
{
    (void)state;
    model = world_open(TEST_MODELS "/hummingbird", 2, NULL);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    coli_model_close(model);
    return 0;
}

static const int32_t some_ids[] = {1, 50, 300, 7, 1000, 20, 3, 2222, 15, 99, 100, 101};
enum { N_SOME = sizeof some_ids / sizeof some_ids[0] };

static float *copy_logits(const coli_session *s)
{
    const size_t n = model->shape.n_vocab * sizeof(float);
    return memcpy(malloc(n), coli_session_logits(s), n);
}

T_TEST(refusals_feed_nothing)
{
    T_BEGIN;
    coli_session *s = world_session(model, 16, 4);
    T_TRUE(coli_session_logits(s) == NULL);
    T_FAILS(coli_session_feed(s, some_ids, 0), COLI_E_INVALID, "no tokens");
    T_OK(coli_session_feed(s, some_ids, 10));
    float *before = copy_logits(s);
    T_FAILS(coli_session_feed(s, some_ids, 7), COLI_E_LIMIT,
            "7 tokens after 10 do not fit a context of 16");
    const int32_t bad[] = {1, 2, (int32_t)model->shape.n_vocab}, negative[] = {-1};
    T_FAILS(coli_session_feed(s, bad, 3), COLI_E_INVALID, "token 2");
    T_FAILS(coli_session_feed(s, negative, 1), COLI_E_INVALID, "id -1");
    T_EQ(coli_session_pos(s), 10);
    T_MEM(coli_session_logits(s), before, model->shape.n_vocab * sizeof(float));
    free(before);
    T_OK(coli_session_feed(s, some_ids, 6)); // exactly full
    T_EQ(coli_session_pos(s), 16);
    coli_session_destroy(s);
}

/* What is said about a session's memory is what it takes.  A sanitizer's heap rounds up to an eighth. */
#ifdef __SANITIZE_THREAD__
enum { ROUNDED_UP = 8 };
#else
enum { ROUNDED_UP = 50 };
#endif

static void takes_what_is_said(coli_model *m)
{
    static const uint32_t cases[][3] = {{64, 1, COLI_KV_F16},   {64, 16, COLI_KV_F32},
                                        {512, 64, COLI_KV_F16}, {4096, 512, COLI_KV_F16},
                                        {4096, 1, COLI_KV_F32}, {4096, 1, COLI_KV_F16}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        coli_session_opts o = {.struct_size = sizeof o,
                               .n_ctx = cases[i][0],
                               .n_chunk = cases[i][1],
                               .kv = cases[i][2]};
        coli__state_bytes b;
        T_OK(coli__session_bytes(m, &o, 2, m->store != NULL, &b));
        const uint64_t said = b.kv + b.state + b.scratch, before = coli__memory_allocated();
        coli_session *s = world_session_kv(m, o.n_ctx, o.n_chunk, (coli_kv)o.kv);
        const uint64_t taken = coli__memory_allocated() - before;
        T_LE(taken, said + said / ROUNDED_UP + 16384);
        T_GE(taken, said - said / 50);
        coli_session_destroy(s);
    }
}

T_TEST(memory_is_known_before_it_is_taken)
{
    T_BEGIN;
    if (coli__memory_allocated() == 0) skip(); // the system does not tell
    takes_what_is_said(model);
    const coli_model_opts reads = {
        .struct_size = sizeof reads, .n_threads = 2, .backend = "none", .ram_experts = 4};
    coli_model *m;
    T_OK(coli_model_open(TEST_MODELS "/hummingbird", &reads, &m));
    takes_what_is_said(m);
    coli_model_close(m);
    coli_session_opts o = {.struct_size = sizeof o};
    coli__state_bytes b;
    T_OK(coli__session_bytes(model, &o, 2, false, &b));
    T_EQ(o.n_ctx, 4096);
    T_EQ(o.n_chunk, 512);
    // keys and values: 2 of the 8 layers have attention, with 2 heads of 64 numbers for each token
    T_EQ(b.kv, 2 * 2 * 2 * 64 * 4096 * sizeof(uint16_t));
    o.kv = COLI_KV_F32;
    T_OK(coli__session_bytes(model, &o, 2, false, &b));
    T_EQ(b.kv, 2 * 2 * 2 * 64 * 4096 * sizeof(float));
    o.n_ctx = 5000;
    T_FAILS(coli__session_bytes(model, &o, 2, false, &b), COLI_E_INVALID, "at most 4096");
}

T_TEST(options_are_checked)
{
    T_BEGIN;
    coli_session *s;
    coli_session_opts o = {.struct_size = sizeof o, .n_ctx = 5000};
    T_FAILS(coli_session_create(model, &o, &s), COLI_E_INVALID, "at most 4096");
    T_TRUE(s == NULL);
    o = (coli_session_opts){.struct_size = 2};
    T_FAILS(coli_session_create(model, &o, &s), COLI_E_INVALID, "struct_size");
    o = (coli_session_opts){.struct_size = sizeof o, .kv = 2};
    T_FAILS(coli_session_create(model, &o, &s), COLI_E_INVALID, "kv is 2");
    // an older caller, who knows of no kv
    o = (coli_session_opts){.struct_size = offsetof(coli_session_opts, kv), .n_ctx = 8, .kv = 2};
    T_OK(coli_session_create(model, &o, &s));
    coli_session_destroy(s);
    struct {
        coli_session_opts o;
        uint32_t newer;
    } grown = {{.struct_size = sizeof grown, .n_ctx = 8}, 0};
    T_OK(coli_session_create(model, &grown.o, &s)); // a newer caller that asks for nothing new
    coli_session_destroy(s);
    grown.newer = 1;
    T_FAILS(coli_session_create(model, &grown.o, &s), COLI_E_UNSUPPORTED, "does not know");
    coli_model *m;
    const coli_model_opts isa = {.struct_size = sizeof isa, .isa = "sse9"};
    T_FAILS(coli_model_open(TEST_MODELS "/hummingbird", &isa, &m), COLI_E_INVALID, "avx2");
    T_FAILS(coli_model_open("/nonexistent", NULL, &m), COLI_E_NOTFOUND, "/nonexistent");
}

/* Its recurrent part comes from other keys and values than the session holds. */
T_TEST(restore_refuses_another_kv)
{
    T_BEGIN;
    coli_session *a = world_session(model, 64, 0), *b = world_session_kv(model, 64, 0, COLI_KV_F32);
    T_OK(coli_session_feed(a, some_ids, 6));
    T_OK(coli_session_feed(b, some_ids, 6));
    coli_snapshot *snap;
    T_OK(coli_session_snapshot(a, &snap));
    T_OK(coli_session_restore(a, snap));
    T_FAILS(coli_session_restore(b, snap), COLI_E_INVALID, "f16, the session in f32");
    T_EQ(coli_session_pos(b), 6);
    coli_snapshot_destroy(snap);
    coli_session_destroy(a);
    coli_session_destroy(b);
}

T_TEST(restore_is_exact)
{
    T_BEGIN;
    coli_session *s = world_session(model, 64, 512);
    T_OK(coli_session_feed(s, some_ids, 5));
    coli_snapshot *snap;
    T_OK(coli_session_snapshot(s, &snap));
    float *at5 = copy_logits(s);
    T_OK(coli_session_feed(s, some_ids + 5, N_SOME - 5));
    float *at_end = copy_logits(s);

    T_OK(coli_session_restore(s, snap));
    T_EQ(coli_session_pos(s), 5);
    T_MEM(coli_session_logits(s), at5, model->shape.n_vocab * sizeof(float));
    T_OK(coli_session_feed(s, some_ids + 5, N_SOME - 5));
    T_MEM(coli_session_logits(s), at_end, model->shape.n_vocab * sizeof(float));

    coli_session_reset(s); // the same tokens again make the snapshot valid again
    T_FAILS(coli_session_restore(s, snap), COLI_E_INVALID, "no longer holds");
    T_OK(coli_session_feed(s, some_ids + 1, 6));
    T_FAILS(coli_session_restore(s, snap), COLI_E_INVALID, "no longer holds");
    coli_session_reset(s);
    T_OK(coli_session_feed(s, some_ids, 6));
    T_OK(coli_session_restore(s, snap));
    T_OK(coli_session_feed(s, some_ids + 5, N_SOME - 5));
    T_MEM(coli_session_logits(s), at_end, model->shape.n_vocab * sizeof(float));

    free(at5);
    free(at_end);
    coli_session_destroy(s);
    coli_snapshot_destroy(snap); // outlives its session
}

static bool ignore_piece(void *user, const coli_piece *piece)
{
    *(uint32_t *)user += (uint32_t)piece->n_bytes;
    return true;
}

T_TEST(no_allocation_per_token)
{
    T_BEGIN;
    coli_session *s = world_session(model, 256, 64);
    T_OK(coli_session_feed(s, some_ids, N_SOME));
    const coli_sampling sampling = {.struct_size = sizeof sampling,
                                    .temperature = 1,
                                    .top_k = 40,
                                    .top_p = 0.9f,
                                    .min_p = 0.01f,
                                    .repetition_penalty = 1.1f,
                                    .seed = 3};
    const coli_generate_opts o = {
        .struct_size = sizeof o, .max_tokens = 100, .sampling = &sampling, .no_stop_tokens = true};
    coli_result r = {.struct_size = sizeof r};
    uint32_t n_bytes = 0;
    const uint64_t before = coli__alloc_count();
    T_OK(coli_generate(s, &o, ignore_piece, &n_bytes, &r));
    T_EQ(coli__alloc_count(), before);
    T_EQ(r.n_generated, 100);
    T_EQ(r.stop, COLI_STOP_LENGTH);
    const uint64_t before_feed = coli__alloc_count();
    T_OK(coli_session_feed(s, some_ids, N_SOME)); // nor in prefill
    T_EQ(coli__alloc_count(), before_feed);
    coli_session_destroy(s);
}

/* Per layer: project, heads, finish, and the two of the MoE; one more for the head.  Many rows add
 * the norm, and in attention layers the keys. */
T_TEST(synchronisations)
{
    T_BEGIN;
    enum { N_LAYER = 8, N_ATTENTION = 2, N_ROWS = 40 };
    coli_session *s = world_session(model, 256, 64);
    T_OK(coli_session_feed(s, some_ids, 1));
    uint64_t before = coli__pool_n_sync(model->pool);
    T_OK(coli_session_feed(s, some_ids, 1));
    T_EQ(coli__pool_n_sync(model->pool) - before, N_LAYER * (3 + 2) + 1);

    int32_t ids[N_ROWS];
    for (int i = 0; i < N_ROWS; i++) ids[i] = some_ids[i % N_SOME];
    before = coli__pool_n_sync(model->pool);
    T_OK(coli_session_feed(s, ids, N_ROWS));
    T_EQ(coli__pool_n_sync(model->pool) - before, N_LAYER * (4 + 2) + N_ATTENTION + 1);
    coli_session_destroy(s);
}

T_TEST(context_end)
{
    T_BEGIN;
    coli_session *s = world_session(model, 20, 64);
    T_OK(coli_session_feed(s, some_ids, N_SOME));
    const coli_generate_opts o = {.struct_size = sizeof o, .no_stop_tokens = true};
    coli_result r = {.struct_size = sizeof r};
    T_OK(coli_generate(s, &o, NULL, NULL, &r));
    T_EQ(r.stop, COLI_STOP_CONTEXT);
    T_EQ(coli_session_pos(s), 20);
    T_EQ(r.n_generated, 20 - N_SOME + 1); // the last one is made but has no room to be fed
    coli_session_destroy(s);
}

static bool cancel_at_5(void *user, const coli_piece *piece)
{
    (void)piece;
    coli_session *s = user;
    if (coli_session_pos(s) == N_SOME + 5) coli_session_cancel(s);
    return true;
}

T_TEST(cancel)
{
    T_BEGIN;
    coli_session *s = world_session(model, 256, 64);
    T_OK(coli_session_feed(s, some_ids, N_SOME));
    const coli_generate_opts o = {.struct_size = sizeof o, .no_stop_tokens = true};
    coli_result r = {.struct_size = sizeof r};
    T_OK(coli_generate(s, &o, cancel_at_5, s, &r));
    T_EQ(r.stop, COLI_STOP_CANCELLED);
    T_EQ(r.n_generated, 6);
    T_OK(coli_session_feed(s, some_ids, 1)); // a later call starts afresh
    coli_session_destroy(s);
}

T_TEST(sampling_is_reproducible)
{
    T_BEGIN;
    coli_sampling sampling = {.struct_size = sizeof sampling};
    T_OK(coli_sampling_default(model, &sampling));
    sampling.temperature = 1.5f;
    int32_t first[40], again[40], other[40];
    int32_t *const runs[] = {first, again, other};
    for (int i = 0; i < 3; i++) {
        coli_session *s = world_session(model, 256, 64);
        T_OK(coli_session_feed(s, some_ids, N_SOME));
        coli_session_seed(s, i == 2 ? 8 : 7);
        for (int t = 0; t < 40; t++) {
            T_OK(coli_session_sample(s, &sampling, &runs[i][t]));
            T_OK(coli_session_feed(s, &runs[i][t], 1));
        }
        coli_session_destroy(s);
    }
    T_MEM(first, again, sizeof first);
    T_TRUE(memcmp(first, other, sizeof first) != 0);
    sampling.top_p = 2;
    coli_session *s = world_session(model, 256, 64);
    T_FAILS(coli_session_sample(s, &sampling, first), COLI_E_INVALID, "top_p");
    sampling.top_p = 1;
    T_FAILS(coli_session_sample(s, &sampling, first), COLI_E_INVALID, "no logits");
    coli_session_destroy(s);
}

/* A penalty that decides: the next token is one that was not seen, or not made, before. */
static int32_t next_with(coli_session *s, float repetition, float presence)
{
    const coli_sampling p = {.struct_size = sizeof p,
                             .top_p = 1,
                             .repetition_penalty = repetition,
                             .presence_penalty = presence};
    int32_t id;
    T_OK(coli_session_sample(s, &p, &id));
    return id;
}

T_TEST(a_turn_forgets_what_the_one_before_made)
{
    T_BEGIN;
    coli_session *s = world_session(model, 64, 64);
    T_OK(coli_session_feed(s, some_ids, N_SOME));
    coli_snapshot *snap;
    T_OK(coli_session_snapshot(s, &snap));
    const int32_t first = next_with(s, 1, 100);
    T_NE(next_with(s, 1, 100), first); // made once: penalised
    coli_session_seed(s, 0);
    T_EQ(next_with(s, 1, 100), first);
    T_OK(coli_session_restore(s, snap));
    T_EQ(next_with(s, 1, 100), first);
    coli_session_reset(s);
    T_OK(coli_session_feed(s, some_ids, N_SOME));
    T_EQ(next_with(s, 1, 100), first);
    const coli_generate_opts o = {.struct_size = sizeof o, .max_tokens = 3, .no_stop_tokens = true};
    T_OK(coli_session_restore(s, snap));
    T_OK(coli_generate(s, &o, NULL, NULL, NULL));
    T_OK(coli_session_restore(s, snap));
    T_EQ(next_with(s, 1, 100), first);
    coli_snapshot_destroy(snap);
    coli_session_destroy(s);
}

/* repetition_penalty looks at `seen`: the counts of the tokens that are in the sequence now. */
static void check_seen(const coli_session *s)
{
    uint32_t *want = calloc(model->shape.n_vocab, sizeof *want);
    for (uint32_t i = 0; i < s->pos; i++) want[s->ids[i]]++;
    T_MEM(s->seen, want, model->shape.n_vocab * sizeof *want);
    free(want);
}

T_TEST(a_penalty_follows_the_sequence)
{
    T_BEGIN;
    coli_session *s = world_session(model, 64, 3);
    T_OK(coli_session_feed(s, some_ids, N_SOME));
    check_seen(s);
    coli_snapshot *snap;
    T_OK(coli_session_snapshot(s, &snap));
    T_OK(coli_session_feed(s, some_ids + 2, 5)); // some of them a second time
    check_seen(s);
    T_OK(coli_session_restore(s, snap));
    check_seen(s);
    const int32_t best = next_with(s, 1, 0);
    s->seen[best]++; // as if it stood in the sequence
    T_NE(next_with(s, 100, 0), best);
    coli_session_reset(s);
    check_seen(s);
    coli_snapshot_destroy(snap);
    coli_session_destroy(s);
}

/* Structs of an older, smaller caller: filled to their end and not beyond.  A result is checked, and
 * zeroed, before anything is done. */
T_TEST(structs_of_other_sizes)
{
    T_BEGIN;
    struct {
        uint32_t struct_size, n_layer, n_expert, guard;
    } old = {.struct_size = 12, .guard = 77};
    T_OK(coli_model_get_info(model, (coli_model_info *)(void *)&old));
    T_EQ(old.n_layer, 8);
    T_EQ(old.n_expert, 64);
    T_EQ(old.guard, 77);

    coli_session *s = world_session(model, 64, 64);
    T_OK(coli_session_feed(s, some_ids, 3));
    struct {
        uint32_t struct_size;
        coli_stop stop;
        uint32_t n_prompt, guard;
    } small = {.struct_size = 12, .guard = 77};
    const coli_generate_opts o = {.struct_size = sizeof o, .max_tokens = 1, .no_stop_tokens = true};
    T_OK(coli_generate(s, &o, NULL, NULL, (coli_result *)(void *)&small));
    T_EQ(small.stop, COLI_STOP_LENGTH);
    T_EQ(small.n_prompt, 3);
    T_EQ(small.guard, 77);
    coli_result r = {0};
    T_FAILS(coli_generate(s, &o, NULL, NULL, &r), COLI_E_INVALID, "struct_size");
    coli_sampling p = {0};
    T_FAILS(coli_sampling_default(model, &p), COLI_E_INVALID, "struct_size");
    coli_session_destroy(s);
}

T_TEST(bytes_of_tokens)
{
    T_BEGIN;
    const coli_tokenizer *tok = coli_model_tokenizer(model);
    size_t n;
    T_MEM(coli_token_bytes(tok, 2, &n), "<|im_end|>", 10);
    T_EQ(n, 10);
    int32_t ids[8];
    size_t n_ids;
    T_OK(coli_tokenize(tok, "\xF0\x9F\xA6\x8A", 4, false, ids, 8, &n_ids)); // one character
    char joined[16];
    size_t at = 0;
    for (size_t i = 0; i < n_ids; i++) {
        const char *bytes = coli_token_bytes(tok, ids[i], &n);
        memcpy(joined + at, bytes, n);
        at += n;
    }
    T_EQ(at, 4);
    T_MEM(joined, "\xF0\x9F\xA6\x8A", 4);
    T_TRUE(coli_token_bytes(tok, -1, &n) == NULL && n == 0);
    T_TRUE(coli_token_bytes(tok, 1 << 24, &n) == NULL && n == 0);
    T_TRUE(coli_token_bytes(NULL, 2, &n) == NULL && n == 0);
}

T_TEST(outputs_are_safe_after_failure)
{
    T_BEGIN;
    size_t n = 99;
    T_FAILS(coli_tokenize(NULL, "x", 1, false, NULL, 0, &n), COLI_E_INVALID, "NULL");
    T_EQ(n, 0);
    coli_text text = {(char *)8, 8};
    T_FAILS(coli_detokenize(NULL, NULL, 0, false, &text), COLI_E_INVALID, "NULL");
    T_TRUE(text.data == NULL && text.n_bytes == 0);
    text = (coli_text){(char *)8, 8};
    T_FAILS(coli_chat_render("3.6", NULL, 0, NULL, 0, &text), COLI_E_INVALID, "NULL");
    T_TRUE(text.data == NULL);
    coli_snapshot *snap = (coli_snapshot *)8;
    T_FAILS(coli_session_snapshot(NULL, &snap), COLI_E_INVALID, "NULL");
    T_TRUE(snap == NULL);
    int32_t id = 99;
    T_FAILS(coli_session_sample(NULL, NULL, &id), COLI_E_INVALID, "NULL");
    T_EQ(id, 0);
    coli_result r = {.struct_size = sizeof r, .n_prompt = 77};
    T_FAILS(coli_generate(NULL, NULL, NULL, NULL, &r), COLI_E_INVALID, "NULL");
    T_EQ(r.n_prompt, 0);
}

/* Two sessions of one model on two threads: each gets what it gets alone. */
static void *run_alone(void *arg)
{
    coli_session *s = arg;
    for (int i = 0; i < N_SOME; i++)
        if (coli_session_feed(s, some_ids + i, 1) != COLI_OK) return NULL;
    return s;
}

T_TEST(sessions_take_turns)
{
    T_BEGIN;
    coli_session *a = world_session(model, 64, 64), *b = world_session(model, 64, 64);
    pthread_t thread;
    void *result;
    T_EQ(pthread_create(&thread, NULL, run_alone, a), 0);
    T_TRUE(run_alone(b) == b);
    T_EQ(pthread_join(thread, &result), 0);
    T_TRUE(result == a);
    T_MEM(coli_session_logits(a), coli_session_logits(b), model->shape.n_vocab * sizeof(float));
    coli_session_destroy(a);
    coli_session_destroy(b);
}

/* Fail the first, second, ... allocation of open and create: a status, a message, nothing leaked.
 */
T_TEST(allocations_may_fail)
{
    T_BEGIN;
    uint64_t n = 1;
    for (coli_status status = COLI_E_NOMEM; status != COLI_OK; n += n / 64 + 1) {
        coli_model *m = NULL;
        coli_session *s = NULL;
        coli_chat *c = NULL;
        coli__alloc_fail_at(n);
        status = coli_model_open(TEST_MODELS "/hummingbird", NULL, &m);
        if (status == COLI_OK) status = coli_session_create(m, NULL, &s);
        if (status == COLI_OK) status = coli_chat_create(s, NULL, &c);
        coli__alloc_fail_at(0);
        if (status != COLI_OK) {
            T_EQ(status, COLI_E_NOMEM);
            T_TRUE(strlen(coli_error_message()) > 0);
        }
        coli_chat_destroy(c);
        coli_session_destroy(s);
        coli_model_close(m);
    }
    T_TRUE(n > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals_feed_nothing),
        cmocka_unit_test(memory_is_known_before_it_is_taken),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(restore_refuses_another_kv),
        cmocka_unit_test(restore_is_exact),
        cmocka_unit_test(no_allocation_per_token),
        cmocka_unit_test(synchronisations),
        cmocka_unit_test(context_end),
        cmocka_unit_test(cancel),
        cmocka_unit_test(sampling_is_reproducible),
        cmocka_unit_test(a_turn_forgets_what_the_one_before_made),
        cmocka_unit_test(a_penalty_follows_the_sequence),
        cmocka_unit_test(structs_of_other_sizes),
        cmocka_unit_test(bytes_of_tokens),
        cmocka_unit_test(outputs_are_safe_after_failure),
        cmocka_unit_test(sessions_take_turns),
        cmocka_unit_test(allocations_may_fail),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
