/* device.h - one open device of a plugin, which may fail at any call and at any time.
 *
 * Every call into the plugin runs on one of the device's two lanes (base/lane.h), `work` and `copy`
 * as in coli/backend.h, is waited for with a limit, and is counted.  What a caller sees is simple:
 * it worked, or it did not and the processor has to do it.
 *
 *     alive --a call returns LOST or exceeds the limit, or three jobs of a lane fail in a row--> lost
 *
 * A lost device is not called again, but for close; when a call hangs inside the plugin, not even
 * that, and all memory that the call may touch stays behind: buffers here, and the weights, which
 * is why coli__device_close tells.
 *
 * Threads: groups and products of a device are used by one thread at a time (the waits by any
 * number); tensors by one at a time, which may be another. */
#ifndef COLI_BACKEND_DEVICE_H
#define COLI_BACKEND_DEVICE_H

#include "../math/kernels.h"
#include "plugin.h"

typedef struct coli__device coli__device;

/* What happened since open; the meaning is that of coli_backend_stats. */
#define COLI__DEVICE_COUNTERS(X)                                                                   \
    X(n_group)                                                                                     \
    X(n_matmul)                                                                                    \
    X(n_upload)                                                                                    \
    X(n_upload_failed)                                                                             \
    X(n_overwrite)                                                                                 \
    X(n_overwrite_async)                                                                           \
    X(n_overwrite_fallback)                                                                        \
    X(n_copy_sync)                                                                                 \
    X(n_slot_lost)                                                                                 \
    X(n_batch_fallback)                                                                            \
    X(n_pageable)                                                                                  \
    X(n_footprint_fallback)                                                                        \
    X(n_call_failed)                                                                               \
    X(n_call_late)

typedef struct coli__device_counts {
#define COLI__COUNT_MEMBER(name) uint64_t name;
    COLI__DEVICE_COUNTERS(COLI__COUNT_MEMBER)
#undef COLI__COUNT_MEMBER
} coli__device_counts;

/* Open device `ordinal` and let it multiply random matrices of all formats it declares, those of
 * `self_test_formats` (a set of bits): a wrong bit refuses it.  The plugin outlives the device, and also
 * a failure of this call when *hangs. */
coli_status coli__device_open(coli__plugin *plugin, uint32_t ordinal, const char *options,
                              uint64_t wait_limit_ns, uint32_t self_test_formats,
                              coli__device **out, bool *hangs);
/* Tensors that were not freed go with it.  False when a call hangs: what was handed to it must stay.
 * NULL is fine. */
bool coli__device_close(coli__device *dev);

bool coli__device_alive(const coli__device *dev); // from any thread
/* A call has exceeded the limit and may still run: what it was given must stay. */
bool coli__device_hangs(const coli__device *dev);
/* Why it is lost; "" while it is alive. */
const char *coli__device_why(const coli__device *dev);
const coli_bk_device_info *coli__device_info(const coli__device *dev);
const coli__plugin *coli__device_plugin(const coli__device *dev);
uint32_t coli__device_ordinal(const coli__device *dev);
/* Between one and the other call from any thread. */
void coli__device_counts_get(const coli__device *dev, coli__device_counts *out);
/* Zeros where the plugin keeps none. */
void coli__device_group_stats(coli__device *dev, coli_bk_group_stats *out);

/* -- tensors ----------------------------------------------------------------------------------- */

coli_status coli__device_memory(coli__device *dev, coli_bk_mem_info *out);
uint64_t coli__device_footprint(coli__device *dev, uint64_t n_bytes); // at least n_bytes

/* E_NOMEM: the device is full.  The source is free again on return, unless the device hangs. */
coli_status coli__device_upload(coli__device *dev, const coli_bk_source *source,
                                coli_bk_tensor **out);
void coli__device_free(coli__device *dev, coli_bk_tensor *tensor); // NULL is fine
/* New content for a tensor of the same shape, the best way the plugin has; when that fails, by
 * freeing and uploading, and *in_place is false.  On failure *tensor is NULL: the place is gone. */
coli_status coli__device_overwrite(coli__device *dev, coli_bk_tensor **tensor,
                                   const coli_bk_source *source, bool *in_place);

/* -- groups ------------------------------------------------------------------------------------ */

/* Buffers for groups of experts over the rows of a chunk. */
typedef struct coli__group coli__group;

typedef struct coli__group_limits {
    uint32_t max_x, max_expert, max_pair;
    uint32_t n_used;      // experts of a row: terms of a join
    uint32_t d_model;     // numbers of a result's row
    size_t max_row_bytes; // of the quantised numbers of a row, in any form
    bool keeps;           // its result is copied, so that another group may follow in the same job
} coli__group_limits;

coli_status coli__group_create(coli__device *dev, const coli__group_limits *limits,
                               coli__group **out);
void coli__group_destroy(coli__group *group); // NULL is fine

/* Make a group: begin, add experts with the rows that use them (pairs are counted through), join
 * rows all of whose pairs are in it, start.  Rows are copied. */
void coli__group_begin(coli__group *group, const coli__qrows *x, uint32_t n_x);
/* The same with n_x of the rows alone; those added are then counted among these. */
void coli__group_begin_some(coli__group *group, const coli__qrows *x, const uint32_t *rows,
                            uint32_t n_x);
void coli__group_add(coli__group *group, coli_bk_tensor *expert, uint32_t n_row,
                     const uint32_t *rows);
bool coli__group_can_join(const coli__group *group);
void coli__group_join(coli__group *group, const uint32_t *pairs, const float *weights);
/* then: a group of the same device, without one of its own, that follows a group that keeps its
 * result; NULL: none.  The device is busy until both have ended. */
void coli__group_start(coli__group *group, coli__group *then);

/* The result of a started group, NULL when the device failed it: the same for everyone who asks.  Its
 * rows: those of pairs without a join, in order, then the joins.  Valid until the next begin. */
const coli_bk_result *coli__group_wait(coli__group *group);

/* -- products ---------------------------------------------------------------------------------- */

/* Buffers for products of dense matrices. */
typedef struct coli__products coli__products;

/* max_row rows of max_row_bytes; results of max_y floats in one call. */
coli_status coli__products_create(coli__device *dev, uint32_t max_row, size_t max_row_bytes,
                                  size_t max_y, coli__products **out);
void coli__products_destroy(coli__products *products); // NULL is fine

enum { COLI__MAX_PRODUCT = 8 };

typedef struct coli__product {
    const coli_bk_tensor *w;
    uint32_t n_out;
    float *y; // row i at y + i * ld
    size_t ld;
} coli__product;

bool coli__device_multiplies(const coli__device *dev); // it has a matmul
/* y = W x for up to COLI__MAX_PRODUCT matrices over rows [first, first+n_row) of x, cut into as many
 * calls as the buffers need.  False: some of y may be written, all has to be computed elsewhere. */
bool coli__products_run(coli__products *products, const coli__qrows *x, uint32_t first,
                        uint32_t n_row, const coli__product *product, uint32_t n);

/* -- for tests --------------------------------------------------------------------------------- */

/* Called with each device's table of functions before open; tests put theirs in between. */
extern void (*coli__device_hook)(coli__backend_api *api);

#endif
