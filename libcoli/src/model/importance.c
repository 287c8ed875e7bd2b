/* importance.c - adding up what matrices are multiplied with: the first half of imatrix.h.
 *
 * A slot per vector that is read: one for each dense matrix, found by where its weights are, and two
 * for each layer's experts, with a part per expert: what gate and up read, and what down reads.
 * Sums are double and rows come in their order, so a file does not depend on threads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "container_format.h"
#include "imatrix.h"
#include "imatrix_format.h"

typedef struct slot {
    const uint8_t *key; // of a dense matrix or a layer of experts: its weights
    bool inner;         // of experts
    char name[IMATRIX_NAME_BYTES];
    uint32_t n_part, n_in;
    uint64_t *n_row; // (n_part)
    double *sum;     // (n_part, n_in) of squares
} slot;

struct coli__importance {
    slot *slots; // by key, then inner
    uint32_t n_slot;
    char model[33];
};

/* ---- which model ---------------------------------------------------------------------------- */

static void hash_text(XXH3_state_t *hash, const char *text)
{
    XXH3_128bits_update(hash, text, strlen(text));
}

static coli_status hash_vectors(const coli__model_spec *spec, coli__vector_fn vector, void *ctx,
                                float *x, XXH3_state_t *hash)
{
    for (uint32_t i = 0; i < spec->n_tensor; i++) {
        if (spec->tensors[i].role != COLI_ROLE_VECTOR) continue;
        COLI_TRY(vector(ctx, i, x));
        XXH3_128bits_update(hash, x, spec->tensors[i].n_in * sizeof *x);
    }
    return COLI_OK;
}

static void hash_names(const coli__model_spec *spec, XXH3_state_t *hash)
{
    char text[160];
    for (uint32_t i = 0; i < spec->n_tensor; i++) {
        const coli__tensor_spec *t = &spec->tensors[i];
        snprintf(text, sizeof text, "%s %u %u\n", t->name, t->n_out, t->n_in);
        hash_text(hash, text);
    }
    for (uint32_t i = 0; i < spec->n_expert_layer; i++) {
        const coli__expert_spec *e = &spec->experts[i];
        snprintf(text, sizeof text, "%s %u %u %u\n", e->prefix, e->n_expert, e->d_model, e->d_ff);
        hash_text(hash, text);
    }
}

coli_status coli__imatrix_tie(const coli__model_spec *spec, coli__vector_fn vector, void *ctx,
                              char out[33])
{
    uint32_t n_in_max = 1;
    for (uint32_t i = 0; i < spec->n_tensor; i++)
        if (spec->tensors[i].role == COLI_ROLE_VECTOR && spec->tensors[i].n_in > n_in_max)
            n_in_max = spec->tensors[i].n_in;
    float *x = coli__calloc(n_in_max, sizeof *x);
    XXH3_state_t *hash = XXH3_createState();
    coli_status status = x && hash ? COLI_OK : COLI_E_NOMEM;
    if (status == COLI_OK) {
        XXH3_128bits_reset(hash);
        hash_names(spec, hash);
        status = hash_vectors(spec, vector, ctx, x, hash);
    }
    if (status == COLI_OK) {
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(hash));
        const coli__digest digest = coli__digest_text(canonical.digest);
        memcpy(out, digest.hex, sizeof digest.hex);
    }
    XXH3_freeState(hash);
    coli__free(x);
    return status;
}

typedef struct held {
    const coli__container *container;
    const coli__model_spec *spec;
} held;

static coli_status held_vector(void *ctx, uint32_t i, float *out)
{
    const held *h = ctx;
    const coli__tensor_spec *s = &h->spec->tensors[i];
    const coli__ct_tensor *t;
    COLI_TRY(coli__container_find(h->container, s->name, 1, s->n_in, &t));
    coli__mat_row(&t->mat, 0, out);
    return COLI_OK;
}

/* ---- the object ----------------------------------------------------------------------------- */

static int by_key(const void *a, const void *b)
{
    const slot *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (int)x->inner - (int)y->inner;
}

static coli_status make_slot(slot *s, const uint8_t *key, bool inner, uint32_t n_part,
                             uint32_t n_in)
{
    s->key = key;
    s->inner = inner;
    s->n_part = n_part;
    s->n_in = n_in;
    s->n_row = coli__calloc(n_part, sizeof *s->n_row);
    s->sum = coli__calloc(n_part, n_in * sizeof *s->sum);
    return s->n_row && s->sum ? COLI_OK : COLI_E_NOMEM;
}

static coli_status make_slots(coli__importance *im, const coli__container *c,
                              const coli__model_spec *spec)
{
    im->slots =
        coli__calloc((size_t)spec->n_tensor + 2 * (size_t)spec->n_expert_layer, sizeof *im->slots);
    if (!im->slots) return COLI_E_NOMEM;
    for (uint32_t i = 0; i < spec->n_tensor; i++) {
        const coli__tensor_spec *s = &spec->tensors[i];
        if (s->role != COLI_ROLE_TRUNK && s->role != COLI_ROLE_EMBED) continue;
        const coli__ct_tensor *t;
        COLI_TRY(coli__container_find(c, s->name, s->n_out, s->n_in, &t));
        slot *to = &im->slots[im->n_slot++];
        memcpy(to->name, s->name, sizeof s->name);
        COLI_TRY(make_slot(to, t->mat.data, false, 1, s->n_in));
    }
    for (uint32_t i = 0; i < 2 * spec->n_expert_layer; i++) {
        const coli__expert_spec *e = &spec->experts[i / 2];
        const coli__ct_experts *x = coli__container_experts(c, i / 2);
        const bool inner = i % 2;
        slot *to = &im->slots[im->n_slot++];
        snprintf(to->name, sizeof to->name, "%s%s", e->prefix, inner ? "inner" : "in");
        COLI_TRY(make_slot(to, x->data, inner, e->n_expert, inner ? e->d_ff : e->d_model));
    }
    qsort(im->slots, im->n_slot, sizeof *im->slots, by_key);
    return COLI_OK;
}

coli_status coli__importance_create(const coli__container *c, const coli__model_spec *spec,
                                    coli__importance **out)
{
    *out = NULL;
    COLI_TRY(coli__container_check_spec(c, spec));
    coli__importance *im = coli__calloc(1, sizeof *im);
    if (!im) return COLI_E_NOMEM;
    held h = {c, spec};
    coli_status status = coli__imatrix_tie(spec, held_vector, &h, im->model);
    if (status == COLI_OK) status = make_slots(im, c, spec);
    if (status != COLI_OK) {
        coli__importance_destroy(im);
        return status;
    }
    *out = im;
    return COLI_OK;
}

void coli__importance_destroy(coli__importance *im)
{
    if (!im) return;
    for (uint32_t i = 0; i < im->n_slot; i++) {
        coli__free(im->slots[i].n_row);
        coli__free(im->slots[i].sum);
    }
    coli__free(im->slots);
    coli__free(im);
}

/* ---- adding up ------------------------------------------------------------------------------ */

static slot *find(coli__importance *im, const uint8_t *key, bool inner)
{
    const slot wanted = {.key = key, .inner = inner};
    return bsearch(&wanted, im->slots, im->n_slot, sizeof *im->slots, by_key);
}

static void add_f32(double *sum, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) sum[i] += (double)x[i] * (double)x[i];
}

static void add_quantised(double *sum, const coli__qrows *q, uint32_t t, uint32_t n)
{
    for (uint32_t g = 0; g < q->n_group; g++) {
        const size_t at = (size_t)t * q->n_group + g;
        const int8_t *code = q->q + at * q->group;
        const double d = (double)q->d[at];
        for (uint32_t i = 0; i < q->group && g * q->group + i < n; i++) {
            const double x = code[i] * d;
            sum[g * q->group + i] += x * x;
        }
    }
}

/* In whichever form there is. */
static void add_row(slot *s, uint32_t part, const coli__acts *x, uint32_t t)
{
    double *sum = s->sum + (size_t)part * s->n_in;
    s->n_row[part]++;
    if (x->f)
        add_f32(sum, x->f + t * x->ld, s->n_in);
    else
        add_quantised(sum, x->q64.q ? &x->q64 : &x->q32, t, s->n_in);
}

void coli__importance_rows(coli__importance *im, const coli__mat *w, const coli__acts *x,
                           uint32_t first, uint32_t n)
{
    slot *s = find(im, w->data, false);
    for (uint32_t t = first; s && t < first + n; t++) add_row(s, 0, x, t);
}

void coli__importance_expert(coli__importance *im, const coli__ct_experts *layer, uint32_t expert,
                             bool inner, const coli__acts *x, uint32_t t)
{
    slot *s = find(im, layer->data, inner);
    if (s) add_row(s, expert, x, t);
}

/* ---- writing -------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const slot *const *)a)->name, (*(const slot *const *)b)->name);
}

/* A writer and the checksum of what went through it. */
typedef struct output {
    coli__writer *writer;
    XXH3_state_t *hash;
} output;

static coli_status put(output *o, const void *bytes, size_t n_bytes)
{
    XXH3_128bits_update(o->hash, bytes, n_bytes);
    return coli__writer_append(o->writer, bytes, n_bytes);
}

static coli_status put_padding(output *o, uint64_t n_bytes) // of what stands before it
{
    static const uint8_t zeros[8];
    return put(o, zeros, (size_t)(coli__ct_align(n_bytes, 8) - n_bytes));
}

static coli_status put_rows(output *o, const slot *s)
{
    for (uint32_t part = 0; part < s->n_part; part++) {
        uint8_t n_row[8];
        coli__put64(n_row, s->n_row[part]);
        COLI_TRY(put(o, n_row, sizeof n_row));
    }
    return COLI_OK;
}

/* row: room for n_in numbers. */
static coli_status put_means(output *o, const slot *s, uint8_t *row)
{
    for (uint32_t part = 0; part < s->n_part; part++) {
        const double *sum = s->sum + (size_t)part * s->n_in;
        for (uint32_t i = 0; i < s->n_in; i++) {
            const float mean = s->n_row[part] ? (float)(sum[i] / (double)s->n_row[part]) : 0.0f;
            uint32_t bits;
            memcpy(&bits, &mean, sizeof bits);
            coli__put32(row + 4 * (size_t)i, bits);
        }
        COLI_TRY(put(o, row, 4 * (size_t)s->n_in));
    }
    return put_padding(o, 4 * (uint64_t)s->n_part * s->n_in);
}

static coli_status put_slot(output *o, const slot *s)
{
    const uint32_t n_name = (uint32_t)strlen(s->name);
    uint8_t head[16] = {0};
    coli__put32(head, n_name);
    coli__put32(head + 4, s->n_part);
    coli__put32(head + 8, s->n_in);
    COLI_TRY(put(o, head, sizeof head));
    COLI_TRY(put(o, s->name, n_name));
    COLI_TRY(put_padding(o, n_name));
    COLI_TRY(put_rows(o, s));
    uint8_t *row = coli__calloc(s->n_in, 4);
    if (!row) return COLI_E_NOMEM;
    const coli_status status = put_means(o, s, row);
    coli__free(row);
    return status;
}

static coli_status put_all(output *o, const coli__importance *im, const slot *const *order,
                           uint64_t n_token)
{
    uint8_t head[IMATRIX_HEAD_BYTES] = {0};
    memcpy(head, coli__imatrix_magic, sizeof coli__imatrix_magic);
    coli__put32(head + 8, IMATRIX_VERSION);
    coli__put32(head + 12, im->n_slot);
    coli__put64(head + 16, n_token);
    memcpy(head + IMATRIX_MODEL_AT, im->model, 32);
    XXH3_128bits_reset(o->hash);
    COLI_TRY(put(o, head, sizeof head));
    for (uint32_t i = 0; i < im->n_slot; i++) COLI_TRY(put_slot(o, order[i]));
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits_digest(o->hash));
    return coli__writer_append(o->writer, sum.digest, IMATRIX_SUM_BYTES);
}

coli_status coli__importance_write(const coli__importance *im, uint64_t n_token,
                                   coli__writer *writer)
{
    output o = {writer, XXH3_createState()};
    const slot **order = coli__calloc(im->n_slot, sizeof *order);
    coli_status status = o.hash && order ? COLI_OK : COLI_E_NOMEM;
    for (uint32_t i = 0; order && i < im->n_slot; i++) order[i] = &im->slots[i];
    if (status == COLI_OK) {
        qsort(order, im->n_slot, sizeof *order, by_name);
        status = put_all(&o, im, order, n_token);
    }
    XXH3_freeState(o.hash);
    coli__free(order);
    return status;
}
