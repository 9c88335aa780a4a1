#include "training/sharing.hpp"

#include <algorithm>
#include <string>

#include "core/error.hpp"

namespace katt::training {

RowShare share_rows(std::int64_t batch, std::int64_t accumulation, const ranks::Place& place,
                    std::int64_t micro_batches) {
  const std::int64_t rows = batch * accumulation;
  const std::int64_t ranks = place.layout.data;
  if (rows % ranks != 0) {
    throw InputError("--batch " + std::to_string(batch) + " --accumulation " +
                     std::to_string(accumulation) + ": a step has " + std::to_string(rows) +
                     " rows, expected a multiple of the " + std::to_string(ranks) +
                     " data parallel ranks");
  }
  const std::int64_t own = rows / ranks;
  RowShare share{.first = place.data * own};
  if (micro_batches > 0) {
    if (own % micro_batches != 0) {
      throw InputError("--micro-batches " + std::to_string(micro_batches) + ": a rank has " +
                       std::to_string(own) + " rows of a step, expected a divisor of them");
    }
    share.rows = own / micro_batches;
  } else {
    share.rows = std::min(batch, own);
    while (own % share.rows != 0) --share.rows;
  }
  share.microbatches = own / share.rows;
  return share;
}

Sharing::Sharing(std::int64_t size, const ranks::Place& place, std::int64_t bucket)
    : replicas_(place.layout.replicas()),
      replica_(place.replica()),
      is_cut_(place.layout.zero && replicas_ > 1) {
  for (std::int64_t end = replicas_ > 1 ? size : 0; end > 0; end -= std::min(bucket, end)) {
    const std::int64_t count = std::min(bucket, end);
    buckets_.push_back({end - count, count});
  }
  if (!is_cut_) {
    pieces_.push_back({0, size, 0});
    state_size_ = size;
    return;
  }
  for (const ranks::Part& part : buckets_) {
    const ranks::Part piece = own(part);
    if (piece.count == 0) continue;
    pieces_.push_back({piece.begin, piece.count, state_size_});
    state_size_ += piece.count;
  }
}

ranks::Part Sharing::own(ranks::Part bucket) const {
  const ranks::Part part = ranks::part_of(bucket.count, replicas_, replica_);
  return {bucket.begin + part.begin, part.count};
}

std::vector<Piece> Sharing::pieces_of(ranks::Part range) const {
  // Later pieces lie before earlier ones.
  auto at = std::ranges::partition_point(
      pieces_, [&](const Piece& piece) { return piece.begin >= range.begin + range.count; });
  std::vector<Piece> found;
  for (; at != pieces_.end() && at->begin + at->count > range.begin; ++at) {
    const std::int64_t begin = std::max(at->begin, range.begin);
    const std::int64_t end = std::min(at->begin + at->count, range.begin + range.count);
    if (begin < end) found.push_back({begin, end - begin, at->state + begin - at->begin});
  }
  return found;
}

std::vector<ranks::Part> counted_parts(const nn::ParameterLayout& layout, const Sharing& sharing) {
  // The first rank counts the tensors that every rank of a tensor group has; the first stage counts
  // an embedding.
  const auto counts = [&](const nn::Parameter& parameter) {
    return !parameter.is_copy && (parameter.axis >= 0 || layout.slice().tensor_rank == 0);
  };
  const std::vector<nn::Parameter>& all = layout.parameters();
  std::vector<ranks::Part> kept;
  if (std::ranges::all_of(all, counts)) {
    kept.push_back({0, layout.size()});  // with the zeros between
  } else {
    for (const nn::Parameter& parameter : all) {
      if (counts(parameter)) kept.push_back({parameter.offset, parameter.size()});
    }
  }
  std::vector<ranks::Part> parts;
  for (const Piece& piece : sharing.pieces()) {
    for (const ranks::Part& part : kept) {
      const std::int64_t begin = std::max(piece.begin, part.begin);
      const std::int64_t end = std::min(piece.begin + piece.count, part.begin + part.count);
      if (begin < end) parts.push_back({begin, end - begin});
    }
  }
  return parts;
}

}  // namespace katt::training
