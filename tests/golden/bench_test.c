/* bench_test.c - `coli synth` and `coli bench` as a script meets them.  Timings are the machine's
 * affair; what is checked is that every field is there, and that those that follow from others do.
 */
#include <math.h>

#include "json_out.h"

#define SMALL                                                                                      \
    "synth", "--like", "hummingbird", "--layers", "4", "--experts-n", "16", "--used", "4",         \
        "--inner", "64", "--hidden", "128", "--vocab", "512"

/* A figure of a measurement. */
static double number(const json_t *root, const char *path)
{
    const double x = json_number_at(root, path);
    if (!isfinite(x) || x < 0) fail_msg("%s is %g", path, x);
    return x;
}

static void equal(const char *what, double found, double expected)
{
    if (fabs(found - expected) > 1e-9 * fabs(expected))
        fail_msg("%s: %.17g against %.17g", what, found, expected);
}

static void ordered(const json_t *root, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "%s.min", name);
    const double min = number(root, path);
    snprintf(path, sizeof path, "%s.median", name);
    const double median = number(root, path);
    snprintf(path, sizeof path, "%s.max", name);
    T_TRUE(min > 0 && min <= median && median <= number(root, path));
}

static const char *const phase_names[] = {"router",      "experts", "shared",   "deltanet",
                                          "attention",   "head",    "sampling", "other",
                                          "projections", "waiting"};

static void check_phases(const json_t *root, const char *of)
{
    double sum = 0;
    char path[64];
    for (size_t i = 0; i < sizeof phase_names / sizeof *phase_names; i++) {
        snprintf(path, sizeof path, "%s.phases_ms.%s", of, phase_names[i]);
        sum += number(root, path);
    }
    snprintf(path, sizeof path, "%s.phases_ms.total", of);
    equal(path, number(root, path), sum);
}

/* Bytes of a matrix of int4 or int8 in groups of 64 with f16 scales, rows in panels of 16. */
static double quantised(uint32_t n_out, uint32_t n_in, double bytes_per_weight)
{
    const double n_row = ceil(n_out / 16.0) * 16, n_group = ceil(n_in / 64.0);
    return n_row * n_group * (64 * bytes_per_weight + 2);
}

/* A model of small width in which every matrix can be counted by hand. */
static void check_bytes(const json_t *root)
{
    const double experts = 4 * 4 * (2 * quantised(64, 128, 0.5) + quantised(128, 64, 0.5));
    // shared expert; DeltaNet: qkv 2*4*32 + 8*32, z 256, out; attention: q 2*4*64, k and v 2*64, o
    const double shared = 2 * quantised(64, 128, 1) + quantised(128, 64, 1);
    const double deltanet =
        quantised(512, 128, 1) + quantised(256, 128, 1) + quantised(128, 256, 1);
    const double attention =
        quantised(512, 128, 1) + 2 * quantised(128, 128, 1) + quantised(128, 256, 1);
    // bf16: the router, the shared gate, b and a; f32: norms, taps, decays
    const double precise = 4 * (16 + 1) * 128 * 2 + 3 * 2 * 8 * 128 * 2;
    // a vector's row is padded to 16 numbers
    const double vectors = 4 * (4 * 2 * 128 + 3 * (512 * 4 + 2 * 16 + 32) + 2 * 64 + 128);
    const double row = quantised(512, 128, 1) / 512;
    equal("experts", number(root, "decode.parts.experts.bytes"), experts);
    equal("trunk", number(root, "decode.parts.trunk.bytes"),
          4 * shared + 3 * deltanet + attention + precise + vectors + row);
    equal("head", number(root, "decode.parts.head.bytes"), quantised(512, 128, 1));
    equal("sum", number(root, "decode.bytes"),
          number(root, "decode.parts.experts.bytes") + number(root, "decode.parts.trunk.bytes") +
              number(root, "decode.parts.head.bytes"));
}

/* Multiply-adds of a prompt of n tokens: the same matrices, the head once. */
static double prompt_macs(double n)
{
    const double layer = 3 * 64 * 128 * (4 + 1) + (16 + 1) * 128;
    const double deltanet = (512 + 256 + 256 + 2 * 8) * 128, attention = (512 + 256 + 256) * 128;
    return n * (4 * layer + 3 * deltanet + attention) + 512 * 128;
}

/* A share is that of one round, or of several the median of theirs: between the least and the most that
 * speeds and streams allow. */
static void check_share(const json_t *root, const char *path, double rate, const char *of)
{
    char least[64], most[64];
    snprintf(least, sizeof least, "machine.%s.min", of);
    snprintf(most, sizeof most, "machine.%s.max", of);
    const double share = number(root, path);
    if (number(root, "repeat") == 1)
        equal(path, share, rate / number(root, most));
    else
        T_TRUE(share > 0.05 * rate / number(root, most) && share < 20 * rate / number(root, least));
}

static void check_shares(const json_t *root, double n_prefill)
{
    const double gb_s = number(root, "decode.bytes") * number(root, "decode.tok_s.median") * 1e-9;
    equal("decode.gb_s", number(root, "decode.gb_s"), gb_s);
    check_share(root, "decode.share_of_stream", gb_s, "stream_gb_s");
    static const char *const parts[] = {"experts", "trunk", "head"};
    for (int i = 0; i < 3; i++) {
        char bytes[64], ms[64], rate[64], share[64];
        snprintf(bytes, sizeof bytes, "decode.parts.%s.bytes", parts[i]);
        snprintf(ms, sizeof ms, "decode.parts.%s.ms", parts[i]);
        snprintf(rate, sizeof rate, "decode.parts.%s.gb_s", parts[i]);
        snprintf(share, sizeof share, "decode.parts.%s.share_of_stream", parts[i]);
        equal(rate, number(root, rate), number(root, bytes) / number(root, ms) * 1e-6);
        check_share(root, share, number(root, rate), "stream_gb_s");
    }
    const double gmac_s =
        prompt_macs(n_prefill) / n_prefill * number(root, "prefill.tok_s.median") * 1e-9;
    equal("prefill.gmac_s", number(root, "prefill.gmac_s"), gmac_s);
    check_share(root, "prefill.share_of_peak", gmac_s, "peak_gmac_s");
    check_share(root, "prefill.experts.share_of_peak", number(root, "prefill.experts.gmac_s"),
                "peak_gmac_s");
}

T_TEST(json_has_every_field_and_the_sums_are_right)
{
    T_BEGIN;
    const char *dir = scratch_path("model");
    outcome o = RUN("coli", "", SMALL, "--skew", "1", dir);
    EXPECT(o, o.code == 0 && o.n_out == 0 && has(o.err, "is complete"));
    forget(&o);
    o = RUN("coli", "", "verify", dir);
    EXPECT(o, o.code == 0);
    forget(&o);
    o = RUN("coli", "", "bench", "--model", dir, "--prefill", "20", "--decode", "3", "--repeat",
            "3", "--buffer", "8", "--threads", "2", "--context", "10", "--seed", "4", "--json",
            "--phases");
    EXPECT(o, o.code == 0 && has(o.err, "round 3 of 3"));
    json_t *root = json_of(&o);
    EXPECT(o, strcmp(json_string_value(json_object_get(json_object_get(root, "model"), "name")),
                     "model") == 0);
    EXPECT(o, json_is_string(json_object_get(root, "isa")));
    EXPECT(o, json_is_string(json_object_get(json_object_get(root, "machine"), "peak_method")));
    T_EQ(number(root, "n_threads"), 2);
    T_EQ(number(root, "context"), 10);
    T_EQ(number(root, "repeat"), 3);
    T_EQ(number(root, "seed"), 4);
    T_EQ(number(root, "prefill.n_token"), 20);
    T_EQ(number(root, "decode.n_token"), 3);
    T_EQ(number(root, "machine.stream_bytes"), 8 << 20);
    ordered(root, "machine.stream_gb_s");
    ordered(root, "machine.peak_gmac_s");
    ordered(root, "prefill.tok_s");
    ordered(root, "decode.tok_s");
    check_bytes(root);
    check_shares(root, 20);
    check_phases(root, "prefill");
    check_phases(root, "decode");
    T_EQ(number(root, "prefill.experts.rows_per_expert"), 20 * 4 / 16); // SMALL uses 4 of 16
    T_TRUE(number(root, "prefill.experts.gmac_s") > 0);
    json_decref(root);
    forget(&o);
    o = RUN("coli", "", "bench", "--model", dir, "--prefill", "20", "--decode", "3", "--repeat",
            "1", "--buffer", "8", "--json", "--phases");
    EXPECT(o, o.code == 0);
    root = json_of(&o);
    check_shares(root, 20);
    json_decref(root);
    forget(&o);
}

T_TEST(only_what_was_asked_for_is_measured)
{
    T_BEGIN;
    outcome o = RUN("coli", "", "bench", "--model", MODEL, "--prefill", "0", "--decode", "2",
                    "--repeat", "1", "--buffer", "8", "--json");
    EXPECT(o, o.code == 0);
    json_t *root = json_of(&o);
    EXPECT(o, !json_object_get(root, "prefill"));
    EXPECT(o, !json_object_get(json_object_get(root, "decode"), "phases_ms"));
    T_EQ(number(root, "decode.n_token"), 2);
    json_decref(root);
    forget(&o);
    o = RUN("coli", "", "bench", "--model", MODEL, "--prefill", "9", "--decode", "0", "--repeat",
            "2", "--buffer", "8");
    EXPECT(o, o.code == 0 && has(o.out, " pp9 |") && !has(o.out, " tg") && !has(o.out, "head"));
    EXPECT(o, has(o.out, "GMAC/s") && has(o.out, "of the peak") && has(o.out, "machine: stream"));
    forget(&o);
    o = RUN("coli", "", "bench", "--model", MODEL, "--decode", "2", "--prefill", "8", "--repeat",
            "1", "--buffer", "8", "--context", "5", "--isa", "scalar", "--threads", "1",
            "--phases");
    EXPECT(o, o.code == 0 && has(o.out, " pp8 @ d5 |") && has(o.out, " tg2 @ d5 |"));
    EXPECT(o, has(o.out, "experts, 0.8 rows each: ")); // 8 rows, 6 of 64
    EXPECT(o, has(o.out, "matmul kernel in cache") && has(o.out, "waiting") &&
                  has(o.out, "experts") && has(o.out, "scalar"));
    forget(&o);
}

T_TEST(refusals)
{
    T_BEGIN;
    static const struct {
        const char *args[12];
        const char *err;
    } cases[] = {
        {{"bench", "--prefill", "0", "--decode", "0"}, "leave nothing to measure"},
        {{"bench", "--repeat", "0"}, "--repeat: expected a whole number from 1 to 1000"},
        {{"bench", "--model", MODEL, "--context", "4096"}, "the model was made for at most 4096"},
        {{"bench", "--model", "/nonexistent"}, "/nonexistent"},
        {{"bench", "--isa", "avx"}, "did you mean avx2?"},
        {{"bench", "--temp", "1"}, "it belongs to `coli chat`"},
        {{"synth"}, "too few arguments for synth [options] OUT"},
        {{"synth", "--like", "qwen", "/nonexistent/x"}, "qwen36-397b or hummingbird"},
        {{"synth", "--skew", "17", "/nonexistent/x"}, "--skew: expected a number from 0 to 16"},
        {{"synth", "--experts", "int5", "/tmp/coli-refused"}, "int5"},
        {{"synth", "--used", "255", "--experts-n", "9", "/tmp/coli-refused"}, "is more than"},
        {{"synth", "--layers", "1", "/nonexistent/x"}, "/nonexistent/x"},
        {{"synth", "--layers", "1", "/tmp"}, "/tmp: already exists\nhint: give another OUT"},
        {{"chat", "--layers", "3"}, "it belongs to `coli synth`"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome o = run_with("coli", "", 0, NULL, cases[i].args);
        EXPECT(o, o.code == 2 && o.n_out == 0 && has(o.err, cases[i].err));
        forget(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_has_every_field_and_the_sums_are_right),
        cmocka_unit_test(only_what_was_asked_for_is_measured),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
