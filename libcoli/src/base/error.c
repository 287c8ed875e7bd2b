/* error.c - the per-thread message behind coli_error_message().
 *
 * The text lives in a fixed thread-local buffer: reporting a failure must not itself need memory.
 * Longer messages are cut at a character, never inside a UTF-8 sequence. */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 4096 }; // room for a line about each of some ten files

static _Thread_local char message[MESSAGE_BYTES];

/* A text that was cut to fit may end inside a character: drop that. */
static void drop_half_character(char *text)
{
    size_t n = strlen(text);
    while (n > 0 && ((unsigned char)text[n - 1] & 0xC0) == 0x80) n--;
    if (n > 0 && ((unsigned char)text[n - 1] & 0x80)) n--;
    text[n] = 0;
}

coli_status coli__fail(coli_status status, const char *fmt, ...)
{
    char text[MESSAGE_BYTES]; // an argument may be the present message itself
    va_list args;
    va_start(args, fmt);
    const int n_bytes = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n_bytes >= MESSAGE_BYTES) drop_half_character(text);
    memcpy(message, text, sizeof message);
    return status;
}

coli_status coli__fail_in(coli_status status, const char *prefix_fmt, ...)
{
    char prefix[MESSAGE_BYTES];
    va_list args;
    va_start(args, prefix_fmt);
    vsnprintf(prefix, sizeof prefix, prefix_fmt, args);
    va_end(args);
    return coli__fail(status, "%s: %s", prefix, message);
}

const char *coli_error_message(void)
{
    return message;
}

const char *coli_status_name(coli_status status)
{
    switch (status) {
#define COLI_STATUS_NAME(name, value, text)                                                        \
    case COLI_##name:                                                                              \
        return "COLI_" #name;
        COLI_STATUS_LIST(COLI_STATUS_NAME)
#undef COLI_STATUS_NAME
    }
    return "unknown";
}

const char *coli_status_text(coli_status status)
{
    switch (status) {
#define COLI_STATUS_TEXT(name, value, text)                                                        \
    case COLI_##name:                                                                              \
        return text;
        COLI_STATUS_LIST(COLI_STATUS_TEXT)
#undef COLI_STATUS_TEXT
    }
    return "unknown";
}
