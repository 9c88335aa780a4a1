#include <cmath>
#include <numbers>
#include <string>

#include "core/error.hpp"
#include "ops/rope/rope.hpp"

namespace katt::rope {

namespace {

void check(const FrequencyArgs& args, std::int64_t head_dim) {
  const auto fail = [](const std::string& message) { throw InputError("rope: " + message); };
  if (head_dim <= 0 || head_dim > max_head_dim || head_dim % 2 != 0) {
    fail("head_dim " + std::to_string(head_dim) + ": expected an even number up to " +
         std::to_string(max_head_dim));
  }
  const auto positive = [&](const char* name, double value) {
    if (!(value > 0.0) || !std::isfinite(value)) {
      fail(std::string(name) + " " + std::to_string(value) + ": expected a positive number");
    }
  };
  positive("theta", args.theta);
  if (args.scaling == Scaling::none) return;
  positive("rope_factor", args.factor);
  positive("low_freq_factor", args.low_freq_factor);
  positive("high_freq_factor", args.high_freq_factor);
  positive("original_max_position", static_cast<double>(args.original_max_position));
  if (args.high_freq_factor <= args.low_freq_factor) {
    fail("high_freq_factor " + std::to_string(args.high_freq_factor) +
         ": expected more than low_freq_factor " + std::to_string(args.low_freq_factor));
  }
}

/// In the order of operations of transformers' modeling_rope_utils.py, in arithmetic type Real.
template <class Real>
Real frequency(const FrequencyArgs& args, std::int64_t head_dim, std::int64_t pair) {
  const Real exponent = static_cast<Real>(2 * pair) / static_cast<Real>(head_dim);
  const Real plain = Real{1} / std::pow(static_cast<Real>(args.theta), exponent);
  if (args.scaling == Scaling::none) return plain;

  const auto factor = static_cast<Real>(args.factor);
  const auto low = static_cast<Real>(args.low_freq_factor);
  const auto high = static_cast<Real>(args.high_freq_factor);
  const auto original = static_cast<Real>(args.original_max_position);
  const Real wavelength = static_cast<Real>(2 * std::numbers::pi) / plain;
  if (wavelength < original / high) return plain;
  if (wavelength > original / low) return plain / factor;
  const Real smooth = (original / wavelength - low) / (high - low);
  return (Real{1} - smooth) * plain / factor + smooth * plain;
}

}  // namespace

std::vector<double> frequencies(const FrequencyArgs& args, std::int64_t head_dim) {
  check(args, head_dim);
  std::vector<double> values;
  for (std::int64_t pair = 0; pair < head_dim / 2; ++pair) {
    values.push_back(args.precision == AnglePrecision::f32
                         ? static_cast<double>(frequency<float>(args, head_dim, pair))
                         : frequency<double>(args, head_dim, pair));
  }
  return values;
}

}  // namespace katt::rope
