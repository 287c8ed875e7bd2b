/* facts.c - what the processor says about itself: see facts.h. */
#include "facts.h"

#include <stdio.h>
#include <string.h>
#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>
#endif

/* 48 bytes in three answers, padded with blanks at either end. */
void coli__facts_cpu(char *out, size_t cap)
{
    *out = 0;
#if defined(__x86_64__) || defined(_M_X64)
    enum { FIRST = 0x80000002, N_ANSWER = 3 };
    unsigned r[4 * N_ANSWER + 1] = {0}, highest[4];
    if (!__get_cpuid(0x80000000, &highest[0], &highest[1], &highest[2], &highest[3]) ||
        highest[0] < FIRST + N_ANSWER - 1)
        return;
    for (unsigned i = 0; i < N_ANSWER; i++)
        __get_cpuid(FIRST + i, &r[4 * i], &r[4 * i + 1], &r[4 * i + 2], &r[4 * i + 3]);
    const char *name = (const char *)r;
    name += strspn(name, " ");
    size_t n = strlen(name);
    while (n > 0 && name[n - 1] == ' ') n--;
    snprintf(out, cap, "%.*s", (int)n, name);
#else
    (void)cap;
#endif
}
