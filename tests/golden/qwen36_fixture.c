/* qwen36_fixture.c - f32 containers of the tiny checkpoints, with keys and values in f32, against
 * Hugging Face transformers; then with keys and values in f16.
 *
 * a flat, b wrapped and sharded with vision and MTP tensors, c unfused experts: the same numbers,
 * one expectation.  d is fp8 with 128x128 block scales and has its own.  tests/fixtures/README.md
 * says how they were made.
 *
 * Tolerance: 2e-4 of the row's largest magnitude.  The reference's own block form of DeltaNet
 * carries about as much rounding (its three splits of one prompt differ by up to 3.7e-4 absolute
 * with logits near 10).  Chosen experts and greedy ids must be equal: the fixture's gaps at the
 * border are larger. */
#include "world.h"

#include "libcoli/src/run/session.h"

enum { N_LAYER = 8, K = 4, D = 64, VOCAB = 320 };
static const double tolerance = 2e-4;
static const char *const lengths[] = {"1", "3", "63", "64", "65", "150"};

typedef struct expected {
    uint32_t n; // ids
    uint32_t n_prompt;
    int32_t *ids, *expert_ids;
    float *logits, *expert_w;
} expected;

static expected load(const coli__st *st, const char *length)
{
    const coli__st_tensor *ids = world_tensor(st, "case%s.%s", length, "ids");
    return (expected){.n = (uint32_t)ids->n_elem,
                      .n_prompt = (uint32_t)atoi(length),
                      .ids = world_i32(ids),
                      .expert_ids = world_i32(world_tensor(st, "case%s.%s", length, "expert_ids")),
                      .logits = world_f32(world_tensor(st, "case%s.%s", length, "logits")),
                      .expert_w = world_f32(world_tensor(st, "case%s.%s", length, "expert_w"))};
}

static void unload(expected *e)
{
    free(e->ids);
    free(e->expert_ids);
    free(e->logits);
    free(e->expert_w);
}

static double max_abs(const float *x, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs((double)x[i]));
    return most;
}

/* Largest difference of a row, in units of its largest magnitude. */
static double relative(const float *got, const float *want, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        const double difference = fabs((double)got[i] - (double)want[i]);
        most = difference > most || isnan(difference) ? difference : most;
        if (isnan(most)) return most;
    }
    return most / max_abs(want, n);
}

static uint32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

typedef struct seen_rows {
    const expected *e;
    double worst, worst_w;
} seen_rows;

static bool on_rows(void *user, uint32_t pos, uint32_t n_row, const float *logits,
                    const int32_t *expert_ids, const float *expert_w)
{
    seen_rows *s = user;
    const expected *e = s->e;
    for (uint32_t r = 0; r < n_row; r++) {
        const uint32_t t = pos + r;
        const float *row = logits + (size_t)r * VOCAB;
        const double off = relative(row, e->logits + (size_t)t * VOCAB, VOCAB);
        T_FLE(off, tolerance);
        s->worst = fmax(s->worst, off);
        if (t + 1 >= e->n_prompt && t + 1 < e->n) T_EQ(argmax(row, VOCAB), e->ids[t + 1]);
        for (uint32_t l = 0; l < N_LAYER; l++)
            for (uint32_t k = 0; k < K; k++) {
                const size_t got = ((size_t)l * n_row + r) * K + k,
                             want = ((size_t)l * e->n + t) * K + k;
                T_EQ(expert_ids[got], e->expert_ids[want]);
                s->worst_w =
                    fmax(s->worst_w, fabs((double)expert_w[got] - (double)e->expert_w[want]));
            }
    }
    return true;
}

/* Feed the ids in pieces that end at the cuts, and compare every row. */
static void check_case(coli_model *m, const expected *e, const uint32_t *cuts, uint32_t n_cut)
{
    coli_session *s = world_session_kv(m, 0, 0, COLI_KV_F32);
    seen_rows seen = {.e = e};
    uint32_t at = 0;
    for (uint32_t i = 0; i <= n_cut; i++) {
        const uint32_t end = i < n_cut ? cuts[i] : e->n;
        T_OK(coli_session_eval(s, e->ids + at, end - at, on_rows, &seen));
        at = end;
    }
    T_FLE(seen.worst_w, 1e-4);
    coli_session_destroy(s);
}

static void check_model(const char *checkpoint, const char *expectation)
{
    char path[512];
    snprintf(path, sizeof path, TEST_FIXTURES "/%s", checkpoint);
    char *dir = world_container(path, checkpoint, "f32", "f32");
    coli_model *m = world_open(dir, 2, NULL);
    snprintf(path, sizeof path, TEST_FIXTURES "/%s/expected.safetensors", expectation);
    coli__st *st;
    T_OK(coli__st_open(path, &st));
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        expected e = load(st, lengths[i]);
        check_case(m, &e, NULL, 0);
        if (e.n_prompt == 150) { // the splits that the reference was checked with
            check_case(m, &e, (const uint32_t[]){1}, 1);
            check_case(m, &e, (const uint32_t[]){64}, 1);
            uint32_t every[256];
            for (uint32_t t = 0; t + 1 < e.n; t++) every[t] = t + 1;
            check_case(m, &e, every, e.n - 1);
        }
        unload(&e);
    }
    coli__st_close(st);
    coli_model_close(m);
    free(dir);
}

T_TEST(flat)
{
    T_BEGIN;
    check_model("qwen36-tiny-a", "qwen36-tiny-a");
}
T_TEST(wrapped_and_sharded)
{
    T_BEGIN;
    check_model("qwen36-tiny-b", "qwen36-tiny-a");
}
T_TEST(unfused)
{
    T_BEGIN;
    check_model("qwen36-tiny-c", "qwen36-tiny-a");
}
T_TEST(fp8_blocks)
{
    T_BEGIN;
    check_model("qwen36-tiny-d", "qwen36-tiny-d");
}

/* -- keys and values in f16 -------------------------------------------------------------------- */

/* The default keeps keys and values in f16, each wrong by at most 2^-11 of itself.  How far that moves
 * logits depends on the model, so the bounds are what was measured, 9.1e-4 at most and 8.8e-5 in the
 * mean, doubled.  The same experts are chosen but for near-ties: 2 of 34432 were others. */
static const double f16_tolerance = 1.8e-3, f16_tolerance_mean = 1.8e-4;

typedef struct f16_rows {
    const expected *e;
    double worst, sum;
    uint32_t n_row, n_other_expert, n_other_top;
} f16_rows;

static bool on_f16_rows(void *user, uint32_t pos, uint32_t n_row, const float *logits,
                        const int32_t *expert_ids, const float *expert_w)
{
    (void)expert_w;
    f16_rows *s = user;
    for (uint32_t r = 0; r < n_row; r++, s->n_row++) {
        const float *row = logits + (size_t)r * VOCAB,
                    *want = s->e->logits + (size_t)(pos + r) * VOCAB;
        const double off = relative(row, want, VOCAB);
        s->worst = fmax(s->worst, off);
        s->sum += off;
        s->n_other_top += argmax(row, VOCAB) != argmax(want, VOCAB);
        for (uint32_t l = 0; l < N_LAYER; l++)
            for (uint32_t k = 0; k < K; k++)
                s->n_other_expert += expert_ids[((size_t)l * n_row + r) * K + k] !=
                                     s->e->expert_ids[((size_t)l * s->e->n + pos + r) * K + k];
    }
    return true;
}

static void measure_f16(const char *checkpoint)
{
    char path[512];
    snprintf(path, sizeof path, TEST_FIXTURES "/%s", checkpoint);
    char *dir = world_container(path, checkpoint, "f32", "f32");
    coli_model *m = world_open(dir, 2, NULL);
    snprintf(path, sizeof path, TEST_FIXTURES "/%s/expected.safetensors", checkpoint);
    coli__st *st;
    T_OK(coli__st_open(path, &st));
    f16_rows seen = {0};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        expected e = load(st, lengths[i]);
        coli_session *s = world_session(m, 0, 0);
        seen.e = &e;
        T_OK(coli_session_eval(s, e.ids, e.n, on_f16_rows, &seen));
        coli_session_destroy(s);
        unload(&e);
    }
    print_message(
        "%s, f16: %u rows, off by %.6f at most, %.6f in the mean; %u other experts, %u other "
        "best tokens\n",
        checkpoint, seen.n_row, seen.worst, seen.sum / seen.n_row, seen.n_other_expert,
        seen.n_other_top);
    T_FLE(seen.worst, f16_tolerance);
    T_FLE(seen.sum / seen.n_row, f16_tolerance_mean);
    T_LE(seen.n_other_expert, seen.n_row * N_LAYER * K / 1000);
    T_EQ(seen.n_other_top, 0);
    coli__st_close(st);
    coli_model_close(m);
    free(dir);
}

T_TEST(f16_keys_and_values)
{
    T_BEGIN;
    measure_f16("qwen36-tiny-a");
    measure_f16("qwen36-tiny-d");
}

/* -- inside the layers ------------------------------------------------------------------------- */

static void check_rows(const float *got, const coli__st_tensor *t)
{
    float *want = world_f32(t);
    for (uint64_t row = 0; row < t->n_elem / D; row++)
        T_FLE(relative(got + row * D, want + row * D, D), tolerance);
    free(want);
}

T_TEST(residuals)
{
    T_BEGIN;
    char *dir = world_container(TEST_FIXTURES "/qwen36-tiny-a", "qwen36-tiny-a", "f32", "f32");
    coli_model *m = world_open(dir, 2, NULL);
    coli__st *st;
    T_OK(coli__st_open(TEST_FIXTURES "/qwen36-tiny-a/expected.safetensors", &st));
    for (size_t i = 0; i < 2; i++) {
        const char *length = i ? "65" : "3";
        expected e = load(st, length);
        coli_session *s = world_session_kv(m, 0, 0, COLI_KV_F32);
        float *mixer = calloc((size_t)N_LAYER * e.n * D, sizeof *mixer);
        float *moe = calloc((size_t)N_LAYER * e.n * D, sizeof *moe);
        const coli__probe probe = {.mixer = mixer, .moe = moe};
        const coli__forward_args args = {
            .ids = e.ids, .n_tok = e.n, .logits_from = e.n, .probe = &probe};
        T_OK(m->engine->forward(s->state, m->pool, &args));
        check_rows(mixer, world_tensor(st, "case%s.%s", length, "mixer"));
        check_rows(moe, world_tensor(st, "case%s.%s", length, "moe"));
        free(mixer);
        free(moe);
        coli_session_destroy(s);
        unload(&e);
    }
    coli__st_close(st);
    coli_model_close(m);
    free(dir);
}

/* Layer 0's state after 65 tokens.  A snapshot begins with it: the last three raw inputs of the
 * convolution, per head's segment and oldest first, then S (head, d_k, d_v). */
T_TEST(recurrent_state)
{
    T_BEGIN;
    enum { N_K = 2, N_V = 6, DK = 16, DV = 24, TAPS = 3, CHANNELS = 2 * N_K * DK + N_V * DV };
    char *dir = world_container(TEST_FIXTURES "/qwen36-tiny-a", "qwen36-tiny-a", "f32", "f32");
    coli_model *m = world_open(dir, 1, NULL);
    coli__st *st;
    T_OK(coli__st_open(TEST_FIXTURES "/qwen36-tiny-a/expected.safetensors", &st));
    expected e = load(st, "65");
    coli_session *s = world_session_kv(m, 0, 0, COLI_KV_F32);
    T_OK(coli_session_feed(s, e.ids, 65));
    float *snap = malloc(m->engine->snapshot_bytes(s->state));
    m->engine->snapshot_save(s->state, snap);

    float *conv = world_f32(world_tensor(st, "case%s.%s", "65", "conv_state0")); // (CHANNELS, 4)
    const double largest = max_abs(conv, CHANNELS * 4);
    for (uint32_t c = 0; c < CHANNELS; c++) {
        const uint32_t width = c < 2 * N_K * DK ? DK : DV;
        const uint32_t first =
            c < 2 * N_K * DK ? c / DK * DK : 2 * N_K * DK + (c - 2 * N_K * DK) / DV * DV;
        for (uint32_t tap = 0; tap < TAPS; tap++)
            T_FLE(fabs((double)snap[first * TAPS + tap * width + c - first] -
                       (double)conv[c * 4 + tap + 1]),
                  tolerance * largest);
    }
    float *S = world_f32(world_tensor(st, "case%s.%s", "65", "recurrent_state0"));
    T_FLE(relative(snap + TAPS * CHANNELS, S, N_V * DK * DV), tolerance);
    free(S);
    free(conv);
    free(snap);
    coli_session_destroy(s);
    unload(&e);
    coli__st_close(st);
    coli_model_close(m);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flat),
        cmocka_unit_test(wrapped_and_sharded),
        cmocka_unit_test(unfused),
        cmocka_unit_test(fp8_blocks),
        cmocka_unit_test(residuals),
        cmocka_unit_test(recurrent_state),
        cmocka_unit_test(f16_keys_and_values),
    };
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
