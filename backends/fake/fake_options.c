/* fake_options.c - see fake_options.h.
 *
 * A word is [devK.]KEY=VALUE; a table says who reads a key's value and what it expects, so the
 * messages cannot fall behind the code. */
#include "fake_options.h"

#include <stdio.h>
#include <string.h>

/* ---- entries --------------------------------------------------------------------------------- */

enum { OPTIONAL = 1, WAITS = 2, OVERWRITES = 4, CANNOT_FAIL = 8 };

static const char *const entry_names[FAKE_N_ENTRY] = {
#define FAKE_ENTRY(since, returns, name, parameters) #name,
    COLI_BACKEND_SYMBOLS(FAKE_ENTRY, FAKE_ENTRY)
#undef FAKE_ENTRY
};

static const uint8_t entry_is_optional[FAKE_N_ENTRY] = {
#define FAKE_MANDATORY(since, returns, name, parameters) 0,
#define FAKE_OPTIONAL(since, returns, name, parameters)  OPTIONAL,
    COLI_BACKEND_SYMBOLS(FAKE_MANDATORY, FAKE_OPTIONAL)
#undef FAKE_MANDATORY
#undef FAKE_OPTIONAL
};

static const uint8_t entry_traits[FAKE_N_ENTRY] = {
    [FAKE_close] = CANNOT_FAIL,
    [FAKE_tensor_free] = CANNOT_FAIL,
    [FAKE_host_free] = CANNOT_FAIL,
    [FAKE_tensor_upload] = WAITS,
    [FAKE_tensor_overwrite] = WAITS | OVERWRITES,
    [FAKE_tensor_overwrite_async] = WAITS | OVERWRITES,
    [FAKE_fence_poll] = WAITS,
    [FAKE_group_issue] = WAITS,
    [FAKE_group_take] = WAITS,
    [FAKE_matmul] = WAITS,
    [FAKE_matmul_batch] = WAITS,
};

const char *fake_entry_name(uint32_t entry)
{
    return entry_names[entry];
}

/* ---- pieces of a value ------------------------------------------------------------------------ */

/* A part of the options. */
typedef struct span {
    const char *at;
    size_t n;
} span;

static bool equals(span s, const char *text)
{
    return s.n == strlen(text) && memcmp(s.at, text, s.n) == 0;
}

static bool starts_with(const char *text, span s)
{
    return s.n <= strlen(text) && memcmp(text, s.at, s.n) == 0;
}

/* The part before the first `mark`, or all; *rest is what follows, with a NULL `at` when there is
 * no mark. */
static span split(span s, char mark, span *rest)
{
    const char *found = s.n > 0 ? memchr(s.at, mark, s.n) : NULL;
    *rest = (span){0};
    if (!found) return s;
    *rest = (span){found + 1, s.n - (size_t)(found + 1 - s.at)};
    return (span){s.at, (size_t)(found - s.at)};
}

/* Whole numbers below 2^64. */
static bool read_whole(span s, uint64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.at[i] < '0' || s.at[i] > '9') return false;
        if (__builtin_mul_overflow(*out, 10, out) ||
            __builtin_add_overflow(*out, (uint64_t)(s.at[i] - '0'), out))
            return false;
    }
    return s.n > 0;
}

typedef struct unit {
    const char *name;
    uint64_t factor;
} unit;

static const unit byte_units[] = {
    {"B", 1},
    {"KB", 1000},
    {"MB", 1000000},
    {"GB", 1000000000},
    {"TB", 1000000000000},
    {"KiB", 1ull << 10},
    {"MiB", 1ull << 20},
    {"GiB", 1ull << 30},
    {"TiB", 1ull << 40},
    {"", 1},
    {NULL, 0},
};
static const unit rate_units[] = {
    {"B/s", 1},           {"KB/s", 1000},          {"MB/s", 1000000},
    {"GB/s", 1000000000}, {"TB/s", 1000000000000}, {NULL, 0},
};
static const unit time_units[] = {
    {"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}, {NULL, 0},
};

/* A number with a unit, perhaps with a fraction, that makes a whole number below 2^63: "1.5GiB". */
static bool read_amount(span s, const unit *units, uint64_t *out)
{
    size_t n = 0;
    while (n < s.n && ((s.at[n] >= '0' && s.at[n] <= '9') || s.at[n] == '.')) n++;
    const span name = {s.at + n, s.n - n};
    while (units->name && !equals(name, units->name)) units++;
    if (!units->name) return false;

    span fraction;
    uint64_t whole, part = 0, place = 1;
    if (!read_whole(split((span){s.at, n}, '.', &fraction), &whole)) return false;
    if (fraction.at && (fraction.n > 9 || !read_whole(fraction, &part))) return false;
    for (size_t i = 0; i < fraction.n; i++) place *= 10;
    if (__builtin_mul_overflow(whole, units->factor, &whole)) return false;
    if (__builtin_mul_overflow(part, units->factor, &part) || part % place != 0) return false;
    return !__builtin_add_overflow(whole, part / place, out) && *out <= INT64_MAX;
}

static bool read_between(span s, uint64_t low, uint64_t high, uint64_t *out)
{
    return read_whole(s, out) && *out >= low && *out <= high;
}

static bool read_entry(span s, uint32_t *out)
{
    for (*out = 0; *out < FAKE_N_ENTRY; (*out)++)
        if (equals(s, entry_names[*out])) return true;
    return false;
}

/* ---- knobs ------------------------------------------------------------------------------------- */

static bool read_devices(fake_options *o, span v)
{
    uint64_t n;
    if (!read_between(v, 0, UINT32_MAX, &n)) return false;
    o->n_device = (uint32_t)n;
    return true;
}

static bool read_vram(fake_options *o, span v)
{
    return read_amount(v, byte_units, &o->vram_bytes);
}

static bool read_page(fake_options *o, span v)
{
    return read_amount(v, byte_units, &o->page_bytes) && o->page_bytes >= 1 &&
           o->page_bytes <= 1ull << 30;
}

static bool read_pinned(fake_options *o, span v)
{
    return read_amount(v, byte_units, &o->pinned_bytes);
}

static bool read_link(fake_options *o, span v)
{
    return read_amount(v, rate_units, &o->speed.link_bytes_per_s) && o->speed.link_bytes_per_s > 0;
}

static bool read_bw(fake_options *o, span v)
{
    return read_amount(v, rate_units, &o->speed.bw_bytes_per_s) && o->speed.bw_bytes_per_s > 0;
}

static bool read_latency(fake_options *o, span v)
{
    return read_amount(v, time_units, &o->speed.latency_ns);
}

static bool read_kernel(fake_options *o, span v)
{
    return read_amount(v, time_units, &o->speed.kernel_ns);
}

static bool read_slow(fake_options *o, span v)
{
    if (v.n > 0 && v.at[0] == 'x') v = (span){v.at + 1, v.n - 1};
    return read_between(v, 1, 1000000, &o->speed.slow);
}

static bool read_copies(fake_options *o, span v)
{
    uint64_t n;
    if (!read_between(v, 1, 1000, &n)) return false;
    o->n_copy = (uint32_t)n;
    return true;
}

static bool read_trunk(fake_options *o, span v)
{
    return read_amount(v, time_units, &o->trunk_ns);
}

static bool read_misses(fake_options *o, span v)
{
    return read_amount(v, time_units, &o->misses_ns);
}

static bool read_switch(span v, bool *out)
{
    uint64_t n;
    if (!read_between(v, 0, 1, &n)) return false;
    *out = n == 1;
    return true;
}

static bool read_real(fake_options *o, span v)
{
    return read_switch(v, &o->is_real);
}

static bool read_join(fake_options *o, span v)
{
    return read_switch(v, &o->can_join);
}

/* Names as `coli backend info` prints them, or beginnings of them. */
static bool read_formats(fake_options *o, span v)
{
    o->formats = 0;
    if (equals(v, "none")) return true;
    do {
        const span name = split(v, ',', &v);
        uint32_t bits = 0;
        for (uint32_t f = 0; f < COLI_BK_N_FORMAT; f++) {
            const coli_bk_layout l = coli_bk_layout_of(f, 1);
            char group[16] = "row", whole[32];
            if (!l.per_row) snprintf(group, sizeof group, "g%u", (unsigned)l.group);
            snprintf(whole, sizeof whole, "int%u-%s-f%u", (unsigned)l.bits, group,
                     (unsigned)(8 * l.scale_bytes));
            if (name.n > 0 && starts_with(whole, name)) bits |= 1u << f;
        }
        if (bits == 0) return false;
        o->formats |= bits;
    } while (v.at);
    return true;
}

static bool read_refuse(fake_options *o, span v)
{
    do {
        uint32_t entry;
        if (!read_entry(split(v, ',', &v), &entry) || !entry_is_optional[entry]) return false;
        if (entry_traits[entry] & CANNOT_FAIL) return false;
        o->refused |= 1u << entry;
    } while (v.at);
    return true;
}

/* ENTRY:CALL[+][:BYTES], several with commas. */
static bool read_faults(fake_options *o, span v, fake_fault_kind kind, uint32_t needed)
{
    do {
        fake_fault fault = {.kind = kind};
        span rest, bytes;
        if (!read_entry(split(split(v, ',', &v), ':', &rest), &fault.entry)) return false;
        const uint32_t traits = entry_traits[fault.entry];
        if ((traits & needed) != needed || (traits & CANNOT_FAIL)) return false;
        span call = split(rest, ':', &bytes);
        if (call.n > 0 && call.at[call.n - 1] == '+') {
            fault.and_later = true;
            call.n--;
        }
        if (!read_whole(call, &fault.call) || fault.call == 0) return false;
        if ((kind == FAKE_TEAR) != (bytes.at != NULL)) return false;
        if (bytes.at && !read_amount(bytes, byte_units, &fault.n_bytes)) return false;
        if (o->n_fault == FAKE_MAX_FAULT) return false;
        o->faults[o->n_fault++] = fault;
    } while (v.at);
    return true;
}

static bool read_fail(fake_options *o, span v)
{
    return read_faults(o, v, FAKE_FAIL, 0);
}

static bool read_tear(fake_options *o, span v)
{
    return read_faults(o, v, FAKE_TEAR, OVERWRITES);
}

static bool read_hang(fake_options *o, span v)
{
    return read_faults(o, v, FAKE_HANG, WAITS);
}

static bool read_lose(fake_options *o, span v)
{
    return read_between(v, 1, INT64_MAX, &o->lose_at);
}

static const struct knob {
    const char *key;
    bool (*read)(fake_options *o, span value);
    const char *expects;
} knobs[] = {
    {"devices", read_devices, "how many there are: 2"},
    {"vram", read_vram, "a size: 8GiB, 512MB, 65536"},
    {"page", read_page, "a size from 1 to 1GiB: 64KiB"},
    {"pinned", read_pinned, "a size: 64MiB"},
    {"link", read_link, "a rate above 0: 12GB/s"},
    {"latency", read_latency, "a time: 10us"},
    {"kernel", read_kernel, "a time: 5us"},
    {"bw", read_bw, "a rate above 0: 400GB/s"},
    {"slow", read_slow, "a whole number from 1 to 1000000: x100"},
    {"copies", read_copies, "a whole number from 1 to 1000: 6"},
    {"trunk", read_trunk, "a time: 225us"},
    {"misses", read_misses, "a time: 50us"},
    {"real", read_real, "0 or 1"},
    {"join", read_join, "0 or 1"},
    {"formats", read_formats, "none, or names of formats or their beginnings: int4,int8-g64-f32"},
    {"refuse", read_refuse,
     "optional entries: tensor_overwrite,matmul (host_alloc stands for host_free)"},
    {"fail", read_fail,
     "ENTRY:CALL, or ENTRY:CALL+ for that and all later ones: tensor_upload:5, of an "
     "entry that can fail; 64 faults at most"},
    {"tear", read_tear,
     "ENTRY:CALL:BYTES of tensor_overwrite or tensor_overwrite_async: "
     "tensor_overwrite:3:4096; 64 faults at most"},
    {"hang", read_hang,
     "ENTRY:CALL of an entry that waits for the device: group_take:7; 64 faults at most"},
    {"lose", read_lose, "the number of a call, from 1: 37"},
};

enum { N_KNOB = sizeof knobs / sizeof *knobs };

/* ---- the line ---------------------------------------------------------------------------------- */

static bool complain(char *message, span word, const char *expects)
{
    const int n = word.n > 100 ? 100 : (int)word.n;
    snprintf(message, FAKE_MESSAGE, "fake: \"%.*s\": expected %s", n, word.at, expects);
    return false;
}

static bool complain_of_key(char *message, span word)
{
    char keys[256] = "KEY=VALUE or devK.KEY=VALUE with one of these keys:";
    size_t n = strlen(keys);
    for (uint32_t k = 0; k < N_KNOB; k++)
        n += (size_t)snprintf(keys + n, sizeof keys - n, " %s", knobs[k].key);
    return complain(message, word, keys);
}

/* Take "devK." off a key.  False: there is a point, but no device. */
static bool read_prefix(span *key, bool *has_device, uint64_t *device)
{
    span rest;
    const span prefix = split(*key, '.', &rest);
    *has_device = rest.at != NULL;
    if (!*has_device) return true;
    *key = rest;
    return prefix.n > 3 && memcmp(prefix.at, "dev", 3) == 0 &&
           read_between((span){prefix.at + 3, prefix.n - 3}, 0, UINT32_MAX, device);
}

static bool read_word(span word, uint32_t device, fake_options *o, char *message)
{
    span value;
    span key = split(word, '=', &value);
    bool has_device;
    uint64_t its_device = device;
    if (!value.at || !read_prefix(&key, &has_device, &its_device))
        return complain_of_key(message, word);
    for (uint32_t k = 0; k < N_KNOB; k++) {
        if (!equals(key, knobs[k].key)) continue;
        if (has_device && knobs[k].read == read_devices)
            return complain(message, word, "no device: it says how many there are");
        fake_options other = *o; // words for other devices are checked and forgotten
        if (!knobs[k].read(its_device == device ? o : &other, value))
            return complain(message, word, knobs[k].expects);
        return true;
    }
    return complain_of_key(message, word);
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

bool fake_options_read(const char *text, uint32_t device, fake_options *out,
                       char message[FAKE_MESSAGE])
{
    *out = (fake_options){
        .n_device = 1,
        .formats = (1u << COLI_BK_N_FORMAT) - 1,
        .vram_bytes = 8ull << 30,
        .page_bytes = 64 << 10,
        .pinned_bytes = 1ull << 30,
        .speed = {.link_bytes_per_s = 12000000000,
                  .bw_bytes_per_s = 400000000000,
                  .latency_ns = 10000,
                  .kernel_ns = 5000,
                  .slow = 1},
        .n_copy = 1,
        .can_join = true,
    };
    for (;;) {
        while (is_space(*text)) text++;
        if (*text == 0) break;
        span word = {text, 0};
        while (text[word.n] != 0 && !is_space(text[word.n])) word.n++;
        if (!read_word(word, device, out, message)) return false;
        text += word.n;
    }
    // Each of these is of no use without the other, and the host learns it from the first call.
    if (out->refused >> FAKE_fence_poll & 1) out->refused |= 1u << FAKE_tensor_overwrite_async;
    return true;
}

const fake_fault *fake_options_fault(const fake_options *o, uint32_t entry, uint64_t call)
{
    for (uint32_t i = 0; i < o->n_fault; i++) {
        const fake_fault *f = &o->faults[i];
        if (f->entry == entry && (call == f->call || (f->and_later && call > f->call))) return f;
    }
    return NULL;
}
