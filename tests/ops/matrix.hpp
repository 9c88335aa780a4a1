#pragma once

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "op/buffer.hpp"
#include "op/reference/fill.hpp"
#include "op/variants.hpp"
#include "tests/device.hpp"

/// Code that the tests of operators on matrices share.
namespace katt::testing {

/// A (rows, columns) matrix on a backend whose rows lie `columns + gap` elements apart. Its memory
/// begins as NaN; gaps() tells whether something was written between the rows.
class Matrix {
 public:
  Matrix(Backend backend, Dtype dtype, std::int64_t rows, std::int64_t columns,
         std::int64_t gap = 0)
      : stored_("matrix", backend, dtype, {rows, columns}, bench::HeadLayout::bhsd, gap) {
    stored_.poison();
  }
  Matrix(Backend backend, Dtype dtype, std::int64_t rows, std::int64_t columns, std::int64_t gap,
         std::span<const float> values)
      : Matrix(backend, dtype, rows, columns, gap) {
    stored_.upload(values);
  }

  [[nodiscard]] const TensorRef<2>& ref() const { return stored_.ref(); }
  [[nodiscard]] std::vector<float> values() const { return stored_.download(); }
  /// True when every element between the rows is still NaN.
  [[nodiscard]] bool gaps_untouched() const { return stored_.gaps_are_nan(); }

 private:
  bench::Tensor<2> stored_;
};

/// Integers on a backend.
class Indices {
 public:
  Indices(Backend backend, std::span<const std::int64_t> values)
      : buffer_("indices", backend, values.size_bytes()) {
    buffer_.upload(std::as_bytes(values));
  }
  [[nodiscard]] const std::int64_t* data() const {
    return reinterpret_cast<const std::int64_t*>(buffer_.data());
  }

 private:
  bench::Buffer buffer_;
};

/// Seeded values rounded to the dtype.
inline std::vector<float> random_values(std::int64_t count, std::uint64_t seed, Dtype dtype,
                                        float scale = 1.0F) {
  std::vector<float> values(static_cast<std::size_t>(count));
  fill(values, seed, dtype, scale);
  return values;
}

/// A workspace of NaN in every dtype, so that nothing is read that was not written.
inline bench::Buffer poisoned_workspace(Backend backend, std::size_t bytes) {
  bench::Buffer workspace("workspace", backend, bytes);
  workspace.upload(std::vector<std::byte>(bytes, std::byte{0xFF}));
  return workspace;
}

/// Runs a variant with the workspace it asks for, filled with NaN, and waits for it.
template <class Exec, class Args>
void run_variant(const Exec& exec, const VariantTable<Exec, Args>& table, const Args& args,
                 const Config& config) {
  const bench::Buffer workspace =
      poisoned_workspace(backend_of<Exec>(), table.workspace_bytes(exec, args, config));
  const Status status = table.run(exec, args, config, workspace.workspace());
  ASSERT_TRUE(status.is_ok()) << config.variant << ": " << status.reason();
  exec.fence();
}

/// Runs the operator's forward() with the workspace that it asks for, and waits for it.
template <class Exec, class Args>
Status run_forward(const Exec& exec, const Args& args, const Config& config) {
  const Kokkos::View<std::byte*, Kokkos::HostSpace> workspace("test::workspace",
                                                              workspace_bytes(exec, args, config));
  const Status status = forward(exec, args, config, workspace);
  exec.fence("test::fence");
  return status;
}

template <class Exec, class Args>
std::vector<std::string> names_of(const VariantTable<Exec, Args>& table) {
  std::vector<std::string> names;
  for (const auto& variant : table.all()) names.push_back(variant.name);
  return names;
}

/// Calls f(exec) for every execution space of this build, OpenMP with one thread and with two. With
/// an emulated device, for it alone: the host spaces are the same as in any other build.
template <class F>
void for_each_exec(const F& f) {
#if defined(KATT_HAS_CUDA)
  if (test::device_is_emulated()) {
    f(Kokkos::Cuda());
    return;
  }
#endif
  f(serial_host());
#if defined(KOKKOS_ENABLE_OPENMP)
  f(Kokkos::OpenMP(2));
#endif
#if defined(KATT_HAS_CUDA)
  f(Kokkos::Cuda());
#endif
}

}  // namespace katt::testing
