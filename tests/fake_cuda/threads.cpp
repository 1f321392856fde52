// The threads of a block as fibers: each runs until it waits at __syncthreads or ends, then the next one goes on.
#include "threads.h"

#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "cuda_on_host.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace {

constexpr unsigned MOST_THREADS = 1024;
constexpr std::size_t STACK_BYTES = 64 << 10;

struct Fiber {
    jmp_buf where;
    ucontext_t start;
    bool started = false;
    bool ended = false;
};

Fiber fibers[MOST_THREADS];
jmp_buf scheduler;
unsigned current;
const Kernel *running;
void *const *arguments;

std::vector<Kernel> &kernels() {
    // Never destroyed: other threads may still launch when the process ends.
    static std::vector<Kernel> *all = new std::vector<Kernel>;
    return *all;
}

// A fiber never ends: it is used for the next block, and for the next kernel.
void fiber_main() {
    for (;;) {
        running->call(arguments);
        fibers[current].ended = true;
        if (_setjmp(fibers[current].where) == 0) _longjmp(scheduler, 1);
    }
}

void start(Fiber &fiber) {
    static char *stacks = nullptr;
    if (stacks == nullptr) {
        void *memory = mmap(nullptr, MOST_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) std::abort();
        stacks = static_cast<char *>(memory);
    }
    fiber.started = true;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = stacks + (&fiber - fibers) * STACK_BYTES;
    fiber.start.uc_stack.ss_size = STACK_BYTES;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, fiber_main, 0);
    setcontext(&fiber.start);
}

void resume(unsigned index) {
    current = index;
    threadIdx = {index % blockDim.x, index / blockDim.x % blockDim.y, index / blockDim.x / blockDim.y};
    if (_setjmp(scheduler) != 0) return;
    if (!fibers[index].started) start(fibers[index]);
    _longjmp(fibers[index].where, 1);
}

// Threads run in turn upwards and downwards: a missing __syncthreads then shows, whichever neighbour it is about.
void run_block(unsigned threads, unsigned long long number) {
    for (unsigned index = 0; index < threads; index++) fibers[index].ended = false;
    unsigned left = threads;
    for (unsigned long long pass = number; left > 0; pass++) {
        for (unsigned step = 0; step < threads; step++) {
            unsigned index = pass % 2 == 0 ? step : threads - 1 - step;
            if (fibers[index].ended) continue;
            resume(index);
            if (fibers[index].ended) left--;
        }
    }
}

// What a GPU reports as an illegal or misaligned address ends the process, with the kernel's name.
void fault(int signal, siginfo_t *info, void *) {
    char text[256];
    const char *what = signal == SIGILL ? "a misaligned address" : "memory that is not its own";
    int length = std::snprintf(text, sizeof text, "fake_cuda: kernel %s, block %u, thread %u used %s (%p)\n",
                               running->name, blockIdx.x, threadIdx.x, what, info->si_addr);
    if (write(2, text, length) < 0) std::abort();
    std::abort();
}

class Faults {
public:
    Faults() {
        struct sigaction action = {};
        action.sa_sigaction = fault;
        action.sa_flags = SA_SIGINFO;
        for (int index = 0; index < COUNT; index++) sigaction(SIGNALS[index], &action, &before[index]);
    }
    ~Faults() {
        for (int index = 0; index < COUNT; index++) sigaction(SIGNALS[index], &before[index], nullptr);
    }

private:
    static constexpr int COUNT = 4;
    // The trap of -fsanitize=alignment is SIGILL on x86-64 and SIGTRAP on AArch64.
    static constexpr int SIGNALS[COUNT] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP};
    struct sigaction before[COUNT];
};

}  // namespace

void __syncthreads() {
    if (_setjmp(fibers[current].where) == 0) _longjmp(scheduler, 1);
}

const Kernel *find_kernel(const char *name) {
    for (const Kernel &kernel : kernels())
        if (std::strcmp(kernel.name, name) == 0) return &kernel;
    return nullptr;
}

void add_kernel(const Kernel &kernel) { kernels().push_back(kernel); }

void run_kernel(const Kernel &kernel, void *const *parameters, Size3 grid, Size3 block) {
    static unsigned launches = 0;
    Faults faults;
    running = &kernel;
    arguments = parameters;
    gridDim = {grid.x, grid.y, grid.z};
    blockDim = {block.x, block.y, block.z};
    unsigned long long blocks = (unsigned long long)grid.x * grid.y * grid.z;
    bool downwards = launches++ % 2 == 1;  // blocks have no order that a kernel may count on
    for (unsigned long long step = 0; step < blocks; step++) {
        unsigned long long number = downwards ? blocks - 1 - step : step;
        blockIdx = {(unsigned)(number % grid.x), (unsigned)(number / grid.x % grid.y),
                    (unsigned)(number / grid.x / grid.y)};
        run_block(block.x * block.y * block.z, number);
    }
}
