/* race.h - who is faster at a product of a dense matrix, a device or the processor. */
#ifndef COLI_BACKEND_RACE_H
#define COLI_BACKEND_RACE_H

#include "../base/threads.h"
#include "device.h"

typedef struct coli__race {
    uint32_t n_out, n_in; // what was multiplied
    double device_ns, host_ns;
} coli__race;

/* One row times w, or as much of w as 8192 rows of 2048 weights are: 3 to warm up, then the best of 3
 * rounds of 10.  A round takes no more than some 50 ms: of something slower it has fewer.  Where w is
 * larger the processor takes its parts in turn, up to 8: in a forward pass, too, weights come from memory
 * and not from a cache.  The device's copy is gone on return; the device is idle and computes the format.
 *
 * A real device's time is what the caller waits, a simulated one's what it says.  False: it cannot be
 * measured, because a call failed or a simulated device does not say. */
bool coli__race_run(coli__device *dev, const coli__kernels *kernels, coli__pool *pool,
                    const coli__mat *w, coli__race *out);

#endif
