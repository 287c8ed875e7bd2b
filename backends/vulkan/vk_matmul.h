/* vk_matmul.h - products of single matrices.  For the work sequence. */
#ifndef COLI_VK_MATMUL_H
#define COLI_VK_MATMUL_H

#include "vk_base.h"

/* UNSUPPORTED when the work buffer cannot take a single row of such a matrix. */
coli_bk_status vk_matmul_check_shape(coli_bk_device *dev, const coli_bk_matrix *m);

/* The arguments were checked by the caller. */
coli_bk_status vk_matmul_run(coli_bk_device *dev, const coli_bk_matmul *const *args, uint32_t n);
void vk_matmul_finish(coli_bk_device *dev);

#endif
