#include "ops/linear/gemm/library.hpp"

#include <algorithm>
#include <climits>

#include "ops/linear/library_product.hpp"
#include "ops/linear/linear_kernels.hpp"
#include "tile/rows/elementwise.hpp"

namespace katt::linear::impl {

namespace {

/// True when the library can read or write the matrix where it lies. It reads a matrix of one
/// column as a dense vector.
template <class Ref>
bool is_direct(const Ref& matrix) {
  const std::int64_t columns = matrix.extent[1];
  const std::int64_t stride = matrix.stride[0];
  return matrix.dtype == Dtype::f32 && stride <= INT_MAX &&
         (stride == columns || (columns > 1 && stride > columns));
}

/// C = product + beta · C + bias, rounded; product may be C itself, or null for 0.
template <class T, class B>
struct Finish {
  const float* product;
  std::int64_t product_stride;
  T* c;
  std::int64_t c_stride;
  float beta;
  const B* bias;

  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row, std::int64_t column, Lanes lanes) const {
    T* target = c + row * c_stride + column;
    Vec value(0.0F);
    if (product != nullptr) value = tile::load<Vec>(product + row * product_stride + column, lanes);
    if (beta != 0.0F) value = tile::fma(Vec(beta), tile::load<Vec>(target, lanes), value);
    if (bias != nullptr) value = value + tile::load<Vec>(bias + column, lanes);
    tile::store(target, value, lanes);
  }
};

/// Where the panels lie in the workspace; a panel that is used where it lies has no bytes.
struct WorkspaceParts {
  Panels panels;
  bool direct_a, direct_b, direct_c;
  std::size_t b, c, total;  ///< offsets in bytes; A begins at 0

  WorkspaceParts(const GemmArgs& args, const Panels& largest)
      : panels{std::min(largest.m, args.m()), std::min(largest.n, args.n()),
               std::min(largest.k, args.k())},
        direct_a(is_direct(args.a)),
        direct_b(is_direct(args.b)),
        direct_c(is_direct(args.c)) {
    // Extents along which nothing is widened need no panels.
    if (direct_a && direct_c) panels.m = args.m();
    if (direct_b && direct_c) panels.n = args.n();
    if (direct_a && direct_b) panels.k = args.k();
    const auto bytes = [](bool direct, std::int64_t rows, std::int64_t columns) {
      return direct ? 0 : (static_cast<std::size_t>(rows * columns) * sizeof(float) + 63) / 64 * 64;
    };
    b = bytes(direct_a, panels.m, panels.k);
    c = b + bytes(direct_b, panels.n, panels.k);
    total = c + bytes(direct_c, panels.m, panels.n);
  }
};

/// The rows × columns block of a matrix at (row, column), widened into the workspace unless direct.
template <class Exec>
LibraryMatrix<const float> operand(const Exec& exec, const char* label,
                                   const ConstTensorRef<2>& matrix, bool direct, std::int64_t row,
                                   std::int64_t column, std::int64_t rows, std::int64_t columns,
                                   float* widened) {
  const std::int64_t offset = row * matrix.stride[0] + column;
  if (direct) {
    return {static_cast<const float*>(matrix.data) + offset, rows, columns, matrix.stride[0]};
  }
  visit_dtype(matrix.dtype, [&]<class T>() {
    tile::for_each_vector(exec, label, rows, columns,
                          Convert<T, float>{static_cast<const T*>(matrix.data) + offset,
                                            matrix.stride[0], widened, columns});
  });
  return {widened, rows, columns, columns};
}

template <class Exec>
void finish(const Exec& exec, const char* label, const GemmArgs& args,
            const LibraryMatrix<float>& product, std::int64_t row, std::int64_t column,
            float beta) {
  visit_dtype(args.c.dtype, [&]<class T>() {
    visit_dtype(args.bias.dtype, [&]<class B>() {
      const B* bias = args.bias ? static_cast<const B*>(args.bias.data) + column : nullptr;
      T* c = static_cast<T*>(args.c.data) + row * args.c.stride[0] + column;
      tile::for_each_vector(
          exec, label, product.rows, product.columns,
          Finish<T, B>{product.data, product.stride, c, args.c.stride[0], beta, bias});
    });
  });
}

}  // namespace

template <class Exec>
std::size_t library_gemm_workspace_bytes(const GemmArgs& args, const Panels& panels) {
  return WorkspaceParts(args, panels).total;
}

template <class Exec>
void library_gemm(const Exec& exec, const GemmArgs& args, const Panels& largest,
                  Workspace workspace, const char* label) {
  const WorkspaceParts layout(args, largest);
  const Panels& panels = layout.panels;
  if (args.k() == 0) {
    return finish(exec, label, args, {nullptr, args.m(), args.n(), 0}, 0, 0, args.beta);
  }
  auto* base = static_cast<std::byte*>(workspace.data);
  auto* wide_a = reinterpret_cast<float*>(base);
  auto* wide_b = reinterpret_cast<float*>(base + layout.b);
  auto* wide_c = reinterpret_cast<float*>(base + layout.c);

  for (std::int64_t j = 0; j < args.n(); j += panels.n) {
    const std::int64_t n = std::min(panels.n, args.n() - j);
    for (std::int64_t i = 0; i < args.m(); i += panels.m) {
      const std::int64_t m = std::min(panels.m, args.m() - i);
      LibraryMatrix<float> c{wide_c, m, n, n};
      if (layout.direct_c) {
        c.data = static_cast<float*>(args.c.data) + i * args.c.stride[0] + j;
        c.stride = args.c.stride[0];
      }
      const float beta = layout.direct_c ? args.beta : 0.0F;
      for (std::int64_t p = 0; p < args.k(); p += panels.k) {
        const std::int64_t k = std::min(panels.k, args.k() - p);
        // B stays when it is the panel of the last row of panels.
        const bool keep_b = i > 0 && panels.k == args.k();
        const auto a = args.trans_a
                           ? operand(exec, label, args.a, layout.direct_a, p, i, k, m, wide_a)
                           : operand(exec, label, args.a, layout.direct_a, i, p, m, k, wide_a);
        const std::int64_t b_rows = args.trans_b ? n : k;
        const std::int64_t b_columns = args.trans_b ? k : n;
        const auto b = keep_b && !layout.direct_b
                           ? LibraryMatrix<const float>{wide_b, b_rows, b_columns, b_columns}
                           : operand(exec, label, args.b, layout.direct_b, args.trans_b ? j : p,
                                     args.trans_b ? p : j, b_rows, b_columns, wide_b);
        library_product(exec, label,
                        {.trans_a = args.trans_a,
                         .trans_b = args.trans_b,
                         .alpha = args.alpha,
                         .beta = p == 0 ? beta : 1.0F},
                        a, b, c);
      }
      if (!layout.direct_c) {
        finish(exec, label, args, c, i, j, args.beta);
      } else if (args.bias) {
        finish(exec, label, args, c, i, j, 0.0F);
      }
    }
  }
}

bool library_takes(const GemmArgs& args) {
  return is_direct(args.a) && is_direct(args.b) && is_direct(args.c) && !args.bias && args.k() > 0;
}

void library_gemm_batch(const Host& exec, std::int64_t count,
                        const std::function<GemmArgs(std::int64_t)>& product, const char* label) {
  library_products(exec, label, count, [&](std::int64_t i) -> LibraryCall {
    const GemmArgs args = product(i);
    const auto matrix = [](const auto& ref, auto* data) {
      return LibraryMatrix(data, ref.extent[0], ref.extent[1], ref.stride[0]);
    };
    return {{args.trans_a, args.trans_b, args.alpha, args.beta},
            matrix(args.a, static_cast<const float*>(args.a.data)),
            matrix(args.b, static_cast<const float*>(args.b.data)),
            matrix(args.c, static_cast<float*>(args.c.data))};
  });
}

#define KATT_INSTANTIATE_LIBRARY_GEMM(Exec)                                                \
  template std::size_t library_gemm_workspace_bytes<Exec>(const GemmArgs&, const Panels&); \
  template void library_gemm<Exec>(const Exec&, const GemmArgs&, const Panels&, Workspace, \
                                   const char*);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_LIBRARY_GEMM)

}  // namespace katt::linear::impl
