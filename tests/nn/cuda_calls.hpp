#pragma once

/// The calls to CUDA's runtime that the program of a device's tests makes, counted (cuda_calls.cpp).
namespace katt::test {

struct CudaCalls {
  int kernels = 0;    ///< launches one by one
  int products = 0;   ///< of cuBLASLt, likewise
  int graphs = 0;     ///< launches of graphs
  int in_graphs = 0;  ///< nodes of these: a kernel each, of which a product may need several
  int copies_to_device = 0, copies_to_host = 0, other_copies = 0;
  int copies_to_symbols = 0;  ///< Kokkos' way of launching functors of 512 bytes and more
  int waits = 0;
  int allocations = 0;  ///< and what gives memory back
};

/// The calls since the last call of this function.
CudaCalls count_cuda_calls();

/// True when streams can be captured: always, unless a test forbids it.
void let_streams_be_captured(bool can);

}  // namespace katt::test
