/* system_api.c - what coli.h tells about the machine, without a model: for who explains to a person why
 * something is slow, or does not work. */
#include <stdio.h>
#include <string.h>

#include "../../include/coli/exact.h"
#include "../base/facts.h"
#include "../base/memory.h"
#include "../base/threads.h"
#include "../math/kernels.h"
#include "api.h"
#include "coli/coli.h"
#include "disk.h"

/* -- this build ---------------------------------------------------------------------------------- */

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "an unknown compiler"
#endif
#ifdef NDEBUG
#define ASSERTS "no asserts"
#else
#define ASSERTS "asserts"
#endif

const char *coli_build(void)
{
    return COMPILER ", " COLI_BUILD_TYPE ", " ASSERTS
#ifdef COLI_BUILD_SANITIZE
                    ", " COLI_BUILD_SANITIZE " sanitizer"
#endif
        ;
}

/* -- instruction sets ---------------------------------------------------------------------------- */

const char *coli_isa_name(size_t i)
{
    size_t n = 0;
    while (coli__kernels_names[n]) n++;
    return i < n ? coli__kernels_names[i] : NULL;
}

coli_status coli_isa_check(const char *isa, const char **name)
{
    const coli__kernels *kernels;
    if (name) *name = NULL;
    COLI_TRY(coli__kernels_get(isa, &kernels));
    if (name) *name = kernels->name;
    return COLI_OK;
}

bool coli_arithmetic_is_exact(void)
{
    const coli__fp fp = coli__fp_enter();
    const bool exact = coli_exact_check();
    coli__fp_leave(fp);
    return exact;
}

/* -- the system ---------------------------------------------------------------------------------- */

coli_status coli_system_look(coli_system *out)
{
    if (!out) return coli__fail(COLI_E_INVALID, "coli_system_look: out is NULL");
    COLI_TRY(coli__struct_clear("coli_system", out));
    coli__facts f;
    coli__facts_read(&f);
    coli_system full = {.n_processor = coli__n_processor(),
                        .n_processor_all = f.n_processor,
                        .cache_bytes = coli__cache_bytes(),
                        .memory_bytes = f.memory_bytes,
                        .free_bytes = f.free_bytes,
                        .available_bytes = coli__memory_available(),
                        .swap_bytes = f.swap_bytes,
                        .swap_free_bytes = f.swap_free_bytes,
                        .has_groups = f.has_groups,
                        .has_huge_pages = f.has_huge_pages};
    snprintf(full.system, sizeof full.system, "%s", f.system);
    snprintf(full.cpu, sizeof full.cpu, "%s", f.cpu);
    snprintf(full.huge_pages, sizeof full.huge_pages, "%s", f.huge_pages);
    coli__struct_fill(out, &full, sizeof full);
    return COLI_OK;
}

/* -- the disk ------------------------------------------------------------------------------------ */

coli_status coli_disk_measure(const char *file, coli_disk *out)
{
    enum { PIECE = 1 << 20 };
    if (out) COLI_TRY(coli__struct_clear("coli_disk", out));
    if (!file || !out) return coli__fail(COLI_E_INVALID, "coli_disk_measure: an argument is NULL");
    coli__map map; // for its size and identity
    COLI_TRY(coli__map_open(file, &map));
    const coli__file_id id = map.id;
    const uint64_t n_bytes = map.n_bytes;
    coli__map_close(&map);
    if (n_bytes == 0) return coli__fail(COLI_E_INVALID, "%s: is empty", file);
    coli__disk_speed speed;
    COLI_TRY(coli__disk_measure(file, id, n_bytes, n_bytes < PIECE ? n_bytes : PIECE, &speed));
    const coli_disk full = {
        .gb_s_min = speed.gb_s_min, .gb_s_max = speed.gb_s_max, .is_direct = speed.is_direct};
    coli__struct_fill(out, &full, sizeof full);
    return COLI_OK;
}
