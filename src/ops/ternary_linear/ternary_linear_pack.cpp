#include "ops/ternary_linear/ternary_linear_pack.hpp"

#include <bit>
#include <cstring>
#include <string>
#include <type_traits>

#include "core/error.hpp"
#include "core/views.hpp"
#include "ops/ternary_linear/ternary_linear_digits.hpp"
#include "tile/rows/rows.hpp"

namespace katt::ternary_linear {

namespace {

/// sums(row) = Σ |W(row, ·)|, in partial sums that do not wait for each other.
template <class Exec, class T>
struct RowMagnitude {
  using Memory = typename Exec::memory_space;
  using Team = tile::RowTeam<Exec>;
  static constexpr int slots = is_host_v<Exec> ? 16 : 1;
  StridedView<const T, 2, Memory> weight;
  double* sums;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t row_index) const {
    const T* row = &weight(row_index, 0);
    const auto n = static_cast<std::int64_t>(weight.extent(1));
    double partial[slots] = {};
    std::int64_t c = static_cast<std::int64_t>(team.team_rank()) * slots;
    for (; c + slots <= n; c += static_cast<std::int64_t>(team.team_size()) * slots) {
      for (int i = 0; i < slots; ++i) partial[i] += magnitude(row[c + i]);
    }
    double sum = 0;
    for (int i = 0; i < slots; ++i) sum += partial[i];
    for (; c < n; ++c) sum += magnitude(row[c]);
    team.team_reduce(Kokkos::Sum<double>(sum));
    if (team.team_rank() == 0) sums[row_index] = sum;
  }

 private:
  KOKKOS_FORCEINLINE_FUNCTION static double magnitude(const T& value) {
    return static_cast<double>(Kokkos::abs(static_cast<float>(value)));
  }
};

/// s_w from the sums of the rows, into sums[0] the largest f32 that is not above s_w / 2, and into
/// the scale of every row. One team.
template <class Exec>
struct WeightScale {
  using Team = tile::RowTeam<Exec>;
  double* sums;
  std::int64_t rows;
  std::int64_t columns;
  float* scales;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t /*row*/) const {
    double sum = 0;
    for (std::int64_t r = team.team_rank(); r < rows; r += team.team_size()) sum += sums[r];
    team.team_reduce(Kokkos::Sum<double>(sum));
    team.team_barrier();
    const double mean = sum / (static_cast<double>(rows) * static_cast<double>(columns));
    const double used = mean < 1e-5 ? 1e-5 : mean;  // NaN stays
    for (std::int64_t r = team.team_rank(); r < rows; r += team.team_size()) {
      scales[r] = static_cast<float>(used);
    }
    if (team.team_rank() == 0) {
      auto half = static_cast<float>(used / 2);
      if (static_cast<double>(half) > used / 2) half = Kokkos::nextafter(half, 0.0F);
      sums[0] = static_cast<double>(half);
    }
  }
};

/// The packed bytes of every row.
template <class Exec, class T>
struct PackRows {
  using Memory = typename Exec::memory_space;
  using Team = tile::RowTeam<Exec>;
  StridedView<const T, 2, Memory> weight;
  const double* half;
  PackFormat format;
  std::uint8_t* rows;
  std::int64_t row_bytes;

  /// round(W / s_w) + 1: a half rounds to the even 0. No f32 lies between `threshold` and s_w / 2, so
  /// that comparisons say what the exact quotient would.
  KOKKOS_FORCEINLINE_FUNCTION static std::uint8_t digit(const T& weight, float threshold) {
    const auto value = static_cast<float>(weight);
    return static_cast<std::uint8_t>(1 + (value > threshold) - (value < -threshold));
  }

  /// A whole block of weights of a row, in loops that compilers make vectors of.
  template <int Digits>
  KOKKOS_INLINE_FUNCTION void block(const T* from, std::uint8_t* target, float threshold) const {
    std::uint8_t digits[Digits][block_bytes];
    for (int k = 0; k < Digits; ++k) {
      for (std::int64_t j = 0; j < block_bytes; ++j) {
        digits[k][j] = digit(from[k * block_bytes + j], threshold);
      }
    }
    for (std::int64_t j = 0; j < block_bytes; ++j) {
      unsigned value = 0;
      for (int k = 0; k < Digits; ++k) {
        value = Digits == 4 ? value | static_cast<unsigned>(digits[k][j]) << (2 * k)
                            : 3 * value + digits[k][j];
      }
      target[j] = static_cast<std::uint8_t>(Digits == 4 ? value : (value * 256 + 242) / 243);
    }
  }

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t row_index) const {
    const T* row = &weight(row_index, 0);
    const auto columns = static_cast<std::int64_t>(weight.extent(1));
    std::uint8_t* target = rows + row_index * row_bytes;
    const auto threshold = static_cast<float>(*half);
    std::int64_t done = 0;
    if constexpr (is_host_v<Exec>) {
      const std::int64_t whole = columns / block_weights(format);
      for (std::int64_t b = 0; b < whole; ++b) {
        const T* from = row + b * block_weights(format);
        if (format == PackFormat::two_bit) {
          block<4>(from, target + b * block_bytes, threshold);
        } else {
          block<5>(from, target + b * block_bytes, threshold);
        }
      }
      done = whole * block_bytes;
    }
    for (std::int64_t byte = done + team.team_rank(); byte < row_bytes; byte += team.team_size()) {
      const std::int64_t first = byte / block_bytes * block_weights(format) + byte % block_bytes;
      const auto digit_at = [&](int k) -> unsigned {
        const std::int64_t column = first + k * block_bytes;
        return column < columns ? digit(row[column], threshold) : 1U;
      };
      unsigned value = 0;
      if (format == PackFormat::two_bit) {
        for (int k = 0; k < 4; ++k) value |= digit_at(k) << (2 * k);
      } else {
        for (int k = 0; k < 5; ++k) value = 3 * value + digit_at(k);
        value = (value * 256 + 242) / 243;
      }
      target[byte] = static_cast<std::uint8_t>(value);
    }
  }
};

/// out(row, c) = W_q(row, first + c) · s_w.
template <class Exec, class T>
struct DequantiseRows {
  using Memory = typename Exec::memory_space;
  using Team = tile::RowTeam<Exec>;
  PackFormat format;
  const std::uint8_t* rows;
  std::int64_t row_bytes;
  const float* scales;
  std::int64_t first;
  StridedView<T, 2, Memory> out;

  /// A whole block of a row, in loops that compilers make vectors of: with a choice of three values
  /// in place of a product and a conversion.
  template <int Digits>
  KOKKOS_INLINE_FUNCTION void block(const std::uint8_t* from, T* target,
                                    const T (&values)[3]) const {
    using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
    const auto minus = std::bit_cast<Bits>(values[0]);
    const auto zero = std::bit_cast<Bits>(values[1]);
    const auto plus = std::bit_cast<Bits>(values[2]);
    std::uint8_t rest[block_bytes];
    std::memcpy(rest, from, block_bytes);
    for (int k = 0; k < Digits; ++k) {
      Bits bits[block_bytes];
      for (std::int64_t j = 0; j < block_bytes; ++j) {
        const unsigned triple = 3U * rest[j];
        const auto digit = static_cast<std::uint8_t>(Digits == 4 ? rest[j] & 3U : triple >> 8);
        rest[j] = static_cast<std::uint8_t>(Digits == 4 ? rest[j] >> 2 : triple);
        bits[j] = digit == 2 ? plus : digit == 0 ? minus : zero;
      }
      std::memcpy(static_cast<void*>(target + k * block_bytes), bits, sizeof(bits));
    }
  }

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t row_index) const {
    const std::uint8_t* row = rows + row_index * row_bytes;
    T* target = &out(row_index, 0);
    const auto n = static_cast<std::int64_t>(out.extent(1));
    const float scale = scales[row_index];  // NaN for a weight with NaN, as are all products then
    const T values[3] = {static_cast<T>(-scale), static_cast<T>(0.0F * scale),
                         static_cast<T>(scale)};
    std::int64_t c = 0;
    if constexpr (is_host_v<Exec>) {
      const std::int64_t weights = block_weights(format);
      for (; first % weights == 0 && c + weights <= n; c += weights) {
        const std::uint8_t* from = row + (first + c) / weights * block_bytes;
        if (format == PackFormat::two_bit) {
          block<4>(from, target + c, values);
        } else {
          block<5>(from, target + c, values);
        }
      }
    }
    for (c += team.team_rank(); c < n; c += team.team_size()) {
      target[c] = values[impl::weight_at(format, row, first + c) + 1];
    }
  }
};

void check(const ConstTensorRef<2>& dense, std::int64_t rows, std::int64_t columns) {
  if (dense.extent[0] != rows || dense.extent[1] != columns) {
    throw InputError("ternary_linear: weight: holds (" + std::to_string(dense.extent[0]) + ", " +
                     std::to_string(dense.extent[1]) + "), expected (" + std::to_string(rows) +
                     ", " + std::to_string(columns) + ")");
  }
}

}  // namespace

std::size_t packed_bytes(PackFormat format, std::int64_t out_features, std::int64_t in_features) {
  const PackedTernary shape{nullptr, format, out_features, in_features};
  return shape.scale_bytes() + static_cast<std::size_t>(out_features * shape.row_bytes());
}

std::size_t pack_workspace_bytes(std::int64_t rows) {
  return static_cast<std::size_t>(rows) * sizeof(double);
}

template <class Exec>
void pack(const Exec& exec, const ConstTensorRef<2>& weight, const PackedTernary& packed,
          Workspace workspace, std::int64_t first_row) {
  using Memory = typename Exec::memory_space;
  const std::int64_t count = weight.extent[0];
  check(weight, std::min(count, packed.out_features - first_row), packed.in_features);
  if (const std::size_t needed = pack_workspace_bytes(count); workspace.bytes < needed) {
    throw InputError("ternary_linear: pack: workspace holds " + std::to_string(workspace.bytes) +
                     " bytes, expected " + std::to_string(needed));
  }
  if (count == 0) return;
  auto* sums = static_cast<double*>(workspace.data);
  visit_dtype(weight.dtype, [&]<class T>() {
    const auto view = weight.template view<T, Memory>();
    tile::for_each_row(exec, "katt::ternary_linear::pack_magnitude", count,
                       RowMagnitude<Exec, T>{view, sums});
    tile::for_each_row(
        exec, "katt::ternary_linear::pack_scale", 1,
        WeightScale<Exec>{sums, count, packed.in_features, packed.scales() + first_row});
    tile::for_each_row(
        exec, "katt::ternary_linear::pack_rows", count,
        PackRows<Exec, T>{view, sums, packed.format, packed.rows() + first_row * packed.row_bytes(),
                          packed.row_bytes()});
  });
}

template <class Exec>
void dequantise(const Exec& exec, const PackedTernary& packed, std::int64_t first,
                const TensorRef<2>& out) {
  using Memory = typename Exec::memory_space;
  check(out, packed.out_features, std::min(out.extent[1], packed.in_features - first));
  visit_dtype(out.dtype, [&]<class T>() {
    tile::for_each_row(
        exec, "katt::ternary_linear::dequantise", packed.out_features,
        DequantiseRows<Exec, T>{packed.format, packed.rows(), packed.row_bytes(), packed.scales(),
                                first, out.template view<T, Memory>()});
  });
}

#define KATT_INSTANTIATE_PACK(Exec)                                                                \
  template void pack<Exec>(const Exec&, const ConstTensorRef<2>&, const PackedTernary&, Workspace, \
                           std::int64_t);                                                          \
  template void dequantise<Exec>(const Exec&, const PackedTernary&, std::int64_t,                  \
                                 const TensorRef<2>&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_PACK)

}  // namespace katt::ternary_linear
