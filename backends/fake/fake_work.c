/* fake_work.c - groups of experts and products.
 *
 *     group_issue   IDLE -> RUNNING   what the host handed in is checked and copied, all at once
 *     the worker    RUNNING -> DONE
 *     group_take    DONE -> IDLE      waits, moves the simulated clock, hands out the rows
 *
 * A group with a fault is HUNG instead of RUNNING: nobody will finish it.  Products are computed by the
 * thread that calls. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "fake_compute.h"
#include "fake_device.h"

/* ---- checks ------------------------------------------------------------------------------------- */

/* The activations that a matrix takes. */
static bool takes(const coli_bk_matrix *m, uint32_t group, uint32_t n_group)
{
    const coli_bk_layout l = coli_bk_layout_of(m->format, m->n_in);
    return l.group == group && l.n_group == n_group;
}

static bool same_geometry(const coli_bk_tensor *a, const coli_bk_tensor *b)
{
    for (uint32_t i = 0; i < 3; i++)
        if (a->matrix[i].format != b->matrix[i].format ||
            a->matrix[i].n_out != b->matrix[i].n_out || a->matrix[i].n_in != b->matrix[i].n_in)
            return false;
    return true;
}

/* The experts: NULL, or what is wrong.  Under the mutex. */
static const char *experts_fault(coli_bk_device *dev, const coli_bk_group *g)
{
    for (uint32_t i = 0; i < g->n_expert; i++) {
        const coli_bk_tensor *t = g->experts[i];
        const char *wrong = fake_tensor_fault(dev, t);
        if (wrong) return wrong;
        if (t->n_matrix != 3) return "a tensor is a matrix, not an expert";
        if (!same_geometry(t, g->experts[0])) return "the experts differ in format or shape";
        if (!takes(&t->matrix[0], g->group, g->n_group))
            return "group and n_group are not those of the experts' gate";
    }
    return NULL;
}

/* The part of a group that does not need the device: NULL, or what is wrong. */
static const char *group_fault(const coli_bk_group *g, uint32_t *n_pair)
{
    if (!g || !COLI_BK_HAS(g, coli_bk_group, d))
        return "group is NULL or its struct_size too small";
    if (g->n_expert > 0 && (!g->experts || !g->n_row)) return "experts or n_row is NULL";
    uint64_t n = 0;
    for (uint32_t i = 0; i < g->n_expert; i++) n += g->n_row[i];
    if (n > UINT32_MAX) return "2^32 pairs or more";
    *n_pair = (uint32_t)n;
    if (n == 0) return NULL;
    if (!g->row || !g->q || !g->d) return "row, q or d is NULL";
    for (uint32_t p = 0; p < *n_pair; p++)
        if (g->row[p] >= g->n_x) return "a row is not below n_x";
    return NULL;
}

static bool has_joins(const coli_bk_group *g)
{
    return COLI_BK_HAS(g, coli_bk_group, term_weight) && g->n_join > 0;
}

/* The joins; marks their pairs in is_joined, zero before.  NULL, or what is wrong. */
static const char *mark_joins(const coli_bk_group *g, uint32_t n_pair, uint8_t *is_joined)
{
    for (uint32_t j = 0; j < g->n_join; j++) {
        const coli_bk_join *join = &g->joins[j];
        if (join->first_term > g->n_term || join->n_term > g->n_term - join->first_term)
            return "a join has terms beyond n_term";
        for (uint32_t t = 0; t < join->n_term; t++) {
            const uint32_t pair = g->term_pair[join->first_term + t];
            if (pair >= n_pair) return "a term is no pair of the group";
            if (is_joined[pair]) return "a pair is a term twice";
            is_joined[pair] = 1;
        }
    }
    return NULL;
}

/* ---- memory of a group ---------------------------------------------------------------------------- */

/* Arrays one after another; the first time only their lengths are added up. */
typedef struct arena {
    uint8_t *base; // NULL: counting
    uint64_t used;
    bool overflow;
} arena;

static void *carve(arena *a, uint64_t n, uint64_t size)
{
    const uint64_t at = a->used;
    uint64_t bytes;
    a->overflow |= __builtin_mul_overflow(n, size, &bytes) || bytes > INT64_MAX - 64 - at;
    if (a->overflow) return NULL;
    a->used = (at + bytes + 63) & ~UINT64_C(63);
    return a->base ? a->base + at : NULL;
}

static void lay_out(fake_group *g, const coli_bk_group *in, arena *a)
{
    const uint64_t n_group = (uint64_t)in->n_x * in->n_group, d = g->d_model;
    g->experts = carve(a, g->n_expert, sizeof *g->experts);
    g->n_row = carve(a, g->n_expert, sizeof *g->n_row);
    g->row = carve(a, g->n_pair, sizeof *g->row);
    g->q = carve(a, n_group, in->group);
    g->d = carve(a, n_group, sizeof *g->d);
    g->is_joined = carve(a, g->n_pair, 1);
    g->pair_y = carve(a, g->n_pair * d, sizeof *g->pair_y);
    g->pair_flag = carve(a, g->n_pair, 1);
    g->scratch =
        carve(a, g->n_pair > 0 ? fake_expert_scratch(in->experts[0]->matrix) : 0, sizeof(float));
    g->y = g->pair_y;
    g->flag = g->pair_flag;
    if (g->n_join == 0) return;
    // at most as many rows as pairs and joins
    const uint64_t n_result = (uint64_t)g->n_pair + g->n_join;
    g->joins = carve(a, g->n_join, sizeof *g->joins);
    g->term_pair = carve(a, in->n_term, sizeof *g->term_pair);
    g->term_weight = carve(a, in->n_term, sizeof *g->term_weight);
    g->y = carve(a, n_result * d, sizeof *g->y);
    g->flag = carve(a, n_result, 1);
}

static bool make_room(fake_group *g, const coli_bk_group *in)
{
    arena a = {0};
    lay_out(g, in, &a);
    if (a.overflow || a.used > SIZE_MAX) return false;
    if (a.used > g->memory_bytes || !g->memory) {
        uint8_t *memory = malloc((size_t)a.used + 64);
        if (!memory) return false;
        free(g->memory);
        g->memory = memory;
        g->memory_bytes = a.used;
    }
    a = (arena){.base = g->memory};
    lay_out(g, in, &a);
    return true;
}

static void copy(void *to, const void *from, uint64_t n, uint64_t size)
{
    if (n > 0) memcpy(to, from, (size_t)(n * size));
}

/* Everything that the host may free when issue returns. */
static void copy_in(fake_group *g, const coli_bk_group *in)
{
    copy(g->experts, in->experts, g->n_expert, sizeof *g->experts);
    copy(g->n_row, in->n_row, g->n_expert, sizeof *g->n_row);
    if (g->n_pair > 0) {
        const uint64_t n_group = (uint64_t)in->n_x * in->n_group;
        memcpy(g->row, in->row, g->n_pair * sizeof *g->row);
        copy(g->q, in->q, n_group, in->group);
        copy(g->d, in->d, n_group, sizeof *g->d);
        memset(g->is_joined, 0, g->n_pair);
    }
    if (g->n_join > 0) {
        memcpy(g->joins, in->joins, g->n_join * sizeof *g->joins);
        copy(g->term_pair, in->term_pair, in->n_term, sizeof *g->term_pair);
        copy(g->term_weight, in->term_weight, in->n_term, sizeof *g->term_weight);
    }
}

/* ---- computing ----------------------------------------------------------------------------------- */

static void compute_pairs(fake_group *g)
{
    uint32_t first = 0;
    for (uint32_t i = 0; i < g->n_expert; first += g->n_row[i], i++) {
        const coli_bk_tensor *t = g->experts[i];
        const fake_rows rows = {g->q, g->d, g->row + first, g->n_row[i]};
        if (rows.n > 0)
            fake_expert(t->matrix, t->data, rows, g->scratch,
                        g->pair_y + first * (size_t)g->d_model, g->d_model, g->pair_flag + first);
    }
}

static void join_row(const fake_group *g, const coli_bk_join *join, float *y, uint8_t *flag)
{
    const uint32_t d = g->d_model;
    *flag = 0;
    for (uint32_t c = 0; c < d; c++) y[c] = 0.0f;
    for (uint32_t t = join->first_term; t < join->first_term + join->n_term; t++) {
        const uint32_t pair = g->term_pair[t];
        const float w = g->term_weight[t], *term = g->pair_y + pair * (size_t)d;
        *flag |= g->pair_flag[pair];
        for (uint32_t c = 0; c < d; c++) y[c] = y[c] + w * term[c];
    }
}

/* The rows that are in no join, in order, then the joins. */
static void compute_result(fake_group *g)
{
    g->n_result = g->n_pair;
    if (g->n_join == 0) return;
    const size_t d = g->d_model;
    uint32_t n = 0;
    for (uint32_t p = 0; p < g->n_pair; p++) {
        if (g->is_joined[p]) continue;
        memcpy(g->y + n * d, g->pair_y + p * d, d * sizeof *g->y);
        g->flag[n++] = g->pair_flag[p];
    }
    for (uint32_t j = 0; j < g->n_join; j++, n++)
        join_row(g, &g->joins[j], g->y + n * d, &g->flag[n]);
    g->n_result = n;
}

void *fake_worker(void *device)
{
    coli_bk_device *dev = device;
    pthread_mutex_lock(&dev->mu);
    while (!dev->stops) {
        if (dev->stage != FAKE_RUNNING) {
            pthread_cond_wait(&dev->changed, &dev->mu);
            continue;
        }
        pthread_mutex_unlock(&dev->mu);
        compute_pairs(&dev->group);
        compute_result(&dev->group);
        pthread_mutex_lock(&dev->mu);
        dev->stage = FAKE_DONE;
        pthread_cond_broadcast(&dev->changed);
    }
    pthread_mutex_unlock(&dev->mu);
    return NULL;
}

/* ---- group_issue ----------------------------------------------------------------------------------- */

/* What a group costs: gate and up are one kernel for all experts, down is another. */
static fake_work work_of(const fake_group *g, const coli_bk_group *in)
{
    fake_work w = {.in_bytes = (uint64_t)in->n_x * in->n_group * (in->group + sizeof(float)),
                   .n_launch = 2};
    uint64_t n_result = g->n_join;
    for (uint32_t p = 0; p < g->n_pair; p++) n_result += !g->is_joined[p];
    w.out_bytes = n_result * (g->d_model * sizeof(float) + 1);
    for (uint32_t i = 0; i < g->n_expert; i++)
        if (g->n_row[i] > 0) w.weight_bytes += g->experts[i]->n_bytes;
    return w;
}

/* The group is checked and copied: from here on it is the device's.  Under the mutex. */
static void begin(coli_bk_device *dev, const coli_bk_group *in, bool hangs)
{
    fake_group *g = &dev->group;
    for (uint32_t i = 0; i < g->n_expert; i++) g->experts[i]->n_use++;
    g->misses_ns = (double)in->n_x * (double)dev->options.misses_ns;
    if (g->n_pair > 0) {
        fake_model_host(&dev->model, (double)in->n_x * (double)dev->options.trunk_ns);
        fake_model_issue(&dev->model, work_of(g, in));
    }
    dev->stats.n_group++;
    dev->stats.n_expert += g->n_expert;
    dev->stats.n_row += g->n_pair;
    dev->promise_broken = false;
    dev->stage = hangs ? FAKE_HUNG : FAKE_RUNNING;
    pthread_cond_broadcast(&dev->changed);
}

coli_bk_status coli_backend_group_issue(coli_bk_device *dev, const coli_bk_group *in)
{
    const uint32_t entry = FAKE_group_issue;
    const fake_fault *fault;
    const coli_bk_status status = fake_enter(dev, entry, &fault);
    if (status != COLI_BK_OK) return status;
    fake_group *g = &dev->group;
    uint32_t n_pair = 0;
    const char *wrong = group_fault(in, &n_pair);
    pthread_mutex_lock(&dev->mu);
    const bool is_busy = dev->stage != FAKE_IDLE;
    if (!wrong && !is_busy) wrong = experts_fault(dev, in);
    pthread_mutex_unlock(&dev->mu);
    if (is_busy) return COLI_BK_BUSY;
    if (!wrong && has_joins(in)) {
        if (!dev->options.can_join) wrong = "joins, which this device cannot do";
        if (!in->joins || (in->n_term > 0 && (!in->term_pair || !in->term_weight)))
            wrong = "joins, term_pair or term_weight is NULL";
    }
    if (wrong) return fake_fail(dev, entry, COLI_BK_INVALID, "%s", wrong);

    g->n_expert = in->n_expert;
    g->n_pair = n_pair;
    g->n_join = has_joins(in) ? in->n_join : 0;
    g->d_model = in->n_expert > 0 ? in->experts[0]->matrix[2].n_out : 0;
    if (!make_room(g, in)) return fake_fail(dev, entry, COLI_BK_NOMEM, "no memory for the group");
    copy_in(g, in);
    if (g->n_join > 0 && (wrong = mark_joins(in, n_pair, g->is_joined)) != NULL)
        return fake_fail(dev, entry, COLI_BK_INVALID, "%s", wrong);

    pthread_mutex_lock(&dev->mu);
    // once more: the other sequence went on meanwhile
    wrong = experts_fault(dev, in);
    if (!wrong) begin(dev, in, fault != NULL);
    pthread_mutex_unlock(&dev->mu);
    return wrong ? fake_fail(dev, entry, COLI_BK_INVALID, "%s", wrong) : COLI_BK_OK;
}

/* ---- group_take ------------------------------------------------------------------------------------ */

/* The group is over, taken or lost.  Under the mutex, not while RUNNING. */
static void end_group(coli_bk_device *dev)
{
    for (uint32_t i = 0; i < dev->group.n_expert; i++) {
        coli_bk_tensor *t = dev->group.experts[i];
        if (t->n_use > 0) t->n_use--; // 0 when it was freed against the promise
    }
    dev->stage = FAKE_IDLE;
}

/* A take that fails on request loses the group. */
static void lose_group(coli_bk_device *dev)
{
    pthread_mutex_lock(&dev->mu);
    while (dev->stage == FAKE_RUNNING) pthread_cond_wait(&dev->changed, &dev->mu);
    if (dev->stage != FAKE_IDLE) {
        fake_model_take(&dev->model);
        end_group(dev);
    }
    pthread_mutex_unlock(&dev->mu);
}

/* Wait for the group and end it.  Under the mutex. */
static coli_bk_status finish(coli_bk_device *dev, uint64_t wait_limit_ns)
{
    if (dev->stage == FAKE_IDLE) return COLI_BK_EMPTY;
    const uint64_t deadline = fake_deadline_ns(dev, wait_limit_ns);
    while (dev->stage != FAKE_DONE && !dev->is_lost && fake_wait(dev, deadline)) {
    }
    if (dev->stage != FAKE_DONE || dev->is_lost) {
        fake_lose(dev);
        return COLI_BK_LOST;
    }
    if (dev->group.n_pair > 0) fake_model_host(&dev->model, dev->group.misses_ns);
    const bool in_time = fake_pass(dev, fake_model_take(&dev->model));
    end_group(dev);
    if (!in_time) return COLI_BK_LOST;
    return dev->promise_broken ? COLI_BK_INVALID : COLI_BK_OK;
}

coli_bk_status coli_backend_group_take(coli_bk_device *dev, uint64_t wait_limit_ns,
                                       coli_bk_result *out)
{
    const uint32_t entry = FAKE_group_take;
    const fake_fault *fault;
    coli_bk_status status = fake_enter(dev, entry, &fault);
    if (status == COLI_BK_FAILED) lose_group(dev);
    if (status != COLI_BK_OK) return status;
    if (!out) return fake_fail(dev, entry, COLI_BK_INVALID, "out is NULL");
    if (fault) return fake_hang(dev, entry, wait_limit_ns);

    pthread_mutex_lock(&dev->mu);
    status = finish(dev, wait_limit_ns);
    pthread_mutex_unlock(&dev->mu);
    if (status == COLI_BK_LOST)
        return fake_fail(dev, entry, status,
                         "the group was not done within the limit, or the device "
                         "was lost");
    if (status == COLI_BK_INVALID)
        return fake_fail(dev, entry, status, "a tensor of the group was freed before this call");
    if (status != COLI_BK_OK) return status;
    const fake_group *g = &dev->group;
    const coli_bk_result r = {.n_row = g->n_result, .y = g->y, .ld = g->d_model, .flag = g->flag};
    fake_give(out, &r, sizeof r);
    return COLI_BK_OK;
}

/* ---- products ---------------------------------------------------------------------------------------- */

/* The arguments of a product, but for its tensor: NULL, or what is wrong. */
static const char *product_fault(const coli_bk_matmul *a)
{
    if (!a || !COLI_BK_HAS(a, coli_bk_matmul, ld))
        return "args is NULL or its struct_size too small";
    if (a->n_row > 0 && (!a->q || !a->d || !a->y)) return "q, d or y is NULL";
    return NULL;
}

/* Its tensor: under the mutex. */
static const char *product_tensor_fault(const coli_bk_device *dev, const coli_bk_matmul *a)
{
    const char *wrong = fake_tensor_fault(dev, a->w);
    if (wrong) return wrong;
    if (a->w->n_matrix != 1) return "the tensor is an expert, not a matrix";
    if (!takes(&a->w->matrix[0], a->group, a->n_group))
        return "group and n_group are not those of the matrix";
    if (a->n_row > 1 && a->ld < a->w->matrix[0].n_out) return "ld is below n_out";
    return NULL;
}

static fake_work product_work(const coli_bk_matmul *const *args, uint32_t n)
{
    fake_work w = {0};
    for (uint32_t i = 0; i < n; i++) {
        const coli_bk_matmul *a = args[i];
        if (a->n_row == 0) continue;
        w.n_launch++;
        w.in_bytes += (uint64_t)a->n_row * a->n_group * (a->group + sizeof(float));
        w.weight_bytes += a->w->n_bytes;
        w.out_bytes += (uint64_t)a->n_row * a->w->matrix[0].n_out * sizeof(float);
    }
    return w;
}

/* Check all tensors and claim them, or none; the clock moves. */
static const char *claim(coli_bk_device *dev, const coli_bk_matmul *const *args, uint32_t n,
                         bool *in_time)
{
    const char *wrong = NULL;
    pthread_mutex_lock(&dev->mu);
    for (uint32_t i = 0; i < n && !wrong; i++) wrong = product_tensor_fault(dev, args[i]);
    if (!wrong) {
        const fake_work w = product_work(args, n);
        // the handle is the host's constant, but not ours
        for (uint32_t i = 0; i < n; i++) ((coli_bk_tensor *)args[i]->w)->n_use++;
        dev->n_product++;
        *in_time = w.n_launch == 0 || fake_pass(dev, fake_model_matmul(&dev->model, w));
    }
    pthread_mutex_unlock(&dev->mu);
    return wrong;
}

static void unclaim(coli_bk_device *dev, const coli_bk_matmul *const *args, uint32_t n)
{
    pthread_mutex_lock(&dev->mu);
    for (uint32_t i = 0; i < n; i++) {
        coli_bk_tensor *t = (coli_bk_tensor *)args[i]->w;
        if (t->n_use > 0) t->n_use--; // 0 when it was freed against the promise
    }
    dev->n_product--;
    dev->stats.n_matmul += n;
    pthread_cond_broadcast(&dev->changed);
    pthread_mutex_unlock(&dev->mu);
}

static coli_bk_status products(coli_bk_device *dev, uint32_t entry,
                               const coli_bk_matmul *const *args, uint32_t n)
{
    const fake_fault *fault;
    const coli_bk_status status = fake_enter(dev, entry, &fault);
    if (status != COLI_BK_OK) return status;
    const char *wrong = n > 0 && !args ? "args is NULL" : NULL;
    for (uint32_t i = 0; i < n && !wrong; i++) wrong = product_fault(args[i]);
    if (wrong) return fake_fail(dev, entry, COLI_BK_INVALID, "%s", wrong);
    if (fault) return fake_hang(dev, entry, UINT64_MAX);
    bool in_time = false;
    wrong = claim(dev, args, n, &in_time);
    if (wrong) return fake_fail(dev, entry, COLI_BK_INVALID, "%s", wrong);
    for (uint32_t i = 0; i < n && in_time; i++) {
        const coli_bk_matmul *a = args[i];
        const fake_rows rows = {a->q, a->d, NULL, a->n_row};
        fake_product(&a->w->matrix[0], a->w->data, rows, a->y, a->ld);
    }
    unclaim(dev, args, n);
    if (!in_time) return fake_fail(dev, entry, COLI_BK_LOST, "the device was lost, or is too slow");
    return COLI_BK_OK;
}

coli_bk_status coli_backend_matmul(coli_bk_device *dev, const coli_bk_matmul *args)
{
    return products(dev, FAKE_matmul, &args, 1);
}

coli_bk_status coli_backend_matmul_batch(coli_bk_device *dev, const coli_bk_matmul *const *args,
                                         uint32_t n)
{
    return products(dev, FAKE_matmul_batch, args, n);
}

void fake_work_close(coli_bk_device *dev)
{
    free(dev->group.memory);
}
