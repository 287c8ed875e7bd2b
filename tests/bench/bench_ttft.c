/* bench_ttft.c - what the re-plan costs before the first token, from real runs on the simulated clock.
 *
 *     bench_ttft PLUGIN DIR [LAYERS ROWS LIMIT [HIDDEN INNER EXPERTS]]
 *         PLUGIN  file of the backend fake
 *         DIR     must not exist; a model of random weights is made there, and removed in the end
 *         LIMIT   1.02: exit code 1 when the re-plan makes the first token so many times later
 *
 * A prompt goes through a model of a 35B's geometry (fewer layers, a small vocabulary), of whose
 * experts 37.5 % are on the device; with and without the re-plan, and with copies as a simple engine
 * makes them: six for an expert, the host waiting for each.  All that the library does is done: routing,
 * planning, the queue of copies, groups.  What is made up is time: the device's clock (12 GB/s, 10 us,
 * one copy engine for uploads and activations alike; docs/backends/fake.md), and the host's share of it:
 *
 *     modelled  a desktop processor as in docs/replan.md: per row 9 ms / 40 of trunk in each layer;
 *               its experts are those that the run's own routing leaves it, at 25 GB/s or 200 GMAC/s
 *     here      what this machine takes: the prompt without devices, by the wall, in shares of the two
 *     none      nothing hides a copy: the bound
 *
 * The time to the first token is what the clock shows when the prompt is fed and all copies have landed,
 * less what it showed before.  The head, once, is left out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcoli/src/base/file.h"
#include "libcoli/src/base/random.h"
#include "libcoli/src/run/session.h"

enum { ROW_LAYERS = 40, N_VOCAB = 4096 }; // layers that the machine's trunk_row_ns is for

typedef struct setup {
    const char *plugin, *dir;
    uint32_t n_layer, n_row, d_model, d_ff, n_expert;
    double limit;
    int32_t *ids;
    coli_replay_machine machine;
} setup;

typedef struct host {
    const char *name;
    double trunk_ns, misses_ns; // of a row in one layer
} host;

static void want(coli_status status, const char *what)
{
    if (status == COLI_OK) return;
    fprintf(stderr, "%s: %s\n", what, coli_error_message());
    exit(2);
}

/* -- runs -------------------------------------------------------------------------------------- */

typedef struct run {
    double ttft_ms;
    uint64_t n_swap;
    float *logits;      // (N_VOCAB)
    uint64_t *n_missed; // (n_expert) rows of one layer that the host computed; of all layers:
    double misses_ns;   // as the machine would take
    const setup *s;
} run;

/* The host's part of one layer, as docs/replan.md's machine computes it. */
static void count_misses(void *user, const coli_route *r)
{
    run *x = user;
    const coli_replay_machine *m = &x->s->machine;
    for (size_t l = 0; l < r->n_layer; l++) {
        memset(x->n_missed, 0, x->s->n_expert * sizeof *x->n_missed);
        for (size_t i = 0; i < (size_t)r->n_row * r->n_expert_used; i++) {
            const size_t at = l * r->n_row * r->n_expert_used + i;
            x->n_missed[r->experts[at]] += r->levels[at] != COLI_LEVEL_VRAM;
        }
        const double read = (double)m->expert_bytes * 1e9 / (double)m->cpu_bytes_per_s;
        const double row = (double)m->expert_mac * 1e9 / (double)m->cpu_mac_per_s;
        x->misses_ns += r->n_row * row > read ? r->n_row * row : read; // the shared expert
        for (uint32_t e = 0; e < x->s->n_expert; e++) {
            const double rows = (double)x->n_missed[e] * row;
            if (x->n_missed[e]) x->misses_ns += rows > read ? rows : read;
        }
    }
}

static double clock_ms(const coli_model *m)
{
    coli_backend_stats stats = {.struct_size = sizeof stats};
    want(coli_model_get_backend_stats(m, &stats), "statistics");
    return stats.clock_ms;
}

static run run_once(const setup *s, const host *h, const char *options, bool replan)
{
    char text[256];
    snprintf(text, sizeof text, "trunk=%.0fns misses=%.0fns %s", h->trunk_ns, h->misses_ns,
             options);
    const coli_model_opts opts = {.struct_size = sizeof opts,
                                  .backend = s->plugin,
                                  .backend_options = text,
                                  .vram_unit = COLI_VRAM_PERCENT,
                                  .vram = 37.5,
                                  .place = "off", // the trunk is the host's, as its time says
                                  .replan = replan};
    const coli_session_opts session_opts = {.struct_size = sizeof session_opts, .n_ctx = s->n_row};
    run x = {.s = s, .n_missed = calloc(s->n_expert, sizeof *x.n_missed)};
    coli_model *m;
    coli_session *session;
    want(coli_model_open(s->dir, &opts, &m), s->dir);
    want(coli_session_create(m, &session_opts, &session), "session");
    want(coli_session_on_route(session, count_misses, &x), "routing");
    const double before_ms = clock_ms(m);
    want(coli_session_feed(session, s->ids, s->n_row), "prompt");
    coli__tier_settle(m->tier);
    x.ttft_ms = clock_ms(m) - before_ms;
    coli_backend_stats stats = {.struct_size = sizeof stats};
    want(coli_model_get_backend_stats(m, &stats), "statistics");
    x.n_swap = stats.n_replan_done;
    x.logits = malloc(N_VOCAB * sizeof *x.logits);
    memcpy(x.logits, coli_session_logits(session), N_VOCAB * sizeof *x.logits);
    coli_session_destroy(session);
    coli_model_close(m);
    return x;
}

static void forget(run *x)
{
    free(x->n_missed);
    free(x->logits);
}

/* The prompt on this machine's processor alone, by the wall: of a row in one layer, ns. */
static double measure_row_ns(const setup *s)
{
    const coli_model_opts opts = {.struct_size = sizeof opts, .backend = "none"};
    const coli_session_opts session_opts = {.struct_size = sizeof session_opts, .n_ctx = s->n_row};
    coli_model *m;
    coli_session *session;
    want(coli_model_open(s->dir, &opts, &m), s->dir);
    want(coli_session_create(m, &session_opts, &session), "session");
    uint64_t best_ns = UINT64_MAX;
    for (int i = 0; i < 3; i++) {
        coli_session_reset(session);
        const uint64_t start_ns = coli__clock_ns();
        want(coli_session_feed(session, s->ids, s->n_row), "prompt");
        const uint64_t ns = coli__clock_ns() - start_ns;
        if (ns < best_ns) best_ns = ns;
    }
    coli_session_destroy(session);
    coli_model_close(m);
    return (double)best_ns / ((double)s->n_row * s->n_layer);
}

/* -- the table --------------------------------------------------------------------------------- */

static const struct {
    const char *name, *options;
    bool replan;
} cases[] = {
    {"no re-plan", "", false},
    {"re-plan", "", true},
    {"re-plan, six copies, waiting", "copies=6 refuse=tensor_overwrite_async", true},
    {"the same, five times slower", "copies=6 refuse=tensor_overwrite_async slow=5", true},
};
enum { N_CASE = sizeof cases / sizeof *cases, BASE = 0, REPLAN = 1, WAITING = 2 };

/* False when the re-plan is later than allowed, or the waiting copies are not dearer. */
static bool compare(const setup *s, const host *h, bool must_hold)
{
    double ttft_ms[N_CASE];
    float *logits = NULL;
    bool good = true;
    printf("host %s: %.1f us of trunk and %.1f us of experts for a row in each layer\n", h->name,
           h->trunk_ns * 1e-3, h->misses_ns * 1e-3);
    for (int i = 0; i < N_CASE; i++) {
        run x = run_once(s, h, cases[i].options, cases[i].replan);
        ttft_ms[i] = x.ttft_ms;
        printf("  %-30s %9.2f ms  %6.3f times  %5llu swaps\n", cases[i].name, x.ttft_ms,
               x.ttft_ms / ttft_ms[BASE], (unsigned long long)x.n_swap);
        fflush(stdout);
        if (!logits) {
            logits = x.logits;
            x.logits = NULL;
        } else if (memcmp(logits, x.logits, N_VOCAB * sizeof *logits) != 0) {
            printf("  and other logits\n");
            good = false;
        }
        if (cases[i].replan && x.n_swap == 0) {
            printf("  and nothing was swapped: this says nothing\n");
            good = false;
        }
        forget(&x);
    }
    free(logits);
    if (!must_hold) return good;
    return good && ttft_ms[REPLAN] <= s->limit * ttft_ms[BASE] &&
           ttft_ms[WAITING] > ttft_ms[REPLAN];
}

static bool compare_hosts(const setup *s)
{
    const host nothing = {"none", 0, 0};
    run x = run_once(s, &nothing, "", false);
    const double rows = (double)s->n_row * s->n_layer;
    const host modelled = {"modelled", (double)s->machine.trunk_row_ns / ROW_LAYERS,
                           x.misses_ns / rows};
    forget(&x);
    const double row_ns = measure_row_ns(s);
    const double share = modelled.trunk_ns / (modelled.trunk_ns + modelled.misses_ns);
    const host here = {"here", row_ns * share, row_ns * (1 - share)};
    const bool as_modelled = compare(s, &modelled, true), as_here = compare(s, &here, true);
    return compare(s, &nothing, false) && as_modelled && as_here;
}

static void make_model(const setup *s)
{
    const coli_synth_opts opts = {.struct_size = sizeof opts,
                                  .like = "qwen36-35b",
                                  .n_layer = s->n_layer,
                                  .d_model = s->d_model,
                                  .d_ff = s->d_ff,
                                  .n_expert = s->n_expert,
                                  .n_vocab = N_VOCAB,
                                  .skew = 1,
                                  .seed = 1};
    want(coli_synth(s->dir, &opts), s->dir);
}

static uint32_t argument(int argc, char **argv, int i, uint32_t otherwise)
{
    return argc > i ? (uint32_t)strtoul(argv[i], NULL, 10) : otherwise;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr,
                "usage: bench_ttft PLUGIN DIR [LAYERS ROWS LIMIT [HIDDEN INNER EXPERTS]]\n");
        return 2;
    }
    setup s = {.plugin = argv[1],
               .dir = argv[2],
               .n_layer = argument(argc, argv, 3, 4),
               .n_row = argument(argc, argv, 4, 240),
               .limit = argc > 5 ? strtod(argv[5], NULL) : 1.02,
               .d_model = argument(argc, argv, 6, 2048),
               .d_ff = argument(argc, argv, 7, 512),
               .n_expert = argument(argc, argv, 8, 256),
               .machine = {.struct_size = sizeof s.machine}};
    want(coli_replay_machine_default(&s.machine), "machine");
    s.ids = calloc(s.n_row, sizeof *s.ids);
    uint64_t random = 1;
    for (uint32_t i = 0; i < s.n_row; i++) s.ids[i] = (int32_t)(coli__random(&random) % N_VOCAB);
    make_model(&s);
    const bool good = compare_hosts(&s);
    coli__dir_remove(s.dir);
    free(s.ids);
    return good ? 0 : 1;
}
