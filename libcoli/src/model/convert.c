/* convert.c - a checkpoint or a GGUF file becomes a container, in bounded memory and the same bytes
 * every time.
 *
 * The unit of work is a panel: 16 rows of one matrix, read as f32, checked, packed.  Panels are
 * independent, so the pool takes them in any order and the result does not depend on it.  A step is
 * as many panels as fit the step buffer: a band of one trunk matrix, or a few whole experts.
 *
 *     checkpoint (mapped) --panel per worker--> step buffer --in order--> model.coli
 *
 * Scales as f16 need one power of two per matrix, known before its first panel is packed.  So such
 * matrices are read twice: once to find the largest and the smallest group maximum, once to pack.
 * Where f16 cannot hold that spread the matrix gets f32 scales.  Experts of one layer must have
 * equal blocks, so there one expert that needs f32 decides for all (gate, up and down each for
 * itself).
 *
 * A GGUF file comes with weights that were rounded before.  Where the target holds them as they are
 * nothing is lost (the grid of coli__mat_pack_args).  What packing did is measured panel by panel and
 * said at the end (quant_report.h).
 *
 * Memory.  COLI_CONVERT_MEMORY_BYTES is shared out once the checkpoint is open:
 *
 *     the lists   tensors, experts, and what becomes of them in the table: counted, and bounded by
 *                 COLI_ST_MAX_TENSOR and the like before they are made
 *     the rest    RESERVE_BYTES: small JSON (coli__json_parse_small), what the table leaves
 *     the step    the largest expert, or STEP_BYTES
 *     its source  what that is made of, or SOURCE_BYTES: mapped pages, given up behind each step
 *     panels      two per worker, in what is left: fewer workers where rows are huge
 *
 * What cannot fit is refused before anything is written.  Opening the checkpoint and writing the
 * table come before and after the two large ones are held.
 *
 * The disk is asked beforehand, too: whether it has the room for what the formats come to.
 *
 * The caller's float mode is left alone except around arithmetic, so that callbacks have it.
 *
 * Everything is written to OUT.partial, opened once as a check, and renamed to OUT.  A conversion that
 * is killed can be gone on with behind the last tensor or layer that it told of; it must be the same
 * one, which the facts in its journal decide (convert_job.c). */
#include "convert.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "../base/file.h"
#include "../base/threads.h"
#include "../math/pack_codes.h"
#include "checkpoint.h"
#include "container_format.h"
#include "convert_facts.h"
#include "convert_job.h"
#include "imatrix.h"
#include "quant_report.h"
#include "source_format.h"

enum {
    STEP_BYTES = 8 << 20, // enough panels to keep the workers busy; larger only where one expert is
    SOURCE_BYTES = 32 << 20, // the same of the checkpoint
    TELL_BYTES = 256 << 20,  // seconds of work; waiting for the disk costs a part of one
    PANELS_MAX_BYTES = 64 << 20,
    // 12 MB for values of JSON, 8 for its text, 9 for ranges of group maxima; the heap's holes
    RESERVE_BYTES = 40 << 20,
    TEMPLATE_MAX_BYTES = 1 << 20,
    TOKENIZER_CONFIG_MAX_BYTES = 4 << 20,
};

/* -- panels in parallel ------------------------------------------------------------------------ */

/* Some consecutive panels of one matrix. */
typedef struct piece {
    const coli__weight *weight;
    coli__wfmt fmt;
    int32_t scale_exp;
    uint32_t first_panel, n_panel;
    uint32_t first_item; // of the step
    uint8_t *out;        // packed: where first_panel goes
    uint64_t panel_bytes, n_bytes;
    const float *importance; // (n_in) of columns; NULL: all alike
} piece;

typedef struct range {
    float max, min; // of the group maxima that are not 0; max is 0 where there are none
} range;

typedef struct worker {
    float *rows;    // (16, widest n_in)
    uint8_t *panel; // a packed panel of them
    float *scales;  // (16, widest n_in / 32) of a GGUF
    /* the failed panel with the lowest item, so that every run reports the same one */
    coli_status status;
    uint32_t failed_item;
    char message[600];
} worker;

typedef struct converter {
    const coli__convert_args *args;
    const char *out_dir; // OUT.partial
    coli__checkpoint checkpoint;
    coli__formats formats;
    coli__ct_writer *writer;
    coli__pool *pool;
    worker *workers;
    uint32_t n_worker;
    uint8_t *step;                    // (step_bytes)
    uint64_t step_bytes, panel_bytes; // the latter: of a worker's rows, and of its panel
    uint32_t n_in_max;                // of all matrices
    bool counts; // the source's weights were rounded: what became of them is said
    uint64_t done_bytes, total_bytes; // of the checkpoint
    uint64_t
        out_bytes; // of model.coli, if all scales become f16 that may: f32 ones take up to 3% more
    coli__digest files[CT_N_FILE];
    coli__job job;
    coli__ct_done done;  // by the conversion that this one goes on with
    uint64_t told_bytes; // of model.coli, in the journal
    coli__quant_report *report;
    coli__imatrix *imatrix; // NULL: none
    float *importance;      // (n_in_max) of the trunk matrix at hand
} converter;

/* One run of the pool: it measures or it packs, by which of the two is there. */
typedef struct step {
    converter *c;
    const piece *pieces;
    uint32_t n_piece;
    range *ranges;            // one per item
    coli__pack_error *errors; // one per item
} step;

static const piece *piece_of(const step *s, uint32_t item)
{
    uint32_t low = 0, high = s->n_piece; // the last piece with first_item <= item
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (s->pieces[middle].first_item <= item)
            low = middle;
        else
            high = middle;
    }
    return &s->pieces[low];
}

/* Whether the packed matrix can have the scales that its weights come with. */
static bool keeps_grid(const piece *p)
{
    return coli__wfmt_is_quant(p->fmt) && p->fmt.group == 32 && coli__weight_has_grid(p->weight);
}

/* scales NULL, or one for each 32 columns, that will be stored where it serves. */
static range measure(const piece *p, const float *rows, const float *scales, uint32_t n_row)
{
    const float code_max = p->fmt.type == COLI_W_I4 ? 7 : 127;
    range r = {0, FLT_MAX};
    if (!coli__wfmt_is_quant(p->fmt)) return r; // beside a quantised matrix of the same expert
    const uint32_t n_in = p->weight->n_in, group = p->fmt.per_row ? n_in : p->fmt.group;
    for (uint32_t row = 0; row < n_row; row++, rows += n_in, scales += scales ? n_in / 32 : 0)
        for (uint32_t begin = 0; begin < n_in; begin += group) {
            const uint32_t end = n_in - begin < group ? n_in : begin + group;
            float amax = 0;
            for (uint32_t i = begin; i < end; i++)
                amax = fabsf(rows[i]) > amax ? fabsf(rows[i]) : amax;
            if (amax > 0 && amax < r.min) r.min = amax;
            if (scales && amax > 0) { // codes need not go to their end
                const float full = fabsf(scales[begin / 32]) * code_max;
                if (full < r.min) r.min = full;
                if (full > amax) amax = full;
            }
            if (amax > r.max) r.max = amax;
        }
    return r;
}

/* Whether the weights come as codes and scales, and go to the format that has them as they are. */
static bool keeps_codes(const piece *p)
{
    coli__wfmt fmt;
    return coli__weight_packed_format(p->weight, &fmt) && coli__wfmt_same(fmt, p->fmt);
}

/* The memory of a panel that was packed apart holds codes and scales meanwhile. */
static coli_status pack_codes(const piece *p, uint32_t panel, uint32_t n_row, worker *w,
                              coli__pack_error *error)
{
    const coli__wfmt fmt = p->fmt;
    const uint32_t n_in = p->weight->n_in;
    float *scales = (float *)(void *)w->panel; // (n_row, groups), at most half of it
    int8_t *codes = (int8_t *)(w->panel + COLI_PANEL * (n_in / 32 + 1) * sizeof *scales);
    COLI_TRY(coli__weight_codes(p->weight, fmt, (p->first_panel + panel) * COLI_PANEL, n_row, codes,
                                scales));
    const coli__mat packed = {
        .data = p->out + panel * p->panel_bytes, .n_out = n_row, .n_in = n_in, .fmt = fmt};
    coli__mat_pack_codes(fmt, codes, scales, n_row, n_in, p->out + panel * p->panel_bytes);
    float *back = (float *)(void *)w->panel; // the codes are where they belong
    error->n = (uint64_t)n_row * n_in;
    for (uint32_t r = 0; r < n_row; r++) {
        const float *row = w->rows + (size_t)r * n_in;
        coli__mat_row(&packed, r, back);
        for (uint32_t i = 0; i < n_in; i++) { // only scales below 2^-40 are another number now
            const double weight = (double)row[i], off = (double)back[i] - weight;
            error->weight2 += weight * weight;
            error->error2 += off * off;
        }
    }
    error->plain2 = error->error2;
    return COLI_OK;
}

/* A float matrix ends with its last row, not with its last panel: that one goes through w->panel.
 */
static coli_status pack(const piece *p, uint32_t panel, uint32_t n_row, worker *w,
                        coli__pack_error *error)
{
    const uint64_t begin = panel * p->panel_bytes;
    const bool whole = p->n_bytes - begin >= p->panel_bytes;
    const coli__mat_pack_args args = {.fmt = p->fmt,
                                      .w = w->rows,
                                      .n_row = n_row,
                                      .n_in = p->weight->n_in,
                                      .ld = p->weight->n_in,
                                      .scale_exp = p->scale_exp,
                                      .grid = keeps_grid(p) ? w->scales : NULL,
                                      .importance = p->importance,
                                      .error = error,
                                      .out = whole ? p->out + begin : w->panel};
    *error = (coli__pack_error){0};
    if (keeps_codes(p)) return pack_codes(p, panel, n_row, w, error);
    COLI_TRY(coli__mat_pack(&args));
    if (!whole) memcpy(p->out + begin, w->panel, (size_t)(p->n_bytes - begin));
    return COLI_OK;
}

static coli_status do_panel(const step *s, uint32_t item, worker *w)
{
    const piece *p = piece_of(s, item);
    const uint32_t panel = item - p->first_item, row = (p->first_panel + panel) * COLI_PANEL;
    const uint32_t left = p->weight->n_out - row, n_row = left < COLI_PANEL ? left : COLI_PANEL;
    COLI_TRY(coli__weight_rows(p->weight, row, n_row, w->rows));
    const bool grid = keeps_grid(p);
    if (grid) coli__weight_scales(p->weight, row, n_row, w->scales);
    if (s->ranges) {
        s->ranges[item] = measure(p, w->rows, grid ? w->scales : NULL, n_row);
        return COLI_OK;
    }
    const coli_status status = pack(p, panel, n_row, w, &s->errors[item]);
    return status == COLI_OK
               ? COLI_OK
               : coli__fail_in(status, "%s: tensor %s: in the 16 rows from %u",
                               coli__weight_file(p->weight), coli__weight_name(p->weight), row);
}

static void do_item(void *ctx, uint32_t item, uint32_t worker_index)
{
    const step *s = ctx;
    worker *w = &s->c->workers[worker_index];
    const coli_status status = do_panel(s, item, w);
    if (status == COLI_OK || (w->status != COLI_OK && w->failed_item < item)) return;
    w->status = status;
    w->failed_item = item;
    snprintf(w->message, sizeof w->message, "%s", coli_error_message());
}

static coli_status run_step(converter *c, const piece *pieces, uint32_t n_piece, range *ranges,
                            coli__pack_error *errors)
{
    step s = {c, pieces, n_piece, ranges, errors};
    const piece *last = &pieces[n_piece - 1];
    for (uint32_t i = 0; i < c->n_worker; i++) c->workers[i].status = COLI_OK;
    const coli__fp fp = coli__fp_enter(); // for our own share; the pool's threads have theirs
    coli__pool_run(c->pool, last->first_item + last->n_panel, do_item, &s);
    coli__fp_leave(fp);
    const worker *failed = NULL;
    for (uint32_t i = 0; i < c->n_worker; i++)
        if (c->workers[i].status != COLI_OK &&
            (!failed || c->workers[i].failed_item < failed->failed_item))
            failed = &c->workers[i];
    return failed ? coli__fail(failed->status, "%s", failed->message) : COLI_OK;
}

static coli_status report(converter *c, const char *what, uint64_t more_bytes)
{
    c->done_bytes += more_bytes;
    const coli__convert_args *a = c->args;
    if (!a->progress || a->progress(a->user, what, c->done_bytes, c->total_bytes)) return COLI_OK;
    return coli__fail(COLI_E_CANCELLED, "%s: converting was stopped", a->out);
}

static uint32_t n_panel_of(uint32_t n_out)
{
    return (n_out + COLI_PANEL - 1) / COLI_PANEL;
}

/* How many panels of the matrix SOURCE_BYTES of the checkpoint make; at least 1. */
static uint32_t source_panels(const coli__weight *w)
{
    const uint32_t n_panel = n_panel_of(w->n_out);
    const uint64_t n = SOURCE_BYTES / (coli__weight_bytes(w) / n_panel + 1);
    return n == 0 ? 1 : n < n_panel ? (uint32_t)n : n_panel;
}

static range join_ranges(const range *ranges, uint32_t n)
{
    range all = {0, FLT_MAX};
    for (uint32_t i = 0; i < n; i++) {
        if (ranges[i].max > all.max) all.max = ranges[i].max;
        if (ranges[i].min < all.min) all.min = ranges[i].min;
    }
    return all;
}

/* A matrix without any weight but 0 fits every exponent. */
static bool exp_for(coli__wfmt fmt, range r, int32_t *scale_exp)
{
    *scale_exp = 0;
    const coli__fp fp = coli__fp_enter();
    const bool fits = r.max == 0 || coli__scale_exp_for(fmt, r.max, r.min, scale_exp);
    coli__fp_leave(fp);
    return fits;
}

/* -- the trunk --------------------------------------------------------------------------------- */

static coli__wfmt format_for(const converter *c, const coli__tensor_spec *s, const coli__weight *w)
{
    return coli__source_format(&c->formats, &c->checkpoint.spec, s, w);
}

/* Settle how a trunk matrix stores its scales. */
static coli_status choose_scales(converter *c, const char *name, const coli__weight *w,
                                 coli__wfmt *fmt, int32_t *scale_exp)
{
    *scale_exp = 0;
    if (!fmt->scale_f16) return COLI_OK;
    const uint32_t n_panel = n_panel_of(w->n_out), n_most = source_panels(w);
    range *ranges = coli__calloc(n_panel, sizeof *ranges);
    if (!ranges) return COLI_E_NOMEM;
    coli_status status = COLI_OK;
    for (uint32_t first = 0, n; first < n_panel && status == COLI_OK; first += n) {
        n = n_panel - first < n_most ? n_panel - first : n_most;
        const piece band = {.weight = w, .fmt = *fmt, .first_panel = first, .n_panel = n};
        status = report(c, name, 0);
        if (status == COLI_OK) status = run_step(c, &band, 1, ranges + first, NULL);
        coli__weight_drop(w);
    }
    if (status == COLI_OK) fmt->scale_f16 = exp_for(*fmt, join_ranges(ranges, n_panel), scale_exp);
    coli__free(ranges);
    return status;
}

/* In the order of the items, so that sums do not depend on who did which. */
static coli__pack_error sum_errors(const coli__pack_error *errors, uint32_t n)
{
    coli__pack_error sum = {0};
    for (uint32_t i = 0; i < n; i++) coli__pack_error_add(&sum, &errors[i]);
    return sum;
}

static const char *source_kind(const converter *c, const coli__weight *w)
{
    return c->counts ? coli__weight_kind(w) : NULL;
}

/* The panels of `all` in bands that fit the step; errors (of a band), *sum of all. */
static coli_status write_bands(converter *c, const char *name, const piece *all, uint32_t n_fit,
                               coli__pack_error *errors, coli__pack_error *sum)
{
    piece p = *all;
    for (; p.first_panel < all->n_panel; p.first_panel += p.n_panel) {
        const uint32_t left = all->n_panel - p.first_panel;
        p.n_panel = left < n_fit ? left : n_fit;
        const uint64_t rest = all->n_bytes - p.first_panel * p.panel_bytes;
        const uint64_t band = p.n_panel * p.panel_bytes;
        p.n_bytes = rest < band ? rest : band;
        COLI_TRY(run_step(c, &p, 1, NULL, errors));
        coli__weight_drop(p.weight);
        COLI_TRY(coli__ct_writer_append(c->writer, c->step, p.n_bytes));
        const coli__pack_error of_band = sum_errors(errors, p.n_panel);
        coli__pack_error_add(sum, &of_band);
        const uint64_t bytes = coli__weight_bytes(p.weight), end = p.first_panel + p.n_panel;
        COLI_TRY(
            report(c, name, bytes * end / all->n_panel - bytes * p.first_panel / all->n_panel));
    }
    return COLI_OK;
}

static coli_status write_tensor(converter *c, const coli__tensor_spec *s, const coli__weight *w)
{
    coli__wfmt fmt = format_for(c, s, w);
    int32_t scale_exp;
    COLI_TRY(choose_scales(c, s->name, w, &fmt, &scale_exp));
    COLI_TRY(coli__ct_writer_tensor(c->writer, fmt, scale_exp));
    piece p = {.weight = w,
               .fmt = fmt,
               .scale_exp = scale_exp,
               .n_panel = n_panel_of(w->n_out),
               .out = c->step};
    if (c->imatrix && coli__imatrix_columns(c->imatrix, s->name, w->n_in, c->importance))
        p.importance = c->importance;
    if (!coli__mat_bytes(fmt, w->n_out, w->n_in, &p.n_bytes, &p.panel_bytes))
        return coli__fail(COLI_E_INTERNAL, "tensor %s: no such matrix", s->name);
    const uint64_t fit = c->step_bytes / p.panel_bytes; // at least 1
    uint32_t n_fit = source_panels(w);
    if (fit < n_fit) n_fit = (uint32_t)fit;
    coli__pack_error sum = {0}, *errors = coli__calloc(n_fit, sizeof *errors);
    if (!errors) return COLI_E_NOMEM;
    const coli_status status = write_bands(c, s->name, &p, n_fit, errors, &sum);
    coli__free(errors);
    if (status == COLI_OK) coli__report_add(c->report, s->name, source_kind(c, w), fmt, &sum);
    return status;
}

/* -- experts ----------------------------------------------------------------------------------- */

/* The experts of one layer, while they are converted. */
typedef struct layer {
    const coli__expert_spec *spec;
    const coli__weight *weights; // (n_expert, 3)
    char name[48];
    coli__wfmt fmt[3];               // gate, up, down
    int32_t *scale_exp;              // (n_expert, 3)
    uint64_t offset[3], block_bytes; // in an expert's block
    uint32_t n_batch;                // experts per step
    piece *pieces;                   // (n_batch, 3)
    range *ranges;                   // one per panel of a batch
    coli__pack_error *errors;        // likewise
    float *importance;               // (n_batch, d_model + d_ff); NULL: columns are all alike
} layer;

static uint32_t panels_per_expert(const coli__expert_spec *s)
{
    return 2 * n_panel_of(s->d_ff) + n_panel_of(s->d_model);
}

/* Where piece i of a batch finds how much its columns count. */
static float *importance_of(const layer *l, uint32_t i)
{
    const coli__expert_spec *s = l->spec;
    if (!l->importance) return NULL;
    return l->importance + i / 3 * ((size_t)s->d_model + s->d_ff) + (i % 3 == 2 ? s->d_model : 0);
}

static void fill_importance(const converter *c, const layer *l, uint32_t first, uint32_t n)
{
    const coli__expert_spec *s = l->spec;
    char in[COLI__REPORT_NAME], inner[COLI__REPORT_NAME];
    snprintf(in, sizeof in, "%sin", s->prefix);
    snprintf(inner, sizeof inner, "%sinner", s->prefix);
    for (uint32_t e = 0; l->importance && e < n; e++) {
        float *x = importance_of(l, 3 * e), *h = importance_of(l, 3 * e + 2);
        if (!coli__imatrix_expert(c->imatrix, in, first + e, s->n_expert, s->d_model, x))
            for (uint32_t i = 0; i < s->d_model; i++) x[i] = 1;
        if (!coli__imatrix_expert(c->imatrix, inner, first + e, s->n_expert, s->d_ff, h))
            for (uint32_t i = 0; i < s->d_ff; i++) h[i] = 1;
    }
}

/* The pieces for experts [first, first + n): three whole matrices each. */
static coli_status make_pieces(const converter *c, const layer *l, uint32_t first, uint32_t n)
{
    uint32_t item = 0;
    for (uint32_t i = 0; i < 3 * n; i++) {
        const coli__weight *w = &l->weights[3 * first + i];
        piece *p = &l->pieces[i];
        *p = (piece){.weight = w,
                     .fmt = l->fmt[i % 3],
                     .scale_exp = l->scale_exp[3 * first + i],
                     .n_panel = n_panel_of(w->n_out),
                     .first_item = item,
                     .importance = importance_of(l, i),
                     .out = c->step + i / 3 * l->block_bytes + l->offset[i % 3]};
        if (!coli__mat_bytes(p->fmt, w->n_out, w->n_in, &p->n_bytes, &p->panel_bytes))
            return coli__fail(COLI_E_INTERNAL, "%s: no such matrix", l->name);
        item += p->n_panel;
    }
    return COLI_OK;
}

static void drop_batch(const layer *l, uint32_t first, uint32_t n)
{
    for (uint32_t i = 3 * first; i < 3 * (first + n); i++) coli__weight_drop(&l->weights[i]);
}

static uint32_t batch(const layer *l, uint32_t first)
{
    const uint32_t left = l->spec->n_expert - first;
    return left < l->n_batch ? left : l->n_batch;
}

/* First reading: an exponent for each matrix, and whether f16 serves all gates, all ups, all downs.
 */
static coli_status choose_expert_scales(converter *c, layer *l)
{
    if (!l->fmt[0].scale_f16 && !l->fmt[1].scale_f16 && !l->fmt[2].scale_f16) return COLI_OK;
    for (uint32_t first = 0, n; first < l->spec->n_expert; first += n) {
        n = batch(l, first);
        COLI_TRY(report(c, l->name, 0));
        COLI_TRY(make_pieces(c, l, first, n));
        COLI_TRY(run_step(c, l->pieces, 3 * n, l->ranges, NULL));
        drop_batch(l, first, n);
        for (uint32_t i = 0; i < 3 * n; i++) {
            const range r = join_ranges(l->ranges + l->pieces[i].first_item, l->pieces[i].n_panel);
            if (!exp_for(l->fmt[i % 3], r, &l->scale_exp[3 * first + i]))
                l->fmt[i % 3].scale_f16 = false;
        }
    }
    for (uint32_t i = 0; i < 3 * l->spec->n_expert; i++)
        if (!l->fmt[i % 3].scale_f16) l->scale_exp[i] = 0;
    return COLI_OK;
}

static void report_experts(const converter *c, const layer *l, uint32_t first, uint32_t n)
{
    static const char *const parts[] = {"gate", "up", "down"};
    for (uint32_t i = 0; i < 3 * n; i++) {
        const piece *p = &l->pieces[i];
        const coli__pack_error sum = sum_errors(l->errors + p->first_item, p->n_panel);
        char name[COLI__REPORT_NAME];
        snprintf(name, sizeof name, "%s%u.%s", l->spec->prefix, first + i / 3, parts[i % 3]);
        coli__report_add(c->report, name, source_kind(c, p->weight), p->fmt, &sum);
    }
}

static coli_status write_blocks(converter *c, layer *l)
{
    const coli__ct_experts *layout;
    COLI_TRY(coli__ct_writer_experts(c->writer, l->fmt[0], l->fmt[1], l->fmt[2], &layout));
    l->offset[1] = layout->up_offset;
    l->offset[2] = layout->down_offset;
    l->block_bytes = layout->block_bytes;
    memset(c->step, 0,
           (size_t)(l->n_batch * l->block_bytes)); // also what lies between the matrices
    for (uint32_t first = 0, n; first < l->spec->n_expert; first += n) {
        n = batch(l, first);
        COLI_TRY(make_pieces(c, l, first, n));
        fill_importance(c, l, first, n);
        COLI_TRY(run_step(c, l->pieces, 3 * n, NULL, l->errors));
        drop_batch(l, first, n);
        report_experts(c, l, first, n);
        uint64_t source_bytes = 0;
        for (uint32_t i = 0; i < n; i++)
            COLI_TRY(coli__ct_writer_expert(c->writer, l->scale_exp + 3 * (first + i),
                                            c->step + i * l->block_bytes));
        for (uint32_t i = 0; i < 3 * n; i++)
            source_bytes += coli__weight_bytes(&l->weights[3 * first + i]);
        COLI_TRY(report(c, l->name, source_bytes));
    }
    return COLI_OK;
}

/* What an expert of the layer becomes, at most: where f16 cannot hold its scales, they are f32. */
static bool expert_block(const converter *c, const coli__expert_spec *s,
                         const coli__weight *weights, bool f16_holds, uint64_t *block_bytes)
{
    coli__ct_experts x = {.n_expert = s->n_expert, .d_model = s->d_model, .d_ff = s->d_ff};
    coli__wfmt *const fmts[3] = {&x.gate.fmt, &x.up.fmt, &x.down.fmt};
    for (int i = 0; i < 3; i++) {
        *fmts[i] = coli__source_expert_format(&c->formats, s, weights, (uint32_t)i);
        if (!f16_holds) fmts[i]->scale_f16 = false;
    }
    if (!coli__ct_size_experts(&x)) return false;
    *block_bytes = x.block_bytes;
    return true;
}

static uint64_t expert_source_bytes(const coli__weight *w) // of gate, up and down
{
    return coli__weight_bytes(&w[0]) + coli__weight_bytes(&w[1]) + coli__weight_bytes(&w[2]);
}

static coli_status write_layer(converter *c, const coli__expert_spec *s,
                               const coli__weight *weights)
{
    layer l = {.spec = s,
               .weights = weights,
               .fmt = {coli__source_expert_format(&c->formats, s, weights, 0),
                       coli__source_expert_format(&c->formats, s, weights, 1),
                       coli__source_expert_format(&c->formats, s, weights, 2)}};
    uint64_t block;
    if (!expert_block(c, s, weights, false, &block))
        return coli__fail(COLI_E_INTERNAL, "layer %u: no such experts", s->layer);
    snprintf(l.name, sizeof l.name, "experts of layer %u", s->layer);
    uint64_t n_fit = c->step_bytes / block; // at least 1
    const uint64_t n_source = SOURCE_BYTES / (expert_source_bytes(weights) + 1);
    if (n_fit > n_source) n_fit = n_source ? n_source : 1;
    l.n_batch = n_fit < s->n_expert ? (uint32_t)n_fit : s->n_expert;
    l.scale_exp = coli__calloc(s->n_expert, 3 * sizeof *l.scale_exp);
    l.pieces = coli__calloc(l.n_batch, 3 * sizeof *l.pieces);
    l.ranges = coli__calloc(l.n_batch, panels_per_expert(s) * sizeof *l.ranges);
    l.errors = coli__calloc(l.n_batch, panels_per_expert(s) * sizeof *l.errors);
    if (c->imatrix)
        l.importance =
            coli__calloc(l.n_batch, ((size_t)s->d_model + s->d_ff) * sizeof *l.importance);
    const bool made =
        l.scale_exp && l.pieces && l.ranges && l.errors && (l.importance || !c->imatrix);
    coli_status status = made ? COLI_OK : COLI_E_NOMEM;
    if (status == COLI_OK) status = choose_expert_scales(c, &l);
    if (status == COLI_OK) status = write_blocks(c, &l);
    coli__free(l.scale_exp);
    coli__free(l.pieces);
    coli__free(l.ranges);
    coli__free(l.errors);
    coli__free(l.importance);
    return status;
}

/* -- the small files --------------------------------------------------------------------------- */

static void note(const converter *c, const char *line)
{
    if (c->args->note) c->args->note(c->args->user, line);
}

static coli_status write_bytes(converter *c, int file, const void *bytes, uint64_t n_bytes)
{
    char *path;
    COLI_TRY(coli__path_join(c->out_dir, coli__ct_file_names[file], &path));
    coli__file_remove(path); // of a conversion that this one goes on with
    coli__writer *w;
    coli_status status = coli__writer_open(path, &w);
    if (status == COLI_OK) {
        status = coli__writer_append(w, bytes, n_bytes);
        if (status == COLI_OK)
            status = coli__writer_close(w);
        else
            coli__writer_abandon(w);
    }
    c->files[file] = coli__digest_of(bytes, n_bytes);
    coli__free(path);
    return status;
}

static coli_status copy_if_there(converter *c, int file)
{
    char *path;
    COLI_TRY(coli__path_join(c->args->src, coli__ct_file_names[file], &path));
    coli_status status = COLI_OK;
    if (coli__path_exists(path)) {
        coli__map map;
        status = coli__map_open(path, &map);
        if (status == COLI_OK) status = write_bytes(c, file, map.data, map.n_bytes);
        coli__map_close(&map);
    } else if (file == CT_TOKENIZER) {
        note(c, "there is no tokenizer.json: this container will take token ids, not text");
    }
    coli__free(path);
    return status;
}

/* tokenizer.json and generation_config.json out of a GGUF's metadata. */
static coli_status write_gguf_files(converter *c)
{
    const coli__gguf *g = c->checkpoint.gguf;
    coli__buf generation = {0}, tokenizer = {0};
    bool found;
    coli_status status = coli__gguf_generation(g, &generation);
    if (status == COLI_OK)
        status = write_bytes(c, CT_GENERATION, generation.data, generation.n_bytes);
    if (status == COLI_OK) status = coli__gguf_tokenizer(g, &tokenizer, &found);
    if (status == COLI_OK && found)
        status = write_bytes(c, CT_TOKENIZER, tokenizer.data, tokenizer.n_bytes);
    if (status == COLI_OK && !found)
        note(c, "there is no tokenizer in the file: this container will take token ids, not text");
    coli__buf_finish(&generation);
    coli__buf_finish(&tokenizer);
    return status;
}

static coli_status read_gguf_jinja(const converter *c, coli__buf *text, bool *found)
{
    coli__gguf_text t;
    COLI_TRY(coli__gguf_text_or_null(c->checkpoint.gguf, "tokenizer.chat_template", &t));
    *found = t.data != NULL;
    if (!*found) return COLI_OK;
    if (t.n_bytes > TEMPLATE_MAX_BYTES)
        return coli__fail(COLI_E_FORMAT,
                          "%s: key tokenizer.chat_template: has %llu bytes, at most %d "
                          "are read",
                          c->args->src, (unsigned long long)t.n_bytes, TEMPLATE_MAX_BYTES);
    return coli__buf_append(text, t.data, (size_t)t.n_bytes);
}

/* The checkpoint's chat template as text; *found false when it brings none. */
static coli_status read_jinja(const converter *c, coli__buf *text, bool *found)
{
    if (c->checkpoint.gguf) return read_gguf_jinja(c, text, found);
    char *jinja = NULL, *config = NULL;
    json_t *root = NULL;
    *found = false;
    coli_status status = coli__path_join(c->args->src, "chat_template.jinja", &jinja);
    if (status == COLI_OK) status = coli__path_join(c->args->src, "tokenizer_config.json", &config);
    if (status != COLI_OK) goto out;
    if (coli__path_exists(jinja)) {
        *found = true;
        status = coli__file_read(jinja, TEMPLATE_MAX_BYTES, text);
    } else if (coli__path_exists(config)) { // older exports keep it there
        coli__buf all = {0};
        status = coli__file_read(config, TOKENIZER_CONFIG_MAX_BYTES, &all);
        if (status == COLI_OK)
            status = coli__json_parse_small(config, all.data ? all.data : "", all.n_bytes,
                                            COLI_CONFIG_MAX_DEPTH, &root);
        coli__buf_finish(&all);
        const char *member = json_string_value(json_object_get(root, "chat_template"));
        *found = member != NULL;
        if (status == COLI_OK && member) status = coli__buf_str(text, member);
    }
out:
    json_decref(root);
    coli__free(jinja);
    coli__free(config);
    return status;
}

/* We render the two templates of the family ourselves and do not run Jinja, so all there is to
 * learn from a template is which of the two it is.  One without the family's usual parts was
 * patched; what the patch wanted is lost, which the user should know. */
static coli_status choose_template(const converter *c, const char **out)
{
    static const char *const usual[] = {"<|im_start|>", "enable_thinking", "reasoning_content",
                                        "<tool_response>", "<function="};
    *out = c->args->chat_template;
    if (*out) return COLI_OK;
    coli__buf text = {0};
    bool found;
    const coli_status status = read_jinja(c, &text, &found);
    if (status == COLI_OK) {
        const char *source = text.data ? text.data : "";
        *out = !found || strstr(source, "preserve_thinking") ? "3.6" : "3.5";
        bool patched = false;
        for (size_t i = 0; found && i < sizeof usual / sizeof usual[0]; i++)
            patched = patched || !strstr(source, usual[i]);
        if (!found) note(c, "there is no chat template in the source: 3.6 is taken");
        if (patched) {
            char line[200];
            snprintf(line, sizeof line,
                     "the source's chat template is not the family's own; "
                     "its changes are lost, %s is taken: preserve_thinking, new in 3.6, is %s it",
                     *out, strcmp(*out, "3.6") == 0 ? "in" : "not in");
            note(c, line);
        }
    }
    coli__buf_finish(&text);
    return status;
}

/* What was made of a GGUF's metadata is checked like files that came from elsewhere; OUT.partial will
 * be gone, so the message names the source. */
static coli_status check_gguf_files(const converter *c)
{
    const coli_status status = c->args->check_files(c->out_dir);
    return status == COLI_OK ? status
                             : coli__fail_in(status, "%s: made of its metadata", c->args->src);
}

static coli_status write_files(converter *c)
{
    const char *name;
    COLI_TRY(choose_template(c, &name));
    char chat[64];
    const int n = snprintf(chat, sizeof chat, "{\"template\": \"%s\"}\n", name);
    COLI_TRY(write_bytes(c, CT_CHAT, chat, (uint64_t)n));
    COLI_TRY(write_bytes(c, CT_CONFIG, c->checkpoint.config_text.data,
                         c->checkpoint.config_text.n_bytes));
    if (c->checkpoint.gguf) return write_gguf_files(c);
    COLI_TRY(copy_if_there(c, CT_GENERATION));
    COLI_TRY(copy_if_there(c, CT_TOKENIZER));
    return copy_if_there(c, CT_TOKENIZER_CONFIG);
}

/* -- memory ------------------------------------------------------------------------------------ */

/* What the largest panel, the largest expert and the widest row need. */
typedef struct needs {
    uint64_t step_bytes, source_bytes, panel_bytes, worker_bytes;
    uint32_t n_in_max;
} needs;

static void need_source(needs *n, uint64_t bytes)
{
    if (bytes > n->source_bytes) n->source_bytes = bytes;
}

/* What model.coli will have: no more than its disk can hold, which is asked, so no overflow. */
static bool add_out_bytes(converter *c, uint64_t align, uint64_t bytes)
{
    return coli__add(c->out_bytes, align - 1, &c->out_bytes) &&
           coli__add(c->out_bytes, bytes, &c->out_bytes);
}

static coli_status need_tensor(converter *c, const coli__tensor_spec *s, const coli__weight *w,
                               needs *n)
{
    uint64_t bytes, panel;
    coli__wfmt fmt = format_for(c, s, w);
    if (!coli__mat_bytes(fmt, s->n_out, s->n_in, &bytes, &panel) ||
        !add_out_bytes(c, CT_TENSOR_ALIGN, bytes))
        return coli__fail(COLI_E_FORMAT, "tensor %s: is too large", s->name);
    fmt.scale_f16 = false; // the larger of the two
    if (!coli__mat_bytes(fmt, s->n_out, s->n_in, &bytes, &panel))
        return coli__fail(COLI_E_FORMAT, "tensor %s: is too large", s->name);
    if (panel > n->step_bytes) n->step_bytes = panel;
    need_source(n, coli__weight_bytes(w) / n_panel_of(w->n_out));
    if (s->n_in > n->n_in_max) n->n_in_max = s->n_in;
    c->total_bytes += coli__weight_bytes(w);
    return COLI_OK;
}

static coli_status need_experts(converter *c, const coli__expert_spec *s, const coli__weight *w,
                                needs *n)
{
    uint64_t block, largest, all;
    if (!expert_block(c, s, w, true, &block) || !coli__mul(block, s->n_expert, &all) ||
        !add_out_bytes(c, CT_EXPERTS_ALIGN, all) || !expert_block(c, s, w, false, &largest))
        return coli__fail(COLI_E_FORMAT, "experts of layer %u: are too large", s->layer);
    if (largest > n->step_bytes) n->step_bytes = largest;
    need_source(n, expert_source_bytes(w));
    if (s->d_model > n->n_in_max) n->n_in_max = s->d_model;
    if (s->d_ff > n->n_in_max) n->n_in_max = s->d_ff;
    for (uint32_t e = 0; e < 3 * s->n_expert; e++) c->total_bytes += coli__weight_bytes(&w[e]);
    return COLI_OK;
}

static uint64_t n_expert_of(const coli__model_spec *spec)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < spec->n_expert_layer; i++) n += spec->experts[i].n_expert;
    return n;
}

static coli_status find_needs(converter *c, needs *n)
{
    const coli__checkpoint *k = &c->checkpoint;
    c->counts = k->gguf || k->merged.is;
    *n = (needs){.step_bytes = STEP_BYTES, .source_bytes = SOURCE_BYTES, .n_in_max = 1};
    for (uint32_t i = 0; i < k->spec.n_tensor; i++)
        COLI_TRY(need_tensor(c, &k->spec.tensors[i], &k->tensors[i], n));
    for (uint32_t i = 0; i < k->spec.n_expert_layer; i++)
        COLI_TRY(need_experts(c, &k->spec.experts[i], k->experts[i], n));
    // the table: a few hundred bytes for a tensor, a checksum and three exponents for an expert
    c->out_bytes += 300 * (uint64_t)k->spec.n_tensor + 64 * n_expert_of(&k->spec) + CT_DATA_ALIGN;
    const uint64_t row_bytes = ((uint64_t)n->n_in_max + 64) * sizeof(float); // padding, scales
    n->panel_bytes = COLI_PANEL * row_bytes;
    n->worker_bytes = 2 * n->panel_bytes + (c->counts ? row_bytes : 0); // scales
    return COLI_OK;
}

/* Share out the memory: c->step_bytes, c->panel_bytes, c->n_worker. */
static coli_status plan_memory(converter *c)
{
    needs n;
    COLI_TRY(find_needs(c, &n));
    const coli__model_spec *spec = &c->checkpoint.spec;
    // a journal's text is there twice while it is read
    const uint64_t journal = 2 * (160 * (uint64_t)spec->n_tensor + 80 * n_expert_of(spec));
    const uint64_t lists = coli__checkpoint_memory_bytes(&c->checkpoint) +
                           coli__ct_writer_memory_bytes(spec) + journal + RESERVE_BYTES;
    const uint64_t all = lists + n.step_bytes + n.source_bytes + n.worker_bytes;
    if (all > COLI_CONVERT_MEMORY_BYTES)
        return coli__fail(
            COLI_E_UNSUPPORTED,
            "converting would need %llu MiB of memory (%llu for one expert or 16 rows, %llu for "
            "their source, %llu to read 16 rows, %llu for lists), at most %d are used",
            (unsigned long long)(all >> 20), (unsigned long long)(n.step_bytes >> 20),
            (unsigned long long)(n.source_bytes >> 20), (unsigned long long)(n.worker_bytes >> 20),
            (unsigned long long)(lists >> 20), COLI_CONVERT_MEMORY_BYTES >> 20);
    const uint64_t left = COLI_CONVERT_MEMORY_BYTES - lists - n.step_bytes - n.source_bytes;
    const uint64_t n_most = (left < PANELS_MAX_BYTES ? left : PANELS_MAX_BYTES) / n.worker_bytes;
    const uint32_t n_wanted = c->args->n_thread ? c->args->n_thread : coli__n_processor();
    c->n_worker = n_wanted < n_most ? n_wanted : n_most > 1 ? (uint32_t)n_most : 1;
    c->step_bytes = n.step_bytes;
    c->panel_bytes = n.panel_bytes;
    c->n_in_max = n.n_in_max;
    return COLI_OK;
}

static coli_status take_memory(converter *c)
{
    COLI_TRY(coli__pool_create(c->n_worker, &c->pool));
    c->step = coli__alloc64((size_t)c->step_bytes);
    c->report = coli__calloc(1, sizeof *c->report);
    c->workers = coli__calloc(c->n_worker, sizeof *c->workers);
    c->importance = coli__calloc(c->n_in_max, sizeof *c->importance);
    if (!c->step || !c->report || !c->workers || !c->importance) return COLI_E_NOMEM;
    for (uint32_t i = 0; i < c->n_worker; i++) {
        c->workers[i].rows = coli__alloc64((size_t)c->panel_bytes);
        c->workers[i].panel = coli__alloc64((size_t)c->panel_bytes);
        if (!c->workers[i].rows || !c->workers[i].panel) return COLI_E_NOMEM;
        if (!c->counts) continue;
        const size_t n_scale = COLI_PANEL * ((size_t)c->n_in_max / 32);
        c->workers[i].scales = coli__calloc(n_scale, sizeof(float));
        if (!c->workers[i].scales) return COLI_E_NOMEM;
    }
    return COLI_OK;
}

static void give_memory_back(converter *c)
{
    for (uint32_t i = 0; c->workers && i < c->n_worker; i++) {
        coli__free_aligned(c->workers[i].rows);
        coli__free_aligned(c->workers[i].panel);
        coli__free(c->workers[i].scales);
    }
    coli__free(c->workers);
    coli__free_aligned(c->step);
    coli__free(c->report);
    coli__free(c->importance);
    coli__pool_destroy(c->pool);
    c->workers = NULL;
    c->report = NULL;
    c->importance = NULL;
    c->step = NULL;
    c->pool = NULL;
}

/* -- the journal ------------------------------------------------------------------------------- */

static coli_status check_imatrix(const converter *c)
{
    return c->imatrix ? coli__imatrix_check_whole(c->imatrix) : COLI_OK;
}

static coli_status tell(converter *c)
{
    const uint64_t limit = c->args->tell_bytes ? c->args->tell_bytes : TELL_BYTES;
    const uint64_t n_bytes = coli__ct_writer_offset(c->writer);
    if (n_bytes - c->told_bytes < limit) return COLI_OK;
    COLI_TRY(
        check_imatrix(c)); // what was made with a torn one is worthless: nothing may go on with it
    coli__buf lines = {0};
    coli_status status = coli__ct_writer_tell(c->writer, &lines);
    if (status == COLI_OK) status = coli__job_tell(&c->job, &lines);
    coli__buf_finish(&lines);
    c->told_bytes = n_bytes;
    return status;
}

/* -- the whole --------------------------------------------------------------------------------- */

/* What an earlier conversion finished counts as done. */
static coli_status count_checked(void *user, coli__ct_done done)
{
    converter *c = user;
    const coli__checkpoint *k = &c->checkpoint;
    uint64_t n_bytes = 0;
    if (done.n_layer == 0)
        n_bytes = coli__weight_bytes(&k->tensors[done.n_entry - 1]);
    else
        for (uint32_t e = 0; e < 3 * k->spec.experts[done.n_layer - 1].n_expert; e++)
            n_bytes += coli__weight_bytes(&k->experts[done.n_layer - 1][e]);
    return report(c, "what is there already", n_bytes);
}

static void tell_going_on(const converter *c)
{
    char line[300];
    snprintf(line, sizeof line, "going on with %.150s: %.2f of %.2f GB were done", c->out_dir,
             (double)c->done_bytes * 1e-9, (double)c->total_bytes * 1e-9);
    note(c, line);
}

/* Behind what is told, if that is still what is there; else at the beginning. */
static coli_status open_writer(converter *c, const char *path, const char *facts)
{
    const coli__checkpoint *k = &c->checkpoint;
    if (c->job.has_told) {
        const coli_status status = coli__ct_writer_resume(
            path, k->engine, &k->spec, c->job.told.data, count_checked, c, &c->done, &c->writer);
        coli__buf_finish(&c->job.told);
        if (status == COLI_OK) {
            c->told_bytes = coli__ct_writer_offset(c->writer);
            tell_going_on(c);
            return COLI_OK;
        }
        if (status != COLI_E_FORMAT && status != COLI_E_NOTFOUND) return status;
        char line[400];
        snprintf(line, sizeof line, "beginning anew: %.370s", coli_error_message());
        note(c, line);
        c->done = (coli__ct_done){0};
        c->done_bytes = 0;
        COLI_TRY(coli__job_anew(&c->job, facts));
    }
    coli__file_remove(path); // of which nothing was told
    return coli__ct_writer_open(path, k->engine, &k->spec, &c->writer);
}

static coli_status open_model(converter *c, const char *facts)
{
    char *path;
    COLI_TRY(coli__path_join(c->out_dir, "model.coli", &path));
    const coli_status status = open_writer(c, path, facts);
    coli__free(path);
    return status;
}

static coli_status write_model(converter *c)
{
    const coli__checkpoint *k = &c->checkpoint;
    coli_status status = COLI_OK;
    for (uint32_t i = c->done.n_entry; i < k->spec.n_tensor && status == COLI_OK; i++) {
        status = write_tensor(c, &k->spec.tensors[i], &k->tensors[i]);
        if (status == COLI_OK) status = tell(c);
    }
    for (uint32_t i = c->done.n_layer; i < k->spec.n_expert_layer && status == COLI_OK; i++) {
        status = write_layer(c, &k->spec.experts[i], k->experts[i]);
        if (status == COLI_OK) status = tell(c);
    }
    if (status == COLI_OK) {
        if (c->done.n_entry > 0) note(c, "what rounding cost is told of what was converted now:");
        coli__report_tell(c->report, c->args->note, c->args->user);
    }
    give_memory_back(c); // the table needs some, too
    if (status == COLI_OK) {
        status = coli__ct_writer_close(c->writer, c->files);
        c->writer = NULL;
    }
    return status;
}

/* What we could not open must not get the name. */
static coli_status check_result(const char *dir)
{
    coli__container *container;
    const coli_status status = coli__container_open(dir, &container);
    coli__container_close(container);
    return status;
}

/* The bytes of a file, 0 where there is none. */
static coli_status find_bytes(const char *dir, const char *name, uint64_t *n_bytes)
{
    char *path;
    coli__file_stamp stamp;
    *n_bytes = 0;
    COLI_TRY(coli__path_join(dir, name, &path));
    if (coli__path_exists(path) && coli__file_look(path, &stamp) == COLI_OK)
        *n_bytes = stamp.n_bytes;
    coli__free(path);
    return COLI_OK;
}

/* All that OUT will have. */
static coli_status find_need(const converter *c, uint64_t *n_bytes)
{
    *n_bytes = c->out_bytes + c->checkpoint.config_text.n_bytes;
    for (int i = 0; i < CT_N_FILE && !c->checkpoint.gguf; i++) {
        uint64_t n;
        COLI_TRY(find_bytes(c->args->src, coli__ct_file_names[i], &n));
        *n_bytes += n;
    }
    return COLI_OK;
}

/* Before the first byte is written.  Matrices that will need f32 scales are not known yet: with many of those
 * the disk can still get full. */
static coli_status check_disk(const converter *c)
{
    uint64_t n_needed, n_left; // the last: by an unfinished conversion, of use or not
    COLI_TRY(find_need(c, &n_needed));
    COLI_TRY(find_bytes(c->out_dir, "model.coli", &n_left));
    return coli__disk_check(c->args->out, n_needed, n_left, ", or take smaller formats");
}

/* Write, check and rename what c->job belongs to. */
static coli_status write_all(converter *c, const char *facts)
{
    coli_status status = open_model(c, facts);
    if (status == COLI_OK) status = write_files(c);
    if (status == COLI_OK && c->checkpoint.gguf && c->args->check_files)
        status = check_gguf_files(c);
    if (status == COLI_OK) status = take_memory(c);
    if (status == COLI_OK) status = write_model(c);
    if (status == COLI_OK) status = check_result(c->out_dir);
    coli__ct_writer_abandon(c->writer);
    c->writer = NULL;
    const coli_status whole = check_imatrix(c);
    return whole == COLI_OK ? status : whole;
}

/* The last name.  Where the journal could not be held until then, what has it is looked at again. */
static coli_status publish(converter *c)
{
    COLI_TRY(coli__job_publish(&c->job, c->args->out));
    return coli__dir_moves_open ? COLI_OK : check_result(c->args->out);
}

/* When the disk or the memory gave out, or the name was taken meanwhile, what was told stays: the same
 * conversion may go on when that is settled. */
static coli_status leave(converter *c, coli_status status, bool has_told)
{
    const bool stays = has_told && coli__path_exists(c->out_dir) &&
                       (status == COLI_E_IO || status == COLI_E_NOMEM || status == COLI_E_EXISTS);
    if (!stays) {
        coli__job_remove(&c->job);
        return status;
    }
    coli__job_close(&c->job);
    coli__buf why = {0};
    if (coli__buf_str(&why, coli_error_message()) == COLI_OK)
        coli__fail(status, "%s; what is done stays in %s, and the same conversion goes on with it",
                   why.data, c->out_dir);
    coli__buf_finish(&why);
    return status;
}

static void add_format(XXH3_state_t *hash, coli__wfmt fmt)
{
    char name[32] = {0};
    coli__wfmt_name(fmt, name);
    XXH3_128bits_update(hash, name, sizeof name);
}

/* What recipe, arguments and source come to. */
static coli_status find_formats(const converter *c, coli__digest *out)
{
    const coli__checkpoint *k = &c->checkpoint;
    XXH3_state_t *hash = XXH3_createState();
    if (!hash) return coli__fail(COLI_E_NOMEM, "out of memory");
    XXH3_128bits_reset(hash);
    for (uint32_t i = 0; i < k->spec.n_tensor; i++)
        add_format(hash, format_for(c, &k->spec.tensors[i], &k->tensors[i]));
    for (uint32_t i = 0; i < k->spec.n_expert_layer; i++)
        for (uint32_t part = 0; part < 3; part++)
            add_format(hash, coli__source_expert_format(&c->formats, &k->spec.experts[i],
                                                        k->experts[i], part));
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(hash));
    XXH3_freeState(hash);
    *out = coli__digest_text(canonical.digest);
    return COLI_OK;
}

static coli_status find_facts(const converter *c, coli__buf *out)
{
    coli__digest formats;
    COLI_TRY(find_formats(c, &formats));
    return coli__convert_facts(c->args, &c->checkpoint, c->n_in_max, &formats, out);
}

static coli_status check_free(const char *out)
{
    if (!coli__path_exists(out)) return COLI_OK;
    return coli__fail(COLI_E_EXISTS, "%s: already exists", out);
}

static coli_status write_dir(converter *c)
{
    coli__buf facts = {0};
    COLI_TRY(plan_memory(c));
    COLI_TRY(check_disk(c));
    coli_status status = find_facts(c, &facts);
    if (status == COLI_OK)
        status = coli__job_open(c->out_dir, facts.data, c->args->note, c->args->user, &c->job);
    if (status == COLI_OK) {
        status = check_free(c->args->out); // who has published meanwhile held the journal
        if (status == COLI_OK) status = write_all(c, facts.data);
        const bool has_told = c->job.has_told;
        if (status == COLI_OK) status = publish(c);
        if (status == COLI_OK)
            coli__job_close(&c->job);
        else
            status = leave(c, status, has_told);
    }
    coli__buf_finish(&facts);
    return status;
}

static coli_status check_args(const coli__convert_args *a)
{
    if (!a->src || !a->out || !a->out[0] || !a->describe)
        return coli__fail(COLI_E_INVALID, "convert: a source and an output directory are needed");
    if (!coli__wfmt_valid(a->experts) || !coli__wfmt_valid(a->trunk))
        return coli__fail(COLI_E_INVALID, "convert: not a weight format");
    const char *t = a->chat_template;
    if (t && strcmp(t, "3.6") != 0 && strcmp(t, "3.5") != 0)
        return coli__fail(COLI_E_INVALID, "convert: chat template \"%s\": expected 3.6 or 3.5", t);
    return check_free(a->out);
}

static coli_status source_vector(void *ctx, uint32_t i, float *out)
{
    return coli__weight_rows(&((const coli__checkpoint *)ctx)->tensors[i], 0, 1, out);
}

/* Columns of the experts' longest rows. */
static uint32_t longest_row(const coli__model_spec *spec)
{
    uint32_t n_in = 1;
    for (uint32_t i = 0; i < spec->n_expert_layer; i++) {
        const coli__expert_spec *s = &spec->experts[i];
        n_in = s->d_model > n_in ? s->d_model : n_in;
        n_in = s->d_ff > n_in ? s->d_ff : n_in;
    }
    return n_in;
}

/* The recipe and the imatrix, against the model. */
static coli_status check_guides(converter *c)
{
    const coli__convert_args *a = c->args;
    coli__checkpoint *k = &c->checkpoint;
    if (a->recipe) COLI_TRY(coli__recipe_check(a->recipe, &k->spec));
    if (!a->imatrix) return COLI_OK;
    char model[33];
    COLI_TRY(coli__imatrix_open(a->imatrix, longest_row(&k->spec), &c->imatrix));
    const coli__fp fp = coli__fp_enter();
    const coli_status status = coli__imatrix_tie(&k->spec, source_vector, k, model);
    coli__fp_leave(fp);
    COLI_TRY(status);
    if (strcmp(model, coli__imatrix_model(c->imatrix)) == 0) return COLI_OK;
    return coli__fail(
        COLI_E_FORMAT,
        "%s: imatrix of another model: expected %s, found %s; `coli imatrix` makes one "
        "with a container of this model",
        a->imatrix, model, coli__imatrix_model(c->imatrix));
}

coli_status coli__convert(const coli__convert_args *args)
{
    COLI_TRY(check_args(args));
    converter c = {.args = args,
                   .formats = {.recipe = args->recipe,
                               .experts = args->experts,
                               .trunk = args->trunk,
                               .experts_are_default = args->experts_are_default,
                               .trunk_is_default = args->trunk_is_default}};
    coli__buf partial = {0};
    size_t n_out = strlen(args->out);
    while (n_out > 1 && coli__path_is_slash(args->out[n_out - 1]))
        n_out--; // the sibling of "a/b/" is "a/b.partial"
    coli_status status = coli__buf_append(&partial, args->out, n_out);
    if (status == COLI_OK) status = coli__buf_str(&partial, ".partial");
    c.out_dir = partial.data;
    if (status == COLI_OK)
        status = coli__checkpoint_open_source(args->src, args->gguf_family, args->describe,
                                              args->note, args->user, &c.checkpoint);
    if (status == COLI_OK) status = check_guides(&c);
    if (status == COLI_OK) status = write_dir(&c);
    give_memory_back(&c);
    coli__imatrix_close(c.imatrix);
    coli__checkpoint_finish(&c.checkpoint);
    coli__buf_finish(&partial);
    return status;
}
