/* bench_pages.c - what huge pages for the dense weights are worth, and what they cost.
 *
 *     bench_pages MODEL [pairs]        MODEL: coli synth --layers 4 MODEL
 *
 * The machine's speed changes by the minute, so the model is opened twice in one process, once with
 * --huge-pages on and once with off, and the same eight tokens are decoded by one and by the other, the
 * first of each pair in turns.  Of every pair the ratio is taken; medians of those and of the times. */
#include <stdio.h>
#include <stdlib.h>

#include "coli/coli.h"
#include "libcoli/src/base/threads.h"

enum { N_TOKEN = 8, MAX_PAIR = 10000, N_OPEN = 5 };

static void must(coli_status status)
{
    if (status == COLI_OK) return;
    fprintf(stderr, "%s\n", coli_error_message());
    exit(1);
}

/* Somebody has to listen, or the trunk is read when it is first used. */
static bool listen_to(void *user, const char *what, uint64_t done, uint64_t total)
{
    (void)user, (void)what, (void)done, (void)total;
    return true;
}

static coli_model *open_with(const char *dir, coli_huge huge, double *ms)
{
    coli_model *m;
    const coli_model_opts opts = {
        .struct_size = sizeof opts, .backend = "none", .progress = listen_to, .huge_pages = huge};
    const uint64_t start_ns = coli__clock_ns();
    must(coli_model_open(dir, &opts, &m));
    *ms = 1e-6 * (double)(coli__clock_ns() - start_ns);
    return m;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *what, double *x, uint32_t n)
{
    qsort(x, n, sizeof *x, by_value);
    printf("%-28s %8.3f   (quartiles %.3f and %.3f, best %.3f)\n", what, x[n / 2], x[n / 4],
           x[3 * n / 4], x[0]);
}

static double decode(coli_session *s, uint32_t n_vocab, uint64_t seed) // milliseconds per token
{
    const uint64_t start_ns = coli__clock_ns();
    for (uint32_t i = 0; i < N_TOKEN; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const int32_t id = (int32_t)((seed >> 33) % n_vocab);
        must(coli_session_feed(s, &id, 1));
    }
    return 1e-6 * (double)(coli__clock_ns() - start_ns) / N_TOKEN;
}

static void opening(const char *dir)
{
    double ms[2][N_OPEN];
    for (uint32_t i = 0; i < N_OPEN; i++)
        for (uint32_t k = 0; k < 2; k++)
            coli_model_close(open_with(dir, k ? COLI_HUGE_OFF : COLI_HUGE_ON, &ms[k][i]));
    report("opening, huge: ms", ms[0], N_OPEN);
    report("opening, small: ms", ms[1], N_OPEN);
}

static void decoding(const char *dir, uint32_t n_pair)
{
    static double ms[2][MAX_PAIR], ratio[MAX_PAIR];
    coli_model *m[2];
    coli_session *s[2];
    coli_model_info info = {.struct_size = sizeof info};
    for (uint32_t k = 0; k < 2; k++) {
        const coli_session_opts opts = {.struct_size = sizeof opts, .n_ctx = 256};
        double unused;
        m[k] = open_with(dir, k ? COLI_HUGE_OFF : COLI_HUGE_ON, &unused);
        must(coli_session_create(m[k], &opts, &s[k]));
    }
    must(coli_model_get_info(m[0], &info));
    for (uint32_t i = 0; i <= n_pair; i++) {
        for (uint32_t turn = 0; turn < 2; turn++) {
            const uint32_t k = (i + turn) % 2;
            coli_session_reset(s[k]);
            const double t = decode(s[k], info.n_token, i);
            if (i > 0) ms[k][i - 1] = t; // the first pair brings the experts into memory
        }
        if (i > 0) ratio[i - 1] = ms[1][i - 1] / ms[0][i - 1];
    }
    report("a token, huge: ms", ms[0], n_pair);
    report("a token, small: ms", ms[1], n_pair);
    report("small over huge", ratio, n_pair);
    for (uint32_t k = 0; k < 2; k++) {
        coli_session_destroy(s[k]);
        coli_model_close(m[k]);
    }
}

int main(int argc, char **argv)
{
    const unsigned long n = argc > 2 ? strtoul(argv[2], NULL, 10) : 100;
    if (argc < 2 || n < 1 || n > MAX_PAIR) {
        fprintf(stderr, "usage: bench_pages MODEL [pairs]\n");
        return 2;
    }
    opening(argv[1]);
    decoding(argv[1], (uint32_t)n);
    return 0;
}
