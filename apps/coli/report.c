/* report.c - see report.h. */
#include "report.h"

#include <string.h>

#include "input.h"

static json_t *number(uint64_t n)
{
    return json_integer((json_int_t)n);
}

double report_share(uint64_t part, uint64_t other)
{
    return part + other ? (double)part / (double)(part + other) : 0;
}

static json_t *text_or_null(const char *text)
{
    return text ? app_json_string(text, strlen(text)) : json_null();
}

static json_t *device_json(const coli_device_use *d)
{
    json_t *o = json_object();
    json_object_set_new(o, "backend", text_or_null(d->backend));
    json_object_set_new(o, "device", number(d->ordinal));
    json_object_set_new(o, "name", text_or_null(d->name));
    json_object_set_new(o, "experts", number(d->n_expert));
    json_object_set_new(o, "vram_bytes", number(d->vram_bytes));
    json_object_set_new(o, "allowance_bytes", number(d->allowance_bytes));
    json_object_set_new(o, "lost", text_or_null(d->lost));
    return o;
}

static json_t *vram_json(const coli_backend_stats *s)
{
    json_t *o = json_object();
    json_object_set_new(o, "experts", number(s->n_expert));
    json_object_set_new(o, "experts_total", number(s->n_expert_total));
    json_object_set_new(o, "hit_rate", json_real(report_share(s->n_row_device, s->n_row_host)));
    json_object_set_new(o, "decode_hit_rate",
                        json_real(report_share(s->n_hit_decode, s->n_miss_decode)));
    json_object_set_new(o, "decode_hits", number(s->n_hit_decode));
    json_object_set_new(o, "decode_misses", number(s->n_miss_decode));
    json_object_set_new(o, "uploads", number(s->n_upload));
    json_object_set_new(o, "swaps", number(s->n_swap));
    json_object_set_new(o, "swaps_in_place", number(s->n_swap_in_place));
    json_object_set_new(o, "streamed", number(s->n_streamed));
    json_object_set_new(o, "streamed_rows", number(s->n_row_streamed));
    json_object_set_new(o, "clock_ms", json_real(s->clock_ms));
    json_object_set_new(o, "replan_planned", number(s->n_replan_planned));
    json_object_set_new(o, "replan_done", number(s->n_replan_done));
    json_object_set_new(o, "replan_pending", number(s->n_replan_pending));
    return o;
}

void report_add_devices(json_t *root, const coli_model *model)
{
    coli_backend_stats stats = {.struct_size = sizeof stats};
    const bool known = coli_model_get_backend_stats(model, &stats) == COLI_OK;
    json_t *devices = json_array();
    for (uint32_t i = 0; known && i < stats.n_device; i++) {
        coli_device_use use = {.struct_size = sizeof use};
        if (coli_model_get_device(model, i, &use) == COLI_OK)
            json_array_append_new(devices, device_json(&use));
    }
    json_object_set_new(root, "devices", devices);
    json_object_set_new(root, "vram", stats.n_device ? vram_json(&stats) : json_null());
}

void report_add_route(json_t *root, const coli_model *model)
{
    coli_route_stats s = {.struct_size = sizeof s};
    json_t *o = json_null();
    if (coli_model_get_route_stats(model, &s) == COLI_OK && s.route_slots + s.n_compared > 0) {
        o = json_object();
        json_object_set_new(o, "swap_pct", json_real(s.swap_pct));
        json_object_set_new(o, "route_swaps", number(s.route_swaps));
        json_object_set_new(o, "route_swaps_vram", number(s.route_swaps_vram));
        json_object_set_new(o, "route_slots", number(s.route_slots));
        const bool compared = s.n_compared > 0;
        json_object_set_new(o, "route_agree", compared ? json_real(s.route_agree) : json_null());
        json_object_set_new(o, "route_kl", compared ? json_real(s.route_kl) : json_null());
    }
    json_object_set_new(root, "route", o);
}

void report_add_store(json_t *root, const coli_model *model)
{
    coli_store_stats s = {.struct_size = sizeof s};
    coli_model_info m = {.struct_size = sizeof m};
    json_t *o = json_null();
    if (coli_model_get_store_stats(model, &s) == COLI_OK && s.is_limited &&
        coli_model_get_info(model, &m) == COLI_OK) {
        o = json_object();
        json_object_set_new(o, "experts", number(s.n_slot));
        json_object_set_new(o, "experts_total", number(m.n_expert));
        json_object_set_new(o, "pinned", number(s.n_pinned));
        json_object_set_new(o, "bytes", number(s.slot_bytes));
        json_object_set_new(o, "direct", json_boolean(s.is_direct));
        json_object_set_new(o, "hit_rate", json_real(report_share(s.n_hit, s.n_miss)));
        json_object_set_new(o, "hits", number(s.n_hit));
        json_object_set_new(o, "misses", number(s.n_miss));
        json_object_set_new(o, "decode_hit_rate",
                            json_real(report_share(s.n_hit_decode, s.n_miss_decode)));
        json_object_set_new(o, "decode_hits", number(s.n_hit_decode));
        json_object_set_new(o, "decode_misses", number(s.n_miss_decode));
        json_object_set_new(o, "reads", number(s.n_read));
        json_object_set_new(o, "read_bytes", number(s.read_bytes));
        json_object_set_new(o, "reads_failed", number(s.n_read_failed));
        json_object_set_new(o, "wait_ms", json_real(s.wait_ms));
        json_object_set_new(o, "guesses_read", number(s.n_guess_read));
        json_object_set_new(o, "guesses_used", number(s.n_guess_used));
    }
    json_object_set_new(root, "ram", o);
}

json_t *report_turn(const app_engine *engine, const coli_result *r, const char *answer,
                    size_t n_answer, const char *thinking, size_t n_thinking)
{
    static const char *const stops[] = {"none", "token", "length", "context", "cancelled"};
    json_t *o = json_object();
    json_object_set_new(o, "answer", app_json_string(answer ? answer : "", n_answer));
    json_object_set_new(o, "thinking", app_json_string(thinking ? thinking : "", n_thinking));
    json_object_set_new(o, "stop", json_string(stops[r->stop]));
    json_object_set_new(o, "n_prompt", number(r->n_prompt));
    json_object_set_new(o, "n_prefill", number(r->n_prefill));
    json_object_set_new(o, "n_generated", number(r->n_generated));
    json_object_set_new(o, "ttft_s", json_real(r->ttft_s));
    json_object_set_new(o, "prefill_s", json_real(r->prefill_s));
    json_object_set_new(o, "prefill_moe_s", json_real(r->prefill_moe_s));
    json_object_set_new(o, "prefill_wait_s", json_real(r->prefill_wait_s));
    json_object_set_new(o, "decode_s", json_real(r->decode_s));
    json_object_set_new(o, "tok_s", json_real(r->tok_s));
    json_object_set_new(o, "ms_per_token", json_real(r->token_ms));
    json_object_set_new(o, "moe_ms_per_token", json_real(r->token_moe_ms));
    json_object_set_new(o, "wait_ms_per_token", json_real(r->token_wait_ms));
    report_add_devices(o, engine->model);
    report_add_store(o, engine->model);
    report_add_route(o, engine->model);
    return o;
}
