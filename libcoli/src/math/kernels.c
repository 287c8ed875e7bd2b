/* kernels.c - which table this processor may run.
 *
 * x86-64: CPUID says what the processor can do, XGETBV whether the operating system saves the wide
 * registers across a context switch; without the second, the first must not be used.
 * aarch64: the system says both at once.
 *
 * AMX is there only for a process that asked the system for it (coli__tiles_permit), and nobody has
 * to take it for the faster one: without a name, it is taken where it wins a race against AVX-512
 * (kernels_race.h), which is run once. */
#include "kernels.h"

#include <string.h>

#include "../base/threads.h"
#include "kernels_impl.h"
#include "kernels_race.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#if defined(__x86_64__)
#include <cpuid.h>

typedef struct feature {
    const char *name;
    uint32_t leaf, reg, bit; // reg: 0 eax, 1 ebx, 2 ecx, 3 edx
    uint32_t xcr0;           // register state that the system must save
    uint32_t subleaf;
} feature;

enum { YMM = 0x06, ZMM = 0xE6, TILES = 0x600E6 };

static const feature avx2_needs[] = {{"AVX", 1, 2, 28, YMM, 0},
                                     {"F16C", 1, 2, 29, YMM, 0},
                                     {"AVX2", 7, 1, 5, YMM, 0},
                                     {NULL, 0, 0, 0, 0, 0}};
static const feature avxvnni_needs[] = {{"AVX", 1, 2, 28, YMM, 0},
                                        {"F16C", 1, 2, 29, YMM, 0},
                                        {"AVX2", 7, 1, 5, YMM, 0},
                                        {"AVX_VNNI", 7, 0, 4, YMM, 1},
                                        {NULL, 0, 0, 0, 0, 0}};
static const feature avx512_needs[] = {
    {"AVX", 1, 2, 28, YMM, 0},      {"F16C", 1, 2, 29, YMM, 0},
    {"AVX2", 7, 1, 5, YMM, 0},      {"AVX512F", 7, 1, 16, ZMM, 0},
    {"AVX512DQ", 7, 1, 17, ZMM, 0}, {"AVX512BW", 7, 1, 30, ZMM, 0},
    {"AVX512VL", 7, 1, 31, ZMM, 0}, {"AVX512_VNNI", 7, 2, 11, ZMM, 0},
    {NULL, 0, 0, 0, 0, 0}};
#ifdef COLI_AMX // besides those of AVX-512
static const feature amx_needs[] = {
    {"AMX_TILE", 7, 3, 24, TILES, 0}, {"AMX_INT8", 7, 3, 25, TILES, 0}, {NULL, 0, 0, 0, 0, 0}};
#endif

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
        if (!__get_cpuid_count(need->leaf, need->subleaf, &r[0], &r[1], &r[2], &r[3]) ||
            !(r[need->reg] >> need->bit & 1u))
            return need->name;
        if ((state & need->xcr0) != need->xcr0)
            return need->xcr0 == TILES ? "support for tiles by the system"
                   : need->xcr0 == ZMM ? "support for 512-bit registers by the system"
                                       : "support for 256-bit registers by the system";
    }
    return NULL;
}

#ifdef COLI_AMX
static const char *missing_for_tiles(void)
{
    const char *what = missing(avx512_needs);
    if (!what) what = missing(amx_needs);
    if (!what && !coli__tiles_permit()) what = "permission of the system to use tiles";
    return what;
}

/* The system is asked, and the race run, by those only who want to know. */
static pthread_once_t race_once = PTHREAD_ONCE_INIT;
static bool tiles_win;
static void race_tiles(void)
{
    tiles_win = !missing_for_tiles() &&
                coli__kernels_race(&coli__kernels_amx, &coli__kernels_avx512, COLI__AMX_MIN_ROWS);
}

static const char *missing_amx(const char *isa)
{
    if (isa) return strcmp(isa, "amx") == 0 ? missing_for_tiles() : NULL;
    pthread_once(&race_once, race_tiles);
    return tiles_win ? NULL : "advantage over avx512";
}
#endif

#elif defined(__aarch64__)

typedef struct feature {
    const char *name;
    uint64_t hwcap, hwcap2; // bits of the kernel's asm/hwcap.h
} feature;

static const feature neon_needs[] = {{"dot products (asimddp)", 1u << 20, 0}, {NULL, 0, 0}};
static const feature i8mm_needs[] = {
    {"dot products (asimddp)", 1u << 20, 0}, {"matrix products (i8mm)", 0, 1u << 13}, {NULL, 0, 0}};

/* The first feature that is missing, or NULL. */
static const char *missing(const feature *need)
{
#ifdef __linux__
    const uint64_t have = getauxval(AT_HWCAP), have2 = getauxval(AT_HWCAP2);
    for (; need->name; need++)
        if ((have & need->hwcap) != need->hwcap || (have2 & need->hwcap2) != need->hwcap2)
            return need->name;
    return NULL;
#else
    (void)need;
    return "known way to ask this system for the processor's features";
#endif
}
#endif

const char *const coli__kernels_names[] = {"scalar", "avx2", "avxvnni", "avx512",
                                           "amx",    "neon", "i8mm",    NULL};

typedef struct entry {
    const coli__kernels *table;
    const char *missing; // NULL: usable
} entry;

coli_status coli__kernels_get(const char *isa, const coli__kernels **out)
{
    const entry entries[] = { // best first
#if defined(__x86_64__)
#ifdef COLI_AMX
        {&coli__kernels_amx, missing_amx(isa)},
#endif
        {&coli__kernels_avx512, missing(avx512_needs)},
        {&coli__kernels_avxvnni, missing(avxvnni_needs)},
        {&coli__kernels_avx2, missing(avx2_needs)},
#elif defined(__aarch64__)
        {&coli__kernels_i8mm, missing(i8mm_needs)},
        {&coli__kernels_neon, missing(neon_needs)},
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
    for (size_t i = 0; coli__kernels_names[i]; i++)
        if (strcmp(isa, coli__kernels_names[i]) == 0)
            return coli__fail(COLI_E_UNSUPPORTED, "instruction set %s: not an %s", isa,
                              strncmp(isa, "avx", 3) == 0 ? "x86-64 processor"
                              : strcmp(isa, "amx") == 0   ? "x86-64 processor under Linux"
                                                          : "aarch64 processor");
    return coli__fail(COLI_E_INVALID,
                      "instruction set \"%.31s\": expected scalar, avx2, avxvnni, avx512, amx, "
                      "neon or i8mm",
                      isa);
}
