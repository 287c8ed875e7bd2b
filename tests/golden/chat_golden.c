/* chat_golden.c - every rendering of the reference, byte for byte, its refusals included.
 * Where the expected values come from: tests/fixtures/chat/README.md. */
#include "t.h"

#include "libcoli/src/base/file.h"
#include "libcoli/src/model/chat_template.h"

static void check_case(const json_t *item)
{
    coli__render r;
    const json_t *text = json_object_get(item, "text"), *error = json_object_get(item, "error");
    const char *tmpl = json_string_value(json_object_get(item, "template"));
    const coli_status status = coli__chat_render(tmpl, json_object_get(item, "messages"),
                                                 json_object_get(item, "options"), &r);
    if (json_is_true(error)) {
        T_EQ(status, COLI_E_INVALID);
        T_EQ(r.text.n_bytes, 0);
        return;
    }
    T_OK(status);
    T_STR(r.text.data, json_string_value(text));
    T_EQ(r.text.n_bytes, json_string_length(text));
    size_t at = 0;
    for (size_t i = 0; i < r.n_plain; at = r.plain[i++].end) {
        T_LE(at, r.plain[i].begin);
        T_LE(r.plain[i].begin + 1, r.plain[i].end);
    }
    T_LE(at, r.text.n_bytes);
    T_LE(r.stable_bytes, r.text.n_bytes);
    coli__render_finish(&r);
}

static void check_file(const char *path, size_t n_case, size_t n_error)
{
    coli__buf file = {0};
    T_OK(coli__file_read(path, 1 << 24, &file));
    size_t n = 0, n_refused = 0;
    for (char *line = file.data, *end; (end = strchr(line, '\n')) != NULL; line = end + 1, n++) {
        json_t *item;
        T_OK(coli__chat_parse(path, line, (size_t)(end - line), &item));
        check_case(item);
        n_refused += json_object_get(item, "error") != NULL;
        json_decref(item);
    }
    T_EQ(n, n_case);
    T_EQ(n_refused, n_error);
    coli__buf_finish(&file);
}

T_TEST(qwen36_renders)
{
    T_BEGIN;
    check_file(TEST_FIXTURES "/chat/qwen36.jsonl", 94, 6);
}

T_TEST(qwen35_renders)
{
    T_BEGIN;
    check_file(TEST_FIXTURES "/chat/qwen35.jsonl", 34, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen36_renders),
        cmocka_unit_test(qwen35_renders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
