/* tokenizer_prop.c - what must hold for every text: against slow and simple second implementations,
 * and in time that grows with the text. */
#include "t.h"

#include <time.h>
#include <utf8proc.h>

#include "libcoli/src/model/nfc.h"
#include "small_tokenizer.h"

static coli__tok *hummingbird, *small;

/* Characters at which the rules change: blanks, marks of several classes, jamo, case folds,
 * surrogates' neighbours, pieces of added tokens. */
static const char *const atoms[] = {"a",
                                    "e",
                                    "h",
                                    "hello",
                                    " ",
                                    "  ",
                                    "\n",
                                    "\r\n",
                                    "\t",
                                    "'s",
                                    "'\xC5\xBF",
                                    "1",
                                    "42",
                                    "!",
                                    "...",
                                    "\xC2\xA0",
                                    "\xC2\x85",
                                    "\xE1\xA0\x8E",
                                    "\xE2\x80\x83",
                                    "\xE3\x80\x80",
                                    "\xCC\x81",
                                    "\xCC\xA3",
                                    "\xCC\xA7",
                                    "\xCC\xB8",
                                    "\xCD\x84",
                                    "\xC3\xA9",
                                    "\xC3\x85",
                                    "\xE2\x84\xAB",
                                    "\xE1\x84\x80",
                                    "\xE1\x85\xA1",
                                    "\xE1\x86\xA8",
                                    "\xEA\xB0\x80",
                                    "\xEA\xB0\x81",
                                    "\xED\x9F\xBF",
                                    "\xEE\x80\x80",
                                    "\xE6\x97\xA5",
                                    "\xF0\x9F\x91\x8D",
                                    "\xE2\x80\x8D",
                                    "\xF0\x9D\x85\x9E",
                                    "\xE0\xBD\xB1",
                                    "\xE0\xBD\xB2",
                                    "\xE0\xA5\x98",
                                    "\xE0\xAD\x87",
                                    "\xE0\xAC\xBE",
                                    "\xCD\xBE",
                                    "<think>",
                                    "<thin",
                                    "<think>!",
                                    "</think>",
                                    "<|end|>",
                                    "<|im_end|>",
                                    "<|im_start|",
                                    "<",
                                    ">",
                                    "|",
                                    "_"};
enum { N_ATOM = sizeof atoms / sizeof *atoms };

static void random_text(t_rng *rng, coli__buf *out, uint32_t n_max)
{
    out->n_bytes = 0;
    T_OK(coli__buf_str(out, ""));
    for (uint32_t i = t_below(rng, n_max + 1); i > 0; i--) {
        const char *atom = atoms[t_below(rng, N_ATOM)];
        for (uint32_t k = t_below(rng, 8) ? 1 : t_range(rng, 1, 30); k > 0; k--)
            T_OK(coli__buf_str(out, atom));
    }
}

static void check_same_ids(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b)
{
    T_EQ(n_a, n_b);
    for (size_t i = 0; i < n_a; i++) T_EQ(a[i], b[i]);
}

/* ---- normalisation --------------------------------------------------------------------------- */

T_PROP(nfc_equals_utf8proc, 3000)
{
    coli__buf text = {0}, ours = {0};
    coli__nfc_work work = {0};
    random_text(&rng, &text, 40);
    T_OK(coli__buf_str(&ours, ""));
    T_OK(coli__nfc(&work, text.data, text.n_bytes, &ours));
    char *theirs = (char *)utf8proc_NFC((const utf8proc_uint8_t *)text.data);
    T_STR(ours.data, theirs);
    if (coli__nfc_is_trivial(text.data, text.n_bytes)) T_STR(ours.data, text.data);
    free(theirs);
    coli__nfc_finish(&work);
    coli__buf_finish(&text);
    coli__buf_finish(&ours);
}

/* Every code point between a letter and a mark, but for planes in which nothing decomposes. */
T_TEST(nfc_of_every_character)
{
    T_BEGIN;
    coli__nfc_work work = {0};
    coli__buf ours = {0};
    for (int32_t c = 1; c < 0x110000; c++) {
        if (c == 0xD800) c = 0xE000;
        if (c == 0x30000) c = 0xE0000;
        if (c == 0xE0200) c = 0x10FF00;
        char text[16] = "e";
        size_t n = 1 + (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)text + 1);
        memcpy(text + n, "\xCC\xA3", 3);
        n += 2;
        ours.n_bytes = 0;
        T_OK(coli__nfc(&work, text, n, &ours));
        char *theirs = (char *)utf8proc_NFC((const utf8proc_uint8_t *)text);
        T_STR(ours.data, theirs);
        free(theirs);
    }
    coli__nfc_finish(&work);
    coli__buf_finish(&ours);
}

/* ---- encoding -------------------------------------------------------------------------------- */

T_PROP(decoding_gives_the_normal_form, 2000)
{
    coli__buf text = {0}, decoded = {0};
    random_text(&rng, &text, 30);
    const coli__tok *tok = t_below(&rng, 2) ? hummingbird : small;
    const coli__span all = {0, text.n_bytes};
    int32_t *ids;
    size_t n_ids;
    T_OK(coli__tok_encode(tok, text.data, text.n_bytes, &all, 1, &ids, &n_ids));
    T_OK(coli__buf_str(&decoded, ""));
    T_OK(coli__tok_decode(tok, ids, n_ids, false, &decoded));
    char *normal = (char *)utf8proc_NFC((const utf8proc_uint8_t *)text.data);
    T_STR(decoded.data, normal);
    free(normal);
    coli__free(ids);
    coli__buf_finish(&text);
    coli__buf_finish(&decoded);
}

static uint32_t random_spans(t_rng *rng, size_t n_bytes, coli__span spans[16])
{
    uint32_t n = 0;
    for (size_t at = 0; n < 16 && t_below(rng, 8);) {
        spans[n].begin = at + t_below(rng, 12);
        spans[n].end = at = spans[n].begin + t_below(rng, 20);
        if (at > n_bytes) break;
        n++;
    }
    return n;
}

/* An independent statement of the rule: which stretches of the text are added tokens. */
static size_t count_added(const coli__tok *tok, const char *text, size_t n_bytes,
                          const coli__span *spans, uint32_t n_span)
{
    static const char *const added[] = {
        "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>!",
        "<think>",      "</think>",   "<|end|>"}; // longer ones first
    size_t n = 0;
    for (size_t at = 0; at < n_bytes;) {
        size_t len = 0;
        for (size_t k = 0; k < sizeof added / sizeof *added && len == 0; k++) {
            const size_t want = strlen(added[k]);
            if (coli__tok_added_id(tok, added[k]) < 0 || n_bytes - at < want ||
                memcmp(text + at, added[k], want) != 0)
                continue;
            bool touches = false;
            for (uint32_t i = 0; i < n_span; i++)
                for (size_t b = spans[i].begin; b < spans[i].end; b++)
                    touches |= b >= at && b < at + want;
            if (!touches) len = want;
        }
        n += len > 0;
        at += len ? len : 1;
    }
    return n;
}

T_PROP(added_tokens_touch_no_span, 3000)
{
    coli__buf text = {0};
    coli__span spans[16];
    random_text(&rng, &text, 20);
    const coli__tok *tok = t_below(&rng, 2) ? hummingbird : small;
    const uint32_t n_span = random_spans(&rng, text.n_bytes, spans);
    int32_t *ids;
    size_t n_ids, n_added = 0;
    T_OK(coli__tok_encode(tok, text.data, text.n_bytes, spans, n_span, &ids, &n_ids));
    for (size_t i = 0; i < n_ids; i++) {
        size_t n_bytes;
        const char *bytes = coli__tok_bytes(tok, ids[i], &n_bytes);
        char content[64] = "";
        if (n_bytes < sizeof content) memcpy(content, bytes, n_bytes);
        n_added += coli__tok_added_id(tok, content) == ids[i];
    }
    T_EQ(n_added, count_added(tok, text.data, text.n_bytes, spans, n_span));
    coli__free(ids);
    coli__buf_finish(&text);
}

T_PROP(spans_change_nothing_without_added_tokens, 2000)
{
    coli__buf text = {0};
    coli__span spans[16];
    random_text(&rng, &text, 20);
    for (size_t i = 0; i < text.n_bytes; i++)
        if (text.data[i] == '<') text.data[i] = '(';
    const uint32_t n_span = random_spans(&rng, text.n_bytes, spans);
    int32_t *with, *without;
    size_t n_with, n_without;
    T_OK(coli__tok_encode(hummingbird, text.data, text.n_bytes, spans, n_span, &with, &n_with));
    T_OK(coli__tok_encode(hummingbird, text.data, text.n_bytes, NULL, 0, &without, &n_without));
    check_same_ids(with, n_with, without, n_without);
    coli__free(with);
    coli__free(without);
    coli__buf_finish(&text);
}

T_PROP(interpreter_equals_compiled_code, 1000)
{
    coli__buf text = {0};
    random_text(&rng, &text, 60);
    int32_t *ids[2];
    size_t n_ids[2];
    for (int jit = 0; jit < 2; jit++) {
        coli__tok_use_jit(hummingbird, jit != 0);
        T_OK(coli__tok_encode(hummingbird, text.data, text.n_bytes, NULL, 0, &ids[jit],
                              &n_ids[jit]));
    }
    check_same_ids(ids[0], n_ids[0], ids[1], n_ids[1]);
    coli__free(ids[0]);
    coli__free(ids[1]);
    coli__buf_finish(&text);
}

/* ---- merging against the definition ---------------------------------------------------------- */

enum { MAX_WORLD = 40 };

typedef struct world {
    uint32_t n_merge;
    char left[MAX_WORLD][64], right[MAX_WORLD][64];
} world;

/* Random merges over three letters: each makes a new token out of two that exist. */
static void world_random(t_rng *rng, world *w)
{
    char texts[MAX_WORLD + 3][64] = {"a", "b", "c"};
    uint32_t n_text = 3;
    w->n_merge = 0;
    for (uint32_t i = t_below(rng, MAX_WORLD); i > 0; i--) {
        const char *l = texts[t_below(rng, n_text)], *r = texts[t_below(rng, n_text)];
        char made[128];
        snprintf(made, sizeof made, "%s%s", l, r);
        bool known = strlen(made) >= sizeof texts[0];
        for (uint32_t k = 0; k < n_text; k++) known |= strcmp(texts[k], made) == 0;
        for (uint32_t k = 0; k < w->n_merge; k++)
            known |= strcmp(w->left[k], l) == 0 && strcmp(w->right[k], r) == 0;
        if (known && (strlen(made) >= sizeof texts[0] || t_below(rng, 3))) continue;
        snprintf(w->left[w->n_merge], 64, "%s", l);
        snprintf(w->right[w->n_merge++], 64, "%s", r);
        if (!known) snprintf(texts[n_text++], 64, "%s", made);
    }
}

static coli__tok *world_open(const world *w)
{
    coli__buf text = {0};
    coli__tok *tok;
    T_OK(small_tokenizer_text(&text));
    T_OK(small_replace(&text, SMALL_PATTERN, ".+"));
    const char *tail = strstr(text.data, "\"he\":256");
    const size_t vocab_end = text.n_bytes = (size_t)(tail - text.data);
    T_OK(coli__buf_str(&text, "\"<|end|>\":261"));
    static const int free_id[] = {256, 257, 258,
                                  259, 260, 262}; // 261, 263 and 264 are added tokens
    uint32_t n_new = 0;
    coli__buf merges = {0};
    T_OK(coli__buf_str(&merges, ""));
    for (uint32_t i = 0; i < w->n_merge; i++) {
        char made[128];
        snprintf(made, sizeof made, "\"%s%s\":", w->left[i], w->right[i]);
        if (!strstr(text.data + vocab_end, made)) {
            T_OK(coli__buf_printf(&text, ",%s%d", made,
                                  n_new < 6 ? free_id[n_new] : 259 + (int)n_new));
            n_new++;
        }
        T_OK(coli__buf_printf(&merges, "%s\"%s %s\"", i ? "," : "", w->left[i], w->right[i]));
    }
    for (; n_new < 6; n_new++) T_OK(coli__buf_printf(&text, ",\"zz%u\":%d", n_new, free_id[n_new]));
    T_OK(coli__buf_printf(&text, "},\"merges\":[%s]}}", merges.data));
    T_OK(small_open_text(text.data, text.n_bytes, NULL, &tok));
    coli__buf_finish(&text);
    coli__buf_finish(&merges);
    return tok;
}

/* The last rank of a pair; n_merge when it has none. */
static uint32_t rank_of(const world *w, const char *left, const char *right)
{
    for (uint32_t rank = w->n_merge; rank-- > 0;)
        if (strcmp(left, w->left[rank]) == 0 && strcmp(right, w->right[rank]) == 0) return rank;
    return w->n_merge;
}

/* Byte-pair encoding as defined: again and again the pair of lowest rank, the leftmost of these. */
static uint32_t merge_slowly(const world *w, const char *word, char parts[][64])
{
    uint32_t n = 0;
    for (const char *c = word; *c; c++) snprintf(parts[n++], 64, "%c", *c);
    for (;;) {
        uint32_t best = w->n_merge, at = 0;
        for (uint32_t i = 0; i + 1 < n; i++) {
            const uint32_t rank = rank_of(w, parts[i], parts[i + 1]);
            if (rank < best) best = rank, at = i;
        }
        if (best == w->n_merge) return n;
        memcpy(parts[at] + strlen(parts[at]), parts[at + 1], strlen(parts[at + 1]) + 1);
        memmove(parts[at + 1], parts[at + 2], (n - at - 2) * sizeof parts[0]);
        n--;
    }
}

T_PROP(merging_follows_the_definition, 1500)
{
    world w;
    world_random(&rng, &w);
    coli__tok *tok = world_open(&w);
    for (int round = 0; round < 4; round++) {
        char word[121] = "", parts[121][64];
        for (uint32_t i = 0, n = t_range(&rng, 2, 120); i < n; i++)
            word[i] = (char)('a' + t_below(&rng, 3));
        const uint32_t n_part = merge_slowly(&w, word, parts);
        int32_t *ids;
        size_t n_ids;
        T_OK(coli__tok_encode(tok, word, strlen(word), NULL, 0, &ids, &n_ids));
        T_EQ(n_ids, n_part);
        for (uint32_t i = 0; i < n_part; i++) {
            size_t n_bytes;
            const char *bytes = coli__tok_bytes(tok, ids[i], &n_bytes);
            T_EQ(n_bytes, strlen(parts[i]));
            T_MEM(bytes, parts[i], n_bytes);
        }
        coli__free(ids);
    }
    coli__tok_close(tok);
}

/* ---- ill-formed UTF-8 ------------------------------------------------------------------------ */

/* Table 3-7 of the standard as a list; the maximal subpart is the longest prefix of an entry. */
static size_t longest_match(const uint8_t *p, size_t n, bool *whole)
{
    static const uint8_t table[][9] = {
        {1, 0x00, 0x7F},
        {2, 0xC2, 0xDF, 0x80, 0xBF},
        {3, 0xE0, 0xE0, 0xA0, 0xBF, 0x80, 0xBF},
        {3, 0xE1, 0xEC, 0x80, 0xBF, 0x80, 0xBF},
        {3, 0xED, 0xED, 0x80, 0x9F, 0x80, 0xBF},
        {3, 0xEE, 0xEF, 0x80, 0xBF, 0x80, 0xBF},
        {4, 0xF0, 0xF0, 0x90, 0xBF, 0x80, 0xBF, 0x80, 0xBF},
        {4, 0xF1, 0xF3, 0x80, 0xBF, 0x80, 0xBF, 0x80, 0xBF},
        {4, 0xF4, 0xF4, 0x80, 0x8F, 0x80, 0xBF, 0x80, 0xBF},
    };
    size_t best = 0;
    *whole = false;
    for (size_t row = 0; row < sizeof table / sizeof *table; row++) {
        size_t k = 0;
        while (k < n && k < table[row][0] && p[k] >= table[row][1 + 2 * k] &&
               p[k] <= table[row][2 + 2 * k])
            k++;
        if (k > best) best = k;
        if (k == table[row][0]) *whole = true;
    }
    return best;
}

T_PROP(replacement_for_every_split, 4000)
{
    static const uint8_t edges[] = {0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF,
                                    0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED,
                                    0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
    uint8_t bytes[24];
    const size_t n = t_below(&rng, sizeof bytes + 1);
    for (size_t i = 0; i < n; i++) bytes[i] = edges[t_below(&rng, sizeof edges)];
    coli__buf expected = {0}, whole = {0};
    T_OK(coli__buf_str(&expected, ""));
    size_t first_bad = n;
    for (size_t at = 0; at < n;) {
        bool good;
        const size_t len = longest_match(bytes + at, n - at, &good);
        if (good)
            T_OK(coli__buf_append(&expected, bytes + at, len));
        else
            T_OK(coli__buf_str(&expected, "\xEF\xBF\xBD"));
        if (!good && first_bad == n) first_bad = at;
        at += len ? len : 1;
    }
    T_EQ(coli__utf8_check((const char *)bytes, n), first_bad);
    coli__utf8_stream stream = {0};
    for (size_t at = 0; at < n;) {
        size_t piece = t_range(&rng, 1, 5);
        if (piece > n - at) piece = n - at;
        T_OK(coli__utf8_push(&stream, (const char *)bytes + at, piece, &whole));
        T_EQ(coli__utf8_check(whole.data, whole.n_bytes), whole.n_bytes);
        at += piece;
    }
    T_OK(coli__utf8_flush(&stream, &whole));
    T_EQ(whole.n_bytes, expected.n_bytes);
    T_MEM(whole.data, expected.data, expected.n_bytes);
    coli__buf_finish(&expected);
    coli__buf_finish(&whole);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* Processor seconds to encode n repetitions, the better of two. */
static double seconds(const char *unit, size_t n)
{
    const size_t n_unit = strlen(unit);
    char *text = malloc(n * n_unit);
    assert_non_null(text);
    for (size_t i = 0; i < n; i++) memcpy(text + i * n_unit, unit, n_unit);
    double best = 1e9;
    for (int round = 0; round < 2; round++) {
        int32_t *ids;
        size_t n_ids;
        const clock_t start = clock();
        T_OK(coli__tok_encode(hummingbird, text, n * n_unit, NULL, 0, &ids, &n_ids));
        const double took = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (took < best) best = took;
        coli__free(ids);
    }
    free(text);
    return best;
}

/* From 1/16 of a million to a million characters time grows 16-fold when linear, 21-fold with the
 * logarithm, 256-fold when quadratic.  The limit of 70 with 50 ms on top leaves room for a busy
 * machine. */
T_TEST(a_million_characters)
{
    T_BEGIN;
    static const char *const units[] = {"a",
                                        " ",
                                        "\n",
                                        "\r\n",
                                        " \n",
                                        "!",
                                        "7",
                                        "\xCC\x81",
                                        "\xCC\x81\xCC\xA3",
                                        "e\xCC\x81",
                                        "\xF0\x9F\x91\x8D",
                                        "\xE6\x97\xA5",
                                        "\xE1\x84\x80",
                                        "<|im_start|",
                                        "<|im_start|>",
                                        "'s",
                                        "!\n",
                                        "a \n1.\xCC\x81\xF0\x9F\x91\x8D"};
    for (size_t k = 0; k < sizeof units / sizeof *units; k++) {
        coli__tok_use_jit(hummingbird, k % 4 != 1); // some in the interpreter
        const double sixteenth = seconds(units[k], 62500), whole = seconds(units[k], 1000000);
        if (whole > 70 * sixteenth + 0.05) print_error("unit %zu of the list\n", k);
        T_FLE(whole, 70 * sixteenth + 0.05);
    }
    coli__tok_use_jit(hummingbird, true);
}

static int open_tokenizers(void **state)
{
    (void)state;
    if (small_open(&small) != COLI_OK) return -1;
    return coli__tok_open(TEST_MODELS "/hummingbird/tokenizer.json", NULL, &hummingbird) == COLI_OK
               ? 0
               : -1;
}

static int close_tokenizers(void **state)
{
    (void)state;
    coli__tok_close(small);
    coli__tok_close(hummingbird);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nfc_equals_utf8proc),
        cmocka_unit_test(nfc_of_every_character),
        cmocka_unit_test(decoding_gives_the_normal_form),
        cmocka_unit_test(added_tokens_touch_no_span),
        cmocka_unit_test(spans_change_nothing_without_added_tokens),
        cmocka_unit_test(interpreter_equals_compiled_code),
        cmocka_unit_test(merging_follows_the_definition),
        cmocka_unit_test(replacement_for_every_split),
        cmocka_unit_test(a_million_characters),
    };
    return cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
}
