#include "ops/attention/bench/exact_program.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <string>

#include "core/error.hpp"

namespace katt::attention {

namespace {

/// A register: reals in float64. A constant is whatever the instruction that reads it takes it for.
struct Value {
  double real = 0;
  std::int64_t index = 0;
};

constexpr int words_of_instruction = 7;

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) return 0;
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

double real_result(Operation operation, double a, double b, double c) {
  switch (operation) {
    case Operation::add: return a + b;
    case Operation::subtract: return a - b;
    case Operation::multiply: return a * b;
    case Operation::negative: return -a;
    case Operation::absolute: return std::abs(a);
    case Operation::minimum: return a < b || std::isnan(a) ? a : b;
    case Operation::maximum: return a > b || std::isnan(a) ? a : b;
    case Operation::divide: return a / b;
    case Operation::fma: return a * b + c;
    case Operation::exp: return std::exp(a);
    case Operation::log: return std::log(a);
    case Operation::tanh: return std::tanh(a);
    case Operation::sigmoid: return 1 / (1 + std::exp(-a));
    case Operation::sqrt: return std::sqrt(a);
    case Operation::floor: return std::floor(a);
    default: return 0;
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
      levels_[0][n + 1] = {double{std::bit_cast<float>(word)}, word};
    }
    levels_[1][0].index = at.head;
    levels_[1][1].index = at.query;
    levels_[2][0].index = at.key;
    levels_[3][0].real = score;
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
        return {.real = of_reals ? real_result(operation, a.real, b.real, of(word[6]).real) : 0,
                .index = of_reals ? 0 : index_result(operation, a.index, b.index)};
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

std::vector<double> ExactProgram::run(double score, const ExactPlace& at) const {
  Registers registers(*parts_, score, at);
  for (std::size_t i = 0; i < parts_->code.size(); i += words_of_instruction) {
    registers.run(&parts_->code[i]);
  }
  std::vector<double> results;
  for (const std::int32_t number : parts_->results) results.push_back(registers.of(number).real);
  return results;
}

}  // namespace katt::attention
