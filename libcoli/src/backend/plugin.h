/* plugin.h - find backend plugins, check them, and resolve what they export.
 *
 * Candidates come in the order of the search: the path that was asked for, or else the files named
 * coli_NAME.so (.dll, .dylib) in the directories of the search path, in the directory of libcoli
 * itself, in the place of an installation that lies relative to it, and in the install directory
 * that was compiled in.  Never the working directory, never a bare name.  Each candidate keeps how
 * far it came and why it was refused. */
#ifndef COLI_BACKEND_PLUGIN_H
#define COLI_BACKEND_PLUGIN_H

#include <pthread.h>

#include "../base/dynlib.h"
#include "../base/error.h"
#include "coli/backend.h"

/* The functions of coli/backend.h; optional ones are NULL when absent.  What only makes sense
 * together is there together or not at all: tensor_overwrite_async and fence_poll; host_alloc and
 * host_free; matmul_batch only with matmul. */
typedef struct coli__backend_api {
#define COLI__API_MEMBER(since, returns, name, parameters) returns(*name) parameters;
    COLI_BACKEND_SYMBOLS(COLI__API_MEMBER, COLI__API_MEMBER)
#undef COLI__API_MEMBER
} coli__backend_api;

/* How far a candidate came. */
#define COLI__PLUGIN_STAGES(X)                                                                     \
    X(FILE, "file")             /* absent, not a file */                                           \
    X(NAME, "name")             /* another of this name comes first: not loaded */                 \
    X(LIBRARY, "library")       /* the system cannot load it */                                    \
    X(DESCRIPTOR, "descriptor") /* no coli_backend_info, or not one of ours */                     \
    X(VERSION, "version")       /* another major version */                                        \
    X(SYMBOLS, "symbols")       /* mandatory functions are missing */                              \
    X(DEVICE, "device")         /* no device, or none that can be used */                          \
    X(READY, "ready")

typedef enum coli__plugin_stage {
#define COLI__STAGE_ENUM(name, text) COLI__PLUGIN_##name,
    COLI__PLUGIN_STAGES(COLI__STAGE_ENUM)
#undef COLI__STAGE_ENUM
} coli__plugin_stage;

const char *coli__plugin_stage_name(coli__plugin_stage stage);

/* A candidate, and a plugin once its stage is DEVICE or READY. */
typedef struct coli__plugin {
    char *path;               // absolute
    const char *file;         // the end of path: coli_NAME.so; NULL unless the search found it
    coli__plugin_stage stage; // the one that failed; READY: none (devices were not looked at yet)
    char *reason;             // why, and what to do about it; NULL when READY
    coli_bk_info info;        // a copy; zero before DESCRIPTOR was passed; strings are terminated
    coli__backend_api api;
    coli__dynlib *lib;
    bool keep;
} coli__plugin;

typedef struct coli__plugin_list {
    coli__plugin *plugins; // (n) in the order of the search
    size_t n;
} coli__plugin_list;

/* Look for candidates and load them up to READY.
 *   backend      NULL: all files that are found; a name ("cuda"): that one in each directory, absent
 *                ones too; a path (it has a slash, or a backslash on Windows): this file alone
 *   search_path  directories, ':' between them (';' on Windows), absolute; NULL: none
 * A file or directory that is reached twice counts once.  Of several with one name the first that
 * comes to READY is taken.  No plugin function is called.  An empty list is no failure.
 * Errors  E_INVALID (a directory of search_path is relative), E_NOMEM, E_IO. */
coli_status coli__plugins_find(const char *backend, const char *search_path,
                               coli__plugin_list *out);
/* Unloads libraries of which no device was opened (coli__plugin_keep). */
void coli__plugins_free(coli__plugin_list *list);

/* One file, as above, whatever it is called.  out->stage says how far it came; a status other than
 * OK says that nobody could find out (E_NOMEM, E_IO). */
coli_status coli__plugin_load(const char *path, coli__plugin *out);
void coli__plugin_unload(coli__plugin *plugin); // and zeroes it
/* A device was opened: from now on the library stays until the process ends. */
void coli__plugin_keep(coli__plugin *plugin);
/* Move a plugin that was READY back to `stage`, with this thread's message as the reason. */
coli_status coli__plugin_refuse(coli__plugin *plugin, coli__plugin_stage stage);

/* Write the candidates, one line each: "  FILE: STAGE: REASON", for messages; coli__free.  NULL
 * when there is no memory. */
char *coli__plugins_report(const coli__plugin_list *list);

/* What the host hands to plugins.  fail stores the text in `message`; log goes to `log` or nowhere.
 * One per device: not shared between threads that could fail at the same time, but its services are
 * safe to be called from the plugin's threads. */
typedef struct coli__host {
    coli_bk_host table; // ctx is this struct: it must not move
    void (*log)(void *user, int32_t level, const char *text); // set before the plugin is called
    void *log_user;
    pthread_mutex_t mu;
    /* guarded by mu */
    uint32_t n_fail;   // calls of fail; tests and `check` look at it
    uint64_t n_block;  // of alloc that were not freed yet
    char message[512]; // of the last fail, one line of UTF-8; "" once it was reported
} coli__host;

/* options is borrowed; NULL: none. */
coli_status coli__host_init(coli__host *host, const char *options, uint64_t wait_limit_ns);
void coli__host_finish(coli__host *host);

/* Make a text that a plugin wrote into an array of cap bytes one line of UTF-8, with a NUL. */
void coli__plugin_text(char *text, size_t cap);

/* What a status of a plugin means to coli.h: OK, E_NOMEM, E_UNSUPPORTED, E_INVALID or E_IO, with a
 * message that names plugin, entry, status (also an unknown number) and host->message, which is ""
 * afterwards: an old text never explains a new failure. */
coli_status coli__backend_fail(const coli__plugin *plugin, coli__host *host, const char *entry,
                               coli_bk_status status);

#endif
