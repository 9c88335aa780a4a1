#include "nn/model/ternary.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/execution.hpp"

namespace katt::nn {

namespace {

/// The faster of the formats (docs/ops/ternary_linear.md).
constexpr auto format = ternary_linear::PackFormat::two_bit;
constexpr std::size_t alignment = 256;

/// A projection and its tensors, in the order of a layout.
struct Member {
  Projection BlockWeights::*matrix;
  int tensors;
};
const std::array<Member, 4>& members() {
  static const std::array<Member, 4> all{
      {{static_cast<Projection BlockWeights::*>(&AttentionWeights::qkv), 3},
       {static_cast<Projection BlockWeights::*>(&AttentionWeights::o), 1},
       {&BlockWeights::gate_up, 2},
       {&BlockWeights::down, 1}}};
  return all;
}

std::size_t sum_bytes(const ParameterLayout& layout) {
  std::int64_t rows = 0;
  for (const Parameter& parameter : layout.parameters()) {
    if (parameter.is_ternary) rows = std::max(rows, parameter.shape[0]);
  }
  return ternary_linear::pack_workspace_bytes(rows);
}

}  // namespace

std::size_t bind_ternary(Weights& weights, std::byte* data) {
  std::size_t used = 0;
  for (BlockWeights& block : weights.blocks) {
    for (const Member& member : members()) {
      Projection& matrix = block.*member.matrix;
      const std::int64_t rows = matrix.extent[0];
      const std::int64_t columns = matrix.extent[1];
      if (data != nullptr) matrix.packed = {data + used, format, rows, columns};
      used += aligned_bytes(ternary_linear::packed_bytes(format, rows, columns), alignment);
    }
  }
  return used;
}

std::size_t rehearse_ternary(const LlamaConfig& config, const ParameterLayout& layout,
                             Weights& weights) {
  if (!config.ternary) return 0;
  return bind_ternary(weights, reinterpret_cast<std::byte*>(alignment)) +  // NOLINT
         sum_bytes(layout);
}

template <class Exec>
TernaryWeights<Exec>::TernaryWeights(const LlamaConfig& config, const ParameterLayout& layout,
                                     Weights& weights) {
  if (!config.ternary) return;
  memory_ = {"katt::nn::ternary_weights", bind_ternary(weights, nullptr), true};
  sums_ = {"katt::nn::ternary_sums", sum_bytes(layout), false};
  (void)bind_ternary(weights, memory_.data());
  auto next = layout.parameters().begin();
  for (const BlockWeights& block : weights.blocks) {
    for (const Member& member : members()) {
      std::int64_t row = 0;
      for (int tensor = 0; tensor < member.tensors; ++tensor) {
        while (!next->is_ternary) ++next;
        parts_.push_back({*next, (block.*member.matrix).packed, row});
        row += next->shape[0];
        ++next;
      }
    }
  }
}

template <class Exec>
void TernaryWeights<Exec>::pack(const Exec& exec, const Parameter& parameter,
                                const TensorRef<2>& values) const {
  const auto part =
      std::ranges::find(parts_, parameter.name, [](const Part& one) { return one.parameter.name; });
  ternary_linear::pack(exec, values, part->packed, {sums_.data(), sums_.bytes()}, part->first_row);
}

template <class Exec>
void TernaryWeights<Exec>::pack(const Exec& exec, Dtype dtype, void* data) const {
  for (const Part& part : parts_) {
    const Parameter& parameter = part.parameter;
    auto* const address =
        static_cast<std::byte*>(data) + static_cast<std::size_t>(parameter.offset) * size_of(dtype);
    ternary_linear::pack(exec,
                         TensorRef<2>(address, dtype, {parameter.shape[0], parameter.shape[1]}),
                         part.packed, {sums_.data(), sums_.bytes()}, part.first_row);
  }
}

template <class Exec>
std::int64_t TernaryWeights<Exec>::largest() const {
  std::int64_t most = 0;
  for (const Part& part : parts_) most = std::max(most, part.parameter.size());
  return most;
}

#define KATT_INSTANTIATE_TERNARY_WEIGHTS(Exec) template class TernaryWeights<Exec>;

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_TERNARY_WEIGHTS)

}  // namespace katt::nn
