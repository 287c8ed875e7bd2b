/* plugin_windows_test.c - plugin_test.c on Windows: which DLLs are taken as backends, which are
 * refused, at what stage and with what words; and where they are looked for.
 *
 * Bad plugins are copies of a good one (support/plugins/probe.c) in which a few bytes were changed: in
 * its record, in its header, or in the name of an export, which is then missing. */
#include <windows.h>

#include "libcoli/src/backend/plugin.h"
#include "world.h"

/* ---- files --------------------------------------------------------------------------------- */

static const char *in(const char *name)
{
    static char paths[8][8192];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", world_scratch(), name);
    return path;
}

static coli__buf original(const char *name)
{
    char path[512];
    coli__buf bytes;
    snprintf(path, sizeof path, TEST_PLUGINS "/%s.dll", name);
    T_OK(coli__file_read(path, 1 << 24, &bytes));
    return bytes;
}

static void spill(const char *path, const void *bytes, size_t n_bytes)
{
    coli__writer *w;
    coli__file_remove(path);
    T_OK(coli__writer_open(path, &w));
    T_OK(coli__writer_append(w, bytes, n_bytes));
    T_OK(coli__writer_close(w));
}

static void copy_plugin(const char *name, const char *to)
{
    coli__buf bytes = original(name);
    spill(to, bytes.data, bytes.n_bytes);
    coli__buf_finish(&bytes);
}

static coli_bk_info *record_in(coli__buf *bytes)
{
    for (size_t i = 0; i + sizeof(coli_bk_info) <= bytes->n_bytes; i++)
        if (memcmp(bytes->data + i, COLI_BK_MAGIC, 8) == 0)
            return (coli_bk_info *)(void *)(bytes->data + i);
    fail();
    return NULL;
}

/* The names of exports stand behind one another; the new one sorts where the old one did. */
static void hide_export(coli__buf *bytes, const char *entry)
{
    char name[80];
    const size_t n = (size_t)snprintf(name, sizeof name, "coli_backend_%s", entry) + 1;
    size_t n_found = 0;
    for (size_t i = 1; i + n <= bytes->n_bytes; i++)
        if (bytes->data[i - 1] == 0 && memcmp(bytes->data + i, name, n) == 0) {
            bytes->data[i + n - 2]++;
            n_found++;
        }
    T_GE(n_found, 1);
}

/* ---- expectations -------------------------------------------------------------------------- */

static void refused(const char *path, coli__plugin_stage stage, const char *text)
{
    coli__plugin p;
    T_OK(coli__plugin_load(path, &p));
    if (p.stage != stage || !p.reason || !strstr(p.reason, text)) {
        print_error("%s: %s: %s\n  expected %s: ...%s...\n", path, coli__plugin_stage_name(p.stage),
                    p.reason ? p.reason : "", coli__plugin_stage_name(stage), text);
        fail();
    }
    assert_null(p.lib);
    T_TRUE(coli__path_is_absolute(p.path));
    coli__plugin_unload(&p);
}

static void refused_bytes(const coli__buf *bytes, coli__plugin_stage stage, const char *text)
{
    spill(in("x.dll"), bytes->data, bytes->n_bytes); // which is unloaded, or could not be replaced
    refused(in("x.dll"), stage, text);
}

static void accepted(const char *path)
{
    coli__plugin p;
    T_OK(coli__plugin_load(path, &p));
    if (p.stage != COLI__PLUGIN_READY)
        fail_msg("%s: %s: %s", path, coli__plugin_stage_name(p.stage), p.reason);
#define THERE(since, returns, name, parameters) T_TRUE(p.api.name != NULL);
#define MAYBE(since, returns, name, parameters)
    COLI_BACKEND_SYMBOLS(THERE, MAYBE)
#undef THERE
#undef MAYBE
    coli__plugin_unload(&p);
}

static const coli__plugin *at(const coli__plugin_list *list, const char *path)
{
    for (size_t i = 0; i < list->n; i++)
        if (coli__path_same(list->plugins[i].path, path)) return &list->plugins[i];
    return NULL;
}

/* ---- tests --------------------------------------------------------------------------------- */

T_TEST(good)
{
    T_BEGIN;
    accepted(TEST_PLUGINS "/coli_probe.dll");
    accepted(TEST_PLUGINS "/coli_oldest.dll");
    accepted(TEST_PLUGINS "/coli_newest.dll");
}

T_TEST(any_path)
{
    T_BEGIN;
    char name[4096] = "\xC3\xA9t\xC3\xA9 \xF0\x9F\xA6\x80";
    for (int i = 0; i < 6; i++) {
        char path[4200];
        T_OK(coli__dir_create(in(name)));
        snprintf(path, sizeof path, "%s/coli_probe.dll", name);
        copy_plugin("coli_probe", in(path));
        accepted(in(path));
        coli__file_remove(in(path));
        sprintf(name + strlen(name), "/%080d", i);
    }
    T_GE(strlen(name), 400);
    for (char *slash; (slash = strrchr(name, '/'));) { // world_forget removes one level
        *slash = 0;
        coli__dir_remove(in(name));
    }
}

T_TEST(records)
{
    T_BEGIN;
    coli__buf bytes = original("coli_probe");
    coli_bk_info *info = record_in(&bytes);
    const coli_bk_info good_info = *info;
    info->magic[7] = 'x';
    refused_bytes(&bytes, COLI__PLUGIN_DESCRIPTOR, "does not begin with \"coli-bk\"");
    *info = good_info;
    info->abi_major = 2;
    refused_bytes(&bytes, COLI__PLUGIN_VERSION, "install a newer libcoli");
    info->abi_major = 0;
    refused_bytes(&bytes, COLI__PLUGIN_VERSION, "install a newer backend");
    *info = good_info;
    hide_export(&bytes, "info");
    refused_bytes(&bytes, COLI__PLUGIN_DESCRIPTOR, "exports no coli_backend_info");
    coli__buf_finish(&bytes);
}

T_TEST(exports)
{
    T_BEGIN;
    coli__buf bytes = original("coli_probe");
    hide_export(&bytes, "group_take");
    hide_export(&bytes, "matmul"); // optional: not a word about it
    hide_export(&bytes, "open");
    refused_bytes(&bytes, COLI__PLUGIN_SYMBOLS,
                  "it lacks 2 functions of the interface: coli_backend_open, "
                  "coli_backend_group_take; build");
    coli__buf_finish(&bytes);
    refused(TEST_PLUGINS "/coli_data.dll", COLI__PLUGIN_SYMBOLS,
            "exported, but no functions: coli_backend_open;");
}

T_TEST(no_plugins)
{
    T_BEGIN;
    const coli__plugin_stage library = COLI__PLUGIN_LIBRARY;
    refused(in("absent.dll"), COLI__PLUGIN_FILE, "no such file");
    T_OK(coli__dir_create(in("dir.dll")));
    refused(in("dir.dll"), COLI__PLUGIN_FILE, "a directory");
    spill(in("empty.dll"), "", 0);
    refused(in("empty.dll"), library, "empty");
    spill(in("text.dll"), "#!/bin/sh\n", 10);
    refused(in("text.dll"), library, "not a library for this machine, or damaged");
    spill(in("elf.dll"),
          "\x7F"
          "ELF\2\1\1",
          8);
    refused(in("elf.dll"), library, "not a library for this machine, or damaged");
    refused(TEST_PLUGINS "/needed/libplugin_dependency.dll", COLI__PLUGIN_DESCRIPTOR,
            "exports no coli_backend_info");
}

T_TEST(headers)
{
    T_BEGIN;
    coli__buf bytes = original("coli_probe");
    uint32_t header;
    memcpy(&header, bytes.data + 0x3C, 4); // of "PE\0\0" and what follows
    uint16_t *machine = (uint16_t *)(void *)(bytes.data + header + 4);
    T_EQ(*machine, IMAGE_FILE_MACHINE_AMD64);
    *machine = IMAGE_FILE_MACHINE_ARM64;
    refused_bytes(&bytes, COLI__PLUGIN_LIBRARY, "not a library for this machine, or damaged");
    *machine = IMAGE_FILE_MACHINE_AMD64;
    bytes.data[header] = 'Q';
    refused_bytes(&bytes, COLI__PLUGIN_LIBRARY, "not a library for this machine, or damaged");
    bytes.data[header] = 'P';
    for (size_t n = 1; n < 0x200; n += 37) {
        const coli__buf cut = {bytes.data, n, n};
        refused_bytes(&cut, COLI__PLUGIN_LIBRARY, "");
    }
    coli__buf_finish(&bytes);
}

T_TEST(dependencies)
{
    T_BEGIN;
    refused(TEST_PLUGINS "/coli_depends.dll", COLI__PLUGIN_LIBRARY,
            "a library that it needs is missing");
    copy_plugin("coli_depends", in("coli_depends.dll"));
    copy_plugin("needed/libplugin_dependency", in("libplugin_dependency.dll"));
    accepted(in("coli_depends.dll"));
}

/* Beside the library (here: the program that contains it) and in the search path, not in the working directory. */
T_TEST(search)
{
    T_BEGIN;
    T_OK(coli__dir_create(in("one")));
    T_OK(coli__dir_create(in("two")));
    T_OK(coli__dir_create(in("here")));
    copy_plugin("coli_probe", in("one/coli_probe.dll"));
    copy_plugin("coli_twin", in("one/coli_other.dll")); // calls itself twin
    copy_plugin("coli_probe", in("two/coli_probe.dll"));
    copy_plugin("coli_twin", in("two/coli_twin.dll"));
    copy_plugin("coli_newest", in("here/coli_newest.dll"));

    char path[8192], before[4096], *own, *beside;
    snprintf(path, sizeof path, "%s;;%s;", in("one"), in("two"));
    coli__plugin_list found;
    T_FAILS(coli__plugins_find(NULL, path, &found), COLI_E_INVALID, "is relative"); // "/tmp/..."
    char *one, *two;
    T_OK(coli__path_absolute(in("one"), &one));
    T_OK(coli__path_absolute(in("two"), &two));
    snprintf(path, sizeof path, "%s;;%s;", one, two);
    T_OK(coli__plugins_find(NULL, path, &found));
    T_EQ(at(&found, in("one/coli_probe.dll"))->stage, COLI__PLUGIN_READY);
    T_EQ(at(&found, in("one/coli_other.dll"))->stage, COLI__PLUGIN_DESCRIPTOR);
    T_EQ(at(&found, in("two/coli_probe.dll"))->stage, COLI__PLUGIN_NAME);
    T_EQ(at(&found, in("two/coli_twin.dll"))->stage, COLI__PLUGIN_READY);
    coli__plugins_free(&found);
    coli__free(one);
    coli__free(two);

    T_OK(coli__dynlib_own_dir(&own));
    T_OK(coli__path_join(own, "coli_twin.dll", &beside));
    T_TRUE(!coli__path_exists(beside));
    copy_plugin("coli_twin", beside);
    T_TRUE(getcwd(before, sizeof before) != NULL);
    T_EQ(chdir(in("here")), 0);
    T_OK(coli__plugins_find(NULL, NULL, &found));
    T_EQ(at(&found, beside)->stage, COLI__PLUGIN_READY);
    T_TRUE(at(&found, in("here/coli_newest.dll")) == NULL);
    coli__plugins_free(&found);
    T_OK(coli__plugins_find("newer", NULL, &found));
    for (size_t i = 0; i < found.n; i++) T_EQ(found.plugins[i].stage, COLI__PLUGIN_FILE);
    coli__plugins_free(&found);
    T_OK(coli__plugins_find(".\\coli_newest.dll", NULL, &found)); // a path is one
    T_EQ(found.plugins[0].stage, COLI__PLUGIN_READY);
    coli__plugins_free(&found);
    T_EQ(chdir(before), 0);
    coli__file_remove(beside);
    coli__free(beside);
    coli__free(own);
}

/* A library that opened a device stays. */
T_TEST(keep)
{
    T_BEGIN;
    coli__plugin p;
    T_OK(coli__plugin_load(TEST_PLUGINS "/coli_twin.dll", &p));
    const void *code = coli__dynlib_symbol(p.lib, "coli_backend_open");
    T_TRUE(coli__dynlib_is_code(code) && !coli__dynlib_is_code(&p));
    coli__plugin_unload(&p);
    T_TRUE(!coli__dynlib_is_code(code));
    T_OK(coli__plugin_load(TEST_PLUGINS "/coli_twin.dll", &p));
    code = coli__dynlib_symbol(p.lib, "coli_backend_open");
    coli__plugin_keep(&p);
    coli__plugin_unload(&p);
    T_TRUE(coli__dynlib_is_code(code));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good),    cmocka_unit_test(any_path),     cmocka_unit_test(records),
        cmocka_unit_test(exports), cmocka_unit_test(no_plugins),   cmocka_unit_test(headers),
        cmocka_unit_test(search),  cmocka_unit_test(dependencies), cmocka_unit_test(keep),
    };
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
