#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <Kokkos_Core.hpp>

#include "memory/tracker.hpp"
#include "op/registry.hpp"

/// An operator without a kernel: y ← n · x on a View, with variants that misbehave on purpose.
namespace katt::toy {

/// The actions of the candidates, in order: "prepare naive", "run naive", …
using Journal = std::vector<std::string>;

struct Behaviour {
  bool wrong = false;        ///< verification fails
  bool wrong_later = false;  ///< the second verification fails
  bool throws = false;       ///< run() throws
  bool no_memory = false;    ///< prepare() throws bad_alloc
  double run_s = 0;          ///< busy time of a run
  bool restores = false;     ///< restore() is needed before every run
};

class ToyCandidate final : public bench::Candidate {
 public:
  ToyCandidate(std::string name, std::int64_t n, Behaviour behaviour, Journal* journal)
      : name_(std::move(name)), behaviour_(behaviour), journal_(journal) {
    if (behaviour_.no_memory) throw std::bad_alloc();
    output_ =
        Kokkos::View<float*, Kokkos::HostSpace>("katt::toy::out", static_cast<std::size_t>(n));
    note("prepare");
  }
  void run() override {
    note("run");
    if (behaviour_.throws) throw std::runtime_error("it broke\nsecond line");
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() <
           behaviour_.run_s) {
    }
    if (!output_.data()) return;
    for (std::size_t i = 0; i < output_.size(); ++i) output_(i) = 1.0F;
  }
  bool restore() override {
    if (behaviour_.restores) note("restore");
    return behaviour_.restores;
  }
  void fence() override {}
  [[nodiscard]] std::string engine() const override { return name_ == "tiled" ? "toy" : ""; }
  void poison() override { note("poison"); }
  bench::Errors verify() override {
    note("verify");
    const bool second = verified_++ > 0;
    bench::Errors errors{.max_abs = 0.25, .mean_abs = 0.125, .status = Status::ok()};
    if (behaviour_.wrong || (behaviour_.wrong_later && second)) {
      errors.status = Status::failed("out(0, 0) is 1, expected 2");
    }
    return errors;
  }

 private:
  void note(const std::string& what) const {
    if (journal_ != nullptr) journal_->push_back(what + " " + name_);
  }

  std::string name_;
  Behaviour behaviour_;
  Journal* journal_;
  int verified_ = 0;
  Kokkos::View<float*, Kokkos::HostSpace> output_;
};

/// Variants by name with their behaviour; "naive" is the baseline, "tiled" has the tiles 8x8 and
/// 16x8.
class ToyOperator final : public bench::Operator {
 public:
  std::vector<std::pair<std::string, Behaviour>> behaviours{
      {"naive", {}}, {"tiled", {}}, {"wrong", {.wrong = true}}, {"throws", {.throws = true}}};
  std::function<void(const bench::Point&)> on_case;
  std::size_t workspace_per_n = 0;
  std::map<Setting, double>
      tile_run_s;  ///< busy time of a run with a tile, instead of its variant's

  [[nodiscard]] std::string name() const override { return "toy"; }
  [[nodiscard]] std::string summary() const override { return "y = n x"; }
  [[nodiscard]] std::vector<bench::AxisSpec> axes() const override {
    return {{.name = "size",
             .fallback = std::int64_t{16},
             .minimum = 1,
             .maximum = 1e12,
             .short_name = "n"},
            {.name = "twin",
             .fallback = std::int64_t{1},
             .minimum = 1,
             .maximum = 1e12,
             .follows = "size"},
            {.name = "gain", .fallback = 1.0, .minimum = 0, .maximum = 100},
            {.name = "order", .fallback = std::string("rows"), .choices = {"rows", "columns"}}};
  }
  [[nodiscard]] std::vector<std::string> passes() const override { return {"forward"}; }
  [[nodiscard]] std::vector<bench::VariantInfo> variants(Backend, std::string_view) const override {
    std::vector<bench::VariantInfo> list;
    for (const auto& [name, behaviour] : behaviours) {
      list.push_back({.name = name,
                      .description = "",
                      .baseline = name == "naive",
                      .parameters = {"tile_q", "tile_kv"},
                      .settings = name == "tiled" ? std::vector<Setting>{{8, 8}, {16, 8}}
                                                  : std::vector<Setting>{}});
    }
    return list;
  }
  void validate(const bench::Point& point) const override {
    if (point.integer("size") % 2 != 0) throw InputError("size: expected an even number");
  }
  /// "auto" is "tiled" from 16 on, else "naive".
  [[nodiscard]] Config resolve(const bench::Point& point, const Config& config) const override {
    Config resolved = config;
    if (config.variant == auto_variant) {
      resolved.variant = point.integer("size") < 16 ? "naive" : "tiled";
    }
    if (resolved.variant == "tiled" && config.setting.empty()) resolved.setting = {8, 8};
    return resolved;
  }
  [[nodiscard]] bench::Footprint footprint(const bench::Point& point,
                                           const Config& config) const override {
    const auto n = static_cast<std::size_t>(point.integer("size"));
    return {.tensors = 4 * n,
            .outputs = 4 * n,
            .workspace = config.variant == "naive" ? workspace_per_n * n : 0};
  }
  [[nodiscard]] std::unique_ptr<bench::Case> make_case(const bench::Point& point) const override {
    if (on_case) on_case(point);
    return std::make_unique<ToyCase>(*this, point);
  }
  void run_file(const io::CaseFile&, const bench::RunOptions&, io::TensorFile&) const override {}

 private:
  class ToyCase final : public bench::Case {
   public:
    ToyCase(const ToyOperator& op, const bench::Point& point)
        : op_(op),
          n_(point.integer("size")),
          input_("katt::toy::in", static_cast<std::size_t>(n_)) {}
    [[nodiscard]] bench::Work work() const override {
      return {.flops = static_cast<double>(n_),
              .bytes = 8.0 * static_cast<double>(n_),
              .compute_ceiling = "fma_f32"};
    }
    [[nodiscard]] Status supports(const Config& config) const override {
      if (config.setting == Setting{16, 8} && n_ < 16)
        return Status::skipped("size below the tile");
      return Status::ok();
    }
    std::unique_ptr<bench::Candidate> prepare(const Config& config) override {
      for (auto [name, behaviour] : op_.behaviours) {
        if (name != config.variant) continue;
        const auto own = op_.tile_run_s.find(config.setting);
        if (own != op_.tile_run_s.end()) behaviour.run_s = own->second;
        return std::make_unique<ToyCandidate>(name, n_, behaviour, nullptr);
      }
      throw std::runtime_error("unknown variant");
    }

   private:
    const ToyOperator& op_;
    std::int64_t n_;
    Kokkos::View<float*, Kokkos::HostSpace> input_;
  };
};

}  // namespace katt::toy
