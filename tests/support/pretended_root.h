/* pretended_root.h - a directory that stands for /, with files as the system writes them. */
#ifndef COLI_TEST_PRETENDED_ROOT_H
#define COLI_TEST_PRETENDED_ROOT_H

#include <sys/stat.h>
#include <unistd.h>

#include "t.h"

static char root[64];

static inline int make_root(void **state)
{
    T_BEGIN;
    snprintf(root, sizeof root, "/tmp/coli-root-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static inline int remove_root(void **state)
{
    T_BEGIN;
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

/* The file at `path`, which begins with a slash; directories on the way are made. */
static inline void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        mkdir(full, 0700);
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    T_TRUE(fputs(text, file) >= 0);
    T_EQ(fclose(file), 0);
}

#endif
