/* moe_devices.c - what devices compute of a layer: handed to them, waited for, taken back (see moe.c). */
#include <string.h>

#include "moe_parts.h"

/* -- devices ----------------------------------------------------------------------------------- */

/* Move the runs of experts on devices from `runs` to `held`, and note what their groups get. */
static void hold(coli__moe *m, const coli__moe_layer *layer, uint32_t n_tok)
{
    const uint32_t group = layer->experts->gate.fmt.group;
    for (uint32_t i = 0; i < m->n_device; i++) m->in_use[i] = false;
    uint32_t n_run = 0, n_row[COLI__MAX_DEVICE] = {0};
    m->n_held = 0;
    for (uint32_t i = 0; i < m->n_run; i++) {
        const coli__run r = m->runs[i];
        coli__slot place;
        if (r.expert == m->n_expert ||
            !coli__tier_find(m->tier, layer->experts, r.expert, &place)) {
            m->runs[n_run++] = r;
            continue;
        }
        if (!m->in_use[place.device])
            coli__group_begin(m->groups[place.device], group == 32 ? &m->x.q32 : &m->x.q64, n_tok);
        m->in_use[place.device] = true;
        coli__group_add(m->groups[place.device], place.tensor, r.n, m->pair_row + r.first);
        for (uint32_t p = 0; p < r.n; p++)
            m->pair_source[r.first + p] =
                (coli__source){(int32_t)place.device, n_row[place.device]++};
        m->held[m->n_held++] = r;
    }
    m->n_run = n_run;
}

/* The device that holds all experts of row t; COLI__HOST when there is none. */
static int32_t device_of_row(const coli__moe *m, uint32_t t)
{
    const uint32_t *pair = m->pair_of + (size_t)t * m->n_used;
    const int32_t device = m->pair_source[pair[0]].device;
    if (device < 0) return COLI__HOST;
    for (uint32_t rank = 1; rank < m->n_used; rank++)
        if (m->pair_source[pair[rank]].device != device) return COLI__HOST;
    return device;
}

/* Let devices join the rows that they can.  A pair's place among its device's pairs then becomes its
 * place in the result: joined pairs have none, and the joins stand behind the others. */
static void join_on_devices(coli__moe *m, uint32_t n_tok)
{
    uint32_t n_pair[COLI__MAX_DEVICE] = {0}, n_join[COLI__MAX_DEVICE] = {0};
    for (uint32_t t = 0; t < n_tok; t++) {
        const int32_t device = device_of_row(m, t);
        m->join_source[t].device = COLI__HOST;
        if (device == COLI__HOST || !coli__group_can_join(m->groups[device])) continue;
        const uint32_t *pair = m->pair_of + (size_t)t * m->n_used;
        for (uint32_t rank = 0; rank < m->n_used; rank++)
            m->terms[rank] = m->pair_source[pair[rank]].row;
        coli__group_join(m->groups[device], m->terms, m->w + (size_t)t * m->n_used);
        m->join_source[t] = (coli__source){device, n_join[device]++};
    }
    for (uint32_t i = 0; i < m->n_held; i++)
        for (uint32_t p = m->held[i].first; p < m->held[i].first + m->held[i].n; p++) {
            coli__source *s = &m->pair_source[p];
            if (m->join_source[m->pair_row[p]].device == COLI__HOST) s->row = n_pair[s->device]++;
        }
    for (uint32_t t = 0; t < n_tok; t++)
        if (m->join_source[t].device != COLI__HOST)
            m->join_source[t].row += n_pair[m->join_source[t].device];
}

/* Hand the shared expert to the device that holds it. */
static void hold_shared(coli__moe *m, const coli__moe_layer *layer, uint32_t n_tok)
{
    coli__slot place;
    m->shared_device = COLI__HOST;
    if (!coli__devices_dense_expert(m->devices, &layer->shared_gate, &place)) return;
    coli__group *group = m->shared_groups[place.device];
    coli__group_begin(group, layer->shared_gate.fmt.group == 32 ? &m->x.q32 : &m->x.q64, n_tok);
    coli__group_add(group, place.tensor, n_tok, m->all_rows);
    m->shared_device = (int32_t)place.device;
    m->runs[m->n_run - 1].n = 0;
}

/* -- streams ----------------------------------------------------------------------------------- */

/* The slowest of those that stream: a chunk is done when the last of them is. */
static coli__speeds stream_speeds(const coli__moe *m, const uint32_t *device, uint32_t n)
{
    coli__speeds all = coli__tier_speeds(m->tier, device[0]);
    for (uint32_t i = 1; i < n; i++) {
        const coli__speeds s = coli__tier_speeds(m->tier, device[i]);
        if (s.pass_ns > all.pass_ns) all.pass_ns = s.pass_ns;
        if (s.pass_row_ns > all.pass_row_ns) all.pass_row_ns = s.pass_row_ns;
    }
    return all;
}

/* How many of the processor's routed runs pass through n devices: the first of them, afterwards. */
static uint32_t choose_streamed(coli__moe *m, const uint32_t *device, uint32_t n)
{
    const uint32_t n_run = m->n_run - 1, rows = coli__tier_stream_rows(m->tier);
    if (rows != COLI_STREAM_AUTO) {
        uint32_t n_chosen = 0;
        for (uint32_t i = 0; i < n_run; i++)
            if (m->runs[i].n >= rows) coli__moe_swap_runs(m, i, n_chosen++);
        return n_chosen;
    }
    for (uint32_t i = 1; i < n_run; i++) // most rows first; experts are some hundred at most
        for (uint32_t j = i; j > 0 && m->runs[j].n > m->runs[j - 1].n; j--)
            coli__moe_swap_runs(m, j, j - 1);
    for (uint32_t i = 0; i < n_run; i++) m->n_row[i] = m->runs[i].n;
    const coli__speeds speeds = stream_speeds(m, device, n);
    return coli__afford_stream(&speeds, n, m->n_row, n_run);
}

/* Move runs from `runs` to `passing`. */
static void take_streamed(coli__moe *m, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const coli__run r = m->runs[i];
        m->passing[i] = (coli__passing){.expert = r.expert,
                                        .first = r.first,
                                        .n = r.n,
                                        .rows = m->pair_row + r.first,
                                        .y = m->results + (size_t)r.first * m->d_model,
                                        .flag = m->flagged + r.first};
        for (uint32_t p = r.first; p < r.first + r.n; p++)
            m->pair_source[p] = (coli__source){COLI__STREAMED, 0};
    }
    m->n_passing = n;
    m->n_run -= n;
    memmove(m->runs, m->runs + n, m->n_run * sizeof *m->runs);
}

/* The devices that streams are for, in this chunk: their number. */
static uint32_t hold_streamed(coli__moe *m, const coli__moe_layer *layer, uint32_t n_tok,
                              uint32_t *device)
{
    m->n_passing = 0;
    if (!m->streams) return 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_device; i++) {
        m->streams_now[i] = false;
        if (n_tok > 1 && m->streams[i] && coli__tier_can_stream(m->tier, i, layer->experts))
            device[n++] = i;
    }
    if (n == 0) return 0;
    take_streamed(m, choose_streamed(m, device, n));
    return m->n_passing < n ? m->n_passing : n;
}

/* The groups of a device, behind the streamed ones of the n devices that have some. */
static void start_device(coli__moe *m, const coli__moe_layer *layer, uint32_t i,
                         const uint32_t *streaming, uint32_t n)
{
    coli__group *routed = m->in_use[i] ? m->groups[i] : NULL, *then = NULL;
    if ((int32_t)i == m->shared_device) {
        then = routed;
        routed = m->shared_groups[i];
    }
    for (uint32_t k = 0; k < n; k++) {
        if (streaming[k] != i) continue;
        const coli__stream_work work = {.layer = layer->experts,
                                        .x = layer->experts->gate.fmt.group == 32 ? &m->x.q32
                                                                                  : &m->x.q64,
                                        .passing = m->passing,
                                        .first = k,
                                        .step = n,
                                        .n = m->n_passing,
                                        .group = routed,
                                        .then = then};
        m->streams_now[i] = true;
        coli__stream_start(m->streams[i], &work);
        return;
    }
    if (routed) coli__group_start(routed, then);
}

void coli__moe_start_groups(coli__moe *m, const coli__moe_layer *layer, uint32_t n_tok)
{
    m->n_held = 0;
    if (m->n_device == 0) return;
    uint32_t streaming[COLI__MAX_DEVICE];
    hold(m, layer, n_tok);
    hold_shared(m, layer, n_tok);
    const uint32_t n = hold_streamed(m, layer, n_tok, streaming);
    if (m->n_held > 0) join_on_devices(m, n_tok);
    for (uint32_t i = 0; i < m->n_device; i++) start_device(m, layer, i, streaming, n);
}

bool coli__moe_has_groups(const coli__moe *m)
{
    return m->n_held > 0 || m->n_passing > 0 || m->shared_device != COLI__HOST;
}

/* Wait for the streams: false when a run was not done. */
static bool wait_for_streams(const coli__moe *m)
{
    if (m->n_passing == 0) return true;
    bool good = true;
    for (uint32_t i = 0; i < m->n_device; i++)
        if (m->streams_now[i]) coli__stream_wait(m->streams[i]);
    for (uint32_t i = 0; i < m->n_passing; i++) good &= m->passing[i].is_done;
    return good;
}

/* Wait for the groups: false when one of them failed.  results (COLI__N_RESULT) */
bool coli__moe_wait_for_groups(const coli__moe *m, const coli_bk_result **results)
{
    bool good = wait_for_streams(m);
    for (uint32_t i = 0; i < m->n_device; i++) {
        results[i] = m->in_use[i] ? coli__group_wait(m->groups[i]) : NULL;
        good &= results[i] || !m->in_use[i];
    }
    results[COLI__SHARED] = NULL;
    if (m->shared_device == COLI__HOST) return good;
    results[COLI__SHARED] = coli__group_wait(m->shared_groups[m->shared_device]);
    return good && results[COLI__SHARED];
}

/* Rows that a device found to leave their range. */
void coli__moe_reject_flagged(coli__moe *m, const coli_bk_result **results, uint32_t n_tok)
{
    for (uint32_t t = 0; t < n_tok; t++) {
        if (results[COLI__SHARED] && results[COLI__SHARED]->flag[t]) coli__moe_reject(m, t);
        if (m->n_held == 0 && m->n_passing == 0) continue;
        const coli__source *joined = m->n_held > 0 ? &m->join_source[t] : NULL;
        if (joined && joined->device != COLI__HOST) {
            if (results[joined->device]->flag[joined->row]) coli__moe_reject(m, t);
            continue;
        }
        for (uint32_t rank = 0; rank < m->n_used; rank++) {
            const uint32_t p = m->pair_of[(size_t)t * m->n_used + rank];
            const coli__source *s = &m->pair_source[p];
            if (s->device >= 0 ? results[s->device]->flag[s->row]
                               : s->device == COLI__STREAMED && m->flagged[p])
                coli__moe_reject(m, t);
        }
    }
}

/* Likewise of the streams' runs that were not done. */
static uint32_t take_back_streamed(coli__moe *m)
{
    uint32_t n_passing = 0, n_pair = 0;
    const uint32_t n_run = m->n_run;
    for (uint32_t i = 0; i < m->n_passing; i++) {
        const coli__passing p = m->passing[i];
        if (p.is_done) {
            m->passing[n_passing++] = p;
            continue;
        }
        for (uint32_t k = p.first; k < p.first + p.n; k++) m->pair_source[k].device = COLI__HOST;
        m->runs[m->n_run++] = (coli__run){p.expert, p.first, p.n, NULL};
        n_pair += p.n;
    }
    m->n_passing = n_passing;
    coli__devices_count(m->devices, 0, 0, n_pair);
    return m->n_run - n_run;
}

/* Give the runs of failed groups back to the processor, behind its other routed ones; how many. */
uint32_t coli__moe_take_back(coli__moe *m, const coli_bk_result **results, uint32_t n_tok)
{
    const coli__run shared = m->runs[--m->n_run];
    uint32_t n_run = 0, n_held = 0, n_pair = 0;
    for (uint32_t t = 0; t < n_tok; t++) {
        coli__source *joined = &m->join_source[t];
        if (joined->device != COLI__HOST && !results[joined->device]) joined->device = COLI__HOST;
    }
    for (uint32_t i = 0; i < m->n_held; i++) {
        const coli__run r = m->held[i];
        if (results[m->pair_source[r.first].device]) {
            m->held[n_held++] = r;
            continue;
        }
        for (uint32_t p = r.first; p < r.first + r.n; p++)
            m->pair_source[p] = (coli__source){COLI__HOST, 0};
        m->runs[m->n_run++] = r;
        n_run++;
        n_pair += r.n;
    }
    for (uint32_t i = 0; i < m->n_device; i++) m->in_use[i] = results[i] != NULL;
    m->n_held = n_held;
    n_run += take_back_streamed(m);
    m->runs[m->n_run++] = shared;
    coli__devices_count(m->devices, 0, 0, n_pair);
    return n_run;
}

/* The shared expert, whose group failed: the processor's from now on. */
void coli__moe_take_back_shared(coli__moe *m, const coli__moe_layer *layer, uint32_t n_tok)
{
    coli__devices_switch_off(m->devices, &layer->shared_gate);
    coli__devices_count_products_again(m->devices, 3);
    m->shared_device = COLI__HOST;
    m->runs[m->n_run - 1].n = n_tok;
}
