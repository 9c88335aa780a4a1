#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "io/hdf5/result_contents.hpp"
#include "machine/machine.hpp"
#include "memory/tracker.hpp"
#include "plan/forecast.hpp"
#include "record/results.hpp"
#include "record/row_message.hpp"
#include "sweep/sweep.hpp"
#include "tests/op/toy_operator.hpp"
#include "tests/temporary_folder.hpp"

namespace katt::bench {
namespace {

class Sweep : public ::testing::Test {
 protected:
  Sweep() {
    memory::install();
    auto owned = std::make_unique<toy::ToyOperator>();
    op = owned.get();
    registry.add(std::move(owned));
    options = {.output = folder / "out.h5", .command = "katt sweep toy", .measure_ceilings = false};
    request.entries = {{.op = op, .label = "", .axes = {}, .where = ""}};
    request.settings.rounds = 3;
  }

  void axis(const std::string& key, const std::string& text) {
    const std::vector<AxisText> typed{{key, text, "--" + key}};
    override_axes(request.entries[0], typed);
  }

  SweepSummary sweep() {
    Progress silent(nullptr);
    const auto plan = plan_cases(request.entries, request.settings.seed);
    return run_sweep(registry, request, plan, options, silent, stop);
  }

  using Cells = std::map<std::string, io::Cell>;
  std::vector<Cells> rows() {
    const auto columns = result_columns(registry);
    const auto file = io::ResultFile::resume(options.output, columns);
    std::vector<Cells> list;
    for (const auto& cells : file.rows()) {
      Cells named;
      for (std::size_t i = 0; i < columns.size(); ++i) named[columns[i].name] = cells[i];
      list.push_back(std::move(named));
    }
    return list;
  }
  static std::string text(const Cells& row, const char* column) {
    return std::get<std::string>(row.at(column));
  }
  static std::int64_t integer(const Cells& row, const char* column) {
    return std::get<std::int64_t>(row.at(column));
  }
  static double real(const Cells& row, const char* column) {
    return std::get<double>(row.at(column));
  }

  Registry registry;
  toy::ToyOperator* op = nullptr;
  const test::TemporaryFolder folder;
  SweepRequest request;
  SweepOptions options;
  StopFlag stop{false};
};

TEST_F(Sweep, EveryConfigurationBecomesARow) {
  axis("size", "8,16");
  axis("tile", "8x8,16x8,4x4");
  const SweepSummary summary = sweep();
  // Per point: naive and tiled 8x8 run, 16x8 needs size 16, 4x4 does not exist, wrong and throws
  // fail.
  EXPECT_EQ(summary.ok, 5);
  EXPECT_EQ(summary.skipped, 3);
  EXPECT_EQ(summary.failed, 4);
  const auto table = rows();
  ASSERT_EQ(table.size(), 12U);
  EXPECT_EQ(text(table[0], "variant"), "naive");
  EXPECT_EQ(real(table[0], "speedup"), 1);
  EXPECT_EQ(text(table[1], "tile"), "8x8");
  EXPECT_EQ(integer(table[1], "tile_q"), 8);
  EXPECT_EQ(integer(table[1], "samples"), 3);
  EXPECT_GT(real(table[1], "time_s"), 0);
  EXPECT_GT(real(table[1], "speedup"), 0);
  EXPECT_EQ(text(table[0], "engine"), "");
  EXPECT_EQ(text(table[1], "engine"), "toy");
  EXPECT_EQ(text(table[2], "engine"), "") << "it did not run";
  EXPECT_EQ(text(table[2], "reason"), "size below the tile");
  EXPECT_EQ(text(table[3], "reason"), "tile 4x4 is not among those of tiled: 8x8, 16x8");
  EXPECT_EQ(text(table[4], "status"), "failed");
  EXPECT_EQ(text(table[4], "reason"), "out(0, 0) is 1, expected 2");
  EXPECT_TRUE(std::isnan(real(table[4], "time_s")));
  EXPECT_EQ(text(table[5], "reason"), "it broke");
  std::set<std::string> points;
  for (const auto& row : table) points.insert(text(row, "point"));
  EXPECT_EQ(points.size(), table.size()) << "points are unique in a run";
}

TEST_F(Sweep, RecordsTheTileThatRan) {
  axis("variant", "tiled");
  (void)sweep();
  const auto table = rows();
  ASSERT_EQ(table.size(), 1U);
  EXPECT_EQ(text(table[0], "tile"), "auto");
  EXPECT_EQ(integer(table[0], "tile_q"), 8);
  EXPECT_TRUE(std::isnan(real(table[0], "speedup"))) << "no baseline at this point";
}

TEST_F(Sweep, ReportsMeasuredMemory) {
  axis("variant", "naive");
  axis("size", "1000000");
  (void)sweep();
  const auto table = rows();
  EXPECT_EQ(real(table[0], "workspace_bytes"), 0);
  EXPECT_EQ(real(table[0], "total_bytes"), 8e6) << "input and output, 4 B an element";
  EXPECT_EQ(real(table[0], "host_bytes"), 8e6);
  EXPECT_EQ(real(table[0], "device_bytes"), 0);
}

TEST_F(Sweep, MemoryThatWasNotMeasuredIsNaN) {
  axis("size", "8");
  axis("tile", "16x8");
  axis("variant", "naive,tiled,throws");
  (void)sweep();
  const auto table = rows();
  ASSERT_EQ(table.size(), 3U);
  EXPECT_EQ(text(table[1], "status"), "skipped");
  EXPECT_EQ(text(table[2], "status"), "failed");
  for (const char* column : {"workspace_bytes", "total_bytes", "host_bytes", "device_bytes"}) {
    EXPECT_TRUE(std::isfinite(real(table[0], column))) << column;
    EXPECT_TRUE(std::isnan(real(table[1], column))) << column;
    EXPECT_TRUE(std::isnan(real(table[2], column))) << column;
  }
}

TEST_F(Sweep, AFileOfAnEarlierVersionIsResumed) {
  axis("size", "8");
  axis("variant", "naive");
  // as it was written before: counts of bytes are integers, and not told apart by their memory
  std::vector<io::Column> before;
  for (io::Column column : result_columns(registry)) {
    if (column.name == "host_bytes" || column.name == "device_bytes" || column.name == "host_s" ||
        column.name == "sm_clock_hz") {
      continue;
    }
    if (column.name.ends_with("_bytes")) column.kind = io::ColumnKind::integer;
    before.push_back(column);
  }
  const auto plan = plan_cases(request.entries, request.settings.seed);
  io::ResultFile file = io::ResultFile::create(options.output, before);
  io::Row row = make_row(before, plan[0], not_run(plan[0].configs[0], Status::skipped("earlier")),
                         {.run = file.run(), .point = "000001"});
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i].name.ends_with("_bytes")) row.cells[i] = std::int64_t{12345};
  }
  file.commit_rows({row});

  options.resume = true;
  axis("size", "8,16");
  const SweepSummary summary = sweep();
  EXPECT_EQ(summary.present, 1);
  EXPECT_EQ(summary.ok, 1);
  const auto table = rows();
  ASSERT_EQ(table.size(), 2U);
  EXPECT_EQ(text(table[0], "reason"), "earlier");
  EXPECT_EQ(real(table[0], "total_bytes"), 12345);
  EXPECT_TRUE(std::isnan(real(table[0], "host_bytes")));
  EXPECT_EQ(real(table[1], "host_bytes"), real(table[1], "total_bytes"));
}

TEST_F(Sweep, ResumeRunsOnlyWhatIsMissing) {
  axis("size", "8");
  axis("variant", "naive,tiled");
  (void)sweep();
  options.resume = true;
  axis("size", "8,16");
  SweepSummary summary = sweep();
  EXPECT_EQ(summary.present, 2);
  EXPECT_EQ(summary.ok, 2);
  summary = sweep();
  EXPECT_EQ(summary.present, 4);
  EXPECT_TRUE(summary.run.empty());
  const auto table = rows();
  ASSERT_EQ(table.size(), 4U);
  EXPECT_EQ(text(table[0], "run"), "run-0001");
  EXPECT_EQ(text(table[3], "run"), "run-0002");
}

TEST_F(Sweep, PairedPointsAreComparedRoundByRound) {
  axis("size", "16,32");
  axis("gain", "1,2");
  axis("variant", "naive,tiled,wrong");
  axis("paired", "size=32");
  std::vector<std::int64_t> made;
  op->on_case = [&](const Point& point) { made.push_back(point.integer("size")); };
  EXPECT_EQ(sweep().ok, 8);
  EXPECT_EQ(made, (std::vector<std::int64_t>{16, 32, 16, 32}));
  const auto columns = result_columns(registry);
  const io::ResultContents file = io::read_result(options.output, columns);
  const auto table = rows();
  ASSERT_EQ(table.size(), 12U);
  for (std::size_t i = 0; i < table.size(); ++i) {
    EXPECT_EQ(text(table[i], "paired_to"), "size=32");
    if (text(table[i], "status") != "ok") {
      EXPECT_TRUE(std::isnan(real(table[i], "paired_ratio")));
      continue;
    }
    const std::size_t reference = i % 6 < 3 ? i + 3 : i;
    const Estimate expected = paired_ratio(file.rows[reference].samples_s, file.rows[i].samples_s);
    EXPECT_EQ(real(table[i], "paired_ratio"), expected.median) << i;
    EXPECT_EQ(real(table[i], "paired_ratio_lo"), expected.lo);
    EXPECT_EQ(real(table[i], "paired_ratio_hi"), expected.hi);
    if (reference == i) {
      EXPECT_EQ(expected.median, 1);
    }
  }

  // A group that lacks a row is measured again, as a whole.
  options.resume = true;
  EXPECT_EQ(sweep().present, 12);
  axis("gain", "1,2,3");
  axis("variant", "naive,tiled");
  EXPECT_EQ(sweep().present, 8);
  EXPECT_EQ(rows().size(), 16U);
  axis("size", "16,32,64");
  EXPECT_EQ(sweep().present, 0);
  EXPECT_EQ(rows().size(), 34U);
}

TEST_F(Sweep, AutoIsPairedWithAuto) {
  axis("size", "8,16");  // auto: naive, tiled
  axis("variant", "auto");
  axis("paired", "size");
  EXPECT_EQ(sweep().ok, 2);
  EXPECT_EQ(text(rows()[1], "variant"), "tiled");
  EXPECT_GT(real(rows()[1], "paired_ratio"), 0);
}

TEST_F(Sweep, WhatDoesNotFitTogetherIsMeasuredAlone) {
  axis("size", "8,10");
  axis("variant", "naive");
  axis("paired", "size");
  op->workspace_per_n = available_memory(Backend::openmp) / 15;
  EXPECT_EQ(sweep().ok, 2);
  for (const Cells& row : rows()) {
    EXPECT_TRUE(text(row, "note").starts_with("not paired: the group needs ")) << text(row, "note");
    EXPECT_TRUE(std::isnan(real(row, "paired_ratio")));
  }
}

TEST_F(Sweep, AnUnpreparedPointFailsAloneInItsGroup) {
  axis("size", "8,10,12");
  axis("variant", "naive,tiled");
  axis("paired", "size");
  op->on_case = [](const Point& point) {
    if (point.integer("size") == 10) throw std::bad_alloc();
  };
  const SweepSummary summary = sweep();
  EXPECT_EQ(summary.ok, 4);
  EXPECT_EQ(summary.failed, 2);
  EXPECT_EQ(text(rows()[2], "reason"), "out of memory");
  EXPECT_TRUE(std::isnan(real(rows()[2], "paired_ratio")));
  EXPECT_GT(real(rows()[4], "paired_ratio"), 0);
}

TEST_F(Sweep, EveryAxisAndTheColdFlagTellRowsApart) {
  options.resume = true;
  axis("variant", "naive");
  (void)sweep();
  axis("gain", "2.5");
  EXPECT_EQ(sweep().present, 0);
  axis("order", "columns");
  EXPECT_EQ(sweep().present, 0);
  request.settings.cold = true;
  EXPECT_EQ(sweep().present, 0);
  request.entries[0].label = "other";
  EXPECT_EQ(sweep().present, 0);
  EXPECT_EQ(sweep().present, 1);
  EXPECT_EQ(rows().size(), 5U);
}

TEST_F(Sweep, AStopKeepsFinishedCases) {
  axis("size", "2:20:+2");
  axis("variant", "naive,tiled");
  int cases = 0;
  op->on_case = [&](const Point&) { stop = ++cases == 4; };
  const SweepSummary summary = sweep();
  EXPECT_TRUE(summary.interrupted);
  EXPECT_EQ(rows().size(), 6U);
  stop = false;
  op->on_case = nullptr;
  options.resume = true;
  EXPECT_FALSE(sweep().interrupted);
  EXPECT_EQ(rows().size(), 20U);
}

TEST_F(Sweep, AFailingCaseFailsItsRowsAndTheSweepGoesOn) {
  axis("size", "2,4");
  axis("variant", "naive,tiled");
  op->on_case = [](const Point& point) {
    if (point.integer("size") == 2) throw std::bad_alloc();
  };
  const SweepSummary summary = sweep();
  EXPECT_EQ(summary.failed, 2);
  EXPECT_EQ(summary.ok, 2);
  EXPECT_EQ(text(rows()[0], "reason"), "out of memory");
}

TEST_F(Sweep, SkipsTheVariantThatDoesNotFitInMemory) {
  axis("variant", "naive,tiled");
  op->workspace_per_n = std::size_t{1} << 50U;
  const auto plan = plan_cases(request.entries, 1);
  EXPECT_NO_THROW(check_memory(plan));
  const SweepSummary summary = sweep();
  EXPECT_EQ(summary.ok, 1);
  EXPECT_EQ(summary.skipped, 1);
  const std::string reason = text(rows()[0], "reason");
  EXPECT_TRUE(reason.starts_with("needs 18.0 PB, ")) << reason;
  EXPECT_TRUE(reason.ends_with(" available")) << reason;
}

TEST_F(Sweep, RefusesWhatCannotFitAtAll) {
  axis("variant", "naive");
  op->workspace_per_n = std::size_t{1} << 50U;
  EXPECT_THROW(check_memory(plan_cases(request.entries, 1)), InputError);
  op->workspace_per_n = 0;
  axis("size", "2,1000000000000");
  EXPECT_THROW(check_memory(plan_cases(request.entries, 1)), InputError);
}

TEST_F(Sweep, RefusesAnExistingFile) {
  axis("variant", "naive");
  (void)sweep();
  EXPECT_THROW(check_output(options), InputError);
  options.overwrite = true;
  EXPECT_NO_THROW(check_output(options));
  (void)sweep();
  EXPECT_EQ(rows().size(), 1U);
  options.output.clear();
  EXPECT_THROW(check_output(options), InputError);
}

/// A row none of whose cells, samples and profile is that of an empty one.
RowResult unusual_row() {
  RowResult row = not_run({.variant = "asked", .setting = {3}}, Status::failed("of a reason"));
  row.resolved = {.variant = "plain", .setting = {7}};
  row.default_setting = {5};
  row.samples_s = {0.25, 0.5, 1.0};
  row.inner = 11;
  row.host_s = 0.125;
  row.sm_clock_hz = 1e9;
  row.claimed_s = 0.375;
  row.time_s = {.median = 0.5, .lo = 0.25, .hi = 1};
  row.speedup = {.median = 3, .lo = 2, .hi = 4};
  row.baseline = true;
  row.engine = "amx";
  row.work = {.flops = 21, .bytes = 22, .compute_ceiling = "fma_f32", .traffic = "copy"};
  row.ceiling = {.name = "copy_dram", .fraction = 0.75, .bandwidth = true};
  row.total = memory::Bytes{.host = 1000, .device = 500};
  row.tensor_bytes = 300;
  row.max_abs_err = 0.0625;
  row.mean_abs_err = 0.03125;
  row.profile = {.runs = 2, .time_s = 0.5, .rows = {{"katt::toy", 1, 2, 3, 4, 5, "fma_f32", 0.5}}};
  row.exchange = Exchange{31, 32, 33, 0.25, 0.5, 0.75};
  row.note = "a remark";
  row.suspicion = "too fast";
  row.left_race = true;
  row.paired = {.median = 41, .lo = 42, .hi = 43};
  row.effort = {.cycles = {51, 52, 53},
                .ghz = 3.5,
                .instructions = 54,
                .llc_misses = 55,
                .joules = 0.25,
                .throttled = 1};
  row.speedup_cycles = {.median = 61, .lo = 62, .hi = 63};
  return row;
}

TEST_F(Sweep, ARowArrivesWholeInAnotherProcess) {
  const RowResult sent = unusual_row();
  io::impl::MessageWriter out;
  add(out, std::vector{sent, not_run({.variant = "other", .setting = {}}, Status::skipped("so"))});
  const io::Attributes attributes{{"text", "a"}, {"count", std::int64_t{3}}, {"load", 0.5}};
  add(out, attributes);
  add(out, std::vector<io::CeilingRow>{{"fma_f32", 1e11, "FLOP/s", 2, 3}});
  io::impl::MessageReader in(out.bytes());
  const auto arrived = take<std::vector<RowResult>>(in);
  ASSERT_EQ(arrived.size(), 2U);
  EXPECT_EQ(take<io::Attributes>(in), attributes);
  const auto ceilings = take<std::vector<io::CeilingRow>>(in);
  ASSERT_EQ(ceilings.size(), 1U);
  EXPECT_EQ(ceilings[0].name + ceilings[0].unit, "fma_f32FLOP/s");
  EXPECT_EQ(ceilings[0].bytes, 3);

  // Every column that tells of the result, also one that is added later, is unusual here and arrives.
  const auto columns = result_columns(registry);
  const PlannedCase planned = plan_cases(request.entries, 1).front();
  std::set<std::string> of_plan{"op",     "pass",    "backend",   "dtype", "threads",
                                "label",  "cold",    "commit",    "run",   "point",
                                "tile_q", "tile_kv", "paired_to", "code"};
  for (const AxisSpec& axis : op->axes()) of_plan.insert(axis.name);
  const std::set<std::string> of_attention{"batch",  "heads",    "kv_heads", "seq_q",
                                           "seq_kv", "head_dim", "causal"};
  of_plan.insert(of_attention.begin(), of_attention.end());
  const io::Row before = make_row(columns, planned, sent, {});
  const io::Row after = make_row(columns, planned, arrived[0], {});
  const io::Row empty = make_row(columns, planned, RowResult{}, {});
  for (std::size_t i = 0; i < columns.size(); ++i) {
    EXPECT_EQ(before.cells[i], after.cells[i]) << columns[i].name;
    if (of_plan.contains(columns[i].name)) continue;
    EXPECT_NE(before.cells[i], empty.cells[i]) << columns[i].name << ": unusual_row() lacks it";
  }
  EXPECT_EQ(before.samples_s, after.samples_s);
  EXPECT_EQ(after.cycles, sent.effort.cycles);
  ASSERT_EQ(after.profile.rows.size(), 1U);
  EXPECT_EQ(after.profile.runs, 2);
  EXPECT_EQ(after.profile.rows[0].ceiling_fraction, 0.5);
  // Members without a column.
  EXPECT_EQ(arrived[0].default_setting, sent.default_setting);
  EXPECT_TRUE(arrived[0].baseline && arrived[0].ceiling.bandwidth);
  EXPECT_EQ(arrived[0].work.compute_ceiling + arrived[0].work.traffic, "fma_f32copy");
  EXPECT_EQ(arrived[1].status.reason(), "so");
  EXPECT_EQ(arrived[1].status.code(), Status::Code::skipped);
  EXPECT_FALSE(arrived[1].total || arrived[1].exchange);
}

}  // namespace
}  // namespace katt::bench
