/* scrub.c - see scrub.h. */
#include "scrub.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "system.h"
#include "terminal.h"

typedef struct text {
    char *data; // NUL-terminated
    size_t n, cap;
} text;

static void add(text *t, const char *bytes, size_t n)
{
    if (t->n + n + 1 > t->cap) {
        t->cap = 2 * (t->n + n + 1);
        t->data = app_realloc(t->data, t->cap, 1);
    }
    memcpy(t->data + t->n, bytes, n);
    t->n += n;
    t->data[t->n] = 0;
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

/* ---- names --------------------------------------------------------------------------------- */

static bool equal_without_case(const char *a, const char *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (tolower((unsigned char)a[i]) != tolower((unsigned char)b[i])) return false;
    return true;
}

/* Whether `name` stands at `at`, which is within `all`. */
static bool is_here(const char *all, const char *at, const char *name, size_t n)
{
    enum { LONG_ENOUGH = 3 };
    if (strlen(at) < n || !equal_without_case(at, name, n)) return false;
    if (n >= LONG_ENOUGH) return true;
    return (at == all || !is_word(at[-1])) && !is_word(at[n]);
}

static char *without(char *all, const char *name, const char *instead)
{
    const size_t n = strlen(name);
    text out = {0};
    add(&out, "", 0);
    for (const char *at = all; *at;) {
        const bool here = is_here(all, at, name, n);
        add(&out, here ? instead : at, here ? strlen(instead) : 1);
        at += here ? n : 1;
    }
    free(all);
    return out.data;
}

/* ---- paths --------------------------------------------------------------------------------- */

static bool is_slash(char c)
{
    return c == '/' || c == '\\';
}

/* Bytes of an absolute path that begins here; 0: none does.  It ends where texts end one. */
static size_t path_length(const char *all, const char *at)
{
    static const char ends[] = " \t\n\"'`,;()<>|";
    if (at > all && (is_word(at[-1]) || strchr(".~/\\", at[-1]))) return 0;
    const bool drive = isalpha((unsigned char)at[0]) && at[1] == ':' && is_slash(at[2]);
    const bool share = at[0] == '\\' && at[1] == '\\';
    if (!drive && !share && at[0] != '/') return 0;
    size_t n = drive ? 2 : 0;
    while (at[n] && !strchr(ends, at[n]) && !(at[n] == ':' && n > 1)) n++;
    return n > 1 ? n : 0;
}

/* A path of less than three components is somebody's home, or nearly. */
static void add_path(text *out, const char *path, size_t n)
{
    size_t last = n, n_component = 0;
    while (n > 0 && is_slash(path[n - 1])) n--;
    for (size_t i = 0; i < n; i++)
        if (is_slash(path[i]) && !is_slash(path[i + 1])) {
            n_component++;
            last = i + 1;
        }
    add(out, "...", 3);
    if (n_component < 3) return;
    add(out, "/", 1);
    add(out, path + last, n - last);
}

static char *with_short_paths(char *all)
{
    text out = {0};
    add(&out, "", 0);
    for (const char *at = all; *at;) {
        const size_t n = path_length(all, at);
        if (n)
            add_path(&out, at, n);
        else
            add(&out, at, 1);
        at += n ? n : 1;
    }
    free(all);
    return out.data;
}

char *scrub_text(const char *given)
{
    text copy = {0};
    add(&copy, given, strlen(given));
    char *all = copy.data;
    char name[APP_MAX_NAME];
    app_personal kind;
    for (size_t i = 0; app_system_personal(i, &kind, name, sizeof name); i++) {
        static const char *const instead[] = {"~", "(user)", "(host)"};
        if (*name) all = without(all, name, instead[kind]);
    }
    return with_short_paths(all);
}
