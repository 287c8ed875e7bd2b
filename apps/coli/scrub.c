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

/* ---- paths ---------------------------------------------------------------------------------
 *
 * Text is looked at word by word: a word ends at a blank, a quote, a newline or one of ,;:=<>| and one with
 * a slash in it is a path.  Names have blanks in them, too, so
 *
 *     between quotes   the path goes on to the closing one
 *     elsewhere        it goes on to the last of a few words that has a slash within it, or to a colon
 *                      before a blank: "/mnt/John Smith/b.coli: is torn" */

enum { MAX_MORE_WORDS = 6 };

static bool is_slash(char c)
{
    return c == '/' || c == '\\';
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* Bytes of the quote that begins here; 0: none, or one that is an apostrophe. */
static size_t quote_length(const char *all, const char *at)
{
    static const char *const quotes[] = {"\"",     "'",      "`",      "\u2018", "\u2019",
                                         "\u201A", "\u201C", "\u201D", "\u201E", "\u00AB",
                                         "\u00BB", "\u2039", "\u203A"};
    for (size_t i = 0; i < sizeof quotes / sizeof *quotes; i++) {
        const size_t n = strlen(quotes[i]);
        if (strncmp(at, quotes[i], n) != 0) continue;
        const bool within = at > all && is_word(at[-1]) && isalnum((unsigned char)at[n]);
        return within ? 0 : n;
    }
    return 0;
}

static bool is_drive(const char *at)
{
    return isalpha((unsigned char)at[0]) && at[1] == ':' && is_slash(at[2]);
}

static size_t word_length(const char *all, const char *at)
{
    static const char ends[] = " \t\r\n,;:=<>|";
    size_t n = is_drive(at) ? 2 : 0;
    while (at[n] && !strchr(ends, at[n]) && !quote_length(all, at + n)) n++;
    return n;
}

static bool has_slash(const char *at, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (is_slash(at[i])) return true;
    return false;
}

/* Units and the like, and numbers: a slash, and no path. */
static bool is_harmless(const char *word, size_t n)
{
    static const char *const known[] = {"GB/s", "MB/s", "tok/s", "tokens/s",
                                        "I/O",  "n/a",  "w/",    "/"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i]) == n && memcmp(word, known[i], n) == 0) return true;
    for (size_t i = 0; i < n; i++)
        if (word[i] != '/' && !isdigit((unsigned char)word[i])) return false;
    return isdigit((unsigned char)word[0]);
}

static bool is_path(const char *word, size_t n)
{
    return has_slash(word, n) && !is_harmless(word, n);
}

static bool begins_path(const char *word)
{
    return is_slash(*word) || is_drive(word) || (*word == '~' && is_slash(word[1])) ||
           (*word == '.' && (is_slash(word[1]) || (word[1] == '.' && is_slash(word[2]))));
}

/* Bytes of the path whose first word has n. */
static size_t over_blanks(const char *all, const char *path, size_t n)
{
    const char *at = path + n;
    for (int i = 0; i < MAX_MORE_WORDS && is_blank(*at); i++) {
        while (is_blank(*at)) at++;
        if (begins_path(at)) break;
        size_t n_word = 0;
        for (size_t more = 1; more; n_word += more) { // commas and the like may stand within a name
            more = word_length(all, at + n_word);
            if (!more && at[n_word] && strchr(",;=|", at[n_word])) more = 1;
        }
        at += n_word;
        const bool ends_here = at[0] == ':' && (is_blank(at[1]) || !at[1] || at[1] == '\n');
        if (ends_here || is_path(at - n_word, n_word)) n = (size_t)(at - path);
    }
    return n;
}

/* The same between quotes, the first of which has n_quote bytes and begins here; 0: no path is. */
static size_t between_quotes(const char *all, const char *quote, size_t n_quote)
{
    const char *at = quote + n_quote;
    size_t n = 0;
    while (at[n] && at[n] != '\n') {
        const size_t n_end = quote_length(all, at + n);
        if (n_end && (n_quote > 1 ? n_end > 1 : at[n] == *quote)) return is_path(at, n) ? n : 0;
        n++;
    }
    return 0;
}

/* Of what begins at a root less than three components is somebody's home, or nearly. */
static void add_path(text *out, const char *path, size_t n)
{
    const bool is_rooted = is_slash(path[0]) || is_drive(path);
    size_t last = 0, n_slash = 0;
    while (n > 0 && is_slash(path[n - 1])) n--;
    for (size_t i = 0; i < n; i++)
        if (is_slash(path[i]) && !is_slash(path[i + 1])) {
            n_slash++;
            last = i + 1;
        }
    add(out, "...", 3);
    if (n_slash < (is_rooted ? 3 : 1)) return;
    add(out, "/", 1);
    add(out, path + last, n - last);
}

static char *with_short_paths(char *all)
{
    text out = {0};
    add(&out, "", 0);
    for (const char *at = all; *at;) {
        const size_t n_quote = quote_length(all, at);
        const size_t n_quoted = n_quote ? between_quotes(all, at, n_quote) : 0;
        const size_t n_lead = n_quote ? n_quote : strchr("([{", *at) ? 1 : 0;
        size_t n = n_quoted ? n_quoted : n_lead ? 0 : word_length(all, at);
        if (n_lead || n == 0) { // a quote, a bracket, a blank: as it is
            const size_t n_here = n_lead ? n_lead : 1;
            add(&out, at, n_here);
            at += n_here;
            if (!n_quoted) continue;
        }
        const bool is_one = n_quoted || is_path(at, n);
        if (is_one && !n_quoted) n = over_blanks(all, at, n);
        if (is_one)
            add_path(&out, at, n);
        else
            add(&out, at, n);
        at += n;
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
