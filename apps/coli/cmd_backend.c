/* cmd_backend.c - `coli backend`: which backends there are, what devices they see, what is wrong with
 * those that cannot be used, and whether one keeps its contract. */
#include <stdlib.h>
#include <string.h>

#include "coli/coli.h"
#include "commands.h"
#include "input.h"
#include "open_model.h"
#include "options.h"
#include "terminal.h"
#include "text.h"

/* ---- what there is ------------------------------------------------------------------------- */

typedef struct device_list {
    coli_backend_device *devices; // (n)
    uint32_t n, n_usable;
} device_list;

/* A backend, and its devices where they were asked for. */
typedef struct view {
    coli_backend_entry entry;
    device_list devices;
} view;

static coli_status look(coli_backends *list, size_t i, bool with_devices, view *v)
{
    *v = (view){.entry = {.struct_size = sizeof v->entry}};
    coli_status status = coli_backends_get(list, i, &v->entry);
    if (status != COLI_OK || !with_devices || v->entry.reason) return status;
    device_list *d = &v->devices;
    status = coli_backends_n_device(list, i, &d->n);
    if (status != COLI_OK) return status;
    d->devices = app_alloc(d->n, sizeof *d->devices);
    for (uint32_t k = 0; k < d->n && status == COLI_OK; k++) {
        d->devices[k] = (coli_backend_device){.struct_size = sizeof *d->devices};
        status = coli_backends_device(list, i, k, &d->devices[k]);
        d->n_usable += !d->devices[k].unusable;
    }
    return status == COLI_OK ? coli_backends_get(list, i, &v->entry) : status; // its stage now
}

static bool is_usable(const view *v, bool with_devices)
{
    return !v->entry.reason && (!with_devices || v->devices.n_usable > 0);
}

/* ---- text ---------------------------------------------------------------------------------- */

static void print_device(const coli_backend_device *d, uint32_t number)
{
    app_line(stdout, "  device %-3u %s, %s, %.1f GB", number, *d->name ? d->name : "without a name",
             d->kind, (double)d->mem_total * 1e-9);
    if (*d->driver) app_line(stdout, "    driver   %s", d->driver);
    if (*d->uuid) app_line(stdout, "    uuid     %s", d->uuid);
    app_line(stdout, "    formats  %s", *d->formats ? d->formats : "none");
    if (d->unusable) app_line(stdout, "    unusable %s", d->unusable);
}

static void print_view(const view *v, bool with_devices)
{
    const coli_backend_entry *e = &v->entry;
    app_line(stdout, "%-10s %s", *e->name ? e->name : "?", e->file);
    if (e->reason) {
        app_line(stdout, "  %s: %s", e->stage, e->reason);
        return;
    }
    app_line(stdout, "  interface %u.%u, %s", e->abi_major, e->abi_minor,
             *e->build ? e->build : "which does not say who built it");
    if (*e->lacks) app_line(stdout, "  without %s", e->lacks);
    for (uint32_t k = 0; with_devices && k < v->devices.n; k++)
        print_device(&v->devices.devices[k], k);
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static void set_text(json_t *object, const char *key, const char *text)
{
    json_object_set_new(object, key, text ? app_json_string(text, strlen(text)) : json_null());
}

static json_t *device_json(const coli_backend_device *d)
{
    json_t *object = json_object();
    set_text(object, "name", d->name);
    set_text(object, "kind", d->kind);
    set_text(object, "driver", d->driver);
    set_text(object, "uuid", d->uuid);
    json_object_set_new(object, "mem_total", json_integer((json_int_t)d->mem_total));
    json_object_set_new(object, "max_tensor_bytes", json_integer((json_int_t)d->max_tensor_bytes));
    set_text(object, "formats", d->formats);
    json_object_set_new(object, "can_join", json_boolean(d->can_join));
    set_text(object, "unusable", d->unusable);
    return object;
}

static json_t *view_json(const view *v, bool with_devices)
{
    const coli_backend_entry *e = &v->entry;
    json_t *object = json_object();
    set_text(object, "file", e->file);
    set_text(object, "stage", e->stage);
    set_text(object, "reason", e->reason);
    set_text(object, "name", e->name);
    set_text(object, "build", e->build);
    json_object_set_new(object, "abi_major", json_integer(e->abi_major));
    json_object_set_new(object, "abi_minor", json_integer(e->abi_minor));
    set_text(object, "lacks", e->lacks);
    if (!with_devices) return object;
    json_t *devices = json_array();
    for (uint32_t k = 0; k < v->devices.n; k++)
        json_array_append_new(devices, device_json(&v->devices.devices[k]));
    json_object_set_new(object, "devices", devices);
    return object;
}

/* ---- the command --------------------------------------------------------------------------- */

/* All of them to stdout; *usable becomes true when one of them can be used. */
static coli_status show_all(coli_backends *list, const app_settings *s, bool with_devices,
                            bool *usable)
{
    json_t *array = json_array();
    coli_status status = COLI_OK;
    *usable = false;
    for (size_t i = 0; i < coli_backends_n(list) && status == COLI_OK; i++) {
        view v;
        status = look(list, i, with_devices, &v);
        if (status == COLI_OK) {
            *usable |= is_usable(&v, with_devices);
            if (s->json)
                json_array_append_new(array, view_json(&v, with_devices));
            else
                print_view(&v, with_devices);
        }
        free(v.devices.devices);
    }
    if (s->json && status == COLI_OK)
        app_json_line(array);
    else
        json_decref(array);
    return status;
}

static int show(const app_settings *s, bool with_devices)
{
    const char *named = s->n_arg > 1 ? s->args[1] : NULL;
    const coli_backend_opts opts = {.struct_size = sizeof opts,
                                    .backend = named,
                                    .path = s->backend_path,
                                    .options = s->backend_options};
    coli_backends *list;
    bool usable = false;
    coli_status status = coli_backends_find(&opts, &list);
    if (status == COLI_OK) status = show_all(list, s, with_devices, &usable);
    const size_t n = coli_backends_n(list);
    coli_backends_free(list);
    if (status != COLI_OK) return app_fail(status);
    if (!named && n == 0 && !s->json)
        app_note("no backend was found: everything runs on the processor");
    if (!named || usable) return APP_OK;
    app_error("backend %s cannot be used", named);
    app_hint_backend(named);
    return APP_BAD;
}

/* ---- check --------------------------------------------------------------------------------- */

static void print_case(void *user, const char *line, bool is_fault)
{
    (void)user;
    (void)is_fault;
    app_line(stdout, "%s", line);
    fflush(stdout); // a case may take seconds, and the next may be the last
}

static int check(const app_settings *s)
{
    if (s->n_arg < 2) return app_usage("backend", "backend check: expected a file");
    if (s->json) return app_usage("backend", "backend check: there is no --json");
    const coli_check_opts opts = {.struct_size = sizeof opts,
                                  .device = s->device,
                                  .options = s->backend_options,
                                  .only = s->only,
                                  .seed = s->seed,
                                  .on_line = print_case};
    coli_check_result r = {.struct_size = sizeof r};
    const coli_status status = coli_backend_check(s->args[1], &opts, &r);
    if (status != COLI_OK) {
        app_fail(status);
        return APP_BAD;
    }
    app_line(stdout, "%u cases, %u skipped, %u faults", r.n_case, r.n_skipped, r.n_fault);
    return r.n_fault ? APP_FAILED : APP_OK;
}

int cmd_backend(const app_settings *s)
{
    const char *verb = s->args[0];
    if (strcmp(verb, "list") == 0) return show(s, false);
    if (strcmp(verb, "info") == 0) return show(s, true);
    if (strcmp(verb, "check") == 0) return check(s);
    return app_usage("backend", "backend: expected list, info or check, found \"%s\"", verb);
}
