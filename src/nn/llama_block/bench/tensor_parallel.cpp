#include "nn/llama_block/bench/tensor_parallel.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/execution.hpp"
#include "nn/llama_block/bench/inputs.hpp"
#include "op/adapter.hpp"
#include "op/collective.hpp"
#include "op/matrix_ceiling.hpp"

namespace katt::llama_block {

namespace {

constexpr const char* fused = "fused";
constexpr const char* sequence_parallel = "sequence_parallel";

/// A rank's part of a weight: some of its rows and some of its columns.
struct Cut {
  std::vector<ranks::Part> rows;
  ranks::Part columns;
  std::int64_t whole_columns = 0;

  /// Index in the whole weight of element i of the part.
  [[nodiscard]] std::int64_t whole_index(std::int64_t i) const {
    std::int64_t row = i / columns.count;
    for (const ranks::Part& part : rows) {
      if (row < part.count) {
        return (part.begin + row) * whole_columns + columns.begin + i % columns.count;
      }
      row -= part.count;
    }
    return -1;
  }
};

/// Heads and columns of the MLP are cut; norms are not.
Cut cut_of(const TensorSpec& spec, const Problem& whole, const Shape& s, int ranks, int rank) {
  const std::int64_t columns = spec.shape(whole).back(), rows = spec.size(whole) / columns;
  const auto part = [&](std::int64_t n) { return ranks::Part{n / ranks * rank, n / ranks}; };
  const auto after = [](std::int64_t begin, ranks::Part p) {
    return ranks::Part{begin + p.begin, p.count};
  };
  const std::string& name = spec.name;
  const std::int64_t kv = s.kv_heads * s.head_dim;
  Cut cut{{ranks::Part{0, rows}}, {0, columns}, columns};
  if (name == "qkv") {
    cut.rows = {part(s.q_size()), after(s.q_size(), part(kv)), after(s.q_size() + kv, part(kv))};
  } else if (name == "gate_up") {
    cut.rows = {part(s.intermediate), after(s.intermediate, part(s.intermediate))};
  } else if (name == "o" || name == "down") {
    cut.columns = part(columns);
  }
  return cut;
}

/// The tensors and groups of a rank.
Shape part_of(Shape s, int ranks) {
  s.heads /= ranks;
  s.kv_heads /= ranks;
  s.intermediate /= ranks;
  return s;
}

ranks::Layout layout_of(const std::string& variant, int ranks) {
  return {.tensor = ranks, .sequence_parallel = variant == sequence_parallel};
}

/// A rank's problem, of the shape `own`. Its rows of the stream are as many as every
/// rank's, zero behind the last token.
Problem problem_of_rank(const Shape& own, Dtype dtype, bool backward, const ranks::Layout& layout) {
  Problem problem = problem_of(own, dtype, backward);
  problem.extents["tokens"] = nn::StreamRows::rows_of_rank(own.tokens(), layout);
  return problem;
}

ranks::Groups groups_of(const ranks::Communicator& group, const ranks::Layout& layout) {
  ranks::Groups groups;
  groups.place = ranks::Place(layout, group.rank());
  groups.tensor = group;
  return groups;
}

/// One rank's tensors, and the whole problem on the host for the check.
template <class Exec>
class Candidate final : public bench::CollectiveCandidate {
 public:
  Candidate(const std::string& variant, const ranks::Communicator& ranks, const Exec& exec,
            Inputs& in)
      : CollectiveCandidate(ranks),
        exec_(exec),
        in_(in),
        own_(part_of(in.shape, group().size())),
        layout_(layout_of(variant, group().size())),
        problem_(problem_of_rank(own_, in.dtype, in.backward, layout_)) {
    problem_.extents["sampled"] = in.masks ? 1 : 0;
    bench::on_all_ranks(group(), [&] { allocate(); });
  }

  bool restore() override {
    if (in_.backward) pass_->restore(own_matrix("dout"));
    return in_.backward;
  }
  void fence() override { exec_.fence("katt::tensor_parallel_block::candidate"); }
  void poison() override { outputs_.poison(); }
  void inputs_changed(std::span<const bench::InputChange> changes, bool /*all*/) override {
    for (const bench::InputChange& change : changes) {
      const auto cut = cuts_.find(change.name);
      if (cut == cuts_.end()) {
        upload_rows(change.name, in_.problem.floats(change.name));
        continue;
      }
      const std::int64_t columns = cut->second.whole_columns;
      upload_weight(change.name, {static_cast<std::int64_t>(change.first) / columns,
                                  static_cast<std::int64_t>(change.count) / columns});
    }
  }
  [[nodiscard]] std::string engine() const override { return pass_->engine(in_.backward); }

 protected:
  void compute() override { in_.backward ? pass_->backward() : pass_->forward(); }

  [[nodiscard]] bench::Errors compare() override {
    const Expected& expected = in_.expected();
    if (in_.masks) {
      upload_rows("dout_sampled", in_.masked_dout());
      pass_->restore(own_matrix("dout_sampled"));
      pass_->backward();
      fence();
    }
    testing::Comparison comparison;
    for (const TensorSpec& spec : output_specs()) {
      if (!spec.is_in(problem_)) continue;
      const std::int64_t columns = spec.shape(in_.problem).back();
      const std::vector<testing::ExpectedValue>& values = expected.at(spec.name);
      const double limit = testing::error_limit(values, in_.dtype);
      std::unordered_map<std::int64_t, double> exact;  // by the index in the whole
      for (const testing::ExpectedValue& value : values) exact.emplace(value.index, value.exact);
      const std::vector<float> made = outputs_.download(spec.name);
      for (std::int64_t i = 0; i < std::ssize(made); ++i) {
        const std::int64_t at = whole_index(spec, i);
        const auto found = exact.find(at);
        if (found == exact.end()) continue;
        comparison.add(spec.name.c_str(), {at / columns, at % columns},
                       made[static_cast<std::size_t>(i)], found->second, limit);
      }
    }
    return comparison.result();
  }

 private:
  /// This rank's rows of the stream.
  [[nodiscard]] ranks::Part rows() const {
    const std::int64_t tokens = in_.shape.tokens();
    if (!layout_.shares_rows()) return {0, tokens};
    return ranks::part_of(tokens, layout_.tensor, group().rank());
  }

  /// Index in the whole output of element i of this rank's.
  [[nodiscard]] std::int64_t whole_index(const TensorSpec& spec, std::int64_t i) const {
    if (!has_tokens(spec)) return cuts_.at(spec.name.substr(1)).whole_index(i);
    const std::int64_t rest = rows().count * in_.shape.hidden;  // behind it, other ranks' rows
    return i < rest ? rows().begin * in_.shape.hidden + i : -1;
  }

  [[nodiscard]] TensorRef<2> own_matrix(std::string_view name) const {
    bench::Tensors all(problem_);
    own_tensors_.add_to(all);
    return all.matrix(name);
  }

  void upload_rows(const std::string& name, std::span<const float> whole) const {
    const std::int64_t hidden = in_.shape.hidden;
    const auto first = whole.begin() + rows().begin * hidden;
    std::vector<float> own(first, first + rows().count * hidden);
    own.resize(static_cast<std::size_t>(problem_.extent("tokens") * hidden), 0.0F);
    own_tensors_.upload(name, own);
  }

  /// Uploads this rank's part of some rows of a whole weight.
  void upload_weight(const std::string& name, ranks::Part changed) const {
    const Cut& cut = cuts_.at(name);
    const std::span<const float> whole = in_.problem.floats(name);
    std::int64_t own = 0;  // rows of this rank before the part
    for (const ranks::Part& part : cut.rows) {
      const std::int64_t begin = std::max(part.begin, changed.begin);
      const std::int64_t end = std::min(part.begin + part.count, changed.begin + changed.count);
      std::vector<float> values;
      for (std::int64_t row = begin; row < end; ++row) {
        const auto first = whole.begin() + row * cut.whole_columns + cut.columns.begin;
        values.insert(values.end(), first, first + cut.columns.count);
      }
      const std::int64_t at = (own + begin - part.begin) * cut.columns.count;
      if (begin < end) own_tensors_.upload_stored(name, values, static_cast<std::size_t>(at));
      own += part.count;
    }
  }

  void allocate() {
    constexpr const char* label = "tensor_parallel_block";
    own_tensors_ = DeviceTensors(label, in_.backend, input_specs(), problem_);
    for (const TensorSpec& spec : input_specs()) {
      if (!in_.problem.has(spec.name)) continue;
      if (has_tokens(spec)) {
        upload_rows(spec.name, in_.problem.floats(spec.name));
        continue;
      }
      cuts_.emplace(spec.name,
                    cut_of(spec, in_.problem, in_.shape, group().size(), group().rank()));
      upload_weight(spec.name, {0, spec.size(in_.problem) / spec.shape(in_.problem).back()});
    }
    outputs_ = DeviceTensors(label, in_.backend, output_specs(), problem_);
    pass_.emplace(exec_, own_, in_.dtype, nn::Kernels{},
                  tensors_of(problem_, own_tensors_, outputs_), in_.backward, false,
                  groups_of(group(), layout_));
    fence();
  }

  Exec exec_;
  Inputs& in_;
  Shape own_;
  ranks::Layout layout_;
  Problem problem_;  ///< of this rank, without values
  DeviceTensors own_tensors_, outputs_;
  std::map<std::string, Cut> cuts_;
  std::optional<Pass<Exec>> pass_;
};

class Case final : public bench::Case {
 public:
  Case(ranks::Communicator group, const Point& point)
      : group_(std::move(group)), in_(point, false) {}

  [[nodiscard]] bench::Work work() const override {
    return {flops(in_.shape, in_.backward), bytes(in_.shape, in_.dtype, in_.backward),
            bench::matrix_ceiling(in_.backend, in_.dtype)};
  }
  [[nodiscard]] Status supports(const Config& /*config*/) const override { return Status::ok(); }
  std::unique_ptr<bench::Candidate> prepare(const Config& config) override {
    return visit_backend(in_.backend, in_.threads,
                         [&]<class Exec>(const Exec& exec) -> std::unique_ptr<bench::Candidate> {
                           return std::make_unique<Candidate<Exec>>(config.variant, group_, exec,
                                                                    in_);
                         });
  }
  std::vector<bench::InputChange> change(std::uint64_t random, bool all) override {
    return in_.change(random, all);
  }

 private:
  ranks::Communicator group_;
  Inputs in_;
};

class TensorParallelBlock final : public bench::CollectiveOperator {
 public:
  [[nodiscard]] std::string name() const override { return "tensor_parallel_block"; }
  [[nodiscard]] std::string summary() const override {
    return "a LLaMA block whose heads and columns ranks share";
  }
  [[nodiscard]] std::vector<bench::AxisSpec> axes() const override {
    std::vector<bench::AxisSpec> axes = block_axes();
    for (bench::AxisSpec& axis : axes) {  // sizes that 2, 4 and 8 ranks can share
      if (axis.name == "hidden") axis.fallback = std::int64_t{512};
      if (axis.name == "heads" || axis.name == "kv_heads") axis.fallback = std::int64_t{8};
    }
    axes.push_back(bench::ranks_axis());
    return axes;
  }
  [[nodiscard]] std::vector<std::string> passes() const override { return {"forward", "backward"}; }
  [[nodiscard]] std::vector<bench::VariantInfo> variants(Backend /*backend*/,
                                                         std::string_view) const override {
    return {
        {fused, "what the model uses; the ranks' parts are summed twice a pass", true},
        {sequence_parallel, "the same, and norms and the residual stream are shared by tokens"}};
  }
  [[nodiscard]] Config resolve(const Point& /*point*/, const Config& config) const override {
    return config.variant == auto_variant ? Config{.variant = fused} : config;
  }
  void validate(const Point& point) const override {
    check_heads(shape_of(point));
    const std::int64_t ranks = point.integer("ranks");
    for (const char* axis : {"heads", "kv_heads", "intermediate"}) {
      if (point.integer(axis) % ranks != 0) {
        throw InputError(std::string(axis) + " " + std::to_string(point.integer(axis)) +
                         ": expected a multiple of the " + std::to_string(ranks) + " ranks");
      }
    }
  }
  [[nodiscard]] bench::Footprint footprint(const Point& point,
                                           const Config& config) const override {
    const Shape whole = shape_of(point);
    const auto ranks = static_cast<int>(point.integer("ranks"));
    const Shape own = part_of(whole, ranks);
    const ranks::Layout layout = layout_of(config.variant, ranks);
    const bool backward = point.pass == "backward";
    const Problem problem = problem_of_rank(own, point.dtype, backward, layout);
    return {
        .tensors = bench::host_bytes(input_specs(), problem_of(whole, point.dtype, backward)) +
                   bench::device_bytes(input_specs(), problem),
        .outputs = bench::device_bytes(output_specs(), problem),
        .workspace = pass_bytes(point, own, problem, {}, ranks::Groups(ranks::Place(layout, 0)))};
  }
  [[nodiscard]] std::unique_ptr<bench::Case> make_case_on(const ranks::Communicator& group,
                                                          const Point& point) const override {
    return std::make_unique<Case>(group, point);
  }
};

}  // namespace

void register_tensor_parallel(bench::Registry& registry) {
  registry.add(std::make_unique<TensorParallelBlock>());
}

}  // namespace katt::llama_block
