#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/context/ring_schedule.hpp"
#include "op/reference/compare.hpp"
#include "op/reference/expected.hpp"
#include "op/registry.hpp"
#include "ops/attention/reference/float64.hpp"
#include "ranks/communicator.hpp"

namespace katt::ring_attention {

/// A whole problem of attention on the host, as case files hold it (docs/schema.md). Every rank has
/// it, for its part and for the check; it is not part of the measurement.
class Inputs {
 public:
  bool backward = false;
  Dtype dtype = Dtype::f32;
  std::int64_t batch = 0, heads = 0, kv_heads = 0, seq_q = 0, seq_kv = 0, head_dim = 0;
  double scale = 0;
  bool causal = false;
  std::int64_t window_left = -1, window_right = -1, block_size = 0;
  attention::ScoreArgs score{};      ///< without slopes
  std::vector<float> q, k, v, dout;  ///< (batch, heads or kv_heads, seq, head_dim)
  std::vector<float> slopes;         ///< (heads) or empty
  std::vector<float> bias;           ///< (bias_batch, bias_heads, seq_q, seq_kv) or empty
  std::int64_t bias_batch = 1, bias_heads = 1;
  std::vector<std::int64_t> kv_len, block_mask;

  /// Random values at a point of a sweep.
  explicit Inputs(const bench::Point& point);
  /// Values of a case of attention. Throws InputError.
  explicit Inputs(const io::CaseFile& file);

  [[nodiscard]] attention::HostProblem host_problem() const;
  [[nodiscard]] double flops() const;

  /// Case::change(): without `all` in the backward pass dout alone, of which nothing is derived.
  [[nodiscard]] std::vector<bench::InputChange> change(std::uint64_t random, bool all);
  /// A sample of the outputs, chosen again when the inputs have changed.
  [[nodiscard]] const testing::Expected& expected();

 private:
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
