/* backends.c - coli_backends: which plugins there are, and which devices they see.
 *
 * A driver may hang when it is asked for its devices, so it is asked on a lane (base/lane.h).  The
 * answer is written into a `look` of its own; when none comes, that and the whole list stay behind,
 * because the lane may still write there. */
#include <stdio.h>
#include <string.h>

#include "../backend/plugin.h"
#include "../base/alloc.h"
#include "../base/lane.h"
#include "api.h"
#include "coli/coli.h"

enum { MAX_DEVICE = 1024 }; // a plugin that speaks of more is broken
static const uint64_t wait_ns = 10000000000u;

/* One look at the devices of a plugin. */
typedef struct look {
    coli__plugin *plugin;
    coli__host host;
    bool is_open; // the host
    coli_bk_status status;
    uint32_t n;
    coli_bk_device_info *info; // (n)
    char (*formats)[256];      // (n)
} look;

typedef struct entry {
    look *look; // NULL before the first
    char *lacks;
} entry;

struct coli_backends {
    coli__plugin_list found;
    entry *entries; // (found.n)
    char *options;
    bool hangs;
};

/* ---- the list ------------------------------------------------------------------------------ */

/* Names of the optional functions that are not there. */
static coli_status list_lacks(const coli__plugin *p, char **out)
{
    coli__buf names = {0};
    coli_status status = coli__buf_str(&names, "");
#define RESOLVE(since, returns, name, parameters)
#define RESOLVE_OPT(since, returns, name, parameters)                                              \
    if (status == COLI_OK && !p->api.name)                                                         \
        status = coli__buf_printf(&names, "%s" #name, names.n_bytes ? ", " : "");
    if (p->stage >= COLI__PLUGIN_DEVICE) {
        COLI_BACKEND_SYMBOLS(RESOLVE, RESOLVE_OPT)
    }
#undef RESOLVE
#undef RESOLVE_OPT
    if (status != COLI_OK) coli__buf_finish(&names);
    *out = names.data;
    return status;
}

static coli_status find(const coli_backend_opts *o, coli_backends *list)
{
    const char *options = o->options ? o->options : "";
    COLI_TRY(coli__plugins_find(o->backend, o->path, &list->found));
    list->options = coli__strndup(options, strlen(options));
    list->entries = coli__calloc(list->found.n, sizeof *list->entries);
    if (!list->options || !list->entries) return COLI_E_NOMEM;
    for (size_t i = 0; i < list->found.n; i++)
        COLI_TRY(list_lacks(&list->found.plugins[i], &list->entries[i].lacks));
    return COLI_OK;
}

coli_status coli_backends_find(const coli_backend_opts *opts, coli_backends **out)
{
    *out = NULL;
    coli_backend_opts o;
    COLI_TRY(coli__opts_copy("coli_backend_opts", &o, sizeof o, opts));
    coli_backends *list = coli__calloc(1, sizeof *list);
    if (!list) return COLI_E_NOMEM;
    const coli_status status = find(&o, list);
    if (status == COLI_OK)
        *out = list;
    else
        coli_backends_free(list);
    return status;
}

static void look_free(look *l)
{
    if (!l) return;
    if (l->is_open) coli__host_finish(&l->host);
    coli__free(l->info);
    coli__free(l->formats);
    coli__free(l);
}

void coli_backends_free(coli_backends *list)
{
    if (!list || list->hangs) return;
    for (size_t i = 0; list->entries && i < list->found.n; i++) {
        look_free(list->entries[i].look);
        coli__free(list->entries[i].lacks);
    }
    coli__free(list->entries);
    coli__free(list->options);
    coli__plugins_free(&list->found);
    coli__free(list);
}

size_t coli_backends_n(const coli_backends *list)
{
    return list ? list->found.n : 0;
}

static coli_status check_index(const coli_backends *list, size_t i)
{
    if (i < list->found.n) return COLI_OK;
    return coli__fail(COLI_E_INVALID, "backend %zu: there are %zu", i, list->found.n);
}

coli_status coli_backends_get(const coli_backends *list, size_t i, coli_backend_entry *out)
{
    COLI_TRY(coli__struct_clear("coli_backend_entry", out));
    COLI_TRY(check_index(list, i));
    const coli__plugin *p = &list->found.plugins[i];
    const coli_backend_entry full = {.abi_major = p->info.abi_major,
                                     .abi_minor = p->info.abi_minor,
                                     .file = p->path,
                                     .stage = coli__plugin_stage_name(p->stage),
                                     .reason = p->reason,
                                     .name = p->info.name,
                                     .build = p->info.build,
                                     .lacks = list->entries[i].lacks};
    coli__struct_fill(out, &full, sizeof full);
    return COLI_OK;
}

/* ---- devices ------------------------------------------------------------------------------- */

static void job_count(void *ctx)
{
    look *l = ctx;
    l->status = l->plugin->api.device_count(&l->host.table, &l->n);
}

static void job_info(void *ctx)
{
    look *l = ctx;
    for (uint32_t i = 0; i < l->n; i++) {
        coli_bk_device_info *info = &l->info[i];
        info->struct_size = sizeof *info;
        const coli_bk_status status = l->plugin->api.device_info(&l->host.table, i, info);
        if (status == COLI_BK_OK) continue;
        (void)coli__backend_fail(l->plugin, &l->host, "device_info", status);
        *info = (coli_bk_device_info){.kind = COLI_BK_SIMULATED};
        snprintf(info->unusable, sizeof info->unusable, "%s", coli_error_message());
    }
}

static coli_status run_job(coli_backends *list, coli__lane *lane, void (*job)(void *), look *l)
{
    coli__lane_start(lane, job, l);
    if (coli__lane_wait(lane, wait_ns)) return COLI_OK;
    list->hangs = true;
    return coli__fail(COLI_E_IO, "looking for devices: no answer within %d s",
                      (int)(wait_ns / 1000000000u));
}

/* "int8-g64-f16, int4-g64-f16": the names that model files use.  Formats that this version does not
 * know are none of its business. */
static void name_formats(uint32_t formats, char *out, size_t cap)
{
    size_t n = 0;
    *out = 0;
#define ADD_FORMAT(name, value, bits, group, per_row, scale_bytes)                                 \
    if (formats & 1u << (value))                                                                   \
        n += (size_t)snprintf(out + n, cap - n, "%sint%d-%s-f%d", n ? ", " : "", bits,             \
                              (per_row) ? "row" : "g" #group, 8 * (scale_bytes));
    COLI_BK_FORMAT_LIST(ADD_FORMAT)
#undef ADD_FORMAT
}

static void tidy(look *l)
{
    for (uint32_t i = 0; i < l->n; i++) {
        coli_bk_device_info *info = &l->info[i];
        coli__plugin_text(info->name, sizeof info->name);
        coli__plugin_text(info->driver, sizeof info->driver);
        coli__plugin_text(info->uuid, sizeof info->uuid);
        coli__plugin_text(info->unusable, sizeof info->unusable);
        name_formats(info->formats, l->formats[i], sizeof l->formats[i]);
    }
}

/* E_UNSUPPORTED and E_IO are about the plugin: a reason, not a failure of the list. */
static coli_status ask(coli_backends *list, coli__lane *lane, look *l)
{
    COLI_TRY(coli__host_init(&l->host, list->options, wait_ns));
    l->is_open = true;
    COLI_TRY(run_job(list, lane, job_count, l));
    if (l->status != COLI_BK_OK) {
        (void)coli__backend_fail(l->plugin, &l->host, "device_count", l->status);
        return COLI_E_IO; // also when it is the device that lacks memory
    }
    if (l->n == 0)
        return coli__fail(COLI_E_UNSUPPORTED, "no device%s%s", l->host.message[0] ? ": " : "",
                          l->host.message);
    if (l->n > MAX_DEVICE)
        return coli__fail(COLI_E_UNSUPPORTED, "it speaks of %u devices, which cannot be", l->n);
    l->info = coli__calloc(l->n, sizeof *l->info);
    l->formats = coli__calloc(l->n, sizeof *l->formats);
    if (!l->info || !l->formats) return COLI_E_NOMEM;
    COLI_TRY(run_job(list, lane, job_info, l));
    tidy(l);
    return COLI_OK;
}

coli_status coli_backends_n_device(coli_backends *list, size_t i, uint32_t *n)
{
    *n = 0;
    COLI_TRY(check_index(list, i));
    coli__plugin *p = &list->found.plugins[i];
    entry *e = &list->entries[i];
    if (p->stage < COLI__PLUGIN_DEVICE)
        return coli__fail(COLI_E_UNSUPPORTED, "%s: %s: %s", p->path,
                          coli__plugin_stage_name(p->stage), p->reason);
    if (list->hangs) return coli__fail(COLI_E_IO, "a backend hangs");
    look_free(e->look);
    coli__lane *lane = NULL;
    e->look = coli__calloc(1, sizeof *e->look);
    if (!e->look) return COLI_E_NOMEM;
    e->look->plugin = p;
    coli_status status = coli__lane_create("coli-look", &lane);
    if (status == COLI_OK) status = ask(list, lane, e->look);
    coli__lane_destroy(lane);
    if (status == COLI_E_NOMEM) return status;
    if (status != COLI_OK) return coli__plugin_refuse(p, COLI__PLUGIN_DEVICE);
    p->stage = COLI__PLUGIN_READY;
    coli__free(p->reason);
    p->reason = NULL;
    *n = e->look->n;
    return COLI_OK;
}

static const char *kind_name(uint32_t kind)
{
    static const char *const names[] = {"discrete", "integrated", "cpu", "simulated"};
    return kind < sizeof names / sizeof *names ? names[kind] : "unknown";
}

coli_status coli_backends_device(coli_backends *list, size_t i, uint32_t device,
                                 coli_backend_device *out)
{
    COLI_TRY(coli__struct_clear("coli_backend_device", out));
    COLI_TRY(check_index(list, i));
    const look *l = list->entries[i].look;
    if (!l || !l->info || device >= l->n || list->hangs)
        return coli__fail(COLI_E_INVALID, "device %u of %s: coli_backends_n_device says %u", device,
                          list->found.plugins[i].path, l && l->info && !list->hangs ? l->n : 0);
    const coli_bk_device_info *info = &l->info[device];
    const coli_backend_device full = {.can_join = (info->flags & COLI_BK_CAN_JOIN) != 0,
                                      .mem_total = info->mem_total,
                                      .max_tensor_bytes = info->max_tensor_bytes,
                                      .kind = kind_name(info->kind),
                                      .name = info->name,
                                      .driver = info->driver,
                                      .uuid = info->uuid,
                                      .formats = l->formats[device],
                                      .unusable = info->unusable[0] ? info->unusable : NULL};
    coli__struct_fill(out, &full, sizeof full);
    return COLI_OK;
}
