/* Preloaded into nginx, refuses sockets for IPv6, as a system does that has none. */

#include <errno.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

int socket(int domain, int type, int protocol)
{
    if (domain == AF_INET6) {
        errno = EAFNOSUPPORT;
        return -1;
    }
    return syscall(SYS_socket, domain, type, protocol);
}
