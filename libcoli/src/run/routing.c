/* routing.c - cache-aware routing as coli.h offers it: options in, numbers out. */
#include "api.h"
#include "model.h"

coli_status coli_route_default(coli_route_opts *out)
{
    if (!out) return coli__fail(COLI_E_INVALID, "coli_route_default: out is NULL");
    COLI_TRY(coli__struct_clear("coli_route_opts", out));
    const coli_route_opts full = {.j = 2, .m = 12, .alpha = 1};
    coli__struct_fill(out, &full, sizeof full);
    return COLI_OK;
}

static coli_status check_share(const char *name, float x)
{
    if (x >= 0 && x <= 1) return COLI_OK;
    return coli__fail(COLI_E_INVALID, "coli_route_opts: %s: expected 0 to 1, found %g", name,
                      (double)x);
}

static coli_status check(const coli_route_opts *o)
{
    if (!o->cache_route && !o->agree)
        return coli__fail(COLI_E_INVALID, "coli_route_opts: expected cache_route or agree");
    if (o->m == 0) return coli__fail(COLI_E_INVALID, "coli_route_opts: m: expected 1 or more");
    COLI_TRY(check_share("p", o->p));
    return check_share("alpha", o->alpha);
}

coli_status coli__router_create(coli_model *m, const coli_route_opts *opts, coli__router **out)
{
    *out = NULL;
    coli_route_opts o;
    COLI_TRY(coli__opts_copy("coli_route_opts", &o, sizeof o, opts));
    COLI_TRY(check(&o));
    coli__router *r = coli__calloc(1, sizeof *r);
    if (!r) return COLI_E_NOMEM;
    const uint32_t n_used = m->shape.n_expert_used;
    *r = (coli__router){
        .rule = {.n_expert = m->shape.n_expert,
                 .n_used = n_used,
                 .n_sure = o.j,
                 .n_list = coli__route_list_softmax(n_used, o.m, o.p), // as all families so far
                 .mass = o.p,
                 .alpha = o.alpha},
        .prefers = o.cache_route,
        .agrees = o.agree,
        .live = o.live,
        .is_told = o.levels != NULL,
        .totals = &m->route};
    coli_status status = coli__levels_init(&r->levels, m->container);
    if (status == COLI_OK && o.levels)
        status = coli__levels_set(&r->levels, m->container, o.levels);
    if (status != COLI_OK) {
        coli__router_destroy(r);
        return status;
    }
    *out = r;
    return COLI_OK;
}

static double percent(uint64_t part, uint64_t all)
{
    return all ? 100.0 * (double)part / (double)all : 0;
}

coli_status coli_model_get_route_stats(const coli_model *m, coli_route_stats *out)
{
    if (out) COLI_TRY(coli__struct_clear("coli_route_stats", out));
    if (!m || !out)
        return coli__fail(COLI_E_INVALID, "coli_model_get_route_stats: an argument is NULL");
    pthread_mutex_lock((pthread_mutex_t *)&m->mu);
    const coli__route_totals t = m->route;
    pthread_mutex_unlock((pthread_mutex_t *)&m->mu);
    const double kl_sum = (double)t.kl / COLI__KL_UNIT;
    const coli_route_stats full = {.route_slots = t.n_slot,
                                   .route_swaps = t.n_swap,
                                   .route_swaps_vram = t.n_swap_vram,
                                   .swap_pct = percent(t.n_swap, t.n_slot),
                                   .n_agree = t.n_agree,
                                   .n_compared = t.n_compared,
                                   .route_agree = percent(t.n_agree, t.n_compared),
                                   .n_row = t.n_row,
                                   .kl_sum = kl_sum,
                                   .route_kl = t.n_row ? kl_sum / (double)t.n_row : 0};
    coli__struct_fill(out, &full, sizeof full);
    return COLI_OK;
}
