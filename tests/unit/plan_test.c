/* plan_test.c - the re-plan, the slow swap and the warm start: the cases worked by hand. */
#include "plans.h"

typedef struct world {
    uint8_t place[PLANS_MAX], home[PLANS_MAX];
    uint32_t heat[PLANS_MAX], counts[PLANS_MAX];
    coli__plan_world w;
    uint32_t n_newcomer; // of the last plan
} world;

static void world_init(world *x, uint32_t n_layer, uint32_t n_expert, const char *places)
{
    memset(x, 0, sizeof *x);
    plans_places(places, x->place);
    x->w = (coli__plan_world){
        .n_layer = n_layer, .n_expert = n_expert, .place = x->place, .heat = x->heat};
}

/* All layers, or one, whose counts begin at counts. */
static uint32_t plan(world *x, int32_t layer, const uint32_t *counts, int32_t cap,
                     coli__swap *swaps)
{
    coli__plan_key keys[PLANS_MAX];
    const coli__plan_ask ask = {layer, cap, counts};
    return coli__plan_swaps(&x->w, &ask, keys, swaps, &x->n_newcomer);
}

/* Of layer 0, carried out. */
static const char *replanned(world *x, const char *counts, int32_t cap)
{
    coli__swap swaps[PLANS_MAX];
    plans_numbers(counts, x->counts);
    const uint32_t n = plan(x, 0, x->counts, cap, swaps);
    plans_apply(x->place, swaps, n);
    return plans_text(swaps, n);
}

/* The same, from the first four of eight experts. */
static const char *fresh(const char *places, const char *heat, const char *counts)
{
    world x;
    world_init(&x, 1, 8, places);
    plans_numbers(heat, x.heat);
    return replanned(&x, counts, COLI__PLAN_CAP);
}

static uint32_t hits(const world *x, const char *routed)
{
    uint32_t ids[PLANS_MAX], n = 0;
    const uint32_t n_ids = plans_numbers(routed, ids);
    for (uint32_t i = 0; i < n_ids; i++) n += x->place[ids[i]] == COLI__PLACE_RESIDENT;
    return n;
}

T_TEST(r1_r2_r3_r13_one_swap_after_the_other)
{
    T_BEGIN;
    static const char counts[] = "0 0 5 7 10 9 1 0", decode[] = "4 5 4 3 5 2 4 6 3 4 5 4";
    world x;
    world_init(&x, 1, 8, "RRRRKKKK");
    T_EQ(hits(&x, decode), 3);
    T_STR(replanned(&x, counts, 1), "(4,0)");
    T_EQ(hits(&x, decode), 8);
    T_STR(replanned(&x, counts, 24), "(5,1)");
    T_EQ(hits(&x, decode), 11);
    T_STR(replanned(&x, counts, 24), "");
    T_EQ(x.n_newcomer, 1); // 6, whose 1 is less than the 5 of 2
}

T_TEST(r4_nothing_to_plan)
{
    T_BEGIN;
    world x;
    coli__swap swaps[8];
    world_init(&x, 1, 8, "RRRRKKKK");
    T_STR(replanned(&x, "0 0 5 7 10 9 1 0", 0), "");
    T_STR(replanned(&x, "0 0 5 7 10 9 1 0", -1), "");
    T_EQ(plan(&x, 0, NULL, 24, swaps), 0);
    x.n_newcomer = 7;
    T_EQ(plan(&x, 1, x.counts, 24, swaps), 0);
    T_EQ(x.n_newcomer, 0);
}

T_TEST(r5_to_r8_order_and_where_it_stops)
{
    T_BEGIN;
    T_STR(fresh("RRRRKKKK", "4 1 1 6", "0 0 0 0 3 3 3 2"), "(4,1) (5,2) (6,0) (7,3)"); // R5
    T_STR(fresh("RRRRKKKK", "", "2 2 1 0 2 2 0 3"), "(7,3) (4,2)");                    // R6
    T_STR(fresh("RRRRKKKK", "", "6 1 4 2 9 5 3 3"), "(4,1) (5,3)");                    // R7
    T_STR(fresh("RRRRKKKK", "", "0 3 0 8 7 6 5 4"), "(4,0) (5,2) (6,1)");              // R8
    T_STR(fresh("RRRRQKKK", "", "0 3 0 8 7 6 5 4"), "(5,0) (6,2) (7,1)");              // R8a
    T_STR(fresh("QRRRKKKK", "", "0 3 0 8 7 6 5 4"), "(4,2) (5,1)");                    // R8b
    T_STR(fresh("RRRRKAKK", "", "0 3 0 8 7 6 5 4"), "(4,0) (6,2) (7,1)");              // R8c
    T_STR(fresh("RRRRPKKK", "", "0 3 0 8 7 6 5 4"), "(5,0) (6,2) (7,1)");
    T_STR(fresh("RRRRKKKK", "", "0 0 0 0 0 0 0 0"), ""); // R8d
}

T_TEST(counts_and_heat_use_all_their_bits)
{
    T_BEGIN;
    T_STR(fresh("RRRRKKKK", "4294967295 0 4294967295 1",
                "4294967294 4294967295 1 1 4294967295 4294967294 2 4294967295"),
          "(4,3) (7,2)");
}

T_TEST(r9r_devices_share_the_cap)
{
    T_BEGIN;
    static const char *const expected[] = {"(4,0)", "(4,0) (5,1)", "(4,0) (5,1) (6,2)",
                                           "(4,0) (5,1) (6,2) (7,3)"};
    for (int32_t cap = 1; cap <= 5; cap++) {
        world x;
        world_init(&x, 1, 8, "RRRRKKKK");
        for (uint8_t i = 0; i < 8; i++) x.home[i] = i % 2;
        x.w.home = x.home;
        T_STR(replanned(&x, "0 0 0 0 9 8 7 6", cap), expected[cap < 4 ? cap - 1 : 3]);
    }
}

T_TEST(a_newcomer_goes_to_its_home)
{
    T_BEGIN;
    world x;
    world_init(&x, 1, 8, "RRRRKKKK");
    for (uint8_t i = 0; i < 8; i++) x.home[i] = i % 2;
    x.w.home = x.home;
    x.home[6] = COLI__NO_HOME;
    T_STR(replanned(&x, "9 0 5 0 4 1 8 2", 24), "(7,1) (5,3)"); // 4 is less than 5, 6 homeless
    T_EQ(x.n_newcomer, 3);
}

T_TEST(r12_the_default_cap)
{
    T_BEGIN;
    for (int32_t cap = 24; cap <= 99; cap += 75) {
        world x;
        coli__swap swaps[64];
        world_init(&x, 1, 64, "");
        for (uint32_t i = 0; i < 64; i++) {
            x.place[i] = i < 30 ? COLI__PLACE_RESIDENT : COLI__PLACE_KNOWN;
            x.counts[i] = i >= 30;
        }
        const uint32_t n = plan(&x, 0, x.counts, cap, swaps);
        T_EQ(n, cap == 24 ? 24 : 30);
        for (uint32_t i = 0; i < n; i++) T_TRUE(swaps[i].in == 30 + i && swaps[i].out == i);
    }
}

/* Flat ids: layer 1 begins at 8. */
static void whole_table(const char *counts, const char *expected, uint32_t n_newcomer,
                        const char *residents, const char *layer_1)
{
    world x;
    coli__swap swaps[PLANS_MAX];
    world_init(&x, 2, 8, "RRRRKKKKRRRRKKKK");
    plans_numbers(counts, x.counts);
    T_STR(plans_text(swaps, plan(&x, 0, x.counts, 24, swaps)), "");
    T_STR(plans_text(swaps, plan(&x, 1, x.counts + 8, 24, swaps)), layer_1);
    const uint32_t n = plan(&x, COLI__PLAN_ALL_LAYERS, x.counts, 24, swaps);
    T_STR(plans_text(swaps, n), expected);
    T_EQ(x.n_newcomer, n_newcomer);
    plans_apply(x.place, swaps, n);
    for (uint32_t i = 0; i < 16; i++) T_EQ(x.place[i] == COLI__PLACE_RESIDENT, residents[i] == 'R');
    T_EQ(plan(&x, COLI__PLAN_ALL_LAYERS, x.counts, 24, swaps), 0);
}

T_TEST(r10_r11_the_whole_table)
{
    T_BEGIN;
    whole_table("4 3 2 2 0 1 0 0 3 3 0 2 0 0 0 0", "(5,10)", 1, "RRRR.R..RR.R....", "");
    whole_table("9 8 7 6 5 4 0 0 1 0 2 0 3 0 0 0", "(4,9) (5,11) (12,8)", 3, "RRRRRR....R.R...",
                "(12,9)");
}

T_TEST(taken_experts_are_left_alone)
{
    T_BEGIN;
    world x;
    uint8_t taken[8] = {[0] = 1, [4] = 1};
    world_init(&x, 1, 8, "RRRRKKKK");
    x.w.taken = taken;
    T_STR(replanned(&x, "0 0 5 7 10 9 1 0", 24), "(5,1)");
}

/* ---- the slow swap ------------------------------------------------------------------------- */

static const char *slow(world *x, uint32_t device)
{
    coli__swap s;
    const uint32_t n = coli__plan_slow_swap(&x->w, device, &s);
    plans_apply(x->place, &s, n);
    return plans_text(&s, n);
}

static const char *slow_of(const char *places, const char *heat)
{
    world x;
    world_init(&x, 1, (uint32_t)strlen(places), places);
    plans_numbers(heat, x.heat);
    return slow(&x, 0);
}

T_TEST(l1_to_l4)
{
    T_BEGIN;
    T_STR(slow_of("RRRKKK", "3 3 9 8 8 1"), "(3,0)"); // L1
    T_STR(slow_of("RRRKKK", "3 3 9 7 7 1"), "");      // L2
    T_STR(slow_of("RRRAKK", "3 3 9 8 8 1"), "(4,0)"); // L3
    T_STR(slow_of("QRRQKK", "3 3 9 8 8 1"), "(4,1)"); // L4
    T_STR(slow_of("KKKKKK", "3 3 9 8 8 1"), "");
    T_STR(slow_of("RRRRRR", "3 3 9 8 8 1"), "");
}

T_TEST(l5_comes_to_rest)
{
    T_BEGIN;
    static const char *const expected[] = {"(3,0)", "(4,1)", "(5,2)", "", ""};
    world x;
    world_init(&x, 1, 7, "RRRKKKK");
    plans_numbers("0 0 0 20 19 5 4", x.heat);
    for (size_t i = 0; i < 5; i++) T_STR(slow(&x, 0), expected[i]);
    for (uint32_t i = 0; i < 7; i++) T_EQ(x.place[i] == COLI__PLACE_RESIDENT, i >= 3 && i <= 5);
}

T_TEST(l6_each_device_for_itself)
{
    T_BEGIN;
    world x;
    world_init(&x, 1, 8, "RRRRKKKK");
    for (uint8_t i = 0; i < 8; i++) x.home[i] = i % 2;
    x.w.home = x.home;
    plans_numbers("0 0 0 0 0 9 0 8", x.heat);
    T_STR(slow(&x, 0), "");
    T_STR(slow(&x, 1), "(5,1)");
    T_STR(slow(&x, 1), "(7,3)");
    T_STR(slow(&x, 2), "");
}

/* L7: an attempt that the queue refuses changes nothing, for the plan itself changes nothing. */
T_TEST(l7_a_swap_that_is_not_carried_out)
{
    T_BEGIN;
    world x;
    coli__swap a, b;
    world_init(&x, 1, 6, "RRRKKK");
    plans_numbers("3 3 9 8 8 1", x.heat);
    T_TRUE(coli__plan_slow_swap(&x.w, 0, &a) && coli__plan_slow_swap(&x.w, 0, &b));
    T_TRUE(a.in == b.in && a.out == b.out);
}

/* L8: the base rule: what heat thinks of a re-plan, it may undo. */
T_TEST(l8_heat_may_undo_a_re_plan)
{
    T_BEGIN;
    world x;
    world_init(&x, 1, 2, "RK");
    plans_numbers("100 10", x.heat);
    T_STR(replanned(&x, "0 1", 24), "(1,0)");
    T_STR(slow(&x, 0), "(0,1)");
}

/* ---- the warm start ------------------------------------------------------------------------ */

/* 3 layers of 4, so expert e of layer l is 4l + e. */
#define HEAT_W "0 5 0 2 9 0 0 5 0 0 1 0"

static const char *filled(world *x, const char *heat, const char *room, uint32_t *n)
{
    uint32_t stored[PLANS_MAX], ids[PLANS_MAX], left[8];
    coli__plan_key keys[PLANS_MAX];
    const uint32_t n_device = plans_numbers(room, left);
    const uint32_t n_all = x->w.n_layer * x->w.n_expert;
    if (heat) plans_numbers(heat, stored);
    coli__plan_order(x->w.n_layer, x->w.n_expert, heat ? stored : NULL, keys, ids);
    *n = coli__plan_fill(&x->w, ids, n_all, left, n_device, ids);
    return plans_ids(ids, *n);
}

T_TEST(w1_w2_w3_by_heat_or_spread)
{
    T_BEGIN;
    world x;
    uint32_t n;
    world_init(&x, 3, 4, "AAAAAAAAAAAA");
    T_STR(filled(&x, HEAT_W, "5", &n), "4 1 7 3 10");
    T_STR(filled(&x, HEAT_W, "7", &n), "4 1 7 3 10 0 8");
    T_STR(filled(&x, NULL, "7", &n), "0 4 8 1 5 9 2"); // W3
    for (uint8_t i = 0; i < 12; i++) x.home[i] = i % 4 % 2;
    x.w.home = x.home;
    T_STR(filled(&x, HEAT_W, "1 4", &n), "4 1 7 3 5"); // W2
    x.home[4] = COLI__NO_HOME;
    T_STR(filled(&x, HEAT_W, "1 4", &n), "1 7 3 10 5");
}

T_TEST(w4_each_device_is_filled)
{
    T_BEGIN;
    for (uint32_t n_device = 1; n_device <= 2; n_device++) {
        world x;
        uint32_t n;
        world_init(&x, 4, 8, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
        for (uint8_t i = 0; i < 32; i++) x.home[i] = (uint8_t)(i % n_device);
        x.w.home = x.home;
        filled(&x, NULL, n_device == 1 ? "5" : "5 5", &n);
        T_EQ(n, 5 * n_device);
    }
}

/* Without a warm start, the experts of a step are what is tried. */
T_TEST(w5_room_that_is_left_goes_to_what_is_routed)
{
    T_BEGIN;
    world x;
    world_init(&x, 1, 8, "RKQPAKKK");
    uint32_t ids[] = {7, 0, 2, 1, 3, 5, 6}, room = 3;
    const uint32_t n = coli__plan_fill(&x.w, ids, 7, &room, 1, ids);
    T_STR(plans_ids(ids, n), "7 1 5");
    T_EQ(room, 0);
    T_EQ(coli__plan_fill(&x.w, ids, n, &room, 1, ids), 0);
}

/* The 35B's shape: an 8 GB card holds experts 0..108 of all layers and 109 of the first 31. */
T_TEST(spread_over_40_layers)
{
    T_BEGIN;
    enum { L = 40, E = 256 };
    static coli__plan_key keys[L * E];
    static uint32_t ids[L * E];
    coli__plan_order(L, E, NULL, keys, ids);
    for (uint32_t i = 0; i < 4391; i++) T_EQ(ids[i], i % L * E + i / L);
    T_EQ(ids[4390], 30 * E + 109);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(r1_r2_r3_r13_one_swap_after_the_other),
        cmocka_unit_test(r4_nothing_to_plan),
        cmocka_unit_test(r5_to_r8_order_and_where_it_stops),
        cmocka_unit_test(counts_and_heat_use_all_their_bits),
        cmocka_unit_test(r9r_devices_share_the_cap),
        cmocka_unit_test(a_newcomer_goes_to_its_home),
        cmocka_unit_test(r12_the_default_cap),
        cmocka_unit_test(r10_r11_the_whole_table),
        cmocka_unit_test(taken_experts_are_left_alone),
        cmocka_unit_test(l1_to_l4),
        cmocka_unit_test(l5_comes_to_rest),
        cmocka_unit_test(l6_each_device_for_itself),
        cmocka_unit_test(l7_a_swap_that_is_not_carried_out),
        cmocka_unit_test(l8_heat_may_undo_a_re_plan),
        cmocka_unit_test(w1_w2_w3_by_heat_or_spread),
        cmocka_unit_test(w4_each_device_is_filled),
        cmocka_unit_test(w5_room_that_is_left_goes_to_what_is_routed),
        cmocka_unit_test(spread_over_40_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
