#include "nn/products.hpp"

#include "core/execution.hpp"
#include "ops/linear/linear.hpp"
#include "ops/ternary_linear/ternary_linear.hpp"
#include "tile/rows/elementwise.hpp"

namespace katt::nn {

namespace {

template <class T>
struct AddGradient {
  static constexpr int chunks = 2;  ///< of three tensors
  const T* value;
  float* gradient;
  bool adds;

  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t /*row*/, std::int64_t i, Lanes lanes) const {
    const Vec addend = tile::load<Vec>(value + i, lanes);
    tile::store(gradient + i, adds ? Vec(tile::load<Vec>(gradient + i, lanes) + addend) : addend,
                lanes);
  }
};

template <class T>
struct AddRows {
  static constexpr int chunks = 2;  ///< of three tensors
  const T* a;
  const T* b;
  T* sum;

  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t /*row*/, std::int64_t i, Lanes lanes) const {
    const Vec left = tile::load<Vec>(a + i, lanes);
    tile::store(sum + i, Vec(left + tile::load<Vec>(b + i, lanes)), lanes);
  }
};

}  // namespace

template <class Exec>
void project(Runner<Exec>& run, const Kernels& kernels, const TensorRef<2>& x,
             const Projection& weight, const TensorRef<1>& bias, const TensorRef<2>& out) {
  if (weight.packed) {
    run(ternary_linear::forward_variants<Exec>(),
        ternary_linear::ForwardArgs{.x = x, .packed = weight.packed, .out = out},
        kernels.ternary_linear);
    return;
  }
  linear::ForwardArgs args{.x = x, .weight = weight, .out = out};
  if (bias) args.bias = bias;
  run(linear::forward_variants<Exec>(), args, kernels.linear);
}

template <class Exec>
void project_backward(Runner<Exec>& run, const Kernels& kernels, const TensorRef<2>& x,
                      const Projection& weight, const TensorRef<2>& dout, const TensorRef<2>& dx,
                      const TensorRef<2>& dweight, const TensorRef<1>& dbias,
                      const TensorRef<2>& staging) {
  if (weight.packed) {
    if (!run.adds_gradients() && !run.is_dry()) clear_rows(run.exec(), dweight);
    run(ternary_linear::backward_variants<Exec>(),
        ternary_linear::BackwardArgs{.x = x,
                                     .dout = dout,
                                     .packed = weight.packed,
                                     .dx = dx,
                                     .dweight = dweight,
                                     .adds_dweight = true},
        kernels.ternary_linear);
    return;
  }
  // dx may be the memory of x: the gradients of the weight, which read x, come first.
  add_linear_gradients(run, kernels, x, dout, dweight, dbias, staging);
  run(linear::backward_variants<Exec>(),
      linear::BackwardArgs{.x = x, .weight = weight, .dout = dout, .dx = dx}, kernels.linear);
}

template <class Exec>
void add_gradient(Runner<Exec>& run, const void* value, Dtype dtype, void* gradient,
                  std::int64_t count) {
  if (run.is_dry()) return;
  const bool wide = tile::are_chunks(ConstTensorRef<1>(value, dtype, {count}),
                                     ConstTensorRef<1>(gradient, Dtype::f32, {count}));
  visit_dtype(dtype, [&]<class T>() {
    tile::for_each_wide_vector<AddGradient<T>::chunks>(
        run.exec(), "katt::nn::add_gradient", 1, count,
        AddGradient<T>{static_cast<const T*>(value), static_cast<float*>(gradient),
                       run.adds_gradients()},
        wide);
  });
}

template <class Exec>
void add_rows(const Exec& exec, const TensorRef<2>& a, const TensorRef<2>& b,
              const TensorRef<2>& sum) {
  visit_dtype(sum.dtype, [&]<class T>() {
    tile::for_each_wide_vector<AddRows<T>::chunks>(
        exec, "katt::nn::add_rows", 1, sum.size(),
        AddRows<T>{static_cast<const T*>(a.data), static_cast<const T*>(b.data),
                   static_cast<T*>(sum.data)},
        tile::are_chunks(a, b, sum));
  });
}

template <class Exec>
void clear_rows(const Exec& exec, const TensorRef<2>& rows) {
  using Bytes = Kokkos::View<std::byte*, typename Exec::memory_space,
                             Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  Kokkos::deep_copy(exec,
                    Bytes(static_cast<std::byte*>(rows.data),
                          static_cast<std::size_t>(rows.size()) * size_of(rows.dtype)),
                    std::byte{0});
}

template <class Exec>
void add_linear_gradients(Runner<Exec>& run, const Kernels& kernels, const TensorRef<2>& x,
                          const TensorRef<2>& dout, const TensorRef<2>& dweight,
                          const TensorRef<1>& dbias, const TensorRef<2>& staging) {
  if (kernels.products_add) {
    const float beta = run.adds_gradients() ? 1.0F : 0.0F;
    run.gemm({.a = dout, .b = x, .c = dweight, .trans_a = true, .beta = beta},
             "katt::nn::weight_gradient");
  } else {
    const TensorRef<2> product(staging.data, dout.dtype, dweight.extent);
    run(linear::backward_variants<Exec>(),
        linear::BackwardArgs{
            .x = x, .weight = product, .dout = dout, .dweight = product},  // reads no weight
        kernels.linear);
    add_gradient(run, product.data, product.dtype, dweight.data, product.size());
  }
  if (!dbias) return;
  const TensorRef<1> sums(staging.data, dout.dtype, dbias.extent);
  run(linear::backward_variants<Exec>(),
      linear::BackwardArgs{.x = x,
                           .weight = TensorRef<2>(dweight.data, dout.dtype, dweight.extent),
                           .dout = dout,
                           .dbias = sums},
      kernels.linear);
  add_gradient(run, sums.data, sums.dtype, dbias.data, sums.size());
}

#define KATT_INSTANTIATE_PRODUCTS(Exec)                                                           \
  template void project<Exec>(Runner<Exec>&, const Kernels&, const TensorRef<2>&,                 \
                              const Projection&, const TensorRef<1>&, const TensorRef<2>&);       \
  template void project_backward<Exec>(                                                           \
      Runner<Exec>&, const Kernels&, const TensorRef<2>&, const Projection&, const TensorRef<2>&, \
      const TensorRef<2>&, const TensorRef<2>&, const TensorRef<1>&, const TensorRef<2>&);        \
  template void add_gradient<Exec>(Runner<Exec>&, const void*, Dtype, void*, std::int64_t);       \
  template void add_rows<Exec>(const Exec&, const TensorRef<2>&, const TensorRef<2>&,             \
                               const TensorRef<2>&);                                              \
  template void clear_rows<Exec>(const Exec&, const TensorRef<2>&);                               \
  template void add_linear_gradients<Exec>(Runner<Exec>&, const Kernels&, const TensorRef<2>&,    \
                                           const TensorRef<2>&, const TensorRef<2>&,              \
                                           const TensorRef<1>&, const TensorRef<2>&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_PRODUCTS)

}  // namespace katt::nn
