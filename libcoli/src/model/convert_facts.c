/* convert_facts.c - see convert_facts.h.
 *
 *     program coli 0.1.0
 *     experts int4-g64-f16, if nothing else fits     the arguments
 *     trunk int8-g64-f16, if nothing else fits
 *     formats 61d2...                                what these, a recipe and the source come to
 *     packing 5a0e...                                numbers that this build packed in all formats:
 *                                                    programs of one version may differ while they are made
 *     template of the source
 *     config 77d1...                                 checksum of config.json
 *     file model-00001-of-00002.safetensors 4999... 1764532...     its bytes and when it was written
 *     weights e1b2...                                names, types and places of all, some numbers of a few
 *
 * The weights are not read for this, which would take as long as converting them: that a file was changed
 * shows in when it was written. */
#include "convert_facts.h"

#include <string.h>
#include <xxhash.h>

#include "../base/threads.h"
#include "container_format.h"

enum { N_PACKED = 128 }; // columns of what is packed to see how

typedef struct fact_finder {
    const coli__checkpoint *checkpoint;
    coli__buf *out;
    XXH3_state_t *hash; // of the weights' names, kinds and places, and of some of their numbers
    float *row;         // (n_in_max)
    coli__buf files;    // pointers to those that are in the facts already
} fact_finder;

static coli_status add_file(coli__buf *out, const char *word, const char *path)
{
    coli__file_stamp stamp;
    COLI_TRY(coli__file_look(path, &stamp));
    return coli__buf_printf(out, "%s %s %llu %lld\n", word, coli__path_name(path),
                            (unsigned long long)stamp.n_bytes, (long long)stamp.written);
}

/* "file NAME BYTES WRITTEN", once for each. */
static coli_status find_file(fact_finder *f, const char *path)
{
    const size_t n_known = f->files.n_bytes / sizeof path;
    for (size_t i = n_known; i-- > 0;) // the last one is most likely
        if (memcmp(f->files.data + i * sizeof path, &path, sizeof path) == 0) return COLI_OK;
    COLI_TRY(coli__buf_append(&f->files, &path, sizeof path));
    return add_file(f->out, "file", path);
}

static coli_status find_weight(fact_finder *f, const coli__weight *w, bool has_row)
{
    COLI_TRY(find_file(f, coli__weight_file(w)));
    const char *name = coli__weight_name(w), *kind = coli__weight_kind(w);
    const uint64_t place[2] = {coli__weight_bytes(w), w->first};
    XXH3_128bits_update(f->hash, name, strlen(name) + 1);
    XXH3_128bits_update(f->hash, kind, strlen(kind) + 1);
    XXH3_128bits_update(f->hash, place, sizeof place);
    if (!has_row) return COLI_OK;
    const coli__fp fp = coli__fp_enter();
    const coli_status status = coli__weight_rows(w, 0, 1, f->row);
    coli__fp_leave(fp);
    coli__weight_drop(w);
    XXH3_128bits_update(f->hash, f->row, w->n_in * sizeof *f->row);
    return status == COLI_E_NUMERIC ? COLI_OK : status; // said later, unless it is not needed
}

static coli_status find_weights(fact_finder *f)
{
    const coli__checkpoint *k = f->checkpoint;
    for (uint32_t i = 0; i < k->spec.n_tensor; i++) COLI_TRY(find_weight(f, &k->tensors[i], true));
    for (uint32_t i = 0; i < k->spec.n_expert_layer; i++)
        for (uint32_t e = 0; e < 3 * k->spec.experts[i].n_expert; e++)
            COLI_TRY(find_weight(f, &k->experts[i][e], e < 3));
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(f->hash));
    return coli__buf_printf(f->out, "weights %s\n", coli__digest_text(canonical.digest).hex);
}

/* The same numbers in one format, with columns that matter differently or all alike. */
static coli_status pack_one(const char *format, const float *rows, const float *importance,
                            uint8_t *panel, XXH3_state_t *hash)
{
    coli__mat_pack_args a = {.w = rows,
                             .n_row = COLI_PANEL,
                             .n_in = N_PACKED,
                             .ld = N_PACKED,
                             .importance = importance,
                             .out = panel};
    uint64_t n_bytes, panel_bytes;
    COLI_TRY(coli__wfmt_parse(format, &a.fmt));
    coli__mat_bytes(a.fmt, COLI_PANEL, N_PACKED, &n_bytes, &panel_bytes);
    const coli__fp fp = coli__fp_enter();
    coli__scale_exp_for(a.fmt, 0.5f, 0.25f, &a.scale_exp);
    const coli_status status = coli__mat_pack(&a);
    coli__fp_leave(fp);
    XXH3_128bits_update(hash, panel, panel_bytes);
    return status;
}

/* How this build packs weights: programs of one version may differ in that while they are made.  All ways
 * of searching a scale are tried, for a recipe or an imatrix may lead to any. */
static coli_status find_packing(coli__buf *out)
{
    static const char *const formats[] = {"int4-g64-f16", "int4-g64-f32", "int4-row-f16",
                                          "int4-row-f32", "int8-g64-f16", "int8-g64-f32",
                                          "int8-row-f16", "int8-row-f32"};
    float *rows = coli__calloc((size_t)COLI_PANEL * N_PACKED, sizeof *rows), importance[N_PACKED];
    uint8_t *panel =
        coli__alloc64((size_t)COLI_PANEL * N_PACKED * sizeof *rows); // f32 is the largest
    XXH3_state_t *hash = XXH3_createState();
    coli_status status =
        rows && panel && hash ? COLI_OK : coli__fail(COLI_E_NOMEM, "out of memory");
    uint32_t state = 1;
    for (uint32_t i = 0; status == COLI_OK && i < COLI_PANEL * N_PACKED; i++) {
        state = state * 1664525u + 1013904223u; // any numbers will do
        rows[i] = (float)(state >> 8) * 0x1p-24f - 0.5f;
    }
    for (uint32_t i = 0; i < N_PACKED; i++) importance[i] = (float)(1 + i * 7 % 16);
    if (status == COLI_OK) XXH3_128bits_reset(hash);
    for (size_t i = 0; i < 2 * sizeof formats / sizeof *formats && status == COLI_OK; i++)
        status = pack_one(formats[i / 2], rows, i % 2 ? importance : NULL, panel, hash);
    if (status == COLI_OK) {
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(hash));
        status = coli__buf_printf(out, "packing %s\n", coli__digest_text(canonical.digest).hex);
    }
    XXH3_freeState(hash);
    coli__free(rows);
    coli__free_aligned(panel);
    return status;
}

coli_status coli__convert_facts(const coli__convert_args *a, const coli__checkpoint *source,
                                uint32_t n_in_max, const coli__digest *formats, coli__buf *out)
{
    const coli__buf *config = &source->config_text;
    char experts[32], trunk[32];
    coli__wfmt_name(a->experts, experts);
    coli__wfmt_name(a->trunk, trunk);
    COLI_TRY(coli__buf_printf(out, "program coli %s\nexperts %s%s\ntrunk %s%s\n", COLI_VERSION,
                              experts, a->experts_are_default ? ", if nothing else fits" : "",
                              trunk, a->trunk_is_default ? ", if nothing else fits" : ""));
    COLI_TRY(coli__buf_printf(out, "formats %s\n", formats->hex));
    COLI_TRY(find_packing(out));
    if (a->imatrix) COLI_TRY(add_file(out, "imatrix", a->imatrix));
    COLI_TRY(coli__buf_printf(out, "template %s\nconfig %s\n",
                              a->chat_template ? a->chat_template : "of the source",
                              coli__digest_of(config->data, config->n_bytes).hex));
    fact_finder f = {.checkpoint = source, .out = out, .hash = XXH3_createState()};
    f.row = coli__calloc(n_in_max, sizeof *f.row);
    coli_status status = f.row && f.hash ? COLI_OK : coli__fail(COLI_E_NOMEM, "out of memory");
    if (status == COLI_OK) {
        XXH3_128bits_reset(f.hash);
        status = find_weights(&f);
    }
    XXH3_freeState(f.hash);
    coli__free(f.row);
    coli__buf_finish(&f.files);
    return status;
}
