/* lru.c - a list in order of use over an array of slots.
 *
 *     oldest                            newest
 *     [empty]  e7  e2*  e9(held)  e1(loading)         * pinned
 *
 *     victim: the first empty slot, else the oldest free one that is not pinned (e7), else the oldest
 *     free one
 *
 *     empty --take--> loading --loaded--> full --take, as the victim--> loading
 *                     loading --drop--> empty
 *
 * Empty slots stand at the old end: they come there at init and by drop, and nothing else is put
 * there.  A search walks from that end, so it is short unless most slots are held or pinned.
 *
 * Invariants, each a property in tests/prop/lru_prop.c: slot_of and slots agree; every slot is in the
 * list once; what is held or loading never leaves; a pinned one only when no other could. */
#include "lru.h"

#include <assert.h>

enum { NONE = COLI__LRU_NONE };

static void unlink_slot(coli__lru *l, uint32_t slot)
{
    const coli__lru_slot s = l->slots[slot];
    if (s.newer == NONE)
        l->newest = s.older;
    else
        l->slots[s.newer].older = s.older;
    if (s.older == NONE)
        l->oldest = s.newer;
    else
        l->slots[s.older].newer = s.newer;
}

static void put_newest(coli__lru *l, uint32_t slot)
{
    l->slots[slot].newer = NONE;
    l->slots[slot].older = l->newest;
    if (l->newest == NONE)
        l->oldest = slot;
    else
        l->slots[l->newest].newer = slot;
    l->newest = slot;
}

static void put_oldest(coli__lru *l, uint32_t slot)
{
    l->slots[slot].older = NONE;
    l->slots[slot].newer = l->oldest;
    if (l->oldest == NONE)
        l->newest = slot;
    else
        l->slots[l->oldest].older = slot;
    l->oldest = slot;
}

void coli__lru_init(coli__lru *l, uint32_t n_expert, uint32_t n_slot, uint32_t *slot_of,
                    coli__lru_slot *slots, const uint8_t *pinned)
{
    assert(n_slot >= 1);
    *l = (coli__lru){.n_expert = n_expert,
                     .n_slot = n_slot,
                     .slot_of = slot_of,
                     .slots = slots,
                     .pinned = pinned,
                     .newest = NONE,
                     .oldest = NONE};
    for (uint32_t e = 0; e < n_expert; e++) slot_of[e] = NONE;
    for (uint32_t i = 0; i < n_slot; i++) {
        slots[i] = (coli__lru_slot){.expert = NONE};
        put_newest(l, i); // so slot 0 is taken first
    }
}

uint32_t coli__lru_find(const coli__lru *l, uint32_t expert)
{
    assert(expert < l->n_expert);
    return l->slot_of[expert];
}

uint32_t coli__lru_victim(const coli__lru *l)
{
    uint32_t pinned = NONE;
    for (uint32_t i = l->oldest; i != NONE; i = l->slots[i].newer) {
        const coli__lru_slot *s = &l->slots[i];
        if (s->n_held > 0 || s->is_loading) continue;
        if (s->expert == NONE || !l->pinned || !l->pinned[s->expert]) return i;
        if (pinned == NONE) pinned = i;
    }
    return pinned;
}

uint32_t coli__lru_take(coli__lru *l, uint32_t expert, uint32_t *evicted)
{
    assert(l->slot_of[expert] == NONE);
    *evicted = NONE;
    const uint32_t slot = coli__lru_victim(l);
    if (slot == NONE) return NONE;
    coli__lru_slot *s = &l->slots[slot];
    *evicted = s->expert;
    if (s->expert != NONE) l->slot_of[s->expert] = NONE;
    s->expert = expert;
    s->is_loading = true;
    l->slot_of[expert] = slot;
    unlink_slot(l, slot);
    put_newest(l, slot);
    return slot;
}

void coli__lru_loaded(coli__lru *l, uint32_t slot)
{
    assert(l->slots[slot].is_loading);
    l->slots[slot].is_loading = false;
}

void coli__lru_drop(coli__lru *l, uint32_t slot)
{
    coli__lru_slot *s = &l->slots[slot];
    assert(s->is_loading && s->n_held == 0);
    l->slot_of[s->expert] = NONE;
    s->expert = NONE;
    s->is_loading = false;
    unlink_slot(l, slot);
    put_oldest(l, slot);
}

void coli__lru_hold(coli__lru *l, uint32_t slot)
{
    l->slots[slot].n_held++;
    unlink_slot(l, slot);
    put_newest(l, slot);
}

void coli__lru_release(coli__lru *l, uint32_t slot)
{
    assert(l->slots[slot].n_held > 0);
    l->slots[slot].n_held--;
}
