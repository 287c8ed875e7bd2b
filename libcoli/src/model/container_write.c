/* container_write.c - write model.coli front to back, once.
 *
 * The table stands before the data, but checksums, formats and scale exponents are known only after
 * it. They have a largest text, though: the table is rendered once with the longest value in every
 * place, that many bytes are kept free, and the true table, never longer, is patched in at the end.
 * The layout then depends on names and dims alone, and the same input gives the same bytes.
 *
 * A writer can end half-way, with its process, and another one go on.  What the second needs to know is
 * what the first told: per tensor and expert format, exponent and checksum, in lines like those of the
 * container's identity.  Where they are follows from that.
 *
 *     tensor NAME FORMAT SCALE_EXP CHECKSUM
 *     experts LAYER GATE_FORMAT UP_FORMAT DOWN_FORMAT
 *     expert E GATE_EXP UP_EXP DOWN_EXP CHECKSUM          one for each of the layer
 *
 * The head stays zero until the very end, also when a writer goes on: no reader takes the file for a
 * container before. */
#include "container_format.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "../base/memory.h"

struct coli__ct_writer {
    coli__writer *file;
    coli__ct_table table;
    coli__ct_done told;                                   // of
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

/* Decide where the data begins. */
static coli_status size_head(coli__ct_writer *w)
{
    coli__buf text = {0};
    const coli_status status = coli__ct_render(&w->table, &text);
    const size_t n = text.n_bytes;
    coli__buf_finish(&text);
    COLI_TRY(status);
    if (n > CT_TABLE_MAX_BYTES)
        return coli__fail(COLI_E_FORMAT, "the table needs %zu bytes, at most %d fit a container", n,
                          CT_TABLE_MAX_BYTES);
    w->table.data_offset = coli__ct_align(CT_FIXED_BYTES + n + CT_CHECKSUM_BYTES, CT_DATA_ALIGN);
    return COLI_OK;
}

/* All but the file. */
static coli_status create(const char *engine, const coli__model_spec *spec, coli__ct_writer **out)
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
    if (status == COLI_OK) status = size_head(w);
    if (status == COLI_OK)
        *out = w;
    else
        coli__ct_writer_abandon(w);
    return status;
}

static coli_status this_or_nothing(coli_status status, coli__ct_writer **w)
{
    if (status == COLI_OK) return COLI_OK;
    coli__ct_writer_abandon(*w);
    *w = NULL;
    return status;
}

coli_status coli__ct_writer_open(const char *path, const char *engine, const coli__model_spec *spec,
                                 coli__ct_writer **out)
{
    COLI_TRY(create(engine, spec, out));
    coli_status status = coli__writer_open(path, &(*out)->file);
    if (status == COLI_OK) status = coli__writer_pad((*out)->file, (*out)->table.data_offset);
    return this_or_nothing(status, out);
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

/* Whole ones. */
static coli__ct_done done_of(const coli__ct_writer *w)
{
    const bool in_layer = w->n_layer_begun > 0 &&
                          w->n_expert_done < w->table.layers[w->n_layer_begun - 1].experts.n_expert;
    return (coli__ct_done){w->n_entry_begun - (w->left_bytes > 0), w->n_layer_begun - in_layer};
}

/* All tensors are written, and all experts of the layers that were begun. */
static bool is_between(const coli__ct_writer *w)
{
    const coli__ct_done done = done_of(w);
    return done.n_entry == w->table.n_entry && done.n_layer == w->n_layer_begun;
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
    // the magic alone and last: where it is, all the rest is
    coli_status status = coli__writer_patch(w->file, 8, head + 8, n_head - 8);
    if (status == COLI_OK) status = coli__writer_sync(w->file);
    if (status == COLI_OK) status = coli__writer_patch(w->file, 0, head, 8);
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

uint64_t coli__ct_writer_offset(const coli__ct_writer *w)
{
    return coli__writer_offset(w->file);
}

/* -- going on after another writer ------------------------------------------------------------- */

static coli_status tell_tensor(const coli__ct_entry *e, coli__buf *out)
{
    char fmt[32];
    coli__wfmt_name(e->tensor.mat.fmt, fmt);
    return coli__buf_printf(out, "tensor %s %s %d %s\n", e->tensor.name, fmt,
                            e->tensor.mat.scale_exp, e->digest.hex);
}

static coli_status tell_layer(const coli__ct_layer *l, coli__buf *out)
{
    const coli__ct_experts *x = &l->experts;
    char gate[32], up[32], down[32];
    coli__wfmt_name(x->gate.fmt, gate);
    coli__wfmt_name(x->up.fmt, up);
    coli__wfmt_name(x->down.fmt, down);
    COLI_TRY(coli__buf_printf(out, "experts %u %s %s %s\n", x->layer, gate, up, down));
    for (uint32_t e = 0; e < x->n_expert; e++) {
        const int32_t *exp = l->scale_exp + 3 * e;
        COLI_TRY(coli__buf_printf(out, "expert %u %d %d %d %s\n", e, exp[0], exp[1], exp[2],
                                  l->digests[e].hex));
    }
    return COLI_OK;
}

coli_status coli__ct_writer_tell(coli__ct_writer *w, coli__buf *told)
{
    const coli__ct_done done = done_of(w);
    COLI_TRY(coli__writer_sync(w->file));
    while (w->told.n_entry < done.n_entry)
        COLI_TRY(tell_tensor(&w->table.entries[w->told.n_entry++], told));
    while (w->told.n_layer < done.n_layer)
        COLI_TRY(tell_layer(&w->table.layers[w->told.n_layer++], told));
    return COLI_OK;
}

/* What was told, line by line, beside what the file holds. */
typedef struct replay {
    coli__ct_writer *w;
    const char *path, *at; // the latter: what was told and not read yet
    coli__map map;
    uint64_t end; // of the file's bytes that are as they should be
    coli__ct_checked_fn checked;
    void *user;
} replay;

/* The next line, cut off its end; false where there is none. */
static bool next_line(replay *r, char line[256])
{
    for (const char *end; (end = strchr(r->at, '\n'));) {
        const char *begin = r->at;
        r->at = end + 1;
        if (strncmp(begin, "sum ", 4) == 0) continue;
        snprintf(line, 256, "%.*s", (int)(end - begin < 255 ? end - begin : 255), begin);
        return true;
    }
    return false;
}

static coli_status other_than_told(const replay *r, const char *what)
{
    return coli__fail(COLI_E_FORMAT, "%s: %s is not as it was left", r->path, what);
}

/* Compare the n_bytes behind r->end, moved up to `align`, with their checksum. */
static coli_status check_bytes(replay *r, uint64_t align, uint64_t n_bytes, const char *what,
                               const coli__digest *told, uint64_t *offset)
{
    enum { PIECE_BYTES = 8 << 20 };
    uint64_t end;
    *offset = coli__ct_align(r->end, align);
    if (!coli__add(*offset, n_bytes, &end) || end > r->map.n_bytes) return other_than_told(r, what);
    for (; r->end < *offset; r->end++)
        if (r->map.data[r->end]) return other_than_told(r, what);
    XXH3_128bits_reset(r->w->hash);
    for (uint64_t n; r->end < end; r->end += n) {
        n = end - r->end < PIECE_BYTES ? end - r->end : PIECE_BYTES;
        XXH3_128bits_update(r->w->hash, r->map.data + r->end, (size_t)n);
        coli__pages_drop(r->map.data + r->end, n);
    }
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(r->w->hash));
    const coli__digest found = coli__digest_text(canonical.digest);
    return strcmp(found.hex, told->hex) == 0 ? COLI_OK : other_than_told(r, what);
}

static coli_status replay_tensor(replay *r, const char *line)
{
    coli__ct_writer *w = r->w;
    coli__ct_entry *e = &w->table.entries[w->n_entry_begun];
    char name[96], fmt[32];
    if (w->n_entry_begun == w->table.n_entry ||
        sscanf(line, "tensor %95s %31s %d %32s", name, fmt, &e->tensor.mat.scale_exp,
               e->digest.hex) != 4 ||
        strcmp(name, e->tensor.name) != 0)
        return other_than_told(r, line);
    COLI_TRY(coli__wfmt_parse(fmt, &e->tensor.mat.fmt));
    if (!coli__ct_size_tensor(&e->tensor)) return other_than_told(r, name);
    w->n_entry_begun++;
    return check_bytes(r, CT_TENSOR_ALIGN, e->tensor.n_bytes, name, &e->digest, &e->offset);
}

static coli_status replay_expert(replay *r, coli__ct_layer *l, uint32_t e)
{
    char line[256], what[64];
    uint32_t number;
    uint64_t offset;
    int32_t *exp = l->scale_exp + 3 * e;
    snprintf(what, sizeof what, "expert %u of layer %u", e, l->experts.layer);
    if (!next_line(r, line) ||
        sscanf(line, "expert %u %d %d %d %32s", &number, &exp[0], &exp[1], &exp[2],
               l->digests[e].hex) != 5 ||
        number != e)
        return other_than_told(r, what);
    COLI_TRY(check_bytes(r, e == 0 ? CT_EXPERTS_ALIGN : 1, l->experts.block_bytes, what,
                         &l->digests[e], &offset));
    if (e == 0) l->offset = offset;
    return COLI_OK;
}

static coli_status replay_layer(replay *r, const char *line)
{
    coli__ct_writer *w = r->w;
    coli__ct_layer *l = &w->table.layers[w->n_layer_begun];
    char gate[32], up[32], down[32];
    uint32_t layer;
    if (!is_between(w) || w->n_layer_begun == w->table.n_layer ||
        sscanf(line, "experts %u %31s %31s %31s", &layer, gate, up, down) != 4 ||
        layer != l->experts.layer)
        return other_than_told(r, line);
    coli__ct_experts *x = &l->experts;
    COLI_TRY(coli__wfmt_parse(gate, &x->gate.fmt));
    COLI_TRY(coli__wfmt_parse(up, &x->up.fmt));
    COLI_TRY(coli__wfmt_parse(down, &x->down.fmt));
    if (!coli__ct_size_experts(x)) return other_than_told(r, line);
    w->n_layer_begun++;
    for (w->n_expert_done = 0; w->n_expert_done < x->n_expert; w->n_expert_done++)
        COLI_TRY(replay_expert(r, l, w->n_expert_done));
    return COLI_OK;
}

static coli_status replay_all(replay *r)
{
    char line[256];
    r->end = r->w->table.data_offset;
    while (next_line(r, line)) {
        COLI_TRY(strncmp(line, "tensor ", 7) == 0 ? replay_tensor(r, line) : replay_layer(r, line));
        r->w->told = done_of(r->w);
        if (r->checked) COLI_TRY(r->checked(r->user, r->w->told));
    }
    return COLI_OK;
}

/* A head that was complete belongs to a file that was, too. */
static coli_status clear_head(coli__ct_writer *w)
{
    uint8_t *zero = coli__calloc(w->table.data_offset, 1);
    if (!zero) return COLI_E_NOMEM;
    const coli_status status = coli__writer_patch(w->file, 0, zero, w->table.data_offset);
    coli__free(zero);
    return status;
}

coli_status coli__ct_writer_resume(const char *path, const char *engine,
                                   const coli__model_spec *spec, const char *told,
                                   coli__ct_checked_fn checked, void *user, coli__ct_done *done,
                                   coli__ct_writer **out)
{
    COLI_TRY(create(engine, spec, out));
    replay r = {.w = *out, .path = path, .at = told, .checked = checked, .user = user};
    coli_status status = coli__map_open(path, &r.map);
    if (status == COLI_OK) status = replay_all(&r);
    coli__map_close(&r.map);
    if (status == COLI_OK) status = coli__writer_reopen(path, r.end, &(*out)->file);
    if (status == COLI_OK) status = clear_head(*out);
    *done = (*out)->told;
    return this_or_nothing(status, out);
}
