#include "cuda_on_host.h"

#include "../../src/cuda/elements.cu"

#undef __noinline__
#include "register_kernel.h"

REGISTER_KERNEL(wc_gather)
REGISTER_KERNEL(wc_fill)
