/* small_tokenizer.h - a tokenizer of 269 tokens, as the text of its tokenizer.json, so that a test
 * can change one place of it and see what happens.
 *
 *     0 to 255   the bytes, in the order of the byte alphabet's characters
 *     256 he  257 ll  258 hell  259 hello  260 Ġhello  261 <|end|> (also a merge's result)  262 nd
 *     265 <|e  266 <|  267 <|end  268 |>
 *     added      261 <|end|> special   263 <think>   264 <think>!  (the longer one wins) */
#ifndef COLI_TEST_SMALL_TOKENIZER_H
#define COLI_TEST_SMALL_TOKENIZER_H

#include <stdlib.h>
#include <string.h>

#include "libcoli/src/model/tokenizer.h"

#define SMALL_PATTERN                                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}|"     \
    " ?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

#define SMALL_ADDED(id, text, special)                                                             \
    "{\"id\":" #id ",\"content\":\"" text "\",\"single_word\":false,\"lstrip\":false,"             \
    "\"rstrip\":false,\"normalized\":false,\"special\":" special "}"

// clang-format off
static const char small_head[] =
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":["
    SMALL_ADDED(261, "<|end|>", "true") ","
    SMALL_ADDED(263, "<think>", "false") ","
    SMALL_ADDED(264, "<think>!", "false") "],"
    "\"normalizer\":{\"type\":\"NFC\"},"
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" SMALL_PATTERN "\"},"
    "\"behavior\":\"Isolated\",\"invert\":false},"
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
    "\"use_regex\":false}]},"
    "\"post_processor\":null,"
    "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,"
    "\"use_regex\":true},"
    "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
    "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
    "\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{";

static const char small_tail[] =
    "\"he\":256,\"ll\":257,\"hell\":258,\"hello\":259,\"\xC4\xA0hello\":260,\"<|end|>\":261,"
    "\"nd\":262,\"<|e\":265,\"<|\":266,\"<|end\":267,\"|>\":268},"
    "\"merges\":[\"h e\",\"l l\",\"he ll\",[\"hell\",\"o\"],\"\xC4\xA0 hello\",\"n d\","
    "\"< |\",\"<| e\",\"<|e nd\",\"| >\",\"<|end |>\"]}}";
// clang-format on

/* The text; release with coli__buf_finish.  Ids of bytes are in the order of the alphabet's
 * characters: byte b has id b - 33 for b of 33 to 126, and so on. */
static inline coli_status small_tokenizer_text(coli__buf *out)
{
    COLI_TRY(coli__buf_str(out, small_head));
    int id = 0;
    for (int c = 0x21; c < 0x144; c++) { // printable ASCII, Latin 1, then U+0100 to U+0143
        if ((c > 0x7E && c < 0xA1) || c == 0xAD) continue;
        COLI_TRY(coli__buf_str(out, "\""));
        if (c == '"' || c == '\\') COLI_TRY(coli__buf_str(out, "\\"));
        if (c < 0x80)
            COLI_TRY(coli__buf_printf(out, "%c", c));
        else
            COLI_TRY(coli__buf_printf(out, "%c%c", 0xC0 | c >> 6, 0x80 | (c & 0x3F)));
        COLI_TRY(coli__buf_printf(out, "\":%d,", id++));
    }
    return coli__buf_str(out, small_tail);
}

/* Replace the first `from` in the text (it must occur) by `to`. */
static inline coli_status small_replace(coli__buf *text, const char *from, const char *to)
{
    const char *at = strstr(text->data, from);
    if (!at) return coli__fail(COLI_E_NOTFOUND, "the small tokenizer has no %s", from);
    coli__buf changed = {0};
    COLI_TRY(coli__buf_append(&changed, text->data, (size_t)(at - text->data)));
    COLI_TRY(coli__buf_str(&changed, to));
    COLI_TRY(coli__buf_str(&changed, at + strlen(from)));
    coli__buf_finish(text);
    *text = changed;
    return COLI_OK;
}

/* Parse and open a text; config may be NULL. */
static inline coli_status small_open_text(const char *text, size_t n_bytes, const char *config,
                                          coli__tok **out)
{
    *out = NULL;
    json_t *root = NULL, *extra = NULL;
    coli_status status = coli__json_parse("tokenizer.json", text, n_bytes, 32, &root);
    if (status == COLI_OK && config)
        status = coli__json_parse("tokenizer_config.json", config, strlen(config), 32, &extra);
    if (status == COLI_OK)
        status = coli__tok_from_json("tokenizer.json", root, "tokenizer_config.json", extra, out);
    json_decref(root);
    json_decref(extra);
    return status;
}

static inline coli_status small_open(coli__tok **out)
{
    coli__buf text = {0};
    coli_status status = small_tokenizer_text(&text);
    if (status == COLI_OK) status = small_open_text(text.data, text.n_bytes, NULL, out);
    coli__buf_finish(&text);
    return status;
}

#endif
