/* token_bytes.c - see token_bytes.h.
 *
 * A tokenizer.json spells tokens with one character per byte.  Bytes that are printable in Latin-1
 * stand for themselves, the other 68 are U+0100 and on, in order. */
#include "token_bytes.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "terminal.h"
#include "text.h"

struct token_bytes {
    json_t *root;
    const char **names; // (n) the spelling of every id; NULL where there is none
    size_t n;
};

token_bytes *token_bytes_open(const char *tokenizer_json)
{
    json_t *root = json_load_file(tokenizer_json, 0, NULL);
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    token_bytes *t = app_alloc(1, sizeof *t);
    *t = (token_bytes){.root = root};
    const char *name;
    json_t *id;
    json_object_foreach(vocab, name, id)
    {
        const json_int_t i = json_integer_value(id);
        if (i >= 0 && i <= INT32_MAX && (size_t)i >= t->n) t->n = (size_t)i + 1;
    }
    t->names = app_alloc(t->n, sizeof *t->names);
    json_object_foreach(vocab, name, id)
    {
        const json_int_t i = json_integer_value(id);
        if (i >= 0 && i <= INT32_MAX) t->names[i] = name;
    }
    if (t->n > 0) return t;
    token_bytes_close(t);
    return NULL;
}

void token_bytes_close(token_bytes *t)
{
    if (!t) return;
    free(t->names);
    json_decref(t->root);
    free(t);
}

/* The byte that a character spells; -1 for one that spells none. */
static int byte_of(uint32_t code)
{
    enum { N_CONTROL = 0x21, N_MIDDLE = 0xA1 - 0x7F }; // 00 to 20, 7F to A0, and AD alone
    if ((code >= 0x21 && code <= 0x7E) || (code >= 0xA1 && code <= 0xFF && code != 0xAD))
        return (int)code;
    if (code < 0x100 || code > 0x100 + N_CONTROL + N_MIDDLE) return -1;
    const int n = (int)code - 0x100;
    if (n < N_CONTROL) return n;
    return n < N_CONTROL + N_MIDDLE ? 0x7F + n - N_CONTROL : 0xAD;
}

char *token_bytes_shown(const token_bytes *t, int32_t id)
{
    if (id < 0 || (size_t)id >= t->n || !t->names[id]) return NULL;
    const char *name = t->names[id];
    const size_t n_name = strlen(name);
    char *bytes = app_alloc(n_name + 1, 1), *shown = app_alloc(n_name + 1, strlen("<E2>"));
    size_t n = 0, n_shown = 0;
    uint32_t code;
    for (size_t i = 0, step; i < n_name; i += step) {
        step = app_utf8_char(name + i, n_name - i, &code); // never 0: jansson checked it
        const int byte = byte_of(code);
        if (byte >= 0) bytes[n++] = (char)byte;
    }
    for (size_t i = 0, step; i < n; i += step) {
        step = app_utf8_char(bytes + i, n - i, &code);
        if (step)
            memcpy(shown + n_shown, bytes + i, step);
        else
            snprintf(shown + n_shown, sizeof "<E2>", "<%02X>", (unsigned char)bytes[i]);
        n_shown += step ? step : strlen("<E2>");
        if (!step) step = 1;
    }
    free(bytes);
    return shown;
}
