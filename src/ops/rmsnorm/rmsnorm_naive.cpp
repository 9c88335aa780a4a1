#include "ops/rmsnorm/rmsnorm_naive.hpp"

#include <cstdint>

#include "core/parts.hpp"
#include "ops/rmsnorm/rmsnorm_rows.hpp"
#include "tile/rows/column_sums.hpp"

namespace katt::rmsnorm::impl {

namespace {

/// out = f(a, b) elementwise; b is a matrix or, with stride 0, one row for all.
template <class Exec, class T, class F>
struct Elementwise {
  Matrix<const T> a, b;
  Matrix<T> out;
  std::int64_t columns;
  F f;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t row) const {
    const T* first = a.row(row);
    const T* second = b.row(row);
    T* to = out.row(row);
    tile::for_columns<Exec>(team, 0, columns, [&]<class V>(std::int64_t i, int) {
      tile::store(to + i, V(f(tile::load<V>(first + i), tile::load<V>(second + i))));
    });
  }
};

struct Plus {
  template <class Vec>
  KOKKOS_FORCEINLINE_FUNCTION auto operator()(const Vec& a, const Vec& b) const {
    return a + b;
  }
};
struct Times {
  template <class Vec>
  KOKKOS_FORCEINLINE_FUNCTION auto operator()(const Vec& a, const Vec& b) const {
    return a * b;
  }
};

/// rstd of every row.
template <class Exec, class T>
struct Statistics {
  Matrix<const T> x;
  std::int64_t columns;
  float eps;
  float* rstd;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t row) const {
    const T* from = x.row(row);
    const auto n = static_cast<float>(columns);
    float scale = 1.0F;
    float sum = sum_of_squares<Exec>(team, from, columns, scale);
    if (!RowScale::is_plain(sum, eps * n)) {
      scale = RowScale::rescue(sum);
      sum = sum_of_squares<Exec>(team, from, columns, scale);
    }
    if (team.team_rank() == 0) rstd[row] = scale * RowScale::of(scale, sum, n, eps).rstd;
  }
};

/// out = a · factor(row)
template <class Exec, class T>
struct ScaleRows {
  Matrix<const T> a;
  const float* factor;
  Matrix<T> out;
  std::int64_t columns;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t row) const {
    const T* from = a.row(row);
    T* to = out.row(row);
    const float by = factor[row];
    tile::for_columns<Exec>(team, 0, columns, [&]<class V>(std::int64_t i, int) {
      tile::store(to + i, V(tile::load<V>(from + i) * V(by)));
    });
  }
};

/// scale = 127 / max(max |y|, 1e-5) of every row.
template <class Exec, class T>
struct AbsMax {
  Matrix<const T> y;
  std::int64_t columns;
  float* scale;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t row) const {
    const T* from = y.row(row);
    tile::RowMax<Exec> largest(0.0F);
    tile::RowSum<Exec, tile::column_slots> unknown;
    tile::for_columns<Exec>(team, 0, columns, [&]<class V>(std::int64_t i, int slot) {
      const V value = tile::load<V>(from + i);
      largest.add(V(Kokkos::abs(value)));
      unknown.multiply_add(value, V(0.0F), slot);
    });
    const float most = largest.total(team);
    const float none = unknown.total(team);
    if (team.team_rank() == 0) scale[row] = quantisation_scale(most, none);
  }
};

template <class Exec, class T>
struct Quantise {
  Matrix<const T> y;
  const float* scale;
  Matrix<std::int8_t> out;
  std::int64_t columns;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t row) const {
    const T* from = y.row(row);
    std::int8_t* to = out.row(row);
    const float by = scale[row];
    tile::for_columns<Exec>(team, 0, columns, [&]<class V>(std::int64_t i, int) {
      store_int8(to + i, V(tile::load<V>(from + i) * V(by)));
    });
  }
};

/// mean(g · x̂) of every row.
template <class Exec, class T>
struct MeanProduct {
  Matrix<const T> g, normal;
  std::int64_t columns;
  float* mean;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t row) const {
    const T* a = g.row(row);
    const T* b = normal.row(row);
    tile::RowSum<Exec, tile::column_slots> sum;
    tile::for_columns<Exec>(team, 0, columns, [&]<class V>(std::int64_t i, int slot) {
      sum.multiply_add(tile::load<V>(a + i), tile::load<V>(b + i), slot);
    });
    const float total = sum.total(team);
    if (team.team_rank() == 0) mean[row] = total / static_cast<float>(columns);
  }
};

/// dx = rstd · (g − x̂ · mean)
template <class Exec, class T>
struct InputGradient {
  Matrix<const T> g, normal;
  const float* mean;
  const float* rstd;
  Matrix<T> dx;
  std::int64_t columns;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t row) const {
    const T* a = g.row(row);
    const T* b = normal.row(row);
    T* to = dx.row(row);
    const float m = mean[row];
    const float r = rstd[row];
    tile::for_columns<Exec>(team, 0, columns, [&]<class V>(std::int64_t i, int) {
      const V d = tile::fma(tile::load<V>(b + i), V(-m), tile::load<V>(a + i));
      tile::store(to + i, V(d * V(r)));
    });
  }
};

/// Hands out parts of the workspace, each aligned to 64 bytes.
class Parts {
 public:
  explicit Parts(Workspace workspace) : next_(static_cast<std::byte*>(workspace.data)) {}
  template <class T>
  T* take(std::int64_t count) {
    T* part = reinterpret_cast<T*>(next_);
    next_ += bytes<T>(count);
    return part;
  }
  template <class T>
  static std::size_t bytes(std::int64_t count) {
    return aligned_bytes<T>(count);
  }

 private:
  std::byte* next_;
};

}  // namespace

template <class Exec, class T>
std::size_t naive_workspace_bytes(const Exec& /*exec*/, const ForwardArgs& args) {
  return Parts::bytes<float>(args.tokens()) + Parts::bytes<T>(args.x.size());
}

template <class Exec, class T>
std::size_t naive_workspace_bytes(const Exec& exec, const BackwardArgs& args) {
  return 2 * (Parts::bytes<float>(args.tokens()) + Parts::bytes<T>(args.x.size())) +
         Parts::bytes<float>(tile::RowBlocks::of(exec, args.tokens()).blocks * args.hidden());
}

template <class Exec, class T>
void naive_forward(const Exec& exec, const ForwardArgs& args, Workspace workspace) {
  const std::int64_t rows = args.tokens();
  const std::int64_t columns = args.hidden();
  Parts parts(workspace);
  auto* rstd = parts.take<float>(rows);
  const Matrix<T> normal(parts.take<T>(args.x.size()), columns);
  const Matrix<const T> weight(static_cast<const T*>(args.weight.data), 0);
  const auto read = [](const Matrix<T>& matrix) {
    return Matrix<const T>(matrix.data, matrix.stride);
  };

  Matrix<const T> h(args.x);
  if (args.residual) {
    const Matrix<T> sum(args.residual_out);
    tile::for_each_row(
        exec, "katt::rmsnorm::naive_add", rows,
        Elementwise<Exec, T, Plus>{h, Matrix<const T>(args.residual), sum, columns, {}});
    h = read(sum);
  }
  tile::for_each_row(exec, "katt::rmsnorm::naive_statistics", rows,
                     Statistics<Exec, T>{h, columns, args.eps, rstd});
  tile::for_each_row(exec, "katt::rmsnorm::naive_normalise", rows,
                     ScaleRows<Exec, T>{h, rstd, normal, columns});
  const Matrix<T> out = args.out ? Matrix<T>(args.out) : normal;
  tile::for_each_row(exec, "katt::rmsnorm::naive_weight", rows,
                     Elementwise<Exec, T, Times>{read(normal), weight, out, columns, {}});
  if (args.out_q != nullptr) {
    tile::for_each_row(exec, "katt::rmsnorm::naive_absmax", rows,
                       AbsMax<Exec, T>{read(out), columns, args.out_q_scale});
    tile::for_each_row(
        exec, "katt::rmsnorm::naive_quantise", rows,
        Quantise<Exec, T>{read(out), args.out_q_scale, {args.out_q, columns}, columns});
  }
}

template <class Exec, class T>
void naive_backward(const Exec& exec, const BackwardArgs& args, Workspace workspace) {
  const std::int64_t rows = args.tokens();
  const std::int64_t columns = args.hidden();
  const auto partition = tile::RowBlocks::of(exec, rows);
  Parts parts(workspace);
  auto* rstd = parts.take<float>(rows);
  auto* mean = parts.take<float>(rows);
  const Matrix<T> normal(parts.take<T>(args.x.size()), columns);
  const Matrix<T> product(parts.take<T>(args.x.size()), columns);
  auto* partial = parts.take<float>(partition.blocks * columns);
  const auto read = [](const Matrix<T>& matrix) {
    return Matrix<const T>(matrix.data, matrix.stride);
  };
  const Matrix<const T> x(args.x);
  const Matrix<const T> dout(args.dout);
  const Matrix<const T> weight(static_cast<const T*>(args.weight.data), 0);
  const Matrix<T> dx(args.dx);

  tile::for_each_row(exec, "katt::rmsnorm::naive_statistics", rows,
                     Statistics<Exec, T>{x, columns, args.eps, rstd});
  tile::for_each_row(exec, "katt::rmsnorm::naive_normalise", rows,
                     ScaleRows<Exec, T>{x, rstd, normal, columns});
  // The product of the weight gradient first: dx may be dout.
  tile::for_each_row(exec, "katt::rmsnorm::naive_product", rows,
                     Elementwise<Exec, T, Times>{dout, read(normal), product, columns, {}});
  tile::for_each_row(
      exec, "katt::rmsnorm::naive_block_sums", partition.blocks,
      tile::BlockSums<Exec, T>{product.data, columns, rows, columns, partition.rows, partial});
  tile::sum_partials<T, tile::Order::natural>(exec, "katt::rmsnorm::naive_weight_gradient", partial,
                                              partition.blocks, columns, args.dweight);
  tile::for_each_row(exec, "katt::rmsnorm::naive_weight", rows,
                     Elementwise<Exec, T, Times>{dout, weight, product, columns, {}});
  tile::for_each_row(exec, "katt::rmsnorm::naive_mean", rows,
                     MeanProduct<Exec, T>{read(product), read(normal), columns, mean});
  const Matrix<T> gradient = args.dresidual_out ? product : dx;
  tile::for_each_row(
      exec, "katt::rmsnorm::naive_input_gradient", rows,
      InputGradient<Exec, T>{read(product), read(normal), mean, rstd, gradient, columns});
  if (args.dresidual_out) {
    tile::for_each_row(exec, "katt::rmsnorm::naive_add", rows,
                       Elementwise<Exec, T, Plus>{
                           read(gradient), Matrix<const T>(args.dresidual_out), dx, columns, {}});
  }
}

#define KATT_INSTANTIATE_RMSNORM_NAIVE(Exec, T)                                          \
  template std::size_t naive_workspace_bytes<Exec, T>(const Exec&, const ForwardArgs&);  \
  template std::size_t naive_workspace_bytes<Exec, T>(const Exec&, const BackwardArgs&); \
  template void naive_forward<Exec, T>(const Exec&, const ForwardArgs&, Workspace);      \
  template void naive_backward<Exec, T>(const Exec&, const BackwardArgs&, Workspace);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_RMSNORM_NAIVE, float)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_RMSNORM_NAIVE, f16)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_RMSNORM_NAIVE, bf16)

}  // namespace katt::rmsnorm::impl
