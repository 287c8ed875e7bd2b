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

static coli_status read_generation(const char *dir, const json_t *config, uint32_t n_vocab,
                                   coli__companions *c)
{
    c->sampling = coli__sampling_neutral;
    char *path;
    json_t *own;
    COLI_TRY(coli__path_join(dir, "generation_config.json", &path));
    coli_status status = coli__json_read(path, 1 << 20, 16, &own);
    if (status == COLI_OK) {
        if (!json_is_object(own)) status = coli__fail(COLI_E_FORMAT, "%s: not a JSON object", path);
        if (status == COLI_OK) status = read_stop_ids(c, n_vocab, path, own);
        if (status == COLI_OK) status = read_sampling(c, path, own);
        if (status == COLI_OK && coli__sampling_check(&c->sampling) != COLI_OK)
            status = coli__fail_in(COLI_E_FORMAT, "%s", path);
        json_decref(own);
    } else if (status == COLI_E_NOTFOUND) { // optional: then the model's own config names the end
        const json_t *text = json_object_get(config, "text_config"); // a wrapped model's
        const bool inner = json_object_get(text, "eos_token_id") != NULL;
        status = read_stop_ids(c, n_vocab, "config.json", inner ? text : config);
    }
    coli__free(path);
    return status;
}

/* -- tokenizer --------------------------------------------------------------------------------- */

static coli_status read_tokenizer(const char *dir, uint32_t n_vocab, coli__companions *c)
{
    char *tokenizer = NULL, *config = NULL;
    coli_status status = coli__path_join(dir, "tokenizer.json", &tokenizer);
    if (status == COLI_OK) status = coli__path_join(dir, "tokenizer_config.json", &config);
    if (status == COLI_OK && coli__path_exists(tokenizer))
        status = coli__tok_open(tokenizer, config, &c->tok);
    if (status == COLI_OK && c->tok && coli__tok_n_id(c->tok) > n_vocab)
        status = coli__fail(COLI_E_FORMAT, "%s: %u ids, but the model has %u rows", tokenizer,
                            coli__tok_n_id(c->tok), n_vocab);
    coli__free(tokenizer);
    coli__free(config);
    c->think_open_id = c->tok ? coli__tok_added_id(c->tok, "<think>") : -1;
    c->think_close_id = c->tok ? coli__tok_added_id(c->tok, "</think>") : -1;
    return status;
}

coli_status coli__companions_read(const char *dir, const json_t *config, uint32_t n_vocab,
                                  coli__companions *out)
{
    *out = (coli__companions){0};
    coli_status status = read_tokenizer(dir, n_vocab, out);
    if (status == COLI_OK) status = read_generation(dir, config, n_vocab, out);
    if (status != COLI_OK) coli__companions_finish(out);
    return status;
}

void coli__companions_finish(coli__companions *c)
{
    coli__tok_close(c->tok);
    *c = (coli__companions){0};
}
