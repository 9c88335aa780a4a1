#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/attention/rules/program.hpp"

/// How a program lies in memory while it runs; of program.cpp and program_run.cpp.
namespace katt::attention {

namespace impl {

inline constexpr int lanes = 16;           // of an instruction, whatever the machine's vectors are
inline constexpr int scores_of_l1 = 6144;  // of all registers: 24 KiB

/// Sixteen numbers of 32 bits: reals by their bits.
union Word {
  float real;
  std::int32_t index;
};
static_assert(sizeof(Word) == 4);

/// Where the vectors of an operand lie: vector v of line l is at data + l · line + v · vector.
struct Operand {
  Word* data = nullptr;
  std::ptrdiff_t line = 0;
  std::ptrdiff_t vector = 0;

  Word* at(int l, int v) const { return data + l * line + v * vector; }
};

constexpr int operands_of(Operation operation) {
  switch (operation) {
    case Operation::negative:
    case Operation::absolute:
    case Operation::exp:
    case Operation::log:
    case Operation::tanh:
    case Operation::sigmoid:
    case Operation::sqrt:
    case Operation::floor:
    case Operation::lnot:
    case Operation::to_real:
    case Operation::to_index: return 1;
    case Operation::fma:
    case Operation::where: return 3;
    case Operation::gather:
    case Operation::scatter: return 0;
    default: return 2;
  }
}

}  // namespace impl

/// The registers while a block is run. Their places are those of the last block of the same extents.
struct Program::Frame {
  std::int64_t program = 0;
  int rows = 0, keys = 0;
  bool keys_inner = true;
  std::array<std::vector<impl::Operand>, 4> registers;
  std::vector<impl::Operand> outer;  ///< those of the outer level, without the spread over lanes
  std::vector<impl::Word> memory;
  impl::Operand offsets;         ///< of elements of a tensor that a gather reads
  impl::Word* spread = nullptr;  ///< where those of the outer level are spread, in memory

  const ScoreBlock* block = nullptr;
  float* const* targets = nullptr;
  int lines = 1;    ///< of the instructions that run now
  int vectors = 1;  ///< of a line
  int first_line = 0;
  bool outside = false;

  std::vector<impl::Operand>& of(Level level) { return registers[static_cast<std::size_t>(level)]; }
  impl::Operand& of(const Register& from) {
    return of(from.level)[static_cast<std::size_t>(from.number)];
  }
};

}  // namespace katt::attention
