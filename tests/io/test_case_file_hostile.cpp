// Case files that are damaged, misleading or malicious: every one ends in a one-line InputError.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "core/error.hpp"
#include "hdf5_builder.hpp"
#include "io/hdf5/case_file.hpp"
#include "io/hdf5/result_file.hpp"
#include "result_columns.hpp"

#if defined(KATT_ADDRESS_SANITIZER)
/// A damaged size makes HDF5 ask for more memory than there is, which it expects to be told.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
/// Some of HDF5's own error paths forget what they allocated.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }
#endif

namespace katt {
namespace {

using io::CaseFile;
using test::Hdf5Builder;
using test::message_of;
using test::TemporaryFolder;

/// Opens the file and reads everything that a case of attention has.
void read_case(const std::filesystem::path& path) {
  const CaseFile input(path);
  (void)input.dtype();
  (void)input.integer("causal");
  (void)input.real("scale");
  (void)input.text("op", "");
  const auto shape = input.shape("q", 2, "(S, D)");
  (void)input.floats("q", shape, "(S, D)");
  (void)input.integers("kv_len", {-1}, "(B)");
}

std::string read_message(const std::filesystem::path& path) {
  return message_of<InputError>([&] { read_case(path); });
}

void write_valid_case(const std::filesystem::path& path) {
  Hdf5Builder file(path);
  file.text("dtype", "f32");
  file.text("op", "attention");
  file.integer("causal", 1);
  file.real("scale", 0.125);
  file.floats("q", {16, 8}, std::vector<float>(128, 0.5F));
  const std::vector<std::int64_t> lengths{1, 2, 3};
  file.dataset("kv_len", H5T_STD_I64LE, {3}, H5T_NATIVE_INT64, lengths.data());
}

/// One line that starts with the file's name and goes on with `rest`.
void expect_message(const std::filesystem::path& path, const std::string& rest) {
  const std::string message = read_message(path);
  EXPECT_EQ(message.rfind(path.string() + ": " + rest, 0), 0U) << message;
  EXPECT_FALSE(test::contains(message, "\n"));
}

TEST(HostileCase, NotAFile) {
  const TemporaryFolder folder;
  expect_message(folder / "none.h5", "no such file");
  expect_message(folder.path(), "is a folder");
  test::write_bytes(folder / "empty.h5", "");
  expect_message(folder / "empty.h5", "is empty");
  test::write_bytes(folder / "text.h5", std::string(5000, 'x'));
  expect_message(folder / "text.h5", "is not an HDF5 file");
  ASSERT_EQ(::mkfifo((folder / "pipe.h5").c_str(), 0600), 0);
  expect_message(folder / "pipe.h5", "is not a regular file");
  if (::geteuid() != 0) {
    write_valid_case(folder / "secret.h5");
    ::chmod((folder / "secret.h5").c_str(), 0);
    expect_message(folder / "secret.h5", "cannot be read");
  }
}

TEST(HostileCase, TruncatedAtEveryLength) {
  const TemporaryFolder folder;
  write_valid_case(folder / "case.h5");
  ASSERT_EQ(read_message(folder / "case.h5"), "");
  const std::string bytes = test::read_bytes(folder / "case.h5");
  for (std::size_t length = 0; length < bytes.size(); length += 37) {
    test::write_bytes(folder / "cut.h5", bytes.substr(0, length));
    EXPECT_NE(read_message(folder / "cut.h5"), "") << length;
  }
}

/// A case with compressed data, which exercises more of the format than read_case's other one.
void write_compressed_case(const std::filesystem::path& path) {
  Hdf5Builder file(path);
  file.text("dtype", "f32");
  file.text("op", "attention");
  file.integer("causal", 1);
  file.real("scale", 0.125);
  const io::impl::Handle creation(H5Pcreate(H5P_DATASET_CREATE));
  const std::vector<hsize_t> chunk{8, 8};
  H5Pset_chunk(creation.get(), 2, chunk.data());
  H5Pset_shuffle(creation.get());
  H5Pset_deflate(creation.get(), 4);
  const std::vector<float> values(256, 1.5F);
  file.dataset("q", H5T_IEEE_F32LE, {16, 16}, H5T_NATIVE_FLOAT, values.data(), creation.get());
  const std::vector<std::int64_t> lengths{1, 2, 3};
  file.dataset("kv_len", H5T_STD_I64LE, {3}, H5T_NATIVE_INT64, lengths.data());
}

TEST(HostileCase, BytesChangedAtRandomNeverCrash) {
  const TemporaryFolder folder;
  int refused = 0;
  for (const auto write : {write_valid_case, write_compressed_case}) {
    write(folder / "case.h5");
    ASSERT_EQ(read_message(folder / "case.h5"), "");
    const std::string good = test::read_bytes(folder / "case.h5");
    std::mt19937 random(20240607);
    for (int round = 0; round < 150; ++round) {
      std::string bytes = good;
      for (unsigned changes = 1 + random() % 4; changes > 0; --changes) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
      test::write_bytes(folder / "changed.h5", bytes);
      // anything but an InputError fails the test, a crash ends it
      const std::string message = read_message(folder / "changed.h5");
      refused += message.empty() ? 0 : 1;
      EXPECT_FALSE(test::contains(message, "\n"));
    }
  }
  EXPECT_GT(refused, 10);
}

/// Places of a little-endian address in a file, behind the superblock's signature.
std::vector<std::size_t> places_of(const std::string& file, std::size_t address) {
  const std::uint64_t value = address;
  const std::string wanted(reinterpret_cast<const char*>(&value), sizeof value);
  std::vector<std::size_t> places;
  for (std::size_t at = file.find(wanted, 8); at != std::string::npos;
       at = file.find(wanted, at + 1)) {
    places.push_back(at);
  }
  return places;
}

/// HDF5 1.10 copies from a null pointer where it reads something at the undefined address, all
/// ones.
TEST(HostileCase, UndefinedAddresses) {
  const TemporaryFolder folder;
  write_valid_case(folder / "case.h5");
  const std::string good = test::read_bytes(folder / "case.h5");
  // the B-tree and the heap of the root group, and the heap's data, which lie behind its head
  const std::size_t heap = good.find("HEAP");
  std::uint64_t names = 0;
  std::memcpy(&names, good.data() + heap + 24, sizeof names);
  for (const std::size_t block : {good.find("TREE"), heap, std::size_t{names}}) {
    const std::vector<std::size_t> places = places_of(good, block);
    ASSERT_FALSE(places.empty()) << block;
    std::string bytes = good;
    for (const std::size_t place : places) bytes.replace(place, 8, 8, '\xFF');
    test::write_bytes(folder / "changed.h5", bytes);
    expect_message(folder / "changed.h5", "");
    EXPECT_NE(read_message(folder / "changed.h5"), "") << "block at " << block;
  }
  // and any other before the texts: each integer of eight bytes in turn
  const std::size_t texts = good.find("GCOL");
  for (std::size_t place = 8; place < texts; place += 8) {
    std::string bytes = good;
    bytes.replace(place, 8, 8, '\xFF');
    test::write_bytes(folder / "changed.h5", bytes);
    const std::string message = read_message(folder / "changed.h5");
    EXPECT_FALSE(test::contains(message, "\n"));
  }
}

/// A result file of which a group lies in another file: it is not written to.
TEST(HostileCase, AResultFileThatLeadsElsewhere) {
  const TemporaryFolder folder;
  const auto path = folder / "result.h5";
  io::ResultFile::create(path, test::some_columns()).commit_run({{"status", "done"}});
  { const Hdf5Builder other(folder / "other.h5"); }
  const std::string before = test::read_bytes(folder / "other.h5");
  {
    const io::impl::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
    H5Ldelete(file.get(), "samples", H5P_DEFAULT);
    H5Lcreate_external("other.h5", "/", file.get(), "samples", H5P_DEFAULT, H5P_DEFAULT);
  }
  const std::string message =
      message_of<InputError>([&] { (void)io::ResultFile::resume(path, test::some_columns()); });
  EXPECT_TRUE(test::contains(message, "is a damaged result file"));
  EXPECT_FALSE(test::contains(message, "\n"));
  EXPECT_EQ(test::read_bytes(folder / "other.h5"), before);
  EXPECT_FALSE(test::holds_a_part(folder.path()));
}

TEST(HostileCase, ACompressedChunkThatUnpacksToLess) {
  const TemporaryFolder folder;
  const auto path = folder / "case.h5";
  {
    Hdf5Builder file(path);
    const io::impl::Handle creation(H5Pcreate(H5P_DATASET_CREATE));
    const hsize_t chunk = 1 << 20;
    H5Pset_chunk(creation.get(), 1, &chunk);
    H5Pset_deflate(creation.get(), 4);
    const std::vector<float> values(chunk, 1.0F);
    file.dataset("q", H5T_IEEE_F32LE, {chunk}, H5T_NATIVE_FLOAT, values.data(), creation.get());
    // the same chunk once more, said to be stored as it is: 4 KiB for 4 MiB
    const io::impl::Handle set(H5Dopen2(file.file(), "q", H5P_DEFAULT));
    const hsize_t offset = 0;
    const std::vector<char> stored(4096, 'x');
    H5Dwrite_chunk(set.get(), H5P_DEFAULT, 1, &offset, stored.size(), stored.data());
  }
  // HDF5 reads past the end of the chunk, which may or may not end the process that does it
  const CaseFile input(path);
  const std::string message = message_of<InputError>([&] { (void)input.floats("q", {-1}, "(N)"); });
  EXPECT_TRUE(message.empty() || message.find("damaged") != std::string::npos) << message;
}

TEST(HostileCase, DatasetsThatAreNot) {
  const TemporaryFolder folder;
  const auto path = folder / "case.h5";
  const auto start = [&path] {
    Hdf5Builder file(path);
    file.text("dtype", "f32");
    file.integer("causal", 1);
    file.real("scale", 1);
    return file;
  };
  { const Hdf5Builder file = start(); }
  expect_message(path, "dataset q: is missing, expected shape (S, D)");
  {
    const Hdf5Builder file = start();
    const io::impl::Handle group(
        H5Gcreate2(file.file(), "q", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  }
  expect_message(path, "dataset q: is a group or a type, expected a dataset of shape (S, D)");
  {
    const Hdf5Builder file = start();
    H5Lcreate_soft("/nowhere", file.file(), "q", H5P_DEFAULT, H5P_DEFAULT);
  }
  expect_message(path, "dataset q: cannot be opened");
  write_valid_case(folder / "other.h5");
  {
    const Hdf5Builder file = start();
    H5Lcreate_external("other.h5", "/q", file.file(), "q", H5P_DEFAULT, H5P_DEFAULT);
  }
  expect_message(path, "dataset q: is a link to another file");
  {
    const Hdf5Builder file = start();
    H5Lcreate_external("other.h5", "/", file.file(), "way", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_soft("/way/q", file.file(), "q", H5P_DEFAULT, H5P_DEFAULT);
  }
  expect_message(path, "dataset q: cannot be opened");
  {
    Hdf5Builder file = start();
    test::write_bytes(folder / "raw.bin", std::string(512, 'x'));
    const io::impl::Handle creation(H5Pcreate(H5P_DATASET_CREATE));
    H5Pset_external(creation.get(), (folder / "raw.bin").c_str(), 0, 512);
    file.dataset("q", H5T_IEEE_F32LE, {16, 8}, H5T_NATIVE_FLOAT, nullptr, creation.get());
  }
  expect_message(path, "dataset q: keeps its data in other files");
}

TEST(HostileCase, SoftLinkWithinTheFileIsFollowed) {
  const TemporaryFolder folder;
  {
    Hdf5Builder file(folder / "case.h5");
    file.floats("storage", {2}, {1, 2});
    H5Lcreate_soft("/storage", file.file(), "q", H5P_DEFAULT, H5P_DEFAULT);
  }
  EXPECT_EQ(CaseFile(folder / "case.h5").floats("q", {2}, "(N)").values[1], 2.0F);
}

TEST(HostileCase, WrongTypesAndShapes) {
  const TemporaryFolder folder;
  const auto path = folder / "case.h5";
  {
    Hdf5Builder file(path);
    file.floats("q", {2, 3}, std::vector<float>(6));
    file.floats("empty", {2, 0}, {});
    const std::vector<std::int64_t> numbers(6);
    file.dataset("numbers", H5T_STD_I64LE, {2, 3}, H5T_NATIVE_INT64, numbers.data());
    const std::vector<std::uint64_t> large{~0ULL};
    file.dataset("large", H5T_STD_U64LE, {1}, H5T_NATIVE_UINT64, large.data());
    const io::impl::Handle text(H5Tcopy(H5T_C_S1));
    H5Tset_size(text.get(), 4);
    file.dataset("text", text.get(), {2}, text.get(), "abcdefgh");
    const io::impl::Handle pair(H5Tcreate(H5T_COMPOUND, 8));
    H5Tinsert(pair.get(), "re", 0, H5T_NATIVE_FLOAT);
    H5Tinsert(pair.get(), "im", 4, H5T_NATIVE_FLOAT);
    file.dataset("pair", pair.get(), {2}, pair.get(), std::vector<float>(4).data());
    const io::impl::Handle null(H5Screate(H5S_NULL));
    const io::impl::Handle nothing(H5Dcreate2(file.file(), "nothing", H5T_IEEE_F32LE, null.get(),
                                              H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  }
  const CaseFile input(path);
  const auto floats = [&](const std::string& name, const std::vector<std::int64_t>& shape,
                          const std::string& axes) {
    return message_of<InputError>([&] { (void)input.floats(name, shape, axes); });
  };
  const std::string start = path.string() + ": dataset ";
  EXPECT_EQ(message_of<InputError>([&] { (void)input.shape("q", 4, "(B, Hq, Sq, D)"); }),
            start + "q: holds shape (2, 3), expected (B, Hq, Sq, D)");
  EXPECT_EQ(floats("q", {2, 4}, "(S, D)"),
            start + "q: holds shape (2, 3), expected (S, D) = (2, 4)");
  EXPECT_EQ(floats("q", {-1, 4}, "(S, D)"),
            start + "q: holds shape (2, 3), expected (S, D) = (any, 4)");
  EXPECT_EQ(floats("empty", {-1, -1}, "(S, D)"),
            start + "empty: holds shape (2, 0), expected (S, D) with no extent of 0");
  EXPECT_EQ(floats("numbers", {2, 3}, "(S, D)"),
            start + "numbers: holds int64, expected floating point");
  EXPECT_EQ(floats("text", {2}, "(N)"), start + "text: holds text, expected floating point");
  EXPECT_EQ(floats("pair", {2}, "(N)"),
            start + "pair: holds a compound type, expected floating point");
  EXPECT_EQ(floats("nothing", {2}, "(N)"),
            start + "nothing: holds no data, expected shape (N) = (2,)");
  EXPECT_EQ(message_of<InputError>([&] {
              (void)input.integers("q", {2, 3}, "(S, D)");
            }),
            start + "q: holds float32, expected integers");
  EXPECT_NE(message_of<InputError>([&] { (void)input.integers("large", {1}, "(B)"); }), "");
  EXPECT_EQ(message_of<InputError>([&] { input.reject("q", "is odd"); }), start + "q: is odd");
}

TEST(HostileCase, SizesThatLie) {
  const TemporaryFolder folder;
  const auto path = folder / "case.h5";
  {
    Hdf5Builder file(path);
    const io::impl::Handle chunked(H5Pcreate(H5P_DATASET_CREATE));
    const std::vector<hsize_t> chunk{16, 16, 16};
    H5Pset_chunk(chunked.get(), 3, chunk.data());
    const hsize_t huge = hsize_t{1} << 30;
    file.dataset("huge", H5T_IEEE_F32LE, {huge, huge, 16}, H5T_NATIVE_FLOAT, nullptr,
                 chunked.get());
    file.dataset("unwritten", H5T_IEEE_F32LE, {1024, 1024, 512}, H5T_NATIVE_FLOAT, nullptr,
                 chunked.get());
    const io::impl::Handle bomb(H5Pcreate(H5P_DATASET_CREATE));
    H5Pset_chunk(bomb.get(), 3, chunk.data());
    H5Pset_deflate(bomb.get(), 9);
    file.dataset("bomb", H5T_IEEE_F32LE, {1024, 1024, 512}, H5T_NATIVE_FLOAT, nullptr, bomb.get());
  }
  const CaseFile input(path);
  const auto floats = [&](const std::string& name) {
    return message_of<InputError>([&] { (void)input.floats(name, {-1, -1, -1}, "(B, S, D)"); });
  };
  EXPECT_TRUE(test::contains(floats("huge"), "of this machine's memory"));
  EXPECT_TRUE(test::contains(floats("unwritten"), "stores 0 bytes, expected 2147483648"));
  EXPECT_TRUE(test::contains(floats("bomb"), "stores 0 bytes"));
}

TEST(HostileCase, Attributes) {
  const TemporaryFolder folder;
  const auto path = folder / "case.h5";
  {
    Hdf5Builder file(path);
    file.text("dtype", "f64\nkatt: ok");
    file.text("words", "many");
    file.real("half", 0.5);
    file.real("nan", NAN);
    const std::vector<std::int64_t> several{1, 2};
    file.attribute("several", H5T_NATIVE_INT64, several.data(), 2);
    const std::uint64_t large = ~0ULL;
    file.attribute("large", H5T_NATIVE_UINT64, &large);
    const io::impl::Handle bytes(H5Tcreate(H5T_OPAQUE, 4));
    file.attribute("bytes", bytes.get(), "abcd");
    const io::impl::Handle null(H5Screate(H5S_NULL));
    const io::impl::Handle nothing(
        H5Acreate2(file.file(), "nothing", H5T_NATIVE_INT64, null.get(), H5P_DEFAULT, H5P_DEFAULT));
  }
  const CaseFile input(path);
  const std::string start = path.string() + ": attribute ";
  const auto integer = [&](const std::string& name) {
    return message_of<InputError>([&] { (void)input.integer(name); });
  };
  EXPECT_EQ(
      message_of<InputError>([&] { (void)input.dtype(); }),
      start + "dtype: holds text \"f64\\x0akatt: ok\", expected \"f32\", \"f16\" or \"bf16\"");
  EXPECT_EQ(integer("missing"), start + "missing: is missing, expected an integer");
  EXPECT_EQ(integer("words"), start + "words: holds text \"many\", expected an integer");
  EXPECT_EQ(integer("half"), start + "half: holds 0.500000, expected an integer");
  EXPECT_EQ(integer("nan"), start + "nan: holds nan, expected an integer");
  EXPECT_EQ(integer("several"), start + "several: holds 2 values, expected one");
  EXPECT_EQ(integer("nothing"), start + "nothing: holds 0 values, expected one");
  EXPECT_NE(integer("large"), "");
  EXPECT_NE(integer("bytes"), "");
  EXPECT_EQ(message_of<InputError>([&] { (void)input.real("words"); }),
            start + "words: holds text \"many\", expected a number");
  EXPECT_EQ(message_of<InputError>([&] { (void)input.text("half", ""); }),
            start + "half: holds 0.500000, expected text");
}

}  // namespace
}  // namespace katt
