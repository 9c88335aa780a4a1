#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "core/backend.hpp"
#include "core/dtype.hpp"

namespace katt::impl {

/// Keeps Kokkos initialised while this object lives, with the memory tracker installed. If the
/// caller has initialised Kokkos already, it stays initialised.
class Runtime {
 public:
  /// `threads`: the most host threads of any request. `device`: the one to work on; by default the
  /// ranks of a host share its devices. Throws InputError when the build needs a device and there
  /// is none.
  explicit Runtime(int threads, std::optional<int> device = std::nullopt);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

 private:
  bool owner_ = false;
};

/// Warns of more host threads than processors. Call it once the input is checked.
void tell_threads(int threads);

/// From here on the first SIGINT or SIGTERM sets the returned flag and prints `word` on stderr
/// ("stopping after this kernel"), and the program ends in order; a second signal kills it.
[[nodiscard]] const std::atomic<bool>& stop_on_signals(const char* word);

/// The backend of an option's text, or the default. Throws InputError.
[[nodiscard]] Backend backend_option(const std::optional<std::string>& text);

/// The help text of --device.
inline constexpr const char* device_help =
    "number of the GPU to work on, as katt info lists them (default: 0; ranks share them out)";

/// The device of an option's text; nothing without it. Throws InputError when no device has that
/// number, or `backend` has no devices.
[[nodiscard]] std::optional<int> device_option(const std::optional<std::string>& text,
                                               Backend backend);

/// The number of host threads of an option's text; every core without it. Throws InputError.
[[nodiscard]] int threads_option(const std::optional<std::string>& text);

/// The dtype of an option's text; nothing without it. Throws InputError.
[[nodiscard]] std::optional<Dtype> dtype_option(const std::optional<std::string>& text);

/// The seed of an option's text, or the fallback. Throws InputError.
[[nodiscard]] std::uint64_t seed_option(const std::optional<std::string>& text,
                                        std::uint64_t fallback);

}  // namespace katt::impl
