#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "bench/adapter.hpp"
#include "bench/candidate.hpp"
#include "io/case_file.hpp"
#include "ops/embedding/embedding.hpp"
#include "ops/embedding/embedding_ref.hpp"
#include "testing/expected.hpp"
#include "testing/fill.hpp"
#include "testing/sample.hpp"

namespace katt::embedding {

namespace {

using bench::AxisSpec;
using bench::Point;
using Output = bench::Tensor<2>;

struct Shape {
  std::int64_t tokens, vocab, hidden;
  Dtype dtype;

  [[nodiscard]] ConstTensorRef<2> table() const { return {nullptr, dtype, {vocab, hidden}}; }
  [[nodiscard]] ConstTensorRef<2> rows() const { return {nullptr, dtype, {tokens, hidden}}; }
};

Shape shape_of(const Point& point) {
  return {point.integer("tokens"), point.integer("vocab"), point.integer("hidden"), point.dtype};
}

BackwardArgs backward_shape(const Shape& shape) {
  BackwardArgs args;
  args.dout = shape.rows();
  args.dweight = {nullptr, shape.dtype, {shape.vocab, shape.hidden}};
  return args;
}

ForwardArgs forward_shape(const Shape& shape) {
  ForwardArgs args;
  args.weight = shape.table();
  args.out = {nullptr, shape.dtype, {shape.tokens, shape.hidden}};
  return args;
}

class EmbeddingCase final : public bench::Case {
 public:
  explicit EmbeddingCase(const Point& point)
      : shape_(shape_of(point)),
        backend_(point.backend),
        threads_(point.threads),
        backward_(point.pass == "backward") {
    // Few ids are frequent and most are rare, as in text: the cube of a uniform variable.
    for (std::int64_t t = 0; t < shape_.tokens; ++t) {
      const double u = testing::uniform(point.seed * 16 + 1, static_cast<std::uint64_t>(t));
      ids_.push_back(static_cast<std::int64_t>(u * u * u * static_cast<double>(shape_.vocab)));
    }
    const ConstTensorRef<2> input = backward_ ? shape_.rows() : shape_.table();
    values_.resize(static_cast<std::size_t>(input.size()));
    testing::fill(values_, point.seed * 16 + 2, shape_.dtype);
    input_ = {"katt::embedding::input", backend_, shape_.dtype, input.extent};
    input_.upload(values_);
    device_ids_ = bench::integer_buffer("katt::embedding::ids", backend_, ids_);
  }

  [[nodiscard]] bench::Work work() const override {
    if (backward_) return {0, backward_bytes(backward_shape(shape_)), "", "copy"};
    return {0, forward_bytes(forward_shape(shape_)), "", "copy"};
  }

  [[nodiscard]] Status supports(const Config& config) const override {
    return visit_backend(backend_, threads_, [&]<class Exec>(const Exec& exec) {
      return backward_ ? backward_variants<Exec>().supports(exec, backward_shape(shape_), config)
                       : forward_variants<Exec>().supports(exec, forward_shape(shape_), config);
    });
  }

  std::unique_ptr<bench::Candidate> prepare(const Config& config) override {
    return visit_backend(
        backend_, threads_, [&]<class Exec>(const Exec& exec) -> std::unique_ptr<bench::Candidate> {
          if (backward_) {
            BackwardArgs args = backward_shape(shape_);
            Output out("katt::embedding::dweight", backend_, shape_.dtype, args.dweight.extent);
            args.dout = input_.ref();
            args.ids = bench::integers_of(device_ids_);
            args.dweight = out.ref();
            check(args);
            return std::make_unique<bench::VariantCandidate<Exec, BackwardArgs, Output>>(
                "katt::embedding::workspace", exec, backward_variants<Exec>(), args, config,
                std::move(out),
                [this](const Output& made) { return verify_dweight(made.download()); });
          }
          ForwardArgs args = forward_shape(shape_);
          Output out("katt::embedding::out", backend_, shape_.dtype, args.out.extent);
          args.weight = input_.ref();
          args.ids = bench::integers_of(device_ids_);
          args.out = out.ref();
          check(args);
          return std::make_unique<bench::VariantCandidate<Exec, ForwardArgs, Output>>(
              "katt::embedding::workspace", exec, forward_variants<Exec>(), args, config,
              std::move(out), [this](const Output& made) { return verify_out(made.download()); });
        });
  }

  std::optional<bench::ForeignCase> foreign() override {
    const std::vector<std::int64_t> table{shape_.vocab, shape_.hidden};
    const std::vector<std::int64_t> rows{shape_.tokens, shape_.hidden};
    bench::ForeignCase foreign;
    foreign.inputs = {
        {backward_ ? "dout" : "weight", backward_ ? rows : table, shape_.dtype, values_},
        {"ids", {shape_.tokens}, Dtype::f32, {}, ids_}};
    foreign.outputs = {{backward_ ? "dweight" : "out", backward_ ? table : rows, shape_.dtype}};
    foreign.verify = [this](std::span<const std::vector<float>> outputs) {
      return backward_ ? verify_dweight(outputs[0]) : verify_out(outputs[0]);
    };
    return foreign;
  }

 private:
  [[nodiscard]] bench::Errors verify_out(const std::vector<float>& got) const {
    testing::Comparison comparison;
    for (const std::int64_t i : testing::sample(static_cast<std::int64_t>(got.size()), 4096)) {
      const std::int64_t t = i / shape_.hidden;
      const std::int64_t c = i % shape_.hidden;
      const std::int64_t id = ids_[static_cast<std::size_t>(t)];
      comparison.add("out", {t, c}, got[static_cast<std::size_t>(i)],
                     values_[static_cast<std::size_t>(id * shape_.hidden + c)], 0);
    }
    return comparison.result();
  }

  /// Rows without tokens, the rows of the first tokens, and the most frequent one, 0.
  [[nodiscard]] bench::Errors verify_dweight(const std::vector<float>& got) const {
    auto rows = testing::sample(shape_.vocab, 16);
    for (std::size_t t = 0; t < std::min<std::size_t>(16, ids_.size()); ++t)
      rows.push_back(ids_[t]);
    testing::Comparison comparison;
    for (const std::int64_t row : rows) {
      const auto exact = reference_dweight(values_, ids_, shape_.hidden, row);
      const auto unfused = unfused_dweight(values_, ids_, shape_.hidden, row, shape_.dtype);
      testing::ErrorRule rule(shape_.dtype);
      for (std::size_t c = 0; c < exact.size(); ++c) rule.add(exact[c], unfused[c]);
      for (std::size_t c = 0; c < exact.size(); ++c) {
        comparison.add("dweight", {row, static_cast<std::int64_t>(c)},
                       got[static_cast<std::size_t>(row * shape_.hidden) + c], exact[c],
                       rule.limit());
      }
    }
    return comparison.result();
  }

  Shape shape_;
  std::vector<float> values_;  ///< weight, or dout
  std::vector<std::int64_t> ids_;
  bench::Tensor<2> input_;
  bench::Buffer device_ids_;
  Backend backend_;
  int threads_;
  bool backward_;
};

class EmbeddingOperator final : public bench::Operator {
 public:
  [[nodiscard]] std::string name() const override { return "embedding"; }
  [[nodiscard]] std::string summary() const override { return "rows of a table by index"; }
  [[nodiscard]] std::vector<AxisSpec> axes() const override {
    return {bench::integer_axis("tokens", 4096, 1, "ids"),
            bench::integer_axis("vocab", 32000, 1, "rows of the table"),
            bench::integer_axis("hidden", 4096, 1, "columns of the table")};
  }
  [[nodiscard]] std::vector<std::string> passes() const override { return {"forward", "backward"}; }

  [[nodiscard]] std::vector<bench::VariantInfo> variants(Backend backend,
                                                         std::string_view pass) const override {
    return visit_backend(backend, 0, [&]<class Exec>(const Exec&) {
      return pass == "backward" ? bench::describe(backward_variants<Exec>())
                                : bench::describe(forward_variants<Exec>());
    });
  }

  void validate(const Point& /*point*/) const override {}

  [[nodiscard]] Config resolve(const Point& point, const Config& config) const override {
    const Shape shape = shape_of(point);
    return visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
      return point.pass == "backward"
                 ? backward_variants<Exec>().resolve(exec, backward_shape(shape), config)
                 : forward_variants<Exec>().resolve(exec, forward_shape(shape), config);
    });
  }

  [[nodiscard]] bench::Footprint footprint(const Point& point,
                                           const Config& config) const override {
    const Shape shape = shape_of(point);
    const bool backward = point.pass == "backward";
    const auto table = static_cast<std::size_t>(shape.table().size());
    const auto rows = static_cast<std::size_t>(shape.rows().size());
    const std::size_t element = size_of(shape.dtype);
    bench::Footprint bytes;
    bytes.tensors = (backward ? rows : table) * (element + sizeof(float)) +
                    static_cast<std::size_t>(shape.tokens) * 16;
    bytes.outputs = (backward ? table : rows) * element;
    bytes.workspace =
        visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
          return backward
                     ? backward_variants<Exec>().workspace_bytes(exec, backward_shape(shape),
                                                                 config)
                     : forward_variants<Exec>().workspace_bytes(exec, forward_shape(shape), config);
        });
    return bytes;
  }

  [[nodiscard]] std::unique_ptr<bench::Case> make_case(const Point& point) const override {
    return std::make_unique<EmbeddingCase>(point);
  }

  void run_file(const io::CaseFile& in, const bench::RunOptions& options,
                io::TensorFile& out) const override {
    const Dtype dtype = in.dtype();
    const auto table = in.shape("weight", 2, "(V, H)");
    const auto ids = in.integers("ids", {-1}, "(T)");
    const Shape shape{ids.shape[0], table[0], table[1], dtype};
    for (const std::int64_t id : ids.values) {
      if (id < 0 || id >= shape.vocab) {
        in.reject("ids", "holds " + std::to_string(id) + ", expected 0 to " +
                             std::to_string(shape.vocab - 1));
      }
    }
    const bench::Buffer device_ids =
        bench::integer_buffer("katt::embedding::ids", options.backend, ids.values);
    const Output weight("katt::embedding::weight", options.backend, dtype, shape.table().extent);
    weight.upload(in.floats("weight", table, "(V, H)").values);
    const Output rows("katt::embedding::out", options.backend, dtype, shape.rows().extent);
    visit_backend(options.backend, options.threads, [&]<class Exec>(const Exec& exec) {
      ForwardArgs args = forward_shape(shape);
      args.weight = weight.ref();
      args.ids = bench::integers_of(device_ids);
      args.out = rows.ref();
      check(args);
      const auto& forward = forward_variants<Exec>();
      const auto& backward = backward_variants<Exec>();
      bench::record_variant(out, forward,
                            bench::run_variant(name(), exec, forward, args, options.config));
      out.set("out", {{shape.tokens, shape.hidden}, rows.download()});
      if (!in.has("dout")) return;
      rows.upload(in.floats("dout", {shape.tokens, shape.hidden}, "(T, H)").values);
      const Output dweight("katt::embedding::dweight", options.backend, dtype,
                           shape.table().extent);
      BackwardArgs back = backward_shape(shape);
      back.dout = rows.ref();
      back.ids = args.ids;
      back.dweight = dweight.ref();
      check(back);
      bench::record_variant(out, backward,
                            bench::run_variant(name(), exec, backward, back, options.config), true);
      out.set("dweight", {table, dweight.download()});
    });
  }
};

}  // namespace

void register_op(bench::Registry& registry) { registry.add(std::make_unique<EmbeddingOperator>()); }

}  // namespace katt::embedding
