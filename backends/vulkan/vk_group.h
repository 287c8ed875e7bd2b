/* vk_group.h - rows through experts.  For the work sequence. */
#ifndef COLI_VK_GROUP_H
#define COLI_VK_GROUP_H

#include "vk_base.h"

coli_bk_status vk_group_init(coli_bk_device *dev);
void vk_group_finish(coli_bk_device *dev);

/* UNSUPPORTED when the work buffer cannot take a single row through such an expert. */
coli_bk_status vk_group_check_shape(coli_bk_device *dev, const coli_bk_matrix matrix[3]);

bool vk_group_is_pending(const coli_bk_device *dev);
/* The arguments were checked by the caller; n_pair is the sum of n_row. */
coli_bk_status vk_group_issue(coli_bk_device *dev, const coli_bk_group *group, uint64_t n_pair);
coli_bk_status vk_group_take(coli_bk_device *dev, uint64_t limit_ns, coli_bk_result *out);

#endif
