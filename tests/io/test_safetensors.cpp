#include <gtest/gtest.h>

#include <cstring>

#include "core/error.hpp"
#include "hdf5_builder.hpp"
#include "io/safetensors.hpp"
#include "op/reference/fill.hpp"

namespace katt {
namespace {

using io::parse_safetensors;
using io::Safetensors;
using test::message_of;
using test::TemporaryFolder;

/// A file of that header text and so many bytes of data.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  std::string file(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, '\x11');
}

std::span<const std::byte> bytes_of(const std::string& file) {
  return std::as_bytes(std::span(file));
}

std::string refusal(const std::string& file) {
  return message_of<InputError>([&] { (void)parse_safetensors("f", bytes_of(file)); });
}

const std::string two_tensors = R"({"__metadata__":{"format":"pt"},)"
                                R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                                R"("b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}})";

TEST(Safetensors, ReadsWhatItWrites) {
  const TemporaryFolder folder;
  std::vector<float> values(70001);  // more than is converted at once
  testing::fill(values, 1, Dtype::f32);
  for (const Dtype dtype : all_dtypes) {
    std::vector<float> rounded(values);
    for (float& value : rounded) value = round_to(dtype, value);
    const float one = 0.5F;
    const std::vector<io::SafetensorsTensor> tensors{
        {"odd", Dtype::f16, {}, {&one, 1}},  // the next tensor is not aligned
        {"x", dtype, {70001, 1}, values},
        {"empty", dtype, {0, 4}, {}}};
    io::write_safetensors(folder / "sub/x.safetensors", tensors, {{"step", "3"}});
    const Safetensors file(folder / "sub/x.safetensors");
    EXPECT_EQ(file.names(), (std::vector<std::string>{"empty", "odd", "x"}));
    EXPECT_EQ(file.metadata().at("step"), "3");
    std::vector<float> read(values.size());
    file.read("x", {70001, 1}, read);
    EXPECT_EQ(read, rounded) << name_of(dtype);
    file.read("odd", {}, std::span(read).first(1));
    EXPECT_EQ(read[0], 0.5F);
  }
  EXPECT_FALSE(test::holds_a_part(folder / "sub"));
}

TEST(Safetensors, RefusesToReadWhatIsNotThere) {
  const TemporaryFolder folder;
  test::write_bytes(folder / "x.safetensors",
                    file_of(R"({"n":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", 8));
  const Safetensors file(folder / "x.safetensors");
  float value = 0;
  const auto refuses = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    return message_of<InputError>([&] { file.read(name, shape, {&value, 1}); });
  };
  EXPECT_TRUE(test::contains(refuses("n", {1}), "tensor n: holds I64, expected F32"));
  EXPECT_TRUE(test::contains(refuses("n", {1, 1}), "holds shape (1,), expected (1, 1)"));
  EXPECT_TRUE(test::contains(refuses("m", {1}), "tensor m: is missing"));
}

TEST(Safetensors, RefusesHostileHeaders) {
  EXPECT_EQ(refusal(file_of(two_tensors, 26)), "");
  const auto one = [](const std::string& dtype, const std::string& shape,
                      const std::string& offsets) {
    return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
           offsets + "}}";
  };
  const auto contains = [](const std::string& message, const std::string& part) {
    EXPECT_TRUE(test::contains(message, part));
    EXPECT_FALSE(test::contains(message, "\n"));
  };
  contains(refusal(""), "holds 0 bytes");
  contains(refusal("1234567"), "holds 7 bytes");
  contains(refusal(file_of(two_tensors, 25)), "not within the 25 bytes");
  contains(refusal(file_of(two_tensors, 27)), "where the last tensor ends");
  contains(refusal(file_of(two_tensors, 26).substr(0, 40)), "but the file holds 40");
  std::string huge = file_of(two_tensors, 26);
  huge[4] = 1;  // 2^32 and more
  contains(refusal(huge), "expected at most 100000000");
  huge.assign(8, '\xFF');
  contains(refusal(huge), "expected at most 100000000");
  contains(refusal(file_of("[]", 0)), "expected a JSON object");
  contains(refusal(file_of("{", 0)), "not valid JSON");
  contains(refusal(file_of("{}x", 0)), "not valid JSON");
  contains(refusal(file_of(R"({"a":1,"a":1})", 0)), "key \"a\" twice");
  contains(refusal(file_of(R"({"a":{"dtype":"F32","dtype":"F32"}})", 0)), "\"dtype\" twice");
  contains(refusal(file_of(std::string(5'000'000, '['), 0)), "nested deeper");
  contains(refusal(file_of(R"({"a":)" + std::string(5'000'000, '{'), 0)), "not valid JSON");
  contains(refusal(file_of(one("F32", "[1]", "[0,8]"), 8)), "span 8 bytes");
  contains(refusal(file_of(one("F32", "[2]", "[8,0]"), 8)), "not within");
  contains(refusal(file_of(one("F32", "[1]", "[4,8]"), 8)), "begin at 4, expected 0");
  contains(refusal(file_of(one("F33", "[1]", "[0,4]"), 4)), "unknown \"F33\"");
  contains(refusal(file_of(one("F32", "[-1]", "[0,4]"), 4)), "expected a list of sizes");
  contains(refusal(file_of(one("F32", "[1.5]", "[0,4]"), 4)), "expected a list of sizes");
  contains(refusal(file_of(one("F32", "[99999999999999999999]", "[0,4]"), 4)), "list of sizes");
  contains(refusal(file_of(one("F32", "[4294967296,4294967296]", "[0,0]"), 0)), "overflows");
  contains(refusal(file_of(one("F32", "[4611686018427387905]", "[0,4]"), 4)), "overflows");
  contains(refusal(file_of(one("F32", "[1]", "[0,4,4]"), 4)), "two offsets");
  contains(refusal(file_of(R"({"a":{"shape":[1],"dtype":"F32","offsets":[0,4]}})", 4)),
           "data_offsets: expected two offsets");
  contains(refusal(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4)),
           "expected an object of dtype");
  contains(refusal(file_of(R"({"__metadata__":{"a":1}})", 0)), "object of texts");
  // two tensors on the same bytes, and a hole between two
  contains(refusal(file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                           R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                           6)),
           "tensor b: data_offsets begin at 2, expected 4");
  contains(refusal(file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                           R"("b":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}})",
                           6)),
           "tensor b: data_offsets begin at 5, expected 4");
}

TEST(Safetensors, SurvivesMutatedFiles) {
  // Each input is the good file with a few bytes changed, cut, or repeated. Each result is either a
  // refusal in one line or a header whose ranges lie within the file.
  const std::string good = file_of(two_tensors, 26);
  int accepted = 0;
  for (std::uint64_t seed = 0; seed < 100'000; ++seed) {
    std::string file = good;
    const auto pick = [&](std::uint64_t index, std::size_t below) {
      return static_cast<std::size_t>(testing::hash(seed, index) % below);
    };
    const std::size_t changes = 1 + pick(0, 4);
    for (std::size_t change = 0; change < changes && !file.empty(); ++change) {
      const std::uint64_t at = 10 * (change + 1);
      const std::size_t place = pick(at, file.size());
      switch (pick(at + 1, 6)) {
        case 0: file[place] = static_cast<char>(pick(at + 2, 256)); break;
        case 1: file[place] = "{}[]\":,0123456789eE-."[pick(at + 2, 21)]; break;
        case 2: file.resize(place); break;
        case 3: file.erase(place, 1 + pick(at + 2, 8)); break;
        case 4: file.insert(place, file.substr(pick(at + 2, file.size()), pick(at + 3, 30))); break;
        default: file[place % 8] = static_cast<char>(pick(at + 2, 256)); break;
      }
    }
    try {
      const auto header = parse_safetensors("f", bytes_of(file));
      for (const auto& [name, entry] : header.tensors) {
        ASSERT_LE(entry.begin, entry.end) << seed;
        ASSERT_LE(entry.end, file.size()) << seed;
      }
      ++accepted;
    } catch (const InputError& error) {
      ASSERT_FALSE(test::contains(error.what(), "\n")) << seed;
    }
  }
  EXPECT_GT(accepted, 0);
}

std::string index_of(const std::string& map) {
  return R"({"metadata":{"total_size":12},"weight_map":)" + map + "}";
}

TEST(Safetensors, ReadsShards) {
  const TemporaryFolder folder;
  const float one = 1;
  const float two = 2;
  io::write_safetensors(folder / "m-1.safetensors",
                        std::vector<io::SafetensorsTensor>{{"a", Dtype::f32, {1}, {&one, 1}}}, {});
  io::write_safetensors(folder / "m-2.safetensors",
                        std::vector<io::SafetensorsTensor>{{"b", Dtype::f32, {1}, {&two, 1}}}, {});
  const auto index = folder / "model.safetensors.index.json";
  test::write_bytes(index, index_of(R"({"a":"m-1.safetensors","b":"m-2.safetensors"})"));
  const Safetensors file(folder.path());
  float value = 0;
  file.read("b", {1}, {&value, 1});
  EXPECT_EQ(value, 2);

  const float three = 3;
  const auto whole = folder / "model.safetensors";
  io::write_safetensors(
      whole, std::vector<io::SafetensorsTensor>{{"b", Dtype::f32, {1}, {&three, 1}}}, {});
  Safetensors(folder.path()).read("b", {1}, {&value, 1});
  EXPECT_EQ(value, 3) << "a file comes before the index beside it";
  std::filesystem::remove(whole);

  const auto refuses = [&](const std::string& map) {
    test::write_bytes(index, index_of(map));
    return message_of<InputError>([&] { const Safetensors opened(folder.path()); });
  };
  EXPECT_TRUE(test::contains(refuses(R"({"a":"../m-1.safetensors"})"), "beside the index"));
  EXPECT_TRUE(test::contains(refuses(R"({"a":"/etc/passwd"})"), "beside the index"));
  EXPECT_TRUE(test::contains(refuses(R"({"a":7})"), "beside the index"));
  EXPECT_TRUE(test::contains(refuses(R"({"a":"no.safetensors"})"), "no such file"));
  EXPECT_TRUE(
      test::contains(refuses(R"({"a":"m-1.safetensors","b":"m-1.safetensors"})"), "does not hold"));
  EXPECT_TRUE(test::contains(refuses(R"({"c":"m-1.safetensors"})"), "does not name it"));
  EXPECT_TRUE(test::contains(refuses("[]"), "weight_map"));
}

TEST(Safetensors, RefusesPlacesThatAreNoFiles) {
  const TemporaryFolder folder;
  const auto refuses = [](const std::filesystem::path& path) {
    return message_of<InputError>([&] { const Safetensors opened(path); });
  };
  EXPECT_TRUE(test::contains(refuses(folder / "none"), "no such file"));
  EXPECT_TRUE(test::contains(refuses(folder.path()), "no such file"));
  test::write_bytes(folder / "empty", "");
  EXPECT_TRUE(test::contains(refuses(folder / "empty"), "is empty"));
  EXPECT_TRUE(test::contains(refuses("/dev/zero"), "not a regular file"));
}

}  // namespace
}  // namespace katt
