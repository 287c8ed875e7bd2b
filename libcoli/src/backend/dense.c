/* dense.c - see dense.h.  Dense matrices are on the first device (devices.h), so there is one set of
 * buffers; matrices that read the same form of the rows go to the device in one call. */
#include "dense.h"

#include "../base/alloc.h"

enum { RESULT_FLOATS = 2 << 20 }; // of one call; more rows are cut

struct coli__dense {
    coli__devices *devices;
    coli__products *products;
};

coli_status coli__dense_create(coli__devices *devices, uint32_t max_tok, coli__dense **out)
{
    *out = NULL;
    size_t row_bytes, n_out;
    coli__devices_matrix_limits(devices, &row_bytes, &n_out);
    if (n_out == 0) return COLI_OK;
    coli__dense *dense = coli__calloc(1, sizeof *dense);
    if (!dense) return COLI_E_NOMEM;
    dense->devices = devices;
    const size_t row = COLI__MAX_PRODUCT * n_out; // the least: one row of any call
    const size_t wanted = row > RESULT_FLOATS ? row : RESULT_FLOATS;
    const coli_status status =
        coli__products_create(coli__devices_at(devices, 0), max_tok, row_bytes,
                              wanted / row < max_tok ? wanted : max_tok * row, &dense->products);
    if (status != COLI_OK) {
        coli__free(dense);
        return status;
    }
    *out = dense;
    return COLI_OK;
}

void coli__dense_destroy(coli__dense *dense)
{
    if (!dense) return;
    coli__products_destroy(dense->products);
    coli__free(dense);
}

bool coli__dense_has(const coli__dense *dense, const coli__mat *w)
{
    coli__slot place;
    return dense && coli__devices_matrix(dense->devices, w, &place);
}

/* Those that read one form of the rows. */
static void run_form(coli__dense *dense, const coli__qrows *x, uint32_t first, uint32_t n_row,
                     const coli__mat *const *mats, const uint32_t *column, uint32_t n_mat, float *y,
                     size_t ldy, bool *done)
{
    coli__product product[COLI__MAX_PRODUCT];
    uint32_t of[COLI__MAX_PRODUCT], n = 0;
    for (uint32_t i = 0; i < n_mat; i++) {
        coli__slot place;
        if (mats[i]->fmt.group != x->group ||
            !coli__devices_matrix(dense->devices, mats[i], &place))
            continue;
        of[n] = i;
        product[n++] = (coli__product){
            .w = place.tensor, .n_out = mats[i]->n_out, .y = y + column[i], .ld = ldy};
    }
    if (n == 0) return;
    const bool good = coli__products_run(dense->products, x, first, n_row, product, n);
    for (uint32_t i = 0; i < n; i++) done[of[i]] = good;
    if (!good) coli__devices_count_products_again(dense->devices, n);
}

void coli__dense_run(coli__dense *dense, const coli__acts *x, uint32_t first, uint32_t n_row,
                     const coli__mat *const *mats, const uint32_t *column, uint32_t n_mat, float *y,
                     size_t ldy, bool *done)
{
    for (uint32_t i = 0; i < n_mat; i++) done[i] = false;
    if (!dense) return;
    if (x->q64.q) run_form(dense, &x->q64, first, n_row, mats, column, n_mat, y, ldy, done);
    if (x->q32.q) run_form(dense, &x->q32, first, n_row, mats, column, n_mat, y, ldy, done);
}
