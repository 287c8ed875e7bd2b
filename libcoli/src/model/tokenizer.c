/* tokenizer.c - byte-level BPE: tokenizer.json into tables, text into ids, ids into text.
 *
 * The way of a text:
 *
 *     <|im_start|>user\ncafé's <|im_end|>
 *     [added    ][text            ][added  ]   1  added tokens, leftmost and longest, out of a trie
 *                user\ncafé's                  2  NFC of each stretch between them (nfc.c)
 *                user|\n|café|'s|              3  the patterns of the file (split.c)
 *                u s e r -> us er -> user      4  merges in each piece, lowest rank first
 *
 * 4 is a heap of (rank, position) over a doubly linked list of symbols: O(n log n) for a piece of n
 * bytes, whatever the bytes.  An entry whose two symbols have changed since it was pushed is stale
 * and is dropped when it comes up; a pair's rank never changes, so the key alone identifies it.
 * Equal ranks are the same pair, so the leftmost comes first and the result is the reference's.
 *
 * A person's words must never become a control token.  Two rules see to that:
 *     (1) an added token is recognised only where it touches no `plain` span; the text around it
 *         is still normalised and split as a whole, so without such a token spans change nothing;
 *     (2) a merge that makes an added token is left out of the tables.  No reachable merge is lost:
 *         the reference cuts text that holds an added token there, before it merges.
 *
 * What the file must satisfy, checked once in open: every id below the number of tokens has exactly
 * one token; vocabulary texts are written in the byte alphabet (each of the 256 bytes as a
 * printable character) unless they are added tokens; each byte that UTF-8 text can hold is a token;
 * merges name tokens of the vocabulary.  Members whose value would change the result in a way that
 * is not implemented are refused by name, so that no file is silently misread.
 *
 * 248,077 tokens and 247,556 merges load in half a second, two thirds of it in the JSON parser. */
#include "tokenizer.h"

#include <string.h>
#include <xxhash.h>

#include "nfc.h"
#include "split.h"
#include "../base/file.h"

#define NONE UINT32_MAX

enum {
    MAX_ID = 1 << 24,
    MAX_ADDED_BYTES = 1024, // bounds the trie walk at one position, hence keeps encoding linear
    MAX_SPLITS = 16,
    MAX_TEXT_BYTES = 1 << 30 // positions are 32-bit and a piece takes 28 bytes of work for each
};

enum { TOKEN_DEFINED = 1, TOKEN_FOREIGN = 2, TOKEN_ADDED = 4, TOKEN_SPECIAL = 8 };

typedef struct token {
    uint32_t begin, n_bytes; // in coli__tok.bytes
    uint32_t flags;
} token;

typedef struct merge {
    uint32_t left, right, out;
} merge;

typedef struct trie_node {
    uint32_t child, sibling; // NONE at the end
    uint32_t id;             // of the added token that ends here, or NONE
    uint8_t byte;
} trie_node;

struct coli__tok { // immutable after open
    coli__buf bytes;
    token *tokens; // (cap_id)
    uint32_t n_id, cap_id;
    uint32_t *text_slot; // (text_mask + 1) ids by their bytes, NONE where empty
    uint32_t text_mask;
    merge *merges;       // by rank
    uint32_t *pair_slot; // (pair_mask + 1) ranks by pair of ids, NONE where empty
    uint32_t pair_mask;
    uint32_t byte_id[256];
    trie_node *trie;
    uint32_t n_node, cap_node;
    uint32_t trie_root[256];
    coli__split *splits[MAX_SPLITS];
    uint32_t n_split;
    bool nfc, ignore_merges;
};

/* ---- small things ---------------------------------------------------------------------------- */

/* A piece of the file for a message: short, and without control characters. */
typedef struct shown {
    char text[68];
} shown;

static shown show(const char *text)
{
    shown s;
    size_t n = strlen(text);
    const bool cut = n > 60;
    if (cut) {
        n = 60;
        while (((uint8_t)text[n] & 0xC0) == 0x80) n--;
    }
    for (size_t i = 0; i < n; i++) {
        const uint8_t c = (uint8_t)text[i];
        s.text[i] = c < 0x20 || c == 0x7F ? '?' : text[i];
    }
    memcpy(s.text + n, cut ? "..." : "", cut ? 4 : 1);
    return s;
}

static uint32_t table_mask(size_t n_entry) // at most half full
{
    uint32_t n = 16;
    while (n < 2 * n_entry) n *= 2;
    return n - 1;
}

static uint32_t *table_create(size_t n_entry, uint32_t *mask)
{
    *mask = table_mask(n_entry);
    uint32_t *slots = coli__calloc((size_t)*mask + 1, sizeof *slots);
    if (slots) memset(slots, 0xFF, ((size_t)*mask + 1) * sizeof *slots);
    return slots;
}

/* ---- tables by text and by pair -------------------------------------------------------------- */

static uint32_t *text_slot(const coli__tok *tok, const char *bytes, size_t n_bytes)
{
    uint32_t at = (uint32_t)XXH3_64bits(bytes, n_bytes) & tok->text_mask;
    for (;; at = (at + 1) & tok->text_mask) {
        uint32_t *slot = &tok->text_slot[at];
        if (*slot == NONE) return slot;
        const token *t = &tok->tokens[*slot];
        if (t->n_bytes == n_bytes && memcmp(tok->bytes.data + t->begin, bytes, n_bytes) == 0)
            return slot;
    }
}

static uint32_t *pair_slot(const coli__tok *tok, uint32_t left, uint32_t right)
{
    const uint64_t mixed = ((uint64_t)left << 32 | right) * UINT64_C(0x9E3779B97F4A7C15);
    uint32_t at = (uint32_t)(mixed >> 32) & tok->pair_mask;
    for (;; at = (at + 1) & tok->pair_mask) {
        uint32_t *slot = &tok->pair_slot[at];
        if (*slot == NONE) return slot;
        const merge *m = &tok->merges[*slot];
        if (m->left == left && m->right == right) return slot;
    }
}

/* ---- the byte alphabet ----------------------------------------------------------------------- */

/* Printable bytes stand for themselves; the 68 others, in order, are written U+0100 to U+0143. */
static bool byte_is_printable(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

enum { N_ALPHABET = 0x144 };

static void alphabet_fill(int16_t byte_of[N_ALPHABET])
{
    memset(byte_of, 0xFF, N_ALPHABET * sizeof *byte_of);
    int next = 0x100;
    for (int byte = 0; byte < 256; byte++)
        byte_of[byte_is_printable((uint32_t)byte) ? byte : next++] = (int16_t)byte;
}

/* Append the bytes that a vocabulary text stands for; false, with nothing appended, when a
 * character is not of the alphabet.  room holds strlen(text) bytes. */
static bool alphabet_decode(const int16_t byte_of[N_ALPHABET], const char *text, size_t n_bytes,
                            char *room, size_t *n_out)
{
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        uint32_t point = (uint8_t)text[i];
        if (point >= 0x80) { // two-byte sequences cover the alphabet; others are refused
            if (point >= 0xE0) return false;
            point = (point & 0x1F) << 6 | ((uint8_t)text[++i] & 0x3F);
        }
        if (point >= N_ALPHABET || byte_of[point] < 0) return false;
        room[n++] = (char)byte_of[point];
    }
    *n_out = n;
    return true;
}

/* ---- opening: members that must have a known value ------------------------------------------- */

typedef struct loader {
    coli__tok *tok;
    const char *path; // of the file being read, for messages
    coli__buf room;   // scratch for decoded texts
    int16_t byte_of[N_ALPHABET];
    size_t n_vocab; // tokens of the vocabulary
} loader;

static coli_status malformed(const loader *l, const char *what)
{
    return coli__fail(COLI_E_FORMAT, "%s: %s", l->path, what);
}

static coli_status unknown(const loader *l, const char *member, const json_t *value)
{
    const char *text = json_string_value(value);
    return coli__fail(COLI_E_UNSUPPORTED, "%s: %s: %s is not known", l->path, member,
                      text ? show(text).text : "this value");
}

static bool is_null(const json_t *value)
{
    return !value || json_is_null(value);
}

/* The object's member is absent, null, "" or the given default. */
static coli_status expect_off(const loader *l, const json_t *object, const char *member,
                              bool fallback)
{
    const json_t *value = json_object_get(object, member);
    const bool empty = json_is_string(value) && json_string_length(value) == 0;
    const bool zero = json_is_number(value) && json_number_value(value) == 0;
    if (is_null(value) || empty || zero || json_is_boolean(value)) {
        if (!json_is_boolean(value) || json_boolean_value(value) == fallback) return COLI_OK;
    }
    return coli__fail(COLI_E_UNSUPPORTED, "%s: %s: only %s is known", l->path, member,
                      fallback ? "true" : "false or null");
}

static const char *type_of(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "";
}

static coli_status read_normalizer(loader *l, const json_t *root)
{
    const json_t *normalizer = json_object_get(root, "normalizer");
    if (is_null(normalizer)) return COLI_OK;
    l->tok->nfc = strcmp(type_of(normalizer), "NFC") == 0;
    return l->tok->nfc ? COLI_OK : unknown(l, "normalizer", json_object_get(normalizer, "type"));
}

static coli_status read_split(loader *l, const json_t *split)
{
    coli__tok *tok = l->tok;
    const json_t *behavior = json_object_get(split, "behavior");
    if (!json_is_string(behavior) || strcmp(json_string_value(behavior), "Isolated") != 0)
        return unknown(l, "pre_tokenizer: Split: behavior", behavior);
    COLI_TRY(expect_off(l, split, "invert", false));
    const char *regex =
        json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex"));
    if (!regex) return unknown(l, "pre_tokenizer: Split: pattern without Regex", NULL);
    if (tok->n_split == MAX_SPLITS)
        return coli__fail(COLI_E_UNSUPPORTED, "%s: pre_tokenizer: more than %d splits", l->path,
                          MAX_SPLITS);
    COLI_TRY(coli__split_compile(l->path, regex, &tok->splits[tok->n_split]));
    tok->n_split++;
    return COLI_OK;
}

static coli_status read_byte_level(const loader *l, const json_t *step)
{
    if (strcmp(type_of(step), "ByteLevel") != 0)
        return unknown(l, "pre_tokenizer: type", json_object_get(step, "type"));
    COLI_TRY(expect_off(l, step, "add_prefix_space", false));
    if (!json_is_false(json_object_get(step, "use_regex"))) // its default is true
        return coli__fail(COLI_E_UNSUPPORTED,
                          "%s: pre_tokenizer: ByteLevel: use_regex: only false is known", l->path);
    return COLI_OK;
}

/* Splits, then ByteLevel; alone or in a Sequence. */
static coli_status read_pre_tokenizer(loader *l, const json_t *root)
{
    const json_t *top = json_object_get(root, "pre_tokenizer");
    if (!json_is_object(top)) return malformed(l, "pre_tokenizer is missing");
    if (strcmp(type_of(top), "Sequence") != 0) return read_byte_level(l, top);
    const json_t *steps = json_object_get(top, "pretokenizers");
    const size_t n = json_array_size(steps);
    if (n == 0) return malformed(l, "pre_tokenizer: pretokenizers is missing or empty");
    for (size_t i = 0; i + 1 < n; i++) {
        const json_t *step = json_array_get(steps, i);
        if (strcmp(type_of(step), "Split") != 0)
            return unknown(l, "pre_tokenizer: type before the last step",
                           json_object_get(step, "type"));
        COLI_TRY(read_split(l, step));
    }
    return read_byte_level(l, json_array_get(steps, n - 1));
}

static coli_status check_rest(const loader *l, const json_t *root, const json_t *model)
{
    const json_t *decoder = json_object_get(root, "decoder");
    if (strcmp(type_of(decoder), "ByteLevel") != 0)
        return unknown(l, "decoder", json_object_get(decoder, "type"));
    const json_t *post = json_object_get(root, "post_processor");
    if (!is_null(post) && strcmp(type_of(post), "ByteLevel") != 0)
        return unknown(l, "post_processor", json_object_get(post, "type"));
    if (strcmp(type_of(model), "BPE") != 0)
        return unknown(l, "model: type", json_object_get(model, "type"));
    static const char *const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                      "byte_fallback"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        COLI_TRY(expect_off(l, model, off[i], false));
    return coli__json_bool_or(l->path, model, "ignore_merges", false, &l->tok->ignore_merges);
}

/* ---- opening: the vocabulary ----------------------------------------------------------------- */

/* Give the id its bytes.  It must be below the number of tokens, or an id is missing elsewhere. */
static coli_status define(loader *l, const char *text, json_int_t id, const char *bytes,
                          size_t n_bytes, uint32_t flags)
{
    coli__tok *tok = l->tok;
    if (id < 0 || id > MAX_ID)
        return coli__fail(COLI_E_FORMAT, "%s: token \"%s\": id %lld is not within 0 to %d", l->path,
                          show(text).text, (long long)id, MAX_ID);
    if (id >= tok->cap_id)
        return coli__fail(COLI_E_FORMAT,
                          "%s: token \"%s\": id %lld leaves a gap: there are %u tokens", l->path,
                          show(text).text, (long long)id, tok->cap_id);
    token *t = &tok->tokens[id];
    if (t->flags)
        return coli__fail(COLI_E_FORMAT, "%s: token \"%s\": id %lld is already taken", l->path,
                          show(text).text, (long long)id);
    *t = (token){(uint32_t)tok->bytes.n_bytes, (uint32_t)n_bytes, flags | TOKEN_DEFINED};
    if (id >= tok->n_id) tok->n_id = (uint32_t)id + 1;
    return coli__buf_append(&tok->bytes, bytes, n_bytes);
}

static coli_status room_for(loader *l, size_t n_bytes)
{
    l->room.n_bytes = 0;
    if (n_bytes < l->room.cap_bytes) return COLI_OK;
    char *grown = coli__realloc(l->room.data, n_bytes + 256, 1);
    if (!grown) return COLI_E_NOMEM;
    l->room.data = grown;
    l->room.cap_bytes = n_bytes + 256;
    return COLI_OK;
}

static coli_status read_vocab(loader *l, json_t *vocab)
{
    coli__tok *tok = l->tok;
    const char *text;
    json_t *id;
    json_object_foreach(vocab, text, id)
    {
        if (!json_is_integer(id))
            return coli__fail(COLI_E_FORMAT, "%s: token \"%s\": the id is not a whole number",
                              l->path, show(text).text);
        const size_t n_text = strlen(text);
        COLI_TRY(room_for(l, n_text));
        size_t n_bytes = 0;
        const json_int_t number = json_integer_value(id);
        if (!alphabet_decode(l->byte_of, text, n_text, l->room.data, &n_bytes)) {
            COLI_TRY(define(l, text, number, text, n_text, TOKEN_FOREIGN));
            continue;
        }
        if (n_bytes == 0) return malformed(l, "a token of the vocabulary is empty");
        COLI_TRY(define(l, text, number, l->room.data, n_bytes, 0));
        *text_slot(tok, l->room.data, n_bytes) = (uint32_t)number;
    }
    return COLI_OK;
}

/* ---- opening: added tokens ------------------------------------------------------------------- */

static uint32_t trie_child(const coli__tok *tok, uint32_t node, uint8_t byte)
{
    uint32_t child = node == NONE ? tok->trie_root[byte] : tok->trie[node].child;
    while (child != NONE && tok->trie[child].byte != byte) child = tok->trie[child].sibling;
    return child;
}

static coli_status trie_insert(coli__tok *tok, const char *text, size_t n_bytes, uint32_t id)
{
    uint32_t node = NONE;
    for (size_t i = 0; i < n_bytes; i++) {
        const uint8_t byte = (uint8_t)text[i];
        uint32_t child = trie_child(tok, node, byte);
        if (child == NONE) {
            if (tok->n_node == tok->cap_node) {
                const uint32_t cap = tok->cap_node * 2 + 256;
                trie_node *grown = coli__realloc(tok->trie, cap, sizeof *grown);
                if (!grown) return COLI_E_NOMEM;
                tok->trie = grown;
                tok->cap_node = cap;
            }
            child = tok->n_node++;
            uint32_t *first = node == NONE ? &tok->trie_root[byte] : &tok->trie[node].child;
            tok->trie[child] = (trie_node){NONE, *first, NONE, byte};
            *first = child;
        }
        node = child;
    }
    tok->trie[node].id = id;
    return COLI_OK;
}

static uint32_t trie_find(const coli__tok *tok, const char *text, size_t n_bytes)
{
    uint32_t node = NONE;
    for (size_t i = 0; i < n_bytes; i++)
        if ((node = trie_child(tok, node, (uint8_t)text[i])) == NONE) return NONE;
    return node == NONE ? NONE : tok->trie[node].id;
}

typedef struct added {
    const char *text;
    size_t n_bytes;
    json_int_t id;
    bool special;
} added;

static coli_status check_added(const loader *l, const json_t *object, added *a)
{
    a->text = json_string_value(json_object_get(object, "content"));
    if (!a->text) return malformed(l, "an added token has no content");
    a->n_bytes = strlen(a->text);
    if (a->n_bytes == 0 || a->n_bytes > MAX_ADDED_BYTES)
        return coli__fail(COLI_E_FORMAT,
                          "%s: added token %lld: content has %zu bytes, expected 1 to %d", l->path,
                          (long long)a->id, a->n_bytes, MAX_ADDED_BYTES);
    static const char *const off[] = {"single_word", "lstrip", "rstrip", "normalized"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        bool on;
        COLI_TRY(coli__json_bool_or(l->path, object, off[i], false, &on));
        if (on)
            return coli__fail(COLI_E_UNSUPPORTED,
                              "%s: added token \"%s\": %s: only false is implemented", l->path,
                              show(a->text).text, off[i]);
    }
    return coli__json_bool_or(l->path, object, "special", false, &a->special);
}

/* An added token that the vocabulary also lists keeps that id; the two must mean the same bytes. */
static coli_status adopt(const loader *l, const added *a)
{
    token *t = &l->tok->tokens[a->id];
    if (t->n_bytes != a->n_bytes || memcmp(l->tok->bytes.data + t->begin, a->text, a->n_bytes) != 0)
        return coli__fail(COLI_E_FORMAT, "%s: added token \"%s\": id %lld has another text already",
                          l->path, show(a->text).text, (long long)a->id);
    t->flags &= ~(uint32_t)TOKEN_FOREIGN;
    return COLI_OK;
}

static coli_status add_token(loader *l, const added *a)
{
    coli__tok *tok = l->tok;
    const uint32_t known = trie_find(tok, a->text, a->n_bytes);
    const uint32_t in_vocab = *text_slot(tok, a->text, a->n_bytes);
    const uint32_t other = known != NONE ? known : in_vocab;
    if (other != NONE && other != a->id)
        return coli__fail(COLI_E_FORMAT, "%s: added token \"%s\": id %lld against %u elsewhere",
                          l->path, show(a->text).text, (long long)a->id, other);
    if (a->id >= 0 && a->id < tok->cap_id && tok->tokens[a->id].flags)
        COLI_TRY(adopt(l, a));
    else
        COLI_TRY(define(l, a->text, a->id, a->text, a->n_bytes, 0));
    tok->tokens[a->id].flags |= TOKEN_ADDED | (a->special ? (uint32_t)TOKEN_SPECIAL : 0);
    return trie_insert(tok, a->text, a->n_bytes, (uint32_t)a->id);
}

static coli_status read_added(loader *l, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *object = json_array_get(list, i), *id = json_object_get(object, "id");
        if (!json_is_integer(id)) return malformed(l, "an added token has no id");
        added a = {.id = json_integer_value(id)};
        COLI_TRY(check_added(l, object, &a));
        if (trie_find(l->tok, a.text, a.n_bytes) != NONE)
            return coli__fail(COLI_E_FORMAT, "%s: added token \"%s\" is listed twice", l->path,
                              show(a.text).text);
        COLI_TRY(add_token(l, &a));
    }
    return COLI_OK;
}

/* "248068" -> 248068, or -1. */
static json_int_t id_of_key(const char *key)
{
    json_int_t id = 0;
    if (!*key || strlen(key) > 9) return -1;
    for (; *key; key++) {
        if (*key < '0' || *key > '9') return -1;
        id = id * 10 + (*key - '0');
    }
    return id;
}

/* added_tokens_decoder of tokenizer_config.json: it may add tokens and must not contradict. */
static coli_status read_decoder(loader *l, json_t *decoder)
{
    if (!json_is_object(decoder)) return malformed(l, "added_tokens_decoder is not an object");
    const char *key;
    json_t *object;
    json_object_foreach(decoder, key, object)
    {
        added a = {.id = id_of_key(key)};
        if (a.id < 0)
            return coli__fail(COLI_E_FORMAT, "%s: added_tokens_decoder: \"%s\" is not an id",
                              l->path, show(key).text);
        COLI_TRY(check_added(l, object, &a));
        const uint32_t known = trie_find(l->tok, a.text, a.n_bytes);
        if (known == NONE || known != a.id) {
            COLI_TRY(add_token(l, &a));
            continue;
        }
        const bool special = (l->tok->tokens[known].flags & TOKEN_SPECIAL) != 0;
        if (special != a.special)
            return coli__fail(COLI_E_FORMAT,
                              "%s: added token \"%s\": special is %s, against %s in %s", l->path,
                              show(a.text).text, a.special ? "true" : "false",
                              special ? "true" : "false", "tokenizer.json");
    }
    return COLI_OK;
}

/* Every id has a token, every token's text a meaning, every byte that UTF-8 uses a token. */
static coli_status check_tokens(const loader *l)
{
    coli__tok *tok = l->tok;
    for (uint32_t id = 0; id < tok->n_id; id++) {
        const token *t = &tok->tokens[id];
        if (!t->flags)
            return coli__fail(COLI_E_FORMAT, "%s: id %u has no token, the largest id is %u",
                              l->path, id, tok->n_id - 1);
        if (t->flags & TOKEN_FOREIGN)
            return coli__fail(
                COLI_E_FORMAT,
                "%s: token %u of the vocabulary has a character outside the byte alphabet", l->path,
                id);
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        const char c = (char)byte;
        tok->byte_id[byte] = *text_slot(tok, &c, 1);
        const bool used = byte < 0xC0 || (byte > 0xC1 && byte < 0xF5);
        if (used && tok->byte_id[byte] == NONE)
            return coli__fail(COLI_E_FORMAT, "%s: byte 0x%02x has no token", l->path, byte);
    }
    return COLI_OK;
}

/* ---- opening: merges ------------------------------------------------------------------------- */

/* The two texts of merge i, "a b" or ["a", "b"]. */
static bool merge_parts(const json_t *item, const char *part[2], size_t n_part[2])
{
    if (json_is_array(item)) {
        if (json_array_size(item) != 2) return false;
        for (size_t k = 0; k < 2; k++) {
            const json_t *text = json_array_get(item, k);
            if (!json_is_string(text)) return false;
            part[k] = json_string_value(text);
            n_part[k] = json_string_length(text);
        }
        return true;
    }
    const char *text = json_string_value(item);
    const char *space = text ? strchr(text, ' ') : NULL;
    if (!space || strchr(space + 1, ' ')) return false;
    part[0] = text;
    n_part[0] = (size_t)(space - text);
    part[1] = space + 1;
    n_part[1] = strlen(part[1]);
    return true;
}

static coli_status read_merge(loader *l, const json_t *item, uint32_t rank)
{
    coli__tok *tok = l->tok;
    const char *part[2];
    size_t n_part[2], n_bytes[2];
    if (!merge_parts(item, part, n_part))
        return coli__fail(COLI_E_FORMAT, "%s: merge %u: expected two tokens", l->path, rank);
    COLI_TRY(room_for(l, n_part[0] + n_part[1]));
    char *room = l->room.data;
    uint32_t id[2];
    for (size_t k = 0; k < 2; k++) {
        id[k] = NONE;
        char *to = room + (k ? n_bytes[0] : 0);
        if (alphabet_decode(l->byte_of, part[k], n_part[k], to, &n_bytes[k]) && n_bytes[k])
            id[k] = *text_slot(tok, to, n_bytes[k]);
        if (id[k] == NONE)
            return coli__fail(COLI_E_FORMAT, "%s: merge %u: \"%s\" is not in the vocabulary",
                              l->path, rank, show(part[k]).text);
    }
    const uint32_t out = *text_slot(tok, room, n_bytes[0] + n_bytes[1]);
    if (out == NONE)
        return coli__fail(COLI_E_FORMAT,
                          "%s: merge %u: the result of \"%s\" is not in the vocabulary", l->path,
                          rank, show(part[0]).text);
    tok->merges[rank] = (merge){id[0], id[1], out};
    if (!(tok->tokens[out].flags & TOKEN_ADDED)) // rule (2) of the head
        *pair_slot(tok, id[0], id[1]) = rank;    // a pair listed twice has its last rank
    return COLI_OK;
}

static coli_status read_merges(loader *l, const json_t *merges)
{
    coli__tok *tok = l->tok;
    const size_t n = json_array_size(merges);
    tok->merges = coli__calloc(n, sizeof *tok->merges);
    tok->pair_slot = table_create(n, &tok->pair_mask);
    if (!tok->merges || !tok->pair_slot) return COLI_E_NOMEM;
    for (size_t rank = 0; rank < n; rank++)
        COLI_TRY(read_merge(l, json_array_get(merges, rank), (uint32_t)rank));
    return COLI_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

static coli_status load(loader *l, json_t *root, json_t *config, const char *config_path)
{
    coli__tok *tok = l->tok;
    json_t *model = json_object_get(root, "model");
    json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    json_t *list = json_object_get(root, "added_tokens");
    json_t *decoder = json_object_get(config, "added_tokens_decoder");
    if (!json_is_object(model)) return malformed(l, "model is missing");
    COLI_TRY(check_rest(l, root, model));
    if (!json_is_object(vocab)) return malformed(l, "model: vocab is missing");
    if (!json_is_array(merges)) return malformed(l, "model: merges is missing");
    if (!is_null(list) && !json_is_array(list)) return malformed(l, "added_tokens is not an array");
    COLI_TRY(read_normalizer(l, root));
    COLI_TRY(read_pre_tokenizer(l, root));

    const size_t n_most =
        json_object_size(vocab) + json_array_size(list) + json_object_size(decoder);
    if (n_most > MAX_ID)
        return coli__fail(COLI_E_FORMAT, "%s: %zu tokens, at most %d are possible", l->path, n_most,
                          MAX_ID);
    tok->cap_id = (uint32_t)n_most;
    tok->tokens = coli__calloc(n_most, sizeof *tok->tokens);
    tok->text_slot = table_create(n_most, &tok->text_mask);
    if (!tok->tokens || !tok->text_slot) return COLI_E_NOMEM;
    memset(tok->trie_root, 0xFF, sizeof tok->trie_root);

    COLI_TRY(read_vocab(l, vocab));
    COLI_TRY(read_added(l, list));
    if (!is_null(decoder)) {
        const char *path = l->path;
        l->path = config_path;
        COLI_TRY(read_decoder(l, decoder));
        l->path = path;
    }
    COLI_TRY(check_tokens(l));
    return read_merges(l, merges);
}

coli_status coli__tok_from_json(const char *what, json_t *root, const char *config_what,
                                json_t *config, coli__tok **out)
{
    *out = NULL;
    loader l = {.path = what, .tok = coli__calloc(1, sizeof *l.tok)};
    if (!l.tok) return COLI_E_NOMEM;
    alphabet_fill(l.byte_of);
    const coli_status status = load(&l, root, config, config_what);
    coli__buf_finish(&l.room);
    if (status == COLI_OK)
        *out = l.tok;
    else
        coli__tok_close(l.tok);
    return status;
}

coli_status coli__tok_open(const char *path, const char *config_path, coli__tok **out)
{
    *out = NULL;
    json_t *root = NULL, *config = NULL;
    coli_status status = coli__json_read(path, COLI_TOK_MAX_BYTES, COLI_TOK_MAX_DEPTH, &root);
    if (status == COLI_OK && config_path && coli__path_exists(config_path))
        status =
            coli__json_read(config_path, COLI_TOK_CONFIG_MAX_BYTES, COLI_TOK_MAX_DEPTH, &config);
    if (status == COLI_OK) status = coli__tok_from_json(path, root, config_path, config, out);
    json_decref(root);
    json_decref(config);
    return status;
}

void coli__tok_close(coli__tok *tok)
{
    if (!tok) return;
    for (uint32_t i = 0; i < tok->n_split; i++) coli__split_free(tok->splits[i]);
    coli__buf_finish(&tok->bytes);
    coli__free(tok->tokens);
    coli__free(tok->text_slot);
    coli__free(tok->merges);
    coli__free(tok->pair_slot);
    coli__free(tok->trie);
    coli__free(tok);
}

void coli__tok_use_jit(coli__tok *tok, bool on)
{
    for (uint32_t i = 0; i < tok->n_split; i++) coli__split_use_jit(tok->splits[i], on);
}

/* ---- encoding: merges ------------------------------------------------------------------------ */

typedef struct encoder {
    const coli__tok *tok;
    coli__split_work *split_work;
    coli__nfc_work nfc_work;
    coli__buf normalized;
    int32_t *ids;
    size_t n_ids, cap_ids;
    uint32_t *symbol, *prev, *next; // (cap_symbol) a linked list of ids; NONE as id: merged away
    uint64_t *heap;                 // (2 * cap_symbol) rank << 32 | position
    size_t cap_symbol, n_heap;
} encoder;

static coli_status push_id(encoder *e, uint32_t id)
{
    if (e->n_ids == e->cap_ids) {
        const size_t cap = e->cap_ids * 2 + 64;
        int32_t *grown = coli__realloc(e->ids, cap, sizeof *grown);
        if (!grown) return COLI_E_NOMEM;
        e->ids = grown;
        e->cap_ids = cap;
    }
    e->ids[e->n_ids++] = (int32_t)id;
    return COLI_OK;
}

static coli_status grow_u32(uint32_t **array, size_t cap)
{
    uint32_t *grown = coli__realloc(*array, cap, sizeof *grown);
    if (!grown) return COLI_E_NOMEM;
    *array = grown;
    return COLI_OK;
}

static coli_status reserve_symbols(encoder *e, size_t n)
{
    if (n <= e->cap_symbol) return COLI_OK;
    const size_t cap = n + n / 2 + 64;
    COLI_TRY(grow_u32(&e->symbol, cap));
    COLI_TRY(grow_u32(&e->prev, cap));
    COLI_TRY(grow_u32(&e->next, cap));
    uint64_t *heap = coli__realloc(e->heap, 2 * cap, sizeof *heap);
    if (!heap) return COLI_E_NOMEM;
    e->heap = heap;
    e->cap_symbol = cap;
    return COLI_OK;
}

static void heap_sink(uint64_t *heap, size_t n, size_t at)
{
    const uint64_t key = heap[at];
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= key) break;
        heap[at] = heap[child];
    }
    heap[at] = key;
}

static void heap_push(encoder *e, uint64_t key)
{
    size_t at = e->n_heap++;
    for (size_t parent; at > 0 && e->heap[parent = (at - 1) / 2] > key; at = parent)
        e->heap[at] = e->heap[parent];
    e->heap[at] = key;
}

static uint64_t heap_pop(encoder *e)
{
    const uint64_t key = e->heap[0];
    e->heap[0] = e->heap[--e->n_heap];
    if (e->n_heap) heap_sink(e->heap, e->n_heap, 0);
    return key;
}

/* The heap entry of the symbol at `left` and its neighbour, if they merge. */
static bool pair_key(const encoder *e, uint32_t left, uint64_t *key)
{
    const uint32_t right = e->next[left];
    if (right == NONE) return false;
    const uint32_t rank = *pair_slot(e->tok, e->symbol[left], e->symbol[right]);
    *key = (uint64_t)rank << 32 | left;
    return rank != NONE;
}

static void push_pair(encoder *e, uint32_t left)
{
    uint64_t key;
    if (left != NONE && pair_key(e, left, &key)) heap_push(e, key);
}

static void merge_all(encoder *e)
{
    while (e->n_heap) {
        const uint64_t key = heap_pop(e);
        const uint32_t at = (uint32_t)key;
        const merge *m = &e->tok->merges[key >> 32];
        const uint32_t right = e->next[at];
        if (e->symbol[at] != m->left || right == NONE || e->symbol[right] != m->right) continue;
        e->symbol[at] = m->out;
        e->symbol[right] = NONE;
        e->next[at] = e->next[right];
        if (e->next[at] != NONE) e->prev[e->next[at]] = at;
        push_pair(e, e->prev[at]);
        push_pair(e, at);
    }
}

static coli_status encode_piece(encoder *e, const char *text, size_t n_bytes)
{
    const coli__tok *tok = e->tok;
    if (n_bytes == 1) return push_id(e, tok->byte_id[(uint8_t)text[0]]);
    if (tok->ignore_merges) {
        const uint32_t id = *text_slot(tok, text, n_bytes);
        if (id != NONE && !(tok->tokens[id].flags & TOKEN_ADDED)) return push_id(e, id);
    }
    COLI_TRY(reserve_symbols(e, n_bytes));
    const uint32_t n = (uint32_t)n_bytes;
    for (uint32_t i = 0; i < n; i++) {
        e->symbol[i] = tok->byte_id[(uint8_t)text[i]];
        e->prev[i] = i ? i - 1 : NONE;
        e->next[i] = i + 1 < n ? i + 1 : NONE;
    }
    // At most n - 1 entries now and one more for each of the n - 1 merges: 2 n are enough.
    e->n_heap = 0;
    for (uint32_t i = 0; i + 1 < n; i++)
        if (pair_key(e, i, &e->heap[e->n_heap])) e->n_heap++;
    for (size_t i = e->n_heap / 2; i-- > 0;) heap_sink(e->heap, e->n_heap, i);
    merge_all(e);
    for (uint32_t i = 0; i != NONE; i = e->next[i]) COLI_TRY(push_id(e, e->symbol[i]));
    return COLI_OK;
}

/* ---- encoding: stretches and added tokens ---------------------------------------------------- */

/* Cut by pattern number `level` and what it leaves by the next one; what no pattern cuts is a
 * piece. */
static coli_status encode_split(encoder *e, uint32_t level, const char *text, size_t n_bytes)
{
    if (level == e->tok->n_split) return encode_piece(e, text, n_bytes);
    for (size_t at = 0; at < n_bytes;) {
        size_t begin, end;
        COLI_TRY(coli__split_next(e->tok->splits[level], e->split_work, text, n_bytes, at, &begin,
                                  &end));
        if (begin > at) COLI_TRY(encode_split(e, level + 1, text + at, begin - at));
        if (end > begin) COLI_TRY(encode_split(e, level + 1, text + begin, end - begin));
        at = end;
    }
    return COLI_OK;
}

static coli_status encode_stretch(encoder *e, const char *text, size_t n_bytes)
{
    if (n_bytes == 0) return COLI_OK;
    if (!e->tok->nfc || coli__nfc_is_trivial(text, n_bytes))
        return encode_split(e, 0, text, n_bytes);
    e->normalized.n_bytes = 0;
    COLI_TRY(coli__nfc(&e->nfc_work, text, n_bytes, &e->normalized));
    return encode_split(e, 0, e->normalized.data, e->normalized.n_bytes);
}

/* The longest added token at p, of at most n_bytes; its length or 0. */
static size_t added_at(const coli__tok *tok, const char *p, size_t n_bytes, uint32_t *id)
{
    size_t longest = 0;
    uint32_t node = NONE;
    for (size_t i = 0; i < n_bytes; i++) {
        if ((node = trie_child(tok, node, (uint8_t)p[i])) == NONE) break;
        if (tok->trie[node].id == NONE) continue;
        *id = tok->trie[node].id;
        longest = i + 1;
    }
    return longest;
}

static coli_status encode_text(encoder *e, const char *text, size_t n_bytes,
                               const coli__span *plain, size_t n_plain)
{
    size_t stretch = 0; // begin of the text since the last added token
    for (size_t at = 0, span = 0; at < n_bytes;) {
        while (span < n_plain && (plain[span].end <= at || plain[span].begin == plain[span].end))
            span++;
        if (span < n_plain && plain[span].begin <= at) {
            at = plain[span].end;
            continue;
        }
        const size_t limit = span < n_plain ? plain[span].begin : n_bytes;
        uint32_t id = NONE;
        const size_t len = added_at(e->tok, text + at, limit - at, &id);
        if (len == 0) {
            at++;
            continue;
        }
        COLI_TRY(encode_stretch(e, text + stretch, at - stretch));
        COLI_TRY(push_id(e, id));
        stretch = at += len;
    }
    return encode_stretch(e, text + stretch, n_bytes - stretch);
}

static coli_status check_arguments(const char *text, size_t n_bytes, const coli__span *plain,
                                   size_t n_plain)
{
    if (n_bytes > MAX_TEXT_BYTES)
        return coli__fail(COLI_E_LIMIT, "text: %zu bytes, at most %d are possible", n_bytes,
                          MAX_TEXT_BYTES);
    const size_t good = coli__utf8_check(text, n_bytes);
    if (good != n_bytes) return coli__fail(COLI_E_INVALID, "text: not UTF-8 at byte %zu", good);
    for (size_t i = 0; i < n_plain; i++) {
        const size_t from = i ? plain[i - 1].end : 0;
        if (plain[i].begin < from || plain[i].end < plain[i].begin || plain[i].end > n_bytes)
            return coli__fail(COLI_E_INVALID, "text: plain span %zu (%zu to %zu) is out of order",
                              i, plain[i].begin, plain[i].end);
    }
    return COLI_OK;
}

coli_status coli__tok_encode(const coli__tok *tok, const char *text, size_t n_bytes,
                             const coli__span *plain, size_t n_plain, int32_t **ids, size_t *n_ids)
{
    *ids = NULL;
    *n_ids = 0;
    COLI_TRY(check_arguments(text, n_bytes, plain, n_plain));
    if (n_bytes == 0) return COLI_OK;
    encoder e = {.tok = tok};
    coli_status status = COLI_OK;
    if (tok->n_split) status = coli__split_work_create(tok->splits[0], &e.split_work);
    if (status == COLI_OK) status = encode_text(&e, text, n_bytes, plain, n_plain);
    coli__split_work_free(e.split_work);
    coli__nfc_finish(&e.nfc_work);
    coli__buf_finish(&e.normalized);
    coli__free(e.symbol);
    coli__free(e.prev);
    coli__free(e.next);
    coli__free(e.heap);
    if (status != COLI_OK) {
        coli__free(e.ids);
        return status;
    }
    *ids = e.ids;
    *n_ids = e.n_ids;
    return COLI_OK;
}

/* ---- ids and their text ---------------------------------------------------------------------- */

static const token *token_of(const coli__tok *tok, int32_t id)
{
    return id >= 0 && (uint32_t)id < tok->n_id ? &tok->tokens[id] : NULL;
}

const char *coli__tok_bytes(const coli__tok *tok, int32_t id, size_t *n_bytes)
{
    const token *t = token_of(tok, id);
    *n_bytes = t ? t->n_bytes : 0;
    return t ? tok->bytes.data + t->begin : NULL;
}

bool coli__tok_is_special(const coli__tok *tok, int32_t id)
{
    const token *t = token_of(tok, id);
    return t && (t->flags & TOKEN_SPECIAL);
}

int32_t coli__tok_added_id(const coli__tok *tok, const char *content)
{
    return (int32_t)trie_find(tok, content, strlen(content)); // NONE is -1
}

uint32_t coli__tok_n_id(const coli__tok *tok)
{
    return tok->n_id;
}

coli_status coli__tok_decode(const coli__tok *tok, const int32_t *ids, size_t n_ids,
                             bool skip_special, coli__buf *out)
{
    coli__utf8_stream stream = {0};
    for (size_t i = 0; i < n_ids; i++) {
        size_t n_bytes;
        const char *bytes = coli__tok_bytes(tok, ids[i], &n_bytes);
        if (!bytes || (skip_special && coli__tok_is_special(tok, ids[i]))) continue;
        COLI_TRY(coli__utf8_push(&stream, bytes, n_bytes, out));
    }
    return coli__utf8_flush(&stream, out);
}
