// Device memory at addresses that the host cannot touch, and pinned host memory.
#include "state.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>

namespace {

constexpr std::size_t ALIGNMENT = 256;  // of what the driver hands out
constexpr std::size_t GUARD = 16 << 20;   // addresses on either side of memory that are nobody's
constexpr unsigned char NEVER_WRITTEN = 0xcd;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }
Address page_of(Address address) { return address / PAGE * PAGE; }
void *pointer(Address address) { return reinterpret_cast<void *>(address); }

void protect(Address address, std::size_t bytes, int protection) {
    Address first = page_of(address);
    if (mprotect(pointer(first), round_up(address + bytes, PAGE) - first, protection) == 0) return;
    std::perror("fake_cuda: mprotect");
    std::abort();
}

void drop_pages(Address address, std::size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap(pointer(address), bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED) std::abort();
}

bool all_bytes_are(Address from, Address to, unsigned char value) {
    for (Address at = from; at < to; at++)
        if (*static_cast<unsigned char *>(pointer(at)) != value) return false;
    return true;
}

// The bytes of the pages around an allocation are not part of it: whoever writes them is found here.
void check_rest_of_pages(Address address, std::size_t bytes) {
    Address first = page_of(address), end = round_up(address + bytes, PAGE);
    protect(first, end - first, PROT_READ);
    if (!all_bytes_are(first, address, NEVER_WRITTEN) || !all_bytes_are(address + bytes, end, NEVER_WRITTEN))
        misuse(SUCCESS, "device memory beside an allocation was written");
}

// The entry that holds an address.
template <class Map, class BytesOf> auto find_in(Map &map, Address address, BytesOf bytes_of) {
    auto after = map.upper_bound(address);
    if (after == map.begin()) return map.end();
    auto found = std::prev(after);
    return address - found->first < bytes_of(found->second) ? found : map.end();
}

std::size_t bytes_of_pinned(const std::size_t &bytes) { return bytes; }
std::size_t bytes_of_allocation(const Allocation &allocation) { return allocation.bytes; }

void count_device_memory(std::int64_t allocations, std::int64_t bytes) {
    state().device_allocations += allocations;
    state().device_bytes += bytes;
    state().most_device_bytes = std::max(state().most_device_bytes, state().device_bytes);
}

}  // namespace

// Never given back, so that an address that was freed stays one that crashes.
Address reserve_pages(std::size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *start = mmap(nullptr, bytes + 2 * GUARD, PROT_NONE, flags, -1, 0);
    return start == MAP_FAILED ? 0 : reinterpret_cast<Address>(start) + GUARD;
}

const std::pair<const Address, Allocation> *find_allocation(Address address) {
    auto found = find_in(state().allocations, address, bytes_of_allocation);
    return found == state().allocations.end() ? nullptr : &*found;
}

Address find_offloaded(Address address) {
    auto found = find_in(state().offloaded, address, bytes_of_pinned);
    return found == state().offloaded.end() ? 0 : found->first;
}

bool is_offloaded(Address address, std::size_t bytes) {
    Address start = find_offloaded(address);
    return start != 0 && address + bytes <= start + state().offloaded[start];
}

Address find_pinned(Address address, std::size_t bytes) {
    auto found = find_in(state().pinned, address, bytes_of_pinned);
    if (found == state().pinned.end() || address + bytes > found->first + found->second) return 0;
    return found->first;
}

bool is_device_range(Address address, std::size_t bytes, int *device) {
    const auto *found = find_allocation(address);
    if (found == nullptr) return false;
    *device = found->second.device;
    // Chunks that are mapped side by side in one reservation are like one.
    for (Address end = address + bytes; found != nullptr && found->second.device == *device;) {
        Address next = found->first + found->second.bytes;
        if (next >= end) return true;
        found = found->second.chunk ? find_allocation(next) : nullptr;
    }
    return false;
}

void with_access(Address address, std::size_t bytes, const std::function<void()> &work) {
    protect(address, bytes, PROT_READ | PROT_WRITE);
    work();
    protect(address, bytes, PROT_NONE);
}

void with_device_access(int device, const std::function<void()> &work) {
    for (const auto &entry : state().allocations)
        if (entry.second.device == device) protect(entry.first, entry.second.bytes, PROT_READ | PROT_WRITE);
    work();
    for (const auto &entry : state().allocations)
        if (entry.second.device == device) protect(entry.first, entry.second.bytes, PROT_NONE);
}

// An allocation ends with its last page (but for its alignment), so that an access beyond its end is a fault.
Address map_device(int device, std::size_t bytes, Owner owner) {
    std::size_t rounded = round_up(bytes, ALIGNMENT), pages = round_up(rounded, PAGE);
    Address first = reserve_pages(pages);
    if (first == 0) return 0;
    protect(first, pages, PROT_READ | PROT_WRITE);
    std::memset(pointer(first), NEVER_WRITTEN, pages);
    protect(first, pages, PROT_NONE);
    Address address = first + pages - rounded;
    state().allocations[address] = {device, bytes, owner, false};
    return address;
}

void unmap_device(Address address) {
    Allocation allocation = state().allocations.at(address);
    if (!allocation.chunk) check_rest_of_pages(address, allocation.bytes);
    Address first = page_of(address);
    drop_pages(first, round_up(address + allocation.bytes, PAGE) - first);
    state().allocations.erase(address);
}

DRIVER int cuMemAlloc_v2(Address *address, std::size_t bytes) {
    ENTER_CONTEXT("cuMemAlloc_v2");
    Result result = check_unsafe_call("cuMemAlloc");
    if (result != SUCCESS) return result;
    if (bytes == 0) return INVALID_VALUE;
    if (bytes > state().device_limit || state().device_bytes > state().device_limit - bytes) return OUT_OF_MEMORY;
    *address = map_device(context->device, bytes, Owner::LIBRARY);
    if (*address == 0) return OUT_OF_MEMORY;
    count_device_memory(1, bytes);
    return SUCCESS;
}

DRIVER int cuMemFree_v2(Address address) {
    ENTER_CONTEXT("cuMemFree_v2");
    Result result = check_unsafe_call("cuMemFree");
    if (result != SUCCESS || address == 0) return result;
    auto found = state().allocations.find(address);
    if (found == state().allocations.end() || found->second.owner != Owner::LIBRARY)
        return misuse(INVALID_VALUE, "cuMemFree of what is no allocation of the library, or no longer");
    run_device(found->second.device);
    count_device_memory(-1, -static_cast<std::int64_t>(found->second.bytes));
    unmap_device(address);
    return SUCCESS;
}

DRIVER int cuMemHostAlloc(void **out, std::size_t bytes, unsigned flags) {
    ENTER_CONTEXT("cuMemHostAlloc");
    Result result = check_unsafe_call("cuMemHostAlloc");
    if (result != SUCCESS) return result;
    if (bytes == 0 || flags > 7) return INVALID_VALUE;
    if (bytes > state().pinned_limit || state().pinned_bytes > state().pinned_limit - bytes) return OUT_OF_MEMORY;
    Address address = reserve_pages(round_up(bytes, PAGE));
    if (address == 0) return OUT_OF_MEMORY;
    protect(address, bytes, PROT_READ | PROT_WRITE);
    std::memset(pointer(address), NEVER_WRITTEN, round_up(bytes, PAGE));
    state().pinned[address] = bytes;
    state().pinned_bytes += bytes;
    state().most_pinned_bytes = std::max(state().most_pinned_bytes, state().pinned_bytes);
    *out = pointer(address);
    return SUCCESS;
}

DRIVER int cuMemFreeHost(void *start) {
    ENTER_CONTEXT("cuMemFreeHost");
    Result result = check_unsafe_call("cuMemFreeHost");
    if (result != SUCCESS) return result;
    Address address = reinterpret_cast<Address>(start);
    auto found = state().pinned.find(address);
    if (found == state().pinned.end())
        return misuse(INVALID_VALUE, "cuMemFreeHost of what is no pinned memory, or no longer");
    for (int device = 0; device < MOST_DEVICES; device++)
        for (const auto &stream : all_streams(device))
            for (const Work &work : stream->queue)
                if (work.pinned == address) misuse(SUCCESS, "cuMemFreeHost of memory that a queued copy uses");
    std::size_t pages = round_up(found->second, PAGE);
    if (!all_bytes_are(address + found->second, address + pages, NEVER_WRITTEN))
        misuse(SUCCESS, "host memory after a pinned allocation was written");
    drop_pages(address, pages);
    state().pinned_bytes -= found->second;
    state().pinned.erase(found);
    return SUCCESS;
}
