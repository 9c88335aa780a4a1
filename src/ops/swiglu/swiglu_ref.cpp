#include "ops/swiglu/swiglu_ref.hpp"

#include <cmath>

namespace katt::swiglu {

ReferenceElement reference_element(double gate, double up, double dout) {
  const double sigmoid = 1.0 / (1.0 + std::exp(-gate));
  const double rest = 1.0 / (1.0 + std::exp(gate));  // 1 − σ without cancellation
  return {.out = gate * sigmoid * up,
          .dgate = dout * up * sigmoid * (1.0 + gate * rest),
          .dup = dout * gate * sigmoid};
}

ReferenceElement unfused_element(float gate, float up, float dout, Dtype dtype) {
  const auto stored = [dtype](float value) { return round_to(dtype, value); };
  const float sigmoid = 1.0F / (1.0F + std::exp(-gate));
  const float silu = stored(gate * sigmoid);
  const float dsilu = stored(dout * up);
  const float slope = sigmoid + gate * sigmoid * (1.0F - sigmoid);
  return {.out = static_cast<double>(stored(silu * up)),
          .dgate = static_cast<double>(stored(dsilu * slope)),
          .dup = static_cast<double>(stored(dout * silu))};
}

}  // namespace katt::swiglu
