/* stream.c - see stream.h.
 *
 * An expert whose copy or whose group fails is simply not done; the next is tried, which costs nothing
 * once the device is lost. */
#include "stream.h"

#include <string.h>

#include "../base/alloc.h"
#include "../base/lane.h"
#include "../base/threads.h"

struct coli__stream {
    coli__tier *tier;
    uint32_t device, d_model;
    coli__lane *lane;
    coli__group *group;
    uint32_t *rows; // (max_row) 0, 1, 2, ...

    /* the lane's while it works */
    coli__stream_work work;
    coli__passing *computing; // the group's; NULL: none
    uint32_t slot;            // it is in
    uint64_t begin_ns;
};

coli_status coli__stream_create(coli__tier *tier, uint32_t device, uint32_t max_row,
                                size_t max_row_bytes, uint32_t d_model, coli__stream **out)
{
    *out = NULL;
    coli__stream *s = coli__calloc(1, sizeof *s);
    if (!s) return COLI_E_NOMEM;
    s->tier = tier;
    s->device = device;
    s->d_model = d_model;
    const coli__group_limits limits = {.max_x = max_row,
                                       .max_expert = 1,
                                       .max_pair = max_row,
                                       .n_used = 1,
                                       .d_model = d_model,
                                       .max_row_bytes = max_row_bytes};
    s->rows = coli__calloc(max_row, sizeof *s->rows);
    for (uint32_t i = 0; s->rows && i < max_row; i++) s->rows[i] = i;
    coli_status status = s->rows ? COLI_OK : COLI_E_NOMEM;
    if (status == COLI_OK)
        status = coli__group_create(coli__devices_at(coli__tier_devices(tier), device), &limits,
                                    &s->group);
    if (status == COLI_OK) status = coli__lane_create("coli-stream", &s->lane);
    if (status != COLI_OK) {
        coli__stream_destroy(s);
        return status;
    }
    *out = s;
    return COLI_OK;
}

void coli__stream_destroy(coli__stream *s)
{
    if (!s) return;
    coli__lane_destroy(s->lane); // idle: the device's own limits end a job
    coli__group_destroy(s->group);
    coli__free(s->rows);
    coli__free(s);
}

/* Wait for the group, if there is one, and take what it computed. */
static void finish(coli__stream *s)
{
    coli__passing *p = s->computing;
    s->computing = NULL;
    const coli_bk_result *r = p ? coli__group_wait(s->group) : NULL;
    if (!r) return;
    for (uint32_t i = 0; i < p->n; i++)
        memcpy(p->y + (size_t)i * s->d_model, r->y + i * r->ld, s->d_model * sizeof *p->y);
    memcpy(p->flag, r->flag, p->n);
    p->is_done = true;
    coli__tier_passed(s->tier, s->device, (double)(coli__clock_ns() - s->begin_ns) / p->n);
}

static void begin(coli__stream *s, coli__passing *p, uint32_t slot, coli_bk_tensor *tensor)
{
    coli__group_begin_some(s->group, s->work.x, p->rows, p->n);
    coli__group_add(s->group, tensor, p->n, s->rows);
    s->begin_ns = coli__clock_ns();
    s->computing = p;
    s->slot = slot;
    coli__group_start(s->group, NULL);
}

/* A slot to copy into, which is not the one that is computed from unless there is no other. */
static bool find_slot(coli__stream *s, uint32_t *slot)
{
    for (*slot = 0; *slot < COLI__SPARE; ++*slot)
        if (coli__tier_has_spare(s->tier, s->device, *slot) && (!s->computing || *slot != s->slot))
            return true;
    if (!s->computing) return false;
    finish(s);
    return find_slot(s, slot);
}

static void job_stream(void *ctx)
{
    coli__stream *s = ctx;
    const coli__stream_work *w = &s->work;
    for (uint32_t i = w->first; i < w->n; i += w->step) {
        coli__passing *p = &w->passing[i];
        uint32_t slot;
        coli_bk_tensor *tensor = NULL;
        if (find_slot(s, &slot))
            tensor = coli__tier_pass(s->tier, s->device, slot, w->layer, p->expert);
        finish(s);
        if (tensor) begin(s, p, slot, tensor);
    }
    finish(s);
    if (w->group) coli__group_start(w->group, w->then);
}

void coli__stream_start(coli__stream *s, const coli__stream_work *work)
{
    s->work = *work;
    coli__lane_start(s->lane, job_stream, s);
}

void coli__stream_wait(coli__stream *s)
{
    coli__lane_wait(s->lane, UINT64_MAX);
}
