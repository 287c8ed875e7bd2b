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
