#pragma once

#include <bit>
#include <cstdint>

#include <Kokkos_Core.hpp>

namespace katt::tile {

/// A divisor of numbers below 2^31, prepared on the host: a device then multiplies and shifts,
/// where a division is a function of its own. With s = ⌈log2 d⌉ and m = ⌊2^32·(2^s − d)/d⌋ + 1,
/// n / d = (⌊n·m / 2^32⌋ + n) / 2^s rounded down (Granlund and Montgomery 1994, "Division by
/// invariant integers using multiplication", section 4).
class Divider {
 public:
  Divider() = default;
  /// 0 < divisor < 2^31.
  constexpr explicit Divider(std::uint32_t divisor)
      : divisor_(divisor), shift_(static_cast<std::uint32_t>(std::bit_width(divisor - 1))) {
    const std::uint64_t above = (std::uint64_t{1} << shift_) - divisor;
    multiplier_ = static_cast<std::uint32_t>((above << 32) / divisor + 1);
  }

  KOKKOS_INLINE_FUNCTION constexpr std::uint32_t value() const { return divisor_; }
  KOKKOS_INLINE_FUNCTION friend constexpr std::uint32_t operator/(std::uint32_t n,
                                                                  const Divider& by) {
    const std::uint64_t product = static_cast<std::uint64_t>(n) * by.multiplier_;
    return (static_cast<std::uint32_t>(product >> 32) + n) >> by.shift_;
  }
  KOKKOS_INLINE_FUNCTION friend constexpr std::uint32_t operator%(std::uint32_t n,
                                                                  const Divider& by) {
    return n - n / by * by.divisor_;
  }
  KOKKOS_INLINE_FUNCTION friend constexpr std::int64_t operator*(std::int64_t n,
                                                                 const Divider& by) {
    return n * by.divisor_;
  }

 private:
  std::uint32_t divisor_ = 1;
  std::uint32_t multiplier_ = 1;
  std::uint32_t shift_ = 0;
};

}  // namespace katt::tile
