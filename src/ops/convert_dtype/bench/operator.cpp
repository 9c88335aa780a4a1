#include <memory>
#include <optional>
#include <string>

#include "bench/adapter.hpp"
#include "bench/candidate.hpp"
#include "io/case_file.hpp"
#include "ops/convert_dtype/convert_dtype.hpp"
#include "ops/convert_dtype/convert_dtype_ref.hpp"
#include "testing/compare.hpp"
#include "testing/fill.hpp"
#include "testing/sample.hpp"

namespace katt::convert_dtype {

namespace {

using bench::AxisSpec;
using bench::Point;

/// From the dtype of the point to that of the axis `to`; backward the other way.
struct Dtypes {
  Dtype from, to;

  explicit Dtypes(const Point& point)
      : from(point.dtype), to(*dtype_from_name(point.choice("to"))) {
    if (point.pass == "backward") std::swap(from, to);
  }
};

ForwardArgs shape_of(const Point& point) {
  const Dtypes dtypes(point);
  const std::array<std::int64_t, 2> shape{point.integer("tokens"), point.integer("hidden")};
  return {{nullptr, dtypes.from, shape}, {nullptr, dtypes.to, shape}};
}

class ConvertCase final : public bench::Case {
 public:
  explicit ConvertCase(const Point& point)
      : shape_(shape_of(point)), backend_(point.backend), threads_(point.threads) {
    values_.resize(static_cast<std::size_t>(shape_.x.size()));
    testing::fill(values_, point.seed * 16 + 1, shape_.x.dtype);
    x_ = {"katt::convert::x", backend_, shape_.x.dtype, shape_.x.extent};
    x_.upload(values_);
  }

  [[nodiscard]] bench::Work work() const override { return {0, bytes(shape_), "", "copy"}; }

  [[nodiscard]] Status supports(const Config& config) const override {
    return visit_backend(backend_, threads_, [&]<class Exec>(const Exec& exec) {
      return katt::convert_dtype::variants<Exec>().supports(exec, shape_, config);
    });
  }

  std::unique_ptr<bench::Candidate> prepare(const Config& config) override {
    using Output = bench::Tensor<2>;
    return visit_backend(
        backend_, threads_, [&]<class Exec>(const Exec& exec) -> std::unique_ptr<bench::Candidate> {
          Output out("katt::convert::out", backend_, shape_.out.dtype, shape_.out.extent);
          const ForwardArgs args{x_.ref(), out.ref()};
          return std::make_unique<bench::VariantCandidate<Exec, ForwardArgs, Output>>(
              "katt::convert::workspace", exec, katt::convert_dtype::variants<Exec>(), args, config,
              std::move(out), [this](const Output& made) { return verify(made.download()); });
        });
  }

  std::optional<bench::ForeignCase> foreign() override {
    const std::vector<std::int64_t> shape(shape_.x.extent.begin(), shape_.x.extent.end());
    return bench::ForeignCase{.inputs = {{"x", shape, shape_.x.dtype, values_}},
                              .outputs = {{"out", shape, shape_.out.dtype}},
                              .verify = [this](std::span<const std::vector<float>> outputs) {
                                return verify(outputs[0]);
                              }};
  }

 private:
  /// A conversion has one right answer.
  [[nodiscard]] bench::Errors verify(const std::vector<float>& got) const {
    testing::Comparison comparison;
    for (const std::int64_t i : testing::sample(static_cast<std::int64_t>(got.size()), 4096)) {
      const auto at = static_cast<std::size_t>(i);
      comparison.add("out", {i / shape_.x.extent[1], i % shape_.x.extent[1]}, got[at],
                     reference_round(shape_.out.dtype, values_[at]), 0);
    }
    return comparison.result();
  }

  ForwardArgs shape_;
  std::vector<float> values_;
  bench::Tensor<2> x_;
  Backend backend_;
  int threads_;
};

class ConvertOperator final : public bench::Operator {
 public:
  [[nodiscard]] std::string name() const override { return "convert"; }
  [[nodiscard]] std::string summary() const override { return "a matrix in another dtype"; }
  [[nodiscard]] std::vector<AxisSpec> axes() const override {
    return {bench::integer_axis("tokens", 4096, 1, "rows"),
            bench::integer_axis("hidden", 4096, 1, "columns"),
            {.name = "to",
             .fallback = std::string("bf16"),
             .choices = {"f32", "f16", "bf16"},
             .help = "dtype of the output"}};
  }
  [[nodiscard]] std::vector<std::string> passes() const override { return {"forward", "backward"}; }

  [[nodiscard]] std::vector<bench::VariantInfo> variants(Backend backend,
                                                         std::string_view /*pass*/) const override {
    return visit_backend(backend, 0, []<class Exec>(const Exec&) {
      return bench::describe(katt::convert_dtype::variants<Exec>());
    });
  }

  void validate(const Point& /*point*/) const override {}

  [[nodiscard]] Config resolve(const Point& point, const Config& config) const override {
    return visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
      return katt::convert_dtype::variants<Exec>().resolve(exec, shape_of(point), config);
    });
  }

  [[nodiscard]] bench::Footprint footprint(const Point& point,
                                           const Config& /*config*/) const override {
    const ForwardArgs shape = shape_of(point);
    const auto elements = static_cast<std::size_t>(shape.x.size());
    return {elements * (size_of(shape.x.dtype) + sizeof(float)),
            elements * size_of(shape.out.dtype), 0};
  }

  [[nodiscard]] std::unique_ptr<bench::Case> make_case(const Point& point) const override {
    return std::make_unique<ConvertCase>(point);
  }

  void run_file(const io::CaseFile& in, const bench::RunOptions& options,
                io::TensorFile& out) const override {
    const Dtype from = in.dtype();
    const std::string name = in.text("to", "bf16");
    const auto to = dtype_from_name(name);
    if (!to) in.reject("to", "holds " + name + ", expected f32, f16 or bf16");
    const auto shape = in.shape("x", 2, "(T, H)");
    const auto run = [&](const char* input, Dtype source, Dtype target) {
      const std::array<std::int64_t, 2> extents{shape[0], shape[1]};
      const bench::Tensor<2> given("katt::convert::x", options.backend, source, extents);
      const bench::Tensor<2> made("katt::convert::out", options.backend, target, extents);
      given.upload(in.floats(input, shape, "(T, H)").values);
      visit_backend(options.backend, options.threads, [&]<class Exec>(const Exec& exec) {
        const auto& table = katt::convert_dtype::variants<Exec>();
        const Config ran = bench::run_variant("convert", exec, table,
                                              ForwardArgs{given.ref(), made.ref()}, options.config);
        bench::record_variant(out, table, ran, std::string_view(input) == "dout");
      });
      return made.download();
    };
    out.set("out", {shape, run("x", from, *to)});
    if (in.has("dout")) out.set("dx", {shape, run("dout", *to, from)});
  }
};

}  // namespace

void register_op(bench::Registry& registry) { registry.add(std::make_unique<ConvertOperator>()); }

}  // namespace katt::convert_dtype
