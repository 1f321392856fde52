#include "cuda_on_host.h"

// Each .cu file is one program; here they are together, and may use one name for different things.
namespace elements {
#include "../../src/cuda/elements.cu"
}

#undef __noinline__
#include "register_kernel.h"

REGISTER_KERNEL(elements, wc_gather)
REGISTER_KERNEL(elements, wc_fill)
