#pragma once

#include <string_view>

namespace katt::nn {

/// The least that a call computes and moves, as the operators count for their sweeps.
struct CallWork {
  double flops = 0;
  double bytes = 0;
};

/// Told of every call of an operator before it is launched, for profiles.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  /// `name` is that of the region or kernel that follows, e.g. "katt::rope".
  virtual void call(std::string_view name, const CallWork& work) = 0;
};

/// The one that is told; nothing is counted where there is none, the usual case.
inline CallObserver*& call_observer() {
  static CallObserver* observer = nullptr;
  return observer;
}

/// Tells the observer, if any. `work` is a function: it is asked only then.
template <class F>
void observe_call(std::string_view name, const F& work) {
  if (CallObserver* observer = call_observer()) observer->call(name, work());
}

/// The work of an operator's call, from the functions that the operator offers.
template <class Args>
[[nodiscard]] CallWork work_of(const Args& args) {
  CallWork work;
  if constexpr (requires { forward_flops(args); }) work.flops = forward_flops(args);
  if constexpr (requires { backward_flops(args); }) work.flops = backward_flops(args);
  if constexpr (requires { forward_bytes(args); }) work.bytes = forward_bytes(args);
  if constexpr (requires { backward_bytes(args); }) work.bytes = backward_bytes(args);
  // RoPE reads a row of its cache for every position of a sequence
  if constexpr (requires { forward_bytes(args, args.seq()); }) {
    work.bytes = forward_bytes(args, args.seq());
  }
  if constexpr (requires { backward_bytes(args, args.dout.extent[2]); }) {
    work.bytes = backward_bytes(args, args.dout.extent[2]);
  }
  return work;
}

}  // namespace katt::nn
