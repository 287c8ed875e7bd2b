/* moe_parts.h - what the files of one layer share; for them alone (moe.c says how they work together). */
#ifndef COLI_MOE_MOE_PARTS_H
#define COLI_MOE_MOE_PARTS_H

#include <stdatomic.h>

#include "moe.h"
#include "phase.h"
#include "route.h"
#include "stream.h"

enum {
    COLI__MOE_INNER = 64,     // columns of the inner width per item: whole groups of either size
    COLI__MOE_TILE = 32,      // output columns per item of `outer`: two panels
    COLI__MOE_JOIN = 256,     // columns that are joined at once: a multiple of that
    COLI__MOE_GUESS_ROWS = 4, // more rows need most of a layer's experts anyway
};

/* A run of rows that use one expert in this chunk. */
typedef struct coli__run {
    uint32_t expert;      // n_expert: the shared one
    uint32_t first, n;    // its pairs
    const uint8_t *block; // of an expert in the store; NULL: mapped
} coli__run;

/* Where a result comes from. */
typedef struct coli__source {
    int32_t device; // index, or one of those below
    uint32_t row;   // of the device's result; else whether its expert was read for it
} coli__source;

enum {
    COLI__HOST = -1,    // what the present `outer` multiplies
    COLI__WAITS = -2,   // in `results`, from an earlier wave
    COLI__STREAMED = -3 // in `results`, from a stream
};

/* Results of the devices' groups, and of the shared expert's. */
enum { COLI__SHARED = COLI__MAX_DEVICE, COLI__N_RESULT };

struct coli__moe {
    /* immutable after create */
    const coli__kernels *k;
    uint32_t n_expert, n_used, d_model, d_ff, d_ff_shared, max_tok;
    coli__tier *tier;
    coli__devices *devices; // the tier's
    uint32_t n_device;
    coli__store *store; // NULL: all experts are mapped
    const coli__moe_layer *layers;
    uint32_t n_layer;

    size_t n_product_max; // few rows have at most so many
    float *own;           // (n_worker, n_own): products of many rows with some columns
    size_t n_own;
    /* (n_pair + n_tok, d_model) products by pair, the shared expert's last: of few rows, in `own`; with
     * a store or streams of all, elsewhere */
    float *results;

    coli__router *router;         // of the present chunk; NULL: plain
    coli__importance *importance; // likewise; NULL: nobody asks

    /* per row */
    coli__acts x;           // (max_tok, d_model)
    float *logits;          // (max_tok, n_expert)
    coli__route_cost *cost; // (max_tok) where the router prefers
    int32_t *ids;           // (max_tok, n_used)
    float *w;               // (max_tok, n_used)
    float *shared_w;        // (max_tok)
    atomic_uint first_bad;  // lowest row whose numbers left their range; UINT32_MAX: none

    /* per chunk */
    uint32_t *n_of;          // (n_expert + 1) pairs of each expert
    coli__run *runs;         // (n_expert + 1) the processor's; the shared expert's last
    uint32_t n_run, n_pair;  // n_pair: routed ones
    uint32_t *pair_row;      // (max_tok * n_used) row of each pair, by expert
    uint32_t *pair_of;       // (max_tok, n_used) pair of each (row, rank)
    coli__acts inner;        // (max_tok * n_used, d_ff)
    coli__acts inner_shared; // (max_tok, d_ff_shared)
    /* (ceil(d_model / COLI__MOE_JOIN)) tiles, of all runs, before the join of these columns */
    atomic_uint *n_left;

    /* per chunk, with devices */
    coli__group **groups;        // (n_device)
    coli__group **shared_groups; // (n_device) NULL: it holds no shared expert
    int32_t shared_device;       // that has this layer's; COLI__HOST: none
    uint32_t *all_rows;          // (max_tok) 0, 1, 2, ...
    bool *in_use;                // (n_device) its group has work, and has not failed
    coli__run *held;             // (n_expert) runs of experts on devices
    uint32_t n_held;
    coli__source *join_source; // (max_tok) of a row's joined sum; COLI__HOST: joined here
    uint32_t *terms;           // (n_used)

    coli__source *pair_source; // (max_tok * n_used) with devices or a store

    /* per chunk, with streams */
    coli__stream **streams; // (n_device) NULL: none
    bool *streams_now;      // (n_device) it has work
    coli__passing *passing; // (n_expert) runs that pass through devices
    uint32_t n_passing;
    uint32_t *n_row;  // (n_expert) of runs
    uint8_t *flagged; // (max_tok * n_used) by pair, of those that passed

    /* per chunk, with a store that guesses */
    const coli__moe_layer *guess_layer; // whom the guesses are about; NULL: there are none
    uint32_t n_guess_row;
    float *guess_logits;   // (COLI__MOE_GUESS_ROWS, n_expert)
    int32_t *guess_ids;    // (COLI__MOE_GUESS_ROWS, n_used)
    float *guess_w;        // (COLI__MOE_GUESS_ROWS, n_used)
    coli__moe_times times; // the caller's, who is worker 0

    /* when another worker waited for devices, and the caller had no more items of `outer` */
    atomic_ullong waited_until_ns;
    uint64_t waited_from_ns, caller_end_ns;

    /* a row alone; a line that all workers write, and one that they wait for */
    _Alignas(64) atomic_uint next_route;
    atomic_uint n_route_left, next_shared, next_chunk;
    _Alignas(64) atomic_bool is_chosen;
};

/* One call of coli__moe_run. */
typedef struct coli__moe_job {
    coli__moe *m;
    coli__pool *pool;
    const coli__moe_layer *layer;
    uint32_t n_tok, n_block, n_block_shared; // blocks: of an inner width
    uint32_t n_guess;                        // rows of `inner` that guess
    uint32_t first_run,
        end_run;         // of the present `inner` or `outer`; of a row alone, since is_chosen
    uint32_t first_left; // runs before it have results that wait
    bool joins;          // the present `outer` does
    uint32_t n_route;    // items of the router
    bool inner_is_done;  // with the routing
    float *h;
    bool timed;                  // these are wanted
    double host_ns, host_row_ns; // see coli__work
} coli__moe_job;

static inline uint32_t coli__divide_up(uint32_t n, uint32_t by)
{
    return n / by + (n % by != 0);
}

/* Products of a chunk with n_column columns. */
static inline size_t coli__moe_n_product(uint32_t n_tok, uint32_t n_used, uint32_t n_column)
{
    return (size_t)n_tok * ((size_t)n_used + 1) * n_column;
}

/* Blocks of the shared expert's inner width, where it is computed here. */
static inline uint32_t coli__moe_n_block_shared(const coli__moe *m)
{
    return m->shared_device == COLI__HOST ? coli__divide_up(m->d_ff_shared, COLI__MOE_INNER) : 0;
}

/* -- moe.c: bucket ----------------------------------------------------------------------------- */

void coli__moe_bucket(coli__moe *m, uint32_t n_tok);

/* -- moe_route.c ------------------------------------------------------------------------------- */

/* Panels [begin, end) of the layer's router, for n rows of the input from `first` on; logits: (n, n_expert). */
void coli__moe_router_panels(coli__moe *m, const coli__moe_layer *layer, uint32_t first, uint32_t n,
                             uint32_t begin, uint32_t end, float *logits);
void coli__moe_run_route(coli__moe_job *j);
/* Of a row alone, with `bucket` and `inner`. */
void coli__moe_run_route_and_inner(coli__moe_job *j);

/* -- moe_devices.c ----------------------------------------------------------------------------- */

/* Hand to devices, and to streams, what is theirs of the runs. */
void coli__moe_start_groups(coli__moe *m, const coli__moe_layer *layer, uint32_t n_tok);
bool coli__moe_has_groups(const coli__moe *m);
/* Wait for them, from any worker: false when one of them failed.  results (COLI__N_RESULT) */
bool coli__moe_wait_for_groups(const coli__moe *m, const coli_bk_result **results);
/* Rows that a device found to leave their range. */
void coli__moe_reject_flagged(coli__moe *m, const coli_bk_result **results, uint32_t n_tok);
/* Give the runs of failed groups back to the processor, behind its other routed ones; how many. */
uint32_t coli__moe_take_back(coli__moe *m, const coli_bk_result **results, uint32_t n_tok);
/* The shared expert, whose group failed: the processor's from now on. */
void coli__moe_take_back_shared(coli__moe *m, const coli__moe_layer *layer, uint32_t n_tok);

/* -- moe_products.c ---------------------------------------------------------------------------- */

void coli__moe_swap_runs(coli__moe *m, uint32_t a, uint32_t b);
void coli__moe_inner_blocks(const coli__moe_job *j, coli__run r, uint32_t first, uint32_t end,
                            const uint8_t *behind);
void coli__moe_inner_items(void *ctx, uint32_t first, uint32_t end, uint32_t worker);
void coli__moe_run_inner(coli__moe_job *j, uint32_t first_run, uint32_t n_run,
                         uint32_t n_block_shared);
/* The runs that are left, the shared expert's at least, and the join. */
void coli__moe_run_outer(coli__moe_job *j);
/* The products of runs that wait for the join. */
void coli__moe_run_outer_part(coli__moe_job *j, uint32_t first_run, uint32_t n_run);

/* -- moe_waves.c ------------------------------------------------------------------------------- */

/* Runs [first, first+n), whose experts are in a store; the last wave's `outer` is left to run_outer. */
coli_status coli__moe_run_waves(coli__moe_job *j, uint32_t first, uint32_t n,
                                uint32_t n_block_shared);
/* What the join used may go. */
void coli__moe_release_last_wave(coli__moe_job *j);
void coli__moe_plan_guess(coli__moe_job *j);
void coli__moe_guess_row(const coli__moe_job *j, uint32_t t);
void coli__moe_score_guess(const coli__moe_job *j);

#endif
