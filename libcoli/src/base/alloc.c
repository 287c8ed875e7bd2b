/* alloc.c - every byte that libcoli's own code takes from the heap passes through take(), which counts
 * the requests (the token path must make none) and can refuse the nth (every caller must survive it).
 * Not seen here: what jansson and utf8proc take for themselves, while a model is opened or a
 * conversation rendered; a library may not replace their hooks, which are the whole program's. */
#include "alloc.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <malloc.h>
#endif

static atomic_uint_fast64_t n_request;
static atomic_int_fast64_t fail_countdown; // 0: off

static bool take(void)
{
    atomic_fetch_add_explicit(&n_request, 1, memory_order_relaxed);
    if (atomic_load_explicit(&fail_countdown, memory_order_relaxed) == 0) return true;
    return atomic_fetch_sub_explicit(&fail_countdown, 1, memory_order_relaxed) != 1;
}

uint64_t coli__alloc_count(void)
{
    return atomic_load(&n_request);
}
void coli__alloc_fail_at(uint64_t nth)
{
    atomic_store(&fail_countdown, (int_fast64_t)nth);
}

static void *no_memory(size_t n, size_t size)
{
    coli__fail(COLI_E_NOMEM, "out of memory: %zu x %zu bytes", n, size);
    return NULL;
}

void *coli__calloc(size_t n, size_t size)
{
    uint64_t total;
    if (!coli__mul(n, size, &total) || total > SIZE_MAX / 2) return no_memory(n, size);
    void *p = take() ? calloc(total ? (size_t)total : 1, 1) : NULL;
    return p ? p : no_memory(n, size);
}

void *coli__realloc(void *p, size_t n, size_t size)
{
    uint64_t total;
    if (!coli__mul(n, size, &total) || total > SIZE_MAX / 2) return no_memory(n, size);
    void *q = take() ? realloc(p, total ? (size_t)total : 1) : NULL;
    return q ? q : no_memory(n, size);
}

void *coli__alloc64_raw(size_t n)
{
    if (n > SIZE_MAX / 2) return no_memory(n, 1);
    const size_t rounded = n ? (n + 63) & ~(size_t)63 : 64;
    void *p = NULL;
    if (take()) {
#ifdef _WIN32
        p = _aligned_malloc(rounded, 64);
#else
        p = aligned_alloc(64, rounded);
#endif
    }
    return p ? p : no_memory(n, 1);
}

void *coli__alloc64(size_t n)
{
    void *p = coli__alloc64_raw(n);
    return p ? memset(p, 0, n) : NULL;
}

void coli__free_aligned(void *p)
{
#ifdef _WIN32
    _aligned_free(p);
#else
    free(p);
#endif
}

void coli__free(void *p)
{
    free(p);
}

bool coli__ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

char *coli__strndup(const char *s, size_t n)
{
    char *copy = coli__calloc(n + 1, 1);
    if (copy) memcpy(copy, s, n);
    return copy;
}

coli_status coli__buf_append(coli__buf *buf, const void *bytes, size_t n_bytes)
{
    if (n_bytes > SIZE_MAX / 4) return coli__fail(COLI_E_NOMEM, "a text of %zu bytes", n_bytes);
    const size_t need = buf->n_bytes + n_bytes + 1;
    if (need > buf->cap_bytes) {
        const size_t cap = need < 64 ? 64 : need + need / 2;
        char *grown = coli__realloc(buf->data, cap, 1);
        if (!grown) return COLI_E_NOMEM;
        buf->data = grown;
        buf->cap_bytes = cap;
    }
    if (n_bytes) memcpy(buf->data + buf->n_bytes, bytes, n_bytes);
    buf->n_bytes += n_bytes;
    buf->data[buf->n_bytes] = 0;
    return COLI_OK;
}

coli_status coli__buf_str(coli__buf *buf, const char *text)
{
    return coli__buf_append(buf, text, strlen(text));
}

coli_status coli__buf_printf(coli__buf *buf, const char *fmt, ...)
{
    char small[256];
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    const int n = vsnprintf(small, sizeof small, fmt, args);
    va_end(args);
    coli_status status = COLI_E_INTERNAL;
    if (n >= 0 && (size_t)n < sizeof small) {
        status = coli__buf_append(buf, small, (size_t)n);
    } else if (n >= 0) {
        char *large = coli__calloc((size_t)n + 1, 1);
        status = COLI_E_NOMEM;
        if (large) {
            vsnprintf(large, (size_t)n + 1, fmt, again);
            status = coli__buf_append(buf, large, (size_t)n);
            coli__free(large);
        }
    }
    va_end(again);
    return status;
}

coli_status coli__buf_number(coli__buf *buf, double value, int n_digit)
{
    char text[64], out[64];
    snprintf(text, sizeof text, "%.*g", n_digit, value);
    size_t n = 0;
    // all that can be foreign is the locale's point, of one byte or more
    for (const char *c = text; *c; c++)
        if (strchr("+-0123456789e", *c))
            out[n++] = *c;
        else if (n == 0 || out[n - 1] != '.')
            out[n++] = '.';
    return coli__buf_append(buf, out, n);
}

void coli__buf_finish(coli__buf *buf)
{
    coli__free(buf->data);
    *buf = (coli__buf){0};
}
