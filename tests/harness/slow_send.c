/* Preloaded into nginx, sends no more than 1,000 bytes at once, and waits before: between two parts of a
   command there is time for its server to close the connection. NGINX answers its own clients with
   writev(). */

#include <sys/socket.h>
#include <unistd.h>

ssize_t send(int socket, const void *data, size_t length, int flags)
{
    usleep(20000);
    return sendto(socket, data, length > 1000 ? 1000 : length, flags, NULL, 0);
}
