/* model.c - open a container: check it, bind its engine, read its tokenizer and its defaults. */
#include "model.h"

#include <stdio.h>
#include <string.h>

#include "../../include/coli/exact.h"
#include "../base/memory.h"
#include "../model/checkpoint.h"
#include "../moe/heat_file.h"
#include "../moe/trunk.h"
#include "api.h"
#include "session.h"

const char *coli_version(void)
{
    return COLI_VERSION;
}

/* -- open -------------------------------------------------------------------------------------- */

static char *last_component(const char *path) // coli__free
{
    size_t end = strlen(path);
    while (end > 1 && (path[end - 1] == '/' || path[end - 1] == '\\')) end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/' && path[begin - 1] != '\\') begin--;
    return coli__strndup(path + begin, end - begin);
}

/* What a token reads of a tensor outside the experts, and computes with it. */
static void count_tensor(coli_model *m, const coli__model_spec *spec, const coli__tensor_spec *t,
                         const coli__ct_tensor *found)
{
    const uint64_t n_mac = (uint64_t)t->n_out * t->n_in;
    if (strcmp(t->name, spec->head) == 0) {
        m->token_head_bytes = found->n_bytes;
        m->n_mac_head = n_mac;
    }
    if (t->role == COLI_ROLE_EMBED && strcmp(t->name, spec->head) != 0) m->embedding = found;
    if (t->role == COLI_ROLE_EMBED) {
        m->token_trunk_bytes += found->n_bytes / t->n_out;
    } else if (strcmp(t->name, spec->head) != 0) {
        m->token_trunk_bytes += found->n_bytes;
        if (t->role != COLI_ROLE_VECTOR) m->n_mac_body += n_mac;
    }
}

static void count_experts(coli_model *m)
{
    for (uint32_t i = 0; i < coli__container_n_expert_layer(m->container); i++) {
        const coli__ct_experts *x = coli__container_experts(m->container, i);
        m->token_expert_bytes +=
            m->shape.n_expert_used *
            (coli__mat_size(&x->gate) + coli__mat_size(&x->up) + coli__mat_size(&x->down));
        m->n_mac_experts += m->shape.n_expert_used * 3 * (uint64_t)x->d_model * x->d_ff;
    }
    m->n_mac_body += m->n_mac_experts;
}

static coli_status describe(coli_model *m, const char *dir)
{
    coli__model_spec spec;
    COLI_TRY(m->engine->describe(coli__container_config(m->container), &spec));
    m->n_param = spec.n_param;
    m->n_param_active = spec.n_param_active;
    coli_status status = coli__container_check_spec(m->container, &spec);
    for (uint32_t i = 0; i < spec.n_tensor && status == COLI_OK; i++) {
        const coli__tensor_spec *t = &spec.tensors[i];
        const coli__ct_tensor *found;
        status = coli__container_find(m->container, t->name, t->n_out, t->n_in, &found);
        if (status == COLI_OK && t->role == COLI_ROLE_TRUNK)
            coli__wfmt_name(found->mat.fmt, m->trunk_format);
        if (status == COLI_OK) count_tensor(m, &spec, t, found);
    }
    coli__model_spec_finish(&spec);
    count_experts(m);
    if (coli__container_n_expert_layer(m->container) > 0)
        coli__wfmt_name(coli__container_experts(m->container, 0)->gate.fmt, m->expert_format);
    m->name = last_component(dir);
    return m->name ? status : COLI_E_NOMEM;
}

/* -- memory ------------------------------------------------------------------------------------ */

uint64_t coli__model_trunk_bytes(const coli__container *c)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < coli__container_n_tensor(c); i++)
        sum += coli__container_tensor(c, i)->n_bytes;
    return sum;
}

coli_status coli__model_plan_memory(coli_model *m, const coli_model_opts *o,
                                    coli_session_opts *session, coli__state_bytes *state)
{
    const uint32_t n_worker = o->n_threads ? o->n_threads : coli__n_processor();
    // whether there is a store depends on this, so it is counted
    COLI_TRY(coli__session_bytes(m, session, n_worker, true, state));
    const uint64_t parts[] = {state->kv, state->state, state->scratch};
    m->resident_bytes = coli__model_trunk_bytes(m->container);
    for (int i = 0; i < 3; i++)
        if (!coli__add(m->resident_bytes, parts[i], &m->resident_bytes))
            m->resident_bytes = UINT64_MAX;

    m->available_bytes = coli__memory_available();
    const uint64_t available = m->available_bytes, slots = coli__store_slot_bytes(m->container);
    coli__ram_ask ask = {.ram_bytes = o->ram_bytes,
                         .resident_bytes = m->resident_bytes,
                         .n_layer = coli__container_n_expert_layer(m->container),
                         .n_expert = coli__container_experts(m->container, 0)->n_expert};
    ask.slot_bytes = slots ? (slots + ask.n_layer - 1) / ask.n_layer : UINT64_MAX;
    // none of the residents is in memory yet
    ask.free_bytes = available > ask.resident_bytes ? available - ask.resident_bytes : 0;
    if (available == 0) ask.free_bytes = COLI__BUDGET_UNKNOWN;
    m->ram = coli__budget_ram(&ask);
    // what stays in memory whatever happens may be more than there is: nobody can take that
    if (o->ram_bytes == 0 && available > 0 && m->ram.budget_bytes > available)
        m->ram.budget_bytes = available;
    if (o->ram_experts > ask.n_expert)
        return coli__fail(COLI_E_INVALID,
                          "%u experts of each layer in memory, of %u that there are",
                          o->ram_experts, ask.n_expert);
    if (o->ram_experts == 0) return COLI_OK;
    m->ram.cap = o->ram_experts;
    m->ram.holds_all = m->ram.is_short = false; // who says a number wants it kept
    return COLI_OK;
}

/* "RAM: 3.200 GB for experts: 70 of 256 in each layer, 12 of all layers stay; ..." */
static void say_what_is_in_memory(const coli_model *m, const coli_model_opts *o)
{
    if (!o->note || !m->store) return;
    coli_store_stats s = {.struct_size = sizeof s};
    coli__store_stats(m->store, &s);
    char pinned[64] = "", why[96] = "asked for";
    if (s.n_pinned > 0) snprintf(pinned, sizeof pinned, ", %u of all layers stay", s.n_pinned);
    if (!o->ram_experts)
        snprintf(why, sizeof why, "%.3f GB %s", (double)m->ram.budget_bytes * 1e-9,
                 o->ram_bytes ? "were allowed" : "can be taken now");
    char line[400];
    snprintf(line, sizeof line,
             "RAM: %.3f GB for experts: %u of %u in each layer%s; %.3f GB for the trunk and a "
             "conversation (%s); the other experts are read when they are used",
             (double)s.slot_bytes * 1e-9, s.n_slot,
             coli__container_experts(m->container, 0)->n_expert, pinned,
             (double)m->resident_bytes * 1e-9, why);
    o->note(o->user, line);
    if (m->ram.is_short)
        o->note(o->user, "that is less than the model needs even with one expert of each layer in "
                         "memory: expect the system to swap, or to end the program where it has no "
                         "swap");
}

/* Who names a limit wants it kept.  Without one what is free now is a guess: then it is only said. */
static coli_status too_little(const coli_model *m, const coli_model_opts *o)
{
    const uint64_t slots = coli__store_slot_bytes(m->container);
    return coli__fail(
        COLI_E_LIMIT,
        "memory: %.3f GB were allowed; the trunk, a conversation and one expert of each layer need "
        "%.3f GB: allow that, or make the context shorter",
        (double)o->ram_bytes * 1e-9, (double)(m->resident_bytes + slots + 500000) * 1e-9);
}

static coli_status open_store(coli_model *m, const coli_model_opts *o)
{
    if (coli__container_n_expert_layer(m->container) == 0) return COLI_OK;
    // a context that is too long is refused where the session is made
    coli_session_opts session = {.struct_size = sizeof session,
                                 .n_ctx = o->n_ctx <= m->shape.n_ctx_max ? o->n_ctx : 0,
                                 .n_chunk = o->n_chunk,
                                 .kv = o->kv};
    coli__state_bytes state;
    COLI_TRY(coli__model_plan_memory(m, o, &session, &state));
    if (m->ram.is_short && o->ram_bytes) return too_little(m, o);
    if (m->ram.holds_all) return COLI_OK;
    const coli__store_opts opts = {.n_slot = m->ram.cap, .guesses = !o->no_pilot};
    COLI_TRY(coli__store_create(m->container, &opts, &m->store));
    return coli__tier_read_from(m->tier, m->store);
}

/* -- devices and heat -------------------------------------------------------------------------- */

_Static_assert((int)COLI_REPLAN_TAIL == COLI__STEER_TAIL &&
                   (int)COLI_REPLAN_PRIOR == COLI__STEER_PRIOR &&
                   (int)COLI_REPLAN_COST == COLI__STEER_COST &&
                   (int)COLI_REPLAN_ONLINE == COLI__STEER_ONLINE &&
                   (int)COLI_REPLAN_HOLD == COLI__STEER_HOLD,
               "their bits are the same");

static int32_t replan_cap(const coli_model_opts *o)
{
    if (o->replan_max == 0 && o->replan_with & COLI_REPLAN_COST) return INT32_MAX;
    if (o->replan_max == 0) return COLI__PLAN_CAP;
    return o->replan_max < INT32_MAX ? (int32_t)o->replan_max : INT32_MAX;
}

/* By the numbers of devices that people know. */
static coli_status resolve(const coli__devices *devices, coli__place_list *list)
{
    uint32_t ordinals[COLI__MAX_DEVICE];
    for (uint32_t i = 0; i < coli__devices_n(devices); i++)
        ordinals[i] = coli__device_ordinal(coli__devices_at(devices, i));
    return coli__place_resolve(list, ordinals, coli__devices_n(devices));
}

static coli_status open_devices(coli_model *m, const coli_model_opts *o, coli__place_list *list)
{
    if (o->replan_with > COLI__STEER_ALL)
        return coli__fail(COLI_E_INVALID,
                          "coli_model_opts: replan_with: expected coli_replan_with, found %#x",
                          o->replan_with);
    if (o->huge_pages > COLI_HUGE_OFF)
        return coli__fail(COLI_E_INVALID,
                          "coli_model_opts: huge_pages: expected a coli_huge, found %u",
                          o->huge_pages);
    if (o->home > COLI_HOME_LAYER)
        return coli__fail(COLI_E_INVALID, "coli_model_opts: home: expected a coli_home, found %u",
                          o->home);
    COLI_TRY(coli__devices_open(o, m->container, &m->devices));
    if (m->devices) COLI_TRY(resolve(m->devices, list));
    const uint32_t usable = coli__place_expert_devices(list, coli__devices_n(m->devices));
    const coli__tier_opts opts = {.replan = o->replan,
                                  .starts_empty = o->no_warmstart,
                                  .home_by_layer = o->home == COLI_HOME_LAYER,
                                  .layer_split = o->layer_split,
                                  .devices = usable,
                                  .replan_with = o->replan_with,
                                  .replan_cap = replan_cap(o),
                                  .stream_rows = o->stream_rows};
    return coli__tier_create(m->devices, m->container, &opts, &m->tier);
}

/* The file's counters, if there is one: of this model, or it is an error. */
static coli_status read_heat(const coli_model *m, const char *path, coli__heat_file *out)
{
    const coli_status status = coli__heat_file_read(path, out);
    if (status == COLI_E_NOTFOUND) return COLI_OK;
    COLI_TRY(status);
    return coli__heat_file_expect(path, out, coli__container_identity(m->container),
                                  coli__container_n_expert_layer(m->container),
                                  coli__container_experts(m->container, 0)->n_expert);
}

static coli_status new_heat(const coli_model *m, coli__heat_file *out)
{
    return coli__heat_file_init(out, coli__container_identity(m->container),
                                coli__container_n_expert_layer(m->container),
                                coli__container_experts(m->container, 0)->n_expert);
}

/* What the file holds, back into it, or a first one: so that a path that cannot be written is known
 * before the model has run. */
static coli_status try_heat_path(coli_model *m, const char *path, coli__heat_file *heat)
{
    if (!heat->count) COLI_TRY(new_heat(m, heat));
    COLI_TRY(coli__heat_file_write(path, heat));
    m->heat_path = coli__strndup(path, strlen(path));
    return m->heat_path ? COLI_OK : COLI_E_NOMEM;
}

/* With what to do about it: coli__trunk_place, or coli__trunk_reserve. */
static coli_status offer_trunk(coli_model *m, const coli_model_opts *o,
                               const coli__place_list *list, const uint32_t *heat,
                               coli_status (*act)(const coli__trunk *, const coli__trunk_args *))
{
    coli__trunk trunk = {0};
    const coli__trunk_args args = {.devices = m->devices,
                                   .tier = m->tier,
                                   .list = list,
                                   .heat = heat,
                                   .n_expert_used = m->shape.n_expert_used,
                                   .no_race = o->no_trunk_probe,
                                   .kernels = m->kernels,
                                   .pool = m->pool};
    coli_status status = m->engine->offer(m->weights, &trunk);
    if (status == COLI_OK) status = act(&trunk, &args);
    coli__trunk_finish(&trunk);
    return status;
}

static bool is_on_device(void *ctx, const coli__ct_experts *layer, uint32_t expert)
{
    coli__slot slot;
    return coli__tier_find(ctx, layer, expert, &slot);
}

static coli_status fill_store(coli_model *m, const coli_model_opts *o, const uint32_t *heat)
{
    const coli__store_start start = {.heat = heat,
                                     .pin_bytes = o->pin_bytes,
                                     .is_elsewhere = m->tier ? is_on_device : NULL,
                                     .ctx = m->tier,
                                     .progress = o->progress,
                                     .user = o->user};
    return coli__store_begin(m->store, &start);
}

/* Devices and memory, by what earlier runs learned. */
/* What was asked of devices that there are none of. */
static void say_what_is_ignored(const coli_model *m, const coli_model_opts *o)
{
    if (m->devices || !o->note) return;
    const struct {
        bool asked;
        const char *what;
    } all[] = {{o->vram_unit != COLI_VRAM_AUTO, "vram"},
               {o->devices != NULL, "devices"},
               {o->place && strcmp(o->place, "auto") != 0 && strcmp(o->place, "off") != 0, "place"},
               {o->replan || o->replan_with, "replan"},
               {o->no_warmstart, "no warm start"},
               {o->home != COLI_HOME_EXPERT, "home"},
               {o->stream_rows > 0, "stream"}};
    char line[160] = "no device is used, so this has no effect:";
    size_t n = strlen(line);
    const size_t n_empty = n;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].asked)
            n += (size_t)snprintf(line + n, sizeof line - n, "%s %s", n > n_empty ? "," : "",
                                  all[i].what);
    if (n > n_empty) o->note(o->user, line);
}

/* A file that is only read, and is not there: the model starts as if none had been named. */
static void say_what_is_unknown(const coli_model_opts *o, const coli__heat_file *heat)
{
    if (o->heat_readonly && !heat->count && o->note)
        o->note(o->user, "the heat file is not there, and is not to be written: nothing is known "
                         "about which experts are used");
}

static coli_status fill(coli_model *m, const coli_model_opts *o, const coli__place_list *list)
{
    say_what_is_ignored(m, o);
    const bool learns = m->tier || m->store;
    if (o->heat && !learns && o->note)
        o->note(o->user, "no device is used and memory has all experts, so the heat file has no "
                         "effect and learns nothing");
    coli__heat_file heat = {0};
    coli_status status = COLI_OK;
    if (o->heat && learns) status = read_heat(m, o->heat, &heat);
    if (status == COLI_OK && o->heat && learns) say_what_is_unknown(o, &heat);
    if (status == COLI_OK && m->devices)
        status = offer_trunk(m, o, list, heat.count, coli__trunk_place);
    if (status == COLI_OK) status = coli__tier_fill(m->tier, heat.count);
    if (status == COLI_OK) status = fill_store(m, o, heat.count);
    m->heat_tokens = heat.n_token;
    if (status == COLI_OK && o->heat && learns && !o->heat_readonly)
        status = try_heat_path(m, o->heat, &heat);
    coli__heat_file_finish(&heat);
    if (status == COLI_OK) say_what_is_in_memory(m, o);
    return status;
}

/* What this run has learned, into the file. */
static coli_status write_heat(const coli_model *m)
{
    coli__heat_file f;
    COLI_TRY(new_heat(m, &f));
    // tier and store count the same uses
    const uint32_t *heat = m->tier ? coli__tier_heat(m->tier) : coli__store_heat(m->store);
    const uint64_t n_tick = m->tier ? coli__tier_n_tick(m->tier) : coli__store_n_tick(m->store);
    memcpy(f.count, heat, (size_t)f.n_layer * f.n_expert * sizeof *f.count);
    f.n_token = m->heat_tokens + n_tick;
    const coli_status status = coli__heat_file_write(m->heat_path, &f);
    coli__heat_file_finish(&f);
    return status;
}

/* What the tier counts belongs to whoever runs a chunk: wait for its end. */
static void lock(const coli_model *m)
{
    pthread_mutex_lock((pthread_mutex_t *)&m->mu);
}
static void unlock(const coli_model *m)
{
    pthread_mutex_unlock((pthread_mutex_t *)&m->mu);
}

coli_status coli_model_save_heat(const coli_model *m)
{
    if (!m) return coli__fail(COLI_E_INVALID, "coli_model_save_heat: model is NULL");
    if (!m->heat_path) return COLI_OK;
    lock(m);
    const coli_status status = write_heat(m);
    unlock(m);
    return status;
}

/* Of config.json alone. */
static coli_status imagine_container(coli_model *m, const char *dir, const char *config_path,
                                     const coli__formats *formats)
{
    json_t *config;
    const char *engine;
    coli__model_spec spec = {0};
    COLI_TRY(coli__json_read(config_path, COLI_CONFIG_MAX_BYTES, COLI_CONFIG_MAX_DEPTH, &config));
    coli_status status = coli__checkpoint_check_stored(config, config_path);
    if (status == COLI_OK) status = coli__engine_describe(config, &engine, &spec);
    if (status == COLI_OK)
        status = coli__container_imagine(dir, engine, config, &spec, formats, &m->container);
    coli__model_spec_finish(&spec);
    json_decref(config);
    return status;
}

/* Of what a source holds, and its family asks for. */
static coli_status imagine_source(coli_model *m, const char *path, const coli__checkpoint *k,
                                  const coli__formats *formats)
{
    json_t *config;
    coli__formats f = *formats;
    f.source = k;
    COLI_TRY(coli__json_parse_small(path, k->config_text.data, k->config_text.n_bytes,
                                    COLI_CONFIG_MAX_DEPTH, &config));
    const coli_status status =
        coli__container_imagine(path, k->engine, config, &k->spec, &f, &m->container);
    json_decref(config);
    return status;
}

static coli_status find_source(coli_model *m, const char *path, const coli__formats *formats)
{
    coli__checkpoint k;
    COLI_TRY(coli__checkpoint_open_source(path, coli__engine_gguf, coli__engine_describe, NULL,
                                          NULL, &k));
    const coli_status status = imagine_source(m, path, &k, formats);
    coli__checkpoint_finish(&k);
    m->is_of_source = true;
    return status;
}

/* Whether there is a file of that name in a directory; its path (coli__free). */
static coli_status look_for(const char *dir, const char *name, char **path, bool *is_there)
{
    COLI_TRY(coli__path_join(dir, name, path));
    *is_there = coli__path_exists(*path);
    return COLI_OK;
}

static coli_status find_container(coli_model *m, const char *dir, const coli__formats *formats)
{
    char *model = NULL, *config = NULL;
    bool has_model = true, has_config = false, is_merged = false;
    coli_status status = COLI_OK;
    if (formats && coli__path_exists(dir) && !coli__path_is_dir(dir))
        return find_source(m, dir, formats);
    if (formats) status = coli__merged_look(dir, &is_merged);
    if (status == COLI_OK && is_merged) return find_source(m, dir, formats);
    if (status == COLI_OK && formats) status = look_for(dir, "model.coli", &model, &has_model);
    if (status == COLI_OK && !has_model)
        status = look_for(dir, "config.json", &config, &has_config);
    if (status == COLI_OK && has_config)
        status = imagine_container(m, dir, config, formats);
    else if (status == COLI_OK)
        status = coli__container_open(dir, &m->container);
    coli__free(model);
    coli__free(config);
    return status;
}

static coli_status open_container(coli_model *m, const char *dir, const coli_model_opts *o,
                                  const coli__formats *formats)
{
    COLI_TRY(coli__kernels_get(o->isa, &m->kernels));
    COLI_TRY(find_container(m, dir, formats));
    m->engine = coli__engine_by_name(coli__container_engine(m->container));
    if (m->engine) return COLI_OK;
    return coli__fail(COLI_E_UNSUPPORTED,
                      "%s: made for the engine \"%s\", which this version lacks", dir,
                      coli__container_engine(m->container));
}

coli_status coli__model_look(coli_model *m, const char *dir, const coli_model_opts *o,
                             const coli__formats *formats)
{
    coli__place_list list;
    COLI_TRY(coli__place_parse(o->place, &list));
    COLI_TRY(open_container(m, dir, o, formats));
    COLI_TRY(open_devices(m, o, &list));
    COLI_TRY(m->engine->open(coli__container_config(m->container), m->container, m->kernels,
                             m->tier, &m->weights));
    m->engine->shape(m->weights, &m->shape);
    COLI_TRY(describe(m, dir));
    return m->devices ? offer_trunk(m, o, &list, NULL, coli__trunk_reserve) : COLI_OK;
}

static coli_status open_parts(coli_model *m, const char *dir, const coli_model_opts *o)
{
    if (!coli_exact_check())
        return coli__fail(COLI_E_INTERNAL, "this build or processor does not round as coli/exact.h "
                                           "demands: results would differ from other machines");
    coli__place_list list;
    COLI_TRY(coli__place_parse(o->place, &list));
    COLI_TRY(open_container(m, dir, o, NULL));
    COLI_TRY(open_devices(m, o, &list));
    COLI_TRY(m->engine->open(coli__container_config(m->container), m->container, m->kernels,
                             m->tier, &m->weights));
    m->engine->shape(m->weights, &m->shape);
    COLI_TRY(open_store(m, o));
    COLI_TRY(describe(m, dir));
    COLI_TRY(coli__companions_read(dir, coli__container_config(m->container), m->shape.n_vocab,
                                   &m->beside));
    COLI_TRY(coli__pool_create_on(o->n_threads, &m->numa, &m->pool));
    COLI_TRY(fill(m, o, &list));
    COLI_TRY(coli__model_load_trunk(m, o));
    return coli__container_check_whole(m->container);
}

coli_status coli_model_open(const char *dir, const coli_model_opts *opts, coli_model **out)
{
    if (!out) return coli__fail(COLI_E_INVALID, "coli_model_open: out is NULL");
    *out = NULL;
    if (!dir) return coli__fail(COLI_E_INVALID, "coli_model_open: dir is NULL");
    coli_model_opts o;
    COLI_TRY(coli__opts_copy("coli_model_opts", &o, sizeof o, opts));

    coli_model *m = coli__calloc(1, sizeof *m);
    if (!m) return COLI_E_NOMEM;
    pthread_mutex_init(&m->mu, NULL);
    const coli__fp fp = coli__fp_enter();
    if (!o.no_numa) coli__numa_find(&m->numa);
    const coli__numa_policy policy = coli__numa_spread(&m->numa); // the pool's, too
    const coli_status status = open_parts(m, dir, &o);
    coli__numa_restore(policy);
    coli__fp_leave(fp);
    if (status != COLI_OK) {
        // nothing was learned, and the counters were halved at the start: the file stays as it is
        coli__free(m->heat_path);
        m->heat_path = NULL;
        coli_model_close(m);
        return status;
    }
    *out = m;
    return COLI_OK;
}

void coli_model_close(coli_model *m)
{
    if (!m) return;
    coli__pool_destroy(m->pool);
    coli__companions_finish(&m->beside);
    if (m->engine) m->engine->close(m->weights);
    if (m->heat_path)
        write_heat(m); // who wants to know whether it worked calls coli_model_save_heat
    coli__free(m->heat_path);
    coli__tier_destroy(m->tier);
    coli__store_destroy(m->store);
    if (coli__devices_close(m->devices)) coli__container_close(m->container);
    coli__free(m->name);
    pthread_mutex_destroy(&m->mu);
    coli__free(m);
}

bool coli__model_is_stop(const coli_model *m, int32_t id)
{
    for (uint32_t i = 0; i < m->beside.n_stop_id; i++)
        if (m->beside.stop_ids[i] == id) return true;
    return false;
}

coli_status coli_model_get_info(const coli_model *m, coli_model_info *info)
{
    if (info) COLI_TRY(coli__struct_clear("coli_model_info", info));
    if (!m || !info) return coli__fail(COLI_E_INVALID, "coli_model_get_info: an argument is NULL");
    const bool has_experts = coli__container_n_expert_layer(m->container) > 0;
    const coli_model_info full = {
        .n_layer = m->shape.n_layer,
        .n_expert = m->shape.n_expert,
        .n_expert_used = m->shape.n_expert_used,
        .d_model = m->shape.d_model,
        .d_ff = m->shape.d_ff,
        .n_vocab = m->shape.n_vocab,
        .n_token = m->beside.tok ? coli__tok_n_id(m->beside.tok) : m->shape.n_vocab,
        .n_ctx_max = m->shape.n_ctx_max,
        .n_threads = coli__pool_n_worker(m->pool),
        .weight_bytes = coli__container_weight_bytes(m->container),
        .n_param = m->n_param,
        .n_param_active = m->n_param_active,
        .expert_bytes = has_experts ? coli__container_experts(m->container, 0)->block_bytes : 0,
        .name = m->name,
        .family = m->engine->name,
        .identity = coli__container_identity(m->container),
        .expert_format = m->expert_format,
        .trunk_format = m->trunk_format,
        .chat_template = coli__container_template(m->container),
        .isa = m->kernels->name,
        .stop_ids = m->beside.stop_ids,
        .n_stop_ids = m->beside.n_stop_id,
        .token_expert_bytes = m->token_expert_bytes,
        .token_trunk_bytes = m->token_trunk_bytes,
        .token_head_bytes = m->token_head_bytes,
        .n_mac_body = m->n_mac_body,
        .n_mac_head = m->n_mac_head,
        .n_mac_experts = m->n_mac_experts,
    };
    coli__struct_fill(info, &full, sizeof full);
    return COLI_OK;
}

coli_status coli_model_get_backend_stats(const coli_model *m, coli_backend_stats *out)
{
    if (out) COLI_TRY(coli__struct_clear("coli_backend_stats", out));
    if (!m || !out)
        return coli__fail(COLI_E_INVALID, "coli_model_get_backend_stats: an argument is NULL");
    coli_backend_stats full = {.struct_size = sizeof full};
    lock(m);
    coli__devices_stats(m->devices, &full);
    coli__tier_stats(m->tier, &full);
    unlock(m);
    coli__struct_fill(out, &full, sizeof full);
    return COLI_OK;
}

coli_status coli_model_get_store_stats(const coli_model *m, coli_store_stats *out)
{
    if (out) COLI_TRY(coli__struct_clear("coli_store_stats", out));
    if (!m || !out)
        return coli__fail(COLI_E_INVALID, "coli_model_get_store_stats: an argument is NULL");
    coli_store_stats full = {.struct_size = sizeof full};
    lock(m);
    coli__store_stats(m->store, &full);
    unlock(m);
    coli__struct_fill(out, &full, sizeof full);
    return COLI_OK;
}

coli_status coli_model_get_device(const coli_model *m, uint32_t i, coli_device_use *out)
{
    if (out) COLI_TRY(coli__struct_clear("coli_device_use", out));
    if (!m || !out) return coli__fail(COLI_E_INVALID, "coli_model_get_device: an argument is NULL");
    if (i >= coli__devices_n(m->devices))
        return coli__fail(COLI_E_INVALID, "device %u of a model with %u", i,
                          coli__devices_n(m->devices));
    coli_device_use full = {.struct_size = sizeof full};
    lock(m);
    coli__devices_use(m->devices, i, &full);
    full.n_expert = coli__tier_n_resident(m->tier, i);
    unlock(m);
    coli__struct_fill(out, &full, sizeof full);
    return COLI_OK;
}

coli_status coli_sampling_default(const coli_model *model, coli_sampling *out)
{
    if (!out) return coli__fail(COLI_E_INVALID, "coli_sampling_default: out is NULL");
    COLI_TRY(coli__struct_clear("coli_sampling", out));
    coli__struct_fill(out, model ? &model->beside.sampling : &coli__sampling_neutral, sizeof *out);
    return COLI_OK;
}
