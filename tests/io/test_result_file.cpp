#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>

#include "core/error.hpp"
#include "hdf5_builder.hpp"
#include "io/hdf5/result_file.hpp"
#include "result_columns.hpp"

namespace katt {
namespace {

using io::ColumnKind;
using io::ResultFile;
using io::impl::Handle;
using test::message_of;
using test::some_columns;
using test::some_row;
using test::TemporaryFolder;

std::string point_name(int i) { return "p" + std::to_string(i); }

std::vector<double> read_samples(const std::filesystem::path& path, const std::string& name) {
  const Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT));
  const Handle set(H5Dopen2(file.get(), name.c_str(), H5P_DEFAULT));
  const Handle space(H5Dget_space(set.get()));
  std::vector<double> values(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.get())));
  H5Dread(set.get(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  return values;
}

TEST(ResultFile, NothingIsOnDiskBeforeTheFirstCommit) {
  const TemporaryFolder folder;
  const auto path = folder / "new/r.h5";
  ResultFile file = ResultFile::create(path, some_columns());
  EXPECT_EQ(file.run(), "run-0001");
  EXPECT_TRUE(file.rows().empty());
  EXPECT_TRUE(std::filesystem::is_empty(path.parent_path()));
  file.commit_rows({});
  EXPECT_FALSE(std::filesystem::exists(path));
  file.commit_run({{"title", "x"}});
  EXPECT_TRUE(std::filesystem::exists(path));
  EXPECT_FALSE(test::holds_a_part(path.parent_path()));
}

TEST(ResultFile, AProfileStandsBesideTheSamples) {
  const TemporaryFolder folder;
  const auto path = folder / "r.h5";
  ResultFile file = ResultFile::create(path, some_columns());
  io::Row row = some_row("a", file.run(), 2);
  row.profile = {.runs = 3,
                 .time_s = 0.5,
                 .rows = {{"katt::rope", 0, 1, 0.25}, {"katt::rope::forward", 1, 2.5, 0.125}}};
  file.commit_rows({row, some_row("b", file.run(), 2)});
  const Handle raw(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT));
  EXPECT_EQ(H5Lexists(raw.get(), "/profile/run-0001/b", H5P_DEFAULT), 0);
  const Handle table(H5Dopen2(raw.get(), "/profile/run-0001/a", H5P_DEFAULT));
  const auto column = [&](const char* name, hid_t kind, auto first) {
    const Handle type(H5Tcreate(H5T_COMPOUND, sizeof first));
    H5Tinsert(type.get(), name, 0, kind);
    std::vector<decltype(first)> values(2);
    EXPECT_GE(H5Dread(table.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
    return values;
  };
  EXPECT_EQ(column("depth", H5T_NATIVE_INT64, std::int64_t{}), (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(column("calls", H5T_NATIVE_DOUBLE, 0.0), (std::vector<double>{1, 2.5}));
  EXPECT_EQ(column("time_s", H5T_NATIVE_DOUBLE, 0.0), (std::vector<double>{0.25, 0.125}));
  EXPECT_GT(H5Aexists(table.get(), "runs"), 0);
  EXPECT_GT(H5Aexists(table.get(), "time_s"), 0);
}

TEST(ResultFile, ResumeGivesBackWhatWasCommitted) {
  const TemporaryFolder folder;
  const auto path = folder / "r.h5";
  std::vector<std::vector<io::Cell>> written;
  {
    ResultFile file = ResultFile::create(path, some_columns());
    file.commit_run({{"status", "running"}, {"cores", std::int64_t{2}}, {"load_average", 0.5}});
    file.commit_ceilings(
        {{"fma_f32", 470e9, "FLOP/s", 2, 0}, {"copy_dram", 40e9, "B/s", 2, 1 << 28}});
    file.commit_rows({some_row("a", file.run(), 5)});
    file.commit_rows({some_row("b", file.run(), 0), some_row("c", file.run(), 10000)});
    file.commit_run({{"status", "done"}});
    file.commit_ceilings({{"fma_f32", 471e9, "FLOP/s", 2, 0}});
    written = file.rows();
  }
  ResultFile file = ResultFile::resume(path, some_columns());
  EXPECT_EQ(file.run(), "run-0002");
  ASSERT_EQ(file.rows().size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t column = 0; column < some_columns().size(); ++column) {
      if (some_columns()[column].name == "speedup") {
        EXPECT_TRUE(std::isnan(std::get<double>(file.rows()[i][column])));
      } else {
        EXPECT_EQ(file.rows()[i][column], written[i][column]);
      }
    }
  }
  file.commit_run({{"status", "running"}});
  file.commit_rows({some_row("a", file.run(), 3)});
  EXPECT_EQ(ResultFile::resume(path, some_columns()).rows().size(), 4U);
  EXPECT_EQ(ResultFile::resume(path, some_columns()).run(), "run-0003");

  EXPECT_EQ(read_samples(path, "/samples/run-0001/a"), some_row("a", "", 5).samples_s);
  EXPECT_EQ(read_samples(path, "/samples/run-0001/c").size(), 10000U);
  EXPECT_EQ(read_samples(path, "/samples/run-0002/a").size(), 3U);
  const Handle raw(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT));
  EXPECT_EQ(H5Lexists(raw.get(), "/samples/run-0001/b", H5P_DEFAULT), 0);
  EXPECT_GT(H5Aexists_by_name(raw.get(), "/runs/run-0001", "load_average", H5P_DEFAULT), 0);
  const Handle ceilings(H5Dopen2(raw.get(), "/ceilings/run-0001", H5P_DEFAULT));
  const Handle space(H5Dget_space(ceilings.get()));
  EXPECT_EQ(H5Sget_simple_extent_npoints(space.get()), 1);
}

TEST(ResultFile, TextIsCutAtACharacterBoundary) {
  const TemporaryFolder folder;
  const auto path = folder / "r.h5";
  const std::vector<io::Column> columns{
      {"point", ColumnKind::text, 8}, {"run", ColumnKind::text, 8}, {"note", ColumnKind::text, 5}};
  ResultFile file = ResultFile::create(path, columns);
  const auto add = [&](const std::string& point, const std::string& note) {
    file.commit_rows({{{point, file.run(), note}, {}}});
  };
  add("1", "abcdefg");
  add("2", "abc\u00e9x");    // é ends at byte 5
  add("3", "abcd\u00e9");    // é would end at byte 6
  add("4", "ab\U0001F600");  // four bytes, would end at byte 6
  add("5", "");
  const auto rows = ResultFile::resume(path, columns).rows();
  const auto note = [&rows](std::size_t i) { return std::get<std::string>(rows[i][2]); };
  EXPECT_EQ(note(0), "abcde");
  EXPECT_EQ(note(1), "abc\u00e9");
  EXPECT_EQ(note(2), "abcd");
  EXPECT_EQ(note(3), "ab");
  EXPECT_EQ(note(4), "");
}

TEST(ResultFile, RefusesRowsThatMakeNoSense) {
  const TemporaryFolder folder;
  const auto path = folder / "r.h5";
  ResultFile file = ResultFile::create(path, some_columns());
  file.commit_rows({some_row("a", file.run(), 1)});
  const std::string before = test::read_bytes(path);
  EXPECT_THROW(file.commit_rows({some_row("a", file.run(), 1)}), std::invalid_argument);
  EXPECT_THROW(file.commit_rows({some_row("b", file.run(), 1), some_row("b", file.run(), 1)}),
               std::invalid_argument);
  EXPECT_THROW(file.commit_rows({some_row("a/b", file.run(), 1)}), std::invalid_argument);
  EXPECT_THROW(file.commit_rows({some_row("", file.run(), 1)}), std::invalid_argument);
  EXPECT_THROW(file.commit_rows({some_row(std::string(65, 'x'), file.run(), 1)}),
               std::invalid_argument);
  EXPECT_THROW(file.commit_rows({some_row("b", "run-0009", 1)}), std::invalid_argument);
  io::Row row = some_row("b", file.run(), 1);
  row.cells.pop_back();
  EXPECT_THROW(file.commit_rows({row}), std::invalid_argument);
  row.cells.emplace_back(1.0);  // workspace_bytes is an integer
  EXPECT_THROW(file.commit_rows({row}), std::invalid_argument);
  EXPECT_EQ(test::read_bytes(path), before);
  EXPECT_EQ(file.rows().size(), 1U);
  file.commit_rows({some_row("b", file.run(), 1)});
  EXPECT_EQ(file.rows().size(), 2U);
  EXPECT_THROW(ResultFile::create(path, {{"point", ColumnKind::text, 8}}), std::invalid_argument);
}

TEST(ResultFile, ResumeRefusesForeignAndDamagedFiles) {
  const TemporaryFolder folder;
  const auto path = folder / "r.h5";
  const auto message = [&path](const std::vector<io::Column>& columns) {
    return message_of<InputError>([&] { (void)ResultFile::resume(path, columns); });
  };
  test::write_bytes(path, "something else");
  EXPECT_EQ(message(some_columns()), path.string() + ": is not an HDF5 file");
  { test::Hdf5Builder(path).integer("schema", 1); }
  EXPECT_TRUE(test::contains(message(some_columns()), "not a result file of katt"));
  {
    test::Hdf5Builder file(path);
    file.text("generator", "katt");
    file.integer("schema", 2);
  }
  EXPECT_TRUE(test::contains(message(some_columns()), "attribute schema"));
  {
    test::Hdf5Builder file(path);
    file.text("generator", "katt");
    file.integer("schema", 1);
  }
  EXPECT_TRUE(test::contains(message(some_columns()), "dataset points: is missing"));
  {
    test::Hdf5Builder file(path);
    file.text("generator", "katt");
    file.integer("schema", 1);
    file.floats("points", {2}, {1, 2});
  }
  EXPECT_TRUE(test::contains(message(some_columns()), "holds float32, expected a table"));

  std::filesystem::remove(path);
  ResultFile::create(path, some_columns()).commit_run({});
  EXPECT_EQ(message(some_columns()), "");
  auto columns = some_columns();
  columns[6].name = "seq";
  EXPECT_TRUE(test::contains(message(columns), "column 7 is seq_q (int64), expected seq (int64)"));
  columns = some_columns();
  columns[2].width = 33;
  EXPECT_TRUE(
      test::contains(message(columns), "column 3 is op (text), expected op (text of 33 bytes)"));
  columns = some_columns();
  columns.push_back({"more", ColumnKind::real});
  EXPECT_TRUE(test::contains(message(columns), "column 12 is missing"));
  columns = some_columns();
  columns.pop_back();
  EXPECT_TRUE(test::contains(message(columns), "holds 11 columns, expected 10"));

  const std::string bytes = test::read_bytes(path);
  for (std::size_t length = 1; length < bytes.size(); length += 97) {
    test::write_bytes(path, bytes.substr(0, length));
    EXPECT_NE(message(some_columns()), "") << length;
  }
}

TEST(ResultFile, LaterColumnsAreAddedToAFileWithoutThem) {
  const TemporaryFolder folder;
  const auto path = folder / "r.h5";
  {
    ResultFile old = ResultFile::create(path, some_columns());
    old.commit_rows({some_row("a", old.run(), 3), some_row("b", old.run(), 0)});
  }
  auto columns = some_columns();
  columns.back().kind = ColumnKind::real;  // workspace_bytes, an integer in the file
  columns.insert(columns.begin() + 9, {"before_speedup", ColumnKind::real, 0, true});
  columns.push_back({"at_the_end", ColumnKind::real, 0, true});
  const auto expect = [&columns, &path](std::size_t count) {
    const ResultFile file = ResultFile::resume(path, columns);
    ASSERT_EQ(file.rows().size(), count);
    const auto& cells = file.rows()[1];
    EXPECT_EQ(std::get<std::string>(cells[0]), "b");
    EXPECT_EQ(std::get<double>(cells[8]), 0.25) << "time_s";
    EXPECT_TRUE(std::isnan(std::get<double>(cells[9])));
    EXPECT_EQ(std::get<double>(cells[11]), -1) << "workspace_bytes";
    EXPECT_TRUE(std::isnan(std::get<double>(cells[12])));
  };
  const std::string before = test::read_bytes(path);
  expect(2);
  EXPECT_EQ(test::read_bytes(path), before) << "reading changes nothing";

  ResultFile file = ResultFile::resume(path, columns);
  io::Row row = some_row("c", file.run(), 2);
  row.cells[10] = 7.0;
  row.cells.insert(row.cells.begin() + 9, 8.0);
  row.cells.emplace_back(9.0);
  file.commit_rows({row});
  expect(3);
  EXPECT_EQ(std::get<double>(ResultFile::resume(path, columns).rows()[2][12]), 9.0);
  EXPECT_THROW((void)ResultFile::resume(path, some_columns()), InputError) << "newer than these";
}

TEST(ResultFile, RefusesAPlaceThatCannotBeWritten) {
  const TemporaryFolder folder;
  test::write_bytes(folder / "file", "x");
  const auto message = [](const std::filesystem::path& path) {
    return message_of<InputError>([&] { (void)ResultFile::create(path, some_columns()); });
  };
  const auto under_a_file = folder / "file/r.h5";
  EXPECT_EQ(message(under_a_file).rfind(under_a_file.string() + ": cannot be written", 0), 0U);
  EXPECT_TRUE(test::contains(message(folder.path()), "is a folder"));
  EXPECT_NE(message("/proc/katt/r.h5"), "");
  EXPECT_NE(message(folder / (std::string(252, 'n') + ".h5")), "");
  if (::geteuid() != 0) {
    std::filesystem::permissions(
        folder.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
    EXPECT_TRUE(test::contains(message(folder / "r.h5"), "Permission denied"));
    std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all);
  }
}

TEST(ResultFile, ALinkKeepsPointingToTheFile) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "elsewhere");
  std::filesystem::create_symlink(folder / "elsewhere/r.h5", folder / "link.h5");
  ResultFile file = ResultFile::create(folder / "link.h5", some_columns());
  file.commit_run({});
  file.commit_rows({some_row("a", file.run(), 1)});
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link.h5"));
  EXPECT_EQ(ResultFile::resume(folder / "elsewhere/r.h5", some_columns()).rows().size(), 1U);
}

TEST(ResultFile, TwoWritersAreNoticed) {
  const TemporaryFolder folder;
  const auto path = folder / "r.h5";
  ResultFile first = ResultFile::create(path, some_columns());
  first.commit_run({});
  ResultFile second = ResultFile::resume(path, some_columns());
  second.commit_rows({some_row("a", second.run(), 1)});
  EXPECT_TRUE(test::contains(
      message_of<std::runtime_error>([&] { first.commit_rows({some_row("a", first.run(), 1)}); }),
      "another program"));
  EXPECT_EQ(ResultFile::resume(path, some_columns()).rows().size(), 1U);
}

TEST(ResultFile, AFullDiskLeavesTheOldFile) {
  const TemporaryFolder folder;
  const auto path = folder / "r.h5";
  ResultFile file = ResultFile::create(path, some_columns());
  file.commit_run({});
  file.commit_rows({some_row("a", file.run(), 20)});
  const std::string before = test::read_bytes(path);
  // a limit on file sizes stands for the full disk; in a child, as it cannot be lifted again
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    int wrong = 0;
    for (const std::size_t room : {-100, 0, 1, 1000, 30000}) {
      const rlimit limit{before.size() + room, RLIM_INFINITY};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      bool thrown = false;
      try {
        file.commit_rows({some_row("b", file.run(), 20), some_row("c", file.run(), 20000)});
      } catch (const std::runtime_error&) {
        thrown = true;
      }
      wrong += thrown ? 0 : 1;
      wrong += file.rows().size() == 1 ? 0 : 1;
      wrong += test::read_bytes(path) == before ? 0 : 1;
      wrong += test::holds_a_part(folder.path()) ? 1 : 0;
    }
    // and when there is room again, it goes on
    const rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    file.commit_rows({some_row("b", file.run(), 20), some_row("c", file.run(), 20000)});
    wrong += file.rows().size() == 3 ? 0 : 1;
    ::_exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(ResultFile::resume(path, some_columns()).rows().size(), 3U);
}

TEST(ResultFile, TwoThousandRows) {
  const TemporaryFolder folder;
  const auto path = folder / "r.h5";
  ResultFile file = ResultFile::create(path, some_columns());
  std::vector<io::Row> rows;
  for (int i = 0; i < 2000; ++i) rows.push_back(some_row(point_name(i), file.run(), 20));
  file.commit_rows(rows);
  const auto start = std::chrono::steady_clock::now();
  constexpr int commits = 10;
  for (int i = 0; i < commits; ++i) {
    file.commit_rows({some_row("more" + std::to_string(i), file.run(), 20)});
  }
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
  RecordProperty("commit_ms", std::to_string(time.count() / commits));
  RecordProperty("file_bytes", std::to_string(std::filesystem::file_size(path)));
  EXPECT_EQ(ResultFile::resume(path, some_columns()).rows().size(), 2010U);
}

}  // namespace
}  // namespace katt
