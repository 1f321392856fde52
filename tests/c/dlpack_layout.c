/* Proves against the real dlpack.h that a WcTensor ends in a DLTensor, and prints the layouts that Python has to pack.

   Each line of the output: struct, field (or "size"), bytes. */

#include <stddef.h>
#include <stdio.h>

#include <ATen/dlpack.h>

#include "weight_checker.h"

#define TAIL offsetof(WcTensor, data)
#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #ours " is not " #theirs)
#define SAME_TYPE(left, right, field)                                                                                  \
    _Static_assert(sizeof(((left *)0)->field) == sizeof(((right *)0)->field), #field " has another size")
#define SAME_PLACE(ours, theirs, base, field)                                                                          \
    SAME_TYPE(ours, theirs, field);                                                                                    \
    _Static_assert(offsetof(ours, field) == (base) + offsetof(theirs, field), #field " is elsewhere")

SAME_SIZE(WcDevice, DLDevice);
SAME_PLACE(WcDevice, DLDevice, 0, device_type);
SAME_PLACE(WcDevice, DLDevice, 0, device_id);

SAME_SIZE(WcDataType, DLDataType);
SAME_PLACE(WcDataType, DLDataType, 0, code);
SAME_PLACE(WcDataType, DLDataType, 0, bits);
SAME_PLACE(WcDataType, DLDataType, 0, lanes);

_Static_assert(sizeof(WcTensor) == TAIL + sizeof(DLTensor), "a WcTensor does not end in a DLTensor");
_Static_assert(TAIL % _Alignof(DLTensor) == 0, "the DLTensor in a WcTensor is misaligned");
SAME_PLACE(WcTensor, DLTensor, TAIL, data);
SAME_PLACE(WcTensor, DLTensor, TAIL, device);
SAME_PLACE(WcTensor, DLTensor, TAIL, ndim);
SAME_PLACE(WcTensor, DLTensor, TAIL, dtype);
SAME_PLACE(WcTensor, DLTensor, TAIL, shape);
SAME_PLACE(WcTensor, DLTensor, TAIL, strides);
SAME_PLACE(WcTensor, DLTensor, TAIL, byte_offset);

#define SIZE(type) printf("%s size %zu\n", #type, sizeof(type))
#define PLACE(type, field) printf("%s %s %zu\n", #type, #field, offsetof(type, field))
#define CODE(name) printf("code %s %d\n", #name, (int)name)
#define DEVICE(name) printf("device %s %d\n", #name, (int)name)
#define FLAG(name) printf("flag %s %d\n", #name, (int)DLPACK_FLAG_BITMASK_##name)

static void print_structs(void) {
    SIZE(WcTensor);
    PLACE(WcTensor, struct_size);
    PLACE(WcTensor, name);
    PLACE(WcTensor, data);
    PLACE(WcTensor, device);
    PLACE(WcTensor, ndim);
    PLACE(WcTensor, dtype);
    PLACE(WcTensor, shape);
    PLACE(WcTensor, strides);
    PLACE(WcTensor, byte_offset);
    SIZE(WcRank);
    PLACE(WcRank, dp);
    PLACE(WcRank, pp);
    PLACE(WcRank, pcp);
    PLACE(WcRank, tp);
    SIZE(WcOptions);
    PLACE(WcOptions, struct_size);
    PLACE(WcOptions, algorithm);
    PLACE(WcOptions, threads);
    PLACE(WcOptions, progress);
    PLACE(WcOptions, progress_data);
    PLACE(WcOptions, stream);
    PLACE(WcOptions, max_host_bytes);
    SIZE(DLTensor);
    PLACE(DLTensor, data);
    PLACE(DLTensor, device);
    PLACE(DLTensor, ndim);
    PLACE(DLTensor, dtype);
    PLACE(DLTensor, shape);
    PLACE(DLTensor, strides);
    PLACE(DLTensor, byte_offset);
    SIZE(DLManagedTensorVersioned);
    PLACE(DLManagedTensorVersioned, version);
    PLACE(DLManagedTensorVersioned, flags);
    PLACE(DLManagedTensorVersioned, dl_tensor);
    PLACE(DLManagedTensor, dl_tensor);
}

static void print_constants(void) {
    CODE(kDLInt);
    CODE(kDLUInt);
    CODE(kDLFloat);
    CODE(kDLBfloat);
    CODE(kDLComplex);
    CODE(kDLBool);
    CODE(kDLFloat8_e3m4);
    CODE(kDLFloat8_e4m3);
    CODE(kDLFloat8_e4m3b11fnuz);
    CODE(kDLFloat8_e4m3fn);
    CODE(kDLFloat8_e4m3fnuz);
    CODE(kDLFloat8_e5m2);
    CODE(kDLFloat8_e5m2fnuz);
    CODE(kDLFloat8_e8m0fnu);
    CODE(kDLFloat4_e2m1fn);
    DEVICE(kDLCPU);
    DEVICE(kDLCUDA);
    DEVICE(kDLCUDAHost);
    DEVICE(kDLROCM);
    DEVICE(kDLROCMHost);
    DEVICE(kDLCUDAManaged);
    FLAG(READ_ONLY);
    FLAG(IS_COPIED);
    FLAG(IS_SUBBYTE_TYPE_PADDED);
}

int main(void) {
    printf("dlpack major %d\n", DLPACK_MAJOR_VERSION);
    print_structs();
    print_constants();
    return 0;
}
