/* plugin_test.c - which files are taken as backends, which are refused, at what stage and with what
 * words; in what order they are found; and that nothing of a plugin runs before it was checked.
 *
 * Most bad plugins are copies of a good one (support/plugins/probe.c) in which a few bytes were
 * changed: in its record, in its ELF header, or in the name of a symbol, which is then missing. */
#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcoli/src/backend/plugin.h"
#include "libcoli/src/base/file.h"
#include "t.h"

static char scratch[64];

/* ---- files --------------------------------------------------------------------------------- */

/* A path in the scratch directory, in a buffer of its own for each of the last few calls. */
static const char *in(const char *name)
{
    static char paths[8][8192];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", scratch, name);
    return path;
}

static coli__buf slurp(const char *path)
{
    coli__buf bytes;
    T_OK(coli__file_read(path, 1 << 24, &bytes));
    return bytes;
}

static void spill(const char *path, const void *bytes, size_t n_bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    fclose(file);
}

static coli__buf original(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, TEST_PLUGINS "/coli_%s.so", name);
    return slurp(path);
}

static void copy_plugin(const char *name, const char *to)
{
    coli__buf bytes = original(name);
    spill(to, bytes.data, bytes.n_bytes);
    coli__buf_finish(&bytes);
}

static size_t count(const char *text, const char *line)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, line)); at++) n++;
    return n;
}

/* What the plugins noted since the last call: nothing but that they were loaded. */
static void only_loaded(size_t n_times)
{
    coli__buf marks = {0};
    if (coli__path_exists(in("marks"))) marks = slurp(in("marks"));
    T_EQ(marks.data ? count(marks.data, "loaded\n") : 0, n_times);
    T_EQ(marks.n_bytes, n_times * strlen("loaded\n"));
    coli__buf_finish(&marks);
    unlink(in("marks"));
}

/* The plugin's record in the bytes of its file. */
static coli_bk_info *record_in(coli__buf *bytes)
{
    char *found = NULL;
    for (size_t i = 0; i + sizeof(coli_bk_info) <= bytes->n_bytes; i++)
        if (memcmp(bytes->data + i, COLI_BK_MAGIC, 8) == 0) {
            assert_null(found);
            found = bytes->data + i;
        }
    assert_non_null(found);
    return (coli_bk_info *)(void *)found;
}

/* Symbols are found by their whole name. */
static void hide_symbol(coli__buf *bytes, const char *entry)
{
    char name[80];
    const size_t n = (size_t)snprintf(name, sizeof name, "coli_backend_%s", entry) + 1;
    size_t n_found = 0;
    for (size_t i = 1; i + n <= bytes->n_bytes; i++)
        if (bytes->data[i - 1] == 0 && memcmp(bytes->data + i, name, n) == 0) {
            bytes->data[i + n - 2] ^= 1;
            n_found++;
        }
    T_GE(n_found, 1);
}

static int setup(void **state)
{
    T_BEGIN;
    strcpy(scratch, "/tmp/coli-plugin-XXXXXX");
    if (!mkdtemp(scratch)) return -1;
    return setenv("TEST_MARKS", in("marks"), 1);
}

static int teardown(void **state)
{
    T_BEGIN;
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", scratch);
    return system(command);
}

/* ---- expectations -------------------------------------------------------------------------- */

static bool is_empty(const coli__backend_api *api)
{
    static const coli__backend_api none;
    return memcmp(api, &none, sizeof none) == 0;
}

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
    T_TRUE(is_empty(&p.api));
    T_TRUE(coli__path_is_absolute(p.path));
    coli__plugin_unload(&p);
}

static void refused_bytes(const coli__buf *bytes, coli__plugin_stage stage, const char *text)
{
    spill(in("x.so"), bytes->data, bytes->n_bytes);
    refused(in("x.so"), stage, text);
}

static coli__plugin accepted(const char *path)
{
    coli__plugin p;
    T_OK(coli__plugin_load(path, &p));
    if (p.stage != COLI__PLUGIN_READY)
        fail_msg("%s: %s: %s", path, coli__plugin_stage_name(p.stage), p.reason);
    assert_null(p.reason);
    assert_non_null(p.lib);
    return p;
}

/* ---- a good one ---------------------------------------------------------------------------- */

T_TEST(good)
{
    T_BEGIN;
    coli__plugin p = accepted(TEST_PLUGINS "/coli_probe.so");
    T_STR(p.info.name, "probe");
    T_STR(p.info.build, "for tests");
    T_EQ(p.info.abi_major, 1);
    T_EQ(p.info.abi_minor, COLI_BK_ABI_MINOR);
#define THERE(since, returns, name, parameters) T_TRUE(p.api.name != NULL);
    COLI_BACKEND_SYMBOLS(THERE, THERE)
#undef THERE
    only_loaded(1);
    coli__plugin_unload(&p);
    coli__plugin_unload(&p);
    coli__plugin_unload(NULL);
    T_STR(coli__plugin_stage_name(COLI__PLUGIN_SYMBOLS), "symbols");
}

/* ---- the record ---------------------------------------------------------------------------- */

T_TEST(record)
{
    T_BEGIN;
    const coli__plugin_stage descriptor = COLI__PLUGIN_DESCRIPTOR;
    coli__buf bytes = original("probe");
    coli_bk_info *info = record_in(&bytes);
    const coli_bk_info good = *info;

#define CHANGED(change, stage, text)                                                               \
    do {                                                                                           \
        change;                                                                                    \
        refused_bytes(&bytes, stage, text);                                                        \
        *info = good;                                                                              \
    } while (0)
    CHANGED(info->magic[0] = 'C', descriptor, "does not begin with \"coli-bk\"");
    CHANGED(info->magic[7] = 'x', descriptor, "does not begin with \"coli-bk\"");
    CHANGED(info->struct_size = 0, descriptor, "struct_size is 0, at least 20");
    CHANGED(info->struct_size = 19, descriptor, "struct_size is 19, at least 20");
    CHANGED(info->struct_size = 20, descriptor, "struct_size is 20, version 1 needs at least 184");
    CHANGED(info->struct_size = 183, descriptor, "struct_size is 183");
    CHANGED(info->abi_major = 0, COLI__PLUGIN_VERSION,
            "version 0.1 of the interface, this libcoli "
            "has 1.1; install a newer backend");
    CHANGED(info->abi_major = 2, COLI__PLUGIN_VERSION,
            "version 2.1 of the interface, this libcoli "
            "has 1.1; install a newer libcoli");
    /* Another major version may have put anything behind its number. */
    CHANGED((info->abi_major = 2, info->struct_size = 24, info->name[0] = 'X'),
            COLI__PLUGIN_VERSION, "version 2.1");
    CHANGED(info->name[0] = 0, descriptor, "name must be");
    CHANGED(info->name[0] = 'P', descriptor, "name must be");
    CHANGED(info->name[0] = ' ', descriptor, "name must be");
    CHANGED(info->name[0] = '/', descriptor, "name must be");
    CHANGED(memcpy(info->name, "\xC3\xA9", 2), descriptor, "name must be");
    CHANGED(memset(info->name, 'n', sizeof info->name), descriptor, "name must be");
    CHANGED(memset(info->build, 'b', sizeof info->build), descriptor, "build must be UTF-8");
    CHANGED(info->build[0] = (char)0xFF, descriptor, "build must be UTF-8");
    only_loaded(17);

    hide_symbol(&bytes, "info");
    refused_bytes(&bytes, descriptor, "exports no coli_backend_info");
    coli__buf_finish(&bytes);
    only_loaded(1);
#undef CHANGED
}

/* ---- versions and symbols ------------------------------------------------------------------ */

T_TEST(minor_versions)
{
    T_BEGIN;
    coli__buf bytes = original("probe");
    record_in(&bytes)->abi_minor = 0;
    spill(in("old.so"), bytes.data, bytes.n_bytes);
    coli__plugin p = accepted(in("old.so"));
#define BY_AGE(since, returns, name, parameters) T_EQ(p.api.name != NULL, (since) == 0);
    COLI_BACKEND_SYMBOLS(BY_AGE, BY_AGE) // all are exported
#undef BY_AGE
    coli__plugin_unload(&p);
    coli__buf_finish(&bytes);

    only_loaded(1);

    /* A real one of that time, and one of a time to come. */
    p = accepted(TEST_PLUGINS "/coli_oldest.so");
    T_EQ(p.info.abi_minor, 0);
    T_TRUE(coli__dynlib_symbol(p.lib, "coli_backend_matmul") != NULL && p.api.matmul == NULL);
    coli__plugin_unload(&p);
    p = accepted(TEST_PLUGINS "/coli_newest.so");
    T_EQ(p.info.abi_minor, 9);
    T_STR(p.info.name, "newest");
    coli__plugin_unload(&p);
}

static void without_mandatory(const char *entry)
{
    coli__buf bytes = original("probe");
    char text[80];
    hide_symbol(&bytes, entry);
    snprintf(text, sizeof text, "lacks 1 function of the interface: coli_backend_%s;", entry);
    refused_bytes(&bytes, COLI__PLUGIN_SYMBOLS, text);
    coli__buf_finish(&bytes);
}

static coli__plugin without_optional(const char *entry)
{
    coli__buf bytes = original("probe");
    hide_symbol(&bytes, entry);
    spill(in("x.so"), bytes.data, bytes.n_bytes);
    coli__buf_finish(&bytes);
    return accepted(in("x.so"));
}

T_TEST(missing_symbols)
{
    T_BEGIN;
#define MANDATORY(since, returns, name, parameters) without_mandatory(#name);
#define OPTIONAL(since, returns, name, parameters)
    COLI_BACKEND_SYMBOLS(MANDATORY, OPTIONAL)
#undef MANDATORY
#undef OPTIONAL
    only_loaded(9);

    coli__buf bytes = original("probe");
    hide_symbol(&bytes, "open");
    hide_symbol(&bytes, "tensor_free");
    hide_symbol(&bytes, "matmul"); // optional: not a word about it
    hide_symbol(&bytes, "group_take");
    refused_bytes(&bytes, COLI__PLUGIN_SYMBOLS,
                  "it lacks 3 functions of the interface: coli_backend_open, "
                  "coli_backend_tensor_free, coli_backend_group_take; build");
    coli__buf_finish(&bytes);

    /* All at once still fits the message. */
    bytes = original("probe");
#define HIDE(since, returns, name, parameters) hide_symbol(&bytes, #name);
    COLI_BACKEND_SYMBOLS(HIDE, HIDE)
#undef HIDE
    refused_bytes(&bytes, COLI__PLUGIN_SYMBOLS, "lacks 9 functions");
    refused_bytes(&bytes, COLI__PLUGIN_SYMBOLS, "coli_backend_group_take; build it anew");
    coli__buf_finish(&bytes);

    refused(TEST_PLUGINS "/coli_data.so", COLI__PLUGIN_SYMBOLS,
            "exported, but no functions: coli_backend_open;");
    only_loaded(4);
}

/* Which entries go with which. */
static bool goes_with(const char *entry, const char *hidden)
{
    static const char *const pairs[][2] = {{"tensor_overwrite_async", "fence_poll"},
                                           {"fence_poll", "tensor_overwrite_async"},
                                           {"host_alloc", "host_free"},
                                           {"host_free", "host_alloc"},
                                           {"matmul_batch", "matmul"}};
    if (strcmp(entry, hidden) == 0) return true;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (strcmp(entry, pairs[i][0]) == 0 && strcmp(hidden, pairs[i][1]) == 0) return true;
    return false;
}

T_TEST(missing_optional)
{
    T_BEGIN;
    static const char *const optional[] = {
        "tensor_overwrite", "tensor_overwrite_async", "fence_poll", "host_alloc",
        "host_free",        "alloc_footprint",        "matmul",     "matmul_batch",
        "group_stats"};
    for (size_t i = 0; i < sizeof optional / sizeof *optional; i++) {
        coli__plugin p = without_optional(optional[i]);
#define LEFT(since, returns, name, parameters)                                                     \
    T_EQ(p.api.name == NULL, goes_with(#name, optional[i]));
        COLI_BACKEND_SYMBOLS(LEFT, LEFT)
#undef LEFT
        coli__plugin_unload(&p);
    }
}

/* ---- files that are no plugins ------------------------------------------------------------- */

T_TEST(no_plugins)
{
    T_BEGIN;
    const coli__plugin_stage library = COLI__PLUGIN_LIBRARY;
    refused(in("absent.so"), COLI__PLUGIN_FILE, "no such file");
    assert_int_equal(mkdir(in("dir.so"), 0700), 0);
    refused(in("dir.so"), COLI__PLUGIN_FILE, "a directory");
    assert_int_equal(mkfifo(in("pipe.so"), 0600), 0);
    refused(in("pipe.so"), COLI__PLUGIN_FILE, "not a regular file");
    assert_int_equal(symlink("nowhere", in("link.so")), 0);
    refused(in("link.so"), COLI__PLUGIN_FILE, "no such file");
    spill(in("empty.so"), "", 0);
    refused(in("empty.so"), library, "empty");
    spill(in("text.so"), "#!/bin/sh\n", 10);
    refused(in("text.so"), library, "not a shared library");
    spill(in("two.so"),
          "\x7F"
          "E",
          2);
    refused(in("two.so"), library, "cut short");
    spill(in("windows.so"), "MZ\x90", 3);
    refused(in("windows.so"), library, "a library for Windows");
    /* A library, but no backend. */
    refused(TEST_PLUGINS "/libplugin_dependency.so", COLI__PLUGIN_DESCRIPTOR,
            "exports no coli_backend_info");
    only_loaded(0);
}

T_TEST(elf_headers)
{
    T_BEGIN;
    coli__buf bytes = original("probe");
    ElfW(Ehdr) *h = (void *)bytes.data;
    const ElfW(Ehdr) good = *h;
    const coli__plugin_stage library = COLI__PLUGIN_LIBRARY;
#define CHANGED(change, text)                                                                      \
    do {                                                                                           \
        change;                                                                                    \
        refused_bytes(&bytes, library, text);                                                      \
        *h = good;                                                                                 \
    } while (0)
    CHANGED(h->e_machine = good.e_machine == EM_AARCH64 ? EM_X86_64 : EM_AARCH64,
            "install the one for this machine");
    CHANGED(h->e_machine = EM_S390, "for another processor, this is");
    CHANGED(h->e_ident[EI_CLASS] ^= 3, "install the one for this machine");
    CHANGED(h->e_ident[EI_DATA] ^= 3, "another byte order");
    CHANGED(h->e_type = ET_REL, "link it with -shared");
    CHANGED(h->e_type = ET_EXEC, "link it with -shared");
    CHANGED(h->e_phnum = 0, "damaged");
    CHANGED(h->e_phentsize = 1, "damaged");
    CHANGED(h->e_phoff = bytes.n_bytes, "cut short");
    CHANGED(h->e_phoff = (ElfW(Off)) - 8, "cut short");
    CHANGED(h->e_shoff = (ElfW(Off)) - 8, "cut short");
    CHANGED(h->e_shnum = 0xFFFF, "cut short");
#undef CHANGED
    coli__buf_finish(&bytes);
    only_loaded(0);
}

/* Every prefix, in steps: the section headers stand at the end, so none can be whole. */
T_TEST(cut_short)
{
    T_BEGIN;
    coli__buf bytes = original("probe");
    spill(in("cut.so"), bytes.data, bytes.n_bytes);
    size_t n = bytes.n_bytes;
    while (n > 0) {
        n -= n > bytes.n_bytes - 16 || n < 80 ? 1 : n < 89 ? n - 79 : 89;
        assert_int_equal(truncate(in("cut.so"), (off_t)n), 0);
        refused(in("cut.so"), COLI__PLUGIN_LIBRARY, n ? "cut short" : "empty");
    }
    /* Without section headers the segments alone say how long it is. */
    ElfW(Ehdr) *h = (void *)bytes.data;
    h->e_shoff = 0;
    h->e_shnum = 0;
    size_t end = 0;
    for (int i = 0; i < h->e_phnum; i++) {
        const ElfW(Phdr) *p = (void *)(bytes.data + h->e_phoff + (size_t)i * sizeof *p);
        if (p->p_type == PT_LOAD && p->p_offset + p->p_filesz > end)
            end = p->p_offset + p->p_filesz;
    }
    spill(in("cut.so"), bytes.data, end);
    only_loaded(0);
    coli__plugin p = accepted(in("cut.so"));
    coli__plugin_unload(&p);
    only_loaded(1);
    for (n = end - 1; n > 200; n -= 200) {
        assert_int_equal(truncate(in("cut.so"), (off_t)n), 0);
        refused(in("cut.so"), COLI__PLUGIN_LIBRARY, "cut short");
    }
    coli__buf_finish(&bytes);
    only_loaded(0);
}

T_TEST(dependencies)
{
    T_BEGIN;
    refused(TEST_PLUGINS "/coli_unresolved.so", COLI__PLUGIN_LIBRARY, "probe_nobody_has_this");
    copy_plugin("depends", in("depends.so"));
    refused(in("depends.so"), COLI__PLUGIN_LIBRARY, "libplugin_dependency.so");
    only_loaded(0);
    coli__buf bytes = slurp(TEST_PLUGINS "/libplugin_dependency.so");
    spill(in("libplugin_dependency.so"), bytes.data, bytes.n_bytes);
    coli__buf_finish(&bytes);
    coli__plugin p = accepted(in("depends.so"));
    coli__plugin_unload(&p);
    only_loaded(1);
}

/* ---- paths --------------------------------------------------------------------------------- */

T_TEST(paths)
{
    T_BEGIN;
    char name[8192] = "a b";
    static const char *const components[] = {"a b", "\xC3\xA9t\xC3\xA9 \xF0\x9F\xA6\x80", "c"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mkdir(in(components[i]), 0700), 0);
        snprintf(name, sizeof name, "%s/coli_probe.so", components[i]);
        copy_plugin("probe", in(name));
        coli__plugin p = accepted(in(name));
        T_STR(p.path, in(name));
        coli__plugin_unload(&p);
    }
    /* Longer than any message, as long as the system takes. */
    strcpy(name, "c");
    while (strlen(in(name)) < 3800) {
        assert_int_equal(mkdir(in(name), 0700), 0);
        sprintf(name + strlen(name), "/%0100d", 7);
    }
    *strrchr(name, '/') = 0;
    const size_t n = strlen(name);
    strcpy(name + n, "/coli_probe.so");
    copy_plugin("probe", in(name));
    coli__plugin p = accepted(in(name));
    T_STR(p.path, in(name));
    coli__plugin_unload(&p);
    strcpy(name + n, "/absent.so");
    refused(in(name), COLI__PLUGIN_FILE, "no such file");
    strcpy(name + n, "/text.so");
    spill(in(name), "text", 4);
    refused(in(name), COLI__PLUGIN_LIBRARY, "not a shared library");
    memset(name + n, 'x', sizeof name - n);
    name[n] = '/';
    name[sizeof name - 200] = 0;
    refused(in(name), COLI__PLUGIN_FILE, "");
}

/* A relative path is the one of the moment when it was given. */
T_TEST(relative_path)
{
    T_BEGIN;
    char before[4096];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(mkdir(in("here"), 0700), 0);
    copy_plugin("probe", in("here/coli_probe.so"));
    assert_int_equal(chdir(in("here")), 0);
    coli__plugin_list found;
    T_OK(coli__plugins_find("./coli_probe.so", NULL, &found));
    assert_int_equal(chdir(before), 0);
    T_EQ(found.n, 1);
    T_EQ(found.plugins[0].stage, COLI__PLUGIN_READY);
    T_STR(found.plugins[0].path, in("here/coli_probe.so"));
    coli__plugins_free(&found);
    coli__plugins_free(&found);
}

/* ---- the search ---------------------------------------------------------------------------- */

static const coli__plugin *only_at(const coli__plugin_list *list, const char *path)
{
    const coli__plugin *found = NULL;
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->plugins[i].path, path) == 0) {
            assert_null(found);
            found = &list->plugins[i];
        }
    return found;
}

T_TEST(search)
{
    T_BEGIN;
    coli__plugin_list found;
    char path[512];
    assert_int_equal(mkdir(in("one"), 0700), 0);
    assert_int_equal(mkdir(in("two"), 0700), 0);
    copy_plugin("probe", in("one/coli_probe.so"));
    copy_plugin("twin", in("one/coli_other.so")); // calls itself twin
    spill(in("one/coli_twin.so"), "text", 4);     // does not keep a good one from being taken
    spill(in("one/libtwin.so"), "text", 4);       // not a name of ours, like the next ones
    spill(in("one/coli_.so"), "text", 4);
    spill(in("one/coli_x.so.1"), "text", 4);
    copy_plugin("probe", in("two/coli_probe.so"));
    copy_plugin("twin", in("two/coli_twin.so"));
    assert_int_equal(symlink("../one/coli_probe.so", in("two/coli_a.so")), 0);
    assert_int_equal(symlink("two", in("again")), 0);
    snprintf(path, sizeof path, "%s/one::%s/none:%s/two/:%s/again:", scratch, scratch, scratch,
             scratch);
    only_loaded(0);
    T_OK(coli__plugins_find(NULL, path, &found));
    only_loaded(3);
    char *report = coli__plugins_report(&found);
    char *expected = NULL;
    assert_true(
        asprintf(&expected,
                 "  %s/one/coli_other.so: descriptor: it calls itself \"twin\"; rename the file to "
                 "coli_twin.so\n"
                 "  %s/one/coli_probe.so: ready\n"
                 "  %s/one/coli_twin.so: library: not a shared library: it does not begin like an "
                 "ELF file\n"
                 "  %s/none: file: no such directory\n"
                 "  %s/two/coli_probe.so: name: not loaded: %s/one/coli_probe.so comes first\n"
                 "  %s/two/coli_twin.so: ready",
                 scratch, scratch, scratch, scratch, scratch, scratch, scratch) > 0);
    T_STR(report, expected);
    T_EQ(found.n, 6); // nothing beside this program or installed
    free(expected);
    coli__free(report);
    coli__plugins_free(&found);

    /* By name: every directory is a candidate, also where there is none. */
    T_OK(coli__plugins_find("twin", path, &found));
    T_EQ(only_at(&found, in("one/coli_twin.so"))->stage, COLI__PLUGIN_LIBRARY);
    T_EQ(only_at(&found, in("none/coli_twin.so"))->stage, COLI__PLUGIN_FILE);
    T_EQ(only_at(&found, in("two/coli_twin.so"))->stage, COLI__PLUGIN_READY);
    assert_null(only_at(&found, in("again/coli_twin.so")));
    T_GE(found.n, 5); // these, beside the program and in the install directory
    T_STR(found.plugins[found.n - 1].reason, "no such file");
    coli__plugins_free(&found);

    T_OK(coli__plugins_find("absent", path, &found));
    assert_non_null(only_at(&found, in("two/coli_absent.so")));
    assert_null(only_at(&found, in("again/coli_absent.so"))); // that is two
    for (size_t i = 0; i < found.n; i++) T_EQ(found.plugins[i].stage, COLI__PLUGIN_FILE);
    T_GE(found.n, 2);
    coli__plugins_free(&found);

    T_FAILS(coli__plugins_find(NULL, "/tmp:lib", &found), COLI_E_INVALID, "\"lib\" is relative");
    T_EQ(found.n, 0);
}

/* Nothing of one plugin is seen by another. */
T_TEST(local_symbols)
{
    T_BEGIN;
    coli__plugin a = accepted(TEST_PLUGINS "/coli_probe.so");
    coli__plugin b = accepted(TEST_PLUGINS "/coli_twin.so");
    const char *(*who)(void);
    void *address = coli__dynlib_symbol(a.lib, "probe_internal");
    memcpy(&who, &address, sizeof who);
    T_STR(who(), "probe");
    address = coli__dynlib_symbol(b.lib, "probe_internal");
    memcpy(&who, &address, sizeof who);
    T_STR(who(), "twin");
    T_TRUE(a.api.open != b.api.open);
    coli__plugin_unload(&a);
    coli__plugin_unload(&b);
}

/* A library that opened a device stays. */
T_TEST(keep)
{
    T_BEGIN;
    copy_plugin("probe", in("keep.so"));
    coli__plugin p = accepted(in("keep.so"));
    const void *code = coli__dynlib_symbol(p.lib, "coli_backend_open");
    T_TRUE(coli__dynlib_is_code(code));
    coli__plugin_keep(&p);
    coli__plugin_unload(&p);
    T_TRUE(coli__dynlib_is_code(code));

    copy_plugin("probe", in("leave.so"));
    p = accepted(in("leave.so"));
    code = coli__dynlib_symbol(p.lib, "coli_backend_open");
    T_TRUE(coli__dynlib_is_code(code));
    coli__plugin_unload(&p);
    T_TRUE(!coli__dynlib_is_code(code));
}

/* ---- memory -------------------------------------------------------------------------------- */

T_TEST(no_memory)
{
    T_BEGIN;
    coli__plugin_list found;
    char path[512];
    snprintf(path, sizeof path, "%s/one:%s/two", scratch, scratch); // of `search`
    static const char *const backends[] = {NULL, "twin", TEST_PLUGINS "/coli_data.so"};
    for (int b = 0; b < 3; b++) {
        coli_status status = COLI_E_NOMEM;
        uint64_t nth = 1;
        for (; status == COLI_E_NOMEM; nth++) {
            coli__alloc_fail_at(nth);
            status = coli__plugins_find(backends[b], path, &found);
            coli__alloc_fail_at(0);
            if (status == COLI_E_NOMEM) T_EQ(found.n, 0);
        }
        T_EQ(status, COLI_OK);
        T_GE(nth, 5);
        for (nth = 1;; nth++) {
            coli__alloc_fail_at(nth);
            char *report = coli__plugins_report(&found);
            coli__alloc_fail_at(0);
            if (report) {
                coli__free(report);
                break;
            }
        }
        coli__plugins_free(&found);
    }
}

/* Each test counts its own marks. */
static int forget_marks(void **state)
{
    T_BEGIN;
    unlink(in("marks"));
    return 0;
}

#define TEST(name) cmocka_unit_test_setup(name, forget_marks)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(good),
        TEST(record),
        TEST(minor_versions),
        TEST(missing_symbols),
        TEST(missing_optional),
        TEST(no_plugins),
        TEST(elf_headers),
        TEST(cut_short),
        TEST(dependencies),
        TEST(paths),
        TEST(relative_path),
        TEST(search),
        TEST(local_symbols),
        TEST(keep),
        TEST(no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
