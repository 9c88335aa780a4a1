#include <cstring>

#include "tests/softcuda/halves.hpp"
#include "tests/softcuda/interpreter/machine.hpp"
#include "tests/tile/tensor_core_layouts.hpp"

// Tensor cores: ldmatrix, stmatrix, mma.sync and wgmma.

namespace softcuda {
namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using katt::testing::a_element;
using katt::testing::b_element;
using katt::testing::d_element;
using katt::testing::Element;
using katt::testing::matrix_element;
using katt::testing::MatrixDescriptor;

void require_warp(Warp& w, Mask m, const char* what) {
  if (m != all_lanes) fault(w, -1, 719, std::string(what) + " without all 32 lanes");
}

// ---- ldmatrix: lane 8n + r holds the address of row r of matrix n.

template <class Address>
u64 row_address(Warp& w, const Instruction& i, int lane) {
  u64 address = w.reg<Address>(i.a)[lane] + static_cast<u64>(i.offset);
  if (i.target) {  // generic
    if (address - shared_window >= window_bytes)
      fault(w, lane, 700, "a row outside of shared memory");
    address -= shared_window;
  }
  if (address % 16 != 0) fault(w, lane, 716, "a misaligned row: " + std::to_string(address));
  return address;
}
/// Eight lanes are served together, those of a matrix.
template <class Address>
void count_rows(Warp& w, const Instruction& i) {
  if (!w.block->banks) return;
  u64 rows[warp_lanes]{};
  const int lanes = static_cast<int>(8 * i.list_size);
  for (int l = 0; l < lanes; ++l) rows[l] = row_address<Address>(w, i, l);
  count_banks(w, i, all_lanes >> (warp_lanes - lanes), rows, 16);
}

template <bool transposed, class Address>
Step stmatrix(Warp& w, const Instruction& i, Mask m) {
  if (m != w.live) return Step::wait_lanes;
  require_warp(w, m, "stmatrix");
  count_rows<Address>(w, i);
  const u32* list = w.block->program->lists.data() + i.list;
  for (u32 n = 0; n < i.list_size; ++n) {
    u16 matrix[8][8];
    for (int l = 0; l < warp_lanes; ++l)
      for (int half = 0; half < 2; ++half) {
        const Element e = matrix_element(l, half);
        matrix[transposed ? e.column : e.row][transposed ? e.row : e.column] =
            static_cast<u16>(w.reg<u32>(list[n])[l] >> 16 * half);
      }
    for (u32 r = 0; r < 8; ++r) {
      const int lane = static_cast<int>(8 * n + r);
      const u64 address = row_address<Address>(w, i, lane);
      race_access(w, lane, true, address, 16, Access::write);
      std::memcpy(shared_at(w, lane, address, 16), matrix[r], 16);
      if (w.block->program->async_proxy) note_written(w, address, 16);
    }
  }
  return Step::next;
}

template <bool transposed, class Address>
Step ldmatrix(Warp& w, const Instruction& i, Mask m) {
  if (m != w.live) return Step::wait_lanes;
  require_warp(w, m, "ldmatrix");
  count_rows<Address>(w, i);
  const u32* list = w.block->program->lists.data() + i.list;
  u16 matrix[4][8][8];
  for (u32 n = 0; n < i.list_size; ++n)
    for (u32 r = 0; r < 8; ++r) {
      const int lane = static_cast<int>(8 * n + r);
      const u64 address = row_address<Address>(w, i, lane);
      race_access(w, lane, true, address, 16, Access::read);
      std::memcpy(matrix[n][r], shared_at(w, lane, address, 16), 16);
    }
  for (u32 n = 0; n < i.list_size; ++n)
    for (int l = 0; l < warp_lanes; ++l) {
      u32 halves[2];
      for (int half = 0; half < 2; ++half) {
        const Element e = matrix_element(l, half);
        halves[half] = transposed ? matrix[n][e.column][e.row] : matrix[n][e.row][e.column];
      }
      w.reg<u32>(list[n])[l] = halves[0] | halves[1] << 16;
    }
  return Step::next;
}

// ---- mma.sync.m16n8k16: lists hold D (4), A (4), B (2), C (4).

template <bool bf16>
void unpack_a(const Warp& w, const u32* a, float (*rows)[16]) {
  for (int part = 0; part < 4; ++part)
    for (int l = 0; l < warp_lanes; ++l) {
      const u32 pair = w.reg<u32>(a[part])[l];
      const Element e = a_element(l, 2 * part);
      rows[e.row][e.column] = widen<bf16>(static_cast<u16>(pair));
      rows[e.row][e.column + 1] = widen<bf16>(static_cast<u16>(pair >> 16));
    }
}

template <bool bf16>
void unpack_b(const Warp& w, const u32* b, double (*columns)[8]) {
  for (int part = 0; part < 2; ++part)
    for (int l = 0; l < warp_lanes; ++l) {
      const u32 pair = w.reg<u32>(b[part])[l];
      const Element e = b_element(l, 2 * part);
      columns[e.row][e.column] = widen<bf16>(static_cast<u16>(pair));
      columns[e.row + 1][e.column] = widen<bf16>(static_cast<u16>(pair >> 16));
    }
}

/// Products are exact and their sum is in double, so the order of the sum does not matter.
template <bool bf16>
Step mma_sync(Warp& w, const Instruction& i, Mask m) {
  if (m != w.live) return Step::wait_lanes;
  require_warp(w, m, "mma.sync");
  const u32* list = w.block->program->lists.data() + i.list;
  const u32 *d = list, *c = list + 10;
  float rows[16][16];
  double columns[16][8], sum[16][8];
  unpack_a<bf16>(w, list + 4, rows);
  unpack_b<bf16>(w, list + 8, columns);
  for (int part = 0; part < 4; ++part)
    for (int l = 0; l < warp_lanes; ++l) {
      const Element e = d_element(l, part);
      sum[e.row][e.column] = w.reg<float>(c[part])[l];
    }
  for (int r = 0; r < 16; ++r)
    for (int k = 0; k < 16; ++k) {
      const double x = rows[r][k];
      for (int n = 0; n < 8; ++n) sum[r][n] += x * columns[k][n];
    }
  for (int part = 0; part < 4; ++part)
    for (int l = 0; l < warp_lanes; ++l) {
      const Element e = d_element(l, part);
      w.reg<float>(d[part])[l] = static_cast<float>(sum[e.row][e.column]);
    }
  return Step::next;
}

// ---- wgmma. Each of the four warps computes its 16 of the 64 rows by itself.

MatrixDescriptor read_descriptor(const Warp& w, u64 bits) {
  const MatrixDescriptor descriptor(bits);
  if (descriptor.has_base_offset) {
    fault(w, -1, 719, "wgmma: a matrix descriptor with a base offset is not supported");
  }
  return descriptor;
}

/// Reads lines × 8·chunks elements; `put(line, column)` is where one goes.
template <bool bf16, class Put>
void read_matrix(Warp& w, const MatrixDescriptor& d, bool transposed, u64 first_line, u64 lines,
                 u64 first_chunk, u64 chunks, Put&& put) {
  for (u64 line = 0; line < lines; ++line)
    for (u64 chunk = 0; chunk < chunks; ++chunk) {
      u16 elements[8];
      const u64 address = d.address(first_line + line, first_chunk + chunk, transposed);
      std::memcpy(elements, shared_at(w, -1, address, 16), 16);
      race_access(w, 0, true, address, 16, Access::read);
      if (w.block->unfenced[(address - shared_base) / 16]) [[unlikely]]
        fault(w, -1, 719,
              "reads shared memory at " + std::to_string(address) +
                  ", which was written without a fence.proxy.async since");
      for (u64 e = 0; e < 8; ++e) put(line, 8 * chunk + e) = widen<bf16>(elements[e]);
    }
}

/// What `offset` and `target` of a wgmma hold.
struct WgmmaForm {
  bool a_registers, bf16, transpose_a, transpose_b, negate_a, negate_b;
  u32 n;
  explicit WgmmaForm(const Instruction& i)
      : a_registers(i.offset & WgmmaFlag::a_registers),
        bf16(i.offset & WgmmaFlag::bf16),
        transpose_a(i.offset & WgmmaFlag::transposes_a),
        transpose_b(i.offset & WgmmaFlag::transposes_b),
        negate_a(i.offset & WgmmaFlag::negates_a),
        negate_b(i.offset & WgmmaFlag::negates_b),
        n(i.target) {}
};

/// The warp's 16 rows of D: += A·B, or = A·B, in the accumulators' shadows.
void accumulate_product(Warp& w, const PendingWgmma& p, u32 columns, const float (&a)[16][16],
                        const float (&b)[16][256]) {
  const u32* list = w.block->program->lists.data() + p.instruction->list;
  alignas(64) double sum[16][256];
  for (u32 n = 0; n < columns / 2; ++n) {
    const float* const values = w.shadows.at(list[n]).values.data();
    for (int l = 0; l < warp_lanes; ++l) {
      const Element e = d_element(l, static_cast<int>(n));
      sum[e.row][e.column] = p.accumulate ? values[l] : 0.0;
    }
  }
  for (int r = 0; r < 16; ++r)
    for (int k = 0; k < 16; ++k) {
      const double x = a[r][k];
      for (u32 n = 0; n < columns; ++n) sum[r][n] += x * b[k][n];
    }
  for (u32 n = 0; n < columns / 2; ++n) {
    float* const values = w.shadows.at(list[n]).values.data();
    for (int l = 0; l < warp_lanes; ++l) {
      const Element e = d_element(l, static_cast<int>(n));
      values[l] = static_cast<float>(sum[e.row][e.column]);
    }
  }
}

/// A register of D is the kernel's again after the last product that adds to it.
void release_accumulator(Warp& w, u32 at, u32 number) {
  auto& shadow = w.shadows.at(at);
  if (--shadow.uses > 0) return;
  for (int l = 0; l < warp_lanes; ++l) {
    if (w.reg<u32>(at)[l] != poison) {
      fault(w, l, 719,
            "accumulator register " + std::to_string(number) +
                " was written while the wgmma was pending");
    }
    w.reg<float>(at)[l] = shadow.values[static_cast<std::size_t>(l)];
  }
  w.shadows.erase(at);
}

template <bool bf16>
void multiply_group(Warp& w, const PendingWgmma& p) {
  const Instruction& i = *p.instruction;
  const WgmmaForm form(i);
  const u32* list = w.block->program->lists.data() + i.list;
  const u64 first_row = 16 * static_cast<u64>(w.index % 4);
  float a[16][16], b[16][256];
  w.now = &i;
  if (form.a_registers) {
    unpack_a<bf16>(w, list + form.n / 2, a);
  } else if (form.transpose_a) {
    read_matrix<bf16>(w, read_descriptor(w, p.a), true, 0, 16, first_row / 8, 2,
                      [&](u64 k, u64 m) -> float& { return a[m][k]; });
  } else {
    read_matrix<bf16>(w, read_descriptor(w, p.a), false, first_row, 16, 0, 2,
                      [&](u64 m, u64 k) -> float& { return a[m][k]; });
  }
  if (form.transpose_b)
    read_matrix<bf16>(w, read_descriptor(w, p.b), true, 0, 16, 0, form.n / 8,
                      [&](u64 k, u64 n) -> float& { return b[k][n]; });
  else
    read_matrix<bf16>(w, read_descriptor(w, p.b), false, 0, form.n, 0, 2,
                      [&](u64 n, u64 k) -> float& { return b[k][n]; });
  const double sign = form.negate_a != form.negate_b ? -1 : 1;
  for (auto& row : a)
    for (float& x : row) x = static_cast<float>(sign * x);
  accumulate_product(w, p, form.n, a, b);
  for (u32 n = 0; n < form.n / 2; ++n) release_accumulator(w, list[n], n);
}

/// The instruction's list holds D, then A's four registers if A is in registers. Its a and b are
/// the descriptors of A and B, its c is the predicate scale-d.
Step wgmma(Warp& w, const Instruction& i, Mask m) {
  if (m != w.live) return Step::wait_lanes;
  require_warp(w, m, "wgmma");
  const WgmmaForm form(i);
  PendingWgmma p{&i, 0, 0, false, w.wgmma_group};
  if (!form.a_registers) p.a = w.reg<u64>(i.a)[0];
  p.b = w.reg<u64>(i.b)[0];
  const Mask accumulate = w.pred(i.c);
  if (accumulate != 0 && accumulate != all_lanes)
    fault(w, -1, 719, "wgmma: scale-d differs between lanes");
  p.accumulate = accumulate != 0;
  const u32* list = w.block->program->lists.data() + i.list;
  for (u32 n = 0; n < form.n / 2; ++n) {
    auto& shadow = w.shadows[list[n]];
    if (shadow.uses++ > 0) continue;
    for (int l = 0; l < warp_lanes; ++l) {
      shadow.values[static_cast<std::size_t>(l)] = w.reg<float>(list[n])[l];
      w.reg<u32>(list[n])[l] = poison;
    }
  }
  for (int l = 1; l < warp_lanes; ++l)
    if (w.reg<u64>(i.b)[l] != p.b || (!form.a_registers && w.reg<u64>(i.a)[l] != p.a))
      fault(w, l, 719, "wgmma: descriptors differ between lanes");
  auto& issued = w.block->issued[static_cast<std::size_t>(w.index / 4)];
  if (w.wgmmas_issued == issued.size()) {
    issued.push_back({&i, p.a, p.b});
  } else {
    const auto& other = issued[w.wgmmas_issued];
    if (other.instruction != &i)
      fault(w, -1, 719,
            "wgmma: another warp of the warpgroup issued the one in line " +
                std::to_string(other.instruction->line) + " here");
    if (other.a != p.a || other.b != p.b)
      fault(w, -1, 719, "wgmma: descriptors differ between the warps of a warpgroup");
  }
  ++w.wgmmas_issued;
  w.wgmmas.push_back(p);
  if (!w.block->late_wgmma) perform_wgmmas(w, ~u64{0});
  return Step::next;
}
Step wgmma_commit(Warp& w, const Instruction&, Mask m) {
  if (m != w.live) return Step::wait_lanes;
  ++w.wgmma_group;
  return Step::next;
}
Step wgmma_wait(Warp& w, const Instruction& i, Mask m) {
  if (m != w.live) return Step::wait_lanes;
  perform_wgmmas(w, static_cast<u64>(i.offset));
  return Step::next;
}
Step wgmma_fence(Warp& w, const Instruction&, Mask m) {
  return m != w.live ? Step::wait_lanes : Step::next;
}

}  // namespace

void check_wgmmas_at_end(Block& b) {
  for (auto& w : b.warps) {
    const auto& issued = b.issued[static_cast<std::size_t>(w.index / 4)];
    if (issued.empty()) continue;
    const auto first = static_cast<std::size_t>(w.index / 4 * 4);
    if (b.warps.size() < first + 4)
      fault(w, -1, 719, "wgmma in a warpgroup of fewer than four warps");
    w.now = issued[std::min(w.wgmmas_issued, issued.size() - 1)].instruction;
    if (w.wgmmas_issued != issued.size())
      fault(w, -1, 719, "not all four warps of the warpgroup issued this wgmma");
    if (!w.wgmmas.empty())
      fault(w, -1, 719, "the warp ended without a wgmma.wait_group for this wgmma");
  }
}

/// groups_left = ~0: also those that are not committed yet.
void perform_wgmmas(Warp& w, std::uint64_t groups_left) {
  std::size_t done = 0;
  for (; done < w.wgmmas.size(); ++done) {
    const PendingWgmma& p = w.wgmmas[done];
    if (groups_left != ~u64{0} && p.group + groups_left >= w.wgmma_group) break;
    WgmmaForm(*p.instruction).bf16 ? multiply_group<true>(w, p) : multiply_group<false>(w, p);
  }
  w.wgmmas.erase(w.wgmmas.begin(), w.wgmmas.begin() + static_cast<std::ptrdiff_t>(done));
}

Run find_tensor(const Form& f, int address_bytes) {
  const auto op = f.words[0];
  if (op == "ldmatrix") {
    if (!f.has("m8n8") || !f.has("b16")) return nullptr;
    if (address_bytes == 4) return f.has("trans") ? ldmatrix<true, u32> : ldmatrix<false, u32>;
    return f.has("trans") ? ldmatrix<true, u64> : ldmatrix<false, u64>;
  }
  if (op == "stmatrix") {
    if (!f.has("m8n8") || !f.has("b16")) return nullptr;
    if (address_bytes == 4) return f.has("trans") ? stmatrix<true, u32> : stmatrix<false, u32>;
    return f.has("trans") ? stmatrix<true, u64> : stmatrix<false, u64>;
  }
  const auto are_float_from = [&](std::string_view t) {
    const auto& w = f.words;
    return op == "mma" ? w.size() == 10 && w[6] == "f32" && w[7] == t && w[8] == t && w[9] == "f32"
                       : w.size() == 8 && w[5] == "f32" && w[6] == t && w[7] == t;
  };
  if (op == "mma") {
    if (!f.has("m16n8k16") || !f.has("row") || !f.has("col")) return nullptr;
    return are_float_from("bf16")  ? mma_sync<true>
           : are_float_from("f16") ? mma_sync<false>
                                   : nullptr;
  }
  if (op == "wgmma") {
    if (f.has("fence")) return wgmma_fence;
    if (f.has("commit_group")) return wgmma_commit;
    if (f.has("wait_group")) return wgmma_wait;
    if (f.has("mma_async") && (are_float_from("bf16") || are_float_from("f16"))) return wgmma;
  }
  return nullptr;
}

}  // namespace softcuda
