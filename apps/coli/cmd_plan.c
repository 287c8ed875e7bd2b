/* cmd_plan.c - `coli plan`: what would sit where, and whether memory is enough. */
#include <inttypes.h>
#include <stddef.h>

#include "commands.h"
#include "input.h"
#include "open_model.h"
#include "system.h"
#include "terminal.h"

static double gb(uint64_t n_bytes)
{
    return (double)n_bytes * 1e-9;
}

/* -- text -------------------------------------------------------------------------------------- */

static void print_resident(const coli_plan_result *p)
{
    printf("in memory, whatever happens  %9.3f GB\n"
           "  trunk                      %9.3f\n"
           "  keys and values            %9.3f     of %" PRIu32 " tokens\n"
           "  state                      %9.3f\n"
           "  scratch                    %9.3f     chunks of %" PRIu32 ", %" PRIu32 " thread%s\n",
           gb(p->resident_bytes), gb(p->trunk_bytes), gb(p->kv_bytes), p->n_ctx, gb(p->state_bytes),
           gb(p->scratch_bytes), p->n_chunk, p->n_threads, p->n_threads == 1 ? "" : "s");
    const uint64_t n = (uint64_t)p->n_layer * p->n_expert;
    printf("experts                      %9.3f GB  %" PRIu64 " of %.3f MB, %" PRIu32
           " in each layer\n",
           gb(n * p->expert_bytes), n, (double)p->expert_bytes * 1e-6, p->n_expert);
}

static void print_memory(const coli_plan_result *p)
{
    if (p->available_bytes)
        printf("memory that can be taken     %9.3f GB\n", gb(p->available_bytes));
    else
        printf("memory that can be taken     unknown\n");
    if (p->ram_bytes) printf("  of this for the model      %9.3f\n", gb(p->ram_bytes));
    if (p->vram_trunk_bytes)
        printf("VRAM for the trunk           %9.3f GB  if it is faster there\n",
               gb(p->vram_trunk_bytes));
    const char *whose = p->vram_is_assumed ? "a device that is not there"
                        : p->n_device == 1 ? "one device"
                                           : "all devices";
    if (p->n_device || p->vram_is_assumed)
        printf("VRAM for experts             %9.3f GB  of %s\n", gb(p->vram_bytes), whose);
}

static void print_split(const coli_plan_result *p)
{
    printf("\n%9" PRIu64 " experts in VRAM", p->n_in_vram);
    if (p->n_in_vram) printf(": %.3f MB each there", (double)p->slot_bytes * 1e-6);
    printf("\n%9" PRIu64 " in memory: %s\n", p->n_in_ram,
           p->n_on_disk ? "those of each layer that are used most lately"
                        : "all the others, mapped");
    if (p->n_on_disk)
        printf("%9" PRIu64 " on the disk: %" PRIu32 " of %" PRIu32
               " of each layer have room in memory; the others are read when they are used\n",
               p->n_on_disk, p->ram_experts, p->n_expert);
    printf(
        "\na token reads %.3f MB from VRAM, %.3f MB from memory, %.3f MB from the disk, if it used "
        "all experts alike\n",
        (double)p->token_vram_bytes * 1e-6, (double)p->token_ram_bytes * 1e-6,
        (double)p->token_disk_bytes * 1e-6);
}

/* On stderr: what is wrong, and what would help. */
static void warn(const coli_plan_result *p)
{
    if (p->fit == COLI_FIT_ALL) return;
    const uint64_t least = p->resident_bytes + p->n_layer * p->expert_bytes;
    if (p->fit == COLI_FIT_NOT)
        app_error("memory is not enough: one expert of each layer and the rest need %.3f GB, %.3f "
                  "GB may be taken",
                  gb(least), gb(p->ram_bytes));
    else
        app_note("memory is not enough for all experts: with those that no device holds %.3f GB "
                 "are needed, %.3f GB may be taken; every token will wait for the disk",
                 gb(p->needed_bytes), gb(p->ram_bytes));
    if (p->n_ctx_all)
        app_hint("--ctx %" PRIu32 " makes room for all", p->n_ctx_all);
    else if (p->needed_bytes > p->ram_bytes)
        app_hint("%.3f GB more of memory or of VRAM hold all", gb(p->needed_bytes - p->ram_bytes));
}

/* -- JSON -------------------------------------------------------------------------------------- */

static void put(json_t *o, const char *key, uint64_t n)
{
    json_object_set_new(o, key, json_integer((json_int_t)n));
}

static void print_json(const coli_plan_result *p)
{
    static const char *const fits[] = {"all", "reads", "not"};
    json_t *o = json_object();
    json_object_set_new(o, "fit", json_string(fits[p->fit]));
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
    app_json_line(o);
}

int cmd_plan(const app_settings *settings)
{
    app_settings s;
    char dir[APP_MAX_PATH];
    int code = app_model_argument(settings, "plan", &s);
    if (code == APP_OK) code = app_model_dir(&s, dir, sizeof dir);
    if (code != APP_OK) return code;
    const coli_model_opts model = app_model_opts(&s, APP_OPEN_DEVICES);
    const coli_session_opts session = {
        .struct_size = sizeof session, .n_ctx = s.ctx, .n_chunk = s.chunk, .kv = app_kv(&s)};
    coli_plan_result p = {.struct_size = sizeof p};
    const coli_status status = coli_plan(dir, &model, &session, &p);
    if (status != COLI_OK) return app_fail_opening(&s, status, dir);
    if (s.json) {
        print_json(&p);
    } else {
        print_resident(&p);
        print_memory(&p);
        print_split(&p);
    }
    app_flush();
    warn(&p);
    return p.fit == COLI_FIT_NOT ? APP_FAILED : APP_OK;
}
