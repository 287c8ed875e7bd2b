/* vk_work.h - groups of experts and products of matrices: the calls of the work sequence. */
#ifndef COLI_VK_WORK_H
#define COLI_VK_WORK_H

#include "vk_base.h"

coli_bk_status vk_work_init(coli_bk_device *dev);
void vk_work_finish(coli_bk_device *dev);

/* UNSUPPORTED when the work buffer cannot take a single row of such a tensor. */
coli_bk_status vk_work_check_shape(coli_bk_device *dev, const coli_bk_matrix *matrix,
                                   uint32_t n_matrix);

/* The arguments were checked by the caller. */
coli_bk_status vk_work_issue(coli_bk_device *dev, const coli_bk_group *group);
coli_bk_status vk_work_take(coli_bk_device *dev, uint64_t limit_ns, coli_bk_result *out);
bool vk_work_is_pending(const coli_bk_device *dev);
coli_bk_status vk_work_matmul(coli_bk_device *dev, const coli_bk_matmul *const *args, uint32_t n);

#endif
