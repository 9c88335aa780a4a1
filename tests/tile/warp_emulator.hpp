#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.hpp"
#include "tests/tile/block_emulator.hpp"
#include "tests/tile/tensor_core_layouts.hpp"

/// The instructions of a thread in an emulated block (block_emulator.hpp), with the semantics of
/// the PTX ISA, so that the kernels' index arithmetic is tested (tensor_core_layouts.hpp).
namespace katt::testing {

/// A thread's view of its block: the members of tile::MmaBlock.
class EmulatedBlock {
 public:
  EmulatedBlock(BlockEmulator& emulator, int thread) : emulator_(emulator), thread_(thread) {}

  unsigned thread() const { return static_cast<unsigned>(thread_); }
  void barrier() const {
    emulator_.meet(emulator_.block_, thread_, thread_, "barrier", nullptr, [](auto&) {});
  }
  bool barrier_any(bool value) const {
    struct Argument {
      bool in, out;
    } argument{value, false};
    emulator_.meet(emulator_.block_, thread_, thread_, "barrier_any", &argument,
                   [this](auto& arguments) {
                     bool any = false;
                     for (int t = 0; t < emulator_.threads_; ++t) {
                       any = any || at<Argument>(arguments, t)->in;
                     }
                     for (int t = 0; t < emulator_.threads_; ++t) {
                       at<Argument>(arguments, t)->out = any;
                     }
                   });
    return argument.out;
  }
  void sync_warp() const {
    meet_warp("sync_warp", nullptr, [](auto&) {});
  }

  template <class T>
  T shuffle_xor(T value, int mask) const {
    struct Argument {
      T in, out;
      int mask;
    } argument{value, 0, mask};
    meet_warp("shuffle_xor", &argument, [](auto& arguments) {
      for (int lane = 0; lane < 32; ++lane) {
        auto* own = at<Argument>(arguments, lane);
        own->out = at<Argument>(arguments, lane ^ own->mask)->in;
      }
    });
    return argument.out;
  }

  /// Blocks run one after the other.
  static void fence_device() {}
  static std::uint64_t atomic_load(const std::uint64_t* word) { return *word; }
  static std::uint64_t atomic_add(std::uint64_t* word, std::uint64_t value) {
    return std::exchange(*word, *word + value);
  }
  static std::uint64_t atomic_exchange(std::uint64_t* word, std::uint64_t value) {
    return std::exchange(*word, value);
  }
  static std::uint64_t atomic_replace(std::uint64_t* word, std::uint64_t expected,
                                      std::uint64_t value) {
    return std::exchange(*word, *word == expected ? value : *word);
  }

  static float exp2(float x) { return std::exp2(x); }

  template <class T>
  static std::uint32_t pack(float first, float second) {
    return static_cast<std::uint32_t>(T(first).bits) | static_cast<std::uint32_t>(T(second).bits)
                                                           << 16;
  }
  void store_pair(unsigned offset, std::uint32_t pair) const {
    if (std::byte* target = emulator_.at(offset, 4)) std::memcpy(target, &pair, 4);
  }
  std::uint32_t load_word(unsigned offset) const {
    std::uint32_t word = 0;
    if (const std::byte* source = emulator_.at(offset, 4)) std::memcpy(&word, source, 4);
    return word;
  }
  void copy_chunk(void* global, unsigned offset) const {
    if (const std::byte* source = emulator_.at(offset, 16)) std::memcpy(global, source, 16);
  }

  template <class Chunk>
  Chunk load_chunk(unsigned offset) const {
    static_assert(sizeof(Chunk) == 16);
    Chunk chunk{};
    if (const std::byte* source = emulator_.at(offset, 16)) std::memcpy(&chunk, source, 16);
    return chunk;
  }

  /// Takes effect no sooner than wait(): until then the target is NaN.
  void copy_async(unsigned offset, const void* global, bool live) {
    std::byte* target = emulator_.at(offset, 16);
    if (target == nullptr) return;
    if (reinterpret_cast<std::uintptr_t>(global) % 16 != 0) emulator_.fail("misaligned copy");
    std::memset(target, 0xFF, 16);
    open_.push_back({target, global, live});
  }
  void commit() {
    groups_.push_back(open_);
    open_.clear();
  }
  template <int Pending>
  void wait() {
    while (groups_.size() > Pending) {
      for (const Copy& copy : groups_.front()) {
        const std::size_t chunk = static_cast<std::size_t>(copy.target - emulator_.first_) / 16;
        emulator_.unfenced_[chunk] = true;
        written_.push_back(chunk);
        if (copy.live) {
          std::memcpy(copy.target, copy.source, 16);
        } else {
          std::memset(copy.target, 0, 16);
        }
      }
      groups_.pop_front();
    }
  }

  void load_matrices(std::uint32_t (&registers)[4], unsigned offset) const {
    load(registers, offset, false);
  }
  void load_matrices_transposed(std::uint32_t (&registers)[4], unsigned offset) const {
    load(registers, offset, true);
  }

  template <class T>
  void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) const {
    struct Argument {
      float* c;
      const std::uint32_t* a;
      std::uint32_t b[2];
    } argument{c, a, {b0, b1}};
    meet_warp("mma", &argument, [](auto& arguments) {
      float a_matrix[16][16];
      float b_matrix[16][8];
      for (int lane = 0; lane < 32; ++lane) {
        const auto* held = at<Argument>(arguments, lane);
        for (int i = 0; i < 8; ++i) {
          const Element e = a_element(lane, i);
          a_matrix[e.row][e.column] = element<T>(held->a[i / 2], i % 2);
        }
        for (int i = 0; i < 4; ++i) {
          const Element e = b_element(lane, i);
          b_matrix[e.row][e.column] = element<T>(held->b[i / 2], i % 2);
        }
      }
      for (int lane = 0; lane < 32; ++lane) {
        auto* held = at<Argument>(arguments, lane);
        for (int i = 0; i < 4; ++i) {
          const Element e = d_element(lane, i);
          for (int k = 0; k < 16; ++k) held->c[i] += a_matrix[e.row][k] * b_matrix[k][e.column];
        }
      }
    });
  }

  void barrier_init(unsigned offset, int count) const {
    if (emulator_.at(offset, 8) != nullptr) emulator_.barriers_[offset] = {.count = count};
  }
  void barrier_arrive(unsigned offset) const {
    auto& barrier = emulator_.barriers_.at(offset);
    ++barrier.arrived;
    barrier.end_phase();
    emulator_.pause(thread_);
  }
  void barrier_arrive_expecting(unsigned offset, unsigned bytes) const {
    auto& barrier = emulator_.barriers_.at(offset);
    barrier.bytes += bytes;
    ++barrier.arrived;
    barrier.end_phase();
  }
  /// Comes some time later, when nothing else can happen or by chance; until then the target is
  /// NaN.
  void load_box(unsigned target, const tile::TensorMap& map, const int (&at)[5],
                unsigned barrier) const {
    if (target % 1024 != 0) emulator_.fail("a box begins at no multiple of 1024 bytes");
    emulator_.begin_box({target,
                         map.boxes(),
                         {at[0], at[1], at[2], at[3], at[4]},
                         &emulator_.barriers_.at(barrier)});
    emulator_.pause(thread_);
  }
  void barrier_wait(unsigned offset, unsigned parity) const {
    auto& barrier = emulator_.barriers_.at(offset);
    if (barrier.phase % 2 != parity) return;
    auto& fiber = emulator_.fibers_[static_cast<std::size_t>(thread_)];
    fiber.barrier = &barrier;
    fiber.parity = parity;
    fiber.context.leave_for(emulator_.scheduler_);
  }
  void barrier_group(int id, int threads) const {
    auto& group = emulator_.named_.at(static_cast<std::size_t>(id));
    group.size = threads;
    emulator_.meet(group, thread_, thread_ % threads, "barrier_group", nullptr, [](auto&) {});
  }
  void barrier_group_arrive(int id, int threads) const {
    auto& group = emulator_.named_.at(static_cast<std::size_t>(id));
    group.size = threads;
    if (group.arrived == 0) group.operation = "barrier_group";
    if (++group.arrived == group.size) {
      group.arrived = 0;
      ++group.generation;
    }
    emulator_.pause(thread_);
  }
  void fence_async_proxy() {
    for (const std::size_t chunk : written_) emulator_.unfenced_[chunk] = false;
    written_.clear();
    for (auto& [offset, barrier] : emulator_.barriers_) barrier.fenced = true;
  }

  template <int Registers>
  static void increase_registers() {}
  template <int Registers>
  static void decrease_registers() {}
  template <int N>
  static void hold(float (&)[N][4]) {}
  template <int N>
  static void hold(std::uint32_t (&)[N][4]) {}
  static unsigned computed_here(unsigned value) { return value; }

  /// Before the first product of a group: what the registers hold by then is what it sees.
  void wgmma_fence() const {
    meet_warpgroup("wgmma_fence", nullptr, [this](auto&) { warpgroup().fenced = true; });
  }
  void wgmma_commit() const {
    meet_warpgroup("wgmma_commit", nullptr, [this](auto&) {
      warpgroup().fenced = false;
      warpgroup().groups.push_back(std::move(warpgroup().open));
      warpgroup().open.clear();
    });
  }
  /// The products end here: their operands in shared memory must still be what they were.
  template <int Pending>
  void wgmma_wait() const {
    meet_warpgroup("wgmma_wait", nullptr, [this](auto&) {
      auto& groups = warpgroup().groups;
      for (; groups.size() > Pending; groups.pop_front()) {
        for (const auto& product : groups.front()) retire(product);
      }
    });
  }

  template <class T, int N>
  void wgmma(float (&d)[N / 8][4], std::uint64_t a, std::uint64_t b, bool accumulate) const {
    begin_product<T, N>(
        &d[0][0], accumulate, b, false,
        [this, a](MatrixA& matrix, auto&) {
          for (int row = 0; row < 64; ++row) {
            for (int k = 0; k < 16; ++k) matrix[row][k] = element_of<T>(a, row, k, false);
          }
        },
        nullptr);
  }
  template <class T, int N, int First, int Blocks>
  void wgmma(float (&all)[Blocks][4], const std::uint32_t (&a)[4], std::uint64_t b,
             bool accumulate) const {
    begin_product<T, N>(
        &all[First][0], accumulate, b, true,
        [](MatrixA& matrix, auto& held) {
          for (int t = 0; t < 128; ++t) {
            for (int i = 0; i < 8; ++i) {
              const Element e = a_element(t, i);
              matrix[e.row][e.column] = element<T>(held[static_cast<std::size_t>(t)][i / 2], i % 2);
            }
          }
        },
        a);
  }

 private:
  struct Copy {
    std::byte* target;
    const void* source;
    bool live;
  };

  using MatrixA = float[64][16];

  template <class Argument, class Arguments>
  static Argument* at(Arguments& arguments, int lane) {
    return static_cast<Argument*>(arguments[static_cast<std::size_t>(lane)]);
  }
  template <class T>
  static float element(std::uint32_t pair, int which) {
    T value;
    value.bits = static_cast<std::uint16_t>(pair >> (16 * which));
    return static_cast<float>(value);
  }

  BlockEmulator::Warpgroup& warpgroup() const {
    return emulator_.warpgroups_[static_cast<std::size_t>(thread_ / 128)];
  }
  template <class Act>
  void meet_warpgroup(const char* operation, void* argument, const Act& act) const {
    emulator_.meet(warpgroup().group, thread_, thread_ % 128, operation, argument, act);
  }

  /// The element at an index along a line of the matrix that a descriptor describes.
  template <class T>
  float element_of(std::uint64_t bits, int line, int index, bool transposed) const {
    const MatrixDescriptor descriptor(bits);
    if (descriptor.swizzle != 3) emulator_.fail("descriptor: not the 128-byte swizzle");
    const std::uint64_t chunk = descriptor.address(
        static_cast<std::uint64_t>(line), static_cast<std::uint64_t>(index) / 8, transposed);
    const unsigned byte = static_cast<unsigned>(chunk) + static_cast<unsigned>(index) % 8 * 2;
    const std::byte* source = emulator_.at(byte, 2);
    if (source == nullptr) return 0.0F;
    if (emulator_.unfenced_[byte / 16]) emulator_.fail("wgmma reads what no proxy fence covers");
    T value;
    std::memcpy(&value, source, 2);
    return static_cast<float>(value);
  }

  /// Where register i of a thread stands among the accumulators of a warpgroup.
  static std::size_t place_of(int thread, int i, int columns) {
    const Element e = d_element(thread, i);
    return static_cast<std::size_t>(e.row * columns + e.column);
  }

  template <class T, int N, class A>
  void begin_product(float* d, bool accumulate, std::uint64_t b, bool across, const A& a,
                     const std::uint32_t* registers) const {
    struct Argument {
      float* d;
      const std::uint32_t* registers;  ///< of A; read as late as they may be
      std::uint64_t b;
      bool accumulate;
    } argument{d, registers, b, accumulate};
    meet_warpgroup("wgmma", &argument, [&](auto& arguments) {
      if (!warpgroup().fenced) emulator_.fail("a group of wgmma begins without a fence");
      std::array<const std::uint32_t*, 128> held;
      for (int t = 0; t < 128; ++t) {
        const auto* own = at<Argument>(arguments, t);
        held[static_cast<std::size_t>(t)] = own->registers;
        if (own->b != b || own->accumulate != accumulate) emulator_.fail("descriptors differ");
      }
      float* first = at<Argument>(arguments, 0)->d;
      auto& accumulators = warpgroup().accumulators[first];
      if (accumulators.pending++ == 0) {
        accumulators.columns = N;
        accumulators.values.resize(64 * N);
        for (int t = 0; t < 128; ++t) {
          float* own = at<Argument>(arguments, t)->d;
          accumulators.registers[static_cast<std::size_t>(t)] = own;
          for (int i = 0; i < N / 2; ++i) {
            accumulators.values[place_of(t, i, N)] = own[i];
            own[i] = std::nanf("");
          }
        }
      }
      const auto compute = [this, held, b, across, a]() {
        std::vector<float> product(64 * N);
        MatrixA a_matrix;
        a(a_matrix, held);
        std::vector<float> b_matrix(16 * N);
        for (int k = 0; k < 16; ++k) {
          for (int n = 0; n < N; ++n) {
            b_matrix[static_cast<std::size_t>(k * N + n)] =
                across ? element_of<T>(b, k, n, true) : element_of<T>(b, n, k, false);
          }
        }
        for (int row = 0; row < 64; ++row) {
          float* out = &product[static_cast<std::size_t>(row * N)];
          for (int k = 0; k < 16; ++k) {
            for (int n = 0; n < N; ++n)
              out[n] += a_matrix[row][k] * b_matrix[static_cast<std::size_t>(k * N + n)];
          }
        }
        return product;
      };
      warpgroup().open.push_back({first, accumulate, compute, compute()});
    });
  }

  void retire(const BlockEmulator::Product& product) const {
    const std::vector<float> late = product.compute();
    if (std::memcmp(late.data(), product.at_once.data(), late.size() * sizeof(float)) != 0) {
      emulator_.fail("operands changed under a wgmma");
    }
    auto& accumulators = warpgroup().accumulators.at(product.accumulators);
    for (std::size_t i = 0; i < late.size(); ++i) {
      float& value = accumulators.values[i];
      value = (product.accumulate ? value : 0.0F) + late[i];
    }
    if (--accumulators.pending > 0) return;
    const int columns = accumulators.columns;
    for (int t = 0; t < 128; ++t) {
      float* own = accumulators.registers[static_cast<std::size_t>(t)];
      for (int i = 0; i < columns / 2; ++i) {
        if (!std::isnan(own[i])) emulator_.fail("registers written under a wgmma");
        own[i] = accumulators.values[place_of(t, i, columns)];
      }
    }
  }

  template <class Act>
  void meet_warp(const char* operation, void* argument, const Act& act) const {
    emulator_.meet(emulator_.warps_[static_cast<std::size_t>(thread_ / 32)], thread_, thread_ % 32,
                   operation, argument, act);
  }

  void load(std::uint32_t (&registers)[4], unsigned offset, bool transposed) const {
    struct Argument {
      unsigned offset;
      std::uint32_t* registers;
      bool transposed;
    } argument{offset, registers, transposed};
    meet_warp("ldmatrix", &argument, [this](auto& arguments) {
      for (int m = 0; m < 4; ++m) {
        std::uint16_t matrix[8][8];
        std::array<bool, 8> banks{};
        for (int r = 0; r < 8; ++r) {
          const unsigned row = at<Argument>(arguments, 8 * m + r)->offset;
          const std::byte* source = emulator_.at(row, 16);
          if (source == nullptr) return;
          std::memcpy(matrix[r], source, 16);
          bool& used = banks[row / 16 % 8];
          if (used) emulator_.fail("bank conflict");
          used = true;
        }
        for (int lane = 0; lane < 32; ++lane) {
          const auto* own = at<Argument>(arguments, lane);
          std::uint32_t halves[2];
          for (int i = 0; i < 2; ++i) {
            const Element e = matrix_element(lane, i);
            halves[i] = own->transposed ? matrix[e.column][e.row] : matrix[e.row][e.column];
          }
          own->registers[m] = halves[0] | halves[1] << 16;
        }
      }
    });
  }

  BlockEmulator& emulator_;
  int thread_;
  std::vector<std::size_t> written_;  ///< chunks since the last fence_async_proxy()
  std::vector<Copy> open_;
  std::deque<std::vector<Copy>> groups_;
};

inline void BlockEmulator::enter(unsigned low, unsigned high, unsigned thread) {
  auto* self = reinterpret_cast<BlockEmulator*>(static_cast<std::uintptr_t>(low) |
                                                static_cast<std::uintptr_t>(high) << 32);
  {
    EmulatedBlock block(*self, static_cast<int>(thread));
    (*self->kernel_)(block);
  }
  Fiber& fiber = self->fibers_[thread];
  fiber.done = true;
  fiber.context.leave_for(self->scheduler_);
}

/// Calls run(block, item) on the blocks of a kernel's grid, one after the other. Returns the first failure, or "".
template <class Kernel, class Run>
std::string emulate_grid(const Kernel& kernel, const Run& run, std::uint32_t seed = 0) {
  const std::int64_t blocks = [&] {
    if constexpr (requires { kernel.grid.blocks; }) return kernel.grid.blocks;
    else return kernel.blocks;
  }();
  for (std::int64_t item = 0; item < blocks; ++item) {
    BlockEmulator emulator(Kernel::threads, Kernel::shared_bytes,
                           seed + static_cast<std::uint32_t>(item));
    const std::string failure = emulator.run([&](EmulatedBlock& block) {
      try {  // nothing may leave a fiber
        run(block, item);
      } catch (const std::exception& error) {
        emulator.fail(error.what());
      }
    });
    if (!failure.empty()) return "block " + std::to_string(item) + ": " + failure;
  }
  return "";
}
template <class Kernel>
std::string emulate_grid(const Kernel& kernel) {
  return emulate_grid(kernel,
                      [&](EmulatedBlock& block, std::int64_t item) { kernel.run(block, item); });
}

}  // namespace katt::testing
