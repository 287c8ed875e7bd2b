/* record_test.c - recorded routing: what a session's callback is told, what becomes of it in files, and
 * how far the demo model's choices are those that another implementation recorded. */
#include "backends.h"

#include "libcoli/src/model/trace.h"

enum { N_ROW = 90, K = 6, N_LAYER = 8, RANKED = 16 };

static coli_model *model;

static int open_model(void **state)
{
    (void)state;
    model = world_open(TEST_MODELS "/hummingbird", 2, NULL);
    return 0;
}

static int close_all(void **state)
{
    coli_model_close(model);
    return world_teardown(state);
}

static void prompt_ids(int32_t *ids)
{
    digest_prompt(model->shape.n_vocab, ids, N_ROW);
}

static const char *path_of(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", world_scratch(), name);
    return path;
}

/* -- the callback ------------------------------------------------------------------------------ */

typedef struct heard {
    int32_t experts[N_LAYER][N_ROW][K], ranked[N_LAYER][N_ROW][RANKED];
    float weights[N_LAYER][N_ROW][K], mass[N_LAYER][N_ROW][RANKED];
    uint32_t n_row, n_call, n_vram, n_disk;
} heard;

static void hear(void *user, const coli_route *r)
{
    heard *h = user;
    T_EQ(r->struct_size, sizeof *r);
    T_EQ(r->n_layer, N_LAYER);
    T_EQ(r->n_expert_used, K);
    T_EQ(r->n_ranked, RANKED);
    T_EQ(r->pos, h->n_row);
    for (uint32_t l = 0; l < N_LAYER; l++)
        for (uint32_t t = 0; t < r->n_row; t++) {
            const size_t at = (size_t)l * r->n_row + t, to = h->n_row + t;
            memcpy(h->experts[l][to], r->experts + at * K, sizeof h->experts[l][to]);
            memcpy(h->weights[l][to], r->weights + at * K, sizeof h->weights[l][to]);
            memcpy(h->ranked[l][to], r->ranked + at * RANKED, sizeof h->ranked[l][to]);
            memcpy(h->mass[l][to], r->mass + at * RANKED, sizeof h->mass[l][to]);
            for (uint32_t k = 0; k < K; k++) {
                h->n_vram += r->levels[at * K + k] == COLI_LEVEL_VRAM;
                h->n_disk += r->levels[at * K + k] == COLI_LEVEL_DISK;
            }
        }
    h->n_row += r->n_row;
    h->n_call++;
}

static bool compare_rows(void *user, uint32_t pos, uint32_t n_row, const float *logits,
                         const int32_t *expert_ids, const float *expert_w)
{
    const heard *h = user;
    (void)logits;
    for (uint32_t l = 0; l < N_LAYER; l++)
        for (uint32_t t = 0; t < n_row; t++) {
            const size_t at = ((size_t)l * n_row + t) * K;
            T_MEM(h->experts[l][pos + t], expert_ids + at, K * sizeof *expert_ids);
            T_MEM(h->weights[l][pos + t], expert_w + at, K * sizeof *expert_w);
        }
    return true;
}

static heard *listen(coli_model *m, uint32_t n_chunk)
{
    int32_t ids[N_ROW];
    prompt_ids(ids);
    heard *h = calloc(1, sizeof *h);
    coli_session *s = world_session(m, 128, n_chunk);
    T_OK(coli_session_on_route(s, hear, h));
    T_OK(coli_session_feed(s, ids, N_ROW - 3));
    for (int i = 3; i > 0; i--) T_OK(coli_session_feed(s, ids + N_ROW - i, 1));
    T_EQ(h->n_row, N_ROW);
    T_EQ(h->n_call, (N_ROW - 3 + n_chunk - 1) / n_chunk + 3);
    T_OK(coli_session_on_route(s, NULL, NULL)); // and then nobody is told
    T_OK(coli_session_feed(s, ids, 1));
    T_EQ(h->n_row, N_ROW);
    coli_session_destroy(s);
    return h;
}

T_TEST(the_callback_is_told_what_eval_is)
{
    T_BEGIN;
    int32_t ids[N_ROW];
    prompt_ids(ids);
    heard *h = listen(model, 512), *cut = listen(model, 7);
    T_MEM(h->experts, cut->experts, sizeof h->experts);
    T_MEM(h->mass, cut->mass, sizeof h->mass);
    coli_session *s = world_session(model, 128, 512);
    T_OK(coli_session_eval(s, ids, N_ROW, compare_rows, h));
    coli_session_destroy(s);
    free(h);
    free(cut);
}

/* Both at once: each sees the same. */
T_TEST(eval_is_heard_too)
{
    T_BEGIN;
    int32_t ids[N_ROW];
    prompt_ids(ids);
    heard *h = listen(model, 512), *again = calloc(1, sizeof *again);
    coli_session *s = world_session(model, 128, 512);
    T_OK(coli_session_on_route(s, hear, again));
    T_OK(coli_session_eval(s, ids, N_ROW, compare_rows, h));
    T_MEM(again->experts, h->experts, sizeof h->experts);
    T_MEM(again->ranked, h->ranked, sizeof h->ranked);
    T_EQ(again->n_row, N_ROW);
    coli_session_destroy(s);
    free(h);
    free(again);
}

/* Without a lever in between, what is used is what the router ranks first, and weights are masses of
 * the chosen, renormalised. */
T_TEST(masses_are_shares_of_all)
{
    T_BEGIN;
    heard *h = listen(model, 512);
    for (int l = 0; l < N_LAYER; l++)
        for (int t = 0; t < N_ROW; t++) {
            const float *mass = h->mass[l][t];
            double sum = 0, chosen = 0;
            T_MEM(h->ranked[l][t], h->experts[l][t], sizeof h->experts[l][t]);
            for (int i = 0; i < RANKED; i++) {
                sum += (double)mass[i];
                if (i < K) chosen += (double)mass[i];
                if (i > 0) T_FLE(mass[i], mass[i - 1]);
            }
            T_FLE(sum, 1.0 + 1e-6);
            T_FGE(mass[RANKED - 1], 0);
            for (int i = 0; i < K; i++)
                T_FLE(fabs((double)mass[i] / chosen - (double)h->weights[l][t][i]), 1e-6);
        }
    free(h);
}

T_TEST(levels_are_those_of_the_devices)
{
    T_BEGIN;
    static const double percents[] = {0, 50, 100};
    heard *bare = listen(model, 512);
    T_EQ(bare->n_vram, 0);
    for (int i = 0; i < 3; i++) {
        const coli_model_opts opts = backend_opts(percents[i], false, NULL);
        coli_model *m;
        T_OK(coli_model_open(TEST_MODELS "/hummingbird", &opts, &m));
        heard *h = calloc(1, sizeof *h);
        int32_t ids[N_ROW];
        prompt_ids(ids);
        coli_session *s = world_session(m, 128, 40);
        T_OK(coli_session_on_route(s, hear, h));
        T_OK(coli_session_feed(s, ids, N_ROW));
        T_EQ(h->n_vram, backend_stats(m).n_row_device);
        T_EQ(h->n_vram > 0, percents[i] > 0);
        T_MEM(h->experts, bare->experts, sizeof h->experts);
        coli_session_destroy(s);
        coli_model_close(m);
        free(h);
    }
    free(bare);
}

/* What a device failed at is computed from memory. */
T_TEST(levels_after_a_device_failed)
{
    T_BEGIN;
    coli_model *m;
    const coli_model_opts opts = backend_opts(50, false, "fail=group_take:20");
    T_OK(coli_model_open(TEST_MODELS "/hummingbird", &opts, &m));
    heard *h = calloc(1, sizeof *h);
    int32_t ids[N_ROW];
    prompt_ids(ids);
    coli_session *s = world_session(m, 128, 40);
    T_OK(coli_session_on_route(s, hear, h));
    T_OK(coli_session_feed(s, ids, N_ROW));
    T_TRUE(backend_stats(m).n_row_again > 0);
    T_TRUE(h->n_vram > 0);
    T_EQ(h->n_disk, 0);
    coli_session_destroy(s);
    coli_model_close(m);
    free(h);
}

/* Experts of each layer in memory, 10 of 64: one row after another, an expert is read whenever it is
 * not among them, for the rows that use it. */
T_TEST(levels_are_those_of_the_store)
{
    T_BEGIN;
    const coli_model_opts opts = {.struct_size = sizeof opts,
                                  .n_threads = 2,
                                  .backend = "none",
                                  .ram_experts = 10,
                                  .no_pilot = true};
    coli_model *m;
    T_OK(coli_model_open(TEST_MODELS "/hummingbird", &opts, &m));
    heard *bare = listen(model, 1), *h = calloc(1, sizeof *h);
    int32_t ids[N_ROW];
    prompt_ids(ids);
    coli_session *s = world_session(m, 128, 1);
    T_OK(coli_session_on_route(s, hear, h));
    T_OK(coli_session_feed(s, ids, N_ROW));
    T_MEM(h->experts, bare->experts, sizeof h->experts);
    coli_store_stats stats = {.struct_size = sizeof stats};
    T_OK(coli_model_get_store_stats(m, &stats));
    T_EQ(bare->n_disk, 0);
    T_EQ(h->n_disk, stats.n_miss);
    T_EQ((uint64_t)N_ROW * N_LAYER * K - h->n_disk, stats.n_hit);
    T_TRUE(stats.n_hit > 0);
    coli_session_destroy(s);
    coli_model_close(m);
    free(bare);
    free(h);
}

/* -- files ------------------------------------------------------------------------------------- */

static coli_recorder *recorder_at(coli_session *s, const char *name)
{
    coli_recorder *r;
    T_OK(coli_recorder_create(s, path_of(name), &r));
    return r;
}

T_TEST(what_is_written_is_read_back)
{
    T_BEGIN;
    int32_t ids[N_ROW];
    prompt_ids(ids);
    heard *h = listen(model, 512);
    coli_session *s = world_session(model, 128, 16);
    coli_recorder *r = recorder_at(s, "back.safetensors");
    T_OK(coli_session_feed(s, ids, 60));
    for (int i = 60; i < N_ROW; i++) T_OK(coli_session_feed(s, ids + i, 1));
    T_EQ(coli_recorder_n_row(r), N_ROW);
    T_OK(coli_recorder_add(r, NULL, "x", 60));
    coli_session_reset(s);
    T_OK(coli_session_feed(s, ids, 10));
    T_OK(coli_session_feed(s, ids + 10, 1));
    T_OK(coli_recorder_add(r, "second", NULL, 10));
    T_EQ(coli_recorder_n_prompt(r), 2);
    T_OK(coli_recorder_write(r));
    coli_recorder_destroy(r);
    coli_session_destroy(s);

    coli__traces t;
    const coli__trace_part all = {0};
    T_OK(coli__traces_open(path_of("back"), &all, &t));
    T_EQ(t.n_trace, 2);
    T_EQ(t.n_layer, N_LAYER);
    T_EQ(t.n_expert_used, K);
    T_STR(t.traces[0].name, "p000");
    T_STR(t.traces[0].topic, "x");
    T_STR(t.traces[1].name, "second");
    T_EQ(t.traces[0].n_row, N_ROW);
    T_EQ(t.traces[0].n_prompt, 60);
    T_EQ(t.traces[1].n_prompt, 10);
    T_MEM(t.traces[0].ids, h->experts, sizeof h->experts);
    for (int l = 0; l < N_LAYER; l++)
        T_MEM(t.traces[1].ids + (size_t)l * 11 * K, h->experts[l], 11 * K * sizeof(int32_t));
    coli__traces_finish(&t);

    coli__st *st;
    T_OK(coli__st_open(path_of("back.safetensors"), &st));
    const coli__st_tensor *ranked = world_tensor(st, "%s.%s", "p000", "ranked"),
                          *mass = world_tensor(st, "%s.%s", "p000", "mass"),
                          *level = world_tensor(st, "%s.%s", "p000", "level");
    T_EQ(ranked->dtype, COLI_DT_U8);
    T_EQ(ranked->n_elem, N_LAYER * N_ROW * RANKED);
    T_MEM(mass->data, h->mass, sizeof h->mass);
    for (uint64_t i = 0; i < level->n_elem; i++) T_EQ(level->data[i], COLI_LEVEL_RAM);
    coli__st_close(st);

    coli_replay *replay; // and the command's own way in
    T_OK(coli_replay_open(path_of("back"), NULL, &replay));
    coli_replay_info info = {.struct_size = sizeof info};
    T_OK(coli_replay_get_info(replay, &info));
    T_EQ(info.n_prompt_row, 70);
    T_EQ(info.n_answer_row, N_ROW - 60 + 1);
    coli_replay_close(replay);
    free(h);
}

T_TEST(what_makes_no_trace_is_refused)
{
    T_BEGIN;
    int32_t ids[N_ROW];
    prompt_ids(ids);
    coli_session *s = world_session(model, 16, 16);
    coli_recorder *r = recorder_at(s, "refused"), *other;
    T_FAILS(coli_recorder_write(r), COLI_E_INVALID, "no prompt was recorded");
    T_OK(coli_session_feed(s, ids, 10));
    T_FAILS(coli_recorder_add(r, "a", NULL, 10), COLI_E_INVALID, "found 10 rows, of which 10");
    T_EQ(coli_recorder_n_row(r), 0); // dropped
    T_OK(coli_session_feed(s, ids, 2));
    T_FAILS(coli_recorder_add(r, "a", NULL, 0), COLI_E_INVALID, "of which 0");
    T_OK(coli_session_feed(s, ids, 2));
    T_OK(coli_recorder_add(r, "a", NULL, 1));
    T_OK(coli_session_feed(s, ids, 2));
    T_FAILS(coli_recorder_add(r, "a", NULL, 1), COLI_E_INVALID, "two prompts are called \"a\"");
    coli_session_reset(s);
    T_OK(coli_session_feed(s, ids, 16));
    coli_session_reset(s);
    T_OK(coli_session_feed(s, ids, 1));
    T_FAILS(coli_recorder_add(r, "b", NULL, 16), COLI_E_LIMIT, "more than 16 rows");
    T_OK(coli_session_feed(s, ids, 2)); // and goes on afterwards
    T_OK(coli_recorder_add(r, "b", NULL, 1));
    T_OK(coli_recorder_write(r));
    T_FAILS(coli_recorder_write(r), COLI_E_EXISTS, "refused.json: already exists");
    coli_recorder_destroy(r);
    T_FAILS(coli_recorder_create(s, path_of("refused"), &other), COLI_E_EXISTS, "already exists");
    T_TRUE(other == NULL);
    coli_recorder_destroy(NULL);
    T_OK(coli_session_feed(s, ids, 1)); // nobody listens any more
    coli_session_destroy(s);
}

T_TEST(recording_allocates_nothing_per_token)
{
    T_BEGIN;
    int32_t ids[N_ROW];
    prompt_ids(ids);
    coli_session *s = world_session(model, 128, 32);
    coli_recorder *r = recorder_at(s, "none");
    const uint64_t before = coli__alloc_count();
    T_OK(coli_session_feed(s, ids, 60));
    for (int i = 60; i < N_ROW; i++) T_OK(coli_session_feed(s, ids + i, 1));
    T_EQ(coli__alloc_count(), before);
    coli_recorder_destroy(r);
    coli_session_destroy(s);
}

static coli_status record_once(coli_session *s, const int32_t *ids)
{
    coli_recorder *r;
    coli_status status = coli_recorder_create(s, path_of("fail"), &r);
    coli_session_reset(s);
    if (status == COLI_OK) status = coli_session_feed(s, ids, 3);
    if (status == COLI_OK) status = coli_recorder_add(r, NULL, "t", 2);
    if (status == COLI_OK) status = coli_recorder_write(r);
    coli_recorder_destroy(r);
    return status;
}

T_TEST(allocations_may_fail)
{
    T_BEGIN;
    int32_t ids[N_ROW];
    prompt_ids(ids);
    coli_session *s = world_session(model, 16, 16);
    for (uint64_t n = 1;; n++) {
        coli__alloc_fail_at(n);
        const coli_status status = record_once(s, ids);
        coli__alloc_fail_at(0);
        const bool there = coli__path_exists(path_of("fail.json"));
        T_EQ(there, status == COLI_OK);
        T_EQ(coli__path_exists(path_of("fail.safetensors")), there);
        if (status == COLI_OK) break;
        T_EQ(status, COLI_E_NOMEM);
        T_LE(n, 100);
    }
    coli_session_destroy(s);
}

/* -- against another implementation ------------------------------------------------------------ */

typedef struct agreement {
    const coli__trace *trace;
    uint64_t n, n_same, n_first;
} agreement;

static bool count_same(void *user, uint32_t pos, uint32_t n_row, const float *logits,
                       const int32_t *expert_ids, const float *expert_w)
{
    agreement *a = user;
    (void)logits;
    (void)expert_w;
    for (size_t l = 0; l < a->trace->n_layer; l++)
        for (size_t t = 0; t < n_row; t++) {
            const int32_t *ours = expert_ids + (l * n_row + t) * K;
            const int32_t *theirs =
                a->trace->ids + (l * a->trace->n_row + pos + t) * a->trace->n_id;
            a->n_first += ours[0] == theirs[0];
            for (int i = 0; i < K; i++)
                for (int j = 0; j < K; j++) a->n_same += ours[i] == theirs[j];
            a->n += K;
        }
    return true;
}

/* The recorded choices are those of the model's weights in bf16 with f32 arithmetic.  The shipped
 * container has experts in int4 and the rest in int8, so rows near a tie choose otherwise: 94.6 % of
 * the experts are the same, and 97.1 % of the first.  (Converted to f32, all of them are.) */
T_TEST(the_demo_model_chooses_as_recorded)
{
    T_BEGIN;
    coli__traces t;
    const coli__trace_part all = {0};
    T_OK(coli__traces_open(TEST_FIXTURES "/traces/hummingbird", &all, &t));
    coli__st *st;
    T_OK(coli__st_open(TEST_FIXTURES "/traces/hummingbird-ids.safetensors", &st));
    agreement sum = {0};
    for (uint32_t i = 0; i < t.n_trace; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.ids", t.traces[i].name);
        const coli__st_tensor *ids = coli__st_find(st, name);
        if (!ids) continue;
        T_EQ(ids->n_elem, t.traces[i].n_row);
        int32_t *copy = malloc(ids->n_bytes);
        memcpy(copy, ids->data, ids->n_bytes);
        agreement a = {.trace = &t.traces[i]};
        coli_session *s = world_session(model, 512, 512);
        T_OK(coli_session_eval(s, copy, ids->n_elem, count_same, &a));
        coli_session_destroy(s);
        free(copy);
        sum.n += a.n;
        sum.n_same += a.n_same;
        sum.n_first += a.n_first;
    }
    print_message("    %.2f %% of the experts, %.2f %% of the first are those recorded\n",
                  100.0 * (double)sum.n_same / (double)sum.n,
                  100.0 * (double)sum.n_first * K / (double)sum.n);
    T_GE(sum.n, UINT64_C(8) * 400 * N_LAYER * K);
    T_FGE((double)sum.n_same / (double)sum.n, 0.94);
    T_FGE((double)sum.n_first * K / (double)sum.n, 0.97);
    coli__st_close(st);
    coli__traces_finish(&t);
}

int main(int argc, char **argv)
{
    if (!backend_from(argc, argv)) return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_callback_is_told_what_eval_is),
        cmocka_unit_test(eval_is_heard_too),
        cmocka_unit_test(masses_are_shares_of_all),
        cmocka_unit_test(levels_are_those_of_the_devices),
        cmocka_unit_test(levels_after_a_device_failed),
        cmocka_unit_test(levels_are_those_of_the_store),
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(what_makes_no_trace_is_refused),
        cmocka_unit_test(recording_allocates_nothing_per_token),
        cmocka_unit_test(allocations_may_fail),
        cmocka_unit_test(the_demo_model_chooses_as_recorded),
    };
    return cmocka_run_group_tests(tests, open_model, close_all);
}
