#pragma once

#include <cstddef>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/views.hpp"
#include "ops/attention/decode/merge_kernel.hpp"
#include "tile/cuda/warp.hpp"
#include "tile/engines/teams.hpp"

#if defined(KATT_HAS_CUDA)

/// The merge of decoding on a device: a thread block a row. Its threads share the sums of the
/// splits, its warps the splits themselves, four columns a thread, so that 16-byte loads of several
/// splits are in flight together.
namespace katt::attention::impl {

template <class T>
struct MergeSplits {
  using Memory = Kokkos::Cuda::memory_space;
  static constexpr int warps = tile::team_threads / static_cast<int>(tile::warp_size);
  static constexpr int together = 4;  ///< splits of a warp

  const float* parts;   ///< (splits, rows, head_dim), normalised
  const PartSum* sums;  ///< (splits, rows)
  std::int64_t splits, rows, heads, seq_q, split_keys;
  int head_dim;
  const std::int64_t* kv_len;  ///< (batch), or null: splits behind it saw nothing
  StridedView<T, 4, Memory> out;
  StridedView<float, 3, Memory> lse;
  ScoreUnit unit;  ///< of the largest scores

  std::size_t scratch_bytes() const {
    return static_cast<std::size_t>(warps * (head_dim + 1)) * sizeof(float);
  }

  template <class Team>
  KOKKOS_INLINE_FUNCTION void run(const Team& team, std::int64_t row, float* scratch) const {
    const std::int64_t i = row % seq_q;
    const std::int64_t h = row / seq_q % heads;
    const std::int64_t b = row / seq_q / heads;
    const int live = static_cast<int>(
        kv_len == nullptr ? splits
                          : Kokkos::min(splits, (kv_len[b] + split_keys - 1) / split_keys));

    float largest = tile::lowest_score;
    for (int p = team.team_rank(); p < live; p += tile::team_threads) {
      const PartSum part = sums[p * rows + row];
      if (part.sum != 0.0F) largest = tile::max(largest, part.max);
    }
    largest = over_team(team, scratch, largest, [](float x, float y) { return tile::max(x, y); });
    float total = 0.0F;
    for (int p = team.team_rank(); p < live; p += tile::team_threads) {
      total += weight_of(sums[p * rows + row], largest);
    }
    total = over_team(team, scratch, total, [](float x, float y) { return x + y; });
    const float inverse = total == 0.0F ? 0.0F : 1.0F / total;

    constexpr int width = 4;
    const int warp = team.team_rank() / static_cast<int>(tile::warp_size);
    const int lane = team.team_rank() % static_cast<int>(tile::warp_size);
    float* const of_warps = scratch + warps;
    for (int c = lane * width; c < head_dim; c += static_cast<int>(tile::warp_size) * width) {
      const Four merged = merge_columns(row, c, warp, live, largest);
      for (int k = 0; k < width; ++k) of_warps[warp * head_dim + c + k] = merged.at[k];
    }
    team.team_barrier();
    for (int c = team.team_rank(); c < head_dim; c += tile::team_threads) {
      float sum = 0.0F;
      for (int w = 0; w < warps; ++w) sum += of_warps[w * head_dim + c];
      out(b, h, i, c) = static_cast<T>(sum * inverse);
    }
    if (team.team_rank() == 0 && lse.data() != nullptr) {
      lse(b, h, i) = unit.lse(largest, total);
    }
  }

 private:
  struct alignas(16) Four {
    float at[4];
  };

  KOKKOS_FORCEINLINE_FUNCTION float weight_of(const PartSum& part, float largest) const {
    return part.sum == 0.0F ? 0.0F : part.sum * Kokkos::exp2((part.max - largest) * unit.factor);
  }

  /// Columns c … c + 3 of the splits of a warp, in their order. The contents of a split that saw
  /// nothing are read and not used.
  KOKKOS_FORCEINLINE_FUNCTION Four merge_columns(std::int64_t row, int c, int warp, int live,
                                                 float largest) const {
    Four merged{};
    for (int first = warp; first < live; first += together * warps) {
      Four values[together];
      PartSum of_split[together];
      KATT_UNROLL
      for (int k = 0; k < together; ++k) {
        const int p = first + k * warps;
        const std::int64_t place = (p < live ? p : first) * rows + row;
        of_split[k] = sums[place];
        values[k] = *reinterpret_cast<const Four*>(parts + place * head_dim + c);
      }
      KATT_UNROLL
      for (int k = 0; k < together; ++k) {
        const float weight = weight_of(of_split[k], largest);
        const bool counts = first + k * warps < live && weight != 0.0F;
        for (int n = 0; n < 4; ++n) {
          merged.at[n] = counts ? tile::fma(weight, values[k].at[n], merged.at[n]) : merged.at[n];
        }
      }
    }
    return merged;
  }

  /// A value of all threads; `scratch`: a float a warp.
  template <class Team, class F>
  KOKKOS_FORCEINLINE_FUNCTION static float over_team(const Team& team, float* scratch, float value,
                                                     const F& f) {
    constexpr int threads = static_cast<int>(tile::warp_size);
    value = tile::over_warp(value, f);
    if (team.team_rank() % threads == 0) scratch[team.team_rank() / threads] = value;
    team.team_barrier();
    value = scratch[0];
    for (int w = 1; w < warps; ++w) value = f(value, scratch[w]);
    team.team_barrier();  // before the next value overwrites it
    return value;
  }
};

}  // namespace katt::attention::impl

#endif
