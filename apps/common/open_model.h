/* open_model.h - from settings to a model, a session and a way to sample. */
#ifndef APP_OPEN_MODEL_H
#define APP_OPEN_MODEL_H

#include "coli/coli.h"
#include "settings.h"

typedef struct app_engine {
    coli_model *model;
    coli_session *session;
} app_engine;

/* The directory that the settings mean: --model or COLI_MODEL as typed, else the shipped model,
 * found from the program's own place.  Fills `dir`; an exit code, with a message printed, when
 * there is none. */
int app_model_dir(const app_settings *s, char *dir, size_t cap);

/* Settings with the directory that `coli COMMAND [DIR]` may name instead of --model.  An exit code,
 * with a message printed, when both are there. */
int app_model_argument(const app_settings *s, const char *command, app_settings *out);

/* Open that model; with_session also makes a session.  An exit code; close whatever it was. */
int app_open(const app_settings *s, bool with_session, app_engine *out);
void app_close(app_engine *engine);

/* The model's tokenizer; an exit code, with a message printed, when it has none. */
int app_tokenizer(const app_engine *engine, const coli_tokenizer **out);
/* coli_tokenize into new memory (free). */
coli_status app_tokenize(const coli_tokenizer *tokenizer, const char *text, size_t n_bytes,
                         bool plain, int32_t **ids, size_t *n_ids);

/* The model's way of sampling with what the settings change. */
coli_status app_sampling(const app_settings *s, const coli_model *model, coli_sampling *out);

/* `hummingbird · 22.2 M parameters, 4.0 M active · context 4096 · 2 threads · avx512` on stderr. */
void app_banner(const app_engine *engine);

/* "22.2 M", "35.1 B". */
void app_count_text(uint64_t n, char *out, size_t cap);

#endif
