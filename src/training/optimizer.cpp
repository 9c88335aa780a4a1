#include "training/optimizer.hpp"

#include <cmath>
#include <vector>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "nn/device_memory.hpp"
#include "op/observer.hpp"
#include "tile/rows/elementwise.hpp"

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
    (*this).template operator()<float>(0, i, tile::WholeVector{});
  }

  static constexpr int chunks = 1;  ///< bytes of six tensors
  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t /*row*/, std::int64_t i, Lanes lanes) const {
    const Vec gradient = tile::load<Vec>(g + i, lanes) * Vec(factor);
    const Vec old_mean = tile::load<Vec>(m + i, lanes);
    const Vec old_second = tile::load<Vec>(v + i, lanes);
    const Vec old_value =
        p != nullptr ? tile::load<Vec>(p + i, lanes) : tile::load<Vec>(copy + i, lanes);
    const Vec mean = old_mean + Vec(lerp) * (gradient - old_mean);
    const Vec second = old_second * Vec(beta2) + Vec(square) * gradient * gradient;
    const Vec value =
        old_value * Vec(keep) - Vec(step_size) * mean / (deviation(second) + Vec(eps));
    tile::store(m + i, mean, lanes);
    tile::store(v + i, second, lanes);
    if (p != nullptr) tile::store(p + i, value, lanes);
    if (copy != nullptr) tile::store(copy + i, value, lanes);
  }

 private:
  /// √second / root
  template <class Vec>
  KOKKOS_FORCEINLINE_FUNCTION Vec deviation(const Vec& second) const {
    if constexpr (tile::PackVector<Vec>) {
      return Vec::map([this](float one) { return Kokkos::sqrt(one) / root; }, second);
    } else {
      return Kokkos::sqrt(second) / Vec(root);
    }
  }
};

struct SumSquares {
  const float* values;
  std::int64_t count;
  double* sums;

  KOKKOS_FUNCTION void operator()(std::int64_t block) const {
    const std::int64_t begin = block * norm_block;
    const std::int64_t end = begin + norm_block < count ? begin + norm_block : count;
    // Several sums side by side: a single chain would wait four cycles for each element.
    constexpr int chains = 32;
    double partial[chains] = {};
    std::int64_t i = begin;
    for (; i + chains <= end; i += chains) {
      for (int c = 0; c < chains; ++c) {
        const auto value = static_cast<double>(values[i + c]);
        partial[c] += value * value;
      }
    }
    double sum = 0;
    for (; i < end; ++i) sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    for (const double one : partial) sum += one;
    sums[block] = sum;
  }
};

/// The same on a device, one team a block. It adds the sums of its threads in a fixed order.
template <class Exec>
struct SumSquaresTeam {
  const float* values;
  std::int64_t count;
  double* sums;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t block) const {
    const std::int64_t begin = block * norm_block;
    const std::int64_t end = begin + norm_block < count ? begin + norm_block : count;
    double sum = 0;
    tile::for_columns<Exec, 2>(team, begin, end, [&]<class V>(std::int64_t i) {
      const V loaded = tile::load<V>(values + i);
      const auto add = [&sum](float value) { sum += static_cast<double>(value) * value; };
      if constexpr (tile::PackVector<V>) {
        KATT_UNROLL
        for (const float value : loaded.lane) add(value);
      } else {
        add(loaded);
      }
    });
    team.team_reduce(Kokkos::Sum<double>(sum));
    if (team.team_rank() == 0) sums[block] = sum;
  }
};

template <class T>
struct RoundCopy {
  const float* values;
  T* copy;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { copy[i] = static_cast<T>(values[i]); }

  static constexpr int chunks = 2;
  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t /*row*/, std::int64_t i, Lanes lanes) const {
    tile::store(copy + i, tile::load<Vec>(values + i, lanes), lanes);
  }
};

/// True when this many f32 numbers, or numbers of the dtype, are whole chunks; always true for
/// null.
bool are_chunks(const void* data, std::int64_t count, Dtype dtype = Dtype::f32) {
  return tile::are_chunks(ConstTensorRef<1>(data, dtype, {count}));
}

/// Launches the body for the elements: by explicit vectors on a host, since GCC does not vectorise
/// the square root (it may set errno); on a device 16 bytes at a time where `wide`.
template <class Exec, class Body>
void for_each_element(const Exec& exec, const char* label, std::int64_t count, const Body& body,
                      bool wide) {
  if constexpr (is_host_v<Exec>) {
    tile::for_each_vector(exec, label, 1, count, body);
  } else if (wide) {
    tile::for_each_wide_vector<Body::chunks>(exec, label, 1, count, body, true);
  } else {
    Kokkos::parallel_for(label, Range<Exec>(exec, 0, count), body);
  }
}

}  // namespace

template <class Exec>
void adamw(const Exec& exec, const AdamW& options, const AdamWArgs& args) {
  const auto t = static_cast<double>(args.step);
  const double correction1 = 1.0 - std::pow(options.beta1, t);
  const double correction2 = 1.0 - std::pow(options.beta2, t);
  nn::observe_call("katt::training::adamw", [&] {
    constexpr double flops = 14;     // members of Update
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
    for_each_element(exec, "katt::training::adamw", args.count, update,
                     are_chunks(args.parameters, args.count) &&
                         are_chunks(args.gradients, args.count) && are_chunks(args.m, args.count) &&
                         are_chunks(args.v, args.count) &&
                         are_chunks(args.copy, args.count, args.copy_dtype));
  });
}

template <class Exec>
double norm(const Exec& exec, const float* values, std::int64_t count, double* sums) {
  nn::observe_call("katt::training::norm", [&] {
    return nn::CallWork{.flops = 2.0 * static_cast<double>(count),
                        .bytes = 4.0 * static_cast<double>(count)};
  });
  const std::int64_t blocks = (count + norm_block - 1) / norm_block;
  if constexpr (is_host_v<Exec>) {
    Kokkos::parallel_for("katt::training::norm", Range<Exec>(exec, 0, blocks),
                         SumSquares{values, count, sums});
  } else {
    tile::for_each_wide_row(exec, "katt::training::norm", blocks,
                            SumSquaresTeam<Exec>{values, count, sums}, are_chunks(values, count));
  }
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
    for_each_element(exec, "katt::training::round_copy", count,
                     RoundCopy<T>{values, static_cast<T*>(copy)},
                     are_chunks(values, count) && are_chunks(copy, count, dtype));
  });
}

#define KATT_INSTANTIATE_OPTIMIZER(Exec)                                        \
  template void adamw<Exec>(const Exec&, const AdamW&, const AdamWArgs&);       \
  template double norm<Exec>(const Exec&, const float*, std::int64_t, double*); \
  template void round_copy<Exec>(const Exec&, const float*, std::int64_t, Dtype, void*);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_OPTIMIZER)

}  // namespace katt::training
