#include "nn/context/ring_schedule.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

#include "core/execution.hpp"

namespace katt::nn {

namespace {

/// Keys or queries of one chunk.
struct Chunk {
  std::int64_t row = 0;    ///< on their rank
  std::int64_t begin = 0;  ///< in the sequence
  std::int64_t count = 0;
};

std::vector<Chunk> chunks_of(const ZigzagRows& rows) {
  std::vector<Chunk> chunks;
  for (const int which : {0, 1}) {
    const ranks::Part part = rows.part(which);
    if (part.count > 0) chunks.push_back({which * rows.chunk(), part.begin, part.count});
  }
  return chunks;
}

/// The mask of a pair of chunks, before its tables are in device memory.
struct Pair {
  RingCall call{};
  std::vector<std::int64_t> kv_len{};
  std::vector<std::uint8_t> blocks{};
};

[[noreturn]] void refuse(const std::string& what, const std::string& expected) {
  throw InputError("ring_attention: " + what + ": a part of a sequence cannot tell it, expected " +
                   expected);
}

/// Sets windows, alignment and lengths. Returns false when the queries see none of the keys.
bool set_interval(Pair& pair, const RingProblem& p, const Chunk& q, const Chunk& k) {
  attention::MaskArgs& mask = pair.call.mask;
  std::int64_t& keys = pair.call.k_count;
  const std::int64_t right = p.causal ? 0 : p.window_right;
  const bool slopes = p.score.alibi_slopes != nullptr;
  const auto delta = [&](std::int64_t length) { return length - p.seq_q + q.begin - k.begin; };
  if (right != 0 && !p.kv_len.empty()) {
    if (slopes || p.window_left >= 0 || right > 0) {
      refuse("kv_len with windows or alibi_slopes", "causal, or neither");
    }
    bool any = false;
    for (const std::int64_t length : p.kv_len) {
      pair.kv_len.push_back(std::clamp<std::int64_t>(length - k.begin, 0, k.count));
      any = any || pair.kv_len.back() > 0;
    }
    return any;
  }
  if (right == 0) {
    std::vector<std::int64_t> lengths(p.kv_len.begin(), p.kv_len.end());
    if (lengths.empty()) lengths.assign(static_cast<std::size_t>(p.batch), p.seq_kv);
    std::int64_t most = 0, least = q.count + k.count;
    for (const std::int64_t length : lengths) {
      const std::int64_t aligned = std::max<std::int64_t>(0, q.count + delta(length));
      pair.kv_len.push_back(aligned);
      most = std::max(most, aligned);
      least = std::min(least, aligned);
    }
    if (most == 0) return false;
    // The first query of the chunk sees all keys: nothing is hidden, and nothing needs a table.
    if (least >= q.count + k.count - 1 && p.window_left < 0 && !slopes) {
      pair.kv_len.clear();
      return true;
    }
    if (p.window_left >= 0 && most == least && most - q.count - p.window_left >= k.count) {
      return false;
    }
    mask.causal = true;
    mask.window_left = p.window_left;
    if (most == k.count && least == most) pair.kv_len.clear();
    return true;
  }
  const std::int64_t d = delta(p.seq_kv);
  if (right > 0) keys = std::min(keys, q.count + d + right);
  if (keys <= 0 || (p.window_left >= 0 && d - p.window_left >= keys)) return false;
  if (right < 0 && p.window_left < 0 && !slopes) return true;
  const std::int64_t missing = std::max<std::int64_t>(0, keys - q.count - d);
  if (missing > 0 && slopes) refuse("alibi_slopes with keys after the query", "causal");
  mask.window_left = p.window_left < 0 ? -1 : p.window_left + missing;
  mask.window_right = right < 0 ? -1 : right - missing;
  if (missing == 0) pair.kv_len.assign(static_cast<std::size_t>(p.batch), q.count + d);
  return true;
}

/// Sets the part of the block mask. Returns false when no block of it is visible.
bool set_blocks(Pair& pair, const RingProblem& p, const Chunk& q, const Chunk& k) {
  if (p.block_mask.empty()) return true;
  const std::int64_t columns = (p.seq_kv + p.block_size - 1) / p.block_size;
  const std::int64_t size = std::gcd(p.block_size, std::gcd(q.begin, k.begin));
  const auto blocks = [&](std::int64_t n) { return (n + size - 1) / size; };
  for (std::int64_t i = 0; i < blocks(q.count); ++i) {
    for (std::int64_t j = 0; j < blocks(pair.call.k_count); ++j) {
      const std::int64_t row = (q.begin + i * size) / p.block_size;
      const std::int64_t column = (k.begin + j * size) / p.block_size;
      const bool live = p.block_mask[static_cast<std::size_t>(row * columns + column)] != 0;
      pair.blocks.push_back(live ? 1 : 0);
    }
  }
  pair.call.mask.block_size = size;
  return std::ranges::find(pair.blocks, 1) != pair.blocks.end();
}

/// Rows and columns of the bias.
TensorRef<4> part_of_bias(TensorRef<4> bias, const Chunk& q, const Chunk& k, std::int64_t keys) {
  bias.data = static_cast<std::byte*>(bias.data) +
              static_cast<std::size_t>(q.row * bias.stride[2] + k.begin) * size_of(bias.dtype);
  bias.extent[2] = q.count;
  bias.extent[3] = keys;
  return bias;
}

std::optional<Pair> pair_of(const RingProblem& p, const Chunk& q, const Chunk& k) {
  Pair pair;
  pair.call = {.q_begin = q.row, .q_count = q.count, .k_begin = k.row, .k_count = k.count};
  if (!set_interval(pair, p, q, k) || !set_blocks(pair, p, q, k)) return std::nullopt;
  if (p.bias) pair.call.mask.bias = part_of_bias(p.bias, q, k, pair.call.k_count);
  return pair;
}

/// True when each step is one call.
bool is_plain(const RingProblem& p, int ranks) {
  return p.causal && p.window_left < 0 && p.seq_q == p.seq_kv && p.seq_q % (2 * ranks) == 0 &&
         p.score.alibi_slopes == nullptr && p.kv_len.empty() && p.block_mask.empty() && !p.bias;
}

RingCall plain_call(std::int64_t rows, int rank, int source) {
  const std::int64_t half = rows / 2;
  if (source == rank) return {0, rows, 0, rows, {.causal = true}};
  if (source < rank) return {0, rows, 0, half, {}};
  return {half, half, 0, rows, {}};
}

}  // namespace

std::vector<std::int64_t> ZigzagRows::positions() const {
  std::vector<std::int64_t> all;
  for (const int which : {0, 1}) {
    const ranks::Part here = part(which);
    for (std::int64_t i = 0; i < chunk(); ++i) {
      all.push_back(i < here.count ? here.begin + i : -1);
    }
  }
  return all;
}

template <class Exec>
RingSchedule<Exec>::RingSchedule(const Exec& exec, const RingProblem& problem, int ranks, int rank,
                                 bool gathered)
    : score_(problem.score), batch_(problem.batch) {
  const ZigzagRows queries{problem.seq_q, ranks, rank};
  q_rows_ = queries.rows();
  kv_rows_ = gathered ? problem.seq_kv : ZigzagRows{problem.seq_kv, ranks, rank}.rows();
  const int sources = gathered ? 1 : ranks;
  calls_.resize(static_cast<std::size_t>(sources));
  if (!gathered && is_plain(problem, ranks)) {
    for (int source = 0; source < ranks; ++source) {
      calls_[static_cast<std::size_t>(source)].push_back(plain_call(q_rows_, rank, source));
    }
    return;
  }
  // The lengths come first, aligned to eight bytes, then the bytes of the blocks.
  std::vector<std::int64_t> lengths;
  std::vector<std::uint8_t> blocks;
  struct Place {
    RingCall* call;
    std::optional<std::size_t> length, block;
  };
  std::vector<std::vector<Pair>> pairs(calls_.size());
  for (int source = 0; source < sources; ++source) {
    const std::vector<Chunk> keys = gathered ? std::vector<Chunk>{{0, 0, problem.seq_kv}}
                                             : chunks_of({problem.seq_kv, ranks, source});
    for (const Chunk& q : chunks_of(queries)) {
      for (const Chunk& k : keys) {
        if (auto pair = pair_of(problem, q, k)) {
          pairs[static_cast<std::size_t>(source)].push_back(std::move(*pair));
        }
      }
    }
  }
  std::vector<Place> places;
  for (std::size_t source = 0; source < pairs.size(); ++source) {
    for (const Pair& pair : pairs[source]) calls_[source].push_back(pair.call);
    for (std::size_t i = 0; i < pairs[source].size(); ++i) {
      const Pair& pair = pairs[source][i];
      Place place{.call = &calls_[source][i], .length = {}, .block = {}};
      if (!pair.kv_len.empty()) place.length = lengths.size();
      if (!pair.blocks.empty()) place.block = blocks.size();
      lengths.insert(lengths.end(), pair.kv_len.begin(), pair.kv_len.end());
      blocks.insert(blocks.end(), pair.blocks.begin(), pair.blocks.end());
      places.push_back(place);
    }
  }
  const std::size_t length_bytes = lengths.size() * sizeof(std::int64_t);
  if (length_bytes + blocks.size() == 0) return;
  tables_ = DeviceMemory<Exec>("katt::ring_attention::tables", length_bytes + blocks.size(), false);
  copy_from_host(exec, std::as_bytes(std::span(lengths)), tables_.data());
  copy_from_host(exec, std::as_bytes(std::span(blocks)), tables_.data() + length_bytes);
  for (const Place& place : places) {
    if (place.length) {
      place.call->mask.kv_len =
          reinterpret_cast<const std::int64_t*>(tables_.data()) + *place.length;
    }
    if (place.block) {
      place.call->mask.block_mask =
          reinterpret_cast<const std::uint8_t*>(tables_.data() + length_bytes) + *place.block;
    }
  }
}

#define KATT_INSTANTIATE_SCHEDULE(Exec) template class RingSchedule<Exec>;

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_SCHEDULE)

}  // namespace katt::nn
