/* route_test.c - cache-aware routing by hand: the worked cases, and every clause of route.h alone.
 *
 * Sixteen experts, expert e weighs 16 - e, so that rank and id are the same and the masses sum to 136;
 * four are used, J = 2, M = 12, P = 0, alpha = 1 where nothing else is said. */
#include "t.h"

#include "libcoli/src/moe/route.h"

enum { E = 16, K = 4 };
enum { RAM = COLI_LEVEL_RAM, VRAM = COLI_LEVEL_VRAM };

typedef struct at {
    int expert, level;
} at;

typedef struct world {
    float mass[E];
    uint8_t keep[E], level[E];
    coli__route_rule rule;
} world;

static world fresh(void)
{
    world w = {.rule = {.n_expert = E,
                        .n_used = K,
                        .n_sure = 2,
                        .n_list = coli__route_list_softmax(K, 12, 0),
                        .alpha = 1}};
    for (int e = 0; e < E; e++) {
        w.mass[e] = (float)(E - e);
        w.keep[e] = 1;
    }
    return w;
}

typedef struct choice {
    int32_t ids[COLI__ROUTE_MAX];
    float values[COLI__ROUTE_MAX];
    coli__route_cost cost;
    bool sound;
} choice;

static choice choose(const world *w)
{
    choice c;
    const coli__route_row row = {w->mass, w->mass, w->keep, w->level};
    c.sound = coli__route_choose(&w->rule, &row, c.ids, c.values, &c.cost);
    return c;
}

static void expect_ids(const choice *c, const int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) T_EQ(c->ids[i], ids[i]);
}

/* ---- worked cases -------------------------------------------------------------------------- */

typedef struct worked {
    const char *name;
    at at[4]; // until level 0
    int32_t j, m;
    float p, alpha;
    uint32_t n_used;
    uint64_t masked; // bits of experts that may not be chosen
    int32_t ids[K];  // in the order of their ranks
    uint32_t n_swap, n_vram, n_slot;
    double kl;
} worked;

static const worked cases[] = {
    {"C1", {{0, 0}}, 2, 12, 0, 1, K, 0, {0, 1, 2, 3}, 0, 0, 4, 0},
    {"C2", {{7, RAM}}, 2, 12, 0, 1, K, 0, {0, 1, 2, 7}, 1, 0, 4, 5.802520752},
    {"C3", {{2, RAM}, {3, VRAM}}, 2, 12, 0, 1, K, 0, {0, 1, 2, 3}, 0, 0, 4, 0},
    {"C4", {{9, VRAM}, {5, RAM}}, 2, 12, 0, 1, K, 0, {0, 1, 5, 9}, 2, 1, 4, 12.094300845},
    {"C5", {{12, VRAM}, {13, RAM}}, 2, 12, 0, 1, K, 0, {0, 1, 2, 3}, 0, 0, 4, 0},
    {"C5, M 16", {{12, VRAM}, {13, RAM}}, 2, 16, 0, 1, K, 0, {0, 1, 12, 13}, 2, 1, 4, 11.958417082},
    {"C6",
     {{4, RAM}, {5, RAM}, {6, RAM}, {7, RAM}},
     0,
     12,
     0,
     1,
     K,
     0,
     {4, 5, 6, 7},
     4,
     0,
     4,
     26.247704258},
    {"C7", {{4, RAM}, {5, RAM}}, 4, 12, 0, 1, K, 0, {0, 1, 2, 3}, 0, 0, 4, 0},
    {"C8", {{1, VRAM}, {7, RAM}}, 2, 12, 0, 1, K, 1u << 1, {0, 2, 3, 7}, 1, 0, 4, 5.652568871},
    {"C9", {{7, RAM}}, 2, 12, 0, 0.5f, K, 0, {0, 1, 2, 7}, 1, 0, 4, 5.735011925},
    {"C10", {{4, RAM}, {5, RAM}}, 2, 12, 0.5f, 1, K, 0, {0, 1, 2, 4}, 1, 0, 4, 5.844469459},
    {"C11", {{0, 0}}, 2, 12, 0, 1, K, 0xFFFF & ~0x208u, {3, 9, -1, -1}, 0, 0, 2, 0},
    {"C12", {{5, VRAM}}, 2, 12, 0, 1, 2, 0, {0, 1}, 0, 0, 2, 0},
    {"C13",
     {{4, VRAM}, {5, VRAM}, {6, VRAM}},
     2,
     12,
     0,
     1,
     K,
     0,
     {0, 1, 4, 5},
     2,
     2,
     4,
     12.146233194},
};

T_TEST(worked_cases)
{
    T_BEGIN;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const worked *k = &cases[i];
        world w = fresh();
        w.rule.n_used = k->n_used;
        w.rule.n_sure = (uint32_t)k->j;
        w.rule.n_list = coli__route_list_softmax(k->n_used, (uint32_t)k->m, k->p);
        w.rule.mass = k->p;
        w.rule.alpha = k->alpha;
        for (const at *a = k->at; a < k->at + 4 && a->level; a++)
            w.level[a->expert] = (uint8_t)a->level;
        for (int e = 0; e < E; e++) w.keep[e] = !(k->masked >> e & 1);
        const choice c = choose(&w);
        print_message("    %s\n", k->name);
        T_TRUE(c.sound);
        expect_ids(&c, k->ids, k->n_used);
        T_EQ(c.cost.n_swap, k->n_swap);
        T_EQ(c.cost.n_swap_vram, k->n_vram);
        T_EQ(c.cost.n_slot, k->n_slot);
        T_FLE(fabs(c.cost.kl - k->kl), 5e-10); // as it was written down
        if (k->kl == 0) T_TRUE(c.cost.kl == 0);
        for (uint32_t s = 0; s < k->n_used; s++) {
            const float mass = c.ids[s] < 0 ? 0 : w.mass[c.ids[s]];
            const bool halved = strcmp(k->name, "C9") == 0 && c.ids[s] == 7;
            T_TRUE(c.values[s] == (halved ? 4.5f : mass));
        }
    }
}

/* ---- clauses ------------------------------------------------------------------------------- */

T_TEST(ties_go_to_the_lower_id)
{
    T_BEGIN;
    world w = fresh();
    for (int e = 0; e < E; e++) w.mass[e] = 1;
    w.mass[9] = 2;
    choice c = choose(&w);
    expect_ids(&c, (const int32_t[]){9, 0, 1, 2}, K);
    w.level[11] = VRAM; // rank 11: the last of the window, as 9 has come before
    w.level[12] = VRAM;
    c = choose(&w);
    expect_ids(&c, (const int32_t[]){9, 0, 1, 11}, K);
    T_EQ(c.cost.n_swap, 1);
}

T_TEST(sure_ranks_stay_in_order)
{
    T_BEGIN;
    world w = fresh();
    memset(w.level, VRAM, E);
    choice c = choose(&w); // all are at hand: nothing is exchanged
    expect_ids(&c, (const int32_t[]){0, 1, 2, 3}, K);
    T_EQ(c.cost.n_swap, 0);
    memset(w.level, RAM, E); // a mapped model without a device
    c = choose(&w);
    expect_ids(&c, (const int32_t[]){0, 1, 2, 3}, K);
    w.level[0] = w.level[1] = COLI_LEVEL_DISK; // the sure ones are taken from wherever they are
    c = choose(&w);
    expect_ids(&c, (const int32_t[]){0, 1, 2, 3}, K);
    w.rule.n_sure = 1000; // J beyond K is K
    w.level[7] = VRAM;
    c = choose(&w);
    expect_ids(&c, (const int32_t[]){0, 1, 2, 3}, K);
}

T_TEST(vram_before_ram_before_disk)
{
    T_BEGIN;
    world w = fresh();
    w.rule.n_sure = 0;
    w.level[11] = w.level[8] = VRAM;
    w.level[2] = w.level[4] = RAM;
    choice c = choose(&w); // 8 and 11, then 2 and 4
    expect_ids(&c, (const int32_t[]){2, 4, 8, 11}, K);
    T_EQ(c.cost.n_swap, 3);
    T_EQ(c.cost.n_swap_vram, 2);
    w.level[3] = RAM; // before 4
    c = choose(&w);
    expect_ids(&c, (const int32_t[]){2, 3, 8, 11}, K);
    w.level[2] = w.level[3] = w.level[4] = 0;
    c = choose(&w); // then plain ranks
    expect_ids(&c, (const int32_t[]){0, 1, 8, 11}, K);
}

T_TEST(the_window_is_counted_in_ranks)
{
    T_BEGIN;
    world w = fresh();
    for (uint32_t m = 0; m <= 40; m++) { // also below K and beyond E
        w = fresh();
        w.rule.n_list = coli__route_list_softmax(K, m, 0);
        T_EQ(w.rule.n_list, m < K ? K : m);
        for (int e = K; e < E; e++) {
            memset(w.level, 0, E);
            w.level[e] = VRAM;
            const choice c = choose(&w);
            T_EQ(c.cost.n_swap, (uint32_t)e < m);
            T_EQ(c.ids[3], (uint32_t)e < m ? e : 3);
        }
    }
    w = fresh();
    w.rule.n_list = 1; // a list shorter than K is K long
    const choice c = choose(&w);
    expect_ids(&c, (const int32_t[]){0, 1, 2, 3}, K);
}

/* Where the window ends: the highest rank that is taken for its level. */
static uint32_t window_end(world *w)
{
    for (uint32_t e = E; e-- > K;) {
        memset(w->level, 0, E);
        w->level[e] = VRAM;
        if (choose(w).cost.n_swap) return e + 1;
    }
    return K;
}

T_TEST(the_window_by_mass)
{
    T_BEGIN;
    world w = fresh();
    w.rule.mass = 0.5f;
    w.rule.n_list = coli__route_list_softmax(K, 12, 0.5f);
    T_EQ(w.rule.n_list, 16);   // 4 K
    T_EQ(window_end(&w), 5);   // 16 + 15 + 14 + 13 + 12 = 70 of 68
    w.rule.mass = 70.0f / 136; // reached to the last bit, or not
    T_TRUE(window_end(&w) == 5 || window_end(&w) == 6);
    w.rule.mass = 0.51f; // 69.36
    T_EQ(window_end(&w), 5);
    w.rule.mass = 0.52f; // 70.72
    T_EQ(window_end(&w), 6);
    w.rule.mass = 0.001f; // never less than K
    T_EQ(window_end(&w), K);
    w.rule.mass = 0.999f;
    T_EQ(window_end(&w), E);
    const float off[] = {0, -1, 1, 2, NAN, INFINITY};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        w.rule.mass = off[i];
        w.rule.n_list = coli__route_list_softmax(K, 12, off[i]);
        T_EQ(window_end(&w), 12);
    }
    // where the router is a sigmoid, P is a share of M ranks and cannot go beyond them
    w.rule.n_list = coli__route_list_sigmoid(K, 12);
    w.rule.mass = 0.999f;
    T_EQ(window_end(&w), 12);
    w.rule.mass = 0.5f; // of 126: 16 + 15 + 14 + 13 = 58, 70
    T_EQ(window_end(&w), 5);
    T_EQ(coli__route_list_sigmoid(K, 2), K);
    for (int e = 0; e < E; e++) w.mass[e] = 0; // no mass at all
    T_EQ(window_end(&w), 12);
}

T_TEST(alpha_scales_substitutes_alone)
{
    T_BEGIN;
    const float alphas[] = {0.5f, 0.9f, 1, 0, -1, 2, NAN};
    for (size_t i = 0; i < sizeof alphas / sizeof *alphas; i++) {
        world w = fresh();
        w.rule.alpha = alphas[i];
        w.level[3] = VRAM;
        w.level[7] = RAM;
        const choice c = choose(&w);
        expect_ids(&c, (const int32_t[]){0, 1, 3, 7}, K);
        T_TRUE(c.values[0] == 16 && c.values[1] == 15 && c.values[2] == 13);
        T_TRUE(c.values[3] == (i < 2 ? 9 * alphas[i] : 9));
    }
}

T_TEST(masked_experts_are_no_ranks)
{
    T_BEGIN;
    world w = fresh();
    memset(w.keep, 0, E);
    memset(w.level, VRAM, E);
    choice c = choose(&w);
    expect_ids(&c, (const int32_t[]){-1, -1, -1, -1}, K);
    T_TRUE(c.sound && c.values[0] == 0 && c.values[3] == 0 && c.cost.kl == 0);
    T_EQ(c.cost.n_slot, 0);
    w.keep[5] = w.keep[6] = w.keep[7] = w.keep[8] = w.keep[9] = 1;
    memset(w.level, 0, E);
    w.level[9] = w.level[1] = VRAM;
    c = choose(&w); // rank 4
    expect_ids(&c, (const int32_t[]){5, 6, 7, 9}, K);
    w.rule.n_list = K;
    c = choose(&w); // outside the window now
    expect_ids(&c, (const int32_t[]){5, 6, 7, 8}, K);
}

T_TEST(what_is_no_number_is_never_chosen)
{
    T_BEGIN;
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 4; i++) {
        world w = fresh();
        w.mass[1] = bad[i];
        w.level[1] = VRAM;
        w.level[7] = RAM;
        choice c = choose(&w);
        T_TRUE(!c.sound);
        expect_ids(&c, (const int32_t[]){0, 2, 3, 7}, K);
        T_FLE(fabs(c.cost.kl - 5.652568871), 5e-10); // as if it were masked
        for (int e = 0; e < E; e++) w.mass[e] = bad[i];
        c = choose(&w);
        T_TRUE(!c.sound);
        expect_ids(&c, (const int32_t[]){-1, -1, -1, -1}, K);
    }
    world w = fresh();
    float choice_row[E];
    memcpy(choice_row, w.mass, sizeof choice_row);
    w.mass[2] = -1; // a negative weight is none
    const coli__route_row row = {choice_row, w.mass, NULL, NULL};
    choice c;
    T_TRUE(!coli__route_choose(&w.rule, &row, c.ids, c.values, &c.cost));
    expect_ids(&c, (const int32_t[]){0, 1, 3, 4}, K);
}

T_TEST(all_experts_and_more)
{
    T_BEGIN;
    world w = fresh();
    w.rule.n_used = E;
    w.rule.n_list = coli__route_list_softmax(E, 12, 0);
    w.level[15] = VRAM;
    choice c = choose(&w);
    for (int e = 0; e < E; e++) T_EQ(c.ids[e], e);
    T_EQ(c.cost.n_swap, 0);
    w.rule.n_used = E + 3; // more than there are
    c = choose(&w);
    T_EQ(c.ids[E - 1], E - 1);
    T_EQ(c.ids[E], -1);
    T_EQ(c.cost.n_slot, E);
}

/* A selection bias ranks and does not weigh. */
T_TEST(a_bias_that_only_selects)
{
    T_BEGIN;
    world w = fresh();
    float biased[E];
    for (int e = 0; e < E; e++) biased[e] = w.mass[e];
    biased[15] = 100;
    w.level[4] = RAM;
    choice c;
    const coli__route_row row = {biased, w.mass, NULL, w.level};
    T_TRUE(coli__route_choose(&w.rule, &row, c.ids, c.values, &c.cost));
    expect_ids(&c, (const int32_t[]){15, 0, 1, 4}, K);
    T_TRUE(c.values[0] == 1 && c.values[1] == 16 && c.values[2] == 15 && c.values[3] == 12);
    T_EQ(c.cost.n_swap, 1);
}

T_TEST(weights_sum_to_one)
{
    T_BEGIN;
    float v[5] = {16, 15, 14, 4.5f, 0}, none[3] = {0, 0, 0};
    coli__route_normalise(v, 5);
    T_FLE(fabs((double)v[0] - 16 / 49.5), 1e-7);
    T_TRUE(v[4] == 0);
    coli__route_normalise(none, 3);
    T_TRUE(none[0] == 0 && none[2] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worked_cases),
        cmocka_unit_test(ties_go_to_the_lower_id),
        cmocka_unit_test(sure_ranks_stay_in_order),
        cmocka_unit_test(vram_before_ram_before_disk),
        cmocka_unit_test(the_window_is_counted_in_ranks),
        cmocka_unit_test(the_window_by_mass),
        cmocka_unit_test(alpha_scales_substitutes_alone),
        cmocka_unit_test(masked_experts_are_no_ranks),
        cmocka_unit_test(what_is_no_number_is_never_chosen),
        cmocka_unit_test(all_experts_and_more),
        cmocka_unit_test(a_bias_that_only_selects),
        cmocka_unit_test(weights_sum_to_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
