/* coli/coli.h - run a Mixture-of-Experts language model inside your own program.
 *
 * A model is opened once and shared; a session is one sequence of tokens on it; a chat is a
 * conversation on a session.  In five calls:
 *
 *     coli_model *m;  coli_session *s;  coli_chat *c;
 *     coli_model_open("models/hummingbird", NULL, &m);
 *     coli_session_create(m, NULL, &s);
 *     coli_chat_create(s, NULL, &c);
 *     coli_chat_say(c, "What is 17 + 25?", NULL, on_piece, user, &result);
 *
 * Promises.  The same model, tokens, sampling and seed give the same bytes whatever the number of
 * threads, the instruction set, or the way the prompt was cut into chunks.  Nothing is allocated
 * while tokens are made.  The library never prints, exits or reads the environment.
 *
 * Conventions.  Text is UTF-8.  Every struct that you pass starts with struct_size = sizeof it (but
 * coli_tensor, which stands in arrays and is final); zero in another field means the default, so
 * `= {sizeof x}` is valid, and so is NULL (but coli_sampling's fields count as they stand).
 * Functions return a coli_status (coli/status.h); on failure out-parameters are NULL or zero and
 * coli_error_message() says why.  Functions that return no status accept NULL and do nothing.
 *
 * Threads.  Functions on a coli_tokenizer, and those that take a const coli_model, may be called
 * from any thread at any time.  A session or chat is used by one thread at a time; sessions of one
 * model may be used by different threads, which then take turns.  coli_session_cancel may be called
 * from any thread and from a signal handler. */
#ifndef COLI_COLI_H
#define COLI_COLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0". */
COLI_API const char *coli_version(void);

/* Bytes handed over by the library.  data is NUL-terminated (the NUL is not counted). */
typedef struct coli_text {
    char *data;
    size_t n_bytes;
} coli_text;
COLI_API void coli_text_free(coli_text *text); /* and zeroes it */

/* Progress of long work in bytes.  Return false to stop it (E_CANCELLED). */
typedef bool (*coli_progress_fn)(void *user, const char *what, uint64_t done, uint64_t total);

/* ---- model --------------------------------------------------------------------------------- */

typedef struct coli_model coli_model;

/* How much of a device's memory the model's weights may take, on each device. */
typedef enum coli_vram_unit {
    COLI_VRAM_AUTO,   /* what is free, less 1 GiB */
    COLI_VRAM_BYTES,  /* vram bytes */
    COLI_VRAM_PERCENT /* as many as vram percent of the routed experts need */
} coli_vram_unit;

/* Where experts live when there are several devices (docs/devices.md). */
typedef enum coli_home {
    COLI_HOME_EXPERT, /* each layer is spread over the devices */
    COLI_HOME_LAYER   /* all experts of a layer are on one device; layers in the devices' order */
} coli_home;

/* What a re-plan does besides counting (docs/replan.md). */
typedef enum coli_replan_with {
    COLI_REPLAN_TAIL = 1,   /* late rows of the prompt count more */
    COLI_REPLAN_PRIOR = 2,  /* what was used before counts as some more rows */
    COLI_REPLAN_COST = 4,   /* no more swaps than pay, by measured speeds */
    COLI_REPLAN_ONLINE = 8, /* corrections while tokens are decoded, instead of slow swaps by heat */
    COLI_REPLAN_HOLD = 16   /* a prompt's swaps wait until the link is idle */
} coli_replan_with;

/* Whether the dense weights are copied into huge pages, where the system has some (docs/memory.md). */
typedef enum coli_huge {
    COLI_HUGE_AUTO, /* if opening reads them (coli_model_opts.progress), they are large, and memory has
                       room for them twice */
    COLI_HUGE_ON,
    COLI_HUGE_OFF
} coli_huge;

typedef struct coli_model_opts {
    uint32_t struct_size;
    uint32_t n_threads; /* compute threads, the caller's included; 0: one per usable processor */
    /* "scalar", "avx2", "avxvnni", "avx512", "amx", "neon", "i8mm"; NULL: the best this processor has,
     * which for "amx" is tried when the first model is opened */
    const char *isa;
    /* Devices.  NULL: a GPU, if a backend finds one that works.  "none": the processor alone.  The
     * name of a backend ("cuda"), or the path of its file: E_UNSUPPORTED with all reasons when it
     * cannot be used.  Devices never change a result. */
    const char *backend;
    const char *backend_path;    /* more directories of plugins, ':' between them (';' on Windows) */
    const char *backend_options; /* for the plugin; NULL: none */
    const char *devices;         /* ordinals, "0,2"; NULL: all that can be used */
    uint32_t vram_unit;          /* coli_vram_unit */
    uint32_t backend_wait_ms;    /* a device that takes longer is given up; 0: 10,000 */
    double vram;
    void (*note)(void *user, const char *line); /* which devices are used and how; NULL: nobody asks */
    coli_progress_fn progress; /* of copying experts to devices, of reading those that stay in memory, and
                                  of reading the dense weights: without it those are read when they are
                                  first used */
    void *user;                                 /* of both */
    /* Which experts devices hold (docs/devices.md). */
    const char *heat;   /* file of how much each was used by earlier runs, read here and written when the
                           model is closed; NULL: none.  It need not exist yet */
    bool heat_readonly; /* do not write it */
    bool replan;        /* each prompt's own routing decides, from its prefill on */
    uint32_t replan_max; /* swaps per layer and prompt; 0: 24, with COLI_REPLAN_COST as many as pay */
    bool no_warmstart;   /* fill nothing at the start: experts are copied when they are first used */
    uint32_t home;       /* coli_home */
    uint32_t layer_split; /* COLI_HOME_LAYER on two devices: the first has so many layers; 0: shares of
                             the layers as those of the memory.  E_INVALID when it does not fit */
    /* Memory (docs/memory.md).  Where it is less than the model needs, only some of the routed experts
     * are kept in it, and the others are read from the file when they are used. */
    uint64_t ram_bytes;   /* that the model may take, E_LIMIT where it does not do with so little; 0: what
                             is available, however little that is */
    uint32_t ram_experts; /* or: experts of each layer; 0: as ram_bytes says */
    uint64_t pin_bytes;   /* of these, for the experts that the heat file says are used most, which then
                             stay; 0: the library's choice */
    bool no_pilot;        /* do not guess which experts the next layer will use, to read them early */
    uint32_t replan_with; /* coli_replan_with, added up; anything but 0 implies replan */
    /* Which of the dense matrices devices hold: "auto" or NULL (those worth more than the experts in
     * their place, if the device is faster), "off", "all" (what fits, before the experts), or a list
     * like "lmhead=0;dnproj=0:20+1:20;experts=all" (docs/devices.md). */
    const char *place;
    bool no_trunk_probe; /* auto: do not try whether a device is faster than the processor */
    uint32_t n_ctx;      /* of the session that will be made, as in coli_session_opts: memory is kept for
                            it; 0: the default */
    uint32_t n_chunk, kv; /* of that session, likewise */
    /* While several rows are computed at once, experts that no device holds pass through two spare slots
     * of each device, if at least so many of the rows use them; 0: none do; COLI_STREAM_AUTO: those of
     * which it is known to save time. */
    uint32_t stream_rows;
    bool no_numa;    /* where memory stands in several nodes, leave threads and pages to the system */
    uint32_t huge_pages; /* coli_huge */
} coli_model_opts;
#define COLI_STREAM_AUTO UINT32_MAX

/* Open a container directory (docs/formats/container.md).  The weights are mapped, not read, but for
 * experts for which there is not enough memory, and the dense weights where progress or COLI_HUGE_ON asks
 * for it.
 * Signals  on POSIX systems the first call installs a handler for SIGBUS, which comes when a mapped file
 *          was made shorter.  It acts on addresses in the weights alone, and hands all others to the
 *          handler that was there before.  A program that installs one of its own later, without
 *          calling this one, ends by such a file, as it would have anyway.
 * Errors   E_NOTFOUND, E_FORMAT (a file is malformed: names file and tensor), E_UNSUPPORTED (family
 *          or instruction set), E_LIMIT (ram_bytes), E_NOMEM, E_IO. */
COLI_API coli_status coli_model_open(const char *dir, const coli_model_opts *opts,
                                     coli_model **out);
/* Every session of the model must have been destroyed.  Writes the heat file. */
COLI_API void coli_model_close(coli_model *model);

/* Write the heat file now, which close does too without a word; nothing without one.  E_FORMAT when
 * something else stands there, E_IO. */
COLI_API coli_status coli_model_save_heat(const coli_model *model);

/* What a model is.  Strings are borrowed from the model. */
typedef struct coli_model_info {
    uint32_t struct_size; /* set by the caller */
    uint32_t n_layer, n_expert, n_expert_used, d_model, d_ff;
    uint32_t n_vocab;   /* rows of logits */
    uint32_t n_token;   /* ids below this have text; the rest is padding and never sampled */
    uint32_t n_ctx_max; /* longest context the model was made for */
    uint32_t n_threads;
    uint64_t weight_bytes;          /* the container's weights */
    uint64_t n_param, n_param_active; /* in all; per token */
    uint64_t expert_bytes;          /* one routed expert */
    const char *name;      /* the directory's last component */
    const char *family;    /* "qwen36" */
    const char *identity;  /* 32 hex digits that name these very weights */
    const char *expert_format, *trunk_format; /* "int4-g64-f16" */
    const char *chat_template;                /* "3.6" */
    const char *isa;                          /* in use */
    const int32_t *stop_ids; /* tokens that end a turn (generation_config.json) */
    uint32_t n_stop_ids;
    /* What making one token reads: bytes of weights, its one row of the embedding with the trunk.
     * And what it computes: multiply-adds with weights before the logits, and for the logits. */
    uint64_t token_expert_bytes, token_trunk_bytes, token_head_bytes;
    uint64_t n_mac_body, n_mac_head;
    uint64_t n_mac_experts; /* of n_mac_body: with routed experts */
} coli_model_info;
COLI_API coli_status coli_model_get_info(const coli_model *model, coli_model_info *info);

/* ---- devices ------------------------------------------------------------------------------- */

/* What the devices of a model hold and did since it was opened.  All zero without devices. */
typedef struct coli_backend_stats {
    uint32_t struct_size; /* set by the caller */
    uint32_t n_device, n_device_lost; /* opened; of these, given up */
    uint32_t n_matrix;                /* dense matrices on devices */
    uint64_t n_expert, n_expert_total; /* routed experts on devices; of all layers */
    uint64_t vram_bytes, allowance_bytes; /* memory that they take; that they may take */
    /* (row, expert) pairs computed on devices; on the processor; and of the latter those that a device
     * should have computed and failed */
    uint64_t n_row_device, n_row_host, n_row_again;
    uint64_t n_group, n_matmul;   /* done by devices */
    uint64_t n_matmul_again;      /* products that a device failed, computed on the processor */
    uint64_t n_upload, n_upload_failed;
    uint64_t n_overwrite, n_overwrite_async; /* of slots, by the two ways */
    /* What was done instead of something that a plugin lacks or failed: */
    uint64_t n_overwrite_fallback; /* free and upload for overwrite */
    uint64_t n_copy_sync;          /* a waiting copy for one in the background */
    uint64_t n_slot_lost;          /* nothing: the slot is gone */
    uint64_t n_batch_fallback;     /* one product after another for a batch */
    uint64_t n_pageable;           /* buffers of ordinary memory for page-locked ones */
    uint64_t n_footprint_fallback; /* the size for the footprint */
    uint64_t n_call_failed;        /* calls of plugins that failed */
    uint64_t n_call_late;          /* that did not answer in time */
    /* Pairs since the end of the last prompt: on devices, on the processor. */
    uint64_t n_hit_decode, n_miss_decode;
    uint64_t n_swap, n_swap_in_place, n_swap_failed; /* begun; landed in the very slot; lost */
    uint64_t n_replan_planned, n_replan_done, n_replan_pending, n_replan_skipped;
    /* As the devices measured (the fake one: as a real one would have taken), ms. */
    double upload_ms, to_device_ms, kernel_ms, to_host_ms;
    uint64_t n_matrix_off; /* of n_matrix: a device failed to compute with them, so it is not asked again */
    double clock_ms; /* simulated devices: what time it is on the latest clock (docs/backends/fake.md) */
    uint64_t n_streamed, n_row_streamed; /* experts that passed through a spare slot; pairs of n_row_device
                                            that they computed */
} coli_backend_stats;
/* Waits for the chunk that a session is computing. */
COLI_API coli_status coli_model_get_backend_stats(const coli_model *model, coli_backend_stats *out);

/* One of the devices that a model opened.  Strings are borrowed from the model. */
typedef struct coli_device_use {
    uint32_t struct_size; /* set by the caller */
    uint32_t ordinal;     /* of the backend's devices */
    const char *backend, *name, *uuid;
    const char *lost; /* why it was given up; NULL while it is in use */
    uint64_t n_expert;
    uint64_t vram_bytes, allowance_bytes;
} coli_device_use;
/* i < n_device of coli_backend_stats. */
COLI_API coli_status coli_model_get_device(const coli_model *model, uint32_t i, coli_device_use *out);

/* What cache-aware routing did and cost in all sessions of a model since it was opened, over the rows and
 * layers that were computed.  All zero without it. */
typedef struct coli_route_stats {
    uint32_t struct_size; /* set by the caller */
    uint64_t route_slots; /* experts chosen where residency may decide */
    uint64_t route_swaps, route_swaps_vram; /* of these, substitutes; of these, in VRAM */
    double swap_pct;                        /* 100 * route_swaps / route_slots */
    uint64_t n_agree, n_compared; /* experts that plain routing chooses, too; of so many */
    double route_agree;           /* 100 * n_agree / n_compared */
    uint64_t n_row;               /* (row, layer) pairs that were compared */
    double kl_sum;   /* KL(plain weights || chosen weights) of these in nats, each within 2^-25 */
    double route_kl; /* kl_sum / n_row */
} coli_route_stats;
/* Waits for the chunk that a session is computing. */
COLI_API coli_status coli_model_get_route_stats(const coli_model *model, coli_route_stats *out);
/* ---- memory -------------------------------------------------------------------------------- */

/* Where the routed experts are that no device holds, and what reading them took. */
typedef struct coli_store_stats {
    uint32_t struct_size; /* set by the caller */
    bool is_limited;      /* some in memory, the others read when they are used; else all are mapped, and
                             everything below is 0 */
    bool is_direct;       /* reads go past the system's cache */
    uint32_t n_slot;      /* experts of each layer that are in memory */
    uint32_t n_pinned;    /* of all layers: those that stay */
    uint64_t slot_bytes;  /* memory for experts, all layers together */
    /* Experts that a layer needed for a chunk and that no device held: in memory; not. */
    uint64_t n_hit, n_miss;
    uint64_t n_hit_decode, n_miss_decode; /* since the end of the last prompt */
    uint64_t n_read, read_bytes, n_read_failed;
    /* Read before a layer asked for them; used then.  And of all experts that a layer used, how many
     * were among those guessed: n_guess_right of n_guess_asked. */
    uint64_t n_guess_read, n_guess_used, n_guess_asked, n_guess_right;
    double wait_ms; /* that computing waited for reads */
} coli_store_stats;
/* Waits for the chunk that a session is computing. */
COLI_API coli_status coli_model_get_store_stats(const coli_model *model, coli_store_stats *out);

/* ---- text ---------------------------------------------------------------------------------- */

typedef struct coli_tokenizer coli_tokenizer;

/* From a tokenizer.json alone, without a model. */
COLI_API coli_status coli_tokenizer_open(const char *tokenizer_json, coli_tokenizer **out);
/* Only what coli_tokenizer_open gave. */
COLI_API void coli_tokenizer_close(coli_tokenizer *tokenizer);
/* The model's own; borrowed. */
COLI_API const coli_tokenizer *coli_model_tokenizer(const coli_model *model);

/* Text to ids.  Added tokens ("<|im_end|>") in the text are recognised unless plain is true.
 *   ids    (cap) the caller's; NULL with cap 0 to ask for the number
 *   n_ids  the number of ids; when larger than cap nothing is written and E_LIMIT is returned */
COLI_API coli_status coli_tokenize(const coli_tokenizer *tokenizer, const char *text,
                                   size_t n_bytes, bool plain, int32_t *ids, size_t cap,
                                   size_t *n_ids);

/* Ids to text; ill-formed sequences become U+FFFD. */
COLI_API coli_status coli_detokenize(const coli_tokenizer *tokenizer, const int32_t *ids,
                                     size_t n_ids, bool skip_special, coli_text *out);

/* The very bytes of one token, which may be part of a character: borrowed from the tokenizer, not
 * NUL-terminated.  NULL and 0 for an id that has none. */
COLI_API const char *coli_token_bytes(const coli_tokenizer *tokenizer, int32_t id,
                                      size_t *n_bytes);

/* Render a conversation as the family's chat template does, byte for byte.
 *   tmpl      "3.6" or "3.5"
 *   messages  JSON array of {"role", "content", "reasoning_content", "tool_calls"}
 *   options   JSON object or NULL: tools, enable_thinking, preserve_thinking, add_generation_prompt
 * Errors    E_FORMAT (not JSON), E_INVALID (the template refuses; the message says why). */
COLI_API coli_status coli_chat_render(const char *tmpl, const char *messages, size_t n_messages_bytes,
                                      const char *options, size_t n_options_bytes, coli_text *out);

/* ---- session ------------------------------------------------------------------------------- */

typedef struct coli_session coli_session;

/* Where an expert is, or was when a row used it. */
typedef enum coli_level {
    COLI_LEVEL_DISK, /* its weights have to be read for this row */
    COLI_LEVEL_RAM,
    COLI_LEVEL_VRAM
} coli_level;

/* Cache-aware routing (docs/CACHE_ROUTE.md): an expert that is in VRAM or RAM may take the place of one that
 * the router likes a little better.  Lossy: other experts run than the model was trained to use.  Fields
 * count as they stand: start from coli_route_default().
 *
 * Where experts are is looked at when a turn begins: at coli_chat_say, coli_session_eval, a
 * coli_session_feed of more than one token, and the first token after create or reset.  So a turn's bytes
 * depend on what was resident then, but not on threads, chunks or the speed of copies. */
typedef struct coli_route_opts {
    uint32_t struct_size; /* set by the caller */
    bool cache_route;     /* choose so; without it `agree` meters plain routing */
    bool agree;           /* meter agreement with plain routing, and KL */
    bool live;            /* look at every step: better choices, but no run can be repeated exactly */
    uint32_t j;           /* ranks that are always taken; the number of experts used and more: all */
    uint32_t m;           /* ranks among which experts are chosen by where they are; at most 256 are */
    float p;              /* above 0 and below 1: where the best of max(m, 4 * used) ranks have this share of
                             their mass, instead of m */
    float alpha;          /* factor of a substitute's weight, before all are divided by their sum; 0: 1 */
    /* (layers with experts, n_expert) coli_level: where experts are said to be, whatever is true, to
     * measure what a placement would cost without the device; copied by create.  NULL: it is looked at */
    const uint8_t *levels;
} coli_route_opts;
/* J 2, M 12, P 0, alpha 1, nothing switched on.  out->struct_size is set by the caller. */
COLI_API coli_status coli_route_default(coli_route_opts *out);

/* How the keys and values of attention are kept.  f16 takes half the memory, and at a long context
 * less time; a number is rounded to the nearest, and one of 65520 or more in magnitude is an error
 * (E_NUMERIC), never infinite.  Each gives the same bytes everywhere, but not those of the other. */
typedef enum coli_kv { COLI_KV_F16, COLI_KV_F32 } coli_kv;

typedef struct coli_session_opts {
    uint32_t struct_size;
    uint32_t n_ctx;   /* most tokens the session can hold; 0: the model's n_ctx_max, at most 32768 */
    uint32_t n_chunk; /* most prompt rows computed together; 0: 512 */
    uint32_t kv;      /* coli_kv */
    const coli_route_opts *route; /* NULL: plain routing, unmetered; read by create only */
} coli_session_opts;

/* All memory for n_ctx tokens is taken here. */
COLI_API coli_status coli_session_create(coli_model *model, const coli_session_opts *opts,
                                         coli_session **out);
COLI_API void coli_session_destroy(coli_session *session);
COLI_API void coli_session_reset(coli_session *session); /* back to position 0 */
COLI_API uint32_t coli_session_pos(const coli_session *session);   /* tokens fed */
COLI_API uint32_t coli_session_n_ctx(const coli_session *session);
COLI_API const coli_model *coli_session_model(const coli_session *session);

/* Feed tokens; afterwards the logits of the last one are there.  n_ids >= 1.
 * Errors   E_LIMIT     they do not fit n_ctx; nothing is fed
 *          E_INVALID   an id is outside the vocabulary; nothing is fed
 *          E_CANCELLED the chunks done so far are fed (coli_session_pos)
 *          E_NUMERIC   an activation, a key or a value left its range, at the layer and position named;
 *                      the session is reset
 *          E_IO        weights could not be read, or model.coli became shorter while it was in use; the
 *                      session is reset.  After the latter the model has to be opened again */
COLI_API coli_status coli_session_feed(coli_session *session, const int32_t *ids, size_t n_ids);

/* (n_vocab) f32 of the last token fed, borrowed until the next feed; NULL before the first, and after
 * a feed that failed or was cancelled half-way.  A feed that was refused changes nothing. */
COLI_API const float *coli_session_logits(const coli_session *session);

/* Ask the running feed, eval, generate or say to stop: it returns E_CANCELLED, or ends with
 * COLI_STOP_CANCELLED, at the next token or chunk.  Without effect while none runs: each begins by
 * forgetting earlier calls.  Async-signal-safe. */
COLI_API void coli_session_cancel(coli_session *session);

/* Feed tokens and look at every row: what measuring tools need.  on_rows is called once per chunk.
 *   pos         position of the first row
 *   n_row       rows in this call
 *   logits      (n_row, n_vocab)
 *   expert_ids  (n_layer, n_row, n_expert_used) best first
 *   expert_w    the same shape: renormalised weights
 * Return false to stop (E_CANCELLED). */
typedef bool (*coli_rows_fn)(void *user, uint32_t pos, uint32_t n_row, const float *logits,
                             const int32_t *expert_ids, const float *expert_w);
COLI_API coli_status coli_session_eval(coli_session *session, const int32_t *ids, size_t n_ids,
                                       coli_rows_fn on_rows, void *user);

/* The routing of the rows of one chunk; arrays are good during the call. */
typedef struct coli_route {
    uint32_t struct_size;
    uint32_t pos, n_row; /* position of the first row; rows */
    uint32_t n_layer, n_expert_used, n_ranked;
    const int32_t *experts; /* (n_layer, n_row, n_expert_used) that computed each row, best first */
    const float *weights;   /* the same shape: with which their results were added up */
    const uint8_t *levels;  /* the same shape: coli_level */
    const int32_t *ranked;  /* (n_layer, n_row, n_ranked) the best as the router sees them */
    const float *mass;      /* the same shape: their shares of its softmax over all experts */
} coli_route;
typedef void (*coli_route_fn)(void *user, const coli_route *route);

/* Look at the routing of all that the session feeds from now on: fn is called for each chunk once its
 * rows are computed, on the thread that feeds.  It must not use the session.  NULL: no more.  Memory is
 * taken here, for a chunk; n_ranked is 16, or the number of experts. */
COLI_API coli_status coli_session_on_route(coli_session *session, coli_route_fn fn, void *user);

/* The state at this position with its logits, to come back to.  Keys and values stay in the session,
 * so going back is possible while the tokens before the snapshot are still the session's: E_INVALID
 * once other tokens were fed in their place, or after a reset.  A snapshot may outlive its session. */
typedef struct coli_snapshot coli_snapshot;
COLI_API coli_status coli_session_snapshot(const coli_session *session, coli_snapshot **out);
COLI_API coli_status coli_session_restore(coli_session *session, const coli_snapshot *snapshot);
COLI_API void coli_snapshot_destroy(coli_snapshot *snapshot);

/* ---- sampling and generation --------------------------------------------------------------- */

/* Order: penalties, temperature, top_k, top_p, min_p, draw.  temperature 0 takes the largest logit,
 * ties to the lower id.  Fields are used as they stand: start from coli_sampling_default(). */
typedef struct coli_sampling {
    uint32_t struct_size;
    float temperature; /* 0: greedy */
    uint32_t top_k;    /* 0: off */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    float repetition_penalty; /* 1: off; divides positive, multiplies negative logits of tokens seen */
    float presence_penalty;   /* 0: off; subtracted from the logits of tokens made in this turn */
    uint64_t seed;
} coli_sampling;

/* The model's generation_config.json over the neutral values; seed 0.  out->struct_size is set by the
 * caller.  model NULL: the neutral values. */
COLI_API coli_status coli_sampling_default(const coli_model *model, coli_sampling *out);

/* Start a turn: set the session's generator and forget which tokens were made (presence_penalty).
 * coli_generate does it with its sampling's seed; create, reset and restore with 0. */
COLI_API void coli_session_seed(coli_session *session, uint64_t seed);
/* Take the next token from the present logits.  Padding rows are never taken.  Does not feed it. */
COLI_API coli_status coli_session_sample(coli_session *session, const coli_sampling *sampling,
                                         int32_t *id);

typedef enum coli_stop {
    COLI_STOP_NONE,      /* an error ended it */
    COLI_STOP_TOKEN,     /* the model ended its turn */
    COLI_STOP_LENGTH,    /* max_tokens were made */
    COLI_STOP_CONTEXT,   /* the context is full */
    COLI_STOP_CANCELLED  /* coli_session_cancel, or the callback returned false */
} coli_stop;

/* A piece of the answer as it appears: whole characters, never half of one. */
typedef struct coli_piece {
    const char *text; /* n_bytes, also NUL-terminated; may be empty while a character is unfinished */
    size_t n_bytes;
    int32_t id;
    bool thinking; /* inside the think block; its tags are not shown */
} coli_piece;
typedef bool (*coli_piece_fn)(void *user, const coli_piece *piece); /* false stops */

typedef struct coli_generate_opts {
    uint32_t struct_size;
    uint32_t max_tokens;            /* 0: to the end of the context */
    const coli_sampling *sampling;  /* NULL: the model's default */
    bool no_stop_tokens;            /* go on past end-of-turn tokens (measuring) */
} coli_generate_opts;

typedef struct coli_result {
    uint32_t struct_size; /* set by the caller */
    coli_stop stop;
    uint32_t n_prompt;   /* tokens of the prompt */
    uint32_t n_prefill;  /* of these, computed now; the rest was still in the session */
    uint32_t n_generated;
    double prefill_s, ttft_s, decode_s; /* ttft: from the call to the first token */
    double tok_s;        /* tokens after the first / decode_s; 0 if there were none */
    /* Of the prefill: in layers of experts (of many rows without their routers, which count as attention
     * does); and of that, waiting for devices.  A coli_generate has no prefill of its own. */
    double prefill_moe_s, prefill_wait_s;
    /* Of a token after the first, mean: all of it; in those layers, with their routers; waiting.  0 if there
     * were none. */
    double token_ms, token_moe_ms, token_wait_ms;
} coli_result;

/* Make tokens from the present logits until something stops it; each one is also fed, except a stop
 * token and the last.  The seed in sampling restarts the generator. */
COLI_API coli_status coli_generate(coli_session *session, const coli_generate_opts *opts,
                                   coli_piece_fn on_piece, void *user, coli_result *result);

/* ---- chat ---------------------------------------------------------------------------------- */

typedef struct coli_chat coli_chat;

typedef struct coli_chat_opts {
    uint32_t struct_size;
    const char *system;   /* system message; NULL: none */
    bool no_think;        /* answer without a think block */
    bool preserve_thinking; /* keep earlier turns' think blocks in the prompt */
} coli_chat_opts;

/* The session belongs to the chat until coli_chat_destroy; it is reset here. */
COLI_API coli_status coli_chat_create(coli_session *session, const coli_chat_opts *opts,
                                      coli_chat **out);
COLI_API void coli_chat_destroy(coli_chat *chat);

/* Say something as the user and stream the answer.  Only what is new is prefilled.  When the turn is
 * cancelled, what was said so far stays in the conversation.  When nothing was answered (cancelled
 * before the first token, an answer without one, an error, a prompt that does not fit the context:
 * E_LIMIT) the conversation is as it was before the call. */
COLI_API coli_status coli_chat_say(coli_chat *chat, const char *text, const coli_generate_opts *opts,
                                   coli_piece_fn on_piece, void *user, coli_result *result);
COLI_API void coli_chat_reset(coli_chat *chat); /* forget all but the system message */
/* The conversation as the JSON array that coli_chat_render takes. */
COLI_API coli_status coli_chat_messages(const coli_chat *chat, coli_text *out);

/* ---- backends ------------------------------------------------------------------------------ */

/* The backends that could compute on devices, and what is wrong with the others (docs/backends.md).
 * Looking at them opens no device.  Strings are borrowed from the list, and a list is used by one
 * thread at a time. */
typedef struct coli_backends coli_backends;

typedef struct coli_backend_opts {
    uint32_t struct_size;
    const char *backend; /* a name or a path, as in coli_model_opts; NULL: all that are found */
    const char *path;    /* more directories of plugins, as backend_path there */
    const char *options; /* for the plugins when they are asked for devices; NULL: none */
} coli_backend_opts;

/* Look for plugins and load them; of each only what its runtime does when a library is loaded has
 * run then.  That there are none, or none that can be used, is no failure.
 * Errors   E_INVALID (a directory of path is relative), E_NOMEM, E_IO. */
COLI_API coli_status coli_backends_find(const coli_backend_opts *opts, coli_backends **out);
COLI_API void coli_backends_free(coli_backends *list);
COLI_API size_t coli_backends_n(const coli_backends *list);

/* One file, in the order of the search.  stage is how far it came: "file", "name" (another of its
 * name comes first), "library" (the system cannot load it), "descriptor" (no backend), "version",
 * "symbols" (functions are missing), "device", or "ready". */
typedef struct coli_backend_entry {
    uint32_t struct_size; /* set by the caller */
    uint32_t abi_major, abi_minor;
    const char *file, *stage;
    const char *reason;       /* why it came no further, and what to do; NULL when it is ready */
    const char *name, *build; /* what it says of itself; "" when that could not be read */
    const char *lacks; /* optional functions that it does not have, "matmul, matmul_batch"; "" */
} coli_backend_entry;
COLI_API coli_status coli_backends_get(const coli_backends *list, size_t i,
                                       coli_backend_entry *entry);

/* Ask a ready plugin how many devices there are.  When it has none, or does not answer, *n is 0 and
 * the entry's stage becomes "device", with the reason.
 * Errors   E_INVALID (no such entry), E_UNSUPPORTED (it never was ready), E_NOMEM. */
COLI_API coli_status coli_backends_n_device(coli_backends *list, size_t i, uint32_t *n);

typedef struct coli_backend_device {
    uint32_t struct_size; /* set by the caller */
    uint32_t can_join;    /* 1: it adds up the experts of a row itself */
    uint64_t mem_total, max_tensor_bytes; /* bytes; max 0: as large as memory allows */
    const char *kind;                     /* "discrete", "integrated", "cpu", "simulated" */
    const char *name, *driver, *uuid;     /* "" when unknown */
    const char *formats;  /* of weights: "int8-g64-f16, int4-g64-f16" */
    const char *unusable; /* why it cannot be opened; NULL when it can */
} coli_backend_device;

/* Device `device` of entry i, below the n of coli_backends_n_device.  Strings are good until that
 * function is called for the entry again. */
COLI_API coli_status coli_backends_device(coli_backends *list, size_t i, uint32_t device,
                                          coli_backend_device *out);

typedef struct coli_check_opts {
    uint32_t struct_size;
    uint32_t device;     /* of the plugin */
    const char *options; /* for the plugin; NULL: none */
    const char *only;    /* one case ("W1") or one family ("numbers"); NULL: all */
    uint64_t seed;       /* of the inputs */
    uint32_t limit_s;    /* a case that takes longer hangs; 0: 60 */
    /* One line per case as it ends: "ok W1 ...", "skip M7 ...: why", "FAULT N1 ...: what". */
    void (*on_line)(void *user, const char *line, bool is_fault);
    void *user;
} coli_check_opts;

typedef struct coli_check_result {
    uint32_t struct_size; /* set by the caller */
    uint32_t n_case;      /* that were tried, n_fault and n_skipped among them */
    uint32_t n_fault;
    uint32_t n_skipped;
} coli_check_result;

/* Try whether a backend plugin keeps the contract of coli/backend.h, and name what it breaks
 * (docs/backends.md).  Its functions run in child processes, so that a crash or a hang is a line of
 * the report; on Windows they run in this process, and only a hang is survived.  Faults are no
 * failure of the call: see result->n_fault.
 * Errors   E_NOTFOUND  no such file or device; E_FORMAT  the file is no plugin that can be used;
 *          E_INVALID   no such case; E_IO, E_NOMEM
 * Cost     under a minute for plain C, some seconds for a graphics processor. */
COLI_API coli_status coli_backend_check(const char *file, const coli_check_opts *opts,
                                        coli_check_result *result);

/* ---- heat ---------------------------------------------------------------------------------- */

/* A heat file (docs/formats/heat.md) says how much each expert of a model was used by all runs that
 * kept it.  It belongs to one model.  All functions refuse what is no heat file, or one of another
 * model, with E_FORMAT, or E_UNSUPPORTED where it is of a later version, and leave it alone; what they
 * write replaces the old file in one step. */
typedef struct coli_heat coli_heat;

/* Read it into memory.  Errors also E_NOTFOUND, E_IO, E_NOMEM. */
COLI_API coli_status coli_heat_open(const char *path, coli_heat **out);
COLI_API void coli_heat_close(coli_heat *heat);

typedef struct coli_heat_info {
    uint32_t struct_size;       /* set by the caller */
    uint32_t n_layer, n_expert; /* layers with routed experts; experts in each */
    uint64_t n_token;           /* decoded while it was kept */
    const char *identity;       /* of the model, as in coli_model_info; borrowed from heat */
    const uint32_t *counts;     /* (n_layer, n_expert) borrowed from heat */
} coli_heat_info;
COLI_API coli_status coli_heat_get_info(const coli_heat *heat, coli_heat_info *info);

/* Add up files of one model, counter by counter; a full counter stays full.
 *   out    where the sum goes; may be one of the files
 *   files  (n_file), at least one
 * Errors   E_EXISTS (out is there and not one of the files); as above. */
COLI_API coli_status coli_heat_merge(const char *out, const char *const *files, uint32_t n_file);

/* Set all counters of a file to 0. */
COLI_API coli_status coli_heat_reset(const char *path);

/* A heat file with the counters of one in the older format, which does not say of what model they are:
 * the caller says it, and only the shape can be checked.
 *   out        must not exist
 *   model_dir  the container
 * Errors   E_EXISTS; as above, and as for coli_model_open. */
COLI_API coli_status coli_heat_import(const char *out, const char *file, const char *model_dir);

/* ---- tools --------------------------------------------------------------------------------- */

typedef struct coli_convert_opts {
    uint32_t struct_size;
    /* "int4", "int8", "bf16", "f32", or in full "int4-g64-f16"; NULL: int4, int8.  With NULL, what a
     * GGUF file has in blocks of one scale per 32 weights gets groups of 32, and experts in Q8_0
     * become int8: so Q8_0 stays what it is; and merged experts get the format that holds their
     * codes and scales as they are. */
    const char *experts, *trunk;
    const char *chat_template;   /* NULL: found in the source, else "3.6" */
    uint32_t n_threads;
    coli_progress_fn progress;
    void (*note)(void *user, const char *line); /* also what rounding cost, at the end */
    void *user;
    /* "small", "balanced", "exact", or the path of a file that says which tensors get which format
     * (docs/formats/recipe.md); experts and trunk are then lines behind its own.  NULL: they alone
     * count. */
    const char *recipe;
    /* What coli_imatrix_make wrote about this model: squared errors count by it.  NULL: all alike. */
    const char *imatrix;
} coli_convert_opts;

/* Hugging Face checkpoint or container of merged experts (a directory), or GGUF file, to container.  `out`
 * must not exist and appears only when complete.  A process that is killed leaves "<out>.partial"; the
 * same call goes on with it, any other begins anew, and a note says which.
 * Errors   E_NOTFOUND, E_FORMAT (a file is malformed or a tensor missing: names file and tensor),
 *          E_NUMERIC (a weight is no number or too large for the format), E_UNSUPPORTED (also matrices
 *          that would not fit the memory below), E_EXISTS,
 *          E_LIMIT (what does not fit the disk: nothing was written), E_EXISTS also while another process
 *          converts to `out`, E_CANCELLED, E_IO, E_NOMEM.
 * Cost     memory: at most 256 MiB, mapped files included; time: that of reading it twice, and some
 *          40 ns of one thread for each weight that becomes int4, 120 for int8. */
COLI_API coli_status coli_convert(const char *src, const char *out, const coli_convert_opts *opts);

/* Read all of a container and check every checksum, scale and weight, and that its tokenizer and
 * settings can be used.  Errors as for coli_model_open, and E_CANCELLED. */
COLI_API coli_status coli_verify(const char *dir, coli_progress_fn progress, void *user);

/* A container as one file, to send it: a POSIX tar archive with checksums (docs/formats/pack.md).  `file`
 * must not exist and appears when complete.  The container is verified first, so it is read twice.  The
 * same container in a directory of the same name gives the same bytes.
 * Errors   as for coli_verify, and E_EXISTS. */
COLI_API coli_status coli_pack(const char *dir, const char *file, coli_progress_fn progress,
                               void *user);
/* Check every byte of such a file, and the container in it like coli_verify, without unpacking it: it is
 * read twice.  E_NOTFOUND, E_FORMAT or E_UNSUPPORTED (it is torn, no
 * pack, or one of a container that is not sound), E_CANCELLED, E_IO, E_NOMEM. */
COLI_API coli_status coli_pack_verify(const char *file, coli_progress_fn progress, void *user);
/* Make the container directory of such a file; all that coli_pack_verify checks is checked on the way.  `dir` must not exist and
 * appears when complete.  Errors as above, and E_EXISTS. */
COLI_API coli_status coli_unpack(const char *file, const char *dir, coli_progress_fn progress,
                                 void *user);

typedef struct coli_synth_opts {
    uint32_t struct_size;
    const char *like; /* "qwen36-35b", "qwen36-122b", "qwen36-397b" or "hummingbird"; NULL: the first */
    uint32_t n_layer, d_model, n_expert, n_expert_used, d_ff, n_vocab; /* 0: those of `like` */
    const char *experts, *trunk; /* formats as for coli_convert; NULL: int4, int8 */
    /* 0: every expert has the same chance.  Else the rows of each router have lengths from 1 down
     * to e^-skew, in a random order: long rows are chosen more often.  0 to 16. */
    float skew;
    uint64_t seed;
    uint32_t n_threads;
    coli_progress_fn progress;
    void *user;
} coli_synth_opts;

/* A container of a real model's geometry with random weights, for measuring.  It takes ids, not
 * text, and what it answers means nothing; activations and logits stay in range.  The same options
 * give the same bytes, whatever n_threads.  `out` must not exist and appears only when complete.
 * Errors   E_INVALID (an unknown geometry, skew out of range), E_FORMAT (a weight format, or
 *          dimensions that no model can have, or too large to be made), E_EXISTS, E_CANCELLED, E_IO, E_NOMEM.
 * Cost     memory: 32 MiB, or one expert if that is larger; time: about that of writing the file. */
COLI_API coli_status coli_synth(const char *out, const coli_synth_opts *opts);

/* Write tensors to a safetensors file (f32 and i32), for measuring tools. */
typedef struct coli_tensor {
    const char *name;
    const char *dtype; /* "F32" or "I32" */
    const uint64_t *shape;
    uint32_t rank;
    const void *data;
} coli_tensor;
COLI_API coli_status coli_write_safetensors(const char *path, const coli_tensor *tensors,
                                            uint32_t n_tensor);

/* ---- replay -------------------------------------------------------------------------------- */

/* Recorded routing through placement policies (docs/replan.md): what share of the experts that a
 * token uses would have been in VRAM, how much had to be moved for it, and what that costs on a
 * machine that is made up, so that numbers are the same everywhere. */
typedef struct coli_replay coli_replay;

typedef struct coli_replay_part {
    uint32_t struct_size;
    uint32_t n_layer;       /* the first layers; 0: all */
    uint32_t n_expert_used; /* the best experts of each row; 0: all that were recorded */
    uint32_t n_expert;      /* experts of a layer; 0: one more than the highest that was used */
    uint32_t n_threads;     /* 0: one per usable processor; results do not depend on it */
} coli_replay_part;

/* Read traces: PATH.safetensors, or PATH without its ending, and the .json beside it
 * (docs/formats/traces.md).
 * Errors   E_NOTFOUND, E_FORMAT (names file, trace and tensor), E_IO, E_NOMEM. */
COLI_API coli_status coli_replay_open(const char *path, const coli_replay_part *part,
                                      coli_replay **out);
COLI_API void coli_replay_close(coli_replay *replay);

typedef struct coli_replay_info {
    uint32_t struct_size; /* set by the caller */
    uint32_t n_prompt, n_layer, n_expert, n_expert_used;
    uint64_t n_prompt_row, n_answer_row; /* of all prompts; of all answers */
} coli_replay_info;
COLI_API coli_status coli_replay_get_info(const coli_replay *replay, coli_replay_info *info);

/* Policies, from those that know least to bounds that know the future. */
typedef struct coli_replay_policy {
    uint32_t struct_size; /* set by the caller */
    const char *name;     /* "lru" */
    const char *knows;    /* half a sentence */
    bool moves;           /* it uploads: an allowance is something to it */
    bool replans;         /* and so are cap, drain and min_count */
} coli_replay_policy;
COLI_API size_t coli_replay_n_policy(void);
COLI_API coli_status coli_replay_get_policy(size_t i, coli_replay_policy *out); /* i below that */

/* The device is that of the backend fake, with its clock (docs/backends/fake.md); beside it is a
 * processor, which moves the clock by what it reads or multiplies, whichever takes longer.  All
 * fields count as they stand: start from coli_replay_machine_default(). */
typedef struct coli_replay_machine {
    uint32_t struct_size;
    uint32_t n_copy; /* transfers of one expert, 1: its block is one piece */
    bool waits;      /* the host waits for each transfer of an upload */
    uint64_t slow;   /* uploads take so many times as long as transfers; at least 1 */
    uint64_t link_bytes_per_s; /* 0: uploads take no time */
    uint64_t latency_ns, kernel_ns;  /* of a transfer; of launching a kernel */
    uint64_t device_bytes_per_s;     /* at which kernels read weights */
    uint64_t cpu_bytes_per_s, cpu_mac_per_s; /* the processor's reading; multiply-adds */
    uint64_t expert_bytes, expert_mac, d_model; /* of one expert; multiply-adds for a row; width */
    uint64_t trunk_token_ns; /* all but the routed experts: a token of the answer takes this */
    uint64_t trunk_row_ns;   /* and a row of the prompt this */
} coli_replay_machine;
/* A 35B with 256 experts (int4) on a PCIe 3 x16 card beside a desktop processor. */
COLI_API coli_status coli_replay_machine_default(coli_replay_machine *out);

#define COLI_REPLAY_NO_CAP UINT32_MAX

typedef struct coli_replay_opts {
    uint32_t struct_size;
    uint32_t n_resident; /* experts of each layer in VRAM; at least 1 */
    const char *policy;
    uint32_t cap;       /* swaps per layer and prompt of a re-plan; 0: 24, or COLI_REPLAY_NO_CAP */
    uint32_t drain;     /* swaps that it begins per token of the answer; 0: 4 */
    uint32_t min_count; /* uses in the prompt that make a newcomer of it; 0: 1 */
    uint64_t seed;      /* of the policy uniform */
    /* (n_prompt) uploads that each prompt and its answer may take; what the prompt leaves is spread
     * evenly over the answer.  NULL: any number. */
    const uint64_t *allowance;
    const coli_replay_machine *machine; /* NULL: the default */
} coli_replay_opts;

/* What became of one prompt. */
typedef struct coli_replay_result {
    double hit_rate, prompt_hit_rate; /* share of the answer's, of the prompt's experts in VRAM */
    uint64_t n_prompt_upload, n_upload; /* experts moved before the first token; after it */
    double ttft_ms, token_ms;           /* to the first token; per token of the answer, mean */
    uint32_t n_prompt_row, n_answer_row;
} coli_replay_result;

/* Replay every prompt.  results (n_prompt) is the caller's; uses the threads of the handle, so one
 * caller at a time.
 * Errors   E_INVALID (no such policy: the message names those there are; a number out of range),
 *          E_NOMEM.
 * Cost     some milliseconds per prompt and core. */
COLI_API coli_status coli_replay_run(coli_replay *replay, const coli_replay_opts *opts,
                                     coli_replay_result *results);

/* ---- what fits ----------------------------------------------------------------------------- */

typedef enum coli_fit {
    COLI_FIT_ALL,   /* everything is in memory or on devices */
    COLI_FIT_READS, /* some experts are read from the disk while tokens are made */
    COLI_FIT_NOT    /* not even one expert of each layer has room beside the rest: opening refuses a
                       limit that was named, and else the system will swap, or end the program where it
                       has no swap: nothing is measured then */
} coli_fit;

/* Where everything of a model would be.  Experts are counted over all layers. */
typedef struct coli_plan_result {
    uint32_t struct_size; /* set by the caller */
    uint32_t fit;         /* coli_fit */
    uint32_t n_ctx, n_chunk, n_threads;        /* that the options come to */
    uint32_t n_layer, n_expert, n_expert_used; /* layers with experts; experts of each; for a row */
    uint64_t trunk_bytes;  /* weights outside the routed experts */
    uint64_t expert_bytes; /* one routed expert */
    uint64_t kv_bytes, state_bytes, scratch_bytes; /* of one session: keys and values; what does not
                                grow with the context; the rest, with what reading experts takes, read
                                or not */
    uint64_t resident_bytes;  /* these but the expert: in memory whatever happens */
    uint64_t needed_bytes;    /* with all experts that no device holds */
    uint64_t available_bytes; /* that can be taken now, limits of control groups included; 0: the system
                                does not tell */
    uint64_t ram_bytes;       /* that the model may take in all; 0: no limit is known */
    uint32_t ram_experts;     /* of each layer that memory holds at a time */
    uint32_t n_ctx_all;       /* the context with which all would fit; 0: no shorter one is enough */
    uint32_t n_device;
    bool vram_is_assumed; /* there is no device: as if one had the memory that was asked for */
    uint64_t vram_bytes;  /* that experts may take of devices */
    uint64_t slot_bytes;  /* that one takes there */
    uint64_t n_in_vram, n_in_ram, n_on_disk;
    /* What a token reads of weights, if it used all experts alike. */
    uint64_t token_vram_bytes, token_ram_bytes, token_disk_bytes;
    uint64_t vram_trunk_bytes; /* that dense matrices take of devices; they stay in memory, too */
    bool is_imagined; /* there is no container: what converting the model would make */
    /* Parts of token_ram_bytes; and what comes on top: the recurrent part of a conversation, read and
     * written; its keys and values when the context is full. */
    uint64_t token_trunk_bytes, token_head_bytes, token_expert_ram_bytes;
    uint64_t token_state_bytes, token_kv_bytes;
    /* Measured, least and most of those attempts that are in the middle; 0: not measured.  10^9 bytes per second: memory, as all
     * threads read a buffer of the model's size; the disk, as it reads experts past the system's cache;
     * a device, as it multiplies a dense matrix of the model; copying that to it (once).  10^9
     * multiply-adds per second.  Microseconds: bringing the threads together; drawing a token. */
    double ram_gb_s_min, ram_gb_s_max, disk_gb_s_min, disk_gb_s_max;
    double vram_gb_s, link_gb_s;
    double gmac_s_min, gmac_s_max, sync_us_min, sync_us_max, sample_us_min, sample_us_max;
    /* Expected, milliseconds of a token while a conversation is short: what memory takes, or multiplying
     * if that is slower; the disk; devices; threads and drawing. */
    double ram_ms_min, ram_ms_max, disk_ms_min, disk_ms_max, vram_ms_min, vram_ms_max, other_ms_min,
        other_ms_max;
    /* Tokens per second of a short conversation, and of one that fills the context.  All 0 where something
     * that they need was not measured. */
    double tok_s_min, tok_s_max, tok_s_full_min, tok_s_full_max;
    uint32_t bound; /* coli_bound: what takes most of the time */
    /* What is needed at least: resident_bytes with one expert of each layer; and the context with which that
     * would have room, 0: it has, or no shorter one is enough. */
    uint32_t n_ctx_least;
    uint64_t least_bytes;
    /* is_imagined, and formats are those that converting would choose for the tensors that are there: of a
     * GGUF file, or a container of merged experts. */
    bool is_of_source;
} coli_plan_result;

typedef enum coli_bound {
    COLI_BOUND_MEMORY,
    COLI_BOUND_COMPUTE,
    COLI_BOUND_DISK,
    COLI_BOUND_DEVICE,
    COLI_BOUND_OTHER
} coli_bound;

/* Tell where everything would be with these options, without loading anything: the container's tables
 * are read, and devices are asked how much memory they have.  A session of the given kind is counted.
 * Of the dense matrices those go to devices that would if the devices were faster than the processor;
 * for tokens they are counted as if they stayed in memory.  A heat file is not looked at.
 * Errors   as for coli_model_open and coli_session_create. */
COLI_API coli_status coli_plan(const char *dir, const coli_model_opts *model,
                               const coli_session_opts *session, coli_plan_result *out);

typedef struct coli_plan_opts {
    uint32_t struct_size;
    const coli_model_opts *model;     /* NULL: all defaults */
    const coli_session_opts *session; /* likewise */
    /* Where dir has a config.json and no model.coli, or is a GGUF file or a container of merged experts:
     * the formats it would be converted to, as for coli_convert; NULL: int4, int8, or what coli_convert
     * chooses by what the source holds.  E_INVALID for a container, which has its formats. */
    const char *experts, *trunk;
    bool measure; /* also how fast this machine is, and what speed to expect; a second or two */
    const char *recipe; /* of such a model, as for coli_convert; NULL: the formats alone count */
} coli_plan_opts;

/* The same, also for a model that is not converted yet, and with the expected speed. */
COLI_API coli_status coli_plan_make(const char *dir, const coli_plan_opts *opts,
                                    coli_plan_result *out);

/* ---- recording ----------------------------------------------------------------------------- */

/* The routing of a session as traces, which coli_replay_open reads.  While tokens are made nothing is
 * allocated; memory for n_ctx rows is taken when the recorder is made. */
typedef struct coli_recorder coli_recorder;

/* Record what the session feeds from now on, in place of any coli_session_on_route.  The session
 * outlives the recorder.
 *   path  as for coli_replay_open; neither file may exist: E_EXISTS
 * Errors  E_UNSUPPORTED (more experts than traces hold), E_NOMEM, E_NOTFOUND or E_IO (they cannot be
 *         written there). */
COLI_API coli_status coli_recorder_create(coli_session *session, const char *path,
                                          coli_recorder **out);
COLI_API void coli_recorder_destroy(coli_recorder *recorder); /* what was not written is dropped */

/* The rows since the last call of this are a prompt, its first n_prompt rows, and its answer.
 *   name   none twice; NULL: "p000" and so on
 *   topic  NULL: none
 * Errors  E_INVALID (no row of the answer, or none of the prompt; a name that is taken), E_LIMIT (more
 *         rows than n_ctx, or 4096 prompts), E_NOMEM; the rows are dropped then. */
COLI_API coli_status coli_recorder_add(coli_recorder *recorder, const char *name, const char *topic,
                                       uint32_t n_prompt);
COLI_API uint32_t coli_recorder_n_row(const coli_recorder *recorder); /* since then */
COLI_API uint32_t coli_recorder_n_prompt(const coli_recorder *recorder); /* added */

/* Write both files; on failure there is neither.  E_INVALID (no prompt), E_EXISTS, E_IO. */
COLI_API coli_status coli_recorder_write(const coli_recorder *recorder);

/* ---- measuring ----------------------------------------------------------------------------- */

/* Where the time between coli_clock_start and coli_clock_stop went, in nanoseconds.  Each is the
 * sum over the compute threads divided by their number, so they add up to total_ns: the time that
 * passed while tokens were computed or sampled.  What the caller does in between is not counted. */
typedef struct coli_phases {
    uint32_t struct_size; /* set by the caller */
    uint32_t n_threads;
    uint64_t total_ns;
    uint64_t router_ns;      /* residual, norm and choice of experts */
    uint64_t experts_ns;     /* routed experts, and joining their results */
    uint64_t shared_ns;      /* the shared expert */
    uint64_t deltanet_ns;    /* convolution and recurrence */
    uint64_t attention_ns;   /* rotation, scores, values */
    uint64_t projections_ns; /* matrices into and out of attention and DeltaNet */
    uint64_t head_ns;        /* last norm and logits */
    uint64_t sampling_ns;
    uint64_t other_ns;   /* embedding, norms before the mixers */
    uint64_t waiting_ns; /* threads without work */
    /* How long on the wall it took to compute, and to wait for those who were not done with, the routed
     * experts; the router, the shared expert and the projections; the head.  Bytes over these are speeds. */
    uint64_t experts_wall_ns, trunk_wall_ns, head_wall_ns;
} coli_phases;

/* The clock of a model, off at first.  start sets it to zero, also when it runs.  A running clock
 * reads the time some hundred times per token, well under 1 % of a large model's, and changes no
 * result; sessions that sample at the same time then take turns.  stop without start gives zeros. */
COLI_API coli_status coli_clock_start(coli_model *model);
COLI_API coli_status coli_clock_stop(coli_model *model, coli_phases *out);

/* What this machine can do at best with the threads and the instruction set of a model, which must
 * outlive it: the measure of what the model reaches. */
typedef struct coli_machine coli_machine;

/* buffer_bytes  memory to read; 0: 2 GiB or eight times the last-level cache, if that is more.  At
 *               most half of the memory that is free is taken: see coli_machine_info. */
COLI_API coli_status coli_machine_open(coli_model *model, uint64_t buffer_bytes,
                                       coli_machine **out);
COLI_API void coli_machine_close(coli_machine *machine);

typedef struct coli_machine_info {
    uint32_t struct_size; /* set by the caller */
    uint32_t n_threads;
    uint64_t buffer_bytes, wanted_bytes; /* taken; before the limit */
    uint64_t cache_bytes;                /* last-level cache; 0: the system does not tell */
    const char *peak_method; /* "vpdpbusd on registers"; "matmul kernel in cache" where there is no
                                such loop */
} coli_machine_info;
COLI_API coli_status coli_machine_get_info(const coli_machine *machine, coli_machine_info *info);

/* One measurement each: all threads read the buffer once (10^9 bytes per second); all threads
 * multiply 8-bit integers for some 50 ms (10^9 multiply-adds per second).  Sessions of the model
 * wait meanwhile.  Machines are noisy: measure often and take the median. */
COLI_API coli_status coli_machine_stream(coli_machine *machine, double *gb_s);
COLI_API coli_status coli_machine_peak(coli_machine *machine, double *gmac_s);

/* ---- the machine, without a model ------------------------------------------------------------ */

/* How this library was built: "gcc 12.2.0, Release, no asserts". */
COLI_API const char *coli_build(void);

/* Names of the instruction sets that there are kernels for, of all processors, NULL behind the last; and
 * whether one can be used here: E_UNSUPPORTED says what is missing, E_INVALID that there is none of that
 * name.  With isa NULL, *name (which may be NULL) is the best that can be. */
COLI_API const char *coli_isa_name(size_t i);
COLI_API coli_status coli_isa_check(const char *isa, const char **name);
/* Whether this build on this processor rounds as results that are equal everywhere need it: no model can
 * be opened where it does not. */
COLI_API bool coli_arithmetic_is_exact(void);

/* What the system says of itself.  Numbers are 0 and texts "" where it does not tell. */
typedef struct coli_system {
    uint32_t struct_size;                  /* set by the caller */
    uint32_t n_processor, n_processor_all; /* that this process may use; that are there */
    uint64_t cache_bytes;                  /* the largest cache */
    uint64_t memory_bytes;    /* of the machine */
    uint64_t free_bytes;      /* that could be taken, but for control groups */
    uint64_t available_bytes; /* with their limits: what this process can take */
    uint64_t swap_bytes, swap_free_bytes; /* a file or a disk for what has no room in memory */
    bool has_groups, has_huge_pages;      /* such a thing exists on this system */
    char system[96];     /* "Linux 6.1.0-18-amd64 x86_64" */
    char cpu[64];        /* as the processor calls itself */
    char huge_pages[16]; /* "always", "madvise", "never" */
} coli_system;
COLI_API coli_status coli_system_look(coli_system *out);

typedef struct coli_disk {
    uint32_t struct_size;      /* set by the caller */
    bool is_direct;            /* the system's cache was passed; else the speed may be that of memory */
    double gb_s_min, gb_s_max; /* 10^9 bytes per second, of the slowest and the fastest part */
} coli_disk;
/* How fast this file can be read where it is: pieces of 1 MiB at random places, for some half a second. */
COLI_API coli_status coli_disk_measure(const char *file, coli_disk *out);

/* ---- quality ------------------------------------------------------------------------------- */

/* What a setting that changes what is computed costs: a format of weights, cache-aware routing.  Items
 * are scored with one setting and with another, and compared pair by pair (docs/quality.md). */

/* Items, in the tokens of a model. */
typedef struct coli_tasks coli_tasks;

typedef enum coli_task_kind {
    COLI_TASK_TEXT,   /* how likely is it, token by token */
    COLI_TASK_CHOICE, /* which of several endings is the likeliest */
    COLI_TASK_EXACT   /* is the greedy answer to a question the one that is expected */
} coli_task_kind;

typedef struct coli_tasks_opts {
    uint32_t struct_size;
    uint32_t every; /* of each file only every so manieth item, from the first; 0: all */
} coli_tasks_opts;

/* Read a file, or those of a directory in the order of their names: *.jsonl, an item per line, and
 * *.txt, a text that is cut into pieces of 512 tokens (docs/quality.md).
 * Errors   E_NOTFOUND, E_FORMAT (names file and line; also an item that is longer than the model's
 *          longest context, and more items than are read), E_UNSUPPORTED (the model has no tokenizer), E_IO,
 *          E_NOMEM. */
COLI_API coli_status coli_tasks_open(const char *path, const coli_model *model,
                                     const coli_tasks_opts *opts, coli_tasks **out);
/* They may outlive the model.  Scores of them must have been freed. */
COLI_API void coli_tasks_close(coli_tasks *tasks);

typedef struct coli_tasks_info {
    uint32_t struct_size; /* set by the caller */
    uint32_t n_item, n_text, n_choice, n_exact;
    uint32_t n_ctx;       /* the smallest context of a session that can score them */
    uint64_t n_token;     /* that are fed for it, answers not counted */
    const char *identity; /* 32 hex digits: these items in these tokens; borrowed from tasks */
} coli_tasks_info;
COLI_API coli_status coli_tasks_get_info(const coli_tasks *tasks, coli_tasks_info *info);

/* One item.  Strings are borrowed from tasks. */
typedef struct coli_task {
    uint32_t struct_size; /* set by the caller */
    uint32_t kind;        /* coli_task_kind */
    const char *file;
    uint64_t line;     /* of the file, from 1; of a .txt the number of the piece */
    const char *group; /* its "topic" or "task"; "" when it has none */
    uint32_t n_ending, label; /* of a choice: endings; the right one, from 0 */
    const char *answer;       /* that is expected; NULL unless the kind is exact */
} coli_task;
COLI_API coli_status coli_tasks_get(const coli_tasks *tasks, uint32_t i, coli_task *out);

typedef struct coli_imatrix_opts {
    uint32_t struct_size;
    coli_progress_fn progress; /* in tokens */
    void *user;
} coli_imatrix_opts;

/* Feed texts, of choices the one with the right ending and of questions the prompt, and write down how large the
 * numbers are, in the mean square, that each column of each matrix is multiplied with
 * (docs/formats/imatrix.md): for coli_convert.  The better the session's model, the better: one in
 * bf16 or int8.  What the session held is lost.
 *   out  must not exist and appears only when complete
 * Errors   E_INVALID (experts may be on devices: open the model with backend "none"), E_LIMIT (the
 *          session's context is too short), E_EXISTS, E_CANCELLED, E_NUMERIC, E_IO, E_NOMEM.
 * Cost     memory: 8 bytes for each column that an expert or a matrix has (35B: 210 MB); time: that of reading the texts as prompts, and all their logits. */
COLI_API coli_status coli_imatrix_make(coli_session *session, const coli_tasks *tasks,
                                       const char *out, const coli_imatrix_opts *opts);

/* What a model made of them. */
typedef struct coli_scores coli_scores;

typedef struct coli_scores_opts {
    uint32_t struct_size;
    bool keep_rows;          /* also the probabilities of each row of the texts: to be a base */
    const coli_scores *base; /* with rows, of items with the same identity: measure how far the texts'
                                rows are from its rows; NULL: not */
    coli_progress_fn progress; /* in tokens */
    void *user;
} coli_scores_opts;

/* Score all items on a session with info.n_ctx or more; what it held is lost.  coli_session_cancel
 * stops it.
 * Errors   E_LIMIT (the session's context is too short), E_INVALID (the base is of other items, or
 *          without rows), E_CANCELLED, E_NUMERIC, E_NOMEM. */
COLI_API coli_status coli_scores_make(coli_session *session, const coli_tasks *tasks,
                                      const coli_scores_opts *opts, coli_scores **out);
COLI_API void coli_scores_free(coli_scores *scores);

/* To a file and back (docs/formats/scores.md).  `path` must not exist and appears only when complete.
 * Opening needs the very items, E_INVALID otherwise, and refuses what is no such file, or damaged, with
 * E_FORMAT, or E_UNSUPPORTED where it is of a later version.  How far it was from a base is not kept. */
COLI_API coli_status coli_scores_save(const coli_scores *scores, const char *path);
COLI_API coli_status coli_scores_open(const char *path, const coli_tasks *tasks, coli_scores **out);

typedef struct coli_scores_info {
    uint32_t struct_size; /* set by the caller */
    uint32_t n_item;
    bool has_rows, has_base; /* they can be a base; they were measured against one */
    uint64_t n_row_bytes;    /* memory and disk that the rows take */
    double rest;             /* mean share of a row's probability that they do not itemise */
    const char *model;       /* identity of the model; borrowed from scores */
} coli_scores_info;
COLI_API coli_status coli_scores_get_info(const coli_scores *scores, coli_scores_info *info);

/* What became of one item; zero where it is not of that kind.  Pointers are borrowed from scores. */
typedef struct coli_score {
    uint32_t struct_size;  /* set by the caller */
    uint32_t n_token;      /* text: that were scored, all but the first */
    double nll;            /* their negative log-probabilities, summed */
    uint32_t n_row, n_top; /* rows compared with the base; of these, with the same best token */
    double kl;             /* KL(base || model) of these, summed */
    const double *logprob; /* choice: (n_ending) of the tokens of each ending, summed */
    uint32_t pick, pick_byte, pick_token; /* the largest; per byte of the ending; per token */
    bool right, right_byte, right_token;  /* it is the label; exact (right only): the answer is */
    const char *answer;                   /* exact: that was made, stripped; else NULL */
} coli_score;
COLI_API coli_status coli_scores_get(const coli_scores *scores, uint32_t i, coli_score *out);

typedef enum coli_measure {
    COLI_MEASURE_NLL,          /* -log p of a token, mean; its exponential is the perplexity */
    COLI_MEASURE_KL,           /* KL(base || model) of a row, mean */
    COLI_MEASURE_TOP,          /* share of rows whose best token is the base's */
    COLI_MEASURE_CHOICE,       /* share of choices that are right, by the sum of the log-probabilities */
    COLI_MEASURE_CHOICE_BYTE,  /* by that over the bytes of the ending */
    COLI_MEASURE_CHOICE_TOKEN, /* by that over its tokens */
    COLI_MEASURE_EXACT,        /* share of answers that are right */
    COLI_N_MEASURE
} coli_measure;
/* "nll", "kl", "top", "choice", "choice-byte", "choice-token", "exact"; NULL for what is none. */
COLI_API const char *coli_measure_name(coli_measure measure);

typedef struct coli_mean {
    uint32_t struct_size; /* set by the caller */
    uint32_t n_item;      /* that have this measure */
    uint64_t n_unit;      /* tokens, rows or items: what the mean is over */
    double value;         /* 0 without any */
} coli_mean;
/* group: of coli_task; NULL: all. */
COLI_API coli_status coli_scores_mean(const coli_scores *scores, coli_measure measure,
                                      const char *group, coli_mean *out);

/* How much worse b is than a on the same items, with the interval that holds the loss over all such
 * items with 95 % confidence.  Loss of nll, of kl and of right answers: positive is worse. */
typedef struct coli_loss {
    uint32_t struct_size; /* set by the caller */
    uint32_t n_item;
    double a, b; /* means; of kl and top, which are of b against a: those of the same model, 0 and 1 */
    double loss, low, high; /* infinite bounds where there are too few items to tell */
} coli_loss;
/* Errors   E_INVALID: the scores are of different items; kl or top of scores without a base. */
COLI_API coli_status coli_scores_loss(const coli_scores *a, const coli_scores *b,
                                      coli_measure measure, coli_loss *out);

typedef enum coli_verdict {
    COLI_VERDICT_PASS,     /* the loss is at most the limit, with that confidence */
    COLI_VERDICT_FAIL,     /* it is more */
    COLI_VERDICT_UNDECIDED /* the limit is within the interval: more items would tell */
} coli_verdict;
COLI_API coli_verdict coli_loss_verdict(const coli_loss *loss, double limit);

#ifdef __cplusplus
}
#endif
#endif
