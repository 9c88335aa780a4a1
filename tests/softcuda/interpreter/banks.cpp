#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "tests/softcuda/interpreter/machine.hpp"

// Bank conflicts of shared memory (SOFTCUDA_BANKS). It has 32 banks of 4 bytes. A wavefront serves the
// lanes that want the same word of a bank, in every bank; lanes that want 8 bytes are served as two half
// warps, those that want 16 as four quarters (CUDA C++ Programming Guide, "Shared Memory"). TMA and wgmma,
// which swizzle themselves, are not counted.

namespace softcuda {
namespace {

constexpr std::size_t banks = 32;
constexpr std::size_t word_bytes = 4;

struct BankTotals {
  std::mutex lock;
  /// By kernel, and by line and opcode.
  std::map<std::string, std::map<std::pair<std::int32_t, std::string>, BankCounts>> kernels;
};
BankTotals& totals() {
  static auto* const t = new BankTotals;
  return *t;
}

/// Wavefronts of the lanes [first, first + lanes); 0 when none of them is active.
std::uint64_t wavefronts(Mask m, const std::uint64_t* address, std::size_t bytes, int first,
                         int lanes) {
  std::array<std::uint64_t, 2 * banks> words;
  auto end = words.begin();
  for (int l = first; l < first + lanes; ++l) {
    if ((m >> l & 1) == 0) continue;
    const std::uint64_t last = (address[l] + bytes - 1) / word_bytes;
    for (std::uint64_t word = address[l] / word_bytes; word <= last; ++word) *end++ = word;
  }
  std::sort(words.begin(), end);
  std::array<std::uint64_t, banks> in_bank{};
  std::uint64_t most = 0;
  std::for_each(words.begin(), std::unique(words.begin(), end),
                [&](std::uint64_t word) { most = std::max(most, ++in_bank[word % banks]); });
  return most;
}

}  // namespace

BankCounts& BankCounts::operator+=(const BankCounts& other) {
  accesses += other.accesses;
  wavefronts += other.wavefronts;
  least += other.least;
  return *this;
}

void count_banks_slowly(Warp& w, const Instruction& i, Mask m, const std::uint64_t* address,
                        std::size_t bytes) {
  BankCounts& counts = w.block->banks[&i - w.block->program->code.data()];
  const int lanes = bytes <= word_bytes ? warp_lanes : static_cast<int>(banks * word_bytes / bytes);
  ++counts.accesses;
  for (int first = 0; first < warp_lanes; first += lanes) {
    const std::uint64_t made = wavefronts(m, address, bytes, first, lanes);
    counts.wavefronts += made;
    counts.least += made == 0 ? 0 : 1;
  }
}

void note_banks(const Program& program, const std::vector<BankCounts>& counts) {
  if (counts.empty()) return;
  const std::lock_guard hold(totals().lock);
  auto& lines = totals().kernels[program.name];
  for (std::size_t n = 0; n < counts.size(); ++n) {
    if (counts[n].accesses == 0) continue;
    const Instruction& i = program.code[n];
    lines[{i.line, program.opcodes[i.opcode]}] += counts[n];
  }
}

std::string bank_conflicts() {
  const std::lock_guard hold(totals().lock);
  std::string text;
  const auto tell = [&](const BankCounts& counts) {
    text += std::to_string(counts.accesses) + " accesses, " + std::to_string(counts.wavefronts) +
            " wavefronts, at least " + std::to_string(counts.least) + "\n";
  };
  for (const auto& [kernel, lines] : totals().kernels) {
    BankCounts all;
    for (const auto& [place, counts] : lines) all += counts;
    if (all.accesses == 0) continue;
    text += "softcuda: banks: " + kernel + ": ";
    tell(all);
    for (const auto& [place, counts] : lines) {
      if (counts.wavefronts == counts.least) continue;
      text += "  line " + std::to_string(place.first) + " " + place.second + ": ";
      tell(counts);
    }
  }
  return text;
}

}  // namespace softcuda
