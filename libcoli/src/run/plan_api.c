/* plan_api.c - coli_plan: what opening a model would decide, without opening it; and how fast it would
 * then be.
 *
 * The sizes come from where they are used: the container's tables, the engine's state_bytes, the
 * devices' allowances; the decision is that of moe/budget.h.  Speeds are measured (plan_measure.h), what
 * follows from them is expect.h. */
#include <string.h>

#include "../base/alloc.h"
#include "../model/recipe.h"
#include "../moe/budget.h"
#include "../moe/store.h"
#include "api.h"
#include "expect.h"
#include "plan_measure.h"
#include "session.h"

static uint64_t n_expert_all(const coli_plan_result *r)
{
    return (uint64_t)r->n_layer * r->n_expert;
}

/* -- devices ----------------------------------------------------------------------------------- */

/* n_vram (n_layer): of each layer. */
static coli_status plan_devices(const coli_model *m, const coli_model_opts *o, coli_plan_result *r,
                                uint32_t *n_vram)
{
    uint32_t n[COLI__MAX_DEVICE];
    uint64_t expert_bytes;
    coli__tier_slot(m->tier, &r->slot_bytes, &expert_bytes);
    COLI_TRY(coli__tier_would_hold(m->tier, n, n_vram));
    r->n_device = coli__devices_n(m->devices);
    for (uint32_t i = 0; i < r->n_device; i++) {
        r->n_in_vram += n[i];
        r->vram_bytes = coli__plus(r->vram_bytes, coli__devices_room(m->devices, i));
        r->vram_trunk_bytes +=
            coli__devices_used(m->devices, i) - coli__tier_spare_bytes(m->tier, i);
    }
    if (o->vram_unit == COLI_VRAM_PERCENT) r->vram_bytes = r->n_in_vram * r->slot_bytes;
    return COLI_OK;
}

/* Without a device: as if there were one as large as was asked for. */
static void assume_device(const coli_model_opts *o, coli_plan_result *r, uint32_t *n_vram)
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
        if (r->n_in_vram > n) r->n_in_vram = n;
        r->vram_bytes = r->n_in_vram * r->slot_bytes;
    }
    for (uint32_t l = 0; l < r->n_layer; l++) // an expert of each layer, and another of each
        n_vram[l] = (uint32_t)((r->n_in_vram + r->n_layer - 1 - l) / r->n_layer);
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
    r->available_bytes = m->available_bytes;
    r->ram_bytes = m->ram.budget_bytes == COLI__BUDGET_UNKNOWN ? 0 : m->ram.budget_bytes;
    r->ram_experts = m->ram.cap;
    return COLI_OK;
}

/* The longest shorter context with which the residents and slot_bytes have room; 0: none.  Without a limit
 * of the user's a byte that the residents do not take adds 88 hundredths of it to what experts may. */
static uint32_t shorter_ctx(const coli_model_opts *o, uint64_t slot_bytes,
                            const coli_plan_result *r)
{
    const bool asked = o->ram_bytes > 0;
    const uint64_t slots = asked ? slot_bytes : coli__plus(slot_bytes, slot_bytes / 88 * 12 + 100),
                   needed = coli__plus(r->resident_bytes, slots),
                   room = asked ? o->ram_bytes : r->available_bytes;
    return room > 0 && needed > room
               ? coli__budget_shorter_ctx(r->n_ctx, r->kv_bytes, needed - room)
               : 0;
}

static void plan_fit(const coli_model *m, const coli_model_opts *o, const uint32_t *n_vram,
                     coli_plan_result *r)
{
    const coli__split s = coli__budget_split(n_vram, r->n_layer, r->n_expert, &m->ram);
    r->n_in_ram = s.n_ram;
    r->n_on_disk = s.n_disk;
    const uint64_t slot_bytes = coli__store_slot_bytes(m->container),
                   per_cap = slot_bytes ? slot_bytes : UINT64_MAX; // one expert of each layer
    // Every layer has as many, so the one that devices hold least of decides.
    const uint64_t slots = coli__times(s.most, per_cap);
    r->needed_bytes = coli__plus(r->resident_bytes, slots);
    r->least_bytes = coli__plus(r->resident_bytes, per_cap);
    r->fit = m->ram.is_short ? COLI_FIT_NOT : s.n_disk > 0 ? COLI_FIT_READS : COLI_FIT_ALL;
    if (r->fit != COLI_FIT_ALL && r->ram_bytes > 0 && r->needed_bytes > r->ram_bytes)
        r->n_ctx_all = shorter_ctx(o, slots, r);
    if (r->fit == COLI_FIT_NOT) r->n_ctx_least = shorter_ctx(o, per_cap, r);
}

static void plan_token(const coli_model *m, coli_plan_result *r)
{
    const double n = (double)n_expert_all(r), experts = (double)m->token_expert_bytes;
    r->token_vram_bytes = (uint64_t)(experts * (double)r->n_in_vram / n);
    r->token_disk_bytes = (uint64_t)(experts * (double)r->n_on_disk / n);
    r->token_trunk_bytes = m->token_trunk_bytes;
    r->token_head_bytes = m->token_head_bytes;
    r->token_expert_ram_bytes = m->token_expert_bytes - r->token_vram_bytes - r->token_disk_bytes;
    r->token_ram_bytes = r->token_trunk_bytes + r->token_head_bytes + r->token_expert_ram_bytes;
    r->token_state_bytes = coli__plus(r->state_bytes, r->state_bytes);
    r->token_kv_bytes = r->kv_bytes;
}

/* -- speed ------------------------------------------------------------------------------------- */

/* The phases of a layer (engines/qwen36/qwen36.c); the head, and the embedding. */
enum { SYNCS_PER_LAYER = 5, SYNCS_BESIDE = 2 };

static coli_status plan_speed(coli_model *m, const coli_model_opts *o, coli_plan_result *r)
{
    COLI_TRY(coli__plan_measure(m, o, r));
    const double away = (double)r->n_in_vram / (double)n_expert_all(r);
    const coli__expect_in in = {.ram_bytes = coli__plus(r->token_ram_bytes, r->token_state_bytes),
                                .kv_bytes = r->token_kv_bytes,
                                .disk_bytes = r->token_disk_bytes,
                                .vram_bytes = r->token_vram_bytes,
                                .n_mac = m->n_mac_body + m->n_mac_head -
                                         (uint64_t)((double)m->n_mac_experts * away),
                                .n_sync = SYNCS_PER_LAYER * m->shape.n_layer + SYNCS_BESIDE,
                                .ram = {r->ram_gb_s_min, r->ram_gb_s_max},
                                .disk = {r->disk_gb_s_min, r->disk_gb_s_max},
                                .gmac = {r->gmac_s_min, r->gmac_s_max},
                                .vram = r->vram_gb_s,
                                .sync_us = {r->sync_us_min, r->sync_us_max},
                                .sample_us = {r->sample_us_min, r->sample_us_max}};
    coli__expect(&in, r);
    return COLI_OK;
}

/* -- all of it --------------------------------------------------------------------------------- */

/* What the caller wants, checked. */
typedef struct wishes {
    coli_model_opts model;
    coli_session_opts session;
    coli__formats formats; // of a model that is not converted
    bool formats_are_asked, measure;
} wishes;

static coli_status place(const coli_model *m, const coli_model_opts *o, coli_plan_result *r)
{
    uint32_t *n_vram = coli__calloc(r->n_layer, sizeof *n_vram);
    if (!n_vram) return COLI_E_NOMEM;
    coli_status status = COLI_OK;
    if (m->tier)
        status = plan_devices(m, o, r, n_vram);
    else
        assume_device(o, r, n_vram);
    if (status == COLI_OK) plan_fit(m, o, n_vram, r);
    coli__free(n_vram);
    return status;
}

static coli_status plan(coli_model *m, const char *dir, const wishes *w, coli_plan_result *r)
{
    const coli_model_opts *o = &w->model;
    coli_session_opts session = w->session;
    COLI_TRY(coli__model_look(m, dir, o, &w->formats));
    r->is_imagined = coli__container_is_imagined(m->container);
    r->is_of_source = m->is_of_source;
    if (w->formats_are_asked && !r->is_imagined)
        return coli__fail(COLI_E_INVALID,
                          "%s: is a container, which has its formats: none can be chosen", dir);
    r->n_layer = coli__container_n_expert_layer(m->container);
    if (r->n_layer == 0)
        return coli__fail(COLI_E_UNSUPPORTED, "%s: a model without routed experts", dir);
    const coli__ct_experts *x = coli__container_experts(m->container, 0);
    r->n_expert = x->n_expert;
    r->n_expert_used = m->shape.n_expert_used;
    r->expert_bytes = x->block_bytes;
    COLI_TRY(plan_memory(m, o, &session, r));
    COLI_TRY(place(m, o, r));
    plan_token(m, r);
    // what swaps, or does not start at all, has no speed that these measurements tell
    return w->measure && r->fit != COLI_FIT_NOT ? plan_speed(m, o, r) : COLI_OK;
}

static coli_status plan_for(const char *dir, const wishes *w, coli_plan_result *out)
{
    coli_model *m = coli__calloc(1, sizeof *m);
    if (!m) return COLI_E_NOMEM;
    pthread_mutex_init(&m->mu, NULL);
    coli_plan_result full = {.struct_size = sizeof full};
    const coli__fp fp = coli__fp_enter();
    const coli_status status = plan(m, dir, w, &full);
    coli__fp_leave(fp);
    coli_model_close(m);
    if (status == COLI_OK) coli__struct_fill(out, &full, sizeof full);
    return status;
}

/* What is asked for beside it counts as lines behind its own, as for coli_convert. */
static coli_status read_recipe(const coli_plan_opts *o, coli__recipe **out)
{
    COLI_TRY(coli__recipe_open(o->recipe, out));
    if (o->trunk) COLI_TRY(coli__recipe_add(*out, "trunk", "trunk", o->trunk));
    return o->experts ? coli__recipe_add(*out, "experts", "experts", o->experts) : COLI_OK;
}

static coli_status read_wishes(const coli_model_opts *model, const coli_session_opts *session,
                               const coli_plan_opts *o, wishes *w)
{
    *w = (wishes){.measure = o->measure, .formats_are_asked = o->experts || o->trunk || o->recipe};
    COLI_TRY(coli__opts_copy("coli_model_opts", &w->model, sizeof w->model, model));
    COLI_TRY(coli__opts_copy("coli_session_opts", &w->session, sizeof w->session, session));
    COLI_TRY(coli__wfmt_parse(o->experts ? o->experts : "int4", &w->formats.experts));
    COLI_TRY(coli__wfmt_parse(o->trunk ? o->trunk : "int8", &w->formats.trunk));
    w->formats.experts_are_default = !o->experts;
    w->formats.trunk_is_default = !o->trunk;
    return o->recipe ? read_recipe(o, &w->formats.recipe) : COLI_OK;
}

coli_status coli_plan_make(const char *dir, const coli_plan_opts *opts, coli_plan_result *out)
{
    if (out) COLI_TRY(coli__struct_clear("coli_plan_result", out));
    if (!dir || !out) return coli__fail(COLI_E_INVALID, "coli_plan_make: an argument is NULL");
    coli_plan_opts o;
    wishes w;
    COLI_TRY(coli__opts_copy("coli_plan_opts", &o, sizeof o, opts));
    coli_status status = read_wishes(o.model, o.session, &o, &w);
    if (status == COLI_OK) status = plan_for(dir, &w, out);
    coli__recipe_close(w.formats.recipe);
    return status;
}

coli_status coli_plan(const char *dir, const coli_model_opts *model,
                      const coli_session_opts *session, coli_plan_result *out)
{
    if (out) COLI_TRY(coli__struct_clear("coli_plan_result", out));
    if (!dir || !out) return coli__fail(COLI_E_INVALID, "coli_plan: an argument is NULL");
    const coli_plan_opts opts = {.struct_size = sizeof opts, .model = model, .session = session};
    return coli_plan_make(dir, &opts, out);
}
