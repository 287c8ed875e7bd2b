/* recipe.c - see recipe.h.
 *
 * A line is SELECTOR FORMAT [layers LIST].  Selectors are six words and their parts, which mean the
 * same in every family, or the kind of a tensor as conversion reports it, where * stands for any
 * characters. */
#include "recipe.h"

#include <stdio.h>
#include <string.h>

#include "../base/file.h"
#include "quant_report.h"

enum { N_OPTION = 2 }; // lines that may be added behind a recipe's own

typedef struct layers {
    uint32_t first, last;
} layers;

typedef struct line {
    char where[160]; // "FILE: line 3", "--experts"
    char selector[COLI__REPORT_NAME];
    coli__recipe_choice choice;
    layers ranges[COLI__RECIPE_MAX_RANGES];
    uint32_t n_range; // 0: all layers, and what is in none
} line;

struct coli__recipe {
    line *lines; // (COLI__RECIPE_MAX_LINES + N_OPTION) owned: two more for options
    uint32_t n_line;
};

/* ---- presets -------------------------------------------------------------------------------- */

static const struct {
    const char *name, *text;
} presets[] = {
    {"small", "experts int4\ntrunk int8\nembed int4\nhead int4\n"},
    {"balanced", "experts int4\ntrunk int8\n"},
    {"exact", "experts source\ntrunk source\n"},
};

const char *coli__recipe_preset(const char *name)
{
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (strcmp(name, presets[i].name) == 0) return presets[i].text;
    return NULL;
}

/* ---- reading -------------------------------------------------------------------------------- */

/* The next word of [*at, end), without what stands around it; 0 bytes at the end. */
static size_t next_word(const char **at, const char *end)
{
    while (*at < end && (**at == ' ' || **at == '\t' || **at == '\r')) ++*at;
    const char *p = *at;
    while (p < end && *p != ' ' && *p != '\t' && *p != '\r') p++;
    return (size_t)(p - *at);
}

static bool copy_word(const char *word, size_t n, char *out, size_t cap)
{
    if (n >= cap || memchr(word, 0, n)) return false;
    memcpy(out, word, n);
    out[n] = 0;
    return true;
}

static const char *read_number(const char *p, const char *end, uint32_t *out)
{
    const char *begin = p;
    for (*out = 0; p < end && *p >= '0' && *p <= '9' && p - begin < 6; p++)
        *out = *out * 10 + (uint32_t)(*p - '0');
    return p > begin ? p : NULL;
}

/* "0-3,38" */
static coli_status read_layers(line *l, const char *p, const char *end)
{
    const char *all = p;
    for (;;) {
        layers range;
        const char *q = read_number(p, end, &range.first);
        range.last = range.first;
        if (q && q < end && *q == '-') q = read_number(q + 1, end, &range.last);
        if (!q || (q < end && *q != ',') || range.last < range.first)
            return coli__fail(COLI_E_FORMAT, "%s: layers \"%.*s\": expected a list like 0-3,38",
                              l->where, (int)(end - all), all);
        if (l->n_range == COLI__RECIPE_MAX_RANGES)
            return coli__fail(COLI_E_FORMAT, "%s: more than %d ranges of layers", l->where,
                              COLI__RECIPE_MAX_RANGES);
        l->ranges[l->n_range++] = range;
        if (q == end) return COLI_OK;
        p = q + 1;
    }
}

static coli_status read_format(line *l, const char *word, size_t n)
{
    char name[32];
    l->choice.is_source = n == 6 && memcmp(word, "source", 6) == 0;
    if (l->choice.is_source) return COLI_OK;
    if (copy_word(word, n, name, sizeof name) && coli__wfmt_parse(name, &l->choice.fmt) == COLI_OK)
        return COLI_OK;
    return coli__fail(COLI_E_FORMAT,
                      "%s: format \"%.*s\": expected int4, int8, bf16, f32, source or, in full, "
                      "int{4,8}-{g64,g32,row}-{f16,f32}",
                      l->where, n < 60 ? (int)n : 60, word);
}

/* A line that is not blank. */
static coli_status read_line(line *l, const char *p, const char *end)
{
    size_t n = next_word(&p, end);
    if (!copy_word(p, n, l->selector, sizeof l->selector))
        return coli__fail(COLI_E_FORMAT, "%s: no tensor has a name like that", l->where);
    p += n;
    n = next_word(&p, end);
    if (n == 0)
        return coli__fail(COLI_E_FORMAT, "%s: expected a format after \"%s\"", l->where,
                          l->selector);
    COLI_TRY(read_format(l, p, n));
    p += n;
    n = next_word(&p, end);
    if (n == 0) return COLI_OK;
    const bool is_layers = n == 6 && memcmp(p, "layers", 6) == 0;
    const char *found = p;
    const size_t n_found = n;
    p += n;
    n = next_word(&p, end);
    if (!is_layers || n == 0)
        return coli__fail(COLI_E_FORMAT,
                          "%s: expected the end of the line or \"layers LIST\", found \"%.*s\"",
                          l->where, n_found < 60 ? (int)n_found : 60, found);
    COLI_TRY(read_layers(l, p, p + n));
    p += n;
    n = next_word(&p, end);
    if (n == 0) return COLI_OK;
    return coli__fail(COLI_E_FORMAT,
                      "%s: expected the end of the line after the list of layers, found \"%.*s\"",
                      l->where, n < 60 ? (int)n : 60, p);
}

static coli_status read_all(coli__recipe *r, const char *what, const char *text, size_t n_bytes)
{
    static const char mark[] = "\xef\xbb\xbf"; // some editors begin every text in UTF-8 with it
    uint32_t number = 0;
    const char *end = text + n_bytes;
    if (n_bytes >= 3 && memcmp(text, mark, 3) == 0) text += 3;
    for (const char *p = text; p < end;) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        const char *line_end = newline ? newline : end;
        const char *hash = memchr(p, '#', (size_t)(line_end - p)), *word = p;
        const char *stop = hash ? hash : line_end;
        number++;
        if (next_word(&word, stop) > 0) {
            if (r->n_line == COLI__RECIPE_MAX_LINES)
                return coli__fail(COLI_E_FORMAT, "%s: line %u: more than %d lines", what, number,
                                  COLI__RECIPE_MAX_LINES);
            line *l = &r->lines[r->n_line++];
            snprintf(l->where, sizeof l->where, "%.120s: line %u", what, number);
            COLI_TRY(read_line(l, word, stop));
        }
        p = newline ? newline + 1 : end;
    }
    return COLI_OK;
}

coli_status coli__recipe_parse(const char *what, const char *text, size_t n_bytes,
                               coli__recipe **out)
{
    *out = NULL;
    coli__recipe *r = coli__calloc(1, sizeof *r);
    if (!r) return COLI_E_NOMEM;
    r->lines = coli__calloc(COLI__RECIPE_MAX_LINES + N_OPTION, sizeof *r->lines);
    const coli_status status = r->lines ? read_all(r, what, text, n_bytes) : COLI_E_NOMEM;
    if (status != COLI_OK) {
        coli__recipe_close(r);
        return status;
    }
    *out = r;
    return COLI_OK;
}

coli_status coli__recipe_open(const char *name, coli__recipe **out)
{
    *out = NULL;
    const char *preset = coli__recipe_preset(name);
    if (preset) return coli__recipe_parse(name, preset, strlen(preset), out);
    if (!coli__path_exists(name))
        return coli__fail(COLI_E_NOTFOUND,
                          "recipe \"%s\": expected small, balanced, exact or a file that is there",
                          name);
    coli__buf text;
    COLI_TRY(coli__file_read(name, COLI__RECIPE_MAX_BYTES, &text));
    const coli_status status =
        coli__recipe_parse(name, text.data ? text.data : "", text.n_bytes, out);
    coli__buf_finish(&text);
    return status;
}

void coli__recipe_close(coli__recipe *r)
{
    if (!r) return;
    coli__free(r->lines);
    coli__free(r);
}

coli_status coli__recipe_add(coli__recipe *r, const char *what, const char *selector,
                             const char *format)
{
    if (r->n_line == COLI__RECIPE_MAX_LINES + N_OPTION)
        return coli__fail(COLI_E_INTERNAL, "a recipe without room for %s", what);
    line *l = &r->lines[r->n_line++];
    *l = (line){.n_range = 0};
    snprintf(l->where, sizeof l->where, "%s", what);
    snprintf(l->selector, sizeof l->selector, "%s", selector);
    return read_format(l, format, strlen(format));
}

/* ---- matching ------------------------------------------------------------------------------- */

coli__recipe_item coli__recipe_tensor(const coli__model_spec *spec, const coli__tensor_spec *s,
                                      char kind[128])
{
    unsigned layer;
    coli__tensor_kind(s->name, kind);
    return (coli__recipe_item){.kind = kind,
                               .layer = sscanf(s->name, "layers.%5u.", &layer) == 1 ? (int32_t)layer
                                                                                    : -1,
                               .role = s->role,
                               .is_head = spec->head && strcmp(spec->head, s->name) == 0};
}

coli__recipe_item coli__recipe_expert(const coli__expert_spec *s, uint32_t part, char kind[128])
{
    static const char *const parts[] = {"gate", "up", "down"};
    char name[COLI__REPORT_NAME];
    snprintf(name, sizeof name, "%s%s", s->prefix, parts[part]);
    coli__tensor_kind(name, kind);
    return (coli__recipe_item){.kind = kind, .layer = (int32_t)s->layer, .is_expert = true};
}

static bool matches_pattern(const char *p, const char *text)
{
    const char *star = NULL, *from = NULL; // where to go on when what follows the * does not fit
    while (*text) {
        if (*p == '*') {
            star = p++;
            from = text;
        } else if (*p == *text) {
            p++;
            text++;
        } else if (star) {
            p = star + 1;
            text = ++from;
        } else {
            return false;
        }
    }
    while (*p == '*') p++;
    return *p == 0;
}

static bool is_dense(const coli__recipe_item *item)
{
    return !item->is_expert && (item->role == COLI_ROLE_TRUNK || item->role == COLI_ROLE_EMBED);
}

static bool matches_name(const char *s, const coli__recipe_item *item)
{
    if (strcmp(s, "experts") == 0) return item->is_expert;
    if (strncmp(s, "experts.", 8) == 0) { // the part is what stands behind the last dot
        const char *dot = strrchr(item->kind, '.');
        return item->is_expert && dot && strcmp(dot + 1, s + 8) == 0;
    }
    if (strcmp(s, "trunk") == 0) return is_dense(item);
    if (strcmp(s, "embed") == 0) return !item->is_expert && item->role == COLI_ROLE_EMBED;
    if (strcmp(s, "head") == 0) return item->is_head;
    if (strcmp(s, "router") == 0) return !item->is_expert && item->role == COLI_ROLE_PRECISE;
    // a pattern means many at once: what decides where rows go is named alone
    const bool is_precise = !item->is_expert && item->role == COLI_ROLE_PRECISE;
    return !(is_precise && strchr(s, '*')) && matches_pattern(s, item->kind);
}

static bool matches(const line *l, const coli__recipe_item *item)
{
    if (!item->is_expert && item->role == COLI_ROLE_VECTOR) return false; // always f32
    if (!matches_name(l->selector, item)) return false;
    for (uint32_t i = 0; i < l->n_range; i++)
        if (item->layer >= (int32_t)l->ranges[i].first && item->layer <= (int32_t)l->ranges[i].last)
            return true;
    return l->n_range == 0;
}

bool coli__recipe_find(const coli__recipe *r, const coli__recipe_item *item,
                       coli__recipe_choice *out)
{
    for (uint32_t i = r->n_line; i-- > 0;)
        if (matches(&r->lines[i], item)) {
            *out = r->lines[i].choice;
            return true;
        }
    return false;
}

/* What a line met in a model. */
typedef struct met {
    bool any;
    int32_t last_layer;
} met;

/* Whether the line matches this, and if so, whether it may. */
static coli_status check_item(const line *l, const coli__recipe_item *item, met *m)
{
    if (item->layer > m->last_layer) m->last_layer = item->layer;
    if (!matches(l, item)) return COLI_OK;
    m->any = true;
    if (item->is_expert || item->role != COLI_ROLE_PRECISE || l->choice.is_source ||
        !coli__wfmt_is_quant(l->choice.fmt))
        return COLI_OK;
    return coli__fail(COLI_E_FORMAT,
                      "%s: %s decides what is computed: expected f32, bf16 or source", l->where,
                      item->kind);
}

static coli_status check_line(const line *l, const coli__model_spec *spec)
{
    char kind[COLI__REPORT_NAME];
    met m = {.last_layer = 0};
    for (uint32_t i = 0; i < spec->n_tensor; i++) {
        const coli__recipe_item item = coli__recipe_tensor(spec, &spec->tensors[i], kind);
        COLI_TRY(check_item(l, &item, &m));
    }
    for (uint32_t i = 0; i < 3 * spec->n_expert_layer; i++) {
        const coli__recipe_item item = coli__recipe_expert(&spec->experts[i / 3], i % 3, kind);
        COLI_TRY(check_item(l, &item, &m));
    }
    for (uint32_t i = 0; i < l->n_range; i++)
        if ((int64_t)l->ranges[i].last > m.last_layer)
            return coli__fail(COLI_E_FORMAT, "%s: layer %u: expected at most %d, the model's last",
                              l->where, l->ranges[i].last, (int)m.last_layer);
    if (m.any) return COLI_OK;
    return coli__fail(COLI_E_FORMAT,
                      "%s: \"%s\" is no matrix of this model%s; expected experts, experts.gate, "
                      "experts.up, experts.down, trunk, embed, head, router, or a kind of tensor "
                      "like self_attn.q_proj or mlp.shared_expert.*",
                      l->where, l->selector, l->n_range ? " in these layers" : "");
}

coli_status coli__recipe_check(const coli__recipe *r, const coli__model_spec *spec)
{
    for (uint32_t i = 0; i < r->n_line; i++) COLI_TRY(check_line(&r->lines[i], spec));
    return COLI_OK;
}
