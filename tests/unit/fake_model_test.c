/* fake_model_test.c - the simulated clock on worked examples, and what holds for any calls. */
#include "t.h"

#include "fake_model.h"

/* link 1 GB/s: a byte is a nanosecond; bw 10 GB/s. */
static const fake_speed speed = {.link_bytes_per_s = 1000000000,
                                 .bw_bytes_per_s = 10000000000,
                                 .latency_ns = 10000,
                                 .kernel_ns = 5000,
                                 .slow = 1};
static const fake_work work = {
    .in_bytes = 10000, .n_launch = 2, .weight_bytes = 200000, .out_bytes = 20000};

static fake_model new_model(uint64_t slow)
{
    fake_model m;
    fake_speed s = speed;
    s.slow = slow;
    fake_model_init(&m, s);
    return m;
}

#define T_US(ns, us) T_EQ((ns), (us)*1000)

T_TEST(an_upload_waits)
{
    T_BEGIN;
    fake_model m = new_model(1);
    T_US(fake_model_upload(&m, 100000, true), 110);
    T_US(m.now_ns, 110);
    T_US(fake_model_upload(&m, 0, true), 10);
    T_US(m.now_ns, 120);
    T_US(m.upload_ns, 120);
}

/* Each part has a latency of its own; equal bytes take as long. */
T_TEST(an_upload_in_parts)
{
    T_BEGIN;
    fake_model m = new_model(1);
    T_US(fake_model_upload_parts(&m, 100000, 1, true), 110);
    T_US(fake_model_upload_parts(&m, 100000, 4, true), 140);
    T_US(m.now_ns, 250);
    T_EQ(fake_model_upload_parts(&m, 100001, 4, false), 140001); // behind nothing
    T_EQ(fake_model_upload_parts(&m, 100000, 4, false), 280001); // behind that
    T_US(m.now_ns, 250);
}

/* While the host is busy with something else the copy engine goes on: what waits behind an upload at
 * once does not wait when there was enough to do. */
T_TEST(a_busy_host_hides_copies)
{
    T_BEGIN;
    fake_model m = new_model(1);
    fake_model_upload(&m, 100000, false); // 0..110
    fake_model_host(&m, 110000);
    fake_model_issue(&m, work); // in 110..130, kernels ..160
    fake_model_host(&m, 20000);
    T_US(fake_model_take(&m), 60); // out 160..190, from 130
    T_US(m.to_device_ns, 20);
}

T_TEST(a_slow_device_is_slow_with_uploads_alone)
{
    T_BEGIN;
    fake_model m = new_model(100);
    T_US(fake_model_upload(&m, 100000, true), 11000);
    T_US(fake_model_matmul(&m, work), 20 + 30 + 30);
}

/* The drawing in fake_model.h. */
T_TEST(a_group_behind_an_overwrite)
{
    T_BEGIN;
    fake_model m = new_model(1);
    T_US(fake_model_upload(&m, 100000, false), 110);
    T_US(m.now_ns, 0);
    fake_model_issue(&m, work);
    T_US(m.now_ns, 0);
    T_US(fake_model_take(&m), 190);
    T_US(m.now_ns, 190);
    T_US(m.upload_ns, 110);
    T_US(m.to_device_ns, 130);
    T_US(m.kernel_ns, 30);
    T_US(m.to_host_ns, 30);
}

/* An overwrite that is started while the kernels run goes before the result, if the engine is free;
 * one that is started when the result is ready goes behind it. */
T_TEST(the_engine_takes_what_is_ready_first)
{
    T_BEGIN;
    fake_model m = new_model(1);
    fake_model_issue(&m, work);                   // in 0..20, kernels 20..50
    T_US(fake_model_upload(&m, 5000, false), 35); // 20..35
    T_US(fake_model_take(&m), 80);                // out 50..80
    T_US(m.to_host_ns, 30);

    m = new_model(1);
    fake_model_issue(&m, work);
    T_US(fake_model_upload(&m, 100000, false), 130);            // 20..130
    T_US(fake_model_upload(&m, 100000, false), 130 + 30 + 110); // behind the result, ready at 50
    T_US(fake_model_take(&m), 160);
    T_US(m.to_host_ns, 110); // 80 of them waiting
    T_US(m.now_ns, 160);
    T_US(m.copy_ns, 270);
}

/* A product between issue and take waits for the group's kernels, and the result for nobody. */
T_TEST(a_product_inside_a_group)
{
    T_BEGIN;
    fake_model m = new_model(1);
    fake_model_issue(&m, work); // in 0..20, kernels 20..50
    // in 20..40, kernels 50..80, out behind the group's 50..80: 80..110
    T_US(fake_model_matmul(&m, work), 110);
    T_US(m.kernel_ns, 30 + 40);
    T_US(fake_model_take(&m), 0);
    T_US(m.now_ns, 110);
}

T_TEST(large_numbers_stay_finite)
{
    T_BEGIN;
    fake_model m;
    fake_model_init(&m, (fake_speed){.link_bytes_per_s = 1,
                                     .bw_bytes_per_s = 1,
                                     .latency_ns = INT64_MAX,
                                     .kernel_ns = INT64_MAX,
                                     .slow = 1000000});
    fake_model_upload(&m, UINT64_MAX, true);
    T_TRUE(isfinite(m.now_ns));
}

/* The clock never goes back, the engines are never busy for longer than the time that passed, and
 * the same calls give the same times. */
T_PROP(any_calls, 2000)
{
    fake_model a = new_model(t_range(&rng, 1, 3)), b = a;
    double busy = 0;
    bool issued = false;
    for (uint32_t i = 0; i < 40; i++) {
        const double before = a.now_ns;
        const uint32_t kind = t_below(&rng, 4);
        const fake_work w = {t_below(&rng, 50000), t_below(&rng, 4), t_below(&rng, 500000),
                             t_below(&rng, 50000)};
        if (kind == 0) {
            const bool waits = t_below(&rng, 2);
            const double took = fake_model_upload(&a, w.in_bytes, waits);
            T_TRUE(took == fake_model_upload(&b, w.in_bytes, waits));
            T_FGE(took, (double)(10000 + w.in_bytes) * (double)a.speed.slow);
            busy += (double)(10000 + w.in_bytes) * (double)a.speed.slow;
        } else if (kind == 1 && !issued) {
            issued = true;
            fake_model_issue(&a, w);
            fake_model_issue(&b, w);
            busy += 20000 + (double)w.in_bytes + (double)w.out_bytes;
            T_TRUE(a.now_ns == before);
        } else if (kind == 2 && issued) {
            issued = false;
            T_FGE(fake_model_take(&a), 0);
            fake_model_take(&b);
        } else if (kind == 3) {
            T_FGE(fake_model_matmul(&a, w), 20000 + (double)w.in_bytes + (double)w.out_bytes);
            fake_model_matmul(&b, w);
            busy += 20000 + (double)w.in_bytes + (double)w.out_bytes;
        }
        T_FGE(a.now_ns, before);
    }
    if (issued) fake_model_take(&a);
    if (issued) fake_model_take(&b);
    T_FGE(a.copy_ns, busy);
    T_MEM(&a, &b, sizeof a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_upload_waits),
        cmocka_unit_test(an_upload_in_parts),
        cmocka_unit_test(a_busy_host_hides_copies),
        cmocka_unit_test(a_slow_device_is_slow_with_uploads_alone),
        cmocka_unit_test(a_group_behind_an_overwrite),
        cmocka_unit_test(the_engine_takes_what_is_ready_first),
        cmocka_unit_test(a_product_inside_a_group),
        cmocka_unit_test(large_numbers_stay_finite),
        cmocka_unit_test(any_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
