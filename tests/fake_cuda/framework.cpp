// The tests' side: what a framework such as torch does with a device, beside the library under test.
#include <cstring>

#include "control.h"
#include "state.h"

#include <sys/mman.h>

namespace {

bool is_mapped(std::uint64_t address, std::uint64_t bytes, int *device) {
    return bytes > 0 && is_device_range(address, bytes, device);
}

void *pointer(std::uint64_t address) { return reinterpret_cast<void *>(address); }

Reservation *reservation_around(std::uint64_t address, std::uint64_t bytes) {
    auto after = state().reservations.upper_bound(address);
    if (after == state().reservations.begin()) return nullptr;
    auto found = std::prev(after);
    bool inside = address + bytes <= found->first + found->second.bytes;
    return inside ? &found->second : nullptr;
}

bool is_chunk(std::uint64_t address) {
    auto found = state().allocations.find(address);
    return found != state().allocations.end() && found->second.chunk;
}

}  // namespace

CONTROL uint64_t fake_alloc(int device, uint64_t bytes) {
    HOLD_LOCK;
    if (device < 0 || device >= state().devices || bytes == 0) return 0;
    return map_device(device, bytes, Owner::FRAMEWORK);
}

CONTROL int fake_free(uint64_t address) {
    HOLD_LOCK;
    auto found = state().allocations.find(address);
    if (found == state().allocations.end() || found->second.owner != Owner::FRAMEWORK || found->second.chunk) return 0;
    unmap_device(address);
    return 1;
}

CONTROL uint64_t fake_reserve(int device, uint64_t bytes) {
    HOLD_LOCK;
    if (device < 0 || device >= state().devices || bytes == 0 || bytes % PAGE != 0) return 0;
    Address address = reserve_pages(bytes);
    if (address != 0) state().reservations[address] = {device, bytes};
    return address;
}

CONTROL int fake_map(uint64_t address, uint64_t bytes) {
    HOLD_LOCK;
    const Reservation *reservation = reservation_around(address, bytes);
    if (reservation == nullptr || address % PAGE != 0 || bytes == 0 || bytes % PAGE != 0) return 0;
    auto next = state().allocations.lower_bound(address);
    if (next != state().allocations.end() && next->first < address + bytes) return 0;
    if (find_allocation(address) != nullptr) return 0;
    state().allocations[address] = {reservation->device, bytes, Owner::FRAMEWORK, true};
    return 1;
}

CONTROL int fake_unmap(uint64_t address, uint64_t bytes) {
    HOLD_LOCK;
    if (!is_chunk(address) || state().allocations[address].bytes != bytes) return 0;
    unmap_device(address);
    return 1;
}

CONTROL uint64_t fake_offload(uint64_t bytes) {
    HOLD_LOCK;
    Address address = reserve_pages((bytes + PAGE - 1) / PAGE * PAGE);
    if (address == 0 || mprotect(reinterpret_cast<void *>(address), bytes, PROT_READ | PROT_WRITE) != 0) return 0;
    state().offloaded[address] = bytes;
    return address;
}

CONTROL int fake_split(uint64_t address, uint64_t bytes) {
    HOLD_LOCK;
    auto found = state().reservations.find(address);
    if (found == state().reservations.end() || bytes % PAGE != 0 || bytes == 0 || bytes >= found->second.bytes) return 0;
    state().reservations[address + bytes] = {found->second.device, found->second.bytes - bytes};
    found->second.bytes = bytes;
    return 1;
}

CONTROL int fake_unreserve(uint64_t address) {
    HOLD_LOCK;
    auto found = state().reservations.find(address);
    if (found == state().reservations.end()) return 0;
    Address end = address + found->second.bytes;
    for (;;) {
        auto chunk = state().allocations.lower_bound(address);
        if (chunk == state().allocations.end() || chunk->first >= end) break;
        unmap_device(chunk->first);
    }
    state().reservations.erase(found);
    return 1;
}

CONTROL int fake_write(uint64_t address, const void *host, uint64_t bytes) {
    HOLD_LOCK;
    int device;
    if (!is_mapped(address, bytes, &device)) return 0;
    with_access(address, bytes, [&] { std::memcpy(pointer(address), host, bytes); });
    return 1;
}

CONTROL int fake_read(void *host, uint64_t address, uint64_t bytes) {
    HOLD_LOCK;
    int device;
    if (!is_mapped(address, bytes, &device)) return 0;
    with_access(address, bytes, [&] { std::memcpy(host, pointer(address), bytes); });
    return 1;
}

CONTROL uint64_t fake_stream(int device) {
    HOLD_LOCK;
    return device < 0 || device >= state().devices ? 0 : add_stream(device, true, Owner::FRAMEWORK);
}

CONTROL int fake_stream_free(uint64_t handle) {
    HOLD_LOCK;
    auto found = state().streams.find(handle);
    if (found == state().streams.end() || found->second->owner != Owner::FRAMEWORK) return 0;
    run_until(found->second, found->second->last);
    state().streams.erase(found);
    return 1;
}

CONTROL int fake_write_later(uint64_t handle, uint64_t address, const void *host, uint64_t bytes) {
    HOLD_LOCK;
    int device;
    if (!is_mapped(address, bytes, &device)) return 0;
    std::shared_ptr<Stream> stream = find_stream(handle, device);
    if (!stream || stream->device != device) return 0;
    const char *from = static_cast<const char *>(host);
    std::vector<char> copy(from, from + bytes);
    Work work = {};
    work.run = [address, copy] { fake_write(address, copy.data(), copy.size()); };
    return push(stream, std::move(work)) == SUCCESS;
}

CONTROL void fake_run(int device) {
    HOLD_LOCK;
    if (device >= 0 && device < MOST_DEVICES) run_device(device);
}
