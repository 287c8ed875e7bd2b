/* placement.c - which weights go to which device, until something better than their order is known. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../base/alloc.h"
#include "devices_impl.h"

static const uint64_t RESERVE = UINT64_C(1) << 30; // left free where nobody said how much to take

bool coli__device_format(coli__wfmt fmt, uint32_t *out)
{
    if (!coli__wfmt_is_quant(fmt)) return false;
    *out = (fmt.type == COLI_W_I4 ? COLI_BK_I4_G64_F16 : COLI_BK_I8_G64_F16) +
           (fmt.per_row       ? 4u
            : fmt.group == 32 ? 2u
                              : 0u) +
           (fmt.scale_f16 ? 0u : 1u);
    return true;
}

static bool computes(const coli__device *dev, coli__wfmt fmt)
{
    uint32_t format;
    return coli__device_format(fmt, &format) && coli__device_info(dev)->formats >> format & 1;
}

static coli_bk_matrix describe(const coli__mat *w, uint64_t offset)
{
    coli_bk_matrix m = {
        .n_out = w->n_out, .n_in = w->n_in, .scale_exp = w->scale_exp, .offset = offset};
    coli__device_format(w->fmt, &m.format);
    return m;
}

coli_status coli__devices_allow(coli__devices *d)
{
    for (uint32_t i = 0; i < d->n; i++) {
        coli_bk_mem_info memory;
        COLI_TRY(coli__device_memory(d->dev[i], &memory));
        if (d->vram_unit == COLI_VRAM_BYTES)
            d->allowance[i] = (uint64_t)d->vram;
        else if (d->vram_unit == COLI_VRAM_PERCENT)
            d->allowance[i] = memory.total_bytes;
        else
            d->allowance[i] = memory.free_bytes > RESERVE ? memory.free_bytes - RESERVE : 0;
        if (memory.is_assumed)
            coli__devices_note(
                d, "%s: the driver does not tell how much memory is free; assumed %.1f GiB",
                coli__device_info(d->dev[i])->name, (double)memory.free_bytes / (double)RESERVE);
    }
    return COLI_OK;
}

/* Upload within the allowance; E_NOMEM when that or the device is full. */
static coli_status put(coli__devices *d, uint32_t i, const coli_bk_source *source,
                       coli_bk_tensor **out)
{
    const uint64_t footprint = coli__device_footprint(d->dev[i], source->n_bytes);
    *out = NULL;
    if (footprint > d->allowance[i] - d->used[i])
        return coli__fail(COLI_E_NOMEM, "the allowance of %s is used up",
                          coli__device_info(d->dev[i])->name);
    COLI_TRY(coli__device_upload(d->dev[i], source, out));
    d->used[i] += footprint;
    return COLI_OK;
}

/* -- dense matrices ---------------------------------------------------------------------------- */

static int by_data(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t)((const placed_matrix *)a)->data,
                    y = (uintptr_t)((const placed_matrix *)b)->data;
    return (x > y) - (x < y);
}

static bool has_room(coli__devices *d)
{
    if (d->n_matrix < d->cap_matrix) return true;
    const uint32_t cap = d->cap_matrix ? 2 * d->cap_matrix : 64;
    placed_matrix *grown = coli__realloc(d->matrices, cap, sizeof *grown);
    if (!grown) return false;
    d->matrices = grown;
    d->cap_matrix = cap;
    return true;
}

void coli__devices_offer(coli__devices *d, const coli__mat *w)
{
    if (!d || !d->trunk) return;
    coli_bk_source source = {.struct_size = sizeof source, .n_matrix = 1, .data = w->data};
    placed_matrix m = {.data = w->data, .n_out = w->n_out};
    coli__slot there;
    if (coli__devices_matrix(d, w, &there)) return; // tied weights are offered twice
    if (!computes(d->dev[0], w->fmt) || !coli__device_multiplies(d->dev[0]) || !has_room(d) ||
        !coli__mat_bytes(w->fmt, w->n_out, w->n_in, &source.n_bytes, NULL)) {
        d->n_refused++;
        return;
    }
    source.matrix[0] = describe(w, 0);
    m.row_bytes = ((size_t)w->n_in + w->fmt.group - 1) / w->fmt.group * w->fmt.group;
    if (put(d, 0, &source, &m.place.tensor) != COLI_OK) {
        d->n_refused++;
        return;
    }
    d->matrices[d->n_matrix++] = m;
    qsort(d->matrices, d->n_matrix, sizeof m, by_data);
}

bool coli__devices_matrix(const coli__devices *d, const coli__mat *w, coli__slot *out)
{
    if (!d || d->n_matrix == 0) return false;
    const placed_matrix key = {.data = w->data};
    const placed_matrix *m = bsearch(&key, d->matrices, d->n_matrix, sizeof key, by_data);
    if (!m || !coli__device_multiplies(d->dev[m->place.device])) return false;
    *out = m->place;
    return true;
}

void coli__devices_matrix_limits(const coli__devices *d, size_t *max_row_bytes, size_t *max_out)
{
    *max_row_bytes = *max_out = 0;
    for (uint32_t i = 0; d && i < d->n_matrix; i++) {
        const placed_matrix *m = &d->matrices[i];
        if (m->row_bytes > *max_row_bytes) *max_row_bytes = m->row_bytes;
        if (m->n_out > *max_out) *max_out = m->n_out;
    }
}

/* -- experts ----------------------------------------------------------------------------------- */

/* One expert as a device sees it; false when no device computes its formats. */
static bool expert_source(const coli__device *dev, const coli__ct_experts *layer, uint32_t e,
                          coli_bk_source *out)
{
    coli__mat gate, up, down;
    coli__ct_expert(layer, e, &gate, &up, &down);
    if (!computes(dev, gate.fmt) || !computes(dev, up.fmt) || !computes(dev, down.fmt) ||
        gate.fmt.group != up.fmt.group)
        return false;
    *out = (coli_bk_source){.struct_size = sizeof *out,
                            .n_matrix = 3,
                            .data = gate.data,
                            .n_bytes = layer->block_bytes,
                            .matrix = {describe(&gate, 0), describe(&up, layer->up_offset),
                                       describe(&down, layer->down_offset)}};
    return true;
}

/* The state of going through all experts. */
typedef struct placing {
    coli__devices *d;
    bool full[COLI__MAX_DEVICE];
    uint64_t n_unsupported, n_failed, done_bytes, total_bytes;
} placing;

static coli__slot *slot_of(const coli__devices *d, const coli__ct_experts *layer, uint32_t e)
{
    return &d->experts[d->first[layer->layer] + e];
}

/* How many of a layer's experts the options ask for. */
static uint32_t n_wanted(const coli__devices *d, const coli__ct_experts *layer)
{
    if (d->vram_unit != COLI_VRAM_PERCENT) return layer->n_expert;
    const double n = (double)layer->n_expert * d->vram / 100 + 0.5;
    return n < layer->n_expert ? (uint32_t)n : layer->n_expert;
}

static void place_expert(placing *p, const coli__ct_experts *layer, uint32_t e)
{
    coli__devices *d = p->d;
    const uint32_t device = e % d->n;
    coli_bk_source source;
    if (p->full[device] || !coli__device_alive(d->dev[device])) return;
    if (!expert_source(d->dev[device], layer, e, &source)) {
        p->n_unsupported++;
        return;
    }
    coli__slot *place = slot_of(d, layer, e);
    place->device = device;
    const coli_status status = put(d, device, &source, &place->tensor);
    if (status == COLI_E_NOMEM) p->full[device] = true;
    if (status != COLI_OK) p->n_failed++;
}

static coli_status lay_out_table(coli__devices *d)
{
    const coli__container *c = d->container;
    const uint32_t n_layer = coli__container_n_expert_layer(c);
    uint32_t last = 0;
    for (uint32_t i = 0; i < n_layer; i++) {
        const coli__ct_experts *layer = coli__container_experts(c, i);
        if (layer->layer > last) last = layer->layer;
        d->n_expert_total += layer->n_expert;
    }
    d->first = coli__calloc((size_t)last + 1, sizeof *d->first);
    d->experts = coli__calloc((size_t)d->n_expert_total, sizeof *d->experts);
    if (!d->first || !d->experts) return COLI_E_NOMEM;
    size_t first = 0;
    for (uint32_t i = 0; i < n_layer; i++) {
        const coli__ct_experts *layer = coli__container_experts(c, i);
        d->first[layer->layer] = first;
        first += layer->n_expert;
    }
    return COLI_OK;
}

static bool any_left(const placing *p)
{
    for (uint32_t i = 0; i < p->d->n; i++)
        if (!p->full[i] && coli__device_alive(p->d->dev[i])) return true;
    return false;
}

/* One expert of each layer. */
static coli_status place_round(placing *p, uint32_t e)
{
    const uint32_t n_layer = coli__container_n_expert_layer(p->d->container);
    for (uint32_t i = 0; i < n_layer; i++) {
        const coli__ct_experts *layer = coli__container_experts(p->d->container, i);
        if (e >= n_wanted(p->d, layer)) continue;
        place_expert(p, layer, e);
        p->done_bytes += layer->block_bytes;
    }
    if (p->d->progress &&
        !p->d->progress(p->d->user, "copying experts to the device", p->done_bytes, p->total_bytes))
        return coli__fail(COLI_E_CANCELLED, "stopped by the caller");
    return COLI_OK;
}

static void say_what_is_where(const placing *p)
{
    const coli__devices *d = p->d;
    for (uint32_t i = 0; i < d->n; i++) {
        const coli__device *dev = d->dev[i];
        const coli_bk_device_info *info = coli__device_info(dev);
        char trunk[48] = "";
        if (i == 0 && d->n_matrix)
            snprintf(trunk, sizeof trunk, ", %u dense matrices", d->n_matrix);
        coli__devices_note(d, "%s %u: %s%s%s: %llu of %llu experts%s, %.2f GiB of %.2f GiB",
                           coli__device_plugin(dev)->info.name, coli__device_ordinal(dev),
                           info->name, info->uuid[0] ? ", " : "", info->uuid,
                           (unsigned long long)coli__devices_n_expert_on(d, i),
                           (unsigned long long)d->n_expert_total, trunk,
                           (double)d->used[i] / (double)RESERVE,
                           (double)info->mem_total / (double)RESERVE);
        if (!coli__device_alive(dev)) coli__devices_note(d, "given up: %s", coli__device_why(dev));
    }
    if (p->n_unsupported)
        coli__devices_note(d,
                           "%llu experts stay in memory: the device does not compute their format",
                           (unsigned long long)p->n_unsupported);
    if (p->n_failed && d->vram_unit == COLI_VRAM_PERCENT)
        coli__devices_note(d, "fewer experts than asked for: %s", coli_error_message());
}

coli_status coli__devices_place_experts(coli__devices *d)
{
    if (!d) return COLI_OK;
    const coli__container *c = d->container;
    COLI_TRY(lay_out_table(d));
    placing p = {.d = d};
    uint32_t n_round = 0;
    for (uint32_t i = 0; i < coli__container_n_expert_layer(c); i++) {
        const coli__ct_experts *layer = coli__container_experts(c, i);
        const uint32_t n = n_wanted(d, layer);
        if (n > n_round) n_round = n;
        p.total_bytes += n * layer->block_bytes;
    }
    for (uint32_t e = 0; e < n_round && any_left(&p); e++) COLI_TRY(place_round(&p, e));
    for (uint32_t i = 0; i < d->n && d->asked; i++) // not a silent run on the processor
        if (!coli__device_alive(d->dev[i]))
            return coli__fail(COLI_E_UNSUPPORTED, "%s", coli__device_why(d->dev[i]));
    say_what_is_where(&p);
    return COLI_OK;
}

bool coli__devices_expert(const coli__devices *d, const coli__ct_experts *layer, uint32_t expert,
                          coli__slot *out)
{
    if (!d) return false;
    *out = *slot_of(d, layer, expert);
    return out->tensor && coli__device_alive(d->dev[out->device]);
}

coli_status coli__devices_swap(coli__devices *d, const coli__ct_experts *layer, uint32_t leaving,
                               uint32_t coming)
{
    coli__slot *from = slot_of(d, layer, leaving), *to = slot_of(d, layer, coming);
    coli_bk_source source;
    if (!from->tensor || to->tensor || leaving == coming)
        return coli__fail(COLI_E_INVALID, "layer %u: expert %u is on no device, or %u already is",
                          layer->layer, leaving, coming);
    if (!expert_source(d->dev[from->device], layer, coming, &source))
        return coli__fail(COLI_E_INVALID, "layer %u: expert %u has another format", layer->layer,
                          coming);
    coli__slot moving = *from;
    from->tensor = NULL;
    const coli_status status =
        coli__device_overwrite(d->dev[moving.device], &moving.tensor, &source);
    if (status == COLI_OK)
        *to = moving;
    else
        d->used[moving.device] -= coli__device_footprint(d->dev[moving.device], source.n_bytes);
    return status;
}

uint64_t coli__devices_n_expert_on(const coli__devices *d, uint32_t device)
{
    if (!coli__device_alive(d->dev[device])) return 0;
    uint64_t n = 0;
    for (uint64_t e = 0; e < d->n_expert_total; e++)
        n += d->experts[e].tensor && d->experts[e].device == device;
    return n;
}
