#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "tests/softcuda/device.hpp"
#include "tests/softcuda/interpreter/memory.hpp"
#include "tests/softcuda/ptx/ptx.hpp"
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
inline constexpr std::uint64_t shared_window = 1ULL << 56;
inline constexpr std::uint64_t local_window = 2ULL << 56;
inline constexpr std::uint64_t parameter_window = 3ULL << 56;
inline constexpr std::uint64_t window_bytes = 1ULL << 32;
/// Where the .param variables of a body begin, which every lane has for itself.
inline constexpr std::uint64_t call_parameter_base = 1ULL << 20;

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
  std::uint32_t d = 0, a = 0, b = 0, c = 0, e = 0;  ///< registers: bytes in the register file
  std::uint32_t list = 0, list_size = 0;            ///< more of them: Program::lists
  std::uint32_t guard = 0;
  bool guarded = false, negated = false;
  std::uint16_t opcode = 0;  ///< Program::opcodes
  std::int32_t line = 0;
  std::uint32_t target = 0;  ///< of a jump, or another number
  std::int64_t offset = 0;   ///< of an address, or another number
};

/// A decoded kernel.
struct Program {
  struct Special {
    std::string name;
    std::uint32_t at;
  };

  std::string name;
  std::vector<Instruction> code;
  std::vector<std::uint32_t> lists;
  std::vector<std::string> opcodes;
  /// A warp's register file at its start: constants, and poison.
  std::vector<std::byte> registers;
  std::vector<Special> specials;
  std::uint64_t shared_static = 0;  ///< the address at which dynamic shared memory begins
  std::size_t local_bytes = 0, call_parameter_bytes = 0;
  bool async_proxy = false;  ///< uses wgmma or bulk copies: Block::unfenced is kept
};
std::shared_ptr<Program> decode(Module&, Function&);
/// Lays out the shared variables that the kernel names and completes Function::info.
void complete_info(Module&, Function&);

/// Lanes of a warp that are at the same instruction.
struct Group {
  enum State : std::uint8_t { ready, lanes, barrier, yielded };
  std::uint32_t pc;
  Mask mask;
  State state;
};

/// A cp.async that has not landed.
struct PendingCopy {
  std::uint64_t from;
  std::uint32_t to, bytes, valid;
  int lane;
  std::uint64_t group;
};
/// A wgmma that has not been waited for.
struct PendingWgmma {
  const Instruction* instruction;
  std::uint64_t a, b;
  bool accumulate;
  std::uint64_t group;
};

/// Clocks of the race check, a warp each; the last one is the async proxy's.
using Clocks = std::vector<std::uint32_t>;

/// A named barrier of the block.
struct Barrier {
  unsigned arrived = 0, expected = 0;
  std::vector<Warp*> waiting;
  unsigned yes = 0, threads = 0;  ///< of bar.red
  Clocks clocks;
};

enum class Reduction : std::uint8_t { none, add, min, max, bit_and, bit_or, bit_xor };

/// A cp.async.bulk under way, with or without a tensor map.
struct BulkCopy {
  const Instruction* instruction;
  int warp, lane;
  bool store, tensor;
  Reduction reduction;
  std::uint8_t type;  ///< CUtensorMapDataType
  std::uint32_t shared, bytes = 0, mbarrier = 0;
  std::uint64_t global = 0, group = 0;
  TensorMap map{};
  std::array<std::int32_t, 5> at{};  ///< coordinates of the box
  std::vector<std::byte> data;       ///< of a store: what it has read from shared memory
};

enum class Access : std::uint8_t { read, write, atomic, async_write };
struct Races;
struct Block;

/// What an instruction asked of the banks of shared memory.
struct BankCounts {
  std::uint64_t accesses = 0;    ///< of warps
  std::uint64_t wavefronts = 0;  ///< that they took
  std::uint64_t least = 0;       ///< wavefronts without a conflict

  BankCounts& operator+=(const BankCounts&);
};

struct Warp {
  /// A cp.async.mbarrier.arrive: the lane's first `copies` have to land before.
  struct CopyArrival {
    int lane;
    std::uint32_t mbarrier;
    std::size_t copies;
  };
  /// The values of an accumulator of pending wgmmas, whose register holds poison.
  struct Shadow {
    int uses = 0;
    std::array<float, warp_lanes> values;
  };

  Block* block = nullptr;
  int index = 0;
  Mask live = 0;
  Mask carry = 0;
  std::byte* registers = nullptr;
  std::vector<Group> groups;
  std::vector<std::byte> local, call_parameters;  ///< lane after lane
  const Instruction* now = nullptr;

  std::vector<PendingCopy> copies;
  std::vector<CopyArrival> copy_arrivals;
  std::array<std::uint64_t, warp_lanes> copy_group{};
  std::vector<BulkCopy> bulk_stores;
  std::array<std::uint64_t, warp_lanes> bulk_group{};

  std::vector<PendingWgmma> wgmmas;
  std::unordered_map<std::uint32_t, Shadow> shadows;  ///< by register
  std::vector<std::uint32_t> unfenced;  ///< chunks written since the last fence.proxy.async
  std::uint64_t wgmma_group = 0;
  std::size_t wgmmas_issued = 0;

  std::uint32_t cluster_phase = 0;
  bool cluster_arrived = false;
  int waiting_at = -1;   ///< named barrier
  unsigned reduced = 0;  ///< bar.red: 1 waits, 2 has its result
  unsigned reduced_yes = 0, reduced_threads = 0;
  bool shuffle_groups = false;   ///< another group than the one furthest behind may be next
  Clocks clocks;                 ///< of the race check
  std::uint32_t lane_clock = 0;  ///< grows with every __syncwarp

  template <class T>
  T* reg(std::uint32_t offset) const {
    return reinterpret_cast<T*>(registers + offset);
  }
  Mask& pred(std::uint32_t offset) const { return *reinterpret_cast<Mask*>(registers + offset); }
};

struct Block {
  struct IssuedWgmma {
    const Instruction* instruction;
    std::uint64_t a, b;
  };

  const Program* program = nullptr;
  std::uint64_t* executed = nullptr;  ///< instructions by opcode
  Dim3 grid{}, shape{}, id{};
  const std::vector<std::byte>* parameters = nullptr;
  std::byte* shared = nullptr;  ///< at shared_base
  std::size_t shared_bytes = 0;
  std::vector<Warp> warps;
  std::array<Barrier, 16> barriers;
  std::uint32_t cluster_phase = 0;
  Clocks cluster_clocks;
  std::vector<BulkCopy> bulk_loads;
  /// By chunk of 16 bytes of shared memory: written, and no proxy fence since.
  std::vector<std::uint8_t> unfenced;
  std::vector<std::vector<IssuedWgmma>> issued;  ///< by warpgroup
  bool late_wgmma = true;
  std::mt19937* random = nullptr;
  Races* races = nullptr;       ///< null: no race check
  BankCounts* banks = nullptr;  ///< by instruction; null: they are not counted
  bool parallel = false;        ///< other blocks run at the same time
  std::uint64_t epoch = 0;      ///< grows whenever a waiting warp might find its condition changed
  Extent cached;                ///< the last allocation that was used
};

/// Throws a DeviceFault that names the instruction, and its thread or (lane -1) its warp.
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

/// What Instruction::target holds of an mbarrier instruction.
struct MbarrierFlag {
  enum : std::uint32_t {
    narrow_address = 1,
    generic_address = 2,
    stores_state = 4,
    has_count = 8,
    expects_bytes = 16,
    waits_for_token = 32,
    drops = 64
  };
};

/// What Instruction::offset holds of a wgmma.
struct WgmmaFlag {
  enum : std::int64_t {
    a_registers = 1,
    bf16 = 2,
    transposes_a = 4,
    transposes_b = 8,
    negates_a = 16,
    negates_b = 32
  };
};

/// An opcode taken apart.
struct Form {
  std::vector<std::string_view> words;  ///< "ld", "shared", "v4", "f32"
  std::vector<Type> types;              ///< of the words that are types, in order

  bool has(std::string_view word) const {
    for (const auto w : words)
      if (w == word) return true;
    return false;
  }
  Type type() const { return types.empty() ? Type{} : types.front(); }
};

// The handler of a form, by file; null when there is none.
Run find_arithmetic(const Form&);
Run find_memory(const Form&, Space, int register_bytes, int address_bytes);
Run find_copy(const Form&, bool partial, int address_bytes);
Run find_atomic(const Form&, Space, int address_bytes);
Run find_tensor(const Form&, int address_bytes);
Run find_control(const Form&);
Run find_mbarrier(const Form&);
Run find_bulk(const Form&);
/// The same for a call to vprintf or __assertfail.
Run find_call(std::string_view function);

template <class F>
inline void each_lane(Mask m, F&& f) {
  if (m == all_lanes) {
    for (int l = 0; l < warp_lanes; ++l) f(l);
  } else {
    for (; m; m &= m - 1) f(__builtin_ctz(m));
  }
}

inline void check_aligned(Warp& w, int lane, std::uint64_t address, std::size_t bytes) {
  if (address % bytes != 0) [[unlikely]]
    fault(w, lane, 716,
          "misaligned: " + std::to_string(bytes) + " bytes at " + std::to_string(address));
}
/// A generic address: shared, local, parameter or global memory.
std::byte* generic_at(Warp& w, int lane, std::uint64_t address, std::size_t bytes);

// Bulk copies.
/// Lands a load of this mbarrier, or of any (0). Returns false when there is none.
bool land_bulk_load(Block&, std::mt19937&, std::uint32_t mbarrier);
void end_bulk(Warp&, Mask ended);
void check_bulk_at_end(Block&);

// mbarriers.
void arrive_for_copies(Warp&, int lane, std::uint32_t mbarrier);
void complete_tx(Warp&, int lane, std::uint32_t mbarrier, std::uint32_t bytes);

// The race check.
void race_access_slowly(Warp&, int lane, bool shared, std::uint64_t address, std::size_t bytes,
                        Access);
inline void race_access(Warp& w, int lane, bool shared, std::uint64_t address, std::size_t bytes,
                        Access kind) {
  if (w.block->races) [[unlikely]]
    race_access_slowly(w, lane, shared, address, bytes, kind);
}
/// Null unless SOFTCUDA_RACECHECK asks for it.
Races* new_races(std::size_t warps, std::size_t shared_bytes);
void delete_races(Races*);
void race_start_block(Block&);
/// Who acquires `to` knows what the warp did so far.
void race_release(Warp&, Clocks& to);
void race_acquire(Warp&, const Clocks& from);
void race_arrive(Warp&, std::uint32_t mbarrier);
void race_complete(Block&, std::uint32_t mbarrier);
void race_wait(Warp&, std::uint32_t mbarrier);
/// After an atomic or acquire on global memory, the block's accesses to it are ordered.
void race_global_sync(Warp&);

/// Whether a variable of the environment holds something other than 0.
inline bool is_set(const char* variable) {
  const char* const text = std::getenv(variable);
  return text != nullptr && *text != '\0' && *text != '0';
}

// Bank conflicts.
void count_banks_slowly(Warp&, const Instruction&, Mask, const std::uint64_t* address,
                        std::size_t bytes);
/// An access to shared memory of `bytes` a lane of the mask.
inline void count_banks(Warp& w, const Instruction& i, Mask m, const std::uint64_t* address,
                        std::size_t bytes) {
  if (w.block->banks) [[unlikely]]
    count_banks_slowly(w, i, m, address, bytes);
}
void note_banks(const Program&, const std::vector<BankCounts>& counts);

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
