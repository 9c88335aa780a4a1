#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace katt::io::impl {

/// Numbers and texts one after another, for a process of the same program.
class MessageWriter {
 public:
  template <class T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T> MessageWriter& add(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  MessageWriter& add(std::string_view text) {
    add(std::uint64_t{text.size()});
    bytes_.append(text);
    return *this;
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// Takes them out again, in the same order. A message that ends too early, from a process whose
/// memory a damaged file has changed, throws std::out_of_range.
class MessageReader {
 public:
  explicit MessageReader(std::string_view bytes) : bytes_(bytes) {}

  template <class T>
  T take() {
    T value{};
    std::memcpy(&value, next(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(next(take<std::uint64_t>())); }

 private:
  std::string_view next(std::uint64_t size) {
    if (size > bytes_.size()) throw std::out_of_range("a message that ends too early");
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }

  std::string_view bytes_;
};

}  // namespace katt::io::impl
