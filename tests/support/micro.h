/* micro.h - a checkpoint of a few kilobytes, made from a seed: two layers (DeltaNet, attention),
 * four experts each.  A test may change any tensor before it is written.  Also a second reader of
 * weight matrices, written from docs/formats/container.md alone. */
#ifndef COLI_TEST_MICRO_H
#define COLI_TEST_MICRO_H

#include <unistd.h>

#include "t.h"

#include "engines/engine.h"
#include "libcoli/src/model/checkpoint.h"
#include "libcoli/src/model/container_format.h"
#include "libcoli/src/model/convert.h"

#define MICRO_CONFIG(n_expert, more)                                                               \
    "{\"model_type\":\"qwen3_5_moe_text\",\"vocab_size\":48,\"hidden_size\":32,"                   \
    "\"num_hidden_layers\":2,\"layer_types\":[\"linear_attention\",\"full_attention\"],"           \
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":16,\"rope_parameters\":"     \
    "{\"rope_type\":\"default\",\"rope_theta\":10000.0,\"partial_rotary_factor\":0.25},"           \
    "\"linear_num_key_heads\":1,\"linear_num_value_heads\":2,\"linear_key_head_dim\":8,"           \
    "\"linear_value_head_dim\":8,\"linear_conv_kernel_dim\":4,\"num_experts\":" #n_expert          \
    ",\"num_experts_per_tok\":2,\"moe_intermediate_size\":24,"                                     \
    "\"shared_expert_intermediate_size\":16,\"max_position_embeddings\":64" more "}"

enum { MICRO_MAX = 256, MICRO_FUSED = 0, MICRO_SINGLE, MICRO_FP8 };

typedef struct micro {
    char *config;
    coli__st_out tensors[MICRO_MAX];
    uint32_t n;
    t_rng rng;
} micro;

/* -- a directory per test program -------------------------------------------------------------- */

static char micro_dir[256];

static inline int micro_setup(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(micro_dir, sizeof micro_dir, "%s/coli-test-XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(micro_dir) ? 0 : 1;
}

static inline int micro_teardown(void **state)
{
    (void)state;
    char command[320];
    snprintf(command, sizeof command, "rm -rf '%s'", micro_dir);
    return system(command);
}

/* A name in that directory; it lives until a thousand others were made. */
static inline const char *micro_path(const char *fmt, ...)
{
    static char paths[1024][512];
    static int next;
    char *path = paths[next++ % 1024];
    const int n = snprintf(path, 512, "%s/", micro_dir);
    va_list args;
    va_start(args, fmt);
    vsnprintf(path + n, 512 - (size_t)n, fmt, args);
    va_end(args);
    return path;
}

static inline void micro_file(const char *path, const void *bytes, size_t n_bytes)
{
    FILE *f = fopen(path, "wb");
    T_TRUE(f != NULL);
    T_EQ(fwrite(bytes, 1, n_bytes, f), n_bytes);
    T_EQ(fclose(f), 0);
}

static inline void micro_text(const char *path, const char *text)
{
    micro_file(path, text, strlen(text));
}

static inline coli__buf micro_read(const char *path)
{
    coli__buf text;
    T_OK(coli__file_read(path, UINT32_MAX, &text));
    return text;
}

/* -- tensors ----------------------------------------------------------------------------------- */

static inline coli__st_out *micro_find(micro *m, const char *name)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (strcmp(m->tensors[i].name, name) == 0) return &m->tensors[i];
    print_error("no tensor %s\n", name);
    T_TRUE(false);
    return NULL;
}

static inline void micro_drop(micro *m, const char *name)
{
    coli__st_out *t = micro_find(m, name);
    free((char *)(uintptr_t)t->name);
    free((void *)(uintptr_t)t->data);
    *t = m->tensors[--m->n];
}

/* Add a tensor; the data is the micro's. */
static inline coli__st_out *micro_add(micro *m, const char *name, coli__dtype dtype, uint32_t rank,
                                      const uint64_t *shape, void *data)
{
    T_LE(m->n + 1, MICRO_MAX);
    coli__st_out *t = &m->tensors[m->n++];
    *t = (coli__st_out){.name = strdup(name), .dtype = dtype, .rank = rank, .data = data};
    memcpy(t->shape, shape, rank * sizeof *shape);
    return t;
}

static inline uint16_t micro_bf16(float x) // cut, which is all a random number needs
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static inline void micro_random(micro *m, const char *name, coli__dtype dtype, uint32_t rank,
                                const uint64_t *shape)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < rank; i++) n *= shape[i];
    uint8_t *data = malloc(n * 4);
    for (uint64_t i = 0; i < n; i++) {
        const float x = t_normal(&m->rng);
        const uint16_t half = micro_bf16(x);
        uint8_t byte = (uint8_t)t_u64(&m->rng);
        if ((byte & 0x7f) == 0x7f) byte ^= 1; // no NaN
        if (dtype == COLI_DT_F32)
            memcpy(data + 4 * i, &x, 4);
        else if (dtype == COLI_DT_BF16)
            memcpy(data + 2 * i, &half, 2);
        else
            data[i] = byte;
    }
    micro_add(m, name, dtype, rank, shape, data);
}

/* A matrix, in fp8 with its grid of multipliers where asked. */
static inline void micro_matrix(micro *m, const char *name, bool fp8, uint64_t n_out, uint64_t n_in)
{
    const uint64_t shape[2] = {n_out, n_in}, grid[2] = {(n_out + 127) / 128, (n_in + 127) / 128};
    micro_random(m, name, fp8 ? COLI_DT_F8_E4M3 : COLI_DT_BF16, 2, shape);
    char scale[192];
    snprintf(scale, sizeof scale, "%s_scale_inv", name);
    if (fp8) micro_random(m, scale, COLI_DT_F32, 2, grid);
}

static inline void micro_experts(micro *m, const coli__expert_spec *s, int kind)
{
    char name[160];
    if (kind == MICRO_FUSED) {
        const uint64_t gate_up[3] = {s->n_expert, 2 * (uint64_t)s->d_ff, s->d_model};
        const uint64_t down[3] = {s->n_expert, s->d_model, s->d_ff};
        snprintf(name, sizeof name, "model.%sgate_up_proj", s->prefix);
        micro_random(m, name, COLI_DT_BF16, 3, gate_up);
        snprintf(name, sizeof name, "model.%sdown_proj", s->prefix);
        micro_random(m, name, COLI_DT_BF16, 3, down);
        return;
    }
    static const char *const part[3] = {"gate", "up", "down"};
    for (uint32_t e = 0; e < s->n_expert; e++)
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "model.%s%u.%s_proj.weight", s->prefix, e, part[i]);
            micro_matrix(m, name, kind == MICRO_FP8, i < 2 ? s->d_ff : s->d_model,
                         i < 2 ? s->d_model : s->d_ff);
        }
}

static inline void micro_init(micro *m, const char *config, uint64_t seed, int kind)
{
    *m = (micro){.config = strdup(config), .rng = {seed}};
    json_t *root;
    const char *engine;
    coli__model_spec spec;
    T_OK(coli__json_parse("config", config, strlen(config), 64, &root));
    T_OK(coli__engine_describe(root, &engine, &spec));
    for (uint32_t i = 0; i < spec.n_tensor; i++) {
        const coli__tensor_spec *s = &spec.tensors[i];
        char name[160];
        const bool head = strncmp(s->name, "lm_head", 7) == 0;
        snprintf(name, sizeof name, "%s%s", head ? "" : "model.", s->name);
        const uint64_t vector[1] = {s->n_in};
        if (s->role == COLI_ROLE_VECTOR)
            micro_random(m, name, COLI_DT_F32, 1, vector);
        else
            micro_matrix(m, name, kind == MICRO_FP8 && s->role == COLI_ROLE_TRUNK, s->n_out,
                         s->n_in);
    }
    for (uint32_t i = 0; i < spec.n_expert_layer; i++) micro_experts(m, &spec.experts[i], kind);
    coli__model_spec_finish(&spec);
    json_decref(root);
}

static inline void micro_finish(micro *m)
{
    while (m->n > 0) micro_drop(m, m->tensors[m->n - 1].name);
    free(m->config);
}

/* config.json and model.safetensors in a new directory. */
static inline const char *micro_write(const micro *m, const char *dir)
{
    char command[1200];
    snprintf(command, sizeof command, "rm -rf '%s' && mkdir '%s'", dir, dir);
    T_EQ(system(command), 0);
    char path[600];
    snprintf(path, sizeof path, "%s/config.json", dir);
    micro_text(path, m->config);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    T_OK(coli__st_write(path, m->tensors, m->n));
    return dir;
}

/* The same for a config whose weights, all zero, need not be on the disk: a file with a hole. */
static inline const char *micro_write_hollow(const char *config, const char *dir)
{
    micro m = {.config = strdup(config)};
    json_t *root;
    const char *engine;
    coli__model_spec spec;
    T_OK(coli__json_parse("config", config, strlen(config), 64, &root));
    T_OK(coli__engine_describe(root, &engine, &spec));
    micro_write(&m, dir); // no tensors yet
    char path[600];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    coli__buf header = {0};
    uint64_t at = 0;
    const char *separator = "{";
    for (uint32_t i = 0; i < spec.n_tensor; i++, separator = ",") {
        const coli__tensor_spec *s = &spec.tensors[i];
        const uint64_t n = 2 * (uint64_t)s->n_out * s->n_in;
        const char *head = strncmp(s->name, "lm_head", 7) == 0 ? "" : "model.";
        T_OK(coli__buf_printf(&header,
                              "%s\"%s%s\":{\"dtype\":\"BF16\",\"shape\":[%u,%u],"
                              "\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                              separator, head, s->name, s->n_out, s->n_in, at, at + n));
        at += n;
    }
    for (uint32_t i = 0; i < 2 * spec.n_expert_layer; i++) {
        const coli__expert_spec *s = &spec.experts[i / 2];
        const bool up = i % 2 == 0;
        const uint32_t n_out = up ? 2 * s->d_ff : s->d_model, n_in = up ? s->d_model : s->d_ff;
        const uint64_t n = 2 * (uint64_t)s->n_expert * n_out * n_in;
        T_OK(coli__buf_printf(&header,
                              ",\"model.%s%s\":{\"dtype\":\"BF16\",\"shape\":[%u,%u,%u],"
                              "\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                              s->prefix, up ? "gate_up_proj" : "down_proj", s->n_expert, n_out,
                              n_in, at, at + n));
        at += n;
    }
    T_OK(coli__buf_str(&header, "}"));
    const uint64_t n_header = header.n_bytes;
    FILE *f = fopen(path, "wb");
    T_TRUE(f != NULL);
    T_EQ(fwrite(&n_header, 8, 1, f), 1);
    T_EQ(fwrite(header.data, header.n_bytes, 1, f), 1);
    T_EQ(fclose(f), 0);
    T_EQ(truncate(path, (off_t)(8 + n_header + at)), 0);
    coli__buf_finish(&header);
    coli__model_spec_finish(&spec);
    json_decref(root);
    free(m.config);
    return dir;
}

static inline coli__wfmt micro_format(const char *name)
{
    coli__wfmt fmt;
    T_OK(coli__wfmt_parse(name, &fmt));
    return fmt;
}

static inline coli_status micro_convert(const char *src, const char *out, const char *experts,
                                        const char *trunk)
{
    const coli__convert_args args = {.src = src,
                                     .out = out,
                                     .describe = coli__engine_describe,
                                     .experts = micro_format(experts),
                                     .trunk = micro_format(trunk),
                                     .n_thread = 2};
    return coli__convert(&args);
}

/* The micro model with this seed, converted to <name> once. */
static inline const char *micro_container(const char *name, const char *experts, const char *trunk)
{
    const char *out = micro_path("%s", name);
    if (coli__path_exists(out)) return out;
    micro m;
    micro_init(&m, MICRO_CONFIG(4, ""), 11, MICRO_FUSED);
    const char *src = micro_write(&m, micro_path("%s.src", name));
    micro_finish(&m);
    T_OK(micro_convert(src, out, experts, trunk));
    return out;
}

/* -- a second reader of matrices --------------------------------------------------------------- */

typedef struct micro_elem {
    double value, scale; // scale 0 for float types
    int32_t code, code_min, code_max;
} micro_elem;

static inline double micro_f16(const uint8_t *p)
{
    const uint32_t h = (uint32_t)p[0] | (uint32_t)p[1] << 8;
    const double magnitude = h >> 10 & 31
                                 ? ldexp(1.0 + (h & 1023) / 1024.0, (int)(h >> 10 & 31) - 15)
                                 : ldexp((h & 1023) / 1024.0, -14);
    return h & 0x8000 ? -magnitude : magnitude;
}

static inline float micro_f32(const uint8_t *p)
{
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}

static inline micro_elem micro_float_elem(const coli__mat *m, uint32_t row, uint32_t col)
{
    const uint64_t ld = (m->n_in + 15) / 16 * 16, at = row * ld + col;
    if (m->fmt.type == COLI_W_F32) return (micro_elem){.value = micro_f32(m->data + 4 * at)};
    const uint8_t wide[4] = {0, 0, m->data[2 * at], m->data[2 * at + 1]};
    return (micro_elem){.value = micro_f32(wide)};
}

static inline micro_elem micro_elem_at(const coli__mat *m, uint32_t row, uint32_t col)
{
    if (m->fmt.type == COLI_W_F32 || m->fmt.type == COLI_W_BF16)
        return micro_float_elem(m, row, col);
    const bool is4 = m->fmt.type == COLI_W_I4;
    const uint64_t scale = m->fmt.scale_f16 ? 2 : 4, scales = 16 * scale;
    const uint64_t group = m->fmt.group, codes = 16 * group / (is4 ? 2 : 1);
    const uint64_t n_group = (m->n_in + group - 1) / group;
    const uint64_t panel_bytes =
        m->fmt.per_row ? scales + n_group * codes : n_group * (scales + codes);
    const uint8_t *panel = m->data + row / 16 * panel_bytes;
    const uint64_t r = row % 16, g = col / group, c = col % group;
    const uint8_t *s = panel + (m->fmt.per_row ? 0 : g * (scales + codes)) + r * scale;
    const uint8_t *q =
        panel + (m->fmt.per_row ? scales + g * codes : g * (scales + codes) + scales);

    micro_elem e = {.code_min = is4 ? -8 : -127, .code_max = is4 ? 7 : 127};
    if (is4) {
        const uint8_t byte = q[c / 8 * 64 + 4 * r + c % 4];
        e.code = (c % 8 < 4 ? byte & 15 : byte >> 4) - 8;
    } else {
        e.code = q[c / 4 * 64 + 4 * r + c % 4] - 128;
    }
    e.scale = m->fmt.scale_f16 ? ldexp(micro_f16(s), m->scale_exp) : (double)micro_f32(s);
    e.value = e.code * e.scale;
    return e;
}

/* Every weight is what the checkpoint says: exactly for f32, to half a unit in the last place for
 * bf16, to half a step for quantised ones unless the code is at its end, which is where clipping is
 * allowed. */
static inline void micro_compare(const coli__mat *m, const coli__weight *w)
{
    T_EQ(m->n_out, w->n_out);
    T_EQ(m->n_in, w->n_in);
    float *row = malloc(w->n_in * sizeof *row);
    for (uint32_t r = 0; r < w->n_out; r++) {
        T_OK(coli__weight_rows(w, r, 1, row));
        for (uint32_t c = 0; c < w->n_in; c++) {
            const micro_elem e = micro_elem_at(m, r, c);
            const double x = (double)row[c], error = fabs(e.value - x), step = fabs(e.scale);
            if (m->fmt.type == COLI_W_F32) {
                T_FLE(error, 0);
            } else if (m->fmt.type == COLI_W_BF16) {
                T_FLE(error, fabs(x) * 0x1p-8);
            } else if (e.code == e.code_max || e.code == e.code_min) {
                T_FLE(error, fabs(x) > fabs(e.value) ? 0.45 * fabs(x) : step * 0.5001);
            } else {
                T_FLE(error, step * 0.5001); // 1e-4: x/scale is rounded, too
            }
        }
    }
    free(row);
}

/* All of a container against the checkpoint it came from. */
static inline void micro_compare_all(const char *container, const char *checkpoint)
{
    coli__container *c;
    coli__checkpoint k;
    T_OK(coli__checkpoint_open(checkpoint, coli__engine_describe, NULL, NULL, &k));
    T_OK(coli__container_open(container, &c));
    T_OK(coli__container_check_spec(c, &k.spec));
    for (uint32_t i = 0; i < k.spec.n_tensor; i++) {
        const coli__ct_tensor *t;
        const coli__tensor_spec *s = &k.spec.tensors[i];
        T_OK(coli__container_find(c, s->name, s->n_out, s->n_in, &t));
        T_EQ((uintptr_t)t->mat.data % 64, 0);
        micro_compare(&t->mat, &k.tensors[i]);
    }
    T_EQ(coli__container_n_expert_layer(c), k.spec.n_expert_layer);
    for (uint32_t i = 0; i < k.spec.n_expert_layer; i++) {
        const coli__ct_experts *x = coli__container_experts(c, i);
        for (uint32_t e = 0; e < x->n_expert; e++) {
            coli__mat m[3];
            coli__ct_expert(x, e, &m[0], &m[1], &m[2]);
            for (int j = 0; j < 3; j++) {
                T_EQ((uintptr_t)m[j].data % 64, 0);
                micro_compare(&m[j], &k.experts[i][3 * e + (uint32_t)j]);
            }
        }
    }
    coli__container_close(c);
    coli__checkpoint_finish(&k);
}

#endif
