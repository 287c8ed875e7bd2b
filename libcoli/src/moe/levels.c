/* levels.c - see levels.h. */
#include "levels.h"

#include "../base/alloc.h"

coli_status coli__levels_init(coli__levels *l, const coli__container *container)
{
    *l = (coli__levels){0};
    for (uint32_t i = 0; i < coli__container_n_expert_layer(container); i++) {
        const coli__ct_experts *layer = coli__container_experts(container, i);
        if (layer->layer >= l->n_layer) l->n_layer = layer->layer + 1;
        if (layer->n_expert > l->n_expert) l->n_expert = layer->n_expert;
    }
    l->level = coli__calloc((size_t)l->n_layer * l->n_expert, sizeof *l->level);
    return l->level ? COLI_OK : COLI_E_NOMEM;
}

void coli__levels_finish(coli__levels *l)
{
    coli__free(l->level);
    *l = (coli__levels){0};
}

static void read_layer(const coli__ct_experts *layer, const coli__tier *tier,
                       const coli__store *store, bool expected, uint8_t *level)
{
    coli__slot slot;
    for (uint32_t e = 0; e < layer->n_expert; e++) {
        const bool in_ram = !store || (!expected && coli__store_has(store, layer, e));
        level[e] = coli__tier_find(tier, layer, e, &slot) ? COLI_LEVEL_VRAM
                   : in_ram                               ? COLI_LEVEL_RAM
                                                          : COLI_LEVEL_DISK;
    }
    if (store && expected) coli__store_expect(store, layer, level);
}

void coli__levels_read(coli__levels *l, const coli__container *container, const coli__tier *tier,
                       const coli__store *store, bool expected)
{
    for (uint32_t i = 0; i < coli__container_n_expert_layer(container); i++) {
        const coli__ct_experts *layer = coli__container_experts(container, i);
        read_layer(layer, tier, store, expected, l->level + (size_t)layer->layer * l->n_expert);
    }
}

coli_status coli__levels_set(coli__levels *l, const coli__container *container,
                             const uint8_t *given)
{
    for (uint32_t i = 0; i < coli__container_n_expert_layer(container); i++) {
        const coli__ct_experts *layer = coli__container_experts(container, i);
        uint8_t *out = l->level + (size_t)layer->layer * l->n_expert;
        for (uint32_t e = 0; e < layer->n_expert; e++) {
            out[e] = *given++;
            if (out[e] > COLI_LEVEL_VRAM)
                return coli__fail(COLI_E_INVALID,
                                  "levels: expert %u of layer %u: expected a coli_level, found %u",
                                  e, layer->layer, out[e]);
        }
    }
    return COLI_OK;
}
