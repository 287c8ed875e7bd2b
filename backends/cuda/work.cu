/* work.cu - the work sequence: groups of experts, and products of single matrices.
 *
 * A piece of work is one region of memory on either side, planned before anything happens:
 *
 *     host     | input ........................ | output ... | marks |       page-locked
 *     device   | input ........................ | output ... | inner ...... |
 *                tiles, rows, q, d, joins         y, flags     gate, up, h, ...
 *
 * so it takes one copy there, the kernels, and one copy back, all queued at once on the work stream,
 * with an event in front of, between and behind them.  There are two regions, for a group and for
 * products, because the host may ask for a product between issue and take.
 *
 * Pointers inside the input are made for the device when the tiles are written. */
#include "device.cuh"

/* ---- regions --------------------------------------------------------------------------------- */

/* Plan a region: where the next array begins.  A region too large to count becomes 2^61 bytes, which no
 * device has. */
static uint64_t plan(uint64_t *n_bytes, uint64_t count, uint64_t each)
{
    const uint64_t most = UINT64_C(1) << 61, at = *n_bytes;
    if (each != 0 && count > (most - at) / each)
        *n_bytes = most;
    else
        *n_bytes = at + (count * each + 255) / 256 * 256;
    if (*n_bytes > most) *n_bytes = most;
    return at;
}

/* A little more than is needed, so that growing ends soon. */
static uint64_t roomy(uint64_t n_bytes)
{
    uint64_t step = 64 << 10;
    while (step < n_bytes / 8) step *= 2;
    return (n_bytes + step - 1) / step * step;
}

static coli_bk_status reserve(coli_bk_device *dev, coli__cuda_space *s, uint64_t device_bytes,
                              uint64_t host_bytes)
{
    if (!s->device || s->device->n_bytes < device_bytes) {
        coli__cuda_arena_give(dev, s->device);
        s->device = nullptr;
        COLI__CUDA_TRY(coli__cuda_arena_take(dev, roomy(device_bytes), &s->device));
    }
    if (s->host_bytes < host_bytes) {
        coli__cuda_pinned_give(dev, s->host);
        s->host = nullptr;
        s->host_bytes = 0;
        COLI__CUDA_TRY(coli__cuda_pinned_take(dev, roomy(host_bytes), &s->host));
        s->host_bytes = roomy(host_bytes);
    }
    return COLI_BK_OK;
}

static coli_bk_status space_init(coli_bk_device *dev, coli__cuda_space *s)
{
    COLI__CUDA_TRY(coli__cuda_event(dev, &s->begin));
    COLI__CUDA_TRY(coli__cuda_event(dev, &s->uploaded));
    COLI__CUDA_TRY(coli__cuda_event(dev, &s->computed));
    return coli__cuda_event(dev, &s->end);
}

static void space_finish(coli_bk_device *dev, coli__cuda_space *s)
{
    coli__cuda_arena_give(dev, s->device);
    if (dev->is_lost) return;
    if (s->host) cudaFreeHost(s->host);
    const cudaEvent_t events[] = {s->begin, s->uploaded, s->computed, s->end};
    for (cudaEvent_t e : events)
        if (e) cudaEventDestroy(e);
}

coli_bk_status coli__cuda_work_init(coli_bk_device *dev)
{
    coli__cuda_work *const w = &dev->work;
    COLI__CUDA_TRY(
        COLI__CUDA_CALL(dev, cudaStreamCreateWithFlags, &w->stream, cudaStreamNonBlocking));
    COLI__CUDA_TRY(space_init(dev, &w->group));
    return space_init(dev, &w->product);
}

void coli__cuda_work_finish(coli_bk_device *dev)
{
    coli__cuda_work *const w = &dev->work;
    space_finish(dev, &w->group);
    space_finish(dev, &w->product);
    if (w->stream && !dev->is_lost) cudaStreamDestroy(w->stream);
    w->stream = nullptr; // pages that are given back later need not wait for it
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* All tiles of one stage: first counted, then written, those of a kind side by side. */
typedef struct tile_set {
    uint64_t n[COLI__CUDA_N_KIND], n_all;
    uint32_t n_out[COLI__CUDA_N_KIND]; /* of the largest matrix */
    coli__cuda_tile *next[COLI__CUDA_N_KIND];
} tile_set;

/* All tiles for n_row rows of a matrix; like `first`, which is the first row's, unless it is NULL: then
 * only counted. */
static void add_tiles(tile_set *set, const coli_bk_matrix *m, uint64_t n_row,
                      const coli__cuda_tile *first)
{
    const coli_bk_layout l = coli_bk_layout_of(m->format, m->n_in);
    for (uint64_t done = 0; done < n_row;) {
        uint32_t n;
        const uint32_t kind = coli__cuda_tile_kind(&l, n_row - done, &n);
        if (first) {
            coli__cuda_tile *const t = set->next[kind]++;
            *t = *first;
            t->n_row = n;
            t->y += done * t->ld;
            if (t->row) {
                t->row += done;
            } else {
                t->q += done * l.n_group * l.group;
                t->d += done * l.n_group;
            }
        } else {
            set->n[kind]++;
            set->n_all++;
            if (set->n_out[kind] < m->n_out) set->n_out[kind] = m->n_out;
        }
        done += n;
    }
}

/* They are counted: where those of each kind are to be written. */
static void place_tiles(tile_set *set, uint8_t *at)
{
    for (uint32_t kind = 0; kind < COLI__CUDA_N_KIND; kind++) {
        set->next[kind] = reinterpret_cast<coli__cuda_tile *>(at);
        at += set->n[kind] * sizeof(coli__cuda_tile);
    }
}

static coli_bk_status start_tiles(coli_bk_device *dev, const tile_set *set,
                                  const uint8_t *on_device)
{
    for (uint32_t kind = 0; kind < COLI__CUDA_N_KIND; kind++) {
        if (set->n[kind] == 0) continue;
        const coli__cuda_tile *const tiles = reinterpret_cast<const coli__cuda_tile *>(on_device);
        COLI__CUDA_TRY(coli__cuda_check(
            dev, coli__cuda_product(kind, tiles, set->n[kind], set->n_out[kind], dev->work.stream),
            "starting a product"));
        on_device += set->n[kind] * sizeof(coli__cuda_tile);
    }
    return COLI_BK_OK;
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* What a group needs, and where it is in the region. */
typedef struct group_plan {
    coli_bk_group g;
    const coli_bk_matrix *matrix; /* gate, up, down of every expert; NULL without experts */
    coli_bk_layout in, down;      /* of gate and up (but for their bits); of down */
    uint64_t n_pair, n_plain, n_result;
    uint32_t d_model, d_ff;
    tile_set wide, narrow; /* gate and up; down */
    /* offsets */
    uint64_t wide_tiles, narrow_tiles, row, q, d, plain, joins, term_pair, term_weight, input_bytes;
    uint64_t y, flag, output_end;
    uint64_t gate, up, h_q, h_d, pair_y, pair_flag, device_bytes;
    uint64_t marks, host_bytes;
} group_plan;

static coli_bk_status bad_group(coli_bk_device *dev, const char *why)
{
    return coli__cuda_fail(dev->host, COLI_BK_INVALID, CUDA_NAME ": group_issue: %s", why);
}

static coli_bk_status check_experts(coli_bk_device *dev, group_plan *p)
{
    const coli_bk_group *const g = &p->g;
    for (uint32_t i = 0; i < g->n_expert; i++) {
        const coli_bk_tensor *const t = g->experts[i];
        if (!t || t->dev != dev) return bad_group(dev, "an expert is not one of this device");
        if (t->n_matrix != 3) return bad_group(dev, "a tensor is no expert");
        if (!coli__cuda_same_shape(t->matrix, g->experts[0]->matrix, 3))
            return bad_group(dev, "experts of different shapes");
        p->n_pair += g->n_row[i];
    }
    if (g->n_expert == 0) return COLI_BK_OK;
    p->matrix = g->experts[0]->matrix;
    p->in = coli_bk_layout_of(p->matrix[0].format, p->matrix[0].n_in);
    p->down = coli_bk_layout_of(p->matrix[2].format, p->matrix[2].n_in);
    p->d_model = p->matrix[2].n_out;
    p->d_ff = p->matrix[2].n_in;
    if (g->group != p->in.group || g->n_group != p->in.n_group)
        return bad_group(dev, "the activations are not in the groups of the experts");
    return COLI_BK_OK;
}

static coli_bk_status check_group(coli_bk_device *dev, const coli_bk_group *in, group_plan *p)
{
    if (!in || !COLI_BK_HAS(in, coli_bk_group, d))
        return bad_group(dev, in ? "its struct_size is too small" : "it is NULL");
    coli_bk_group *const g = &p->g;
    coli__cuda_take_struct(g, sizeof *g, in, in->struct_size);
    if (g->n_expert > 0 && (!g->experts || !g->n_row))
        return bad_group(dev, "experts or n_row is NULL");
    COLI__CUDA_TRY(check_experts(dev, p));
    if (p->n_pair > 0 && (!g->row || !g->q || !g->d)) return bad_group(dev, "row, q or d is NULL");
    if (g->n_join > 0 && (!g->joins || p->d_model == 0))
        return bad_group(dev, "joins is NULL, or there are joins without experts");
    if (g->n_term > 0 && (!g->term_pair || !g->term_weight))
        return bad_group(dev, "term_pair or term_weight is NULL");
    if (g->n_term > p->n_pair) return bad_group(dev, "more terms than pairs");
    p->n_plain = p->n_pair - g->n_term;
    p->n_result = p->n_plain + g->n_join;
    if (p->n_pair > INT32_MAX || p->n_result > INT32_MAX) // a grid has no more blocks
        return coli__cuda_fail(dev->host, COLI_BK_NOMEM, CUDA_NAME ": group_issue: too many rows");
    for (uint64_t i = 0; i < p->n_pair; i++)
        if (g->row[i] >= g->n_x) return bad_group(dev, "a row is not below n_x");
    for (uint32_t i = 0; i < g->n_term; i++)
        if (g->term_pair[i] >= p->n_pair) return bad_group(dev, "a term is no pair of the group");
    for (uint32_t i = 0; i < g->n_join; i++)
        if (g->joins[i].first_term > g->n_term ||
            g->joins[i].n_term > g->n_term - g->joins[i].first_term)
            return bad_group(dev, "a join has terms that are not there");
    return COLI_BK_OK;
}

static void plan_group(group_plan *p)
{
    const coli_bk_group *const g = &p->g;
    for (uint32_t i = 0; i < g->n_expert; i++) {
        add_tiles(&p->wide, &p->matrix[0], g->n_row[i], nullptr);
        add_tiles(&p->wide, &p->matrix[1], g->n_row[i], nullptr);
        add_tiles(&p->narrow, &p->matrix[2], g->n_row[i], nullptr);
    }
    const bool joins = g->n_join > 0 || g->n_term > 0;

    uint64_t n = 0;
    p->wide_tiles = plan(&n, p->wide.n_all, sizeof(coli__cuda_tile));
    p->narrow_tiles = plan(&n, p->narrow.n_all, sizeof(coli__cuda_tile));
    p->row = plan(&n, p->n_pair, sizeof *g->row);
    p->q = plan(&n, static_cast<uint64_t>(g->n_x) * g->n_group, g->group);
    p->d = plan(&n, static_cast<uint64_t>(g->n_x) * g->n_group, sizeof *g->d);
    p->plain = plan(&n, joins ? p->n_plain : 0, sizeof(uint32_t));
    p->joins = plan(&n, g->n_join, sizeof *g->joins);
    p->term_pair = plan(&n, g->n_term, sizeof *g->term_pair);
    p->term_weight = plan(&n, g->n_term, sizeof *g->term_weight);
    p->input_bytes = n;
    p->y = plan(&n, p->n_result * p->d_model, sizeof(float));
    p->flag = plan(&n, p->n_result, 1);
    p->output_end = p->host_bytes = n;
    p->marks = plan(&p->host_bytes, joins ? p->n_pair : 0, 1);

    const uint64_t n_h_group = p->n_pair * p->down.n_group;
    p->gate = plan(&n, p->n_pair * p->d_ff, sizeof(float));
    p->up = plan(&n, p->n_pair * p->d_ff, sizeof(float));
    p->h_q = plan(&n, n_h_group, p->down.group);
    p->h_d = plan(&n, n_h_group, sizeof(float));
    p->pair_y = joins ? plan(&n, p->n_pair * p->d_model, sizeof(float)) : p->y;
    p->pair_flag = joins ? plan(&n, p->n_pair, 1) : p->flag;
    p->device_bytes = n;
}

/* Which pairs have a row of their own. */
static coli_bk_status fill_plain(coli_bk_device *dev, const group_plan *p, uint8_t *host)
{
    uint8_t *const is_term = host + p->marks;
    memset(is_term, 0, p->n_pair);
    for (uint32_t i = 0; i < p->g.n_term; i++) {
        if (is_term[p->g.term_pair[i]]) return bad_group(dev, "a pair is in two terms");
        is_term[p->g.term_pair[i]] = 1;
    }
    uint32_t *plain = reinterpret_cast<uint32_t *>(host + p->plain);
    for (uint64_t i = 0; i < p->n_pair; i++)
        if (!is_term[i]) *plain++ = static_cast<uint32_t>(i);
    return COLI_BK_OK;
}

static void fill_tiles(group_plan *p, uint8_t *host, uint8_t *device)
{
    const coli_bk_group *const g = &p->g;
    place_tiles(&p->wide, host + p->wide_tiles);
    place_tiles(&p->narrow, host + p->narrow_tiles);
    uint64_t pair = 0;
    for (uint32_t i = 0; i < g->n_expert; i++) {
        const coli_bk_tensor *const t = g->experts[i];
        coli__cuda_tile tile = {};
        tile.q = reinterpret_cast<const int8_t *>(device + p->q);
        tile.d = reinterpret_cast<const float *>(device + p->d);
        tile.row = reinterpret_cast<const uint32_t *>(device + p->row) + pair;
        tile.ld = p->d_ff;
        for (uint32_t m = 0; m < 2; m++) {
            tile.w = coli__cuda_matrix_of(&t->matrix[m], t->extent->at);
            tile.y =
                reinterpret_cast<float *>(device + (m == 0 ? p->gate : p->up)) + pair * p->d_ff;
            add_tiles(&p->wide, &t->matrix[m], g->n_row[i], &tile);
        }
        tile.w = coli__cuda_matrix_of(&t->matrix[2], t->extent->at);
        tile.q = reinterpret_cast<const int8_t *>(device + p->h_q) +
                 pair * p->down.n_group * p->down.group;
        tile.d = reinterpret_cast<const float *>(device + p->h_d) + pair * p->down.n_group;
        tile.row = nullptr;
        tile.y = reinterpret_cast<float *>(device + p->pair_y) + pair * p->d_model;
        tile.ld = p->d_model;
        add_tiles(&p->narrow, &t->matrix[2], g->n_row[i], &tile);
        pair += g->n_row[i];
    }
}

/* n elements, which may be none: then `from` may be NULL. */
template <class T> static void fill(uint8_t *to, const T *from, uint64_t n)
{
    if (n > 0) memcpy(to, from, n * sizeof(T));
}

static coli_bk_status fill_input(coli_bk_device *dev, group_plan *p, uint8_t *host, uint8_t *device)
{
    const coli_bk_group *const g = &p->g;
    const uint64_t n_group = static_cast<uint64_t>(g->n_x) * g->n_group;
    if (p->n_pair > 0) {
        fill(host + p->row, g->row, p->n_pair);
        fill(host + p->q, g->q, n_group * g->group);
        fill(host + p->d, g->d, n_group);
    }
    fill(host + p->joins, g->joins, g->n_join);
    fill(host + p->term_pair, g->term_pair, g->n_term);
    fill(host + p->term_weight, g->term_weight, g->n_term);
    if (g->n_join > 0 || g->n_term > 0) COLI__CUDA_TRY(fill_plain(dev, p, host));
    fill_tiles(p, host, device);
    return COLI_BK_OK;
}

static coli_bk_status start_kernels(coli_bk_device *dev, const group_plan *p, uint8_t *device)
{
    const cudaStream_t stream = dev->work.stream;
    const coli_bk_group *const g = &p->g;
    if (p->n_pair > 0) {
        COLI__CUDA_TRY(start_tiles(dev, &p->wide, device + p->wide_tiles));
        coli__cuda_activation a = {};
        a.n_row = static_cast<uint32_t>(p->n_pair);
        a.n_column = p->d_ff;
        a.group = p->down.group;
        a.n_group = p->down.n_group;
        a.gate = reinterpret_cast<const float *>(device + p->gate);
        a.up = reinterpret_cast<const float *>(device + p->up);
        a.q = reinterpret_cast<int8_t *>(device + p->h_q);
        a.d = reinterpret_cast<float *>(device + p->h_d);
        a.flag = device + p->pair_flag;
        COLI__CUDA_TRY(
            coli__cuda_check(dev, coli__cuda_activate(&a, stream), "starting the activation"));
        COLI__CUDA_TRY(start_tiles(dev, &p->narrow, device + p->narrow_tiles));
    }
    if (g->n_join == 0 && g->n_term == 0) return COLI_BK_OK;
    coli__cuda_joining j = {};
    j.n_plain = static_cast<uint32_t>(p->n_plain);
    j.n_join = g->n_join;
    j.n_column = p->d_model;
    j.plain = reinterpret_cast<const uint32_t *>(device + p->plain);
    j.joins = reinterpret_cast<const coli_bk_join *>(device + p->joins);
    j.term_pair = reinterpret_cast<const uint32_t *>(device + p->term_pair);
    j.term_weight = reinterpret_cast<const float *>(device + p->term_weight);
    j.pair_y = reinterpret_cast<const float *>(device + p->pair_y);
    j.pair_flag = device + p->pair_flag;
    j.y = reinterpret_cast<float *>(device + p->y);
    j.flag = device + p->flag;
    return coli__cuda_check(dev, coli__cuda_join(&j, stream), "starting the join");
}

/* Queue a piece of work: input there, what `kernels` starts, output back. */
template <class Kernels>
static coli_bk_status queue_work(coli_bk_device *dev, const coli__cuda_space *s,
                                 uint64_t input_bytes, uint64_t output_end, Kernels kernels)
{
    const cudaStream_t stream = dev->work.stream;
    uint8_t *const device = s->device->at;
    COLI__CUDA_TRY(COLI__CUDA_CALL(dev, cudaEventRecord, s->begin, stream));
    COLI__CUDA_TRY(COLI__CUDA_CALL(dev, cudaMemcpyAsync, device, s->host, input_bytes,
                                   cudaMemcpyHostToDevice, stream));
    COLI__CUDA_TRY(COLI__CUDA_CALL(dev, cudaEventRecord, s->uploaded, stream));
    COLI__CUDA_TRY(kernels());
    COLI__CUDA_TRY(COLI__CUDA_CALL(dev, cudaEventRecord, s->computed, stream));
    COLI__CUDA_TRY(COLI__CUDA_CALL(dev, cudaMemcpyAsync, s->host + input_bytes,
                                   device + input_bytes, output_end - input_bytes,
                                   cudaMemcpyDeviceToHost, stream));
    return COLI__CUDA_CALL(dev, cudaEventRecord, s->end, stream);
}

/* Wait for a piece of work.  After a failure nothing of it is pending, or the device is lost. */
static coli_bk_status finish_work(coli_bk_device *dev, const coli__cuda_space *s, uint64_t limit_ns)
{
    const coli_bk_status status = coli__cuda_wait(dev, s->end, limit_ns);
    if (status == COLI_BK_BUSY) return coli__cuda_hangs(dev, limit_ns);
    if (status != COLI_BK_OK) return coli__cuda_settle(dev, dev->work.stream, status);
    coli__cuda_count_ns(&dev->counts.to_device_ns, s->begin, s->uploaded);
    coli__cuda_count_ns(&dev->counts.kernel_ns, s->uploaded, s->computed);
    coli__cuda_count_ns(&dev->counts.to_host_ns, s->computed, s->end);
    return COLI_BK_OK;
}

static coli_bk_status issue(coli_bk_device *dev, group_plan *p)
{
    coli__cuda_space *const s = &dev->work.group;
    COLI__CUDA_TRY(reserve(dev, s, p->device_bytes, p->host_bytes));
    uint8_t *const device = s->device->at;
    COLI__CUDA_TRY(fill_input(dev, p, s->host, device));
    const coli_bk_status status = queue_work(dev, s, p->input_bytes, p->output_end,
                                             [=] { return start_kernels(dev, p, device); });
    if (status != COLI_BK_OK) return coli__cuda_settle(dev, dev->work.stream, status);
    dev->work.result.y = reinterpret_cast<const float *>(s->host + p->y);
    dev->work.result.flag = s->host + p->flag;
    return COLI_BK_OK;
}

coli_bk_status coli_backend_group_issue(coli_bk_device *dev, const coli_bk_group *group)
{
    if (!dev) return COLI_BK_INVALID;
    COLI__CUDA_TRY(coli__cuda_enter(dev));
    coli__cuda_work *const w = &dev->work;
    if (w->is_issued) return COLI_BK_BUSY;
    group_plan p = {};
    COLI__CUDA_TRY(check_group(dev, group, &p));
    plan_group(&p);
    memset(&w->result, 0, sizeof w->result);
    w->result.n_row = static_cast<uint32_t>(p.n_result);
    w->result.ld = p.d_model;
    w->is_empty = p.n_result == 0;
    if (!w->is_empty) COLI__CUDA_TRY(issue(dev, &p));
    w->is_issued = true;
    dev->counts.n_group++;
    dev->counts.n_expert += p.g.n_expert;
    dev->counts.n_row += p.n_pair;
    return COLI_BK_OK;
}

coli_bk_status coli_backend_group_take(coli_bk_device *dev, uint64_t wait_limit_ns,
                                       coli_bk_result *out)
{
    if (!dev) return COLI_BK_INVALID;
    COLI__CUDA_TRY(coli__cuda_enter(dev));
    if (!out || !COLI_BK_HAS(out, coli_bk_result, flag))
        return coli__cuda_fail(dev->host, COLI_BK_INVALID, CUDA_NAME ": group_take: out is %s",
                               out ? "too small" : "NULL");
    coli__cuda_work *const w = &dev->work;
    if (!w->is_issued) return COLI_BK_EMPTY;
    w->is_issued = false;
    if (!w->is_empty) COLI__CUDA_TRY(finish_work(dev, &w->group, wait_limit_ns));
    coli__cuda_give_struct(out, out->struct_size, &w->result, sizeof w->result);
    return COLI_BK_OK;
}

/* ---- products of single matrices ------------------------------------------------------------- */

static coli_bk_status bad_matmul(coli_bk_device *dev, const char *why)
{
    return coli__cuda_fail(dev->host, COLI_BK_INVALID, CUDA_NAME ": matmul: %s", why);
}

static coli_bk_status take_matmul(coli_bk_device *dev, const coli_bk_matmul *in, coli_bk_matmul *m)
{
    if (!in || !COLI_BK_HAS(in, coli_bk_matmul, ld))
        return bad_matmul(dev, in ? "its struct_size is too small" : "it is NULL");
    coli__cuda_take_struct(m, sizeof *m, in, in->struct_size);
    if (!m->w || m->w->dev != dev) return bad_matmul(dev, "the tensor is not one of this device");
    if (m->w->n_matrix != 1) return bad_matmul(dev, "the tensor is no single matrix");
    const coli_bk_layout l = coli_bk_layout_of(m->w->matrix[0].format, m->w->matrix[0].n_in);
    if (m->group != l.group || m->n_group != l.n_group)
        return bad_matmul(dev, "the activations are not in the groups of the matrix");
    if (m->n_row > 0 && (!m->q || !m->d || !m->y)) return bad_matmul(dev, "q, d or y is NULL");
    if (m->ld < m->w->matrix[0].n_out) return bad_matmul(dev, "ld is less than n_out");
    return COLI_BK_OK;
}

/* Where the rows of one product are in the region.  Planning goes over all of them in the same order each
 * time, so nothing has to be kept. */
typedef struct product_place {
    uint64_t q, d, y;
} product_place;

static product_place place_product(const coli_bk_matmul *m, uint64_t *input, uint64_t *output)
{
    const uint64_t n_group = static_cast<uint64_t>(m->n_row) * m->n_group;
    product_place p;
    p.q = plan(input, n_group, m->group);
    p.d = plan(input, n_group, sizeof(float));
    p.y = plan(output, static_cast<uint64_t>(m->n_row) * m->w->matrix[0].n_out, sizeof(float));
    return p;
}

/* Copy rows and tiles into the region. */
static coli_bk_status fill_products(coli_bk_device *dev, const coli_bk_matmul *const *args,
                                    uint32_t n, tile_set *set, uint64_t tile_bytes,
                                    uint64_t input_bytes)
{
    const coli__cuda_space *const s = &dev->work.product;
    uint8_t *const device = s->device->at;
    place_tiles(set, s->host);
    for (uint32_t i = 0; i < n; i++) {
        coli_bk_matmul m;
        COLI__CUDA_TRY(take_matmul(dev, args[i], &m));
        const uint64_t n_group = static_cast<uint64_t>(m.n_row) * m.n_group;
        const product_place p = place_product(&m, &tile_bytes, &input_bytes);
        fill(s->host + p.q, m.q, n_group * m.group);
        fill(s->host + p.d, m.d, n_group);
        coli__cuda_tile tile = {};
        tile.w = coli__cuda_matrix_of(&m.w->matrix[0], m.w->extent->at);
        tile.q = reinterpret_cast<const int8_t *>(device + p.q);
        tile.d = reinterpret_cast<const float *>(device + p.d);
        tile.y = reinterpret_cast<float *>(device + p.y);
        tile.ld = m.w->matrix[0].n_out;
        add_tiles(set, &m.w->matrix[0], m.n_row, &tile);
    }
    return COLI_BK_OK;
}

/* Copy the results to where the host wants them. */
static void give_products(coli_bk_device *dev, const coli_bk_matmul *const *args, uint32_t n,
                          uint64_t tile_bytes, uint64_t input_bytes)
{
    for (uint32_t i = 0; i < n; i++) {
        coli_bk_matmul m;
        coli__cuda_take_struct(&m, sizeof m, args[i], args[i]->struct_size);
        const product_place p = place_product(&m, &tile_bytes, &input_bytes);
        const uint64_t n_out = m.w->matrix[0].n_out;
        const float *const y = reinterpret_cast<const float *>(dev->work.product.host + p.y);
        for (uint64_t row = 0; row < m.n_row; row++)
            memcpy(m.y + row * m.ld, y + row * n_out, n_out * sizeof *y);
    }
}

coli_bk_status coli_backend_matmul_batch(coli_bk_device *dev, const coli_bk_matmul *const *args,
                                         uint32_t n)
{
    if (!dev) return COLI_BK_INVALID;
    COLI__CUDA_TRY(coli__cuda_enter(dev));
    if (n > 0 && !args) return bad_matmul(dev, "args is NULL");
    tile_set set = {};
    for (uint32_t i = 0; i < n; i++) {
        coli_bk_matmul m;
        COLI__CUDA_TRY(take_matmul(dev, args[i], &m));
        add_tiles(&set, &m.w->matrix[0], m.n_row, nullptr);
    }
    dev->counts.n_matmul += n;
    if (set.n_all == 0) return COLI_BK_OK;

    uint64_t tile_bytes = 0;
    plan(&tile_bytes, set.n_all, sizeof(coli__cuda_tile));
    uint64_t input_bytes = tile_bytes, output_bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        coli_bk_matmul m;
        COLI__CUDA_TRY(take_matmul(dev, args[i], &m));
        place_product(&m, &input_bytes, &output_bytes);
    }
    const uint64_t output_end = input_bytes + output_bytes;
    coli__cuda_space *const s = &dev->work.product;
    COLI__CUDA_TRY(reserve(dev, s, output_end, output_end));
    COLI__CUDA_TRY(fill_products(dev, args, n, &set, tile_bytes, input_bytes));
    const coli_bk_status status = queue_work(dev, s, input_bytes, output_end, [=, &set] {
        return start_tiles(dev, &set, s->device->at);
    });
    if (status != COLI_BK_OK) return coli__cuda_settle(dev, dev->work.stream, status);
    COLI__CUDA_TRY(finish_work(dev, s, dev->host->wait_limit_ns));
    give_products(dev, args, n, tile_bytes, input_bytes);
    return COLI_BK_OK;
}

coli_bk_status coli_backend_matmul(coli_bk_device *dev, const coli_bk_matmul *args)
{
    return coli_backend_matmul_batch(dev, &args, 1);
}
