/* backends.h - models on the devices of a plugin that a test is told of by name. */
#ifndef COLI_TEST_BACKENDS_H
#define COLI_TEST_BACKENDS_H

#include "digest.h"

#include "libcoli/src/backend/devices.h"
#include "libcoli/src/moe/moe.h"

/* The next model computes rows as if they were many (moe.c), the one after it as they are, ... */
static inline void world_next_shape(void)
{
    static bool many;
    many = !many;
    coli__moe_product_max = many ? 512 : 1 << 19;
}

/* `program NAME FILE`: the plugin to test.  Call first thing in main. */
static const char *backend_name, *backend_file;

static inline bool backend_from(int argc, char **argv)
{
    if (argc != 3) {
        print_error("usage: %s NAME FILE\n", argv[0]);
        return false;
    }
    backend_name = argv[1];
    backend_file = argv[2];
    return true;
}

enum { SKIPPED = 77 }; // ctest's SKIP_RETURN_CODE

/* Whether the plugin has a device at all; says why not. */
static inline bool backend_is_there(void)
{
    const coli_model_opts opts = {.struct_size = sizeof opts, .backend = backend_file};
    coli_model *m;
    const coli_status status = coli_model_open(TEST_MODELS "/hummingbird", &opts, &m);
    coli_model_close(m);
    if (status != COLI_OK) print_message("%s\n", coli_error_message());
    return status == COLI_OK;
}

static inline void backend_note(void *user, const char *line)
{
    (void)user;
    print_message("    %s\n", line);
}

/* percent of the experts on devices, with all of the trunk or none. */
static inline coli_model_opts backend_opts(double percent, bool trunk, const char *options)
{
    return (coli_model_opts){.struct_size = sizeof(coli_model_opts),
                             .n_threads = 2,
                             .backend = backend_file,
                             .backend_options = options,
                             .vram_unit = COLI_VRAM_PERCENT,
                             .vram = percent,
                             .place = trunk ? "all" : "off"};
}

static inline coli_backend_stats backend_stats(const coli_model *m)
{
    coli_backend_stats stats = {.struct_size = sizeof stats};
    T_OK(coli_model_get_backend_stats(m, &stats));
    return stats;
}

#endif
