/* replay_main.c - a main() for a fuzz target without a fuzzer: every file of the directories given
 * as arguments goes through LLVMFuzzerTestOneInput once, so that a corpus is an ordinary test. Each
 * input lies in a buffer of exactly its size: a read past the end is seen by ASan.
 *
 * A directory that is absent or empty is a failure: a test that replays nothing proves nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coli/status.h"
#include "libcoli/src/base/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static coli_status replay_file(const char *path)
{
    coli__buf text = {0};
    COLI_TRY(coli__file_read(path, (uint64_t)1 << 30, &text));
    uint8_t *exact = malloc(text.n_bytes ? text.n_bytes : 1);
    const coli_status status = exact ? COLI_OK : coli__fail(COLI_E_NOMEM, "%s: no memory", path);
    if (exact) {
        if (text.n_bytes) memcpy(exact, text.data, text.n_bytes);
        LLVMFuzzerTestOneInput(exact, text.n_bytes);
    }
    free(exact);
    coli__buf_finish(&text);
    return status;
}

static coli_status replay_dir(const char *dir, size_t *n_file)
{
    char **names = NULL;
    size_t n_name = 0;
    coli_status status = coli__dir_list(dir, &names, &n_name);
    for (size_t i = 0; i < n_name; i++) {
        char *path = NULL;
        if (status == COLI_OK) status = coli__path_join(dir, names[i], &path);
        if (status == COLI_OK && !coli__path_is_dir(path)) {
            status = replay_file(path);
            ++*n_file;
        }
        coli__free(path);
        coli__free(names[i]);
    }
    coli__free(names);
    return status;
}

int main(int argc, char **argv)
{
    size_t n_file = 0;
    for (int i = 1; i < argc; i++) {
        const size_t before = n_file;
        if (replay_dir(argv[i], &n_file) != COLI_OK || n_file == before) {
            fprintf(stderr, "%s: %s\n", argv[i],
                    n_file == before ? "no file to replay" : coli_error_message());
            return 1;
        }
    }
    printf("%zu inputs replayed\n", n_file);
    return n_file ? 0 : 1;
}
