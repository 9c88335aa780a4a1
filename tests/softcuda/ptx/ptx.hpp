#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tests/softcuda/device.hpp"

/// PTX as text, taken apart into modules, functions and statements. Their meaning is the decoder's.
namespace softcuda {

enum class Kind : std::uint8_t { none, bits, uint, sint, real, bf16, pred };
struct Type {
  Kind kind = Kind::none;
  int bytes = 0;
  int packed = 1;  ///< 2 for f16x2 and bf16x2
  bool operator==(const Type&) const = default;
};
/// "u32", "f16x2", "pred" …; kind none when it is no type.
Type parse_type(std::string_view name);

/// `.param .align 8 .b8 name[120]`, `.shared .u64 name`, `.reg .b32 %r<67>` …
struct Declaration {
  std::string_view space, name;
  Type type;
  std::size_t align = 1, elements = 1;
  bool array = false, external = false, ranged = false;  ///< ranged: name<elements>
  std::string_view initialiser;
  std::size_t bytes() const { return elements * static_cast<std::size_t>(type.bytes); }
};
Declaration parse_declaration(std::string_view text);

struct Statement {
  int line = 0, scope = 0;
  std::string_view guard;  ///< predicate's name without @ and !
  bool negated = false;
  std::string_view opcode;
  std::vector<std::string_view> operands;
};
struct Scope {
  int parent = -1;
  std::vector<Declaration> declarations;
  std::unordered_map<std::string_view, std::size_t> labels;  ///< the statement after each
};
struct Body {
  std::vector<Scope> scopes;
  std::vector<Statement> statements;
};
Body parse_body(std::string_view text, int first_line);

struct Program;  // decoded code: machine.hpp

struct Function {
  std::string_view name, body;
  int body_line = 0, cluster = 1;
  bool entry = false, info_ready = false;
  std::vector<Declaration> parameters, results;
  KernelInfo info;
  std::unordered_map<std::string_view, std::uint64_t>
      shared_address;  ///< of the variables that the body names
  std::shared_ptr<Program> program;
};

struct Module {
  std::string text;
  std::unordered_map<std::string_view, Function> functions;
  std::unordered_map<std::string_view, Variable> variables;  ///< .global and .const
  std::vector<Declaration> shared;
};
void parse_module(Module&);

std::string_view trim(std::string_view);
/// Splits at commas outside of brackets.
std::vector<std::string_view> split_operands(std::string_view);
std::vector<std::string_view> split(std::string_view, char at);
std::int64_t parse_integer(std::string_view);

}  // namespace softcuda
