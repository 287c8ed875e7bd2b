/* gguf_files.c - tokenizer.json and generation_config.json out of a GGUF's metadata.
 *
 *     tokenizer.ggml.tokens       the texts by id; normal ones in the byte alphabet, as in a BPE's
 *                                 vocabulary
 *     tokenizer.ggml.token_type   3: special, 4: added, 5: padding (dropped from the end), else
 *                                 of the vocabulary
 *     tokenizer.ggml.merges       "left right", by rank
 *     tokenizer.ggml.pre          names the pattern that cuts text into pieces; the pattern itself
 *                                 is not in the file
 *
 * What is written is checked like any other tokenizer.json afterwards, by the one who asked for it;
 * so nothing but sizes is checked here.
 *
 * Lost: whether an added token that looks like <|this|> is special (all of them count as special),
 * and lstrip, rstrip, single_word (the family does not use them). */
#include <stdio.h>
#include <string.h>

#include "gguf_model.h"

enum {
    JSON_MAX_BYTES = 64 << 20, // the 35B's has 13 MB
    TYPE_CONTROL = 3,
    TYPE_USER_DEFINED = 4,
    TYPE_UNUSED = 5,
    MAX_STOP = 8,
};

/* -- JSON -------------------------------------------------------------------------------------- */

coli_status coli__gguf_json_text(coli__buf *out, coli__gguf_text text)
{
    COLI_TRY(coli__buf_str(out, "\""));
    uint64_t begin = 0;
    for (uint64_t i = 0; i < text.n_bytes; i++) {
        const uint8_t c = (uint8_t)text.data[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        COLI_TRY(coli__buf_append(out, text.data + begin, (size_t)(i - begin)));
        COLI_TRY(coli__buf_printf(out, "\\u%04x", c));
        begin = i + 1;
    }
    COLI_TRY(coli__buf_append(out, text.data + begin, (size_t)(text.n_bytes - begin)));
    return coli__buf_str(out, "\"");
}

static coli_status check_size(const coli__gguf *g, const coli__buf *out)
{
    if (out->n_bytes <= JSON_MAX_BYTES) return COLI_OK;
    return coli__fail(COLI_E_FORMAT, "%s: keys tokenizer.ggml.*: tokenizer.json would pass %d MiB",
                      coli__gguf_path(g), JSON_MAX_BYTES >> 20);
}

/* -- the tokenizer ----------------------------------------------------------------------------- */

// clang-format off
static const struct {
    const char *pre, *pattern; // as JSON
} patterns[] = {
    {"qwen35",
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}|"
     " ?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"},
    {"qwen2",
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}|"
     " ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"},
};
// clang-format on

static bool text_is(coli__gguf_text t, const char *s)
{
    return t.data && t.n_bytes == strlen(s) && memcmp(t.data, s, (size_t)t.n_bytes) == 0;
}

static coli_status find_pattern(const coli__gguf *g, const char **pattern)
{
    coli__gguf_text model, pre;
    COLI_TRY(coli__gguf_text_or_null(g, "tokenizer.ggml.model", &model));
    COLI_TRY(coli__gguf_text_or_null(g, "tokenizer.ggml.pre", &pre));
    if (!text_is(model, "gpt2"))
        return coli__fail(COLI_E_UNSUPPORTED,
                          "%s: key tokenizer.ggml.model: \"%.*s\"; only gpt2 (byte-level BPE) is "
                          "supported",
                          coli__gguf_path(g), (int)(model.n_bytes < 40 ? model.n_bytes : 40),
                          model.data ? model.data : "");
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++)
        if (text_is(pre, patterns[i].pre)) {
            *pattern = patterns[i].pattern;
            return COLI_OK;
        }
    return coli__fail(
        COLI_E_UNSUPPORTED, "%s: key tokenizer.ggml.pre: \"%.*s\"; only qwen35 and qwen2 are known",
        coli__gguf_path(g), (int)(pre.n_bytes < 40 ? pre.n_bytes : 40), pre.data ? pre.data : "");
}

static coli_status find_strings(const coli__gguf *g, const char *key, const coli__gguf_value **out)
{
    *out = coli__gguf_value_find(g, key);
    if (*out && (*out)->is_array && (*out)->type == COLI_GGUF_STRING) return COLI_OK;
    return coli__fail(COLI_E_FORMAT, "%s: key %s: expected a list of strings", coli__gguf_path(g),
                      key);
}

typedef struct vocabulary {
    const coli__gguf_value *tokens, *types, *merges;
    uint64_t n; // without the padding at the end
} vocabulary;

static int64_t type_of(const vocabulary *v, uint64_t id)
{
    int64_t type = 1;
    if (v->types) coli__gguf_int(v->types, id, &type);
    return type;
}

static coli_status read_vocabulary(const coli__gguf *g, vocabulary *v)
{
    COLI_TRY(find_strings(g, "tokenizer.ggml.tokens", &v->tokens));
    COLI_TRY(find_strings(g, "tokenizer.ggml.merges", &v->merges));
    v->types = coli__gguf_value_find(g, "tokenizer.ggml.token_type");
    v->n = v->tokens->n;
    int64_t type;
    if (v->types && (!v->types->is_array || v->types->n != v->n ||
                     (v->n > 0 && !coli__gguf_int(v->types, 0, &type))))
        return coli__fail(COLI_E_FORMAT,
                          "%s: key tokenizer.ggml.token_type: expected a list of %llu numbers",
                          coli__gguf_path(g), (unsigned long long)v->n);
    while (v->n > 0 && type_of(v, v->n - 1) == TYPE_UNUSED) v->n--;
    return COLI_OK;
}

static coli_status write_added(const coli__gguf *g, const vocabulary *v, coli__buf *out)
{
    const uint8_t *at = v->tokens->data;
    const char *separator = "";
    for (uint64_t id = 0; id < v->n; id++) {
        const coli__gguf_text text = coli__gguf_string(&at);
        const int64_t type = type_of(v, id);
        if (type != TYPE_CONTROL && type != TYPE_USER_DEFINED) continue;
        COLI_TRY(coli__buf_printf(out, "%s\n{\"id\":%llu,\"content\":", separator,
                                  (unsigned long long)id));
        COLI_TRY(coli__gguf_json_text(out, text));
        COLI_TRY(coli__buf_printf(out,
                                  ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                                  "\"normalized\":false,\"special\":%s}",
                                  type == TYPE_CONTROL ? "true" : "false"));
        COLI_TRY(check_size(g, out));
        separator = ",";
    }
    return COLI_OK;
}

static coli_status write_model(const coli__gguf *g, const vocabulary *v, coli__buf *out)
{
    const uint8_t *at = v->tokens->data;
    for (uint64_t id = 0; id < v->n; id++) {
        COLI_TRY(coli__buf_str(out, id ? ",\n" : "\n"));
        COLI_TRY(coli__gguf_json_text(out, coli__gguf_string(&at)));
        COLI_TRY(coli__buf_printf(out, ":%llu", (unsigned long long)id));
        COLI_TRY(check_size(g, out));
    }
    COLI_TRY(coli__buf_str(out, "},\n\"merges\":["));
    at = v->merges->data;
    for (uint64_t i = 0; i < v->merges->n; i++) {
        COLI_TRY(coli__buf_str(out, i ? ",\n" : "\n"));
        COLI_TRY(coli__gguf_json_text(out, coli__gguf_string(&at)));
        COLI_TRY(check_size(g, out));
    }
    return coli__buf_str(out, "]}}\n");
}

coli_status coli__gguf_tokenizer(const coli__gguf *g, coli__buf *out, bool *found)
{
    *found = coli__gguf_value_find(g, "tokenizer.ggml.model") != NULL;
    if (!*found) return COLI_OK;
    const char *pattern = NULL;
    vocabulary v = {0};
    COLI_TRY(find_pattern(g, &pattern));
    COLI_TRY(read_vocabulary(g, &v));
    COLI_TRY(coli__buf_str(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n"
                                "\"added_tokens\":["));
    COLI_TRY(write_added(g, &v, out));
    COLI_TRY(coli__buf_printf(
        out,
        "],\n\"normalizer\":{\"type\":\"NFC\"},\n"
        "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[\n"
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Isolated\","
        "\"invert\":false},\n"
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
        "\"use_regex\":false}]},\n"
        "\"post_processor\":null,\n"
        "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,"
        "\"use_regex\":true},\n"
        "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
        "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
        "\"byte_fallback\":false,\"ignore_merges\":false,\n\"vocab\":{",
        pattern));
    return write_model(g, &v, out);
}

/* -- how to end and how to sample -------------------------------------------------------------- */

typedef struct stops {
    int64_t id[MAX_STOP];
    uint32_t n;
} stops;

static void add_stop(stops *s, int64_t id)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->id[i] == id) return;
    if (s->n < MAX_STOP) s->id[s->n++] = id;
}

/* The token that ends a turn is named by a key; the one that ends a text, which the family's
 * generation_config.json lists as well, only by its text. */
static void find_stops(const coli__gguf *g, stops *s)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const coli__gguf_value *v = coli__gguf_value_find(g, keys[i]);
        int64_t id;
        if (v && !v->is_array && coli__gguf_int(v, 0, &id)) add_stop(s, id);
    }
    const coli__gguf_value *tokens = coli__gguf_value_find(g, "tokenizer.ggml.tokens");
    if (!tokens || !tokens->is_array || tokens->type != COLI_GGUF_STRING) return;
    const uint8_t *at = tokens->data;
    for (uint64_t id = 0; id < tokens->n; id++) {
        const coli__gguf_text text = coli__gguf_string(&at);
        if (text_is(text, "<|im_end|>") || text_is(text, "<|endoftext|>")) add_stop(s, (int64_t)id);
    }
}

coli_status coli__gguf_generation(const coli__gguf *g, coli__buf *out)
{
    static const char *const sampling[][2] = {
        {"general.sampling.temp", "temperature"},
        {"general.sampling.top_k", "top_k"},
        {"general.sampling.top_p", "top_p"},
        {"general.sampling.min_p", "min_p"},
        {"general.sampling.penalty_repeat", "repetition_penalty"},
    };
    stops s = {0};
    find_stops(g, &s);
    COLI_TRY(coli__buf_str(out, "{\"eos_token_id\": ["));
    for (uint32_t i = 0; i < s.n; i++)
        COLI_TRY(coli__buf_printf(out, "%s%lld", i ? ", " : "", (long long)s.id[i]));
    COLI_TRY(coli__buf_str(out, "]"));
    for (size_t i = 0; i < sizeof sampling / sizeof sampling[0]; i++) {
        double value;
        if (!coli__gguf_value_find(g, sampling[i][0])) continue;
        COLI_TRY(coli__gguf_number_or(g, sampling[i][0], 0, &value));
        COLI_TRY(coli__buf_printf(out, ", \"%s\": ", sampling[i][1]));
        COLI_TRY(coli__buf_number(out, value, 7));
    }
    return coli__buf_str(out, "}\n");
}
