/* vk_round.h - one submission of work: what is staged, which kernels run, what is copied back.
 *
 * Work of any size goes through buffers of a fixed size that are made when the device is opened:
 * nothing that a token needs is allocated later, so a device full of experts still computes.  A
 * group or a list of products is cut into rounds:
 *
 *     host     fills the slot's staging: tables and quantised rows         one copy to the device
 *     device   dispatches, with barriers between those that depend on each other
 *              copies the results to readback memory
 *
 *     work buffer   [ staged: tables, rows | ->          <- | scratch: products, hidden rows,
 * results ]
 *
 * What is staged stands at the beginning of the work buffer, at the same positions as in the
 * staging; scratch is taken from the end.  A round is full when the two would meet, when the slot's
 * staging is, or when the weights lie in more buffers than the slot's descriptor sets can name.
 * The next round begins behind a barrier, so it may use the same memory.
 *
 * Weight buffers.  A kernel sees eight at a time (a window, one descriptor set).  The buffers of a
 * round are numbered as they come, and the tiles of one window are one dispatch: usually there is
 * only one.
 *
 * Tiles.  A tile is one matrix and up to 1, 4 or 16 rows (vk_shape), for which a workgroup reads a
 * panel of weights once.
 *
 * Positions are counted in words of 32 bits.  All of this belongs to the work sequence. */
#ifndef COLI_VK_ROUND_H
#define COLI_VK_ROUND_H

#include "vk_device.h"

enum {
    VK_MAX_ROUND_BUFFER = VK_N_SET * VK_N_WEIGHT_BUFFER,
    VK_MAX_DISPATCH = 128,
    VK_MAX_COPY = 64,
    VK_MAX_PAIR = 32768, // rows of a dispatch, and so its tiles: below Vulkan's 65535 workgroups
    VK_MATRIX_WORDS = 4,
    VK_TILE_WORDS = 4,
    VK_SPARE_WORDS = 64, // of a round, for regions that begin at multiples of four
};

typedef struct vk_dispatch {
    VkPipeline pipeline;
    uint32_t set;
    uint32_t n_x, n_y, n_z;
    bool is_after_barrier; // it reads what those before it wrote
    uint32_t n_args_bytes;
    uint32_t args[VK_MAX_ARGS_BYTES / 4];
} vk_dispatch;

typedef struct vk_round {
    vk_slot *slot;
    uint32_t *staged;              // the slot's staging
    uint32_t n_staged, max_staged; // words
    uint32_t scratch;              // words: begins here
    const vk_chunk *buffers[VK_MAX_ROUND_BUFFER];
    uint32_t n_buffer;
    vk_dispatch dispatches[VK_MAX_DISPATCH];
    uint32_t n_dispatch;
    VkBufferCopy copies[VK_MAX_COPY]; // to the readback buffer
    uint32_t n_copy;
} vk_round;

/* What all rounds share. */
typedef struct vk_rounds {
    vk_buffer buffer; // the work buffer
    uint32_t n_word;  // of it
    VkQueryPool stamps;
    vk_round round;
} vk_rounds;

coli_bk_status vk_rounds_init(coli_bk_device *dev);
void vk_rounds_finish(coli_bk_device *dev);

/* UNSUPPORTED, naming the shape, when so many words do not fit an empty round. */
coli_bk_status vk_rounds_check(coli_bk_device *dev, const coli_bk_matrix *m, uint64_t staged,
                               uint64_t scratch);

coli_bk_status vk_round_begin(coli_bk_device *dev, vk_round **out);
/* Whether so many words more can be staged and taken as scratch. */
bool vk_round_fits(const vk_round *round, uint64_t staged, uint64_t scratch);
/* n words to be staged, or of scratch.  The position is a multiple of four. */
uint32_t vk_round_stage(vk_round *round, uint64_t n);
uint32_t vk_round_scratch(vk_round *round, uint64_t n);
/* The number of a weight buffer in the round; VK_MAX_ROUND_BUFFER when there is no room for
 * another. Its window is the number / VK_N_WEIGHT_BUFFER. */
uint32_t vk_round_buffer(vk_round *round, const vk_chunk *chunk);

/* Fill what was staged at `at`: the entries of a tensor's matrices; a quantised row, with the sums
 * of its groups. */
void vk_round_put_matrices(vk_round *round, uint32_t at, const coli_bk_tensor *t, uint32_t buffer);
void vk_round_put_row(vk_round *round, uint32_t at, const int8_t *q, const float *d,
                      uint32_t n_group, uint32_t group);
/* Stage tiles of the pairs first_pair .. first_pair+n_row-1 of a matrix; how many. */
uint32_t vk_round_put_tiles(vk_round *round, vk_shape shape, uint32_t matrix, uint32_t first_pair,
                            uint32_t n_row);

/* Products with the tiles at args.tile_at of n_matrix matrices that are all like *m.  Fills the
 * members of args from n_out to n_slice. */
vk_dispatch *vk_round_product(coli_bk_device *dev, const coli_bk_matrix *m, uint32_t n_matrix,
                              vk_shape shape, uint32_t set, uint32_t n_tile, vk_product_args args);
vk_dispatch *vk_round_dispatch(vk_round *round, VkPipeline pipeline, uint32_t set, const void *args,
                               uint32_t n_args_bytes);
/* Copy n_bytes at `word` of the work buffer to byte `to` of the readback buffer. */
void vk_round_copy(vk_round *round, uint32_t word, uint64_t to, uint64_t n_bytes);

coli_bk_status vk_round_submit(coli_bk_device *dev, VkBuffer readback);

/* Room for n_bytes in a readback buffer; its old content is lost. */
coli_bk_status vk_readback_need(coli_bk_device *dev, vk_buffer *buffer, uint64_t n_bytes);
/* Add the times of rounds that are done to the statistics. */
void vk_rounds_read_stamps(coli_bk_device *dev);

/* Words of a quantised row: q, scales, sums. */
static inline uint64_t vk_row_words(uint32_t n_group, uint32_t group)
{
    return vk_round_up((uint64_t)n_group * (group / 4 + 2), 4);
}
static inline uint64_t vk_row_words_of(const coli_bk_matrix *m)
{
    const coli_bk_layout l = coli_bk_layout_of(m->format, m->n_in);
    return vk_row_words(l.n_group, l.group);
}

#endif
