#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/execution.hpp"
#include "nn/llama_block/bench/inputs.hpp"
#include "op/adapter.hpp"
#include "op/collective.hpp"
#include "op/matrix_ceiling.hpp"
#include "op/reference/fill.hpp"
#include "training/trainer.hpp"

/// A training step of a LLaMA over ranks, in every layout (training/trainer.hpp), with all
/// messages, waits and memory of the layout.
namespace katt::training_step {

namespace {

using bench::Point;

constexpr const char* trainer = "trainer";

nn::LlamaConfig config_of(const Point& point) {
  nn::LlamaConfig config;
  config.vocab_size = point.integer("vocab");
  config.hidden_size = point.integer("hidden");
  config.intermediate_size = point.integer("intermediate");
  config.num_hidden_layers = point.integer("layers");
  config.num_attention_heads = point.integer("heads");
  config.num_key_value_heads = point.integer("kv_heads");
  config.head_dim = point.integer("head_dim");
  config.max_position_embeddings = point.integer("seq_q");
  return config;
}

training::TrainOptions options_of(const Point& point) {
  training::TrainOptions options;
  options.shape = {.batch = point.integer("batch"), .seq = point.integer("seq_q")};
  options.accumulation = point.integer("accumulation");
  options.dtype = point.dtype;
  options.schedule.rate = 1e-4;
  return options;
}

ranks::Layout layout_of(const Point& point) {
  const auto part = [&](const char* axis) { return static_cast<int>(point.integer(axis)); };
  ranks::Layout layout = ranks::layout_of(part("ranks"), part("tensor"), part("pipeline"),
                                          part("context"), point.integer("zero") != 0);
  layout.sequence_parallel = point.integer("sequence_parallel") != 0;
  if (point.integer("ulysses") != 0) layout.context_variant = ranks::ContextVariant::ulysses;
  layout.virtual_stages = part("virtual_stages");
  return layout;
}

/// Random tokens of a few steps.
training::TokenData data_of(const nn::LlamaConfig& config, const training::TrainOptions& options,
                            std::uint64_t seed) {
  const std::int64_t count = 4 * options.shape.tokens() * options.accumulation + 1;
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::int32_t>(testing::hash(seed, i) %
                                          static_cast<std::uint64_t>(config.vocab_size));
  }
  return {std::move(tokens), config.vocab_size, "training_step"};
}

/// The text that all candidates of a case read.
struct Text {
  std::uint64_t seed;
  training::TokenData data;

  Text(const Point& point, std::uint64_t seed_of_text)
      : seed(seed_of_text), data(data_of(config_of(point), options_of(point), seed)) {}
};

/// A path that no file can have: the parameters are random.
constexpr const char* no_checkpoint = "/dev/null/none";

template <class Exec>
class Candidate final : public bench::CollectiveCandidate {
 public:
  Candidate(const ranks::Communicator& ranks, const Exec& exec, const Point& point,
            const Text& text)
      : CollectiveCandidate(ranks),
        exec_(exec),
        config_(config_of(point)),
        options_(options_of(point)),
        seed_(point.seed),
        text_(text),
        read_{{0, text.seed}} {
    training::TrainOptions shared = options_;
    shared.groups = ranks::Groups(group(), layout_of(point));
    bench::on_all_ranks(group(), [&] {
      trainer_ =
          std::make_unique<training::Trainer<Exec>>(exec_, config_, shared, no_checkpoint, seed_,
                                                    nn::Pool<Exec>("katt::training_step::pool"));
    });
  }

  void fence() override { exec_.fence("katt::training_step::candidate"); }
  /// A step overwrites the state of the last one: another one has to follow.
  void poison() override { awaited_ = trainer_->steps() + 1; }
  void inputs_changed(std::span<const bench::InputChange> /*changes*/, bool /*all*/) override {
    read_.push_back({trainer_->steps(), text_.seed});
    awaited_ = trainer_->steps() + 1;
  }
  [[nodiscard]] std::string engine() const override { return "dist"; }

 protected:
  void compute() override { (void)trainer_->step(text_.data); }

  /// Counts the steps after the first one, which touches all memory.
  [[nodiscard]] double idle_fraction() const override {
    double sum = 0;
    const std::vector<training::StepLog>& log = trainer_->log();
    for (std::size_t s = 1; s < log.size(); ++s) sum += log[s].pipeline_idle;
    return sum / std::max<double>(1, static_cast<double>(log.size()) - 1);
  }

  /// Compares the last loss and norm with those of one rank after as many steps on the same texts.
  [[nodiscard]] bench::Errors compare() override {
    if (group().rank() > 0) return {};
    if (trainer_->steps() < awaited_) {
      return {.status = Status::failed("no step has followed the last change")};
    }
    follow();
    const training::StepLog& expected = alone_->log().back();
    const training::StepLog& made = trainer_->log().back();
    const double limit = options_.dtype == Dtype::f32 ? 2e-4 : 2e-2;
    testing::Comparison comparison;
    comparison.add("loss", {trainer_->steps() - 1}, made.loss, expected.loss,
                   limit * expected.loss);
    comparison.add("grad_norm", {trainer_->steps() - 1}, made.grad_norm, expected.grad_norm,
                   10 * limit * expected.grad_norm);
    return comparison.result();
  }

 private:
  /// Takes the steps of this rank alone that the ranks have taken together since the last comparison.
  void follow() {
    if (!alone_) {
      alone_ =
          std::make_unique<training::Trainer<Exec>>(exec_, config_, options_, no_checkpoint, seed_);
    }
    for (std::size_t i = 0; i < read_.size(); ++i) {
      const bool is_last = i + 1 == read_.size();
      const std::int64_t end = is_last ? trainer_->steps() : read_[i + 1].first_step;
      if (alone_->steps() >= end) continue;
      const training::TokenData data = data_of(config_, options_, read_[i].seed);
      while (alone_->steps() < end) (void)alone_->step(data);
    }
    read_.erase(read_.begin(), read_.end() - 1);
  }

  /// A text by its seed, from a step on.
  struct Read {
    std::int64_t first_step;
    std::uint64_t seed;
  };

  Exec exec_;
  nn::LlamaConfig config_;
  training::TrainOptions options_;
  std::uint64_t seed_;
  const Text& text_;
  std::vector<Read> read_;    ///< since the last comparison
  std::int64_t awaited_ = 0;  ///< steps, before outputs are those of the inputs
  std::unique_ptr<training::Trainer<Exec>> trainer_;
  std::unique_ptr<training::Trainer<Exec>> alone_;  ///< the reference, on the first rank
};

/// A block on all sequences of a step.
llama_block::Shape shape_of(const Point& point) {
  llama_block::Shape shape = llama_block::shape_of(point);
  shape.batch *= point.integer("accumulation");
  return shape;
}

/// FLOPs of a step: the products of the blocks and of the head, forward and backward.
double flops(const Point& point) {
  const llama_block::Shape shape = shape_of(point);
  const double head = 6.0 * static_cast<double>(shape.tokens()) *
                      static_cast<double>(shape.hidden * point.integer("vocab"));
  return static_cast<double>(point.integer("layers")) *
             (llama_block::flops(shape, false) + llama_block::flops(shape, true)) +
         head;
}

class Case final : public bench::Case {
 public:
  Case(ranks::Communicator group, Point point)
      : group_(std::move(group)), point_(std::move(point)), text_(point_, point_.seed) {}

  [[nodiscard]] bench::Work work() const override {
    return {.flops = flops(point_),
            .bytes = 0,
            .compute_ceiling = bench::matrix_ceiling(point_.backend, point_.dtype)};
  }
  [[nodiscard]] Status supports(const Config& /*config*/) const override { return Status::ok(); }
  std::unique_ptr<bench::Candidate> prepare(const Config& /*config*/) override {
    return visit_backend(point_.backend, point_.threads,
                         [&]<class Exec>(const Exec& exec) -> std::unique_ptr<bench::Candidate> {
                           return std::make_unique<Candidate<Exec>>(group_, exec, point_, text_);
                         });
  }
  /// All tokens: a step reads few of them. The parameters change by themselves.
  std::vector<bench::InputChange> change(std::uint64_t random, bool /*all*/) override {
    text_ = Text(point_, random);
    return {{.name = "tokens", .first = 0, .count = static_cast<std::size_t>(text_.data.size())}};
  }

 private:
  ranks::Communicator group_;
  Point point_;
  Text text_;
};

class TrainingStep final : public bench::CollectiveOperator {
 public:
  [[nodiscard]] std::string name() const override { return "training_step"; }
  [[nodiscard]] std::string summary() const override {
    return "a training step of a LLaMA on ranks that share it";
  }
  [[nodiscard]] std::vector<bench::AxisSpec> axes() const override {
    using bench::flag_axis;
    using bench::integer_axis;
    return {
        integer_axis("batch", 2, 1, "sequences of a microbatch of one rank"),
        integer_axis("accumulation", 4, 1, "microbatches of a step, shared by data ranks"),
        integer_axis("seq_q", 256, 1, "tokens per sequence").also("seq"),
        integer_axis("hidden", 256, 8, "width of the residual stream"),
        integer_axis("intermediate", 768, 8, "width of the feed-forward layers"),
        integer_axis("layers", 4, 1, "blocks"),
        integer_axis("heads", 8, 1, "query heads"),
        integer_axis("kv_heads", 8, 1, "key/value heads, a divisor of heads").following("heads"),
        integer_axis("head_dim", 32, 8, "elements per head, a multiple of 8", 256),
        integer_axis("vocab", 1024, 2, "size of the vocabulary"),
        integer_axis("tensor", 1, 1, "tensor parallel ranks"),
        integer_axis("pipeline", 1, 1, "stages of blocks"),
        integer_axis("context", 1, 1, "ranks that share sequences"),
        flag_axis("zero", "1: ranks share the optimizer's state"),
        bench::ranks_axis(),
        flag_axis("sequence_parallel", "1: tensor parallel ranks share rows of norms"),
        flag_axis("ulysses", "1: ranks that share sequences attend by heads"),
        integer_axis("virtual_stages", 1, 1, "parts of the blocks that a stage has")};
  }
  [[nodiscard]] std::vector<std::string> passes() const override { return {"backward"}; }
  [[nodiscard]] std::vector<bench::VariantInfo> variants(Backend /*backend*/,
                                                         std::string_view) const override {
    return {{trainer, "as katt train: both passes, gradients summed, AdamW", true}};
  }
  [[nodiscard]] Config resolve(const Point& /*point*/, const Config& config) const override {
    return config.variant == auto_variant ? Config{.variant = trainer} : config;
  }
  void validate(const Point& point) const override {
    llama_block::check_heads(shape_of(point));
    training::TrainOptions options = options_of(point);
    options.groups = ranks::Groups(ranks::Place(layout_of(point), 0));
    training::check_ranks(config_of(point), options);
  }
  [[nodiscard]] bench::Footprint footprint(const Point& point,
                                           const Config& /*config*/) const override {
    training::TrainOptions options = options_of(point);
    options.groups = ranks::Groups(ranks::Place(layout_of(point), 0));
    return {
        .tensors = 0,
        .outputs = 0,
        .workspace = visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
          return training::training_memory(exec, config_of(point), options).total();
        })};
  }
  [[nodiscard]] std::unique_ptr<bench::Case> make_case_on(const ranks::Communicator& group,
                                                          const Point& point) const override {
    return std::make_unique<Case>(group, point);
  }
};

}  // namespace

void register_op(bench::Registry& registry) { registry.add(std::make_unique<TrainingStep>()); }

}  // namespace katt::training_step
