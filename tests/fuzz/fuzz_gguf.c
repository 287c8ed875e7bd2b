/* fuzz_gguf.c - any bytes as a GGUF file: refused, or every view lies inside and every value that the
 * metadata promises can be read. */
#include <stdlib.h>
#include <string.h>

#include "libcoli/src/model/gguf.h"

static void inside(const uint8_t *data, size_t n_bytes, const void *at, uint64_t n)
{
    const uint8_t *p = at;
    if (n && (p < data || p > data + n_bytes || n > (uint64_t)(data + n_bytes - p))) abort();
}

static void read_value(const uint8_t *data, size_t n_bytes, const coli__gguf_value *v)
{
    int64_t whole;
    double number;
    const uint8_t *at = v->data;
    for (uint64_t i = 0; i < v->n && v->type != COLI_GGUF_ARRAY; i++) {
        if (v->type == COLI_GGUF_STRING) {
            inside(data, n_bytes, at, 8);
            const coli__gguf_text text = coli__gguf_string(&at);
            inside(data, n_bytes, text.data, text.n_bytes);
        } else {
            coli__gguf_int(v, i, &whole);
            if (!coli__gguf_number(v, i, &number) && v->type != COLI_GGUF_U64) abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    coli__gguf *g;
    if (coli__gguf_open_bytes("fuzz", data, n_bytes, &g) != COLI_OK) return 0;
    for (uint32_t i = 0; i < coli__gguf_n_value(g); i++)
        read_value(data, n_bytes, coli__gguf_value_at(g, i));
    for (uint32_t i = 0; i < coli__gguf_count(g); i++) {
        const coli__gguf_tensor *t = coli__gguf_at(g, i);
        if (coli__gguf_find(g, t->name) != t) abort();
        inside(data, n_bytes, t->data, t->n_bytes);
        float out[256], scales[8];
        const uint32_t n = t->kind->n_elem;
        const coli_status status = coli__gguf_to_f32(t, t->n_elem - n, n, out);
        if ((status == COLI_OK) != coli__gguf_is_readable(t->kind)) abort();
        if (coli__gguf_has_grid(t->kind)) coli__gguf_scales(t, t->n_elem - n, n, scales);
    }
    coli__gguf_close(g);
    return 0;
}
