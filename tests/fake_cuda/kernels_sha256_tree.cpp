#include "cuda_on_host.h"

namespace sha256_tree {
#include "../../src/cuda/sha256_tree.cu"
}

#undef __noinline__
#include "register_kernel.h"

REGISTER_KERNEL(sha256_tree, wc_hash_full_leaves)
REGISTER_KERNEL(sha256_tree, wc_hash_leaves)
REGISTER_KERNEL(sha256_tree, wc_hash_nodes)
