/* route_oracle.c - cache-aware routing against slow code that shares nothing with it: ranks by asking for
 * the best expert over and over, the fill by asking every rank for every level, KL with libm.
 *
 * Numbers are drawn from a few values, and from a few more, because mistakes live where ties are.
 *
 * Tolerances.  Given masses are exact, and alphas powers of two.  A softmax subtracts two numbers, an error
 * of 2^-24 of their difference d that is relative to the result, and takes an exponential within 1 ulp:
 * (d + 4) 2^-24.  KL: terms up to 28, summed in double, from weights with that error and
 * d below 100: 28 * 104 * 2^-24 = 2e-4; 1e-12 for given masses. */
#include "t.h"

#include "libcoli/src/moe/route.h"

enum { MAX_E = 300 };

typedef struct world {
    coli__route_rule rule;
    float choice[MAX_E], mass[MAX_E];
    uint8_t keep[MAX_E], level[MAX_E];
    coli__route_row row;
} world;

static float some_number(t_rng *rng, uint32_t kind)
{
    switch (kind) {
    case 0:
        return (float)t_below(rng, 4);
    case 1:
        return (float)t_below(rng, 40) * 0.25f - 5;
    default:
        return 3 * t_normal(rng);
    }
}

static void world_random(world *w, t_rng *rng)
{
    const uint32_t n = t_below(rng, 4) ? t_range(rng, 1, 24) : t_range(rng, 1, MAX_E);
    const uint32_t kind = t_below(rng, 3), n_used = t_range(rng, 1, n < 12 ? n + 2 : 12);
    const uint32_t window = t_range(rng, 0, 28);
    static const float shares[] = {0, 0, 0, 0.5f, 0.9f, 0.25f, 1, -1, NAN};
    static const float alphas[] = {1, 1, 0.5f, 0.25f, 0, 3};
    const float share = t_below(rng, 4) ? shares[t_below(rng, 9)] : (float)t_unit(rng);
    w->rule = (coli__route_rule){
        .n_expert = n,
        .n_used = n_used,
        .n_sure = t_below(rng, n_used + 3),
        .n_list = t_below(rng, 2) ? coli__route_list_softmax(n_used, window, share)
                                  : coli__route_list_sigmoid(n_used, window),
        .mass = share,
        .alpha = alphas[t_below(rng, 6)],
    };
    const bool same = t_below(rng, 2), has_bad = t_below(rng, 50) == 0;
    const uint32_t at_hand = t_below(rng, 4), masked = t_below(rng, 3) ? 0 : t_range(rng, 1, 9);
    for (uint32_t e = 0; e < n; e++) {
        w->choice[e] = some_number(rng, kind);
        w->mass[e] = same ? fabsf(w->choice[e]) : fabsf(some_number(rng, kind));
        if (same) w->choice[e] = w->mass[e];
        w->keep[e] = t_below(rng, 10) >= masked;
        w->level[e] = t_below(rng, 4) < at_hand ? (uint8_t)t_range(rng, 1, 2) : 0;
        if (has_bad && t_below(rng, 4) == 0)
            *(t_below(rng, 2) ? &w->mass[e] : &w->choice[e]) = t_below(rng, 2) ? NAN : INFINITY;
    }
    w->row = (coli__route_row){w->choice, t_below(rng, 2) ? w->mass : NULL,
                               t_below(rng, 2) ? w->keep : NULL, t_below(rng, 4) ? w->level : NULL};
}

/* -- the oracle -------------------------------------------------------------------------------- */

typedef struct answer {
    uint32_t n, n_swap, n_vram;
    int ids[MAX_E];
    double values[MAX_E], kl;
    bool close; // a window's border was too close to call
} answer;

static bool eligible(const world *w, uint32_t e)
{
    if (w->row.keep && !w->row.keep[e]) return false;
    return isfinite(w->choice[e]) && (!w->row.mass || (isfinite(w->mass[e]) && w->mass[e] >= 0));
}

static double weight(const world *w, int e, int beside)
{
    return w->row.mass ? (double)w->mass[e] : exp((double)w->choice[e] - (double)w->choice[beside]);
}

static bool has(const int *ids, uint32_t n, int id)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* Window: ranks below it may be taken for their level. */
static uint32_t oracle_window(const world *w, const int *ranks, uint32_t n, uint32_t n_true,
                              bool *close)
{
    const double P = (double)w->rule.mass;
    if (!(P > 0 && P < 1)) return n;
    double all = 1e-20, sum = 0;
    for (uint32_t r = 0; r < n; r++) all += weight(w, ranks[r], ranks[0]);
    for (uint32_t r = 0; r < n; r++) {
        sum += weight(w, ranks[r], ranks[0]);
        if (!w->row.mass && fabs(sum - P * all) < 4e-6 * all) *close = true;
        if (sum >= P * all) return r + 1 > n_true ? r + 1 : n_true;
    }
    return n;
}

static void oracle(const world *w, answer *a)
{
    int ranks[MAX_E];
    uint32_t n = 0, limit = w->rule.n_list > w->rule.n_used ? w->rule.n_list : w->rule.n_used;
    *a = (answer){0};
    while (n < limit) {
        int best = -1;
        for (uint32_t e = 0; e < w->rule.n_expert; e++)
            if (eligible(w, e) && !has(ranks, n, (int)e) &&
                (best < 0 || w->choice[e] > w->choice[best]))
                best = (int)e;
        if (best < 0) break;
        ranks[n++] = best;
    }
    const uint32_t n_true = n < w->rule.n_used ? n : w->rule.n_used;
    const uint32_t window = oracle_window(w, ranks, n, n_true, &a->close);
    int chosen[MAX_E];
    for (uint32_t r = 0; r < w->rule.n_sure && r < n_true; r++) chosen[a->n++] = ranks[r];
    for (int level = 2; level >= 1; level--)
        for (uint32_t r = w->rule.n_sure; r < window && a->n < n_true; r++)
            if (w->row.level && w->level[ranks[r]] == level) chosen[a->n++] = ranks[r];
    for (uint32_t r = 0; a->n < n_true; r++)
        if (!has(chosen, a->n, ranks[r])) chosen[a->n++] = ranks[r];
    uint32_t i = 0;
    for (uint32_t r = 0; r < n; r++)
        if (has(chosen, a->n, ranks[r])) a->ids[i++] = ranks[r];
    const double alpha = w->rule.alpha > 0 && w->rule.alpha < 1 ? (double)w->rule.alpha : 1;
    double all_true = 1e-20, all_chosen = 1e-20;
    for (i = 0; i < a->n; i++) {
        const bool is_true = has(ranks, n_true, a->ids[i]);
        a->values[i] = weight(w, a->ids[i], a->ids[0]) * (is_true ? 1 : alpha);
        a->n_swap += !is_true;
        a->n_vram += !is_true && w->level[a->ids[i]] == 2;
        all_chosen += a->values[i];
        all_true += weight(w, ranks[i], ranks[0]);
    }
    for (uint32_t r = 0; r < n_true; r++) {
        double c = 1e-12;
        for (i = 0; i < a->n; i++)
            if (a->ids[i] == ranks[r]) c = a->values[i] / all_chosen;
        const double p = weight(w, ranks[r], ranks[0]) / all_true;
        if (p > 0) a->kl += p * log(p / c);
    }
}

T_PROP(agrees_with_slow_code, 100000)
{
    world w;
    answer want;
    world_random(&w, &rng);
    oracle(&w, &want);
    if (want.close) return;
    int32_t ids[MAX_E];
    float values[MAX_E];
    coli__route_cost cost;
    const bool sound = coli__route_choose(&w.rule, &w.row, ids, values, &cost);
    bool all_sound = true;
    for (uint32_t e = 0; e < w.rule.n_expert; e++)
        all_sound &=
            isfinite(w.choice[e]) && (!w.row.mass || (isfinite(w.mass[e]) && w.mass[e] >= 0));
    T_EQ(sound, all_sound);
    T_EQ(cost.n_slot, want.n);
    T_EQ(cost.n_swap, want.n_swap);
    T_EQ(cost.n_swap_vram, want.n_vram);
    for (uint32_t i = 0; i < w.rule.n_used; i++) {
        T_EQ(ids[i], i < want.n ? want.ids[i] : -1);
        const double value = i < want.n ? want.values[i] : 0;
        const double off = fabs((double)values[i] - value);
        const double d = value > 0 ? fabs(log(value)) + 3 : 0;
        T_FLE(off, w.row.mass ? 0 : (d + 1) * 0x1p-24 * value + 0x1p-126);
    }
    T_FLE(fabs(cost.kl - want.kl), (w.row.mass ? 1e-12 : 2e-4) * (1 + want.kl));
}

/* ---- beside plain routing ------------------------------------------------------------------ */

/* Where nothing is exchanged the bytes are those of plain routing: the same ids, and weights. */
T_PROP(no_swap_same_bytes, 20000)
{
    const coli__kernels *k;
    T_OK(coli__kernels_get(t_below(&rng, 2) ? NULL : "scalar", &k));
    world w;
    world_random(&w, &rng);
    if (w.rule.n_used > w.rule.n_expert) w.rule.n_used = w.rule.n_expert;
    for (uint32_t e = 0; e < w.rule.n_expert; e++)
        if (!isfinite(w.choice[e])) w.choice[e] = -1;
    w.row = (coli__route_row){.choice = w.choice, .level = t_below(&rng, 2) ? w.level : NULL};
    if (w.row.level) memset(w.level, (int)t_below(&rng, 3), sizeof w.level); // all at one level
    int32_t ids[MAX_E], plain_ids[MAX_E];
    float values[MAX_E], plain[MAX_E];
    coli__route_cost cost;
    T_TRUE(coli__route_choose(&w.rule, &w.row, ids, values, &cost));
    T_EQ(cost.n_swap, 0);
    T_TRUE(cost.kl == 0);
    coli__route_normalise(values, w.rule.n_used);
    T_TRUE(coli__route_softmax_topk(k, w.choice, w.rule.n_expert, w.rule.n_used, plain_ids, plain));
    T_MEM(ids, plain_ids, w.rule.n_used * sizeof *ids);
    T_MEM(values, plain, w.rule.n_used * sizeof *values);
}

/* A model that uses two experts has nothing to exchange beside J = 2. */
T_PROP(top_two_never_swaps, 20000)
{
    world w;
    world_random(&w, &rng);
    w.rule.n_used = 2;
    w.rule.n_sure = 2;
    int32_t ids[2];
    float values[2];
    coli__route_cost cost;
    coli__route_choose(&w.rule, &w.row, ids, values, &cost);
    T_EQ(cost.n_swap, 0);
    T_TRUE(cost.kl == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(agrees_with_slow_code),
                                       cmocka_unit_test(no_swap_same_bytes),
                                       cmocka_unit_test(top_two_never_swaps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
