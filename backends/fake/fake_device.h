/* fake_device.h - an open simulated device, shared by fake.c, fake_copy.c and fake_work.c.
 *
 * One mutex guards everything that changes; it is held for bookkeeping, never while bytes are copied
 * or numbers computed.  Two threads belong to a device: `worker` computes groups, `copier` does
 * asynchronous overwrites in their order.  Both stop at close.
 *
 * A tensor's content is read and written outside the mutex.  That is safe because of its state: only
 * a READY one is computed with, counted in n_use meanwhile, and only one without uses becomes COPYING. */
#ifndef FAKE_DEVICE_H
#define FAKE_DEVICE_H

#include <pthread.h>

#include "coli/backend.h"
#include "fake_model.h"
#include "fake_options.h"

typedef enum fake_content {
    FAKE_FREED, // kept for a while, so that a host that uses it again is told
    FAKE_READY,
    FAKE_COPYING, // an overwrite is under way
    FAKE_SPOILED, // an overwrite failed: it may only be freed
} fake_content;

struct coli_bk_tensor {
    /* immutable once made */
    coli_bk_device *dev;
    coli_bk_tensor *next; // of all handles of the device
    /* guarded by mu */
    coli_bk_tensor *next_freed;
    fake_content content;
    uint32_t n_use; // by the group that was not taken, by products
    uint64_t n_bytes, footprint;
    uint32_t n_matrix;
    coli_bk_matrix matrix[3];
    uint8_t *data; // (n_bytes)
};

/* An asynchronous overwrite. */
typedef struct fake_job {
    struct fake_job *next;
    coli_bk_tensor *tensor;
    coli_bk_source source; // its data are the host's until the fence is done
    coli_bk_fence fence;
    const fake_fault *fault;
    bool fails;     // a poll said so already
    double real_ns; // how long it takes when time is real
} fake_job;

/* Memory from host_alloc begins with this. */
typedef struct fake_pinned {
    struct fake_pinned *previous, *next;
    uint64_t n_bytes;
} fake_pinned;

typedef enum fake_stage {
    FAKE_IDLE,
    FAKE_RUNNING,
    FAKE_HUNG, // issued, and will never be done
    FAKE_DONE, // not taken yet
} fake_stage;

/* The group that was issued last: the host's arrays, copied, and the result.  All in `memory`. */
typedef struct fake_group {
    uint32_t n_expert, n_pair, n_join, n_result, d_model;
    double misses_ns; // what the host does meanwhile, on the clock
    coli_bk_tensor **experts;
    uint32_t *n_row, *row;
    int8_t *q;
    float *d;
    coli_bk_join *joins;
    uint32_t *term_pair;
    float *term_weight;
    uint8_t *is_joined; // (n_pair)
    float *pair_y;      // (n_pair, d_model)
    uint8_t *pair_flag; // (n_pair)
    float *y;           // (n_result, d_model); pair_y when there are no joins
    uint8_t *flag;      // (n_result)
    float *scratch;     // of fake_expert
    uint8_t *memory;
    uint64_t memory_bytes;
} fake_group;

struct coli_bk_device {
    /* immutable after open */
    coli_bk_host host;
    uint32_t number;
    fake_options options;
    pthread_t worker, copier;
    clockid_t clock; // of `changed`

    pthread_mutex_t mu;
    pthread_cond_t changed; // of anything that somebody waits for
    /* guarded by mu */
    uint64_t n_call, calls[FAKE_N_ENTRY];
    bool is_lost, stops;
    fake_model model;
    coli_bk_group_stats stats; // the counts; times are the model's
    uint64_t used_bytes, pinned_bytes;
    coli_bk_tensor *tensors;                  // all handles
    coli_bk_tensor *first_freed, *last_freed; // the oldest is used again first
    uint32_t n_freed, n_tensor;
    fake_pinned *pinned;
    /* copies in the background: the queue, what it is doing, the fences */
    fake_job *first_job, *last_job;
    fake_job *failed_jobs; // those that are over and did not succeed
    bool copier_copies, copier_hangs;
    uint64_t copy_since_ns;
    coli_bk_fence last_fence, last_done;
    /* the group; its arrays are the work sequence's, and the worker's while RUNNING */
    fake_stage stage;
    fake_group group;
    bool promise_broken; // a tensor of the group was freed
    uint32_t n_product;  // that are being computed
};

/* ---- fake.c ---------------------------------------------------------------------------------- */

/* host->fail with "fake: device 0: ENTRY: TEXT"; returns status.  Not under the mutex. */
__attribute__((format(printf, 4, 5))) coli_bk_status
fake_fail(coli_bk_device *dev, uint32_t entry, coli_bk_status status, const char *format, ...);
__attribute__((format(printf, 3, 4))) void fake_log(coli_bk_device *dev, int32_t level,
                                                    const char *format, ...);

/* What every entry does first: count the call, and let the knobs act.  Any status but OK is to be
 * returned; host->fail was called, unless the entry returns no status.  *fault is then a HANG or a
 * TEAR for this call, or NULL. */
coli_bk_status fake_enter(coli_bk_device *dev, uint32_t entry, const fake_fault **fault);

/* The device is lost from now on; when this returns the host's memory is not read any more. */
void fake_lose(coli_bk_device *dev); // under the mutex

/* Waiting for the device.  Under the mutex. */
uint64_t fake_now_ns(const coli_bk_device *dev);
uint64_t fake_deadline_ns(const coli_bk_device *dev, uint64_t limit_ns); // or the host's limit
bool fake_wait(coli_bk_device *dev, uint64_t deadline_ns); // for `changed`; false: it is too late

/* A call that hangs: waits as long as it may, then the device is lost.  Not under the mutex. */
coli_bk_status fake_hang(coli_bk_device *dev, uint32_t entry, uint64_t limit_ns);

/* When time is real, let it pass.  False: that is longer than the host waits, and the device is lost.
 * Under the mutex. */
bool fake_pass(coli_bk_device *dev, double ns);

/* A struct for the host: as much as it knows, and struct_size as it was. */
void fake_give(void *out, const void *from, uint32_t n_bytes);

/* ---- fake_copy.c, fake_work.c ------------------------------------------------------------------ */

void *fake_copier(void *dev);
void *fake_worker(void *dev);
void fake_copy_close(coli_bk_device *dev);
void fake_work_close(coli_bk_device *dev);

/* Whether a handle may be used: NULL, or what is wrong with it.  Under the mutex. */
const char *fake_tensor_fault(const coli_bk_device *dev, const coli_bk_tensor *tensor);

#endif
