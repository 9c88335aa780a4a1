#pragma once

#include <cstdint>
#include <string>

#include "ranks/communicator.hpp"

/// How the ranks of a program share a model and its data.
namespace katt::ranks {

/// How ranks that share sequences attend: keys travel around a ring of them (Liu et al. 2023,
/// arXiv:2310.01889), or each has all tokens of some heads (Jacobs et al. 2023, arXiv:2309.14509).
enum class ContextVariant : std::uint8_t { ring, ulysses };

/// tensor · pipeline · context · data ranks.
struct Layout {
  int tensor = 1;    ///< ranks that share every matrix (Shoeybi et al. 2019, arXiv:1909.08053)
  int pipeline = 1;  ///< stages of blocks, one after the other
  int context = 1;   ///< ranks that share every sequence
  int data = 1;      ///< ranks that share the rows of a step
  /// Whether those that hold the same parameters share the optimizer's state (Rajbhandari et al.
  /// 2020, arXiv:1910.02054, stage 1).
  bool zero = false;
  /// Whether the ranks of a tensor group share the rows of the residual stream and its norms
  /// (Korthikanti et al. 2022, arXiv:2205.05198).
  bool sequence_parallel = false;
  ContextVariant context_variant = ContextVariant::ring;
  /// Parts of the blocks that every stage has, each behind those of the other stages (Narayanan et
  /// al. 2021, arXiv:2104.04473, section 2.2).
  int virtual_stages = 1;

  [[nodiscard]] int ranks() const { return tensor * pipeline * context * data; }
  /// Ranks that hold the same parameters.
  [[nodiscard]] int replicas() const { return context * data; }
  [[nodiscard]] bool shares_rows() const { return sequence_parallel && tensor > 1; }
};

/// "tensor 2 × data 2"; "one rank".
[[nodiscard]] std::string to_text(const Layout& layout);

/// The layout of so many ranks whose data parallel part is what is left. Throws InputError where
/// the others' product does not divide them.
[[nodiscard]] Layout layout_of(int ranks, int tensor, int pipeline, int context, bool zero);

/// A rank's place in a layout. Ranks of a tensor group are neighbours, then those of a context, of
/// the data and of a pipeline: what talks most is nearest.
struct Place {
  Layout layout{};
  int tensor = 0, context = 0, data = 0, stage = 0;

  Place() = default;
  Place(const Layout& of, int rank);
  [[nodiscard]] bool is_first_stage() const { return stage == 0; }
  [[nodiscard]] bool is_last_stage() const { return stage == layout.pipeline - 1; }
  /// Among those that hold the same parameters.
  [[nodiscard]] int replica() const { return data * layout.context + context; }
};

/// A rank's place and the groups in which it works.
struct Groups {
  Place place{};
  Communicator all{};
  Communicator tensor{};
  Communicator context{};
  Communicator replicas{};  ///< those that hold the same parameters: data and context
  Communicator pipeline{};  ///< by stage
  /// The same ranks, for what goes back: neither direction's messages wait for the other's order.
  Communicator pipeline_back{};
  Communicator model{};  ///< those that together hold the model: tensor and pipeline
  Communicator ends{};   ///< of a pipeline, its first and its last stage; else one rank

  Groups() = default;
  /// All ranks of `ranks` make theirs. Throws InputError where there are not as many as the layout
  /// has.
  Groups(const Communicator& ranks, const Layout& layout);
  /// For a forecast of what a rank needs: groups that are never called.
  explicit Groups(const Place& rehearsed) : place(rehearsed) {}
};

}  // namespace katt::ranks
