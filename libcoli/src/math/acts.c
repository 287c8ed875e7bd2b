/* acts.c - see acts.h. */
#include "acts.h"

#include "../base/alloc.h"

uint32_t coli__form_of(coli__wfmt fmt)
{
    if (!coli__wfmt_is_quant(fmt)) return COLI_FORM_F32;
    return fmt.group == 32 ? COLI_FORM_Q32 : COLI_FORM_Q64;
}

static coli_status init_q(coli__qrows *q, uint32_t n_tok, uint32_t n_in, uint32_t group)
{
    q->group = group;
    q->n_group = (n_in + group - 1) / group;
    const size_t n = (size_t)n_tok * q->n_group;
    q->q = coli__alloc64(n * group);
    q->d = coli__alloc64(n * sizeof *q->d);
    q->sum = coli__alloc64(n * sizeof *q->sum);
    return q->q && q->d && q->sum ? COLI_OK : COLI_E_NOMEM;
}

coli_status coli__acts_init(coli__acts *a, uint32_t n_tok, uint32_t n_in, uint32_t forms)
{
    *a = (coli__acts){.n_in = n_in, .ld = ((size_t)n_in + 15) & ~(size_t)15};
    coli_status status = COLI_OK;
    if (forms & COLI_FORM_F32) {
        a->f = coli__alloc64((size_t)n_tok * a->ld * sizeof(float));
        if (!a->f) status = COLI_E_NOMEM;
    }
    if (status == COLI_OK && (forms & COLI_FORM_Q64)) status = init_q(&a->q64, n_tok, n_in, 64);
    if (status == COLI_OK && (forms & COLI_FORM_Q32)) status = init_q(&a->q32, n_tok, n_in, 32);
    if (status != COLI_OK) coli__acts_finish(a);
    return status;
}

static uint64_t q_bytes(uint32_t n_tok, uint32_t n_in, uint32_t group)
{
    const coli__qrows *q = NULL; // for the sizes of its numbers
    const uint64_t n_group = ((uint64_t)n_in + group - 1) / group;
    return n_tok * n_group * (group * sizeof *q->q + sizeof *q->d + sizeof *q->sum);
}

uint64_t coli__acts_bytes(uint32_t n_tok, uint32_t n_in, uint32_t forms)
{
    const uint64_t ld = ((uint64_t)n_in + 15) & ~(uint64_t)15;
    return (forms & COLI_FORM_F32 ? n_tok * ld * sizeof(float) : 0) +
           (forms & COLI_FORM_Q64 ? q_bytes(n_tok, n_in, 64) : 0) +
           (forms & COLI_FORM_Q32 ? q_bytes(n_tok, n_in, 32) : 0);
}

static void finish_q(coli__qrows *q)
{
    coli__free_aligned(q->q);
    coli__free_aligned(q->d);
    coli__free_aligned(q->sum);
}

void coli__acts_finish(coli__acts *a)
{
    coli__free_aligned(a->f);
    finish_q(&a->q64);
    finish_q(&a->q32);
    *a = (coli__acts){0};
}

static bool quantise_into(const coli__qrows *q, const coli__kernels *k, uint32_t t, uint32_t first,
                          uint32_t n, const float *x)
{
    if (!q->q) return true;
    const size_t at = (size_t)t * q->n_group + first / q->group;
    return k->quantise(x, n, q->group, q->q + at * q->group, q->d + at, q->sum + at);
}

bool coli__acts_quantise(coli__acts *a, const coli__kernels *k, uint32_t t, uint32_t first,
                         uint32_t n, const float *x)
{
    const bool ok64 = quantise_into(&a->q64, k, t, first, n, x);
    const bool ok32 = quantise_into(&a->q32, k, t, first, n, x);
    return ok64 && ok32;
}

static void skip_q(coli__qrows *q, uint32_t n)
{
    if (!q->q) return;
    const size_t n_group = (size_t)n * q->n_group;
    q->q += n_group * q->group;
    q->d += n_group;
    q->sum += n_group;
}

void coli__acts_skip(coli__acts *a, uint32_t n)
{
    if (a->f) a->f += n * a->ld;
    skip_q(&a->q64, n);
    skip_q(&a->q32, n);
}

void coli__acts_bind(const coli__acts *a, coli__matmul_args *args)
{
    switch (coli__form_of(args->w->fmt)) {
    case COLI_FORM_Q64:
        args->xq = &a->q64;
        break;
    case COLI_FORM_Q32:
        args->xq = &a->q32;
        break;
    default:
        args->xf = a->f;
        args->ldx = a->ld;
    }
}
