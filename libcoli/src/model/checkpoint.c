/* checkpoint.c - see checkpoint.h.
 *
 * One model is published under many spellings.  What may differ, and what it means here:
 *
 *     prefix    model.language_model.X, model.X, X        the first that is there
 *     experts   experts.gate_up_proj (E, 2*d_ff, d_model)   fused: first gate rows, then up rows
 *               experts.{e}.gate_proj.weight, ...           one by one
 *     fp8       X in F8_E4M3 with X_scale_inv (ceil(n_out/128), ceil(n_in/128)):
 *               w[r][c] = fp8[r][c] * scale_inv[r/128][c/128]; of fused experts each has its tiles,
 *               which are laid over gate and up together
 *     merged    experts.{e}.merged_weight and its scales: another engine's container (merged.h)
 *
 * What a layer's experts are is decided per layer.  Anything half one way and half another is
 * refused: it is a broken export, and a guess would run and be wrong.
 *
 * Every tensor of the checkpoint ends in one of four classes: needed; skipped by the family's
 * prefixes; unknown, which is said in a note; or an expert that the config does not have, which is
 * an error. */
#include "checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../base/memory.h"

enum {
    FP8_TILE = 128,
    MAX_EXPERT = 1 << 18, // in all layers; the largest published models have a tenth
    NAME_BYTES = 256,     // a prefix, a spec's name, a suffix
};

static const char scale_suffix[] = "_scale_inv";

/* -- finding one tensor ------------------------------------------------------------------------ */

static const coli__st_tensor *find(coli__checkpoint *c, const char *name, const char *suffix)
{
    for (const char *const *prefix = c->spec.prefixes; *prefix; prefix++) {
        char full[NAME_BYTES];
        const int n = snprintf(full, sizeof full, "%s%s%s", *prefix, name, suffix);
        const coli__st_tensor *t = n < NAME_BYTES ? coli__st_find(c->st, full) : NULL;
        if (t) {
            c->used[t - coli__st_at(c->st, 0)] = true;
            return t;
        }
    }
    return NULL;
}

static coli_status missing(const coli__checkpoint *c, const char *name)
{
    return coli__fail(COLI_E_FORMAT,
                      "%s: tensor %s: is missing, with and without a prefix such as %s", c->dir,
                      name, c->spec.prefixes[0]);
}

/* "[2, 3]" */
static void shape_text(const uint64_t *shape, uint32_t rank, char out[200])
{
    size_t n = 0;
    out[n++] = '[';
    for (uint32_t i = 0; i < rank; i++)
        n += (size_t)snprintf(out + n, 200 - n, "%s%llu", i ? ", " : "",
                              (unsigned long long)shape[i]);
    snprintf(out + n, 200 - n, "]"); // 8 numbers of 20 digits and their commas fit
}

static coli_status need_shape(const coli__st_tensor *t, const uint64_t *shape, uint32_t rank)
{
    if (t->rank == rank && memcmp(t->shape, shape, rank * sizeof *shape) == 0) return COLI_OK;
    char expected[200], found[200];
    shape_text(shape, rank, expected);
    shape_text(t->shape, t->rank, found);
    return coli__fail(COLI_E_FORMAT, "%s: tensor %s: expected the shape %s, found %s", t->file,
                      t->name, expected, found);
}

/* One grid of tiles for a matrix, one per expert for fused ones. */
static coli_status check_fp8(const coli__weight *w)
{
    const coli__st_tensor *t = w->tensor;
    if (t->rank != 2 && t->rank != 3)
        return coli__fail(COLI_E_UNSUPPORTED,
                          "%s: tensor %s: F8_E4M3 is supported for matrices and fused experts, "
                          "this has rank %u",
                          t->file, t->name, t->rank);
    if (!w->scale)
        return coli__fail(COLI_E_FORMAT, "%s: tensor %s: is F8_E4M3 and has no %s%s", t->file,
                          t->name, t->name, scale_suffix);
    if (w->scale->dtype != COLI_DT_F32 && w->scale->dtype != COLI_DT_BF16)
        return coli__fail(COLI_E_FORMAT, "%s: tensor %s: expected F32 or BF16, found %s",
                          w->scale->file, w->scale->name, w->scale->dtype_name);
    uint64_t grid[3];
    memcpy(grid, t->shape, sizeof grid);
    for (uint32_t i = t->rank - 2; i < t->rank; i++) grid[i] = (grid[i] + FP8_TILE - 1) / FP8_TILE;
    return need_shape(w->scale, grid, t->rank);
}

/* The type of w's tensor is one of weights, with an fp8 scale exactly where it is needed. */
static coli_status check_type(coli__checkpoint *c, coli__weight *w)
{
    const coli__st_tensor *t = w->tensor;
    char name[NAME_BYTES];
    const int n = snprintf(name, sizeof name, "%s%s", t->name, scale_suffix);
    w->scale = n < NAME_BYTES ? coli__st_find(c->st, name) : NULL;
    if (w->scale) c->used[w->scale - coli__st_at(c->st, 0)] = true;
    switch (t->dtype) {
    case COLI_DT_F8_E4M3:
        return check_fp8(w);
    case COLI_DT_F32:
    case COLI_DT_F16:
    case COLI_DT_BF16:
        if (!w->scale) return COLI_OK;
        return coli__fail(COLI_E_FORMAT,
                          "%s: tensor %s: stands beside a tensor that is %s, not F8_E4M3",
                          w->scale->file, w->scale->name, t->dtype_name);
    case COLI_DT_U8:
    case COLI_DT_I8:
    case COLI_DT_I32:
    case COLI_DT_I64:
    case COLI_DT_OTHER:
        break;
    }
    return coli__fail(COLI_E_UNSUPPORTED, "%s: tensor %s: weights of type %.32s are not supported",
                      t->file, t->name, t->dtype_name);
}

/* All norms of this family but that of DeltaNet's output are centred on 0. */
static bool is_centred_norm(const coli__tensor_spec *s)
{
    const size_t n = strlen(s->name), n_end = strlen("norm.weight");
    return s->role == COLI_ROLE_VECTOR && n >= n_end &&
           strcmp(s->name + n - n_end, "norm.weight") == 0 &&
           !strstr(s->name, "linear_attn.norm.weight");
}

/* A vector's elements are taken in order whatever the shape: conv1d.weight is (channels, 1, taps).
 */
static coli_status find_tensor(coli__checkpoint *c, const coli__tensor_spec *s, coli__weight *w)
{
    const coli__st_tensor *t = find(c, s->name, "");
    if (!t) return missing(c, s->name);
    *w = (coli__weight){.tensor = t, .n_out = s->n_out, .n_in = s->n_in};
    const uint64_t shape[2] = {s->n_out, s->n_in};
    if (s->role == COLI_ROLE_VECTOR && s->n_out == 1) {
        if (t->n_elem != s->n_in) return need_shape(t, shape + 1, 1);
    } else {
        COLI_TRY(need_shape(t, shape, 2));
    }
    w->is_whole_norm = c->merged.norms_are_whole && is_centred_norm(s);
    return check_type(c, w);
}

/* -- experts ----------------------------------------------------------------------------------- */

static const char *const projections[3] = {"gate_proj", "up_proj", "down_proj"};

static const coli__st_tensor *find_fused(coli__checkpoint *c, const coli__expert_spec *s,
                                         const char *name)
{
    char full[NAME_BYTES];
    snprintf(full, sizeof full, "%s%s", s->prefix, name);
    const coli__st_tensor *t = find(c, full, "");
    return t ? t : find(c, full, ".weight");
}

static const coli__st_tensor *find_single(coli__checkpoint *c, const coli__expert_spec *s,
                                          uint32_t e, int projection, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "%s%u.%s.weight", s->prefix, e, projections[projection]);
    return find(c, name, "");
}

static bool has_single(coli__checkpoint *c, const coli__expert_spec *s)
{
    char name[NAME_BYTES];
    for (uint32_t e = 0; e < s->n_expert; e++)
        for (int i = 0; i < 3; i++)
            if (find_single(c, s, e, i, name)) return true;
    return false;
}

static uint64_t expert_tiles(const coli__st_tensor *scale)
{
    return scale ? scale->shape[1] * scale->shape[2] : 0;
}

static coli_status take_fused(coli__checkpoint *c, const coli__expert_spec *s,
                              const coli__st_tensor *gate_up, const coli__st_tensor *down,
                              coli__weight *w)
{
    const uint64_t gate_up_shape[3] = {s->n_expert, 2 * (uint64_t)s->d_ff, s->d_model};
    const uint64_t down_shape[3] = {s->n_expert, s->d_model, s->d_ff};
    COLI_TRY(need_shape(gate_up, gate_up_shape, 3));
    COLI_TRY(need_shape(down, down_shape, 3));
    const uint64_t n = (uint64_t)s->d_ff * s->d_model; // of each of the three
    coli__weight wide = {.tensor = gate_up, .n_out = s->d_ff, .n_in = s->d_model};
    coli__weight low = {.tensor = down, .n_out = s->d_model, .n_in = s->d_ff};
    COLI_TRY(check_type(c, &wide)); // the same for all slices
    COLI_TRY(check_type(c, &low));
    for (uint32_t e = 0; e < s->n_expert; e++, w += 3) {
        w[0] = w[1] = wide;
        w[2] = low;
        w[0].first = 2 * e * n;
        w[1].first = w[0].first + n;
        w[2].first = e * n;
        w[1].tile_row = s->d_ff;
        w[0].first_scale = w[1].first_scale = e * expert_tiles(wide.scale);
        w[2].first_scale = e * expert_tiles(low.scale);
    }
    return COLI_OK;
}

static coli_status take_singles(coli__checkpoint *c, const coli__expert_spec *s, coli__weight *w)
{
    for (uint32_t e = 0; e < s->n_expert; e++)
        for (int i = 0; i < 3; i++, w++) {
            char name[NAME_BYTES];
            const coli__st_tensor *t = find_single(c, s, e, i, name);
            if (!t) return missing(c, name);
            *w = (coli__weight){.tensor = t,
                                .n_out = i < 2 ? s->d_ff : s->d_model,
                                .n_in = i < 2 ? s->d_model : s->d_ff};
            const uint64_t shape[2] = {w->n_out, w->n_in};
            COLI_TRY(need_shape(t, shape, 2));
            COLI_TRY(check_type(c, w));
        }
    return COLI_OK;
}

/* -- merged experts ---------------------------------------------------------------------------- */

/* The scales of a record are written under one of two names. */
static coli_status find_record(coli__checkpoint *c, const coli__expert_spec *s, uint32_t e,
                               const coli__st_tensor **record, const coli__st_tensor **scales)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s%u", s->prefix, e);
    const coli__st_tensor *long_name = find(c, name, ".merged_weight.qs"),
                          *short_name = find(c, name, ".qs");
    *record = find(c, name, ".merged_weight");
    *scales = long_name ? long_name : short_name;
    if (long_name && short_name)
        return coli__fail(COLI_E_FORMAT,
                          "%s: tensor %s: is there beside %s, which are the same scales", c->dir,
                          long_name->name, short_name->name);
    if (*record && *scales) return COLI_OK;
    snprintf(name, sizeof name, "%s%u%s", s->prefix, e,
             *record ? ".merged_weight.qs" : ".merged_weight");
    return missing(c, name);
}

static bool same_parts(const coli__merged_part *a, const coli__merged_part *b)
{
    for (int i = 0; i < 3; i++)
        if (a[i].packing.bits != b[i].packing.bits) return false;
    return true;
}

static coli_status take_merged(coli__checkpoint *c, const coli__expert_spec *s, coli__weight *w)
{
    coli__merged_part first[3];
    for (uint32_t e = 0; e < s->n_expert; e++) {
        const coli__st_tensor *record, *scales;
        coli__merged_part parts[3];
        COLI_TRY(find_record(c, s, e, &record, &scales));
        if (record->dtype != COLI_DT_U8 && record->dtype != COLI_DT_I8)
            return coli__fail(COLI_E_FORMAT, "%s: tensor %s: expected U8 or I8, found %s",
                              record->file, record->name, record->dtype_name);
        COLI_TRY(coli__merged_parts(&c->merged, s, record, scales, parts));
        if (e == 0) memcpy(first, parts, sizeof first);
        if (e == 0 && parts[0].packing.bits == 4)
            COLI_TRY(coli__merged_check_coding(
                record, parts[2].packing.bits == 4 ? record->n_bytes : record->n_bytes / 2));
        if (!same_parts(parts, first))
            return coli__fail(COLI_E_FORMAT,
                              "%s: tensor %s: is of another kind than that of expert 0",
                              record->file, record->name);
        for (int i = 0; i < 3; i++)
            *w++ = (coli__weight){.tensor = record,
                                  .scale = scales,
                                  .first = parts[i].first,
                                  .n_out = i < 2 ? s->d_ff : s->d_model,
                                  .n_in = i < 2 ? s->d_model : s->d_ff,
                                  .first_scale = parts[i].first_scale,
                                  .packing = parts[i].packing};
    }
    return COLI_OK;
}

static coli_status find_experts(coli__checkpoint *c, const coli__expert_spec *s, coli__weight *w)
{
    if (c->merged.is) return take_merged(c, s, w);
    const coli__st_tensor *gate_up = find_fused(c, s, "gate_up_proj");
    const coli__st_tensor *down = find_fused(c, s, "down_proj");
    if (!gate_up && !down) return take_singles(c, s, w);
    if (has_single(c, s))
        return coli__fail(COLI_E_FORMAT,
                          "%s: layer %u: its experts are there both fused (%s) and one "
                          "by one",
                          c->dir, s->layer, (gate_up ? gate_up : down)->name);
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s%s", s->prefix, gate_up ? "down_proj" : "gate_up_proj");
    if (!gate_up || !down) return missing(c, name);
    return take_fused(c, s, gate_up, down, w);
}

/* -- the same in a GGUF file ------------------------------------------------------------------- */

/* The tensor that the family has under this name; NULL if it is not there.  Its view is remembered in
 * c. */
static coli_status find_view(coli__checkpoint *c, const char *name, coli__gguf_place *place,
                             const coli__gguf_view **out)
{
    coli__gguf_view *v = &c->views[c->n_view];
    *place = (coli__gguf_place){0};
    *out = NULL;
    if (!c->family->place(c->gguf, name, place)) return COLI_OK;
    COLI_TRY(coli__gguf_view_find(c->gguf, place, v));
    if (!v->tensor) return COLI_OK;
    c->used[v->tensor - coli__gguf_at(c->gguf, 0)] = true;
    if (v->scale) c->used[v->scale - coli__gguf_at(c->gguf, 0)] = true;
    c->n_view++;
    *out = v;
    return COLI_OK;
}

static coli_status missing_view(const coli__checkpoint *c, const char *name,
                                const coli__gguf_place *place)
{
    return coli__fail(COLI_E_FORMAT, "%s: tensor %s: is missing", c->dir,
                      place->name[0] ? place->name : name);
}

/* dims begin with the fastest one, shape with the slowest. */
static coli_status need_dims(const coli__gguf_tensor *t, const uint64_t *shape, uint32_t rank)
{
    uint64_t found[COLI_GGUF_MAX_RANK];
    for (uint32_t i = 0; i < t->rank; i++) found[i] = t->dims[t->rank - 1 - i];
    if (!coli__gguf_is_readable(t->kind))
        return coli__fail(COLI_E_UNSUPPORTED, "%s: tensor %s: numbers of kind %s are not supported",
                          t->file, t->name, t->kind->name);
    if (t->rank == rank && memcmp(found, shape, rank * sizeof *shape) == 0) return COLI_OK;
    char expected_text[200], found_text[200];
    shape_text(shape, rank, expected_text);
    shape_text(found, t->rank, found_text);
    return coli__fail(COLI_E_FORMAT, "%s: tensor %s: expected the shape %s, found %s", t->file,
                      t->name, expected_text, found_text);
}

static coli_status find_gguf_tensor(coli__checkpoint *c, const coli__tensor_spec *s,
                                    coli__weight *w)
{
    coli__gguf_place place;
    const coli__gguf_view *v;
    COLI_TRY(find_view(c, s->name, &place, &v));
    if (!v) return missing_view(c, s->name, &place);
    *w = (coli__weight){.view = v, .n_out = s->n_out, .n_in = s->n_in};
    const uint64_t shape[2] = {s->n_out, s->n_in};
    if (s->n_out > 1) return need_dims(v->tensor, shape, 2);
    // one row may be written with or without the dim that is 1, a convolution with its taps
    const bool fits = v->tensor->n_elem == s->n_in;
    const bool blocks = v->tensor->kind->n_elem == 1 || v->tensor->dims[0] == s->n_in;
    return fits && blocks && coli__gguf_is_readable(v->tensor->kind)
               ? COLI_OK
               : need_dims(v->tensor, shape + 1, 1);
}

static coli_status find_gguf_experts(coli__checkpoint *c, const coli__expert_spec *s,
                                     coli__weight *w)
{
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj", "gate_up_proj"};
    const coli__gguf_view *v[4];
    coli__gguf_place place[4];
    for (int i = 0; i < 4; i++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "%s%s", s->prefix, parts[i]);
        COLI_TRY(find_view(c, name, &place[i], &v[i]));
        const uint64_t shape[3] = {s->n_expert,
                                   i == 2   ? s->d_model
                                   : i == 3 ? 2 * s->d_ff
                                            : s->d_ff,
                                   i == 2 ? s->d_ff : s->d_model};
        if (v[i]) COLI_TRY(need_dims(v[i]->tensor, shape, 3));
    }
    for (int i = 0; i < 3; i++)
        if (!v[i] && (i == 2 || !v[3])) return missing_view(c, place[i].name, &place[i]);
    if (v[3] && (v[0] || v[1]))
        return coli__fail(COLI_E_FORMAT,
                          "%s: tensor %s: is there beside %s, which holds the same experts", c->dir,
                          place[3].name, place[v[0] ? 0 : 1].name);
    const uint64_t n = (uint64_t)s->d_ff * s->d_model; // of each of the three
    for (uint32_t e = 0; e < s->n_expert; e++, w += 3) {
        const uint64_t fused = 2 * e * n;
        w[0] = w[1] = (coli__weight){.view = v[3], .n_out = s->d_ff, .n_in = s->d_model};
        w[0].first = fused;
        w[1].first = fused + n;
        for (int i = 0; i < 2 && !v[3]; i++) {
            w[i].view = v[i];
            w[i].first = e * n;
        }
        w[2] = (coli__weight){.view = v[2], .first = e * n, .n_out = s->d_model, .n_in = s->d_ff};
    }
    return COLI_OK;
}

/* -- what is left over ------------------------------------------------------------------------- */

static bool starts_with(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* An expert beyond the config's number, or a piece of one that nobody asked for. */
static bool is_expert(const coli__checkpoint *c, const char *name)
{
    for (const char *const *prefix = c->spec.prefixes; *prefix; prefix++) {
        if (!starts_with(name, *prefix)) continue;
        for (uint32_t i = 0; i < c->spec.n_expert_layer; i++)
            if (starts_with(name + strlen(*prefix), c->spec.experts[i].prefix)) return true;
    }
    return false;
}

/* A line for each part of the model that is left out: "model.visual." reads "visual" there. */
static void note_skipped(const coli__checkpoint *c, const uint32_t *n_skipped,
                         void (*note)(void *, const char *), void *user)
{
    for (uint32_t i = 0; c->spec.skip_prefixes[i]; i++) {
        if (n_skipped[i] == 0) continue;
        const char *prefix = c->spec.skip_prefixes[i];
        size_t end = strlen(prefix), begin;
        while (end > 0 && prefix[end - 1] == '.') end--;
        for (begin = end; begin > 0 && prefix[begin - 1] != '.';) begin--;
        char line[120];
        snprintf(line, sizeof line, "skipped %u %.*s tensor%s", n_skipped[i], (int)(end - begin),
                 prefix + begin, n_skipped[i] == 1 ? "" : "s");
        note(user, line);
    }
}

static coli_status note_unknown(uint32_t n, const char *const *names, coli__buf *line)
{
    if (n == 0) return COLI_OK;
    COLI_TRY(coli__buf_printf(line, "left out %u tensor%s that this model does not have:", n,
                              n == 1 ? "" : "s"));
    for (uint32_t i = 0; i < n && i < 3; i++)
        COLI_TRY(coli__buf_printf(line, "%s %.100s", i ? "," : "", names[i]));
    return n > 3 ? coli__buf_str(line, ", ...") : COLI_OK;
}

/* A file's tensors that the model does without, by what they are. */
typedef struct skipped {
    const char *what;
    uint32_t n;
} skipped;

enum { MAX_SKIPPED = 4 };

static void count_skipped(skipped *list, const char *what)
{
    uint32_t i = 0;
    while (i + 1 < MAX_SKIPPED && list[i].what && strcmp(list[i].what, what) != 0) i++;
    list[i].what = what;
    list[i].n++;
}

static coli_status note_gguf_skipped(const skipped *list, coli__buf *line)
{
    for (uint32_t i = 0; i < MAX_SKIPPED && list[i].what; i++)
        COLI_TRY(coli__buf_printf(line, "%s%u %s tensor%s", i ? " and " : "skipped ", list[i].n,
                                  list[i].what, list[i].n == 1 ? "" : "s"));
    return COLI_OK;
}

/* Multipliers of weights that no weight above took: leaving them out would change the model. */
static coli_status check_no_scale(const coli__gguf_tensor *t)
{
    const size_t n = strlen(t->name);
    if (n < 5 || strcmp(t->name + n - 5, "scale") != 0) return COLI_OK;
    return coli__fail(COLI_E_UNSUPPORTED,
                      "%s: tensor %s: is a scale of weights, and how it counts is "
                      "not known here",
                      t->file, t->name);
}

/* Tensors of a GGUF file that nobody asked for. */
static coli_status sort_gguf_left_over(coli__checkpoint *c, void (*note)(void *, const char *),
                                       void *user)
{
    skipped list[MAX_SKIPPED] = {{0}};
    uint32_t n_unknown = 0;
    const char *unknown[3];
    for (uint32_t i = 0; i < coli__gguf_count(c->gguf); i++) {
        if (c->used[i]) continue;
        const coli__gguf_tensor *t = coli__gguf_at(c->gguf, i);
        const char *what = c->family->skips(c->gguf, t->name);
        if (what) {
            count_skipped(list, what);
            continue;
        }
        COLI_TRY(check_no_scale(t));
        if (n_unknown < 3) unknown[n_unknown] = t->name;
        n_unknown++;
    }
    if (!note) return COLI_OK;

    coli__buf skipped_line = {0}, unknown_line = {0};
    coli_status status = note_gguf_skipped(list, &skipped_line);
    if (status == COLI_OK) status = note_unknown(n_unknown, unknown, &unknown_line);
    if (status == COLI_OK && skipped_line.data) note(user, skipped_line.data);
    if (status == COLI_OK && unknown_line.data) note(user, unknown_line.data);
    coli__buf_finish(&skipped_line);
    coli__buf_finish(&unknown_line);
    return status;
}

static coli_status sort_left_over(coli__checkpoint *c, void (*note)(void *, const char *),
                                  void *user)
{
    enum { MAX_PREFIX = 16 };
    uint32_t n_skipped[MAX_PREFIX] = {0}, n_unknown = 0;
    const char *unknown[3];
    for (uint32_t i = 0; i < coli__st_count(c->st); i++) {
        if (c->used[i]) continue;
        const coli__st_tensor *t = coli__st_at(c->st, i);
        uint32_t skip = 0;
        while (skip < MAX_PREFIX && c->spec.skip_prefixes[skip] &&
               !starts_with(t->name, c->spec.skip_prefixes[skip]))
            skip++;
        if (skip < MAX_PREFIX && c->spec.skip_prefixes[skip]) {
            n_skipped[skip]++;
            continue;
        }
        if (is_expert(c, t->name))
            return coli__fail(COLI_E_FORMAT,
                              "%s: tensor %s: is no part of the experts that config.json "
                              "describes",
                              t->file, t->name);
        if (n_unknown < 3) unknown[n_unknown] = t->name;
        n_unknown++;
    }
    if (!note) return COLI_OK;

    note_skipped(c, n_skipped, note, user);
    coli__buf line = {0};
    const coli_status status = note_unknown(n_unknown, unknown, &line);
    if (status == COLI_OK && line.data) note(user, line.data);
    coli__buf_finish(&line);
    return status;
}

/* -- open -------------------------------------------------------------------------------------- */

/* Packed integers of other programs: what their tensors hold is known only together with this name. */
static coli_status check_method(const json_t *config, const char *where)
{
    static const char *const others[] = {"awq", "gptq", "bitsandbytes", "auto-round"};
    const char *method = json_string_value(
        json_object_get(json_object_get(config, "quantization_config"), "quant_method"));
    for (size_t i = 0; method && i < sizeof others / sizeof *others; i++)
        if (strcmp(method, others[i]) == 0)
            return coli__fail(
                COLI_E_UNSUPPORTED,
                "%s: quantization_config: quant_method is \"%s\"; expected \"fp8\", or "
                "a checkpoint that is not quantised",
                where, method);
    return COLI_OK;
}

/* fp8 exports say how large a tile is. */
static coli_status check_tile(const json_t *config, const char *where)
{
    const json_t *tile =
        json_object_get(json_object_get(config, "quantization_config"), "weight_block_size");
    if (!tile || json_is_null(tile)) return COLI_OK;
    if (json_array_size(tile) == 2 && json_integer_value(json_array_get(tile, 0)) == FP8_TILE &&
        json_integer_value(json_array_get(tile, 1)) == FP8_TILE)
        return COLI_OK;
    return coli__fail(COLI_E_UNSUPPORTED,
                      "%s: quantization_config: weight_block_size: only [128, 128] "
                      "is supported",
                      where);
}

coli_status coli__checkpoint_check_stored(const json_t *config, const char *where)
{
    const json_t *const both[] = {config, json_object_get(config, "text_config")};
    for (int i = 0; i < 2; i++) {
        COLI_TRY(check_method(both[i], where));
        COLI_TRY(check_tile(both[i], where));
    }
    return COLI_OK;
}

coli_status coli__checkpoint_config(const char *dir, const char *path, coli__buf *text,
                                    coli__merged *merged, json_t **config)
{
    *config = NULL;
    COLI_TRY(coli__merged_open(dir, text, merged));
    if (!merged->is) COLI_TRY(coli__file_read(path, COLI_CONFIG_MAX_BYTES, text));
    return coli__json_parse_small(path, text->data ? text->data : "", text->n_bytes,
                                  COLI_CONFIG_MAX_DEPTH, config);
}

static coli_status read_config(coli__checkpoint *c, coli__describe_fn describe)
{
    char *path;
    json_t *config;
    COLI_TRY(coli__path_join(c->dir, "config.json", &path));
    coli_status status =
        coli__checkpoint_config(c->dir, path, &c->config_text, &c->merged, &config);
    if (status == COLI_OK) status = coli__checkpoint_check_stored(config, path);
    if (status == COLI_OK) status = describe(config, &c->engine, &c->spec);
    json_decref(config);
    coli__free(path);
    return status;
}

static coli_status check_expert_count(const coli__checkpoint *c)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < c->spec.n_expert_layer; i++) n += c->spec.experts[i].n_expert;
    if (n <= MAX_EXPERT) return COLI_OK;
    return coli__fail(COLI_E_FORMAT, "%s: config.json asks for %llu experts, at most %d are read",
                      c->dir, (unsigned long long)n, MAX_EXPERT);
}

/* A view per tensor, and per layer those of gates, ups, downs, and gates with ups. */
static size_t n_view_max(const coli__checkpoint *c)
{
    return (size_t)c->spec.n_tensor + 4 * (size_t)c->spec.n_expert_layer;
}

static coli_status find_all(coli__checkpoint *c)
{
    const coli__model_spec *spec = &c->spec;
    const uint32_t n = c->gguf ? coli__gguf_count(c->gguf) : coli__st_count(c->st);
    c->used = coli__calloc(n, sizeof *c->used);
    c->tensors = coli__calloc(spec->n_tensor, sizeof *c->tensors);
    c->experts = coli__calloc(spec->n_expert_layer, sizeof *c->experts);
    if (c->gguf) c->views = coli__calloc(n_view_max(c), sizeof *c->views);
    if (!c->used || !c->tensors || !c->experts || (c->gguf && !c->views)) return COLI_E_NOMEM;
    for (uint32_t i = 0; i < spec->n_tensor; i++)
        COLI_TRY(c->gguf ? find_gguf_tensor(c, &spec->tensors[i], &c->tensors[i])
                         : find_tensor(c, &spec->tensors[i], &c->tensors[i]));
    for (uint32_t i = 0; i < spec->n_expert_layer; i++) {
        c->experts[i] = coli__calloc(spec->experts[i].n_expert, 3 * sizeof **c->experts);
        if (!c->experts[i]) return COLI_E_NOMEM;
        COLI_TRY(c->gguf ? find_gguf_experts(c, &spec->experts[i], c->experts[i])
                         : find_experts(c, &spec->experts[i], c->experts[i]));
    }
    return COLI_OK;
}

static coli_status open_into(coli__checkpoint *c, coli__describe_fn describe,
                             void (*note)(void *, const char *), void *user)
{
    COLI_TRY(read_config(c, describe));
    COLI_TRY(check_expert_count(c));
    COLI_TRY(coli__st_open(c->dir, &c->st));
    COLI_TRY(find_all(c));
    return sort_left_over(c, note, user);
}

coli_status coli__checkpoint_open(const char *dir, coli__describe_fn describe,
                                  void (*note)(void *user, const char *line), void *user,
                                  coli__checkpoint *out)
{
    *out = (coli__checkpoint){.dir = dir};
    if (!coli__path_is_dir(dir)) return coli__fail(COLI_E_NOTFOUND, "%s: is not a directory", dir);
    const coli_status status = open_into(out, describe, note, user);
    if (status != COLI_OK) coli__checkpoint_finish(out);
    return status;
}

/* The metadata becomes config.json first, so that one way leads from there to the tensors. */
static coli_status open_gguf_into(coli__checkpoint *c, coli__gguf_family_fn family,
                                  coli__describe_fn describe, void (*note)(void *, const char *),
                                  void *user)
{
    COLI_TRY(family(c->gguf, &c->family));
    COLI_TRY(c->family->config(c->gguf, &c->config_text));
    json_t *config = NULL;
    coli_status status = coli__json_parse_small(c->dir, c->config_text.data, c->config_text.n_bytes,
                                                COLI_CONFIG_MAX_DEPTH, &config);
    if (status == COLI_OK) {
        status = describe(config, &c->engine, &c->spec);
        if (status != COLI_OK) coli__fail_in(status, "%s", c->dir);
    }
    json_decref(config);
    COLI_TRY(status);
    COLI_TRY(check_expert_count(c));
    COLI_TRY(find_all(c));
    return sort_gguf_left_over(c, note, user);
}

coli_status coli__checkpoint_of_gguf(coli__gguf *g, coli__gguf_family_fn family,
                                     coli__describe_fn describe,
                                     void (*note)(void *user, const char *line), void *user,
                                     coli__checkpoint *out)
{
    *out = (coli__checkpoint){.dir = coli__gguf_path(g), .gguf = g};
    const coli_status status = open_gguf_into(out, family, describe, note, user);
    if (status != COLI_OK) coli__checkpoint_finish(out);
    return status;
}

coli_status coli__checkpoint_open_gguf(const char *path, coli__gguf_family_fn family,
                                       coli__describe_fn describe,
                                       void (*note)(void *user, const char *line), void *user,
                                       coli__checkpoint *out)
{
    coli__gguf *g;
    *out = (coli__checkpoint){0};
    COLI_TRY(coli__gguf_open(path, &g));
    return coli__checkpoint_of_gguf(g, family, describe, note, user, out);
}

coli_status coli__checkpoint_open_source(const char *src, coli__gguf_family_fn family,
                                         coli__describe_fn describe,
                                         void (*note)(void *user, const char *line), void *user,
                                         coli__checkpoint *out)
{
    if (!coli__path_exists(src) || coli__path_is_dir(src))
        return coli__checkpoint_open(src, describe, note, user, out);
    *out = (coli__checkpoint){0};
    if (!family) return coli__fail(COLI_E_UNSUPPORTED, "%s: is a file; expected a directory", src);
    return coli__checkpoint_open_gguf(src, family, describe, note, user, out);
}

void coli__checkpoint_finish(coli__checkpoint *c)
{
    for (uint32_t i = 0; c->experts && i < c->spec.n_expert_layer; i++) coli__free(c->experts[i]);
    coli__free(c->experts);
    coli__free(c->tensors);
    coli__free(c->used);
    coli__free(c->views);
    coli__gguf_close(c->gguf);
    coli__st_close(c->st);
    coli__model_spec_finish(&c->spec);
    coli__buf_finish(&c->config_text);
    *c = (coli__checkpoint){0};
}

uint64_t coli__checkpoint_memory_bytes(const coli__checkpoint *c)
{
    const coli__model_spec *spec = &c->spec;
    uint64_t n = c->config_text.cap_bytes;
    if (c->gguf)
        n += coli__gguf_memory_bytes(c->gguf) + coli__gguf_count(c->gguf) * sizeof *c->used +
             n_view_max(c) * sizeof *c->views;
    else
        n += coli__st_memory_bytes(c->st) + coli__st_count(c->st) * sizeof *c->used;
    n += spec->n_tensor * (sizeof *spec->tensors + sizeof *c->tensors);
    n += spec->n_expert_layer * (sizeof *spec->experts + sizeof *c->experts);
    for (uint32_t i = 0; i < spec->n_expert_layer; i++)
        n += spec->experts[i].n_expert * 3 * sizeof **c->experts;
    return n;
}

/* -- rows -------------------------------------------------------------------------------------- */

static coli_status not_finite(const coli__weight *w, uint64_t element, float value)
{
    const coli__st_tensor *t = w->tensor;
    if (!t)
        return coli__fail(COLI_E_NUMERIC, "%s: tensor %s: weight %llu of the matrix is %s",
                          coli__weight_file(w), coli__weight_name(w),
                          (unsigned long long)(element - w->first),
                          isnan(value) ? "NaN" : "infinite");
    uint64_t index[COLI_ST_MAX_RANK];
    char text[200];
    for (uint32_t i = t->rank; i-- > 0; element /= t->shape[i]) index[i] = element % t->shape[i];
    shape_text(index, t->rank, text);
    return coli__fail(COLI_E_NUMERIC, "%s: tensor %s: element %s is %s", t->file, t->name, text,
                      isnan(value) ? "NaN" : "infinite");
}

/* One row of fp8: each run of 128 columns shares a tile's multiplier. */
static coli_status scale_row(const coli__weight *w, uint32_t row, float *out)
{
    const uint64_t n_tile = w->scale->shape[w->scale->rank - 1];
    for (uint32_t begin = 0; begin < w->n_in; begin += FP8_TILE) {
        float scale;
        const uint64_t tile = (row + w->tile_row) / FP8_TILE * n_tile + begin / FP8_TILE;
        COLI_TRY(coli__st_to_f32(w->scale, w->first_scale + tile, 1, &scale));
        const uint32_t end = w->n_in - begin < FP8_TILE ? w->n_in : begin + FP8_TILE;
        for (uint32_t col = begin; col < end; col++) out[col] *= scale;
    }
    return COLI_OK;
}

/* Columns that share a scale, and how many scales a row has. */
static uint32_t packing_span(const coli__weight *w, uint64_t *n_scale)
{
    const uint32_t span = w->packing.group ? w->packing.group : w->n_in;
    *n_scale = ((uint64_t)w->n_in + span - 1) / span;
    return span;
}

static coli_status packed_row(const coli__weight *w, uint32_t row, float *out)
{
    uint64_t n_scale;
    const uint32_t span = packing_span(w, &n_scale);
    const uint64_t first = w->first + (uint64_t)row * w->n_in;
    enum { PIECE = 256 };
    int8_t codes[PIECE];
    for (uint32_t begin = 0, n; begin < w->n_in; begin += n) {
        float scale;
        n = span - begin % span < PIECE ? span - begin % span : PIECE;
        if (n > w->n_in - begin) n = w->n_in - begin;
        COLI_TRY(coli__packing_codes(w->packing, w->tensor, w->scale, first + begin,
                                     w->first_scale + row * n_scale + begin / span, n, codes,
                                     &scale));
        for (uint32_t i = 0; i < n; i++) out[begin + i] = (float)codes[i] * scale;
    }
    return COLI_OK;
}

bool coli__weight_packed_format(const coli__weight *w, coli__wfmt *out)
{
    const uint32_t group = w->packing.group;
    *out = (coli__wfmt){.type = w->packing.bits == 4 ? COLI_W_I4 : COLI_W_I8, .group = 64};
    if (w->packing.bits == 0) return false;
    out->per_row = group == 0 || group >= w->n_in;
    if (out->per_row || group % 64 == 0) return true;
    out->group = 32;
    return group % 32 == 0;
}

coli_status coli__weight_codes(const coli__weight *w, coli__wfmt fmt, uint32_t row, uint32_t n_row,
                               int8_t *codes, float *scales)
{
    uint64_t n_scale;
    const uint32_t span = packing_span(w, &n_scale), group = fmt.per_row ? w->n_in : fmt.group;
    for (uint32_t r = row; r < row + n_row; r++)
        for (uint32_t begin = 0, n; begin < w->n_in; begin += n, codes += n, scales++) {
            n = w->n_in - begin < group ? w->n_in - begin : group;
            COLI_TRY(coli__packing_codes(
                w->packing, w->tensor, w->scale, w->first + (uint64_t)r * w->n_in + begin,
                w->first_scale + r * n_scale + begin / span, n, codes, scales));
            if (*scales < 0x1p-40f) *scales = 0;
        }
    return COLI_OK;
}

coli_status coli__weight_rows(const coli__weight *w, uint32_t row, uint32_t n_row, float *out)
{
    for (uint32_t r = 0; w->packing.bits && r < n_row; r++)
        COLI_TRY(packed_row(w, row + r, out + (size_t)r * w->n_in));
    if (w->packing.bits) return COLI_OK;
    const uint64_t first = w->first + (uint64_t)row * w->n_in, n = (uint64_t)n_row * w->n_in;
    if (w->tensor) COLI_TRY(coli__st_to_f32(w->tensor, first, n, out));
    for (uint32_t r = 0; w->view && r < n_row; r++)
        COLI_TRY(
            coli__gguf_view_row(w->view, w->first, row + r, w->n_in, out + (size_t)r * w->n_in));
    for (uint32_t r = 0; w->scale && r < n_row; r++)
        COLI_TRY(scale_row(w, row + r, out + (size_t)r * w->n_in));
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(out[i])) return not_finite(w, first + i, out[i]);
    for (uint64_t i = 0; w->is_whole_norm && i < n; i++) out[i] -= 1;
    return COLI_OK;
}

static uint64_t bytes_of(const coli__weight *w, uint64_t n_weight)
{
    if (w->packing.bits) return n_weight * w->packing.bits / 8;
    return w->tensor->n_bytes / w->tensor->n_elem * n_weight;
}

/* A view may take its rows and columns from anywhere in the tensor. */
void coli__weight_drop(const coli__weight *w)
{
    if (w->view)
        coli__pages_drop(w->view->tensor->data, w->view->tensor->n_bytes);
    else
        coli__pages_drop(w->tensor->data + bytes_of(w, w->first), coli__weight_bytes(w));
}

uint64_t coli__weight_bytes(const coli__weight *w)
{
    const uint64_t n = (uint64_t)w->n_out * w->n_in;
    if (!w->view) return bytes_of(w, n);
    const coli__gguf_kind *k = w->view->tensor->kind;
    return n / k->n_elem * k->n_bytes;
}

const char *coli__weight_file(const coli__weight *w)
{
    return w->view ? w->view->tensor->file : w->tensor->file;
}

const char *coli__weight_name(const coli__weight *w)
{
    return w->view ? w->view->tensor->name : w->tensor->name;
}

const char *coli__weight_kind(const coli__weight *w)
{
    if (w->packing.bits) return coli__packing_name(w->packing);
    return w->view ? w->view->tensor->kind->name : w->tensor->dtype_name;
}

bool coli__weight_is_bf16(const coli__weight *w)
{
    return strcmp(coli__weight_kind(w), "BF16") == 0;
}

bool coli__weight_has_grid(const coli__weight *w)
{
    return w->view && coli__gguf_view_has_grid(w->view);
}

void coli__weight_scales(const coli__weight *w, uint32_t row, uint32_t n_row, float *out)
{
    for (uint32_t r = 0; r < n_row; r++, out += w->n_in / 32)
        coli__gguf_view_scales(w->view, w->first, row + r, w->n_in, out);
}
