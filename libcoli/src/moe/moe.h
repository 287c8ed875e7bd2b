/* moe.h - one Mixture-of-Experts layer over the rows of a chunk, on the processor and on devices.
 *
 * The caller writes normed rows into coli__moe_input().  Where rows are shared out among the workers, it
 * calls coli__moe_route for all of them, else coli__moe_run shares out the router's columns.
 * coli__moe_run adds the layer's output to the residual stream:
 *
 *     h[t] += sum over ranks k of  w_k * down_k( silu(gate_k x) * up_k x )   in rank order,
 *             then  sigmoid(shared_gate . x) * the same for the shared expert
 *
 * Experts that a device holds are computed there, the others meanwhile on the processor; the bytes
 * are the same.  A device that fails costs time, nothing else.
 *
 * Two synchronisations for rows that are routed, and for one row where there is neither device nor store.
 * Else one more for the router, and one for several rows' choice; two more when a device failed, or when some
 * experts have to be read first (store.h).  Nothing is allocated after create. */
#ifndef COLI_MOE_MOE_H
#define COLI_MOE_MOE_H

#include "../base/threads.h"
#include "../math/acts.h"
#include "../model/container.h"
#include "../model/imatrix.h"
#include "router.h"
#include "store.h"
#include "tier.h"

/* The weights of one layer; borrowed from the container. */
typedef struct coli__moe_layer {
    const coli__ct_experts *experts;
    coli__mat router;          // (n_expert, d_model)
    coli__mat shared_gate_row; // (1, d_model)
    coli__mat shared_gate, shared_up, shared_down;
} coli__moe_layer;

typedef struct coli__moe coli__moe;

/* Scratch for chunks of up to max_tok rows of any of these layers, which agree in all dimensions and
 * are borrowed, in the order in which rows pass them.  tier and store may be NULL. */
coli_status coli__moe_create(const coli__moe_layer *layers, uint32_t n_layer,
                             uint32_t n_expert_used, uint32_t max_tok, uint32_t n_worker,
                             const coli__kernels *kernels, coli__tier *tier, coli__store *store,
                             coli__moe **out);
void coli__moe_destroy(coli__moe *moe);
/* Bytes that create takes for this, without what travels to devices. */
uint64_t coli__moe_bytes(const coli__moe_layer *layers, uint32_t n_layer, uint32_t n_expert_used,
                         uint32_t max_tok, uint32_t n_worker, bool with_store);

/* Products that stay in the last-level cache: of few rows all, of many those with some columns.  Tests make it
 * small, before create. */
extern size_t coli__moe_product_max;

/* How rows choose their experts from here on: where experts are decides, too, or what that would cost is
 * metered.  NULL, as after create: plainly.  The router's numbers grow in coli__moe_run. */
void coli__moe_set_router(coli__moe *moe, coli__router *router);

/* From here on coli__moe_run adds up what matrices are multiplied with, where experts are the
 * processor's.  NULL, as after create: not. */
void coli__moe_set_importance(coli__moe *moe, coli__importance *importance);

/* Row t of the layer's input (d_model numbers). */
float *coli__moe_input(coli__moe *moe, uint32_t t);

/* Choose the experts of rows [first, first+n) and quantise them.  Different rows may be routed by different
 * threads. */
void coli__moe_route(coli__moe *moe, const coli__moe_layer *layer, uint32_t first, uint32_t n);

/* Row t left the range of coli/exact.h before it came here: coli__moe_run will fail and name it.
 * From any thread. */
void coli__moe_reject(coli__moe *moe, uint32_t t);

/* The rest of the layer for rows 0..n_tok-1.
 *   routed  coli__moe_route was called for all of them
 *   h       (n_tok, d_model) the residual stream, added to
 *   pos     position of row 0, for the message
 * E_NUMERIC naming the position when an activation left its range (the layer is the caller's to
 * name); E_IO when an expert could not be read: h is then spoilt. */
coli_status coli__moe_run(coli__moe *moe, const coli__moe_layer *layer, coli__pool *pool,
                          uint32_t n_tok, bool routed, uint32_t pos, float *h);

/* How long the caller's thread was in coli__moe_run since this was last asked, and of that in waiting
 * for devices. */
typedef struct coli__moe_times {
    uint64_t moe_ns, wait_ns;
} coli__moe_times;
coli__moe_times coli__moe_take_times(coli__moe *moe);

/* What was chosen for row t: ids and weights, best first. */
const int32_t *coli__moe_ids(const coli__moe *moe, uint32_t t);
const float *coli__moe_weights(const coli__moe *moe, uint32_t t);

/* For those who record, after coli__moe_run.  The n best experts of row t as the router sees them, ties
 * to the lower id, and their shares of the softmax over all experts. */
void coli__moe_rank(const coli__moe *moe, uint32_t t, uint32_t n, int32_t *ids, float *mass);
/* Where each of row t's experts was computed (n_used): coli_level of coli.h. */
void coli__moe_levels(const coli__moe *moe, uint32_t t, uint8_t *levels);

#endif
