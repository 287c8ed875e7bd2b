/* steer.h - which experts should change places now: what the tier decides while tokens are made.
 *
 * It puts together heat (heat.h), the re-plan (replan.h) and what may be asked of it: other weights
 * (weigh.h), what the machine affords and the hold (afford.h), corrections (online.h).  Pure but for its
 * memory: times and speeds are told, and the caller's function carries swaps out.  The simulator's
 * policies of the same names run the same modules (docs/replan.md).
 *
 * Nothing is allocated after init. */
#ifndef COLI_MOE_STEER_H
#define COLI_MOE_STEER_H

#include "afford.h"
#include "heat.h"
#include "online.h"
#include "replan.h"
#include "weigh.h"

/* What is done besides counting, as bits; each also re-plans. */
enum {
    COLI__STEER_TAIL = 1,   // late rows of a prompt count more
    COLI__STEER_PRIOR = 2,  // what was used before counts as some rows of the prompt
    COLI__STEER_COST = 4,   // no more swaps than the machine affords
    COLI__STEER_ONLINE = 8, // corrections while tokens are decoded, instead of slow swaps by heat
    COLI__STEER_HOLD = 16,  // a prompt's swaps wait until the link is idle
    COLI__STEER_ALL = 31
};

typedef struct coli__steer_opts {
    uint32_t n_layer, n_expert, n_device;
    bool replan;                               // by each prompt
    uint32_t with;                             // COLI__STEER_*
    int32_t cap;                               // swaps per layer and prompt
    const uint8_t *place, *home;               // as in coli__plan_world, borrowed
    bool (*begin)(void *ctx, coli__swap swap); // false: not now
    void *ctx;
} coli__steer_opts;

/* What a layer has done. */
typedef struct coli__work {
    const int32_t *ids; // (n_row, n_used) best first; below 0: none
    uint32_t n_row, n_used;
    uint64_t begin_ns, end_ns; // monotonic; both 0: nobody measured
    double host_ns;            // that one expert took on the processor for one row; 0: not known
    double host_row_ns;        // that a row took there, of many; 0: not known
} coli__work;

/* One thread uses it. */
typedef struct coli__steer {
    coli__steer_opts o;
    uint32_t *heat_counts; // (n_layer, n_expert)
    coli__heat heat;
    coli__replan replan;
    coli__weigh weigh;    // with TAIL or PRIOR
    uint32_t *before;     // (n_layer, n_expert) heat when the prompt began
    coli__online *online; // with ONLINE
    coli__pace *pace;     // (n_device)
    uint32_t *n_row;      // (n_layer) of the prompt so far
    bool in_prompt;
    /* Measured; 0: not yet. */
    uint64_t last_end_ns, token_begin_ns; // of the layer before; of the token
    double gap_ns;                        // between two layers, when nothing of the link is needed
    double layer_ns;                      // from the end of the layer before to the end of this one
    double token_ns;
} coli__steer;

coli_status coli__steer_init(coli__steer *s, const coli__steer_opts *o);
void coli__steer_finish(coli__steer *s); // NULL and zeroed are fine
/* What earlier runs used, (n_layer, n_expert); NULL: nothing. */
void coli__steer_start(coli__steer *s, const uint32_t *stored);

void coli__steer_prompt(coli__steer *s);         // a prompt begins
void coli__steer_prompt_goes_on(coli__steer *s); // another chunk of one
void coli__steer_prompt_ends(coli__steer *s);
/* A token is to be decoded.
 *   speeds  (n_device) as far as they are known */
void coli__steer_tick(coli__steer *s, const coli__speeds *speeds);
void coli__steer_used(coli__steer *s, uint32_t layer, const coli__work *work,
                      const coli__speeds *speeds);

#endif
