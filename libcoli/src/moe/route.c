/* route.c - top-k of a few hundred logits by insertion into a sorted list of k.
 *
 * k is at most a dozen in real models, so an insertion costs less than a heap, and walking the ids
 * upward with a strict comparison gives ties to the lower id without a second key. */
#include "route.h"

#include <float.h>

#include "../../include/coli/exact.h"

/* Not finite counts as the smallest number there is; *finite remembers that there was one. */
static float tamed(float x, bool *finite)
{
    if (coli__is_finite(x)) return x;
    *finite = false;
    return -FLT_MAX;
}

bool coli__route_softmax_topk(const coli__kernels *k, const float *logits, uint32_t n_expert,
                              uint32_t n_used, int32_t *ids, float *w)
{
    bool finite = true;
    uint32_t n = 0;
    for (uint32_t e = 0; e < n_expert; e++) {
        const float x = tamed(logits[e], &finite);
        if (n == n_used && !(x > w[n - 1])) continue;
        uint32_t at = n < n_used ? n++ : n - 1;
        for (; at > 0 && x > w[at - 1]; at--) {
            w[at] = w[at - 1];
            ids[at] = ids[at - 1];
        }
        w[at] = x;
        ids[at] = (int32_t)e;
    }
    const float sum = k->softmax_sum(w, n_used);
    const float inverse = coli_recip(sum);
    for (uint32_t i = 0; i < n_used; i++) w[i] = w[i] * inverse;
    return finite;
}
