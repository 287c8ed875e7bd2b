/* vk_kernels.c - see vk_kernels.h.
 *
 * A kernel exists in variants of SPIR-V, for what a device can do (vk_shaders.h is made by the
 * build), and each module in variants of specialisation constants: the weight format, and how the
 * lanes are used.  A pipeline is made when the first tensor that needs it is uploaded, because
 * making it can take longer than a token. */
#include "vk_kernels.h"

#include <string.h>

#include "vk_device.h"
#include "vk_shaders.h"

/* 64 lanes: sixteen rows of weights by four. */
const vk_shape_info vk_shapes[VK_N_SHAPE] = {
    [VK_ONE] = {.n_split = 4, .n_side = 1, .n_row = 1, .tile = 1},
    [VK_FEW] = {.n_split = 4, .n_side = 1, .n_row = 4, .tile = 4},
    [VK_MANY] = {.n_split = 1, .n_side = 4, .n_row = 4, .tile = 16},
};

vk_shape vk_shape_for(uint32_t n_row)
{
    // Up to eight rows two tiles of a few are still better than half of a tile of many.
    return n_row <= 1 ? VK_ONE : n_row <= 8 ? VK_FEW : VK_MANY;
}

uint32_t vk_split_log2(vk_shape shape, uint32_t n_group)
{
    uint32_t log2 = 0;
    while ((uint64_t)vk_shapes[shape].n_split << log2 < n_group) log2++;
    return log2;
}

/* Levels of a lane's tree: for rows of up to 64 groups a split, and for as long as there are
 * any. */
static const uint32_t n_level_of[2] = {7, 28};

static bool is_long(vk_shape shape, uint32_t n_group)
{
    return vk_split_log2(shape, n_group) >= n_level_of[0];
}

/* ---- layouts and modules -------------------------------------------------------------------- */

static coli_bk_status create_layouts(coli_bk_device *dev)
{
    const VkDescriptorSetLayoutBinding bindings[] = {
        {0, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, VK_N_WEIGHT_BUFFER, VK_SHADER_STAGE_COMPUTE_BIT,
         NULL},
        {1, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL},
        {2, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL},
    };
    const VkDescriptorSetLayoutCreateInfo set_info = {
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
        .bindingCount = sizeof bindings / sizeof *bindings,
        .pBindings = bindings,
    };
    vk_kernels *k = &dev->kernels;
    VkResult r = dev->vk.vkCreateDescriptorSetLayout(dev->handle, &set_info, NULL, &k->set_layout);
    if (r) return vk_device_fail(dev, r, "vkCreateDescriptorSetLayout");

    const VkPushConstantRange range = {VK_SHADER_STAGE_COMPUTE_BIT, 0, VK_MAX_ARGS_BYTES};
    const VkPipelineLayoutCreateInfo layout_info = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
        .setLayoutCount = 1,
        .pSetLayouts = &k->set_layout,
        .pushConstantRangeCount = 1,
        .pPushConstantRanges = &range,
    };
    r = dev->vk.vkCreatePipelineLayout(dev->handle, &layout_info, NULL, &k->layout);
    if (r) return vk_device_fail(dev, r, "vkCreatePipelineLayout");

    enum { N_SETS = VK_N_SLOT * VK_N_SET };
    const VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, N_SETS * VK_N_BINDING};
    const VkDescriptorPoolCreateInfo pool_info = {
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
        .maxSets = N_SETS,
        .poolSizeCount = 1,
        .pPoolSizes = &size,
    };
    r = dev->vk.vkCreateDescriptorPool(dev->handle, &pool_info, NULL, &k->pool);
    return r ? vk_device_fail(dev, r, "vkCreateDescriptorPool") : COLI_BK_OK;
}

static coli_bk_status create_module(coli_bk_device *dev, const char *name, VkShaderModule *out)
{
    const bool has_dot = dev->about.has_dot && (dev->options.dot == 1 ||
                                                (dev->options.dot == 2 && dev->about.is_dot_fast));
    const bool has_storage16 = dev->about.has_storage16 && dev->options.storage16;
    for (size_t i = 0; i < sizeof vk_shaders / sizeof *vk_shaders; i++) {
        const vk_shader *s = &vk_shaders[i];
        // what does not concern a kernel is -1
        if (strcmp(s->name, name) != 0 || s->denorm == !dev->about.has_denorm_preserve ||
            s->dot == !has_dot || s->storage16 == !has_storage16)
            continue;
        const VkShaderModuleCreateInfo info = {
            .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
            .codeSize = s->n_bytes,
            .pCode = s->code,
        };
        const VkResult r = dev->vk.vkCreateShaderModule(dev->handle, &info, NULL, out);
        return r ? vk_device_fail(dev, r, "vkCreateShaderModule") : COLI_BK_OK;
    }
    return vk_fail(&dev->host, COLI_BK_FAILED, "vulkan: no variant of kernel %s fits", name);
}

coli_bk_status vk_kernels_init(coli_bk_device *dev)
{
    VK_TRY(create_layouts(dev));
    VK_TRY(create_module(dev, "product", &dev->kernels.product_module));
    VK_TRY(create_module(dev, "hidden", &dev->kernels.hidden_module));
    return create_module(dev, "join", &dev->kernels.join_module);
}

void vk_kernels_finish(coli_bk_device *dev)
{
    vk_kernels *k = &dev->kernels;
    VkPipeline *const products = &k->product[0][0][0];
    for (size_t i = 0; i < sizeof k->product / sizeof *products; i++)
        dev->vk.vkDestroyPipeline(dev->handle, products[i], NULL);
    for (size_t i = 0; i < 2; i++) dev->vk.vkDestroyPipeline(dev->handle, k->hidden[i], NULL);
    dev->vk.vkDestroyPipeline(dev->handle, k->join, NULL);
    dev->vk.vkDestroyShaderModule(dev->handle, k->product_module, NULL);
    dev->vk.vkDestroyShaderModule(dev->handle, k->hidden_module, NULL);
    dev->vk.vkDestroyShaderModule(dev->handle, k->join_module, NULL);
    dev->vk.vkDestroyDescriptorPool(dev->handle, k->pool, NULL);
    dev->vk.vkDestroyPipelineLayout(dev->handle, k->layout, NULL);
    dev->vk.vkDestroyDescriptorSetLayout(dev->handle, k->set_layout, NULL);
}

/* ---- pipelines ------------------------------------------------------------------------------ */

/* constants[i] is constant_id i of the kernel, as far as it has one. */
static coli_bk_status create_pipeline(coli_bk_device *dev, VkShaderModule module,
                                      const uint32_t *constants, uint32_t n_constant,
                                      VkPipeline *out)
{
    enum { MAX_CONSTANT = 8 };
    VkSpecializationMapEntry entries[MAX_CONSTANT];
    for (uint32_t i = 0; i < n_constant; i++) entries[i] = (VkSpecializationMapEntry){i, 4 * i, 4};
    const VkSpecializationInfo specialization = {n_constant, entries, 4 * n_constant, constants};
    const VkPipelineShaderStageRequiredSubgroupSizeCreateInfoEXT subgroup = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO_EXT,
        .requiredSubgroupSize = dev->options.subgroup,
    };
    const VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .pNext = dev->options.subgroup ? &subgroup : NULL,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = module,
                  .pName = "main",
                  .pSpecializationInfo = &specialization},
        .layout = dev->kernels.layout,
    };
    const VkResult r =
        dev->vk.vkCreateComputePipelines(dev->handle, VK_NULL_HANDLE, 1, &info, NULL, out);
    return r ? vk_device_fail(dev, r, "vkCreateComputePipelines") : COLI_BK_OK;
}

/* What a tensor of three matrices needs besides products. */
static coli_bk_status need_expert(coli_bk_device *dev, uint32_t down_format)
{
    const uint32_t group = coli_bk_layout_of(down_format, 1).group;
    const uint32_t constants[] = {0, 0, 0, 0, 0, group};
    VkPipeline *hidden = &dev->kernels.hidden[group == 64], *join = &dev->kernels.join;
    if (!*hidden)
        VK_TRY(create_pipeline(dev, dev->kernels.hidden_module, constants,
                               sizeof constants / sizeof *constants, hidden));
    return *join ? COLI_BK_OK : create_pipeline(dev, dev->kernels.join_module, NULL, 0, join);
}

static coli_bk_status need_product(coli_bk_device *dev, uint32_t format, uint32_t n_in)
{
    const coli_bk_layout l = coli_bk_layout_of(format, n_in);
    for (vk_shape shape = 0; shape < VK_N_SHAPE; shape++) {
        const vk_shape_info *s = &vk_shapes[shape];
        const bool is_deep = is_long(shape, l.n_group);
        VkPipeline *at = &dev->kernels.product[format][shape][is_deep];
        const uint32_t constants[] = {s->n_split * s->n_side,
                                      s->n_split,
                                      s->n_row,
                                      n_level_of[is_deep],
                                      l.bits,
                                      l.group,
                                      l.per_row,
                                      l.scale_bytes};
        if (!*at)
            VK_TRY(create_pipeline(dev, dev->kernels.product_module, constants,
                                   sizeof constants / sizeof *constants, at));
    }
    return COLI_BK_OK;
}

coli_bk_status vk_kernels_need(coli_bk_device *dev, const coli_bk_matrix *matrix, uint32_t n_matrix)
{
    pthread_mutex_lock(&dev->kernels.lock);
    coli_bk_status status = COLI_BK_OK;
    for (uint32_t i = 0; i < n_matrix && !status; i++)
        status = need_product(dev, matrix[i].format, matrix[i].n_in);
    if (n_matrix == 3 && !status) status = need_expert(dev, matrix[2].format);
    pthread_mutex_unlock(&dev->kernels.lock);
    return status;
}

VkPipeline vk_kernels_product(const coli_bk_device *dev, uint32_t format, vk_shape shape,
                              uint32_t n_group)
{
    return dev->kernels.product[format][shape][is_long(shape, n_group)];
}

VkPipeline vk_kernels_hidden(const coli_bk_device *dev, uint32_t group)
{
    return dev->kernels.hidden[group == 64];
}
