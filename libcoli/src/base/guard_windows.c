/* guard_windows.c - a file cannot become shorter while it is mapped here: SetEndOfFile is refused
 * (ERROR_USER_MAPPED_FILE).  A disk that fails ends the process by an exception, as it does anywhere. */
#include "file_os.h"

uint32_t coli__os_guard(int fd, const void *data, size_t n_bytes)
{
    (void)data, (void)n_bytes;
    coli__sys_calls.close(fd);
    return 0;
}

void coli__os_unguard(uint32_t guard)
{
    (void)guard;
}

bool coli__os_guard_is_whole(uint32_t guard)
{
    (void)guard;
    return true;
}
