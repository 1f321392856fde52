// Initialisation, devices, primary contexts, the names of errors.
#include <cstring>

#include "state.h"

namespace {

struct ErrorText {
    int code;
    const char *name;
    const char *text;
};

const ErrorText ERRORS[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "PTX JIT compiler library not found"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", "PTX JIT compilation was disabled"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

int text_of(int code, const char **out, const char *ErrorText::*which) {
    *out = nullptr;
    for (const ErrorText &error : ERRORS)
        if (error.code == code) *out = error.*which;
    return *out == nullptr ? INVALID_VALUE : SUCCESS;
}

bool is_device(int device) { return device >= 0 && device < state().devices; }

// The handle of a context is the address of its record; nothing else is one.
Context *context_of(void *handle) {
    for (Context &context : state().contexts)
        if (&context == handle && is_device(context.device)) return &context;
    return nullptr;
}

// A framework with streams on a device has retained its context.
bool has_framework(int device) {
    for (const auto &entry : state().streams)
        if (entry.second->device == device && entry.second->owner == Owner::FRAMEWORK) return true;
    return false;
}

}  // namespace

DRIVER int cuGetErrorName(int error, const char **name) {
    Call call("cuGetErrorName", false);
    if (call.result != SUCCESS) return call.result;
    return text_of(error, name, &ErrorText::name);
}

DRIVER int cuGetErrorString(int error, const char **text) {
    Call call("cuGetErrorString", false);
    if (call.result != SUCCESS) return call.result;
    return text_of(error, text, &ErrorText::text);
}

DRIVER int cuInit(unsigned flags) {
    Call call("cuInit", false);
    if (call.result != SUCCESS) return call.result;
    if (flags != 0) return misuse(INVALID_VALUE, "cuInit: flags must be 0");
    if (state().devices == 0) return NO_DEVICE;
    state().initialized = true;
    return SUCCESS;
}

DRIVER int cuDeviceGetCount(int *count) {
    ENTER("cuDeviceGetCount");
    *count = state().devices;
    return SUCCESS;
}

DRIVER int cuDeviceGet(int *device, int ordinal) {
    ENTER("cuDeviceGet");
    if (!is_device(ordinal)) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

DRIVER int cuDevicePrimaryCtxRetain(void **handle, int device) {
    ENTER("cuDevicePrimaryCtxRetain");
    if (!is_device(device)) return INVALID_DEVICE;
    state().contexts[device].retained++;
    *handle = &state().contexts[device];
    return SUCCESS;
}

DRIVER int cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER("cuDevicePrimaryCtxRelease_v2");
    if (!is_device(device)) return INVALID_DEVICE;
    Context &context = state().contexts[device];
    if (context.retained == 0) return misuse(INVALID_CONTEXT, "primary context released more often than retained");
    context.retained--;
    return SUCCESS;
}

DRIVER int cuCtxPushCurrent_v2(void *handle) {
    ENTER("cuCtxPushCurrent_v2");
    Context *context = context_of(handle);
    if (context == nullptr) return misuse(INVALID_CONTEXT, "cuCtxPushCurrent of what is no context");
    if (context->retained == 0 && !has_framework(context->device)) return misuse(INVALID_CONTEXT, "cuCtxPushCurrent of a context that is not retained");
    this_thread().contexts.push_back(context);
    return SUCCESS;
}

DRIVER int cuCtxPopCurrent_v2(void **handle) {
    ENTER_CONTEXT("cuCtxPopCurrent_v2");
    this_thread().contexts.pop_back();
    if (handle != nullptr) *handle = context;
    return SUCCESS;
}

DRIVER int cuCtxGetDevice(int *device) {
    ENTER_CONTEXT("cuCtxGetDevice");
    *device = context->device;
    return SUCCESS;
}

DRIVER int cuCtxGetCurrent(void **context) {
    ENTER("cuCtxGetCurrent");
    *context = current_context();
    return SUCCESS;
}

DRIVER int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    ENTER_CONTEXT("cuCtxGetStreamPriorityRange");
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return SUCCESS;
}
