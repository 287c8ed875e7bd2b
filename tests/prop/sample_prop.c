/* sample_prop.c - the sampler against a slow one that sorts everything and works in double, and
 * what it promises about ties, padding, NaN and repetition. */
#include "t.h"

#include "coli/exact.h"
#include "libcoli/src/base/alloc.h"
#include "libcoli/src/math/sample.h"

enum { N = 400 }; // some blocks of those that are looked at together

static const coli_sampling neutral = {sizeof(coli_sampling), 1.0f, 0, 1.0f, 0.0f, 1.0f, 0.0f, 0};

typedef struct world {
    float logits[N + 8]; // the last eight are padding rows with the largest logits
    uint32_t seen[N], made[N];
    uint32_t n;
    coli_sampling s;
    uint64_t scratch[N];
} world;

static coli__sample_args args_of(world *w)
{
    return (coli__sample_args){w->logits, w->n, w->seen, w->made, &w->s, w->scratch};
}

static void world_random(world *w, t_rng *rng)
{
    memset(w, 0, sizeof *w);
    w->n = t_range(rng, 1, N);
    const bool ties = t_below(rng, 2);
    for (uint32_t i = 0; i < w->n; i++) {
        w->logits[i] = ties ? (float)t_below(rng, 6) - 3.0f : 3.0f * t_normal(rng);
        w->seen[i] = t_below(rng, 3) == 0;
        w->made[i] = w->seen[i] && t_below(rng, 2);
    }
    for (uint32_t i = w->n; i < N + 8; i++) w->logits[i] = 1e30f;
    w->s = neutral;
    w->s.temperature = (float)(0.3 + 2.0 * t_unit(rng));
    if (t_below(rng, 2)) w->s.top_k = t_range(rng, 1, w->n + 3);
    if (t_below(rng, 2)) w->s.top_p = (float)t_unit(rng);
    if (t_below(rng, 2)) w->s.min_p = (float)t_unit(rng) * 0.5f;
    if (t_below(rng, 2)) w->s.repetition_penalty = (float)(0.8 + t_unit(rng));
    if (t_below(rng, 2)) w->s.presence_penalty = (float)(2.0 * t_unit(rng) - 0.5);
}

/* ---- the slow one --------------------------------------------------------------------------- */

typedef struct item {
    double logit, p;
    uint32_t id;
} item;

static int by_rank(const void *a, const void *b)
{
    const item *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Probabilities of the ranks that are kept; 0 for the others.  *margin is how near the nearest
 * cut was to the other side, relative to all mass. */
static uint32_t slow(const world *w, item *items, double *margin)
{
    for (uint32_t i = 0; i < w->n; i++) {
        float x = w->logits[i];
        if (w->seen[i]) x = x > 0.0f ? x / w->s.repetition_penalty : x * w->s.repetition_penalty;
        if (w->made[i]) x -= w->s.presence_penalty;
        items[i] = (item){(double)x, 0.0, i};
    }
    qsort(items, w->n, sizeof *items, by_rank);
    const uint32_t k = w->s.top_k && w->s.top_k < w->n ? w->s.top_k : w->n;
    double total = 0.0, sum = 0.0;
    for (uint32_t i = 0; i < k; i++) {
        items[i].p = exp((items[i].logit - items[0].logit) / (double)w->s.temperature);
        total += items[i].p;
    }
    uint32_t kept = 0;
    *margin = 1.0;
    for (; kept < k; kept++) {
        const double to_top_p = sum / total - (double)w->s.top_p;
        const double to_min_p = items[kept].p - (double)w->s.min_p;
        if (kept > 0 && w->s.top_p < 1.0f) *margin = fmin(*margin, fabs(to_top_p));
        if (kept > 0 && w->s.min_p > 0.0f) *margin = fmin(*margin, fabs(to_min_p));
        if (kept > 0 && ((w->s.top_p < 1.0f && to_top_p >= 0.0) || to_min_p < 0.0)) break;
        sum += items[kept].p;
    }
    for (uint32_t i = 0; i < kept; i++) items[i].p /= sum;
    return kept;
}

/* The draw maps the generator's number to a rank by cumulative mass: compute the same rank. */
T_PROP(draws_as_the_slow_one, 3000)
{
    world w;
    world_random(&w, &rng);
    item items[N];
    double margin;
    const uint32_t kept = slow(&w, items, &margin);
    if (margin < 1e-5) return; // float exponentials may fall on the other side
    coli__rng ours, same;
    coli__rng_seed(&ours, t_u64(&rng));
    for (uint32_t i = 0; i < 20; i++) {
        same = ours;
        const double u = (double)(coli__rng_next(&same) >> 11) * 0x1p-53;
        const coli__sample_args args = args_of(&w);
        const uint32_t id = coli__sample(&args, &ours);
        T_MEM(&ours, &same, sizeof ours); // exactly one number is drawn
        double below = 0.0;
        bool found = false;
        for (uint32_t r = 0; r < kept; r++) { // within 1e-5 of its interval of [0, 1)
            if (items[r].id == id) {
                found = true;
                T_FGE(u, below - 1e-5);
                T_FLE(u, below + items[r].p + 1e-5);
            }
            below += items[r].p;
        }
        T_TRUE(found);
    }
}

T_PROP(greedy_takes_the_first_rank, 2000)
{
    world w;
    world_random(&w, &rng);
    item items[N];
    double margin;
    slow(&w, items, &margin);
    w.s.temperature = 0.0f;
    coli__rng g = {{1, 2, 3, 4}}, before = g;
    const coli__sample_args args = args_of(&w);
    T_EQ(coli__sample(&args, &g), items[0].id);
    T_MEM(&g, &before, sizeof g);

    w.s.temperature = 1.0f; // one candidate is the same, whatever the draw
    w.s.top_k = 1;
    T_EQ(coli__sample(&args, &g), items[0].id);
    w.s.top_k = 0;
    w.s.top_p = 0.0f;
    T_EQ(coli__sample(&args, &g), items[0].id);
    w.s.top_p = 1.0f;
    w.s.temperature = 1e-30f;
    const uint32_t id = coli__sample(&args, &g);
    for (uint32_t i = 0; i < w.n; i++)
        if (items[i].id == id) T_TRUE(items[i].logit == items[0].logit);
}

T_TEST(odd_logits)
{
    T_BEGIN;
    const float nan = coli_from_bits(0xFFC00000u), inf = coli_from_bits(0x7F800000u);
    float logits[4] = {nan, -inf, -3.0f, nan};
    uint64_t scratch[4];
    coli_sampling s = neutral;
    const coli__sample_args args = {logits, 4, NULL, NULL, &s, scratch};
    coli__rng g;
    coli__rng_seed(&g, 1);
    for (uint32_t i = 0; i < 100; i++) T_EQ(coli__sample(&args, &g), 2);
    s.temperature = 0.0f;
    T_EQ(coli__sample(&args, &g), 2);
    logits[2] = nan;
    T_EQ(coli__sample(&args, &g), 0);
    s.temperature = 1.0f;
    T_TRUE(coli__sample(&args, &g) < 4);
    logits[1] = logits[3] = inf;
    s.top_k = 3;
    s.top_p = 0.5f;
    for (uint32_t i = 0; i < 100; i++) T_EQ(coli__sample(&args, &g) & 1, 1);
    logits[0] = 0.0f;
    logits[1] = -0.0f; // the zeros are equal: the lower id
    logits[2] = logits[3] = -1.0f;
    s.temperature = 0.0f;
    T_EQ(coli__sample(&args, &g), 0);
    T_EQ(coli__sample_scratch_bytes(4) <= sizeof scratch, 1);
}

/* Golden numbers of the generator: seeds in the wild must keep their meaning. */
T_TEST(generator_is_fixed)
{
    T_BEGIN;
    coli__rng g = {{1, 2, 3, 4}}; // the authors' reference program
    T_EQ(coli__rng_next(&g), 41943041);
    T_EQ(coli__rng_next(&g), 58720359);
    T_EQ(coli__rng_next(&g), 3588806011781223);
    coli__rng_seed(&g, 0);
    T_EQ(g.s[0], (int64_t)0xE220A8397B1DCDAFu);
    T_EQ(g.s[1], (int64_t)0x6E789E6AA1B965F4u);
}

/* Two equal tokens share [0, 1): the generator's exact half belongs to the second. */
T_TEST(border_belongs_to_the_next_rank)
{
    T_BEGIN;
    const float logits[2] = {1.0f, 1.0f};
    uint64_t scratch[2];
    const coli__sample_args args = {logits, 2, NULL, NULL, &neutral, scratch};
    coli__rng g = {{0, 0, 0, 1ull << 40}}; // its next number is 2^63
    T_EQ(coli__sample(&args, &g), 1);
    g = (coli__rng){{0, 0, 0, (1ull << 40) - 1}}; // a little less
    T_EQ(coli__sample(&args, &g), 0);
}

/* Frequencies over many draws: a chi-square far in the tail means that the mapping is uneven. */
T_TEST(frequencies)
{
    T_BEGIN;
    enum { DRAWS = 100000, IDS = 8 };
    float logits[IDS];
    double p[IDS], total = 0.0, chi2 = 0.0;
    uint32_t count[IDS] = {0};
    for (uint32_t i = 0; i < IDS; i++) {
        logits[i] = (float)i * 0.4f;
        total += p[i] = exp((double)logits[i]);
    }
    uint64_t scratch[IDS];
    const coli__sample_args args = {logits, IDS, NULL, NULL, &neutral, scratch};
    coli__rng g;
    coli__rng_seed(&g, 5);
    for (uint32_t i = 0; i < DRAWS; i++) count[coli__sample(&args, &g)]++;
    for (uint32_t i = 0; i < IDS; i++) {
        const double expected = DRAWS * p[i] / total, d = (double)count[i] - expected;
        chi2 += d * d / expected;
    }
    T_FLE(chi2, 24.3); // 7 degrees of freedom: one seed in a thousand exceeds it, this one does not
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_as_the_slow_one),
        cmocka_unit_test(greedy_takes_the_first_rank),
        cmocka_unit_test(border_belongs_to_the_next_rank),
        cmocka_unit_test(odd_logits),
        cmocka_unit_test(generator_is_fixed),
        cmocka_unit_test(frequencies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
