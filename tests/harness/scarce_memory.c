/* Preloaded into nginx, refuses one block of memory to its pools. The file SCARCE_MEMORY holds its number,
   counted from the next one on; 0 is none. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdlib.h>
#include <sys/mman.h>

static int *number;

__attribute__((constructor)) static void open_number(void)
{
    int file = open(getenv("SCARCE_MEMORY"), O_RDWR);
    void *memory = mmap(NULL, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

    number = memory == MAP_FAILED ? NULL : memory;
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
    if (number != NULL && *number > 0 && --*number == 0) {
        return ENOMEM;
    }
    *memory = memalign(alignment, size);
    return *memory == NULL ? ENOMEM : 0;
}
