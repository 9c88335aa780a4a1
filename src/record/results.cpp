#include "record/results.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>

#include "core/text.hpp"
#include "op/collective.hpp"

namespace katt::bench {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

using io::ColumnKind;

io::Cell empty_cell(ColumnKind kind) {
  switch (kind) {
    case ColumnKind::text: return std::string();
    case ColumnKind::integer: return std::int64_t{0};
    case ColumnKind::real: break;
  }
  return 0.0;
}

/// Median of the counts that are there.
double median_of(const std::vector<double>& counts) {
  std::vector<double> held;
  std::ranges::copy_if(counts, std::back_inserter(held), [](double one) { return one > 0; });
  return median_interval(held).median;
}

/// paired_ratio of the rounds that have both counts.
Estimate ratio_of_cycles(const std::vector<double>& numerator,
                         const std::vector<double>& denominator) {
  std::vector<double> over, under;
  for (std::size_t i = 0; i < std::min(numerator.size(), denominator.size()); ++i) {
    if (!(numerator[i] > 0 && denominator[i] > 0)) continue;
    over.push_back(numerator[i]);
    under.push_back(denominator[i]);
  }
  return paired_ratio(over, under);
}

struct Field {
  const char* name;
  io::Cell cell;
  std::size_t width = 0;  ///< of a text

  [[nodiscard]] io::Column column(bool later) const {
    constexpr ColumnKind kinds[] = {ColumnKind::text, ColumnKind::integer, ColumnKind::real};
    return {name, kinds[cell.index()], width, later};  // in the order of the alternatives of Cell
  }
};

/// Fields of a row in the order of its columns: those of schema 1 (docs/schema.md), then Katt's
/// own. The axes of attention are among them, and are filled in from the point.
std::vector<Field> base_fields(const PlannedCase& planned, const RowResult& row,
                               const RowOrigin& origin) {
  const Point& point = planned.point;
  constexpr std::int64_t axis = 0;
  const double total = row.total ? static_cast<double>(row.total->total()) : nan;
  return {
      {"op", planned.op != nullptr ? planned.op->name() : "", 32},
      {"pass", point.pass, 8},
      {"variant", row.requested.variant, 32},
      {"backend", std::string(name_of(point.backend)), 8},
      {"dtype", std::string(name_of(point.dtype)), 8},
      {"batch", axis},
      {"heads", axis},
      {"kv_heads", axis},
      {"seq_q", axis},
      {"seq_kv", axis},
      {"head_dim", axis},
      {"causal", axis},
      {"tile_q", axis},
      {"tile_kv", axis},
      {"threads", std::int64_t{point.threads}},
      {"status", row.status_name(), 8},
      {"reason", row.reason(), 256},
      {"samples", static_cast<std::int64_t>(row.samples_s.size())},
      {"time_s", row.time_s.median},
      {"time_lo_s", row.time_s.lo},
      {"time_hi_s", row.time_s.hi},
      {"flops", row.work.flops},
      {"bytes", row.work.bytes},
      {"tflops", row.work.flops / row.time_s.median * 1e-12},
      {"gbytes_s", row.work.bytes / row.time_s.median * 1e-9},
      {"ceiling", row.ceiling.name, 24},
      {"ceiling_fraction", row.ceiling.fraction},
      {"speedup", row.speedup.median},
      {"workspace_bytes",
       row.total ? std::max(total - static_cast<double>(row.tensor_bytes), 0.0) : nan},
      {"total_bytes", total},
      {"max_abs_err", row.max_abs_err},
      {"mean_abs_err", row.mean_abs_err},
      {"commit", origin.commit, 48},
      {"run", origin.run, 16},
      {"point", origin.point, 16},
      {"label", planned.label, label_bytes},
      {"speedup_lo", row.speedup.lo},
      {"speedup_hi", row.speedup.hi},
      {"tile", to_text(row.requested.setting), 16},
      {"inner", std::int64_t{row.inner}},
      {"cold", std::int64_t{origin.cold ? 1 : 0}},
      {"engine", row.engine, 16},
  };
}

/// Fields behind the axes of all operators, whose columns came later. The exchange of ranks is 0
/// where one rank computes by itself; memory is NaN where it was not measured.
std::vector<Field> later_fields(const PlannedCase& planned, const RowResult& row,
                                const Code* code) {
  const Exchange exchange = row.exchange.value_or(Exchange{});
  return {
      {"host_bytes", row.total ? static_cast<double>(row.total->host) : nan},
      {"device_bytes", row.total ? static_cast<double>(row.total->device) : nan},
      {"host_s", row.host_s},
      {"sm_clock_hz", row.sm_clock_hz},
      {"busbw_gbytes_s",
       exchange.bus_bytes > 0 ? exchange.bus_bytes / row.time_s.median * 1e-9 : 0.0},
      {"sent_bytes", exchange.sent_bytes},
      {"messages", exchange.messages},
      {"communication_fraction", exchange.communication_fraction},
      {"overlap_fraction", exchange.overlap_fraction},
      {"pipeline_idle_fraction", exchange.idle_fraction},
      {"note", row.note, 96},
      {"code", std::string(code != nullptr ? code->name : ""), 16},
      {"paired_to", planned.paired.to, 96},
      {"paired_ratio", row.paired.median},
      {"paired_ratio_lo", row.paired.lo},
      {"paired_ratio_hi", row.paired.hi},
      {"claimed_s", row.claimed_s},
      {"ghz", row.effort.ghz},
      {"cycles", median_of(row.effort.cycles)},
      {"instructions", row.effort.instructions},
      {"llc_misses", row.effort.llc_misses},
      {"joules", row.effort.joules},
      {"throttled", row.effort.throttled},
      {"speedup_cycles", row.speedup_cycles.median},
      {"speedup_cycles_lo", row.speedup_cycles.lo},
      {"speedup_cycles_hi", row.speedup_cycles.hi},
  };
}

std::map<std::string, io::Cell> cells_of(const PlannedCase& planned, const RowResult& result,
                                         const RowOrigin& origin) {
  const Point& point = planned.point;
  std::map<std::string, io::Cell> cells;
  for (const auto& fields : {base_fields(planned, result, origin),
                             later_fields(planned, result, code_of(planned, result))}) {
    for (const Field& field : fields) cells[field.name] = field.cell;
  }
  for (const auto& [axis, value] : point.values) {
    std::visit([&, name = axis](const auto& held) { cells[name] = held; }, value);
  }
  for (const VariantInfo& info : planned.op->variants(point.backend, point.pass)) {
    if (info.name != result.resolved.variant) continue;
    const Setting& setting = result.resolved.setting;
    for (std::size_t i = 0; i < std::min(setting.size(), info.parameters.size()); ++i) {
      cells[info.parameters[i]] = std::int64_t{setting[i]};
    }
  }
  return cells;
}

}  // namespace

const Code* code_of(const PlannedCase& planned, const RowResult& result) {
  const Point& point = planned.point;
  const std::vector<VariantInfo> known = planned.op->variants(point.backend, point.pass);
  const std::string& variant = result.resolved.variant;
  if (std::ranges::find(known, variant, &VariantInfo::name) == known.end()) return nullptr;
  return find_code(planned.op->name(), point.pass, variant);
}

RowResult not_run(const Config& config, Status status) {
  RowResult row;
  row.requested = config;
  row.resolved = config;
  row.status = std::move(status);
  row.time_s = {.median = nan, .lo = nan, .hi = nan};
  row.speedup = row.paired = row.speedup_cycles = row.time_s;
  row.max_abs_err = nan;
  row.mean_abs_err = nan;
  return row;
}

RowResult measured_row(const Config& requested, const Config& resolved, Measured measured,
                       const Work& work) {
  RowResult row = not_run(requested, measured.status);
  row.resolved = resolved;
  row.work = work;
  row.max_abs_err = measured.max_abs_err;
  row.mean_abs_err = measured.mean_abs_err;
  row.worst_abs_err = measured.worst_abs_err;
  if (row.status.is_ok()) {
    row.time_s = median_interval(measured.samples_s);
    row.samples_s = std::move(measured.samples_s);
    row.inner = measured.inner;
    if (!measured.claimed_s.empty()) {
      row.claimed_s = median_interval(measured.claimed_s).median;
    }
    if (!measured.host_s.empty()) row.host_s = median_interval(measured.host_s).median;
    row.effort = measured.effort.summary();
    if (!measured.sm_clock_hz.empty()) {
      row.sm_clock_hz = median_interval(measured.sm_clock_hz).median;
    }
  }
  return row;
}

void add_speedups(std::span<RowResult> rows) {
  const auto baseline = std::find_if(rows.begin(), rows.end(), [](const RowResult& row) {
    return row.baseline && row.is_sound();
  });
  if (baseline == rows.end()) return;
  for (RowResult& row : rows) {
    if (!row.is_sound()) continue;
    row.speedup = paired_ratio(baseline->samples_s, row.samples_s);
    row.speedup_cycles = ratio_of_cycles(baseline->effort.cycles, row.effort.cycles);
    if (row.exchange && baseline->engine == plain_mpi) {
      row.ceiling = {.name = plain_mpi, .fraction = row.speedup.median, .bandwidth = true};
    }
  }
}

void add_paired_ratios(std::span<const PlannedCase> group, std::span<std::vector<RowResult>> rows) {
  const auto reference = std::ranges::find_if(
      group, [](const PlannedCase& planned) { return planned.paired.is_reference; });
  if (reference == group.end()) return;
  const auto& others = rows[static_cast<std::size_t>(reference - group.begin())];
  const auto counterpart = [&](const std::string& variant, const RowResult& row) {
    return std::ranges::find_if(others, [&](const RowResult& other) {
      return other.requested.variant == variant && other.requested.setting == row.requested.setting;
    });
  };
  for (std::size_t i = 0; i < group.size(); ++i) {
    for (RowResult& row : rows[i]) {
      auto other = counterpart(row.requested.variant, row);
      if (other == others.end() && row.requested.variant == group[i].of_auto) {
        other = counterpart(reference->of_auto, row);
      }
      if (other == others.end() || !other->is_sound() || !row.is_sound()) continue;
      row.paired = paired_ratio(other->samples_s, row.samples_s);
    }
  }
}

std::vector<io::Column> result_columns(const Registry& registry) {
  std::vector<io::Column> columns;
  for (const Field& field : base_fields({}, {}, {})) columns.push_back(field.column(false));
  std::vector<const Operator*> operators = registry.all();
  // behind the others, so that readers that count columns find the earlier ones at their old places
  std::stable_partition(operators.begin(), operators.end(), [](const Operator* op) {
    return dynamic_cast<const CollectiveOperator*>(op) == nullptr;
  });
  for (const Operator* op : operators) {
    for (const AxisSpec& axis : op->axes()) {
      const io::Cell cell =
          std::visit([](const auto& held) { return io::Cell(held); }, axis.fallback);
      io::Column column =
          Field{axis.name.c_str(), cell, cell.index() == 0 ? text_axis_bytes : 0U}.column(false);
      const auto known = std::find_if(columns.begin(), columns.end(), [&](const io::Column& other) {
        return other.name == column.name;
      });
      if (known == columns.end()) {
        columns.push_back(std::move(column));
      } else if (known->kind != column.kind) {
        throw InputError("operator " + op->name() + ": axis " + axis.name +
                         " has another kind than the column of that name");
      }
    }
  }
  for (const Field& field : later_fields({}, {}, nullptr)) columns.push_back(field.column(true));
  return columns;
}

io::Row make_row(const std::vector<io::Column>& columns, const PlannedCase& planned,
                 const RowResult& result, const RowOrigin& origin) {
  const auto known = cells_of(planned, result, origin);
  io::Row row;
  for (const io::Column& column : columns) {
    const auto found = known.find(column.name);
    io::Cell cell = found != known.end() ? found->second : empty_cell(column.kind);
    if (auto* text = std::get_if<std::string>(&cell)) *text = truncated(*text, column.width);
    row.cells.push_back(std::move(cell));
  }
  row.samples_s = result.samples_s;
  row.cycles = result.effort.cycles;
  row.profile = result.profile;
  return row;
}

std::string row_key(const Registry& registry, const std::vector<io::Column>& columns,
                    const std::vector<io::Cell>& cells) {
  std::vector<std::string> names{"op",      "pass", "backend", "dtype", "threads",
                                 "variant", "tile", "label",   "cold"};
  for (const Operator* op : registry.all()) {
    for (const AxisSpec& axis : op->axes()) names.push_back(axis.name);
  }
  std::string key;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (std::find(names.begin(), names.end(), columns[i].name) == names.end()) continue;
    std::visit(
        [&](const auto& value) {
          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>) key += value;
          else key += to_text(static_cast<double>(value));
        },
        cells[i]);
    key += '\n';
  }
  return key;
}

}  // namespace katt::bench
