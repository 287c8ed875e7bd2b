/* vk_instance.h - Vulkan itself, and which of its devices can be used. */
#ifndef COLI_VK_INSTANCE_H
#define COLI_VK_INSTANCE_H

#include "vk_base.h"

/* Functions of an instance.  (volk's own are global variables, which two instances would share.) */
#define VK_INSTANCE_FUNCTIONS(X)                                                                   \
    X(vkDestroyInstance)                                                                           \
    X(vkEnumeratePhysicalDevices)                                                                  \
    X(vkGetPhysicalDeviceProperties)                                                               \
    X(vkGetPhysicalDeviceProperties2)                                                              \
    X(vkGetPhysicalDeviceFeatures2)                                                                \
    X(vkGetPhysicalDeviceMemoryProperties2)                                                        \
    X(vkGetPhysicalDeviceQueueFamilyProperties)                                                    \
    X(vkEnumerateDeviceExtensionProperties)                                                        \
    X(vkCreateDevice)

typedef struct vk_instance {
    const coli_bk_host *host; // of whoever opened it
    VkInstance handle;
#define VK_INSTANCE_MEMBER(name) PFN_##name name;
    VK_INSTANCE_FUNCTIONS(VK_INSTANCE_MEMBER)
#undef VK_INSTANCE_MEMBER
    PFN_vkDestroyDebugUtilsMessengerEXT vkDestroyDebugUtilsMessengerEXT; // with validation
    VkDebugUtilsMessengerEXT messenger;
} vk_instance;

/* With `validate` (the option), every message of the validation layer becomes a warning of the
 * host's log.  *is_absent: VK_ABSENT (no failure is reported for that). */
#define VK_ABSENT "there is no Vulkan library on this machine, or no driver for it"
coli_bk_status vk_instance_open(const coli_bk_host *host, uint32_t validate, bool *is_absent,
                                vk_instance *out);
void vk_instance_close(vk_instance *instance);

/* Create the device and load its functions. */
VkResult vk_instance_create_device(vk_instance *instance, VkPhysicalDevice physical,
                                   const VkDeviceCreateInfo *info, VkDevice *out,
                                   struct VolkDeviceTable *functions);

/* Where the kernels' needs are named: eight weight buffers and the work buffer twice. */
enum { VK_N_WEIGHT_BUFFER = 8, VK_N_BINDING = VK_N_WEIGHT_BUFFER + 2 };

/* A device of the machine, and what this backend can do with it. */
typedef struct vk_candidate {
    VkPhysicalDevice handle;
    uint32_t kind; // COLI_BK_DISCRETE ...
    char name[128], driver[128], uuid[64];
    char unusable[256];  // the reason; "" when it can be used
    uint64_t heap_bytes; // of device memory
    uint32_t heap;
    uint64_t max_buffer_bytes;
    bool has_denorm_preserve, has_storage16, has_dot, is_dot_fast, has_budget;
    uint32_t min_subgroup, max_subgroup; // 0: its size cannot be chosen
    uint32_t tick_bits;                  // of time stamps; 0: there are none
    float ns_per_tick;
    uint32_t compute_family, copy_family;
    uint32_t copy_queue; // of copy_family
} vk_candidate;

/* Whether joins are computed on the device: it could flush denormals, which a weighted row may
 * be. */
static inline bool vk_options_join(const vk_options *options, const vk_candidate *c)
{
    return options->join == 1 || (options->join == 2 && c->has_denorm_preserve);
}

/* Memory for tensors; the largest buffer, a multiple of VK_SLICE_ALIGN. */
uint64_t vk_options_memory(const vk_options *options, const vk_candidate *c);
uint64_t vk_options_buffer(const vk_options *options, const vk_candidate *c);

/* Discrete before integrated before CPU devices, each kind in Vulkan's order.  vk_free(*out). */
coli_bk_status vk_instance_devices(const vk_instance *instance, vk_candidate **out, uint32_t *n);

#endif
