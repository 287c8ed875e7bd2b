/* tier.h - which experts the devices hold, and how that changes while tokens are made.
 *
 * The tier fills the devices when a model is opened, hottest experts first.  Afterwards an expert
 * comes in only by taking another's slot: a few by heat (heat.h), many when a prompt shows what it
 * uses (replan.h).  Copies run on a thread per device; nobody who decodes waits for them.
 *
 * Threads: all calls come from one thread at a time, the one that runs a chunk; between chunks that
 * may be another.  No group is open while `used`, `prompt`, `tick` or `settle` runs.  NULL stands for
 * "no devices" everywhere. */
#ifndef COLI_MOE_TIER_H
#define COLI_MOE_TIER_H

#include "../backend/devices.h"
#include "steer.h"
#include "store.h"

typedef struct coli__tier coli__tier;

typedef struct coli__tier_opts {
    bool replan;          // re-plan from each prompt's routing
    uint32_t replan_with; // COLI__STEER_*
    int32_t replan_cap;   // swaps per layer and prompt
    bool starts_empty;    // an expert is uploaded when it is first used
    bool home_by_layer;   // else by expert (home.h)
    uint32_t layer_split; // by layer: so many are the first device's, of two; 0: by allowance
    uint32_t devices;     // bit i: device i may hold experts
    uint32_t stream_rows; // as in coli_model_opts; but for 0, each device keeps spare slots
} coli__tier_opts;

/* Empty.  The container and the devices outlive the tier.  *out is NULL without devices. */
coli_status coli__tier_create(coli__devices *devices, const coli__container *container,
                              const coli__tier_opts *opts, coli__tier **out);
/* Ends the copies: what is queued is not begun any more. */
void coli__tier_destroy(coli__tier *tier);

/* What the trunk competes with (place.h), before the tier is filled.
 *   slot_bytes    memory of one expert on a device
 *   expert_bytes  of it, what is read
 * Both are 0 without experts. */
void coli__tier_slot(const coli__tier *tier, uint64_t *slot_bytes, uint64_t *expert_bytes);
/* The experts that a device would hold if it had room for them: how likely a token uses each, highest
 * first.  *p is the caller's to free (coli__free). */
coli_status coli__tier_chances(coli__tier *tier, uint32_t device, uint32_t n_used,
                               const uint32_t *heat, double **p, uint32_t *n);
/* Copies read experts through a store instead of the mapping.  Before the first copy; the store
 * outlives the tier. */
coli_status coli__tier_read_from(coli__tier *tier, const coli__store *store);

/* Fill the devices with what their allowance leaves, or leave that for later (starts_empty).
 *   heat  (n_layer, n_expert) of earlier runs, by layers with experts; NULL: none
 * E_CANCELLED when the devices' progress said so; E_UNSUPPORTED when a device that was asked for is
 * lost; E_INVALID when layer_split does not fit the devices or the layers. */
coli_status coli__tier_fill(coli__tier *tier, const uint32_t *heat);

/* How many experts fill would bring to each device, as far as memory goes: (COLI__MAX_DEVICE).
 * E_INVALID as fill. */
coli_status coli__tier_room(coli__tier *tier, uint32_t *n);

coli__devices *coli__tier_devices(const coli__tier *tier);

/* False when the expert is on no device that is alive. */
bool coli__tier_find(const coli__tier *tier, const coli__ct_experts *layer, uint32_t expert,
                     coli__slot *out);

/* -- spare slots ------------------------------------------------------------------------------- */

/* Slots through which experts pass (stream.h).  They hold what passed last, and are nobody's. */
enum { COLI__SPARE = 2 }; // of each device

uint32_t coli__tier_stream_rows(const coli__tier *tier);                  // as in coli__tier_opts
uint64_t coli__tier_spare_bytes(const coli__tier *tier, uint32_t device); // in the books
/* Whether the device is alive and has one that this layer's experts fit into. */
bool coli__tier_can_stream(const coli__tier *tier, uint32_t device, const coli__ct_experts *layer);
/* The three below: from one thread per device at a time, which ends before coli__tier_used. */
bool coli__tier_has_spare(const coli__tier *tier, uint32_t device, uint32_t slot);
/* Copy an expert into a spare slot.  NULL: it failed, and the slot may be gone. */
coli_bk_tensor *coli__tier_pass(coli__tier *tier, uint32_t device, uint32_t slot,
                                const coli__ct_experts *layer, uint32_t expert);
/* Each row of an expert that passed took so long on the device. */
void coli__tier_passed(coli__tier *tier, uint32_t device, double row_ns);

/* -- what happens ------------------------------------------------------------------------------ */

void coli__tier_prompt(coli__tier *tier);         // a prompt begins
void coli__tier_prompt_goes_on(coli__tier *tier); // another chunk of one
void coli__tier_prompt_ends(coli__tier *tier);    // hits from here on are the decode's
void coli__tier_tick(coli__tier *tier);           // a token is to be decoded
/* A layer has computed rows.  Where there is room that nothing was filled into, their experts are
 * uploaded as far as the queue takes them. */
void coli__tier_used(coli__tier *tier, const coli__ct_experts *layer, const coli__work *work);
/* Whether it wants to know times. */
bool coli__tier_measures(const coli__tier *tier);
/* Wait until every copy that is queued has ended and what it brought is resident. */
void coli__tier_settle(coli__tier *tier);

/* One expert for another, now: true when the copy was queued.  The newcomer is on no device, the
 * leaving one is, and both have the same home. */
bool coli__tier_swap(coli__tier *tier, coli__swap swap);

/* Experts that have left the devices since the last call, oldest first: whoever dropped their bytes
 * from memory reads them back now.  Each is reported once, however often it left, and not at all if
 * it has come back.
 *   ids  (cap) flat, layer * n_expert + expert
 * Returns how many; call again while that is cap. */
uint32_t coli__tier_evicted_take(coli__tier *tier, uint32_t *ids, uint32_t cap);

/* -- numbers ----------------------------------------------------------------------------------- */

/* Adds to what coli__devices_stats filled in. */
void coli__tier_stats(const coli__tier *tier, coli_backend_stats *out);
uint32_t coli__tier_n_resident(const coli__tier *tier, uint32_t device);
/* (n_layer, n_expert), halved with time; for the heat file. */
const uint32_t *coli__tier_heat(const coli__tier *tier);
uint64_t coli__tier_n_tick(const coli__tier *tier);

/* What is known of them (afford.h), the shortest seen lately; 0: nothing yet. */
coli__speeds coli__tier_speeds(const coli__tier *tier, uint32_t device);

/* For tests: from now on these are the speeds, whatever is measured. */
void coli__tier_set_speeds(coli__tier *tier, coli__speeds speeds);
/* For tests: whether the books are right (used == (residents + spares) * slot on every device,
 * no expert twice, states and slots agree).  The tier must be settled. */
bool coli__tier_is_sound(const coli__tier *tier);

#endif
