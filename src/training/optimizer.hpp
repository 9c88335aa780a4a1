#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.hpp"

/// The arithmetic of a training step on flat f32 arrays in the memory of an execution space.
namespace katt::training {

/// AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2) as torch.optim.AdamW computes
/// it, with g the gradient times `gradient_factor` and t = step, counted from 1:
///
///   p ← p · (1 − rate · decay)
///   m ← m + (1 − beta1) · (g − m),   v ← beta2 · v + (1 − beta2) · g²
///   p ← p − rate / (1 − beta1ᵗ) · m / (√v / √(1 − beta2ᵗ) + eps)
struct AdamW {
  double beta1 = 0.9;   ///< decay of the mean of gradients
  double beta2 = 0.95;  ///< decay of the mean of squares
  double eps = 1e-8;    ///< added to the root of the squares
  double decay = 0.1;   ///< weight decay, times the rate
};

/// One update. `copy`, in its dtype, gets the rounded parameters; null: no copy. Without
/// `parameters` the copy itself is updated in f32 and rounded.
struct AdamWArgs {
  float* parameters = nullptr;       ///< (count); null: the copy is updated
  const float* gradients = nullptr;  ///< (count)
  float* m = nullptr;                ///< (count), mean of gradients
  float* v = nullptr;                ///< (count), mean of their squares
  void* copy = nullptr;              ///< (count) of copy_dtype, the rounded parameters; optional
  Dtype copy_dtype = Dtype::f32;     ///< dtype of the copy
  std::int64_t count = 0;            ///< elements of every array
  std::int64_t step = 1;             ///< t, counted from 1
  double rate = 0.0;                 ///< learning rate of this step
  double gradient_factor = 1.0;      ///< times the gradient: clipping and loss scale
};

/// Launches the update and does not wait.
template <class Exec>
void adamw(const Exec& exec, const AdamW& options, const AdamWArgs& args);

/// Number of elements whose squares one thread sums at a time.
inline constexpr std::int64_t norm_block = 8192;

/// √Σ values², summed in float64 block by block: the same bits for any number of threads. Waits.
/// `sums`: ⌈count / norm_block⌉ doubles in the memory of the execution space.
template <class Exec>
[[nodiscard]] double norm(const Exec& exec, const float* values, std::int64_t count, double* sums);

/// Rounds f32 values to the dtype; launches and does not wait.
template <class Exec>
void round_copy(const Exec& exec, const float* values, std::int64_t count, Dtype dtype, void* copy);

}  // namespace katt::training
