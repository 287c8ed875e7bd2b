/* vk_work.c - see vk_work.h.
 *
 * Rounds.  Work of any size goes through buffers of a fixed size, which are made when the device is
 * opened: nothing that a token needs is allocated later, so a device full of experts still computes.  A
 * group or a list of products is cut into rounds, each one submission:
 *
 *     host     fills the slot's staging: tables and quantised rows         one copy to the device
 *     device   gate, up  |  hidden  |  down      (or: products)            `|` a barrier
 *              copies the results to readback memory
 *
 *     work buffer   [ staged: tables, rows | ->          <- | scratch: products, hidden rows, results ]
 *
 * What is staged stands at the beginning of the work buffer, at the same positions as in the
 * staging; scratch is taken from the end.  A round is full when the two would meet, when the slot's staging
 * is, or when the experts lie in more weight buffers than the slot's descriptor sets can name.
 * The next round begins behind a barrier, so it may use the same memory.
 *
 * Weight buffers.  A kernel sees eight at a time (a window).  The buffers of a round are numbered as
 * they come, and the tiles of one window are one dispatch: usually there is only one.
 *
 * Tiles.  A tile is one expert and up to 1, 4 or 16 of its rows (vk_shape), for which a workgroup reads
 * a panel of weights once.
 *
 * A result must survive what comes between take and the next issue, so the products of matmul have
 * readback memory of their own. */
#include "vk_work.h"

#include <string.h>

#include "vk_device.h"

enum {
    MAX_BUFFER = VK_N_SET * VK_N_WEIGHT_BUFFER, // weight buffers of a round
    MAX_DISPATCH = 128,
    MAX_COPY = 64,
    MAX_PAIR = 32768, // pairs of a round, and so tiles: below Vulkan's 65535 workgroups
    MAX_WORKGROUP = 65535,
    MATRIX_WORDS = 4,
    TILE_WORDS = 4,
    SPARE_WORDS = 64, // of a round, for regions that begin at multiples of four
};

typedef struct dispatch {
    VkPipeline pipeline;
    uint32_t set;
    uint32_t n_x, n_y, n_z;
    bool is_after_barrier; // it reads what those before it wrote
    uint32_t n_args_bytes;
    uint32_t args[VK_MAX_ARGS_BYTES / 4];
} dispatch;

/* One submission that is being put together. */
typedef struct vk_round {
    vk_slot *slot;
    uint32_t *staged;                     // the slot's staging
    uint32_t n_staged, max_staged;        // words
    uint32_t scratch;                     // words: begins here
    const vk_chunk *buffers[MAX_BUFFER];  // weight buffers, in the order of their first use
    uint32_t n_buffer;
    dispatch dispatches[MAX_DISPATCH];
    uint32_t n_dispatch;
    VkBufferCopy copies[MAX_COPY]; // to the readback buffer
    uint32_t n_copy;
} vk_round;

typedef struct vk_work {
    vk_buffer buffer;
    uint32_t n_word; // of it
    VkQueryPool stamps;
    uint64_t stamp_ticks[3]; // to the device, computing, to the host; under stats_lock

    vk_buffer group_out, matmul_out; // readback memory, grown when a call needs more
    vk_round round;

    /* the group that was issued and not taken */
    bool is_pending;
    uint64_t pending_value;
    uint32_t n_row, d;
    uint8_t *flags; // (n_row) of the result; room for max_flag
    uint64_t max_flag;

    /* which rows the round has staged: local_of[x] is valid where stamp_of[x] == stamp */
    uint32_t *stamp_of, *local_of; // (max_x)
    uint64_t max_x;
    uint32_t stamp;
} vk_work;

/* ---- sizes ------------------------------------------------------------------------------------ */

static uint64_t words4(uint64_t n) // rows begin at multiples of four words
{
    return vk_round_up(n, 4);
}

/* Words of a quantised row: q, d, sums. */
static uint64_t row_words(uint32_t n_group, uint32_t group)
{
    return words4((uint64_t)n_group * (group / 4 + 2));
}

static uint64_t row_words_of(const coli_bk_matrix *m)
{
    const coli_bk_layout l = coli_bk_layout_of(m->format, m->n_in);
    return row_words(l.n_group, l.group);
}

/* Scratch of a pair: products of gate and up, the hidden row, the result. */
static uint64_t pair_words(const coli_bk_matrix m[3])
{
    return 2 * (uint64_t)m[0].n_out + row_words_of(&m[2]) + m[2].n_out;
}

/* Staged for a pair besides its activation row: its number, its flag, at most a tile. */
enum { PAIR_STAGED = 2 + TILE_WORDS };

coli_bk_status vk_work_check_shape(coli_bk_device *dev, const coli_bk_matrix *m, uint32_t n_matrix)
{
    const uint64_t staged =
        row_words_of(&m[0]) + n_matrix * MATRIX_WORDS + PAIR_STAGED + SPARE_WORDS;
    const uint64_t scratch = n_matrix == 3 ? pair_words(m) : m[0].n_out;
    if (4 * staged <= dev->work.slot_bytes && staged + scratch <= dev->rounds->n_word)
        return COLI_BK_OK;
    return vk_fail(&dev->host, COLI_BK_UNSUPPORTED,
                   "vulkan: (%u, %u): a row takes %llu bytes of staging and %llu of work memory; "
                   "there are %llu and %llu",
                   m[0].n_out, m[0].n_in, (unsigned long long)(4 * staged),
                   (unsigned long long)(4 * (staged + scratch)),
                   (unsigned long long)dev->work.slot_bytes,
                   (unsigned long long)4 * dev->rounds->n_word);
}

/* ---- life ------------------------------------------------------------------------------------- */

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

coli_bk_status vk_work_init(coli_bk_device *dev)
{
    vk_work *w = dev->rounds = vk_alloc(&dev->host, sizeof *w);
    if (!w) return vk_fail(&dev->host, COLI_BK_NOMEM, "vulkan: no memory to open a device");
    const uint64_t n_bytes = vk_min(dev->options.work_bytes, dev->max_tensor_bytes);
    VK_TRY(vk_buffer_create(dev, n_bytes, VK_USE_WORK, "work", &w->buffer));
    dev->other_bytes += n_bytes;
    w->n_word = (uint32_t)(n_bytes / 4);
    VK_TRY(allocate_sets(dev));
    if (dev->about.ns_per_tick == 0.0f) return COLI_BK_OK;
    const VkQueryPoolCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
        .queryType = VK_QUERY_TYPE_TIMESTAMP,
        .queryCount = VK_N_SLOT * VK_N_STAMP,
    };
    const VkResult r = dev->vk.vkCreateQueryPool(dev->handle, &info, NULL, &w->stamps);
    return r ? vk_device_fail(dev, r, "vkCreateQueryPool") : COLI_BK_OK;
}

void vk_work_finish(coli_bk_device *dev)
{
    vk_work *w = dev->rounds;
    if (!w) return;
    dev->vk.vkDestroyQueryPool(dev->handle, w->stamps, NULL);
    vk_buffer_destroy(dev, &w->matmul_out);
    vk_buffer_destroy(dev, &w->group_out);
    vk_buffer_destroy(dev, &w->buffer);
    vk_free(&dev->host, w->flags);
    vk_free(&dev->host, w->stamp_of);
    vk_free(&dev->host, w->local_of);
    vk_free(&dev->host, w);
    dev->rounds = NULL;
}

/* Room for n_bytes in a readback buffer; its old content is lost. */
static coli_bk_status need_readback(coli_bk_device *dev, vk_buffer *b, uint64_t n_bytes)
{
    if (b->n_bytes >= n_bytes && b->handle) return COLI_BK_OK;
    const uint64_t grown = vk_round_up(vk_max(n_bytes + n_bytes / 4, 1 << 16), 4096);
    vk_buffer_destroy(dev, b);
    return vk_buffer_create(dev, grown, VK_USE_READBACK, "results", b);
}

/* Room for the tables of a group: flags of its pairs, stamps of its activation rows. */
static coli_bk_status need_tables(coli_bk_device *dev, uint64_t n_pair, uint64_t n_x)
{
    vk_work *w = dev->rounds;
    if (w->max_flag < n_pair) {
        vk_free(&dev->host, w->flags);
        w->max_flag = n_pair + n_pair / 4;
        w->flags = vk_alloc(&dev->host, w->max_flag);
        if (!w->flags) w->max_flag = 0;
    }
    if (w->max_x < n_x) {
        vk_free(&dev->host, w->stamp_of);
        vk_free(&dev->host, w->local_of);
        w->max_x = n_x + n_x / 4;
        w->stamp_of = vk_alloc(&dev->host, w->max_x * sizeof *w->stamp_of);
        w->local_of = vk_alloc(&dev->host, w->max_x * sizeof *w->local_of);
        if (!w->stamp_of || !w->local_of) w->max_x = 0;
    }
    if (w->max_flag >= n_pair && w->max_x >= n_x) return COLI_BK_OK;
    return vk_fail(&dev->host, COLI_BK_NOMEM, "vulkan: no memory for the tables of a group");
}

/* ---- time ------------------------------------------------------------------------------------- */

/* Add up the times of a slot whose submission is done. */
static void read_stamps(coli_bk_device *dev, vk_slot *slot)
{
    if (!slot->has_stamps) return;
    slot->has_stamps = false;
    uint64_t t[VK_N_STAMP];
    const VkResult r = dev->vk.vkGetQueryPoolResults(
        dev->handle, dev->rounds->stamps, slot->first_stamp, VK_N_STAMP, sizeof t, t, sizeof *t,
        VK_QUERY_RESULT_64_BIT);
    if (r) return;
    const double ms = (double)dev->about.ns_per_tick * 1e-6;
    pthread_mutex_lock(&dev->stats_lock);
    dev->stats.to_device_ms += (double)(t[1] - t[0]) * ms;
    dev->stats.kernel_ms += (double)(t[2] - t[1]) * ms;
    dev->stats.to_host_ms += (double)(t[3] - t[2]) * ms;
    pthread_mutex_unlock(&dev->stats_lock);
}

static void read_all_stamps(coli_bk_device *dev)
{
    for (uint32_t i = 0; i < VK_N_SLOT; i++) read_stamps(dev, &dev->work.slots[i]);
}

static void stamp(coli_bk_device *dev, vk_slot *slot, uint32_t i)
{
    if (!dev->rounds->stamps) return;
    dev->vk.vkCmdWriteTimestamp(slot->commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT,
                                dev->rounds->stamps, slot->first_stamp + i);
}

/* ---- rounds ----------------------------------------------------------------------------------- */

static coli_bk_status round_begin(coli_bk_device *dev)
{
    vk_round *r = &dev->rounds->round;
    VK_TRY(vk_stream_begin(dev, &dev->work, &r->slot));
    read_stamps(dev, r->slot);
    r->staged = (uint32_t *)(void *)r->slot->staging;
    r->n_staged = 0;
    r->max_staged = (uint32_t)(dev->work.slot_bytes / 4);
    r->scratch = dev->rounds->n_word;
    r->n_buffer = r->n_dispatch = r->n_copy = 0;
    dev->rounds->stamp++;
    return COLI_BK_OK;
}

/* Whether so many words more can be staged and taken as scratch. */
static bool round_fits(const vk_round *r, uint64_t staged, uint64_t scratch)
{
    return r->n_staged + staged + SPARE_WORDS <= r->max_staged &&
           r->n_staged + staged + scratch + SPARE_WORDS <= r->scratch;
}

/* n words to be staged, or of scratch; the position is a multiple of four. */
static uint32_t round_stage(vk_round *r, uint64_t n)
{
    const uint32_t at = r->n_staged;
    r->n_staged = (uint32_t)words4(at + n);
    return at;
}

static uint32_t round_scratch(vk_round *r, uint64_t n)
{
    r->scratch = (uint32_t)((r->scratch - n) & ~(uint64_t)3);
    return r->scratch;
}

/* The number of a weight buffer in the round; MAX_BUFFER when there is no room for another. */
static uint32_t round_buffer(vk_round *r, const vk_chunk *chunk)
{
    for (uint32_t i = 0; i < r->n_buffer; i++)
        if (r->buffers[i] == chunk) return i;
    if (r->n_buffer == MAX_BUFFER) return MAX_BUFFER;
    r->buffers[r->n_buffer] = chunk;
    return r->n_buffer++;
}

static void put_matrices(vk_round *r, uint32_t at, const coli_bk_tensor *t, uint32_t buffer)
{
    for (uint32_t i = 0; i < t->n_matrix; i++, at += MATRIX_WORDS) {
        r->staged[at] = buffer % VK_N_WEIGHT_BUFFER;
        r->staged[at + 1] = (uint32_t)((t->slice.offset + t->matrix[i].offset) / 4);
        r->staged[at + 2] = (uint32_t)(t->matrix[i].scale_exp + 127) << 23; // float 2^scale_exp
        r->staged[at + 3] = 0;
    }
}

/* A quantised row with the sums of its groups. */
static void put_row(vk_round *r, uint32_t at, const int8_t *q, const float *d, uint32_t n_group,
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

/* Tiles of the pairs first_pair .. first_pair+n_row-1 of one matrix (or of the three from `matrix`
 * on); how many. */
static uint32_t stage_tiles_of(vk_round *r, vk_shape shape, uint32_t matrix, uint32_t first_pair,
                               uint32_t n_row)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_row; i += vk_shapes[shape].tile, n++) {
        uint32_t *tile = r->staged + round_stage(r, TILE_WORDS);
        tile[0] = matrix;
        tile[1] = first_pair + i;
        tile[2] = (uint32_t)vk_min(n_row - i, vk_shapes[shape].tile);
        tile[3] = 0;
    }
    return n;
}

static dispatch *round_dispatch(vk_round *r, VkPipeline pipeline, uint32_t set, const void *args,
                                uint32_t n_args_bytes)
{
    dispatch *d = &r->dispatches[r->n_dispatch++];
    *d = (dispatch){.pipeline = pipeline, .set = set, .n_args_bytes = n_args_bytes};
    memcpy(d->args, args, n_args_bytes);
    return d;
}

/* Products of n_matrix matrices of one format and shape with the tiles at a->tile_at. */
static dispatch *round_product(coli_bk_device *dev, const coli_bk_matrix *m, uint32_t n_matrix,
                               vk_shape shape, uint32_t set, uint32_t n_tile, vk_product_args a)
{
    const uint32_t n_panel = (m->n_out + COLI_BK_PANEL - 1) / COLI_BK_PANEL;
    a.n_out = m->n_out;
    a.n_group = coli_bk_layout_of(m->format, m->n_in).n_group;
    a.split_log2 = vk_split_log2(shape, a.n_group);
    a.n_slice = (n_panel + MAX_WORKGROUP - 1) / MAX_WORKGROUP;
    dispatch *d = round_dispatch(&dev->rounds->round,
                                 vk_kernels_product(dev, m->format, shape, a.n_group), set, &a,
                                 sizeof a);
    d->n_x = (n_panel + a.n_slice - 1) / a.n_slice;
    d->n_y = n_tile;
    d->n_z = a.n_slice * n_matrix;
    return d;
}

static void round_copy(vk_round *r, uint32_t word, uint64_t to, uint64_t n_bytes)
{
    r->copies[r->n_copy++] =
        (VkBufferCopy){.srcOffset = 4 * (uint64_t)word, .dstOffset = to, .size = n_bytes};
}

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

/* Make host reads of the readback buffer see what was copied there. */
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

/* Record the round and submit it. */
static coli_bk_status round_submit(coli_bk_device *dev, VkBuffer out)
{
    vk_round *r = &dev->rounds->round;
    const VkCommandBuffer commands = r->slot->commands;
    write_sets(dev, r);
    if (dev->rounds->stamps)
        dev->vk.vkCmdResetQueryPool(commands, dev->rounds->stamps, r->slot->first_stamp, VK_N_STAMP);
    stamp(dev, r->slot, 0);
    const VkBufferCopy in = {.srcOffset = r->slot->staging_at, .size = 4 * (uint64_t)r->n_staged};
    dev->vk.vkCmdCopyBuffer(commands, dev->work.ring.handle, dev->rounds->buffer.handle, 1, &in);
    stamp(dev, r->slot, 1);
    for (uint32_t i = 0; i < r->n_dispatch; i++) {
        const dispatch *d = &r->dispatches[i];
        if (i == 0 || d->is_after_barrier) vk_barrier(dev, &dev->work, commands);
        dev->vk.vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, d->pipeline);
        dev->vk.vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE,
                                        dev->kernels.layout, 0, 1, &r->slot->sets[d->set], 0, NULL);
        dev->vk.vkCmdPushConstants(commands, dev->kernels.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                                   d->n_args_bytes, d->args);
        dev->vk.vkCmdDispatch(commands, d->n_x, d->n_y, d->n_z);
    }
    vk_barrier(dev, &dev->work, commands);
    stamp(dev, r->slot, 2);
    dev->vk.vkCmdCopyBuffer(commands, dev->rounds->buffer.handle, out, r->n_copy, r->copies);
    barrier_to_host(dev, commands);
    stamp(dev, r->slot, 3);
    VK_TRY(vk_stream_submit(dev, &dev->work, r->slot));
    r->slot->has_stamps = dev->rounds->stamps != VK_NULL_HANDLE;
    return COLI_BK_OK;
}

/* After a failure: rounds that were submitted must not outlive the call. */
static void drain(coli_bk_device *dev)
{
    if (vk_stream_wait(dev, &dev->work, dev->work.issued, dev->host.wait_limit_ns) != COLI_BK_OK)
        atomic_store(&dev->is_lost, true);
}

/* ---- groups ----------------------------------------------------------------------------------- */

/* Where a group stands: the next pair is row `row` of expert `expert`. */
typedef struct cursor {
    uint32_t expert, row;
    uint64_t pair;
} cursor;

/* The rows of one expert that a round takes. */
typedef struct run {
    const coli_bk_tensor *t;
    uint32_t buffer;
    uint32_t first_pair, n_row; // counted in the round
} run;

typedef struct tile_list {
    uint32_t at, n;
} tile_list;

/* What a round takes of a group, and where its regions are (words). */
typedef struct group_round {
    cursor begin;
    uint32_t n_pair, n_run, n_x;
    uint32_t matrix_at, row_at, flag_at, x_at; // staged
    uint32_t product_at, hidden_at, result_at; // scratch
    tile_list tiles[VK_N_SHAPE][VK_N_SET];
} group_round;

/* How much of the group, from g->begin on, the round can take: at least one pair.  Numbers the weight
 * buffers and the activation rows. */
static void plan_group(coli_bk_device *dev, const coli_bk_group *group, group_round *g)
{
    vk_work *w = dev->rounds;
    const uint64_t scratch = pair_words(group->experts[0]->matrix);
    const uint64_t row = row_words(group->n_group, group->group);
    uint64_t staged = 0;
    cursor c = g->begin;
    for (; c.expert < group->n_expert; c.expert++, c.row = 0) {
        if (c.row == group->n_row[c.expert]) continue;
        if (round_buffer(&w->round, group->experts[c.expert]->slice.chunk) == MAX_BUFFER) return;
        staged += 3 * MATRIX_WORDS;
        for (const uint32_t first = c.row; c.row < group->n_row[c.expert]; c.row++, c.pair++) {
            const uint32_t x = group->row[c.pair];
            const bool is_new = w->stamp_of[x] != w->stamp;
            staged += PAIR_STAGED + (is_new ? row : 0);
            if (g->n_pair == MAX_PAIR ||
                (g->n_pair > 0 &&
                 !round_fits(&w->round, staged, (g->n_pair + (uint64_t)1) * scratch)))
                return;
            if (c.row == first) g->n_run++;
            if (is_new) {
                w->stamp_of[x] = w->stamp;
                w->local_of[x] = g->n_x++;
            }
            g->n_pair++;
        }
    }
}

/* The next expert's rows; false when the round has no more.  Begin with *c = g->begin. */
static bool next_run(coli_bk_device *dev, const coli_bk_group *group, const group_round *g,
                     cursor *c, run *out)
{
    const uint32_t done = (uint32_t)(c->pair - g->begin.pair);
    if (done == g->n_pair) return false;
    while (c->row == group->n_row[c->expert]) {
        c->expert++;
        c->row = 0;
    }
    const uint32_t n_row =
        (uint32_t)vk_min(group->n_row[c->expert] - c->row, g->n_pair - done);
    const coli_bk_tensor *t = group->experts[c->expert];
    *out = (run){t, round_buffer(&dev->rounds->round, t->slice.chunk), done, n_row};
    c->row += n_row;
    c->pair += n_row;
    return true;
}

/* Stage the numbers of the activation rows, and the rows themselves. */
static void stage_rows(vk_work *w, const coli_bk_group *group, const group_round *g, uint32_t x_ld)
{
    uint32_t n_x = 0;
    for (uint32_t p = 0; p < g->n_pair; p++) {
        const uint32_t x = group->row[g->begin.pair + p], local = w->local_of[x];
        w->round.staged[g->row_at + p] = local;
        if (local < n_x) continue; // plan_group numbered them in the order of the pairs
        n_x = local + 1;
        put_row(&w->round, g->x_at + local * x_ld,
                group->q + (size_t)x * group->n_group * group->group,
                group->d + (size_t)x * group->n_group, group->n_group, group->group);
    }
}

/* Cut the runs into tiles, listed by shape and window. */
static void stage_tiles(coli_bk_device *dev, const coli_bk_group *group, group_round *g)
{
    vk_round *r = &dev->rounds->round;
    for (vk_shape shape = 0; shape < VK_N_SHAPE; shape++)
        for (uint32_t set = 0; set * VK_N_WEIGHT_BUFFER < r->n_buffer; set++) {
            tile_list *list = &g->tiles[shape][set];
            list->at = r->n_staged;
            cursor c = g->begin;
            run e;
            for (uint32_t i = 0; next_run(dev, group, g, &c, &e); i++) {
                if (vk_shape_for(e.n_row) != shape || e.buffer / VK_N_WEIGHT_BUFFER != set) continue;
                list->n += stage_tiles_of(r, shape, 3 * i, e.first_pair, e.n_row);
            }
        }
}

/* Stage the tables and rows of the round, and lay out its scratch. */
static void stage_group(coli_bk_device *dev, const coli_bk_group *group, group_round *g)
{
    vk_round *r = &dev->rounds->round;
    const coli_bk_matrix *m = group->experts[0]->matrix;
    const uint32_t x_ld = (uint32_t)row_words(group->n_group, group->group);
    g->matrix_at = round_stage(r, g->n_run * (uint64_t)3 * MATRIX_WORDS);
    g->row_at = round_stage(r, g->n_pair);
    g->flag_at = round_stage(r, g->n_pair);
    g->x_at = round_stage(r, (uint64_t)g->n_x * x_ld);
    memset(r->staged + g->flag_at, 0, 4 * (size_t)g->n_pair);
    stage_rows(dev->rounds, group, g, x_ld);

    cursor c = g->begin;
    run e;
    for (uint32_t at = g->matrix_at; next_run(dev, group, g, &c, &e); at += 3 * MATRIX_WORDS)
        put_matrices(r, at, e.t, e.buffer);
    stage_tiles(dev, group, g);

    g->product_at = round_scratch(r, (uint64_t)2 * g->n_pair * m[0].n_out);
    g->hidden_at = round_scratch(r, g->n_pair * row_words_of(&m[2]));
    g->result_at = round_scratch(r, (uint64_t)g->n_pair * m[2].n_out);
}

/* Products of all runs with their matrices first .. first+n_matrix-1, behind a barrier if asked. */
static void add_products(coli_bk_device *dev, const coli_bk_matrix *m, const group_round *g,
                         uint32_t first, uint32_t n_matrix, vk_product_args a, bool after_barrier)
{
    a.matrix_at = g->matrix_at;
    a.first_matrix = first;
    for (vk_shape shape = 0; shape < VK_N_SHAPE; shape++)
        for (uint32_t set = 0; set < VK_N_SET; set++) {
            const tile_list *tiles = &g->tiles[shape][set];
            if (tiles->n == 0) continue;
            a.tile_at = tiles->at;
            round_product(dev, &m[first], n_matrix, shape, set, tiles->n, a)->is_after_barrier =
                after_barrier;
            after_barrier = false;
        }
}

static void add_group(coli_bk_device *dev, const coli_bk_group *group, const group_round *g)
{
    const coli_bk_matrix *m = group->experts[0]->matrix;
    const coli_bk_layout down = coli_bk_layout_of(m[2].format, m[2].n_in);
    const uint32_t f = m[0].n_out, d = m[2].n_out, plane = g->n_pair * f;
    vk_product_args a = {
        .row_at = g->row_at,
        .x_at = g->x_at,
        .x_ld = (uint32_t)row_words(group->n_group, group->group),
        .y_at = g->product_at,
        .y_ld = f,
        .y_plane = plane,
    };
    if (m[0].format == m[1].format) {
        add_products(dev, m, g, 0, 2, a, false);
    } else {
        add_products(dev, m, g, 0, 1, a, false);
        a.y_at += plane;
        add_products(dev, m, g, 1, 1, a, false);
    }

    const vk_hidden_args h = {
        .gate_at = g->product_at,
        .up_at = g->product_at + plane,
        .ld = f,
        .h_at = g->hidden_at,
        .h_ld = (uint32_t)row_words_of(&m[2]),
        .n = f,
        .n_group = down.n_group,
        .flag_at = g->flag_at,
    };
    dispatch *hidden = round_dispatch(&dev->rounds->round, vk_kernels_hidden(dev, down.group), 0,
                                      &h, sizeof h);
    hidden->n_x = (uint32_t)vk_min(((uint64_t)down.n_group * down.group + 63) / 64, MAX_WORKGROUP);
    hidden->n_y = g->n_pair;
    hidden->n_z = 1;
    hidden->is_after_barrier = true;

    const vk_product_args b = {
        .row_at = VK_NONE,
        .x_at = g->hidden_at,
        .x_ld = h.h_ld,
        .y_at = g->result_at,
        .y_ld = d,
    };
    add_products(dev, m, g, 2, 1, b, true);
}

/* One round of the group: from *c on, which moves. */
static coli_bk_status issue_round(coli_bk_device *dev, const coli_bk_group *group, uint64_t n_pair,
                                  cursor *c)
{
    VK_TRY(round_begin(dev));
    vk_round *r = &dev->rounds->round;
    group_round g = {.begin = *c};
    plan_group(dev, group, &g);
    stage_group(dev, group, &g);
    add_group(dev, group, &g);
    const uint64_t row_bytes = 4 * (uint64_t)group->experts[0]->matrix[2].n_out;
    round_copy(r, g.result_at, c->pair * row_bytes, g.n_pair * row_bytes);
    round_copy(r, g.flag_at, n_pair * row_bytes + 4 * c->pair, 4 * (uint64_t)g.n_pair);
    run e;
    while (next_run(dev, group, &g, c, &e)) {
    }
    return round_submit(dev, dev->rounds->group_out.handle);
}

static coli_bk_status issue_rounds(coli_bk_device *dev, const coli_bk_group *group, uint64_t n_pair)
{
    vk_work *w = dev->rounds;
    const uint64_t row_bytes = 4 * (uint64_t)group->experts[0]->matrix[2].n_out;
    if (n_pair > UINT32_MAX || n_pair * row_bytes > (uint64_t)1 << 40)
        return vk_fail(&dev->host, COLI_BK_NOMEM, "vulkan: a group of %llu rows is too large",
                       (unsigned long long)n_pair);
    VK_TRY(need_readback(dev, &w->group_out, n_pair * (row_bytes + 4)));
    VK_TRY(need_tables(dev, n_pair, group->n_x));
    cursor c = {0};
    while (c.pair < n_pair) VK_TRY(issue_round(dev, group, n_pair, &c));
    return COLI_BK_OK;
}

coli_bk_status vk_work_issue(coli_bk_device *dev, const coli_bk_group *group)
{
    vk_work *w = dev->rounds;
    uint64_t n_pair = 0;
    for (uint32_t i = 0; i < group->n_expert; i++) n_pair += group->n_row[i];
    if (n_pair > 0) {
        const coli_bk_status status = issue_rounds(dev, group, n_pair);
        if (status) {
            drain(dev);
            return status;
        }
        w->d = group->experts[0]->matrix[2].n_out;
    }
    w->is_pending = true;
    w->pending_value = dev->work.issued;
    w->n_row = (uint32_t)n_pair;
    pthread_mutex_lock(&dev->stats_lock);
    dev->stats.n_group++;
    dev->stats.n_expert += group->n_expert;
    dev->stats.n_row += n_pair;
    pthread_mutex_unlock(&dev->stats_lock);
    return COLI_BK_OK;
}

coli_bk_status vk_work_take(coli_bk_device *dev, uint64_t limit_ns, coli_bk_result *out)
{
    vk_work *w = dev->rounds;
    if (!w->is_pending) return COLI_BK_EMPTY;
    w->is_pending = false;
    const coli_bk_status status = vk_stream_wait(dev, &dev->work, w->pending_value, limit_ns);
    if (status == COLI_BK_BUSY) {
        atomic_store(&dev->is_lost, true);
        return vk_fail(&dev->host, COLI_BK_LOST, "vulkan: %s: a group was not done within %llu ms",
                       dev->about.name, (unsigned long long)limit_ns / 1000000);
    }
    if (status) return status;
    read_all_stamps(dev);
    const uint32_t *flags = (const uint32_t *)w->group_out.map + (size_t)w->n_row * w->d;
    for (uint32_t i = 0; i < w->n_row; i++) w->flags[i] = flags[i] != 0;
    out->n_row = w->n_row;
    out->y = w->group_out.map;
    out->ld = w->d;
    out->flag = w->flags;
    return COLI_BK_OK;
}

bool vk_work_is_pending(const coli_bk_device *dev)
{
    return dev->rounds->is_pending;
}

/* ---- products --------------------------------------------------------------------------------- */

/* As many rows of `a`, from `first` on, as the round still takes; their results go to `to` in the
 * readback buffer.  0 when the round is full. */
static uint32_t add_matmul(coli_bk_device *dev, const coli_bk_matmul *a, uint32_t first, uint64_t to)
{
    vk_round *r = &dev->rounds->round;
    const coli_bk_matrix *m = a->w->matrix;
    const uint64_t x_ld = row_words(a->n_group, a->group), staged = x_ld + TILE_WORDS;
    if (r->n_dispatch == MAX_DISPATCH || r->n_copy == MAX_COPY) return 0;
    if (!round_fits(r, MATRIX_WORDS + SPARE_WORDS + staged, staged + m->n_out)) return 0;
    const uint32_t buffer = round_buffer(r, a->w->slice.chunk);
    if (buffer == MAX_BUFFER) return 0;
    uint64_t n = vk_min(a->n_row - first, MAX_PAIR);
    const uint64_t fixed = MATRIX_WORDS + 2 * SPARE_WORDS;
    n = vk_min(n, (r->max_staged - r->n_staged - fixed) / staged);
    n = vk_min(n, (r->scratch - r->n_staged - fixed) / (staged + m->n_out));
    const uint32_t n_row = (uint32_t)n;

    const vk_shape shape = vk_shape_for(n_row);
    vk_product_args args = {.row_at = VK_NONE, .x_ld = (uint32_t)x_ld, .y_ld = m->n_out};
    args.matrix_at = round_stage(r, MATRIX_WORDS);
    put_matrices(r, args.matrix_at, a->w, buffer);
    args.x_at = round_stage(r, n_row * x_ld);
    for (uint32_t i = 0; i < n_row; i++)
        put_row(r, args.x_at + i * args.x_ld,
                a->q + (size_t)(first + i) * a->n_group * a->group,
                a->d + (size_t)(first + i) * a->n_group, a->n_group, a->group);
    args.tile_at = r->n_staged;
    const uint32_t n_tile = stage_tiles_of(r, shape, 0, 0, n_row);
    args.y_at = round_scratch(r, (uint64_t)n_row * m->n_out);
    round_product(dev, m, 1, shape, buffer / VK_N_WEIGHT_BUFFER, n_tile, args);
    round_copy(r, args.y_at, to, 4 * (uint64_t)n_row * m->n_out);
    return n_row;
}

static coli_bk_status run_matmuls(coli_bk_device *dev, const coli_bk_matmul *const *args, uint32_t n)
{
    vk_work *w = dev->rounds;
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        n_bytes += 4 * (uint64_t)args[i]->n_row * (args[i]->n_row ? args[i]->w->matrix->n_out : 0);
        if (n_bytes > (uint64_t)1 << 40)
            return vk_fail(&dev->host, COLI_BK_NOMEM, "vulkan: the results are too large");
    }
    if (n_bytes == 0) return COLI_BK_OK;
    VK_TRY(need_readback(dev, &w->matmul_out, n_bytes));

    VK_TRY(round_begin(dev));
    uint64_t to = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t row = 0; row < args[i]->n_row;) {
            const uint32_t taken = add_matmul(dev, args[i], row, to);
            if (taken == 0) { // the round has something, because a single row fits an empty one
                VK_TRY(round_submit(dev, w->matmul_out.handle));
                VK_TRY(round_begin(dev));
            }
            row += taken;
            to += 4 * (uint64_t)taken * args[i]->w->matrix->n_out;
        }
    VK_TRY(round_submit(dev, w->matmul_out.handle));
    VK_TRY(vk_stream_finish(dev, &dev->work, dev->work.issued));
    read_all_stamps(dev);

    const float *from = w->matmul_out.map;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t row = 0; row < args[i]->n_row; row++) {
            const uint32_t n_out = args[i]->w->matrix->n_out;
            memcpy(args[i]->y + row * args[i]->ld, from, n_out * sizeof *from);
            from += n_out;
        }
    return COLI_BK_OK;
}

coli_bk_status vk_work_matmul(coli_bk_device *dev, const coli_bk_matmul *const *args, uint32_t n)
{
    const coli_bk_status status = run_matmuls(dev, args, n);
    if (status) {
        if (status != COLI_BK_LOST) drain(dev);
        return status;
    }
    pthread_mutex_lock(&dev->stats_lock);
    dev->stats.n_matmul += n;
    pthread_mutex_unlock(&dev->stats_lock);
    return COLI_BK_OK;
}
