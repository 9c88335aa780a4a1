#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "tests/softcuda/device.hpp"
#include "tests/softcuda/interpreter/memory.hpp"
#include "tests/softcuda/interpreter/ptx.hpp"
#include "tests/softcuda/tensor_map.hpp"

/// The machine that executes decoded PTX: instructions, warps and blocks. A register is an array
/// over the 32 lanes, so that a handler is a loop that becomes vectors. A predicate is a word, a
/// bit a lane.
namespace softcuda {

using Mask = std::uint32_t;
inline constexpr int warp_lanes = 32;
inline constexpr Mask all_lanes = ~Mask{0};

// Addresses. The first KiB of shared memory belongs to the system, as on sm_90. Generic addresses
// of shared, local and parameter memory are none that the host uses.
inline constexpr std::uint64_t shared_base = 1024;
inline constexpr std::uint64_t local_base = 256;
inline constexpr std::uint64_t shared_window = 1ull << 56;
inline constexpr std::uint64_t local_window = 2ull << 56;
inline constexpr std::uint64_t parameter_window = 3ull << 56;
inline constexpr std::uint64_t window_bytes = 1ull << 32;
/// Where the .param variables of a body begin, which every lane has for itself.
inline constexpr std::uint64_t call_parameter_base = 1ull << 20;

enum class Space : std::uint8_t { generic, global, constant, shared, local, parameter };

enum class Step : std::uint8_t {
  next,
  jumped,         ///< the lanes of the mask go to Instruction::target
  wait_lanes,     ///< not executed: other lanes of the warp must arrive first
  barrier,        ///< executed; the warp waits for a named barrier
  barrier_again,  ///< as barrier, and executed once more behind it (bar.red)
  yield,          ///< executed; let others run first
  retry,          ///< not executed: let others run first
  ended,          ///< the lanes of the mask have returned
};

struct Warp;
struct Instruction;
using Run = Step (*)(Warp&, const Instruction&, Mask);

struct Instruction {
  Run run = nullptr;
  std::uint32_t d = 0, a = 0, b = 0, c = 0;  ///< registers: byte offsets into the register file
  std::uint32_t e = 0;                       ///< a fifth one
  std::uint32_t list = 0, list_size = 0;     ///< more of them: Program::lists
  std::uint32_t guard = 0;
  bool guarded = false, negated = false;
  std::uint16_t opcode = 0;  ///< Program::opcodes
  std::int32_t line = 0;
  std::uint32_t target = 0;
  std::int64_t offset = 0;  ///< of an address, or another number
};

/// A decoded kernel.
struct Program {
  std::string name;
  std::vector<Instruction> code;
  std::vector<std::uint32_t> lists;
  std::vector<std::string> opcodes;
  std::vector<std::byte>
      registers;  ///< a warp's register file at its start: constants, the rest poison
  struct Special {
    std::string name;
    std::uint32_t at;
  };
  std::vector<Special> specials;
  std::uint64_t shared_static = 0;  ///< where dynamic shared memory starts, window address
  std::size_t local_bytes = 0, call_parameter_bytes = 0;
  bool async_proxy = false;  ///< has wgmma, so that Block::unfenced is kept
};
std::shared_ptr<Program> decode(Module&, Function&);
/// Lays out the shared variables that the kernel names and completes f.info.
void complete_info(Module&, Function&);

struct Group {
  enum State : std::uint8_t { ready, lanes, barrier, yielded };
  std::uint32_t pc;
  Mask mask;
  State state;
};

struct PendingCopy {
  std::uint64_t from;
  std::uint32_t to, bytes, valid;
  int lane, line;
  std::uint64_t group;
};
struct PendingWgmma {
  const Instruction* instruction;
  std::uint64_t a, b;
  bool accumulate;
  std::uint64_t group;
};

using Clocks = std::vector<
    std::uint32_t>;  ///< of the race detector: by warp; the last one is the async proxy's

struct Barrier {
  unsigned arrived = 0, expected = 0;
  std::vector<Warp*> waiting;
  bool reduces = false;
  unsigned yes = 0, threads = 0;  ///< of bar.red
  Clocks clocks;
};

enum class Reduction : std::uint8_t { none, add, min, max, bit_and, bit_or, bit_xor };
/// cp.async.bulk{.tensor} under way, either direction.
struct BulkCopy {
  const Instruction* instruction;
  int warp, lane;
  bool store, tensor;
  Reduction reduction;
  std::uint8_t type;
  std::uint32_t shared, bytes = 0, mbarrier = 0;
  std::uint64_t global = 0, group = 0;
  TensorMap map{};
  std::array<std::int32_t, 5> at{};
  std::vector<std::byte> data;  ///< of a store: what has been read from shared memory
};

enum class Access : std::uint8_t { read, write, atomic, async_write };
struct Races;

struct Block;

struct Warp {
  Block* block = nullptr;
  int index = 0;
  Mask live = 0;
  Mask carry = 0;
  std::byte* registers = nullptr;
  std::vector<Group> groups;
  std::vector<std::byte> local, call_parameters;  ///< per lane, one lane behind the other
  std::vector<PendingCopy> copies;
  struct CopyArrival {
    int lane;
    std::uint32_t mbarrier;
    std::size_t copies;
  };  ///< the lane's first `copies` have to land before
  std::vector<CopyArrival> copy_arrivals;
  std::array<std::uint64_t, warp_lanes> copy_group{};
  std::vector<PendingWgmma> wgmmas;
  struct Shadow {
    int uses = 0;
    std::array<float, warp_lanes> values;
  };
  std::unordered_map<std::uint32_t, Shadow>
      shadows;  ///< accumulators of pending wgmmas; their registers hold poison
  std::vector<std::uint32_t>
      unfenced;  ///< chunks of shared memory written since the last fence.proxy.async
  std::uint64_t wgmma_group = 0;
  std::vector<BulkCopy> bulk_stores;
  std::array<std::uint64_t, warp_lanes> bulk_group{};
  std::size_t wgmmas_issued = 0;
  std::uint32_t cluster_phase = 0;
  unsigned reduced = 0, reduced_yes = 0,
           reduced_threads = 0;  ///< bar.red: 1 waits, 2 has its result
  bool cluster_arrived = false;
  Clocks clocks;                 ///< of the race detector
  std::uint32_t lane_clock = 0;  ///< grows with every __syncwarp
  bool shuffle_groups = false;
  int waiting_at = -1;  ///< named barrier
  const Instruction* now = nullptr;
  int fault_lane = -1;

  template <class T>
  T* reg(std::uint32_t offset) const {
    return reinterpret_cast<T*>(registers + offset);
  }
  Mask& pred(std::uint32_t offset) const { return *reinterpret_cast<Mask*>(registers + offset); }
};

struct Block {
  const Program* program = nullptr;
  std::uint64_t* executed = nullptr;
  Dim3 grid{}, shape{}, id{};
  const std::vector<std::byte>* parameters = nullptr;
  std::byte* shared = nullptr;  ///< at shared_base
  std::size_t shared_bytes = 0;
  std::vector<std::uint8_t>
      unfenced;  ///< by chunk of 16 bytes of shared memory: written, and no proxy fence since
  std::vector<Warp> warps;
  std::array<Barrier, 16> barriers;
  unsigned cluster_arrived = 0;
  std::uint32_t cluster_phase = 0;
  Clocks cluster_clocks;
  std::vector<BulkCopy> bulk_loads;
  std::mt19937* random = nullptr;
  Races* races = nullptr;  ///< SOFTCUDA_RACECHECK
  bool parallel = false;   ///< other blocks run at the same time
  struct IssuedWgmma {
    const Instruction* instruction;
    std::uint64_t a, b;
  };
  std::vector<std::vector<IssuedWgmma>> issued;  ///< by warpgroup
  std::uint64_t epoch = 0;  ///< grows whenever a waiting warp might find its condition changed
  Extent cached;            ///< the last allocation reached
  bool late_wgmma = true;
};

[[noreturn]] void fault(const Warp&, int lane, int error, const std::string& what);

/// Every access to memory goes through here: bounds and alignment are checked.
inline std::byte* shared_at(const Warp& w, int lane, std::uint64_t address, std::size_t bytes) {
  const Block& block = *w.block;
  if (address < shared_base || address - shared_base + bytes > block.shared_bytes) [[unlikely]]
    fault(w, lane, 700,
          "shared memory out of bounds: " + std::to_string(bytes) + " bytes at " +
              std::to_string(address) + ", the block has [1024, " +
              std::to_string(shared_base + block.shared_bytes) + ")");
  return block.shared + (address - shared_base);
}
std::byte* global_at_slowly(Warp& w, int lane, std::uint64_t address, std::size_t bytes);
inline std::byte* global_at(Warp& w, int lane, std::uint64_t address, std::size_t bytes) {
  const Extent& cached = w.block->cached;
  if (cached.contains(address, bytes)) [[likely]]
    return cached.at(address);
  return global_at_slowly(w, lane, address, bytes);
}
inline std::byte* local_at(Warp& w, int lane, std::uint64_t address, std::size_t bytes) {
  const std::size_t size = w.block->program->local_bytes;
  if (address < local_base || address - local_base + bytes > size)
    fault(w, lane, 700, "local memory out of bounds: address " + std::to_string(address));
  return w.local.data() + static_cast<std::size_t>(lane) * size + (address - local_base);
}

// Handlers, by file. Each returns null when it does not know the form.
struct Form {                           ///< an opcode taken apart
  std::vector<std::string_view> words;  ///< "ld", "shared", "v4", "f32"
  std::vector<Type> types;              ///< those of the words that are types, in order
  bool has(std::string_view word) const {
    for (const auto w : words)
      if (w == word) return true;
    return false;
  }
  Type type() const { return types.empty() ? Type{} : types.front(); }
};
Run find_arithmetic(const Form&);
Run find_memory(const Form&, Space, int register_bytes, int address_bytes);
Run find_atomic(const Form&, Space, int address_bytes);
Run find_tensor(const Form&, int address_bytes);
Run find_control(const Form&);
Run find_bulk(const Form&);

/// A generic address: shared, local, parameter or global memory.
std::byte* generic_at(Warp& w, int lane, std::uint64_t address, std::size_t bytes);

// bulk.cpp
bool land_bulk_load(
    Block&, std::mt19937&,
    std::uint32_t mbarrier);  ///< one, of an mbarrier or (0) of any; false: there is none
void end_bulk(Warp&, Mask ended);
void check_bulk_at_end(Block&);
void arrive_for_copies(Warp&, int lane, std::uint32_t mbarrier);
void complete_tx(Warp&, int lane, std::uint32_t mbarrier, std::uint32_t bytes);  ///< control.cpp

// race.cpp
void race_access_slowly(Warp&, int lane, bool shared, std::uint64_t address, std::size_t bytes,
                        Access);
inline void race_access(Warp& w, int lane, bool shared, std::uint64_t address, std::size_t bytes,
                        Access kind) {
  if (w.block->races) [[unlikely]]
    race_access_slowly(w, lane, shared, address, bytes, kind);
}
Races* new_races(std::size_t warps, std::size_t shared_bytes);
void delete_races(Races*);
void race_start_block(Block&);
void race_release(Warp&,
                  Clocks& to);  ///< what the warp did so far is known to whoever acquires `to`
void race_acquire(Warp&, const Clocks& from);
void race_arrive(Warp&, std::uint32_t mbarrier);
void race_complete(Block&, std::uint32_t mbarrier);
void race_wait(Warp&, std::uint32_t mbarrier);
void race_global_sync(Warp&);  ///< an atomic or acquire on global memory

/// Held during an atomic operation when blocks run at the same time.
struct AtomicGuard {
  static std::mutex& lock();
  std::unique_lock<std::mutex> hold;
  explicit AtomicGuard(const Warp& w) {
    if (w.block->parallel) hold = std::unique_lock(lock());
  }
};

/// Notes what the generic proxy wrote to shared memory. The async proxy may read it only after a
/// fence.proxy.async of the writer.
inline void note_written(Warp& w, std::uint64_t address, std::size_t bytes) {
  for (std::uint64_t chunk = (address - shared_base) / 16;
       chunk <= (address - shared_base + bytes - 1) / 16; ++chunk) {
    w.block->unfenced[chunk] = 1;
    w.unfenced.push_back(static_cast<std::uint32_t>(chunk));
  }
}

/// Lands the copies of cp.async that `groups_left` more recent groups of the lane do not hold back.
void land_copies(Warp&, Mask, std::uint64_t groups_left);
bool land_copy_arrivals(Warp&);  ///< cp.async.mbarrier.arrive: performs the oldest that is pending
inline constexpr std::uint32_t poison = 0x7FFBADAD;
void check_wgmmas_at_end(Block&);
void perform_wgmmas(Warp&, std::uint64_t groups_left);

}  // namespace softcuda
