#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bench/adapter.hpp"
#include "bench/candidate.hpp"
#include "bench/registry.hpp"
#include "io/case_file.hpp"
#include "testing/compare.hpp"
#include "testing/expected.hpp"
#include "testing/fill.hpp"

/// The bench adapter of operators whose inputs and outputs are matrices and vectors of one dtype,
/// made from a description of them.
namespace katt::bench {

/// A tensor by the names of its axes, e.g. {"weight", {"out_features", "in_features"}, "(O, I)"}.
struct MatrixSpec {
  std::string name;
  std::vector<std::string> axes;  ///< one or two axes of the operator
  std::string letters;            ///< for messages
  bool optional = false;          ///< present where the axis of the tensor's own name is 1
  float scale = 1.0F;             ///< standard deviation of generated values
};

/// Host values by the tensor's name, row-major, already rounded to the dtype under test.
using HostValues = std::map<std::string, std::vector<float>, std::less<>>;

/// Extents by the axis' name.
using Extents = std::map<std::string, std::int64_t, std::less<>>;

/// Tensors by name, as matrices; a vector has one row. One that is not there is an empty reference.
class MatrixRefs {
 public:
  void set(const std::string& name, const TensorRef<2>& ref) { refs_[name] = ref; }
  [[nodiscard]] TensorRef<2> matrix(const std::string& name) const {
    const auto found = refs_.find(name);
    return found == refs_.end() ? TensorRef<2>{} : found->second;
  }
  [[nodiscard]] TensorRef<1> vector(const std::string& name) const {
    const TensorRef<2> row = matrix(name);
    return row.size() == 0 ? TensorRef<1>{} : TensorRef<1>(row.data, row.dtype, {row.extent[1]});
  }

 private:
  std::map<std::string, TensorRef<2>, std::less<>> refs_;
};

/// A sample of every output, by its name.
using Expected = std::map<std::string, std::vector<testing::ExpectedValue>, std::less<>>;

namespace impl {

inline std::array<std::int64_t, 2> shape_of(const MatrixSpec& spec, const Extents& extents) {
  const auto extent = [&](const std::string& axis) { return extents.find(axis)->second; };
  if (spec.axes.size() == 1) return {1, extent(spec.axes[0])};
  return {extent(spec.axes[0]), extent(spec.axes[1])};
}

/// Tensors that own their memory on a backend.
class DeviceMatrices {
 public:
  DeviceMatrices(const std::string& op, Backend backend, Dtype dtype,
                 const std::vector<MatrixSpec>& specs, const Extents& extents) {
    for (const MatrixSpec& spec : specs) {
      tensors_.emplace(spec.name, Tensor<2>("katt::" + op + "::" + spec.name, backend, dtype,
                                            shape_of(spec, extents)));
    }
  }
  void upload(const HostValues& values) const {
    for (const auto& [name, tensor] : tensors_) tensor.upload(values.find(name)->second);
  }
  void add_to(MatrixRefs& refs) const {
    for (const auto& [name, tensor] : tensors_) refs.set(name, tensor.ref());
  }
  void poison() const {
    for (const auto& [name, tensor] : tensors_) tensor.poison();
  }
  [[nodiscard]] std::vector<float> download(const std::string& name) const {
    return tensors_.find(name)->second.download();
  }

 private:
  std::map<std::string, Tensor<2>, std::less<>> tensors_;
};

inline void add_shapes(MatrixRefs& refs, const std::vector<MatrixSpec>& specs,
                       const Extents& extents, Dtype dtype) {
  for (const MatrixSpec& spec : specs)
    refs.set(spec.name, {nullptr, dtype, shape_of(spec, extents)});
}

/// `value_of(i)`: the values of the output specs[i].
inline Errors compare(const Expected& expected, const std::vector<MatrixSpec>& specs,
                      const std::function<std::vector<float>(std::size_t)>& value_of,
                      const Extents& extents, Dtype dtype) {
  testing::Comparison comparison;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    testing::add_all(comparison, specs[i].name.c_str(), value_of(i), shape_of(specs[i], extents)[1],
                     expected.find(specs[i].name)->second, dtype);
  }
  return comparison.result();
}

/// Tensors for another program; with the values of those that have some.
inline std::vector<ForeignTensor> foreign_tensors(const std::vector<MatrixSpec>& specs,
                                                  const HostValues& values, const Extents& extents,
                                                  Dtype dtype) {
  std::vector<ForeignTensor> tensors;
  for (const MatrixSpec& spec : specs) {
    ForeignTensor& tensor = tensors.emplace_back();
    tensor.name = spec.name;
    tensor.dtype = dtype;
    for (const std::string& axis : spec.axes) tensor.shape.push_back(extents.find(axis)->second);
    if (const auto held = values.find(spec.name); held != values.end())
      tensor.values = held->second;
  }
  return tensors;
}

}  // namespace impl

/// An adapter from a description Op with static members
///   name, summary                     texts
///   axes()                            the axes of a sweep
///   inputs(), outputs()               tensors of the forward pass
///   gradients()                       of the backward pass, which also reads `dout`, of the shape
///                                     of the only output
///   forward_args(MatrixRefs), backward_args(MatrixRefs)
///   forward_variants<Exec>(), backward_variants<Exec>()
///   work(args, backend)               of either pass
///   expected(HostValues, Extents, Dtype, backward)   a sample of every output
template <class Op>
class MatrixOperator final : public Operator {
 public:
  [[nodiscard]] std::string name() const override { return Op::name; }
  [[nodiscard]] std::string summary() const override { return Op::summary; }
  [[nodiscard]] std::vector<AxisSpec> axes() const override { return Op::axes(); }
  [[nodiscard]] std::vector<std::string> passes() const override { return {"forward", "backward"}; }
  void validate(const Point& /*point*/) const override {}

  [[nodiscard]] std::vector<VariantInfo> variants(Backend backend,
                                                  std::string_view pass) const override {
    return visit_backend(backend, 0, [&]<class Exec>(const Exec&) {
      return visit_pass(pass, [](auto p) { return describe(p.template variants<Exec>()); });
    });
  }

  [[nodiscard]] Config resolve(const Point& point, const Config& config) const override {
    return visit_pass(point.pass, [&](auto pass) {
      return visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
        return pass.template variants<Exec>().resolve(
            exec, shape_args(pass, present(pass.inputs(), point), extents_of(point), point.dtype),
            config);
      });
    });
  }

  [[nodiscard]] Footprint footprint(const Point& point, const Config& config) const override {
    const Extents extents = extents_of(point);
    const auto bytes_of = [&](const std::vector<MatrixSpec>& specs, std::size_t element) {
      std::size_t bytes = 0;
      for (const MatrixSpec& spec : specs) {
        const auto shape = impl::shape_of(spec, extents);
        bytes += static_cast<std::size_t>(shape[0]) * static_cast<std::size_t>(shape[1]) * element;
      }
      return bytes;
    };
    return visit_pass(point.pass, [&](auto pass) {
      const auto inputs = present(pass.inputs(), point);
      return Footprint{.tensors = bytes_of(inputs, size_of(point.dtype) + sizeof(float)),
                       .outputs = bytes_of(pass.outputs(), size_of(point.dtype)),
                       .workspace = visit_backend(
                           point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
                             return pass.template variants<Exec>().workspace_bytes(
                                 exec, shape_args(pass, inputs, extents, point.dtype), config);
                           })};
    });
  }

  [[nodiscard]] std::unique_ptr<bench::Case> make_case(const Point& point) const override {
    return visit_pass(point.pass, [&](auto pass) -> std::unique_ptr<bench::Case> {
      return std::make_unique<Case<decltype(pass)>>(point);
    });
  }

  void run_file(const io::CaseFile& in, const RunOptions& options,
                io::TensorFile& out) const override {
    const Dtype dtype = in.dtype();
    Extents extents;
    HostValues values;
    const auto read = [&](const MatrixSpec& spec) {
      const auto shape = in.shape(spec.name, static_cast<int>(spec.axes.size()), spec.letters);
      std::vector<std::int64_t> wanted;
      for (std::size_t i = 0; i < shape.size(); ++i) {
        wanted.push_back(extents.emplace(spec.axes[i], shape[i]).first->second);
      }
      values[spec.name] = in.floats(spec.name, wanted, spec.letters).values;
    };
    std::vector<MatrixSpec> inputs;
    for (const MatrixSpec& spec : Op::inputs()) {
      if (spec.optional && !in.has(spec.name)) continue;
      read(spec);
      inputs.push_back(spec);
    }
    const auto run = [&](auto pass) {
      visit_backend(options.backend, options.threads, [&]<class Exec>(const Exec& exec) {
        const auto& specs = gradients_of(pass, inputs);
        MatrixRefs refs;
        const impl::DeviceMatrices given(Op::name, options.backend, dtype, inputs, extents);
        const impl::DeviceMatrices made(Op::name, options.backend, dtype, specs, extents);
        given.upload(values);
        given.add_to(refs);
        made.add_to(refs);
        const auto args = pass.args(refs);
        check(args);
        const auto& table = pass.template variants<Exec>();
        record_variant(out, table, run_variant(Op::name, exec, table, args, options.config),
                       pass.backward);
        for (const MatrixSpec& spec : specs) {
          std::vector<std::int64_t> shape;
          for (const std::string& axis : spec.axes) shape.push_back(extents.find(axis)->second);
          out.set(spec.name, {shape, made.download(spec.name)});
        }
      });
    };
    run(Forward{});
    if (in.has("dout")) {
      read(dout());
      inputs.push_back(dout());
      run(Backward{});
    }
  }

 private:
  static MatrixSpec dout() {
    MatrixSpec spec = Op::outputs().front();
    spec.name = "dout";
    return spec;
  }

  struct Forward {
    static constexpr bool backward = false;
    static auto inputs() { return Op::inputs(); }
    static auto outputs() { return Op::outputs(); }
    static auto args(const MatrixRefs& refs) { return Op::forward_args(refs); }
    template <class Exec>
    static auto& variants() {
      return Op::template forward_variants<Exec>();
    }
  };
  struct Backward {
    static constexpr bool backward = true;
    static auto inputs() {
      auto specs = Op::inputs();
      specs.push_back(dout());
      return specs;
    }
    static auto outputs() { return Op::gradients(); }
    static auto args(const MatrixRefs& refs) { return Op::backward_args(refs); }
    template <class Exec>
    static auto& variants() {
      return Op::template backward_variants<Exec>();
    }
  };

  template <class F>
  static auto visit_pass(std::string_view pass, const F& f) {
    return pass == "backward" ? f(Backward{}) : f(Forward{});
  }

  static Extents extents_of(const Point& point) {
    Extents extents;
    for (const auto& [axis, value] : point.values) {
      if (const auto* extent = std::get_if<std::int64_t>(&value)) extents[axis] = *extent;
    }
    return extents;
  }

  static std::vector<MatrixSpec> present(std::vector<MatrixSpec> specs, const Point& point) {
    std::erase_if(specs, [&](const MatrixSpec& spec) {
      return spec.optional && point.integer(spec.name) == 0;
    });
    return specs;
  }

  /// Outputs of a pass: a gradient goes with its input.
  template <class Pass>
  static std::vector<MatrixSpec> gradients_of(Pass pass, const std::vector<MatrixSpec>& inputs) {
    auto specs = pass.outputs();
    if (!Pass::backward) return specs;
    std::erase_if(specs, [&](const MatrixSpec& gradient) {
      return std::none_of(inputs.begin(), inputs.end(), [&](const MatrixSpec& input) {
        return gradient.name == "d" + input.name;
      });
    });
    return specs;
  }

  template <class Pass>
  static auto shape_args(Pass pass, const std::vector<MatrixSpec>& inputs, const Extents& extents,
                         Dtype dtype) {
    MatrixRefs refs;
    impl::add_shapes(refs, inputs, extents, dtype);
    impl::add_shapes(refs, gradients_of(pass, inputs), extents, dtype);
    return pass.args(refs);
  }

  template <class Pass>
  class Case final : public bench::Case {
   public:
    explicit Case(const Point& point)
        : extents_(extents_of(point)),
          inputs_(present(Pass::inputs(), point)),
          device_(Op::name, point.backend, point.dtype, inputs_, extents_),
          backend_(point.backend),
          threads_(point.threads),
          dtype_(point.dtype) {
      std::uint64_t stream = point.seed * 16;
      for (const MatrixSpec& spec : inputs_) {
        const auto shape = impl::shape_of(spec, extents_);
        std::vector<float> filled(static_cast<std::size_t>(shape[0] * shape[1]));
        testing::fill(filled, ++stream, dtype_, spec.scale);
        values_[spec.name] = std::move(filled);
      }
      device_.upload(values_);
    }

    [[nodiscard]] Work work() const override { return Op::work(shapes(), backend_); }

    [[nodiscard]] Status supports(const Config& config) const override {
      return visit_backend(backend_, threads_, [&]<class Exec>(const Exec& exec) {
        return Pass::template variants<Exec>().supports(exec, shapes(), config);
      });
    }

    std::unique_ptr<Candidate> prepare(const Config& config) override {
      expect();
      return visit_backend(
          backend_, threads_, [&]<class Exec>(const Exec& exec) -> std::unique_ptr<Candidate> {
            const auto specs = gradients_of(Pass{}, inputs_);
            impl::DeviceMatrices made(Op::name, backend_, dtype_, specs, extents_);
            MatrixRefs refs;
            device_.add_to(refs);
            made.add_to(refs);
            const auto args = Pass::args(refs);
            check(args);
            using Args = std::remove_const_t<decltype(args)>;
            return std::make_unique<VariantCandidate<Exec, Args, impl::DeviceMatrices>>(
                "katt::" + std::string(Op::name) + "::workspace", exec,
                Pass::template variants<Exec>(), args, config, std::move(made),
                [this, specs](const impl::DeviceMatrices& outputs) {
                  return impl::compare(
                      expected_, specs,
                      [&](std::size_t i) { return outputs.download(specs[i].name); }, extents_,
                      dtype_);
                });
          });
    }

    std::optional<ForeignCase> foreign() override {
      expect();
      const auto specs = gradients_of(Pass{}, inputs_);
      return ForeignCase{.inputs = impl::foreign_tensors(inputs_, values_, extents_, dtype_),
                         .outputs = impl::foreign_tensors(specs, {}, extents_, dtype_),
                         .verify = [this, specs](std::span<const std::vector<float>> outputs) {
                           return impl::compare(
                               expected_, specs, [&](std::size_t i) { return outputs[i]; },
                               extents_, dtype_);
                         }};
    }

   private:
    void expect() {
      if (expected_.empty()) expected_ = Op::expected(values_, extents_, dtype_, Pass::backward);
    }
    [[nodiscard]] auto shapes() const { return shape_args(Pass{}, inputs_, extents_, dtype_); }

    Extents extents_;
    std::vector<MatrixSpec> inputs_;
    HostValues values_;
    impl::DeviceMatrices device_;
    Expected expected_;
    Backend backend_;
    int threads_;
    Dtype dtype_;
  };
};

}  // namespace katt::bench
