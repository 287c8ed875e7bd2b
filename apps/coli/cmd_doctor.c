/* cmd_doctor.c - `coli doctor`: a line for each thing that coli needs, and what to do about it.
 *
 *     ok        as it should be
 *     note      it works, and could be better; or it is good to know
 *     problem   it does not work, or not as the options ask: the exit code is 1 then
 *
 * Facts come from the library (coli_system, coli_backends, coli_plan), so they are those that decide. */
#include <stdlib.h>
#include <string.h>

#include "coli/coli.h"
#include "commands.h"
#include "input.h"
#include "open_model.h"
#include "options.h"
#include "system.h"
#include "terminal.h"
#include "text.h"

typedef enum level { OK, NOTE, PROBLEM } level;
static const char *const level_names[] = {"ok", "note", "problem"};

typedef struct finding {
    level level;
    const char *what;    // "memory"
    char *text, *advice; // new memory; advice NULL: nothing to do
} finding;

typedef struct doctor {
    const app_settings *s;
    coli_system system;
    finding *findings; // (n)
    size_t n;
} doctor;

/* ---- findings ------------------------------------------------------------------------------ */

/* Takes over the texts. */
static void find(doctor *d, level l, const char *what, char *text, char *advice)
{
    d->findings = app_realloc(d->findings, d->n + 1, sizeof *d->findings);
    d->findings[d->n++] = (finding){l, what, text, advice};
}

/* ---- the processor ------------------------------------------------------------------------- */

/* Better instruction sets that this processor lacks, "avx512: no AVX512F; "; those of other processors are
 * not worth a word. */
static char *lacking(const char *best)
{
    char *list = app_format("%s", "");
    for (size_t i = 0; coli_isa_name(i); i++) {
        const char *name = coli_isa_name(i);
        if (strcmp(name, best) == 0 || coli_isa_check(name, NULL) == COLI_OK) continue;
        const char *why = strstr(coli_error_message(), ": no ");
        if (!why || !strstr(why, " here")) continue;
        char *longer = app_format("%s; no %s: it lacks %.*s", list, name,
                                  (int)(strstr(why, " here") - why - 5), why + 5);
        free(list);
        list = longer;
    }
    return list;
}

static void look_at_processor(doctor *d)
{
    const coli_system *y = &d->system;
    const char *best = "none";
    coli_isa_check(NULL, &best);
    char *list = lacking(best);
    const bool slow = strcmp(best, "scalar") == 0;
    find(d, slow ? NOTE : OK, "processor",
         app_format("%s; kernels %s%s", *y->cpu ? y->cpu : "without a name", best, list),
         slow ? app_format("plain C is several times slower than vector instructions: a virtual "
                           "machine may hide those that its host has")
              : NULL);
    free(list);
    const bool fewer = y->n_processor < y->n_processor_all;
    find(d, fewer ? NOTE : OK, "threads",
         app_format("%u of %u processors may be used", y->n_processor, y->n_processor_all),
         fewer ? app_format("the others are kept from this process by its affinity (taskset) or "
                            "its control group")
               : NULL);
    if (!coli_arithmetic_is_exact())
        find(d, PROBLEM, "arithmetic",
             app_format("this build or processor does not round as results need it"),
             app_format("build it anew, without flags like -ffast-math"));
}

/* ---- memory -------------------------------------------------------------------------------- */

static void look_at_memory(doctor *d)
{
    const coli_system *y = &d->system;
    if (y->memory_bytes == 0) {
        find(d, NOTE, "memory", app_format("the system does not tell how much there is"),
             app_format("--ram SIZE says how much the model may take"));
        return;
    }
    find(d, OK, "memory",
         app_format("%.1f GB, of which %.1f GB can be taken now", app_gb(y->memory_bytes),
                    app_gb(y->available_bytes)),
         NULL);
    const bool limited = y->available_bytes < y->free_bytes / 100 * 99;
    if (!y->has_groups)
        find(d, OK, "control group", app_format("there are none on this system"), NULL);
    else
        find(d, limited ? NOTE : OK, "control group",
             limited ? app_format("leaves %.1f GB of the %.1f GB that are free",
                                  app_gb(y->available_bytes), app_gb(y->free_bytes))
                     : app_format("no limit that matters"),
             limited
                 ? app_format("a container gets more with its runtime's option, like docker run "
                              "--memory; a service with MemoryMax=")
                 : NULL);
}

static void look_at_swap(doctor *d)
{
    const coli_system *y = &d->system;
    const uint64_t used = y->swap_bytes - y->swap_free_bytes;
    if (y->memory_bytes == 0) return;
    if (y->swap_bytes == 0)
        find(d, OK, "swap", app_format("none: when memory is full, a program is ended"), NULL);
    else if (used > y->memory_bytes / 20)
        find(d, NOTE, "swap",
             app_format("%.1f of %.1f GB are in use", app_gb(used), app_gb(y->swap_bytes)),
             app_format("memory was short: close what is not needed before you measure speeds"));
    else
        find(d, OK, "swap", app_format("%.1f GB, hardly used", app_gb(y->swap_bytes)), NULL);
}

static void look_at_huge_pages(doctor *d)
{
    const coli_system *y = &d->system;
    const bool never = strcmp(y->huge_pages, "never") == 0;
    if (!y->has_huge_pages)
        find(d, OK, "huge pages", app_format("on this system they need a right that users lack"),
             NULL);
    else if (!*y->huge_pages)
        find(d, OK, "huge pages", app_format("the system does not tell"), NULL);
    else
        find(d, never ? NOTE : OK, "huge pages", app_format("%s", y->huge_pages),
             never
                 ? app_format("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled "
                              "makes reading large buffers somewhat faster")
                 : NULL);
}

/* ---- devices ------------------------------------------------------------------------------- */

static bool is_asked_for(const doctor *d, const coli_backend_entry *e)
{
    const char *asked = d->s->backend;
    return asked && strcmp(asked, "none") != 0 &&
           (strcmp(asked, e->file) == 0 || (*e->name && app_is_backend(asked, e->name)));
}

/* "NVIDIA H200, 143.8 GB" of each that can be used; *n_usable is how many. */
static coli_status list_devices(coli_backends *list, size_t i, char **text, uint32_t *n_usable)
{
    uint32_t n;
    *n_usable = 0;
    *text = app_format("%s", "");
    coli_status status = coli_backends_n_device(list, i, &n);
    for (uint32_t k = 0; k < n && status == COLI_OK; k++) {
        coli_backend_device v = {.struct_size = sizeof v};
        status = coli_backends_device(list, i, k, &v);
        if (status != COLI_OK) break;
        char *longer = v.unusable ? app_format("%s; device %u: %s cannot be used: %s", *text, k,
                                               v.name, v.unusable)
                                  : app_format("%s; device %u: %s (%s), %.1f GB", *text, k, v.name,
                                               v.kind, app_gb(v.mem_total));
        free(*text);
        *text = longer;
        *n_usable += !v.unusable;
    }
    return status;
}

/* An entry's line; whether a device can be used. */
static bool look_at_backend(doctor *d, coli_backends *list, size_t i)
{
    coli_backend_entry e = {.struct_size = sizeof e};
    uint32_t n_usable = 0;
    char *devices = NULL;
    if (coli_backends_get(list, i, &e) != COLI_OK) return false;
    const bool asked = is_asked_for(d, &e);
    if (!e.reason && list_devices(list, i, &devices, &n_usable) == COLI_OK)
        (void)coli_backends_get(list, i, &e); // its stage now
    const char *name = *e.name ? e.name : e.file;
    if (e.reason)
        find(d, asked ? PROBLEM : NOTE, "backend",
             app_format("%s cannot be used: %s: %s", name, e.stage, e.reason),
             app_format("`coli backend info` tells more; without it the processor does the work"));
    else
        find(d,
             n_usable ? OK
             : asked  ? PROBLEM
                      : NOTE,
             "backend", app_format("%s%s", name, devices ? devices : ""),
             n_usable ? NULL : app_format("`coli backend check %s` tries what it can do", e.file));
    free(devices);
    return n_usable > 0;
}

static void look_at_backends(doctor *d)
{
    const coli_backend_opts opts = {
        .struct_size = sizeof opts, .path = d->s->backend_path, .options = d->s->backend_options};
    coli_backends *list;
    if (coli_backends_find(&opts, &list) != COLI_OK) {
        find(d, PROBLEM, "backend", app_format("%s", coli_error_message()), NULL);
        return;
    }
    const size_t n = coli_backends_n(list);
    for (size_t i = 0; i < n; i++) look_at_backend(d, list, i);
    coli_backends_free(list);
    if (n == 0)
        find(d, OK, "backend", app_format("none is installed: everything runs on the processor"),
             NULL);
}

/* ---- terminal and directories -------------------------------------------------------------- */

static void look_at_terminal(doctor *d)
{
    const bool utf8 = app_system_is_utf8(), person = app_system_is_terminal(stdin);
    if (!utf8)
        find(d, NOTE, "terminal",
             app_format("the system has no UTF-8 locale: editing of lines may "
                        "show characters wrongly"),
             app_format("install the locale C.UTF-8 or en_US.UTF-8"));
    else if (person && !app_system_takes_escapes(stderr))
        find(d, OK, "terminal", app_format("UTF-8, without colours"), NULL);
    else
        find(d, OK, "terminal", app_format("UTF-8%s", person ? "" : "; input is no terminal"),
             NULL);
}

/* The nearest directory above a path that is there. */
static void to_existing(char *path)
{
    while (app_system_look(path) != APP_PATH_DIR) {
        char *slash = app_system_last_slash(path);
        if (!slash) {
            strcpy(path, ".");
            return;
        }
        slash[slash == path] = 0;
        if (slash == path) return;
    }
}

/* The file need not be there, its directory must. */
static void look_at_heat(doctor *d)
{
    const char *heat = d->s->heat;
    if (!heat) return;
    char *dir = app_format("%s", heat), *slash = app_system_last_slash(dir);
    if (slash) slash[slash == dir] = 0;
    const bool there = app_system_look(slash ? dir : ".") == APP_PATH_DIR,
               may = there && (d->s->heat_readonly || app_system_may_write(slash ? dir : "."));
    find(d, may ? OK : PROBLEM, "heat file",
         app_format("%s %s", heat,
                    may     ? "can be kept"
                    : there ? "cannot be written"
                            : "is in a directory that is not there"),
         may ? NULL : app_format("name a place that can be written, or add --heat-readonly"));
    free(dir);
}

static void look_at_directories(doctor *d)
{
    char dir[APP_MAX_PATH];
    if (!app_system_state_dir(dir, sizeof dir)) {
        find(d, OK, "history",
             app_format("no place for one: lines of a chat are not remembered over "
                        "programs"),
             NULL);
    } else {
        to_existing(dir);
        const bool may = app_system_may_write(dir);
        find(d, may ? OK : NOTE, "history",
             app_format("%s %s", dir,
                        may ? "can be written"
                            : "cannot be written: lines of a chat are "
                              "not remembered"),
             may ? NULL : app_format("XDG_STATE_HOME can name another place"));
    }
    look_at_heat(d);
}

/* ---- the model ----------------------------------------------------------------------------- */

static void look_at_disk(doctor *d, const char *dir, const coli_plan_result *p)
{
    enum { SLOW = 1 }; // GB/s; a disk of an SSD's kind reads more
    coli_disk disk = {.struct_size = sizeof disk};
    char *path = app_format("%s/model.coli", dir);
    const coli_status status = coli_disk_measure(path, &disk);
    free(path);
    if (status != COLI_OK) {
        find(d, PROBLEM, "disk", app_format("%s", coli_error_message()), NULL);
        return;
    }
    const bool reads = p->token_disk_bytes > 0, slow = disk.gb_s_max < SLOW;
    char *text = app_format("%.2f to %.2f GB/s where the model is%s", disk.gb_s_min, disk.gb_s_max,
                            disk.is_direct ? "" : ", perhaps from memory");
    if (!reads) {
        find(d, OK, "disk", text, NULL);
        return;
    }
    find(d, slow ? NOTE : OK, "disk",
         app_format("%s; a token waits up to %.0f ms for it", text,
                    (double)p->token_disk_bytes * 1e-6 / disk.gb_s_min),
         slow ? app_format("put the model on a faster disk, or make room in memory: `coli plan`")
              : NULL);
    free(text);
}

static void look_at_fit(doctor *d, const coli_plan_result *p)
{
    if (p->fit == COLI_FIT_ALL)
        find(d, OK, "room",
             app_format("%.2f GB of %.2f GB are needed", app_gb(p->needed_bytes),
                        app_gb(p->ram_bytes)),
             NULL);
    else if (p->fit == COLI_FIT_READS)
        find(d, NOTE, "room",
             app_format(
                 "%.2f GB would hold all, %.2f GB may be taken: experts are read from the disk",
                 app_gb(p->needed_bytes), app_gb(p->ram_bytes)),
             app_format("`coli plan` tells what to change"));
    else
        find(d, app_starts(d->s, p, &d->system) ? NOTE : PROBLEM, "room",
             app_format(
                 "%.2f GB may be taken, and the model needs more even with one expert of each "
                 "layer",
                 app_gb(p->ram_bytes)),
             app_format("`coli plan` tells what to change"));
}

/* Of more lines one: "backend cuda cannot be used: FILE: why; FILE: why". */
static char *in_one_line(const char *lines)
{
    char *text = app_format("%.*s", (int)strcspn(lines, "\n"), lines);
    for (const char *at = strchr(lines, '\n'); at; at = strchr(at, '\n')) {
        at += strspn(at, "\n ");
        const size_t n = strlen(text);
        char *longer = app_format("%s%s%.*s", text, n > 0 && text[n - 1] == ':' ? " " : "; ",
                                  (int)strcspn(at, "\n"), at);
        free(text);
        text = longer;
    }
    return text;
}

static bool has_problem(const doctor *d, const char *what)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->findings[i].level == PROBLEM && strcmp(d->findings[i].what, what) == 0) return true;
    return false;
}

/* What to do about a model that cannot be planned. */
static char *model_advice(const doctor *d, coli_status status, const char *dir)
{
    char *advice = app_opening_advice(d->s, status, dir);
    if (advice) return advice;
    switch (status) {
    case COLI_E_NOTFOUND:
        return app_system_look(dir) == APP_PATH_DIR
                   ? app_format("no container is there; docs/models.md tells how one is made")
                   : app_format("name a directory that is there, with DIR, --model or COLI_MODEL");
    case COLI_E_INVALID:
        return strstr(coli_error_message(), "a context of ")
                   ? app_format("without --ctx it is one that the model was made for")
                   : app_format("an option asks for what this model does not have: leave it out");
    case COLI_E_IO:
        return app_format("see whether it is a file, and whether you may read it");
    case COLI_E_UNSUPPORTED:
        return app_format("docs/models.md tells what can be run");
    default:
        return app_format(
            "`coli verify` tries all of a container; docs/models.md tells how one is made");
    }
}

/* With the devices that the options ask for.  Where these are why it cannot be: without any, so that the
 * rest is known, too. */
static coli_status plan_model(doctor *d, const char *dir, coli_plan_result *p)
{
    coli_model_opts model = app_model_opts(d->s, APP_OPEN_DEVICES);
    const coli_session_opts session = {.struct_size = sizeof session,
                                       .n_ctx = d->s->ctx,
                                       .n_chunk = d->s->chunk,
                                       .kv = app_kv(d->s)};
    const coli_status status = coli_plan(dir, &model, &session, p);
    if (!app_is_backend_failure(d->s, status)) return status;
    if (!has_problem(d, "backend"))
        find(d, PROBLEM, "backend", in_one_line(coli_error_message()),
             app_opening_advice(d->s, status, dir));
    model.backend = "none";
    return coli_plan(dir, &model, &session, p);
}

static void look_at_model(doctor *d, const char *dir)
{
    coli_plan_result p = {.struct_size = sizeof p};
    const coli_status status = plan_model(d, dir, &p);
    if (status != COLI_OK) {
        char *why = in_one_line(coli_error_message());
        find(d, PROBLEM, "model", why, model_advice(d, status, dir));
        return;
    }
    find(d, p.is_imagined ? PROBLEM : OK, "model",
         p.is_imagined ? app_format("%s is not converted yet", dir)
                       : app_format("%s: %.2f GB, of which %.2f GB are experts", dir,
                                    app_gb(p.trunk_bytes + p.n_layer * p.n_expert * p.expert_bytes),
                                    app_gb(p.n_layer * p.n_expert * p.expert_bytes)),
         p.is_imagined ? app_format("`coli convert %s OUT` makes a container of it", dir) : NULL);
    look_at_fit(d, &p);
    if (!p.is_imagined) look_at_disk(d, dir, &p);
}

/* A model that was named, or the shipped one. */
static int choose_model(const app_settings *s, char *dir, size_t cap, bool *is_there)
{
    *is_there = true;
    if (s->model) return app_model_dir(s, dir, cap);
    *is_there = app_system_beside_program("../share/coli/models/hummingbird", dir, cap);
    return APP_OK;
}

/* ---- all of it ----------------------------------------------------------------------------- */

static void print_text(const doctor *d)
{
    for (size_t i = 0; i < d->n; i++) {
        const finding *f = &d->findings[i];
        app_line(stdout, "%-8s %-14s %s", level_names[f->level], f->what, f->text);
        if (f->advice) app_line(stdout, "%-8s %-14s %s", "", "", f->advice);
    }
}

static void print_json(const doctor *d, bool usable)
{
    json_t *root = json_object(), *checks = json_array();
    for (size_t i = 0; i < d->n; i++) {
        const finding *f = &d->findings[i];
        json_t *check = json_object();
        json_object_set_new(check, "what", json_string(f->what));
        json_object_set_new(check, "level", json_string(level_names[f->level]));
        json_object_set_new(check, "text", app_json_string(f->text, strlen(f->text)));
        json_object_set_new(check, "advice",
                            f->advice ? app_json_string(f->advice, strlen(f->advice))
                                      : json_null());
        json_array_append_new(checks, check);
    }
    json_object_set_new(root, "usable", json_boolean(usable));
    json_object_set_new(root, "checks", checks);
    app_json_line(root);
}

int cmd_doctor(const app_settings *settings)
{
    app_settings s;
    char dir[APP_MAX_PATH];
    bool has_model = false;
    int code = app_model_argument(settings, "doctor", &s);
    if (code == APP_OK) code = choose_model(&s, dir, sizeof dir, &has_model);
    if (code != APP_OK) return code;
    doctor d = {.s = &s, .system = {.struct_size = sizeof d.system}};
    if (coli_system_look(&d.system) != COLI_OK) return app_fail(COLI_E_INTERNAL);
    find(&d, OK, "coli", app_format("%s; %s; %s", coli_version(), coli_build(), d.system.system),
         NULL);
    look_at_processor(&d);
    look_at_memory(&d);
    look_at_swap(&d);
    look_at_huge_pages(&d);
    look_at_backends(&d);
    look_at_terminal(&d);
    look_at_directories(&d);
    if (has_model)
        look_at_model(&d, dir);
    else
        find(&d, NOTE, "model", app_format("none was named, and none came with coli"),
             app_format("coli doctor DIR looks at one"));
    bool usable = true;
    for (size_t i = 0; i < d.n; i++) usable &= d.findings[i].level != PROBLEM;
    if (s.json)
        print_json(&d, usable);
    else
        print_text(&d);
    for (size_t i = 0; i < d.n; i++) {
        free(d.findings[i].text);
        free(d.findings[i].advice);
    }
    free(d.findings);
    return usable ? APP_OK : APP_FAILED;
}
