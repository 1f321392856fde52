#include "state.h"

#include <cstring>

State &state() {
    // Never destroyed: other threads may still call when the process ends.
    static State *all = [] {
        State *made = new State;
        for (int device = 0; device < MOST_DEVICES; device++) {
            made->contexts[device].device = device;
            made->legacy[device] = std::make_shared<Stream>(Stream{device, true, Owner::FRAMEWORK});
        }
        return made;
    }();
    return *all;
}

ThreadState &this_thread() {
    static thread_local ThreadState own;
    return own;
}

Result misuse(Result result, const std::string &text) {
    state().misuses.push_back(text);
    return result;
}

Context *current_context() {
    std::vector<Context *> &contexts = this_thread().contexts;
    return contexts.empty() ? nullptr : contexts.back();
}

namespace {

// "cuMemAlloc" also means cuMemAlloc_v2.
bool same_call(const std::string &wanted, const std::string &name) {
    return wanted.empty() || wanted == name || wanted + "_v2" == name;
}

// The result that a test wants for this call. All failures count it.
int wanted_result(const std::string &name) {
    int result = SUCCESS;
    std::vector<State::Failure> &failures = state().failures;
    for (std::size_t index = 0; index < failures.size();) {
        bool due = same_call(failures[index].name, name) && --failures[index].left == 0;
        if (due) result = failures[index].result;
        if (due) failures.erase(failures.begin() + index);
        else index++;
    }
    return result;
}

}  // namespace

Call::Call(const char *name, bool needs_init) : guard(state().lock) {
    state().calls.push_back(name);
    result = static_cast<Result>(wanted_result(name));
    if (result == SUCCESS && needs_init && !state().initialized)
        result = misuse(NOT_INITIALIZED, std::string(name) + " before cuInit");
}
