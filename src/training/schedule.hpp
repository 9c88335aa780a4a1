#pragma once

#include <cstdint>

namespace katt::training {

/// The learning rate over the steps 0, 1, …: it rises linearly over `warmup` steps, rate · (s + 1)
/// / warmup, and then stays, or falls along half a cosine to `final_rate` at the last step
/// (Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5, without restarts).
struct Schedule {
  enum class Kind : std::uint8_t { constant, cosine };
  Kind kind = Kind::constant;
  double rate = 1e-3;
  double final_rate = 0.0;
  std::int64_t warmup = 0;
  std::int64_t steps = 1;

  [[nodiscard]] double at(std::int64_t step) const;
};

}  // namespace katt::training
