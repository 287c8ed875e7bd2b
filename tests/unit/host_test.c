/* host_test.c - the services that plugins get, and how their failures read. */
#include <stdbool.h>

#include "libcoli/src/backend/plugin.h"
#include "libcoli/src/base/alloc.h"
#include "t.h"

static char logged[128];
static int32_t logged_level;

static void keep_log(void *user, int32_t level, const char *text)
{
    T_TRUE(user == logged);
    logged_level = level;
    snprintf(logged, sizeof logged, "%s", text);
}

T_TEST(services)
{
    T_BEGIN;
    coli__host host;
    T_OK(coli__host_init(&host, NULL, 77));
    const coli_bk_host *table = &host.table;
    T_EQ(table->struct_size, sizeof *table);
    T_EQ(table->abi_minor, COLI_BK_ABI_MINOR);
    T_EQ(table->wait_limit_ns, 77);
    T_STR(table->options, "");
    const uint64_t before = table->clock_ns(table->ctx);
    T_GE(table->clock_ns(table->ctx), before);

    (table->fail)(table->ctx, "first\nline\x1b[2J");
    T_EQ(host.n_fail, 1);
    T_STR(host.message, "first line [2J");
    (table->fail)(table->ctx, "\xC3\xA9 \xFF \xC3");
    T_STR(host.message, "\xC3\xA9 ? ?");
    (table->fail)(table->ctx, NULL);
    T_EQ(host.n_fail, 3);
    T_STR(host.message, "");
    char large[2000];
    memset(large, 'x', sizeof large - 1);
    large[sizeof large - 1] = 0;
    (table->fail)(table->ctx, large);
    T_EQ(strlen(host.message), sizeof host.message - 1);

    table->log(table->ctx, COLI_BK_LOG_WARNING, "nobody listens");
    host.log = keep_log;
    host.log_user = logged;
    table->log(table->ctx, COLI_BK_LOG_WARNING, "now\tsomebody");
    T_EQ(logged_level, COLI_BK_LOG_WARNING);
    T_STR(logged, "now somebody");
    coli__host_finish(&host);
    coli__host_finish(&host);
    coli__host_finish(NULL);

    T_OK(coli__host_init(&host, "a=b", 0));
    T_STR(host.table.options, "a=b");
    coli__host_finish(&host);
}

T_PROP(memory, 300)
{
    coli__host host;
    T_OK(coli__host_init(&host, "", 0));
    const coli_bk_host *t = &host.table;
    uint8_t *blocks[8];
    size_t n[8];
    for (int i = 0; i < 8; i++) {
        const uint64_t align = UINT64_C(8) << t_below(&rng, 14); // to 64 KiB
        n[i] = t_below(&rng, 3) ? t_below(&rng, 300) : t_below(&rng, 70000);
        const uint32_t flags = t_below(&rng, 4) ? 0 : COLI_BK_ALLOC_PINNED;
        blocks[i] = t->alloc(t->ctx, n[i], align, flags);
        if (!blocks[i] && flags) { // the system pins no more
            n[i] = 0;
            continue;
        }
        assert_non_null(blocks[i]);
        T_EQ((uintptr_t)blocks[i] % align, 0);
        memset(blocks[i], i, n[i]);
    }
    for (int i = 0; i < 8; i++) { // none touches another
        for (size_t k = 0; k < n[i]; k++) T_EQ(blocks[i][k], i);
        t->free(t->ctx, blocks[i]);
    }
    T_EQ(host.n_block, 0);
    coli__host_finish(&host);
}

T_TEST(memory_limits)
{
    T_BEGIN;
    coli__host host;
    T_OK(coli__host_init(&host, "", 0));
    const coli_bk_host *t = &host.table;
    t->free(t->ctx, NULL);
    static const uint64_t bad_align[] = {0, 1, 4, 12, 24, UINT64_MAX, (UINT64_C(1) << 63) + 1};
    for (size_t i = 0; i < sizeof bad_align / sizeof *bad_align; i++)
        T_TRUE(t->alloc(t->ctx, 16, bad_align[i], 0) == NULL);
    static const uint64_t bad_size[] = {UINT64_MAX, UINT64_MAX - 40, UINT64_C(1) << 63};
    for (size_t i = 0; i < sizeof bad_size / sizeof *bad_size; i++) {
        T_TRUE(t->alloc(t->ctx, bad_size[i], 64, 0) == NULL);
        T_TRUE(t->alloc(t->ctx, bad_size[i], 64, COLI_BK_ALLOC_PINNED) == NULL);
    }
    T_TRUE(t->alloc(t->ctx, 16, UINT64_C(1) << 63, 0) == NULL);
    T_EQ(host.n_block, 0);
    void *p = t->alloc(t->ctx, 16, 8, 0);
    T_EQ(host.n_block, 1);
    t->free(t->ctx, p);
    coli__alloc_fail_at(1);
    T_TRUE(t->alloc(t->ctx, 16, 8, 0) == NULL);
    coli__alloc_fail_at(0);
    coli__host_finish(&host);
}

T_TEST(statuses)
{
    T_BEGIN;
    coli__host host;
    const coli__plugin plugin = {.info = {.name = "x"}};
    T_OK(coli__host_init(&host, "", 0));
    static const struct {
        int32_t status;
        coli_status meaning;
        const char *text;
    } cases[] = {
        {COLI_BK_INVALID, COLI_E_INVALID, "invalid argument"},
        {COLI_BK_NOMEM, COLI_E_NOMEM, "no room on the device"},
        {COLI_BK_UNSUPPORTED, COLI_E_UNSUPPORTED, "not supported"},
        {COLI_BK_FAILED, COLI_E_IO, "failed"},
        {COLI_BK_LOST, COLI_E_IO, "the device is lost"},
        {COLI_BK_EMPTY, COLI_E_IO, "nothing was issued"},
        {COLI_BK_BUSY, COLI_E_IO, "not ready"},
        {9999, COLI_E_IO, "status 9999, which nobody knows"},
        {-1, COLI_E_IO, "status -1, which nobody knows"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char expected[160];
        (host.table.fail)(host.table.ctx, "the cable is loose");
        snprintf(expected, sizeof expected, "backend x: open: %s: the cable is loose",
                 cases[i].text);
        T_EQ(coli__backend_fail(&plugin, &host, "open", cases[i].status), cases[i].meaning);
        T_STR(coli_error_message(), expected);
        /* An old text does not explain the next failure. */
        T_FAILS(coli__backend_fail(&plugin, &host, "open", cases[i].status), cases[i].meaning,
                "it does not say why");
    }
    T_EQ(coli__backend_fail(&plugin, &host, "open", COLI_BK_OK), COLI_OK);
    coli__host_finish(&host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(services), cmocka_unit_test(memory),
                                       cmocka_unit_test(memory_limits), cmocka_unit_test(statuses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
