/* cache_route.c - see cache_route.h.  People grep for these lines: their shape stays. */
#include "cache_route.h"

#include <inttypes.h>
#include <stdio.h>

#include "terminal.h"

bool app_route_opts(const app_settings *s, coli_route_opts *o)
{
    *o = (coli_route_opts){.struct_size = sizeof *o};
    coli_route_default(o);
    o->cache_route = s->cache_route;
    o->agree = app_given(s, APP_OPT_ROUTE_AGREE) ? s->route_agree : s->cache_route;
    o->live = s->route_live;
    if (app_given(s, APP_OPT_ROUTE_J)) o->j = s->route_j;
    if (app_given(s, APP_OPT_ROUTE_M)) o->m = s->route_m;
    if (app_given(s, APP_OPT_ROUTE_P)) o->p = s->route_p;
    if (app_given(s, APP_OPT_ROUTE_ALPHA)) o->alpha = s->route_alpha;
    return o->cache_route || o->agree;
}

static void warn_about(const app_settings *s, app_option_id id)
{
    if (s->from[id] == APP_FROM_ENVIRONMENT)
        app_error("warning: %s has no effect without CACHE_ROUTE=1", s->variable[id]->name);
    else if (s->from[id] == APP_FROM_COMMAND_LINE)
        app_error("warning: --%s has no effect without --cache-route", app_options[id].name);
}

void app_route_tell(const app_settings *s, const coli_route_opts *o)
{
    if (o->cache_route) {
        app_note(
            "CACHE_ROUTE=1 J=%u M=%u P=%.2f alpha=%.2f: VRAM tier > RAM cache > disk inside the "
            "top-M window (lossy: A/B it)%s",
            o->j, o->m, (double)o->p, (double)o->alpha, o->live ? ", live" : "");
        return;
    }
    static const app_option_id knobs[] = {APP_OPT_ROUTE_J, APP_OPT_ROUTE_M, APP_OPT_ROUTE_P,
                                          APP_OPT_ROUTE_ALPHA, APP_OPT_ROUTE_LIVE};
    for (size_t i = 0; i < sizeof knobs / sizeof *knobs; i++) warn_about(s, knobs[i]);
}

void app_route_footer(const coli_model *model, const coli_route_opts *o)
{
    coli_route_stats s = {.struct_size = sizeof s};
    if (coli_model_get_route_stats(model, &s) != COLI_OK) return;
    if (s.route_slots > 0)
        app_note("CACHE_ROUTE J=%u M=%u P=%.2f alpha=%.2f | swap %.1f%% (%" PRIu64 "/%" PRIu64
                 ", %" PRIu64 " to VRAM)",
                 o->j, o->m, (double)o->p, (double)o->alpha, s.swap_pct, s.route_swaps,
                 s.route_slots, s.route_swaps_vram);
    if (s.n_compared > 0) app_note("route_agree %.1f%% | route_kl %.4f", s.route_agree, s.route_kl);
}
