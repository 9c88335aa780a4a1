#include "ops/attention/rules/program.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "ops/attention/rules/program_frame.hpp"

namespace katt::attention {

using impl::lanes;
using impl::Operand;
using impl::Word;

namespace {

constexpr int registers_limit = 512;  // of a level

[[noreturn]] void refuse(const std::string& what) {
  throw InputError("score_rule: holds " + what + ", expected a program of katt._rules");
}

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
    if (indices[i + 1] < 0 || indices[i + 1] > 3) refuse("an index of no place");
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
          made.indices > static_cast<int>(indices_.size()) - made.first_index ||
          (!is_flat(made) &&
           made.indices !=
               static_cast<int>(tensors_[static_cast<std::size_t>(made.tensor)].extent.size()))) {
        refuse("a tensor that is not there");
      }
    } else {
      for (int n = 0; n < impl::operands_of(made.operation); ++n) {
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
  find_read_by_scores();
  make_in_place();
}

/// Has the first result made where the scores are, unless these are read later: the last instruction
/// that makes it gets a register of its own.
void Program::make_in_place() {
  constexpr Register score{Level::score, 0};
  const auto writes = [&](const Instruction& of) {
    return of.operation != Operation::scatter && of.result == results_[0];
  };
  const auto reads = [&](const Instruction& of) {
    if (of.operation == Operation::scatter) return of.result == score;
    const auto end = of.operands.begin() + impl::operands_of(of.operation);
    return std::find(of.operands.begin(), end, score) != end;
  };
  if (results_.empty() || results_[0].level != Level::score || results_[0].number < 2) return;
  const auto last = std::find_if(code_.rbegin(), code_.rend(), writes);
  if (last == code_.rend() || std::any_of(code_.rbegin(), last, reads)) return;
  if (results_.size() == 2 && results_[1] == score) return;
  in_place_ = true;
  const Register before = results_[0];
  const Register own{Level::score, registers_[3]++};
  const auto rename = [&](Register& of) {
    if (of == before) of = own;
  };
  rename(last->result);
  for (Register& of : results_) rename(of);
  for (auto later = code_.rbegin(); later != last; ++later) {
    for (Register& of : later->operands) rename(of);
    if (later->operation == Operation::scatter) rename(later->result);
    for (int n = 0; n < later->indices; ++n) {
      rename(indices_[static_cast<std::size_t>(later->first_index + n)].from);
    }
  }
}

bool Program::is_flat(const Instruction& gather) const {
  return gather.operation == Operation::gather && gather.indices == 1 &&
         near_[static_cast<std::size_t>(gather.tensor)] &&
         indices_[static_cast<std::size_t>(gather.first_index)].place == Index::Place::flat;
}

void Program::find_read_by_scores() {
  std::array<std::vector<bool>, 4> read;
  for (std::size_t level = 0; level < read.size(); ++level) {
    read[level].resize(static_cast<std::size_t>(registers_[level]));
  }
  const auto note = [&](const Register& of) {
    read[static_cast<std::size_t>(of.level)][static_cast<std::size_t>(of.number)] = true;
  };
  for (const Instruction& of : code_) {
    if (of.level != Level::score) continue;
    for (int n = 0; n < impl::operands_of(of.operation); ++n) {
      note(of.operands[static_cast<std::size_t>(n)]);
    }
    for (int n = 0; n < of.indices; ++n) {
      note(indices_[static_cast<std::size_t>(of.first_index + n)].from);
    }
    if (of.operation == Operation::scatter) note(of.result);
  }
  for (const Register& of : results_) note(of);
  for (std::size_t level = 0; level < read.size(); ++level) {
    for (std::size_t n = 0; n < read[level].size(); ++n) {
      if (read[level][n]) read_by_scores_[level].push_back(n);
    }
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

/// Gives the registers their places. Registers of `block` hold 16 equal numbers; registers of the
/// outer level also lie as lines of 16 equal numbers.
void Program::lay_out(Frame& frame, const ScoreBlock& block, int lines) const {
  const int inner = block.keys_inner ? block.keys : block.rows;
  const auto outer = static_cast<std::size_t>(block.keys_inner ? Level::row : Level::key);
  const std::array<int, 4> words{lanes, up(block.rows), up(block.keys), lines * inner};
  std::size_t size =
      static_cast<std::size_t>(registers_[outer]) * static_cast<std::size_t>(lines) * lanes;
  const int most_words = *std::max_element(words.begin(), words.end());
  size += static_cast<std::size_t>(most_words);
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
  frame.offsets = {next, inner, lanes};
  frame.spread = next + most_words;
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

void Program::run(const ScoreBlock& block, float* d, const float* gradient,
                  float* const* targets) const {
  const int inner = block.keys_inner ? block.keys : block.rows;
  const int outer = block.keys_inner ? block.rows : block.keys;
  const int scores = std::clamp(impl::scores_of_l1 / registers_[3], 256, 1024);
  const int lines = std::clamp(scores / inner, 1, outer);
  Frame& frame = frame_of(block, lines);
  frame.block = &block;
  frame.targets = targets;
  frame.outside = false;
  std::vector<Operand>& outer_registers = frame.of(block.keys_inner ? Level::row : Level::key);
  outer_registers = frame.outer;

  fill(frame.of(Level::block)[0].data, static_cast<std::int32_t>(block.batch));
  Word* const head = frame.of(Level::row)[0].data;
  Word* const query = frame.of(Level::row)[1].data;
  const std::size_t bytes = static_cast<std::size_t>(block.rows) * sizeof(Word);
  std::memcpy(head, block.head, bytes);
  std::memcpy(query, block.query, bytes);
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

  // The results of `count` lines. A slope may lie where the scores do: it is read first.
  const auto store = [&](int first, int count) {
    const Operand& score = frame.of(results_[0]);
    const bool moves = !in_place_ && results_[0] != Register{Level::score, 0};
    const bool multiplies = results_.size() == 2 && d != nullptr;
    if (!moves && !multiplies) return;
    for (int l = 0; l < count; ++l) {
      for (int v = 0; v < inner / lanes; ++v) {
        const std::int64_t at = (first + l) * block.stride + v * block.vector;
        const float* const from = &score.at(l, v)->real;
        if (multiplies) {
          constexpr float hidden = -std::numeric_limits<float>::infinity();
          const float* const slope = &frame.of(results_[1]).at(l, v)->real;
          float* const to = d + at;
#pragma omp simd
          for (int i = 0; i < lanes; ++i) to[i] = from[i] == hidden ? 0.0F : to[i] * slope[i];
        }
        if (moves) std::memcpy(block.score + at, from, lanes * sizeof(float));
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
    for (const std::size_t n : read_by_scores_[block.keys_inner ? 1 : 2]) {
      for (int l = 0; l < count; ++l) {
        fill(outer_registers[n].at(l, 0), frame.outer[n].data[first + l].index);
      }
    }
    // The scores are read where they lie, and so is their gradient.
    const auto lying = [&](const float* from) {
      auto* data = const_cast<float*>(from + first * block.stride);
      return Operand{reinterpret_cast<Word*>(data), block.stride, block.vector};
    };
    frame.of(Level::score)[0] = lying(block.score);
    if (gradient != nullptr) frame.of(Level::score)[1] = lying(gradient);
    if (in_place_) frame.of(results_[0]) = lying(block.score);
    run_of(Level::score, count, inner / lanes);
    if (!results_.empty()) store(first, count);
  }
  if (frame.outside) outside_.store(true, std::memory_order_relaxed);
}

}  // namespace katt::attention
