/* Preloaded into nginx, takes a second for each response with a field X-Slow. NGINX answers its clients with
   writev(). */

#define _GNU_SOURCE
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

ssize_t writev(int socket, const struct iovec *parts, int number)
{
    static const char field[] = "\r\nX-Slow:";

    if (number > 0 && memmem(parts[0].iov_base, parts[0].iov_len, field, sizeof field - 1) != NULL) {
        sleep(1);
    }
    return syscall(SYS_writev, socket, parts, number);
}
