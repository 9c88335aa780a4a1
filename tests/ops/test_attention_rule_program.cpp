#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "ops/attention/rules/program.hpp"

// Programs of score rules, by hand: blocks of both layouts, indices outside of a tensor, gradients of
// a tensor, and what is no program. tests/python runs random ones against NumPy.
namespace katt::attention {
namespace {

using Words = std::vector<std::int32_t>;

constexpr std::int32_t at(Level level, int number) {
  return static_cast<std::int32_t>(level) * 65536 + number;
}
constexpr std::int32_t score = at(Level::score, 0), gradient = at(Level::score, 1);
constexpr std::int32_t made = at(Level::score, 2), head = at(Level::row, 0);
constexpr std::int32_t query = at(Level::row, 1), slope = at(Level::row, 2),
                       key = at(Level::key, 0);

struct Code {
  Words words{};

  Code& add(Operation operation, Type type, Level level, std::int32_t result, std::int32_t a,
            std::int32_t b = 0, std::int32_t c = 0) {
    words.insert(words.end(),
                 {static_cast<std::int32_t>(operation), static_cast<std::int32_t>(type),
                  static_cast<std::int32_t>(level), result, a, b, c});
    return *this;
  }
};

const std::vector<float> slopes{0.5F, -0.25F, 2.0F};

Captured slopes_of_heads() {
  return {.data = slopes.data(), .type = Type::real, .extent = {3}, .stride = {1}};
}

/// score − slopes[head] · (query − key); `place` of the index of slopes.
Program alibi(std::int32_t place = 0) {
  Code code;
  code.add(Operation::gather, Type::real, Level::row, slope, 0, 0, 1)
      .add(Operation::subtract, Type::index, Level::score, made, query, key)
      .add(Operation::to_real, Type::index, Level::score, made, made)
      .add(Operation::multiply, Type::real, Level::score, made, slope, made)
      .add(Operation::subtract, Type::real, Level::score, made, score, made);
  return {code.words, {head, place}, {}, {made}, {1, 3, 1, 3}, {slopes_of_heads()}};
}

struct Rows {
  std::vector<std::int32_t> heads{}, queries{};

  explicit Rows(int count) {
    for (int r = 0; r < count; ++r) {
      heads.push_back(r % 3);
      queries.push_back(10 + r / 3);
    }
  }
};

/// Runs ALiBi on a block whose lines of 16 scores lie apart or not, and looks at all numbers there.
void expect_alibi(bool keys_inner, bool apart, int rows, int keys) {
  const Program program = alibi();
  const Rows of(rows);
  const int inner = keys_inner ? keys : rows;
  const int outer = keys_inner ? rows : keys;
  const std::int64_t stride = apart ? 16 : inner + 16;
  const std::int64_t vector = apart ? outer * 16 + 16 : 16;
  std::vector<float> scores(static_cast<std::size_t>(outer * stride + inner / 16 * vector), 3.0F);
  std::vector<float> expected = scores;
  for (int o = 0; o < outer; ++o) {
    for (int i = 0; i < inner; ++i) {
      const auto row = static_cast<std::size_t>(keys_inner ? o : i);
      expected[static_cast<std::size_t>(o * stride + i / 16 * vector + i % 16)] -=
          slopes[static_cast<std::size_t>(of.heads[row])] *
          static_cast<float>(of.queries[row] - 5 - (keys_inner ? i : o));
    }
  }
  program.run({.batch = 0,
               .rows = rows,
               .keys = keys,
               .head = of.heads.data(),
               .query = of.queries.data(),
               .key = 5,
               .last_key = 1000,
               .keys_inner = keys_inner,
               .stride = stride,
               .vector = vector,
               .score = scores.data()});
  EXPECT_EQ(scores, expected) << rows << " rows, " << keys << " keys, " << keys_inner << apart;
  EXPECT_FALSE(program.went_outside());
}

TEST(RuleProgram, ComputesBlocksOfEitherLayout) {
  for (const bool keys_inner : {true, false}) {
    for (const bool apart : {true, false}) {
      for (const int rows : {16, 32, 48}) {
        for (const int keys : {16, 32, 128}) expect_alibi(keys_inner, apart, rows, keys);
      }
    }
  }
}

TEST(RuleProgram, ExponentialsReachTheLargestNumber) {
  Code code;
  code.add(Operation::exp, Type::real, Level::score, made, score);
  const Program program{code.words, {}, {}, {made}, {1, 2, 1, 3}, {slopes_of_heads()}};
  const Rows of(16);
  std::vector<float> scores(256, 0.0F);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    scores[i] = 86.8F + 0.0075F * static_cast<float>(i);  // to 88.71; e^88.72 is infinite
  }
  const std::vector<float> exponents = scores;
  program.run({.rows = 16,
               .keys = 16,
               .head = of.heads.data(),
               .query = of.queries.data(),
               .last_key = 15,
               .stride = 16,
               .score = scores.data()});
  for (std::size_t i = 0; i < scores.size(); ++i) {
    EXPECT_NEAR(scores[i] / std::exp(static_cast<double>(exponents[i])), 1.0, 4e-7) << exponents[i];
  }
}

TEST(RuleProgram, NotesAnIndexOutsideOfItsTensor) {
  const std::vector<std::int32_t> queries(16, 0);
  std::vector<float> scores(256, 1.0F);
  for (const std::int32_t outside : {3, -4, std::numeric_limits<std::int32_t>::max()}) {
    const Program program = alibi(2);
    const auto run = [&](std::int32_t of_head) {
      const std::vector<std::int32_t> heads(16, of_head);
      program.run({.rows = 16,
                   .keys = 16,
                   .head = heads.data(),
                   .query = queries.data(),
                   .last_key = 15,
                   .stride = 16,
                   .score = scores.data()});
    };
    run(2);
    run(-3);  // counts from the end
    EXPECT_FALSE(program.went_outside());
    run(outside);
    EXPECT_TRUE(program.went_outside());
  }
}

TEST(RuleProgram, AddsUpTheGradientOfATensor) {
  Code code;
  code.add(Operation::scatter, Type::real, Level::score, gradient, 0, 0, 1);
  const Program program{code.words, {head, 0}, {}, {}, {1, 2, 1, 2}, {slopes_of_heads()}};
  EXPECT_TRUE(program.adds_to(0));
  EXPECT_TRUE(program.is_split_by({Level::row, 0}));
  EXPECT_FALSE(program.is_split_by({Level::row, 1}));
  const Rows of(32);
  std::vector<float> scores(1024, 0.0F);
  const std::vector<float> gradients(1024, 1.0F);
  for (const bool keys_inner : {true, false}) {
    std::vector<float> sums(3, 0.0F);
    float* const targets[]{sums.data()};
    // Keys 20 … 31 do not exist.
    program.run({.rows = 32,
                 .keys = 32,
                 .head = of.heads.data(),
                 .query = of.queries.data(),
                 .last_key = 19,
                 .keys_inner = keys_inner,
                 .stride = 32,
                 .score = scores.data()},
                nullptr, gradients.data(), targets);
    EXPECT_EQ(sums, (std::vector<float>{220.0F, 220.0F, 200.0F}));
  }
}

TEST(RuleProgram, RefusesWhatIsNoProgram) {
  const auto refused = [](const Words& code, const Words& indices, const Words& results,
                          const Words& registers) {
    try {
      const Program program(code, indices, {}, results, registers, {slopes_of_heads()});
    } catch (const InputError& error) {
      return std::string(error.what()).find("score_rule: holds ") == 0;
    }
    return false;
  };
  Code plain, levels, tensor;
  plain.add(Operation::exp, Type::real, Level::score, made, score);
  EXPECT_FALSE(refused(plain.words, {}, {made}, {1, 2, 1, 3}));
  EXPECT_TRUE(refused(plain.words, {}, {made}, {1, 2, 1, 2}));  // a register too many
  EXPECT_TRUE(refused(plain.words, {}, {made}, {1, 2, 1}));
  EXPECT_TRUE(refused(plain.words, {}, {made, made, made}, {1, 2, 1, 3}));
  EXPECT_TRUE(refused(plain.words, {}, {-1}, {1, 2, 1, 3}));
  Words cut = plain.words;
  cut.pop_back();
  EXPECT_TRUE(refused(cut, {}, {made}, {1, 2, 1, 3}));
  for (const std::int32_t operation : {-1, 0, 99}) {
    Words unknown = plain.words;
    unknown[0] = operation;
    EXPECT_TRUE(refused(unknown, {}, {made}, {1, 2, 1, 3})) << operation;
  }
  levels.add(Operation::exp, Type::real, Level::score, made, score)
      .add(Operation::exp, Type::real, Level::row, slope, slope);
  EXPECT_TRUE(refused(levels.words, {}, {made}, {1, 3, 1, 3}));
  tensor.add(Operation::gather, Type::real, Level::row, slope, 1, 0, 1);
  EXPECT_TRUE(refused(tensor.words, {head, 0}, {slope}, {1, 3, 1, 2}));
  Code indices;
  indices.add(Operation::gather, Type::real, Level::row, slope, 0, 0, 2);
  EXPECT_TRUE(refused(indices.words, {head, 0, head, 0}, {slope}, {1, 3, 1, 2}));
  Code far;
  far.add(Operation::gather, Type::real, Level::row, slope, 0, 2147483647, 1);
  EXPECT_TRUE(refused(far.words, {head, 0}, {slope}, {1, 3, 1, 2}));
}

}  // namespace
}  // namespace katt::attention
