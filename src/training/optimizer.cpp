#include "training/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "nn/device_memory.hpp"
#include "nn/observer.hpp"

namespace katt::training {

namespace {

template <class Exec>
using Range = Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>;

template <class T>
struct Update {
  float* p;
  const float* g;
  float* m;
  float* v;
  T* copy;
  float factor, keep, lerp, beta2, square, step_size, root, eps;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const float gradient = g[i] * factor;
    const float mean = m[i] + lerp * (gradient - m[i]);
    const float second = v[i] * beta2 + square * gradient * gradient;
    const float value = p[i] * keep - step_size * mean / (Kokkos::sqrt(second) / root + eps);
    m[i] = mean;
    v[i] = second;
    p[i] = value;
    if (copy != nullptr) copy[i] = static_cast<T>(value);
  }
};

struct SumSquares {
  const float* values;
  std::int64_t count;
  double* sums;

  KOKKOS_FUNCTION void operator()(std::int64_t block) const {
    const std::int64_t begin = block * norm_block;
    const std::int64_t end = begin + norm_block < count ? begin + norm_block : count;
    double sum = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
    sums[block] = sum;
  }
};

template <class T>
struct RoundCopy {
  const float* values;
  T* copy;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { copy[i] = static_cast<T>(values[i]); }
};

}  // namespace

template <class Exec>
void adamw(const Exec& exec, const AdamW& options, const AdamWArgs& args) {
  const auto t = static_cast<double>(args.step);
  const double correction1 = 1.0 - std::pow(options.beta1, t);
  const double correction2 = 1.0 - std::pow(options.beta2, t);
  nn::observe_call("katt::training::adamw", [&] {
    constexpr double flops = 14;     // of Update
    constexpr double bytes = 7 * 4;  // p, m and v are read and written, g is read
    const double copied = args.copy != nullptr ? static_cast<double>(size_of(args.copy_dtype)) : 0;
    const auto count = static_cast<double>(args.count);
    return nn::CallWork{.flops = flops * count, .bytes = (bytes + copied) * count};
  });
  visit_dtype(args.copy_dtype, [&]<class T>() {
    const Update<T> update{.p = args.parameters,
                           .g = args.gradients,
                           .m = args.m,
                           .v = args.v,
                           .copy = static_cast<T*>(args.copy),
                           .factor = static_cast<float>(args.gradient_factor),
                           .keep = static_cast<float>(1.0 - args.rate * options.decay),
                           .lerp = static_cast<float>(1.0 - options.beta1),
                           .beta2 = static_cast<float>(options.beta2),
                           .square = static_cast<float>(1.0 - options.beta2),
                           .step_size = static_cast<float>(args.rate / correction1),
                           .root = static_cast<float>(std::sqrt(correction2)),
                           .eps = static_cast<float>(options.eps)};
    Kokkos::parallel_for("katt::training::adamw", Range<Exec>(exec, 0, args.count), update);
  });
}

template <class Exec>
double norm(const Exec& exec, const float* values, std::int64_t count, double* sums) {
  nn::observe_call("katt::training::norm", [&] {
    return nn::CallWork{.flops = 2.0 * static_cast<double>(count),
                        .bytes = 4.0 * static_cast<double>(count)};
  });
  const std::int64_t blocks = (count + norm_block - 1) / norm_block;
  Kokkos::parallel_for("katt::training::norm", Range<Exec>(exec, 0, blocks),
                       SumSquares{values, count, sums});
  std::vector<double> partial(static_cast<std::size_t>(blocks));
  nn::copy_to_host(exec, sums, std::as_writable_bytes(std::span(partial)));
  double sum = 0;
  for (const double one : partial) sum += one;
  return std::sqrt(sum);
}

template <class Exec>
void round_copy(const Exec& exec, const float* values, std::int64_t count, Dtype dtype,
                void* copy) {
  visit_dtype(dtype, [&]<class T>() {
    Kokkos::parallel_for("katt::training::round_copy", Range<Exec>(exec, 0, count),
                         RoundCopy<T>{values, static_cast<T*>(copy)});
  });
}

#define KATT_INSTANTIATE_OPTIMIZER(Exec)                                        \
  template void adamw<Exec>(const Exec&, const AdamW&, const AdamWArgs&);       \
  template double norm<Exec>(const Exec&, const float*, std::int64_t, double*); \
  template void round_copy<Exec>(const Exec&, const float*, std::int64_t, Dtype, void*);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_OPTIMIZER)

}  // namespace katt::training
