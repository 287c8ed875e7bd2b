/* path_test.c - what file.h promises about paths, on every system: any Unicode, blanks, more than the
 * 260 characters that Windows is known for; names come sorted; nothing is replaced. */
#include "world.h"

static const char greek[] = "\xCE\xB1\xCE\xB2 \xE6\xA8\xA1\xE5\x9E\x8B \xF0\x9F\x90\xA6.txt";

static const char *in_scratch(const char *name)
{
    static char paths[8][8192];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof *paths, "%s/%s", world_scratch(), name);
    return path;
}

static void put(const char *path, const char *text)
{
    coli__writer *w;
    T_OK(coli__writer_open(path, &w));
    T_OK(coli__writer_append(w, text, strlen(text)));
    T_OK(coli__writer_close(w));
}

static void holds(const char *path, const char *text)
{
    coli__buf buf;
    coli__map map;
    T_OK(coli__file_read(path, 1 << 20, &buf));
    T_STR(buf.data, text);
    T_OK(coli__map_open(path, &map));
    T_EQ(map.n_bytes, strlen(text));
    T_MEM(map.data, text, strlen(text));
    coli__map_close(&map);
    coli__buf_finish(&buf);
}

T_TEST(bytes_stay_as_they_are)
{
    T_BEGIN;
    static const char text[] = "a\nb\r\nc\x1A"
                               "d\n"; // no line ends and no end of file are made or lost
    put(in_scratch("bytes"), text);
    holds(in_scratch("bytes"), text);
    coli__file_remove(in_scratch("bytes"));
    T_TRUE(!coli__path_exists(in_scratch("bytes")));
}

T_TEST(any_unicode)
{
    T_BEGIN;
    const char *path = in_scratch(greek);
    put(path, "here");
    holds(path, "here");
    T_TRUE(coli__path_exists(path));
    T_STR(coli__path_name(path), greek);
    coli__file_remove(path);
    T_TRUE(!coli__path_exists(path));
}

/* A directory whose path is longer than 260 characters, as is each in it. */
T_TEST(long_paths)
{
    T_BEGIN;
    enum { DEPTH = 12 };
    char name[4096] = "", all[DEPTH][4096];
    for (int i = 0; i < DEPTH; i++) {
        char part[64];
        snprintf(part, sizeof part, "%s%02d a part of thirty characters", i ? "/" : "", i);
        strcat(name, part);
        strcpy(all[i], name);
        T_OK(coli__dir_create(in_scratch(name)));
        T_TRUE(coli__path_is_dir(in_scratch(name)));
    }
    T_GE(strlen(name), 320);
    T_FAILS(coli__dir_create(in_scratch(name)), COLI_E_EXISTS, "cannot create the directory");
    char *file, *other, **names;
    size_t n;
    T_OK(coli__path_join(in_scratch(name), greek, &file));
    T_OK(coli__path_join(in_scratch(name), "other", &other));
    put(file, "deep down");
    holds(file, "deep down");
    T_OK(coli__dir_list(in_scratch(name), &names, &n));
    T_EQ(n, 1);
    T_STR(names[0], greek);
    coli__free(names[0]);
    coli__free(names);
    T_OK(coli__path_rename(file, other));
    T_TRUE(!coli__path_exists(file));
    holds(other, "deep down");
    coli__free(file);
    coli__free(other);
    for (int i = DEPTH - 1; i >= 0; i--) {
        coli__dir_remove(in_scratch(all[i])); // and what is in the deepest
        T_TRUE(!coli__path_exists(in_scratch(all[i])));
    }
}

T_TEST(nothing_is_replaced)
{
    T_BEGIN;
    T_OK(coli__dir_create(in_scratch("dir")));
    put(in_scratch("dir/inside"), "inside");
    put(in_scratch("old"), "old");
    put(in_scratch("new"), "new");
    coli__writer *w;
    T_FAILS(coli__writer_open(in_scratch("old"), &w), COLI_E_EXISTS, "old");
    T_FAILS(coli__path_rename(in_scratch("new"), in_scratch("old")), COLI_E_EXISTS, "old");
    T_FAILS(coli__path_rename(in_scratch("dir"), in_scratch("old")), COLI_E_EXISTS, "old");
    T_FAILS(coli__path_rename(in_scratch("old"), in_scratch("dir")), COLI_E_EXISTS, "dir");
    holds(in_scratch("old"), "old");
    T_OK(coli__path_rename(in_scratch("dir"), in_scratch("moved")));
    holds(in_scratch("moved/inside"), "inside");
    coli__dir_remove(in_scratch("moved"));
    T_TRUE(!coli__path_exists(in_scratch("moved")));
}

T_TEST(failures_are_told_apart)
{
    T_BEGIN;
    coli__buf buf;
    coli__map map;
    char **names;
    size_t n;
    T_FAILS(coli__file_read(in_scratch("absent"), 100, &buf), COLI_E_NOTFOUND, "absent");
    T_FAILS(coli__map_open(in_scratch("absent/more"), &map), COLI_E_NOTFOUND, "cannot open");
    T_FAILS(coli__dir_list(in_scratch("absent"), &names, &n), COLI_E_NOTFOUND, "cannot list");
    T_FAILS(coli__path_rename(in_scratch("absent"), in_scratch("b")), COLI_E_NOTFOUND, "absent");
    T_FAILS(coli__map_open(world_scratch(), &map), COLI_E_IO, "not a regular file");
    T_TRUE(!coli__path_exists("") && !coli__path_is_dir(in_scratch("absent")));
    put(in_scratch("empty"), "");
    T_OK(coli__map_open(in_scratch("empty"), &map));
    T_TRUE(map.data == NULL && map.n_bytes == 0);
}

T_TEST(names_are_sorted)
{
    T_BEGIN;
    static const char *const made[] = {"b", "a", "Z", "c"}, *const sorted[] = {"Z", "a", "b", "c"};
    T_OK(coli__dir_create(in_scratch("sorted")));
    for (int i = 0; i < 4; i++) {
        char *path;
        T_OK(coli__path_join(in_scratch("sorted"), made[i], &path));
        put(path, made[i]);
        coli__free(path);
    }
    char **names;
    size_t n;
    T_OK(coli__dir_list(in_scratch("sorted"), &names, &n));
    T_EQ(n, 4);
    for (size_t i = 0; i < n; i++) {
        T_STR(names[i], sorted[i]);
        coli__free(names[i]);
    }
    coli__free(names);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_stay_as_they_are),
        cmocka_unit_test(any_unicode),
        cmocka_unit_test(long_paths),
        cmocka_unit_test(nothing_is_replaced),
        cmocka_unit_test(failures_are_told_apart),
        cmocka_unit_test(names_are_sorted),
    };
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
