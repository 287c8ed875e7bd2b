/* vk_round.c - see vk_round.h. */
#include "vk_round.h"

#include <inttypes.h>
#include <string.h>

enum { MAX_WORKGROUP = 65535 }; // along an axis: what every device allows

/* ---- life ----------------------------------------------------------------------------------- */

static coli_bk_status allocate_sets(coli_bk_device *dev)
{
    VkDescriptorSetLayout layouts[VK_N_SET];
    for (uint32_t i = 0; i < VK_N_SET; i++) layouts[i] = dev->kernels.set_layout;
    const VkDescriptorSetAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
        .descriptorPool = dev->kernels.pool,
        .descriptorSetCount = VK_N_SET,
        .pSetLayouts = layouts,
    };
    for (uint32_t i = 0; i < VK_N_SLOT; i++) {
        vk_slot *slot = &dev->work.slots[i];
        const VkResult r = dev->vk.vkAllocateDescriptorSets(dev->handle, &info, slot->sets);
        if (r) return vk_device_fail(dev, r, "vkAllocateDescriptorSets");
        slot->first_stamp = i * VK_N_STAMP;
    }
    return COLI_BK_OK;
}

coli_bk_status vk_rounds_init(coli_bk_device *dev)
{
    vk_rounds *rounds = dev->rounds = vk_alloc(&dev->host, sizeof *rounds);
    if (!rounds) return vk_fail(&dev->host, COLI_BK_NOMEM, "vulkan: no memory to open a device");
    const uint64_t n_bytes = vk_min(dev->options.work_bytes, dev->max_tensor_bytes);
    VK_TRY(vk_buffer_create(dev, n_bytes, VK_USE_WORK, "work", &rounds->buffer));
    rounds->n_word = (uint32_t)(n_bytes / 4);
    VK_TRY(allocate_sets(dev));
    if (dev->about.tick_bits == 0) return COLI_BK_OK;
    const VkQueryPoolCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
        .queryType = VK_QUERY_TYPE_TIMESTAMP,
        .queryCount = VK_N_SLOT * VK_N_STAMP,
    };
    const VkResult r = dev->vk.vkCreateQueryPool(dev->handle, &info, NULL, &rounds->stamps);
    return r ? vk_device_fail(dev, r, "vkCreateQueryPool") : COLI_BK_OK;
}

void vk_rounds_finish(coli_bk_device *dev)
{
    vk_rounds *rounds = dev->rounds;
    if (!rounds) return;
    dev->vk.vkDestroyQueryPool(dev->handle, rounds->stamps, NULL);
    vk_buffer_destroy(dev, &rounds->buffer);
    vk_free(&dev->host, rounds);
    dev->rounds = NULL;
}

coli_bk_status vk_rounds_check(coli_bk_device *dev, const coli_bk_matrix *m, uint64_t staged,
                               uint64_t scratch)
{
    staged += VK_SPARE_WORDS;
    if (4 * staged <= dev->work.slot_bytes && staged + scratch <= dev->rounds->n_word)
        return COLI_BK_OK;
    return vk_fail(&dev->host, COLI_BK_UNSUPPORTED,
                   "vulkan: (%u, %u): a row takes %" PRIu64 " bytes of staging and %" PRIu64
                   " of work memory; there are %" PRIu64 " and %" PRIu64,
                   m->n_out, m->n_in, 4 * staged, 4 * (staged + scratch), dev->work.slot_bytes,
                   4 * (uint64_t)dev->rounds->n_word);
}

coli_bk_status vk_readback_need(coli_bk_device *dev, vk_buffer *b, uint64_t n_bytes)
{
    if (b->handle && b->n_bytes >= n_bytes) return COLI_BK_OK;
    const uint64_t grown = vk_round_up(vk_max(n_bytes + n_bytes / 4, 1 << 16), 4096);
    vk_buffer_destroy(dev, b);
    return vk_buffer_create(dev, grown, VK_USE_READBACK, "results", b);
}

/* ---- time ----------------------------------------------------------------------------------- */

/* Add up the times of a slot whose submission is done. */
static void read_stamps(coli_bk_device *dev, vk_slot *slot)
{
    if (!slot->has_stamps) return;
    slot->has_stamps = false;
    uint64_t t[VK_N_STAMP];
    const VkResult r =
        dev->vk.vkGetQueryPoolResults(dev->handle, dev->rounds->stamps, slot->first_stamp,
                                      VK_N_STAMP, sizeof t, t, sizeof *t, VK_QUERY_RESULT_64_BIT);
    if (r) return; // the statistics lack a round, which is no failure
    const uint64_t mask = UINT64_MAX >> (64 - dev->about.tick_bits); // the counter wraps
    const double ms = (double)dev->about.ns_per_tick * 1e-6;
    pthread_mutex_lock(&dev->stats_lock);
    dev->stats.to_device_ms += (double)((t[1] - t[0]) & mask) * ms;
    dev->stats.kernel_ms += (double)((t[2] - t[1]) & mask) * ms;
    dev->stats.to_host_ms += (double)((t[3] - t[2]) & mask) * ms;
    pthread_mutex_unlock(&dev->stats_lock);
}

void vk_rounds_read_stamps(coli_bk_device *dev)
{
    const uint64_t done = atomic_load(&dev->work.done);
    for (uint32_t i = 0; i < VK_N_SLOT; i++)
        if (dev->work.slots[i].value <= done) read_stamps(dev, &dev->work.slots[i]);
}

static void stamp(coli_bk_device *dev, vk_slot *slot, uint32_t i)
{
    if (!dev->rounds->stamps) return;
    dev->vk.vkCmdWriteTimestamp(slot->commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT,
                                dev->rounds->stamps, slot->first_stamp + i);
}

/* ---- putting a round together --------------------------------------------------------------- */

coli_bk_status vk_round_begin(coli_bk_device *dev, vk_round **out)
{
    vk_round *r = *out = &dev->rounds->round;
    VK_TRY(vk_stream_begin(dev, &dev->work, &r->slot));
    read_stamps(dev, r->slot);
    r->staged = (uint32_t *)(void *)r->slot->staging;
    r->n_staged = 0;
    r->max_staged = (uint32_t)(dev->work.slot_bytes / 4);
    r->scratch = dev->rounds->n_word;
    r->n_buffer = r->n_dispatch = r->n_copy = 0;
    return COLI_BK_OK;
}

bool vk_round_fits(const vk_round *r, uint64_t staged, uint64_t scratch)
{
    return r->n_staged + staged + VK_SPARE_WORDS <= r->max_staged &&
           r->n_staged + staged + scratch + VK_SPARE_WORDS <= r->scratch;
}

uint32_t vk_round_stage(vk_round *r, uint64_t n)
{
    const uint32_t at = r->n_staged;
    r->n_staged = (uint32_t)vk_round_up(at + n, 4);
    return at;
}

uint32_t vk_round_scratch(vk_round *r, uint64_t n)
{
    r->scratch = (uint32_t)((r->scratch - n) & ~(uint64_t)3);
    return r->scratch;
}

uint32_t vk_round_buffer(vk_round *r, const vk_chunk *chunk)
{
    for (uint32_t i = 0; i < r->n_buffer; i++)
        if (r->buffers[i] == chunk) return i;
    if (r->n_buffer == VK_MAX_ROUND_BUFFER) return VK_MAX_ROUND_BUFFER;
    r->buffers[r->n_buffer] = chunk;
    return r->n_buffer++;
}

void vk_round_put_matrices(vk_round *r, uint32_t at, const coli_bk_tensor *t, uint32_t buffer)
{
    for (uint32_t i = 0; i < t->n_matrix; i++, at += VK_MATRIX_WORDS) {
        r->staged[at] = buffer % VK_N_WEIGHT_BUFFER;
        r->staged[at + 1] = (uint32_t)((t->slice.offset + t->matrix[i].offset) / 4);
        r->staged[at + 2] = (uint32_t)(t->matrix[i].scale_exp + 127) << 23; // float 2^scale_exp
        r->staged[at + 3] = 0;
    }
}

void vk_round_put_row(vk_round *r, uint32_t at, const int8_t *q, const float *d, uint32_t n_group,
                      uint32_t group)
{
    memcpy(r->staged + at, q, (size_t)n_group * group);
    at += n_group * group / 4;
    memcpy(r->staged + at, d, n_group * sizeof *d);
    at += n_group;
    for (uint32_t g = 0; g < n_group; g++, q += group) {
        int32_t sum = 0;
        for (uint32_t i = 0; i < group; i++) sum += q[i];
        r->staged[at + g] = (uint32_t)sum;
    }
}

uint32_t vk_round_put_tiles(vk_round *r, vk_shape shape, uint32_t matrix, uint32_t first_pair,
                            uint32_t n_row)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_row; i += vk_shapes[shape].tile, n++) {
        uint32_t *tile = r->staged + vk_round_stage(r, VK_TILE_WORDS);
        tile[0] = matrix;
        tile[1] = first_pair + i;
        tile[2] = (uint32_t)vk_min(n_row - i, vk_shapes[shape].tile);
        tile[3] = 0;
    }
    return n;
}

vk_dispatch *vk_round_dispatch(vk_round *r, VkPipeline pipeline, uint32_t set, const void *args,
                               uint32_t n_args_bytes)
{
    vk_dispatch *d = &r->dispatches[r->n_dispatch++];
    *d = (vk_dispatch){.pipeline = pipeline,
                       .set = set,
                       .n_x = 1,
                       .n_y = 1,
                       .n_z = 1,
                       .n_args_bytes = n_args_bytes};
    memcpy(d->args, args, n_args_bytes);
    return d;
}

vk_dispatch *vk_round_product(coli_bk_device *dev, const coli_bk_matrix *m, uint32_t n_matrix,
                              vk_shape shape, uint32_t set, uint32_t n_tile, vk_product_args a)
{
    const uint32_t n_panel = (m->n_out + COLI_BK_PANEL - 1) / COLI_BK_PANEL;
    a.n_out = m->n_out;
    a.n_group = coli_bk_layout_of(m->format, m->n_in).n_group;
    a.split_log2 = vk_split_log2(shape, a.n_group);
    a.n_slice = (n_panel + MAX_WORKGROUP - 1) / MAX_WORKGROUP;
    vk_dispatch *d =
        vk_round_dispatch(&dev->rounds->round, vk_kernels_product(dev, m->format, shape, a.n_group),
                          set, &a, sizeof a);
    d->n_x = (n_panel + a.n_slice - 1) / a.n_slice;
    d->n_y = n_tile;
    d->n_z = a.n_slice * n_matrix;
    return d;
}

void vk_round_copy(vk_round *r, uint32_t word, uint64_t to, uint64_t n_bytes)
{
    r->copies[r->n_copy++] =
        (VkBufferCopy){.srcOffset = 4 * (uint64_t)word, .dstOffset = to, .size = n_bytes};
}

/* ---- submitting it -------------------------------------------------------------------------- */

/* Tell the slot's descriptor sets of the round's weight buffers. */
static void write_sets(coli_bk_device *dev, const vk_round *r)
{
    const VkDescriptorBufferInfo work = {dev->rounds->buffer.handle, 0, VK_WHOLE_SIZE};
    const VkDescriptorBufferInfo work_twice[2] = {work, work};
    for (uint32_t set = 0; set * VK_N_WEIGHT_BUFFER < r->n_buffer; set++) {
        VkDescriptorBufferInfo weights[VK_N_WEIGHT_BUFFER];
        for (uint32_t i = 0; i < VK_N_WEIGHT_BUFFER; i++) { // the rest repeats the first
            const uint32_t at = set * VK_N_WEIGHT_BUFFER + i;
            const vk_chunk *chunk = r->buffers[at < r->n_buffer ? at : set * VK_N_WEIGHT_BUFFER];
            weights[i] = (VkDescriptorBufferInfo){chunk->buffer.handle, 0, VK_WHOLE_SIZE};
        }
        const VkWriteDescriptorSet base = {
            .sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
            .dstSet = r->slot->sets[set],
            .descriptorCount = 1,
            .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
        };
        VkWriteDescriptorSet writes[3] = {base, base, base};
        writes[0].descriptorCount = VK_N_WEIGHT_BUFFER;
        writes[0].pBufferInfo = weights;
        for (uint32_t i = 1; i < 3; i++) {
            writes[i].dstBinding = i;
            writes[i].pBufferInfo = &work_twice[i - 1];
        }
        dev->vk.vkUpdateDescriptorSets(dev->handle, 3, writes, 0, NULL);
    }
}

static void record_dispatches(coli_bk_device *dev, const vk_round *r, VkCommandBuffer commands)
{
    for (uint32_t i = 0; i < r->n_dispatch; i++) {
        const vk_dispatch *d = &r->dispatches[i];
        if (i == 0 || d->is_after_barrier) vk_barrier(dev, &dev->work, commands);
        dev->vk.vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, d->pipeline);
        dev->vk.vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE,
                                        dev->kernels.layout, 0, 1, &r->slot->sets[d->set], 0, NULL);
        dev->vk.vkCmdPushConstants(commands, dev->kernels.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                                   d->n_args_bytes, d->args);
        dev->vk.vkCmdDispatch(commands, d->n_x, d->n_y, d->n_z);
    }
    vk_barrier(dev, &dev->work, commands);
}

/* Host reads see what was copied to the readback buffer. */
static void barrier_to_host(coli_bk_device *dev, VkCommandBuffer commands)
{
    const VkMemoryBarrier barrier = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
        .dstAccessMask = VK_ACCESS_HOST_READ_BIT,
    };
    dev->vk.vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_TRANSFER_BIT,
                                 VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &barrier, 0, NULL, 0, NULL);
}

coli_bk_status vk_round_submit(coli_bk_device *dev, VkBuffer readback)
{
    vk_round *r = &dev->rounds->round;
    const VkCommandBuffer commands = r->slot->commands;
    write_sets(dev, r);
    if (dev->rounds->stamps)
        dev->vk.vkCmdResetQueryPool(commands, dev->rounds->stamps, r->slot->first_stamp,
                                    VK_N_STAMP);
    stamp(dev, r->slot, 0);
    const VkBufferCopy in = {.srcOffset = r->slot->staging_at, .size = 4 * (uint64_t)r->n_staged};
    dev->vk.vkCmdCopyBuffer(commands, dev->work.ring.handle, dev->rounds->buffer.handle, 1, &in);
    stamp(dev, r->slot, 1);
    record_dispatches(dev, r, commands);
    stamp(dev, r->slot, 2);
    dev->vk.vkCmdCopyBuffer(commands, dev->rounds->buffer.handle, readback, r->n_copy, r->copies);
    barrier_to_host(dev, commands);
    stamp(dev, r->slot, 3);
    VK_TRY(vk_stream_submit(dev, &dev->work, r->slot));
    r->slot->has_stamps = dev->rounds->stamps != VK_NULL_HANDLE;
    return COLI_BK_OK;
}
