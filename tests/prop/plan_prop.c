/* plan_prop.c - what must hold for every plan, over random worlds.  Numbers are those of the
 * invariants in plan.c.  Counts and heats are small, for bugs live where ties are; now and then one is
 * as large as it can be.
 *
 * The oracle finds the same plan without sorting or merging: an expert's rank is the number of those
 * that come before it, the newcomer of rank k meets the victim of rank k on its device, and a swap's
 * place in the whole is the number of swaps whose newcomers come before. */
#include "plans.h"

enum { N_DEVICE = 3 };

typedef struct world {
    uint32_t n, n_device;
    uint8_t place[PLANS_MAX], home[PLANS_MAX], taken[PLANS_MAX];
    uint32_t heat[PLANS_MAX], counts[PLANS_MAX];
    coli__plan_world w;
} world;

static uint32_t small_or_huge(t_rng *rng)
{
    const uint32_t huge = t_below(rng, 40);
    return huge < 2 ? UINT32_MAX - huge : t_below(rng, 5);
}

static void world_random(world *x, t_rng *rng)
{
    memset(x, 0, sizeof *x);
    x->w.n_layer = t_range(rng, 1, 3);
    x->w.n_expert = t_range(rng, 1, 14);
    x->n = x->w.n_layer * x->w.n_expert;
    x->n_device = t_range(rng, 1, N_DEVICE);
    static const char places[] = "KKKKRRRRAPQ";
    for (uint32_t i = 0; i < x->n; i++) {
        x->place[i] = plans_place(places[t_below(rng, sizeof places - 1)]);
        const bool homeless = t_below(rng, 20) == 0 && x->place[i] != COLI__PLACE_RESIDENT;
        x->home[i] = homeless ? COLI__NO_HOME : (uint8_t)t_below(rng, x->n_device);
        x->taken[i] = t_below(rng, 12) == 0;
        x->heat[i] = small_or_huge(rng);
        x->counts[i] = small_or_huge(rng);
    }
    x->w.place = x->place;
    x->w.home = x->home;
    if (t_below(rng, 4)) x->w.heat = x->heat;
    if (t_below(rng, 2)) x->w.taken = x->taken;
    if (x->n_device == 1 && t_below(rng, 2)) {
        x->w.home = NULL;
        memset(x->home, 0, sizeof x->home);
    }
}

static uint32_t plan(const world *x, int32_t layer, int32_t cap, coli__swap *swaps,
                     uint32_t *n_newcomer)
{
    coli__plan_key keys[PLANS_MAX];
    const uint32_t first = layer > 0 ? (uint32_t)layer * x->w.n_expert : 0;
    const coli__plan_ask ask = {layer, cap, x->counts + first};
    return coli__plan_swaps(&x->w, &ask, keys, swaps, n_newcomer);
}

static int32_t random_layer(const world *x, t_rng *rng)
{
    return (int32_t)t_below(rng, x->w.n_layer + 1) - 1;
}

/* ---- the oracle ---------------------------------------------------------------------------- */

static bool asked(const world *x, int32_t layer, uint32_t i)
{
    return layer < 0 || i / x->w.n_expert == (uint32_t)layer;
}
static bool may(const world *x, int32_t layer, uint32_t i, coli__place place)
{
    return asked(x, layer, i) && x->place[i] == place && x->home[i] != COLI__NO_HOME &&
           !(x->w.taken && x->taken[i]) && (place == COLI__PLACE_RESIDENT || x->counts[i] > 0);
}
static bool newcomer_before(const world *x, uint32_t a, uint32_t b)
{
    return x->counts[a] > x->counts[b] || (x->counts[a] == x->counts[b] && a < b);
}
static bool victim_before(const world *x, uint32_t a, uint32_t b)
{
    const uint32_t ha = x->w.heat ? x->heat[a] : 0, hb = x->w.heat ? x->heat[b] : 0;
    if (x->counts[a] != x->counts[b]) return x->counts[a] < x->counts[b];
    return ha != hb ? ha < hb : a < b;
}

/* How many of its kind on its device come before expert i. */
static uint32_t rank_of(const world *x, int32_t layer, uint32_t i, coli__place place)
{
    uint32_t rank = 0;
    for (uint32_t k = 0; k < x->n; k++)
        if (may(x, layer, k, place) && x->home[k] == x->home[i])
            rank += place == COLI__PLACE_KNOWN ? newcomer_before(x, k, i) : victim_before(x, k, i);
    return rank;
}

static uint32_t oracle(const world *x, int32_t layer, int32_t cap, coli__swap *swaps)
{
    coli__swap all[PLANS_MAX];
    uint32_t n = 0;
    for (uint32_t in = 0; in < x->n; in++)
        for (uint32_t out = 0; out < x->n; out++)
            if (may(x, layer, in, COLI__PLACE_KNOWN) && may(x, layer, out, COLI__PLACE_RESIDENT) &&
                x->home[in] == x->home[out] && x->counts[in] > x->counts[out] &&
                rank_of(x, layer, in, COLI__PLACE_KNOWN) ==
                    rank_of(x, layer, out, COLI__PLACE_RESIDENT))
                all[n++] = (coli__swap){in, out};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = 0;
        for (uint32_t k = 0; k < n; k++) at += newcomer_before(x, all[k].in, all[i].in);
        swaps[at] = all[i];
    }
    return n < (uint32_t)cap ? n : (uint32_t)cap;
}

T_PROP(plan_is_the_oracles, 4000)
{
    world x;
    world_random(&x, &rng);
    coli__swap swaps[PLANS_MAX], expected[PLANS_MAX];
    const int32_t layer = random_layer(&x, &rng), cap = (int32_t)t_range(&rng, 1, 25);
    uint32_t n_newcomer, n_expected = 0;
    const uint32_t n = plan(&x, layer, cap, swaps, &n_newcomer);
    T_EQ(n, oracle(&x, layer, cap, expected));
    for (uint32_t i = 0; i < n; i++)
        T_TRUE(swaps[i].in == expected[i].in && swaps[i].out == expected[i].out);
    for (uint32_t i = 0; i < x.n; i++) n_expected += may(&x, layer, i, COLI__PLACE_KNOWN);
    T_EQ(n_newcomer, n_expected);
}

/* ---- the invariants ------------------------------------------------------------------------ */

static uint64_t resident_count(const world *x, uint32_t device)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < x->n; i++)
        if (x->place[i] == COLI__PLACE_RESIDENT && x->home[i] == device) sum += x->counts[i];
    return sum;
}

T_PROP(plan_1_4_every_swap_raises_the_count_of_its_device, 4000)
{
    world x;
    world_random(&x, &rng);
    coli__swap swaps[PLANS_MAX];
    const uint32_t n = plan(&x, random_layer(&x, &rng), INT32_MAX, swaps, NULL);
    for (uint32_t i = 0; i < n; i++) {
        const coli__swap s = swaps[i];
        T_EQ(x.home[s.in], x.home[s.out]);
        T_TRUE(!x.w.taken || !(x.taken[s.in] || x.taken[s.out]));
        const uint64_t before = resident_count(&x, x.home[s.in]);
        plans_apply(x.place, &s, 1); // looks at both places: an expert in two swaps is seen here
        T_TRUE(resident_count(&x, x.home[s.in]) > before);
    }
}

T_PROP(plan_2_a_smaller_cap_is_a_beginning, 2000)
{
    world x;
    world_random(&x, &rng);
    coli__swap all[PLANS_MAX], cut[PLANS_MAX];
    const int32_t layer = random_layer(&x, &rng);
    const uint32_t n = plan(&x, layer, INT32_MAX, all, NULL);
    for (uint32_t cap = 0; cap <= n + 1; cap++) {
        T_EQ(plan(&x, layer, (int32_t)cap, cut, NULL), cap < n ? cap : n);
        if (n) T_MEM(cut, all, (cap < n ? cap : n) * sizeof *all);
    }
}

T_PROP(plan_3_carried_out_leaves_nothing, 2000)
{
    world x;
    world_random(&x, &rng);
    coli__swap swaps[PLANS_MAX];
    const int32_t layer = random_layer(&x, &rng);
    plans_apply(x.place, swaps, plan(&x, layer, INT32_MAX, swaps, NULL));
    T_EQ(plan(&x, layer, INT32_MAX, swaps, NULL), 0);
}

T_PROP(plan_5_names_of_devices_do_not_matter, 2000)
{
    world x;
    world_random(&x, &rng);
    coli__swap a[PLANS_MAX], b[PLANS_MAX];
    const int32_t layer = random_layer(&x, &rng), cap = (int32_t)t_range(&rng, 1, 8);
    const uint32_t n = plan(&x, layer, cap, a, NULL);
    static const uint8_t names[N_DEVICE] = {254, 0, 7};
    for (uint32_t i = 0; i < x.n; i++)
        if (x.home[i] != COLI__NO_HOME) x.home[i] = names[x.home[i]];
    x.w.home = x.home;
    T_EQ(plan(&x, layer, cap, b, NULL), n);
    T_MEM(a, b, n * sizeof *a);
}

T_PROP(plan_6_slow_swaps_end, 1000)
{
    world x;
    world_random(&x, &rng);
    for (uint32_t i = 0; i < x.n; i++) x.heat[i] = t_below(&rng, 2) ? x.heat[i] : t_below(&rng, 40);
    x.w.heat = x.heat;
    for (uint32_t device = 0; device < x.n_device; device++) {
        coli__swap s;
        uint32_t n = 0;
        for (; coli__plan_slow_swap(&x.w, device, &s); n++) {
            T_TRUE(x.home[s.in] == device && x.home[s.out] == device);
            T_TRUE((double)x.heat[s.in] > x.heat[s.out] * 1.25 + 3.25);
            for (uint32_t i = 0; i < x.n; i++) {
                if (x.home[i] != device) continue;
                if (x.place[i] == COLI__PLACE_KNOWN)
                    T_TRUE(x.heat[i] < x.heat[s.in] || (x.heat[i] == x.heat[s.in] && i >= s.in));
                if (x.place[i] == COLI__PLACE_RESIDENT)
                    T_TRUE(x.heat[i] > x.heat[s.out] || (x.heat[i] == x.heat[s.out] && i >= s.out));
            }
            plans_apply(x.place, &s, 1);
            T_LE(n, x.n);
        }
    }
}

/* ---- the warm start ------------------------------------------------------------------------ */

T_PROP(order_is_a_permutation_by_heat_expert_layer, 1000)
{
    world x;
    world_random(&x, &rng);
    coli__plan_key keys[PLANS_MAX];
    uint32_t ids[PLANS_MAX];
    uint8_t seen[PLANS_MAX] = {0};
    coli__plan_order(x.w.n_layer, x.w.n_expert, x.w.heat, keys, ids);
    for (uint32_t i = 0; i < x.n; i++) {
        T_TRUE(ids[i] < x.n && !seen[ids[i]]++);
        if (i == 0) continue;
        const uint32_t a = ids[i - 1], b = ids[i], e = x.w.n_expert;
        const uint32_t ha = x.w.heat ? x.heat[a] : 0, hb = x.w.heat ? x.heat[b] : 0;
        T_TRUE(ha > hb || (ha == hb && (a % e < b % e || (a % e == b % e && a / e < b / e))));
    }
}

/* On each device: all that wanted a place, or exactly as many as there were, the first in order. */
T_PROP(fill_takes_the_first_for_whom_there_is_room, 1000)
{
    world x;
    world_random(&x, &rng);
    coli__plan_key keys[PLANS_MAX];
    uint32_t ids[PLANS_MAX], chosen[PLANS_MAX], room[N_DEVICE], left[N_DEVICE];
    coli__plan_order(x.w.n_layer, x.w.n_expert, x.w.heat, keys, ids);
    for (uint32_t d = 0; d < N_DEVICE; d++) room[d] = left[d] = t_below(&rng, 12);
    const uint32_t n = coli__plan_fill(&x.w, ids, x.n, left, x.n_device, chosen);
    uint32_t at = 0;
    for (uint32_t i = 0; i < x.n; i++) {
        const uint32_t id = ids[i], d = x.home[id];
        const bool wants =
            d < x.n_device && (x.place[id] == COLI__PLACE_AWAY || x.place[id] == COLI__PLACE_KNOWN);
        if (!wants || room[d] == 0) continue;
        room[d]--;
        T_TRUE(at < n && chosen[at] == id);
        at++;
    }
    T_EQ(at, n);
    T_MEM(room, left, sizeof room);
}

/* ---- heat ---------------------------------------------------------------------------------- */

/* Against counters that are wide enough, cut only when they are looked at. */
T_PROP(heat_is_what_wide_counters_say, 300)
{
    enum { L = 2, E = 3 };
    uint32_t stored[L * E], count[L * E];
    uint64_t wide[L * E];
    coli__heat h;
    for (int i = 0; i < L * E; i++) {
        stored[i] = t_below(&rng, 3) ? t_below(&rng, 9) : UINT32_MAX - t_below(&rng, 3);
        wide[i] = stored[i] / 2;
    }
    coli__heat_init(&h, L, E, count, stored);
    const uint32_t n_tick = t_range(&rng, 1, 3000);
    for (uint32_t t = 1; t <= n_tick; t++) {
        T_EQ(coli__heat_tick(&h), t % 16 == 0);
        for (int i = 0; i < L * E; i++)
            if (t % 1024 == 0) wide[i] /= 2;
        if (t % 700 == 0) // near the edge
            for (int i = 0; i < L * E; i++) wide[i] = count[i] = UINT32_MAX - t_below(&rng, 9);
        const uint32_t layer = t_below(&rng, L);
        int32_t ids[4];
        for (int i = 0; i < 4; i++) {
            ids[i] = (int32_t)t_below(&rng, E + 1) - 1;
            if (ids[i] < 0) continue;
            uint64_t *cell = &wide[layer * E + (uint32_t)ids[i]];
            if (*cell < UINT32_MAX) ++*cell;
        }
        coli__heat_use(&h, layer, ids, 4);
    }
    for (int i = 0; i < L * E; i++) T_EQ(count[i], wide[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_is_the_oracles),
        cmocka_unit_test(plan_1_4_every_swap_raises_the_count_of_its_device),
        cmocka_unit_test(plan_2_a_smaller_cap_is_a_beginning),
        cmocka_unit_test(plan_3_carried_out_leaves_nothing),
        cmocka_unit_test(plan_5_names_of_devices_do_not_matter),
        cmocka_unit_test(plan_6_slow_swaps_end),
        cmocka_unit_test(order_is_a_permutation_by_heat_expert_layer),
        cmocka_unit_test(fill_takes_the_first_for_whom_there_is_room),
        cmocka_unit_test(heat_is_what_wide_counters_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
