/* nfc.c - NFC piece by piece, with utf8proc's tables and a sort of our own.
 *
 * Why not utf8proc_NFC: it orders combining marks by swapping neighbours, which takes quadratic
 * time on a long run of marks whose classes alternate, and a text of a million marks is what an
 * attacker sends.  So decomposition and composition are utf8proc's, both linear, and between them
 * each run of marks is put in order by a stable counting sort over the 256 combining classes.
 *
 * The text is cut before every character below U+0300: such a character has class 0 and never
 * composes with what stands before it, so no rule looks across the cut.  A piece with nothing above
 * is copied as it is.
 *
 *     "cafe" U+0301 "s"    ->    caf | e U+0301 | s    ->    caf  é  s */
#include "nfc.h"

#include <string.h>
#include <utf8proc.h>

#include "utf8.h"

enum {
    SHORT_RUN = 16, // marks that insertion sort orders faster than 256 counters
    MAX_PARTS = 8   // a canonical decomposition has at most 4 code points
};

void coli__nfc_finish(coli__nfc_work *work)
{
    coli__free(work->points);
    coli__free(work->sorted);
    *work = (coli__nfc_work){0};
}

static size_t inert_run(const char *text, size_t n_bytes, size_t at)
{
    // U+0300 is CC 80: lead bytes below CC begin the inert characters.
    size_t i = at;
    while (i < n_bytes && (uint8_t)text[i] < 0xCC) i++;
    return i - at;
}

bool coli__nfc_is_trivial(const char *text, size_t n_bytes)
{
    return inert_run(text, n_bytes, 0) == n_bytes;
}

static coli_status reserve(coli__nfc_work *work, size_t n)
{
    if (n <= work->cap) return COLI_OK;
    const size_t cap = n + n / 2 + 64;
    int32_t *points = coli__realloc(work->points, cap, sizeof *points);
    if (!points) return COLI_E_NOMEM;
    work->points = points;
    int32_t *sorted = coli__realloc(work->sorted, cap, sizeof *sorted);
    if (!sorted) return COLI_E_NOMEM;
    work->sorted = sorted;
    work->cap = cap;
    return COLI_OK;
}

static uint8_t combining_class(int32_t point)
{
    return (uint8_t)utf8proc_get_property(point)->combining_class;
}

/* Order n marks by class, equal classes as they came. */
static void sort_marks(int32_t *marks, int32_t *room, size_t n)
{
    if (n <= SHORT_RUN) {
        for (size_t i = 1; i < n; i++) {
            const int32_t mark = marks[i];
            size_t k = i;
            for (; k > 0 && combining_class(marks[k - 1]) > combining_class(mark); k--)
                marks[k] = marks[k - 1];
            marks[k] = mark;
        }
        return;
    }
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++) start[combining_class(marks[i]) + 1]++;
    for (size_t c = 1; c < 257; c++) start[c] += start[c - 1];
    for (size_t i = 0; i < n; i++) room[start[combining_class(marks[i])]++] = marks[i];
    memcpy(marks, room, n * sizeof *marks);
}

static void order_marks(coli__nfc_work *work, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && combining_class(work->points[end]) != 0) end++;
        if (end - i > 1) sort_marks(work->points + i, work->sorted, end - i);
        i = end + 1;
    }
}

static coli_status piece_nfc(coli__nfc_work *work, const char *text, size_t n_bytes, coli__buf *out)
{
    size_t n = 0;
    for (size_t at = 0; at < n_bytes;) {
        COLI_TRY(reserve(work, n + MAX_PARTS));
        const utf8proc_ssize_t n_part =
            utf8proc_decompose_char((int32_t)coli__utf8_next(text, &at), work->points + n,
                                    MAX_PARTS, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, NULL);
        if (n_part < 0 || n_part > MAX_PARTS)
            return coli__fail(COLI_E_INTERNAL,
                              "NFC: cannot decompose the character before byte %zu", at);
        n += (size_t)n_part;
    }
    order_marks(work, n);
    const utf8proc_ssize_t n_composed = utf8proc_normalize_utf32(
        work->points, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (utf8proc_ssize_t i = 0; i < n_composed; i++) {
        uint8_t bytes[4];
        const utf8proc_ssize_t len = utf8proc_encode_char(work->points[i], bytes);
        COLI_TRY(coli__buf_append(out, bytes, (size_t)len));
    }
    return COLI_OK;
}

coli_status coli__nfc(coli__nfc_work *work, const char *text, size_t n_bytes, coli__buf *out)
{
    for (size_t at = 0; at < n_bytes;) {
        // The inert characters, less the last one when a live character may compose with it.
        size_t inert = inert_run(text, n_bytes, at);
        if (inert > 0 && at + inert < n_bytes) inert = coli__utf8_before(text, at + inert) - at;
        COLI_TRY(coli__buf_append(out, text + at, inert));
        at += inert;

        size_t end = at;
        if (end < n_bytes) coli__utf8_next(text, &end);
        while (end < n_bytes && (uint8_t)text[end] >= 0xCC) coli__utf8_next(text, &end);
        COLI_TRY(piece_nfc(work, text + at, end - at, out));
        at = end;
    }
    return COLI_OK;
}
