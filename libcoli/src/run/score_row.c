/* score_row.c - see score_row.h. */
#include "score_row.h"

#include <math.h>
#include <string.h>

#include "coli/exact.h"

static const double REST = 0x1p-16; // what the tokens that are not itemised may have together
enum {
    N_BUCKET = 256, // of log p below the best one's, for finding the likeliest without sorting
    PER_UNIT = 4
};

coli_status coli__row_init(coli__row *row, uint32_t n_vocab)
{
    *row = (coli__row){.n_vocab = n_vocab, .mass = coli__calloc(n_vocab, sizeof *row->mass)};
    return row->mass ? COLI_OK : COLI_E_NOMEM;
}

void coli__row_finish(coli__row *row)
{
    coli__free(row->mass);
    *row = (coli__row){0};
}

float coli__row_logprob(const coli__row *row, uint32_t id)
{
    const float log_p = (float)((double)row->logits[id] - row->top - row->log_sum);
    return log_p < 0 ? log_p : 0;
}

/* As a record shows it: log p that are equal when rounded are equals. */
static uint32_t best_of(const coli__row *row)
{
    uint32_t best = 0;
    float most = coli__row_logprob(row, 0);
    for (uint32_t i = 1; i < row->n_vocab; i++) {
        const float log_p = coli__row_logprob(row, i);
        if (log_p > most) {
            most = log_p;
            best = i;
        }
    }
    return best;
}

coli_status coli__row_take(coli__row *row, const float *logits)
{
    row->logits = logits;
    row->top = -INFINITY;
    for (uint32_t i = 0; i < row->n_vocab; i++) {
        if (!isfinite(logits[i]))
            return coli__fail(COLI_E_NUMERIC, "the logit of token %u is no finite number", i);
        if ((double)logits[i] > row->top) row->top = (double)logits[i];
    }
    row->sum = 0;
    for (uint32_t i = 0; i < row->n_vocab; i++) {
        const double below = (double)logits[i] - row->top;
        row->mass[i] = below > -700 ? coli_exp_d(below) : 0; // 10^-304, the least it computes
        row->sum += row->mass[i];
    }
    row->log_sum = coli_log_d(row->sum); // of 1 to n_vocab
    row->best = best_of(row);
    return COLI_OK;
}

/* ---- bytes ---------------------------------------------------------------------------------- */

static coli_status put_varint(coli__buf *out, uint32_t x)
{
    uint8_t bytes[5];
    size_t n = 0;
    for (; x >= 0x80; x >>= 7) bytes[n++] = (uint8_t)(x | 0x80);
    bytes[n++] = (uint8_t)x;
    return coli__buf_append(out, bytes, n);
}

static coli_status put_f32(coli__buf *out, float x)
{
    const uint32_t bits = coli_bits(x);
    const uint8_t bytes[4] = {(uint8_t)bits, (uint8_t)(bits >> 8), (uint8_t)(bits >> 16),
                              (uint8_t)(bits >> 24)};
    return coli__buf_append(out, bytes, sizeof bytes);
}

/* False at the end, and for more than 32 bits. */
static bool get_varint(const uint8_t **at, const uint8_t *end, uint32_t *out)
{
    uint64_t x = 0;
    for (uint32_t shift = 0; shift < 35 && *at < end; shift += 7) {
        const uint8_t byte = *(*at)++;
        x |= (uint64_t)(byte & 0x7F) << shift;
        *out = (uint32_t)x;
        if (byte < 0x80) return x <= UINT32_MAX;
    }
    return false;
}

static bool get_f32(const uint8_t **at, const uint8_t *end, float *out)
{
    if (end - *at < 4) return false;
    const uint8_t *p = *at;
    *out = coli_from_bits((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                          (uint32_t)p[3] << 24);
    *at += 4;
    return true;
}

/* ---- records -------------------------------------------------------------------------------- */

static uint32_t bucket_of(const coli__row *row, uint32_t id)
{
    const double below = (row->top - (double)row->logits[id]) * PER_UNIT;
    return below < N_BUCKET - 1 ? (uint32_t)below : N_BUCKET - 1;
}

/* Which tokens are itemised: those in buckets before `last`, and of `last` the first `room`, the best
 * among them. */
typedef struct choice {
    uint32_t last, room, n;
} choice;

static choice choose(const coli__row *row)
{
    double mass[N_BUCKET] = {0}, rest = 0;
    uint32_t count[N_BUCKET] = {0};
    for (uint32_t i = 0; i < row->n_vocab; i++) {
        const uint32_t b = bucket_of(row, i);
        mass[b] += row->mass[i];
        count[b]++;
    }
    choice c = {.last = N_BUCKET - 1};
    while (c.last > 0 && rest + mass[c.last] <= REST * row->sum) rest += mass[c.last--];
    for (uint32_t b = 0; b < c.last; b++) {
        if (c.n + count[b] >= COLI__ROW_MOST)
            c.last = b; // and ends the loop
        else
            c.n += count[b];
    }
    c.room = COLI__ROW_MOST - c.n < count[c.last] ? COLI__ROW_MOST - c.n : count[c.last];
    c.n += c.room;
    return c;
}

/* Called for each id in turn; spends room, and keeps one for the best while it is to come. */
static bool is_chosen(const coli__row *row, uint32_t id, uint32_t last, uint32_t *room)
{
    const uint32_t b = bucket_of(row, id);
    if (b != last) return b < last;
    const bool best_to_come = id < row->best && bucket_of(row, row->best) == last;
    if (*room <= best_to_come) return false;
    --*room;
    return true;
}

static float rest_of(const coli__row *row, double mass)
{
    return (float)(mass / row->sum);
}

coli_status coli__row_record(const coli__row *row, coli__buf *out)
{
    const choice c = choose(row);
    COLI_TRY(put_varint(out, c.n));
    const size_t rest_at = out->n_bytes;
    COLI_TRY(put_f32(out, 0));
    double rest = 0;
    uint32_t room = c.room, gap = 0;
    for (uint32_t i = 0; i < row->n_vocab; i++) {
        if (!is_chosen(row, i, c.last, &room)) {
            rest += row->mass[i];
            gap++;
            continue;
        }
        COLI_TRY(put_varint(out, gap));
        COLI_TRY(put_f32(out, coli__row_logprob(row, i)));
        gap = 0;
    }
    coli__buf patch = {0};
    COLI_TRY(put_f32(&patch, rest_of(row, rest)));
    memcpy(out->data + rest_at, patch.data, patch.n_bytes);
    coli__buf_finish(&patch);
    return COLI_OK;
}

bool coli__row_check(const uint8_t **at, const uint8_t *end, uint32_t n_vocab, float *rest)
{
    uint32_t n, gap;
    float log_p;
    if (!get_varint(at, end, &n) || n == 0 || n > COLI__ROW_MOST) return false;
    if (!get_f32(at, end, rest) || !(*rest >= 0 && *rest <= 1)) return false;
    for (uint64_t next = 0; n > 0; n--, next++) {
        if (!get_varint(at, end, &gap) || !get_f32(at, end, &log_p)) return false;
        if (!(log_p <= 0) || !isfinite(log_p)) return false;
        next += gap;
        if (next >= n_vocab) return false;
    }
    return true;
}

double coli__row_compare(const coli__row *row, const uint8_t **at, const uint8_t *end,
                         bool *same_top)
{
    uint32_t n = 0, gap = 0, best = 0, next = 0;
    float rest = 0, log_p = 0, most = -INFINITY;
    double kl = 0, others = 0;
    get_varint(at, end, &n);
    get_f32(at, end, &rest);
    for (; n > 0; n--) {
        get_varint(at, end, &gap);
        get_f32(at, end, &log_p);
        for (; gap > 0; gap--) others += row->mass[next++];
        const double base = (double)log_p, model = (double)coli__row_logprob(row, next);
        if (base > -700) kl += coli_exp_d(base) * (base - model);
        if (log_p > most) {
            most = log_p;
            best = next;
        }
        next++;
    }
    while (next < row->n_vocab) others += row->mass[next++];
    const double model_rest = (double)rest_of(row, others);
    if (rest > 0x1p-126f) // smaller ones add nothing
        kl += (double)rest * (coli_log_d((double)rest) -
                              coli_log_d(model_rest > 0x1p-126 ? model_rest : 0x1p-126));
    *same_top = best == row->best;
    return kl;
}
