/* lru.h - which expert of a layer sits in which slot of RAM, and whose slot a newcomer takes.
 *
 * Pure: no memory, clock, thread or file of its own.  A slot is empty, loading or full; one that is
 * loading or held is nobody's victim.  Of the others the one that was used longest ago goes, but a
 * pinned expert only when every other slot is loading, held, or pinned too. */
#ifndef COLI_MOE_LRU_H
#define COLI_MOE_LRU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { COLI__LRU_NONE = UINT32_MAX };

typedef struct coli__lru_slot {
    uint32_t expert;       // COLI__LRU_NONE: empty
    uint32_t newer, older; // its neighbours in the order of use
    uint32_t n_held;       // held twice wants two releases
    bool is_loading;
} coli__lru_slot;

typedef struct coli__lru {
    uint32_t n_expert, n_slot;
    uint32_t *slot_of;     // (n_expert) the caller's
    coli__lru_slot *slots; // (n_slot) the caller's
    const uint8_t *pinned; // (n_expert) the caller's, who may change it at any time; NULL: none is
    uint32_t newest, oldest;
} coli__lru;

/* Empty.  n_slot >= 1. */
void coli__lru_init(coli__lru *lru, uint32_t n_expert, uint32_t n_slot, uint32_t *slot_of,
                    coli__lru_slot *slots, const uint8_t *pinned);

/* Where an expert is, or is coming to; COLI__LRU_NONE. */
uint32_t coli__lru_find(const coli__lru *lru, uint32_t expert);

/* The slot that the next newcomer would get: an empty one, or the victim's.  COLI__LRU_NONE when all
 * are held or loading. */
uint32_t coli__lru_victim(const coli__lru *lru);

/* Give that slot to an expert that has none: it is loading, and the last used.  Returns the slot or
 * COLI__LRU_NONE; *evicted is who left, or COLI__LRU_NONE. */
uint32_t coli__lru_take(coli__lru *lru, uint32_t expert, uint32_t *evicted);
void coli__lru_loaded(coli__lru *lru, uint32_t slot);
/* It could not be loaded: the slot is empty, and the first to be taken.  Not while held. */
void coli__lru_drop(coli__lru *lru, uint32_t slot);

/* Use a slot: it is the last used, and stays until it was released as often as it was held. */
void coli__lru_hold(coli__lru *lru, uint32_t slot);
void coli__lru_release(coli__lru *lru, uint32_t slot);

#endif
