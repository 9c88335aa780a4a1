#pragma once

#include <setjmp.h>  // NOLINT(modernize-deprecated-headers): _setjmp and _longjmp are not std's
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "tile/cuda/tensor_map.hpp"

/// An emulator of thread blocks for kernels written against tile::MmaBlock or tile::WgmmaBlock:
/// every thread of a block is a fiber, and the warps run alternately in a random order, so that a
/// missing barrier shows. Asynchronous operations happen as late as they may, and are compared with
/// the result of doing them at once. The instructions are in warp_emulator.hpp.
namespace katt::testing {

class EmulatedBlock;

/// A place where execution was left, on a stack of its own. swapcontext() asks the system for the
/// signals that are blocked, at every switch: three quarters of the time of these tests. So a
/// context is entered by setcontext() once and then by a jump; under the address sanitizer, which
/// knows swapcontext() alone, by that.
class FiberContext {
 public:
  /// Prepares to run `entry` with these three arguments. `entry` does not return.
  void make(void (*entry)(unsigned, unsigned, unsigned), unsigned a, unsigned b, unsigned c) {
    stack_ = std::make_unique_for_overwrite<char[]>(stack_bytes);
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_.get();
    context_.uc_stack.ss_size = stack_bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, reinterpret_cast<void (*)()>(entry), 3, a, b, c);
  }

  /// Leaves this place for another one; returns when somebody comes back.
  [[gnu::noinline]] void leave_for(FiberContext& other) {
#if defined(KATT_ADDRESS_SANITIZER)
    swapcontext(&context_, &other.context_);
#else
    left_ = true;
    if (_setjmp(place_) == 0) {
      if (other.left_) _longjmp(other.place_, 1);
      setcontext(&other.context_);
    }
#endif
  }

 private:
  static constexpr std::size_t stack_bytes = std::size_t{256} << 10;
  std::unique_ptr<char[]> stack_;
  ucontext_t context_{};
  [[maybe_unused]] jmp_buf place_{};
  [[maybe_unused]] bool left_ = false;  ///< it is at place_
};

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
    warpgroups_.resize(static_cast<std::size_t>((threads + 127) / 128));
    for (auto& group : named_) group = {128, 0, 0, {}};
    // Memory that nobody wrote is NaN in every dtype.
    std::memset(shared_.data(), 0xFF, shared_.size());
    void* first = shared_.data();
    std::size_t space = shared_.size();
    first_ = static_cast<std::byte*>(std::align(1024, shared_bytes, first, space));
    size_ = shared_bytes;
    unfenced_.resize(shared_bytes / 16 + 1);
  }

  /// Runs f(EmulatedBlock&) on every thread. Returns what went wrong first, or "".
  std::string run(const std::function<void(EmulatedBlock&)>& f) {
    kernel_ = &f;
    for (int t = 0; t < threads_; ++t) {
      Fiber& fiber = fibers_[static_cast<std::size_t>(t)];
      const auto self = reinterpret_cast<std::uintptr_t>(this);
      fiber.context.make(&BlockEmulator::enter, static_cast<unsigned>(self & 0xFFFFFFFFU),
                         static_cast<unsigned>(self >> 32), static_cast<unsigned>(t));
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
      if (all_done && !boxes_.empty()) fail("a block ends before its boxes have come");
      if (all_done || !failure_.empty()) return failure_;
      ++turn_;
      if (runnable.empty()) {
        if (turn_ < last_sleep_) continue;
        if (boxes_.empty()) return "deadlock: no thread can go on";
      }
      if (!boxes_.empty() && (runnable.empty() || random_() % 32 == 0)) {
        const std::size_t which = random_() % boxes_.size();
        const Box box = boxes_[which];
        boxes_.erase(boxes_.begin() + static_cast<std::ptrdiff_t>(which));
        deliver(box);
        continue;
      }
      const int warp = runnable[random_() % runnable.size()];
      for (unsigned turns = 1 + random_() % 100; turns > 0; --turns) {
        for (int t = 32 * warp; t < 32 * warp + 32; ++t) {
          Fiber& fiber = fibers_[static_cast<std::size_t>(t)];
          if (!can_run(fiber)) continue;
          fiber.waiting = nullptr;
          fiber.barrier = nullptr;
          scheduler_.leave_for(fiber.context);
        }
      }
    }
  }

  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }

 private:
  friend class EmulatedBlock;

  /// Threads that meet: the last to arrive does the work of all of them.
  struct Group {
    int size;
    int arrived;
    unsigned generation;
    std::array<void*, 512> arguments;
    std::string operation{};
  };
  /// An mbarrier: a phase ends with `count` arrivals and when no bytes are expected.
  struct Barrier {
    int count = 0;
    int arrived = 0;
    unsigned phase = 0;
    std::int64_t bytes = 0;  ///< expected
    bool fenced = false;     ///< boxes may count for it

    void end_phase() {
      if (arrived < count || bytes != 0) return;
      arrived = 0;
      ++phase;
    }
  };
  /// A box on its way to a stripe of shared memory.
  struct Box {
    unsigned target;
    tile::TensorBoxes tensor;
    std::array<std::int64_t, 5> at;
    Barrier* barrier;
  };
  struct Fiber {
    FiberContext context;
    bool done = false;
    const Group* waiting = nullptr;
    unsigned generation = 0;
    const Barrier* barrier = nullptr;
    unsigned parity = 0;
    std::uint64_t asleep_until = 0;  ///< turn of the scheduler
  };
  /// Accumulators of a warpgroup that some wgmma has yet to write; the registers hold NaN
  /// meanwhile.
  struct Accumulators {
    std::vector<float> values;  ///< 64 rows of `columns`
    int columns = 0;
    int pending = 0;
    std::array<float*, 128> registers{};
  };
  /// One wgmma under way: operands as they were when it began.
  struct Product {
    float* accumulators;
    bool accumulate;
    std::function<std::vector<float>()> compute;
    std::vector<float> at_once;
  };
  struct Warpgroup {
    Group group{128, 0, 0, {}};
    std::unordered_map<float*, Accumulators> accumulators{};
    std::vector<Product> open{};
    std::deque<std::vector<Product>> groups{};
    bool fenced = false;  ///< since the last group was closed
  };

  static void enter(unsigned low, unsigned high, unsigned thread);

  bool can_run(const Fiber& fiber) const {
    if (turn_ < fiber.asleep_until) return false;
    if (fiber.barrier != nullptr && fiber.barrier->phase % 2 == fiber.parity) return false;
    return !fiber.done &&
           (fiber.waiting == nullptr || fiber.waiting->generation != fiber.generation);
  }

  /// Suspends a thread for a random while, so that others go far ahead of it.
  void pause(int thread) {
    Fiber& fiber = fibers_[static_cast<std::size_t>(thread)];
    fiber.asleep_until = turn_ + random_() % 32;
    last_sleep_ = std::max(last_sleep_, fiber.asleep_until + 1);
    fiber.context.leave_for(scheduler_);
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
    fiber.context.leave_for(scheduler_);
  }

  /// Calls f(row, coordinates) for the rows of 64 elements of a box.
  template <class F>
  static void for_each_row(const Box& box, const F& f) {
    unsigned row = 0;
    std::array<std::int64_t, 5> x = box.at;
    const auto& size = box.tensor.box;
    for (int e = 0; e < size[4]; ++e) {
      for (int d = 0; d < size[3]; ++d) {
        for (int c = 0; c < size[2]; ++c) {
          for (int b = 0; b < size[1]; ++b) {
            x = {box.at[0], box.at[1] + b, box.at[2] + c, box.at[3] + d, box.at[4] + e};
            f(row++, x);
          }
        }
      }
    }
  }
  /// A row of a box is 128 bytes; bits 4–6 of the address xor bits 7–9 (PTX ISA, "Swizzling
  /// modes").
  void begin_box(const Box& box) {
    if (!box.barrier->fenced) fail("a box counts for a barrier that no proxy fence covers");
    for_each_row(box, [&](unsigned row, const auto&) {
      if (std::byte* target = at(box.target + row * 128, 128)) std::memset(target, 0xFF, 128);
    });
    boxes_.push_back(box);
  }
  void deliver(const Box& box) {
    const tile::TensorBoxes& tensor = box.tensor;
    for_each_row(box, [&](unsigned row, const std::array<std::int64_t, 5>& x) {
      for (unsigned i = 0; i < 64; ++i) {
        std::int64_t offset = x[0] + i;
        bool inside = offset >= 0 && offset < tensor.extent[0];
        for (std::size_t d = 1; d < 5; ++d) {
          inside = inside && x[d] >= 0 && x[d] < tensor.extent[d];
          offset += x[d] * tensor.stride[d];
        }
        const unsigned address = box.target + row * 128 + 2 * i;
        std::byte* target = at(address ^ (address >> 7 & 7) << 4, 2);
        if (target == nullptr) return;
        std::uint16_t value = 0;
        if (inside) value = static_cast<const std::uint16_t*>(tensor.data)[offset];
        std::memcpy(target, &value, 2);
        unfenced_[static_cast<std::size_t>(target - first_) / 16] = false;
      }
      box.barrier->bytes -= 128;
    });
    box.barrier->end_phase();
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
  std::uint64_t turn_ = 0;
  std::uint64_t last_sleep_ = 0;
  std::string failure_;
  Group block_;
  std::vector<Group> warps_;
  std::array<Group, 16> named_{};
  std::vector<Warpgroup> warpgroups_;
  std::unordered_map<unsigned, Barrier> barriers_;
  std::vector<Box> boxes_;      ///< on their way
  std::vector<bool> unfenced_;  ///< 16-byte chunks that only generic accesses see so far
  std::vector<Fiber> fibers_;
  FiberContext scheduler_;
  const std::function<void(EmulatedBlock&)>* kernel_ = nullptr;
};

}  // namespace katt::testing
