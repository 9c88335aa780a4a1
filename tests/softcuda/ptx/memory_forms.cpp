#include <algorithm>
#include <optional>
#include <utility>

#include "tests/softcuda/ptx/decoder.hpp"

// Loads, stores, atomics, copies, tensor cores.

namespace softcuda {
namespace {

struct Directions {
  bool stores, loads;
};
/// Whether a bulk copy goes to global memory, or comes from there.
Directions directions(const Form& f) {
  const auto first = std::find_if(f.words.begin(), f.words.end(), [](auto w) {
    return w == "global" || w.substr(0, 6) == "shared";
  });
  if (first == f.words.end()) return {false, false};
  return {*first == "global", std::find(first + 1, f.words.end(), "global") != f.words.end()};
}

/// Nothing when the reduction is not known.
std::optional<Reduction> reduction_of(const Form& f) {
  static constexpr std::pair<std::string_view, Reduction> names[] = {
      {"add", Reduction::add},     {"min", Reduction::min},   {"max", Reduction::max},
      {"and", Reduction::bit_and}, {"or", Reduction::bit_or}, {"xor", Reduction::bit_xor}};
  if (f.words[1] != "reduce") return Reduction::none;
  for (const auto& [name, reduction] : names) {
    if (f.has(name)) return reduction;
  }
  return std::nullopt;
}

/// The CUtensorMapDataType of a copy's elements.
std::uint32_t tensor_type(const Form& f) {
  enum : std::uint32_t { u8, u16, u32, s32, u64, s64, f16, f32, f64, bf16 };
  if (f.types.empty()) return u8;
  const Type t = f.types.back();
  if (t.kind == Kind::bf16) return bf16;
  if (t.kind == Kind::real) return t.bytes == 2 ? f16 : t.bytes == 4 ? f32 : f64;
  if (t.kind == Kind::sint) return t.bytes == 4 ? s32 : s64;
  return t.bytes == 8 ? u64 : t.bytes == 4 ? u32 : t.bytes == 2 ? u16 : u8;
}

}  // namespace

void Decoder::decode_access(const Form& f, const Statement& s, Instruction& i) {
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

void Decoder::decode_atomic(const Form& f, const Statement& s, Instruction& i) {
  const Type t = f.type();
  const std::size_t first = f.words[0] == "atom" ? 1 : 0;
  if (f.has("v2") || f.has("v4")) return decode_vector_atomic(f, s, i);
  if (first == 1) i.d = slot(s.operands[0], t);
  const int address_bytes = set_address(i, s.operands[first]);
  i.b = i.c = slot(s.operands[first + 1], t);
  if (s.operands.size() > first + 2) i.c = slot(s.operands[first + 2], t);
  i.run = find_atomic(f, space_of(f), address_bytes);
}

void Decoder::decode_vector_atomic(const Form& f, const Statement& s, Instruction& i) {
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

void Decoder::decode_copy(const Form& f, const Statement& s, Instruction& i) {
  if (f.has("bulk")) return decode_bulk(f, s, i);
  if (f.words[0] == "cp" && f.has("mbarrier")) {
    if (set_address(i, s.operands.at(0)) == 4) i.target |= MbarrierFlag::narrow_address;
    if (space_of(f) == Space::generic) i.target |= MbarrierFlag::generic_address;
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
    i.run = find_copy(f, partial, address_bytes);
  } else if (f.words.size() > 1 && f.words[1] == "async") {
    if (!s.operands.empty()) i.offset = parse_integer(s.operands[0]);
    i.run = find_copy(f, false, 8);
  }
}

void Decoder::decode_bulk(const Form& f, const Statement& s, Instruction& i) {
  i.run = find_bulk(f);
  if (f.has("commit_group") || f.has("prefetch")) return;
  if (f.has("wait_group")) {
    i.offset = parse_integer(s.operands.at(0));
    return;
  }
  program_.async_proxy = true;
  const auto [store, loads] = directions(f);
  if (!store && !loads) fail("not supported");  // from shared to shared memory
  const bool tensor = f.has("tensor");
  const auto reduction = reduction_of(f);
  if (!reduction) fail("not supported");
  i.target = (store ? 1U : 0U) | (tensor ? 2U : 0U) | static_cast<std::uint32_t>(*reduction) << 4 |
             tensor_type(f) << 8;
  auto global = s.operands.at(store ? 0 : 1);
  std::vector<std::uint32_t> coordinates;
  if (tensor) {  // [map, {x, y}]
    const auto parts = split_operands(global.substr(1, global.size() - 2));
    if (parts.size() != 2) fail("not supported");
    global = keep("[" + std::string(parts[0]) + "]");
    for (const auto name : elements(parts[1])) coordinates.push_back(slot(name, u32_type));
  }
  const std::uint32_t size = tensor ? 0 : slot(s.operands.at(2), u32_type);
  add_address(i, s.operands.at(store ? 1 : 0));
  add_address(i, global);
  if (store) {
    for (int n = 0; n < 3; ++n) add_word(i, 0);
  } else {
    add_address(i, s.operands.at(tensor ? 2 : 3));
  }
  add_word(i, size);
  for (const std::uint32_t at : coordinates) add_word(i, at);
}

void Decoder::decode_tensor(const Form& f, const Statement& s, Instruction& i) {
  const Type half2{Kind::bits, 4}, real{Kind::real, 4};
  const auto op = f.words[0];
  if (op == "ldmatrix" || op == "stmatrix") return decode_matrix_access(f, s, i);
  if (op == "mma") {
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
  i.run = find_tensor(f, 8);
}

void Decoder::decode_matrix_access(const Form& f, const Statement& s, Instruction& i) {
  expect(s, 2);
  const bool loads = f.words[0] == "ldmatrix";
  auto data = s.operands[loads ? 0 : 1];
  if (data.front() != '{') data = keep("{" + std::string(data) + "}");
  add_list(i, data, Type{Kind::bits, 4});
  const std::uint32_t expected = f.has("x4") ? 4 : f.has("x2") ? 2 : 1;
  if (i.list_size != expected) fail("another number of registers than expected");
  const int address_bytes = set_address(i, s.operands[loads ? 1 : 0]);
  i.target = space_of(f) == Space::generic;
  i.run = find_tensor(f, address_bytes);
}

void Decoder::decode_wgmma(const Form& f, const Statement& s, Instruction& i) {
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
  const auto has = [&](std::size_t operand, std::int64_t value) {
    return parse_integer(s.operands[operand]) == value;
  };
  if (a_registers) i.offset |= WgmmaFlag::a_registers;
  if (f.has("bf16")) i.offset |= WgmmaFlag::bf16;
  if (has(4, -1)) i.offset |= WgmmaFlag::negates_a;
  if (has(5, -1)) i.offset |= WgmmaFlag::negates_b;
  if (!a_registers && has(6, 1)) i.offset |= WgmmaFlag::transposes_a;
  if (has(a_registers ? 6 : 7, 1)) i.offset |= WgmmaFlag::transposes_b;
}

}  // namespace softcuda
