/* replay_api.c - coli_replay: traces, and a pool over their prompts (moe/replay.h does the work). */
#include <stdio.h>

#include "../base/alloc.h"
#include "../base/threads.h"
#include "../moe/replay.h"
#include "api.h"
#include "coli/coli.h"

enum { MAX_COUNT = 1 << 20 }; // no trace has more rows

struct coli_replay {
    coli__traces traces;
    coli__pool *pool;
};

coli_status coli_replay_open(const char *path, const coli_replay_part *part, coli_replay **out)
{
    if (!out) return coli__fail(COLI_E_INVALID, "coli_replay_open: out is NULL");
    *out = NULL;
    if (!path) return coli__fail(COLI_E_INVALID, "coli_replay_open: path is NULL");
    coli_replay_part p;
    COLI_TRY(coli__opts_copy("coli_replay_part", &p, sizeof p, part));
    coli_replay *r = coli__calloc(1, sizeof *r);
    if (!r) return COLI_E_NOMEM;
    const coli__trace_part wanted = {p.n_layer, p.n_expert_used, p.n_expert};
    coli_status status = coli__traces_open(path, &wanted, &r->traces);
    if (status == COLI_OK) status = coli__pool_create(p.n_threads, &r->pool);
    if (status != COLI_OK) {
        coli_replay_close(r);
        return status;
    }
    *out = r;
    return COLI_OK;
}

void coli_replay_close(coli_replay *r)
{
    if (!r) return;
    coli__pool_destroy(r->pool);
    coli__traces_finish(&r->traces);
    coli__free(r);
}

coli_status coli_replay_get_info(const coli_replay *r, coli_replay_info *info)
{
    if (!r || !info) return coli__fail(COLI_E_INVALID, "coli_replay_get_info: an argument is NULL");
    COLI_TRY(coli__struct_clear("coli_replay_info", info));
    const coli__traces *all = &r->traces;
    coli_replay_info full = {.n_prompt = all->n_trace,
                             .n_layer = all->n_layer,
                             .n_expert = all->n_expert,
                             .n_expert_used = all->n_expert_used};
    for (uint32_t i = 0; i < all->n_trace; i++) {
        full.n_prompt_row += all->traces[i].n_prompt;
        full.n_answer_row += all->traces[i].n_row - all->traces[i].n_prompt;
    }
    coli__struct_fill(info, &full, sizeof full);
    return COLI_OK;
}

size_t coli_replay_n_policy(void)
{
    return coli__replay_n_policy;
}

coli_status coli_replay_get_policy(size_t i, coli_replay_policy *out)
{
    if (!out) return coli__fail(COLI_E_INVALID, "coli_replay_get_policy: out is NULL");
    COLI_TRY(coli__struct_clear("coli_replay_policy", out));
    if (i >= coli__replay_n_policy)
        return coli__fail(COLI_E_INVALID,
                          "coli_replay_get_policy: expected a number below %u, "
                          "found %zu",
                          coli__replay_n_policy, i);
    const coli__replay_policy *p = &coli__replay_policies[i];
    const coli_replay_policy full = {.name = p->name,
                                     .knows = p->knows,
                                     .moves = p->prompt || p->token || p->layer,
                                     .replans = p->replans};
    coli__struct_fill(out, &full, sizeof full);
    return COLI_OK;
}

/* ---- options ------------------------------------------------------------------------------- */

static const coli_replay_machine default_machine = {
    .struct_size = sizeof default_machine,
    .n_copy = 1,
    .slow = 1,
    .link_bytes_per_s = 12000000000u,
    .latency_ns = 10000,
    .kernel_ns = 5000,
    .device_bytes_per_s = 400000000000u,
    .cpu_bytes_per_s = 25000000000u,
    .cpu_mac_per_s = 200000000000u,
    .expert_bytes = 1671168, // 3 matrices of 2048 x 512 in int4-g64-f16
    .expert_mac = 3 * 2048 * 512,
    .d_model = 2048,
    .trunk_token_ns = 27000000,
    .trunk_row_ns = 9000000,
};

coli_status coli_replay_machine_default(coli_replay_machine *out)
{
    if (!out) return coli__fail(COLI_E_INVALID, "coli_replay_machine_default: out is NULL");
    COLI_TRY(coli__struct_clear("coli_replay_machine", out));
    coli__struct_fill(out, &default_machine, sizeof default_machine);
    return COLI_OK;
}

static coli_status find_policy(const char *name, uint32_t *out)
{
    char names[512] = "";
    size_t n = 0;
    for (*out = 0; *out < coli__replay_n_policy; (*out)++) {
        const char *one = coli__replay_policies[*out].name;
        if (name && strcmp(one, name) == 0) return COLI_OK;
        if (n < sizeof names)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", one);
    }
    return coli__fail(COLI_E_INVALID, "replay: no policy \"%s\"; there are %s", name ? name : "",
                      names);
}

static coli_status take_opts(const coli_replay_opts *o, const coli__traces *all,
                             coli__replay_opts *out)
{
    coli_replay_machine m;
    COLI_TRY(coli__opts_copy("coli_replay_machine", &m, sizeof m,
                             o->machine ? o->machine : &default_machine));
    const uint32_t cap = o->cap ? o->cap : COLI__PLAN_CAP;
    *out = (coli__replay_opts){
        .n_slot = o->n_resident,
        .cap = (int32_t)(cap < all->n_expert ? cap : all->n_expert), // more never swap
        .drain = o->drain ? o->drain : COLI__REPLAN_PER_TICK,
        .min_count = o->min_count < MAX_COUNT ? o->min_count : MAX_COUNT,
        .seed = o->seed,
        .machine = {.link_bytes_per_s = m.link_bytes_per_s,
                    .bw_bytes_per_s = m.device_bytes_per_s,
                    .latency_ns = m.latency_ns,
                    .kernel_ns = m.kernel_ns,
                    .cpu_bytes_per_s = m.cpu_bytes_per_s,
                    .cpu_mac_per_s = m.cpu_mac_per_s,
                    .expert_bytes = m.expert_bytes,
                    .expert_mac = m.expert_mac,
                    .d_model = m.d_model,
                    .trunk_token_ns = m.trunk_token_ns,
                    .trunk_row_ns = m.trunk_row_ns,
                    .slow = m.slow,
                    .n_copy = m.n_copy,
                    .waits = m.waits}};
    return find_policy(o->policy, &out->policy);
}

/* ---- a run over all prompts ---------------------------------------------------------------- */

typedef struct job {
    const coli__traces *all;
    coli__replay_opts opts;
    const uint64_t *allowance;
    coli_replay_result *results; // (n_trace)
    struct failure {
        coli_status status;
        char message[256];
    } * failures; // (n_trace)
} job;

static coli_replay_result as_seen(const coli__replay_result *r, const coli__traces *all,
                                  const coli__trace *t)
{
    const uint32_t n_answer = t->n_row - t->n_prompt;
    const double per_row = (double)all->n_layer * all->n_expert_used;
    return (coli_replay_result){.hit_rate = (double)r->n_hit / (per_row * n_answer),
                                .prompt_hit_rate =
                                    (double)r->n_prefill_hit / (per_row * t->n_prompt),
                                .n_prompt_upload = r->n_prefill_upload,
                                .n_upload = r->n_upload,
                                .ttft_ms = r->prefill_ns * 1e-6,
                                .token_ms = r->decode_ns * 1e-6 / n_answer,
                                .n_prompt_row = t->n_prompt,
                                .n_answer_row = n_answer};
}

static void run_one(void *ctx, uint32_t i, uint32_t worker)
{
    (void)worker;
    job *j = ctx;
    coli__replay_opts opts = j->opts;
    opts.allowance = j->allowance ? j->allowance[i] : UINT64_MAX;
    coli__replay_result result;
    struct failure *f = &j->failures[i];
    f->status = coli__replay_run(j->all, i, &opts, &result);
    if (f->status != COLI_OK)
        snprintf(f->message, sizeof f->message, "%s", coli_error_message());
    else
        j->results[i] = as_seen(&result, j->all, &j->all->traces[i]);
}

coli_status coli_replay_run(coli_replay *r, const coli_replay_opts *opts,
                            coli_replay_result *results)
{
    if (!r || !opts || !results)
        return coli__fail(COLI_E_INVALID, "coli_replay_run: an argument is NULL");
    memset(results, 0, r->traces.n_trace * sizeof *results);
    coli_replay_opts o;
    COLI_TRY(coli__opts_copy("coli_replay_opts", &o, sizeof o, opts));
    job j = {.all = &r->traces, .allowance = o.allowance, .results = results};
    COLI_TRY(take_opts(&o, &r->traces, &j.opts));
    j.failures = coli__calloc(r->traces.n_trace, sizeof *j.failures);
    if (!j.failures) return COLI_E_NOMEM;
    coli__pool_run(r->pool, r->traces.n_trace, run_one, &j);
    coli_status status = COLI_OK;
    for (uint32_t i = 0; i < r->traces.n_trace && status == COLI_OK; i++)
        if (j.failures[i].status != COLI_OK)
            status = coli__fail(j.failures[i].status, "%s", j.failures[i].message);
    coli__free(j.failures);
    return status;
}
