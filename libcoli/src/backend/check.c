/* check.c - `coli backend check`: the cases, who runs them, and the report.
 *
 * A plugin is somebody else's code: it may crash, hang, or end the process.  So the parent only loads
 * it and runs none of its functions; a child process opens the device, runs the cases of one family
 * one after another and says how each one went.
 *
 *     parent   start --> [ begin N1 . ok N1 . begin N2 . fault N2 ]
 *              start ------------------------------> [ begin N3 . ok N3 . (crash) ]
 *              start --------------------------------------> ...
 *
 * A child that reported a fault or died is replaced by a fresh one that goes on with the next case.
 * When a child is silent for too long the check ends: with a device that hangs, every other case
 * would wait as long.  What a dead or silent child was calling stands in the memory that both share.
 *
 * The same seed gives every case the same inputs, also when it runs alone. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../base/alloc.h"
#include "../base/threads.h"
#include "check.h"
#include "coli/coli.h"
#include "coli/exact.h"

typedef struct check_case {
    const char *family, *name, *shows;
    void (*run)(coli__ck *ck);
} check_case;

static const check_case cases[] = {
#define ROW(family, name, function, shows) {#family, #name, shows, coli__ck_##function},
    COLI__CK_CASES(ROW)
#undef ROW
};
enum { N_CASE = sizeof cases / sizeof *cases, DEFAULT_LIMIT_S = 60 };

/* What a child says. */
typedef enum said { BEGIN, OK, SKIP, FAULT, CANNOT } said;
typedef struct message {
    said kind;
    coli_status status; // of CANNOT
    uint32_t i_case;
    char text[440];
    char why[COLI__CK_TEXT]; // of FAULT: what explains wrong numbers, or ""
} message;

/* ---- the child ----------------------------------------------------------------------------------- */

/* What a child is to do. */
typedef struct task {
    const coli__plugin *plugin;
    const coli_check_opts *opts;
    uint64_t limit_ns;
    const uint32_t *todo; // (n_todo) cases of one family
    uint32_t n_todo;
} task;

static void say(coli__ck *ck, said kind, coli_status status, const char *fmt, va_list args)
{
    message m = {.kind = kind, .status = status, .i_case = ck->now};
    if (fmt) vsnprintf(m.text, sizeof m.text, fmt, args);
    _Static_assert(sizeof m <= COLI__CHILD_MESSAGE, "a message fits the pipe");
    coli__child_say(ck->child, &m, sizeof m);
}

__attribute__((format(printf, 3, 4))) static void say_text(coli__ck *ck, said kind, const char *fmt,
                                                           ...)
{
    va_list args;
    va_start(args, fmt);
    say(ck, kind, COLI_OK, fmt, args);
    va_end(args);
}

void coli__ck_fault(coli__ck *ck, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say(ck, FAULT, COLI_OK, fmt, args);
    va_end(args);
    coli__child_leave(ck->child);
}

void coli__ck_wrong(coli__ck *ck, const char *why, const char *fmt, ...)
{
    message m = {.kind = FAULT, .i_case = ck->now};
    va_list args;
    va_start(args, fmt);
    vsnprintf(m.text, sizeof m.text, fmt, args);
    va_end(args);
    snprintf(m.why, sizeof m.why, "%s", why);
    coli__child_say(ck->child, &m, sizeof m);
    coli__child_leave(ck->child);
}

void coli__ck_cannot(coli__ck *ck, coli_status status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say(ck, CANNOT, status, fmt, args);
    va_end(args);
    coli__child_leave(ck->child);
}

void coli__ck_skip(coli__ck *ck, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(ck->skipped, sizeof ck->skipped, fmt, args);
    va_end(args);
}

void coli__ck_hint(coli__ck *ck, const char *text)
{
    snprintf(ck->shared->hint, sizeof ck->shared->hint, "%s", text ? text : "");
}

void *coli__ck_new(coli__ck *ck, size_t n, size_t size)
{
    void *p = coli__calloc(n, size);
    void **kept = coli__realloc(ck->kept, ck->n_kept + 1u, sizeof *kept);
    if (!p || !kept) coli__ck_cannot(ck, COLI_E_NOMEM, "%s", coli_error_message());
    ck->kept = kept;
    ck->kept[ck->n_kept++] = p;
    return p;
}

/* The device that was asked for, opened.  Without one there is nothing to check. */
static void find_device(coli__ck *ck)
{
    uint32_t n = 0;
    CK_OK(ck, device_count, &ck->host.table, &n);
    if (ck->device >= n)
        coli__ck_cannot(ck, COLI_E_NOTFOUND, "there is no device %u: the plugin has %u%s%s",
                        ck->device, n, ck->host.message[0] ? ": " : "", ck->host.message);
    ck->info.struct_size = sizeof ck->info;
    CK_OK(ck, device_info, &ck->host.table, ck->device, &ck->info);
    ck->info.unusable[sizeof ck->info.unusable - 1] = 0;
    if (ck->info.unusable[0])
        coli__ck_cannot(ck, COLI_E_NOTFOUND, "device %u cannot be used: %s", ck->device,
                        ck->info.unusable);
    ck->info.formats &= (1u << COLI_BK_N_FORMAT) - 1;
    COLI__CK_EXPECT(ck, ck->info.formats, "device_info declares no format");
    coli__ck_open(ck, &ck->dev);
}

static void run_case(coli__ck *ck, uint32_t i, uint64_t seed)
{
    ck->seed = seed + i * 0x9E3779B97F4A7C15u;
    ck->skipped[0] = 0;
    coli__ck_hint(ck, NULL);
    cases[i].run(ck);
    for (uint32_t k = 0; k < ck->n_kept; k++) coli__free(ck->kept[k]);
    ck->n_kept = 0;
    say_text(ck, ck->skipped[0] ? SKIP : OK, "%s", ck->skipped);
}

static void run_family(coli__child *self, void *ctx)
{
    const task *t = ctx;
    coli__ck *ck = coli__calloc(1, sizeof *ck);
    if (!ck) return; // the parent sees that nothing was done
    ck->api = t->plugin->api;
    ck->plugin = t->plugin->info;
    ck->device = t->opts->device;
    ck->child = self;
    ck->shared = coli__child_shared(self);
    coli__fp_enter(); // for good: this process is ours
    coli__ck_host_init(&ck->host, ck, t->opts->options ? t->opts->options : "", t->limit_ns / 4);
    for (uint32_t i = 0; i < t->n_todo; i++) {
        ck->now = t->todo[i];
        say_text(ck, BEGIN, NULL);
        if (i == 0) find_device(ck);
        run_case(ck, ck->now, t->opts->seed);
    }
    coli__ck_hint(ck, "closing, after the last case");
    coli__ck_close(ck, ck->dev);
    COLI__CK_EXPECT(ck, ck->host.n_live == 0,
                    "after close, %d allocations of host->alloc were not freed", ck->host.n_live);
    coli__free(ck->kept);
    coli__free(ck);
}

/* ---- the parent ---------------------------------------------------------------------------------- */

typedef struct report {
    const coli_check_opts *opts;
    coli_check_result *result;
    char *whys[N_CASE]; // the explanation of each case's fault, where it has one; coli__free
} report;

__attribute__((format(printf, 3, 4))) static void line(report *r, bool is_fault, const char *fmt,
                                                       ...)
{
    char text[sizeof(message) + 64];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (is_fault) r->result->n_fault++;
    if (r->opts->on_line) r->opts->on_line(r->opts->user, text, is_fault);
}

/* One mistake breaks many cases.  The first tells all about it, the others say where to look. */
static void fault(report *r, uint32_t i_case, const char *text, const char *why)
{
    const check_case *c = &cases[i_case];
    if (!*why) {
        line(r, true, "FAULT %s %s", c->name, text);
        return;
    }
    for (uint32_t i = 0; i < N_CASE; i++)
        if (r->whys[i] && strcmp(r->whys[i], why) == 0) {
            line(r, true, "FAULT %s %s: as in %s: %s", c->name, c->shows, cases[i].name, why);
            return;
        }
    line(r, true, "FAULT %s %s: %s", c->name, text, why);
    coli__free(r->whys[i_case]);
    r->whys[i_case] = coli__strndup(why, strlen(why)); // without memory, all is told again
}

/* "while group_issue and tensor_overwrite were running". */
static void calling(const coli__ck_shared *shared, char *text, size_t n)
{
    char entries[COLI__CK_N_THREAD * 40] = "";
    uint32_t n_entry = 0;
    for (uint32_t i = 0; i < COLI__CK_N_THREAD; i++) {
        if (!shared->entry[i][0]) continue;
        const size_t used = strlen(entries);
        snprintf(entries + used, sizeof entries - used, "%s%.31s", n_entry++ ? " and " : "",
                 shared->entry[i]);
    }
    snprintf(text, n, "while %s %s running", n_entry ? entries : "no function of the plugin",
             n_entry > 1 ? "were" : "was");
}

/* The child died or hangs. */
static void report_end(report *r, uint32_t i_case, const coli__child *child, const char *how)
{
    const coli__ck_shared *shared = coli__child_shared(child);
    char when[256], why[COLI__CK_TEXT], text[COLI__CK_TEXT];
    calling(shared, when, sizeof when);
    snprintf(why, sizeof why, "%s %s", how, when);
    if (strstr(when, " open ") && shared->n_open > 1) {
        const size_t used = strlen(why);
        snprintf(why + used, sizeof why - used, " again: this process had opened a device before");
    }
    snprintf(text, sizeof text, "%s%s%.159s%s", cases[i_case].shows, shared->hint[0] ? " (" : "",
             shared->hint, shared->hint[0] ? ")" : "");
    fault(r, i_case, text, why);
}

/* Follow one child.  *n_done: how many of its cases need not be run again.  *is_hanging ends all. */
static coli_status follow(report *r, const task *t, coli__child *child, uint32_t *n_done,
                          bool *is_hanging)
{
    *n_done = 0;
    uint32_t current = t->todo[0];
    bool has_fault = false; // the current case; threads may find one at the same time
    for (;;) {
        union { // what arrives, aligned
            message m;
            char bytes[COLI__CHILD_MESSAGE];
        } in;
        size_t n_bytes = 0;
        const coli__child_event event = coli__child_wait(child, t->limit_ns, in.bytes, &n_bytes);
        if (event == COLI__CHILD_DONE) return COLI_OK;
        if (event == COLI__CHILD_DIED || event == COLI__CHILD_SILENT) {
            char how[128];
            if (event == COLI__CHILD_DIED)
                snprintf(how, sizeof how, "the process died (%s)", coli__child_death(child));
            else
                snprintf(how, sizeof how, "nothing happened for %llu s",
                         (unsigned long long)(t->limit_ns / 1000000000));
            report_end(r, current, child, how);
            *is_hanging = event == COLI__CHILD_SILENT;
            if (*n_done < t->n_todo && t->todo[*n_done] == current) ++*n_done;
            return COLI_OK;
        }
        const check_case *c = &cases[in.m.i_case];
        current = in.m.i_case;
        switch (in.m.kind) {
        case BEGIN:
            r->result->n_case++;
            has_fault = false;
            continue;
        case OK:
            line(r, false, "ok %s %s", c->name, c->shows);
            break;
        case SKIP:
            r->result->n_skipped++;
            line(r, false, "skip %s %s: %s", c->name, c->shows, in.m.text);
            break;
        case FAULT:
            if (!has_fault) fault(r, current, in.m.text, in.m.why);
            has_fault = true;
            break;
        case CANNOT:
            return coli__fail(in.m.status, "%s", in.m.text);
        }
        if (*n_done < t->n_todo && t->todo[*n_done] == current) ++*n_done;
    }
}

/* The cases of one family, in as many children as it takes. */
static coli_status check_family(report *r, task t, bool *is_hanging)
{
    while (t.n_todo > 0 && !*is_hanging) {
        coli__child *child;
        uint32_t n_done = 0;
        COLI_TRY(coli__child_start(run_family, &t, sizeof(coli__ck_shared), &child));
        const coli_status status = follow(r, &t, child, &n_done, is_hanging);
        coli__child_destroy(child);
        if (status != COLI_OK) return status;
        if (n_done == 0) // it cannot be, and would not end
            return coli__fail(COLI_E_INTERNAL, "check: a child did nothing");
        t.todo += n_done;
        t.n_todo -= n_done;
    }
    return COLI_OK;
}

static bool is_wanted(const check_case *c, const char *only)
{
    return !only || strcmp(only, c->name) == 0 || strcmp(only, c->family) == 0;
}

static coli_status check_plugin(report *r, const coli__plugin *plugin)
{
    const uint64_t limit_s = r->opts->limit_s ? r->opts->limit_s : DEFAULT_LIMIT_S;
    uint32_t todo[N_CASE], n_wanted = 0;
    bool is_hanging = false;
    for (uint32_t first = 0, i = 0; first < N_CASE && !is_hanging; first = i) {
        task t = {
            .plugin = plugin, .opts = r->opts, .limit_ns = limit_s * 1000000000u, .todo = todo};
        for (; i < N_CASE && strcmp(cases[i].family, cases[first].family) == 0; i++)
            if (is_wanted(&cases[i], r->opts->only)) todo[t.n_todo++] = i;
        n_wanted += t.n_todo;
        COLI_TRY(check_family(r, t, &is_hanging));
    }
    if (n_wanted == 0)
        return coli__fail(COLI_E_INVALID, "check: there is no case or family \"%s\"",
                          r->opts->only);
    if (is_hanging) line(r, false, "The other cases were not tried: each would wait as long.");
    return COLI_OK;
}

coli_status coli_backend_check(const char *file, const coli_check_opts *opts,
                               coli_check_result *result)
{
    if (!file || !opts || !result || opts->struct_size < sizeof *opts ||
        result->struct_size < sizeof *result)
        return coli__fail(COLI_E_INVALID, "coli_backend_check: an argument is NULL or its "
                                          "struct_size is not set");
    result->n_case = result->n_fault = result->n_skipped = 0;
    coli__plugin plugin;
    COLI_TRY(coli__plugin_load(file, &plugin));
    coli_status status = COLI_OK;
    if (plugin.stage != COLI__PLUGIN_READY)
        status = coli__fail(plugin.stage == COLI__PLUGIN_FILE ? COLI_E_NOTFOUND : COLI_E_FORMAT,
                            "%s: %s: %s", plugin.path, coli__plugin_stage_name(plugin.stage),
                            plugin.reason);
    report r = {.opts = opts, .result = result};
    if (status == COLI_OK) status = check_plugin(&r, &plugin);
    for (uint32_t i = 0; i < N_CASE; i++) coli__free(r.whys[i]);
    if (!coli__child_is_process()) coli__plugin_keep(&plugin); // devices were opened here
    coli__plugin_unload(&plugin);
    return status;
}
