#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/hdf5/case_file.hpp"
#include "op/adapter.hpp"
#include "op/registry.hpp"
#include "op/tensor_pass.hpp"

/// An operator of tensors as sweeps, `katt run`, bindings and the tests see it, made from a
/// description (op/description/describe.hpp).
namespace katt::bench {

/// A description as data. Functions may be empty.
struct TensorOperatorData {
  std::string name, summary;
  std::vector<AxisSpec> (*axes)() = nullptr;
  std::map<std::string, Parameter> parameters{};  ///< numbers that are no axis
  Pass forward{}, backward{};
  testing::Expected (*expected)(const Problem&) = nullptr;
  std::function<void(Problem&)> complete{};
  std::function<void(Backend, int threads, const Tensors&)> derive{};
  Compare compare{};
  std::function<void(const Problem&)> validate{};
  std::function<Status(const Problem&)> supports{};
  std::function<bool(const Problem&)> is_foreign{};
  std::function<void(const io::CaseFile&, Problem&)> read{};
  std::function<void(const std::filesystem::path&)> add_rule{};
  std::function<std::optional<std::filesystem::path>(const Problem&)> rule_file{};

  [[nodiscard]] const Pass& pass(bool is_backward) const {
    return is_backward ? backward : forward;
  }
  /// A problem with the axes' defaults, complete() not called yet.
  [[nodiscard]] Problem usual_problem(bool is_backward) const;
  void finish(Problem& problem) const {
    if (complete) complete(problem);
  }
  /// A function that fills the derived inputs on a backend.
  [[nodiscard]] std::function<void(const Tensors&)> derive_on(Backend backend, int threads) const {
    if (!derive) return {};
    return [this, backend, threads](const Tensors& tensors) { derive(backend, threads, tensors); };
  }
};

/// The description Op as data, made once. Defined where the operator is registered: its templates
/// take long to compile.
template <class Op>
[[nodiscard]] const TensorOperatorData& data_of();

/// A point as a problem without values. Axes that the point lacks have their default.
[[nodiscard]] Problem problem_of(const TensorOperatorData& data, const Point& point);
/// The problem of the forward pass in a case file. Throws InputError.
[[nodiscard]] Problem read_problem(const TensorOperatorData& data, const io::CaseFile& file);
/// The tensors of such a file.
[[nodiscard]] std::vector<CaseTensor> case_tensors(const TensorOperatorData& data);
/// The operator that such data describes.
[[nodiscard]] std::unique_ptr<Operator> make_tensor_operator(const TensorOperatorData& data);

}  // namespace katt::bench
