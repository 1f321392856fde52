// Copies between host and device, and what the driver knows about an address.
#include "state.h"

#include <cstring>

namespace {

enum Attribute { MEMORY_TYPE = 2, DEVICE_POINTER = 3, IS_MANAGED = 8, DEVICE_ORDINAL = 9, RANGE_START = 11, RANGE_SIZE = 12, MAPPED = 13 };
constexpr unsigned HOST_MEMORY = 1;
constexpr unsigned DEVICE_MEMORY = 2;
constexpr int NO_SUCH_DEVICE = -2;

struct Copy {
    Address device_address;
    Address host_address;
    std::size_t bytes;
    bool to_host;
    Address pinned;  // the allocation that the host's bytes are in, or 0
    std::shared_ptr<std::vector<char>> staged = {};  // the host's bytes, when they were read at the call
};

// Memory can have been freed since the copy was queued.
void run_copy(const Copy &copy) {
    int device;
    if (is_offloaded(copy.device_address, copy.bytes)) {
        std::memcpy(reinterpret_cast<void *>(copy.host_address), reinterpret_cast<void *>(copy.device_address), copy.bytes);
        return;
    }
    if (!is_device_range(copy.device_address, copy.bytes, &device)) {
        misuse(SUCCESS, "device memory was freed before a queued copy of it ran");
        return;
    }
    if (copy.pinned != 0 && find_pinned(copy.host_address, copy.bytes) != copy.pinned) return;  // is a misuse already
    void *on_device = reinterpret_cast<void *>(copy.device_address);
    void *on_host = copy.staged ? copy.staged->data() : reinterpret_cast<void *>(copy.host_address);
    with_access(copy.device_address, copy.bytes, [&] {
        std::memcpy(copy.to_host ? on_host : on_device, copy.to_host ? on_device : on_host, copy.bytes);
    });
}

Result check_copy(const char *name, const Context &context, const std::shared_ptr<Stream> &stream, const Copy &copy) {
    int device;
    if (!stream) return misuse(INVALID_HANDLE, std::string(name) + " on what is no stream, or no longer");
    if (stream->device != context.device)
        return misuse(INVALID_HANDLE, std::string(name) + " on a stream of another context");
    if (copy.to_host && is_offloaded(copy.device_address, copy.bytes)) return SUCCESS;
    if (!is_device_range(copy.device_address, copy.bytes, &device))
        return misuse(INVALID_VALUE, std::string(name) + " with bytes that are not mapped device memory");
    if (device != context.device) return misuse(INVALID_VALUE, std::string(name) + " with memory of another device");
    return SUCCESS;
}

// Host memory that is not pinned: the driver reads it at the call, and returns after it wrote it.
Result queue_copy(const char *name, const Context &context, std::uint64_t handle, Copy copy) {
    std::shared_ptr<Stream> stream = find_stream(handle, context.device);
    if (copy.bytes == 0) return SUCCESS;
    Result result = check_copy(name, context, stream, copy);
    if (result != SUCCESS) return result;
    char *host = reinterpret_cast<char *>(copy.host_address);
    copy.pinned = find_pinned(copy.host_address, copy.bytes);
    if (copy.pinned == 0 && find_pinned(copy.host_address, 1) != 0)
        return misuse(INVALID_VALUE, std::string(name) + " beyond the end of pinned memory");
    if (copy.pinned == 0 && !copy.to_host) copy.staged = std::make_shared<std::vector<char>>(host, host + copy.bytes);
    Work work = {};
    work.pinned = copy.pinned;
    work.run = [copy] { run_copy(copy); };
    result = push(stream, std::move(work));
    if (result != SUCCESS || !copy.to_host) return result;
    // Nobody may look at it now, nor expect what was there before.
    std::memset(host, 0xa5, copy.bytes);
    if (copy.pinned == 0) run_until(stream, stream->last);
    return SUCCESS;
}

// Everything that is asked about device memory and its neighbourhood.
struct Known {
    unsigned memory_type = 0;
    int device = NO_SUCH_DEVICE;
    Address start = 0;
    std::size_t bytes = 0;
    int mapped = 0;
    Address on_device = 0;
};

Known look_up(Address address) {
    Known known;
    auto reservation = state().reservations.upper_bound(address);
    if (reservation != state().reservations.begin()) {
        --reservation;
        if (address - reservation->first < reservation->second.bytes)
            known = {DEVICE_MEMORY, NO_SUCH_DEVICE, reservation->first, reservation->second.bytes, 0};
    }
    if (const auto *found = find_allocation(address)) {
        if (!found->second.chunk) known = {DEVICE_MEMORY, 0, found->first, found->second.bytes, 0};
        known.device = found->second.device;
        known.mapped = 1;
        known.on_device = address;
    } else if (Address offloaded = find_offloaded(address)) {
        known = {HOST_MEMORY, 0, offloaded, state().offloaded[offloaded], 1, address};
    } else if (Address pinned = find_pinned(address, 1)) {
        known = {HOST_MEMORY, 0, pinned, state().pinned[pinned], 1, address};
    }
    return known;
}

template <class T> int store(void *to, T value) {
    std::memcpy(to, &value, sizeof value);
    return SUCCESS;
}

int store_attribute(int attribute, const Known &known, void *to) {
    switch (attribute) {
    case MEMORY_TYPE: return store(to, known.memory_type);
    case DEVICE_POINTER: return store(to, known.on_device);
    case IS_MANAGED: return store(to, 0);
    case DEVICE_ORDINAL: return store(to, known.device);
    case RANGE_START: return store(to, known.start);
    case RANGE_SIZE: return store(to, known.bytes);
    case MAPPED: return store(to, known.mapped);
    default: return misuse(INVALID_VALUE, "a pointer attribute that the fake does not know");
    }
}

}  // namespace

DRIVER int cuMemcpyHtoDAsync_v2(Address to, const void *from, std::size_t bytes, std::uint64_t stream) {
    ENTER_CONTEXT("cuMemcpyHtoDAsync_v2");
    Copy copy = {to, reinterpret_cast<Address>(from), bytes, false, 0};
    return queue_copy("cuMemcpyHtoDAsync", *context, stream, copy);
}

DRIVER int cuMemcpyDtoHAsync_v2(void *to, Address from, std::size_t bytes, std::uint64_t stream) {
    ENTER_CONTEXT("cuMemcpyDtoHAsync_v2");
    Copy copy = {from, reinterpret_cast<Address>(to), bytes, true, 0};
    return queue_copy("cuMemcpyDtoHAsync", *context, stream, copy);
}

DRIVER int cuPointerGetAttribute(void *data, int attribute, Address address) {
    ENTER_CONTEXT("cuPointerGetAttribute");
    Known known = look_up(address);
    if (known.memory_type == 0) return INVALID_VALUE;
    return store_attribute(attribute, known, data);
}

// Unlike the call for one attribute this one succeeds for an address that is unknown.
DRIVER int cuPointerGetAttributes(unsigned count, const int *attributes, void **data, Address address) {
    ENTER_CONTEXT("cuPointerGetAttributes");
    Known known = look_up(address);
    if (known.memory_type == 0) known.device = 0;
    for (unsigned index = 0; index < count; index++) {
        int result = store_attribute(attributes[index], known, data[index]);
        if (result != SUCCESS) return result;
    }
    return SUCCESS;
}

DRIVER int cuMemGetAddressRange_v2(Address *start, std::size_t *bytes, Address address) {
    ENTER_CONTEXT("cuMemGetAddressRange_v2");
    const auto *found = find_allocation(address);
    if (found == nullptr) return NOT_FOUND;
    if (start != nullptr) *start = found->first;
    if (bytes != nullptr) *bytes = found->second.bytes;
    return SUCCESS;
}
