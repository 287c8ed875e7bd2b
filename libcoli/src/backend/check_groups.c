/* check_groups.c - groups: what goes in, in which order it comes out, and what is refused.
 *
 * Experts here are small and of widths that are multiples of 64, so that a fault in the numbers is
 * not mistaken for one in the order. */
#include <string.h>

#include "../base/memory.h"
#include "check.h"

enum { D = 128, F = 64, N_MOST = 64 };

static uint32_t random_below(coli__ck *ck, uint32_t n)
{
    return (uint32_t)(coli__random(&ck->seed) % n);
}

static coli__ck_tensor *some_expert(coli__ck *ck)
{
    return coli__ck_expert(ck, coli__ck_format(ck, 0), coli__ck_format(ck, 0), D, F);
}

static const coli__ck_rows *some_rows(coli__ck *ck, const coli__ck_tensor *t, uint32_t n)
{
    return coli__ck_random_rows(ck, n, &t->now.matrix[0]);
}

/* One expert with three rows. */
static coli__ck_group *small_group(coli__ck *ck, coli__ck_tensor *const *t)
{
    const uint32_t n_row = 3;
    return coli__ck_make_group(ck, t, 1, &n_row, some_rows(ck, *t, 4));
}

static void free_all(coli__ck *ck, coli__ck_tensor **t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) coli__ck_free(ck, t[i]);
}

void coli__ck_call_order(coli__ck *ck)
{
    static const uint32_t n_expert[] = {1, 2, 63, 64}, lengths[] = {1, 2, 7, 8, 9, 33};
    coli__ck_tensor *t[N_MOST];
    for (uint32_t i = 0; i < N_MOST; i++) t[i] = some_expert(ck);
    const coli__ck_rows *x = some_rows(ck, t[0], 50);
    for (uint32_t k = 0; k < sizeof n_expert / sizeof *n_expert; k++) {
        uint32_t n_row[N_MOST];
        for (uint32_t i = 0; i < n_expert[k]; i++) n_row[i] = lengths[random_below(ck, 6)];
        if (n_expert[k] == 1) n_row[0] = 7;
        coli__ck_run(ck, coli__ck_make_group(ck, t, n_expert[k], n_row, x));
    }
    static const uint32_t many[3] = {2, 1000, 9};
    coli__ck_run(ck, coli__ck_make_group(ck, t, 3, many, x));
    free_all(ck, t, N_MOST);
}

void coli__ck_no_rows(coli__ck *ck)
{
    coli__ck_tensor *t[4];
    for (uint32_t i = 0; i < 4; i++) t[i] = some_expert(ck);
    const coli__ck_rows *x = some_rows(ck, t[0], 5);
    static const uint32_t n_row[][4] = {{0, 2, 0, 3}, {2, 0, 0, 1}, {1, 3, 0, 0}, {0, 0, 0, 0}};
    coli__ck_hint(ck, "some experts of the group have no rows");
    for (uint32_t i = 0; i < 4; i++) {
        const coli__ck_group *g = coli__ck_make_group(ck, t, 4, n_row[i], x);
        const coli_bk_status status = CK_CALL(ck, group_issue, ck->dev, &g->args);
        COLI__CK_EXPECT(ck, status == COLI_BK_OK,
                        "group_issue refused experts with zero rows (%s: \"%s\"): they are legal",
                        coli__ck_status_name(status), ck->host.message);
        const coli_bk_result r = coli__ck_take(ck);
        coli__ck_right(ck, g, &r);
    }
    coli__ck_hint(ck, "the group has no experts");
    coli_bk_group none = coli__ck_make_group(ck, t, 1, n_row[0], x)->args;
    none.n_expert = 0;
    const coli_bk_status status = CK_CALL(ck, group_issue, ck->dev, &none);
    COLI__CK_EXPECT(ck, status == COLI_BK_OK,
                    "group_issue refused a group of zero experts (%s: \"%s\"): it is legal",
                    coli__ck_status_name(status), ck->host.message);
    const coli_bk_result r = coli__ck_take(ck);
    COLI__CK_EXPECT(ck, r.n_row == 0, "a group without experts gave %u rows", r.n_row);
    free_all(ck, t, 4);
}

/* ---- the order of calls -------------------------------------------------------------------------- */

/* There must be nothing to take. */
static void want_empty(coli__ck *ck, const char *after)
{
    coli_bk_result r;
    memset(&r, 0xA5, sizeof r);
    r.struct_size = sizeof r;
    const coli_bk_result untouched = r;
    const coli_bk_status status =
        CK_CALL(ck, group_take, ck->dev, ck->host.table.wait_limit_ns, &r);
    COLI__CK_EXPECT(ck, status == COLI_BK_EMPTY, "group_take %s returned %s, expected EMPTY", after,
                    coli__ck_status_name(status));
    COLI__CK_EXPECT(ck, memcmp(&r, &untouched, sizeof r) == 0,
                    "group_take %s returned EMPTY and wrote a result", after);
}

void coli__ck_take_first(coli__ck *ck)
{
    want_empty(ck, "without issue");
    coli__ck_tensor *t = some_expert(ck);
    coli__ck_run(ck, small_group(ck, &t));
    want_empty(ck, "a second time");
    coli__ck_run(ck, small_group(ck, &t));
    coli__ck_free(ck, t);
}

void coli__ck_issue_twice(coli__ck *ck)
{
    coli__ck_tensor *t[2] = {some_expert(ck), some_expert(ck)};
    const coli__ck_group *first = small_group(ck, &t[0]), *second = small_group(ck, &t[1]);
    CK_OK(ck, group_issue, ck->dev, &first->args);
    for (uint32_t i = 0; i < 2; i++)
        coli__ck_want(ck, "group_issue before the first was taken",
                      CK_CALL(ck, group_issue, ck->dev, &second->args), COLI_BK_BUSY);
    const coli_bk_result r = coli__ck_take(ck);
    coli__ck_right(ck, first, &r);
    want_empty(ck, "after the group that was issued while BUSY");
    coli__ck_run(ck, second);
    free_all(ck, t, 2);
}

void coli__ck_result_stays(coli__ck *ck)
{
    coli__ck_tensor *t = some_expert(ck);
    const coli__ck_group *g = small_group(ck, &t);
    CK_OK(ck, group_issue, ck->dev, &g->args);
    const coli_bk_result r = coli__ck_take(ck);
    coli__ck_memory(ck);
    coli__ck_tensor *other = some_expert(ck);
    if (ck->api.matmul) {
        coli__ck_tensor *w =
            coli__ck_upload(ck, coli__ck_matrix_block(ck, coli__ck_format(ck, 0), 48, D));
        coli__ck_product_run(ck, coli__ck_make_product(ck, w, some_rows(ck, w, 9)));
        coli__ck_free(ck, w);
    }
    coli__ck_free(ck, other);
    coli__ck_hint(ck, "the result was read after other calls, before the next group_issue");
    coli__ck_right(ck, g, &r);
    coli__ck_free(ck, t);
}

/* ---- the host's memory ---------------------------------------------------------------------------- */

/* All inputs of a group in pages that can be taken away. */
typedef struct lent {
    uint8_t *pages;
    uint64_t n_bytes, used;
} lent;

static const void *lend(lent *l, const void *bytes, size_t n_bytes)
{
    uint8_t *at = l->pages + l->used;
    if (n_bytes) memcpy(at, bytes, n_bytes);
    l->used += (n_bytes + 63) & ~(size_t)63;
    return at;
}

static lent lend_group(coli__ck *ck, coli_bk_group *a, uint32_t n_pair)
{
    lent l = {.n_bytes = 1 << 20};
    void *pages;
    if (coli__pages_take(l.n_bytes, &pages) != COLI_OK)
        coli__ck_cannot(ck, COLI_E_NOMEM, "%s", coli_error_message());
    l.pages = pages;
    const size_t n = (size_t)a->n_x * a->n_group;
    a->q = lend(&l, a->q, n * a->group);
    a->d = lend(&l, a->d, n * sizeof *a->d);
    a->row = lend(&l, a->row, n_pair * sizeof *a->row);
    a->n_row = lend(&l, a->n_row, a->n_expert * sizeof *a->n_row);
    a->experts = lend(&l, a->experts, a->n_expert * sizeof(coli_bk_tensor *));
    return l;
}

void coli__ck_inputs_reused(coli__ck *ck)
{
    static const uint32_t n_row[2] = {9, 4};
    coli__ck_tensor *t[2] = {some_expert(ck), some_expert(ck)};
    const coli__ck_rows *x = some_rows(ck, t[0], 20), *other = some_rows(ck, t[0], 20);
    coli__ck_group *g = coli__ck_make_group(ck, t, 2, n_row, x);

    coli_bk_group args = g->args; // a copy that is overwritten, too
    lent l = lend_group(ck, &args, g->n_pair);
    CK_OK(ck, group_issue, ck->dev, &args);
    memcpy((void *)(uintptr_t)args.q, other->q, (size_t)x->n * x->n_group * x->group);
    memcpy((void *)(uintptr_t)args.d, other->d, (size_t)x->n * x->n_group * sizeof(float));
    g->after = other;
    memset(&args, 0xA5, sizeof args);
    coli__ck_hint(ck, "the inputs were overwritten when group_issue had returned");
    coli_bk_result r = coli__ck_take(ck);
    coli__ck_right(ck, g, &r);
    coli__pages_give(l.pages, l.n_bytes);

    args = g->args;
    g->after = NULL;
    l = lend_group(ck, &args, g->n_pair);
    CK_OK(ck, group_issue, ck->dev, &args);
    coli__pages_give(l.pages, l.n_bytes);
    coli__ck_hint(ck, "the inputs were unmapped when group_issue had returned: host memory looks "
                      "used after return");
    r = coli__ck_take(ck);
    coli__ck_right(ck, g, &r);
    free_all(ck, t, 2);
}

/* ---- experts in groups ----------------------------------------------------------------------------- */

void coli__ck_same_expert(coli__ck *ck)
{
    coli__ck_tensor *a = some_expert(ck), *b = some_expert(ck);
    coli__ck_tensor *const twice[4] = {a, b, a, a}, *const again[2] = {b, a};
    static const uint32_t n_row[4] = {3, 2, 4, 1};
    const coli__ck_rows *x = some_rows(ck, a, 6);
    coli__ck_run(ck, coli__ck_make_group(ck, twice, 4, n_row, x));
    coli__ck_run(ck, coli__ck_make_group(ck, again, 2, n_row, x));
    coli__ck_free(ck, a);
    coli__ck_free(ck, b);
}

/* A refusal leaves nothing pending, and the next group works. */
static void refuse(coli__ck *ck, const coli_bk_group *args, const char *of_what)
{
    coli__ck_hint(ck, of_what);
    CK_REFUSED(ck, of_what, group_issue, ck->dev, args);
    want_empty(ck, "after a group that was refused");
}

void coli__ck_refused_groups(coli__ck *ck)
{
    const uint32_t format = coli__ck_format(ck, 0);
    coli__ck_tensor *t[2] = {some_expert(ck), some_expert(ck)};
    coli__ck_tensor *wider = coli__ck_expert(ck, format, format, D, 2 * F);
    coli__ck_tensor *w = coli__ck_upload(ck, coli__ck_matrix_block(ck, format, F, D));
    static const uint32_t n_row[2] = {2, 3};
    const coli__ck_group *g = coli__ck_make_group(ck, t, 2, n_row, some_rows(ck, t[0], 4));

    coli_bk_tensor *handles[2] = {t[0]->handle, wider->handle};
    coli_bk_group bad = g->args;
    bad.experts = handles;
    refuse(ck, &bad, "experts of two shapes in one group");
    handles[1] = w->handle;
    refuse(ck, &bad, "a group with a matrix where an expert is expected");
    handles[1] = NULL;
    refuse(ck, &bad, "a group with NULL where an expert is expected");

    bad = g->args;
    bad.group = 96 - bad.group;
    refuse(ck, &bad, "activations in groups of another size than the experts'");
    bad = g->args;
    bad.n_group++;
    refuse(ck, &bad, "activations with a group too many");
    bad = g->args;
    uint32_t row[5] = {0, 1, 0, bad.n_x, 1};
    bad.row = row;
    refuse(ck, &bad, "a group with a row beyond n_x");

    coli__ck_hint(ck, NULL);
    coli__ck_run(ck, g);
    free_all(ck, t, 2);
    coli__ck_free(ck, wider);
    coli__ck_free(ck, w);
}

void coli__ck_formats(coli__ck *ck)
{
    uint32_t n_refused = 0;
    for (uint32_t f = 0; f < COLI_BK_N_FORMAT; f++) {
        if (ck->info.formats >> f & 1u) continue; // family numbers has tried it
        coli_bk_tensor *handle = NULL;
        const coli_bk_source matrix = coli__ck_matrix_block(ck, f, 16, 64),
                             expert = coli__ck_expert_block(ck, f, f, 64, 64);
        CK_REFUSED(ck, coli__ck_format_name(f), tensor_upload, ck->dev, &matrix, &handle);
        CK_REFUSED(ck, coli__ck_format_name(f), tensor_upload, ck->dev, &expert, &handle);
        n_refused++;
    }
    if (n_refused == 0) coli__ck_skip(ck, "the device declares all formats");
}

/* ---- copies and products between issue and take ---------------------------------------------------- */

void coli__ck_product_between(coli__ck *ck)
{
    if (!ck->api.matmul) {
        coli__ck_skip(ck, "the plugin has no matmul");
        return;
    }
    coli__ck_tensor *t = some_expert(ck);
    coli__ck_tensor *w =
        coli__ck_upload(ck, coli__ck_matrix_block(ck, coli__ck_format(ck, 0), 33, D));
    const coli__ck_group *g = small_group(ck, &t);
    coli__ck_product *p = coli__ck_make_product(ck, w, some_rows(ck, w, 9));
    for (uint32_t i = 0; i < 20; i++) {
        CK_OK(ck, group_issue, ck->dev, &g->args);
        memset(p->args.y, 0xA5, p->args.n_row * p->args.ld * sizeof(float));
        coli__ck_product_run(ck, p);
        const coli_bk_result r = coli__ck_take(ck);
        coli__ck_right(ck, g, &r);
    }
    coli__ck_free(ck, t);
    coli__ck_free(ck, w);
}

/* The copy sequence's part: a slot of its own comes, changes and goes. */
static void copies(coli__ck *ck, void *ctx)
{
    coli_bk_source *blocks = ctx;
    coli_bk_tensor *handle = NULL;
    CK_OK(ck, tensor_upload, ck->dev, &blocks[0], &handle);
    if (ck->api.tensor_overwrite) CK_OK(ck, tensor_overwrite, ck->dev, handle, &blocks[1]);
    CK_VOID(ck, tensor_free, ck->dev, handle);
}

void coli__ck_copy_between(coli__ck *ck)
{
    coli__ck_tensor *t = some_expert(ck);
    const coli__ck_group *g = small_group(ck, &t);
    const uint32_t format = coli__ck_format(ck, 0);
    coli_bk_source blocks[2] = {coli__ck_expert_block(ck, format, format, D, F),
                                coli__ck_expert_block(ck, format, format, D, F)};
    void (*const copy)(coli__ck *, void *) = copies;
    for (uint32_t i = 0; i < 20; i++) {
        CK_OK(ck, group_issue, ck->dev, &g->args);
        coli__ck_threads(ck, 1, &copy, blocks);
        const coli_bk_result r = coli__ck_take(ck);
        coli__ck_right(ck, g, &r);
    }
    coli__ck_free(ck, t);
}

/* ---- joins ------------------------------------------------------------------------------------------ */

/* Give a group joins over some of its pairs, in random order, and weights. */
static void add_joins(coli__ck *ck, coli__ck_group *g, uint32_t n_join, uint32_t n_term)
{
    coli_bk_join *joins = coli__ck_new(ck, n_join, sizeof *joins);
    uint32_t *pairs = coli__ck_new(ck, g->n_pair, sizeof *pairs);
    float *weights = coli__ck_new(ck, g->n_pair, sizeof *weights);
    for (uint32_t p = 0; p < g->n_pair; p++) pairs[p] = p;
    for (uint32_t p = g->n_pair; p > 1; p--) {
        const uint32_t other = random_below(ck, p), swapped = pairs[p - 1];
        pairs[p - 1] = pairs[other];
        pairs[other] = swapped;
    }
    for (uint32_t t = 0; t < n_term; t++)
        weights[t] = 0.0625f + (float)random_below(ck, 1 << 20) * 0x1p-20f;
    for (uint32_t j = 0; j < n_join; j++) {
        joins[j].first_term = j * n_term / n_join;
        joins[j].n_term = (j + 1) * n_term / n_join - joins[j].first_term;
    }
    g->args.n_join = n_join;
    g->args.n_term = n_term;
    g->args.joins = joins;
    g->args.term_pair = pairs;
    g->args.term_weight = weights;
}

void coli__ck_joins(coli__ck *ck)
{
    coli__ck_tensor *t[6];
    for (uint32_t i = 0; i < 6; i++) t[i] = some_expert(ck);
    const coli__ck_rows *x = some_rows(ck, t[0], 8);
    static const uint32_t n_row[6] = {4, 2, 0, 5, 8, 1}; // 20 pairs
    coli__ck_group *g = coli__ck_make_group(ck, t, 6, n_row, x);
    if (ck->info.flags & COLI_BK_CAN_JOIN) {
        static const uint32_t n[][2] = {{1, 1}, {1, 20}, {4, 20}, {3, 8}, {5, 3}, {20, 20}};
        for (uint32_t i = 0; i < sizeof n / sizeof *n; i++) { // {5, 3}: some joins have no term
            add_joins(ck, g, n[i][0], n[i][1]);
            coli__ck_run(ck, g);
        }
        add_joins(ck, g, 2, 4);
        ((uint32_t *)(uintptr_t)g->args.term_pair)[1] = g->n_pair;
        refuse(ck, &g->args, "a join of a pair that the group does not have");
        add_joins(ck, g, 2, 4);
        ((coli_bk_join *)(uintptr_t)g->args.joins)[1].n_term = 3;
        refuse(ck, &g->args, "a join with terms beyond n_term");
    } else {
        add_joins(ck, g, 2, 4);
        refuse(ck, &g->args, "joins on a device without COLI_BK_CAN_JOIN");
    }
    free_all(ck, t, 6);
}
