/* plan.h - which experts should be in VRAM: orders and swaps.
 *
 * Pure: the same input gives the same plan on every machine; no clock, file, thread or memory of its
 * own, so the tier, the simulator and the tests run exactly this code.  All orders are total, ties
 * go to the lower id, and sorting never depends on the system's library.
 *
 * Experts are named by flat ids, layer * n_expert + expert. */
#ifndef COLI_MOE_PLAN_H
#define COLI_MOE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where an expert is, as far as planning cares. */
typedef enum coli__place {
    COLI__PLACE_AWAY,    // its bytes would have to be waited for
    COLI__PLACE_KNOWN,   // its bytes are at hand: it could be uploaded at once
    COLI__PLACE_PLANNED, // the warm start reserved memory for it
    COLI__PLACE_QUEUED,  // an upload is on its way
    COLI__PLACE_RESIDENT // a device computes with it
} coli__place;

enum { COLI__NO_HOME = 255 }; // of an expert that no device may hold

/* What a plan sees; all arrays are borrowed for the call and only read. */
typedef struct coli__plan_world {
    uint32_t n_layer, n_expert; // their product is below 2^32
    const uint8_t *place;       // (n_layer, n_expert) coli__place
    const uint8_t *home;        // (n_layer, n_expert) the one device that may hold it; NULL: all 0
    const uint32_t *heat;       // (n_layer, n_expert); NULL: all 0
    const uint8_t *taken; // (n_layer, n_expert) not 0: part of a swap not yet begun; NULL: none is
} coli__plan_world;

static inline uint32_t coli__plan_home(const coli__plan_world *w, uint32_t id)
{
    return w->home ? w->home[id] : 0;
}

/* It may be swapped in, or out, when this is where it is. */
static inline bool coli__plan_is_free(const coli__plan_world *w, uint32_t id, coli__place place)
{
    return w->place[id] == place && coli__plan_home(w, id) != COLI__NO_HOME &&
           !(w->taken && w->taken[id]);
}

/* `in` takes the slot of `out`, on the home of both. */
typedef struct coli__swap {
    uint32_t in, out;
} coli__swap;

/* For sorting; the caller's memory, its contents are lost. */
typedef struct coli__plan_key {
    uint64_t rank;
    uint32_t id;
} coli__plan_key;

/* ---- the re-plan: what a prompt's own routing says ------------------------------------------ */

enum { COLI__PLAN_ALL_LAYERS = -1, COLI__PLAN_CAP = 24 };

typedef struct coli__plan_ask {
    int32_t layer; // this layer alone, or COLI__PLAN_ALL_LAYERS (anything below 0)
    int32_t cap;   // most swaps; 0 and less: none
    /* How often the prompt used each expert: (n_expert) of the layer, or (n_layer, n_expert).
     * NULL: no plan. */
    const uint32_t *counts;
} coli__plan_ask;

/* Newcomers: known, not taken, count > 0; by count, highest first, then id.
 * Victims: resident, not taken; by count, lowest first, then heat, lowest first, then id.
 * On each device the first newcomer is paired with the first victim, and so on while the newcomer's
 * count is greater.  The swaps of all devices together: newcomers by count, highest first, then id;
 * cut at the cap.  So the plan of a smaller cap is the beginning of that of a larger one.
 *
 *   keys    (the experts asked about)
 *   swaps   (min(cap, half the experts asked about)) the caller's
 *   n_newcomer  how many there were, for the record; may be NULL
 * Returns the number of swaps; 0 for a layer that there is not. */
uint32_t coli__plan_swaps(const coli__plan_world *w, const coli__plan_ask *ask,
                          coli__plan_key *keys, coli__swap *swaps, uint32_t *n_newcomer);

/* ---- the slow swap: what heat says ---------------------------------------------------------- */

/* The hottest known expert of a device for its coldest resident, when it beats it (heat.h); ties to
 * the lower id on both sides.  False: no swap. */
bool coli__plan_slow_swap(const coli__plan_world *w, uint32_t device, coli__swap *out);

/* ---- the warm start ------------------------------------------------------------------------- */

/* In which order experts fill an empty device: by heat, highest first, then expert, then layer.
 * Without heat that spreads over the layers: expert 0 of each, then expert 1.
 *   heat  (n_layer, n_expert) as stored, not halved; NULL: none
 *   keys  (n_layer * n_expert)
 *   ids   (n_layer * n_expert) the order */
void coli__plan_order(uint32_t n_layer, uint32_t n_expert, const uint32_t *heat,
                      coli__plan_key *keys, uint32_t *ids);

/* Walk along ids (n_ids) once and choose those that are nowhere yet (away or known) and whose home
 * has room.
 *   room    (devices) free slots; what is chosen is subtracted
 *   chosen  (n_ids) the caller's, may be ids itself
 * Returns how many were chosen. */
uint32_t coli__plan_fill(const coli__plan_world *w, const uint32_t *ids, uint32_t n_ids,
                         uint32_t *room, uint32_t n_device, uint32_t *chosen);

#endif
