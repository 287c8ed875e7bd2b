/* lru_prop.c - the LRU of slots against one that knows no list: it remembers when each expert was used
 * last, and looks at all of them. */
#include "t.h"

#include "libcoli/src/moe/lru.h"

enum { MAX_EXPERT = 12, NONE = -1 };

typedef struct entry {
    int expert; // NONE: empty
    bool is_loading;
    uint32_t n_held;
    uint64_t used_at; // larger: later
} entry;

typedef struct oracle {
    uint32_t n_slot;
    entry e[MAX_EXPERT];
    uint64_t now;
} oracle;

static int oracle_find(const oracle *o, int expert)
{
    for (uint32_t i = 0; i < o->n_slot; i++)
        if (o->e[i].expert == expert) return (int)i;
    return NONE;
}

/* How willingly entry i leaves; 0: not at all. */
static int class_of(const entry *e, const uint8_t *pinned)
{
    if (e->is_loading || e->n_held) return 0;
    if (e->expert == NONE) return 3;
    return pinned[e->expert] ? 1 : 2;
}

/* The expert that leaves for a newcomer; NONE: an empty slot; -2: nobody can. */
static int oracle_leaves(const oracle *o, const uint8_t *pinned)
{
    int best = -1;
    for (uint32_t i = 0; i < o->n_slot; i++) {
        const int c = class_of(&o->e[i], pinned);
        if (c == 0) continue;
        const int b = best < 0 ? 0 : class_of(&o->e[best], pinned);
        if (c > b || (c == b && o->e[i].used_at < o->e[best].used_at)) best = (int)i;
    }
    return best < 0 ? -2 : o->e[best].expert;
}

static void check_same(const coli__lru *l, const oracle *o)
{
    uint32_t n_in_list = 0, n_full = 0;
    for (uint32_t i = l->oldest; i != COLI__LRU_NONE; i = l->slots[i].newer) n_in_list++;
    T_EQ(n_in_list, l->n_slot);
    for (uint32_t e = 0; e < l->n_expert; e++) {
        const uint32_t slot = coli__lru_find(l, e);
        const int i = oracle_find(o, (int)e);
        T_EQ(slot == COLI__LRU_NONE, i == NONE);
        if (i == NONE) continue;
        n_full++;
        T_EQ(l->slots[slot].expert, e);
        T_EQ(l->slots[slot].is_loading, o->e[i].is_loading);
        T_EQ(l->slots[slot].n_held, o->e[i].n_held);
    }
    T_LE(n_full, l->n_slot);
}

static void take_both(coli__lru *l, oracle *o, const uint8_t *pinned, uint32_t expert)
{
    const int leaves = oracle_leaves(o, pinned);
    uint32_t evicted;
    const uint32_t slot = coli__lru_take(l, expert, &evicted);
    T_EQ(slot == COLI__LRU_NONE, leaves == -2);
    T_EQ(evicted, leaves < 0 ? COLI__LRU_NONE : (uint32_t)leaves);
    if (leaves == -2) return;
    int at = NONE; // any entry that is empty and free, or the leaving one
    for (uint32_t i = 0; i < o->n_slot; i++)
        if (o->e[i].expert == leaves && !o->e[i].is_loading) at = (int)i;
    o->e[at] = (entry){(int)expert, true, 0, ++o->now};
}

T_PROP(lru_is_the_oracles, 400)
{
    uint32_t slot_of[MAX_EXPERT];
    coli__lru_slot slots[MAX_EXPERT];
    uint8_t pinned[MAX_EXPERT];
    coli__lru l;
    const uint32_t n_expert = t_range(&rng, 1, MAX_EXPERT), n_slot = t_range(&rng, 1, n_expert);
    oracle o = {.n_slot = n_slot};
    for (uint32_t i = 0; i < n_slot; i++) o.e[i].expert = NONE;
    for (uint32_t e = 0; e < n_expert; e++) pinned[e] = t_below(&rng, 4) == 0;
    coli__lru_init(&l, n_expert, n_slot, slot_of, slots, pinned);
    for (int step = 0; step < 200; step++) {
        const uint32_t expert = t_below(&rng, n_expert), slot = coli__lru_find(&l, expert);
        entry *e = slot == COLI__LRU_NONE ? NULL : &o.e[oracle_find(&o, (int)expert)];
        const uint32_t what = t_below(&rng, 8);
        if (!e) {
            take_both(&l, &o, pinned, expert);
        } else if (what < 3) {
            coli__lru_hold(&l, slot);
            e->n_held++;
            e->used_at = ++o.now;
        } else if (what < 6 && e->n_held) {
            coli__lru_release(&l, slot);
            e->n_held--;
        } else if (e->is_loading && what < 7) {
            coli__lru_loaded(&l, slot);
            e->is_loading = false;
        } else if (e->is_loading && !e->n_held) {
            coli__lru_drop(&l, slot);
            *e = (entry){.expert = NONE};
        } else {
            pinned[expert] = !pinned[expert];
        }
        check_same(&l, &o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lru_is_the_oracles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
