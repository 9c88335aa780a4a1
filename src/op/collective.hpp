#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "op/registry.hpp"
#include "ranks/communicator.hpp"
#include "ranks/traffic.hpp"

/// Operators that several ranks compute together. The others are measured on one rank at a time;
/// of these, all ranks of a group take part in every case, in step with each other.
namespace katt::bench {

/// The engine of a variant that is a plain call of MPI.
inline constexpr const char* plain_mpi = "mpi";

/// Traffic between ranks in one run, over the timed runs.
struct Exchange {
  /// Bytes by which bus bandwidth is told, as nccl-tests do: what the busiest link has to carry
  /// whatever the algorithm. 0: the operation has no such measure.
  double bus_bytes = 0;
  double sent_bytes = 0;  ///< by the rank that sent most; NaN where others than src/ranks sent
  double messages = 0;    ///< of that rank
  double communication_fraction = 0;  ///< of the time, in calls of src/ranks; mean over ranks
  double overlap_fraction =
      0;                     ///< of the time in which messages were under way, that spent elsewhere
  double idle_fraction = 0;  ///< of the time, in which stages of a pipeline wait; mean over ranks
};

/// A variant made ready on the ranks of a group. All of them call each function, run() and fence()
/// aside. An error in run() on one rank ends the job: the others wait for its messages.
class CollectiveCandidate : public Candidate {
 public:
  explicit CollectiveCandidate(ranks::Communicator group) : group_(std::move(group)) {}

  void run() final;
  /// The time of the slowest rank, from a barrier on.
  [[nodiscard]] std::optional<double> timed(int runs) final;
  /// The same on all ranks: the largest errors, and what the first rank complains of.
  [[nodiscard]] Errors verify() final;
  /// The traffic of the timed runs.
  [[nodiscard]] Exchange exchange() const;

 protected:
  [[nodiscard]] const ranks::Communicator& group() const { return group_; }
  /// Computes once.
  virtual void compute() = 0;
  /// Compares this rank's outputs, of which all have been computed.
  [[nodiscard]] virtual Errors compare() = 0;
  [[nodiscard]] virtual double bus_bytes() const { return 0; }
  /// Share of the time in which this rank waits for other stages of a pipeline.
  [[nodiscard]] virtual double idle_fraction() const { return 0; }
  /// True when the operations of src/ranks send all that is sent.
  [[nodiscard]] virtual bool sends_through_ranks() const { return true; }

 private:
  ranks::Communicator group_;
  ranks::Traffic total_{};
  double time_s_ = 0;
  int runs_ = 0;
};

/// An operator of ranks. One of its axes is `ranks` (ranks_axis()): how many of those that mpirun
/// started take part. A case computes on them alone.
class CollectiveOperator : public Operator {
 public:
  /// Called by all ranks of the group, of as many as the point's `ranks`. They change the inputs of
  /// the case together, with the same random numbers (Case::change(), Candidate::inputs_changed()).
  [[nodiscard]] virtual std::unique_ptr<Case> make_case_on(const ranks::Communicator& group,
                                                           const Point& point) const = 0;
  /// This process alone.
  [[nodiscard]] std::unique_ptr<Case> make_case(const Point& point) const final;

  /// The same for the tensors of a file: all ranks of the program call it, and rank 0 has the
  /// outputs. Throws InputError where the operator reads no files.
  void run_file(const io::CaseFile& in, const RunOptions& options,
                io::TensorFile& out) const override;
};

/// True when all ranks compute it together.
[[nodiscard]] inline bool is_collective(const Operator& op) {
  return dynamic_cast<const CollectiveOperator*>(&op) != nullptr;
}

/// The axis `ranks`, from 1 to those that were started, all of them where a sweep names none.
[[nodiscard]] AxisSpec ranks_axis();

/// The largest of all ranks' values, on each of them.
[[nodiscard]] double largest(const ranks::Communicator& group, double value);

/// Calls f on all ranks of a group, of which some may throw: then all throw, the first one's message
/// with its rank.
void on_all_ranks(const ranks::Communicator& group, const std::function<void()>& f);

/// Note on the times of so many threads on each rank of a group: "", or that they mean nothing
/// because the threads of a host share its cores.
[[nodiscard]] std::string note_of_times(const ranks::Communicator& group, int threads);

}  // namespace katt::bench
