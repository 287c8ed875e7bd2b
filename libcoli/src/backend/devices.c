/* devices.c - choose a plugin, open its devices, and say what became of it.  Placing: placement.c. */
#include "devices_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../base/alloc.h"
#include "../base/lane.h"

/* -- asking a plugin --------------------------------------------------------------------------- */

/* A question may hang in a driver, so it is a job too; its memory stays behind then. */
typedef struct probe {
    coli__plugin *plugin;
    coli__host host;
    char *options;
    uint32_t n;
    coli_bk_device_info info[COLI__MAX_DEVICE];
    coli_bk_status status;
} probe;

static void job_probe(void *ctx)
{
    probe *p = ctx;
    p->status = p->plugin->api.device_count(&p->host.table, &p->n);
    if (p->status != COLI_BK_OK) return;
    if (p->n > COLI__MAX_DEVICE) p->n = COLI__MAX_DEVICE;
    for (uint32_t i = 0; i < p->n; i++) {
        coli_bk_device_info *info = &p->info[i];
        info->struct_size = sizeof *info;
        if (p->plugin->api.device_info(&p->host.table, i, info) != COLI_BK_OK)
            snprintf(info->unusable, sizeof info->unusable, "%.255s", p->host.message);
        coli__plugin_text(info->name, sizeof info->name);
        coli__plugin_text(info->unusable, sizeof info->unusable);
    }
}

static void probe_free(probe *p)
{
    if (!p) return;
    coli__host_finish(&p->host);
    coli__free(p->options);
    coli__free(p);
}

static coli_status probe_plugin(coli__devices *d, coli__plugin *plugin, probe **out)
{
    *out = NULL;
    probe *p = coli__calloc(1, sizeof *p);
    if (!p) return COLI_E_NOMEM;
    p->plugin = plugin;
    coli__plugin_keep(plugin); // before a call that may hang in it
    p->options = coli__strndup(d->options, strlen(d->options));
    coli__lane *lane = NULL;
    coli_status status =
        p->options ? coli__host_init(&p->host, p->options, d->wait_ns) : COLI_E_NOMEM;
    if (status == COLI_OK) status = coli__lane_create("coli-probe", &lane);
    if (status == COLI_OK) {
        coli__lane_start(lane, job_probe, p);
        if (!coli__lane_wait(lane, 2 * d->wait_ns)) {
            coli__lane_destroy(lane); // the question stays, with the plugin that it is in
            d->hangs = true;
            return coli__fail(COLI_E_UNSUPPORTED, "looking for devices: no answer within %.1f s",
                              2e-9 * (double)d->wait_ns);
        }
        if (p->status != COLI_BK_OK)
            status = coli__backend_fail(plugin, &p->host, "device_count", p->status);
        else if (p->n == 0)
            status = coli__fail(COLI_E_UNSUPPORTED, "no device%s%s", p->host.message[0] ? ": " : "",
                                p->host.message);
    }
    coli__lane_destroy(lane);
    if (status != COLI_OK) {
        probe_free(p);
        return status;
    }
    *out = p;
    return COLI_OK;
}

/* -- choosing ---------------------------------------------------------------------------------- */

/* "0,2": whether ordinal i is in the list. */
static bool is_listed(const char *list, uint32_t i)
{
    for (const char *at = list; *at;) {
        uint64_t n = 0;
        for (; *at >= '0' && *at <= '9'; at++)
            n = n < UINT32_MAX ? n * 10 + (uint64_t)(*at - '0') : n;
        if (n == i) return true;
        if (*at) at++;
    }
    return false;
}

static coli_status check_list(const char *list)
{
    bool digit = false, good = true;
    for (const char *at = list; *at; at++) {
        good &= (*at >= '0' && *at <= '9') || (*at == ',' && digit);
        digit = *at >= '0' && *at <= '9';
    }
    if (good && digit) return COLI_OK;
    return coli__fail(COLI_E_INVALID,
                      "devices: expected ordinals like \"0\" or \"0,2\", found \"%s\"", list);
}

static bool is_gpu(const coli_bk_device_info *info)
{
    return info->kind == COLI_BK_DISCRETE || info->kind == COLI_BK_INTEGRATED;
}

/* Whether device i of the probed plugin is meant: of those listed, if there is a list, GPUs; and where
 * the backend was asked for, whatever is listed, or whatever it has if that is no GPU. */
static bool is_meant(const coli__devices *d, const probe *p, uint32_t i)
{
    if (d->ordinals && !is_listed(d->ordinals, i)) return false;
    if (is_gpu(&p->info[i])) return true;
    if (!d->asked || d->ordinals) return d->asked;
    for (uint32_t j = 0; j < p->n; j++)
        if (is_gpu(&p->info[j]) && !p->info[j].unusable[0]) return false;
    return true;
}

static void note_failure(coli__buf *reasons, const probe *p, uint32_t i, const char *reason)
{
    coli__buf_printf(reasons, "%sdevice %u (%s): %s", reasons->n_bytes ? "; " : "", i,
                     p->info[i].name, reason);
}

/* The weight formats that a device could be given, as bits. */
static uint32_t formats_of(const coli__container *c)
{
    uint32_t bits = 0, format;
    for (uint32_t i = 0; i < coli__container_n_tensor(c); i++)
        if (coli__device_format(coli__container_tensor(c, i)->mat.fmt, &format))
            bits |= 1u << format;
    for (uint32_t i = 0; i < coli__container_n_expert_layer(c); i++) {
        const coli__ct_experts *e = coli__container_experts(c, i);
        const coli__wfmt of_expert[] = {e->gate.fmt, e->up.fmt, e->down.fmt};
        for (int j = 0; j < 3; j++)
            if (coli__device_format(of_expert[j], &format)) bits |= 1u << format;
    }
    return bits;
}

/* Open what is meant of one plugin.  COLI_OK with d->n > 0, or a failure that says why none. */
static coli_status open_of(coli__devices *d, coli__plugin *plugin)
{
    probe *p;
    COLI_TRY(probe_plugin(d, plugin, &p));
    coli__buf reasons = {0};
    bool failed = false;
    for (uint32_t i = 0; i < p->n; i++) {
        if (!is_meant(d, p, i)) continue;
        coli_status status = COLI_OK;
        bool hangs = false;
        if (p->info[i].unusable[0])
            status = coli__fail(COLI_E_UNSUPPORTED, "%s", p->info[i].unusable);
        if (status == COLI_OK)
            status = coli__device_open(plugin, i, d->options, d->wait_ns, formats_of(d->container),
                                       &d->dev[d->n], &hangs);
        d->hangs |= hangs;
        if (status == COLI_OK)
            d->n++;
        else
            note_failure(&reasons, p, i, coli_error_message());
        failed |= status != COLI_OK;
    }
    for (const char *at = d->ordinals; at && *at; at++) { // every ordinal listed must be there
        if (at != d->ordinals && at[-1] != ',') continue;
        const unsigned long long ordinal = strtoull(at, NULL, 10);
        if (ordinal < p->n) continue;
        failed = true;
        coli__buf_printf(&reasons, "%sdevice %llu: there are %u", reasons.n_bytes ? "; " : "",
                         ordinal, p->n);
    }
    const bool enough = d->n > 0 && !(failed && d->ordinals);
    coli_status status = COLI_OK;
    if (!enough)
        status = coli__fail(COLI_E_UNSUPPORTED, "%s",
                            reasons.n_bytes ? reasons.data : "no GPU among its devices");
    else if (reasons.n_bytes)
        coli__devices_note(d, "%s: %s", plugin->info.name, reasons.data);
    coli__buf_finish(&reasons);
    probe_free(p);
    return status;
}

static bool close_all(coli__devices *d)
{
    bool ended = true;
    for (uint32_t i = 0; i < d->n; i++) ended &= coli__device_close(d->dev[i]);
    d->n = 0;
    return ended;
}

/* The first plugin with a device that can be used. */
static coli_status choose(coli__devices *d, const char *backend, const char *path)
{
    COLI_TRY(coli__plugins_find(backend, path, &d->plugins));
    for (size_t i = 0; i < d->plugins.n; i++) {
        coli__plugin *plugin = &d->plugins.plugins[i];
        if (plugin->stage != COLI__PLUGIN_READY) continue;
        if (open_of(d, plugin) == COLI_OK) return COLI_OK;
        d->hangs |= !close_all(d);
        plugin->stage = COLI__PLUGIN_DEVICE;
        plugin->reason = coli__strndup(coli_error_message(), strlen(coli_error_message()));
    }
    char *report = coli__plugins_report(&d->plugins);
    const coli_status status = coli__fail(
        COLI_E_UNSUPPORTED, "backend %s cannot be used%s%s", backend ? backend : "",
        d->plugins.n ? ":\n" : ": no plugin of that name was found", report ? report : "");
    coli__free(report);
    return status;
}

void coli__devices_note(const coli__devices *d, const char *fmt, ...)
{
    if (!d->note) return;
    char line[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    d->note(d->user, line);
}

/* -- open and close ---------------------------------------------------------------------------- */

coli_status coli__devices_open(const coli_model_opts *o, const coli__container *container,
                               coli__devices **out)
{
    *out = NULL;
    if (o->vram_unit > COLI_VRAM_PERCENT || !(o->vram >= 0 && o->vram <= 0x1p63) ||
        (o->vram_unit == COLI_VRAM_PERCENT && o->vram > 100))
        return coli__fail(COLI_E_INVALID,
                          "vram: %g of unit %u; expected bytes, or 0 to 100 percent", o->vram,
                          o->vram_unit); // also without a device: coli_plan imagines one
    if (o->backend && strcmp(o->backend, "none") == 0) return COLI_OK;
    if (o->devices) COLI_TRY(check_list(o->devices));
    coli__devices *d = coli__calloc(1, sizeof *d);
    if (!d) return COLI_E_NOMEM;
    d->container = container;
    d->options = o->backend_options ? o->backend_options : "";
    d->ordinals = o->devices;
    d->asked = o->backend != NULL;
    d->vram_unit = o->vram_unit;
    d->vram = o->vram;
    d->wait_ns = (o->backend_wait_ms ? o->backend_wait_ms : 10000) * UINT64_C(1000000);
    d->note = o->note;
    d->progress = o->progress;
    d->user = o->user;
    coli_status status = choose(d, o->backend, o->backend_path);
    if (status == COLI_OK) status = coli__devices_allow(d);
    d->options = d->ordinals = NULL; // the caller's
    if (status == COLI_OK) {
        *out = d;
        return COLI_OK;
    }
    const bool asked = d->asked;
    coli__devices_close(d);
    return asked || status == COLI_E_NOMEM ? status : COLI_OK;
}

bool coli__devices_close(coli__devices *d)
{
    if (!d) return true;
    const bool ended = close_all(d) && !d->hangs; // else the plugins stay as they are
    coli__free(d->matrices);
    if (ended) coli__plugins_free(&d->plugins);
    coli__free(d);
    return ended;
}

uint32_t coli__devices_n(const coli__devices *d)
{
    return d ? d->n : 0;
}

coli__device *coli__devices_at(const coli__devices *d, uint32_t i)
{
    return d->dev[i];
}

/* -- statistics -------------------------------------------------------------------------------- */

void coli__devices_count(coli__devices *d, uint64_t n_device, uint64_t n_host, uint64_t n_again)
{
    if (!d) return;
    atomic_fetch_add(&d->n_row_device, n_device);
    atomic_fetch_add(&d->n_row_host, n_host);
    atomic_fetch_add(&d->n_row_again, n_again);
}

void coli__devices_count_streamed(coli__devices *d, uint32_t n_expert, uint64_t n_row)
{
    atomic_fetch_add(&d->n_streamed, n_expert);
    atomic_fetch_add(&d->n_row_streamed, n_row);
}

void coli__devices_count_products_again(coli__devices *d, uint32_t n)
{
    atomic_fetch_add(&d->n_matmul_again, n);
}

void coli__devices_stats(coli__devices *d, coli_backend_stats *out)
{
    if (!d) return;
    out->n_device = d->n;
    for (uint32_t i = 0; i < d->n_placed; i++) {
        out->n_matrix += d->matrices[i].n_matrix;
        out->n_matrix_off += d->matrices[i].is_off ? d->matrices[i].n_matrix : 0;
    }
    out->n_row_device = atomic_load(&d->n_row_device);
    out->n_row_host = atomic_load(&d->n_row_host);
    out->n_row_again = atomic_load(&d->n_row_again);
    out->n_matmul_again = atomic_load(&d->n_matmul_again);
    out->n_streamed = atomic_load(&d->n_streamed);
    out->n_row_streamed = atomic_load(&d->n_row_streamed);
    for (uint32_t i = 0; i < d->n; i++) {
        coli_bk_group_stats g;
        coli__device_group_stats(d->dev[i], &g);
        coli__device_counts c;
        coli__device_counts_get(d->dev[i], &c);
#define COUNT_SUM(name) out->name += c.name;
        COLI__DEVICE_COUNTERS(COUNT_SUM)
#undef COUNT_SUM
        out->upload_ms += g.upload_ms;
        out->to_device_ms += g.to_device_ms;
        out->kernel_ms += g.kernel_ms;
        out->to_host_ms += g.to_host_ms;
        if (g.clock_ms > out->clock_ms) out->clock_ms = g.clock_ms;
        out->n_device_lost += !coli__device_alive(d->dev[i]);
        out->vram_bytes += d->used[i];
        out->allowance_bytes += d->allowance[i];
    }
}

void coli__devices_rows(const coli__devices *d, uint64_t *n_device, uint64_t *n_host)
{
    *n_device = atomic_load(&d->n_row_device);
    *n_host = atomic_load(&d->n_row_host);
}

void coli__devices_use(const coli__devices *d, uint32_t i, coli_device_use *out)
{
    const coli__device *dev = d->dev[i];
    out->ordinal = coli__device_ordinal(dev);
    out->backend = coli__device_plugin(dev)->info.name;
    out->name = coli__device_info(dev)->name;
    out->uuid = coli__device_info(dev)->uuid;
    out->lost = coli__device_alive(dev) ? NULL : coli__device_why(dev);
    out->vram_bytes = d->used[i];
    out->allowance_bytes = d->allowance[i];
}
