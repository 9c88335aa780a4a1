#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <iterator>

#include "tests/softcuda/ptx/decoder.hpp"

// Operands: registers, constants, addresses, lists.

namespace softcuda {
namespace {

bool is_special(std::string_view name) {
  static constexpr std::string_view with_axis[] = {
      "%tid",       "%ntid",       "%ctaid",         "%nctaid",
      "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid"};
  static constexpr std::string_view plain[] = {"%laneid",
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
                                               "%total_smem_size",
                                               "%dynamic_smem_size",
                                               "%gridid"};
  const auto is_one_of = [](std::string_view word, const auto& words) {
    return std::find(std::begin(words), std::end(words), word) != std::end(words);
  };
  const auto dot = name.find('.');
  if (dot == std::string_view::npos) return is_one_of(name, plain);
  const auto axis = name.substr(dot);
  return (axis == ".x" || axis == ".y" || axis == ".z") &&
         is_one_of(name.substr(0, dot), with_axis);
}

}  // namespace

void Decoder::fail(const std::string& why) const {
  std::string text(statement_->opcode);
  for (const auto o : statement_->operands)
    text += (text.size() == statement_->opcode.size() ? " " : ", ") + std::string(o);
  throw DeviceFault(719, std::string(function_.name) + ", PTX line " +
                             std::to_string(statement_->line) + ": " + why + ": " +
                             text.substr(0, 200));
}

std::uint16_t Decoder::opcode_index(std::string_view opcode) {
  const auto [at, fresh] =
      opcodes_.try_emplace(opcode, static_cast<std::uint16_t>(program_.opcodes.size()));
  if (fresh) program_.opcodes.emplace_back(opcode);
  return at->second;
}

std::string_view Decoder::keep(std::string text) {
  texts_.push_back(std::make_unique<std::string>(std::move(text)));
  return *texts_.back();
}

std::uint32_t Decoder::allocate(Type t) {
  const std::size_t bytes =
      t.kind == Kind::pred ? 4 : static_cast<std::size_t>(t.bytes) * warp_lanes;
  register_bytes_ = round_up(register_bytes_, t.kind == Kind::pred ? 4 : 64);
  const auto at = static_cast<std::uint32_t>(register_bytes_);
  register_bytes_ += bytes;
  return at;
}

bool Decoder::declares(const Declaration& d, std::string_view name) {
  if (d.space != "reg") return false;
  if (!d.ranged) return d.name == name;
  if (name.size() <= d.name.size() || name.substr(0, d.name.size()) != d.name) return false;
  std::size_t number = 0;
  const auto digits = name.substr(d.name.size());
  const auto r = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return r.ec == std::errc() && r.ptr == digits.data() + digits.size() && number < d.elements;
}

std::optional<Register> Decoder::find_register(std::string_view name) {
  for (int s = statement_->scope; s >= 0;
       s = frame_->body.scopes[static_cast<std::size_t>(s)].parent) {
    auto& known = frame_->registers[static_cast<std::size_t>(s)];
    if (const auto at = known.find(name); at != known.end()) return at->second;
    for (const auto& d : frame_->body.scopes[static_cast<std::size_t>(s)].declarations)
      if (declares(d, name)) return known[name] = Register{allocate(d.type), d.type};
  }
  return std::nullopt;
}

std::uint32_t Decoder::constant(int bytes, std::uint64_t bits, bool pred) {
  if (!pred && bytes < 8) bits &= (1ULL << (8 * bytes)) - 1;
  const auto [at, fresh] = constants_.try_emplace({pred ? 0 : bytes, bits}, 0);
  if (fresh) at->second = allocate(pred ? pred_type : Type{Kind::bits, bytes});
  return at->second;
}

std::uint32_t Decoder::special(std::string_view name) {
  if (!is_special(name)) fail("unknown register " + std::string(name));
  const auto [at, fresh] = specials_.try_emplace(name, 0);
  if (fresh) {
    at->second = allocate(u32_type);
    program_.specials.push_back({std::string(name), at->second});
  }
  return at->second;
}

std::optional<std::uint64_t> Decoder::find_symbol(std::string_view name) {
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

bool Decoder::is_number(std::string_view s) {
  return std::isdigit(static_cast<unsigned char>(s[0])) ||
         (s.size() > 1 && s[0] == '-' && std::isdigit(static_cast<unsigned char>(s[1])));
}

std::uint64_t Decoder::immediate(std::string_view s, Type t) {
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

std::uint32_t Decoder::slot(std::string_view text, Type t) {
  if (is_number(text)) {
    const std::uint64_t bits = immediate(text, t);
    return t.kind == Kind::pred ? constant(4, bits ? all_lanes : 0, true) : constant(t.bytes, bits);
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

std::uint32_t Decoder::narrowed(std::string_view text, Type t, const Instruction& i) {
  const auto r = is_number(text) ? std::nullopt : find_register(text);
  if (!r || r->type.bytes <= t.bytes || t.kind == Kind::real) return slot(text, t);
  Instruction chop = i;
  chop.run = find_arithmetic(
      take_apart("cvt.u" + std::to_string(8 * t.bytes) + ".u" + std::to_string(8 * r->type.bytes)));
  if (chop.run == nullptr) fail("not supported");
  chop.a = r->at;
  chop.d = allocate(t);
  program_.code.push_back(chop);
  return chop.d;
}

std::vector<std::string_view> Decoder::elements(std::string_view braces) {
  return split_operands(braces.substr(1, braces.size() - 2));
}

void Decoder::add_word(Instruction& i, std::uint32_t word) {
  if (i.list_size == 0) i.list = static_cast<std::uint32_t>(program_.lists.size());
  program_.lists.push_back(word);
  ++i.list_size;
}

void Decoder::add_list(Instruction& i, std::string_view braces, Type t) {
  for (const auto name : elements(braces)) add_word(i, slot(name, t));
}

Decoder::Address Decoder::address(std::string_view text) {
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

int Decoder::set_address(Instruction& i, std::string_view text) {
  const Address a = address(text);
  i.a = a.at;
  i.offset = a.offset;
  return a.bytes;
}

void Decoder::add_address(Instruction& i, std::string_view text) {
  const Address a = address(text);
  add_word(i, a.at);
  add_word(i, static_cast<std::uint32_t>(a.bytes));
  add_word(i, static_cast<std::uint32_t>(a.offset));
}

void Decoder::expect(const Statement& s, std::size_t operands) const {
  if (s.operands.size() != operands) fail("another number of operands than expected");
}

void Decoder::fill_registers() {
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

}  // namespace softcuda
