/* vk_device.c - see vk_device.h.
 *
 * Two streams, because the host calls from two threads: `work` computes, `copy` brings weights.
 * They meet in few places, each with its lock:
 *
 *     queue->lock     a submission, where both streams have the same queue
 *     memory_lock     the arena and the books of memory
 *     kernels.lock    making pipelines
 *     stats_lock      counters
 *
 * No lock is held while another is taken, nor across a wait for the device.
 *
 * What one stream wrote is seen by the other: a submission waits for the other stream's timeline at
 * the value that this host has seen reached.  That costs nothing, since it is reached; but it is
 * what makes the memory visible.
 *
 * Lost.  A wait that outlasts its limit, or VK_ERROR_DEVICE_LOST, sets is_lost; from then on every
 * call fails at once.  Closing such a device waits a last time.  When that fails too, the device
 * may still use what we own, so nothing is destroyed: a leak is better than a crash. */
#include "vk_device.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "vk_group.h"
#include "vk_matmul.h"
#include "vk_round.h"

coli_bk_status vk_device_fail(coli_bk_device *dev, VkResult result, const char *what)
{
    if (result == VK_ERROR_DEVICE_LOST) atomic_store(&dev->is_lost, true);
    return vk_fail_result(&dev->host, result, what);
}

coli_bk_status vk_device_check(coli_bk_device *dev)
{
    if (!atomic_load(&dev->is_lost)) return COLI_BK_OK;
    return vk_fail(&dev->host, COLI_BK_LOST, "vulkan: %s: the device was lost before",
                   dev->about.name);
}

/* ---- streams -------------------------------------------------------------------------------- */

static coli_bk_status stream_init(coli_bk_device *dev, vk_stream *s, vk_queue *queue,
                                  const char *what)
{
    s->queue = queue;
    const VkCommandPoolCreateInfo pool_info = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
        .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
        .queueFamilyIndex = queue->family,
    };
    VkResult r = dev->vk.vkCreateCommandPool(dev->handle, &pool_info, NULL, &s->pool);
    if (r) return vk_device_fail(dev, r, "vkCreateCommandPool");

    VkCommandBuffer commands[VK_N_SLOT];
    const VkCommandBufferAllocateInfo commands_info = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        .commandPool = s->pool,
        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
        .commandBufferCount = VK_N_SLOT,
    };
    r = dev->vk.vkAllocateCommandBuffers(dev->handle, &commands_info, commands);
    if (r) return vk_device_fail(dev, r, "vkAllocateCommandBuffers");

    const VkSemaphoreTypeCreateInfo type = {
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
        .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE,
    };
    const VkSemaphoreCreateInfo semaphore_info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO,
                                                  .pNext = &type};
    r = dev->vk.vkCreateSemaphore(dev->handle, &semaphore_info, NULL, &s->timeline);
    if (r) return vk_device_fail(dev, r, "vkCreateSemaphore");

    s->slot_bytes = dev->options.staging_bytes / VK_N_SLOT & ~(uint64_t)255;
    VK_TRY(vk_buffer_create(dev, VK_N_SLOT * s->slot_bytes, VK_USE_STAGING, what, &s->ring));
    for (uint32_t i = 0; i < VK_N_SLOT; i++) {
        s->slots[i].commands = commands[i];
        s->slots[i].staging_at = i * s->slot_bytes;
        s->slots[i].staging = (uint8_t *)s->ring.map + i * s->slot_bytes;
    }
    return COLI_BK_OK;
}

static void stream_finish(coli_bk_device *dev, vk_stream *s)
{
    vk_buffer_destroy(dev, &s->ring);
    dev->vk.vkDestroySemaphore(dev->handle, s->timeline, NULL);
    dev->vk.vkDestroyCommandPool(dev->handle, s->pool, NULL);
}

coli_bk_status vk_stream_begin(coli_bk_device *dev, vk_stream *s, vk_slot **out)
{
    vk_slot *slot = &s->slots[s->issued % VK_N_SLOT];
    VK_TRY(vk_stream_finish(dev, s, slot->value));
    VkResult r = dev->vk.vkResetCommandBuffer(slot->commands, 0);
    if (r) return vk_device_fail(dev, r, "vkResetCommandBuffer");
    const VkCommandBufferBeginInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
        .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT,
    };
    r = dev->vk.vkBeginCommandBuffer(slot->commands, &info);
    if (r) return vk_device_fail(dev, r, "vkBeginCommandBuffer");
    vk_barrier(dev, s, slot->commands);
    *out = slot;
    return COLI_BK_OK;
}

coli_bk_status vk_stream_submit(coli_bk_device *dev, vk_stream *s, vk_slot *slot)
{
    VkResult r = dev->vk.vkEndCommandBuffer(slot->commands);
    if (r) return vk_device_fail(dev, r, "vkEndCommandBuffer");
    vk_stream *other = s == &dev->work ? &dev->copy : &dev->work;
    const uint64_t wait_value = atomic_load(&other->done), value = s->issued + 1;
    const VkPipelineStageFlags wait_stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    const VkTimelineSemaphoreSubmitInfo timeline = {
        .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .waitSemaphoreValueCount = 1,
        .pWaitSemaphoreValues = &wait_value,
        .signalSemaphoreValueCount = 1,
        .pSignalSemaphoreValues = &value,
    };
    const VkSubmitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
        .pNext = &timeline,
        .waitSemaphoreCount = 1,
        .pWaitSemaphores = &other->timeline,
        .pWaitDstStageMask = &wait_stage,
        .commandBufferCount = 1,
        .pCommandBuffers = &slot->commands,
        .signalSemaphoreCount = 1,
        .pSignalSemaphores = &s->timeline,
    };
    pthread_mutex_lock(&s->queue->lock);
    r = dev->vk.vkQueueSubmit(s->queue->handle, 1, &info, VK_NULL_HANDLE);
    pthread_mutex_unlock(&s->queue->lock);
    if (r) return vk_device_fail(dev, r, "vkQueueSubmit");
    slot->value = s->issued = value;
    return COLI_BK_OK;
}

static VkResult wait_value(coli_bk_device *dev, vk_stream *s, uint64_t value, uint64_t limit_ns)
{
    if (value <= atomic_load(&s->done)) return VK_SUCCESS;
    const VkSemaphoreWaitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
        .semaphoreCount = 1,
        .pSemaphores = &s->timeline,
        .pValues = &value,
    };
    const VkResult r = dev->vk.vkWaitSemaphores(dev->handle, &info, limit_ns);
    if (!r) atomic_store(&s->done, value);
    return r;
}

coli_bk_status vk_stream_wait(coli_bk_device *dev, vk_stream *s, uint64_t value, uint64_t limit_ns)
{
    const VkResult r = wait_value(dev, s, value, limit_ns);
    if (r == VK_TIMEOUT) return COLI_BK_BUSY;
    return r ? vk_device_fail(dev, r, "vkWaitSemaphores") : COLI_BK_OK;
}

coli_bk_status vk_stream_finish(coli_bk_device *dev, vk_stream *s, uint64_t value)
{
    const coli_bk_status status = vk_stream_wait(dev, s, value, dev->host.wait_limit_ns);
    if (status != COLI_BK_BUSY) return status;
    atomic_store(&dev->is_lost, true);
    return vk_fail(&dev->host, COLI_BK_LOST, "vulkan: %s: no answer within %" PRIu64 " ms",
                   dev->about.name, dev->host.wait_limit_ns / 1000000);
}

bool vk_stream_drain(coli_bk_device *dev, vk_stream *s)
{
    // Waiting for a lost device once more would take more time than the host allows.
    if (!atomic_load(&dev->is_lost) &&
        wait_value(dev, s, s->issued, dev->host.wait_limit_ns) != VK_SUCCESS)
        atomic_store(&dev->is_lost, true);
    return !atomic_load(&dev->is_lost);
}

void vk_barrier(coli_bk_device *dev, const vk_stream *s, VkCommandBuffer commands)
{
    const VkMemoryBarrier barrier = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT,
        .dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT,
    };
    const VkPipelineStageFlags stages =
        s == &dev->work ? VK_PIPELINE_STAGE_TRANSFER_BIT | VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT
                        : VK_PIPELINE_STAGE_TRANSFER_BIT;
    dev->vk.vkCmdPipelineBarrier(commands, stages, stages, 0, 1, &barrier, 0, NULL, 0, NULL);
}

/* ---- opening -------------------------------------------------------------------------------- */

static coli_bk_status choose_device(coli_bk_device *dev, uint32_t index)
{
    bool is_absent;
    VK_TRY(vk_instance_open(&dev->host, dev->options.validate, &is_absent, &dev->instance));
    if (is_absent) return vk_fail(&dev->host, COLI_BK_UNSUPPORTED, "vulkan: " VK_ABSENT);
    vk_candidate *list;
    uint32_t n;
    VK_TRY(vk_instance_devices(&dev->instance, &list, &n));
    if (index < n) dev->about = list[index];
    vk_free(&dev->host, list);
    if (index >= n)
        return vk_fail(&dev->host, COLI_BK_INVALID, "vulkan: device %u: there are %u", index, n);
    if (dev->about.unusable[0])
        return vk_fail(&dev->host, COLI_BK_UNSUPPORTED, "vulkan: %s: %s", dev->about.name,
                       dev->about.unusable);
    return COLI_BK_OK;
}

/* Options that ask the device for something. */
static coli_bk_status check_options(coli_bk_device *dev)
{
    const vk_options *o = &dev->options;
    const vk_candidate *c = &dev->about;
    if (o->dot == 1 && !c->has_dot)
        return vk_fail(&dev->host, COLI_BK_UNSUPPORTED,
                       "vulkan: dot=1: %s has no integer dot products", c->name);
    if (o->subgroup && ((o->subgroup & (o->subgroup - 1)) || o->subgroup < c->min_subgroup ||
                        o->subgroup > c->max_subgroup))
        return vk_fail(&dev->host, COLI_BK_UNSUPPORTED,
                       "vulkan: subgroup=%u: %s offers powers of two from %u to %u", o->subgroup,
                       c->name, c->min_subgroup, c->max_subgroup);
    dev->max_tensor_bytes = vk_options_buffer(o, c);
    return COLI_BK_OK;
}

static coli_bk_status create_device(coli_bk_device *dev)
{
    const vk_candidate *c = &dev->about;
    static const float priorities[2] = {1.0f, 1.0f};
    dev->has_two_families = c->compute_family != c->copy_family;
    const VkDeviceQueueCreateInfo queues[2] = {
        {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
         .queueFamilyIndex = c->compute_family,
         .queueCount = dev->has_two_families ? 1 : 1 + c->copy_queue,
         .pQueuePriorities = priorities},
        {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
         .queueFamilyIndex = c->copy_family,
         .queueCount = 1,
         .pQueuePriorities = priorities},
    };
    const char *extensions[3];
    uint32_t n_extension = 0;
    VkPhysicalDeviceVulkan12Features f12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
        .timelineSemaphore = VK_TRUE};
    VkPhysicalDeviceVulkan11Features f11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
        .pNext = &f12,
        .storageBuffer16BitAccess = c->has_storage16};
    VkPhysicalDeviceFeatures2 features = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
        .pNext = &f11,
        .features = {.shaderStorageBufferArrayDynamicIndexing = VK_TRUE}};
    VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR f_dot = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR,
        .shaderIntegerDotProduct = VK_TRUE};
    VkPhysicalDeviceSubgroupSizeControlFeaturesEXT f_subgroup = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES_EXT,
        .subgroupSizeControl = VK_TRUE};
    if (c->has_budget) extensions[n_extension++] = VK_EXT_MEMORY_BUDGET_EXTENSION_NAME;
    if (c->has_dot) {
        extensions[n_extension++] = VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME;
        f_dot.pNext = features.pNext;
        features.pNext = &f_dot;
    }
    if (dev->options.subgroup) {
        extensions[n_extension++] = VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME;
        f_subgroup.pNext = features.pNext;
        features.pNext = &f_subgroup;
    }
    const VkDeviceCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
        .pNext = &features,
        .queueCreateInfoCount = dev->has_two_families ? 2 : 1,
        .pQueueCreateInfos = queues,
        .enabledExtensionCount = n_extension,
        .ppEnabledExtensionNames = extensions,
    };
    const VkResult r =
        vk_instance_create_device(&dev->instance, c->handle, &info, &dev->handle, &dev->vk);
    if (r) return vk_device_fail(dev, r, "vkCreateDevice");

    dev->queues[0].family = c->compute_family;
    dev->vk.vkGetDeviceQueue(dev->handle, c->compute_family, 0, &dev->queues[0].handle);
    dev->n_queue = 1;
    if (dev->has_two_families || c->copy_queue) {
        dev->queues[1].family = c->copy_family;
        dev->vk.vkGetDeviceQueue(dev->handle, c->copy_family, c->copy_queue,
                                 &dev->queues[1].handle);
        dev->n_queue = 2;
    }
    return COLI_BK_OK;
}

static coli_bk_status open_device(coli_bk_device *dev, uint32_t index)
{
    VK_TRY(vk_options_parse(&dev->host, &dev->options));
    VK_TRY(choose_device(dev, index));
    VK_TRY(check_options(dev));
    VkPhysicalDeviceMemoryProperties2 memory = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
    dev->instance.vkGetPhysicalDeviceMemoryProperties2(dev->about.handle, &memory);
    dev->memory = memory.memoryProperties;
    VK_TRY(create_device(dev));
    VK_TRY(vk_kernels_init(dev));
    VK_TRY(stream_init(dev, &dev->work, &dev->queues[0], "staging of activations"));
    VK_TRY(stream_init(dev, &dev->copy, &dev->queues[dev->n_queue - 1], "staging of weights"));
    VK_TRY(vk_rounds_init(dev));
    return vk_group_init(dev);
}

static void init_locks(coli_bk_device *dev)
{
    for (uint32_t i = 0; i < 2; i++) pthread_mutex_init(&dev->queues[i].lock, NULL);
    pthread_mutex_init(&dev->memory_lock, NULL);
    pthread_mutex_init(&dev->kernels.lock, NULL);
    pthread_mutex_init(&dev->stats_lock, NULL);
}

coli_bk_status vk_device_open(const coli_bk_host *host, uint32_t index, coli_bk_device **out)
{
    coli_bk_device *dev = vk_alloc(host, sizeof *dev);
    if (!dev) return vk_fail(host, COLI_BK_NOMEM, "vulkan: no memory to open a device");
    memcpy(&dev->host, host, vk_min(host->struct_size, sizeof dev->host));
    init_locks(dev);
    const coli_bk_status status = open_device(dev, index);
    if (status) {
        vk_device_close(dev);
        return status;
    }
    vk_log(host, COLI_BK_LOG_INFO, "vulkan: %s, %s%s", dev->about.name, dev->about.driver,
           dev->about.has_budget ? ""
                                 : "; the driver does not tell how much memory is free: it is "
                                   "assumed that others use an eighth");
    *out = dev;
    return COLI_BK_OK;
}

/* Whether the device does nothing for us any more. */
static bool is_idle(coli_bk_device *dev)
{
    // Any result but a timeout: done, or the driver has given the device up.
    const uint64_t limit_ns = dev->host.wait_limit_ns;
    return wait_value(dev, &dev->work, dev->work.issued, limit_ns) != VK_TIMEOUT &&
           wait_value(dev, &dev->copy, dev->copy.issued, limit_ns) != VK_TIMEOUT;
}

void vk_device_close(coli_bk_device *dev)
{
    if (!dev) return;
    if (dev->handle) {
        if (!is_idle(dev)) {
            vk_log(&dev->host, COLI_BK_LOG_WARNING,
                   "vulkan: %s still does not answer: what it uses is never freed",
                   dev->about.name);
            return;
        }
        vk_matmul_finish(dev);
        vk_group_finish(dev);
        vk_rounds_finish(dev);
        while (dev->pinned) {
            vk_pinned *pinned = dev->pinned;
            dev->pinned = pinned->next;
            vk_buffer_destroy(dev, &pinned->buffer);
            vk_free(&dev->host, pinned);
        }
        stream_finish(dev, &dev->copy);
        stream_finish(dev, &dev->work);
        vk_arena_finish(dev);
        vk_kernels_finish(dev);
        dev->vk.vkDestroyDevice(dev->handle, NULL);
    }
    vk_instance_close(&dev->instance);
    for (uint32_t i = 0; i < 2; i++) pthread_mutex_destroy(&dev->queues[i].lock);
    pthread_mutex_destroy(&dev->memory_lock);
    pthread_mutex_destroy(&dev->kernels.lock);
    pthread_mutex_destroy(&dev->stats_lock);
    const coli_bk_host host = dev->host;
    vk_free(&host, dev);
}
