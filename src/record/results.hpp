#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/hdf5/result_file.hpp"
#include "measure/ceilings.hpp"
#include "measure/measure.hpp"
#include "measure/statistics.hpp"
#include "memory/tracker.hpp"
#include "op/code.hpp"
#include "op/collective.hpp"
#include "plan/plan.hpp"

namespace katt::bench {

/// The result of one configuration of a case: all values of a row of /points.
struct RowResult {
  Config requested;
  Config resolved;          ///< the configuration that ran, with the default tile filled in
  Setting default_setting;  ///< the variant's own setting for this point
  Status status;
  std::vector<double> samples_s;
  int inner = 0;
  double host_s = std::numeric_limits<double>::quiet_NaN();  ///< on a device: host seconds of a run
  double sm_clock_hz =
      std::numeric_limits<double>::quiet_NaN();                 ///< of a device, where it is known
  double claimed_s = std::numeric_limits<double>::quiet_NaN();  ///< a run by a peer's own clock
  Estimate time_s;                                              ///< NaN when it did not run
  Estimate speedup;  ///< ratio of the baseline's time to this one, paired; NaN without a baseline
  Estimate paired;   ///< ratio of the reference point's time to this one, paired; NaN without one
  bool baseline = false;
  std::string engine;  ///< units of the machine that ran; "" when the variant does not say
  Work work;
  NearestCeiling ceiling;
  std::optional<memory::Bytes> total{};  ///< peak with inputs and outputs; nothing: not measured
  std::size_t tensor_bytes = 0;          ///< bytes of these for inputs and outputs
  double max_abs_err = 0;
  double mean_abs_err = 0;
  double worst_abs_err =
      0;  ///< the largest of all checks: with other inputs, and after timing, too
  io::Profile profile{};
  std::optional<Exchange> exchange{};  ///< for an operator of several ranks
  std::string note{};                  ///< remarks for a reader of the times
  bool left_race = false;              ///< it left a race, and was measured in fewer rounds
  Effort effort{};                     ///< what the processor did
  Estimate speedup_cycles{};           ///< as speedup, of cycles; NaN where nobody counts them
  bool lacked_memory = false;          ///< skipped for want of memory, and so not asked
  std::string suspicion{};             ///< why the time cannot be believed; then it is "suspect"

  /// True for a time that counts.
  [[nodiscard]] bool is_sound() const { return status.is_ok() && suspicion.empty(); }
  /// The columns `status` and `reason`.
  [[nodiscard]] std::string status_name() const {
    return suspicion.empty() ? std::string(status.name()) : "suspect";
  }
  [[nodiscard]] const std::string& reason() const {
    return suspicion.empty() ? status.reason() : suspicion;
  }
};

/// A row for a configuration that did not run.
[[nodiscard]] RowResult not_run(const Config& config, Status status);

/// The measurements of a candidate, as a row without speedup and memory.
[[nodiscard]] RowResult measured_row(const Config& requested, const Config& resolved,
                                     Measured measured, const Work& work);

/// Fills in the speedups over the baseline among the rows of a case. A baseline that is a plain
/// call of MPI is the ceiling, too: the same bytes in the same rounds.
void add_speedups(std::span<RowResult> rows);

/// Fills in the ratios to the reference point among the rows of a group of paired points. A row's
/// counterpart there has the same variant and setting, or both are what `auto` means at their point.
void add_paired_ratios(std::span<const PlannedCase> group, std::span<std::vector<RowResult>> rows);

/// The columns of /points: the columns of schema 1, one for every further axis of the operators,
/// and later columns.
[[nodiscard]] std::vector<io::Column> result_columns(const Registry& registry);

/// The origin of a row.
struct RowOrigin {
  std::string run{};
  std::string point{};
  std::string commit{};
  bool cold = false;
};

/// The code of the variant of a row; nothing for a peer.
[[nodiscard]] const Code* code_of(const PlannedCase& planned, const RowResult& result);

/// The row of a result. Cuts text to its column's width.
[[nodiscard]] io::Row make_row(const std::vector<io::Column>& columns, const PlannedCase& planned,
                               const RowResult& result, const RowOrigin& origin);

/// The key that is equal for two rows of the same measurement, for `--resume`: operator, pass,
/// backend, dtype, threads, every axis, variant, requested tile, label, cold.
[[nodiscard]] std::string row_key(const Registry& registry, const std::vector<io::Column>& columns,
                                  const std::vector<io::Cell>& cells);

}  // namespace katt::bench
