// The tests' side: devices, failures, the log, counts, capture.
#include <cstring>

#include "control.h"
#include "state.h"

namespace {

bool is_possible_device(int device) { return device >= 0 && device < MOST_DEVICES; }

// For capture there is no memory to tell the device of a special handle; the current context tells it.
std::shared_ptr<Stream> captured_stream(std::uint64_t handle) {
    Context *context = current_context();
    return find_stream(handle, context == nullptr ? 0 : context->device);
}

void forget_framework() {
    State &all = state();
    for (int device = 0; device < MOST_DEVICES; device++) run_device(device);
    for (auto entry = all.streams.begin(); entry != all.streams.end();)
        entry = entry->second->owner == Owner::FRAMEWORK ? all.streams.erase(entry) : std::next(entry);
    std::vector<Address> gone;
    for (const auto &entry : all.allocations)
        if (entry.second.owner == Owner::FRAMEWORK) gone.push_back(entry.first);
    for (Address address : gone) unmap_device(address);
    all.reservations.clear();
    all.offloaded.clear();
    all.destroyed_streams.clear();
    for (auto &entry : all.per_thread) entry.second->capture = NOT_CAPTURING;
}

}  // namespace

CONTROL void fake_reset(void) {
    HOLD_LOCK;
    State &all = state();
    forget_framework();
    all.devices = 2;
    all.device_limit = all.pinned_limit = UINT64_MAX;
    all.most_device_bytes = all.device_bytes;
    all.most_pinned_bytes = all.pinned_bytes;
    all.failures.clear();
    all.calls.clear();
    all.misuses.clear();
    this_thread() = {};
}

CONTROL void fake_counts(FakeCounts *counts) {
    HOLD_LOCK;
    State &all = state();
    *counts = {};
    for (int device = 0; device < MOST_DEVICES; device++) {
        counts->contexts[device] = all.contexts[device].retained;
        for (const auto &stream : all_streams(device)) {
            bool own = stream->owner == Owner::LIBRARY;
            (own ? counts->queued : counts->queued_elsewhere) += stream->queue.size();
        }
    }
    for (const auto &entry : all.streams) counts->streams += entry.second->owner == Owner::LIBRARY;
    counts->events = all.events.size();
    counts->modules = all.modules.size();
    counts->device_allocations = all.device_allocations;
    counts->device_bytes = all.device_bytes;
    counts->pinned_allocations = all.pinned.size();
    counts->pinned_bytes = all.pinned_bytes;
    counts->most_device_bytes = all.most_device_bytes;
    counts->most_pinned_bytes = all.most_pinned_bytes;
}

CONTROL void fake_device_count(int devices) {
    HOLD_LOCK;
    state().devices = devices < 0 ? 0 : std::min(devices, MOST_DEVICES);
}

CONTROL void fake_device_limit(uint64_t bytes) {
    HOLD_LOCK;
    state().device_limit = bytes;
}

CONTROL void fake_pinned_limit(uint64_t bytes) {
    HOLD_LOCK;
    state().pinned_limit = bytes;
}

CONTROL int fake_push_context(int device) {
    HOLD_LOCK;
    if (!is_possible_device(device)) return 0;
    this_thread().contexts.push_back(&state().contexts[device]);
    return 1;
}

CONTROL int fake_pop_context(void) {
    HOLD_LOCK;
    if (this_thread().contexts.empty()) return 0;
    this_thread().contexts.pop_back();
    return 1;
}

CONTROL int fake_context_depth(void) { return static_cast<int>(this_thread().contexts.size()); }
CONTROL int fake_context_device(void) { return current_context() == nullptr ? -1 : current_context()->device; }
CONTROL int fake_capture_mode(void) { return this_thread().capture_mode; }

CONTROL int fake_capture(uint64_t handle, int mode) {
    HOLD_LOCK;
    std::shared_ptr<Stream> stream = captured_stream(handle);
    if (!stream || handle <= 1 || mode < NOT_CAPTURING || mode > CAPTURE_RELAXED) return 0;
    stream->capture = mode;
    if (mode != NOT_CAPTURING) stream->capture_invalidated = false;
    stream->capture_thread = std::this_thread::get_id();
    return 1;
}

CONTROL int fake_capture_invalidated(uint64_t handle) {
    HOLD_LOCK;
    std::shared_ptr<Stream> stream = captured_stream(handle);
    return stream && stream->capture_invalidated;
}

CONTROL void fake_fail(const char *name, uint64_t nth, int error) {
    HOLD_LOCK;
    if (nth > 0) state().failures.push_back({name, nth, error});
}

CONTROL void fake_fail_nth(uint64_t nth, int error) { fake_fail("", nth, error); }

CONTROL void fake_clear_failures(void) {
    HOLD_LOCK;
    state().failures.clear();
}

CONTROL uint64_t fake_failures_left(void) {
    HOLD_LOCK;
    return state().failures.size();
}

CONTROL uint64_t fake_call_count(void) {
    HOLD_LOCK;
    return state().calls.size();
}

CONTROL const char *fake_call_name(uint64_t index) {
    HOLD_LOCK;
    return index < state().calls.size() ? state().calls[index] : nullptr;
}

CONTROL void fake_clear_log(void) {
    HOLD_LOCK;
    state().calls.clear();
}

CONTROL uint64_t fake_misuse_count(void) {
    HOLD_LOCK;
    return state().misuses.size();
}

CONTROL const char *fake_misuse(uint64_t index) {
    HOLD_LOCK;
    return index < state().misuses.size() ? state().misuses[index].c_str() : nullptr;
}

CONTROL void fake_clear_misuses(void) {
    HOLD_LOCK;
    state().misuses.clear();
}
