/* coli/status.h - how libcoli reports failure.
 *
 * Every function that can fail returns a coli_status.  The text that says what happened, where, what
 * was expected and what was found, is kept per thread: read it with coli_error_message() before the
 * same thread fails again.  Codes are stable; new ones are appended. */
#ifndef COLI_STATUS_H
#define COLI_STATUS_H

#if defined(_WIN32) && defined(COLI_BUILDING)
#define COLI_API __declspec(dllexport)
#elif defined(_WIN32) && !defined(COLI_STATIC)
#define COLI_API __declspec(dllimport)
#elif defined(__GNUC__)
#define COLI_API __attribute__((visibility("default")))
#else
#define COLI_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* One list: code, value, the phrase a person reads. */
#define COLI_STATUS_LIST(X)                                                                        \
    X(OK, 0, "ok")                                                                                 \
    X(E_INVALID, 1, "invalid argument")                                                            \
    X(E_NOMEM, 2, "out of memory")                                                                 \
    X(E_IO, 3, "input or output failed")                                                           \
    X(E_NOTFOUND, 4, "not found")                                                                  \
    X(E_FORMAT, 5, "malformed or unexpected data")                                                 \
    X(E_UNSUPPORTED, 6, "not supported")                                                           \
    X(E_EXISTS, 7, "already exists")                                                               \
    X(E_LIMIT, 8, "a limit was reached")                                                           \
    X(E_NUMERIC, 9, "a number left its range")                                                     \
    X(E_CANCELLED, 10, "cancelled")                                                                \
    X(E_INTERNAL, 11, "internal error")

typedef enum coli_status {
#define COLI_STATUS_ENUM(name, value, text) COLI_##name = value,
    COLI_STATUS_LIST(COLI_STATUS_ENUM)
#undef COLI_STATUS_ENUM
} coli_status;

/* The code's name ("COLI_E_FORMAT") and its phrase.  Never NULL; an unknown code gives "unknown". */
COLI_API const char *coli_status_name(coli_status status);
COLI_API const char *coli_status_text(coli_status status);

/* What the calling thread's last failed call had to say; "" before the first failure.
 * Valid until this thread's next failure. */
COLI_API const char *coli_error_message(void);

#ifdef __cplusplus
}
#endif
#endif
