/* replay.h - recorded routing through placement policies, on the clock of a device that is made up.
 *
 * Pure: traces in, numbers out; no file, thread, clock or global.  Where swaps and heat come from is
 * the code that the tier runs (plan.h, replan.h, heat.h); what transfers and kernels take is the code
 * of the simulated device (backends/fake/fake_model.h). */
#ifndef COLI_MOE_REPLAY_H
#define COLI_MOE_REPLAY_H

#include "../../../backends/fake/fake_model.h"
#include "../model/trace.h"
#include "afford.h"
#include "heat.h"
#include "online.h"
#include "replan.h"
#include "weigh.h"

/* The machine that is made up: a device (fake_model.h) and a processor beside it. */
typedef struct coli__replay_machine {
    uint64_t link_bytes_per_s; // 0: swaps take no time at all
    uint64_t bw_bytes_per_s, latency_ns, kernel_ns;
    uint64_t cpu_bytes_per_s, cpu_mac_per_s; // of the processor: reading weights; multiplying
    uint64_t expert_bytes, expert_mac, d_model;
    uint64_t trunk_token_ns,
        trunk_row_ns; // all but routed experts, per decoded token; per prompt row
    uint64_t slow;    // uploads take so many times as long
    uint32_t n_copy;  // transfers of one expert
    bool waits;       // the host waits for each
} coli__replay_machine;

/* Which counts stand for the past, and so choose who is in VRAM when the prompt comes. */
typedef enum coli__replay_past {
    COLI__PAST_FOREIGN, // a few prompts of other topics
    COLI__PAST_OTHERS,  // all prompts but this one
    COLI__PAST_SAME,    // this very prompt and its answer
    COLI__PAST_ANSWER,  // its answer alone
    COLI__PAST_NONE     // any experts
} coli__replay_past;

typedef struct coli__replay_opts {
    uint32_t policy; // index, see below
    uint32_t n_slot; // experts of each layer in VRAM
    int32_t cap;     // swaps per layer and prompt of a re-plan
    uint32_t drain;  // swaps begun per decoded token
    uint32_t min_count;
    uint64_t seed;
    uint64_t allowance; // uploads of prompt and answer
    coli__replay_machine machine;
} coli__replay_opts;

/* What became of one prompt. */
typedef struct coli__replay_result {
    uint64_t n_prefill_hit, n_hit;       // pairs of a row and a resident; in the answer
    uint64_t n_prefill_upload, n_upload; // begun before the first token; after it
    double prefill_ns, decode_ns;
} coli__replay_result;

typedef struct coli__replay_policy coli__replay_policy;

/* One run: a prompt, a policy, a machine.  What policies see and change. */
typedef struct coli__replay {
    /* immutable during the run */
    const coli__trace *t;
    coli__replay_opts opts;
    const coli__replay_policy *policy;
    uint32_t n_layer, n_expert;
    uint32_t *past; // (n_layer, n_expert) the counts that chose who is resident at first

    uint8_t *place;  // (n_layer, n_expert) coli__place: known, queued or resident
    coli__heat heat; // live, as the tier keeps it
    uint32_t *heat_count;
    coli__replan replan;       // its counts are those of the prompt so far
    coli__weigh weigh;         // of which these are made anew
    bool in_prompt, may_swap;  // whether a slow swap is due with this token
    double layer_ns, token_ns; // that the last layer of the prompt, the last token took
    uint32_t first_row, n_row; // that are computed now: of the prompt a chunk, else one

    /* the policy's own, all zero at first */
    uint64_t *stamp;      // (n_layer, n_expert)
    double *score;        // (n_layer, n_expert)
    void *own;            // from init, freed at the end
    coli__online *online; // the same
    coli__pace pace;

    /* for sorting */
    coli__plan_key *keys; // (n_layer, n_expert)
    uint32_t *order;      // (n_expert)
    coli__swap *swaps;    // (n_layer, n_expert)

    /* the machine */
    fake_model device;
    struct coli__replay_flight *flight; // ring of uploads on their way, the first to land first
    uint32_t n_flight, first_flight, cap_flight;
    uint32_t *n_missed;   // (n_expert) rows of the chunk that the processor computes
    uint64_t *last_group; // (n_expert) that read it
    uint64_t n_group;
    coli__replay_result result;
} coli__replay;

/* A policy: which counts it starts with, and what it does when.  The functions may be NULL. */
struct coli__replay_policy {
    const char *name, *knows;
    coli__replay_past past;
    bool replans;                         // cap, drain and min_count mean something to it
    coli_status (*init)(coli__replay *r); // memory of its own
    void (*prompt)(coli__replay *r, uint32_t layer); // the layer has computed a chunk of the prompt
    void (*token)(coli__replay *r);                  // a token is about to be decoded
    void (*layer)(coli__replay *r, uint32_t layer, const int32_t *ids); // the layer has computed it
};

extern const coli__replay_policy coli__replay_policies[];
extern const uint32_t coli__replay_n_policy;

/* Replay trace `i` of `all`.  E_NOMEM, or E_INVALID for options that make no sense. */
coli_status coli__replay_run(const coli__traces *all, uint32_t i, const coli__replay_opts *opts,
                             coli__replay_result *out);

/* ---- for policies -------------------------------------------------------------------------- */

/* Who is resident, anew: in each layer the n_slot experts with the highest counts, then lowest ids. */
void coli__replay_fill(coli__replay *r, const uint32_t *counts);
/* (n_expert_used) that the row used, best first. */
const int32_t *coli__replay_ids(const coli__replay *r, uint32_t layer, uint32_t row);
/* Begin to upload `in` into the slot of `out`, both of this layer.  False: the newcomer is not known,
 * or the victim is not resident. */
bool coli__replay_swap(coli__replay *r, uint32_t layer, uint32_t in, uint32_t out);
/* The same for flat ids, as coli__replan_drain wants it; also false when as many uploads are on their
 * way as the tier's queue holds. */
bool coli__replay_begin(void *replay, coli__swap swap);
/* Uploads that may still begin now. */
uint64_t coli__replay_left(const coli__replay *r);
/* What plan.h wants to see. */
coli__plan_world coli__replay_world(const coli__replay *r);

#endif
