/* store.h - the routed experts in less memory than they need.
 *
 * Where memory is enough, experts are read through the mapping of the container, and there is no store:
 * NULL stands for that everywhere here.  A store has some slots for each layer (lru.h), one expert in
 * each, and threads that read experts from the file into them; the experts' part of the mapping is
 * then never touched.
 *
 * One layer's step, on the thread that computes (moe.c):
 *
 *     hold each expert that is needed; those that are absent are read one by one, as slots become
 *     free; compute what is there; release it; ...; used
 *
 * Threads: all calls come from one thread at a time, but coli__store_read, which may come from any. */
#ifndef COLI_MOE_STORE_H
#define COLI_MOE_STORE_H

#include "../model/container.h"
#include "coli/coli.h"

typedef struct coli__store coli__store;

typedef struct coli__store_opts {
    uint32_t n_slot; // of each layer, 1 to n_expert
    bool guesses;    // coli__store_guess may read
} coli__store_opts;

/* All slots are taken here.  The container outlives the store.  E_NOMEM, E_IO. */
coli_status coli__store_create(const coli__container *container, const coli__store_opts *opts,
                               coli__store **out);
void coli__store_destroy(coli__store *store); // waits for reads that run

/* Bytes of one slot in every layer, together; 0 when that overflows. */
uint64_t coli__store_slot_bytes(const coli__container *container);

/* -- start ------------------------------------------------------------------------------------- */

/* What earlier runs learned, and which experts stay in memory for it: those used most, up to half of a
 * layer's slots.  They are read now. */
typedef struct coli__store_start {
    const uint32_t *heat; // (n_layer, n_expert) as in the heat file; NULL: none
    uint64_t pin_bytes;   // for experts that stay; 0: by how much was learned (store_plan.h)
    /* Whether an expert is on a device, where it needs no memory; NULL: none is. */
    bool (*is_elsewhere)(void *ctx, const coli__ct_experts *layer, uint32_t expert);
    void *ctx;
    coli_progress_fn progress; // NULL: nobody asks
    void *user;
} coli__store_start;
/* E_IO; E_CANCELLED when progress said so.  NULL is fine. */
coli_status coli__store_begin(coli__store *store, const coli__store_start *start);

/* -- a step ------------------------------------------------------------------------------------ */

typedef enum coli__store_state {
    COLI__STORE_ABSENT,
    COLI__STORE_COMING,
    COLI__STORE_HERE
} coli__store_state;

/* Hold an expert that is in a slot, or on its way to one. */
coli__store_state coli__store_hold(coli__store *store, const coli__ct_experts *layer,
                                   uint32_t expert);
/* Forget guesses that are not being read yet: now it is known what is needed. */
void coli__store_forget_guesses(coli__store *store);
/* Begin to read one that was absent, and hold it.  False: all slots are held or being read. */
bool coli__store_ask(coli__store *store, const coli__ct_experts *layer, uint32_t expert);
/* Its block; NULL while it is being read. */
const uint8_t *coli__store_block(const coli__store *store, const coli__ct_experts *layer,
                                 uint32_t expert);
/* Look whether reads have ended; with `wait` until one has, if any runs.  E_IO when one of an expert
 * that is held failed, which names file, layer and expert. */
coli_status coli__store_collect(coli__store *store, bool wait);
/* Also of one that is still being read. */
void coli__store_release(coli__store *store, const coli__ct_experts *layer, uint32_t expert);

/* -- what will be needed ----------------------------------------------------------------------- */

/* Experts that the next step may need: read those that are absent, if their slots are nobody's who is
 * hotter.  Those below 0 are skipped. */
void coli__store_guess(coli__store *store, const coli__ct_experts *layer, const int32_t *ids,
                       size_t n_id);
bool coli__store_guesses(const coli__store *store);
/* How good guesses were: n_right of n_used were among them. */
void coli__store_guessed(coli__store *store, uint64_t n_used, uint64_t n_right);

/* Rows of a layer used these experts (all rows' ids), wherever they were computed. */
void coli__store_used(coli__store *store, const coli__ct_experts *layer, const int32_t *ids,
                      size_t n_id);
void coli__store_tick(coli__store *store);        // a token is to be decoded
void coli__store_prompt_ends(coli__store *store); // what is counted from here on is the decode's

/* Whether an expert is in a slot, all of it. */
bool coli__store_has(const coli__store *store, const coli__ct_experts *layer, uint32_t expert);
/* What would be in a layer's slots if reads took no time: the pinned, then those used last, by token, heat
 * and id.  What is there depends on when reads end, this does not; they differ by what one chunk used.
 *   level  (n_expert) coli_level; experts on disk that would be there are set to RAM, and the others take
 *          no slot */
void coli__store_expect(const coli__store *store, const coli__ct_experts *layer, uint8_t *level);

/* -- for others -------------------------------------------------------------------------------- */

uint32_t coli__store_n_slot(const coli__store *store); // of each layer
/* An expert's block into memory of the caller's: at a multiple of COLI__DIRECT_ALIGN, with
 * coli__store_room bytes.  From any thread.  E_IO as above. */
uint64_t coli__store_room(const coli__store *store);
coli_status coli__store_read(const coli__store *store, const coli__ct_experts *layer,
                             uint32_t expert, void *room, const uint8_t **data);

const uint32_t *coli__store_heat(const coli__store *store); // as coli__tier_heat
uint64_t coli__store_n_tick(const coli__store *store);
void coli__store_stats(const coli__store *store, coli_store_stats *out);

/* For tests: nothing is held, and the slots agree with what says where experts are. */
bool coli__store_is_sound(coli__store *store);

#endif
