#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "op/reference/compare.hpp"
#include "op/reference/expected.hpp"
#include "op/tensor_operator.hpp"
#include "ops/attention/bench/description.hpp"
#include "ops/attention/reference/float64.hpp"

namespace katt::ring_attention {

/// Attention, whose schema, case files, reference and work these are.
inline const bench::TensorOperatorData& attention_data() {
  return bench::data_of<attention::Description>();
}

/// A whole problem of attention on the host. Every rank has it, for its part and for the check; it is
/// not part of the measurement.
class Inputs : public attention::HostProblem {
 public:
  bool backward = false;
  Dtype dtype = Dtype::f32;

  /// Random values at a point of a sweep.
  explicit Inputs(const bench::Point& point);
  /// Values of a case of attention. Throws InputError.
  explicit Inputs(const io::CaseFile& file);
  Inputs(const Inputs&) = delete;
  Inputs& operator=(const Inputs&) = delete;

  [[nodiscard]] bench::Work work(Backend backend) const;

  /// Case::change(): without `all` in the backward pass dout alone, of which nothing is derived.
  [[nodiscard]] std::vector<bench::InputChange> change(std::uint64_t random, bool all);
  /// A sample of the outputs, chosen again when the inputs have changed.
  [[nodiscard]] const testing::Expected& expected();

 private:
  bench::Problem problem_;  ///< owns the values
  std::optional<testing::Expected> expected_{};
};

/// An output by name, whole.
struct Output {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

/// Compares outputs with the float64 reference; on a sample for a large problem.
[[nodiscard]] testing::Errors compare(Inputs& inputs, const std::vector<Output>& outputs);

}  // namespace katt::ring_attention
