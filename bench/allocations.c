// Counts what the interpreter allocates: a library that a Python process loads into itself (bench/guard/counting.py).
//
// `install` puts a counter in front of the allocators of objects and buffers; `allocations` and `allocated_bytes` go up
// as long as `counting` is set. Only domains that need the interpreter's lock are counted, so that plain numbers do.
#include <stddef.h>

// As Python/C API has it; declared here so that no header of one Python version is needed.
typedef struct {
    void *context;
    void *(*allocate)(void *context, size_t size);
    void *(*allocate_zeroed)(void *context, size_t count, size_t size);
    void *(*resize)(void *context, void *block, size_t size);
    void (*release)(void *context, void *block);
} allocator;

enum { BUFFERS = 1, OBJECTS = 2, DOMAINS = 3 };

extern void PyMem_GetAllocator(int domain, allocator *out);
extern void PyMem_SetAllocator(int domain, allocator *in);

int counting;
size_t allocations, allocated_bytes;
static allocator beneath[DOMAINS];

static void note(size_t size) {
    if (!counting) return;
    allocations++;
    allocated_bytes += size;
}

static void *allocate(void *context, size_t size) {
    allocator *own = context;
    note(size);
    return own->allocate(own->context, size);
}

static void *allocate_zeroed(void *context, size_t count, size_t size) {
    allocator *own = context;
    note(count * size);
    return own->allocate_zeroed(own->context, count, size);
}

static void *resize(void *context, void *block, size_t size) {
    allocator *own = context;
    note(size);
    return own->resize(own->context, block, size);
}

static void release(void *context, void *block) {
    allocator *own = context;
    own->release(own->context, block);
}

void install(void) {
    for (int domain = BUFFERS; domain <= OBJECTS; domain++) {
        PyMem_GetAllocator(domain, &beneath[domain]);
        allocator counted = {&beneath[domain], allocate, allocate_zeroed, resize, release};
        PyMem_SetAllocator(domain, &counted);
    }
}
