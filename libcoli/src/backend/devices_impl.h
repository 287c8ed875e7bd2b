/* devices_impl.h - what devices.c and placement.c share. */
#ifndef COLI_BACKEND_DEVICES_IMPL_H
#define COLI_BACKEND_DEVICES_IMPL_H

#include <stdatomic.h>

#include "devices.h"

/* A dense matrix, or three as one expert. */
typedef struct placed_matrix {
    const uint8_t *data; // of the first matrix: its name here
    coli__slot place;
    uint32_t n_matrix, n_out;
    size_t row_bytes;
    bool is_off; // the device failed to compute with it
} placed_matrix;

struct coli__devices {
    /* immutable after open */
    const coli__container *container;
    coli__plugin_list plugins;
    coli__device *dev[COLI__MAX_DEVICE];
    uint32_t n;
    bool asked;
    bool hangs; // a call of opening still runs somewhere
    uint32_t vram_unit;
    double vram;
    uint64_t wait_ns;
    uint64_t allowance[COLI__MAX_DEVICE];
    void (*note)(void *user, const char *line);
    coli_progress_fn progress;
    void *user;

    /* during open only, the caller's */
    const char *options, *ordinals;

    /* places; changed while no group runs */
    uint64_t used[COLI__MAX_DEVICE];         // footprints
    uint64_t matrix_bytes[COLI__MAX_DEVICE]; // of these, the dense matrices'
    placed_matrix *matrices;                 // (n_placed) by data
    uint32_t n_placed, cap_placed;

    /* any thread */
    _Atomic uint64_t n_row_device, n_row_host, n_row_again, n_matmul_again, n_streamed,
        n_row_streamed;
};

/* Ask each device for its memory and decide how much of it may be used. */
coli_status coli__devices_allow(coli__devices *d);

#endif
