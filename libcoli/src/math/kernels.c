/* kernels.c - which table this processor may run.
 *
 * CPUID says what the processor can do, XGETBV whether the operating system saves the wide
 * registers across a context switch; without the second, the first must not be used. */
#include "kernels.h"

#include <string.h>

#include "kernels_impl.h"

#if defined(__x86_64__)
#include <cpuid.h>

typedef struct feature {
    const char *name;
    uint32_t leaf, reg, bit; // reg: 0 eax, 1 ebx, 2 ecx, 3 edx
    uint32_t xcr0;           // register state that the system must save
} feature;

enum { YMM = 0x06, ZMM = 0xE6 };

static const feature avx2_needs[] = {
    {"AVX", 1, 2, 28, YMM}, {"F16C", 1, 2, 29, YMM}, {"AVX2", 7, 1, 5, YMM}, {NULL, 0, 0, 0, 0}};
static const feature avx512_needs[] = {
    {"AVX", 1, 2, 28, YMM},      {"F16C", 1, 2, 29, YMM},        {"AVX2", 7, 1, 5, YMM},
    {"AVX512F", 7, 1, 16, ZMM},  {"AVX512DQ", 7, 1, 17, ZMM},    {"AVX512BW", 7, 1, 30, ZMM},
    {"AVX512VL", 7, 1, 31, ZMM}, {"AVX512_VNNI", 7, 2, 11, ZMM}, {NULL, 0, 0, 0, 0}};

static uint32_t enabled_state(void) // XCR0, 0 when it cannot be read
{
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1u)) return 0; // OSXSAVE
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* The first feature that is missing, or NULL. */
static const char *missing(const feature *need)
{
    const uint32_t state = enabled_state();
    for (; need->name; need++) {
        uint32_t r[4] = {0};
        if (!__get_cpuid_count(need->leaf, 0, &r[0], &r[1], &r[2], &r[3]) ||
            !(r[need->reg] >> need->bit & 1u))
            return need->name;
        if ((state & need->xcr0) != need->xcr0)
            return need->xcr0 == ZMM ? "support for 512-bit registers by the system"
                                     : "support for 256-bit registers by the system";
    }
    return NULL;
}
#endif

typedef struct entry {
    const coli__kernels *table;
    const char *missing; // NULL: usable
} entry;

coli_status coli__kernels_get(const char *isa, const coli__kernels **out)
{
    const entry entries[] = { // best first
#if defined(__x86_64__)
        {&coli__kernels_avx512, missing(avx512_needs)},
        {&coli__kernels_avx2, missing(avx2_needs)},
#endif
        {&coli__kernels_scalar, NULL}
    };

    *out = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        if (isa ? strcmp(isa, entries[i].table->name) != 0 : entries[i].missing != NULL) continue;
        if (entries[i].missing)
            return coli__fail(COLI_E_UNSUPPORTED, "instruction set %s: no %s here", isa,
                              entries[i].missing);
        *out = entries[i].table;
        return COLI_OK;
    }
    if (strcmp(isa, "avx2") == 0 || strcmp(isa, "avx512") == 0)
        return coli__fail(COLI_E_UNSUPPORTED, "instruction set %s: not an x86-64 processor", isa);
    return coli__fail(COLI_E_INVALID, "instruction set \"%.31s\": expected scalar, avx2 or avx512",
                      isa);
}
