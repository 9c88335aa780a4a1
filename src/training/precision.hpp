#pragma once

#include <algorithm>
#include <cstdint>

namespace katt::training {

/// Loss scaling (Micikevicius et al. 2018, arXiv:1710.03740, section 3.2): the backward pass
/// computes gradients of scale · loss, so that small ones do not vanish in f16, and divides them by
/// the scale in f32. A static scale is constant. A dynamic one is multiplied by `backoff` when a
/// gradient is not finite, and that step is skipped; it is multiplied by `growth` after
/// `growth_interval` good steps, as in torch.amp.GradScaler. Like that one it is an f32 number, and
/// a saved run keeps it.
struct LossScaling {
  bool is_dynamic = false;             ///< false: the scale stays
  double initial = 1.0;                ///< first scale
  double growth = 2.0;                 ///< factor after good steps
  double backoff = 0.5;                ///< factor after a gradient that is not finite
  std::int64_t growth_interval = 200;  ///< good steps until it grows
};

/// The scale of the loss over the steps of a run.
class LossScaler {
 public:
  /// Begins with the initial scale.
  explicit LossScaler(const LossScaling& options)
      : options_(options), scale_(rounded(options.initial)) {}

  [[nodiscard]] double scale() const { return scale_; }  ///< factor of the loss in the next step
  [[nodiscard]] std::int64_t good_steps() const {
    return good_steps_;
  }  ///< steps since the last change
  /// Continues from the state of another one.
  void restore(double scale, std::int64_t good_steps) {
    scale_ = scale;
    good_steps_ = good_steps;
  }

  /// Call it after a step's gradients; true when the step counts.
  bool update(bool is_finite) {
    if (!options_.is_dynamic) return is_finite;
    if (!is_finite) {
      scale_ = std::max(rounded(scale_ * options_.backoff), smallest);
      good_steps_ = 0;
      return false;
    }
    if (++good_steps_ >= options_.growth_interval && scale_ * options_.growth <= largest) {
      scale_ = rounded(scale_ * options_.growth);
      good_steps_ = 0;
    }
    return true;
  }

 private:
  static double rounded(double scale) { return static_cast<double>(static_cast<float>(scale)); }
  static constexpr double smallest = 0x1p-14;
  static constexpr double largest = 0x1p+24;
  LossScaling options_;
  double scale_;
  std::int64_t good_steps_ = 0;
};

}  // namespace katt::training
