/* device.cuh - an open device, and what its entries share.
 *
 *     device.cu   finding, opening, closing; errors and waiting
 *     memory.cu   the copy sequence: the arena of weights, uploads, fences, page-locked memory
 *     work.cu     the work sequence: groups and products
 *
 * Two streams, one for each sequence of calls, so a copy never waits for a kernel.  Calls are
 * asynchronous inside and end with an event that somebody polls: nothing here can wait without a limit.
 *
 * When a device is lost, by an error that stays or by not answering in time, every later call fails at
 * once, and what CUDA holds for it is left alone for good: a call that releases memory waits for the
 * whole device, without a limit.  For the same reason one that hangs is not opened again. */
#ifndef COLI_CUDA_DEVICE_CUH
#define COLI_CUDA_DEVICE_CUH

#include <atomic>
#include <mutex>

#include "kernels.cuh"

/* A stretch of device memory; free ones of a buffer form a list by address. */
typedef struct coli__cuda_extent {
    struct coli__cuda_extent *next;
    struct coli__cuda_buffer *buffer;
    uint8_t *at;
    uint64_t n_bytes;
} coli__cuda_extent;

/* The device memory that we have, in few large buffers; see memory.cu. */
typedef struct coli__cuda_arena {
    /* immutable after open */
    uint64_t chunk_bytes;
    std::mutex mu;
    /* guarded by mu */
    struct coli__cuda_buffer *buffers;
    /* atomic */
    std::atomic<uint64_t> free_bytes;
} coli__cuda_arena;

/* Page-locked memory that the host asked for. */
typedef struct coli__cuda_pinned {
    struct coli__cuda_pinned *next;
    uint8_t *memory;
    uint64_t n_bytes;
} coli__cuda_pinned;

enum { COLI__CUDA_N_STAGE = 8, COLI__CUDA_STAGE_BYTES = 1 << 20, COLI__CUDA_N_FENCE = 64 };

typedef struct coli__cuda_copies {
    cudaStream_t stream;
    /* sources that are not page-locked go through these, round and round */
    uint8_t *stages; /* (N_STAGE, STAGE_BYTES) page-locked */
    cudaEvent_t stage_done[COLI__CUDA_N_STAGE];
    bool stage_used[COLI__CUDA_N_STAGE];
    uint32_t next_stage;
    /* fence f is done when f <= done; those up to `issued` have the events f % N_FENCE */
    coli_bk_fence done, issued;
    cudaEvent_t begin[COLI__CUDA_N_FENCE], end[COLI__CUDA_N_FENCE];
    uint64_t progress_ns; /* when a fence was last seen to be done, or issued behind none */
    coli__cuda_pinned *pinned;
    coli_bk_tensor *tensors; /* what is left of them goes with close */
} coli__cuda_copies;

/* Memory for one piece of work at a time, on both sides; it grows and stays. */
typedef struct coli__cuda_space {
    coli__cuda_extent *device;
    uint8_t *host; /* page-locked */
    uint64_t host_bytes;
    cudaEvent_t begin, uploaded, computed, end;
} coli__cuda_space;

typedef struct coli__cuda_work {
    cudaStream_t stream;
    coli__cuda_space group, product; /* a product may run between issue and take */
    bool is_issued;
    bool is_empty; /* the issued group has no rows: nothing runs */
    coli_bk_result result;
} coli__cuda_work;

typedef struct coli__cuda_counts {
    std::atomic<uint64_t> n_group, n_expert, n_row, n_matmul, upload_bytes;
    std::atomic<uint64_t> to_device_ns, kernel_ns, to_host_ns, upload_ns;
} coli__cuda_counts;

struct coli_bk_device {
    /* immutable after open */
    const coli_bk_host *host;
    int ordinal;
    /* any thread */
    std::atomic<bool> is_lost;
    coli__cuda_counts counts;
    coli__cuda_arena arena;
    /* copy sequence */
    coli__cuda_copies copies;
    /* work sequence */
    coli__cuda_work work;
};

struct coli_bk_tensor {
    coli_bk_device *dev;
    coli_bk_tensor *next, **link; /* link: what points to this one */
    coli__cuda_extent *extent;
    uint32_t n_matrix;
    uint64_t n_bytes;
    coli_bk_matrix matrix[3];
};

/* Bit i: device i does not answer any more. */
extern std::atomic<uint64_t> coli__cuda_hanging;
enum { COLI__CUDA_MAX_DEVICES = 64 }; /* what that has bits for; others count as unusable */

/* ---- errors and waiting (device.cu) ---------------------------------------------------------- */

#define COLI__CUDA_TRY(call)                                                                       \
    do {                                                                                           \
        const coli_bk_status status_ = (call);                                                     \
        if (status_ != COLI_BK_OK) return status_;                                                 \
    } while (0)

/* Tell the host what happened, and return `status`. */
coli_bk_status coli__cuda_fail(const coli_bk_host *host, coli_bk_status status, const char *format,
                               ...);

/* The status of a CUDA call: OK; else the host is told, and it is NOMEM, FAILED or LOST. */
coli_bk_status coli__cuda_check(coli_bk_device *dev, cudaError_t error, const char *call);
#define COLI__CUDA_CALL(dev, function, ...) coli__cuda_check(dev, function(__VA_ARGS__), #function)

/* What every entry does first: LOST when the device is, else make it the thread's current one. */
coli_bk_status coli__cuda_enter(coli_bk_device *dev);

uint64_t coli__cuda_clock_ns(const coli_bk_host *host);

/* OK once the event is done, BUSY (which nobody is told) after limit_ns. */
coli_bk_status coli__cuda_wait(coli_bk_device *dev, cudaEvent_t event, uint64_t limit_ns);

/* The device does not answer: it is lost. */
coli_bk_status coli__cuda_hangs(coli_bk_device *dev, uint64_t limit_ns);

/* After a failure, whose status this is: wait until nothing of the stream is pending.  Returns the
 * status, or LOST when that does not come about. */
coli_bk_status coli__cuda_settle(coli_bk_device *dev, cudaStream_t stream, coli_bk_status status);

coli_bk_status coli__cuda_event(coli_bk_device *dev, cudaEvent_t *out);

/* Add the time between two events that are done; nothing when CUDA does not tell. */
void coli__cuda_count_ns(std::atomic<uint64_t> *ns, cudaEvent_t begin, cudaEvent_t end);

/* Zeroed host memory, to be given back to the host's free; NULL. */
void *coli__cuda_host_alloc(const coli_bk_host *host, uint64_t n_bytes);

/* A copy of a struct of the host's, as far as both know it; the rest is zero. */
void coli__cuda_take_struct(void *ours, uint32_t n_ours, const void *theirs, uint32_t n_theirs);
void coli__cuda_give_struct(void *theirs, uint32_t n_theirs, const void *ours, uint32_t n_ours);

/* ---- memory (memory.cu) ---------------------------------------------------------------------- */

/* *out is NULL after a failure. */
coli_bk_status coli__cuda_arena_take(coli_bk_device *dev, uint64_t n_bytes,
                                     coli__cuda_extent **out);
void coli__cuda_arena_give(coli_bk_device *dev, coli__cuda_extent *extent); /* NULL is fine */

/* Page-locked memory of the host. */
coli_bk_status coli__cuda_pinned_take(coli_bk_device *dev, uint64_t n_bytes, uint8_t **out);
void coli__cuda_pinned_give(coli_bk_device *dev, uint8_t *memory); /* NULL is fine */

bool coli__cuda_same_shape(const coli_bk_matrix *a, const coli_bk_matrix *b, uint32_t n_matrix);

/* What open and close do for the two sequences.  finish leaves alone what a lost device holds. */
coli_bk_status coli__cuda_copies_init(coli_bk_device *dev);
void coli__cuda_copies_finish(coli_bk_device *dev);
void coli__cuda_arena_finish(coli_bk_device *dev);
coli_bk_status coli__cuda_work_init(coli_bk_device *dev);
void coli__cuda_work_finish(coli_bk_device *dev);

#endif
