#include "record/results.hpp"

#include <algorithm>
#include <limits>
#include <map>

#include "core/text.hpp"
#include "op/collective.hpp"

namespace katt::bench {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

using io::ColumnKind;

io::Column text_column(std::string name, std::size_t width) {
  return {std::move(name), ColumnKind::text, width};
}
io::Column integer_column(std::string name) { return {std::move(name), ColumnKind::integer, 0}; }
io::Column real_column(std::string name) { return {std::move(name), ColumnKind::real, 0}; }

/// Columns of interfaces.md in its order, then Katt's own.
std::vector<io::Column> base_columns() {
  return {
      text_column("op", 32),      text_column("pass", 8),         text_column("variant", 32),
      text_column("backend", 8),  text_column("dtype", 8),        integer_column("batch"),
      integer_column("heads"),    integer_column("kv_heads"),     integer_column("seq_q"),
      integer_column("seq_kv"),   integer_column("head_dim"),     integer_column("causal"),
      integer_column("tile_q"),   integer_column("tile_kv"),      integer_column("threads"),
      text_column("status", 8),   text_column("reason", 256),     integer_column("samples"),
      real_column("time_s"),      real_column("time_lo_s"),       real_column("time_hi_s"),
      real_column("flops"),       real_column("bytes"),           real_column("tflops"),
      real_column("gbytes_s"),    text_column("ceiling", 24),     real_column("ceiling_fraction"),
      real_column("speedup"),     real_column("workspace_bytes"), real_column("total_bytes"),
      real_column("max_abs_err"), real_column("mean_abs_err"),    text_column("commit", 48),
      text_column("run", 16),     text_column("point", 16),       text_column("label", 64),
      real_column("speedup_lo"),  real_column("speedup_hi"),      text_column("tile", 16),
      integer_column("inner"),    integer_column("cold"),         text_column("engine", 16),
  };
}

io::Cell empty_cell(ColumnKind kind) {
  switch (kind) {
    case ColumnKind::text: return std::string();
    case ColumnKind::integer: return std::int64_t{0};
    case ColumnKind::real: break;
  }
  return 0.0;
}

std::int64_t count(std::size_t n) { return static_cast<std::int64_t>(n); }

/// Columns of the ranks' exchange: 0 when one rank computes alone.
void add_exchange(const RowResult& result, std::map<std::string, io::Cell>& cells) {
  const Exchange exchange = result.exchange.value_or(Exchange{});
  cells["busbw_gbytes_s"] =
      exchange.bus_bytes > 0 ? exchange.bus_bytes / result.time_s.median * 1e-9 : 0.0;
  cells["sent_bytes"] = exchange.sent_bytes;
  cells["messages"] = exchange.messages;
  cells["communication_fraction"] = exchange.communication_fraction;
  cells["overlap_fraction"] = exchange.overlap_fraction;
  cells["pipeline_idle_fraction"] = exchange.idle_fraction;
  cells["note"] = result.note;
}

/// Memory in bytes; NaN when it was not measured.
void add_memory(const RowResult& result, std::map<std::string, io::Cell>& cells) {
  for (const char* name : {"workspace_bytes", "total_bytes", "host_bytes", "device_bytes"}) {
    cells[name] = nan;
  }
  if (!result.total) return;
  const std::size_t total = result.total->total();
  cells["workspace_bytes"] =
      static_cast<double>(total > result.tensor_bytes ? total - result.tensor_bytes : 0);
  cells["total_bytes"] = static_cast<double>(total);
  cells["host_bytes"] = static_cast<double>(result.total->host);
  cells["device_bytes"] = static_cast<double>(result.total->device);
}

std::map<std::string, io::Cell> cells_of(const PlannedCase& planned, const RowResult& result,
                                         const RowOrigin& origin) {
  const Point& point = planned.point;
  std::map<std::string, io::Cell> cells;
  for (const auto& [axis, value] : point.values) {
    std::visit([&, name = axis](const auto& held) { cells[name] = held; }, value);
  }
  cells["op"] = planned.op->name();
  cells["pass"] = point.pass;
  cells["variant"] = result.requested.variant;
  cells["backend"] = std::string(name_of(point.backend));
  cells["dtype"] = std::string(name_of(point.dtype));
  cells["threads"] = std::int64_t{point.threads};
  for (const VariantInfo& info : planned.op->variants(point.backend, point.pass)) {
    if (info.name != result.resolved.variant) continue;
    const Setting& setting = result.resolved.setting;
    for (std::size_t i = 0; i < std::min(setting.size(), info.parameters.size()); ++i) {
      cells[info.parameters[i]] = std::int64_t{setting[i]};
    }
  }
  cells["tile"] = to_text(result.requested.setting);
  cells["label"] = planned.label;
  cells["engine"] = result.engine;
  cells["status"] = std::string(result.status.name());
  cells["reason"] = result.status.reason();
  cells["samples"] = count(result.samples_s.size());
  cells["inner"] = std::int64_t{result.inner};
  cells["cold"] = std::int64_t{origin.cold ? 1 : 0};
  cells["time_s"] = result.time_s.median;
  cells["time_lo_s"] = result.time_s.lo;
  cells["host_s"] = result.host_s;
  cells["time_hi_s"] = result.time_s.hi;
  cells["flops"] = result.work.flops;
  cells["bytes"] = result.work.bytes;
  cells["tflops"] = result.work.flops / result.time_s.median * 1e-12;
  cells["gbytes_s"] = result.work.bytes / result.time_s.median * 1e-9;
  cells["ceiling"] = result.ceiling.name;
  cells["ceiling_fraction"] = result.ceiling.fraction;
  cells["speedup"] = result.speedup.median;
  cells["speedup_lo"] = result.speedup.lo;
  cells["speedup_hi"] = result.speedup.hi;
  add_memory(result, cells);
  add_exchange(result, cells);
  cells["max_abs_err"] = result.max_abs_err;
  cells["mean_abs_err"] = result.mean_abs_err;
  cells["commit"] = origin.commit;
  cells["run"] = origin.run;
  cells["point"] = origin.point;
  return cells;
}

}  // namespace

RowResult not_run(const Config& config, Status status) {
  RowResult row;
  row.requested = config;
  row.resolved = config;
  row.status = std::move(status);
  row.time_s = {.median = nan, .lo = nan, .hi = nan};
  row.speedup = row.time_s;
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
  if (row.status.is_ok()) {
    row.time_s = median_interval(measured.samples_s);
    row.samples_s = std::move(measured.samples_s);
    row.inner = measured.inner;
    if (!measured.host_s.empty()) row.host_s = median_interval(measured.host_s).median;
  }
  return row;
}

void add_speedups(std::span<RowResult> rows) {
  const auto baseline = std::find_if(rows.begin(), rows.end(), [](const RowResult& row) {
    return row.baseline && row.status.is_ok();
  });
  if (baseline == rows.end()) return;
  for (RowResult& row : rows) {
    if (!row.status.is_ok()) continue;
    row.speedup = paired_ratio(baseline->samples_s, row.samples_s);
    if (row.exchange && baseline->engine == plain_mpi) {
      row.ceiling = {.name = plain_mpi, .fraction = row.speedup.median, .bandwidth = true};
    }
  }
}

std::vector<io::Column> result_columns(const Registry& registry) {
  std::vector<io::Column> columns = base_columns();
  std::vector<const Operator*> operators = registry.all();
  // behind the others, so that readers that count columns find the earlier ones at their old places
  std::stable_partition(operators.begin(), operators.end(), [](const Operator* op) {
    return dynamic_cast<const CollectiveOperator*>(op) == nullptr;
  });
  for (const Operator* op : operators) {
    for (const AxisSpec& axis : op->axes()) {
      io::Column column =
          std::holds_alternative<std::string>(axis.fallback) ? text_column(axis.name, 16)
          : std::holds_alternative<double>(axis.fallback)    ? real_column(axis.name)
                                                             : integer_column(axis.name);
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
  // and these behind the axes
  for (const char* name :
       {"host_bytes", "device_bytes", "host_s", "busbw_gbytes_s", "sent_bytes", "messages",
        "communication_fraction", "overlap_fraction", "pipeline_idle_fraction"}) {
    columns.push_back({name, ColumnKind::real, 0, true});
  }
  columns.push_back({"note", ColumnKind::text, 96, true});
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
