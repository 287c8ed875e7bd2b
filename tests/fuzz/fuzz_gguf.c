/* fuzz_gguf.c - any bytes as a GGUF file: refused, or every view lies inside, every value that the
 * metadata promises can be read, the small files that are made of it are refused or JSON, and a model
 * is refused or has all its rows. */
#include <stdlib.h>
#include <string.h>

#include "engines/engine.h"
#include "libcoli/src/model/checkpoint.h"

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

static void make_files(const coli__gguf *g)
{
    const coli__gguf_family *family;
    coli__buf config = {0}, tokenizer = {0}, generation = {0};
    coli__gguf_place place;
    bool found;
    if (coli__engine_gguf(g, &family) == COLI_OK && family->config(g, &config) == COLI_OK) {
        json_t *json;
        if (coli__json_parse("config", config.data, config.n_bytes, 8, &json) == COLI_OK)
            json_decref(json);
        family->place(g, "layers.0.linear_attn.conv1d.weight", &place);
        family->skips(g, "blk.0.attn_q.weight");
    }
    coli__gguf_tokenizer(g, &tokenizer, &found);
    coli__gguf_generation(g, &generation);
    coli__buf_finish(&config);
    coli__buf_finish(&tokenizer);
    coli__buf_finish(&generation);
}

static void read_rows(const coli__weight *w)
{
    float *row = malloc(w->n_in * sizeof *row);
    if (!row) abort();
    coli__weight_rows(w, 0, 1, row);
    coli__weight_rows(w, w->n_out - 1, 1, row);
    if (coli__weight_has_grid(w)) coli__weight_scales(w, w->n_out - 1, 1, row);
    free(row);
}

/* The whole as a model: g is handed over. */
static void read_model(coli__gguf *g)
{
    coli__checkpoint c;
    if (coli__checkpoint_of_gguf(g, coli__engine_gguf, coli__engine_describe, NULL, NULL, &c) !=
        COLI_OK)
        return;
    for (uint32_t i = 0; i < c.spec.n_tensor; i++) read_rows(&c.tensors[i]);
    for (uint32_t i = 0; i < c.spec.n_expert_layer; i++)
        for (uint32_t k = 0; k < 3; k++) {
            read_rows(&c.experts[i][k]);
            read_rows(&c.experts[i][3 * (c.spec.experts[i].n_expert - 1) + k]);
        }
    coli__checkpoint_finish(&c);
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
    make_files(g);
    read_model(g);
    return 0;
}
