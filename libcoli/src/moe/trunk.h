/* trunk.h - put the pieces of a model's dense trunk where they are worth most (place.h): on a device, or
 * on the processor.
 *
 * When a model is opened its engine offers the pieces.  coli__trunk_place decides, once it is known
 * what the devices may hold and which experts are hot, and copies what goes to devices; what is left
 * of their memory is for experts (tier.h). */
#ifndef COLI_MOE_TRUNK_H
#define COLI_MOE_TRUNK_H

#include "../base/threads.h"
#include "place.h"
#include "tier.h"

enum { COLI__TRUNK_MAX_MAT = 4 }; // of a piece

typedef struct coli__trunk_piece {
    coli__component component;
    uint32_t layer;
    uint32_t n_mat;
    coli__mat mats[COLI__TRUNK_MAX_MAT];
} coli__trunk_piece;

/* What is offered.  Starts zeroed. */
typedef struct coli__trunk {
    coli__trunk_piece *pieces;
    uint32_t n, cap;
} coli__trunk;

/* Offer a piece: matrices that coli__dense_run multiplies; of a shared expert (COLI__SHEXP) gate, up and
 * down, which moe.c computes.  Their weights outlive the devices. */
coli_status coli__trunk_offer(coli__trunk *trunk, coli__component component, uint32_t layer,
                              const coli__mat *const *mats, uint32_t n_mat);
void coli__trunk_finish(coli__trunk *trunk); // a zeroed one is fine

typedef struct coli__trunk_args {
    coli__devices *devices;       // NULL: nothing is done
    coli__tier *tier;             // empty; NULL: no experts
    const coli__place_list *list; // resolved
    const uint32_t *heat;         // as for coli__tier_fill; NULL: none
    uint32_t n_expert_used;
    bool no_race; // do not try whether a device is faster than the processor
    const coli__kernels *kernels;
    coli__pool *pool;
} coli__trunk_args;

/* Decide, without trying how fast a device is, and only reserve its memory: for those who plan. */
coli_status coli__trunk_reserve(const coli__trunk *trunk, const coli__trunk_args *args);

/* Decide, copy, and say what is where.  A device that fails meanwhile holds less; E_NOMEM. */
coli_status coli__trunk_place(const coli__trunk *trunk, const coli__trunk_args *args);

#endif
