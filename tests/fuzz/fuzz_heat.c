/* fuzz_heat.c - any bytes as a heat file.  A fuzzer cannot guess checksums, so the bytes are read as they
 * are, and again with the checksum made right. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "libcoli/src/moe/heat_file.h"

static void parse(const uint8_t *data, size_t n_bytes)
{
    coli__heat_file f;
    if (coli__heat_file_parse("fuzz", data, n_bytes, &f) == COLI_OK) {
        uint32_t all = 0;
        for (size_t i = 0; i < (size_t)f.n_layer * f.n_expert; i++) all |= f.count[i];
        if (strlen(f.identity) != 32 && all) abort();
    }
    coli__heat_file_finish(&f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    parse(data, n_bytes);
    if (n_bytes < 16) return 0;
    uint8_t *copy = malloc(n_bytes);
    if (!copy) abort();
    memcpy(copy, data, n_bytes);
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits(copy, n_bytes - 16));
    memcpy(copy + n_bytes - 16, sum.digest, 16);
    parse(copy, n_bytes);
    free(copy);
    return 0;
}
