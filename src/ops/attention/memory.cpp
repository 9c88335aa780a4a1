#include "ops/attention/memory.hpp"

#include "core/execution.hpp"

namespace katt::attention {

namespace {

template <class Ref>
std::size_t bytes_of(const Ref& tensor) {
  // Strides count: a (B, S, H, D) tensor fills as much memory as a dense one, padded rows more.
  std::int64_t last = 0;
  for (std::size_t axis = 0; axis < tensor.extent.size(); ++axis) {
    if (tensor.extent[axis] == 0) return 0;
    last += (tensor.extent[axis] - 1) * tensor.stride[axis];
  }
  return static_cast<std::size_t>(last + 1) * size_of(tensor.dtype);
}

/// q, k, v and the mask.
template <class Args>
std::size_t shared_inputs(const Args& args) {
  const MaskArgs& mask = args.mask;
  std::size_t bytes = bytes_of(args.q) + bytes_of(args.k) + bytes_of(args.v);
  if (mask.bias.extent[0] > 0) bytes += bytes_of(mask.bias);
  if (mask.kv_len != nullptr)
    bytes += static_cast<std::size_t>(args.batch()) * sizeof(std::int64_t);
  if (mask.block_mask != nullptr) {
    const auto blocks = [&](std::int64_t n) { return (n + mask.block_size - 1) / mask.block_size; };
    bytes += static_cast<std::size_t>(blocks(args.seq_q()) * blocks(args.seq_kv()));
  }
  return bytes;
}

}  // namespace

template <class Exec>
MemoryEstimate estimate_memory(const Exec& exec, const ForwardArgs& args, const Config& config) {
  return {.inputs = shared_inputs(args),
          .outputs = bytes_of(args.out) + bytes_of(args.lse),
          .workspace = forward_variants<Exec>().workspace_bytes(exec, args, config)};
}

template <class Exec>
MemoryEstimate estimate_memory(const Exec& exec, const BackwardArgs& args, const Config& config) {
  return {
      .inputs = shared_inputs(args) + bytes_of(args.out) + bytes_of(args.dout) + bytes_of(args.lse),
      .outputs = bytes_of(args.dq) + bytes_of(args.dk) + bytes_of(args.dv),
      .workspace = backward_variants<Exec>().workspace_bytes(exec, args, config)};
}

#define KATT_INSTANTIATE_ESTIMATE(Exec)                                                          \
  template MemoryEstimate estimate_memory<Exec>(const Exec&, const ForwardArgs&, const Config&); \
  template MemoryEstimate estimate_memory<Exec>(const Exec&, const BackwardArgs&, const Config&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_ESTIMATE)

}  // namespace katt::attention
