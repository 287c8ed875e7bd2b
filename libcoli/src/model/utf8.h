/* utf8.h - reading code points out of text that coli__utf8_check has passed. */
#ifndef COLI_MODEL_UTF8_H
#define COLI_MODEL_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The code point at text[*at], which lies inside the text; *at moves behind it. */
static inline uint32_t coli__utf8_next(const char *text, size_t *at)
{
    const uint8_t *p = (const uint8_t *)text + *at;
    if (p[0] < 0x80) {
        *at += 1;
        return p[0];
    }
    if (p[0] < 0xE0) {
        *at += 2;
        return (uint32_t)(p[0] & 0x1F) << 6 | (p[1] & 0x3F);
    }
    if (p[0] < 0xF0) {
        *at += 3;
        return (uint32_t)(p[0] & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
    }
    *at += 4;
    return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 |
           (uint32_t)(p[2] & 0x3F) << 6 | (p[3] & 0x3F);
}

/* Where the character that ends before `at` (> 0) begins. */
static inline size_t coli__utf8_before(const char *text, size_t at)
{
    do at--;
    while (at > 0 && ((uint8_t)text[at] & 0xC0) == 0x80);
    return at;
}

#endif
