/* child_posix.c - child.h by fork.
 *
 * A message is written at once: length, then bytes, less than what a pipe takes atomically, so
 * messages of several threads do not mix.  The child ends with the code LEFT; any other end is a
 * death. */
#include "child.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc.h"
#include "threads.h"

enum { LEFT = 113 }; // an exit code that nothing else uses

struct coli__child {
    pid_t pid; // 0: was waited for, or this is the child
    int pipe;  // our end
    void *shared;
    size_t shared_bytes;
    char death[64];
};

typedef struct packet {
    uint32_t n_bytes;
    char bytes[COLI__CHILD_MESSAGE];
} packet;

coli_status coli__child_start(coli__child_fn fn, void *ctx, size_t shared_bytes, coli__child **out)
{
    *out = NULL;
    coli__child *c = coli__calloc(1, sizeof *c);
    if (!c) return COLI_E_NOMEM;
    int ends[2] = {-1, -1};
    c->shared_bytes = shared_bytes ? shared_bytes : 1;
    c->shared =
        mmap(NULL, c->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (c->shared == MAP_FAILED || pipe(ends) != 0 || (c->pid = fork()) < 0) {
        const coli_status status =
            coli__fail(COLI_E_IO, "cannot start a child process: %s", strerror(errno));
        if (ends[0] >= 0) close(ends[0]), close(ends[1]);
        if (c->shared != MAP_FAILED) munmap(c->shared, c->shared_bytes);
        coli__free(c);
        return status;
    }
    if (c->pid == 0) {
        close(ends[0]);
        c->pipe = ends[1];
        signal(SIGPIPE, SIG_DFL); // a child whose parent is gone has nothing to live for
        fn(c, ctx);
        coli__child_leave(c);
    }
    close(ends[1]);
    c->pipe = ends[0];
    *out = c;
    return COLI_OK;
}

void *coli__child_shared(const coli__child *child)
{
    return child->shared;
}

void coli__child_destroy(coli__child *child)
{
    if (!child) return;
    if (child->pid > 0) {
        kill(child->pid, SIGKILL);
        while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    close(child->pipe);
    munmap(child->shared, child->shared_bytes);
    coli__free(child);
}

/* The pipe is at its end: how did the child end? */
static coli__child_event reap(coli__child *c)
{
    int status = 0;
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR) {
    }
    c->pid = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == LEFT) return COLI__CHILD_DONE;
    if (WIFSIGNALED(status))
        snprintf(c->death, sizeof c->death, "%s", strsignal(WTERMSIG(status)));
    else
        snprintf(c->death, sizeof c->death, "exit code %d", WEXITSTATUS(status));
    return COLI__CHILD_DIED;
}

static bool read_all(int fd, void *to, size_t n_bytes)
{
    for (size_t done = 0; done < n_bytes;) {
        const ssize_t n = read(fd, (char *)to + done, n_bytes - done);
        if (n == 0 || (n < 0 && errno != EINTR)) return false;
        if (n > 0) done += (size_t)n;
    }
    return true;
}

coli__child_event coli__child_wait(coli__child *child, uint64_t limit_ns, void *message,
                                   size_t *n_bytes)
{
    const uint64_t end_ns = coli__clock_ns() + limit_ns;
    for (;;) {
        const uint64_t now_ns = coli__clock_ns();
        const uint64_t left_ms = now_ns < end_ns ? (end_ns - now_ns + 999999) / 1000000 : 0;
        struct pollfd fd = {.fd = child->pipe, .events = POLLIN};
        const int n = poll(&fd, 1, left_ms > 1000 ? 1000 : (int)left_ms);
        if (n > 0) break;
        if (n == 0 && left_ms == 0) return COLI__CHILD_SILENT;
    }
    uint32_t length;
    if (!read_all(child->pipe, &length, sizeof length) || length > COLI__CHILD_MESSAGE ||
        !read_all(child->pipe, message, length))
        return reap(child);
    *n_bytes = length;
    return COLI__CHILD_SAID;
}

bool coli__child_is_process(void)
{
    return true;
}

const char *coli__child_death(const coli__child *child)
{
    return child->death;
}

void coli__child_say(coli__child *self, const void *message, size_t n_bytes)
{
    packet p = {.n_bytes = (uint32_t)n_bytes};
    memcpy(p.bytes, message, n_bytes);
    const size_t total = sizeof p.n_bytes + n_bytes;
    while (write(self->pipe, &p, total) < 0 && errno == EINTR) {
    }
}

void coli__child_leave(coli__child *self)
{
    (void)self;
    _exit(LEFT);
}
