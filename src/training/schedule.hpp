#pragma once

#include <cstdint>

namespace katt::training {

/// The learning rate over the steps 0, 1, …: it rises linearly over `warmup` steps, rate · (s + 1)
/// / warmup, and then stays, or falls along half a cosine to `final_rate` at the last step
/// (Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5, without restarts).
struct Schedule {
  /// Course of the rate after the warm-up.
  enum class Kind : std::uint8_t {
    constant,  ///< it stays
    cosine     ///< it falls along half a cosine
  };
  Kind kind = Kind::constant;  ///< after the warm-up
  double rate = 1e-3;          ///< largest rate
  double final_rate = 0.0;     ///< rate of the last step of a cosine
  std::int64_t warmup = 0;     ///< steps of the rise
  std::int64_t steps = 1;      ///< of the whole run

  /// The rate of a step, from 0.
  [[nodiscard]] double at(std::int64_t step) const;
};

}  // namespace katt::training
