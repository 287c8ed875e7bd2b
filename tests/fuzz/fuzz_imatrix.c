/* fuzz_imatrix.c - any bytes as an imatrix file, as they are and again with the checksum made right; and as a
 * recipe. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "libcoli/src/model/imatrix.h"
#include "libcoli/src/model/recipe.h"

/* What is read back must be numbers. */
static void ask(coli__imatrix *m)
{
    float h[4];
    if (!coli__imatrix_columns(m, "a", 3, h) && !coli__imatrix_expert(m, "bx", 1, 3, 2, h)) return;
    if (!(h[0] > 0) || !(h[1] > 0)) abort();
}

static void parse(const uint8_t *data, size_t n_bytes)
{
    coli__imatrix *m;
    if (coli__imatrix_parse("fuzz", data, n_bytes, 16, &m) != COLI_OK) return;
    ask(m);
    coli__imatrix_close(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    parse(data, n_bytes);
    coli__recipe *r;
    if (coli__recipe_parse("fuzz", (const char *)data, n_bytes, &r) == COLI_OK)
        coli__recipe_close(r);
    if (n_bytes < 16) return 0;
    uint8_t *sealed = malloc(n_bytes);
    if (!sealed) return 0;
    memcpy(sealed, data, n_bytes);
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits(data, n_bytes - 16));
    memcpy(sealed + n_bytes - 16, sum.digest, 16);
    parse(sealed, n_bytes);
    free(sealed);
    return 0;
}
