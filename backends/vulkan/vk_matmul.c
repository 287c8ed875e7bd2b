/* vk_matmul.c - see vk_matmul.h.
 *
 * The products of a batch do not depend on each other: a round takes as many rows of as many of
 * them as fit, each with one dispatch, and no barrier between.  A group may be under way at the
 * same time: the queue runs the rounds one after another, and the readback memory is another. */
#include "vk_matmul.h"

#include <string.h>

#include "vk_round.h"

/* Staged for a row besides itself: at most a tile. */
static uint64_t row_staged(const coli_bk_matrix *m)
{
    return vk_row_words_of(m) + VK_TILE_WORDS;
}

coli_bk_status vk_matmul_check_shape(coli_bk_device *dev, const coli_bk_matrix *m)
{
    return vk_rounds_check(dev, m, VK_MATRIX_WORDS + row_staged(m), m->n_out);
}

/* As many rows of `a`, from `first` on, as the round still takes; their results go to byte `to` of
 * the readback buffer.  0 when the round is full. */
static uint32_t add_rows(coli_bk_device *dev, vk_round *r, const coli_bk_matmul *a, uint32_t first,
                         uint64_t to)
{
    const coli_bk_matrix *m = a->w->matrix;
    if (r->n_dispatch == VK_MAX_DISPATCH || r->n_copy == VK_MAX_COPY) return 0;
    const uint64_t staged = row_staged(m);
    uint32_t n_row = 0;
    while (
        n_row < a->n_row - first && n_row < VK_MAX_PAIR &&
        vk_round_fits(r, VK_MATRIX_WORDS + (n_row + 1) * staged, (n_row + (uint64_t)1) * m->n_out))
        n_row++;
    if (n_row == 0) return 0;
    const uint32_t buffer = vk_round_buffer(r, a->w->slice.chunk);
    if (buffer == VK_MAX_ROUND_BUFFER) return 0;

    const vk_shape shape = vk_shape_for(n_row);
    vk_product_args args = {
        .row_at = VK_NONE, .x_ld = (uint32_t)vk_row_words_of(m), .y_ld = m->n_out};
    args.matrix_at = vk_round_stage(r, VK_MATRIX_WORDS);
    vk_round_put_matrices(r, args.matrix_at, a->w, buffer);
    args.x_at = vk_round_stage(r, (uint64_t)n_row * args.x_ld);
    for (uint32_t i = 0; i < n_row; i++)
        vk_round_put_row(r, args.x_at + i * args.x_ld,
                         a->q + (size_t)(first + i) * a->n_group * a->group,
                         a->d + (size_t)(first + i) * a->n_group, a->n_group, a->group);
    args.tile_at = r->n_staged;
    const uint32_t n_tile = vk_round_put_tiles(r, shape, 0, 0, n_row);
    args.y_at = vk_round_scratch(r, (uint64_t)n_row * m->n_out);
    vk_round_product(dev, m, 1, shape, buffer / VK_N_WEIGHT_BUFFER, n_tile, args);
    vk_round_copy(r, args.y_at, to, 4 * (uint64_t)n_row * m->n_out);
    return n_row;
}

/* All rounds, until the results are in the readback buffer, row after row. */
static coli_bk_status run_rounds(coli_bk_device *dev, const coli_bk_matmul *const *args, uint32_t n)
{
    vk_round *round;
    VK_TRY(vk_round_begin(dev, &round));
    uint64_t to = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t row = 0; row < args[i]->n_row;) {
            const uint32_t taken = add_rows(dev, round, args[i], row, to);
            if (taken == 0) { // the round has something, because a single row fits an empty one
                VK_TRY(vk_round_submit(dev, dev->matmul_out.handle));
                VK_TRY(vk_round_begin(dev, &round));
            }
            row += taken;
            to += 4 * (uint64_t)taken * args[i]->w->matrix->n_out;
        }
    VK_TRY(vk_round_submit(dev, dev->matmul_out.handle));
    return vk_stream_finish(dev, &dev->work, dev->work.issued);
}

coli_bk_status vk_matmul_run(coli_bk_device *dev, const coli_bk_matmul *const *args, uint32_t n)
{
    uint64_t n_float = 0;
    for (uint32_t i = 0; i < n; i++)
        n_float += (uint64_t)args[i]->n_row * args[i]->w->matrix->n_out;
    if (n_float > 0) {
        VK_TRY(vk_readback_need(dev, &dev->matmul_out, 4 * n_float));
        const coli_bk_status status = run_rounds(dev, args, n);
        if (status) {
            vk_stream_drain(dev, &dev->work);
            return status;
        }
        vk_rounds_read_stamps(dev);
    }
    const float *from = dev->matmul_out.map;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t row = 0; row < args[i]->n_row; row++) {
            const uint32_t n_out = args[i]->w->matrix->n_out;
            memcpy(args[i]->y + row * args[i]->ld, from, n_out * sizeof *from);
            from += n_out;
        }
    pthread_mutex_lock(&dev->stats_lock);
    dev->stats.n_matmul += n;
    pthread_mutex_unlock(&dev->stats_lock);
    return COLI_BK_OK;
}

void vk_matmul_finish(coli_bk_device *dev)
{
    vk_buffer_destroy(dev, &dev->matmul_out);
}
