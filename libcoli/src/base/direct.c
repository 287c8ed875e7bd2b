/* direct.c - see direct.h.
 *
 * A direct read wants offset, length and memory at multiples of the device's block.  So a piece is
 * read from the multiple of 4096 before it to the one behind it, and begins inside the room:
 *
 *     file    |....xxxx|xxxxxxxx|xxx.....|          x the piece
 *     room    |....xxxx|xxxxxxxx|xxx.....|          data = room + offset % 4096
 *
 * The last piece of a file ends where the file does: a read that comes back short there is whole if it
 * has the piece.  A direct read may come back short elsewhere, too: what lacks some of the piece is read
 * once more as other files are.  When the system refuses the first direct read (EINVAL), all of the file
 * is from then on. */
#include "direct.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "file_os.h"

enum { ALIGN = COLI__DIRECT_ALIGN, PIECE_ALIGN = 64 };

struct coli__direct {
    char *path;
    int fd;        // through the cache
    int fd_direct; // -1: there is none
    atomic_bool is_direct;
};

static coli_status check_id(int fd, const char *path, coli__file_id want)
{
    coli__file_id id;
    if (coli__os_id(fd, &id) != 0) return coli__fail_errno(path, "cannot look at");
    if (id.volume == want.volume && id.number == want.number) return COLI_OK;
    return coli__fail(COLI_E_IO, "%s: it was replaced by another file while it was being opened",
                      path);
}

coli_status coli__direct_open(const char *path, coli__file_id id, coli__direct **out)
{
    *out = NULL;
    coli__direct *f = coli__calloc(1, sizeof *f);
    if (!f) return COLI_E_NOMEM;
    f->fd = f->fd_direct = -1;
    f->path = coli__strndup(path, strlen(path));
    coli_status status = f->path ? COLI_OK : COLI_E_NOMEM;
    if (status == COLI_OK) {
        f->fd = coli__os_open(path);
        status = f->fd < 0 ? coli__fail_errno(path, "cannot open") : check_id(f->fd, path, id);
    }
    if (status == COLI_OK) {
        f->fd_direct = coli__os_open_direct(path);
        if (f->fd_direct >= 0) status = check_id(f->fd_direct, path, id);
    }
    if (status != COLI_OK) {
        coli__direct_close(f);
        return status;
    }
    atomic_init(&f->is_direct, f->fd_direct >= 0);
    *out = f;
    return COLI_OK;
}

void coli__direct_close(coli__direct *f)
{
    if (!f) return;
    if (f->fd >= 0) coli__sys_calls.close(f->fd);
    if (f->fd_direct >= 0) coli__sys_calls.close(f->fd_direct);
    coli__free(f->path);
    coli__free(f);
}

bool coli__direct_is_direct(const coli__direct *f)
{
    return atomic_load(&f->is_direct);
}

uint64_t coli__direct_room(uint64_t n_bytes)
{
    uint64_t most; // the piece may begin 64 bytes before a multiple
    if (!coli__add(n_bytes, 2 * ALIGN - PIECE_ALIGN - 1, &most)) return 0;
    return most / ALIGN * ALIGN;
}

/* Read [offset, offset + n) as far as it goes; -1 and errno. */
static ptrdiff_t read_span(int fd, uint8_t *to, uint64_t n, uint64_t offset, bool aligned)
{
    uint64_t done = 0;
    while (done < n) {
        const size_t want = n - done < (1u << 30) ? (size_t)(n - done) : 1u << 30;
        const ptrdiff_t got = coli__sys_calls.pread(fd, to + done, want, offset + done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += (uint64_t)got;
        if (aligned && done % ALIGN) break; // none goes on there; mostly the file ends, too
    }
    return (ptrdiff_t)done;
}

static ptrdiff_t read_cached(const coli__direct *f, uint8_t *to, uint64_t n, uint64_t offset)
{
    const ptrdiff_t got = read_span(f->fd, to, n, offset, false);
    const int code = errno;
    coli__os_forget(f->fd, offset, n);
    errno = code;
    return got;
}

/* At least the first `least` of n bytes, past the cache if that can be done. */
static ptrdiff_t read_aligned(coli__direct *f, uint8_t *to, uint64_t n, uint64_t least,
                              uint64_t offset)
{
    if (!atomic_load(&f->is_direct)) return read_cached(f, to, n, offset);
    const ptrdiff_t got = read_span(f->fd_direct, to, n, offset, true);
    if (got < 0 && errno == EINVAL) atomic_store(&f->is_direct, false);
    const bool is_answer = got < 0 ? errno != EINVAL : (uint64_t)got >= least;
    return is_answer ? got : read_cached(f, to, n, offset);
}

coli_status coli__direct_read(coli__direct *f, uint64_t offset, uint64_t n_bytes, void *room,
                              const uint8_t **data)
{
    const uint64_t skip = offset % ALIGN;
    const uint64_t span = (skip + n_bytes + ALIGN - 1) / ALIGN * ALIGN;
    const ptrdiff_t got = read_aligned(f, room, span, skip + n_bytes, offset - skip);
    *data = (const uint8_t *)room + skip;
    if (got < 0)
        return coli__fail(COLI_E_IO, "%s: cannot read %llu bytes at %llu: %s", f->path,
                          (unsigned long long)n_bytes, (unsigned long long)offset, strerror(errno));
    if ((uint64_t)got >= skip + n_bytes) return COLI_OK;
    return coli__fail(COLI_E_IO,
                      "%s: expected %llu bytes at %llu, found %llu: the file is shorter "
                      "than when it was opened",
                      f->path, (unsigned long long)n_bytes, (unsigned long long)offset,
                      (unsigned long long)((uint64_t)got > skip ? (uint64_t)got - skip : 0));
}
