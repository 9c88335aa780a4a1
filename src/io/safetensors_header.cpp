#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "io/json_input.hpp"
#include "io/printable.hpp"
#include "io/safetensors.hpp"

namespace katt::io {

namespace {

/// header → tensor → shape
constexpr int header_depth = 3;
constexpr std::size_t length_bytes = 8;

constexpr std::array<std::pair<const char*, std::size_t>, 13> dtype_bytes{{{"F32", 4},
                                                                           {"F16", 2},
                                                                           {"BF16", 2},
                                                                           {"F64", 8},
                                                                           {"I64", 8},
                                                                           {"I32", 4},
                                                                           {"I16", 2},
                                                                           {"I8", 1},
                                                                           {"U64", 8},
                                                                           {"U32", 4},
                                                                           {"U16", 2},
                                                                           {"U8", 1},
                                                                           {"BOOL", 1}}};

std::optional<std::size_t> product(std::size_t a, std::size_t b) {
  std::size_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

class HeaderReader {
 public:
  HeaderReader(const std::string& name, std::span<const std::byte> file)
      : name_(name), file_(file) {}

  SafetensorsHeader read() {
    const nlohmann::json root = impl::parse_json(name_ + ": header", header_text(), header_depth);
    if (!root.is_object()) fail("header: expected a JSON object");
    SafetensorsHeader header;
    for (const auto& [key, value] : root.items()) {
      if (key == "__metadata__") {
        header.metadata = metadata(value);
      } else {
        header.tensors.emplace(key, entry(key, value));
      }
    }
    check_ranges(header);
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw InputError(name_ + ": " + message);
  }
  [[noreturn]] static void fail_tensor(const std::string& name, const std::string& tensor,
                                       const std::string& message) {
    throw InputError(name + ": tensor " + impl::printable(tensor) + ": " + message);
  }

  std::string_view header_text() {
    if (file_.size() < length_bytes) {
      fail("holds " + std::to_string(file_.size()) +
           " bytes, expected a safetensors file (at least 8)");
    }
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < length_bytes; ++i) {
      length |= std::to_integer<std::uint64_t>(file_[i]) << (8 * i);
    }
    if (length > max_safetensors_header_bytes) {
      fail("header: its length is given as " + std::to_string(length) +
           " bytes, expected at most " + std::to_string(max_safetensors_header_bytes));
    }
    if (length > file_.size() - length_bytes) {
      fail("header: its length is given as " + std::to_string(length) +
           " bytes, but the file holds " + std::to_string(file_.size()));
    }
    data_ = length_bytes + length;
    return {reinterpret_cast<const char*>(file_.data()) + length_bytes, length};
  }

  std::map<std::string, std::string> metadata(const nlohmann::json& value) const {
    if (!value.is_object()) fail("header: __metadata__: expected an object of texts");
    std::map<std::string, std::string> result;
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) fail("header: __metadata__: expected an object of texts");
      result.emplace(key, text.get<std::string>());
    }
    return result;
  }

  SafetensorsEntry entry(const std::string& tensor, const nlohmann::json& value) const {
    const auto field = [&](const char* key, auto is_good, const char* expected) {
      const auto found = value.find(key);
      if (found == value.end() || !is_good(*found)) {
        fail_tensor(name_, tensor, std::string(key) + ": expected " + expected);
      }
      return *found;
    };
    const auto is_sizes = [](const nlohmann::json& list) {
      return list.is_array() && std::ranges::all_of(list, [](const nlohmann::json& n) {
               return n.is_number_unsigned() &&
                      n.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max();
             });
    };
    if (!value.is_object() || value.size() != 3) {
      fail_tensor(name_, tensor, "expected an object of dtype, shape and data_offsets");
    }
    SafetensorsEntry result;
    result.dtype = field(
                       "dtype", [](const auto& v) { return v.is_string(); }, "a text")
                       .get<std::string>();
    result.shape = field("shape", is_sizes, "a list of sizes").get<decltype(result.shape)>();
    const auto offsets =
        field(
            "data_offsets", [&](const auto& v) { return is_sizes(v) && v.size() == 2; },
            "two offsets")
            .get<std::array<std::size_t, 2>>();
    const std::size_t data_bytes = file_.size() - data_;
    if (offsets[0] > offsets[1] || offsets[1] > data_bytes) {
      fail_tensor(name_, tensor,
                  "data_offsets " + std::to_string(offsets[0]) + " to " +
                      std::to_string(offsets[1]) + " are not within the " +
                      std::to_string(data_bytes) + " bytes of data");
    }
    if (bytes_of(tensor, result) != offsets[1] - offsets[0]) {
      fail_tensor(name_, tensor,
                  "data_offsets span " + std::to_string(offsets[1] - offsets[0]) +
                      " bytes, expected those of " + result.dtype + " " +
                      impl::shape_text(result.shape));
    }
    result.begin = data_ + offsets[0];
    result.end = data_ + offsets[1];
    return result;
  }

  std::optional<std::size_t> bytes_of(const std::string& tensor,
                                      const SafetensorsEntry& entry) const {
    const auto* known = std::ranges::find_if(
        dtype_bytes, [&](const auto& dtype) { return entry.dtype == dtype.first; });
    if (known == dtype_bytes.end()) {
      fail_tensor(name_, tensor, "dtype: unknown \"" + impl::printable(entry.dtype) + "\"");
    }
    std::optional<std::size_t> bytes = known->second;
    for (const std::int64_t extent : entry.shape) {
      bytes = product(*bytes, static_cast<std::size_t>(extent));
      if (!bytes) fail_tensor(name_, tensor, "shape: its size overflows 64 bits");
    }
    return bytes;
  }

  /// Ranges follow one another from the first byte of the data to the last of the file.
  void check_ranges(const SafetensorsHeader& header) const {
    std::vector<std::pair<const std::string*, const SafetensorsEntry*>> order;
    for (const auto& [tensor, entry] : header.tensors) order.emplace_back(&tensor, &entry);
    std::ranges::sort(order, [](const auto& a, const auto& b) {
      return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
    });
    std::size_t at = data_;
    for (const auto& [tensor, entry] : order) {
      if (entry->begin != at) {
        fail_tensor(name_, *tensor,
                    "data_offsets begin at " + std::to_string(entry->begin - data_) +
                        ", expected " + std::to_string(at - data_) +
                        ", where the tensor before ends");
      }
      at = entry->end;
    }
    if (at != file_.size()) {
      fail("holds " + std::to_string(file_.size()) + " bytes, expected " + std::to_string(at) +
           ", where the last tensor ends");
    }
  }

  const std::string& name_;
  std::span<const std::byte> file_;
  std::size_t data_ = 0;  ///< offset of the tensors' bytes
};

}  // namespace

SafetensorsHeader parse_safetensors(const std::string& name, std::span<const std::byte> file) {
  return HeaderReader(name, file).read();
}

}  // namespace katt::io
