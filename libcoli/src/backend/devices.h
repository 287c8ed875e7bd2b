/* devices.h - the devices of one model, and which of its weights they hold.
 *
 * Opening chooses a plugin and its devices, and decides how much of their memory may be used.  Some of
 * it goes to dense matrices (moe/trunk.h); what they leave is for experts (moe/tier.h).
 *
 * NULL stands for "no device" in every call here. */
#ifndef COLI_BACKEND_DEVICES_H
#define COLI_BACKEND_DEVICES_H

#include "../model/container.h"
#include "coli/coli.h"
#include "device.h"

typedef struct coli__devices coli__devices;
enum { COLI__MAX_DEVICE = 16 };

/* Devices for the weights of a container, which outlives them.  E_UNSUPPORTED when devices were asked
 * for and cannot be used, with every candidate and its reason; when they were not, *out is NULL if
 * there are none. */
coli_status coli__devices_open(const coli_model_opts *opts, const coli__container *container,
                               coli__devices **out);
/* False when a device hangs: the weights that it may be reading have to stay where they are. */
bool coli__devices_close(coli__devices *devices);

uint32_t coli__devices_n(const coli__devices *devices);
coli__device *coli__devices_at(const coli__devices *devices, uint32_t i);

/* Where some weights are, on a device that was alive when this was asked. */
typedef struct coli__slot {
    uint32_t device; // index
    coli_bk_tensor *tensor;
} coli__slot;

/* -- the dense trunk --------------------------------------------------------------------------- */

/* One matrix, or three that are an expert of their own: gate, up, down.  moe/trunk.h decides where. */
typedef struct coli__dense_block {
    const coli__mat *mats[3];
    uint32_t n_mat;
} coli__dense_block;

/* The block as a device sees it, but for the data of more than one matrix; false when the device does not
 * compute it. */
bool coli__devices_dense_source(const coli__device *dev, coli__dense_block block,
                                coli_bk_source *out);
/* Memory that it takes of a device; false when the device does not compute it. */
bool coli__devices_dense_footprint(const coli__devices *devices, uint32_t device,
                                   coli__dense_block block, uint64_t *n_bytes);
/* Copy it there, within the allowance. */
coli_status coli__devices_put_dense(coli__devices *devices, uint32_t device,
                                    coli__dense_block block);

/* Where a matrix, or the expert of this gate, can be computed; false: on the processor alone. */
bool coli__devices_matrix(const coli__devices *devices, const coli__mat *w, coli__slot *out);
bool coli__devices_dense_expert(const coli__devices *devices, const coli__mat *gate,
                                coli__slot *out);
/* A device failed to compute with what begins with w: it is not asked again. */
void coli__devices_switch_off(coli__devices *devices, const coli__mat *w);
/* Bytes of the widest row of quantised numbers, and outputs, of the matrices on a device. */
void coli__devices_matrix_limits(const coli__devices *devices, uint32_t device,
                                 size_t *max_row_bytes, size_t *max_out);
bool coli__devices_has_dense_expert(const coli__devices *devices, uint32_t device);

/* -- for the tier ------------------------------------------------------------------------------ */

/* One expert as a device sees it; false when the device does not compute its formats. */
bool coli__devices_expert_source(const coli__devices *devices, uint32_t device,
                                 const coli__ct_experts *layer, uint32_t expert,
                                 coli_bk_source *out);

/* How many of n experts the options ask for; and the books of a device's allowance, in bytes. */
uint64_t coli__devices_wanted(const coli__devices *devices, uint64_t n);
uint64_t coli__devices_room(const coli__devices *devices, uint32_t device);
bool coli__devices_take(coli__devices *devices, uint32_t device, uint64_t n_bytes);
void coli__devices_give(coli__devices *devices, uint32_t device, uint64_t n_bytes);
/* A slot is gone for good: neither used nor allowed any more. */
void coli__devices_slot_gone(coli__devices *devices, uint32_t device, uint64_t n_bytes);
uint64_t coli__devices_used(const coli__devices *devices, uint32_t device);
uint64_t coli__devices_matrix_bytes(const coli__devices *devices, uint32_t device);

void coli__devices_note(const coli__devices *devices, const char *fmt, ...)
    __attribute__((format(printf, 2, 3))); // one line for whoever listens
/* Tell how far the copying is; E_CANCELLED when the caller wants it to stop. */
coli_status coli__devices_progress(const coli__devices *devices, uint64_t done_bytes,
                                   uint64_t total_bytes);
/* The experts are there: say what is where.  E_UNSUPPORTED when a device that was asked for is lost.
 *   n_resident      (devices) experts on each
 *   is_unsupported  no device computes their format
 *   comes_later     they are uploaded when they are used */
coli_status coli__devices_placed(const coli__devices *devices, const uint32_t *n_resident,
                                 uint64_t n_expert, bool is_unsupported, bool comes_later);

/* -- statistics -------------------------------------------------------------------------------- */

/* Pairs of (row, expert): computed on a device, on the processor, and there because the device
 * failed. */
void coli__devices_count(coli__devices *devices, uint64_t n_device, uint64_t n_host,
                         uint64_t n_again);
/* Of n_device: what passed through spare slots. */
void coli__devices_count_streamed(coli__devices *devices, uint32_t n_expert, uint64_t n_row);
/* Products that a device failed. */
void coli__devices_count_products_again(coli__devices *devices, uint32_t n);
void coli__devices_stats(coli__devices *devices, coli_backend_stats *out);
void coli__devices_rows(const coli__devices *devices, uint64_t *n_device, uint64_t *n_host);
void coli__devices_use(const coli__devices *devices, uint32_t i, coli_device_use *out);

/* The ABI's number of a weight format; false when devices do not compute it. */
bool coli__device_format(coli__wfmt fmt, uint32_t *out);

#endif
