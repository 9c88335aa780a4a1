#include "ops/attention/bench/exact_program.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>

#include "core/error.hpp"

namespace katt::attention {

namespace {

/// A register: a real with its derivative by the score, or an integer. A constant is whatever the
/// instruction that reads it takes it for.
struct Value {
  double real = 0;
  std::int64_t index = 0;
  double slope = 0;
};

constexpr int words_of_instruction = 7;

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) return 0;
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

/// A function of a, b and c with these partial derivatives.
Value function(double real, const Value& a, double by_a, const Value& b = {}, double by_b = 0) {
  // A number that does not depend on the score has no slope, whatever the derivative is.
  const auto share = [](double slope, double by) { return slope == 0 ? 0 : slope * by; };
  return {.real = real, .slope = share(a.slope, by_a) + share(b.slope, by_b)};
}

/// The smaller of two, the larger with sign −1: both have half of the slope where they are equal.
Value extreme(double sign, const Value& a, const Value& b) {
  const double x = sign * a.real, y = sign * b.real;
  if (x == y) return function(a.real, a, 0.5, b, 0.5);
  return x < y || std::isnan(x) ? a : b;
}

Value real_result(Operation operation, const Value& a, const Value& b, const Value& c) {
  const double x = a.real, y = b.real;
  switch (operation) {
    case Operation::add: return function(x + y, a, 1, b, 1);
    case Operation::subtract: return function(x - y, a, 1, b, -1);
    case Operation::multiply: return function(x * y, a, y, b, x);
    case Operation::negative: return function(-x, a, -1);
    case Operation::absolute: return function(std::abs(x), a, x > 0 ? 1 : x < 0 ? -1 : 0);
    case Operation::minimum: return extreme(1, a, b);
    case Operation::maximum: return extreme(-1, a, b);
    case Operation::divide: return function(x / y, a, 1 / y, b, -x / (y * y));
    case Operation::fma: {
      Value made = function(x * y + c.real, a, y, b, x);
      made.slope += c.slope;
      return made;
    }
    case Operation::exp: return function(std::exp(x), a, std::exp(x));
    case Operation::log: return function(std::log(x), a, 1 / x);
    case Operation::tanh: return function(std::tanh(x), a, 1 - std::tanh(x) * std::tanh(x));
    case Operation::sigmoid: {
      const double sigmoid = 1 / (1 + std::exp(-x));
      return function(sigmoid, a, sigmoid * (1 - sigmoid));
    }
    case Operation::sqrt: return function(std::sqrt(x), a, 0.5 / std::sqrt(x));
    case Operation::floor: return {.real = std::floor(x)};
    default: return {};
  }
}

std::int64_t index_result(Operation operation, std::int64_t a, std::int64_t b) {
  switch (operation) {
    case Operation::add: return a + b;
    case Operation::subtract: return a - b;
    case Operation::multiply: return a * b;
    case Operation::negative: return -a;
    case Operation::absolute: return std::abs(a);
    case Operation::minimum: return std::min(a, b);
    case Operation::maximum: return std::max(a, b);
    case Operation::floor_divide: return floor_divide(a, b);
    case Operation::remainder: return b == 0 ? 0 : a - floor_divide(a, b) * b;
    case Operation::land: return a & b;
    case Operation::lor: return a | b;
    case Operation::lnot: return a ^ 1;
    default: return 0;
  }
}

template <class T>
bool is_true(Operation operation, T a, T b) {
  switch (operation) {
    case Operation::equal: return a == b;
    case Operation::not_equal: return a != b;
    case Operation::less: return a < b;
    default: return a <= b;
  }
}

/// The registers of one score.
class Registers {
 public:
  Registers(const ProgramParts& parts, double score, const ExactPlace& at) : parts_(parts) {
    for (std::size_t level = 0; level < levels_.size(); ++level) {
      levels_[level].resize(static_cast<std::size_t>(parts.registers[level]));
    }
    levels_[0][0].index = at.batch;
    for (std::size_t n = 0; n < parts.constants.size(); ++n) {
      const std::int32_t word = parts.constants[n];
      levels_[0][n + 1] = {.real = double{std::bit_cast<float>(word)}, .index = word};
    }
    levels_[1][0].index = at.head;
    levels_[1][1].index = at.query;
    levels_[2][0].index = at.key;
    levels_[3][0] = {.real = score, .slope = 1};
  }

  Value& of(std::int32_t number) {
    return levels_[static_cast<std::size_t>(number >> 16)]
                  [static_cast<std::size_t>(number & 0xFFFF)];
  }
  void run(const std::int32_t* word) {
    const auto operation = static_cast<Operation>(word[0]);
    if (operation != Operation::scatter) of(word[3]) = made(operation, word);
  }

 private:
  Value made(Operation operation, const std::int32_t* word) {
    if (operation == Operation::gather) return gathered(word);
    const bool of_reals = static_cast<Type>(word[1]) == Type::real;
    const Value a = of(word[4]);
    const Value b = of(word[5]);
    switch (operation) {
      case Operation::where: return a.index != 0 ? b : of(word[6]);
      case Operation::to_real: return {.real = static_cast<double>(a.index)};
      case Operation::to_index:
        return {.index = of_reals ? static_cast<std::int64_t>(a.real) : a.index};
      case Operation::equal:
      case Operation::not_equal:
      case Operation::less:
      case Operation::less_equal:
        return {.index = of_reals ? is_true(operation, a.real, b.real)
                                  : is_true(operation, a.index, b.index)};
      default:
        if (of_reals) return real_result(operation, a, b, of(word[6]));
        return {.index = index_result(operation, a.index, b.index)};
    }
  }

  Value gathered(const std::int32_t* word) {
    const Captured& tensor = parts_.tensors[static_cast<std::size_t>(word[4])];
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < tensor.extent.size(); ++axis) {
      const std::size_t entry = static_cast<std::size_t>(word[5]) + axis;
      const std::int64_t index = of(parts_.indices[2 * entry]).index;
      const std::int64_t extent = tensor.extent[axis];
      if (index < -extent || index >= extent) {
        throw InputError("score_rule: takes index " + std::to_string(index) + " of an axis of " +
                         std::to_string(extent) + " elements");
      }
      offset += (index < 0 ? index + extent : index) * tensor.stride[axis];
    }
    switch (tensor.type) {
      case Type::real: return {.real = double{static_cast<const float*>(tensor.data)[offset]}};
      case Type::index: return {.index = static_cast<const std::int32_t*>(tensor.data)[offset]};
      default: return {.index = static_cast<const std::uint8_t*>(tensor.data)[offset] != 0 ? 1 : 0};
    }
  }

  const ProgramParts& parts_;
  std::array<std::vector<Value>, 4> levels_;
};

}  // namespace

ExactScore ExactProgram::run(double score, const ExactPlace& at) const {
  Registers registers(*parts_, score, at);
  for (std::size_t i = 0; i < parts_->code.size(); i += words_of_instruction) {
    registers.run(&parts_->code[i]);
  }
  const Value& result = registers.of(parts_->results[0]);
  // A score that the rule hides has no gradient, not even where its slope is NaN.
  const bool is_hidden = result.real == -std::numeric_limits<double>::infinity();
  return {result.real, is_hidden ? 0 : result.slope};
}

}  // namespace katt::attention
