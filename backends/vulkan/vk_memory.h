/* vk_memory.h - buffers of a device, and the arena that weights live in. */
#ifndef COLI_VK_MEMORY_H
#define COLI_VK_MEMORY_H

#include "vk_base.h"

typedef struct vk_buffer {
    VkBuffer handle;
    VkDeviceMemory memory;
    uint64_t n_bytes;
    uint64_t heap_bytes; // taken from the device's heap
    void *map;           // NULL for memory of the device
} vk_buffer;

/* What a buffer is for, which decides what memory it takes. */
typedef enum vk_use {
    VK_USE_WEIGHTS,  // memory of the device, written by copies
    VK_USE_WORK,     // memory of the device, read and written by kernels
    VK_USE_STAGING,  // host memory, written by the host, read by copies
    VK_USE_READBACK, // host memory, written by copies, read by the host
    VK_USE_PINNED,   // host memory, the host's to use as it likes, read by copies
} vk_use;

/* `what` names it in a message. */
coli_bk_status vk_buffer_create(coli_bk_device *dev, uint64_t n_bytes, vk_use use, const char *what,
                                vk_buffer *out);
/* VK_USE_PINNED; false, and nothing is reported, when there is none. */
bool vk_pinned_create(coli_bk_device *dev, uint64_t n_bytes, vk_buffer *out);
void vk_buffer_destroy(coli_bk_device *dev, vk_buffer *buffer);

/* Weights stand in large buffers, each in a list of slices that is sorted by offset; what lies
 * between two neighbours is free.  A slice never straddles two buffers. */
typedef struct vk_slice {
    struct vk_chunk *chunk;
    uint64_t offset, n_bytes;
    struct vk_slice *before, *after;
} vk_slice;

typedef struct vk_chunk {
    vk_buffer buffer;
    vk_slice *first;
    uint64_t used_bytes;
    struct vk_chunk *next;
} vk_chunk;

typedef struct vk_arena {
    vk_chunk *chunks;
    uint64_t chunk_bytes, used_bytes; // of all chunks; of all slices
} vk_arena;

enum { VK_SLICE_ALIGN = 256 };

/* Device memory that a tensor of n_bytes takes. */
static inline uint64_t vk_slice_bytes(uint64_t n_bytes)
{
    return vk_round_up(n_bytes, VK_SLICE_ALIGN);
}

/* Under dev->memory_lock; so may run beside each other.  n_bytes is at most
 * dev->max_tensor_bytes. */
coli_bk_status vk_slice_alloc(coli_bk_device *dev, uint64_t n_bytes, vk_slice *out);
void vk_slice_free(coli_bk_device *dev, vk_slice *slice);
/* Frees the tensors that are left, too. */
void vk_arena_finish(coli_bk_device *dev);

/* What can still be allocated, gaps in the arena included. */
void vk_memory_info(coli_bk_device *dev, coli_bk_mem_info *out);

#endif
