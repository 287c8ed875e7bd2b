/* gguf_model.c - see gguf_model.h.
 *
 * A permutation is undone where numbers are copied: rows are fetched from where they are, columns
 * are written to where they belong.  Blocks of numbers are decoded whole into a small buffer first,
 * because a head may end in the middle of a block. */
#include "gguf_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* -- where a tensor is ------------------------------------------------------------------------- */

/* One number for the tensor, or one for each of its experts, which are its last dim. */
static coli_status check_scale(const coli__gguf_tensor *t, const coli__gguf_tensor *scale)
{
    const bool by_expert = t->rank == 3 && scale->n_elem == t->dims[2];
    if (strcmp(scale->kind->name, "F32") == 0 && (scale->n_elem == 1 || by_expert)) return COLI_OK;
    return coli__fail(COLI_E_FORMAT,
                      "%s: tensor %s: expected F32, one number or one per expert of %s",
                      scale->file, scale->name, t->name);
}

coli_status coli__gguf_view_find(const coli__gguf *g, const coli__gguf_place *place,
                                 coli__gguf_view *out)
{
    static const char suffix[] = ".weight";
    char name[COLI_GGUF_MAX_NAME + 1];
    *out = (coli__gguf_view){.tensor = coli__gguf_find(g, place->name),
                             .form = place->form,
                             .rows = place->rows,
                             .cols = place->cols};
    const size_t n = strlen(place->name), n_suffix = sizeof suffix - 1;
    if (!out->tensor || n < n_suffix || strcmp(place->name + n - n_suffix, suffix) != 0)
        return COLI_OK;
    snprintf(name, sizeof name, "%.*s.scale", (int)(n - n_suffix), place->name);
    out->scale = coli__gguf_find(g, name);
    return out->scale ? check_scale(out->tensor, out->scale) : COLI_OK;
}

/* -- order ------------------------------------------------------------------------------------- */

/* Head order, worked: 2 groups of 3.  The checkpoint's heads a0 a1 a2 b0 b1 b2 stand in the file as
 * a0 b0 a1 b1 a2 b2; so head 1 (a1) of the checkpoint is head 2 of the file. */
static uint32_t to_file(coli__gguf_heads h, uint32_t i)
{
    if (h.width == 0 || i < h.begin) return i;
    const uint32_t head = (i - h.begin) / h.width, in_head = (i - h.begin) % h.width;
    const uint32_t group = head / h.n_per_group, turn = head % h.n_per_group;
    return h.begin + (turn * h.n_group + group) * h.width + in_head;
}

static uint32_t from_file(coli__gguf_heads h, uint32_t i)
{
    if (h.width == 0 || i < h.begin) return i;
    const uint32_t head = (i - h.begin) / h.width, in_head = (i - h.begin) % h.width;
    const uint32_t turn = head / h.n_group, group = head % h.n_group;
    return h.begin + (group * h.n_per_group + turn) * h.width + in_head;
}

/* The natural logarithm of a finite x > 0, rounded from double: the library's own, because that of
 * libm differs from system to system.  With x = 2^e * m, m near 1, and s = (m - 1) / (m + 1),
 *
 *     ln m = 2 (s + s^3/3 + s^5/5 + ...),   s^2 < 0.03, so that the term of s^25 is below 2^-63. */
static float ln(float x)
{
    int e;
    double m = frexp((double)x, &e); // 0.5 to 1
    if (m < 0.70710678118654752) {
        m *= 2;
        e--;
    }
    const double s = (m - 1) / (m + 1), s2 = s * s;
    double sum = 0;
    for (int k = 25; k >= 1; k -= 2) sum = sum * s2 + 1.0 / k;
    return (float)(e * 0.69314718055994531 + 2 * s * sum);
}

/* -- rows -------------------------------------------------------------------------------------- */

enum { CHUNK = 256 }; // whole blocks of every kind

/* What the numbers from element `first` on are multiplied with. */
static coli_status scale_at(const coli__gguf_view *v, uint64_t first, float *scale)
{
    *scale = 1.0f;
    if (!v->scale) return COLI_OK;
    const uint64_t span = v->tensor->n_elem / v->scale->n_elem;
    return coli__gguf_to_f32(v->scale, first / span, 1, scale);
}

static coli_status read_in_order(const coli__gguf_view *v, uint64_t first, uint32_t n_in,
                                 float *out)
{
    float chunk[CHUNK];
    if (v->cols.width == 0) return coli__gguf_to_f32(v->tensor, first, n_in, out);
    for (uint32_t begin = 0, n; begin < n_in; begin += n) {
        n = n_in - begin < CHUNK ? n_in - begin : CHUNK;
        COLI_TRY(coli__gguf_to_f32(v->tensor, first + begin, n, chunk));
        for (uint32_t i = 0; i < n; i++) out[from_file(v->cols, begin + i)] = chunk[i];
    }
    return COLI_OK;
}

coli_status coli__gguf_view_row(const coli__gguf_view *v, uint64_t first, uint32_t row,
                                uint32_t n_in, float *out)
{
    float scale;
    COLI_TRY(read_in_order(v, first + (uint64_t)to_file(v->rows, row) * n_in, n_in, out));
    COLI_TRY(scale_at(v, first, &scale));
    for (uint32_t i = 0; i < n_in && v->scale; i++) out[i] *= scale;
    for (uint32_t i = 0; i < n_in && v->form != COLI_GGUF_AS_IT_IS; i++) {
        if (v->form == COLI_GGUF_ONE_PLUS) {
            out[i] = out[i] - 1.0f;
            continue;
        }
        if (!(out[i] < 0 && isfinite(out[i])))
            return coli__fail(COLI_E_NUMERIC, "%s: tensor %s: holds %g where -exp(w) is expected",
                              v->tensor->file, v->tensor->name, (double)out[i]);
        out[i] = ln(-out[i]);
    }
    return COLI_OK;
}

bool coli__gguf_view_has_grid(const coli__gguf_view *v)
{
    return coli__gguf_has_grid(v->tensor->kind) && v->form == COLI_GGUF_AS_IT_IS &&
           v->cols.width % 32 == 0 && v->cols.begin % 32 == 0;
}

void coli__gguf_view_scales(const coli__gguf_view *v, uint64_t first, uint32_t row, uint32_t n_in,
                            float *out)
{
    float chunk[CHUNK / 32], scale;
    if (scale_at(v, first, &scale) != COLI_OK) scale = 1.0f; // then the row has failed before
    first += (uint64_t)to_file(v->rows, row) * n_in;
    for (uint32_t begin = 0, n; begin < n_in; begin += n) {
        n = n_in - begin < CHUNK ? n_in - begin : CHUNK;
        coli__gguf_scales(v->tensor, first + begin, n, chunk);
        for (uint32_t i = 0; i < n; i += 32)
            out[from_file(v->cols, begin + i) / 32] = chunk[i / 32] * scale;
    }
}
