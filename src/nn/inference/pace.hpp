#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace katt::nn {

/// Chooses, step by step, between two ways to run steps of similar length: the way that was faster
/// recently. It tries the other way rarely, so that trials cost a small share of the time. Way 0
/// suffers more when other programs take processors: when its steps take far longer than before,
/// the other way is tried at once.
class Pace {
 public:
  /// The way of the next step: 0 or 1.
  [[nodiscard]] int next() const {
    if (seconds_[0] < 0) return 0;
    if (seconds_[1] < 0) return 1;
    return wait_ > 0 ? best_ : 1 - best_;
  }

  /// Records the seconds of the step that used the way of next().
  void took(double seconds) {
    const int way = next();
    double& known = seconds_[static_cast<std::size_t>(way)];
    if (known < 0 || way != best_) {
      known = seconds;
      if (seconds_[1] < 0) return;
      best_ = seconds_[1] < seconds_[0] ? 1 : 0;
      const double best = seconds_[static_cast<std::size_t>(best_)];
      const double loss = seconds_[static_cast<std::size_t>(1 - best_)] - best;
      wait_ = static_cast<std::int64_t>(
          std::clamp(loss / (lost_share * best), least_wait, largest_wait));
      return;
    }
    wait_ = best_ == 0 && seconds > late * known ? 0 : wait_ - 1;
    known = (known + std::min(seconds, late * known)) / 2;  // a single slow step says little
  }

 private:
  static constexpr double late = 1.5;
  static constexpr double lost_share = 0.05;
  static constexpr double least_wait = 4, largest_wait = 512;

  std::array<double, 2> seconds_{-1, -1};  ///< recent seconds a step; < 0: not known yet
  int best_ = 0;
  std::int64_t wait_ = 0;  ///< steps until the other way is tried
};

}  // namespace katt::nn
