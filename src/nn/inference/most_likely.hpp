#pragma once

#include <bit>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/tensor.hpp"
#include "tile/rows/pack.hpp"

namespace katt::nn {

namespace impl {

/// The index of the largest logit of a row, the first of equals; −1 when one is not finite. One
/// team computes a row.
template <class Exec, class T>
struct MostLikely {
  static constexpr int threads = 512;
  static constexpr std::uint32_t infinity = 0x7F800000U;
  using Policy = Kokkos::TeamPolicy<Exec, Kokkos::LaunchBounds<threads>>;

  const T* logits;
  std::int64_t stride, columns;
  std::int64_t* tokens;

  /// A key that is larger for a larger logit, and for the first of equals; the largest for a logit
  /// that is not finite.
  KOKKOS_FORCEINLINE_FUNCTION static std::uint64_t key(float logit, std::int64_t column) {
    const auto place = 0xFFFFFFFFU - static_cast<std::uint32_t>(column);
    const auto bits = std::bit_cast<std::uint32_t>(logit + 0.0F);  // −0 is 0
    if ((bits & infinity) == infinity) return ~std::uint64_t{0};
    const std::uint32_t order = (bits >> 31U) != 0 ? ~bits : bits | 0x80000000U;
    return static_cast<std::uint64_t>(order) << 32U | place;
  }

  KOKKOS_FUNCTION void operator()(const typename Policy::member_type& team) const {
    const T* const row = logits + team.league_rank() * stride;
    std::uint64_t best = 0;
    const auto look = [&](float logit, std::int64_t column) {
      best = Kokkos::max(best, key(logit, column));
    };
    if (reinterpret_cast<std::uintptr_t>(row) % 16 == 0) {
      constexpr int chunk = tile::chunk_elements;
      const std::int64_t whole = columns / chunk * chunk;
      for (std::int64_t c = team.team_rank() * chunk; c < whole; c += threads * chunk) {
        float lane[chunk];
        tile::load_chunk(row + c, lane);
        for (int i = 0; i < chunk; ++i) look(lane[i], c + i);
      }
      for (std::int64_t c = whole + team.team_rank(); c < columns; c += threads) {
        look(static_cast<float>(row[c]), c);
      }
    } else {
      for (std::int64_t c = team.team_rank(); c < columns; c += threads) {
        look(static_cast<float>(row[c]), c);
      }
    }
    team.team_reduce(Kokkos::Max<std::uint64_t>(best));
    if (team.team_rank() == 0) {
      const bool is_finite = best != ~std::uint64_t{0};
      tokens[team.league_rank()] =
          is_finite ? std::int64_t{0xFFFFFFFFU - static_cast<std::uint32_t>(best)} : -1;
    }
  }
};

}  // namespace impl

/// tokens[r] = the column of the largest logit in row r of logits (rows, vocab < 2^32), the first
/// of equals; −1 when a logit of the row is not finite. On a device; launches and returns.
template <class Exec>
void most_likely(const Exec& exec, const TensorRef<2>& logits, std::int64_t* tokens) {
  visit_dtype(logits.dtype, [&]<class T>() {
    using Kernel = impl::MostLikely<Exec, T>;
    Kokkos::parallel_for(
        "katt::nn::most_likely",
        typename Kernel::Policy(exec, static_cast<int>(logits.extent[0]), Kernel::threads),
        Kernel{static_cast<const T*>(logits.data), logits.stride[0], logits.extent[1], tokens});
  });
}

}  // namespace katt::nn
