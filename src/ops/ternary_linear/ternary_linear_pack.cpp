#include "ops/ternary_linear/ternary_linear_pack.hpp"

#include <string>

#include "core/error.hpp"
#include "core/views.hpp"
#include "ops/ternary_linear/ternary_linear_digits.hpp"
#include "tile/rows.hpp"

namespace katt::ternary_linear {

namespace {

/// sums(row) = Σ |W(row, ·)|.
template <class Exec, class T>
struct RowMagnitude {
  using Memory = typename Exec::memory_space;
  using Team = tile::RowTeam<Exec>;
  StridedView<const T, 2, Memory> weight;
  double* sums;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t row_index) const {
    const T* row = &weight(row_index, 0);
    const auto n = static_cast<std::int64_t>(weight.extent(1));
    double sum = 0;
    for (std::int64_t c = team.team_rank(); c < n; c += team.team_size()) {
      sum += static_cast<double>(Kokkos::abs(static_cast<float>(row[c])));
    }
    team.team_reduce(Kokkos::Sum<double>(sum));
    if (team.team_rank() == 0) sums[row_index] = sum;
  }
};

/// s_w from the sums of the rows, in f64 into sums[0] and in f32 into *scale. One team.
template <class Exec>
struct WeightScale {
  using Team = tile::RowTeam<Exec>;
  double* sums;
  std::int64_t rows;
  std::int64_t columns;
  float* scale;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t /*row*/) const {
    double sum = 0;
    for (std::int64_t r = team.team_rank(); r < rows; r += team.team_size()) sum += sums[r];
    team.team_reduce(Kokkos::Sum<double>(sum));
    team.team_barrier();
    if (team.team_rank() == 0) {
      const double mean = sum / (static_cast<double>(rows) * static_cast<double>(columns));
      const double used = mean < 1e-5 ? 1e-5 : mean;  // NaN stays
      sums[0] = used;
      *scale = static_cast<float>(used);
    }
  }
};

/// The packed bytes of every row.
template <class Exec, class T>
struct PackRows {
  using Memory = typename Exec::memory_space;
  using Team = tile::RowTeam<Exec>;
  StridedView<const T, 2, Memory> weight;
  const double* scale;
  PackFormat format;
  std::uint8_t* rows;
  std::int64_t row_bytes;

  /// round(W / s_w) to −1, 0, 1; a half rounds to the even 0.
  KOKKOS_INLINE_FUNCTION unsigned digit(const T* row, std::int64_t column) const {
    if (column >= static_cast<std::int64_t>(weight.extent(1))) return 1;
    const double ratio = static_cast<double>(static_cast<float>(row[column])) / *scale;
    return ratio > 0.5 ? 2 : ratio < -0.5 ? 0 : 1;
  }

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t row_index) const {
    const T* row = &weight(row_index, 0);
    std::uint8_t* target = rows + row_index * row_bytes;
    for (std::int64_t byte = team.team_rank(); byte < row_bytes; byte += team.team_size()) {
      const std::int64_t first = byte / block_bytes * block_weights(format) + byte % block_bytes;
      unsigned value = 0;
      if (format == PackFormat::two_bit) {
        for (int k = 0; k < 4; ++k) value |= digit(row, first + k * block_bytes) << (2 * k);
      } else {
        for (int k = 0; k < 5; ++k) value = 3 * value + digit(row, first + k * block_bytes);
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
  const float* scale;
  std::int64_t first;
  StridedView<T, 2, Memory> out;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t row_index) const {
    const std::uint8_t* row = rows + row_index * row_bytes;
    T* target = &out(row_index, 0);
    const auto n = static_cast<std::int64_t>(out.extent(1));
    for (std::int64_t c = team.team_rank(); c < n; c += team.team_size()) {
      target[c] =
          static_cast<T>(static_cast<float>(impl::weight_at(format, row, first + c)) * *scale);
    }
  }
};

void check(const PackedTernary& packed, const ConstTensorRef<2>& dense, std::int64_t columns) {
  if (dense.extent[0] != packed.out_features || dense.extent[1] != columns) {
    throw InputError("ternary_linear: weight: holds (" + std::to_string(dense.extent[0]) + ", " +
                     std::to_string(dense.extent[1]) + "), expected (" +
                     std::to_string(packed.out_features) + ", " + std::to_string(columns) + ")");
  }
}

}  // namespace

std::size_t packed_bytes(PackFormat format, std::int64_t out_features, std::int64_t in_features) {
  const PackedTernary shape{nullptr, format, out_features, in_features};
  return static_cast<std::size_t>(block_bytes + out_features * shape.row_bytes());
}

std::size_t pack_workspace_bytes(std::int64_t out_features) {
  return static_cast<std::size_t>(out_features) * sizeof(double);
}

template <class Exec>
void pack(const Exec& exec, const ConstTensorRef<2>& weight, const PackedTernary& packed,
          Workspace workspace) {
  using Memory = typename Exec::memory_space;
  check(packed, weight, packed.in_features);
  if (const std::size_t needed = pack_workspace_bytes(packed.out_features);
      workspace.bytes < needed) {
    throw InputError("ternary_linear: pack: workspace holds " + std::to_string(workspace.bytes) +
                     " bytes, expected " + std::to_string(needed));
  }
  if (packed.out_features == 0) return;
  auto* sums = static_cast<double*>(workspace.data);
  auto* scale = reinterpret_cast<float*>(packed.data);
  auto* rows = reinterpret_cast<std::uint8_t*>(packed.data + block_bytes);
  visit_dtype(weight.dtype, [&]<class T>() {
    const auto view = weight.template view<T, Memory>();
    tile::for_each_row(exec, "katt::ternary_linear::pack_magnitude", packed.out_features,
                       RowMagnitude<Exec, T>{view, sums});
    tile::for_each_row(exec, "katt::ternary_linear::pack_scale", 1,
                       WeightScale<Exec>{sums, packed.out_features, packed.in_features, scale});
    tile::for_each_row(exec, "katt::ternary_linear::pack_rows", packed.out_features,
                       PackRows<Exec, T>{view, sums, packed.format, rows, packed.row_bytes()});
  });
}

template <class Exec>
void dequantise(const Exec& exec, const PackedTernary& packed, std::int64_t first,
                const TensorRef<2>& out) {
  using Memory = typename Exec::memory_space;
  check(packed, out, std::min(out.extent[1], packed.in_features - first));
  visit_dtype(out.dtype, [&]<class T>() {
    tile::for_each_row(
        exec, "katt::ternary_linear::dequantise", packed.out_features,
        DequantiseRows<Exec, T>{packed.format, packed.rows(), packed.row_bytes(), packed.scale(),
                                first, out.template view<T, Memory>()});
  });
}

#define KATT_INSTANTIATE_PACK(Exec)                                                     \
  template void pack<Exec>(const Exec&, const ConstTensorRef<2>&, const PackedTernary&, \
                           Workspace);                                                  \
  template void dequantise<Exec>(const Exec&, const PackedTernary&, std::int64_t,       \
                                 const TensorRef<2>&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_PACK)

}  // namespace katt::ternary_linear
