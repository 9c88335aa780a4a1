#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/dtype.hpp"
#include "core/status.hpp"
#include "ops/attention/decode/mma_kernel.hpp"
#include "ops/attention/tensor_cores/tiles.hpp"
#include "tile/cuda/cuda_launch.hpp"
#include "tile/cuda/mma_sync.hpp"

#if defined(KATT_HAS_CUDA)

/// The engine of decoding on tensor cores: which arguments it takes, its workspace, its launch.
namespace katt::attention::impl {

/// The shape of a block by the padded head_dim: copies on their way for the latency of memory in a
/// share of shared memory that every device has (99 KiB).
template <int HeadDim>
struct DecodeShapeOf;
template <>
struct DecodeShapeOf<64> {
  using type = DecodeShape<32, 3, 4, 2>;
};
template <>
struct DecodeShapeOf<128> {
  using type = DecodeShape<16, 3, 4, 2>;
};
template <>
struct DecodeShapeOf<256> {
  using type = DecodeShape<16, 2, 2, 3>;
};

/// Sixteen keys of a tile lie in one page.
inline bool pages_are_wide(const ForwardArgs& /*args*/) { return true; }
inline bool pages_are_wide(const PagedArgs& args) {
  return args.page_size() % 16 == 0 || args.pages_per_sequence <= 1;
}
inline bool caches_are_aligned(const ForwardArgs& args) {
  return rows_are_aligned(args.k) && rows_are_aligned(args.v);
}
inline bool caches_are_aligned(const PagedArgs& args) {
  return rows_are_aligned(args.k_pages) && rows_are_aligned(args.v_pages);
}

/// Calls f.operator()<HeadDim>() for the padded head_dim.
template <class F>
decltype(auto) visit_decode_head_dim(std::int64_t head_dim, F&& f) {
  if (head_dim <= 64) return f.template operator()<64>();
  if (head_dim <= 128) return f.template operator()<128>();
  return f.template operator()<256>();
}

/// True for the arguments that the engine takes; the others run on scalar units.
template <class Args>
bool decode_mma_takes(const Kokkos::Cuda& exec, const Args& args, Tile tile) {
  constexpr std::int64_t most_keys = std::int64_t{1} << 30;  // positions are 32-bit
  if (!tile::has_mma_sync || exec.cuda_device_prop().major < 8) return false;
  return args.q.dtype != Dtype::f32 && pages_are_wide(args) && caches_are_aligned(args) &&
         rows_are_aligned(args.q) && rows_are_aligned(args.out) && args.seq_kv() <= most_keys &&
         DecodeGrid::most_units(args, tile.kv) <= most_keys;
}

/// The grid: the blocks that the device holds at once.
template <class Shape, class Args>
DecodeGrid decode_grid(const Kokkos::Cuda& exec, const Args& args, Tile tile,
                       std::size_t shared_bytes) {
  const cudaDeviceProp& device = exec.cuda_device_prop();
  const std::size_t fit = device.sharedMemPerMultiprocessor / (shared_bytes + 1024);
  const std::int64_t blocks = std::clamp<std::int64_t>(fit, 1, Shape::blocks);
  return DecodeGrid(args, tile.kv, device.multiProcessorCount * blocks);
}

/// A number that no other launch has, for PieceCounter. The first is arbitrary: memory that nobody
/// has written holds it by no more than a chance of 2^-44.
inline std::uint64_t next_epoch() {
  constexpr std::uint64_t most_pieces = std::uint64_t{1} << 20;
  static std::atomic<std::uint64_t> next{
      static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()) *
      0x9E3779B97F4A7C15U};
  return next.fetch_add(most_pieces);
}

template <class Args>
std::size_t decode_mma_workspace_bytes(const Kokkos::Cuda& exec, const Args& args, Tile tile) {
  return visit_decode_head_dim(args.head_dim(), [&]<int HeadDim>() {
    using Shape = typename DecodeShapeOf<HeadDim>::type;
    using Kernel = DecodeMma<bf16, HeadDim, false, Shape>;
    return PieceBytes(decode_grid<Shape>(exec, args, tile, Kernel::shared_bytes), HeadDim).all();
  });
}

template <class Args, class Rule>
void run_decode_mma(const Kokkos::Cuda& exec, const Args& args, const Rule& rule, Tile tile,
                    Workspace workspace) {
  constexpr bool is_paged = std::is_same_v<Args, PagedArgs>;
  visit_decode_head_dim(args.head_dim(), [&]<int HeadDim>() {
    const auto launch = [&]<class T>() {
      using Shape = typename DecodeShapeOf<HeadDim>::type;
      using Kernel = DecodeMma<T, HeadDim, is_paged, Shape, Rule>;
      const DecodeGrid grid = decode_grid<Shape>(exec, args, tile, Kernel::shared_bytes);
      tile::cuda_launch<tile::MmaBlock>(exec, "katt::attention::decode", grid.blocks,
                                        Kernel(args, rule, grid, next_epoch(), workspace));
    };
    if (args.q.dtype == Dtype::f16) {
      launch.template operator()<f16>();
    } else {
      launch.template operator()<bf16>();
    }
  });
}

}  // namespace katt::attention::impl

#endif
