#include <algorithm>
#include <utility>

#include "tests/softcuda/ptx/decoder.hpp"

// Bodies, statements, calls, arithmetic; and the layout of shared memory.

namespace softcuda {

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

namespace {

std::size_t count_of_operands(const Form& f) {
  static const std::unordered_map<std::string_view, std::size_t> counts = {
      {"setp", 3}, {"selp", 4}, {"fma", 4},  {"mad", 4},   {"madc", 4}, {"bfi", 5},  {"bfe", 4},
      {"shf", 4},  {"lop3", 5}, {"sad", 4},  {"bfind", 2}, {"prmt", 4}, {"dp4a", 4}, {"not", 2},
      {"neg", 2},  {"abs", 2},  {"sqrt", 2}, {"rcp", 2},   {"ex2", 2},  {"lg2", 2},  {"rsqrt", 2},
      {"sin", 2},  {"cos", 2},  {"tanh", 2}, {"clz", 2},   {"popc", 2}, {"brev", 2}};
  const auto count = counts.find(f.words[0]);
  if (count != counts.end()) return count->second;
  const bool packs = f.types.front().packed == 2;
  return f.words[0] == "cvt" && !packs ? 2 : 3;
}

}  // namespace

void Decoder::run() {
  Symbols parameters;
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

void Decoder::expand(Function& f, const Symbols& parameters, bool inlined) {
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

void Decoder::place_variable(const Declaration& d, Symbols& symbols) {
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

void Decoder::decode_statement(const Statement& s) {
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

void Decoder::jump_to(std::size_t statement) {
  frame_->fixups.push_back({static_cast<std::uint32_t>(program_.code.size()), statement});
}

std::size_t Decoder::find_label(std::string_view name) {
  for (int s = statement_->scope; s >= 0;
       s = frame_->body.scopes[static_cast<std::size_t>(s)].parent) {
    const auto& labels = frame_->body.scopes[static_cast<std::size_t>(s)].labels;
    if (const auto at = labels.find(name); at != labels.end()) return at->second;
  }
  fail("unknown label");
}

void Decoder::decode_call(const Statement& s) {
  if (!s.guard.empty()) skip_call(s);
  const bool has_results = s.operands.size() > 1 && s.operands[0].front() == '(';
  const auto name = s.operands[has_results ? 1 : 0];
  const std::size_t arguments = has_results ? 2 : 1;
  if (const Run run = find_call(name)) {
    return add_system_call(s, name, run, s.operands.at(arguments));
  }
  const auto callee = module_.functions.find(name);
  if (callee == module_.functions.end() || callee->second.body.empty()) {
    fail("call of a function that is unknown, or known at run time only");
  }
  Symbols parameters;
  if (has_results) bind(callee->second.results, s.operands[0], parameters);
  if (s.operands.size() > arguments) {
    bind(callee->second.parameters, s.operands[arguments], parameters);
  }
  expand(callee->second, parameters, true);
}

void Decoder::skip_call(const Statement& s) {
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

void Decoder::add_system_call(const Statement& s, std::string_view name, Run run,
                              std::string_view arguments) {
  Instruction i;
  i.line = s.line;
  i.opcode = opcode_index(name);
  i.run = run;
  for (const auto argument : elements(arguments)) {
    add_word(i, static_cast<std::uint32_t>(parameter(argument) - call_parameter_base));
  }
  program_.code.push_back(i);
}

std::uint64_t Decoder::parameter(std::string_view name) {
  const auto symbol = find_symbol(name);
  if (!symbol) fail("call with an argument that is no .param variable");
  return *symbol;
}

void Decoder::bind(const std::vector<Declaration>& formal, std::string_view actual,
                   Symbols& parameters) {
  const auto names = elements(actual);
  if (names.size() != formal.size()) fail("call with another number of arguments");
  for (std::size_t n = 0; n < names.size(); ++n) parameters[formal[n].name] = parameter(names[n]);
}

void Decoder::decode_operands(Form& f, const Statement& s, Instruction& i) {
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

void Decoder::decode_arithmetic(const Form& f, const Statement& s, Instruction& i) {
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
  if (op == "cvt" && decode_widening_cvt(f, s, i)) return;
  const std::size_t n = s.operands.size();
  i.d = slot(s.operands[0], d);
  if (n > 1) i.a = op == "cvt" ? narrowed(s.operands[1], t, i) : slot(s.operands[1], t);
  if (n > 2) i.b = slot(s.operands[2], b);
  if (n > 3) i.c = slot(s.operands[3], c);
  if (n > 4) i.e = slot(s.operands[4], u32_type);
  expect(s, count_of_operands(f));
}

bool Decoder::decode_widening_cvt(const Form& f, const Statement& s, Instruction& i) {
  const Type d = f.types.front();
  if (d.packed != 1 || d.kind == Kind::real || d.kind == Kind::bf16) return false;
  const auto r = find_register(s.operands[0]);
  if (!r || r->type.bytes <= d.bytes) return false;
  Instruction first = i;
  first.a = narrowed(s.operands[1], f.types.back(), i);
  first.d = allocate(d);
  program_.code.push_back(first);
  const std::string sign = d.kind == Kind::sint ? "s" : "u";
  i.run = find_arithmetic(take_apart("cvt." + sign + std::to_string(8 * r->type.bytes) + "." +
                                     sign + std::to_string(8 * d.bytes)));
  i.a = first.d;
  i.d = r->at;
  return true;
}

void Decoder::decode_mov(Form& f, const Statement& s, Instruction& i) {
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

namespace {

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
