// headers_compile.cpp - links a C++ program against the library's public symbols.  That each public
// header compiles alone, as C11 and as C++17, with all warnings as errors, has been shown when this
// program exists: CMake writes one file for each and builds them into it.
#include <coli/coli.h>

#include <cstdio>
#include <cstring>

extern "C" const char *version_seen_by_c(void);

int main()
{
    if (std::strcmp(coli_version(), version_seen_by_c()) != 0 ||
        std::strcmp(coli_version(), COLI_TEST_VERSION) != 0) {
        std::printf("coli_version() is %s, expected %s\n", coli_version(), COLI_TEST_VERSION);
        return 1;
    }
    return 0;
}
