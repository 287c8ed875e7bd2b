/* tools.c - the parts of coli.h that need no session: text, templates, conversion, files. */
#include <string.h>

#include "../model/chat_template.h"
#include "../model/checkpoint.h"
#include "../model/convert.h"
#include "../model/pack.h"
#include "../model/safetensors.h"
#include "../model/synth.h"
#include "api.h"
#include "model.h"

/* A coli_tokenizer is the library's coli__tok under its public name. */
static const coli__tok *tok_of(const coli_tokenizer *t)
{
    return (const coli__tok *)(const void *)t;
}

/* Hand a buffer over as the caller's text. */
static coli_status hand_over(coli__buf *buf, coli_text *out)
{
    if (!buf->data) COLI_TRY(coli__buf_append(buf, "", 0));
    *out = (coli_text){buf->data, buf->n_bytes};
    *buf = (coli__buf){0};
    return COLI_OK;
}

void coli_text_free(coli_text *text)
{
    if (!text) return;
    coli__free(text->data);
    *text = (coli_text){0};
}

/* -- tokenizer --------------------------------------------------------------------------------- */

coli_status coli_tokenizer_open(const char *tokenizer_json, coli_tokenizer **out)
{
    if (!out) return coli__fail(COLI_E_INVALID, "coli_tokenizer_open: out is NULL");
    *out = NULL;
    if (!tokenizer_json) return coli__fail(COLI_E_INVALID, "coli_tokenizer_open: path is NULL");
    coli__tok *tok;
    COLI_TRY(coli__tok_open(tokenizer_json, NULL, &tok));
    *out = (coli_tokenizer *)(void *)tok;
    return COLI_OK;
}

void coli_tokenizer_close(coli_tokenizer *t)
{
    coli__tok_close((coli__tok *)(void *)t);
}

const coli_tokenizer *coli_model_tokenizer(const coli_model *m)
{
    return m ? (const coli_tokenizer *)(const void *)m->beside.tok : NULL;
}

coli_status coli_tokenize(const coli_tokenizer *t, const char *text, size_t n_bytes, bool plain,
                          int32_t *ids, size_t cap, size_t *n_ids)
{
    if (n_ids) *n_ids = 0;
    if (!t || (!text && n_bytes) || !n_ids || (!ids && cap))
        return coli__fail(COLI_E_INVALID, "coli_tokenize: an argument is NULL");
    const coli__span all = {0, n_bytes};
    int32_t *made = NULL;
    COLI_TRY(coli__tok_encode(tok_of(t), text, n_bytes, &all, plain ? 1 : 0, &made, n_ids));
    coli_status status = COLI_OK;
    if (*n_ids <= cap && *n_ids)
        memcpy(ids, made, *n_ids * sizeof *ids);
    else if (*n_ids > cap)
        status = coli__fail(COLI_E_LIMIT, "%zu tokens do not fit a buffer of %zu", *n_ids, cap);
    coli__free(made);
    return status;
}

coli_status coli_detokenize(const coli_tokenizer *t, const int32_t *ids, size_t n_ids,
                            bool skip_special, coli_text *out)
{
    if (out) *out = (coli_text){0};
    if (!t || (!ids && n_ids) || !out)
        return coli__fail(COLI_E_INVALID, "coli_detokenize: an argument is NULL");
    coli__buf text = {0};
    coli_status status = coli__tok_decode(tok_of(t), ids, n_ids, skip_special, &text);
    if (status == COLI_OK) status = hand_over(&text, out);
    coli__buf_finish(&text);
    return status;
}

const char *coli_token_bytes(const coli_tokenizer *t, int32_t id, size_t *n_bytes)
{
    size_t n = 0;
    const char *bytes = t ? coli__tok_bytes(tok_of(t), id, &n) : NULL;
    if (n_bytes) *n_bytes = n;
    return bytes;
}

/* -- chat template ----------------------------------------------------------------------------- */

coli_status coli_chat_render(const char *tmpl, const char *messages, size_t n_messages_bytes,
                             const char *options, size_t n_options_bytes, coli_text *out)
{
    if (out) *out = (coli_text){0};
    if (!tmpl || !messages || !out)
        return coli__fail(COLI_E_INVALID, "coli_chat_render: an argument is NULL");
    json_t *m = NULL, *o = NULL;
    coli__render r = {0};
    coli_status status = coli__chat_parse("messages", messages, n_messages_bytes, &m);
    if (status == COLI_OK && options)
        status = coli__chat_parse("options", options, n_options_bytes, &o);
    if (status == COLI_OK) status = coli__chat_render(tmpl, m, o, &r);
    if (status == COLI_OK) status = hand_over(&r.text, out);
    coli__render_finish(&r);
    json_decref(m);
    json_decref(o);
    return status;
}

/* -- containers -------------------------------------------------------------------------------- */

/* Rows of the embedding: ids are below it. */
static coli_status find_vocab(const json_t *config, uint32_t *n_vocab)
{
    const char *engine;
    coli__model_spec spec;
    *n_vocab = 0;
    COLI_TRY(coli__engine_describe(config, &engine, &spec));
    for (uint32_t i = 0; i < spec.n_tensor; i++)
        if (spec.tensors[i].role == COLI_ROLE_EMBED) *n_vocab = spec.tensors[i].n_out;
    coli__model_spec_finish(&spec);
    return COLI_OK;
}

/* Whether the tokenizer and the generation settings in `dir`, or those of a pack, can be used with this
 * model: before hours of conversion, and as a part of verifying. */
static coli_status check_companions(const char *dir, const coli__pack_files *packed,
                                    const json_t *config)
{
    uint32_t n_vocab;
    coli__companions companions;
    COLI_TRY(find_vocab(config, &n_vocab));
    COLI_TRY(packed ? coli__companions_of(packed, config, n_vocab, &companions)
                    : coli__companions_read(dir, config, n_vocab, &companions));
    coli__companions_finish(&companions);
    return COLI_OK;
}

static coli_status check_files(const char *src)
{
    char *path;
    json_t *config;
    coli__buf text = {0};
    coli__merged merged;
    COLI_TRY(coli__path_join(src, "config.json", &path));
    coli_status status = coli__checkpoint_config(src, path, &text, &merged, &config);
    coli__free(path);
    coli__buf_finish(&text);
    if (status == COLI_OK) status = check_companions(src, NULL, config);
    json_decref(config);
    return status;
}

/* The recipe, and what is asked for beside it as lines behind its own. */
static coli_status open_recipe(const coli_convert_opts *o, coli__recipe **out)
{
    COLI_TRY(coli__recipe_open(o->recipe, out));
    if (o->trunk) COLI_TRY(coli__recipe_add(*out, "trunk", "trunk", o->trunk));
    return o->experts ? coli__recipe_add(*out, "experts", "experts", o->experts) : COLI_OK;
}

coli_status coli_convert(const char *src, const char *out, const coli_convert_opts *opts)
{
    if (!src || !out) return coli__fail(COLI_E_INVALID, "coli_convert: a path is NULL");
    coli_convert_opts o;
    COLI_TRY(coli__opts_copy("coli_convert_opts", &o, sizeof o, opts));
    coli__convert_args args = {.src = src,
                               .out = out,
                               .describe = coli__engine_describe,
                               .gguf_family = coli__engine_gguf,
                               .experts_are_default = !o.experts,
                               .trunk_is_default = !o.trunk,
                               .check_files = check_files,
                               .imatrix = o.imatrix,
                               .chat_template = o.chat_template,
                               .n_thread = o.n_threads,
                               .progress = o.progress,
                               .note = o.note,
                               .user = o.user};
    COLI_TRY(coli__wfmt_parse(o.experts ? o.experts : "int4", &args.experts));
    COLI_TRY(coli__wfmt_parse(o.trunk ? o.trunk : "int8", &args.trunk));
    if (coli__path_is_dir(src)) COLI_TRY(check_files(src)); // before the tensors are looked at
    if (!o.recipe) return coli__convert(&args);
    coli_status status = open_recipe(&o, &args.recipe);
    if (status == COLI_OK) status = coli__convert(&args);
    coli__recipe_close(args.recipe);
    return status;
}

coli_status coli_synth(const char *out, const coli_synth_opts *opts)
{
    if (!out) return coli__fail(COLI_E_INVALID, "coli_synth: out is NULL");
    coli_synth_opts o;
    COLI_TRY(coli__opts_copy("coli_synth_opts", &o, sizeof o, opts));
    coli__synth_args args = {.out = out,
                             .describe = coli__engine_describe,
                             .like = o.like ? o.like : "qwen36-35b",
                             .n_layer = o.n_layer,
                             .d_model = o.d_model,
                             .n_expert = o.n_expert,
                             .n_expert_used = o.n_expert_used,
                             .d_ff = o.d_ff,
                             .n_vocab = o.n_vocab,
                             .skew = o.skew,
                             .seed = o.seed,
                             .n_thread = o.n_threads,
                             .progress = o.progress,
                             .user = o.user};
    COLI_TRY(coli__wfmt_parse(o.experts ? o.experts : "int4", &args.experts));
    COLI_TRY(coli__wfmt_parse(o.trunk ? o.trunk : "int8", &args.trunk));
    return coli__synth(&args);
}

coli_status coli_verify(const char *dir, coli_progress_fn progress, void *user)
{
    if (!dir) return coli__fail(COLI_E_INVALID, "coli_verify: dir is NULL");
    coli__container *c;
    COLI_TRY(coli__container_open(dir, &c));
    coli_status status = check_companions(dir, NULL, coli__container_config(c));
    if (status == COLI_OK)
        status = coli__container_verify(c, coli__engine_describe, progress, user);
    coli__container_close(c);
    return status;
}

/* -- packs ------------------------------------------------------------------------------------- */

static coli_status check_packed(const coli__pack_files *files)
{
    json_t *config;
    if (files->config.n_bytes > COLI_CONFIG_MAX_BYTES)
        return coli__fail(COLI_E_FORMAT, "%s: config.json: expected at most %d bytes, found %llu",
                          files->name, COLI_CONFIG_MAX_BYTES,
                          (unsigned long long)files->config.n_bytes);
    COLI_TRY(coli__json_parse_small("config.json", files->config.data,
                                    (size_t)files->config.n_bytes, COLI_CONFIG_MAX_DEPTH, &config));
    const coli_status status = check_companions(NULL, files, config);
    json_decref(config);
    return status;
}

static coli__pack_job job_of(const char *from, const char *to, coli_progress_fn progress,
                             void *user)
{
    return (coli__pack_job){.from = from,
                            .to = to,
                            .describe = coli__engine_describe,
                            .verify = coli_verify,
                            .check_files = check_packed,
                            .progress = progress,
                            .user = user};
}

coli_status coli_pack(const char *dir, const char *file, coli_progress_fn progress, void *user)
{
    if (!dir || !file) return coli__fail(COLI_E_INVALID, "coli_pack: a path is NULL");
    const coli__pack_job args = job_of(dir, file, progress, user);
    return coli__pack(&args);
}

coli_status coli_pack_verify(const char *file, coli_progress_fn progress, void *user)
{
    if (!file) return coli__fail(COLI_E_INVALID, "coli_pack_verify: file is NULL");
    const coli__pack_job args = job_of(file, NULL, progress, user);
    return coli__pack_verify(&args);
}

coli_status coli_unpack(const char *file, const char *dir, coli_progress_fn progress, void *user)
{
    if (!file || !dir) return coli__fail(COLI_E_INVALID, "coli_unpack: a path is NULL");
    const coli__pack_job args = job_of(file, dir, progress, user);
    return coli__unpack(&args);
}

coli_status coli_write_safetensors(const char *path, const coli_tensor *tensors, uint32_t n_tensor)
{
    if (!path || (!tensors && n_tensor))
        return coli__fail(COLI_E_INVALID, "coli_write_safetensors: an argument is NULL");
    coli__st_out *all = coli__calloc(n_tensor, sizeof *all);
    if (!all) return COLI_E_NOMEM;
    coli_status status = COLI_OK;
    for (uint32_t i = 0; i < n_tensor && status == COLI_OK; i++) {
        const coli_tensor *t = &tensors[i];
        const bool f32 = t->dtype && strcmp(t->dtype, "F32") == 0;
        if (!t->name || (!t->shape && t->rank) || !t->data)
            status = coli__fail(COLI_E_INVALID, "%s: tensor %u: a pointer is NULL", path, i);
        else if (!f32 && !(t->dtype && strcmp(t->dtype, "I32") == 0))
            status = coli__fail(COLI_E_UNSUPPORTED,
                                "%s: tensor %s: dtype %s; F32 and I32 can be written", path,
                                t->name, t->dtype ? t->dtype : "(none)");
        else if (t->rank > COLI_ST_MAX_RANK)
            status = coli__fail(COLI_E_INVALID, "%s: tensor %s: rank %u; at most %d", path, t->name,
                                t->rank, COLI_ST_MAX_RANK);
        if (status != COLI_OK) break;
        all[i] = (coli__st_out){.name = t->name,
                                .dtype = f32 ? COLI_DT_F32 : COLI_DT_I32,
                                .rank = t->rank,
                                .data = t->data};
        for (uint32_t r = 0; r < t->rank; r++) all[i].shape[r] = t->shape[r];
    }
    if (status == COLI_OK) status = coli__st_write(path, all, n_tensor);
    coli__free(all);
    return status;
}
