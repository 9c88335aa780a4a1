#include "ops/rope/rope_ref.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace katt::rope {

namespace {

double angle_of(const HostProblem& p, const RowIndex& at, std::int64_t pair) {
  const FrequencyArgs& f = p.frequencies;
  double frequency = std::exp(-2.0 * static_cast<double>(pair) / static_cast<double>(p.head_dim) *
                              std::log(f.theta));
  if (f.scaling == Scaling::llama3) {
    // Turns within the original context decide how much of the plain frequency is kept.
    const double turns =
        static_cast<double>(f.original_max_position) * frequency / (2.0 * std::numbers::pi);
    const double kept = std::clamp(
        (turns - f.low_freq_factor) / (f.high_freq_factor - f.low_freq_factor), 0.0, 1.0);
    frequency *= kept + (1.0 - kept) / f.factor;
  }
  const std::int64_t position =
      p.positions.empty() ? at.seq
                          : p.positions[static_cast<std::size_t>(at.batch * p.seq + at.seq)];
  return static_cast<double>(position) * frequency * (p.backward ? -1.0 : 1.0);
}

/// One row; `rounded` is applied to everything that an unfused implementation stores.
template <class Round>
std::vector<double> row(const HostProblem& p, const RowIndex& at, const Round& rounded) {
  const auto d = static_cast<std::size_t>(p.head_dim);
  const float* x =
      p.x.data() + static_cast<std::size_t>((at.batch * p.heads + at.head) * p.seq + at.seq) * d;
  std::vector<double> out(d);
  for (std::size_t pair = 0; pair < d / 2; ++pair) {
    const std::size_t a = p.interleaved ? 2 * pair : pair;
    const std::size_t b = p.interleaved ? 2 * pair + 1 : pair + d / 2;
    const double angle = angle_of(p, at, static_cast<std::int64_t>(pair));
    const double c = rounded(std::cos(angle));
    const double s = rounded(std::sin(angle));
    out[a] = rounded(rounded(x[a] * c) + rounded(-x[b] * s));
    out[b] = rounded(rounded(x[b] * c) + rounded(x[a] * s));
  }
  return out;
}

}  // namespace

std::vector<double> reference_row(const HostProblem& problem, const RowIndex& index) {
  return row(problem, index, [](double value) { return value; });
}

std::vector<double> unfused_row(const HostProblem& problem, const RowIndex& index, Dtype dtype) {
  return row(problem, index, [dtype](double value) {
    return static_cast<double>(round_to(dtype, static_cast<float>(value)));
  });
}

}  // namespace katt::rope
