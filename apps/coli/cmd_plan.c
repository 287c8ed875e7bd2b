/* cmd_plan.c - `coli plan`: what would sit where, whether memory is enough, and how fast it would be. */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "commands.h"
#include "format_name.h"
#include "input.h"
#include "open_model.h"
#include "options.h"
#include "system.h"
#include "terminal.h"

static double mb(uint64_t n_bytes)
{
    return (double)n_bytes * 1e-6;
}

/* -- text -------------------------------------------------------------------------------------- */

static void print_resident(const coli_plan_result *p)
{
    printf("in memory, whatever happens  %9.3f GB\n"
           "  trunk                      %9.3f\n"
           "  keys and values            %9.3f     of %" PRIu32 " tokens\n"
           "  state                      %9.3f\n"
           "  scratch                    %9.3f     chunks of %" PRIu32 ", %" PRIu32 " thread%s\n",
           app_gb(p->resident_bytes), app_gb(p->trunk_bytes), app_gb(p->kv_bytes), p->n_ctx,
           app_gb(p->state_bytes), app_gb(p->scratch_bytes), p->n_chunk, p->n_threads,
           p->n_threads == 1 ? "" : "s");
    const uint64_t n = (uint64_t)p->n_layer * p->n_expert;
    printf("experts                      %9.3f GB  %" PRIu64 " of %.3f MB, %" PRIu32
           " in each layer\n",
           app_gb(n * p->expert_bytes), n, (double)p->expert_bytes * 1e-6, p->n_expert);
}

static void print_memory(const coli_plan_result *p)
{
    if (p->available_bytes)
        printf("memory that can be taken     %9.3f GB\n", app_gb(p->available_bytes));
    else
        printf("memory that can be taken     unknown\n");
    if (p->ram_bytes) printf("  of this for the model      %9.3f\n", app_gb(p->ram_bytes));
    if (p->vram_trunk_bytes)
        printf("VRAM for the trunk           %9.3f GB  if it is faster there\n",
               app_gb(p->vram_trunk_bytes));
    const char *whose = p->vram_is_assumed ? "a device that is not there"
                        : p->n_device == 1 ? "one device"
                                           : "all devices";
    if (p->n_device || p->vram_is_assumed)
        printf("VRAM for experts             %9.3f GB  of %s\n", app_gb(p->vram_bytes), whose);
}

static void print_split(const coli_plan_result *p)
{
    const bool device = p->n_device || p->vram_is_assumed;
    printf("\n");
    if (device) printf("%9" PRIu64 " experts in VRAM", p->n_in_vram);
    if (p->n_in_vram) printf(": %.3f MB each there", (double)p->slot_bytes * 1e-6);
    if (device) printf("\n");
    printf("%9" PRIu64 "%s in memory: %s\n", p->n_in_ram, device ? "" : " experts",
           p->n_on_disk   ? "those of each layer that are used most lately"
           : p->n_in_vram ? "all the others, mapped"
                          : "all, mapped");
    if (p->n_on_disk)
        printf("%9" PRIu64 " on the disk: %" PRIu32 " of %" PRIu32
               " of each layer have room in memory; the others are read when they are used\n",
               p->n_on_disk, p->ram_experts, p->n_expert);
}

static void print_token(const coli_plan_result *p)
{
    const bool device = p->n_device || p->vram_is_assumed;
    printf("\na token reads ");
    if (device) printf("%.3f MB from VRAM, ", mb(p->token_vram_bytes));
    printf("%.3f MB from memory, %.3f MB from the disk, if it used all experts alike\n",
           mb(p->token_ram_bytes), mb(p->token_disk_bytes));
    printf("  trunk                      %9.3f MB\n"
           "  head                       %9.3f\n"
           "  experts, from memory       %9.3f     from the disk %.3f",
           mb(p->token_trunk_bytes), mb(p->token_head_bytes), mb(p->token_expert_ram_bytes),
           mb(p->token_disk_bytes));
    if (device) printf(", from VRAM %.3f", mb(p->token_vram_bytes));
    printf("\n");
    printf("and of the conversation its state %.3f MB, keys and values up to %.3f MB when %" PRIu32
           " tokens are there\n",
           mb(p->token_state_bytes), mb(p->token_kv_bytes), p->n_ctx);
}

/* Two ends of a range; one number where they look the same. */
static void print_range(const char *what, double least, double most, const char *unit)
{
    char a[32], b[32];
    const int digits = most < 10 ? 2 : most < 100 ? 1 : 0;
    snprintf(a, sizeof a, "%.*f", digits, least);
    snprintf(b, sizeof b, "%.*f", digits, most);
    if (strcmp(a, b) == 0)
        printf("  %-26s %s %s\n", what, a, unit);
    else
        printf("  %-26s %s to %s %s\n", what, a, b, unit);
}

static void print_measured(const coli_plan_result *p)
{
    printf("\nmeasured here\n");
    print_range("memory", p->ram_gb_s_min, p->ram_gb_s_max, "GB/s");
    print_range("multiplications", p->gmac_s_min, p->gmac_s_max, "GMAC/s");
    print_range("bringing threads together", p->sync_us_min, p->sync_us_max, "us");
    print_range("drawing a token", p->sample_us_min, p->sample_us_max, "us");
    if (p->disk_gb_s_max > 0)
        print_range("the disk of the model", p->disk_gb_s_min, p->disk_gb_s_max, "GB/s");
    if (p->vram_gb_s > 0)
        print_range("the device, multiplying", p->vram_gb_s, p->vram_gb_s, "GB/s");
    if (p->link_gb_s > 0) print_range("copying to it", p->link_gb_s, p->link_gb_s, "GB/s");
}

static const char *const bounds[] = {"memory", "multiplications", "the disk", "the device",
                                     "bringing threads together"};

/* Why no speed is expected although it was measured. */
static const char *unknown(const coli_plan_result *p)
{
    if (p->vram_is_assumed) return "a device that is not there cannot be measured";
    if (p->is_imagined)
        return p->n_on_disk ? "experts would be read from a disk that has none of them yet"
                            : "a device is measured with a matrix of the model, which has none yet";
    return "the device has no matrix of the model that it could be measured with";
}

static void print_expected(const coli_plan_result *p)
{
    if (p->tok_s_max <= 0) {
        printf("\nno speed is expected: %s\n", unknown(p));
        return;
    }
    printf("\na token then takes\n");
    print_range("reading memory", p->ram_ms_min, p->ram_ms_max, "ms");
    if (p->token_disk_bytes) print_range("reading the disk", p->disk_ms_min, p->disk_ms_max, "ms");
    if (p->token_vram_bytes) print_range("the device", p->vram_ms_min, p->vram_ms_max, "ms");
    print_range("threads and drawing", p->other_ms_min, p->other_ms_max, "ms");
    printf("expected, bound by %s\n", bounds[p->bound]);
    print_range("a short conversation", p->tok_s_min, p->tok_s_max, "tokens per second");
    print_range("a full context", p->tok_s_full_min, p->tok_s_full_max, "tokens per second");
}

/* Bytes that the smallest formats would need; 0 for a container, which has its formats. */
static uint64_t least_needed(const char *dir, const coli_plan_opts *opts, const coli_plan_result *p)
{
    coli_plan_opts small = *opts;
    coli_plan_result r = {.struct_size = sizeof r};
    small.experts = small.trunk = "int4";
    small.recipe = NULL;
    small.measure = false;
    return p->is_imagined && coli_plan_make(dir, &small, &r) == COLI_OK ? r.needed_bytes : 0;
}

/* What makes it start at all, or without swapping. */
static void hint_start(const app_settings *s, const coli_plan_result *p, const char *what)
{
    const uint64_t room = s->ram.n_bytes ? p->ram_bytes : p->available_bytes,
                   missing = p->least_bytes > room ? p->least_bytes - room : 0;
    const double more = (double)(missing / 1000000 + 1) * 1e-3; // enough, as it is printed
    if (missing == 0) return;
    if (p->n_ctx_least)
        app_hint("--ctx %" PRIu32 " makes it start%s; or %.3f GB more of memory", p->n_ctx_least,
                 what, more);
    else if (app_kv(s) == COLI_KV_F32 && p->kv_bytes / 2 >= missing)
        app_hint("--kv f16 makes it start%s: keys and values then take %.3f GB less", what,
                 app_gb(p->kv_bytes / 2));
    else
        app_hint("%.3f GB more of memory make it start%s", more, what);
}

/* What helps, by how much. */
static void hint(const app_settings *s, const coli_plan_result *p, uint64_t least_bytes)
{
    const uint64_t missing =
        p->needed_bytes > p->ram_bytes ? p->needed_bytes - p->ram_bytes : p->needed_bytes;
    if (p->n_ctx_all)
        app_hint("--ctx %" PRIu32 " makes room for all", p->n_ctx_all);
    else if (app_kv(s) == COLI_KV_F32 && p->kv_bytes / 2 >= missing)
        app_hint("--kv f16 makes room for all: keys and values then take %.3f GB less",
                 app_gb(p->kv_bytes / 2));
    else if (least_bytes > 0 && least_bytes < p->needed_bytes)
        app_hint(
            "--experts int4 --trunk int4 need %.3f GB; as it is %.3f GB more of memory or of VRAM "
            "hold all",
            app_gb(least_bytes), app_gb(missing));
    else
        app_hint("%.3f GB more of memory or of VRAM hold all", app_gb(missing));
}

/* On stderr: what is wrong, and what would help. */
static void warn_short(const app_settings *s, const coli_plan_result *p, const coli_system *y)
{
    const double least = app_gb(p->least_bytes), available = app_gb(p->available_bytes);
    const char *what = "";
    if (s->ram.n_bytes > 0)
        app_error("memory is not enough: one expert of each layer and the rest need %.3f GB, %.3f "
                  "GB may be taken",
                  least, app_gb(p->ram_bytes));
    else if (p->least_bytes <= p->available_bytes)
        app_note("memory is short: one expert of each layer and the rest need %.3f GB of %.3f GB "
                 "that can be taken now; it starts, and leaves other programs next to nothing",
                 least, available);
    else if (app_starts(s, p, y)) {
        what = " without swapping";
        app_note("memory is not enough: one expert of each layer and the rest need %.3f GB, %.3f "
                 "GB can be taken now; it starts, and the system will swap",
                 least, available);
    } else if (y->swap_bytes == 0)
        app_error("memory is not enough: one expert of each layer and the rest need %.3f GB, %.3f "
                  "GB can be taken now; there is no swap: the system would end the program",
                  least, available);
    else
        app_error("memory is not enough: one expert of each layer and the rest need %.3f GB, %.3f "
                  "GB can be taken now, and %.3f GB of swap; the system would end the program",
                  least, available, app_gb(y->swap_free_bytes));
    if (!p->n_ctx_all) hint_start(s, p, what); // that would do for this, too
}

static void warn(const app_settings *s, const coli_plan_result *p, const coli_system *y,
                 uint64_t least_bytes)
{
    if (p->fit == COLI_FIT_ALL) return;
    if (p->fit == COLI_FIT_READS && s->ram_experts && p->needed_bytes <= p->ram_bytes) {
        app_note("--ram-experts keeps %" PRIu32 " of %" PRIu32
                 " experts of each layer in memory: every "
                 "token will wait for the disk",
                 p->ram_experts, p->n_expert);
        app_hint("without it all have room");
        return;
    }
    if (p->fit == COLI_FIT_NOT)
        warn_short(s, p, y);
    else
        app_note("memory is not enough for all experts: with those that no device holds %.3f GB "
                 "are needed, %.3f GB may be taken; every token will wait for the disk",
                 app_gb(p->needed_bytes), app_gb(p->ram_bytes));
    hint(s, p, least_bytes);
}

/* -- JSON -------------------------------------------------------------------------------------- */

static void put(json_t *o, const char *key, uint64_t n)
{
    json_object_set_new(o, key, json_integer((json_int_t)n));
}

static void put_range(json_t *o, const char *key, double least, double most)
{
    json_object_set_new(o, key, json_pack("[f, f]", least, most));
}

/* null for what was not measured. */
static void put_speed(json_t *o, const char *key, double least, double most)
{
    if (most > 0)
        put_range(o, key, least, most);
    else
        json_object_set_new(o, key, json_null());
}

static json_t *measured_json(const coli_plan_result *p)
{
    if (p->ram_gb_s_max <= 0) return json_null();
    json_t *o = json_object();
    put_speed(o, "ram_gb_s", p->ram_gb_s_min, p->ram_gb_s_max);
    put_speed(o, "gmac_s", p->gmac_s_min, p->gmac_s_max);
    put_speed(o, "sync_us", p->sync_us_min, p->sync_us_max);
    put_speed(o, "sample_us", p->sample_us_min, p->sample_us_max);
    put_speed(o, "disk_gb_s", p->disk_gb_s_min, p->disk_gb_s_max);
    put_speed(o, "vram_gb_s", p->vram_gb_s, p->vram_gb_s);
    put_speed(o, "link_gb_s", p->link_gb_s, p->link_gb_s);
    return o;
}

static json_t *expected_json(const coli_plan_result *p)
{
    static const char *const bound[] = {"memory", "compute", "disk", "device", "other"};
    if (p->tok_s_max <= 0) return json_null();
    json_t *o = json_object();
    put_range(o, "tok_s", p->tok_s_min, p->tok_s_max);
    put_range(o, "tok_s_full", p->tok_s_full_min, p->tok_s_full_max);
    json_object_set_new(o, "bound", json_string(bound[p->bound]));
    put_range(o, "ram_ms", p->ram_ms_min, p->ram_ms_max);
    put_range(o, "disk_ms", p->disk_ms_min, p->disk_ms_max);
    put_range(o, "vram_ms", p->vram_ms_min, p->vram_ms_max);
    put_range(o, "other_ms", p->other_ms_min, p->other_ms_max);
    return o;
}

static void print_json(const coli_plan_result *p, bool can_start)
{
    static const char *const fits[] = {"all", "reads", "not"};
    json_t *o = json_object();
    json_object_set_new(o, "fit", json_string(fits[p->fit]));
    json_object_set_new(o, "starts", json_boolean(can_start));
    put(o, "n_ctx", p->n_ctx);
    put(o, "n_chunk", p->n_chunk);
    put(o, "n_threads", p->n_threads);
    put(o, "n_layer", p->n_layer);
    put(o, "n_expert", p->n_expert);
    put(o, "n_expert_used", p->n_expert_used);
    put(o, "trunk_bytes", p->trunk_bytes);
    put(o, "expert_bytes", p->expert_bytes);
    put(o, "kv_bytes", p->kv_bytes);
    put(o, "state_bytes", p->state_bytes);
    put(o, "scratch_bytes", p->scratch_bytes);
    put(o, "resident_bytes", p->resident_bytes);
    put(o, "needed_bytes", p->needed_bytes);
    put(o, "available_bytes", p->available_bytes);
    put(o, "ram_bytes", p->ram_bytes);
    put(o, "ram_experts", p->ram_experts);
    put(o, "n_ctx_all", p->n_ctx_all);
    put(o, "least_bytes", p->least_bytes);
    put(o, "n_ctx_least", p->n_ctx_least);
    put(o, "n_device", p->n_device);
    json_object_set_new(o, "vram_is_assumed", json_boolean(p->vram_is_assumed));
    put(o, "vram_bytes", p->vram_bytes);
    put(o, "vram_trunk_bytes", p->vram_trunk_bytes);
    put(o, "slot_bytes", p->slot_bytes);
    put(o, "n_in_vram", p->n_in_vram);
    put(o, "n_in_ram", p->n_in_ram);
    put(o, "n_on_disk", p->n_on_disk);
    put(o, "token_vram_bytes", p->token_vram_bytes);
    put(o, "token_ram_bytes", p->token_ram_bytes);
    put(o, "token_disk_bytes", p->token_disk_bytes);
    put(o, "token_trunk_bytes", p->token_trunk_bytes);
    put(o, "token_head_bytes", p->token_head_bytes);
    put(o, "token_expert_ram_bytes", p->token_expert_ram_bytes);
    put(o, "token_state_bytes", p->token_state_bytes);
    put(o, "token_kv_bytes", p->token_kv_bytes);
    json_object_set_new(o, "is_imagined", json_boolean(p->is_imagined));
    json_object_set_new(o, "is_of_source", json_boolean(p->is_of_source));
    json_object_set_new(o, "measured", measured_json(p));
    json_object_set_new(o, "expected", expected_json(p));
    app_json_line(o);
}

/* -- the command ------------------------------------------------------------------------------- */

/* The formats of a model that is not converted, where somebody named one. */
typedef struct formats {
    char experts_full[32], trunk_full[32];
    const char *experts, *trunk; // NULL: nobody did
} formats;

static int choose_formats(const app_settings *s, formats *f)
{
    *f = (formats){.experts = NULL};
    if (s->recipe && s->group)
        return app_usage("plan", "plan: --group beside --recipe: give formats in full");
    if (!s->experts && !s->trunk && !s->group) return APP_OK;
    const char *experts = s->experts ? s->experts : "int4", *trunk = s->trunk ? s->trunk : "int8";
    const int code = format_check("plan", s->group, experts, trunk);
    // beside a recipe a format counts as a line of it: only those that somebody wrote
    if (!s->recipe || s->experts)
        f->experts = format_name(experts, s->group, f->experts_full, sizeof f->experts_full);
    if (!s->recipe || s->trunk)
        f->trunk = format_name(trunk, s->group, f->trunk_full, sizeof f->trunk_full);
    return code;
}

static void print_text(const coli_plan_result *p, bool can_start)
{
    if (p->is_imagined)
        printf("not converted yet: %s\n",
               p->is_of_source ? "what converting would make of the tensors there are"
                               : "of config.json alone");
    print_resident(p);
    print_memory(p);
    if (!can_start) return; // nothing will be anywhere
    print_split(p);
    print_token(p);
    if (p->ram_gb_s_max <= 0) return;
    print_measured(p);
    print_expected(p);
}

/* A GGUF file's fault is its own; another file may be the model's, or a pack of one. */
static int fail_file(coli_status status, const char *path)
{
    const bool is_other = strstr(coli_error_message(), "is no GGUF file") != NULL;
    const int code = app_fail_reading(status, path, false);
    if (is_other) {
        char *advice = app_file_advice(path);
        app_hint("%s", advice);
        free(advice);
    }
    return code;
}

int cmd_plan(const app_settings *settings)
{
    app_settings s;
    formats f;
    char dir[APP_MAX_PATH];
    int code = app_model_argument(settings, "plan", &s);
    if (code == APP_OK) code = choose_formats(&s, &f);
    if (code == APP_OK) code = app_model_dir(&s, dir, sizeof dir);
    if (code != APP_OK) return code;
    const coli_model_opts model = app_model_opts(&s, APP_OPEN_DEVICES);
    const coli_session_opts session = {
        .struct_size = sizeof session, .n_ctx = s.ctx, .n_chunk = s.chunk, .kv = app_kv(&s)};
    const coli_plan_opts opts = {.struct_size = sizeof opts,
                                 .model = &model,
                                 .session = &session,
                                 .experts = f.experts,
                                 .trunk = f.trunk,
                                 .recipe = s.recipe,
                                 .measure = !s.no_measure};
    coli_plan_result p = {.struct_size = sizeof p};
    const coli_status status = coli_plan_make(dir, &opts, &p);
    if (status != COLI_OK && app_system_look(dir) == APP_PATH_FILE) return fail_file(status, dir);
    if (status != COLI_OK) return app_fail_opening(&s, status, dir);
    coli_system system = {.struct_size = sizeof system};
    if (coli_system_look(&system) != COLI_OK) return app_fail(COLI_E_INTERNAL);
    const bool can_start = app_starts(&s, &p, &system);
    if (s.json)
        print_json(&p, can_start);
    else
        print_text(&p, can_start);
    app_flush();
    warn(&s, &p, &system, p.fit == COLI_FIT_ALL ? 0 : least_needed(dir, &opts, &p));
    return can_start ? APP_OK : APP_FAILED;
}
