#include "nn/llama_block/bench/tensor_parallel.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
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
Cut cut_of(const Spec& spec, const Shape& s, int ranks, int rank) {
  const auto part = [&](std::int64_t n) { return ranks::Part{n / ranks * rank, n / ranks}; };
  const auto after = [](std::int64_t begin, ranks::Part p) {
    return ranks::Part{begin + p.begin, p.count};
  };
  const ranks::Part all_rows{0, spec.rows}, all_columns{0, spec.columns};
  const std::string name = spec.name;
  const std::int64_t kv = s.kv_heads * s.head_dim;
  Cut cut{{all_rows}, all_columns, spec.columns};
  if (name == "qkv") {
    cut.rows = {part(s.q_size()), after(s.q_size(), part(kv)), after(s.q_size() + kv, part(kv))};
  } else if (name == "gate_up") {
    cut.rows = {part(s.intermediate), after(s.intermediate, part(s.intermediate))};
  } else if (name == "o" || name == "down") {
    cut.columns = part(spec.columns);
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
        layout_(layout_of(variant, group().size())) {
    bench::on_all_ranks(group(), [&] { allocate(); });
  }

  bool restore() override {
    if (in_.backward) pass_->restore(own_tensors_.matrix("dout"));
    return in_.backward;
  }
  void fence() override { exec_.fence("katt::tensor_parallel_block::candidate"); }
  void poison() override {
    outputs_.poison();
    gradients_.poison();
  }
  void inputs_changed(std::span<const bench::InputChange> changes, bool /*all*/) override {
    for (const bench::InputChange& change : changes) {
      const auto cut = cuts_.find(change.name);
      if (cut == cuts_.end()) {
        upload_rows(change.name, in_.values.at(change.name));
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
      pass_->restore(own_tensors_.matrix("dout_sampled"));
      pass_->backward();
      fence();
    }
    testing::Comparison comparison;
    compare_rows(comparison, expected);
    if (!in_.backward) return comparison.result();
    for (const Spec& spec : weight_specs(in_.shape)) {
      const std::string name = std::string("d") + spec.name;
      const std::vector<testing::ExpectedValue>& values = expected.at(name);
      const double limit = testing::error_limit(values, in_.dtype);
      const std::vector<float> made = gradients_[name].download();
      std::map<std::int64_t, float> at;
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(made.size()); ++i) {
        at.emplace(cuts_.at(spec.name).whole_index(i), made[static_cast<std::size_t>(i)]);
      }
      for (const testing::ExpectedValue& value : values) {
        const auto found = at.find(value.index);
        if (found == at.end()) continue;  // another rank's
        comparison.add(name.c_str(), {value.index / spec.columns, value.index % spec.columns},
                       found->second, value.exact, limit);
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

  /// Rows of the stream as the ranks hold them: equally many each, zero behind the last token.
  [[nodiscard]] std::vector<Spec> with_own_rows(std::vector<Spec> specs) const {
    const std::int64_t own = nn::StreamRows::rows_of_rank(in_.shape.tokens(), layout_);
    for (Spec& spec : specs) {
      const std::string name = spec.name;
      if (name == "stream" || name == "delta" || name.starts_with("dout") || name == "h" ||
          name == "delta_out" || name == "dx") {
        spec.rows = own;
      }
    }
    return specs;
  }

  void upload_rows(const std::string& name, const std::vector<float>& whole) const {
    const std::int64_t hidden = in_.shape.hidden;
    const auto first = whole.begin() + rows().begin * hidden;
    std::vector<float> own(first, first + rows().count * hidden);
    own.resize(static_cast<std::size_t>(own_tensors_.matrix(name).size()), 0.0F);
    own_tensors_[name].upload(own);
  }

  /// What this rank has of some rows of a whole weight.
  void upload_weight(const std::string& name, ranks::Part changed) const {
    const Cut& cut = cuts_.at(name);
    const std::vector<float>& whole = in_.values.at(name);
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
      if (begin < end) own_tensors_[name].upload_stored(values, static_cast<std::size_t>(at));
      own += part.count;
    }
  }

  /// The outputs with the rows of a rank.
  void compare_rows(testing::Comparison& comparison, const Expected& expected) const {
    const std::int64_t hidden = in_.shape.hidden;
    for (const Spec& spec : output_specs(in_.shape, in_.backward)) {
      const std::vector<testing::ExpectedValue>& values = expected.at(spec.name);
      const double limit = testing::error_limit(values, in_.dtype);
      const std::vector<float> made = outputs_[spec.name].download();
      for (const testing::ExpectedValue& value : values) {
        const std::int64_t row = value.index / hidden - rows().begin;
        if (row < 0 || row >= rows().count) continue;  // another rank's
        comparison.add(spec.name, {value.index / hidden, value.index % hidden},
                       made[static_cast<std::size_t>(row * hidden + value.index % hidden)],
                       value.exact, limit);
      }
    }
  }

  void allocate() {
    const std::string label = "katt::tensor_parallel_block::";
    std::vector<Spec> inputs = with_own_rows(input_specs(own_, in_.backward));
    if (in_.masks) {
      inputs.push_back({"dout_sampled", inputs.back().rows, own_.hidden});
    }
    own_tensors_ = Matrices(in_.backend, in_.dtype, inputs, "", label);
    for (const Spec& spec : weight_specs(in_.shape)) {
      cuts_.emplace(spec.name, cut_of(spec, in_.shape, group().size(), group().rank()));
      upload_weight(spec.name, {0, spec.rows});
    }
    for (const char* name : {"stream", "delta", "dout"}) {
      if (in_.values.contains(name)) upload_rows(name, in_.values.at(name));
    }
    outputs_ = Matrices(in_.backend, in_.dtype, with_own_rows(output_specs(own_, in_.backward)), "",
                        label);
    if (in_.backward) {
      gradients_ = Matrices(in_.backend, Dtype::f32, weight_specs(own_), "d", label);
    }
    pass_.emplace(exec_, own_, in_.dtype, nn::Kernels{},
                  tensors_of(own_tensors_, outputs_, gradients_, in_.backward), in_.backward, false,
                  groups_of(group(), layout_));
    fence();
  }

  Exec exec_;
  Inputs& in_;
  Shape own_;
  ranks::Layout layout_;
  Matrices own_tensors_, outputs_, gradients_;
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
    check_block(point);
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
    const ranks::Groups groups(ranks::Place(layout_of(config.variant, ranks), 0));
    const bool backward = point.pass == "backward";
    const std::size_t element = size_of(point.dtype);
    return {.tensors = elements(input_specs(whole, backward)) * sizeof(float) +
                       elements(input_specs(own, backward)) * element,
            .outputs = elements(output_specs(own, backward)) * element +
                       (backward ? elements(weight_specs(own)) * sizeof(float) : 0),
            .workspace = pass_bytes(point, own, {}, groups)};
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
