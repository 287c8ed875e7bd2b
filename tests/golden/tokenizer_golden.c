/* tokenizer_golden.c - ids and decoded text of the reference, for both vocabularies.
 * Where the expected values come from: tests/fixtures/tokenizer/README.md. */
#include "t.h"

#include <jansson.h>
#include <time.h>

#include "libcoli/src/base/file.h"
#include "libcoli/src/model/tokenizer.h"

enum { N_STRING = 494 };

static void check_ids(const coli__tok *tok, const char *text, size_t n_text, const json_t *expected)
{
    int32_t *ids;
    size_t n_ids;
    T_OK(coli__tok_encode(tok, text, n_text, NULL, 0, &ids, &n_ids));
    T_EQ(n_ids, json_array_size(expected));
    for (size_t i = 0; i < n_ids; i++)
        T_EQ(ids[i], json_integer_value(json_array_get(expected, i)));
    coli__free(ids);
}

static int32_t *ids_of(const json_t *list, size_t *n_ids)
{
    *n_ids = json_array_size(list);
    int32_t *ids = coli__calloc(*n_ids, sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < *n_ids; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

static void check_decoded(const coli__tok *tok, const json_t *list, const json_t *decoded)
{
    size_t n_ids;
    int32_t *ids = ids_of(list, &n_ids);
    coli__buf whole = {0}, streamed = {0};
    T_OK(coli__tok_decode(tok, ids, n_ids, false, &whole));
    T_EQ(whole.n_bytes, json_string_length(decoded));
    T_MEM(whole.data ? whole.data : "", json_string_value(decoded), whole.n_bytes);

    coli__utf8_stream stream = {0};
    for (size_t i = 0; i < n_ids; i++) {
        size_t n_bytes;
        const char *bytes = coli__tok_bytes(tok, ids[i], &n_bytes);
        T_OK(coli__utf8_push(&stream, bytes, n_bytes, &streamed));
        T_EQ(coli__utf8_check(streamed.data, streamed.n_bytes), streamed.n_bytes);
    }
    T_OK(coli__utf8_flush(&stream, &streamed));
    T_EQ(streamed.n_bytes, whole.n_bytes);
    T_MEM(streamed.data ? streamed.data : "", whole.data ? whole.data : "", whole.n_bytes);
    coli__buf_finish(&whole);
    coli__buf_finish(&streamed);
    coli__free(ids);
}

static void check_file(const char *tokenizer, const char *strings)
{
    coli__tok *tok;
    coli__buf file = {0};
    const clock_t start = clock();
    T_OK(coli__tok_open(tokenizer, NULL, &tok));
    print_message("%u tokens loaded in %.2f s\n", coli__tok_n_id(tok),
                  (double)(clock() - start) / CLOCKS_PER_SEC);
    T_OK(coli__file_read(strings, 1 << 24, &file));
    size_t n_line = 0;
    for (char *line = file.data, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        json_t *item = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, NULL);
        assert_non_null(item);
        const json_t *text = json_object_get(item, "text"), *ids = json_object_get(item, "ids");
        check_ids(tok, json_string_value(text), json_string_length(text), ids);
        check_decoded(tok, ids, json_object_get(item, "decoded"));
        json_decref(item);
        n_line++;
    }
    T_EQ(n_line, N_STRING);
    coli__buf_finish(&file);
    coli__tok_close(tok);
}

T_TEST(qwen36_strings)
{
    T_BEGIN;
    check_file(TEST_QWEN36_TOKENIZER, TEST_FIXTURES "/tokenizer/qwen36/strings.jsonl");
}

T_TEST(hummingbird_strings)
{
    T_BEGIN;
    check_file(TEST_MODELS "/hummingbird/tokenizer.json",
               TEST_FIXTURES "/tokenizer/hummingbird/strings.jsonl");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen36_strings),
        cmocka_unit_test(hummingbird_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
