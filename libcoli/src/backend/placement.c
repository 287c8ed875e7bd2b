/* placement.c - the books of what devices may hold and do hold, and the dense matrices on them. */
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

/* What of a device's memory may be used; 0 when the device does not say how much it has. */
static coli_status allow(coli__devices *d, uint32_t i)
{
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
    if (d->allowance[i] == 0 && d->vram_unit == COLI_VRAM_AUTO)
        coli__devices_note(d,
                           "%s: less than 1 GiB is free, so nothing goes there; --vram says how "
                           "much may be used nevertheless",
                           coli__device_info(d->dev[i])->name);
    return COLI_OK;
}

coli_status coli__devices_allow(coli__devices *d)
{
    uint32_t n_good = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        if (allow(d, i) == COLI_OK)
            n_good++;
        else
            coli__devices_note(d, "not used: %s", coli_error_message());
    }
    return n_good ? COLI_OK : coli__fail(COLI_E_UNSUPPORTED, "%s", coli_error_message());
}

/* Upload within the allowance; E_NOMEM when that or the device is full. */
static coli_status put(coli__devices *d, uint32_t i, const coli_bk_source *source,
                       coli_bk_tensor **out)
{
    const uint64_t footprint = coli__device_footprint(d->dev[i], source->n_bytes);
    *out = NULL;
    if (!coli__devices_take(d, i, footprint))
        return coli__fail(COLI_E_NOMEM, "the allowance of %s is used up",
                          coli__device_info(d->dev[i])->name);
    const coli_status status = coli__device_upload(d->dev[i], source, out);
    if (status != COLI_OK) coli__devices_give(d, i, footprint);
    return status;
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
    if (d->n_placed < d->cap_placed) return true;
    const uint32_t cap = d->cap_placed ? 2 * d->cap_placed : 64;
    placed_matrix *grown = coli__realloc(d->matrices, cap, sizeof *grown);
    if (!grown) return false;
    d->matrices = grown;
    d->cap_placed = cap;
    return true;
}

bool coli__devices_dense_source(const coli__device *dev, coli__dense_block block,
                                coli_bk_source *out)
{
    *out = (coli_bk_source){.struct_size = sizeof *out, .n_matrix = block.n_mat};
    if (block.n_mat == 1)
        out->data = block.mats[0]->data;
    else if (block.mats[0]->fmt.group != block.mats[1]->fmt.group)
        return false;
    for (uint32_t i = 0; i < block.n_mat; i++) {
        const coli__mat *w = block.mats[i];
        uint64_t n_bytes;
        if (!computes(dev, w->fmt) || !coli__mat_bytes(w->fmt, w->n_out, w->n_in, &n_bytes, NULL) ||
            n_bytes > INT64_MAX / 4)
            return false;
        const uint64_t offset = (out->n_bytes + 63) & ~UINT64_C(63);
        out->matrix[i] = describe(w, offset);
        out->n_bytes = offset + n_bytes;
    }
    const uint64_t most = coli__device_info(dev)->max_tensor_bytes;
    return most == 0 || out->n_bytes <= most;
}

bool coli__devices_dense_footprint(const coli__devices *d, uint32_t device, coli__dense_block block,
                                   uint64_t *n_bytes)
{
    coli_bk_source source;
    if (!coli__devices_dense_source(d->dev[device], block, &source) ||
        (block.n_mat == 1 && !coli__device_multiplies(d->dev[device])))
        return false;
    *n_bytes = coli__device_footprint(d->dev[device], source.n_bytes);
    return true;
}

/* The matrices of an expert one after another, for the copy. */
static coli_status gather(coli__dense_block block, coli_bk_source *source)
{
    uint8_t *data = coli__alloc64(source->n_bytes);
    if (!data) return COLI_E_NOMEM;
    for (uint32_t i = 0; i < block.n_mat; i++) {
        const coli__mat *w = block.mats[i];
        memcpy(data + source->matrix[i].offset, w->data, coli__mat_size(w));
    }
    source->data = data;
    return COLI_OK;
}

coli_status coli__devices_put_dense(coli__devices *d, uint32_t device, coli__dense_block block)
{
    const coli__mat *w = block.mats[0];
    coli_bk_source source;
    if (!coli__devices_dense_source(d->dev[device], block, &source))
        return coli__fail(COLI_E_UNSUPPORTED, "%s does not compute this format",
                          coli__device_info(d->dev[device])->name);
    placed_matrix m = {.data = w->data,
                       .n_matrix = block.n_mat,
                       .n_out = w->n_out,
                       .row_bytes =
                           ((size_t)w->n_in + w->fmt.group - 1) / w->fmt.group * w->fmt.group};
    if (!has_room(d)) return COLI_E_NOMEM;
    if (block.n_mat > 1) COLI_TRY(gather(block, &source));
    const uint64_t before = d->used[device];
    const coli_status status = put(d, device, &source, &m.place.tensor);
    if (block.n_mat > 1 && !coli__device_hangs(d->dev[device])) // else it may still be read
        coli__free_aligned((void *)source.data);
    COLI_TRY(status);
    m.place.device = device;
    d->matrix_bytes[device] += d->used[device] - before;
    d->matrices[d->n_placed++] = m;
    qsort(d->matrices, d->n_placed, sizeof m, by_data);
    return COLI_OK;
}

static placed_matrix *find_placed(const coli__devices *d, const coli__mat *w)
{
    if (!d || d->n_placed == 0) return NULL;
    const placed_matrix key = {.data = w->data};
    return bsearch(&key, d->matrices, d->n_placed, sizeof key, by_data);
}

bool coli__devices_matrix(const coli__devices *d, const coli__mat *w, coli__slot *out)
{
    const placed_matrix *m = find_placed(d, w);
    if (!m || m->is_off || m->n_matrix != 1 || !coli__device_multiplies(d->dev[m->place.device]))
        return false;
    *out = m->place;
    return true;
}

bool coli__devices_dense_expert(const coli__devices *d, const coli__mat *gate, coli__slot *out)
{
    const placed_matrix *m = find_placed(d, gate);
    if (!m || m->is_off || m->n_matrix != 3 || !coli__device_alive(d->dev[m->place.device]))
        return false;
    *out = m->place;
    return true;
}

void coli__devices_switch_off(coli__devices *d, const coli__mat *w)
{
    placed_matrix *m = find_placed(d, w);
    if (m) m->is_off = true;
}

void coli__devices_matrix_limits(const coli__devices *d, uint32_t device, size_t *max_row_bytes,
                                 size_t *max_out)
{
    *max_row_bytes = *max_out = 0;
    for (uint32_t i = 0; i < d->n_placed; i++) {
        const placed_matrix *m = &d->matrices[i];
        if (m->place.device != device || m->n_matrix != 1) continue;
        if (m->row_bytes > *max_row_bytes) *max_row_bytes = m->row_bytes;
        if (m->n_out > *max_out) *max_out = m->n_out;
    }
}

bool coli__devices_has_dense_expert(const coli__devices *d, uint32_t device)
{
    for (uint32_t i = 0; i < d->n_placed; i++)
        if (d->matrices[i].place.device == device && d->matrices[i].n_matrix == 3) return true;
    return false;
}

/* -- experts ----------------------------------------------------------------------------------- */

bool coli__devices_expert_source(const coli__devices *d, uint32_t device,
                                 const coli__ct_experts *layer, uint32_t expert,
                                 coli_bk_source *out)
{
    const coli__device *dev = d->dev[device];
    coli__mat gate, up, down;
    coli__ct_expert(layer, expert, &gate, &up, &down);
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

uint64_t coli__devices_wanted(const coli__devices *d, uint64_t n)
{
    if (d->vram_unit != COLI_VRAM_PERCENT) return n;
    const uint64_t wanted = (uint64_t)((double)n * d->vram / 100 + 0.5);
    return wanted < n ? wanted : n;
}

uint64_t coli__devices_room(const coli__devices *d, uint32_t device)
{
    return d->allowance[device] - d->used[device];
}

bool coli__devices_take(coli__devices *d, uint32_t device, uint64_t n_bytes)
{
    if (n_bytes > coli__devices_room(d, device)) return false;
    d->used[device] += n_bytes;
    return true;
}

void coli__devices_give(coli__devices *d, uint32_t device, uint64_t n_bytes)
{
    d->used[device] -= n_bytes;
}

void coli__devices_slot_gone(coli__devices *d, uint32_t device, uint64_t n_bytes)
{
    d->used[device] -= n_bytes;
    d->allowance[device] -= n_bytes;
}

uint64_t coli__devices_used(const coli__devices *d, uint32_t device)
{
    return d->used[device];
}

uint64_t coli__devices_matrix_bytes(const coli__devices *d, uint32_t device)
{
    return d->matrix_bytes[device];
}

coli_status coli__devices_progress(const coli__devices *d, uint64_t done_bytes,
                                   uint64_t total_bytes)
{
    if (!d->progress ||
        d->progress(d->user, "copying experts to the device", done_bytes, total_bytes))
        return COLI_OK;
    return coli__fail(COLI_E_CANCELLED, "stopped by the caller");
}

/* "fake 0: simulated device 0: 256 of 512 experts, 27 dense matrices, 0.02 GiB of 8.00 GiB" */
static void say_what_is_where(const coli__devices *d, uint32_t i, uint32_t n, uint64_t n_expert)
{
    const coli__device *dev = d->dev[i];
    const coli_bk_device_info *info = coli__device_info(dev);
    char trunk[48] = "";
    uint32_t n_matrix = 0;
    for (uint32_t j = 0; j < d->n_placed; j++)
        if (d->matrices[j].place.device == i) n_matrix += d->matrices[j].n_matrix;
    if (n_matrix) snprintf(trunk, sizeof trunk, ", %u dense matrices", n_matrix);
    coli__devices_note(d, "%s %u: %s%s%s: %u of %llu experts%s, %.2f GiB of %.2f GiB",
                       coli__device_plugin(dev)->info.name, coli__device_ordinal(dev), info->name,
                       info->uuid[0] ? ", " : "", info->uuid, n, (unsigned long long)n_expert,
                       trunk, (double)d->used[i] / (double)RESERVE,
                       (double)info->mem_total / (double)RESERVE);
    if (!coli__device_alive(dev)) coli__devices_note(d, "given up: %s", coli__device_why(dev));
}

coli_status coli__devices_placed(const coli__devices *d, const uint32_t *n_resident,
                                 uint64_t n_expert, bool is_unsupported, bool comes_later)
{
    uint64_t n = 0, n_alive = 0;
    for (uint32_t i = 0; i < d->n; i++) n_alive += coli__device_alive(d->dev[i]);
    for (uint32_t i = 0; i < d->n; i++) {
        if (d->asked && n_alive == 0) // not a silent run on the processor
            return coli__fail(COLI_E_UNSUPPORTED, "%s", coli__device_why(d->dev[i]));
        n += n_resident[i];
    }
    for (uint32_t i = 0; i < d->n; i++) say_what_is_where(d, i, n_resident[i], n_expert);
    if (is_unsupported)
        coli__devices_note(d, "experts stay in memory: the device does not compute their format");
    else if (comes_later)
        coli__devices_note(d, "experts are copied when they are first used");
    else if (d->vram_unit == COLI_VRAM_PERCENT && n < coli__devices_wanted(d, n_expert))
        coli__devices_note(
            d, "fewer experts than asked for: the device has no room for more, or failed");
    return COLI_OK;
}
