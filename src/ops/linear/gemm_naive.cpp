#include "ops/linear/gemm_naive.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/backend.hpp"
#include "core/parts.hpp"
#include "ops/linear/gemm_library.hpp"
#include "ops/linear/linear_kernels.hpp"
#include "tile/elementwise.hpp"

namespace katt::linear {

namespace {

bool by_library(const GemmArgs& args) { return args.a.dtype == Dtype::f32; }

/// C in blocks of rows whose sums are f32.
struct Blocks {
  std::int64_t rows;
  std::size_t bytes;  ///< of the sums of a block

  explicit Blocks(const GemmArgs& args) {
    constexpr std::int64_t long_sum = 512;         // k from which the pass that rounds is cheap
    constexpr std::int64_t elements = 1LL << 18U;  // 1 MiB of sums
    rows = std::max<std::int64_t>(1, elements / std::max<std::int64_t>(1, args.n()));
    if (args.k() >= long_sum || rows > args.m()) rows = args.m();
    bytes = aligned_bytes<float>(rows * args.n());
  }

  /// The product of the rows from `first` on, into the beginning of the workspace.
  GemmArgs product(const GemmArgs& args, std::int64_t first, void* sums) const {
    GemmArgs block = args;
    const std::int64_t count = std::min(rows, args.m() - first);
    block.a = args.trans_a ? columns_of(args.a, first, count) : rows_of(args.a, first, count);
    block.c = {sums, Dtype::f32, {count, args.n()}};
    return block;
  }
};

}  // namespace

template <class Exec>
std::string naive_gemm_engine(const Exec& exec, const GemmArgs& args) {
  return by_library(args) ? "blas" : gemm_engine(exec, args);
}

template <class Exec>
std::size_t naive_gemm_workspace_bytes(const Exec& exec, const GemmArgs& args) {
  return by_library(args) ? impl::library_gemm_workspace_bytes<Exec>(args, impl::whole_tensors)
                          : gemm_workspace_bytes(exec, args);
}

template <class Exec>
void naive_gemm(const Exec& exec, const GemmArgs& args, Workspace workspace, const char* label) {
  if (by_library(args)) {
    impl::library_gemm(exec, args, impl::whole_tensors, workspace, label);
  } else {
    gemm(exec, args, workspace, label);
  }
}

template <class Exec>
std::size_t naive_rounded_gemm_workspace_bytes(const Exec& exec, const GemmArgs& args) {
  if (args.c.dtype == Dtype::f32) return naive_gemm_workspace_bytes(exec, args);
  const Blocks blocks(args);
  // The last block may be smaller, and its product another one.
  const std::int64_t last = (args.m() - 1) / std::max<std::int64_t>(1, blocks.rows) * blocks.rows;
  return blocks.bytes +
         std::max(naive_gemm_workspace_bytes(exec, blocks.product(args, 0, nullptr)),
                  naive_gemm_workspace_bytes(
                      exec, blocks.product(args, std::max<std::int64_t>(0, last), nullptr)));
}

template <class Exec>
void naive_rounded_gemm(const Exec& exec, const GemmArgs& args, Workspace workspace,
                        const char* label) {
  if (args.c.dtype == Dtype::f32) return naive_gemm(exec, args, workspace, label);
  const Blocks blocks(args);
  auto* sums = static_cast<float*>(workspace.data);
  const Workspace rest{static_cast<std::byte*>(workspace.data) + blocks.bytes,
                       workspace.bytes - blocks.bytes};
  for (std::int64_t first = 0; first < args.m(); first += blocks.rows) {
    const GemmArgs block = blocks.product(args, first, sums);
    naive_gemm(exec, block, rest, label);
    visit_dtype(args.c.dtype, [&]<class T>() {
      tile::for_each_vector(
          exec, label, block.m(), block.n(),
          impl::Convert<float, T>{sums, block.n(),
                                  static_cast<T*>(args.c.data) + first * args.c.stride[0],
                                  args.c.stride[0]});
    });
  }
}

#define KATT_INSTANTIATE_NAIVE_GEMM(Exec)                                                      \
  template std::string naive_gemm_engine<Exec>(const Exec&, const GemmArgs&);                  \
  template std::size_t naive_gemm_workspace_bytes<Exec>(const Exec&, const GemmArgs&);         \
  template void naive_gemm<Exec>(const Exec&, const GemmArgs&, Workspace, const char*);        \
  template std::size_t naive_rounded_gemm_workspace_bytes<Exec>(const Exec&, const GemmArgs&); \
  template void naive_rounded_gemm<Exec>(const Exec&, const GemmArgs&, Workspace, const char*);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_NAIVE_GEMM)

}  // namespace katt::linear
