#pragma once

#include <cstdint>
#include <vector>

#include "ranks/groups.hpp"

/// The order of the passes of a stage of a pipeline.
namespace katt::training {

/// A forward or backward pass of a microbatch through one of the parts of a stage.
struct PipelinePass {
  bool backward = false;
  int part = 0;
  std::int64_t micro = 0;
};

/// 1F1B (Narayanan et al. 2019, PipeDream; 2021, arXiv:2104.04473, section 2.2): a stage with k
/// stages after it runs k forward passes ahead, then alternates between the two passes. With V > 1
/// parts a stage, S microbatches go through the first part, then the same ones through the next;
/// the stage is 2k + (V − 1) · S passes ahead, and S divides the microbatches. With M microbatches
/// a stage idles for (S − 1) / (V · M) of the time that it computes.
[[nodiscard]] std::vector<PipelinePass> pipeline_schedule(const ranks::Layout& layout, int stage,
                                                          std::int64_t microbatches);

/// The largest number of microbatches, for each part, with activations in use at a time; they are
/// consecutive.
[[nodiscard]] std::vector<std::int64_t> kept_microbatches(const std::vector<PipelinePass>& passes,
                                                          int parts);

}  // namespace katt::training
