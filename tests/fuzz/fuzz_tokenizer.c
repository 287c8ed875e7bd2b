/* fuzz_tokenizer.c - two targets in one.  An input that begins with '{' is a tokenizer.json: it is
 * opened and, if that works, encodes some texts.  Any other input is a text for the small tokenizer
 * of the tests: its first byte says which stretches are plain. */
#include <utf8proc.h>

#include "libcoli/src/model/nfc.h"
#include "small_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void must(bool condition)
{
    if (!condition) abort();
}

/* Encode, decode, and compare with the normal form where the tokenizer has one. */
static void round_trip(const coli__tok *tok, const char *text, size_t n_bytes,
                       const coli__span *plain, size_t n_plain, bool nfc)
{
    int32_t *ids;
    size_t n_ids;
    const coli_status status = coli__tok_encode(tok, text, n_bytes, plain, n_plain, &ids, &n_ids);
    const bool is_text = coli__utf8_check(text, n_bytes) == n_bytes;
    if (status == COLI_E_LIMIT) return; // an explosive pattern
    must(status == (is_text ? COLI_OK : COLI_E_INVALID));
    if (status != COLI_OK) return;
    coli__buf decoded = {0}, normal = {0};
    coli__nfc_work work = {0};
    must(coli__tok_decode(tok, ids, n_ids, false, &decoded) == COLI_OK);
    must(coli__utf8_check(decoded.data, decoded.n_bytes) == decoded.n_bytes);
    if (nfc) { // an added token ends a stretch, so compare the normal forms of both
        coli__buf again = {0};
        must(coli__nfc(&work, text, n_bytes, &normal) == COLI_OK);
        must(coli__nfc(&work, decoded.data, decoded.n_bytes, &again) == COLI_OK);
        must(normal.n_bytes == again.n_bytes);
        must(n_bytes == 0 || memcmp(normal.data, again.data, again.n_bytes) == 0);
        coli__buf_finish(&again);
    }
    coli__nfc_finish(&work);
    coli__buf_finish(&normal);
    coli__buf_finish(&decoded);
    coli__free(ids);
}

static void as_file(const char *text, size_t n_bytes)
{
    static const char *const samples[] = {
        "hello <think>world</think> it's 42\r\n\r\n  \xC3\xA9\xCC\xA3!", "<|end|>",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbb"};
    coli__tok *tok;
    if (small_open_text(text, n_bytes, NULL, &tok) != COLI_OK) {
        must(*coli_error_message() != 0);
        return;
    }
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        round_trip(tok, samples[i], strlen(samples[i]), NULL, 0, false);
    coli__tok_close(tok);
}

static void as_text(const char *text, size_t n_bytes, uint8_t spans)
{
    static coli__tok *tok; // opened once
    if (!tok) must(small_open(&tok) == COLI_OK);
    coli__span plain[16];
    size_t n_plain = 0;
    const size_t step = 1 + (spans & 15), length = spans >> 4;
    for (size_t at = step; n_plain < 16 && at + length <= n_bytes; at += length + step)
        plain[n_plain++] = (coli__span){at, at + length};
    round_trip(tok, text, n_bytes, plain, n_plain, true);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    if (n_bytes == 0) return 0;
    if (data[0] == '{')
        as_file((const char *)data, n_bytes);
    else
        as_text((const char *)data + 1, n_bytes - 1, data[0]);
    return 0;
}
