/* guard_posix.c - mappings of files that may become shorter (file.h).
 *
 * A page of a mapping that the file no longer has, or that the disk cannot give, ends the process with
 * SIGBUS when it is touched.  So a handler is installed with the first guarded mapping, for good: if
 * the address lies in one, it notes that this mapping is not whole, puts a page of zeros there, and the
 * instruction is done once more.  Whoever reads looks at the note afterwards and throws away what was
 * computed.  What is about other addresses goes to the handler that was there before, or ends the process
 * as it would have without us.
 *
 *     the page that holds the file's end   reads as zeros behind it, and no signal comes: so the size
 *                                          of the file is looked at, too
 *
 * The handler runs in any thread at any instruction: it reads atomics and makes one system call (mmap,
 * which Linux and the BSDs do as one, without a lock of the C library). */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "file_os.h"

enum { MAX_GUARD = 256 }; // further mappings are not guarded

typedef struct span {
    atomic_uintptr_t begin, end; // whole pages; begin 0: free, written last when taken
    atomic_bool is_hit;
    int fd;
    uint64_t n_bytes;
} span;

static span spans[MAX_GUARD];
static struct sigaction before;
static uintptr_t page_bytes;
static pthread_once_t installed = PTHREAD_ONCE_INIT;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; // of taking and freeing spans

static span *span_of(uintptr_t address)
{
    for (int i = 0; i < MAX_GUARD; i++) {
        const uintptr_t begin = atomic_load(&spans[i].begin);
        if (begin && address >= begin && address < atomic_load(&spans[i].end)) return &spans[i];
    }
    return NULL;
}

static void pass_on(int signal_number, siginfo_t *info, void *context)
{
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(signal_number, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(signal_number);
    } else if (before.sa_handler == SIG_DFL || info->si_code > 0) { // a fault cannot be ignored
        sigaction(SIGBUS, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
        raise(SIGBUS); // when this handler returns
    }
}

static void on_bus_error(int signal_number, siginfo_t *info, void *context)
{
    const int code = errno;
    const uintptr_t address = (uintptr_t)info->si_addr;
    span *s = info->si_code > 0 ? span_of(address) : NULL; // 0 and less: somebody sent it
    void *const page = (void *)(address / page_bytes * page_bytes);
    if (s) atomic_store(&s->is_hit, true); // before another thread can read the zeros
    if (!s ||
        mmap(page, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != page)
        pass_on(signal_number, info, context);
    errno = code;
}

static void install(void)
{
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    struct sigaction ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&ours.sa_mask);
    sigaction(SIGBUS, &ours, &before);
}

uint32_t coli__os_guard(int fd, const void *data, size_t n_bytes)
{
    pthread_once(&installed, install);
    pthread_mutex_lock(&mu);
    uint32_t i = 0;
    while (i < MAX_GUARD && atomic_load(&spans[i].begin)) i++;
    if (i < MAX_GUARD) {
        const uintptr_t begin = (uintptr_t)data;
        spans[i].fd = fd;
        spans[i].n_bytes = n_bytes;
        atomic_store(&spans[i].is_hit, false);
        atomic_store(&spans[i].end, (begin + n_bytes + page_bytes - 1) / page_bytes * page_bytes);
        atomic_store(&spans[i].begin, begin);
    }
    pthread_mutex_unlock(&mu);
    if (i < MAX_GUARD) return i + 1;
    coli__sys_calls.close(fd);
    return 0;
}

void coli__os_unguard(uint32_t guard)
{
    if (guard == 0) return;
    pthread_mutex_lock(&mu);
    atomic_store(&spans[guard - 1].begin, 0);
    const int fd = spans[guard - 1].fd;
    pthread_mutex_unlock(&mu);
    coli__sys_calls.close(fd);
}

bool coli__os_guard_is_whole(uint32_t guard)
{
    if (guard == 0) return true;
    span *s = &spans[guard - 1];
    uint64_t n_bytes;
    if (!atomic_load(&s->is_hit) &&
        (coli__os_regular(s->fd, &n_bytes) != 1 || n_bytes >= s->n_bytes))
        return true;
    atomic_store(&s->is_hit, true); // also when it grows again
    return false;
}
