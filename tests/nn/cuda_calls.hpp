#pragma once

/// The calls to CUDA's runtime that the program of a device's tests makes: it counts them on their way
/// (cuda_calls.cpp). Where a device in software has no graphs, it also stands in for them: what a
/// stream is asked for during a capture is noted with its parameters and asked for again by a launch of
/// the graph; what a capture forbids (a wait, an allocation, a copy to a symbol) spoils it.
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

/// What has been called since the last call of this function.
CudaCalls count_cuda_calls();

/// Whether streams can be captured: yes, unless a test says otherwise.
void let_streams_be_captured(bool can);

}  // namespace katt::test
