/* synth.c - random weights, written as they are stored.
 *
 * Speed does not depend on what the weights say, only on how many there are and which experts are
 * chosen.  So nothing is quantised here: codes are random bits and scales come from a table of
 * sixteen, which takes a byte or two per nanosecond and leaves the disk as the limit.
 *
 *     panel of a matrix   generator seeded with (seed, matrix, panel)
 *       each group        16 scales: 4 random bits each choose 24/32 .. 39/32 of the base
 *                         codes: random bits, the lowest code (-8, -128) replaced by 0
 *
 * The lowest code goes because the others then have mean 0.  A mean would be the same vector in
 * every row, and a common vector grows from layer to layer until nothing else is left.
 *
 * Base scales give a weight the variance gain^2 / n_in, so that a normed input of variance 1 keeps
 * it; every layer then adds about the same to the residual stream, whose variance grows like the
 * number of layers.  What is no matrix has a centre and a spread by its name (`vectors`): norms
 * near 1, decays that forget within some hundred tokens.
 *
 * Routing.  Random rows of one length give every expert the same chance.  The router has no bias to
 * skew that with, and needs none: a longer row has larger logits, of either sign, and is among the
 * best more often.  The row of rank r among n, in an order drawn for each layer, is
 * exp(-skew r / (n-1)) long.  No expert is then used by more than half of the tokens, whatever the
 * activations.
 *
 * Panels are independent and the pool takes them in any order: the bytes depend on the arguments
 * alone.  Written to OUT.partial and renamed, like a conversion. */
#include "synth.h"

#include <stdio.h>
#include <string.h>

#include "../../include/coli/exact.h"
#include "../base/random.h"
#include "../base/threads.h"
#include "../math/kernels_impl.h"
#include "container_format.h"

enum {
    STEP_BYTES = 32 << 20, // filled by all threads, then written by one
    STEP_MAX_BYTES = 1 << 30,
    N_SCALE = 16,
};

/* -- geometries ------------------------------------------------------------------------------- */

typedef struct geometry {
    const char *name;
    uint32_t n_layer, d_model, n_vocab, n_ctx_max;
    uint32_t n_head, n_kv_head, d_head;
    uint32_t n_k_head, n_v_head, d_k, d_v;
    uint32_t n_expert, n_expert_used, d_ff, d_ff_shared;
    uint32_t rope_theta;
} geometry;

// clang-format off
static const geometry geometries[] = {
    //              layers model  vocab  context  heads kv  dim  DeltaNet heads, dims  experts   inner       theta
    {"qwen36-35b",   40,   2048, 248320, 262144,  16,   2,  256,  16, 32, 128, 128,    256, 8,   512, 512,   10000000},
    {"qwen36-122b",  48,   3072, 248320, 262144,  32,   2,  256,  16, 64, 128, 128,    256, 8,   1024, 1024, 10000000},
    {"qwen36-397b",  60,   4096, 248320, 262144,  32,   2,  256,  16, 64, 128, 128,    512, 10,  1024, 1024, 10000000},
    {"hummingbird",   8,    192,   3456,   4096,   4,   2,   64,   4,  8,  32,  32,     64, 6,    64,  64,      10000},
};
// clang-format on

static coli_status choose_geometry(const coli__synth_args *a, geometry *g)
{
    size_t i = 0;
    const size_t n = sizeof geometries / sizeof geometries[0];
    while (i < n && strcmp(geometries[i].name, a->like) != 0) i++;
    if (i == n)
        return coli__fail(COLI_E_INVALID,
                          "synth: like \"%.40s\": expected qwen36-35b, qwen36-122b, qwen36-397b or "
                          "hummingbird",
                          a->like);
    *g = geometries[i];
    if (a->n_layer) g->n_layer = a->n_layer;
    if (a->d_model) g->d_model = a->d_model;
    if (a->n_expert) g->n_expert = a->n_expert;
    if (a->n_expert_used) g->n_expert_used = a->n_expert_used;
    if (a->d_ff) g->d_ff = g->d_ff_shared = a->d_ff;
    if (a->n_vocab) g->n_vocab = a->n_vocab;
    return COLI_OK;
}

static coli_status write_config(const coli__synth_args *a, const geometry *g, coli__buf *out)
{
    COLI_TRY(coli__buf_printf(out,
                              "{\"model_type\": \"qwen3_5_moe_text\",\n"
                              " \"synthetic\": {\"like\": \"%s\", \"seed\": \"%llu\", \"skew\": ",
                              g->name, (unsigned long long)a->seed));
    COLI_TRY(coli__buf_number(out, (double)a->skew, 9));
    return coli__buf_printf(
        out,
        "},\n"
        " \"hidden_size\": %u, \"num_hidden_layers\": %u, \"full_attention_interval\": 4,\n"
        " \"vocab_size\": %u, \"max_position_embeddings\": %u, \"tie_word_embeddings\": false,\n"
        " \"num_attention_heads\": %u, \"num_key_value_heads\": %u, \"head_dim\": %u,\n"
        " \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": %u,\n"
        "  \"partial_rotary_factor\": 0.25},\n"
        " \"linear_num_key_heads\": %u, \"linear_num_value_heads\": %u,\n"
        " \"linear_key_head_dim\": %u, \"linear_value_head_dim\": %u,\n"
        " \"linear_conv_kernel_dim\": 4, \"num_experts\": %u, \"num_experts_per_tok\": %u,\n"
        " \"moe_intermediate_size\": %u, \"shared_expert_intermediate_size\": %u,\n"
        " \"rms_norm_eps\": 1e-06, \"hidden_act\": \"silu\"}\n",
        g->d_model, g->n_layer, g->n_vocab, g->n_ctx_max, g->n_head, g->n_kv_head, g->d_head,
        g->rope_theta, g->n_k_head, g->n_v_head, g->d_k, g->d_v, g->n_expert, g->n_expert_used,
        g->d_ff, g->d_ff_shared);
}

/* Sampling as the 35B's own file has it, so that its cost is the real one. */
static const char generation_config[] =
    "{\"do_sample\": true, \"temperature\": 1.0, \"top_k\": 20, \"top_p\": 0.95}\n";

/* -- random numbers --------------------------------------------------------------------------- */

static uint64_t stream_of(uint64_t seed, uint64_t matrix, uint64_t part)
{
    uint64_t state = seed;
    state = coli__random(&state) ^ matrix;
    state = coli__random(&state) ^ part;
    return coli__random(&state);
}

/* Uniform in (-1, 1), mean 0: 24 bits, which f32 holds. */
static float uniform(uint64_t *state)
{
    return ((float)(coli__random(state) >> 41) + 0.5f) * 0x1p-22f - 1.0f;
}

/* -- one matrix ------------------------------------------------------------------------------- */

/* Numbers from centre - spread to centre + spread. */
typedef struct values {
    float centre, spread;
} values;

/* A matrix to make; panel p of it does not depend on the others. */
typedef struct source {
    coli__wfmt fmt;
    uint32_t n_out, n_in;
    uint64_t stream_seed, id; // id: which matrix
    values values;            // float formats
    const float *row_length;  // (n_out) float formats: times this; NULL: 1
    int32_t scale_exp;        // quantised formats
    float scales[N_SCALE];    // in units of 2^scale_exp, exact in f16
} source;

static uint32_t n_panel_of(uint32_t n_out)
{
    return (n_out + COLI_PANEL - 1) / COLI_PANEL;
}

static uint16_t half_of(float x) // x normal in f16, with zeros where f16 has no bits
{
    return (uint16_t)((coli_bits(x) - 0x38000000u) >> 13);
}

/* Weights of variance `deviation` squared. */
static void set_deviation(source *s, float deviation)
{
    s->values = (values){0, deviation * 1.7320508f}; // uniform: variance spread^2 / 3
    if (!coli__wfmt_is_quant(s->fmt)) return;
    // codes -7..7 with 0 twice as likely: variance 17.5; -127..127 likewise: 5397.5
    const float per_code = s->fmt.type == COLI_W_I4 ? 0.2390457f : 0.01361145f;
    const float base = deviation * per_code;
    const int32_t exponent = (int32_t)(coli_bits(base) >> 23) - 127;
    s->scale_exp = s->fmt.scale_f16 ? exponent : 0;
    const float unit = base * coli_pow2(-s->scale_exp);
    for (uint32_t i = 0; i < N_SCALE; i++) {
        const float scale = unit * ((float)(24 + i) * 0.03125f); // the mean is close to unit
        s->scales[i] = s->fmt.scale_f16 ? coli_from_bits(coli_bits(scale) & ~0x1FFFu) : scale;
    }
}

static void put_scales(const source *s, uint64_t *state, uint32_t n_row, uint8_t *out)
{
    const uint64_t bits = coli__random(state);
    for (uint32_t r = 0; r < COLI_PANEL; r++) {
        const float scale = r < n_row ? s->scales[bits >> 4 * r & 15] : 0;
        const uint16_t half = r < n_row ? half_of(scale) : 0;
        if (s->fmt.scale_f16)
            memcpy(out + 2 * r, &half, sizeof half);
        else
            memcpy(out + 4 * r, &scale, sizeof scale);
    }
}

/* n_bytes is a multiple of 64. */
static void put_codes(coli__wtype type, uint64_t *state, uint64_t n_bytes, uint8_t *out)
{
    for (uint64_t i = 0; i < n_bytes; i += 8) {
        uint64_t word = coli__random(state),
                 used = word; // used: lowest bit of every code that is not 0
        used |= used >> 1;
        used |= used >> 2;
        if (type == COLI_W_I4) {
            word |= (~used & 0x1111111111111111u) << 3;
        } else {
            used |= used >> 4;
            word |= (~used & 0x0101010101010101u) << 7;
        }
        memcpy(out + i, &word, sizeof word);
    }
}

/* Elements outside the matrix hold the code of 0. */
static void clear_padding(const source *s, const coli__layout *l, uint32_t n_row, uint8_t *panel)
{
    const uint32_t n_last = s->n_in - (uint32_t)(l->n_group - 1) * s->fmt.group;
    if (n_row == COLI_PANEL && n_last == s->fmt.group) return;
    for (uint64_t g = 0; g < l->n_group; g++) {
        uint8_t *codes = panel + l->first_group + g * l->group_bytes + l->code_offset;
        const uint32_t n_column = g + 1 == l->n_group ? n_last : s->fmt.group;
        for (uint32_t r = 0; r < COLI_PANEL; r++)
            for (uint32_t c = r < n_row ? n_column : 0; c < s->fmt.group; c++) {
                if (s->fmt.type == COLI_W_I8) {
                    codes[c / 4 * 64 + 4 * r + c % 4] = 128;
                    continue;
                }
                uint8_t *byte = &codes[c / 8 * 64 + 4 * r + c % 4];
                *byte = (uint8_t)(c / 4 % 2 == 0 ? (*byte & 0xF0) | 8 : (*byte & 0x0F) | 0x80);
            }
    }
}

static void fill_quantised(const source *s, uint64_t *state, uint32_t n_row, uint8_t *out)
{
    const coli__layout l = coli__layout_of(s->fmt, s->n_in);
    if (s->fmt.per_row) put_scales(s, state, n_row, out);
    for (uint64_t g = 0; g < l.n_group; g++) {
        uint8_t *at = out + l.first_group + g * l.group_bytes;
        if (!s->fmt.per_row) put_scales(s, state, n_row, at);
        put_codes(s->fmt.type, state, l.code_bytes, at + l.code_offset);
    }
    clear_padding(s, &l, n_row, out);
}

static void fill_floats(const source *s, uint64_t *state, uint32_t first_row, uint32_t n_row,
                        uint8_t *out)
{
    const uint64_t row_bytes = coli__float_row_bytes(s->fmt, s->n_in);
    memset(out, 0, (size_t)(n_row * row_bytes));
    for (uint32_t r = 0; r < n_row; r++, out += row_bytes) {
        const float length = s->row_length ? s->row_length[first_row + r] : 1;
        for (uint32_t c = 0; c < s->n_in; c++) {
            const float offset = uniform(state) * s->values.spread;
            const float x = (s->values.centre + offset) * length;
            const uint16_t half = (uint16_t)(coli_bits(x) >> 16);
            if (s->fmt.type == COLI_W_BF16)
                memcpy(out + 2 * (size_t)c, &half, sizeof half);
            else
                memcpy(out + 4 * (size_t)c, &x, sizeof x);
        }
    }
}

static void fill_panel(const source *s, uint32_t panel, uint8_t *out)
{
    const uint32_t first = panel * COLI_PANEL, left = s->n_out - first;
    const uint32_t n_row = left < COLI_PANEL ? left : COLI_PANEL;
    uint64_t state = stream_of(s->stream_seed, s->id, panel);
    if (coli__wfmt_is_quant(s->fmt))
        fill_quantised(s, &state, n_row, out);
    else
        fill_floats(s, &state, first, n_row, out);
}

/* -- writing ---------------------------------------------------------------------------------- */

typedef struct synth {
    const coli__synth_args *args;
    geometry geometry;
    const char *out_dir; // OUT.partial
    const char *engine;  // the family's name
    coli__model_spec spec;
    coli__ct_writer *writer;
    coli__pool *pool;
    uint8_t *step; // (step_bytes)
    uint64_t step_bytes;
    float *row_length; // (n_expert)
    uint64_t done_bytes, total_bytes;
    coli__digest files[CT_N_FILE];
} synth;

static coli_status report(synth *y, const char *what, uint64_t more_bytes)
{
    y->done_bytes += more_bytes;
    const coli__synth_args *a = y->args;
    if (!a->progress || a->progress(a->user, what, y->done_bytes, y->total_bytes)) return COLI_OK;
    return coli__fail(COLI_E_CANCELLED, "%s: writing was stopped", a->out);
}

/* The tensors that are no matrices, by the ending of their name. */
static const struct {
    const char *ending;
    values values;
} vectors[] = {
    {"linear_attn.norm.weight", {1, 0.1f}}, // a plain weight
    {"conv1d.weight", {0, 0.7f}},           //
    {"A_log", {1, 1}},                      // decay rates 1 .. 7
    {"dt_bias", {-4, 1}},                   // times softplus of about this: 0.02
    {"", {0, 0.1f}},                        // the zero-centred weights of norms
};

static values vector_values(const char *name)
{
    size_t i = 0;
    while (!coli__ends_with(name, vectors[i].ending)) i++;
    return vectors[i].values;
}

/* Lengths of the router's rows, in a random order. */
static void draw_lengths(const synth *y, uint64_t id)
{
    const uint32_t n = y->geometry.n_expert;
    uint64_t state = stream_of(y->args->seed, id, UINT64_MAX);
    for (uint32_t e = 0; e < n; e++) { // e is put where an earlier one was, which goes to the end
        const uint32_t at = (uint32_t)(coli__random(&state) % (e + 1));
        y->row_length[e] = y->row_length[at];
        y->row_length[at] = n > 1 ? coli_exp(-y->args->skew * (float)e / (float)(n - 1)) : 1;
    }
}

static coli__wfmt format_for(const synth *y, coli__role role)
{
    if (role == COLI_ROLE_TRUNK || role == COLI_ROLE_EMBED) return y->args->trunk;
    return (coli__wfmt){.type = role == COLI_ROLE_PRECISE ? COLI_W_BF16 : COLI_W_F32};
}

static source source_of(const synth *y, uint32_t i)
{
    const coli__tensor_spec *t = &y->spec.tensors[i];
    const float unit = coli_rsqrt((float)t->n_in);
    source s = {.fmt = format_for(y, t->role),
                .n_out = t->n_out,
                .n_in = t->n_in,
                .stream_seed = y->args->seed,
                .id = i};
    if (t->role == COLI_ROLE_VECTOR) {
        s.values = vector_values(t->name);
    } else if (t->role == COLI_ROLE_EMBED) {
        set_deviation(&s, 1);
    } else if (coli__ends_with(t->name, ".mlp.gate.weight")) {
        set_deviation(&s, 2 * unit); // decided, but not by one expert alone
        draw_lengths(y, i);
        s.row_length = y->row_length;
    } else {
        set_deviation(&s, unit);
    }
    return s;
}

/* One run of the pool: consecutive panels of one matrix. */
typedef struct band {
    const source *source;
    uint32_t first_panel;
    uint64_t panel_bytes;
    uint8_t *out;
} band;

static void band_item(void *ctx, uint32_t item, uint32_t worker)
{
    (void)worker;
    const band *b = ctx;
    fill_panel(b->source, b->first_panel + item, b->out + item * b->panel_bytes);
}

static coli_status write_tensor(synth *y, uint32_t i)
{
    const source s = source_of(y, i);
    const char *name = y->spec.tensors[i].name;
    uint64_t n_bytes, panel_bytes;
    if (!coli__mat_bytes(s.fmt, s.n_out, s.n_in, &n_bytes, &panel_bytes))
        return coli__fail(COLI_E_INTERNAL, "tensor %s: no such matrix", name);
    COLI_TRY(coli__ct_writer_tensor(y->writer, s.fmt, s.scale_exp));
    band b = {&s, 0, panel_bytes, y->step};
    const uint32_t n_fit = (uint32_t)(y->step_bytes / panel_bytes), n_panel = n_panel_of(s.n_out);
    for (uint32_t n; b.first_panel < n_panel; b.first_panel += n) {
        n = n_panel - b.first_panel < n_fit ? n_panel - b.first_panel : n_fit;
        coli__pool_run(y->pool, n, band_item, &b);
        const uint64_t rest = n_bytes - b.first_panel * panel_bytes; // floats end with their rows
        const uint64_t n_now = rest < n * panel_bytes ? rest : n * panel_bytes;
        COLI_TRY(coli__ct_writer_append(y->writer, y->step, n_now));
        COLI_TRY(report(y, name, n_now));
    }
    return COLI_OK;
}

/* One run of the pool: some whole experts. */
typedef struct batch {
    source mats[3]; // gate, up, down; the ids of expert 0
    uint64_t offset[3], panel_bytes[3], block_bytes;
    uint32_t n_panel[3], first_expert;
    uint8_t *out;
} batch;

static void expert_item(void *ctx, uint32_t item, uint32_t worker)
{
    (void)worker;
    const batch *b = ctx;
    const uint32_t n = b->n_panel[0] + b->n_panel[1] + b->n_panel[2], expert = item / n;
    uint32_t panel = item % n, m = 0;
    for (; panel >= b->n_panel[m]; m++) panel -= b->n_panel[m];
    source s = b->mats[m];
    s.id += 3 * (uint64_t)(b->first_expert + expert);
    const uint64_t begin = panel * b->panel_bytes[m];
    fill_panel(&s, panel, b->out + expert * b->block_bytes + b->offset[m] + begin);
}

static coli_status prepare_batch(const synth *y, const coli__ct_experts *x, batch *b)
{
    *b = (batch){
        .offset = {0, x->up_offset, x->down_offset}, .block_bytes = x->block_bytes, .out = y->step};
    const coli__mat *mats[3] = {&x->gate, &x->up, &x->down};
    for (uint32_t m = 0; m < 3; m++) {
        source *s = &b->mats[m];
        *s = (source){.fmt = mats[m]->fmt,
                      .n_out = mats[m]->n_out,
                      .n_in = mats[m]->n_in,
                      .stream_seed = y->args->seed,
                      // beyond the tensors' ids: a layer has fewer than 2^20 matrices
                      .id = ((uint64_t)x->layer + 1) << 20 | m};
        set_deviation(s, coli_rsqrt((float)s->n_in));
        b->n_panel[m] = n_panel_of(s->n_out);
        uint64_t n_bytes;
        if (!coli__mat_bytes(s->fmt, s->n_out, s->n_in, &n_bytes, &b->panel_bytes[m]))
            return coli__fail(COLI_E_INTERNAL, "experts of layer %u: no such matrix", x->layer);
    }
    return COLI_OK;
}

static coli_status write_layer(synth *y, const coli__expert_spec *spec)
{
    const coli__wfmt fmt = y->args->experts;
    const coli__ct_experts *x;
    batch b;
    char name[48];
    snprintf(name, sizeof name, "experts of layer %u", spec->layer);
    COLI_TRY(coli__ct_writer_experts(y->writer, fmt, fmt, fmt, &x));
    COLI_TRY(prepare_batch(y, x, &b));
    const int32_t scale_exp[3] = {b.mats[0].scale_exp, b.mats[1].scale_exp, b.mats[2].scale_exp};
    const uint64_t n_fit = y->step_bytes / b.block_bytes; // at least 1
    const uint32_t n_step = n_fit < spec->n_expert ? (uint32_t)n_fit : spec->n_expert;
    memset(y->step, 0, (size_t)(n_step * b.block_bytes)); // also what lies between the matrices
    for (uint32_t n; b.first_expert < spec->n_expert; b.first_expert += n) {
        const uint32_t left = spec->n_expert - b.first_expert;
        n = left < n_step ? left : n_step;
        coli__pool_run(y->pool, n * (b.n_panel[0] + b.n_panel[1] + b.n_panel[2]), expert_item, &b);
        for (uint32_t e = 0; e < n; e++)
            COLI_TRY(coli__ct_writer_expert(y->writer, scale_exp, y->step + e * b.block_bytes));
        COLI_TRY(report(y, name, n * b.block_bytes));
    }
    return COLI_OK;
}

/* -- the whole -------------------------------------------------------------------------------- */

/* Sizes of everything, and a step that holds the largest panel and the largest expert. */
static coli_status plan(synth *y)
{
    y->step_bytes = STEP_BYTES;
    for (uint32_t i = 0; i < y->spec.n_tensor; i++) {
        const coli__tensor_spec *t = &y->spec.tensors[i];
        uint64_t n_bytes, panel;
        if (!coli__mat_bytes(format_for(y, t->role), t->n_out, t->n_in, &n_bytes, &panel))
            return coli__fail(COLI_E_FORMAT, "tensor %s: is too large", t->name);
        y->total_bytes += n_bytes;
        if (panel > y->step_bytes) y->step_bytes = panel;
    }
    for (uint32_t i = 0; i < y->spec.n_expert_layer; i++) {
        const coli__expert_spec *s = &y->spec.experts[i];
        coli__ct_experts x = {.n_expert = s->n_expert, .d_model = s->d_model, .d_ff = s->d_ff};
        x.gate.fmt = x.up.fmt = x.down.fmt = y->args->experts;
        if (!coli__ct_size_experts(&x))
            return coli__fail(COLI_E_FORMAT, "experts of layer %u: are too large", s->layer);
        y->total_bytes += x.block_bytes * s->n_expert;
        if (x.block_bytes > y->step_bytes) y->step_bytes = x.block_bytes;
    }
    if (y->step_bytes > STEP_MAX_BYTES)
        return coli__fail(COLI_E_FORMAT, "one expert or 16 rows take %llu MiB, at most %d are made",
                          (unsigned long long)(y->step_bytes >> 20), STEP_MAX_BYTES >> 20);
    return COLI_OK;
}

static coli_status write_file(synth *y, int file, const char *bytes, uint64_t n_bytes)
{
    char *path;
    COLI_TRY(coli__path_join(y->out_dir, coli__ct_file_names[file], &path));
    coli__writer *w;
    coli_status status = coli__writer_open(path, &w);
    coli__free(path);
    COLI_TRY(status);
    status = coli__writer_append(w, bytes, n_bytes);
    if (status == COLI_OK)
        status = coli__writer_close(w);
    else
        coli__writer_abandon(w);
    y->files[file] = coli__digest_of(bytes, n_bytes);
    return status;
}

static coli_status write_model(synth *y)
{
    char *path;
    COLI_TRY(coli__path_join(y->out_dir, "model.coli", &path));
    coli_status status = coli__ct_writer_open(path, y->engine, &y->spec, &y->writer);
    coli__free(path);
    if (status == COLI_OK)
        status = coli__disk_check(y->args->out, y->total_bytes, 0, ", or make fewer layers");
    for (uint32_t i = 0; i < y->spec.n_tensor && status == COLI_OK; i++)
        status = write_tensor(y, i);
    for (uint32_t i = 0; i < y->spec.n_expert_layer && status == COLI_OK; i++)
        status = write_layer(y, &y->spec.experts[i]);
    if (status != COLI_OK) return status;
    status = coli__ct_writer_close(y->writer, y->files);
    y->writer = NULL;
    return status;
}

static coli_status write_parts(synth *y, const coli__buf *config)
{
    static const char chat[] = "{\"template\": \"3.6\"}\n";
    COLI_TRY(write_file(y, CT_CHAT, chat, strlen(chat)));
    COLI_TRY(write_file(y, CT_CONFIG, config->data, config->n_bytes));
    COLI_TRY(write_file(y, CT_GENERATION, generation_config, strlen(generation_config)));
    COLI_TRY(write_model(y));
    coli__container *container; // what we could not open must not get the name
    const coli_status status = coli__container_open(y->out_dir, &container);
    coli__container_close(container);
    return status;
}

static coli_status write_dir(synth *y, const coli__buf *config)
{
    COLI_TRY(coli__pool_create(y->args->n_thread, &y->pool));
    y->step = coli__alloc64((size_t)y->step_bytes);
    y->row_length = coli__calloc(y->geometry.n_expert, sizeof *y->row_length);
    if (!y->step || !y->row_length) return COLI_E_NOMEM;
    const coli_status created = coli__dir_create(y->out_dir);
    if (created == COLI_E_EXISTS)
        return coli__fail(created,
                          "%s: already exists; another run is writing it, or one was killed and "
                          "left it: then remove it",
                          y->out_dir);
    COLI_TRY(created);
    coli_status status = write_parts(y, config);
    if (status == COLI_OK) status = coli__path_rename(y->out_dir, y->args->out);
    if (status == COLI_OK) return COLI_OK;
    coli__ct_writer_abandon(y->writer);
    coli__dir_remove(y->out_dir); // gone already when only the last sync failed
    return status;
}

static coli_status describe(synth *y, const coli__buf *config)
{
    json_t *root;
    COLI_TRY(coli__json_parse("config.json", config->data, config->n_bytes, 8, &root));
    const coli_status status = y->args->describe(root, &y->engine, &y->spec);
    json_decref(root);
    return status;
}

static coli_status check_args(const coli__synth_args *a)
{
    if (!a->out || !a->out[0] || !a->like || !a->describe)
        return coli__fail(COLI_E_INVALID, "synth: an output directory and a geometry are needed");
    if (!coli__wfmt_valid(a->experts) || !coli__wfmt_valid(a->trunk))
        return coli__fail(COLI_E_INVALID, "synth: not a weight format");
    if (!(a->skew >= 0 && a->skew <= 16))
        return coli__fail(COLI_E_INVALID, "synth: skew: expected 0 to 16, found %g",
                          (double)a->skew);
    if (coli__path_exists(a->out)) return coli__fail(COLI_E_EXISTS, "%s: already exists", a->out);
    return COLI_OK;
}

coli_status coli__synth(const coli__synth_args *args)
{
    COLI_TRY(check_args(args));
    const coli__fp fp = coli__fp_enter();
    synth y = {.args = args};
    coli__buf partial = {0}, config = {0};
    size_t n_out = strlen(args->out);
    while (n_out > 1 && coli__path_is_slash(args->out[n_out - 1]))
        n_out--; // beside "a/b/" is "a/b.partial"
    coli_status status = coli__buf_append(&partial, args->out, n_out);
    if (status == COLI_OK) status = coli__buf_str(&partial, ".partial");
    y.out_dir = partial.data;
    if (status == COLI_OK) status = choose_geometry(args, &y.geometry);
    if (status == COLI_OK) status = write_config(args, &y.geometry, &config);
    if (status == COLI_OK) status = describe(&y, &config);
    if (status == COLI_OK) status = plan(&y);
    if (status == COLI_OK) status = write_dir(&y, &config);
    coli__free(y.row_length);
    coli__free_aligned(y.step);
    coli__pool_destroy(y.pool);
    coli__model_spec_finish(&y.spec);
    coli__buf_finish(&partial);
    coli__buf_finish(&config);
    coli__fp_leave(fp);
    return status;
}
