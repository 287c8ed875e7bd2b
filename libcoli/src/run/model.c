/* model.c - open a container: check it, bind its engine, read its tokenizer and its defaults. */
#include "model.h"

#include <stdio.h>
#include <string.h>

#include "api.h"

const char *coli_version(void)
{
    return COLI_VERSION;
}

/* -- generation_config.json ----------------------------------------------------------------------
 */

static coli_status read_stop_ids(coli_model *m, const char *what, const json_t *config)
{
    const json_t *eos = json_object_get(config, "eos_token_id");
    if (!eos || json_is_null(eos)) return COLI_OK;
    const size_t n = json_is_array(eos) ? json_array_size(eos) : 1;
    const size_t most = sizeof m->stop_ids / sizeof m->stop_ids[0];
    if (n > most)
        return coli__fail(COLI_E_FORMAT, "%s: eos_token_id: at most %zu ids, found %zu", what, most,
                          n);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(eos) ? json_array_get(eos, i) : eos;
        const json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value >= m->shape.n_vocab)
            return coli__fail(COLI_E_FORMAT, "%s: eos_token_id: expected ids below %u", what,
                              m->shape.n_vocab);
        m->stop_ids[m->n_stop_id++] = (int32_t)value;
    }
    return COLI_OK;
}

static coli_status read_number(const char *what, const json_t *config, const char *key, double min,
                               double max, float *inout)
{
    double value;
    COLI_TRY(coli__json_number_or(what, config, key, min, max, (double)*inout, &value));
    *inout = (float)value;
    return COLI_OK;
}

static coli_status read_sampling(coli_model *m, const char *what, const json_t *config)
{
    coli_sampling *s = &m->sampling;
    bool sample;
    COLI_TRY(coli__json_bool_or(what, config, "do_sample", true, &sample));
    COLI_TRY(coli__json_u32_or(what, config, "top_k", 0, 1u << 24, s->top_k, &s->top_k));
    COLI_TRY(read_number(what, config, "temperature", 0, 100, &s->temperature));
    COLI_TRY(read_number(what, config, "top_p", 0, 1, &s->top_p));
    COLI_TRY(read_number(what, config, "min_p", 0, 1, &s->min_p));
    COLI_TRY(read_number(what, config, "repetition_penalty", 0.01, 100, &s->repetition_penalty));
    COLI_TRY(read_number(what, config, "presence_penalty", -100, 100, &s->presence_penalty));
    if (!sample) s->temperature = 0;
    return COLI_OK;
}

static const coli_sampling neutral = {
    .struct_size = sizeof(coli_sampling), .temperature = 1, .top_p = 1, .repetition_penalty = 1};

static coli_status read_defaults(coli_model *m)
{
    m->sampling = neutral;
    char *path;
    json_t *config;
    COLI_TRY(coli__path_join(coli__container_dir(m->container), "generation_config.json", &path));
    coli_status status = coli__json_read(path, 1 << 20, 16, &config);
    if (status == COLI_OK) {
        status = read_stop_ids(m, path, config);
        if (status == COLI_OK) status = read_sampling(m, path, config);
        json_decref(config);
    } else if (status == COLI_E_NOTFOUND) { // optional: then the model's own config names the end
        status = read_stop_ids(m, "config.json", coli__container_config(m->container));
    }
    coli__free(path);
    return status;
}

/* -- open ----------------------------------------------------------------------------------------
 */

static coli_status open_tokenizer(coli_model *m)
{
    char *tokenizer = NULL, *config = NULL;
    const char *dir = coli__container_dir(m->container);
    coli_status status = coli__path_join(dir, "tokenizer.json", &tokenizer);
    if (status == COLI_OK) status = coli__path_join(dir, "tokenizer_config.json", &config);
    // a container without text (a measuring fixture) is a model too: then only ids go in and out
    if (status == COLI_OK && coli__path_exists(tokenizer))
        status = coli__tok_open(tokenizer, config, &m->tok);
    coli__free(tokenizer);
    coli__free(config);
    if (status != COLI_OK) return status;

    m->think_open_id = m->tok ? coli__tok_added_id(m->tok, "<think>") : -1;
    m->think_close_id = m->tok ? coli__tok_added_id(m->tok, "</think>") : -1;
    if (m->tok && coli__tok_n_id(m->tok) > m->shape.n_vocab)
        return coli__fail(COLI_E_FORMAT, "tokenizer.json: %u ids, but the model has %u rows",
                          coli__tok_n_id(m->tok), m->shape.n_vocab);
    return COLI_OK;
}

static void last_component(const char *path, char *out, size_t out_bytes)
{
    size_t end = strlen(path);
    while (end > 1 && (path[end - 1] == '/' || path[end - 1] == '\\')) end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/' && path[begin - 1] != '\\') begin--;
    snprintf(out, out_bytes, "%.*s", (int)(end - begin), path + begin);
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
    if (t->role == COLI_ROLE_EMBED) {
        m->token_trunk_bytes += found->n_bytes / t->n_out;
    } else if (strcmp(t->name, spec->head) != 0) {
        m->token_trunk_bytes += found->n_bytes;
        if (t->role != COLI_ROLE_VECTOR) m->n_mac_body += n_mac;
    }
}

static uint64_t matrix_bytes(const coli__mat *w)
{
    uint64_t n_bytes;
    return coli__mat_bytes(w->fmt, w->n_out, w->n_in, &n_bytes, NULL) ? n_bytes : 0;
}

static void count_experts(coli_model *m)
{
    for (uint32_t i = 0; i < coli__container_n_expert_layer(m->container); i++) {
        const coli__ct_experts *x = coli__container_experts(m->container, i);
        m->token_expert_bytes +=
            m->shape.n_expert_used *
            (matrix_bytes(&x->gate) + matrix_bytes(&x->up) + matrix_bytes(&x->down));
        m->n_mac_body += m->shape.n_expert_used * 3 * (uint64_t)x->d_model * x->d_ff;
    }
}

static coli_status describe(coli_model *m, const char *dir)
{
    coli__model_spec spec;
    COLI_TRY(m->engine->describe(coli__container_config(m->container), &spec));
    m->n_param = spec.n_param;
    m->n_param_active = spec.n_param_active;
    coli_status status = COLI_OK;
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
    last_component(dir, m->name, sizeof m->name);
    return status;
}

static coli_status open_parts(coli_model *m, const char *dir, const coli_model_opts *o)
{
    COLI_TRY(coli__kernels_get(o->isa, &m->kernels));
    COLI_TRY(coli__container_open(dir, &m->container));
    m->engine = coli__engine_by_name(coli__container_engine(m->container));
    if (!m->engine)
        return coli__fail(COLI_E_UNSUPPORTED,
                          "%s: made for the engine \"%s\", which this version lacks", dir,
                          coli__container_engine(m->container));
    COLI_TRY(m->engine->open(coli__container_config(m->container), m->container, m->kernels,
                             &m->weights));
    m->engine->shape(m->weights, &m->shape);
    COLI_TRY(describe(m, dir));
    COLI_TRY(open_tokenizer(m));
    COLI_TRY(read_defaults(m));
    return coli__pool_create(o->n_threads, &m->pool);
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
    const coli_status status = open_parts(m, dir, &o);
    coli__fp_leave(fp);
    if (status != COLI_OK) {
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
    coli__tok_close(m->tok);
    if (m->engine) m->engine->close(m->weights);
    coli__container_close(m->container);
    pthread_mutex_destroy(&m->mu);
    coli__free(m);
}

bool coli__model_is_stop(const coli_model *m, int32_t id)
{
    for (uint32_t i = 0; i < m->n_stop_id; i++)
        if (m->stop_ids[i] == id) return true;
    return false;
}

coli_status coli_model_get_info(const coli_model *m, coli_model_info *info)
{
    if (!m || !info) return coli__fail(COLI_E_INVALID, "coli_model_get_info: an argument is NULL");
    const bool has_experts = coli__container_n_expert_layer(m->container) > 0;
    const coli_model_info full = {
        .n_layer = m->shape.n_layer,
        .n_expert = m->shape.n_expert,
        .n_expert_used = m->shape.n_expert_used,
        .d_model = m->shape.d_model,
        .d_ff = m->shape.d_ff,
        .n_vocab = m->shape.n_vocab,
        .n_token = m->tok ? coli__tok_n_id(m->tok) : m->shape.n_vocab,
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
        .stop_ids = m->stop_ids,
        .n_stop_ids = m->n_stop_id,
        .token_expert_bytes = m->token_expert_bytes,
        .token_trunk_bytes = m->token_trunk_bytes,
        .token_head_bytes = m->token_head_bytes,
        .n_mac_body = m->n_mac_body,
        .n_mac_head = m->n_mac_head,
    };
    return coli__struct_fill("coli_model_info", info, &full, sizeof full);
}

void coli_sampling_default(const coli_model *model, coli_sampling *out)
{
    *out = model ? model->sampling : neutral;
}
