/* store_plan_test.c - slots of RAM: who leaves for whom, and who stays.  Cases that users
 * of this field know. */
#include "t.h"

#include "libcoli/src/moe/lru.h"
#include "libcoli/src/moe/store_plan.h"

/* -- the order of leaving ---------------------------------------------------------------------- */

enum { N_EXPERT = 8 };

typedef struct world {
    coli__lru lru;
    uint32_t slot_of[N_EXPERT];
    coli__lru_slot slots[N_EXPERT];
    uint32_t n_hit, n_miss, n_evicted, evicted[16];
} world;

/* Use one expert of a step: it stays held until the step's end. */
static void use(world *w, uint32_t expert)
{
    uint32_t slot = coli__lru_find(&w->lru, expert), evicted = COLI__LRU_NONE;
    if (slot != COLI__LRU_NONE) {
        w->n_hit++;
    } else {
        w->n_miss++;
        slot = coli__lru_take(&w->lru, expert, &evicted);
        T_TRUE(slot != COLI__LRU_NONE);
        coli__lru_loaded(&w->lru, slot);
    }
    if (evicted != COLI__LRU_NONE) w->evicted[w->n_evicted++] = evicted;
    coli__lru_hold(&w->lru, slot);
}

static void run_steps(world *w, uint32_t n_slot, const uint8_t *pinned)
{
    static const uint32_t steps[5][2] = {{1, 2}, {3, 1}, {4, 2}, {1, 5}, {2, 1}};
    *w = (world){0};
    coli__lru_init(&w->lru, N_EXPERT, n_slot, w->slot_of, w->slots, pinned);
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j < 2; j++) use(w, steps[i][j]);
        for (int j = 0; j < 2; j++)
            coli__lru_release(&w->lru, coli__lru_find(&w->lru, steps[i][j]));
    }
}

static void expect(const world *w, uint32_t n_hit, uint32_t n_miss, const char *evicted)
{
    T_EQ(w->n_hit, n_hit);
    T_EQ(w->n_miss, n_miss);
    char got[40] = "";
    for (uint32_t i = 0; i < w->n_evicted; i++)
        snprintf(got + strlen(got), 4, i ? " %u" : "%u", w->evicted[i]);
    T_STR(got, evicted);
}

static void expect_order(const world *w, const char *oldest_first)
{
    char got[40] = "";
    for (uint32_t i = w->lru.oldest; i != COLI__LRU_NONE; i = w->lru.slots[i].newer)
        snprintf(got + strlen(got), 4, *got ? " %u" : "%u", w->lru.slots[i].expert);
    T_STR(got, oldest_first);
}

T_TEST(two_slots) // A1
{
    T_BEGIN;
    world w;
    run_steps(&w, 2, NULL);
    expect(&w, 0, 10, "1 2 3 1 4 2 1 5");
}

T_TEST(three_slots) // A2
{
    T_BEGIN;
    world w;
    run_steps(&w, 3, NULL);
    expect(&w, 4, 6, "2 3 4");
    expect_order(&w, "5 2 1");
}

T_TEST(four_slots) // A3
{
    T_BEGIN;
    world w;
    run_steps(&w, 4, NULL);
    expect(&w, 5, 5, "3");
    expect_order(&w, "4 5 2 1");
}

T_TEST(pins_go_when_nothing_else_can) // A4
{
    T_BEGIN;
    static const uint8_t pinned[N_EXPERT] = {[1] = 1, [2] = 1};
    world w;
    run_steps(&w, 2, pinned);
    expect(&w, 1, 9, "1 2 3 1 4 2 5");
}

T_TEST(held_twice_wants_two_releases)
{
    T_BEGIN;
    world w = {0};
    coli__lru_init(&w.lru, N_EXPERT, 1, w.slot_of, w.slots, NULL);
    uint32_t evicted;
    T_EQ(coli__lru_take(&w.lru, 3, &evicted), 0);
    T_EQ(coli__lru_victim(&w.lru), COLI__LRU_NONE); // loading
    coli__lru_hold(&w.lru, 0);
    coli__lru_hold(&w.lru, 0);
    coli__lru_loaded(&w.lru, 0);
    coli__lru_release(&w.lru, 0);
    T_EQ(coli__lru_take(&w.lru, 4, &evicted), COLI__LRU_NONE);
    T_EQ(evicted, COLI__LRU_NONE);
    T_EQ(coli__lru_find(&w.lru, 4), COLI__LRU_NONE);
    coli__lru_release(&w.lru, 0);
    T_EQ(coli__lru_take(&w.lru, 4, &evicted), 0);
    T_EQ(evicted, 3);
    coli__lru_drop(&w.lru, 0); // it could not be read
    T_EQ(coli__lru_find(&w.lru, 4), COLI__LRU_NONE);
    T_EQ(coli__lru_take(&w.lru, 5, &evicted), 0);
    T_EQ(evicted, COLI__LRU_NONE);
}

/* -- pins -------------------------------------------------------------------------------------- */

T_TEST(the_longest_prefix_is_pinned) // A7
{
    T_BEGIN;
    coli__store_use uses[] = {
        {0, 0, 10, 20}, {2, 3, 30, 38}, {1, 0, 40, 20}, {0, 2, 40, 20}, {0, 1, 50, 20}};
    coli__store_sort_uses(uses, 5);
    static const uint32_t want[5][2] = {{0, 1}, {0, 2}, {1, 0}, {2, 3}, {0, 0}};
    for (int i = 0; i < 5; i++) {
        T_EQ(uses[i].layer, want[i][0]);
        T_EQ(uses[i].expert, want[i][1]);
    }
    static const struct {
        uint64_t budget;
        uint32_t n;
    } cases[] = {{0, 0}, {60, 3}, {70, 3}, {97, 3}, {98, 4}, {118, 5}, {1000, 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        T_EQ(coli__store_n_pin(uses, 5, cases[i].budget), cases[i].n);
    uses[2].count = 0; // never used: neither it nor what is behind it
    T_EQ(coli__store_n_pin(uses, 5, 1000), 2);
}

T_TEST(pins_want_a_history) // A8
{
    T_BEGIN;
    const uint64_t gb40 = 40000000000;
    T_EQ(coli__store_pin_budget(gb40, 4999), 0);
    T_EQ(coli__store_pin_budget(gb40, 5000), 500000000);
    T_EQ(coli__store_pin_budget(gb40, 20000), 2000000000);
    T_EQ(coli__store_pin_budget(gb40, 100000), 10000000000);
    T_EQ(coli__store_pin_budget(gb40, 200000), 20000000000);
    T_EQ(coli__store_pin_budget(gb40, UINT64_MAX), 20000000000);
    T_EQ(coli__store_pin_budget(39900000000, 5000), 0);
}

T_TEST(heat_before_recency) // of A9
{
    T_BEGIN;
    T_EQ(coli__store_score(8, 0), 2303);
    T_EQ(coli__store_score(0, 255), 0);
    T_EQ(coli__store_score(9, 300), 2304);
    T_EQ(coli__store_score(5, 100), 1435);
    T_TRUE(coli__store_score(4, 300) > coli__store_score(3, 0)); // a use more counts for any age
    T_TRUE(coli__store_score(UINT32_MAX, 0) > coli__store_score(UINT32_MAX - 1, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_slots),
                                       cmocka_unit_test(three_slots),
                                       cmocka_unit_test(four_slots),
                                       cmocka_unit_test(pins_go_when_nothing_else_can),
                                       cmocka_unit_test(held_twice_wants_two_releases),
                                       cmocka_unit_test(the_longest_prefix_is_pinned),
                                       cmocka_unit_test(pins_want_a_history),
                                       cmocka_unit_test(heat_before_recency)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
