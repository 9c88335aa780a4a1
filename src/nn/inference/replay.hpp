#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include <Kokkos_Core.hpp>

#include "nn/inference/cuda_graph.hpp"
#include "op/observer.hpp"

namespace katt::nn {

/// Submits launches that are the same every time in one call. On a CUDA device it captures the
/// second call of a kind in a row as a graph, and launches the graph from then on; the first call
/// loads kernels, which a capture must not do. It launches them one by one elsewhere, when the
/// runtime cannot capture, and while an observer wants every launch.
template <class Exec>
class Replay {
 public:
  /// Calls launch(), or repeats its launches for an equal `kind`. launch() uses only the stream of
  /// `exec`, and waits for nothing.
  template <class F>
  void operator()(const Exec& exec, std::int64_t kind, const F& launch) {
#if defined(KATT_HAS_CUDA)
    if constexpr (std::is_same_v<Exec, Kokkos::Cuda>) {
      if (call_observer() == nullptr && replayed(exec, kind, launch)) return;
    }
#endif
    (void)exec, (void)kind;
    launch();
  }

  /// The reason why launches are submitted one by one; empty when they are graphs, as far as known.
  [[nodiscard]] const std::string& refusal() const { return refusal_; }
  /// Submits launches one by one from now on.
  void refuse(std::string reason) { refusal_ = std::move(reason); }

#if defined(KATT_HAS_CUDA)
 private:
  template <class F>
  bool replayed(const Exec& exec, std::int64_t kind, const F& launch) {
    if (!refusal_.empty()) return false;
    const bool is_second = std::exchange(last_, kind) == kind;
    auto graph = graphs_.find(kind);
    if (graph == graphs_.end()) {
      if (!is_second) return false;
      if (graphs_.size() >= most_graphs) graphs_.clear();
      try {
        graph = graphs_.emplace(kind, CudaGraph::capture(exec.cuda_stream(), launch)).first;
      } catch (const std::runtime_error& error) {
        refusal_ = error.what();
        return false;
      }
    }
    graph->second.launch(exec.cuda_stream());
    return true;
  }

  static constexpr std::size_t most_graphs = 16;
  static constexpr std::int64_t none = -1;
  std::map<std::int64_t, CudaGraph> graphs_;
  std::int64_t last_ = none;
  std::string refusal_ = CudaGraph::refusal();
#else
 private:
  std::string refusal_ = "this build has no CUDA";
#endif
};

}  // namespace katt::nn
