/* nfc.h - Unicode normalisation form C in linear time. */
#ifndef COLI_MODEL_NFC_H
#define COLI_MODEL_NFC_H

#include "../base/alloc.h"

/* Code points of the stretch in work.  Start zeroed; keep it for the next call. */
typedef struct coli__nfc_work {
    int32_t *points, *sorted; // (cap)
    size_t cap;
} coli__nfc_work;
void coli__nfc_finish(coli__nfc_work *work);

/* Append the NFC of text (well-formed UTF-8) to out. */
coli_status coli__nfc(coli__nfc_work *work, const char *text, size_t n_bytes, coli__buf *out);

/* True when text is surely its own NFC: no character from U+0300 on. */
bool coli__nfc_is_trivial(const char *text, size_t n_bytes);

#endif
