/* split.c - the pre-tokenizer's patterns: translated, compiled, and run with their limits in view.
 *
 * tokenizer.json is written for the Oniguruma engine, and PCRE2 reads some of the same letters
 * otherwise: \h is a hex digit there and a blank here, {2}+ repeats there and is possessive here,
 * \s holds U+180E only here, [[a]] nests only there.  A difference would split text silently in
 * other places.  So nothing is passed through on trust: translate() copies what means the same,
 * rewrites
 *
 *     \s \S   the 25 White_Space characters, spelt out
 *     \d \D   \p{Nd} \P{Nd}
 *     .       [^\n]
 *     (       (?:      back references are refused, so captures serve nobody
 *
 * and refuses everything else by name.
 *
 * Three things would make a long text take quadratic time, and are avoided: PCRE2's check of the
 * whole text's UTF-8 at every call (PCRE2_NO_UTF_CHECK: the text was checked once), a fixed budget
 * of steps that a run of a million blanks uses up (the budget grows with the text), and a stack of
 * fixed size (when the compiled code runs out of it, the interpreter, which keeps its state on the
 * heap, does that match again).  A pattern that is itself explosive ends in E_LIMIT. */
#include "split.h"

#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum {
    MAX_PATTERN_BYTES = 65536,
    MAX_REPEAT = 1000,
    BASE_STEPS = 10000000, // PCRE2's own default, for texts of any length
    STEPS_PER_BYTE = 64,   // and what longer ones get on top
    HEAP_KIB = 512 * 1024  // memory the interpreter may use for one match
};

struct coli__split {
    pcre2_general_context *memory;
    pcre2_code *code;
    bool jit;
};

struct coli__split_work {
    pcre2_match_context *context;
    pcre2_match_data *match;
};

/* ---- translation ----------------------------------------------------------------------------- */

#define WHITE_SPACE                                                                                \
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"   \
    "\\x{3000}"

typedef struct pattern {
    const char *what, *text;
    size_t at;
    coli__buf *out;
} pattern;

static coli_status refuse(const pattern *p, size_t begin, size_t n_bytes, const char *why)
{
    char shown[33]; // the offending letters, if a terminal can show them
    size_t n = 0;
    for (; n < n_bytes && n + 1 < sizeof shown; n++) {
        const char c = p->text[begin + n];
        shown[n] = c >= 0x20 && c < 0x7F ? c : '?';
    }
    shown[n] = 0;
    return coli__fail(COLI_E_UNSUPPORTED, "%s: pattern: %s at byte %zu: %s", p->what, shown, begin,
                      why);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}
static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* \p{L}, \P{Lu}, \p{^N}: general categories only, because scripts differ between the engines. */
static coli_status property(pattern *p)
{
    static const char categories[] =
        "C Cc Cf Cn Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd "
        "Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp Zs ";
    const size_t begin = p->at;
    const char *name = p->text + begin + 2;
    if (*name != '{') return refuse(p, begin, 2, "expected \\p{category}");
    name += name[1] == '^' ? 2 : 1;
    const size_t n = strcspn(name, "}");
    char padded[4] = "";
    if (n == 1 || n == 2) memcpy(padded, name, n), padded[n] = ' ';
    const char *found = *padded && name[n] ? strstr(categories, padded) : NULL;
    if (!found || (found > categories && found[-1] != ' '))
        return refuse(p, begin, 2, "only general categories such as \\p{L} are known");
    p->at = (size_t)(name + n + 1 - p->text);
    return coli__buf_append(p->out, p->text + begin, p->at - begin);
}

/* An escape.  *is_set: it stands for several characters, so that it cannot end a range. */
static coli_status escape(pattern *p, bool in_class, bool *is_set)
{
    const char c = p->text[p->at + 1];
    *is_set = true;
    const char *as = NULL;
    if (c == 'p' || c == 'P') return property(p);
    if (c == 's') as = in_class ? WHITE_SPACE : "[" WHITE_SPACE "]";
    if (c == 'S' && !in_class) as = "[^" WHITE_SPACE "]";
    if (c == 'd') as = "\\p{Nd}";
    if (c == 'D') as = "\\P{Nd}";
    if (as) {
        p->at += 2;
        return coli__buf_str(p->out, as);
    }
    *is_set = false;
    const bool control = c == 'r' || c == 'n' || c == 't' || c == 'f';
    const bool mark = c > ' ' && c < 0x7F && !is_letter(c) && !is_digit(c);
    if (!control && !mark) return refuse(p, p->at, c ? 2 : 1, "this escape is not known");
    COLI_TRY(coli__buf_append(p->out, p->text + p->at, 2));
    p->at += 2;
    return COLI_OK;
}

static coli_status character_class(pattern *p)
{
    const size_t begin = p->at++;
    COLI_TRY(coli__buf_str(p->out, "["));
    if (p->text[p->at] == '^') {
        COLI_TRY(coli__buf_str(p->out, "^"));
        p->at++;
    }
    if (p->text[p->at] == ']') return refuse(p, begin, p->at + 1 - begin, "an empty class");
    bool after_set = false; // the last member was a set: a hyphen now could be read in two ways
    for (bool first = true; p->text[p->at] != ']'; first = false) {
        const char c = p->text[p->at], next = c ? p->text[p->at + 1] : 0;
        if (!c) return refuse(p, begin, 1, "the class is not closed");
        if (c == '[') return refuse(p, p->at, 1, "a class inside a class");
        if (c == '&' && next == '&') return refuse(p, p->at, 2, "an intersection of classes");
        bool is_set = false;
        if (c == '\\') {
            COLI_TRY(escape(p, true, &is_set));
        } else {
            const bool range = c == '-' && !first && next != ']';
            const char end = range && next == '\\' ? p->text[p->at + 2] : 0;
            if (range && (after_set || (end && strchr("sSdDpP", end))))
                return refuse(p, p->at, 1, "a range that ends in a set");
            COLI_TRY(coli__buf_append(p->out, &c, 1));
            p->at++;
        }
        after_set = is_set;
    }
    p->at++;
    return coli__buf_str(p->out, "]");
}

static coli_status group(pattern *p)
{
    static const char *const openings[] = {"(?:", "(?=", "(?!", "(?i:"};
    const char *text = p->text + p->at;
    for (size_t i = 0; i < sizeof openings / sizeof *openings; i++)
        if (strncmp(text, openings[i], strlen(openings[i])) == 0) {
            p->at += strlen(openings[i]);
            return coli__buf_str(p->out, openings[i]);
        }
    if (text[1] == '?') return refuse(p, p->at, text[2] ? 3 : 2, "this kind of group is not known");
    if (text[1] == '*') return refuse(p, p->at, 2, "this kind of group is not known");
    p->at++;
    return coli__buf_str(p->out, "(?:");
}

/* {n} {n,} {n,m}, after which ? and + mean different things to the two engines. */
static coli_status counted_repeat(pattern *p)
{
    const size_t begin = p->at++;
    uint32_t count[2] = {0, 0};
    uint32_t n_count = 0;
    do {
        const size_t digits = p->at;
        for (; is_digit(p->text[p->at]); p->at++)
            if (count[n_count] <= MAX_REPEAT)
                count[n_count] = count[n_count] * 10 + (uint32_t)(p->text[p->at] - '0');
        if (p->at == digits && n_count == 0) break;
        n_count++;
    } while (n_count < 2 && p->text[p->at] == ',' && p->at++);
    if (n_count == 0 || p->text[p->at] != '}')
        return refuse(p, begin, 1, "expected {n}, {n,} or {n,m}");
    p->at++;
    if (count[0] > MAX_REPEAT || count[1] > MAX_REPEAT)
        return refuse(p, begin, p->at - begin, "repeats more than 1000 times");
    if (p->text[p->at] && strchr("?+*{", p->text[p->at]))
        return refuse(p, begin, p->at + 1 - begin, "a quantifier on a counted repeat");
    return coli__buf_append(p->out, p->text + begin, p->at - begin);
}

static coli_status translate(const char *what, const char *text, coli__buf *out)
{
    pattern p = {what, text, 0, out};
    while (text[p.at]) {
        const char c = text[p.at];
        bool is_set;
        if (c == '\\') {
            COLI_TRY(escape(&p, false, &is_set));
        } else if (c == '[') {
            COLI_TRY(character_class(&p));
        } else if (c == '(') {
            COLI_TRY(group(&p));
        } else if (c == '{') {
            COLI_TRY(counted_repeat(&p));
        } else if (c == '^' || c == '$') {
            return refuse(&p, p.at, 1, "anchors are not known");
        } else {
            COLI_TRY(c == '.' ? coli__buf_str(out, "[^\\n]") : coli__buf_append(out, &c, 1));
            p.at++;
        }
    }
    return COLI_OK;
}

/* ---- compiling ------------------------------------------------------------------------------- */

static void *take(PCRE2_SIZE n_bytes, void *user)
{
    (void)user;
    return coli__calloc(n_bytes, 1);
}

static void give(void *p, void *user)
{
    (void)user;
    coli__free(p);
}

static coli_status compile(const char *what, const coli__buf *translated, coli__split *split)
{
    split->memory = pcre2_general_context_create(take, give, NULL);
    if (!split->memory) return COLI_E_NOMEM;
    int code = 0;
    PCRE2_SIZE offset = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(split->memory);
    if (!context) return COLI_E_NOMEM;
    split->code = pcre2_compile((PCRE2_SPTR)translated->data, translated->n_bytes,
                                PCRE2_UTF | PCRE2_UCP, &code, &offset, context);
    pcre2_compile_context_free(context);
    if (!split->code) {
        if (code == PCRE2_ERROR_HEAP_FAILED)
            return coli__fail(COLI_E_NOMEM, "%s: pattern: out of memory", what);
        PCRE2_UCHAR reason[128];
        pcre2_get_error_message(code, reason, sizeof reason);
        return coli__fail(COLI_E_FORMAT, "%s: pattern: %s", what, (const char *)reason);
    }
    uint32_t may_be_empty = 0;
    pcre2_pattern_info(split->code, PCRE2_INFO_MATCHEMPTY, &may_be_empty);
    if (may_be_empty)
        return coli__fail(COLI_E_UNSUPPORTED, "%s: pattern: it may match nothing at all", what);
    split->jit = pcre2_jit_compile(split->code, PCRE2_JIT_COMPLETE) == 0;
    return COLI_OK;
}

coli_status coli__split_compile(const char *what, const char *text, coli__split **out)
{
    *out = NULL;
    const size_t n_bytes = strlen(text);
    if (n_bytes == 0 || n_bytes > MAX_PATTERN_BYTES)
        return coli__fail(COLI_E_FORMAT, "%s: pattern: expected 1 to %d bytes, found %zu", what,
                          MAX_PATTERN_BYTES, n_bytes);
    coli__buf translated = {0};
    coli__split *split = coli__calloc(1, sizeof *split);
    coli_status status = split ? translate(what, text, &translated) : COLI_E_NOMEM;
    if (status == COLI_OK) status = compile(what, &translated, split);
    coli__buf_finish(&translated);
    if (status != COLI_OK) {
        coli__split_free(split);
        return status;
    }
    *out = split;
    return COLI_OK;
}

void coli__split_free(coli__split *split)
{
    if (!split) return;
    pcre2_code_free(split->code);
    pcre2_general_context_free(split->memory);
    coli__free(split);
}

void coli__split_use_jit(coli__split *split, bool on)
{
    split->jit = on && pcre2_jit_compile(split->code, PCRE2_JIT_COMPLETE) == 0;
}

/* ---- matching -------------------------------------------------------------------------------- */

coli_status coli__split_work_create(const coli__split *split, coli__split_work **out)
{
    *out = NULL;
    coli__split_work *work = coli__calloc(1, sizeof *work);
    if (!work) return COLI_E_NOMEM;
    work->context = pcre2_match_context_create(split->memory);
    if (work->context) work->match = pcre2_match_data_create(1, split->memory);
    if (!work->match) {
        coli__split_work_free(work);
        return COLI_E_NOMEM;
    }
    pcre2_set_heap_limit(work->context, HEAP_KIB);
    *out = work;
    return COLI_OK;
}

void coli__split_work_free(coli__split_work *work)
{
    if (!work) return;
    pcre2_match_data_free(work->match);
    pcre2_match_context_free(work->context);
    coli__free(work);
}

static coli_status no_match(int code, size_t from)
{
    if (code == PCRE2_ERROR_NOMEMORY)
        return coli__fail(COLI_E_NOMEM, "pattern: out of memory at byte %zu", from);
    PCRE2_UCHAR reason[128];
    pcre2_get_error_message(code, reason, sizeof reason);
    const bool limit = code == PCRE2_ERROR_MATCHLIMIT || code == PCRE2_ERROR_HEAPLIMIT ||
                       code == PCRE2_ERROR_DEPTHLIMIT;
    return coli__fail(limit ? COLI_E_LIMIT : COLI_E_INTERNAL, "pattern: %s at byte %zu",
                      (const char *)reason, from);
}

coli_status coli__split_next(const coli__split *split, coli__split_work *work, const char *text,
                             size_t n_bytes, size_t from, size_t *begin, size_t *end)
{
    *begin = *end = n_bytes;
    const uint64_t steps = BASE_STEPS + (uint64_t)STEPS_PER_BYTE * (n_bytes - from);
    const uint32_t limit = steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX;
    pcre2_set_match_limit(work->context, limit);
    pcre2_set_depth_limit(work->context, limit);

    const PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int code = PCRE2_ERROR_JIT_STACKLIMIT;
    if (split->jit)
        code = pcre2_jit_match(split->code, subject, n_bytes, from, 0, work->match, work->context);
    if (code == PCRE2_ERROR_JIT_STACKLIMIT)
        code = pcre2_match(split->code, subject, n_bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                           work->match, work->context);
    if (code == PCRE2_ERROR_NOMATCH) return COLI_OK;
    if (code < 0) return no_match(code, from);
    const PCRE2_SIZE *offsets = pcre2_get_ovector_pointer(work->match);
    if (offsets[1] <= offsets[0] || offsets[0] < from)
        return coli__fail(COLI_E_INTERNAL, "pattern: a match of no length at byte %zu", from);
    *begin = offsets[0];
    *end = offsets[1];
    return COLI_OK;
}
