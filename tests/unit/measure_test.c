/* measure_test.c - the clock counts all of the time and changes nothing; what a token reads is what
 * the container holds; the machine's speeds are there on every instruction set. */
#include "table.h"

#include "libcoli/src/run/model.h"

#define DEMO TEST_MODELS "/hummingbird"

/* -- the pool's clock ------------------------------------------------------------------------- */

typedef struct busy {
    coli__pool *pool;
    uint64_t ns; // per item
} busy;

static void spin(uint64_t ns)
{
    const uint64_t end = coli__clock_ns() + ns;
    while (coli__clock_ns() < end) {
    }
}

static void busy_item(void *ctx, uint32_t item, uint32_t worker)
{
    const busy *b = ctx;
    coli__pool_phase(b->pool, worker, 3 + item % 2);
    spin(b->ns);
}

/* Every worker is in one phase at any time, so the phases add up to workers x time. */
T_TEST(all_time_is_charged_once)
{
    T_BEGIN;
    for (uint32_t n_worker = 1; n_worker <= 3; n_worker++) {
        coli__pool *pool;
        T_OK(coli__pool_create(n_worker, &pool));
        busy b = {pool, 200000};
        uint64_t ns[COLI_MAX_PHASE], wall[COLI_MAX_PHASE], all = 0, on_wall = 0;
        const uint64_t t0 = coli__clock_ns();
        coli__pool_clock_start(pool, 2);
        const uint64_t t1 = coli__clock_ns();
        coli__pool_run(pool, 20, busy_item, &b);
        spin(3000000); // the caller alone, back in phase 2
        coli__pool_run(pool, 1, busy_item, &b);
        const uint64_t t2 = coli__clock_ns();
        coli__pool_clock_stop(pool, ns, wall);
        const uint64_t t3 = coli__clock_ns();
        for (int i = 0; i < COLI_MAX_PHASE; i++) {
            all += ns[i];
            on_wall += wall[i];
        }
        T_GE(all, n_worker * (t2 - t1));
        T_LE(all, n_worker * (t3 - t0));
        T_GE(on_wall + 1000, t2 - t1); // processors' clocks may differ, and means are rounded
        T_LE(on_wall, t3 - t0);
        T_EQ(wall[COLI_PHASE_WAITING], 0);
        T_GE(wall[3], b.ns); // the one that ran inline
        T_GE(ns[3], 11 * b.ns);
        T_GE(ns[4], 10 * b.ns);
        T_GE(ns[2], 3000000);
        T_GE(ns[COLI_PHASE_WAITING], (n_worker - 1) * 3000000ll);
        coli__pool_run(pool, 20, busy_item, &b); // off again: nothing is counted
        coli__pool_clock_stop(pool, ns, wall);
        for (int i = 0; i < COLI_MAX_PHASE; i++) T_EQ(ns[i], 0);
        coli__pool_destroy(pool);
    }
}

/* What an item waits for belongs to the phase that it was in, whatever the number of workers. */
static void waiting_item(void *ctx, uint32_t item, uint32_t worker)
{
    const busy *b = ctx;
    (void)item;
    coli__pool_phase(b->pool, worker, 3);
    spin(b->ns);
    coli__pool_phase(b->pool, worker, COLI_PHASE_WAITING);
    spin(b->ns);
}

T_TEST(waiting_in_an_item)
{
    T_BEGIN;
    for (uint32_t n_worker = 1; n_worker <= 2; n_worker++) {
        coli__pool *pool;
        T_OK(coli__pool_create(n_worker, &pool));
        busy b = {pool, 1000000};
        uint64_t ns[COLI_MAX_PHASE], wall[COLI_MAX_PHASE];
        coli__pool_clock_start(pool, 2);
        const uint64_t start_ns = coli__clock_ns();
        coli__pool_run(pool, 4, waiting_item, &b);
        const uint64_t run_ns = coli__clock_ns() - start_ns;
        coli__pool_clock_stop(pool, ns, wall);
        T_GE(wall[3] + 1000, 8 * b.ns / n_worker);
        T_LE(wall[3], run_ns);
        T_GE(wall[3] + run_ns / 20 + 100000, run_ns);
        coli__pool_destroy(pool);
    }
}

/* -- the model's clock ------------------------------------------------------------------------ */

enum { N_IDS = 40 };

static void draw(int32_t ids[N_IDS], uint32_t n_vocab)
{
    t_rng rng = {3};
    for (int i = 0; i < N_IDS; i++) ids[i] = (int32_t)t_below(&rng, n_vocab);
}

T_TEST(phases_add_up_and_change_nothing)
{
    T_BEGIN;
    for (uint32_t n_threads = 1; n_threads <= 2; n_threads++) {
        coli_model *m = world_open(DEMO, n_threads, NULL);
        coli_session *s = world_session(m, 128, 64);
        int32_t ids[N_IDS], id;
        draw(ids, m->shape.n_vocab);
        T_OK(coli_session_feed(s, ids, N_IDS));
        T_OK(coli_session_feed(s, ids, 1));
        float *plain = malloc(m->shape.n_vocab * sizeof *plain);
        memcpy(plain, coli_session_logits(s), m->shape.n_vocab * sizeof *plain);

        coli_session_reset(s);
        const uint64_t n_alloc = coli__alloc_count(), t0 = coli__clock_ns();
        T_OK(coli_clock_start(m));
        T_OK(coli_session_feed(s, ids, N_IDS));
        T_OK(coli_session_feed(s, ids, 1));
        T_OK(coli_session_sample(s, NULL, &id));
        coli_phases p = {.struct_size = sizeof p}, none = {.struct_size = sizeof none};
        T_OK(coli_clock_stop(m, &p));
        const uint64_t t1 = coli__clock_ns();
        T_EQ(coli__alloc_count(), n_alloc);
        T_MEM(coli_session_logits(s), plain, m->shape.n_vocab * sizeof *plain);

        T_EQ(p.n_threads, n_threads);
        T_TRUE(p.router_ns && p.experts_ns && p.shared_ns && p.deltanet_ns && p.attention_ns &&
               p.projections_ns && p.head_ns && p.sampling_ns && p.other_ns);
        T_EQ(p.total_ns, p.router_ns + p.experts_ns + p.shared_ns + p.deltanet_ns + p.attention_ns +
                             p.projections_ns + p.head_ns + p.sampling_ns + p.other_ns +
                             p.waiting_ns);
        T_LE(p.total_ns, t1 - t0);
        T_TRUE(p.experts_wall_ns && p.trunk_wall_ns && p.head_wall_ns);
        T_LE(p.experts_wall_ns + p.trunk_wall_ns + p.head_wall_ns, t1 - t0);
        if (n_threads == 1) T_EQ(p.trunk_wall_ns, p.router_ns + p.shared_ns + p.projections_ns);
        if (n_threads == 1) T_EQ(p.waiting_ns, 0);

        T_OK(coli_session_feed(s, ids, 1)); // the clock is off
        T_OK(coli_clock_stop(m, &none));
        T_EQ(none.total_ns, 0);
        free(plain);
        coli_session_destroy(s);
        coli_model_close(m);
    }
    coli_phases p = {.struct_size = sizeof p};
    T_FAILS(coli_clock_start(NULL), COLI_E_INVALID, "NULL");
    T_FAILS(coli_clock_stop(NULL, &p), COLI_E_INVALID, "NULL");
}

/* -- what a token reads ----------------------------------------------------------------------- */

static void check_counts(const char *dir, bool tied)
{
    coli_model *m = world_open(dir, 1, NULL);
    coli_model_info i = {.struct_size = sizeof i};
    T_OK(coli_model_get_info(m, &i));
    uint64_t all = 0, embed = 0, head = 0, n_vector = 0, experts = 0, n_bytes;
    table in = table_open(dir);
    for (uint32_t t = 0; t < in.ct.n_entry; t++) {
        const coli__ct_tensor *x = &in.ct.entries[t].tensor;
        all += x->n_bytes;
        if (strcmp(x->name, "embed_tokens.weight") == 0) embed = x->n_bytes;
        if (strcmp(x->name, "lm_head.weight") == 0) head = x->n_bytes;
        if (x->mat.n_out == 1 && !strstr(x->name, "shared_expert_gate")) n_vector += x->mat.n_in;
    }
    for (uint32_t l = 0; l < in.ct.n_layer; l++) {
        coli__mat w[3];
        coli__ct_expert(&in.ct.layers[l].experts, 0, &w[0], &w[1], &w[2]);
        for (int k = 0; k < 3; k++) {
            T_TRUE(coli__mat_bytes(w[k].fmt, w[k].n_out, w[k].n_in, &n_bytes, NULL));
            experts += i.n_expert_used * n_bytes;
        }
    }
    T_EQ(i.token_expert_bytes, experts);
    T_EQ(i.token_head_bytes, tied ? embed : head);
    T_EQ(i.token_trunk_bytes, all - embed - head + embed / i.n_vocab);
    T_EQ(i.n_mac_head, (uint64_t)i.n_vocab * i.d_model);
    // n_param_active has no row of the embedding, not even where that is the head
    T_EQ(i.n_mac_body + (tied ? 0 : i.n_mac_head) + n_vector, i.n_param_active);
    table_close(&in);
    coli_model_close(m);
}

T_TEST(a_token_reads_what_the_container_holds)
{
    T_BEGIN;
    check_counts(DEMO, false);
    for (const char *name = "abd"; *name; name++) {
        char src[512];
        snprintf(src, sizeof src, "%s/qwen36-tiny-%c", TEST_FIXTURES, *name);
        char *dir = world_container(src, src + strlen(src) - 1, "int4", "int8");
        table t = table_open(dir);
        bool is_tied = true;
        for (uint32_t i = 0; i < t.ct.n_entry; i++)
            if (strcmp(t.ct.entries[i].tensor.name, "lm_head.weight") == 0) is_tied = false;
        table_close(&t);
        check_counts(dir, is_tied);
        free(dir);
    }
}

/* -- the machine ------------------------------------------------------------------------------ */

T_TEST(the_machine_is_measured_on_every_instruction_set)
{
    T_BEGIN;
    for (const char *const *isa = world_isas(); *isa; isa++) {
        coli_model *m = world_open(DEMO, 2, *isa);
        coli_machine *machine;
        T_OK(coli_machine_open(m, 10 << 20, &machine));
        coli_machine_info i = {.struct_size = sizeof i};
        T_OK(coli_machine_get_info(machine, &i));
        T_EQ(i.n_threads, 2);
        T_EQ(i.wanted_bytes, 8 << 20); // whole slices
        T_EQ(i.buffer_bytes, 8 << 20);
        if (!strcmp(*isa, "scalar")) T_STR(i.peak_method, "matmul kernel in cache");
        if (!strcmp(*isa, "avx2")) T_STR(i.peak_method, "vpmaddubsw on registers");
        if (!strcmp(*isa, "avx512")) T_STR(i.peak_method, "vpdpbusd on registers");
        double gb_s, gmac_s;
        const uint64_t n_alloc = coli__alloc_count();
        T_OK(coli_machine_stream(machine, &gb_s));
        T_OK(coli_machine_peak(machine, &gmac_s));
        T_EQ(coli__alloc_count(), n_alloc);
        T_FGE(gb_s, 0.01); // far below any machine, far above a wrong unit
        T_FLE(gb_s, 1e5);
        T_FGE(gmac_s, 0.01);
        T_FLE(gmac_s, 1e6);
        coli_machine_close(machine);
        coli_model_close(m);
    }
}

T_TEST(machine_refusals)
{
    T_BEGIN;
    coli_model *m = world_open(DEMO, 1, NULL);
    coli_machine *machine;
    double x;
    machine = (coli_machine *)8;
    T_FAILS(coli_machine_open(NULL, 0, &machine), COLI_E_INVALID, "NULL");
    T_TRUE(machine == NULL);
    T_FAILS(coli_machine_open(m, UINT64_MAX, &machine), COLI_E_INVALID, "1 TiB");
    T_TRUE(machine == NULL);
    T_FAILS(coli_machine_stream(NULL, &x), COLI_E_INVALID, "NULL");
    T_FAILS(coli_machine_peak(NULL, &x), COLI_E_INVALID, "NULL");
    coli_machine_close(NULL);
    /* more than there is: half of what is free is taken, and said */
    T_OK(coli_machine_open(m, 1, &machine));
    coli_machine_info i = {.struct_size = sizeof i};
    T_OK(coli_machine_get_info(machine, &i));
    T_EQ(i.buffer_bytes, 8 << 20); // the least
    coli_machine_close(machine);
    for (uint32_t n = 1; n < 50; n++) {
        coli__alloc_fail_at(n);
        const coli_status status = coli_machine_open(m, 1, &machine);
        coli__alloc_fail_at(0);
        coli_machine_close(machine);
        T_TRUE(status == COLI_OK || status == COLI_E_NOMEM);
        if (status == COLI_OK) break;
        T_LE(n, 30);
    }
    coli_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_time_is_charged_once),
        cmocka_unit_test(waiting_in_an_item),
        cmocka_unit_test(phases_add_up_and_change_nothing),
        cmocka_unit_test(a_token_reads_what_the_container_holds),
        cmocka_unit_test(the_machine_is_measured_on_every_instruction_set),
        cmocka_unit_test(machine_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, world_teardown);
}
