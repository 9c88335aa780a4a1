#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/backend.hpp"
#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/status.hpp"
#include "memory/tracker.hpp"
#include "op/reference/compare.hpp"
#include "op/reference/new_values.hpp"
#include "op/variants.hpp"

namespace katt::io {
class CaseFile;
class TensorFile;
}  // namespace katt::io

namespace katt::bench {

/// Value of an axis at one point: an integer, a real, or one of the axis' choices by name.
using AxisValue = std::variant<std::int64_t, double, std::string>;

/// Bytes of a name, as a value of an axis, that result files hold.
inline constexpr std::size_t text_axis_bytes = 16;

/// One dimension along which an operator can be swept. It is at once an option of `katt sweep`
/// (`--seq-q`), a key of a sweep's TOML file (`seq_q`), and a column of the result file (`seq_q`).
struct AxisSpec {
  std::string name;    ///< snake_case, e.g. "seq_kv"
  AxisValue fallback;  ///< value where the sweep names none; its alternative is the axis' kind
  double minimum = 0;  ///< smallest and largest value that is accepted (integers and reals)
  double maximum = 0;
  std::vector<std::string> choices{};  ///< accepted names, for an axis of choices
  std::string help{};                  ///< one line with the unit
  /// Name of an axis whose value this one takes where the sweep names none, e.g. kv_heads ← heads.
  std::string follows{};
  std::string
      short_name{};  ///< second name of option and key, e.g. "seq" for "seq_q"; may be empty

  /// The same axis with these members.
  [[nodiscard]] AxisSpec also(std::string name_too) const {
    AxisSpec axis = *this;
    axis.short_name = std::move(name_too);
    return axis;
  }
  [[nodiscard]] AxisSpec following(std::string other) const {
    AxisSpec axis = *this;
    axis.follows = std::move(other);
    return axis;
  }
};

/// One point of a sweep: where it runs, in which dtype, and a value for every axis of the operator.
class Point {
 public:
  std::string pass = "forward";  ///< "forward" or "backward"
  Backend backend = Backend::openmp;
  int threads = 0;  ///< host threads; 0: all
  Dtype dtype = Dtype::f32;
  std::uint64_t seed = 1;
  std::map<std::string, AxisValue, std::less<>> values;

  std::int64_t integer(std::string_view axis) const { return get<std::int64_t>(axis); }
  double real(std::string_view axis) const { return get<double>(axis); }
  const std::string& choice(std::string_view axis) const { return get<std::string>(axis); }

 private:
  template <class T>
  const T& get(std::string_view axis) const {
    return std::get<T>(values.find(axis)->second);
  }
};

/// A variant as users see it.
struct VariantInfo {
  std::string name;
  std::string description;
  bool baseline = false;                  ///< the naive one that speedups refer to
  std::vector<std::string> parameters{};  ///< names, e.g. {"tile_q", "tile_kv"}
  std::vector<Setting> settings{};        ///< of the parameters; empty: takes no tile
  std::vector<std::string> presets{};     ///< names of settings, e.g. "h200", "amx"
};

/// A tensor of a case file, or of what `katt run` makes of it.
struct CaseTensor {
  enum class Role { input, output, gradient };
  Role role;
  std::string name;
  std::string shape{};       ///< "(B, H, S, D)"
  bool is_optional = false;  ///< an input that a file may lack, a gradient that it may ask for
};

/// The setting of a variant that a preset names, at a point.
struct PresetTile {
  Setting setting;
  std::string refusal{};  ///< why the device of the point cannot run it; empty where it can
};

/// Least work of a point, for rates and ceilings.
struct Work {
  double flops = 0;             ///< floating-point operations that the mathematics needs
  double bytes = 0;             ///< least traffic: every input read once, every output written once
  std::string compute_ceiling;  ///< which measured peak bounds the arithmetic, e.g. "fma_f32"
  std::string traffic = "read";  ///< which measured bandwidth bounds the traffic: "read" or "copy"
};

/// Bytes needed before anything is allocated: a forecast that refuses what cannot fit. Reported
/// memory is measured, never this.
struct Footprint {
  std::size_t tensors = 0;    ///< inputs, shared by the variants of a case
  std::size_t outputs = 0;    ///< of one variant
  std::size_t workspace = 0;  ///< of one variant
};

using testing::Errors;
using testing::InputChange;

/// One variant made ready on the inputs of a case. Owns its outputs and workspace.
class Candidate {
 public:
  virtual ~Candidate() = default;
  /// Launches the operation once; the caller fences.
  virtual void run() = 0;
  /// Before every run(), and not in its time: brings back what the last one overwrote. True where
  /// there is such a thing, so that runs cannot follow each other without it.
  virtual bool restore() { return false; }
  /// Waits for the launches of run().
  virtual void fence() = 0;
  /// Fills the outputs with NaN, so that an earlier result cannot pass for a new one.
  virtual void poison() = 0;
  /// Compares the outputs with the reference on sampled rows.
  virtual Errors verify() = 0;
  /// Seconds of one run, the mean of `runs`, by the candidate's own clock, where its runs happen in
  /// other processes; nothing where the caller is to time run() and fence().
  virtual std::optional<double> timed(int /*runs*/) { return std::nullopt; }
  /// Seconds that a request to another process takes without a run: of the caller's time of timed().
  [[nodiscard]] virtual double transport_s() { return 0; }
  /// Seconds of the last request of timed(), where the caller has seen it take `seen_s` with what
  /// comes before and after.
  [[nodiscard]] virtual double request_s(double seen_s) const { return seen_s; }
  /// Case::change() has changed these inputs, with `all` every one, and so what is derived of them.
  virtual void inputs_changed(std::span<const InputChange> /*changes*/, bool /*all*/) {}
  /// Takes over such changes where the candidate has a copy of the inputs; run() does not.
  virtual void take_inputs() {}
  /// True when its runs are never batched, each has other inputs than the last one.
  [[nodiscard]] virtual bool runs_once() const { return false; }
  /// Which units of the machine run() uses, e.g. "amx"; "" where the candidate does not say.
  [[nodiscard]] virtual std::string engine() const { return ""; }
  /// The most memory that a run held at a time, inputs and outputs included, where it happens in
  /// another process and that process tells. memory::Scope sees what runs here.
  [[nodiscard]] virtual std::optional<memory::Bytes> peak() const { return std::nullopt; }
  /// The process that runs; 0 is this one.
  [[nodiscard]] virtual int process() const { return 0; }
};

/// A tensor of a case as another program sees it: on the host, in logical order, row-major.
struct ForeignTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  Dtype dtype = Dtype::f32;
  std::span<const float> values{};           ///< of an input, rounded to the dtype
  std::span<const std::int64_t> integers{};  ///< of an input of integers, in place of values
};

/// A case for another program to compute (sweep/peer.hpp): what it reads, what it is to write, and
/// the check of what it wrote. Lives no longer than its case.
struct ForeignCase {
  std::vector<ForeignTensor> inputs;
  std::vector<ForeignTensor> outputs;          ///< without values
  std::map<std::string, double> parameters{};  ///< beyond the axes, e.g. {"eps", 1e-5}
  /// The file that Operator::add_rule() has read, where the case has a rule of the user's own; empty
  /// for a rule in C++.
  std::optional<std::filesystem::path> rule_file{};
  /// Compares the outputs, in their order, with the reference on sampled rows.
  std::function<Errors(std::span<const std::vector<float>>)> verify;
};

/// The inputs of one point, generated once and shared by the variants that are compared on it.
class Case {
 public:
  virtual ~Case() = default;
  virtual Work work() const = 0;
  /// ok, or skipped with the reason why this variant and tile cannot run here. Allocates nothing.
  virtual Status supports(const Config& config) const = 0;
  /// Allocates outputs and workspace of one variant through Kokkos, with labels `katt::op::…`.
  virtual std::unique_ptr<Candidate> prepare(const Config& config) = 0;
  /// Gives inputs other values, which `random` says: some rows of those that nothing is derived of,
  /// or all of them. Candidate::inputs_changed() of every candidate is to follow. Outputs are
  /// compared with what the changed inputs give. Returns the changes; nothing where no input can
  /// change.
  virtual std::vector<InputChange> change(std::uint64_t /*random*/, bool /*all*/) { return {}; }
  /// True when outputs take the memory of inputs, so that a second run computes something else.
  [[nodiscard]] virtual bool runs_in_place() const { return false; }
  /// The case as another program can compute it; nothing where these inputs have no such form.
  /// `with_derived`: with the inputs that the operator makes of the others, too, such as out and
  /// lse of a backward pass.
  virtual std::optional<ForeignCase> foreign(bool /*with_derived*/ = false) { return std::nullopt; }
};

/// The options of `katt run`.
struct RunOptions {
  Backend backend = Backend::openmp;
  int threads = 0;
  Config config;
};

/// An operator as sweeps and `katt run` see it: the adapter in OP/bench. name(), summary(),
/// axes() and passes() are also called before Kokkos is initialised, the rest only after.
class Operator {
 public:
  virtual ~Operator() = default;
  virtual std::string name() const = 0;
  virtual std::string summary() const = 0;
  virtual std::vector<AxisSpec> axes() const = 0;
  virtual std::vector<std::string> passes() const = 0;
  /// Adds what a file describes to the values of an axis, before any axis is read. Throws InputError
  /// for a file that holds something else, and for an operator that has no such axis.
  virtual void add_rule(const std::filesystem::path& path) const {
    throw InputError(path.string() + ": expected no rule, which " + name() + " does not have");
  }
  /// Variants of a pass on a backend; the baseline is among them.
  virtual std::vector<VariantInfo> variants(Backend backend, std::string_view pass) const = 0;
  /// The configuration that a request means at a point: the variant of "auto" and the default
  /// setting filled in. Allocates nothing.
  virtual Config resolve(const Point& point, const Config& config) const = 0;
  /// ok, or skipped with the reason why a variant cannot run a point; ok where the operator cannot
  /// tell without the case. Allocates nothing.
  [[nodiscard]] virtual Status supports(const Point& /*point*/, const Config& /*config*/) const {
    return Status::ok();
  }
  /// The tensors of its case files.
  [[nodiscard]] virtual std::vector<CaseTensor> case_tensors() const { return {}; }
  /// The least work of a point, for forecasts of time; nothing where only its case knows.
  [[nodiscard]] virtual std::optional<Work> work(const Point& /*point*/) const {
    return std::nullopt;
  }
  /// The setting of a variant of that name; nothing where the variant takes its default.
  virtual std::optional<PresetTile> preset(const Point& /*point*/, std::string_view /*variant*/,
                                           std::string_view /*name*/) const {
    return std::nullopt;
  }
  /// Throws InputError naming the axis, its value and what was expected.
  virtual void validate(const Point& point) const = 0;
  virtual Footprint footprint(const Point& point, const Config& config) const = 0;
  virtual std::unique_ptr<Case> make_case(const Point& point) const = 0;
  /// Runs the operator on the tensors of a file and puts its outputs into `out`, and what ran
  /// (record_variant() of op/adapter.hpp), for `katt run`.
  /// Throws InputError for a file that lacks a dataset or holds a wrong shape, and for a variant or
  /// tile that is refused.
  virtual void run_file(const io::CaseFile& in, const RunOptions& options,
                        io::TensorFile& out) const = 0;
};

/// The operators of this program, by name.
class Registry {
 public:
  /// Throws InputError when the name is taken.
  void add(std::unique_ptr<Operator> op);
  /// Throws InputError with the nearest name and all names.
  const Operator& find(std::string_view name) const;
  std::vector<const Operator*> all() const;

 private:
  std::map<std::string, std::unique_ptr<Operator>, std::less<>> operators_;
};

/// Adds the operators that katt_add_op() names (generated from src/ops/CMakeLists.txt).
void register_builtin_ops(Registry& registry);

}  // namespace katt::bench
