/* tasks_test.c - items from lines and texts: what they become, and what is said of those that are none. */
#include "t.h"

#include "items.h"

static coli_tasks *read_lines(const char *lines)
{
    coli_tasks *t;
    T_OK(items_of(lines, strlen(lines), &t));
    return t;
}

static void expect_ids(const coli_tasks *t, size_t at, uint32_t n_id, const char *text)
{
    int32_t *ids;
    size_t n;
    T_OK(coli__tok_encode(items_tokenizer(), text, strlen(text), NULL, 0, &ids, &n));
    T_EQ(n_id, n);
    T_MEM(coli__tasks_ids(t, at), ids, n * sizeof *ids);
    coli__free(ids);
}

T_TEST(three_kinds)
{
    T_BEGIN;
    coli_tasks *t = read_lines("{\"text\": \"hello he\", \"topic\": \"a\"}\r\n"
                               "\n"
                               "  {\"ind\": 7, \"ctx\": \"he\", \"endings\": [\"ll\", \"nd x\"], "
                               "\"label\": 1, \"task\": \"b\"}\n"
                               "{\"messages\": [{\"role\": \"user\", \"content\": \"he "
                               "<|end|>\"}], \"answer\": \" 4 2\\n\"}");
    coli_tasks_info info = {.struct_size = sizeof info};
    T_OK(coli_tasks_get_info(t, &info));
    T_TRUE(info.n_item == 3 && info.n_text == 1 && info.n_choice == 1 && info.n_exact == 1);
    T_EQ(strlen(info.identity), 32);
    static const uint64_t lines[] = {1, 3, 4};
    static const char *const groups[] = {"a", "b", ""};
    for (uint32_t i = 0; i < 3; i++) {
        coli_task task = {.struct_size = sizeof task};
        T_OK(coli_tasks_get(t, i, &task));
        T_EQ(task.kind, i);
        T_EQ(task.line, lines[i]);
        T_STR(task.group, groups[i]);
        T_STR(task.file, "x.jsonl");
        T_EQ(task.n_ending, i == 1 ? 2 : 0);
        T_EQ(task.label, i == 1 ? 1 : 0);
        if (i == 2) T_STR(task.answer, "4 2");
        if (i < 2) T_TRUE(task.answer == NULL);
    }
    const coli__task *text = coli__tasks_at(t, 0), *choice = coli__tasks_at(t, 1);
    expect_ids(t, text->at, text->n_id, "hello he");
    expect_ids(t, choice->at, choice->n_id, "he");
    expect_ids(t, coli__tasks_ending(t, choice, 0)->at, coli__tasks_ending(t, choice, 0)->n_id,
               " ll"); // a blank at the joint
    T_EQ(coli__tasks_ending(t, choice, 1)->n_bytes, 4);
    const size_t n_id = t->ids.n_bytes / sizeof(int32_t);
    uint32_t most = 0;
    for (size_t i = 0; i < n_id; i++)
        if ((uint32_t)coli__tasks_ids(t, i)[0] > most) most = (uint32_t)coli__tasks_ids(t, i)[0];
    T_EQ(t->n_vocab, most + 1);
    /* A person's words are no special token: nowhere in the prompt is the id 261. */
    const coli__task *exact = coli__tasks_at(t, 2);
    for (uint32_t i = 0; i < exact->n_id; i++) T_NE(coli__tasks_ids(t, exact->at)[i], 261);
    T_EQ(exact->n_answer, 3 + COLI__ANSWER_BEYOND);
    T_GE(info.n_ctx, exact->n_id + exact->n_answer);
    coli_task task = {.struct_size = sizeof task};
    T_FAILS(coli_tasks_get(t, 3, &task), COLI_E_INVALID, "no such item");
    coli_tasks_close(t);
    coli_tasks_close(NULL);
}

/* A blank before a word is part of the word's token, so a context's last blank is not shared: endings are
 * scored from it on. */
T_TEST(endings_that_join_the_context)
{
    T_BEGIN;
    static const struct {
        const char *line, *shared, *first, *second;
    } table[] = {
        {"{\"ctx\": \"x\\nhe\", \"endings\": [\"llo\", \"nd\"], \"label\": 0}", "x\nhe", " llo",
         " nd"},
        {"{\"ctx\": \"x\\n\", \"endings\": [\"hello\", \"nd\"], \"label\": 0}", "x\n", "hello",
         "nd"},
        {"{\"ctx\": \"x \", \"endings\": [\"hello\", \"nd\"], \"label\": 0}", "x", " hello", " nd"},
        {"{\"ctx\": \"x\", \"endings\": [\" hello\", \"\\nnd\"], \"label\": \"1\"}", "x", " hello",
         "\nnd"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        coli_tasks *t = read_lines(table[i].line);
        const coli__task *item = coli__tasks_at(t, 0);
        const coli__ending *a = coli__tasks_ending(t, item, 0), *b = coli__tasks_ending(t, item, 1);
        expect_ids(t, item->at, item->n_id, table[i].shared);
        expect_ids(t, a->at, a->n_id, table[i].first);
        expect_ids(t, b->at, b->n_id, table[i].second);
        coli_tasks_close(t);
    }
}

T_TEST(every_so_manieth)
{
    T_BEGIN;
    char lines[1024] = "";
    for (int i = 0; i < 10; i++)
        sprintf(lines + strlen(lines), "%s{\"text\": \"he %d\"}\n", i % 3 ? "" : "\n", i);
    for (uint32_t every = 1; every < 12; every++) {
        coli_tasks *t;
        T_OK(items_unsealed(lines, strlen(lines), every, &t));
        T_EQ(coli__tasks_n(t), (10 + every - 1) / every);
        for (uint32_t i = 0; i < coli__tasks_n(t); i++) {
            char text[16];
            sprintf(text, "he %u", i * every);
            expect_ids(t, coli__tasks_at(t, i)->at, coli__tasks_at(t, i)->n_id, text);
        }
        coli_tasks_close(t);
    }
}

T_TEST(a_text_in_pieces)
{
    T_BEGIN;
    static char text[4000];
    for (uint32_t n = 1020; n < 1030;
         n++) { // pieces of 512 tokens; a last one of one token is none
        memset(text, 'x', n);
        coli_tasks *t;
        T_OK(coli__tasks_create(items_tokenizer(), "3.6", ITEMS_CTX, 1, &t));
        T_OK(coli__tasks_add_text(t, "x.txt", text, n));
        const uint32_t n_piece = n <= 1025 ? 2 : 3;
        T_EQ(coli__tasks_n(t), n_piece);
        for (uint32_t i = 0; i < n_piece; i++) {
            T_EQ(coli__tasks_at(t, i)->line, i + 1);
            T_EQ(coli__tasks_at(t, i)->n_id, n - 512 * i < 512 ? n - 512 * i : 512);
        }
        T_OK(coli__tasks_seal(t, "x.txt"));
        coli_tasks_close(t);
    }
}

/* What scores depend on is in the identity, and nothing else. */
T_TEST(identity)
{
    T_BEGIN;
    static const char *const lines[] = {
        "{\"ctx\": \"he\", \"endings\": [\"a\", \"b\"], \"label\": 0}",
        "{\"ctx\": \"he\", \"endings\": [\"a\", \"b\"], \"label\": 1}",
        "{\"ctx\": \"he\", \"endings\": [\"a\", \"b\", \"c\"], \"label\": 1}",
        "{\"ctx\": \"he\", \"endings\": [\"a\", \" b\"], \"label\": 1}", // other bytes
        "{\"ctx\": \"hf\", \"endings\": [\"a\", \"b\"], \"label\": 1}",
        "{\"text\": \"he a\"}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"answer\": \"1\"}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"answer\": \"2\"}",
    };
    enum { N = sizeof lines / sizeof *lines };
    char seen[N][33];
    for (size_t i = 0; i < N; i++) {
        coli_tasks *t = read_lines(lines[i]);
        strcpy(seen[i], t->identity);
        for (size_t j = 0; j < i; j++) T_TRUE(strcmp(seen[i], seen[j]) != 0);
        coli_tasks_close(t);
    }
    coli_tasks *t = read_lines(
        "\n{\"label\": \"0\", \"endings\": [\"a\", \"b\"], \"topic\": \"q\", \"ctx\": \"he\"}");
    T_STR(t->identity, seen[0]);
    coli_tasks_close(t);
}

static char *many_endings(uint32_t n)
{
    char *line = malloc(64 + 8 * (size_t)n);
    size_t at = (size_t)sprintf(line, "{\"ctx\": \"a\", \"label\": 0, \"endings\": [");
    for (uint32_t i = 0; i < n; i++) at += (size_t)sprintf(line + at, "%s\"x\"", i ? "," : "");
    strcpy(line + at, "]}");
    return line;
}

T_TEST(refusals)
{
    T_BEGIN;
    static const struct {
        const char *line, *says;
    } table[] = {
        {"{\"text\": \"he he\"", "x.jsonl: line 3: column 16: "},
        {"[1]", "line 3: expected a JSON object"},
        {"\"text\"", "line 3: "},
        {"{}", "line 3: expected \"text\", or \"ctx\""},
        {"{\"text\": \"a b\", \"text\": \"c d\"}", "line 3: column"},
        {"{\"text\": 3}", "text: expected a string"},
        {"{\"text\": \"\"}", "expected at least two tokens, found 0"},
        {"{\"text\": \"he\"}", "expected at least two tokens, found 1"},
        {"{\"text\": \"a\\u0000b\"}", "line 3"},
        {"{\"text\": \"\xff\xff\"}", "line 3"},
        {"{\"text\": \"a b\", \"topic\": 7}", "topic, task: expected a string"},
        {"{\"ctx\": 1, \"endings\": [\"a\", \"b\"], \"label\": 0}", "ctx: expected a string"},
        {"{\"ctx\": \"\", \"endings\": [\"a\", \"b\"], \"label\": 0}", "ctx: expected a token"},
        {"{\"ctx\": \"c\", \"endings\": [\"a\"], \"label\": 0}", "an array of 2 to 64 strings"},
        {"{\"ctx\": \"c\", \"endings\": \"ab\", \"label\": 0}", "an array of 2 to 64 strings"},
        {"{\"ctx\": \"c\", \"endings\": [\"a\", 1], \"label\": 0}", "ending 1: expected a string"},
        {"{\"ctx\": \"c\", \"endings\": [\"\", \"a\"], \"label\": 0}",
         "ending 0: expected a string"},
        {"{\"ctx\": \"c\", \"endings\": [\"a\", \"b\"]}",
         "label: expected a whole number from 0 to 1"},
        {"{\"ctx\": \"c\", \"endings\": [\"a\", \"b\"], \"label\": 2}", "label: "},
        {"{\"ctx\": \"c\", \"endings\": [\"a\", \"b\"], \"label\": -1}", "label: "},
        {"{\"ctx\": \"c\", \"endings\": [\"a\", \"b\"], \"label\": 0.5}", "label: "},
        {"{\"ctx\": \"c\", \"endings\": [\"a\", \"b\"], \"label\": \"1x\"}", "label: "},
        {"{\"ctx\": \"c\", \"endings\": [\"a\", \"b\"], \"label\": \"\"}", "label: "},
        {"{\"ctx\": \"c\", \"endings\": [\"a\", \"b\"], \"label\": 4294967296}", "label: "},
        {"{\"messages\": [], \"answer\": \"a\"}", "messages: expected an array"},
        {"{\"messages\": {}, \"answer\": \"a\"}", "messages: expected an array"},
        {"{\"messages\": [{\"role\": \"user\"}], \"answer\": \" \\n\"}", "answer: expected"},
        {"{\"messages\": [{\"role\": \"user\"}]}", "answer: expected"},
        {"{\"messages\": [{\"role\": \"alien\", \"content\": \"x\"}], \"answer\": \"a\"}",
         "messages: "},
        {"{\"a\": [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]}", "deeper than 16"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char lines[512];
        snprintf(lines, sizeof lines, "{\"text\": \"a b\"}\n\n%s\n{\"text\": \"c d\"}",
                 table[i].line);
        coli_tasks *t;
        T_FAILS(items_of(lines, strlen(lines), &t), COLI_E_FORMAT, table[i].says);
        T_TRUE(strstr(coli_error_message(), "x.jsonl: line 3: ") == coli_error_message());
        T_TRUE(t == NULL);
    }
    coli_tasks *t;
    T_FAILS(items_of(" \n\n", 3, &t), COLI_E_FORMAT, "found none");
    char *line = many_endings(64);
    T_OK(items_of(line, strlen(line), &t));
    coli_tasks_close(t);
    free(line);
    line = many_endings(65);
    T_FAILS(items_of(line, strlen(line), &t), COLI_E_FORMAT, "2 to 64");
    free(line);
}

/* Fields that are as large as they can be, and larger. */
T_TEST(huge)
{
    T_BEGIN;
    const size_t n = (16u << 20) + 64;
    char *line = malloc(n + 1);
    coli_tasks *t;
    memset(line, ' ', n);
    memcpy(line, "{\"text\": \"a b\"", 14);
    line[n - 1] = '}';
    T_FAILS(items_of(line, n, &t), COLI_E_FORMAT, "line 1: expected at most 16777216 bytes");
    line[n - 65] = '}'; // 16 MiB to the byte, and blanks behind it
    line[n - 1] = ' ';
    T_FAILS(items_of(line, n, &t), COLI_E_FORMAT, "line 1: expected at most 16777216 bytes");
    T_OK(items_of(line, n - 64, &t));
    coli_tasks_close(t);
    memset(line, 'x', 1 << 20);
    memcpy(line, "{\"text\": \"", 10);
    memcpy(line + ITEMS_CTX + 10, "\"}", 2);
    T_OK(items_of(line, ITEMS_CTX + 12, &t));
    coli_tasks_close(t);
    line[ITEMS_CTX + 10] = 'x';
    memcpy(line + ITEMS_CTX + 11, "\"}", 2);
    T_FAILS(items_of(line, ITEMS_CTX + 13, &t), COLI_E_FORMAT,
            "x.jsonl: line 1: 2001 tokens; the model was made for at most 2000");
    free(line);
}

static const char sample[] =
    "{\"text\": \"hello he\", \"topic\": \"a\"}\n"
    "{\"ctx\": \"he \", \"endings\": [\"ll\", \"nd x\", \"q\"], \"label\": \"1\"}\n"
    "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"answer\": \"4\"}\n";

/* Bytes changed, lost and doubled: an answer or a refusal that names the line, nothing else. */
T_PROP(mutations, 4000)
{
    char lines[sizeof sample * 2];
    size_t n = sizeof sample - 1;
    memcpy(lines, sample, n);
    for (uint32_t k = t_range(&rng, 1, 4); k > 0; k--) {
        static const char likely[] = "{}[]\":,\\\n 0123456789u-e";
        const uint32_t at = t_below(&rng, (uint32_t)n);
        if (t_below(&rng, 2)) {
            lines[at] =
                t_below(&rng, 4) ? likely[t_below(&rng, sizeof likely - 1)] : (char)t_u64(&rng);
        } else if (t_below(&rng, 2)) {
            const size_t cut = t_below(&rng, (uint32_t)(n - at)) / 4;
            memmove(lines + at, lines + at + cut, n - at - cut);
            n -= cut;
        } else if (n + 20 < sizeof lines) {
            const size_t m = n - at < 20 ? n - at : 20;
            memmove(lines + at + m, lines + at, n - at);
            n += m;
        }
    }
    char *exact = malloc(n ? n : 1);
    memcpy(exact, lines, n);
    coli_tasks *t;
    const coli_status status = items_of(exact, n, &t);
    if (status == COLI_OK) {
        for (uint32_t i = 0; i < coli__tasks_n(t); i++) {
            const coli__task *item = coli__tasks_at(t, i);
            T_TRUE(item->n_id > 0 && item->line > 0);
            T_TRUE(item->n_ending == 0 || item->label < item->n_ending);
        }
    } else {
        T_TRUE(status == COLI_E_FORMAT || status == COLI_E_INVALID || status == COLI_E_UNSUPPORTED);
        T_TRUE(strstr(coli_error_message(), "x.jsonl: ") == coli_error_message());
    }
    coli_tasks_close(t);
    free(exact);
}

T_TEST(without_memory)
{
    T_BEGIN;
    items_tokenizer();
    coli_tasks *t = NULL;
    uint64_t nth = 1;
    for (;; nth++) {
        coli__alloc_fail_at(nth);
        const coli_status status = items_of(sample, strlen(sample), &t);
        coli__alloc_fail_at(0);
        if (status == COLI_OK) break;
        T_EQ(status, COLI_E_NOMEM);
        T_TRUE(t == NULL);
    }
    T_GE(nth, 10);
    coli_tasks_close(t);
}

static int close_tokenizer(void **state)
{
    (void)state;
    coli__tok_close(items_tokenizer());
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_kinds),
        cmocka_unit_test(endings_that_join_the_context),
        cmocka_unit_test(every_so_manieth),
        cmocka_unit_test(a_text_in_pieces),
        cmocka_unit_test(identity),
        cmocka_unit_test(refusals),
        cmocka_unit_test(huge),
        cmocka_unit_test(mutations),
        cmocka_unit_test(without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, close_tokenizer);
}
