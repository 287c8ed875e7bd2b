/* levels.h - where each expert of a model is, as cache-aware routing sees it: a table that is filled at
 * one moment and stays as it is until it is filled again.
 *
 * A choice between experts by where they are must not depend on the moment at which a row is
 * computed, or no run could be repeated.  So rows are given this table, not the tier. */
#ifndef COLI_MOE_LEVELS_H
#define COLI_MOE_LEVELS_H

#include "route.h"
#include "tier.h"

typedef struct coli__levels {
    uint32_t n_layer,
        n_expert;   // layers of the model, those without experts too; the most of a layer
    uint8_t *level; // (n_layer, n_expert) COLI__LEVEL_*
} coli__levels;

/* All on disk. */
coli_status coli__levels_init(coli__levels *l, const coli__container *container);
void coli__levels_finish(coli__levels *l);

/* As they are now: what a device that is alive holds is in VRAM, a copy on its way is not.  Where the
 * processor's weights are mapped, all others are in RAM: the page cache does not say which it holds.
 * tier: NULL without devices.  Called as the tier's functions are. */
void coli__levels_read(coli__levels *l, const coli__container *container, const coli__tier *tier);

/* Of the experts of a layer, by its number in the model. */
static inline const uint8_t *coli__levels_of(const coli__levels *l, uint32_t layer)
{
    return l->level + (size_t)layer * l->n_expert;
}

#endif
