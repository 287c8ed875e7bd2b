/* fuzz_scores.c - any bytes as a file of scores of five items.  A fuzzer cannot guess checksums, so the
 * bytes are read as they are, and again with the checksum made right. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "items.h"

static const char lines[] =
    "{\"text\": \"hello he\"}\n"
    "{\"ctx\": \"he \", \"endings\": [\"ll\", \"nd x\", \"q\"], \"label\": 0}\n"
    "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"answer\": \"4\"}\n"
    "{\"messages\": [{\"role\": \"user\", \"content\": \"y\"}], \"answer\": \"5\"}\n"
    "{\"text\": \"nd nd nd\"}\n";

static void parse(const uint8_t *data, size_t n_bytes, const coli_tasks *t)
{
    coli_scores *s;
    if (coli__scores_parse("fuzz", data, n_bytes, t, &s) != COLI_OK) return;
    for (int m = COLI_MEASURE_NLL; m < COLI_N_MEASURE; m++) {
        coli_mean mean = {.struct_size = sizeof mean};
        const coli_status status = coli_scores_mean(s, (coli_measure)m, NULL, &mean);
        if (status != COLI_OK && status != COLI_E_INVALID) abort();
    }
    coli_scores_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static coli_tasks *t;
    if (!t && items_of(lines, sizeof lines - 1, &t) != COLI_OK) abort();
    parse(data, n_bytes, t);
    if (n_bytes < 112) return 0;
    uint8_t *copy = malloc(n_bytes);
    if (!copy) abort();
    memcpy(copy, data, n_bytes);
    memcpy(copy + 64, t->identity, 32);
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits(copy, n_bytes - 16));
    memcpy(copy + n_bytes - 16, sum.digest, 16);
    parse(copy, n_bytes, t);
    free(copy);
    return 0;
}
