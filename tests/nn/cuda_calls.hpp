#pragma once

/// The calls to CUDA's runtime that the program of a device's tests makes: it counts them
/// (cuda_calls.cpp). For a device in software without graphs it also imitates them: it records the
/// work of a stream during a capture with its parameters, and a launch of the graph repeats it;
/// calls that a capture forbids (a wait, an allocation, a copy to a symbol) spoil it.
namespace katt::test {

struct CudaCalls {
  int kernels = 0;    ///< launches one by one
  int products = 0;   ///< of cuBLASLt, likewise
  int graphs = 0;     ///< launches of graphs
  int in_graphs = 0;  ///< kernels and products that these repeated, where graphs are noted here
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
