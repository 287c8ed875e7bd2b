/* score_row_test.c - rows of logits as records: the worked one, what is kept of random ones, and the
 * divergence against a slow calculation of its own. */
#include "t.h"

#include "libcoli/src/run/score_row.h"

enum { MAX_VOCAB = 20000 };

/* In long double, with the C library: shares nothing with the code under test. */
static void softmax(const float *logits, uint32_t n, long double *p)
{
    long double top = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++) top = fmaxl(top, (long double)logits[i]);
    for (uint32_t i = 0; i < n; i++) sum += p[i] = expl((long double)logits[i] - top);
    for (uint32_t i = 0; i < n; i++) p[i] /= sum;
}

static long double divergence(const long double *p, const long double *q, uint32_t n)
{
    long double kl = 0;
    for (uint32_t i = 0; i < n; i++)
        if (p[i] > 0) kl += p[i] * logl(p[i] / q[i]);
    return kl;
}

static coli__buf record_of(coli__row *row, const float *logits)
{
    coli__buf out = {0};
    T_OK(coli__row_take(row, logits));
    T_OK(coli__row_record(row, &out));
    return out;
}

static bool check(const coli__buf *b, size_t n_bytes, uint32_t n_vocab)
{
    uint8_t *exact = malloc(n_bytes + 1); // so that a sanitizer sees a byte too far
    memcpy(exact, b->data, n_bytes);
    const uint8_t *at = exact;
    float rest;
    const bool good =
        coli__row_check(&at, exact + n_bytes, n_vocab, &rest) && at == exact + n_bytes;
    free(exact);
    return good;
}

static double compare(coli__row *row, const coli__buf *record, bool *same_top)
{
    const uint8_t *at = (const uint8_t *)record->data, *end = at + record->n_bytes;
    const double kl = coli__row_compare(row, &at, end, same_top);
    T_TRUE(at == end);
    return kl;
}

T_TEST(worked)
{
    T_BEGIN;
    static const uint8_t expected[] = {3, 0,    0,    0,    0,    0, 0x18, 0x72, 0x31, 0xbf,
                                       1, 0x18, 0x72, 0xb1, 0xbf, 0, 0x18, 0x72, 0xb1, 0xbf};
    const float logits[4] = {logf(2), -800, 0, 0};
    coli__row row;
    T_OK(coli__row_init(&row, 4));
    coli__buf record = record_of(&row, logits);
    T_EQ(record.n_bytes, sizeof expected);
    T_MEM(record.data, expected, sizeof expected);
    for (size_t n = 0; n < sizeof expected; n++) T_TRUE(!check(&record, n, 4));
    T_TRUE(check(&record, sizeof expected, 4));
    T_TRUE(!check(&record, sizeof expected, 3));
    coli__buf_finish(&record);
    coli__row_finish(&row);
}

/* A row like a model's: a few tokens stand out. */
static uint32_t random_row(t_rng *rng, float *logits, uint32_t n_most)
{
    const uint32_t n = t_range(rng, 1, n_most);
    const float width = (float)t_range(rng, 0, 12);
    for (uint32_t i = 0; i < n; i++) logits[i] = width * t_normal(rng) * 0.5f;
    for (uint32_t k = t_below(rng, 6); k > 0; k--)
        logits[t_below(rng, n)] += (float)t_range(rng, 0, 30);
    if (t_below(rng, 4) == 0) // ties
        for (uint32_t i = 0; i < n; i++) logits[i] = rintf(logits[i]);
    return n;
}

T_PROP(against_itself_nothing, 400)
{
    static float logits[MAX_VOCAB];
    const uint32_t n = random_row(&rng, logits, t_below(&rng, 8) ? 3000 : MAX_VOCAB);
    coli__row row;
    bool same;
    T_OK(coli__row_init(&row, n));
    coli__buf record = record_of(&row, logits);
    T_TRUE(check(&record, record.n_bytes, n));
    T_TRUE(compare(&row, &record, &same) == 0 && same);
    coli__buf_finish(&record);
    coli__row_finish(&row);
}

/* The record's divergence is at most the whole one, and at least that less what the others can have: a
 * share of 2^-16 times how far their logits moved (at most `moved` each way, and the sum with them).
 * Rounding: log p to f32, 24 bits of at most 100. */
T_PROP(divergence_is_right, 300)
{
    static float base[3000], model[3000];
    static long double p[3000], q[3000];
    const uint32_t n = random_row(&rng, base, 3000);
    const float moved = (float)t_unit(&rng) * 2;
    for (uint32_t i = 0; i < n; i++) model[i] = base[i] + moved * (2 * (float)t_unit(&rng) - 1);
    softmax(base, n, p);
    softmax(model, n, q);
    const double expected = (double)divergence(p, q, n);
    coli__row row;
    bool same;
    T_OK(coli__row_init(&row, n));
    coli__buf record = record_of(&row, base);
    T_OK(coli__row_take(&row, model));
    const double kl = compare(&row, &record, &same);
    T_FLE(kl, expected + 2e-5);
    T_FGE(kl, expected - 2e-5 - 0x1p-16 * 4 * (double)moved);
    uint32_t best_base = 0, best_model = 0;
    for (uint32_t i = 1; i < n; i++) {
        if (base[i] > base[best_base]) best_base = i;
        if (model[i] > model[best_model]) best_model = i;
    }
    // where one is ahead of all others by more than rounding
    bool clear = true;
    for (uint32_t i = 0; i < n; i++)
        clear &= (i == best_base || base[i] < base[best_base] - 1e-4f) &&
                 (i == best_model || model[i] < model[best_model] - 1e-4f);
    if (clear) T_EQ(same, best_base == best_model);
    T_FLE(fabs((double)coli__row_logprob(&row, best_model) - (double)logl(q[best_model])), 1e-5);
    coli__buf_finish(&record);
    coli__row_finish(&row);
}

/* Tokens are left out only while they have less than 2^-16 together, or there are 4096. */
T_TEST(the_rest_is_small)
{
    T_BEGIN;
    static float logits[MAX_VOCAB];
    t_rng rng = {5};
    for (int k = 0; k < 40; k++) {
        const uint32_t n = k < 20 ? 4096 : MAX_VOCAB;
        for (uint32_t i = 0; i < n; i++) logits[i] = (float)(k % 20) * 0.4f * t_normal(&rng);
        uint32_t best = 0;
        for (uint32_t i = 0; i < n; i++)
            if (logits[i] > logits[best]) best = i;
        if (k == 20) logits[best = n - 1] = 0.01f; // flat: the best comes late, after 4096 as good
        coli__row row;
        bool same;
        T_OK(coli__row_init(&row, n));
        coli__buf record = record_of(&row, logits);
        const uint8_t *at = (const uint8_t *)record.data;
        const uint32_t n_item = at[0] < 128 ? at[0] : (at[0] & 127u) | (uint32_t)at[1] << 7;
        float rest = 2;
        T_TRUE(coli__row_check(&at, at + record.n_bytes, n, &rest));
        if ((double)rest > 0x1p-16) T_EQ(n_item, COLI__ROW_MOST);
        T_LE(n_item, COLI__ROW_MOST);
        compare(&row, &record, &same);
        T_TRUE(same);
        T_EQ(row.best, best);
        coli__buf_finish(&record);
        coli__row_finish(&row);
    }
}

/* Whatever a byte says, check reads within bounds; and what it accepts, compare can read. */
T_PROP(any_bytes, 3000)
{
    static float logits[64];
    const uint32_t n = random_row(&rng, logits, 64);
    coli__row row;
    T_OK(coli__row_init(&row, n));
    coli__buf record = record_of(&row, logits);
    for (uint32_t k = t_range(&rng, 1, 3); k > 0; k--)
        record.data[t_below(&rng, (uint32_t)record.n_bytes)] = (char)t_u64(&rng);
    const size_t n_bytes =
        t_below(&rng, 4) ? record.n_bytes : t_below(&rng, (uint32_t)record.n_bytes);
    if (check(&record, n_bytes, n)) {
        bool same;
        record.n_bytes = n_bytes;
        T_TRUE(!isnan(compare(&row, &record, &same)));
    }
    coli__buf_finish(&record);
    coli__row_finish(&row);
}

T_TEST(bad_logits)
{
    T_BEGIN;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    coli__row row;
    T_OK(coli__row_init(&row, 3));
    for (int i = 0; i < 3; i++) {
        const float logits[3] = {0, 1, bad[i]};
        T_FAILS(coli__row_take(&row, logits), COLI_E_NUMERIC, "token 2");
    }
    const float far[3] = {-0x1p127f, 0, 0x1p127f}; // as far apart as they can be
    T_OK(coli__row_take(&row, far));
    T_TRUE(coli__row_logprob(&row, 2) == 0 && row.best == 2);
    coli__buf record = {0};
    T_OK(coli__row_record(&row, &record));
    T_TRUE(check(&record, record.n_bytes, 3));
    coli__buf_finish(&record);
    coli__row_finish(&row);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worked),
        cmocka_unit_test(against_itself_nothing),
        cmocka_unit_test(divergence_is_right),
        cmocka_unit_test(the_rest_is_small),
        cmocka_unit_test(any_bytes),
        cmocka_unit_test(bad_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
