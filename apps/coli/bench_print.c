/* bench_print.c - a table for people, an object for programs. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

#include "bench.h"
#include "input.h"
#include "open_model.h"
#include "report.h"
#include "terminal.h"

uint64_t bench_token_bytes(const bench_result *r)
{
    uint64_t n_bytes = 0;
    for (int i = 0; i < BENCH_N_PART; i++) n_bytes += r->parts[i].n_bytes;
    return n_bytes;
}

/* The logits of a prompt are those of its last row. */
double bench_prefill_macs(const bench_result *r)
{
    return (double)r->model.n_mac_body + (double)r->model.n_mac_head / r->n_prefill;
}

double bench_prefill_gmac_s(const bench_result *r)
{
    return bench_prefill_macs(r) * r->prefill_tok_s.median * 1e-9;
}

/* Of the routed experts alone: with phases. */
static double prefill_experts_gmac_s(const bench_result *r)
{
    const double seconds = r->prefill_experts_s.median;
    return seconds > 0 ? (double)r->model.n_mac_experts * r->n_prefill / seconds * 1e-9 : 0;
}

/* How many rows of the prompt an expert has, on average. */
static double rows_per_expert(const bench_result *r)
{
    return (double)r->n_prefill * r->model.n_expert_used / r->model.n_expert;
}

static double decode_gb_s(const bench_result *r)
{
    return (double)bench_token_bytes(r) * r->decode_tok_s.median * 1e-9;
}

static double part_gb_s(const bench_part *p)
{
    return p->seconds > 0 ? (double)p->n_bytes / p->seconds * 1e-9 : 0;
}

/* The phases in the order of a layer. */
static const struct {
    const char *name;
    size_t offset; // in coli_phases
} phases[] = {
    {"router", offsetof(coli_phases, router_ns)},
    {"experts", offsetof(coli_phases, experts_ns)},
    {"shared", offsetof(coli_phases, shared_ns)},
    {"deltanet", offsetof(coli_phases, deltanet_ns)},
    {"attention", offsetof(coli_phases, attention_ns)},
    {"projections", offsetof(coli_phases, projections_ns)},
    {"head", offsetof(coli_phases, head_ns)},
    {"sampling", offsetof(coli_phases, sampling_ns)},
    {"other", offsetof(coli_phases, other_ns)},
    {"waiting", offsetof(coli_phases, waiting_ns)},
    {"total", offsetof(coli_phases, total_ns)},
};
enum { N_PHASE = sizeof phases / sizeof *phases };

static double phase_ms(const coli_phases *p, int i, uint32_t n_part)
{
    const uint64_t *ns = (const uint64_t *)(const void *)((const char *)p + phases[i].offset);
    return n_part ? (double)*ns * 1e-6 / n_part : 0;
}

/* -- text ------------------------------------------------------------------------------------- */

static void print_row(const bench_result *r, const char *test, uint32_t n, bench_spread tok_s)
{
    char name[64], params[32], at[32] = "";
    app_count_text(r->model.n_param, params, sizeof params);
    if (r->context) snprintf(at, sizeof at, " @ d%" PRIu32, r->context);
    snprintf(name, sizeof name, "%s%" PRIu32 "%s", test, n, at);
    printf("| %-24s | %7.2f GB | %8s | %7" PRIu32 " | %-7s | %14s | %10.2f | %9.2f | %9.2f |\n",
           r->model.name, (double)r->model.weight_bytes * 1e-9, params, r->model.n_threads,
           r->model.isa, name, tok_s.median, tok_s.min, tok_s.max);
}

static void print_parts(const bench_result *r)
{
    printf("\ndecode, per token      MB         ms       GB/s   of the stream\n");
    for (int i = 0; i < BENCH_N_PART; i++) {
        const bench_part *p = &r->parts[i];
        printf("  %-12s %10.2f %10.3f %10.2f %8.1f %%\n", p->name, (double)p->n_bytes * 1e-6,
               p->seconds * 1e3, part_gb_s(p), p->share * 100);
    }
    printf("  %-12s %10.2f %10.3f %10.2f %8.1f %%\n", "all", (double)bench_token_bytes(r) * 1e-6,
           1e3 / r->decode_tok_s.median, decode_gb_s(r), r->decode_share * 100);
}

static void print_phases(const bench_result *r)
{
    printf("\nmilliseconds         %s%s\n", r->n_prefill ? "    prefill" : "",
           r->n_decode ? "  per token of decode" : "");
    for (int i = 0; i < N_PHASE; i++) {
        printf("  %-18s", phases[i].name);
        if (r->n_prefill) printf(" %10.3f", phase_ms(&r->prefill_phases, i, 1));
        if (r->n_decode) printf(" %10.4f", phase_ms(&r->decode_phases, i, r->n_decode));
        putchar('\n');
    }
}

static void print_devices(const bench_result *r)
{
    putchar('\n');
    for (uint32_t i = 0; i < r->devices.n_device; i++) {
        coli_device_use d = {.struct_size = sizeof d};
        if (coli_model_get_device(r->opened, i, &d) != COLI_OK) continue;
        app_line(stdout,
                 "device %s %" PRIu32 ", %s: %" PRIu64 " of %" PRIu64 " experts, %.2f of "
                 "%.2f GiB%s%s",
                 d.backend, d.ordinal, d.name, d.n_expert, r->devices.n_expert_total,
                 (double)d.vram_bytes / (1 << 30), (double)d.allowance_bytes / (1 << 30),
                 d.lost ? "; given up: " : "", d.lost ? d.lost : "");
    }
    if (r->n_decode)
        printf("decode VRAM hit rate: %.1f %% (%" PRIu64 " hits, %" PRIu64 " misses)\n",
               100 * report_share(r->n_hit, r->n_miss), r->n_hit, r->n_miss);
    printf("swaps %" PRIu64 " in all rounds\n", r->n_swap);
}

void bench_print_text(const bench_result *r)
{
    printf(
        "| model                    |       size |   params | threads | isa     |           test |"
        " tok/s, med |       min |       max |\n"
        "|:-------------------------|-----------:|---------:|--------:|:--------|---------------:|"
        "-----------:|----------:|----------:|\n");
    if (r->n_prefill) print_row(r, "pp", r->n_prefill, r->prefill_tok_s);
    if (r->n_decode) print_row(r, "tg", r->n_decode, r->decode_tok_s);
    if (r->n_decode) print_parts(r);
    if (r->n_prefill)
        printf("\nprefill: %.1f GMAC/s, %.1f %% of the peak\n", bench_prefill_gmac_s(r),
               r->prefill_share * 100);
    if (r->n_prefill && r->with_phases)
        printf("  experts, %.1f rows each: %.1f GMAC/s, %.1f %% of the peak\n", rows_per_expert(r),
               prefill_experts_gmac_s(r), r->prefill_experts_share * 100);
    if (r->with_phases) print_phases(r);
    if (r->devices.n_device) print_devices(r);
    printf("\nmachine: stream %.2f GB/s (min %.2f, max %.2f; %.2f GiB read by %" PRIu32
           " threads)\n"
           "         peak %.1f GMAC/s (min %.1f, max %.1f; %s, %s)\n",
           r->stream_gb_s.median, r->stream_gb_s.min, r->stream_gb_s.max,
           (double)r->machine.buffer_bytes / (1 << 30), r->machine.n_threads, r->peak_gmac_s.median,
           r->peak_gmac_s.min, r->peak_gmac_s.max, r->model.isa, r->machine.peak_method);
}

/* -- JSON ------------------------------------------------------------------------------------- */

static json_t *spread_json(bench_spread s)
{
    return json_pack("{s:f, s:f, s:f}", "median", s.median, "min", s.min, "max", s.max);
}

static json_t *number(uint64_t n)
{
    return json_integer((json_int_t)n);
}

static json_t *phases_json(const coli_phases *p, uint32_t n_part)
{
    json_t *all = json_object();
    for (int i = 0; i < N_PHASE; i++)
        json_object_set_new(all, phases[i].name, json_real(phase_ms(p, i, n_part)));
    return all;
}

static json_t *prefill_json(const bench_result *r)
{
    const double gmac_s = bench_prefill_gmac_s(r);
    json_t *o = json_pack("{s:o, s:o, s:f, s:f}", "n_token", number(r->n_prefill), "tok_s",
                          spread_json(r->prefill_tok_s), "gmac_s", gmac_s, "share_of_peak",
                          r->prefill_share);
    if (!r->with_phases) return o;
    const double experts = prefill_experts_gmac_s(r);
    json_object_set_new(o, "experts",
                        json_pack("{s:f, s:f, s:f}", "rows_per_expert", rows_per_expert(r),
                                  "gmac_s", experts, "share_of_peak", r->prefill_experts_share));
    json_object_set_new(o, "phases_ms", phases_json(&r->prefill_phases, 1));
    return o;
}

static json_t *decode_json(const bench_result *r)
{
    json_t *parts = json_object();
    for (int i = 0; i < BENCH_N_PART; i++) {
        const bench_part *p = &r->parts[i];
        json_object_set_new(parts, p->name,
                            json_pack("{s:o, s:f, s:f, s:f}", "bytes", number(p->n_bytes), "ms",
                                      p->seconds * 1e3, "gb_s", part_gb_s(p), "share_of_stream",
                                      p->share));
    }
    json_t *o =
        json_pack("{s:o, s:o, s:o, s:f, s:f, s:o}", "n_token", number(r->n_decode), "tok_s",
                  spread_json(r->decode_tok_s), "bytes", number(bench_token_bytes(r)), "gb_s",
                  decode_gb_s(r), "share_of_stream", r->decode_share, "parts", parts);
    if (r->with_phases)
        json_object_set_new(o, "phases_ms", phases_json(&r->decode_phases, r->n_decode));
    json_object_set_new(o, "vram_hit_rate",
                        r->devices.n_device ? json_real(report_share(r->n_hit, r->n_miss))
                                            : json_null());
    return o;
}

void bench_print_json(const bench_result *r)
{
    const coli_model_info *m = &r->model;
    json_t *root = json_object();
    json_object_set_new(root, "model",
                        json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o}", "name", m->name,
                                  "family", m->family, "identity", m->identity, "expert_format",
                                  m->expert_format, "trunk_format", m->trunk_format, "n_layer",
                                  number(m->n_layer), "parameters", number(m->n_param),
                                  "parameters_active", number(m->n_param_active), "weight_bytes",
                                  number(m->weight_bytes)));
    json_object_set_new(root, "isa", json_string(m->isa));
    json_object_set_new(root, "n_threads", number(m->n_threads));
    json_object_set_new(root, "context", number(r->context));
    json_object_set_new(root, "repeat", number(r->n_round));
    json_object_set_new(root, "seed", number(r->seed));
    json_object_set_new(
        root, "machine",
        json_pack("{s:o, s:o, s:o, s:o, s:s}", "stream_gb_s", spread_json(r->stream_gb_s),
                  "stream_bytes", number(r->machine.buffer_bytes), "cache_bytes",
                  number(r->machine.cache_bytes), "peak_gmac_s", spread_json(r->peak_gmac_s),
                  "peak_method", r->machine.peak_method));
    report_add_devices(root, r->opened);
    report_add_route(root, r->opened);
    json_object_set_new(root, "swaps", number(r->n_swap));
    if (r->n_prefill) json_object_set_new(root, "prefill", prefill_json(r));
    if (r->n_decode) json_object_set_new(root, "decode", decode_json(r));
    app_json_line(root);
}
