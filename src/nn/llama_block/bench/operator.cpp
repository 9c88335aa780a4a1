#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nn/llama_block/bench/inputs.hpp"
#include "nn/llama_block/bench/tensor_parallel.hpp"
#include "nn/llama_block/llama_block.hpp"
#include "op/adapter.hpp"
#include "op/matrix_ceiling.hpp"

namespace katt::llama_block {

namespace {

const nn::Kernels& kernels_of(const Config& config) {
  for (const Composition& composition : compositions()) {
    if (composition.name == config.variant) return composition.kernels;
  }
  throw InputError("llama_block: variant " + config.variant + ": unknown");
}

template <class Exec>
class BlockCandidate final : public bench::Candidate {
 public:
  BlockCandidate(Exec exec, Inputs& in, const nn::Kernels& kernels)
      : exec_(std::move(exec)),
        in_(in),
        outputs_("llama_block", in.backend, output_specs(), in.problem),
        pass_(exec_, in.shape, in.dtype, kernels, tensors_of(in.problem, in.tensors, outputs_),
              in.backward) {
    exec_.fence("katt::llama_block::prepare");
  }

  void run() override { in_.backward ? pass_.backward() : pass_.forward(); }
  bool restore() override {
    if (in_.backward) pass_.restore(in_.matrix("dout"));
    return in_.backward;
  }
  void fence() override { exec_.fence("katt::llama_block::candidate"); }
  void poison() override { outputs_.poison(); }
  bench::Errors verify() override {
    const Expected& expected = in_.expected();
    if (in_.masks) {
      pass_.restore(in_.matrix("dout_sampled"));
      pass_.backward();
      fence();
    }
    testing::Comparison comparison;
    for (const TensorSpec& spec : output_specs()) {
      if (!spec.is_in(in_.problem)) continue;
      testing::add_all(comparison, spec.name.c_str(), outputs_.download(spec.name),
                       spec.shape(in_.problem).back(), expected.at(spec.name), in_.dtype);
    }
    return comparison.result();
  }
  [[nodiscard]] std::string engine() const override { return pass_.engine(in_.backward); }

 private:
  Exec exec_;
  Inputs& in_;
  DeviceTensors outputs_;
  Pass<Exec> pass_;
};

class BlockCase final : public bench::Case {
 public:
  explicit BlockCase(const Point& point) : in_(point) {}

  [[nodiscard]] bench::Work work() const override {
    return {flops(in_.shape, in_.backward), bytes(in_.shape, in_.dtype, in_.backward),
            bench::matrix_ceiling(in_.backend, in_.dtype)};
  }

  [[nodiscard]] Status supports(const Config& config) const override {
    if (!config.setting.empty()) return Status::skipped("llama_block takes no tile");
    try {
      visit_backend(in_.backend, in_.threads, [&]<class Exec>(const Exec& exec) {
        const Pass<Exec> rehearsal(exec, in_.shape, in_.dtype, kernels_of(config),
                                   shapes_of(in_.problem), in_.backward, true);
      });
    } catch (const InputError& error) {
      return Status::skipped(error.what());
    }
    return Status::ok();
  }

  std::unique_ptr<bench::Candidate> prepare(const Config& config) override {
    return visit_backend(in_.backend, in_.threads,
                         [&]<class Exec>(const Exec& exec) -> std::unique_ptr<bench::Candidate> {
                           return std::make_unique<BlockCandidate<Exec>>(exec, in_,
                                                                         kernels_of(config));
                         });
  }

  std::vector<bench::InputChange> change(std::uint64_t random, bool all) override {
    return in_.change(random, all);
  }

 private:
  Inputs in_;
};

class BlockOperator final : public bench::Operator {
 public:
  [[nodiscard]] std::string name() const override { return "llama_block"; }
  [[nodiscard]] std::string summary() const override {
    return "a whole LLaMA block, composed of naive or of fused operators";
  }

  [[nodiscard]] std::vector<bench::AxisSpec> axes() const override { return block_axes(); }

  [[nodiscard]] std::vector<std::string> passes() const override { return {"forward", "backward"}; }

  [[nodiscard]] std::vector<bench::VariantInfo> variants(Backend /*backend*/,
                                                         std::string_view) const override {
    std::vector<bench::VariantInfo> infos;
    for (const Composition& one : compositions()) {
      infos.push_back({one.name, one.description, infos.empty()});
    }
    return infos;
  }

  void validate(const Point& point) const override { check_heads(shape_of(point)); }

  [[nodiscard]] Config resolve(const Point& /*point*/, const Config& config) const override {
    return config.variant == auto_variant ? Config{.variant = "fused"} : config;
  }

  [[nodiscard]] bench::Footprint footprint(const Point& point,
                                           const Config& config) const override {
    const Shape s = shape_of(point);
    const Problem problem = problem_of(s, point.dtype, point.pass == "backward");
    return {.tensors = bench::device_bytes(input_specs(), problem) +
                       bench::host_bytes(input_specs(), problem),
            .outputs = bench::device_bytes(output_specs(), problem),
            .workspace = pass_bytes(point, s, problem, kernels_of(config))};
  }

  [[nodiscard]] std::unique_ptr<bench::Case> make_case(const Point& point) const override {
    return std::make_unique<BlockCase>(point);
  }

  void run_file(const io::CaseFile& /*in*/, const bench::RunOptions& /*options*/,
                io::TensorFile& /*out*/) const override {
    throw InputError(
        "llama_block: is made for sweeps, expected one of the operators that it is composed of, or "
        "katt logits for a model");
  }
};

}  // namespace

void register_op(bench::Registry& registry) {
  registry.add(std::make_unique<BlockOperator>());
  register_tensor_parallel(registry);
}

}  // namespace katt::llama_block
