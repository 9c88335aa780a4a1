#include "ops/attention/rules/program.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "tile/vec/vec.hpp"

namespace katt::attention {

namespace {

constexpr int lanes = 16;             // of an instruction, whatever the machine's vectors are
constexpr int registers_limit = 512;  // of a level
constexpr int block_scores = 256;     // of a register: 1 KiB, so that all registers stay in L1

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

[[noreturn]] void refuse(const std::string& what) {
  throw InputError("score_rule: holds " + what + ", expected a program of katt._rules");
}

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

template <class F>
void with_vectors(Word* to, const Word* from, const F& f) {
  using Vec = tile::VecOf<Host>;
  constexpr int width = tile::lanes_v<Host>;
  for (int i = 0; i < lanes; i += width) {
    tile::store(&to[i].real, Vec(f(tile::load<Vec>(&from[i].real))));
  }
}

std::int32_t floor_divide(std::int32_t a, std::int32_t b) {
  // Exact: 53 bits hold the quotient of two integers of 32 near enough to tell its floor.
  return b == 0 ? 0 : static_cast<std::int32_t>(std::floor(static_cast<double>(a) / b));
}

/// As NumPy and PyTorch: a NaN stays.
float least(float a, float b) { return a < b || a != a ? a : b; }
float largest(float a, float b) { return a > b || a != a ? a : b; }

constexpr float log2e = 1.44269504088896340736F;

}  // namespace

/// The registers while a block is run. Their places are those of the last block of the same extents.
struct Program::Frame {
  std::int64_t program = 0;
  int rows = 0, keys = 0;
  bool keys_inner = true;
  std::array<std::vector<Operand>, 4> registers;
  std::vector<Operand> outer;  ///< those of the outer level, without the spread over lanes
  std::vector<Word> memory;
  Word* spread = nullptr;  ///< where those of the outer level are spread, in memory

  const ScoreBlock* block = nullptr;
  float* const* targets = nullptr;
  int lines = 1;    ///< of the instructions that run now
  int vectors = 1;  ///< of a line
  int first_line = 0;
  bool outside = false;

  std::vector<Operand>& of(Level level) { return registers[static_cast<std::size_t>(level)]; }
  Operand& of(const Register& from) {
    return of(from.level)[static_cast<std::size_t>(from.number)];
  }
};

namespace {

void fill(Word* to, std::int32_t value) {
  for (int i = 0; i < lanes; ++i) to[i].index = value;
}
constexpr int up(int count) { return (count + lanes - 1) / lanes * lanes; }

std::int64_t next_number() {
  static std::atomic<std::int64_t> last = 0;
  return ++last;
}

}  // namespace

Program::Program(const std::vector<std::int32_t>& code, const std::vector<std::int32_t>& indices,
                 const std::vector<std::int32_t>& constants,
                 const std::vector<std::int32_t>& results,
                 const std::vector<std::int32_t>& registers, std::vector<Captured> tensors)
    : number_(next_number()), constants_(constants), tensors_(std::move(tensors)) {
  if (registers.size() != registers_.size()) refuse("no register counts");
  for (std::size_t level = 0; level < registers.size(); ++level) {
    const int least_count = level == 1 || level == 3 ? 2 : 1;
    if (registers[level] < least_count || registers[level] > registers_limit) {
      refuse(std::to_string(registers[level]) + " registers");
    }
    registers_[level] = registers[level];
  }
  if (static_cast<int>(constants_.size()) >= registers_[0]) refuse("more constants than registers");
  const auto read = [this](std::int32_t number) {
    const Register of{static_cast<Level>(number >> 16), number & 0xFFFF};
    if (number < 0 || number >> 16 > 3) refuse("register " + std::to_string(number));
    check(of);
    return of;
  };
  if (indices.size() % 2 != 0 || code.size() % 7 != 0) refuse("part of an instruction");
  for (std::size_t i = 0; i < indices.size(); i += 2) {
    if (indices[i + 1] < 0 || indices[i + 1] > 2) refuse("an index of no place");
    indices_.push_back({read(indices[i]), static_cast<Index::Place>(indices[i + 1])});
  }
  for (const Captured& tensor : tensors_) {
    std::int64_t last = 0;
    for (std::size_t axis = 0; axis < tensor.extent.size(); ++axis) {
      if (tensor.extent[axis] <= 0 || tensor.stride[axis] < 0) refuse("a tensor without elements");
      last += (tensor.extent[axis] - 1) * tensor.stride[axis];
    }
    const bool is_near = last < (std::int64_t{1} << 31) - lanes;
    near_.push_back(is_near);
    std::vector<std::int64_t> dense(tensor.extent.size(), 1);
    for (std::size_t axis = dense.size(); axis-- > 1;) {
      dense[axis - 1] = dense[axis] * tensor.extent[axis];
    }
    dense_.push_back(std::move(dense));
  }
  int level_now = 0;
  for (std::size_t i = 0; i < code.size(); i += 7) {
    const std::int32_t* word = &code[i];
    if (word[0] < static_cast<int>(Operation::add) ||
        word[0] > static_cast<int>(Operation::scatter) || word[1] < 0 || word[1] > 2 ||
        word[2] < level_now || word[2] > 3) {
      refuse("instruction " + std::to_string(i / 7));
    }
    for (; level_now < word[2]; ++level_now) {
      level_begin_[static_cast<std::size_t>(level_now) + 1] = static_cast<int>(code_.size());
    }
    Instruction made{static_cast<Operation>(word[0]), static_cast<Type>(word[1]),
                     static_cast<Level>(word[2]), read(word[3])};
    if (made.operation == Operation::gather || made.operation == Operation::scatter) {
      made.tensor = word[4];
      made.first_index = word[5];
      made.indices = word[6];
      if (made.tensor < 0 || made.tensor >= static_cast<int>(tensors_.size()) ||
          made.first_index < 0 || made.indices < 0 ||
          made.first_index + made.indices > static_cast<int>(indices_.size()) ||
          made.indices !=
              static_cast<int>(tensors_[static_cast<std::size_t>(made.tensor)].extent.size())) {
        refuse("a tensor that is not there");
      }
    } else {
      for (int n = 0; n < operands_of(made.operation); ++n) {
        made.operands[static_cast<std::size_t>(n)] = read(word[4 + n]);
      }
    }
    if (made.operation != Operation::scatter && made.result.level != made.level) {
      refuse("a result of another level");
    }
    code_.push_back(made);
  }
  for (; level_now < 4; ++level_now) {
    level_begin_[static_cast<std::size_t>(level_now) + 1] = static_cast<int>(code_.size());
  }
  for (const std::int32_t number : results) results_.push_back(read(number));
  if (results_.size() > 2) refuse("more than two results");
  // The first result may be made where the scores are, unless these are read later.
  constexpr Register score{Level::score, 0};
  if (!results_.empty() && results_[0].level == Level::score && results_[0].number >= 2) {
    const auto writes = [&](const Instruction& of) {
      return of.operation != Operation::scatter && of.result == results_[0];
    };
    const auto reads = [&](const Instruction& of) {
      if (of.operation == Operation::scatter) return of.result == score;
      const auto end = of.operands.begin() + operands_of(of.operation);
      return std::find(of.operands.begin(), end, score) != end;
    };
    const auto first = std::find_if(code_.begin(), code_.end(), writes);
    in_place_ = first != code_.end() && std::none_of(first + 1, code_.end(), reads) &&
                (results_.size() < 2 || results_[1] != score);
  }
}

void Program::check(Register of) const {
  if (of.number >= registers_[static_cast<std::size_t>(of.level)]) {
    refuse("register " + std::to_string(of.number));
  }
}

bool Program::slope_is_one() const {
  if (results_.size() != 2 || results_[1].level != Level::block) return false;
  const int constant = results_[1].number - 1;
  return constant >= 0 && constant < static_cast<int>(constants_.size()) &&
         std::bit_cast<float>(constants_[static_cast<std::size_t>(constant)]) == 1.0F;
}

bool Program::adds_to(int tensor) const {
  return std::any_of(code_.begin(), code_.end(), [&](const Instruction& of) {
    return of.operation == Operation::scatter && of.tensor == tensor;
  });
}

bool Program::is_split_by(Register input) const {
  for (int tensor = 0; tensor < static_cast<int>(tensors_.size()); ++tensor) {
    if (!adds_to(tensor)) continue;
    const auto axes = static_cast<int>(tensors_[static_cast<std::size_t>(tensor)].extent.size());
    bool split = false;
    for (int axis = 0; axis < axes && !split; ++axis) {
      split = std::all_of(code_.begin(), code_.end(), [&](const Instruction& of) {
        if (of.operation != Operation::scatter || of.tensor != tensor) return true;
        const Index& index = indices_[static_cast<std::size_t>(of.first_index + axis)];
        return index.from == input && index.place == Index::Place::inside;
      });
    }
    if (!split) return false;
  }
  return true;
}

/// Gives the registers their places. Those of `block` hold 16 equal numbers; those of the outer level
/// also lie as lines of 16 equal numbers.
void Program::lay_out(Frame& frame, const ScoreBlock& block, int lines) const {
  const int inner = block.keys_inner ? block.keys : block.rows;
  const auto outer = static_cast<std::size_t>(block.keys_inner ? Level::row : Level::key);
  const std::array<int, 4> words{lanes, up(block.rows), up(block.keys), lines * inner};
  std::size_t size =
      static_cast<std::size_t>(registers_[outer]) * static_cast<std::size_t>(lines) * lanes;
  for (std::size_t l = 0; l < 4; ++l) {
    size += static_cast<std::size_t>(registers_[l]) * static_cast<std::size_t>(words[l]);
  }
  frame.memory.resize(size + lanes);
  auto* next = reinterpret_cast<Word*>(
      (reinterpret_cast<std::uintptr_t>(frame.memory.data()) + 63) / 64 * 64);
  for (std::size_t l = 0; l < 4; ++l) {
    frame.registers[l].assign(static_cast<std::size_t>(registers_[l]), {});
    for (Operand& of : frame.registers[l]) {
      of = {next, l == 3 ? inner : 0, l == 0 ? 0 : lanes};
      next += words[l];
    }
  }
  frame.outer = frame.registers[outer];
  for (std::size_t n = 0; n < constants_.size(); ++n) {
    fill(frame.of(Level::block)[n + 1].data, constants_[n]);
  }
  frame.spread = next;
  frame.program = number_;
  frame.rows = block.rows;
  frame.keys = block.keys;
  frame.keys_inner = block.keys_inner;
}

Program::Frame& Program::frame_of(const ScoreBlock& block, int lines) const {
  // A pass runs a few programs in turn.
  thread_local std::array<Frame, 8> frames;
  thread_local std::size_t next = 0;
  for (Frame& frame : frames) {
    if (frame.program == number_ && frame.rows == block.rows && frame.keys == block.keys &&
        frame.keys_inner == block.keys_inner) {
      return frame;
    }
  }
  Frame& frame = frames[next++ % frames.size()];
  lay_out(frame, block, lines);
  return frame;
}

void Program::run(const ScoreBlock& block, float* slope, const float* gradient,
                  float* const* targets) const {
  const int inner = block.keys_inner ? block.keys : block.rows;
  const int outer = block.keys_inner ? block.rows : block.keys;
  const int lines = std::clamp(block_scores / inner, 1, outer);
  Frame& frame = frame_of(block, lines);
  frame.block = &block;
  frame.targets = targets;
  frame.outside = false;
  std::vector<Operand>& outer_registers = frame.of(block.keys_inner ? Level::row : Level::key);
  outer_registers = frame.outer;

  fill(frame.of(Level::block)[0].data, static_cast<std::int32_t>(block.batch));
  Word* const head = frame.of(Level::row)[0].data;
  Word* const query = frame.of(Level::row)[1].data;
  for (int r = 0; r < block.rows; ++r) {
    head[r].index = block.head[r];
    query[r].index = block.query[r];
  }
  for (int r = block.rows; r < up(block.rows); ++r) {
    head[r] = head[block.rows - 1];
    query[r] = query[block.rows - 1];
  }
  Word* const key = frame.of(Level::key)[0].data;
  const auto first_key = static_cast<std::int32_t>(block.key);
  const auto last_key = static_cast<std::int32_t>(std::max<std::int64_t>(0, block.last_key));
  for (int j = 0; j < up(block.keys); ++j) key[j].index = std::min(first_key + j, last_key);

  const auto run_of = [&](Level level, int count_lines, int count_vectors) {
    frame.lines = count_lines;
    frame.vectors = count_vectors;
    const auto l = static_cast<std::size_t>(level);
    run_level(frame, code_.data() + level_begin_[l], code_.data() + level_begin_[l + 1]);
  };
  run_of(Level::block, 1, 1);
  run_of(Level::row, 1, up(block.rows) / lanes);
  run_of(Level::key, 1, up(block.keys) / lanes);

  const auto result_at = [&](const Register& of, float* to, int count) {
    const Operand& from = frame.of(of);
    for (int l = 0; l < count; ++l) {
      for (int v = 0; v < inner / lanes; ++v) {
        const Word* word = from.at(l, v);
        float* target = to + l * block.stride + v * lanes;
        for (int i = 0; i < lanes; ++i) target[i] = word[i].real;
      }
    }
  };
  Word* next = frame.spread;
  for (Operand& of : outer_registers) {
    of = {next, lanes, 0};
    next += static_cast<std::ptrdiff_t>(lines) * lanes;
  }
  for (int first = 0; first < outer; first += lines) {
    const int count = std::min(lines, outer - first);
    frame.first_line = first;
    for (std::size_t n = 0; n < outer_registers.size(); ++n) {
      for (int l = 0; l < count; ++l) {
        fill(outer_registers[n].at(l, 0), frame.outer[n].data[first + l].index);
      }
    }
    // The scores are read where they lie, and so is their gradient.
    const auto lying = [&](const float* from) {
      auto* data = const_cast<float*>(from + first * block.stride);
      return Operand{reinterpret_cast<Word*>(data), block.stride, lanes};
    };
    frame.of(Level::score)[0] = lying(block.score);
    if (gradient != nullptr) frame.of(Level::score)[1] = lying(gradient);
    if (in_place_) frame.of(results_[0]) = lying(block.score);
    run_of(Level::score, count, inner / lanes);
    if (results_.size() == 2 && slope != nullptr) {
      result_at(results_[1], slope + first * block.stride, count);
    }
    if (!results_.empty() && !in_place_ && results_[0] != Register{Level::score, 0}) {
      result_at(results_[0], block.score + first * block.stride, count);
    }
  }
  if (frame.outside) outside_.store(true, std::memory_order_relaxed);
}

void Program::run_level(Frame& frame, const Instruction* first, const Instruction* last) const {
  for (; first != last; ++first) {
    if (first->operation == Operation::gather) {
      if (near_[static_cast<std::size_t>(first->tensor)]) {
        gather<std::int32_t>(frame, *first);
      } else {
        gather<std::int64_t>(frame, *first);
      }
    } else if (first->operation == Operation::scatter) {
      scatter(frame, *first);
    } else {
      run_one(frame, *first);
    }
  }
}

void Program::run_one(Frame& frame, const Instruction& instruction) const {
  const Operand to = frame.of(instruction.result);
  const Operand a = frame.of(instruction.operands[0]);
  const Operand b = frame.of(instruction.operands[1]);
  const Operand c = frame.of(instruction.operands[2]);
  const auto each = [&](const auto& f) {
    for (int l = 0; l < frame.lines; ++l) {
      for (int v = 0; v < frame.vectors; ++v) f(to.at(l, v), a.at(l, v), b.at(l, v), c.at(l, v));
    }
  };
  // Results are made beside the operands, whose place they may take, so that the loops are vectors.
  const auto real = [&](const auto& f) {
    each([&](Word* t, const Word* x, const Word* y, const Word* z) {
      float made[lanes];
      for (int i = 0; i < lanes; ++i) made[i] = f(x[i].real, y[i].real, z[i].real);
      for (int i = 0; i < lanes; ++i) t[i].real = made[i];
    });
  };
  const auto index = [&](const auto& f) {
    each([&](Word* t, const Word* x, const Word* y, const Word* z) {
      std::int32_t made[lanes];
      for (int i = 0; i < lanes; ++i) made[i] = f(x[i].index, y[i].index, z[i].index);
      for (int i = 0; i < lanes; ++i) t[i].index = made[i];
    });
  };
  const auto truth = [&](const auto& f) {
    if (instruction.type != Type::real) return index([&](auto x, auto y, auto) { return f(x, y); });
    each([&](Word* t, const Word* x, const Word* y, const Word*) {
      std::int32_t made[lanes];
      for (int i = 0; i < lanes; ++i) made[i] = f(x[i].real, y[i].real);
      for (int i = 0; i < lanes; ++i) t[i].index = made[i];
    });
  };
  const auto vector = [&](const auto& f) {
    each([&](Word* t, const Word* x, const Word*, const Word*) { with_vectors(t, x, f); });
  };
  const bool of_reals = instruction.type == Type::real;
  const auto either = [&](const auto& of_real, const auto& of_index) {
    return of_reals ? real(of_real) : index(of_index);
  };
  // Integers wrap: what Python allows needs no more than 32 bits.
  const auto wrap = [](auto f) {
    return [f](std::int32_t x, std::int32_t y, std::int32_t) {
      return static_cast<std::int32_t>(
          f(static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(y)));
    };
  };
  switch (instruction.operation) {
    case Operation::add:
      return either([](float x, float y, float) { return x + y; },
                    wrap([](auto x, auto y) { return x + y; }));
    case Operation::subtract:
      return either([](float x, float y, float) { return x - y; },
                    wrap([](auto x, auto y) { return x - y; }));
    case Operation::multiply:
      return either([](float x, float y, float) { return x * y; },
                    wrap([](auto x, auto y) { return x * y; }));
    case Operation::negative:
      return either([](float x, float, float) { return -x; },
                    wrap([](auto x, auto) { return 0U - x; }));
    case Operation::absolute:
      return either([](float x, float, float) { return std::fabs(x); },
                    wrap([](auto x, auto) { return x >> 31U != 0 ? 0U - x : x; }));
    case Operation::minimum:
      return either([](float x, float y, float) { return least(x, y); },
                    [](auto x, auto y, auto) { return std::min(x, y); });
    case Operation::maximum:
      return either([](float x, float y, float) { return largest(x, y); },
                    [](auto x, auto y, auto) { return std::max(x, y); });
    case Operation::divide: return real([](float x, float y, float) { return x / y; });
    case Operation::fma: return real([](float x, float y, float z) { return std::fma(x, y, z); });
    case Operation::exp:
      return vector([]<class V>(const V& x) {
        // 2^x of the rounded product alone would be wrong by |x| roundings.
        const V high = x * V(log2e);
        const V low = tile::fma(x, V(log2e), V(V(0.0F) - high)) + x * V(1.92596299112661746887e-8F);
        return tile::exp2(high) * (V(1.0F) + low * V(0.69314718055994530942F));
      });
    case Operation::log: return real([](float x, float, float) { return std::log(x); });
    case Operation::tanh: return vector([](const auto& x) { return tile::tanh(x); });
    case Operation::sigmoid:
      return vector(
          []<class V>(const V& x) { return V(0.5F) + V(0.5F) * tile::tanh(V(x * V(0.5F))); });
    case Operation::sqrt: return real([](float x, float, float) { return std::sqrt(x); });
    case Operation::floor: return real([](float x, float, float) { return std::floor(x); });
    case Operation::floor_divide:
      return index([](auto x, auto y, auto) { return floor_divide(x, y); });
    case Operation::remainder:
      return index([](auto x, auto y, auto) {
        return y == 0 ? 0
                      : static_cast<std::int32_t>(static_cast<std::uint32_t>(x) -
                                                  static_cast<std::uint32_t>(floor_divide(x, y)) *
                                                      static_cast<std::uint32_t>(y));
      });
    case Operation::equal: return truth([](auto x, auto y) { return x == y ? 1 : 0; });
    case Operation::not_equal: return truth([](auto x, auto y) { return x != y ? 1 : 0; });
    case Operation::less: return truth([](auto x, auto y) { return x < y ? 1 : 0; });
    case Operation::less_equal: return truth([](auto x, auto y) { return x <= y ? 1 : 0; });
    case Operation::land: return index([](auto x, auto y, auto) { return x & y; });
    case Operation::lor: return index([](auto x, auto y, auto) { return x | y; });
    case Operation::lnot: return index([](auto x, auto, auto) { return x ^ 1; });
    case Operation::where: return index([](auto x, auto y, auto z) { return x != 0 ? y : z; });
    case Operation::to_real:
      return each([](Word* t, const Word* x, const Word*, const Word*) {
        float made[lanes];
        for (int i = 0; i < lanes; ++i) made[i] = static_cast<float>(x[i].index);
        for (int i = 0; i < lanes; ++i) t[i].real = made[i];
      });
    case Operation::to_index:
      if (!of_reals) return index([](auto x, auto, auto) { return x; });
      return each([](Word* t, const Word* x, const Word*, const Word*) {
        for (int i = 0; i < lanes; ++i) {
          // A conversion out of range is undefined in C++.
          const float inside = std::clamp(x[i].real, -2147483648.0F, 2147483520.0F);
          t[i].index = inside == inside ? static_cast<std::int32_t>(inside) : 0;
        }
      });
    default: return;
  }
}

/// Calls use(line, vector, offsets) with the places of 16 elements in a tensor, in Offset's bits.
template <class Offset, class Use>
void Program::for_each_offset(Frame& frame, const Instruction& instruction,
                              const std::vector<std::int64_t>& stride, const Use& use) const {
  const auto& extent = tensors_[static_cast<std::size_t>(instruction.tensor)].extent;
  for (int l = 0; l < frame.lines; ++l) {
    for (int v = 0; v < frame.vectors; ++v) {
      Offset offset[lanes] = {};
      for (int n = 0; n < instruction.indices; ++n) {
        const auto axis = static_cast<std::size_t>(n);
        const Index& index = indices_[static_cast<std::size_t>(instruction.first_index + n)];
        const Word* from = frame.of(index.from).at(l, v);
        const auto size = static_cast<std::int32_t>(extent[axis]);
        const auto step = static_cast<Offset>(stride[axis]);
        if (index.place == Index::Place::inside) {
          for (int i = 0; i < lanes; ++i) offset[i] += from[i].index * step;
          continue;
        }
        bool outside = false;
        for (int i = 0; i < lanes; ++i) {
          const std::int32_t own = from[i].index < 0 ? from[i].index + size : from[i].index;
          const std::int32_t inside = std::clamp(own, 0, size - 1);
          outside |= inside != own;
          offset[i] += inside * step;
        }
        frame.outside = frame.outside || outside;
      }
      use(l, v, offset);
    }
  }
}

template <class Offset>
void Program::gather(Frame& frame, const Instruction& instruction) const {
  const Captured& tensor = tensors_[static_cast<std::size_t>(instruction.tensor)];
  const Operand to = frame.of(instruction.result);
  if (tensor.type == Type::truth) {
    const auto* data = static_cast<const std::uint8_t*>(tensor.data);
    for_each_offset<Offset>(frame, instruction, tensor.stride,
                            [&](int l, int v, const auto& offset) {
                              Word* target = to.at(l, v);
                              for (int i = 0; i < lanes; ++i) {
                                target[i].index = data[offset[i]] != 0 ? 1 : 0;
                              }
                            });
    return;
  }
  const auto* data = static_cast<const std::int32_t*>(tensor.data);  // words, whatever they hold
  for_each_offset<Offset>(frame, instruction, tensor.stride, [&](int l, int v, const auto& offset) {
    Word* target = to.at(l, v);
    // Neighbouring queries or keys often read neighbours, forward or backward.
    bool forward = true;
    bool backward = true;
    for (int i = 0; i < lanes; ++i) {
      forward &= offset[i] == offset[0] + i;
      backward &= offset[i] == offset[0] - i;
    }
    if (forward) {
      for (int i = 0; i < lanes; ++i) target[i].index = data[offset[0] + i];
    } else if (backward) {
      const std::int32_t* last = data + (offset[0] - (lanes - 1));
      for (int i = 0; i < lanes; ++i) target[i].index = last[lanes - 1 - i];
    } else {
      for (int i = 0; i < lanes; ++i) target[i].index = data[offset[i]];
    }
  });
}

void Program::scatter(Frame& frame, const Instruction& instruction) const {
  const auto tensor = static_cast<std::size_t>(instruction.tensor);
  const ScoreBlock& block = *frame.block;
  const Operand from = frame.of(instruction.result);
  const Operand gradients = frame.of(Register{Level::score, 1});
  float* target = frame.targets[tensor];
  const auto keys = static_cast<int>(block.last_key - block.key + 1);
  const int inner = block.keys_inner ? keys : block.rows;
  const int outer = block.keys_inner ? block.rows : keys;
  for_each_offset<std::int64_t>(frame, instruction, dense_[tensor],
                                [&](int l, int v, const auto& offset) {
                                  if (frame.first_line + l >= outer) return;
                                  // A score without a gradient, as a hidden one, adds nothing even where a derivative is NaN.
                                  const Word* of_score = gradients.at(l, v);
                                  const Word* value = from.at(l, v);
                                  float added[lanes];
                                  for (int i = 0; i < lanes; ++i) {
                                    added[i] = of_score[i].real == 0.0F ? 0.0F : value[i].real;
                                  }
                                  const int count = std::min(lanes, inner - v * lanes);
                                  // Runs of one place, as of a slope by head, are summed before they are added.
                                  for (int i = 0; i < count;) {
                                    float sum = added[i];
                                    int end = i + 1;
                                    for (; end < count && offset[end] == offset[i]; ++end)
                                      sum += added[end];
                                    target[offset[i]] += sum;
                                    i = end;
                                  }
                                });
}

}  // namespace katt::attention
