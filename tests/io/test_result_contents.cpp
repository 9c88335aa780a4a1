#include <gtest/gtest.h>

#include <filesystem>

#include "core/error.hpp"
#include "io/hdf5/result_contents.hpp"
#include "result_columns.hpp"
#include "tests/message_of.hpp"
#include "tests/temporary_folder.hpp"

namespace katt {
namespace {

using io::ResultContents;
using io::ResultFile;
using test::message_of;
using test::some_columns;
using test::some_row;
using test::TemporaryFolder;

const std::vector<io::CeilingRow> peak{{"fma_f32", 2.5e11, "FLOP/s", 2, 0}};

/// A file of two runs, one of them resumed, with samples and a profile.
std::filesystem::path some_file(const TemporaryFolder& folder) {
  const auto path = folder / "r.h5";
  ResultFile first = ResultFile::create(path, some_columns());
  first.commit_run({{"title", "x"}, {"cores", std::int64_t{2}}, {"load_average", 0.5}});
  first.commit_ceilings(peak);
  io::Row row = some_row("b", first.run(), 3);
  row.profile = {.runs = 2, .time_s = 0.5, .rows = {{"katt::rope", 0, 1, 0.25}}};
  row.cycles = {3e6, NAN, 5e6};
  first.commit_rows({row, some_row("a", first.run(), 0)});
  ResultFile second = ResultFile::resume(path, some_columns());
  second.commit_run({{"title", "y"}});
  second.commit_rows({some_row("a", second.run(), 2)});
  return path;
}

TEST(ResultContents, WhatIsReadIsWhatWasWritten) {
  const TemporaryFolder folder;
  const auto path = some_file(folder);
  for (int round = 0; round < 2; ++round) {  // and again, of what write_result() made of it
    const ResultContents read = io::read_result(path, some_columns());
    ASSERT_EQ(read.runs.size(), 2U);
    EXPECT_EQ(read.runs[0].name, "run-0001");
    EXPECT_EQ(read.runs[0].text("title"), "x");
    EXPECT_EQ(read.runs[0].text("cores"), "");
    EXPECT_EQ(read.runs[0].integer("cores", 0), 2);
    EXPECT_EQ(read.runs[0].integer("title", 7), 7);
    EXPECT_EQ(read.runs[1].text("title"), "y");
    ASSERT_EQ(read.runs[0].ceilings.size(), 1U);
    EXPECT_EQ(read.runs[0].ceilings[0].name, "fma_f32");
    EXPECT_EQ(read.runs[0].ceilings[0].value, 2.5e11);
    EXPECT_TRUE(read.runs[1].ceilings.empty());
    ASSERT_EQ(read.rows.size(), 3U);
    EXPECT_EQ(std::get<std::string>(read.rows[0].cells[0]), "b");
    EXPECT_EQ(read.rows[0].samples_s, some_row("b", "", 3).samples_s);
    ASSERT_EQ(read.rows[0].cycles.size(), 3U);
    EXPECT_EQ(read.rows[0].cycles[2], 5e6);
    EXPECT_TRUE(std::isnan(read.rows[0].cycles[1]));
    EXPECT_TRUE(read.rows[1].cycles.empty());
    EXPECT_EQ(read.rows[0].profile.runs, 2);
    ASSERT_EQ(read.rows[0].profile.rows.size(), 1U);
    EXPECT_EQ(read.rows[0].profile.rows[0].name, "katt::rope");
    EXPECT_TRUE(read.rows[1].samples_s.empty());
    EXPECT_EQ(read.rows[2].samples_s.size(), 2U);
    io::write_result(path, some_columns(), read);
    EXPECT_EQ(io::read_runs(path).size(), 2U);
  }
  // A merged file is a result file like any other.
  ResultFile again = ResultFile::resume(path, some_columns());
  EXPECT_EQ(again.run(), "run-0003");
  again.commit_rows({some_row("a", again.run(), 1)});
}

TEST(ResultContents, CodeIsKeptByItsName) {
  const TemporaryFolder folder;
  const auto path = folder / "r.h5";
  auto columns = some_columns();
  columns.push_back({"code", io::ColumnKind::text, 16, true});
  const auto row = [](const std::string& point, const std::string& run, const char* code) {
    io::Row made = some_row(point, run, 1);
    made.cells.emplace_back(std::string(code));
    return made;
  };
  {
    ResultFile old = ResultFile::create(path, some_columns());  // an earlier version's
    old.commit_run({});
    old.commit_rows({some_row("old", old.run(), 1)});
    ResultFile file = ResultFile::resume(path, columns);
    file.commit_run({});
    file.commit_rows({row("a", file.run(), "0a"), row("b", file.run(), "")},
                     {{"0a", {{"src/a.hpp", "11"}, {"src/b.hpp", "22"}}}});
    // Code that is there stays.
    file.commit_rows({row("c", file.run(), "0a"), row("d", file.run(), "0b"),
                      row("e", file.run(), "0c"), row("f", file.run(), "../runs")},
                     {{"0a", {}}, {"0b", {}}});
  }
  for (int round = 0; round < 2; ++round) {
    const ResultContents read = io::read_result(path, columns);
    ASSERT_EQ(read.rows.size(), 7U);
    EXPECT_EQ(std::get<std::string>(read.rows[0].cells.back()), "");
    EXPECT_EQ(std::get<std::string>(read.rows[1].cells.back()), "0a");
    ASSERT_EQ(read.code.size(), 2U) << "of 0c there is nothing, and ../runs is no name";
    const std::vector<io::CodeFile>& files = read.code.at("0a");
    ASSERT_EQ(files.size(), 2U);
    EXPECT_EQ(files[1].file, "src/b.hpp");
    EXPECT_EQ(files[1].tokens, "22");
    EXPECT_TRUE(read.code.at("0b").empty());
    io::write_result(path, columns, read);
  }
}

TEST(ResultContents, AFileOfAnotherKindIsRefused) {
  const TemporaryFolder folder;
  const auto path = some_file(folder);
  auto columns = some_columns();
  columns.pop_back();
  EXPECT_TRUE(test::contains(message_of<InputError>([&] { (void)io::read_result(path, columns); }),
                             "points"));
  EXPECT_THROW((void)io::read_runs(folder / "none.h5"), InputError);
}

TEST(ResultContents, SeveralRunsOfOneProgramAndTheirOrder) {
  const TemporaryFolder folder;
  const auto path = folder / "r.h5";
  ResultFile file = ResultFile::create(path, some_columns());
  const std::string other = file.add_run();
  EXPECT_EQ(other, "run-0002");
  file.commit_run({{"title", "here"}});
  file.commit_run({{"title", "there"}}, other);
  file.commit_ceilings(peak, other);
  file.commit_rows({some_row("c", other, 1)});
  file.commit_rows({some_row("a", file.run(), 2), some_row("c", file.run(), 3)});
  file.commit_order({1, 0, 2});
  EXPECT_THROW(file.commit_run({}, "run-0003"), std::invalid_argument);
  EXPECT_THROW(file.commit_rows({some_row("c", other, 1)}), std::invalid_argument);
  EXPECT_THROW(file.commit_order({0, 1}), std::invalid_argument);
  EXPECT_THROW(file.commit_order({0, 1, 1}), std::invalid_argument);
  const ResultContents read = io::read_result(path, some_columns());
  EXPECT_EQ(read.runs[1].text("title"), "there");
  EXPECT_EQ(read.runs[1].ceilings.size(), 1U);
  ASSERT_EQ(read.rows.size(), 3U);
  EXPECT_EQ(read.rows[0].samples_s.size(), 2U);
  EXPECT_EQ(std::get<std::string>(read.rows[1].cells[1]), other);
  EXPECT_EQ(read.rows[2].samples_s.size(), 3U);
  EXPECT_EQ(file.rows().size(), 3U);
  EXPECT_EQ(file.rows()[0][0], read.rows[0].cells[0]);
  EXPECT_EQ(file.rows()[0][1], read.rows[0].cells[1]);
}

}  // namespace
}  // namespace katt
