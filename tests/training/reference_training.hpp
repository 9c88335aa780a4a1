#pragma once

#include <cstdint>
#include <filesystem>

#include "tests/nn/llama_tiny.hpp"
#include "training/trainer.hpp"

namespace katt::test {

/// The training whose losses and norms are in expected.h5.
inline training::TrainOptions reference_options(const std::filesystem::path& checkpoint) {
  const auto real = [&](const char* name) { return training_attribute(checkpoint, name); };
  const auto integer = [&](const char* name) { return static_cast<std::int64_t>(real(name)); };
  return {.shape = {.batch = integer("batch"), .seq = integer("seq")},
          .accumulation = integer("accumulation"),
          .schedule = {.rate = real("lr"), .steps = integer("steps")},
          .optimizer = {.beta1 = real("beta1"),
                        .beta2 = real("beta2"),
                        .eps = real("eps"),
                        .decay = real("weight_decay")},
          .clip = real("clip")};
}

}  // namespace katt::test
