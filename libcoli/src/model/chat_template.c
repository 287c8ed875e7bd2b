/* chat_template.c - what the chat templates of Qwen3.5 and Qwen3.6 print, written out in C.
 *
 * The templates are programs in Jinja; a model is trained on their exact bytes, and an engine that
 * interprets Jinja would run whatever a model directory brings.  So the two known ones are code:
 *
 *     system     tool preamble, one JSON object per tool, instructions, then the system text;
 *                or the system text alone, also when it is empty; nothing without either
 *     user       <|im_start|>user\n TEXT <|im_end|>\n
 *     assistant  <|im_start|>assistant\n [<think>\n REASONING \n</think>\n\n] TEXT [calls]
 *                <|im_end|>\n
 *     tool       consecutive results in one user turn, each within <tool_response>
 *     prompt     <|im_start|>assistant\n<think>\n, closed again when thinking is off
 *
 * The think block of an assistant turn is printed only behind the last query: the last user message
 * that is not itself a tool response in disguise.  3.6 prints all of them with preserve_thinking,
 * and writes tool call values as JSON where 3.5 writes Python (true against True).
 *
 * What comes from the caller's messages and tools is written by put_plain(), or marked by
 * mark_plain() once it is written; what the template itself says, by put().  So the spans that keep
 * a person's "<|im_end|>" from becoming a control token are exactly the caller's words.
 *
 * stable_bytes is the first byte that a later rendering may change.  Only one thing ever changes: a
 * think block printed now because it lies behind the last query, which moves with the next user
 * message.  So it is the first such block, the generation prompt's own included. */
#include "chat_template.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "utf8.h"

enum { MAX_DEPTH = 128 };

/* ---- parsing: whole numbers of any size ------------------------------------------------------ */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Is a token of the characters that numbers have a whole number too large for 64 bits? */
static bool is_big(const char *token, size_t n_bytes)
{
    const bool negative = token[0] == '-';
    const char *digits = token + negative;
    const size_t n = n_bytes - negative;
    for (size_t i = 0; i < n; i++)
        if (!is_digit(digits[i])) return false;
    if (n < 19 || digits[0] == '0') return false; // a leading zero is for the parser to refuse
    return n > 19 ||
           memcmp(digits, negative ? "9223372036854775808" : "9223372036854775807", 19) > 0;
}

/* Copy a string token with its quotes; *at stands on the first and ends behind the last. */
static coli_status copy_string(const char *what, const char *text, size_t n_bytes, size_t *at,
                               coli__buf *out)
{
    const size_t begin = *at;
    size_t i = begin + 1;
    if (n_bytes - i >= 6 && memcmp(text + i, "\\u0000", 6) == 0)
        return coli__fail(COLI_E_FORMAT, "%s: byte %zu: a string begins with U+0000", what, begin);
    while (i < n_bytes && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
    *at = i < n_bytes ? i + 1 : n_bytes;
    return coli__buf_append(out, text + begin, *at - begin);
}

/* The text with each big number N as the string "\u0000N", after counting the depth. */
static coli_status keep_big_numbers(const char *what, const char *text, size_t n_bytes,
                                    coli__buf *out)
{
    int depth = 0;
    for (size_t at = 0; at < n_bytes;) {
        const char c = text[at];
        if (c == '"') {
            COLI_TRY(copy_string(what, text, n_bytes, &at, out));
            continue;
        }
        if (c == '[' || c == '{') depth++;
        if (c == ']' || c == '}') depth--;
        if (depth > MAX_DEPTH)
            return coli__fail(COLI_E_FORMAT, "%s: JSON is nested deeper than %d", what, MAX_DEPTH);
        size_t end = at;
        while (end < n_bytes && (is_digit(text[end]) || (text[end] && strchr("+-.eE", text[end]))))
            end++;
        const bool big = end - at >= 19 && is_big(text + at, end - at);
        if (end == at) end++;
        if (big) COLI_TRY(coli__buf_str(out, "\"\\u0000"));
        COLI_TRY(coli__buf_append(out, text + at, end - at));
        if (big) COLI_TRY(coli__buf_str(out, "\""));
        at = end;
    }
    return COLI_OK;
}

coli_status coli__chat_parse(const char *what, const char *text, size_t n_bytes, json_t **out)
{
    *out = NULL;
    coli__buf kept = {0};
    coli_status status = coli__buf_str(&kept, "");
    if (status == COLI_OK) status = keep_big_numbers(what, text, n_bytes, &kept);
    if (status == COLI_OK) {
        json_error_t error;
        *out = json_loadb(kept.data, kept.n_bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
        if (!*out)
            status = coli__fail(COLI_E_FORMAT, "%s: line %d, column %d: %s", what, error.line,
                                error.column, error.text);
    }
    coli__buf_finish(&kept);
    return status;
}

/* ---- pieces of text -------------------------------------------------------------------------- */

typedef struct view {
    const char *data;
    size_t n_bytes;
} view;

static view view_of(const json_t *string)
{
    return (view){json_string_value(string), json_string_length(string)};
}

/* What Python's str.strip removes: White_Space and the four separators U+001C to U+001F. */
static bool is_space(uint32_t point)
{
    return (point >= 0x09 && point <= 0x0D) || (point >= 0x1C && point <= 0x20) || point == 0x85 ||
           point == 0xA0 || point == 0x1680 || (point >= 0x2000 && point <= 0x200A) ||
           point == 0x2028 || point == 0x2029 || point == 0x202F || point == 0x205F ||
           point == 0x3000;
}

static view trim(view v)
{
    size_t begin = 0, end = v.n_bytes;
    for (size_t at = 0; at < end; begin = at)
        if (!is_space(coli__utf8_next(v.data, &at))) break;
    while (end > begin) {
        const size_t before = coli__utf8_before(v.data, end);
        size_t at = before;
        if (!is_space(coli__utf8_next(v.data, &at))) break;
        end = before;
    }
    return (view){v.data + begin, end - begin};
}

static view skip_newlines(view v)
{
    while (v.n_bytes && *v.data == '\n') v.data++, v.n_bytes--;
    return v;
}

static bool starts(view v, const char *tag)
{
    const size_t n = strlen(tag);
    return v.n_bytes >= n && memcmp(v.data, tag, n) == 0;
}

static bool ends(view v, const char *tag)
{
    const size_t n = strlen(tag);
    return v.n_bytes >= n && memcmp(v.data + v.n_bytes - n, tag, n) == 0;
}

/* Offset of the first or last tag, or v.n_bytes. */
static size_t find(view v, const char *tag, bool last)
{
    size_t found = v.n_bytes;
    for (size_t i = 0; i + strlen(tag) <= v.n_bytes; i++) {
        if (v.data[i] != *tag || !starts((view){v.data + i, v.n_bytes - i}, tag)) continue;
        found = i;
        if (!last) break;
    }
    return found;
}

static view from(view v, size_t at)
{
    return (view){v.data + at, v.n_bytes - at};
}

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct renderer {
    coli__render *out;
    size_t cap_plain;
    const json_t *messages;
    size_t last_query;      // index of the message behind which thinking is shown
    size_t first_think;     // where the first block begins that may change, or SIZE_MAX
    bool python_values;     // 3.5
    bool preserve_thinking; // 3.6 and asked for
} renderer;

/* The template's own words. */
static coli_status put(renderer *r, const char *text)
{
    return coli__buf_str(&r->out->text, text);
}

/* Declare plain what was written since `begin`. */
static coli_status mark_plain(renderer *r, size_t begin)
{
    coli__render *out = r->out;
    const size_t end = out->text.n_bytes;
    if (end == begin) return COLI_OK;
    if (out->n_plain == r->cap_plain) {
        const size_t cap = r->cap_plain * 2 + 16;
        coli__span *grown = coli__realloc(out->plain, cap, sizeof *grown);
        if (!grown) return COLI_E_NOMEM;
        out->plain = grown;
        r->cap_plain = cap;
    }
    out->plain[out->n_plain++] = (coli__span){begin, end};
    return COLI_OK;
}

/* The caller's words. */
static coli_status put_plain(renderer *r, view v)
{
    const size_t begin = r->out->text.n_bytes;
    COLI_TRY(coli__buf_append(&r->out->text, v.data, v.n_bytes));
    return mark_plain(r, begin);
}

/* ---- values as Python prints them ------------------------------------------------------------ */

/* The shortest digits that read back as `value` (finite, > 0), the nearest of these; value is
 * 0.DIGITS * 10^*point.  printf rounds to the nearest number of so many digits, which is the answer
 * except at a power of two, where the gap above is twice the gap below and a number farther off,
 * but above, may read back although the nearest one does not. */
static void shortest_digits(double value, char digits[20], int *point)
{
    for (int n = 1; n <= 17; n++) {
        for (int up = 0; up < 2; up++) {
            char text[40], exact[40];
            snprintf(text, sizeof text, "%.*e", n - 1, value);
            int k = 0;
            const char *c = text;
            for (; *c && *c != 'e'; c++) // the decimal point is the locale's
                if (is_digit(*c)) digits[k++] = *c;
            digits[k] = 0;
            *point = atoi(c + 1) + 1;
            if (up) {
                int i = n - 1;
                while (i > 0 && digits[i] == '9') digits[i--] = '0';
                if (digits[i] == '9') continue; // all nines: one digit less would have done
                digits[i]++;
            }
            snprintf(exact, sizeof exact, "%se%d", digits, *point - n);
            if (strtod(exact, NULL) == value) return;
        }
    }
}

/* repr(value) */
static coli_status put_real(coli__buf *out, double value)
{
    if (signbit(value)) COLI_TRY(coli__buf_str(out, "-"));
    if (value == 0) return coli__buf_str(out, "0.0");
    char digits[20];
    int point;
    shortest_digits(fabs(value), digits, &point);
    int n = (int)strlen(digits);
    while (n > 1 && digits[n - 1] == '0') digits[--n] = 0;
    if (point > 16 || point < -3)
        return coli__buf_printf(out, "%c%s%se%+03d", digits[0], n > 1 ? "." : "", digits + 1,
                                point - 1);
    if (point <= 0) return coli__buf_printf(out, "0.%.*s%s", -point, "000", digits);
    if (n > point) return coli__buf_printf(out, "%.*s.%s", point, digits, digits + point);
    return coli__buf_printf(out, "%s%.*s.0", digits, point - n, "0000000000000000");
}

static coli_status put_json_string(coli__buf *out, view v)
{
    COLI_TRY(coli__buf_str(out, "\""));
    size_t run = 0; // [run, i) needs no escape
    for (size_t i = 0; i < v.n_bytes; i++) {
        const uint8_t c = (uint8_t)v.data[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        COLI_TRY(coli__buf_append(out, v.data + run, i - run));
        static const char named[] = "\"\"\\\\\nn\rr\tt\bb\ff";
        const char *name = NULL;
        for (const char *p = named; *p && !name; p += 2)
            if ((uint8_t)*p == c) name = p + 1;
        if (name)
            COLI_TRY(coli__buf_printf(out, "\\%c", *name));
        else
            COLI_TRY(coli__buf_printf(out, "\\u%04x", c));
        run = i + 1;
    }
    COLI_TRY(coli__buf_append(out, v.data + run, v.n_bytes - run));
    return coli__buf_str(out, "\"");
}

/* A string of the caller's, or a number that coli__chat_parse had to keep as one. */
static bool is_big_number(const json_t *value)
{
    return json_string_length(value) > 0 && json_string_value(value)[0] == 0;
}
static bool is_text(const json_t *value)
{
    return json_is_string(value) && !is_big_number(value);
}

/* json.dumps(value, ensure_ascii=False) */
static coli_status put_json(coli__buf *out, const json_t *value)
{
    const char *separator = "";
    switch (json_typeof(value)) {
    case JSON_NULL:
        return coli__buf_str(out, "null");
    case JSON_TRUE:
        return coli__buf_str(out, "true");
    case JSON_FALSE:
        return coli__buf_str(out, "false");
    case JSON_INTEGER:
        return coli__buf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    case JSON_REAL:
        return put_real(out, json_real_value(value));
    case JSON_STRING:
        if (is_big_number(value)) return coli__buf_str(out, json_string_value(value) + 1);
        return put_json_string(out, view_of(value));
    case JSON_ARRAY:
        COLI_TRY(coli__buf_str(out, "["));
        for (size_t i = 0; i < json_array_size(value); i++, separator = ", ") {
            COLI_TRY(coli__buf_str(out, separator));
            COLI_TRY(put_json(out, json_array_get(value, i)));
        }
        return coli__buf_str(out, "]");
    case JSON_OBJECT:
        COLI_TRY(coli__buf_str(out, "{"));
        // jansson's iterators want a mutable object and leave it as it is
        for (void *it = json_object_iter((json_t *)(uintptr_t)value); it;
             it = json_object_iter_next((json_t *)(uintptr_t)value, it), separator = ", ") {
            const char *key = json_object_iter_key(it);
            COLI_TRY(coli__buf_str(out, separator));
            COLI_TRY(put_json_string(out, (view){key, strlen(key)}));
            COLI_TRY(coli__buf_str(out, ": "));
            COLI_TRY(put_json(out, json_object_iter_value(it)));
        }
        return coli__buf_str(out, "}");
    }
    return coli__fail(COLI_E_INTERNAL, "chat: a JSON value of no known type");
}

/* A tool call's value: strings as they are, containers as JSON, the rest as the version has it. */
static coli_status put_argument(const renderer *r, const json_t *value)
{
    coli__buf *out = &r->out->text;
    if (is_text(value))
        return coli__buf_append(out, json_string_value(value), json_string_length(value));
    if (r->python_values && json_is_boolean(value))
        return coli__buf_str(out, json_is_true(value) ? "True" : "False");
    if (r->python_values && json_is_null(value)) return coli__buf_str(out, "None");
    return put_json(out, value);
}

/* ---- messages -------------------------------------------------------------------------------- */

static bool is_absent(const json_t *value)
{
    return !value || json_is_null(value);
}

static coli_status refuse(size_t index, const char *why)
{
    return coli__fail(COLI_E_INVALID, "chat: message %zu: %s", index, why);
}

static bool member_is(const json_t *object, const char *key, const char *text)
{
    const json_t *value = json_object_get(object, key);
    return json_string_length(value) == strlen(text) && strcmp(json_string_value(value), text) == 0;
}

static bool has_role(const json_t *message, const char *role)
{
    return member_is(message, "role", role);
}

static coli_status add_part(size_t index, const json_t *message, const json_t *part,
                            coli__buf *joined)
{
    static const char *const visual[] = {"image", "image_url", "video"};
    for (size_t i = 0; i < 3; i++) {
        if (!json_object_get(part, visual[i]) && !member_is(part, "type", visual[i])) continue;
        if (has_role(message, "system"))
            return refuse(index, "a system message cannot contain images or video");
        return coli__fail(COLI_E_UNSUPPORTED,
                          "chat: message %zu: %s parts are not supported, text only", index,
                          visual[i]);
    }
    const json_t *text = json_object_get(part, "text");
    if (!is_text(text)) return refuse(index, "a part of the content has no text");
    return coli__buf_append(joined, json_string_value(text), json_string_length(text));
}

/* The content as one trimmed text; `joined` holds it when it had parts. */
static coli_status content_of(size_t index, const json_t *message, coli__buf *joined, view *out)
{
    const json_t *content = json_object_get(message, "content");
    *out = (view){"", 0};
    if (is_absent(content)) return COLI_OK;
    if (is_text(content)) {
        *out = trim(view_of(content));
        return COLI_OK;
    }
    if (!json_is_array(content)) return refuse(index, "content is not a text");
    joined->n_bytes = 0;
    for (size_t i = 0; i < json_array_size(content); i++)
        COLI_TRY(add_part(index, message, json_array_get(content, i), joined));
    if (joined->n_bytes) *out = trim((view){joined->data, joined->n_bytes});
    return COLI_OK;
}

static coli_status find_last_query(renderer *r, coli__buf *joined)
{
    for (size_t i = json_array_size(r->messages); i-- > 0;) {
        const json_t *message = json_array_get(r->messages, i);
        if (!has_role(message, "user")) continue;
        view text;
        COLI_TRY(content_of(i, message, joined, &text));
        if (starts(text, "<tool_response>") && ends(text, "</tool_response>")) continue;
        r->last_query = i;
        return COLI_OK;
    }
    return coli__fail(COLI_E_INVALID, "chat: no user query found in messages");
}

static coli_status render_call(renderer *r, size_t index, const json_t *call, const char *separator)
{
    const json_t *function = json_object_get(call, "function");
    if (!function) function = call;
    const json_t *name = json_object_get(function, "name");
    const json_t *arguments = json_object_get(function, "arguments");
    if (!is_text(name)) return refuse(index, "a tool call has no name");
    if (arguments && !json_is_object(arguments))
        return refuse(index, "the arguments of a tool call are not an object");
    COLI_TRY(put(r, separator));
    COLI_TRY(put(r, "<tool_call>\n<function="));
    COLI_TRY(put_plain(r, view_of(name)));
    COLI_TRY(put(r, ">\n"));
    for (void *it = json_object_iter((json_t *)(uintptr_t)arguments); it;
         it = json_object_iter_next((json_t *)(uintptr_t)arguments, it)) {
        const char *key = json_object_iter_key(it);
        COLI_TRY(put(r, "<parameter="));
        COLI_TRY(put_plain(r, (view){key, strlen(key)}));
        COLI_TRY(put(r, ">\n"));
        const size_t begin = r->out->text.n_bytes;
        COLI_TRY(put_argument(r, json_object_iter_value(it)));
        COLI_TRY(mark_plain(r, begin));
        COLI_TRY(put(r, "\n</parameter>\n"));
    }
    return put(r, "</function>\n</tool_call>");
}

static coli_status render_assistant(renderer *r, size_t index, const json_t *message, view content)
{
    view reasoning = {"", 0};
    const json_t *given = json_object_get(message, "reasoning_content");
    const size_t close = find(content, "</think>", false);
    if (is_text(given)) {
        reasoning = view_of(given);
    } else if (close < content.n_bytes) {
        reasoning = (view){content.data, close};
        const size_t open = find(reasoning, "<think>", true);
        if (open < reasoning.n_bytes) reasoning = from(reasoning, open + strlen("<think>"));
        content = from(content, find(content, "</think>", true) + strlen("</think>"));
        content = skip_newlines(content);
    }
    COLI_TRY(put(r, "<|im_start|>assistant\n"));
    if (r->preserve_thinking || index > r->last_query) {
        if (!r->preserve_thinking && r->first_think == SIZE_MAX)
            r->first_think = r->out->text.n_bytes;
        COLI_TRY(put(r, "<think>\n"));
        COLI_TRY(put_plain(r, trim(reasoning)));
        COLI_TRY(put(r, "\n</think>\n\n"));
    }
    COLI_TRY(put_plain(r, content));

    const json_t *calls = json_object_get(message, "tool_calls");
    if (!is_absent(calls) && !json_is_array(calls))
        return refuse(index, "tool_calls is not an array");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const char *separator = i ? "\n" : trim(content).n_bytes ? "\n\n" : "";
        COLI_TRY(render_call(r, index, json_array_get(calls, i), separator));
    }
    return put(r, "<|im_end|>\n");
}

static coli_status render_tool_result(renderer *r, size_t index, view content)
{
    const json_t *before = index ? json_array_get(r->messages, index - 1) : NULL;
    const json_t *after = json_array_get(r->messages, index + 1);
    if (before && !has_role(before, "tool")) COLI_TRY(put(r, "<|im_start|>user"));
    COLI_TRY(put(r, "\n<tool_response>\n"));
    COLI_TRY(put_plain(r, content));
    COLI_TRY(put(r, "\n</tool_response>"));
    return after && has_role(after, "tool") ? COLI_OK : put(r, "<|im_end|>\n");
}

static coli_status render_message(renderer *r, size_t index, coli__buf *joined)
{
    const json_t *message = json_array_get(r->messages, index);
    view content;
    COLI_TRY(content_of(index, message, joined, &content));
    if (has_role(message, "system"))
        return index ? refuse(index, "a system message must be the first") : COLI_OK;
    if (has_role(message, "user")) {
        COLI_TRY(put(r, "<|im_start|>user\n"));
        COLI_TRY(put_plain(r, content));
        return put(r, "<|im_end|>\n");
    }
    if (has_role(message, "assistant")) return render_assistant(r, index, message, content);
    if (has_role(message, "tool")) return render_tool_result(r, index, content);
    return refuse(index, "unexpected role, expected system, user, assistant or tool");
}

// clang-format off
static const char tool_instructions[] =
    "\n</tools>\n\n"
    "If you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n"
    "<function=example_function_name>\n"
    "<parameter=example_parameter_1>\n"
    "value_1\n"
    "</parameter>\n"
    "<parameter=example_parameter_2>\n"
    "This is the value for the second parameter\n"
    "that can span\n"
    "multiple lines\n"
    "</parameter>\n"
    "</function>\n"
    "</tool_call>\n\n"
    "<IMPORTANT>\n"
    "Reminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block "
    "must be nested within <tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the "
    "function call, but NOT after\n"
    "- If there is no function call available, answer the question like normal with your current "
    "knowledge and do not tell the user about function calls\n"
    "</IMPORTANT>";
// clang-format on

static coli_status render_system(renderer *r, const json_t *tools, coli__buf *joined)
{
    const json_t *first = json_array_get(r->messages, 0);
    const bool has_system = has_role(first, "system");
    const size_t n_tool = json_array_size(tools);
    view text = {"", 0};
    if (has_system) COLI_TRY(content_of(0, first, joined, &text));
    if (!n_tool && !has_system) return COLI_OK;
    COLI_TRY(put(r, "<|im_start|>system\n"));
    if (n_tool) {
        COLI_TRY(put(r, "# Tools\n\nYou have access to the following functions:\n\n<tools>"));
        for (size_t i = 0; i < n_tool; i++) {
            COLI_TRY(put(r, "\n"));
            const size_t begin = r->out->text.n_bytes;
            COLI_TRY(put_json(&r->out->text, json_array_get(tools, i)));
            COLI_TRY(mark_plain(r, begin));
        }
        COLI_TRY(put(r, tool_instructions));
        if (text.n_bytes) COLI_TRY(put(r, "\n\n"));
    }
    COLI_TRY(put_plain(r, text));
    return put(r, "<|im_end|>\n");
}

/* ---- the whole ------------------------------------------------------------------------------- */

typedef struct options {
    const json_t *tools;
    bool enable_thinking, preserve_thinking, add_generation_prompt;
} options;

static coli_status option_bool(const json_t *object, const char *key, bool fallback, bool *out)
{
    const json_t *value = json_object_get(object, key);
    *out = is_absent(value) ? fallback : json_is_true(value);
    if (is_absent(value) || json_is_boolean(value)) return COLI_OK;
    return coli__fail(COLI_E_INVALID, "chat: option %s: expected true or false", key);
}

static coli_status read_options(const json_t *object, options *o)
{
    if (object && !json_is_object(object) && !json_is_null(object))
        return coli__fail(COLI_E_INVALID, "chat: the options are not an object");
    o->tools = json_object_get(object, "tools");
    if (!is_absent(o->tools) && !json_is_array(o->tools))
        return coli__fail(COLI_E_INVALID, "chat: option tools: expected an array");
    COLI_TRY(option_bool(object, "enable_thinking", true, &o->enable_thinking));
    COLI_TRY(option_bool(object, "preserve_thinking", false, &o->preserve_thinking));
    return option_bool(object, "add_generation_prompt", true, &o->add_generation_prompt);
}

static coli_status render_prompt(renderer *r, const options *o)
{
    if (!o->add_generation_prompt) return COLI_OK;
    COLI_TRY(put(r, "<|im_start|>assistant\n"));
    if (r->first_think == SIZE_MAX) r->first_think = r->out->text.n_bytes;
    COLI_TRY(put(r, "<think>\n"));
    return o->enable_thinking ? COLI_OK : put(r, "\n</think>\n\n");
}

static coli_status render_all(renderer *r, const options *o, coli__buf *joined)
{
    if (!json_is_array(r->messages) || json_array_size(r->messages) == 0)
        return coli__fail(COLI_E_INVALID, "chat: no messages provided");
    COLI_TRY(put(r, ""));
    COLI_TRY(render_system(r, o->tools, joined));
    COLI_TRY(find_last_query(r, joined));
    for (size_t i = 0; i < json_array_size(r->messages); i++)
        COLI_TRY(render_message(r, i, joined));
    COLI_TRY(render_prompt(r, o));
    r->out->stable_bytes = r->first_think == SIZE_MAX ? r->out->text.n_bytes : r->first_think;
    return COLI_OK;
}

coli_status coli__chat_render(const char *tmpl, const json_t *messages, const json_t *object,
                              coli__render *out)
{
    *out = (coli__render){0};
    const bool is_35 = strcmp(tmpl, "3.5") == 0;
    if (!is_35 && strcmp(tmpl, "3.6") != 0)
        return coli__fail(COLI_E_INVALID, "chat: template \"%s\" is not known, expected 3.6 or 3.5",
                          tmpl);
    options o = {0};
    COLI_TRY(read_options(object, &o));
    coli__render rendered = {0};
    coli__buf joined = {0};
    renderer r = {.out = &rendered,
                  .messages = messages,
                  .first_think = SIZE_MAX,
                  .python_values = is_35,
                  .preserve_thinking = !is_35 && o.preserve_thinking};
    const coli_status status = render_all(&r, &o, &joined);
    coli__buf_finish(&joined);
    if (status == COLI_OK)
        *out = rendered;
    else
        coli__render_finish(&rendered);
    return status;
}

void coli__render_finish(coli__render *r)
{
    coli__buf_finish(&r->text);
    coli__free(r->plain);
    *r = (coli__render){0};
}
