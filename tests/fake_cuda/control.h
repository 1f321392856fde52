// For the files that define what fake_cuda.h declares.
#pragma once

#include <mutex>

#include "fake_cuda.h"

#define CONTROL extern "C" __attribute__((visibility("default")))
#define HOLD_LOCK std::lock_guard<std::recursive_mutex> guard(state().lock)
