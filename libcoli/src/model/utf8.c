/* utf8.c - which bytes are UTF-8, and what becomes of those that are not.
 *
 * Ill-formed bytes are replaced the way the Unicode standard recommends and the reference does
 * (chapter 3, "substitution of maximal subparts"): one U+FFFD for each longest stretch that begins
 * a well-formed sequence but does not finish it, or for each byte that can begin none.
 *
 *     61 F0 9F 92 62          a  FFFD  b          three bytes of an emoji, cut off
 *     C0 80                   FFFD FFFD           C0 begins nothing
 *     ED A0 80                FFFD FFFD FFFD      a surrogate: A0 may not follow ED
 *
 * Whether a stretch is finished is decided by scan(), and by it alone, so the check, the whole-text
 * form and the streaming form agree by construction. */
#include "tokenizer.h"

#include <string.h>

static const char replacement[] = "\xEF\xBF\xBD"; // U+FFFD

/* Bytes of the sequence that `first` begins (0: none) and the range of its second byte, which is
 * what excludes overlong forms, surrogates and code points past U+10FFFF (table 3-7 of the
 * standard). */
static uint32_t sequence(uint8_t first, uint8_t *lo, uint8_t *hi)
{
    *lo = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    *hi = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (first < 0x80) return 1;
    if (first < 0xC2) return 0;
    if (first < 0xE0) return 2;
    if (first < 0xF0) return 3;
    return first < 0xF5 ? 4 : 0;
}

typedef enum { WHOLE, BROKEN, UNFINISHED } shape;

/* What stands at p (n >= 1 bytes): a whole character, a broken one, or one that the end cuts off.
 * *len is its length, for a broken one that of the maximal subpart (at least 1). */
static shape scan(const uint8_t *p, size_t n, uint32_t *len)
{
    uint8_t lo, hi;
    const uint32_t want = sequence(p[0], &lo, &hi);
    *len = 1;
    if (want == 0) return BROKEN;
    while (*len < want) {
        if (*len == n) return UNFINISHED;
        if (p[*len] < lo || p[*len] > hi) return BROKEN;
        lo = 0x80, hi = 0xBF;
        ++*len;
    }
    return WHOLE;
}

/* Bytes from `at` on that are ASCII, looked at eight at a time. */
static size_t ascii_run(const uint8_t *p, size_t n, size_t at)
{
    size_t i = at;
    for (uint64_t word; n - i >= sizeof word; i += sizeof word) {
        memcpy(&word, p + i, sizeof word);
        if (word & UINT64_C(0x8080808080808080)) break;
    }
    while (i < n && p[i] < 0x80) i++;
    return i - at;
}

size_t coli__utf8_check(const char *bytes, size_t n_bytes)
{
    const uint8_t *p = (const uint8_t *)bytes;
    size_t at = 0;
    while (at < n_bytes) {
        at += ascii_run(p, n_bytes, at);
        uint32_t len;
        if (at == n_bytes || scan(p + at, n_bytes - at, &len) != WHOLE) break;
        at += len;
    }
    return at;
}

/* Complete, or give up, the character of which s->tail holds the beginning.  Returns how many of
 * the new bytes that took. */
static coli_status push_tail(coli__utf8_stream *s, const uint8_t *p, size_t n, size_t *n_used,
                             coli__buf *out)
{
    *n_used = 0;
    while (s->n_tail > 0 && *n_used < n) {
        s->tail[s->n_tail] = p[*n_used];
        uint32_t len;
        switch (scan(s->tail, s->n_tail + 1, &len)) {
        case WHOLE:
            COLI_TRY(coli__buf_append(out, s->tail, len));
            s->n_tail = 0;
            ++*n_used;
            break;
        case UNFINISHED:
            s->n_tail++;
            ++*n_used;
            break;
        case BROKEN: // the new byte is not part of it and is looked at afresh
            COLI_TRY(coli__buf_str(out, replacement));
            s->n_tail = 0;
            break;
        }
    }
    return COLI_OK;
}

coli_status coli__utf8_push(coli__utf8_stream *s, const char *bytes, size_t n_bytes, coli__buf *out)
{
    const uint8_t *p = (const uint8_t *)bytes;
    size_t at, run; // [run, at) is well-formed and not yet written
    COLI_TRY(push_tail(s, p, n_bytes, &at, out));
    run = at;
    while (at < n_bytes) {
        at += ascii_run(p, n_bytes, at);
        if (at == n_bytes) break;
        uint32_t len;
        const shape found = scan(p + at, n_bytes - at, &len);
        if (found != WHOLE && at > run) COLI_TRY(coli__buf_append(out, p + run, at - run));
        if (found == UNFINISHED) {
            memcpy(s->tail, p + at, len);
            s->n_tail = len;
        }
        if (found == BROKEN) COLI_TRY(coli__buf_str(out, replacement));
        at += len;
        if (found != WHOLE) run = at;
    }
    return at > run ? coli__buf_append(out, p + run, at - run) : COLI_OK;
}

coli_status coli__utf8_flush(coli__utf8_stream *s, coli__buf *out)
{
    if (s->n_tail == 0) return COLI_OK;
    s->n_tail = 0;
    return coli__buf_str(out, replacement);
}
