#pragma once

#include "op/registry.hpp"

namespace katt::llama_block {

/// Adds `tensor_parallel_block`: the block whose heads and columns ranks share.
void register_tensor_parallel(bench::Registry& registry);

}  // namespace katt::llama_block
