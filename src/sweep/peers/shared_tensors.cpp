#include "sweep/peers/shared_tensors.hpp"

#include <algorithm>

#include "io/printable.hpp"
#include "tile/convert.hpp"

namespace katt::bench {
namespace {

/// Calls f with the element type of a tensor.
template <class F>
void visit_element(const ForeignTensor& tensor, const F& f) {
  if (!tensor.integers.empty()) f.template operator()<std::int64_t>();
  else if (tensor.dtype == Dtype::f32) f.template operator()<float>();
  else if (tensor.dtype == Dtype::f16) f.template operator()<f16>();
  else f.template operator()<bf16>();
}

}  // namespace

std::size_t count_of(const ForeignTensor& tensor) { return io::impl::element_count(tensor.shape); }

nlohmann::json SharedOffsets::place(const std::vector<ForeignTensor>& tensors,
                                    std::vector<std::size_t>& offsets) {
  nlohmann::json list = nlohmann::json::array();
  for (const ForeignTensor& tensor : tensors) {
    offsets.push_back(bytes_);
    std::size_t size = 0;
    visit_element(tensor, [&]<class T>() { size = sizeof(T); });
    list.push_back({{"name", tensor.name},
                    {"dtype", tensor.integers.empty() ? name_of(tensor.dtype) : "i64"},
                    {"shape", tensor.shape},
                    {"offset", bytes_}});
    bytes_ = (bytes_ + count_of(tensor) * size + 63) / 64 * 64;
  }
  return list;
}

void write(const ForeignTensor& tensor, std::byte* target, std::size_t first, std::size_t count) {
  visit_element(tensor, [&]<class T>() {
    T* const place = reinterpret_cast<T*>(target) + first;
    if constexpr (std::is_same_v<T, std::int64_t>) {
      std::ranges::copy(tensor.integers.subspan(first, count), place);
    } else {
      convert(tensor.values.subspan(first, count), std::span(place, count));
    }
  });
}

void write_all(const std::vector<ForeignTensor>& tensors, std::span<std::byte> memory,
               const std::vector<std::size_t>& offsets) {
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    write(tensors[i], memory.data() + offsets[i], 0, count_of(tensors[i]));
  }
}

std::vector<float> read(const ForeignTensor& tensor, const std::byte* source) {
  std::vector<float> values(count_of(tensor));
  visit_element(tensor, [&]<class T>() {
    if constexpr (!std::is_same_v<T, std::int64_t>) {
      convert(std::span(reinterpret_cast<const T*>(source), values.size()), std::span(values));
    }
  });
  return values;
}

}  // namespace katt::bench
