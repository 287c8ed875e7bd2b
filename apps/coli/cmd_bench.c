/* cmd_bench.c - `coli bench`: rounds of stream, peak, prefill, decode.
 *
 * Everything that is compared is measured in the same round, one after another: on a machine that
 * others use, a slow minute then slows all of it.  Figures are medians over the rounds.
 *
 * Tokens are drawn at random, below the ids that have text.  Prefill feeds N of them at once;
 * decode feeds them one by one and samples after each as the model's own settings say, the sample
 * being dropped: a random model would soon repeat itself, and use few experts.  Both begin at the
 * same place: the session holds `--context` tokens, and goes back there each time.
 *
 * Speeds are measured with the model's clock off.  A second decode of every round, with the clock
 * on, tells how long each part of the weights took. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "commands.h"
#include "open_model.h"
#include "options.h"
#include "progress.h"
#include "terminal.h"

enum { DEFAULT_PREFILL = 512, DEFAULT_DECODE = 32, DEFAULT_ROUNDS = 5, WARM_TOKENS = 4 };

typedef struct bench {
    const app_settings *s;
    app_engine engine;
    coli_machine *machine;
    coli_snapshot *start; // the session with its context
    int32_t *ids;         // (context + max(n_prefill, n_decode))
    coli_sampling sampling;
    bench_result r;
    /* (n_round) */
    double *stream, *peak, *prefill, *prefill_experts, *decode, *part[BENCH_N_PART];
} bench;

/* -- numbers ---------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bench_spread bench_spread_of(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, by_value);
    const double median = n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) * 0.5;
    return (bench_spread){median, values[0], values[n - 1]};
}

static int32_t draw_id(uint64_t *state, uint32_t n_token)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((*state >> 32) * n_token >> 32);
}

/* -- one measurement -------------------------------------------------------------------------- */

static coli_status prefill(bench *b, double *seconds)
{
    coli_session *s = b->engine.session;
    const coli_status status = coli_session_restore(s, b->start);
    const double start = app_clock_s();
    if (status != COLI_OK) return status;
    const coli_status fed = coli_session_feed(s, b->ids + b->r.context, b->r.n_prefill);
    *seconds = app_clock_s() - start;
    return fed;
}

static coli_backend_stats stats_of(const bench *b)
{
    coli_backend_stats s = {.struct_size = sizeof s};
    coli_model_get_backend_stats(b->engine.model, &s); // fails for a struct that is none
    return s;
}

static coli_status decode(bench *b, uint32_t n, double *seconds)
{
    coli_session *s = b->engine.session;
    coli_status status = coli_session_restore(s, b->start);
    coli_session_seed(s, b->r.seed);
    const double start = app_clock_s();
    for (uint32_t i = 0; i < n && status == COLI_OK; i++) {
        int32_t dropped;
        status = coli_session_feed(s, b->ids + b->r.context + i, 1);
        if (status == COLI_OK) status = coli_session_sample(s, &b->sampling, &dropped);
    }
    *seconds = app_clock_s() - start;
    return status;
}

static coli_status timed_decode(bench *b, uint32_t round)
{
    double seconds;
    coli_phases *p = &b->r.decode_phases;
    coli_status status = coli_clock_start(b->engine.model);
    if (status == COLI_OK) status = decode(b, b->r.n_decode, &seconds);
    *p = (coli_phases){.struct_size = sizeof *p};
    const coli_status stopped = coli_clock_stop(b->engine.model, p);
    if (status == COLI_OK) status = stopped;
    const double per_token = 1e-9 / b->r.n_decode;
    b->part[BENCH_EXPERTS][round] = (double)p->experts_wall_ns * per_token;
    b->part[BENCH_TRUNK][round] = (double)p->trunk_wall_ns * per_token;
    b->part[BENCH_HEAD][round] = (double)p->head_wall_ns * per_token;
    return status;
}

static coli_status timed_prefill(bench *b, uint32_t round)
{
    double seconds;
    coli_phases *p = &b->r.prefill_phases;
    coli_status status = coli_clock_start(b->engine.model);
    if (status == COLI_OK) status = prefill(b, &seconds);
    *p = (coli_phases){.struct_size = sizeof *p};
    const coli_status stopped = coli_clock_stop(b->engine.model, p);
    b->prefill_experts[round] = (double)p->experts_wall_ns * 1e-9;
    return status == COLI_OK ? stopped : status;
}

/* -- rounds ----------------------------------------------------------------------------------- */

static coli_status run_round(bench *b, uint32_t i)
{
    bench_result *r = &b->r;
    double seconds = 1;
    coli_status status = coli_machine_stream(b->machine, &b->stream[i]);
    if (status == COLI_OK) status = coli_machine_peak(b->machine, &b->peak[i]);
    if (status == COLI_OK && r->n_prefill) {
        status = prefill(b, &seconds);
        b->prefill[i] = r->n_prefill / seconds;
    }
    if (status == COLI_OK && r->n_decode) {
        const coli_backend_stats before = stats_of(b);
        status = decode(b, r->n_decode, &seconds);
        const coli_backend_stats after = stats_of(b);
        b->decode[i] = r->n_decode / seconds;
        r->n_hit += after.n_row_device - before.n_row_device;
        r->n_miss += after.n_row_host - before.n_row_host;
    }
    if (status == COLI_OK && r->n_decode) status = timed_decode(b, i);
    if (status == COLI_OK && r->n_prefill && r->with_phases) status = timed_prefill(b, i);
    if (status == COLI_OK)
        app_note("round %u of %u: stream %.1f GB/s, peak %.0f GMAC/s, prefill %.1f tok/s, "
                 "decode %.2f tok/s",
                 i + 1, r->n_round, b->stream[i], b->peak[i], b->prefill[i], b->decode[i]);
    return status;
}

/* The context, and one turn that is not counted: it brings the weights into memory. */
static coli_status warm_up(bench *b)
{
    coli_session *s = b->engine.session;
    coli_status status = COLI_OK;
    double seconds;
    if (b->r.context) status = coli_session_feed(s, b->ids, b->r.context);
    if (status == COLI_OK) status = coli_session_snapshot(s, &b->start);
    if (status == COLI_OK && b->r.n_prefill) status = prefill(b, &seconds);
    const uint32_t n = b->r.n_decode < WARM_TOKENS ? b->r.n_decode : WARM_TOKENS;
    if (status == COLI_OK) status = decode(b, n, &seconds);
    return status;
}

static coli_status open_machine(bench *b)
{
    coli_machine_info *info = &b->r.machine;
    coli_status status =
        coli_machine_open(b->engine.model, (uint64_t)b->s->buffer << 20, &b->machine);
    *info = (coli_machine_info){.struct_size = sizeof *info};
    if (status == COLI_OK) status = coli_machine_get_info(b->machine, info);
    if (status == COLI_OK && info->buffer_bytes < info->wanted_bytes)
        app_note("the stream reads %.2f GB instead of %.2f: half of the memory that is free",
                 (double)info->buffer_bytes * 1e-9, (double)info->wanted_bytes * 1e-9);
    return status;
}

/* The median of amount * speeds[i] / most[i], or of amount / (seconds[i] * most[i]): what slows a round slows
 * both, and another round neither. */
static double median_share(double amount, const double *speeds, const double *seconds,
                           const double *most, uint32_t n)
{
    double *shares = app_alloc(n, sizeof *shares);
    for (uint32_t i = 0; i < n; i++)
        shares[i] = amount * 1e-9 * (speeds ? speeds[i] : 1 / seconds[i]) / most[i];
    const double median = bench_spread_of(shares, n).median;
    free(shares);
    return median;
}

/* Before the rounds are sorted. */
static void compare(bench *b)
{
    bench_result *r = &b->r;
    const uint32_t n = r->n_round;
    if (r->n_decode)
        r->decode_share = median_share((double)bench_token_bytes(r), b->decode, NULL, b->stream, n);
    for (int i = 0; i < BENCH_N_PART && r->n_decode; i++)
        r->parts[i].share =
            median_share((double)r->parts[i].n_bytes, NULL, b->part[i], b->stream, n);
    if (r->n_prefill)
        r->prefill_share = median_share(bench_prefill_macs(r), b->prefill, NULL, b->peak, n);
    if (r->n_prefill && r->with_phases)
        r->prefill_experts_share = median_share((double)r->model.n_mac_experts * r->n_prefill, NULL,
                                                b->prefill_experts, b->peak, n);
}

static void summarise(bench *b)
{
    bench_result *r = &b->r;
    const uint32_t n = r->n_round;
    static const char *const names[BENCH_N_PART] = {"experts", "trunk", "head"};
    const uint64_t bytes[BENCH_N_PART] = {r->model.token_expert_bytes, r->model.token_trunk_bytes,
                                          r->model.token_head_bytes};
    for (int i = 0; i < BENCH_N_PART; i++)
        r->parts[i] = (bench_part){.name = names[i], .n_bytes = bytes[i]};
    compare(b);
    r->stream_gb_s = bench_spread_of(b->stream, n);
    r->peak_gmac_s = bench_spread_of(b->peak, n);
    r->prefill_tok_s = bench_spread_of(b->prefill, n);
    r->prefill_experts_s = bench_spread_of(b->prefill_experts, n);
    r->decode_tok_s = bench_spread_of(b->decode, n);
    for (int i = 0; i < BENCH_N_PART; i++)
        r->parts[i].seconds = bench_spread_of(b->part[i], n).median;
}

static coli_status measure(bench *b)
{
    bench_result *r = &b->r;
    r->model = (coli_model_info){.struct_size = sizeof r->model};
    coli_status status = coli_model_get_info(b->engine.model, &r->model);
    if (status != COLI_OK) return status;
    const uint32_t n_most = r->n_prefill > r->n_decode ? r->n_prefill : r->n_decode;
    uint64_t state = r->seed;
    b->ids = app_alloc(r->context + n_most, sizeof *b->ids);
    for (uint32_t i = 0; i < r->context + n_most; i++)
        b->ids[i] = draw_id(&state, r->model.n_token);
    b->sampling.struct_size = sizeof b->sampling;
    status = coli_sampling_default(b->engine.model, &b->sampling);
    if (status == COLI_OK) status = open_machine(b);
    if (status == COLI_OK) status = warm_up(b);
    const uint64_t n_swap = stats_of(b).n_swap;
    for (uint32_t i = 0; i < r->n_round && status == COLI_OK; i++) {
        status = run_round(b, i);
        if (status == COLI_OK && app_interrupts() > 0)
            status = COLI_E_CANCELLED; // between two calls
    }
    r->devices = stats_of(b);
    r->n_swap = r->devices.n_swap - n_swap;
    r->opened = b->engine.model;
    if (status == COLI_OK) summarise(b);
    return status;
}

static void allocate(bench *b)
{
    double **const rows[] = {&b->stream, &b->peak,    &b->prefill, &b->prefill_experts,
                             &b->decode, &b->part[0], &b->part[1], &b->part[2]};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        *rows[i] = app_alloc(b->r.n_round, sizeof(double));
}

static void finish(bench *b)
{
    coli_snapshot_destroy(b->start);
    coli_machine_close(b->machine);
    app_close(&b->engine);
    free(b->ids);
    free(b->stream);
    free(b->peak);
    free(b->prefill);
    free(b->prefill_experts);
    free(b->decode);
    for (int i = 0; i < BENCH_N_PART; i++) free(b->part[i]);
}

/* Options of one of the two kinds of measuring without that kind. */
static int check_kind(const app_settings *s)
{
    static const struct {
        app_option_id option;
        bool of_quality;
    } one_kind[] = {{APP_OPT_EVERY, true},   {APP_OPT_RECORD, true},   {APP_OPT_COMPARE, true},
                    {APP_OPT_LIMIT, true},   {APP_OPT_PREFILL, false}, {APP_OPT_DECODE, false},
                    {APP_OPT_REPEAT, false}, {APP_OPT_CONTEXT, false}, {APP_OPT_PHASES, false},
                    {APP_OPT_BUFFER, false}};
    for (size_t i = 0; i < sizeof one_kind / sizeof *one_kind; i++)
        if (app_given(s, one_kind[i].option) && one_kind[i].of_quality != (s->quality != NULL))
            return app_usage("bench", "--%s has no effect with%s --quality",
                             app_options[one_kind[i].option].name, s->quality ? "" : "out");
    return APP_OK;
}

int cmd_bench(const app_settings *s)
{
    const int kind = check_kind(s);
    if (kind != APP_OK) return kind;
    if (s->quality) return cmd_quality(s);
    bench b = {.s = s,
               .r = {.n_prefill = app_given(s, APP_OPT_PREFILL) ? s->prefill : DEFAULT_PREFILL,
                     .n_decode = app_given(s, APP_OPT_DECODE) ? s->decode : DEFAULT_DECODE,
                     .n_round = app_given(s, APP_OPT_REPEAT) ? s->repeat : DEFAULT_ROUNDS,
                     .context = s->context,
                     .seed = s->seed,
                     .with_phases = s->phases}};
    const uint32_t n_most = b.r.n_prefill > b.r.n_decode ? b.r.n_prefill : b.r.n_decode;
    if (n_most == 0)
        return app_usage("bench", "bench: --prefill 0 and --decode 0 leave nothing to measure");
    app_settings of = *s;
    of.ctx = b.r.context + n_most;
    int code = app_open(&of, APP_OPEN_SESSION | APP_OPEN_DEVICES | APP_OPEN_TELL, &b.engine);
    if (code != APP_OK) return code;
    app_banner(&b.engine);
    allocate(&b);
    app_interrupt_session(b.engine.session);
    const coli_status status = measure(&b);
    app_interrupt_session(NULL);
    if (status != COLI_OK)
        code = app_fail(status);
    else if (s->json)
        bench_print_json(&b.r);
    else
        bench_print_text(&b.r);
    finish(&b);
    return code;
}
