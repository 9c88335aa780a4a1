#pragma once

#include <algorithm>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/attention.hpp"
#include "ops/attention/rules/program.hpp"
#include "tile/engines/engine.hpp"
#include "tile/vec/vec.hpp"

/// A program as the score rule of every engine of a host.
namespace katt::attention {

/// A rule that is called for blocks of scores, after capped() and ALiBi and before bias and mask.
/// The programs outlive it.
struct ProgramRule {
  static constexpr int parameters = 0;
  static constexpr bool runs_on_blocks = true;

  /// One result, the new score; or two, with its derivative. Programs of `masked` also hide scores
  /// by −inf: they run where a mask does not show all of a tile. Both may be the same.
  struct Programs {
    const Program* score = nullptr;
    const Program* slope = nullptr;
  };
  Programs plain{}, masked{};
  /// Where the rule begins with a softcap: that, and the programs of what follows.
  struct Capped {
    float softcap = 0.0F;
    Programs plain{}, masked{};
  } capped{};

  /// Leaves the rule's softcap to the call, which has neither one nor ALiBi: the kernels have it
  /// themselves.
  void give_softcap(ScoreArgs& args) {
    if (capped.softcap <= 0.0F || args.softcap > 0.0F || args.alibi_slopes != nullptr) return;
    args.softcap = capped.softcap;
    plain = capped.plain;
    masked = capped.masked;
  }

  static float parameter(int, std::int64_t, std::int64_t) { return 0.0F; }
  /// The slope of both: a score that is hidden has no gradient.
  [[nodiscard]] bool sloped() const {
    return plain.slope != nullptr && !plain.slope->slope_is_one();
  }

  /// To the scores of packed rows and the keys from `key` on. Entry: EntryScores.
  template <class Entry, class Rows>
  void run(const tile::ScorePart& part, const Entry& entry, const Rows& rows, std::int64_t key,
           bool is_partial) const {
    const Programs& programs = is_partial ? masked : plain;
    if (programs.score->changes_nothing()) return;
    with_block(part, entry, rows, key,
               [&](const ScoreBlock& block) { programs.score->run(block); });
  }

  /// The same; and d ← d · slope, where d lies like the scores and may be missing.
  template <class Entry, class Rows>
  void differentiate(const tile::ScorePart& part, float* d, const Entry& entry, const Rows& rows,
                     std::int64_t key, bool is_partial) const {
    if (d == nullptr || !sloped()) return run(part, entry, rows, key, is_partial);
    const Programs& programs = is_partial ? masked : plain;
    with_block(part, entry, rows, key, [&](const ScoreBlock& block) {
      programs.slope->run(block, d + (block.score - part.score));
    });
  }

  /// The same for `columns` scores of one row, whose d may be missing.
  template <class Entry>
  void differentiate_row(float* score, float* d, int columns, const Entry& entry, std::int64_t head,
                         std::int64_t query, std::int64_t key, bool is_partial) const {
    const auto own_head = static_cast<std::int32_t>(head);
    const auto own_query = static_cast<std::int32_t>(query);
    const ScoreBlock block{.batch = entry.batch,
                           .rows = 1,
                           .keys = columns,
                           .head = &own_head,
                           .query = &own_query,
                           .key = key,
                           .last_key = entry.mask.interval.keys - 1,
                           .keys_inner = true,
                           .stride = columns,
                           .score = score};
    const Programs& programs = is_partial ? masked : plain;
    if (d == nullptr || !sloped()) return programs.score->run(block);
    programs.slope->run(block, d);
  }

  /// To the stored scores [begin, end) of a row.
  template <class T, class Entry>
  void run_row(T* row, std::int64_t begin, std::int64_t end, const Entry& entry, std::int64_t head,
               std::int64_t query) const {
    alignas(64) float part[row_part];
    for (std::int64_t j = begin; j < end; j += row_part) {
      const std::int64_t count = std::min<std::int64_t>(row_part, end - j);
      for (std::int64_t n = 0; n < row_part; ++n) {
        part[n] = n < count ? static_cast<float>(row[j + n]) : 0.0F;
      }
      differentiate_row(part, nullptr, static_cast<int>((count + 15) / 16 * 16), entry, head, query,
                        j, true);
      for (std::int64_t n = 0; n < count; ++n) row[j + n] = static_cast<T>(part[n]);
    }
  }

 private:
  static constexpr int row_part = 256;
  static constexpr int most_rows = 256;  ///< of a part

  template <class Entry, class Rows, class F>
  static void with_block(const tile::ScorePart& part, const Entry& entry, const Rows& rows,
                         std::int64_t key, const F& f) {
    std::int32_t head[most_rows];
    std::int32_t query[most_rows];
    for (int first = 0; first < part.rows; first += most_rows) {
      // Only tiles with rows outside have more of them: those of decoding.
      const int count = std::min(most_rows, part.rows - first);
      fill_places(head, query, count, rows, part.first + first, part.existing - 1 - first);
      f(ScoreBlock{entry.batch, count, part.columns, head, query, key, entry.mask.interval.keys - 1,
                   part.columns_inner, part.stride, part.vector,
                   part.score + (part.columns_inner ? std::int64_t{first} * part.stride
                                                    : first / 16 * std::int64_t{part.vector})});
    }
  }

  /// The places of `count` packed rows from `row` on; those behind number `last` have its place.
  template <class Rows>
  static void fill_places(std::int32_t* head, std::int32_t* query, int count, const Rows& rows,
                          int row, int last) {
    const auto group = static_cast<std::int32_t>(rows.group);
    const auto first_head = static_cast<std::int32_t>(rows.kv_head) * group;
    auto next_query = static_cast<std::int32_t>(rows.query(row + std::min(0, last)));
    std::int32_t member =
        static_cast<std::int32_t>(rows.head(row + std::min(0, last))) - first_head;
    if (group == 1) {
      for (int r = 0; r < count; ++r) {
        head[r] = first_head;
        query[r] = next_query + std::min(r, std::max(0, last));
      }
      return;
    }
    for (int r = 0; r < count; ++r) {
      head[r] = first_head + member;
      query[r] = next_query;
      if (r >= last || ++member < group) {
        continue;
      }
      member = 0;
      ++next_query;
    }
  }
};

}  // namespace katt::attention
