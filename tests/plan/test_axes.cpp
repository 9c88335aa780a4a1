#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/text.hpp"
#include "io/printable.hpp"
#include "plan/axes.hpp"
#include "tests/io/refusal.hpp"
#include "tests/message_of.hpp"

namespace katt::bench {
namespace {

const AxisSpec integers{.name = "seq", .fallback = std::int64_t{1}, .minimum = 1, .maximum = 65536};
const AxisSpec reals{.name = "softcap", .fallback = 0.0, .minimum = 0, .maximum = 100};
const AxisSpec choices{.name = "dtype", .fallback = std::string("f32"), .choices = {"f32", "bf16"}};

std::vector<std::int64_t> parse_integers(const std::string& text) {
  std::vector<std::int64_t> values;
  for (const AxisValue& value : parse_axis(integers, {"seq", text, "--seq"})) {
    values.push_back(std::get<std::int64_t>(value));
  }
  return values;
}

std::string rejection(const AxisSpec& spec, const std::string& text) {
  return test::message_of([&] { (void)parse_axis(spec, {spec.name, text, "--" + spec.name}); });
}

TEST(Axes, ReadsListsAndRanges) {
  EXPECT_EQ(parse_integers("512"), (std::vector<std::int64_t>{512}));
  EXPECT_EQ(parse_integers("512,1024, 2048"), (std::vector<std::int64_t>{512, 1024, 2048}));
  EXPECT_EQ(parse_integers("512:16384:x2"),
            (std::vector<std::int64_t>{512, 1024, 2048, 4096, 8192, 16384}));
  EXPECT_EQ(parse_integers("64:256:+64"), (std::vector<std::int64_t>{64, 128, 192, 256}));
  EXPECT_EQ(parse_integers("1:100:x3"), (std::vector<std::int64_t>{1, 3, 9, 27, 81}));
  EXPECT_EQ(parse_integers("1,4:8:+2,100"), (std::vector<std::int64_t>{1, 4, 6, 8, 100}));
  EXPECT_EQ(parse_integers("7:7:x2"), (std::vector<std::int64_t>{7}));
}

TEST(Axes, KeepsEachValueOnce) {
  EXPECT_EQ(parse_integers("8,4,8,4:8:+2"), (std::vector<std::int64_t>{8, 4, 6}));
}

TEST(Axes, ReadsRealsAndChoices) {
  const auto values = parse_axis(reals, {"softcap", "0.1:0.3:+0.1,50", "--softcap"});
  ASSERT_EQ(values.size(), 4U);
  EXPECT_NEAR(std::get<double>(values[2]), 0.3, 1e-12);
  EXPECT_EQ(parse_axis(choices, {"dtype", "bf16,f32", "--dtype"}),
            (std::vector<AxisValue>{std::string("bf16"), std::string("f32")}));
}

TEST(Axes, RejectsInOneLineThatNamesOptionValueAndExpectation) {
  EXPECT_EQ(rejection(integers, "nan"),
            "--seq nan: \"nan\" is not an integer; expected an integer from 1 to 65536");
  EXPECT_EQ(rejection(integers, "0"),
            "--seq 0: 0 is too small; expected an integer from 1 to 65536");
  for (const char* text : {"",
                           ",",
                           "512,",
                           "512,,1024",
                           "-4",
                           "1.5",
                           "1e3",
                           "0x10",
                           "99999999999999999999",
                           "65537",
                           "512 1024",
                           "512:1024",
                           "512:1024:2",
                           "512:1024:x",
                           "512:1024:x1",
                           "512:1024:x0",
                           "512:1024:+0",
                           "512:1024:+-1",
                           "1024:512:x2",
                           "1:65536:+nan",
                           "a:b:x2",
                           "1:2:x2:x2",
                           ":",
                           "inf"}) {
    const std::string message = rejection(integers, text);
    EXPECT_TRUE(message.starts_with("--seq ")) << '"' << text << "\": " << message;
    EXPECT_FALSE(test::contains(message, "\n"));
  }
  for (const char* text : {"nan", "inf", "-1", "0:1:x2", "1e999", "101", "1:2:+1e-9"}) {
    EXPECT_FALSE(rejection(reals, text).empty()) << text;
  }
  EXPECT_EQ(rejection(choices, "f64"), "--dtype f64: \"f64\" is unknown; expected f32, bf16");
}

TEST(Axes, ReadsTiles) {
  EXPECT_EQ(parse_tiles({"tile", "64x32,auto,64x32", "--tile"}),
            (std::vector<Setting>{{64, 32}, {}}));
  for (const char* text : {"64", "64x", "0x64", "64x0", "nanx4", "-1x4", "4x4x4", "", "auto,"}) {
    EXPECT_FALSE(test::message_of([&] {
                   (void)parse_tiles({"tile", text, "--tile"});
                 }).empty())
        << text;
  }
}

TEST(Axes, NamesNearKeys) {
  const std::vector<std::string> known{"seq", "seq_q", "heads", "head_dim"};
  EXPECT_EQ(suggestion("sqe", known), "did you mean seq?");
  EXPECT_EQ(suggestion("had_dim", known), "did you mean head_dim?");
  EXPECT_EQ(suggestion("window", known), "");
  EXPECT_EQ(suggestion("num_heads", known), "did you mean heads?");
  EXPECT_EQ(suggestion("Head-Dim", known), "did you mean head_dim?");
  EXPECT_EQ(suggestion("sequence_length", known), "did you mean seq?");
  EXPECT_EQ(suggestion("", known), "");
  EXPECT_EQ(suggestion("x", std::vector<std::string>{}), "");
}

TEST(Axes, NamesWithTheSamePartsAreNear) {
  const std::vector<std::string> known{"--batch", "--block-size", "--micro-batches"};
  EXPECT_EQ(suggestion("--batch-count", known), "did you mean --batch?");
  EXPECT_EQ(suggestion("--size-of-block", known), "did you mean --block-size?");
  const std::vector<std::string> norm{"--tokens", "--hidden", "--seed", "--eps"};
  EXPECT_EQ(suggestion("--seq", norm), "did you mean --tokens?");
}

TEST(Axes, ReadsOtherNamesOfValues) {
  EXPECT_EQ(parse_integers("1k,2K,64k"), (std::vector<std::int64_t>{1024, 2048, 65536}));
  EXPECT_EQ(parse_integers("1k:4k:x2").size(), 3U);
  EXPECT_FALSE(rejection(integers, "true").empty());
  const AxisSpec causal{.name = "causal", .fallback = std::int64_t{0}, .minimum = 0, .maximum = 1};
  EXPECT_EQ(parse_axis(causal, {"causal", "true,0,YES,no", "--causal"}),
            (std::vector<AxisValue>{std::int64_t{1}, std::int64_t{0}}));
  EXPECT_EQ(parse_axis(choices, {"dtype", "float32,bfloat16,fp32", "--dtype"}),
            (std::vector<AxisValue>{std::string("f32"), std::string("bf16")}));
  EXPECT_FALSE(rejection(choices, "half").empty());  // f16 is none of its choices
  EXPECT_EQ(parse_count("--n", "4k", 1, 1 << 20), 4096);
  EXPECT_EQ(parse_count("--n", "yes", 0, 1), 1);
  for (const char* text : {"k", "1kk", "9223372036854775807k", "-k", "1 k", "0x1k", "1.5k"}) {
    EXPECT_FALSE(parse_size(text).problem.empty()) << text;
  }
}

TEST(Text, ReadsLikePeopleWrite) {
  EXPECT_EQ(human_bytes(34.36e9), "34.4 GB");
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(999.7e3), "1.00 MB");
  EXPECT_EQ(human_seconds(3.214e-3), "3.21 ms");
  EXPECT_EQ(human_duration(200), "3 min");
  EXPECT_EQ(human_duration(7200 + 1200), "2 h 20 min");
  EXPECT_EQ(truncated("a\xC3\xA9", 2), "a");
  EXPECT_EQ(io::impl::escaped("a\x1b[2J \xC3\xA9\xFF\xC2\x9B\x7F\r"),
            "a\\x1b[2J \xC3\xA9\\xff\\xc2\\x9b\\x7f\\x0d");
}

RC_GTEST_PROP(AxesProperty, ListsReadBackWhatWasWritten, ()) {
  const auto values =
      *rc::gen::unique<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(1, 65537));
  RC_PRE(!values.empty());
  std::string text;
  for (const std::int64_t value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
  RC_ASSERT(parse_integers(text) == values);
}

RC_GTEST_PROP(AxesProperty, RangesHoldEveryStepAndNothingBeyond, ()) {
  const auto first = *rc::gen::inRange<std::int64_t>(1, 1000);
  const auto last = first + *rc::gen::inRange<std::int64_t>(0, 2000);
  const auto step = *rc::gen::inRange<std::int64_t>(1, 300);
  const auto values = parse_integers(std::to_string(first) + ":" + std::to_string(last) + ":+" +
                                     std::to_string(step));
  RC_ASSERT(static_cast<std::int64_t>(values.size()) == (last - first) / step + 1);
  for (std::size_t i = 0; i < values.size(); ++i) {
    RC_ASSERT(values[i] == first + static_cast<std::int64_t>(i) * step);
  }
}

RC_GTEST_PROP(AxesProperty, AnyTextIsReadOrRejectedInOneLine, ()) {
  const auto text = *rc::gen::container<std::string>(
      rc::gen::elementOf(std::string("0123456789,:x+-. nae\n\x1B\x7F\xC3")));
  const std::string message = rejection(integers, text);
  RC_ASSERT(message.empty() || test::complaint_about_line(message) == "");
  RC_ASSERT(message.size() < 400);
}

}  // namespace
}  // namespace katt::bench
