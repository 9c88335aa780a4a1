#pragma once

#include <cstdint>

namespace katt::bench {

/// FLOP/s of the product of two n × n matrices in bf16, sums in f32, by cuBLASLt on the chosen
/// device: the best of as many as fit into `least_s`, at least five, by the device's own clock.
/// This is the practical peak of tensor cores; a data sheet's peak supposes clocks that no power
/// budget allows. Operands are uniform in [−1, 1): a device is faster on zeros than on real data.
/// NaN in a build without CUDA. Throws std::runtime_error when CUDA or cuBLASLt refuses.
[[nodiscard]] double product_flops_s(std::int64_t n, double least_s);

}  // namespace katt::bench
