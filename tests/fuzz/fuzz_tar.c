/* fuzz_tar.c - any bytes as an archive.  Checksums of what looks like a head are made right first: a
 * fuzzer cannot guess them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcoli/src/model/tar.h"

static void seal(uint8_t *block)
{
    unsigned sum = 0;
    char digits[12];
    memset(block + 148, ' ', 8);
    for (int i = 0; i < COLI__TAR_BLOCK; i++) sum += block[i];
    snprintf(digits, sizeof digits, "%06o", sum);
    memcpy(block + 148, digits, 7);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    uint8_t *copy = malloc(n_bytes ? n_bytes : 1); // exactly sized, for the sanitizer
    if (!copy) abort();
    if (n_bytes) memcpy(copy, data, n_bytes);
    for (size_t at = 0; at + COLI__TAR_BLOCK <= n_bytes; at += COLI__TAR_BLOCK)
        if (memcmp(copy + at + 257, "ustar", 5) == 0) seal(copy + at);
    uint64_t at = 0;
    coli__tar_entry e;
    bool is_end = false;
    while (!is_end && coli__tar_next("fuzz", copy, n_bytes, &at, &e, &is_end) == COLI_OK) {
        if (is_end) break;
        uint64_t end;
        if (!coli__add(e.offset, e.n_bytes, &end) || end > at || at > n_bytes) abort();
        if (strlen(e.name) > COLI__TAR_NAME) abort();
    }
    free(copy);
    return 0;
}
