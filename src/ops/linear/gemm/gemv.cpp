#include "ops/linear/gemm/gemv.hpp"

#if defined(KATT_HAS_CUDA)

#include <cstdint>

#include "core/dtype.hpp"
#include "ops/linear/gemm/cublas.hpp"
#include "tile/cuda/warp.hpp"
#include "tile/rows/pack.hpp"

namespace katt::linear::impl {

namespace {

constexpr int warp_lanes = static_cast<int>(tile::warp_size);
constexpr int block_warps = tile::row_team_size / warp_lanes;
/// Chunks of a row of the weight that a lane loads at once.
constexpr int lane_chunks = 2;

/// c(n) = alpha · Σ_k a(k) · b(n, k) + beta · c(n) + bias(n), a warp an n. With Chunks the rows begin
/// at multiples of 16 bytes and hold whole chunks, and a lane loads so many at once; with 0 it loads
/// elements. The order of the sum depends on k alone.
template <class T, class Out, int Chunks>
struct Gemv {
  const T* a;
  const T* b;
  Out* c;
  const Out* bias;
  std::int64_t n, k, stride_b;
  float alpha, beta;

  using Member = Kokkos::TeamPolicy<Kokkos::Cuda>::member_type;

  KOKKOS_INLINE_FUNCTION void operator()(const Member& team) const {
    const int lane = team.team_rank() % warp_lanes;
    const std::int64_t row =
        static_cast<std::int64_t>(team.league_rank()) * block_warps + team.team_rank() / warp_lanes;
    if (row >= n) return;
    float sum = 0.0F;
    const T* weight = b + row * stride_b;
    if constexpr (Chunks > 0) {
      constexpr std::int64_t step = warp_lanes * tile::chunk_elements;
      std::int64_t first = std::int64_t{lane} * tile::chunk_elements;
      KATT_NO_UNROLL
      for (; first + (Chunks - 1) * step < k; first += Chunks * step) {
        sum += product<Chunks>(weight + first, a + first);
      }
      KATT_NO_UNROLL
      for (; first < k; first += step) sum += product<1>(weight + first, a + first);
    } else {
      for (std::int64_t i = lane; i < k; i += warp_lanes) {
        sum = Kokkos::fma(static_cast<float>(a[i]), static_cast<float>(weight[i]), sum);
      }
    }
    sum = tile::over_warp(sum, [](float x, float y) { return x + y; });
    if (lane != 0) return;
    float value = alpha * sum;
    if (beta != 0.0F) value += beta * static_cast<float>(c[row]);
    if (bias != nullptr) value += static_cast<float>(bias[row]);
    c[row] = static_cast<Out>(value);
  }

 private:
  /// The product of `Count` chunks, a warp's width apart. The weight's chunks are loaded together.
  template <int Count>
  KOKKOS_FORCEINLINE_FUNCTION static float product(const T* weight, const T* token) {
    constexpr int elements = tile::chunk_elements;
    float w[Count][elements];
    KATT_UNROLL for (int i = 0; i < Count; ++i) {
      tile::load_chunk(weight + i * warp_lanes * elements, w[i]);
    }
    float sum = 0.0F;
    KATT_UNROLL for (int i = 0; i < Count; ++i) {
      float x[elements];
      tile::load_chunk(token + i * warp_lanes * elements, x);
      KATT_UNROLL for (int j = 0; j < elements; ++j) sum = Kokkos::fma(x[j], w[i][j], sum);
    }
    return sum;
  }
};

template <class T, class Out, int Chunks>
void launch(const Kokkos::Cuda& exec, const GemmArgs& args, const char* label) {
  const Gemv<T, Out, Chunks> kernel{static_cast<const T*>(args.a.data),
                                    static_cast<const T*>(args.b.data),
                                    static_cast<Out*>(args.c.data),
                                    static_cast<const Out*>(args.bias.data),
                                    args.n(),
                                    args.k(),
                                    args.b.stride[0],
                                    args.alpha,
                                    args.beta};
  const auto blocks = static_cast<int>((args.n() + block_warps - 1) / block_warps);
  Kokkos::parallel_for(label, Kokkos::TeamPolicy<Kokkos::Cuda>(exec, blocks, tile::row_team_size),
                       kernel);
}

template <class T, class Out>
void launch(const Kokkos::Cuda& exec, const GemmArgs& args, const char* label) {
  if (tile::are_chunks(args.a, args.b)) return launch<T, Out, lane_chunks>(exec, args, label);
  launch<T, Out, 0>(exec, args, label);
}

}  // namespace

bool gemv_takes(const GemmArgs& args) {
  return cublas_takes(args) && args.m() == 1 && !args.trans_a && args.trans_b;
}

void gemv(const Kokkos::Cuda& exec, const GemmArgs& args, const char* label) {
  visit_dtype(args.a.dtype, [&]<class T>() {
    if (args.c.dtype == Dtype::f32) return launch<T, float>(exec, args, label);
    launch<T, T>(exec, args, label);
  });
}

}  // namespace katt::linear::impl

#endif
