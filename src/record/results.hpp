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
#include "op/collective.hpp"
#include "plan/plan.hpp"

namespace katt::bench {

/// What became of one configuration of a case: everything a row of /points says.
struct RowResult {
  Config requested;
  Config resolved;          ///< what ran: with the default tile filled in
  Setting default_setting;  ///< the variant's own for this point
  Status status;
  std::vector<double> samples_s;
  int inner = 0;
  double host_s = std::numeric_limits<double>::quiet_NaN();  ///< on a device: of a run, the host's
  Estimate time_s;                                           ///< NaN where it did not run
  Estimate speedup;  ///< of the baseline's time to this one's, paired; NaN without a baseline
  bool baseline = false;
  std::string engine;  ///< which units of the machine ran; "" where the variant does not say
  Work work;
  NearestCeiling ceiling;
  std::optional<memory::Bytes> total{};  ///< peak with inputs and outputs; nothing: not measured
  std::size_t tensor_bytes = 0;          ///< of these, what inputs and outputs take
  double max_abs_err = 0;
  double mean_abs_err = 0;
  io::Profile profile{};
  std::optional<Exchange> exchange{};  ///< of an operator of several ranks
  std::string note{};                  ///< what a reader of the times must know
};

/// A row for a configuration that did not run.
[[nodiscard]] RowResult not_run(const Config& config, Status status);

/// What measuring a candidate gave, as a row without its speedup and its memory.
[[nodiscard]] RowResult measured_row(const Config& requested, const Config& resolved,
                                     Measured measured, const Work& work);

/// Fills in the speedups over the baseline among the rows of a case. Where the baseline is a plain
/// call of MPI it is the ceiling, too: the same bytes in the same rounds.
void add_speedups(std::span<RowResult> rows);

/// The columns of /points: those of schema 1, one for every further axis of the operators, and what
/// came later.
[[nodiscard]] std::vector<io::Column> result_columns(const Registry& registry);

/// Where a row comes from.
struct RowOrigin {
  std::string run{};
  std::string point{};
  std::string commit{};
  bool cold = false;
};

/// The row of a result; text is cut to its column's width.
[[nodiscard]] io::Row make_row(const std::vector<io::Column>& columns, const PlannedCase& planned,
                               const RowResult& result, const RowOrigin& origin);

/// What makes two rows the same measurement, for `--resume`: operator, pass, backend, dtype,
/// threads, every axis, variant, requested tile, label, cold.
[[nodiscard]] std::string row_key(const Registry& registry, const std::vector<io::Column>& columns,
                                  const std::vector<io::Cell>& cells);

}  // namespace katt::bench
