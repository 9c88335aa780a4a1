#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "core/error.hpp"
#include "hdf5_builder.hpp"
#include "io/hdf5/case_file.hpp"
#include "tests/cases/folders.hpp"

namespace katt {
namespace {

using io::CaseFile;
using test::Hdf5Builder;
using test::message_of;
using test::TemporaryFolder;

TEST(CaseFile, ReadsTensorsOfEveryNaturalType) {
  const TemporaryFolder folder;
  {
    Hdf5Builder file(folder / "case.h5");
    file.floats("q", {2, 3}, {0, 1, 2, 3, 4, 5});
    const std::vector<double> wide{0.5, -0.25, INFINITY, NAN};
    file.dataset("wide", H5T_IEEE_F64BE, {4}, H5T_NATIVE_DOUBLE, wide.data());
    const io::impl::Handle half(H5Tcopy(H5T_IEEE_F32LE));
    H5Tset_fields(half.get(), 15, 10, 5, 0, 10);
    H5Tset_size(half.get(), 2);
    H5Tset_ebias(half.get(), 15);
    file.dataset("half", half.get(), {4}, H5T_NATIVE_DOUBLE, wide.data());
    const std::vector<double> too_large{1, -1e300};
    file.dataset("too_large", H5T_IEEE_F64LE, {2}, H5T_NATIVE_DOUBLE, too_large.data());
    const std::vector<std::int64_t> numbers{-3, 0, 7};
    file.dataset("numbers", H5T_STD_I32LE, {3}, H5T_NATIVE_INT64, numbers.data());
    const std::vector<std::uint8_t> bytes{0, 1, 255};
    file.dataset("bytes", H5T_STD_U8LE, {3}, H5T_NATIVE_UINT8, bytes.data());
    const std::vector<std::int8_t> flags{1, 0, 1};
    const auto boolean = Hdf5Builder::boolean_type();
    file.dataset("flags", boolean.get(), {3}, boolean.get(), flags.data());
  }
  const CaseFile input(folder / "case.h5");
  EXPECT_TRUE(input.has("q"));
  EXPECT_FALSE(input.has("k"));
  EXPECT_EQ(input.shape("q", 2, "(S, D)"), (std::vector<std::int64_t>{2, 3}));
  const io::FloatTensor q = input.floats("q", {-1, 3}, "(S, D)");
  EXPECT_EQ(q.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(q.values, (std::vector<float>{0, 1, 2, 3, 4, 5}));
  const io::FloatTensor wide = input.floats("wide", {4}, "(N)");
  EXPECT_EQ(wide.values[0], 0.5F);
  EXPECT_EQ(wide.values[2], std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(wide.values[3]));
  EXPECT_TRUE(
      test::contains(message_of<InputError>([&] { (void)input.floats("too_large", {2}, "(N)"); }),
                     "holds -1e+300 at element 1, expected numbers of float32"));
  EXPECT_EQ(input.floats("half", {4}, "(N)").values[1], -0.25F);
  EXPECT_EQ(input.integers("numbers", {3}, "(B)").values, (std::vector<std::int64_t>{-3, 0, 7}));
  EXPECT_EQ(input.integers("bytes", {-1}, "(B)").values, (std::vector<std::int64_t>{0, 1, 255}));
  EXPECT_EQ(input.integers("flags", {3}, "(B)").values, (std::vector<std::int64_t>{1, 0, 1}));
}

TEST(CaseFile, ReadsAttributesOfEveryNaturalType) {
  const TemporaryFolder folder;
  {
    Hdf5Builder file(folder / "case.h5");
    file.text("dtype", "bf16");
    file.integer("causal", 1);
    file.real("scale", 0.125);
    file.real("whole", 3.0);
    file.real("nan", NAN);
    const std::int16_t small = -1;
    file.attribute("window_left", H5T_STD_I16BE, &small, 1);  // shape (1,)
    const std::int8_t yes = 1;
    file.attribute("flag", Hdf5Builder::boolean_type().get(), &yes);
    const float single = 0.5F;
    file.attribute("single", H5T_IEEE_F32LE, &single);
    const io::impl::Handle fixed(H5Tcopy(H5T_C_S1));
    H5Tset_size(fixed.get(), 6);
    H5Tset_strpad(fixed.get(), H5T_STR_NULLPAD);
    file.attribute("fixed", fixed.get(), "llama3");
    H5Tset_strpad(fixed.get(), H5T_STR_SPACEPAD);
    file.attribute("padded", fixed.get(), "ab    ");
    file.text("empty", "");
  }
  const CaseFile input(folder / "case.h5");
  EXPECT_EQ(input.dtype(), Dtype::bf16);
  EXPECT_EQ(input.integer("causal"), 1);
  EXPECT_EQ(input.integer("window_left", 9), -1);
  EXPECT_EQ(input.integer("missing", 9), 9);
  EXPECT_EQ(input.integer("flag"), 1);
  EXPECT_EQ(input.integer("whole"), 3);
  EXPECT_EQ(input.real("scale"), 0.125);
  EXPECT_EQ(input.real("causal"), 1.0);
  EXPECT_EQ(input.real("single", 2.0), 0.5);
  EXPECT_EQ(input.real("missing", 2.0), 2.0);
  EXPECT_TRUE(std::isnan(input.real("nan")));  // the operator judges
  EXPECT_EQ(input.text("fixed", ""), "llama3");
  EXPECT_EQ(input.text("padded", ""), "ab");
  EXPECT_EQ(input.text("empty", "x"), "");
  EXPECT_EQ(input.text("missing", "x"), "x");
  EXPECT_TRUE(input.has_attribute("dtype"));
  EXPECT_FALSE(input.has_attribute("missing"));
}

TEST(CaseFile, ReadsChunkedAndCompressedData) {
  const TemporaryFolder folder;
  std::vector<float> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7);
  {
    Hdf5Builder file(folder / "case.h5");
    const io::impl::Handle creation(H5Pcreate(H5P_DATASET_CREATE));
    const hsize_t chunk = 128;
    H5Pset_chunk(creation.get(), 1, &chunk);
    H5Pset_shuffle(creation.get());
    H5Pset_deflate(creation.get(), 4);
    H5Pset_fletcher32(creation.get());
    file.dataset("x", H5T_IEEE_F32LE, {1000}, H5T_NATIVE_FLOAT, values.data(), creation.get());
    // very compressible: within what deflate can do
    const std::vector<float> zeros(1 << 20, 0.0F);
    const io::impl::Handle wide(H5Pcreate(H5P_DATASET_CREATE));
    const hsize_t wide_chunk = 1 << 18;
    H5Pset_chunk(wide.get(), 1, &wide_chunk);
    H5Pset_deflate(wide.get(), 9);
    file.dataset("zeros", H5T_IEEE_F32LE, {1 << 20}, H5T_NATIVE_FLOAT, zeros.data(), wide.get());
  }
  const CaseFile input(folder / "case.h5");
  EXPECT_EQ(input.floats("x", {1000}, "(N)").values, values);
  EXPECT_EQ(input.floats("zeros", {-1}, "(N)").values.size(), std::size_t{1} << 20);
}

TEST(CaseFile, RefusesAMisspeltNameOnly) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& dataset, const std::string& attribute) {
    const std::string name = folder / "case.h5";
    {
      Hdf5Builder file(name);
      file.floats("q", {1}, {0});
      file.floats("weight", {1}, {0});
      file.floats(dataset, {1}, {0});
      file.integer(attribute, 1);
    }
    const CaseFile input(name);
    EXPECT_FALSE(input.has("kv_len"));
    (void)input.floats("q", {1}, "(N)");
    (void)input.floats("weight", {1}, "(N)");
    EXPECT_EQ(input.integer("causal", 0), attribute == "causal" ? 1 : 0);
    try {
      input.refuse_misspelt();
    } catch (const InputError& error) {
      return std::string(error.what()).substr(name.size() + 2);
    }
    return std::string();
  };
  EXPECT_EQ(refused("kv_lens", "causal"), "dataset kv_lens: unknown; did you mean kv_len?");
  EXPECT_EQ(refused("kvlen", "causal"), "dataset kvlen: unknown; did you mean kv_len?");
  EXPECT_EQ(refused("kv_lem", "causal"), "dataset kv_lem: unknown; did you mean kv_len?");
  EXPECT_EQ(refused("kv_lne", "causal"), "dataset kv_lne: unknown; did you mean kv_len?");
  EXPECT_EQ(refused("out", "casual"), "attribute casual: unknown; did you mean causal?");
  // not of the same letters; too short; beside the name itself
  EXPECT_EQ(refused("kv_lengths", "is_causal"), "");
  EXPECT_EQ(refused("k", "batch"), "");
  EXPECT_EQ(refused("weights", "heads"), "");
}

TEST(CaseFile, ReadsTheGivenCases) {
  for (const auto& folder : test::case_folders()) {
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() != ".h5") continue;
      const CaseFile input(entry.path());
      EXPECT_NO_THROW((void)input.dtype()) << entry.path();
      EXPECT_NE(input.text("op", ""), "") << entry.path();
      if (input.text("op", "") == "attention") {
        const auto shape = input.shape("q", 4, "(B, Hq, Sq, D)");
        const io::FloatTensor q = input.floats("q", shape, "(B, Hq, Sq, D)");
        const Dtype dtype = input.dtype();
        const auto is_rounded = [dtype](float value) { return value == round_to(dtype, value); };
        EXPECT_TRUE(std::ranges::all_of(q.values, is_rounded)) << entry.path();
        EXPECT_GT(input.real("scale"), 0.0);
        EXPECT_EQ(input.integer("window_right", -1), -1);
      }
      ++files;
    }
    EXPECT_GT(files, 0) << folder;
  }
}

TEST(TensorFile, WritesWhatCaseFileReads) {
  const TemporaryFolder folder;
  const auto path = folder / "sub/folder/out.h5";  // folders that are not there yet
  io::TensorFile out;
  out.set("out", {{2, 2}, {1, 2, 3, -INFINITY}});
  out.set("big", {{100, 100}, std::vector<float>(10000, 0.5F)});
  out.set("loss", {{}, {2.5F}});
  out.set("out", {{2, 2}, {1, 2, 3, 4}});  // the last one counts
  out.set_integers("ids", {{1, 3}, {1, -1, std::int64_t{1} << 40}});
  out.set_attribute("op", std::string("attention"));
  out.set_attribute("scale", 0.5);
  out.set_attribute("tile_q", std::int64_t{64});
  out.write(path);
  out.write(path);  // replaces
  EXPECT_FALSE(test::holds_a_part(path.parent_path()));
  const CaseFile in(path);
  EXPECT_EQ(in.floats("out", {2, 2}, "(S, D)").values, (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(in.floats("big", {100, 100}, "(S, D)").values[9999], 0.5F);
  EXPECT_EQ(in.floats("loss", {}, "()").values, std::vector<float>{2.5F});
  EXPECT_EQ(in.integers("ids", {1, 3}, "(S, N)").values,
            (std::vector<std::int64_t>{1, -1, std::int64_t{1} << 40}));
  EXPECT_EQ(in.text("op", ""), "attention");
  EXPECT_EQ(in.real("scale"), 0.5);
  EXPECT_EQ(in.integer("tile_q"), 64);
}

TEST(TensorFile, RefusesAPlaceThatCannotBeWritten) {
  const TemporaryFolder folder;
  test::write_bytes(folder / "file", "x");
  io::TensorFile out;
  out.set("out", {{1}, {1}});
  const auto under_a_file = folder / "file/out.h5";
  EXPECT_TRUE(test::contains(message_of<InputError>([&] { out.write(under_a_file); }),
                             "cannot be written"));
  EXPECT_TRUE(
      test::contains(message_of<InputError>([&] { out.write(folder.path()); }), "is a folder"));
  EXPECT_NE(message_of<InputError>([&] { out.write("/proc/katt/out.h5"); }), "");
  EXPECT_THROW(out.set("bad", {{2, 2}, {1}}), std::invalid_argument);
}

}  // namespace
}  // namespace katt
