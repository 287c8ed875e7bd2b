/* text.c - see text.h. */
#include "text.h"

#include <stdlib.h>
#include <string.h>

#include "terminal.h"

static const char REPLACEMENT[] = "\xEF\xBF\xBD"; // U+FFFD

size_t app_utf8_char(const char *text, size_t n_bytes, uint32_t *code)
{
    const unsigned char *b = (const unsigned char *)text;
    if (n_bytes == 0) return 0;
    *code = b[0];
    if (b[0] < 0x80) return 1;
    if (b[0] < 0xC2 || b[0] > 0xF4) return 0;
    const size_t n = b[0] >= 0xF0 ? 4 : b[0] >= 0xE0 ? 3 : 2;
    if (n > n_bytes) return 0;
    *code = b[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((b[i] & 0xC0) != 0x80) return 0;
        *code = *code << 6 | (b[i] & 0x3F);
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; // that needs n bytes
    const bool surrogate = *code >= 0xD800 && *code <= 0xDFFF;
    return *code < least[n] || *code > 0x10FFFF || surrogate ? 0 : n;
}

char *app_utf8_repair(const char *text, size_t n_bytes, size_t *n_out)
{
    char *out = app_alloc(n_bytes + 1, strlen(REPLACEMENT));
    size_t n = 0;
    for (size_t i = 0, step; i < n_bytes; i += step) {
        uint32_t code;
        step = app_utf8_char(text + i, n_bytes - i, &code);
        const char *from = step ? text + i : REPLACEMENT;
        const size_t n_from = step ? step : strlen(REPLACEMENT);
        memcpy(out + n, from, n_from);
        n += n_from;
        if (!step) step = 1;
    }
    *n_out = n;
    return out;
}

/* What is shown for a character that must not reach a terminal; "" for one that may. */
static void picture_of(uint32_t code, bool is_line, char picture[4])
{
    // an answer may be written from right to left; a name in a line would turn what stands around it
    const bool turns = (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069),
               separates = code == 0x2028 || code == 0x2029;
    *picture = 0;
    if (code < 0x20 || code == 0x7F)
        snprintf(picture, 4, "\xE2\x90%c", code == 0x7F ? 0xA1 : (int)(0x80 + code)); // U+2400 on
    else if ((code >= 0x80 && code < 0xA0) || (is_line && (turns || separates)))
        strcpy(picture, REPLACEMENT);
}

bool app_put_shown(FILE *stream, const char *text, size_t n_bytes, const char *kept)
{
    const bool is_line = !*kept;
    size_t from = 0; // from here to i it can be written as it is
    for (size_t i = 0, step; i < n_bytes; i += step) {
        uint32_t code;
        char picture[4];
        step = app_utf8_char(text + i, n_bytes - i, &code);
        if (step)
            picture_of(code, is_line, picture);
        else
            strcpy(picture, REPLACEMENT);
        if (!step) step = 1;
        if (!*picture || (text[i] && strchr(kept, text[i]))) continue;
        fwrite(text + from, 1, i - from, stream);
        fputs(picture, stream);
        from = i + step;
    }
    fwrite(text + from, 1, n_bytes - from, stream);
    return !ferror(stream);
}

char *app_format(const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, fmt, args);
    char *text = app_alloc(n < 0 ? 1 : (size_t)n + 1, 1);
    if (n > 0) vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(args);
    return text;
}
