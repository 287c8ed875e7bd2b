/* fake_model.c - see fake_model.h. */
#include "fake_model.h"

#include <math.h>

static double later(double a, double b)
{
    return a > b ? a : b;
}

static double duration(uint64_t n_bytes, uint64_t bytes_per_s)
{
    return ceil((double)n_bytes * 1e9 / (double)bytes_per_s);
}

static double transfer_duration(const fake_model *m, uint64_t n_bytes)
{
    return (double)m->speed.latency_ns + duration(n_bytes, m->speed.link_bytes_per_s);
}

static void download(fake_model *m)
{
    m->has_download = false;
    m->copy_ns = later(m->copy_ns, m->download_ready_ns) + m->download_duration_ns;
    m->download_end_ns = m->copy_ns;
    m->to_host_ns += m->download_end_ns - m->download_ready_ns;
}

/* A transfer that is ready at some time; returns its end. */
static double transfer(fake_model *m, double ready_ns, double duration_ns)
{
    if (m->has_download && m->download_ready_ns <= later(m->copy_ns, ready_ns)) download(m);
    m->copy_ns = later(m->copy_ns, ready_ns) + duration_ns;
    return m->copy_ns;
}

/* From now to the end of the kernels. */
static double compute(fake_model *m, fake_work work)
{
    const double arrived = transfer(m, m->now_ns, transfer_duration(m, work.in_bytes));
    m->compute_ns = later(m->compute_ns, arrived) +
                    (double)work.n_launch * (double)m->speed.kernel_ns +
                    duration(work.weight_bytes, m->speed.bw_bytes_per_s);
    m->to_device_ns += arrived - m->now_ns;
    m->kernel_ns += m->compute_ns - arrived;
    return m->compute_ns;
}

static double move_clock(fake_model *m, double to_ns)
{
    const double before = m->now_ns;
    m->now_ns = later(before, to_ns);
    return m->now_ns - before;
}

void fake_model_init(fake_model *m, fake_speed speed)
{
    *m = (fake_model){.speed = speed};
}

double fake_model_upload(fake_model *m, uint64_t n_bytes, bool waits)
{
    const double took =
        transfer(m, m->now_ns, (double)m->speed.slow * transfer_duration(m, n_bytes)) - m->now_ns;
    m->upload_ns += took;
    if (waits) m->now_ns += took;
    return took;
}

double fake_model_upload_parts(fake_model *m, uint64_t n_bytes, uint32_t n_copy, bool waits)
{
    const double start = m->now_ns;
    double end = start;
    for (uint32_t i = 0; i < n_copy; i++) {
        const uint64_t part = n_bytes / n_copy + (i < n_bytes % n_copy);
        const double took = fake_model_upload(m, part, waits);
        end = waits ? m->now_ns : m->now_ns + took;
    }
    return end - start;
}

void fake_model_host(fake_model *m, double ns)
{
    m->now_ns += ns;
}

void fake_model_issue(fake_model *m, fake_work work)
{
    m->download_ready_ns = compute(m, work);
    m->download_duration_ns = transfer_duration(m, work.out_bytes);
    m->has_download = true;
}

double fake_model_take(fake_model *m)
{
    if (m->has_download) download(m);
    return move_clock(m, m->download_end_ns);
}

double fake_model_matmul(fake_model *m, fake_work work)
{
    const double ready = compute(m, work);
    const double end = transfer(m, ready, transfer_duration(m, work.out_bytes));
    m->to_host_ns += end - ready;
    return move_clock(m, end);
}
