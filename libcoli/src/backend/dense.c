/* dense.c - see dense.h.  Matrices that are on one device and read the same form of the rows go there in
 * one call. */
#include "dense.h"

#include "../base/alloc.h"

enum { RESULT_FLOATS = 2 << 20 }; // of one call; more rows are cut

struct coli__dense {
    coli__devices *devices;
    coli__products *products[COLI__MAX_DEVICE]; // NULL: it holds no matrix
};

static coli_status create_products(coli__devices *devices, uint32_t device, uint32_t max_tok,
                                   coli__products **out)
{
    size_t row_bytes, n_out;
    coli__devices_matrix_limits(devices, device, &row_bytes, &n_out);
    if (n_out == 0) return COLI_OK;
    const size_t row = COLI__MAX_PRODUCT * n_out; // the least: one row of any call
    const size_t wanted = row > RESULT_FLOATS ? row : RESULT_FLOATS;
    return coli__products_create(coli__devices_at(devices, device), max_tok, row_bytes,
                                 wanted / row < max_tok ? wanted : max_tok * row, out);
}

coli_status coli__dense_create(coli__devices *devices, uint32_t max_tok, coli__dense **out)
{
    *out = NULL;
    coli__dense *dense = coli__calloc(1, sizeof *dense);
    if (!dense) return COLI_E_NOMEM;
    dense->devices = devices;
    coli_status status = COLI_OK;
    bool any = false;
    for (uint32_t i = 0; i < coli__devices_n(devices) && status == COLI_OK; i++) {
        status = create_products(devices, i, max_tok, &dense->products[i]);
        any |= dense->products[i] != NULL;
    }
    if (status == COLI_OK && any)
        *out = dense;
    else
        coli__dense_destroy(dense);
    return status;
}

void coli__dense_destroy(coli__dense *dense)
{
    if (!dense) return;
    for (uint32_t i = 0; i < COLI__MAX_DEVICE; i++) coli__products_destroy(dense->products[i]);
    coli__free(dense);
}

bool coli__dense_has(const coli__dense *dense, const coli__mat *w)
{
    coli__slot place;
    return dense && coli__devices_matrix(dense->devices, w, &place);
}

/* What the caller of coli__dense_run wants. */
typedef struct wanted {
    uint32_t first, n_row;
    const coli__mat *const *mats;
    const uint32_t *column;
    uint32_t n_mat;
    float *y;
    size_t ldy;
    bool *done;
} wanted;

/* Those that one device holds and that read one form of the rows.  When they fail they are the
 * processor's from then on. */
static void run_form(coli__dense *dense, uint32_t device, const coli__qrows *x, const wanted *w)
{
    coli__product product[COLI__MAX_PRODUCT];
    uint32_t of[COLI__MAX_PRODUCT], n = 0;
    for (uint32_t i = 0; i < w->n_mat; i++) {
        coli__slot place;
        if (w->mats[i]->fmt.group != x->group ||
            !coli__devices_matrix(dense->devices, w->mats[i], &place) || place.device != device)
            continue;
        of[n] = i;
        product[n++] = (coli__product){
            .w = place.tensor, .n_out = w->mats[i]->n_out, .y = w->y + w->column[i], .ld = w->ldy};
    }
    if (n == 0) return;
    const bool good =
        coli__products_run(dense->products[device], x, w->first, w->n_row, product, n);
    for (uint32_t i = 0; i < n; i++) {
        w->done[of[i]] = good;
        if (!good) coli__devices_switch_off(dense->devices, w->mats[of[i]]);
    }
    if (!good) coli__devices_count_products_again(dense->devices, n);
}

void coli__dense_run(coli__dense *dense, const coli__acts *x, uint32_t first, uint32_t n_row,
                     const coli__mat *const *mats, const uint32_t *column, uint32_t n_mat, float *y,
                     size_t ldy, bool *done)
{
    for (uint32_t i = 0; i < n_mat; i++) done[i] = false;
    if (!dense) return;
    const wanted w = {first, n_row, mats, column, n_mat, y, ldy, done};
    for (uint32_t i = 0; i < COLI__MAX_DEVICE; i++) {
        if (!dense->products[i]) continue;
        if (x->q64.q) run_form(dense, i, &x->q64, &w);
        if (x->q32.q) run_form(dense, i, &x->q32, &w);
    }
}
