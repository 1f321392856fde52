// What tests say to the fake driver, beside the driver's own calls. Only simple types: called by dlsym and ctypes.
// None of these calls is logged, counted or made to fail.
//
// The driver is stricter than a real one: work runs only when someone waits for it, every call but cuInit, the names of
// errors and the devices needs a current context, nothing can be captured into a graph.
// It does not show: a kernel that uses host memory, warps that run apart, blocks that run at the same time, device
// memory that the host touches at the very moment that another thread runs queued work, memory that was never written
// (it is 0xcd), a primary context that ends with its last release (as a framework holds it).
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// What the library under test holds at the moment.
typedef struct FakeCounts {
    uint64_t contexts[8];         // retains of each device's primary context that were not released
    uint64_t streams;
    uint64_t events;
    uint64_t modules;
    uint64_t device_allocations;
    uint64_t device_bytes;
    uint64_t pinned_allocations;
    uint64_t pinned_bytes;
    uint64_t most_device_bytes;   // since fake_reset
    uint64_t most_pinned_bytes;   // since fake_reset
    uint64_t queued;              // copies, kernels, waits on its streams that have not run
    uint64_t queued_elsewhere;    // the same on other streams: of producers, legacy, per thread
} FakeCounts;

// Back to 2 devices, no limits, no failures, empty log and list of misuses, no framework objects.
// What the library under test holds stays; this thread's capture mode and the contexts that a test pushed go.
void fake_reset(void);
void fake_counts(FakeCounts *counts);
void fake_device_count(int devices);  // 0 to 8; 0 makes cuInit fail
void fake_device_limit(uint64_t bytes);
void fake_pinned_limit(uint64_t bytes);

// Device memory of a framework; not in the counts. 0 on failure; the others say 1 when they did it.
uint64_t fake_alloc(int device, uint64_t bytes);
int fake_free(uint64_t address);
// Pinned host memory that devices read by the same address: offloaded weights. Until the next reset.
uint64_t fake_offload(uint64_t bytes);
// Address space, a multiple of 4096 bytes, without memory; chunks of memory in it.
uint64_t fake_reserve(int device, uint64_t bytes);
int fake_map(uint64_t address, uint64_t bytes);
int fake_unmap(uint64_t address, uint64_t bytes);  // exactly what was mapped
int fake_split(uint64_t address, uint64_t bytes);  // into two that lie side by side; the first has `bytes`
int fake_unreserve(uint64_t address);              // with all chunks
// At once, whatever is queued; nothing queued runs.
int fake_write(uint64_t address, const void *host, uint64_t bytes);
int fake_read(void *host, uint64_t address, uint64_t bytes);

// A framework's stream, ordered with the legacy stream as torch's default ones are; 0 when there is no such device.
uint64_t fake_stream(int device);
int fake_stream_free(uint64_t stream);
// Queues a write: the producer's work. `stream` may also be 0, 1 (legacy) or 2 (this thread's), of the memory's device.
int fake_write_later(uint64_t stream, uint64_t address, const void *host, uint64_t bytes);
// Time passes: everything queued on the device runs.
void fake_run(int device);
// This thread gets a current context, as a framework sets one; and back.
int fake_push_context(int device);
int fake_pop_context(void);

// Begins a capture by this thread: mode 0 global, 1 thread local, 2 relaxed; -1 ends it.
int fake_capture(uint64_t stream, int mode);
int fake_capture_invalidated(uint64_t stream);
// Of this thread: how many contexts are pushed, the current one's device (-1: none), the capture mode (0: unchanged).
int fake_context_depth(void);
int fake_context_device(void);
int fake_capture_mode(void);

// The nth call from now (1: the next one) of a driver function, or of any, gives this error and does nothing.
// A name may lack its _v2.
void fake_fail(const char *name, uint64_t nth, int error);
void fake_fail_nth(uint64_t nth, int error);
void fake_clear_failures(void);
uint64_t fake_failures_left(void);  // not yet due

// Driver calls since fake_clear_log, with their exported names.
uint64_t fake_call_count(void);
const char *fake_call_name(uint64_t index);
void fake_clear_log(void);
// What the library did that a real driver forbids or leaves undefined. The text is good until the next driver call.
uint64_t fake_misuse_count(void);
const char *fake_misuse(uint64_t index);
void fake_clear_misuses(void);

#ifdef __cplusplus
}
#endif
#endif
