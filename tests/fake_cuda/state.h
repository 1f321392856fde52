// What all files of the fake driver share: error codes, the objects that handles stand for, the entry of every call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "threads.h"

#define DRIVER extern "C" __attribute__((visibility("default")))

using Address = std::uint64_t;

enum Result : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_PTX = 218,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_IMPLICIT = 906,
};

constexpr int MOST_DEVICES = 8;
constexpr std::size_t PAGE = 4096;

// Why an object exists: the library under test made it, or a test did, as a framework would.
enum class Owner { LIBRARY, FRAMEWORK };

// Context handles stay valid while the process lives, as the framework holds all primary contexts; that the library
// retains what it uses is checked apart.
struct Context {
    int device;
    std::uint64_t retained = 0;  // by the library
};

struct Stream;

// A place in a stream's queue: everything up to `number` has run, or not.
struct Place {
    std::shared_ptr<Stream> stream;
    std::uint64_t number = 0;
};

struct Work {
    std::uint64_t number;
    std::vector<Place> after;   // what must run before
    std::function<void()> run;  // may be empty
    Address pinned = 0;         // the pinned memory that it uses
};

constexpr int NOT_CAPTURING = -1;
constexpr int CAPTURE_GLOBAL = 0;
constexpr int CAPTURE_THREAD_LOCAL = 1;
constexpr int CAPTURE_RELAXED = 2;

struct Stream {
    int device;
    bool blocking;  // ordered with the legacy stream
    Owner owner;
    std::deque<Work> queue = {};
    std::uint64_t last = 0;  // number of what was queued last
    int capture = NOT_CAPTURING;
    bool capture_invalidated = false;
    std::thread::id capture_thread = {};
};

struct Event {
    int device;
    Place recorded = {};  // no stream: never recorded, which counts as done
};

struct Module {
    int device;
    std::string ptx;
};

struct Function {
    int device;
    std::uint64_t module;      // its handle
    std::size_t most_threads;  // of a block, as the kernel was compiled
    const Kernel *kernel;
};

// Device memory that is mapped: an allocation, or one physical chunk inside of a reservation.
struct Allocation {
    int device;
    std::size_t bytes;
    Owner owner;
    bool chunk;
};

struct Reservation {
    int device;
    std::size_t bytes;
};

struct State {
    std::recursive_mutex lock;
    bool initialized = false;
    int devices = 2;
    Context contexts[MOST_DEVICES];

    std::map<std::uint64_t, std::shared_ptr<Stream>> streams;
    std::map<std::uint64_t, std::shared_ptr<Event>> events;
    std::map<std::uint64_t, std::shared_ptr<Module>> modules;
    std::map<std::uint64_t, std::shared_ptr<Function>> functions;
    std::vector<std::shared_ptr<Stream>> destroyed_streams;  // whose work has not all run
    std::shared_ptr<Stream> legacy[MOST_DEVICES];
    std::map<std::pair<int, std::thread::id>, std::shared_ptr<Stream>> per_thread;

    std::map<Address, Allocation> allocations;
    std::map<Address, std::size_t> offloaded;  // host memory of a framework that devices read
    std::map<Address, Reservation> reservations;
    std::map<Address, std::size_t> pinned;
    std::uint64_t device_bytes = 0, device_allocations = 0, most_device_bytes = 0, device_limit = UINT64_MAX;
    std::uint64_t pinned_bytes = 0, most_pinned_bytes = 0, pinned_limit = UINT64_MAX;

    std::vector<const char *> calls;
    std::vector<std::string> misuses;
    struct Failure {
        std::string name;  // empty: any call
        std::uint64_t left;
        int result;
    };
    std::vector<Failure> failures;
};

State &state();

// Contexts that are current on this thread, the current one last; and its capture mode.
struct ThreadState {
    std::vector<Context *> contexts;
    int capture_mode = CAPTURE_GLOBAL;
};
ThreadState &this_thread();

// Remembers that the library did what is undefined or wrong, and gives back the code that the driver gives.
Result misuse(Result result, const std::string &text);

// Every driver call makes one first: takes the lock, logs the call, finds out whether a test wants it to fail.
class Call {
public:
    explicit Call(const char *name, bool needs_init = true);
    Result result = SUCCESS;

private:
    std::lock_guard<std::recursive_mutex> guard;
};

#define ENTER(name)                                                                                                    \
    Call call(name);                                                                                                   \
    if (call.result != SUCCESS) return call.result

// The same for calls that need a context; it is in `context` then.
#define ENTER_CONTEXT(name)                                                                                            \
    ENTER(name);                                                                                                       \
    Context *context = current_context();                                                                              \
    if (context == nullptr) return INVALID_CONTEXT

Context *current_context();

// memory.cpp
const std::pair<const Address, Allocation> *find_allocation(Address address);
Address find_offloaded(Address address);
bool is_offloaded(Address address, std::size_t bytes);
// Whether all bytes are mapped memory of one device, which is told.
bool is_device_range(Address address, std::size_t bytes, int *device);
// Does `work` with these bytes of device memory, or with all memory of a device, accessible.
void with_access(Address address, std::size_t bytes, const std::function<void()> &work);
void with_device_access(int device, const std::function<void()> &work);
// Address space that is never given back, with some on either side that nobody can touch.
Address reserve_pages(std::size_t bytes);
Address map_device(int device, std::size_t bytes, Owner owner);
void unmap_device(Address address);
// The start of the pinned memory that holds all these bytes, or 0.
Address find_pinned(Address address, std::size_t bytes);

// streams.cpp
std::uint64_t new_handle();
std::uint64_t add_stream(int device, bool blocking, Owner owner);
// The stream of a handle, also of 0, 1 and 2, which are the device's.
std::shared_ptr<Stream> find_stream(std::uint64_t handle, int device);
Result push(const std::shared_ptr<Stream> &stream, Work work);
void run_until(const std::shared_ptr<Stream> &stream, std::uint64_t number);
void run_device(int device);
std::vector<std::shared_ptr<Stream>> all_streams(int device);
// What the driver does on a call that is unsafe while a stream is being captured.
Result check_unsafe_call(const char *name);
