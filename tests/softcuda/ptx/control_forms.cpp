#include "tests/softcuda/ptx/decoder.hpp"

// Jumps, barriers, and what goes across lanes.

namespace softcuda {

void Decoder::decode_control(const Form& f, const Statement& s, Instruction& i) {
  const auto op = f.words[0];
  i.run = find_control(f);
  if (op == "bra") {
    jump_to(find_label(s.operands.at(0)));
  } else if (op == "ret" && frame_->inlined) {
    i.run = find_control(take_apart("bra"));
    jump_to(frame_->body.statements.size());
  } else if (op == "bar" || op == "barrier") {
    decode_barrier(f, s, i);
  } else if (op == "shfl") {
    decode_shuffle(s, i);
  } else if (op == "mbarrier") {
    decode_mbarrier(f, s, i);
  } else {
    decode_across_lanes(f, s, i);
  }
}

void Decoder::decode_barrier(const Form& f, const Statement& s, Instruction& i) {
  if (f.has("cluster")) return;
  if (f.has("red")) return decode_barrier_reduction(f, s, i);
  i.a = slot(s.operands.at(0), u32_type);
  if (f.has("warp")) return;
  i.offset = s.operands.size() > 1;
  if (i.offset) i.b = slot(s.operands[1], u32_type);
}

void Decoder::decode_barrier_reduction(const Form& f, const Statement& s, Instruction& i) {
  const bool counts = f.has("popc");
  i.d = slot(s.operands.at(0), counts ? u32_type : pred_type);
  i.a = slot(s.operands.at(1), u32_type);
  i.offset = s.operands.size() > 3;
  if (i.offset) i.b = slot(s.operands[2], u32_type);
  auto source = s.operands.back();
  const bool negated = source[0] == '!';
  if (negated) source.remove_prefix(1);
  i.target = (counts ? 0U : f.has("and") ? 1U : 2U) | (negated ? 4U : 0U);
  i.c = slot(source, pred_type);
}

void Decoder::decode_shuffle(const Statement& s, Instruction& i) {
  expect(s, 5);
  const auto targets = split(s.operands[0], '|');
  i.d = slot(trim(targets[0]), u32_type);
  if (targets.size() > 1) add_word(i, slot(trim(targets[1]), pred_type));
  i.a = slot(s.operands[1], u32_type);
  i.b = slot(s.operands[2], u32_type);
  i.c = slot(s.operands[3], u32_type);
  i.e = slot(s.operands[4], u32_type);
}

void Decoder::decode_across_lanes(const Form& f, const Statement& s, Instruction& i) {
  const auto op = f.words[0];
  const Type t = f.type();
  if (op == "vote") {
    expect(s, 3);
    i.d = slot(s.operands[0], f.has("ballot") ? u32_type : pred_type);
    i.a = slot(s.operands[1], pred_type);
    i.b = slot(s.operands[2], u32_type);
  } else if (op == "redux" || op == "match") {
    expect(s, 3);
    const auto targets = split(s.operands[0], '|');
    i.d = slot(trim(targets[0]), u32_type);
    i.offset = targets.size() > 1;
    if (i.offset) i.e = slot(trim(targets[1]), pred_type);
    i.a = slot(s.operands[1], Type{Kind::bits, t.bytes});
    i.b = slot(s.operands[2], u32_type);
  } else if (op == "elect") {
    expect(s, 2);
    const auto targets = split(s.operands[0], '|');
    i.d = slot(trim(targets[0]), u32_type);
    i.e = slot(trim(targets.at(1)), pred_type);
    i.a = slot(s.operands[1], u32_type);
  } else if (op == "isspacep") {
    expect(s, 2);
    i.d = slot(s.operands[0], pred_type);
    i.a = slot(s.operands[1], Type{Kind::bits, 8});
  } else if (op == "mapa") {
    expect(s, 3);
    i.d = slot(s.operands[0], t);
    i.a = slot(s.operands[1], t);
    i.b = slot(s.operands[2], u32_type);
  } else if (op == "createpolicy") {
    i.d = slot(s.operands[0], Type{Kind::bits, 8});
  } else if (op == "activemask") {
    i.d = slot(s.operands.at(0), u32_type);
  }
}

void Decoder::decode_mbarrier(const Form& f, const Statement& s, Instruction& i) {
  const bool waits = f.has("try_wait") || f.has("test_wait");
  const bool arrives = f.has("arrive") || f.has("arrive_drop");
  const bool has_result =
      waits || (arrives && s.operands.size() > 1 && s.operands[0].front() != '[');
  const std::size_t at = has_result ? 1 : 0;
  if (s.operands.size() <= at) fail("not supported");
  if (set_address(i, s.operands[at]) == 4) i.target |= MbarrierFlag::narrow_address;
  if (space_of(f) == Space::generic) i.target |= MbarrierFlag::generic_address;
  if (waits) {
    const bool parity = f.has("parity");
    i.d = slot(s.operands[0], pred_type);
    i.b = slot(s.operands.at(2), parity ? u32_type : Type{Kind::bits, 8});
    if (!parity) i.target |= MbarrierFlag::waits_for_token;
  } else if (arrives) {
    if (has_result && s.operands[0] != "_") {
      i.target |= MbarrierFlag::stores_state;
      i.d = slot(s.operands[0], Type{Kind::bits, 8});
    }
    if (s.operands.size() > at + 1) {
      i.target |= f.has("expect_tx") ? MbarrierFlag::expects_bytes : MbarrierFlag::has_count;
      i.b = slot(s.operands[at + 1], u32_type);
    }
    if (f.has("arrive_drop")) i.target |= MbarrierFlag::drops;
  } else if (!f.has("inval")) {
    i.b = slot(s.operands.at(1), u32_type);
  }
  i.run = find_control(f);
}

}  // namespace softcuda
