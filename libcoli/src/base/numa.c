/* numa.c - see numa.h: what does not ask the system. */
#include "numa.h"

#include <string.h>

uint32_t coli__bits_count(const coli__bits *b)
{
    uint32_t n = 0;
    for (size_t i = 0; i < COLI__MAX_BIT / 64; i++)
        n += (uint32_t)__builtin_popcountll(b->words[i]);
    return n;
}

/* Digits at *at; false when there are none, or too large a number. */
static bool take_number(const char **at, uint32_t *out)
{
    const char *begin = *at;
    *out = 0;
    for (; **at >= '0' && **at <= '9'; ++*at) {
        *out = *out * 10 + (uint32_t)(**at - '0');
        if (*out >= COLI__MAX_BIT) return false;
    }
    return *at > begin;
}

bool coli__bits_parse(const char *text, coli__bits *out)
{
    *out = (coli__bits){0};
    const char *at = text;
    if (*at == '\n') at++;
    while (*at) {
        uint32_t first, last;
        if (!take_number(&at, &first)) return false;
        last = first;
        if (*at == '-' && (at++, !take_number(&at, &last))) return false;
        if (last < first) return false;
        for (uint32_t i = first; i <= last; i++) coli__bits_add(out, i);
        if (*at == '\n' && at[1] == 0) break;
        if (*at && (*at != ',' || at[1] == 0)) return false;
        if (*at) at++;
    }
    return true;
}

void coli__numa_choose(const coli__numa *all, const coli__bits *ours, coli__numa *out)
{
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < all->n_node; i++) {
        coli__bits cpus;
        for (size_t w = 0; w < COLI__MAX_BIT / 64; w++)
            cpus.words[w] = all->cpus[i].words[w] & ours->words[w];
        if (coli__bits_count(&cpus) == 0) continue;
        out->ids[out->n_node] = all->ids[i];
        out->cpus[out->n_node++] = cpus;
    }
    if (out->n_node == 1) out->n_node = 0;
}

uint32_t coli__numa_node_of(const coli__numa *numa, uint32_t worker, uint32_t n_worker)
{
    uint64_t n_all = 0, n = 0;
    for (uint32_t i = 0; i < numa->n_node; i++) n_all += coli__bits_count(&numa->cpus[i]);
    for (uint32_t i = 0; i < numa->n_node; i++) { // the middle of the worker's share decides
        n += coli__bits_count(&numa->cpus[i]);
        if ((2 * (uint64_t)worker + 1) * n_all < 2 * n * n_worker) return i;
    }
    return numa->n_node - 1;
}
