/* vk_instance.c - see vk_instance.h.
 *
 * volk finds the Vulkan library and keeps a few functions in global variables, so everything that
 * touches those is done under one lock; after that each instance and device has its own functions.
 *
 * A device is listed even when it cannot be used: then `unusable` says why.  What makes a device
 * usable is little: Vulkan 1.2, a compute queue, ten storage buffers of which eight are chosen by
 * an index, and float arithmetic that can be told to round to nearest even and to keep the sign of
 * zero.  Without the last, results could differ from the processor's, and nobody would notice. */
#include "vk_instance.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "vk_memory.h"

static pthread_mutex_t volk_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the instance --------------------------------------------------------------------------- */

static const char validation_layer[] = "VK_LAYER_KHRONOS_validation";

static VKAPI_ATTR VkBool32 VKAPI_CALL on_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                                 VkDebugUtilsMessageTypeFlagsEXT types,
                                                 const VkDebugUtilsMessengerCallbackDataEXT *data,
                                                 void *user)
{
    (void)severity;
    (void)types;
    vk_log(user, COLI_BK_LOG_WARNING, "vulkan: validation: %s", data->pMessage);
    return VK_FALSE;
}

static coli_bk_status add_messenger(vk_instance *in)
{
    const VkDebugUtilsMessengerCreateInfoEXT info = {
        .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
        .messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT |
                           VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
        .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT |
                       VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT,
        .pfnUserCallback = on_message,
        .pUserData = (void *)(uintptr_t)in->host,
    };
    const PFN_vkCreateDebugUtilsMessengerEXT create =
        (PFN_vkCreateDebugUtilsMessengerEXT)vkGetInstanceProcAddr(in->handle,
                                                                  "vkCreateDebugUtilsMessengerEXT");
    in->vkDestroyDebugUtilsMessengerEXT =
        (PFN_vkDestroyDebugUtilsMessengerEXT)vkGetInstanceProcAddr(
            in->handle, "vkDestroyDebugUtilsMessengerEXT");
    if (!create || !in->vkDestroyDebugUtilsMessengerEXT)
        return vk_fail(in->host, COLI_BK_FAILED, "vulkan: the validation layer has no messenger");
    const VkResult r = create(in->handle, &info, NULL, &in->messenger);
    return r ? vk_fail_result(in->host, r, "vkCreateDebugUtilsMessengerEXT") : COLI_BK_OK;
}

/* With validate=2: that commands which use the same memory are ordered.  The layer takes a binding
 * as a whole, so it suspects independent dispatches of one round that write different parts of a
 * buffer. */
static const VkValidationFeatureEnableEXT enabled_checks[] = {
    VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT,
};
static const VkValidationFeaturesEXT validation_features = {
    .sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
    .enabledValidationFeatureCount = sizeof enabled_checks / sizeof *enabled_checks,
    .pEnabledValidationFeatures = enabled_checks,
};

static coli_bk_status create_instance(vk_instance *in, uint32_t validate, bool *is_absent)
{
    static const char *const layers[] = {validation_layer};
    static const char *const extensions[] = {VK_EXT_DEBUG_UTILS_EXTENSION_NAME,
                                             VK_EXT_VALIDATION_FEATURES_EXTENSION_NAME};
    const VkApplicationInfo app = {
        .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
        .pApplicationName = "libcoli",
        .apiVersion = VK_API_VERSION_1_2,
    };
    const VkInstanceCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
        .pNext = validate > 1 ? &validation_features : NULL,
        .pApplicationInfo = &app,
        .enabledLayerCount = validate ? 1 : 0,
        .ppEnabledLayerNames = layers,
        .enabledExtensionCount = (uint32_t)vk_min(validate, 2),
        .ppEnabledExtensionNames = extensions,
    };
    const VkResult r = vkCreateInstance(&info, NULL, &in->handle);
    *is_absent = r == VK_ERROR_INCOMPATIBLE_DRIVER;
    if (*is_absent) return COLI_BK_OK;
    if (r == VK_ERROR_LAYER_NOT_PRESENT)
        return vk_fail(in->host, COLI_BK_FAILED, "vulkan: validate=: %s is not installed",
                       validation_layer);
    return r ? vk_fail_result(in->host, r, "vkCreateInstance") : COLI_BK_OK;
}

static coli_bk_status open_locked(vk_instance *in, uint32_t validate, bool *is_absent)
{
    if (volkInitialize() != VK_SUCCESS) {
        *is_absent = true;
        return COLI_BK_OK;
    }
    const uint32_t version = volkGetInstanceVersion();
    if (version < VK_API_VERSION_1_2)
        return vk_fail(in->host, COLI_BK_UNSUPPORTED,
                       "vulkan: the Vulkan library is version %u.%u; 1.2 is needed",
                       VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version));
    VK_TRY(create_instance(in, validate, is_absent));
    if (*is_absent) return COLI_BK_OK;
#define LOAD(name)                                                                                 \
    in->name = (PFN_##name)vkGetInstanceProcAddr(in->handle, #name);                               \
    if (!in->name) return vk_fail(in->host, COLI_BK_FAILED, "vulkan: there is no %s", #name);
    VK_INSTANCE_FUNCTIONS(LOAD)
#undef LOAD
    return validate ? add_messenger(in) : COLI_BK_OK;
}

coli_bk_status vk_instance_open(const coli_bk_host *host, uint32_t validate, bool *is_absent,
                                vk_instance *out)
{
    *out = (vk_instance){.host = host};
    *is_absent = false;
    pthread_mutex_lock(&volk_lock);
    const coli_bk_status status = open_locked(out, validate, is_absent);
    pthread_mutex_unlock(&volk_lock);
    if (status) vk_instance_close(out);
    return status;
}

void vk_instance_close(vk_instance *in)
{
    if (in->messenger) in->vkDestroyDebugUtilsMessengerEXT(in->handle, in->messenger, NULL);
    if (in->vkDestroyInstance) in->vkDestroyInstance(in->handle, NULL);
    *in = (vk_instance){0};
}

VkResult vk_instance_create_device(vk_instance *in, VkPhysicalDevice physical,
                                   const VkDeviceCreateInfo *info, VkDevice *out,
                                   struct VolkDeviceTable *functions)
{
    const VkResult r = in->vkCreateDevice(physical, info, NULL, out);
    if (r) return r;
    pthread_mutex_lock(&volk_lock);
    volkLoadInstanceOnly(in->handle); // for vkGetDeviceProcAddr
    volkLoadDeviceTable(functions, *out);
    pthread_mutex_unlock(&volk_lock);
    return VK_SUCCESS;
}

/* ---- its devices ---------------------------------------------------------------------------- */

static uint32_t kind_of(VkPhysicalDeviceType type)
{
    switch (type) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
        return COLI_BK_DISCRETE;
    case VK_PHYSICAL_DEVICE_TYPE_CPU:
        return COLI_BK_CPU;
    default:
        return COLI_BK_INTEGRATED;
    }
}

/* As nvidia-smi prints those of its vendor, plain for the others. */
static void print_uuid(char *to, size_t n, uint32_t vendor, const uint8_t u[VK_UUID_SIZE])
{
    enum { NVIDIA = 0x10DE };
    size_t at = (size_t)snprintf(to, n, "%s", vendor == NVIDIA ? "GPU-" : "");
    for (size_t i = 0; i < VK_UUID_SIZE; i++)
        at += (size_t)snprintf(to + at, n - at, "%s%02x",
                               i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u[i]);
}

static bool has_extension(const VkExtensionProperties *list, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(list[i].extensionName, name) == 0) return true;
    return false;
}

/* Queues: a family that computes, best one that does nothing else; for copies a family of its own,
 * else a second queue, else the same one.  False when nothing computes. */
static bool choose_queues(const vk_instance *in, vk_candidate *c)
{
    enum { MAX_FAMILY = 32 };
    VkQueueFamilyProperties families[MAX_FAMILY];
    uint32_t n = MAX_FAMILY;
    in->vkGetPhysicalDeviceQueueFamilyProperties(c->handle, &n, families);
    c->compute_family = c->copy_family = n;
    const VkQueueFlags copies_only = VK_QUEUE_TRANSFER_BIT | VK_QUEUE_SPARSE_BINDING_BIT |
                                     VK_QUEUE_PROTECTED_BIT; // and no video
    bool is_pure = false;
    for (uint32_t i = 0; i < n; i++) {
        const VkQueueFlags flags = families[i].queueFlags;
        if (flags & VK_QUEUE_COMPUTE_BIT) {
            const bool pure = !(flags & VK_QUEUE_GRAPHICS_BIT);
            if (c->compute_family == n || (pure && !is_pure)) c->compute_family = i;
            is_pure = is_pure || pure;
        } else if ((flags & VK_QUEUE_TRANSFER_BIT) && !(flags & ~copies_only) &&
                   c->copy_family == n) {
            c->copy_family = i;
        }
    }
    if (c->compute_family == n) return false;
    c->tick_bits = families[c->compute_family].timestampValidBits;
    if (c->copy_family == n) {
        c->copy_family = c->compute_family;
        c->copy_queue = families[c->compute_family].queueCount > 1;
    }
    return true;
}

/* The largest heap of device memory. */
static void choose_heap(const vk_instance *in, vk_candidate *c)
{
    VkPhysicalDeviceMemoryProperties2 m = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
    in->vkGetPhysicalDeviceMemoryProperties2(c->handle, &m);
    for (uint32_t i = 0; i < m.memoryProperties.memoryHeapCount; i++) {
        const VkMemoryHeap *heap = &m.memoryProperties.memoryHeaps[i];
        if ((heap->flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) && heap->size > c->heap_bytes) {
            c->heap_bytes = heap->size;
            c->heap = i;
        }
    }
}

/* Why the device cannot be used; NULL when it can. */
static const char *obstacle(const VkPhysicalDeviceLimits *limits,
                            const VkPhysicalDeviceVulkan12Properties *p12,
                            const VkPhysicalDeviceFeatures *f,
                            const VkPhysicalDeviceVulkan12Features *f12)
{
    if (!p12->shaderRoundingModeRTEFloat32 ||
        p12->roundingModeIndependence == VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_NONE)
        return "floats cannot be told to round to nearest even (shaderRoundingModeRTEFloat32)";
    if (!p12->shaderSignedZeroInfNanPreserveFloat32)
        return "floats need not keep signed zeros (shaderSignedZeroInfNanPreserveFloat32)";
    if (!f12->timelineSemaphore) return "no timeline semaphores (timelineSemaphore)";
    if (!f->shaderStorageBufferArrayDynamicIndexing ||
        limits->maxPerStageDescriptorStorageBuffers < VK_N_BINDING)
        return "a kernel cannot choose among eight storage buffers "
               "(shaderStorageBufferArrayDynamicIndexing, maxPerStageDescriptorStorageBuffers)";
    return NULL;
}

/* What needs Vulkan 1.2 to be asked. */
static coli_bk_status examine(const vk_instance *in, vk_candidate *c)
{
    uint32_t n_ext = 0;
    VkResult r = in->vkEnumerateDeviceExtensionProperties(c->handle, NULL, &n_ext, NULL);
    if (r) return vk_fail_result(in->host, r, "vkEnumerateDeviceExtensionProperties");
    VkExtensionProperties *ext = vk_alloc(in->host, ((uint64_t)n_ext + 1) * sizeof *ext);
    if (!ext) return vk_fail(in->host, COLI_BK_NOMEM, "vulkan: no memory to list extensions");
    r = in->vkEnumerateDeviceExtensionProperties(c->handle, NULL, &n_ext, ext);
    const bool has_dot_extension =
        has_extension(ext, n_ext, VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME);
    const bool has_subgroup_extension =
        has_extension(ext, n_ext, VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME);
    c->has_budget = has_extension(ext, n_ext, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    vk_free(in->host, ext);
    if (r) return vk_fail_result(in->host, r, "vkEnumerateDeviceExtensionProperties");

    // Structures of an extension that is absent are left out of the chains.
    VkPhysicalDeviceShaderIntegerDotProductPropertiesKHR p_dot = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES_KHR};
    VkPhysicalDeviceSubgroupSizeControlPropertiesEXT p_subgroup = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES_EXT};
    VkPhysicalDeviceVulkan12Properties p12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES};
    VkPhysicalDeviceVulkan11Properties p11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES, .pNext = &p12};
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                     .pNext = &p11};
    VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR f_dot = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR};
    VkPhysicalDeviceSubgroupSizeControlFeaturesEXT f_subgroup = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES_EXT};
    VkPhysicalDeviceVulkan12Features f12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    VkPhysicalDeviceVulkan11Features f11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, .pNext = &f12};
    VkPhysicalDeviceFeatures2 f = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                   .pNext = &f11};
    if (has_dot_extension) {
        p_dot.pNext = p.pNext;
        p.pNext = &p_dot;
        f_dot.pNext = f.pNext;
        f.pNext = &f_dot;
    }
    if (has_subgroup_extension) {
        p_subgroup.pNext = p.pNext;
        p.pNext = &p_subgroup;
        f_subgroup.pNext = f.pNext;
        f.pNext = &f_subgroup;
    }
    in->vkGetPhysicalDeviceProperties2(c->handle, &p);
    in->vkGetPhysicalDeviceFeatures2(c->handle, &f);

    const VkPhysicalDeviceLimits *limits = &p.properties.limits;
    snprintf(c->driver, sizeof c->driver, "%.60s %.60s", p12.driverName, p12.driverInfo);
    print_uuid(c->uuid, sizeof c->uuid, p.properties.vendorID, p11.deviceUUID);
    c->max_buffer_bytes = vk_min(limits->maxStorageBufferRange, p11.maxMemoryAllocationSize);
    c->has_denorm_preserve =
        p12.shaderDenormPreserveFloat32 &&
        p12.denormBehaviorIndependence != VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_NONE;
    c->has_storage16 = f11.storageBuffer16BitAccess;
    c->has_dot = f_dot.shaderIntegerDotProduct;
    c->is_dot_fast = c->has_dot && p_dot.integerDotProduct4x8BitPackedSignedAccelerated;
    if (f_subgroup.subgroupSizeControl &&
        (p_subgroup.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT)) {
        c->min_subgroup = p_subgroup.minSubgroupSize;
        c->max_subgroup = p_subgroup.maxSubgroupSize;
    }
    const char *reason = obstacle(limits, &p12, &f.features, &f12);
    if (!choose_queues(in, c)) reason = "no queue that computes";
    c->ns_per_tick = limits->timestampPeriod;
    if (reason) snprintf(c->unusable, sizeof c->unusable, "%s", reason);
    return COLI_BK_OK;
}

uint64_t vk_options_memory(const vk_options *options, const vk_candidate *c)
{
    return options->memory_bytes ? vk_min(options->memory_bytes, c->heap_bytes) : c->heap_bytes;
}

uint64_t vk_options_buffer(const vk_options *options, const vk_candidate *c)
{
    const uint64_t n_bytes = options->buffer_bytes
                                 ? vk_min(options->buffer_bytes, c->max_buffer_bytes)
                                 : c->max_buffer_bytes;
    return n_bytes & ~(uint64_t)(VK_SLICE_ALIGN - 1);
}

static coli_bk_status describe(const vk_instance *in, VkPhysicalDevice handle, vk_candidate *c)
{
    VkPhysicalDeviceProperties p;
    in->vkGetPhysicalDeviceProperties(handle, &p);
    *c = (vk_candidate){.handle = handle, .kind = kind_of(p.deviceType)};
    snprintf(c->name, sizeof c->name, "%.127s", p.deviceName);
    choose_heap(in, c);
    if (p.apiVersion < VK_API_VERSION_1_2) {
        snprintf(c->unusable, sizeof c->unusable, "its driver is for Vulkan %u.%u; 1.2 is needed",
                 VK_API_VERSION_MAJOR(p.apiVersion), VK_API_VERSION_MINOR(p.apiVersion));
        return COLI_BK_OK;
    }
    return examine(in, c);
}

coli_bk_status vk_instance_devices(const vk_instance *in, vk_candidate **out, uint32_t *n)
{
    *out = NULL;
    *n = 0;
    uint32_t n_found = 0;
    VkResult r = in->vkEnumeratePhysicalDevices(in->handle, &n_found, NULL);
    if (r) return vk_fail_result(in->host, r, "vkEnumeratePhysicalDevices");
    VkPhysicalDevice *found =
        vk_alloc(in->host, ((uint64_t)n_found + 1) * sizeof(VkPhysicalDevice));
    vk_candidate *list = vk_alloc(in->host, ((uint64_t)n_found + 1) * sizeof *list);
    coli_bk_status status = COLI_BK_OK;
    if (!found || !list) {
        status = vk_fail(in->host, COLI_BK_NOMEM, "vulkan: no memory to list devices");
        goto out;
    }
    r = in->vkEnumeratePhysicalDevices(in->handle, &n_found, found);
    if (r < 0) {
        status = vk_fail_result(in->host, r, "vkEnumeratePhysicalDevices");
        goto out;
    }
    for (uint32_t i = 0; i < n_found; i++) {
        vk_candidate c;
        status = describe(in, found[i], &c);
        if (status) goto out;
        uint32_t at = i; // behind those of its kind
        for (; at > 0 && list[at - 1].kind > c.kind; at--) list[at] = list[at - 1];
        list[at] = c;
    }
    *out = list;
    *n = n_found;
    list = NULL;
out:
    vk_free(in->host, found);
    vk_free(in->host, list);
    return status;
}
