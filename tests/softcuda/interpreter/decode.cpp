#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>
#include <utility>

#include "tests/softcuda/interpreter/machine.hpp"

// Statements become instructions, and names become registers, constants and addresses. A call is
// expanded in place.

namespace softcuda {
namespace {

constexpr Type u32_type{Kind::uint, 4}, pred_type{Kind::pred, 4};

std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

Form take_apart(std::string_view opcode) {
  Form f;
  f.words = split(opcode, '.');
  for (std::size_t i = 1; i < f.words.size(); ++i)
    if (const Type t = parse_type(f.words[i]); t.kind != Kind::none) f.types.push_back(t);
  return f;
}

Space space_of(const Form& f) {
  for (const auto w : f.words) {
    if (w == "shared" || w == "shared::cta" || w == "shared::cluster") return Space::shared;
    if (w == "global") return Space::global;
    if (w == "const") return Space::constant;
    if (w == "local") return Space::local;
    if (w.substr(0, 5) == "param") return Space::parameter;
  }
  return Space::generic;
}

struct Register {
  std::uint32_t at;
  Type type;
};

/// A function body being decoded: the kernel's own, or that of a call expanded in place.
struct Frame {
  Body body;
  std::vector<std::unordered_map<std::string_view, Register>> registers;  ///< by scope
  std::vector<std::unordered_map<std::string_view, std::uint64_t>>
      symbols;                         ///< .param and .local variables, by scope
  std::vector<std::uint32_t> code_at;  ///< by statement
  struct Fixup {
    std::uint32_t code;
    std::size_t statement;
  };
  std::vector<Fixup> fixups;
  bool inlined = false;
};

class Decoder {
 public:
  Decoder(Module& m, Function& f, Program& p) : module_(m), function_(f), program_(p) {}

  void run() {
    std::unordered_map<std::string_view, std::uint64_t> parameters;
    for (std::size_t i = 0; i < function_.parameters.size(); ++i)
      parameters[function_.parameters[i].name] = function_.info.parameter_offset[i];
    expand(function_, parameters, false);
    Instruction end;
    end.run = find_control(take_apart("ret"));
    end.opcode = opcode_index("ret");
    program_.code.push_back(end);
    program_.local_bytes = round_up(program_.local_bytes, 16);
    program_.call_parameter_bytes = round_up(program_.call_parameter_bytes, 16);
    fill_registers();
  }

 private:
  Module& module_;
  Function& function_;
  Program& program_;
  Frame* frame_ = nullptr;
  const Statement* statement_ = nullptr;
  std::vector<std::unique_ptr<std::string>> names_;  ///< texts made here
  int depth_ = 0;
  std::size_t register_bytes_ = 64;
  std::map<std::pair<int, std::uint64_t>, std::uint32_t> constants_;
  std::unordered_map<std::string_view, std::uint32_t> specials_;
  std::unordered_map<std::string_view, std::uint16_t> opcodes_;

  [[noreturn]] void fail(const std::string& why) const {
    std::string text(statement_->opcode);
    for (const auto o : statement_->operands)
      text += (text.size() == statement_->opcode.size() ? " " : ", ") + std::string(o);
    throw DeviceFault(719, std::string(function_.name) + ", PTX line " +
                               std::to_string(statement_->line) + ": " + why + ": " +
                               text.substr(0, 200));
  }

  std::uint16_t opcode_index(std::string_view opcode) {
    const auto [at, fresh] =
        opcodes_.try_emplace(opcode, static_cast<std::uint16_t>(program_.opcodes.size()));
    if (fresh) program_.opcodes.emplace_back(opcode);
    return at->second;
  }

  // ---- Registers

  std::uint32_t allocate(Type t) {
    const std::size_t bytes =
        t.kind == Kind::pred ? 4 : static_cast<std::size_t>(t.bytes) * warp_lanes;
    register_bytes_ = round_up(register_bytes_, t.kind == Kind::pred ? 4 : 64);
    const auto at = static_cast<std::uint32_t>(register_bytes_);
    register_bytes_ += bytes;
    return at;
  }

  static bool declares(const Declaration& d, std::string_view name) {
    if (d.space != "reg") return false;
    if (!d.ranged) return d.name == name;
    if (name.size() <= d.name.size() || name.substr(0, d.name.size()) != d.name) return false;
    std::size_t number = 0;
    const auto digits = name.substr(d.name.size());
    const auto r = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    return r.ec == std::errc() && r.ptr == digits.data() + digits.size() && number < d.elements;
  }

  std::optional<Register> find_register(std::string_view name) {
    for (int s = statement_->scope; s >= 0;
         s = frame_->body.scopes[static_cast<std::size_t>(s)].parent) {
      auto& known = frame_->registers[static_cast<std::size_t>(s)];
      if (const auto at = known.find(name); at != known.end()) return at->second;
      for (const auto& d : frame_->body.scopes[static_cast<std::size_t>(s)].declarations)
        if (declares(d, name)) return known[name] = Register{allocate(d.type), d.type};
    }
    return std::nullopt;
  }

  std::uint32_t constant(int bytes, std::uint64_t bits, bool pred = false) {
    if (!pred && bytes < 8) bits &= (1ull << (8 * bytes)) - 1;
    const auto [at, fresh] = constants_.try_emplace({pred ? 0 : bytes, bits}, 0);
    if (fresh) at->second = allocate(pred ? pred_type : Type{Kind::bits, bytes});
    return at->second;
  }

  std::uint32_t special(std::string_view name) {
    static const char* const known_registers[] = {"%tid.x",
                                                  "%tid.y",
                                                  "%tid.z",
                                                  "%ntid.x",
                                                  "%ntid.y",
                                                  "%ntid.z",
                                                  "%ctaid.x",
                                                  "%ctaid.y",
                                                  "%ctaid.z",
                                                  "%nctaid.x",
                                                  "%nctaid.y",
                                                  "%nctaid.z",
                                                  "%laneid",
                                                  "%warpid",
                                                  "%nwarpid",
                                                  "%lanemask_eq",
                                                  "%lanemask_lt",
                                                  "%lanemask_le",
                                                  "%lanemask_gt",
                                                  "%lanemask_ge",
                                                  "%smid",
                                                  "%nsmid",
                                                  "%cluster_ctarank",
                                                  "%cluster_nctarank",
                                                  "%clusterid.x",
                                                  "%clusterid.y",
                                                  "%clusterid.z",
                                                  "%nclusterid.x",
                                                  "%nclusterid.y",
                                                  "%nclusterid.z",
                                                  "%cluster_ctaid.x",
                                                  "%cluster_ctaid.y",
                                                  "%cluster_ctaid.z",
                                                  "%cluster_nctaid.x",
                                                  "%cluster_nctaid.y",
                                                  "%cluster_nctaid.z",
                                                  "%total_smem_size",
                                                  "%gridid",
                                                  "%dynamic_smem_size"};
    if (std::find(std::begin(known_registers), std::end(known_registers), name) ==
        std::end(known_registers))
      fail("unknown register " + std::string(name));
    const auto [at, fresh] = specials_.try_emplace(name, 0);
    if (fresh) {
      at->second = allocate(u32_type);
      program_.specials.push_back({std::string(name), at->second});
    }
    return at->second;
  }

  std::optional<std::uint64_t> find_symbol(std::string_view name) {
    for (int s = statement_->scope; s >= 0;
         s = frame_->body.scopes[static_cast<std::size_t>(s)].parent) {
      const auto& known = frame_->symbols[static_cast<std::size_t>(s)];
      if (const auto at = known.find(name); at != known.end()) return at->second;
    }
    if (const auto at = function_.shared_address.find(name); at != function_.shared_address.end())
      return at->second;
    if (const auto at = module_.variables.find(name); at != module_.variables.end())
      return at->second.address;
    return std::nullopt;
  }

  static bool is_number(std::string_view s) {
    return std::isdigit(static_cast<unsigned char>(s[0])) ||
           (s.size() > 1 && s[0] == '-' && std::isdigit(static_cast<unsigned char>(s[1])));
  }

  std::uint64_t immediate(std::string_view s, Type t) {
    if (s.size() > 2 && s[0] == '0' && std::strchr("fFdD", s[1])) {
      std::uint64_t bits = 0;
      std::from_chars(s.data() + 2, s.data() + s.size(), bits, 16);
      const bool wide = s[1] == 'd' || s[1] == 'D';
      if (wide != (t.bytes == 8)) fail("a constant of another width");
      return bits;
    }
    if (t.kind == Kind::real) fail("an integer constant for a real operand");
    return static_cast<std::uint64_t>(parse_integer(s));
  }

  /// The slot of an operand of a type; `t.bytes` must be the register's width.
  std::uint32_t slot(std::string_view text, Type t) {
    if (is_number(text)) {
      const std::uint64_t bits = immediate(text, t);
      return t.kind == Kind::pred ? constant(4, bits ? all_lanes : 0, true)
                                  : constant(t.bytes, bits);
    }
    if (const auto r = find_register(text)) {
      if ((r->type.kind == Kind::pred) != (t.kind == Kind::pred) || r->type.bytes != t.bytes)
        fail("operand " + std::string(text) + " has another width than the instruction");
      return r->at;
    }
    if (text == "_") return allocate(t);  // a sink
    if (text == "WARP_SZ") return constant(t.bytes, warp_lanes);
    if (text[0] == '%') return special(text);
    if (const auto address = find_symbol(text)) return constant(t.bytes, *address);
    fail("unknown name " + std::string(text));
  }

  /// The source of a cvt may be a register wider than its type: its lower half is taken first.
  std::uint32_t narrowed(std::string_view text, Type t, const Instruction& i) {
    const auto r = is_number(text) ? std::nullopt : find_register(text);
    if (!r || r->type.bytes <= t.bytes || t.kind == Kind::real) return slot(text, t);
    Instruction chop = i;
    chop.run = find_arithmetic(take_apart("cvt.u" + std::to_string(8 * t.bytes) + ".u" +
                                          std::to_string(8 * r->type.bytes)));
    if (chop.run == nullptr) fail("not supported");
    chop.a = r->at;
    chop.d = allocate(t);
    program_.code.push_back(chop);
    return chop.d;
  }

  static std::vector<std::string_view> elements(std::string_view braces) {
    return split_operands(braces.substr(1, braces.size() - 2));
  }

  void add_list(Instruction& i, std::string_view braces, Type t) {
    if (i.list_size == 0) i.list = static_cast<std::uint32_t>(program_.lists.size());
    for (const auto name : elements(braces)) {
      const std::uint32_t at = slot(name, t);
      program_.lists.push_back(at);
      ++i.list_size;
    }
  }

  struct Address {
    std::uint32_t at;
    int bytes;
    std::int64_t offset;
  };
  Address address(std::string_view text) {
    if (text.front() != '[') fail("an address expected");
    text = trim(text.substr(1, text.size() - 2));
    Address a{0, 8, 0};
    const auto plus = text.find('+');
    if (plus != std::string_view::npos) {
      a.offset = parse_integer(text.substr(plus + 1));
      text = trim(text.substr(0, plus));
    }
    if (is_number(text))
      return {constant(8, static_cast<std::uint64_t>(parse_integer(text))), 8, a.offset};
    if (const auto r = find_register(text)) {
      a.at = r->at;
      a.bytes = r->type.bytes;
    } else {
      const auto symbol = find_symbol(text);
      if (!symbol) fail("unknown name " + std::string(text));
      a.at = constant(8, *symbol);
    }
    return a;
  }
  int set_address(Instruction& i, std::string_view text) {
    const Address a = address(text);
    i.a = a.at;
    i.offset = a.offset;
    return a.bytes;
  }

  // ---- Statements

  void expand(Function& f, const std::unordered_map<std::string_view, std::uint64_t>& parameters,
              bool inlined) {
    if (++depth_ > 8) fail("calls nested too deep");
    Frame frame;
    frame.body = parse_body(f.body, f.body_line);
    frame.registers.resize(frame.body.scopes.size());
    frame.symbols.resize(frame.body.scopes.size());
    frame.symbols[0].insert(parameters.begin(), parameters.end());
    frame.inlined = inlined;
    for (std::size_t s = 0; s < frame.body.scopes.size(); ++s)
      for (const auto& d : frame.body.scopes[s].declarations) place_variable(d, frame.symbols[s]);
    Frame* const outer = std::exchange(frame_, &frame);
    const Statement* const outer_statement = statement_;
    for (const auto& s : frame.body.statements) {
      frame.code_at.push_back(static_cast<std::uint32_t>(program_.code.size()));
      statement_ = &s;
      decode_statement(s);
    }
    frame.code_at.push_back(static_cast<std::uint32_t>(program_.code.size()));
    for (const auto& fixup : frame.fixups)
      program_.code[fixup.code].target = frame.code_at[fixup.statement];
    frame_ = outer;
    statement_ = outer_statement;
    --depth_;
  }

  void place_variable(const Declaration& d,
                      std::unordered_map<std::string_view, std::uint64_t>& symbols) {
    if (d.space == "local") {
      const std::size_t at = round_up(program_.local_bytes, d.align);
      program_.local_bytes = at + d.bytes();
      symbols[d.name] = local_base + at;
    } else if (d.space == "param") {
      const std::size_t at = round_up(program_.call_parameter_bytes, d.align);
      program_.call_parameter_bytes = at + d.bytes();
      symbols[d.name] = call_parameter_base + at;
    }  // .shared ones have their place from lay_out_shared
  }

  void decode_statement(const Statement& s) {
    if (s.opcode == "call" || s.opcode.substr(0, 5) == "call.") return decode_call(s);
    Form f = take_apart(s.opcode);
    Instruction i;
    i.line = s.line;
    i.opcode = opcode_index(s.opcode);
    if (!s.guard.empty()) {
      i.guarded = true;
      i.negated = s.negated;
      i.guard = slot(s.guard, pred_type);
    }
    decode_operands(f, s, i);
    if (i.run == nullptr) fail("not supported");
    program_.code.push_back(i);
  }

  void decode_call(const Statement& s) {
    if (!s.guard.empty()) {
      Instruction skip;
      skip.line = s.line;
      skip.opcode = opcode_index("bra");
      skip.run = find_control(take_apart("bra"));
      skip.guarded = true;
      skip.negated = !s.negated;
      skip.guard = slot(s.guard, pred_type);
      jump_to(static_cast<std::size_t>(&s - frame_->body.statements.data()) + 1);
      program_.code.push_back(skip);
    }
    const bool has_results = s.operands.size() > 1 && s.operands[0].front() == '(';
    const auto name = s.operands[has_results ? 1 : 0];
    const auto callee = module_.functions.find(name);
    if (name == "vprintf" || name == "__assertfail") {
      Instruction i;
      i.line = s.line;
      i.opcode = opcode_index(name);
      i.run = find_control(take_apart(name));
      i.list = static_cast<std::uint32_t>(program_.lists.size());
      for (const auto argument : elements(s.operands.at(has_results ? 2 : 1))) {
        const auto symbol = find_symbol(argument);
        if (!symbol) fail("call with an argument that is no .param variable");
        program_.lists.push_back(static_cast<std::uint32_t>(*symbol - call_parameter_base));
        ++i.list_size;
      }
      program_.code.push_back(i);
      return;
    }
    if (callee == module_.functions.end() || callee->second.body.empty())
      fail("call of a function that is unknown, or known at run time only");
    std::unordered_map<std::string_view, std::uint64_t> parameters;
    const auto bind = [&](const std::vector<Declaration>& formal, std::string_view actual) {
      const auto names = elements(actual);
      if (names.size() != formal.size()) fail("call with another number of arguments");
      for (std::size_t n = 0; n < names.size(); ++n) {
        const auto symbol = find_symbol(names[n]);
        if (!symbol) fail("call with an argument that is no .param variable");
        parameters[formal[n].name] = *symbol;
      }
    };
    if (has_results) bind(callee->second.results, s.operands[0]);
    const std::size_t arguments = has_results ? 2 : 1;
    if (s.operands.size() > arguments) bind(callee->second.parameters, s.operands[arguments]);
    expand(callee->second, parameters, true);
  }

  void expect(const Statement& s, std::size_t operands) {
    if (s.operands.size() != operands) fail("another number of operands than expected");
  }

  void decode_operands(Form& f, const Statement& s, Instruction& i) {
    const auto op = f.words[0];
    if (op == "ld" || op == "ldu" || op == "st") return decode_access(f, s, i);
    if (op == "atom" || op == "red") return decode_atomic(f, s, i);
    if (op == "cp" || (op == "cvta")) return decode_copy(f, s, i);
    if (op == "mma" || op == "wgmma" || op == "ldmatrix" || op == "stmatrix")
      return decode_tensor(f, s, i);
    if (op == "mov") return decode_mov(f, s, i);
    i.run = find_arithmetic(f);
    if (i.run) return decode_arithmetic(f, s, i);
    decode_control(f, s, i);
  }

  void decode_arithmetic(const Form& f, const Statement& s, Instruction& i) {
    const auto op = f.words[0];
    const Type t = f.types.back();  // of the sources
    Type d = f.types.front(), b = t, c = t;
    if (op == "setp") d = pred_type;
    if (op == "selp") c = pred_type;
    if (op == "shl" || op == "shr") b = u32_type;
    if (op == "clz" || op == "popc" || op == "bfind") d = u32_type;
    if (op == "bfi") c = u32_type;
    if (op == "bfe") b = c = u32_type;
    if (f.has("wide")) d = c = Type{t.kind, 2 * t.bytes};
    const std::size_t n = s.operands.size();
    if (op == "cvt" && d.packed == 1 && d.kind != Kind::real &&
        d.kind != Kind::bf16) {  // an integer into a wider register
      const auto r = find_register(s.operands[0]);
      if (r && r->type.bytes > d.bytes) {
        const Type source = t;
        Instruction first = i;
        first.a = narrowed(s.operands[1], source, i);
        first.d = allocate(d);
        program_.code.push_back(first);
        const std::string widen = std::string("cvt.") + (d.kind == Kind::sint ? "s" : "u") +
                                  std::to_string(8 * r->type.bytes) + "." +
                                  (d.kind == Kind::sint ? "s" : "u") + std::to_string(8 * d.bytes);
        i.run = find_arithmetic(take_apart(widen));
        i.a = first.d;
        i.d = r->at;
        return;
      }
    }
    i.d = slot(s.operands[0], d);
    if (n > 1) i.a = op == "cvt" ? narrowed(s.operands[1], t, i) : slot(s.operands[1], t);
    if (n > 2) i.b = slot(s.operands[2], b);
    if (n > 3) i.c = slot(s.operands[3], c);
    if (n > 4) i.e = slot(s.operands[4], u32_type);
    static const std::unordered_map<std::string_view, std::size_t> list_counts = {
        {"setp", 3}, {"selp", 4}, {"fma", 4},  {"mad", 4},   {"madc", 4}, {"bfi", 5},  {"bfe", 4},
        {"shf", 4},  {"lop3", 5}, {"sad", 4},  {"bfind", 2}, {"prmt", 4}, {"dp4a", 4}, {"not", 2},
        {"neg", 2},  {"abs", 2},  {"sqrt", 2}, {"rcp", 2},   {"ex2", 2},  {"lg2", 2},  {"rsqrt", 2},
        {"sin", 2},  {"cos", 2},  {"tanh", 2}, {"clz", 2},   {"popc", 2}, {"brev", 2}};
    const auto count = list_counts.find(op);
    const bool packs = op == "cvt" && f.types.front().packed == 2;
    expect(s, count != list_counts.end() ? count->second : op == "cvt" && !packs ? 2 : 3);
  }

  void decode_mov(Form& f, const Statement& s, Instruction& i) {
    expect(s, 2);
    const Type t = f.type();
    const auto from = s.operands[1];
    if (from == "%clock" || from == "%clock_hi" || from == "%clock64" || from == "%globaltimer" ||
        from == "%globaltimer_lo") {
      i.run = find_control(take_apart(t.bytes == 8 ? "clock.u64" : "clock.u32"));
      i.d = slot(s.operands[0], t);
      return;
    }
    const bool unpacks = s.operands[0].front() == '{', packs = s.operands[1].front() == '{';
    if (!unpacks && !packs) {
      i.run = find_arithmetic(f);
      i.d = slot(s.operands[0], t);
      i.a = slot(s.operands[1], t);
      return;
    }
    const auto vector = s.operands[packs ? 1 : 0];
    const auto parts = static_cast<int>(elements(vector).size());
    const std::string word = (packs ? "pack:" : "unpack:") + std::to_string(parts);
    f.words.push_back(word);
    i.run = find_arithmetic(f);
    if (packs) i.d = slot(s.operands[0], t);
    else i.a = slot(s.operands[1], t);
    add_list(i, vector, Type{Kind::bits, t.bytes / parts});
  }

  void decode_access(const Form& f, const Statement& s, Instruction& i) {
    expect(s, f.has("L2::cache_hint") ? 3 : 2);
    for (const auto word : {"volatile", "relaxed", "acquire", "release"})
      if (f.has(word)) i.e = 1;
    const bool loading = f.words[0] != "st";
    const Type t = f.types.back();
    const auto data = s.operands[loading ? 0 : 1];
    const int address_bytes = set_address(i, s.operands[loading ? 1 : 0]);
    const bool vector = data.front() == '{';
    const auto first = vector ? elements(data).front() : data;
    const auto r = find_register(first);
    const Type wide = r ? r->type : Type{t.kind, std::max(2, t.bytes)};
    if (vector) add_list(i, data, wide);
    else (loading ? i.d : i.b) = slot(data, r ? wide : Type{Kind::bits, wide.bytes});
    i.run = find_memory(f, space_of(f), wide.bytes, address_bytes);
  }

  void decode_atomic(const Form& f, const Statement& s, Instruction& i) {
    const Type t = f.type();
    const std::size_t first = f.words[0] == "atom" ? 1 : 0;
    if (f.has("v2") || f.has("v4")) return decode_vector_atomic(f, s, i);
    if (first == 1) i.d = slot(s.operands[0], t);
    const int address_bytes = set_address(i, s.operands[first]);
    i.b = i.c = slot(s.operands[first + 1], t);
    if (s.operands.size() > first + 2) i.c = slot(s.operands[first + 2], t);
    i.run = find_atomic(f, space_of(f), address_bytes);
  }

  /// One scalar operation for each element: no vector is promised to be atomic as a whole.
  void decode_vector_atomic(const Form& f, const Statement& s, Instruction& i) {
    Form scalar = f;
    std::erase_if(scalar.words, [](auto w) { return w == "v2" || w == "v4" || w == "v8"; });
    const Type t = f.type();
    const std::size_t first = f.words[0] == "atom" ? 1 : 0;
    const auto values = elements(s.operands.at(first + 1));
    const int address_bytes = set_address(i, s.operands[first]);
    i.run = find_atomic(scalar, space_of(f), address_bytes);
    if (i.run == nullptr) fail("not supported");
    for (std::size_t n = 0; n < values.size(); ++n) {
      if (first == 1) i.d = slot(elements(s.operands[0])[n], t);
      i.b = i.c = slot(values[n], t);
      if (n + 1 < values.size()) program_.code.push_back(i);
      if (n + 1 < values.size()) i.offset += t.bytes;
    }
  }

  void add_address(Instruction& i, std::string_view text) {
    const Address a = address(text);
    for (const auto word :
         {a.at, static_cast<std::uint32_t>(a.bytes), static_cast<std::uint32_t>(a.offset)})
      program_.lists.push_back(word);
    i.list_size += 3;
  }
  /// cp{.reduce}.async.bulk{.tensor}: to, from{, size}{, mbarrier}{, cache policy}.
  void decode_bulk(const Form& f, const Statement& s, Instruction& i) {
    i.run = find_bulk(f);
    if (f.has("commit_group") || f.has("prefetch")) return;
    if (f.has("wait_group")) {
      i.offset = parse_integer(s.operands.at(0));
      return;
    }
    program_.async_proxy = true;
    const auto first_space = std::find_if(f.words.begin(), f.words.end(), [](auto w) {
      return w == "global" || w.substr(0, 6) == "shared";
    });
    const bool store = first_space != f.words.end() && *first_space == "global",
               tensor = f.has("tensor");
    if (!store && std::find(first_space + 1, f.words.end(), "global") == f.words.end())
      fail("not supported");  // shared to shared
    Reduction reduction = Reduction::none;
    if (f.words[1] == "reduce") {
      static const std::pair<const char*, Reduction> reduction_names[] = {
          {"add", Reduction::add},     {"min", Reduction::min},   {"max", Reduction::max},
          {"and", Reduction::bit_and}, {"or", Reduction::bit_or}, {"xor", Reduction::bit_xor}};
      for (const auto& [name, r] : reduction_names)
        if (f.has(name)) reduction = r;
      if (reduction == Reduction::none) fail("not supported");
    }
    std::uint32_t type = 0;
    if (!f.types.empty()) {
      const Type t = f.types.back();
      type = t.kind == Kind::bf16   ? 9
             : t.kind == Kind::real ? (t.bytes == 2   ? 6
                                       : t.bytes == 4 ? 7
                                                      : 8)
             : t.kind == Kind::sint ? (t.bytes == 4 ? 3 : 5)
             : t.bytes == 8         ? 4
             : t.bytes == 4         ? 2
                                    : t.bytes - 1;
    }
    i.target = (store ? 1u : 0u) | (tensor ? 2u : 0u) | static_cast<std::uint32_t>(reduction) << 4 |
               type << 8;
    const auto shared = s.operands.at(store ? 1 : 0);
    auto global = s.operands.at(store ? 0 : 1);
    std::string_view coordinates;
    std::string map;
    if (tensor) {
      const auto parts = split_operands(global.substr(1, global.size() - 2));
      if (parts.size() != 2) fail("not supported");
      map = "[" + std::string(parts[0]) + "]";
      coordinates = parts[1];
    }
    std::vector<std::uint32_t> slots;
    if (tensor)
      for (const auto name : elements(coordinates)) slots.push_back(slot(name, u32_type));
    const std::size_t next = tensor ? 2 : 3;
    const std::uint32_t size = tensor ? 0 : slot(s.operands.at(2), u32_type);
    // Constants for addresses may be allocated below, but lists grow here alone.
    i.list = static_cast<std::uint32_t>(program_.lists.size());
    add_address(i, shared);
    if (tensor) {
      names_.push_back(std::make_unique<std::string>(map));
      add_address(i, *names_.back());
    } else {
      add_address(i, global);
    }
    if (store) {
      for (int n = 0; n < 3; ++n) program_.lists.push_back(0);
      i.list_size += 3;
    } else {
      add_address(i, s.operands.at(next));
    }
    program_.lists.push_back(size);
    program_.lists.insert(program_.lists.end(), slots.begin(), slots.end());
    i.list_size += 1 + static_cast<std::uint32_t>(slots.size());
  }

  void decode_copy(const Form& f, const Statement& s, Instruction& i) {
    if (f.has("bulk")) return decode_bulk(f, s, i);
    if (f.words[0] == "cp" && f.has("mbarrier")) {
      i.target = (set_address(i, s.operands.at(0)) == 4 ? 1u : 0u) |
                 (space_of(f) == Space::generic ? 2u : 0u);
      i.run = find_control(f);
      return;
    }
    if (f.words[0] == "cvta") {
      expect(s, 2);
      i.d = slot(s.operands[0], f.type());
      i.a = slot(s.operands[1], f.type());
      i.run = find_memory(f, space_of(f), 8, 8);
    } else if (f.has("ca") || f.has("cg")) {
      const int address_bytes = set_address(i, s.operands[0]);
      const Address from = address(s.operands[1]);
      if (from.bytes != 8) fail("cp.async from a narrow address");
      i.b = from.at;
      i.target = static_cast<std::uint32_t>(from.offset);
      i.c = slot(s.operands[2], u32_type);
      const bool partial = s.operands.size() > 3;
      if (partial) i.e = slot(s.operands[3], u32_type);
      i.run = find_memory(f, Space::shared, partial ? 4 : 0, address_bytes);
    } else if (f.words.size() > 1 && f.words[1] == "async") {
      if (!s.operands.empty()) i.offset = parse_integer(s.operands[0]);
      i.run = find_memory(f, Space::shared, 0, 8);
    }
  }

  void decode_tensor(const Form& f, const Statement& s, Instruction& i) {
    const Type half2{Kind::bits, 4}, real{Kind::real, 4};
    const auto op = f.words[0];
    int address_bytes = 8;
    if (op == "ldmatrix" || op == "stmatrix") {
      expect(s, 2);
      const bool loads = op == "ldmatrix";
      const auto data = s.operands[loads ? 0 : 1];
      const std::string braces =
          data.front() == '{' ? std::string(data) : "{" + std::string(data) + "}";
      names_.push_back(std::make_unique<std::string>(braces));
      add_list(i, *names_.back(), half2);
      address_bytes = set_address(i, s.operands[loads ? 1 : 0]);
      i.target = space_of(f) == Space::generic;
      if (i.list_size != static_cast<std::uint32_t>(f.has("x4") ? 4 : f.has("x2") ? 2 : 1))
        fail("another number of registers than expected");
    } else if (op == "mma") {
      expect(s, 4);
      add_list(i, s.operands[0], real);
      add_list(i, s.operands[1], half2);
      add_list(i, s.operands[2], half2);
      add_list(i, s.operands[3], real);
      if (i.list_size != 14) fail("another number of registers than expected");
    } else if (f.has("mma_async")) {
      decode_wgmma(f, s, i);
    } else if (!s.operands.empty()) {
      i.offset = parse_integer(s.operands[0]);
    }
    i.run = find_tensor(f, address_bytes);
  }

  /// Operands: d, a (descriptor or registers), descriptor of b, scale-d, negations of a and b,
  /// transpositions (of a only from shared memory).
  void decode_wgmma(const Form& f, const Statement& s, Instruction& i) {
    program_.async_proxy = true;
    const bool a_registers = s.operands[1].front() == '{';
    expect(s, a_registers ? 7 : 8);
    const auto shape = f.words[4];
    const auto n_at = shape.find('n'), k_at = shape.find('k');
    if (shape.substr(0, n_at) != "m64" || shape.substr(k_at) != "k16") fail("not supported");
    i.target = static_cast<std::uint32_t>(parse_integer(shape.substr(n_at + 1, k_at - n_at - 1)));
    if (i.target % 8 != 0 || i.target > 256) fail("not supported");
    add_list(i, s.operands[0], Type{Kind::real, 4});
    if (i.list_size != i.target / 2) fail("another number of registers than expected");
    if (a_registers) add_list(i, s.operands[1], Type{Kind::bits, 4});
    else i.a = slot(s.operands[1], Type{Kind::bits, 8});
    i.b = slot(s.operands[2], Type{Kind::bits, 8});
    i.c = slot(s.operands[3], pred_type);
    const auto flag = [&](std::size_t operand, std::int64_t value, int bit) {
      if (parse_integer(s.operands[operand]) == value) i.offset |= 1 << bit;
    };
    i.offset = (a_registers ? 1 : 0) | (f.has("bf16") ? 2 : 0);
    flag(4, -1, 4);
    flag(5, -1, 5);
    if (!a_registers) flag(6, 1, 2);
    flag(a_registers ? 6 : 7, 1, 3);
  }

  void decode_control(Form& f, const Statement& s, Instruction& i) {
    const auto op = f.words[0];
    i.run = find_control(f);
    if (op == "bra") {
      jump_to(find_label(s.operands.at(0)));
    } else if (op == "ret" && frame_->inlined) {
      i.run = find_control(take_apart("bra"));
      jump_to(frame_->body.statements.size());
    } else if (op == "bar" || op == "barrier") {
      if (f.has("cluster")) {
      } else if (f.has("warp")) {
        i.a = slot(s.operands.at(0), u32_type);
      } else if (f.has("red")) {
        const bool counts = f.has("popc");
        i.d = slot(s.operands.at(0), counts ? u32_type : pred_type);
        i.a = slot(s.operands.at(1), u32_type);
        i.offset = s.operands.size() > 3;
        if (i.offset) i.b = slot(s.operands[2], u32_type);
        auto source = s.operands.back();
        i.target = (counts ? 0u : f.has("and") ? 1u : 2u) | (source[0] == '!' ? 4u : 0u);
        if (source[0] == '!') source.remove_prefix(1);
        i.c = slot(source, pred_type);
      } else {
        i.a = slot(s.operands.at(0), u32_type);
        i.offset = s.operands.size() > 1;
        if (i.offset) i.b = slot(s.operands[1], u32_type);
      }
    } else if (op == "shfl") {
      expect(s, 5);
      const auto targets = split(s.operands[0], '|');
      i.d = slot(trim(targets[0]), u32_type);
      if (targets.size() > 1) {
        i.list = static_cast<std::uint32_t>(program_.lists.size());
        i.list_size = 1;
        const std::uint32_t at = slot(trim(targets[1]), pred_type);
        program_.lists.push_back(at);
      }
      i.a = slot(s.operands[1], u32_type);
      i.b = slot(s.operands[2], u32_type);
      i.c = slot(s.operands[3], u32_type);
      i.e = slot(s.operands[4], u32_type);
    } else if (op == "vote") {
      expect(s, 3);
      i.d = slot(s.operands[0], f.has("ballot") ? u32_type : pred_type);
      i.a = slot(s.operands[1], pred_type);
      i.b = slot(s.operands[2], u32_type);
    } else if (op == "redux" || op == "match") {
      expect(s, 3);
      const Type t = f.type();
      const auto targets = split(s.operands[0], '|');
      i.d = slot(trim(targets[0]), u32_type);
      if (targets.size() > 1) {
        i.offset = 1;
        i.e = slot(trim(targets[1]), pred_type);
      }
      i.a = slot(s.operands[1], Type{Kind::bits, t.bytes});
      i.b = slot(s.operands[2], u32_type);
    } else if (op == "isspacep") {
      expect(s, 2);
      i.d = slot(s.operands[0], pred_type);
      i.a = slot(s.operands[1], Type{Kind::bits, 8});
    } else if (op == "createpolicy") {
      i.d = slot(s.operands[0], Type{Kind::bits, 8});
    } else if (op == "elect") {
      expect(s, 2);
      const auto targets = split(s.operands[0], '|');
      i.d = slot(trim(targets[0]), u32_type);
      i.e = slot(trim(targets.at(1)), pred_type);
      i.a = slot(s.operands[1], u32_type);
    } else if (op == "mapa") {
      expect(s, 3);
      const Type t = f.type();
      i.d = slot(s.operands[0], t);
      i.a = slot(s.operands[1], t);
      i.b = slot(s.operands[2], u32_type);
    } else if (op == "activemask") {
      i.d = slot(s.operands.at(0), u32_type);
    } else if (op == "mbarrier") {
      decode_mbarrier(f, s, i);
    }
  }

  void decode_mbarrier(Form& f, const Statement& s, Instruction& i) {
    const bool wait = f.has("try_wait") || f.has("test_wait"),
               arrives = f.has("arrive") || f.has("arrive_drop");
    const std::size_t at = arrives && s.operands.size() > 1 && s.operands[0].front() != '[' ? 1
                           : wait                                                           ? 1
                                                                                            : 0;
    if (s.operands.size() <= at) fail("not supported");
    std::uint32_t flags = set_address(i, s.operands[at]) == 4 ? 1 : 0;
    if (space_of(f) == Space::generic) flags |= 2;
    if (f.has("init") || ((f.has("expect_tx") || f.has("complete_tx")) && !arrives))
      i.b = slot(s.operands.at(1), u32_type);
    if (arrives) {
      if (at == 1 && s.operands[0] != "_") {
        flags |= 4;
        i.d = slot(s.operands[0], Type{Kind::bits, 8});
      }
      if (s.operands.size() > at + 1) {
        flags |= f.has("expect_tx") ? 16 : 8;
        i.b = slot(s.operands[at + 1], u32_type);
      }
      if (f.has("arrive_drop")) flags |= 64;
    }
    if (wait) {
      i.d = slot(s.operands[0], pred_type);
      i.b = slot(s.operands.at(2), f.has("parity") ? u32_type : Type{Kind::bits, 8});
      if (!f.has("parity")) flags |= 32;
    }
    i.target = flags;
    i.run = find_control(f);
  }

  /// The instruction that decode_statement is about to add goes to a statement of this frame.
  void jump_to(std::size_t statement) {
    frame_->fixups.push_back({static_cast<std::uint32_t>(program_.code.size()), statement});
  }

  std::size_t find_label(std::string_view name) {
    for (int s = statement_->scope; s >= 0;
         s = frame_->body.scopes[static_cast<std::size_t>(s)].parent) {
      const auto& labels = frame_->body.scopes[static_cast<std::size_t>(s)].labels;
      if (const auto at = labels.find(name); at != labels.end()) return at->second;
    }
    fail("unknown label");
  }

  void fill_registers() {
    auto& r = program_.registers;
    r.assign(round_up(register_bytes_, 64), std::byte{0xFF});
    for (const auto& [key, at] : constants_) {
      const auto [bytes, bits] = key;
      if (bytes == 0) std::memcpy(&r[at], &bits, 4);
      else
        for (int l = 0; l < warp_lanes; ++l)
          std::memcpy(&r[at + static_cast<std::size_t>(l * bytes)], &bits,
                      static_cast<std::size_t>(bytes));
    }
  }
};

bool mentions(std::string_view text, std::string_view name) {
  return text.find(name) != std::string_view::npos;
}

void lay_out_shared(Module& m, Function& f) {
  const auto named = [&](const Declaration& d) {
    if (mentions(f.body, d.name)) return true;
    for (const auto& [name, other] : m.functions)
      if (!other.entry && mentions(f.body, name) && mentions(other.body, d.name)) return true;
    return false;
  };
  std::uint64_t at = shared_base;
  const auto place = [&](const Declaration& d) {
    at = round_up(at, d.align);
    f.shared_address[d.name] = at;
    at += d.bytes();
  };
  for (const auto& d : m.shared)
    if (!d.external && named(d)) place(d);
  if (mentions(f.body, "\n.shared") || mentions(f.body, "\t.shared"))
    for (const auto& scope : parse_body(f.body, f.body_line).scopes)
      for (const auto& d : scope.declarations)
        if (d.space == "shared") place(d);
  f.info.static_shared_bytes = at - shared_base;
  for (const auto& d : m.shared)
    if (d.external) at = round_up(at, std::max<std::size_t>(d.align, 16));
  for (const auto& d : m.shared)
    if (d.external) f.shared_address[d.name] = at;
}

}  // namespace

void complete_info(Module& m, Function& f) {
  if (f.info_ready) return;
  std::size_t at = 0;
  for (const auto& d : f.parameters) {
    at = round_up(at, d.align);
    f.info.parameter_offset.push_back(at);
    f.info.parameter_bytes.push_back(d.bytes());
    at += d.bytes();
  }
  f.info.parameter_total = at;
  f.info.registers = f.info.max_threads > 512 ? 64 : 128;
  lay_out_shared(m, f);
  f.info_ready = true;
}

std::shared_ptr<Program> decode(Module& m, Function& f) {
  complete_info(m, f);
  auto program = std::make_shared<Program>();
  program->name = std::string(f.name);
  program->shared_static = shared_base + f.info.static_shared_bytes;
  for (const auto& d : m.shared)
    if (d.external) program->shared_static = f.shared_address[d.name];
  Decoder(m, f, *program).run();
  return program;
}

}  // namespace softcuda
