/* fake_model.h - what a real device would have cost, on a simulated clock.
 *
 * Pure: the times depend on the calls and their order alone, never on the machine that runs them.
 *
 * The device has one copy engine and one compute engine.  Every transfer takes
 *
 *     latency + bytes / link            uploads and overwrites: `slow` times that
 *
 * on the copy engine, and the kernels of a group or product take
 *
 *     launches * kernel + bytes of weights / bw
 *
 * on the compute engine.  The copy engine does one transfer at a time, in the order in which they
 * became ready: an upload or an activation when it is called for, a result when its kernels ended.
 *
 * The clock is the host's.  It stands still between calls, and in calls that only start something
 * (group_issue, tensor_overwrite_async); calls that wait (the other transfers, matmul, group_take)
 * move it to the end of what they wait for.
 *
 *     link 1 GB/s, latency 10 us, kernel 5 us, bw 10 GB/s; an overwrite of 100 kB is started, then a
 *     group: 10 kB in, 2 launches reading 200 kB, 20 kB out.  Times in us.
 *
 *     copy      |-- overwrite 0..110 --|- in 110..130 -|              |- out 160..190 -|
 *     compute                                          |- 130..160 -|
 *     clock     0 until group_take, then 190
 *     counted   upload 110, to_device 130 (20 of its own, 110 of waiting), kernel 30, to_host 30 */
#ifndef FAKE_MODEL_H
#define FAKE_MODEL_H

#include <stdbool.h>
#include <stdint.h>

typedef struct fake_speed {
    uint64_t link_bytes_per_s, bw_bytes_per_s; // not 0
    uint64_t latency_ns, kernel_ns;
    uint64_t slow;
} fake_speed;

/* Times in ns, as double: whole numbers up to 104 days, and no overflow beyond. */
typedef struct fake_model {
    fake_speed speed;
    double now_ns;               // the host's clock
    double copy_ns, compute_ns;  // until when the engines are busy
    bool has_download;           // the result of a group is not on its way yet
    double download_ready_ns;    // when its kernels end
    double download_duration_ns; // on the copy engine
    double download_end_ns;      // once it was on its way
    /* Totals, each from being ready to being done, waiting for an engine included. */
    double upload_ns, to_device_ns, kernel_ns, to_host_ns;
} fake_model;

/* One group or product. */
typedef struct fake_work {
    uint64_t in_bytes, n_launch, weight_bytes, out_bytes;
} fake_work;

void fake_model_init(fake_model *m, fake_speed speed);

/* An upload or overwrite; `waits`: the host waits for it.  Returns how long it takes from now. */
double fake_model_upload(fake_model *m, uint64_t n_bytes, bool waits);

/* The same in n_copy transfers of equal parts; the last is done when the time returned is over. */
double fake_model_upload_parts(fake_model *m, uint64_t n_bytes, uint32_t n_copy, bool waits);

/* The host is busy with something else: its clock moves. */
void fake_model_host(fake_model *m, double ns);

/* A group; at most one between issue and take. */
void fake_model_issue(fake_model *m, fake_work work);
/* Both move the clock, and return by how much. */
double fake_model_take(fake_model *m);
double fake_model_matmul(fake_model *m, fake_work work);

#endif
