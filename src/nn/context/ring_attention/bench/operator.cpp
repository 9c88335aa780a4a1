#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/execution.hpp"
#include "nn/context/ring_attention/bench/pass.hpp"
#include "op/adapter.hpp"
#include "op/collective.hpp"

/// Attention of sequences that ranks share, forward and backward (nn/context/ring_attention.hpp,
/// nn/context/ulysses_attention.hpp, nn/context/gathered_attention.hpp).
namespace katt::ring_attention {

namespace {

using bench::Point;

template <class Exec>
class Candidate final : public bench::CollectiveCandidate {
 public:
  Candidate(const std::string& variant, const ranks::Communicator& ranks, const Exec& exec,
            Backend backend, Inputs& in)
      : CollectiveCandidate(ranks), in_(in) {
    bench::on_all_ranks(group(), [&] { pass_.emplace(variant, group(), exec, backend, in); });
    if (in.backward) pass_->compute_forward();
  }
  void fence() override { pass_->fence(); }
  void poison() override { pass_->poison(); }
  void inputs_changed(std::span<const bench::InputChange> /*changes*/, bool all) override {
    pass_->renew(all);
  }
  [[nodiscard]] std::string engine() const override { return "dist"; }

 protected:
  void compute() override { pass_->compute(); }
  [[nodiscard]] bench::Errors compare() override {
    const std::vector<Output> outputs = pass_->gather();
    return group().rank() == 0 ? ring_attention::compare(in_, outputs) : bench::Errors{};
  }

 private:
  Inputs& in_;
  std::optional<Pass<Exec>> pass_;
};

/// True when this many ranks can run a variant.
Status supports_variant(const std::string& variant, const Inputs& in, int ranks) {
  const std::int64_t common = std::gcd(in.heads, in.kv_heads);
  if (variant != ulysses || common % ranks == 0) return Status::ok();
  std::string divisors;
  for (std::int64_t n = 1; n <= common; ++n) {
    if (common % n == 0) divisors += (divisors.empty() ? "" : ", ") + std::to_string(n);
  }
  return Status::skipped("ulysses: " + std::to_string(ranks) + " ranks cannot share " +
                         std::to_string(in.heads) + " heads and " + std::to_string(in.kv_heads) +
                         " K/V heads, expected a divisor of both: " + divisors);
}

class Case final : public bench::Case {
 public:
  Case(ranks::Communicator group, const Point& point)
      : group_(std::move(group)),
        backend_(point.backend),
        threads_(point.threads),
        inputs_(point) {}

  [[nodiscard]] bench::Work work() const override { return inputs_.work(backend_); }
  [[nodiscard]] Status supports(const Config& config) const override {
    return supports_variant(config.variant, inputs_, group_.size());
  }
  std::unique_ptr<bench::Candidate> prepare(const Config& config) override {
    return visit_backend(
        backend_, threads_, [&]<class Exec>(const Exec& exec) -> std::unique_ptr<bench::Candidate> {
          return std::make_unique<Candidate<Exec>>(config.variant, group_, exec, backend_, inputs_);
        });
  }
  std::vector<bench::InputChange> change(std::uint64_t random, bool all) override {
    return inputs_.change(random, all);
  }

 private:
  ranks::Communicator group_;
  Backend backend_;
  int threads_;
  Inputs inputs_;
};

class RingAttention final : public bench::CollectiveOperator {
 public:
  [[nodiscard]] std::string name() const override { return "ring_attention"; }
  [[nodiscard]] std::string summary() const override {
    return "attention of sequences that ranks share: keys travel around a ring, or heads are "
           "shared";
  }
  [[nodiscard]] std::vector<bench::AxisSpec> axes() const override {
    constexpr std::array taken{"batch",  "heads",       "kv_heads", "seq_q", "head_dim",
                               "causal", "window_left", "softcap",  "alibi"};
    std::vector<bench::AxisSpec> axes;
    for (bench::AxisSpec& axis : attention::Description::axes()) {
      if (std::ranges::find(taken, axis.name) == taken.end()) continue;
      if (axis.name == "seq_q") axis.help = "tokens per sequence, of all ranks";
      if (axis.name == "causal") {
        axis.fallback = std::int64_t{1};
        axis.help = "1: key j is visible to query i if j <= i";
      }
      if (axis.name == "alibi") axis.help += "; causal";
      axes.push_back(std::move(axis));
    }
    axes.push_back(bench::ranks_axis());
    return axes;
  }
  [[nodiscard]] std::vector<std::string> passes() const override { return {"forward", "backward"}; }
  [[nodiscard]] std::vector<bench::VariantInfo> variants(Backend /*backend*/,
                                                         std::string_view) const override {
    return {{gathered, "the keys and values of all ranks are gathered first", true},
            {ring, "keys and values go round while those at hand are attended to"},
            {ulysses, "ranks exchange their tokens for all tokens of some of the heads"}};
  }
  /// The tensors of attention.
  [[nodiscard]] std::vector<bench::CaseTensor> case_tensors() const override {
    return bench::case_tensors(attention_data());
  }
  [[nodiscard]] Config resolve(const Point& /*point*/, const Config& config) const override {
    return config.variant == auto_variant ? Config{.variant = ring} : config;
  }
  void validate(const Point& point) const override {
    attention_data().validate(bench::problem_of(attention_data(), point));
    if (point.integer("alibi") != 0 && point.integer("causal") == 0) {
      throw InputError("alibi 1 causal 0: a part of a sequence cannot tell it, expected causal 1");
    }
  }
  [[nodiscard]] bench::Footprint footprint(const Point& point,
                                           const Config& config) const override {
    const auto rows = static_cast<std::size_t>(point.integer("batch") * point.integer("seq_q") /
                                               point.integer("ranks"));
    const auto d = static_cast<std::size_t>(point.integer("head_dim"));
    const std::size_t q = rows * d * static_cast<std::size_t>(point.integer("heads"));
    const std::size_t kv = 2 * rows * d * static_cast<std::size_t>(point.integer("kv_heads"));
    const std::size_t element = size_of(point.dtype);
    const bool backward = point.pass == "backward";
    bench::Footprint bytes;  // each rank also holds the whole problem on the host
    bytes.tensors = bench::host_bytes(attention_data().pass(backward).inputs,
                                      bench::problem_of(attention_data(), point));
    bytes.outputs = element * (backward ? q + kv : q);
    const auto ranks = static_cast<std::size_t>(point.integer("ranks"));
    if (config.variant == gathered) {
      bytes.workspace = (backward ? 3 : 2) * element * ranks * kv +
                        (backward ? sizeof(float) * (ranks + 1) * kv : 0);
    } else if (config.variant == ulysses) {
      bytes.workspace = element * (2 * std::max(q, kv) + (backward ? 4 * q + 2 * kv : 2 * q + kv));
    } else {
      bytes.workspace = element * (4 * q + 5 * kv) + sizeof(float) * (q + 2 * kv);
    }
    return bytes;
  }
  [[nodiscard]] std::unique_ptr<bench::Case> make_case_on(const ranks::Communicator& group,
                                                          const Point& point) const override {
    return std::make_unique<Case>(group, point);
  }

  void run_file(const io::CaseFile& in, const bench::RunOptions& options,
                io::TensorFile& out) const override {
    const std::string variant =
        options.config.variant == auto_variant ? std::string(ring) : options.config.variant;
    if (variant != ring && variant != ulysses && variant != gathered) {
      throw InputError("--variant " + variant + ": expected ring, ulysses or gathered");
    }
    const ranks::Communicator ranks = ranks::world();
    Inputs inputs(in);
    if (const Status status = supports_variant(variant, inputs, ranks.size()); !status.is_ok()) {
      throw InputError("ring_attention: " + status.reason());
    }
    const bool has_backward = std::exchange(inputs.backward, false);
    visit_backend(options.backend, options.threads, [&]<class Exec>(const Exec& exec) {
      const auto add = [&](Pass<Exec>& pass) {
        pass.fence();
        for (Output& one : pass.gather()) out.set(one.name, {one.shape, std::move(one.values)});
      };
      Pass<Exec> forward(variant, ranks, exec, options.backend, inputs);
      forward.compute();
      add(forward);
      if (!has_backward) return;
      inputs.backward = true;
      Pass<Exec> backward(variant, ranks, exec, options.backend, inputs);
      backward.compute_forward();
      backward.compute();
      add(backward);
    });
    out.set_attribute("variant", variant);
    out.set_attribute("ranks", std::int64_t{ranks.size()});
  }
};

}  // namespace

void register_op(bench::Registry& registry) { registry.add(std::make_unique<RingAttention>()); }

}  // namespace katt::ring_attention
