#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "nn/inference/most_likely.hpp"
#include "nn/inference/session.hpp"
#include "ops/rope/rope.hpp"

/// Part of session.cpp: steps of a Session with the same launches every time.
namespace katt::nn {

template <class Exec>
bool Session<Exec>::can_repeat_tokens() const {
  const ranks::Layout& layout = options_.groups.place.layout;
  const Kernels& kernels = options_.kernels;
  if (is_host_v<Exec> || layout.tensor > 1 || layout.pipeline > 1) return false;
  if (kernels.attention != "auto" || kernels.rope != "auto") return false;
  // Its arguments are the same for all lengths; the variant for contiguous keys gets their number.
  attention::PagedArgs args = pages(0);
  args.q =
      Arena().tensor<4>(dtype_, {options_.batch, config_.num_attention_heads, 1, config_.head_dim});
  const auto& table = attention::paged_variants<Exec>();
  const Config config = table.resolve(run_.exec(), args, {.variant = "decode"});
  return table.supports(run_.exec(), args, config).is_ok();
}

template <class Exec>
std::string Session<Exec>::submission() const {
  if (is_host_v<Exec>) return "launches";
  if (!repeats_tokens_) return "launches: ranks work together, or variants are chosen";
  return replay_.refusal().empty() ? "graph" : "launches: " + replay_.refusal();
}

template <class Exec>
std::vector<std::int64_t> Session<Exec>::append_greedily(std::span<const std::int64_t> sequences,
                                                         std::span<const std::int64_t> ids) {
  const std::span<const std::int64_t> slots = is_paged() ? sequences : slots_;
  if (ids.empty() || ids.size() != slots.size()) {
    throw InputError("tokens: " + std::to_string(ids.size()) + " for " +
                     std::to_string(slots.size()) + " sequences, expected one of each");
  }
  std::vector<std::int64_t> tokens(ids.size());
  if (!repeats_tokens_) {
    const std::vector<float> logits = is_paged() ? append_to(sequences, ids) : append(ids);
    const auto vocab = static_cast<std::ptrdiff_t>(vocab_size_);
    for (std::size_t row = 0; row < tokens.size(); ++row) {
      const auto first = logits.begin() + static_cast<std::ptrdiff_t>(row) * vocab;
      tokens[row] = std::max_element(first, first + vocab) - first;
    }
    return tokens;
  }
  check_ids(ids);
  for (const std::int64_t slot : slots) check_room(cache_->length(slot), 1);
  step(slots, ids, length_, false, {.tokens = tokens});
  if (!is_paged()) ++length_;
  const auto bad = std::ranges::find(tokens, -1);
  if (bad == tokens.end()) return tokens;
  const auto row = static_cast<std::size_t>(bad - tokens.begin());
  throw NotFiniteError(cache_->length(slots[row]) - 1, row, dtype_);
}

/// rope and the append to the cache in one launch.
template <class Exec>
void Session<Exec>::turn_and_append(const MultiHeadAttention<Exec>& attention, const Step& at,
                                    BatchShape shape, std::int64_t layer) {
  const TensorRef<4> q = attention.queries(at.at, shape);
  const TensorRef<4> k = attention.keys(at.at, shape);
  observe_call("katt::rope", [&] {
    return work_of(rope::ForwardArgs{.x = q, .out = q, .x2 = k, .out2 = k, .cache = at.cos_sin});
  });
  const Kokkos::Profiling::ScopedRegion region("katt::rope");
  cache_->append_turned(run_.exec(), layer, q, k, attention.values(at.at, shape), at.cos_sin);
}

/// Makes two copies, of the ids to the device and of the result from it, and one wait; when the
/// batch or its pages have changed, one more copy and wait.
template <class Exec>
void Session<Exec>::repeat_step(const Step& at, std::span<const std::int64_t> slots,
                                std::span<const std::int64_t> ids, Wanted wanted) {
  const Exec& exec = run_.exec();
  const BatchShape shape{.batch = std::ssize(slots), .seq = 1};
  const bool finds = !wanted.tokens.empty();
  using Ids = Kokkos::View<std::int64_t*, typename Exec::memory_space,
                           Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  cache_->extend_by_one(exec, slots);
  if (std::exchange(is_staging_read_, true)) exec.fence("katt::nn::session: the ids before");
  const auto to = Kokkos::subview(staging_, std::make_pair(std::size_t{0}, ids.size()));
  std::ranges::copy(ids, to.data());
  Kokkos::deep_copy(exec, Ids(at.ids, ids.size()), to);
  const std::int64_t asked = wanted.is_nothing() ? 0 : finds ? 1 : 2;
  replay_(exec, 3 * shape.batch + asked, [&] {
    launch(run_, at, shape, 0, false);
    if (wanted.is_nothing()) return;
    const TensorRef<2> logits = launch_head(run_, at, 0, shape.batch);
    if constexpr (!is_host_v<Exec>) {
      if (finds) most_likely(exec, logits, at.found);
    }
  });
  if (wanted.is_nothing()) return;
  if (finds) {
    const auto from = Kokkos::subview(staging_, std::make_pair(ids.size(), 2 * ids.size()));
    Kokkos::deep_copy(exec, from, Ids(at.found, ids.size()));
    exec.fence("katt::nn::session: the tokens");
    std::ranges::copy_n(from.data(), std::ssize(ids), wanted.tokens.begin());
  } else {
    read_logits(rows_of(at.logits, 0, shape.batch), wanted.logits);
  }
  is_staging_read_ = false;
}

}  // namespace katt::nn
