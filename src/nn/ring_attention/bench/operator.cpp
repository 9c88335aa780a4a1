#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/adapter.hpp"
#include "bench/ceilings.hpp"
#include "bench/collective.hpp"
#include "core/execution.hpp"
#include "nn/ring_attention/bench/inputs.hpp"

/// Attention of sequences that ranks share, forward and backward (nn/ring_attention.hpp).
namespace katt::ring_attention {

namespace {

using bench::Point;

constexpr const char* ring = "ring";

/// A pass on one rank: its part of the tensors, and what it computes in.
template <class Exec>
class Pass {
 public:
  Pass(const dist::Communicator& group, const Exec& exec, Backend backend, const Inputs& in)
      : group_(group),
        in_(in),
        queries_{in.seq_q, group.size(), group.rank()},
        keys_{in.seq_kv, group.size(), group.rank()},
        shape_{.batch = in.batch,
               .seq = queries_.rows(),
               .heads = in.heads,
               .kv_heads = in.kv_heads,
               .head_dim = in.head_dim},
        q_(tensor(backend, "q", in.q, queries_, in.heads)),
        kv_(keys_and_values(backend)),
        out_(empty(backend, "out", queries_, in.heads)),
        lse_("katt::ring_attention::lse", backend, Dtype::f32,
             {in.batch, in.heads, queries_.rows()}),
        slopes_(slopes(backend)),
        bias_(bias(backend)),
        schedule_(exec, problem(), group.size(), group.rank()),
        pool_("katt::ring_attention::pool"),
        run_(exec, false, pool_, groups()) {
    if (in.backward) {
      dout_ = tensor(backend, "dout", in.dout, queries_, in.heads);
      dq_ = empty(backend, "dq", queries_, in.heads);
      dkv_ = bench::Tensor<2>("katt::ring_attention::dkv", backend, in.dtype,
                              {in.batch * keys_.rows(), 2 * in.kv_heads * in.head_dim});
    }
    nn::Arena sizes;
    (void)nn::lay_out_ring(sizes, in.dtype, shape_, keys_.rows());
    memory_ = nn::DeviceMemory<Exec>("katt::ring_attention::buffers", sizes.bytes(), true);
    nn::Arena arena(memory_.data());
    buffers_ = nn::lay_out_ring(arena, in.dtype, shape_, keys_.rows());
    nn::Runner<Exec> rehearsal(exec, true, {}, groups());
    launch(rehearsal, in.backward);
    if (in.backward) launch(rehearsal, false);
    run_.reserve(rehearsal.workspace_bytes());
  }

  void compute() { launch(run_, in_.backward); }
  void fence() { run_.exec().fence("katt::ring_attention::pass"); }
  /// Once, for the backward pass to read.
  void compute_forward() {
    launch(run_, false);
    fence();
  }
  void poison() {
    (in_.backward ? dq_ : out_).poison();
    if (in_.backward) dkv_.poison();
    else lse_.poison();
  }

  /// The whole outputs, on rank 0; all ranks call it.
  [[nodiscard]] std::vector<Output> gather() const {
    std::vector<Output> all;
    const std::int64_t d = in_.head_dim;
    const std::vector<std::int64_t> q_shape{in_.batch, in_.heads, in_.seq_q, d};
    const std::vector<std::int64_t> k_shape{in_.batch, in_.kv_heads, in_.seq_kv, d};
    const std::int64_t q_size = in_.heads * d, kv_size = in_.kv_heads * d;
    if (!in_.backward) {
      all.push_back({"out", q_shape, whole(out_.download(), queries_, q_size, 0, in_.heads, d)});
      all.push_back({"lse", {in_.batch, in_.heads, in_.seq_q}, whole_lse()});
    } else {
      all.push_back({"dq", q_shape, whole(dq_.download(), queries_, q_size, 0, in_.heads, d)});
      const std::vector<float> dkv = dkv_.download();
      all.push_back({"dk", k_shape, whole(dkv, keys_, 2 * kv_size, 0, in_.kv_heads, d)});
      all.push_back({"dv", k_shape, whole(dkv, keys_, 2 * kv_size, kv_size, in_.kv_heads, d)});
    }
    return all;
  }

 private:
  [[nodiscard]] dist::Groups groups() const {
    dist::Groups groups;
    groups.place = dist::Place(dist::Layout{.context = group_.size()}, group_.rank());
    groups.context = group_;
    return groups;
  }

  [[nodiscard]] nn::RingProblem problem() const {
    nn::RingProblem p{.batch = in_.batch,
                      .seq_q = in_.seq_q,
                      .seq_kv = in_.seq_kv,
                      .score = in_.score,
                      .causal = in_.causal,
                      .window_left = in_.window_left,
                      .window_right = in_.window_right,
                      .kv_len = in_.kv_len,
                      .block_mask = in_.block_mask,
                      .block_size = in_.block_size,
                      .bias = bias_.ref()};
    if (!in_.slopes.empty()) p.score.alibi_slopes = static_cast<const float*>(slopes_.ref().data);
    return p;
  }

  /// Calls f(value of the rank's matrix, value of the whole tensor) by their indices: the matrix has
  /// the heads of a row from a column on, the tensor is (batch, heads, seq, dim).
  template <class F>
  void for_elements(const nn::ZigzagRows& rows, std::int64_t columns, std::int64_t first,
                    std::int64_t heads, std::int64_t dim, const F& f) const {
    const std::vector<std::int64_t> positions = rows.positions();
    for (std::int64_t b = 0; b < in_.batch; ++b) {
      for (std::int64_t i = 0; i < rows.rows(); ++i) {
        const std::int64_t position = positions[static_cast<std::size_t>(i)];
        if (position < 0) continue;
        for (std::int64_t h = 0; h < heads; ++h) {
          for (std::int64_t c = 0; c < dim; ++c) {
            f(static_cast<std::size_t>((b * rows.rows() + i) * columns + first + h * dim + c),
              static_cast<std::size_t>(((b * heads + h) * rows.seq + position) * dim + c));
          }
        }
      }
    }
  }

  [[nodiscard]] bench::Tensor<2> empty(Backend backend, const std::string& name,
                                       const nn::ZigzagRows& rows, std::int64_t heads) const {
    return {"katt::ring_attention::" + name,
            backend,
            in_.dtype,
            {in_.batch * rows.rows(), heads * in_.head_dim}};
  }
  [[nodiscard]] bench::Tensor<2> tensor(Backend backend, const std::string& name,
                                        const std::vector<float>& values,
                                        const nn::ZigzagRows& rows, std::int64_t heads) const {
    bench::Tensor<2> made = empty(backend, name, rows, heads);
    std::vector<float> local(static_cast<std::size_t>(made.ref().size()), 0.0F);
    for_elements(rows, heads * in_.head_dim, 0, heads, in_.head_dim,
                 [&](std::size_t here, std::size_t there) { local[here] = values[there]; });
    made.upload(local);
    return made;
  }
  [[nodiscard]] bench::Tensor<2> keys_and_values(Backend backend) const {
    const std::int64_t size = in_.kv_heads * in_.head_dim;
    bench::Tensor<2> made("katt::ring_attention::kv", backend, in_.dtype,
                          {in_.batch * keys_.rows(), 2 * size});
    std::vector<float> local(static_cast<std::size_t>(made.ref().size()), 0.0F);
    for (const auto& [values, first] : {std::pair(&in_.k, std::int64_t{0}), {&in_.v, size}}) {
      for_elements(keys_, 2 * size, first, in_.kv_heads, in_.head_dim,
                   [&](std::size_t here, std::size_t there) { local[here] = (*values)[there]; });
    }
    made.upload(local);
    return made;
  }
  [[nodiscard]] bench::Tensor<1> slopes(Backend backend) const {
    if (in_.slopes.empty()) return {};
    bench::Tensor<1> made("katt::ring_attention::alibi_slopes", backend, Dtype::f32, {in_.heads});
    made.upload(in_.slopes);
    return made;
  }
  [[nodiscard]] bench::Tensor<4> bias(Backend backend) const {
    if (in_.bias.empty()) return {};
    bench::Tensor<4> made("katt::ring_attention::bias", backend, in_.dtype,
                          {in_.bias_batch, in_.bias_heads, queries_.rows(), in_.seq_kv});
    const std::vector<std::int64_t> positions = queries_.positions();
    const auto keys = static_cast<std::size_t>(in_.seq_kv);
    std::vector<float> local;
    for (std::int64_t one = 0; one < in_.bias_batch * in_.bias_heads; ++one) {
      for (const std::int64_t position : positions) {
        const std::int64_t row = one * in_.seq_q + std::max<std::int64_t>(0, position);
        const auto from = in_.bias.begin() + static_cast<std::ptrdiff_t>(row * in_.seq_kv);
        local.insert(local.end(), from, from + static_cast<std::ptrdiff_t>(keys));
      }
    }
    made.upload(local);
    return made;
  }

  /// In f32 one engine for both passes, whose scores are then rounded alike: in P = exp(S − lse) these
  /// errors cancel, which large scores of few keys need. For few queries auto would take another forward.
  [[nodiscard]] nn::Kernels kernels() const {
    nn::Kernels kernels;
    if (in_.dtype == Dtype::f32) kernels.attention = "flash";
    return kernels;
  }

  void launch(nn::Runner<Exec>& run, bool backward) {
    const auto scale = static_cast<float>(in_.scale);
    const TensorRef<2> q = q_.ref(), kv = kv_.ref(), out = out_.ref();
    if (backward) {
      nn::ring_backward(run, kernels(), shape_,
                        {.q = q,
                         .kv = kv,
                         .out = out,
                         .dout = dout_.ref(),
                         .lse = lse_.ref(),
                         .dq = dq_.ref(),
                         .dkv = dkv_.ref(),
                         .scale = scale},
                        buffers_, schedule_);
    } else {
      nn::ring_forward(run, kernels(), shape_,
                       {.q = q, .kv = kv, .out = out, .lse = lse_.ref(), .scale = scale}, buffers_,
                       schedule_);
    }
  }

  /// The same elements of every rank, one after the other.
  [[nodiscard]] std::vector<float> of_all(std::vector<float> own) const {
    const auto count = static_cast<std::int64_t>(own.size());
    std::vector<float> all(own.size() * static_cast<std::size_t>(group_.size()));
    const TensorRef<1> from(own.data(), Dtype::f32, {count});
    const TensorRef<1> to(all.data(), Dtype::f32, {count * group_.size()});
    group_.all_gather(serial_host(), from, to).wait();
    return all;
  }
  [[nodiscard]] std::vector<float> whole(std::vector<float> own, nn::ZigzagRows rows,
                                         std::int64_t columns, std::int64_t first,
                                         std::int64_t heads, std::int64_t dim) const {
    const std::size_t each = own.size();
    const std::vector<float> all = of_all(std::move(own));
    std::vector<float> values(static_cast<std::size_t>(in_.batch * heads * rows.seq * dim));
    for (rows.rank = 0; rows.rank < group_.size(); ++rows.rank) {
      const std::size_t begin = each * static_cast<std::size_t>(rows.rank);
      for_elements(rows, columns, first, heads, dim,
                   [&](std::size_t here, std::size_t there) { values[there] = all[begin + here]; });
    }
    return values;
  }
  [[nodiscard]] std::vector<float> whole_lse() const {
    const std::vector<float> own = lse_.download();  // (batch, heads, rows)
    std::vector<float> turned(own.size());           // (batch, rows, heads)
    const std::int64_t rows = queries_.rows();
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(own.size()); ++i) {
      const std::int64_t b = i / rows / in_.heads, h = i / rows % in_.heads, s = i % rows;
      turned[static_cast<std::size_t>((b * rows + s) * in_.heads + h)] =
          own[static_cast<std::size_t>(i)];
    }
    return whole(std::move(turned), queries_, in_.heads, 0, in_.heads, 1);
  }

  dist::Communicator group_;
  const Inputs& in_;
  nn::ZigzagRows queries_, keys_;
  nn::RingShape shape_;
  bench::Tensor<2> q_, kv_, out_;
  bench::Tensor<3> lse_;
  bench::Tensor<1> slopes_;
  bench::Tensor<4> bias_;
  bench::Tensor<2> dout_, dq_, dkv_;
  nn::RingSchedule<Exec> schedule_;
  nn::Pool<Exec> pool_;
  nn::Runner<Exec> run_;
  nn::DeviceMemory<Exec> memory_;
  nn::RingBuffers buffers_;
};

template <class Exec>
class Candidate final : public bench::CollectiveCandidate {
 public:
  Candidate(const dist::Communicator& ranks, const Exec& exec, Backend backend, const Inputs& in)
      : CollectiveCandidate(ranks), in_(in) {
    bench::on_all_ranks(group(), [&] { pass_.emplace(group(), exec, backend, in); });
    if (in.backward) pass_->compute_forward();
  }
  void fence() override { pass_->fence(); }
  void poison() override { pass_->poison(); }
  [[nodiscard]] std::string engine() const override { return "dist"; }

 protected:
  void compute() override { pass_->compute(); }
  [[nodiscard]] bench::Errors compare() override {
    const std::vector<Output> outputs = pass_->gather();
    return group().rank() == 0 ? ring_attention::compare(in_, outputs) : bench::Errors{};
  }

 private:
  const Inputs& in_;
  std::optional<Pass<Exec>> pass_;
};

class Case final : public bench::Case {
 public:
  Case(dist::Communicator group, const Point& point)
      : group_(std::move(group)),
        backend_(point.backend),
        threads_(point.threads),
        inputs_(point) {}

  [[nodiscard]] bench::Work work() const override {
    const auto tensors = static_cast<double>(inputs_.q.size() + inputs_.k.size());
    return {
        .flops = inputs_.flops(),
        .bytes = (inputs_.backward ? 4 : 2) * tensors * static_cast<double>(size_of(inputs_.dtype)),
        .compute_ceiling = bench::matrix_ceiling(backend_, inputs_.dtype)};
  }
  [[nodiscard]] Status supports(const Config& /*config*/) const override { return Status::ok(); }
  std::unique_ptr<bench::Candidate> prepare(const Config& /*config*/) override {
    return visit_backend(
        backend_, threads_, [&]<class Exec>(const Exec& exec) -> std::unique_ptr<bench::Candidate> {
          return std::make_unique<Candidate<Exec>>(group_, exec, backend_, inputs_);
        });
  }

 private:
  dist::Communicator group_;
  Backend backend_;
  int threads_;
  Inputs inputs_;
};

class RingAttention final : public bench::CollectiveOperator {
 public:
  [[nodiscard]] std::string name() const override { return "ring_attention"; }
  [[nodiscard]] std::string summary() const override {
    return "attention of sequences that ranks share: keys travel around a ring";
  }
  [[nodiscard]] std::vector<bench::AxisSpec> axes() const override {
    using bench::integer_axis;
    std::vector<bench::AxisSpec> axes{
        integer_axis("batch", 1, 1, "sequences"),
        integer_axis("heads", 8, 1, "query heads"),
        integer_axis("kv_heads", 8, 1, "key/value heads; a divisor of heads"),
        integer_axis("seq_q", 1024, 1, "tokens per sequence, of all ranks"),
        integer_axis("head_dim", 64, 8, "elements per head, a multiple of 8",
                     static_cast<double>(attention::max_head_dim)),
        integer_axis("causal", 1, 0, "1: key j is visible to query i if j <= i", 1),
        integer_axis("window_left", -1, -1, "keys visible to the left; -1: all")};
    axes[2].follows = "heads";
    axes[3].short_name = "seq";
    axes[6].short_name = "window";
    for (const attention::ScoreParameter& parameter : attention::score_parameters) {
      axes.push_back(bench::real_axis(parameter.name, 0.0, parameter.minimum, parameter.maximum,
                                      parameter.help));
    }
    axes.push_back(
        integer_axis("alibi", 0, 0, "1: ALiBi, with the slopes of its paper; causal", 1));
    axes.push_back(bench::ranks_axis());
    return axes;
  }
  [[nodiscard]] std::vector<std::string> passes() const override { return {"forward", "backward"}; }
  [[nodiscard]] std::vector<bench::VariantInfo> variants(Backend /*backend*/,
                                                         std::string_view) const override {
    return {{ring, "keys and values go round while those at hand are attended to", true}};
  }
  [[nodiscard]] Config resolve(const Point& /*point*/, const Config& config) const override {
    return config.variant == auto_variant ? Config{.variant = ring} : config;
  }
  void validate(const Point& point) const override {
    const std::int64_t heads = point.integer("heads"), kv_heads = point.integer("kv_heads");
    if (heads % kv_heads != 0) {
      throw InputError("kv_heads " + std::to_string(kv_heads) + ": does not divide heads " +
                       std::to_string(heads));
    }
    if (const std::int64_t d = point.integer("head_dim"); d % 8 != 0) {
      throw InputError("head_dim " + std::to_string(d) + ": expected a multiple of 8 up to " +
                       std::to_string(attention::max_head_dim));
    }
    if (point.integer("alibi") != 0 && point.integer("causal") == 0) {
      throw InputError("alibi 1 causal 0: a part of a sequence cannot tell it, expected causal 1");
    }
  }
  [[nodiscard]] bench::Footprint footprint(const Point& point,
                                           const Config& /*config*/) const override {
    const auto rows = static_cast<std::size_t>(point.integer("batch") * point.integer("seq_q") /
                                               point.integer("ranks"));
    const auto d = static_cast<std::size_t>(point.integer("head_dim"));
    const std::size_t q = rows * d * static_cast<std::size_t>(point.integer("heads"));
    const std::size_t kv = 2 * rows * d * static_cast<std::size_t>(point.integer("kv_heads"));
    const std::size_t element = size_of(point.dtype);
    const bool backward = point.pass == "backward";
    bench::Footprint bytes;  // the whole problem on the host is each rank's, too
    bytes.tensors = static_cast<std::size_t>(point.integer("ranks")) * sizeof(float) * (2 * q + kv);
    bytes.outputs = element * (backward ? q + kv : q);
    bytes.workspace = element * (4 * q + 5 * kv) + sizeof(float) * (q + 2 * kv);
    return bytes;
  }
  [[nodiscard]] std::unique_ptr<bench::Case> make_case_on(const dist::Communicator& group,
                                                          const Point& point) const override {
    return std::make_unique<Case>(group, point);
  }

  void run_file(const io::CaseFile& in, const bench::RunOptions& options,
                io::TensorFile& out) const override {
    if (options.config.variant != auto_variant && options.config.variant != ring) {
      throw InputError("--variant " + options.config.variant + ": expected " + ring);
    }
    const dist::Communicator ranks = dist::world();
    Inputs inputs(in);
    const bool has_backward = std::exchange(inputs.backward, false);
    visit_backend(options.backend, options.threads, [&]<class Exec>(const Exec& exec) {
      const auto add = [&](Pass<Exec>& pass) {
        pass.fence();
        for (Output& one : pass.gather()) out.set(one.name, {one.shape, std::move(one.values)});
      };
      Pass<Exec> forward(ranks, exec, options.backend, inputs);
      forward.compute();
      add(forward);
      if (!has_backward) return;
      inputs.backward = true;
      Pass<Exec> backward(ranks, exec, options.backend, inputs);
      backward.compute_forward();
      backward.compute();
      add(backward);
    });
    out.set_attribute("variant", std::string(ring));
    out.set_attribute("ranks", std::int64_t{ranks.size()});
  }
};

}  // namespace

void register_op(bench::Registry& registry) { registry.add(std::make_unique<RingAttention>()); }

}  // namespace katt::ring_attention
