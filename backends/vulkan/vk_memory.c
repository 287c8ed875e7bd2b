/* vk_memory.c - see vk_memory.h.
 *
 * The arena.  One allocation per tensor would cost a rounding each, and drivers limit their number;
 * so tensors are cut out of chunks of 256 MiB, or as large as a larger tensor needs, but never
 * larger than the device lets a kernel see (max_tensor_bytes).  The first gap that is large enough
 * is taken:
 *
 *     chunk   [a][b]....[c][d]........        b freed:  [a]........[c][d]........
 *                   gap       gap
 *
 * Experts of a model are equal in size, so a freed one leaves a gap that fits the next.  Slices
 * hang in a list inside the tensors themselves: freeing allocates nothing and cannot fail.
 *
 * A chunk that became empty goes back to the driver when another is empty already, or when a tensor
 * does not fit it and there is no other room: a host that frees and uploads in turn does not pay
 * for a new chunk each time.
 *
 * Memory is never taken beyond what the driver says is free: many drivers would not refuse, but put
 * the buffer where the device reaches it through the bus only. */
#include <inttypes.h>
#include <stdio.h>

#include "vk_device.h"

enum { CHUNK_BYTES = 256 << 20 };

/* ---- buffers -------------------------------------------------------------------------------- */

/* Memory that the host sees. */
static bool is_host_use(vk_use use)
{
    return use != VK_USE_WEIGHTS && use != VK_USE_WORK;
}

/* A memory type for this use.  Wishes are dropped one after another: host memory that is cached,
 * where the host reads, and not the device's own; device memory in the heap that is accounted
 * for. */
static uint32_t memory_type(const coli_bk_device *dev, uint32_t allowed, vk_use use)
{
    const bool is_host = is_host_use(use), is_read = use == VK_USE_READBACK || use == VK_USE_PINNED;
    const VkMemoryPropertyFlags device = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
                                cached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT,
                                mapped = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                         VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    for (uint32_t n_wish = 3; n_wish-- > 0;)
        for (uint32_t i = 0; i < dev->memory.memoryTypeCount; i++) {
            const VkMemoryType *type = &dev->memory.memoryTypes[i];
            const VkMemoryPropertyFlags has = type->propertyFlags;
            if (!(allowed >> i & 1u)) continue;
            if (is_host ? (has & mapped) != mapped : !(has & device)) continue;
            if (n_wish > 0 && is_read && !(has & cached)) continue;
            if (n_wish > 1 && is_host && (has & device)) continue;
            if (n_wish > 0 && !is_host && type->heapIndex != dev->about.heap) continue;
            return i;
        }
    return UINT32_MAX;
}

static VkResult bind_memory(coli_bk_device *dev, vk_use use, vk_buffer *b)
{
    VkMemoryRequirements need;
    dev->vk.vkGetBufferMemoryRequirements(dev->handle, b->handle, &need);
    const VkMemoryAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
        .allocationSize = need.size,
        .memoryTypeIndex = memory_type(dev, need.memoryTypeBits, use),
    };
    if (info.memoryTypeIndex == UINT32_MAX) return VK_ERROR_FEATURE_NOT_PRESENT;
    VkResult r = dev->vk.vkAllocateMemory(dev->handle, &info, NULL, &b->memory);
    if (r) return r;
    if (dev->memory.memoryTypes[info.memoryTypeIndex].heapIndex == dev->about.heap)
        b->heap_bytes = need.size;
    atomic_fetch_add(&dev->heap_bytes, b->heap_bytes);
    r = dev->vk.vkBindBufferMemory(dev->handle, b->handle, b->memory, 0);
    if (!r && is_host_use(use))
        r = dev->vk.vkMapMemory(dev->handle, b->memory, 0, VK_WHOLE_SIZE, 0, &b->map);
    return r;
}

static VkResult create_buffer(coli_bk_device *dev, uint64_t n_bytes, vk_use use, vk_buffer *out)
{
    static const VkBufferUsageFlags usages[] = {
        [VK_USE_WEIGHTS] = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
        [VK_USE_WORK] = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT |
                        VK_BUFFER_USAGE_TRANSFER_SRC_BIT,
        [VK_USE_STAGING] = VK_BUFFER_USAGE_TRANSFER_SRC_BIT,
        [VK_USE_READBACK] = VK_BUFFER_USAGE_TRANSFER_DST_BIT,
        [VK_USE_PINNED] = VK_BUFFER_USAGE_TRANSFER_SRC_BIT,
    };
    const uint32_t families[] = {dev->about.compute_family, dev->about.copy_family};
    const bool is_shared = use == VK_USE_WEIGHTS && dev->has_two_families;
    const VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .size = n_bytes,
        .usage = usages[use],
        .sharingMode = is_shared ? VK_SHARING_MODE_CONCURRENT : VK_SHARING_MODE_EXCLUSIVE,
        .queueFamilyIndexCount = is_shared ? 2 : 0,
        .pQueueFamilyIndices = families,
    };
    *out = (vk_buffer){.n_bytes = n_bytes};
    VkResult r = dev->vk.vkCreateBuffer(dev->handle, &info, NULL, &out->handle);
    if (!r) r = bind_memory(dev, use, out);
    if (r) vk_buffer_destroy(dev, out);
    return r;
}

coli_bk_status vk_buffer_create(coli_bk_device *dev, uint64_t n_bytes, vk_use use, const char *what,
                                vk_buffer *out)
{
    const VkResult r = create_buffer(dev, n_bytes, use, out);
    if (!r) return COLI_BK_OK;
    char text[100];
    snprintf(text, sizeof text, "%" PRIu64 " bytes for %s", n_bytes, what);
    return vk_device_fail(dev, r, text);
}

bool vk_pinned_create(coli_bk_device *dev, uint64_t n_bytes, vk_buffer *out)
{
    return create_buffer(dev, n_bytes, VK_USE_PINNED, out) == VK_SUCCESS;
}

void vk_buffer_destroy(coli_bk_device *dev, vk_buffer *b)
{
    if (b->handle) dev->vk.vkDestroyBuffer(dev->handle, b->handle, NULL);
    if (b->memory) dev->vk.vkFreeMemory(dev->handle, b->memory, NULL); // unmaps
    atomic_fetch_sub(&dev->heap_bytes, b->heap_bytes);
    *b = (vk_buffer){0};
}

/* ---- how much there is ---------------------------------------------------------------------- */

/* Of the heap, what the driver gives us (or we assume) beyond what we have; for tensors no more
 * than the user said. */
static uint64_t heap_free(coli_bk_device *dev, bool *is_assumed)
{
    const uint64_t own = atomic_load(&dev->heap_bytes);
    uint64_t left;
    *is_assumed = !dev->about.has_budget;
    if (dev->about.has_budget) {
        VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {
            .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
        VkPhysicalDeviceMemoryProperties2 m = {
            .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2, .pNext = &budget};
        dev->instance.vkGetPhysicalDeviceMemoryProperties2(dev->about.handle, &m);
        const uint64_t may = budget.heapBudget[dev->about.heap],
                       have = budget.heapUsage[dev->about.heap];
        left = may > have ? may - have : 0;
    } else { // the assumption: others use an eighth
        const uint64_t may = dev->about.heap_bytes - dev->about.heap_bytes / 8;
        left = may > own ? may - own : 0;
    }
    const uint64_t limit = vk_options_memory(&dev->options, &dev->about);
    return vk_min(left, limit > dev->arena.chunk_bytes ? limit - dev->arena.chunk_bytes : 0);
}

void vk_memory_info(coli_bk_device *dev, coli_bk_mem_info *out)
{
    pthread_mutex_lock(&dev->memory_lock);
    bool is_assumed;
    const uint64_t total = vk_options_memory(&dev->options, &dev->about);
    const uint64_t left =
        heap_free(dev, &is_assumed) + dev->arena.chunk_bytes - dev->arena.used_bytes;
    pthread_mutex_unlock(&dev->memory_lock);
    out->is_assumed = is_assumed;
    out->total_bytes = total;
    out->free_bytes = vk_min(left, total);
}

/* ---- the arena ------------------------------------------------------------------------------ */

/* Put the slice into the chunk's first gap of its size; false when there is none. */
static bool place(vk_chunk *chunk, vk_slice *slice)
{
    vk_slice *before = NULL, *after = chunk->first;
    uint64_t at = 0;
    while (after && after->offset - at < slice->n_bytes) {
        before = after;
        at = after->offset + after->n_bytes;
        after = after->after;
    }
    if (!after && chunk->buffer.n_bytes - at < slice->n_bytes) return false;
    slice->chunk = chunk;
    slice->offset = at;
    slice->before = before;
    slice->after = after;
    *(before ? &before->after : &chunk->first) = slice;
    if (after) after->before = slice;
    chunk->used_bytes += slice->n_bytes;
    return true;
}

static void drop_chunk(coli_bk_device *dev, vk_chunk *chunk)
{
    vk_chunk **at = &dev->arena.chunks;
    while (*at != chunk) at = &(*at)->next;
    *at = chunk->next;
    dev->arena.chunk_bytes -= chunk->buffer.n_bytes;
    vk_buffer_destroy(dev, &chunk->buffer);
    vk_free(&dev->host, chunk);
}

static void drop_empty_chunks(coli_bk_device *dev)
{
    for (vk_chunk *c = dev->arena.chunks, *next; c; c = next) {
        next = c->next;
        if (c->used_bytes == 0) drop_chunk(dev, c);
    }
}

static coli_bk_status add_chunk(coli_bk_device *dev, uint64_t need_bytes)
{
    bool is_assumed;
    if (need_bytes > heap_free(dev, &is_assumed)) drop_empty_chunks(dev);
    const uint64_t left = heap_free(dev, &is_assumed) & ~(uint64_t)(VK_SLICE_ALIGN - 1);
    if (need_bytes > left)
        return vk_fail(&dev->host, COLI_BK_NOMEM,
                       "vulkan: %s: a tensor needs %" PRIu64 " bytes, %" PRIu64 " are free",
                       dev->about.name, need_bytes, left);
    vk_chunk *chunk = vk_alloc(&dev->host, sizeof *chunk);
    if (!chunk) return vk_fail(&dev->host, COLI_BK_NOMEM, "vulkan: no memory for a chunk");
    const uint64_t usual_bytes = vk_min(left, vk_min(CHUNK_BYTES, dev->max_tensor_bytes));
    // What the driver says is free may be in pieces: then at least the tensor.
    coli_bk_status status = COLI_BK_OK;
    if (usual_bytes <= need_bytes ||
        create_buffer(dev, usual_bytes, VK_USE_WEIGHTS, &chunk->buffer) != VK_SUCCESS)
        status = vk_buffer_create(dev, need_bytes, VK_USE_WEIGHTS, "weights", &chunk->buffer);
    if (status) {
        vk_free(&dev->host, chunk);
        return status;
    }
    vk_chunk **at = &dev->arena.chunks; // last: the first gaps are the oldest
    while (*at) at = &(*at)->next;
    *at = chunk;
    dev->arena.chunk_bytes += chunk->buffer.n_bytes;
    return COLI_BK_OK;
}

coli_bk_status vk_slice_alloc(coli_bk_device *dev, uint64_t n_bytes, vk_slice *out)
{
    *out = (vk_slice){.n_bytes = vk_slice_bytes(n_bytes)};
    pthread_mutex_lock(&dev->memory_lock);
    coli_bk_status status = COLI_BK_OK;
    bool is_placed = false, is_new = false;
    while (!is_placed && !status) {
        for (vk_chunk *c = dev->arena.chunks; c && !is_placed; c = c->next)
            is_placed = place(c, out);
        if (is_placed || is_new) break;
        status = add_chunk(dev, out->n_bytes);
        is_new = true;
    }
    if (is_placed) dev->arena.used_bytes += out->n_bytes;
    pthread_mutex_unlock(&dev->memory_lock);
    return status;
}

void vk_slice_free(coli_bk_device *dev, vk_slice *slice)
{
    pthread_mutex_lock(&dev->memory_lock);
    vk_chunk *chunk = slice->chunk;
    *(slice->before ? &slice->before->after : &chunk->first) = slice->after;
    if (slice->after) slice->after->before = slice->before;
    chunk->used_bytes -= slice->n_bytes;
    dev->arena.used_bytes -= slice->n_bytes;
    bool has_other_empty = false;
    for (const vk_chunk *c = dev->arena.chunks; c; c = c->next)
        has_other_empty = has_other_empty || (c != chunk && c->used_bytes == 0);
    if (chunk->used_bytes == 0 && has_other_empty) drop_chunk(dev, chunk);
    pthread_mutex_unlock(&dev->memory_lock);
    *slice = (vk_slice){0};
}

void vk_arena_finish(coli_bk_device *dev)
{
    while (dev->arena.chunks) {
        for (vk_slice *slice = dev->arena.chunks->first, *after; slice; slice = after) {
            after = slice->after;
            vk_free(&dev->host, slice); // the tensor, whose first member it is
        }
        drop_chunk(dev, dev->arena.chunks);
    }
}
