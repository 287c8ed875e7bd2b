/* open_model.h - from settings to a model, a session and a way to sample. */
#ifndef APP_OPEN_MODEL_H
#define APP_OPEN_MODEL_H

#include "coli/coli.h"
#include "settings.h"

typedef struct app_engine {
    coli_model *model;
    coli_session *session;
    coli_recorder *recorder; // trace.h; NULL: nothing is recorded
    uint64_t lost_told;      // bits: devices whose loss was told
    bool streams;            // --stream
    coli_route_opts route;   // of the session
} app_engine;

/* The directory that the settings mean: --model or COLI_MODEL as typed, else the shipped model,
 * found from the program's own place.  Fills `dir`; an exit code, with a message printed, when
 * there is none. */
int app_model_dir(const app_settings *s, char *dir, size_t cap);

/* Settings with the directory that `coli COMMAND [DIR]` may name instead of --model.  An exit code,
 * with a message printed, when both are there. */
int app_model_argument(const app_settings *s, const char *command, app_settings *out);

enum {
    APP_OPEN_SESSION = 1, // make a session, too
    APP_OPEN_DEVICES = 2, // to make tokens: use a GPU also when nobody asked for one
    APP_OPEN_TELL = 4     // on stderr: which devices are used; a bar while weights are copied there
};

/* What the settings say about opening it; what: APP_OPEN_DEVICES or 0. */
coli_model_opts app_model_opts(const app_settings *s, uint32_t what);
coli_kv app_kv(const app_settings *s);
/* What to do with a file that is no model; %s: its path. */
/* What to do with a file that is none of ours, or a pack; new memory. */
char *app_file_advice(const char *path);
/* Of a model that could not be opened: whether the backend that was asked for is why; then the message goes
 * on with a line for each file that was tried.  What to do (free()), NULL where nothing is known. */
bool app_is_backend_failure(const app_settings *s, coli_status status);
char *app_opening_advice(const app_settings *s, coli_status status, const char *dir);
/* The message, and that as a hint; an exit code. */
int app_fail_opening(const app_settings *s, coli_status status, const char *dir);

/* Open that model.  what: bits of the above.  An exit code; close whatever it was. */
int app_open(const app_settings *s, uint32_t what, app_engine *out);
/* The session as the settings want it, for who opened without one: n_ctx of its own. */
coli_status app_open_session(const app_settings *s, uint32_t n_ctx, app_engine *engine);
void app_close(app_engine *engine);

/* On stderr, with devices: how many of the experts' rows they computed, and what was exchanged. */
void app_device_footer(const app_engine *engine);
/* The same of experts in memory; nothing where all are mapped. */
void app_store_footer(const app_engine *engine);

/* A line on stderr for every device that was given up since this was last called.  app_close does it,
 * too. */
void app_tell_lost(app_engine *engine);

/* Below the error about a backend that was asked for: what to try. */
void app_hint_backend(const char *backend);

/* Whether a model that was planned gets through: what --ram has no room for is refused; without it opening
 * tries, and swap may hold the rest. */
bool app_starts(const app_settings *s, const coli_plan_result *p, const coli_system *y);

/* Whether the model goes further than this session: --ctx N would help. */
bool app_can_grow(const app_engine *engine);

/* app_fail for a file, or a directory of a model or a checkpoint, that was to be read: also APP_BAD
 * where what stands there is no file, and where a number in one is out of range. */
int app_fail_reading(coli_status status, const char *path, bool is_directory);
/* A regular file that may be opened. */
bool app_can_read(const char *path);

/* Whether something can be made under that name, asked before the work for it: it is not empty, its
 * directory is there, and a file's does not end in a slash.  `what` is its name in the command's
 * synopsis.  An exit code, with a message printed. */
int app_check_out(const char *command, const char *what, const char *path, bool is_directory);

/* The model's tokenizer; an exit code, with a message printed, when it has none. */
int app_tokenizer(const app_engine *engine, const coli_tokenizer **out);
/* coli_tokenize into new memory (free). */
coli_status app_tokenize(const coli_tokenizer *tokenizer, const char *text, size_t n_bytes,
                         bool plain, int32_t **ids, size_t *n_ids);

/* The model's way of sampling with what the settings change. */
coli_status app_sampling(const app_settings *s, const coli_model *model, coli_sampling *out);

/* `hummingbird · 22.2 M weights, 4.0 M active · context 4096 · 2 threads · avx512` on stderr. */
void app_banner(const app_engine *engine);

double app_gb(uint64_t n_bytes); // 10^9 bytes
/* "22.2 M", "35.1 B". */
void app_count_text(uint64_t n, char *out, size_t cap);

#endif
