/* devices.h - the devices of one model, and which of its weights they hold.
 *
 * Opening chooses a plugin and its devices.  The engine then offers its dense matrices, and the rest
 * of each device's allowance goes to routed experts: expert 0 of every layer, expert 1 of every
 * layer, ... so that all layers get their share; expert e lives on device e mod n.
 *
 * NULL stands for "no device" in every call here.  A place whose device was lost counts as none. */
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

/* Where some weights are. */
typedef struct coli__slot {
    uint32_t device; // index
    coli_bk_tensor *tensor;
} coli__slot;

/* -- placing ----------------------------------------------------------------------------------- */

/* A dense matrix that the engine can multiply on a device: placed if the options say so, the first
 * device computes its format and has room. */
void coli__devices_offer(coli__devices *devices, const coli__mat *w);
/* E_CANCELLED when `progress` said so; E_UNSUPPORTED when a device that was asked for is lost. */
coli_status coli__devices_place_experts(coli__devices *devices);

/* The newcomer takes the leaving expert's slot, which keeps its device.  When that fails neither is
 * on a device.  The caller knows that no group uses the slot. */
coli_status coli__devices_swap(coli__devices *devices, const coli__ct_experts *layer,
                               uint32_t leaving, uint32_t coming);

/* False when it is on no device, or on a lost one. */
bool coli__devices_expert(const coli__devices *devices, const coli__ct_experts *layer,
                          uint32_t expert, coli__slot *out);
bool coli__devices_matrix(const coli__devices *devices, const coli__mat *w, coli__slot *out);
/* Bytes of the widest row of quantised numbers, and outputs, of the matrices placed. */
void coli__devices_matrix_limits(const coli__devices *devices, size_t *max_row_bytes,
                                 size_t *max_out);

/* -- statistics -------------------------------------------------------------------------------- */

/* Pairs of (row, expert): computed on a device, on the processor, and there because the device
 * failed. */
void coli__devices_count(coli__devices *devices, uint64_t n_device, uint64_t n_host,
                         uint64_t n_again);
/* Products that a device failed. */
void coli__devices_count_products_again(coli__devices *devices, uint32_t n);
void coli__devices_stats(coli__devices *devices, coli_backend_stats *out);
void coli__devices_use(const coli__devices *devices, uint32_t i, coli_device_use *out);

/* The ABI's number of a weight format; false when devices do not compute it. */
bool coli__device_format(coli__wfmt fmt, uint32_t *out);

#endif
