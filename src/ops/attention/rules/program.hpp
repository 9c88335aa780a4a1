#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

/// Score rules as programs: what a rule of Python becomes (python/katt/_rules), and an interpreter
/// that runs it on blocks of scores, a vector of 16 an instruction.
///
/// A program has no jumps. Its instructions are sorted by level: those of `block` depend on the
/// batch entry alone and run once a block, those of `row` on head and query, of `key` on the key,
/// of `score` on the score or on query and key. Gradients are programs, too: the interpreter only
/// runs forward.
namespace katt::attention {

enum class Level : std::int8_t { block, row, key, score };

/// The order is that of OPERATIONS in python/katt/_rules/program.py.
enum class Operation : std::int8_t {
  score,
  batch,
  head,
  query,
  key,
  gradient,
  constant,
  add,
  subtract,
  multiply,
  negative,
  absolute,
  minimum,
  maximum,
  divide,
  fma,
  exp,
  log,
  tanh,
  sigmoid,
  sqrt,
  floor,
  floor_divide,
  remainder,
  equal,
  not_equal,
  less,
  less_equal,
  land,
  lor,
  lnot,
  where,
  to_real,
  to_index,
  gather,
  scatter,
};

enum class Type : std::int8_t { real, index, truth };

/// A register of a level; those of the inputs are there without an instruction: batch is register 0
/// of `block`, head and query 0 and 1 of `row`, key 0 of `key`, score and its gradient 0 and 1 of
/// `score`.
struct Register {
  Level level = Level::block;
  int number = 0;

  friend bool operator==(const Register&, const Register&) = default;
};

struct Instruction {
  Operation operation;
  Type type;  ///< of the operands
  Level level;
  Register result;  ///< the added value of a scatter
  std::array<Register, 3> operands{};
  int tensor = 0;  ///< of a gather and a scatter
  int first_index = 0, indices = 0;
};

/// An index of a gather or a scatter, and whether it is known to lie inside of its axis, counts from
/// the end where it is negative, may lie anywhere: then it is clamped, and the program notes it; or,
/// of a gather, is the only one: the place of an element among all of a contiguous tensor.
struct Index {
  enum class Place : std::int8_t { inside, wrapped, unknown, flat };
  Register from;
  Place place = Place::inside;
};

/// A captured tensor: f32, int32 or, for truths, uint8.
struct Captured {
  const void* data = nullptr;
  Type type = Type::real;
  std::vector<std::int64_t> extent{};
  std::vector<std::int64_t> stride{};  ///< in elements
};

/// Scores of some rows and keys: rows lie `stride` floats apart with neighbouring keys side by side
/// (keys_inner), or keys with neighbouring rows; 16 neighbours lie together, the next 16 `vector`
/// floats behind them. The inner extent is a multiple of 16; scores of rows and keys that do not
/// exist may hold and become any number.
struct ScoreBlock {
  std::int64_t batch = 0;
  int rows = 0;                         ///< with those that do not exist
  int keys = 0;                         ///< likewise
  const std::int32_t* head = nullptr;   ///< (rows)
  const std::int32_t* query = nullptr;  ///< (rows)
  std::int64_t key = 0;                 ///< the first
  std::int64_t last_key = 0;            ///< the last that exists
  bool keys_inner = true;
  std::int64_t stride = 0;
  std::int64_t vector = 16;
  float* score = nullptr;
};

/// A program, checked and ready to run. Captured tensors outlive it.
class Program {
 public:
  /// From the compact form of python/katt/_rules/compact.py. Throws InputError for what is none.
  Program(const std::vector<std::int32_t>& code, const std::vector<std::int32_t>& indices,
          const std::vector<std::int32_t>& constants, const std::vector<std::int32_t>& results,
          const std::vector<std::int32_t>& registers, std::vector<Captured> tensors);

  /// Puts the first result in the place of the scores and multiplies d, whose scores lie alike, by the
  /// second, if there is one: a score that becomes −inf has no gradient, not even where its slope is
  /// NaN. `gradient`, where the program scatters, lies alike, too: scatters add to targets[tensor],
  /// dense tensors of f32, where it is not 0.
  void run(const ScoreBlock& block, float* d = nullptr, const float* gradient = nullptr,
           float* const* targets = nullptr) const;

  [[nodiscard]] int results() const { return static_cast<int>(results_.size()); }
  [[nodiscard]] const std::vector<Captured>& tensors() const { return tensors_; }
  /// True when the only result is the score that was there.
  [[nodiscard]] bool changes_nothing() const {
    return code_.empty() && results_.size() == 1 && results_[0] == Register{Level::score, 0};
  }
  /// True when the second result is the constant 1.
  [[nodiscard]] bool slope_is_one() const;
  /// True for a tensor that scatters add to.
  [[nodiscard]] bool adds_to(int tensor) const;
  /// True when no two values of an input (batch, head, query) ever add to the same element: it is an
  /// index of all scatters to a tensor, in the same axis.
  [[nodiscard]] bool is_split_by(Register input) const;
  /// True once an index lay outside of its tensor.
  [[nodiscard]] bool went_outside() const { return outside_.load(std::memory_order_relaxed); }

 private:
  struct Frame;

  void check(Register of) const;
  void find_read_by_scores();
  void make_in_place();
  void lay_out(Frame& frame, const ScoreBlock& block, int lines) const;
  Frame& frame_of(const ScoreBlock& block, int lines) const;
  void run_level(Frame& frame, const Instruction* first, const Instruction* last) const;
  void run_one(Frame& frame, const Instruction& instruction) const;
  [[nodiscard]] bool is_flat(const Instruction& gather) const;
  void find_near(Frame& frame, const Instruction& instruction) const;
  void gather_near(Frame& frame, const Instruction& instruction) const;
  void gather_far(Frame& frame, const Instruction& instruction) const;
  void scatter(Frame& frame, const Instruction& instruction) const;
  template <class Use>
  void for_each_offset(Frame& frame, const Instruction& instruction,
                       const std::vector<std::int64_t>& stride, const Use& use) const;

  std::int64_t number_;  ///< of this program: none has had it before
  std::vector<Instruction> code_;
  std::array<int, 5>
      level_begin_{};  ///< instructions of a level: [level_begin_[l], level_begin_[l + 1])
  std::vector<Index> indices_;
  std::vector<std::int32_t> constants_;
  std::vector<Register> results_;
  std::array<int, 4> registers_{};
  std::vector<Captured> tensors_;
  std::array<std::vector<std::size_t>, 4> read_by_scores_{};  ///< numbers of registers, by level
  std::vector<std::vector<std::int64_t>> dense_;              ///< strides of the targets
  std::vector<bool> near_;                                    ///< offsets in a tensor have 32 bits
  bool in_place_ = false;  ///< the first result is made where the scores are
  mutable std::atomic<bool> outside_ = false;
};

}  // namespace katt::attention
