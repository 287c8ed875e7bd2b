/* threads_test.c - every item runs exactly once, results are visible when run returns, sleepers
 * wake, and a pool can be torn down in any state. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "t.h"

#include "libcoli/src/base/threads.h"

enum { N_ITEM = 1000 };

typedef struct tally {
    atomic_uint n_of[N_ITEM];
    uint32_t plain[N_ITEM]; // not atomic: run must order it
    uint32_t n_worker;
} tally;

static void count(void *ctx, uint32_t item, uint32_t worker)
{
    tally *t = ctx;
    T_TRUE(worker < t->n_worker);
    atomic_fetch_add(&t->n_of[item], 1);
    t->plain[item]++;
}

T_PROP(every_item_once, 60)
{
    tally *t = calloc(1, sizeof *t);
    coli__pool *pool;
    t->n_worker = t_range(&rng, 1, 6);
    T_OK(coli__pool_create(t->n_worker, &pool));
    T_EQ(coli__pool_n_worker(pool), t->n_worker);
    uint32_t want[N_ITEM] = {0};
    for (int round = 0; round < 50; round++) {
        const uint32_t n = t_below(&rng, 8) ? t_below(&rng, 20) : t_below(&rng, N_ITEM);
        if (t_below(&rng, 25) == 0) { // long enough for the workers to fall asleep
            const struct timespec pause = {.tv_nsec = 3000000};
            nanosleep(&pause, NULL);
        }
        coli__pool_run(pool, n, count, t);
        for (uint32_t i = 0; i < n; i++) want[i]++;
        T_MEM(t->plain, want, sizeof want);
    }
    for (uint32_t i = 0; i < N_ITEM; i++) T_EQ(atomic_load(&t->n_of[i]), want[i]);
    coli__pool_destroy(pool);
    free(t);
}

static void count_range(void *ctx, uint32_t first, uint32_t end, uint32_t worker)
{
    T_LE(first + 1, end);
    for (uint32_t i = first; i < end; i++) count(ctx, i, worker);
}

T_PROP(ranges_are_the_items, 60)
{
    tally *t = calloc(1, sizeof *t);
    coli__pool *pool;
    t->n_worker = t_range(&rng, 1, 6);
    T_OK(coli__pool_create(t->n_worker, &pool));
    uint32_t want[N_ITEM] = {0};
    for (int round = 0; round < 50; round++) {
        const uint32_t n = t_below(&rng, N_ITEM);
        const uint64_t n_sync = coli__pool_n_sync(pool);
        coli__pool_run_ranges(pool, n, count_range, t);
        T_EQ(coli__pool_n_sync(pool) - n_sync, n > 1);
        for (uint32_t i = 0; i < n; i++) want[i]++;
        T_MEM(t->plain, want, sizeof want);
    }
    coli__pool_destroy(pool);
    free(t);
}

T_TEST(limits)
{
    T_BEGIN;
    coli__pool *pool;
    T_FAILS(coli__pool_create(100000, &pool), COLI_E_INVALID, "at most");
    T_TRUE(pool == NULL);
    T_OK(coli__pool_create(0, &pool));
    T_EQ(coli__pool_n_worker(pool), coli__n_processor());
    coli__pool_destroy(pool);
    coli__pool_destroy(NULL);
}

static void nothing(void *ctx, uint32_t item, uint32_t worker)
{
    (void)ctx, (void)item, (void)worker;
}

T_TEST(synchronisations_are_counted)
{
    T_BEGIN;
    for (uint32_t n_thread = 1; n_thread <= 3; n_thread++) {
        coli__pool *pool;
        T_OK(coli__pool_create(n_thread, &pool));
        for (uint32_t n = 0; n < 4; n++) coli__pool_run(pool, n, nothing, NULL);
        T_EQ(coli__pool_n_sync(pool), 2); // none for 0 and 1 items
        coli__pool_destroy(pool);
    }
}

static void note_mask(void *ctx, uint32_t item, uint32_t worker)
{
    (void)item;
    sigset_t *masks = ctx;
    pthread_sigmask(SIG_SETMASK, NULL, &masks[worker]);
    const struct timespec pause = {.tv_nsec = 2000000}; // long enough for every worker to get one
    nanosleep(&pause, NULL);
}

T_TEST(workers_take_no_signals)
{
    T_BEGIN;
    coli__pool *pool;
    T_OK(coli__pool_create(3, &pool));
    sigset_t masks[3];
    memset(masks, 0xff, sizeof masks);
    coli__pool_run(pool, 12, note_mask, masks);
    T_TRUE(!sigismember(&masks[0], SIGINT)); // the caller's own mask is as it was
    T_TRUE(sigismember(&masks[1], SIGINT) && sigismember(&masks[2], SIGTERM));
    coli__pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_once), cmocka_unit_test(ranges_are_the_items),
        cmocka_unit_test(limits), cmocka_unit_test(synchronisations_are_counted),
        cmocka_unit_test(workers_take_no_signals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
