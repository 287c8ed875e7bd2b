/* tar.c - see tar.h.
 *
 * A head is a block of 512 bytes of text: name, mode, owner, size, time, kind, checksum.  Numbers are
 * octal digits, so a size ends at 8 GiB - 1.  Beyond that a head of kind 'x' comes first, whose data is
 * a record "21 size=123456789012\n": its own length, a key and a value.
 *
 * Source: POSIX.1-2017, pax. */
#include "tar.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_RECORDS = COLI__TAR_BLOCK }; // bytes of a pax header's data: one size has 29 at most

static const uint64_t first_large = UINT64_C(1) << 33; // eleven octal digits

/* As it lies in the file; all bytes. */
typedef struct head {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], kind, link[100];
    char magic[6], version[2], uname[32], gname[32], major[8], minor[8], prefix[155], rest[12];
} head;
_Static_assert(sizeof(head) == COLI__TAR_BLOCK, "a head is a block");

/* The sum of its bytes, those of the checksum itself counted as blanks. */
static uint32_t sum_of(const head *h)
{
    const uint8_t *bytes = (const uint8_t *)h;
    const size_t begin = offsetof(head, checksum), end = begin + sizeof h->checksum;
    uint32_t sum = 0;
    for (size_t i = 0; i < sizeof *h; i++) sum += i >= begin && i < end ? ' ' : bytes[i];
    return sum;
}

/* As every writer has it: six digits, a NUL, a blank. */
static void put_sum(head *h)
{
    char number[16];
    snprintf(number, sizeof number, "%06o", sum_of(h));
    memcpy(h->checksum, number, 7);
    h->checksum[7] = ' ';
}

/* -- writing ----------------------------------------------------------------------------------- */

static void put_head(const char *name, uint64_t size, char kind, uint8_t *out)
{
    head h;
    char number[24];
    memset(&h, 0, sizeof h);
    memcpy(h.name, name, strlen(name)); // no NUL behind one that fills the field
    memcpy(h.mode, "0000644", 8);
    memcpy(h.uid, "0000000", 8);
    memcpy(h.gid, "0000000", 8);
    snprintf(number, sizeof number, "%011llo", (unsigned long long)size);
    memcpy(h.size, number, sizeof h.size); // with its NUL
    memcpy(h.mtime, "00000000000", 12);
    h.kind = kind;
    memcpy(h.magic, "ustar", 6);
    memcpy(h.version, "00", 2);
    memcpy(h.major, "0000000", 8);
    memcpy(h.minor, "0000000", 8);
    put_sum(&h);
    memcpy(out, &h, sizeof h);
}

/* The record counts its own length, digits included. */
static size_t put_size_record(uint64_t size, char *out, size_t cap)
{
    char text[48];
    const size_t n = (size_t)snprintf(text, sizeof text, " size=%llu\n", (unsigned long long)size);
    return (size_t)snprintf(out, cap, "%zu%s", n + 2, text); // 19 to 29 bytes: two digits
}

size_t coli__tar_head(const char *name, uint64_t n_bytes, uint8_t out[COLI__TAR_HEAD_BYTES])
{
    memset(out, 0, COLI__TAR_HEAD_BYTES);
    if (n_bytes < first_large) {
        put_head(name, n_bytes, '0', out);
        return COLI__TAR_BLOCK;
    }
    char record[64];
    const size_t n_record = put_size_record(n_bytes, record, sizeof record);
    put_head(name, n_record, 'x', out);
    memcpy(out + COLI__TAR_BLOCK, record, n_record);
    put_head(name, 0, '0', out + 2 * (size_t)COLI__TAR_BLOCK); // the record's size counts
    return 3 * (size_t)COLI__TAR_BLOCK;
}

/* -- reading ----------------------------------------------------------------------------------- */

/* Where in which archive, for messages. */
typedef struct place {
    const char *what;
    const uint8_t *data;
    uint64_t n_bytes, at;
} place;

__attribute__((format(printf, 3, 4))) static coli_status refuse(const place *p, coli_status status,
                                                                const char *fmt, ...)
{
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return coli__fail(status, "%s: at %llu: %s", p->what, (unsigned long long)p->at, text);
}

/* Octal digits, then blanks or NULs.  Other spellings are for sizes that have a record here. */
static bool octal(const char *field, size_t n, uint64_t *out)
{
    size_t i = 0;
    *out = 0;
    for (; i < n && field[i] >= '0' && field[i] <= '7'; i++)
        *out = *out * 8 + (uint64_t)(field[i] - '0');
    const bool any = i > 0;
    while (i < n && (field[i] == 0 || field[i] == ' ')) i++;
    return any && i == n;
}

static bool is_zero(const uint8_t *bytes, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (bytes[i]) return false;
    return true;
}

/* What stands there instead, with what to do about it. */
static coli_status refuse_magic(const place *p, const head *h)
{
    static const struct {
        const char *magic;
        size_t n_bytes;
        const char *what;
    } others[] = {{"\x1f\x8b", 2, "is compressed: gunzip it first"},
                  {"\x28\xb5\x2f\xfd", 4, "is compressed: unzstd it first"},
                  {"\xfd"
                   "7zXZ",
                   5, "is compressed: unxz it first"},
                  {"GGUF", 4, "is a GGUF file: `coli convert` reads it"}};
    if (memcmp(h->magic, "ustar ", 6) == 0)
        return refuse(p, COLI_E_FORMAT,
                      "expected the header of a POSIX tar archive, found one of GNU's: make it "
                      "with `tar --format=ustar`");
    for (size_t i = 0; p->at == 0 && i < sizeof others / sizeof others[0]; i++)
        if (memcmp(p->data, others[i].magic, others[i].n_bytes) == 0)
            return coli__fail(COLI_E_FORMAT, "%s: %s", p->what, others[i].what);
    return refuse(p, COLI_E_FORMAT, "expected the header of a POSIX tar archive");
}

/* The block at p->at as a head whose checksum is right. */
static coli_status read_head(const place *p, head *h)
{
    if (p->n_bytes - p->at < COLI__TAR_BLOCK)
        return refuse(p, COLI_E_FORMAT,
                      "expected a header of 512 bytes, found the end of the file");
    memcpy(h, p->data + p->at, sizeof *h);
    if (memcmp(h->magic, "ustar", 6) != 0 || memcmp(h->version, "00", 2) != 0)
        return refuse_magic(p, h);
    head right = *h;
    put_sum(&right);
    if (memcmp(h->checksum, right.checksum, sizeof h->checksum) != 0)
        return refuse(p, COLI_E_FORMAT, "the header's checksum is wrong");
    return COLI_OK;
}

static coli_status check_kind(const place *p, const head *h)
{
    static const struct {
        char kind;
        const char *name;
    } kinds[] = {{'1', "a hard link"},
                 {'2', "a symbolic link"},
                 {'3', "a device"},
                 {'4', "a device"},
                 {'5', "a directory"},
                 {'6', "a pipe"},
                 {'g', "a global pax header"},
                 {'x', "a second pax header"},
                 {'L', "a GNU long name"},
                 {'K', "a GNU long link"},
                 {'S', "a sparse file"}};
    if (h->kind == '0') return COLI_OK;
    const char *name = "something else";
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (h->kind == kinds[i].kind) name = kinds[i].name;
    return refuse(p, COLI_E_UNSUPPORTED, "expected a regular file, found %s", name);
}

/* Name and size of a regular file's head. */
static coli_status read_entry(const place *p, const head *h, coli__tar_entry *out)
{
    COLI_TRY(check_kind(p, h));
    if (h->prefix[0]) return refuse(p, COLI_E_UNSUPPORTED, "a name of more than 100 bytes");
    memcpy(out->name, h->name, sizeof h->name);
    out->name[COLI__TAR_NAME] = 0;
    if (!octal(h->size, sizeof h->size, &out->n_bytes))
        return refuse(p, COLI_E_FORMAT, "the size is no octal number");
    return COLI_OK;
}

/* One record, and no other, "N size=DIGITS\n". */
static bool parse_size_record(const char *text, uint64_t n, uint64_t *size)
{
    static const char key[] = "size=";
    uint64_t at = 0, length = 0;
    for (; at < n && at < 3 && text[at] >= '0' && text[at] <= '9'; at++)
        length = length * 10 + (uint64_t)(text[at] - '0');
    const uint64_t n_key = sizeof key - 1;
    if (length != n || at == 0 || n - at < 1 + n_key + 2 || text[at] != ' ' || text[n - 1] != '\n')
        return false;
    if (memcmp(text + at + 1, key, n_key) != 0) return false;
    *size = 0;
    for (at += 1 + n_key; at < n - 1; at++) {
        if (text[at] < '0' || text[at] > '9' || !coli__mul(*size, 10, size) ||
            !coli__add(*size, (uint64_t)(text[at] - '0'), size))
            return false;
    }
    return true;
}

/* A pax header at p->at: the size that it tells; p->at moves behind it. */
static coli_status read_pax(place *p, const head *h, uint64_t *size)
{
    uint64_t n;
    if (!octal(h->size, sizeof h->size, &n) || n == 0 || n > MAX_RECORDS)
        return refuse(p, COLI_E_UNSUPPORTED, "a pax header that says more than a size");
    if (p->n_bytes - p->at < 2 * COLI__TAR_BLOCK)
        return refuse(p, COLI_E_FORMAT, "expected a pax header, found the end of the file");
    if (!parse_size_record((const char *)p->data + p->at + COLI__TAR_BLOCK, n, size))
        return refuse(p, COLI_E_UNSUPPORTED, "expected a pax header with a size alone");
    if (!is_zero(p->data + p->at + COLI__TAR_BLOCK + n, coli__tar_padding(n)))
        return refuse(p, COLI_E_FORMAT, "expected zeros behind the pax header");
    p->at += 2 * COLI__TAR_BLOCK;
    return COLI_OK;
}

static coli_status read_end(const place *p)
{
    if (p->n_bytes - p->at < 2 * COLI__TAR_BLOCK || !is_zero(p->data + p->at, 2 * COLI__TAR_BLOCK))
        return refuse(p, COLI_E_FORMAT, "expected two blocks of zeros, the end of the archive");
    if (!is_zero(p->data + p->at, p->n_bytes - p->at))
        return refuse(p, COLI_E_FORMAT, "something stands behind the end of the archive");
    return COLI_OK;
}

coli_status coli__tar_next(const char *what, const uint8_t *data, uint64_t n_bytes, uint64_t *at,
                           coli__tar_entry *out, bool *is_end)
{
    place p = {what, data, n_bytes, *at};
    head h;
    *out = (coli__tar_entry){{0}, 0, 0};
    *is_end = p.n_bytes - p.at >= COLI__TAR_BLOCK && is_zero(p.data + p.at, COLI__TAR_BLOCK);
    if (*is_end) return read_end(&p);
    COLI_TRY(read_head(&p, &h));
    uint64_t large = 0;
    if (h.kind == 'x') {
        COLI_TRY(read_pax(&p, &h, &large));
        COLI_TRY(read_head(&p, &h));
    }
    COLI_TRY(read_entry(&p, &h, out));
    if (large) out->n_bytes = large;
    out->offset = p.at + COLI__TAR_BLOCK;
    const uint64_t left = p.n_bytes - out->offset;
    if (out->n_bytes > left || coli__tar_padding(out->n_bytes) > left - out->n_bytes)
        return refuse(&p, COLI_E_FORMAT, "%s: expected %llu bytes, the file has %llu", out->name,
                      (unsigned long long)out->n_bytes, (unsigned long long)left);
    const uint64_t end = out->offset + out->n_bytes, padding = coli__tar_padding(out->n_bytes);
    if (!is_zero(data + end, padding))
        return refuse(&p, COLI_E_FORMAT, "%s: expected zeros behind it", out->name);
    *at = end + padding;
    return COLI_OK;
}
