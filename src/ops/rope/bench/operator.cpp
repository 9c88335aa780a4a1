#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "bench/adapter.hpp"
#include "bench/candidate.hpp"
#include "bench/machine.hpp"
#include "bench/registry.hpp"
#include "bench/text.hpp"
#include "core/error.hpp"
#include "io/case_file.hpp"
#include "ops/rope/bench/case.hpp"
#include "testing/fill.hpp"

namespace katt::rope {

namespace {

using bench::AxisSpec;
using bench::HeadLayout;
using bench::Point;

template <class Exec, class Args>
const VariantTable<Exec, Args>& variants_of() {
  if constexpr (std::is_same_v<Args, ForwardArgs>) {
    return forward_variants<Exec>();
  } else {
    return backward_variants<Exec>();
  }
}

/// Calls f.operator()<Exec, Args>(exec) for a backend and a pass.
template <class F>
decltype(auto) visit(Backend backend, int threads, std::string_view pass, const F& f) {
  return visit_backend(backend, threads, [&]<class Exec>(const Exec& exec) {
    return pass == "backward" ? f.template operator()<Exec, BackwardArgs>(exec)
                              : f.template operator()<Exec, ForwardArgs>(exec);
  });
}

HeadLayout layout_of(const Point& point) {
  return point.choice("layout") == "bshd" ? HeadLayout::bshd : HeadLayout::bhsd;
}
bool explicit_positions(const Point& point) { return point.choice("positions") == "random"; }

/// The shape of a point, without values.
HostProblem problem_of(const Point& point) {
  HostProblem p;
  p.batch = point.integer("batch");
  p.heads = point.integer("heads");
  p.seq = point.integer("seq_q");
  p.head_dim = point.integer("head_dim");
  p.interleaved = point.integer("interleaved") != 0;
  p.backward = point.pass == "backward";
  p.frequencies.theta = 500000.0;
  p.frequencies.scaling = Scaling::llama3;
  return p;
}

Tensors shapes_of(const Point& point) {
  return shapes_of(problem_of(point), point.integer("kv_heads"), point.dtype,
                   explicit_positions(point));
}

/// Seeded inputs of a point.
std::unique_ptr<ProblemData> generate(const Point& point) {
  auto data = std::make_unique<ProblemData>();
  HostProblem& p = data->shape;
  p = problem_of(point);
  data->dtype = point.dtype;
  data->kv_heads = point.integer("kv_heads");
  const auto values = [&](std::int64_t heads, std::uint64_t stream) {
    std::vector<float> filled(static_cast<std::size_t>(p.batch * heads * p.seq * p.head_dim));
    testing::fill(filled, point.seed * 16 + stream, point.dtype);
    return filled;
  };
  data->x = values(p.heads, 1);
  data->x2 = values(data->kv_heads, 2);
  if (explicit_positions(point)) {
    constexpr double context = 131072;
    for (std::int64_t i = 0; i < p.batch * p.seq; ++i) {
      const double u = testing::uniform(point.seed * 16 + 3, static_cast<std::uint64_t>(i));
      data->positions.push_back(static_cast<std::int64_t>(u * context));
    }
  }
  data->link();
  return data;
}

class RopeCase final : public bench::Case {
 public:
  explicit RopeCase(const Point& point)
      : point_(point),
        in_place_(point.integer("in_place") != 0),
        data_(generate(point)),
        device_(*data_, point.backend, point.threads, layout_of(point), !in_place_) {}

  [[nodiscard]] bench::Work work() const override {
    Tensors shapes = shapes_of(point_);
    shapes.positions = device_.tensors().positions;
    const auto args = shapes.args<ForwardArgs>();
    return {forward_flops(args), forward_bytes(args, shapes.cache.extent[0]), "", "copy"};
  }

  [[nodiscard]] Status supports(const Config& config) const override {
    return visit(
        point_.backend, point_.threads, point_.pass, [&]<class Exec, class Args>(const Exec& exec) {
          return variants_of<Exec, Args>().supports(exec, shapes_of(point_).args<Args>(), config);
        });
  }

  std::unique_ptr<bench::Candidate> prepare(const Config& config) override {
    if (!reference_) reference_.emplace(*data_);
    return visit(
        point_.backend, point_.threads, point_.pass,
        [&]<class Exec, class Args>(const Exec& exec) -> std::unique_ptr<bench::Candidate> {
          DeviceOutput output(*data_, point_.backend, layout_of(point_), in_place_);
          Tensors tensors = device_.tensors();
          output.link(tensors);
          const Args args = tensors.args<Args>();
          check(args);
          return std::make_unique<bench::VariantCandidate<Exec, Args, DeviceOutput>>(
              "katt::rope::workspace", exec, variants_of<Exec, Args>(), args, config,
              std::move(output),
              [this](const DeviceOutput& made) { return reference_->compare(made); });
        });
  }

  /// Another program reads the rows of the angles' table in the order of the tokens.
  std::optional<bench::ForeignCase> foreign() override {
    if (in_place_ || data_->kv_heads == 0) return std::nullopt;
    if (!reference_) reference_.emplace(*data_);
    cache_ = device_.cache();
    const HostProblem& p = data_->shape;
    const std::vector<std::int64_t> x{p.batch, p.heads, p.seq, p.head_dim};
    const std::vector<std::int64_t> x2{p.batch, data_->kv_heads, p.seq, p.head_dim};
    const std::int64_t rows = cache_rows(p, explicit_positions(point_));
    const bool back = point_.pass == "backward";
    return bench::ForeignCase{.inputs = {{back ? "dout" : "x", x, data_->dtype, data_->x},
                                         {back ? "dout2" : "x2", x2, data_->dtype, data_->x2},
                                         {"cache", {rows, p.head_dim}, Dtype::f32, cache_}},
                              .outputs = {{back ? "dx" : "out", x, data_->dtype},
                                          {back ? "dx2" : "out2", x2, data_->dtype}},
                              .verify = [this](std::span<const std::vector<float>> outputs) {
                                const DeviceOutput made(*data_, point_.backend, layout_of(point_),
                                                        false);
                                made.out.upload(outputs[0]);
                                made.out2.upload(outputs[1]);
                                return reference_->compare(made);
                              }};
  }

 private:
  Point point_;
  bool in_place_;
  std::unique_ptr<ProblemData> data_;
  DeviceProblem device_;
  std::optional<Reference> reference_;
  std::vector<float> cache_;  ///< of foreign()
};

/// Reads a problem from a case file.
std::unique_ptr<ProblemData> read(const io::CaseFile& file) {
  auto data = std::make_unique<ProblemData>();
  HostProblem& p = data->shape;
  data->dtype = file.dtype();
  const char* axes = "(B, H, S, D)";
  const auto shape = file.shape("x", 4, axes);
  p.batch = shape[0];
  p.heads = shape[1];
  p.seq = shape[2];
  p.head_dim = shape[3];
  p.interleaved = file.integer("interleaved", 0) != 0;
  FrequencyArgs& f = p.frequencies;
  f.theta = file.real("theta");
  const std::string scaling = file.text("rope_scaling", "");
  if (scaling == "llama3") {
    f.scaling = Scaling::llama3;
    f.factor = file.real("rope_factor");
    f.low_freq_factor = file.real("low_freq_factor");
    f.high_freq_factor = file.real("high_freq_factor");
    f.original_max_position = file.integer("original_max_position");
  } else if (!scaling.empty()) {
    file.reject("rope_scaling", "holds " + scaling + ", expected llama3 or none at all");
  }
  try {
    (void)frequencies(f, p.head_dim);
  } catch (const InputError& error) {
    throw InputError(file.path().string() + ": " + error.what());
  }
  data->x = file.floats("x", shape, axes).values;
  if (file.has("positions")) {
    data->positions = file.integers("positions", {p.batch, p.seq}, "(B, S)").values;
    constexpr std::int64_t largest = std::int64_t{1} << 53U;
    for (const std::int64_t position : data->positions) {
      if (position > largest || position < -largest) {
        file.reject("positions", "holds " + std::to_string(position) + ", expected at most 2^53");
      }
    }
  }
  data->link();
  return data;
}

/// Runs one pass on the tensors of a problem and returns its output.
template <class Args>
std::vector<float> run_pass(const ProblemData& data, const bench::RunOptions& options,
                            const std::string& path, io::TensorFile& out) {
  return visit_backend(options.backend, options.threads, [&]<class Exec>(const Exec& exec) {
    const bool positions = !data.positions.empty();
    const Args shapes = shapes_of(data.shape, 0, data.dtype, positions).args<Args>();
    const auto& table = variants_of<Exec, Args>();
    const Config config = table.resolve(exec, shapes, options.config);
    bench::record_variant(out, table, config, std::is_same_v<Args, BackwardArgs>);
    if (const Status status = table.supports(exec, shapes, config); !status.is_ok()) {
      throw InputError("rope: " + status.reason());
    }
    const std::size_t needed =
        table.workspace_bytes(exec, shapes, config) + 2 * data.x.size() * 4 +
        static_cast<std::size_t>(cache_rows(data.shape, positions) * data.shape.head_dim) * 4;
    if (const std::size_t available = bench::available_memory(options.backend);
        needed > available) {
      throw InputError(path + ": variant " + config.variant + " needs " +
                       bench::human_bytes(static_cast<double>(needed)) + ", " +
                       bench::human_bytes(static_cast<double>(available)) + " are available");
    }
    const DeviceProblem problem(data, options.backend, options.threads, HeadLayout::bhsd, true);
    const DeviceOutput output(data, options.backend, HeadLayout::bhsd, false);
    Tensors tensors = problem.tensors();
    output.link(tensors);
    const Args args = tensors.args<Args>();
    check(args);
    const bench::Buffer workspace("katt::rope::workspace", options.backend,
                                  table.workspace_bytes(exec, args, config));
    if (const Status status = table.run(exec, args, config, workspace.workspace());
        !status.is_ok()) {
      throw InputError("rope: " + status.reason());
    }
    exec.fence("katt::rope::run_file");
    return output.out.download();
  });
}

class RopeOperator final : public bench::Operator {
 public:
  [[nodiscard]] std::string name() const override { return "rope"; }
  [[nodiscard]] std::string summary() const override {
    return "rotary position embedding of Q, or of Q and K";
  }

  [[nodiscard]] std::vector<AxisSpec> axes() const override {
    constexpr double largest_extent = 1LL << 31;
    const auto integer = [](const char* name, std::int64_t fallback, double minimum, double maximum,
                            const char* help) {
      return AxisSpec{
          .name = name, .fallback = fallback, .minimum = minimum, .maximum = maximum, .help = help};
    };
    std::vector<AxisSpec> axes{
        integer("batch", 1, 1, largest_extent, "sequences"),
        integer("heads", 32, 1, largest_extent, "heads of x"),
        integer("kv_heads", 0, 0, largest_extent,
                "heads of a second tensor turned in the same launch; 0: none"),
        integer("seq_q", 2048, 1, largest_extent, "positions per sequence"),
        integer("head_dim", 128, 2, static_cast<double>(max_head_dim), "elements per head, even"),
        integer("interleaved", 0, 0, 1, "1: pairs (2i, 2i+1); 0: (i, i + head_dim/2)"),
        integer("in_place", 0, 0, 1, "1: the output is the input"),
        {.name = "layout",
         .fallback = std::string("bhsd"),
         .choices = {"bhsd", "bshd"},
         .help = "storage order of the tensors"},
        {.name = "positions",
         .fallback = std::string("sequence"),
         .choices = {"sequence", "random"},
         .help = "sequence: 0, 1, …; random: an explicit one per query"},
    };
    for (AxisSpec& axis : axes) {
      if (axis.name == "seq_q") axis.short_name = "seq";
    }
    return axes;
  }

  [[nodiscard]] std::vector<std::string> passes() const override { return {"forward", "backward"}; }

  [[nodiscard]] std::vector<bench::VariantInfo> variants(Backend backend,
                                                         std::string_view pass) const override {
    return visit(backend, 0, pass, []<class Exec, class Args>(const Exec&) {
      return bench::describe(variants_of<Exec, Args>());
    });
  }

  void validate(const Point& point) const override {
    if (const std::int64_t d = point.integer("head_dim"); d % 2 != 0) {
      throw InputError("head_dim " + std::to_string(d) + ": expected an even number up to " +
                       std::to_string(max_head_dim));
    }
  }

  [[nodiscard]] Config resolve(const Point& point, const Config& config) const override {
    return visit(
        point.backend, point.threads, point.pass, [&]<class Exec, class Args>(const Exec& exec) {
          return variants_of<Exec, Args>().resolve(exec, shapes_of(point).args<Args>(), config);
        });
  }

  [[nodiscard]] bench::Footprint footprint(const Point& point,
                                           const Config& config) const override {
    const HostProblem p = problem_of(point);
    const auto element = static_cast<double>(size_of(point.dtype));
    const double rows = static_cast<double>(p.batch) * static_cast<double>(p.seq);
    const double size = rows * static_cast<double>(p.head_dim) *
                        static_cast<double>(p.heads + point.integer("kv_heads"));
    const double angles = 4.0 * static_cast<double>(p.head_dim) *
                          (explicit_positions(point) ? rows : static_cast<double>(p.seq));
    bench::Footprint bytes;
    bytes.outputs = static_cast<std::size_t>(element * size);
    const double inputs = point.integer("in_place") != 0 ? 0 : element * size;
    bytes.tensors = static_cast<std::size_t>(inputs + 4.0 * size + angles +
                                             (explicit_positions(point) ? 16.0 * rows : 0.0));
    bytes.workspace = visit(point.backend, point.threads, point.pass,
                            [&]<class Exec, class Args>(const Exec& exec) {
                              return variants_of<Exec, Args>().workspace_bytes(
                                  exec, shapes_of(point).args<Args>(), config);
                            });
    return bytes;
  }

  [[nodiscard]] std::unique_ptr<bench::Case> make_case(const Point& point) const override {
    return std::make_unique<RopeCase>(point);
  }

  void run_file(const io::CaseFile& in, const bench::RunOptions& options,
                io::TensorFile& out) const override {
    const std::unique_ptr<ProblemData> data = read(in);
    const HostProblem& p = data->shape;
    const std::vector<std::int64_t> shape{p.batch, p.heads, p.seq, p.head_dim};
    const std::string path = in.path().string();
    out.set("out", {shape, run_pass<ForwardArgs>(*data, options, path, out)});
    if (!in.has("dout")) return;
    data->x = in.floats("dout", shape, "(B, H, S, D)").values;
    data->link();
    out.set("dx", {shape, run_pass<BackwardArgs>(*data, options, path, out)});
  }
};

}  // namespace

void register_op(bench::Registry& registry) { registry.add(std::make_unique<RopeOperator>()); }

}  // namespace katt::rope
