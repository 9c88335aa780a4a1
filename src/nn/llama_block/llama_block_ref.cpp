#include "nn/llama_block/llama_block_ref.hpp"

#include <algorithm>
#include <cmath>

#include <Kokkos_Core.hpp>

#include "op/reference/precision.hpp"
#include "op/reference/sample.hpp"

namespace katt::llama_block {

namespace {

using Tokens = std::span<const std::int64_t>;

/// Calls f(i) for 0 … count − 1 on the threads of the host.
template <class F>
void in_parallel(std::int64_t count, const F& f) {
  const Kokkos::RangePolicy<Kokkos::DefaultHostExecutionSpace, Kokkos::Schedule<Kokkos::Dynamic>,
                            Kokkos::IndexType<std::int64_t>>
      policy(0, count);
  Kokkos::parallel_for("katt::llama_block::reference", policy, [&](std::int64_t i) { f(i); });
  Kokkos::DefaultHostExecutionSpace().fence("katt::llama_block::reference");
}

using testing::Exactly;
using testing::Unfused;

template <class Real>
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<Real> values;

  Matrix() = default;
  Matrix(std::int64_t r, std::int64_t c)
      : rows(r), columns(c), values(static_cast<std::size_t>(r * c), Real{0}) {}
  Real* row(std::int64_t r) { return values.data() + r * columns; }
  const Real* row(std::int64_t r) const { return values.data() + r * columns; }
};

/// stored(a · wᵀ) for rows `first` … `first + count − 1` of w (·, a.columns).
template <class Way>
Matrix<typename Way::Real> times_transposed(const Matrix<typename Way::Real>& a, const float* w,
                                            std::int64_t first, std::int64_t count,
                                            const Way& stored) {
  using Real = typename Way::Real;
  constexpr std::int64_t lanes = 8;
  constexpr std::int64_t tile = 4;    // rows of a that share a load of w
  constexpr std::int64_t block = 16;  // rows of w that stay in a cache
  const std::int64_t n = a.columns;
  const std::int64_t whole = n / lanes * lanes;
  Matrix<Real> out(a.rows, count);
  const auto tile_of = [&](std::int64_t r0, std::int64_t o, std::int64_t rows) {
    const float* weight = w + (first + o) * n;
    Real sums[tile][lanes] = {};
    for (std::int64_t i = 0; i < whole; i += lanes) {
      for (std::int64_t r = 0; r < tile; ++r) {
        const Real* from = a.row(r0 + std::min(r, rows - 1)) + i;
        for (std::int64_t l = 0; l < lanes; ++l) {
          sums[r][l] += from[l] * static_cast<Real>(weight[i + l]);
        }
      }
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      Real sum = 0;
      for (std::int64_t i = whole; i < n; ++i) {
        sum += a.row(r0 + r)[i] * static_cast<Real>(weight[i]);
      }
      for (const Real part : sums[r]) sum += part;
      out.row(r0 + r)[o] = stored(sum);
    }
  };
  in_parallel((count + block - 1) / block, [&](std::int64_t b) {
    for (std::int64_t r0 = 0; r0 < a.rows; r0 += tile) {
      for (std::int64_t o = b * block; o < std::min((b + 1) * block, count); ++o) {
        tile_of(r0, o, std::min(tile, a.rows - r0));
      }
    }
  });
  return out;
}

/// stored(a · w) for w (a.columns, columns).
template <class Way>
Matrix<typename Way::Real> times(const Matrix<typename Way::Real>& a, const float* w,
                                 std::int64_t columns, const Way& stored) {
  using Real = typename Way::Real;
  constexpr std::int64_t block = 256;
  Matrix<Real> out(a.rows, columns);
  in_parallel((columns + block - 1) / block, [&](std::int64_t b) {
    const std::int64_t begin = b * block;
    const std::int64_t end = std::min(begin + block, columns);
    for (std::int64_t k = 0; k < a.columns; ++k) {
      const float* weight = w + k * columns;
      for (std::int64_t r = 0; r < a.rows; ++r) {
        const Real factor = a.row(r)[k];
        Real* sum = out.row(r);
        for (std::int64_t c = begin; c < end; ++c) sum[c] += factor * static_cast<Real>(weight[c]);
      }
    }
    for (std::int64_t r = 0; r < a.rows; ++r) {
      for (std::int64_t c = begin; c < end; ++c) out.row(r)[c] = stored(out.row(r)[c]);
    }
  });
  return out;
}

/// The block in one arithmetic: the forward results for `tokens`, and their gradients.
template <class Way>
class Computation {
 public:
  using Real = typename Way::Real;
  using Rows = Matrix<Real>;

  Computation(const HostProblem& problem, Tokens tokens, Way way)
      : p_(problem), s_(problem.shape), tokens_(tokens), stored_(way) {
    forward();
  }

  [[nodiscard]] const Rows& h() const { return h_; }
  [[nodiscard]] const Rows& delta_out() const { return delta_out_; }

  /// Gradients of the rows of `tokens`, before those of the weights are summed.
  void backward() {
    dout_ = Rows(count(), s_.hidden);
    for (std::int64_t r = 0; r < count(); ++r) {
      const float* from = p_.dout.data() + tokens_[index(r)] * s_.hidden;
      std::copy(from, from + s_.hidden, dout_.row(r));
    }
    activation_backward(times(dout_, p_.down.data(), s_.intermediate, stored_));
    dn2_ = times(dgate_up_, p_.gate_up.data(), s_.hidden, stored_);
    dh_ = Rows(count(), s_.hidden);
    for (std::int64_t r = 0; r < count(); ++r) {
      norm_backward(dn2_.row(r), h_.row(r), p_.post_norm, dout_.row(r), dh_.row(r));
    }
    attention_backward(times(dh_, p_.o.data(), s_.q_size(), stored_));
    Rows of_tokens(count(), s_.qkv_size());
    for (std::int64_t r = 0; r < count(); ++r) {
      std::copy_n(dqkv_.row(tokens_[index(r)]), s_.qkv_size(), of_tokens.row(r));
    }
    const Rows dn1 = times(of_tokens, p_.qkv.data(), s_.hidden, stored_);
    dx_ = Rows(count(), s_.hidden);
    for (std::int64_t r = 0; r < count(); ++r) {
      norm_backward(dn1.row(r), x_.row(tokens_[index(r)]), p_.input_norm, dh_.row(r), dx_.row(r));
    }
  }

  [[nodiscard]] const Rows& dx() const { return dx_; }

  Real ddown(std::int64_t row, std::int64_t column) const {
    return sum(count(), [&](std::int64_t r) { return dout_.row(r)[row] * m_.row(r)[column]; });
  }
  Real dgate_up(std::int64_t row, std::int64_t column) const {
    return sum(count(), [&](std::int64_t r) { return dgate_up_.row(r)[row] * n2_.row(r)[column]; });
  }
  Real dpost_norm(std::int64_t, std::int64_t column) const {
    return sum(count(), [&](std::int64_t r) {
      return stored_(dn2_.row(r)[column] * stored_(h_.row(r)[column] * rstd(h_.row(r))));
    });
  }
  Real d_o(std::int64_t row, std::int64_t column) const {
    return sum(count(), [&](std::int64_t r) { return dh_.row(r)[row] * attended_.row(r)[column]; });
  }
  Real dqkv(std::int64_t row, std::int64_t column) const {
    return sum(s_.tokens(), [&](std::int64_t t) { return dqkv_.row(t)[row] * n1_.row(t)[column]; });
  }
  Real dinput_norm(std::int64_t, std::int64_t column) const {
    return sum(s_.tokens(), [&](std::int64_t t) {
      Real dn1 = 0;
      for (std::int64_t k = 0; k < s_.qkv_size(); ++k) {
        dn1 += dqkv_.row(t)[k] *
               static_cast<Real>(p_.qkv[static_cast<std::size_t>(k * s_.hidden + column)]);
      }
      return stored_(stored_(dn1) * stored_(x_.row(t)[column] * rstd(x_.row(t))));
    });
  }

 private:
  std::int64_t count() const { return static_cast<std::int64_t>(tokens_.size()); }
  static std::size_t index(std::int64_t r) { return static_cast<std::size_t>(r); }

  template <class F>
  Real sum(std::int64_t terms, const F& term) const {
    Real total = 0;
    for (std::int64_t i = 0; i < terms; ++i) total += term(i);
    return stored_(total);
  }

  Real rstd(const Real* row) const {
    Real squares = 0;
    for (std::int64_t c = 0; c < s_.hidden; ++c) squares += row[c] * row[c];
    return 1 / std::sqrt(squares / static_cast<Real>(s_.hidden) + static_cast<Real>(1e-5F));
  }

  void norm(const Real* row, std::span<const float> weight, Real* out) const {
    const Real by = rstd(row);
    for (std::int64_t c = 0; c < s_.hidden; ++c) {
      out[c] = stored_(stored_(row[c] * by) * static_cast<Real>(weight[index(c)]));
    }
  }

  void norm_backward(const Real* dout, const Real* row, std::span<const float> weight,
                     const Real* residual, Real* dx) const {
    const Real by = rstd(row);
    const auto g = [&](std::int64_t c) {
      return stored_(dout[c] * static_cast<Real>(weight[index(c)]));
    };
    const auto normal = [&](std::int64_t c) { return stored_(row[c] * by); };
    Real mean = 0;
    for (std::int64_t c = 0; c < s_.hidden; ++c) mean += g(c) * normal(c);
    mean /= static_cast<Real>(s_.hidden);
    for (std::int64_t c = 0; c < s_.hidden; ++c) {
      dx[c] = stored_(stored_(by * (g(c) - normal(c) * mean)) + residual[c]);
    }
  }

  /// Turns a head's row in place: pair (i, i + head_dim/2) by position · theta^(−2i/head_dim).
  void turn(Real* row, std::int64_t position, double sign) const {
    const std::int64_t half = s_.head_dim / 2;
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(position) *
          std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(s_.head_dim));
      const Real c = stored_(static_cast<Real>(std::cos(angle)));
      const Real s = stored_(static_cast<Real>(sign * std::sin(angle)));
      const Real a = row[i];
      const Real b = row[i + half];
      row[i] = stored_(stored_(a * c) + stored_(-b * s));
      row[i + half] = stored_(stored_(b * c) + stored_(a * s));
    }
  }

  void turn_heads(Real* row, std::int64_t heads, std::int64_t token, double sign) const {
    for (std::int64_t h = 0; h < heads; ++h) turn(row + h * s_.head_dim, token % s_.seq, sign);
  }

  void forward() {
    const std::int64_t kv = 2 * s_.kv_heads * s_.head_dim;
    x_ = Rows(s_.tokens(), s_.hidden);
    n1_ = x_;
    in_parallel(s_.tokens(), [&](std::int64_t t) {
      for (std::int64_t c = 0; c < s_.hidden; ++c) {
        const auto i = index(t * s_.hidden + c);
        x_.row(t)[c] = stored_(static_cast<Real>(p_.stream[i]) + static_cast<Real>(p_.delta[i]));
      }
      norm(x_.row(t), p_.input_norm, n1_.row(t));
    });
    kv_ = times_transposed(n1_, p_.qkv.data(), s_.q_size(), kv, stored_);
    in_parallel(s_.tokens(), [&](std::int64_t t) { turn_heads(kv_.row(t), s_.kv_heads, t, 1.0); });
    Rows n1(count(), s_.hidden);
    for (std::int64_t r = 0; r < count(); ++r) {
      std::copy_n(n1_.row(tokens_[index(r)]), s_.hidden, n1.row(r));
    }
    q_ = times_transposed(n1, p_.qkv.data(), 0, s_.q_size(), stored_);
    for (std::int64_t r = 0; r < count(); ++r) {
      turn_heads(q_.row(r), s_.heads, tokens_[index(r)], 1.0);
    }
    attend();
    h_ = times_transposed(attended_, p_.o.data(), 0, s_.hidden, stored_);
    n2_ = Rows(count(), s_.hidden);
    for (std::int64_t r = 0; r < count(); ++r) {
      const Real* x = x_.row(tokens_[index(r)]);
      for (std::int64_t c = 0; c < s_.hidden; ++c) h_.row(r)[c] = stored_(x[c] + h_.row(r)[c]);
      norm(h_.row(r), p_.post_norm, n2_.row(r));
    }
    gate_up_ = times_transposed(n2_, p_.gate_up.data(), 0, 2 * s_.intermediate, stored_);
    m_ = Rows(count(), s_.intermediate);
    for (std::int64_t r = 0; r < count(); ++r) {
      for (std::int64_t f = 0; f < s_.intermediate; ++f) {
        m_.row(r)[f] = stored_(silu(r, f) * gate_up_.row(r)[s_.intermediate + f]);
      }
    }
    delta_out_ = times_transposed(m_, p_.down.data(), 0, s_.hidden, stored_);
  }

  Real sigmoid(std::int64_t r, std::int64_t f) const {
    return stored_(1 / (1 + std::exp(-gate_up_.row(r)[f])));
  }
  Real silu(std::int64_t r, std::int64_t f) const {
    return stored_(gate_up_.row(r)[f] * sigmoid(r, f));
  }

  void activation_backward(const Rows& dm) {
    dgate_up_ = Rows(count(), 2 * s_.intermediate);
    for (std::int64_t r = 0; r < count(); ++r) {
      for (std::int64_t f = 0; f < s_.intermediate; ++f) {
        const Real g = gate_up_.row(r)[f];
        const Real up = gate_up_.row(r)[s_.intermediate + f];
        const Real sigma = sigmoid(r, f);
        const Real slope = sigma + g * sigma * (1 - sigma);
        dgate_up_.row(r)[f] = stored_(stored_(dm.row(r)[f] * up) * slope);
        dgate_up_.row(r)[s_.intermediate + f] = stored_(dm.row(r)[f] * silu(r, f));
      }
    }
  }

  /// Keys and values that row r sees: its sequence up to itself.
  struct Seen {
    std::int64_t first, count;
  };
  Seen seen(std::int64_t r) const {
    const std::int64_t position = tokens_[index(r)] % s_.seq;
    return {tokens_[index(r)] - position, position + 1};
  }
  const Real* key(std::int64_t token, std::int64_t head) const {
    return kv_.row(token) + head / (s_.heads / s_.kv_heads) * s_.head_dim;
  }
  const Real* value(std::int64_t token, std::int64_t head) const {
    return key(token, head) + s_.kv_heads * s_.head_dim;
  }
  Real dot(const Real* a, const Real* b) const {
    Real total = 0;
    for (std::int64_t c = 0; c < s_.head_dim; ++c) total += a[c] * b[c];
    return total;
  }
  Real scale() const { return 1 / std::sqrt(static_cast<Real>(s_.head_dim)); }

  /// P of one query and head.
  std::vector<Real> probabilities(std::int64_t r, std::int64_t head) const {
    const Seen keys = seen(r);
    std::vector<Real> p;
    for (std::int64_t j = 0; j < keys.count; ++j) {
      p.push_back(
          stored_(dot(q_.row(r) + head * s_.head_dim, key(keys.first + j, head)) * scale()));
    }
    const Real largest = *std::max_element(p.begin(), p.end());
    Real total = 0;
    for (Real& score : p) total += score = std::exp(score - largest);
    for (Real& weight : p) weight = stored_(weight / total);
    return p;
  }

  void attend() {
    attended_ = Rows(count(), s_.q_size());
    in_parallel(count() * s_.heads, [&](std::int64_t item) {
      const std::int64_t r = item / s_.heads;
      const std::int64_t head = item % s_.heads;
      const std::vector<Real> p = probabilities(r, head);
      Real* out = attended_.row(r) + head * s_.head_dim;
      for (std::int64_t j = 0; j < seen(r).count; ++j) {
        const Real* v = value(seen(r).first + j, head);
        for (std::int64_t c = 0; c < s_.head_dim; ++c) out[c] += p[index(j)] * v[c];
      }
      for (std::int64_t c = 0; c < s_.head_dim; ++c) out[c] = stored_(out[c]);
    });
  }

  /// From the gradient of attended_ to that of every token's q, k and v before RoPE.
  void attention_backward(const Rows& dattended) {
    dqkv_ = Rows(s_.tokens(), s_.qkv_size());
    const std::int64_t d = s_.head_dim;
    const std::int64_t group = s_.heads / s_.kv_heads;
    in_parallel(s_.kv_heads, [&](std::int64_t kv_head) {  // each thread writes its own keys and
                                                          // values
      for (std::int64_t item = 0; item < count() * group; ++item) {
        const std::int64_t r = item / group;
        const std::int64_t head = kv_head * group + item % group;
        const std::vector<Real> p = probabilities(r, head);
        const Real* dout = dattended.row(r) + head * d;
        const Real mean = dot(dout, attended_.row(r) + head * d);
        Real* dq = dqkv_.row(tokens_[index(r)]) + head * d;
        for (std::int64_t j = 0; j < seen(r).count; ++j) {
          const std::int64_t token = seen(r).first + j;
          const Real dp = stored_(dot(dout, value(token, head)));
          const Real ds = stored_(p[index(j)] * (dp - mean)) * scale();
          Real* dk = dqkv_.row(token) + s_.q_size() + kv_head * d;
          Real* dv = dk + s_.kv_heads * d;
          for (std::int64_t c = 0; c < d; ++c) {
            dq[c] += ds * key(token, head)[c];
            dk[c] += ds * q_.row(r)[head * d + c];
            dv[c] += p[index(j)] * dout[c];
          }
        }
      }
    });
    in_parallel(s_.tokens(), [&](std::int64_t t) {
      Real* row = dqkv_.row(t);
      for (std::int64_t c = 0; c < s_.qkv_size(); ++c) row[c] = stored_(row[c]);
      turn_heads(row, s_.heads + s_.kv_heads, t, -1.0);
    });
  }

  const HostProblem& p_;
  const Shape& s_;
  Tokens tokens_;
  Way stored_;
  Rows x_, n1_, kv_;  // all tokens; keys turned
  Rows q_, attended_, h_, n2_, gate_up_, m_, delta_out_;
  Rows dout_, dgate_up_, dn2_, dh_, dx_;
  Rows dqkv_;  // of all tokens
};

/// Adds the rows of the tokens of an output.
template <class A, class B>
void add_rows(Expected& expected, const char* name, Tokens tokens, const A& exact,
              const B& unfused) {
  std::vector<testing::ExpectedValue>& values = expected[name];
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    const auto row = static_cast<std::int64_t>(r);
    for (std::int64_t c = 0; c < exact.columns; ++c) {
      values.push_back({tokens[r] * exact.columns + c, exact.row(row)[c],
                        static_cast<double>(unfused.row(row)[c])});
    }
  }
}

}  // namespace

std::vector<std::int64_t> sampled_tokens(const Shape& shape) {
  constexpr double elements = 2e9;  // gradients of weights: each token's row times each
  constexpr double most = 48;
  return testing::sample(shape.tokens(),
                         std::min(most, elements / static_cast<double>(shape.parameters())));
}

Expected expected_forward(const HostProblem& problem, Tokens tokens) {
  const Computation exact(problem, tokens, Exactly{});
  const Computation unfused(problem, tokens, Unfused{problem.dtype});
  Expected expected;
  add_rows(expected, "h", tokens, exact.h(), unfused.h());
  add_rows(expected, "delta_out", tokens, exact.delta_out(), unfused.delta_out());
  return expected;
}

Expected expected_backward(const HostProblem& problem, Tokens tokens) {
  Computation exact(problem, tokens, Exactly{});
  Computation unfused(problem, tokens, Unfused{problem.dtype});
  exact.backward();
  unfused.backward();
  Expected expected;
  add_rows(expected, "dx", tokens, exact.dx(), unfused.dx());
  const auto add = [&](const char* name, std::int64_t rows, std::int64_t columns,
                       const auto& element) {
    std::vector<testing::ExpectedValue>& values = expected[name];
    // Enough samples to show the usual size of errors by their largest one.
    for (const std::int64_t row : testing::sample(rows, 16)) {
      for (const std::int64_t column : testing::sample(columns, rows == 1 ? 64 : 16)) {
        values.push_back({row * columns + column, element(exact, row, column),
                          static_cast<double>(element(unfused, row, column))});
      }
    }
  };
  const Shape& s = problem.shape;
  add("dinput_norm", 1, s.hidden,
      [](const auto& way, auto row, auto column) { return way.dinput_norm(row, column); });
  add("dqkv", s.qkv_size(), s.hidden,
      [](const auto& way, auto row, auto column) { return way.dqkv(row, column); });
  add("do", s.hidden, s.q_size(),
      [](const auto& way, auto row, auto column) { return way.d_o(row, column); });
  add("dpost_norm", 1, s.hidden,
      [](const auto& way, auto row, auto column) { return way.dpost_norm(row, column); });
  add("dgate_up", 2 * s.intermediate, s.hidden,
      [](const auto& way, auto row, auto column) { return way.dgate_up(row, column); });
  add("ddown", s.hidden, s.intermediate,
      [](const auto& way, auto row, auto column) { return way.ddown(row, column); });
  return expected;
}

}  // namespace katt::llama_block
