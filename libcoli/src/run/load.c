/* load.c - the dense weights into memory, before a token waits for them.
 *
 * The container is mapped, so a page of it comes from the disk when it is first used, and stands in a
 * small page.  Who listens to how far it is, as the programs do that make tokens, has the trunk read now.
 * Who does not gets a model that is mapped and not read: it may be that he only wants to know what it is.
 *
 * Huge pages.  Every token reads the whole trunk once, from end to end, and a processor that finds 4 KiB
 * at a time spends part of that on finding them, and begins to read ahead anew in each.  So the trunk is
 * copied into huge pages, which takes the place of its part of the mapping: addresses stay, and nobody
 * needs to know.  Not so
 *
 *     the embedding   of which a token reads one row, unless it is the head as well
 *     experts         they are most of the file; a copy could not be thrown out and read again when
 *                     memory is short, as pages of a file can
 *
 * A copy is for who has the trunk read, or asks for it.  The system has to have huge pages, and twice the trunk should be free: the copy and, for a
 * moment, what it is made of.  Afterwards the file's own pages are only cache.  So the trunk is counted
 * once in every budget (model.c), copied or not. */
#include "../base/memory.h"
#include "model.h"

enum { PIECE = 32 << 20, SMALL = 64 << 20 };

typedef struct load {
    coli_model *m;
    const coli_model_opts *o;
    bool copies;
    uint64_t done, total;
} load;

/* Up to an address that is a multiple of PIECE, and so of a huge page. */
static uint64_t piece_bytes(const uint8_t *at, uint64_t n_left)
{
    const uint64_t n = PIECE - (uintptr_t)at % PIECE;
    return n < n_left ? n : n_left;
}

static coli_status load_span(load *l, const uint8_t *at, uint64_t n_bytes, bool copies)
{
    for (uint64_t n; n_bytes > 0; at += n, n_bytes -= n) {
        n = piece_bytes(at, n_bytes);
        coli__pages_bring(at, n);
        uint64_t n_copied = 0;
        if (copies) COLI_TRY(coli__pages_copy_huge(at, n, &n_copied));
        l->m->huge_bytes += n_copied;
        l->done += n;
        if (l->o->progress && !l->o->progress(l->o->user, "reading the trunk", l->done, l->total))
            return coli__fail(COLI_E_CANCELLED, "reading the trunk was stopped");
    }
    return COLI_OK;
}

/* Tensors that stand side by side in the file are one span: most are smaller than a huge page.  From
 * tensor i on: the first behind it, and its bytes with those that alignment left between them. */
static uint32_t span_from(const coli_model *m, uint32_t i, uint64_t *n_bytes)
{
    enum { GAP = 64 }; // the most that alignment leaves between two
    const coli__container *c = m->container;
    const uint32_t n = coli__container_n_tensor(c);
    const coli__ct_tensor *first = coli__container_tensor(c, i);
    *n_bytes = first->n_bytes;
    for (i++; i < n; i++) {
        const coli__ct_tensor *t = coli__container_tensor(c, i);
        const uintptr_t end = (uintptr_t)first->mat.data + *n_bytes, at = (uintptr_t)t->mat.data;
        if (at < end || at - end > GAP || (first == m->embedding) != (t == m->embedding)) break;
        *n_bytes = at - (uintptr_t)first->mat.data + t->n_bytes;
    }
    return i;
}

static coli_status load_all(load *l)
{
    const coli__container *c = l->m->container;
    const uint32_t n = coli__container_n_tensor(c);
    uint64_t n_bytes;
    for (uint32_t i = 0; i < n; l->total += n_bytes) i = span_from(l->m, i, &n_bytes);
    for (uint32_t i = 0, next; i < n; i = next) {
        const coli__ct_tensor *first = coli__container_tensor(c, i);
        next = span_from(l->m, i, &n_bytes);
        COLI_TRY(load_span(l, first->mat.data, n_bytes, l->copies && first != l->m->embedding));
    }
    return COLI_OK;
}

static bool wants_copy(const coli_model *m, const coli_model_opts *o, uint64_t trunk_bytes)
{
    if (o->huge_pages == COLI_HUGE_OFF || !coli__pages_can_be_huge()) return false;
    return o->huge_pages == COLI_HUGE_ON ||
           (o->progress && trunk_bytes >= SMALL && !m->ram.is_short &&
            coli__memory_available() / 2 > trunk_bytes);
}

coli_status coli__model_load_trunk(coli_model *m, const coli_model_opts *o)
{
    const uint64_t trunk_bytes = coli__model_trunk_bytes(m->container);
    load l = {.m = m, .o = o, .copies = wants_copy(m, o, trunk_bytes)};
    const bool is_heard = o->progress && trunk_bytes >= SMALL; // less is not worth a word
    return l.copies || is_heard ? load_all(&l) : COLI_OK;
}
