#include "op/tensor_operator.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/printable.hpp"
#include "op/reference/new_values.hpp"

namespace katt::bench {
namespace {

/// The value of an axis at a point; where the point lacks it, the one that it follows, or its default.
const AxisValue& value_of(const AxisSpec& axis, const Point& point) {
  auto found = point.values.find(axis.name);
  if (found == point.values.end()) found = point.values.find(axis.follows);
  return found == point.values.end() ? axis.fallback : found->second;
}

/// Reads an input of a file that the problem does not hold yet.
void read(const io::CaseFile& in, const TensorSpec& spec, Problem& problem) {
  if (spec.derived || problem.has(spec.name)) return;
  if (!spec.when.empty() && !in.has(spec.name)) {
    problem.extents[spec.when] = 0;
    return;
  }
  const bool is_known = std::all_of(spec.axes.begin(), spec.axes.end(), [&](const auto& axis) {
    return op::extent_in(axis) > 0 || problem.extents.contains(axis);
  });
  const auto shape = is_known
                         ? spec.shape(problem)
                         : in.shape(spec.name, static_cast<int>(spec.axes.size()), spec.letters);
  std::vector<std::int64_t> wanted;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    wanted.push_back(problem.extents.emplace(spec.axes[i], shape[i]).first->second);
  }
  if (!spec.when.empty()) problem.extents.emplace(spec.when, 1);
  if (is_integer(spec.element)) {
    problem.integers[spec.name] = in.integers(spec.name, wanted, spec.letters).values;
  } else {
    problem.values[spec.name] = in.floats(spec.name, wanted, spec.letters).values;
  }
}

}  // namespace

Problem problem_of(const TensorOperatorData& op, const Point& point) {
  Problem problem = op.usual_problem(point.pass == "backward");
  problem.dtype = point.dtype;
  for (const AxisSpec& axis : op.axes()) {
    const AxisValue& value = value_of(axis, point);
    if (const auto* integer = std::get_if<std::int64_t>(&value)) {
      problem.extents[axis.name] = *integer;
    } else if (const auto* real = std::get_if<double>(&value)) {
      problem.parameters[axis.name] = *real;
    } else {
      const auto& name = std::get<std::string>(value);
      const auto at = std::find(axis.choices.begin(), axis.choices.end(), name);
      if (at == axis.choices.end()) throw InputError(axis.name + " " + name + ": is unknown");
      problem.extents[axis.name] = at - axis.choices.begin();
    }
  }
  op.finish(problem);
  return problem;
}

Problem read_problem(const TensorOperatorData& op, const io::CaseFile& in) {
  if (const std::string held = in.text("op", op.name); held != op.name) {
    in.reject("op", "holds \"" + io::impl::printable(held) + "\", expected " + op.name);
  }
  Problem problem;
  problem.dtype = in.dtype();
  for (const auto& [name, number] : op.parameters) {
    const double value = problem.parameters[name] = in.real(name);
    if (value >= number.minimum && std::isfinite(value)) continue;
    in.reject(name, "holds " + std::to_string(value) + ", expected a finite number" +
                        (number.minimum == 0 ? " of at least 0" : ""));
  }
  for (const AxisSpec& axis : op.axes()) {
    if (std::holds_alternative<std::int64_t>(axis.fallback)) {
      // -1 may stand for none; no other negative number has a meaning
      const std::int64_t value = in.integer(axis.name, 0);
      if (value < 0 && static_cast<double>(value) < axis.minimum) {
        in.reject(axis.name, "holds " + std::to_string(value) + ", expected at least " +
                                 to_text(axis.minimum));
      }
    }
    const auto* fallback = std::get_if<double>(&axis.fallback);
    if (fallback == nullptr) continue;
    const double value = in.real(axis.name, *fallback);
    if (!(value >= axis.minimum && value <= axis.maximum)) {
      in.reject(axis.name, "holds " + std::to_string(value) + ", expected " +
                               std::to_string(axis.minimum) + " to " +
                               std::to_string(axis.maximum));
    }
    problem.parameters[axis.name] = value;
  }
  for (const TensorSpec& spec : op.forward.inputs) read(in, spec, problem);
  if (op.read) op.read(in, problem);
  op.finish(problem);
  try {
    op.forward.check(shapes_of(op.forward, problem, auto_variant));
  } catch (const InputError& error) {
    throw InputError(in.path().string() + ": " + error.what());
  }
  return problem;
}

namespace {

/// A variant made ready on the inputs of a case.
class TensorCandidate final : public Candidate {
 public:
  TensorCandidate(const TensorOperatorData& op, std::unique_ptr<DecidedCall> call,
                  DeviceOutputs outputs, const DeviceInputs& inputs,
                  std::function<Errors(const HostValues&)> check, Backend backend)
      : call_(std::move(call)),
        outputs_(std::move(outputs)),
        inputs_(inputs),
        check_(std::move(check)),
        workspace_("katt::" + op.name + "::workspace", backend, call_->workspace_bytes()) {
    if (!call_->status().is_ok()) throw InputError(call_->status().reason());
  }

  void run() override { call_->launch(workspace_.workspace()); }
  void fence() override { call_->fence(); }
  void poison() override { outputs_.poison(); }
  Errors verify() override { return check_(outputs_.download()); }
  void inputs_changed(std::span<const InputChange>, bool all) override {
    if (!all) return;
    inputs_.renew(outputs_.own(), call_->config().variant);
    outputs_.renew();
  }
  [[nodiscard]] std::string engine() const override { return call_->engine(); }

 private:
  std::unique_ptr<DecidedCall> call_;
  DeviceOutputs outputs_;
  const DeviceInputs& inputs_;
  std::function<Errors(const HostValues&)> check_;
  Buffer workspace_;
};

Work work_of(const Pass& pass, const Problem& problem, Backend backend) {
  return pass.work(shapes_of(pass, problem), backend);
}

/// A call without memory.
std::unique_ptr<DecidedCall> decided(const Pass& pass, const Problem& problem, Backend backend,
                                     int threads, const Config& config) {
  return pass.decide(backend, threads, shapes_of(pass, problem, config.variant), config);
}

Status supports_of(const TensorOperatorData& op, const Problem& problem, Backend backend,
                   int threads, const Config& config) {
  if (op.supports) {
    if (Status status = op.supports(problem); !status.is_ok()) return status;
  }
  const Pass& pass = op.pass(problem.backward);
  return decided(pass, problem, backend, threads, config)->status();
}

class TensorCase final : public Case {
 public:
  TensorCase(const TensorOperatorData& op, const Point& point)
      : op_(op),
        pass_(op.pass(point.pass == "backward")),
        problem_(generated(op, pass_, point)),
        inputs_(op.name, pass_, problem_, point.backend,
                op.derive_on(point.backend, point.threads)),
        backend_(point.backend),
        threads_(point.threads) {}

  [[nodiscard]] Work work() const override { return work_of(pass_, problem_, backend_); }

  [[nodiscard]] Status supports(const Config& config) const override {
    return supports_of(op_, problem_, backend_, threads_, config);
  }

  std::unique_ptr<Candidate> prepare(const Config& config) override {
    const std::string variant =
        decided(pass_, problem_, backend_, threads_, config)->config().variant;
    DeviceTensors own;
    {
      const memory::Aside aside;
      expect();
      own = inputs_.of_variant(variant);
    }
    DeviceOutputs outputs(op_.name, pass_, problem_, backend_, 0, std::move(own));
    auto call =
        pass_.decide(backend_, threads_, tensors_of(pass_, problem_, inputs_, outputs), config);
    return std::make_unique<TensorCandidate>(
        op_, std::move(call), std::move(outputs), inputs_,
        [this](const HostValues& made) { return verify(made); }, backend_);
  }

  std::vector<InputChange> change(std::uint64_t random, bool all) override {
    std::vector<const TensorSpec*> specs;
    std::vector<testing::RandomInput> inputs;
    for (const TensorSpec& spec : pass_.inputs) {
      if (!(all ? is_random(spec) : is_free(spec))) continue;
      specs.push_back(&spec);
      inputs.push_back({.name = spec.seen_as,
                        .values = problem_.values.find(spec.name)->second,
                        .row = spec.shape(problem_).back()});
    }
    std::vector<InputChange> changes = testing::change_values(inputs, random, all);
    if (changes.empty()) return changes;
    expected_.reset();
    for (const TensorSpec& spec : pass_.own) problem_.values.erase(spec.name);  // the reference's
    if (all) {
      derive_again(changes);
      return changes;
    }
    for (std::size_t i = 0; i < specs.size(); ++i) {
      inputs_.renew(specs[i]->name, static_cast<std::int64_t>(changes[i].first) / inputs[i].row,
                    static_cast<std::int64_t>(changes[i].count) / inputs[i].row);
    }
    return changes;
  }
  [[nodiscard]] bool runs_in_place() const override { return problem_.extent("in_place") != 0; }

  std::optional<ForeignCase> foreign(bool with_derived) override {
    if (op_.is_foreign && !op_.is_foreign(problem_)) return std::nullopt;
    expect();
    ForeignCase foreign;
    if (op_.rule_file) foreign.rule_file = op_.rule_file(problem_);
    foreign.parameters = {problem_.parameters.begin(), problem_.parameters.end()};
    for (const TensorSpec& spec : pass_.inputs) {
      if (!add(foreign.inputs, spec, with_derived && spec.derived && spec.held)) continue;
      if (spec.derived && !derived_.contains(spec.name)) {
        derived_[spec.name] = inputs_.download(spec.name);
      }
      foreign.inputs.back().values =
          spec.derived ? std::span<const float>(derived_[spec.name]) : problem_.floats(spec.name);
      foreign.inputs.back().integers = problem_.indices(spec.name);
    }
    const std::string baseline = pass_.variants(backend_).front().name;
    for (const TensorSpec& spec : pass_.own) {
      if (spec.variant != baseline || !add(foreign.inputs, spec)) continue;
      if (!derived_.contains(spec.name)) {
        derived_[spec.name] = inputs_.of_variant(baseline).download(spec.name);
      }
      foreign.inputs.back().values = derived_[spec.name];
    }
    std::vector<std::string> names;
    for (const TensorSpec& spec : pass_.outputs) {
      if (spec.asked_of_peers && add(foreign.outputs, spec)) names.push_back(spec.name);
    }
    foreign.verify = [this, names](std::span<const std::vector<float>> outputs) {
      HostValues made;
      for (std::size_t i = 0; i < names.size(); ++i) made[names[i]] = outputs[i];
      return verify(made);
    };
    return foreign;
  }

 private:
  static Problem generated(const TensorOperatorData& op, const Pass& pass, const Point& point) {
    Problem problem = problem_of(op, point);
    generate(problem, pass.inputs, point.seed);
    return problem;
  }
  void expect() {
    if (expected_) return;
    for (auto& [name, values] : inputs_.of_variant("reference").download()) {
      problem_.values[name] = std::move(values);
    }
    expected_ = op_.expected(problem_);
  }
  /// True for an input of random values.
  [[nodiscard]] bool is_random(const TensorSpec& spec) const {
    return !spec.derived && !spec.values && spec.is_in(problem_) &&
           problem_.floats(spec.name).size() > 1;
  }
  /// True for such an input that nothing is derived of, in memory of its own.
  [[nodiscard]] bool is_free(const TensorSpec& spec) const {
    const auto made_of_it = [&](const TensorSpec& other) {
      if (!other.is_in(problem_)) return false;
      const std::vector<std::string> sources = split(other.sources, ' ');
      return std::ranges::find(sources, spec.name) != sources.end();
    };
    return is_random(spec) && spec.held && !runs_in_place() &&
           std::ranges::none_of(pass_.inputs, made_of_it) &&
           std::ranges::none_of(pass_.own, made_of_it);
  }
  /// After a change of all inputs: the others here, and for other programs.
  void derive_again(std::vector<InputChange>& changes) {
    inputs_.renew();
    for (auto& [name, values] : derived_) {
      auto spec = std::ranges::find(pass_.inputs, name, &TensorSpec::name);
      const bool is_own = spec == pass_.inputs.end();
      if (is_own) spec = std::ranges::find(pass_.own, name, &TensorSpec::name);
      std::ranges::copy(
          is_own ? inputs_.of_variant(spec->variant).download(name) : inputs_.download(name),
          values.begin());  // other programs have been given this memory
      changes.push_back({.name = spec->seen_as, .first = 0, .count = values.size()});
    }
  }
  [[nodiscard]] Errors verify(const HostValues& made) {
    expect();
    return compare(pass_, problem_, *expected_, made, op_.compare);
  }
  /// Adds a tensor for another program, where it sees this one.
  bool add(std::vector<ForeignTensor>& tensors, const TensorSpec& spec, bool hidden = false) const {
    if (!(spec.foreign || hidden) || !spec.is_in(problem_)) return false;
    tensors.push_back(
        {.name = spec.seen_as, .shape = spec.shape(problem_), .dtype = spec.dtype(problem_)});
    return true;
  }

  const TensorOperatorData& op_;
  const Pass& pass_;
  Problem problem_;
  DeviceInputs inputs_;
  std::optional<testing::Expected> expected_;
  HostValues derived_;  ///< of foreign(), whose results point here
  Backend backend_;
  int threads_;
};

class TensorOperator final : public Operator {
 public:
  explicit TensorOperator(const TensorOperatorData& op) : op_(op) {}

  [[nodiscard]] std::string name() const override { return op_.name; }
  [[nodiscard]] std::string summary() const override { return op_.summary; }
  [[nodiscard]] std::vector<AxisSpec> axes() const override { return op_.axes(); }
  [[nodiscard]] std::vector<std::string> passes() const override { return {"forward", "backward"}; }
  void add_rule(const std::filesystem::path& path) const override {
    if (!op_.add_rule) return Operator::add_rule(path);
    op_.add_rule(path);
  }
  void validate(const Point& point) const override {
    if (op_.validate) op_.validate(problem_of(op_, point));
  }

  [[nodiscard]] std::vector<VariantInfo> variants(Backend backend,
                                                  std::string_view pass) const override {
    return op_.pass(pass == "backward").variants(backend);
  }

  [[nodiscard]] Config resolve(const Point& point, const Config& config) const override {
    const Problem problem = problem_of(op_, point);
    return decided(op_.pass(problem.backward), problem, point.backend, point.threads, config)
        ->config();
  }

  [[nodiscard]] Status supports(const Point& point, const Config& config) const override {
    return supports_of(op_, problem_of(op_, point), point.backend, point.threads, config);
  }

  [[nodiscard]] std::vector<CaseTensor> case_tensors() const override {
    return bench::case_tensors(op_);
  }

  [[nodiscard]] std::optional<Work> work(const Point& point) const override {
    const Problem problem = problem_of(op_, point);
    return work_of(op_.pass(problem.backward), problem, point.backend);
  }

  [[nodiscard]] std::optional<PresetTile> preset(const Point& point, std::string_view variant,
                                                 std::string_view name) const override {
    const Problem problem = problem_of(op_, point);
    const Pass& pass = op_.pass(problem.backward);
    return pass.preset(point.backend, point.threads, shapes_of(pass, problem), variant, name);
  }

  [[nodiscard]] Footprint footprint(const Point& point, const Config& config) const override {
    const Problem problem = problem_of(op_, point);
    const Pass& pass = op_.pass(problem.backward);
    Footprint bytes;
    bytes.outputs = device_bytes(pass.outputs, problem);
    bytes.tensors =  // but for those that lie in an output
        device_bytes(pass.inputs, problem) + host_bytes(pass.inputs, problem);
    const auto call = decided(pass, problem, point.backend, point.threads, config);
    bytes.workspace = call->workspace_bytes();
    for (const TensorSpec& spec : pass.own) {
      if (spec.variant != call->config().variant) continue;
      (spec.kept ? bytes.workspace : bytes.outputs) += spec.bytes(problem);
    }
    return bytes;
  }

  [[nodiscard]] std::unique_ptr<Case> make_case(const Point& point) const override {
    return std::make_unique<TensorCase>(op_, point);
  }

  void run_file(const io::CaseFile& in, const RunOptions& options,
                io::TensorFile& out) const override {
    Problem problem = read_problem(op_, in);
    const TensorSpecs& backward = op_.backward.inputs;
    const bool needs_dout = std::any_of(backward.begin(), backward.end(),
                                        [](const TensorSpec& spec) { return spec.name == "dout"; });
    const bool has_backward = !needs_dout || in.has("dout");
    if (has_backward && needs_dout) problem.extents["for_backward"] = 1;
    const std::string ran = run(problem, options, out);
    if (!has_backward) return;
    for (const TensorSpec& spec : backward) {
      if (problem.has(spec.reads)) problem.values[spec.name] = problem.values[spec.reads];
    }
    for (const TensorSpec& spec : op_.backward.own) {  // what the forward pass of a variant leaves
      if (spec.kept && !spec.when.empty()) problem.extents[spec.when] = spec.variant == ran ? 1 : 0;
    }
    problem.backward = true;
    for (const TensorSpec& spec : backward) read(in, spec, problem);
    run(problem, options, out);
  }

 private:
  /// Runs a pass to its end and puts its outputs into the file and the problem. Returns the variant.
  std::string run(Problem& problem, const RunOptions& options, io::TensorFile& out) const {
    const Pass& pass = op_.pass(problem.backward);
    const DeviceInputs inputs(op_.name, pass, problem, options.backend,
                              op_.derive_on(options.backend, options.threads));
    const Config config = completed(pass, problem, options);
    const std::string variant =
        decided(pass, problem, options.backend, options.threads, config)->config().variant;
    const DeviceOutputs outputs(op_.name, pass, problem, options.backend, 0,
                                inputs.of_variant(variant));
    const auto call = pass.decide(options.backend, options.threads,
                                  tensors_of(pass, problem, inputs, outputs), config);
    run_to_end(op_.name, *call, options.backend);
    record_variant(out, call->config(), call->parameters(), pass.backward);
    HostValues made = outputs.download();
    for (const TensorSpec& spec : pass.outputs) {
      if (spec.is_in(problem) && spec.foreign) {
        out.set(spec.name, {spec.shape(problem), made[spec.name]});
      }
    }
    problem.values.merge(made);
    return variant;
  }

  /// The configuration that was asked for; extents that it leaves open, 0, are those of the variant's default, or of
  /// its first setting with the others.
  [[nodiscard]] Config completed(const Pass& pass, const Problem& problem,
                                 const RunOptions& options) const {
    const Setting& asked = options.config.setting;
    if (std::ranges::find(asked, 0) == asked.end()) return options.config;
    const Config usual =
        decided(pass, problem, options.backend, options.threads, {options.config.variant, {}})
            ->config();
    std::vector<Setting> settings{usual.setting};
    for (const VariantInfo& info : pass.variants(options.backend)) {
      if (info.name != usual.variant) continue;
      settings.insert(settings.end(), info.settings.begin(), info.settings.end());
    }
    const auto found = std::ranges::find_if(settings, [&](const Setting& setting) {
      return std::ranges::equal(setting, asked,
                                [](int has, int wants) { return wants == 0 || has == wants; });
    });
    return {usual.variant, found == settings.end() ? asked : *found};
  }

  const TensorOperatorData& op_;
};

}  // namespace

Problem TensorOperatorData::usual_problem(bool is_backward) const {
  Problem problem;
  problem.backward = is_backward;
  for (const auto& [name, number] : parameters) problem.parameters[name] = number.fallback;
  for (const AxisSpec& axis : axes()) {
    if (const auto* integer = std::get_if<std::int64_t>(&axis.fallback)) {
      problem.extents[axis.name] = *integer;
    } else if (const auto* real = std::get_if<double>(&axis.fallback)) {
      problem.parameters[axis.name] = *real;
    }
  }
  return problem;
}

std::vector<CaseTensor> case_tensors(const TensorOperatorData& op) {
  std::vector<CaseTensor> tensors;
  for (const TensorSpec& spec : op.forward.inputs) {
    if (spec.derived) continue;
    tensors.push_back({CaseTensor::Role::input, spec.name, spec.letters, !spec.when.empty()});
  }
  for (const TensorSpec& spec : op.forward.outputs) {
    if (spec.foreign) tensors.push_back({CaseTensor::Role::output, spec.name, spec.letters});
  }
  for (const TensorSpec& spec : op.backward.outputs) {
    if (!spec.foreign) continue;
    tensors.push_back({CaseTensor::Role::gradient, spec.name, spec.letters, !spec.when.empty()});
  }
  return tensors;
}

std::unique_ptr<Operator> make_tensor_operator(const TensorOperatorData& data) {
  return std::make_unique<TensorOperator>(data);
}

}  // namespace katt::bench
