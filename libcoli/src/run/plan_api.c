/* plan_api.c - coli_plan: what opening a model would decide, without opening it.
 *
 * The sizes come from where they are used: the container's tables, the engine's state_bytes, the
 * devices' allowances; the decision is that of moe/budget.h. */
#include <string.h>

#include "../base/memory.h"
#include "../moe/budget.h"
#include "../moe/store.h"
#include "api.h"
#include "session.h"

static uint64_t plus(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return coli__add(a, b, &sum) ? sum : UINT64_MAX;
}

static uint64_t n_expert_all(const coli_plan_result *r)
{
    return (uint64_t)r->n_layer * r->n_expert;
}

/* -- devices ----------------------------------------------------------------------------------- */

static coli_status plan_devices(const coli_model *m, const coli_model_opts *o, coli_plan_result *r)
{
    uint32_t n[COLI__MAX_DEVICE] = {0};
    uint64_t expert_bytes;
    coli__tier_slot(m->tier, &r->slot_bytes, &expert_bytes);
    COLI_TRY(coli__tier_room(m->tier, n));
    r->n_device = coli__devices_n(m->devices);
    for (uint32_t i = 0; i < r->n_device; i++) {
        r->n_in_vram += n[i];
        r->vram_bytes = plus(r->vram_bytes, coli__devices_room(m->devices, i));
        r->vram_trunk_bytes +=
            coli__devices_used(m->devices, i) - coli__tier_spare_bytes(m->tier, i);
    }
    if (o->vram_unit == COLI_VRAM_PERCENT) r->vram_bytes = r->n_in_vram * r->slot_bytes;
    return COLI_OK;
}

/* Without a device: as if there were one as large as was asked for. */
static void assume_device(const coli_model_opts *o, coli_plan_result *r)
{
    if (o->vram_unit == COLI_VRAM_AUTO) return;
    const uint64_t n = n_expert_all(r);
    r->vram_is_assumed = true;
    r->slot_bytes = r->expert_bytes;
    if (o->vram_unit == COLI_VRAM_BYTES) {
        r->vram_bytes = (uint64_t)o->vram;
        r->n_in_vram = coli__budget_slots(r->vram_bytes, r->slot_bytes, n);
    } else {
        r->n_in_vram = (uint64_t)((double)n * o->vram / 100 + 0.5);
        r->vram_bytes = r->n_in_vram * r->slot_bytes;
    }
}

/* -- memory ------------------------------------------------------------------------------------ */

static coli_status plan_memory(coli_model *m, const coli_model_opts *o, coli_session_opts *session,
                               coli_plan_result *r)
{
    coli__state_bytes state;
    COLI_TRY(coli__model_plan_memory(m, o, session, &state));
    r->n_threads = o->n_threads ? o->n_threads : coli__n_processor();
    r->n_ctx = session->n_ctx;
    r->n_chunk = session->n_chunk;
    r->kv_bytes = state.kv;
    r->state_bytes = state.state;
    r->scratch_bytes = state.scratch;
    r->trunk_bytes = coli__model_trunk_bytes(m->container);
    r->resident_bytes = m->resident_bytes;
    r->available_bytes = coli__memory_available();
    r->ram_bytes = m->ram.budget_bytes == COLI__BUDGET_UNKNOWN ? 0 : m->ram.budget_bytes;
    r->ram_experts = m->ram.cap;
    return COLI_OK;
}

static void plan_fit(const coli_model *m, coli_plan_result *r)
{
    const coli__split s = coli__budget_split(n_expert_all(r), r->n_layer, r->n_in_vram, &m->ram);
    r->n_in_ram = s.n_ram;
    r->n_on_disk = s.n_disk;
    // every layer has as many slots, so the fullest one decides
    const uint64_t cap = (s.n_ram + s.n_disk + r->n_layer - 1) / r->n_layer;
    uint64_t slots;
    if (!coli__mul(cap, coli__store_slot_bytes(m->container), &slots)) slots = UINT64_MAX;
    r->needed_bytes = plus(r->resident_bytes, slots);
    r->fit = m->ram.is_short ? COLI_FIT_NOT : s.n_disk > 0 ? COLI_FIT_READS : COLI_FIT_ALL;
    if (r->fit != COLI_FIT_ALL && r->ram_bytes > 0 && r->needed_bytes > r->ram_bytes)
        r->n_ctx_all =
            coli__budget_shorter_ctx(r->n_ctx, r->kv_bytes, r->needed_bytes - r->ram_bytes);
}

static void plan_token(const coli_model *m, coli_plan_result *r)
{
    const double n = (double)n_expert_all(r), experts = (double)m->token_expert_bytes;
    r->token_vram_bytes = (uint64_t)(experts * (double)r->n_in_vram / n);
    r->token_disk_bytes = (uint64_t)(experts * (double)r->n_on_disk / n);
    r->token_ram_bytes = m->token_trunk_bytes + m->token_head_bytes + m->token_expert_bytes -
                         r->token_vram_bytes - r->token_disk_bytes;
}

/* -- all of it --------------------------------------------------------------------------------- */

static coli_status plan(coli_model *m, const char *dir, const coli_model_opts *o,
                        coli_session_opts *session, coli_plan_result *r)
{
    COLI_TRY(coli__model_look(m, dir, o));
    r->n_layer = coli__container_n_expert_layer(m->container);
    if (r->n_layer == 0)
        return coli__fail(COLI_E_UNSUPPORTED, "%s: a model without routed experts", dir);
    const coli__ct_experts *x = coli__container_experts(m->container, 0);
    r->n_expert = x->n_expert;
    r->n_expert_used = m->shape.n_expert_used;
    r->expert_bytes = x->block_bytes;
    COLI_TRY(plan_memory(m, o, session, r));
    if (m->tier)
        COLI_TRY(plan_devices(m, o, r));
    else
        assume_device(o, r);
    plan_fit(m, r);
    plan_token(m, r);
    return COLI_OK;
}

coli_status coli_plan(const char *dir, const coli_model_opts *model,
                      const coli_session_opts *session, coli_plan_result *out)
{
    if (out) COLI_TRY(coli__struct_clear("coli_plan_result", out));
    if (!dir || !out) return coli__fail(COLI_E_INVALID, "coli_plan: an argument is NULL");
    coli_model_opts o;
    coli_session_opts s;
    COLI_TRY(coli__opts_copy("coli_model_opts", &o, sizeof o, model));
    COLI_TRY(coli__opts_copy("coli_session_opts", &s, sizeof s, session));
    coli_model *m = coli__calloc(1, sizeof *m);
    if (!m) return COLI_E_NOMEM;
    pthread_mutex_init(&m->mu, NULL);
    coli_plan_result full = {.struct_size = sizeof full};
    const coli__fp fp = coli__fp_enter();
    const coli_status status = plan(m, dir, &o, &s, &full);
    coli__fp_leave(fp);
    coli_model_close(m);
    if (status == COLI_OK) coli__struct_fill(out, &full, sizeof full);
    return status;
}
