#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/execution.hpp"
#include "nn/context/gathered_attention.hpp"
#include "nn/context/ring_attention/bench/inputs.hpp"
#include "nn/context/ulysses_attention.hpp"
#include "op/adapter.hpp"

/// Attention of sequences that ranks share, in each of its variants.
namespace katt::ring_attention {

inline constexpr const char* ring = "ring";
inline constexpr const char* ulysses = "ulysses";
inline constexpr const char* gathered = "gathered";

/// A pass of a variant on one rank: its part of the tensors, and its memory.
template <class Exec>
class Pass {
 public:
  Pass(const std::string& variant, const ranks::Communicator& group, const Exec& exec,
       Backend backend, const Inputs& in)
      : is_ring_(variant == ring),
        is_by_heads_(variant == ulysses),
        group_(group),
        in_(in),
        queries_{in.seq_q, group.size(), group.rank()},
        keys_{in.seq_kv, group.size(), group.rank()},
        shape_{.batch = in.batch,
               .seq = queries_.rows(),
               .heads = in.heads,
               .kv_heads = in.kv_heads,
               .head_dim = in.head_dim},
        whole_{.batch = in.batch,
               .seq_q = in.seq_q,
               .seq_kv = in.seq_kv,
               .heads = in.heads,
               .kv_heads = in.kv_heads,
               .head_dim = in.head_dim,
               .ranks = group.size(),
               .rank = group.rank()},
        q_(tensor(backend, "q", in.q, queries_, in.heads)),
        kv_(keys_and_values(backend)),
        out_(empty(backend, "out", queries_, in.heads)),
        lse_("katt::ring_attention::lse", backend, Dtype::f32,
             {in.batch, is_by_heads_ ? whole_.own_heads() : in.heads,
              is_by_heads_ ? in.seq_q : queries_.rows()}),
        slopes_(slopes(backend)),
        bias_(bias(backend)),
        pool_("katt::ring_attention::pool"),
        run_(exec, false, pool_, groups()) {
    if (is_by_heads_) {
      make_rule(exec);
    } else {
      schedule_.emplace(exec, problem(), group.size(), group.rank(), !is_ring_);
    }
    if (in.backward) {
      dout_ = tensor(backend, "dout", in.dout, queries_, in.heads);
      dq_ = empty(backend, "dq", queries_, in.heads);
      dkv_ = bench::Tensor<2>("katt::ring_attention::dkv", backend, in.dtype,
                              {in.batch * keys_.rows(), 2 * in.kv_heads * in.head_dim});
    }
    nn::Arena sizes;
    lay_out(sizes);
    memory_ = nn::DeviceMemory<Exec>("katt::ring_attention::buffers", sizes.bytes(), true);
    nn::Arena arena(memory_.data());
    lay_out(arena);
    nn::Runner<Exec> rehearsal(exec, true, {}, groups());
    launch(rehearsal, in.backward);
    if (in.backward) launch(rehearsal, false);
    run_.reserve(rehearsal.workspace_bytes());
  }

  void compute() { launch(run_, in_.backward); }
  void fence() { run_.exec().fence("katt::ring_attention::pass"); }
  /// Runs once, for the backward pass to read.
  void compute_forward() {
    launch(run_, false);
    fence();
  }
  void poison() {
    (in_.backward ? dq_ : out_).poison();
    if (in_.backward) dkv_.poison();
    else lse_.poison();
  }

  /// Takes over inputs that have changed (Inputs::change()), and what the backward pass reads of the
  /// forward pass.
  void renew(bool all) {
    if (in_.backward) fill(dout_, in_.dout, queries_, in_.heads);
    if (in_.backward && !all) return;
    fill(q_, in_.q, queries_, in_.heads);
    fill_keys_and_values(kv_);
    if (in_.backward) compute_forward();
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
      all.push_back({"lse",
                     {in_.batch, in_.heads, in_.seq_q},
                     is_by_heads_ ? lse_of_all_heads() : whole_lse()});
    } else {
      all.push_back({"dq", q_shape, whole(dq_.download(), queries_, q_size, 0, in_.heads, d)});
      const std::vector<float> dkv = dkv_.download();
      all.push_back({"dk", k_shape, whole(dkv, keys_, 2 * kv_size, 0, in_.kv_heads, d)});
      all.push_back({"dv", k_shape, whole(dkv, keys_, 2 * kv_size, kv_size, in_.kv_heads, d)});
    }
    return all;
  }

 private:
  void lay_out(nn::Arena& arena) {
    if (is_ring_) {
      ring_buffers_ = nn::lay_out_ring(arena, in_.dtype, shape_, keys_.rows());
    } else if (is_by_heads_) {
      ulysses_buffers_ = nn::lay_out_ulysses(arena, in_.dtype, whole_, in_.backward);
    } else {
      gathered_buffers_ = nn::lay_out_gathered(arena, in_.dtype, shape_, keys_, in_.backward);
    }
  }

  /// The masks of whole sequences, with their tables in the memory of the execution space, for the
  /// heads of this rank.
  void make_rule(const Exec& exec) {
    const std::size_t lengths = in_.kv_len.size_bytes();
    const std::vector<std::uint8_t> blocks(in_.block_mask.begin(), in_.block_mask.end());
    rule_.score = problem().score;
    if (rule_.score.alibi_slopes != nullptr) {
      rule_.score.alibi_slopes += group_.rank() * whole_.own_heads();
    }
    rule_.mask = {.causal = in_.causal,
                  .window_left = in_.window_left,
                  .window_right = in_.window_right,
                  .bias = bias_.ref()};
    if (lengths + blocks.size() == 0) return;
    tables_ = nn::DeviceMemory<Exec>("katt::ring_attention::masks", lengths + blocks.size(), false);
    if (lengths > 0) {
      nn::copy_from_host(exec, std::as_bytes(in_.kv_len), tables_.data());
      rule_.mask.kv_len = reinterpret_cast<const std::int64_t*>(tables_.data());
    }
    if (blocks.empty()) return;
    nn::copy_from_host(exec, std::as_bytes(std::span(blocks)), tables_.data() + lengths);
    rule_.mask.block_mask = reinterpret_cast<const std::uint8_t*>(tables_.data() + lengths);
    rule_.mask.block_size = in_.block_size;
  }

  [[nodiscard]] ranks::Groups groups() const {
    ranks::Groups groups;
    groups.place = ranks::Place(ranks::Layout{.context = group_.size()}, group_.rank());
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
    p.score.alibi_slopes = static_cast<const float*>(slopes_.ref().data);
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
                                        std::span<const float> values, const nn::ZigzagRows& rows,
                                        std::int64_t heads) const {
    bench::Tensor<2> made = empty(backend, name, rows, heads);
    fill(made, values, rows, heads);
    return made;
  }
  /// With the rows of this rank.
  void fill(const bench::Tensor<2>& made, std::span<const float> values, const nn::ZigzagRows& rows,
            std::int64_t heads) const {
    std::vector<float> local(static_cast<std::size_t>(made.ref().size()), 0.0F);
    for_elements(rows, heads * in_.head_dim, 0, heads, in_.head_dim,
                 [&](std::size_t here, std::size_t there) { local[here] = values[there]; });
    made.upload(local);
  }
  [[nodiscard]] bench::Tensor<2> keys_and_values(Backend backend) const {
    const std::int64_t size = in_.kv_heads * in_.head_dim;
    bench::Tensor<2> made("katt::ring_attention::kv", backend, in_.dtype,
                          {in_.batch * keys_.rows(), 2 * size});
    fill_keys_and_values(made);
    return made;
  }
  void fill_keys_and_values(const bench::Tensor<2>& made) const {
    const std::int64_t size = in_.kv_heads * in_.head_dim;
    std::vector<float> local(static_cast<std::size_t>(made.ref().size()), 0.0F);
    for (const auto& [values, first] : {std::pair(&in_.k, std::int64_t{0}), {&in_.v, size}}) {
      for_elements(keys_, 2 * size, first, in_.kv_heads, in_.head_dim,
                   [&](std::size_t here, std::size_t there) { local[here] = (*values)[there]; });
    }
    made.upload(local);
  }
  [[nodiscard]] bench::Tensor<1> slopes(Backend backend) const {
    if (in_.score.alibi_slopes == nullptr) return {};
    bench::Tensor<1> made("katt::ring_attention::alibi_slopes", backend, Dtype::f32, {in_.heads});
    made.upload(std::span(in_.score.alibi_slopes, static_cast<std::size_t>(in_.heads)));
    return made;
  }
  /// Log-sum-exp of the own queries and all heads, or, by heads, of all queries and the own heads.
  [[nodiscard]] bench::Tensor<4> bias(Backend backend) const {
    if (in_.bias.empty()) return {};
    const bool some_heads = is_by_heads_ && in_.bias_heads > 1;
    const std::int64_t heads = some_heads ? whole_.own_heads() : in_.bias_heads;
    const std::int64_t first = some_heads ? group_.rank() * heads : 0;
    std::vector<std::int64_t> positions(static_cast<std::size_t>(in_.seq_q));
    std::iota(positions.begin(), positions.end(), std::int64_t{0});
    if (!is_by_heads_) positions = queries_.positions();
    bench::Tensor<4> made("katt::ring_attention::bias", backend, in_.dtype,
                          {in_.bias_batch, heads, std::ssize(positions), in_.seq_kv});
    std::vector<float> local;
    for (std::int64_t one = 0; one < in_.bias_batch * heads; ++one) {
      const std::int64_t matrix = one / heads * in_.bias_heads + first + one % heads;
      for (const std::int64_t position : positions) {
        const std::int64_t row = matrix * in_.seq_q + std::max<std::int64_t>(0, position);
        const auto from = in_.bias.begin() + static_cast<std::ptrdiff_t>(row * in_.seq_kv);
        local.insert(local.end(), from, from + static_cast<std::ptrdiff_t>(in_.seq_kv));
      }
    }
    made.upload(local);
    return made;
  }

  void launch(nn::Runner<Exec>& run, bool backward) {
    const nn::Kernels kernels;
    const auto scale = static_cast<float>(in_.scale);
    const TensorRef<2> q = q_.ref(), kv = kv_.ref(), out = out_.ref();
    if (backward) {
      const nn::RingBackwardArgs args{.q = q,
                                      .kv = kv,
                                      .out = out,
                                      .dout = dout_.ref(),
                                      .lse = lse_.ref(),
                                      .dq = dq_.ref(),
                                      .dkv = dkv_.ref(),
                                      .scale = scale};
      if (is_ring_) {
        nn::ring_backward(run, kernels, shape_, args, ring_buffers_, *schedule_);
      } else if (is_by_heads_) {
        nn::ulysses_backward(run, kernels, whole_, args, rule_, ulysses_buffers_);
      } else {
        nn::gathered_backward(run, kernels, shape_, keys_, args, gathered_buffers_, *schedule_);
      }
      return;
    }
    const nn::RingForwardArgs args{.q = q,
                                   .kv = kv,
                                   .out = out,
                                   .lse = lse_.ref(),
                                   .scale = scale,
                                   .for_backward = in_.backward};
    if (is_ring_) {
      nn::ring_forward(run, kernels, shape_, args, ring_buffers_, *schedule_);
    } else if (is_by_heads_) {
      nn::ulysses_forward(run, kernels, whole_, args, rule_, ulysses_buffers_);
    } else {
      nn::gathered_forward(run, kernels, shape_, keys_, args, gathered_buffers_, *schedule_);
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

  /// Elements of (batch, own heads, seq) of every rank.
  [[nodiscard]] std::vector<float> lse_of_all_heads() const {
    const std::vector<float> all = of_all(lse_.download());
    std::vector<float> values(all.size());
    const std::int64_t heads = whole_.own_heads();
    for (std::int64_t i = 0; i < std::ssize(all); ++i) {
      const std::int64_t s = i % in_.seq_q, h = i / in_.seq_q % heads;
      const std::int64_t b = i / in_.seq_q / heads % in_.batch;
      const std::int64_t rank = i / in_.seq_q / heads / in_.batch;
      values[static_cast<std::size_t>((b * in_.heads + rank * heads + h) * in_.seq_q + s)] =
          all[static_cast<std::size_t>(i)];
    }
    return values;
  }

  bool is_ring_, is_by_heads_;  ///< gathered keys and values
  ranks::Communicator group_;
  const Inputs& in_;
  nn::ZigzagRows queries_, keys_;
  nn::RingShape shape_;
  nn::UlyssesShape whole_;
  bench::Tensor<2> q_, kv_, out_;
  bench::Tensor<3> lse_;
  bench::Tensor<1> slopes_;
  bench::Tensor<4> bias_;
  bench::Tensor<2> dout_, dq_, dkv_;
  std::optional<nn::RingSchedule<Exec>> schedule_;
  nn::UlyssesRule rule_;
  nn::DeviceMemory<Exec> tables_;
  nn::Pool<Exec> pool_;
  nn::Runner<Exec> run_;
  nn::DeviceMemory<Exec> memory_;
  nn::RingBuffers ring_buffers_;
  nn::UlyssesBuffers ulysses_buffers_;
  nn::GatheredBuffers gathered_buffers_;
};

}  // namespace katt::ring_attention
