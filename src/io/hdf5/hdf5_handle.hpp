#pragma once

#include <hdf5.h>

#include <string>
#include <utility>

namespace katt::io::impl {

/// Owns an HDF5 identifier of any kind (file, dataset, type, property list …).
class Handle {
 public:
  Handle() = default;
  explicit Handle(hid_t id) noexcept : id_(id) {}
  ~Handle() { reset(); }
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      id_ = std::exchange(other.id_, H5I_INVALID_HID);
    }
    return *this;
  }

  [[nodiscard]] hid_t get() const { return id_; }
  [[nodiscard]] bool valid() const { return id_ >= 0; }
  /// Gives the identifier up to the caller, who closes it.
  [[nodiscard]] hid_t release() { return std::exchange(id_, H5I_INVALID_HID); }

 private:
  void reset() noexcept {
    if (id_ >= 0) H5Idec_ref(id_);
    id_ = H5I_INVALID_HID;
  }

  hid_t id_ = H5I_INVALID_HID;
};

/// Keeps HDF5 from printing its error stack on stderr, from here on: our errors carry the reason
/// instead, and the library would print more when the program ends after a damaged file.
inline void silence_errors() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

/// HDF5's reason for the last failure: the innermost entry of its error stack.
inline std::string last_error() {
  std::string reason;
  const auto take_first = [](unsigned depth, const H5E_error2_t* entry, void* out) -> herr_t {
    if (depth == 0 && entry->desc != nullptr) *static_cast<std::string*>(out) = entry->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first, &reason);
  return reason.empty() ? "no reason given" : reason;
}

}  // namespace katt::io::impl
