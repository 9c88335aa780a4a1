#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "drivers/training/training_run.hpp"
#include "tests/device.hpp"
#include "tests/nn/llama_tiny.hpp"
#include "training/trainer.hpp"

/// Trainings of tests.
namespace katt::test {

using Trainer = training::Trainer<Kokkos::DefaultExecutionSpace>;

/// A text of the vocabulary of small_config().
inline training::TokenData small_data(std::size_t count = 500) {
  std::vector<std::int32_t> tokens(count);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::int32_t>((i * i / 3 + 5 * i) % 97);
  }
  return {tokens, 97, "test"};
}

inline void advance(Trainer& trainer, const training::TokenData& data, int steps) {
  for (int s = 0; s < steps; ++s) (void)trainer.step(data);
}

/// So many steps of one trainer, which saves them, and as many of another that continues the save.
inline void train_in_two_runs(Trainer& first, Trainer& second, const std::filesystem::path& folder,
                              const training::TokenData& data, int steps) {
  advance(first, data, steps);
  first.save(folder);
  second.resume(folder);
  EXPECT_EQ(second.steps(), steps);
  advance(second, data, steps);
}

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

/// The tokens of expected.h5.
inline training::TokenData reference_data(const std::filesystem::path& checkpoint) {
  return impl::tokens_from_hdf5(checkpoint / "expected.h5", nn::read_config(checkpoint).vocab_size);
}

/// Passes when the steps lose what PyTorch's lose, up to this share of it, and the norms of the
/// gradients are those of PyTorch up to ten times as much.
inline void expect_reference_curve(Trainer& trainer, const std::filesystem::path& checkpoint,
                                   double share) {
  const training::TokenData data = reference_data(checkpoint);
  const auto expected = [&](const char* dataset) {
    const auto steps = static_cast<std::int64_t>(training_attribute(checkpoint, "steps"));
    return expected_of(checkpoint).floats(dataset, {steps}, "(steps)").values;
  };
  const auto losses = expected("train/losses");
  const auto norms = expected("train/grad_norms");
  const std::size_t steps = device_is_emulated() ? 2 : losses.size();
  for (std::size_t s = 0; s < steps; ++s) {
    const training::StepLog log = trainer.step(data);
    ASSERT_NEAR(log.loss, losses[s], share * losses[s]) << "step " << s;
    ASSERT_NEAR(log.grad_norm, norms[s], 10 * share * norms[s]) << "step " << s;
  }
}

}  // namespace katt::test
