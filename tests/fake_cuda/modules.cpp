// Modules, functions and launches. The PTX is looked at, not run: the kernel of the same name, built for the host, is.
#include "state.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>

namespace {

enum JitOption { ERROR_LOG = 5, ERROR_LOG_BYTES = 6 };

// The text after white space and comments.
const char *first_statement(const char *text) {
    for (;;) {
        while (std::isspace(static_cast<unsigned char>(*text))) text++;
        const char *end = nullptr;
        if (std::strncmp(text, "//", 2) == 0) end = std::strchr(text, '\n');
        else if (std::strncmp(text, "/*", 2) == 0) end = std::strstr(text, "*/");
        else return text;
        if (end == nullptr) return "";
        text = end + (*end == '\n' ? 1 : 2);
    }
}

// What follows a text that does not end is hardly text.
bool is_text(const std::string &text) {
    return std::all_of(text.begin(), text.end(), [](unsigned char each) {
        return each < 0x80 && (std::isprint(each) || std::isspace(each));
    });
}

bool is_ptx(const char *text) {
    const char *start = first_statement(text);
    return is_text(text) && std::strncmp(start, ".version", 8) == 0 && std::strstr(start, ".target") != nullptr;
}

void write_error_log(unsigned count, const int *options, void **values, const std::string &text) {
    char *log = nullptr;
    std::size_t bytes = 0;
    for (unsigned index = 0; index < count; index++) {
        if (options[index] == ERROR_LOG) log = static_cast<char *>(values[index]);
        if (options[index] == ERROR_LOG_BYTES) bytes = reinterpret_cast<std::size_t>(values[index]) & 0xffffffff;
    }
    if (log == nullptr || bytes == 0) return;
    std::size_t length = std::min(text.size(), bytes - 1);
    std::memcpy(log, text.data(), length);
    log[length] = 0;
    // As the driver does: the place of the buffer's size then holds how much was written.
    for (unsigned index = 0; index < count; index++)
        if (options[index] == ERROR_LOG_BYTES) values[index] = reinterpret_cast<void *>(length);
}

// A kernel of the PTX: the text between the parentheses of its parameters, and of what stands before its body.
struct Entry {
    std::string parameters;
    std::string directives;
};

bool find_entry(const std::string &ptx, const std::string &name, Entry *found) {
    const std::string entry = ".entry " + name;
    for (std::size_t at = ptx.find(entry); at != std::string::npos; at = ptx.find(entry, at + 1)) {
        std::size_t after = at + entry.size();
        while (after < ptx.size() && std::isspace(static_cast<unsigned char>(ptx[after]))) after++;
        if (after == ptx.size() || ptx[after] != '(') continue;
        std::size_t end = ptx.find(')', after);
        found->parameters = ptx.substr(after + 1, end - after - 1);
        found->directives = ptx.substr(end, ptx.find('{', end) - end);
        return true;
    }
    return false;
}

// The bytes of each parameter: ".param .u64 a" is 8, ".param .align 8 .b8 a[560]" is 560.
std::vector<std::size_t> parameter_sizes(const std::string &parameters) {
    std::vector<std::size_t> sizes;
    std::size_t at = 0;
    while ((at = parameters.find(".param", at)) != std::string::npos) {
        at += 6;
        std::string one = parameters.substr(at, parameters.find(',', at) - at);
        std::size_t bracket = one.find('['), count = 1;
        if (bracket != std::string::npos) count = std::stoul(one.substr(bracket + 1));
        std::size_t bytes = 0;
        for (const char *type : {"8", "16", "32", "64"})
            for (const char *kind : {".b", ".u", ".s", ".f"})
                if (one.find(std::string(kind) + type + " ") != std::string::npos) bytes = std::stoul(type) / 8;
        sizes.push_back(bytes * count);
    }
    return sizes;
}

// ".maxntid 128, 1, 1" comes from __launch_bounds__.
std::size_t most_threads(const std::string &directives) {
    std::size_t at = directives.find(".maxntid");
    if (at == std::string::npos) return 1024;
    unsigned x = 1, y = 1, z = 1;
    std::sscanf(directives.c_str() + at, ".maxntid %u, %u, %u", &x, &y, &z);
    return static_cast<std::size_t>(x) * y * z;
}

std::shared_ptr<Function> find_function(std::uint64_t handle) {
    auto found = state().functions.find(handle);
    return found == state().functions.end() ? nullptr : found->second;
}

bool is_within(const Size3 &size, unsigned x, unsigned y, unsigned z) {
    return size.x > 0 && size.y > 0 && size.z > 0 && size.x <= x && size.y <= y && size.z <= z;
}

bool fits(const Function &function, const Size3 &grid, const Size3 &block) {
    return is_within(grid, 0x7fffffff, 65535, 65535) && is_within(block, 1024, 1024, 64) &&
           static_cast<std::size_t>(block.x) * block.y * block.z <= function.most_threads;
}

// Parameters are copied at the launch, like the driver does, so the caller's may be gone when the kernel runs.
Work launch(const Kernel &kernel, int device, Size3 grid, Size3 block, void **parameters) {
    std::vector<std::vector<std::uint64_t>> copies;
    for (std::size_t index = 0; index < kernel.sizes.size(); index++) {
        copies.emplace_back((kernel.sizes[index] + 7) / 8);
        std::memcpy(copies.back().data(), parameters[index], kernel.sizes[index]);
    }
    Work work = {};
    work.run = [&kernel, device, grid, block, copies]() mutable {
        std::vector<void *> pointers;
        for (auto &copy : copies) pointers.push_back(copy.data());
        with_device_access(device, [&] { run_kernel(kernel, pointers.data(), grid, block); });
    };
    return work;
}

}  // namespace

DRIVER int cuModuleLoadDataEx(std::uint64_t *handle, const char *image, unsigned count, const int *options,
                              void **values) {
    ENTER_CONTEXT("cuModuleLoadDataEx");
    Result result = check_unsafe_call("cuModuleLoadDataEx");
    if (result != SUCCESS) return result;
    if (!is_ptx(image)) {
        write_error_log(count, options, values, "ptxas fatal : the text does not begin with .version");
        return INVALID_PTX;
    }
    *handle = new_handle();
    state().modules[*handle] = std::make_shared<Module>(Module{context->device, image});
    return SUCCESS;
}

DRIVER int cuModuleUnload(std::uint64_t handle) {
    ENTER_CONTEXT("cuModuleUnload");
    Result result = check_unsafe_call("cuModuleUnload");
    if (result != SUCCESS) return result;
    if (state().modules.erase(handle) == 0)
        return misuse(INVALID_HANDLE, "cuModuleUnload of what is no module, or no longer");
    for (auto entry = state().functions.begin(); entry != state().functions.end();)
        entry = entry->second->module == handle ? state().functions.erase(entry) : std::next(entry);
    return SUCCESS;
}

DRIVER int cuModuleGetFunction(std::uint64_t *function, std::uint64_t handle, const char *name) {
    ENTER_CONTEXT("cuModuleGetFunction");
    auto found = state().modules.find(handle);
    if (found == state().modules.end())
        return misuse(INVALID_HANDLE, "cuModuleGetFunction of what is no module, or no longer");
    Entry entry;
    if (!find_entry(found->second->ptx, name, &entry)) return NOT_FOUND;
    const Kernel *kernel = find_kernel(name);
    if (kernel == nullptr) return misuse(NOT_FOUND, std::string(name) + " is in the PTX but not built for the host");
    if (parameter_sizes(entry.parameters) != kernel->sizes)
        return misuse(NOT_FOUND, std::string(name) + " takes other parameters in the PTX than in the .cu file");
    *function = new_handle();
    state().functions[*function] = std::make_shared<Function>(
        Function{found->second->device, handle, most_threads(entry.directives), kernel});
    return SUCCESS;
}

DRIVER int cuLaunchKernel(std::uint64_t handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared_bytes, std::uint64_t stream_handle,
                          void **parameters, void **extra) {
    ENTER_CONTEXT("cuLaunchKernel");
    Size3 grid = {grid_x, grid_y, grid_z}, block = {block_x, block_y, block_z};
    std::shared_ptr<Function> function = find_function(handle);
    std::shared_ptr<Stream> stream = find_stream(stream_handle, context->device);
    if (!function) return misuse(INVALID_HANDLE, "cuLaunchKernel of what is no function, or no longer");
    if (!stream) return misuse(INVALID_HANDLE, "cuLaunchKernel on what is no stream, or no longer");
    if (function->device != context->device || stream->device != context->device)
        return misuse(INVALID_HANDLE, "cuLaunchKernel: function, stream and current context differ");
    if (!fits(*function, grid, block))
        return misuse(INVALID_VALUE, "cuLaunchKernel: grid or block is empty or too large");
    if (shared_bytes != 0 || extra != nullptr || parameters == nullptr)
        return misuse(INVALID_VALUE, "cuLaunchKernel without parameters, or with what the fake does not have");
    return push(stream, launch(*function->kernel, context->device, grid, block, parameters));
}
