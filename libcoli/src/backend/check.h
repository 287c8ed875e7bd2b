/* check.h - what the cases of `coli backend check` share (check.c has the way of a check).
 *
 * A case is a straight line of calls and expectations.  The first one that does not hold ends the
 * child process that the case runs in, so nothing here returns a failure, and nothing is cleaned up
 * after one.  Memory from coli__ck_new lives until the case ends.
 *
 *     check.c          the table, the children, the report
 *     check_host.c     the host that plugins see, calls and their protocol
 *     check_world.c    experts, matrices, groups, and what must come out
 *     check_suspect.c  which mistake gives the wrong numbers that were found
 *     check_{numbers,groups,memory,life,threads}.c  the cases */
#ifndef COLI_BACKEND_CHECK_H
#define COLI_BACKEND_CHECK_H

#include <pthread.h>
#include <stdatomic.h>

#include "../base/child.h"
#include "plugin.h"
#include "reference.h"

/* One line per case: family, name, what it shows, function.  Names are those of the contract's list of
 * promises: N numbers, W work, M memory, S arguments and structs, L and X life, T threads. */
/* clang-format off */
#define COLI__CK_CASES(X)                                                                          \
    X(life,    X5,  devices,          "devices and their memory describe themselves sensibly")     \
    X(numbers, N1,  shapes,           "products and experts of every format have the right bits")  \
    X(numbers, N2,  extremes,         "extreme codes, scales and activations")                     \
    X(numbers, N3,  flags,            "rows out of range are flagged, their neighbours exact")     \
    X(numbers, N4,  rounding,         "inner activations are rounded as exact.h does")             \
    X(numbers, N5,  ragged,           "widths that are no multiple of the group")                  \
    X(numbers, N6,  repeated,         "100 repetitions give the same bits")                        \
    X(numbers, N9,  matmul_rows,      "matmul of 0 to 256 rows")                                   \
    X(numbers, N10, matmul_batch,     "several products at once")                                  \
    X(work,    W1,  call_order,       "rows come back in call order, 1 to 64 experts")             \
    X(work,    W2,  take_first,       "take without issue is EMPTY")                               \
    X(work,    W3,  issue_twice,      "a second issue is BUSY, the first still exact")             \
    X(work,    W4,  result_stays,     "a result stays until the next issue")                       \
    X(work,    W5,  inputs_reused,    "inputs may be overwritten or unmapped once issue returns")  \
    X(work,    W6,  same_expert,      "an expert twice in a group, and in two groups")             \
    X(work,    W7,  refused_groups,   "wrong groups are refused with nothing pending")             \
    X(work,    W8,  no_rows,          "experts without rows, groups without experts")              \
    X(work,    W10, product_between,  "products between issue and take")                           \
    X(work,    W11, copy_between,     "upload, overwrite and free between issue and take")         \
    X(work,    W13, formats,          "undeclared formats are refused")                            \
    X(work,    W14, joins,            "joined rows, terms in any order")                           \
    X(memory,  M1,  accounting,       "1000 uploads and frees leave the memory as it was")         \
    X(memory,  M2,  fill,             "a full device: earlier tensors exact, room after a free")   \
    X(memory,  M3,  footprint,        "alloc_footprint is at least the bytes, and monotone")       \
    X(memory,  M5,  overwrite,        "an overwritten tensor computes with its new content")       \
    X(memory,  M6,  overwrite_async,  "overwrites in the background, and their fences")            \
    X(memory,  M7,  host_memory,      "host_alloc gives memory to upload from")                    \
    X(memory,  M9,  source_reused,    "an upload's source may be unmapped on return")              \
    X(memory,  M10, leaks,            "1000 groups and 1000 overwrites leak nothing")              \
    X(structs, S1,  struct_sizes,     "structs of an older and of a newer host")                   \
    X(structs, S2,  wrong_sources,    "wrong tensors are refused, and the next is fine")           \
    X(structs, S3,  handles,          "handles of the wrong kind are refused, NULL is freed")      \
    X(structs, S5,  bare_host,        "a host without log and clock")                              \
    X(life,    X7,  close_any_time,   "close of nothing, with a group or a fence pending")         \
    X(life,    X8,  stats,            "group_stats count what was done")                           \
    X(life,    X9,  options,          "unknown options are refused")                               \
    X(life,    L13, open_often,       "100 times open and close, and two at once")                 \
    X(life,    M4,  no_host_memory,   "each host allocation of a life fails in turn")              \
    X(threads, T1,  two_sequences,    "groups and copies at the same time")                        \
    X(threads, T2,  two_devices,      "two devices at the same time")                              \
    X(threads, T3,  strangers,        "calls from threads that never opened anything")             \
    X(threads, T6,  float_mode,       "the caller's floating-point mode is left alone")
/* clang-format on */

typedef struct coli__ck coli__ck;
#define COLI__CK_DECLARE(family, name, function, shows) void coli__ck_##function(coli__ck *ck);
COLI__CK_CASES(COLI__CK_DECLARE)
#undef COLI__CK_DECLARE

/* ---- the child's state ---------------------------------------------------------------------- */

enum { COLI__CK_N_THREAD = 4, COLI__CK_TEXT = 480 };

/* Seen by the parent: what each thread is calling, and what to think of when it dies there. */
typedef struct coli__ck_shared {
    char entry[COLI__CK_N_THREAD][32];
    char hint[160];
    uint32_t n_open; // calls of open in this process
} coli__ck_shared;

/* The host that plugins get: counts everything. */
typedef struct coli__ck_host {
    coli_bk_host table; // ctx is this struct
    atomic_uint n_fail;
    atomic_int n_live;         // allocations not yet freed
    atomic_uint n_alloc;       // ever
    atomic_uint fail_alloc_at; // this one gives NULL; 0: none
    pthread_mutex_t mu;        // guards message
    char message[256];         // of the last failure
    coli__ck *ck;
} coli__ck_host;

struct coli__ck {
    /* immutable while cases run */
    coli__backend_api api;
    coli_bk_info plugin;
    uint32_t device;
    coli__child *child;
    coli__ck_shared *shared;
    coli__ck_host host;

    uint32_t now;  // the case
    uint64_t seed; // of its inputs
    coli_bk_device *dev;
    coli_bk_device_info info; // of the device
    bool is_parallel;         // calls run at the same time: failures cannot be told apart
    char skipped[COLI__CK_TEXT];
    void **kept; // memory of the case
    uint32_t n_kept;
};

/* ---- ends (check.c) ------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) _Noreturn void coli__ck_fault(coli__ck *ck, const char *fmt,
                                                                    ...);
/* The same for wrong numbers, with what explains them. */
__attribute__((format(printf, 3, 4))) _Noreturn void coli__ck_wrong(coli__ck *ck, const char *why,
                                                                    const char *fmt, ...);
/* The check cannot go on, through no fault of the plugin. */
__attribute__((format(printf, 3, 4))) _Noreturn void
coli__ck_cannot(coli__ck *ck, coli_status status, const char *fmt, ...);
/* The case, or a part of it, does not apply; the caller returns. */
__attribute__((format(printf, 2, 3))) void coli__ck_skip(coli__ck *ck, const char *fmt, ...);
/* What a crash from here on may mean; NULL: nothing special. */
void coli__ck_hint(coli__ck *ck, const char *text);
/* Zeroed memory until the case ends. */
void *coli__ck_new(coli__ck *ck, size_t n, size_t size);

#define COLI__CK_EXPECT(ck, condition, ...)                                                        \
    do {                                                                                           \
        if (!(condition)) coli__ck_fault(ck, __VA_ARGS__);                                         \
    } while (0)

/* ---- calls (check_host.c) -------------------------------------------------------------------- */

void coli__ck_host_init(coli__ck_host *host, coli__ck *ck, const char *options,
                        uint64_t wait_limit_ns);

void coli__ck_begin(coli__ck *ck, const char *entry);
void coli__ck_end(coli__ck *ck);
/* A status must be one, and host->fail was called once for a failure and never else. */
coli_bk_status coli__ck_status(coli__ck *ck, const char *entry, coli_bk_status status);
const char *coli__ck_status_name(coli_bk_status status);
/* OK, or a fault that names the call. */
void coli__ck_want(coli__ck *ck, const char *entry, coli_bk_status status, coli_bk_status wanted);
/* A refusal: INVALID or UNSUPPORTED. */
void coli__ck_want_refusal(coli__ck *ck, const char *entry, coli_bk_status status,
                           const char *of_what);

/* Every call of the plugin is written with one of these.  CALL gives the status, OK demands COLI_BK_OK,
 * REFUSED demands a refusal, VALUE and VOID are for entries without a status. */
#define CK_CALL(ck, entry, ...)                                                                    \
    coli__ck_status(ck, #entry, (coli__ck_begin(ck, #entry), (ck)->api.entry(__VA_ARGS__)))
#define CK_OK(ck, entry, ...) coli__ck_want(ck, #entry, CK_CALL(ck, entry, __VA_ARGS__), COLI_BK_OK)
#define CK_REFUSED(ck, of_what, entry, ...)                                                        \
    coli__ck_want_refusal(ck, #entry, CK_CALL(ck, entry, __VA_ARGS__), of_what)
#define CK_VOID(ck, entry, ...)                                                                    \
    (coli__ck_begin(ck, #entry), (ck)->api.entry(__VA_ARGS__), coli__ck_end(ck))
#define CK_VALUE(ck, entry, out, ...)                                                              \
    (coli__ck_begin(ck, #entry), *(out) = (ck)->api.entry(__VA_ARGS__), coli__ck_end(ck))

void coli__ck_open(coli__ck *ck, coli_bk_device **out); // with ck->host
void coli__ck_close(coli__ck *ck, coli_bk_device *dev);
coli_bk_mem_info coli__ck_memory(coli__ck *ck);

/* Run `fn` in threads 1..n of the case and wait for them all. */
void coli__ck_threads(coli__ck *ck, uint32_t n, void (*const *fns)(coli__ck *ck, void *ctx),
                      void *ctx);

/* ---- worlds (check_world.c) ------------------------------------------------------------------ */

/* Something on the device, and what it holds. */
typedef struct coli__ck_tensor {
    coli_bk_source now, before; // before: what an overwrite replaced; n_matrix 0: nothing
    coli_bk_tensor *handle;
} coli__ck_tensor;

/* Quantised activation rows. */
typedef struct coli__ck_rows {
    uint32_t n, n_in, group, n_group;
    int8_t *q; // (n, n_group * group)
    float *d;  // (n, n_group)
} coli__ck_rows;

/* A group with all that it points to, and what must come out. */
typedef struct coli__ck_group {
    coli_bk_group args;
    coli__ck_tensor **of; // (n_expert)
    const coli__ck_rows *x;
    const coli__ck_rows *after; // what stood in x once issue had returned; NULL: the same
    uint32_t n_pair, n_out;     // n_out: d of the experts
    uint32_t *expert;           // (n_pair) index into `of`
    float *y;                   // (n_pair, n_out) without joins
    uint8_t *flag;              // (n_pair)
} coli__ck_group;

/* Formats that the device declares. */
uint32_t coli__ck_n_format(const coli__ck *ck);
uint32_t coli__ck_format(const coli__ck *ck, uint32_t i); // i modulo their number
const char *coli__ck_format_name(uint32_t format);

/* A new block; nothing is uploaded.  The expert's gate and up have one format, its down another. */
coli_bk_source coli__ck_expert_block(coli__ck *ck, uint32_t gate_up, uint32_t down, uint32_t d,
                                     uint32_t f);
coli_bk_source coli__ck_matrix_block(coli__ck *ck, uint32_t format, uint32_t n_out, uint32_t n_in);
/* Write one weight, or a row's stored scale (of a group, or of all with group == ~0u). */
void coli__ck_put_code(const coli_bk_source *s, uint32_t matrix, uint32_t row, uint32_t column,
                       int32_t value);
void coli__ck_put_scale(const coli_bk_source *s, uint32_t matrix, uint32_t row, uint32_t group,
                        float scale);

coli__ck_tensor *coli__ck_upload(coli__ck *ck, coli_bk_source source);
void coli__ck_free(coli__ck *ck, coli__ck_tensor *t);
coli__ck_tensor *coli__ck_expert(coli__ck *ck, uint32_t gate_up, uint32_t down, uint32_t d,
                                 uint32_t f); // block and upload
/* After an overwrite that succeeded. */
void coli__ck_replaced(coli__ck_tensor *t, coli_bk_source source);

coli__ck_rows *coli__ck_random_rows(coli__ck *ck, uint32_t n, const coli_bk_matrix *of);

/* A group of n_expert experts, expert i with n_row[i] rows drawn from x; expected numbers are
 * computed.  ck_expected computes them anew, after the experts or x have changed. */
coli__ck_group *coli__ck_make_group(coli__ck *ck, coli__ck_tensor *const *experts,
                                    uint32_t n_expert, const uint32_t *n_row,
                                    const coli__ck_rows *x);
void coli__ck_expected(coli__ck *ck, coli__ck_group *g);

coli_bk_result coli__ck_take(coli__ck *ck);
/* Every bit of the result is right, or a fault that says what looks wrong. */
void coli__ck_right(coli__ck *ck, const coli__ck_group *g, const coli_bk_result *r);
void coli__ck_run(coli__ck *ck, const coli__ck_group *g); // issue, take, right
/* One random expert of this shape, n_row rows: upload, run, free. */
void coli__ck_try_expert(coli__ck *ck, uint32_t gate_up, uint32_t down, uint32_t d, uint32_t f,
                         uint32_t n_row);

/* Rows through a matrix; y (n_row, ld) must be right and the gaps between rows untouched. */
typedef struct coli__ck_product {
    coli_bk_matmul args;
    const coli__ck_tensor *w;
    float *expected; // (n_row, n_out)
} coli__ck_product;
coli__ck_product *coli__ck_make_product(coli__ck *ck, const coli__ck_tensor *w,
                                        const coli__ck_rows *x);
void coli__ck_product_right(coli__ck *ck, const coli__ck_product *p);
void coli__ck_product_run(coli__ck *ck, coli__ck_product *p);

/* ---- suspects (check_suspect.c) --------------------------------------------------------------- */

/* A row that came out wrong: what it should have been made of, and what it was. */
typedef struct coli__ck_question {
    const coli_bk_source *source, *before; // before: NULL, or what the tensor held earlier
    const coli__ck_rows *x, *after;        // after: NULL, or what stood in x later
    uint32_t row;                          // of x
    const float *expected, *found;         // (n_out)
    uint32_t n_out;
} coli__ck_question;

/* The mistake whose numbers are exactly those found, or what else can be said of them. */
void coli__ck_suspect(const coli__ck_question *question, char text[COLI__CK_TEXT]);

#endif
