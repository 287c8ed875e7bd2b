/* headers_compile.c - the C half of the test in headers_compile.cpp: one C11 and one C++17 program
 * can use the library in the same process. */
#include <coli/coli.h>

const char *version_seen_by_c(void);
const char *version_seen_by_c(void)
{
    return coli_version();
}
