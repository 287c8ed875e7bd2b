/* t.h - a thin layer over cmocka: both values on failure, and properties over seeded random worlds.
 *
 *     T_PROP(plan_fits, 5000) { uint32_t n = t_below(&rng, 40); ...; T_LE(used, budget); }
 *
 * runs its body 5000 times with different `rng`; a failing case prints its seed, and T_SEED=0x...
 * in the environment runs that case alone. */
#ifndef COLI_TEST_T_H
#define COLI_TEST_T_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "coli/status.h"

/* splitmix64: every 64-bit seed gives an independent stream. */
typedef struct t_rng {
    uint64_t state;
} t_rng;

static inline uint64_t t_u64(t_rng *rng)
{
    uint64_t z = (rng->state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
static inline uint32_t t_below(t_rng *rng, uint32_t n)
{
    return (uint32_t)(t_u64(rng) % n);
}
static inline uint32_t t_range(t_rng *rng, uint32_t lo, uint32_t hi) // both included
{
    return lo + t_below(rng, hi - lo + 1);
}
static inline double t_unit(t_rng *rng)
{
    return (double)(t_u64(rng) >> 11) * 0x1p-53;
}
static inline float t_normal(t_rng *rng) // mean 0, deviation 1
{
    const double u = t_unit(rng) + 1e-300, v = t_unit(rng);
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

static const char *t_case = ""; // the property that is running
static uint64_t t_case_seed;

#define T_WHERE_                                                                                   \
    do {                                                                                           \
        if (*t_case)                                                                               \
            print_error("  in %s, rerun with T_SEED=0x%" PRIx64 "\n", t_case, t_case_seed);        \
    } while (0)

#define T_CMP_(a, op, b, type, fmt)                                                                \
    do {                                                                                           \
        const type t_a_ = (type)(a), t_b_ = (type)(b);                                             \
        if (!(t_a_ op t_b_)) {                                                                     \
            print_error("%s %s %s: %" fmt " against %" fmt "\n", #a, #op, #b, t_a_, t_b_);         \
            T_WHERE_;                                                                              \
            _fail(__FILE__, __LINE__);                                                             \
        }                                                                                          \
    } while (0)

#define T_EQ(a, b)  T_CMP_(a, ==, b, int64_t, PRId64)
#define T_NE(a, b)  T_CMP_(a, !=, b, int64_t, PRId64)
#define T_LE(a, b)  T_CMP_(a, <=, b, int64_t, PRId64)
#define T_GE(a, b)  T_CMP_(a, >=, b, int64_t, PRId64)
#define T_FLE(a, b) T_CMP_(a, <=, b, double, ".9g")
#define T_FGE(a, b) T_CMP_(a, >=, b, double, ".9g")
#define T_TRUE(x)                                                                                  \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            print_error("not true: %s\n", #x);                                                     \
            T_WHERE_;                                                                              \
            _fail(__FILE__, __LINE__);                                                             \
        }                                                                                          \
    } while (0)
#define T_STR(a, b)                                                                                \
    do {                                                                                           \
        const char *t_a_ = (a), *t_b_ = (b);                                                       \
        if (strcmp(t_a_, t_b_) != 0) {                                                             \
            print_error("%s: \"%s\" against \"%s\"\n", #a, t_a_, t_b_);                            \
            T_WHERE_;                                                                              \
            _fail(__FILE__, __LINE__);                                                             \
        }                                                                                          \
    } while (0)
/* The call succeeds; its message is shown when it does not. */
#define T_OK(call)                                                                                 \
    do {                                                                                           \
        const coli_status t_s_ = (call);                                                           \
        if (t_s_ != COLI_OK) {                                                                     \
            print_error("%s: %s: %s\n", #call, coli_status_name(t_s_), coli_error_message());      \
            T_WHERE_;                                                                              \
            _fail(__FILE__, __LINE__);                                                             \
        }                                                                                          \
    } while (0)
/* The call fails with this status and a message that contains this text. */
#define T_FAILS(call, expected, text)                                                              \
    do {                                                                                           \
        const coli_status t_s_ = (call);                                                           \
        if (t_s_ != (expected) || !strstr(coli_error_message(), (text))) {                         \
            print_error("%s: %s \"%s\" against %s \"...%s...\"\n", #call, coli_status_name(t_s_),  \
                        t_s_ ? coli_error_message() : "", coli_status_name(expected), (text));     \
            T_WHERE_;                                                                              \
            _fail(__FILE__, __LINE__);                                                             \
        }                                                                                          \
    } while (0)
/* Equal bytes; the first difference is shown. */
#define T_MEM(a, b, n_bytes) t_mem_((a), (b), (n_bytes), #a, #b, __FILE__, __LINE__)
static inline void t_mem_(const void *a, const void *b, size_t n, const char *as, const char *bs,
                          const char *file, int line)
{
    const uint8_t *p = a, *q = b;
    for (size_t i = 0; i < n; i++)
        if (p[i] != q[i]) {
            print_error("%s against %s: byte %zu of %zu: %02x against %02x\n", as, bs, i, n, p[i],
                        q[i]);
            T_WHERE_;
            _fail(file, line);
        }
}

#define T_PROP(name, n_case)                                                                       \
    static void name##_body_(t_rng rng);                                                           \
    static void name(void **state)                                                                 \
    {                                                                                              \
        (void)state;                                                                               \
        const char *only = getenv("T_SEED");                                                       \
        t_case = #name;                                                                            \
        for (uint64_t i = 0; i < (only ? 1u : (uint64_t)(n_case)); i++) {                          \
            t_case_seed = only ? strtoull(only, NULL, 0) : i;                                      \
            t_rng rng = {t_case_seed * 0xD1342543DE82EF95u + 1};                                   \
            name##_body_(rng);                                                                     \
        }                                                                                          \
        t_case = "";                                                                               \
    }                                                                                              \
    static void name##_body_(t_rng rng)

#define T_TEST(name) static void name(void **state)
#define T_BEGIN      (void)state

#endif
