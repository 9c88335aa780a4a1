#pragma once

#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "ops/attention/mask.hpp"
#include "tile/engines/add_rows.hpp"
#include "tile/engines/engine.hpp"
#include "tile/vec/vec.hpp"

/// Turns the products q·k into scores, in both passes of every engine: scale, score rule, bias and
/// mask.
namespace katt::attention {

/// The place of a score, for a user's own rule. V is float or a vector, whose lanes may differ in
/// query, head and key.
template <class V>
struct ScorePlace {
  V query;             ///< i + o: the position of the query among the keys
  V key;               ///< j
  const V* parameter;  ///< the rule's parameters for the head
};

/// The rule that does nothing; see own_rule.hpp for what a rule is.
struct NoRule {
  static constexpr int parameters = 0;
  KOKKOS_INLINE_FUNCTION float parameter(int, std::int64_t, std::int64_t) const { return 0.0F; }
};

namespace impl {

/// True for a rule that is called for blocks of scores, as a ProgramRule.
template <class Rule>
inline constexpr bool is_program = requires {
  requires Rule::runs_on_blocks;
};

using tile::log2e;

/// How scores become exponents: e^(unit · (s − t)) = 2^(factor · (s − t)). Scores are subtracted
/// from each other before anything multiplies them: a rounded product of a large score would be
/// wrong by more than every exponent.
struct ScoreUnit {
  float unit;    ///< what makes scores natural ones
  float factor;  ///< what puts them in base 2: unit · log2 e

  /// Natural log-sum-exp of a row with this largest score and this sum of 2^(factor · (s − max)):
  /// −inf where that is 0, as in a row that sees no key.
  KOKKOS_INLINE_FUNCTION float lse(float max, float sum) const {
    return sum == 0.0F ? -Kokkos::Experimental::infinity_v<float>
                       : Kokkos::fma(max, unit, Kokkos::log(sum));
  }
};

/// The shift that the backward pass subtracts from the scores of a row: P = 2^(factor · (s − shift)
/// − low).
struct RowShift {
  float shift, low;

  /// The shift from lse. `low` is the part of lse that is lost in `shift`. For a row that sees no
  /// key, with lse = −inf, the shift is +inf, so that every P is 0.
  KOKKOS_INLINE_FUNCTION static RowShift of_lse(float lse, const ScoreUnit& scores) {
    constexpr float infinity = Kokkos::Experimental::infinity_v<float>;
    if (lse == -infinity) return {infinity, 0.0F};
    const float shift = lse / scores.unit;
    return {shift, Kokkos::fma(-shift, scores.unit, lse) * log2e};
  }

  /// True when lse alone does not determine P: it is a float of 24 bits, and its rounding is the
  /// relative error of P. From 2^24 on, log(sum) is lost in it altogether.
  KOKKOS_INLINE_FUNCTION static bool is_steep(float lse) {
    const float size = Kokkos::fabs(lse);
    return size >= 0x1p12F && size < Kokkos::Experimental::infinity_v<float>;
  }

  /// The shift of a steep row, from the largest score and the sum that the backward pass finds
  /// itself. An lse that does not agree with them is of more keys (ring attention) and stands.
  KOKKOS_INLINE_FUNCTION static RowShift of_steep(float lse, const ScoreUnit& scores, float max,
                                                  float sum) {
    const bool agrees = Kokkos::fabs(scores.lse(max, sum) - lse) <= 0x1p-20F * Kokkos::fabs(lse);
    return agrees ? RowShift{max, Kokkos::log2(sum)} : of_lse(lse, scores);
  }
};

/// The packed rows of one K/V head, from row `begin` on: packed row n is query n / group of head
/// kv_head · group + n mod group, so that few queries and many heads (decoding) still fill a tile.
/// Int: what counts them; a device divides 64 bits in a function of its own. Group: what divides
/// them, an integer or tile::Divider.
template <class Int, class Group = Int>
struct PackedRowsOf {
  std::int64_t kv_head;
  Group group;  ///< query heads per K/V head
  Int begin;

  KOKKOS_INLINE_FUNCTION std::int64_t query(int r) const { return (begin + r) / group; }
  KOKKOS_INLINE_FUNCTION std::int64_t head(int r) const {
    return kv_head * group + (begin + r) % group;
  }
};
using PackedRows = PackedRowsOf<std::int64_t>;

/// The steps that are the same for the products of all batch entries.
///
/// Both passes of every variant round scores alike, or P = exp(s − lse) of the backward pass would
/// not sum to one: at scores of 270, in f32, one rounding is 3e-5 of P. Products are f32 sums over
/// head_dim of the plain operands. Without further steps they are the scores, and fl(scale · log2
/// e) is the factor of the difference after subtracting the largest of a row, or lse / scale.
/// Otherwise score() and biased() give the scores, and the factor is log2 e.
template <class T, class Rule>
struct ScoreRules {
  static constexpr bool has_any_rule = !std::is_same_v<Rule, NoRule>;
  /// True for a rule that is called score by score, within score().
  static constexpr bool has_rule = has_any_rule && !is_program<Rule>;
  /// The numbers of a row for score(): the position of its query, its ALiBi slope, the rule's
  /// parameters.
  static constexpr int numbers = 2 + Rule::parameters;
  using RowNumbers = tile::RowNumbers<numbers>;
  template <class V>
  using Place = tile::Place<V, numbers>;

  Bias<T> bias;
  float scale;
  ScoreArgs args;
  Rule rule;

  /// True when a positive factor, by which lse can be divided, is the only step for the products.
  KOKKOS_INLINE_FUNCTION bool folded() const {
    return !has_any_rule && args.softcap <= 0.0F && args.alibi_slopes == nullptr && !bias &&
           scale > 0x1p-60F;
  }
  /// The unit of the scores that apply() leaves.
  KOKKOS_INLINE_FUNCTION ScoreUnit unit() const {
    return folded() ? ScoreUnit{scale, scale * log2e} : ScoreUnit{1.0F, log2e};
  }
  /// The factor that puts them in base 2.
  KOKKOS_INLINE_FUNCTION float factor() const { return unit().factor; }
  /// True when score() has a slope.
  KOKKOS_INLINE_FUNCTION bool sloped() const {
    if constexpr (is_program<Rule>) {
      if (rule.sloped()) return true;
    }
    return has_rule || args.softcap > 0.0F;
  }
  /// True when score() needs the place of a score.
  KOKKOS_INLINE_FUNCTION bool placed() const { return has_rule || args.alibi_slopes != nullptr; }

  /// The score of a product, but for the bias and a rule that is a program, and
  /// d score / d (scale · product). Columns of `at` count from key `first`.
  template <class V>
  KOKKOS_INLINE_FUNCTION V score(const V& product, const Place<V>& at, std::int64_t first,
                                 V& slope) const {
    const V s = capped(product, slope);
    return placed() ? moved(s, at, first, slope) : s;
  }
  /// Its first part, the same wherever a score lies.
  template <class V>
  KOKKOS_INLINE_FUNCTION V capped(const V& product, V& slope) const {
    slope = V(1.0F);
    if (args.softcap <= 0.0F) return product * V(scale);
    const V t = tile::tanh(V(product * V(scale / args.softcap)));
    slope = V(1.0F) - t * t;
    return t * V(args.softcap);
  }
  /// Its second part, where placed().
  template <class V>
  KOKKOS_INLINE_FUNCTION V moved(V s, const Place<V>& at, std::int64_t first, V& slope) const {
    const V key = at.column + V(static_cast<float>(first));
    const V right = key - at.row[0];
    s = tile::fma(V(-at.row[1]), tile::max(right, V(-right)), s);
    if constexpr (has_rule) {
      V own(1.0F);
      s = call_rule(rule, s, ScorePlace<V>{at.row[0], key, at.row + 2}, own);
      slope = slope * own;
    }
    return s;
  }
  KOKKOS_INLINE_FUNCTION static float biased(float score, T added) {
    return score + static_cast<float>(added);
  }

 private:
  /// A rule takes vectors, or floats alone: then it is called lane by lane.
  template <class V>
  KOKKOS_INLINE_FUNCTION static V call_rule(const Rule& rule, const V& score,
                                            const ScorePlace<V>& at, V& slope) {
    if constexpr (std::is_invocable_v<const Rule&, const V&, const ScorePlace<V>&, V&>) {
      return rule(score, at, slope);
    } else {
      constexpr int lanes = sizeof(V) / sizeof(float);
      constexpr int parameters = Rule::parameters > 0 ? Rule::parameters : 1;
      float scores[lanes], slopes[lanes], queries[lanes], keys[lanes], numbers_[parameters][lanes];
      tile::store(scores, score);
      tile::store(queries, at.query);
      tile::store(keys, at.key);
      for (int n = 0; n < Rule::parameters; ++n) tile::store(numbers_[n], at.parameter[n]);
      for (int lane = 0; lane < lanes; ++lane) {
        float own[parameters] = {};
        for (int n = 0; n < Rule::parameters; ++n) own[n] = numbers_[n][lane];
        slopes[lane] = 1.0F;
        scores[lane] =
            rule(scores[lane], ScorePlace<float>{queries[lane], keys[lane], own}, slopes[lane]);
      }
      slope = tile::load<V>(slopes);
      return tile::load<V>(scores);
    }
  }
};

/// The scores of one batch entry.
template <class T, class Rule>
struct EntryScores : ScoreRules<T, Rule> {
  using Rules = ScoreRules<T, Rule>;
  template <class V>
  using Place = typename Rules::template Place<V>;

  Mask mask;
  std::int64_t batch;

  /// The numbers of a row; zeros when score() does not need them.
  KOKKOS_INLINE_FUNCTION typename Rules::RowNumbers row(std::int64_t head,
                                                        std::int64_t query) const {
    typename Rules::RowNumbers of{};
    if (!this->placed()) return of;
    of.value[0] = static_cast<float>(query + mask.interval.offset);
    if (this->args.alibi_slopes != nullptr) of.value[1] = this->args.alibi_slopes[head];
    for (int n = 0; n < Rule::parameters; ++n) {
      of.value[2 + n] = this->rule.parameter(n, batch, head);
    }
    return of;
  }

  /// To the products of keys [key, key + columns) of a tile in this state, which is not dead.
  template <class Engine, class Int>
  KOKKOS_INLINE_FUNCTION void apply(Engine& engine, TileState state, const PackedRowsOf<Int>& rows,
                                    std::int64_t key, int columns) const {
    if (!this->folded()) {
      engine.transform([&](int r) { return row(rows.head(r), rows.query(r)); },
                       [&]<class V>(const V& product, const Place<V>& at) {
                         V slope;
                         return this->score(product, at, key, slope);
                       });
    }
    if constexpr (is_program<Rule>) {
      engine.for_each_part([&](const tile::ScorePart& part) {
        this->rule.run(part, *this, rows, key, state != TileState::full);
      });
    }
    add_bias_and_mask(engine, state, rows, key, columns);
  }
  /// The last part of apply().
  template <class Engine, class Int>
  KOKKOS_INLINE_FUNCTION void add_bias_and_mask(Engine& engine, TileState state,
                                                const PackedRowsOf<Int>& rows, std::int64_t key,
                                                int columns) const {
    if (this->bias) {
      const auto added = [&](int r) {
        return this->bias.row(batch, rows.head(r), rows.query(r)) + key;
      };
      if constexpr (tile::ColumnsOuter<Engine>) {
        engine.for_each_part([&](const tile::ScorePart& part) {
          tile::add_rows<typename Engine::Vec>(part, columns, added);
        });
      } else {
        engine.for_each_row([&](int r, const typename Engine::ScoreRow& row) {
          const T* of_row = added(r);
          for (int j = 0; j < columns; ++j) row(j) = this->biased(row(j), of_row[j]);
        });
      }
    }
    if (state == TileState::full) return;
    engine.clip([&](int r) {
      const std::int64_t i = rows.query(r);
      return tile::ColumnRange{static_cast<float>(mask.interval.begin(i) - key),
                               static_cast<float>(mask.interval.end(i) - key)};
    });
    if (mask.blocks.blocks == nullptr) return;
    engine.for_each_row([&](int r, const typename Engine::ScoreRow& score) {
      mask.blocks.for_each_hidden(rows.query(r), key, key + columns, [&](std::int64_t j) {
        score(static_cast<int>(j - key)) = -Kokkos::Experimental::infinity_v<float>;
      });
    });
  }
};

/// The scores of all batch entries.
template <class T, class Rule>
struct Scores : ScoreRules<T, Rule> {
  Masks masks;

  /// From the arguments of either pass.
  template <class Args>
  Scores(const Args& from, const Rule& own)
      : ScoreRules<T, Rule>{Bias<T>(from.mask.bias), from.scale, from.score, own}, masks(from) {
    if constexpr (is_program<Rule>) this->rule.give_softcap(this->args);
  }

  /// The scores of a K/V head of a batch entry.
  KOKKOS_INLINE_FUNCTION EntryScores<T, Rule> of(std::int64_t batch,
                                                 std::int64_t kv_head = 0) const {
    return {*this, masks.of(batch, kv_head), batch};
  }
};

}  // namespace impl

}  // namespace katt::attention
