#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.hpp"

/// The safetensors format (github.com/huggingface/safetensors): a little-endian 64-bit length, a
/// JSON header of that length that gives every tensor a dtype, a shape and a range of bytes, and
/// the bytes.
namespace katt::io {

/// Longest header that is accepted, as in the format's own reader.
inline constexpr std::size_t max_safetensors_header_bytes = 100'000'000;

/// One tensor of a header.
struct SafetensorsEntry {
  std::string dtype;  ///< the format's name: "F32", "F16", "BF16", "I64", …
  std::vector<std::int64_t> shape;
  std::size_t begin = 0, end = 0;  ///< bytes, from the start of the file
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;
};

/// Reads the header of a whole file in memory, treated as hostile. Throws InputError of one line,
/// "NAME: …": a header that is too long, cut off or no JSON of the expected form; a key given
/// twice; an unknown dtype; a shape whose size overflows; ranges that overlap, leave a hole, do not
/// fit their shape or do not end where the file ends.
[[nodiscard]] SafetensorsHeader parse_safetensors(const std::string& name,
                                                  std::span<const std::byte> file);

/// The tensors of one file, or of a sharded checkpoint, mapped into memory.
class Safetensors {
 public:
  /// A file; or a folder that holds `model.safetensors`, or `model.safetensors.index.json` and the
  /// shards that it names. Throws InputError naming the file.
  explicit Safetensors(const std::filesystem::path& path);
  ~Safetensors();
  Safetensors(const Safetensors&) = delete;
  Safetensors& operator=(const Safetensors&) = delete;

  /// Every tensor by name.
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] bool has(const std::string& name) const;
  /// Metadata of the (first) file.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;

  /// Throws InputError that names the file and the tensor where it is missing, of another shape, or
  /// none of f32, f16 and bf16.
  void check(const std::string& name, const std::vector<std::int64_t>& shape) const;
  /// Reads a tensor of f32, f16 or bf16 as f32, row-major. Throws as check().
  void read(const std::string& name, const std::vector<std::int64_t>& shape,
            std::span<float> values) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A tensor to be written: f32 values, stored in the dtype.
struct SafetensorsTensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<std::int64_t> shape;
  std::span<const float> values;  ///< row-major
};

/// Writes a file in one step (io/atomic_file.hpp), tensors in the given order. Throws InputError
/// when the place cannot be written, std::invalid_argument for a shape that does not fit the values
/// or a name given twice.
void write_safetensors(const std::filesystem::path& path,
                       std::span<const SafetensorsTensor> tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace katt::io
