#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <Kokkos_Core.hpp>

#include "core/parts.hpp"
#include "ops/attention/decode/decode.hpp"
#include "ops/attention/decode/merge_kernel.hpp"
#include "ops/attention/decode/merge_splits.hpp"
#include "ops/attention/decode/mma.hpp"
#include "ops/attention/problem.hpp"
#include "tile/engines/row_engine.hpp"

/// Attention of few queries against many keys (flash-decoding: Dao, Haziza, Massa & Sizov 2023).
/// With one query there is one tile of rows a K/V head, too few work items, so the keys are split
/// as well:
///
///   for every (batch, kv head, split of the keys), in parallel:
///     the loop of flash attention over the live keys of the split
///     part(split) = O / l,  sum(split) = (m, l)
///   afterwards out, lse = merge of the parts, in order
///
/// A split is a fixed number of keys: neither it nor the order of the sums depends on the threads.
namespace katt::attention::impl {

/// Rows of K or of V in a tensor.
template <class T>
struct ContiguousRows : HeadRows<const T> {
  std::int64_t stride_key;

  explicit ContiguousRows(const ConstTensorRef<4>& tensor)
      : HeadRows<const T>(tensor), stride_key(tensor.stride[2]) {}

  /// End, at most `end`, of the keys from `key` on that lie stride_key apart.
  KOKKOS_INLINE_FUNCTION std::int64_t run_end(std::int64_t /*key*/, std::int64_t end) const {
    return end;
  }
};

/// Rows of K or of V in pages.
template <class T>
struct PagedRows {
  const T* data;
  std::int64_t stride_page, stride_head, stride_key;
  const std::int64_t* block_table;
  std::int64_t pages_per_sequence;
  std::int64_t page_size;

  PagedRows(const PagedArgs& args, const ConstTensorRef<4>& pages)
      : data(static_cast<const T*>(pages.data)),
        stride_page(pages.stride[0]),
        stride_head(pages.stride[1]),
        stride_key(pages.stride[2]),
        block_table(args.block_table),
        pages_per_sequence(args.pages_per_sequence),
        page_size(args.page_size()) {}

  KOKKOS_INLINE_FUNCTION const T* row(std::int64_t b, std::int64_t head, std::int64_t key) const {
    const std::uint32_t number = page_of(key);
    const std::int64_t page = block_table[b * pages_per_sequence + number];
    return data + page * stride_page + head * stride_head + (key - number * page_size) * stride_key;
  }
  KOKKOS_INLINE_FUNCTION std::int64_t run_end(std::int64_t key, std::int64_t end) const {
    return Kokkos::min(end, (page_of(key) + 1) * page_size);
  }

 private:
  /// In 32 bits, which check() makes sure of: a device divides 64 in a function of its own.
  KOKKOS_FORCEINLINE_FUNCTION std::uint32_t page_of(std::int64_t key) const {
    return static_cast<std::uint32_t>(key) / static_cast<std::uint32_t>(page_size);
  }
};

template <class T>
ContiguousRows<T> keys_of(const ForwardArgs& args) {
  return ContiguousRows<T>(args.k);
}
template <class T>
ContiguousRows<T> values_of(const ForwardArgs& args) {
  return ContiguousRows<T>(args.v);
}
template <class T>
PagedRows<T> keys_of(const PagedArgs& args) {
  return PagedRows<T>(args, args.k_pages);
}
template <class T>
PagedRows<T> values_of(const PagedArgs& args) {
  return PagedRows<T>(args, args.v_pages);
}

/// Keys of a tile: on a host so few that they, and the rows asked for meanwhile, stay in L1; on a
/// device one for every other thread of a team.
template <class Exec>
inline constexpr int decode_tile_kv = is_host_v<Exec> ? 32 : 64;

/// Extents of a decoding step, and where its workspace lies: partial rows, their sums, scratch.
struct DecodePlan {
  std::int64_t batch, heads, kv_heads, seq_q, head_dim;
  std::int64_t split_keys;
  std::int64_t splits;

  template <class Args>
  DecodePlan(const Args& args, Tile tile)
      : batch(args.batch()),
        heads(args.heads()),
        kv_heads(args.kv_heads()),
        seq_q(args.seq_q()),
        head_dim(args.head_dim()),
        split_keys(tile.kv),
        splits(Kokkos::max<std::int64_t>(1, (args.seq_kv() + tile.kv - 1) / tile.kv)) {}

  std::int64_t group() const { return heads / kv_heads; }
  /// Packed query rows of a K/V head.
  std::int64_t rows() const { return seq_q * group(); }
  std::int64_t work_items() const { return batch * kv_heads * splits; }
  std::size_t part_rows() const { return static_cast<std::size_t>(splits * batch * heads * seq_q); }
  std::size_t parts_bytes() const {
    return aligned(part_rows() * static_cast<std::size_t>(head_dim) * sizeof(float));
  }
  std::size_t sums_bytes() const { return aligned(part_rows() * sizeof(PartSum)); }
  template <class Engine>
  std::size_t scratch_bytes() const {
    return aligned(Engine::scratch_bytes(static_cast<int>(rows()), static_cast<int>(head_dim)));
  }

 private:
  static std::size_t aligned(std::size_t bytes) { return aligned_bytes(bytes, 128); }
};

/// True when queries, keys and values are chunks, as the engine of a device prefers.
inline bool are_wide(const ForwardArgs& args) { return tile::are_chunks(args.q, args.k, args.v); }
inline bool are_wide(const PagedArgs& args) {
  return tile::are_chunks(args.q, args.k_pages, args.v_pages);
}

/// The partial result of one split of the keys of one K/V head. KvRows: ContiguousRows or
/// PagedRows. Wide: are_wide(), on a device. scripts/kernel_table knows it by this name.
template <bool Wide, class Exec, class T, class KvRows, class Rule>
struct DecodeSplit {
  using Engine = tile::RowEngine<Exec, T, decode_tile_kv<Exec>, Wide>;
  /// As many as have room for a tile of keys of 128 elements in shared memory. Left alone, the compiler
  /// spills to make room for eight.
  static constexpr int device_blocks = 5;

  DecodePlan plan;
  HeadRows<const T> q;
  KvRows keys, values;
  Scores<T, Rule> scores;
  float* parts;  ///< (splits, batch, heads, seq_q, head_dim)
  PartSum* sums;

  template <class Args>
  DecodeSplit(const Args& args, const Rule& rule, const DecodePlan& extents, Workspace workspace)
      : plan(extents),
        q(args.q),
        keys(keys_of<T>(args)),
        values(values_of<T>(args)),
        scores(args, rule) {
    auto* memory = static_cast<std::byte*>(workspace.data);
    parts = reinterpret_cast<float*>(memory);
    sums = reinterpret_cast<PartSum*>(memory + plan.parts_bytes());
  }

  KOKKOS_INLINE_FUNCTION void run(const typename Engine::Team& team, std::int64_t item,
                                  float* memory) const {
    const std::int64_t split = item % plan.splits;
    const std::int64_t kv_head = item / plan.splits % plan.kv_heads;
    const std::int64_t b = item / plan.splits / plan.kv_heads;
    // There are few of them, see decode_supports().
    const auto group = static_cast<std::uint32_t>(plan.heads / plan.kv_heads);
    const PackedRowsOf<std::uint32_t> packed{kv_head, group, 0};
    const std::int64_t last = plan.seq_q - 1;
    const EntryScores<T, Rule> entry = scores.of(b, kv_head);

    const KeyRange live = entry.mask.live(0, last);
    const std::int64_t begin = Kokkos::max(live.begin, split * plan.split_keys);
    const std::int64_t end = Kokkos::min(live.end, (split + 1) * plan.split_keys);
    const int rows = static_cast<int>(plan.seq_q) * static_cast<int>(group);
    Engine engine(team, memory, rows, static_cast<int>(plan.head_dim));
    engine.load_queries([&](int r) { return q.row(b, packed.head(r), packed.query(r)); });
    const float factor = entry.factor();

    for (std::int64_t key = begin; key < end;) {
      const std::int64_t key_end =
          keys.run_end(key, Kokkos::min<std::int64_t>(key + Engine::tile_kv, end));
      const TileState state = entry.mask.tile(0, last, key, key_end);
      if (state != TileState::dead) {
        const int columns = static_cast<int>(key_end - key);
        const tile::Rows<T> k{keys.row(b, kv_head, key), keys.stride_key, columns};
        const tile::Rows<T> v{values.row(b, kv_head, key), values.stride_key, columns};
        const bool is_last = key_end >= live.end;
        const tile::Rows<T> next_k{is_last ? k.data : keys.row(b, kv_head, key_end), k.stride,
                                   columns};
        const tile::Rows<T> next_v{is_last ? v.data : values.row(b, kv_head, key_end), v.stride,
                                   columns};
        engine.scores(k, Engine::asks_far(rows) ? next_k : v);
        entry.apply(engine, state, packed, key, columns);
        engine.softmax(factor);
        engine.accumulate(v, Engine::asks_far(rows) ? next_v : next_k);
      }
      key = key_end;
    }

    engine.for_each_output([&](int r, float sum, float max, const auto& write) {
      const std::int64_t row =
          ((split * plan.batch + b) * plan.heads + packed.head(r)) * plan.seq_q + packed.query(r);
      sums[row] = {max, sum};
      if (sum != 0.0F) write(parts + row * plan.head_dim, 1.0F / sum);
    });
  }
};

/// How these arguments locate a key.
template <class T, class Args>
using KvRowsOf = decltype(keys_of<T>(std::declval<const Args&>()));

template <class Exec, class Args, class Rule>
void run_decode(const Exec& exec, const Args& args, const Rule& rule, Tile tile,
                Workspace workspace) {
  using Memory = typename Exec::memory_space;
  const DecodePlan plan(args, tile);
  if (plan.part_rows() == 0) return;
#if defined(KATT_HAS_CUDA)
  if constexpr (!is_host_v<Exec>) {
    if (decode_mma_takes(exec, args, tile))
      return run_decode_mma(exec, args, rule, tile, workspace);
  }
#endif
  visit_dtype(args.q.dtype, [&]<class T>() {
    auto* const memory = static_cast<std::byte*>(workspace.data);
    const auto run_splits = [&]<bool Wide>() {
      using Split = DecodeSplit<Wide, Exec, T, KvRowsOf<T, Args>, Rule>;
      tile::launch_teams(exec, "katt::attention::decode_split", plan.work_items(),
                         plan.scratch_bytes<typename Split::Engine>(),
                         memory + plan.parts_bytes() + plan.sums_bytes(),
                         Split(args, rule, plan, workspace));
    };
    const auto* const split_parts = reinterpret_cast<const float*>(memory);
    const auto* const split_sums = reinterpret_cast<const PartSum*>(memory + plan.parts_bytes());
    const std::int64_t rows = plan.batch * plan.heads * plan.seq_q;
    const ScoreUnit unit = Scores<T, Rule>(args, rule).unit();
    if constexpr (is_host_v<Exec>) {
      run_splits.template operator()<false>();
      const MergeParts<Exec, T> merge{split_parts,
                                      split_sums,
                                      plan.splits,
                                      rows,
                                      args.out.template view<T, Memory>(),
                                      args.lse.template view<float, Memory>(),
                                      unit};
      tile::for_each_row(exec, "katt::attention::decode_merge", rows, merge);
    } else {
#if defined(KATT_HAS_CUDA)
      if (are_wide(args)) {
        run_splits.template operator()<true>();
      } else {
        run_splits.template operator()<false>();
      }
      const MergeSplits<T> merge{split_parts,
                                 split_sums,
                                 plan.splits,
                                 rows,
                                 plan.heads,
                                 plan.seq_q,
                                 plan.split_keys,
                                 static_cast<int>(plan.head_dim),
                                 args.mask.kv_len,
                                 args.out.template view<T, Memory>(),
                                 args.lse.template view<float, Memory>(),
                                 unit};
      tile::launch_teams(exec, "katt::attention::decode_merge", rows, merge.scratch_bytes(),
                         nullptr, merge);
#endif
    }
  });
}

}  // namespace katt::attention::impl
