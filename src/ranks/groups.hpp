#pragma once

#include <cstdint>
#include <string>

#include "ranks/communicator.hpp"

/// The division of a model and its data among the ranks of a program.
namespace katt::ranks {

/// Attention of ranks that share sequences: keys travel around a ring of the ranks (Liu et al.
/// 2023, arXiv:2310.01889), or each rank has all tokens of some heads (Jacobs et al. 2023,
/// arXiv:2309.14509).
enum class ContextVariant : std::uint8_t {
  ring,    ///< keys travel around the ranks
  ulysses  ///< ranks exchange tokens for heads
};

/// tensor · pipeline · context · data ranks.
struct Layout {
  int tensor = 1;    ///< ranks that share every matrix (Shoeybi et al. 2019, arXiv:1909.08053)
  int pipeline = 1;  ///< stages of blocks, one after the other
  int context = 1;   ///< ranks that share every sequence
  int data = 1;      ///< ranks that share the rows of a step
  /// True: ranks with the same parameters share the optimizer's state (Rajbhandari et al. 2020,
  /// arXiv:1910.02054, stage 1).
  bool zero = false;
  /// True: the ranks of a tensor group share the rows of the residual stream and its norms
  /// (Korthikanti et al. 2022, arXiv:2205.05198).
  bool sequence_parallel = false;
  ContextVariant context_variant = ContextVariant::ring;  ///< attention of a context group
  /// Number of parts of the blocks on every stage; each part follows the parts of the other stages
  /// (Narayanan et al. 2021, arXiv:2104.04473, section 2.2).
  int virtual_stages = 1;

  [[nodiscard]] int ranks() const {
    return tensor * pipeline * context * data;
  }  ///< of all groups together
  /// Ranks that hold the same parameters.
  [[nodiscard]] int replicas() const { return context * data; }
  /// True when a tensor group shares the rows of the residual stream.
  [[nodiscard]] bool shares_rows() const { return sequence_parallel && tensor > 1; }
};

/// "tensor 2 × data 2"; "one rank".
[[nodiscard]] std::string to_text(const Layout& layout);

/// The layout of this many ranks; the data parallel size is the number of ranks over the product of
/// the other sizes. Throws InputError when that product does not divide the ranks.
[[nodiscard]] Layout layout_of(int ranks, int tensor, int pipeline, int context, bool zero);

/// A rank's place in a layout. The ranks of a tensor group are neighbours, then the ranks of a
/// context, data and pipeline group: ranks that talk most are nearest.
struct Place {
  Layout layout{};                                   ///< the layout that this is a place of
  int tensor = 0, context = 0, data = 0, stage = 0;  ///< index within each kind of group, from 0

  Place() = default;
  /// The place of a rank, from 0.
  Place(const Layout& of, int rank);
  /// True when it has the embedding.
  [[nodiscard]] bool is_first_stage() const { return stage == 0; }
  /// True when it has the head and the loss.
  [[nodiscard]] bool is_last_stage() const { return stage == layout.pipeline - 1; }
  /// The place among the ranks that hold the same parameters.
  [[nodiscard]] int replica() const { return data * layout.context + context; }
};

/// A rank's place and the groups in which it works.
struct Groups {
  Place place{};            ///< this rank's place
  Communicator all{};       ///< every rank of the program
  Communicator tensor{};    ///< ranks that share every matrix
  Communicator context{};   ///< ranks that share every sequence
  Communicator replicas{};  ///< ranks with the same parameters: data and context
  Communicator pipeline{};  ///< by stage
  /// The same ranks, for the way back: the messages of one direction need not wait for the order of
  /// the other.
  Communicator pipeline_back{};
  Communicator model{};  ///< ranks that together hold the model: tensor and pipeline
  Communicator ends{};   ///< the first and the last stage of a pipeline; one rank without a
                         ///< pipeline

  Groups() = default;
  /// All ranks of `ranks` make their Groups together. Throws InputError when their number is not
  /// that of the layout.
  Groups(const Communicator& ranks, const Layout& layout);
  /// Groups for a forecast of a rank's needs; nobody calls their communicators.
  explicit Groups(const Place& rehearsed) : place(rehearsed) {}
};

}  // namespace katt::ranks
