#include "training/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace katt::training {

double Schedule::at(std::int64_t step) const {
  if (step < warmup) return rate * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (kind == Kind::constant) return rate;
  const auto span = static_cast<double>(std::max<std::int64_t>(1, steps - 1 - warmup));
  const double done = std::min(1.0, static_cast<double>(step - warmup) / span);
  return final_rate + 0.5 * (rate - final_rate) * (1.0 + std::cos(std::numbers::pi * done));
}

}  // namespace katt::training
