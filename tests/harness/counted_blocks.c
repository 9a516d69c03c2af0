/* Counts the blocks of memory that a process has taken and not freed, their bytes, and how often it has taken one: see
 * usage.rs, which finds the counts by their mark in the memory of the process. After a fork both processes go on counting
 * from there. */

#include <errno.h>
#include <malloc.h>
#include <stddef.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t number, size_t size);
void *__libc_realloc(void *block, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *block);

static volatile struct {
    char mark[16];
    size_t blocks;
    size_t bytes;
    size_t allocations;
} counts = {"counted blocks:", 0, 0, 0};

static void *taken(void *block) {
    if (block) {
        counts.blocks++;
        counts.allocations++;
        counts.bytes += malloc_usable_size(block);
    }
    return block;
}

static void freed(size_t bytes) {
    counts.blocks--;
    counts.bytes -= bytes;
}

void *malloc(size_t size) { return taken(__libc_malloc(size)); }

void *calloc(size_t number, size_t size) { return taken(__libc_calloc(number, size)); }

void *memalign(size_t alignment, size_t size) { return taken(__libc_memalign(alignment, size)); }

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **block, size_t alignment, size_t size) {
    void *aligned = memalign(alignment, size);
    if (!aligned) return ENOMEM;
    *block = aligned;
    return 0;
}

void *realloc(void *block, size_t size) {
    size_t bytes = block ? malloc_usable_size(block) : 0;
    void *moved = __libc_realloc(block, size);
    /* A block of no size is freed; one that cannot grow stays. */
    if (block && (moved || !size)) freed(bytes);
    return taken(moved);
}

void free(void *block) {
    if (!block) return;
    freed(malloc_usable_size(block));
    __libc_free(block);
}
