/* lane_test.c - a job on another thread, and those who wait for it no longer than they want. */
#include "t.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "libcoli/src/base/alloc.h"
#include "libcoli/src/base/lane.h"
#include "libcoli/src/base/threads.h"

static const uint64_t SECOND = 1000000000u;

static void add_one(void *ctx)
{
    ++*(uint64_t *)ctx;
}

T_TEST(jobs_follow_each_other)
{
    T_BEGIN;
    coli__lane *lane;
    T_OK(coli__lane_create("test", &lane));
    T_TRUE(coli__lane_wait(lane, 0)); // idle
    uint64_t n = 0;
    for (int i = 0; i < 2000; i++) {
        coli__lane_start(lane, add_one, &n);
        T_TRUE(coli__lane_wait(lane, 10 * SECOND));
        T_EQ(n, i + 1);
        if (i % 500 == 0) usleep(3000); // long enough for both sides to sleep
    }
    T_TRUE(coli__lane_destroy(lane));
}

typedef struct gate {
    atomic_bool open, passed;
} gate;

static void pass(void *ctx)
{
    gate *g = ctx;
    while (!atomic_load(&g->open)) usleep(200);
    atomic_store(&g->passed, true);
}

T_TEST(waiting_has_a_limit)
{
    T_BEGIN;
    coli__lane *lane;
    T_OK(coli__lane_create("test", &lane));
    gate g = {false, false};
    coli__lane_start(lane, pass, &g);
    const uint64_t start = coli__clock_ns();
    T_TRUE(!coli__lane_wait(lane, SECOND / 20));
    T_GE(coli__clock_ns() - start, SECOND / 20);
    atomic_store(&g.open, true);
    T_TRUE(coli__lane_wait(lane, 10 * SECOND));
    T_TRUE(atomic_load(&g.passed));
    T_TRUE(coli__lane_destroy(lane));
}

static void *wait_too(void *ctx)
{
    return coli__lane_wait(ctx, 10 * SECOND) ? ctx : NULL;
}

T_TEST(several_may_wait)
{
    T_BEGIN;
    coli__lane *lane;
    T_OK(coli__lane_create("test", &lane));
    gate g = {false, false};
    coli__lane_start(lane, pass, &g);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) T_EQ(pthread_create(&threads[i], NULL, wait_too, lane), 0);
    usleep(2000);
    atomic_store(&g.open, true);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        T_TRUE(result == lane);
    }
    T_TRUE(coli__lane_destroy(lane));
}

T_TEST(a_job_that_hangs_is_left_behind)
{
    T_BEGIN;
    static gate g; // the job may outlive this test
    coli__lane *lane;
    T_OK(coli__lane_create("test", &lane));
    coli__lane_start(lane, pass, &g);
    const uint64_t start = coli__clock_ns();
    T_TRUE(!coli__lane_destroy(lane));
    T_LE(coli__clock_ns() - start, SECOND);
    atomic_store(&g.open, true); // the thread ends by itself
    while (!atomic_load(&g.passed)) usleep(200);
    usleep(20000);
}

T_TEST(no_memory)
{
    T_BEGIN;
    coli__lane *lane;
    coli__alloc_fail_at(1);
    T_FAILS(coli__lane_create("test", &lane), COLI_E_NOMEM, "memory");
    coli__alloc_fail_at(0);
    T_TRUE(lane == NULL);
    T_TRUE(coli__lane_destroy(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_follow_each_other), cmocka_unit_test(waiting_has_a_limit),
        cmocka_unit_test(several_may_wait), cmocka_unit_test(a_job_that_hangs_is_left_behind),
        cmocka_unit_test(no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
