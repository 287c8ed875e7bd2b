/* fuzz_container.c - any bytes as model.coli.  A fuzzer cannot guess checksums, so the head's is
 * made right first: what is tested is the table behind it. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "libcoli/src/model/container_format.h"

static void seal(uint8_t *data, uint64_t n_bytes)
{
    uint64_t head;
    if (n_bytes < CT_FIXED_BYTES) return;
    memcpy(data + 32, &n_bytes, 8); // the file's size, too
    memcpy(&head, data + 24, 8);
    if (head < CT_FIXED_BYTES + CT_CHECKSUM_BYTES || head > n_bytes) return;
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits(data, head - CT_CHECKSUM_BYTES));
    memcpy(data + head - CT_CHECKSUM_BYTES, sum.digest, CT_CHECKSUM_BYTES);
}

static void read_all(const coli__mat *m)
{
    float *row = malloc(m->n_in * sizeof *row);
    if (!row) abort();
    if (coli__mat_check(m) == COLI_OK)
        for (uint32_t r = 0; r < m->n_out; r++) coli__mat_row(m, r, row);
    free(row);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    uint8_t *copy = coli__alloc64(n_bytes);
    if (!copy) abort();
    if (n_bytes) memcpy(copy, data, n_bytes);
    seal(copy, n_bytes);
    coli__ct_table t;
    if (coli__ct_parse("fuzz", copy, n_bytes, &t) == COLI_OK) {
        for (uint32_t i = 0; i < t.n_entry; i++) read_all(&t.entries[i].tensor.mat);
        for (uint32_t i = 0; i < t.n_layer; i++) {
            coli__mat m[3];
            coli__ct_expert(&t.layers[i].experts, t.layers[i].experts.n_expert - 1, &m[0], &m[1],
                            &m[2]);
            for (int k = 0; k < 3; k++) read_all(&m[k]);
        }
    }
    coli__ct_table_finish(&t);
    coli__free_aligned(copy);
    return 0;
}
