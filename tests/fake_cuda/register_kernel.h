// Makes the kernels of a .cu file, included before, known to the launcher by name.
#pragma once

#include <utility>

#include "threads.h"

template <class... Parameters, std::size_t... Index>
void call_with(void (*function)(Parameters...), void *const *parameters, std::index_sequence<Index...>) {
    function(*static_cast<Parameters *>(parameters[Index])...);
}

template <class... Parameters> std::vector<std::size_t> sizes_of(void (*)(Parameters...)) {
    return {sizeof(Parameters)...};
}

template <class... Parameters> std::index_sequence_for<Parameters...> indices_of(void (*)(Parameters...)) { return {}; }

#define REGISTER_KERNEL(program, name)                                                                                 \
    static const bool registered_##name =                                                                              \
        (add_kernel({#name, [](void *const *given) { call_with(program::name, given, indices_of(program::name)); },    \
                     sizes_of(program::name)}),                                                                        \
         true);
