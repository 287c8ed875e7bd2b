/* vk_kernels.h - the compute kernels: their constants, and a pipeline for each of their
 * variants. */
#ifndef COLI_VK_KERNELS_H
#define COLI_VK_KERNELS_H

#include <pthread.h>

#include "vk_base.h"

/* How the lanes of product.comp are used: for one row of activations, for a few, for many. */
typedef enum vk_shape { VK_ONE, VK_FEW, VK_MANY, VK_N_SHAPE } vk_shape;

typedef struct vk_shape_info {
    uint32_t n_split, n_side, n_row;
    uint32_t tile; // rows of a tile: n_side * n_row
} vk_shape_info;
extern const vk_shape_info vk_shapes[VK_N_SHAPE];

vk_shape vk_shape_for(uint32_t n_row); // of one expert or matrix
/* Every split takes 2^this groups. */
uint32_t vk_split_log2(vk_shape shape, uint32_t n_group);

/* The push constants of product.comp, hidden.comp and join.comp, in their order; positions in
 * words. */
enum { VK_NONE = 0xFFFFFFFF };

typedef struct vk_product_args {
    uint32_t tile_at, matrix_at, row_at;
    uint32_t x_at, x_ld;
    uint32_t y_at, y_ld, y_plane;
    uint32_t n_out, n_group;
    uint32_t split_log2, n_slice, first_matrix;
} vk_product_args;

typedef struct vk_hidden_args {
    uint32_t gate_at, up_at, ld;
    uint32_t h_at, h_ld;
    uint32_t n, n_group;
    uint32_t flag_at;
} vk_hidden_args;

typedef struct vk_join_args {
    uint32_t row_at, term_at;
    uint32_t y_at, out_at;
    uint32_t d;
} vk_join_args;

enum { VK_MAX_ARGS_BYTES = 64 };

typedef struct vk_kernels {
    VkDescriptorSetLayout set_layout;
    VkDescriptorPool pool;
    VkPipelineLayout layout;
    VkShaderModule product_module, hidden_module, join_module;

    /* Made under `lock` when a tensor that needs them is uploaded.  An entry does not change any
     * more once the work sequence may use it, so that one reads without the lock. */
    pthread_mutex_t lock;
    VkPipeline product[COLI_BK_N_FORMAT][VK_N_SHAPE][2]; // [1]: for very long rows
    VkPipeline hidden[2];                                // groups of 32, of 64
    VkPipeline join;
} vk_kernels;

coli_bk_status vk_kernels_init(coli_bk_device *dev);
void vk_kernels_finish(coli_bk_device *dev);

/* Make the pipelines for a tensor of these matrices. */
coli_bk_status vk_kernels_need(coli_bk_device *dev, const coli_bk_matrix *matrix,
                               uint32_t n_matrix);

VkPipeline vk_kernels_product(const coli_bk_device *dev, uint32_t format, vk_shape shape,
                              uint32_t n_group);
VkPipeline vk_kernels_hidden(const coli_bk_device *dev, uint32_t group);

#endif
