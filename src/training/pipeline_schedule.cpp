#include "training/pipeline_schedule.hpp"

#include <algorithm>

namespace katt::training {

std::vector<PipelinePass> pipeline_schedule(const ranks::Layout& layout, int stage,
                                            std::int64_t microbatches) {
  const std::int64_t stages = layout.pipeline, parts = layout.virtual_stages;
  const std::int64_t total = microbatches * parts;
  const std::int64_t after = stages - stage - 1;
  const std::int64_t ahead =
      std::min(total, (parts > 1 ? 2 * after : after) + (parts - 1) * stages);
  std::vector<PipelinePass> passes;
  // The n-th pass of its kind.
  const auto add = [&](bool backward, std::int64_t n) {
    const auto part = static_cast<int>(n % (stages * parts) / stages);
    passes.push_back({.backward = backward,
                      .part = backward ? layout.virtual_stages - 1 - part : part,
                      .micro = n / (stages * parts) * stages + n % stages});
  };
  for (std::int64_t n = 0; n < ahead; ++n) add(false, n);
  for (std::int64_t n = 0; n < total; ++n) {
    if (n + ahead < total) add(false, n + ahead);
    add(true, n);
  }
  return passes;
}

std::vector<std::int64_t> kept_microbatches(const std::vector<PipelinePass>& passes, int parts) {
  std::vector<std::int64_t> kept(static_cast<std::size_t>(parts), 0), most = kept;
  for (const PipelinePass& pass : passes) {
    std::int64_t& now = kept[static_cast<std::size_t>(pass.part)];
    now += pass.backward ? -1 : 1;
    std::int64_t& largest = most[static_cast<std::size_t>(pass.part)];
    largest = std::max(largest, now);
  }
  return most;
}

}  // namespace katt::training
