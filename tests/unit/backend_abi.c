/* backend_abi.c - the plugin ABI is what it was: sizes, places, values, signatures and the list.
 *
 * Everything here is settled when this file compiles.  A line that fails means that plugins which
 * people have would break: members are only added at the ends of structs, which changes their SIZE
 * here and nothing else, and brings a new minor version. */
#include "coli/backend.h"
#include "t.h"

/* The numbers are those of 64-bit systems, which are all that coli runs on. */
_Static_assert(sizeof(void *) == 8, "a 64-bit system");
#define SIZE(type, n_bytes) _Static_assert(sizeof(coli_bk_##type) == (n_bytes), "sizeof " #type);
#define AT(type, member, where)                                                                    \
    _Static_assert(offsetof(coli_bk_##type, member) == (where), #type "." #member);

// clang-format off
SIZE(layout, 40)
SIZE(host, 72)
AT(host, abi_minor, 4)
AT(host, ctx, 8)
AT(host, fail, 16)
AT(host, log, 24)
AT(host, clock_ns, 32)
AT(host, alloc, 40)
AT(host, free, 48)
AT(host, wait_limit_ns, 56)
AT(host, options, 64)
SIZE(device_info, 608)
AT(device_info, kind, 4)
AT(device_info, formats, 8)
AT(device_info, flags, 12)
AT(device_info, mem_total, 16)
AT(device_info, max_tensor_bytes, 24)
AT(device_info, name, 32)
AT(device_info, driver, 160)
AT(device_info, uuid, 288)
AT(device_info, unusable, 352)
SIZE(mem_info, 24)
AT(mem_info, is_assumed, 4)
AT(mem_info, free_bytes, 8)
AT(mem_info, total_bytes, 16)
SIZE(matrix, 24)
AT(matrix, format, 0)
AT(matrix, n_out, 4)
AT(matrix, n_in, 8)
AT(matrix, scale_exp, 12)
AT(matrix, offset, 16)
SIZE(source, 96)
AT(source, n_matrix, 4)
AT(source, data, 8)
AT(source, n_bytes, 16)
AT(source, matrix, 24)
SIZE(join, 8)
AT(join, n_term, 4)
SIZE(group, 96)
AT(group, n_expert, 4)
AT(group, experts, 8)
AT(group, n_row, 16)
AT(group, row, 24)
AT(group, n_x, 32)
AT(group, group, 36)
AT(group, n_group, 40)
AT(group, q, 48)
AT(group, d, 56)
AT(group, n_join, 64)
AT(group, n_term, 68)
AT(group, joins, 72)
AT(group, term_pair, 80)
AT(group, term_weight, 88)
SIZE(result, 32)
AT(result, n_row, 4)
AT(result, y, 8)
AT(result, ld, 16)
AT(result, flag, 24)
SIZE(matmul, 56)
AT(matmul, n_row, 4)
AT(matmul, w, 8)
AT(matmul, group, 16)
AT(matmul, n_group, 20)
AT(matmul, q, 24)
AT(matmul, d, 32)
AT(matmul, y, 40)
AT(matmul, ld, 48)
SIZE(group_stats, 88)
AT(group_stats, n_group, 8)
AT(group_stats, n_expert, 16)
AT(group_stats, n_row, 24)
AT(group_stats, n_matmul, 32)
AT(group_stats, upload_bytes, 40)
AT(group_stats, to_device_ms, 48)
AT(group_stats, kernel_ms, 56)
AT(group_stats, to_host_ms, 64)
AT(group_stats, upload_ms, 72)
AT(group_stats, clock_ms, 80)
SIZE(info, 184)
AT(info, struct_size, 8)
AT(info, abi_major, 12)
AT(info, abi_minor, 16)
AT(info, name, 24)
AT(info, build, 56)
// clang-format on

_Static_assert(COLI_BK_ABI_MAJOR == 1 && COLI_BK_ABI_MINOR == 1, "version");
_Static_assert(sizeof(COLI_BK_MAGIC) == 8, "magic");
_Static_assert(COLI_BK_OK == 0 && COLI_BK_INVALID == 1 && COLI_BK_NOMEM == 2 &&
                   COLI_BK_UNSUPPORTED == 3 && COLI_BK_FAILED == 4 && COLI_BK_LOST == 5 &&
                   COLI_BK_EMPTY == 6 && COLI_BK_BUSY == 7,
               "statuses");
_Static_assert(COLI_BK_I8_G64_F16 == 0 && COLI_BK_I8_G64_F32 == 1 && COLI_BK_I8_G32_F16 == 2 &&
                   COLI_BK_I8_G32_F32 == 3 && COLI_BK_I8_ROW_F16 == 4 && COLI_BK_I8_ROW_F32 == 5 &&
                   COLI_BK_I4_G64_F16 == 6 && COLI_BK_I4_G64_F32 == 7 && COLI_BK_I4_G32_F16 == 8 &&
                   COLI_BK_I4_G32_F32 == 9 && COLI_BK_I4_ROW_F16 == 10 &&
                   COLI_BK_I4_ROW_F32 == 11 && COLI_BK_N_FORMAT == 12,
               "formats");
_Static_assert(COLI_BK_LOG_DEBUG == 0 && COLI_BK_LOG_INFO == 1 && COLI_BK_LOG_WARNING == 2 &&
                   COLI_BK_ALLOC_PINNED == 1 && COLI_BK_CAN_JOIN == 1 && COLI_BK_PANEL == 16,
               "small numbers");
_Static_assert(COLI_BK_DISCRETE == 0 && COLI_BK_INTEGRATED == 1 && COLI_BK_CPU == 2 &&
                   COLI_BK_SIMULATED == 3,
               "kinds");

/* The services, and the list with its signatures, written out a second time. */
#define SERVICE(member, ...)                                                                       \
    _Static_assert(_Generic(((coli_bk_host *)0)->member, __VA_ARGS__ : 1, default : 0), #member);
SERVICE(fail, void (*)(void *, const char *))
SERVICE(log, void (*)(void *, int32_t, const char *))
SERVICE(clock_ns, uint64_t (*)(void *))
SERVICE(alloc, void *(*)(void *, uint64_t, uint64_t, uint32_t))
SERVICE(free, void (*)(void *, void *))

typedef int32_t (*fn_device_count)(const coli_bk_host *, uint32_t *);
typedef int32_t (*fn_device_info)(const coli_bk_host *, uint32_t, coli_bk_device_info *);
typedef int32_t (*fn_open)(const coli_bk_host *, uint32_t, coli_bk_device **);
typedef void (*fn_close)(coli_bk_device *);
typedef int32_t (*fn_mem_info)(coli_bk_device *, coli_bk_mem_info *);
typedef int32_t (*fn_tensor_upload)(coli_bk_device *, const coli_bk_source *, coli_bk_tensor **);
typedef void (*fn_tensor_free)(coli_bk_device *, coli_bk_tensor *);
typedef int32_t (*fn_group_issue)(coli_bk_device *, const coli_bk_group *);
typedef int32_t (*fn_group_take)(coli_bk_device *, uint64_t, coli_bk_result *);
typedef int32_t (*fn_tensor_overwrite)(coli_bk_device *, coli_bk_tensor *, const coli_bk_source *);
typedef int32_t (*fn_tensor_overwrite_async)(coli_bk_device *, coli_bk_tensor *,
                                             const coli_bk_source *, uint64_t *);
typedef int32_t (*fn_fence_poll)(coli_bk_device *, uint64_t, uint64_t);
typedef void *(*fn_host_alloc)(coli_bk_device *, uint64_t);
typedef void (*fn_host_free)(coli_bk_device *, void *);
typedef uint64_t (*fn_alloc_footprint)(coli_bk_device *, uint64_t);
typedef int32_t (*fn_matmul)(coli_bk_device *, const coli_bk_matmul *);
typedef int32_t (*fn_matmul_batch)(coli_bk_device *, const coli_bk_matmul *const *, uint32_t);
typedef int32_t (*fn_group_stats)(coli_bk_device *, coli_bk_group_stats *);

#define SIGNATURE(since, returns, name, parameters)                                                \
    _Static_assert(_Generic((returns(*) parameters)0, fn_##name : 1, default : 0), #name);
COLI_BACKEND_SYMBOLS(SIGNATURE, SIGNATURE)

/* Which are mandatory, and since when: nothing may join the former, ever. */
#define MANDATORY(since, returns, name, parameters) "M" #since " " #name "\n"
#define OPTIONAL(since, returns, name, parameters)  "O" #since " " #name "\n"
static const char list[] = COLI_BACKEND_SYMBOLS(MANDATORY, OPTIONAL);

T_TEST(the_list)
{
    T_BEGIN;
    T_STR(list, "M0 device_count\nM0 device_info\nM0 open\nM0 close\nM0 mem_info\n"
                "M0 tensor_upload\nM0 tensor_free\nM0 group_issue\nM0 group_take\n"
                "O0 tensor_overwrite\nO0 tensor_overwrite_async\nO0 fence_poll\nO0 host_alloc\n"
                "O0 host_free\nO0 alloc_footprint\nO1 matmul\nO1 matmul_batch\n"
                "O1 group_stats\n");
}

/* COLI_BK_HAS: a member counts when all of it is inside. */
T_TEST(has)
{
    T_BEGIN;
    coli_bk_group g = {.struct_size = offsetof(coli_bk_group, n_join)};
    T_TRUE(COLI_BK_HAS(&g, coli_bk_group, d));
    T_TRUE(!COLI_BK_HAS(&g, coli_bk_group, n_join));
    g.struct_size += 3;
    T_TRUE(!COLI_BK_HAS(&g, coli_bk_group, n_join));
    g.struct_size++;
    T_TRUE(COLI_BK_HAS(&g, coli_bk_group, n_join));
    T_TRUE(!COLI_BK_HAS(&g, coli_bk_group, n_term));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_list), cmocka_unit_test(has)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
