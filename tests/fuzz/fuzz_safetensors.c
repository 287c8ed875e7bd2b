/* fuzz_safetensors.c - any bytes as a safetensors file: refused, or every view lies inside. */
#include <stdlib.h>

#include "libcoli/src/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    coli__st *st;
    if (coli__st_open_bytes("fuzz", data, n_bytes, &st) != COLI_OK) return 0;
    for (uint32_t i = 0; i < coli__st_count(st); i++) {
        const coli__st_tensor *t = coli__st_at(st, i);
        if (coli__st_find(st, t->name) != t) abort();
        if (t->n_bytes && (t->data < data || t->data + t->n_bytes > data + n_bytes)) abort();
        float out[16];
        const uint64_t n = t->n_elem < 16 ? t->n_elem : 16;
        if (coli__st_to_f32(t, t->n_elem - n, n, out) != COLI_OK && t->dtype != COLI_DT_OTHER)
            abort();
    }
    coli__st_close(st);
    return 0;
}
