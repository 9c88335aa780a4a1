#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/softcuda/interpreter/machine.hpp"

namespace softcuda {

inline constexpr Type u32_type{Kind::uint, 4}, pred_type{Kind::pred, 4};

inline std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

Form take_apart(std::string_view opcode);
Space space_of(const Form&);

struct Register {
  std::uint32_t at;
  Type type;
};

/// Addresses of .param and .local variables by name.
using Symbols = std::unordered_map<std::string_view, std::uint64_t>;

/// A function body that is being decoded: the kernel's own, or that of a call.
struct Frame {
  struct Fixup {
    std::uint32_t code;
    std::size_t statement;
  };

  Body body;
  std::vector<std::unordered_map<std::string_view, Register>> registers;  ///< by scope
  std::vector<Symbols> symbols;                                           ///< by scope
  std::vector<std::uint32_t> code_at;                                     ///< by statement
  std::vector<Fixup> fixups;
  bool inlined = false;
};

/// Statements become instructions: names become registers, constants and addresses, and a call is
/// expanded in place.
class Decoder {
 public:
  Decoder(Module& m, Function& f, Program& p) : module_(m), function_(f), program_(p) {}

  void run();

 private:
  struct Address {
    std::uint32_t at;  ///< register
    int bytes;         ///< of the register
    std::int64_t offset;
  };

  [[noreturn]] void fail(const std::string& why) const;
  std::uint16_t opcode_index(std::string_view opcode);
  /// A text that lives as long as the decoder.
  std::string_view keep(std::string text);

  // Operands (operands.cpp).
  std::uint32_t allocate(Type t);
  static bool declares(const Declaration& d, std::string_view name);
  std::optional<Register> find_register(std::string_view name);
  std::uint32_t constant(int bytes, std::uint64_t bits, bool pred = false);
  std::uint32_t special(std::string_view name);
  std::optional<std::uint64_t> find_symbol(std::string_view name);
  static bool is_number(std::string_view s);
  std::uint64_t immediate(std::string_view s, Type t);
  /// The register of an operand of a type; its width must be the type's.
  std::uint32_t slot(std::string_view text, Type t);
  /// The register of a source of cvt: of a register wider than the type, its lower half.
  std::uint32_t narrowed(std::string_view text, Type t, const Instruction& i);
  static std::vector<std::string_view> elements(std::string_view braces);
  void add_word(Instruction& i, std::uint32_t word);
  void add_list(Instruction& i, std::string_view braces, Type t);
  Address address(std::string_view text);
  /// Sets the instruction's address and returns the bytes of its register.
  int set_address(Instruction& i, std::string_view text);
  void add_address(Instruction& i, std::string_view text);
  void expect(const Statement& s, std::size_t operands) const;
  void fill_registers();

  // Statements (decode.cpp).
  void expand(Function& f, const Symbols& parameters, bool inlined);
  void place_variable(const Declaration& d, Symbols& symbols);
  void decode_statement(const Statement& s);
  /// The instruction that decode_statement is about to add goes to a statement of this frame.
  void jump_to(std::size_t statement);
  std::size_t find_label(std::string_view name);
  void decode_call(const Statement& s);
  /// Adds a jump over the call, unless its guard holds.
  void skip_call(const Statement& s);
  void add_system_call(const Statement& s, std::string_view name, Run run,
                       std::string_view arguments);
  std::uint64_t parameter(std::string_view name);
  void bind(const std::vector<Declaration>& formal, std::string_view actual, Symbols& parameters);
  void decode_operands(Form& f, const Statement& s, Instruction& i);
  void decode_arithmetic(const Form& f, const Statement& s, Instruction& i);
  /// A cvt to an integer in a wider register is two instructions. Returns whether this is one.
  bool decode_widening_cvt(const Form& f, const Statement& s, Instruction& i);
  void decode_mov(Form& f, const Statement& s, Instruction& i);

  // Forms of statements (memory_forms.cpp, control_forms.cpp).
  void decode_access(const Form& f, const Statement& s, Instruction& i);
  void decode_atomic(const Form& f, const Statement& s, Instruction& i);
  /// One scalar operation for each element: no vector is promised to be atomic as a whole.
  void decode_vector_atomic(const Form& f, const Statement& s, Instruction& i);
  void decode_copy(const Form& f, const Statement& s, Instruction& i);
  /// cp{.reduce}.async.bulk{.tensor}: to, from{, size}{, mbarrier}{, cache policy}.
  void decode_bulk(const Form& f, const Statement& s, Instruction& i);
  void decode_tensor(const Form& f, const Statement& s, Instruction& i);
  void decode_matrix_access(const Form& f, const Statement& s, Instruction& i);
  /// Operands: d, a (descriptor or registers), descriptor of b, scale-d, negations of a and b,
  /// transpositions (of a only from shared memory).
  void decode_wgmma(const Form& f, const Statement& s, Instruction& i);
  void decode_control(const Form& f, const Statement& s, Instruction& i);
  void decode_barrier(const Form& f, const Statement& s, Instruction& i);
  void decode_barrier_reduction(const Form& f, const Statement& s, Instruction& i);
  void decode_shuffle(const Statement& s, Instruction& i);
  void decode_across_lanes(const Form& f, const Statement& s, Instruction& i);
  void decode_mbarrier(const Form& f, const Statement& s, Instruction& i);

  Module& module_;
  Function& function_;
  Program& program_;
  Frame* frame_ = nullptr;
  const Statement* statement_ = nullptr;
  std::vector<std::unique_ptr<std::string>> texts_;
  int depth_ = 0;
  std::size_t register_bytes_ = 64;
  std::map<std::pair<int, std::uint64_t>, std::uint32_t> constants_;
  std::unordered_map<std::string_view, std::uint32_t> specials_;
  std::unordered_map<std::string_view, std::uint16_t> opcodes_;
};

}  // namespace softcuda
