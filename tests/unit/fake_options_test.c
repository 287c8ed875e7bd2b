/* fake_options_test.c - the knobs of the simulated device: what is understood, and what is said when
 * it is not. */
#include "t.h"

#include "fake_options.h"

static fake_options read_as(const char *text, uint32_t device)
{
    fake_options o;
    char message[FAKE_MESSAGE] = "";
    if (!fake_options_read(text, device, &o, message)) {
        print_error("\"%s\": %s\n", text, message);
        _fail(__FILE__, __LINE__);
    }
    return o;
}

T_TEST(the_defaults)
{
    T_BEGIN;
    const fake_options o = read_as("", 0);
    T_EQ(o.n_device, 1);
    T_EQ(o.vram_bytes, INT64_C(8) << 30);
    T_EQ(o.page_bytes, 65536);
    T_EQ(o.pinned_bytes, 1 << 30);
    T_EQ(o.speed.link_bytes_per_s, 12000000000);
    T_EQ(o.speed.bw_bytes_per_s, 400000000000);
    T_EQ(o.speed.latency_ns, 10000);
    T_EQ(o.speed.kernel_ns, 5000);
    T_EQ(o.speed.slow, 1);
    T_EQ(o.formats, (1 << COLI_BK_N_FORMAT) - 1);
    T_EQ(o.n_copy, 1);
    T_EQ(o.trunk_ns + o.misses_ns, 0);
    T_TRUE(o.can_join && !o.is_real);
    T_EQ(o.refused, 0);
    T_EQ(o.n_fault, 0);
    T_EQ(o.lose_at, 0);
}

T_TEST(the_example)
{
    T_BEGIN;
    const fake_options o = read_as(
        "devices=2 vram=8GiB link=12GB/s refuse=tensor_overwrite fail=tensor_upload:5 lose=37", 0);
    T_EQ(o.n_device, 2);
    T_EQ(o.vram_bytes, INT64_C(8) << 30);
    T_EQ(o.speed.link_bytes_per_s, 12000000000);
    T_EQ(o.refused, 1 << FAKE_tensor_overwrite);
    T_EQ(o.lose_at, 37);
    T_TRUE(!fake_options_fault(&o, FAKE_tensor_upload, 4));
    T_EQ(fake_options_fault(&o, FAKE_tensor_upload, 5)->kind, FAKE_FAIL);
    T_TRUE(!fake_options_fault(&o, FAKE_tensor_upload, 6));
    T_TRUE(!fake_options_fault(&o, FAKE_tensor_free, 5));
}

T_TEST(amounts)
{
    T_BEGIN;
    T_EQ(read_as("vram=65536", 0).vram_bytes, 65536);
    T_EQ(read_as("vram=0", 0).vram_bytes, 0);
    T_EQ(read_as("vram=3KB", 0).vram_bytes, 3000);
    T_EQ(read_as("vram=1.5KiB", 0).vram_bytes, 1536);
    T_EQ(read_as("vram=0.125TiB", 0).vram_bytes, INT64_C(1) << 37);
    T_EQ(read_as("vram=9223372036854775807", 0).vram_bytes, INT64_MAX);
    T_EQ(read_as("link=12.5GB/s", 0).speed.link_bytes_per_s, 12500000000);
    T_EQ(read_as("bw=1B/s", 0).speed.bw_bytes_per_s, 1);
    T_EQ(read_as("latency=1.5us", 0).speed.latency_ns, 1500);
    T_EQ(read_as("kernel=2s", 0).speed.kernel_ns, 2000000000);
    T_EQ(read_as("slow=x100", 0).speed.slow, 100);
    T_EQ(read_as("slow=7", 0).speed.slow, 7);
    T_EQ(read_as("copies=6", 0).n_copy, 6);
    T_EQ(read_as("trunk=225us", 0).trunk_ns, 225000);
    T_EQ(read_as("misses=50ns", 0).misses_ns, 50);
}

T_TEST(lists)
{
    T_BEGIN;
    T_EQ(read_as("formats=none", 0).formats, 0);
    T_EQ(read_as("formats=int8-g64-f16,int4-row", 0).formats,
         1 << COLI_BK_I8_G64_F16 | 1 << COLI_BK_I4_ROW_F16 | 1 << COLI_BK_I4_ROW_F32);
    T_EQ(read_as("refuse=matmul,alloc_footprint refuse=group_stats", 0).refused,
         1 << FAKE_matmul | 1 << FAKE_alloc_footprint | 1 << FAKE_group_stats);
    // of no use without the other
    T_EQ(read_as("refuse=fence_poll", 0).refused,
         1 << FAKE_fence_poll | 1 << FAKE_tensor_overwrite_async);
    const fake_options o =
        read_as("fail=matmul:2,mem_info:3+ tear=tensor_overwrite:3:4KiB hang=group_take:7", 0);
    T_EQ(o.n_fault, 4);
    T_TRUE(!fake_options_fault(&o, FAKE_mem_info, 2));
    T_TRUE(fake_options_fault(&o, FAKE_mem_info, 3) && fake_options_fault(&o, FAKE_mem_info, 99));
    T_EQ(fake_options_fault(&o, FAKE_tensor_overwrite, 3)->kind, FAKE_TEAR);
    T_EQ(fake_options_fault(&o, FAKE_tensor_overwrite, 3)->n_bytes, 4096);
    T_EQ(fake_options_fault(&o, FAKE_group_take, 7)->kind, FAKE_HANG);
}

T_TEST(one_device_alone)
{
    T_BEGIN;
    const char *text = " \tdevices=2 lose=9\n dev1.lose=37  dev1.refuse=matmul ";
    T_EQ(read_as(text, 0).lose_at, 9);
    T_EQ(read_as(text, 1).lose_at, 37);
    T_EQ(read_as(text, 0).refused, 0);
    T_EQ(read_as(text, 1).refused, 1 << FAKE_matmul);
    T_EQ(read_as("dev1.lose=37 lose=9", 1).lose_at, 9); // the later one counts
}

/* Each word is refused with a message that quotes it and says what is expected. */
T_TEST(what_is_not_understood)
{
    T_BEGIN;
    static const struct {
        const char *text, *expects;
    } cases[] = {
        {"hello", "KEY=VALUE"},
        {"=", "devices vram page pinned link latency kernel bw slow copies trunk misses real join "
              "formats "
              "refuse fail tear hang lose"},
        {"colour=red", "devices vram"},
        {"Vram=1GiB", "devices vram"},
        {"vram", "KEY=VALUE"},
        {"vram=", "a size"},
        {"vram=8XB", "a size"},
        {"vram=8 GiB", "a size"}, // the word is "GiB"
        {"vram=-1", "a size"},
        {"vram=0.3B", "a size"}, // no whole number
        {"vram=1..5GiB", "a size"},
        {"vram=.GiB", "a size"},
        {"vram=9223372036854775808", "a size"},
        {"vram=99999999TiB", "a size"},
        {"vram=8GB/s", "a size"},
        {"page=0", "from 1 to 1GiB"},
        {"page=2GiB", "from 1 to 1GiB"},
        {"link=12GB", "a rate above 0"},
        {"link=0B/s", "a rate above 0"},
        {"bw=0GB/s", "a rate above 0"},
        {"latency=5", "a time"},
        {"latency=0x5ns", "a time"},
        {"kernel=us", "a time"},
        {"slow=0", "from 1 to 1000000"},
        {"slow=x", "from 1 to 1000000"},
        {"slow=1000001", "from 1 to 1000000"},
        {"copies=0", "from 1 to 1000"},
        {"trunk=3", "a time"},
        {"misses=x", "a time"},
        {"real=2", "0 or 1"},
        {"join=yes", "0 or 1"},
        {"devices=2.5", "how many"},
        {"devices=4294967296", "how many"},
        {"dev1.devices=2", "no device"},
        {"dev.lose=2", "devK.KEY"},
        {"dev1x.lose=2", "devK.KEY"},
        {"cpu1.lose=2", "devK.KEY"},
        {"dev1.vram=x", "a size"}, // also where it is for another device
        {"formats=int5", "names of formats"},
        {"formats=int4,", "names of formats"},
        {"formats=", "names of formats"},
        {"formats=none,int4", "names of formats"},
        {"refuse=open", "optional entries"},
        {"refuse=host_free", "optional entries"},
        {"refuse=tensor_overwrite,", "optional entries"},
        {"refuse=tensor_overwritten", "optional entries"},
        {"fail=tensor_upload", "ENTRY:CALL"},
        {"fail=tensor_upload:", "ENTRY:CALL"},
        {"fail=tensor_upload:0", "ENTRY:CALL"},
        {"fail=tensor_upload:+", "ENTRY:CALL"},
        {"fail=tensor_upload:5:6", "ENTRY:CALL"},
        {"fail=tensor_upload:5,", "ENTRY:CALL"},
        {"fail=tensor_free:1", "ENTRY:CALL"},
        {"fail=close:1", "ENTRY:CALL"},
        {"tear=tensor_upload:1:5", "ENTRY:CALL:BYTES"},
        {"tear=tensor_overwrite:1", "ENTRY:CALL:BYTES"},
        {"tear=tensor_overwrite:1:x", "ENTRY:CALL:BYTES"},
        {"hang=mem_info:1", "waits for the device"},
        {"hang=host_alloc:1", "waits for the device"},
        {"lose=0", "the number of a call"},
        {"lose=a", "the number of a call"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fake_options o;
        char message[FAKE_MESSAGE] = "", word[128];
        const char *quoted = strrchr(cases[i].text, ' ');
        snprintf(word, sizeof word, "fake: \"%s\": expected", quoted ? quoted + 1 : cases[i].text);
        const bool ok = fake_options_read(cases[i].text, 0, &o, message);
        const char *expects = quoted ? "KEY=VALUE" : cases[i].expects;
        if (ok || !strstr(message, word) || !strstr(message, expects)) {
            print_error("\"%s\": %s, \"%s\"\n", cases[i].text, ok ? "understood" : "refused",
                        message);
            _fail(__FILE__, __LINE__);
        }
    }
}

T_TEST(the_65th_fault_is_refused)
{
    T_BEGIN;
    char text[2048] = "", message[FAKE_MESSAGE];
    fake_options o;
    for (int i = 0; i < 64; i++) strcat(text, "fail=open:1 ");
    T_TRUE(fake_options_read(text, 0, &o, message));
    strcat(text, "hang=matmul:1");
    T_TRUE(!fake_options_read(text, 0, &o, message));
    T_TRUE(strstr(message, "64 faults at most") != NULL);
}

/* Whatever the words are, reading ends, in bounds. */
T_PROP(random_text, 20000)
{
    static const char *const pieces[] = {"vram",    "=",    ":",
                                         ",",       ".",    "dev1",
                                         " ",       "GiB",  "12",
                                         "+",       "fail", "tensor_upload",
                                         "tear",    "x",    "tensor_overwrite",
                                         "formats", "int4", "link",
                                         "B/s",     "lose", "99999999999999999999"};
    char text[256] = "", message[FAKE_MESSAGE] = "";
    for (uint32_t n = t_below(&rng, 10); n > 0; n--)
        strcat(text, pieces[t_below(&rng, sizeof pieces / sizeof *pieces)]);
    char *exact = strdup(text); // so that a sanitizer sees a step too far
    fake_options o;
    if (!fake_options_read(exact, t_below(&rng, 2), &o, message)) T_TRUE(message[0] != 0);
    free(exact);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_defaults),
        cmocka_unit_test(the_example),
        cmocka_unit_test(amounts),
        cmocka_unit_test(lists),
        cmocka_unit_test(one_device_alone),
        cmocka_unit_test(what_is_not_understood),
        cmocka_unit_test(the_65th_fault_is_refused),
        cmocka_unit_test(random_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
