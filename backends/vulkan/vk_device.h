/* vk_device.h - an open device: its queues, its memory, its kernels, and the work under way. */
#ifndef COLI_VK_DEVICE_H
#define COLI_VK_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include "vk_base.h"
#include "vk_instance.h"
#include "vk_kernels.h"
#include "vk_memory.h"

/* A queue of the device.  The two streams may share one, so submissions take its lock. */
typedef struct vk_queue {
    VkQueue handle;
    uint32_t family;
    pthread_mutex_t lock;
} vk_queue;

/* A stream is a row of submissions to one queue, numbered 1, 2, ... by its timeline semaphore.
 *
 * A submission stands in a slot: a command buffer and a part of the stream's staging ring.  A slot
 * is used again when its last submission is done; so the host runs at most VK_N_SLOT submissions
 * ahead, and what a slot owns needs no other bookkeeping. */
enum { VK_N_SLOT = 4, VK_N_SET = 4, VK_N_STAMP = 4 };

typedef struct vk_slot {
    VkCommandBuffer commands;
    uint64_t value;                 // of its last submission; 0: none
    uint8_t *staging;               // (slot_bytes) mapped
    uint64_t staging_at;            // where that is in the ring's buffer
    VkDescriptorSet sets[VK_N_SET]; // work stream
    uint32_t first_stamp;           // work stream: its VK_N_STAMP time stamps
    bool has_stamps;                // written by its last submission and not yet read
} vk_slot;

typedef struct vk_stream {
    vk_queue *queue;
    VkCommandPool pool;
    VkSemaphore timeline;
    vk_buffer ring;
    uint64_t slot_bytes;
    vk_slot slots[VK_N_SLOT];
    uint64_t issued;       // the number of the last submission
    _Atomic uint64_t done; // a submission that was seen done, and so are those before it
} vk_stream;

/* Take the next slot and begin its commands; waits until it is free.  Until it is submitted, the
 * same slot is taken again by the next call. */
coli_bk_status vk_stream_begin(coli_bk_device *dev, vk_stream *stream, vk_slot **out);
/* End the commands and hand them to the queue.  They run after everything that was seen done of
 * the other stream, and see its effects. */
coli_bk_status vk_stream_submit(coli_bk_device *dev, vk_stream *stream, vk_slot *slot);
/* Wait for submission `value`: OK, LOST, or BUSY when the time is over (nothing is reported
 * then). */
coli_bk_status vk_stream_wait(coli_bk_device *dev, vk_stream *stream, uint64_t value,
                              uint64_t limit_ns);
/* The same with the host's limit, where BUSY becomes LOST. */
coli_bk_status vk_stream_finish(coli_bk_device *dev, vk_stream *stream, uint64_t value);
/* After a failure, of which nothing may stay under way: wait for all submissions and report
 * nothing.  False when they do not end: the device is lost then. */
bool vk_stream_drain(coli_bk_device *dev, vk_stream *stream);

/* All that the device did so far is seen by what it does next. */
void vk_barrier(coli_bk_device *dev, const vk_stream *stream, VkCommandBuffer commands);

struct coli_bk_tensor {
    vk_slice slice; // first: close frees the tensors that it finds in the arena
    uint64_t n_bytes;
    uint32_t n_matrix;
    coli_bk_matrix matrix[3];
};

typedef struct vk_pinned { // memory from host_alloc
    vk_buffer buffer;
    struct vk_pinned *next;
} vk_pinned;

struct vk_rounds;
struct vk_group;

struct coli_bk_device {
    /* immutable after open */
    coli_bk_host host;
    vk_options options;
    vk_instance instance;
    vk_candidate about;
    VkDevice handle;
    struct VolkDeviceTable vk;
    VkPhysicalDeviceMemoryProperties memory;
    uint64_t max_tensor_bytes;
    vk_queue queues[2];
    uint32_t n_queue;
    bool has_two_families;

    atomic_bool is_lost;
    _Atomic uint64_t heap_bytes; // of the device's heap, in our buffers

    /* guarded by memory_lock */
    pthread_mutex_t memory_lock;
    vk_arena arena;

    vk_kernels kernels;

    /* work sequence */
    vk_stream work;
    struct vk_rounds *rounds;
    struct vk_group *group;
    vk_buffer matmul_out; // readback memory

    /* copy sequence */
    vk_stream copy;
    vk_pinned *pinned;

    /* guarded by stats_lock */
    pthread_mutex_t stats_lock;
    coli_bk_group_stats stats;
};

coli_bk_status vk_device_open(const coli_bk_host *host, uint32_t index, coli_bk_device **out);
void vk_device_close(coli_bk_device *dev);

/* vk_fail_result, and the device is lost when the result says so. */
coli_bk_status vk_device_fail(coli_bk_device *dev, VkResult result, const char *what);
/* LOST, reported, when the device is lost. */
coli_bk_status vk_device_check(coli_bk_device *dev);

#endif
