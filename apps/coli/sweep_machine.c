/* sweep_machine.c - the words of --machine: KEY=VALUE, the keys and units of the backend fake. */
#include <ctype.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "sweep.h"

typedef struct unit {
    const char *name;
    double factor;
} unit;

static const unit rates[] = {{"B/s", 1},    {"KB/s", 1e3},  {"MB/s", 1e6},
                             {"GB/s", 1e9}, {"TB/s", 1e12}, {NULL, 0}};
static const unit times[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {NULL, 0}};
static const unit sizes[] = {{"", 1},          {"B", 1},         {"KB", 1e3}, {"MB", 1e6},
                             {"KiB", 1 << 10}, {"MiB", 1 << 20}, {NULL, 0}};
static const unit counts[] = {{"", 1}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {NULL, 0}};

/* clang-format off */
static const struct key {
    const char *name;
    size_t offset; // of a uint64_t
    const unit *units;
    double min; // so that nothing is divided by 0
} keys[] = {
    {"link", offsetof(coli_replay_machine, link_bytes_per_s), rates, 0},
    {"latency", offsetof(coli_replay_machine, latency_ns), times, 0},
    {"kernel", offsetof(coli_replay_machine, kernel_ns), times, 0},
    {"bw", offsetof(coli_replay_machine, device_bytes_per_s), rates, 1},
    {"cpu", offsetof(coli_replay_machine, cpu_bytes_per_s), rates, 1},
    {"mac", offsetof(coli_replay_machine, cpu_mac_per_s), counts, 1},
    {"expert", offsetof(coli_replay_machine, expert_bytes), sizes, 1},
    {"expert-mac", offsetof(coli_replay_machine, expert_mac), counts, 0},
    {"width", offsetof(coli_replay_machine, d_model), counts, 1},
    {"slow", offsetof(coli_replay_machine, slow), counts, 1},
    {"trunk", offsetof(coli_replay_machine, trunk_token_ns), times, 0},
    {"row", offsetof(coli_replay_machine, trunk_row_ns), times, 0},
};
/* clang-format on */

static bool amount(const char *text, const unit *units, double *out)
{
    const size_t n = strspn(text, "0123456789.");
    char number[32];
    if (n == 0 || n >= sizeof number) return false;
    memcpy(number, text, n);
    number[n] = 0;
    char *end;
    *out = strtod(number, &end);
    if (*end) return false;
    if (*out == 0 && text[n] == 0) return true; // no unit makes 0 another number
    for (; units->name; units++)
        if (strcmp(units->name, text + n) == 0) {
            *out *= units->factor;
            return *out < 0x1p53;
        }
    return false;
}

static bool take_word(const char *word, coli_replay_machine *m)
{
    const char *equals = strchr(word, '=');
    if (!equals) return false;
    const size_t n = (size_t)(equals - word);
    double value;
    if (strncmp(word, "copies=", 7) == 0) {
        const bool good = amount(equals + 1, counts, &value) && value >= 1 && value <= 64;
        if (good) m->n_copy = (uint32_t)value;
        return good;
    }
    if (strncmp(word, "waits=", 6) == 0) {
        m->waits = equals[1] == '1';
        return (equals[1] == '0' || equals[1] == '1') && equals[2] == 0;
    }
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (strlen(keys[i].name) != n || strncmp(keys[i].name, word, n) != 0) continue;
        if (!amount(equals + 1, keys[i].units, &value) || value < keys[i].min) return false;
        *(uint64_t *)(void *)((char *)m + keys[i].offset) = (uint64_t)value;
        return true;
    }
    return false;
}

bool sweep_machine_words(const char *text, coli_replay_machine *m, char *word, size_t cap)
{
    while (*(text += strspn(text, " ")) != 0) {
        const size_t n = strcspn(text, " ");
        const size_t n_kept = n < cap ? n : cap - 1;
        memcpy(word, text, n_kept);
        word[n_kept] = 0;
        if (n >= cap || !take_word(word, m)) return false;
        text += n;
    }
    return true;
}
