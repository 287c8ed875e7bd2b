/* afford.c - see afford.h.
 *
 *     a copy takes 1.0 ms, the link is idle for 0.4 ms: somebody waits 0.6 ms
 *     a hit saves 0.2 ms (0.3 on the processor, 0.1 on the device): 3 hits pay
 *     within 40 tokens: 0.075 uses per token more than the victim's */
#include "afford.h"

#include <math.h>

double coli__afford_uses(const coli__speeds *s, double idle_ns, uint32_t n_token)
{
    const double saved_ns = s->host_ns - s->device_ns;
    const double waited_ns = s->copy_ns - (s->waits ? 0 : idle_ns);
    if (waited_ns <= 0) return 0;
    return saved_ns > 0 ? waited_ns / saved_ns / n_token : INFINITY;
}

uint64_t coli__afford_copies(const coli__speeds *s, double ns)
{
    const double n = s->copy_ns > 0 ? ns / s->copy_ns : INFINITY;
    return s->waits || n > 1e9 ? UINT64_MAX : (uint64_t)n;
}

/*     a copy takes 10 ms, a row 0.1 ms on the device and 1 ms on the processor; rows: 40 30 20 10
 *
 *     streamed   there after    the processor, until then
 *     40         14 ms          100 ms   yes
 *     30         27 ms           60 ms   yes
 *     20         39 ms           30 ms   no */
uint32_t coli__afford_stream(const coli__speeds *s, uint32_t n_device, const uint32_t *n_row,
                             uint32_t n)
{
    if (n_device == 0 || s->pass_ns <= 0 || s->host_row_ns <= 0) return 0;
    double host_ns = 0, stream_ns = 0;
    for (uint32_t i = 0; i < n; i++) host_ns += n_row[i] * s->host_row_ns;
    for (uint32_t i = 0; i < n; i++) {
        const double here_ns = n_row[i] * s->host_row_ns;
        const double there_ns = s->pass_ns + n_row[i] * s->pass_row_ns;
        stream_ns += there_ns / n_device;
        if (there_ns >= here_ns || stream_ns >= host_ns) return i;
        host_ns -= here_ns;
    }
    return n;
}

void coli__pace_idle(coli__pace *p, double idle_ns, double copy_ns)
{
    p->credit_ns = fmin(p->credit_ns + idle_ns, fmax(idle_ns, copy_ns));
}

bool coli__pace_may(const coli__pace *p, double copy_ns)
{
    return p->credit_ns >= copy_ns;
}

void coli__pace_took(coli__pace *p, double copy_ns)
{
    p->credit_ns -= copy_ns;
}
