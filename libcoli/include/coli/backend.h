/* coli/backend.h - what a backend plugin exports, and what it may expect of its host.
 *
 * A plugin is a shared library coli_NAME.so (.dll, .dylib) that computes experts and dense matrices
 * on some device.  It links nothing of libcoli: this header and coli/exact.h are all it needs.
 * docs/backends.md builds a complete one, and `coli backend check FILE` tries any.
 *
 * The plugin exports one record of data, coli_backend_info, and the functions of the list below,
 * each as coli_backend_<name>.  The record is read before any function is called.
 *
 * Numbers.  A device must give the bits of coli/exact.h; section "arithmetic" says which operations
 * there are.  So a model's answer is the same wherever its experts ran.
 *
 * Versions.  Host and plugin work together when their major versions are equal.  A minor version
 * adds optional functions to the list and members to the ends of structs, never anything else:
 *   - the host does not look up functions newer than the plugin's minor version, and plugins export
 *     what they like beyond the list;
 *   - every struct that crosses starts with struct_size, which whoever made it sets to the sizeof of
 *     his header.  COLI_BK_HAS says whether it reaches a member; a member that it does not reach
 *     counts as zero, and zero always means the older behaviour.  A member beyond what one's own
 *     header knows is ignored;
 *   - structs without struct_size stand in arrays and are final.
 *
 * Conventions.  Integers have fixed widths, text is UTF-8, handles are opaque.  No C++ exception
 * and no longjmp leaves a plugin; memory is freed by the side that allocated it.  A plugin has no
 * constructors beyond its runtime's, reads no environment, prints nothing and never ends the process.
 *
 * Failure.  A function that returns a coli_bk_status calls host->fail exactly once before it returns
 * a failure (BUSY and EMPTY are none), with one line that says what happened.  After a failure
 * nothing is pending or allocated, outputs are untouched, and the next call works, unless the
 * status says otherwise.  The host can always do without a device: it has the weights and
 * the activations, and computes on the processor what a device could not.
 *
 * Refusals.  Where the numbers that the host hands over do not fit each other, the plugin says INVALID
 * or UNSUPPORTED instead of computing on: a device that is not there; options that it does not know;
 * a source without data, or whose n_matrix, formats, widths, offsets or n_bytes do not fit each other,
 * or of a format that it did not declare; a group with NULL, a matrix or experts of several shapes
 * among its experts, with other activation groups than their gates have, with a row beyond n_x, with
 * a join's term or pair that is not there, or with any join when it cannot; a product with NULL or an
 * expert as w, with other activation groups than w has, or ld below n_out; an overwrite of another
 * shape.  That pointers are valid otherwise, and structs and arrays as long as they say, is the host's
 * promise.
 *
 * Waiting.  No call waits longer than host->wait_limit_ns for a device, or than the limit among its
 * arguments; it then returns COLI_BK_LOST.
 *
 * Threads.  The calls for one device form two sequences, and each call names its own:
 *     work   group_issue, group_take, matmul, matmul_batch
 *     copy   tensor_upload, tensor_free, tensor_overwrite, tensor_overwrite_async, fence_poll,
 *            host_alloc, host_free
 *     any    mem_info, alloc_footprint, group_stats
 * Calls of one sequence come one after another, perhaps from different threads; the two sequences
 * and the calls under `any` run at the same time.  open and close run alone for their device.
 * device_count and device_info may be called at any time from any thread.  Different devices are
 * independent.  Calling threads round to nearest and keep denormals; threads that the plugin starts
 * are its own business.  No entry may be called from inside a host service.
 *
 * What the host promises.  It overwrites or frees a tensor only after every group and product that
 * uses it was taken, and uses a tensor only after its upload or its fence is done.  So a plugin needs
 * no bookkeeping for that.  Of a lost device it frees nothing, and calls close alone. */
#ifndef COLI_BACKEND_H
#define COLI_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define COLI_BK_ABI_MAJOR 1u
#define COLI_BK_ABI_MINOR 1u

/* Whether *p, a struct that crosses, reaches the end of a member. */
#define COLI_BK_HAS(p, type, member)                                                               \
    ((p)->struct_size >= offsetof(type, member) + sizeof((p)->member))

/* ---- status -------------------------------------------------------------------------------- */

typedef int32_t coli_bk_status;

#define COLI_BK_STATUS_LIST(X)                                                                     \
    X(OK, 0, "ok")                                                                                 \
    X(INVALID, 1, "invalid argument")                    /* refused before anything happened */    \
    X(NOMEM, 2, "no room on the device")                 /* worth another try after a free */      \
    X(UNSUPPORTED, 3, "not supported")                   /* a format or shape not declared */      \
    X(FAILED, 4, "failed")                               /* this call; perhaps not the next */     \
    X(LOST, 5, "the device is lost")                     /* or hangs: every later call fails */    \
    X(EMPTY, 6, "nothing was issued")                    /* take without issue: no failure */      \
    X(BUSY, 7, "not ready")                              /* fence not done; group not yet taken */

enum {
#define COLI_BK_STATUS_ENUM(name, value, text) COLI_BK_##name = value,
    COLI_BK_STATUS_LIST(COLI_BK_STATUS_ENUM)
#undef COLI_BK_STATUS_ENUM
};

/* ---- weight formats ------------------------------------------------------------------------ */

/* A matrix has n_out rows of n_in weights, y = W x, in the layout of the model file: nothing is
 * repacked on the way to a device.
 *
 *     Rows stand in panels of 16, the last padded with zero rows; columns in groups of G = 64 or 32,
 *     the last padded with zero columns.  Panels follow each other; a panel is
 *
 *         scales once ("row" formats)   16 numbers, one per row, f16 or f32
 *         for each group
 *             scales ("g" formats)      16 numbers
 *             codes, in chunks of 64 bytes; bytes 4r..4r+3 of a chunk belong to row r:
 *                 int8  chunk c: columns 4c..4c+3, stored as value + 128           (G/4 chunks)
 *                 int4  chunk c: low nibbles columns 8c..8c+3, high nibbles 8c+4..8c+7,
 *                       stored as value + 8                                        (G/8 chunks)
 *
 *     A scale is the stored number times 2^scale_exp: 0, or of a magnitude within [2^-40, 2^10], with
 *     either sign.  f16 scales may be denormal f16 numbers.  Padding holds the code of 0; its scales
 *     are 0.
 *
 * "row" formats have one scale per row and are computed in groups of 64 like the others. */
#define COLI_BK_FORMAT_LIST(X)                                                                     \
    /* name         value  bits  group  scale per row  bytes of a scale */                         \
    X(I8_G64_F16,   0,     8,    64,    0,             2)                                          \
    X(I8_G64_F32,   1,     8,    64,    0,             4)                                          \
    X(I8_G32_F16,   2,     8,    32,    0,             2)                                          \
    X(I8_G32_F32,   3,     8,    32,    0,             4)                                          \
    X(I8_ROW_F16,   4,     8,    64,    1,             2)                                          \
    X(I8_ROW_F32,   5,     8,    64,    1,             4)                                          \
    X(I4_G64_F16,   6,     4,    64,    0,             2)                                          \
    X(I4_G64_F32,   7,     4,    64,    0,             4)                                          \
    X(I4_G32_F16,   8,     4,    32,    0,             2)                                          \
    X(I4_G32_F32,   9,     4,    32,    0,             4)                                          \
    X(I4_ROW_F16,   10,    4,    64,    1,             2)                                          \
    X(I4_ROW_F32,   11,    4,    64,    1,             4)

enum {
#define COLI_BK_FORMAT_ENUM(name, value, bits, group, per_row, scale_bytes)                        \
    COLI_BK_##name = value,
    COLI_BK_FORMAT_LIST(COLI_BK_FORMAT_ENUM)
#undef COLI_BK_FORMAT_ENUM
    COLI_BK_N_FORMAT
};

enum { COLI_BK_PANEL = 16 };

/* A format and its layout for rows of n_in weights.  format must be below COLI_BK_N_FORMAT. */
typedef struct coli_bk_layout {
    uint32_t bits, group, per_row, scale_bytes;
    uint32_t n_group;     /* groups of a row */
    uint32_t group_bytes; /* from one group of a panel to the next */
    uint32_t code_offset; /* of the codes in a group: behind its scales */
    uint32_t first_group; /* of group 0 in a panel: behind the scales of a "row" format */
    uint64_t panel_bytes; /* from one panel to the next */
} coli_bk_layout;

static inline coli_bk_layout coli_bk_layout_of(uint32_t format, uint32_t n_in)
{
    static const uint8_t formats[COLI_BK_N_FORMAT][4] = {
#define COLI_BK_FORMAT_ROW(name, value, bits, group, per_row, scale_bytes)                         \
    {bits, group, per_row, scale_bytes},
        COLI_BK_FORMAT_LIST(COLI_BK_FORMAT_ROW)
#undef COLI_BK_FORMAT_ROW
    };
    coli_bk_layout l;
    l.bits = formats[format][0];
    l.group = formats[format][1];
    l.per_row = formats[format][2];
    l.scale_bytes = formats[format][3];
    l.n_group = n_in / l.group + (n_in % l.group != 0);
    l.code_offset = l.per_row ? 0 : COLI_BK_PANEL * l.scale_bytes;
    l.first_group = l.per_row ? COLI_BK_PANEL * l.scale_bytes : 0;
    l.group_bytes = l.code_offset + COLI_BK_PANEL * l.group * l.bits / 8;
    l.panel_bytes = l.first_group + (uint64_t)l.n_group * l.group_bytes;
    return l;
}

/* Bytes of an (n_out, n_in) matrix.  n_out and n_in are below 2^31; no overflow. */
static inline uint64_t coli_bk_matrix_bytes(uint32_t format, uint32_t n_out, uint32_t n_in)
{
    const uint64_t n_panel = ((uint64_t)n_out + COLI_BK_PANEL - 1) / COLI_BK_PANEL;
    return n_panel * coli_bk_layout_of(format, n_in).panel_bytes;
}

/* ---- arithmetic ----------------------------------------------------------------------------
 *
 * Activations arrive quantised: per row and group of G columns, G int8 numbers q (-127..127, padded
 * with 0) and one f32 scale d, 0 or at least 2^-63.  Floats are binary32; every operation is rounded
 * once, to nearest even; nothing is fused.
 *
 *     product   s_g = sum of q*w over the group, exact in int32
 *               v_g = float(s_g) * (scale * d_g)                           coli_group_value
 *               y   = tree sum of v_0, v_1, ... : neighbours in pairs, then neighbours of these, as
 *                     if padded with zeros to a power of two; then + 0.0f, so that -0 becomes 0
 *                                                            coli_tree_add, coli_tree_sum
 *     expert    g = W_gate x,  u = W_up x,  h = silu(g) * u                coli_silu
 *               h is quantised in the groups of W_down                     coli_quantise_group
 *               y = W_down h
 *               A row is flagged when coli_quantise_group returns false for one of its groups: a
 *               number is not finite or its magnitude is 2^40 or more.  Its y is then of no use.
 *     join      sum = 0;  for each term in order: sum = sum + (weight * y_term)
 *
 * Denormals: products and their sums are none, since |v_g| is 0 or at least 2^-103.  silu(g)*u may be
 * one, and coli_quantise_group makes a group that is below 2^-56 altogether zero.  So a device that
 * flushes denormals to zero gives the same bits, except where it joins: it must not declare
 * COLI_BK_CAN_JOIN. */

/* ---- host ---------------------------------------------------------------------------------- */

enum { COLI_BK_LOG_DEBUG, COLI_BK_LOG_INFO, COLI_BK_LOG_WARNING };
enum { COLI_BK_ALLOC_PINNED = 1 }; /* keep the pages in memory (mlock); NULL when that is refused */

/* Services of the host, for as long as the device (or the call of device_count or device_info) that
 * they were handed to.  They may be called from any thread, also the plugin's own. */
typedef struct coli_bk_host {
    uint32_t struct_size;
    uint32_t abi_minor; /* of the host */
    void *ctx;          /* first argument of all services */
    void (*fail)(void *ctx, const char *text);
    void (*log)(void *ctx, int32_t level, const char *text); /* NULL: nobody listens */
    uint64_t (*clock_ns)(void *ctx);                         /* monotonic; NULL: none */
    /* align is a power of two, at least 8; NULL when there is no memory. */
    void *(*alloc)(void *ctx, uint64_t n_bytes, uint64_t align, uint32_t flags);
    void (*free)(void *ctx, void *memory); /* NULL is fine */
    uint64_t wait_limit_ns;
    const char *options; /* what the user set for this backend; "" for nothing.  The plugin says
                            what it understands, and refuses to open with anything else */
} coli_bk_host;

/* ---- devices ------------------------------------------------------------------------------- */

typedef struct coli_bk_device coli_bk_device; /* an open device */
typedef struct coli_bk_tensor coli_bk_tensor; /* an expert or a matrix on it */

/* SIMULATED and CPU devices are used only when they are asked for. */
enum { COLI_BK_DISCRETE, COLI_BK_INTEGRATED, COLI_BK_CPU, COLI_BK_SIMULATED };

enum {
    COLI_BK_CAN_JOIN = 1, /* group_issue understands `joins` */
};

typedef struct coli_bk_device_info {
    uint32_t struct_size;
    uint32_t kind;
    uint32_t formats;          /* bit f: format f */
    uint32_t flags;            /* COLI_BK_CAN_JOIN */
    uint64_t mem_total;        /* bytes */
    uint64_t max_tensor_bytes; /* 0: as large as memory allows */
    char name[128];            /* "NVIDIA GeForce RTX 3060" */
    char driver[128];          /* and version */
    char uuid[64];             /* the physical device, as its vendor prints it; "" when unknown */
    char unusable[256];        /* why this device cannot be opened; "" when it can */
} coli_bk_device_info;

typedef struct coli_bk_mem_info {
    uint32_t struct_size;
    uint32_t is_assumed;   /* 1: the driver does not tell, free_bytes is a guess */
    uint64_t free_bytes, total_bytes; /* free <= total */
} coli_bk_mem_info;

/* ---- tensors ------------------------------------------------------------------------------- */

typedef struct coli_bk_matrix { /* final */
    uint32_t format, n_out, n_in;
    int32_t scale_exp; /* -60..60 */
    uint64_t offset;   /* of its first byte in the block, a multiple of 64 */
} coli_bk_matrix;

/* What to put on the device: one block that holds one matrix, or the three of an expert in the order
 * gate (f, d), up (f, d), down (d, f), where gate and up have the same group.
 * Everything but scale_exp belongs to the tensor's shape. */
typedef struct coli_bk_source {
    uint32_t struct_size;
    uint32_t n_matrix; /* 1 or 3 */
    const void *data;  /* 64-byte aligned, readable */
    uint64_t n_bytes;  /* a multiple of 32 */
    coli_bk_matrix matrix[3];
} coli_bk_source;

/* ---- work ---------------------------------------------------------------------------------- */

/* A joined row: terms first_term .. first_term+n_term-1 of the group's term arrays. */
typedef struct coli_bk_join { /* final */
    uint32_t first_term, n_term;
} coli_bk_join;

/* Rows through experts.  All experts of a group have the same shape.  The rows of expert i follow those of
 * expert i-1: pair p is one (expert, row).  All memory is the host's, and free again when the call
 * returns. */
typedef struct coli_bk_group {
    uint32_t struct_size;
    uint32_t n_expert;              /* 0 is fine, and an expert may occur twice */
    coli_bk_tensor *const *experts; /* (n_expert) */
    const uint32_t *n_row;          /* (n_expert) 0 is fine */
    const uint32_t *row;            /* (n_pair) which activation row, below n_x; n_pair = sum of n_row */
    uint32_t n_x;
    uint32_t group, n_group; /* those of the experts' gate */
    uint32_t reserved;
    const int8_t *q; /* (n_x, n_group * group) */
    const float *d;  /* (n_x, n_group) */
    /* since 1.1: where all experts of some activation row are in this group, their rows may be joined
     * here.  Only for devices with COLI_BK_CAN_JOIN.  A pair that is a term of a join has no row of
     * its own in the result; the others keep their order. */
    uint32_t n_join, n_term;
    const coli_bk_join *joins; /* (n_join) */
    const uint32_t *term_pair; /* (n_term) each pair at most once */
    const float *term_weight;  /* (n_term) */
} coli_bk_group;

/* The result of a group: rows of the pairs that are in no join, in order, then the joins. */
typedef struct coli_bk_result {
    uint32_t struct_size;
    uint32_t n_row;
    const float *y;      /* row i at y + i * ld; the device's, valid until its next group_issue */
    uint64_t ld;
    const uint8_t *flag; /* (n_row) 1: a number left its range (see "arithmetic"); a join is flagged
                            when one of its terms is */
} coli_bk_result;

/* y = W x for n_row rows; w is a tensor of one matrix.  Done when the call returns. */
typedef struct coli_bk_matmul {
    uint32_t struct_size;
    uint32_t n_row; /* 0 is fine */
    const coli_bk_tensor *w;
    uint32_t group, n_group; /* those of w */
    const int8_t *q;         /* (n_row, n_group * group) */
    const float *d;          /* (n_row, n_group) */
    float *y;                /* out: row i at y + i * ld */
    uint64_t ld;             /* at least n_out */
} coli_bk_matmul;

/* Since the device was opened; ms are 0 where nobody measured. */
typedef struct coli_bk_group_stats {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t n_group, n_expert, n_row, n_matmul;
    uint64_t upload_bytes;
    double to_device_ms, kernel_ms, to_host_ms; /* activations in, computing, results out */
    double upload_ms;
    double clock_ms; /* of a device that is simulated: what time it is there; 0: it is none */
} coli_bk_group_stats;

typedef uint64_t coli_bk_fence; /* never 0 */

/* ---- the list ------------------------------------------------------------------------------ */

/* RESOLVE: a plugin without it is refused, with all that are missing named at once.
 * RESOLVE_OPT: NULL when absent; the host then does what the comment says.  One that returns
 * UNSUPPORTED counts as absent from then on; one that returns NULL or 0, for that call.
 * since: the minor version that brought it. */
/* clang-format off */
#define COLI_BACKEND_SYMBOLS(RESOLVE, RESOLVE_OPT)                                                 \
    /*         since  returns         name              parameters */                              \
    /* How many devices there are.  0 is no failure, but host->fail may be told why. */            \
    RESOLVE    (0, coli_bk_status, device_count,    (const coli_bk_host *host, uint32_t *n))       \
    /* Without opening it.  info->struct_size is the host's.  INVALID beyond the last device. */   \
    RESOLVE    (0, coli_bk_status, device_info,     (const coli_bk_host *host, uint32_t device,    \
                                                     coli_bk_device_info *info))                   \
    /* Twice at the same time is fine: two independent devices. */                                 \
    RESOLVE    (0, coli_bk_status, open,            (const coli_bk_host *host, uint32_t device,    \
                                                     coli_bk_device **out))                        \
    /* Ends all work, also a group that was not taken, and the plugin's threads, and releases what \
     * was not freed.  Also of a lost device.  NULL is fine. */                                    \
    RESOLVE    (0, void,           close,           (coli_bk_device *dev))                         \
    RESOLVE    (0, coli_bk_status, mem_info,        (coli_bk_device *dev, coli_bk_mem_info *out))  \
    /* Copy the block and check its shape.  The source is free again on return. */                 \
    RESOLVE    (0, coli_bk_status, tensor_upload,   (coli_bk_device *dev,                          \
                                                     const coli_bk_source *source,                 \
                                                     coli_bk_tensor **out))                        \
    /* NULL is fine. */                                                                            \
    RESOLVE    (0, void,           tensor_free,     (coli_bk_device *dev, coli_bk_tensor *tensor)) \
    /* Start a group; BUSY while another was not taken. */                                         \
    RESOLVE    (0, coli_bk_status, group_issue,     (coli_bk_device *dev,                          \
                                                     const coli_bk_group *group))                  \
    /* Wait for it.  EMPTY when nothing was issued, FAILED when it was and is lost. */             \
    RESOLVE    (0, coli_bk_status, group_take,      (coli_bk_device *dev, uint64_t wait_limit_ns,  \
                                                     coli_bk_result *out))                         \
    /* New content and scale_exp for a tensor of this very shape.  After INVALID the old content is \
     * whole, after another failure the tensor may only be freed. Absent: free, then upload. */    \
    RESOLVE_OPT(0, coli_bk_status, tensor_overwrite, (coli_bk_device *dev, coli_bk_tensor *tensor, \
                                                     const coli_bk_source *source))                \
    /* The same in the background: the source must stay until the fence is done. */                \
    RESOLVE_OPT(0, coli_bk_status, tensor_overwrite_async, (coli_bk_device *dev,                   \
                                                     coli_bk_tensor *tensor,                       \
                                                     const coli_bk_source *source,                 \
                                                     coli_bk_fence *out))                          \
    /* Wait up to so long: OK once it is done, and from then on; BUSY; another status when the copy \
     * failed.  Any order.  Absent, like the one above: the copy is synchronous. */                \
    RESOLVE_OPT(0, coli_bk_status, fence_poll,      (coli_bk_device *dev, coli_bk_fence fence,     \
                                                     uint64_t wait_limit_ns))                      \
    /* Memory from which copies are fast (page-locked), 64-byte aligned.  NULL: take other memory. */ \
    RESOLVE_OPT(0, void *,         host_alloc,      (coli_bk_device *dev, uint64_t n_bytes))       \
    RESOLVE_OPT(0, void,           host_free,       (coli_bk_device *dev, void *memory))           \
    /* Device memory that a tensor of so many bytes takes: at least those, and no less for more. \
     * Absent: the bytes. */                                                                       \
    RESOLVE_OPT(0, uint64_t,       alloc_footprint, (coli_bk_device *dev, uint64_t n_bytes))       \
    /* Absent: dense matrices stay on the processor. */                                            \
    RESOLVE_OPT(1, coli_bk_status, matmul,          (coli_bk_device *dev,                          \
                                                     const coli_bk_matmul *args))                  \
    /* Several at once, which do not depend on each other.  Absent: one matmul after another. */   \
    RESOLVE_OPT(1, coli_bk_status, matmul_batch,    (coli_bk_device *dev,                          \
                                                     const coli_bk_matmul *const *args, uint32_t n)) \
    /* Absent: no numbers. */                                                                      \
    RESOLVE_OPT(1, coli_bk_status, group_stats,     (coli_bk_device *dev,                          \
                                                     coli_bk_group_stats *out))
/* clang-format on */

/* ---- what a plugin exports ----------------------------------------------------------------- */

#define COLI_BK_MAGIC "coli-bk" /* with its NUL, 8 bytes */

typedef struct coli_bk_info {
    char magic[8];
    uint32_t struct_size;
    uint32_t abi_major, abi_minor;
    uint32_t reserved;
    char name[32];   /* lower case: "cuda" for coli_cuda.so */
    char build[128]; /* version and toolchain, for people */
} coli_bk_info;

#if defined(_WIN32)
#define COLI_BK_EXPORT __declspec(dllexport)
#else
#define COLI_BK_EXPORT __attribute__((visibility("default")))
#endif

/* A plugin defines COLI_BACKEND_PLUGIN before it includes this header; then the functions of the list
 * and the record are declared, and a definition that differs from the list does not compile. */
#if defined(COLI_BACKEND_PLUGIN)
extern COLI_BK_EXPORT const coli_bk_info coli_backend_info;
#define COLI_BK_DECLARE(since, returns, name, parameters)                                          \
    COLI_BK_EXPORT returns coli_backend_##name parameters;
COLI_BACKEND_SYMBOLS(COLI_BK_DECLARE, COLI_BK_DECLARE)
#undef COLI_BK_DECLARE
#endif

#ifdef __cplusplus
}
#endif
#endif
