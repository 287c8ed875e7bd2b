/* levels.h - where each expert of a model is, as cache-aware routing sees it: a table that is filled at
 * one moment and stays as it is until it is filled again.
 *
 * A choice between experts by where they are must not depend on the moment at which a row is
 * computed, or no run could be repeated.  So rows are given this table, not the tier. */
#ifndef COLI_MOE_LEVELS_H
#define COLI_MOE_LEVELS_H

#include "route.h"
#include "store.h"
#include "tier.h"

typedef struct coli__levels {
    uint32_t n_layer,
        n_expert;   // layers of the model, those without experts too; the most of a layer
    uint8_t *level; // (n_layer, n_expert) coli_level
} coli__levels;

/* All on disk. */
coli_status coli__levels_init(coli__levels *l, const coli__container *container);
void coli__levels_finish(coli__levels *l);

/* As they are now: what a device that is alive holds is in VRAM, what has a slot of the store is in RAM;
 * what is on its way to either is not there yet.  Where there is no store all experts are mapped, and those
 * that no device holds are in RAM: the page cache does not say which it has.
 *   expected  in RAM is what the store would hold if reads took no time (coli__store_expect)
 *   tier      NULL without devices
 * Called as the tier's functions are. */
void coli__levels_read(coli__levels *l, const coli__container *container, const coli__tier *tier,
                       const coli__store *store, bool expected);

/* As somebody says: given (layers with experts, n_expert) coli_level.  E_INVALID for what is none. */
coli_status coli__levels_set(coli__levels *l, const coli__container *container,
                             const uint8_t *given);

/* Of the experts of a layer, by its number in the model. */
static inline const uint8_t *coli__levels_of(const coli__levels *l, uint32_t layer)
{
    return l->level + (size_t)layer * l->n_expert;
}

#endif
