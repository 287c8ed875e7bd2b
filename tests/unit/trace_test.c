/* trace_test.c - recorded routing from files: what is taken, and what is refused with which words. */
#include "libcoli/src/base/alloc.h"
#include "libcoli/src/model/trace.h"
#include "t.h"

/* Two rows of two layers with three experts each, as one tensor. */
typedef struct file {
    char bytes[512];
    size_t n_bytes;
} file;

static file file_of(const char *header, const void *data, size_t n_data)
{
    file f = {0};
    const uint64_t n = strlen(header);
    memcpy(f.bytes, &n, 8);
    memcpy(f.bytes + 8, header, n);
    memcpy(f.bytes + 8 + n, data, n_data);
    f.n_bytes = 8 + n + n_data;
    return f;
}

static coli_status read_both(const char *json, const file *f, const coli__trace_part *part,
                             coli__traces *out)
{
    json_t *list;
    coli__st *st;
    T_OK(coli__json_parse("t.json", json, strlen(json), 8, &list));
    T_OK(coli__st_open_bytes("t.safetensors", f->bytes, f->n_bytes, &st));
    const coli_status status = coli__traces_read("t.json", list, st, part, out);
    json_decref(list);
    coli__st_close(st);
    return status;
}

static const char u8_header[] =
    "{\"x.experts\":{\"dtype\":\"U8\",\"shape\":[2,2,3],\"data_offsets\":[0,12]}}";
static const char good[] = "[{\"name\":\"x\",\"topic\":\"t\",\"rows\":2,\"prompt\":1}]";
static const uint8_t ids[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

T_TEST(ids_are_taken)
{
    T_BEGIN;
    const file f = file_of(u8_header, ids, sizeof ids);
    coli__traces t;
    T_OK(read_both(good, &f, &(coli__trace_part){0}, &t));
    T_EQ(t.n_trace, 1);
    T_EQ(t.n_layer, 2);
    T_EQ(t.n_expert, 12);
    T_EQ(t.n_expert_used, 3);
    T_STR(t.traces[0].topic, "t");
    for (int i = 0; i < 12; i++) T_EQ(t.traces[0].ids[i], i);
    coli__traces_finish(&t);

    T_OK(read_both(good, &f, &(coli__trace_part){1, 2, 64}, &t));
    T_EQ(t.n_layer, 1);
    T_EQ(t.n_expert, 64);
    T_EQ(t.n_expert_used, 2);
    T_EQ(t.traces[0].ids[2], 3); // the second row
    T_EQ(t.traces[0].ids[3], 4);
    coli__traces_finish(&t);
}

T_TEST(wide_ids_are_taken)
{
    T_BEGIN;
    static const int32_t wide[4] = {300, 5, 6, 301};
    const file f = file_of("{\"x.experts\":{\"dtype\":\"I32\",\"shape\":[1,2,2],\"data_offsets\":"
                           "[0,16]}}",
                           wide, sizeof wide);
    coli__traces t;
    T_OK(read_both(good, &f, &(coli__trace_part){0}, &t));
    T_EQ(t.n_expert, 302);
    T_MEM(t.traces[0].ids, wide, sizeof wide);
    coli__traces_finish(&t);
}

typedef struct refusal {
    const char *json, *header, *text;
} refusal;

T_TEST(what_is_wrong_is_named)
{
    T_BEGIN;
    static const refusal refusals[] = {
        {"{}", u8_header, "t.json: expected a list of 1 to 4096 traces"},
        {"[]", u8_header, "expected a list of 1 to 4096 traces"},
        {"[1]", u8_header, "expected an object for each trace"},
        {"[{\"rows\":2,\"prompt\":1}]", u8_header, "name is missing"},
        {"[{\"name\":\"x\",\"prompt\":1}]", u8_header, "rows"},
        {"[{\"name\":\"x\",\"rows\":2,\"prompt\":2}]", u8_header, "prompt"},
        {"[{\"name\":\"x\",\"rows\":2,\"prompt\":0}]", u8_header, "prompt"},
        {"[{\"name\":\"y\",\"rows\":2,\"prompt\":1}]", u8_header, "no tensor y.experts"},
        {"[{\"name\":\"x\",\"rows\":3,\"prompt\":1}]", u8_header,
         "1 to 512 layers, 3 rows and 1 to 64 experts, found 2, 2 and 3"},
        {"[{\"name\":\"x\",\"rows\":2,\"prompt\":1},{\"name\":\"x\",\"rows\":2,\"prompt\":1}]",
         u8_header, "two traces are called x"},
        {good, "{\"x.experts\":{\"dtype\":\"F32\",\"shape\":[1,1,3],\"data_offsets\":[0,12]}}",
         "expected U8 or I32 of rank 3, found F32"},
        {good, "{\"x.experts\":{\"dtype\":\"U8\",\"shape\":[4,3],\"data_offsets\":[0,12]}}",
         "of rank 2"},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const file f = file_of(refusals[i].header, ids, sizeof ids);
        coli__traces t;
        T_FAILS(read_both(refusals[i].json, &f, &(coli__trace_part){0}, &t), COLI_E_FORMAT,
                refusals[i].text);
        coli__traces_finish(&t);
    }
}

T_TEST(ids_are_checked)
{
    T_BEGIN;
    coli__traces t;
    const uint8_t twice[12] = {0, 1, 2, 3, 4, 5, 6, 7, 6, 9, 10, 11};
    file f = file_of(u8_header, twice, sizeof twice);
    T_FAILS(read_both(good, &f, &(coli__trace_part){0}, &t), COLI_E_FORMAT,
            "tensor x.experts: row 2 has expert 6 twice");
    coli__traces_finish(&t);
    f = file_of(u8_header, ids, sizeof ids);
    T_FAILS(read_both(good, &f, &(coli__trace_part){0, 0, 11}, &t), COLI_E_FORMAT,
            "expected experts below 11, found 11");
    coli__traces_finish(&t);
    const int32_t wide[4] = {0, -1, 2, 3};
    f = file_of("{\"x.experts\":{\"dtype\":\"I32\",\"shape\":[1,2,2],\"data_offsets\":[0,16]}}",
                wide, sizeof wide);
    T_FAILS(read_both(good, &f, &(coli__trace_part){0}, &t), COLI_E_FORMAT,
            "row 0: expected experts below 4096, found -1");
    coli__traces_finish(&t);
}

T_TEST(files_by_either_name)
{
    T_BEGIN;
    coli__traces t;
    T_OK(coli__traces_open(TEST_FIXTURES "/traces/hummingbird", &(coli__trace_part){0}, &t));
    T_EQ(t.n_trace, 24);
    T_EQ(t.n_expert, 64);
    coli__traces_finish(&t);
    T_OK(coli__traces_open(TEST_FIXTURES "/traces/field256.safetensors", &(coli__trace_part){0},
                           &t));
    T_EQ(t.n_expert_used, 8);
    coli__traces_finish(&t);
    T_FAILS(coli__traces_open(TEST_FIXTURES "/traces/none", &(coli__trace_part){0}, &t),
            COLI_E_NOTFOUND, "traces/none.json");
    T_EQ(t.n_trace, 0);
    coli__traces_finish(NULL);
}

/* Each allocation fails once, and nothing is lost. */
T_TEST(memory_may_run_out)
{
    T_BEGIN;
    const file f = file_of(u8_header, ids, sizeof ids);
    json_t *list;
    coli__st *st;
    T_OK(coli__json_parse("t.json", good, strlen(good), 8, &list));
    T_OK(coli__st_open_bytes("t.safetensors", f.bytes, f.n_bytes, &st));
    coli_status status = COLI_E_NOMEM;
    for (uint64_t nth = 1; status != COLI_OK; nth++) {
        coli__traces t;
        coli__alloc_fail_at(nth);
        status = coli__traces_read("t.json", list, st, &(coli__trace_part){0}, &t);
        coli__alloc_fail_at(0);
        T_TRUE(status == COLI_OK || status == COLI_E_NOMEM);
        T_LE(nth, 10);
        coli__traces_finish(&t);
    }
    json_decref(list);
    coli__st_close(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_taken),          cmocka_unit_test(wide_ids_are_taken),
        cmocka_unit_test(what_is_wrong_is_named), cmocka_unit_test(ids_are_checked),
        cmocka_unit_test(files_by_either_name),   cmocka_unit_test(memory_may_run_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
