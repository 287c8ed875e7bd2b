/* score_file_test.c - scores on the disk: what is written is read, and whatever else stands there is
 * refused and left alone. */
#include <errno.h>
#include <xxhash.h>

#include "micro.h"

#include "items.h"
#include "libcoli/src/base/file.h"
#include "libcoli/src/run/score_row.h"

enum { VOCAB = 269 };

static const char lines[] =
    "{\"text\": \"hello he\", \"topic\": \"a\"}\n"
    "{\"ctx\": \"he \", \"endings\": [\"ll\", \"nd x\", \"q\"], \"label\": 0, \"topic\": \"b\"}\n"
    "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"answer\": \"4\"}\n"
    "{\"messages\": [{\"role\": \"user\", \"content\": \"y\"}], \"answer\": \"5\"}\n"
    "{\"text\": \"nd nd nd\"}\n";

static coli_tasks *items(const char *text)
{
    coli_tasks *t;
    T_OK(items_of(text, strlen(text), &t));
    return t;
}

/* With a row of random logits for every token of the texts. */
static coli_scores *made(const coli_tasks *t, bool with_rows)
{
    coli_scores *s;
    coli__row row;
    float logits[VOCAB];
    t_rng rng = {3};
    T_OK(items_scores(t, VOCAB, &s));
    if (!with_rows) return s;
    s->has_rows = true;
    T_OK(coli__row_init(&row, VOCAB));
    for (uint32_t i = 0; i < coli__tasks_n(t); i++) {
        const coli__task *item = coli__tasks_at(t, i);
        s->items[i].rows_at = s->rows.n_bytes;
        for (uint32_t r = 0; item->kind == COLI_TASK_TEXT && r < item->n_id; r++) {
            for (int v = 0; v < VOCAB; v++) logits[v] = 6 * t_normal(&rng);
            T_OK(coli__row_take(&row, logits));
            T_OK(coli__row_record(&row, &s->rows));
        }
    }
    coli__row_finish(&row);
    return s;
}

static void expect_equal(const coli_scores *a, const coli_scores *b)
{
    T_STR(a->model, b->model);
    T_TRUE(a->has_rows == b->has_rows && a->n_vocab == b->n_vocab);
    T_EQ(a->rows.n_bytes, b->rows.n_bytes);
    T_MEM(a->rows.data, b->rows.data, a->rows.n_bytes);
    for (uint32_t i = 0; i < coli__tasks_n(a->tasks); i++) {
        const coli__task *item = coli__tasks_at(a->tasks, i);
        T_TRUE(a->items[i].nll == b->items[i].nll);
        if (item->kind == COLI_TASK_TEXT && a->has_rows)
            T_EQ(a->items[i].rows_at, b->items[i].rows_at);
        for (uint32_t e = 0; e < item->n_ending; e++)
            T_TRUE(coli__score_sum(a, i, e) == coli__score_sum(b, i, e));
        if (item->kind == COLI_TASK_EXACT)
            T_STR(coli__score_answer(a, i), coli__score_answer(b, i));
    }
}

T_TEST(written_and_read)
{
    T_BEGIN;
    coli_tasks *t = items(lines);
    for (int with_rows = 0; with_rows < 2; with_rows++) {
        const char *path = micro_path("scores-%d", with_rows);
        coli_scores *s = made(t, with_rows), *back;
        T_OK(coli_scores_save(s, path));
        T_OK(coli_scores_open(path, t, &back));
        expect_equal(s, back);
        coli_scores_info info = {.struct_size = sizeof info};
        T_OK(coli_scores_get_info(back, &info));
        T_TRUE(info.n_item == 5 && info.has_rows == (bool)with_rows && !info.has_base);
        T_STR(info.model, "0123456789abcdef0123456789abcdef");
        T_TRUE(with_rows ? info.rest > 0 && info.rest < 0x1p-16 : info.rest == 0);
        T_FAILS(coli_scores_save(s, path), COLI_E_EXISTS, "already exists");
        T_TRUE(!coli__path_exists(micro_path("scores-%d.partial", with_rows)));
        coli_scores_free(back);
        coli_scores_free(s);
    }
    coli_scores *none;
    T_FAILS(coli_scores_open(micro_path("absent"), t, &none), COLI_E_NOTFOUND, "absent");
    T_TRUE(none == NULL);
    coli_scores_free(NULL);
    coli_tasks_close(t);
}

/* Where the disk is full or breaks: an error, and nothing stays behind. */
static ptrdiff_t no_space(int fd, const void *bytes, size_t n_bytes)
{
    (void)fd;
    (void)bytes;
    (void)n_bytes;
    errno = ENOSPC;
    return -1;
}

T_TEST(a_full_disk)
{
    T_BEGIN;
    coli_tasks *t = items(lines);
    coli_scores *s = made(t, true);
    const coli__sys real = coli__sys_calls;
    coli__sys_calls.write = no_space;
    T_FAILS(coli_scores_save(s, micro_path("full")), COLI_E_IO, "full.partial");
    coli__sys_calls = real;
    T_TRUE(!coli__path_exists(micro_path("full")));
    T_TRUE(!coli__path_exists(micro_path("full.partial")));
    T_FAILS(coli_scores_save(s, micro_path("no/dir/x")), COLI_E_NOTFOUND, "x.partial");
    coli_scores_free(s);
    coli_tasks_close(t);
}

static coli__buf bytes_of(const coli_scores *s)
{
    const char *path = micro_path("bytes");
    coli__file_remove(path);
    T_OK(coli_scores_save(s, path));
    return micro_read(path);
}

static coli_status parse(const void *data, size_t n_bytes, const coli_tasks *t)
{
    uint8_t *exact = malloc(n_bytes + 1); // so that a sanitizer sees a byte too far
    memcpy(exact, data, n_bytes);
    coli_scores *s;
    const coli_status status = coli__scores_parse("x", exact, n_bytes, t, &s);
    T_TRUE((s != NULL) == (status == COLI_OK));
    coli_scores_free(s);
    free(exact);
    return status;
}

static void put_sum(coli__buf *b)
{
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits(b->data, b->n_bytes - 16));
    memcpy(b->data + b->n_bytes - 16, sum.digest, 16);
}

T_TEST(torn_or_damaged)
{
    T_BEGIN;
    coli_tasks *t = items(lines);
    coli_scores *s = made(t, true);
    coli__buf b = bytes_of(s);
    T_OK(parse(b.data, b.n_bytes, t));
    for (size_t n = 0; n < b.n_bytes; n++) T_EQ(parse(b.data, n, t), COLI_E_FORMAT);
    for (size_t i = 0; i < b.n_bytes; i++) {
        b.data[i] ^= 1;
        const coli_status status = parse(b.data, b.n_bytes, t);
        T_EQ(status, i >= 8 && i < 12 ? COLI_E_UNSUPPORTED : COLI_E_FORMAT);
        b.data[i] ^= 1;
    }
    coli__buf_finish(&b);
    coli_scores_free(s);
    coli_tasks_close(t);
}

/* With a checksum that is right, every field is still checked. */
T_TEST(wrong_fields)
{
    T_BEGIN;
    coli_tasks *t = items(lines);
    coli_scores *s = made(t, true);
    const size_t fields = 8 + 3 * 8 + (4 + 1) + (4 + 2) + 8;
    static const struct {
        size_t at;
        uint8_t byte;
        coli_status status;
        const char *says;
    } table[] = {
        {8, 2, COLI_E_UNSUPPORTED, "version 2"},
        {13, 0, COLI_E_FORMAT, "row 0 is malformed"}, // fewer logits than ids
        {16, 6, COLI_E_INVALID, "scores of 6 other items"},
        {20, 2, COLI_E_FORMAT, "head is malformed"},
        {20, 0, COLI_E_FORMAT, "behind the last row"}, // rows that it says are not there
        {24, 45, COLI_E_FORMAT, "item 4: expected the nll"},
        {24, 255, COLI_E_FORMAT, "behind the last item"},
        {29, 1, COLI_E_FORMAT, "bytes of fields"},
        {32, 0, COLI_E_FORMAT, "head is malformed"},
        {64, 'x', COLI_E_INVALID, "other items"},
        {96 + 7, 0xC0, COLI_E_FORMAT, "item 0: expected the nll"},      // negative
        {96 + 8 + 7, 0x3F, COLI_E_FORMAT, "item 1: expected the sums"}, // positive
        {96 + 32, 0xFF, COLI_E_FORMAT, "item 2: expected an answer"},
        {96 + 36, 0, COLI_E_FORMAT, "item 2: expected an answer"},
        {96 + 36, 0xFF, COLI_E_FORMAT, "item 2: expected an answer"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        coli__buf b = bytes_of(s);
        T_EQ((uint8_t)b.data[24], fields);
        b.data[table[i].at] = (char)table[i].byte;
        put_sum(&b);
        T_FAILS(parse(b.data, b.n_bytes, t), table[i].status, table[i].says);
        coli__buf_finish(&b);
    }
    coli_scores_free(s);
    coli_tasks_close(t);
}

T_PROP(mutations, 600)
{
    static coli_tasks *t;
    static coli__buf b;
    if (!t) {
        t = items(lines);
        coli_scores *s = made(t, true);
        b = bytes_of(s);
        coli_scores_free(s);
    }
    coli__buf copy = {0};
    T_OK(coli__buf_append(&copy, b.data, b.n_bytes));
    for (uint32_t k = t_range(&rng, 1, 4); k > 0; k--) {
        const uint32_t most = t_below(&rng, 2) ? 160 : (uint32_t)b.n_bytes - 16;
        copy.data[t_below(&rng, most)] = (char)t_u64(&rng);
    }
    put_sum(&copy);
    parse(copy.data, copy.n_bytes, t); // whatever it says, within bounds
    coli__buf_finish(&copy);
}

T_TEST(other_items)
{
    T_BEGIN;
    coli_tasks *t = items(lines), *other = items("{\"text\": \"he he\"}");
    coli_scores *s = made(t, false), *o = made(other, false);
    coli__buf b = bytes_of(s);
    T_FAILS(parse(b.data, b.n_bytes, other), COLI_E_INVALID, "scores of 5 other items");
    coli_loss loss = {.struct_size = sizeof loss};
    T_FAILS(coli_scores_loss(s, o, COLI_MEASURE_NLL, &loss), COLI_E_INVALID, "different items");
    T_FAILS(coli_scores_loss(s, s, COLI_MEASURE_KL, &loss), COLI_E_INVALID, "kl: ");
    T_FAILS(coli_scores_loss(s, s, COLI_N_MEASURE, &loss), COLI_E_INVALID, "no such measure");
    coli__buf_finish(&b);
    coli_scores_free(s);
    coli_scores_free(o);
    coli_tasks_close(t);
    coli_tasks_close(other);
}

/* Of items_scores: nll 1 per id; the choice's sums -1 -2 -3, its endings 2, 4 and 1 bytes long. */
T_TEST(means_and_losses)
{
    T_BEGIN;
    coli_tasks *t = items(lines);
    coli_scores *a = made(t, false), *b = made(t, false);
    const double n0 = coli__tasks_at(t, 0)->n_id, n4 = coli__tasks_at(t, 4)->n_id;
    coli_mean mean = {.struct_size = sizeof mean};
    T_OK(coli_scores_mean(a, COLI_MEASURE_NLL, NULL, &mean));
    T_TRUE(mean.n_item == 2 && mean.n_unit == (uint64_t)(n0 + n4 - 2));
    T_FLE(fabs(mean.value - (n0 + n4) / (n0 + n4 - 2)), 1e-12);
    T_OK(coli_scores_mean(a, COLI_MEASURE_NLL, "a", &mean));
    T_TRUE(mean.n_item == 1 && mean.value == n0 / (n0 - 1));
    T_OK(coli_scores_mean(a, COLI_MEASURE_NLL, "b", &mean)); // a group of another kind
    T_TRUE(mean.n_item == 0 && mean.value == 0);
    T_OK(coli_scores_mean(a, COLI_MEASURE_EXACT, NULL, &mean));
    T_TRUE(mean.n_item == 2 && mean.value == 0.5);
    coli_score score = {.struct_size = sizeof score};
    T_OK(coli_scores_get(a, 1, &score));
    T_TRUE(score.pick == 0 && score.right); // -1
    T_TRUE(score.pick_byte == 0 && score.right_byte);
    T_TRUE(score.logprob[2] == -3 && score.answer == NULL);
    T_OK(coli_scores_get(a, 3, &score));
    T_STR(score.answer, "5x");
    T_TRUE(!score.right);
    b->items[0].nll += 0.5 * (n0 - 1);
    b->items[4].nll += 0.5 * (n4 - 1);
    ((double *)(void *)b->sums.data)[0] = -2; // -2 -2 -3: the first of equals; over bytes -1 -.5 -3
    coli_loss loss = {.struct_size = sizeof loss};
    T_OK(coli_scores_loss(a, b, COLI_MEASURE_NLL, &loss));
    T_FLE(fabs(loss.loss - 0.5) + fabs(loss.low - 0.5) + fabs(loss.high - 0.5), 1e-9);
    T_FLE(fabs(loss.b - loss.a - 0.5), 1e-12);
    T_OK(coli_scores_loss(a, b, COLI_MEASURE_CHOICE, &loss));
    T_TRUE(loss.loss == 0 && loss.a == 1 && loss.b == 1 && loss.n_item == 1);
    T_OK(coli_scores_loss(a, b, COLI_MEASURE_CHOICE_BYTE, &loss));
    T_TRUE(loss.loss == 1 && loss.b == 0);
    T_OK(coli_scores_loss(b, a, COLI_MEASURE_CHOICE_BYTE, &loss));
    T_TRUE(loss.loss == -1);
    coli_scores_free(a);
    coli_scores_free(b);
    coli_tasks_close(t);
}

T_TEST(without_memory)
{
    T_BEGIN;
    coli_tasks *t = items(lines);
    coli_scores *s = made(t, true), *back = NULL;
    const char *path = micro_path("memory");
    for (uint64_t nth = 1;; nth++) {
        coli__alloc_fail_at(nth);
        coli_status status = coli_scores_save(s, path);
        if (status == COLI_OK) status = coli_scores_open(path, t, &back);
        coli__alloc_fail_at(0);
        if (status == COLI_OK) break;
        T_EQ(status, COLI_E_NOMEM);
        T_TRUE(back == NULL && !coli__path_exists(micro_path("memory.partial")));
        coli__file_remove(path);
    }
    expect_equal(s, back);
    coli_scores_free(back);
    coli_scores_free(s);
    coli_tasks_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_and_read), cmocka_unit_test(a_full_disk),
        cmocka_unit_test(torn_or_damaged),  cmocka_unit_test(wrong_fields),
        cmocka_unit_test(mutations),        cmocka_unit_test(other_items),
        cmocka_unit_test(means_and_losses), cmocka_unit_test(without_memory),
    };
    return cmocka_run_group_tests(tests, micro_setup, micro_teardown);
}
