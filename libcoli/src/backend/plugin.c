/* plugin.c - see plugin.h.
 *
 * A candidate climbs the stages of plugin.h until one refuses it:
 *
 *     FILE, LIBRARY   the system's part (base/dynlib.h)
 *     DESCRIPTOR      coli_backend_info is read: data, so nothing of the plugin has run yet but what
 *                     its runtime does when a library is loaded
 *     VERSION         another major version: what stands behind it in the record is not read, since
 *                     that version may have put something else there
 *     SYMBOLS         the functions of coli/backend.h that are not newer than the plugin's minor
 *                     version; an address that is no code is refused, since calling it is a crash
 *
 * Every refusal keeps a text that says what to do.  Refused libraries are unloaded at once. */
#include "plugin.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../base/file.h"
#include "../model/tokenizer.h"

const char *coli__plugin_stage_name(coli__plugin_stage stage)
{
    switch (stage) {
#define COLI__STAGE_NAME(name, text)                                                               \
    case COLI__PLUGIN_##name:                                                                      \
        return text;
        COLI__PLUGIN_STAGES(COLI__STAGE_NAME)
#undef COLI__STAGE_NAME
    }
    return "unknown";
}

/* ---- one file ------------------------------------------------------------------------------ */

coli_status coli__plugin_refuse(coli__plugin *plugin, coli__plugin_stage stage)
{
    const char *text = coli_error_message();
    char *reason = coli__strndup(text, strlen(text));
    if (!reason) return COLI_E_NOMEM;
    coli__free(plugin->reason);
    plugin->reason = reason;
    plugin->stage = stage;
    if (stage < COLI__PLUGIN_DEVICE) {
        coli__dynlib_close(plugin->lib);
        plugin->lib = NULL;
        plugin->api = (coli__backend_api){0};
    }
    return COLI_OK;
}

__attribute__((format(printf, 3, 4))) static coli_status
refuse(coli__plugin *p, coli__plugin_stage stage, const char *fmt, ...)
{
    char text[2048]; // more than a message holds, which is cut at a character
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    coli__fail(COLI_E_UNSUPPORTED, "%s", text);
    return coli__plugin_refuse(p, stage);
}

/* A name that can stand in a file name, and on a command line without quotes. */
static bool is_name(const char *name, size_t cap)
{
    size_t n = 0;
    while (n < cap && name[n]) {
        const char c = name[n++];
        if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '_' && c != '-')
            return false;
    }
    return n > 0 && n < cap;
}

/* The record is copied before it is believed. */
static coli_status check_descriptor(coli__plugin *p)
{
    enum { VERSION_BYTES = offsetof(coli_bk_info, reserved) }; // the same in every major version
    const void *record = coli__dynlib_symbol(p->lib, "coli_backend_info");
    coli_bk_info info = {.magic = ""};
    if (!record)
        return refuse(p, COLI__PLUGIN_DESCRIPTOR,
                      "it exports no coli_backend_info: no backend of coli, or one that was linked "
                      "without its exports");
    if (!coli__dynlib_is_readable(record, VERSION_BYTES))
        return refuse(p, COLI__PLUGIN_DESCRIPTOR, "coli_backend_info is no data");
    memcpy(&info, record, VERSION_BYTES);
    if (memcmp(info.magic, COLI_BK_MAGIC, sizeof info.magic) != 0)
        return refuse(p, COLI__PLUGIN_DESCRIPTOR,
                      "coli_backend_info does not begin with \"" COLI_BK_MAGIC
                      "\": it belongs to something else");
    if (info.struct_size < VERSION_BYTES)
        return refuse(p, COLI__PLUGIN_DESCRIPTOR,
                      "coli_backend_info: struct_size is %" PRIu32 ", at least %d is needed; set "
                      "it to sizeof coli_bk_info",
                      info.struct_size, (int)VERSION_BYTES);
    if (info.abi_major != COLI_BK_ABI_MAJOR)
        return refuse(p, COLI__PLUGIN_VERSION,
                      "made for version %" PRIu32 ".%" PRIu32
                      " of the interface, this libcoli has %u.%u; install a newer %s",
                      info.abi_major, info.abi_minor, COLI_BK_ABI_MAJOR, COLI_BK_ABI_MINOR,
                      info.abi_major < COLI_BK_ABI_MAJOR ? "backend" : "libcoli");
    if (info.struct_size < sizeof info)
        return refuse(p, COLI__PLUGIN_DESCRIPTOR,
                      "coli_backend_info: struct_size is %" PRIu32
                      ", version %u needs at least %zu; set it to sizeof coli_bk_info",
                      info.struct_size, COLI_BK_ABI_MAJOR, sizeof info);
    if (!coli__dynlib_is_readable(record, sizeof info))
        return refuse(p, COLI__PLUGIN_DESCRIPTOR, "coli_backend_info ends before its struct_size");
    memcpy(&info, record, sizeof info);
    if (!is_name(info.name, sizeof info.name))
        return refuse(p, COLI__PLUGIN_DESCRIPTOR,
                      "coli_backend_info: name must be 1 to %zu of a-z, 0-9, _ and -, with a NUL "
                      "behind",
                      sizeof info.name - 1);
    if (!memchr(info.build, 0, sizeof info.build) ||
        coli__utf8_check(info.build, strlen(info.build)) != strlen(info.build))
        return refuse(p, COLI__PLUGIN_DESCRIPTOR,
                      "coli_backend_info: build must be UTF-8 with a NUL behind");
    p->info = info;
    return COLI_OK;
}

/* What became of the functions of a plugin. */
typedef struct resolver {
    coli__plugin *plugin;
    uint32_t n_missing;
    coli__buf missing, no_code; // names, ", " between them
    coli_status status;         // of these texts
} resolver;

static void note_name(resolver *r, coli__buf *names, const char *name)
{
    if (r->status == COLI_OK)
        r->status = coli__buf_printf(names, "%s%s", names->n_bytes ? ", " : "", name);
}

/* `function` is the address of a pointer to a function, whose type only the list knows. */
static void resolve(resolver *r, bool optional, uint32_t since, const char *name, void *function)
{
    if (since > r->plugin->info.abi_minor) return;
    void *address = coli__dynlib_symbol(r->plugin->lib, name);
    if (!address && optional) return;
    if (!address) {
        r->n_missing++;
        note_name(r, &r->missing, name);
    } else if (!coli__dynlib_is_code(address)) {
        note_name(r, &r->no_code, name);
    } else {
        memcpy(function, &address, sizeof address);
    }
}

static void drop_halves(coli__backend_api *api)
{
    if (!api->tensor_overwrite_async || !api->fence_poll) {
        api->tensor_overwrite_async = NULL;
        api->fence_poll = NULL;
    }
    if (!api->host_alloc || !api->host_free) {
        api->host_alloc = NULL;
        api->host_free = NULL;
    }
    if (!api->matmul) api->matmul_batch = NULL;
}

static coli_status resolve_symbols(coli__plugin *p)
{
    resolver r = {.plugin = p};
#define RESOLVE(since, returns, name, parameters)                                                  \
    resolve(&r, false, since, "coli_backend_" #name, &p->api.name);
#define RESOLVE_OPT(since, returns, name, parameters)                                              \
    resolve(&r, true, since, "coli_backend_" #name, &p->api.name);
    COLI_BACKEND_SYMBOLS(RESOLVE, RESOLVE_OPT)
#undef RESOLVE
#undef RESOLVE_OPT
    drop_halves(&p->api);
    coli_status status = r.status;
    if (status == COLI_OK && r.missing.data)
        status =
            refuse(p, COLI__PLUGIN_SYMBOLS,
                   "it lacks %" PRIu32 " function%s of the interface: %s%s%s; build it anew "
                   "against coli/backend.h",
                   r.n_missing, r.n_missing == 1 ? "" : "s", r.missing.data,
                   r.no_code.data ? "; no functions: " : "", r.no_code.data ? r.no_code.data : "");
    else if (status == COLI_OK && r.no_code.data)
        status = refuse(p, COLI__PLUGIN_SYMBOLS,
                        "exported, but no functions: %s; build it anew against coli/backend.h",
                        r.no_code.data);
    coli__buf_finish(&r.missing);
    coli__buf_finish(&r.no_code);
    return status;
}

/* p->path is set; climbs to READY or to a refusal. */
static coli_status load(coli__plugin *p)
{
    p->stage = COLI__PLUGIN_READY;
    const coli_status status = coli__dynlib_open(p->path, &p->lib);
    if (status == COLI_E_NOMEM) return status;
    if (status == COLI_E_FORMAT) return coli__plugin_refuse(p, COLI__PLUGIN_LIBRARY);
    if (status != COLI_OK) return coli__plugin_refuse(p, COLI__PLUGIN_FILE);
    COLI_TRY(check_descriptor(p));
    return p->stage == COLI__PLUGIN_READY ? resolve_symbols(p) : COLI_OK;
}

coli_status coli__plugin_load(const char *path, coli__plugin *out)
{
    *out = (coli__plugin){0};
    coli_status status = coli__path_absolute(path, &out->path);
    if (status == COLI_OK) status = load(out);
    if (status != COLI_OK) coli__plugin_unload(out);
    return status;
}

void coli__plugin_unload(coli__plugin *plugin)
{
    if (!plugin) return;
    if (!plugin->keep) coli__dynlib_close(plugin->lib);
    coli__free(plugin->path);
    coli__free(plugin->reason);
    *plugin = (coli__plugin){0};
}

void coli__plugin_keep(coli__plugin *plugin)
{
    plugin->keep = true;
}

/* ---- the search ---------------------------------------------------------------------------- */

typedef struct dir_list {
    char **dirs;
    size_t n;
} dir_list;

/* A directory that was there before, perhaps by another path, is not searched again. */
static coli_status add_dir(dir_list *list, const char *path, size_t n_bytes)
{
    char *dir = coli__strndup(path, n_bytes);
    if (!dir) return COLI_E_NOMEM;
    bool known = false;
    for (size_t i = 0; i < list->n; i++)
        known = known || strcmp(list->dirs[i], dir) == 0 || coli__path_same(list->dirs[i], dir);
    char **grown = known ? NULL : coli__realloc(list->dirs, list->n + 1, sizeof *grown);
    if (!grown) {
        coli__free(dir);
        return known ? COLI_OK : COLI_E_NOMEM;
    }
    list->dirs = grown;
    list->dirs[list->n++] = dir;
    return COLI_OK;
}

static coli_status add_search_path(dir_list *list, const char *search_path)
{
    const char separator[2] = {coli__path_list_separator(), 0};
    for (const char *at = search_path; at && *at;) {
        const size_t n = strcspn(at, separator);
        if (n > 0) { // "/a::/b" is a habit, and means two directories
            if (!coli__path_is_absolute(at))
                return coli__fail(
                    COLI_E_INVALID,
                    "search path of backends: \"%.*s\" is relative; expected absolute "
                    "directories",
                    (int)n, at);
            COLI_TRY(add_dir(list, at, n));
        }
        at += n + (at[n] != 0);
    }
    return COLI_OK;
}

/* Where the system does not tell what place libcoli has, the install directory is left. */
static coli_status add_own_dirs(dir_list *list)
{
    char *own = NULL, *installed = NULL;
    coli_status status = coli__dynlib_own_dir(&own);
    if (status == COLI_E_NOMEM) return status;
    if (own) {
        status = add_dir(list, own, strlen(own));
        if (status == COLI_OK)
            status = coli__path_join(own, COLI_BACKENDS_FROM_LIBRARY, &installed);
        if (status == COLI_OK) status = add_dir(list, installed, strlen(installed));
        coli__free(own);
        coli__free(installed);
        COLI_TRY(status);
    }
    return add_dir(list, COLI_BACKENDS_DIR, strlen(COLI_BACKENDS_DIR));
}

/* The NAME of a file coli_NAME.so, or nothing. */
static bool name_of_file(const char *file, const char **name, size_t *n)
{
    const char *suffix = coli__dynlib_suffix();
    const size_t n_file = strlen(file), n_prefix = strlen("coli_"), n_suffix = strlen(suffix);
    if (n_file <= n_prefix + n_suffix || strncmp(file, "coli_", n_prefix) != 0 ||
        strcmp(file + n_file - n_suffix, suffix) != 0)
        return false;
    *name = file + n_prefix;
    *n = n_file - n_prefix - n_suffix;
    return true;
}

/* The plugin that a file of this name would be another copy of, or NULL. */
static const coli__plugin *ready_by_name(const coli__plugin_list *list, const char *file)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->plugins[i].stage == COLI__PLUGIN_READY &&
            strcmp(list->plugins[i].file, file) == 0)
            return &list->plugins[i];
    return NULL;
}

static coli_status grow(coli__plugin_list *list, coli__plugin **out)
{
    coli__plugin *grown = coli__realloc(list->plugins, list->n + 1, sizeof *grown);
    if (!grown) return COLI_E_NOMEM;
    list->plugins = grown;
    *out = &grown[list->n++];
    **out = (coli__plugin){0};
    return COLI_OK;
}

/* A file of a directory: its name has to be that of the backend, or `--backend NAME` would find
 * another than the list shows. */
static coli_status add_file(coli__plugin_list *list, const char *dir, const char *file)
{
    char *path;
    const char *name = "";
    size_t n = 0;
    coli__plugin *p;
    COLI_TRY(coli__path_join(dir, file, &path));
    for (size_t i = 0; i < list->n; i++)
        if (coli__path_same(list->plugins[i].path, path)) {
            coli__free(path);
            return COLI_OK;
        }
    const coli__plugin *first = ready_by_name(list, file);
    const char *first_path = first ? first->path : NULL; // grow moves `first`
    if (grow(list, &p) != COLI_OK) {
        coli__free(path);
        return COLI_E_NOMEM;
    }
    p->path = path;
    p->file = path + strlen(path) - strlen(file);
    if (first_path && coli__path_exists(path))
        return refuse(p, COLI__PLUGIN_NAME, "not loaded: %s comes first", first_path);
    COLI_TRY(load(p));
    if (p->stage != COLI__PLUGIN_READY) return COLI_OK;
    name_of_file(file, &name, &n);
    if (strlen(p->info.name) == n && memcmp(p->info.name, name, n) == 0) return COLI_OK;
    return refuse(p, COLI__PLUGIN_DESCRIPTOR,
                  "it calls itself \"%s\"; rename the file to coli_%s%s", p->info.name,
                  p->info.name, coli__dynlib_suffix());
}

static coli_status add_named(coli__plugin_list *list, const dir_list *dirs, const char *backend)
{
    coli__buf file = {0};
    coli_status status = coli__buf_printf(&file, "coli_%s%s", backend, coli__dynlib_suffix());
    for (size_t i = 0; i < dirs->n && status == COLI_OK; i++)
        status = add_file(list, dirs->dirs[i], file.data);
    coli__buf_finish(&file);
    return status;
}

/* A directory that cannot be listed is shown when the user named it; of ours not all need exist. */
static coli_status add_unreadable(coli__plugin_list *list, const char *dir)
{
    coli__plugin *p;
    COLI_TRY(grow(list, &p));
    p->path = coli__strndup(dir, strlen(dir));
    if (!p->path) return COLI_E_NOMEM;
    const bool there = coli__path_exists(dir);
    return refuse(p, COLI__PLUGIN_FILE,
                  there ? "this directory cannot be read" : "no such directory");
}

static coli_status add_all_of(coli__plugin_list *list, const char *dir, bool asked_for)
{
    char **files;
    size_t n_file, n;
    const char *name;
    coli_status status = coli__dir_list(dir, &files, &n_file);
    if (status == COLI_E_NOMEM) return status;
    if (status != COLI_OK) return asked_for ? add_unreadable(list, dir) : COLI_OK;
    for (size_t i = 0; i < n_file; i++) {
        if (status == COLI_OK && name_of_file(files[i], &name, &n))
            status = add_file(list, dir, files[i]);
        coli__free(files[i]);
    }
    coli__free(files);
    return status;
}

static coli_status search(const char *backend, const char *search_path, coli__plugin_list *out)
{
    dir_list dirs = {0};
    coli_status status = add_search_path(&dirs, search_path);
    const size_t n_asked = dirs.n;
    if (status == COLI_OK) status = add_own_dirs(&dirs);
    if (status == COLI_OK && backend) status = add_named(out, &dirs, backend);
    for (size_t i = 0; i < dirs.n && !backend && status == COLI_OK; i++)
        status = add_all_of(out, dirs.dirs[i], i < n_asked);
    for (size_t i = 0; i < dirs.n; i++) coli__free(dirs.dirs[i]);
    coli__free(dirs.dirs);
    return status;
}

coli_status coli__plugins_find(const char *backend, const char *search_path, coli__plugin_list *out)
{
    *out = (coli__plugin_list){0};
    coli_status status;
    coli__plugin *p;
    if (backend && coli__path_has_dir(backend)) {
        status = grow(out, &p);
        if (status == COLI_OK) status = coli__plugin_load(backend, p);
    } else {
        status = search(backend, search_path, out);
    }
    if (status != COLI_OK) coli__plugins_free(out);
    return status;
}

void coli__plugins_free(coli__plugin_list *list)
{
    for (size_t i = 0; i < list->n; i++) coli__plugin_unload(&list->plugins[i]);
    coli__free(list->plugins);
    *list = (coli__plugin_list){0};
}

/* A line is a line, whatever files are called. */
static coli_status report_one(const coli__plugin *p, coli__buf *text)
{
    coli__buf line = {0};
    coli_status status =
        coli__buf_printf(&line, "  %s: %s%s%s", p->path, coli__plugin_stage_name(p->stage),
                         p->reason ? ": " : "", p->reason ? p->reason : "");
    if (status == COLI_OK) {
        coli__plugin_text(line.data, line.n_bytes + 1);
        status = coli__buf_printf(text, "%s%s", text->n_bytes ? "\n" : "", line.data);
    }
    coli__buf_finish(&line);
    return status;
}

char *coli__plugins_report(const coli__plugin_list *list)
{
    coli__buf text = {0};
    coli_status status = coli__buf_str(&text, "");
    for (size_t i = 0; i < list->n && status == COLI_OK; i++)
        status = report_one(&list->plugins[i], &text);
    if (status != COLI_OK) coli__buf_finish(&text);
    return text.data;
}
