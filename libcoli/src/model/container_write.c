/* container_write.c - write model.coli front to back, once.
 *
 * The table stands before the data, but checksums, formats and scale exponents are known only after
 * it. They have a largest text, though: the table is rendered once with the longest value in every
 * place, that many bytes are kept free, and the true table, never longer, is patched in at the end.
 * The layout then depends on names and dims alone, and the same input gives the same bytes. */
#include "container_format.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

struct coli__ct_writer {
    coli__writer *file;
    coli__ct_table table;
    XXH3_state_t *hash;                                   // of the tensor in work
    uint64_t left_bytes;                                  // still missing of it
    uint32_t n_entry_begun, n_layer_begun, n_expert_done; // the last: in the layer in work
};

static const coli__wfmt longest_format = {COLI_W_I4, 64, false, true}; // "int4-g64-f16"
enum { LONGEST_SCALE_EXP = -CT_MAX_SCALE_EXP };

static coli__digest longest_digest(void)
{
    static const uint8_t zero[16];
    return coli__digest_text(zero);
}

static coli_status place_tensors(coli__ct_table *t, const coli__model_spec *spec)
{
    t->n_entry = spec->n_tensor;
    t->entries = coli__calloc(spec->n_tensor, sizeof *t->entries);
    if (!t->entries) return COLI_E_NOMEM;
    for (uint32_t i = 0; i < spec->n_tensor; i++) {
        const coli__tensor_spec *s = &spec->tensors[i];
        if (!coli__ct_name_ok(s->name))
            return coli__fail(COLI_E_INTERNAL, "tensor %s: a bad name", s->name);
        coli__ct_entry *e = &t->entries[i];
        snprintf(e->tensor.name, sizeof e->tensor.name, "%s", s->name);
        e->tensor.mat = (coli__mat){NULL, s->n_out, s->n_in, longest_format, LONGEST_SCALE_EXP};
        e->tensor.n_bytes = e->offset = UINT64_MAX;
        e->digest = longest_digest();
    }
    return COLI_OK;
}

static coli_status place_experts(coli__ct_table *t, const coli__model_spec *spec)
{
    t->n_layer = spec->n_expert_layer;
    t->layers = coli__calloc(spec->n_expert_layer, sizeof *t->layers);
    if (!t->layers) return COLI_E_NOMEM;
    for (uint32_t i = 0; i < spec->n_expert_layer; i++) {
        const coli__expert_spec *s = &spec->experts[i];
        coli__ct_layer *l = &t->layers[i];
        l->scale_exp = coli__calloc(s->n_expert, 3 * sizeof *l->scale_exp);
        l->digests = coli__calloc(s->n_expert, sizeof *l->digests);
        if (!l->scale_exp || !l->digests) return COLI_E_NOMEM;
        coli__ct_experts *x = &l->experts;
        *x = (coli__ct_experts){.layer = s->layer,
                                .n_expert = s->n_expert,
                                .d_model = s->d_model,
                                .d_ff = s->d_ff,
                                .scale_exp = l->scale_exp};
        x->gate.fmt = x->up.fmt = x->down.fmt = longest_format;
        x->up_offset = x->down_offset = x->block_bytes = l->offset = UINT64_MAX;
        for (uint32_t e = 0; e < s->n_expert; e++) l->digests[e] = longest_digest();
        for (uint32_t e = 0; e < 3 * s->n_expert; e++) l->scale_exp[e] = LONGEST_SCALE_EXP;
    }
    return COLI_OK;
}

uint64_t coli__ct_writer_memory_bytes(const coli__model_spec *spec)
{
    uint64_t n = spec->n_tensor * sizeof(coli__ct_entry);
    for (uint32_t i = 0; i < spec->n_expert_layer; i++)
        n += sizeof(coli__ct_layer) +
             spec->experts[i].n_expert * (sizeof(coli__digest) + 3 * sizeof(int32_t));
    return n;
}

/* Decide where the data begins and leave the room before it. */
static coli_status reserve_head(coli__ct_writer *w)
{
    coli__buf text = {0};
    const coli_status status = coli__ct_render(&w->table, &text);
    const size_t n = text.n_bytes;
    coli__buf_finish(&text);
    COLI_TRY(status);
    if (n > CT_TABLE_MAX_BYTES)
        return coli__fail(COLI_E_LIMIT, "the table needs %zu bytes, at most %d fit a container", n,
                          CT_TABLE_MAX_BYTES);
    w->table.data_offset = coli__ct_align(CT_FIXED_BYTES + n + CT_CHECKSUM_BYTES, CT_DATA_ALIGN);
    return coli__writer_pad(w->file, w->table.data_offset);
}

coli_status coli__ct_writer_open(const char *path, const char *engine, const coli__model_spec *spec,
                                 coli__ct_writer **out)
{
    *out = NULL;
    coli__ct_writer *w = coli__calloc(1, sizeof *w);
    if (!w) return COLI_E_NOMEM;
    coli__ct_table *t = &w->table;
    snprintf(t->engine, sizeof t->engine, "%s", engine);
    t->identity = longest_digest();
    for (int i = 0; i < CT_N_FILE; i++) t->files[i] = longest_digest();
    w->hash = XXH3_createState();
    coli_status status = w->hash ? COLI_OK : coli__fail(COLI_E_NOMEM, "out of memory");
    if (status == COLI_OK) status = place_tensors(t, spec);
    if (status == COLI_OK) status = place_experts(t, spec);
    if (status == COLI_OK) status = coli__writer_open(path, &w->file);
    if (status == COLI_OK) status = reserve_head(w);
    if (status == COLI_OK)
        *out = w;
    else
        coli__ct_writer_abandon(w);
    return status;
}

static coli_status out_of_order(const char *what)
{
    return coli__fail(COLI_E_INTERNAL, "container: %s was written out of order", what);
}

static coli_status pad_to(coli__ct_writer *w, uint64_t align, uint64_t *offset)
{
    const uint64_t here = coli__writer_offset(w->file);
    *offset = coli__ct_align(here, align);
    return coli__writer_pad(w->file, *offset - here);
}

coli_status coli__ct_writer_tensor(coli__ct_writer *w, coli__wfmt fmt, int32_t scale_exp)
{
    if (w->left_bytes > 0 || w->n_entry_begun == w->table.n_entry) return out_of_order("a tensor");
    coli__ct_entry *e = &w->table.entries[w->n_entry_begun++];
    e->tensor.mat.fmt = fmt;
    e->tensor.mat.scale_exp = scale_exp;
    if (!coli__ct_size_tensor(&e->tensor))
        return coli__fail(COLI_E_INVALID, "tensor %s: %u x %u does not fit a container",
                          e->tensor.name, e->tensor.mat.n_out, e->tensor.mat.n_in);
    XXH3_128bits_reset(w->hash);
    w->left_bytes = e->tensor.n_bytes;
    return pad_to(w, CT_TENSOR_ALIGN, &e->offset);
}

coli_status coli__ct_writer_append(coli__ct_writer *w, const void *bytes, uint64_t n_bytes)
{
    if (n_bytes > w->left_bytes) return out_of_order("a piece of a tensor");
    COLI_TRY(coli__writer_append(w->file, bytes, n_bytes));
    XXH3_128bits_update(w->hash, bytes, (size_t)n_bytes);
    w->left_bytes -= n_bytes;
    if (w->left_bytes == 0) {
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(w->hash));
        w->table.entries[w->n_entry_begun - 1].digest = coli__digest_text(canonical.digest);
    }
    return COLI_OK;
}

/* All tensors are written, and all experts of the layers that were begun. */
static bool is_between(const coli__ct_writer *w)
{
    return w->left_bytes == 0 && w->n_entry_begun == w->table.n_entry &&
           (w->n_layer_begun == 0 ||
            w->n_expert_done == w->table.layers[w->n_layer_begun - 1].experts.n_expert);
}

coli_status coli__ct_writer_experts(coli__ct_writer *w, coli__wfmt gate, coli__wfmt up,
                                    coli__wfmt down, const coli__ct_experts **layout)
{
    if (!is_between(w) || w->n_layer_begun == w->table.n_layer)
        return out_of_order("an expert layer");
    coli__ct_layer *l = &w->table.layers[w->n_layer_begun++];
    coli__ct_experts *x = &l->experts;
    w->n_expert_done = 0;
    x->gate.fmt = gate;
    x->up.fmt = up;
    x->down.fmt = down;
    if (!coli__ct_size_experts(x))
        return coli__fail(COLI_E_INVALID,
                          "experts of layer %u: %u of %u x %u do not fit a container", x->layer,
                          x->n_expert, x->d_model, x->d_ff);
    *layout = x;
    return pad_to(w, CT_EXPERTS_ALIGN, &l->offset);
}

coli_status coli__ct_writer_expert(coli__ct_writer *w, const int32_t scale_exp[3],
                                   const void *block)
{
    if (w->n_layer_begun == 0 || is_between(w)) return out_of_order("an expert");
    coli__ct_layer *l = &w->table.layers[w->n_layer_begun - 1];
    const uint32_t e = w->n_expert_done++;
    memcpy(l->scale_exp + 3 * e, scale_exp, 3 * sizeof *scale_exp);
    l->digests[e] = coli__digest_of(block, l->experts.block_bytes);
    return coli__writer_append(w->file, block, l->experts.block_bytes);
}

/* The head with its checksum over the room that was left for it. */
static coli_status patch_head(coli__ct_writer *w, const coli__buf *text)
{
    const uint64_t n_head = w->table.data_offset;
    if (CT_FIXED_BYTES + text->n_bytes + CT_CHECKSUM_BYTES > n_head)
        return out_of_order("the table");
    uint8_t *head = coli__calloc(n_head, 1);
    if (!head) return COLI_E_NOMEM;
    const uint32_t version = CT_VERSION;
    const uint64_t fields[3] = {text->n_bytes, n_head, coli__writer_offset(w->file)};
    memcpy(head, CT_MAGIC, 8);
    memcpy(head + 8, &version, sizeof version);
    memcpy(head + 16, fields, sizeof fields);
    memcpy(head + CT_FIXED_BYTES, text->data, text->n_bytes);
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(head, n_head - CT_CHECKSUM_BYTES));
    memcpy(head + n_head - CT_CHECKSUM_BYTES, canonical.digest, CT_CHECKSUM_BYTES);
    const coli_status status = coli__writer_patch(w->file, 0, head, n_head);
    coli__free(head);
    return status;
}

coli_status coli__ct_writer_close(coli__ct_writer *w, const coli__digest files[CT_N_FILE])
{
    coli__buf text = {0};
    coli_status status = COLI_OK;
    memcpy(w->table.files, files, sizeof w->table.files);
    if (!is_between(w) || w->n_layer_begun != w->table.n_layer) status = out_of_order("the end");
    if (status == COLI_OK) status = coli__ct_identity(&w->table, &w->table.identity);
    if (status == COLI_OK) status = coli__ct_render(&w->table, &text);
    if (status == COLI_OK) status = patch_head(w, &text);
    if (status == COLI_OK) {
        status = coli__writer_close(w->file);
        w->file = NULL;
    }
    coli__buf_finish(&text);
    coli__ct_writer_abandon(w);
    return status;
}

void coli__ct_writer_abandon(coli__ct_writer *w)
{
    if (!w) return;
    coli__writer_abandon(w->file);
    XXH3_freeState(w->hash);
    coli__ct_table_finish(&w->table);
    coli__free(w);
}
