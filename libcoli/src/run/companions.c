/* companions.c - see companions.h. */
#include "companions.h"

#include "../base/file.h"

/* -- sampling ---------------------------------------------------------------------------------- */

const coli_sampling coli__sampling_neutral = {
    .struct_size = sizeof(coli_sampling), .temperature = 1, .top_p = 1, .repetition_penalty = 1};

coli_status coli__sampling_check(const coli_sampling *p)
{
    const bool good = p->temperature >= 0 && p->temperature <= 100 && p->top_p > 0 &&
                      p->top_p <= 1 && p->min_p >= 0 && p->min_p <= 1 &&
                      p->repetition_penalty > 0 && p->repetition_penalty <= 100 &&
                      p->presence_penalty >= -100 && p->presence_penalty <= 100;
    if (good) return COLI_OK;
    return coli__fail(
        COLI_E_INVALID,
        "sampling: expected temperature 0..100, top_p above 0 to 1, min_p 0..1, "
        "repetition_penalty above 0 to 100, presence_penalty -100..100; found %g, %g, %g, %g, %g",
        (double)p->temperature, (double)p->top_p, (double)p->min_p, (double)p->repetition_penalty,
        (double)p->presence_penalty);
}

/* -- generation_config.json -------------------------------------------------------------------- */

static coli_status read_stop_ids(coli__companions *c, uint32_t n_vocab, const char *what,
                                 const json_t *config)
{
    const json_t *eos = json_object_get(config, "eos_token_id");
    if (!eos || json_is_null(eos)) return COLI_OK;
    const size_t n = json_is_array(eos) ? json_array_size(eos) : 1;
    const size_t most = COLI_MAX_STOP_ID;
    if (n > most)
        return coli__fail(COLI_E_FORMAT, "%s: eos_token_id: at most %zu ids, found %zu", what, most,
                          n);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(eos) ? json_array_get(eos, i) : eos;
        const json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value >= n_vocab)
            return coli__fail(COLI_E_FORMAT, "%s: eos_token_id: expected ids below %u", what,
                              n_vocab);
        c->stop_ids[c->n_stop_id++] = (int32_t)value;
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

static coli_status read_sampling(coli__companions *c, const char *what, const json_t *config)
{
    coli_sampling *s = &c->sampling;
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

static coli_status use_generation(const char *what, const json_t *own, const json_t *config,
                                  uint32_t n_vocab, coli__companions *c)
{
    c->sampling = coli__sampling_neutral;
    if (!own) { // optional: then the model's own config names the end
        const json_t *text = json_object_get(config, "text_config"); // a wrapped model's
        const bool inner = json_object_get(text, "eos_token_id") != NULL;
        return read_stop_ids(c, n_vocab, "config.json", inner ? text : config);
    }
    if (!json_is_object(own)) return coli__fail(COLI_E_FORMAT, "%s: not a JSON object", what);
    COLI_TRY(read_stop_ids(c, n_vocab, what, own));
    COLI_TRY(read_sampling(c, what, own));
    if (coli__sampling_check(&c->sampling) == COLI_OK) return COLI_OK;
    return coli__fail_in(COLI_E_FORMAT, "%s", what);
}

/* -- tokenizer --------------------------------------------------------------------------------- */

static coli_status use_tokenizer(const char *what, json_t *tokenizer, const char *config_what,
                                 json_t *config, uint32_t n_vocab, coli__companions *c)
{
    c->think_open_id = c->think_close_id = -1;
    if (!tokenizer) return COLI_OK;
    COLI_TRY(coli__tok_from_json(what, tokenizer, config_what, config, &c->tok));
    if (coli__tok_n_id(c->tok) > n_vocab)
        return coli__fail(COLI_E_FORMAT, "%s: %u ids, but the model has %u rows", what,
                          coli__tok_n_id(c->tok), n_vocab);
    c->think_open_id = coli__tok_added_id(c->tok, "<think>");
    c->think_close_id = coli__tok_added_id(c->tok, "</think>");
    return COLI_OK;
}

/* -- the files --------------------------------------------------------------------------------- */

enum { TOKENIZER, TOKENIZER_CONFIG, GENERATION, N_FILE };

static const struct {
    const char *name;
    uint64_t max_bytes;
    int max_depth;
} limits[N_FILE] = {
    [TOKENIZER] = {"tokenizer.json", COLI_TOK_MAX_BYTES, COLI_TOK_MAX_DEPTH},
    [TOKENIZER_CONFIG] = {"tokenizer_config.json", COLI_TOK_CONFIG_MAX_BYTES, COLI_TOK_MAX_DEPTH},
    [GENERATION] = {"generation_config.json", 1 << 20, 16},
};

typedef struct parsed {
    char *path[N_FILE]; // for messages
    json_t *json[N_FILE];
} parsed;

static coli_status read_file(int file, const char *path, json_t **out)
{
    const coli_status status =
        coli__json_read(path, limits[file].max_bytes, limits[file].max_depth, out);
    return status == COLI_E_NOTFOUND ? COLI_OK : status;
}

static coli_status parse_file(int file, const char *path, const coli__pack_span *span, json_t **out)
{
    const uint64_t most = limits[file].max_bytes;
    if (!span->data) return COLI_OK;
    if (span->n_bytes <= most)
        return coli__json_parse(path, span->data, (size_t)span->n_bytes, limits[file].max_depth,
                                out);
    return coli__fail(COLI_E_FORMAT, "%s: expected at most %llu bytes, found %llu", path,
                      (unsigned long long)most, (unsigned long long)span->n_bytes);
}

/* Of the directory, or in memory: packed is NULL or has N_FILE. */
static coli_status read_all(const char *dir, const coli__pack_span *const *packed, parsed *p)
{
    for (int i = 0; i < N_FILE; i++) {
        COLI_TRY(coli__path_join(dir, limits[i].name, &p->path[i]));
        COLI_TRY(packed ? parse_file(i, p->path[i], packed[i], &p->json[i])
                        : read_file(i, p->path[i], &p->json[i]));
    }
    return COLI_OK;
}

static coli_status use(const parsed *p, const json_t *config, uint32_t n_vocab,
                       coli__companions *out)
{
    COLI_TRY(use_tokenizer(p->path[TOKENIZER], p->json[TOKENIZER], p->path[TOKENIZER_CONFIG],
                           p->json[TOKENIZER_CONFIG], n_vocab, out));
    return use_generation(p->path[GENERATION], p->json[GENERATION], config, n_vocab, out);
}

static coli_status read_and_use(const char *dir, const coli__pack_span *const *packed,
                                const json_t *config, uint32_t n_vocab, coli__companions *out)
{
    parsed p = {{NULL}, {NULL}};
    *out = (coli__companions){0};
    coli_status status = read_all(dir, packed, &p);
    if (status == COLI_OK) status = use(&p, config, n_vocab, out);
    for (int i = 0; i < N_FILE; i++) {
        coli__free(p.path[i]);
        json_decref(p.json[i]);
    }
    if (status != COLI_OK) coli__companions_finish(out);
    return status;
}

coli_status coli__companions_read(const char *dir, const json_t *config, uint32_t n_vocab,
                                  coli__companions *out)
{
    return read_and_use(dir, NULL, config, n_vocab, out);
}

coli_status coli__companions_of(const coli__pack_files *files, const json_t *config,
                                uint32_t n_vocab, coli__companions *out)
{
    const coli__pack_span *const packed[N_FILE] = {[TOKENIZER] = &files->tokenizer,
                                                   [TOKENIZER_CONFIG] = &files->tokenizer_config,
                                                   [GENERATION] = &files->generation};
    return read_and_use(files->name, packed, config, n_vocab, out);
}

void coli__companions_finish(coli__companions *c)
{
    coli__tok_close(c->tok);
    *c = (coli__companions){0};
}
