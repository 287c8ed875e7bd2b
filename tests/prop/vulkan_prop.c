/* vulkan_prop.c - whatever the Vulkan backend is asked to compute, it gives the bits of
 * reference.c, and the validation layer has nothing to say. */
#include "vulkan_world.h"

static const uint32_t row_counts[] = {0, 1, 2, 7, 33};
enum { N_ROW_COUNT = sizeof row_counts / sizeof *row_counts };

static void random_world(vk_world *w, t_rng *rng)
{
    static const uint32_t n_experts[] = {0, 1, 2, 9};
    uint32_t formats[3];
    vk_random_formats(rng, formats);
    vk_world_init(w, rng, formats, vk_random_width(rng), vk_random_width(rng),
                  n_experts[t_below(rng, 4)], row_counts, N_ROW_COUNT);
}

/* Random groups, one after another on one device. */
static void run_worlds(const char *options, t_rng *rng, uint32_t n)
{
    vk_host host;
    coli_bk_device *dev = vk_open(&host, options);
    for (uint32_t i = 0; i < n; i++) {
        vk_world w;
        random_world(&w, rng);
        vk_world_upload(&w, &host, dev);
        vk_world_run(&w, &host, dev);
        vk_world_free(&w, dev);
    }
    vk_shut(&host, dev);
}

T_PROP(groups, 3)
{
    run_worlds("validate=1", &rng, 12);
}

/* Rounds of a few rows each, tensors that fill a buffer, many windows. */
T_PROP(groups_in_small_buffers, 3)
{
    run_worlds("validate=1 buffer=1MiB staging=64KiB work=128KiB", &rng, 4);
}

T_PROP(groups_without_what_is_optional, 2)
{
    run_worlds("validate=1 dot=0 storage16=0", &rng, 6);
}

/* The device's own subgroup size, asked for; products by the dot instruction. */
T_PROP(groups_with_what_is_optional, 2)
{
    vk_host host;
    vk_host_init(&host, "subgroup=1");
    coli_bk_device *dev = NULL;
    uint32_t lowest = 0;
    if (vk.open(&host.base.table, vk_device, &dev) != COLI_BK_OK)
        T_EQ(sscanf(strstr(host.base.message, "from "), "from %u", &lowest), 1);
    vk.close(dev);
    char options[80];
    snprintf(options, sizeof options, "validate=1 dot=1 storage16=1%s%.0u",
             lowest ? " subgroup=" : "", lowest);
    run_worlds(options, &rng, 6);
}

/* The layer's look at synchronisation takes a buffer as a whole, so each step must be one
 * dispatch. */
T_PROP(steps_are_behind_barriers, 2)
{
    static const uint32_t seven[] = {7}, one[] = {1};
    vk_host host;
    coli_bk_device *dev = vk_open(&host, "validate=2 join=1 staging=64KiB work=128KiB");
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t formats[3];
        vk_random_formats(&rng, formats);
        formats[1] = formats[0];
        vk_world w;
        vk_world_init(&w, &rng, formats, 320, 96, 5, i % 2 ? one : seven, 1);
        const coli_bk_join join = {0, 2};
        const uint32_t pairs[] = {0, 1};
        const float weights[] = {0.25f, 0.75f};
        vk_world_upload(&w, &host, dev);
        vk_world_run(&w, &host, dev);
        w.group.n_join = 1;
        w.group.n_term = 2;
        w.group.joins = &join;
        w.group.term_pair = pairs;
        w.group.term_weight = weights;
        VK_OK(&host, vk.group_issue(dev, &w.group));
        T_EQ(vk_take(&host, dev).n_row, w.n_pair - 1);
        VK_OK(&host, vk.tensor_overwrite(dev, w.tensors[0], &w.sources[1]));
        vk_world_free(&w, dev);
    }
    vk_shut(&host, dev);
}

/* Forty experts in as many buffers: more than the descriptor sets of a round name, so that it
 * ends. */
static void more_buffers_than_a_round_names(void **state)
{
    T_BEGIN;
    static const uint32_t one[] = {1};
    static const uint32_t formats[3] = {COLI_BK_I4_G64_F16, COLI_BK_I4_G64_F16, COLI_BK_I4_G64_F16};
    t_rng rng = {5};
    vk_host host;
    coli_bk_device *dev = vk_open(&host, "validate=1 buffer=256KiB staging=128KiB");
    vk_world w;
    vk_world_init(&w, &rng, formats, 320, 320, 40, one, 1);
    T_TRUE(2 * w.sources[0].n_bytes > 256 << 10); // one in each
    vk_world_upload(&w, &host, dev);
    vk_world_run(&w, &host, dev);
    vk_world_free(&w, dev);
    vk_shut(&host, dev);
}

/* ---- joins ---------------------------------------------------------------------------------- */

/* Join random pairs; compare with exact.h's operations. */
static void run_join(vk_world *w, t_rng *rng, vk_host *host, coli_bk_device *dev)
{
    coli_bk_join joins[8];
    uint32_t *pairs = coli__calloc(w->n_pair + 1, sizeof *pairs), n_term = 0;
    float *weights = coli__calloc(w->n_pair + 1, sizeof *weights);
    uint8_t *is_term = coli__calloc(w->n_pair + 1, 1);
    const uint32_t n_join = t_below(rng, 8);
    for (uint32_t i = 0; i < n_join; i++) {
        joins[i] = (coli_bk_join){n_term, 0};
        for (uint32_t k = t_below(rng, 9); k > 0 && w->n_pair > 0; k--) {
            const uint32_t pair = t_below(rng, w->n_pair);
            if (is_term[pair]) continue;
            is_term[pair] = 1;
            pairs[n_term] = pair;
            weights[n_term++] = t_below(rng, 8) ? (float)t_unit(rng) : 0.0f;
            joins[i].n_term++;
        }
    }
    w->group.n_join = n_join;
    w->group.n_term = n_term;
    w->group.joins = joins;
    w->group.term_pair = pairs;
    w->group.term_weight = weights;
    VK_OK(host, vk.group_issue(dev, &w->group));
    const coli_bk_result r = vk_take(host, dev);
    T_EQ(r.n_row, w->n_pair - n_term + n_join);

    float *all = coli__calloc((size_t)w->n_pair * w->d + 1, sizeof *all);
    float *sum = coli__calloc(w->d, sizeof *sum);
    for (uint32_t i = 0, p = 0; i < w->n_expert; i++)
        for (uint32_t k = 0; k < w->n_row[i]; k++, p++)
            T_TRUE(vk_world_expect(w, i, p, all + (size_t)p * w->d));
    uint32_t at = 0;
    for (uint32_t p = 0; p < w->n_pair; p++)
        if (!is_term[p]) T_MEM(r.y + at++ * r.ld, all + (size_t)p * w->d, w->d * sizeof *all);
    for (uint32_t i = 0; i < n_join; i++) {
        memset(sum, 0, w->d * sizeof *sum);
        for (uint32_t t = joins[i].first_term; t < joins[i].first_term + joins[i].n_term; t++)
            for (uint32_t c = 0; c < w->d; c++)
                sum[c] = sum[c] + weights[t] * all[(size_t)pairs[t] * w->d + c];
        T_MEM(r.y + at++ * r.ld, sum, w->d * sizeof *sum);
    }
    coli__free(pairs);
    coli__free(weights);
    coli__free(is_term);
    coli__free(all);
    coli__free(sum);
}

static void run_joins(const char *options, t_rng *rng)
{
    vk_host host;
    coli_bk_device *dev = vk_open(&host, options);
    for (uint32_t i = 0; i < 5; i++) {
        vk_world w;
        do {
            random_world(&w, rng);
            if (w.n_expert == 0) vk_world_free(&w, dev);
        } while (w.n_expert == 0);
        vk_world_upload(&w, &host, dev);
        run_join(&w, rng, &host, dev);
        vk_world_free(&w, dev);
    }
    vk_shut(&host, dev);
}

T_PROP(joined_on_the_device, 2)
{
    run_joins("validate=1 join=1", &rng);
}

/* No round has them all, so the plugin joins what it read back. */
T_PROP(joined_after_several_rounds, 2)
{
    run_joins("validate=1 join=1 staging=64KiB work=64KiB", &rng);
}

/* ---- products ------------------------------------------------------------------------------- */

T_PROP(products_in_batches, 3)
{
    static const uint32_t rows[] = {0, 1, 2, 7, 8, 9, 33, 256};
    enum { MAX_PRODUCT = 6 };
    vk_host host;
    coli_bk_device *dev =
        vk_open(&host, t_below(&rng, 2) ? "validate=1" : "validate=1 staging=64KiB work=64KiB");
    const uint32_t n = t_below(&rng, MAX_PRODUCT + 1);
    vk_product products[MAX_PRODUCT];
    const coli_bk_matmul *args[MAX_PRODUCT];
    for (uint32_t i = 0; i < n; i++) {
        vk_product_init(&products[i], &rng, t_below(&rng, COLI_BK_N_FORMAT), vk_random_width(&rng),
                        vk_random_width(&rng), rows[t_below(&rng, 8)]);
        vk_product_upload(&products[i], &host, dev);
        args[i] = &products[i].args;
    }
    VK_OK(&host, vk.matmul_batch(dev, args, n));
    for (uint32_t i = 0; i < n; i++) vk_product_check(&products[i]);
    for (uint32_t i = 0; i < n; i++) vk_product_free(&products[i], dev);
    vk_shut(&host, dev);
}

static void run_product(const char *options, uint32_t format, uint32_t n_out, uint32_t n_in,
                        uint32_t n_row)
{
    t_rng rng = {n_out + n_in};
    vk_host host;
    coli_bk_device *dev = vk_open(&host, options);
    vk_product p;
    vk_product_init(&p, &rng, format, n_out, n_in, n_row);
    vk_product_upload(&p, &host, dev);
    VK_OK(&host, vk.matmul(dev, &p.args));
    vk_product_check(&p);
    vk_product_free(&p, dev);
    vk_shut(&host, dev);
}

/* Every format, one row, a few and many. */
static void all_formats(void **state)
{
    T_BEGIN;
    vk_host host;
    coli_bk_device *dev = vk_open(&host, "validate=1");
    for (uint32_t format = 0; format < COLI_BK_N_FORMAT; format++)
        for (uint32_t shape = 0; shape < 3; shape++) {
            static const uint32_t rows[] = {1, 6, 19};
            t_rng rng = {format * 3 + shape};
            vk_product p;
            vk_product_init(&p, &rng, format, 33, 500, rows[shape]);
            vk_product_upload(&p, &host, dev);
            VK_OK(&host, vk.matmul(dev, &p.args));
            vk_product_check(&p);
            vk_product_free(&p, dev);
        }
    vk_shut(&host, dev);
}

/* Rows so long that the trees need more levels than usual: beyond 4 * 64 groups, or 64 for many
 * rows. */
static void long_rows(void **state)
{
    T_BEGIN;
    run_product("validate=1", COLI_BK_I4_G32_F16, 17, 32 * 600 + 5, 1);
    run_product("validate=1", COLI_BK_I8_ROW_F32, 17, 64 * 257, 3);
    run_product("validate=1", COLI_BK_I4_G64_F32, 17, 64 * 70, 18);
}

/* More panels than an axis has workgroups. */
static void many_rows_of_weights(void **state)
{
    T_BEGIN;
    run_product("validate=1", COLI_BK_I4_G32_F16, 16 * 65535 + 17, 32, 1);
}

/* ---- extremes ------------------------------------------------------------------------------- */

static void set_codes(coli_bk_source *s, const coli_bk_matrix *m, uint8_t byte)
{
    const coli_bk_layout l = coli_bk_layout_of(m->format, m->n_in);
    uint8_t *at = (uint8_t *)(uintptr_t)s->data + m->offset + l.first_group + l.code_offset;
    for (uint32_t g = 0; g < l.n_group; g++, at += l.group_bytes)
        memset(at, byte, l.group_bytes - l.code_offset);
}

/* Those of even rows, and of odd ones. */
static void set_scales(coli_bk_source *s, const coli_bk_matrix *m, float even, float odd)
{
    const coli_bk_layout l = coli_bk_layout_of(m->format, m->n_in);
    uint8_t *at = (uint8_t *)(uintptr_t)s->data + m->offset;
    for (uint32_t i = 0; i < (l.per_row ? 1 : l.n_group); i++)
        for (uint32_t r = 0; r < COLI_BK_PANEL; r++)
            memcpy(at + i * l.group_bytes + 4 * r, r % 2 ? &odd : &even, sizeof even);
}

/* The largest and smallest codes, scales and activations, also all at once. */
static void extreme_numbers(void **state)
{
    T_BEGIN;
    static const uint8_t codes[] = {0x00, 0xFF, 0x80, 0x88, 0x77};
    static const float scales[] = {0.0f, 0x1p-40f, 0x1p10f}, ds[] = {0.0f, 0x1p-63f, 0x1p33f};
    static const uint32_t formats[] = {COLI_BK_I8_G64_F32, COLI_BK_I8_G32_F32, COLI_BK_I8_ROW_F32,
                                       COLI_BK_I4_G64_F32, COLI_BK_I4_ROW_F32};
    vk_host host;
    coli_bk_device *dev = vk_open(&host, "validate=1");
    for (uint32_t i = 0; i < 5 * 5 * 3 * 3; i++) {
        t_rng rng = {i};
        vk_product p;
        vk_product_init(&p, &rng, formats[i % 5], 16, 64 * 5, 2);
        set_codes(&p.source, &p.source.matrix[0], codes[i / 5 % 5]);
        set_scales(&p.source, &p.source.matrix[0], scales[i / 25 % 3], -scales[i / 25 % 3]);
        p.source.matrix[0].scale_exp = 0;
        for (uint32_t g = 0; g < 2 * p.args.n_group; g++) p.scale[g] = ds[i / 75];
        memset(p.q, 127, (size_t)p.args.n_group * p.args.group); // the second row stays random
        vk_product_upload(&p, &host, dev);
        VK_OK(&host, vk.matmul(dev, &p.args));
        vk_product_check(&p);
        vk_product_free(&p, dev);
    }
    vk_shut(&host, dev);
}

/* Rows whose hidden numbers leave the range are flagged, and their neighbours are not. */
static void flags(void **state)
{
    T_BEGIN;
    static const uint32_t seven[] = {7};
    static const uint32_t formats[3] = {COLI_BK_I4_G64_F16, COLI_BK_I8_G64_F16, COLI_BK_I4_G32_F16};
    t_rng rng = {9};
    vk_host host;
    coli_bk_device *dev = vk_open(&host, "validate=1 join=1");
    vk_world w;
    vk_world_init(&w, &rng, formats, 192, 100, 3, seven, 1);
    for (uint32_t p = 0; p < w.n_pair; p++) w.row[p] = p % w.group.n_x;
    for (uint32_t x = 0; x < w.group.n_x; x++) // 2^25, squared by silu(gate) * up, is beyond 2^40
        for (uint32_t g = 0; g < w.group.n_group; g++)
            w.scale[x * w.group.n_group + g] *= x % 3 == 1 ? 0x1p25f : x % 3 == 2 ? 0x1p-40f : 1.0f;
    vk_world_upload(&w, &host, dev);
    VK_OK(&host, vk.group_issue(dev, &w.group));
    const coli_bk_result r = vk_take(&host, dev);
    uint32_t n_flag = 0;
    for (uint32_t p = 0; p < r.n_row; p++) n_flag += r.flag[p];
    T_TRUE(n_flag > 0 && n_flag < r.n_row);
    vk_world_check(&w, &r);

    // a join is flagged when one of its terms is, be it the first or the last
    uint32_t good[5], bad[2], n_good = 0, n_bad = 0;
    for (uint32_t p = 0; p < r.n_row; p++) {
        if (r.flag[p] && n_bad < 2) bad[n_bad++] = p;
        if (!r.flag[p] && n_good < 5) good[n_good++] = p;
    }
    T_TRUE(n_bad == 2 && n_good == 5);
    const coli_bk_join joins[] = {{0, 3}, {3, 2}, {5, 2}};
    const uint32_t pairs[] = {good[0], good[1], good[2], bad[0], good[3], good[4], bad[1]};
    const float weights[] = {1, 1, 1, 1, 1, 1, 1};
    w.group.n_join = 3;
    w.group.n_term = 7;
    w.group.joins = joins;
    w.group.term_pair = pairs;
    w.group.term_weight = weights;
    VK_OK(&host, vk.group_issue(dev, &w.group));
    const coli_bk_result joined = vk_take(&host, dev);
    T_EQ(joined.n_row, w.n_pair - 4);
    T_EQ(joined.flag[joined.n_row - 3], 0);
    T_EQ(joined.flag[joined.n_row - 2], 1);
    T_EQ(joined.flag[joined.n_row - 1], 1);
    vk_world_free(&w, dev);
    vk_shut(&host, dev);
}

/* Hidden numbers of exactly 2^40 are flagged, the float below is not. */
static void the_edge_of_the_range(void **state)
{
    T_BEGIN;
    static const uint32_t two[] = {2};
    static const uint32_t formats[3] = {COLI_BK_I8_G64_F32, COLI_BK_I8_G64_F32, COLI_BK_I8_G64_F32};
    t_rng rng = {1};
    vk_host host;
    coli_bk_device *dev = vk_open(&host, "validate=1");
    vk_world w;
    vk_world_init(&w, &rng, formats, 64, 16, 1, two, 1);
    // gate = s * d and up = s * (scale * d), s = 64 * 127 * 127: look for d and scale that make
    // silu(gate) * up exactly 2^40, and for the d below
    const int32_t sum = 64 * 127 * 127;
    float scale = 1.0f, at = 0, below = 0;
    for (; at == 0; scale += 0x1p-23f) {
        T_TRUE(scale < 1.001f);
        float h = 0;
        for (float d = 0x1p20f / (float)sum * 0.9999f; h < 0x1p40f;
             d = coli_from_bits(coli_bits(d) + 1)) {
            h = coli_silu(coli_group_value(sum, 1.0f, d)) * coli_group_value(sum, scale, d);
            if (h < 0x1p40f) below = d;
            if (h == 0x1p40f) at = d;
        }
        if (at != 0) break;
    }
    for (uint32_t m = 0; m < 3; m++) {
        w.sources[0].matrix[m].scale_exp = 0;
        set_codes(&w.sources[0], &w.sources[0].matrix[m], 0xFF);
        const float same = m == 1 ? scale : 1.0f;
        set_scales(&w.sources[0], &w.sources[0].matrix[m], same, same);
    }
    w.group.n_x = 2;
    w.row[0] = 0;
    w.row[1] = 1;
    coli__free(w.q);
    coli__free(w.scale);
    w.q = memset(coli__calloc(2, 64), 127, 128);
    w.scale = coli__calloc(2, sizeof *w.scale);
    w.scale[0] = at;
    w.scale[1] = below;
    w.group.q = w.q;
    w.group.d = w.scale;
    vk_world_upload(&w, &host, dev);
    VK_OK(&host, vk.group_issue(dev, &w.group));
    const coli_bk_result r = vk_take(&host, dev);
    T_EQ(r.flag[0], 1);
    T_EQ(r.flag[1], 0);
    vk_world_check(&w, &r);
    vk_world_free(&w, dev);
    vk_shut(&host, dev);
}

/* ---- in what order things are called -------------------------------------------------------- */

/* What is overwritten between groups is what the next group uses, however it was brought. */
T_PROP(overwritten_between_groups, 3)
{
    vk_host host;
    coli_bk_device *dev = vk_open(&host, "validate=1 staging=64KiB");
    vk_world w;
    static const uint32_t counts[] = {1, 5};
    uint32_t formats[3];
    vk_random_formats(&rng, formats);
    vk_world_init(&w, &rng, formats, 256, 192, 4, counts, 2);
    vk_world_upload(&w, &host, dev);
    uint8_t *pinned = vk.host_alloc(dev, w.sources[0].n_bytes);
    T_TRUE(pinned && (uintptr_t)pinned % 64 == 0);
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t e = t_below(&rng, w.n_expert);
        vk_world_renew(&w, &rng, e);
        coli_bk_source source = w.sources[e];
        coli_bk_fence fence = 0;
        switch (t_below(&rng, 3)) {
        case 0:
            VK_OK(&host, vk.tensor_overwrite(dev, w.tensors[e], &source));
            break;
        case 1: // from memory that the device reads by itself
            memcpy(pinned, source.data, source.n_bytes);
            source.data = pinned; // fall through
        default:
            VK_OK(&host, vk.tensor_overwrite_async(dev, w.tensors[e], &source, &fence));
            T_NE(fence, 0);
            VK_OK(&host, vk.fence_poll(dev, fence, host.base.table.wait_limit_ns));
            VK_OK(&host, vk.fence_poll(dev, fence, 0));
        }
        vk_world_run(&w, &host, dev);
    }
    vk.host_free(dev, pinned);
    vk_world_free(&w, dev);
    vk_shut(&host, dev);
}

/* Between issue and take: products, uploads, overwrites of other tensors; the host's memory
 * changes. */
T_PROP(between_issue_and_take, 3)
{
    vk_host host;
    coli_bk_device *dev = vk_open(&host, "validate=1");
    vk_world w, copy;
    do {
        random_world(&w, &rng);
        if (w.n_pair == 0) vk_world_free(&w, dev);
    } while (w.n_pair == 0);
    vk_world_upload(&w, &host, dev);
    vk_product p;
    vk_product_init(&p, &rng, COLI_BK_I4_G64_F16, 300, 200, 9);
    vk_product_upload(&p, &host, dev);

    // the group's tables and rows are the host's again when issue returns
    copy = w;
    const size_t q_bytes = (size_t)w.group.n_x * w.group.n_group * w.group.group;
    copy.row = coli__calloc(w.n_pair, sizeof *copy.row);
    copy.q = coli__calloc(q_bytes, 1);
    memcpy(copy.row, w.row, w.n_pair * sizeof *copy.row);
    memcpy(copy.q, w.q, q_bytes);
    copy.group.row = copy.row;
    copy.group.q = copy.q;
    VK_OK(&host, vk.group_issue(dev, &copy.group));
    memset(copy.row, 0xFF, w.n_pair * sizeof *copy.row);
    memset(copy.q, 0xFF, q_bytes);

    T_EQ(vk.group_issue(dev, &w.group), COLI_BK_BUSY);
    VK_OK(&host, vk.matmul(dev, &p.args));
    vk_product_check(&p);
    coli_bk_tensor *other;
    VK_OK(&host, vk.tensor_upload(dev, &p.source, &other));
    VK_OK(&host, vk.tensor_overwrite(dev, other, &p.source));
    vk.tensor_free(dev, other);
    const coli_bk_result r = vk_take(&host, dev);
    vk_world_check(&w, &r);

    // a result lasts until the next issue
    VK_OK(&host, vk.matmul(dev, &p.args));
    vk_world_check(&w, &r);
    coli_bk_result none = {.struct_size = sizeof none};
    T_EQ(vk.group_take(dev, 0, &none), COLI_BK_EMPTY);
    T_EQ(host.base.n_fail, 0);
    coli__free(copy.row);
    coli__free(copy.q);
    vk_product_free(&p, dev);
    vk_world_free(&w, dev);
    vk_shut(&host, dev);
}

static void a_hundred_times_the_same(void **state)
{
    T_BEGIN;
    static const uint32_t counts[] = {1, 2, 33};
    static const uint32_t formats[3] = {COLI_BK_I4_G64_F16, COLI_BK_I4_G64_F16, COLI_BK_I4_G64_F16};
    t_rng rng = {3};
    vk_host host;
    coli_bk_device *dev = vk_open(&host, "");
    vk_world w;
    vk_world_init(&w, &rng, formats, 320, 128, 6, counts, 3);
    vk_world_upload(&w, &host, dev);
    VK_OK(&host, vk.group_issue(dev, &w.group));
    coli_bk_result r = vk_take(&host, dev);
    vk_world_check(&w, &r);
    const size_t n_bytes = (size_t)r.n_row * w.d * sizeof(float);
    float *first = coli__calloc(n_bytes, 1);
    memcpy(first, r.y, n_bytes);
    for (uint32_t i = 0; i < 100; i++) {
        VK_OK(&host, vk.group_issue(dev, &w.group));
        r = vk_take(&host, dev);
        T_MEM(r.y, first, n_bytes);
    }
    coli_bk_group_stats stats = {.struct_size = sizeof stats};
    VK_OK(&host, vk.group_stats(dev, &stats));
    T_EQ(stats.n_group, 101);
    T_EQ(stats.n_expert, 606);
    T_EQ(stats.n_row, 101 * (uint64_t)w.n_pair);
    T_EQ(stats.upload_bytes, 6 * w.sources[0].n_bytes);
    T_TRUE(stats.kernel_ms > 0 && stats.to_device_ms >= 0 && stats.to_host_ms >= 0);
    T_TRUE(stats.upload_ms > 0);
    coli__free(first);
    vk_world_free(&w, dev);
    vk_shut(&host, dev);
}

/* ---- two threads ---------------------------------------------------------------------------- */

typedef struct uploader {
    vk_host *host;
    coli_bk_device *dev;
    const coli_bk_source *sources;
    atomic_bool stop;
    uint32_t n_round;
    coli_bk_status status;
} uploader;

/* The copy sequence: upload, overwrite both ways, free; again and again. */
static void *keep_uploading(void *arg)
{
    uploader *u = arg;
    while (!u->stop && u->status == COLI_BK_OK) {
        coli_bk_tensor *t = NULL;
        coli_bk_fence fence = 0;
        coli_bk_status s = vk.tensor_upload(u->dev, &u->sources[0], &t);
        if (!s) s = vk.tensor_overwrite(u->dev, t, &u->sources[1]);
        if (!s) s = vk.tensor_overwrite_async(u->dev, t, &u->sources[0], &fence);
        if (!s) s = vk.fence_poll(u->dev, fence, u->host->base.table.wait_limit_ns);
        vk.tensor_free(u->dev, t);
        u->status = s;
        u->n_round++;
    }
    return NULL;
}

static void two_threads(void **state)
{
    T_BEGIN;
    static const uint32_t counts[] = {1, 9};
    static const uint32_t formats[3] = {COLI_BK_I4_G64_F16, COLI_BK_I4_G64_F16, COLI_BK_I8_G64_F16};
    t_rng rng = {11};
    vk_host host;
    coli_bk_device *dev = vk_open(&host, "validate=1 staging=64KiB");
    vk_world w;
    vk_world_init(&w, &rng, formats, 256, 128, 4, counts, 2);
    vk_world_upload(&w, &host, dev);
    uploader u = {.host = &host, .dev = dev, .sources = w.sources};
    pthread_t thread;
    T_EQ(pthread_create(&thread, NULL, keep_uploading, &u), 0);
    for (uint32_t i = 0; i < 60; i++) {
        coli_bk_mem_info info = {.struct_size = sizeof info};
        VK_OK(&host, vk.group_issue(dev, &w.group));
        VK_OK(&host, vk.mem_info(dev, &info));
        const coli_bk_result r = vk_take(&host, dev);
        vk_world_check(&w, &r);
    }
    u.stop = true;
    pthread_join(thread, NULL);
    T_EQ(u.status, COLI_BK_OK);
    T_TRUE(u.n_round > 0);
    vk_world_free(&w, dev);
    vk_shut(&host, dev);
}

int main(int argc, char **argv) // one argument: run the test of this name alone
{
    if (argc == 2) cmocka_set_test_filter(argv[1]);
    vk_find_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups),
        cmocka_unit_test(groups_in_small_buffers),
        cmocka_unit_test(groups_without_what_is_optional),
        cmocka_unit_test(groups_with_what_is_optional),
        cmocka_unit_test(steps_are_behind_barriers),
        cmocka_unit_test(more_buffers_than_a_round_names),
        cmocka_unit_test(joined_on_the_device),
        cmocka_unit_test(joined_after_several_rounds),
        cmocka_unit_test(products_in_batches),
        cmocka_unit_test(all_formats),
        cmocka_unit_test(long_rows),
        cmocka_unit_test(many_rows_of_weights),
        cmocka_unit_test(extreme_numbers),
        cmocka_unit_test(flags),
        cmocka_unit_test(the_edge_of_the_range),
        cmocka_unit_test(overwritten_between_groups),
        cmocka_unit_test(between_issue_and_take),
        cmocka_unit_test(a_hundred_times_the_same),
        cmocka_unit_test(two_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
