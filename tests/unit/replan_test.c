/* replan_test.c - a prompt's counts and the swaps that wait: the cases worked by hand. */
#include "plans.h"

#include "libcoli/src/base/alloc.h"
#include "libcoli/src/moe/replan.h"

/* A tier of places and a queue of some length; what is in the queue counts as resident here, for its
 * slot is promised. */
typedef struct tier {
    uint8_t place[PLANS_MAX];
    uint32_t room; // of the queue
    coli__plan_world w;
    coli__replan r;
    coli__swap begun[PLANS_MAX];
    uint32_t n_begun;
} tier;

static bool begin(void *ctx, coli__swap s)
{
    tier *t = ctx;
    if (t->room == 0) return false;
    t->room--;
    plans_apply(t->place, &s, 1);
    t->begun[t->n_begun++] = s;
    return true;
}

static void tier_init(tier *t, uint32_t n_layer, uint32_t n_expert, const char *places, int32_t cap)
{
    memset(t, 0, sizeof *t);
    plans_places(places, t->place);
    t->w = (coli__plan_world){.n_layer = n_layer, .n_expert = n_expert, .place = t->place};
    T_OK(coli__replan_init(&t->r, n_layer, n_expert, cap));
}

static void used(tier *t, const char *counts)
{
    plans_numbers(counts, t->r.counts);
}

static uint32_t drain(tier *t, uint32_t limit)
{
    return coli__replan_drain(&t->r, t->place, limit, begin, t);
}

static void expect(const tier *t, uint64_t n_planned, uint64_t n_begun, uint64_t n_skipped,
                   uint32_t n_pending)
{
    T_EQ(t->r.n_planned, n_planned);
    T_EQ(t->r.n_begun, n_begun);
    T_EQ(t->r.n_skipped, n_skipped);
    T_EQ(t->r.n_pending, n_pending);
}

T_TEST(d1_draining)
{
    T_BEGIN;
    tier t;
    tier_init(&t, 1, 120, "", 99);
    for (uint32_t i = 0; i < 120; i++) {
        t.place[i] = i < 60 ? COLI__PLACE_RESIDENT : COLI__PLACE_KNOWN;
        t.r.counts[i] = i >= 60;
    }
    T_EQ(coli__replan_plan(&t.r, &t.w, 0, NULL), 60);
    t.room = 48;
    T_EQ(drain(&t, COLI__REPLAN_PER_CALL), 48);
    expect(&t, 60, 48, 0, 12);
    t.room = 48; // the uploader has caught up
    for (uint32_t left = 12; left > 0; left -= 4) {
        T_EQ(drain(&t, COLI__REPLAN_PER_TICK), 4);
        T_EQ(t.r.n_pending, left - 4);
    }
    T_EQ(drain(&t, COLI__REPLAN_PER_TICK), 0);
    expect(&t, 60, 60, 0, 0);
    for (uint32_t i = 0; i < 60; i++) T_TRUE(t.begun[i].in == 60 + i && t.begun[i].out == i);
    coli__replan_finish(&t.r);
}

T_TEST(d2_stale_swaps_are_skipped)
{
    T_BEGIN;
    for (uint32_t limit = 4; limit >= 3; limit--) { // a skip does not count against it
        tier t;
        tier_init(&t, 1, 8, "RRRRKKKK", 24);
        used(&t, "0 0 0 0 9 8 7 6");
        T_EQ(coli__replan_plan(&t.r, &t.w, 0, NULL), 4);
        T_STR(plans_text(t.r.pending, 4), "(4,0) (5,1) (6,2) (7,3)");
        plans_apply(t.place, &(coli__swap){5, 1}, 1);
        t.room = 48;
        T_EQ(drain(&t, limit), 3);
        T_STR(plans_text(t.begun, t.n_begun), "(4,0) (6,2) (7,3)");
        expect(&t, 4, 3, 1, 0);
        coli__replan_finish(&t.r);
    }
}

T_TEST(each_reason_makes_a_swap_stale)
{
    T_BEGIN;
    static const char *const places[] = {"RA", "RQ", "RR", "RP", "KK", "QK", "AK", "PK"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        tier t;
        tier_init(&t, 1, 2, "RK", 24);
        used(&t, "0 1");
        T_EQ(coli__replan_plan(&t.r, &t.w, 0, NULL), 1);
        plans_places(places[i], t.place);
        t.room = 1;
        T_EQ(drain(&t, 4), 0);
        expect(&t, 1, 0, 1, 0);
        T_TRUE(!t.r.taken[0] && !t.r.taken[1]);
        coli__replan_finish(&t.r);
    }
}

T_TEST(d3_nothing_is_planned_twice)
{
    T_BEGIN;
    tier t;
    tier_init(&t, 1, 8, "RRRRKKKK", 24);
    used(&t, "0 0 5 7 10 9 1 0");
    T_EQ(coli__replan_plan(&t.r, &t.w, 0, NULL), 2);
    T_EQ(drain(&t, 48), 0); // the queue is full
    T_EQ(coli__replan_plan(&t.r, &t.w, 0, NULL), 0);
    expect(&t, 2, 0, 0, 2);
    t.room = 48;
    T_EQ(drain(&t, 4), 2);
    T_STR(plans_text(t.begun, 2), "(4,0) (5,1)");
    expect(&t, 2, 2, 0, 0);
    coli__replan_finish(&t.r);
}

T_TEST(d4_a_new_prompt_drops_what_it_plans_anew)
{
    T_BEGIN;
    tier t;
    tier_init(&t, 2, 4, "RRKKRRKK", 24);
    used(&t, "0 0 3 2 0 0 3 2");
    T_EQ(coli__replan_plan(&t.r, &t.w, 0, NULL), 2);
    T_EQ(coli__replan_plan(&t.r, &t.w, 1, NULL), 2);
    expect(&t, 4, 0, 0, 4);
    coli__replan_prompt(&t.r);
    T_EQ(t.r.n_pending, 4); // until it plans
    coli__replan_use(&t.r, 0, (const int32_t[]){3, 3, 1, -1}, 4);
    T_EQ(coli__replan_plan(&t.r, &t.w, 0, NULL), 1);
    T_STR(plans_text(t.r.pending, t.r.n_pending), "(6,4) (7,5) (3,0)");
    expect(&t, 5, 0, 2, 3);
    T_EQ(coli__replan_plan(&t.r, &t.w, 0, NULL), 0); // the same prompt: its own stay
    expect(&t, 5, 0, 2, 3);
    coli__replan_finish(&t.r);
}

/* A swap across layers belongs to both. */
T_TEST(swaps_across_layers_are_dropped_with_either)
{
    T_BEGIN;
    for (int32_t layer = 0; layer < 2; layer++) {
        tier t;
        tier_init(&t, 2, 2, "KKRR", 24);
        used(&t, "1 0 0 0");
        T_EQ(coli__replan_plan(&t.r, &t.w, COLI__PLAN_ALL_LAYERS, NULL), 1);
        T_STR(plans_text(t.r.pending, 1), "(0,2)");
        T_EQ(coli__replan_plan(&t.r, &t.w, layer, NULL), 0); // of this prompt: it stays
        expect(&t, 1, 0, 0, 1);
        coli__replan_prompt(&t.r);
        T_EQ(coli__replan_plan(&t.r, &t.w, layer, NULL), 0);
        expect(&t, 1, 0, 1, 0);
        coli__replan_finish(&t.r);
    }
}

T_TEST(d5_a_full_queue_stops_nobody)
{
    T_BEGIN;
    tier t;
    tier_init(&t, 1, 8, "RRRRKKKK", 24);
    used(&t, "0 0 0 0 9 8 7 6");
    T_EQ(coli__replan_plan(&t.r, &t.w, 0, NULL), 4);
    t.room = 1;
    T_EQ(drain(&t, 48), 1);
    T_EQ(drain(&t, 48), 0);
    T_STR(plans_text(t.r.pending, t.r.n_pending), "(5,1) (6,2) (7,3)"); // the refused one is next
    coli__replan_finish(&t.r);
}

T_TEST(d6_the_end_drops_what_waits)
{
    T_BEGIN;
    tier t;
    tier_init(&t, 1, 8, "RRRRKKKK", 24);
    used(&t, "0 0 0 0 9 8 7 6");
    T_EQ(coli__replan_plan(&t.r, &t.w, 0, NULL), 4);
    t.room = 1;
    T_EQ(drain(&t, 4), 1);
    coli__replan_drop(&t.r);
    expect(&t, 4, 1, 3, 0);
    for (uint32_t i = 0; i < 8; i++) T_EQ(t.r.taken[i], 0);
    coli__replan_finish(&t.r);
    coli__replan_finish(&t.r); // zeroed
    coli__replan_finish(NULL);
}

/* Counts add up over the chunks of a prompt, and so does what the cap allows. */
T_TEST(the_cap_is_per_layer_and_prompt)
{
    T_BEGIN;
    tier t;
    tier_init(&t, 2, 8, "RRRRKKKKRRRRKKKK", 3);
    coli__replan_use(&t.r, 0, (const int32_t[]){4, 5, 4}, 3);
    T_EQ(coli__replan_plan(&t.r, &t.w, 0, NULL), 2);
    t.room = 99;
    T_EQ(drain(&t, 48), 2);
    coli__replan_use(&t.r, 0, (const int32_t[]){6, 7, 7}, 3);
    uint32_t n_newcomer;
    T_EQ(coli__replan_plan(&t.r, &t.w, 0, &n_newcomer), 1);
    T_EQ(n_newcomer, 2);
    T_STR(plans_text(t.r.pending, 1), "(7,2)");
    T_EQ(drain(&t, 48), 1);
    T_EQ(coli__replan_plan(&t.r, &t.w, 0, NULL), 0);
    coli__replan_use(&t.r, 1, (const int32_t[]){4, 5, 6, 7}, 4);
    T_EQ(coli__replan_plan(&t.r, &t.w, 1, NULL), 3);
    T_EQ(coli__replan_plan(&t.r, &t.w, COLI__PLAN_ALL_LAYERS, NULL), 0); // 6 in all
    T_EQ(coli__replan_plan(&t.r, &t.w, 2, NULL), 0);
    coli__replan_prompt(&t.r);
    coli__replan_use(&t.r, 0, (const int32_t[]){6}, 1);
    T_EQ(coli__replan_plan(&t.r, &t.w, 0, NULL), 1);
    coli__replan_finish(&t.r);
}

T_TEST(no_cap_no_plan)
{
    T_BEGIN;
    tier t;
    tier_init(&t, 1, 2, "RK", -5);
    used(&t, "0 1");
    T_EQ(coli__replan_plan(&t.r, &t.w, 0, NULL), 0);
    T_EQ(coli__replan_plan(&t.r, &t.w, COLI__PLAN_ALL_LAYERS, NULL), 0);
    coli__replan_finish(&t.r);
    tier_init(&t, 1, 2, "RK", INT32_MAX);
    used(&t, "0 1");
    T_EQ(coli__replan_plan(&t.r, &t.w, COLI__PLAN_ALL_LAYERS, NULL), 1);
    coli__replan_finish(&t.r);
}

T_TEST(lack_of_memory)
{
    T_BEGIN;
    for (uint64_t nth = 1; nth <= 7; nth++) {
        coli__replan r;
        coli__alloc_fail_at(nth);
        const coli_status status = coli__replan_init(&r, 2, 4, 24);
        coli__alloc_fail_at(0);
        T_EQ(status, nth <= 6 ? COLI_E_NOMEM : COLI_OK);
        coli__replan_finish(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(d1_draining),
        cmocka_unit_test(d2_stale_swaps_are_skipped),
        cmocka_unit_test(each_reason_makes_a_swap_stale),
        cmocka_unit_test(d3_nothing_is_planned_twice),
        cmocka_unit_test(d4_a_new_prompt_drops_what_it_plans_anew),
        cmocka_unit_test(swaps_across_layers_are_dropped_with_either),
        cmocka_unit_test(d5_a_full_queue_stops_nobody),
        cmocka_unit_test(d6_the_end_drops_what_waits),
        cmocka_unit_test(the_cap_is_per_layer_and_prompt),
        cmocka_unit_test(no_cap_no_plan),
        cmocka_unit_test(lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
