#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <nlohmann/json.hpp>

#include "op/registry.hpp"

/// The tensors of a case in memory that another program maps: row-major, each on a boundary of 64
/// bytes.
namespace katt::bench {

[[nodiscard]] std::size_t count_of(const ForeignTensor& tensor);

/// Offsets of tensors in the shared memory.
class SharedOffsets {
 public:
  /// Places tensors behind those before. Adds their offsets, and returns their description for a
  /// request.
  nlohmann::json place(const std::vector<ForeignTensor>& tensors,
                       std::vector<std::size_t>& offsets);
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

/// Puts `count` elements of a tensor, from `first` on, where the tensor begins at `target`.
void write(const ForeignTensor& tensor, std::byte* target, std::size_t first, std::size_t count);

/// Puts all elements of all tensors to their offsets.
void write_all(const std::vector<ForeignTensor>& tensors, std::span<std::byte> memory,
               const std::vector<std::size_t>& offsets);

/// The elements of a tensor as f32; of integers nothing but zeros.
[[nodiscard]] std::vector<float> read(const ForeignTensor& tensor, const std::byte* source);

}  // namespace katt::bench
