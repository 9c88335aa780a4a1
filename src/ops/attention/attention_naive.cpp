#include "ops/attention/attention_naive.hpp"

#include <cstdint>

#include "core/library_product.hpp"
#include "core/parts.hpp"
#include "ops/attention/attention_check.hpp"
#include "ops/attention/attention_mask.hpp"
#include "tile/vec.hpp"

namespace katt::attention::impl {

namespace {

/// Rows of a score block that are in f32 at one time when the scores are stored in 16 bits.
constexpr std::int64_t block_rows = 512;

/// Calls vector(i) for whole vectors and scalar(i) for the tail of a row of n elements, shared
/// among the threads of a team.
template <class Exec, class Team, class VectorF, class ScalarF>
KOKKOS_FORCEINLINE_FUNCTION void for_row(const Team& team, std::int64_t begin, std::int64_t end,
                                         const VectorF& vector, const ScalarF& scalar) {
  constexpr int lanes = tile::lanes_v<Exec>;
  const std::int64_t whole = end > begin ? (end - begin) / lanes : 0;
  for (std::int64_t c = team.team_rank(); c < whole; c += team.team_size()) {
    vector(begin + c * lanes);
  }
  for (std::int64_t i = begin + whole * lanes + team.team_rank(); i < end; i += team.team_size()) {
    scalar(i);
  }
}

/// target(r, c) = source(r, c), converted, for dense or strided rows.
template <class Exec, class From, class To>
void convert_rows(const Exec& exec, const char* label, const From* from, std::int64_t from_stride,
                  To* to, std::int64_t to_stride, std::int64_t rows, std::int64_t columns) {
  using Policy = Kokkos::TeamPolicy<Exec>;
  using Vec = tile::VecOf<Exec>;
  const Policy policy(exec, static_cast<int>(rows), is_host_v<Exec> ? 1 : 128);
  Kokkos::parallel_for(
      label, policy, KOKKOS_LAMBDA(const typename Policy::member_type& team) {
        const From* source = from + team.league_rank() * from_stride;
        To* target = to + team.league_rank() * to_stride;
        for_row<Exec>(
            team, 0, columns,
            [&](std::int64_t c) { tile::store(target + c, tile::load<Vec>(source + c)); },
            [&](std::int64_t c) { target[c] = static_cast<To>(static_cast<float>(source[c])); });
      });
}

/// Masked softmax of every row of S (batch · heads · seq_q rows of seq_kv scores), in place, and
/// lse.
template <class Exec, class T>
struct RowSoftmax {
  using Memory = typename Exec::memory_space;
  using Policy = Kokkos::TeamPolicy<Exec>;
  using Team = typename Policy::member_type;
  using Vec = tile::VecOf<Exec>;
  static constexpr float log2e = 1.4426950408889634F;

  T* scores;
  std::int64_t heads, seq_q, seq_kv;
  Masks masks;
  Bias<T> bias;
  float softcap;
  StridedView<float, 3, Memory> lse;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team) const {
    const std::int64_t item = team.league_rank();
    const std::int64_t i = item % seq_q;
    const std::int64_t h = item / seq_q % heads;
    const std::int64_t b = item / seq_q / heads;
    T* row = scores + item * seq_kv;
    const Mask mask = masks.of(b);
    const std::int64_t begin = mask.interval.begin(i);
    const std::int64_t end = Kokkos::max(begin, mask.interval.end(i));

    if (softcap > 0.0F || bias || mask.blocks.blocks != nullptr) {
      const T* added = bias ? bias.row(b, h, i) : nullptr;
      for (std::int64_t j = begin + team.team_rank(); j < end; j += team.team_size()) {
        auto s = static_cast<float>(row[j]);
        if (softcap > 0.0F) s = softcap * Kokkos::tanh(s / softcap);
        if (added != nullptr) s += static_cast<float>(added[j]);
        if (!mask.blocks.visible(i, j)) s = -Kokkos::Experimental::infinity_v<float>;
        row[j] = static_cast<T>(s);
      }
      team.team_barrier();
    }

    // Finite, so that a row whose scores are all −inf has sum 0 without a case of its own.
    constexpr float lowest = -0x1p126F;
    Vec vector_max(lowest);
    float largest = lowest;
    for_row<Exec>(
        team, begin, end,
        [&](std::int64_t j) { vector_max = tile::max(vector_max, tile::load<Vec>(row + j)); },
        [&](std::int64_t j) { largest = tile::max(largest, static_cast<float>(row[j])); });
    largest = tile::max(largest, tile::reduce_max(vector_max));
    team.team_reduce(Kokkos::Max<float>(largest));

    // Base-2 exponentials: 2^(s·log2(e) − max·log2(e)).
    const float shift = -largest * log2e;
    Vec vector_sum(0.0F);
    float sum = 0.0F;
    for_row<Exec>(
        team, begin, end,
        [&](std::int64_t j) {
          const Vec e = tile::exp2(tile::fma(tile::load<Vec>(row + j), Vec(log2e), Vec(shift)));
          vector_sum = vector_sum + e;
          if constexpr (std::is_same_v<T, float>) tile::store(row + j, e);
        },
        [&](std::int64_t j) {
          const float e = Kokkos::exp2(Kokkos::fma(static_cast<float>(row[j]), log2e, shift));
          sum += e;
          if constexpr (std::is_same_v<T, float>) row[j] = e;
        });
    sum += tile::reduce_sum(vector_sum);
    team.team_reduce(Kokkos::Sum<float>(sum));

    const float inverse = sum == 0.0F ? 0.0F : 1.0F / sum;
    for_row<Exec>(
        team, begin, end,
        [&](std::int64_t j) {
          Vec e = tile::load<Vec>(row + j);
          if constexpr (!std::is_same_v<T, float>) {
            e = tile::exp2(tile::fma(e, Vec(log2e), Vec(shift)));
          }
          tile::store(row + j, Vec(e * Vec(inverse)));
        },
        [&](std::int64_t j) {
          auto e = static_cast<float>(row[j]);
          if constexpr (!std::is_same_v<T, float>) e = Kokkos::exp2(Kokkos::fma(e, log2e, shift));
          row[j] = static_cast<T>(e * inverse);
        });
    for (std::int64_t j = team.team_rank(); j < Kokkos::min(begin, seq_kv); j += team.team_size()) {
      row[j] = T(0.0F);
    }
    for (std::int64_t j = Kokkos::max<std::int64_t>(0, end) + team.team_rank(); j < seq_kv;
         j += team.team_size()) {
      row[j] = T(0.0F);
    }
    if (lse.data() != nullptr && team.team_rank() == 0) {
      lse(b, h, i) =
          sum == 0.0F ? -Kokkos::Experimental::infinity_v<float> : largest + Kokkos::log(sum);
    }
  }
};

/// Where the parts of the workspace begin, in bytes.
struct Layout {
  std::size_t scores, key, value, rows, block, total;

  template <class T>
  static Layout of(const ForwardArgs& args) {
    const auto d = static_cast<std::size_t>(args.head_dim());
    const auto n = static_cast<std::size_t>(args.seq_kv());
    const auto sq = static_cast<std::size_t>(args.seq_q());
    const auto rows_at_once = std::is_same_v<T, float> ? sq : std::min<std::size_t>(sq, block_rows);
    Layout l{};
    l.scores = 0;
    l.key =
        aligned_bytes(static_cast<std::size_t>(args.batch() * args.heads()) * sq * n * sizeof(T));
    l.value = l.key + aligned_bytes(n * d * sizeof(float));
    l.rows = l.value + aligned_bytes(n * d * sizeof(float));
    l.block = l.rows + aligned_bytes(rows_at_once * d * sizeof(float));
    l.total =
        l.block + (std::is_same_v<T, float> ? 0 : aligned_bytes(rows_at_once * n * sizeof(float)));
    return l;
  }
};

}  // namespace

template <class Exec, class T>
std::size_t naive_workspace_bytes(const ForwardArgs& args) {
  if (stored_scores(args) > 0x1p58) return std::size_t{1} << 62;  // beyond any memory
  return Layout::of<T>(args).total;
}

template <class Exec, class T>
void naive_forward(const Exec& exec, const ForwardArgs& args, Workspace workspace) {
  using Memory = typename Exec::memory_space;
  constexpr bool wide = std::is_same_v<T, float>;
  const Layout layout = Layout::of<T>(args);
  auto* base = static_cast<std::byte*>(workspace.data);
  const std::int64_t n = args.seq_kv();
  const std::int64_t sq = args.seq_q();
  const std::int64_t d = args.head_dim();
  const std::int64_t group = args.heads() / args.kv_heads();
  const std::int64_t rows_at_once = wide ? sq : std::min(sq, block_rows);
  auto* scores = reinterpret_cast<T*>(base + layout.scores);
  auto* key = reinterpret_cast<float*>(base + layout.key);
  auto* value = reinterpret_cast<float*>(base + layout.value);
  auto* rows = reinterpret_cast<float*>(base + layout.rows);
  auto* block = reinterpret_cast<float*>(base + layout.block);
  if (sq == 0 || args.batch() * args.heads() == 0) return;

  const auto slice = [](const auto& tensor, std::int64_t b, std::int64_t h, std::int64_t row) {
    using Element =
        std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(tensor.data)>>, const T,
                           T>;
    return static_cast<Element*>(tensor.data) + b * tensor.stride[0] + h * tensor.stride[1] +
           row * tensor.stride[2];
  };
  // f32 rows that are dense already are used where they lie.
  const auto widened = [&](const ConstTensorRef<4>& tensor, std::int64_t b, std::int64_t h,
                           std::int64_t row, std::int64_t count, float* target) -> const float* {
    const T* source = slice(tensor, b, h, row);
    if constexpr (wide) {
      if (tensor.stride[2] == d) return source;
    }
    convert_rows(exec, "katt::attention::naive_widen", source, tensor.stride[2], target, d, count,
                 d);
    return target;
  };
  const auto scores_of = [&](std::int64_t b, std::int64_t h, std::int64_t row) {
    return scores + ((b * args.heads() + h) * sq + row) * n;
  };

  // S = scale · Q·Kᵀ
  for (std::int64_t b = 0; b < args.batch(); ++b) {
    for (std::int64_t h = 0; h < args.heads() && n > 0; ++h) {
      const float* k = widened(args.k, b, h / group, 0, n, key);
      for (std::int64_t row = 0; row < sq; row += rows_at_once) {
        const std::int64_t count = std::min(rows_at_once, sq - row);
        const float* q = widened(args.q, b, h, row, count, rows);
        float* s = block;
        if constexpr (wide) s = scores_of(b, h, row);
        library_product(exec, {.trans_b = true, .alpha = args.scale},
                        LibraryMatrix<const float>(q, count, d),
                        LibraryMatrix<const float>(k, n, d), LibraryMatrix<float>(s, count, n));
        if constexpr (!wide) {
          convert_rows(exec, "katt::attention::naive_round", s, n, scores_of(b, h, row), n, count,
                       n);
        }
      }
    }
  }

  // P = softmax(S)
  using Softmax = RowSoftmax<Exec, T>;
  const auto league = static_cast<int>(args.batch() * args.heads() * sq);
  Kokkos::parallel_for("katt::attention::naive_softmax",
                       typename Softmax::Policy(exec, league, is_host_v<Exec> ? 1 : 128),
                       Softmax{scores, args.heads(), sq, n, Masks(args), Bias<T>(args.mask.bias),
                               args.mask.softcap, args.lse.template view<float, Memory>()});

  // out = P·V
  for (std::int64_t b = 0; b < args.batch(); ++b) {
    for (std::int64_t h = 0; h < args.heads(); ++h) {
      const float* v = n > 0 ? widened(args.v, b, h / group, 0, n, value) : value;
      for (std::int64_t row = 0; row < sq; row += rows_at_once) {
        const std::int64_t count = std::min(rows_at_once, sq - row);
        const float* p = block;
        if constexpr (wide) {
          p = scores_of(b, h, row);
        } else if (n > 0) {
          convert_rows(exec, "katt::attention::naive_widen", scores_of(b, h, row), n, block, n,
                       count, n);
        }
        const bool direct = wide && args.out.stride[2] == d;
        float* o = rows;
        if constexpr (wide) o = direct ? slice(args.out, b, h, row) : rows;
        library_product(exec, {}, LibraryMatrix<const float>(p, count, n),
                        LibraryMatrix<const float>(v, n, d), LibraryMatrix<float>(o, count, d));
        if (!direct) {
          convert_rows(exec, "katt::attention::naive_round", o, d, slice(args.out, b, h, row),
                       args.out.stride[2], count, d);
        }
      }
    }
  }
}

#define KATT_INSTANTIATE_NAIVE(Exec, T)                                         \
  template std::size_t naive_workspace_bytes<Exec, T>(const ForwardArgs& args); \
  template void naive_forward<Exec, T>(const Exec&, const ForwardArgs&, Workspace);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_NAIVE, float)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_NAIVE, f16)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_NAIVE, bf16)

}  // namespace katt::attention::impl
