/* vulkan_spirv.c - the compiled kernels, read as SPIR-V: every sum and product of floats stands
 * alone, and the execution modes ask for the rounding of coli/exact.h.  A compiler that fused or
 * reordered would show on some device, to some user; here it shows at once. */
#include <stdbool.h>

#include "t.h"

#include "vk_shaders.h"

/* Of the SPIR-V specification. */
enum {
    MAGIC = 0x07230203,
    N_HEADER = 5,
    OP_EXT_INST = 12,
    OP_EXECUTION_MODE = 16,
    OP_CAPABILITY = 17,
    OP_DECORATE = 71,
    OP_F_ADD = 129,
    OP_F_SUB = 131,
    OP_F_MUL = 133,
    OP_F_DIV = 136,
    OP_F_REM = 140,
    OP_F_MOD = 141,
    OP_VECTOR_TIMES_SCALAR = 142,
    OP_DOT = 148,
    OP_GROUP_FIRST = 259, // OpGroupAll ...
    OP_GROUP_LAST = 271,
    OP_SUBGROUP_FIRST = 333, // OpGroupNonUniformElect ...
    OP_SUBGROUP_LAST = 366,
    OP_S_DOT = 4450,
    DECORATION_NO_CONTRACTION = 42,
    MODE_DENORM_PRESERVE = 4459,
    MODE_SIGNED_ZERO_INF_NAN_PRESERVE = 4461,
    MODE_ROUNDING_RTE = 4462,
    CAPABILITY_STORAGE_BUFFER_16BIT = 4433,
    CAPABILITY_DOT_PRODUCT = 6019,
};

/* The functions of GLSL.std.450 that the kernels use: integers only (FindILsb and the like are not
 * among them).  None of floats is exact everywhere. */
static bool is_integer_function(uint32_t inst)
{
    enum {
        SABS = 5,
        SSIGN = 7,
        UMIN = 38,
        SMIN = 39,
        UMAX = 41,
        SMAX = 42,
        UCLAMP = 44,
        SCLAMP = 45
    };
    return inst == SABS || inst == SSIGN || inst == UMIN || inst == SMIN || inst == UMAX ||
           inst == SMAX || inst == UCLAMP || inst == SCLAMP;
}

typedef struct module {
    const uint32_t *code;
    size_t n_word;
    uint8_t *is_uncontracted; // by id
    uint32_t n_id;
} module;

#define EACH_INSTRUCTION(m, at)                                                                    \
    for (const uint32_t *at = (m)->code + N_HEADER; at < (m)->code + (m)->n_word; at += *at >> 16)

static module module_open(const vk_shader *s)
{
    T_EQ(s->n_bytes % 4, 0);
    T_EQ(s->code[0], MAGIC);
    module m = {.code = s->code, .n_word = s->n_bytes / 4, .n_id = s->code[3]};
    m.is_uncontracted = calloc(m.n_id, 1);
    T_TRUE(m.is_uncontracted);
    EACH_INSTRUCTION(&m, at)
    {
        T_TRUE(*at >> 16 > 0);
        if ((*at & 0xFFFF) == OP_DECORATE && at[2] == DECORATION_NO_CONTRACTION)
            m.is_uncontracted[at[1]] = 1;
    }
    return m;
}

static bool has(const module *m, uint32_t op, uint32_t operand, uint32_t value, uint32_t width)
{
    EACH_INSTRUCTION(m, at)
    if ((*at & 0xFFFF) == op && at[operand] == value && (width == 0 || at[operand + 1] == width))
        return true;
    return false;
}

static void floats_are_exact(void **state)
{
    T_BEGIN;
    for (size_t i = 0; i < sizeof vk_shaders / sizeof *vk_shaders; i++) {
        const vk_shader *s = &vk_shaders[i];
        module m = module_open(s);
        uint32_t n_float = 0;
        EACH_INSTRUCTION(&m, at)
        {
            const uint32_t op = *at & 0xFFFF;
            if (op >= OP_F_ADD && op <= OP_F_MUL && op % 2 == 1) { // between them: of integers
                n_float++;
                if (!m.is_uncontracted[at[2]])
                    print_error("%s: op %u, id %u\n", s->name, op, at[2]);
                T_TRUE(m.is_uncontracted[at[2]]);
            }
            const bool is_inexact = op == OP_F_DIV || (op >= OP_F_REM && op <= OP_DOT);
            const bool is_subgroup = (op >= OP_GROUP_FIRST && op <= OP_GROUP_LAST) ||
                                     (op >= OP_SUBGROUP_FIRST && op <= OP_SUBGROUP_LAST);
            const bool is_function = op == OP_EXT_INST && !is_integer_function(at[4]);
            if (is_inexact || is_subgroup || is_function)
                print_error("%s: op %u, operand %u\n", s->name, op, at[4]);
            T_TRUE(!is_inexact && !is_subgroup && !is_function);
        }
        T_TRUE(n_float > 1);
        free(m.is_uncontracted);
    }
}

static void modes_are_asked_for(void **state)
{
    T_BEGIN;
    for (size_t i = 0; i < sizeof vk_shaders / sizeof *vk_shaders; i++) {
        const vk_shader *s = &vk_shaders[i];
        module m = module_open(s);
        T_TRUE(has(&m, OP_EXECUTION_MODE, 2, MODE_ROUNDING_RTE, 32));
        T_TRUE(has(&m, OP_EXECUTION_MODE, 2, MODE_SIGNED_ZERO_INF_NAN_PRESERVE, 32));
        T_EQ(has(&m, OP_EXECUTION_MODE, 2, MODE_DENORM_PRESERVE, 32), s->denorm == 1);
        T_EQ(has(&m, OP_CAPABILITY, 1, CAPABILITY_DOT_PRODUCT, 0), s->dot == 1);
        T_EQ(has(&m, OP_CAPABILITY, 1, CAPABILITY_STORAGE_BUFFER_16BIT, 0), s->storage16 == 1);
        free(m.is_uncontracted);
    }
}

/* Each variant once, and all that a device could need. */
static void variants_are_complete(void **state)
{
    T_BEGIN;
    const size_t n = sizeof vk_shaders / sizeof *vk_shaders;
    uint32_t n_product = 0;
    for (size_t i = 0; i < n; i++) {
        const vk_shader *a = &vk_shaders[i];
        n_product += strcmp(a->name, "product") == 0;
        for (size_t j = 0; j < i; j++) {
            const vk_shader *b = &vk_shaders[j];
            T_TRUE(strcmp(a->name, b->name) != 0 || a->denorm != b->denorm || a->dot != b->dot ||
                   a->storage16 != b->storage16);
        }
    }
    T_EQ(n_product, 8);
    T_EQ(n, 8 + 2 + 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floats_are_exact),
        cmocka_unit_test(modes_are_asked_for),
        cmocka_unit_test(variants_are_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
