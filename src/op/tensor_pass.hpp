#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "op/reference/compare.hpp"
#include "op/reference/expected.hpp"
#include "op/registry.hpp"
#include "op/tensors.hpp"

/// A pass of an operator as data, and its tensors on a backend, for sweeps and tests.
namespace katt::bench {

/// A pass of an operator. Its functions take tensors by name, with memory or without
/// (shapes_of()), and the threads of a host: 0 is every core.
struct Pass {
  bool backward = false;
  TensorSpecs inputs{}, outputs{};
  TensorSpecs own{};  ///< derived inputs that one variant alone reads
  std::function<std::vector<VariantInfo>(Backend)> variants{};
  /// Throws InputError for an unknown variant.
  std::function<std::unique_ptr<DecidedCall>(Backend, int, const Tensors&, const Config&)> decide{};
  /// The operator's check(). Throws InputError.
  std::function<void(const Tensors&)> check{};
  /// The setting that a variant has under a name; nothing where it has none.
  std::function<std::optional<PresetTile>(Backend, int, const Tensors&, std::string_view variant,
                                          std::string_view preset)>
      preset{};
  std::function<Work(const Tensors&, Backend)> work{};
};

/// The inputs of a pass in the memory of a backend, and what is derived of them. In place the
/// outputs hold the inputs that they take the memory of. Pass and problem outlive them.
class DeviceInputs {
 public:
  using Derive = std::function<void(const Tensors&)>;

  /// `derive` fills the derived inputs; it may be empty. Rows lie `gap` elements further apart than
  /// they are long.
  DeviceInputs(std::string_view op, const Pass& pass, const Problem& problem, Backend backend,
               Derive derive, std::int64_t gap = 0);
  void add_to(Tensors& tensors) const { tensors_.add_to(tensors); }
  [[nodiscard]] std::vector<float> download(std::string_view name) const {
    return tensors_.download(name);
  }
  /// The inputs that one variant alone reads, made of these.
  [[nodiscard]] DeviceTensors of_variant(std::string_view variant) const;

  /// Takes over some rows of an input that nothing is derived of, from the problem.
  void renew(std::string_view name, std::int64_t first_row, std::int64_t rows) const {
    tensors_.upload_rows(name, problem_->floats(name), first_row, rows);
  }
  /// Takes over all values of the problem, and derives the rest again.
  void renew() const;
  /// The same for what of_variant() has made.
  void renew(const DeviceTensors& own, std::string_view variant) const;

 private:
  [[nodiscard]] DeviceTensors filled(const TensorSpecs& specs) const;
  void fill(const DeviceTensors& made, const TensorSpecs& specs) const;

  std::string_view op_;
  const Pass* pass_;
  const Problem* problem_;
  Backend backend_;
  Derive derive_;
  std::int64_t gap_;
  DeviceTensors tensors_;
};

/// The outputs of one run of a pass in the memory of a backend, and the inputs that its variant
/// alone reads.
class DeviceOutputs {
 public:
  DeviceOutputs(std::string_view op, const Pass& pass, const Problem& problem, Backend backend,
                std::int64_t gap = 0, DeviceTensors own = {})
      : pass_(&pass),
        problem_(&problem),
        tensors_(op, backend, pass.outputs, problem, gap),
        own_(std::move(own)) {}

  /// The inputs that the variant alone reads.
  [[nodiscard]] const DeviceTensors& own() const { return own_; }
  /// Points the outputs of a pass and the own inputs of the variant here, in place the inputs too.
  void add_to(Tensors& tensors) const;
  /// NaN, or in place the inputs.
  void poison() const;
  /// In place takes over the inputs from the problem again.
  void renew() const;
  [[nodiscard]] HostValues download() const { return tensors_.download(); }
  [[nodiscard]] bool gaps_are_nan() const { return tensors_.gaps_are_nan(); }

 private:
  const Pass* pass_;
  const Problem* problem_;
  DeviceTensors tensors_, own_;
};

/// The tensors of a pass without memory, for workspace sizes, refusals and work; of tensors that
/// share memory, in place, the address is the same. With the own inputs of a variant, for "auto"
/// those of every variant.
[[nodiscard]] Tensors shapes_of(const Pass& pass, const Problem& problem,
                                std::string_view variant = {});

/// The tensors of a pass, checked.
[[nodiscard]] Tensors tensors_of(const Pass& pass, const Problem& problem,
                                 const DeviceInputs& inputs, const DeviceOutputs& outputs);

/// Checks of outputs that a reference's values alone cannot say.
using Compare = std::function<void(const Problem&, const testing::Expected&, const HostValues&,
                                   testing::Comparison& reported, testing::Comparison& unreported)>;

/// Holds outputs against what is expected of them. An output that is not among them is not checked.
[[nodiscard]] Errors compare(const Pass& pass, const Problem& problem,
                             const testing::Expected& expected, const HostValues& made,
                             const Compare& more = {});

}  // namespace katt::bench
