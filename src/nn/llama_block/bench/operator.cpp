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
        outputs_(in.backend, in.dtype, output_specs(in.shape, in.backward)),
        gradients_(in.backward ? Matrices(in.backend, Dtype::f32, weight_specs(in.shape), "d")
                               : Matrices()),
        pass_(exec_, in.shape, in.dtype, kernels,
              tensors_of(in.tensors, outputs_, gradients_, in.backward), in.backward) {
    exec_.fence("katt::llama_block::prepare");
  }

  void run() override { in_.backward ? pass_.backward() : pass_.forward(); }
  bool restore() override {
    if (in_.backward) pass_.restore(in_.tensors.matrix("dout"));
    return in_.backward;
  }
  void fence() override { exec_.fence("katt::llama_block::candidate"); }
  void poison() override {
    outputs_.poison();
    gradients_.poison();
  }
  bench::Errors verify() override {
    const Expected& expected = in_.expected();
    if (in_.masks) {
      pass_.restore(in_.sampled.matrix("dout_sampled"));
      pass_.backward();
      fence();
    }
    testing::Comparison comparison;
    outputs_.compare(comparison, expected, in_.dtype);
    gradients_.compare(comparison, expected, in_.dtype);
    return comparison.result();
  }
  [[nodiscard]] std::string engine() const override { return pass_.engine(in_.backward); }

 private:
  Exec exec_;
  Inputs& in_;
  Matrices outputs_, gradients_;
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
                                   shapes_of(in_.shape, in_.dtype), in_.backward, true);
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

  void validate(const Point& point) const override { check_block(point); }

  [[nodiscard]] Config resolve(const Point& /*point*/, const Config& config) const override {
    return config.variant == auto_variant ? Config{.variant = "fused"} : config;
  }

  [[nodiscard]] bench::Footprint footprint(const Point& point,
                                           const Config& config) const override {
    const Shape s = shape_of(point);
    const bool backward = point.pass == "backward";
    const std::size_t element = size_of(point.dtype);
    const std::size_t dout =
        backward ? element * static_cast<std::size_t>(s.tokens() * s.hidden) : 0;
    bench::Footprint bytes;
    bytes.tensors = elements(input_specs(s, backward)) * (element + sizeof(float)) + dout;
    bytes.outputs = elements(output_specs(s, backward)) * element +
                    (backward ? elements(weight_specs(s)) * sizeof(float) : 0);
    bytes.workspace = pass_bytes(point, s, kernels_of(config));
    return bytes;
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
