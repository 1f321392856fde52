// Streams as queues, events, capture. Queued work runs when someone waits for it, and never earlier.
#include "state.h"

#include <algorithm>

namespace {

constexpr unsigned NON_BLOCKING = 1;

std::shared_ptr<Stream> find_per_thread(int device) {
    std::shared_ptr<Stream> &stream = state().per_thread[{device, std::this_thread::get_id()}];
    if (!stream) stream = std::make_shared<Stream>(Stream{device, true, Owner::FRAMEWORK});
    return stream;
}

bool is_legacy(const std::shared_ptr<Stream> &stream) { return state().legacy[stream->device] == stream; }

Result invalidate(Stream &stream, Result result) {
    stream.capture_invalidated = true;
    return result;
}

// Work of the legacy stream comes after that of all blocking streams of its device, and theirs after its.
std::vector<Place> ordered_after(const std::shared_ptr<Stream> &stream) {
    std::vector<Place> places;
    if (!stream->blocking) return places;
    if (!is_legacy(stream)) return {{state().legacy[stream->device], state().legacy[stream->device]->last}};
    for (const auto &other : all_streams(stream->device))
        if (other != stream && other->blocking) places.push_back({other, other->last});
    return places;
}

// An error when the stream is being captured: nothing that we do may become part of a graph.
Result check_not_capturing(const std::shared_ptr<Stream> &stream) {
    if (stream->capture != NOT_CAPTURING) return invalidate(*stream, CAPTURE_UNSUPPORTED);
    if (!is_legacy(stream)) return SUCCESS;
    for (const auto &other : all_streams(stream->device))
        if (other->blocking && other->capture != NOT_CAPTURING) return invalidate(*other, CAPTURE_IMPLICIT);
    return SUCCESS;
}

std::shared_ptr<Event> find_event(std::uint64_t handle) {
    auto found = state().events.find(handle);
    return found == state().events.end() ? nullptr : found->second;
}

}  // namespace

std::uint64_t new_handle() {
    // Handles are never used again, so that one that was destroyed is known.
    static std::uint64_t last = 0x7700'0000'0000;
    return last += 64;
}

std::vector<std::shared_ptr<Stream>> all_streams(int device) {
    std::vector<std::shared_ptr<Stream>> found = {state().legacy[device]};
    for (const auto &entry : state().streams)
        if (entry.second->device == device) found.push_back(entry.second);
    for (const auto &entry : state().per_thread)
        if (entry.first.first == device) found.push_back(entry.second);
    for (const auto &stream : state().destroyed_streams)
        if (stream->device == device) found.push_back(stream);
    return found;
}

std::uint64_t add_stream(int device, bool blocking, Owner owner) {
    std::uint64_t handle = new_handle();
    state().streams[handle] = std::make_shared<Stream>(Stream{device, blocking, owner});
    return handle;
}

std::shared_ptr<Stream> find_stream(std::uint64_t handle, int device) {
    if (handle <= 1) return state().legacy[device];
    if (handle == 2) return find_per_thread(device);
    auto found = state().streams.find(handle);
    return found == state().streams.end() ? nullptr : found->second;
}

Result push(const std::shared_ptr<Stream> &stream, Work work) {
    Result result = check_not_capturing(stream);
    if (result != SUCCESS) return result;
    work.number = ++stream->last;
    for (Place &place : ordered_after(stream)) work.after.push_back(place);
    stream->queue.push_back(std::move(work));
    return SUCCESS;
}

void run_until(const std::shared_ptr<Stream> &stream, std::uint64_t number) {
    while (!stream->queue.empty() && stream->queue.front().number <= number) {
        Work work = std::move(stream->queue.front());
        stream->queue.pop_front();
        for (const Place &place : work.after) run_until(place.stream, place.number);
        if (work.run) work.run();
    }
}

void run_device(int device) {
    for (const auto &stream : all_streams(device)) run_until(stream, stream->last);
}

Result check_unsafe_call(const char *name) {
    int mode = this_thread().capture_mode;
    if (mode == CAPTURE_RELAXED) return SUCCESS;
    Result result = SUCCESS;
    for (int device = 0; device < MOST_DEVICES; device++) {
        for (const auto &stream : all_streams(device)) {
            bool own = stream->capture_thread == std::this_thread::get_id();
            bool forbidden = own ? stream->capture == CAPTURE_GLOBAL || stream->capture == CAPTURE_THREAD_LOCAL
                                 : stream->capture == CAPTURE_GLOBAL && mode == CAPTURE_GLOBAL;
            if (forbidden) result = invalidate(*stream, CAPTURE_UNSUPPORTED);
        }
    }
    if (result != SUCCESS) misuse(result, std::string(name) + " while a stream is being captured");
    return result;
}

DRIVER int cuThreadExchangeStreamCaptureMode(int *mode) {
    ENTER("cuThreadExchangeStreamCaptureMode");
    if (mode == nullptr || *mode < CAPTURE_GLOBAL || *mode > CAPTURE_RELAXED) return INVALID_VALUE;
    std::swap(*mode, this_thread().capture_mode);
    return SUCCESS;
}

DRIVER int cuStreamCreateWithPriority(std::uint64_t *handle, unsigned flags, int) {
    ENTER_CONTEXT("cuStreamCreateWithPriority");
    if (flags > NON_BLOCKING) return INVALID_VALUE;
    *handle = add_stream(context->device, flags != NON_BLOCKING, Owner::LIBRARY);
    return SUCCESS;
}

// The object of a handle, or an error that is remembered.
#define FIND_STREAM(name, handle)                                                                                      \
    std::shared_ptr<Stream> stream = find_stream(handle, context->device);                                             \
    if (!stream) return misuse(INVALID_HANDLE, name " of what is no stream, or no longer")

#define FIND_EVENT(name, handle)                                                                                       \
    std::shared_ptr<Event> event = find_event(handle);                                                                 \
    if (!event) return misuse(INVALID_HANDLE, name " of what is no event, or no longer")

DRIVER int cuStreamDestroy_v2(std::uint64_t handle) {
    ENTER_CONTEXT("cuStreamDestroy_v2");
    FIND_STREAM("cuStreamDestroy", handle);
    if (handle <= 2 || stream->owner == Owner::FRAMEWORK)
        return misuse(INVALID_HANDLE, "cuStreamDestroy of a stream that is not the library's");
    if (!stream->queue.empty()) {
        misuse(SUCCESS, "cuStreamDestroy of a stream with work queued");
        state().destroyed_streams.push_back(stream);  // the work still runs some day
    }
    state().streams.erase(handle);
    return SUCCESS;
}

DRIVER int cuStreamSynchronize(std::uint64_t handle) {
    ENTER_CONTEXT("cuStreamSynchronize");
    FIND_STREAM("cuStreamSynchronize", handle);
    Result result = check_not_capturing(stream);
    if (result != SUCCESS) return result;
    if (is_legacy(stream)) push(stream, {});  // which comes after what is queued on blocking streams
    run_until(stream, stream->last);
    return SUCCESS;
}

DRIVER int cuStreamWaitEvent(std::uint64_t handle, std::uint64_t event_handle, unsigned flags) {
    ENTER_CONTEXT("cuStreamWaitEvent");
    FIND_STREAM("cuStreamWaitEvent", handle);
    FIND_EVENT("cuStreamWaitEvent", event_handle);
    if (flags != 0) return INVALID_VALUE;
    Work work = {};
    if (event->recorded.stream) work.after.push_back(event->recorded);
    return push(stream, std::move(work));
}

DRIVER int cuStreamIsCapturing(std::uint64_t handle, int *status) {
    ENTER_CONTEXT("cuStreamIsCapturing");
    FIND_STREAM("cuStreamIsCapturing", handle);
    if (is_legacy(stream)) {
        for (const auto &other : all_streams(stream->device))
            if (other->blocking && other->capture != NOT_CAPTURING) return CAPTURE_IMPLICIT;
    }
    *status = stream->capture == NOT_CAPTURING ? 0 : stream->capture_invalidated ? 2 : 1;
    return SUCCESS;
}

DRIVER int cuStreamGetCtx(std::uint64_t handle, void **out) {
    ENTER_CONTEXT("cuStreamGetCtx");
    FIND_STREAM("cuStreamGetCtx", handle);
    *out = &state().contexts[stream->device];
    return SUCCESS;
}

DRIVER int cuEventCreate(std::uint64_t *handle, unsigned flags) {
    ENTER_CONTEXT("cuEventCreate");
    if (flags > 3) return INVALID_VALUE;
    *handle = new_handle();
    state().events[*handle] = std::make_shared<Event>(Event{context->device});
    return SUCCESS;
}

DRIVER int cuEventDestroy_v2(std::uint64_t handle) {
    ENTER_CONTEXT("cuEventDestroy_v2");
    FIND_EVENT("cuEventDestroy", handle);
    state().events.erase(handle);
    return SUCCESS;
}

DRIVER int cuEventRecord(std::uint64_t event_handle, std::uint64_t handle) {
    ENTER_CONTEXT("cuEventRecord");
    FIND_STREAM("cuEventRecord", handle);
    FIND_EVENT("cuEventRecord", event_handle);
    if (event->device != stream->device)
        return misuse(INVALID_HANDLE, "cuEventRecord: event and stream are of different contexts");
    Result result = push(stream, {});
    if (result == SUCCESS) event->recorded = {stream, stream->last};
    return result;
}

DRIVER int cuEventSynchronize(std::uint64_t handle) {
    ENTER_CONTEXT("cuEventSynchronize");
    FIND_EVENT("cuEventSynchronize", handle);
    if (event->recorded.stream) run_until(event->recorded.stream, event->recorded.number);
    return SUCCESS;
}
