/* synth_test.c - containers with random weights: the geometry they claim, the same bytes for a
 * seed, weights of the variance they should have, routing as skewed as asked for. */
#include "table.h"

#include "libcoli/src/math/kernels_impl.h"
#include "libcoli/src/model/container.h"
#include "libcoli/src/run/model.h"

/* A path in the scratch directory; free(). */
static char *fresh(const char *name)
{
    char *path = world_path(world_scratch(), name);
    coli__dir_remove(path);
    return path;
}

static coli_synth_opts small(void)
{
    return (coli_synth_opts){.struct_size = sizeof(coli_synth_opts),
                             .like = "hummingbird",
                             .n_layer = 4,
                             .n_expert = 12,
                             .n_expert_used = 3,
                             .n_vocab = 200};
}

/* -- geometry --------------------------------------------------------------------------------- */

typedef struct stop_early {
    uint64_t total, n_call;
} stop_early;

static bool note_total(void *user, const char *what, uint64_t done, uint64_t total)
{
    stop_early *s = user;
    s->total = total;
    s->n_call++;
    assert_true(*what && done <= total);
    return false;
}

/* With f32 everywhere a parameter has 4 bytes, in the router and the gates 2 (bf16); no row of the
 * 35B needs padding.  So the bytes tell the number of parameters, which is published. */
T_TEST(the_35b_has_its_published_parameters)
{
    T_BEGIN;
    coli__sys_calls.disk_free = world_much_room;
    const uint64_t n_param = 34660610688u;
    const uint64_t n_precise = 40 * (256 + 1) * 2048 + 30 * 2 * 32 * 2048;
    char *out = fresh("35b");
    stop_early stop = {0};
    const coli_synth_opts o = {.struct_size = sizeof o,
                               .experts = "f32",
                               .trunk = "f32",
                               .progress = note_total,
                               .user = &stop};
    T_FAILS(coli_synth(out, &o), COLI_E_CANCELLED, "stopped");
    T_EQ(stop.n_call, 1);
    T_EQ(stop.total, 4 * n_param - 2 * n_precise);
    char partial[300];
    snprintf(partial, sizeof partial, "%s.partial", out);
    T_TRUE(!coli__path_exists(out) && !coli__path_exists(partial)); // nothing stays behind
    free(out);
}

T_TEST(hummingbird_is_as_large_as_the_model_that_ships)
{
    T_BEGIN;
    char *out = fresh("like-hummingbird");
    const coli_synth_opts o = {.struct_size = sizeof o, .like = "hummingbird"};
    T_OK(coli_synth(out, &o));
    coli_model *made = world_open(out, 1, NULL);
    coli_model *real = world_open(TEST_MODELS "/hummingbird", 1, NULL);
    coli_model_info a = {.struct_size = sizeof a}, b = {.struct_size = sizeof b};
    T_OK(coli_model_get_info(made, &a));
    T_OK(coli_model_get_info(real, &b));
    T_EQ(a.n_param, b.n_param);
    T_EQ(a.n_param_active, b.n_param_active);
    T_EQ(a.expert_bytes, b.expert_bytes);
    T_EQ(a.token_expert_bytes, b.token_expert_bytes);
    T_EQ(a.token_head_bytes, b.token_head_bytes);
    T_EQ(a.n_layer, b.n_layer);
    T_EQ(a.n_vocab, b.n_vocab);
    T_EQ(a.n_ctx_max, b.n_ctx_max);
    T_STR(a.expert_format, b.expert_format);
    T_STR(a.trunk_format, b.trunk_format);
    T_TRUE(coli_model_tokenizer(made) == NULL);
    coli_model_close(made);
    coli_model_close(real);
    free(out);
}

T_TEST(shapes_can_be_given)
{
    T_BEGIN;
    char *out = fresh("shapes");
    const coli_synth_opts o = {.struct_size = sizeof o,
                               .like = "hummingbird",
                               .n_layer = 5,
                               .d_model = 72,
                               .n_expert = 7,
                               .n_expert_used = 2,
                               .d_ff = 40,
                               .n_vocab = 99};
    T_OK(coli_synth(out, &o));
    coli_model *m = world_open(out, 1, NULL);
    coli_model_info i = {.struct_size = sizeof i};
    T_OK(coli_model_get_info(m, &i));
    T_EQ(i.n_layer, 5);
    T_EQ(i.d_model, 72);
    T_EQ(i.n_expert, 7);
    T_EQ(i.n_expert_used, 2);
    T_EQ(i.d_ff, 40);
    T_EQ(i.n_vocab, 99);
    coli_model_close(m);
    free(out);
}

/* -- the same bytes --------------------------------------------------------------------------- */

static coli__buf model_bytes(const coli_synth_opts *o)
{
    char *out = fresh("bytes");
    T_OK(coli_synth(out, o));
    char *path = world_path(out, "model.coli");
    coli__buf bytes = {0};
    T_OK(coli__file_read(path, 64 << 20, &bytes));
    coli__dir_remove(out);
    free(path);
    free(out);
    return bytes;
}

T_TEST(a_seed_gives_the_same_bytes_with_any_number_of_threads)
{
    T_BEGIN;
    coli_synth_opts o = small();
    o.seed = 11;
    o.skew = 1.5f;
    o.n_threads = 1;
    coli__buf one = model_bytes(&o);
    static const uint32_t n_threads[] = {2, 5};
    for (int i = 0; i < 2; i++) {
        o.n_threads = n_threads[i];
        coli__buf more = model_bytes(&o);
        T_EQ(more.n_bytes, one.n_bytes);
        T_MEM(more.data, one.data, one.n_bytes);
        coli__buf_finish(&more);
    }
    o.seed = 12;
    coli__buf other = model_bytes(&o);
    T_EQ(other.n_bytes, one.n_bytes);
    T_TRUE(memcmp(other.data, one.data, one.n_bytes) != 0);
    coli__buf_finish(&other);
    coli__buf_finish(&one);
}

/* -- weights ---------------------------------------------------------------------------------- */

/* Mean and variance of all weights of a matrix.  The mean of n numbers deviates by
 * sqrt(variance / n).  The variance does by what chance does to the squares of n numbers (0.8 / n,
 * uniform) and to those of the scales (their mean is 0.99, their deviation 0.3).  Five of either is
 * never. */
static void check_spread(const char *name, const coli__mat *m, double variance)
{
    float *row = malloc(m->n_in * sizeof *row);
    double sum = 0, squares = 0;
    const double n = (double)m->n_in * m->n_out;
    for (uint32_t r = 0; r < m->n_out; r++) {
        coli__mat_row(m, r, row);
        for (uint32_t c = 0; c < m->n_in; c++) {
            sum += (double)row[c];
            squares += (double)row[c] * (double)row[c];
        }
    }
    const uint32_t group = m->fmt.per_row ? m->n_in : m->fmt.group;
    const double n_scale = group ? m->n_out * ceil((double)m->n_in / group) : n;
    const double most = 0.01 + 5 * sqrt(0.8 / n + 0.09 / n_scale);
    if (fabs(sum / n) > 5 * sqrt(variance / n) || fabs(squares / n / variance - 1) > most)
        fail_msg("%s: mean %g, variance %g against %g", name, sum / n, squares / n, variance);
    free(row);
}

/* What lies in a quantised matrix outside its rows and columns is the code of 0, and scale 0. */
static void check_padding(const coli__mat *m)
{
    const coli__layout l = coli__layout_of(m->fmt, m->n_in);
    const uint32_t n_panel = (m->n_out + 15) / 16;
    for (uint32_t row = 0; row < 16 * n_panel; row++)
        for (uint32_t g = 0; g < l.n_group; g++) {
            const uint8_t *at = m->data + row / 16 * l.panel_bytes + l.first_group;
            at += g * l.group_bytes;
            const uint8_t *scales = m->fmt.per_row ? m->data + row / 16 * l.panel_bytes : at;
            if (row >= m->n_out) T_TRUE(coli__scale_at(m->fmt, scales, row % 16, 1) == 0);
            for (uint32_t c = 0; c < m->fmt.group; c++)
                if (row >= m->n_out || g * m->fmt.group + c >= m->n_in)
                    T_EQ(coli__code_at(m->fmt, at + l.code_offset, row % 16, c), 0);
        }
}

static void check_weights(const char *dir)
{
    table in = table_open(dir);
    for (uint32_t i = 0; i < in.ct.n_entry; i++) {
        const coli__ct_tensor *t = &in.ct.entries[i].tensor;
        if (coli__wfmt_is_quant(t->mat.fmt)) check_padding(&t->mat);
        if (strstr(t->name, "embed_tokens")) check_spread(t->name, &t->mat, 1);
        if (strstr(t->name, "proj")) check_spread(t->name, &t->mat, 1.0 / t->mat.n_in);
        if (strstr(t->name, "mlp.gate.")) check_spread(t->name, &t->mat, 4.0 / t->mat.n_in);
    }
    float first[2][200]; // panels are drawn one by one: they must not be the same draw
    for (uint32_t p = 0; p < 2; p++) {
        const coli__ct_tensor *embed = &in.ct.entries[0].tensor;
        T_STR(embed->name, "embed_tokens.weight");
        coli__mat_row(&embed->mat, 16 * p, first[p]);
    }
    T_TRUE(memcmp(first[0], first[1], sizeof first[0]) != 0);
    const float *gate[2] = {(const float *)(const void *)in.ct.layers[0].experts.data,
                            (const float *)(const void *)in.ct.layers[1].experts.data};
    T_TRUE(memcmp(gate[0], gate[1], 4096) != 0);
    const uint64_t one = in.ct.layers[0].experts.block_bytes / sizeof(float);
    T_TRUE(memcmp(gate[0], gate[0] + one, 4096) != 0);
    for (uint32_t e = 0; e < 3; e++) {
        coli__mat m[3];
        coli__ct_expert(&in.ct.layers[1].experts, e, &m[0], &m[1], &m[2]);
        for (int i = 0; i < 3; i++) {
            check_spread("an expert", &m[i], 1.0 / m[i].n_in);
            if (coli__wfmt_is_quant(m[i].fmt)) check_padding(&m[i]);
        }
    }
    table_close(&in);
}

/* Logits of a model whose activations neither vanish nor grow: gain 1 and normed input. */
static bool logits_are_sane(void *user, uint32_t pos, uint32_t n_row, const float *logits,
                            const int32_t *expert_ids, const float *expert_w)
{
    const uint32_t n_vocab = *(const uint32_t *)user;
    double squares = 0;
    for (size_t i = 0; i < (size_t)n_row * n_vocab; i++)
        squares += (double)logits[i] * (double)logits[i];
    const double variance = squares / n_row / n_vocab;
    T_FGE(variance, 0.5);
    T_FLE(variance, 2);
    return pos <= n_row + pos && expert_ids && expert_w;
}

static void check_runs(const char *dir)
{
    coli_model *m = world_open(dir, 2, NULL);
    coli_session *s = world_session(m, 64, 64);
    int32_t ids[40], next;
    t_rng rng = {5};
    uint32_t n_vocab = m->shape.n_vocab;
    for (int i = 0; i < 40; i++) ids[i] = (int32_t)t_below(&rng, n_vocab);
    T_OK(coli_session_eval(s, ids, 40, logits_are_sane, &n_vocab));
    coli_sampling sampling = {.struct_size = sizeof sampling};
    T_OK(coli_sampling_default(m, &sampling));
    T_EQ(sampling.top_k, 20); // as with the 35B
    T_OK(coli_session_sample(s, &sampling, &next));
    coli_session_destroy(s);
    coli_model_close(m);
}

T_TEST(every_format_verifies_holds_sane_weights_and_runs)
{
    T_BEGIN;
    static const char *const formats[][2] = {
        {NULL, NULL},
        {"f32", "bf16"},
        {"bf16", "f32"},
        {"int8-g64-f32", "int4-g64-f32"},
        {"int4-g32-f16", "int8-g32-f32"},
        {"int8-row-f16", "int4-row-f32"},
        {"int4-row-f16", "int8-row-f16"},
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        coli_synth_opts o = small();
        o.experts = formats[i][0];
        o.trunk = formats[i][1];
        o.d_model = 200; // neither whole groups nor whole panels
        o.d_ff = 72;
        char *out = fresh("formats");
        T_OK(coli_synth(out, &o));
        T_OK(coli_verify(out, NULL, NULL));
        check_weights(out);
        check_runs(out);
        free(out);
    }
}

/* -- routing ---------------------------------------------------------------------------------- */

enum { N_EXPERT = 64, N_USED = 4, N_LAYER = 4, N_TOKEN = 512 };

static bool count_picks(void *user, uint32_t pos, uint32_t n_row, const float *logits,
                        const int32_t *expert_ids, const float *expert_w)
{
    (void)pos, (void)logits, (void)expert_w;
    uint32_t(*n_of)[N_EXPERT] = user;
    for (uint32_t l = 0; l < N_LAYER; l++)
        for (uint32_t i = 0; i < n_row * N_USED; i++)
            n_of[l][expert_ids[(size_t)l * n_row * N_USED + i]]++;
    return true;
}

static int downward(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x < y) - (x > y);
}

/* The share of the picks that the most used eighth of a layer's experts gets; the least layer. */
static double share_of_best_eighth(float skew)
{
    const coli_synth_opts o = {.struct_size = sizeof o,
                               .like = "hummingbird",
                               .n_layer = N_LAYER,
                               .n_expert = N_EXPERT,
                               .n_expert_used = N_USED,
                               .skew = skew};
    char *out = fresh("routing");
    T_OK(coli_synth(out, &o));
    coli_model *m = world_open(out, 2, NULL);
    coli_session *s = world_session(m, N_TOKEN, 512);
    static int32_t ids[N_TOKEN];
    t_rng rng = {9};
    for (int i = 0; i < N_TOKEN; i++) ids[i] = (int32_t)t_below(&rng, m->shape.n_vocab);
    uint32_t n_of[N_LAYER][N_EXPERT] = {{0}};
    T_OK(coli_session_eval(s, ids, N_TOKEN, count_picks, n_of));
    double least = 1;
    for (uint32_t l = 0; l < N_LAYER; l++) {
        qsort(n_of[l], N_EXPERT, sizeof n_of[l][0], downward);
        T_LE(n_of[l][0], N_TOKEN * 3 / 5); // nobody is used by (many) more than half of the tokens
        uint32_t best = 0;
        for (uint32_t e = 0; e < N_EXPERT / 8; e++) best += n_of[l][e];
        const double share = (double)best / (N_TOKEN * N_USED);
        if (share < least) least = share;
    }
    coli_session_destroy(s);
    coli_model_close(m);
    free(out);
    return least;
}

/* With equal chances a layer's best eighth gets 1/8 and what chance adds. */
T_TEST(skew_makes_some_experts_busy)
{
    T_BEGIN;
    const double even = share_of_best_eighth(0), some = share_of_best_eighth(1),
                 much = share_of_best_eighth(4);
    print_message("best eighth: %.3f, %.3f, %.3f\n", even, some, much);
    T_FLE(even, 0.25);
    T_FGE(some, even + 0.1);
    T_FGE(much, some + 0.1);
}

/* -- refusals --------------------------------------------------------------------------------- */

T_TEST(what_cannot_be_made_is_refused)
{
    T_BEGIN;
    char *out = fresh("refused");
    coli_synth_opts o = small();
    T_FAILS(coli_synth(NULL, &o), COLI_E_INVALID, "NULL");
    o.like = "qwen37";
    T_FAILS(coli_synth(out, &o), COLI_E_INVALID, "qwen36-397b or hummingbird");
    o = small();
    o.n_expert_used = 13;
    T_FAILS(coli_synth(out, &o), COLI_E_FORMAT, "13 is more than num_experts 12");
    o = small();
    o.n_layer = 513;
    T_FAILS(coli_synth(out, &o), COLI_E_FORMAT, "num_hidden_layers");
    o = small();
    o.n_expert = 4096;
    o.n_layer = 512; // the table alone is too large
    T_FAILS(coli_synth(out, &o), COLI_E_FORMAT, "table");
    o = small();
    o.d_model = o.d_ff = 65536;
    T_FAILS(coli_synth(out, &o), COLI_E_FORMAT, "MiB");
    static const float skews[] = {-0.5f, 17, NAN};
    for (int i = 0; i < 3; i++) {
        o = small();
        o.skew = skews[i];
        T_FAILS(coli_synth(out, &o), COLI_E_INVALID, "skew");
    }
    o = small();
    o.experts = "int5";
    T_FAILS(coli_synth(out, &o), COLI_E_FORMAT, "int5");
    T_TRUE(!coli__path_exists(out));
    o = small();
    T_OK(coli_synth(out, &o));
    T_FAILS(coli_synth(out, &o), COLI_E_EXISTS, "already exists");
    free(out);
}

T_TEST(out_of_memory_at_any_point_leaves_nothing)
{
    T_BEGIN;
    char *out = fresh("memory");
    coli_synth_opts o = small();
    o.n_layer = 1;
    o.n_threads = 1;
    uint32_t n = 0;
    for (coli_status status = COLI_E_NOMEM; status != COLI_OK;) {
        T_TRUE(!coli__path_exists(out));
        coli__alloc_fail_at(++n);
        status = coli_synth(out, &o);
        coli__alloc_fail_at(0);
        if (status != COLI_OK) T_EQ(status, COLI_E_NOMEM);
    }
    T_GE(n, 10);
    char partial[300];
    snprintf(partial, sizeof partial, "%s.partial", out);
    T_TRUE(!coli__path_exists(partial));
    T_OK(coli_verify(out, NULL, NULL));
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_35b_has_its_published_parameters),
        cmocka_unit_test(hummingbird_is_as_large_as_the_model_that_ships),
        cmocka_unit_test(shapes_can_be_given),
        cmocka_unit_test(a_seed_gives_the_same_bytes_with_any_number_of_threads),
        cmocka_unit_test(every_format_verifies_holds_sane_weights_and_runs),
        cmocka_unit_test(skew_makes_some_experts_busy),
        cmocka_unit_test(what_cannot_be_made_is_refused),
        cmocka_unit_test(out_of_memory_at_any_point_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
