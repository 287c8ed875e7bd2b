/* alloc.h - memory for libcoli: overflow-checked, counted, and able to fail on purpose in tests. */
#ifndef COLI_BASE_ALLOC_H
#define COLI_BASE_ALLOC_H

#include "error.h"

/* n * size bytes, zeroed; NULL (with a message set) on overflow or lack of memory.
 * n * size == 0 gives a pointer that may be freed, not dereferenced. */
void *coli__calloc(size_t n, size_t size);

/* Grow or shrink `p` (from coli__calloc or NULL) to n * size bytes; new bytes are undefined.
 * On failure NULL, and `p` stays valid. */
void *coli__realloc(void *p, size_t n, size_t size);

/* n bytes at a multiple of 64, zeroed.  Release with coli__free_aligned. */
void *coli__alloc64(size_t n);
/* The same with undefined contents: for what is written before it is read, and so large that pages
 * never written should never cost memory. */
void *coli__alloc64_raw(size_t n);
void coli__free_aligned(void *p);

void coli__free(void *p);
char *coli__strndup(const char *s, size_t n);
bool coli__ends_with(const char *text, const char *end);

/* Tests only: how often memory was asked for since the process began (all threads), and
 * "fail the nth request from now" (1 = the next; 0 = never). */
uint64_t coli__alloc_count(void);
void coli__alloc_fail_at(uint64_t nth);

/* A growing byte buffer.  Start zeroed; finish with coli__buf_finish.  data stays NUL-terminated
 * once anything was appended, so it can be read as a C string. */
typedef struct coli__buf {
    char *data;
    size_t n_bytes, cap_bytes;
} coli__buf;

coli_status coli__buf_append(coli__buf *buf, const void *bytes, size_t n_bytes);
coli_status coli__buf_str(coli__buf *buf, const char *text);
__attribute__((format(printf, 2, 3))) coli_status coli__buf_printf(coli__buf *buf, const char *fmt,
                                                                   ...);
/* A finite number in so many digits as JSON has it: printf's %g, but with a point whatever the locale. */
coli_status coli__buf_number(coli__buf *buf, double value, int n_digit);
void coli__buf_finish(coli__buf *buf);

/* a * b and a + b, false when they overflow. */
static inline bool coli__mul(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool coli__add(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
/* The same, saturating: for sizes that are compared with what there is, where too much is too much. */
static inline uint64_t coli__times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return coli__mul(a, b, &product) ? product : UINT64_MAX;
}
static inline uint64_t coli__plus(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return coli__add(a, b, &sum) ? sum : UINT64_MAX;
}

#endif
