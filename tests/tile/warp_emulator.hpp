#pragma once

#include <ucontext.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/dtype.hpp"

/// An emulator of thread blocks for kernels written against tile::MmaBlock: every thread of a block
/// is a fiber, and the warps take turns in a random order, so that a missing barrier shows. The
/// semantics are those of the PTX ISA, written down anew from its figures (element by element, as
/// the inverse of what the kernels use), so that the kernels' index arithmetic is tested.
namespace katt::testing {

class EmulatedBlock;

/// One thread block: shared memory, fibers, and what went wrong.
class BlockEmulator {
 public:
  BlockEmulator(int threads, std::size_t shared_bytes, std::uint32_t seed)
      : threads_(threads),
        shared_(shared_bytes + 1024),
        random_(seed),
        block_{threads, 0, 0, {}},
        fibers_(static_cast<std::size_t>(threads)) {
    for (int w = 0; w < threads / 32; ++w) warps_.push_back({32, 0, 0, {}});
    // Memory that nobody wrote is NaN in every dtype.
    std::memset(shared_.data(), 0xFF, shared_.size());
    void* first = shared_.data();
    std::size_t space = shared_.size();
    first_ = static_cast<std::byte*>(std::align(1024, shared_bytes, first, space));
    size_ = shared_bytes;
  }

  /// Runs f(EmulatedBlock&) on every thread. Returns what went wrong first, or "".
  std::string run(const std::function<void(EmulatedBlock&)>& f) {
    kernel_ = &f;
    for (int t = 0; t < threads_; ++t) {
      Fiber& fiber = fibers_[static_cast<std::size_t>(t)];
      fiber.stack.resize(stack_bytes);
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.data();
      fiber.context.uc_stack.ss_size = stack_bytes;
      fiber.context.uc_link = &scheduler_;
      const auto self = reinterpret_cast<std::uintptr_t>(this);
      makecontext(&fiber.context, reinterpret_cast<void (*)()>(&BlockEmulator::enter), 3,
                  static_cast<unsigned>(self & 0xFFFFFFFFU), static_cast<unsigned>(self >> 32),
                  static_cast<unsigned>(t));
    }
    std::vector<int> runnable;
    for (;;) {
      runnable.clear();
      bool all_done = true;
      for (int w = 0; w < threads_ / 32; ++w) {
        bool any = false;
        for (int t = 32 * w; t < 32 * w + 32; ++t) {
          all_done = all_done && fibers_[static_cast<std::size_t>(t)].done;
          any = any || can_run(fibers_[static_cast<std::size_t>(t)]);
        }
        if (any) runnable.push_back(w);
      }
      if (all_done || !failure_.empty()) return failure_;
      if (runnable.empty()) return "deadlock: no thread can go on";
      const int warp = runnable[random_() % runnable.size()];
      for (unsigned turns = 1 + random_() % 100; turns > 0; --turns) {
        for (int t = 32 * warp; t < 32 * warp + 32; ++t) {
          Fiber& fiber = fibers_[static_cast<std::size_t>(t)];
          if (!can_run(fiber)) continue;
          fiber.waiting = nullptr;
          swapcontext(&scheduler_, &fiber.context);
        }
      }
    }
  }

  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }

 private:
  friend class EmulatedBlock;
  static constexpr std::size_t stack_bytes = std::size_t{256} << 10;

  /// Threads that meet: the last to arrive does the work of all of them.
  struct Group {
    int size;
    int arrived;
    unsigned generation;
    std::array<void*, 512> arguments;
    std::string operation{};
  };
  struct Fiber {
    ucontext_t context{};
    std::vector<char> stack;
    bool done = false;
    const Group* waiting = nullptr;
    unsigned generation = 0;
  };

  static void enter(unsigned low, unsigned high, unsigned thread);

  static bool can_run(const Fiber& fiber) {
    return !fiber.done &&
           (fiber.waiting == nullptr || fiber.waiting->generation != fiber.generation);
  }

  /// Thread `member` of a group arrives with its arguments; `act` gets those of all threads.
  template <class Act>
  void meet(Group& group, int thread, int member, const char* operation, void* argument,
            const Act& act) {
    if (group.arrived == 0) group.operation = operation;
    if (group.operation != operation) {
      fail("threads diverge: " + group.operation + " and " + operation);
    }
    group.arguments[static_cast<std::size_t>(member)] = argument;
    if (++group.arrived == group.size) {
      act(group.arguments);
      group.arrived = 0;
      ++group.generation;
      return;
    }
    Fiber& fiber = fibers_[static_cast<std::size_t>(thread)];
    fiber.waiting = &group;
    fiber.generation = group.generation;
    swapcontext(&fiber.context, &scheduler_);
  }

  /// The shared memory at an offset; null, with a failure, where there is none.
  std::byte* at(unsigned offset, std::size_t bytes) {
    if (offset + bytes > size_ || offset % bytes != 0) {
      fail("shared memory: " + std::to_string(bytes) + " bytes at " + std::to_string(offset) +
           " of " + std::to_string(size_));
      return nullptr;
    }
    return first_ + offset;
  }

  int threads_;
  std::vector<std::byte> shared_;
  std::byte* first_ = nullptr;
  std::size_t size_ = 0;
  std::mt19937 random_;
  std::string failure_;
  Group block_;
  std::vector<Group> warps_;
  std::vector<Fiber> fibers_;
  ucontext_t scheduler_{};
  const std::function<void(EmulatedBlock&)>* kernel_ = nullptr;
};

/// A thread's view of its block: the members of tile::MmaBlock.
class EmulatedBlock {
 public:
  EmulatedBlock(BlockEmulator& emulator, int thread) : emulator_(emulator), thread_(thread) {}

  unsigned thread() const { return static_cast<unsigned>(thread_); }
  void barrier() const {
    emulator_.meet(emulator_.block_, thread_, thread_, "barrier", nullptr, [](auto&) {});
  }
  void sync_warp() const {
    meet_warp("sync_warp", nullptr, [](auto&) {});
  }

  float shuffle_xor(float value, int mask) const {
    struct Argument {
      float in, out;
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

  static float exp2(float x) { return std::exp2(x); }

  template <class T>
  static std::uint32_t pack(float first, float second) {
    return static_cast<std::uint32_t>(T(first).bits) | static_cast<std::uint32_t>(T(second).bits)
                                                           << 16;
  }
  void store_pair(unsigned offset, std::uint32_t pair) const {
    if (std::byte* target = emulator_.at(offset, 4)) std::memcpy(target, &pair, 4);
  }
  void copy_chunk(void* global, unsigned offset) const {
    if (const std::byte* source = emulator_.at(offset, 16)) std::memcpy(global, source, 16);
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
      // Who holds an element: PTX ISA, figures of mma.m16n8k16.
      float a_matrix[16][16];
      float b_matrix[16][8];
      for (int lane = 0; lane < 32; ++lane) {
        const auto* held = at<Argument>(arguments, lane);
        const int group = lane >> 2;
        const int in_group = lane % 4;
        for (int i = 0; i < 8; ++i) {
          const int row = (i < 2 || (i >= 4 && i < 6)) ? group : group + 8;
          const int column = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
          a_matrix[row][column] = element<T>(held->a[i / 2], i % 2);
        }
        for (int i = 0; i < 4; ++i) {
          const int row = in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0);
          b_matrix[row][group] = element<T>(held->b[i / 2], i % 2);
        }
      }
      for (int lane = 0; lane < 32; ++lane) {
        auto* held = at<Argument>(arguments, lane);
        for (int i = 0; i < 4; ++i) {
          const int row = i < 2 ? lane >> 2 : (lane >> 2) + 8;
          const int column = lane % 4 * 2 + (i & 1);
          for (int k = 0; k < 16; ++k) held->c[i] += a_matrix[row][k] * b_matrix[k][column];
        }
      }
    });
  }

 private:
  struct Copy {
    void* target;
    const void* source;
    bool live;
  };

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
          const int i = lane / 4;
          const int j = lane % 4 * 2;
          const std::uint32_t low = own->transposed ? matrix[j][i] : matrix[i][j];
          const std::uint32_t high = own->transposed ? matrix[j + 1][i] : matrix[i][j + 1];
          own->registers[m] = low | high << 16;
        }
      }
    });
  }

  BlockEmulator& emulator_;
  int thread_;
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
  self->fibers_[thread].done = true;
}

}  // namespace katt::testing
