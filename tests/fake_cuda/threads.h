// Runs a kernel that was built for the host.
#pragma once

#include <cstddef>
#include <vector>

struct Size3 {
    unsigned x, y, z;
};

struct Kernel {
    const char *name;
    void (*call)(void *const *parameters);
    std::vector<std::size_t> sizes;  // bytes of each parameter
};

// The kernel of this name, or NULL.
const Kernel *find_kernel(const char *name);
void add_kernel(const Kernel &kernel);

// Runs all blocks, one after the other. One call at a time: the caller holds the driver's lock.
void run_kernel(const Kernel &kernel, void *const *parameters, Size3 grid, Size3 block);
